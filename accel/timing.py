"""Cycles of a command stream: an event simulation at the granularity of commands, in integers.

Costs, in cycles (a machine's numbers in capitals):
- DMA over DRAM: SETUP to issue; then it needs the bus for `beats * LINE / BYTES_PER_CYCLE` cycles, a short row costing
  a whole line; complete LATENCY after its last beat, while the next command already issues. Engines share the bus in
  turns of `QUANTUM` bytes. On chip: SETUP, then bytes / the engine's BYTES_PER_CYCLE.
- Array: a pass preloads b in ROWS cycles and streams its m rows; with the feature `shadow` the next weights load during
  the present pass, across commands too once their waits are taken. Passes over which b stands still load it once.
  Complete FILL (the skew of the wavefront) after the last row has entered.
- Vector: SETUP, then ceil(points / LANES) times the larger of the summed op costs and the number of memory operands;
  complete FILL later.

With `overlap=False` every pass preloads, streams and drains alone: P * (m + 2 * rows + cols - 2), SCALE-Sim's closed
form for a weight-stationary array. Not validated against RTL.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from poly.accel.footprint import Flat, flatten
from poly.accel.isa import Command, CommandStream, Dma, Load, Mm, Op, Region, StreamError, Vec
from poly.accel.tokens import take
from poly.dtypes import size_bytes
from poly.expr import COMBINERS
from poly.machine import Engine, Machine

QUANTUM: Final = 512


@dataclass(frozen=True)
class EngineReport:
    """`busy + sum(stalls) == cycles` of the report. Causes: `semaphore NAME`, `bus`, `setup`, `preload`, `drain`,
    `done`.
    """

    name: str
    kind: str
    commands: int
    busy: int
    stalls: Mapping[str, int]


@dataclass(frozen=True)
class Span:
    """One command on the time axis: it took its waits at `start`, worked until `end`, posted at `complete`."""

    engine: str
    label: str
    start: int
    end: int
    complete: int


@dataclass(frozen=True)
class Report:
    """What `simulate` found. `dram_read`, `dram_written`: bytes by symbol; `bus_bytes`: with what short rows waste."""

    cycles: int
    engines: tuple[EngineReport, ...]
    dram_read: Mapping[str, int]
    dram_written: Mapping[str, int]
    bus_bytes: int
    macs: int
    peak_macs: int
    trace: tuple[Span, ...] = ()

    @property
    def utilisation(self) -> float:
        """Share of the array's multiply-adds that were used."""
        return self.macs / (self.cycles * self.peak_macs) if self.cycles and self.peak_macs else 0.0

    @property
    def dram_bytes(self) -> int:
        return sum(self.dram_read.values()) + sum(self.dram_written.values())

    def engine(self, name: str) -> EngineReport:
        return next(e for e in self.engines if e.name == name)

    def __str__(self) -> str:
        moved = f"{sum(self.dram_read.values())} B read, {sum(self.dram_written.values())} B written"
        lines = [f"{self.cycles} cycles, array {self.utilisation:.1%}, {moved}"]
        for e in self.engines:
            share = 100 * e.busy / max(1, self.cycles)
            causes = sorted(((n, c) for c, n in e.stalls.items() if n), reverse=True)
            lines.append(
                f"  {e.name:6} {e.commands:7} commands, busy {e.busy} ({share:.1f} %), "
                + (", ".join(f"{c} {n}" for n, c in causes) or "no stalls")
            )
        return "\n".join(lines)


class _Post(NamedTuple):
    """Tokens come to a semaphore."""

    semaphore: str
    tokens: int


class _Open(NamedTuple):
    """An engine may look at its next command."""

    engine: int


class _Want(NamedTuple):
    """An engine wants the bus."""

    engine: int


class _Leave(NamedTuple):
    """An engine's turn on the bus is over."""

    engine: int


_Event = _Post | _Open | _Want | _Leave


@dataclass(frozen=True)
class _Cost:
    """Of one static command. DMA: bus cycles (`bus`) or plain `work`. Array: `passes` groups of `work` rows. Vector:
    `work`.
    """

    work: int
    bus: bool = False
    passes: int = 1
    macs: int = 0
    read: tuple[str, int] | None = None
    written: tuple[str, int] | None = None
    bus_bytes: int = 0


