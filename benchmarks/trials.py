"""Times of the plans of one nest: the fastest of many found by halving, in rounds that take turns.

Every stage measures those that are left more often and keeps the fastest. In a round each is called in turn, so that
phases in which the machine is slow meet all of them; what counts is a plan's time over that of the choice in the same
round. Each call that is timed follows one that is not, which brings the plan's own buffers into the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

from benchmarks.candidates import Array, Nest, Shelf
from poly.scheduling.cpu_rating import Rated

BATCH = 25  # plans that are in memory at once while all are measured, each batch with the choice
SAMPLE = 2e-4  # seconds of one measurement, at the least
ROUNDING = 1e-4  # of the greatest value
LONG = 0.05  # seconds of a call from which on it needs no call before it

Call = Callable[[], object]


@dataclass(frozen=True)
class Stage:
    """At most `kept` plans, `rounds` times each, in at most `share` of the time for a nest."""

    kept: int
    rounds: int
    share: float


STAGES = (Stage(1 << 30, 2, 0.5), Stage(48, 3, 0.15), Stage(16, 9, 0.15), Stage(6, 40, 0.2))


@dataclass(frozen=True)
class Candidate:
    """A plan as text, the cycles that the model gives it, and its times in the last stage that it reached: how often it
    was measured there, median and least seconds; `ratio`: median over the rounds of its time over the choice's.
    """

    plan: str
    cycles: float
    stage: int
    rounds: int
    seconds: float
    least: float
    ratio: float


@dataclass(frozen=True)
class Found:
    """Of one nest, the model's choice first; all that were measured."""

    nest: str
    candidates: tuple[Candidate, ...]
    listed: int

    @property
    def last(self) -> list[Candidate]:
        """Those that reached the last stage, the choice among them."""
        return [c for c in self.candidates if c.stage == len(STAGES) - 1]

    @property
    def ratio(self) -> float:
        """The choice's time over the best one's."""
        return 1 / min(c.ratio for c in self.last)

    @property
    def stages(self) -> str:
        """How many were measured, and how often in each stage."""
        reached = [[c for c in self.candidates if c.stage >= k] for k in range(len(STAGES))]
        rounds = [max((c.rounds for c in self.candidates if c.stage == k), default=0) for k in range(len(STAGES))]
        return " ".join(f"{len(there)}x{often}" for there, often in zip(reached, rounds, strict=True) if often)

    def __str__(self) -> str:
        best = min(self.last, key=lambda c: c.ratio)
        times = f"{self.candidates[0].seconds * 1e6:9.1f}us {best.seconds * 1e6:9.1f}us"
        missing = f" of {self.listed}" if self.listed > len(self.candidates) else ""
        return f"{self.nest:24} {times}  {self.ratio:5.2f}  {len(self.candidates)}{missing} ({self.stages})"


class Trial:
    """Measures candidates of one nest on the same arrays."""

    def __init__(self, nest: Nest, shelf: Shelf) -> None:
        self.nest, self.shelf = nest, shelf
        arrays, program = nest.arrays(), nest.program
        self.inputs = [arrays[t.name] for t in program.inputs]
        outputs = [arrays[t.name] for t in program.outputs]
        self.out: Array | tuple[Array, ...] = outputs[0] if len(outputs) == 1 else tuple(outputs)
        self.constants = {t.name: arrays[t.name] for t in program.with_role("constant")}
        self.expected: npt.NDArray[np.float32] | None = None

    def found(self, rated: Sequence[Rated], seconds: float) -> Found | None:
        """The candidates' times, the first one the choice; None where it or all others have no code."""
        choice = self._call(rated[0])
        if choice is None:
            return None
        shown: dict[int, Candidate] = {}
        for number, stage in enumerate(STAGES):
            left = sorted(shown, key=lambda k: shown[k].ratio)[: stage.kept] if shown else range(len(rated))
            end = perf_counter() + stage.share * seconds
            others = [k for k in left if k]
            size = BATCH if not shown else max(1, len(others))
            for at in range(0, len(others), size):
                calls = {k: call for k in others[at : at + size] if (call := self._call(rated[k])) is not None}
                times = _rounds({0: choice, **calls}, stage.rounds, end)
                for k, own in times.items():
                    ratio = median(a / b for a, b in zip(own, times[0], strict=True))
                    shown[k] = Candidate(
                        repr(rated[k].plan), rated[k].cycles, number, len(own), median(own), min(own), ratio
                    )
                if perf_counter() > end:
                    break
        if len(shown) < 2:
            return None
        return Found(self.nest.name, tuple(shown[k] for k in sorted(shown)), len(rated))

    def _call(self, rated: Rated) -> Call | None:
        """A call that was made once; None where the plan was not made or was refused."""
        kernel = self.shelf.kernel(self.nest, rated.plan, self.constants)
        if kernel is None:
            return None
        inputs, out = self.inputs, self.out
        kernel(*inputs, out=out)
        first = np.asarray(out if isinstance(out, np.ndarray) else out[0], np.float32)
        if self.expected is None:
            self.expected = first.copy()
        if not np.abs(first - self.expected).max() <= ROUNDING * np.abs(self.expected).max():
            raise AssertionError(f"{self.nest.name}: another result of {rated.plan}")
        return lambda: kernel(*inputs, out=out)


def _rounds(calls: Mapping[int, Call], rounds: int, end: float) -> dict[int, list[float]]:
    """Seconds of each in every round: at least one, none begun after `end`."""
    times: dict[int, list[float]] = {k: [] for k in calls}
    repeats = {k: 1 + int(SAMPLE / _seconds(call, 1)) for k, call in calls.items()}
    for _ in range(rounds):
        for k, call in calls.items():
            if not times[k] or times[k][-1] < LONG:
                call()
            times[k].append(_seconds(call, repeats[k]))
        if perf_counter() > end:
            break
    return times


def _seconds(call: Call, repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats
