"""Policy: which loops of a group threads share (`share`).

A loop that threads share costs them a meeting every time it is reached, and takes as long as the one with the most
iterations. What one thread writes and another reads travels between their caches, slowly: a loop is better that moves
along the tensors which other nests of the group make, copies among them, and those are then shared along the same axis,
so that a thread finds most of them where it wrote them. Of the loops of a nest that carry nothing the cheapest is
taken, from the outside in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.expr import Apply, walk
from poly.machine import Machine
from poly.program import Access, Statement
from poly.relations import expressions_map
from poly.scheduling.cpu_cost import EDGE, core_of
from poly.scheduling.cpu_facts import LIGHT
from poly.scheduling.cpu_shares import shared_time
from poly.scheduling.legality import carried
from poly.scheduling.schedule import Schedule
from poly.sets import fix_sizes, interval

LEAST_SHARED: Final = 1 << 12  # instances: as long as it takes to call the other threads and to wait for them
EVEN: Final = 1.05  # of the least time of a nest: where a loop takes no longer, none inside is better
STREAMED, LONG, SCALAR = 0.4, 2.0, 8.0  # cycles: of an element that is moved, an operation in steps, no lanes (factor)


def share(
    schedule: Schedule, names: Collection[str], machine: Machine, threads: int, depth: int | None = None
) -> Schedule:
    """Split loops over threads, one in every nest of these statements (of its outermost `depth`). A nest that is over
    before a second thread could help stays on one; what only reads constants runs when compiling.
    """
    state = _Sharing(machine, threads)
    moving = [s for s in schedule.program.statements if s.name in names and not _constant(schedule, s)]
    for name in state.by_work(schedule, [s.name for s in moving if not s.copies]):
        schedule = state.share(schedule, name, depth)
    for name in state.by_work(schedule, [s.name for s in moving if s.copies]):
        schedule = state.share(_along(schedule, schedule.program.statement[name], state.done), name, depth)
    return schedule


def _constant(schedule: Schedule, s: Statement) -> bool:
    tensors = schedule.program.tensor
    read = [tensors[r.tensor] for r in s.reads]
    return bool(read) and all(tensors.get(t.origin, t).role == "constant" for t in read)


@dataclass
class _Sharing:
    machine: Machine
    threads: int
    done: set[str] = field(default_factory=set[str])
    alone: set[str] = field(default_factory=set[str])  # loops of nests that are over sooner on one thread

    def by_work(self, schedule: Schedule, names: Sequence[str]) -> list[str]:
        """Nest by nest, in each what takes longest first: its choice is the others', too."""
        first: dict[str, int] = {}
        nests = {n: schedule.nests[n].names[:1] for n in names}
        for k, n in enumerate(names):
            if nests[n]:
                first.setdefault(nests[n][0], k)
        work = {n: self._work(schedule, n) for n in names}
        return sorted((n for n in names if nests[n]), key=lambda n: (first[nests[n][0]], -work[n]))

    def share(self, schedule: Schedule, name: str, depth: int | None) -> Schedule:
        """One nest, if none of its loops is shared yet."""
        loops = schedule.nests[name].names[:depth]
        serial = next((k for k, n in enumerate(loops) if n in self.done or schedule.kind(n) != "serial"), len(loops))
        if serial < len(loops) and loops[serial] in self.done:
            return schedule
        loop = self._cheapest(schedule, name, loops[:serial])
        if loop is None:
            self.alone |= {*loops}
            return schedule
        self.done.add(loop)
        return schedule.parallelise(loop)

    def _holds_shared(self, schedule: Schedule, loop: str) -> bool:
        """Whether a loop inside is shared already, which would be one thread's then."""
        return any(self.done.intersection(schedule.nests[n].names) for n in schedule.under(loop))

    def _cheapest(self, schedule: Schedule, name: str, loops: Sequence[str]) -> str | None:
        """The loop that takes most of a nest's work from the first thread; None where it is over sooner alone."""
        extents = {n: _extent(schedule, n) for n in schedule.nests[name].names}
        best, most = None, 0.0
        for k, loop in enumerate(loops):
            extent, reached = extents[loop], prod(extents[n] for n in loops[:k])
            if extent < 2 or loop in self.alone or self._holds_shared(schedule, loop):
                continue
            if _instances(schedule, loop) < LEAST_SHARED * max(1, reached):
                continue
            whole = sum(self._work(schedule, n) for n in schedule.under(loop))
            far = sum(_bytes(schedule, t) for t in self._travelling(schedule, loop)) * (1 - 1 / self.threads)
            far += _edges(schedule, loop) * (self.threads - 1)
            cost = float(shared_time(whole, extent, reached - 1, far, self.threads))
            if whole - cost > most and not _carries(schedule, loop):
                best, most = loop, whole - cost
                if cost * self.threads <= EVEN * whole and not far:
                    break
        return best

    def _work(self, schedule: Schedule, name: str) -> float:
        """Cycles of a statement's instances, roughly; 0 where a size is free."""
        s = schedule.program.statement[name]
        core = core_of(self.machine, size_bytes(schedule.program.tensor[s.write.tensor].dtype))
        lanes = any(schedule.kind(n) == "vector" for n in schedule.nests[name].names)
        steps = sum(isinstance(e, Apply) and e.operator not in LIGHT for e in walk(s.body))
        used = s.combiner is not None and len(s.reads) > 1
        cycles = (1 / (core.lanes * core.fma_units) if used else STREAMED) + steps * LONG
        return cycles * (1.0 if lanes else SCALAR) * prod(_extent(schedule, n) for n in schedule.nests[name].names)

    def _travelling(self, schedule: Schedule, loop: str) -> Iterator[str]:
        """Tensors that nests outside of a loop make, in other shares than its iterations use."""
        program, inside = schedule.program, set(schedule.under(loop))
        makers: dict[str, list[Statement]] = {}
        for s in program.statements:
            makers.setdefault(s.write.tensor, []).append(s)
        for tensor, found in makers.items():
            if program.tensor[tensor].role != "temporary" or all(s.name in inside for s in found):
                continue
            if all(_constant(schedule, s) for s in found):
                continue
            made = {axis for s in found for axis in self._made_along(schedule, s)}
            reads = [(s, r) for s in program.statements if s.name in inside for r in s.reads if r.tensor == tensor]
            moved = [set(_moved_axes(schedule, s, r, loop)) for s, r in reads]
            if not all(axes & made if made else axes for axes in moved):
                yield tensor

    def _made_along(self, schedule: Schedule, s: Statement) -> Iterator[int]:
        """The axes of what a statement writes along which threads share it."""
        for loop in schedule.nests[s.name].names:
            if loop in self.done:
                yield from _moved_axes(schedule, s, s.write, loop)


