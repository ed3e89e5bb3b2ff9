"""Vectors of elements a small stride apart: whole loads of what lies between, and shuffles that pick the lanes.

No load reaches beyond the first and the last element that is asked for, but for every second element of a row: where
the row goes on, these are picked from two whole vectors that serve its other elements, too, inside of blocks of 16
bytes, which machines do in one instruction. The lanes get their order when somebody asks for it (`Ops.arranged`).
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.codegen.operators import Ops
from poly.codegen.values import Value
from poly.dtypes import size_bytes

MOST_STRIDE = 4
BLOCK = 16  # bytes


def offsets(width: int, stride: int, count: int) -> tuple[int, ...] | None:
    """Offsets, in elements, of the loads of `width` elements that hold the elements 0, stride .. stride*(count - 1).

    None where the stride is no small one above 1, or the elements lie closer together than one load.
    """
    span = stride * (count - 1) + 1
    if not 2 <= stride <= MOST_STRIDE or span < width:
        return None
    return tuple(sorted({min(k * width, span - width) for k in range(-(-span // width))}))


def pick(ops: Ops, offsets: Sequence[int], vectors: Sequence[Value], stride: int, count: int) -> Value:
    """The elements 0, stride .. of loads at the offsets, as one vector; lanes from `count` on mean nothing."""
    width, done = vectors[0].lanes, 0
    total = Value(vectors[0].dtype, width, "poison")
    for offset, vector in zip(offsets, vectors, strict=True):
        inside = [i for i in range(done, count) if stride * i < offset + width]
        places: list[int | None] = [i if i < done else None for i in range(width)]
        for i in inside:
            places[i] = width + stride * i - offset
        if inside:
            total, done = ops.shuffle(total, vector, places), inside[-1] + 1
    assert done == count
    return total


def every_second(ops: Ops, vectors: Sequence[Value], odd: int) -> Value:
    """Every second element of two vectors that lie one behind the other, from element `odd` (0 or 1) on."""
    first, last = vectors
    width, block = first.lanes, max(2, BLOCK // size_bytes(first.dtype))
    halves = [(first_of, start) for start in range(0, width, block) for first_of in (0, width)]
    taken = [part + start + k for part, start in halves for k in range(odd, min(block, width), 2)]
    return ops.arranged(ops.shuffle(first, last, taken), tuple(place // 2 for place in taken))


def spread(ops: Ops, mask: Value, offset: int, stride: int, count: int) -> str:
    """The mask of a load at an offset: the elements between lanes, and those of unset lanes, are not touched."""
    width = mask.lanes
    lane_at = {stride * i - offset: i for i in range(count)}
    places = ", ".join(f"i32 {lane_at.get(p, width)}" for p in range(width))
    kind = f"<{width} x i1>"
    return ops.writer.value(f"shufflevector {kind} {mask.text}, {kind} zeroinitializer, <{width} x i32> <{places}>")
