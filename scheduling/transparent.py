"""Buffers that change no values: filled from the tensor they stand for, used, and emptied into it, tile by tile.

In such a tile every use of the buffer gets what it would get from the tensor itself, whatever the rest of the schedule
does. So the copies are taken out, and the accesses are to the tensor again, before values are followed
(`poly.scheduling.values`).
What is asked of a tile, in one iteration of the loops of the buffer's scope:

- copies in come before all users (where the buffer is only read, each element before its uses), copies out after them,
  and nobody else is there who touches the tensor (who writes it, where the buffer is only read);
- every element that is read was copied in, or surely written before;
- every element that is copied out was copied in or surely written, and every written one is copied out.

A buffer for which one of these is not plain stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import islpy as isl

from poly.affine import Affine, Var, var
from poly.program import Access, Statement, Tensor
from poly.relations import bound_access, range_of
from poly.scheduling.cover import Cover
from poly.scheduling.paths import common_prefix, relation_in_time
from poly.scheduling.schedule import Schedule
from poly.scheduling.vectors import Vectors

Kind = Literal["read", "write"]


def without_transparent(schedule: Schedule, vectors: Vectors) -> Schedule:
    """The schedule without buffers that change no values."""
    work = _Elision(schedule, vectors)
    removed = [t for t in sorted(schedule.program.tensors, key=lambda t: -len(t.scope)) if t.origin and work.remove(t)]
    if not removed or not all(map(work.is_as_before, work.now.values())):
        return schedule
    program, gone = schedule.program, {t.name for t in removed}
    again = {t.origin for t in removed} - program.tensor.keys()
    tensors = tuple(t for t in program.tensors if t.name not in gone)
    tensors += tuple(t for t in schedule.source.tensors if t.name in again)
    left = replace(program, tensors=tensors, statements=tuple(work.now.values()))
    return replace(schedule, program=left, nests={name: schedule.nests[name] for name in work.now})


@dataclass(frozen=True)
class _Tile:
    """A buffer, the tensor it stands for, the copies in and out, and who else uses it. `corner`: by how much subscripts
    of the tensor are more than those of the buffer, by the loops of the scope.
    """

    buffer: Tensor
    outer: str
    fills: Sequence[Statement]
    drains: Sequence[Statement]
    users: Sequence[Statement]
    corner: tuple[Affine, ...]

    def uses(self, kind: Kind) -> Iterator[tuple[Statement, Access]]:
        """The accesses of users."""
        for s in self.users:
            yield from ((s, a) for a, k in s.accesses if a.tensor == self.buffer.name and k == kind)

    @property
    def is_written(self) -> bool:
        return any(True for _ in self.uses("write"))


@dataclass(frozen=True)
class _Elements:
    """Elements of a tensor, with the first and last value of every subscript where these are plain."""

    ranges: tuple[tuple[int, int] | None, ...]
    elements: isl.Set

    def are(self, other: _Elements) -> bool:
        """Whether these are plainly the same elements."""
        return self.ranges == other.ranges and bool(self.elements.plain_is_equal(other.elements))

    def apart(self, other: _Elements) -> bool:
        """Whether no element is in both."""
        for a, b in zip(self.ranges, other.ranges, strict=True):
            if a is not None and b is not None and (a[1] < b[0] or b[1] < a[0]):
                return True
        return bool(self.elements.is_disjoint(other.elements))


class _Elision:
    """`now`: the statements, as far as buffers are gone."""

    def __init__(self, schedule: Schedule, vectors: Vectors) -> None:
        self.schedule, self.program, self.vectors = schedule, schedule.program, vectors
        self.now: dict[str, Statement] = dict(schedule.program.statement)

    def remove(self, buffer: Tensor) -> bool:
        """Take a buffer's copies out and let its users access the tensor, where that is plainly the same."""
        tile = self._tile(buffer)
        if tile is None or not (self._in_order(tile) and self._alone(tile) and self._covered(tile)):
            return False
        guards = {(s.reads[0].guard, s.reads[0].fill, s.reads[0].index, s.iterators) for s in tile.fills}
        padded = any(guard for guard, *_ in guards)
        if padded and (len(guards) > 1 or tile.is_written or tile.drains):
            return False
        if padded and (any(a.guard for _, a in tile.uses("read")) or not _elementwise(tile.fills[0])):
            return False
        users = {s.name: self._without_buffer(tile, s, tile.fills[0] if padded else None) for s in tile.users}
        gone = {s.name for s in (*tile.fills, *tile.drains)}
        self.now = {n: users.get(n, s) for n, s in self.now.items() if n not in gone}
        return True

    def is_as_before(self, s: Statement) -> bool:
        """Whether a part of a statement of the source program has its accesses of the same tensors; what else is
        accessed is judged by the values that come of it.
        """
        if s.copies or s.recomputed or s.partial:
            return True
        source = self.schedule.source.statement[s.source_name]
        if s is source:
            return True
        if len(s.reads) != len(source.reads) or (s.external is None) != (source.external is None):
            return False
        pairs = zip((s.write, *s.reads), (source.write, *source.reads), strict=True)
        return all(a is b or self._same(s, a, b) for a, b in pairs)

    def _same(self, s: Statement, now: Access, before: Access) -> bool:
        if now == before:
            return True
        if now.tensor != before.tensor:
            return True  # its value is followed
        if now.fill != before.fill or now.indirect or before.indirect:
            return False
        known = self.program.binding
        if now.substitute(known).index != before.substitute(known).index:
            return False
        return bound_access(self.program, s, now).is_equal(bound_access(self.program, s, before))

    # ---- what a buffer is made of

    def _tile(self, buffer: Tensor) -> _Tile | None:
        touching = [s for s in self.now.values() if _touches(s, buffer.name)]
        if not touching or any(s.external or any(a.indirect for a, _ in s.accesses) for s in touching):
            return None
        fills = [s for s in touching if s.copies and s.write.tensor == buffer.name]
        drains = [s for s in touching if s.copies and s not in fills and self._is_outer(s.write.tensor, buffer)]
        outer = {s.reads[0].tensor for s in fills} or {s.write.tensor for s in drains} or {buffer.origin}
        if len(outer) > 1:
            return None
        (name,) = outer
        drains = [s for s in drains if s.write.tensor == name]
        users = [s for s in touching if s not in fills and s not in drains]
        if not self._is_outer(name, buffer) or any(s.reads[0].guard for s in drains):
            return None
        corners = {self._corner(s, s.reads[0], s.write, buffer) for s in fills}
        corners |= {self._corner(s, s.write, s.reads[0], buffer) for s in drains}
        corners = corners or set(self._corners(users, buffer))
        corner = corners.pop() if len(corners) == 1 else None
        return None if corner is None else _Tile(buffer, name, fills, drains, users, corner)

    def _is_outer(self, name: str, buffer: Tensor) -> bool:
        """Whether a tensor may be what a buffer stands for: the same elements, for at least one of its tiles."""
        outer = self.program.tensor.get(name) or self.schedule.source.tensor[name]
        return (
            name != buffer.name and buffer.origin in (name, outer.origin) and outer.dtype == buffer.dtype
            and outer.rank == buffer.rank and buffer.scope[: len(outer.scope)] == outer.scope
        )  # fmt: skip

    def _corners(self, users: Sequence[Statement], buffer: Tensor) -> Iterator[tuple[Affine, ...] | None]:
        """The corners by what users access in the source program, for a buffer without copies."""
        for s in users:
            if not (s.copies or s.recomputed or s.partial):
                source = self.schedule.source.statement[s.source_name]
                for now, before in zip((s.write, *s.reads), (source.write, *source.reads), strict=True):
                    if now.tensor == buffer.name and before.tensor == buffer.origin and not before.indirect:
                        yield self._corner(s, before, now, buffer)

    def _corner(self, copy: Statement, outer: Access, inner: Access, buffer: Tensor) -> tuple[Affine, ...] | None:
        index = tuple(a - b for a, b in zip(outer.affine_index, inner.affine_index, strict=True))
        found = self.vectors.index_by_loops(copy, Access(outer.tensor, index))
        if found is None or not all(e.names <= {*buffer.scope, *self.program.parameters} for e in found):
            return None
        return tuple(found)

    def _without_buffer(self, tile: _Tile, s: Statement, padded: Statement | None) -> Statement:
        """A user that accesses the tensor instead of the buffer; with the guard of the copy in, where that has one."""
        nest = self.schedule.nests[s.name]
        corner = [c.substitute({n: nest.loops[n] for n in tile.buffer.scope}) for c in tile.corner]

        def through(access: Access) -> Access:
            if access.tensor != tile.buffer.name:
                return access
            index = tuple(i + c for i, c in zip(access.affine_index, corner, strict=True))
            if padded is None:
                return replace(access, tensor=tile.outer, index=index)
            names = [str(e) for e in padded.reads[0].index]
            guard = tuple(c.substitute(dict(zip(names, index, strict=True))) for c in padded.reads[0].guard)
            return Access(tile.outer, index, guard, padded.reads[0].fill)

        return replace(s, write=through(s.write), reads=tuple(map(through, s.reads)))

    # ---- what is asked of a tile

    def _in_order(self, tile: _Tile) -> bool:
        """Copies in, users, copies out, in one iteration of the loops of the scope and no others."""
        groups = [tile.fills, tile.users, tile.drains]
        paths = [self.schedule.nests[s.name].path for group in groups for s in group]
        shared = [step for step in common_prefix(*paths) if isinstance(step, str)]
        scope = tile.buffer.scope
        if tuple(shared[: len(scope)]) != scope:
            return False
        pairs = [(a, b) for k, group in enumerate(groups) for a in group for later in groups[k + 1 :] for b in later]
        return all(self._before(a, b) == scope or self._on_way(tile, a, b) for a, b in pairs)

    def _on_way(self, tile: _Tile, fill: Statement, user: Statement) -> bool:
        """Whether a user in loops of the tile that it shares with a copy in gets each element after that is copied."""
        if tile.is_written or tile.drains:
            return False
        depth, read = len(tile.buffer.scope), [a for a, _ in user.accesses if a.tensor == tile.buffer.name]
        return all(self._is_earlier(depth, fill, fill.write, user, a) for a in read)

    def _before(self, first: Statement, second: Statement) -> tuple[str, ...] | None:
        """The loops that two statements share, if the first comes first in one iteration of them."""
        shared, order = relation_in_time(self.schedule.nests[first.name].path, self.schedule.nests[second.name].path)
        return shared if order == "before" else None

    def _alone(self, tile: _Tile) -> bool:
        if not tile.fills and not tile.drains:
            return self._nobodys(tile)
        scope, own = tile.buffer.scope, {s.name for s in (*tile.fills, *tile.drains)}
        written = bool(tile.drains) or tile.is_written
        inside = self.schedule.under(scope[-1]) if scope else tuple(self.schedule.nests)
        others = [self.now[n] for n in inside if n in self.now and n not in own]
        return not any(_touches(s, tile.outer, writing=not written) for s in others)

    def _nobodys(self, tile: _Tile) -> bool:
        """Whether the elements of a tensor that a buffer without copies stands for are used by its users alone."""
        if self.schedule.source.tensor[tile.outer].role != "temporary":
            return False
        users, others = {s.name for s in tile.users}, [s for s in self.now.values() if _touches(s, tile.outer)]
        indirect = any(a.indirect for s in others for a, _ in s.accesses if a.tensor == tile.outer)
        if indirect or any(s.external or s.name in users for s in others):
            return False
        own = self._elements(tile.outer, [self._without_buffer(tile, s, None) for s in tile.users])
        theirs = self._elements(tile.outer, others)
        return all(one.apart(two) for one in own for two in theirs)

    def _elements(self, tensor: str, statements: Sequence[Statement]) -> list[_Elements]:
        """The elements of a tensor that each access of some statements reaches, alike ones once: pieces of a statement
        and what follows them touch the same.
        """
        found: list[_Elements] = []
        for s in statements:
            for access in (a for a, _ in s.accesses if a.tensor == tensor):
                ranges = tuple(range_of(self.program, s, e) for e in access.affine_index)
                elements = _Elements(ranges, bound_access(self.program, s, access).range())
                if not any(elements.are(other) for other in found):
                    found.append(elements)
        return found

    def _covered(self, tile: _Tile) -> bool:
        cover = Cover(self.vectors, len(tile.buffer.scope))
        fills = [(s, s.write) for s in tile.fills]
        drains = [(s, s.reads[0]) for s in tile.drains]
        sure = [(s, a) for s, a in tile.uses("write") if s.combiner is None]
        for s, access in tile.uses("read"):
            if not cover.within((s, access), fills):
                early = [(w, a) for w, a in sure if self._is_earlier(len(tile.buffer.scope), w, a, s, access)]
                if not early or not cover.within((s, access), [*fills, *early]):
                    return False
        if not fills and not drains:
            return True
        known = all(cover.within(d, fills) or bool(sure) and cover.within(d, [*fills, *sure]) for d in drains)
        return known and all(cover.within(w, drains) for w in tile.uses("write"))

    def _is_earlier(self, depth: int, writer: Statement, write: Access, s: Statement, read: Access) -> bool:
        """Whether a tile's elements that a statement writes are written before another reads them."""
        shared = self._before(writer, s)
        if shared is None:
            return False
        first, second = self.vectors.index_by_loops(writer, write), self.vectors.index_by_loops(s, read)
        return all(self.vectors.tell_apart(writer, first, s, second, k) for k in range(depth, len(shared)))


def _touches(s: Statement, tensor: str, *, writing: bool = False) -> bool:
    """Whether a statement accesses a tensor, or only whether it writes it."""
    if s.external is not None and tensor in (s.external.writes if writing else (*s.external.reads, *s.external.writes)):
        return True
    return any(a.tensor == tensor and (k == "write" or not writing) for a, k in s.accesses)


def _elementwise(copy: Statement) -> bool:
    """Whether what a copy reads, and the guard of that, is told by iterators that are the subscripts."""
    read = copy.reads[0]
    names = [e.terms[0][0].name for e in read.affine_index if len(e.terms) == 1 and isinstance(e.terms[0][0], Var)]
    inside = {n for c in read.guard for n in c.expr.names} & {*copy.iterators}
    return [*map(var, names)] == [*read.affine_index] and len({*names}) == len(names) and inside <= {*names}
