"""Programs and graphs as text. `parse_program(print_program(p))` gives p back; what is written is what there is.

    program matmul(M, N, K) where M >= 1 and N >= 1 and K >= 1
    sizes M = 64
    input A: f32[M, K]
    temporary C: f32[M, N] in spm layout [i, j] -> [i // 4, j, i % 4] of [16, N, 4] scope (i.o, j.o)
    init[i, j]: C[i, j] = 0.0 where 0 <= i < M and 0 <= j < N
    for t:
        S[t, i]: B[i] = A[i - 1] + A[i + 1] where 0 <= t < T and 1 <= i < N - 1

A statement's place in the order is where it stands; `for t:` opens a loop that its statements share. Clauses after the
body: `where` (the domain), `ordered` (reorder=False), `exact` (contract=False), `optional j > i` (terms of a sum that
may be left out), `origin S`, `copies A`, `tile 2`, and, only where the text does not say it, `reads (...)`,
`path (...)`, `external (...)`. `poly.frontend.notation` reads the same lines with things left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import islpy as isl

from poly.conditions import affine_or_none, conjunction
from poly.expr import Expr
from poly.graph import Graph
from poly.lexical import Fragment, decode, quote, quote_string
from poly.program import Access, External, OptionalTerms, PathStep, Program, Statement, Tensor
from poly.text_body import BodyReader
from poly.text_loops import parse_loops, print_loops
from poly.text_printed import assignment_text, reads_clause
from poly.text_sets import print_condition, read_condition
from poly.text_syntax import ProgramLines, StatementLine, bracketed, read_assignment, read_program_lines, tensor_text

__all__ = ["parse_loops", "parse_program", "print_graph", "print_loops", "print_program", "print_statement"]


# ---- printing


def print_program(program: Program) -> str:
    """The whole program, fully declared."""
    return "\n".join([*header_lines("program", program.name, program.parameters, program.context, program.sizes),
                      *map(tensor_text, program.tensors), *_statement_lines(program.statements)]) + "\n"  # fmt: skip


def header_lines(
    kind: str, name: str, parameters: Sequence[str], context: isl.Set | None, sizes: Sequence[tuple[str, int]]
) -> Iterator[str]:
    """The first lines of a program, a graph or a loop tree."""
    inside = f"({', '.join(quote(p, inside=True) for p in parameters)})" if parameters else ""
    condition = "" if context is None else print_condition(context)
    yield f"{kind} {quote(name)}{inside}" + (f" where {condition}" if condition else "")
    if sizes:
        yield f"sizes {', '.join(f'{quote(s)} = {value}' for s, value in sizes)}"


def print_statement(s: Statement, path: bool = False) -> str:
    """One statement on one line; `path`: with the path written out."""
    label = f"{quote(s.name)}[{', '.join(quote(i, inside=True) for i in s.iterators)}]"
    text = f"{label}: {assignment_text(s.write, s.combiner, s.body, s.reads)}"
    condition = print_condition(s.domain, s.iterators)
    clauses = [
        f"where {condition}" if condition else "",
        "" if s.reorder else "ordered",
        "" if s.contract else "exact",
        f"origin {quote(s.origin)}" if s.origin else "",
        f"copies {quote(s.copies)}" if s.copies else "",
        f"partial {quote(s.partial)}" if s.partial else "",
        f"tile {s.tile_rank}" if s.tile_rank else "",
        f"optional {' and '.join(map(str, s.spare))}" if s.spare else "",
        reads_clause(s.write, s.body, s.reads),
        f"path ({', '.join(_step_text(step) for step in s.path)})" if path else "",
        _external_clause(s.external) if s.external else "",
    ]
    return " ".join([text, *(c for c in clauses if c)])


def _external_clause(external: External) -> str:
    reads, writes = (", ".join(quote(t, inside=True) for t in each) for each in (external.reads, external.writes))
    return f"external ({quote(external.kind)}, [{reads}], [{writes}], {quote_string(external.payload.hex())})"


def _step_text(step: PathStep) -> str:
    return str(step) if isinstance(step, int) else quote(step, inside=True)


def _statement_lines(statements: Sequence[Statement]) -> Iterator[str]:
    """Statements in their order, inside `for` blocks where their paths say so. Follows what reading would count."""
    opened: list[tuple[PathStep, ...]] = [()]  # the paths of the open blocks; a block's lines count from 0
    count = [0]
    for s in statements:
        chain = _blocks(s.path)
        depth = 1
        while depth < len(opened) and depth <= len(chain) and opened[depth] == chain[depth - 1]:
            depth += 1
        heads = _heads(chain[depth - 1 :], opened[depth - 1], count[depth - 1])
        position = count[depth - 1] if heads is not None and not heads else 0
        expected = (*(chain[-1] if chain else ()), position)
        rest = tuple(i for i in s.iterators if i not in expected)
        if heads is None or s.path != (*expected, *rest):
            opened, count = opened[:1], count[:1]
            yield print_statement(s, path=True)
            count[0] += 1
            continue
        opened, count = opened[:depth], count[:depth]
        for names, block in zip(heads, chain[depth - 1 :], strict=True):
            yield f"{'    ' * (len(opened) - 1)}for {', '.join(quote(n, inside=True) for n in names)}:"
            count[-1] += 1
            opened.append(block)
            count.append(0)
        yield "    " * (len(opened) - 1) + print_statement(s)
        count[-1] += 1


def _blocks(path: Sequence[PathStep]) -> list[tuple[PathStep, ...]]:
    """The paths of the blocks around a statement: every prefix that ends in names and goes on with a position."""
    return [tuple(path[:d]) for d in range(1, len(path)) if isinstance(path[d], int)]


def _heads(
    chain: Sequence[tuple[PathStep, ...]], outer: tuple[PathStep, ...], count: int
) -> list[tuple[str, ...]] | None:
    """The names of the blocks to open; None where reading would give them other positions."""
    found: list[tuple[str, ...]] = []
    for block in chain:
        step, *names = block[len(outer) :]
        if step != count or not names or not all(isinstance(n, str) for n in names):
            return None
        found.append(tuple(str(n) for n in names))
        outer, count = block, 0
    return found


def print_graph(graph: Graph) -> str:
    """A model: its tensors, then node by node the operator and its statements. For reading; programs parse back."""
    lines = list(header_lines("graph", graph.name, graph.parameters, graph.context, graph.sizes))
    lines += map(tensor_text, graph.tensors)
    for node in graph.nodes:
        inputs, outputs = (", ".join(quote(n, inside=True) for n in names) for names in (node.inputs, node.outputs))
        lines.append(f"{quote(node.name)}: {node.operator}({inputs}) -> {outputs}")
        lines += [f"    {tensor_text(t)}" for t in node.temporaries]
        lines += [f"    {print_statement(s)}" for s in node.statements]
    return "\n".join(lines) + "\n"


# ---- reading


def parse_program(text: str) -> Program:
    """The program that fully declared text is: every tensor with its role, every statement with label and iterators.

    Raises `ParseError` with line and caret, `ShapeError` and `PolyError` for what does not fit together.
    """
    return build_program(read_program_lines(text))


def build_program(lines: ProgramLines) -> Program:
    """The same from lines already read."""
    header = lines.header
    parameters = header.parameters if header else ()
    context = read_condition(header.condition if header else None, (), parameters, None)
    tensors: list[Tensor] = []
    for declaration in lines.declarations:
        if declaration.role is None:
            raise declaration.place.error(
                f"the role of {declaration.tensor.name} is missing", hint="input, output, temporary"
            )
        check_names(declaration.tensor, parameters, declaration.place)
        tensors.append(declaration.tensor)
    scalars = {t.name for t in tensors if not t.rank}
    statements = [_statement(line, parameters, scalars) for line in lines.statements]
    name = header.name if header else "program"
    program = Program(name, tuple(tensors), tuple(statements), parameters, context)
    return program.bind(**dict(lines.sizes)) if lines.sizes else program


def check_names(tensor: Tensor, parameters: Sequence[str], place: Fragment) -> None:
    """Shapes use declared sizes only. Raises `ParseError`."""
    layout = tensor.layout.shape if tensor.layout else ()
    for name in sorted({n for extent in (*tensor.shape, *layout) for n in extent.names}.difference(parameters)):
        raise place.error(f"unknown size {name!r}", hint=f"declare it: program name({', '.join([*parameters, name])})")


def _statement(line: StatementLine, parameters: Sequence[str], scalars: set[str]) -> Statement:
    iterators = line.iterators
    if line.label is None or iterators is None:
        raise line.place.error("the statement has no label", hint="S[i, j]: C[i, j] = ...")
    for subscript in line.subscripts or ():
        if iterators.count(subscript.name()) > 1 or subscript.name() in parameters:
            raise subscript.error(f"{subscript.shown!r} is taken")
    write, body, reads = read_assignment(line, BodyReader(scalars))
    domain = read_condition(line.clauses.get("where"), iterators, parameters, line.label)
    path = (*line.prefix, *(i for i in iterators if i not in line.prefix))
    return make_statement(line, line.label, iterators, domain, (write, body, reads), path)


def make_statement(
    line: StatementLine,
    name: str,
    iterators: tuple[str, ...],
    domain: isl.Set,
    content: tuple[Access, Expr, tuple[Access, ...]],
    path: tuple[PathStep, ...],
) -> Statement:
    """A statement with what the clauses of its line say."""
    write, body, reads = content
    clauses = line.clauses
    return Statement(
        name, iterators, domain, write, reads, body, line.combiner,
        reorder="ordered" not in clauses,
        contract="exact" not in clauses,
        path=_path(clauses["path"], iterators) if "path" in clauses else path,
        origin=clauses["origin"].name() if "origin" in clauses else "",
        copies=clauses["copies"].name() if "copies" in clauses else "",
        tile_rank=clauses["tile"].integer() if "tile" in clauses else 0,
        external=_external(clauses["external"]) if "external" in clauses else None,
        partial=clauses["partial"].name() if "partial" in clauses else "",
        optional=_optional(clauses["optional"], line, iterators, domain) if "optional" in clauses else None,
    )  # fmt: skip


def _optional(clause: Fragment, line: StatementLine, iterators: tuple[str, ...], domain: isl.Set) -> OptionalTerms:
    found = conjunction(clause.expression(), affine_or_none, with_unequal=True)
    if found is None or line.combiner is None:
        raise clause.error("terms of a sum that may be left out are expected", hint="optional j >= i + 1")
    return OptionalTerms(iterators, domain, found)


def _path(clause: Fragment, iterators: Sequence[str]) -> tuple[PathStep, ...]:
    steps: list[PathStep] = []
    for part in bracketed(clause):
        step = part.integer() if part.text[:1].isdigit() else part.name()
        if isinstance(step, str) and step not in iterators:
            raise part.error(f"{step!r} is not an iterator of the statement")
        steps.append(step)
    return tuple(steps)


def _external(clause: Fragment) -> External:
    match bracketed(clause):
        case [kind, reads, writes, payload]:
            try:
                data = bytes.fromhex(decode(payload.text))
            except ValueError:
                raise payload.error("the payload is hexadecimal text") from None
            inputs, outputs = (tuple(p.name() for p in bracketed(each, "[")) for each in (reads, writes))
            return External(kind.name(), data, inputs, outputs)
        case _:
            raise clause.error('an external statement says (KIND, [READS], [WRITES], "PAYLOAD")')
