"""Sizes of register tiles and of blocks for a contraction: grids of all ways, rated at once.

What they are rated with: `poly.scheduling.cpu_tile_work` for tiles, `poly.scheduling.cpu_cost` for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod

import numpy as np

from poly.locks import cached_property
from poly.scheduling.cpu_cost import SharedNest, cycles_of_memory, held_share, overlapped, overlapped_near
from poly.scheduling.cpu_facts import own_capacity
from poly.scheduling.cpu_plan import BlockPlan, Site, tallest, window_stays
from poly.scheduling.cpu_reuse import BlockedNest, Copied, Copy, Loop
from poly.scheduling.cpu_shares import EDGE, LATE, Numbers, Shares, blocks_shared, tiles_shared
from poly.scheduling.cpu_tile_work import ONE_BY_ONE, VECTOR, Step, TileWork
from poly.scheduling.cpu_ways import TileSizes, Way

MOST_VECTORS = 4  # side by side in a register tile
TILES = 3  # shapes of register tiles that are rated with all blocks, besides as many others that suit what they read
# The same on one thread where the last cache is far and the own ones hold all operands: nothing comes from afar, for
# which tall tiles wait longer than is rated (0127).
TILES_NEAR = 4
EXACT = 1 - 1e-9  # sums in another order differ by less
PANELS, ROW_BLOCKS = (1, 4, 8, 16, 64), (4, 16, 64)


@dataclass(frozen=True)
class Rated:
    """The cycles that the model gives a plan; it is made when it is asked for, as most only lose to others."""

    cycles: float
    made: Callable[[], BlockPlan] = field(compare=False, repr=False)

    @cached_property
    def plan(self) -> BlockPlan:
        return self.made()


@dataclass(frozen=True)
class Shapes:
    """Register tiles that are rated with all blocks, for each of them and of `depths` the cycles of operations over
    all tiles, the number of tiles of rows, and the share of what is left over of the lanes; `least`: cycles of
    operations of any tile.
    """

    best: tuple[tuple[int, int], ...]
    depths: tuple[int, ...]
    work: Numbers
    count: Numbers
    rest: Numbers
    least: float


@dataclass(frozen=True)
class Grid:
    """Candidates of one way: a row of `sizes` is one's `TileSizes`. Of each what `Shapes` has."""

    way: Way
    sizes: Numbers
    work: Numbers
    count: Numbers
    rest: Numbers

    def candidate(self, k: int) -> TileSizes:
        return TileSizes(*(int(v) for v in self.sizes[k]))

    @property
    def height(self) -> Numbers:
        return self.sizes[:, 0]

    @property
    def width(self) -> Numbers:
        return self.sizes[:, 1]

    @property
    def lane_block(self) -> Numbers:
        return self.sizes[:, 2]

    @property
    def row_block(self) -> Numbers:
        return self.sizes[:, 3]

    @property
    def depth(self) -> Numbers:
        return self.sizes[:, 4]


