"""Rows of the operator table that find or place elements: positions of extremes, prefixes, scatters, one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.dtypes import is_float
from poly.frontend.onnx_indexing import wrapped_indices
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_reductions import softmax_axes
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value, fn, index_value, literal, sum_dtype, summand
from poly.frontend.onnx_top_k import top_k

_BEYOND: Final = {"i32": 2**31 - 1, "i64": 2**62}


# -- extremes ------------------------------------------------------------------------------------------------------


def extreme_position(combiner: str) -> Row:
    """ArgMax and ArgMin: the extreme, then the least (`select_last_index`: greatest) place that has it."""

    def row(b: Notation) -> None:
        x = b.input(0)
        axis = b.axis(b.int_attribute("axis", 0), x.rank)
        keep = b.int_attribute("keepdims", 1) == 1
        last = b.int_attribute("select_last_index", 0) == 1
        y = b.output([1 if k == axis else e for k, e in enumerate(x.shape) if keep or k != axis], "i64")
        place: list[Index] = [0 if k == axis else var(f"i{k}") for k in range(x.rank) if keep or k != axis]
        ranges = {f"i{k}": e for k, e in enumerate(x.shape) if k != axis}
        first = b.temporary("first", list(ranges.values()), _place_dtype(x, axis))
        outer = tuple(map(var, ranges))
        _position(b, first, outer, x, axis, combiner, last=last)
        b.assign(y, ranges, first[outer].cast("i64"), index=place, suffix="_y")

    return row


def _place_dtype(x: Value, axis: int) -> str:
    """Of positions along an axis: as wide as elements mostly are, so that as many fit a vector."""
    return "i32" if x.shape[axis] < _BEYOND["i32"] else "i64"


def _position(
    b: Notation, y: Value, place: Sequence[Index], x: Value, axis: int, combiner: str, *, last: bool = False
) -> None:
    if y.size == 0:
        return
    b.require(x.shape[axis] > 0, f"{list(x.shape)} has no elements along axis {axis}")
    ranges, point = positions(x.shape)
    over = {f"i{axis}": ranges.pop(f"i{axis}")}
    outer = tuple(map(var, ranges))
    best = b.temporary("best", list(ranges.values()), x.dtype)
    value = x[tuple(point)]
    b.reduce(best, ranges, over, value, combiner, suffix="_best")
    found = fn("eq", value, best[outer])
    if is_float(x.dtype):
        found = fn("or", found, fn("ne", value, value))  # a NaN is the extreme, as in numpy
    number = fn("select", found, index_value(point[axis]).cast(y.dtype), -1 if last else _BEYOND[y.dtype])
    b.reduce(y, ranges, over, number, "max" if last else "min", index=place)


def hardmax(b: Notation) -> None:
    """1 at the first maximum along the axis, 0 elsewhere."""
    x = b.input(0)
    axes = softmax_axes(b, x)
    if x.size == 0:
        b.output(x.shape, x.dtype)
        return
    if len(axes) != 1:
        _hardmax_of_several(b, x, axes)
        return
    axis = axes[0]
    ranges, point = positions(x.shape)
    outer = [p for k, p in enumerate(point) if k != axis]
    first = b.temporary("first", [e for k, e in enumerate(x.shape) if k != axis], _place_dtype(x, axis))
    _position(b, first, outer, x, axis, "max")
    y = b.output(x.shape, x.dtype)
    at = index_value(point[axis]).cast(first.dtype)
    b.assign(y, ranges, fn("eq", at, first[tuple(outer)]).cast(x.dtype), suffix="_y")


def _hardmax_of_several(b: Notation, x: Value, axes: Sequence[int]) -> None:
    """Over the last axes taken as one: first[o] min= flat(i) where x[o, i] is the largest."""
    y = b.output(x.shape, x.dtype)
    ranges, point = positions(x.shape)
    outer = {name: e for k, (name, e) in enumerate(ranges.items()) if k not in axes}
    over = {name: e for k, (name, e) in enumerate(ranges.items()) if k in axes}
    place, count = tuple(map(var, outer)), prod(over.values())
    flat = index_value(sum((point[k] * prod(x.shape[k + 1 :]) for k in axes), Affine()))
    largest, first = (b.temporary(n, tuple(outer.values()), d) for n, d in (("largest", x.dtype), ("first", "i64")))
    b.reduce(largest, outer, over, x[tuple(point)], "max", suffix="_max")
    candidate = fn("select", fn("eq", x[tuple(point)], largest[place]), flat, count)
    b.reduce(first, outer, over, candidate, "min", suffix="_first")
    b.assign(y, ranges, fn("eq", flat, first[place]).cast(x.dtype), suffix="_y")


# -- prefixes ------------------------------------------------------------------------------------------------------


def prefix(operator: str, neutral: int) -> Row:
    """CumSum and CumProd: each element from the one before it, of 16-bit floats in f32."""

    def row(b: Notation) -> None:
        x = b.input(0)
        axis = b.axis(b.constant_ints(1)[0], x.rank)
        exclusive, backwards = b.int_attribute("exclusive", 0) == 1, b.int_attribute("reverse", 0) == 1
        y = b.output(x.shape, x.dtype)
        if x.size == 0:
            return
        wide = sum_dtype(x.dtype)
        total = y if wide == x.dtype else b.temporary("wide", x.shape, wide)
        extent = x.shape[axis]
        ranges, point = positions(x.shape)

        def at(index: Index) -> tuple[Index, ...]:
            placed = extent - 1 - Affine.of(index) if backwards else index
            return tuple(placed if k == axis else p for k, p in enumerate(point))

        outer = {name: e for name, e in ranges.items() if name != f"i{axis}"}
        start = literal(float(neutral) if is_float(x.dtype) else neutral)
        b.assign(total, outer, start if exclusive else summand(x, at(0)), at(0), suffix="_first")
        inner = {**ranges, f"i{axis}": extent - 1}
        i = point[axis]
        step = summand(x, at(i if exclusive else i + 1))
        b.assign(total, inner, fn(operator, total[at(i)], step), at(i + 1), suffix="" if total is y else "_wide")
        if total is not y:
            b.assign(y, ranges, total[tuple(point)].cast(x.dtype), point)

    return row


# -- placing elements ----------------------------------------------------------------------------------------------

_SCATTERS: Final = {"none": None, "add": "+", "mul": "*", "max": "max", "min": "min"}


def _scatter_combiner(b: Notation) -> str | None:
    name = b.string_attribute("reduction", "none")
    b.require(name in _SCATTERS, f"reduction {name!r} is unknown")
    return _SCATTERS[name]


def scatter_elements(b: Notation) -> None:
    """A copy of the data, then the updates over it in their order."""
    x, indices, updates = b.input(0), b.input(1), b.input(2)
    axis = b.axis(b.int_attribute("axis", 0), x.rank)
    fits = indices.shape == updates.shape and indices.rank == x.rank
    b.require(fits, f"indices {list(indices.shape)} and updates {list(updates.shape)} do not fit {list(x.shape)}")
    inside = all(i <= e for k, (i, e) in enumerate(zip(indices.shape, x.shape, strict=True)) if k != axis)
    b.require(inside, f"indices {list(indices.shape)} do not lie inside {list(x.shape)}")
    table = wrapped_indices(b, indices, x.shape[axis])
    y = _copied(b, x)
    ranges, point = positions(indices.shape)
    index = [table[tuple(point)] if k == axis else p for k, p in enumerate(point)]
    b.assign(y, ranges, updates[tuple(point)], index, suffix="_update", combiner=_scatter_combiner(b))


def scatter_nd(b: Notation) -> None:
    """A copy of the data, then a slice for each index tuple, in order."""
    x, indices, updates = b.input(0), b.input(1), b.input(2)
    depth = _depth(b, indices, x.rank)
    lead = indices.shape[:-1]
    b.require(updates.shape == lead + x.shape[depth:], f"updates {list(updates.shape)} do not fit {list(x.shape)}")
    table = _wrapped_tuples(b, indices, x.shape)
    y = _copied(b, x)
    ranges, point = positions(updates.shape)
    tuples = [table[(*point[: len(lead)], k)] for k in range(depth)]
    b.assign(y, ranges, updates[tuple(point)], [*tuples, *point[len(lead) :]],
             suffix="_update", combiner=_scatter_combiner(b))  # fmt: skip


def tensor_scatter(b: Notation) -> None:
    """A cache with new entries along `axis`, from each sequence's own place on; `circular` wraps."""
    cache, update, start = b.input(0), b.input(1), b.optional(2)
    axis = b.axis(b.int_attribute("axis", -2), cache.rank)
    mode = b.string_attribute("mode", "linear")
    rest = [(p, q) for k, (p, q) in enumerate(zip(cache.shape, update.shape, strict=False)) if k != axis]
    fits = update.rank == cache.rank and axis > 0 and all(p == q for p, q in rest)
    b.require(fits, f"{list(cache.shape)} and update {list(update.shape)} do not fit along axis {axis}")
    b.require(start is None or start.shape == cache.shape[:1], "write_indices are not one a sequence")
    b.require(mode in ("linear", "circular"), f"mode {mode!r} is unknown")
    extent, steps = cache.shape[axis], update.shape[axis]
    b.require(steps <= extent, f"{steps} steps do not fit into {extent}")
    y = _copied(b, cache)
    table = b.temporary("place", (cache.shape[0], steps), "i64")
    n, s = b.iterators("n", "s")
    place = index_value(s) if start is None else start[n].cast("i64") + index_value(s)
    if mode == "circular":
        place = place - fn("trunc_div", place, extent) * extent
        place = fn("select", fn("lt", place, 0), place + extent, place)
    b.assign(table, {"n": cache.shape[0], "s": steps}, place, suffix="_place")
    ranges, point = positions(update.shape)
    index = [table[point[0], point[axis]] if k == axis else p for k, p in enumerate(point)]
    b.assign(y, ranges, update[tuple(point)], index, suffix="_update")


