"""Policy for walks through memory whose sizes are free: rows that share a loop, transpositions, sums of columns.

The forms are those of `poly.scheduling.cpu_rows`, `cpu_permute` and `cpu_reduce`, with blocks of fixed sizes: whole
ones are split from the rest at quasi-affine functions of the sizes. What a check refuses stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine
from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import extents_of
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_edits import (
    copies_in_vectors,
    cut_at,
    in_vectors,
    loop_of,
    loops_of_copy,
    only_read,
    outermost,
    unrolled,
)
from poly.scheduling.cpu_facts import bare_axes, widest_element
from poly.scheduling.edits import free_buffer_name, settle, unchecked
from poly.scheduling.schedule import Schedule

PAGES, LINES = 4, 2  # squares of a transposition one after the other along what is written, along what is read
ROWS = 8  # of a sum of columns that are added to its lanes at a time
SUMS = 1 / 8  # of the nearest cache, for sums of columns that stay there


def schedule_walks(schedule: Schedule, names: Sequence[str], machine: Machine) -> tuple[Schedule, list[str]]:
    """The transpositions and sums of columns with free sizes among some statements of a checked schedule; and the
    statements that are left, of which those that go along the same rows share their outermost loop.
    """
    left = list[str]()
    for name in names:
        there = name in schedule.program.statement  # else it is in pieces
        for make in (transposed, columns_summed) if there else ():
            try:
                found = make(unchecked(schedule), name, machine)
                if found is not None:
                    schedule = settle(found, schedule)
                    break
            except PolyError:
                continue
        else:
            left.append(name)
    return rows_shared(schedule, left, machine), left


# ---- transpositions


def transposed(schedule: Schedule, name: str, machine: Machine) -> Schedule | None:
    """An assignment of which one read is contiguous along another loop than what is written: in squares that are loaded
    as they lie and stored across. None for any other statement. Raises `ScheduleError` where an edit does not apply.
    """
    program, s = schedule.program, schedule.program.statement[name]
    vector = machine.lanes(widest_element(program, [s]))
    turned = _turned(program, s)
    if turned is None or vector < 2:
        return None
    read, across, along = turned
    ends = extents_of(program, s) or {}
    others = [i for i in s.iterators if i not in (along, across)]
    tall, wide = 2 * vector, vector
    schedule = outermost(schedule, name, [loop_of(schedule, name, i) for i in (*others, along, across)])
    schedule, whole, rest = _cut(schedule, name, len(others), ends[along], tall)
    for piece in rest:  # shorter than two vectors
        schedule = _lanes_inside(schedule, piece, len(others), vector)
    if not whole:
        return schedule
    schedule, square, rest = _cut(schedule, whole, len(others) + 1, ends[across], wide)
    if square and rest:
        schedule = schedule.distribute(schedule.nests[square].names[len(others)], 1)
    for piece in rest:
        schedule = _lanes_inside(schedule, piece, len(others), tall)
    return _squares(schedule, square, len(others), read, (tall, wide), machine) if square else schedule


def _turned(program: Program, s: Statement) -> tuple[int, str, str] | None:
    """The read that is turned, the loop along which it is contiguous, and the one along which the write is."""
    made = bare_axes(s.write)
    if s.combiner is not None or s.external is not None or made is None or len(made) != len(s.iterators):
        return None
    ends = extents_of(program, s)
    if ends is None or all(e.is_constant for e in ends.values()):
        return None
    found: list[tuple[int, str]] = []
    for k, r in enumerate(s.reads):
        if r.guard or r.indirect or r.tensor == s.write.tensor:
            return None
        axes = bare_axes(r)
        if axes is not None and axes[-1] != made[-1] and made[-1] in axes:
            found.append((k, axes[-1]))
        elif made[-1] in names_of(r) and (axes is None or axes[-1] != made[-1]):
            return None
    return (*found[0], made[-1]) if len(found) == 1 else None


def _cut(schedule: Schedule, name: str, depth: int, extent: Affine, block: int) -> tuple[Schedule, str, list[str]]:
    """The loop of a statement at a depth cut where whole blocks end: the piece of these ("": none), and the other."""
    schedule, whole, rest = cut_at(schedule, name, depth, extent // block * block, extent)
    return schedule, whole, [rest] if rest else []


def _lanes_inside(schedule: Schedule, name: str, depth: int, block: int) -> Schedule:
    """Blocks of the loop at a depth as lanes, inside of the loops below it."""
    loop, *below = schedule.nests[name].names[depth:]
    return schedule.tile({loop: block}).reorder(f"{loop}.o", *below, f"{loop}.p").vectorise(f"{loop}.p")


def _squares(
    schedule: Schedule, name: str, depth: int, read: int, size: tuple[int, int], machine: Machine
) -> Schedule:
    """Loops (along, across) in blocks of squares: some along what is written around few along what is read."""
    along, across = schedule.nests[name].names[depth : depth + 2]
    tall, wide = size
    schedule = schedule.tile({along: tall * PAGES, across: wide * LINES})
    schedule = schedule.tile({f"{along}.p": tall, f"{across}.p": wide})
    points, lanes = f"{across}.p.p", f"{along}.p.p"
    schedule = schedule.reorder(points, lanes).unroll(points)
    tensor = schedule.program.statement[name].reads[read].tensor
    schedule = in_vectors(schedule, lanes, tall, wide)
    buffer = free_buffer_name(schedule, f"{tensor}_{name}_t")
    only = only_read(schedule.program.statement[name], read)
    schedule = schedule.promote(
        tensor, f"{across}.p.o", machine.register_space, name=buffer, users=[name], reads=only
    )
    own = loops_of_copy(schedule, f"ld_{buffer}")
    return unrolled(schedule, own[:-1]).vectorise(own[-1])


# ---- sums of columns


def columns_summed(schedule: Schedule, name: str, machine: Machine) -> Schedule | None:
    """A sum whose operands are contiguous along the target's last axis, and used once: some rows at a time are added to
    a block of sums, which stays in the nearest cache, so that memory is walked in order. None for any other statement.
    """
    program, s = schedule.program, schedule.program.statement[name]
    vector = machine.lanes(widest_element(program, [s]))
    made, ends = bare_axes(s.write), extents_of(program, s)
    if s.combiner is None or s.external is not None or made is None or ends is None or vector < 2:
        return None
    steps = [i for i in s.iterators if i not in made]
    if len(steps) != 1 or all(e.is_constant for e in ends.values()) or not _used_once(s, made, steps[0]):
        return None
    outer, lanes = made[:-1], made[-1]
    width, depth = 2 * vector, len(outer)
    schedule = outermost(schedule, name, [loop_of(schedule, name, i) for i in (*outer, lanes, *steps)])
    schedule, whole, rest = _cut(schedule, name, depth, ends[lanes], width)
    for piece in rest:
        schedule = _columns(schedule, piece, depth, "", (vector, vector), machine)
    if not whole:
        return schedule
    loop, step = schedule.nests[whole].names[depth:]
    block = int(machine.nearest_cache * SUMS) // widest_element(program, [s]) // width * width
    schedule = schedule.tile({loop: max(block, width)}).reorder(step, f"{loop}.p")
    schedule, full, rest = _cut(schedule, whole, depth + 1, ends[steps[0]], ROWS)
    for piece in rest:
        schedule = _columns(schedule, piece, depth + 2, "", (width, vector), machine)
    if not full:
        return schedule
    step = schedule.nests[full].names[depth + 1]
    schedule = schedule.tile({step: ROWS})
    lanes = schedule.nests[full].names[-1]
    schedule = schedule.reorder(lanes, f"{step}.p")
    return _columns(schedule, full, depth + 2, f"{step}.p", (width, vector), machine)


def _used_once(s: Statement, made: Sequence[str], step: str) -> bool:
    """Whether the operand with the most axes has all loops, the lanes innermost, and others do not move apart."""
    reads = [r for r in s.reads if r.tensor != s.write.tensor and not r.guard and not r.indirect]
    along = [r for r in reads if made[-1] in names_of(r)]
    axes = [bare_axes(r) for r in along]
    if len(reads) != len(s.reads) or not along or any(a is None or a[-1] != made[-1] for a in axes):
        return False
    whole = [a for a in axes if a is not None and {*made, step} == {*a}]
    return len(whole) > 0 and all({*a} <= {*made, step} for a in axes if a is not None)


def _columns(
    schedule: Schedule, name: str, depth: int, rows: str, size: tuple[int, int], machine: Machine
) -> Schedule:
    """Vectors of the loop at a depth, around what is below: sums in registers for some `rows`, or for a loop."""
    width, vector = size
    loop, *below = schedule.nests[name].names[depth:]
    schedule = schedule.tile({loop: width})
    if below:
        schedule = schedule.reorder(f"{loop}.o", *below, f"{loop}.p")
    schedule = unrolled(schedule, [rows] if rows else [])
    schedule = in_vectors(schedule, f"{loop}.p", width, vector)
    if not below:
        return schedule
    target = schedule.program.statement[name].write.tensor
    buffer = free_buffer_name(schedule, f"{target}_{name}_r")
    schedule = schedule.promote(target, f"{loop}.o", machine.register_space, name=buffer, users=[name])
    return copies_in_vectors(schedule, buffer, width, vector)


# ---- rows


def rows_shared(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    """Statements that follow one another along the same rows in one loop over these, as far as a check allows it: what
    one makes of a row the next one finds in the nearest cache.
    """
    names = [name for name in names if name in schedule.nests]
    first, at, step = "", 0, len(names)
    while at < len(names):  # a check takes long where statements are many, and mostly finds nothing
        try:
            schedule, first = _fused(schedule, first, names[at : at + step])
            at, step = at + step, 2 * step
        except PolyError:
            if step == 1:
                first, at = names[at], at + 1
            step = max(1, step // 2)
    return _rows_kept(schedule, names, machine)


def _fused(schedule: Schedule, first: str, names: Sequence[str]) -> tuple[Schedule, str]:
    """The checked schedule with some more statements in one loop, and the first one of the last such loop. Raises
    `PolyError` where one of them cannot be.
    """
    found = unchecked(schedule)
    for name in names:
        if not first or not _same_rows(found, first, name):
            first = name
            continue
        here, there = found.nests[first].names[0], found.nests[name].names[0]
        if here != there:
            found = found.fuse(here, there)
    return (settle(found, schedule) if found.log != schedule.log else schedule), first


def _rows_kept(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    """What is made and used in one row alone is kept for that row, not for all."""
    for name in names:
        if name not in schedule.nests or not schedule.nests[name].names:
            continue
        loop, tensor = schedule.nests[name].names[0], schedule.program.statement[name].write.tensor
        users = {s.name for s in schedule.program.statements if tensor in {a.tensor for a, _ in s.accesses}}
        inside = {*schedule.under(loop)}
        made = schedule.program.tensor[tensor]
        if made.role != "temporary" or made.scope or not users <= inside or len(users) < 2 or made.rank < 2:
            continue
        try:
            schedule = settle(unchecked(schedule).promote(tensor, loop, machine.cache_space(1)), schedule)
        except PolyError:
            continue
    return schedule


def _same_rows(schedule: Schedule, first: str, second: str) -> bool:
    """Whether two statements' outermost loops are rows of all that they touch, of the same number, and the second one
    has a tensor in common with what is in the first one's loop, or starts one.
    """
    program = schedule.program
    one, two = program.statement[first], program.statement[second]
    rows = [_rows(schedule, s) for s in (one, two)]
    inside = schedule.under(schedule.nests[first].names[0]) if schedule.nests[first].names else ()
    touched = {a.tensor for n in inside for a, _ in program.statement[n].accesses}
    common = not two.reads or any(a.tensor in touched for a, _ in two.accesses)
    return rows[0] is not None and rows[0] == rows[1] and common


def _rows(schedule: Schedule, s: Statement) -> Affine | None:
    """The extent of a statement's outermost loop where it moves all but constant operands from row to row."""
    ends, names = extents_of(schedule.program, s), schedule.nests[s.name].names
    if s.external is not None or ends is None or not names:
        return None
    values = schedule.nests[s.name].loops[names[0]].names
    iterator = next(iter(values)) if len(values) == 1 else ""
    if iterator not in ends or not _is_row(s.write, iterator):
        return None
    reads = all(_is_row(r, iterator) for r in s.reads if iterator in names_of(r))
    return ends[iterator] if reads and any(not e.is_constant for e in ends.values()) else None


def _is_row(access: Access, iterator: str) -> bool:
    """Whether a loop moves an access along its first axis, by one."""
    axes = bare_axes(access)
    return axes is not None and axes[0] == iterator
