"""Blocked contractions of one group, composed of primitives as a plan says (`poly.scheduling.cpu_plan`).

Loops from the outside in: outer, blocks of the reduction and blocks of lanes in either order [packed here], middle,
blocks of rows [packed], tiles of lanes and of rows in either order [targets in registers], the reduction, rows,
vectors, lanes. Goto and van de Geijn's order (TOMS 2008) is one of those that these make. With blocks of the
reduction, partial sums go through memory, and what initialises or uses them are nests of their own, which share the
blocks of lanes where these are outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.scheduling.asked_copies import copies_into
from poly.scheduling.cpu_block_ahead import Ahead
from poly.scheduling.cpu_block_copies import Packing
from poly.scheduling.cpu_block_matrix import MatrixTiles, made_in_copies
from poly.scheduling.cpu_block_steps import Steps
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_edits import cut, fused, loop_of, ordered, unrolled
from poly.scheduling.cpu_facts import axis_of, reduction_extents
from poly.scheduling.cpu_first_use import with_first_use
from poly.scheduling.cpu_nontemporal import stored_past
from poly.scheduling.cpu_padded_copies import with_padding
from poly.scheduling.cpu_plan import BlockPlan, Pack, Piece, Site, Strip
from poly.scheduling.cpu_sums import FROM_ZERO
from poly.scheduling.cpu_tile import Tiling
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule
from poly.scheduling.uneven import shorter_ends

# Of the work: pieces up to it are not laid out; of a quarter, that costs up to a twentieth of the time.
EDGE_SHARE = 1 / 16


def schedule_contraction(schedule: Schedule, group: Group, plan: BlockPlan, machine: Machine) -> Schedule:
    """A group as planned, with what it reads beyond its tensors' edges and hands on; where an operand cannot be packed
    as planned, none is.
    """
    try:
        composed = _composed(schedule, group, plan, machine)
    except ScheduleError:
        if not plan.packs:
            raise
        composed = _composed(schedule, group, plan.without_packs(), machine)
    return stored_past(composed, plan.past)


def _composed(schedule: Schedule, group: Group, plan: BlockPlan, machine: Machine) -> Schedule:
    padded = with_padding(schedule, group, plan.vector, {(p.statement, p.tensor) for p in plan.packs})
    composed = keep_values(block_group(padded, group, plan, machine), group, machine)
    return made_in_copies(composed, plan) if plan.matrix is not None else composed


def block_group(schedule: Schedule, group: Group, plan: BlockPlan, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a group with rows."""
    return Blocking(group, plan, machine).run(schedule)