@dataclass(frozen=True)
class RatedWays(TileWork):
    """What can be chosen for one reduction with given lanes, by the cycles that it takes."""

    @property
    def edge(self) -> int:
        """Bytes over the end of a row that come with it where threads write rows side by side."""
        return EDGE

    def best(self, limit: float) -> Rated | None:
        """The best sizes of the best way; ways that take more cycles than `limit`, or than another one, by their
        operations and traffic alone are left out.
        """
        found = self._rated(self._every_way, limit)
        if not found:
            return None
        grid, cycles = min(found, key=lambda f: f[1].min())
        return self._made(grid, cycles, int(np.argmin(cycles)))

    def best_of_each(self, ways: Iterable[Way], each: int, *, whole: bool = False) -> Iterator[Rated]:
        """The best `each` sizes of every way; `whole`: of those that do not cut the reduction."""
        for grid, cycles in self._rated([*self._shaped(ways)], inf, every=True):
            order = np.argsort(cycles, kind="stable")
            order = order[grid.depth[order] == 0] if whole else order
            yield from (self._made(grid, cycles, int(k)) for k in order[:each])

    def _made(self, grid: Grid, cycles: Numbers, k: int) -> Rated:
        return Rated(float(cycles[k]), partial(self.plan, grid.way, grid.candidate(k)))

    @cached_property
    def least(self) -> float:
        """Cycles that no plan takes less than: operations of its register tiles, and a result past the last cache."""
        core, result = self.core, self.operands[-1]
        past = core.caches and result.size > core.counted_on(len(core.caches) - 1)
        written = 2 * result.size * held_share(core, result) / core.caches[-1].rate if past else 0.0
        works = [shapes.least for _, shapes in self._every_way]
        return (min(works, default=inf) + written) / self.facts.threads

    @cached_property
    def _every_way(self) -> list[tuple[Way, Shapes]]:
        return [*self._shaped(self.ways())]

    def _shaped(self, ways: Iterable[Way]) -> Iterator[tuple[Way, Shapes]]:
        """Some ways with their register tiles, where there are any."""
        known: dict[tuple[object, ...], Shapes] = {}
        for way in ways:
            key = self._step(way), self._even(way), self._deep_of(way), self._in_pieces(way)
            if key not in known:
                known[key] = self._shapes(*key)
            if known[key].best:
                yield way, known[key]

    def _rated(
        self, ways: Sequence[tuple[Way, Shapes]], limit: float, every: bool = False
    ) -> list[tuple[Grid, Numbers]]:
        """The sizes of some ways and their cycles; without `every` of those that can be the best."""
        grids = [self._grid(way, shapes) for way, shapes in ways if shapes.least <= limit * self.facts.threads]
        return self._cycles(grids, limit, every) if grids else []

    def _even(self, way: Way) -> bool:
        """Whether only tiles of one height will do: operands of rows that are packed once."""
        return any(site == "whole" and not self.operands[k].depends(self.names[self.lanes]) for k, site in way.packs)

    def _deep_of(self, way: Way) -> tuple[int, ...]:
        """Lengths of blocks of the reduction, 0 for all of it."""
        deep = self.depths_of(way)
        return tuple(deep if way.lanes_outside else [0] if self.turned else [0, *deep])

    def _shapes(self, step: Step, even: bool, deep: tuple[int, ...], copied: int = 0) -> Shapes:
        """The register tiles that take the fewest cycles of operations, and of copies in pieces as long as these have
        rows, of so many elements; and such that keep a window.
        """
        rows = self.extents[self.names[step.rows]]
        registers, masked = self.core.registers, self.facts.extents[self.lanes] % self.vector > 0
        shapes = [
            (h, w)
            for w in range(1, min(self.vectors, MOST_VECTORS) + 1)
            for h in range(1, min(rows, tallest(w, masked, registers)) + 1)
            if h == -(-rows // -(-rows // h)) and not (even and rows % h)
        ]
        if next(reversed(self.ranges), "") in self.laid_out(step.rows):
            window, least = self._window(step.rows), self.core.in_flight
            shapes = [(h, w) for h, w in shapes if h * w > least and window_stays(h, w, window, registers)]
        if not shapes:
            return Shapes((), (), np.empty((0, 0)), np.empty(0), np.empty(0), inf)
        table = np.array(shapes, float)
        work, _, _ = self._work(step, table[:, 0], table[:, 1], np.zeros(()))
        window = self._window(step.rows)
        copies = copied / self._pieces_rate(table[:, 0])
        liked = [shapes[k] for k in np.argsort(work + copies, kind="stable")]
        # Of a panel that costs no copy also the best of each width, but of one: a load for every multiply-add.
        first = {w: (h, w) for h, w in reversed(liked) if w > 1 and step.known}
        tiles = self._tiles
        best = [
            (h, w)
            for n, (h, w) in enumerate(liked)
            if n < tiles or first.get(w) == (h, w) or window_stays(h, w, window, registers)
        ][: 2 * tiles]
        full = np.array([(h, w, d) for h, w in best for d in deep], float)
        each, count, apart = self._work(step, full[:, 0], full[:, 1], full[:, 2])
        return Shapes(tuple(best), deep, each, count, apart, float(work.min()))

    @cached_property
    def _tiles(self) -> int:
        """How many shapes of register tiles are rated with all blocks."""
        near = sum(o.size for o in self.operands) <= self.core.counted_on(len(self.core.own) - 1)
        return TILES_NEAR if near and self.core.afar and self.facts.threads == 1 else TILES

    def _grid(self, way: Way, shapes: Shapes) -> Grid:
        """The candidates of a way."""
        rows, sites = self.extents[self.names[way.rows]], [site for _, site in way.packs]
        packs_rows, packs_lanes = "rows" in sites, "lanes" in sites
        found: list[TileSizes] = []
        kinds: list[int] = []
        deep = range(len(shapes.depths))
        for n, (h, w) in enumerate(shapes.best):
            tiles, count = -(-self.vectors // w), -(-rows // h)
            cut = packs_lanes or way.lanes_inside or way.lanes_outside
            panels = sorted({min(p, tiles) for p in (*PANELS, tiles)}) if cut else [1]
            blocks = sorted({min(b, count) for b in (*ROW_BLOCKS, count)})
            if not packs_rows:
                blocks = [0] if way.lanes_inside else [0, *blocks[:-1]]
            if self.facts.threads > 1 and (packs_lanes or way.lanes_outside):
                panels = sorted({*panels, -(-tiles // self.facts.threads)})
            found += [TileSizes(h, w, p, b, d) for p in panels for b in blocks for d in shapes.depths]
            kinds += [n * len(deep) + d for _ in panels for _ in blocks for d in deep]
        sizes = np.array(found, float)
        return Grid(way, sizes, shapes.work[kinds], shapes.count[kinds], shapes.rest[kinds])

    def _cycles(self, grids: Sequence[Grid], limit: float = inf, every: bool = True) -> list[tuple[Grid, Numbers]]:
        """Cycles of all candidates of some ways, in one call of the model of memory. Threads share what one alone takes
        for a nest and its copies, at best: most ways need not be looked at further.
        """
        nests: list[BlockedNest] = []
        places: list[dict[Site, int]] = []
        for grid in grids:
            loops, sites = self._loops(grid)
            vectors = grid.width * grid.lane_block
            rates = {k: self._rate(grid.way, k, grid.height, vectors, grid.depth) for k, _ in grid.way.packs}
            asks = {k: self.asks(grid.way, k, vectors, grid.depth) for k, _ in grid.way.packs}
            asked = {k: np.where(there, self.vector / VECTOR, 0.0) for k, there in asks.items()}
            way, on_way = grid.way, self.may_be_on_way
            packed = {k: Copy(sites[site], rates[k], asked[k], on_way(way, k)) for k, site in way.packs}
            if self.turned and grid.way.lanes_outside:  # partial sums of a block of lanes
                packed[len(self.operands) - 1] = Copy(sites["lanes"] - 1, np.full((), ONE_BY_ONE))
            nests.append(BlockedNest(loops, packed, len(grid.sizes)))
            places.append(sites)
        lanes = self.names[self.lanes]
        along = [k for k, o in enumerate(self.operands[:-1]) if o.stride(lanes) == o.element]
        own = own_capacity(self.facts.machine)
        panels = [k for k, o in enumerate(self.operands[:-1]) if o.depends(lanes) and o.size > own]
        traffic, copying = cycles_of_memory(self.core, self.operands, nests, self.extents, along, panels)
        ends = np.cumsum([nest.count for nest in nests])[:-1]
        waits = np.concatenate([self._anew(grid.way, grid.sizes) for grid in grids])
        work = np.concatenate([grid.work for grid in grids])
        inside = np.split(overlapped(self.core, work, traffic) + waits, ends)
        near = np.split(overlapped_near(self.core, work, traffic) + waits, ends) if self._divides else None
        copies = [sum((c.cycles for c in copied.values()), np.zeros(())) for copied in copying]
        whole = [float((own + more).min()) for own, more in zip(near or inside, copies, strict=True)]
        least = [cycles / self.facts.threads * EXACT for cycles in whole]
        found: dict[int, Numbers] = {}
        for k in sorted(range(len(grids)), key=least.__getitem__):
            if every or least[k] <= limit:
                in_own = None if near is None else near[k]
                found[k] = self._shared(grids[k], nests[k], places[k], inside[k], in_own, copying[k])
                limit = min(limit, float(found[k].min()))
        return [(grids[k], found[k]) for k in sorted(found)]

    @cached_property
    def _divides(self) -> bool:
        """Whether threads have what they divide in their own caches from the call before, where the last one is far:
        not what a model keeps, of which others run in between.
        """
        tensor = self.facts.program.tensor
        kept = any(tensor[o.tensor].role == "constant" for o in self.operands)
        return self.facts.threads > 1 and self.core.afar > 0 and bool(self.core.own) and not kept

    def _shared(
        self, grid: Grid, nest: BlockedNest, sites: Mapping[Site, int], inside: Numbers, near: Numbers | None,
        copied: dict[int, Copied],
    ) -> Numbers:  # fmt: skip
        """Cycles with all copies, until the last thread is done. `inside`: without them, `near`: where nothing
        comes from afar, if that can be.
        """
        packed = {k for k, _ in grid.way.packs}
        for k, o in enumerate(self.operands):
            if self.update.accesses[k][0].guard and k not in packed:
                size = float(prod(o.shape))
                copied[k] = Copied(0, np.full((), size / self.core.padded_rate), np.full((), size * o.element))
        pieces: list[Numbers] = []
        shares: dict[int, Shares] = {}
        if self.facts.threads > 1:
            cut = np.asarray(1.0 + (self.extents[self.names[grid.way.rows]] % grid.count > 0), np.float64)
            rows_packed = any(site == "rows" for _, site in grid.way.packs)  # again for what is left over of the lanes
            again = 1.0 + (rows_packed & (grid.rest > 0))
            pieces = [np.where(d < sites["rows"], 1.0, cut * again) for d in range(1, len(nest.loops) + 1)]
            shares = self._shares(grid, nest, sites, cut)
        made, carried = self._made_before(grid), [*self.ranges]
        capacity = self.core.own[-1].capacity if self.core.own else 0
        shared = SharedNest(
            self.operands, nest.loops, copied, self.facts.threads, carried, pieces, made, self.core.remote, shares,
            near, capacity, self.edge,
        )  # fmt: skip
        return shared.cycles(inside)

    def _shares(self, grid: Grid, nest: BlockedNest, sites: Mapping[Site, int], cut: Numbers) -> dict[int, Shares]:
        """What threads have of the loops over tiles: those of lanes that are not whole are in pieces of their own."""
        lanes, threads = self.names[self.lanes], self.facts.threads
        whole = np.asarray(np.maximum(np.floor(self.facts.extents[self.lanes] / (grid.width * self.vector)), 1))
        size = np.asarray(np.minimum(grid.lane_block, whole))
        rows = blocks_shared(grid.count, np.ones(()), threads)
        copied = any(site == "lanes" for _, site in grid.way.packs)
        found: dict[int, Shares] = {}
        for k, loop in enumerate(nest.loops):
            if loop.iterator == lanes:
                shared, trips = (tiles_shared, size) if k >= sites["rows"] else (blocks_shared, np.ceil(whole / size))
                found[k] = Shares(trips, shared(whole, size, threads), grid.rest, rows, cut, copied)
            elif k >= sites["rows"]:
                found[k] = Shares(loop.trips, rows, grid.rest, rows, cut)
            elif loop.iterator in self.blocks:
                found[k] = Shares(loop.trips, np.full((), (1 + LATE) / threads), np.zeros(()), rows, cut)
        return found

    def _made_before(self, grid: Grid) -> dict[int, Numbers]:
        """The operands that statements of other groups write, each with the candidates of a grid for which they do (1
        or 0).
        """
        written = {s.write.tensor for s in self.facts.program.statements if s.name not in self.facts.group.names}
        return {k: np.ones(len(grid.sizes)) for k, o in enumerate(self.operands[:-1]) if o.tensor in written}

    def _loops(self, grid: Grid) -> tuple[list[Loop], dict[Site, int]]:
        """The nest from the outside in, and at which depth things are packed."""
        way, count = grid.way, grid.count
        one = np.ones(())
        full = {n: np.full((), float(e)) for n, e in self.extents.items()}
        lanes, rows = self.names[self.lanes], self.names[way.rows]
        outer, middle = self.around(way)
        loops = [Loop(self.names[a], full[self.names[a]], one) for a in outer]
        panel = np.minimum(full[lanes], grid.width * self.vector)
        block = np.minimum(full[lanes], panel * grid.lane_block)
        blocks_of = [Loop(lanes, full[lanes], block)]
        if self.deep:
            steps = np.where(grid.depth > 0, grid.depth, full[self.deep])
            blocks_of.append(Loop(self.deep, full[self.deep], steps))
        loops += blocks_of if way.lanes_outside else reversed(blocks_of)
        sites: dict[Site, int] = {"whole": 0, "lanes": len(loops)}
        loops += [Loop(self.names[a], full[self.names[a]], one) for a in middle]
        tile = full[rows] / count
        high = np.where(grid.row_block > 0, np.minimum(full[rows], tile * grid.row_block), full[rows])
        loops.append(Loop(rows, full[rows], high))
        sites["rows"] = len(loops)
        tiles = [Loop(lanes, block, panel), Loop(rows, high, tile)]
        return [*loops, *(reversed(tiles) if way.lanes_inside else tiles)], sites
