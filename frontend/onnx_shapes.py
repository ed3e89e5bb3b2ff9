"""Rows of the operator table that move elements: reshapes and transpositions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Shape, Value


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
    b.require(
        keep_zero or all(e != 0 or k < x.rank for k, e in enumerate(wanted)),
        f"cannot copy an extent for {list(wanted)}",
    )
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


ROWS: Final[dict[str, Row]] = {
    "DepthToSpace": depth_to_space,
    "Flatten": flatten,
    "Reshape": reshape,
    "SpaceToDepth": space_to_depth,
    "Squeeze": squeeze,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
