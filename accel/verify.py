"""Prove a command stream right before it runs. `verify` gives findings with stable codes; no finding means:

every access lies in its memory, over a path that the engine has; the semaphores cannot deadlock; any two commands of
different engines that touch a common byte, one of them writing, are ordered by semaphores; every byte is written before
it is read; every output is written. All checks are exact on bytes; `Rep`s are expanded.

| code | meaning |
|---|---|
| engine, memory, symbol, path, dtype, rank, align | the machine cannot execute the command |
| bounds | an access leaves its memory or symbol |
| size | an array pass larger than the array |
| overlap | one command writes an element twice (without a combiner) |
| alias | a command's operand overlaps its result, other than element by element |
| untried | an operand may overlap the result, which lie to each other in more ways than are tried (warning) |
| read-only | an input or a constant is written |
| consumer, semaphore | a wait by another engine than the consumer; a semaphore that is not declared |
| deadlock, starved | engines wait in a cycle; a wait that no later post serves |
| unbalanced, overflow | tokens at the end differ from the start; a counter may exceed its limit (warning) |
| raw, war, waw | an unordered pair on a common byte; which of the three depends on the order it is seen in |
| uninitialised, accumulate | a read, or an accumulation, of bytes that nothing wrote |
| output | an output with elements that nothing wrote |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from poly.accel.findings import Finding
from poly.accel.footprint import (
    MAX_INSTANCES,
    Flat,
    Footprint,
    Ints,
    box_of,
    commands_of,
    flatten,
    footprints,
    grid,
    injective,
    reach,
    repeated,
)
from poly.accel.hazards import memory_findings
from poly.accel.isa import MAX_REP_DEPTH, Command, CommandStream, Dma, Mm, Region, StreamError, Vec
from poly.accel.tokens import Firing, Stuck, fire
from poly.document import counted
from poly.machine import Engine, Machine

MAX_FINDINGS = 100
MAX_WAYS = 10_000  # in which an operand lies to the result of a repeated command


def verify(stream: CommandStream, machine: Machine) -> list[Finding]:
    """All findings, most basic first; at most 100. Memory contents are checked only where the accesses are in order."""
    found = list(_check_static(stream, machine))
    if any(f.severity == "error" for f in found):
        return found[:MAX_FINDINGS]
    try:
        flats = [flatten(q) for q in stream.queues]
    except StreamError as error:
        return [*found, Finding("rank", str(error))]
    firing = fire(stream, flats)
    found.extend(_token_findings(stream, flats, firing))
    found.extend(memory_findings(stream, machine, flats, firing, MAX_FINDINGS))
    return found[:MAX_FINDINGS]


def require_verified(stream: CommandStream, machine: Machine) -> None:
    """Raise `StreamError` with the first errors, if there are any."""
    errors = [f for f in verify(stream, machine) if f.severity == "error"]
    if errors:
        shown = "\n  ".join(map(str, errors[:5]))
        unwritten = all(f.code == "output" for f in errors)
        hint = "a statement in front that sets every element, as y[i] = 0 where 0 <= i < 8" if unwritten else None
        raise StreamError(f"{counted(len(errors), 'error')}\n  {shown}", where=f"stream {stream.name}", hint=hint)


def _check_static(stream: CommandStream, machine: Machine) -> Iterator[Finding]:
    """What is wrong with commands and semaphores by themselves, whatever their order."""
    if stream.machine_hash and stream.machine_hash != machine.hash:
        yield Finding("engine", f"the stream was made for another description of {stream.machine}", severity="warning")
    for semaphore in stream.semaphores:
        if semaphore.consumer not in stream.queue and semaphore.consumer not in machine.engine:
            yield Finding("semaphore", f"{semaphore.name} has no consumer {semaphore.consumer!r}")
    for queue in stream.queues:
        engine = machine.engine.get(queue.engine)
        if engine is None:
            yield Finding("engine", f"{machine.name} has no engine {queue.engine!r}")
            continue
        try:
            commands = list(commands_of(queue.items))
        except RecursionError:
            yield Finding("rank", f"repetitions of {queue.engine} are nested too deeply")
            continue
        for position, (command, counts) in enumerate(commands):
            check = _Check(stream, machine, engine, command, counts)
            label = f"{queue.engine} command {position}" + (f" {command.tag}" if command.tag else "")
            for code, message in check.problems():
                yield Finding(code, message, (label,), "warning" if code == "untried" else "error")


Problem = tuple[str, str]


@dataclass(frozen=True)
class _Check:
    """The checks of one command that need no order."""

    stream: CommandStream
    machine: Machine
    engine: Engine
    command: Command
    counts: tuple[int, ...]

    def problems(self) -> Iterator[Problem]:
        if len(self.counts) > MAX_REP_DEPTH:
            yield "rank", f"{len(self.counts)} nested repetitions, at most {MAX_REP_DEPTH}"
        yield from self.semaphores()
        places = [p for region in self.command.operands for p in self.place(region)]
        yield from places
        if not places:
            yield from self.bounds()
            yield from self.kind()

    def semaphores(self) -> Iterator[Problem]:
        for name, _ in (*self.command.wait, *self.command.post):
            if name not in self.stream.semaphore:
                yield "semaphore", f"{name} is not declared"
        for name, _ in self.command.wait:
            semaphore = self.stream.semaphore.get(name)
            if semaphore is not None and semaphore.consumer != self.engine.name:
                yield "consumer", f"{self.engine.name} waits on {name}, whose consumer is {semaphore.consumer}"

    def place(self, region: Region) -> Iterator[Problem]:
        memory = self.machine.memory.get(region.memory)
        if memory is None:
            yield "memory", f"{self.machine.name} has no memory {region.memory!r}"
            return
        if len(region.steps) > len(self.counts):
            yield "rank", f"{region.key} steps with {len(region.steps)} repetitions, {len(self.counts)} are around"
        if memory.dtypes and region.dtype not in memory.dtypes:
            yield "dtype", f"{memory.name} does not hold {region.dtype}"
        if (memory.kind == "dram") != (region.symbol is not None):
            yield (
                "memory",
                f"{region.key}: "
                + ("DRAM is addressed by symbols" if memory.kind == "dram" else "symbols live in DRAM"),
            )
        elif region.symbol is not None:
            symbol = self.stream.symbol.get(region.symbol)
            if symbol is None:
                yield "symbol", f"{region.symbol} is not declared"
            elif (symbol.memory, symbol.dtype) != (region.memory, region.dtype):
                yield (
                    "symbol",
                    f"{region.symbol} is {symbol.dtype} in {symbol.memory}, not {region.dtype} in {region.memory}",
                )
        elif region.offset % region.unit or any(s % region.unit for s in region.steps):
            yield (
                "align",
                f"{region.key} at {region.offset:#x}, steps {region.steps}: {region.dtype} needs {region.unit}",
            )

    def bounds(self) -> Iterator[Problem]:
        for footprint in footprints(self.command):
            region = footprint.region
            if region.symbol is not None:
                limit = self.stream.symbol[region.symbol].elements
                if footprint.kind == "write" and self.stream.symbol[region.symbol].role in ("input", "constant"):
                    yield "read-only", f"writes {self.stream.symbol[region.symbol].role} {region.symbol}"
            else:
                limit = self.machine.memory[region.memory].capacity
            low, high = self.range(footprint)
            if low < 0 or (limit is not None and high > limit):
                unit = "elements" if region.symbol is not None else "bytes"
                yield (
                    "bounds",
                    f"{footprint.operand} touches {unit} {low}..{high - 1} of {region.key}, which has {limit}",
                )

    def range(self, footprint: Footprint) -> tuple[int, int]:
        region = footprint.region
        if footprint.moving and np.prod(self.counts) <= MAX_INSTANCES:
            return self.moving_range(footprint.operand)
        if footprint.size == 0:
            return 0, 0
        if footprint.moving:
            return reach(region, box_of(self.command, region), self.counts)
        return repeated(region, footprint.low, footprint.high, self.counts)

    def moving_range(self, operand: str) -> tuple[int, int]:
        spans: list[tuple[int, int]] = []
        for counters in np.ndindex(*self.counts):
            for f in footprints(self.command, counters):
                if f.operand == operand and f.size:
                    spans.append((f.region.start(counters) + f.low, f.region.start(counters) + f.high))
        return (min(lo for lo, _ in spans), max(hi for _, hi in spans)) if spans else (0, 0)

    def kind(self) -> Iterator[Problem]:
        wanted = {Dma: "dma", Mm: "array", Vec: "vector"}[type(self.command)]
        if self.engine.kind != wanted:
            yield "engine", f"{self.engine.name} is of kind {self.engine.kind}, the command needs {wanted}"
            return
        match self.command:
            case Dma():
                yield from self.dma(self.command)
            case Mm():
                yield from self.mm(self.command)
            case Vec():
                yield from self.vec(self.command)

    def dma(self, command: Dma) -> Iterator[Problem]:
        path = (command.src.memory, command.dst.memory)
        if path not in self.engine.paths:
            yield "path", f"{self.engine.name} does not copy {path[0]} -> {path[1]}"
        if not injective(command.dst.strides, command.extents):
            yield "overlap", f"dst strides {command.dst.strides} over {command.extents} meet in one element"
        yield from self.alias("src", command.dst, command.src, False)

    def mm(self, command: Mm) -> Iterator[Problem]:
        engine = self.engine
        for region, name, allowed in (
            (command.a, "a", engine.reads[:1]),
            (command.b, "b", engine.reads[1:2] or engine.reads[:1]),
            (command.c, "c", engine.writes),
        ):
            if region.memory not in allowed:
                yield "path", f"{engine.name} has {name} in {', '.join(allowed)}, not in {region.memory}"
        for region in (command.a, command.b):
            if (region.dtype, command.c.dtype) not in engine.dtypes:
                yield "dtype", f"{engine.name} does not accumulate {region.dtype} in {command.c.dtype}"
        if command.extent("k") > engine.rows or command.extent("n") > engine.cols:
            size = f"k={command.extent('k')} x n={command.extent('n')}"
            yield "size", f"a pass of {size} on an array of {engine.rows} x {engine.cols}"
        yield from self.alias("a", command.c, command.a, False)
        yield from self.alias("b", command.c, command.b, False)

    def vec(self, command: Vec) -> Iterator[Problem]:
        apart = injective(command.dst.strides, command.trips)  # each point has an element of its own
        for register, load in command.loads:
            if load.region.memory not in self.engine.reads:
                yield "path", f"{self.engine.name} does not read {load.region.memory}"
            yield from self.alias(f"%{register}", command.dst, load.region, apart and not load.gather)
        if command.dst.memory not in self.engine.writes:
            yield "path", f"{self.engine.name} does not write {command.dst.memory}"
        if command.combine is None and not apart:
            yield "overlap", f"dst strides {command.dst.strides} over {command.trips} meet in one element"

    def alias(self, operand: str, dst: Region, src: Region, same_allowed: bool) -> Iterator[Problem]:
        if dst.key != src.key:
            return
        mapping = (dst.offset, dst.steps, dst.unit), (src.offset, src.steps, src.unit)
        moving = [t > 1 for t in box_of(self.command, dst)]
        strides = [tuple(s for s, m in zip(r.strides, moving, strict=True) if m) for r in (dst, src)]
        if not any(moving):  # of one element, what is read comes before what is written
            return
        if same_allowed and mapping[0] == mapping[1] and strides[0] == strides[1]:
            return
        meets = self.meets(operand, same_allowed)
        if meets:
            yield "alias", f"{dst.key} is both read and written, and not element by element"
        elif meets is None:
            yield "untried", f"{dst.key} is both read and written, in more than {MAX_WAYS} ways: two are tried"

    def meets(self, operand: str, same_allowed: bool) -> bool | None:
        """Whether in some repetition an operand shares a byte with the result, of another point if `same_allowed`;
        None where these lie to each other in more ways than are tried, and share none in the first and the last one.
        """
        pair = self.with_result(operand, (0,) * len(self.counts))
        (low, high), (first, last) = (self.range(f) for f in pair)
        if high <= first or last <= low:
            return False
        steps = [(*f.region.steps, *(0 for _ in self.counts)) for f in pair]
        moving = any(f.moving for f in pair)
        ways = [n if moving or a != b else 1 for a, b, n in zip(*steps, self.counts, strict=False)]
        few = math.prod(ways) <= MAX_WAYS
        tried = np.ndindex(*ways) if few else ((0,) * len(ways), tuple(n - 1 for n in ways))
        box = box_of(self.command, pair[0].region)
        pairs = ((*self.with_result(operand, counters), counters) for counters in tried)
        found = any(_share(*p) and not (same_allowed and _within_points(*p, box)) for p in pairs)
        return True if found else False if few else None

    def with_result(self, operand: str, counters: tuple[int, ...]) -> tuple[Footprint, Footprint]:
        """What a command writes, and what it reads of an operand."""
        found = {f.operand if f.kind == "read" else "": f for f in footprints(self.command, counters)}
        return found[""], found[operand]


def _share(a: Footprint, b: Footprint, counters: tuple[int, ...]) -> bool:
    """Whether two footprints under some counters have a byte in common."""
    apart = b.region.start(counters) - a.region.start(counters)
    if a.high <= apart + b.low or apart + b.high <= a.low:
        return False
    return bool(np.intersect1d(_places(a), _places(b) + apart).size)


def _within_points(a: Footprint, b: Footprint, counters: tuple[int, ...], trips: Sequence[int]) -> bool:
    """Whether every byte that a command both writes and reads is of one and the same point; guards not counted."""
    written, read = (
        grid(f.region.start(counters), [s * f.region.unit for s in f.region.strides], trips) for f in (a, b)
    )
    written, read = (np.broadcast_to(places, tuple(trips)).ravel() for places in (written, read))
    order = np.argsort(written)
    first = np.searchsorted(written[order], read - a.region.unit, "right")
    end = np.searchsorted(written[order], read + b.region.unit, "left")
    return bool(np.all((end == first) | (end == first + 1) & (first == np.argsort(order))))


def _places(f: Footprint) -> Ints:
    """Every offset of a footprint, from its region's start."""
    return grid(f.low, [s for _, s in f.dims], [n for n, _ in f.dims]).ravel() if f.points is None else f.points


