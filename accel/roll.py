"""Write repeated commands as hardware loops: the same instances in the same order, in a text that follows the schedule.

A stretch of a queue is rolled where its blocks are equal but for starts of operands that move by a constant per block,
waits and posts included. Blocks are found greedily, those that save most first, then rolled again inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from poly.accel.isa import (
    MAX_REP_DEPTH,
    Command,
    CommandStream,
    Dma,
    Index,
    Item,
    Linear,
    Load,
    Micro,
    Mm,
    Region,
    Rep,
    Vec,
)

CANDIDATES: Final = 12
Starts = tuple[int, ...]


def roll(stream: CommandStream) -> CommandStream:
    """The stream with `Rep`s where they fit, nested at most as deep as the hardware's. A rolled command keeps what its
    tags have in common.
    """
    queues = tuple(replace(q, items=_roll(q.items, 0)) for q in stream.queues)
    return replace(stream, queues=queues)


def _roll(items: Sequence[Item], level: int) -> tuple[Item, ...]:
    """Items with loops for what repeats: at each place the one that saves most items, then loops around alike ones."""
    if level + max(map(_depth, items), default=0) >= MAX_REP_DEPTH or len(items) < 2:
        return tuple(items)
    shapes: dict[Item, int] = {}
    ids = [shapes.setdefault(_shape(item), len(shapes)) for item in items]
    starts = [tuple(_starts(item)) for item in items]
    following: dict[int, list[int]] = {}
    for at, shape in enumerate(ids):
        following.setdefault(shape, []).append(at)
    position = {at: n for places in following.values() for n, at in enumerate(places)}
    out: list[Item] = []
    at = 0
    while at < len(items):
        near = following[ids[at]][position[at] + 1 : position[at] + 1 + CANDIDATES]
        found = [(count, period) for j in near if (count := _copies(ids, starts, at, period := j - at)) > 1]
        if not found:
            out.append(items[at])
            at += 1
            continue
        count, period = max(found, key=lambda cp: ((cp[0] - 1) * cp[1], -cp[1]))
        blocks = [items[at + q : at + count * period : period] for q in range(period)]
        body = [_joined(block, starts[at + q], starts[at + q + period], level) for q, block in enumerate(blocks)]
        out.append(Rep(count, _roll(body, level + 1)))
        at += count * period
    # Loops that are alike become the body of a loop around them.
    return _roll(out, level) if len(out) < len(items) else tuple(out)


def _depth(item: Item) -> int:
    return 1 + max(map(_depth, item.body)) if isinstance(item, Rep) else 0


def _copies(ids: Sequence[int], starts: Sequence[Starts], at: int, period: int) -> int:
    """How many blocks of `period` items from `at` on are equal up to constant moves."""
    if ids[at : at + period] != ids[at + period : at + 2 * period]:
        return 1
    moves = [_minus(starts[at + q + period], starts[at + q]) for q in range(period)]
    place = at + 2 * period
    while place < len(ids):
        q = (place - at) % period
        if ids[place] != ids[at + q] or _minus(starts[place], starts[place - period]) != moves[q]:
            break
        place += 1
    return (place - at) // period


def _minus(a: Starts, b: Starts) -> Starts:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _joined(block: Sequence[Item], first: Starts, second: Starts, level: int) -> Item:
    """One item for all of a block's: starts of the first, stepping towards the second."""
    tags = [list(_tags(item)) for item in block]
    common = iter([_common_tag(t) for t in zip(*tags, strict=True)])
    return _stepped(block[0], iter(_minus(second, first)), common, level)


def _common_tag(tags: Sequence[str]) -> str:
    """What several tags `statement(tile)` have in common: all of it, or the statement."""
    if len(set(tags)) == 1:
        return tags[0]
    names = {tag.partition("(")[0] for tag in tags}
    return names.pop() if len(names) == 1 else os.path.commonprefix(list(tags))


def _tags(item: Item) -> Iterator[str]:
    if isinstance(item, Rep):
        for inner in item.body:
            yield from _tags(inner)
    else:
        yield item.tag


def _places(command: Command) -> Iterator[Region | Linear]:
    """Everything of a command that has a start, in one fixed order."""
    match command:
        case Dma(dst, src):
            yield from (dst, src)
        case Mm(c, a, b):
            yield from (c, a, b)
        case Vec(dst, code, _, _, _, where):
            yield dst
            for micro in code:
                if isinstance(micro, Load):
                    yield micro.region
                    yield from micro.guard
                elif isinstance(micro, Index):
                    yield micro.value
            yield from where


def _starts(item: Item) -> Iterator[int]:
    if isinstance(item, Rep):
        for inner in item.body:
            yield from _starts(inner)
    else:
        for place in _places(item):
            yield place.offset if isinstance(place, Region) else place.base


def _shape(item: Item) -> Item:
    """The item with starts 0 and no tag: what equal blocks have in common."""
    if isinstance(item, Rep):
        return Rep(item.count, tuple(map(_shape, item.body)))
    return replace(_rebuilt(item, lambda r: replace(r, offset=0), lambda v: replace(v, base=0)), tag="")


def _stepped(item: Item, moves: Iterator[int], tags: Iterator[str], level: int) -> Item:
    """The item inside a new `Rep`, the `level`-th from outside, with this step per start."""
    if isinstance(item, Rep):
        return Rep(item.count, tuple(_stepped(i, moves, tags, level) for i in item.body))

    def steps(old: tuple[int, ...]) -> tuple[int, ...]:
        outer = old[:level] + (0,) * (level - len(old))
        return (*outer, next(moves), *old[level:])

    stepped = _rebuilt(item, lambda r: replace(r, steps=steps(r.steps)), lambda v: replace(v, steps=steps(v.steps)))
    return replace(stepped, tag=next(tags))


def _rebuilt(command: Command, region: Callable[[Region], Region], linear: Callable[[Linear], Linear]) -> Command:
    """The command with its places changed, in the order of `_places`."""
    match command:
        case Dma():
            return replace(command, dst=region(command.dst), src=region(command.src))
        case Mm():
            return replace(command, c=region(command.c), a=region(command.a), b=region(command.b))
        case Vec():
            dst = region(command.dst)
            code = tuple(_micro(micro, region, linear) for micro in command.code)
            return replace(command, dst=dst, code=code, where=tuple(map(linear, command.where)))


def _micro(micro: Micro, region: Callable[[Region], Region], linear: Callable[[Linear], Linear]) -> Micro:
    match micro:
        case Load():
            return replace(micro, region=region(micro.region), guard=tuple(map(linear, micro.guard)))
        case Index(value):
            return Index(linear(value))
        case _:
            return micro
