"""Hazards and reads of nothing: replay the accesses of a stream over shadow memories, exact on bytes.

For each address space and engine an array holds, per byte (or the coarsest unit all accesses are made of), the last
instance that wrote it and the last that read it. Commands of one engine are in order, so a new access is safe against
an engine's earlier ones if the last of them is known to be complete (the clocks of `poly.accel.tokens`). The replay
follows one firing order: every earlier conflicting access that is not before it in all orders is a hazard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from poly.accel.findings import Finding
from poly.accel.footprint import Flat, Footprint, coarser, fill, footprints, view
from poly.accel.isa import Command, CommandStream, Mm, Vec
from poly.accel.tokens import Firing
from poly.machine import Machine

Shadow = npt.NDArray[np.int32]


@dataclass
class _Space:
    """Shadow of one address space, in units of `unit` bytes (elements in DRAM). 0 means: not yet accessed."""

    key: str
    unit: int
    size: int
    written: npt.NDArray[np.bool_] | None
    writes: dict[int, Shadow] = field(default_factory=dict)
    reads: dict[int, Shadow] = field(default_factory=dict)
    last_write: dict[int, int] = field(default_factory=dict)
    last_read: dict[int, int] = field(default_factory=dict)

    def track(self, engine: int, kind: str) -> None:
        table, last = (self.writes, self.last_write) if kind == "write" else (self.reads, self.last_read)
        if engine not in table:
            table[engine], last[engine] = np.zeros(self.size, np.int32), 0

    def rivals(self, engine: int, write: bool, known: Sequence[int]) -> Iterator[tuple[int, Shadow, str]]:
        """Shadows of other engines that may hold a conflicting access not known to be complete."""
        for other, last in self.last_write.items():
            if other != engine and last > known[other]:
                yield other, self.writes[other], "waw" if write else "raw"
        if write:
            for other, last in self.last_read.items():
                if other != engine and last > known[other]:
                    yield other, self.reads[other], "war"


@dataclass(frozen=True)
class _Access:
    """One operand of one static command: its footprint, in units of its space."""

    footprint: Footprint
    space: _Space


def memory_findings(
    stream: CommandStream, machine: Machine, flats: Sequence[Flat], firing: Firing, limit: int
) -> Iterator[Finding]:
    """Hazards, uninitialised reads and unwritten outputs; one finding per pair of commands and kind."""
    replay = _Replay(stream, machine, flats)
    for engine, instance in firing.order:
        replay.step(engine, instance, firing.clocks[engine][instance])
        if len(replay.found) >= limit:
            break
    yield from replay.found.values()
    if firing.stuck or len(replay.found) >= limit:
        return
    for symbol in stream.symbols:
        space = replay.spaces.get(f"@{symbol.name}")
        if symbol.role == "output" and symbol.elements:
            missing = symbol.elements if space is None or space.written is None else int((~space.written).sum())
            if missing:
                first = 0 if space is None or space.written is None else int(np.argmin(space.written))
                yield Finding(
                    "output",
                    f"{missing} of {symbol.elements} elements of {symbol.name} are never written, the first is {first}",
                )


class Shadows:
    """Who touched what last, for every address space that a set of queues writes."""

    def __init__(self, stream: CommandStream, machine: Machine, flats: Sequence[Flat]) -> None:
        self.flats = flats
        per_command = [[footprints(c) for c in flat.commands] for flat in flats]
        everything = [(e, f) for e, rows in enumerate(per_command) for prints in rows for f in prints]
        self.spaces = _spaces(stream, machine, everything)
        self.access = [[self.plans(prints) for prints in rows] for rows in per_command]
        self.moving = [[any(f.moving for f in prints) for prints in rows] for rows in per_command]

    def plans(self, prints: Sequence[Footprint]) -> tuple[_Access, ...]:
        found = [(f, self.spaces[f.region.key]) for f in prints if f.region.key in self.spaces]
        return tuple(_Access(coarser(f, space.unit), space) for f, space in found)

    def accesses(self, engine: int, instance: int) -> list[tuple[_Access, int]]:
        """The accesses of an instance, with the starts of their regions, in units of the space."""
        position, counters = self.flats[engine].instances[instance]
        plans = self.access[engine][position]
        if self.moving[engine][position]:
            plans = self.plans(footprints(self.flats[engine].commands[position], counters))
        return [(a, a.footprint.region.start(counters) // a.space.unit) for a in plans if a.footprint.size]

    def latest(self, engine: int, instance: int, known: Sequence[int]) -> dict[int, int]:
        """Per other engine: one more than its last instance in conflict with this one; at most `known` is left out."""
        found: dict[int, int] = {}
        for access, start in self.accesses(engine, instance):
            for other, shadow, _ in access.space.rivals(engine, access.footprint.kind == "write", known):
                found[other] = max(found.get(other, 0), int(view(shadow, access.footprint, start).max()))
        return found

    def mark(self, engine: int, instance: int) -> None:
        """Record the accesses of an instance."""
        for access, start in self.accesses(engine, instance):
            space = access.space
            if access.footprint.kind == "write":
                fill(space.writes[engine], access.footprint, start, instance + 1)
                space.last_write[engine] = instance + 1
                if space.written is not None:
                    fill(space.written, access.footprint, start, 1)
            else:
                fill(space.reads[engine], access.footprint, start, instance + 1)
                space.last_read[engine] = instance + 1


class _Replay(Shadows):
    """Shadows with a judge: every access is compared with what is known to be complete."""

    def __init__(self, stream: CommandStream, machine: Machine, flats: Sequence[Flat]) -> None:
        super().__init__(stream, machine, flats)
        self.found: dict[tuple[object, ...], Finding] = {}

    def step(self, engine: int, instance: int, clock: Sequence[int]) -> None:
        for access, start in self.accesses(engine, instance):
            write = access.footprint.kind == "write"
            for other, shadow, code in access.space.rivals(engine, write, clock):
                self.compare(access, start, shadow, code, engine, instance, other, clock[other])
            if not write and access.space.written is not None:
                seen = view(access.space.written, access.footprint, start)
                if not seen.all():
                    self.uninitialised(access, start, seen, engine, instance)
        self.mark(engine, instance)

    def compare(
        self, access: _Access, start: int, shadow: Shadow, code: str, engine: int, instance: int, other: int, known: int
    ) -> None:
        seen = view(shadow, access.footprint, start)
        latest = int(seen.max())
        if latest <= known:
            return
        mine, theirs = self.flats[engine], self.flats[other]
        key = (code, engine, mine.instances[instance][0], other, theirs.instances[latest - 1][0], access.space.key)
        if key not in self.found:
            does, did = ("reads", "writes") if code == "raw" else ("writes", "reads" if code == "war" else "writes")
            at, who = self.address(access, start, seen == latest), theirs.label(latest - 1)
            text = f"{access.footprint.operand} {does} {at}, in no fixed order with {who}, which {did} it"
            self.found[key] = Finding(code, text, (theirs.label(latest - 1), mine.label(instance)))

    def uninitialised(
        self, access: _Access, start: int, seen: npt.NDArray[np.generic], engine: int, instance: int
    ) -> None:
        flat = self.flats[engine]
        command = flat.commands[flat.instances[instance][0]]
        own = access.footprint.operand in ("c", "dst")
        code = "accumulate" if own and _accumulates(command) else "uninitialised"
        key = (code, engine, flat.instances[instance][0], access.space.key, access.footprint.operand)
        if key not in self.found:
            at = self.address(access, start, np.logical_not(seen))
            self.found[key] = Finding(
                code, f"{access.footprint.operand} reads {at}, which nothing wrote", (flat.label(instance),)
            )

    def address(self, access: _Access, start: int, hit: npt.NDArray[np.bool_]) -> str:
        """The first unit of a view where `hit` holds, as text."""
        touched, key, first = access.footprint, access.space.key, int(np.argmax(hit))
        if touched.points is not None:
            place = start + int(touched.points[first])
        else:
            index = np.unravel_index(first, [n for n, _ in touched.dims])
            place = start + touched.low + sum(int(i) * s for i, (_, s) in zip(index, touched.dims, strict=True))
        byte = place * access.space.unit
        return f"element {place} of {key[1:]}" if key.startswith("@") else f"byte {byte:#x} of {key}"


def _accumulates(command: Command) -> bool:
    return isinstance(command, Mm | Vec) and command.accumulate


def _spaces(stream: CommandStream, machine: Machine, everything: Sequence[tuple[int, Footprint]]) -> dict[str, _Space]:
    """Shadows of the spaces that are written at all; DRAM that is only read cannot conflict."""
    written = {f.region.key for _, f in everything if f.kind == "write"}
    unset = {f"@{s.name}" for s in stream.symbols if s.role in ("output", "temporary")}
    found: dict[str, _Space] = {}
    for engine, footprint in everything:
        region = footprint.region
        key = region.key
        if key not in written and region.symbol is not None and key not in unset:
            continue
        if key not in found:
            if region.symbol is not None:
                size, unit = stream.symbol[region.symbol].elements, 1
            else:
                unit = _unit([f for _, f in everything if f.region.key == key])
                size = -(-(machine.memory[region.memory].capacity or 0) // unit)
            start = None if region.symbol is not None and key not in unset else np.zeros(size, np.bool_)
            found[key] = _Space(key, unit, size, start)
        found[key].track(engine, footprint.kind)
    return found


def _unit(prints: Sequence[Footprint]) -> int:
    """The largest unit that divides every start, step and stride in a memory."""
    unit = 0
    for f in prints:
        unit = math.gcd(unit, f.region.offset, f.region.unit, *f.region.steps)
    return unit
