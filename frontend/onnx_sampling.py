"""Rows of the operator table that read between the elements: GridSample, RoiAlign, DeformConv; and MaxUnpool.

A place between elements is a float for each axis. Every axis has a few taps: tables of the elements to read and of
their weights, which statements compute first. The value is then one sum over all the taps of products of weights,

    y[p] = sum over t0, t1, ... of x[I0[p, t0], I1[p, t1], ...] * W0[p, t0] * W1[p, t1] * ...

with indirect reads that are always inside: a tap outside of the tensor reads the nearest element, at weight 0 where
zeros lie outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.dtypes import is_float, numpy_dtype
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import positions, reshape_indices
from poly.frontend.onnx_terms import Index, Term, Value, fn, index_value, literal
from poly.frontend.onnx_windows import kernel_of, spatial_names, windows

_TAPS: Final = {"nearest": 1, "linear": 2, "cubic": 4}
_FAR: Final = 1e9


@dataclass(frozen=True)
class _Axis:
    """The taps of one axis: tables of elements and weights, both over the tap and then over `ranges`, so that points
    lie side by side."""

    source: Value
    weight: Value
    taps: int
    name: str

    def at(self, point: Sequence[Index]) -> tuple[Term, Term]:
        index = (var(self.name) if self.taps > 1 else 0, *point)
        return self.source[index], self.weight[index]


def _axis(
    b: Notation, d: int, ranges: Mapping[str, int], place: Term, extent: int, mode: str, outside: str, corners: bool
) -> _Axis:
    """Tables for axis number `d`. `place` is in elements; NaN and what is far away count as outside."""
    shape, point, taps = list(ranges.values()), tuple(map(var, ranges)), _TAPS[mode]
    dtype = "f64"
    at = b.temporary(f"at{d}", shape, dtype)
    place = place.cast(dtype)
    place = fn("select", fn("le", fn("abs", place), _FAR), place, -_FAR)
    place = fn("round", place) if mode == "nearest" else place
    if outside == "reflection":
        place = _reflected(place, extent, corners)
    elif outside == "border":
        # half an element beyond the last centre still lies inside of the tensor
        edge = 0.0 if corners else 0.5
        inside = fn("and", fn("ge", place, -edge), fn("le", place, extent - 1 + edge))
        place = fn("select", inside, place, fn("min", fn("max", place, 0.0), float(extent - 1)))
    b.assign(at, ranges, place, suffix=f"_at{d}")
    low, tap = fn("floor", at[point]), var("t")
    number = low + (index_value(tap).cast(dtype) - (1.0 if mode == "cubic" else 0.0))
    source, weight = (b.temporary(f"{n}{d}", [taps, *shape], t) for n, t in (("source", "i64"), ("weight", dtype)))
    everywhere = {"t": taps, **ranges}
    inner = _reflected(number, extent, corners) if outside == "reflection" else number
    b.assign(source, everywhere, fn("min", fn("max", inner, 0.0), float(extent - 1)).cast("i64"), suffix=f"_source{d}")
    away = fn("abs", at[point] - number)
    value = literal(1.0) if mode == "nearest" else 1.0 - away if mode == "linear" else _cubic(away, -0.75)
    if outside == "zeros":
        value = fn("select", fn("and", fn("ge", number, 0.0), fn("le", number, float(extent - 1))), value, 0.0)
    b.assign(weight, everywhere, value, suffix=f"_weight{d}")
    return _Axis(source, weight, taps, f"t{d}")


def _cubic(away: Term, a: float) -> Term:
    """Keys' kernel (IEEE Trans. ASSP 29, 1981)."""
    near = ((a + 2) * away - (a + 3)) * away * away + 1.0
    far = ((away - 5.0) * away + 8.0) * away * a - 4 * a
    return fn("select", fn("le", away, 1.0), near, fn("select", fn("lt", away, 2.0), far, 0.0))


def _reflected(place: Term, extent: int, corners: bool) -> Term:
    """Mirrored at the outermost elements' centres, or at their edges, till it lies inside."""
    low, high = (0.0, extent - 1.0) if corners else (-0.5, extent - 0.5)
    span = high - low
    if span <= 0:
        return place * 0.0
    away = fn("abs", place - low)
    turns = fn("floor", away / span)
    rest = away - turns * span
    odd = fn("ne", fn("floor", turns * 0.5) * 2.0, turns)
    return fn("select", odd, high - rest, rest + low)


