"""Rows of the operator table over sliding windows: convolutions, pooling, normalisation across channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Constraint, var
from poly.dtypes import is_float, numpy_dtype
from poly.expr import COMBINERS
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import (
    Index,
    Shape,
    Term,
    Value,
    cast_between,
    fn,
    index_value,
    literal,
    sum_dtype,
    summand,
)

_MOST_COUNTS: Final = 1 << 22
_SPATIAL: Final = {1: ("l",), 2: ("h", "w"), 3: ("d", "h", "w")}


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window: `positions` with `kernel` taps each, over `elements` with padding around them."""

    name: str
    elements: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    positions: int

    @property
    def tap(self) -> Affine | int:
        """The kernel's iterator; a kernel of 1 has none."""
        return var(f"k{self.name}") if self.kernel > 1 else 0

    @property
    def place(self) -> Affine:
        """The element under a position and a tap."""
        return var(self.name) * self.stride + self.tap * self.dilation - self.before

    def covered(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """For each position the number of taps that lie in low .. high-1."""
        start = np.arange(self.positions, dtype=np.int64) * self.stride - self.before
        first = np.maximum(-((start - low) // self.dilation), 0)  # ceil((low - start) / dilation)
        end = np.minimum(-((start - high) // self.dilation), self.kernel)
        return np.maximum(end - first, 0)


def spatial_names(rank: int) -> tuple[str, ...]:
    return _SPATIAL.get(rank) or tuple(f"i{k}" for k in range(rank))


def ints_of(b: Notation, name: str, usual: Sequence[int], rank: int) -> tuple[int, ...]:
    """An attribute of as many integers as `usual`, which stand for it where it is left out."""
    values = b.ints_attribute(name) or tuple(usual)
    b.require(len(values) == len(usual), f"{name} {list(values)} do not fit {rank} spatial axes")
    return values


@dataclass(frozen=True)
class Axis:
    """What a node says of one spatial axis, by `Window`'s names, without `auto_pad`."""

    name: str
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def span(self) -> int:
        """Elements from the first tap of a position to its last."""
        return (self.kernel - 1) * self.dilation + 1


def axes_and_auto_pad(b: Notation, kernel: Sequence[int]) -> tuple[list[Axis], str]:
    """The spatial axes of a node with windows, and how it is padded. Raises `OnnxError` on what does not fit."""
    rank = len(kernel)
    b.require(rank > 0, "has no spatial axes")
    strides, dilations = ints_of(b, "strides", (1,) * rank, rank), ints_of(b, "dilations", (1,) * rank, rank)
    pads = ints_of(b, "pads", (0,) * (2 * rank), rank)
    b.require(min((*strides, *dilations, *kernel)) > 0, "strides, dilations and kernel must be positive")
    auto = b.string_attribute("auto_pad", "NOTSET")
    b.require(auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), f"auto_pad {auto!r} is unknown")
    pads = (0,) * len(pads) if auto == "VALID" else pads
    said = zip(spatial_names(rank), kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    return [Axis(*values) for values in said], auto


def halves(total: int, auto: str) -> tuple[int, int]:
    """Padding before and after, of which there is so much in all."""
    before = total // 2 if auto == "SAME_UPPER" else total - total // 2
    return before, total - before


def kernel_of(b: Notation, w: Value) -> tuple[int, ...]:
    """The taps along each spatial axis of weights, which the node may say again."""
    kernel = b.ints_attribute("kernel_shape") or w.shape[2:]
    b.require(tuple(kernel) == w.shape[2:], f"kernel_shape {list(kernel)} is not that of the weights {list(w.shape)}")
    return kernel


def windows(b: Notation, extents: Sequence[int], kernel: Sequence[int], partial: bool = False) -> list[Window]:
    """The axes of the node's window. Raises `OnnxError` on attributes that do not fit.

    `partial`: one that exceeds the padded extent by less than a stride has a position, as onnx's shape inference and
    ONNX Runtime divide; the reference evaluator rounds down, and has none.
    """
    (axes, auto), ceil = axes_and_auto_pad(b, kernel), b.int_attribute("ceil_mode", 0) == 1
    found: list[Window] = []
    for a, extent in zip(axes, extents, strict=True):
        before, after = a.before, a.after
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            before, after = halves(max((-(-extent // a.stride) - 1) * a.stride + a.span - extent, 0), auto)
        room = extent + before + after - a.span
        room = max(room, 0) if partial and room > -a.stride else room
        size = _positions(room, a.stride, ceil, extent + before)
        b.require(
            size > 0, f"a window of {a.span} does not fit into {extent} elements padded by {before} and {after}",
            "larger inputs",
        )  # fmt: skip
        found.append(Window(a.name, extent, a.kernel, a.stride, a.dilation, before, after, size))
    return found


def _positions(room: int, stride: int, ceil: bool, end: int) -> int:
    """Window positions; with `ceil` a last one that begins at `end`, past the input and what is before it, is dropped.
    """
    if room < 0 and not ceil:
        return 0
    size = (-(-room // stride) if ceil else room // stride) + 1
    return size - 1 if ceil and (size - 1) * stride >= end else size


def _extents(axes: Sequence[Window]) -> tuple[int, ...]:
    return tuple(a.positions for a in axes)


def taps_of(axes: Sequence[Window]) -> dict[str, int]:
    return {f"k{a.name}": a.kernel for a in axes if a.kernel > 1}


@dataclass(frozen=True)
class ConvNest:
    """A convolution's loops: `ranges` of the output, `over` the sum; where it writes, reads the data and the taps."""

    shape: Shape
    ranges: dict[str, int]
    over: dict[str, int]
    place: tuple[Index, ...]
    channel: Affine
    source: tuple[Index, ...]
    taps: tuple[Index, ...]


def conv_nest(b: Notation, x: Value, w: Value, bias: Value | None) -> ConvNest:
    """Y[n, m, p] over X[n, c, s*p + d*k - before] and W[m, c, k]; groups split m and c. Raises `OnnxError`."""
    rank = x.rank - 2
    b.require(rank >= 1 and w.rank == x.rank, f"ranks {x.rank} and {w.rank}: needs [N, C, ...] and [M, C / group, ...]")
    group = b.int_attribute("group", 1)
    outer, inner = w.shape[0], w.shape[1]
    fits = group > 0 and x.shape[1] == inner * group and outer % group == 0
    b.require(fits, f"{x.shape[1]} channels, weights {list(w.shape)} and group {group} do not fit together")
    b.require(bias is None or bias.shape == (outer,), f"bias is not [{outer}]")
    axes = windows(b, x.shape[2:], kernel_of(b, w))
    ranges, m, first = channels_of(outer, inner, group)
    ranges = {"n": x.shape[0], **ranges, **{a.name: a.positions for a in axes}}
    over = ({} if group > 1 and inner == 1 else {"c": inner}) | taps_of(axes)
    c: Index = var("c") if "c" in over else 0
    source = (var("n"), first + c, *(a.place for a in axes))
    place = (var("n"), m, *(var(a.name) for a in axes))
    taps = (m, c, *(a.tap for a in axes))
    return ConvNest((x.shape[0], outer, *_extents(axes)), ranges, over, place, m, source, taps)


def conv(b: Notation) -> None:
    """Y[n, m, p] += X[n, c, s*p + d*k - before] * W[m, c, k], begun from the bias."""
    x, w, bias = b.input(0), b.input(1), b.optional(2)
    nest = conv_nest(b, x, w, bias)
    y = b.output(nest.shape, x.dtype)
    data = b.padded(x, nest.source, 0, {**nest.ranges, **nest.over})
    start = None if bias is None else bias[nest.channel]
    b.reduce(y, nest.ranges, nest.over, data * w[nest.taps], index=nest.place, start=start)


def channels_of(outer: int, inner: int, group: int) -> tuple[dict[str, int], Affine, Affine]:
    """Iterators of the output channels, the output channel, the first input channel of its group."""
    if group == 1:
        return {"m": outer}, var("m"), Affine()
    each = outer // group
    if each == 1:
        return {"g": group}, var("g"), var("g") * inner
    return {"g": group, "q": each}, var("g") * each + var("q"), var("g") * inner


def col_to_im(b: Notation) -> None:
    """Y[n, c, s*p + d*k - before] += X[n, (c, k), p]: the columns of blocks, added where they overlap."""
    x, image, block = b.input(0), b.constant_ints(1), b.constant_ints(2)
    area, count = int(np.prod(block, dtype=np.int64)), len(image)
    b.require(x.rank == 3 and len(block) == count and area > 0, f"{list(x.shape)} has no blocks of {list(block)}")
    axes = windows(b, image, block)
    positions = int(np.prod(_extents(axes), dtype=np.int64))
    fits = x.shape[1] % area == 0 and x.shape[2] == positions
    b.require(fits, f"{list(x.shape)} are not columns of {area} elements at {positions} positions")
    channels = x.shape[1] // area
    y = b.output((x.shape[0], channels, *image), x.dtype)
    outer = {"n": x.shape[0], "c": channels}
    b.assign(y, {**outer, **dict(zip((a.name for a in axes), image, strict=True))}, literal(0), suffix="_init")
    taps, places = Affine(), Affine()
    for k, a in enumerate(axes):
        taps = taps + int(np.prod(block[k + 1 :], dtype=np.int64)) * Affine.of(a.tap)
        places = places + int(np.prod(_extents(axes)[k + 1 :], dtype=np.int64)) * var(a.name)
    value = x[(var("n"), var("c") * area + taps, places)]
    ranges = {**outer, **{a.name: a.positions for a in axes}, **taps_of(axes)}
    inside = [c for a in axes for c in (Constraint(a.place), Constraint(a.elements - 1 - a.place))]
    b.assign(y, ranges, value, (var("n"), var("c"), *(a.place for a in axes)), combiner="+", where=inside)


def _pool_axes(b: Notation, x: Value) -> list[Window]:
    kernel = b.ints_attribute("kernel_shape")
    if kernel is None or len(kernel) != x.rank - 2:
        raise b.fail(f"kernel_shape {kernel} does not fit {x.rank - 2} spatial axes")
    return windows(b, x.shape[2:], kernel, partial=True)


def _pool_ranges(x: Value, axes: Sequence[Window]) -> tuple[dict[str, int], tuple[Affine, ...]]:
    ranges = {"n": x.shape[0], "c": x.shape[1], **{a.name: a.positions for a in axes}}
    return ranges, (var("n"), var("c"), *(a.place for a in axes))


def max_pool(b: Notation) -> None:
    x = b.input(0)
    axes = _pool_axes(b, x)
    y = b.output((*x.shape[:2], *_extents(axes)), x.dtype)
    ranges, place = _pool_ranges(x, axes)
    over = taps_of(axes)
    lowest = COMBINERS["max"].identity(x.dtype).value
    b.reduce(y, ranges, over, b.padded(x, place, lowest, {**ranges, **over}), "max")
    if b.wants(1):
        _max_indices(b, x, y, axes)


def _max_indices(b: Notation, x: Value, y: Value, axes: Sequence[Window]) -> None:
    """The flat place in the input of each window's first maximum."""
    found = b.output(y.shape, "i64", 1)
    ranges, place = _pool_ranges(x, axes)
    point = tuple(map(var, ranges))
    strides = [int(np.prod(x.shape[k + 1 :], dtype=np.int64)) for k in range(x.rank)]
    if b.int_attribute("storage_order", 0) == 1:  # the first spatial axis counts fastest
        strides[2:] = [int(np.prod(x.shape[2:k], dtype=np.int64)) for k in range(2, x.rank)]
    flat = sum((p * stride for p, stride in zip(place, strides, strict=True)), Affine())
    number = fn("select", fn("eq", x[place], y[point]), index_value(flat), x.size)
    b.assign(found, ranges, literal(x.size), suffix="_indices_init")
    inside = [c for a in axes for c in (Constraint(a.place), Constraint(a.elements - 1 - a.place))]
    over = taps_of(axes)
    b.assign(found, {**ranges, **over}, number, point, combiner="min", where=inside, suffix="_indices")


def average_pool(b: Notation) -> None:
    """The sum of a window over how many elements it covers: a literal, or a constant tensor over the positions."""
    x = b.input(0)
    axes = _pool_axes(b, x)
    y = b.output((*x.shape[:2], *_extents(axes)), x.dtype)
    ranges, place = _pool_ranges(x, axes)
    over = taps_of(axes)
    total = b.temporary("sum", y.shape, sum_dtype(y.dtype))
    value = cast_between(b.padded(x, place, 0, {**ranges, **over}), x.dtype, total.dtype)
    b.reduce(total, ranges, over, value, suffix="_sum")
    divide_by_count(b, y, total, ranges, axes)


def divide_by_count(b: Notation, y: Value, total: Value, ranges: Mapping[str, int], axes: Sequence[Window]) -> None:
    """y = total / taps covered at each position."""
    padded = b.int_attribute("count_include_pad", 0) == 1
    b.supported(prod(_extents(axes)) <= _MOST_COUNTS, "too many positions to count what each covers")
    counts = np.ones((), np.int64)
    for a in axes:
        low, high = (-a.before, a.elements + a.after) if padded else (0, a.elements)
        counts = np.multiply.outer(counts, np.maximum(a.covered(low, high), 1))
    point = tuple(map(var, ranges))
    if counts.min() == counts.max():
        mean = total[point] / float(counts.flat[0])
    else:
        divisor = b.new_constant("count", counts.astype(numpy_dtype(total.dtype)))
        mean = total[point] / divisor[tuple(var(a.name) for a in axes)]
    b.assign(y, ranges, cast_between(mean, total.dtype, y.dtype))


def lp_pool(b: Notation) -> None:
    x, p = b.input(0), b.int_attribute("p", 2)
    b.require(p > 0, f"p = {p} is not positive")
    axes = _pool_axes(b, x)
    y = b.output((*x.shape[:2], *_extents(axes)), x.dtype)
    ranges, place = _pool_ranges(x, axes)
    over = taps_of(axes)
    v = b.padded(x, place, 0, {**ranges, **over})
    total = b.temporary("sum", y.shape, y.dtype) if p > 1 else y
    b.reduce(total, ranges, over, _power(v, p), suffix="_sum")
    if p > 1:
        b.assign(y, ranges, _root(total[tuple(map(var, ranges))], p))


def global_lp_pool(b: Notation) -> None:
    x, p = b.input(0), b.int_attribute("p", 2)
    b.require(p > 0, f"p = {p} is not positive")
    ranges, over, point, place = _global(b, x)
    y = b.output((*x.shape[:2], *[1] * len(over)), x.dtype)
    total = b.temporary("sum", x.shape[:2], x.dtype)
    b.reduce(total, ranges, over, _power(x[point], p), suffix="_sum")
    b.assign(y, ranges, _root(total[var("n"), var("c")], p), place)


def _power(v: Term, p: int) -> Term:
    return fn("abs", v) if p == 1 else v * v if p == 2 else fn("pow", fn("abs", v), float(p))


def _root(total: Term, p: int) -> Term:
    return total if p == 1 else fn("sqrt", total) if p == 2 else fn("pow", total, 1 / p)


def _global(b: Notation, x: Value) -> tuple[dict[str, int], dict[str, int], tuple[Affine, ...], tuple[Index, ...]]:
    b.require(x.rank >= 2 and x.size > 0, f"needs [N, C, ...], not {list(x.shape)}")
    names = spatial_names(x.rank - 2)
    over = dict(zip(names, x.shape[2:], strict=True))
    return (
        {"n": x.shape[0], "c": x.shape[1]},
        over,
        (var("n"), var("c"), *map(var, names)),
        (var("n"), var("c"), *[0] * len(names)),
    )


def global_average_pool(b: Notation) -> None:
    x = b.input(0)
    ranges, over, point, place = _global(b, x)
    y = b.output((*x.shape[:2], *[1] * len(over)), x.dtype)
    total = b.temporary("sum", x.shape[:2], sum_dtype(x.dtype))
    b.reduce(total, ranges, over, summand(x, point), suffix="_sum")
    mean = total[var("n"), var("c")] / float(np.prod(x.shape[2:]))
    b.assign(y, ranges, cast_between(mean, total.dtype, y.dtype), place)


def global_max_pool(b: Notation) -> None:
    x = b.input(0)
    ranges, over, point, place = _global(b, x)
    y = b.output((*x.shape[:2], *[1] * len(over)), x.dtype)
    b.reduce(y, ranges, over, x[point], "max", index=place)


def local_response(b: Notation) -> None:
    """Krizhevsky's normalisation: the squares of `size` neighbouring channels, with zeros outside."""
    x, size = b.input(0), b.int_attribute("size")
    alpha, beta, bias = (
        b.float_attribute("alpha", 1e-4),
        b.float_attribute("beta", 0.75),
        b.float_attribute("bias", 1.0),
    )
    b.require(x.rank >= 2 and size > 0 and is_float(x.dtype), f"needs floats [N, C, ...], not {x.dtype}{list(x.shape)}")
    y = b.output(x.shape, x.dtype)
    names = ("n", "c", *spatial_names(x.rank - 2))
    ranges = dict(zip(names, x.shape, strict=True))
    over = {"k": size}
    shifted = (var("n"), var("c") + var("k") - (size - 1) // 2, *map(var, names[2:]))
    v = b.padded(x, shifted, 0, {**ranges, **over})
    squares = b.temporary("squares", x.shape, x.dtype)
    b.reduce(squares, ranges, over, v * v, suffix="_squares")
    point = tuple(map(var, names))
    b.assign(y, ranges, x[point] / fn("pow", squares[point] * (alpha / size) + bias, beta))


ROWS: Final[dict[str, Row]] = {
    "AveragePool": average_pool,
    "Col2Im": col_to_im,
    "Conv": conv,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "LRN": local_response,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
