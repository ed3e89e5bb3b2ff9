"""Conditions at a place of the loop tree: affine constraints as bits, one for each lane."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Constraint
from poly.codegen.addresses import LaneError, Linear
from poly.codegen.state import State
from poly.codegen.text import constant_text
from poly.codegen.values import Value

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
    all_lanes: Bit = True
    each_lane: Bit = True
    for constraint in guard:
        bit = _test(s, constraint, None)
        if isinstance(bit, Value) and bit.lanes:
            each_lane = both(s, each_lane, bit)
        else:
            all_lanes = both(s, all_lanes, bit)
    return all_lanes, each_lane


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
    known = form.constant if base == str(form.constant) else None
    splat = s.ops.splat(Value(kind, 0, base, known), width).text
    steps = "<" + ", ".join(f"{kind} {constant_text(kind, -form.lane * i)}" for i in range(width)) + ">"
    return Value("bool", width, _pure(s, f"icmp {relation} <{width} x {kind}> {splat}, {steps}", splat))


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
    splat = s.ops.splat(Value("i32", 0, small), width).text
    steps = "<" + ", ".join(f"i32 {i}" for i in range(width)) + ">"
    return _pure(s, f"icmp sgt <{width} x i32> {splat}, {steps}", splat)


def active_at_runtime(s: State, extra: Bit) -> Bit:
    """Of the active lanes what is only known when running, where `extra` holds too."""
    mask = s.lanes.runtime_mask if s.lanes else None
    if mask is None or s.lanes is None:
        return extra
    return both(s, Value("bool", s.lanes.width, mask), extra)


def active_lanes(s: State, extra: Bit) -> Bit:
    """The active lanes, those of a constant mask too, where `extra` holds."""
    if s.lanes is None or s.lanes.mask is None:
        return extra
    return both(s, Value("bool", s.lanes.width, s.lanes.mask), extra)


def lane_bit(s: State, bits: Bit, lane: int) -> Bit:
    """One lane of a condition."""
    if isinstance(bits, bool) or not bits.lanes:
        return bits
    text = f"extractelement <{bits.lanes} x i1> {bits.text}, i64 {lane}"
    return Value("bool", 0, _pure(s, text, bits.text))
