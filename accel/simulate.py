"""Run a command stream on values: the oracle of the instruction set.

Commands run one after another in an order the semaphores allow; with a `seed`, in a random one (engines run ahead of
each other in bursts). A stream that is rightly synchronised gives the same result in every order. On-chip memory and
unwritten DRAM start as a poison (NaN as f32, the largest i32). `checked` also refuses every read of an unwritten byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.accel.footprint import Flat, Footprint, box_of, fill, flatten, footprints, grid, injective, reach, view
from poly.accel.isa import Command, CommandStream, Dma, Mm, Region, StreamError, Vec, digest_of
from poly.accel.tokens import take
from poly.accel.vector import Array, Bytes, Memory, base, run_vec, window
from poly.dtypes import numpy_dtype
from poly.errors import RunError

Run = Callable[[tuple[int, ...]], None]
POISON: Final = np.array([0xFF, 0xFF, 0xFF, 0x7F], np.uint8)


@dataclass(frozen=True)
class Counters:
    """What a run did. Bytes count elements moved over DRAM, replicated ones once."""

    read: Mapping[str, int]
    written: Mapping[str, int]
    commands: Mapping[str, int]
    macs: int

    @property
    def dram_bytes(self) -> int:
        return sum(self.read.values()) + sum(self.written.values())


@dataclass
class _Tally:
    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    macs: int = 0


def run(
    stream: CommandStream, inputs: Mapping[str, npt.ArrayLike], *, seed: int | None = None, checked: bool = True
) -> tuple[dict[str, Array], Counters]:
    """Outputs by symbol (one-dimensional) and counters. `inputs`: any shape, right dtype and size.

    Raises `RunError` for wrong inputs, for a read of an unwritten byte (`checked`) and for a gather out of range,
    `StreamError` on a deadlock or an access outside of a symbol.
    """
    flats = [flatten(q) for q in stream.queues]
    memories = _memories(stream, flats, inputs, checked)
    tally = _Tally()
    runs = [[_prepare(c, memories, tally, checked, f"{flat.engine}: {c.tag}") for c in flat.commands] for flat in flats]
    counts = {flat.engine: 0 for flat in flats}
    for engine, instance in firing_order(stream, flats, seed):
        position, counters = flats[engine].instances[instance]
        runs[engine][position](counters)
        counts[flats[engine].engine] += 1
    outputs = {
        s.name: memories[f"@{s.name}"].data.view(numpy_dtype(s.dtype))
        for s in stream.symbols
        if s.role in ("output", "inout", "state")
    }
    return outputs, Counters(tally.read, tally.written, counts, tally.macs)


def firing_order(stream: CommandStream, flats: Sequence[Flat], seed: int | None = None) -> list[tuple[int, int]]:
    """All command instances (engine, instance) in an order the semaphores allow. Raises `StreamError` on a deadlock."""
    tokens = {s.name: s.initial for s in stream.semaphores}
    heads, order, blocked = [0] * len(flats), list[tuple[int, int]](), set[int]()
    rng = None if seed is None else np.random.default_rng(seed)
    while choice := [e for e, f in enumerate(flats) if e not in blocked and heads[e] < len(f.instances)]:
        engine = choice[0] if rng is None else choice[int(rng.integers(len(choice)))]
        burst = len(flats[engine].instances) if rng is None else int(rng.geometric(0.3 if rng.random() < 0.7 else 0.02))
        fired = _burst(flats[engine], heads[engine], tokens, burst)
        order += [(engine, heads[engine] + i) for i in range(fired)]
        heads[engine] += fired
        if fired:
            blocked.clear()
        if fired < burst:
            blocked.add(engine)
    stuck = [flats[e].label(h) for e, h in enumerate(heads) if h < len(flats[e].instances)]
    if stuck:
        raise StreamError(
            f"deadlock: {', '.join(stuck)} wait for ever", where=stream.name, hint="verify() shows the cycle"
        )
    return order


def _burst(flat: Flat, head: int, tokens: dict[str, int], burst: int) -> int:
    """Fire up to `burst` commands of one engine; how many could."""
    for fired, (position, _) in enumerate(flat.instances[head : head + burst]):
        command = flat.commands[position]
        if take(tokens, command) is not None:
            return fired
        for name, count in command.post:
            tokens[name] = tokens.get(name, 0) + count
    return min(burst, len(flat.instances) - head)


def _memories(
    stream: CommandStream, flats: Sequence[Flat], inputs: Mapping[str, npt.ArrayLike], checked: bool
) -> dict[str, Memory]:
    """DRAM symbols as `@name`, on-chip memories as large as what is touched of them. Poison where no input is given;
    where reads are `checked`, what was written is noted.
    """
    found: dict[str, Memory] = {}
    for symbol in stream.symbols:
        dtype = numpy_dtype(symbol.dtype)
        given = _given(stream, symbol.name, symbol.role, inputs)
        if given is None:
            written = np.zeros(symbol.elements, np.bool_) if checked else None
            found[f"@{symbol.name}"] = Memory(_poison(symbol.elements * dtype.itemsize), written, dtype.itemsize)
            continue
        data = np.asarray(given)
        if data.dtype != dtype or data.size != symbol.elements:
            raise RunError(f"{data.dtype}[{data.size}], not {dtype}[{symbol.elements}]", where=f"input {symbol.name}")
        copy = np.array(data, order="C").reshape(-1).view(np.uint8)
        found[f"@{symbol.name}"] = Memory(copy, None, dtype.itemsize)
    sizes: dict[str, int] = {}
    for flat in flats:
        for command, counts in zip(flat.commands, flat.ranges, strict=True):
            for region in command.operands:
                if region.symbol is None:
                    _, end = reach(region, box_of(command, region), counts)
                    sizes[region.memory] = max(sizes.get(region.memory, 0), end)
                elif f"@{region.symbol}" not in found:
                    raise StreamError(f"no symbol {region.symbol!r}", where=flat.engine)
    for memory, size in sizes.items():
        size += -size % 16
        found[memory] = Memory(_poison(size), np.zeros(size, np.bool_) if checked else None)
    return found


def _given(stream: CommandStream, name: str, role: str, inputs: Mapping[str, npt.ArrayLike]) -> npt.ArrayLike | None:
    if role == "constant":
        if name not in stream.constants:
            raise RunError("its data is missing", where=f"constant {name}", hint="pass constants= to parse_stream")
        digest = stream.symbol[name].digest
        if digest and digest_of(stream.constants[name]) != digest:
            raise RunError("its data is not what the stream was made for", where=f"constant {name}")
        return stream.constants[name]
    if role in ("input", "inout", "state"):
        if name not in inputs:
            raise RunError("is missing", where=f"input {name}")
        return inputs[name]
    return None


def _poison(size: int) -> Bytes:
    return np.resize(POISON, size)


def _prepare(command: Command, memories: Mapping[str, Memory], tally: _Tally, checked: bool, where: str) -> Run:
    match command:
        case Dma():
            body = _dma(command, memories, tally)
        case Mm():
            body = _mm(command, memories, tally)
        case Vec():
            body = _vec(command, memories, where)
    prints = footprints(command)

    def guarded(counters: tuple[int, ...]) -> None:
        now = footprints(command, counters) if any(p.moving for p in prints) else prints
        for print_ in now:
            _touch(print_, memories[print_.region.key], counters, checked, where)
        body(counters)

    return guarded


def _touch(footprint: Footprint, memory: Memory, counters: tuple[int, ...], checked: bool, where: str) -> None:
    if footprint.size == 0:
        return
    start = footprint.region.start(counters)
    scale = memory.unit if footprint.region.symbol is not None else 1
    if start + footprint.low < 0 or (start + footprint.high) * scale > len(memory.data):
        raise StreamError(f"{footprint.operand} leaves {footprint.region.key}", where=where)
    if start % footprint.region.unit:
        raise StreamError(f"{footprint.operand} at {start:#x} of {footprint.region.key} is not aligned", where=where)
    if not checked or memory.written is None:
        return
    if footprint.kind == "write":
        fill(memory.written, footprint, start, 1)
    elif not view(memory.written, footprint, start).all():
        raise RunError(f"{footprint.operand} reads bytes of {footprint.region.key} that nothing wrote", where=where)


def _dma(command: Dma, memories: Mapping[str, Memory], tally: _Tally) -> Run:
    dst, src, counts = command.dst, command.src, command.counts
    target, source = memories[dst.key], memories[src.key]
    inner = tuple(slice(lo, lo + n) for n, (lo, _) in zip(counts, command.pad, strict=False)) if command.pad else ()
    moved = math.prod(n for n, s in zip(counts, src.strides, strict=True) if s) * numpy_dtype(src.dtype).itemsize
    stored = math.prod(command.extents) * numpy_dtype(dst.dtype).itemsize

    def copy(counters: tuple[int, ...]) -> None:
        to = window(dst, target, command.extents, counters)
        value = window(src, source, counts, counters)
        if target is source:
            value = value.copy()
        if command.pad:
            to[...] = command.fill
            to = to[inner]
        with np.errstate(all="ignore"):
            np.copyto(to, value, casting="unsafe")
        if src.symbol is not None:
            tally.read[src.symbol] = tally.read.get(src.symbol, 0) + moved
        if dst.symbol is not None:
            tally.written[dst.symbol] = tally.written.get(dst.symbol, 0) + stored

    return copy


def _moved_by(command: Mm) -> tuple[list[int], list[int], list[int], list[int]]:
    """The loops of a product that move both operands, the first one alone, the second one alone, and not the result."""
    a, b, loops = command.a, command.b, range(len(command.trips))
    kept = [i for i in loops if command.c.strides[i] and command.trips[i] > 1]
    batch = [i for i in kept if a.strides[i] and b.strides[i]]
    rows = [i for i in kept if not b.strides[i]]
    cols = [i for i in kept if b.strides[i] and not a.strides[i]]
    return batch, rows, cols, [i for i in loops if i not in kept]


def _mm(command: Mm, memories: Mapping[str, Memory], tally: _Tally) -> Run:
    """As one batched product: loops by who they move; integers through floating BLAS where that is exact."""
    c, a, b, trips = command.c, command.a, command.b, command.trips
    batch, rows, cols, reduced = _moved_by(command)
    order_a, order_b, order_c = batch + rows + reduced, batch + reduced + cols, batch + rows + cols

    def extent(which: Sequence[int]) -> int:
        return math.prod(trips[i] for i in which)

    size, m, k, n = extent(batch), extent(rows), extent(reduced), extent(cols)
    shape_c = tuple(trips[i] for i in order_c)
    through = _exact_type(a.dtype, b.dtype, c.dtype, k)
    plain = injective([c.strides[i] for i in order_c], shape_c)
    macs = math.prod(trips)

    def operand(region: Region, order: Sequence[int], shape: tuple[int, ...], counters: tuple[int, ...]) -> Array:
        strides = [region.strides[i] for i in order]
        values = window(region, memories[region.key], [trips[i] for i in order], counters, strides)
        return np.ascontiguousarray(values, through).reshape(shape)

    def multiply(counters: tuple[int, ...]) -> None:
        with np.errstate(all="ignore"):
            product = np.matmul(
                operand(a, order_a, (size, m, k), counters), operand(b, order_b, (size, k, n), counters)
            )
            value = product.reshape(shape_c)
            value = value if c.dtype[0] in "fb" else value.astype(np.int64)
            value = value.astype(numpy_dtype(c.dtype))
            if plain:
                target = window(c, memories[c.key], shape_c, counters, [c.strides[i] for i in order_c])
                target[...] = target + value if command.accumulate else value
            else:
                _scatter(c, memories[c.key], [c.strides[i] for i in order_c], value, counters, command.accumulate)
        tally.macs += macs

    return multiply


def _scatter(
    region: Region, memory: Memory, strides: Sequence[int], value: Array, counters: tuple[int, ...], accumulate: bool
) -> None:
    flat = memory.data.view(numpy_dtype(region.dtype))
    where = np.broadcast_to(grid(base(region, memory, counters) // flat.itemsize, strides, value.shape), value.shape)
    if not accumulate:
        flat[where] = 0
    np.add.at(flat, where, value)


def _exact_type(a: str, b: str, c: str, k: int) -> np.dtype[np.generic]:
    """The narrowest type whose products and sums of `k` terms are exact; for floats the accumulator's own."""
    if c[0] in "fb":
        return numpy_dtype(c)

    def largest(dtype: str) -> int:
        limits = np.iinfo(numpy_dtype(dtype).name)
        return max(-int(limits.min), int(limits.max))

    bound = largest(a) * largest(b) * k
    return np.dtype(np.float32 if bound <= 1 << 24 else np.float64 if bound <= 1 << 53 else np.int64)


def _vec(command: Vec, memories: Mapping[str, Memory], where: str) -> Run:
    def compute(counters: tuple[int, ...]) -> None:
        run_vec(command, memories, counters, where)

    return compute
