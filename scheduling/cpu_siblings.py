"""Policy for groups of sums of columns: several that read the same rows, in one walk through them.

Each is scheduled for itself (`poly.scheduling.cpu_reduce`); then their loops over strips, blocks of rows and tiles are
shared, so that what one has loaded the next finds in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poly.machine import Machine
from poly.program import Program
from poly.relations import intervals_of
from poly.scheduling.cpu_edits import fused
from poly.scheduling.cpu_reduce import reduction_of
from poly.scheduling.cpu_reduce_nest import schedule_reduction
from poly.scheduling.cpu_reduce_plan import Spread
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Siblings:
    """`plans`: one for each part of a group, alike but for the names."""

    plans: tuple[Spread, ...]


def siblings_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Siblings | None:
    """The choices for a group of sums of columns, of which none adds up what another part makes; else None."""
    plans: list[Spread] = []
    starts = list[int]()  # statements before each sum
    made = set[str]()
    for part in group.parts:
        plan = reduction_of(program, part, machine, threads)
        if not isinstance(plan, Spread):
            return None
        starts.append(part.names.index(plan.statement))
        if made & {t for s in part.statements[: starts[-1] + 1] for t in (*tensors_read(s), *tensors_written(s))}:
            return None
        made |= {t for s in part.statements for t in tensors_written(s)}
        step = plan.width * plan.vector
        strip = max(step, plan.strip // len(group.parts) // step * step)
        plans.append(replace(plan, strip=strip, ahead=0 if plans else plan.ahead, start=""))
    forms = {(_extents(program, p), p.vector, p.height, p.width, p.strip) for p in plans}
    return Siblings(tuple(plans)) if len(plans) > 1 and len(forms) == 1 and len({*starts}) == 1 else None


def _extents(program: Program, plan: Spread) -> tuple[int, ...]:
    found = intervals_of(program, program.statement[plan.statement])
    loops = (*plan.outer, plan.rows, plan.lanes)
    return tuple(high - low + 1 for low, high in (found[i] or (0, -1) for i in loops))


def schedule_siblings(schedule: Schedule, group: Group, plan: Siblings, machine: Machine) -> Schedule:
    """Each part for itself, then the loops of its sum shared with those of the first one."""
    for part, own in zip(group.parts, plan.plans, strict=True):
        schedule = schedule_reduction(schedule, part, own, machine)
    first, *others = zip(group.parts, plan.plans, strict=True)
    for part, own in others:
        start = part.names.index(own.statement)
        for pair in zip(first[0].names[:start], part.names[:start], strict=True):
            schedule = fused(schedule, pair, [0])
        walks = [_walks(schedule, p.statement) for p in (first[1], own)]
        for pieces in zip(*walks, strict=True):
            schedule = _shared(schedule, pieces, len(own.outer) + 2)
    return schedule


def _walks(schedule: Schedule, name: str) -> list[list[str]]:
    """The pieces of a statement by their outermost loops."""
    found: dict[str, list[str]] = {}
    for s in schedule.program.statements:
        if s.source_name == name and not s.copies and not s.partial:
            found.setdefault(schedule.nests[s.name].names[0], []).append(s.name)
    return list(found.values())


def _shared(schedule: Schedule, pieces: Sequence[Sequence[str]], depth: int) -> Schedule:
    """The loops around blocks of rows shared, and for each piece those over its tiles."""
    schedule = fused(schedule, [p[0] for p in pieces], range(depth))
    for names in zip(*pieces, strict=True):
        schedule = fused(schedule, names, [depth])
    return schedule
