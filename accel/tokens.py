"""Semaphores without time: what can fire, who waits for whom, and what is known to be complete (vector clocks).

With one consumer a semaphore and queues in order, what fires does not depend on the order of firing (a Kahn network),
so one pass decides deadlock. A wait that takes the n-th token knows that its producer's n-th post, and all before it on
that engine, are complete. With several producers it knows only what the others together cannot have supplied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from poly.accel.footprint import Flat
from poly.accel.isa import Command, CommandStream

Clock = tuple[int, ...]


def take(tokens: dict[str, int], command: Command) -> str | None:
    """Take all tokens that a command waits for. Where a semaphore has too few: its name, and nothing is taken."""
    for name, count in command.wait:
        if tokens.get(name, 0) < count:
            return name
    for name, count in command.wait:
        tokens[name] -= count
    return None


@dataclass(frozen=True)
class Stuck:
    """An engine that cannot go on: at its `instance` it lacks `have < need` tokens, which `producers` might still
    post.
    """

    engine: int
    instance: int
    semaphore: str
    have: int
    need: int
    producers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Firing:
    """`order`: all (engine, instance) that fire. `clocks[e][i][f]`: instances of f complete before instance i of e
    starts.

    `final`: tokens left. `overflow`: (semaphore, engine, instance, tokens) where a post may exceed the limit.
    """

    order: tuple[tuple[int, int], ...]
    clocks: tuple[tuple[Clock, ...], ...]
    stuck: tuple[Stuck, ...]
    final: dict[str, int]
    overflow: tuple[tuple[str, int, int, int], ...]


@dataclass
class _State:
    """One semaphore: tokens present, tokens taken, and per producer the running totals and the instances that
    posted.
    """

    initial: int
    tokens: int
    taken: int = 0
    totals: dict[int, int] = field(default_factory=dict)
    sums: dict[int, list[int]] = field(default_factory=dict)
    posters: dict[int, list[int]] = field(default_factory=dict)
    taken_by: list[int] = field(default_factory=list)
    taken_sums: list[int] = field(default_factory=list)


def fire(stream: CommandStream, flats: Sequence[Flat]) -> Firing:
    """Fire every command as soon as it can. Unknown semaphores start at 0."""
    states = {s.name: _State(s.initial, s.initial) for s in stream.semaphores}
    for engine, flat in enumerate(flats):
        for position, _ in flat.instances:
            command = flat.commands[position]
            for name, _ in command.wait:
                states.setdefault(name, _State(0, 0))
            for name, count in command.post:
                totals = states.setdefault(name, _State(0, 0)).totals
                totals[engine] = totals.get(engine, 0) + count
    run = _Run(states, flats)
    moved = True
    while moved:
        moved = False
        for engine in range(len(flats)):
            moved |= run.advance(engine)
    return Firing(
        tuple(run.order),
        tuple(map(tuple, run.clocks)),
        tuple(s for e in range(len(flats)) for s in run.stuck(e)),
        {name: state.tokens for name, state in states.items()},
        tuple(_overflow(stream, flats, states, run.clocks)),
    )


class _Run:
    def __init__(self, states: dict[str, _State], flats: Sequence[Flat]) -> None:
        self.states, self.flats = states, flats
        self.heads = [0] * len(flats)
        self.now: list[list[int]] = [[0] * len(flats) for _ in flats]
        self.clocks: list[list[Clock]] = [[] for _ in flats]
        self.order: list[tuple[int, int]] = []
        self.shared: list[Clock] = [tuple(n) for n in self.now]

    def advance(self, engine: int) -> bool:
        """Fire the engine's commands until one must wait; whether any fired."""
        flat, first = self.flats[engine], self.heads[engine]
        states = self.states
        while self.heads[engine] < len(flat.instances):
            at = self.heads[engine]
            command = flat.commands[flat.instances[at][0]]
            if any(states[name].tokens < count for name, count in command.wait):
                break
            for name, count in command.wait:
                self.take(states[name], count, engine, at)
            if command.wait:
                self.shared[engine] = tuple(self.now[engine])
            self.clocks[engine].append(self.shared[engine])
            for name, count in command.post:
                state = states[name]
                state.tokens += count
                sums = state.sums.setdefault(engine, [])
                sums.append((sums[-1] if sums else 0) + count)
                state.posters.setdefault(engine, []).append(at)
            self.order.append((engine, at))
            self.heads[engine] += 1
        return self.heads[engine] > first

    def take(self, state: _State, count: int, engine: int, at: int) -> None:
        state.tokens -= count
        state.taken += count
        state.taken_by.append(at)
        state.taken_sums.append(state.taken)
        needed, everyone = state.taken - state.initial, sum(state.totals.values())
        mine = self.now[engine]
        for producer, total in state.totals.items():
            sure = needed - (everyone - total)
            if sure <= 0 or producer == engine:
                continue
            instance = state.posters[producer][bisect_left(state.sums[producer], sure)]
            if instance < mine[producer]:
                continue
            for other, known in enumerate(self.clocks[producer][instance]):
                mine[other] = max(mine[other], known)
            mine[producer] = instance + 1

    def stuck(self, engine: int) -> list[Stuck]:
        flat, at = self.flats[engine], self.heads[engine]
        if at >= len(flat.instances):
            return []
        command = flat.commands[flat.instances[at][0]]
        found: list[Stuck] = []
        for name, count in command.wait:
            if self.states[name].tokens < count:
                later = tuple((e, i) for e in range(len(self.flats)) if (i := self.next_post(e, name)) is not None)
                found.append(Stuck(engine, at, name, self.states[name].tokens, count, later))
        return found

    def next_post(self, engine: int, name: str) -> int | None:
        flat = self.flats[engine]
        for at in range(self.heads[engine], len(flat.instances)):
            if any(posted == name for posted, _ in flat.commands[flat.instances[at][0]].post):
                return at
        return None


def _overflow(
    stream: CommandStream, flats: Sequence[Flat], states: dict[str, _State], clocks: Sequence[Sequence[Clock]]
):
    """Per semaphore the first post that may exceed its limit: tokens posted less those surely taken by then."""
    engines = {flat.engine: e for e, flat in enumerate(flats)}
    for semaphore in stream.semaphores:
        state, consumer = states[semaphore.name], engines.get(semaphore.consumer)
        everyone = sum(state.totals.values())
        if semaphore.initial + everyone <= semaphore.limit:
            continue
        for producer, sums in state.sums.items():
            others = everyone - state.totals[producer]
            for total, at in zip(sums, state.posters[producer], strict=True):
                done = 0 if consumer is None else at if consumer == producer else clocks[producer][at][consumer]
                taken = bisect_right(state.taken_by, done - 1)
                present = semaphore.initial + others + total - (state.taken_sums[taken - 1] if taken else 0)
                if present > semaphore.limit:
                    yield semaphore.name, producer, at, present
                    break
