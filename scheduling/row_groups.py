"""Groups of rows: reduce -> broadcast -> reduce chains that share outer parallel loops (`row_groups`).

Two groups become one where, for one iteration of some loops that both have, what the later one reads of the earlier
one is made in that same iteration (so nothing is computed twice), what such an iteration touches fits a cache, and a
good part of what the later group moves need then not come from memory again. Below the shared loops each statement has
loops of its own. Contractions, which use their operands again across rows, keep a group to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from poly.affine import Affine
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import last_capacity, own_share
from poly.scheduling.groups import (
    Group,
    bare,
    domain_box,
    groups_of,
    tensors_read,
    tensors_written,
    written_once,
)  # fmt: skip
from poly.scheduling.row_blocks import loop_pairs, row_blocks, shared_loops

MOST_REUSE = 2  # uses of an element across the loops of a reduction from which it is a contraction
ROW_PART = 4  # of a core's part of the last cache, what one row may take: chosen, not fitted (138c0d7)
LEAST_SAVED = 4  # a quarter of what the later group touches must be shared


@dataclass(frozen=True)
class Room:
    """Bytes that one row may touch: in a core's own cache, and in the last one where there are rows enough to share
    out, `least_rows`.
    """

    own: int
    last: int = 0
    least_rows: int = 0

    def of_each(self, rows: int) -> int:
        """Bytes for each of so many rows."""
        return max(self.own, self.last) if rows >= self.least_rows else self.own


def groups_for(program: Program, machine: Machine, threads: int = 1) -> list[Group]:
    """The groups that suit a machine: on cores with caches chains along rows are one, elsewhere each step is one."""
    own = max((m.capacity or 0 for m in machine.own_caches), default=0)
    if machine.kind != "cpu" or not own:
        return groups_of(program)
    room = Room(own_share(own), last_capacity(machine) // (ROW_PART * machine.cores), threads)
    return row_blocks(program, row_groups(program, room), machine)


def row_groups(program: Program, room: Room) -> list[Group]:
    """The groups of a program, with those that share rows joined."""
    facts = _Facts(program, room)
    groups: list[Group] = []
    maker: dict[str, int] = {}
    for group in groups_of(program):
        producers = {maker[t] for s in group.statements for t in tensors_read(s) if t in maker}
        changed = {t for s in group.statements for t in tensors_written(s)} & facts.updated
        producers |= {k for k, g in enumerate(groups) if changed & _touched(g)}
        home, joined = len(groups), None
        for k in range(max(producers, default=0), len(groups)):  # behind all that it reads
            if (joined := facts.joined(groups[k], group)) is not None:
                home = k
                break
        groups[home : home + 1] = [joined or group]
        for s in group.statements:
            maker |= dict.fromkeys(tensors_written(s), home)
    return groups


class _Facts:
    """What is asked of the statements of one program, answered once."""

    def __init__(self, program: Program, room: Room) -> None:
        self.program, self.room = program, room
        self.updated = {t.name for t in program.tensors if t.role == "inout"}
        self.single = written_once(program) | self.updated
        self.extents: dict[str, Mapping[str, int] | None] = {}

    def joined(self, first: Group, second: Group) -> Group | None:
        """One group of both, or None where that is not possible or does not pay."""
        if first.box is None or second.box is None or not _touched(first) & _touched(second):
            return None
        if not all(self.plain(s) for g in (first, second) for s in g.statements):
            return None
        touched = [t for g in (first, second) for s in g.statements for t in {*tensors_read(s), *tensors_written(s)}]
        if any(touched.count(t) > 1 for g in (first, second) for s in g.statements for t in self.updated_by(s)):
            return None
        pairs = self._shared(first, second)
        if not pairs:
            return None
        axes = {s.name: tuple(first.axes[s.name][a] for a in pairs) for s in first.statements}
        axes |= {s.name: tuple(second.axes[s.name][p] for p in pairs.values()) for s in second.statements}
        reductions = [s for g in (first, second) for s in g.statements if s.combiner is not None]
        if any(frozenset(axes[s.name]) != names_of(s.write) for s in reductions):
            return None
        if all(set(axes[s.name]) == set(s.iterators) for s in (*first.statements, *second.statements)):
            return None
        saved = self.saved(first, second, axes)
        why = f"{second.names[0]} uses what {first.names[0]} makes or reads in the same row: {saved} bytes less to move"
        group = Group(
            (*first.statements, *second.statements), axes, {}, tuple(first.box[a] for a in pairs),
            (*first.why, *second.why, why), (*(first.parts or (first,)), *(second.parts or (second,))),
        )  # fmt: skip
        moved = sum(self.bytes(t) for t in _touched(second))
        return group if saved * LEAST_SAVED >= moved and self.fits(group) else None

    def updated_by(self, s: Statement) -> set[str]:
        """What a statement changes that came in: nothing else of a group may touch it."""
        return self.updated & {*tensors_written(s)}

    def plain(self, s: Statement) -> bool:
        """A statement over a box from 0, written once, whose subscripts on the left are iterators, not a contraction.
        """
        if s.name not in self.extents:
            self.extents[s.name] = self._box(s)
        extents = self.extents[s.name]
        if extents is None or s.write.tensor not in self.single:
            return False
        written = [bare(i) for i in s.write.index if isinstance(i, Affine)]
        names = [n for n in written if n is not None]
        if len(set(names)) < len(names) or len(written) < len(s.write.index):
            return False
        if any(n is None and not i.is_constant for n, i in zip(written, s.write.affine_index, strict=True)):
            return False
        if any(r.guard or r.indirect for r in s.reads) or (s.combiner is None and set(names) != set(s.iterators)):
            return False
        most = max((prod(extents[n] for n in s.iterators if n in names_of(a)) for a, _ in s.accesses), default=1)
        return prod(extents.values()) <= MOST_REUSE * most

    def _box(self, s: Statement) -> Mapping[str, int] | None:
        box = domain_box(self.program, s, s.iterators) if s.external is None else None
        if box is None or any(low for low, _ in box):
            return None
        return {i: high + 1 for i, (_, high) in zip(s.iterators, box, strict=True)}

    def _shared(self, first: Group, second: Group) -> dict[int, int]:
        """The parallel loops of the first group that are loops of the second, for every value that it is handed, or
        where it is handed none, for some tensor that both read.
        """
        made = {s.write.tensor: [(s, s.write)] for s in first.statements}
        pairs = loop_pairs(first, second, made)
        if not pairs:
            read: dict[str, list[tuple[Statement, Access]]] = {}
            for s in first.statements:
                for access in s.reads:
                    read.setdefault(access.tensor, [(s, access)])
            pairs = {a: places - {None} for a, places in loop_pairs(first, second, read).items()}
        return shared_loops(first, second, pairs)

    def saved(self, first: Group, second: Group, axes: Mapping[str, Sequence[str]]) -> int:
        """Bytes of tensors, different ones in every row, that both groups touch."""
        total = 0
        for t in _touched(first) & _touched(second):
            found = [
                any(n in axes[s.name] for n in names_of(a)) for s in second.statements for a, _ in s.accesses
                if a.tensor == t
            ]  # fmt: skip
            total += self.bytes(t) if all(found) else 0
        return total

    def bytes(self, tensor: str) -> int:
        return self.program.tensor[tensor].nbytes(self.program.binding)

    def fits(self, group: Group) -> bool:
        """Whether what a row touches stays in a cache."""
        assert group.box is not None
        rows = prod(high - low + 1 for low, high in group.box)
        return self.row_bytes(group) <= self.room.of_each(rows)

    def row_bytes(self, group: Group) -> int:
        """Bytes that one iteration of a group's loops touches."""
        most: dict[str, int] = {}
        for s in group.statements:
            for access, _ in s.accesses:
                tensor = self.program.tensor[access.tensor]
                size = self.bytes(access.tensor)
                for subscript, extent in zip(access.affine_index, tensor.extents(self.program.binding), strict=True):
                    size = size // extent if subscript.names <= set(group.axes[s.name]) else size
                most[access.tensor] = max(most.get(access.tensor, 0), size)
        return sum(most.values())


def _touched(group: Group) -> set[str]:
    return {t for s in group.statements for t in (*tensors_read(s), *tensors_written(s))}
