"""Choices for groups with rows: contractions and convolutions in a register tile, blocked and packed by a model.

Which loop is rows, what is packed and where, and the order of the tile loops are listed; sizes of the tile and of the
blocks are a grid that is rated at once (`poly.scheduling.cpu_cost`). Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

import numpy as np

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.locks import cached_property
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_cost import (
    FREE,
    LINE,
    SETS,
    SHORT,
    Copied,
    Copy,
    Core,
    Loop,
    Nest,
    Numbers,
    Operand,
    core_of,
    crowding,
    cycles_of_memory,
    shared_cycles,
    tile_cycles,
    together,
)
from poly.scheduling.cpu_facts import Facts, axis_of, facts_of, reduction_extents, step_of
from poly.scheduling.cpu_plan import BlockPlan, Pack, Piece, Site, Strip, balanced, window_stays
from poly.scheduling.groups import Group

PIECE_COST = 0.004  # a kind of edge tile more must save this share of the time
MOST_OTHERS = 2  # loops that are tried as lanes besides the contiguous one
GOOD = 1.05  # of the least cycles: where the contiguous loop as lanes takes more, others are tried
TURNING = 3.0  # cycles for every vector of a register tile that is turned before it is stored
MOST_VECTORS = 4  # side by side in a register tile
TILES = 3  # shapes of register tiles that are rated with all blocks, besides as many that keep a window
PANELS, ROW_BLOCKS, DEPTHS = (1, 4, 8, 16, 64), (4, 16, 64), (16, 128, 512)
ACROSS, GUARDED, SCALAR = 2.0, 1.4, 0.7  # elements a cycle of copies: register squares, with padding, one by one


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
class Rated:
    """A plan and the cycles that the model gives it."""

    cycles: float
    plan: BlockPlan


@dataclass(frozen=True)
class Shapes:
    """Register tiles that are rated with all blocks, for each of them and of `depths` the cycles of operations over
    all tiles and the number of tiles of rows; `least`: cycles of operations of any tile.
    """

    best: tuple[tuple[int, int], ...]
    depths: tuple[int, ...]
    work: Numbers
    count: Numbers
    least: float


@dataclass(frozen=True)
class Grid:
    """Candidates of one way: rows of (height, vectors, tiles of lanes a block, tiles of rows a block, depth)."""

    way: Way
    sizes: Numbers
    work: Numbers
    count: Numbers


def contraction_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> BlockPlan | None:
    """The choices for a group around one contraction; None for any other."""
    if group.box is None:
        return None
    facts = facts_of(program, group, machine, threads)
    lanes = facts.lanes()
    return None if lanes is None else contraction_plan(facts, lanes)


def contraction_plan(facts: Facts, lanes: int) -> BlockPlan | None:
    """Lanes along one loop and rows along another; None where no loop's neighbours use anything again.

    `lanes`: a loop along which all writes are contiguous; others are tried where one register tile is all that is
    written, so that it can be turned in registers.
    """
    best = _best(facts, lanes, None)
    if best is None:
        return None
    if best.cycles > GOOD * least_cycles(facts):
        for axis in _other_lanes(facts, lanes):
            best = _best(facts, axis, best) or best
    return best.plan


def _best(facts: Facts, lanes: int, best: Rated | None) -> Rated | None:
    """The best plan with these lanes, if it is better than one that is known; ways whose operations alone take longer
    than a whole plan are not rated further.
    """
    update = facts.update
    if update is None:
        return best
    found = Choice(facts, update, lanes).best(best.cycles if best is not None else inf)
    return best if found is None or (best is not None and best.cycles <= found.cycles) else found


def _other_lanes(facts: Facts, lanes: int) -> list[int]:
    """The longest loops that can be lanes besides the contiguous one."""
    others = [a for a, extent in enumerate(facts.extents) if a != lanes and extent > 1 and _turned(facts, a)]
    return sorted(others, key=lambda a: -facts.extents[a])[:MOST_OTHERS]


def least_cycles(facts: Facts) -> float:
    """Cycles of a group's multiply-adds alone, shared by its threads."""
    s, core = facts.update, core_of(facts.machine, facts.widest())
    assert s is not None
    steps = prod(reduction_extents(facts.program, s, facts.group.axes[s.name]).values())
    return prod(facts.extents) * steps / core.lanes / core.fma_units / facts.threads


