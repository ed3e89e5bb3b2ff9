"""The state at a place of the loop tree, and conditions there: affine constraints as bits, one for each lane."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from poly.affine import Affine, Constraint
from poly.codegen.addresses import Address, Flat, Indices, LaneError, Linear
from poly.codegen.operators import Ops
from poly.codegen.registers import Registers
from poly.codegen.target import Target
from poly.codegen.text import Writer, constant_text
from poly.codegen.values import Value
from poly.program import Access, Tensor


@dataclass(frozen=True)
class Lanes:
    """Inside a vector loop: `width` lanes of which the first `count` at most are active.

    `mask`: None where all lanes are active, else the text of an i1 vector; `constant`: exactly the first `count` are.
    """

    width: int
    count: int
    mask: str | None
    constant: bool

    @property
    def runtime_mask(self) -> str | None:
        """The mask where it is only known when running."""
        return None if self.constant else self.mask


@lru_cache(maxsize=64)
def first_lanes(width: int, count: int) -> Lanes:
    """Exactly the first `count` lanes active."""
    return Lanes(width, count, constant_mask(width, count), True)


@dataclass(frozen=True)
class Plan:
    """What an access without indirection comes to wherever it is met: its subscripts, and their sum."""

    access: Access
    subscripts: tuple[Affine, ...]
    flat: Flat | None


@dataclass
class State:
    """What an emitter of one function carries along.

    `past`: inside of a nontemporal loop, whose stores of whole vectors go past the caches where memory is aligned to
    them; `streamed`: the tensors stored to in that way; `unaligned`: what each such line is where memory is not.
    `ahead`: of such loops, along which loop and how far they ask for what they touch.
    `written`: tensors that the loop around writes, with all in it; None outside of loops. `plans`: by the identity
    of an access; `located`: where the accesses of the current statement are. `index_vectors`: indices loaded from
    memory, all lanes.
    """

    writer: Writer
    ops: Ops
    indices: Indices
    registers: Registers
    tensors: dict[str, Tensor]
    bases: dict[str, str]
    register_spaces: frozenset[str]
    statements: dict[str, int]
    target: Target
    lanes: Lanes | None = None
    past: bool = False
    ahead: tuple[str, int] | None = None
    streamed: set[str] = field(default_factory=set[str])
    unaligned: dict[str, str] = field(default_factory=dict[str, str])
    written: frozenset[str] | None = None
    plans: dict[int, Plan] = field(default_factory=dict[int, Plan])
    located: dict[int, Address | None] = field(default_factory=dict[int, "Address | None"])
    index_vectors: dict[str, Value] = field(default_factory=dict[str, Value])

    def in_registers(self, tensor: str) -> bool:
        return self.tensors[tensor].space in self.register_spaces

    @contextmanager
    def probing(self) -> Generator[None]:
        """What is walked inside leaves no text, and the place is the same afterwards."""
        indices, values, lanes = self.indices, dict(self.indices.values), self.lanes
        lane_range = indices.lane_range
        self.writer.probing = True
        try:
            yield
        finally:
            self.writer.probing = False
            indices.values, indices.lane_range, self.lanes = values, lane_range, lanes


Bit = bool | Value


def as_value(bit: Bit) -> Value:
    """A bit that is no literal."""
    assert isinstance(bit, Value)
    return bit


def _pure(s: State, text: str, *operands: str) -> str:
    return s.writer.pure(text, *operands)


def both(s: State, a: Bit, b: Bit, name: str = "and") -> Bit:
    """Conjunction (or, with `name` "or", disjunction) of bits and lane vectors."""
    neutral = name == "and"
    if isinstance(a, bool):
        return b if a == neutral else a
    if isinstance(b, bool):
        return a if b == neutral else b
    x, y = s.ops.same(a, b)
    kind = f"<{x.lanes} x i1>" if x.lanes else "i1"
    return Value("bool", x.lanes, _pure(s, f"{name} {kind} {x.text}, {y.text}", x.text, y.text))


def predicate(s: State, any_of: Sequence[Sequence[Constraint]], lane: int | None = None) -> Bit:
    """Whether one of the conjunctions holds: a bool where it is known, a bit, or a vector of bits."""
    result: Bit = False
    for conjunction in any_of:
        term: Bit = True
        for constraint in conjunction:
            term = both(s, term, _test(s, constraint, lane))
        result = both(s, result, term, "or")
    return result


def guard_parts(s: State, guard: Sequence[Constraint]) -> tuple[Bit, Bit]:
    """The conditions that are the same for all lanes, and those of each."""
    whole: Bit = True
    lanes: Bit = True
    for constraint in guard:
        bit = _test(s, constraint, None)
        if isinstance(bit, Value) and bit.lanes:
            lanes = both(s, lanes, bit)
        else:
            whole = both(s, whole, bit)
    return whole, lanes


def _test(s: State, constraint: Constraint, lane: int | None) -> Bit:
    try:
        form = s.indices.linear(constraint.expr, lane)
    except LaneError:
        return _by_lane(s, constraint)
    bounds = s.indices.interval(form)
    if bounds is not None:
        low, high = bounds
        if constraint.equality and (low > 0 or high < 0 or low == high == 0):
            return low == high == 0
        if not constraint.equality and (low >= 0 or high < 0):
            return low >= 0
    relation = "eq" if constraint.equality else "sge"
    if not form.lane:
        varying = s.indices.text(Linear(form.terms))
        return Value("bool", 0, _pure(s, f"icmp {relation} i64 {varying}, {-form.constant}", varying))
    return _lane_test(s, form, relation)


def _lane_test(s: State, form: Linear, relation: str) -> Value:
    """base + c * lane >= 0 for every lane: in 32 bits where all multiples of c are small, as far beyond them the base's
    exact value does not matter.
    """
    assert s.lanes is not None
    width, kind = s.lanes.width, "i64"
    base = s.indices.text(Linear(form.terms, form.constant))
    limit = 1 << 29
    if abs(form.lane) * (width - 1) < limit:
        base = s.writer.intrinsic("i64", "llvm.smin.i64", (("i64", base), ("i64", str(limit))), pure=True)
        base = s.writer.intrinsic("i64", "llvm.smax.i64", (("i64", base), ("i64", str(-limit))), pure=True)
        base, kind = _pure(s, f"trunc i64 {base} to i32", base), "i32"
    splat = splat_pure(s, kind, base, width)
    steps = "<" + ", ".join(f"{kind} {constant_text(kind, -form.lane * i)}" for i in range(width)) + ">"
    return Value("bool", width, _pure(s, f"icmp {relation} <{width} x {kind}> {splat}, {steps}", splat))


def splat_pure(s: State, kind: str, scalar: str, width: int) -> str:
    """A scalar of a loop head in every lane, hoisted there too."""
    vector = f"<{width} x {kind}>"
    one = _pure(s, f"insertelement {vector} poison, {kind} {scalar}, i64 0", scalar)
    return _pure(s, f"shufflevector {vector} {one}, {vector} poison, <{width} x i32> zeroinitializer", one)


def _by_lane(s: State, constraint: Constraint) -> Value:
    """A condition with a floor or remainder of the lane, one lane after the other."""
    assert s.lanes is not None
    width, text = s.lanes.width, "zeroinitializer"
    for i in range(s.lanes.count):
        bit = _test(s, constraint, i)
        shown = bit.text if isinstance(bit, Value) else str(bit).lower()
        text = _pure(s, f"insertelement <{width} x i1> {text}, i1 {shown}, i64 {i}", text, shown)
    return Value("bool", width, text)


def prefix_mask(s: State, extent: str, width: int) -> str:
    """The mask of the lanes below `extent` (an i64 that is at most `width`)."""
    small = _pure(s, f"trunc i64 {extent} to i32", extent)
    splat = splat_pure(s, "i32", small, width)
    steps = "<" + ", ".join(f"i32 {i}" for i in range(width)) + ">"
    return _pure(s, f"icmp sgt <{width} x i32> {splat}, {steps}", splat)


def constant_mask(width: int, count: int) -> str | None:
    """The mask of the first `count` lanes; None for all."""
    if count == width:
        return None
    return "<" + ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(width)) + ">"


def any_lane(s: State, bits: Value) -> Value:
    """Whether a bit is set in some lane."""
    if not bits.lanes:
        return bits
    kind = f"<{bits.lanes} x i1>"
    name = f"llvm.vector.reduce.or.v{bits.lanes}i1"
    return Value("bool", 0, s.writer.intrinsic("i1", name, ((kind, bits.text),), pure=True))


def active(s: State, extra: Bit) -> Bit:
    """The active lanes, as far as they are only known when running, where `extra` holds too."""
    mask = s.lanes.runtime_mask if s.lanes else None
    if mask is None or s.lanes is None:
        return extra
    return both(s, Value("bool", s.lanes.width, mask), extra)


def enabled(s: State, extra: Bit) -> Bit:
    """The active lanes where `extra` holds too."""
    if s.lanes is None or s.lanes.mask is None:
        return extra
    return both(s, Value("bool", s.lanes.width, s.lanes.mask), extra)


def lane_bit(s: State, bits: Bit, lane: int) -> Bit:
    """One lane of a condition."""
    if isinstance(bits, bool) or not bits.lanes:
        return bits
    text = f"extractelement <{bits.lanes} x i1> {bits.text}, i64 {lane}"
    return Value("bool", 0, _pure(s, text, bits.text))


def index_value(s: State, expression: Affine, dtype: str = "i64") -> Value:
    """An affine expression as an integer, one for each lane where it depends on the lane; narrow ones wrap around."""
    try:
        form = s.indices.linear(expression)
    except LaneError:
        assert s.lanes is not None
        items = [Value("i64", 0, s.indices.text(s.indices.linear(expression, i))) for i in range(s.lanes.count)]
        return s.ops.cast(s.ops.gather(items, s.lanes.width, "i64"), dtype)
    if form.is_constant:
        return s.ops.cast(s.ops.const("i64", form.constant), dtype)
    base = s.indices.text(Linear(form.terms, form.constant))
    base = base if dtype == "i64" else _pure(s, f"trunc i64 {base} to {dtype}", base)
    if not form.lane:
        return Value(dtype, 0, base)
    assert s.lanes is not None
    width = s.lanes.width
    first = 0 if form.terms else form.constant
    numbers = [form.lane * i + first for i in range(width)]
    if dtype == "i32" and not all(-(2**31) <= n < 2**31 for n in numbers):
        return s.ops.cast(index_value(s, expression), dtype)
    steps = "<" + ", ".join(f"{dtype} {constant_text(dtype, n)}" for n in numbers) + ">"
    if not form.terms:
        return Value(dtype, width, steps)
    splat = splat_pure(s, dtype, base, width)
    return Value(dtype, width, _pure(s, f"add <{width} x {dtype}> {splat}, {steps}", splat))
