"""Cycles until the last of some threads has done its share of a loop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
# Cycles until all threads have met and go on, bytes a cycle of what one wrote and another reads: fitted together to
# measured plans of products, on cores that share no cache. They stay where plans were fitted with them: with what a
# machine's description says (`Core.remote`) some products get worse plans, see decision 0056.
MEETING_CYCLES, FITTED_REMOTE = 8000.0, 1.5
CALL = 700.0  # cycles until a thread has its part of a loop, and has found that nothing is left
EDGE = 256  # bytes that a prefetcher reaches over the end of a row
UNEVEN = 0.1  # of an iteration that a slower thread still has to do when the others have taken all there were
LATE = 0.02  # of its share that a slower thread still has to do where each has one block (0096)
# Of a core's own last cache, as often as each: what stays there until the next call (0129).
STAYING = (0.5, 0.75, 1.0)

Value = Numbers | float


def shared_time(
    cycles: Value, trips: Value, meetings: Value, travelling: Value, threads: int, remote: float,
    largest: float | None = None,
) -> Numbers:  # fmt: skip
    """Of a loop with `trips` iterations that takes one thread `cycles`, with meetings besides those at its ends.

    `travelling`: bytes that one thread writes and another reads or fetches. Threads take iterations as they go, so what
    one of them is late is less where a share has more of them. `largest`: of the cycles, those of the longest
    iteration, where they are not alike. `remote`: bytes a cycle of what travels.
    """
    share = np.asarray(np.ceil(np.asarray(trips) / threads) + UNEVEN)
    part = share / trips if largest is None else np.minimum(1.0, share * largest)
    return np.asarray(cycles * part + meetings * MEETING_CYCLES + travelling / remote)


def share_from_afar(whole: float, each: float, capacity: float) -> float:
    """Of what one thread has from behind its core's own caches, the share that threads still have from there: less
    where one uses more, the `whole`, than stays until the next call, and each of them less (`each`; bytes).
    """
    one, several = (sum(used > part * capacity for part in STAYING) for used in (whole, each))
    return several / one if one else 1.0


@dataclass(frozen=True)
class Shares:
    """Of a nest whose loop has iterations that are not alike, and what is left over behind them in `pieces` of its own.

    `most`: of all but the rest, what the slowest thread does; `trips`: iterations; `rest`: of all cycles, what is left
    over, of which a thread does `rows` where threads share its rows, else all; `copied`: whether they meet between its
    copies and its rows.
    """

    trips: Numbers
    most: Numbers
    rest: Numbers
    rows: Numbers
    pieces: Numbers
    copied: bool = False

    def cycles(self, whole: Numbers) -> Numbers:
        """Cycles of the slowest thread, where one takes `whole`."""
        rest = whole * self.rest
        shared = rest * self.rows + self.pieces * CALL + self.copied * MEETING_CYCLES
        return np.asarray((whole - rest) * self.most + np.minimum(rest, shared))


def blocks_shared(tiles: Numbers, size: Numbers, threads: int) -> Numbers:
    """Of tiles in blocks of a size, of which the last may be smaller, what the slowest thread does of whole blocks."""
    blocks = np.ceil(tiles / size)
    rounds = np.ceil(blocks / threads)
    late = np.where((blocks - 1) % threads == 0, tiles - (blocks - 1) * size, size)  # of the last round
    return np.asarray(np.minimum(1.0, ((rounds - 1 + UNEVEN) * size + late) / tiles))


def tiles_shared(tiles: Numbers, size: Numbers, threads: int) -> Numbers:
    """The same where threads share the tiles of each block."""
    blocks = np.ceil(tiles / size)
    last = tiles - (blocks - 1) * size
    most = [np.minimum(n, np.ceil(n / threads) + UNEVEN) for n in (size, last)]
    return np.asarray(np.minimum(1.0, ((blocks - 1) * most[0] + most[1]) / tiles))
