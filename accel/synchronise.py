"""Semaphores from exact dependences: commands in program order become queues that may run ahead of each other.

A command depends on the last earlier command of every other engine that touches a byte of it, one of the two writing.
Of the dependences between two engines only the Pareto-minimal ones are kept, and of those only what the waits already
taken do not imply; both ends then increase strictly, so the k-th post on a channel meets the k-th wait, and each
command has at most one post and one wait per channel. No chain of waits can close into a cycle, since all of them
follow program order. The reuse of a buffer is a dependence like any other: rotating addresses give double buffering,
nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from poly.accel.footprint import Flat
from poly.accel.hazards import Shadows
from poly.accel.isa import Command, CommandStream, Queue, Semaphore, Symbol
from poly.machine import Machine


def synchronise(
    name: str,
    machine: Machine,
    symbols: Sequence[Symbol],
    program: Sequence[tuple[str, Command]],
    constants: Mapping[str, np.ndarray] | None = None,
) -> CommandStream:
    """The stream that does what the (engine, command) pairs do one after another; their own waits and posts are
    replaced.

    Commands must be in bounds of the machine and of the symbols (`verify` the result). Semaphores are named `from_to`.
    """
    engines = [e.name for e in machine.engines if any(e.name == engine for engine, _ in program)]
    engines += sorted({engine for engine, _ in program} - set(engines))
    number = {engine: i for i, engine in enumerate(engines)}
    lists: list[list[Command]] = [[] for _ in engines]
    for engine, command in program:
        lists[number[engine]].append(command)
    flats = [
        Flat(engine, tuple(commands), ((),) * len(commands), tuple((i, ()) for i in range(len(commands))))
        for engine, commands in zip(engines, lists, strict=True)
    ]
    bare = CommandStream(name, machine.name, tuple(symbols), (), (), machine.hash, dict(constants or {}))
    edges = _edges(Shadows(bare, machine, flats), [number[engine] for engine, _ in program], len(engines))
    waits: list[dict[int, list[str]]] = [{} for _ in engines]
    posts: list[dict[int, list[str]]] = [{} for _ in engines]
    used: dict[str, Semaphore] = {}
    for source, i, sink, j in edges:
        channel = f"{engines[source]}_{engines[sink]}"
        used.setdefault(channel, Semaphore(channel, engines[sink]))
        posts[source].setdefault(i, []).append(channel)
        waits[sink].setdefault(j, []).append(channel)
    queues = tuple(
        Queue(engine, tuple(_with_tokens(c, waits[e].get(i, []), posts[e].get(i, [])) for i, c in enumerate(lists[e])))
        for e, engine in enumerate(engines)
    )
    return replace(bare, queues=queues, semaphores=tuple(used[k] for k in sorted(used)))


def _with_tokens(command: Command, waits: Sequence[str], posts: Sequence[str]) -> Command:
    return replace(command, wait=tuple((w, 1) for w in waits), post=tuple((p, 1) for p in posts))


def _edges(shadows: Shadows, order: Sequence[int], count: int) -> list[tuple[int, int, int, int]]:
    """(source engine, its command, sink engine, its command), in the order of the sinks."""
    heads = [0] * count
    known = [[0] * count for _ in range(count)]
    clocks: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
    edges: list[tuple[int, int, int, int]] = []
    for engine in order:
        at = heads[engine]
        need = {f: last for f, last in shadows.latest(engine, at, known[engine]).items() if last > known[engine][f]}
        for f, last in need.items():
            if any(g != f and clocks[g][need[g] - 1][f] >= last for g in need):
                continue
            edges.append((f, last - 1, engine, at))
        for f, last in need.items():
            known[engine] = [max(a, b) for a, b in zip(known[engine], clocks[f][last - 1], strict=True)]
            known[engine][f] = max(known[engine][f], last)
        clocks[engine].append(tuple(known[engine]))
        shadows.mark(engine, at)
        heads[engine] += 1
    return edges
