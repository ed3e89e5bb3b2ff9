"""Register tiles of one group, composed of primitives as a plan says (`poly.scheduling.cpu_plan`).

Loops from the outside in: outer, tiles of rows, tiles of lanes [targets of reductions in registers], reduction loops,
rows, vectors, lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Generic, TypeVar

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_core import PAGE
from poly.scheduling.cpu_edits import Composition, cut, fused, loop_of, loops_of_copy, only_read, ordered, unrolled
from poly.scheduling.cpu_facts import bytes_apart, own_capacity, reduction_extents
from poly.scheduling.cpu_nontemporal import written_far
from poly.scheduling.cpu_padded_copies import with_padding
from poly.scheduling.cpu_plan import UNROLLED, BlockPlan, Piece, Strip, TilePlan
from poly.scheduling.cpu_sums import Sums
from poly.scheduling.edits import free_buffer_name, piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOST_SHORT = 8  # extent of a reduction loop that may be unrolled
P = TypeVar("P", TilePlan, BlockPlan)


def schedule_tiles(schedule: Schedule, group: Group, plan: TilePlan, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a group."""
    schedule = with_padding(schedule, group, plan.vector)
    tiled = keep_values(_Tiles(group, plan, machine).run(schedule), group, machine)
    return written_far(tiled, group, machine, plan.threads) if plan.lanes is not None else tiled


class Tiling(Composition, Generic[P]):
    """What the compositions of one group have in common."""

    def __init__(self, group: Group, plan: P, machine: Machine) -> None:
        super().__init__(group, machine)
        self.plan, self.sums = plan, Sums(plan.vector, machine)

    def _others(self, s: Statement) -> tuple[str, ...]:
        """Iterators that say which element is written, but are not the group's loops by themselves (`3*g + q`)."""
        written = {n for i in s.write.index if isinstance(i, Affine) for n in i.names}
        found = tuple(i for i in s.iterators if i in written and i not in self.group.axes[s.name])
        if found and len(self.group.statements) > 1:
            raise ScheduleError(f"{s.name} is written at {', '.join(map(str, s.write.index))}")
        return found

    # ---- loops that are iterators

    def _is_update(self, schedule: Schedule, name: str) -> bool:
        return schedule.program.statement[name].combiner is not None

    def _iterator(self, schedule: Schedule, name: str, axis: int) -> str:
        s = schedule.program.statement[name]
        return self.group.axes[s.source_name][axis]

    def _shared(self, schedule: Schedule, names: Sequence[str], axes: Sequence[int]) -> Schedule:
        """Share the loops of some axes between statements, from the outside in."""
        for axis in axes:
            for name in names[1:]:
                first, second = self._loop(schedule, names[0], axis), self._loop(schedule, name, axis)
                if first != second:
                    schedule = schedule.fuse(first, second)
        return schedule

    def _tiled(self, schedule: Schedule, name: str, loop: str, low: int, tile: int, block: int = 1) -> Schedule:
        """Tiles of a loop that start at `low`, and so do blocks of so many of them."""
        if low % (tile * block):
            schedule = schedule.shift(name, loop, -low)
        return schedule.tile({loop: tile})


def with_short_unrolled(
    schedule: Schedule, group: Group, name: str, reductions: Sequence[str], body: int
) -> Schedule:
    """Unroll the innermost reduction loops while the body stays small."""
    s = schedule.program.statement[name]
    if s.combiner is None:
        return schedule
    extents = reduction_extents(schedule.program, s, group.axes[s.source_name])
    for loop in reversed(reductions):
        if schedule.kind(loop) == "unroll":
            return schedule
        iterator = next((i for i in s.iterators if schedule.nests[name].loops[loop] == var(i)), "")
        body *= extents.get(iterator, UNROLLED)
        if body > UNROLLED or extents.get(iterator, UNROLLED) > MOST_SHORT:
            break
        schedule = schedule.unroll(loop)
    return schedule


