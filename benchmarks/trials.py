"""Times of the candidates of one nest: the fastest of many found by halving (`poly.trials`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.candidates import Array, Nest
from poly.trials import STAGES, Call, Trial
from poly.tuner import Made

ROUNDING = 1e-4  # of the greatest value


@dataclass(frozen=True)
class Shown:
    """A candidate as text, the cycles that the model gives it, and its `poly.trials.Times`."""

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
    candidates: tuple[Shown, ...]
    listed: int

    @property
    def last(self) -> list[Shown]:
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


class Trials:
    """Measures candidates of one nest on the same arrays."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        arrays, program = nest.arrays(), nest.program
        self.inputs = [arrays[t.name] for t in program.inputs]
        outputs = [arrays[t.name] for t in program.outputs]
        self.out: Array | tuple[Array, ...] = outputs[0] if len(outputs) == 1 else tuple(outputs)
        self.constants = {t.name: arrays[t.name] for t in program.with_role("constant")}
        self.expected: npt.NDArray[np.float32] | None = None

    def found(self, made: Sequence[Made], listed: int, seconds: float) -> Found | None:
        """The candidates' times, the first one the choice; None where there is no other."""
        times = Trial(seconds).run(len(made), lambda k: self._call(made[k]))
        if len(times) < 2:
            return None
        every = ((made[k].candidate, t) for k, t in sorted(times.items()))
        shown = (Shown(repr(c.plans), c.cycles, t.stage, t.rounds, t.seconds, t.least, t.ratio) for c, t in every)
        return Found(self.nest.name, tuple(shown), listed)

    def _call(self, made: Made) -> Call:
        """A call that was made once."""
        kernel = self.nest.kernel(made.candidate, made.made, self.constants)
        inputs, out = self.inputs, self.out
        kernel(*inputs, out=out)
        first = np.asarray(out if isinstance(out, np.ndarray) else out[0], np.float32)
        if self.expected is None:
            self.expected = first.copy()
        if not np.abs(first - self.expected).max() <= ROUNDING * np.abs(self.expected).max():
            raise AssertionError(f"{self.nest.name}: another result of {made.candidate.plans}")
        return lambda: kernel(*inputs, out=out)
