"""Which of some calls is the fastest: rounds that take turns, in stages of which each keeps the fastest.

In a round each is called in turn, so that phases in which the machine is slow meet all of them; what counts is a call's
time over that of the first in the same round. Every stage measures those that are left more often. Each call that is
timed follows one that is not, which brings its own buffers into the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

BATCH: Final = 25  # calls that are in memory at once while all are measured, each batch with the first
SAMPLE: Final = 2e-4  # seconds of one measurement, at the least
LONG: Final = 0.05  # seconds of a call from which on it needs no call before it

Call = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Stage:
    """At most `kept` calls, `rounds` times each, in at most `share` of the time."""

    kept: int
    rounds: int
    share: float


STAGES: Final = (Stage(1 << 30, 2, 0.5), Stage(48, 3, 0.15), Stage(16, 9, 0.15), Stage(6, 40, 0.2))


@dataclass(frozen=True)
class Times:
    """Of a call in the last stage that it reached: how often it was measured there, median and least seconds; `ratio`:
    median over the rounds of its time over the first one's.
    """

    stage: int
    rounds: int
    seconds: float
    least: float
    ratio: float

    @property
    def beside(self) -> float:
        """Seconds of the first one meanwhile."""
        return self.seconds / self.ratio


@dataclass(frozen=True)
class Trial:
    """How calls are measured: in so many seconds, each as often in a row as a time can be told."""

    seconds: float
    clock: Clock = perf_counter

    def run(self, count: int, call: Callable[[int], Call | None]) -> dict[int, Times]:
        """The times of `call(0)` and up to `count - 1` others, None where there is none; of those not reached in time
        there are none.
        """
        first = call(0)
        shown: dict[int, Times] = {}
        if first is None:
            return shown
        for number, stage in enumerate(STAGES):
            left = sorted(shown, key=lambda k: shown[k].ratio)[: stage.kept] if shown else range(count)
            end = self.clock() + stage.share * self.seconds
            others = [k for k in left if k]
            size = BATCH if not shown else max(1, len(others))
            for at in range(0, len(others), size):
                calls = {k: found for k in others[at : at + size] if (found := call(k)) is not None}
                times = self._rounds({0: first, **calls}, stage.rounds, end)
                for k, own in times.items():
                    ratio = median(a / b for a, b in zip(own, times[0], strict=True))
                    shown[k] = Times(number, len(own), median(own), min(own), ratio)
                if self.clock() > end:
                    break
        return shown

    def _rounds(self, calls: Mapping[int, Call], rounds: int, end: float) -> dict[int, list[float]]:
        """Seconds of each in every round: at least one, none begun after `end`."""
        times: dict[int, list[float]] = {k: [] for k in calls}
        repeats = {k: 1 + int(SAMPLE / self._seconds(call, 1)) for k, call in calls.items()}
        for _ in range(rounds):
            for k, call in calls.items():
                if not times[k] or times[k][-1] < LONG:
                    call()
                times[k].append(self._seconds(call, repeats[k]))
            if self.clock() > end:
                break
        return times

    def _seconds(self, call: Call, repeats: int) -> float:
        start = self.clock()
        for _ in range(repeats):
            call()
        return max((self.clock() - start) / repeats, 1e-9)
