"""Plans of a model's groups, chosen by measuring them where they run: in the model.

Between groups a core's caches hold other things than they do for a kernel alone, and the weights of a group come from
elsewhere. So engines are built that differ in the plans of all groups at once, and run in turns with the one of the
model of time; what counts is a group's time in one over that in the other. In a second stage only the fastest of each
group are left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median
from typing import Final

import numpy as np

from poly.console import Progress
from poly.document import counted
from poly.dtypes import Array, is_float
from poly.engine import CompiledGroup, CompileGroup, Engine, PrepareAhead, Step
from poly.errors import RunError
from poly.machine import Machine
from poly.pointers import aligned_zeros
from poly.prepared import Prepared, prepare
from poly.program import Program
from poly.trials import Times
from poly.tuner import MAKING, Kept, Made, TuningContext, bar, described, different, fastest
from poly.tuning import Measured

IN_A_MODEL: Final = "in a model"
ROUNDS: Final = 4, 12  # pairs of runs of each engine in a stage, at the least
MOST_ROUNDS: Final = 100
LONG_ENOUGH: Final = 0.02  # seconds of such runs
SHARES: Final = 0.7, 1.0  # of the time that is left, for a stage
LEFT: Final = 4  # plans of each group in the second stage

Build = Callable[[CompileGroup, PrepareAhead], Engine]
MakeGroup = Callable[[Program, Prepared, "Measured | None"], CompiledGroup]
Seconds = Callable[[Engine, Mapping[str, Array]], Mapping[str, float]]


def seconds_of_groups(engine: Engine, inputs: Mapping[str, Array]) -> dict[str, float]:
    """Seconds of one run by the text of the group's program; of all places where it is used together."""
    found: dict[str, float] = {}

    def observe(step: Step, seconds: float) -> None:
        if step.compiled is not None:
            key = str(step.compiled.program)
            found[key] = found.get(key, 0.0) + seconds

    engine.run(inputs, observe=observe)
    return found