def _sampled(x: Value, lead: Sequence[Index | Term], axes: Sequence[_Axis], point: Sequence[Index]) -> Term:
    """The product under the sum over the taps."""
    pairs = [axis.at(point) for axis in axes]
    value = x.take(*lead, *(source for source, _ in pairs))
    return value * reduce(lambda u, v: u * v, (weight for _, weight in pairs)).cast(x.dtype)


def _over(axes: Sequence[_Axis]) -> dict[str, int]:
    return {axis.name: axis.taps for axis in axes if axis.taps > 1}


# -- the rows ------------------------------------------------------------------------------------------------------


def grid_sample(b: Notation) -> None:
    """Y[n, c, p] = X[n, c] at grid[n, p], whose last axis has the coordinates from the last axis on, in -1 .. 1."""
    x, grid = b.input(0), b.input(1)
    rank = x.rank - 2
    fits = rank >= 1 and grid.rank == x.rank and grid.shape[0] == x.shape[0] and grid.shape[-1] == rank
    b.require(fits, f"{list(x.shape)} and grid {list(grid.shape)} do not fit")
    b.supported(is_float(x.dtype) and x.size > 0, f"{x.dtype}{list(x.shape)} has no compiled form")
    corners, mode = b.int_attribute("align_corners", 0) == 1, b.string_attribute("mode", "linear")
    mode = mode.removeprefix("bi")
    outside = b.string_attribute("padding_mode", "zeros")
    b.require(mode in _TAPS, f"mode {mode!r} is unknown")
    b.require(outside in ("zeros", "border", "reflection"), f"padding_mode {outside!r} is unknown")
    y = b.output((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    names = ("n", *spatial_names(rank))
    ranges = dict(zip(names, grid.shape[:-1], strict=True))
    point = tuple(map(var, names))
    axes: list[_Axis] = []
    for d, extent in enumerate(x.shape[2:]):
        v = grid[(*point, rank - 1 - d)].cast("f64")
        place = (v + 1.0) * ((extent - 1) / 2) if corners else ((v + 1.0) * float(extent) - 1.0) * 0.5
        axes.append(_axis(b, d, ranges, place, extent, mode, outside, corners))
    everywhere = {"n": x.shape[0], "c": x.shape[1], **{n: ranges[n] for n in names[1:]}}
    term = _sampled(x, (var("n"), var("c")), axes, point)
    if over := _over(axes):
        b.reduce(y, everywhere, over, term)
    else:
        b.assign(y, everywhere, term)


def deform_conv(b: Notation) -> None:
    """A convolution whose taps are moved by `offset`, between the elements; zeros lie outside."""
    x, w, offset, bias, mask = b.input(0), b.input(1), b.input(2), b.optional(3), b.optional(4)
    rank, group, parts = x.rank - 2, b.int_attribute("group", 1), b.int_attribute("offset_group", 1)
    b.require(rank >= 1 and w.rank == offset.rank == x.rank, "needs X [N, C, ...], W [M, C / group, ...] and offsets")
    channels, kernel = x.shape[1], kernel_of(b, w)
    area = int(np.prod(kernel, dtype=np.int64))
    fits = min(group, parts) > 0 and channels == w.shape[1] * group
    fits = fits and w.shape[0] % group == 0 and channels % parts == 0
    fits = fits and offset.shape[:2] == (x.shape[0], parts * area * rank)
    b.require(fits, f"{list(x.shape)}, weights {list(w.shape)} and offsets {list(offset.shape)} do not fit together")
    out = windows(b, x.shape[2:], kernel)
    spots = {a.name: a.positions for a in out}
    b.require(offset.shape[2:] == (*spots.values(),), f"offsets {list(offset.shape)} are not one a position")
    ranges = {"n": x.shape[0], "g": parts, **{f"k{a.name}": a.kernel for a in out}, **spots}
    point, spot = tuple(map(var, ranges)), [var(a.name) for a in out]
    flat = sum((var(f"k{a.name}") * int(np.prod(kernel[d + 1 :], dtype=np.int64)) for d, a in enumerate(out)), Affine())
    axes: list[_Axis] = []
    for d, a in enumerate(out):
        tap = index_value(var(a.name) * a.stride + var(f"k{a.name}") * a.dilation - a.before).cast("f64")
        moved = offset[(var("n"), (var("g") * area + flat) * rank + d, *spot)].cast("f64")
        axes.append(_axis(b, d, ranges, tap + moved, a.elements, "linear", "zeros", True))
    each = channels // parts
    sampled = b.temporary("sampled", [ranges["n"], channels, *list(ranges.values())[2:]], x.dtype)
    term = _sampled(x, (var("n"), var("g") * each + var("c")), axes, point)
    if mask is not None:
        b.require(mask.shape == (x.shape[0], parts * area, *offset.shape[2:]), f"mask {list(mask.shape)} does not fit")
        term = term * mask[(var("n"), var("g") * area + flat, *spot)]
    place = (var("n"), var("g") * each + var("c"), *point[2:])
    b.reduce(sampled, {**ranges, "c": each}, _over(axes), term, index=place, suffix="_sampled")
    y = b.output((x.shape[0], w.shape[0], *offset.shape[2:]), x.dtype)
    outer, inner = w.shape[0] // group, w.shape[1]
    ranges = {"n": x.shape[0], "g": group, "q": outer, **spots}
    over = {"c": inner, **{f"k{a.name}": a.kernel for a in out}}
    taps = [var(f"k{a.name}") for a in out]
    m = var("g") * outer + var("q")
    value = sampled[(var("n"), var("g") * inner + var("c"), *taps, *spot)] * w[(m, var("c"), *taps)]
    b.reduce(y, ranges, over, value, index=(var("n"), m, *spot), start=None if bias is None else bias[m])


def roi_align(b: Notation) -> None:
    """Each bin of a region is the mean (or the greatest) of `sampling_ratio` x `sampling_ratio` places in it."""
    x, rois, batch = b.input(0), b.input(1), b.input(2)
    ratio = b.int_attribute("sampling_ratio", 0)
    b.require(x.rank == 4 and rois.rank == 2 and rois.shape[1] == 4, f"rois {list(rois.shape)} are not [regions, 4]")
    b.require(batch.shape == rois.shape[:1], f"batch_indices {list(batch.shape)} for rois {list(rois.shape)}")
    b.supported(ratio > 0, "samples as many places as a region is large", "set sampling_ratio")
    mode = b.string_attribute("mode", "avg").lower()
    b.require(mode in ("avg", "max"), f"mode {mode!r} is unknown")
    half = b.string_attribute("coordinate_transformation_mode", "half_pixel" if b.opset >= 16 else "output_half_pixel")
    scale = b.float_attribute("spatial_scale", 1.0)
    bins = {"h": b.int_attribute("output_height", 1), "w": b.int_attribute("output_width", 1)}
    regions = rois.shape[0]
    tables: list[tuple[Value, Value]] = []
    for d, name in enumerate(("h", "w")):
        ranges = {"i": regions, name: bins[name], "s": ratio}
        start = rois[var("i"), 1 - d].cast("f64") * scale - (0.5 if half == "half_pixel" else 0.0)
        end = rois[var("i"), 3 - d].cast("f64") * scale - (0.5 if half == "half_pixel" else 0.0)
        length = end - start if half == "half_pixel" else fn("max", end - start, 1.0)
        part = (index_value(var(name)).cast("f64") + (index_value(var("s")).cast("f64") + 0.5) / float(ratio))
        tables.append(_roi_axis(b, d, ranges, start + part * (length / float(bins[name])), x.shape[2 + d]))
    (rows, row_weight), (columns, column_weight) = tables
    u, v = (var("i"), var("h"), var("s0"), var("t0")), (var("i"), var("w"), var("s1"), var("t1"))
    table = b.temporary("batch", (regions,), batch.dtype)
    b.assign(table, {"i": regions}, batch[var("i")], suffix="_batch")
    weight = (row_weight[u] * column_weight[v]).cast(x.dtype)
    value = x.take(table[var("i")], var("c"), rows[u], columns[v]) * weight
    y = b.output((regions, x.shape[1], bins["h"], bins["w"]), x.dtype)
    ranges, over = {"i": regions, "c": x.shape[1], **bins}, {"s0": ratio, "s1": ratio, "t0": 2, "t1": 2}
    if mode == "max":
        b.reduce(y, ranges, over, value, "max")
        return
    total = b.temporary("sum", y.shape, x.dtype)
    b.reduce(total, ranges, over, value, suffix="_sum")
    b.assign(y, ranges, total[tuple(map(var, ranges))] / float(ratio * ratio))


def _roi_axis(b: Notation, d: int, ranges: Mapping[str, int], place: Term, extent: int) -> tuple[Value, Value]:
    """Two taps a place; places up to one element outside count as the border, others not at all."""
    shape, point = list(ranges.values()), tuple(map(var, ranges))
    at = b.temporary(f"at{d}", shape, "f64")
    b.assign(at, ranges, fn("select", fn("le", fn("abs", place), _FAR), place, -_FAR), suffix=f"_at{d}")
    inside = fn("and", fn("ge", at[point], -1.0), fn("le", at[point], float(extent)))
    held = fn("min", fn("max", at[point], 0.0), float(extent - 1))
    low, tap = fn("floor", held), index_value(var("t")).cast("f64")
    source, weight = (b.temporary(f"{n}{d}", [*shape, 2], t) for n, t in (("source", "i64"), ("weight", "f64")))
    everywhere = {**ranges, "t": 2}
    b.assign(source, everywhere, fn("min", low + tap, float(extent - 1)).cast("i64"), suffix=f"_source{d}")
    value = fn("select", inside, 1.0 - fn("abs", held - (low + tap)), 0.0)
    b.assign(weight, everywhere, value, suffix=f"_weight{d}")
    return source, weight


def max_unpool(b: Notation) -> None:
    """Zeros, and each element at its flat place in the tensor that the attributes give."""
    x, places = b.input(0), b.input(1)
    kernel = b.ints_attribute("kernel_shape") or ()
    strides = b.ints_attribute("strides") or (1,) * len(kernel)
    pads = b.ints_attribute("pads") or (0,) * (2 * len(kernel))
    b.require(places.shape == x.shape and len(kernel) == x.rank - 2 == len(strides), "do not fit")
    b.require(len(pads) == 2 * len(kernel), f"pads {list(pads)} do not fit {len(kernel)} spatial axes")
    inner = [
        (e - 1) * s - pads[d] - pads[d + len(kernel)] + k
        for d, (e, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    whole = (*x.shape[:2], *inner)
    given = b.optional(2)
    shape = whole if given is None else b.constant_ints(2)
    fits = len(shape) == x.rank and all(a >= e for a, e in zip(shape, whole, strict=True))
    b.require(fits and min(whole) > 0, f"output_shape {list(shape)} does not hold {list(whole)}")
    size = int(np.prod(whole, dtype=np.int64))
    flat = b.temporary("flat", (size,), x.dtype)
    b.assign(flat, {"i": size}, literal(0), suffix="_zero")
    ranges, point = positions(x.shape)
    b.assign(flat, ranges, x[tuple(point)], [places[tuple(point)]], suffix="_flat")
    y = b.output(shape, x.dtype)
    if shape != whole:
        everywhere, target = positions(shape)
        b.assign(y, everywhere, literal(0), target, suffix="_outside")
    ranges, source, target = reshape_indices((size,), whole)
    b.assign(y, ranges, flat[tuple(source)], target)


def affine_grid(b: Notation) -> None:
    """Places of an output's elements on the input's axes, from -1 to 1, moved by a matrix for each item: first those of
    a row, and what each further axis adds to it, so that a row's places lie side by side.
    """
    theta, size = b.input(0), b.constant_ints(1)
    axes = len(size) - 2
    b.require(axes in (2, 3), f"size {list(size)} has no two or three axes of places")
    fits = theta.shape == (size[0], axes, axes + 1)
    b.require(fits, f"theta {list(theta.shape)} is not {[size[0], axes, axes + 1]}")
    corners, shape = b.int_attribute("align_corners", 0) == 1, size[2:]
    b.supported(min(size) > 0 and not (corners and min(shape) < 2), "an axis has no two corners")
    y = b.output((size[0], *shape, axes), theta.dtype)
    dtype, names = numpy_dtype(theta.dtype), [f"d{d}" for d in range(axes)]
    tables: list[Term] = []
    for name, extent in zip(names, shape, strict=True):
        place = np.arange(extent) * 2 / (extent - 1) - 1 if corners else (np.arange(extent) * 2 + 1) / extent - 1
        tables.append(b.new_constant(f"place_{name}", place.astype(dtype))[var(name)])
    item, column, side = var("n"), var(names[-1]), var("c")
    row_ranges = {"n": size[0], names[-1]: shape[-1], "c": axes}
    rows = [b.temporary(f"row{k}", tuple(row_ranges.values()), theta.dtype) for k in range(axes)]
    first = theta[item, side, axes] + theta[item, side, 0] * tables[-1]
    for k, row in enumerate(rows):
        b.assign(row, row_ranges, theta[item, side, k] if k else first, suffix=f"_row{k}")
    added = (row[item, column, side] * at for row, at in zip(rows[1:], tables[-2::-1], strict=True))
    value = reduce(lambda p, q: p + q, added, rows[0][item, column, side])
    b.assign(y, {"n": size[0], **dict(zip(names, shape, strict=True)), "c": axes}, value)


ROWS: Final[dict[str, Row]] = {
    "AffineGrid": affine_grid,
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "MaxUnpool": max_unpool,
    "RoiAlign": roi_align,
}
