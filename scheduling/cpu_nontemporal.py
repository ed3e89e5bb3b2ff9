"""Policy for what a core writes far away: past its caches, or to lines of the last one that are asked for ahead.

A store to a line that is in no cache fetches it first, and throws out a line that may be used again. Where the tensors
of a group do not fit the last cache anyway, both are lost: a result that is written once, in whole vectors one after
the other, goes to memory at once. Of the last cache, which other cores and other hardware threads use too, a thread
counts on half where what is read would stay there but for the writes, and two threads on all of it. Results that the
last cache holds, but no nearer one, are fetched from there before they are overwritten: where little else is read,
stores wait for that at every page, and ask ahead (docs/decisions/0022).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from poly.affine import FloorDiv, var
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Program, Tensor
from poly.scheduling.cpu_core import core_of, last_capacity, last_share
from poly.scheduling.cpu_edits import pieces_of
from poly.scheduling.cpu_facts import (
    BYTES_AHEAD,
    bytes_apart,
    bytes_touched,
    functions_in,
    own_capacity,
    widest_element,
)
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

LEAST_RUN = 256  # bytes of whole lines that leave one after the other: shorter ones pay for the page of each
MUCH_READ = 0.75  # bytes read for one that is written
FAR = 3  # times what a core's own caches hold: so much written over and over comes from further away each time; where
# the last cache is slow what they do not hold does
LITTLE_READ = 0.25  # bytes read for one that is written
STEPS_AHEAD = 8  # of the innermost loop that is not laid out, mostly about 2 KiB
LONG_ROW = 1024  # bytes of a row that is asked for by such steps, where the last cache is slow
LEAST_ROW = 1024  # bytes along the lanes: at its ends a row may leave lines in part to others, which costs a read


def results_past(program: Program, group: Group, machine: Machine, threads: int) -> frozenset[str]:
    """The outputs that a group writes, each by one assignment, and nobody reads; none where the caches hold all that
    the group touches.
    """
    if not _beyond(program, group, machine, threads):
        return frozenset()
    read = tensors_read_anywhere(program)
    writers = [t for t, _ in {(s.write.tensor, s.source_name) for s in program.statements if s.external is None}]
    once = {s.write.tensor for s in group.statements if s.combiner is None and not s.write.indirect}
    single = {t for t in once - read if writers.count(t) == 1}
    return frozenset(t.name for t in program.tensors if t.name in single and t.role == "output")


def tensors_read_anywhere(program: Program) -> set[str]:
    """The tensors that somebody reads, sums their own targets aside."""
    read = {r.tensor for s in program.statements for r in s.reads}
    return read | {t for s in program.statements if s.external is not None for t in s.external.reads}


def _beyond(program: Program, group: Group, machine: Machine, threads: int) -> bool:
    """Whether what a group touches does not stay in the last cache. Where it reads about as much as it writes the share
    that its threads count on is enough, since the reads stay if the writes go past.
    """
    last = last_capacity(machine)
    touched = bytes_touched(program, group.statements)
    targets = {s.write.tensor for s in group.statements}
    written = sum(t.nbytes(program.binding) for t in program.tensors if t.name in targets and t.role == "output")
    enough = last_share(machine, threads) if touched - written >= written * MUCH_READ else last
    return 0 < last and touched >= enough


def row_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Bytes of a tensor's last axis."""
    return tensor.extents(sizes)[-1] * size_bytes(tensor.dtype) if tensor.rank else 0


def whole_lines_past(program: Program, group: Group, machine: Machine, threads: int) -> frozenset[str]:
    """Those of which every row leaves in whole lines."""
    past = {t: row_bytes(program.tensor[t], program.binding) for t in results_past(program, group, machine, threads)}
    return frozenset(t for t, n in past.items() if n >= LEAST_RUN and n % machine.line == 0)


