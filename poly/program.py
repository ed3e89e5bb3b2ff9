"""`Program`: tensors and statements. A statement is a domain (isl set), accesses and a body, and nothing else.

Semantics. The instances of a statement are the points of its domain. An instance evaluates its reads, then its body,
and writes one element: `target = body`, or with a combiner `target = combine(target, body)`. Instances run in the order
of the statements' `path`s (section "Order"). A read with a guard gives its fill value where the guard does not hold,
and touches nothing there.

Order. A path is a named 2d+1 vector: integers are positions in a sequence, names are the statement's own iterators,
from the outside in: `(0, "t", 1, "i")` is the second thing inside the loop t, which is the first thing of the
program. Two statements share a loop where their paths agree up to it. The default is one nest a statement, in the
order written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import prod
from numbers import Integral
from typing import Literal, SupportsIndex, get_args

import islpy as isl

from poly.affine import Affine, Constraint, var
from poly.coefficients import set_of
from poly.document import counted
from poly.dtypes import DTYPES, hint_for, numpy_dtype, size_bytes
from poly.errors import PolyError, ShapeError
from poly.expr import Apply, Combiner, Const, Expr, IndexValue, children, dtype_of, reads_of, require_literals, walk
from poly.locks import cached_property
from poly.sets import SET, number
from poly.text_sets import print_condition

Role = Literal["input", "output", "inout", "constant", "temporary", "state"]
PathStep = int | str
MOST_SIZE = 2**48


@dataclass(frozen=True)
class Layout:
    """Where an element lies: physical coordinates as quasi-affine expressions of `index`, row-major over `shape`.

    The identity layout of a tensor is None in `Tensor.layout`; packed and banked buffers carry one of these.
    """

    index: tuple[str, ...]
    coordinates: tuple[Affine, ...]
    shape: tuple[Affine, ...]

    def place(self, subscripts: Sequence[Affine]) -> tuple[Affine, ...]:
        """The physical coordinates of an element given by its subscripts."""
        values = dict(zip(self.index, subscripts, strict=True))
        return tuple(c.substitute(values) for c in self.coordinates)


@dataclass(frozen=True, repr=False)
class Tensor:
    """A named array. `shape` is affine in the program's sizes; `space` names a memory of the machine.

    `scope`: for a promoted tensor the loops that identify one tile of it (one live copy per iteration of them), and
    `origin` the tensor of the source program whose elements it holds. `gaps`: 0, or of a view with gaps behind its
    rows, the last of which may end where memory does: in blocks of how many elements what is read is surely there.
    """

    name: str
    shape: tuple[Affine, ...]
    dtype: str = "f32"
    role: Role = "temporary"
    space: str = "dram"
    layout: Layout | None = None
    scope: tuple[str, ...] = ()
    origin: str = ""
    gaps: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise PolyError(f"unknown dtype {self.dtype!r}", where=f"tensor {self.name}", hint=hint_for(self.dtype))
        if self.role not in get_args(Role):
            hint = f"one of {', '.join(get_args(Role))}"
            raise PolyError(f"unknown role {self.role!r}", where=f"tensor {self.name}", hint=hint)
        if self.gaps not in (0, 1, 2):
            raise PolyError(f"gaps behind {self.gaps} elements", where=f"tensor {self.name}", hint="1, 2 for pairs")

    def __str__(self) -> str:
        from poly.text_syntax import tensor_text

        return tensor_text(self)

    def __repr__(self) -> str:
        return f"<Tensor {self}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def source_name(self) -> str:
        """The tensor of the source program that this one is, or holds elements of."""
        return self.origin or self.name

    @property
    def is_input(self) -> bool:
        """Whether a call takes it; constants are bound when compiling."""
        return self.role in ("input", "inout", "state")

    @property
    def is_output(self) -> bool:
        """Whether a call gives it back."""
        return self.role in ("output", "inout", "state")

    @property
    def storage_shape(self) -> tuple[Affine, ...]:
        """Extents of what is allocated."""
        return self.shape if self.layout is None else self.layout.shape

    def extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape as ints under a binding of the sizes; of a temporary 0 for what would be negative, as where nothing
        is in a buffer.
        """
        return self._ints(self.shape, sizes)

    def storage_extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """`extents` of what is allocated."""
        return self._ints(self.storage_shape, sizes)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes allocated under a binding of the sizes."""
        return prod(self.storage_extents(sizes)) * size_bytes(self.dtype)

    def _ints(self, shape: tuple[Affine, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
        found = [int(e.evaluate(sizes)) for e in shape]
        return tuple(found) if self.role != "temporary" else tuple([max(0, extent) for extent in found])


@dataclass(frozen=True)
class ReadIndex:
    """A subscript that is the value of an earlier read of the same statement (indirection)."""

    position: int


Subscript = Affine | ReadIndex


@dataclass(frozen=True)
class Access:
    """Which element of which tensor an instance touches. `guard` and `fill`: only for reads, see the module text."""

    tensor: str
    index: tuple[Subscript, ...]
    guard: tuple[Constraint, ...] = ()
    fill: Const | None = None

    def __post_init__(self) -> None:
        assert bool(self.guard) == (self.fill is not None), "a guard and a fill value go together"

    def __getstate__(self) -> dict[str, object]:
        """Without what is derived."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def affine_index(self) -> tuple[Affine, ...]:
        """The subscripts of an access without indirection."""
        found = tuple([s for s in self.index if isinstance(s, Affine)])
        assert len(found) == len(self.index), f"{self.tensor} is read indirectly"
        return found

    @cached_property
    def indirect(self) -> bool:
        return any(isinstance(s, ReadIndex) for s in self.index)

    def moved(self, places: Mapping[int, int] | Sequence[int]) -> Access:
        """For a list of reads that has those it is subscripted with at other places."""
        if not self.indirect:
            return self
        index = tuple([ReadIndex(places[s.position]) if isinstance(s, ReadIndex) else s for s in self.index])
        return Access(self.tensor, index, self.guard, self.fill)

    def substitute(self, values: Mapping[str, Affine | int]) -> Access:
        """Replace iterators in subscripts and guard."""
        index = tuple([s.substitute(values) if isinstance(s, Affine) else s for s in self.index])
        return Access(self.tensor, index, tuple([c.substitute(values) for c in self.guard]), self.fill)


