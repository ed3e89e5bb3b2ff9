"""Columns of a square of vectors, by a network of shuffles of logarithmic depth.

An element has a row and a lane; the network permutes the bits of these two numbers. Each round combines pairs of
vectors whose numbers differ in one bit: that bit becomes one of the lane, and a bit of the lane becomes one of the
number. First inside blocks of 16 bytes, which machines interleave in one instruction, then whole blocks. Any power of
two of lanes, any element. Rows shorter than a column are put beside one another first, which a load does on its way,
and all squares go through the network at once. A column asks only for the shuffles it needs; equal ones are emitted
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from poly.codegen.operators import Ops
from poly.codegen.values import Value
from poly.dtypes import size_bytes

BLOCK = 16  # bytes
WIDE = 64  # bytes of vectors that come with so many registers that one may be tied to another for a while


def column(ops: Ops, rows: Sequence[Value], at: int, lanes: int) -> Value:
    """Lane `at` of each row (at most `lanes` of them) as a vector of `lanes`; lanes without a row mean nothing."""
    side = min(lanes, rows[0].lanes)
    first = at // side * side
    parts = [r if r.lanes == side else ops.piece(r, first, side) for r in rows]
    parts += [Value(parts[0].dtype, side, "poison")] * (lanes - len(parts))
    return _column(ops, [_beside(ops, parts[k::side]) for k in range(side)], at - first)


def _beside(ops: Ops, parts: Sequence[Value]) -> Value:
    """The lanes of all parts, one part behind the other."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [a if a.text == b.text == "poison" else ops.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
        lanes = max(p.lanes for p in parts)
        parts = [p if p.lanes == lanes else Value(p.dtype, lanes, "poison") for p in parts]
    return parts[0]


def _column(ops: Ops, rows: Sequence[Value], at: int) -> Value:
    """One column of some squares that lie beside one another."""
    bits = len(rows).bit_length() - 1
    inner = min(bits, (BLOCK // size_bytes(rows[0].dtype)).bit_length() - 1)
    number = 0  # of the vector that becomes the column: each round moves the highest bit left of the (inner) lane
    for turn in range(bits):
        source = inner - 1 - turn if turn < inner else bits - 1 - (turn - inner)
        number |= (at >> source & 1) << turn
    return _after(ops, rows, number, bits, inner)


def _after(ops: Ops, rows: Sequence[Value], number: int, rounds: int, inner: int) -> Value:
    """Vector `number` after some rounds."""
    if rounds == 0:
        return rows[number]
    bit = 1 << (rounds - 1)
    a = _after(ops, rows, number & ~bit, rounds - 1, inner)
    b = _after(ops, rows, number | bit, rounds - 1, inner)
    if a.text == b.text == "poison":
        return a
    result = ops.shuffle(a, b, _places(len(rows), a.lanes, rounds - 1, inner, bool(number & bit)))
    wide = result.lanes * size_bytes(result.dtype) >= WIDE
    return ops.as_it_is(result) if wide and rounds == inner < len(rows).bit_length() - 1 else result


@lru_cache(maxsize=256)
def _places(side: int, lanes: int, turn: int, inner: int, upper: bool) -> tuple[int, ...]:
    """The lanes that a round takes from a pair of vectors, for the one whose bit is clear or set (`upper`)."""
    places = _of_square(side, turn, inner, upper)
    return tuple(p % side + p // side * lanes + k for k in range(0, lanes, side) for p in places)


def _of_square(side: int, turn: int, inner: int, upper: bool) -> list[int]:
    """Of one square, the second vector's after `side`."""
    if turn >= inner:  # blocks with one bit of their number clear or set, of the first vector, then of the second
        bit = side >> (1 + turn - inner)
        kept = [k for k in range(side) if bool(k & bit) == upper]
        return [*kept, *(side + k for k in kept)]
    block, run = 1 << inner, 1 << turn  # runs of the lower or upper half of each block, by turns
    half = [start + upper * block // 2 for start in range(0, side, block)]
    runs = [k for first in half for k in range(first, first + block // 2, run)]
    return [lane + other for k in runs for other in (0, side) for lane in range(k, k + run)]
