"""Nests of reductions, composed of primitives as `poly.scheduling.cpu_reduce` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from poly.machine import Machine
from poly.program import Statement
from poly.relations import interval_of, intervals_of
from poly.scheduling.cpu_edits import (
    axis_last,
    copies_in_vectors,
    first_last,
    fused,
    in_vectors,
    last_first,
    loop_of,
    loops_of_copy,
    ordered,
    unrolled,
    whole_blocks,
)
from poly.scheduling.cpu_facts import reduction_extents, step_along
from poly.scheduling.cpu_reduce import ROWS
from poly.scheduling.cpu_reduce_plan import Folded, Reduction, Spread, axis_along
from poly.scheduling.cpu_sums import LONG_CHAIN, Sums
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

P = TypeVar("P", bound=Reduction)


def schedule_reduction(schedule: Schedule, group: Group, plan: Folded | Spread, machine: Machine) -> Schedule:
    """Split, tile, promote and mark the reduction; the group's other statements run before and after it in vectors."""
    if isinstance(plan, Folded):
        return _Folded(group, plan, machine).run(schedule)
    return _Spread(group, plan, machine).run(schedule)


@dataclass(frozen=True)
class _Reduced(Generic[P]):
    """What both kinds have in common."""

    group: Group
    plan: P
    machine: Machine

    def _begun(self, schedule: Schedule, wanted: Sequence[str]) -> Schedule:
        """The statements beside the reduction in vectors; its loops from 0, `wanted` innermost and in this order."""
        name = self.plan.statement
        for s in self.group.statements:
            if s.name not in (name, self.plan.start):
                schedule = self._beside(schedule, s)
        s = schedule.program.statement[name]
        order = [loop_of(schedule, name, i) for i in (*(i for i in s.iterators if i not in wanted), *wanted)]
        return ordered(self._shifted_to_zero(schedule, name, order), name, order)

    def _shifted_to_zero(self, schedule: Schedule, name: str, loops: Sequence[str]) -> Schedule:
        """Every loop from 0, so that tiles are whole."""
        found = intervals_of(schedule.program, schedule.program.statement[name])
        for loop in loops:
            (iterator,) = schedule.nests[name].loops[loop].names
            low, _ = found[iterator] or (0, 0)
            if low:
                schedule = schedule.shift(name, loop, -low)
        return schedule

    def _beside(self, schedule: Schedule, s: Statement) -> Schedule:
        """Another statement of the group, in vectors along the last loop that its target is contiguous along."""
        program = schedule.program
        steps = {i: [step_along(program, a, i) for a, _ in s.accesses] for i in s.iterators}
        found = [i for i, each in steps.items() if each[-1] == 1 and set(each) <= {0, 1}]
        if not found or s.external is not None:
            return schedule
        loop = loop_of(schedule, s.name, found[-1])
        rest = [n for n in schedule.nests[s.name].names if n != loop]
        if rest:
            schedule = schedule.reorder(*rest, loop)
        return schedule.tile({loop: self.plan.vector}).vectorise(f"{loop}.p")

    def _start(self, schedule: Schedule, iterators: Sequence[str]) -> Schedule:
        """The loops of what starts the sums, from 0 and in this order."""
        loops = [loop_of(schedule, self.plan.start, i) for i in iterators]
        return ordered(self._shifted_to_zero(schedule, self.plan.start, loops), self.plan.start, loops)

    def _by_one(self, schedule: Schedule, name: str) -> Schedule:
        """What is left over, in one iteration, for whichever thread comes first, unless there are loops around."""
        return schedule if self.plan.outer else schedule.parallelise(schedule.nests[name].names[0])

    def _extent(self, schedule: Schedule, name: str, iterator: str) -> int:
        found = interval_of(schedule.program, schedule.program.statement[name], iterator)
        assert found is not None  # the domain is a box
        return found[1] - found[0] + 1

    def _cut(self, schedule: Schedule, name: str, iterator: str, block: int) -> tuple[Schedule, list[tuple[str, int]]]:
        """The loop of an iterator in pieces of whole blocks: statements with their blocks' sizes, each from 0."""
        depth = schedule.nests[name].names.index(loop_of(schedule, name, iterator))
        return whole_blocks(schedule, name, depth, self._extent(schedule, name, iterator), block)


