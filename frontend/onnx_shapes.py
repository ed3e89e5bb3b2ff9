"""Rows of the operator table that move elements: reshapes, transpositions, slices, gathers, paddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import numpy as np

from poly.affine import Affine, Constraint, var
from poly.frontend.onnx_notation import Notation, Shape, Term, Value, fn, index_value, literal, python_scalar

Row = Callable[[Notation], None]


def positions(shape: Sequence[int]) -> tuple[dict[str, int], list[Affine]]:
    """Iterators i0, i1, ... over a box, and themselves as subscripts."""
    ranges = {f"i{k}": extent for k, extent in enumerate(shape)}
    return ranges, [var(i) for i in ranges]


# -- the same elements in another shape ----------------------------------------------------------------------------


def reshape_indices(source: Shape, target: Shape) -> tuple[dict[str, int], list[Affine], list[Affine]]:
    """Ranges and the subscripts of both sides of a copy that keeps the row-major order.

    Both shapes number the elements in mixed radix. Where the strides of both form one chain of divisors, the iterators
    are the digits of the common refinement and both sides are affine; elsewhere they are the target's own axes, and
    the source's subscripts have floors and remainders by literals.
    """
    cuts = [_suffix_products(source), _suffix_products(target)]
    common = sorted(set(cuts[0]) & set(cuts[1]))
    digits: list[tuple[int, int]] = []  # (stride, extent), inner first
    split_by_target: set[int] = set()
    for low, high in zip(common, common[1:], strict=False):
        inside = sorted({c for cut in cuts for c in cut if low <= c <= high})
        if any(b % a for a, b in zip(inside, inside[1:], strict=False)):
            inside = sorted(c for c in cuts[1] if low <= c <= high)
            split_by_target.add(low)
        digits += [(a, b // a) for a, b in zip(inside, inside[1:], strict=False)]
    names = {stride: f"i{k}" for k, (stride, _) in enumerate(reversed(digits))}
    ranges = {names[stride]: extent for stride, extent in reversed(digits)}

    def subscripts(shape: Shape) -> list[Affine]:
        found: list[Affine] = []
        for k, extent in enumerate(shape):
            stride = int(np.prod(shape[k + 1 :], dtype=np.int64))
            found.append(Affine() if extent == 1 else _digits_of(stride, extent))
        return found

    def _digits_of(stride: int, extent: int) -> Affine:
        low = max(c for c in common if c <= stride)
        if low in split_by_target:
            high = min(c for c in common if c > stride)
            parts = [var(names[s]) * (s // low) for s, _ in digits if low <= s < high]
            whole = sum(parts, Affine()) // (stride // low)
            return whole % extent if stride * extent < high else whole
        parts = [var(names[s]) * (s // stride) for s, _ in digits if stride <= s < stride * extent]
        return sum(parts, Affine())

    return ranges, subscripts(source), subscripts(target)


def _suffix_products(shape: Shape) -> list[int]:
    found = [1]
    for extent in reversed(shape):
        if extent != 1:
            found.append(found[-1] * extent)
    return found


def reshape_to(b: Notation, x: Value, shape: Sequence[int]) -> None:
    """The output is `x` in another shape of the same size."""
    target = tuple(int(e) for e in shape)
    size = int(np.prod(target, dtype=np.int64))
    b.require(size == x.size, f"{list(x.shape)} has {x.size} elements, the new shape {list(target)} has {size}")
    if target == x.shape:
        b.alias(x)
        return
    y = b.output(target, x.dtype)
    if x.size == 0:
        return
    ranges, source, place = reshape_indices(x.shape, target)
    b.assign(y, ranges, x[tuple(source)], place)


def reshape(b: Notation) -> None:
    x = b.input(0)
    wanted = b.ints_attribute("shape") if b.opset < 5 else b.constant_ints(1)
    if wanted is None:
        raise b.fail("has no shape")
    keep_zero = b.int_attribute("allowzero", 0) == 1
    b.require(keep_zero or all(e != 0 or k < x.rank for k, e in enumerate(wanted)), f"cannot copy an extent for {list(wanted)}")
    shape = [x.shape[k] if e == 0 and not keep_zero else e for k, e in enumerate(wanted)]
    b.require(shape.count(-1) <= 1 and min(shape, default=0) >= -1, f"shape {list(wanted)} is not one")
    if -1 in shape:
        rest = -int(np.prod(shape, dtype=np.int64))
        b.require(rest > 0 and x.size % rest == 0, f"{x.size} elements do not fill the shape {list(wanted)}")
        shape[shape.index(-1)] = x.size // rest
    reshape_to(b, x, shape)


def flatten(b: Notation) -> None:
    x = b.input(0)
    axis = b.int_attribute("axis", 1)
    b.require(-x.rank <= axis <= x.rank, f"axis {axis} is outside of rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    reshape_to(b, x, [int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64))])


def given_axes(b: Notation, since: int, position: int = 1) -> tuple[int, ...] | None:
    """The axes of an operator that took them as an attribute before opset `since` and as an input from then on."""
    if b.opset < since:
        return b.ints_attribute("axes")
    return None if b.optional(position) is None else b.constant_ints(position)


def squeeze(b: Notation) -> None:
    x = b.input(0)
    given = given_axes(b, 13)
    axes = [k for k, e in enumerate(x.shape) if e == 1] if given is None else b.axes(given, x.rank)
    b.require(all(x.shape[k] == 1 for k in axes), f"axes {list(axes)} of {list(x.shape)} are not all 1")
    reshape_to(b, x, [e for k, e in enumerate(x.shape) if k not in axes])


def unsqueeze(b: Notation) -> None:
    x = b.input(0)
    given = given_axes(b, 13)
    if given is None:
        raise b.fail("has no axes")
    axes = b.axes(given, x.rank + len(given))
    rest = iter(x.shape)
    reshape_to(b, x, [1 if k in axes else next(rest) for k in range(x.rank + len(axes))])


# -- permutations --------------------------------------------------------------------------------------------------


def transpose(b: Notation) -> None:
    x = b.input(0)
    order = b.ints_attribute("perm") or tuple(reversed(range(x.rank)))
    b.require(sorted(order) == list(range(x.rank)), f"perm {list(order)} is not a permutation of rank {x.rank}")
    if list(order) == list(range(x.rank)):
        b.alias(x)
        return
    y = b.output([x.shape[k] for k in order], x.dtype)
    ranges, point = positions(y.shape)
    b.assign(y, ranges, x[tuple(point[order.index(k)] for k in range(x.rank))])


def depth_to_space(b: Notation) -> None:
    x, size = b.input(0), b.int_attribute("blocksize")
    b.require(x.rank == 4 and size > 0 and x.shape[1] % size**2 == 0, f"{list(x.shape)} has no blocks of {size}x{size}")
    n, c, h, w = x.shape[0], x.shape[1] // size**2, x.shape[2], x.shape[3]
    y = b.output((n, c, h * size, w * size), x.dtype)
    i, k, p, u, q, v = b.iterators("n", "c", "h", "kh", "w", "kw")
    ranges = {"n": n, "c": c, "h": h, "kh": size, "w": w, "kw": size}
    columns_first = b.string_attribute("mode", "DCR") == "CRD"
    channel = k * size**2 + u * size + v if columns_first else (u * size + v) * c + k
    b.assign(y, ranges, x[i, channel, p, q], (i, k, p * size + u, q * size + v))


def space_to_depth(b: Notation) -> None:
    x, size = b.input(0), b.int_attribute("blocksize")
    fits = x.rank == 4 and size > 0 and x.shape[2] % size == 0 and x.shape[3] % size == 0
    b.require(fits, f"{list(x.shape)} has no blocks of {size}x{size}")
    n, c, h, w = x.shape[0], x.shape[1], x.shape[2] // size, x.shape[3] // size
    y = b.output((n, c * size**2, h, w), x.dtype)
    i, u, v, k, p, q = b.iterators("n", "kh", "kw", "c", "h", "w")
    ranges = {"n": n, "kh": size, "kw": size, "c": c, "h": h, "w": w}
    columns_first = b.string_attribute("mode", "DCR") == "CRD"
    channel = k * size**2 + u * size + v if columns_first else (u * size + v) * c + k
    b.assign(y, ranges, x[i, k, p * size + u, q * size + v], (i, channel, p, q))


# -- parts ---------------------------------------------------------------------------------------------------------


def concat(b: Notation) -> None:
    values = b.inputs
    b.require(bool(values), "needs at least one input")
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
        b.assign(y, ranges, v[tuple(point)], [p + offset if d == axis else p for d, p in enumerate(point)], suffix=f"_{k}")
        offset += v.shape[axis]


def _but(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def split(b: Notation) -> None:
    x = b.input(0)
    axis = b.axis(b.int_attribute("axis", 0), x.rank)
    sizes = b.ints_attribute("split") if b.opset < 13 else (None if b.optional(1) is None else b.constant_ints(1))
    if sizes is None:
        count = b.int_attribute("num_outputs", len(b.call.outputs))
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
    cut = {k: range(x.shape[k])[slice(*bounds)] for k, bounds in zip(axes, map(_bounds, starts, ends, steps), strict=True)}
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
    axis = b.axis(b.int_attribute("axis", 0), x.rank)
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
    b.require(len(repeats) == x.rank and min(repeats, default=0) >= 0, f"repeats {list(repeats)} do not fit rank {x.rank}")
    y = b.output([e * r for e, r in zip(x.shape, repeats, strict=True)], x.dtype)
    ranges, point = positions(x.shape)
    copies = {f"k{d}": r for d, r in enumerate(repeats) if r != 1}
    place = [p + var(f"k{d}") * e if f"k{d}" in copies else p for d, (p, e) in enumerate(zip(point, x.shape, strict=True))]
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
    from poly.expr import Const

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


ROWS: Final[dict[str, Row]] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Pad": pad,
    "Reshape": reshape,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
