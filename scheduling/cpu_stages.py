"""Policy for groups of row blocks (`poly.scheduling.row_blocks`): products and rows one after another in one block.

Loops from the outside in: batch [operands that all rows use packed here], blocks of rows [what is handed on], then for
every part of the group a nest of its own: of a product tiles of lanes and of rows [targets in registers], the
reduction, rows, vectors, lanes; of statements along rows one pass after another (`poly.scheduling.cpu_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poly.affine import Affine
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_block import Blocking
from poly.scheduling.cpu_chain import handed_on, keep_values
from poly.scheduling.cpu_contract import rated_plans
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_edits import cut, cut_loops, fused, loop_of, ordered, pieces_of
from poly.scheduling.cpu_facts import facts_of, widest_element
from poly.scheduling.cpu_plan import BlockPlan, balanced
from poly.scheduling.cpu_rating import Rated
from poly.scheduling.cpu_rows import RowPlan, row_plan
from poly.scheduling.cpu_rows_nest import Rows
from poly.scheduling.cpu_ways import Way
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.row_blocks import KEPT, bytes_inside
from poly.scheduling.schedule import Schedule
from poly.scheduling.shortening import shortened


@dataclass(frozen=True)
class Stage:
    """A part of a group with its choices; the axes of the part of a product are all its parallel loops."""

    group: Group
    plan: BlockPlan | RowPlan


@dataclass(frozen=True)
class StagePlan:
    stages: tuple[Stage, ...]


def stages_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> StagePlan | None:
    """The choices for a group of row blocks; None for any other, or where some part has no plan inside of a block."""
    if not group.block or group.box is None:
        return None
    box = (*group.box[:-1], (0, group.block - 1))
    stages: list[Stage] = []
    for part in group.parts:
        axes = {s.name: group.axes[s.name] for s in part.statements}
        rows = Group(part.statements, axes, {}, box, part.why, part.parts)
        plan = _product(program, part, group, machine, threads)
        plan = plan or row_plan(program, rows, machine, threads, in_cache=True)
        if plan is None:
            return None
        stages.append(Stage(part if isinstance(plan, BlockPlan) else rows, plan))
    return StagePlan(tuple(stages))


def _product(program: Program, part: Group, group: Group, machine: Machine, threads: int) -> BlockPlan | None:
    """The plan for a part around one contraction with the group's rows as rows; None for any other."""
    updates = [s for s in part.statements if s.combiner is not None]
    if len(updates) != 1 or part.box is None or part.parts:
        return None
    facts = facts_of(program, part, machine, threads)
    lanes = facts.lanes()
    rows = part.axes[updates[0].name].index(group.axes[updates[0].name][-1])
    shared = {part.axes[updates[0].name].index(a) for a in group.axes[updates[0].name]}
    if lanes is None or lanes in shared or len(shared) + 1 != len(part.box):
        return None

    def possible(way: Way) -> bool:
        return way.rows == rows and all(site != "rows" for _, site in way.packs)

    def suits(found: Rated) -> bool:
        return found.plan.depth is None and not any(p.pad for p in found.plan.packs)

    def least(whole: bool) -> Rated | None:
        plans = rated_plans(facts, updates[0], lanes, possible, whole=whole)
        return min(filter(suits, plans), key=lambda r: r.cycles, default=None)

    best = least(False)
    if best is None and (updates[0].spare or _stays(program, group, updates[0], machine)):
        best = least(True)
    if best is None:
        return None
    height = max(p.tile for p in best.plan.strips[0].rows)
    strips = tuple(replace(s, rows=balanced(0, group.block, height)) for s in best.plan.strips)
    return replace(best.plan, strips=strips, row_block=0)


def _stays(program: Program, group: Group, update: Statement, machine: Machine) -> bool:
    """Whether what all rows of a product use stays in a core's own caches from one register tile to the next: the plan
    for all rows may cut the reduction, as results that go through memory push it out.
    """
    shared = group.axes[update.name]
    sizes = [bytes_inside(program, r, {*shared}) for r in update.reads if shared[-1] not in names_of(r)]
    core = core_of(machine, widest_element(program, [update]))
    return sum(sizes) <= core.own[-1].capacity * KEPT


