"""Policy for a core where sizes are free: the nests of `poly.scheduling.cpu_nests`, whose bounds may be symbols.

The choices of `poly.scheduling.cpu` weigh numbers that free sizes do not have. Here loops around several statements are
cut apart, reads under a condition inside of sums go through padded copies, and each statement for itself gets lanes,
and rows of a register tile where lanes are used again: whole blocks are split from the rest at multiples of a block's
size. What a check refuses stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_nests import schedule_nest
from poly.scheduling.distribution import distributed
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.legality import carried
from poly.scheduling.schedule import Schedule


def schedule_free(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """A checked schedule; the outermost loops may be parallel."""
    start, _ = distributed(unchecked(Schedule(program)))
    try:
        schedule = settle(start)
    except PolyError:
        schedule = Schedule(program)
    names = [s.name for s in program.statements if s.external is None]
    schedule = schedule_nest(_padded(schedule), names, machine, 1)
    return _parallel(schedule) if threads > 1 else schedule


def _padded(schedule: Schedule) -> Schedule:
    for s in schedule.program.statements:
        for tensor in sorted({r.tensor for r in s.reads if r.guard}) if s.combiner is not None else ():
            name = f"{tensor}_{s.name}_padded"
            try:
                schedule = schedule.promote(tensor, None, "dram", users=[s.name], name=name, pad=True)
            except PolyError:
                continue
    return schedule


def _parallel(schedule: Schedule) -> Schedule:
    done: set[str] = set()
    for name in schedule.nests:
        loops: Sequence[str] = schedule.nests[name].names
        if loops and loops[0] not in done and schedule.kind(loops[0]) == "serial":
            done.add(loops[0])
            if not any(True for _ in carried(schedule, loops[0])):
                schedule = schedule.parallelise(loops[0])
    return schedule
