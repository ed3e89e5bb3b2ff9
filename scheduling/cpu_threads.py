"""Policy: which loops threads share: of a group (`share`), of statements of no group (`share_outermost`).

A loop that threads share costs them a meeting every time it is reached, and takes as long as the one with the most
iterations. What one thread writes and another reads or writes travels between their caches, slowly: a loop is better
that moves along the tensors which it has in common with other nests of the group, copies among them, as those are
shared; a nest too small to be shared for its own sake is, where the others' threads would fetch what it wrote; and what
one thread alone makes or uses has to be worth fetching. Of the loops of a nest that carry nothing those are taken that
spare most, none inside of another; what takes longest chooses first. Of statements of no group sizes may be free,
triangles have no extent: where nothing can be weighed, the outermost loop that carries nothing is shared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Final

from poly.affine import var
from poly.dtypes import size_bytes
from poly.expr import Apply, walk
from poly.machine import Machine
from poly.program import Statement
from poly.relations import interval_of, range_of
from poly.scheduling.cpu_copy_order import with_copy_along
from poly.scheduling.cpu_core import core_of, remote_rate
from poly.scheduling.cpu_facts import FUNCTION_ELEMENT_CYCLES, LIGHT
from poly.scheduling.cpu_loop_facts import (
    Use,
    bytes_at_edges,
    bytes_of_uses,
    extent_of,
    instances_under,
    largest_share,
    moved_axes,
    runs_of,
)
from poly.scheduling.cpu_shares import CALL, shared_time
from poly.scheduling.legality import carried
from poly.scheduling.schedule import Schedule

# Prices of sharing, in cycles. A loop pays `CALL` each time that it is reached. Whole programs and nests of no group
# have to be worth more: the first because a call takes several times as long while cores are far apart (0068), the
# others because nothing says how evenly their iterations share the work.
LEAST_PROGRAM: Final = 3000.0  # of a whole program with everything in the first cache
LEAST_NEST: Final = 6500.0  # of one run of a nest of no group, were its instances elements that are moved
EVEN: Final = 1.05  # of the least time of a nest: where a loop takes no longer, none inside is better
# Of what a loop spares: as much is worth sharing several loops inside instead; more of one that has an iteration for
# each thread, as blocks that each packs for itself (`thread_blocks`).
BETTER, BETTER_THAN_BLOCKS = 1.02, 1.1
STREAMED_CYCLES, SCALAR = 0.4, 8.0  # of an element that is moved; factor without lanes
# Of a product that lanes add up, in a loop that is reached again and again: 55,000 for each of 40 steps (a GRU of 96)
# take longer on two threads (94 -> 155 us), 131,000 do not (an LSTM of 128, 1086 -> 947).
SUMMED_CYCLES: Final = 0.05


def share(
    schedule: Schedule, names: Collection[str], machine: Machine, threads: int, depth: int | None = None
) -> Schedule:
    """Split loops over threads in every nest of these statements: of its outermost `depth` those that spare most, side
    by side where there are several. A nest that is over before a second thread could help stays on one; what only reads
    constants runs when compiling.
    """
    state = _Sharing(machine, threads, depth, on_one=_on_one(schedule, names))
    moving = [s for s in schedule.program.statements if s.name in names and not _constant(schedule, s)]
    alone = schedule
    for nest in state.by_work(schedule, [s.name for s in moving if not s.copies]):
        schedule = state.share(schedule, nest)
    nests = {n for s in moving for n in schedule.nests[s.name].names[:1]}
    if state.saved < CALL * (len(nests) - 1) and _is_whole(schedule, names):  # threads meet behind each of them
        return alone
    for nest in state.by_work(schedule, [s.name for s in moving if s.copies]):
        for name in nest:
            copy = schedule.program.statement[name]
            schedule = state.share(with_copy_along(schedule, copy, state.done, threads), [name])
    return schedule


def is_short(schedule: Schedule, machine: Machine, lanes: bool = False) -> bool:
    """Whether a whole program is surely over on one thread before others could help. `lanes`: if all its loops had
    some, which no schedule undercuts; else those that this one has.
    """
    state, total = _Sharing(machine, 1), 0.0
    for s in schedule.program.statements:
        if s.external is not None or any(range_of(schedule.program, s, var(i)) is None for i in s.iterators):
            return False
        total += 0.0 if _constant(schedule, s) else state.least(schedule, s, lanes)
        if total >= LEAST_PROGRAM:
            return False
    return True


def share_outermost(schedule: Schedule, names: Collection[str], threads: int) -> Schedule:
    """Split the outermost loop over threads of each nest of these statements that carries nothing and has work for all
    of them.
    """
    done: set[str] = set()
    for name in [s.name for s in schedule.program.statements if s.source_name in names]:
        for loop in schedule.nests[name].names:
            if loop in done or schedule.kind(loop) != "serial":
                break
            if _has_work(schedule, loop, threads) and not _carries(schedule, loop):
                schedule = schedule.parallelise(loop)
                done.add(loop)
                break
    return schedule


def _has_work(schedule: Schedule, loop: str, threads: int) -> bool:
    """Whether one run of a loop is worth calling the other threads: by the boxes around the domains. Where sizes leave
    it open, an outermost loop is.
    """
    total, unknown = 0.0, threads if len(schedule.outer(loop)) > 1 else inf
    for name in schedule.under(loop):
        s, nest = schedule.program.statement[name], schedule.nests[name]
        inner = {i for n in nest.names[nest.names.index(loop) :] for i in nest.loops[n].names}
        outer = {i for n in nest.names[: nest.names.index(loop)] for i in nest.loops[n].names}
        product = 1.0
        for iterator in inner - outer:
            if iterator in s.iterators:
                found = interval_of(schedule.program, s, iterator)
                product *= unknown if found is None else max(found[1] - found[0] + 1, 0) or unknown
        lanes = any(schedule.kind(n) == "vector" for n in nest.names)
        summed = lanes and len(schedule.outer(loop)) > 1 and s.combiner is not None and len(s.reads) > 1
        total += product * (SUMMED_CYCLES if summed else STREAMED_CYCLES)
    return total >= LEAST_NEST


def _on_one(schedule: Schedule, names: Collection[str]) -> set[str]:
    """The loops of statements before these that one thread runs, as they were left to it."""
    before = takewhile(lambda s: s.name not in names, schedule.program.statements)
    nests = [schedule.nests[s.name].names for s in before if not _constant(schedule, s)]
    return {n for nest in nests if all(schedule.kind(n) != "parallel" for n in nest) for n in nest}


def _is_whole(schedule: Schedule, names: Collection[str]) -> bool:
    """Whether statements are all of a program but for what runs when compiling."""
    return all(s.name in names or _constant(schedule, s) for s in schedule.program.statements)


def _constant(schedule: Schedule, s: Statement) -> bool:
    tensors = schedule.program.tensor
    read = [tensors[r.tensor] for r in s.reads]
    return bool(read) and all(tensors.get(t.origin, t).role == "constant" for t in read)


@dataclass(frozen=True)
class _Shared:
    """Loops that threads share, none inside of another, and the cycles of the first thread that this spares."""

    saved: float = 0.0
    loops: tuple[str, ...] = ()


@dataclass
class _Sharing:
    """What is shared already, while nests are. `depth`: of the loops of a nest that may be, all where it is None."""

    machine: Machine
    threads: int
    depth: int | None = None
    done: set[str] = field(default_factory=set[str])
    on_one: set[str] = field(default_factory=set[str])  # loops of nests that are over sooner on one thread
    saved: float = 0.0  # cycles of the first thread, by all that is shared

    def by_work(self, schedule: Schedule, names: Sequence[str]) -> list[list[str]]:
        """The statements of each nest, what takes longest first."""
        nests: dict[str, list[str]] = {}
        for n in names:
            for outermost in schedule.nests[n].names[:1]:
                nests.setdefault(outermost, []).append(n)
        work = {n: self._work(schedule, n) for n in names}
        return [
            sorted(nest, key=lambda n: -work[n])
            for nest in sorted(nests.values(), key=lambda nest: -sum(work[n] for n in nest))
        ]

    def share(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """Some statements of a nest, but for those in loops that are shared already."""
        names = [n for n in names if not self.done.intersection(schedule.nests[n].names)]
        best = self._best(schedule, names, 0, 1)
        self.saved += best.saved
        for loop in best.loops:
            schedule = schedule.parallelise(loop)
            self.done.add(loop)
        for n in names:
            if not self.done.intersection(schedule.nests[n].names):
                self.on_one |= {*schedule.nests[n].names[: self.depth]}
        return schedule

    def _best(self, schedule: Schedule, names: Sequence[str], level: int, reached: int) -> _Shared:
        """Of statements in the same `level` loops, which are reached so many times: the loops from there on."""
        inner: dict[str, list[str]] = {}
        for n in names:
            for loop in schedule.nests[n].names[: self.depth][level : level + 1]:
                inner.setdefault(loop, []).append(n)
        saved, loops = 0.0, tuple[str, ...]()
        for loop, below in inner.items():
            if schedule.kind(loop) == "serial":
                found = self._from(schedule, loop, below, level, reached)
                saved, loops = saved + found.saved, (*loops, *found.loops)
        return _Shared(saved, loops)

    def _from(
        self, schedule: Schedule, loop: str, names: Sequence[str], level: int, reached: int
    ) -> _Shared:
        """A loop or those inside."""
        saved, even = self._saved(schedule, loop, reached)
        if saved and even:
            if not _carries(schedule, loop):
                return _Shared(saved, (loop,))
            saved = 0.0
        inside = self._best(schedule, names, level + 1, reached * max(1, extent_of(schedule, loop)))
        better = BETTER_THAN_BLOCKS if extent_of(schedule, loop) == self.threads else BETTER
        if saved and better * saved >= inside.saved and not _carries(schedule, loop):
            return _Shared(saved, (loop,))
        return inside

    def _saved(self, schedule: Schedule, loop: str, reached: int) -> tuple[float, bool]:
        """Cycles of the first thread that sharing a loop spares, 0 where that is not worth calling the others; and
        whether hardly more could be spared.
        """
        extent = extent_of(schedule, loop)
        if extent < 2 or loop in self.on_one or self._holds_shared(schedule, loop):
            return 0.0, False
        far, fetched = self._travelling(schedule, loop)
        moved = instances_under(schedule, loop) * STREAMED_CYCLES  # whatever is done with them: that is guessed
        if not fetched and moved < 2 * CALL * max(1, reached):
            return 0.0, False
        whole = sum(self._work(schedule, n) for n in schedule.under(loop))
        far += bytes_at_edges(schedule, loop) * (self.threads - 1)
        remote, largest = remote_rate(self.machine), largest_share(schedule, loop, extent)
        cost = CALL + float(shared_time(whole, extent, reached - 1, far, self.threads, remote, largest))
        return max(0.0, whole + fetched / remote - cost), cost * self.threads <= EVEN * whole and not far

    def _holds_shared(self, schedule: Schedule, loop: str) -> bool:
        """Whether a loop inside is shared already, which would be one thread's then."""
        return any(self.done.intersection(schedule.nests[n].names) for n in schedule.under(loop))

    def least(self, schedule: Schedule, s: Statement, lanes: bool) -> float:
        """Cycles of a statement's instances where all that they touch is in the nearest cache."""
        vector = self.machine.lanes(size_bytes(schedule.program.tensor[s.write.tensor].dtype))
        return self._work(schedule, s.name, 1 / max(1, vector), lanes)

    def _work(
        self, schedule: Schedule, name: str, moved: float = STREAMED_CYCLES, lanes: bool = False
    ) -> float:
        """Cycles of a statement's instances, roughly; 0 where a size is free. `moved`: of an element that is moved;
        `lanes`: even if no loop is one of lanes.
        """
        s = schedule.program.statement[name]
        unit, marks = self.machine.matrix_unit, schedule.marks
        if unit is not None and any(marks[n].engine == unit.name for n in schedule.nests[name].names if n in marks):
            operator = s.body.operator if isinstance(s.body, Apply) else ""
            return runs_of(schedule, name, 1) / unit.products(operator)
        core = core_of(self.machine, size_bytes(schedule.program.tensor[s.write.tensor].dtype))
        lanes = lanes or any(schedule.kind(n) == "vector" for n in schedule.nests[name].names)
        steps = sum(isinstance(e, Apply) and e.operator not in LIGHT for e in walk(s.body))
        used = s.combiner is not None and len(s.reads) > 1
        cycles = (1 / (core.lanes * core.fma) if used else moved) + steps * FUNCTION_ELEMENT_CYCLES
        whole = core.lanes if used else 1  # a vector takes as long for a part of its lanes
        return cycles * (1.0 if lanes else SCALAR) * runs_of(schedule, name, whole)

    def _travelling(self, schedule: Schedule, loop: str) -> tuple[float, float]:
        """Bytes of what a loop and other nests have in common that go from one thread to another where threads share
        it, and where one thread runs it.
        """
        inside, uses = set(schedule.under(loop)), dict[str, list[Use]]()
        for s in schedule.program.statements:
            made = not _constant(schedule, s)
            for access, kind in s.accesses:
                uses.setdefault(access.tensor, []).append(Use(s, access, made and kind == "write"))
        shared, fetched = 0.0, 0.0
        for found in uses.values():
            own = [u for u in found if u.statement.name in inside]
            makes = any(u.makes for u in own)
            others = [u for u in found if u.statement.name not in inside and (makes or u.makes)]
            if not own or not others:
                continue
            spread = any(self.done.intersection(schedule.nests[u.statement.name].names) for u in others)
            apart = any(self.on_one.intersection(schedule.nests[u.statement.name].names) for u in others)
            along = {axis for u in others for axis in self._shared_along(schedule, u)}
            moved = [set(moved_axes(schedule, u.statement, u.access, loop)) for u in own]
            size = min(bytes_of_uses(schedule, part) for part in (own, others)) * (1 - 1 / self.threads)
            near = not apart and all(axes & along if spread else axes for axes in moved)
            shared += 0.0 if near else size
            fetched += size if spread else 0.0
        return shared, fetched

    def _shared_along(self, schedule: Schedule, use: Use) -> Iterator[int]:
        """The axes of an access along which threads share its statement."""
        for loop in schedule.nests[use.statement.name].names:
            if loop in self.done:
                yield from moved_axes(schedule, use.statement, use.access, loop)


def _carries(schedule: Schedule, loop: str) -> bool:
    return any(True for _ in carried(schedule, loop))
