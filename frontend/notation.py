"""Einstein notation: the program text with declarations, names and ranges left out.

    C[i, k] += A[i, j]*B[j, k]; D[i, k] = max(C[i, k] + b[k], 0)

What is left out is filled in. An index without bounds in a `where` gets its range from the shapes it subscripts
(`poly.frontend.ranges`). An update (`+=`, `*=`, `max=`, `min=`, `and=`, `or=`) starts from the combiner's identity, by
a statement of its own, unless its target is declared `inout`; `-=` is `+=` of the negative. It is done for each index
that only its `where` has, too, if bounded at both ends there. A tensor that is never written is an input, one that is
read first and written later an inout (a scan with a shape given is, without one it reads only what it wrote), one that
no other statement reads an output; the rest are temporary. A tensor that is written has one more than the greatest
subscripts as its shape, and the dtype of what is written; every other undeclared dtype is f32, or i64 for subscripts.
An assignment over an index that its target lacks, which would keep the last value only, is refused unless a label names
the index or a `for` line has it. Names in shapes are sizes, at least 1 unless the header's condition speaks for them. A
text that leaves nothing out (a header, every tensor with its role, every statement with label, iterators and `where`)
is read as it stands, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from keyword import iskeyword
from numbers import Integral
from operator import index

import islpy as isl

from poly.affine import Affine, var
from poly.arguments import checks_kinds
from poly.dtypes import DTYPES
from poly.errors import ParseError, PolyError, ShapeError
from poly.expr import rewrite, with_reads_at
from poly.frontend.choice_guards import is_inside, without, without_unequal
from poly.frontend.comparisons import comparable
from poly.frontend.nest_scalars import expand_scalars
from poly.frontend.notation_dtypes import DType, check_fills, converted, dtype_of_tensor, filled, named_dtype
from poly.frontend.notation_elements import elements_in_bounds
from poly.frontend.notation_order import ordered_statements
from poly.frontend.notation_products import in_pairs
from poly.frontend.notation_scans import check_scans, starts_itself
from poly.frontend.notation_shapes import Draft, Shapes, affine_parts, ordered_names
from poly.frontend.ranges import ranges_of_set
from poly.lexical import Fragment, decode, names_in
from poly.program import Access, Program, Role, Tensor
from poly.relations import access_map
from poly.sets import header, identifier
from poly.text import build_program
from poly.text_body import BodyReader
from poly.text_sets import read_condition
from poly.text_syntax import Declaration, ProgramLines, StatementLine, read_assignment, read_program_lines

Extents = tuple[Affine, ...]
Extent = tuple[int | str, ...]
MOST_ELEMENTS = 2**48


@checks_kinds(ParseError, hint=lambda args, _: "shapes have names: parse(text, A=(64, 96))" if len(args) > 1 else "")
def parse(text: str, *, dtypes: Mapping[str, DType] | DType | None = None, **shapes: Extent | int) -> Program:
    """The program of a text in Einstein notation (see the module's text).

    `shapes`: for tensors that the text does not declare, a tuple of ints and size names or expressions ("N", "N + 2"),
    or an int for a vector;
    `dtypes`: dtypes of such tensors by name, or one for all inputs that no read takes for a subscript, by our names
    ("f64") or numpy's ("float64", "f8", np.float64); "i8" is ours, of 8 bits. Raises `ParseError` with line and caret
    for text that is not in the grammar and for an index without a range, `ShapeError` for shapes and dtypes that do not
    fit together, `ArgumentError` and `ArgumentTypeError` for a dtype that is none.
    """
    lines = read_program_lines(text)
    given = {name: _shape(name, shape) for name, shape in shapes.items()}
    by_name = dtypes if isinstance(dtypes, Mapping) else {}
    named = {name: named_dtype(dtype, f"tensor {name}") for name, dtype in by_name.items()}
    if not _is_complete(lines):
        usual = "f32" if dtypes is None or isinstance(dtypes, Mapping) else named_dtype(dtypes, "dtypes")
        return _program(lines, given, named, usual)
    program = build_program(lines)
    for name in [*given, *named]:
        tensor = program.tensor.get(name)
        if tensor is None:
            raise _no_tensor(name, program.tensor)
        if given.get(name, tensor.shape) != tensor.shape or named.get(name, tensor.dtype) != tensor.dtype:
            raise ShapeError(f"declared as {tensor.dtype}[{_list(tensor.shape)}] in the text", where=f"tensor {name}")
    return program


def _shape(name: str, shape: tuple[int | str, ...] | int) -> Extents:
    """A shape as it is given, of a vector as one int, too."""
    where = f"tensor {name}"
    if isinstance(shape, Integral) and shape is not True and shape is not False:
        shape = (int(shape),)
    if not isinstance(shape, tuple | list):  # pyright: ignore[reportUnnecessaryIsInstance]
        plain = isinstance(shape, str | int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
        shown = repr(shape) if plain else type(shape).__name__
        hint = 'A=(64, "N"); a dtype goes into dtypes={"A": "f64"} or the text: A: f64[64, N]'
        if isinstance(getattr(shape, "shape", None), tuple):
            hint = f"{name}={name}.shape; the array itself goes to the kernel"
        raise ShapeError(f"the shape is a tuple of ints and size names, not {shown}", where=where, hint=hint)
    extents: list[Affine] = []
    for extent in shape:
        try:
            extents.append(Affine.of(extent if isinstance(extent, str) else index(extent)))
        except (TypeError, ValueError, ParseError):
            hint = 'A=(64, "N"); a dtype goes into dtypes={"A": "f64"} or the text: A: f64[64, N]'
            raise ShapeError(f"extent {extent!r} is neither an int nor a size name", where=where, hint=hint) from None
        if extents[-1].is_constant and extents[-1].constant > MOST_ELEMENTS:
            text = f"extent {extent} is more than {MOST_ELEMENTS} elements"
            raise ShapeError(text, where=where, hint="a smaller one")
        if extents[-1].is_constant and extents[-1].constant < 0:
            raise ShapeError(f"extent {extent} is negative", where=where, hint="extents from 0 on")
    return tuple(extents)


def _list(shape: Extents) -> str:
    return ", ".join(map(str, shape))


def _no_tensor(name: str, known: Iterable[str], rank: int | None = None) -> PolyError:
    """`rank`: of what was given for a name that the text uses as an index."""
    if rank is not None:
        text = f"the text has no tensor {name!r}, but an index: it stands without subscripts"
        return PolyError(text, hint=f"{name}[{', '.join('ijklmnop'[:rank]) or 'i'}]")
    return PolyError(f"the text has no tensor {name!r}", hint=f"tensors: {', '.join(known)}")


def _is_complete(lines: ProgramLines) -> bool:
    declared = {d.tensor.name for d in lines.declarations if d.role is not None}

    def complete(line: StatementLine) -> bool:
        if line.subscripts is None or (line.subscripts and "where" not in line.clauses):
            return False
        try:
            write, _, reads = read_assignment(line, BodyReader(declared))
        except ParseError:
            return False
        return {write.tensor, *(r.tensor for r in reads)} <= declared

    return lines.header is not None and all(map(complete, lines.statements))


def inputs_of(text: str, **shapes: Extent | int) -> dict[str, str | None]:
    """The inputs of a text in their order, each with the dtype that the text declares, with only some of their shapes
    known. Raises `ParseError`.
    """
    lines = read_program_lines(text)
    given = {name: _shape(name, shape) for name, shape in shapes.items()}
    declared = _declared(lines, given, {})
    drafts = _drafts(lines, given, *_sizes(lines, given))
    names = _names(declared, drafts)
    roles = {n: (declared[n].role if n in declared else None) or _role(n, drafts, given) for n in names}
    inputs = [name for name, role in roles.items() if role in ("input", "inout")]
    return {name: declared[name].tensor.dtype if name in declared else None for name in inputs}


def _names(declared: Mapping[str, Declaration], drafts: Sequence[Draft]) -> tuple[str, ...]:
    """All tensors: those declared, then in the order in which the text names them."""
    used = [t for d in drafts for t in (d.tensor, *_as_written(d))]
    return tuple(dict.fromkeys([*declared, *used]))


def _as_written(draft: Draft) -> list[str]:
    """The tensors that a statement reads, as its text names them: reads in subscripts come before their own read."""
    names = names_in(f"{draft.line.target.text} {draft.line.body.text}")
    return sorted((r.tensor for r in draft.reads), key=names.index)


def _program(lines: ProgramLines, shapes: dict[str, Extents], dtypes: dict[str, str], usual: str) -> Program:
    declared = _declared(lines, shapes, dtypes)
    parameters, context = _sizes(lines, shapes)
    drafts = _drafts(lines, shapes, parameters, context)
    names = _names(declared, drafts)
    for name in [*shapes, *dtypes]:
        if name not in names:
            index = any(name in d.iterators for d in drafts)
            raise _no_tensor(name, names, len(shapes.get(name, "i")) if index else None)
    given = frozenset(shapes)
    found = Shapes(shapes, parameters, context)
    found.solve(drafts)
    check_scans(drafts, found, given)
    for draft in drafts:
        _require_one_value(draft, found)
    tensors: dict[str, Tensor] = {}
    for name in names:
        role = _role(name, drafts, given)
        if name in declared:
            tensors[name] = replace(declared[name].tensor, role=declared[name].role or role)
        else:
            tensors[name] = Tensor(name, found.shapes[name], dtype_of_tensor(name, drafts, dtypes, usual), role)
    alone, drafts = len(drafts), elements_in_bounds(drafts, tensors, found)
    _drop_guards(drafts, found)
    for draft in drafts:
        draft.reads = tuple(filled(r, tensors[r.tensor].dtype) for r in draft.reads)
        draft.body = comparable(draft.body, [tensors[r.tensor].dtype for r in draft.reads])
        check_fills(draft, tensors)
    if not any(t.is_output for t in tensors.values()):
        raise lines.whole.error("every tensor is read again, so none is an output", hint="output C: f32[M, N]")
    statements = ordered_statements(drafts, tensors, parameters, found.context)
    name = lines.header.name if lines.header else "program"
    program = Program(name, tuple(tensors.values()), statements, parameters, found.context)
    program = in_pairs(program, [d.line.label for d in drafts])
    program = program if len(drafts) == alone else expand_scalars(program)
    return program.bind(**dict(lines.sizes)) if lines.sizes else program


def _declared(lines: ProgramLines, shapes: dict[str, Extents], dtypes: dict[str, str]) -> dict[str, Declaration]:
    """Declarations by name; their shapes and dtypes join those given."""
    found: dict[str, Declaration] = {}
    for d in lines.declarations:
        name, shape, dtype = d.tensor.name, d.tensor.shape, d.tensor.dtype
        if name in found:
            raise d.place.error(f"{name!r} is declared twice")
        if shapes.setdefault(name, shape) != shape:
            raise ShapeError(
                f"declared with shape [{_list(shape)}], given [{_list(shapes[name])}]", where=f"tensor {name}"
            )
        if dtypes.setdefault(name, dtype) != dtype:
            raise ShapeError(f"declared as {dtype}, given {dtypes[name]}", where=f"tensor {name}")
        found[name] = d
    return found


def _sizes(lines: ProgramLines, shapes: Mapping[str, Extents]) -> tuple[tuple[str, ...], isl.Set]:
    """Sizes in the order of the header, then of the shapes, with the condition that holds for them."""
    first = lines.header.parameters if lines.header else ()
    condition = lines.header.condition if lines.header else None
    in_order = [*(d.tensor.name for d in lines.declarations), *shapes]
    parameters = tuple(dict.fromkeys([*first, *(n for t in in_order for e in shapes[t] for n in ordered_names(e))]))
    for name in parameters:
        if identifier(name) != name:
            raise ParseError(f"{name!r} cannot name a size", hint=f"for example {identifier(name)}")
    positive = " and ".join(f"{p} >= 1" for p in parameters if condition is None or p not in first)
    context = isl.Set(f"{header(parameters)}{{ : {positive or 'true'} }}")
    return parameters, context.intersect(read_condition(condition, (), parameters, None))


def _drafts(
    lines: ProgramLines, shapes: Mapping[str, Extents], parameters: tuple[str, ...], context: isl.Set
) -> list[Draft]:
    """What the statements say, ranges left open."""
    targets = {decode(s.target.text) for s in lines.statements if s.target.text.isidentifier()}
    scalars = targets | {name for name, shape in shapes.items() if not shape}
    drafts: list[Draft] = []
    for line in lines.statements:
        reader = BodyReader(scalars, bare_indices=True)
        write, body, reads = read_assignment(line, reader)
        _refuse_typed(line, write, shapes)
        body = rewrite(body, converted)
        used = dict.fromkeys(
            n for e in affine_parts(write, reads, body) for n in ordered_names(e) if n not in parameters
        )
        both = [p for p in parameters if var(p) in write.index]
        if both:
            hint = f"another name for the size, such as {both[0].upper() if both[0].islower() else both[0] + '_'}"
            raise line.place.error(f"{both[0]!r} is both a size and an index", hint=hint)
        where = line.clauses.get("where")
        free = line.combiner is not None and line.iterators is None
        if free and where is not None and {*used} <= {*names_in(where.text)}:
            known = [*used, *(step for step in line.prefix if isinstance(step, str)), *parameters, *scalars]
            used |= dict.fromkeys(_bounded_names(where, known, parameters, context))
        iterators = _iterators(line, used, parameters)
        condition = read_condition(where, iterators, parameters, "S")
        if where is not None and condition.intersect_params(context).is_empty():
            raise where.error("nothing satisfies this condition")
        chosen = frozenset(reader.chosen)
        drafts.append(Draft(line, write, body, reads, iterators, condition, chosen, scalars=frozenset(scalars)))
    if not drafts:
        raise lines.whole.error("there is no statement", hint="C[i, k] += A[i, j]*B[j, k]")
    return drafts


def _bounded_names(where: Fragment, known: Sequence[str], parameters: Sequence[str], context: isl.Set) -> list[str]:
    """The names that stand in a `where` only, and that it bounds at both ends: an update is done for all of them. Asked
    where a `where` has all other names, too: else the name may be a slip for one of these.
    """
    own = [n for n in names_in(where.text) if n not in known and not iskeyword(n)]
    if not own:
        return []
    names = tuple(dict.fromkeys(n for n in (*known, *own) if n not in parameters))
    ranges = ranges_of_set(read_condition(where, names, parameters, "S").intersect_params(context), names)
    return [n for n in own if n in ranges]


def _refuse_typed(line: StatementLine, write: Access, known: Mapping[str, Extents]) -> None:
    """`a: i64[i] = x[i]` reads as a statement `a` that writes a tensor `i64`, and is meant otherwise."""
    if line.label is not None and write.tensor in DTYPES and write.tensor not in known:
        at = ", ".join(map(str, write.index)) if all(isinstance(s, Affine) for s in write.index) else "..."
        if line.subscripts is not None and not write.index:
            at = ", ".join(s.shown for s in line.subscripts)
        symbol, body = line.combiner.symbol if line.combiner else "", line.body.shown
        hint = f"{line.label}[{at}] {symbol}= {write.tensor}{body if _in_brackets(body) else f'({body})'}"
        raise line.target.error("a dtype is not written at a target", hint=hint)


def _in_brackets(text: str) -> bool:
    """Whether one pair of brackets is around all of a text."""
    depths = list(accumulate((c == "(") - (c == ")") for c in text))
    return text.startswith("(") and 0 not in depths[:-1]


def _refused(name: str, names: Sequence[str], parameters: Sequence[str]) -> str:
    """Why a name cannot be an index's; "" where it can."""
    if name in parameters:
        return "it is a size"
    if names.count(name) > 1:
        return "it is another one's"
    if identifier(name) == f"{name}_":
        return "the name is reserved"
    return "" if identifier(name) == name else "it takes letters a to z, digits and _, a letter first"


def _iterators(line: StatementLine, used: Mapping[str, None], parameters: Sequence[str]) -> tuple[str, ...]:
    """Those of the label, or those of the `for` lines and then of the statement in the order they occur."""
    around = [step for step in line.prefix if isinstance(step, str)]
    names = tuple(dict.fromkeys([*around, *used]))
    if line.iterators is not None:
        if left := [name for name in names if name not in line.iterators]:
            raise line.place.error(f"{left[0]!r} is not among the iterators of {line.label}")
        names = line.iterators
    for name in names:
        if "@" in name or "." in name:  # names of loops have them
            text, hint = f"{name!r} is no name here", f"{identifier(name)}, or * for a product"
            if "@" in name:
                text, hint = "@ has no meaning in a body", "C[i, k] += A[i, j]*B[j, k]"
            raise line.place.error(text, max(line.place.shown.find(name), 0), hint)
        if why := _refused(name, names, parameters):
            hint = identifier(name) if identifier(name) != name else "rename it"
            raise line.place.error(f"{name!r} cannot name an index: {why}", hint=hint)
    return names


def _drop_guards(drafts: Sequence[Draft], found: Shapes) -> None:
    """Do without the guards of choices where what is read is in bounds anyway: one load then serves both branches."""
    for draft in drafts:
        statement = draft.statement()
        domain = statement.domain.intersect_params(found.context)
        reads: list[Access] = []
        for k, read in enumerate(draft.reads):
            bare = without(read, read.guard)
            if k in draft.chosen and is_inside(bare, statement, domain, found.shapes[read.tensor]):
                reads.append(bare)
            else:
                reads.append(without_unequal(read, statement, domain, found.shapes[read.tensor]))
        if reads == list(draft.reads):
            continue
        kept = list(dict.fromkeys(reads))
        places = [kept.index(r) for r in reads]
        draft.reads = tuple(r.moved(places) for r in kept)
        draft.write = draft.write.moved(places)
        draft.body = with_reads_at(draft.body, places)


def _require_one_value(draft: Draft, found: Shapes) -> None:
    """An assignment over an index that its target lacks would keep the last value; whoever wants that says so."""
    written = {n for s in draft.write.index if isinstance(s, Affine) for n in ordered_names(s)}
    missing = [i for i in draft.iterators if i not in written]
    line = draft.line
    own = any(r.tensor == draft.tensor for r in draft.reads)  # a recurrence: s = s*x + A[i]
    if not missing or own or line.combiner or line.iterators is not None or draft.around or draft.write.indirect:
        return
    inside = draft.statement()
    relation = access_map(inside, draft.write, found.parameters, found.shapes[draft.tensor])
    if not relation.intersect_domain(inside.domain).intersect_params(found.context).is_injective():
        shown, last = ", ".join(missing), draft.iterators
        text = f"{shown} only on the right of =: every element of {draft.tensor} would keep its last value"
        hint = f"+= to sum over {shown}, a number in its place, or {line.label or 'S'}[{', '.join(last)}]: in front"
        raise line.place.error(text, hint=f"{hint} where the last value is meant")


def _role(name: str, drafts: Sequence[Draft], given: Collection[str]) -> Role:
    writers = [k for k, d in enumerate(drafts) if d.tensor == name]
    if starts_itself(name, drafts, given):
        return "temporary" if any(r.tensor == name for d in drafts if d.tensor != name for r in d.reads) else "output"
    readers = [k for k, d in enumerate(drafts) if any(r.tensor == name for r in d.reads)]
    if not writers:
        return "input"
    if readers and readers[0] <= writers[0]:
        return "inout"
    return "temporary" if set(readers) - set(writers) else "output"
