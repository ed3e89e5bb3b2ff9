"""Command streams with a token dropped, or moved: the verifier refuses exactly those that an enumeration finds wrong.

The oracle is plain Python. It unrolls the queues, lists the bytes of every command, and gives each instance the set of
those that must be over before it: the ones before it in its queue, and for a wait the command that posts the token it
takes. A stream is wrong where an instance never starts, a semaphore does not end as it began, or two instances of
different engines touch a byte, one of them writing, with neither before the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from poly.accel.compiled import compile_stream
from poly.accel.footprint import commands_of
from poly.accel.isa import Command, CommandStream, Dma, Item, Linear, Mm, Region, Rep, Vec
from poly.accel.profile import profile
from poly.accel.verify import verify
from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from tests.mutation_programs import NAMES, program
from tests.mutations import SEED
from tests.strategies import inputs_for

MACHINE = profile("s16")
NUMBER = 150
Bytes = Mapping[str, int]


@dataclass(frozen=True)
class Instance:
    """`reads`, `writes`: for each memory or symbol the bytes touched, as the bits of an integer."""

    engine: str
    position: int
    command: Command
    reads: Bytes
    writes: Bytes


# ---- bytes


def index_grid(trips: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.indices(tuple(trips)).reshape(len(trips), -1) if trips else np.zeros((0, 1), np.int64)


def region_bits(
    region: Region, trips: Sequence[int], counters: tuple[int, ...], keep: npt.NDArray[np.bool_] | None = None
) -> int:
    points = np.asarray(region.strides, np.int64)[: len(trips)] @ index_grid(trips)
    size = size_bytes(region.dtype)
    scale = 1 if region.symbol is None else size
    starts = region.start(counters) * scale + points * size
    bits = 0
    for start in set((starts if keep is None else starts[keep]).tolist()):
        bits |= ((1 << size) - 1) << start
    return bits


def holds(conditions: Sequence[Linear], trips: Sequence[int], counters: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    grid = index_grid(trips)
    keep = np.ones(grid.shape[1], bool)
    for c in conditions:
        value = c.start(counters) + np.asarray(c.coefficients, np.int64) @ grid
        keep &= np.asarray(value) >= 0
    return keep


def touched(command: Command, counters: tuple[int, ...]) -> tuple[dict[str, int], dict[str, int]]:
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}

    def add(where: dict[str, int], region: Region, bits: int) -> None:
        where[region.key] = where.get(region.key, 0) | bits

    match command:
        case Dma(dst, src, counts):
            add(writes, dst, region_bits(dst, command.extents, counters))
            add(reads, src, region_bits(src, counts, counters))
        case Mm(c, a, b, trips):
            for region in (a, b):
                add(reads, region, region_bits(region, trips, counters))
            add(writes, c, region_bits(c, trips, counters))
            if command.accumulate:
                add(reads, c, region_bits(c, trips, counters))
        case Vec(dst, _, trips):
            active = holds(command.where, trips, counters)
            for _, load in command.loads:
                keep = active & holds(load.guard, trips, counters)
                for shift in gathered(load.gather):
                    moved = replace(load.region, offset=load.region.offset + shift * load.region.unit)
                    add(reads, load.region, region_bits(moved, trips, counters, keep))
            add(writes, dst, region_bits(dst, trips, counters, active))
            if command.accumulate:
                add(reads, dst, region_bits(dst, trips, counters, active))
    return reads, writes


def gathered(parts: Sequence[object]) -> list[int]:
    """How far the start of a load may move by its indirect subscripts, in elements."""
    shifts = [0]
    for part in parts:
        shifts = [s + part.stride * v for s in shifts for v in range(part.extent)]  # type: ignore[attr-defined]
    return shifts


def unrolled(items: Sequence[Item], counters: tuple[int, ...] = ()) -> Iterator[tuple[Command, tuple[int, ...]]]:
    for item in items:
        if isinstance(item, Rep):
            for k in range(item.count):
                yield from unrolled(item.body, (*counters, k))
        else:
            yield item, counters


def instances(stream: CommandStream) -> list[Instance]:
    return [
        Instance(queue.engine, k, command, *touched(command, counters))
        for queue in stream.queues
        for k, (command, counters) in enumerate(unrolled(queue.items))
    ]


# ---- the verdict


@dataclass(frozen=True)
class Verdict:
    """`stuck`: instances that never start; `uneven`: semaphores; `hazards`: unordered pairs that conflict."""

    stuck: bool
    uneven: bool
    hazards: frozenset[frozenset[tuple[str, int]]]

    @property
    def wrong(self) -> bool:
        return self.stuck or self.uneven or bool(self.hazards)


def judge(stream: CommandStream, everything: Sequence[Instance]) -> Verdict:
    """The stream's verdict; `everything` are its instances, whose bytes a changed token does not change."""
    numbers = {(i.engine, i.position): n for n, i in enumerate(everything)}
    initial = {s.name: s.initial for s in stream.semaphores}
    commands = [c for queue in stream.queues for c, _ in unrolled(queue.items)]
    posters: dict[str, list[int]] = {}
    engines: dict[str, set[str]] = {}
    for n, command in enumerate(commands):
        for name, count in command.post:
            posters.setdefault(name, []).extend([n] * count)
            engines.setdefault(name, set()).add(everything[n].engine)
    assert all(len(e) == 1 for e in engines.values()), "the oracle knows one producer a semaphore"
    taken: dict[str, int] = {}
    needs: list[list[int]] = []
    stuck = False
    for n, command in enumerate(commands):
        before = [numbers[everything[n].engine, everything[n].position - 1]] if everything[n].position else []
        for name, count in command.wait:
            taken[name] = taken.get(name, 0) + count
            needed = taken[name] - initial[name]
            if needed > len(posters.get(name, [])):
                stuck = True
            elif needed > 0:
                before.append(posters[name][needed - 1])
        needs.append(before)
    uneven = any(taken.get(s, 0) != len(posters.get(s, [])) for s in initial)
    past = _past(needs)
    if stuck or past is None:
        return Verdict(True, uneven, frozenset())
    return Verdict(False, uneven, frozenset(_hazards(everything, past)))


