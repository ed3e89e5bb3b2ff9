"""Copies for loops that threads share: each makes what it uses, so the copy runs along the axis that they share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from poly.errors import ScheduleError
from poly.program import Statement
from poly.scheduling.cpu_core import PAGE
from poly.scheduling.cpu_facts import bytes_apart
from poly.scheduling.cpu_loop_facts import extent_of, moved_axes
from poly.scheduling.schedule import Schedule

PARTS: Final = 8  # of a copy for each thread, of which it takes a quarter at a time


def with_copy_along(schedule: Schedule, copy: Statement, shared: Collection[str], threads: int) -> Schedule:
    """A copy's loop outermost that runs along the axis of the buffer along which threads share its use."""
    for s in schedule.program.statements:
        loop = next((n for n in schedule.nests[s.name].names if n in shared), None)
        if loop is None or copy.name in schedule.under(loop):
            continue
        for read in s.reads:
            if read.tensor != copy.write.tensor:
                continue
            for axis in moved_axes(schedule, s, read, loop):
                return _outermost(schedule, copy, axis, PARTS * threads)
    return schedule


def _outermost(schedule: Schedule, copy: Statement, axis: int, parts: int) -> Schedule:
    """A copy's serial loop along an axis outside of its other loops, apart from other pieces of the copy; where these
    go from page to page, about as many blocks of it as there are to be `parts`, so that pieces are longer.
    """
    own = [n for n in schedule.nests[copy.name].names if n.startswith("ld_") and schedule.kind(n) == "serial"]
    names = copy.write.affine_index[axis].names
    wanted = next((n for n in own if schedule.nests[copy.name].loops[n].names & names), None)
    if wanted is None or own[0] == wanted:
        return schedule
    try:
        apart = _apart(schedule, copy.name, own[0], wanted)
        loops = apart.nests[copy.name].names
        around = loops[loops.index(wanted) - 1 :: -1][: own.index(wanted)]
        size = extent_of(apart, wanted) // parts
        if size < 2 or not _in_pages(apart, copy, around):
            return apart.reorder(wanted, *reversed(around))
        tiled = apart.tile({wanted: size})
        return tiled.reorder(f"{wanted}.o", *reversed(around), f"{wanted}.p")
    except ScheduleError:
        return schedule


def _in_pages(schedule: Schedule, copy: Statement, loops: Sequence[str]) -> bool:
    """Whether every step of some loops takes a copy to another page."""
    read, nest = copy.reads[0], schedule.nests[copy.name]
    steps = [bytes_apart(schedule.program, read, i) for n in loops for i in nest.loops[n].names]
    return all(step is not None and step >= PAGE for step in steps if step != 0)


def _apart(schedule: Schedule, name: str, outer: str, inner: str) -> Schedule:
    """What lies in a loop beside an inner one in loops of its own."""
    start = schedule.nests[name].names.index(outer)
    places = _places(schedule, outer, inner)
    if len(places) > 1 and (at := places.index(True)):
        schedule = schedule.distribute(outer, at)
        outer = schedule.nests[name].names[start]
        places = places[at:]
    return schedule.distribute(outer, 1) if len(places) > 1 else schedule


def _places(schedule: Schedule, outer: str, inner: str) -> list[bool]:
    """The things in a loop, in order: which of them holds an inner loop."""
    found: dict[object, bool] = {}
    for other in schedule.under(outer):
        path = schedule.nests[other].path
        step = path[path.index(outer) + 1]
        found[step] = found.get(step, False) or inner in schedule.nests[other].names
    return [*found.values()]
