"""Policy for recurrences from row to row where rows are short: running sums along an axis that is not the last.

Lanes lie along the rows, and what a row hands on to the next one stays in registers: what a few vectors have just
stored cannot be loaded again before they are done. Longer rows need none of that, as there is enough to do meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Program
from poly.relations import interval_of
from poly.scheduling.cpu_edits import loop_of, loops_of_copy, unrolled, whole_blocks
from poly.scheduling.cpu_facts import axis_of, step_along, widest_element
from poly.scheduling.cpu_nests import own_loops, shifted_to_zero
from poly.scheduling.cpu_scan import CHAIN, MOST_REACH, back, runs_alone
from poly.scheduling.edits import free_buffer_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOST_VECTORS = 2  # of a row: more take as long as a store takes until it can be loaded


@dataclass(frozen=True)
class Handed:
    """The iterators over steps and over lanes, and first and last value of each; `vector`: elements of a register."""

    along: str
    lanes: str
    steps: tuple[int, int]
    row: tuple[int, int]
    vector: int


def handed_of(program: Program, group: Group, machine: Machine, _threads: int) -> Handed | None:
    """The choices for one statement that reads short contiguous rows it has written a few steps before."""
    s = group.statements[0]
    if len(group.statements) != 1 or len(s.iterators) < 2 or s.combiner is not None:
        return None
    along, lanes = s.iterators[-2:]
    axis = axis_of(s.write, along)
    if axis is None or any(a.indirect or a.guard for a, _ in s.accesses):
        return None
    reaches = [back(s.write, r, axis) for r in s.reads if r.tensor == s.write.tensor]
    if not reaches or not all(b is not None and 0 < b <= MOST_REACH for b in reaches):
        return None
    jumps = {step_along(program, a, lanes) for a, _ in s.accesses}
    steps, row = (interval_of(program, s, i) if runs_alone(program, s, i) else None for i in (along, lanes))
    if steps is None or row is None or not jumps <= {0, 1}:
        return None
    vector = machine.lanes(widest_element(program, [s]))
    short = 1 < row[1] - row[0] + 1 <= MOST_VECTORS * vector
    return Handed(along, lanes, steps, row, vector) if short else None


def schedule_handed(schedule: Schedule, group: Group, handed: Handed, machine: Machine) -> Schedule:
    """Blocks of steps around each vector of the row; what is left of steps and of the row in pieces of its own."""
    (name,) = group.names
    loops = [loop_of(schedule, name, i) for i in (handed.along, handed.lanes)]
    if own_loops(schedule, name)[-2:] != tuple(loops):
        raise ScheduleError(f"{name} shares its loops")
    depth = len(schedule.nests[name].names) - 2
    for loop, (first, _) in zip(loops, (handed.steps, handed.row), strict=True):
        schedule = shifted_to_zero(schedule, name, loop, Affine((), first))
    steps, row = (last - first + 1 for first, last in (handed.steps, handed.row))
    block = min(steps, CHAIN, machine.vector_registers // 2)  # the other half: what is read
    schedule, parts = whole_blocks(schedule, name, depth, steps, block)
    for part, size in parts:
        schedule = schedule.reorder(*reversed(schedule.nests[part].names[depth:]))
        schedule, pieces = whole_blocks(schedule, part, depth, row, min(row, handed.vector))
        for piece, width in pieces:
            schedule = _piece(schedule, piece, size, width, machine)
    return schedule


def _piece(schedule: Schedule, name: str, size: int, width: int, machine: Machine) -> Schedule:
    """A piece: `size` steps at a time of `width` lanes."""
    target, (lanes, along) = schedule.program.statement[name].write.tensor, schedule.nests[name].names[-2:]
    schedule = schedule.tile({along: size, lanes: width})
    schedule = schedule.reorder(f"{lanes}.o", f"{along}.o", f"{along}.p", f"{lanes}.p")
    buffer = free_buffer_name(schedule, f"{target}_{name}_r")
    schedule = schedule.promote(target, f"{along}.o", machine.register_space, name=buffer, users=[name])
    for copy in (f"ld_{buffer}", f"st_{buffer}"):
        *outer, last = loops_of_copy(schedule, copy)
        schedule = unrolled(schedule, outer).vectorise(last)
    return unrolled(schedule, [f"{along}.p"]).vectorise(f"{lanes}.p")