def _turned(facts: Facts, axis: int) -> bool:
    """Whether a loop can be lanes though the reduction's target is not contiguous along it."""
    s = facts.update
    if s is None:
        return False
    at = axis_of(s.write, facts.group.axes[s.name][axis])
    if at is None or at == len(s.write.index) - 1 or facts.extents[axis] < facts.vector(axis):
        return False
    before = [o for o in facts.group.statements if o is not s and o.write.tensor == s.write.tensor]
    return all(o.combiner is None and facts.regular(o, axis) for o in before)


def rated_plans(
    facts: Facts, lanes: int, each: int = 1, suits: Callable[[Way], bool] = lambda _: True
) -> Iterator[Rated]:
    """The best `each` plans of every way to do it that `suits`."""
    update = facts.update
    if update is None:
        return
    choice = Choice(facts, update, lanes)
    yield from choice.rated(filter(suits, choice.ways()), each)


def ways_of(facts: Facts, lanes: int) -> Iterator[tuple[Choice, Way]]:
    """All ways to do it, with any loop as lanes that can be: what a search would try."""
    update = facts.update
    if update is not None:
        for axis in (lanes, *_other_lanes(facts, lanes)):
            choice = Choice(facts, update, axis)
            yield from ((choice, way) for way in choice.ways())


def _written(s: Statement) -> set[str]:
    return {n for i in s.write.index if isinstance(i, Affine) for n in i.names}


