"""Tensors, reads and bodies while a model is imported: `Value`, `Term`, and the names they get."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np

from poly.affine import Affine, FloorDiv, Mod, Var
from poly.dtypes import DTYPES, Array, dtype_name, is_float
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, with_reads_at
from poly.program import Access, ReadIndex

Index = Affine | int
Shape = tuple[int, ...]

# Words that isl or the text grammar read as something else, and the iterators that rows use.
_TAKEN: Final = frozenset(
    """or and not mod min max exists floor ceil floord ceild true false select index where ordered exact for in of
    program sizes input output inout constant temporary state space layout scope implies infty rat infinity""".split()
)
_ITERATOR: Final = re.compile(r"[ikb]\d+|[nmgqcdhwlsijkb]|k[dhwl]")


# Formats that a tensor holds as codes of u8, one an element, by the number that ONNX gives them.
FORMATS: Final = {
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
INTEGER_BITS: Final = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}


def is_format(dtype: str) -> bool:
    """True for a format that is held as codes."""
    return dtype in FORMATS.values()


def format_dtype(name: str) -> np.dtype[np.generic]:
    """The type of ml_dtypes for a format."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def storage(dtype: str) -> str:
    """The dtype that a tensor has in the program."""
    return "u8" if is_format(dtype) else dtype


def logical_dtype(dtype: np.dtype[np.generic]) -> str:
    """The name of an array's dtype, formats included. Raises `PolyError` where it has none."""
    return dtype.name if is_format(dtype.name) else dtype_name(dtype)


def stored(array: Array) -> Array:
    """The array as the program has it: codes, where it is of a format."""
    return array.view(np.uint8) if is_format(array.dtype.name) else array


class Names:
    """Hands out identifiers that isl and the text grammar take, each once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def fresh(self, text: str, rank: int = 0) -> str:
        """An unused identifier as close to `text` as it can be; a tensor with a `rank` may be called like an index."""
        # protobuf gives bytes for a name that is not UTF-8
        name = re.sub(r"[^0-9A-Za-z_]", "_", str(text)) or "t"
        if not name[0].isalpha():
            name = f"t{name}" if name[0] == "_" else f"t_{name}"
        if (
            name in _TAKEN
            or name in OPERATORS
            or keyword.iskeyword(name)
            or (not rank and _ITERATOR.fullmatch(name))
            or name in DTYPES
        ):
            name += "_"
        found, count = name, 1
        while found in self._used:
            count += 1
            found = f"{name}_{count}"
        self._used.add(found)
        return found

    def release(self, names: Iterable[str]) -> None:
        """Take names back whose holders are gone."""
        self._used.difference_update(names)


@dataclass(frozen=True)
class Term:
    """A body under construction: its `Read(k)` count the accesses in `reads`."""

    body: Expr
    reads: tuple[Access, ...] = ()

    def __add__(self, other: Term | float) -> Term:
        return fn("add", self, other)

    def __radd__(self, other: float) -> Term:
        return fn("add", other, self)

    def __sub__(self, other: Term | float) -> Term:
        return fn("sub", self, other)

    def __rsub__(self, other: float) -> Term:
        return fn("sub", other, self)

    def __mul__(self, other: Term | float) -> Term:
        return fn("mul", self, other)

    def __rmul__(self, other: float) -> Term:
        return fn("mul", other, self)

    def __truediv__(self, other: Term | float) -> Term:
        return fn("div", self, other)

    def __rtruediv__(self, other: float) -> Term:
        return fn("div", other, self)

    def __neg__(self) -> Term:
        return fn("neg", self)

    def cast(self, dtype: str) -> Term:
        """The conversion to a dtype."""
        return Term(Cast(dtype, self.body), self.reads)


def sum_dtype(dtype: str) -> str:
    """The dtype in which elements are added up: f32 for 16-bit floats."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def summand(x: Value, index: Sequence[Index]) -> Term:
    """An element in the dtype in which elements are added up."""
    return cast_between(x[tuple(index)], x.dtype, sum_dtype(x.dtype))