class _Folded(_Reduced[Folded]):
    """Lanes that are reduced."""

    def run(self, schedule: Schedule) -> Schedule:
        plan, name = self.plan, self.plan.statement
        wanted = [*plan.outer, *filter(None, [plan.rows]), *plan.inner, *filter(None, [plan.again]), plan.lanes]
        schedule = self._placed(self._turned(self._begun(schedule, wanted), name), name)
        schedule, blocks = self._blocks(schedule, name)
        for block, extent in blocks:
            parts = [(block, 1)]
            if self.plan.rows:
                schedule, parts = self._cut(schedule, block, self.plan.rows, self.plan.height)
            first: list[str] = []
            for part, height in parts:
                schedule, made = self._rows(schedule, part, height, extent)
                first.append(made)
            schedule = self._started(schedule, first) if plan.start else schedule
        return schedule

    def _started(self, schedule: Schedule, parts: Sequence[str]) -> Schedule:
        """The start of the sums in the loops around the tiles that add to them, `parts` by their first statements."""
        plan, loops = self.plan, [*self.plan.outer, *filter(None, [self.plan.rows])]
        again = [plan.again] if plan.again else []
        schedule, pieces = self._start(schedule, [*loops, *again]), [(plan.start, 1)]
        if plan.rows:
            schedule, pieces = self._cut(schedule, plan.start, plan.rows, plan.height)
        for (piece, height), part in zip(pieces, parts, strict=True):
            schedule = self._tile_started(schedule, piece, height) if plan.rows else schedule
            schedule = fused(schedule, (piece, part), range(len(loops)))
            schedule = self._by_one(schedule, piece) if plan.rows and height < plan.height else schedule
        return schedule

    def _tile_started(self, schedule: Schedule, name: str, height: int) -> Schedule:
        """The start of a tile's sums, in vectors along its target."""
        rows, *again = schedule.nests[name].names[len(self.plan.outer) :]
        schedule, last, extent = schedule.tile({rows: height}), f"{rows}.p", height
        if again and self._along(schedule, name) == self.plan.rows:
            schedule = schedule.reorder(*again, last)
        elif again:
            last, extent = again[0], self._extent(schedule, name, self.plan.again)
        return in_vectors(schedule, last, extent, self.plan.vector)

    def _along(self, schedule: Schedule, name: str) -> str:
        """The iterator that a statement's target is contiguous along, "" where that is none."""
        names = schedule.program.statement[name].write.affine_index[-1].names
        return next(iter(names)) if len(names) == 1 else ""

    def _blocks(self, schedule: Schedule, name: str) -> tuple[Schedule, list[tuple[str, int]]]:
        """A long row in blocks and what is left over, with their sizes."""
        plan, loops = self.plan, len(schedule.nests[name].names)
        if not plan.lane_block:
            return schedule, [(name, self._extent(schedule, name, plan.lanes))]
        schedule, blocks = self._cut(last_first(schedule, name, loops), name, plan.lanes, plan.lane_block)
        for block, _ in blocks:
            schedule = first_last(schedule, block, loops)
        return schedule, blocks

    def _turned(self, schedule: Schedule, name: str) -> Schedule:
        cache = self.machine.cache_space(1)
        for tensor in self.plan.turned:
            read = next(r for r in schedule.program.statement[name].reads if r.tensor == tensor)
            axis = axis_along(read, self.plan.lanes)
            assert axis is not None
            order = axis_last(schedule, tensor, axis)
            schedule = schedule.promote(tensor, None, cache, name=f"{tensor}_{name}_t", users=[name], order=order)
        return schedule

    def _placed(self, schedule: Schedule, name: str) -> Schedule:
        site, cache = None, self.machine.cache_space(1)
        if self.plan.placed_for:
            rows = loop_of(schedule, name, self.plan.outer[-1])
            schedule, site = schedule.tile({rows: self.plan.placed_for}), f"{rows}.o"
        for tensor in self.plan.placed:
            buffer = f"{tensor}_{name}_p"
            schedule = schedule.promote(tensor, site, cache, name=buffer, users=[name])
            (loop,) = loops_of_copy(schedule, f"ld_{buffer}")
            schedule = in_vectors(schedule, loop, self._extent(schedule, name, self.plan.lanes), self.plan.vector, ROWS)
        return schedule

    def _rows(self, schedule: Schedule, name: str, height: int, extent: int) -> tuple[Schedule, str]:
        """Rows, or their blocks, each with partial sums of its own; the first of its statements."""
        plan, step = self.plan, self.plan.vector * self.plan.width
        rows = loop_of(schedule, name, plan.rows) if plan.rows else ""
        schedule, block, beside, lanes = self._tiled(schedule, name, height, extent)
        buffer = f"{schedule.program.statement[name].write.tensor}_{name}_part"
        schedule = schedule.rfactor(name, f"{lanes}.p", at=block, name=buffer)
        scope, names = schedule.program.tensor[buffer].scope, schedule.nests[name].names
        pieces = [name]
        if extent % step and extent > step:
            pieces = [piece_name(schedule, name, "lo"), piece_name(schedule, name, "hi")]
            schedule = schedule.split(f"{lanes}.o", extent // step)
        for piece in pieces:
            own = dict(zip(names, schedule.nests[piece].names, strict=True))  # what a split calls them
            schedule = unrolled(schedule, [own[loop] for loop in beside])
            schedule = in_vectors(schedule, own[f"{lanes}.p"], min(step, extent), plan.vector)
            if plan.ahead:
                along = own[f"{rows if plan.by_rows else lanes}.o"]
                schedule = schedule.prefetch(schedule.nests[piece].names[-1], along, plan.ahead)
        schedule = self._cleared(schedule, buffer, min(step, extent))
        site = scope[-1] if scope else None
        return schedule.promote(buffer, site, self.machine.register_space, name=f"{buffer}_r"), pieces[0]

    def _tiled(
        self, schedule: Schedule, name: str, height: int, extent: int
    ) -> tuple[Schedule, str | None, list[str], str]:
        """The nest of a tile of rows; the loop whose iterations are blocks (None: there are none), those to lay out
        around a row's vectors, and the one that is now tiles and lanes of them.
        """
        plan, block, beside = self.plan, None, list[str]()
        lanes = loop_of(schedule, name, plan.lanes)
        if extent == plan.lane_block:
            schedule, block, lanes = schedule.tile({lanes: extent}), f"{lanes}.o", f"{lanes}.p"
        schedule = schedule.tile({lanes: plan.vector * plan.width})
        within = [loop_of(schedule, name, i) for i in plan.inner]
        if plan.block_of is not None:
            around = loop_of(schedule, name, plan.block_of[0])
            schedule, block = schedule.tile({around: plan.block_of[1]}), f"{around}.o"
            within += [block, f"{around}.p"]
        if plan.rows:
            rows = loop_of(schedule, name, plan.rows)
            inside = [n for n in schedule.nests[name].names if n in within]
            again = [loop_of(schedule, name, plan.again)] if plan.again else []
            schedule, beside = schedule.tile({rows: height}), [f"{rows}.p", *again]
            order = [*inside, *([block] if block and block not in inside else []), f"{lanes}.o", *again]
            schedule = schedule.reorder(f"{rows}.o", *order, f"{rows}.p", f"{lanes}.p")
        return schedule, block, beside, lanes

    def _cleared(self, schedule: Schedule, buffer: str, extent: int) -> Schedule:
        """The neutral element by vectors; the merge of each row's lanes by halves."""
        for name in (f"clear_{buffer}", f"merge_{buffer}"):
            own = loops_of_copy(schedule, name)
            schedule = unrolled(schedule, own[:-1])
            if own and name.startswith("merge"):
                schedule = schedule.vectorise(own[-1])
            elif own:
                schedule = in_vectors(schedule, own[-1], extent, self.plan.vector)
        return schedule


class _Spread(_Reduced[Spread]):
    """Lanes along the result."""

    def run(self, schedule: Schedule) -> Schedule:
        """Whole strips and what is left over, then whole blocks of rows and what is left over: nests of their own, but
        for those of a strip that starts its sums.
        """
        plan, name = self.plan, self.plan.statement
        schedule = last_first(self._begun(schedule, [*plan.outer, plan.rows, plan.lanes]), name, 2)
        schedule, strips = self._cut(schedule, name, plan.lanes, plan.strip)
        schedule, starts = self._started(schedule) if plan.start else (schedule, [""] * len(strips))
        for (strip, columns), start in zip(strips, starts, strict=True):
            schedule = first_last(schedule, strip, 2)
            schedule, parts = self._cut(schedule, strip, plan.rows, plan.height)
            first: list[str] = []
            for part, height in parts:
                schedule, made = self._strip(schedule, part, height, columns)
                first.append(made)
            if start:
                schedule = fused(schedule, (start, *first), range(len(plan.outer) + 1))
            schedule = self._by_one(schedule, start) if start and columns < plan.strip else schedule
        return schedule

    def _started(self, schedule: Schedule) -> tuple[Schedule, list[str]]:
        """The start of the sums by strips: its pieces."""
        plan, schedule = self.plan, self._start(schedule, [*self.plan.outer, self.plan.lanes])
        schedule, pieces = self._cut(schedule, plan.start, plan.lanes, plan.strip)
        for piece, columns in pieces:
            lanes = schedule.nests[piece].names[-1]
            schedule = schedule.tile({lanes: columns}).tile({f"{lanes}.p": plan.vector}).vectorise(f"{lanes}.p.p")
        return schedule, [piece for piece, _ in pieces]

    def _strip(self, schedule: Schedule, name: str, height: int, columns: int) -> tuple[Schedule, str]:
        """Strips, blocks of rows with what the lanes do not move in registers, tiles of vectors; the first of its
        statements.
        """
        rows, lanes = schedule.nests[name].names[-2:]
        schedule = schedule.tile({rows: height, lanes: columns})
        schedule = schedule.reorder(f"{lanes}.o", f"{rows}.o", f"{lanes}.p", f"{rows}.p")
        step = self.plan.vector * self.plan.width
        pieces = [(name, min(step, columns))]
        if columns % step and columns > step:
            pieces = [(piece_name(schedule, name, "lo"), step), (piece_name(schedule, name, "hi"), columns % step)]
            schedule = schedule.split(f"{lanes}.p", columns // step * step)
            upper = pieces[1][0]
            schedule = schedule.shift(upper, schedule.nests[upper].names[-2], -(columns // step * step))
        for tensor in self.plan.kept:
            buffer, users = f"{tensor}_{name}_k", [piece for piece, _ in pieces]
            schedule = schedule.promote(tensor, f"{rows}.o", self.machine.register_space, name=buffer, users=users)
            schedule = unrolled(schedule, loops_of_copy(schedule, f"ld_{buffer}"))
        for piece, width in pieces:
            schedule = self._tile(schedule, piece, width)
        return schedule, pieces[0][0]

    def _tile(self, schedule: Schedule, name: str, width: int) -> Schedule:
        """Some vectors of the target in registers while the rows of a block are added: of many rows, from zero."""
        lanes, rows = schedule.nests[name].names[-2:]
        schedule = schedule.tile({lanes: width}).reorder(f"{lanes}.o", rows, f"{lanes}.p").unroll(rows)
        schedule = in_vectors(schedule, f"{lanes}.p", width, self.plan.vector)
        vectors = schedule.nests[name].names[-1]
        if self.plan.ahead and schedule.kind(vectors) == "vector":
            schedule = schedule.prefetch(vectors, f"{lanes}.o", self.plan.ahead)
        s = schedule.program.statement[name]
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        if s.reorder and prod(steps.values()) >= 2 * LONG_CHAIN:
            return Sums(self.plan.vector, self.machine).partial(schedule, s, f"{lanes}.o")
        target = s.write.tensor
        buffer = f"{target}_{name}_r"
        schedule = schedule.promote(target, f"{lanes}.o", self.machine.register_space, name=buffer, users=[name])
        return copies_in_vectors(schedule, buffer, width, self.plan.vector)