def places_of(accesses: Iterable[Access]) -> set[int]:
    """The positions of the reads that accesses are subscripted with."""
    return {s.position for a in accesses for s in a.index if isinstance(s, ReadIndex)}


@dataclass(frozen=True)
class External:
    """A computation outside the affine world, by numpy or the reference evaluator: opaque payload with may-accesses.

    `run` is looked up by `kind` in the interpreter ("onnx": payload is a serialised NodeProto).
    """

    kind: str
    payload: bytes
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class OptionalTerms:
    """Terms of a reduction that may be left out, where that is faster: the instances of `domain` that satisfy all
    `conditions`. Said of a statement over just that domain: an edit that gives it another one takes it back.
    """

    iterators: tuple[str, ...]
    domain: isl.Set
    conditions: tuple[Constraint, ...]


@dataclass(frozen=True)
class Statement:
    """See the module text. `combiner` None: assignment. `reorder` False: the reduction keeps its order.

    `contract`: a multiply-add of the body may be fused into one rounding. `origin`: the statement of the source program
    that this one is a part or a recomputation of ("" where it is original); its last iterators are the origin's.
    `copies`: for a copy, the tensor of the source program whose element it moves; its last iterators are the
    subscripts. `partial`: for a statement that clears (without combiner) or merges (with it) partial results of a
    reduction, that reduction's statement in the source program. `tile_rank`: of a copy, a recomputation or a statement
    of partial results, how many iterators name the tile; they come first. `written_at`: the file and line that it
    was read from, where that is known. `optional`: terms of a reduction that may be left out.
    """

    name: str
    iterators: tuple[str, ...]
    domain: isl.Set
    write: Access
    reads: tuple[Access, ...]
    body: Expr
    combiner: Combiner | None = None
    reorder: bool = True
    contract: bool = True
    path: tuple[PathStep, ...] = ()
    origin: str = ""
    copies: str = ""
    tile_rank: int = 0
    external: External | None = None
    partial: str = ""
    optional: OptionalTerms | None = None
    written_at: str = field(default="", compare=False)

    @cached_property
    def accesses(self) -> tuple[tuple[Access, Literal["read", "write"]], ...]:
        """Every access with its kind, the reduction's read of its own target included, reads first."""
        own: tuple[tuple[Access, Literal["read", "write"]], ...] = ((self.write, "read"),) if self.combiner else ()
        return (*((r, "read") for r in self.reads), *own, (self.write, "write"))

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of `accesses`."""
        return tuple({a.tensor: None for a in (*self.reads, self.write)})

    def __getstate__(self) -> dict[str, object]:
        """Without what is derived, and where it was read."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "written_at"}

    @cached_property
    def spare(self) -> tuple[Constraint, ...]:
        """The conditions of the terms that may be left out; () where there are none (see `OptionalTerms`)."""
        said = self.optional
        if said is None or self.combiner is None or said.iterators != self.iterators:
            return ()
        same = said.domain.reset_tuple_id().plain_is_equal(self.domain.reset_tuple_id())
        return said.conditions if same else ()

    @property
    def source_name(self) -> str:
        """The statement of the source program that this one is, or is a part of."""
        return self.origin or self.name

    @property
    def recomputed(self) -> bool:
        """True where instances of the origin are run again for each tile: the tile comes first in the iterators."""
        return bool(self.origin) and self.tile_rank > 0

    @property
    def tuple_text(self) -> str:
        """`S[i, j]`, as isl writes it."""
        return f"{self.name}[{', '.join(self.iterators)}]"