@dataclass
class _Engine:
    """An engine in time. `clock`: its time line is accounted for up to here; `open`: it may look at its next
    command.
    """

    spec: Engine
    flat: Flat
    costs: Sequence[_Cost]
    at: int = 0
    clock: int = 0
    open: bool = True
    reason: str = ""
    stream_free: int = 0
    complete: int = 0
    remaining: int = 0
    started: int = 0
    busy: int = 0
    stalls: dict[str, int] = field(default_factory=dict)

    def account(self, until: int, cause: str) -> None:
        """Give the cycles from the clock up to `until` to a cause ("" is work)."""
        if until <= self.clock:
            return
        if cause:
            self.stalls[cause] = self.stalls.get(cause, 0) + until - self.clock
        else:
            self.busy += until - self.clock
        self.clock = until

    @property
    def command(self) -> Command:
        return self.flat.commands[self.flat.instances[self.at][0]]


def simulate(stream: CommandStream, machine: Machine, *, overlap: bool = True, trace: bool = False) -> Report:
    """Cycles and where they went. Raises `StreamError` on a deadlock or for an engine the machine has not."""
    return _Simulation(stream, machine, overlap, trace).run()


class _Simulation:
    def __init__(self, stream: CommandStream, machine: Machine, overlap: bool, trace: bool) -> None:
        self.stream, self.machine, self.overlap, self.tracing = stream, machine, overlap, trace
        self.tokens = {s.name: s.initial for s in stream.semaphores}
        self.engines: list[_Engine] = []
        for queue in stream.queues:
            if queue.engine not in machine.engine:
                raise StreamError(f"{machine.name} has no engine {queue.engine!r}", where=f"stream {stream.name}")
            spec, flat = machine.engine[queue.engine], flatten(queue)
            self.engines.append(_Engine(spec, flat, [_cost(c, spec, machine, overlap) for c in flat.commands]))
        self.events: list[tuple[int, int, _Event]] = []
        self.sequence = 0
        self.bus_owner: int | None = None
        self.turn = 0
        self.wanting: list[int] = []
        self.now = 0
        self.end = 0
        self.read: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.bus_bytes = 0
        self.macs = 0
        self.spans: list[Span] = []
        self.slot = max(1, QUANTUM // max(1, machine.dram.bytes_per_cycle))
        self.latency = machine.dram.latency

    def run(self) -> Report:
        self.start_ready()
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                self.handle(heapq.heappop(self.events)[2])
            self.start_ready()
            self.grant()
        stuck = [e for e in self.engines if e.at < len(e.flat.instances)]
        if stuck:
            names = ", ".join(f"{e.flat.label(e.at)} on {e.reason}" for e in stuck)
            raise StreamError(f"deadlock: {names}", where=f"stream {self.stream.name}", hint="verify() shows the cycle")
        for engine in self.engines:
            engine.account(self.end, "done")
        reports = tuple(
            EngineReport(e.spec.name, e.spec.kind, len(e.flat.instances), e.busy, dict(sorted(e.stalls.items())))
            for e in self.engines
        )
        peak = sum(e.rows * e.cols for e in self.machine.engines_of("array"))
        return Report(self.end, reports, self.read, self.written, self.bus_bytes, self.macs, peak, tuple(self.spans))

    def push(self, time: int, event: _Event) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, event))

    def handle(self, event: _Event) -> None:
        match event:
            case _Post(semaphore, count):
                self.tokens[semaphore] = self.tokens.get(semaphore, 0) + count
            case _Open(engine):
                self.engines[engine].open = True
            case _Want(engine):
                self.wanting.append(engine)
            case _Leave(engine):
                self.release(engine)

    def start_ready(self) -> None:
        for number, engine in enumerate(self.engines):
            if not engine.open or engine.at >= len(engine.flat.instances):
                continue
            command = engine.command
            engine.account(self.now, engine.reason)
            if (missing := take(self.tokens, command)) is not None:
                engine.reason = f"semaphore {missing}"
                continue
            engine.reason, engine.open, engine.started = "", False, self.now
            self.begin(number, engine, engine.costs[engine.flat.instances[engine.at][0]])

    def begin(self, number: int, engine: _Engine, cost: _Cost) -> None:
        now, spec = self.now, engine.spec
        self.macs += cost.macs
        self.bus_bytes += cost.bus_bytes
        for table, moved in ((self.read, cost.read), (self.written, cost.written)):
            if moved is not None:
                table[moved[0]] = table.get(moved[0], 0) + moved[1]
        match spec.kind:
            case "array":
                self.begin_array(number, engine, cost)
            case "dma" if cost.bus:
                engine.account(now + spec.setup, "setup")
                engine.remaining = cost.work
                self.push(now + spec.setup, _Want(number))
            case _:
                engine.account(now + spec.setup, "setup")
                end = now + spec.setup + cost.work
                engine.account(end, "")
                self.finish(number, engine, end, end + spec.fill, end)

    def begin_array(self, number: int, engine: _Engine, cost: _Cost) -> None:
        now, spec = self.now, engine.spec
        if not self.overlap:
            end = now + cost.passes * (spec.rows + cost.work + spec.fill)
            engine.account(end, "")
            return self.finish(number, engine, end, end, end)
        first = max(now + spec.rows, engine.stream_free)
        last = first + (cost.passes - 1) * max(cost.work, spec.rows)
        engine.account(first, "preload")
        engine.stream_free = last + cost.work
        engine.account(engine.stream_free, "")
        follow = last if "shadow" in spec.features else engine.stream_free
        return self.finish(number, engine, engine.stream_free, engine.stream_free + spec.fill, follow)

    def finish(self, number: int, engine: _Engine, end: int, complete: int, follow: int) -> None:
        """The command's work ends at `end`; it posts at `complete`; the next may take its waits at `follow`."""
        engine.complete = max(engine.complete, complete)
        for name, count in engine.command.post:
            self.push(engine.complete, _Post(name, count))
        if self.tracing:
            label = engine.flat.label(engine.at)
            self.spans.append(Span(engine.spec.name, label, engine.started, end, engine.complete))
        engine.at += 1
        engine.reason = "drain"
        self.end = max(self.end, engine.complete)
        self.push(follow if self.overlap else engine.complete, _Open(number))

    def grant(self) -> None:
        """Give the free bus to the engine whose turn it is, for at most one slot."""
        if self.bus_owner is not None or not self.wanting:
            return
        count = len(self.engines)
        number = min(self.wanting, key=lambda n: (n - self.turn) % count)
        self.turn = (number + 1) % count
        self.wanting.remove(number)
        self.bus_owner = number
        engine = self.engines[number]
        slot = min(self.slot, engine.remaining)
        engine.account(self.now, "bus")
        engine.account(self.now + slot, "")
        engine.remaining -= slot
        self.push(self.now + slot, _Leave(number))

    def release(self, number: int) -> None:
        self.bus_owner = None
        engine = self.engines[number]
        if engine.remaining:
            self.wanting.append(number)
        else:
            self.finish(number, engine, self.now, self.now + self.latency, self.now)


