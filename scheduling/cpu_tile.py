"""Register tiles and packed buffers of one group, composed of primitives as a plan says (`poly.scheduling.cpu_plan`).

Loops from the outside in: outer, blocks of lanes [packed buffers], middle, tiles of rows, tiles of lanes [targets of
reductions in registers], reduction loops, rows, vectors, lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.scheduling.cpu_facts import reduction_extents
from poly.scheduling.cpu_plan import MOST_PANEL_COPIES, UNROLLED, Pack, Piece, Plan, Strip
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOST_SHORT = 8  # extent of a reduction loop that may be unrolled


def loop_of(schedule: Schedule, statement: str, iterator: str) -> str:
    """The loop that is one of the statement's iterators, up to a shift."""
    nest = schedule.nests[statement]
    found = [loop for loop in nest.names if (nest.loops[loop] - var(iterator)).is_constant]
    if not found:
        raise ScheduleError(f"no loop of {statement} is {iterator}")
    return found[0]


def tile_group(schedule: Schedule, group: Group, plan: Plan, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a group."""
    if plan.blocked:
        from poly.scheduling.cpu_block import block_group

        return block_group(schedule, group, plan, machine)
    return Tiling(group, plan, machine).run(schedule)


class Tiling:
    """The composition for one group."""

    def __init__(self, group: Group, plan: Plan, machine: Machine) -> None:
        self.group, self.plan, self.machine = group, plan, machine
        self.extra: tuple[str, ...] = ()

    def run(self, schedule: Schedule) -> Schedule:
        plan, names = self.plan, list(self.group.names)
        tail = [a for a in (plan.lanes, *plan.middle, plan.rows) if a is not None]
        for name in names:
            self.extra = self._others(schedule.program.statement[name])
            schedule = self._ordered(schedule, name, [*plan.outer, *tail])
        schedule = self._fused(schedule, names, plan.outer)
        if not plan.strips:
            return schedule
        cuts = [s.low for s in plan.strips[1:]]
        schedule, parts = self._split(schedule, names, plan.lanes, cuts)
        for strip, part in zip(plan.strips, parts, strict=True):
            schedule = self._strip(schedule, strip, part)
        return schedule

    def _others(self, s: Statement) -> tuple[str, ...]:
        """Iterators that say which element is written, but are not the group's loops by themselves (`3*g + q`)."""
        written = {n for i in s.write.index if isinstance(i, Affine) for n in i.names}
        found = tuple(i for i in s.iterators if i in written and i not in self.group.axes[s.name])
        if found and len(self.group.statements) > 1:
            raise ScheduleError(f"{s.name} is written at {', '.join(map(str, s.write.index))}")
        return found

    # ---- loops that are iterators

    def _iterator(self, schedule: Schedule, name: str, axis: int) -> str:
        s = schedule.program.statement[name]
        return self.group.axes[s.origin or s.name][axis]

    def _loop(self, schedule: Schedule, name: str, axis: int) -> str:
        return loop_of(schedule, name, self._iterator(schedule, name, axis))

    def _ordered(self, schedule: Schedule, name: str, axes: Sequence[int]) -> Schedule:
        """Parallel loops in an order, then the others."""
        nest = schedule.nests[name]
        first = [loop_of(schedule, name, i) for i in self.extra] + [self._loop(schedule, name, a) for a in axes]
        order = first + [n for n in nest.names if n not in first]
        return schedule if tuple(order) == nest.names else schedule.reorder(*order)

    def _fused(self, schedule: Schedule, names: Sequence[str], axes: Sequence[int]) -> Schedule:
        """Share the loops of some axes between statements, from the outside in."""
        for axis in axes:
            for name in names[1:]:
                first, second = self._loop(schedule, names[0], axis), self._loop(schedule, name, axis)
                if first != second:
                    schedule = schedule.fuse(first, second)
        return schedule

    def _split(
        self, schedule: Schedule, names: Sequence[str], axis: int | None, cuts: Sequence[int]
    ) -> tuple[Schedule, list[list[str]]]:
        """Cut a loop of every statement in pieces; one list of statements a piece."""
        pieces = [list(names)]
        for cut in cuts:
            assert axis is not None
            lower, upper = list[str](), list[str]()
            for name in pieces[-1]:
                lower.append(piece_name(schedule, name, "lo"))
                upper.append(piece_name(schedule, name, "hi"))
                schedule = schedule.split(self._loop(schedule, name, axis), cut)
            pieces[-1:] = [lower, upper]
        return schedule, pieces

    def _tiled(self, schedule: Schedule, name: str, loop: str, low: int, tile: int) -> Schedule:
        """Tiles of a loop that start at `low`."""
        if low % tile:
            schedule = schedule.shift(name, loop, -low)
        return schedule.tile({loop: tile})

    # ---- one strip of lanes

    def _strip(self, schedule: Schedule, strip: Strip, names: Sequence[str]) -> Schedule:
        plan = self.plan
        lanes = {name: "" for name in names}
        if plan.lanes is not None:
            for name in names:
                schedule, lanes[name] = self._blocks(schedule, name, strip)
            schedule = self._fused_at(schedule, names, len(self.extra) + len(plan.outer))
        schedule = self._fused(schedule, names, plan.middle)
        if plan.packs:
            schedule = self._packed(schedule, names, schedule.nests[names[0]].names[len(self.extra) + len(plan.outer)])
        if plan.rows is None:
            return self._register_tile(schedule, strip, None, names, lanes)
        cuts = [p.low for p in strip.rows[1:]]
        schedule, parts = self._split(schedule, names, plan.rows, cuts)
        for piece, part in zip(strip.rows, parts, strict=True):
            inner = {n: self._renamed(schedule, n, lanes[whole]) for n, whole in zip(part, names, strict=True)}
            schedule = self._register_tile(schedule, strip, piece, part, inner)
        return schedule

    def _renamed(self, schedule: Schedule, part: str, loop: str) -> str:
        """The loop inside a block of lanes, as it is called in a piece of a statement."""
        return next((n for n in schedule.nests[part].names if loop and (n == loop or n.startswith(f"{loop}."))), "")

    def _blocks(self, schedule: Schedule, name: str, strip: Strip) -> tuple[Schedule, str]:
        """Cut a statement's lanes into blocks outside of the middle loops and the rows; the loop inside a block."""
        assert self.plan.lanes is not None
        loop = self._loop(schedule, name, self.plan.lanes)
        schedule = self._tiled(schedule, name, loop, strip.low, self.plan.vector * strip.width * strip.block)
        parallel = [self._loop(schedule, name, a) for a in (*self.plan.middle, self.plan.rows) if a is not None]
        if parallel:
            schedule = schedule.reorder(*parallel, f"{loop}.p")
        return schedule, f"{loop}.p"

    def _fused_at(self, schedule: Schedule, names: Sequence[str], depth: int) -> Schedule:
        for name in names[1:]:
            first, second = schedule.nests[names[0]].names[depth], schedule.nests[name].names[depth]
            if first != second:
                schedule = schedule.fuse(first, second)
        return schedule

    # ---- packed buffers

    def _packed(self, schedule: Schedule, names: Sequence[str], at: str) -> Schedule:
        for pack in self.plan.packs:
            users = [n for n in names if (schedule.program.statement[n].origin or n) == pack.statement]
            buffer = f"{pack.tensor}_{users[0]}_p"
            fold = {pack.lane: pack.step} if pack.step > 1 else None
            packed = schedule.promote(
                pack.tensor, at, self._space(), name=buffer, users=users, order=pack.order, pad=pack.pad, fold=fold
            )
            schedule = self._copied(packed, pack, buffer)
        return schedule

    def _space(self) -> str:
        """The second cache level, or what there is."""
        caches = sorted((m.capacity or 0, m.name) for m in self.machine.memories if m.kind == "cache")
        return caches[min(1, len(caches) - 1)][1] if caches else "dram"

    def _copied(self, schedule: Schedule, pack: Pack, buffer: str) -> Schedule:
        """Lanes along the axis that is contiguous on both sides; else short runs of the source's fast axis inside."""
        rank, copy = len(pack.order), f"ld_{buffer}"
        lane, fast = f"{copy}.{pack.lane}", f"{copy}.{rank - 1}"
        if copy not in schedule.nests:  # only padding is read, so that there is nothing to copy
            return schedule
        names = schedule.nests[copy].names
        if pack.lane == rank - 1 and pack.step > 1:
            return self._folded(schedule, lane, -(-self._extent(schedule, buffer, pack.lane) // pack.step), pack.step)
        if pack.lane == rank - 1:
            return _vectors(schedule, lane, self.plan.vector, self._extent(schedule, buffer, pack.lane))
        if lane in names and fast in names:
            schedule = schedule.tile({fast: 2 * self.plan.vector})
            own = [n for n in schedule.nests[copy].names if n.startswith(f"{copy}.")]
            order = [n for n in own if n not in (f"{fast}.o", f"{fast}.p", lane)] + [f"{fast}.o", lane, f"{fast}.p"]
            return schedule.reorder(*order) if order != own else schedule
        return schedule

    def _folded(self, schedule: Schedule, loop: str, extent: int, step: int) -> Schedule:
        """The elements that lie together one after the other, in vectors."""
        schedule = schedule.tile({loop: step}).reorder(f"{loop}.p", f"{loop}.o").unroll(f"{loop}.p")
        return _vectors(schedule, f"{loop}.o", self.plan.vector, extent)

    def _extent(self, schedule: Schedule, buffer: str, axis: int) -> int:
        return int(schedule.program.tensor[buffer].shape[axis].evaluate(schedule.program.binding))

    # ---- register tiles

    def _register_tile(
        self, schedule: Schedule, strip: Strip, piece: Piece | None, names: Sequence[str], lanes: Mapping[str, str]
    ) -> Schedule:
        """Tile loops shared, reduction loops inside, then rows and vectors; targets of reductions in registers."""
        depth = self._depth()
        schedule, names, lanes = self._square(schedule, names, lanes)
        for name in names:
            schedule = self._tile_statement(schedule, strip, piece, name, lanes[name])
        shared = (piece is not None) + (strip.block > 1)
        for k in range(depth, depth + shared):
            schedule = self._fused_at(schedule, names, k)
        anchor = schedule.nests[names[0]].names[depth + shared - 1]
        updates = [n for n in names if schedule.program.statement[n].combiner is not None]
        if updates:
            schedule = self._target(schedule, schedule.program.statement[updates[0]], anchor)
        for name in updates:
            schedule = self._turned(schedule, name)
        return schedule

    def _square(
        self, schedule: Schedule, names: Sequence[str], lanes: Mapping[str, str]
    ) -> tuple[Schedule, list[str], dict[str, str]]:
        """Cut the reduction loop that turned reads follow into square tiles and what is left over."""
        result, inside, vector = list(names), dict(lanes), self.plan.vector
        for turn in self.plan.turns[:1]:
            name = next(n for n in names if (schedule.program.statement[n].origin or n) == turn.statement)
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
                inside |= {lower: lanes[name], upper: f"{lanes[name]}.2"}
        return schedule, result, inside

    def _turned(self, schedule: Schedule, name: str) -> Schedule:
        """Square tiles of the turned reads in registers: rows as they lie in memory, read across them."""
        s = schedule.program.statement[name]
        for turn in self.plan.turns:
            nest = schedule.nests[name]
            square = var(turn.iterator) // self.plan.vector
            loop = next((n for n in nest.names if nest.loops[n] == square), None)
            if (s.origin or s.name) != turn.statement or loop is None:
                continue
            buffer = f"{turn.tensor}_{name}_t"
            schedule = schedule.promote(turn.tensor, loop, "reg", name=buffer, users=[name])
            own = [n for n in schedule.nests[f"ld_{buffer}"].names if n.startswith(f"ld_{buffer}.")]
            for row in own[:-1]:
                schedule = schedule.unroll(row)
            schedule = schedule.vectorise(own[-1])
        return schedule

    def _depth(self) -> int:
        return len(self.extra) + len(self.plan.outer) + len(self.plan.middle) + (self.plan.lanes is not None)

    def _tile_statement(self, schedule: Schedule, strip: Strip, piece: Piece | None, name: str, lanes: str) -> Schedule:
        tiles: list[str] = []
        points: list[str] = []
        if piece is not None:
            assert self.plan.rows is not None
            rows = self._loop(schedule, name, self.plan.rows)
            schedule = self._tiled(schedule, name, rows, piece.low, piece.tile).unroll(f"{rows}.p")
            tiles, points = [f"{rows}.o"], [f"{rows}.p"]
        if lanes:
            if strip.block > 1:
                schedule = schedule.tile({lanes: self.plan.vector * strip.width})
                tiles, lanes = [*tiles, f"{lanes}.o"], f"{lanes}.p"
            if strip.width > 1:
                schedule = schedule.tile({lanes: self.plan.vector}).unroll(f"{lanes}.o")
                points, lanes = [*points, f"{lanes}.o"], f"{lanes}.p"
            points.append(lanes)
        band = list(schedule.nests[name].names[self._depth() :])
        between = [n for n in band if n not in tiles and n not in points]
        order = [*tiles, *between, *points]
        if order != band:
            schedule = schedule.reorder(*order)
        schedule, between = self._squares(schedule, name, between)
        schedule = self._short(schedule, name, between, strip.width * (piece.tile if piece is not None else 1))
        return schedule.vectorise(lanes) if lanes else schedule

    def _squares(self, schedule: Schedule, name: str, reductions: Sequence[str]) -> tuple[Schedule, list[str]]:
        """Tile the loop that turned reads follow; the loops that stay between tiles and points."""
        s, found = schedule.program.statement[name], list(reductions)
        for turn in self.plan.turns[:1]:
            extents = reduction_extents(schedule.program, s, self.group.axes[s.origin or s.name])
            if (s.origin or s.name) != turn.statement or extents[turn.iterator] < self.plan.vector:
                continue
            loop = loop_of(schedule, name, turn.iterator)
            schedule = schedule.tile({loop: self.plan.vector}).unroll(f"{loop}.p")
            rest = [n for n in found if n != loop]
            order = [*rest, f"{loop}.o", f"{loop}.p"]
            if rest:
                schedule = schedule.reorder(*order)
            found = order
        return schedule, found

    def _short(self, schedule: Schedule, name: str, reductions: Sequence[str], body: int) -> Schedule:
        """Unroll the innermost reduction loops while the body stays small."""
        s = schedule.program.statement[name]
        if s.combiner is None:
            return schedule
        extents = reduction_extents(schedule.program, s, self.group.axes[s.origin or s.name])
        for loop in reversed(reductions):
            if schedule.kind(loop) == "unroll":
                return schedule
            iterator = next((i for i in s.iterators if schedule.nests[name].loops[loop] == var(i)), "")
            body *= extents.get(iterator, UNROLLED)
            if body > UNROLLED or extents.get(iterator, UNROLLED) > MOST_SHORT:
                break
            schedule = schedule.unroll(loop)
        return schedule

    def _target(self, schedule: Schedule, s: Statement, anchor: str) -> Schedule:
        """Keep a reduction's target in registers while its tile is computed; the copies get rows and lanes too."""
        buffer = f"{s.write.tensor}_{s.name}_r"
        nest = schedule.nests[s.name]
        vector = next((n for n in nest.names if schedule.kind(n) == "vector"), None)
        names = nest.loops[vector].names if vector is not None else frozenset[str]()
        axis = next((d for d, i in enumerate(s.write.index) if isinstance(i, Affine) and names & i.names), None)
        last = len(s.write.index) - 1
        across = axis is not None and axis != last
        order = (*(d for d in range(last + 1) if d != axis), axis) if across and axis is not None else None
        schedule = schedule.promote(s.write.tensor, anchor, "reg", name=buffer, order=order)
        for copy in (f"ld_{buffer}", f"st_{buffer}"):
            if copy not in schedule.nests:
                continue
            own = {d: f"{copy}.{d}" for d in range(last + 1) if f"{copy}.{d}" in schedule.nests[copy].names}
            lanes = last if across else axis
            if lanes in own and own[lanes] != schedule.nests[copy].names[-1]:
                schedule = schedule.reorder(*(n for d, n in own.items() if d != lanes), own[lanes])
            for d, loop in own.items():
                if d == lanes:
                    extent = self._extent(schedule, buffer, d)
                    if extent > self.plan.vector * MOST_PANEL_COPIES:
                        raise ScheduleError(f"{extent} elements of {s.write.tensor} in registers are too many")
                    schedule = _vectors(schedule, loop, self.plan.vector, extent)
                else:
                    schedule = schedule.unroll(loop)
        return schedule


def _vectors(schedule: Schedule, loop: str, vector: int, extent: int) -> Schedule:
    """A loop in vectors, unrolled where they are few."""
    if extent <= vector:
        return schedule.vectorise(loop)
    schedule = schedule.tile({loop: vector})
    if extent <= vector * MOST_PANEL_COPIES:
        schedule = schedule.unroll(f"{loop}.o")
    return schedule.vectorise(f"{loop}.p")
