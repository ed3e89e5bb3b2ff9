"""What a promotion has to copy: what users read before they write it, what others need of what they write, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import islpy as isl

from poly.affine import Constraint, var
from poly.errors import ScheduleError
from poly.expr import Const
from poly.program import Access, Program, Statement
from poly.relations import access_map, bound_expressions, box
from poly.scheduling.dependences import Touch
from poly.scheduling.paths import relation_in_time
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import Tile, accesses_to, tile_access
from poly.scheduling.vectors import Vectors, before_in, together
from poly.sets import OUT, coalesced, fix_sizes


def copies_needed(
    schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile, reads: Sequence[int] | None
) -> tuple[isl.Map | None, bool]:
    """What to copy in, { [tile] -> [element] } or None, and whether to copy out what others need.

    Users need the elements that they read before they write them in their tile. Where all of the tensor has a value,
    the whole footprint comes in, which is a box more often.
    """
    program = schedule.program
    writers = [s for u in users if reads is None and (s := program.statement[u]).write.tensor == tensor]
    direct = [s for s in writers if not s.write.indirect]
    written = [tile_access(schedule, s, s.write, tile) for s in direct]
    exposed = _exposed(schedule, tensor, users, direct, tile, reads)
    if len(direct) < len(writers):  # which element is not known, so the others keep what they hold
        exposed = tile.footprint
    inward = exposed is not None and not exposed.is_empty()
    role = program.tensor[tensor].role
    outward = bool(writers) and (
        inward or program.tensor[tensor].is_output or any(_read_elsewhere(program, tensor, users, w) for w in written)
    )
    whole = role not in ("output", "temporary") or not writers
    return (tile.footprint if whole else exposed) if inward else None, outward


def _exposed(
    schedule: Schedule, tensor: str, users: Sequence[str], writers: Sequence[Statement], tile: Tile,
    reads: Sequence[int] | None,
) -> isl.Map | None:  # fmt: skip
    """{ [tile] -> [element] }: what users read that nothing wrote before in the same tile; None: they read nothing."""
    vectors = Vectors(schedule)
    result: isl.Map | None = None
    for user in users:
        s = schedule.program.statement[user]
        for touch in vectors.touches(s):
            if touch.tensor != tensor or touch.write or (reads is not None and touch.position not in reads):
                continue
            access = s.write if touch.position < 0 else s.reads[touch.position]
            part = _exposed_read(vectors, touch, tile, () if access.indirect else writers)
            result = part if result is None else result.union(part)
    return None if result is None else coalesced(result.set_tuple_name(OUT, ""))


def _exposed_read(vectors: Vectors, touch: Touch, tile: Tile, writers: Sequence[Statement]) -> isl.Map:
    """`_exposed` of one read."""
    schedule, s, depth = vectors.schedule, touch.statement, len(tile.loops)
    assert touch.access is not None
    part = tile_access(schedule, s, touch.access, tile)
    mixed: list[Statement] = []
    for writer in writers:  # those whose nest is before the read's inside the tile wrote everything by then
        shared, order = relation_in_time(schedule.nests[writer.name].path, schedule.nests[s.name].path)
        if len(shared) > depth or order == "same":
            mixed.append(writer)
        elif order == "before" and not part.is_empty():
            written = tile_access(schedule, writer, writer.write, tile)
            same = part.plain_is_equal(written)
            part = isl.Map.empty(part.get_space()) if same else part.subtract(written)
    if part.is_empty() or not mixed:
        return part
    if touch.position < 0 and mixed == [s]:  # the first update of an element in a tile finds none of this tile
        return part
    reads = touch.relation
    for writer in mixed:
        reads = reads.subtract_domain(_written_before(vectors, writer, touch, depth))
    place = bound_expressions(schedule.program, s, schedule.nests[s.name].expressions(tile.loops)).reverse()
    return part.intersect(place.apply_range(reads))


def _written_before(vectors: Vectors, writer: Statement, read: Touch, depth: int) -> isl.Set:
    """The instances whose element `writer` wrote before, in the same iteration of the outermost `depth` loops."""
    s = read.statement
    (write,) = (t for t in vectors.touches(writer) if t.write)
    nests = vectors.schedule.nests
    shared, order = relation_in_time(nests[writer.name].path, nests[s.name].path)
    pairs = vectors.pairs(writer, s, write.relation.apply_range(read.relation.reverse()))
    pairs = together(pairs, range(depth))
    found = pairs.subtract(pairs)
    for k in range(depth, len(shared)):
        found = found.union(before_in(pairs, k))
        pairs = together(pairs, [k])
    if order == "before":
        found = found.union(pairs)
    return vectors.of(s).intersect_range(found.range()).domain()


def _read_elsewhere(program: Program, tensor: str, users: Sequence[str], written: isl.Map | None) -> bool:
    """Whether a statement that is no user reads an element that the users write."""
    if written is None:
        return False
    elements = written.range()
    for s in program.statements:
        if s.name in users:
            continue
        if s.external is not None and tensor in s.external.reads:
            return True
        for access, kind in s.accesses:
            if access.tensor == tensor and kind == "read":
                seen = access_map(s, access, program.parameters, program.tensor[tensor].shape)
                if not fix_sizes(seen.range(), program.binding).is_disjoint(elements):
                    return True
    return False


def written_part(schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile) -> isl.Map:
    """The part of a footprint that users write: only that is copied out."""
    result: isl.Map | None = None
    for name in users:
        s = schedule.program.statement[name]
        if s.write.tensor == tensor:
            part = tile_access(schedule, s, s.write, tile).set_tuple_name(OUT, "")
            result = part if result is None else result.union(part)
    assert result is not None
    return coalesced(result)


class Padding(NamedTuple):
    """The guard of a copy, on elements, and what lies where it does not hold; nothing is padded unless said."""

    guard: tuple[Constraint, ...] = ()
    fill: Const | None = None


def padding(
    schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile, reads: Sequence[int] | None
) -> Padding:
    """The padding that users read."""
    program = schedule.program
    shape = program.tensor[tensor].shape
    fills = {a.fill for u in users for a in accesses_to(program.statement[u], tensor, reads)}
    if fills == {None}:
        return Padding()
    if len(fills) > 1:
        raise ScheduleError(
            f"{tensor} is read with different fills {fills}", where=schedule.source.name, hint="pad=False"
        )
    for u in users:
        s = program.statement[u]
        for a in accesses_to(s, tensor, reads):
            if a is not s.write and not _guard_is_bounds(program, s, a):
                raise ScheduleError(
                    f"{u} guards {tensor} by more than its bounds", where=schedule.source.name, hint="pad=False"
                )
    (fill,) = fills
    assert fill is not None
    places = zip(tile.elements, shape, strict=True)
    bounds = [c for e, extent in places for c in (Constraint(var(e)), Constraint(extent - 1 - var(e)))]
    return Padding(tuple(bounds), fill)


def _guard_is_bounds(program: Program, s: Statement, access: Access) -> bool:
    """Whether a read's guard keeps it inside of the tensor and leaves out nothing else."""
    shape = program.tensor[access.tensor].shape
    free = access_map(s, replace(access, guard=(), fill=None), program.parameters, shape)
    inside = free.intersect_range(box(access.tensor, shape, program.parameters))
    return (
        access_map(s, access, program.parameters, shape)
        .intersect_params(program.context)
        .is_equal(inside.intersect_params(program.context))
    )
