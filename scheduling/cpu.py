"""Policy for a core with vector registers: composes primitives, knows nothing of operators.

For each fusion group: parallel loops outside and shared by all its statements; one of them becomes lanes (the one along
which most accesses are contiguous), for reductions a second one rows of a register tile; the target of a reduction is
promoted to registers for the length of its reduction loops. Edges are index-set splits, so every register tile is
whole. Zhao et al. call the first step a conservative start-up fusion; the register tile is Goto's (TOMS 2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.errors import PolyError, ScheduleError
from poly.machine import Machine
from poly.program import Access, Program, Statement, Tensor
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import Group, groups_of
from poly.scheduling.legality import carried
from poly.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """Choices for a group. `lanes`, `rows`: positions among the group's parallel loops, or None.

    `vector`: elements of one vector; `width`: vectors side by side in the register tile; `height`: its rows.
    """

    order: tuple[int, ...]
    lanes: int | None
    rows: int | None
    vector: int
    width: int
    height: int


def schedule_for_cpu(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """A checked schedule of a program for a core.

    All groups are checked together; only where that refuses is each checked alone, and those that cannot be scheduled
    keep the program's own order.
    """
    groups = [g for g in groups_of(program) if _has_plan(g)]
    try:
        schedule = unchecked(Schedule(program))
        for group in groups:
            schedule = schedule_group(schedule, group, machine, threads)
        return settle(schedule)
    except ScheduleError:
        return _one_by_one(program, groups, machine, threads)


def _one_by_one(program: Program, groups: Sequence[Group], machine: Machine, threads: int) -> Schedule:
    schedule = Schedule(program)
    for group in groups:
        try:
            schedule = settle(schedule_group(unchecked(schedule), group, machine, threads))
        except ScheduleError:
            continue
    return schedule


def _has_plan(group: Group) -> bool:
    return group.box is not None and bool(group.axes) and all(s.external is None for s in group.statements)


def schedule_group(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Fuse, split, tile, promote and mark one group inside a schedule."""
    schedule = _with_padding(schedule, group)
    plan = plan_of(schedule.program, group, machine)
    schedule = _outer_order(schedule, group, plan)
    outer = [a for a in plan.order if a not in (plan.lanes, plan.rows)]
    schedule = _fuse_axes(schedule, [list(group.names)], group, outer)
    pieces = _pieces(group, plan)
    schedule, parts = _split(schedule, group, plan, pieces)
    for names in parts:
        schedule = _register_tile(schedule, names, group, plan)
    return _parallel(schedule, group, threads) if threads > 1 else schedule


# ---- choices


def plan_of(program: Program, group: Group, machine: Machine) -> Plan:
    """Lanes, rows and the shape of the register tile, from the access maps and the machine's registers."""
    assert group.box is not None
    extents = [high - low + 1 for low, high in group.box]
    strides = [_strides(program, s, group) for s in group.statements]
    contiguous = [_contiguity(strides, a) for a in range(len(extents))]
    widest = max(size_bytes(program.tensor[a.tensor].dtype) for s in group.statements for a, _ in s.accesses)
    vector = machine.lanes(widest)
    best = max(range(len(extents)), key=lambda a: (contiguous[a], extents[a] > 1, a), default=None)
    lanes = best if best is not None and contiguous[best] > 0 and extents[best] > 1 and vector > 1 else None
    order = tuple(range(len(extents)))
    if lanes is None:
        return Plan(order, None, None, 1, 1, 1)
    vector = min(vector, _power_of_two(extents[lanes]))
    reduced = any(s.combiner is not None for s in group.statements)
    rows = _rows(strides, extents, lanes) if reduced else None
    registers = machine.registers.capacity if machine.registers and machine.registers.capacity else 16
    width, height = _tile_shape(extents, lanes, rows, vector, registers, reduced)
    return Plan(
        tuple(a for a in order if a not in (rows, lanes)) + tuple(a for a in (rows, lanes) if a is not None),
        lanes,
        rows,
        vector,
        width,
        height,
    )


