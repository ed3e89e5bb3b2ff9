"""Asking for what a copy reads next, spread over the iterations of a loop behind it (`prefetch_copy`).

A buffer that is filled in bursts leaves memory idle while it is used. Each iteration of a loop that uses it asks for
its share of the lines that the next copy reads. Addresses and their number are stated in the loop tree (`For.asks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.program import Access
from poly.scheduling.edits import finish
from poly.scheduling.loop_vectors import LoopVectors
from poly.scheduling.schedule import AskedCopy, Mark, Schedule, changed
from poly.sets import interval

LONGEST = 1024  # elements of a line, more than any machine's has
PARTS = 32  # of a line, to which the share of an iteration is rounded up: places are shifts then, not divisions
MOST_ASKS = 16  # lines that an iteration asks for: a core has hardly more on their way


def prefetch_copy(schedule: Schedule, loop: str, buffer: str, line: int) -> Schedule:
    """Let each iteration of a serial loop ask for its share of the lines that the next copy into `buffer` reads: the
    one of the next iteration of the loops that the buffer lives in. The loop is inside of these, behind the copy.
    `line`: elements of a line. Lines come into the second cache: the first one is in use until then.

    Nothing is read or written by that, and no address is too far: it says where the caches will be needed. Where later
    edits leave no such loop or copy, where the loops in between have no numbers of iterations, or where an iteration
    would ask for more than `MOST_ASKS` lines, nothing is asked for.
    """
    where = schedule.source.name
    require_asking(schedule, loop, line, "what a copy reads")
    copies = copies_into(schedule, buffer)
    if not copies:
        hint = "promote(tensor, at=LOOP, ...) makes such a buffer"
        raise ScheduleError(f"nothing is copied into a buffer {buffer!r} in a loop", where=where, hint=hint)
    scope = schedule.program.tensor[buffer].scope
    users = [s for s in schedule.under(loop) if any(r.tensor == buffer for r in schedule.statement(s).reads)]
    if not users or any(c in schedule.under(loop) for c in copies) or not set(scope) <= set(schedule.outer(loop)):
        raise ScheduleError(
            f"loop {loop!r} does not use what is copied into {buffer!r} before it", where=where,
            hint=f"mark a loop inside of {scope[-1]!r} that reads the buffer",
        )  # fmt: skip
    mark = schedule.marks.get(loop, Mark())
    if mark.asks is not None:
        what = f"loop {loop!r} asks already for what is copied into {mark.asks.buffer!r}"
        raise ScheduleError(what, where=where, hint="one prefetch_copy for a loop")
    marks = {**schedule.marks, loop: replace(mark, asks=AskedCopy(buffer, line))}
    return finish(schedule, changed(schedule, marks=marks), "prefetch_copy", loop=loop, buffer=buffer, line=line)


def require_asking(schedule: Schedule, loop: str, line: int, what: str) -> None:
    """Raises `ScheduleError` for a loop that cannot ask for lines of so many elements."""
    where = schedule.source.name
    if not 1 <= line <= LONGEST:
        raise ScheduleError(f"a line of {line} elements", where=where, hint=f"a line has 1 to {LONGEST}")
    if schedule.kind(loop) != "serial":
        raise ScheduleError(f"loop {loop!r} is not serial: only such a loop asks for {what}", where=where)


def copies_into(schedule: Schedule, buffer: str) -> list[str]:
    """The statements that fill a promoted tensor that lives in a loop."""
    written = [s for s in schedule.program.statements if s.write.tensor == buffer and s.copies]
    return [s.name for s in written if s.tile_rank and schedule.program.tensor[buffer].scope]


def asked(
    schedule: Schedule, copy: LoopVectors, user: LoopVectors, around: Sequence[str], line: int
) -> tuple[Access, ...]:
    """The elements that an iteration of the innermost of the loops `around` asks for, of what `copy` reads next;
    `user`: a statement in them; `line`: elements of a line.
    """
    s = copy.statement
    scope = around[: s.tile_rank]
    ends = [interval(user.vectors, k) for k in range(len(around))]
    extents = {n: e for n, e in zip(around, ends, strict=True) if e is not None}
    box = [e.substitute(copy.sizes) for e in schedule.program.tensor[s.write.tensor].shape]
    corner = _next_corner(schedule, copy, scope, extents) if len(extents) == len(around) else None
    if corner is None or not all(e.is_constant for e in box):
        return ()
    pieces = [*(e.constant for e in box[:-1]), -(-box[-1].constant // line)]
    inner = around[s.tile_rank :]
    trips, total = prod(_trips(extents[n]) for n in inner), prod(pieces)
    found: list[Access] = []
    for number in shares(number_of(inner, extents), trips, total):
        digits = digits_of(number, pieces)
        digits[-1] *= line
        found.append(Access(s.reads[0].tensor, tuple(c + d for c, d in zip(corner, digits, strict=True))))
    return tuple(found)


def shares(number: Affine, trips: int, total: int) -> list[Affine]:
    """Which of a total of lines an iteration asks for, by its number; none where they are more than `MOST_ASKS`."""
    each = -(-total // trips)
    share = -(-total * PARTS // (each * trips))
    return [(number * each + k) * share // PARTS for k in range(each)] if each <= MOST_ASKS else []


def _next_corner(
    schedule: Schedule, copy: LoopVectors, scope: Sequence[str], extents: Mapping[str, tuple[int, int]]
) -> tuple[Affine, ...] | None:
    """The first element that the next copy reads of a whole tensor, by the loops of its scope; None where it does not
    read one as it lies, or these loops do not say it.
    """
    s = copy.statement
    elements = tuple(var(e) for e in s.iterators[s.tile_rank :])
    plain = s.reads[0].index == elements and len(s.write.index) == len(elements)
    if copy.loops[: len(scope)] != scope or not plain or schedule.program.tensor[s.reads[0].tensor].scope:
        return None
    corner = copy.express([e - i for e, i in zip(elements, s.write.affine_index, strict=True)])
    if any(not c.names <= {*scope, *copy.parameters} for c in corner):
        return None
    moved = digits_of(number_of(scope, extents) + 1, [_trips(extents[n]) for n in scope])
    following = {n: d + extents[n][0] for n, d in zip(scope, moved, strict=True)}
    return tuple(c.substitute(following) for c in corner)


def _trips(ends: tuple[int, int]) -> int:
    return ends[1] - ends[0] + 1


def number_of(loops: Sequence[str], extents: Mapping[str, tuple[int, int]]) -> Affine:
    """Which of the iterations of some loops it is."""
    number = Affine()
    for n in loops:
        number = number * _trips(extents[n]) + (var(n) - extents[n][0])
    return number


def digits_of(number: Affine, extents: Sequence[int]) -> list[Affine]:
    """The places along some axes that a number is; along the first one the rest."""
    digits: list[Affine] = []
    for extent in reversed(extents[1:]):
        digits.append(number % extent)
        number = number // extent
    return [number, *reversed(digits)]
