"""Policy for groups of rows whose lanes lie across them: passes over columns, a block of columns after the other.

A softmax over an axis that is not the last, its norm, or where its largest element is, goes over all it reads once for
each pass, each part by itself. Where the last cache is slow, a block of so many columns that a core keeps them goes
through all passes before the next one (docs/decisions/0137).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import core_of, own_share
from poly.scheduling.cpu_edits import fused, in_vectors, loop_of, ordered, whole_blocks
from poly.scheduling.cpu_facts import bytes_touched, own_capacity, reduction_extents, step_along, widest_element
from poly.scheduling.cpu_rows import STREAM, Pass, passes_of
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.schedule import Schedule

WIDE: Final = 4  # vectors of columns side by side
ROWS_AHEAD: Final = 8  # where a row of a block is too short for a prefetcher
LONGEST: Final = 4096  # bytes of a row that a block has: what one value a column takes stays in the first cache


@dataclass(frozen=True)
class ColumnBlocks:
    """`inner`: for every statement its loops inside a column; `columns`: of the group; `block`: of them; `lanes`: of
    the vectors of one operation; `ahead`: rows that are asked for before they are touched.
    """

    passes: tuple[Pass, ...]
    inner: Mapping[str, tuple[str, ...]]
    columns: int
    block: int
    lanes: int
    ahead: int


def column_blocks_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> ColumnBlocks | None:
    """The choices for a group of several passes whose columns lie side by side; None where it is of another kind, or
    near, or one row of a few vectors' columns is more than a core keeps.
    """
    widest = widest_element(program, group.statements)
    far = bytes_touched(program, group.statements) > threads * own_capacity(machine)
    if not group.box or group.box[-1][0] or not core_of(machine, widest).afar or not far:
        return None
    known = {s.name: reduction_extents(program, s, group.axes[s.name]) for s in group.statements}
    inner = {name: tuple(i for i, n in found.items() if n > 1) for name, found in known.items()}
    extents = {name: tuple(n for n in found.values() if n > 1) for name, found in known.items()}
    if len({e for e in extents.values() if e}) != 1 or not _side_by_side(program, group):
        return None
    columns, lanes = group.box[-1][1] + 1, WIDE * machine.lanes(widest)
    kept = own_share(machine.own_caches[-1].capacity or 0) // _column_bytes(program, group)
    block = min(kept, LONGEST // widest, columns) // lanes * lanes
    passes = tuple(passes_of(group, inner, extents))
    ahead = ROWS_AHEAD if block * widest < STREAM else 0
    if not block or sum(bool(p.extents) for p in passes) < (3 if ahead else 2):
        return None
    return ColumnBlocks(passes, inner, columns, block, lanes, ahead)


def _side_by_side(program: Program, group: Group) -> bool:
    """Whether the columns of all that is touched are, or all share an element."""
    return all(
        not access.guard and not access.indirect and step_along(program, access, group.axes[s.name][-1]) in steps
        for s in group.statements
        for access, steps in ((s.write, (1,)), *((r, (0, 1)) for r in s.reads))
    )


def _column_bytes(program: Program, group: Group) -> int:
    """Bytes of one column of all that comes in and goes out; temporaries lie where the results will, or are few."""
    columns = prod(high - low + 1 for low, high in group.box or ())
    touched = {t for s in group.statements for t in (*tensors_read(s), *tensors_written(s))}
    given = [t for t in program.tensors if t.name in touched and t.role != "temporary"]
    return sum(t.nbytes(program.binding) for t in given) // columns + 1


def schedule_column_blocks(schedule: Schedule, group: Group, plan: ColumnBlocks, _machine: Machine) -> Schedule:
    """Cut off what is no whole vectors, then tile, fuse and mark the statements of a group."""
    order, depth = [n for part in plan.passes for n in part.statements], len(group.box or ())
    pieces: dict[int, list[str]] = {}
    for name in order:
        axes = [loop_of(schedule, name, i) for i in group.axes[name]]
        inner = [loop_of(schedule, name, i) for i in plan.inner[name]]
        inner += [n for n in schedule.nests[name].names if n not in axes and n not in inner]
        schedule = ordered(schedule, name, [*axes, *inner])
        schedule, parts = whole_blocks(schedule, name, depth - 1, plan.columns, plan.lanes)
        for k, (part, _) in enumerate(parts):
            pieces.setdefault(k, []).append(part)
    whole = plan.columns // plan.lanes * plan.lanes
    for names, columns in zip(pieces.values(), (whole, plan.columns - whole), strict=False):
        schedule = _blocks(schedule, plan, names, depth, columns)
    return schedule


def _blocks(schedule: Schedule, plan: ColumnBlocks, names: Sequence[str], depth: int, columns: int) -> Schedule:
    """So many columns of all statements, in blocks."""
    for name in names:
        lanes, *inner = schedule.nests[name].names[depth - 1 :]
        schedule = schedule.tile({lanes: plan.block})
        schedule = ordered(schedule, name, [f"{lanes}.o", *inner, f"{lanes}.p"])
    schedule = fused(schedule, names, range(depth))
    source = {schedule.program.statement[n].source_name: n for n in names}
    for part in plan.passes:
        statements = [source[n] for n in part.statements]
        schedule = fused(schedule, statements, range(depth, depth + len(part.extents)))
    for name in names:
        schedule = in_vectors(schedule, schedule.nests[name].names[-1], columns, plan.lanes, 1)
    return _asked(schedule, names, plan, depth) if plan.ahead else schedule


def _asked(schedule: Schedule, names: Sequence[str], plan: ColumnBlocks, depth: int) -> Schedule:
    """Lines that come for the first time asked for along the rows, in statements that touch what callers gave."""
    met = set[str]()
    for name in names:
        s, inner = schedule.program.statement[name], plan.inner[schedule.program.statement[name].source_name]
        moving = {a.tensor for a, _ in s.accesses if names_of(a) & {*inner}}
        given = any(schedule.program.tensor[t].role != "temporary" for t in moving)
        if given and moving - met:
            loops = schedule.nests[name].names
            schedule = schedule.prefetch(loops[-1], loops[depth], plan.ahead)
        met |= moving
    return schedule
