"""Which bytes a command touches: exact strided sets, shared by the verifier, the checked simulator and the timing.

A footprint is relative to the start of its region, in the region's unit (bytes on chip, elements in DRAM). It is either
a sum of strided dimensions, made disjoint and merged where that is exact, or (for guarded loads) an explicit list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from poly.accel.isa import Command, Dma, Item, Linear, Load, Mm, Queue, Region, Rep, StreamError, Vec

Ints = npt.NDArray[np.int64]
Dims = tuple[tuple[int, int], ...]
MAX_INSTANCES = 5_000_000


@dataclass(frozen=True, eq=False)
class Footprint:
    """`low <= offset < high` relative to the region's start; `dims` are (count, stride) with strides ascending.

    `points`: for an irregular set its offsets, ascending and distinct; `moving`: it changes with the `Rep` counters.
    """

    kind: Literal["read", "write"]
    operand: str
    region: Region
    low: int
    high: int
    dims: Dims
    points: Ints | None = None
    moving: bool = False

    @property
    def size(self) -> int:
        """Units touched (an upper bound where dimensions still overlap)."""
        return math.prod(n for n, _ in self.dims) if self.points is None else len(self.points)


@lru_cache(maxsize=1 << 14)
def strided(strides: tuple[int, ...], trips: tuple[int, ...], unit: int) -> tuple[int, Dims]:
    """The lowest offset and the dimensions of `{ unit * sum(s_l * i_l) }`, elements of `unit` units each.

    Merging two dimensions (n1, s1), (n2, q*s1) with q <= n1 into (n1 + q*(n2-1), s1) is exact; it turns overlapping
    windows and packed rows into intervals.
    """
    low, dims = 0, [(unit, 1)] if unit > 1 else []
    for stride, trip in zip(strides, trips, strict=True):
        if stride and trip > 1:
            low += min(0, stride * (trip - 1)) * unit
            dims.append((trip, abs(stride) * unit))
    dims.sort(key=lambda d: d[1])
    merged: list[tuple[int, int]] = []
    for count, stride in dims:
        for at, (n, s) in enumerate(merged):
            if stride % s == 0 and stride // s <= n:
                merged[at] = (n + (stride // s) * (count - 1), s)
                break
        else:
            merged.append((count, stride))
    return low, tuple(merged or [(1, 1)])


def dense(low: int, dims: Dims) -> int:
    """The end of the interval that holds `low` and the dimensions, exclusive."""
    return low + sum((n - 1) * s for n, s in dims) + 1


def box_of(command: Command, region: Region) -> tuple[int, ...]:
    """The extents over which an operand of a command runs."""
    if isinstance(command, Dma):
        return command.extents if region is command.dst else command.counts
    return command.trips


def reach(region: Region, trips: Sequence[int], counts: Sequence[int]) -> tuple[int, int]:
    """First and last-plus-one offset of a region over its loops and over `Rep`s of these counts; guards not counted."""
    low, dims = strided(region.strides, tuple(trips), region.unit)
    return repeated(region, low, dense(low, dims), counts)


def repeated(region: Region, low: int, high: int, counts: Sequence[int]) -> tuple[int, int]:
    """Where `low` to `high` from a region's start lie over `Rep`s of these counts."""
    moves = [s * (n - 1) for s, n in zip(region.steps, counts, strict=False)]
    return region.offset + low + sum(min(0, m) for m in moves), region.offset + high + sum(max(0, m) for m in moves)


def injective(strides: Sequence[int], trips: Sequence[int]) -> bool:
    """Whether every point has its own element; exact up to a million points, refused above where not evident."""
    used = sorted((abs(s), t) for s, t in zip(strides, trips, strict=True) if t > 1)
    if used and used[0][0] == 0:
        return False
    reach = 0
    for stride, trip in used:
        if stride <= reach:
            break
        reach += stride * (trip - 1)
    else:
        return True
    if math.prod(t for _, t in used) > 1_000_000:
        return False
    offsets = grid(0, [s for s, _ in used], [t for _, t in used])
    return len(np.unique(offsets)) == offsets.size


def grid(base: int, coefficients: Sequence[int], trips: Sequence[int]) -> Ints:
    """`base + sum(c_l * i_l)` over the box, with extent 1 along loops that do not move it."""
    total: Ints = np.full((1,) * len(trips), base, np.int64)
    for axis, (c, t) in enumerate(zip(coefficients, trips, strict=True)):
        if c and t > 1:
            shape = [1] * len(trips)
            shape[axis] = t
            total = total + (np.arange(t, dtype=np.int64) * c).reshape(shape)
    return total