def gather_nd(b: Notation) -> None:
    """A slice for each index tuple; the first `batch_dims` axes go along."""
    x, indices = b.input(0), b.input(1)
    batch = b.int_attribute("batch_dims", 0)
    b.require(x.shape[:batch] == indices.shape[:batch], f"{list(x.shape)} and {list(indices.shape)} share no batch")
    depth = _depth(b, indices, x.rank - batch)
    table = _wrapped_tuples(b, indices, x.shape[batch:])
    lead = indices.shape[:-1]
    y = b.output(lead + x.shape[batch + depth :], x.dtype)
    ranges, point = positions(y.shape)
    tuples = [table[(*point[: len(lead)], k)] for k in range(depth)]
    b.assign(y, ranges, x.take(*point[:batch], *tuples, *point[len(lead) :]))


def _copied(b: Notation, x: Value) -> Value:
    y = b.output(x.shape, x.dtype)
    ranges, point = positions(x.shape)
    b.assign(y, ranges, x[tuple(point)], suffix="_copy")
    return y


def _depth(b: Notation, indices: Value, rank: int) -> int:
    b.require(indices.rank > 0 and 0 < indices.shape[-1] <= rank, f"indices {list(indices.shape)} do not fit")
    return indices.shape[-1]


def _wrapped_tuples(b: Notation, indices: Value, extents: Sequence[int]) -> Value:
    """Index tuples with the negative ones counted from the end of their axis."""
    limits = np.array(extents[: indices.shape[-1]], np.int64)
    if indices.array is not None:
        values = indices.array.astype(np.int64)
        for extent, index in zip(limits.tolist(), values.reshape(-1, len(limits)).T, strict=True):
            inside = bool(((-extent <= index) & (index < extent)).all())
            b.require(inside, f"an index is outside of -{extent} .. {extent - 1}")
        return b.new_constant("index", np.where(values < 0, values + limits, values))
    table = b.temporary("index", indices.shape, indices.dtype)
    ranges, point = positions(indices.shape)
    extent = b.new_constant("extent", limits.astype("int32" if indices.dtype == "i32" else "int64"))
    v = indices[tuple(point)]
    b.assign(table, ranges, fn("select", fn("lt", v, 0), v + extent[point[-1]], v), suffix="_index")
    return table


