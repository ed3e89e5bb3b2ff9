"""What the machine allows a permutation that turns rows into columns beside other axes: moving the same lines.

As with one matrix (`limits_turned`, docs/decisions/0030) squares of lines go to where those of the result are, with two
instructions a vector and nothing turned. Which square comes when is a table, so that one loop serves every order of any
number of axes. A matrix is moved by both: its own loops need no table, and are a tenth faster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from benchmarks import limits_turned
from benchmarks.cases import Case
from benchmarks.loops import BESIDE, FLOATS, Loops, stored_both_ways, together

STRIPS = (1, 8, 1 << 40)  # squares that are walked down before the next line of each
TILE = 4  # iterations of each of the other loops that are walked together
AHEAD = (1, 8)  # squares
TRIES, KEPT, SECONDS = 3, 4, 0.005  # tries of the fastest ways, how many these are, and how long each is tried at least
Loop = Callable[[int, int, int, int, int, int, int], None]
Table = npt.NDArray[np.int64]
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 4)


@dataclass(frozen=True)
class Turn:
    """A permutation of axes after which another one is contiguous. `order`: the source's axes in the target's order."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def across(self) -> int:
        """The axis along which the source is contiguous."""
        return len(self.shape) - 1

    @property
    def down(self) -> int:
        """The one along which the target is."""
        return self.order[-1]

    @property
    def whole(self) -> Turn:
        """Of the same array without the rows and columns that make no whole square."""
        turned = (self.down, self.across)
        return replace(self, shape=tuple(n // FLOATS * FLOATS if a in turned else n for a, n in enumerate(self.shape)))

    @cached_property
    def steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Elements between neighbours along each axis, in the source and in the target."""
        source = tuple(prod(self.shape[a + 1 :]) for a in range(len(self.shape)))
        at = {a: prod(self.shape[b] for b in self.order[k + 1 :]) for k, a in enumerate(self.order)}
        return source, tuple(at[a] for a in range(len(self.shape)))


def turned(case: Case) -> Turn | None:
    """Where a case only permutes axes, and another one becomes contiguous; axes that stay together are one."""
    if case.kind != "einsum" or len(case.inputs) != 1:
        return None
    source, target = case.spec.split("->")
    if sorted(source) != sorted(target) or len({*source}) != len(source):
        return None
    (shape,) = case.inputs.values()
    extent = {i: n for i, n in zip(source, shape, strict=True) if n > 1}
    wanted = [i for i in target if i in extent]
    joined: list[list[str]] = []
    for i in extent:
        if joined and i in wanted[1:] and wanted[wanted.index(i) - 1] == joined[-1][-1]:
            joined[-1].append(i)
        else:
            joined.append([i])
    first = [axis[0] for axis in joined]
    order = tuple(first.index(i) for i in wanted if i in first)
    turn = Turn(tuple(prod(extent[i] for i in axis) for axis in joined), order)
    return turn if len(order) == len(first) > 1 and turn.down != turn.across else None


def seconds(turn: Turn, source: int, target: int, threads: int = 1) -> float:
    """The least time in which an array of whole squares of lines is moved, of some orders; the target begins with
    a line. Threads take parts of an order, one after the other.
    """
    ways = [*product(moving_loops().functions.values(), tables(turn), AHEAD)]
    once = [_timed(turn, *way, source, target, threads) for way in ways]
    best = sorted(range(len(ways)), key=once.__getitem__)[:KEPT]
    tries = max(TRIES, int(SECONDS / once[best[0]]))
    found = min(once[best[0]], *(_timed(turn, *ways[k], source, target, threads) for k in best for _ in range(tries)))
    if threads > 1 or len(turn.shape) != 2:
        return found
    return min(found, limits_turned.seconds(*turn.shape, source, target))


def _timed(turn: Turn, loop: Loop, table: Table, ahead: int, source: int, target: int, threads: int) -> float:
    asked, squares = max(AHEAD), len(table) - max(AHEAD)

    def work(k: int) -> None:
        part = table[squares * k // threads : squares * (k + 1) // threads + asked]
        move(turn, loop, part, ahead, source, target)

    return together(work, threads)


def move(turn: Turn, loop: Loop, table: Table, ahead: int, source: int, target: int) -> None:
    """Move all squares in the order of a table."""
    down, across = turn.steps[0][turn.down], turn.steps[1][turn.across]
    loop(source, target, table.ctypes.data, len(table) - max(AHEAD), ahead, down, across)


@lru_cache(maxsize=4)
def tables(turn: Turn) -> Sequence[Table]:
    """Where every square begins in the source and in the target, in some orders; the last one again for who asks ahead.

    Strips of squares inside of the other loops, these in the source's or the target's order or in tiles of both; or
    inside of the loop over rows, or over columns.
    """
    down, across, tile = turn.down, turn.across, {turn.down: FLOATS, turn.across: FLOATS}
    counts = [n // tile.get(a, 1) for a, n in enumerate(turn.shape)]
    at = np.indices(counts).reshape(len(counts), -1)
    read = [at[a] for a in range(len(counts)) if a not in tile]
    written = [at[a] for a in turn.order if a not in tile]
    orders = [[*read, at[down] // n, at[across], at[down] % n] for n in STRIPS]
    orders += [[*written, at[across], at[down]], [at[down], *read, at[across]], [at[across], *written, at[down]]]
    orders.append([*(a // TILE for a in read), *(a % TILE for a in read), at[down], at[across]])
    squares = (at.T * [tile.get(a, 1) for a in range(len(counts))]) @ np.array(turn.steps, np.int64).T
    found: Mapping[bytes, Table] = {k.tobytes(): squares[k] for k in (np.lexsort(keys[::-1]) for keys in orders)}
    return [np.concatenate([t, np.repeat(t[-1:], max(AHEAD), axis=0)]) for t in found.values()]


@cache
def moving_loops() -> Loops[Loop]:
    """(source, target, table, squares, squares ahead that are asked for, step between a square's lines in the source,
    in the target): moves squares of lines; by name, stored as usual and past.
    """
    return stored_both_ways("moved", _text, _LOOP)


def _text(name: str, lanes: int, how: str) -> str:
    kind = f"<{lanes} x float>"
    body, pointers = list[str](), (("c", "down"), ("p", "down"), ("q", "across"))
    for k in range(FLOATS):
        body += [
            f"  call void @llvm.prefetch.p0(ptr %c{k}, i32 0, i32 3, i32 1)",
            *(f"  %{p}{k + 1} = getelementptr float, ptr %{p}{k}, i64 %{step}" for p, step in pointers),
        ]
        for v in range(0, FLOATS, lanes):
            body += [
                f"  %u{k}x{v} = getelementptr float, ptr %p{k}, i64 {v}",
                f"  %x{k}x{v} = load {kind}, ptr %u{k}x{v}, align {BESIDE}",
                f"  %w{k}x{v} = getelementptr float, ptr %q{k}, i64 {v}",
                f"  store {kind} %x{k}x{v}, ptr %w{k}x{v}, {how}",
            ]  # fmt: skip
    return "\n".join([
        f"define void @{name}(ptr %a, ptr %b, ptr %table, i64 %n, i64 %ahead, i64 %down, i64 %across) {{", "entry:",
        "  br label %loop", "loop:", "  %i = phi i64 [0, %entry], [%i1, %loop]", "  %later = add i64 %i, %ahead",
        "  %at = getelementptr [2 x i64], ptr %table, i64 %i", "  %s = load i64, ptr %at, align 8",
        "  %beside = getelementptr i64, ptr %at, i64 1", "  %t = load i64, ptr %beside, align 8",
        "  %next = getelementptr [2 x i64], ptr %table, i64 %later", "  %o = load i64, ptr %next, align 8",
        "  %p0 = getelementptr float, ptr %a, i64 %s", "  %q0 = getelementptr float, ptr %b, i64 %t",
        "  %c0 = getelementptr float, ptr %a, i64 %o", *body, "  %i1 = add i64 %i, 1",
        "  %more = icmp slt i64 %i1, %n", "  br i1 %more, label %loop, label %end", "end:", "  ret void", "}",
    ])  # fmt: skip
