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

from poly.affine import Affine, Mod, var
from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.scheduling.asked_copies import copies_into
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_edits import (
    FEW_VECTORS,
    cut,
    extent_of,
    fused,
    in_vectors,
    loop_of,
    loops_of_copy,
    only_read,
    ordered,
    turned_square,
    unrolled,
    whole_blocks,
    with_padding,
)
from poly.scheduling.cpu_facts import BYTES_AHEAD, axis_of, bytes_apart, own_capacity, reduction_extents
from poly.scheduling.cpu_first_use import with_first_use
from poly.scheduling.cpu_nontemporal import stored_past
from poly.scheduling.cpu_plan import UNROLLED, BlockPlan, Pack, Piece, Site, Strip, square_side, window_stays
from poly.scheduling.cpu_tile import MOST_SHORT, Tiling
from poly.scheduling.groups import Group
from poly.scheduling.promotion import free_name
from poly.scheduling.schedule import Schedule
from poly.scheduling.uneven import shorter_ends, uneven_axes

# The rows of the next register tile are asked for once for each tile of lanes, so only where there are at most so many
# of these, and where so many times a tile's rows fit the nearest cache: what is packed is there besides.
FEW_USES, AHEAD_SHARE = 2, 4
ROWS_AHEAD = 4  # of what is packed from afar: short pieces of rows, which no prefetcher of a core follows
# Steps in one body, the first of these that divides the loop's extent: four spare most of a loop's instructions, more
# spare little and cost compile time, fewer still spare something where nothing else divides it. Where four do not fit
# in a body, fewer would cost registers and spare hardly anything. Of what comes from afar, eight if they fit.
STEPS = (4, 5, 6, 7, 8, 3, 2)
STEPS_FROM_AFAR = (8, *(n for n in STEPS if n != 8))
# Of the operations' time, what a copy from memory takes at least where it is asked for while tiles are at work.
ASKED_SHARE = 1 / 16
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
    return keep_values(block_group(padded, group, plan, machine), group, machine)