def written_past(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Mark the vector loops of a scheduled group that store such results, one vector beside the other."""
    program = schedule.program
    past = results_past(program, group, machine, threads)
    rows = {t: row_bytes(program.tensor[t], program.binding) for t in past}
    results = {t for t, n in rows.items() if n >= LEAST_ROW or (n >= LEAST_RUN and n % machine.line == 0)}
    afar = core_of(machine, widest_element(schedule.source, group.statements)).afar > 0
    return _stored_past(schedule, pieces_of(schedule, group), results, afar) if results else schedule


def stored_past(schedule: Schedule, results: Collection[str]) -> Schedule:
    """Mark the innermost vector loops that store to some results and do nothing else."""
    return _stored_past(schedule, [*schedule.nests], results) if results else schedule


def _stored_past(schedule: Schedule, names: Iterable[str], results: Collection[str], asked: bool = False) -> Schedule:
    """`asked`: they ask for what they touch some steps of the loop around later, too; for lines of a result where it
    lies between lines, so that nothing goes past the caches.
    """
    for name in names:
        loops = schedule.nests[name].names
        alone = loops and schedule.under(loops[-1]) == (name,) and schedule.kind(loops[-1]) == "vector"
        if alone and schedule.program.statement[name].write.tensor in results:
            schedule, step = schedule.nontemporal(loops[-1]), _step_of(schedule, loops)
            values = schedule.nests[name].loops
            in_row = step and values[step].names == values[loops[-1]].names
            if asked and in_row and schedule.marks[loops[-1]].ahead is None:
                schedule = schedule.prefetch(loops[-1], step, STEPS_AHEAD)
    return schedule


def written_far(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Mark the vector loops of a scheduled group for what it writes beyond the caches, or only to the last one, and for
    what functions wait for.
    """
    schedule, functions = written_past(schedule, group, machine, threads), functions_in(group.statements)
    afar = core_of(machine, widest_element(schedule.source, group.statements)).afar > 0
    touched = bytes_touched(schedule.source, group.statements)
    if functions:
        waits = afar and touched > threads * own_capacity(machine)
        return _asked_by_step(schedule, group) if waits else schedule
    return _written_ahead(schedule, group, machine, own_capacity(machine) * (threads if afar else FAR), afar)


def _asked_by_step(schedule: Schedule, group: Group) -> Schedule:
    """Let the vector loops of assignments ask for what they read and write some steps of the loop around later: while
    functions are computed, a core begins few of the loads of the next steps.
    """
    for name in pieces_of(schedule, group):
        s, loops = schedule.program.statement[name], schedule.nests[name].names
        step, accesses = _step_of(schedule, loops), [a for a, _ in s.accesses]
        plain = s.combiner is None and not any(a.indirect for a in accesses)
        in_memory = any(not schedule.program.tensor[a.tensor].scope for a in accesses)  # others are in registers
        asks = plain and in_memory and step and schedule.kind(loops[-1]) == "vector"
        if asks and schedule.marks[loops[-1]].ahead is None:
            schedule = schedule.prefetch(loops[-1], step, STEPS_AHEAD)
    return schedule


def _written_ahead(schedule: Schedule, group: Group, machine: Machine, near: int, afar: bool) -> Schedule:
    """Let the vector loops of a scheduled group of assignments ask for lines of a result that the last cache holds,
    where it touches more than `near` bytes.
    """
    program = schedule.program
    touched = bytes_touched(program, group.statements)
    targets = {s.write.tensor for s in group.statements if s.combiner is None}
    written = sum(t.nbytes(program.binding) for t in program.tensors if t.name in targets)
    far = near < touched <= last_capacity(machine)
    if not far or touched - written > written * LITTLE_READ:
        return schedule
    for name in pieces_of(schedule, group):
        rows, loops = _rows_written(schedule, name), schedule.nests[name].names
        vector = loops[-1] if rows is not None else ""
        if rows is not None and schedule.kind(vector) == "vector" and not schedule.marks[vector].nontemporal:
            if afar and rows[1] >= LONG_ROW:
                schedule = schedule.prefetch(vector, _step_of(schedule, loops), STEPS_AHEAD)
            else:
                schedule = schedule.prefetch(vector, rows[0], -(-BYTES_AHEAD // rows[1]))
    return schedule


def _step_of(schedule: Schedule, loops: Sequence[str]) -> str:
    """The innermost of some loops that is not laid out, "" where there is none."""
    return next((n for n in reversed(loops) if schedule.kind(n) == "serial"), "")


def _rows_written(schedule: Schedule, name: str) -> tuple[str, int] | None:
    """The innermost serial loop of an assignment that is one of its iterators, or else goes over blocks of one, and the
    bytes between what neighbouring iterations write; None where there is none, or they write the same.
    """
    s, nest = schedule.program.statement[name], schedule.nests[name]
    serial = [n for n in nest.names if schedule.kind(n) == "serial"]
    found = [n for n in serial if nest.loops[n] in map(var, s.iterators)] or serial
    if s.combiner is not None or not found or len(nest.loops[found[-1]].names) != 1:
        return None
    value = nest.loops[found[-1]]
    (iterator,) = value.names
    block = next((atom.divisor for atom, _ in value.terms if isinstance(atom, FloorDiv)), 1)
    step = bytes_apart(schedule.program, s.write, iterator)
    return (found[-1], step * block) if step else None