def cast_between(term: Term, dtype: str, other: str) -> Term:
    """A term of the one dtype as the other."""
    return term if dtype == other else term.cast(other)


def fn(operator: str, *arguments: Term | float) -> Term:
    """An operator of `poly.expr.OPERATORS` on terms and literals; equal reads are shared."""
    reads: dict[Access, int] = {}
    bodies: list[Expr] = []
    for argument in arguments:
        if not isinstance(argument, Term):
            bodies.append(Const(argument))
            continue
        place: list[int] = []
        for access in argument.reads:
            place.append(reads.setdefault(access.moved(place), len(reads)))
        bodies.append(with_reads_at(argument.body, place))
    return Term(Apply(operator, tuple(bodies)), tuple(reads))


def literal(value: float | bool) -> Term:
    """A literal; it takes the dtype of what it is combined with."""
    return Term(Const(value))


def index_value(index: Index) -> Term:
    """The value of an affine expression, as i64."""
    return Term(IndexValue(Affine.of(index)))


@dataclass(frozen=True)
class Value:
    """A tensor while importing: the name it will have, its literal shape and dtype, its content where that is known."""

    name: str
    shape: Shape
    dtype: str
    array: Array | None = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(prod(self.shape))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Term:
        """A read. A constant of one element becomes a literal, so that no tensor is needed for it."""
        subscripts = index if isinstance(index, tuple) else (index,)
        if self.array is not None and self.array.size == 1:
            return Term(Const(python_scalar(stored(self.array))))
        return Term(Read(0), (Access(self.name, tuple(Affine.of(s) for s in subscripts)),))

    def take(self, *index: Index | Term) -> Term:
        """A read where some subscripts are values of other reads (each a term that is one plain read)."""
        reads: list[Access] = []
        subscripts: list[Affine | ReadIndex] = []
        for s in index:
            if isinstance(s, Term) and s.reads:
                assert s.body == Read(0) and len(s.reads) == 1
                subscripts.append(ReadIndex(len(reads)))
                reads.append(s.reads[0])
            elif isinstance(s, Term):
                assert isinstance(s.body, Const)
                subscripts.append(Affine.of(int(s.body.value)))
            else:
                subscripts.append(Affine.of(s))
        return Term(Read(len(reads)), (*reads, Access(self.name, tuple(subscripts))))

    def aligned(self, iterators: Sequence[Index], shape: Shape) -> Term:
        """The read under numpy broadcasting to `shape`: trailing axes line up, axes that repeat are read at 0."""
        skip = len(shape) - self.rank
        axes = zip(iterators[skip:], self.shape, shape[skip:], strict=True)
        return self[tuple(0 if own == 1 != wanted else i for i, own, wanted in axes)]


def python_scalar(array: Array) -> float | int | bool:
    """The only element as a Python number."""
    item = array.reshape(())[()]
    name = dtype_name(array.dtype)
    return float(item) if is_float(name) else bool(item) if name == "bool" else int(item)


def interval(expression: Affine, ranges: Mapping[str, int]) -> tuple[int, int]:
    """Bounds of an expression over the box 0 <= iterator < extent (exact where it is linear)."""
    low = high = expression.constant
    for atom, c in expression.terms:
        match atom:
            case Var(name):
                bounds = (0, ranges[name] - 1)
            case FloorDiv(argument, divisor):
                inner = interval(argument, ranges)
                bounds = (inner[0] // divisor, inner[1] // divisor)
            case Mod(argument, divisor):
                inner = interval(argument, ranges)
                bounds = inner if 0 <= inner[0] and inner[1] < divisor else (0, divisor - 1)
        ends = (c * bounds[0], c * bounds[1])
        low, high = low + min(ends), high + max(ends)
    return low, high