def block_group(schedule: Schedule, group: Group, plan: BlockPlan, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a group with rows."""
    return Blocking(group, plan, machine).run(schedule)


class Blocking(Tiling[BlockPlan]):
    """The nest of one contraction."""

    def run(self, schedule: Schedule) -> Schedule:
        plan, names = self.plan, list(self.group.names)
        for name in names:
            self.extra = self._others(schedule.program.statement[name])
            schedule = self._ordered(schedule, name, [*plan.outer, plan.lanes, *plan.middle, plan.rows])
        update = next(n for n in names if schedule.program.statement[n].combiner is not None)
        schedule = self._shared(schedule, names, plan.outer)
        for pack in (p for p in plan.packs if p.site == "whole"):
            schedule = self._pack(schedule, [update], pack, self._once(schedule, update, pack))
        if not plan.lanes_outside:
            schedule = self._deep(schedule, update, self._outside())
            around = schedule.nests[update].names[: self._outside() + (plan.depth is not None)]
            schedule = self._packed_at(schedule, [update], "outer", around[-1] if around else None)
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

    def _is_update(self, schedule: Schedule, name: str) -> bool:
        return schedule.program.statement[name].combiner is not None

    def _packed_at(
        self, schedule: Schedule, names: Sequence[str], site: Site, at: str | None, block: int = 0
    ) -> Schedule:
        """What is packed at a site; `block`: what lies together there where that is not the plan's."""
        for pack in self.plan.packs:
            if pack.site == site:
                here = replace(pack, block=block) if pack.block and block else pack
                schedule = self._pack(schedule, names, here, at)
        return schedule

    def _pack(self, schedule: Schedule, names: Sequence[str], pack: Pack, at: str | None) -> Schedule:
        """One operand in a buffer of its own for an iteration of a loop, copied by vectors."""
        users = [n for n in names if schedule.program.statement[n].source_name == pack.statement]
        buffer = free_name(schedule, f"{pack.tensor}_{users[0]}_p")
        blocks = ({pack.lane: pack.block} if pack.block else {}) | (dict([pack.deep]) if pack.deep else {})
        schedule = schedule.promote(
            pack.tensor, at, self.machine.cache_space(1), name=buffer, users=users, order=pack.order, pad=pack.pad,
            fold={pack.lane: pack.step} if pack.step > 1 else None,
            block=blocks or None,
            reads=only_read(schedule.program.statement[users[0]], pack.read),
        )  # fmt: skip
        if not pack.block:
            return self._copied(schedule, pack, buffer)
        extents = [extent_of(schedule, buffer, axis) for axis in range(len(pack.order))]
        if pack.across is None or pack.lane == pack.across:
            return self._copied_blocks(schedule, pack, buffer, extents, at)
        return self._copied_across(schedule, pack, buffer, extents)

    def _copied_blocks(
        self, schedule: Schedule, pack: Pack, buffer: str, extents: Sequence[int], at: str | None
    ) -> Schedule:
        """Block after block, the elements of a block innermost, where they are contiguous in the source in vectors.
        What comes from afar is asked for: some rows ahead, or what the next iteration of the loop `at` copies.
        """
        copy = f"ld_{buffer}"
        lane = f"{copy}.{pack.lane}"
        schedule, lane = self._blocks_first(schedule, copy, lane, pack, extents)
        if pack.lane != len(pack.order) - 1 or not lane:
            return schedule
        vector, extent = self.plan.vector, min(extents[pack.lane], pack.block)
        width = vector if pack.block <= vector else min(vector, pack.block & -pack.block)
        if extents[pack.lane] > pack.block and extents[pack.lane] % pack.block or width < 2:
            return schedule
        schedule = in_vectors(schedule, lane, extent, width)
        rows, vector = loops_of_copy(schedule, copy)[0], schedule.nests[copy].names[-1]
        if rows == vector or pack.on_way or not self._is_far(schedule, pack.tensor):
            return schedule
        return schedule.prefetch(vector, at) if at and pack.ahead else schedule.prefetch(vector, rows, ROWS_AHEAD)

    def _blocks_first(
        self, schedule: Schedule, copy: str, lane: str, pack: Pack, extents: Sequence[int]
    ) -> tuple[Schedule, str]:
        """A copy's loops: the other axes in the buffer's order, blocks of an axis, inside of a block; and that one."""
        own = loops_of_copy(schedule, copy)
        if lane not in own:
            return schedule, ""
        first = [f"{copy}.{axis}" for axis in pack.order if f"{copy}.{axis}" in own and axis != pack.lane]
        if extents[pack.lane] > pack.block:
            schedule = schedule.tile({lane: pack.block})
            order, lane = [*first, f"{lane}.o", f"{lane}.p"], f"{lane}.p"
            steps = self._line_steps(schedule, pack)
            if first and steps > 1 and not extents[int(first[-1].rpartition(".")[2])] % steps:
                schedule = schedule.tile({first[-1]: steps}).unroll(f"{first[-1]}.p")
                order = [*first[:-1], f"{first[-1]}.o", order[-2], f"{first[-1]}.p", lane]
        else:
            order = [*first, lane]
        return ordered(schedule, copy, order), lane

    def _line_steps(self, schedule: Schedule, pack: Pack) -> int:
        """Steps that a copy makes of one block before it turns to the next: their short pieces fill whole cache lines,
        which may be gone when the copy comes back, as blocks lie where they meet in few sets.
        """
        if pack.lane != len(pack.order) - 1 or pack.on_way:
            return 1
        size, line = pack.block * size_bytes(schedule.program.tensor[pack.tensor].dtype), self.machine.line
        return line // gcd(size, line)

    def _copied_across(self, schedule: Schedule, pack: Pack, buffer: str, extents: Sequence[int]) -> Schedule:
        """Squares of a source that is contiguous along another axis: into registers as they lie, out across."""
        assert pack.across is not None
        copy, own = f"ld_{buffer}", loops_of_copy(schedule, f"ld_{buffer}")
        length = schedule.program.tensor[pack.tensor].extents(schedule.program.binding)[pack.across]
        side = square_side(gcd(extents[pack.across], length), self.plan.vector)  # of the last block, too
        lane, fast = f"{copy}.{pack.lane}", f"{copy}.{pack.across}"
        if not {lane, fast} <= {*own} or not side or pack.block % self.plan.vector:
            return self._blocks_first(schedule, copy, lane, pack, extents)[0]
        others = [n for d in pack.order if (n := f"{copy}.{d}") in own and n not in (lane, fast)]
        extent, vector = extents[pack.lane], self.plan.vector
        if extent % pack.block == 0 or extent <= vector:
            schedule = ordered(schedule, copy, [*others, lane, fast])
            for size in (pack.block, vector):
                if extent > size:
                    schedule = schedule.tile({lane: size})
                    others, lane, extent = [*others, f"{lane}.o"], f"{lane}.p", size
            schedule = schedule.tile({fast: side})
            return self._square(schedule, pack, copy, [*others, f"{fast}.o", f"{fast}.p", lane])
        if extent > pack.block:
            return self._blocks_first(schedule, copy, lane, pack, extents)[0]
        schedule = ordered(schedule.tile({fast: side}), copy, [*others, f"{fast}.o", lane, f"{fast}.p"])
        depth = schedule.nests[copy].names.index(lane)  # pieces share the loops around: threads meet once
        schedule, pieces = whole_blocks(schedule, copy, depth, extent, vector)
        for piece, size in pieces:
            *around, lane, rows = schedule.nests[piece].names
            if size == vector:
                schedule = schedule.tile({lane: vector})
                around, lane = [*around, f"{lane}.o"], f"{lane}.p"
            schedule = self._square(schedule, pack, piece, [*around[depth:], rows, lane], around[-1])
        return schedule

    def _square(
        self, schedule: Schedule, pack: Pack, copy: str, order: Sequence[str], at: str | None = None
    ) -> Schedule:
        """The two innermost loops of a copy by way of registers, which are filled along the source."""
        schedule = schedule.reorder(*order).unroll(order[-2]).vectorise(order[-1])
        square = free_name(schedule, f"{copy.removeprefix('ld_')}_t")
        space = self.machine.register_space
        return turned_square(schedule, copy, pack.tensor, at or order[-3], space, square)

    def _copied(self, schedule: Schedule, pack: Pack, buffer: str) -> Schedule:
        """Lanes along the axis that is contiguous on both sides; else short runs of the source's fast axis inside."""
        rank, copy = len(pack.order), f"ld_{buffer}"
        lane, fast = f"{copy}.{pack.lane}", f"{copy}.{rank - 1}"
        if copy not in schedule.nests:  # only padding is read, so that there is nothing to copy
            return schedule
        names = schedule.nests[copy].names
        if pack.lane == rank - 1 and pack.step > 1:
            return self._folded(schedule, lane, -(-extent_of(schedule, buffer, pack.lane) // pack.step), pack.step)
        if pack.lane == rank - 1:
            return in_vectors(schedule, lane, extent_of(schedule, buffer, pack.lane), self.plan.vector, FEW_VECTORS)
        if lane in names and fast in names:
            schedule = schedule.tile({fast: 2 * self.plan.vector})
            own = loops_of_copy(schedule, copy)
            order = [n for n in own if n not in (f"{fast}.o", f"{fast}.p", lane)] + [f"{fast}.o", lane, f"{fast}.p"]
            return ordered(schedule, copy, order)
        return schedule

    def _folded(self, schedule: Schedule, loop: str, extent: int, step: int) -> Schedule:
        """The elements that lie together one after the other, in vectors."""
        schedule = schedule.tile({loop: step}).reorder(f"{loop}.p", f"{loop}.o").unroll(f"{loop}.p")
        return in_vectors(schedule, f"{loop}.o", extent, self.plan.vector, FEW_VECTORS)

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
        for name in (n for n in names if self._is_update(schedule, n)):
            for pack in (p for p in self.plan.packs if p.on_way and p.site == "lanes"):
                buffer = schedule.program.statement[name].reads[pack.read].tensor
                first = {self._iterator(schedule, name, self.plan.rows): piece.low}
                if len(copies_into(schedule, buffer)) == 1:
                    schedule = with_first_use(schedule, name, f"ld_{buffer}", first)
        return schedule

    def _rows(self, schedule: Schedule, strip: Strip, piece: Piece, names: Sequence[str], depth: int) -> Schedule:
        """Blocks of rows, what is packed for them, the tile loops, the tile."""
        plan = self.plan
        blocks = int(plan.row_block > 0)
        for name in names:
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
            turned = self._is_turned(schedule, name)
            if turned:
                points.reverse()
            if piece.tile > plan.vector if turned else strip.width > 1:
                schedule = schedule.tile({points[1]: plan.vector})
                points[1:] = [f"{points[1]}.o", f"{points[1]}.p"]
            band = schedule.nests[name].names[depth:]
            outside = [*[first] * blocks, *tiles]
            order = [*outside, *(n for n in band if n not in outside and n not in points), *points]
            schedule = ordered(schedule, name, order)
            inner = order[blocks + 2 : -len(points)]
            schedule = self._laid_out(schedule, name, inner, piece)
            if not self._is_edge(strip, piece):
                schedule = self._steps(schedule, name, inner, points, (piece.tile, strip.width))
            schedule = unrolled(schedule, points[:-1]).vectorise(points[-1])
        schedule = self._tile(schedule, names, depth, blocks, piece.tile)
        longest = max(strip.rows, key=lambda p: p.high - p.low)
        return self._copies_ahead(schedule, names) if piece == longest else schedule

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

    def _steps(
        self, schedule: Schedule, name: str, loops: Sequence[str], points: Sequence[str], tile: tuple[int, int]
    ) -> Schedule:
        """Several steps of the reduction in one body: a loop costs four instructions every time, of which a core whose
        other hardware thread is busy is short; with one step LLVM puts loads that operations share into each of them
        (docs/decisions/0041). All steps of a window where what they share stays in registers, else steps along the
        innermost loop that share nothing.
        """
        if not loops or not self._is_update(schedule, name) or schedule.kind(loops[-1]) == "unroll":
            return schedule
        fixed = [n for n in loops if schedule.kind(n) == "unroll" or self._is_uneven(schedule, name, n)]
        free = [n for n in loops if n not in fixed and not self._slides(schedule, name, n)]
        body = tile[0] * tile[1]
        registers = self.machine.vector_registers
        if loops[-1] not in free and window_stays(*tile, self._trips(schedule, name, loops[-1]), registers):
            return schedule.unroll(loops[-1])
        if loops[-1] in free and max(self._lengths(schedule, name, loops[-1])) <= MOST_SHORT:
            return self._short(schedule, name, free, body)
        most = UNROLLED // body
        far = any(self._is_far(schedule, r.tensor) for r in schedule.program.statement[name].reads)
        wished = STEPS_FROM_AFAR if far else STEPS
        for loop in reversed(free) if most >= STEPS[0] else ():
            lengths = self._lengths(schedule, name, loop)
            steps = next((u for u in wished if u <= most and not any(n % u for n in lengths)), 1)
            if steps == 1:
                continue
            rest, inner = [n for n in loops if n != loop], loop
            if steps < lengths[0]:
                schedule, inner = schedule.tile({loop: steps}), f"{loop}.p"
                rest = [f"{n}.o" if n == loop else n for n in loops]
            return ordered(schedule, name, [*rest, inner, *points]).unroll(inner)
        return self._short(schedule, name, free, body)

    def _trips(self, schedule: Schedule, name: str, loop: str) -> int:
        """Iterations of a reduction loop; 1 where they differ."""
        lengths = self._lengths(schedule, name, loop)
        return lengths[0] if len(set(lengths)) == 1 else 1

    def _lengths(self, schedule: Schedule, name: str, loop: str) -> tuple[int, ...]:
        """The numbers of iterations that a reduction loop has: two where its last block is shorter."""
        s = schedule.program.statement[name]
        extents = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        if self._is_uneven(schedule, name, loop):
            return (1,)
        for iterator, extent in extents.items():
            if iterator in schedule.nests[name].loops[loop].names:
                if self.plan.depth is None or self.plan.depth[0] != iterator:
                    return (extent,)
                size, rest = self.plan.depth[1], extent % self.plan.depth[1]
                return (size, rest) if rest else (size,)
        return (1,)

    def _is_uneven(self, schedule: Schedule, name: str, loop: str) -> bool:
        """Whether a reduction loop is shorter at the ends of a parallel one that is around the tiles."""
        s = schedule.source.statement[schedule.program.statement[name].source_name]
        axes, own = self.group.axes[s.name], schedule.nests[name].loops[loop].names
        uneven = uneven_axes(schedule.source, s, axes) or {}
        return any(inside & own for axis, inside in uneven.items() if axis != axes[self.plan.rows])

    def _is_turned(self, schedule: Schedule, name: str) -> bool:
        """Whether a statement that uses a register tile runs along its rows: what it writes is contiguous there."""
        s = schedule.program.statement[name]
        update = next(u for u in self.group.statements if u.combiner is not None)
        last, lanes = s.write.index[-1], self._iterator(schedule, name, self.plan.lanes)
        across = not isinstance(last, Affine) or lanes not in last.names
        target = schedule.program.tensor[s.write.tensor]
        return across and target.source_name != update.write.tensor

    def _slides(self, schedule: Schedule, name: str, loop: str) -> bool:
        """Whether neighbouring rows meet the same elements one after another along a loop: unrolled, they would be
        kept in registers that are needed for the tile.
        """
        s = schedule.program.statement[name]
        rows, own = self._iterator(schedule, name, self.plan.rows), schedule.nests[name].loops[loop].names
        return any(isinstance(i, Affine) and rows in i.names and own & i.names for r in s.reads for i in r.index)

    def _tile(self, schedule: Schedule, names: Sequence[str], depth: int, blocks: int, height: int) -> Schedule:
        """What the statements of a register tile share; its target in registers."""
        schedule = fused(schedule, names, range(depth, depth + blocks + 2))
        loops = schedule.nests[names[0]].names
        updates = [n for n in names if self._is_update(schedule, n)]
        if not updates:
            return schedule
        if blocks:
            schedule = self._packed_at(schedule, names, "rows", loops[depth], height)
        tiles = loops[depth + blocks : depth + blocks + 2]
        schedule = self._target(schedule, schedule.program.statement[updates[0]], tiles[-1])
        schedule = self._rows_ahead(schedule, updates[0], tiles[0 if self.plan.lanes_inside else 1], height)
        schedule = self._constants_ahead(schedule, updates[0])
        return self._asked_for(schedule, names, tiles[-1])

    def _rows_ahead(self, schedule: Schedule, name: str, tile: str, height: int) -> Schedule:
        """Rows of an operand that comes as it lies from beyond a core's own caches, which few tiles of lanes use, are
        asked for a register tile ahead: short pieces, of which prefetchers lose one after the other. Not where the rows
        of two tiles would meet in one set of the first cache.
        """
        s, plan, vector = schedule.program.statement[name], self.plan, schedule.nests[name].names[-1]
        rows, lanes = (self._iterator(schedule, name, axis) for axis in (plan.rows, plan.lanes))
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        once = prod(plan.depth[1] if plan.depth and n == plan.depth[0] else e for n, e in steps.items())
        uses = sum(-(-(p.high - p.low) // (plan.vector * p.width)) for p in plan.strips)
        if uses > FEW_USES or schedule.kind(vector) != "vector":
            return schedule
        for r in s.reads:
            moving = {n for i in r.index if isinstance(i, Affine) for n in i.names}
            along = any(r.index[-1:] == (Affine.of(n),) for n in steps)  # a row is contiguous
            if r.guard or not along or rows not in moving or lanes in moving or not self._is_far(schedule, r.tensor):
                continue
            element = size_bytes(schedule.program.tensor[r.tensor].dtype)
            kept = core_of(self.machine, element).lines_kept(bytes_apart(schedule.program, r, rows) or 0)
            if AHEAD_SHARE * element * height * once <= self.machine.nearest_cache and 2 * height <= kept:
                return schedule.prefetch(vector, tile)
        return schedule

    def _copies_ahead(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """What is copied for the next block of lanes is asked for all through the tiles of this one: as planned where
        the first tile makes the copy; else from memory, where no tile meets all of a block and no sums are kept from
        block to block, which would be pushed out.
        """
        plan = self.plan
        for name in names:
            s = schedule.program.statement[name]
            for pack in plan.packs if self._is_update(schedule, name) else ():
                buffer = s.reads[pack.read].tensor
                if not copies_into(schedule, buffer) or not self._is_asked(schedule, s, pack):
                    continue
                loop = [n for n in schedule.nests[name].names if schedule.kind(n) == "serial"][-1]
                line = self.machine.line // size_bytes(schedule.program.tensor[pack.tensor].dtype)
                schedule = schedule.prefetch_copy(loop, buffer, line)
        return schedule

    def _is_asked(self, schedule: Schedule, s: Statement, pack: Pack) -> bool:
        """Whether the next block of a copy is asked for."""
        if pack.on_way and pack.asked:
            return True
        plain = pack.site == "lanes" and pack.lane == len(pack.order) - 1 and not pack.ahead
        streams = not self.plan.lanes_inside and not self.plan.lanes_outside
        return plain and streams and self._takes_long(schedule, s, pack.tensor)

    def _takes_long(self, schedule: Schedule, s: Statement, tensor: str) -> bool:
        """Whether a tensor comes from memory, and takes a share of the time of operations on the way."""
        found = schedule.program.tensor[tensor]
        core = core_of(self.machine, size_bytes(found.dtype))
        size = found.nbytes(schedule.program.binding)
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name]).values()
        work = prod(high - low + 1 for low, high in self.group.box or ()) * prod(steps)
        cycles, last = work / (core.lanes * core.fma_units), len(core.caches) - 1
        far = size > core.counted_on(last) and self._is_far(schedule, tensor)
        return far and size / core.caches[last].rate >= ASKED_SHARE * cycles

    def _constants_ahead(self, schedule: Schedule, name: str) -> Schedule:
        """A packed constant that a core's own caches do not hold is asked for on its way: between two uses comes the
        rest of it, and every tile, block and step of a window is a new stream for a prefetcher.
        """
        s, nest = schedule.program.statement[name], schedule.nests[name]
        vector = nest.names[-1]
        if schedule.kind(vector) != "vector" or schedule.marks[vector].ahead:
            return schedule
        inner = [n for n in nest.names if nest.loops[n].names - set(self.group.axes[s.source_name])]
        laid = [n for n in inner if schedule.kind(n) == "unroll"]
        rolled = [n for n in inner if n not in laid]
        for pack in self.plan.packs if rolled else ():
            tensor = schedule.source.tensor[pack.tensor]
            size = size_bytes(tensor.dtype)
            far = size * prod(tensor.extents(schedule.program.binding)) > own_capacity(self.machine)
            if pack.site == "whole" and pack.block and tensor.role == "constant" and far:
                after = [n for n in laid if nest.names.index(n) > nest.names.index(rolled[-1])]
                step = size * pack.block * prod(self._laid_trips(schedule, name, n) for n in after)
                return schedule.prefetch(vector, rolled[-1], -(-BYTES_AHEAD // step))
        return schedule

    def _laid_trips(self, schedule: Schedule, name: str, loop: str) -> int:
        """Copies of a loop that is laid out: of a whole one, or of a tile."""
        atom = schedule.nests[name].loops[loop].terms[0][0]
        return atom.divisor if isinstance(atom, Mod) else self._trips(schedule, name, loop)

    def _asked_for(self, schedule: Schedule, names: Sequence[str], tile: str) -> Schedule:
        """What is read beside the reduction from beyond a core's own caches is asked for a register tile ahead."""
        for name in names:
            s, vector = schedule.program.statement[name], schedule.nests[name].names[-1]
            far = any(self._is_far(schedule, r.tensor) for r in s.reads if not r.indirect)
            if s.combiner is None and far and schedule.kind(vector) == "vector":
                schedule = schedule.prefetch(vector, tile)
        return schedule

    def _is_far(self, schedule: Schedule, tensor: str) -> bool:
        """Whether a tensor comes from elsewhere, and from beyond a core's own caches."""
        found = schedule.program.tensor[tensor]
        size = size_bytes(found.dtype) * prod(found.extents(schedule.program.binding))
        return found.role in ("input", "inout") and size > own_capacity(self.machine)
