"""Python loop nests as programs: `@nest` on a function of for loops, conditions and assignments.

    from poly.frontend.nest import Array, f64, nest

    @nest
    def trmm(M: int, N: int, alpha: float, A: f64[Array, "M, M"], B: f64[Array, "M, N"]):
        for i in range(M):
            for j in range(N):
                for k in range(i + 1, M):
                    B[i, j] += A[k, i] * B[k, j]
                B[i, j] = alpha * B[i, j]

    trmm.program             # in the original order; sizes stay symbolic
    trmm.python(20, 30, 1.5, A, B)   # the function itself, on numpy arrays

Loops run over `range` with bounds affine in the loops around and the sizes, also min and max of such; conditions of
`if` are affine too. Nothing is initialised that is not written so. An array argument that is written is `inout`; local
scalars, and arrays made by `np.empty` or `np.zeros`, are temporaries. `assert N >= 3` before the loops says what
sizes are possible; the others are at least 1. A size in no shape (the steps of a time loop) is given by name when a
kernel is called, `kernel(A, T=10)`, or bound before compiling, `program.bind(T=10)`.

Subscripts are affine, or elements or computed from such: `h[b[i] + 1] += 1`. Such a one is checked in each call.

An update (`+=`, `-=`, `*=`, `x = max(x, e)`) is a reduction, whose instances may run in another order as in every
polyhedral compiler: floats then differ in rounding. `@nest(exact=True)` keeps the order and the roundings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import islpy as isl
import numpy.typing as npt

from poly.affine import Affine
from poly.dtypes import is_float, is_integer
from poly.errors import ParseError, PolyError, ShapeError, within_depth
from poly.expr import COMBINERS, OPERATORS, Apply, Cast, Const, Expr, Read, rewrite, walk
from poly.frontend import nest_hints as hints
from poly.frontend.choice_guards import without_unequal
from poly.frontend.nest_body import Draft, Local, Reader
from poly.frontend.nest_choices import as_extremum, decided
from poly.frontend.nest_scalars import expand_scalars
from poly.frontend.nest_scope import Scope
from poly.frontend.nest_signature import Argument, read_signature
from poly.frontend.nest_source import Source, Written, written
from poly.frontend.nest_types import assigned, is_weak, literals_of, promoted, typed
from poly.frontend.places_in_bounds import subscripts
from poly.program import Access, Program, ReadIndex, Role, Statement, Tensor, places_of
from poly.relations import access_map, box
from poly.sets import header, within_budget, witness
from poly.text_sets import print_condition

if TYPE_CHECKING:  # to a type checker `f64[Array, "N, M"]` is Annotated[Array, ...]; the text is read by `nest` only
    from typing import Annotated as bf16
    from typing import Annotated as boolean
    from typing import Annotated as f16
    from typing import Annotated as f32
    from typing import Annotated as f64
    from typing import Annotated as i8
    from typing import Annotated as i16
    from typing import Annotated as i32
    from typing import Annotated as i64
    from typing import Annotated as u8
    from typing import Annotated as u16
    from typing import Annotated as u32
    from typing import Annotated as u64
else:
    from typing import Annotated

    bf16 = boolean = f16 = f32 = f64 = i8 = i16 = i32 = i64 = u8 = u16 = u32 = u64 = Annotated

__all__ = [
    "Array", "Nest", "bf16", "boolean", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "nest", "u8", "u16", "u32",
    "u64",
]  # fmt: skip

Array = npt.NDArray[Any]
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_BUDGET = 2_000_000


class Nest(Generic[P, R_co]):
    """A function that is a program too. `program`: in the original order. `python`: the function itself."""

    __name__: str

    def __init__(self, function: Callable[P, R_co], exact: bool = False) -> None:
        self.python = function
        self.program = read_nest(function, exact=exact)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function as Python."""
        return self.python(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Nest {self.program!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            own = f": {self.__name__}.program.{name}" if not name.startswith("_") and hasattr(Program, name) else ""
            raise AttributeError(f"a nest has no {name!r}{', its program has' * bool(own)}{own}", name=name, obj=self)


@overload
def nest(function: Callable[P, R_co], /, *, exact: bool = False) -> Nest[P, R_co]: ...
@overload
def nest(function: None = None, /, *, exact: bool = False) -> Callable[[Callable[P, R_co]], Nest[P, R_co]]: ...
def nest(
    function: Callable[P, R_co] | None = None, /, *, exact: bool = False
) -> Nest[P, R_co] | Callable[[Callable[P, R_co]], Nest[P, R_co]]:
    """Decorate a loop nest, see the module text. `exact`: updates of floats keep their order and their roundings.

    Raises `ParseError`, which points into the file, for what is not affine or not in the language of nests, and for a
    subscript that leaves its array for some sizes.
    """
    if function is not None:
        return Nest(function, exact)
    return lambda f: Nest(f, exact)


def read_nest(function: Callable[..., object], *, exact: bool = False) -> Program:
    """The program of a function, in its original order, sizes symbolic. Raises `ParseError`."""
    text = written(function)
    with within_depth(lambda: _deepest(text)):
        return _read(text, exact)


def _deepest(text: Written) -> tuple[int, str]:
    """How many expressions are in each other at most, and where in the file."""
    found, within = (0, 0), list[tuple[int, ast.AST]]([(0, text.definition)])
    while within:
        depth, node = within.pop()
        found = max(found, (depth, getattr(node, "lineno", 0)))
        within += [(depth + isinstance(child, ast.expr), child) for child in ast.iter_child_nodes(node)]
    return found[0], f"{text.source.file}:{found[1]}"


def _read(text: Written, exact: bool) -> Program:
    arguments, sizes = read_signature(text)
    scalars = frozenset(a.name for a in arguments if a.shape == () and _plain(a))
    reader = Reader(frozenset(a.name for a in arguments), scalars, exact)
    reader.read(text.definition.body, _scope(text, arguments, sizes))
    if not reader.drafts:
        raise text.source.error(text.definition, "the nest assigns nothing", "A[i] = ... in its loops")
    context = _context(sizes, reader.context)
    if context.is_empty():
        hint = "remove one that contradicts another"
        raise text.source.error(text.definition, "no sizes satisfy the assertions", hint)
    try:
        tensors = _tensors(arguments, reader)
    except ShapeError as error:
        raise text.source.error(text.definition, error.message, error.hint) from error
    _check_places(text.source, reader.drafts, tensors)
    statements = _statements(text.source, reader.drafts, tensors, sizes, exact)
    for statement, draft in zip(statements, reader.drafts, strict=True):
        _check_bounds(text.source, statement, draft, tensors, sizes, context)
    found = tuple(_simplified(s, tensors, context) for s in statements)
    try:
        return expand_scalars(Program(text.definition.name, tuple(tensors.values()), found, sizes, context))
    except PolyError as error:
        raise text.source.error(text.definition, str(error)) from error


def _plain(argument: Argument) -> bool:
    """True for a scalar passed by value: `alpha: float`, not `f64[Array, ""]`."""
    import ast

    note = argument.node.annotation
    return not (isinstance(note, ast.Subscript) and "Array" in ast.unparse(note))


def _scope(text: Written, arguments: Sequence[Argument], sizes: tuple[str, ...]) -> Scope:
    shapes = {a.name: a.shape for a in arguments if a.shape is not None}
    literals = {n: v for n, v in text.names.items() if isinstance(v, int | float | bool) and n not in sizes}
    literals |= _constants_of_modules(text.names)
    return Scope(text.source, sizes, {}, literals, shapes)


def _constants_of_modules(names: Mapping[str, object]) -> dict[str, float]:
    """`math.pi`, `np.inf`: the floats of the modules that a nest sees, by their names as written."""
    modules = {n: vars(m) for n, m in names.items() if isinstance(m, ModuleType)}
    return {f"{n}.{c}": v for n, known in modules.items() for c, v in known.items() if isinstance(v, float)}


def _context(sizes: Sequence[str], asserted: Sequence[str]) -> isl.Set:
    """What the assertions say; sizes that none mentions are at least 1."""
    context = isl.Set(f"{header(sizes)}{{ : {' and '.join(asserted) or 'true'} }}")
    for k, name in enumerate(sizes):
        if not context.involves_dims(isl.dim_type.param, k, 1):
            context = context.intersect_params(isl.Set(f"{header(sizes)}{{ : {name} >= 1 }}"))
    return context


# ---- tensors


def _tensors(arguments: Sequence[Argument], reader: Reader) -> dict[str, Tensor]:
    written_names = {d.write.tensor for d in reader.drafts}
    found: dict[str, Tensor] = {}
    for a in arguments:
        if a.shape is not None:
            role: Role = "inout" if a.name in written_names else "input"
            found[a.name] = Tensor(a.name, a.shape, a.dtype, role)
    for name, dtype in _local_dtypes(reader.locals, reader.drafts, {n: t.dtype for n, t in found.items()}).items():
        found[name] = Tensor(name, reader.locals[name].shape, dtype)
    return found


def _local_dtypes(locals: Mapping[str, Local], drafts: Sequence[Draft], known: Mapping[str, str]) -> dict[str, str]:
    """The dtype of every local tensor: as declared, else the common one of what is assigned to it."""
    dtypes: dict[str, str] = dict(known)
    for name, local in locals.items():
        if local.dtype:
            dtypes[name] = dtypes.get(local.dtype.removeprefix("like "), local.dtype)
    unsaid = [name for name, local in locals.items() if not local.dtype]
    while True:
        dtypes |= _settled_dtypes(unsaid, drafts, dtypes)
        left = [name for name in unsaid if name not in dtypes]
        if not left:  # else they get their dtypes from one another, in a circle that literals begin
            return {name: dtypes[name] for name in locals}
        floats = [name for name in left if _has_float(name, drafts)]
        given = next((n for n in left if any(d.write.tensor == n and not d.reads for d in drafts)), left[0])
        begun = {name: 0.5 if name in floats else 0 for name in left}
        met = {n: d for n in left if (d := _dtype(n, drafts, dtypes, begun)) and is_float(d)}
        whole = "bool" if _is_truth(given, drafts, dtypes) else "i64"
        dtypes |= met or (dict.fromkeys(floats, "f64") if floats else {given: whole})


def _settled_dtypes(names: Sequence[str], drafts: Sequence[Draft], known: Mapping[str, str]) -> dict[str, str]:
    """What follows from dtypes that are known for some locals, whose own may be wider than so far."""
    dtypes, before = dict(known), dict[str, str]()
    while dtypes != before:
        before = dict(dtypes)
        for name in names:
            if found := _dtype(name, drafts, dtypes, {}):
                dtypes[name] = promoted([found, *([dtypes[name]] if name in dtypes else [])])
    return dtypes


def _dtype(
    name: str, drafts: Sequence[Draft], dtypes: Mapping[str, str], begun: Mapping[str, int | float]
) -> str | None:
    """The common dtype of what is assigned to a local, as far as dtypes are known: literals and loop variables are
    weak, but one with a fraction makes it a float. `begun`: literals for locals whose dtypes are not known.
    """
    fraction, unknown = _has_float(name, drafts), False
    strong, weak = list[str](), list[str]()
    for draft in drafts:
        if draft.write.tensor != name:
            continue
        names = [r.tensor for r in draft.reads]
        if any(n not in dtypes and n not in begun for n in names):
            unknown = True
            continue
        body = rewrite(draft.body, lambda e, names=names: _begun(e, names, dtypes, begun))
        if (found := typed(body, [dtypes.get(n, "") for n in names])[1]) is not None:
            (weak if is_weak(body) else strong).append(found)
    if strong and not _is_whole(promoted(strong)):
        return promoted(strong)
    if not strong and (not weak or fraction and unknown):
        return None
    common = promoted([*strong, *weak])
    return "f64" if fraction and _is_whole(common) else common


def _is_truth(name: str, drafts: Sequence[Draft], dtypes: Mapping[str, str]) -> bool:
    """Whether all that is assigned to a local are truths, if it is one itself: `stop = x[i] > 0 or stop`."""
    bodies = [(d.body, [r.tensor for r in d.reads]) for d in drafts if d.write.tensor == name]
    if any(n != name and n not in dtypes for _, names in bodies for n in names):
        return False
    known = {**dtypes, name: "bool"}
    made = (typed(body, [known[n] for n in names])[1] if names else body for body, names in bodies)
    return all(m == "bool" or isinstance(m, Const) and isinstance(m.value, bool) for m in made)


def _is_whole(dtype: str) -> bool:
    return dtype == "bool" or is_integer(dtype)


def _begun(e: Expr, names: Sequence[str], dtypes: Mapping[str, str], begun: Mapping[str, int | float]) -> Expr | None:
    match e:
        case Read(position) if names[position] not in dtypes:
            return Const(begun[names[position]])
        case _:
            return None


def _has_float(name: str, drafts: Sequence[Draft]) -> bool:
    return any(_is_fraction(d.body) for d in drafts if d.write.tensor == name)


def _is_fraction(body: Expr) -> bool:
    """Whether literals make a value a float, what is only compared left out."""
    match body:
        case Const(value):
            return isinstance(value, float)
        case Apply(name, arguments) if OPERATORS[name].result != "bool":
            return any(map(_is_fraction, arguments[name == "select" :]))
        case _:
            return False


# ---- statements


def _statements(
    source: Source, drafts: Sequence[Draft], tensors: Mapping[str, Tensor], sizes: Sequence[str], exact: bool
) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for k, draft in enumerate(drafts):
        try:
            statement = _statement(draft, f"S{k}", tensors, sizes, exact)
            found.append(replace(statement, written_at=f"{source.file}:{draft.node.lineno}"))
        except ShapeError as error:
            raise source.error(draft.node, error.message, error.hint) from error
    return tuple(found)


def _statement(
    draft: Draft, name: str, tensors: Mapping[str, Tensor], sizes: Sequence[str], exact: bool
) -> Statement:
    condition = " and ".join(draft.conditions) or "true"
    iterators = ", ".join(draft.iterators)
    domain = isl.Set(f"{header(sizes)}{{ {name}[{iterators}] : {condition} }}").coalesce()
    target = tensors[draft.write.tensor].dtype
    body, reads, symbol = draft.body, draft.reads, draft.symbol
    if symbol == "-":
        body, symbol = _subtracted(body, [tensors[r.tensor].dtype for r in reads], target), "+"
    found, dtype = typed(body, [tensors[r.tensor].dtype for r in reads])
    if symbol in ("and", "or") and (target != "bool" or dtype != "bool"):  # `|=` of integers changes bits
        reads = (*reads, draft.write)
        body = Apply(f"bit_{symbol}", (Read(len(reads) - 1), body))
        found, dtype, symbol = *typed(body, [tensors[r.tensor].dtype for r in reads]), ""
    if symbol and not _by_one_value(found, dtype, target):
        # the sum is made in the wider dtype and then converted: no update of the target by one value
        reads = (*reads, draft.write)
        body = Apply(COMBINERS[symbol].operator, (Read(len(reads) - 1), body))
        found, dtype, symbol = *typed(body, [tensors[r.tensor].dtype for r in reads]), ""
    return Statement(
        name, draft.iterators, domain, draft.write, _filled(reads, tensors), assigned(found, dtype, target),
        COMBINERS[symbol] if symbol else None, reorder=not exact, contract=not exact, path=draft.path,
    )  # fmt: skip


def _subtracted(body: Expr, reads: Sequence[str], target: str) -> Expr:
    """A negated integer, converted before that to the dtype that it meets the target in: -u8(4) would be 252."""
    if not isinstance(body, Apply) or not any(isinstance(e, Read | Cast) for e in walk(body)):
        return body
    dtype = typed(body.arguments[0], reads)[1]
    if dtype is None or not is_integer(dtype) or (wide := promoted([dtype, target])) == dtype:
        return body
    return Apply(body.operator, (Cast(wide, body.arguments[0]),))


def _by_one_value(body: Expr, dtype: str | None, target: str) -> bool:
    """True where an update computes in the target's dtype."""
    if target != "bool" and not is_integer(target) or dtype == target:
        return True
    allowed = bool if target == "bool" else int
    return dtype is None and all(isinstance(value, allowed) for value in literals_of(body))


def _filled(reads: Sequence[Access], tensors: Mapping[str, Tensor]) -> tuple[Access, ...]:
    """Fill values as numbers of their tensor's kind."""
    return tuple(
        r if r.fill is None or is_integer(tensors[r.tensor].dtype) else replace(r, fill=Const(float(r.fill.value)))
        for r in reads
    )


def _simplified(s: Statement, tensors: Mapping[str, Tensor], context: isl.Set) -> Statement:
    """The statement with what its domain says of its choices."""
    domain = s.domain.intersect_params(context)
    s = decided(s, domain, [tensors[r.tensor].dtype for r in s.reads])
    s = replace(s, reads=tuple(without_unequal(r, s, domain, tensors[r.tensor].shape) for r in s.reads))
    return as_extremum(s, tensors)


def _check_places(source: Source, drafts: Sequence[Draft], tensors: Mapping[str, Tensor]) -> None:
    """What stands in a subscript is an integer."""
    for draft in drafts:
        for k in sorted(places_of([draft.write, *draft.reads])):
            name, dtype = draft.reads[k].tensor, tensors[draft.reads[k].tensor].dtype
            if not is_integer(dtype):
                text = f"a subscript is an integer, {name} is {dtype}"
                raise source.error(draft.places[k], text, hints.held(ast.Call(ast.Name("int"), [draft.places[k]], [])))


def _check_bounds(
    source: Source, s: Statement, draft: Draft, tensors: Mapping[str, Tensor], sizes: Sequence[str], context: isl.Set
) -> None:
    """Every element that is touched exists, for all sizes."""
    places = [*zip(draft.reads, draft.places, strict=True), (s.write, draft.target)]
    for access, place in places:
        shape = tensors[access.tensor].shape
        touched = access_map(s, access, sizes, shape).intersect_params(context)
        inside = box(access.tensor, shape, sizes)
        outside = within_budget(_BUDGET, lambda t=touched, b=inside: t.subtract_range(b), lambda: None)
        if outside is None or outside.is_empty():
            continue
        instance, element = witness(outside, (s.iterators, [f"dimension {d}" for d in range(len(shape))]))
        allowed = outside.params().complement().intersect(context).gist(context)
        texts = _index_texts(place, access, s.iterators)
        left = [*_left(outside.range().reset_tuple_id(), texts, shape, sizes)]
        inside = " and ".join(text for _, text in left)
        hint = f"loops in which {inside}"
        if not any(isinstance(e, ReadIndex) or e.names & {*s.iterators} for e in access.index):
            hint = f"a subscript below {' and '.join(map(str, shape))}"
        elif access is not s.write and not access.guard:
            hint += f", or {ast.unparse(place)} if {inside} else 0.0"
        if not allowed.is_empty() and (condition := _python_condition(print_condition(allowed))):
            hint += f", or state what sizes are possible: assert {condition}"
        if _goes_around(source, place, {d for d, _ in left}):
            hint = "what stands before % of a size lies from minus that size to less than twice it"
            text = f"{ast.get_source_segment(source.text, place)} may go around more than once: {instance} -> {element}"
            raise source.error(place, text, hint)
        raise _out_of_bounds(source, place, access, shape, texts, f"{instance} -> {element}", hint)


def _python_condition(text: str) -> str:
    """A condition on sizes as Python writes it, "" where it has no such form."""
    text = re.sub(r"\(\s*(\w+)\s*\) mod (\d+)", r"\1 % \2", text).replace(" mod ", " % ")
    text = re.sub(r"(?<![<>=!])=(?!=)", "==", text)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return ""
    return text


def _index_texts(place: ast.expr, access: Access, iterators: Sequence[str]) -> list[str]:
    """Each subscript; as it is written where its loop has a step, whose iterator is none of the nest's names."""
    written = subscripts(place) if isinstance(place, ast.Subscript) else []
    found = [str(e) for e in access.index]
    if len(written) != len(found):
        return found
    for d, (e, node) in enumerate(zip(access.index, written, strict=True)):
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        made = set() if isinstance(e, ReadIndex) else (e.names & {*iterators}) - names
        if made and {n.rpartition("_")[0] for n in made} <= names:
            found[d] = ast.unparse(node)
    return found


def _left(
    elements: isl.Set, texts: Sequence[str], shape: Sequence[Affine], sizes: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """What an access has to satisfy that reaches these elements outside of its tensor, by dimensions."""
    names = ", ".join(f"d{d}" for d in range(len(shape)))
    for d, (index, extent) in enumerate(zip(texts, shape, strict=True)):
        for beyond, inside in ((f"d{d} < 0", f"{index} >= 0"), (f"d{d} >= {extent.isl_text}", f"{index} < {extent}")):
            if not elements.is_disjoint(isl.Set(f"{header(sizes)}{{ [{names}] : {beyond} }}")):
                yield d, inside


def _goes_around(source: Source, place: ast.expr, dimensions: Collection[int]) -> bool:
    """Whether a subscript of these has a `%` in the text, and none where a choice of elements came from it."""
    try:
        text = ast.parse(f"({ast.get_source_segment(source.text, place)})", mode="eval").body
    except SyntaxError:
        return False
    if not isinstance(text, ast.Subscript) or not isinstance(place, ast.Subscript):
        return False
    pairs = enumerate(zip(subscripts(text), subscripts(place), strict=False))
    return any(d in dimensions and "%" in ast.unparse(a) and "%" not in ast.unparse(b) for d, (a, b) in pairs)


def _out_of_bounds(
    source: Source, place: ast.expr, access: Access, shape: Sequence[Affine], texts: Sequence[str], shown: str,
    hint: str,
) -> ParseError:
    extents = ", ".join(map(str, shape))
    if access.indirect:
        return source.error(place, f"{ast.unparse(place)} is outside its shape ({extents}): {shown}", hint)
    below = [d for d, e in enumerate(access.affine_index) if e.constant < 0 and all(c < 0 for _, c in e.terms)]
    if below:  # Python counts from the end
        ends = [e + (shape[d] if d in below else 0) for d, e in enumerate(access.affine_index)]
        hint = f"from the end: {access.tensor}[{', '.join(map(str, ends))}]"
    return source.error(place, f"{access.tensor}[{', '.join(texts)}] is outside its shape ({extents}): {shown}", hint)
