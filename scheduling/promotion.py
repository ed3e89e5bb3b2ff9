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

from poly.affine import Affine, Constraint, var
from poly.errors import ScheduleError
from poly.expr import Const, Read
from poly.program import Access, Layout, PathStep, Program, Statement, Tensor
from poly.relations import access_map, expressions_map
from poly.scheduling.dependences import Touch
from poly.scheduling.edits import finish
from poly.scheduling.footprint import Box, box_of
from poly.scheduling.schedule import Nest, Schedule, canonical, relation_in_time
from poly.scheduling.vectors import Vectors, before_in, together
from poly.sets import OUT, coalesced, fix_sizes, identifier


@dataclass(frozen=True)
class Tile:
    """What the users of a promotion touch per tile. `footprint`: { [variables] -> [elements] }, names of their own."""

    loops: tuple[str, ...]
    variables: tuple[str, ...]
    elements: tuple[str, ...]
    footprint: isl.Map
    box: Box


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
) -> Schedule:
    """Keep the part of `tensor` that one iteration of loop `at` uses in a buffer in memory `space`.

    `at` None: the whole tensor, once. `users`: the statements that see the buffer (default: all under `at` that touch
    the tensor). `order`: the buffer's axes from slow to fast. `pad`: the buffer also holds the padding of guarded
    reads. `fold`: axes of which every n-th element lies together, so that a walk with step n is contiguous.
    `block`: axes cut into blocks of n elements, which vary fastest of all (in `order`), so that a tile is one piece of
    memory. Elements are copied in where users read what they did not write in the same tile, and copied out where
    somebody else needs what they write. Raises `ScheduleError` where the part has no box with an affine corner.
    """
    if tensor not in schedule.program.tensor:
        raise ScheduleError(
            f"no tensor {tensor!r}", where=schedule.source.name, hint=f"tensors: {', '.join(schedule.program.tensor)}"
        )
    chosen = _users(schedule, tensor, at, users)
    buffer = name or free_name(schedule, f"{tensor}_{identifier(space)}")
    tile = tile_of(schedule, tensor, at, chosen, pad)
    layout = _layout(tile.box, order, fold or {}, block or {})
    source = schedule.program.tensor[tensor]
    extents, origin = tile.box.extents, source.origin or tensor
    new = Tensor(buffer, extents, source.dtype, "temporary", space, layout, tile.loops, origin)
    result = _Promoting(schedule, source, new, tile, at, chosen, pad).result(order)
    return finish(
        schedule, result, "promote", tensor=tensor, at=at, space=space, name=buffer,
        users=tuple(users) if users is not None else None, order=tuple(order) if order is not None else None, pad=pad,
        fold=dict(fold) if fold else None, block=dict(block) if block else None,
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

    def result(self, order: Sequence[int] | None) -> Schedule:
        """The schedule with the users redirected and the copies that they need, whose loops are in an order."""
        schedule, tensor, new, tile, users = self.schedule, self.source.name, self.new, self.tile, self.users
        inward, outward = _copies_needed(schedule, tensor, users, tile)
        statements = [
            redirected(schedule, s, tensor, new, tile, self.pad) if s.name in users else s
            for s in schedule.program.statements
        ]
        nests = dict(schedule.nests)
        first, last = span(schedule, self.at, users)
        if outward:
            name = f"st_{new.name}"
            statements = _insert(statements, self.copy(tile, outward=True, pad=()), users, after=True)
            nests = insert_nest(nests, self.at, last + 1, _own_nest(name, new, tile, order), name)
        if inward is not None:
            name = f"ld_{new.name}"
            guard = _padding(schedule, tensor, users, tile) if self.pad else ()
            copy = self.copy(replace(tile, footprint=inward), outward=False, pad=guard)
            statements = _insert(statements, copy, users, after=False)
            early = min(first, _after_writers(schedule, tensor, self.at, users))
            nests = insert_nest(nests, self.at, early, _own_nest(name, new, tile, order), name)
        program = drop_unused(replace(schedule.program, tensors=(*schedule.program.tensors, new)), tuple(statements))
        return replace(schedule, program=program, nests=canonical(nests))

    def copy(
        self, tile: Tile, *, outward: bool, pad: tuple[tuple[Constraint, ...], Const] | tuple[()]
    ) -> Statement:
        """The statement that moves one element of one tile between the tensor and its buffer."""
        name = f"{'st' if outward else 'ld'}_{self.new.name}"
        elements = tile.elements
        footprint = _written(self.schedule, self.source.name, self.users, tile) if outward else tile.footprint
        domain = named(coalesced(footprint.wrap().flatten().set_tuple_name(name)), (*tile.variables, *elements))
        outer = Access(self.source.name, tuple(var(e) for e in elements), *(pad or ((), None)))
        inner = Access(self.new.name, tuple(var(e) - c for e, c in zip(elements, tile.box.lower, strict=True)))
        write, read = (outer, inner) if outward else (inner, outer)
        iterators, rank = (*tile.variables, *elements), len(tile.loops)
        return Statement(name, iterators, domain, write, (read,), Read(0), copies=self.source.name, tile_rank=rank)


def tile_of(schedule: Schedule, tensor: str, at: str | None, users: Sequence[str], pad: bool = False) -> Tile:
    """The footprint on a tensor of one iteration of the loops down to `at`, over the statements `users`."""
    loops = () if at is None else schedule.outer(at)
    program = schedule.program
    variables = apart([identifier(name) for name in loops], program.parameters)
    footprint: isl.Map | None = None
    for name in users:
        s = program.statement[name]
        where = expressions_map(s, schedule.nests[name].expressions(loops), program.parameters)
        for access, _ in s.accesses:
            if access.tensor == tensor:
                seen = replace(access, guard=(), fill=None) if pad else access
                part = where.reverse().apply_range(
                    access_map(s, seen, program.parameters, program.tensor[tensor].shape)
                )
                footprint = part if footprint is None else footprint.union(part)
    assert footprint is not None
    known = fix_sizes(footprint.intersect_params(program.context), program.binding)
    known = coalesced(known.set_tuple_name(OUT, "") if known.has_tuple_name(OUT) else known)
    elements = apart([f"e{d}" for d in range(known.dim(OUT))], (*variables, *program.parameters))
    return Tile(
        loops, variables, elements, known, box_of(known, variables, f"{schedule.source.name}: {tensor} at {at}")
    )


def apart(names: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """The names, with underscores where one is taken or stands twice."""
    found: list[str] = []
    for name in names:
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return tuple(found)


def _users(schedule: Schedule, tensor: str, at: str | None, users: Sequence[str] | None) -> tuple[str, ...]:
    under = tuple(schedule.nests) if at is None else schedule.under(at)
    touching = {s.name for s in schedule.program.statements if any(a.tensor == tensor for a, _ in s.accesses)}
    wrong = [u for u in users or () if u not in under or u not in touching]
    if wrong:
        raise ScheduleError(f"{wrong[0]} does not use {tensor} under loop {at!r}", where=schedule.source.name)
    chosen = tuple(s for s in (users or under) if s in touching)
    if not chosen:
        raise ScheduleError(f"nothing under loop {at!r} touches {tensor}", where=schedule.source.name)
    if (
        any(a.indirect for u in chosen for a, _ in schedule.program.statement[u].accesses if a.tensor == tensor)
        and at is not None
    ):
        raise ScheduleError(
            f"{tensor} is read indirectly: any element may be needed",
            where=schedule.source.name,
            hint="promote it whole: at=None",
        )
    return chosen


def free_name(schedule: Schedule, wanted: str) -> str:
    """A buffer's name that no tensor has, nor the copies of a buffer that is gone."""
    program = schedule.program
    name, k = wanted, 1
    while name in program.tensor or {f"ld_{name}", f"st_{name}"} & program.statement.keys():
        k += 1
        name = f"{wanted}{k}"
    return name


def _layout(
    box: Box, order: Sequence[int] | None, fold: Mapping[int, int], block: Mapping[int, int]
) -> Layout | None:
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


def _copies_needed(schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile) -> tuple[isl.Map | None, bool]:
    """What to copy in, { [tile] -> [element] } or None, and whether to copy out what others need.

    Users need the elements that they read before they write them in their tile. Where all of the tensor has a value,
    the whole footprint comes in, which is a box more often.
    """
    program = schedule.program
    writers = [s for u in users if (s := program.statement[u]).write.tensor == tensor]
    direct = [s for s in writers if not s.write.indirect]
    written = [_tile_access(schedule, s, s.write, tile) for s in direct]
    exposed = _exposed(schedule, tensor, users, direct, tile)
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
    schedule: Schedule, tensor: str, users: Sequence[str], writers: Sequence[Statement], tile: Tile
) -> isl.Map | None:
    """{ [tile] -> [element] }: what users read that nothing wrote before in the same tile; None: they read nothing."""
    vectors = Vectors(schedule)
    result: isl.Map | None = None
    for user in users:
        s = schedule.program.statement[user]
        for touch in vectors.touches(s):
            if touch.tensor != tensor or touch.write:
                continue
            access = s.write if touch.position < 0 else s.reads[touch.position]
            part = _exposed_read(vectors, touch, tile, () if access.indirect else writers)
            result = part if result is None else result.union(part)
    return None if result is None else coalesced(result.set_tuple_name(OUT, ""))


def _exposed_read(vectors: Vectors, touch: Touch, tile: Tile, writers: Sequence[Statement]) -> isl.Map:
    """`_exposed` of one read."""
    schedule, s, depth = vectors.schedule, touch.statement, len(tile.loops)
    place = expressions_map(s, schedule.nests[s.name].expressions(tile.loops), schedule.program.parameters)
    place = fix_sizes(place, schedule.program.binding).reverse()
    part = place.apply_range(touch.relation)
    mixed: list[Statement] = []
    for writer in writers:  # those whose nest is before the read's inside the tile wrote everything by then
        shared, order = relation_in_time(schedule.nests[writer.name].path, schedule.nests[s.name].path)
        if len(shared) > depth or order == "same":
            mixed.append(writer)
        elif order == "before" and not part.is_empty():
            part = part.subtract(_tile_access(schedule, writer, writer.write, tile))
    if part.is_empty() or not mixed:
        return part
    reads = touch.relation
    for writer in mixed:
        reads = reads.subtract_domain(_written_before(vectors, writer, touch, depth))
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


def _tile_access(schedule: Schedule, s: Statement, access: Access, tile: Tile) -> isl.Map:
    program = schedule.program
    where = expressions_map(s, schedule.nests[s.name].expressions(tile.loops), program.parameters)
    touched = access_map(s, access, program.parameters, program.tensor[access.tensor].shape)
    return fix_sizes(where.reverse().apply_range(touched), program.binding)


def redirected(schedule: Schedule, s: Statement, tensor: str, new: Tensor, tile: Tile, pad: bool) -> Statement:
    """A user with its accesses to the tensor turned to the buffer."""
    values = dict(zip(tile.variables, schedule.nests[s.name].expressions(tile.loops), strict=True))
    corner = [c.substitute(values) for c in tile.box.lower]

    def seen(access: Access) -> Access:
        if access.tensor != tensor:
            return access
        index = tuple(i - c if isinstance(i, Affine) else i for i, c in zip(access.index, corner, strict=True))
        guard, fill = ((), None) if pad else (access.guard, access.fill)
        return Access(new.name, index, guard, fill)

    return replace(s, write=seen(s.write), reads=tuple(seen(r) for r in s.reads))


def _padding(
    schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile
) -> tuple[tuple[Constraint, ...], Const] | tuple[()]:
    """The guard, on elements, and the fill of the padding that users read; () where nothing is padded."""
    program = schedule.program
    shape = program.tensor[tensor].shape
    fills = {a.fill for u in users for a, _ in program.statement[u].accesses if a.tensor == tensor}
    if fills == {None}:
        return ()
    if len(fills) > 1:
        raise ScheduleError(
            f"{tensor} is read with different fills {fills}", where=schedule.source.name, hint="pad=False"
        )
    for u in users:
        s = program.statement[u]
        for a in s.reads:
            if a.tensor == tensor and not _guard_is_bounds(program, s, a):
                raise ScheduleError(
                    f"{u} guards {tensor} by more than its bounds", where=schedule.source.name, hint="pad=False"
                )
    (fill,) = fills
    assert fill is not None
    places = zip(tile.elements, shape, strict=True)
    bounds = [c for e, extent in places for c in (Constraint(var(e)), Constraint(extent - 1 - var(e)))]
    return tuple(bounds), fill


def _guard_is_bounds(program: Program, s: Statement, access: Access) -> bool:
    from poly.relations import box

    free = access_map(s, replace(access, guard=(), fill=None), program.parameters)
    inside = free.intersect_range(box(access.tensor, program.tensor[access.tensor].shape, program.parameters))
    return (
        access_map(s, access, program.parameters)
        .intersect_params(program.context)
        .is_equal(inside.intersect_params(program.context))
    )


def named(domain: isl.Set, iterators: Sequence[str]) -> isl.Set:
    """The set with its dimensions called like the iterators, for whoever prints it."""
    for k, name in enumerate(iterators):
        domain = domain.set_dim_name(isl.dim_type.set, k, name)
    return domain


def _written(schedule: Schedule, tensor: str, users: Sequence[str], tile: Tile) -> isl.Map:
    """The part of a footprint that users write: only that is copied out."""
    result: isl.Map | None = None
    for name in users:
        s = schedule.program.statement[name]
        if s.write.tensor == tensor:
            part = _tile_access(schedule, s, s.write, tile).set_tuple_name(OUT, "")
            result = part if result is None else result.union(part)
    assert result is not None
    return coalesced(result)


def span(schedule: Schedule, at: str | None, users: Sequence[str]) -> tuple[int, int]:
    """First and last position among the children of loop `at` (or of the root) that hold users."""
    steps = [_inside(schedule.nests[u].path, at)[:1] for u in users]
    positions = [s[0] if s and isinstance(s[0], int) else 0 for s in steps]
    return min(positions), max(positions)


def _after_writers(schedule: Schedule, tensor: str, at: str | None, users: Sequence[str]) -> int:
    """The first position inside loop `at` behind everybody else who writes the tensor: a copy in is as early as it
    can.
    """
    under = tuple(schedule.nests) if at is None else schedule.under(at)
    others = [n for n in under if n not in users and schedule.program.statement[n].write.tensor == tensor]
    return span(schedule, at, others)[1] + 1 if others else 0


def _inside(path: tuple[PathStep, ...], at: str | None) -> tuple[PathStep, ...]:
    return path if at is None else path[path.index(at) + 1 :]


def insert_nest(nests: dict[str, Nest], at: str | None, position: int, own: Nest, name: str) -> dict[str, Nest]:
    """Make room at a position inside loop `at` and put a nest there; `own.path` continues from `at`."""
    result: dict[str, Nest] = {}
    prefix: tuple[PathStep, ...] = ()
    for other, nest in nests.items():
        if at is not None and at not in nest.path:
            result[other] = nest
            continue
        prefix = nest.path[: len(nest.path) - len(_inside(nest.path, at))]
        rest = _inside(nest.path, at)
        here, rest = (rest[0], rest[1:]) if rest and isinstance(rest[0], int) else (0, rest)
        result[other] = Nest(nest.loops, (*prefix, here + (here >= position), *rest))
    result[name] = Nest(own.loops, (*prefix, position, *own.path))
    return result


def _own_nest(name: str, new: Tensor, tile: Tile, order: Sequence[int] | None) -> Nest:
    """The loops of a copy: the tile's, then one for each axis longer than 1, in storage order."""
    loops = {loop: var(v) for loop, v in zip(tile.loops, tile.variables, strict=True)}
    own: list[str] = []
    for d in order if order is not None else range(new.rank):
        extent = new.shape[d]
        if not (extent.is_constant and extent.constant == 1):
            loops[f"{name}.{d}"] = var(tile.elements[d]) - tile.box.lower[d]
            own.append(f"{name}.{d}")
    return Nest(loops, tuple(own))


def _insert(statements: list[Statement], copy: Statement, users: Sequence[str], *, after: bool) -> list[Statement]:
    places = [k for k, s in enumerate(statements) if s.name in users]
    k = places[-1] + 1 if after else places[0]
    return [*statements[:k], copy, *statements[k:]]


def drop_unused(program: Program, statements: tuple[Statement, ...]) -> Program:
    """The program with other statements; temporaries that nobody touches any more are dropped."""
    used = {a.tensor for s in statements for a, _ in s.accesses} | {
        n for s in statements if s.external is not None for n in (*s.external.reads, *s.external.writes)
    }
    tensors = tuple(t for t in program.tensors if t.role != "temporary" or t.name in used)
    return replace(program, tensors=tensors, statements=statements)