def holds(conditions: Sequence[Linear], trips: Sequence[int], counters: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Where every condition is not negative; broadcasts against `trips`."""
    mask: npt.NDArray[np.bool_] = np.ones((1,) * len(trips), np.bool_)
    for linear in conditions:
        mask = mask & (grid(linear.start(counters), linear.coefficients, trips) >= 0)
    return mask


def _box(
    kind: Literal["read", "write"],
    operand: str,
    region: Region,
    trips: Sequence[int],
    more: Sequence[tuple[int, int]] = (),
) -> Footprint:
    strides = (*region.strides, *(stride for _, stride in more))
    low, dims = strided(strides, (*trips, *(extent for extent, _ in more)), region.unit)
    return Footprint(kind, operand, region, low, dense(low, dims), dims)


def _guarded(
    kind: Literal["read", "write"],
    operand: str,
    region: Region,
    trips: Sequence[int],
    guard: Sequence[Linear],
    counters: tuple[int, ...],
) -> Footprint:
    moving = any(g.steps for g in guard)
    offsets = np.broadcast_to(grid(0, region.strides, trips), tuple(trips))
    inside = offsets[np.broadcast_to(holds(guard, trips, counters), tuple(trips))]
    points = np.unique(inside) * region.unit
    if region.unit > 1:
        points = (points[:, None] + np.arange(region.unit)).ravel()
    low, high = (int(points[0]), int(points[-1]) + 1) if len(points) else (0, 0)
    return Footprint(kind, operand, region, low, high, (), points, moving)


def _load(load: Load, register: int, command: Vec, counters: tuple[int, ...]) -> Footprint:
    name = f"%{register}"
    if load.gather:  # a may-access: the whole declared range
        return _box("read", name, load.region, command.trips, [(g.extent, g.stride) for g in load.gather])
    conditions = (*load.guard, *command.where)
    if conditions:
        return _guarded("read", name, load.region, command.trips, conditions, counters)
    return _box("read", name, load.region, command.trips)


def footprints(command: Command, counters: tuple[int, ...] = ()) -> tuple[Footprint, ...]:
    """What a command reads, then what it writes. `counters` matter only to guards that move with a `Rep`."""
    match command:
        case Dma(dst, src, counts):
            return _box("read", "src", src, counts), _box("write", "dst", dst, command.extents)
        case Mm(c, a, b, trips):
            own = (_box("read", "c", c, trips),) if command.accumulate else ()
            return _box("read", "a", a, trips), _box("read", "b", b, trips), *own, _box("write", "c", c, trips)
        case Vec(dst, _, trips):
            loads = tuple(_load(load, i, command, counters) for i, load in command.loads)
            if command.where and command.combine is None:
                return *loads, _guarded("write", "dst", dst, trips, command.where, counters)
            own = (_box("read", "dst", dst, trips),) if command.accumulate else ()
            return *loads, *own, _box("write", "dst", dst, trips)


def coarser(footprint: Footprint, unit: int) -> Footprint:
    """The same set in units of so many, which every start, step and stride is made of."""
    if unit == 1:
        return footprint
    dims = tuple((n // unit, 1) if s == 1 else (n, s // unit) for n, s in footprint.dims)
    points = None if footprint.points is None else np.unique(footprint.points // unit)
    return replace(footprint, low=footprint.low // unit, high=-(-footprint.high // unit), dims=dims, points=points)


def view(data: npt.NDArray[np.generic], footprint: Footprint, start: int) -> npt.NDArray[np.generic]:
    """The touched part of a one-dimensional array; a copy for an irregular set."""
    if footprint.points is not None:
        return data[footprint.points + start]
    item, dims, low = data.itemsize, footprint.dims, start + footprint.low
    if len(dims) == 1 and dims[0][1] == 1:
        return data[low : low + dims[0][0]]
    return np.ndarray([n for n, _ in dims], data.dtype, data, low * item, [s * item for _, s in dims])


def fill(data: npt.NDArray[np.generic], footprint: Footprint, start: int, value: int) -> None:
    """Write `value` to the touched part of a one-dimensional array."""
    if footprint.points is not None:
        data[footprint.points + start] = value
    else:
        view(data, footprint, start)[...] = value


@dataclass(frozen=True)
class Flat:
    """A queue with its repetitions written out: `instances[i]` is (position in `commands`, counters of the `Rep`s)."""

    engine: str
    commands: tuple[Command, ...]
    ranges: tuple[tuple[int, ...], ...]
    instances: tuple[tuple[int, tuple[int, ...]], ...]

    def label(self, instance: int) -> str:
        """`mm#12 conv1/tile(0,0) r=(3,)`: how findings name an instance."""
        position, counters = self.instances[instance]
        tag = self.commands[position].tag
        return f"{self.engine}#{instance}" + (f" {tag}" if tag else "") + (f" r={counters}" if counters else "")


def commands_of(items: Sequence[Item], counts: tuple[int, ...] = ()) -> Iterator[tuple[Command, tuple[int, ...]]]:
    """Every command once, with the counts of the `Rep`s around it."""
    for item in items:
        if isinstance(item, Rep):
            yield from commands_of(item.body, (*counts, item.count))
        else:
            yield item, counts


def flatten(queue: Queue) -> Flat:
    """Write repetitions out. Raises `StreamError` beyond five million commands."""
    static = list(commands_of(queue.items))
    total = sum(math.prod(counts) for _, counts in static)
    if total > MAX_INSTANCES:
        raise StreamError(
            f"{total} commands run on {queue.engine}; at most {MAX_INSTANCES} are expanded", where=queue.engine
        )
    instances: list[tuple[int, tuple[int, ...]]] = []

    def walk(items: Sequence[Item], first: int, counters: tuple[int, ...]) -> int:
        for item in items:
            if isinstance(item, Rep):
                after = first
                for i in range(item.count):
                    after = walk(item.body, first, (*counters, i))
                first = after
            else:
                instances.append((first, counters))
                first += 1
        return first

    walk(queue.items, 0, ())
    return Flat(queue.engine, tuple(c for c, _ in static), tuple(r for _, r in static), tuple(instances))
