"""What the machine allows a matrix to be turned with: lines of one walk to lines of the other, and nothing turned.

A line of a row of the source belongs to as many rows of the target as it has elements, so no order of the loops walks
through both along their length (docs/decisions/0027; `limits_moved` is about more axes). The loop moves squares of
lines between mirrored places: the same lines and pages are touched as often as by a transposition in squares, with two
instructions a vector.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from time import perf_counter

from benchmarks.loops import BESIDE, FLOATS, Loops, stored_both_ways

STRIPS = (FLOATS, 8 * FLOATS, 1 << 40)  # rows of the source that are walked down before the next line of each
TRIES = 3
Loop = Callable[[int, int, int, int, int], None]
_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3)


def seconds(rows: int, columns: int, source: int, target: int) -> float:
    """The least time in which whole squares of lines are moved, of some orders; the target begins with a line."""
    rows, columns, best = rows // FLOATS * FLOATS, columns // FLOATS * FLOATS, float("inf")
    for loop in turning_loops().functions.values():
        for strip in {min(s, rows) for s in STRIPS}:
            for _ in range(TRIES):
                start = perf_counter()
                loop(source, target, rows, columns, strip)
                best = min(best, perf_counter() - start)
    return best


@cache
def turning_loops() -> Loops[Loop]:
    """(source, target, rows, columns, rows of a strip): moves squares of lines; by name, stored as usual and past."""
    return stored_both_ways("turned", _text, _LOOP)


def _text(name: str, lanes: int, how: str) -> str:
    """Strips of rows, lines of columns, rows of a strip in squares; the next lines of a square are asked for."""
    kind = f"<{lanes} x float>"
    body: list[str] = []
    for k in range(FLOATS):
        body += [
            f"  %r{k} = add i64 %i, {k}", f"  %s{k} = mul i64 %r{k}, %columns", f"  %t{k} = add i64 %s{k}, %j",
            f"  %u{k} = add i64 %j, {k}", f"  %v{k} = mul i64 %u{k}, %rows", f"  %w{k} = add i64 %v{k}, %i",
            f"  %n{k} = add i64 %t{k}, {FLOATS}", f"  %f{k} = getelementptr float, ptr %a, i64 %n{k}",
            f"  call void @llvm.prefetch.p0(ptr %f{k}, i32 0, i32 3, i32 1)",
        ]  # fmt: skip
        for q in range(0, FLOATS, lanes):
            body += [
                f"  %o{k}x{q} = add i64 %t{k}, {q}", f"  %p{k}x{q} = getelementptr float, ptr %a, i64 %o{k}x{q}",
                f"  %x{k}x{q} = load {kind}, ptr %p{k}x{q}, align {BESIDE}",
                f"  %y{k}x{q} = add i64 %w{k}, {q}", f"  %z{k}x{q} = getelementptr float, ptr %b, i64 %y{k}x{q}",
                f"  store {kind} %x{k}x{q}, ptr %z{k}x{q}, {how}",
            ]  # fmt: skip
    return "\n".join([
        f"define void @{name}(ptr %a, ptr %b, i64 %rows, i64 %columns, i64 %strip) {{", "entry:", "  br label %strips",
        "strips:", "  %i0 = phi i64 [0, %entry], [%i1, %after]", "  %i1 = add i64 %i0, %strip",
        "  %less = icmp slt i64 %i1, %rows", "  %end = select i1 %less, i64 %i1, i64 %rows", "  br label %lines",
        "lines:", "  %j = phi i64 [0, %strips], [%j1, %down]", "  br label %squares",
        "squares:", "  %i = phi i64 [%i0, %lines], [%i2, %squares]", *body, f"  %i2 = add i64 %i, {FLOATS}",
        "  %c = icmp slt i64 %i2, %end", "  br i1 %c, label %squares, label %down",
        "down:", f"  %j1 = add i64 %j, {FLOATS}", "  %d = icmp slt i64 %j1, %columns",
        "  br i1 %d, label %lines, label %after",
        "after:", "  br i1 %less, label %strips, label %out", "out:", "  ret void", "}",
    ])  # fmt: skip
