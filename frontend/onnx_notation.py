"""What a row of the operator table works with: the node it reads (`Call`) and the notation it writes (`Notation`).

A row is a function of a `Notation`: it looks at shapes, dtypes, attributes and constant inputs, declares the outputs,
and writes statements as domain, accesses and body. Terms build a body together with its reads:

    def matmul(b: Notation) -> None:
        x, w = b.input(0), b.input(1)
        y = b.output((m, n), x.dtype)
        i, j, k = b.iterators("i", "j", "k")
        b.reduce(y, {"i": m, "j": n}, {"k": kk}, x[i, k] * w[k, j])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import islpy as isl
import numpy as np

from poly.affine import Affine, Constraint, var
from poly.errors import Bug, OnnxError, PolyError, ShapeError
from poly.expr import COMBINERS, Apply, Cast, Const, Read, dtype_of
from poly.frontend.onnx_terms import (
    Array,
    Index,
    Names,
    Shape,
    Term,
    Value,
    interval,
    literal,
    logical_dtype,
    storage,
    stored,
    sum_dtype,
)
from poly.program import Access, OptionalTerms, PathStep, ReadIndex, Statement, Tensor, box_domain, default_path

CONTRIB: Final = "com.microsoft"  # ONNX Runtime's own domain
Attribute = int | float | str | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | bytes | None


class NoCompiledForm(Exception):
    """A valid node that its row cannot write down; it becomes an external statement where its shapes are static."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class NeedsValue(NoCompiledForm):
    """The row needs the content of an input that is only known at run time."""

    def __init__(self, value: Value, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.value = value


@dataclass(frozen=True)
class Call:
    """One node of the file with what is known about its inputs; absent optional inputs are None, outputs ''."""

    name: str
    operator: str
    domain: str
    opset: int
    attributes: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    serial: int

    @property
    def where(self) -> str:
        """Node, operator, opset and operands, for error messages."""
        shown = ", ".join("-" if v is None else f"{v.name}: {v.dtype}{list(v.shape)}" for v in self.inputs)
        domain = f"{self.domain}." if self.domain else ""
        return f"node {self.name!r} ({domain}{self.operator}, opset {self.opset}; inputs {shown or 'none'})"


class Notation:
    """The notation of one node, being written: outputs, temporaries, new constants and statements, in order."""

    def __init__(self, call: Call, names: Names) -> None:
        self.call = call
        self._names = names
        self._label = names.fresh(f"{call.operator.lower()}{call.serial}")
        self.statements: list[Statement] = []
        self.temporaries: list[Tensor] = []
        self.constants: dict[str, Array] = {}
        self.results: dict[int, Value] = {}
        self.count: Value | None = None
        self._known: dict[str, Value] = {v.name: v for v in call.inputs if v is not None}
        self._loops: Mapping[str, int] = {}  # shared by the statements from number `_first` on
        self._first = 0

    # -- what the node is ----------------------------------------------------------------------------------------

    @property
    def opset(self) -> int:
        return self.call.opset

    def fail(self, message: str, hint: str | None = None) -> OnnxError:
        """The error for this node, to be raised by the caller."""
        return OnnxError(message, where=self.call.where, hint=hint)

    def require(self, condition: bool, message: str, hint: str | None = None) -> None:
        """Raise `OnnxError` unless the condition holds."""
        if not condition:
            raise self.fail(message, hint)

    def supported(self, condition: bool, message: str, hint: str | None = None) -> None:
        """Raise `NoCompiledForm` unless the condition holds."""
        if not condition:
            raise NoCompiledForm(message, hint)

    def input(self, position: int) -> Value:
        found = self.optional(position)
        if found is None:
            raise self.fail(f"input {position} is missing")
        return found

    def optional(self, position: int) -> Value | None:
        return self.call.inputs[position] if position < len(self.call.inputs) else None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Every input, none of which may be absent."""
        return tuple(self.input(k) for k in range(len(self.call.inputs)))

    def constant(self, position: int) -> Array:
        """The content of an input that has to be known while importing."""
        value = self.input(position)
        if value.array is None:
            raise NeedsValue(
                value,
                f"input {position} ({value.name}) is only known at run time, and the output's shape depends on it",
                "poly.compile(model) compiles at the first run; or make it a constant: from_onnx(..., constants={...})",
            )
        return value.array

    def constant_ints(self, position: int) -> tuple[int, ...]:
        return tuple(int(x) for x in np.asarray(self.constant(position)).reshape(-1))

    def has(self, name: str) -> bool:
        return self.call.attributes.get(name) is not None

    def int_attribute(self, name: str, default: int | None = None) -> int:
        value = self.call.attributes.get(name)
        value = default if value is None else value
        if not isinstance(value, int):
            raise self.fail(f"attribute {name} must be an integer, is {value!r}")
        return value

    def float_attribute(self, name: str, default: float | None = None) -> float:
        value = self.call.attributes.get(name)
        value = default if value is None else value
        if not isinstance(value, (int, float)):
            raise self.fail(f"attribute {name} must be a number, is {value!r}")
        return float(value)

    def string_attribute(self, name: str, default: str | None = None) -> str:
        value = self.call.attributes.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.fail(f"attribute {name} must be a string, is {value!r}")
        return value

    def ints_attribute(self, name: str) -> tuple[int, ...] | None:
        value = self.call.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple) or not all(isinstance(x, int) for x in value):
            raise self.fail(f"attribute {name} must be a list of integers, is {value!r}")
        return tuple(int(x) for x in value)

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front. Raises `OnnxError` where there is no such axis."""
        self.require(-rank <= value < rank, f"axis {value} is outside of rank {rank}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        found = tuple(self.axis(v, rank) for v in values)
        self.require(len(set(found)) == len(found), f"axes {list(values)} name an axis twice")
        return found

    def wants(self, position: int) -> bool:
        """True where the model uses output number `position`."""
        return position < len(self.call.outputs) and self.call.outputs[position] != ""

    # -- tensors -------------------------------------------------------------------------------------------------

    def output(self, shape: Sequence[int], dtype: str, position: int = 0) -> Value:
        """Declare an output."""
        if any(extent < 0 for extent in shape):
            raise self.fail(f"output {position} would have the shape {list(shape)}")
        name = self.call.outputs[position] if self.wants(position) else f"{self._label}_out{position}"
        self.results[position] = self.declare(Value(self._names.fresh(name, len(shape)), tuple(shape), dtype))
        return self.results[position]

    def cut(self) -> Value:
        """Output 0 has only so many slices along its first axis as this tensor of one number will say, begun at 0."""
        self.count = self.output((1,), "i64", len(self.call.outputs))
        self.assign(self.count, {"k": 1}, literal(0), suffix="_none")
        return self.count

    def alias(self, value: Value, position: int = 0) -> None:
        """The output is this value: no copy."""
        self.results[position] = value

    def temporary(self, suffix: str, shape: Sequence[int], dtype: str) -> Value:
        """A tensor that only this node uses."""
        value = self.declare(Value(self._names.fresh(f"{suffix}_of_{self._label}"), tuple(shape), dtype))
        self.temporaries.append(Tensor(value.name, tuple(Affine.of(e) for e in shape), storage(dtype)))
        return value

    def new_constant(self, suffix: str, array: Array) -> Value:
        """A constant that is computed while importing."""
        name = self._names.fresh(f"{suffix}_of_{self._label}")
        self.constants[name] = stored(array)
        return self.declare(Value(name, array.shape, logical_dtype(array.dtype), array))

    def declare(self, value: Value) -> Value:
        """A value that statements may touch."""
        self._known[value.name] = value
        return value

    # -- statements ----------------------------------------------------------------------------------------------

    def iterators(self, *names: str) -> tuple[Affine, ...]:
        return tuple(var(name) for name in names)

    def padded(self, x: Value, index: Sequence[Index], fill: float | bool, ranges: Mapping[str, int]) -> Term:
        """A read that gives `fill` outside of the tensor; the guard has only the conditions that can fail."""
        guard: list[Constraint] = []
        for s, extent in zip(index, x.shape, strict=True):
            low, high = interval(Affine.of(s), ranges)
            if low < 0:
                guard.append(Constraint(Affine.of(s)))
            if high >= extent:
                guard.append(Constraint(extent - 1 - Affine.of(s)))
        if not guard:
            return x[tuple(index)]
        access = Access(x.name, tuple(Affine.of(s) for s in index), tuple(guard), Const(fill))
        return Term(Read(0), (access,))

    def assign(
        self,
        target: Value,
        ranges: Mapping[str, int],
        value: Term | float,
        index: Sequence[Index | Term] | None = None,
        *,
        suffix: str = "",
        combiner: str | None = None,
        where: Sequence[Constraint] = (),
        optional: Sequence[Constraint] = (),
    ) -> None:
        """The statement `target[index] = value` (or `combiner=`) over the box 0 <= iterator < extent, cut by `where`.

        `index` is by default the iterators themselves; a subscript may be a plain read, for an indirect write. An empty
        box gives no statement. Inside `loop` the loops' iterators come first.
        """
        if any(extent == 0 for extent in ranges.values()):
            return
        term = value if isinstance(value, Term) else literal(value)
        subscripts, extra = _subscripts(tuple(map(var, ranges)) if index is None else index, len(term.reads))
        ranges = {**self._loops, **ranges}
        name = self._statement_name(suffix)
        domain = box_domain(name, [(i, 0, extent) for i, extent in ranges.items()])
        for constraint in where:
            domain = domain.intersect(_half_space(name, tuple(ranges), constraint))
        statement = Statement(
            name, tuple(ranges), domain, Access(target.name, subscripts), (*term.reads, *extra), term.body,
            None if combiner is None else COMBINERS[combiner],
            path=self._path(tuple(ranges)),
            optional=OptionalTerms(tuple(ranges), domain, tuple(optional)) if optional else None,
        )  # fmt: skip
        self._check(statement, target, ranges, cut=bool(where))
        self.statements.append(statement)

    @contextmanager
    def loop(self, ranges: Mapping[str, int]) -> Generator[None]:
        """Statements written inside share these loops: every step runs all of them in their order."""
        assert not self._loops
        self._loops, self._first = ranges, len(self.statements)
        yield
        self._loops = {}

    def _path(self, iterators: Sequence[str]) -> tuple[PathStep, ...]:
        position = len(self.statements)
        if not self._loops:
            return default_path(position, iterators)
        return (self._first, *self._loops, position - self._first, *(i for i in iterators if i not in self._loops))

    def _statement_name(self, suffix: str) -> str:
        if suffix or any(s.name == self._label for s in self.statements):
            return self._names.fresh(f"{self._label}{suffix}")
        return self._label

    def reduce(
        self,
        target: Value,
        ranges: Mapping[str, int],
        over: Mapping[str, int],
        value: Term,
        combiner: str = "+",
        *,
        index: Sequence[Index] | None = None,
        start: Term | None = None,
        suffix: str = "",
        optional: Sequence[Constraint] = (),
    ) -> None:
        """`target[index] combiner= value` over ranges and `over`, begun from `start` or the combiner's identity.

        Sums and products of 16-bit floats, and products in sums, are kept in f32 and rounded once.
        """
        subscripts = tuple(map(var, ranges)) if index is None else tuple(index)
        kind = sum_dtype(target.dtype)
        if combiner in ("+", "*") and target.dtype != kind and not self._loops:
            total = self.temporary(f"{suffix.lstrip('_') or 'total'}_{kind}", target.shape, kind)
            match value.body:
                case Apply("mul", (a, b)):
                    wide = Term(Apply("mul", (Cast(kind, a), Cast(kind, b))), value.reads)
                case _:
                    wide = value.cast(kind)
            first = None if start is None else start.cast(kind)
            wider = f"{suffix}_{kind}"
            self.reduce(
                total, ranges, over, wide, combiner, index=subscripts, start=first, suffix=wider, optional=optional
            )
            self.assign(target, ranges, total[subscripts].cast(target.dtype), subscripts, suffix=suffix)
            return
        first = Term(COMBINERS[combiner].identity(target.dtype)) if start is None else start
        self.assign(target, ranges, first, subscripts, suffix=f"{suffix}_init")
        self.assign(target, {**ranges, **over}, value, subscripts, suffix=suffix, combiner=combiner, optional=optional)

    def map(self, function: Callable[..., Term], *inputs: Value, dtype: str | None = None, position: int = 0) -> Value:
        """An elementwise output with numpy broadcasting of its inputs."""
        shape = self.broadcast(*(v.shape for v in inputs))
        y = self.output(shape, dtype or inputs[0].dtype, position)
        ranges = {f"i{k}": extent for k, extent in enumerate(shape)}
        point = [var(i) for i in ranges]
        self.assign(y, ranges, function(*(v.aligned(point, shape) for v in inputs)))
        return y

    def broadcast(self, *shapes: Shape) -> Shape:
        """numpy's broadcast shape. Raises `OnnxError` where the shapes do not fit."""
        try:
            return tuple(np.broadcast_shapes(*shapes))
        except ValueError:
            raise self.fail(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast") from None

    def _check(self, s: Statement, target: Value, ranges: Mapping[str, int], *, cut: bool) -> None:
        """dtypes agree, and every access without a guard stays inside its tensor."""
        try:
            found = dtype_of(s.body, [storage(self._known[r.tensor].dtype) for r in s.reads])
            if found is not None and found != storage(target.dtype):
                raise ShapeError(f"computes {found}, the output is {target.dtype}")
        except PolyError as error:
            raise self.fail(error.message, error.hint) from None
        for access, _ in s.accesses:
            shape = self._known[access.tensor].shape
            if len(access.index) != len(shape):
                raise Bug(f"{s.name}: {access} has not the rank of {shape}")
            for subscript, extent in zip(access.index, shape, strict=True):
                if isinstance(subscript, ReadIndex) or access.guard or cut:
                    continue
                low, high = interval(subscript, ranges)
                if low < 0 or high >= extent:
                    raise Bug(f"{self.call.where}: {access.tensor}[{subscript}] reaches {low} .. {high} of {extent}")


def _subscripts(index: Sequence[Index | Term], first: int) -> tuple[tuple[Affine | ReadIndex, ...], tuple[Access, ...]]:
    """Subscripts of a write, and the reads that give the indirect ones, counted from `first`."""
    found: list[Affine | ReadIndex] = []
    reads: list[Access] = []
    for s in index:
        if not isinstance(s, Term):
            found.append(Affine.of(s))
        elif isinstance(s.body, Const):
            found.append(Affine.of(int(s.body.value)))
        else:
            assert s.body == Read(0) and len(s.reads) == 1
            found.append(ReadIndex(first + len(reads)))
            reads.append(s.reads[0])
    return tuple(found), tuple(reads)


def _half_space(name: str, iterators: Sequence[str], constraint: Constraint) -> isl.Set:
    return isl.Set(f"{{ {name}[{', '.join(iterators)}] : {constraint.isl_text} }}")


Row = Callable[[Notation], None]  # of the operator table: writes the statements of one node
