"""Rows of operators that have as many results as the data say: all that there can be, and how many there are.

A model that is compiled by stages ends a stage behind such a node, and cuts the result (`Notation.cut`). Boxes that no
better one overlaps are found one after another: the best that is left, beside those that were kept, many at once. The
trips that are left when there are enough of them change nothing, so that a core leaves the loop
(`poly.scheduling.leaving`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from poly.affine import Affine, Constraint, var
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Term, Value, fn, index_value, literal
from poly.frontend.onnx_top_k import LEAST, ordered, place_of

_MOST_KEPT: Final = 2048  # boxes of a class that each candidate is compared with, kept by then or not
_TOP, _LEFT, _BOTTOM, _RIGHT, _AREA = range(5)
_B, _C, _S, _N = (var(name) for name in ("b", "c", "s", "n"))


# -- the best of those that overlap --------------------------------------------------------------------------------


def non_max_suppression(b: Notation) -> None:
    """[batch, class, box] of the best boxes of each class: none overlaps a better one by more than a threshold."""
    boxes, scores = b.input(0), b.input(1)
    shaped = boxes.rank == scores.rank == 3 and boxes.shape[2] == 4
    b.require(shaped, "boxes are [batch, n, 4], scores [batch, class, n]")
    batches, classes, count = scores.shape
    b.require(boxes.shape[:2] == (batches, count), "boxes and scores are not of as many batches and boxes")
    b.supported(boxes.dtype == scores.dtype == "f32", "boxes and scores are not f32")
    wanted = 0 if b.optional(2) is None else next(iter(b.constant_ints(2)), 0)
    most = min(max(wanted, 0), count)
    b.supported(most <= _MOST_KEPT, f"each of {count} boxes beside {most} others would be slow")
    found, total = b.output((batches * classes * most + 1, 3), "i64"), b.cut()
    if batches * classes * most:
        kept, counts = _kept(b, _corners(b, boxes), _keys(b, scores), most)
        _in_rows(b, kept, counts, found, total)


def _corners(b: Notation, boxes: Value) -> Value:
    """corners[b, side, n]: least y and x, greatest y and x, and the area."""
    batches, count, _ = boxes.shape
    corners = b.temporary("corners", (batches, 5, count), "f32")
    first, second, third, fourth = (boxes[_B, _N, k] for k in range(4))
    if b.int_attribute("center_point_box", 0) == 1:  # x, y, width, height
        sides = [second - fourth / 2, first - third / 2, second + fourth / 2, first + third / 2]
    else:
        pairs = ((first, third), (second, fourth))
        sides = [fn(way, *pair) for way in ("min", "max") for pair in pairs]
    ranges = {"b": batches, "n": count}
    for k, side in enumerate(sides):
        b.assign(corners, ranges, side, (_B, k, _N), suffix="_corners")
    height, width = (corners[_B, low + 2, _N] - corners[_B, low, _N] for low in (_TOP, _LEFT))
    b.assign(corners, ranges, height * width, (_B, _AREA, _N), suffix="_areas")
    return corners


def _keys(b: Notation, scores: Value) -> Value:
    """keys[b, c, block, j]: a number that is the greater, the sooner a box comes; of those that do not, the least."""
    batches, classes, count = scores.shape
    size = 1 << ((count - 1).bit_length() + 1) // 2
    blocks = -(-count // size)
    keys = b.temporary("keys", (batches, classes, blocks, size), "i64")
    _fill(b, keys, LEAST)
    at = size * var("k") + var("j")
    score = scores[_B, _C, at]
    order = fn("select", fn("ne", score, score), -(2**31), ordered(score, "f32"))  # a NaN comes last
    number = order.cast("i64") * 2**32 + (2**31 - index_value(at))
    if (least := b.optional(4)) is not None and least.size:
        number = fn("select", fn("gt", score, least[(0,) * least.rank]), number, LEAST)
    ranges = {"b": batches, "c": classes, "k": blocks, "j": size}
    b.assign(keys, ranges, number, suffix="_keys", where=[Constraint(count - 1 - at)])
    return keys


def _kept(b: Notation, corners: Value, keys: Value, most: int) -> tuple[Value, Value]:
    """The boxes kept of each class, in order, and how many they are."""
    batches, classes, blocks, size = keys.shape
    rows = {"b": batches, "c": classes}
    lead = (batches, classes)
    greatest = b.temporary("greatest", (*lead, blocks), "i64")
    b.reduce(greatest, {**rows, "k": blocks}, {"j": size}, keys[_B, _C, var("k"), var("j")], "max", suffix="_greatest")
    sides = b.temporary("sides", (*lead, 5, most), "f32")
    kept, counts = b.temporary("kept", (*lead, most), "i64"), b.temporary("counts", lead, "i64")
    for value in (sides, kept, counts):
        _fill(b, value, 0)
    trips = corners.shape[2]

    def own(name: str, dtype: str) -> Value:
        return b.temporary(name, (*lead, trips), dtype)

    slot = own("slot", "i64")
    side = [own(f"side{k}", "f32") for k in range(5)]
    take, over = own("take", "bool"), own("over", "i32")
    at = (_B, _C, _S)
    with b.loop({**rows, "s": trips}):
        go, place = _next_place(b, keys, greatest, fn("lt", counts[_B, _C], most), own)
        for k, own_side in enumerate(side):
            b.assign(own_side, {}, corners.take(_B, k, place[at]), at, suffix="_side")
        hit = _overlap(b, [v[at] for v in side], [sides[_B, _C, k, var("k")] for k in range(5)])
        b.reduce(over, {}, {"k": most}, hit.cast("i32"), "max", index=at, suffix="_over")
        b.assign(take, {}, fn("and", go[at], fn("lt", over[at], 1)), at, suffix="_take")
        b.assign(slot, {}, fn("select", take[at], counts[_B, _C], 0), at, suffix="_slot")
        for k, own_side in enumerate(side):
            target = (_B, _C, k, slot[at])
            b.assign(sides, {}, fn("select", take[at], own_side[at], sides.take(*target)), target, suffix="_sides")
        target = (_B, _C, slot[at])
        b.assign(kept, {}, fn("select", take[at], place[at], kept.take(*target)), target, suffix="_kept")
        one = fn("select", take[at], literal(1).cast("i64"), literal(0).cast("i64"))
        b.assign(counts, {}, one, (_B, _C), suffix="_count", combiner="+")
    return kept, counts


def _next_place(
    b: Notation, keys: Value, greatest: Value, wanted: Term, own: Callable[[str, str], Value]
) -> tuple[Value, Value]:
    """In each trip whether a box is left that is `wanted`, and its place; its key is taken out of the greatest ones."""
    _, _, blocks, size = keys.shape
    key, place, block, following = (own(name, "i64") for name in ("key", "place", "block", "following"))
    go, at = own("go", "bool"), (_B, _C, _S)
    b.reduce(key, {}, {"k": blocks}, greatest[_B, _C, var("k")], "max", index=at, suffix="_key")
    b.assign(go, {}, fn("and", fn("gt", key[at], LEAST), wanted), at, suffix="_go")
    b.assign(place, {}, fn("select", go[at], place_of(key[at]), 0), at, suffix="_place")
    b.assign(block, {}, fn("shift_right", place[at], size.bit_length() - 1), at, suffix="_block")
    other = keys.take(_B, _C, block[at], var("j"))
    value = fn("select", fn("lt", other, key[at]), other, LEAST)
    b.reduce(following, {}, {"j": size}, value, "max", index=at, suffix="_following")
    there = (_B, _C, block[at])
    b.assign(greatest, {}, fn("select", go[at], following[at], greatest.take(*there)), there, suffix="_next")
    return go, place


def _overlap(b: Notation, one: list[Term], other: list[Term]) -> Term:
    """What two boxes share is more than a part of what they are together."""
    limit = b.optional(3)
    threshold = literal(0.0) if limit is None or not limit.size else limit[(0,) * limit.rank]
    height = fn("min", one[_BOTTOM], other[_BOTTOM]) - fn("max", one[_TOP], other[_TOP])
    width = fn("min", one[_RIGHT], other[_RIGHT]) - fn("max", one[_LEFT], other[_LEFT])
    shared = fn("max", height, 0.0) * width  # where the width is negative, so is what they share
    part = fn("gt", shared / (one[_AREA] + other[_AREA] - shared), threshold)
    return fn("and", part, fn("gt", shared, 0.0))


def _in_rows(b: Notation, kept: Value, counts: Value, found: Value, total: Value) -> None:
    """The rows of the result: of each class, behind those of the classes before; what is no box goes behind all."""
    batches, classes, most = kept.shape
    rows = {"b": batches, "c": classes}
    before = b.temporary("before", (batches, classes), "i64")
    with b.loop(rows):
        b.assign(before, {}, total[0], (_B, _C), suffix="_before")
        b.assign(total, {}, counts[_B, _C], (0,), suffix="_total", combiner="+")
    place = b.temporary("row", kept.shape, "i64")
    k, ranges = var("k"), {**rows, "k": most}
    own = fn("lt", index_value(k), counts[_B, _C])
    b.assign(place, ranges, fn("select", own, before[_B, _C] + index_value(k), found.shape[0] - 1), suffix="_row")
    for axis, value in enumerate((index_value(_B), index_value(_C), kept[_B, _C, k])):
        b.assign(found, ranges, value, (place[_B, _C, k], axis), suffix="_rows")


def _fill(b: Notation, value: Value, number: int) -> None:
    ranges, _ = positions(value.shape)
    b.assign(value, ranges, literal(number), suffix="_fill")


# -- what a condition chooses --------------------------------------------------------------------------------------


def compress(b: Notation) -> None:
    """The slices along the first axis, or the elements, where a condition holds: each goes where the next one that is
    wanted goes, and is written over by that.
    """
    x, condition = b.input(0), b.input(1)
    b.require(condition.rank == 1, f"condition {list(condition.shape)} is not a vector")
    given = b.has("axis")
    b.supported(x.rank > 0 and (not given or b.axis(b.int_attribute("axis"), x.rank) == 0), "not the first axis")
    own = x.shape[:1] if given else x.shape
    count = condition.size if x.rank == len(own) == 1 or given else x.size
    b.supported(condition.size == count <= (x.shape[0] if given else x.size), "the condition is of another length")
    y, total = b.output((count, *x.shape[len(own) :]), x.dtype), b.cut()
    if y.size == 0:
        return
    place = b.temporary("place", (count,), "i64")
    with b.loop({"n": count}):
        b.assign(place, {}, total[0], (_N,), suffix="_place")
        b.assign(total, {}, condition[_N].cast("i64"), (0,), suffix="_total", combiner="+")
    ranges, point = positions((count, *x.shape[1:]) if len(own) == 1 else x.shape)
    steps = [prod(own[k + 1 :]) for k in range(len(own))]
    row = sum((p * step for p, step in zip(point, steps, strict=False)), Affine())
    b.assign(y, ranges, x[tuple(point)], (place[row], *point[len(own) :]))


ROWS: Final[dict[str, Row]] = {
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
}