def deepest_body(statements: Iterable[Statement]) -> tuple[int, str]:
    """How many operators are in each other at most, and in which statement; found without recursion."""
    found = (0, "")
    for s in statements:
        within: list[tuple[int, Expr]] = [(0, s.body)]
        while within:
            depth, body = within.pop()
            found = max(found, (depth, f"statement {s.name}"))
            within += [(depth + 1, child) for child in children(body)]
    return found


@dataclass(frozen=True)
class Program:
    """Tensors, statements, sizes.

    `context` is a parameter set that holds for the sizes; `sizes` a (partial) binding.
    """

    name: str
    tensors: tuple[Tensor, ...]
    statements: tuple[Statement, ...]
    parameters: tuple[str, ...] = ()
    context: isl.Set = field(default_factory=lambda: isl.Set("{ : }"))
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if any(not s.path for s in self.statements):
            placed = tuple(
                s if s.path else replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(self.statements)
            )
            object.__setattr__(self, "statements", placed)
        verify(self)

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {t.name: t for t in self.tensors}

    @cached_property
    def statement(self) -> Mapping[str, Statement]:
        """Statements by name."""
        return {s.name: s for s in self.statements}

    @cached_property
    def binding(self) -> dict[str, int]:
        return dict(self.sizes)

    @cached_property
    def ranges(self) -> dict[tuple[str, Affine], tuple[int, int] | None]:
        """What `poly.relations.range_of` found: the loops of one program are asked for again and again."""
        return {}

    def with_role(self, *roles: Role) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role in roles)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a call takes, in order: inputs and inouts; constants are bound when compiling."""
        return tuple(t for t in self.tensors if t.is_input)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.is_output)

    def bind(self, **sizes: SupportsIndex) -> Program:
        """Fix sizes; the others stay free. Raises `PolyError` for an unknown size or one the context excludes."""
        context = self.context
        for name, value in {**self.binding, **sizes}.items():
            if name not in self.parameters:
                raise PolyError(
                    f"{name!r} is not a size of {self.name}", hint=f"sizes: {', '.join(self.parameters) or 'none'}"
                )
            if not isinstance(value, Integral) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PolyError(f"{name} is {value!r}", where=f"program {self.name}", hint="a size is an int")
            if abs(int(value)) > MOST_SIZE:
                text = f"{name} = {value} is more than {MOST_SIZE}"
                raise ShapeError(text, where=f"program {self.name}", hint="a smaller size")
            context = context.intersect_params(isl.Set(f"[{name}] -> {{ : {name} = {value} }}"))
            if context.is_empty():
                allowed = print_condition(self.context)
                text, hint = f"{name} = {value} is not allowed: {allowed}", f"sizes with {allowed}"
                one = isl.Set(f"[{name}] -> {{ : {name} = 1 }}")
                if value == 0 and not self.context.intersect_params(one).is_empty():
                    hint += f"; code for any size takes {name}=0, too, and has nothing to do"
                raise ShapeError(text, where=f"program {self.name}", hint=hint)
        bound = {name: int(value) for name, value in {**self.binding, **sizes}.items()}
        return replace(self, sizes=tuple(sorted(bound.items())))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        from poly.text import print_program

        return print_program(self)

    def __getstate__(self) -> dict[str, object]:
        """Without what is derived but the text, which is the key to much of the disk cache."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return known | {n: t for n, t in self.__dict__.items() if n == "_text"}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{p}={self.binding[p]}" if p in self.binding else p for p in self.parameters)
        statements, tensors = counted(len(self.statements), "statement"), counted(len(self.tensors), "tensor")
        return f"<Program {self.name}({sizes}): {statements}, {tensors}>"

    def _repr_html_(self) -> str:
        from poly.pictures import program_html

        return program_html(self)


