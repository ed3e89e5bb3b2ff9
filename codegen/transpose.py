"""Columns of a square of vectors, by a network of shuffles of logarithmic depth.

An element has a row and a lane; the network permutes the bits of these two numbers. Each round combines pairs of
vectors whose numbers differ in one bit: that bit becomes one of the lane, and a bit of the lane becomes one of the
number. First inside blocks of 16 bytes, which machines interleave in one instruction, then whole blocks. Any power of
two of lanes, any element. A column asks only for the shuffles it needs; equal ones are emitted once.
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.codegen.values import Ops, Value
from poly.dtypes import size_bytes

BLOCK = 16  # bytes


def column(ops: Ops, rows: Sequence[Value], at: int, lanes: int) -> Value:
    """Lane `at` of each row (at most `lanes` of them) as a vector of `lanes`; lanes without a row mean nothing."""
    side = min(lanes, rows[0].lanes)
    first = at // side * side
    parts = [r if r.lanes == side else ops.part(r, first, side) for r in rows]
    parts += [Value(parts[0].dtype, side, "poison")] * (lanes - len(parts))
    found = [_column(ops, parts[k : k + side], at - first) for k in range(0, lanes, side)]
    while len(found) > 1:
        found = [ops.shuffle(a, b, range(2 * a.lanes)) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _column(ops: Ops, rows: Sequence[Value], at: int) -> Value:
    """One column of a square."""
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
    return ops.shuffle(a, b, _places(len(rows), rounds - 1, inner, bool(number & bit)))


def _places(side: int, turn: int, inner: int, upper: bool) -> list[int]:
    """The lanes that a round takes from a pair of vectors, for the one whose bit is clear or set (`upper`)."""
    if turn >= inner:  # blocks with one bit of their number clear or set, of the first vector, then of the second
        bit = side >> (1 + turn - inner)
        kept = [k for k in range(side) if bool(k & bit) == upper]
        return [*kept, *(side + k for k in kept)]
    block, run = 1 << inner, 1 << turn  # runs of the lower or upper half of each block, by turns
    half = [start + upper * block // 2 for start in range(0, side, block)]
    runs = [k for first in half for k in range(first, first + block // 2, run)]
    return [lane + other for k in runs for other in (0, side) for lane in range(k, k + run)]