class Blocking(Tiling[BlockPlan]):
    """The nest of one contraction."""

    def __init__(self, group: Group, plan: BlockPlan, machine: Machine) -> None:
        super().__init__(group, plan, machine)
        self.packing = Packing(plan.vector, machine)
        self.steps, self.ahead = Steps(group, plan, machine), Ahead(group, plan, machine)
        self.matrix = MatrixTiles(group, plan, machine)

    def run(self, schedule: Schedule) -> Schedule:
        plan, names = self.plan, list(self.group.names)
        for name in names:
            self.extra = self._others(schedule.program.statement[name])
            schedule = self._ordered(schedule, [name], [*plan.outer, plan.lanes, *plan.middle, plan.rows])
        update = next(n for n in names if schedule.program.statement[n].combiner is not None)
        schedule = self._shared(schedule, names, plan.outer)
        for pack in (p for p in plan.packs if p.site == "whole"):
            schedule = self.packing.packed(schedule, [update], pack, self._once(schedule, update, pack))
        if not plan.lanes_outside:
            schedule = self._deep(schedule, update, self._outside())
        schedule, parts = cut(schedule, self.group, names, plan.lanes, [s.low for s in plan.strips[1:]])
        for strip, part in zip(plan.strips, parts, strict=True):
            schedule = self._strip(schedule, strip, part)
        return schedule

    def _once(self, schedule: Schedule, update: str, pack: Pack) -> str | None:
        """The innermost of the outer loops of which every iteration reads a part of its own; None where all is one."""
        s = schedule.program.statement[update]
        found: str | None = None
        if schedule.program.tensor[pack.tensor].role == "constant" or self.extra:
            return None
        for axis in self.plan.outer:
            iterator = self._iterator(schedule, update, axis)
            if var(iterator) not in s.reads[pack.read].index:
                break
            if (self.group.box or ())[axis][1] > 0:
                found = self._loop(schedule, update, axis)
        return found

    def _outside(self) -> int:
        """Loops outside of all blocks."""
        return len(self.extra) + len(self.plan.outer)

    def _together(self, names: Sequence[str]) -> list[list[str]]:
        """The statements that share a nest: all, but where sums are partial the reduction is alone."""
        if self.plan.depth is None:
            return [list(names)]
        return [[name] for name in names]

    def _deep(self, schedule: Schedule, update: str, depth: int) -> Schedule:
        """Blocks of a reduction loop inside of `depth` loops."""
        if self.plan.depth is None:
            return schedule
        iterator, size = self.plan.depth
        loop = loop_of(schedule, update, iterator)
        schedule = schedule.tile({loop: size})
        inner = schedule.nests[update].names[depth:]
        return schedule.reorder(f"{loop}.o", *(n for n in inner if n != f"{loop}.o"))

    def _packed_at(
        self, schedule: Schedule, names: Sequence[str], site: Site, at: str | None, block: int = 0
    ) -> Schedule:
        """What is packed at a site; `block`: what lies together there where that is not the plan's."""
        for pack in self.plan.packs:
            if pack.site == site:
                here = replace(pack, block=block) if pack.block and block else pack
                schedule = self.packing.packed(schedule, names, here, at)
        return schedule

    # ---- the nest of a strip of lanes

    def _strip(self, schedule: Schedule, strip: Strip, names: Sequence[str]) -> Schedule:
        """Blocks of lanes, around those of the reduction or inside of them, and what is in them."""
        depth, plan = self._outside(), self.plan
        if strip != plan.strips[0] and self._sums_axis(schedule, names) is not None:
            whole = Blocking(self.group, replace(plan, depth=None, lanes_outside=False), self.machine)
            whole.extra = self.extra  # one register tile wide: its sums stay in registers
            return whole._strip(schedule, strip, names)
        for name in names:
            schedule = self._blocks(schedule, strip, name)
        if not self.plan.lanes_outside:
            for together in self._together(names):
                inside = depth + (self.plan.depth is not None and self._is_update(schedule, together[0]))
                schedule = fused(schedule, together, [inside])
                schedule = self._in_block(schedule, strip, together, inside + 1)
            return schedule
        schedule = fused(schedule, names, [depth])
        schedule = self._sums(schedule, names, depth)
        for name in names:
            update = self._is_update(schedule, name)
            if update:
                schedule = self._deep(schedule, name, depth + 1)
            schedule = self._in_block(schedule, strip, [name], depth + 1 + update)
        return schedule

    def _sums(self, schedule: Schedule, names: Sequence[str], depth: int) -> Schedule:
        """Partial sums of a block of lanes in a buffer where these are contiguous, if they are not in the target."""
        axis = self._sums_axis(schedule, names)
        if axis is None:
            return schedule
        update = next(schedule.program.statement[n] for n in names if self._is_update(schedule, n))
        order = (*(d for d in range(len(update.write.index)) if d != axis), axis)
        at, buffer = schedule.nests[update.name].names[depth], f"{update.write.tensor}_{update.name}_s"
        return schedule.promote(
            update.write.tensor, at, self.machine.cache_space(1), name=buffer, users=list(names), order=order
        )

    def _sums_axis(self, schedule: Schedule, names: Sequence[str]) -> int | None:
        """The target's axis along the lanes, where partial sums go through a buffer as it is not the contiguous one."""
        if not self.plan.lanes_outside:
            return None
        update = next(schedule.program.statement[n] for n in names if self._is_update(schedule, n))
        axis = axis_of(update.write, self._iterator(schedule, update.name, self.plan.lanes))
        return None if axis is None or axis == len(update.write.index) - 1 else axis

    def _blocks(self, schedule: Schedule, strip: Strip, name: str) -> Schedule:
        """One statement's blocks of lanes outside of its middle loops and rows."""
        plan = self.plan
        loop = self._loop(schedule, name, plan.lanes)
        schedule = self._tiled(schedule, name, loop, strip.low, plan.vector * strip.width * strip.block)
        inner = [self._loop(schedule, name, a) for a in (*plan.middle, plan.rows)]
        return schedule.reorder(*inner, f"{loop}.p")

    def _in_block(self, schedule: Schedule, strip: Strip, names: Sequence[str], depth: int) -> Schedule:
        """What is packed for a block of lanes, middle loops, pieces of rows, inside of `depth` loops."""
        plan = self.plan
        if any(self._is_update(schedule, n) for n in names):
            at = schedule.nests[names[0]].names[depth - 1]
            schedule = self._packed_at(schedule, names, "lanes", at, plan.vector * strip.width)
        schedule = fused(schedule, names, range(depth, depth + len(plan.middle)))
        pieces = strip.rows
        if not any(self._is_update(schedule, n) for n in names):  # no register tile says what is in a piece
            low, high = pieces[0].low, pieces[-1].high
            pieces = (Piece(low, high, gcd(high - low, pieces[0].tile)),)
        schedule, parts = cut(schedule, self.group, names, plan.rows, [p.low for p in pieces[1:]])
        for piece, part in zip(pieces, parts, strict=True):
            schedule = self._rows(schedule, strip, piece, part, depth + len(plan.middle))
        return self._on_way(schedule, parts[0], pieces[0])

    def _on_way(self, schedule: Schedule, names: Sequence[str], piece: Piece) -> Schedule:
        """What is packed while the first tile of rows uses it."""
        packs = [p for p in self.plan.packs if p.on_way and p.site == "lanes"]
        for name in (n for n in names if packs and self._is_update(schedule, n)):
            for pack in packs:
                buffer = schedule.program.statement[name].reads[pack.read].tensor
                first = {self._iterator(schedule, name, self.plan.rows): piece.low}
                if len(copies_into(schedule, buffer)) == 1:
                    schedule = with_first_use(schedule, name, f"ld_{buffer}", first)
        return schedule

    def _rows(self, schedule: Schedule, strip: Strip, piece: Piece, names: Sequence[str], depth: int) -> Schedule:
        """Blocks of rows, what is packed for them, the tile loops, the tile."""
        blocks = int(self.plan.row_block > 0)
        for name in names:
            schedule = self._tile_loops(schedule, strip, piece, name, depth)
        if self.matrix.suits(strip, piece):
            return self._matrix_tile(schedule, names, depth, blocks)
        schedule, names = self._tile(schedule, names, depth, blocks, strip, piece)
        if not self._is_edge(strip, piece):
            tiles = schedule.nests[names[0]].names[depth + blocks : depth + blocks + 2]
            schedule = self.ahead.results(schedule, strip, piece, tiles)
        longest = max(strip.rows, key=lambda p: p.high - p.low)
        return self.ahead.blocks(self.ahead.copies(schedule, names), names) if piece == longest else schedule

    def _tile_loops(self, schedule: Schedule, strip: Strip, piece: Piece, name: str, depth: int) -> Schedule:
        """One statement's loops over blocks of rows and register tiles, and those of a tile, laid out."""
        plan, blocks = self.plan, int(self.plan.row_block > 0)
        rows, lanes = schedule.nests[name].names[depth : depth + 2]
        schedule = self._tiled(schedule, name, rows, piece.low, piece.tile, max(1, plan.row_block))
        schedule = schedule.tile({lanes: plan.vector * strip.width})
        first = ""
        tiles, points = [f"{rows}.o", f"{lanes}.o"], [f"{rows}.p", f"{lanes}.p"]
        if blocks:
            schedule = schedule.tile({tiles[0]: plan.row_block})
            first, tiles[0] = f"{tiles[0]}.o", f"{tiles[0]}.p"
        if not plan.lanes_inside:
            tiles.reverse()
        outside = [*[first] * blocks, *tiles]
        if self.matrix.suits(strip, piece):
            inner = [n for n in schedule.nests[name].names[depth:] if n not in outside and n not in points]
            schedule = ordered(schedule, name, [*outside, *inner, *points])
            return self.matrix.in_commands(schedule, name, inner, (points[0], points[1]), (piece.tile, strip.width))
        turned = self._is_turned(schedule, name)
        if turned:
            points.reverse()
        if piece.tile > plan.vector if turned else strip.width > 1:
            schedule = schedule.tile({points[1]: plan.vector})
            points[1:] = [f"{points[1]}.o", f"{points[1]}.p"]
        inner = [n for n in schedule.nests[name].names[depth:] if n not in outside and n not in points]
        schedule = ordered(schedule, name, [*outside, *inner, *points])
        schedule = self._laid_out(schedule, name, inner, piece)
        if not self._is_edge(strip, piece):
            schedule = self.steps.in_body(schedule, name, inner, points, (piece.tile, strip.width))
        return unrolled(schedule, points[:-1]).vectorise(points[-1])

    def _laid_out(self, schedule: Schedule, name: str, loops: Sequence[str], piece: Piece) -> Schedule:
        """The reduction's loops that are shorter at the ends of a tile, laid out so that each of its rows has its own.
        """
        s = schedule.source.statement[schedule.program.statement[name].source_name]
        axes = self.group.axes[s.name]
        ends = (shorter_ends(schedule.source, s, axes) or {}).get(axes[self.plan.rows])
        if ends is None or (ends.low <= piece.low and piece.high <= ends.high):
            return schedule
        return unrolled(schedule, (n for n in loops if ends.inside & schedule.nests[name].loops[n].names))

    def _is_edge(self, strip: Strip, piece: Piece) -> bool:
        """Whether a piece is so little of the work that the length of its code counts more than its loops do."""
        strips, rows = self.plan.strips, strip.rows
        lanes = (strip.high - strip.low) / (strips[-1].high - strips[0].low)
        return lanes * (piece.high - piece.low) / (rows[-1].high - rows[0].low) <= EDGE_SHARE

    def _is_turned(self, schedule: Schedule, name: str) -> bool:
        """Whether a statement that uses a register tile runs along its rows: what it writes is contiguous there."""
        s = schedule.program.statement[name]
        update = next(u for u in self.group.statements if u.combiner is not None)
        last, lanes = s.write.index[-1], self._iterator(schedule, name, self.plan.lanes)
        across = not isinstance(last, Affine) or lanes not in last.names
        target = schedule.program.tensor[s.write.tensor]
        return across and target.source_name != update.write.tensor

    def _tile(
        self, schedule: Schedule, names: Sequence[str], depth: int, blocks: int, strip: Strip, piece: Piece
    ) -> tuple[Schedule, Sequence[str]]:
        """What the statements of a register tile share; its target in registers. Also the statements by new names."""
        schedule = fused(schedule, names, range(depth, depth + blocks + 2))
        loops = schedule.nests[names[0]].names
        updates = [n for n in names if self._is_update(schedule, n)]
        if not updates:
            return schedule, names
        if blocks:
            schedule = self._packed_at(schedule, names, "rows", loops[depth], piece.tile)
        tiles = loops[depth + blocks : depth + blocks + 2]
        schedule = self._with_sums(schedule, schedule.program.statement[updates[0]], tiles[-1])
        schedule = self.ahead.rows(schedule, updates[0], tiles[0 if self.plan.lanes_inside else 1], piece.tile)
        schedule = self.ahead.constants(schedule, updates[0])
        schedule = self.ahead.lanes(schedule, updates[0])
        schedule = self.ahead.beside(schedule, names, tiles[-1])
        copies = piece == strip.rows[0] and any(p.on_way and p.site == "lanes" for p in self.plan.packs)
        if copies or self._is_edge(strip, piece):
            return schedule, names
        schedule, update = self.steps.with_rest(schedule, updates[0], (piece.tile, strip.width))
        return schedule, [update if n == updates[0] else n for n in names]

    def _matrix_tile(self, schedule: Schedule, names: Sequence[str], depth: int, blocks: int) -> Schedule:
        """What the statements of a register tile in a matrix unit share."""
        schedule = fused(schedule, names, range(depth, depth + blocks + 2))
        loops = schedule.nests[names[0]].names
        for update in (n for n in names if self._is_update(schedule, n)):
            schedule = self._packed_at(schedule, [update], "rows", loops[depth + blocks])
            schedule = self.matrix.in_tiles(schedule, names, update, loops[depth + blocks + 1])
        return schedule

    def _with_sums(self, schedule: Schedule, s: Statement, anchor: str) -> Schedule:
        """The sums of a register tile: in every block of the reduction from zero, if it is long enough."""
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        if self.plan.depth is None:
            return self.sums.in_blocks(schedule, s, anchor, prod(steps.values()))
        iterator, size = self.plan.depth
        enough = prod((steps | {iterator: size}).values()) >= FROM_ZERO
        return (self.sums.partial if enough else self.sums.promoted)(schedule, s, anchor)