def verify(program: Program) -> None:
    """Check names, ranks, dtypes and iterators of a program. Raises `PolyError` that names the statement."""
    seen: set[str] = set()
    for kind, names in (
        ("tensor", [t.name for t in program.tensors]),
        ("statement", [s.name for s in program.statements]),
    ):
        for name in names:
            if name in seen:
                raise PolyError(
                    f"{kind} {name!r}: the name is taken", hint="every tensor and statement has its own name"
                )
            seen.add(name)
    tensors = {t.name: t for t in program.tensors}
    parameters = frozenset(program.parameters)
    for t in program.tensors:
        unknown = {n for e in t.shape if e.terms for n in e.names} - parameters
        if unknown:
            raise PolyError(f"unknown size {sorted(unknown)} in its shape", where=f"tensor {t.name}", hint="declare it")
    for s in program.statements:
        seen_by = (parameters, tuple([(t, tensors[t].rank, tensors[t].dtype) for t in s.tensors if t in tensors]))
        if s.__dict__.get("_verified") != seen_by:  # most statements of an edited schedule are those of the one before
            _verify_statement(s, tensors, parameters)
            s.__dict__["_verified"] = seen_by


def _verify_statement(s: Statement, tensors: Mapping[str, Tensor], parameters: frozenset[str]) -> None:
    """Raise `PolyError` where a statement's names, ranks, reads or dtypes do not fit one another."""
    where = f"statement {s.name}"
    if s.domain.dim(isl.dim_type.set) != len(s.iterators):
        raise PolyError(f"domain {s.domain} has not the iterators {s.iterators}", where=where)
    known = set(s.iterators) | parameters
    for access, _ in s.accesses:
        if access.tensor not in tensors:
            raise PolyError(f"no tensor {access.tensor!r}", where=where, hint=f"tensors: {', '.join(tensors)}")
        tensor = tensors[access.tensor]
        if len(access.index) != tensor.rank:
            raise ShapeError(
                f"{tensor.name} has rank {tensor.rank}, accessed with {len(access.index)} subscripts", where=where
            )
        for subscript in access.index:
            if isinstance(subscript, Affine) and not subscript.names <= known:
                raise PolyError(f"unknown index {sorted(subscript.names - known)} in {access.tensor}", where=where)
    if s.write.guard or s.write.fill is not None:
        raise PolyError("a write has no guard", where=where, hint="constrain the domain instead")
    if s.external is not None:
        return
    for condition in s.spare:
        if not condition.expr.names <= known:
            unknown = sorted(condition.expr.names - known)
            raise PolyError(f"unknown index {unknown} in what is optional", where=where)
    for position in reads_of(s.body):
        if position >= len(s.reads):
            raise PolyError(f"body uses read {position}, there are {len(s.reads)}", where=where)
    for node in walk(s.body):
        if isinstance(node, IndexValue) and not node.index.names <= known:
            raise PolyError(f"unknown index {sorted(node.index.names - known)} in the body", where=where)
    try:
        found = dtype_of(s.body, [tensors[r.tensor].dtype for r in s.reads])
    except ShapeError as error:
        raise ShapeError(error.message, where=where, hint=error.hint) from None
    target = tensors[s.write.tensor].dtype
    if s.combiner is not None and s.combiner.symbol in ("and", "or") and target != "bool":
        text = f"{s.combiner.symbol}= combines truths, {s.write.tensor} is {target}"
        raise ShapeError(text, where=where, hint="a bool: x[i] != 0")
    if found is None:
        require_literals(s.body, target, where)
    if found is not None and found != target:
        hint = _converted(s, {r.tensor: tensors[r.tensor].dtype for r in s.reads}, target)
        raise ShapeError(f"body is {found}, {s.write.tensor} is {target}", where=where, hint=hint)


