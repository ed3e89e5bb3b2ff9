"""Parallel loops between which threads do not meet: what they may not have in common, and where there are some.

Pieces of a nest that was cut, as the edges of a blocked product, stand side by side as loops of a few iterations each.
With a meeting after every piece all threads wait for the one with the most iterations of it; without, who is done goes
on to the next piece, and only the end of the last one is uneven (the clause `nowait` of OpenMP).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import islpy as isl

from poly.loops import MOST_NOWAIT
from poly.program import Access, Statement
from poly.relations import range_of
from poly.scheduling.dependences import Touch
from poly.scheduling.paths import Band, Ordered, TreeNode
from poly.scheduling.schedule import Schedule
from poly.scheduling.vectors import Vectors, together


def after(schedule: Schedule, loop: str) -> list[str]:
    """The loops that threads may reach from a parallel one without a meeting."""
    found: list[str] = []
    following = {name: mark.nowait for name, mark in schedule.marks.items() if name in schedule.loop_statements}
    other = following.get(loop)
    while other in following and other not in (None, loop, *found):
        found.append(other)
        other = following[other]
    return found


def run_through(schedule: Schedule, loop: str) -> list[str]:
    """The loops that threads reach without a meeting up to a parallel one, and from there."""
    before = {m.nowait: name for name, m in schedule.marks.items() if m.nowait and name in schedule.loop_statements}
    first = [loop]
    while before.get(first[0], loop) not in first:
        first.insert(0, before[first[0]])
    return [*first, *after(schedule, loop)]


def is_next(schedule: Schedule, loop: str, following: str) -> bool:
    """Whether a parallel loop is what threads reach right behind another one, in the same loops."""
    return (loop, following) in pairwise(_in_order(schedule.tree, schedule))


def conflicts(
    schedule: Schedule, loop: str, other: str, vectors: Vectors
) -> Iterator[tuple[Statement, Statement, str, isl.Map]]:
    """Pairs of instances under two loops, alike in the loops around both, that touch an element which one writes."""
    for a, b, depth in _meeting(schedule, loop, other, vectors):
        pairs = vectors.access(a).apply_range(vectors.access(b).reverse())
        pairs = together(pairs, range(depth))
        if not pairs.is_empty():
            yield a.statement, b.statement, a.tensor, vectors.instances(a.statement, b.statement, pairs)


def without_meetings(schedule: Schedule) -> Schedule:
    """Neighbouring parallel loops that plainly have nothing in common run without a meeting in between."""
    vectors = Vectors(schedule)
    past: list[str] = []  # since the last meeting
    for loop in _in_order(schedule.tree, schedule):
        apart = loop is not None and all(next(_meeting(schedule, p, loop, vectors), None) is None for p in past)
        if loop is not None and past and apart and len(past) < MOST_NOWAIT:
            schedule = schedule.nowait(past[-1], loop)
            past.append(loop)
        else:
            past = [] if loop is None else [loop]
    return schedule


def _meeting(schedule: Schedule, loop: str, other: str, vectors: Vectors) -> Iterator[tuple[Touch, Touch, int]]:
    """Accesses under two loops to one element, for all that is plain, of which one writes; how many loops are around
    both. A buffer that lives inside of one of them is its own.
    """
    outside = schedule.outer(loop)[:-1]
    around = [n for n in outside if n in schedule.outer(other)]
    under: list[list[Touch]] = [[], []]
    for touches, name in zip(under, (loop, other), strict=True):
        for statement in schedule.under(name):
            touches += vectors.touches(schedule.program.statement[statement])
    by_tensor: dict[str, list[Touch]] = {}
    for b in under[1]:
        by_tensor.setdefault(b.tensor, []).append(b)
    for a in under[0]:
        if set(schedule.program.tensor[a.tensor].scope) <= set(around):
            for b in by_tensor.get(a.tensor, ()):
                if (a.write or b.write) and not _apart(schedule, a, b):
                    yield a, b, len(around)


def _apart(schedule: Schedule, a: Touch, b: Touch) -> bool:
    """Whether two accesses touch other elements along one axis, by all values that their subscripts take."""
    spans = [_spans(schedule, t.statement, t.access) for t in (a, b)]
    pairs = zip(*spans, strict=False)  # none where one of them is not known
    return any(x is not None and y is not None and (x[1] < y[0] or y[1] < x[0]) for x, y in pairs)


def _spans(schedule: Schedule, s: Statement, access: Access | None) -> list[tuple[int, int] | None]:
    if access is None or access.indirect:
        return []
    return [range_of(schedule.program, s, e) for e in access.affine_index]


def _in_order(node: TreeNode, schedule: Schedule) -> Iterator[str | None]:
    """Parallel loops as threads reach them, None where there is something else, or where a loop around them ends."""
    match node:
        case Ordered(children):
            for child in children:
                yield from _in_order(child, schedule)
        case Band(loop) if schedule.kind(loop) == "parallel":
            yield loop
        case Band(loop, child) if schedule.kind(loop) == "serial":
            ends = () if _once(schedule, loop) else (None,)
            yield from (*ends, *_in_order(child, schedule), *ends)
        case _:
            yield None


def _once(schedule: Schedule, loop: str) -> bool:
    """Whether a loop has one iteration, the same for all statements."""
    inside = schedule.under(loop)
    values = {range_of(schedule.program, schedule.statement(n), schedule.nests[n].loops[loop]) for n in inside}
    return len(values) == 1 and all(v is not None and v[0] == v[1] for v in values)
