"""Asking for what the next block of a loop reads of a tensor, spread over the iterations of a loop inside
(`prefetch_block`).

What is packed once, when compiling, lies in the order in which it is used, but every block of it comes in the moment of
its first use. Each iteration of a loop that uses a block asks for its share of the lines of the next one. Addresses are
stated in the loop tree (`For.asks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from poly.affine import Affine, Var, var
from poly.errors import ScheduleError
from poly.program import Access, Layout, Tensor
from poly.scheduling.asked_copies import digits_of, number_of, require_asking, shares
from poly.scheduling.edits import finish
from poly.scheduling.loop_vectors import LoopVectors
from poly.scheduling.schedule import AskedBlock, Mark, Schedule, changed
from poly.sets import interval


class _Walk(NamedTuple):
    """A box of a tensor along one coordinate of its memory: `places` elements of an axis, `step` apart. `whole`: all
    that there is along it, and memory goes on behind it as along the coordinate around.
    """

    axis: int
    step: int
    places: int
    whole: bool = False


def prefetch_block(schedule: Schedule, loop: str, tensor: str, line: int, along: str | None = None) -> Schedule:
    """Let each iteration of a serial loop ask for its share of the lines that are read of a whole tensor in the next
    iteration of `along`, a loop around it; where that is None, of what lies as far behind all that the loop reads of
    it. `line`: elements of a line. Lines come into the second cache: the first one is in use until then.

    Nothing is read or written by that, and no address is too far: it says where the caches will be needed. Where later
    edits leave no such loop, where loops have no numbers of iterations, or where an iteration would ask for more than
    `MOST_ASKS` lines, nothing is asked for.
    """
    where = schedule.source.name
    require_asking(schedule, loop, line, "a block")
    if along is not None and along not in schedule.outer(loop):
        hint = f"along one of {', '.join(schedule.outer(loop))}"
        raise ScheduleError(f"loop {loop!r} is not inside of {along!r}", where=where, hint=hint)
    found = schedule.program.tensor.get(tensor)
    if found is None or found.scope or not _readers(schedule, loop, tensor):
        raise ScheduleError(
            f"loop {loop!r} reads nothing of a whole tensor {tensor!r}", where=where,
            hint="name a tensor that is there before the loops, one of the program or packed for all of them",
        )  # fmt: skip
    mark = schedule.marks.get(loop, Mark())
    if mark.block is not None:
        what = f"loop {loop!r} asks already for blocks of {mark.block.tensor!r}"
        raise ScheduleError(what, where=where, hint="one prefetch_block for a loop")
    marks = {**schedule.marks, loop: replace(mark, block=AskedBlock(tensor, line, along))}
    return finish(
        schedule, changed(schedule, marks=marks), "prefetch_block", loop=loop, tensor=tensor, line=line, along=along
    )


def _readers(schedule: Schedule, loop: str, tensor: str) -> list[str]:
    """The statements inside of a loop that read a tensor by affine subscripts."""
    inside = [schedule.statement(s) for s in schedule.under(loop)]
    return [s.name for s in inside if any(r.tensor == tensor and not r.indirect for r in s.reads)]


def asked_block(
    user: LoopVectors, tensor: Tensor, around: Sequence[str], line: int, along: str | None
) -> tuple[Access, ...]:
    """The elements that an iteration of the innermost of the loops `around` asks for, of what `user` reads of a tensor
    in the next iteration of `along`; `line`: elements of a line.
    """
    ends = [interval(user.vectors, k) for k in range(len(user.loops))]
    extents = {n: e for n, e in zip(user.loops, ends, strict=True) if e is not None}
    if len(extents) < len(user.loops) or (along is not None and along not in around):
        return ()
    depth = 0 if along is None else around.index(along) + 1
    read = next(r for r in user.statement.reads if r.tensor == tensor.name and not r.indirect)
    box = _box(user.access(read).affine_index, {n: extents[n] for n in user.loops[depth:]})
    walks = _walks(tensor, [e for _, e in box], user.sizes) if box is not None else None
    if not box or not walks:  # no box, or a single element
        return ()
    corner = [c if along is None else c.substitute({along: var(along) + 1}) for c, _ in box]
    if along is None:
        first = next((w for w in walks if w.places > 1), walks[-1])
        corner[first.axis] = corner[first.axis] + first.step * first.places
    walks[-1] = _Walk(walks[-1].axis, walks[-1].step * line, -(-walks[-1].places // line))
    inner = around[depth:]
    trips = prod(extents[n][1] - extents[n][0] + 1 for n in inner)
    return _shares(tensor.name, corner, walks, number_of(inner, extents), trips)


def _shares(
    name: str, corner: Sequence[Affine], walks: Sequence[_Walk], number: Affine, trips: int
) -> tuple[Access, ...]:
    """Of the places of some walks from a corner those of an iteration, of which there are so many, by its number."""
    found: list[Access] = []
    for line in shares(number, trips, prod(w.places for w in walks)):
        subscripts = list(corner)
        places = digits_of(line, [w.places for w in walks])
        for w, place in zip(walks, places, strict=True):
            subscripts[w.axis] = subscripts[w.axis] + place * w.step
        found.append(Access(name, tuple(subscripts)))
    return tuple(found)


def _box(
    subscripts: Sequence[Affine], inside: Mapping[str, tuple[int, int]]
) -> list[tuple[Affine, int]] | None:
    """First element and extent along each axis of what some loops reach; None where they do not say it."""
    found: list[tuple[Affine, int]] = []
    for e in subscripts:
        if any(not isinstance(a, Var) or (a.name in inside and c < 0) for a, c in e.terms):
            return None
        moved = [(a.name, c) for a, c in e.terms if isinstance(a, Var) and a.name in inside]
        first = e.substitute({n: inside[n][0] for n, _ in moved})
        found.append((first, 1 + sum(c * (inside[n][1] - inside[n][0]) for n, c in moved)))
    return found


def _walks(tensor: Tensor, box: Sequence[int], sizes: Mapping[str, int]) -> list[_Walk] | None:
    """The coordinates of a tensor's memory from slow to fast, with what a box has along each; None where these are not
    axes and blocks of axes.
    """
    layout = tensor.layout
    if layout is None:
        return [_Walk(axis, 1, extent) for axis, extent in enumerate(box)]
    shape = [e.substitute(sizes) for e in layout.shape]
    blocks = [e.constant for e in shape]
    found: list[_Walk] = []
    for c, block in zip(layout.coordinates, blocks, strict=True):
        for axis, n in enumerate(layout.index):
            if c == var(n):
                found.append(_Walk(axis, 1, box[axis]))
            elif c == var(n) % block:
                found.append(_Walk(axis, 1, min(block, box[axis])))
            else:
                found += [_Walk(axis, b, -(-box[axis] // b)) for b in {*blocks} - {1} if c == var(n) // b]
    known = len(found) == len(blocks) and all(e.is_constant for e in shape)
    return _together(found, blocks, layout) if known else None


def _together(walks: Sequence[_Walk], extents: Sequence[int], layout: Layout) -> list[_Walk]:
    """Walks along memory as fewer: one that goes on where a whole axis ends, which is the next place of the one around.
    """
    found: list[_Walk] = []
    for w, extent, c in zip(reversed(walks), reversed(extents), reversed(layout.coordinates), strict=True):
        inside = found[-1] if found else None
        if inside is not None and inside.whole:
            found[-1] = inside._replace(places=inside.places * w.places, whole=w.places == extent)
        else:
            found.append(w._replace(whole=c == var(layout.index[w.axis]) and w.places == extent))
    while len(found) > 1 and found[-1].places == 1:
        found.pop()
    return found[::-1]
