"""The plan of a contraction for a way and some numbers: its tiles, and what is copied when, by whom, and asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from poly.affine import Affine
from poly.program import Access
from poly.scheduling.cpu_facts import axis_of, from_afar, own_capacity, step_of
from poly.scheduling.cpu_operand import next_stays
from poly.scheduling.cpu_plan import (
    LEAST_SIDE,
    BlockPlan,
    Pack,
    Piece,
    Site,
    Strip,
    balanced,
    ends_apart,
    first_apart,
    square_side,
    tallest,
)
from poly.scheduling.cpu_shares import Numbers
from poly.scheduling.cpu_ways import TileSizes, Way, Ways

# Cycles of a copied vector, which the first tile of rows hides where it makes the copy; the share of the time of
# operations that these take at least.
COPIED, WAY_SHARE = 4.0, 1 / 128
SPREAD = 8  # tiles of rows at least for which blocks are made smaller so that the next one is asked for, little by each
EVEN_SHARES = 16  # iterations for each thread where one more for some of them is little
# Of the operations' time, what a copy from memory takes at least where it is asked for while tiles are at work.
ASKED_SHARE = 1 / 16
LEAST_LINES = 2  # of a piece that such a copy reads from afar where nobody has asked for it


@dataclass(frozen=True)
class PlannedWays(Ways):
    """Ways with their plans."""

    def plan(self, way: Way, sizes: TileSizes) -> BlockPlan:
        """The plan of a way for some sizes."""
        height, width, lane_block, row_block, depth = sizes
        outer, middle = self.around(way)
        start, extent = self.facts.group_low(way.rows), self.facts.extents[way.rows]
        rest = self.vectors % width
        last = height
        if self.turned and depth and rest:  # of sums that stay in registers
            last = max(height, min(extent, tallest(rest, True, self.core.registers)))  # also of a whole vector
        rows = [balanced(start, extent, h) for h in (height, last)]
        ends = self.facts.uneven.get(way.rows)
        if ends is not None:
            rows = [ends_apart(pieces, ends.low, ends.high) for pieces in rows]
        blocks = [lane_block]
        if not row_block and not way.lanes_inside and extent >= SPREAD * height:
            # smaller blocks, in which the same tiles follow one another
            blocks = [lane_block >> n for n in range(lane_block.bit_length())]
        made = [(n, self._packs(way, sizes._replace(lane_block=n))) for n in blocks]
        lane_block, packs = next((m for m in made if any(p.asked for p in m[1])), made[0])
        packs = tuple(replace(p, asked=p.asked or self._is_asked(p, way, width * lane_block, depth)) for p in packs)
        if any(p.on_way for p in packs):
            rows = [first_apart(pieces) for pieces in rows]
        strips = self._strips(width, lane_block, rows[0], rows[1])
        return BlockPlan(
            outer=outer, middle=middle, rows=way.rows, lanes=self.lanes, vector=self.vector, strips=strips, packs=packs,
            depth=(self.deep, depth) if depth else None, row_block=row_block, lanes_inside=way.lanes_inside,
            lanes_outside=way.lanes_outside and depth > 0,
        )  # fmt: skip

    def _packs(self, way: Way, sizes: TileSizes) -> tuple[Pack, ...]:
        """What is packed."""
        packs = (self._pack(k, site, way, sizes) for k, site in way.packs)
        return tuple(self._in_time(pack, way, sizes.width * sizes.lane_block, sizes.depth) for pack in packs)

    def asks(self, way: Way, k: int, vectors: Numbers, depth: Numbers) -> Numbers:
        """Where the next one of several blocks of so many vectors can be asked for: it comes as it lies from beyond a
        core's own caches.
        """
        operand, access = self.operands[k], self.update.accesses[k][0]
        far = from_afar(self.facts.program, access.tensor, self.facts.machine)
        contiguous = not access.guard and operand.stride(self.names[self.lanes]) == operand.element
        several = (vectors < self.vectors) | (way.lanes_outside & (depth > 0))
        return np.where(far and contiguous and dict(way.packs)[k] == "lanes", several, False)

    def _in_time(self, pack: Pack, way: Way, vectors: int, depth: int) -> Pack:
        """A copy for blocks of so many vectors, with when the next one is asked for, or its first use makes it."""
        k, own = pack.read, self.core.own
        box = {n: np.full((), float(e)) for n, e in self.extents.items()}
        box |= {self.names[a]: np.ones(()) for a in self.around(way)[0]}
        box[self.names[self.lanes]] = np.full((), float(min(self.facts.extents[self.lanes], vectors * self.vector)))
        if depth:
            box[self.deep] = np.full((), float(depth))
        asks = bool(self.asks(way, k, np.full((), float(vectors)), np.full((), float(depth))))
        if asks and next_stays(self.core, self.operands, k, box):
            return replace(pack, ahead=True)
        operand = self.operands[k]
        one = vectors >= self.vectors and not (way.lanes_outside and depth)
        large = operand.elements(box) * operand.element > own[-1].capacity
        # of results each tile comes and goes once, whatever else is in a cache
        asked = asks and bool(next_stays(self.core, self.operands[:-1], k, box, len(own) - 1))
        far = operand.size > own_capacity(self.facts.machine)
        short = self.facts.threads > 1 or pack.block * operand.element < LEAST_LINES * self.core.line
        walk = one and large  # along memory, which prefetchers follow
        unasked = far and not asked and short  # pieces from afar that nothing fetches
        if walk or unasked or not self._evenly(way, vectors) or not self._on_way(pack, way):
            return replace(pack, asked=asked and self.core.afar > 0)
        return replace(pack, on_way=True, asked=asked)

    def _is_asked(self, pack: Pack, way: Way, vectors: int, depth: int) -> bool:
        """Whether the next block of so many vectors is asked for by tiles, whoever copies it: it comes from memory, for
        a share of the time of operations, no tile meets all of a block, and no sums are kept from block to block, which
        would be pushed out.
        """
        plain = pack.site == "lanes" and pack.lane == len(pack.order) - 1 and not pack.ahead
        if not plain or vectors >= self.vectors or way.lanes_inside or (way.lanes_outside and depth):
            return False
        size, last = self.operands[pack.read].size, len(self.core.caches) - 1
        far = size > self.core.counted_on(last) and from_afar(self.facts.program, pack.tensor, self.facts.machine)
        return far and size / self.core.caches[last].rate >= ASKED_SHARE * self.operation_cycles

    def _evenly(self, way: Way, vectors: int) -> bool:
        """Whether threads share the loops around the blocks of so many vectors, or these: a first tile is one thread's.
        """
        threads = self.facts.threads
        around = prod(self.facts.extents[a] for a in self.around(way)[0]) * -(-self.vectors // vectors)
        return around % threads == 0 or around >= EVEN_SHARES * threads

    def may_be_on_way(self, way: Way, k: int) -> bool:
        """Whether the first tile of rows may make the copy of an operand that is packed, whatever comes ahead."""
        return self._on_way(self._pack(k, dict(way.packs)[k], way, TileSizes(1, 1, 1, 0, 0)), way)

    def _on_way(self, pack: Pack, way: Way) -> bool:
        """Whether the first tile of rows makes the copy of what is packed, step by step: it lies along the lanes, every
        step reads some of it, in the order in which it lies, and the copy takes a share of the time of operations. (All
        in one block that a core's own caches do not hold is a walk along memory, which prefetchers follow.)
        """
        operand, access = self.operands[pack.read], self.update.accesses[pack.read][0]
        plain = not access.guard and operand.stride(self.names[self.lanes]) == operand.element and pack.site == "lanes"
        if not plain or self.around(way)[1] or way.rows in self.facts.uneven:
            return False
        if any(len(axis) != 1 or {*axis.values()} != {1} for axis in operand.axes):
            return False
        steps = [d for d in pack.order if operand.axes[d].keys() <= self.ranges.keys()]
        used = self.extents[self.names[way.rows]] / self.core.fma  # cycles of a vector's multiply-adds
        return len(steps) == len(self.ranges) and steps == sorted(steps) and COPIED >= WAY_SHARE * used

    def _strips(self, width: int, block: int, rows: tuple[Piece, ...], last: tuple[Piece, ...]) -> tuple[Strip, ...]:
        """Tiles of one width in blocks, and what is left over in narrower ones; a masked vector is in a tile alone."""
        low, extent = self.facts.group_low(self.lanes), self.facts.extents[self.lanes]
        whole, rest = divmod(self.vectors, width)
        if not rest and extent % self.vector and whole > 1:
            whole, rest = whole - 1, width
        cut = low + min(extent, whole * width * self.vector)
        strips = (Strip(low, cut, width, rows, min(block, whole)), Strip(cut, low + extent, rest, last))
        return tuple(s for s in strips if s.low < s.high)

    def _pack(self, k: int, site: Site, way: Way, sizes: TileSizes) -> Pack:
        operand, access = self.operands[k], self.update.accesses[k][0]
        moving = operand.depends(self.names[self.lanes])
        iterator = self.names[self.lanes if moving else way.rows]
        axis = axis_of(access, iterator)
        assert axis is not None
        tile = sizes.width * self.vector if moving else sizes.height
        block = tile if self._simple(k, axis, iterator, site == "whole") else 0
        if moving and access.guard:
            block = 0
        order = self._order(access, axis, first=block > 0)
        deep = self._deep_axis(k, order) if sizes.depth and block else None
        if deep is not None:
            order = (deep, *(d for d in order if d != deep))
        return Pack(
            self.update.name, access.tensor, k, order, axis, bool(access.guard), step_of(access, axis, iterator),
            block, site, self._fast_axis(k) if moving and block else None,
            deep=None if deep is None else (deep, sizes.depth),
        )  # fmt: skip

    def _deep_axis(self, k: int, order: Sequence[int]) -> int | None:
        """The axis of a constant operand along the blocks of the reduction, where a block is many pieces: with all that
        it meets in one, no prefetcher starts anew at every step of a window. (What is copied in a call keeps its long
        runs.)
        """
        pieces = any(self.operands[k].axes[d].keys() & self.ranges.keys() for d in order[:-1])
        constant = self.facts.program.tensor[self.operands[k].tensor].role == "constant"
        return order[-1] if constant and pieces and self._simple(k, order[-1], self.deep) else None

    def _order(self, access: Access, lane: int, first: bool) -> tuple[int, ...]:
        """Axes in the order of the loops, the lanes' axis outside of the reduction (in blocks) or last."""

        def depth(axis: int) -> tuple[int, int, int]:
            subscript = access.index[axis]
            names = subscript.names if isinstance(subscript, Affine) else frozenset[str]()
            inner = [n for n in names if n in self.ranges]
            place = min((self.update.iterators.index(n) for n in inner), default=-1)
            if axis == lane:
                return (1 if first else 3), place, axis
            return (2 if inner else 0), place, axis

        return tuple(sorted(range(len(access.index)), key=depth))

    def _fast_axis(self, k: int) -> int | None:
        """The axis of an operand that is contiguous in memory and long enough for squares in registers; of a constant,
        which is copied when compiling, where these divide it.
        """
        axis = len(self.operands[k].axes) - 1
        (name, step), *others = self.operands[k].axes[axis].items() or [("", 0)]
        extent = self.ranges.get(name, 0)
        constant = self.facts.program.tensor[self.operands[k].tensor].role == "constant"
        side = square_side(extent, self.vector) if constant else extent
        return axis if step == 1 and not others and side >= min(self.vector, LEAST_SIDE) else None