def _along(schedule: Schedule, copy: Statement, shared: Collection[str]) -> Schedule:
    """A copy's loop outermost that runs along the axis of the buffer along which threads share its use."""
    for s in schedule.program.statements:
        loop = next((n for n in schedule.nests[s.name].names if n in shared), None)
        if loop is None or copy.name in schedule.under(loop):
            continue
        for read in s.reads:
            if read.tensor != copy.write.tensor:
                continue
            for axis in _moved_axes(schedule, s, read, loop):
                return _outermost(schedule, copy, axis)
    return schedule


def _outermost(schedule: Schedule, copy: Statement, axis: int) -> Schedule:
    """A copy's serial loop along an axis outside of its other loops, apart from other pieces of the copy."""
    own = [n for n in schedule.nests[copy.name].names if schedule.program.statement[copy.name].copies]
    own = [n for n in own if n.startswith("ld_") and schedule.kind(n) == "serial"]
    names = copy.write.affine_index[axis].names
    wanted = next((n for n in own if schedule.nests[copy.name].loops[n].names & names), None)
    if wanted is None or own[0] == wanted:
        return schedule
    try:
        apart = _alone(schedule, copy.name, own[0], wanted)
        loops = apart.nests[copy.name].names
        around = loops[loops.index(wanted) - 1 :: -1][: own.index(wanted)]
        return apart.reorder(wanted, *reversed(around))
    except ScheduleError:
        return schedule


def _alone(schedule: Schedule, name: str, outer: str, inner: str) -> Schedule:
    """What lies in a loop beside an inner one in loops of its own."""
    start = schedule.nests[name].names.index(outer)
    places = _places(schedule, name, outer, inner)
    if len(places) > 1 and (at := places.index(True)):
        schedule = schedule.distribute(outer, at)
        outer = schedule.nests[name].names[start]
        places = places[at:]
    return schedule.distribute(outer, 1) if len(places) > 1 else schedule


def _places(schedule: Schedule, name: str, outer: str, inner: str) -> list[bool]:
    """The things in a loop, in order: which of them holds an inner loop."""
    found: dict[object, bool] = {}
    for other in schedule.under(outer):
        path = schedule.nests[other].path
        step = path[path.index(outer) + 1]
        found[step] = found.get(step, False) or inner in schedule.nests[other].names
    return [*found.values()]


def _moved_axes(schedule: Schedule, s: Statement, access: Access, loop: str) -> Iterator[int]:
    """The subscripts of an access in which the loop takes part; all of a copy that is made in every iteration."""
    names = schedule.nests[s.name].loops[loop].names
    inside = bool(s.copies) and names <= set(s.iterators[: len(schedule.program.tensor[s.write.tensor].scope)])
    for axis, subscript in enumerate(access.index):
        if inside or names & getattr(subscript, "names", frozenset[str]()):
            yield axis


def _bytes(schedule: Schedule, tensor: str) -> int:
    """Of a tensor as often as it is filled."""
    t = schedule.program.tensor[tensor]
    try:
        return t.nbytes(schedule.program.binding) * prod(max(1, _extent(schedule, loop)) for loop in t.scope)
    except KeyError:  # a free size
        return 0


def _edges(schedule: Schedule, loop: str) -> float:
    """Bytes that prefetchers fetch of what another thread writes, where threads write the same rows side by side."""
    rows: dict[str, int] = {}
    for name in schedule.under(loop):
        s = schedule.program.statement[name]
        tensor = schedule.program.tensor[s.write.tensor]
        moved = {*_moved_axes(schedule, s, s.write, loop)}
        if tensor.layout is not None or loop in tensor.scope or moved != {tensor.rank - 1}:
            continue
        known = [e for e in tensor.shape[:-1] if e.names <= schedule.program.binding.keys()]
        rows[tensor.name] = prod(int(e.evaluate(schedule.program.binding)) for e in known)
    return EDGE * float(sum(rows.values()))


def _carries(schedule: Schedule, loop: str) -> bool:
    return any(True for _ in carried(schedule, loop))


def _instances(schedule: Schedule, loop: str) -> int:
    """Of all statements under a loop, without those whose sizes are free."""
    return sum(prod(_extent(schedule, n) for n in schedule.nests[name].names) for name in schedule.under(loop))


def _extent(schedule: Schedule, loop: str) -> int:
    """Iterations of a loop over all statements under it, 0 where not known."""
    most = 0
    for name in schedule.under(loop):
        s = schedule.program.statement[name]
        values = fix_sizes(
            expressions_map(s, (schedule.nests[name].loops[loop],), schedule.program.parameters),
            schedule.program.binding,
        ).range()
        found = interval(values, 0)
        if found is not None:
            most = max(most, found[1] - found[0] + 1)
    return most
