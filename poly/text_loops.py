"""Loop trees as text, both ways.

loops matmul(N)
sizes N = 64
input A: f32[64, N]
output C: f32[64, N]
for i.o in range(0, 64, 16) parallel:
    alloc temporary Cr: f32[16, 4] in reg scope (i.o):
        for i.p in range(max(0, 1 - i.o), min(16, N - i.o)) unroll:
            if i.o + i.p >= 3 and N >= 4 or i.p == 0:
                upd[i.o + i.p, 0]: Cr[i.p, 0] += A[i.o + i.p, 0] exact
    sync "copies have landed"
external Sort
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, cast, get_args

from poly.affine import Affine, Constraint
from poly.conditions import affine_or_none, conjunction
from poly.lexical import Fragment, Line, Source, decode, quote, quote_string, read_lines
from poly.loops import Alloc, Compute, External, For, If, LoopKind, LoopTree, Node, Sync
from poly.program import Access, Tensor
from poly.text_body import BodyReader, affine
from poly.text_printed import access_text, assignment_text, reads_clause
from poly.text_syntax import (
    bracketed,
    is_declaration,
    read_assignment,
    read_declaration,
    read_header,
    read_sizes,
    read_statement_line,
    split_clauses,
    start_word,
    tensor_text,
)

_KINDS: Final = tuple(kind for kind in get_args(LoopKind) if kind != "serial")
_PER_THREAD: Final = "per thread "


# ---- printing


def print_loops(tree: LoopTree) -> str:
    """The whole tree, with the tensors it works on."""
    sizes = ", ".join(f"{quote(name)} = {value}" for name, value in tree.sizes)
    parameters = f"({', '.join(quote(p, inside=True) for p in tree.parameters)})" if tree.parameters else ""
    lines = [
        f"loops {quote(tree.name)}{parameters}",
        *([f"sizes {sizes}"] if sizes else []),
        *map(tensor_text, tree.tensors),
        *([f"{_PER_THREAD}{', '.join(map(quote, tree.per_thread))}"] if tree.per_thread else []),
    ]
    return "\n".join([*lines, *print_nodes(tree.body)]) + "\n"


def print_nodes(nodes: Sequence[Node], depth: int = 0) -> Iterator[str]:
    """The lines of some nodes."""
    indent = "    " * depth
    for node in nodes:
        match node:
            case Compute():
                yield indent + compute_text(node)
            case External(statement):
                yield f"{indent}external {quote(statement)}"
            case For(body=body):
                yield f"{indent}{_for_text(node)}:"
                yield from _body(body, depth)
            case If(any_of, body):
                yield f"{indent}if {any_of_text(any_of)}:"
                yield from _body(body, depth)
            case Alloc(tensor, body):
                yield f"{indent}alloc {tensor_text(tensor)}:"
                yield from _body(body, depth)
            case Sync(reason):
                yield f"{indent}sync {quote_string(reason)}".rstrip() if reason else f"{indent}sync"


def _body(body: Sequence[Node], depth: int) -> Iterator[str]:
    yield from print_nodes(body, depth + 1) if body else ["    " * (depth + 1) + "pass"]


def compute_text(node: Compute) -> str:
    """`upd[i.o + i.p, k]: C[i.o + i.p, 0] += A[i.o + i.p, k]`"""
    label = f"{quote(node.statement)}[{', '.join(map(str, node.instance))}]"
    text = f"{label}: {assignment_text(node.write, node.combiner, node.body, node.reads)}"
    clauses = ["" if node.contract else "exact", reads_clause(node.write, node.body, node.reads)]
    return " ".join([text, *(c for c in clauses if c)])


def _for_text(node: For) -> str:
    bounds = [
        _bound_text("max", node.lower),
        _bound_text("min", node.upper),
        *([str(node.step)] if node.step != 1 else []),
    ]
    text = f"for {quote(node.variable)} in range({', '.join(bounds)})"
    if node.kind != "serial":
        text += f" {node.kind}"
    if node.engine is not None:
        text += f" engine {quote(node.engine)}"
    if node.fill is not None:
        text += f" fill {quote(node.fill)}"
    if node.nontemporal:
        text += " nontemporal"
    if node.ahead is not None:
        text += f" ahead ({quote(node.ahead[0], inside=True)}, {node.ahead[1]})"
    if node.asks:
        text += f" asks ({', '.join(map(access_text, node.asks))})"
    if node.nowait is not None:
        text += f" nowait {quote(node.nowait)}"
    if node.leaves is not None:
        text += f" leaves {quote(node.leaves)}"
    if node.ends:
        text += f" ends ({', '.join(map(str, node.ends))})"
    return text


def _bound_text(function: str, bounds: Sequence[Affine]) -> str:
    return str(bounds[0]) if len(bounds) == 1 else f"{function}({', '.join(map(str, bounds))})"


def any_of_text(any_of: Sequence[Sequence[Constraint]]) -> str:
    """`i >= 1 and N >= j or j == 0`; `True` is the empty conjunction, `False` the empty choice."""
    return " or ".join(" and ".join(map(str, all_of)) or "True" for all_of in any_of) or "False"


# ---- reading


def parse_loops(text: str) -> LoopTree:
    """The tree that a text is. Raises `ParseError` with line and caret."""
    whole = Source.of(text)
    lines = read_lines(whole, ("for", "if", "alloc"))
    if not lines or start_word(lines[0].head) != "loops":
        raise whole.error("the first line names the tree", hint="loops matmul(N)")
    header = read_header(lines[0].head)
    if header.condition is not None:
        raise header.condition.error("loops have no condition")
    rest = 1
    sizes: list[tuple[str, int]] = []
    if rest < len(lines) and lines[rest].body is None and start_word(lines[rest].head) == "sizes":
        sizes = read_sizes(lines[rest].head)
        rest += 1
    tensors: list[Tensor] = []
    while rest < len(lines) and lines[rest].body is None and _declares(lines[rest].head):
        tensors.append(read_declaration(lines[rest].head).tensor)
        rest += 1
    per_thread: tuple[str, ...] = ()
    if rest < len(lines) and lines[rest].body is None and lines[rest].head.text.startswith(_PER_THREAD):
        per_thread = tuple(n.name() for n in lines[rest].head.part(len(_PER_THREAD)).split(","))
        rest += 1
    body = _nodes(lines[rest:])
    return LoopTree(header.name, tuple(tensors), body, header.parameters, tuple(sizes), per_thread)


def _declares(line: Fragment) -> bool:
    return not re.match(r"(sync|external)\b", line.text) and is_declaration(line)


def _nodes(lines: Sequence[Line]) -> tuple[Node, ...]:
    return tuple(_node(line) for line in lines if line.head.text != "pass")


def _node(line: Line) -> Node:
    head = line.head
    if line.body is None:
        if start_word(head) == "external":
            return External(head.part(len("external")).name())
        if re.fullmatch(r"sync(\s.*)?", head.text):
            return Sync(decode(head.part(len("sync")).text))
        return _compute(head)
    body = _nodes(line.body)
    if re.match(r"if\b", head.text):
        return If(_any_of(head.part(len("if"))), body)
    if re.match(r"alloc\b", head.text):
        return Alloc(read_declaration(head.part(len("alloc"))).tensor, body)
    return _for(head, body)


def _compute(head: Fragment) -> Compute:
    line = read_statement_line(head, ())
    if line.label is None or line.subscripts is None:
        raise head.error("the statement and its instance are missing", hint="upd[i, j, k]: C[i, j] += ...")
    if odd := sorted(line.clauses.keys() - {"exact", "reads"}):
        raise line.clauses[odd[0]].error(f"{odd[0]} has no place in a loop tree")
    write, body, reads = read_assignment(line, BodyReader())
    instance = tuple(affine(s.expression(), s) for s in line.subscripts)
    return Compute(line.label, instance, write, reads, body, line.combiner, "exact" not in line.clauses)


def _for(head: Fragment, body: tuple[Node, ...]) -> For:
    match = re.match(r"for\s+([^\W\d]\w*)\s+in\s+range\s*(?=\()", head.text)
    if match is None:
        raise head.error("a loop is `for i in range(LOWER, UPPER, STEP):`")
    known = (*_KINDS, "engine", "fill", "nontemporal", "ahead", "asks", "nowait", "leaves", "ends")
    bounds, clauses = split_clauses(head.part(match.end()), known)
    parts = bracketed(bounds)
    if len(parts) not in (2, 3):
        raise bounds.error("range takes a lower bound, an upper bound (exclusive) and perhaps a step")
    kinds = [kind for kind in _KINDS if kind in clauses]
    if len(kinds) > 1 or any(clauses[kind].text for kind in kinds):
        raise head.error(f"a loop has one kind of {', '.join(_KINDS)}", match.end())
    if "nontemporal" in clauses and (kinds not in (["vector"], ["unit"]) or clauses["nontemporal"].text):
        raise head.error("only a vector loop or one of an engine is nontemporal", match.end())
    if "ahead" in clauses and kinds != ["vector"]:
        raise head.error("only a vector loop fetches ahead", match.end())
    if "asks" in clauses and kinds:
        raise head.error("only a serial loop asks for elements", match.end())
    if "nowait" in clauses and kinds != ["parallel"]:
        raise head.error("only a parallel loop has a next one without a meeting", match.end())
    if "leaves" in clauses and kinds:
        raise head.error("only a serial loop ends where a statement says so", match.end())
    if "ends" in clauses and kinds:
        raise head.error("only a serial loop ends before its bound", match.end())
    return For(
        decode(match[1]), _bounds(parts[0], "max"), _bounds(parts[1], "min"), body,
        parts[2].integer() if len(parts) == 3 else 1,
        cast(LoopKind, kinds[0]) if kinds else "serial",
        clauses["engine"].name() if "engine" in clauses else None,
        clauses["fill"].name() if "fill" in clauses else None,
        "nontemporal" in clauses,
        _ahead(clauses["ahead"]) if "ahead" in clauses else None,
        tuple(_asked(p) for p in bracketed(clauses["asks"])) if "asks" in clauses else (),
        clauses["nowait"].name() if "nowait" in clauses else None,
        clauses["leaves"].name() if "leaves" in clauses else None,
        tuple(affine(p.expression(), p) for p in bracketed(clauses["ends"])) if "ends" in clauses else (),
    )  # fmt: skip


def _ahead(clause: Fragment) -> tuple[str, int]:
    parts = bracketed(clause)
    if len(parts) != 2 or parts[1].integer() < 1:
        raise clause.error("a loop and how many of its iterations ahead are expected", hint="ahead (i.o, 1)")
    return parts[0].name(), parts[1].integer()


def _asked(part: Fragment) -> Access:
    access = BodyReader().access(part.expression(), part)
    if access is None or access.indirect:
        raise part.error("an element with affine subscripts is expected", hint="asks (B[k, 16*j + 48])")
    return access


def _bounds(part: Fragment, function: str) -> tuple[Affine, ...]:
    match part.expression():
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name == function:
            return tuple(affine(a, part) for a in arguments)
        case node:
            return (affine(node, part),)


def _any_of(condition: Fragment) -> tuple[tuple[Constraint, ...], ...]:
    node = condition.expression()
    if isinstance(node, ast.Constant) and node.value is False:
        return ()
    choices = node.values if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) else [node]
    return tuple(_all_of(choice, condition) for choice in choices)


def _all_of(node: ast.expr, condition: Fragment) -> tuple[Constraint, ...]:
    if isinstance(node, ast.Constant) and node.value is True:
        return ()
    with condition.within_depth():
        found = conjunction(node, affine_or_none, with_unequal=True)
    if found is None:
        raise condition.node_error(node, "affine comparisons joined by `and` are expected")
    return found
