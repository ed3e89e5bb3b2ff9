"""Rows of the operator table that take parts of tensors or put them together: slices, gathers, paddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from poly.affine import Constraint, var
from poly.expr import Const
from poly.frontend.onnx_elementwise import onnx_dtype
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Shape, Term, Value, fn, index_value, literal, python_scalar

MOST_PLACES: Final = 1 << 22  # of an axis that is looked at place by place


# -- parts ---------------------------------------------------------------------------------------------------------


def concat(b: Notation) -> None:
    values = b.inputs
    axis = b.axis(b.int_attribute("axis", 1 if b.opset < 4 else None), values[0].rank)
    same = all(v.rank == values[0].rank and _but(v.shape, axis) == _but(values[0].shape, axis) for v in values)
    b.require(same, f"shapes {', '.join(str(list(v.shape)) for v in values)} differ outside of axis {axis}")
    if len(values) == 1:
        b.alias(values[0])
        return
    total = sum(v.shape[axis] for v in values)
    y = b.output((*values[0].shape[:axis], total, *values[0].shape[axis + 1 :]), values[0].dtype)
    offset = 0
    for k, v in enumerate(values):
        ranges, point = positions(v.shape)
        b.assign(
            y, ranges, v[tuple(point)], [p + offset if d == axis else p for d, p in enumerate(point)], suffix=f"_{k}"
        )
        offset += v.shape[axis]


def _but(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def split(b: Notation) -> None:
    x = b.input(0)
    axis = b.axis(b.int_attribute("axis", 0), x.rank)
    sizes = b.ints_attribute("split") if b.opset < 13 else (None if b.optional(1) is None else b.constant_ints(1))
    if sizes is None:
        count = b.int_attribute("num_outputs", len(b.call.outputs))
        most = max(x.shape[axis], len(b.call.outputs))
        b.require(0 < count <= most, f"num_outputs {count} is not within 1 .. {most}")
        each = -(-x.shape[axis] // count)
        sizes = tuple(min(each, x.shape[axis] - k * each) for k in range(count))
        b.require(b.opset >= 18 or x.shape[axis] % count == 0, f"{x.shape[axis]} is not a multiple of {count} outputs")
    b.require(sum(sizes) == x.shape[axis] and min(sizes) >= 0, f"parts {list(sizes)} do not add up to {x.shape[axis]}")
    b.require(len(sizes) >= len(b.call.outputs), f"{len(b.call.outputs)} outputs for {len(sizes)} parts")
    offset = 0
    for k, size in enumerate(sizes):
        if b.wants(k):
            y = b.output((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype, k)
            ranges, point = positions(y.shape)
            source = tuple(p + offset if d == axis else p for d, p in enumerate(point))
            b.assign(y, ranges, x[source], suffix=f"_{k}")
        offset += size


def slice_(b: Notation) -> None:
    x = b.input(0)
    if b.opset < 10:
        starts, ends, axes = b.ints_attribute("starts"), b.ints_attribute("ends"), b.ints_attribute("axes")
        steps = None
    else:
        starts, ends = b.constant_ints(1), b.constant_ints(2)
        axes = None if b.optional(3) is None else b.constant_ints(3)
        steps = None if b.optional(4) is None else b.constant_ints(4)
    if starts is None or ends is None:
        raise b.fail("has no starts or ends")
    axes = b.axes(range(len(starts)) if axes is None else axes, x.rank)
    steps = (1,) * len(starts) if steps is None else steps
    b.require(len(starts) == len(ends) == len(axes) == len(steps), "starts, ends, axes and steps differ in length")
    b.require(all(steps), "a step is 0")
    cut = {
        k: range(x.shape[k])[slice(*bounds)] for k, bounds in zip(axes, map(_bounds, starts, ends, steps), strict=True)
    }
    if all(r == range(x.shape[k]) for k, r in cut.items()):
        b.alias(x)
        return
    y = b.output([len(cut[k]) if k in cut else e for k, e in enumerate(x.shape)], x.dtype)
    ranges, point = positions(y.shape)
    b.assign(y, ranges, x[tuple(p * cut[k].step + cut[k].start if k in cut else p for k, p in enumerate(point))])


def _bounds(start: int, end: int, step: int) -> tuple[int, int | None, int]:
    """Python's slice counts like ONNX's, but for an end that lies before the first element."""
    return start, (None if step < 0 and end < -(2**31) + 1 else end), step


# -- indirection ---------------------------------------------------------------------------------------------------


def gather(b: Notation) -> None:
    """Constant indices in an arithmetic progression make an affine read; others make an indirect one."""
    x, indices = b.input(0), b.input(1)
    _gathered(b, x, indices, b.axis(b.int_attribute("axis", 0), x.rank))


def _gathered(b: Notation, x: Value, indices: Value, axis: int) -> None:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    progression = _progression(b, indices, x.shape[axis])
    y = b.output(shape, x.dtype)
    ranges, point = positions(shape)
    before, middle, after = point[:axis], point[axis : axis + indices.rank], point[axis + indices.rank :]
    if progression is not None:
        start, step = progression
        b.assign(y, ranges, x[(*before, (middle[0] * step + start) if middle else start, *after)])
        return
    table = wrapped_indices(b, indices, x.shape[axis])
    b.assign(y, ranges, x.take(*before, table[tuple(middle)], *after))


def compress(b: Notation) -> None:
    """The slices (without `axis`: the elements in row-major order) whose place in a constant condition is true."""
    x, condition = b.input(0), b.input(1)
    b.supported(condition.array is not None, "the extent depends on a condition that is only known at run time")
    assert condition.array is not None
    b.require(condition.rank == 1, f"condition {list(condition.shape)} is not a vector")
    given = b.has("axis")
    axis = b.axis(b.int_attribute("axis"), x.rank) if given else 0
    extent = x.shape[axis] if given else x.size
    kept = np.flatnonzero(condition.array)
    b.require(not (kept >= extent).any(), f"the condition is true beyond the {extent} places there are")
    if given or x.rank == 1:
        _gathered(b, x, Value("kept", kept.shape, "i64", kept), axis)
        return
    y = b.output(kept.shape, x.dtype)
    ranges, (i,) = positions(kept.shape)
    places = np.unravel_index(kept, x.shape) if x.rank else ()
    tables = [b.new_constant(f"kept{k}", at) for k, at in enumerate(places)]
    b.assign(y, ranges, x.take(*(table[i] for table in tables)))


def _progression(b: Notation, indices: Value, extent: int) -> tuple[int, int] | None:
    if indices.array is None or indices.rank > 1 or indices.size == 0:
        return None
    values = _wrapped(b, indices, extent)
    if indices.rank == 0 or len(values) == 1:
        return values[0], 0
    step = values[1] - values[0]
    return (values[0], step) if values == [values[0] + k * step for k in range(len(values))] else None


def _wrapped(b: Notation, indices: Value, extent: int) -> list[int]:
    assert indices.array is not None
    values = [int(v) for v in indices.array.reshape(-1)]
    b.require(all(-extent <= v < extent for v in values), f"an index is outside of -{extent} .. {extent - 1}")
    return [v % extent for v in values]


def wrapped_indices(b: Notation, indices: Value, extent: int) -> Value:
    """Indices with the negative ones counted from the end: a constant, or a temporary computed by a statement."""
    if indices.array is not None:
        values = np.array(_wrapped(b, indices, extent), indices.array.dtype).reshape(indices.array.shape)
        return b.new_constant("index", values)
    table = b.temporary("index", indices.shape, indices.dtype)
    ranges, point = positions(indices.shape)
    v = indices[tuple(point)]
    b.assign(table, ranges, fn("select", fn("lt", v, 0), v + extent, v), suffix="_index")
    return table


def gather_elements(b: Notation) -> None:
    x, indices = b.input(0), b.input(1)
    axis = b.axis(b.int_attribute("axis", 0), x.rank)
    fits = indices.rank == x.rank and all(i <= e for k, (i, e) in enumerate(zip(indices.shape, x.shape)) if k != axis)  # noqa: B905
    b.require(fits, f"indices {list(indices.shape)} do not lie inside {list(x.shape)}")
    table = wrapped_indices(b, indices, x.shape[axis])
    y = b.output(indices.shape, x.dtype)
    ranges, point = positions(indices.shape)
    b.assign(y, ranges, x.take(*point[:axis], table[tuple(point)], *point[axis + 1 :]))


# -- larger shapes -------------------------------------------------------------------------------------------------


def expand(b: Notation) -> None:
    x = b.input(0)
    shape = b.broadcast(x.shape, b.constant_ints(1))
    if shape == x.shape:
        b.alias(x)
        return
    y = b.output(shape, x.dtype)
    ranges, point = positions(shape)
    b.assign(y, ranges, x.aligned(point, shape))


def tile(b: Notation) -> None:
    """One iterator for the copy and one for the place in it, an axis: affine on both sides."""
    x = b.input(0)
    b.require(b.opset >= 6, "opset 1 tiles one axis only", "convert the model to opset 6 or later")
    repeats = b.constant_ints(1)
    b.require(
        len(repeats) == x.rank and min(repeats, default=0) >= 0, f"repeats {list(repeats)} do not fit rank {x.rank}"
    )
    y = b.output([e * r for e, r in zip(x.shape, repeats, strict=True)], x.dtype)
    ranges, point = positions(x.shape)
    copies = {f"k{d}": r for d, r in enumerate(repeats) if r != 1}
    place = [
        p + var(f"k{d}") * e if f"k{d}" in copies else p for d, (p, e) in enumerate(zip(point, x.shape, strict=True))
    ]
    b.assign(y, {**copies, **ranges}, x[tuple(point)], place)


def pad(b: Notation) -> None:
    x = b.input(0)
    if b.opset < 11:
        pads = b.ints_attribute("pads") or b.ints_attribute("paddings")
        fill: Term = literal(b.float_attribute("value", 0.0))
    else:
        pads = b.constant_ints(1)
        given = b.optional(2)
        scalar = given is not None and given.array is None
        fill = literal(0) if given is None else given[() if given.rank == 0 else (0,)] if scalar else _literal(given)
    axes = b.axes(b.constant_ints(3), x.rank) if b.optional(3) is not None else tuple(range(x.rank))
    if pads is None or len(pads) != 2 * len(axes):
        raise b.fail(f"pads {pads} do not fit {len(axes)} axes")
    before, after = [0] * x.rank, [0] * x.rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    mode = b.string_attribute("mode", "constant")
    b.require(mode in ("constant", "edge", "reflect", "wrap"), f"mode {mode!r} is unknown")
    y = b.output([e + p + q for e, p, q in zip(x.shape, before, after, strict=True)], x.dtype)
    if mode == "constant":
        _pad_constant(b, x, y, before, fill)
    else:
        _pad_copied(b, x, y, before, mode)


def _literal(value: Value) -> Term:
    assert value.array is not None
    return literal(python_scalar(value.array))


def _pad_constant(b: Notation, x: Value, y: Value, before: Sequence[int], fill: Term) -> None:
    ranges, point = positions(y.shape)
    source = [p - f for p, f in zip(point, before, strict=True)]
    if isinstance(fill.body, Const):
        value = fill.body.value
        b.assign(y, ranges, b.padded(x, source, int(value) if x.dtype[0] in "iu" else value, ranges))
        return
    # A fill that is only known at run time: all of it first, the input over it.
    b.assign(y, ranges, fill, suffix="_fill")
    inner, place = positions(x.shape)
    target = [p + f for p, f in zip(place, before, strict=True)]
    inside = [c for t, e in zip(target, y.shape, strict=True) for c in (Constraint(t), Constraint(e - 1 - t))]
    b.assign(y, inner, x[tuple(place)], target, where=inside)


def _pad_copied(b: Notation, x: Value, y: Value, before: Sequence[int], mode: str) -> None:
    """Each axis falls into runs where the source is affine in the place; one statement a product of runs."""
    runs = [_runs(b, e, f, n, mode) for e, f, n in zip(x.shape, before, y.shape, strict=True)]
    for k, combination in enumerate(product(*runs)):
        ranges, point = positions([length for _, length, _, _ in combination])
        place = [p + first for p, (first, _, _, _) in zip(point, combination, strict=True)]
        source = [p * step + start for p, (_, _, start, step) in zip(point, combination, strict=True)]
        b.assign(y, ranges, x[tuple(source)], place, suffix=f"_{k}")


def _runs(b: Notation, extent: int, before: int, total: int, mode: str) -> list[tuple[int, int, int, int]]:
    """(first place, length, first source, step): maximal runs of an axis with a constant step."""
    b.require(extent > 0 or total == 0, f"mode {mode!r} cannot pad an empty axis")
    b.supported(total <= MOST_PLACES, f"mode {mode!r} on an axis of {total}")
    period = max(2 * (extent - 1), 1)
    found: list[tuple[int, int, int, int]] = []
    for place in range(total):
        at = place - before
        if mode == "edge":
            source = min(max(at, 0), extent - 1)
        elif mode == "wrap":
            source = at % extent
        else:
            source = at % period if at % period < extent else period - at % period
        if found:
            first, length, start, step = found[-1]
            if length == 1 or source == start + length * step:
                found[-1] = (first, length + 1, start, source - start if length == 1 else step)
                continue
        found.append((place, 1, source, 0))
    return found


def trilu(b: Notation) -> None:
    """A triangle of the last two axes, the rest 0."""
    x = b.input(0)
    shift = 0 if b.optional(1) is None else b.constant_ints(1)[0]
    upper = b.int_attribute("upper", 1) == 1
    b.require(x.rank >= 2, f"rank {x.rank} is below 2")
    y = b.output(x.shape, x.dtype)
    ranges, point = positions(x.shape)
    row, column = index_value(point[-2] + shift), index_value(point[-1])
    keep = fn("ge" if upper else "le", column, row)
    zero = False if x.dtype == "bool" else 0
    b.assign(y, ranges, fn("select", keep, x[tuple(point)], zero))


def eye_like(b: Notation) -> None:
    """1 on the diagonal number k of a matrix, 0 elsewhere."""
    x, number, shift = b.input(0), b.int_attribute("dtype", 0), b.int_attribute("k", 0)
    b.require(x.rank == 2, f"{list(x.shape)} is no matrix")
    y = b.output(x.shape, onnx_dtype(number) if number else x.dtype)
    ranges, (row, column) = positions(x.shape)
    b.assign(y, ranges, fn("eq", index_value(column), index_value(row + shift)).cast(y.dtype))


def range_(b: Notation) -> None:
    """start + i * delta, as long as that is before the limit; the number of elements has to be known."""
    start, limit, delta = (np.asarray(b.constant(k)).astype(np.float64).reshape(-1)[0] for k in range(3))
    b.require(delta != 0, "delta is 0")
    dtype = b.input(0).dtype
    y = b.output((max(int(np.ceil((limit - start) / delta)), 0),), dtype)
    i = index_value(var("i"))
    b.assign(y, {"i": y.size}, b.input(0)[()] + (i if dtype == "i64" else i.cast(dtype)) * b.input(2)[()])


def constant_of_shape(b: Notation) -> None:
    """It folds where the shape is known, which it has to be."""
    b.constant(0)


ROWS: Final[dict[str, Row]] = {
    "Compress": compress,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "EyeLike": eye_like,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Pad": pad,
    "Range": range_,
    "Slice": slice_,
    "Split": split,
    "Tile": tile,
    "Trilu": trilu,
}
