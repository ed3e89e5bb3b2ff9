"""What can be chosen for a contraction besides numbers, from access maps alone, and the plan for some numbers.

Which loop is rows, what is packed and where, and the order of the loops are a `Way`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.locks import cached_property
from poly.program import Access, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import PAGE, Core, core_of
from poly.scheduling.cpu_facts import Facts, axis_of, from_afar, own_capacity, reduction_extents, step_of
from poly.scheduling.cpu_operand import Operand, next_stays
from poly.scheduling.cpu_plan import (
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
from poly.scheduling.cpu_planes import walks_of_planes
from poly.scheduling.cpu_shares import Numbers
from poly.scheduling.uneven import LONGEST

DEPTHS = (16, 128, 512)  # iterations in a block of the reduction
FEWEST_STEPS = 64  # of such a block: sums that come and go take as long as some of them
# Cycles of a copied vector, which the first tile of rows hides where it makes the copy; the share of the time of
# operations that these take at least.
COPIED, WAY_SHARE = 4.0, 1 / 128
SPREAD = 8  # tiles of rows at least for which blocks are made smaller so that the next one is asked for, little by each
EVEN_SHARES = 16  # iterations for each thread where one more for some of them is little
# Of the operations' time, what a copy from memory takes at least where it is asked for while tiles are at work.
ASKED_SHARE = 1 / 16
LEAST_LINES = 2  # of a piece that such a copy reads from afar where nobody has asked for it
MOST_CHOOSING = 3  # operands that may be packed or not, a choice for each


@dataclass(frozen=True)
class Way:
    """What is no number: the loop of rows, the site of every packed operand, the order of the tile loops.

    `reused`: what is packed once is used again by loops inside of the blocks of lanes, else these are outside.
    `lanes_outside`: blocks of lanes are around blocks of the reduction, of which there are some.
    """

    rows: int
    packs: tuple[tuple[int, Site], ...]
    lanes_inside: bool
    reused: bool = False
    lanes_outside: bool = False


@dataclass(frozen=True)
class Ways:
    """What can be chosen for one reduction with given lanes."""

    facts: Facts
    update: Statement
    lanes: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The iterators of the parallel loops."""
        return self.facts.group.axes[self.update.name]

    @cached_property
    def ranges(self) -> dict[str, int]:
        """Extents of the reduction's loops, outermost first."""
        return reduction_extents(self.facts.program, self.update, self.names)

    @cached_property
    def extents(self) -> dict[str, int]:
        return {**dict(zip(self.names, self.facts.extents, strict=True)), **self.ranges}

    @cached_property
    def vector(self) -> int:
        return self.facts.vector(self.lanes)

    @cached_property
    def vectors(self) -> int:
        """Vectors of the lanes' loop."""
        return -(-self.facts.extents[self.lanes] // self.vector)

    @cached_property
    def core(self) -> Core:
        return core_of(self.facts.machine, self.facts.widest())

    @cached_property
    def operation_cycles(self) -> float:
        """Cycles of the operations alone."""
        return prod(self.extents.values()) / self.core.lanes / self.core.fma

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The reads, then what is written."""
        reads = tuple(self._operand(a, False) for a in self.update.reads)
        return (*reads, self._operand(self.update.write, True))

    def _operand(self, access: Access, write: bool) -> Operand:
        tensor = self.facts.program.tensor[access.tensor]
        shape = tensor.extents(self.facts.program.binding)
        element = size_bytes(tensor.dtype)
        strides = [element * int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
        axes = tuple(
            {n: i.coefficient(n) for n in i.names if n in self.extents} if isinstance(i, Affine) else {}
            for i in access.index
        )
        return Operand(access.tensor, axes, shape, tuple(strides), element, write)

    @cached_property
    def deep(self) -> str:
        """The reduction loop that may be cut in blocks: the longest, or one of at least half its length whose blocks
        leave operands in longer pieces.
        """
        found = [n for n in self.ranges if n not in names_of(self.update.write)]
        long = [n for n in found if 2 * self.ranges[n] >= max(self.ranges[m] for m in found)]
        return max(long, key=lambda n: (self._piece(n), self.ranges[n]), default="")

    def _piece(self, name: str) -> int:
        """Bytes between what neighbouring iterations of a loop read, the least of all operands that move with it."""
        return min((abs(o.stride(name)) for o in self.operands[:-1] if o.depends(name)), default=0)

    @cached_property
    def depths(self) -> list[int]:
        """Iterations of that loop in a block of the reduction that are tried, where it can be cut."""
        if not self.deep:
            return []
        steps = prod(self.ranges.values()) // self.ranges[self.deep]  # in an iteration, as of a window
        if self.turned and (steps == 1 or len(self.facts.group.statements) > 2):  # sums beside it are read across
            return []
        return [d for d in DEPTHS if 2 * d <= self.ranges[self.deep]]

    def depths_of(self, way: Way) -> list[int]:
        """Those that a way can have."""
        steps = prod(self.ranges.values()) // self.ranges[self.deep] if self.depths else 1
        return [d for d in self.depths if d * steps >= FEWEST_STEPS or (not way.packs and self._bound_by_streams)]

    @cached_property
    def _bound_by_streams(self) -> bool:
        """Whether something along the lanes, its rows in pages of their own, takes longer to come from the last cache
        than all operations: blocks of few steps are as many streams, which prefetchers follow, and hide the sums that
        come and go.
        """
        own, *behind = self.core.caches
        rate = behind[0].rate if behind else own.rate
        return any(
            o.size > max(own_capacity(self.facts.machine), rate * self.operation_cycles)
            for o in self.operands[:-1]
            if o.stride(self.names[self.lanes]) == o.element and o.stride(self.deep) >= PAGE
        )

    @cached_property
    def turned(self) -> bool:
        """Whether a register tile is turned before it is stored."""
        return self.operands[-1].stride(self.names[self.lanes]) != self.operands[-1].element

    def _turns(self, rows: int) -> bool:
        """Whether a loop can be rows where a register tile is turned: what is written after the reduction, or from the
        tile itself, is contiguous along it.
        """
        target = self.update.write.tensor
        after = [s for s in self.facts.group.statements if s.write.tensor != target]
        if self.operands[-1].stride(self.names[rows]) != self.operands[-1].element:
            return False
        return all(self.facts.strides(s)[-1].get(rows) == 1 and self.facts.regular(s, rows) for s in after)

    def laid_out(self, rows: int) -> frozenset[str]:
        """The loops of the reduction that are laid out in tiles of rows as they are shorter at the ends of these."""
        return self.facts.uneven[rows].inside if rows in self.facts.uneven else frozenset()

    @cached_property
    def walks(self) -> frozenset[str]:
        """Loops from planes that a core keeps to others, which go outside of all that indices depend on."""
        return frozenset(walks_of_planes(self.facts.program, self.update, self.facts.machine))

    # ---- ways

    def ways(self) -> Iterator[Way]:
        lanes = self.names[self.lanes]
        for rows, name in enumerate(self.names if lanes not in self.walks else ()):
            reads = self.operands[:-1]
            if rows == self.lanes or self.extents[name] < 2 or all(o.depends(name) for o in reads):
                continue
            if name in self.walks or prod(self.ranges[n] for n in self.laid_out(rows)) > LONGEST:
                continue
            if self.turned and not self._turns(rows):
                continue
            sites = [self._sites(k, o, name, o.depends(lanes)) for k, o in enumerate(reads)]
            for chosen in product(*self._largest(sites)):
                packs: tuple[tuple[int, Site], ...] = tuple((k, site) for k, site in enumerate(chosen) if site)
                for reused in (False, True) if self._again(rows, packs) else (self.turned,):
                    for inside in (False, True):
                        yield Way(rows, packs, inside, reused)
                        outside = Way(rows, packs, inside, reused, True)
                        if self.depths_of(outside):
                            yield outside

    def _largest(self, sites: Sequence[tuple[Site | None, ...]]) -> list[tuple[Site | None, ...]]:
        """Only the largest operands choose: every one that does doubles the ways."""
        choosing = [k for k, there in enumerate(sites) if len(there) > 1]
        small = sorted(choosing, key=lambda k: -prod(self.operands[k].shape))[MOST_CHOOSING:]
        return [there[:1] if k in small else there for k, there in enumerate(sites)]

    def _again(self, rows: int, packs: Sequence[tuple[int, Site]]) -> bool:
        """Whether loops around can be on either side of the blocks of lanes: operands packed once do not move there."""
        others = [n for a, n in enumerate(self.names) if a not in (rows, self.lanes) and self.facts.extents[a] > 1]
        whole = [self.operands[k] for k, site in packs if site == "whole"]
        moving = [o for o in whole if o.depends(self.names[self.lanes])]
        lanes_packed = any(site == "lanes" for _, site in packs)
        return bool(moving) and not self.turned and not lanes_packed and any(
            not o.depends(n) for o in moving for n in others
        )

    def _sites(self, k: int, operand: Operand, rows: str, moving: bool) -> tuple[Site | None, ...]:
        """Where an operand can be packed (None: used as it lies)."""
        access = self.update.accesses[k][0]
        iterator = self.names[self.lanes] if moving else rows
        axis = axis_of(access, iterator)
        tensor, own = self.facts.program.tensor[access.tensor], self.update.write.tensor == access.tensor
        if axis is None or own or len(access.index) < 2 or not operand.depends(iterator):
            return (None,)
        if not moving:
            plain = not access.guard and self._simple(k, axis, iterator)
            if not plain:
                return (None,)
            return (None, "whole") if tensor.role == "constant" else (None, "rows")
        if tensor.role == "constant" and self._simple(k, axis, iterator):
            return ("whole",)
        if access.guard or operand.stride(iterator) != operand.element:
            return ("lanes", "whole") if access.guard or axis == len(access.index) - 1 else ("lanes",)
        apart = any(not operand.depends(n) for n in self.names if n != rows) and self._simple(k, axis, iterator)
        return (None, "lanes", "whole") if apart else (None, "lanes")

    def _simple(self, k: int, axis: int, iterator: str) -> bool:
        """Whether the subscript is the iterator alone, so that blocks of it are blocks of the tensor."""
        return self.operands[k].axes[axis] == {iterator: 1} and self.update.accesses[k][0].index[axis] == Affine.of(
            iterator
        )

    def around(self, way: Way) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The other parallel loops: those outside of the blocks, and those that use again what is packed for lanes."""
        others = [a for a in range(len(self.names)) if a not in (way.rows, self.lanes) and self.facts.extents[a] >= 1]
        packed = [self.operands[k] for k, site in way.packs if site == "lanes" or self._reused(way, k, site)]
        walks = tuple(a for a in others if self.names[a] in self.walks)
        inside = [a for a in others if a not in walks]
        outer = walks + tuple(a for a in inside if not packed or any(o.depends(self.names[a]) for o in packed))
        return outer, tuple(a for a in others if a not in outer)

    def _reused(self, way: Way, k: int, site: Site) -> bool:
        """Whether an operand that is packed once says which loops are outside."""
        return way.reused and site == "whole" and self.operands[k].depends(self.names[self.lanes])

    def _strided(self, k: int) -> bool:
        """Whether the lanes walk along the contiguous axis in steps."""
        return self.operands[k].axes[-1].get(self.names[self.lanes], 0) > 1

    def _fast_axis(self, k: int) -> int | None:
        """The axis of an operand that is contiguous in memory and long enough for squares in registers."""
        axis = len(self.operands[k].axes) - 1
        names = self.operands[k].axes[axis]
        side = (c == 1 and square_side(self.ranges.get(n, 0), self.vector) for n, c in names.items())
        if len(names) == 1 and all(side):
            return axis
        return None

    # ---- the plan

    def plan(self, way: Way, height: int, width: int, lane_block: int, row_block: int, depth: int) -> BlockPlan:
        """The plan for a register tile, tiles in a block of lanes and of rows (0: all), and steps of the sum in one."""
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
        sizes = [lane_block]
        if not row_block and not way.lanes_inside and extent >= SPREAD * height:
            # smaller blocks, in which the same tiles follow one another
            sizes = [lane_block >> n for n in range(lane_block.bit_length())]
        made = [(n, self._packs(way, height, width, n, depth)) for n in sizes]
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

    def _packs(self, way: Way, height: int, width: int, lane_block: int, depth: int) -> tuple[Pack, ...]:
        """What is packed, for blocks of so many tiles of lanes."""
        packs = (self._pack(k, site, way, height, width, depth) for k, site in way.packs)
        return tuple(self._in_time(pack, way, width * lane_block, depth) for pack in packs)

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
        waits = one and large or far and not asked and short
        if waits or not self._evenly(way, vectors) or not self._on_way(pack, way):
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

    def _pack(self, k: int, site: Site, way: Way, height: int, width: int, depth: int) -> Pack:
        operand, access = self.operands[k], self.update.accesses[k][0]
        moving = operand.depends(self.names[self.lanes])
        iterator = self.names[self.lanes if moving else way.rows]
        axis = axis_of(access, iterator)
        assert axis is not None
        block = (width * self.vector if moving else height) if self._simple(k, axis, iterator) else 0
        if moving and access.guard:
            block = 0
        order = self._order(access, axis, first=block > 0)
        deep = self._deep_axis(k, order) if depth and block else None
        if deep is not None:
            order = (deep, *(d for d in order if d != deep))
        return Pack(
            self.update.name, access.tensor, k, order, axis, bool(access.guard), step_of(access, axis, iterator),
            block, site, self._fast_axis(k) if moving and block else None, deep=None if deep is None else (deep, depth),
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
