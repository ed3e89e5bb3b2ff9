"""Cycles of a contraction's operations on register tiles of any size, and elements a cycle of its copies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from poly.scheduling.cpu_core import PAGE
from poly.scheduling.cpu_cost import tile_cycles
from poly.scheduling.cpu_operand import Operand
from poly.scheduling.cpu_plan import square_side
from poly.scheduling.cpu_reuse import FREE
from poly.scheduling.cpu_shares import Numbers
from poly.scheduling.cpu_ways import Way
from poly.scheduling.cpu_ways_plan import PlannedWays

PIECE_COST = 0.004  # a kind of edge tile more must save this share of the time
SHORT = 256  # bytes of a piece from which on a copy keeps its pace
# Elements a cycle of copies: by squares in registers, of what strides leave apart, one by one.
SQUARES, STRIDED, ONE_BY_ONE = 2.0, 1.4, 0.7
PADDED_TURNED = 1 / 3  # of the rate of copies with padding where elements go one by one to other places (0105)
# Cycles of a copy for a vector in long runs, in short ones, and for what rows share, as wide as their number allows, or
# where a machine says what a piece takes, for each of its elements.
VECTOR, SHORT_VECTOR, PIECE, ELEMENT = 2.0, 4.0, 1.5, 0.3


@dataclass(frozen=True)
class Step:
    """What one step of a reduction takes on a register tile of any size. `loads`: by operand whether every row has its
    own, and how many a vector of lanes takes (None: one for all of them); `lost`: numbers of rows from which the first
    cache loses the lines of an operand from step to step; `turning`: whether the tile is turned before it is stored;
    `known`: whether what vectors load was packed when compiling.
    """

    rows: int
    loads: tuple[tuple[bool, float | None], ...]
    lost: tuple[float, ...]
    turning: bool
    known: bool


@dataclass(frozen=True)
class TileWork(PlannedWays):
    """What the tiles and copies of ways take, for `poly.scheduling.cpu_rating`."""

    def _window(self, axis: int) -> int:
        """Iterations of the innermost loop of the reduction where it moves a window along the rows; else 0."""
        rows, inner = self.names[axis], next(reversed(self.ranges), "")
        slides = any(rows in moved and inner in moved for o in self.operands for moved in o.axes)
        return self.ranges[inner] if slides else 0

    def _work(
        self, step: Step, height: Numbers, width: Numbers, depth: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Cycles of the operations over all tiles with their edges, the number of tiles of rows, and the share of what
        is left over of the lanes.
        """
        rows = self.extents[self.names[step.rows]]
        count = np.ceil(rows / height)
        high, rest = rows / count, self.vectors % width
        steps = prod(self.ranges.values()) * prod(ends.share for ends in self.facts.uneven.values())
        again = (depth > 0).astype(float)
        blocks = np.where(depth > 0, np.ceil(self.ranges.get(self.deep, 1) / np.maximum(depth, 1)), 1.0)
        wide = np.maximum((width, rest), 1)  # of tiles of a full width, and of what is left over
        number = np.array((np.floor(self.vectors / width), np.minimum(rest, 1)))
        one, other = tile_cycles(self.core, high * wide, *_loads(step, high, wide), again)
        turning = self._turning(high, wide) if step.turning else 0.0
        each = count * number * ((one + self._missed(step, high)) * steps + (other + turning) * blocks)
        kinds = 1 + (rows % count > 0) + 2 * (rest > 0)
        if step.rows in self.facts.uneven:  # tiles at the ends
            kinds = kinds + np.minimum(count - 1, 2)
        around = float(prod(e for k, e in enumerate(self.facts.extents) if k not in (step.rows, self.lanes)))
        cut = self.facts.extents[self.lanes] % (width * self.vector) > 0  # though vectors may be whole ones
        apart = np.where(rest > 0, each[1] / (each[0] + each[1]), cut / np.maximum(number[0], 1))
        return (each[0] + each[1]) * (1 + PIECE_COST * (kinds - 1)) * around, count, apart

    def _turning(self, height: Numbers, width: Numbers) -> Numbers:
        """Cycles to turn a register tile and to store it: a piece of a row for each lane, in lines that may meet in few
        sets of the first cache.
        """
        target, line, lanes = self.operands[-1], self.core.line, width * self.vector
        piece = np.ceil(height) * target.element
        lines = lanes * (piece + line - np.gcd(piece.astype(int), line)) / line
        kept = self.core.lines_kept(target.stride(self.names[self.lanes]))
        return height * width * self.core.turning + lines * self.core.lost * np.maximum(1 - kept / lanes, 0.0)

    def _step(self, way: Way) -> Step:
        lanes, rows, packed = self.names[self.lanes], self.names[way.rows], {k for k, _ in way.packs}
        reads, line = self.operands[:-1], self.core.line
        loads = tuple(
            (o.depends(rows), self._crossing(o, k in packed) if o.depends(lanes) else None) for k, o in enumerate(reads)
        )
        lost = tuple(
            self.core.lines_kept(o.stride(rows), beside=1)
            for k, o in enumerate(reads)
            if k not in packed and o.stride(rows) >= line and any(0 < abs(o.stride(n)) < line for n in self.ranges)
        )
        tensor = self.facts.program.tensor
        known = any(
            site == "whole" and reads[k].depends(lanes) and tensor[reads[k].tensor].role == "constant"
            for k, site in way.packs
        )
        return Step(way.rows, loads, lost, self.turned and not way.lanes_outside, known)

    def _crossing(self, operand: Operand, packed: bool) -> float:
        """Loads of a vector along the lanes: more than one where it lies in two lines now and then, as it does in
        arrays of callers, which start anywhere.
        """
        lanes, whole = self.names[self.lanes], self.vector * operand.element
        slides = any(lanes in axis and len(axis.keys() - self.blocks) > 1 for axis in operand.axes)
        foreign = self.facts.program.tensor[operand.tensor].role in ("input", "inout")
        apart = not packed and (foreign or any(operand.stride(n) % whole for n in self.extents if n != lanes))
        return 1 + whole / self.core.line if slides or apart else 1.0

    def _missed(self, step: Step, height: Numbers) -> Numbers:
        """Cycles of a step for lines that meet in so few sets of the first cache that none stays until the next one."""
        line, rate = self.core.line, self.core.caches[0].rate
        return sum((np.where(np.ceil(height) >= kept, height * line / rate, 0.0) for kept in step.lost), np.zeros(()))

    def _anew(self, way: Way, sizes: Numbers) -> Numbers:
        """Cycles for rows of register tiles that a core waits for: of results that its own caches do not hold; of
        partial sums of those, or in more pages than it knows, where the next tile is below them and not beside them.
        """
        width, panels, depth = (sizes[:, k] for k in (1, 2, 4))
        rows, target, core = self.names[way.rows], self.operands[-1], self.core
        far, stride = target.size > core.counted_on(len(core.own) - 1), target.stride(rows)
        apart = stride >= PAGE and stride * self.extents[rows] > core.pages * PAGE
        if not far and (self.turned or not apart):
            return np.zeros(len(sizes))
        beside = 1.0 if self.turned else width  # columns of a tile that is turned are lines each
        along = width * panels if way.lanes_inside else beside
        each = float(prod(e for k, e in enumerate(self.facts.extents) if k != self.lanes)) * core.anew
        again = np.where(depth > 0, np.ceil(self.ranges.get(self.deep, 1) / np.maximum(depth, 1)) - far, 0.0)
        return each * (far * np.ceil(self.vectors / beside) + again * np.ceil(self.vectors / along))

    def _strided(self, k: int) -> bool:
        """Whether the lanes walk along the contiguous axis in steps."""
        return self.operands[k].axes[-1].get(self.names[self.lanes], 0) > 1

    def _rate(self, way: Way, k: int, height: Numbers, vectors: Numbers, depth: Numbers) -> Numbers:
        """Elements a cycle of a copy; without end for what is copied when compiling."""
        operand, access = self.operands[k], self.update.accesses[k][0]
        moving = operand.depends(self.names[self.lanes])
        iterator = self.names[self.lanes if moving else way.rows]
        along = operand.stride(iterator) == operand.element
        if access.guard or self._strided(k):
            padded = self.core.padded_rate * (1 if along else PADDED_TURNED)
            return np.full((), padded if access.guard else STRIDED)
        if self.facts.program.tensor[access.tensor].role == "constant" and dict(way.packs)[k] == "whole":
            return np.full((), FREE)
        if along:
            if moving:
                long = vectors * self.vector * operand.element >= SHORT
                return self.vector / np.where(long, VECTOR, SHORT_VECTOR)
            return self._pieces_rate(height)
        axis = self._fast_axis(k) if moving else None
        if axis is None:
            return np.full((), ONE_BY_ONE)
        odd = square_side(operand.shape[axis], self.vector) == 0  # then no square divides the last block
        return np.where((depth > 0) & odd, ONE_BY_ONE, SQUARES)

    def _pieces_rate(self, height: Numbers) -> Numbers:
        """Elements a cycle of a copy in pieces as long as a register tile has rows."""
        if self.core.piece:
            return height / (self.core.piece + ELEMENT * height)
        whole = height.astype(int)
        return np.minimum(self.vector, whole & -whole) / PIECE

    def _in_pieces(self, way: Way) -> int:
        """Elements that are copied like that, once at least, where that takes what a machine says."""
        rows, reads = self.names[way.rows], [self.operands[k] for k, site in way.packs if site == "rows"]
        return sum(prod(o.shape) for o in reads if o.stride(rows) == o.element) if self.core.piece else 0


def _loads(step: Step, height: Numbers, width: Numbers) -> tuple[Numbers, Numbers]:
    """Loads for one step of the reduction on a register tile, and how many of them are for what lies in a second line.
    """
    total: Numbers = np.zeros(())
    crossed: Numbers = np.zeros(())
    for by_rows, vectors in step.loads:
        rows = height if by_rows else 1.0
        total = total + rows * (1.0 if vectors is None else width * vectors)
        if vectors is not None:
            crossed = crossed + rows * width * (vectors - 1)
    return total, crossed
