"""Policy for a core where sizes are free: lanes along a loop of known length, sums of a few vectors in registers.

The choices of `poly.scheduling.cpu` weigh numbers that free sizes do not have. Here each statement for itself gets the
loop of its target's last subscript as lanes, where its length is known and every read lies along it or does not use it;
reduction loops go inside, and the vectors that they sum up are promoted to registers. What a check refuses stays as it
was.
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import var
from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Access, Program, ReadIndex, Statement
from poly.relations import interval_of
from poly.scheduling.cpu_edits import in_vectors
from poly.scheduling.cpu_facts import widest_element
from poly.scheduling.legality import carried
from poly.scheduling.schedule import Schedule

MOST_VECTORS = 8  # of one sum: enough to hide the latency of a multiply-add


def schedule_free(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """A checked schedule; loops of free length are left as they are, the outermost may be parallel."""
    schedule = Schedule(program)
    for s in program.statements:
        try:
            schedule = _with_lanes(schedule, s, machine)
        except PolyError:
            continue
    return _parallel(schedule) if threads > 1 else schedule


def _with_lanes(schedule: Schedule, s: Statement, machine: Machine) -> Schedule:
    lane = _lane(s)
    loops = schedule.nests[s.name].names
    if lane is None or s.external is not None or any(len(schedule.under(n)) > 1 for n in loops):
        return schedule
    loop = next((n for n in loops if schedule.nests[s.name].loops[n] == var(lane)), None)
    width = machine.lanes(widest_element(schedule.program, [s]))
    extent = _extent(schedule.program, s, lane)
    if loop is None or extent is None or extent < width:
        return schedule
    if extent % width:
        schedule = schedule.reorder(loop, *(n for n in loops if n != loop)).split(loop, extent - extent % width)
        extent -= extent % width
        loop = f"{loop}.lo"
        s = next(t for t in schedule.program.statements if t.name in schedule.under(loop))
    return _tiled(schedule, s, loop, width, _vectors(extent // width), machine.register_space)


def _tiled(schedule: Schedule, s: Statement, loop: str, width: int, vectors: int, space: str) -> Schedule:
    kept = {n for x in s.write.index if not isinstance(x, ReadIndex) for n in x.names}
    nest = schedule.nests[s.name]
    sums = [n for n in nest.names if n != loop and not nest.loops[n].names & kept]
    others = [n for n in nest.names if n != loop and n not in sums]
    schedule = schedule.tile({loop: width * vectors})
    inner = [f"{loop}.p"]
    if vectors > 1:
        schedule = schedule.tile({f"{loop}.p": width})
        inner = [f"{loop}.p.o", f"{loop}.p.p"]
    schedule = schedule.reorder(*others, f"{loop}.o", *sums, *inner)
    if sums and s.combiner is not None:
        before = set(schedule.nests)
        schedule = schedule.promote(s.write.tensor, f"{loop}.o", space)
        for copy in sorted(set(schedule.nests) - before):
            schedule = in_vectors(schedule, schedule.nests[copy].names[-1], width * vectors, width)
    if vectors > 1:
        schedule = schedule.unroll(inner[0])
    return schedule.vectorise(inner[-1])


def _lane(s: Statement) -> str | None:
    """The iterator that moves the target, and every read that uses it, from element to element."""
    index = s.write.index
    last = index[-1] if index else None
    if last is None or isinstance(last, ReadIndex) or not last.is_linear:
        return None
    found = [n for n in last.names if n in s.iterators and last.coefficient(n) == 1]
    lanes = [n for n in found if all(_along(a, n) for a, _ in s.accesses)]
    return lanes[-1] if lanes else None


def _along(access: Access, iterator: str) -> bool:
    """True where a step of the iterator is a step of the last subscript, or none."""
    if access.indirect or any(iterator in c.expr.names for c in access.guard):
        return False
    if any(iterator in x.names for x in access.affine_index[:-1]):
        return False
    return all(iterator not in x.names or x.is_linear and x.coefficient(iterator) == 1 for x in access.affine_index)


def _extent(program: Program, s: Statement, iterator: str) -> int | None:
    """The length of a loop that starts at 0 for every value of the others, where it is known."""
    match interval_of(program, s, iterator):
        case (0, high):
            return high + 1
        case _:
            return None


def _vectors(count: int) -> int:
    """How many vectors of a row are summed up together: the most that divide it."""
    return max(n for n in range(1, MOST_VECTORS + 1) if count % n == 0)


def _parallel(schedule: Schedule) -> Schedule:
    done: set[str] = set()
    for name in schedule.nests:
        loops: Sequence[str] = schedule.nests[name].names
        if loops and loops[0] not in done and schedule.kind(loops[0]) == "serial":
            done.add(loops[0])
            if not any(True for _ in carried(schedule, loops[0])):
                schedule = schedule.parallelise(loops[0])
    return schedule
