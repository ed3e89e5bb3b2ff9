"""Tile sizes for a group of statements with software-managed memories: the least bytes moved that fit.

Footprints are affine in the tile sizes (`poly.scheduling.footprint.parametric_extents`), so sizes of buffers and bytes
moved are polynomials; they are evaluated for all candidates at once. Of the candidates that move the least bytes the
one with the least estimated time is taken: the greatest of load, compute and store, and what the first tile cannot
hide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, FloorDiv, Mod, Var, var
from poly.scheduling.footprint import parametric_extents

Ints = npt.NDArray[np.int64]
Sizes = Mapping[str, Ints]
MAX_CANDIDATES = 200_000
SLOTS = 2


@dataclass(frozen=True)
class Variable:
    """A loop to tile. `unit`: sizes are multiples of it where possible; `whole`: tiled only if nothing else fits."""

    name: str
    extent: int
    reduction: bool = False
    unit: int = 1
    whole: bool = False


@dataclass(frozen=True)
class Buffer:
    """What a tile holds of one tensor. `accesses`: subscripts by variables. `shape`: the tensor's extents.

    `loaded`: from outside, once per tile of the innermost loop it depends on, into rotating slots; `stored`: written
    back once per tile. `rotates`: has two slots though it is not loaded. `alive`: first and last statement of a tile
    that use it; None where it keeps its space.
    """

    tensor: str
    accesses: tuple[tuple[Affine, ...], ...]
    shape: tuple[int, ...]
    itemsize: int
    memory: str
    loaded: bool
    stored: bool
    rotates: bool = False
    alive: tuple[int, int] | None = None


@dataclass(frozen=True)
class Work:
    """Compute of one tile. Array: variables streamed, on the columns and on the rows. Else `steps` a point over lanes.

    `overhead`: cycles a command before its results are there, beyond its work.
    """

    engine: str
    variables: tuple[str, ...]
    overhead: int = 0
    steps: int = 1
    lanes: int = 1
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Space:
    """A memory: bytes there are, and the alignment of buffers."""

    capacity: int
    align: int


@dataclass(frozen=True)
class Bus:
    """DRAM in bytes a cycle; every contiguous row costs whole lines, every transfer `setup` cycles."""

    bytes_per_cycle: int
    line: int
    setup: int


@dataclass(frozen=True)
class Problem:
    """`orders`: of the parallel variables' tile loops, outermost first; those of reductions are inside, in order."""

    variables: tuple[Variable, ...]
    buffers: tuple[Buffer, ...]
    work: tuple[Work, ...]
    orders: tuple[tuple[str, ...], ...]
    spaces: Mapping[str, Space]
    bus: Bus


@dataclass(frozen=True)
class Choice:
    """`sizes` by variable, `order` of all tile loops; `moved` bytes over DRAM, estimated `cycles`, all `tiles`."""

    sizes: Mapping[str, int]
    order: tuple[str, ...]
    moved: int
    cycles: int
    tiles: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """Least is best."""
        return self.moved, self.cycles, self.tiles


def best_tiles(problems: Sequence[Problem]) -> tuple[int, Choice] | None:
    """The best choice and the number of its problem, or None where no candidate fits.

    Problems that differ only in the memories of their buffers are evaluated together.
    """
    alike: dict[object, list[int]] = {}
    for k, p in enumerate(problems):
        buffers = tuple(replace(b, memory="") for b in p.buffers)
        alike.setdefault((p.variables, buffers, p.work, p.orders, p.bus), []).append(k)
    found = [best for group in alike.values() if (best := _best_of([problems[k] for k in group], group)) is not None]
    return min(found, key=lambda f: f[1].rank) if found else None


