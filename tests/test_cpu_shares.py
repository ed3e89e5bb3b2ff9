"""The formula of a loop's time on several threads."""

from __future__ import annotations

import numpy as np
import pytest

from poly.scheduling.cpu_shares import (
    CALL,
    MEETING_CYCLES,
    UNEVEN,
    Shares,
    blocks_shared,
    shared_time,
    tiles_shared,
)


def test_more_iterations_share_better() -> None:
    """At best the work over the threads; the fewer iterations a share has, the more is lost to the slower thread."""
    times = [shared_time(1e6, trips, 0, 0.0, 2, 2.0) for trips in (2, 4, 8, 64)]
    assert times == sorted(times, reverse=True) and 5e5 < times[-1] < 5.1e5
    assert shared_time(1e6, 3, 0, 0.0, 2, 2.0) > shared_time(1e6, 4, 0, 0.0, 2, 2.0)


def test_what_a_share_costs_besides() -> None:
    alone = shared_time(1e6, 8, 0, 0.0, 2, 2.0)
    assert shared_time(1e6, 8, 3, 0.0, 2, 2.0) == alone + 3 * MEETING_CYCLES
    assert shared_time(1e6, 8, 0, 4096.0, 2, 2.0) > alone


def test_the_longest_iteration_is_somebodys() -> None:
    """Blocks of 128, 64 for two threads: one of them has two thirds of the work, as many as there are blocks or not."""
    uneven = float(shared_time(1e6, 2, 0, 0.0, 2, 2.0, 2 / 3))
    assert 2e6 / 3 < uneven < 1e6 and uneven > float(shared_time(1e6, 2, 0, 0.0, 2, 2.0))
    assert float(shared_time(1e6, 2, 0, 0.0, 2, 2.0, 1.0)) == 1e6


@pytest.mark.parametrize(
    ("tiles", "size", "blocks", "inside"),
    [(4, 1, 2.1, 4), (3, 1, 2.1, 3), (4, 3, 3.3, 3.1), (6, 4, 4.4, 3.2), (5, 2, 3.2, 3.2), (3, 3, 3, 2.1)],
)
def test_a_block_may_be_smaller_than_others(tiles: int, size: int, blocks: float, inside: float) -> None:
    """Tiles of the slowest of two threads, which share the blocks, or the tiles in each of them; a tenth of an
    iteration is for being late.
    """
    made = np.array(float(tiles)), np.array(float(size)), 2
    assert UNEVEN == 0.1
    assert float(blocks_shared(*made)) * tiles == pytest.approx(blocks)
    assert float(tiles_shared(*made)) * tiles == pytest.approx(inside)


def test_what_is_left_over_is_shared_where_that_is_worth_it() -> None:
    one, half, tenth = np.ones(()), np.full((), 0.5), np.full((), 0.1)
    least, most = np.full((), 5 * CALL), np.full((), 1e3 * CALL)

    def rest(whole: float, copied: bool = False) -> float:
        """Of a tenth that is left over, the slowest thread's part."""
        share = Shares(one, half, tenth, half, one, copied)
        return float(share.cycles(np.full((), whole)) - 0.45 * whole) / (0.1 * whole)

    assert rest(float(least)) == pytest.approx(1)  # one thread's
    assert 0.5 < rest(float(most)) < 0.52
    assert rest(float(most), copied=True) - rest(float(most)) == pytest.approx(MEETING_CYCLES / (100 * CALL))