def one_hot(b: Notation) -> None:
    """values[1] where the new axis counts to the index (negative ones from the end), else values[0]."""
    indices, values = b.input(0), b.input(2)
    depth = b.constant_ints(1)[0]
    axis = b.axis(b.int_attribute("axis", -1), indices.rank + 1)
    b.require(values.shape == (2,), "values are not [off, on]")
    y = b.output((*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype)
    ranges, point = positions(y.shape)
    v: Term = indices[(*point[:axis], *point[axis + 1 :])].cast("i64")
    at = index_value(point[axis])
    hit = fn("or", fn("eq", v, at), fn("eq", v + depth, at))
    b.assign(y, ranges, fn("select", hit, values[1], values[0]))


def lp_normalization(b: Notation) -> None:
    """Each vector along the axis over its norm; vectors of zeros stay."""
    x, p = b.input(0), b.int_attribute("p", 2)
    axis = b.axis(b.int_attribute("axis", -1), x.rank)
    b.require(p in (1, 2), f"p = {p} is neither 1 nor 2")
    ranges, point = positions(x.shape)
    outer = {name: e for name, e in ranges.items() if name != f"i{axis}"}
    v = x[tuple(point)]
    norm = b.temporary("norm", list(outer.values()), x.dtype)
    b.reduce(norm, outer, {f"i{axis}": x.shape[axis]}, v * v if p == 2 else fn("abs", v), suffix="_norm")
    size = norm[tuple(map(var, outer))]
    size = fn("sqrt", size) if p == 2 else size
    y = b.output(x.shape, x.dtype)
    b.assign(y, ranges, v / fn("select", fn("eq", size, 0.0), 1.0, size))


def reverse_sequence(b: Notation) -> None:
    """The first lengths[n] steps of each sequence backwards, the rest as they are."""
    x, lengths = b.input(0), b.input(1)
    time, batch = b.int_attribute("time_axis", 0), b.int_attribute("batch_axis", 1)
    b.require({time, batch} == {0, 1} and x.rank >= 2, f"axes {time} and {batch} are not 0 and 1")
    b.require(lengths.shape == (x.shape[batch],), f"sequence_lens is not [{x.shape[batch]}]")
    table = b.temporary("source", x.shape[:2], "i64")
    ranges, point = positions(x.shape[:2])
    length, step = lengths[point[batch]].cast("i64"), index_value(point[time])
    value = fn("select", fn("lt", step, length), length - 1 - step, step)
    b.assign(table, ranges, value, suffix="_source")
    y = b.output(x.shape, x.dtype)
    everywhere, point = positions(x.shape)
    source = table[point[0], point[1]]
    b.assign(y, everywhere, x.take(*(source if k == time else p for k, p in enumerate(point))))


ROWS: Final[dict[str, Row]] = {
    "ArgMax": extreme_position("max"),
    "ArgMin": extreme_position("min"),
    "CumProd": prefix("mul", 1),
    "CumSum": prefix("add", 0),
    "GatherND": gather_nd,
    "Hardmax": hardmax,
    "LpNormalization": lp_normalization,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "TopK": top_k,
}
