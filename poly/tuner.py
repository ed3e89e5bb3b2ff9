"""Plans chosen by measuring them on this machine: `compile(..., tune=32)`.

The model's favourites (`poly.scheduling.cpu_candidates`) are made like any plan, so each is proven legal, by as many
processes as compile a model, then measured in turns on arrays like the caller's. What was found is kept on disk beside
the plans, under the program, the machine and the number of threads, so that it is measured once. Without `tune` a
plan depends on nothing that was measured. Groups of a model are measured where they run (`poly.tuned_engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.ahead import made_ahead
from poly.cache_content import package_hash, pickled, read_pickle
from poly.console import Progress, interactive, steps
from poly.disk_cache import cache_directory, cache_entry, write_entry
from poly.dtypes import Array, is_float, numpy_dtype
from poly.errors import PolyError, RunError
from poly.machine import Machine
from poly.pointers import address, aligned_zeros
from poly.prepared import Prepared, is_prepared, prepare
from poly.program import Program, Tensor
from poly.scheduling.cpu_candidates import Candidate, candidates_of
from poly.scheduling.cpu_plan import BlockPlan, Site
from poly.trials import Call, Clock, Times, Trial
from poly.tuning import Measured, Tuning

if TYPE_CHECKING:
    from poly.codegen.kernel import Kernel

MAKING: Final = 0.6  # of the time, at most, until plans are made; the rest is for measuring them
GAIN: Final = 0.99  # of the time of the model's choice, at most: what is closer to it cannot be told from it
ROOM: Final = 1 << 30  # bytes of constants in the forms of all plans, at most

Ways = Sequence[tuple[Program, float]]
_SITES: Final[Mapping[Site, str]] = {"whole": "once", "lanes": "for blocks of lanes", "rows": "for blocks of rows"}


@dataclass(frozen=True)
class Kept:
    """An entry of the disk cache: the candidate that was the fastest of `asked` ones."""

    asked: int
    candidate: Candidate
    measured: Measured


@dataclass(frozen=True)
class TuningContext:
    """For what plans are measured, and where what was found is kept."""

    tuning: Tuning
    machine: Machine
    threads: int
    clock: Clock = perf_counter

    def kept(self, path: Path | None) -> Kept | None:
        """What was found before for at least as many plans."""
        found = read_pickle(path)
        return found if isinstance(found, Kept) and found.asked >= self.tuning.plans else None

    def keep(self, path: Path | None, found: Kept) -> None:
        """Have it on disk."""
        if path is not None:
            write_entry(path, pickled(found))

    def path(self, program: Program, how: str) -> Path | None:
        """Where the choice for a program is kept; `how`: what it depends on besides."""
        return cache_entry(
            "tuned", (str(program), how, self.machine.hash, str(self.threads), package_hash()), ".pickle"
        )

    def candidates(self, ways: Ways) -> list[Candidate]:
        """See `candidates_of`."""
        program = ways[0][0]
        constants = sum(t.nbytes(program.binding) for t in program.with_role("constant"))
        most = max(2, ROOM // max(1, constants))
        return candidates_of(ways, self.machine, self.threads, min(self.tuning.plans, most))

    def made(self, jobs: Sequence[Candidate], seconds: float, step: Progress) -> Iterator[Prepared | None]:
        """What is made of each in so many seconds, from the front here and from the back by other processes; None of
        what is refused, or missing in the end.
        """
        end = self.clock() + seconds
        with made_ahead([(c.program, c.plans) for c in jobs], self.machine, self.threads):
            for k, c in enumerate(jobs):
                in_time = k == 0 or self.clock() < end or is_prepared(c.program, self.machine, self.threads, c.plans)
                yield self.prepared(c) if in_time else None
                step(k + 1, len(jobs))

    def prepared(self, c: Candidate) -> Prepared | None:
        """A candidate with its object code; None where it is refused."""
        try:
            made = prepare(c.program, self.machine, self.threads, plans=c.plans)
        except PolyError:
            return None
        if cache_directory() is not None:
            made.compile(self.machine)
        return made


@dataclass(frozen=True)
class Tuned:
    """What measuring found for a program: the plan, as it is prepared, and how it was found."""

    program: Program
    made: Prepared
    measured: Measured


def tuned(
    program: Program, ways: Callable[[], Ways], finite: Collection[str], ready: Callable[[Program, Prepared], Kernel],
    context: TuningContext,
) -> Tuned | None:  # fmt: skip
    """The fastest plan of a program; None where there is nothing to choose from, or no time for it. `ways`: see
    `candidates_of`; `finite`: the constants of which they depend; `ready`: the kernel of one of them.
    """
    path = context.path(program, repr(sorted(finite)))
    kept = context.kept(path)
    if kept is None:
        start = context.clock()
        listed = context.candidates(ways())
        if len(listed) < 2:
            return None
        with bar(f"making plans for {program.name}") as step:
            every = different(listed, context.made(listed, MAKING * context.tuning.seconds, step))
        if len(every) < 2:
            return None
        try:
            kept = _fastest(_Trials(every, _arrays(program), ready, context.clock), context, start)
        except RunError:  # of data that it does not take
            return None
        context.keep(path, kept)
    found = kept.candidate
    made = prepare(found.program, context.machine, context.threads, plans=found.plans)
    return Tuned(found.program, made, kept.measured)


def _fastest(trials: _Trials, context: TuningContext, start: float) -> Kept:
    """The fastest of some plans. Where several contractions have a faster one, these together are a plan more."""
    every, end = trials.plans, start + context.tuning.seconds
    times = trials.times(range(len(every)), (end - context.clock()) / 2)
    best = fastest(times)
    faster = sorted((k for k, t in times.items() if t.ratio < GAIN), key=lambda k: times[k].ratio)
    joint = _joint([every[k].candidate for k in faster])
    made = context.prepared(joint) if joint is not None else None
    if joint is not None and made is not None:
        every.append(Made(joint, made))
        times |= trials.times([*dict.fromkeys((0, best, len(every) - 1))], end - context.clock())
        best = fastest(times)
    found, took = every[best].candidate, context.clock() - start
    shown = described(found, every[0].candidate.program) if best else ""
    measured = Measured(len(times), len(every), took, times[best].seconds, times[best].beside, shown)
    return Kept(context.tuning.plans, found, measured)


@dataclass(frozen=True)
class Made:
    """A candidate and what was made of it."""

    candidate: Candidate
    made: Prepared


@dataclass(frozen=True)
class _Trials:
    """Plans of one program, and the arrays on which they are measured."""

    plans: list[Made]
    arrays: Mapping[str, Array]
    ready: Callable[[Program, Prepared], Kernel]
    clock: Clock

    def times(self, which: Sequence[int], seconds: float) -> dict[int, Times]:
        """Of some plans, the first of them beside all others."""
        found = Trial(max(seconds, 1e-3), self.clock).run(len(which), lambda k: self._call(self.plans[which[k]]))
        return {which[k]: t for k, t in found.items()}

    def _call(self, plan: Made) -> Call:
        kernel = self.ready(plan.candidate.program, plan.made)
        names = [t.name for t in (*kernel.inputs, *kernel.outputs)]
        run, places = kernel.runner(names), [address(self.arrays[n]) for n in names]
        return lambda: run(places)


def different(listed: Sequence[Candidate], made: Iterable[Prepared | None]) -> list[Made]:
    """Those that could be made, of equal code one."""
    found: dict[tuple[str, str], Made] = {}
    for candidate, one in zip(listed, made, strict=True):
        if one is not None:
            code = one.after.ir, one.before.ir if one.before is not None else ""
            found.setdefault(code, Made(candidate, one))
    return [*found.values()]


def fastest(times: Mapping[int, Times]) -> int:
    """The fastest of those that were measured most often; the choice where none is faster by more than chance."""
    last = max((t.stage for t in times.values()), default=0)
    best = min((k for k, t in times.items() if t.stage == last), key=lambda k: times[k].ratio, default=0)
    return best if best in times and times[best].ratio < GAIN else 0


def _joint(faster: Sequence[Candidate]) -> Candidate | None:
    """The first plan of each contraction of one program together; None where there is one contraction."""
    plans: dict[tuple[str, ...], BlockPlan] = {}
    for c in faster:
        if c.program is faster[0].program and len(c.plans) == 1:
            plans.setdefault(*c.plans[0])
    return Candidate(faster[0].program, tuple(plans.items()), faster[0].cycles) if len(plans) > 1 else None


def _arrays(program: Program) -> dict[str, Array]:
    """Arrays like a caller's: normal floats; integers are zero, which any place is."""
    random = np.random.default_rng(0)

    def made(t: Tensor) -> Array:
        found = aligned_zeros(t.extents(program.binding), numpy_dtype(t.dtype))
        if is_float(t.dtype) and not t.is_output:
            found[...] = random.standard_normal(found.shape, np.float32)
        return found

    return {t.name: made(t) for t in program.tensors if t.is_output or t.role in ("input", "inout", "constant")}


def described(c: Candidate, chosen: Program) -> str:
    """What a candidate does, where that is not what the model chooses."""
    lines = ["after other edits of the program"] if c.program != chosen else []
    for _, plan in c.plans:
        strip = plan.strips[0]
        tile = f"tiles of {strip.rows[-1].tile} x {strip.width} vectors"
        depth = [f"blocks of {plan.depth[1]} steps of {plan.depth[0]}"] if plan.depth is not None else []
        packs = [f"{p.tensor} packed {_SITES[p.site]}" for p in plan.packs]
        lines.append(", ".join((tile, *depth, *packs)))
    return "; ".join(lines)


def _silent(_done: int, _all: int) -> None:
    """Where nobody watches."""


def bar(what: str, progress: Progress | None = None) -> AbstractContextManager[Progress]:
    """What shows how far work is: a caller's function, else as an interactive session has it."""
    return steps(what) if progress is None and interactive() else nullcontext(progress or _silent)