@dataclass
class EngineTuner:
    """Chooses the plans of one engine. `make`: a group under a plan; `progress`: called instead of showing a bar;
    `seconds`: how a run is measured.
    """

    context: TuningContext
    make: MakeGroup
    progress: Progress | None = None
    seconds: Seconds = seconds_of_groups
    _kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    _made: dict[str, list[Made]] = field(default_factory=dict[str, "list[Made]"])
    _compiled: dict[tuple[str, int], CompiledGroup] = field(default_factory=dict[tuple[str, int], CompiledGroup])

    def engine(self, build: Build) -> Engine:
        """The engine with the fastest plans. `build` gives one from what compiles a group, and what is entered before
        with all groups.
        """
        start = self.context.clock()
        base = build(self._compiler({}), self._all_made)
        if not any(len(found) > 1 for found in self._made.values()):
            return base
        try:
            times = self._stages(base, lambda which: build(self._compiler(which), _nothing_ahead), start)
        except RunError:  # of data that it does not take
            return base
        for key, own in times.items():
            best, made = fastest(own), self._made[key]
            program, found = made[0].candidate.program, made[best].candidate
            shown, took = described(found, program) if best else "", self.context.clock() - start
            measured = Measured(len(own), len(made), took, own[best].seconds, own[best].beside, shown)
            self._kept[key] = Kept(self.context.tuning.plans, found, measured)
            self.context.keep(self.context.path(program, IN_A_MODEL), self._kept[key])
        engine = build(self._compiler({}), _nothing_ahead)
        return replace(engine, seconds=self.context.clock() - start)

    @contextmanager
    def _all_made(self, programs: Sequence[Program], machine: Machine) -> Generator[None]:
        """Plans of all groups are made before anything is measured, so that nothing runs beside that."""
        self.context = replace(self.context, machine=machine)
        found = {str(p): (p, self.context.kept(self.context.path(p, IN_A_MODEL))) for p in programs}
        self._kept = {key: kept for key, (_, kept) in found.items() if kept is not None}
        listed = {key: self.context.candidates([(p, 0.0)]) for key, (p, kept) in found.items() if kept is None}
        turns = zip_longest(*([(key, c) for c in own] for key, own in listed.items()))
        jobs = [job for turn in turns for job in turn if job is not None]
        made: dict[str, list[Prepared | None]] = {key: [] for key in listed}
        with bar(f"making {counted(len(jobs), 'plan')}", self.progress) as step:
            every = self.context.made([c for _, c in jobs], MAKING * self.context.tuning.seconds, step)
            for (key, _), one in zip(jobs, every, strict=True):
                made[key].append(one)
        self._made = {key: different(listed[key], own) for key, own in made.items() if own[0] is not None}
        yield

    def _compiler(self, which: Mapping[str, int]) -> CompileGroup:
        """What compiles groups: by the plan that is kept, else by the one of those made that `which` says."""

        def compile_group(program: Program, machine: Machine) -> CompiledGroup:
            key, threads = str(program), self.context.threads
            if (kept := self._kept.get(key)) is not None:
                found = kept.candidate
                return self.make(program, prepare(found.program, machine, threads, plans=found.plans), kept.measured)
            if key not in self._made:
                return self.make(program, prepare(program, machine, threads), None)
            at = key, which.get(key, 0)
            if at not in self._compiled:
                self._compiled[at] = self.make(program, self._made[key][at[1]].made, None)
            return self._compiled[at]

        return compile_group

    def _stages(
        self, base: Engine, build: Callable[[Mapping[str, int]], Engine], start: float
    ) -> dict[str, dict[int, Times]]:
        """The times of the plans of every group that has several, the first of them the model's choice."""
        several = {key: len(made) for key, made in self._made.items() if len(made) > 1}
        inputs, end = _inputs(base), start + self.context.tuning.seconds
        times: dict[str, dict[int, Times]] = {key: {0: Times(0, 1, 0.0, 0.0, 1.0)} for key in several}
        with bar("measuring plans", self.progress) as step:
            for stage, share in enumerate(SHARES):
                until = self.context.clock() + share * (end - self.context.clock())
                left = {key: sorted(own, key=lambda k: own[k].ratio)[: LEFT + 1] for key, own in times.items()}
                order = left if stage else {key: range(count) for key, count in several.items()}
                turns = [*zip_longest(*([(key, k) for k in ks if k] for key, ks in order.items()))]
                for n, turn in enumerate(turns):
                    if self.context.clock() > until and n:
                        break
                    which = dict(at for at in turn if at is not None)
                    self._pairs(base, build(which), inputs, which, stage, times)
                    step(stage * 50 + 50 * n // len(turns), 100)
        return times

    def _pairs(
        self, base: Engine, other: Engine, inputs: Mapping[str, Array], which: Mapping[str, int], stage: int,
        times: dict[str, dict[int, Times]],
    ) -> None:  # fmt: skip
        """Measure an engine in turns with the first one, each in the second of two runs."""
        found: list[tuple[Mapping[str, float], Mapping[str, float]]] = []
        clock, start = self.context.clock, self.context.clock()
        self.seconds(base, inputs)
        rounds = max(ROUNDS[stage], min(MOST_ROUNDS, int(LONG_ENOUGH / max(clock() - start, 1e-6))))
        for _ in range(rounds):
            both = [[self.seconds(engine, inputs) for _ in range(2)][1] for engine in (base, other)]
            found.append((both[0], both[1]))
        for key, k in which.items():
            first, own = ([one[key] for one in side] for side in zip(*found, strict=True))
            ratio = median(max(b, 1e-9) / max(a, 1e-9) for a, b in zip(first, own, strict=True))
            times[key][k] = Times(stage, len(own), median(own), min(own), ratio)
            times[key][0] = Times(stage, len(own), median(first), min(first), 1.0)


def _inputs(engine: Engine) -> dict[str, Array]:
    """Normal floats; integers are zero."""
    random, graph = np.random.default_rng(0), engine.graph
    found: dict[str, Array] = {}
    for t in graph.inputs:
        array = aligned_zeros(t.extents({}), graph.border_dtype(t))
        if is_float(t.dtype):
            array[...] = random.standard_normal(array.shape, np.float32)
        found[graph.label(t.name)] = array
    return found


@contextmanager
def _nothing_ahead(_programs: Sequence[Program], _machine: Machine) -> Generator[None]:
    """What is compiled was made before."""
    yield
