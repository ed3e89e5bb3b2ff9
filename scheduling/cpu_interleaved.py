"""Policy for assignments whose target interleaves a few values: lanes across them, put in order by the store.

A complex number is two neighbouring floats, a pixel three or four: along the target a vector holds parts that are
computed in different ways. Instead each part is computed for a vector of neighbours at once, in registers, which then
leave as whole vectors. Loops from the outside in: outer, blocks of lanes [the target in registers], parts, lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_edits import in_vectors, loop_of, loops_of_copy, ordered, whole_blocks
from poly.scheduling.cpu_facts import FEWEST_LANES, Strides, facts_of
from poly.scheduling.cpu_nontemporal import LEAST_ROW, results_past
from poly.scheduling.groups import Group, assignment_of
from poly.scheduling.schedule import Schedule

MOST_PARTS = 4


@dataclass(frozen=True)
class Interleaved:
    """An assignment. `outer`, `parts`, `lanes`: positions among the group's parallel loops; `past`: the target is
    written past the caches."""

    statement: str
    outer: tuple[int, ...]
    parts: int
    lanes: int
    vector: int
    past: bool


def interleaved_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Interleaved | None:
    """The choices for a group that is one assignment to elements `n*i + p`, for n parts p; None for others."""
    s = assignment_of(group)
    if s is None or any(a.indirect or a.guard for a, _ in s.accesses):
        return None
    axes = group.axes[s.name]
    facts = facts_of(program, group, machine, threads)
    strides = facts.strides(s)
    parts = next((a for a, n in enumerate(facts.extents) if strides[-1][a] == 1 and 1 < n <= MOST_PARTS), None)
    if parts is None:
        return None
    lanes = _lanes(s, axes, facts.extents, strides, parts)
    if lanes is None or (vector := facts.vector(lanes)) < 2:
        return None
    past = s.write.tensor in results_past(program, group, machine, threads)
    row = facts.extents[lanes] * facts.extents[parts] * facts.widest()
    outer = tuple(a for a in range(len(axes)) if a not in (parts, lanes))
    return Interleaved(s.name, outer, parts, lanes, vector, past and row >= LEAST_ROW)


def _lanes(
    s: Statement, axes: Sequence[str], extents: Sequence[int], strides: Sequence[Strides], parts: int
) -> int | None:
    """The loop that steps over all parts, in the target's last subscript, where what is read lies near enough for
    whole loads."""
    last, step = s.write.index[-1], extents[parts]
    for a, name in enumerate(axes):
        along = strides[-1][a] == step and isinstance(last, Affine) and {name, axes[parts]} <= last.names
        if along and extents[a] >= FEWEST_LANES and all(read[a] in range(step + 1) for read in strides[:-1]):
            return a
    return None


def schedule_interleaved(schedule: Schedule, group: Group, plan: Interleaved, machine: Machine) -> Schedule:
    """Split, tile, promote and mark the group's statement."""
    assert group.box is not None
    axes, name, target = group.axes[plan.statement], plan.statement, group.statements[0].write.tensor
    order = [loop_of(schedule, name, axes[a]) for a in (*plan.outer, plan.lanes, plan.parts)]
    low, high = group.box[plan.lanes]
    schedule = schedule.shift(name, order[-2], -low) if low else schedule
    schedule = ordered(schedule, name, order)
    low_part, high_part = group.box[plan.parts]
    schedule, pieces = whole_blocks(schedule, name, len(plan.outer), high - low + 1, plan.vector)
    for piece, size in pieces:
        lanes, parts = schedule.nests[piece].names[-2:]
        schedule = schedule.tile({lanes: size}).reorder(f"{lanes}.o", parts, f"{lanes}.p")
        schedule = schedule.unroll(parts).vectorise(f"{lanes}.p")
        buffer = f"{target}_{piece}_r"
        schedule = schedule.promote(target, f"{lanes}.o", machine.register_space, name=buffer, users=[piece])
        copy = loops_of_copy(schedule, f"st_{buffer}")[-1]
        schedule = in_vectors(schedule, copy, size * (high_part - low_part + 1), plan.vector)
        if plan.past:
            schedule = schedule.nontemporal(schedule.nests[f"st_{buffer}"].names[-1])
    return schedule
