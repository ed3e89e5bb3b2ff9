"""Policy for recurrences along rows: statements that read what they have just written along their innermost loop
(running sums, filters), whose memory is contiguous there, so that `cpu_nests` finds no lanes.

Rows are independent, so that lanes are rows: a block of rows and columns of what is read goes into registers, is turned
there, and what a block writes is turned back on its way out. Only the first columns of a block come from memory, the
others stay in registers. Every sum is added up in the order of the program. Rows too few for lanes, and reads of other
forms, run a few rows at a time: their chains of operations wait for one another no longer. Where there is one row, or
one after another (tables of dynamic programming, Gauss-Seidel), what a block of its columns hands on stays in
registers, so that the chain does not go through memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from poly.affine import Affine, var
from poly.dtypes import is_float
from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import ends_of, interval_of
from poly.scheduling.cpu_edits import fused, loop_of, loops_of_copy, ordered, unrolled, whole_blocks
from poly.scheduling.cpu_facts import axis_of, step_along, widest_element
from poly.scheduling.cpu_nests import cut_whole, own_loops, shifted_to_zero
from poly.scheduling.edits import free_buffer_name, piece_name, settle, unchecked
from poly.scheduling.schedule import Schedule

FEWEST = 2  # rows worth running together
CHAIN, MOST_REACH = 16, 4  # elements of one row at a time, how far back they may read
MOST_ROWS = 8  # run together without lanes: a store that is read again takes about as many operations


@dataclass(frozen=True)
class Scan:
    """`rows`: an iterator that carries nothing ("": there is none); `along`: the one that does; `reach`: how far back
    it reads. `turned`: tensors read along rows, too; `columns`: of a block, 0 where there are no lanes; `vector`: its
    rows. `first`: the statement that makes what rows begin with, which runs beside them ("": there is none).
    """

    rows: str
    along: str
    reach: int
    turned: tuple[str, ...]
    vector: int
    columns: int
    first: str = ""


def schedule_scans(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    """Those of the statements `names` of a checked schedule that are scans, in lanes or several rows at a time."""
    for name in names:
        scan = scan_of(schedule, name, machine)
        for plan in () if scan is None else _plans(schedule, name, scan):
            try:
                schedule = settle(_composed(unchecked(schedule), name, plan, machine), schedule)
                break
            except PolyError:
                continue
    return schedule


def _plans(schedule: Schedule, name: str, scan: Scan) -> Iterator[Scan]:
    """The plans for a scan, to be tried in order."""
    first = _first(schedule, schedule.program.statement[name], scan) if scan.rows else ""
    if first:
        yield replace(scan, first=first)
    yield scan
    if scan.columns:
        yield replace(scan, columns=0)


def scan_of(schedule: Schedule, name: str, machine: Machine) -> Scan | None:
    """The choices for a statement whose innermost loop carries a recurrence; None where it is something else."""
    s, program = schedule.program.statement[name], schedule.program
    own = own_loops(schedule, name)
    if s.external is not None or not own or any(a.indirect for a, _ in s.accesses):
        return None
    *outer, along = [_iterator(schedule, s, loop) for loop in own]
    axes = [d for d, x in enumerate(s.write.affine_index) if along in x.names]
    if along is None or len(axes) != 1:
        return None
    found = [back(s.write, r, axes[0]) for r in s.reads if r.tensor == s.write.tensor]
    if None in found:
        return _beside_others(program, s, along, axes[0], machine)
    if not any(found):
        return None
    rows = next((i for i in reversed(outer) if i is not None and _is_row(program, s, i, along)), None)
    scan = Scan(rows or "", along, max(b or 0 for b in found), (), machine.lanes(widest_element(program, [s])), 0)
    back_only = s.combiner is None and all(b is None or b >= 1 for b in found)
    if rows is None and not back_only:
        return _beside_others(program, s, along, axes[0], machine)
    if rows is None:
        return scan if scan.reach <= MOST_REACH and runs_alone(program, s, along) else None
    return scan if not back_only or step_along(program, s.write, along) != 1 else _with_lanes(program, s, scan, machine)


def _beside_others(program: Program, s: Statement, along: str, axis: int, machine: Machine) -> Scan | None:
    """One row after another, where the target is read elsewhere, too, as in the row above. (For integers of all these
    rows there are few registers, and a store that is read again takes no longer than their spilling.)
    """
    found = [back(s.write, r, axis) for r in s.reads if r.tensor == s.write.tensor]
    reach = max((b for b in found if b is not None), default=0)
    apart = s.combiner is not None or step_along(program, s.write, along) != 1
    apart |= not is_float(program.tensor[s.write.tensor].dtype)
    apart |= not all(_is_near(s.write, r) for r in s.reads if r.tensor == s.write.tensor)
    if apart or not 0 < reach <= MOST_REACH or not runs_alone(program, s, along):
        return None
    return Scan("", along, reach, (), machine.lanes(widest_element(program, [s])), 0)


def _is_near(write: Access, read: Access) -> bool:
    """Whether a read is as far from what is written everywhere: so it has a place among registers, or is in none."""
    return all((w - r).is_constant for w, r in zip(write.affine_index, read.affine_index, strict=True))


def _with_lanes(program: Program, s: Statement, scan: Scan, machine: Machine) -> Scan:
    """Blocks of lanes where all reads can be turned or need not be, and registers hold them."""
    others = [r for r in s.reads if r.tensor != s.write.tensor]
    steps = [(step_along(program, r, scan.rows), step_along(program, r, scan.along)) for r in others]
    turned = [r.tensor for r, (row, _) in zip(others, steps, strict=True) if row not in (0, 1)]
    left = machine.vector_registers - len(turned) * scan.vector - scan.reach
    extent = interval_of(program, s, scan.rows)
    few = extent is not None and extent[1] - extent[0] + 1 < scan.vector
    turns = all(along == 1 for row, along in steps if row not in (0, 1)) and len({*turned}) == len(turned)
    known = not any(None in pair for pair in steps) and not any(r.guard for r in others)
    if few or not turns or not known or min(scan.vector, left) < FEWEST:
        return scan
    return replace(scan, turned=tuple(turned), columns=1 << min(scan.vector, left).bit_length() - 1)


def _iterator(schedule: Schedule, s: Statement, loop: str) -> str | None:
    return next((i for i in s.iterators if schedule.nests[s.name].loops[loop] == var(i)), None)


def back(write: Access, read: Access, axis: int) -> int | None:
    """How far before the element written a read of the same tensor lies along an axis; None where it is elsewhere."""
    apart = [w - r for w, r in zip(write.affine_index, read.affine_index, strict=True)]
    still = all(a == Affine() for d, a in enumerate(apart) if d != axis)
    return apart[axis].constant if still and apart[axis].is_constant else None


def _is_row(program: Program, s: Statement, iterator: str, along: str) -> bool:
    """Whether a parallel loop steps along one axis of the target, and bounds nothing else."""
    step = step_along(program, s.write, iterator)
    alone = step not in (None, 0, 1) and axis_of(s.write, iterator) is not None
    return alone and runs_alone(program, s, iterator) and runs_alone(program, s, along)


def runs_alone(program: Program, s: Statement, iterator: str) -> bool:
    """Whether an iterator runs from one number or size to another."""
    ends = ends_of(program, s, iterator)
    return ends is not None and (ends[0].names | ends[1].names) <= set(program.parameters)


# ---- composition


def _composed(schedule: Schedule, name: str, scan: Scan, machine: Machine) -> Schedule:
    """Whole blocks of rows and columns apart from what is left over."""
    s, iterators = schedule.program.statement[name], [i for i in (scan.along, scan.rows) if i]
    ends = {i: found for i in iterators if (found := ends_of(schedule.program, s, i)) is not None}
    inner = [loop_of(schedule, name, i) for i in iterators]
    schedule = ordered(schedule, name, [*(n for n in own_loops(schedule, name) if n not in inner), *inner])
    for iterator, loop in zip(iterators, inner, strict=True):
        schedule = shifted_to_zero(schedule, name, loop, ends[iterator][0])
    width = ends[scan.along]
    if (scan.columns or not scan.rows) and any(r.guard for r in s.reads):  # first columns read beyond the tensor's edge
        name = piece_name(schedule, name, "hi")
        schedule = schedule.split(inner[0], scan.reach)
        inner = [loop_of(schedule, name, i) for i in iterators]
        schedule = schedule.shift(name, inner[0], -scan.reach)
        width = width[0] + scan.reach, width[1]
    depth = len(schedule.nests[name].names) - len(inner)
    if not scan.rows:
        return _chained(schedule, name, depth, width, machine)
    schedule = schedule.reorder(*reversed(inner))
    size = scan.vector if scan.columns else MOST_ROWS
    schedule, parts = _cut(schedule, name, depth, ends[scan.rows], size)
    blocks: list[str] = []
    for part, count in parts:
        if scan.columns and count == size:
            schedule, loop = _in_blocks(schedule, part, depth, scan, width, machine)
        else:
            schedule, loop = _together(schedule, part, depth, count)
        blocks.append(loop)
    return _with_first(schedule, scan.first, blocks, size) if scan.first and depth == 0 else schedule


def _with_first(schedule: Schedule, first: str, blocks: Sequence[str], size: int) -> Schedule:
    """With what rows begin with made beside them, block by block: rows that no cache holds come once."""
    (loop,), o = own_loops(schedule, first), schedule.program.statement[first]
    rows = _iterator(schedule, o, loop)
    ends = None if rows is None else ends_of(schedule.program, o, rows)
    assert ends is not None
    schedule = shifted_to_zero(schedule, first, loop, ends[0])
    schedule, pieces = whole_blocks(schedule, first, 0, (ends[1] - ends[0] + 1).constant, size)
    for (piece, height), block in zip(pieces, blocks, strict=True):
        (loop,) = own_loops(schedule, piece)
        if height >= FEWEST:
            schedule = schedule.tile({loop: height}).unroll(f"{loop}.p")
        schedule = schedule.fuse(schedule.nests[piece].names[0], block)
    return schedule


def _first(schedule: Schedule, s: Statement, scan: Scan) -> str:
    """The statement that makes one element of each row of a scan, of what is not in it; rows of a known number."""
    rows = interval_of(schedule.program, s, scan.rows)
    for o in schedule.program.statements if rows is not None else ():
        loops = own_loops(schedule, o.name)
        if len(loops) != 1 or o.external is not None or schedule.kind(loops[0]) != "serial":
            continue
        i = _iterator(schedule, o, loops[0])
        apart = o.write.tensor == s.write.tensor and s.write.tensor not in {r.tensor for r in o.reads}
        alike = i is not None and axis_of(o.write, i) == axis_of(s.write, scan.rows)
        if i is not None and apart and alike and interval_of(schedule.program, o, i) == rows:
            return o.name
    return ""


def _chained(schedule: Schedule, name: str, depth: int, ends: tuple[Affine, Affine], machine: Machine) -> Schedule:
    """One row: blocks of it hand on what they make in registers."""
    schedule, ((part, size), *_) = _cut(schedule, name, depth, ends, CHAIN)
    target, along = schedule.program.statement[part].write.tensor, schedule.nests[part].names[depth]
    if size < CHAIN:
        return schedule
    schedule = schedule.tile({along: CHAIN}).unroll(f"{along}.p")
    buffer = free_buffer_name(schedule, f"{target}_{part}_r")
    schedule = schedule.promote(target, f"{along}.o", machine.register_space, name=buffer, users=[part])
    for copy in {f"ld_{buffer}", f"st_{buffer}"} & schedule.nests.keys():
        schedule = unrolled(schedule, loops_of_copy(schedule, copy))
    return schedule


def _cut(
    schedule: Schedule, name: str, depth: int, ends: tuple[Affine, Affine], block: int
) -> tuple[Schedule, list[tuple[str, int]]]:
    """A loop in whole blocks and what is left over, which is one by one where its size is free."""
    count = ends[1] - ends[0] + 1
    if count.is_constant:
        return whole_blocks(schedule, name, depth, count.constant, block)
    return cut_whole(schedule, name, schedule.nests[name].names[depth], ends, block, 1)


def _in_blocks(
    schedule: Schedule, name: str, depth: int, scan: Scan, ends: tuple[Affine, Affine], machine: Machine
) -> tuple[Schedule, str]:
    """Whole blocks of rows: blocks of columns, and what is left of these with rows together; and the loop over them."""
    rows, along = schedule.nests[name].names[depth:]
    schedule = schedule.reorder(along, rows)
    schedule, parts = _cut(schedule, name, depth, ends, scan.columns)
    known = (ends[1] - ends[0]).is_constant
    for part, width in parts:
        schedule = schedule.reorder(*reversed(schedule.nests[part].names[depth:]))
        if width == scan.columns:
            schedule = _block(schedule, part, depth, scan, machine)
        else:
            schedule, _ = _together(schedule, part, depth, scan.vector, known and width < scan.columns)
    schedule = fused(schedule, [part for part, _ in parts], [depth])
    return schedule, schedule.nests[parts[0][0]].names[depth]


def _together(
    schedule: Schedule, name: str, depth: int, height: int, short: bool = False
) -> tuple[Schedule, str]:
    """A piece some rows at a time, each a chain of its own, which stays in registers where it is `short`; and the loop
    over them.
    """
    rows, along = schedule.nests[name].names[depth:]
    if height < FEWEST:
        return schedule, rows
    schedule = schedule.tile({rows: height}).reorder(f"{rows}.o", along, f"{rows}.p").unroll(f"{rows}.p")
    return (schedule.unroll(along) if short else schedule), f"{rows}.o"


def _block(schedule: Schedule, name: str, depth: int, scan: Scan, machine: Machine) -> Schedule:
    """A piece in blocks, all of them whole: reads and the target turned in registers, lanes along rows."""
    rows, along = schedule.nests[name].names[depth:]
    s = schedule.program.statement[name]
    place = axis_of(s.write, scan.rows), axis_of(s.write, scan.along)
    schedule = schedule.tile({rows: scan.vector, along: scan.columns})
    schedule = schedule.reorder(f"{rows}.o", f"{along}.o", f"{along}.p", f"{rows}.p")
    at, space = f"{along}.o", machine.register_space
    for tensor in scan.turned:
        buffer = free_buffer_name(schedule, f"{tensor}_{name}_t")
        schedule = schedule.promote(tensor, at, space, name=buffer, users=[name])
        *outer, last = loops_of_copy(schedule, f"ld_{buffer}")
        schedule = unrolled(schedule, outer).vectorise(last)
    buffer, target = free_buffer_name(schedule, f"{s.write.tensor}_{name}_t"), schedule.program.tensor[s.write.tensor]
    order = [*(d for d in range(target.rank) if d not in place), *(d for d in reversed(place) if d is not None)]
    schedule = schedule.promote(target.name, at, space, name=buffer, users=[name], order=order)
    for copy, lanes in ((f"ld_{buffer}", place[0]), (f"st_{buffer}", place[1])):
        loops = loops_of_copy(schedule, copy) if copy in schedule.nests else []
        inner = [n for n in loops if n == f"{copy}.{lanes}"]
        outer = [n for n in loops if n not in inner]
        schedule = unrolled(ordered(schedule, copy, [*outer, *inner]) if inner else schedule, outer)
        schedule = schedule.vectorise(inner[0]) if inner else schedule
    return unrolled(schedule, [f"{along}.p"]).vectorise(f"{rows}.p")
