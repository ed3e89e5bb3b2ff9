"""Cycles until the last of some threads has done its share of a loop."""

from __future__ import annotations

from math import ceil

from poly.scheduling.cpu_cost import MEETING, REMOTE

UNEVEN = 0.1  # of an iteration that a slower thread still has to do when the others have taken all there were


def shared_time(cycles: float, trips: int, meetings: int, travelling: float, threads: int) -> float:
    """Of a loop with `trips` iterations that takes one thread `cycles`, with meetings besides those at its ends.

    `travelling`: bytes that one thread writes and another reads or fetches. Threads take iterations as they go, so what
    one of them is late is less where a share has more of them.
    """
    return cycles * (ceil(trips / threads) + UNEVEN) / trips + meetings * MEETING + travelling / REMOTE