def _cost(command: Command, engine: Engine, machine: Machine, overlap: bool) -> _Cost:
    """What a command costs; `group_plan._work` foretells it for a statement whose code is not made yet."""
    match command:
        case Dma():
            return _dma_cost(command, engine, machine)
        case Mm(_, _, b, trips, roles):
            outer = [(t, s) for t, s, r in zip(trips, b.strides, roles, strict=True) if r == "o" and t > 1]
            same = 1
            while overlap and outer and not outer[-1][1]:
                same *= outer.pop()[0]
            passes = math.prod(t for t, _ in outer)
            rows = command.extent("m")
            return _Cost(rows * same, passes=passes, macs=math.prod(trips))
        case Vec(_, code, trips):
            operands = sum(isinstance(m, Load) for m in code)
            ops = sum(engine.cost.get(m.name, 1) for m in code if isinstance(m, Op))
            vectors = -(-math.prod(trips) // max(1, engine.lanes))
            combine = engine.cost.get(COMBINERS[command.combine].operator, 1) if command.combine else 0
            return _Cost(vectors * max(1, ops + combine, operands + command.accumulate))


def _dma_cost(command: Dma, engine: Engine, machine: Machine) -> _Cost:
    chip_bytes = max(
        math.prod(command.counts) * size_bytes(command.src.dtype),
        math.prod(command.extents) * size_bytes(command.dst.dtype),
    )
    plain = -(-chip_bytes // engine.bytes_per_cycle) if engine.bytes_per_cycle else 0
    sides = [(command.src, command.counts), (command.dst, command.extents)]
    bus, wide = 0, 0
    moved: list[tuple[str, int] | None] = [None, None]
    for side, (region, extents) in enumerate(sides):
        memory = machine.memory.get(region.memory)
        if memory is None or memory.kind != "dram":
            continue
        payload, padded = _rows(region, extents, max(1, memory.line))
        bus += -(-padded // max(1, memory.bytes_per_cycle))
        wide += padded
        moved[side] = (region.symbol or region.memory, payload)
    return _Cost(max(plain, bus), bool(wide), read=moved[0], written=moved[1], bus_bytes=wide)


def _rows(region: Region, extents: Sequence[int], line: int) -> tuple[int, int]:
    """Bytes moved, and with every contiguous row rounded up to whole lines."""
    dims = sorted((abs(s), n) for s, n in zip(region.strides, extents, strict=True) if s and n > 1)
    run, rows = 1, 1
    for stride, count in dims:
        if stride == run and rows == 1:
            run *= count
        else:
            rows *= count
    row = run * size_bytes(region.dtype)
    return rows * row, rows * -(-row // line) * line