def _past(needs: Sequence[Sequence[int]]) -> list[int] | None:
    """For every instance those that are over before it starts, as bits; None where they wait in a circle."""
    past: list[int | None] = [None] * len(needs)
    left = set(range(len(needs)))
    while left:
        ready = [n for n in left if all(past[b] is not None for b in needs[n])]
        if not ready:
            return None
        for n in ready:
            bits = 0
            for b in needs[n]:
                before = past[b]
                assert before is not None
                bits |= before | 1 << b
            past[n] = bits
        left -= set(ready)
    return [bits or 0 for bits in past]


def _hazards(everything: Sequence[Instance], past: Sequence[int]) -> Iterator[frozenset[tuple[str, int]]]:
    def meet(x: Bytes, y: Bytes) -> bool:
        return any(bits & y.get(key, 0) for key, bits in x.items())

    for n, a in enumerate(everything):
        for m in range(n):
            b = everything[m]
            if a.engine == b.engine or past[n] >> m & 1 or past[m] >> n & 1:
                continue
            if meet(a.writes, b.writes) or meet(a.writes, b.reads) or meet(a.reads, b.writes):
                yield frozenset([(a.engine, a.position), (b.engine, b.position)])


# ---- mutants


def rewritten(stream: CommandStream, engine: str, changes: Mapping[int, Command]) -> CommandStream:
    """Static commands of one queue replaced, by their position in it."""
    position = 0

    def walk(items: Sequence[Item]) -> tuple[Item, ...]:
        nonlocal position
        found: list[Item] = []
        for item in items:
            if isinstance(item, Rep):
                found.append(replace(item, body=walk(item.body)))
            else:
                found.append(changes.get(position, item))
                position += 1
        return tuple(found)

    queues = []
    for queue in stream.queues:
        if queue.engine == engine:
            queue = replace(queue, items=walk(queue.items))
        queues.append(queue)
    return replace(stream, queues=tuple(queues))


def without(command: Command, which: str, name: str) -> Command:
    return replace(command, **{which: tuple(t for t in getattr(command, which) if t[0] != name)})


def given(command: Command, which: str, name: str) -> Command:
    tokens = dict(getattr(command, which))
    return replace(command, **{which: tuple(sorted((tokens | {name: tokens.get(name, 0) + 1}).items()))})


def mutants(stream: CommandStream) -> Iterator[tuple[str, CommandStream]]:
    """Each token dropped, each wait a command later, each post a command earlier, a semaphore with a token more."""
    for queue in stream.queues:
        commands = [c for c, _ in commands_of(queue.items)]
        flat = all(not isinstance(item, Rep) for item in queue.items)
        for k, command in enumerate(commands):
            for which in ("wait", "post"):
                for name, count in getattr(command, which):
                    label = f"{queue.engine}#{k} {which} {name}"
                    yield f"no {label}", rewritten(stream, queue.engine, {k: without(command, which, name)})
                    other = k + 1 if which == "wait" else k - 1
                    if flat and count == 1 and 0 <= other < len(commands):
                        moved = {k: without(command, which, name), other: given(commands[other], which, name)}
                        yield f"moved {label}", rewritten(stream, queue.engine, moved)
    for semaphore in stream.semaphores:
        more = tuple(replace(s, initial=s.initial + (s is semaphore)) for s in stream.semaphores)
        yield f"early {semaphore.name}", replace(stream, semaphores=more)


@cache
def compiled(name: str) -> tuple[CommandStream, tuple[Instance, ...]] | None:
    p = program(name)
    constants = {t.name: inputs_for(p)[t.name] for t in p.with_role("constant")}
    try:
        stream = compile_stream(p, MACHINE, constants).stream
    except UnsupportedError:
        return None
    return stream, tuple(instances(stream))


LABEL = re.compile(r"(\w+)#(\d+)")


def test_dropped_tokens() -> None:
    everything: list[tuple[str, str, CommandStream]] = []
    for name in NAMES:
        found = compiled(name)
        if found is not None:
            assert not judge(*found).wrong and verify(found[0], MACHINE) == [], name
            everything += [(name, *mutant) for mutant in mutants(found[0])]
    chosen = random.Random(SEED).sample(everything, min(NUMBER, len(everything)))
    wrong = right = hazards = 0
    for name, description, mutant in chosen:
        found = compiled(name)
        assert found is not None
        verdict = judge(mutant, found[1])
        errors = [f for f in verify(mutant, MACHINE) if f.severity == "error"]
        assert bool(errors) == verdict.wrong, f"{name}: {description}\n{errors[:2]}\n{verdict}"
        wrong, right = wrong + verdict.wrong, right + (not verdict.wrong)
        for finding in errors:
            if finding.code in ("raw", "war", "waw"):
                pair = frozenset((e, int(k)) for label in finding.commands for e, k in LABEL.findall(label)[:1])
                assert pair in verdict.hazards, f"{name}: {description}\n{finding}"
                hazards += 1
    print(f"{wrong} wrong, {right} right, {hazards} pairs shown, of {len(everything)} mutants")
    assert wrong >= 50 and hazards


@pytest.mark.parametrize("name", NAMES)
def test_compiled_streams_are_right(name: str) -> None:
    found = compiled(name)
    if found is None:
        pytest.skip("this machine has no stream for it")
    assert not judge(*found).wrong