class _Tiles(Tiling[TilePlan]):
    """A plan has lanes or rows."""

    def run(self, schedule: Schedule) -> Schedule:
        plan, names = self.plan, list(self.group.names)
        tail = [a for a in (plan.lanes, plan.rows) if a is not None]
        for name in names:
            self.extra = self._others(schedule.program.statement[name])
            schedule = self._ordered(schedule, [name], [*plan.outer, *tail])
        schedule = self._shared(schedule, names, plan.outer)
        if not plan.strips:
            return schedule
        parts = [names]
        if plan.lanes is not None:
            schedule, parts = cut(schedule, self.group, names, plan.lanes, [s.low for s in plan.strips[1:]])
        for strip, part in zip(plan.strips, parts, strict=True):
            schedule = self._strip(schedule, strip, part)
        return schedule

    def _strip(self, schedule: Schedule, strip: Strip, names: Sequence[str]) -> Schedule:
        """Tiles of lanes, or the pieces of the rows."""
        plan = self.plan
        if plan.lanes is not None:
            for name in names:
                loop = self._loop(schedule, name, plan.lanes)
                schedule = self._tiled(schedule, name, loop, strip.low, plan.vector * strip.width)
            schedule = fused(schedule, names, [len(self.extra) + len(plan.outer)])
            return self._register_tile(schedule, strip, None, names)
        assert plan.rows is not None
        schedule, parts = cut(schedule, self.group, names, plan.rows, [p.low for p in strip.rows[1:]])
        for piece, part in zip(strip.rows, parts, strict=True):
            schedule = self._register_tile(schedule, strip, piece, part)
        return schedule

    def _register_tile(self, schedule: Schedule, strip: Strip, piece: Piece | None, names: Sequence[str]) -> Schedule:
        """Tile loops shared, reduction loops inside, then rows and vectors; targets of reductions in registers."""
        depth = self._depth()
        schedule, names = self._square(schedule, names)
        for name in names:
            schedule = self._tile_statement(schedule, strip, piece, name)
        shared = int(piece is not None)
        schedule = fused(schedule, names, range(depth, depth + shared))
        anchor = schedule.nests[names[0]].names[depth + shared - 1]
        updates = [n for n in names if schedule.program.statement[n].combiner is not None]
        if updates:
            schedule = self._sums(schedule, schedule.program.statement[updates[0]], anchor)
        for name in updates:
            schedule = self._turned(schedule, name)
            schedule = self._stream_ahead(schedule, name, strip.width * self.plan.vector)
        return schedule

    def _sums(self, schedule: Schedule, s: Statement, anchor: str) -> Schedule:
        """A reduction's target in registers; all steps at once where squares follow them."""
        if self.plan.turns:
            return self.sums.promoted(schedule, s, anchor)
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        return self.sums.in_blocks(schedule, s, anchor, prod(steps.values()))

    def _stream_ahead(self, schedule: Schedule, name: str, width: int) -> Schedule:
        """An operand from beyond a core's own caches whose rows a tile of lanes reads whole, one after the other, is
        asked for a page ahead: what a core fetches by itself ends with the page.
        """
        s, nest = schedule.program.statement[name], schedule.nests[name]
        vector, around = nest.names[-1], [n for n in nest.names if schedule.kind(n) == "serial"]
        if schedule.kind(vector) != "vector" or not around:
            return schedule
        lanes, own = nest.loops[vector].names, nest.loops[around[-1]].names
        for r in s.reads:
            last = r.index[-1] if r.index else None  # None: of a scalar
            if r.indirect or r.guard or not isinstance(last, Affine) or last.names != lanes or len(own) != 1:
                continue
            tensor = schedule.program.tensor[r.tensor]
            size, apart = size_bytes(tensor.dtype), bytes_apart(schedule.program, r, *own) or 0
            whole = size * prod(tensor.extents(schedule.program.binding))
            far = not tensor.scope and whole > own_capacity(self.machine)
            if far and 0 < apart <= size * width:
                return schedule.prefetch(vector, around[-1], -(-PAGE // apart))
        return schedule

    def _square(self, schedule: Schedule, names: Sequence[str]) -> tuple[Schedule, list[str]]:
        """Cut the reduction loop that turned reads follow into square tiles and what is left over."""
        result, vector = list(names), self.plan.vector
        for turn in self.plan.turns[:1]:
            name = next(n for n in names if schedule.program.statement[n].source_name == turn.statement)
            s = schedule.program.statement[name]
            extent = reduction_extents(schedule.program, s, self.group.axes[turn.statement])[turn.iterator]
            if extent % vector:
                loop = loop_of(schedule, name, turn.iterator)
                shared = schedule.outer(loop)[self._depth() : -1]
                lower, upper = piece_name(schedule, name, "lo"), piece_name(schedule, name, "hi")
                schedule = schedule.split(loop, extent // vector * vector)
                for around in reversed(shared):  # each piece gets loops of its own
                    schedule = schedule.distribute(around, 1)
                k = result.index(name)
                result[k : k + 1] = [lower, upper]
        return schedule, result

    def _turned(self, schedule: Schedule, name: str) -> Schedule:
        """Square tiles of the turned reads in registers: rows as they lie in memory, read across them."""
        s = schedule.program.statement[name]
        for turn in self.plan.turns:
            nest = schedule.nests[name]
            square = var(turn.iterator) // self.plan.vector
            loop = next((n for n in nest.names if nest.loops[n] == square), None)
            if s.source_name != turn.statement or loop is None:
                continue
            tensor, space = s.reads[turn.read].tensor, self.machine.register_space
            buffer = free_buffer_name(schedule, f"{tensor}_{name}_t")
            only = only_read(schedule.program.statement[name], turn.read)
            schedule = schedule.promote(tensor, loop, space, name=buffer, users=[name], reads=only)
            own = loops_of_copy(schedule, f"ld_{buffer}")
            schedule = unrolled(schedule, own[:-1]).vectorise(own[-1])
        return schedule

    def _depth(self) -> int:
        """Loops outside of a register tile's own."""
        return len(self.extra) + len(self.plan.outer) + (self.plan.lanes is not None)

    def _tile_statement(self, schedule: Schedule, strip: Strip, piece: Piece | None, name: str) -> Schedule:
        """One statement's rows, or its vectors, innermost."""
        tiles: list[str] = []
        points: list[str] = []
        if piece is not None:
            assert self.plan.rows is not None
            rows = self._loop(schedule, name, self.plan.rows)
            schedule = self._tiled(schedule, name, rows, piece.low, piece.tile).unroll(f"{rows}.p")
            tiles, points = [f"{rows}.o"], [f"{rows}.p"]
        else:
            lanes = schedule.nests[name].names[self._depth()]
            if strip.width > 1:
                schedule = schedule.tile({lanes: self.plan.vector}).unroll(f"{lanes}.o")
                points, lanes = [f"{lanes}.o"], f"{lanes}.p"
            points.append(lanes)
        band = schedule.nests[name].names[self._depth() :]
        between = [n for n in band if n not in tiles and n not in points]
        schedule = ordered(schedule, name, [*tiles, *between, *points])
        schedule, between = self._squares(schedule, name, between)
        body = strip.width * (piece.tile if piece is not None else 1)
        schedule = with_short_unrolled(schedule, self.group, name, between, body)
        return schedule if piece is not None else schedule.vectorise(points[-1])

    def _squares(self, schedule: Schedule, name: str, reductions: Sequence[str]) -> tuple[Schedule, list[str]]:
        """Tile the loop that turned reads follow; the loops that stay between tiles and points."""
        s, found = schedule.program.statement[name], list(reductions)
        for turn in self.plan.turns[:1]:
            extents = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
            if s.source_name != turn.statement or extents[turn.iterator] < self.plan.vector:
                continue
            loop = loop_of(schedule, name, turn.iterator)
            schedule = schedule.tile({loop: self.plan.vector}).unroll(f"{loop}.p")
            rest = [n for n in found if n != loop]
            order = [*rest, f"{loop}.o", f"{loop}.p"]
            if rest:
                schedule = schedule.reorder(*order)
            found = order
        return schedule, found
