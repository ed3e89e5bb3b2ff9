"""Values while a stream runs: memories, regions as arrays, and what a command of the vector engine computes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.accel.footprint import Ints, grid, holds, injective
from poly.accel.isa import Convert, Imm, Index, Linear, Load, Micro, Op, Region, Vec
from poly.dtypes import Array, converted, numpy_dtype
from poly.errors import RunError
from poly.expr import COMBINERS, OPERATORS

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
CHUNK: Final = 1 << 22

_UFUNC: Final[Mapping[str, np.ufunc]] = {
    "+": np.add,
    "*": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


@dataclass
class Memory:
    """One address space while a stream runs: `unit` bytes an element in DRAM; `written` (per unit) where reads are
    checked.
    """

    data: Bytes
    written: Mask | None
    unit: int = 1


def base(region: Region, memory: Memory, counters: tuple[int, ...]) -> int:
    """The byte where a region starts."""
    return region.start(counters) * (memory.unit if region.symbol is not None else 1)


def window(
    region: Region,
    memory: Memory,
    shape: Sequence[int],
    counters: tuple[int, ...],
    strides: Sequence[int] | None = None,
) -> Array:
    """A region as a writable array."""
    dtype = numpy_dtype(region.dtype)
    steps = tuple(s * dtype.itemsize for s in (region.strides if strides is None else strides))
    return np.ndarray(tuple(shape), dtype, memory.data.data, base(region, memory, counters), steps)


def run_vec(command: Vec, memories: Mapping[str, Memory], counters: tuple[int, ...], where: str = "") -> None:
    """Execute one instance: all operands are read before anything is written."""
    blocks = list(_blocks(command, memories, counters, where))
    dst, memory = command.dst, memories[command.dst.key]
    if command.combine is not None and not command.accumulate:
        live = [(s, t) for s, t in zip(dst.strides, command.trips, strict=True) if s]
        start = window(dst, memory, [t for _, t in live], counters, [s for s, _ in live])
        start[...] = COMBINERS[command.combine].identity(dst.dtype).value
    for first, value, mask in blocks:
        _write(command, memory, counters, first, value, mask)


def _split(trips: Sequence[int]) -> tuple[int, ...]:
    """Block extents of at most CHUNK points: outer loops are cut first."""
    blocks, total = list(trips), math.prod(trips)
    for axis, trip in enumerate(trips):
        if total <= CHUNK:
            break
        rest = total // trip
        blocks[axis] = max(1, min(trip, CHUNK // rest))
        total = rest * blocks[axis]
    return tuple(blocks)


def _blocks(
    command: Vec, memories: Mapping[str, Memory], counters: tuple[int, ...], where: str
) -> Iterator[tuple[tuple[int, ...], Array, Mask | None]]:
    """Values in blocks of the loops: (first point, values, mask). Reductions are merged within a block."""
    split = _split(command.trips)
    for origin in np.ndindex(*(-(-t // s) for t, s in zip(command.trips, split, strict=True))):
        first = tuple(int(o) * s for o, s in zip(origin, split, strict=True))
        shape = tuple(min(s, t - f) for f, s, t in zip(first, split, command.trips, strict=True))
        mask = _Block(command, memories, counters, first, shape, where).mask(command.where) if command.where else None
        value = _Block(command, memories, counters, first, shape, where, mask).value()
        yield first, *_reduce(command, np.broadcast_to(value, shape), mask)


def _reduce(command: Vec, value: Array, mask: Mask | None) -> tuple[Array, Mask | None]:
    if command.combine is None:
        return value, mask
    if mask is not None:
        value = np.where(
            mask, value, np.asarray(COMBINERS[command.combine].identity(command.dst.dtype).value, value.dtype)
        )
    axes = tuple(i for i, s in enumerate(command.dst.strides) if not s)
    if axes:
        with np.errstate(all="ignore"):
            value = np.asarray(_UFUNC[command.combine].reduce(value, axis=axes, keepdims=True, dtype=value.dtype))
    return value, None


def _write(
    command: Vec, memory: Memory, counters: tuple[int, ...], first: tuple[int, ...], value: Array, mask: Mask | None
) -> None:
    """Store values where the mask holds, or combine them with what is there; one by one if points share an element."""
    dst = command.dst
    flat = memory.data.view(numpy_dtype(dst.dtype))
    start = base(dst, memory, counters) // flat.itemsize + _dot(dst.strides, first)
    where = np.broadcast_to(grid(start, dst.strides, value.shape), value.shape)
    if mask is not None:
        flat[where[mask]] = value[mask]
    elif command.combine is None:
        target = np.ndarray(
            value.shape, flat.dtype, memory.data.data, start * flat.itemsize, [s * flat.itemsize for s in dst.strides]
        )
        target[...] = value
    else:
        with np.errstate(all="ignore"):
            if injective(dst.strides, value.shape):
                flat[where] = _UFUNC[command.combine](flat[where], value)
            else:
                _UFUNC[command.combine].at(flat, where, value)


@dataclass(frozen=True)
class _Block:
    """One block of points while its registers are computed; values broadcast along loops that do not move them."""

    command: Vec
    memories: Mapping[str, Memory]
    counters: tuple[int, ...]
    first: tuple[int, ...]
    shape: tuple[int, ...]
    where: str
    live: Mask | None = None

    def value(self) -> Array:
        registers: list[Array] = []
        for micro, dtype in zip(self.command.code, self.command.dtypes, strict=True):
            with np.errstate(all="ignore"):
                registers.append(np.asarray(self.micro(micro, registers)).astype(numpy_dtype(dtype), copy=False))
        return registers[-1]

    def micro(self, micro: Micro, registers: Sequence[Array]) -> object:
        match micro:
            case Load():
                return self.load(micro, registers)
            case Imm(value, dtype):
                return np.asarray(value, numpy_dtype(dtype))
            case Index(value):
                return self.linear(value)
            case Op(name, args):
                return OPERATORS[name].evaluate(*(registers[a] for a in args))
            case Convert(dtype, arg):
                return converted(registers[arg], dtype)

    def linear(self, value: Linear) -> Ints:
        start = value.start(self.counters) + _dot(value.coefficients, self.first)
        return grid(start, value.coefficients, self.shape)

    def mask(self, conditions: Sequence[Linear]) -> Mask:
        moved = [replace(c, base=c.base + _dot(c.coefficients, self.first)) for c in conditions]
        return np.broadcast_to(holds(moved, self.shape, self.counters), self.shape)

    def load(self, load: Load, registers: Sequence[Array]) -> Array:
        region, memory = load.region, self.memories[load.region.key]
        start = base(region, memory, self.counters)
        flat = memory.data.view(numpy_dtype(region.dtype))
        origin = start // flat.itemsize + _dot(region.strides, self.first)
        if not load.guard and not load.gather and self.live is None:
            shape = [t if s else 1 for s, t in zip(region.strides, self.shape, strict=True)]
            return np.ndarray(
                shape, flat.dtype, memory.data.data, origin * flat.itemsize, [s * flat.itemsize for s in region.strides]
            )
        where = grid(origin, region.strides, self.shape)
        inside = np.ones((1,) * len(self.shape), np.bool_) if self.live is None else self.live
        if load.guard:
            inside = inside & self.mask(load.guard)
        for part in load.gather:
            index = registers[part.register].astype(np.int64)
            wrong = np.broadcast_to(((index < 0) | (index >= part.extent)) & inside, self.shape)
            if wrong.any():
                seen = int(np.broadcast_to(index, self.shape)[wrong].flat[0])
                raise RunError(f"index {seen} is not in 0..{part.extent - 1}", where=self.where)
            where = where + index * part.stride
        value = flat[np.where(inside, where, 0)]
        fill = np.asarray(0 if load.fill is None else load.fill).astype(flat.dtype)
        return np.where(inside, value, fill)


def _dot(factors: Sequence[int], values: Sequence[int]) -> int:
    return sum(f * v for f, v in zip(factors, values, strict=True))
