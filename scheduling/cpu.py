"""Policy for a core with vector registers: composes primitives, knows nothing of operators.

For each fusion group: parallel loops outside and shared by all its statements; one of them becomes lanes, for
reductions a second one rows of a register tile; the target of a reduction is promoted to registers for the length of
its reduction loops, and what lies hostile to the lanes is promoted to a cache space (packed) where it is used often.
Edges are index-set splits, so every register tile is whole. The choices are in `poly.scheduling.cpu_choice`, their
composition in `poly.scheduling.cpu_tile`. Groups of rows (`poly.scheduling.row_groups`) share only outer loops and run
one pass over a cache-resident row after another (`poly.scheduling.cpu_rows`). Zhao et al. call the first step a
conservative start-up fusion.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from poly.errors import PolyError, ScheduleError
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu_chain import keep_values, parts_of
from poly.scheduling.cpu_choice import plan_of
from poly.scheduling.cpu_permute import permutation_of, runs_of, schedule_permutation, schedule_runs
from poly.scheduling.cpu_plan import Plan
from poly.scheduling.cpu_reduce import schedule_stream, stream_of
from poly.scheduling.cpu_rows import row_plan, schedule_rows
from poly.scheduling.cpu_tile import tile_group
from poly.scheduling.cpu_window import schedule_window, window_of
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import Group
from poly.scheduling.legality import carried
from poly.scheduling.row_groups import groups_for
from poly.scheduling.schedule import Schedule

LEAST_SHARED: Final = 1 << 12  # instances: as long as it takes to call the other threads and to wait for them


def schedule_for_cpu(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """A checked schedule of a program for a core.

    All groups are checked together; only where that refuses is each checked alone, and those that cannot be scheduled
    keep the program's own order.
    """
    groups = [g for g in groups_for(program, machine) if _has_plan(g)]
    try:
        schedule = unchecked(Schedule(program))
        for group in groups:
            schedule = schedule_group(schedule, group, machine, threads)
        return settle(schedule)
    except ScheduleError:
        return schedule_one_by_one(program, machine, threads)


def schedule_one_by_one(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """Like `schedule_for_cpu`, each group checked alone, for legality and for fitting the machine's memories."""
    schedule = Schedule(program)
    groups = [g for g in groups_for(program, machine) if _has_plan(g)]
    while groups:
        group = groups.pop(0)
        try:
            candidate = settle(schedule_group(unchecked(schedule), group, machine, threads))
            check_capacity(candidate.lower(), machine)
            schedule = candidate
        except ScheduleError:
            groups[:0] = group.parts
    return schedule


def _has_plan(group: Group) -> bool:
    return group.box is not None and bool(group.axes) and all(s.external is None for s in group.statements)


def schedule_group(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Fuse, split, tile, promote and mark one group inside a schedule."""
    if group.parts:
        return _schedule_parts(schedule, group, machine, threads)
    window = window_of(schedule.program, group, machine)
    if window is not None:
        try:
            tiled = schedule_window(schedule, group, window, machine)
            return _parallel(tiled, group, threads) if threads > 1 else tiled
        except ScheduleError:
            pass
    turned = permutation_of(schedule.program, group, machine)
    if turned is not None:
        try:
            tiled = schedule_permutation(schedule, group, turned, machine)
            return _parallel(tiled, group, threads) if threads > 1 else tiled
        except ScheduleError:
            pass
    runs = runs_of(schedule.program, group, machine)
    if runs is not None:
        tiled = schedule_runs(schedule, group, runs)
        return _parallel(tiled, group, threads) if threads > 1 else tiled
    stream = stream_of(schedule.program, group, machine, threads)
    if stream is not None:
        try:
            tiled = schedule_stream(schedule, group, stream, machine)
            return _parallel(tiled, group, threads) if threads > 1 else tiled
        except ScheduleError:
            pass
    plan = plan_of(schedule.program, group, machine, threads)
    try:
        tiled = tile_group(_with_padding(schedule, group, plan), group, plan, machine)
    except ScheduleError:
        if not plan.packs:
            raise
        plan = replace(plan, outer=(*plan.outer, *plan.middle), middle=(), packs=())
        tiled = tile_group(_with_padding(schedule, group, plan), group, plan, machine)
    tiled = keep_values(tiled, group, machine)
    return _parallel(tiled, group, threads) if threads > 1 else tiled


def _schedule_parts(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """A group of rows as one nest, or where its statements have no common way to run along rows, as its parts."""
    rows = row_plan(schedule.program, group, machine)
    if rows is None:
        for part in group.parts:
            schedule = schedule_group(schedule, part, machine, threads)
        return schedule
    fused = keep_values(schedule_rows(schedule, group, rows, machine), group, machine)
    return _parallel(fused, group, threads, len(group.box or ())) if threads > 1 else fused


def _with_padding(schedule: Schedule, group: Group, plan: Plan) -> Schedule:
    """Guarded reads inside reductions that are not packed go through a padded copy of the tensor."""
    packed = {(p.statement, p.tensor) for p in plan.packs}
    for s in group.statements:
        padded = {r.tensor for r in s.reads if r.guard} if s.combiner is not None else set[str]()
        for tensor in sorted(t for t in padded if (s.name, t) not in packed):
            try:
                schedule = schedule.promote(
                    tensor, None, "dram", users=[s.name], name=f"{tensor}_{s.name}_padded", pad=True
                )
            except PolyError:
                continue
    return schedule


def _parallel(schedule: Schedule, group: Group, threads: int, depth: int | None = None) -> Schedule:
    """Split over threads, in every nest of the group, the outermost loop that has work for all of them (one of the
    outermost `depth`). A nest that is over before a second thread could help stays on one.
    """
    done: set[str] = set()
    for name in parts_of(schedule, group):
        extents = [_extent(schedule, loop) for loop in schedule.nests[name].names]
        if all(extents) and prod(extents) < LEAST_SHARED:
            continue
        for loop in schedule.nests[name].names[:depth]:
            if loop in done or schedule.kind(loop) != "serial":
                break
            if _extent(schedule, loop) >= threads and not any(True for _ in carried(schedule, loop)):
                schedule = schedule.parallelise(loop)
                done.add(loop)
                break
    return schedule


def _extent(schedule: Schedule, loop: str) -> int:
    """Iterations of a loop over all statements under it, 0 where not known."""
    from poly.relations import expressions_map
    from poly.sets import fix_sizes

    most = 0
    for name in schedule.under(loop):
        s = schedule.program.statement[name]
        values = fix_sizes(
            expressions_map(s, (schedule.nests[name].loops[loop],), schedule.program.parameters),
            schedule.program.binding,
        ).range()
        low, high = values.dim_min_val(0), values.dim_max_val(0)
        if low.is_int() and high.is_int():
            most = max(most, int(str(high)) - int(str(low)) + 1)
    return most