def schedule_stages(schedule: Schedule, group: Group, plan: StagePlan, machine: Machine) -> Schedule:
    """Share the outer loops, pack, compose the parts one after another, and keep what they hand on in a cache."""
    names, depth = list(group.names), len(group.axes[group.names[0]])
    for tensor, place in _shared_places(schedule, group, plan).items():
        schedule = schedule.overlay(tensor, place)
    for name in names:
        shared = [loop_of(schedule, name, i) for i in group.axes[name]]
        rest = [n for n in schedule.nests[name].names if n not in shared]
        schedule = ordered(schedule, name, [*shared, *rest])
    schedule = fused(schedule, names, range(depth - 1))
    products = [
        _Product(stage.group, stage.plan, machine, depth) for stage in plan.stages if isinstance(stage.plan, BlockPlan)
    ]
    for product in products:
        schedule = product.packed(schedule)
    for name in names:
        schedule = schedule.tile({schedule.nests[name].names[depth - 1]: group.block})
    schedule = fused(schedule, names, [depth - 1])
    block = schedule.nests[names[0]].names[depth - 1]
    for stage in plan.stages:
        if isinstance(stage.plan, BlockPlan):
            schedule = products.pop(0).run(schedule)
        else:
            schedule = Rows(stage.group, stage.plan, machine, inside=True).run(schedule)
        schedule = keep_values(schedule, stage.group, machine)
    for tensor in handed_on(schedule.program, pieces_of(schedule, group)):
        schedule = schedule.promote(tensor, block, machine.cache_space(1), name=f"{tensor}_block")
    if any(s.spare for s in group.statements):
        schedule = shortened(schedule, block, group.block)
    return schedule


def _shared_places(schedule: Schedule, group: Group, plan: StagePlan) -> dict[str, str]:
    """Temporaries of the group and those in which their elements can lie: where a statement along rows is the last one
    to touch a temporary, and reads of it the element that it writes of another one of the same form.
    """
    inside, places = set(group.names), _passes(plan)
    tensors, statements = schedule.program.tensor, schedule.program.statement
    users: dict[str, list[str]] = {}
    result: dict[str, str] = {}
    for s in schedule.program.statements:
        for t in {*tensors_read(s), *tensors_written(s)}:
            users.setdefault(t, []).append(s.name)
    for name in reversed([n for n in places if statements[n].combiner is None]):
        s = statements[name]
        target = tensors[s.write.tensor]
        for t in dict.fromkeys(r.tensor for r in s.reads):
            found, others = tensors[t], [u for u in users[t] if u != name]
            forms = {(x.role, x.shape, x.dtype, x.space) for x in (found, target)}
            private = found.role == "temporary" and inside >= {*others, *users[target.name]}
            last = all(places[o] < places[name] for o in others if o in places) and inside >= {*others}
            same = all(r.index == s.write.index for r in s.reads if r.tensor == t)
            same = same and bool(names_of(s.write) - {*group.axes[name]})  # else it is a value in a register
            if len(forms) == 1 and private and last and same and t != target.name:
                result[t] = result.get(target.name, target.name)
                break
    return result


def _passes(plan: StagePlan) -> dict[str, tuple[int, int, int]]:
    """When every statement runs: its stage, how far it is behind there, and its pass over a row."""
    found: dict[str, tuple[int, int, int]] = {}
    for k, stage in enumerate(plan.stages):
        if isinstance(stage.plan, RowPlan):
            found |= {n: (k, *place) for n, place in stage.plan.places().items()}
        else:
            found |= dict.fromkeys(stage.group.names, (k, 0, 0))
    return found


class _Product(Blocking):
    """A product inside of a block of rows, `depth` loops deep, the first of which is the block's."""

    def __init__(self, group: Group, plan: BlockPlan, machine: Machine, depth: int) -> None:
        super().__init__(group, plan, machine)
        self.depth = depth

    def packed(self, schedule: Schedule) -> Schedule:
        """What moves along the lanes in buffers for each iteration of the batch loops; constants once."""
        update = next(s for s in self.group.statements if s.combiner is not None)
        lanes = self.group.axes[update.name][self.plan.lanes]
        around = schedule.nests[update.name].names[: self.depth - 1]
        for pack in self.plan.packs:
            access = next(r for r in update.reads if r.tensor == pack.tensor)
            subscript = access.index[pack.lane]
            if isinstance(subscript, Affine) and lanes in subscript.names:
                moves = names_of(access) & {n for a in around for n in schedule.nests[update.name].loops[a].names}
                schedule = self.packing.packed(schedule, [update.name], pack, around[-1] if moves else None)
        return schedule

    def run(self, schedule: Schedule) -> Schedule:
        plan, names = self.plan, list(self.group.names)
        for name in names:
            lanes, nest = self._loop(schedule, name, plan.lanes), schedule.nests[name].names
            rest = [n for n in nest[self.depth + 1 :] if n != lanes]
            schedule = ordered(schedule, name, [lanes, nest[self.depth], *rest])
        schedule, parts = cut(schedule, self.group, names, plan.lanes, [s.low for s in plan.strips[1:]])
        for strip, part in zip(plan.strips, parts, strict=True):
            for name in part:
                lanes, rows, *rest = schedule.nests[name].names[self.depth :]
                if strip.low % (plan.vector * strip.width):
                    schedule = schedule.shift(name, lanes, -strip.low)
                schedule = ordered(schedule, name, [rows, lanes, *rest])
            cuts = [p.low for p in strip.rows[1:]]
            schedule, pieces = cut_loops(schedule, part, cuts, lambda s, n: s.nests[n].names[self.depth])
            for piece, statements in zip(strip.rows, pieces, strict=True):
                schedule = self._rows(schedule, strip, piece, statements, self.depth)
        return schedule