def _token_findings(stream: CommandStream, flats: Sequence[Flat], firing: Firing) -> Iterator[Finding]:
    if firing.stuck:
        yield from _deadlock(flats, firing.stuck)
        return
    for semaphore in stream.semaphores:
        left = firing.final[semaphore.name]
        if left != semaphore.initial:
            yield Finding("unbalanced", f"{semaphore.name} starts with {semaphore.initial} tokens and ends with {left}")
    for name, engine, instance, present in firing.overflow:
        label = flats[engine].label(instance)
        yield Finding(
            "overflow",
            f"{name} may hold {present} tokens, its limit is {stream.semaphore[name].limit}",
            (label,),
            "warning",
        )


def _deadlock(flats: Sequence[Flat], stuck: Sequence[Stuck]) -> Iterator[Finding]:
    waits = {s.engine: s for s in stuck if s.producers}
    for s in stuck:
        if not s.producers:
            text = f"waits for {s.need} of {s.semaphore}, has {s.have}, and nothing posts it any more"
            yield Finding("starved", text, (flats[s.engine].label(s.instance),))
    chain: list[int] = []
    engine = next(iter(waits), None)
    while engine is not None and engine in waits and engine not in chain:
        chain.append(engine)
        engine = waits[engine].producers[0][0]
    if engine is None or engine not in chain:
        return
    cycle = chain[chain.index(engine) :]
    steps = [
        f"{flats[e].label(waits[e].instance)} waits for {waits[e].semaphore}, posted by {_poster(flats, waits[e])}"
        for e in cycle
    ]
    yield Finding("deadlock", "; ".join(steps), tuple(flats[e].label(waits[e].instance) for e in cycle))


def _poster(flats: Sequence[Flat], stuck: Stuck) -> str:
    engine, instance = stuck.producers[0]
    return flats[engine].label(instance)
