"""Operands of a blocked contraction in buffers of their own, laid out as its tiles read them, copied by vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.scheduling.cpu_edits import (
    FEW_VECTORS,
    extent_of,
    in_vectors,
    loops_of_copy,
    only_read,
    ordered,
    turned_square,
    whole_blocks,
)
from poly.scheduling.cpu_facts import from_afar
from poly.scheduling.cpu_plan import Pack, square_side
from poly.scheduling.edits import free_buffer_name
from poly.scheduling.schedule import Schedule

PICKED_APART = 4  # elements from one to the next of a vector that is picked from whole ones
ROWS_AHEAD = 4  # of what is packed from afar: short pieces of rows, which no prefetcher of a core follows


@dataclass(frozen=True)
class Packing:
    """How operands are packed for vectors of so many elements."""

    vector: int
    machine: Machine

    def packed(self, schedule: Schedule, names: Sequence[str], pack: Pack, at: str | None) -> Schedule:
        """One operand in a buffer of its own for an iteration of a loop, copied by vectors."""
        users = [n for n in names if schedule.program.statement[n].source_name == pack.statement]
        buffer = free_buffer_name(schedule, f"{pack.tensor}_{users[0]}_p")
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
        """Block after block, the elements of a block innermost, in vectors where they lie side by side in the source or
        few elements apart. Rows that come from afar are asked for: some ahead, or those that the next iteration of the
        loop `at` copies.
        """
        copy = f"ld_{buffer}"
        lane = f"{copy}.{pack.lane}"
        schedule, lane = self._blocks_first(schedule, copy, lane, pack, extents)
        apart = prod(schedule.program.tensor[pack.tensor].extents(schedule.program.binding)[pack.lane + 1 :])
        if apart > PICKED_APART or not lane:
            return schedule
        vector, extent = self.vector, min(extents[pack.lane], pack.block)
        width = vector if pack.block <= vector else min(vector, pack.block & -pack.block)
        if extents[pack.lane] > pack.block and extents[pack.lane] % pack.block or width < 2:
            return schedule
        schedule = in_vectors(schedule, lane, extent, width)
        rows, vector = loops_of_copy(schedule, copy)[0], schedule.nests[copy].names[-1]
        if apart > 1 or rows == vector or pack.on_way or not from_afar(schedule.program, pack.tensor, self.machine):
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
        """Squares of a source that is contiguous along another axis: into registers as they lie, out across. Where
        none divide its rows, whole ones, then what is left of each row.
        """
        assert pack.across is not None
        copy, own = f"ld_{buffer}", loops_of_copy(schedule, f"ld_{buffer}")
        length = schedule.program.tensor[pack.tensor].extents(schedule.program.binding)[pack.across]
        side = square_side(gcd(extents[pack.across], length), self.vector)  # of the last block, too
        lane, fast = f"{copy}.{pack.lane}", f"{copy}.{pack.across}"
        whole = extents[pack.across] == length
        if not {lane, fast} <= {*own} or not (side or whole) or pack.block % self.vector:
            return self._blocks_first(schedule, copy, lane, pack, extents)[0]
        others = [n for d in pack.order if (n := f"{copy}.{d}") in own and n not in (lane, fast)]
        if side:
            return self._squares(schedule, pack, copy, (*others, lane, fast), extents[pack.lane], side)
        around = schedule.nests[copy].names[: -len(own)]
        schedule = ordered(schedule, copy, [fast, *others, lane])
        schedule, parts = whole_blocks(schedule, copy, len(around), length, self.vector)
        for part, columns in parts:
            fast, *others, lane = schedule.nests[part].names[len(around) :]
            schedule = self._squares(schedule, pack, part, (*others, lane, fast), extents[pack.lane], columns)
        return schedule

    def _squares(
        self, schedule: Schedule, pack: Pack, copy: str, loops: Sequence[str], extent: int, side: int
    ) -> Schedule:
        """A copy, or a piece of one along the source, by squares of so many columns. Its last two loops are along the
        lanes, of an extent, and along the source.
        """
        (*others, lane, fast), vector = loops, self.vector
        if extent % pack.block == 0 or extent <= vector:
            schedule = ordered(schedule, copy, [*others, lane, fast])
            for size in (pack.block, vector):
                if extent > size:
                    schedule = schedule.tile({lane: size})
                    others, lane, extent = [*others, f"{lane}.o"], f"{lane}.p", size
            schedule = schedule.tile({fast: side})
            return self._square(schedule, pack, copy, [*others, f"{fast}.o", f"{fast}.p", lane])
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
        square = free_buffer_name(schedule, f"{copy.removeprefix('ld_')}_t")
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
            return in_vectors(schedule, lane, extent_of(schedule, buffer, pack.lane), self.vector, FEW_VECTORS)
        if lane in names and fast in names:
            schedule = schedule.tile({fast: 2 * self.vector})
            own = loops_of_copy(schedule, copy)
            order = [n for n in own if n not in (f"{fast}.o", f"{fast}.p", lane)] + [f"{fast}.o", lane, f"{fast}.p"]
            return ordered(schedule, copy, order)
        return schedule

    def _folded(self, schedule: Schedule, loop: str, extent: int, step: int) -> Schedule:
        """The elements that lie together one after the other, in vectors."""
        schedule = schedule.tile({loop: step}).reorder(f"{loop}.p", f"{loop}.o").unroll(f"{loop}.p")
        return in_vectors(schedule, f"{loop}.o", extent, self.vector, FEW_VECTORS)