def _converted(s: Statement, dtypes: Mapping[str, str], target: str) -> str:
    """What to write where a body is of another dtype than its target: for a wider one operands are converted, as the
    result of an operation has wrapped or been rounded by then.
    """
    size = numpy_dtype(target).itemsize
    narrow = [n for n, dtype in dtypes.items() if numpy_dtype(dtype).itemsize < size]
    if not isinstance(s.body, Apply) or len(narrow) < len(dtypes):
        return f"write {target}(...)"
    return f"convert what it reads: {', '.join(f'{target}({n}[...])' for n in narrow)}"


def program_of(what: object) -> Program | None:
    """A program, or that of a nest, a schedule or something compiled; None of anything else."""
    found = getattr(what, "program", what)
    return found if isinstance(found, Program) else None


def box_domain(
    name: str, ranges: Iterable[tuple[str, Affine | int, Affine | int]], parameters: Sequence[str] = ()
) -> isl.Set:
    """The domain `{ name[i, ...] : lower <= i < upper and ... }`; ranges are (iterator, lower, upper)."""
    bounds = tuple((i, Affine.of(lo), Affine.of(hi)) for i, lo, hi in ranges)
    if len({i for i, _, _ in bounds}) == len(bounds) and name.isidentifier():
        return _box(bounds, tuple(parameters)).set_tuple_name(name)
    text = " and ".join(f"{lo.isl_text} <= {i} < {hi.isl_text}" for i, lo, hi in bounds)
    iterators = ", ".join(i for i, _, _ in bounds)
    return isl.Set(f"[{', '.join(parameters)}] -> {{ {name}[{iterators}] : {text or 'true'} }}")


@lru_cache(maxsize=4096)
def _box(ranges: tuple[tuple[str, Affine, Affine], ...], parameters: tuple[str, ...]) -> isl.Set:
    """What isl reads from the text of a box, in a fifteenth of the time; statements of one box are many."""
    plain = not any(e.terms for _, lo, hi in ranges for e in (lo, hi))
    pairs = [] if plain else [(var(i), lo, hi) for i, lo, hi in ranges]
    conditions = [Constraint(e) for at, lo, hi in pairs for e in (at - lo, hi - 1 - at)]
    found = set_of(conditions, [i for i, _, _ in ranges], parameters)
    for k, (name, lo, hi) in enumerate(ranges):
        found = found.set_dim_name(SET, k, name)
        if plain:
            found = found.lower_bound_val(SET, k, number(lo.constant)).upper_bound_val(SET, k, number(hi.constant - 1))
    return found


def default_path(position: int, iterators: Sequence[str]) -> tuple[PathStep, ...]:
    """One nest of its own at `position` of the program."""
    return (position, *iterators)


def whole(tensor: Tensor, iterators: Sequence[str]) -> Access:
    """The access `T[i, j, ...]`."""
    return Access(tensor.name, tuple(var(i) for i in iterators))


def unused_name(taken: Collection[str], wanted: str, *ends: str) -> str:
    """A name that nobody has, nor with any of these ends."""
    names = (wanted, *(f"{wanted}_{k}" for k in range(1, len(taken) + 2)))
    return next(n for n in names if not any(f"{n}{end}" in taken for end in ("", *ends)))
