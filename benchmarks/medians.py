"""Times of a few calls beside each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

ROUNDS: Final = 5
SECONDS: Final = 0.003  # of each round


def times(*calls: Callable[[], object]) -> list[float]:
    """Medians of interleaved rounds, in microseconds."""
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, rounds, strict=True):
            call()
            start, count = time.perf_counter(), 0
            while count < 2 or time.perf_counter() - start < SECONDS:
                call()
                count += 1
            found.append((time.perf_counter() - start) / count * 1e6)
    return [statistics.median(found) for found in rounds]
