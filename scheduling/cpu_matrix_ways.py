"""Contractions for a core's matrix unit, rated beside those for its vectors.

Register tiles are two by two tiles of the unit where a loop is long enough: each load serves two commands then. What
packing and traffic cost follows from the model of all contractions (`poly.scheduling.cpu_rating`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod

import numpy as np
import numpy.typing as npt

from poly.expr import Apply, Read
from poly.locks import cached_property
from poly.scheduling.cpu_core import TILE_CYCLES, Core
from poly.scheduling.cpu_facts import axis_of
from poly.scheduling.cpu_plan import BlockPlan, MatrixPlan, Pack, Piece, Strip, balanced, tallest
from poly.scheduling.cpu_rating import Grid, Rated, RatedWays
from poly.scheduling.cpu_shares import Numbers
from poly.scheduling.cpu_ways import TileSizes, Way
from poly.scheduling.inlining import suits_copies

SIDE = 2  # tiles of the unit beside each other in a register tile, along rows and along lanes
PANELS, ROW_BLOCKS = (1, 4, 8, 16, 32), (0, 4, 16)
LEFT_OVER = 1.5  # times its operations that a column takes which is left over for vectors
BESIDE = 1.25  # of what is counted on of a core's own caches but the first
MOST_AGAIN = 4  # blocks of lanes for each of which rows are made anew
EDGE_OF_TILES = 512  # bytes over the end of a row that come with it where tiles are stored (0136)
SHAPES = 300.0  # cycles until the unit has been told other shapes


@dataclass(frozen=True)
class RatedMatrixWays(RatedWays):
    """What can be chosen for one reduction with given lanes on a matrix unit."""

    @property
    def edge(self) -> int:
        """As of all contractions: with tiles up to half of what a thread writes of a row."""
        target = self.operands[-1]
        return min(EDGE_OF_TILES, target.shape[-1] * target.element // (2 * self.facts.threads))

    def best_on_unit(self) -> Rated | None:
        """The best plan; None where the unit does not do such sums."""
        return min((r for found in self.best_of_each_on_unit(1) for r in found), key=lambda r: r.cycles, default=None)

    @cached_property
    def least_on_unit(self) -> float:
        """Cycles that no plan on the unit takes less than."""
        works = [self._matrix_work(way, matrix, np.zeros(())).min() for way, matrix in self._matrix_ways()]
        return float(min(works, default=inf)) / self.facts.threads

    def best_of_each_on_unit(self, each: int) -> Iterator[list[Rated]]:
        """The best `each` sizes of every way in which the unit does such sums."""
        for way, matrix in self._matrix_ways():
            grid = self._matrix_grid(way, matrix)
            if grid is None:
                continue
            ((_, cycles),) = self._cycles([grid])
            order = np.argsort(cycles, kind="stable")[:each]
            made = [partial(self._matrix_plan, way, matrix, grid.candidate(int(k))) for k in order]
            yield [Rated(float(cycles[k]), plan) for k, plan in zip(order, made, strict=True)]

    def _matrix_ways(self) -> Iterator[tuple[Way, MatrixPlan]]:
        engine, body = self.facts.machine.matrix_unit, self.update.body
        match body:
            case Apply(name, (Read(a), Read(b))) if engine is not None and a != b:
                steps = dict(engine.dots).get(name, 0)
            case _:
                return
        fits = steps and self.vector == engine.cols and not self.facts.uneven and not self.turned
        if not fits or any(r.guard or r.indirect for r in self.update.reads):
            return
        for way in sorted(self.ways(), key=lambda w: not w.lanes_inside):  # of equals: results row by row
            matrix = self._matrix_of(way, engine.name, name, engine.rows, steps)
            if matrix is not None:
                yield way, matrix

    def _matrix_of(self, way: Way, engine: str, operator: str, rows: int, steps: int) -> MatrixPlan | None:
        """How the unit does a way: its rows lie along the reduction, its lanes are packed."""
        lanes, along = self.names[self.lanes], self.names[way.rows]
        if self.extents[along] < rows or self.extents[lanes] < self.vector:
            return None
        packed = {k for k, _ in way.packs}
        (first, *_), (second, *_) = (
            [k for k, o in enumerate(self.operands[:-1]) if o.depends(n)] or [-1] for n in (along, lanes)
        )
        if {first, second} != {0, 1} or packed != {second} or self.operands[first].depends(lanes):
            return None
        if self.operands[second].depends(along) or not self._alone(first, along) or not self._alone(second, lanes):
            return None
        for n, length in self.ranges.items():
            if self.operands[first].stride(n) == self.operands[first].element and self._alone(first, n):
                size = max(d for d in range(1, steps + 1) if length % d == 0)
                if self.operands[second].depends(n) and self._alone(second, n) and size > 1:
                    return MatrixPlan(engine, operator, rows, n, size, length)
        return None

    def _alone(self, k: int, iterator: str) -> bool:
        """Whether an iterator moves an operand along one axis, one element a step."""
        access = self.update.accesses[k][0]
        axis = axis_of(access, iterator)
        return axis is not None and self.operands[k].axes[axis].get(iterator) == 1

    # ---- sizes

    @cached_property
    def core(self) -> Core:
        """The core with what passes by once, rows and results, beside what blocks of lanes may take of its caches: if
        the first does not hold a register tile's operands, as others are sooner used just after they were packed.
        """
        core, own, unit = super().core, len(super().core.own), self.facts.machine.matrix_unit
        tile = 0 if unit is None else SIDE * (unit.rows + unit.cols) * prod(self.ranges.values())
        if tile * self.operands[-1].element <= core.counted_on(0):
            return core
        more = [c._replace(capacity=int(c.capacity * BESIDE)) if 0 < n < own else c for n, c in enumerate(core.caches)]
        return replace(core, caches=tuple(more))

    def _matrix_sizes(self, way: Way, matrix: MatrixPlan) -> tuple[int, int]:
        """Rows and vectors of a register tile."""
        rows, lanes = self.extents[self.names[way.rows]], self.facts.extents[self.lanes]
        return matrix.rows * min(SIDE, rows // matrix.rows), min(SIDE, lanes // self.vector)

    def _matrix_grid(self, way: Way, matrix: MatrixPlan) -> Grid | None:
        """Candidates, as those of `RatedWays`; None where no depth is whole commands."""
        height, width = self._matrix_sizes(way, matrix)
        rows = self.extents[self.names[way.rows]]
        tiles, count = max(1, self.vectors // width), -(-rows // height)
        panels = sorted({min(p, tiles) for p in (*PANELS, tiles, -(-tiles // self.facts.threads))})
        blocks = sorted({min(b, count) for b in ROW_BLOCKS}) if not way.lanes_inside else [0]
        depths = [d for d in (0, *self.depths_of(way)) if (d or not way.lanes_outside) and self._is_deep(d, matrix)]
        every = (TileSizes(height, width, p, b, d) for p in panels for b in blocks for d in depths)
        found = [
            s for s in every
            if (way.lanes_inside and (s.lane_block > 1 or tiles == 1)) or not self._passes(matrix, s)
        ]  # fmt: skip
        if not found:
            return None
        sizes = np.array(found, float)
        work = self._matrix_work(way, matrix, sizes[:, 4])
        full = np.full(len(sizes), float(count))
        return Grid(way, sizes, work, full, np.zeros(len(sizes)))

    def _is_deep(self, depth: int, matrix: MatrixPlan) -> bool:
        """Whether blocks of the reduction are whole commands."""
        if not depth:
            return True
        rest = self.ranges[self.deep] % depth
        return self.deep == matrix.iterator and depth % matrix.steps == 0 and rest % matrix.steps == 0

    def _matrix_work(self, way: Way, matrix: MatrixPlan, depth: np.ndarray) -> np.ndarray:
        """Cycles of commands over all tiles, of the sums that come and go, and of what is left over."""
        engine = self.facts.machine.engine[matrix.engine]
        rows, lanes = self.extents[self.names[way.rows]], self.facts.extents[self.lanes]
        around = prod(e for k, e in enumerate(self.facts.extents) if k not in (way.rows, self.lanes))
        steps = prod(self.ranges.values())
        tiles = -(-rows // matrix.rows) * self.vectors
        product = float(engine.cost.get(matrix.operator, matrix.rows))
        blocks = np.where(depth > 0, np.ceil(matrix.length / np.maximum(depth, 1)), 1.0)
        others = len(self.facts.group.statements) > 2
        sums = TILE_CYCLES / 2 + matrix.rows * (1.0 + (blocks > 1) + 3 * others)
        inside = tiles * (steps / matrix.steps * product + blocks * sums)
        alone = any(site == "whole" for _, site in way.packs) and lanes % self.vector == 1
        kinds = (1 + (rows % (SIDE * matrix.rows) > 0)) * (1 + (lanes % (SIDE * self.vector) > 0)) - 1
        return (inside + alone * rows * steps / self.core.fma * LEFT_OVER + kinds * SHAPES) * around

    def _made_before(self, grid: Grid) -> dict[int, Numbers]:
        """As of all contractions, but for what copies make for the thread that packs."""
        made, packed = super()._made_before(grid), {k for k, _ in grid.way.packs}
        vectors = grid.lane_block * grid.width
        return {
            k: where if not self._made_in_copies(k)
            else np.zeros(()) if k in packed else where * ~self._makes_rows(grid.way, vectors)
            for k, where in made.items()
        }  # fmt: skip

    # ---- the plan

    def _matrix_plan(self, way: Way, matrix: MatrixPlan, sizes: TileSizes) -> BlockPlan:
        """The plan for a register tile; a column that is left alone is for vectors."""
        plan = self.plan(way, sizes)
        packs = tuple(replace(p, on_way=False, asked=False) for p in plan.packs)
        low, extent = self.facts.group_low(self.lanes), self.facts.extents[self.lanes]
        start, rows = self.facts.group_low(way.rows), self.extents[self.names[way.rows]]
        pieces = tuple(_pieces(start, rows, matrix.rows, sizes.height))
        alone = any(site == "whole" for _, site in way.packs)  # in blocks of whole tiles, which others would cut
        strips: list[Strip] = []
        for p in _pieces(low, extent, self.vector, sizes.width * self.vector, alone):
            wide, block = max(1, p.tile // self.vector), min(sizes.lane_block, (p.high - p.low) // p.tile)
            own = pieces if p.tile > 1 else balanced(start, rows, max(1, tallest(1, True, self.core.registers)))
            strips.append(Strip(p.low, p.high, wide, own, block))
        matrix = replace(matrix, passing=self._passes(matrix, sizes))
        packs += self._rows_made(way, sizes.lane_block * sizes.width)
        return replace(plan, packs=packs, strips=tuple(strips), matrix=matrix)

    def _rows_made(self, way: Way, vectors: int) -> tuple[Pack, ...]:
        """The operand of rows, where what makes it can do so for a tile of rows, which few blocks of lanes use."""
        along = self.names[way.rows]
        k = next(k for k, o in enumerate(self.operands[:-1]) if o.depends(along))
        if not self._made_in_copies(k) or not self._makes_rows(way, np.asarray(vectors)):
            return ()
        access = self.update.accesses[k][0]
        order = tuple(range(len(access.index)))
        return (Pack(self.update.name, access.tensor, k, order, order[-1], pad=False, site="rows"),)

    def _makes_rows(self, way: Way, vectors: Numbers) -> npt.NDArray[np.bool_]:
        """Whether few enough blocks of so many vectors use a tile of rows for each of them to make it anew."""
        return np.asarray(way.lanes_inside & (self.vectors <= MOST_AGAIN * vectors))

    def _made_in_copies(self, k: int) -> bool:
        """Whether copies of an operand can make what they copy."""
        program = self.facts.program
        tensor = program.tensor[self.operands[k].tensor]
        makers = [s for s in program.statements if s.write.tensor == tensor.name]
        return tensor.role == "temporary" and len(makers) == 1 and suits_copies(program, makers[0])

    def _passes(self, matrix: MatrixPlan, sizes: TileSizes) -> bool:
        """Whether the first cache does not hold both operands of a register tile: rows stay there then, and what is
        packed for the lanes, tile after tile, is loaded past it.
        """
        steps = prod(self.ranges.values()) // matrix.length * (sizes.depth or matrix.length)
        return steps * (sizes.height + sizes.width * self.vector) * self.operands[-1].element > self.core.counted_on(0)


def _pieces(start: int, extent: int, side: int, most: int, alone: bool = False) -> Iterator[Piece]:
    """A loop in tiles of `most`, then in smaller ones of at most `side`, none of them a single iteration, which is no
    tile, but where that has to be left `alone`.
    """
    whole, rest = divmod(extent, most)
    if rest == 1 and whole and not alone:
        whole, rest = whole - 1, rest + most
    if whole:
        yield Piece(start, start + whole * most, most)
    start += whole * most
    while rest:
        size = min(side, rest)
        size -= rest - size == 1 and not alone
        yield Piece(start, start + size, size)
        start, rest = start + size, rest - size