def _strides(program: Program, s: Statement, group: Group) -> list[dict[int, int | None]]:
    """For every access the distance in elements between neighbours along each parallel loop (None: not constant)."""
    result: list[dict[int, int | None]] = []
    for access, _ in s.accesses:
        tensor = program.tensor[access.tensor]
        result.append(
            {a: _stride(access, tensor, iterator, program.binding) for a, iterator in enumerate(group.axes[s.name])}
        )
    return result


def _stride(access: Access, tensor: Tensor, iterator: str, sizes: Mapping[str, int]) -> int | None:
    total, step = 0, 1
    for subscript, extent in zip(reversed(access.index), reversed(tensor.shape), strict=True):
        if not isinstance(subscript, Affine):
            return None
        coefficient = subscript.coefficient(iterator)
        if iterator in subscript.names and not coefficient:
            return None
        if any(iterator in g.expr.names for g in access.guard):
            return None
        total += coefficient * step
        known = extent.substitute(sizes)
        step *= known.constant if known.is_constant else 1 << 20
    return total


def _contiguity(strides: Sequence[Sequence[dict[int, int | None]]], axis: int) -> float:
    """How well a loop suits lanes: 0 where a write is strided, else the share of accesses of stride 0 or 1."""
    good = every = 0
    for accesses in strides:
        if accesses[-1].get(axis) != 1:
            return 0.0
        for access in accesses:
            every += 1
            good += access.get(axis) in (0, 1)
    return good / every if every else 0.0


def _power_of_two(extent: int) -> int:
    return 1 << max(0, (extent - 1)).bit_length()


def _rows(strides: Sequence[Sequence[dict[int, int | None]]], extents: Sequence[int], lanes: int) -> int | None:
    """A second parallel loop along which what is contiguous in the lanes is used again."""

    def reuse(axis: int) -> int:
        reads = [a for accesses in strides for a in accesses[:-1]]
        return sum(a.get(axis) == 0 and a.get(lanes) == 1 for a in reads)

    found = [a for a in range(len(extents)) if a != lanes and extents[a] > 1 and reuse(a) > 0]
    return max(found, key=lambda a: (reuse(a), extents[a]), default=None)


