"""Promotion: a tile of a tensor lives in another memory while some statements use it (`promote`).

One operation for every space: packing into a cache-resident buffer, a scratchpad, an accumulator or registers. The
copies between the spaces are statements of the program, their tile first in their iterators, so that everything that
is known and checked about statements holds for them (PPCG's array promotion, Verdoolaege et al., TACO 2013, section
5, without its extension nodes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.expr import Read
from poly.program import Access, Layout, Statement, Tensor
from poly.scheduling.copy_needs import Padding, copies_needed, padding, written_part
from poly.scheduling.edits import buffer_name, finish, free_buffer_name
from poly.scheduling.footprint import Box
from poly.scheduling.insertion import drop_unused, insert_nest, insert_statement, nest_of_tile, span
from poly.scheduling.paths import canonical
from poly.scheduling.schedule import Schedule, changed
from poly.scheduling.tile_footprints import Tile, accesses_to, named, tile_of
from poly.sets import coalesced, identifier


def promote(
    schedule: Schedule,
    tensor: str,
    at: str | None,
    space: str,
    *,
    name: str | None = None,
    users: Sequence[str] | None = None,
    order: Sequence[int] | None = None,
    pad: bool = False,
    fold: Mapping[int, int] | None = None,
    block: Mapping[int, int] | None = None,
    reads: Sequence[int] | None = None,
) -> Schedule:
    """Keep the part of `tensor` that one iteration of loop `at` uses in a buffer in memory `space`.

    `at` None: the whole tensor, once. `users`: the statements that see the buffer (default: all under `at` that touch
    the tensor). `order`: the buffer's axes from slow to fast. `pad`: the buffer also holds the padding of guarded
    reads. `fold`: axes of which every n-th element lies together, so that a walk with step n is contiguous.
    `block`: axes cut into blocks of n elements, which vary fastest of all (in `order`), so that a tile is one piece of
    memory. `reads`: the positions among the users' reads that see the buffer, where not all that they do with the
    tensor goes through it. Elements are copied in where users read what they did not write in the same tile, and copied
    out where somebody else needs what they write. Raises `ScheduleError` where the part has no box with an affine
    corner.
    """
    source = _known(schedule, tensor)
    order, reads = (None if v is None else tuple(map(int, v)) for v in (order, reads))  # a text has no numpy integers
    fold, block = ({int(d): int(n) for d, n in (v or {}).items()} for v in (fold, block))
    chosen = _users(schedule, tensor, at, users, reads)
    buffer = buffer_name(schedule, name or free_buffer_name(schedule, f"{tensor}_{identifier(space)}"))
    tile = tile_of(schedule, tensor, at, chosen, pad, reads)
    layout = _layout(tile.box, order, fold, block)
    new = Tensor(buffer, tile.box.extents, source.dtype, "temporary", space, layout, tile.loops, source.source_name)
    result = _Promoting(schedule, source, new, tile, at, chosen, pad, reads).result(order)
    return finish(
        schedule, result, "promote", tensor=tensor, at=at, space=space, name=buffer,
        users=tuple(users) if users is not None else None, order=order, pad=pad,
        fold=fold or None, block=block or None, reads=reads,
    )  # fmt: skip


@dataclass(frozen=True)
class _Promoting:
    """A part of `source` on its way to the buffer `new`, which `users` see."""

    schedule: Schedule
    source: Tensor
    new: Tensor
    tile: Tile
    at: str | None
    users: tuple[str, ...]
    pad: bool
    reads: Sequence[int] | None

    def result(self, order: Sequence[int] | None) -> Schedule:
        """The schedule with the users redirected and the copies that they need, whose loops are in an order."""
        schedule, tensor, new, tile, users = self.schedule, self.source.name, self.new, self.tile, self.users
        inward, outward = copies_needed(schedule, tensor, users, tile, self.reads)
        statements = [
            redirected(schedule, s, tensor, new, tile, self.pad, self.reads) if s.name in users else s
            for s in schedule.program.statements
        ]
        nests = dict(schedule.nests)
        first, last = span(schedule, self.at, users)
        if outward:
            name = f"st_{new.name}"
            copy = self.copy(name, written_part(schedule, tensor, users, tile), self.element(Padding()), self.place)
            statements = insert_statement(statements, copy, users, after=True)
            nests = insert_nest(nests, self.at, last + 1, nest_of_tile(name, tile, new.shape, order), name)
        if inward is not None:
            name = f"ld_{new.name}"
            around = padding(schedule, tensor, users, tile, self.reads) if self.pad else Padding()
            copy = self.copy(name, inward, self.place, self.element(around))
            statements = insert_statement(statements, copy, users, after=False)
            early = min(first, _after_writers(schedule, tensor, self.at, users))
            nests = insert_nest(nests, self.at, early, nest_of_tile(name, tile, new.shape, order), name)
        program = drop_unused(replace(schedule.program, tensors=(*schedule.program.tensors, new)), tuple(statements))
        return changed(schedule, program=program, nests=canonical(nests))

    def copy(self, name: str, footprint: isl.Map, write: Access, read: Access) -> Statement:
        """The statement that moves one element of one tile, of those in a footprint."""
        iterators, rank = (*self.tile.variables, *self.tile.elements), len(self.tile.loops)
        domain = named(coalesced(footprint.wrap().flatten().set_tuple_name(name)), iterators)
        return Statement(name, iterators, domain, write, (read,), Read(0), copies=self.source.name, tile_rank=rank)

    def element(self, around: Padding) -> Access:
        """An element of the tensor, or of what is around it."""
        return Access(self.source.name, tuple(map(var, self.tile.elements)), around.guard, around.fill)

    @property
    def place(self) -> Access:
        """Where the buffer has that element."""
        corner = zip(self.tile.elements, self.tile.box.lower, strict=True)
        return Access(self.new.name, tuple(var(e) - c for e, c in corner))


def _known(schedule: Schedule, tensor: str) -> Tensor:
    """The tensor of a name. Raises `ScheduleError` where there is none."""
    known = schedule.program.tensor
    if tensor not in known:
        raise ScheduleError(f"no tensor {tensor!r}", where=schedule.source.name, hint=f"tensors: {', '.join(known)}")
    return known[tensor]


def _users(
    schedule: Schedule, tensor: str, at: str | None, users: Sequence[str] | None, reads: Sequence[int] | None
) -> tuple[str, ...]:
    """The statements that see the buffer. Raises `ScheduleError` where there are none, or one may need any element."""
    under = tuple(schedule.nests) if at is None else schedule.under(at)
    if reads is not None:
        _check_reads(schedule, tensor, users or under, reads)
    touching = {s.name for s in schedule.program.statements if accesses_to(s, tensor, reads)}
    wrong = [u for u in users or () if u not in under or u not in touching]
    if wrong:
        raise ScheduleError(f"{wrong[0]} does not use {tensor} under loop {at!r}", where=schedule.source.name)
    chosen = tuple(s for s in (users or under) if s in touching)
    if not chosen:
        raise ScheduleError(f"nothing under loop {at!r} touches {tensor}", where=schedule.source.name)
    touched = (a for u in chosen for a, _ in schedule.program.statement[u].accesses if a.tensor == tensor)
    if at is not None and any(a.indirect for a in touched):
        why = f"{tensor} is read indirectly: any element may be needed"
        raise ScheduleError(why, where=schedule.source.name, hint="promote it whole: at=None")
    return chosen


def _check_reads(schedule: Schedule, tensor: str, users: Sequence[str], reads: Sequence[int]) -> None:
    """Every position is a read of the tensor in one of the statements at least."""
    found = [s for u in users if (s := schedule.program.statement.get(u)) is not None]
    there = sorted({k for s in found for k, r in enumerate(s.reads) if r.tensor == tensor})
    if wrong := [k for k in reads if k not in there]:
        why = f"read {wrong[0]} of {', '.join(s.name for s in found)} is none of {tensor}"
    elif not reads:
        why = f"no read of {tensor} is chosen"
    else:
        return
    raise ScheduleError(why, where=schedule.source.name, hint=f"reads of {tensor}: {there}, or leave `reads` out")


def _layout(
    box: Box, order: Sequence[int] | None, fold: Mapping[int, int], block: Mapping[int, int]
) -> Layout | None:
    """How a buffer's elements lie, None for axes in order. Raises `ScheduleError` for axes that are not there."""
    plain = tuple(range(len(box.extents)))
    chosen = plain if order is None else tuple(order)
    if chosen == plain and not fold and not block:
        return None
    if sorted(chosen) != list(plain):
        raise ScheduleError(f"order {chosen} is not a permutation of the {len(plain)} axes")
    for what, sizes in (("fold", fold), ("block", block)):
        if any(d not in plain or n < 1 for d, n in sizes.items()):
            raise ScheduleError(f"{what} {dict(sizes)} names an axis that is not there, or a size below 1")
    if fold.keys() & block.keys():
        raise ScheduleError(f"axis {min(fold.keys() & block.keys())} has both fold and block")
    index = tuple(f"a{d}" for d in plain)
    slow: list[tuple[Affine, Affine]] = []
    fast: list[tuple[Affine, Affine]] = []
    for d in chosen:
        place, extent = var(index[d]), box.extents[d]
        if d in fold:
            slow += [(place % fold[d], Affine((), fold[d])), (place // fold[d], (extent + (fold[d] - 1)) // fold[d])]
        elif d in block:
            slow.append((place // block[d], (extent + (block[d] - 1)) // block[d]))
            fast.append((place % block[d], Affine((), block[d])))
        else:
            slow.append((place, extent))
    return Layout(index, tuple(c for c, _ in (*slow, *fast)), tuple(e for _, e in (*slow, *fast)))


def redirected(
    schedule: Schedule, s: Statement, tensor: str, new: Tensor, tile: Tile, pad: bool,
    reads: Sequence[int] | None = None,
) -> Statement:  # fmt: skip
    """A user with its accesses to the tensor, or its `reads` at some positions, going to the buffer."""
    values = dict(zip(tile.variables, schedule.nests[s.name].expressions(tile.loops), strict=True))
    corner = [c.substitute(values) for c in tile.box.lower]

    def seen(access: Access) -> Access:
        if access.tensor != tensor:
            return access
        index = tuple(i - c if isinstance(i, Affine) else i for i, c in zip(access.index, corner, strict=True))
        guard, fill = ((), None) if pad else (access.guard, access.fill)
        return Access(new.name, index, guard, fill)

    if reads is not None:
        return replace(s, reads=tuple(seen(r) if k in reads else r for k, r in enumerate(s.reads)))
    return replace(s, write=seen(s.write), reads=tuple(seen(r) for r in s.reads))


def _after_writers(schedule: Schedule, tensor: str, at: str | None, users: Sequence[str]) -> int:
    """The first position inside loop `at` behind everybody else who writes the tensor: a copy in is as early as it
    can.
    """
    under = tuple(schedule.nests) if at is None else schedule.under(at)
    others = [n for n in under if n not in users and schedule.program.statement[n].write.tensor == tensor]
    return span(schedule, at, others)[1] + 1 if others else 0
