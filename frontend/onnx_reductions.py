"""Rows of the operator table that reduce whole axes: sums, extrema, softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.dtypes import is_float
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import given_axes
from poly.frontend.onnx_terms import Index, Term, Value, cast_between, fn, sum_dtype, summand


def reduction(
    combiner: str,
    before: Callable[[Term], Term] = lambda v: v,
    after: str | None = None,
    alone: Callable[[Term], Term] | None = None,
) -> Row:
    """A row for Reduce*: `before` on each element, the function `after` on each result.

    Both together are `alone`, where no axis is reduced; without one the input is left as it is.
    """

    def row(b: Notation) -> None:
        x = b.input(0)
        axes = reduced_axes(b, x, 13 if b.call.operator == "ReduceSum" else 18)
        if axes is None and alone is not None:
            b.map(alone, x)
        elif axes is None:
            b.alias(x)
        else:
            _reduce(b, x, axes, combiner, before, None if after is None else partial(_of_floats, after, x.dtype))

    return row


def _of_floats(function: str, dtype: str, v: Term) -> Term:
    """A function of floats; of an integer the whole part of what it gives."""
    return fn(function, v) if is_float(dtype) else fn(function, v.cast("f64")).cast(dtype)


def reduced_axes(b: Notation, x: Value, since: int) -> tuple[int, ...] | None:
    """The axes to reduce; None for none of them (`noop_with_empty_axes`), which is still the rest of the operator."""
    given = given_axes(b, since)
    if not given:
        return None if b.int_attribute("noop_with_empty_axes", 0) == 1 else tuple(range(x.rank))
    return b.axes(given, x.rank)


def _reduce(
    b: Notation,
    x: Value,
    axes: Sequence[int],
    combiner: str,
    before: Callable[[Term], Term],
    after: Callable[[Term], Term] | None,
) -> None:
    keep = b.int_attribute("keepdims", 1) == 1
    shape = [1 if k in axes else e for k, e in enumerate(x.shape) if keep or k not in axes]
    y = b.output(shape, x.dtype)
    point = [var(f"k{k}") if k in axes else var(f"i{k}") for k in range(x.rank)]
    ranges = {f"i{k}": e for k, e in enumerate(x.shape) if k not in axes}
    over = {f"k{k}": x.shape[k] for k in axes}
    place: list[Index] = [0 if k in axes else var(f"i{k}") for k in range(x.rank) if keep or k not in axes]
    if after is None:
        b.reduce(y, ranges, over, before(x[tuple(point)]), combiner, index=place)
        return
    kind = sum_dtype(x.dtype)
    total = b.temporary("sum", [e for k, e in enumerate(x.shape) if k not in axes], kind)
    b.reduce(total, ranges, over, before(summand(x, point)), combiner, suffix="_sum")
    b.assign(y, ranges, cast_between(after(total[tuple(map(var, ranges))]), kind, x.dtype), place)


def reduce_mean(b: Notation) -> None:
    x = b.input(0)
    axes = reduced_axes(b, x, 18)
    if axes is None:
        b.alias(x)
        return
    count = int(np.prod([x.shape[k] for k in axes], dtype=np.int64))
    empty = any(e == 0 for k, e in enumerate(x.shape) if k not in axes)
    b.require(count > 0 or is_float(x.dtype) or empty, "the mean of no integers is no integer")

    def mean(total: Term) -> Term:
        return total / float(count) if is_float(x.dtype) else fn("trunc_div", total, count)

    _reduce(b, x, axes, "+", lambda v: v, mean)


def reduce_log_sum_exp(b: Notation) -> None:
    """log(sum(exp(x - m))) + m with m the maximum, so that nothing overflows, and 0 where that is not finite."""
    x = b.input(0)
    axes = reduced_axes(b, x, 18)
    if axes is None:
        b.alias(x)
        return
    keep = b.int_attribute("keepdims", 1) == 1
    y = b.output([1 if k in axes else e for k, e in enumerate(x.shape) if keep or k not in axes], x.dtype)
    ranges, inner, point = outer_and_inner(x, axes)
    outer = tuple(map(var, ranges))
    if not is_float(x.dtype):
        wide = b.temporary("wide", x.shape, "f64")
        b.assign(wide, ranges | inner, x[tuple(point)].cast("f64"), tuple(point), suffix="_wide")
        x = wide
    largest, total = _max_and_sum(b, x, axes, finite=True)
    place: list[Index] = [0 if k in axes else point[k] for k in range(x.rank) if keep or k not in axes]
    found = fn("log", total[outer]) + largest[outer]
    b.assign(y, ranges, found if x.dtype == y.dtype else found.cast(y.dtype), place)


def outer_and_inner(x: Value, axes: Sequence[int]) -> tuple[dict[str, int], dict[str, int], list[Affine]]:
    """Iterators of the axes kept, of the axes reduced, and the point they make."""
    names = [f"k{k}" if k in axes else f"i{k}" for k in range(x.rank)]
    ranges = {names[k]: e for k, e in enumerate(x.shape) if k not in axes}
    return ranges, {names[k]: x.shape[k] for k in axes}, [var(n) for n in names]


def _max_and_sum(
    b: Notation, x: Value, axes: Sequence[int], exps: Value | None = None, finite: bool = False
) -> tuple[Value, Value]:
    """m = max x and sum exp(x - m) along the axes; the exponentials are kept in `exps` where that is given.

    `finite`: m is 0 where the maximum is infinite, as infinity - infinity is no number.
    """
    ranges, over, point = outer_and_inner(x, axes)
    outer = tuple(map(var, ranges))
    largest = b.temporary("max", list(ranges.values()), x.dtype)
    b.reduce(largest, ranges, over, x[tuple(point)], "max", suffix="_max")
    if finite:
        shift = b.temporary("shift", largest.shape, x.dtype)
        m = largest[outer]
        b.assign(shift, ranges, fn("select", fn("lt", fn("abs", m), float("inf")), m, 0.0), suffix="_shift")
        largest = shift
    value = fn("exp", x[tuple(point)] - largest[outer])
    if exps is not None:
        b.assign(exps, dict(zip(map(str, point), x.shape, strict=True)), value, suffix="_exp")
        value = exps[tuple(point)]
    total = b.temporary("sum", list(ranges.values()), x.dtype)
    b.reduce(total, ranges, over, value, suffix="_sum")
    return largest, total


def softmax_axes(b: Notation, x: Value) -> tuple[int, ...]:
    """From opset 13 on one axis; before that all axes from `axis` on, taken as one."""
    if b.opset >= 13:
        return (b.axis(b.int_attribute("axis", -1), x.rank),)
    axis = b.int_attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    b.require(0 <= axis <= x.rank, f"axis {axis} is outside of rank {x.rank}")
    return tuple(range(axis, x.rank))


def softmax(b: Notation) -> None:
    """max, exp, sum, and a division: one by the sum for each row, whose inverse is exact to the last bit or two."""
    x = b.input(0)
    axes = softmax_axes(b, x)
    y = b.output(x.shape, x.dtype)
    if x.size == 0:
        return
    ranges, _, point = outer_and_inner(x, axes)
    exps = b.temporary("exp", x.shape, x.dtype)
    _, total = _max_and_sum(b, x, axes, exps)
    everywhere = dict(zip(map(str, point), x.shape, strict=True))
    outer = tuple(map(var, ranges))
    if x.dtype not in ("f32", "f64"):
        b.assign(y, everywhere, exps[tuple(point)] / total[outer])
        return
    inverse = b.temporary("inverse", total.shape, x.dtype)
    b.assign(inverse, ranges, 1.0 / total[outer], suffix="_inverse")
    b.assign(y, everywhere, exps[tuple(point)] * inverse[outer])


def log_softmax(b: Notation) -> None:
    """(x - max) - log(sum): the maximum goes first, as max + log(sum) would lose the logarithm beside a large one."""
    x = b.input(0)
    axes = softmax_axes(b, x)
    y = b.output(x.shape, x.dtype)
    if x.size == 0:
        return
    ranges, _, point = outer_and_inner(x, axes)
    largest, total = _max_and_sum(b, x, axes)
    logs = b.temporary("log", total.shape, x.dtype)
    outer = tuple(map(var, ranges))
    b.assign(logs, ranges, fn("log", total[outer]), suffix="_log")
    value = x[tuple(point)] - largest[outer] - logs[outer]
    b.assign(y, dict(zip(map(str, point), x.shape, strict=True)), value)


def axes_from(rank: int, first: int) -> tuple[int, ...]:
    """Axes from `first` to the last."""
    return tuple(range(first, rank))


ROWS: Final[dict[str, Row]] = {
    "LogSoftmax": log_softmax,
    "ReduceL1": reduction("+", lambda v: fn("abs", v), alone=lambda v: fn("abs", v)),
    "ReduceL2": reduction("+", lambda v: v * v, "sqrt", lambda v: fn("abs", v)),
    "ReduceLogSum": reduction("+", after="log", alone=lambda v: fn("log", v)),
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduction("max"),
    "ReduceMean": reduce_mean,
    "ReduceMin": reduction("min"),
    "ReduceProd": reduction("*"),
    "ReduceSum": reduction("+"),
    "ReduceSumSquare": reduction("+", lambda v: v * v, alone=lambda v: v * v),
    "Softmax": softmax,
}
