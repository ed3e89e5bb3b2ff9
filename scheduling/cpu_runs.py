"""Policy for assignments whose target and largest read are contiguous along one loop: the others in the read's order.

So memory is read in few streams, and written in runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_edits import FEW_VECTORS, in_vectors, loop_of, ordered, whole_blocks
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.cpu_nontemporal import written_past
from poly.scheduling.groups import Group, assignment_of
from poly.scheduling.schedule import Schedule

RUN = 8  # iterations that write one after the other before the order of the read goes on


@dataclass(frozen=True)
class Runs:
    """An assignment in the order of what it reads. `outer`, `lanes`: positions among the group's parallel loops;
    `run`: the one of `outer` along which the target is closest, some iterations of it inside.
    """

    statement: str
    outer: tuple[int, ...]
    run: int
    lanes: int
    vector: int
    threads: int


def runs_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Runs | None:
    """The choices for a group that is one assignment with another order of its loops than its largest read's."""
    s = assignment_of(group)
    if s is None or any(a.indirect or a.guard for a, _ in s.accesses):
        return None
    axes = group.axes[s.name]
    facts = facts_of(program, group, machine, threads)
    extents = facts.extents
    strides, lanes = facts.strides(s), facts.lanes()
    long = [a for a, n in enumerate(extents) if n > 1]
    large = next((step for step in strides[:-1] if all(step[a] for a in long)), None)
    if lanes is None or large is None or any(step[lanes] not in (0, 1) for step in strides) or large[lanes] != 1:
        return None
    target = sorted((a for a in long if a != lanes), key=lambda a: -(strides[-1][a] or 0))
    outer = sorted(target, key=lambda a: -(large[a] or 0))
    rest = [a for a in range(len(axes)) if a not in long and a != lanes]
    return None if outer == target else Runs(s.name, (*rest, *outer), target[-1], lanes, facts.vector(lanes), threads)


def schedule_runs(schedule: Schedule, group: Group, plan: Runs, machine: Machine) -> Schedule:
    """Order, tile and mark the group's statement."""
    assert group.box is not None
    axes, name = group.axes[plan.statement], plan.statement
    order = [loop_of(schedule, name, axes[a]) for a in (*plan.outer, plan.lanes)]
    low, high = group.box[plan.lanes]
    if low:
        schedule = schedule.shift(name, order[-1], -low)
    schedule = ordered(schedule, name, order)
    run = loop_of(schedule, name, axes[plan.run])
    schedule = schedule.tile({run: RUN})
    schedule = schedule.reorder(*(f"{n}.o" if n == run else n for n in order[:-1]), f"{run}.p", order[-1])
    schedule, parts = whole_blocks(schedule, name, len(plan.outer) + 1, high - low + 1, plan.vector)
    for part, _ in parts:
        schedule = in_vectors(schedule, schedule.nests[part].names[-1], high - low + 1, plan.vector, FEW_VECTORS)
    return written_past(schedule, group, machine, plan.threads)