def _tile_shape(
    extents: Sequence[int], lanes: int, rows: int | None, vector: int, registers: int, reduced: bool
) -> tuple[int, int]:
    """Vectors side by side, and rows: as many accumulators as registers hold beside the operands, least waste."""
    vectors = -(-extents[lanes] // vector)
    if not reduced:
        return 1, 1
    if rows is None:
        return min(vectors, 4), 1
    best = max(
        (
            (w, h)
            for w in range(1, min(vectors, 4) + 1)
            for h in range(1, min(extents[rows], registers) + 1)
            if w * h + w + 1 < registers
        ),
        key=lambda t: _efficiency(vectors, t[0]) * _efficiency(extents[rows], t[1]) * t[0] * t[1] / (t[0] + t[1]),
        default=(1, 1),
    )
    return best


def _efficiency(extent: int, tile: int) -> float:
    """Share of whole tiles in the tiles that cover an extent."""
    return extent / (-(-extent // tile) * tile)


# ---- loops


def loop_of(schedule: Schedule, statement: str, iterator: str) -> str:
    """The loop that is one of the statement's iterators."""
    nest = schedule.nests[statement]
    found = [loop for loop in nest.names if nest.loops[loop] == var(iterator)]
    if not found:
        raise ScheduleError(f"no loop of {statement} is {iterator}")
    return found[0]


def _outer_order(schedule: Schedule, group: Group, plan: Plan) -> Schedule:
    """Every statement's nest: parallel loops in the plan's order, then the others."""
    for s in group.statements:
        nest = schedule.nests[s.name]
        axes = [loop_of(schedule, s.name, group.axes[s.name][a]) for a in plan.order]
        order = axes + [n for n in nest.names if n not in axes]
        if len(order) > 1 and tuple(order) != nest.names:
            schedule = schedule.reorder(*order)
    return schedule


def _fuse_axes(schedule: Schedule, parts: Sequence[Sequence[str]], group: Group, axes: Sequence[int]) -> Schedule:
    """Share the loops of some axes between the statements of each part, from the outside in."""
    for names in parts:
        for axis in axes:
            for name in names[1:]:
                first = loop_of(schedule, names[0], _iterator(schedule, group, names[0], axis))
                second = loop_of(schedule, name, _iterator(schedule, group, name, axis))
                if first != second:
                    schedule = schedule.fuse(first, second)
    return schedule


def _iterator(schedule: Schedule, group: Group, statement: str, axis: int) -> str:
    s = schedule.program.statement[statement]
    return group.axes[s.origin or s.name][axis]


@dataclass(frozen=True)
class Cut:
    """Where an axis is split so that the tiles of the first piece are whole; None where they all are."""

    axis: int
    at: int | None


def _pieces(group: Group, plan: Plan) -> list[Cut]:
    assert group.box is not None
    cuts: list[Cut] = []
    for axis, tile in ((plan.rows, plan.height), (plan.lanes, plan.vector * plan.width)):
        if axis is not None:
            low, high = group.box[axis]
            whole = (high - low + 1) // tile * tile
            cuts.append(Cut(axis, low + whole if 0 < whole < high - low + 1 and low % tile == 0 else None))
    return cuts


def _split(schedule: Schedule, group: Group, plan: Plan, cuts: Sequence[Cut]) -> tuple[Schedule, list[list[str]]]:
    """Split every statement at the cuts; the parts (one statement of each) come back in order."""
    parts = [list(group.names)]
    for cut in cuts:
        if cut.at is None:
            continue
        for name in [n for part in parts for n in part]:
            loop = loop_of(schedule, name, _iterator(schedule, group, name, cut.axis))
            schedule = schedule.split(loop, cut.at)
            if (
                cut.axis == plan.lanes and plan.rows is not None
            ):  # the rows' loop is around both pieces: each gets its own
                rows = loop_of(schedule, f"{name}_lo", _iterator(schedule, group, f"{name}_lo", plan.rows))
                schedule = schedule.distribute(rows, 1)
        parts = [[f"{n}_{piece}" for n in part] for part in parts for piece in ("lo", "hi")]
    return schedule, parts


def _register_tile(schedule: Schedule, names: Sequence[str], group: Group, plan: Plan) -> Schedule:
    """Tile one part: tile loops shared, reduction loops inside, then rows and vectors; promote, unroll, vectorise."""
    if plan.lanes is None:
        return _fuse_axes(schedule, [names], group, [])
    shared = len(plan.order) - (1 if plan.rows is None else 2)
    tiles = 1 if plan.rows is None else 2
    for name in names:
        schedule = _tile_statement(schedule, name, group, plan)
    for depth in range(shared, shared + tiles):
        for name in names[1:]:
            schedule = schedule.fuse(schedule.nests[names[0]].names[depth], schedule.nests[name].names[depth])
    anchor = schedule.nests[names[0]].names[shared + tiles - 1]
    for name in names:
        s = schedule.program.statement[name]
        if s.combiner is not None:
            schedule = _promote_target(schedule, s, anchor, plan)
    return schedule


def _tile_statement(schedule: Schedule, name: str, group: Group, plan: Plan) -> Schedule:
    """Cut rows and lanes of one statement's nest into tile loops, reduction loops, rows, vectors, lanes."""
    tiles: list[str] = []
    points: list[str] = []
    if plan.rows is not None:
        rows = loop_of(schedule, name, _iterator(schedule, group, name, plan.rows))
        schedule = schedule.tile({rows: plan.height}).unroll(f"{rows}.p")
        tiles, points = [f"{rows}.o"], [f"{rows}.p"]
    assert plan.lanes is not None
    lanes = loop_of(schedule, name, _iterator(schedule, group, name, plan.lanes))
    schedule = schedule.tile({lanes: plan.vector * plan.width})
    tiles.append(f"{lanes}.o")
    if plan.width > 1:
        schedule = schedule.tile({f"{lanes}.p": plan.vector}).unroll(f"{lanes}.p.o")
        points += [f"{lanes}.p.o", f"{lanes}.p.p"]
    else:
        points.append(f"{lanes}.p")
    nest = schedule.nests[name]
    band = [n for n in nest.names if n in tiles or n in points or _inner(schedule, name, n, tiles + points)]
    between = [n for n in band if n not in tiles and n not in points]
    order = tiles + between + points
    if tuple(order) != tuple(band):
        schedule = schedule.reorder(*order)
    return schedule.vectorise(points[-1])


def _inner(schedule: Schedule, name: str, loop: str, tiled: Sequence[str]) -> bool:
    """A loop inside the first tiled one: a reduction loop."""
    chain = schedule.nests[name].names
    first = min(chain.index(t) for t in tiled)
    return chain.index(loop) > first


def _promote_target(schedule: Schedule, s: Statement, anchor: str, plan: Plan) -> Schedule:
    """Keep a reduction's target in registers while its tile is computed; the copy out gets rows and lanes too."""
    buffer = f"{s.write.tensor}_{s.name}_r"
    lane_axis = next(
        (d for d, i in enumerate(s.write.index) if isinstance(i, Affine) and _is_lane(s, i, plan, schedule)), None
    )
    schedule = schedule.promote(s.write.tensor, anchor, "reg", name=buffer)
    for copy in (f"ld_{buffer}", f"st_{buffer}"):
        if copy in schedule.nests:
            schedule = _mark_copy(schedule, copy, lane_axis, plan)
    return schedule


def _is_lane(s: Statement, subscript: Affine, plan: Plan, schedule: Schedule) -> bool:
    nest = schedule.nests[s.name]
    vector = next((name for name in nest.names if schedule.kind(name) == "vector"), None)
    return vector is not None and bool(nest.loops[vector].names & subscript.names)


def _mark_copy(schedule: Schedule, copy: str, lane_axis: int | None, plan: Plan) -> Schedule:
    for loop in [n for n in schedule.nests[copy].names if n.startswith(f"{copy}.")]:
        if lane_axis is not None and loop == f"{copy}.{lane_axis}":
            schedule = schedule.tile({loop: plan.vector}).unroll(f"{loop}.o").vectorise(f"{loop}.p")
        else:
            schedule = schedule.unroll(loop)
    return schedule


def _with_padding(schedule: Schedule, group: Group) -> Schedule:
    """Guarded reads inside reductions go through a padded copy of the tensor, made once before the group."""
    for s in group.statements:
        padded = {r.tensor for r in s.reads if r.guard} if s.combiner is not None else set[str]()
        for tensor in sorted(padded):
            try:
                schedule = schedule.promote(
                    tensor, None, "dram", users=[s.name], name=f"{tensor}_{s.name}_padded", pad=True
                )
            except PolyError:
                continue
    return schedule


def _parallel(schedule: Schedule, group: Group, threads: int) -> Schedule:
    """Split over threads, in every nest of the group, the outermost loop that has work for all of them."""
    done: set[str] = set()
    for name in _parts(schedule, group):
        for loop in schedule.nests[name].names:
            if loop in done or schedule.kind(loop) != "serial":
                break
            if _extent(schedule, loop) >= threads and not any(True for _ in carried(schedule, loop)):
                schedule = schedule.parallelise(loop)
                done.add(loop)
                break
    return schedule


def _parts(schedule: Schedule, group: Group) -> list[str]:
    inside = set(group.names)
    return [s.name for s in schedule.program.statements if (s.origin or s.name) in inside]


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