@dataclass(frozen=True)
class Choice:
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
        """The reduction loop that may be cut in blocks: the longest."""
        found = [n for n in self.ranges if n not in _written(self.update)]
        return max(found, key=lambda n: self.ranges[n], default="")

    @cached_property
    def depths(self) -> list[int]:
        """Iterations of that loop in a block of the reduction that are tried, where it can be cut."""
        if not self.deep or len(self.facts.group.statements) > 2:
            return []
        several = prod(self.ranges.values()) > self.ranges[self.deep]  # steps in an iteration, as of a window
        if self.across and not several:
            return []
        return [d for d in DEPTHS if 2 * d <= self.ranges[self.deep]]

    @cached_property
    def across(self) -> bool:
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

    # ---- ways

    def ways(self) -> Iterator[Way]:
        lanes = self.names[self.lanes]
        for rows, name in enumerate(self.names):
            reads = self.operands[:-1]
            if rows == self.lanes or self.extents[name] < 2 or all(o.depends(name) for o in reads):
                continue
            if self.across and not self._turns(rows):
                continue
            sites = [self._sites(k, o, name, o.depends(lanes)) for k, o in enumerate(reads)]
            for chosen in product(*sites):
                packs: tuple[tuple[int, Site], ...] = tuple((k, site) for k, site in enumerate(chosen) if site)
                for reused in (False, True) if self._again(rows, packs) else (self.across,):
                    for inside in (False, True):
                        yield Way(rows, packs, inside, reused)
                        if self.depths:
                            yield Way(rows, packs, inside, reused, True)

    def _again(self, rows: int, packs: Sequence[tuple[int, Site]]) -> bool:
        """Whether loops around can be on either side of the blocks of lanes: operands packed once do not move there."""
        others = [n for a, n in enumerate(self.names) if a not in (rows, self.lanes) and self.facts.extents[a] > 1]
        whole = [self.operands[k] for k, site in packs if site == "whole"]
        moving = [o for o in whole if o.depends(self.names[self.lanes])]
        lanes_packed = any(site == "lanes" for _, site in packs)
        return bool(moving) and not self.across and not lanes_packed and any(
            not o.depends(n) for o in moving for n in others
        )

    def _sites(self, k: int, operand: Operand, rows: str, moving: bool) -> tuple[Site | None, ...]:
        """Where an operand can be packed (None: used as it lies)."""
        access = self.update.accesses[k][0]
        iterator = self.names[self.lanes] if moving else rows
        axis = axis_of(access, iterator)
        tensors = [a.tensor for a, _ in self.update.accesses]
        tensor = self.facts.program.tensor[access.tensor]
        if axis is None or tensors.count(access.tensor) > 1 or len(access.index) < 2 or not operand.depends(iterator):
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

    # ---- sizes

    def best(self, limit: float) -> Rated | None:
        """The best sizes of the best way; ways whose operations alone take more cycles than `limit` are left out."""
        found = self._all_rated(self.ways(), limit)
        if not found:
            return None
        grid, cycles = min(found, key=lambda f: f[1].min())
        return self._made(grid, cycles, int(np.argmin(cycles)))

    def rated(self, ways: Iterable[Way], each: int) -> Iterator[Rated]:
        """The best `each` sizes of every way."""
        for grid, cycles in self._all_rated(ways, inf):
            yield from (self._made(grid, cycles, int(k)) for k in np.argsort(cycles, kind="stable")[:each])

    def _made(self, grid: Grid, cycles: Numbers, k: int) -> Rated:
        return Rated(float(cycles[k]), self.plan(grid.way, *(int(v) for v in grid.sizes[k])))

    def _all_rated(self, ways: Iterable[Way], limit: float) -> list[tuple[Grid, Numbers]]:
        """The sizes of some ways and their cycles."""
        known: dict[tuple[object, ...], Shapes] = {}
        grids: list[Grid] = []
        for way in ways:
            key = way.rows, way.packs, way.lanes_outside
            if key not in known:
                known[key] = self._shapes(way)
            if known[key].best and known[key].least <= limit * self.facts.threads:
                grids.append(self._grid(way, known[key]))
        return [*zip(grids, self._cycles(grids), strict=True)] if grids else []

    def _shapes(self, way: Way) -> Shapes:
        """The register tiles that take the fewest cycles of operations, and such that keep a window."""
        rows = self.extents[self.names[way.rows]]
        registers, heights = self.core.registers, range(1, self.core.registers)
        even = any(site == "whole" and not self.operands[k].depends(self.names[self.lanes]) for k, site in way.packs)
        masked = self.facts.extents[self.lanes] % self.vector > 0  # by a vector that is kept where it is the only one
        shapes = [
            (h, w)
            for w in range(1, min(self.vectors, MOST_VECTORS) + 1)
            for h in heights
            if h <= rows and h * w + w + 1 + (masked and w == 1) <= registers
            if h == -(-rows // -(-rows // h)) and not (even and rows % h)
        ]
        deep = self.depths if way.lanes_outside else [0] if self.across else [0, *self.depths]
        if not shapes:
            return Shapes((), (), np.empty((0, 0)), np.empty(0), inf)
        table = np.array(shapes, float)
        work, _ = self._work(way, table[:, 0], table[:, 1], np.zeros(()))
        steps = self._window(way)
        liked = [shapes[k] for k in np.argsort(work, kind="stable")]
        best = [s for n, s in enumerate(liked) if n < TILES or window_stays(s[0], s[1], steps, registers)][: 2 * TILES]
        full = np.array([(h, w, d) for h, w in best for d in deep], float)
        each, count = self._work(way, full[:, 0], full[:, 1], full[:, 2])
        return Shapes(tuple(best), tuple(deep), each, count, float(work.min()))

    def _grid(self, way: Way, shapes: Shapes) -> Grid:
        """Candidates (height, vectors, tiles of lanes a block, tiles of rows a block, depth)."""
        rows, sites = self.extents[self.names[way.rows]], [site for _, site in way.packs]
        packs_rows, packs_lanes = "rows" in sites, "lanes" in sites
        found: list[tuple[int, ...]] = []
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
            found += [(h, w, p, b, d) for p in panels for b in blocks for d in shapes.depths]
            kinds += [n * len(deep) + d for _ in panels for _ in blocks for d in deep]
        return Grid(way, np.array(found, float), shapes.work[kinds], shapes.count[kinds])

    def _window(self, way: Way) -> int:
        """Iterations of the innermost loop of the reduction where it moves a window along the rows; else 0."""
        rows, inner = self.names[way.rows], next(reversed(self.ranges), "")
        slides = any(rows in axis and inner in axis for o in self.operands for axis in o.axes)
        return self.ranges[inner] if slides else 0

    def _work(self, way: Way, height: Numbers, width: Numbers, depth: Numbers) -> tuple[Numbers, Numbers]:
        """Cycles of the operations over all tiles with their edges, and the number of tiles."""
        rows = self.extents[self.names[way.rows]]
        count = np.ceil(rows / height)
        whole, rest = np.floor(self.vectors / width), self.vectors % width
        steps = float(np.prod([*self.ranges.values(), 1]))
        again = (depth > 0).astype(float)
        blocks = np.where(depth > 0, np.ceil(self.ranges.get(self.deep, 1) / np.maximum(depth, 1)), 1.0)
        total: Numbers = np.zeros(())
        for w, number in ((width, whole), (rest, np.minimum(rest, 1))):
            high, wide = rows / count, np.maximum(w, 1)
            step, other = tile_cycles(self.core, high * wide, self._loads(way, high, wide), again)
            step = step + self._missed(way, high)
            turning = high * wide * TURNING if self.across and not way.lanes_outside else 0.0
            total = total + count * number * (step * steps + (other + turning) * blocks)
        kinds = 1 + (rows % count > 0) + 2 * (rest > 0)
        around = float(np.prod([e for k, e in enumerate(self.facts.extents) if k not in (way.rows, self.lanes)]))
        return total * (1 + PIECE_COST * (kinds - 1)) * around, count

    def _loads(self, way: Way, height: Numbers, width: Numbers) -> Numbers:
        """Loads for one step of the reduction on a register tile."""
        lanes, rows, packed = self.names[self.lanes], self.names[way.rows], dict(way.packs)
        total: Numbers = np.zeros(())
        for k, o in enumerate(self.operands[:-1]):
            vectors = width * self._crossing(o, k in packed) if o.depends(lanes) else 1.0
            total = total + np.where(o.depends(rows), height, 1.0) * vectors
        return total

    def _crossing(self, operand: Operand, packed: bool) -> float:
        """Loads of a vector along the lanes: more than one where it lies in two lines now and then."""
        lanes, whole = self.names[self.lanes], self.vector * operand.element
        slides = any(lanes in axis and len(axis) > 1 for axis in operand.axes)
        apart = not packed and any(operand.stride(n) % whole for n in self.extents if n != lanes)
        return 1.5 if slides or apart else 1.0

    def _missed(self, way: Way, height: Numbers) -> Numbers:
        """Cycles of a step for lines that meet in so few sets of the first cache that none stays until the next one."""
        rows, packed = self.names[way.rows], {k for k, _ in way.packs}
        _, rate, ways = self.core.caches[0]
        total: Numbers = np.zeros(())
        for k, o in enumerate(self.operands[:-1]):
            stays = any(0 < abs(o.stride(n)) < LINE for n in self.ranges)
            if k not in packed and stays and o.stride(rows) >= LINE:
                total = total + np.where(height >= ways * SETS / crowding(o.stride(rows)), height * LINE / rate, 0.0)
        return total

    def _cycles(self, grids: Sequence[Grid]) -> list[Numbers]:
        """Cycles of all candidates of some ways, in one call of the model of memory."""
        nests: list[Nest] = []
        places: list[dict[Site, int]] = []
        for grid in grids:
            loops, sites = self._loops(grid)
            height, width, panels = (grid.sizes[:, k] for k in range(3))
            rates = {k: self._rate(grid.way, k, height, width * panels) for k, _ in grid.way.packs}
            copies = {k: Copy(sites[site], rates[k]) for k, site in grid.way.packs}
            if self.across and grid.way.lanes_outside:  # partial sums of a block of lanes
                copies[len(self.operands) - 1] = Copy(sites["lanes"] - 1, np.full((), SCALAR))
            nests.append(Nest(loops, copies, len(height)))
            places.append(sites)
        moved, copying = cycles_of_memory(self.core, self.operands, nests, self.extents)
        ends = np.cumsum([nest.count for nest in nests])[:-1]
        inside = np.split(together(np.concatenate([grid.work for grid in grids]), moved), ends)
        return [
            self._shared(grid, nest, sites, own, copied)
            for grid, nest, sites, own, copied in zip(grids, nests, places, inside, copying, strict=True)
        ]

    def _shared(
        self, grid: Grid, nest: Nest, sites: Mapping[Site, int], inside: Numbers, copied: dict[int, Copied]
    ) -> Numbers:
        """Cycles with all copies, until the last thread is done."""
        packed = {k for k, _ in grid.way.packs}
        for k, o in enumerate(self.operands):
            if self.update.accesses[k][0].guard and k not in packed:
                size = float(prod(o.shape))
                copied[k] = Copied(0, np.full((), size / GUARDED), np.full((), size * o.element))
        pieces: list[Numbers] = []
        if self.facts.threads > 1:
            cut = 1.0 + (self.extents[self.names[grid.way.rows]] % grid.count > 0)
            pieces = [np.where(d < sites["rows"], 1.0, cut) for d in range(1, len(nest.loops) + 1)]
        return shared_cycles(inside, self.operands, nest.loops, copied, self.facts.threads, [*self.ranges], pieces)

    def _loops(self, grid: Grid) -> tuple[list[Loop], dict[Site, int]]:
        """The nest from the outside in, and at which depth things are packed."""
        way, count = grid.way, grid.count
        width, panels, blocks, depth = (grid.sizes[:, k] for k in range(1, 5))
        one = np.ones(())
        full = {n: np.full((), float(e)) for n, e in self.extents.items()}
        lanes, rows = self.names[self.lanes], self.names[way.rows]
        outer, middle = self.around(way)
        loops = [Loop(self.names[a], full[self.names[a]], one) for a in outer]
        panel = np.minimum(full[lanes], width * self.vector)
        block = np.minimum(full[lanes], panel * panels)
        blocks_of = [Loop(lanes, full[lanes], block)]
        if self.deep:
            blocks_of.append(Loop(self.deep, full[self.deep], np.where(depth > 0, depth, full[self.deep])))
        loops += blocks_of if way.lanes_outside else reversed(blocks_of)
        sites: dict[Site, int] = {"whole": 0, "outer": len(loops) - 1, "lanes": len(loops)}
        loops += [Loop(self.names[a], full[self.names[a]], one) for a in middle]
        tile = full[rows] / count
        high = np.where(blocks > 0, np.minimum(full[rows], tile * blocks), full[rows])
        loops.append(Loop(rows, full[rows], high))
        sites["rows"] = len(loops)
        tiles = [Loop(lanes, block, panel), Loop(rows, high, tile)]
        return [*loops, *(reversed(tiles) if way.lanes_inside else tiles)], sites

    def around(self, way: Way) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The other parallel loops: those outside of the blocks, and those that use again what is packed for lanes."""
        others = [a for a in range(len(self.names)) if a not in (way.rows, self.lanes) and self.facts.extents[a] >= 1]
        packed = [self.operands[k] for k, site in way.packs if site == "lanes" or self._reused(way, k, site)]
        outer = tuple(a for a in others if not packed or any(o.depends(self.names[a]) for o in packed))
        return outer, tuple(a for a in others if a not in outer)

    def _reused(self, way: Way, k: int, site: Site) -> bool:
        """Whether an operand that is packed once says which loops are outside."""
        return way.reused and site == "whole" and self.operands[k].depends(self.names[self.lanes])

    def _rate(self, way: Way, k: int, height: Numbers, vectors: Numbers) -> Numbers:
        """Elements a cycle of a copy; without end for what is copied when compiling."""
        operand, access = self.operands[k], self.update.accesses[k][0]
        if access.guard or self._strided(k):
            return np.full((), GUARDED)
        if self.facts.program.tensor[access.tensor].role == "constant" and dict(way.packs)[k] == "whole":
            return np.full((), FREE)
        moving = operand.depends(self.names[self.lanes])
        iterator = self.names[self.lanes if moving else way.rows]
        if operand.stride(iterator) == operand.element:
            if moving:
                return np.where(vectors * self.vector * operand.element >= SHORT, self.vector / 2, self.vector / 4)
            whole = height.astype(int)
            return np.minimum(self.vector, whole & -whole) / 1.5
        across = moving and self._across(k) is not None
        return np.full((), ACROSS if across else SCALAR)

    def _strided(self, k: int) -> bool:
        """Whether the lanes walk along the contiguous axis in steps."""
        return self.operands[k].axes[-1].get(self.names[self.lanes], 0) > 1

    def _across(self, k: int) -> int | None:
        """The axis of an operand that is contiguous in memory and long enough for squares in registers."""
        axis = len(self.operands[k].axes) - 1
        names = self.operands[k].axes[axis]
        if len(names) == 1 and all(c == 1 and self.ranges.get(n, 0) % self.vector == 0 for n, c in names.items()):
            return axis if self.ranges.keys() & names.keys() else None
        return None

    # ---- the plan

    def plan(self, way: Way, height: int, width: int, panels: int, blocks: int, depth: int) -> BlockPlan:
        outer, middle = self.around(way)
        start, extent = self.facts.group_low(way.rows), self.facts.extents[way.rows]
        rest = self.vectors % width
        last = height
        if self.across and depth and rest:  # of sums that stay in registers
            last = max(height, min(extent, (self.core.registers - 1 - (rest == 1)) // rest - 1))
        rows = [balanced(start, extent, h) for h in (height, last)]
        strips = self._strips(width, panels, rows[0], rows[1])
        packs = tuple(self._pack(k, site, way, height, width) for k, site in way.packs)
        return BlockPlan(
            outer=outer, middle=middle, rows=way.rows, lanes=self.lanes, vector=self.vector, strips=strips, packs=packs,
            depth=(self.deep, depth) if depth else None, row_block=blocks, lanes_inside=way.lanes_inside,
            lanes_outside=way.lanes_outside and depth > 0,
        )  # fmt: skip

    def _strips(self, width: int, panels: int, rows: tuple[Piece, ...], last: tuple[Piece, ...]) -> tuple[Strip, ...]:
        """Tiles of one width in blocks, and what is left over in narrower ones; a masked vector is in a tile alone."""
        low, extent = self.facts.group_low(self.lanes), self.facts.extents[self.lanes]
        whole, rest = divmod(self.vectors, width)
        if not rest and extent % self.vector and whole > 1:
            whole, rest = whole - 1, width
        cut = low + min(extent, whole * width * self.vector)
        strips = (Strip(low, cut, width, rows, min(panels, whole)), Strip(cut, low + extent, rest, last))
        return tuple(s for s in strips if s.low < s.high)

    def _pack(self, k: int, site: Site, way: Way, height: int, width: int) -> Pack:
        operand, access = self.operands[k], self.update.accesses[k][0]
        moving = operand.depends(self.names[self.lanes])
        iterator = self.names[self.lanes if moving else way.rows]
        axis = axis_of(access, iterator)
        assert axis is not None
        block = (width * self.vector if moving else height) if self._simple(k, axis, iterator) else 0
        if moving and access.guard:
            block = 0
        return Pack(
            self.update.name, access.tensor, self._order(access, axis, first=block > 0), axis, bool(access.guard),
            step_of(access, axis, iterator), block, site, self._across(k) if moving and block else None,
        )  # fmt: skip

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


def best_plans(facts: Facts, lanes: int, count: int) -> Sequence[Rated]:
    """The plans that the model likes best, best first."""
    return sorted(rated_plans(facts, lanes, count), key=lambda r: r.cycles)[:count]