def _best_of(problems: Sequence[Problem], numbers: Sequence[int]) -> tuple[int, Choice] | None:
    """`best_tiles` of problems with the same loops, footprints and work."""
    first = problems[0]
    extent = {v.name: v.extent for v in first.variables}
    inner = tuple(v.name for v in first.variables if v.reduction)
    for relaxed in (False, True):
        grid = candidates(first.variables, relaxed)
        trips = {n: -(-extent[n] // s) for n, s in grid.items()}
        boxes = {b.accesses: _box(b, grid, extent) for b in first.buffers}
        found: list[tuple[int, Choice]] = []
        for order in first.orders:
            g = _Grid(first, (*order, *inner), grid, trips, extent, boxes, {})
            moved = sum((g.moved(b) * (b.loaded + b.stored) for b in first.buffers), np.zeros(1, np.int64))
            time = g.time()
            for number, p in zip(numbers, problems, strict=True):
                best = _best(replace(g, problem=p), moved, time)
                if best is not None:
                    found.append((number, best))
        if found:
            return min(found, key=lambda f: f[1].rank)
    return None


# ---- candidates


def candidates(variables: Sequence[Variable], relaxed: bool = False) -> dict[str, Ints]:
    """Sizes to try for each variable, along axes of their own, so that arrays over them broadcast to the whole grid."""
    lists = [[v.extent] if v.whole and not relaxed else sizes_of(v) for v in variables]
    while math.prod(map(len, lists)) > MAX_CANDIDATES:
        longest = max(range(len(lists)), key=lambda k: len(lists[k]))
        kept = lists[longest]
        lists[longest] = [*kept[0:-1:2], kept[-1]]
    grid: dict[str, Ints] = {}
    for k, (v, sizes) in enumerate(zip(variables, lists, strict=True)):
        shape = [1] * len(variables)
        shape[k] = len(sizes)
        grid[v.name] = np.array(sizes, np.int64).reshape(shape)
    return grid


def sizes_of(v: Variable) -> list[int]:
    """Sizes that cut the extent evenly, rounded up to the unit; ascending, the whole extent last."""
    found = {v.extent}
    count = 1
    while count < v.extent:
        count = count + 1 if count < 8 else -(-count * 5 // 4)
        size = -(-v.extent // min(count, v.extent))
        found.add(min(v.extent, -(-size // v.unit) * v.unit))
    return sorted(found)


# ---- evaluation of the whole grid


@dataclass(frozen=True)
class _Grid:
    problem: Problem
    order: tuple[str, ...]
    sizes: Sizes
    trips: Sizes
    extent: Mapping[str, int]
    boxes: Mapping[tuple[tuple[Affine, ...], ...], Sequence[Ints]]
    known: dict[tuple[object, ...], Ints]

    def extents(self, buffer: Buffer) -> Sequence[Ints]:
        """Extents of the box a tile needs, padding included."""
        return self.boxes[buffer.accesses]

    def space(self, buffer: Buffer) -> Ints:
        """Bytes of all slots."""
        align, rotates = self.problem.spaces[buffer.memory].align, buffer.loaded or buffer.rotates
        key = (buffer.accesses, buffer.itemsize, align, rotates)
        if key not in self.known:
            one = -(-_product(self.extents(buffer)) * buffer.itemsize // align) * align
            self.known[key] = one * np.where(self.loads(buffer)[1], SLOTS, 1) if rotates else one
        return self.known[key]

    def loads(self, buffer: Buffer) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """How many tiles are transferred, and whether there is more than one of them (a loop to rotate over)."""
        names = {n for access in buffer.accesses for e in access for n in e.names}
        count: Ints = np.ones((1,) * len(self.sizes), np.int64)
        inside = np.zeros(count.shape, np.bool_)
        for v in reversed(self.order):
            if v in names:
                inside = inside | (self.trips[v] > 1)
            count = np.where(inside, count * self.trips[v], count)
        return count, inside

    def moved(self, buffer: Buffer) -> Ints:
        """Bytes over DRAM in one direction: per axis the sum of all tiles' elements, times the repetitions."""
        count, _ = self.loads(buffer)
        total: Ints = np.array(buffer.itemsize, np.int64)
        seen: set[str] = set()
        for d, elements in enumerate(self.elements(buffer)):
            names = {n for access in buffer.accesses for n in access[d].names} - seen
            seen |= names
            tiles = _product([self.trips[n] for n in names])
            past = sum((self._overhang(buffer, d, n) for n in names), np.zeros(1, np.int64))
            shared = np.maximum(elements * tiles - past, 1)
            apart = math.prod(self.extent[n] for n in names) * len({access[d] for access in buffer.accesses})
            total = total * np.where(elements == self._points(buffer, d), apart, shared)
            count = count // np.maximum(tiles, 1)
        return total * np.maximum(count, 1)

    def elements(self, buffer: Buffer) -> list[Ints]:
        """Elements per axis that a tile transfers: no padding, and not what a stride leaves out."""
        found: list[Ints] = []
        for d, extent in enumerate(self.extents(buffer)):
            found.append(np.minimum(np.minimum(extent, buffer.shape[d]), self._points(buffer, d)))
        return found

    def _points(self, buffer: Buffer, d: int) -> Ints:
        """At most so many subscripts of axis d differ in a tile."""
        names = {n for access in buffer.accesses for n in access[d].names}
        return _product([self.sizes[n] for n in names]) * len({access[d] for access in buffer.accesses})

    def _overhang(self, buffer: Buffer, d: int, name: str) -> Ints:
        """How far the last tile reaches beyond the loop's end, in elements of axis d."""
        names = {n for access in buffer.accesses for n in access[d].names}
        step = max(abs(access[d].coefficient(name)) for access in buffer.accesses)
        others = _product([self.trips[n] for n in names if n != name])
        return step * (self.sizes[name] * self.trips[name] - self.extent[name]) * others

    def bus_cycles(self, buffer: Buffer) -> Ints:
        """Cycles on the bus for all transfers, short rows at their cost."""
        bus, (count, _) = self.problem.bus, self.loads(buffer)
        elements = self.elements(buffer)
        run: Ints = np.ones(1, np.int64)
        whole = np.ones(1, np.bool_)
        for here, extent, n in zip(
            reversed(elements), reversed(self.extents(buffer)), reversed(buffer.shape), strict=True
        ):
            whole = whole & (here == np.minimum(extent, n))
            run = np.where(whole, run * here, run)
            whole = whole & (here == n)
        rows = _product(elements) // np.maximum(run, 1)
        row = -(-run * buffer.itemsize // bus.line) * bus.line
        full = count * rows * row // bus.bytes_per_cycle
        payload = self.moved(buffer) // bus.bytes_per_cycle
        return np.maximum(payload, np.where(row > run * buffer.itemsize, full, payload)) + count * bus.setup

    def compute(self, work: Work) -> Ints:
        """Cycles of all tiles."""
        tiles = _product([self.trips[v] for v in self.order if v in work.variables])
        if not work.shape[0]:
            points = _product([self.sizes[v] for v in work.variables])
            return tiles * (-(-points // work.lanes) * work.steps + work.overhead)
        passes = blocks(work.columns, self.sizes, work.shape[1])[1] * blocks(work.rows, self.sizes, work.shape[0])[1]
        streamed = [v for v in work.variables if v not in (*work.columns, *work.rows)]
        rows = np.maximum(_product([self.sizes[v] for v in streamed]), work.shape[0])
        return tiles * (passes * rows + work.overhead)

    def time(self) -> Ints:
        """Estimated cycles: what takes longest, and once what the first tile cannot hide.

        Without rotation the engines and the store take turns on one tile; with it they work on several.
        """
        zero = np.zeros(1, np.int64)
        load = sum((self.bus_cycles(b) for b in self.problem.buffers if b.loaded), zero)
        store = sum((self.bus_cycles(b) for b in self.problem.buffers if b.stored), zero)
        engines: dict[str, Ints] = {}
        for work in self.problem.work:
            engines[work.engine] = engines.get(work.engine, zero) + self.compute(work)
        compute = sum(engines.values(), zero)
        tiles = _product(list(self.trips.values()))
        longest = load + store
        if any(b.rotates for b in self.problem.buffers):
            for cycles in engines.values():
                longest = np.maximum(longest, cycles)
        else:
            longest = np.maximum(longest, compute + store)
        return longest + (load + store + compute) // tiles


def _best(g: _Grid, moved: Ints, time: Ints) -> Choice | None:
    """The best candidate that fits."""
    problem, grid = g.problem, g.sizes
    shape = np.broadcast_shapes((1,), *(s.shape for s in grid.values()))
    fits = np.ones(shape, np.bool_)
    for name, space in problem.spaces.items():
        inside = [b for b in problem.buffers if b.memory == name]
        for now in {b.alive[0] for b in inside if b.alive is not None} | {-1}:
            live = [b for b in inside if b.alive is None or b.alive[0] <= now <= b.alive[1]]
            fits = fits & (sum((g.space(b) for b in live), np.zeros(1, np.int64)) <= space.capacity)
    if not fits.any():
        return None
    tiles = _product(list(g.trips.values()))
    rows = [np.broadcast_to(a, shape)[fits] for a in (tiles, time, moved)]
    at = int(np.lexsort(rows)[0])
    chosen = {n: int(np.broadcast_to(s, shape)[fits][at]) for n, s in grid.items()}
    return Choice(chosen, g.order, int(rows[2][at]), int(rows[1][at]), int(rows[0][at]))


def blocks(names: Sequence[str], sizes: Mapping[str, Ints], limit: int) -> tuple[dict[str, Ints], Ints]:
    """How loops share one side of the array: a block of each, whose product fits; and how many passes that makes.

    Loops are served in the order given; a block divides its loop evenly.
    """
    room: Ints = np.array(limit, np.int64)
    passes: Ints = np.array(1, np.int64)
    found: dict[str, Ints] = {}
    for name in names:
        size = sizes[name]
        trips = -(-size // np.minimum(size, room))
        found[name] = -(-size // trips)
        passes = passes * trips
        room = np.maximum(room // found[name], 1)
    return found, passes


# ---- extents


def _box(buffer: Buffer, sizes: Sizes, extent: Mapping[str, int]) -> list[Ints]:
    """Extents of the box that a tile of these sizes touches; no more than all tiles together do."""
    whole = {n: np.array(e, np.int64) for n, e in extent.items()}
    formulas = _formulas(buffer.accesses, buffer.shape, tuple(sizes))
    if formulas is not None:
        pairs = [(e.evaluate(sizes), e.evaluate(whole)) for e in formulas]
    else:
        pairs = [(_hull(buffer, d, sizes), _hull(buffer, d, whole)) for d in range(len(buffer.shape))]
    return [np.minimum(np.asarray(part, np.int64), all_) for part, all_ in pairs]


@lru_cache(maxsize=1024)
def _formulas(
    accesses: tuple[tuple[Affine, ...], ...], shape: tuple[int, ...], names: tuple[str, ...]
) -> tuple[Affine, ...] | None:
    """Extents affine in the sizes; None where subscripts have floors."""
    if not all(e.is_linear for access in accesses for e in access):
        return None
    extents = tuple(Affine.of(n) for n in shape)
    if len({tuple(e - e.constant for e in access) for access in accesses}) > 1:
        return extents
    return parametric_extents(accesses, {n: var(n) for n in names}, extents)


def _hull(buffer: Buffer, d: int, sizes: Sizes) -> Ints:
    found = [_extent(access[d], sizes) for access in buffer.accesses]
    return np.max(np.stack(np.broadcast_arrays(*found)), axis=0)


def _extent(e: Affine, sizes: Sizes) -> Ints:
    """An upper bound of the number of values from least to greatest of an expression with floors."""
    total: Ints = np.array(1, np.int64)
    for atom, c in e.terms:
        match atom:
            case Var(name):
                inner = sizes[name]
            case FloorDiv(argument, divisor):
                spread = _extent(argument, sizes)
                inner = np.where(spread == 1, 1, (spread + divisor - 2) // divisor + 1)
            case Mod(argument, divisor):
                spread = _extent(argument, sizes)
                inner = np.where(spread == 1, 1, np.int64(divisor))
        total = total + abs(c) * (inner - 1)
    return total


def _product(values: Sequence[Ints]) -> Ints:
    result: Ints = np.array(1, np.int64)
    for value in values:
        result = result * value
    return result
