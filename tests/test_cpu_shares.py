"""The formula of a loop's time on several threads."""

from __future__ import annotations

from poly.scheduling.cpu_shares import MEETING_CYCLES, shared_time


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
