"""Which axis of a tensor between groups is contiguous: an edit of access maps over the whole program, no copy.

A register tile of a contraction with constant operands likes what it reads contiguous along its reduction and what it
writes contiguous along the loops of the constants: nothing is turned, packed or folded then, whatever the step of a
window. What is element by element, or a window, likes one order for all that it touches. Inputs and outputs lie as the
caller's arrays do. The cost of a choice is closed-form, in cycles, from access maps; tensors that are tied together by
statements which walk them alike change together, each set of them where the sum gets less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_core import core_of
from poly.scheduling.groups import bare, tensors_read, tensors_written
from poly.scheduling.step_order import permuted

TURNED, STRIDED, MIXED = 1.0, 1.5, 4.0  # cycles an element: turned or packed, walked against memory, so by a window
SWEEPS = 4  # over all sets of tensors, at most


def reordered(program: Program, machine: Machine) -> Program:
    """The program with axes of its temporaries in an order that suits a core; itself where there is none better."""
    if machine.kind != "cpu" or machine.lanes(4) < 2 or set(program.parameters) - program.binding.keys():
        return program
    last = last_axes(program, machine)
    return with_last_axes(program, last) if last else program


def with_last_axes(program: Program, last: Mapping[str, int]) -> Program:
    """The same program with an axis of some tensors moved behind their others, in all accesses."""

    def moved(tensor: str, items: tuple[Affine, ...]) -> tuple[Affine, ...]:
        axis = last[tensor]
        return (*items[:axis], *items[axis + 1 :], items[axis])

    def access(a: Access) -> Access:
        return replace(a, index=moved(a.tensor, a.affine_index)) if a.tensor in last else a

    tensors = tuple(replace(t, shape=moved(t.name, t.shape)) if t.name in last else t for t in program.tensors)
    statements = tuple(
        _along_memory(replace(s, write=access(s.write), reads=tuple(access(r) for r in s.reads)), last)
        if any(a.tensor in last for a, _ in s.accesses)
        else s
        for s in program.statements
    )
    return replace(program, tensors=tensors, statements=statements)


def _along_memory(s: Statement, last: Mapping[str, int]) -> Statement:
    """A reduction whose loops go through a reordered operand as it lies: the last axis innermost."""
    reads = [r for r in s.reads if r.tensor in last]
    written = {n for i in s.write.affine_index for n in i.names}
    inner = [n for n in s.iterators if n not in written]
    if s.combiner is None or not s.reorder or not reads or s.path[1:] != s.iterators:
        return s
    places = {n: d for d, i in enumerate(reads[0].affine_index) for n in i.names}
    order = sorted(inner, key=lambda n: places.get(n, -1))
    return permuted(s, (*(n for n in s.iterators if n in written), *order))


def last_axes(program: Program, machine: Machine) -> dict[str, int]:
    """The tensors whose contiguous axis is better another one, and which."""
    costs = _Costs(program, machine)
    free = _movable(program)
    sets = [c for c in _tied(program, costs, free) if c.last]
    users: dict[str, list[Statement]] = {}
    for s in program.statements:
        for t in {a.tensor for a, _ in s.accesses}:
            users.setdefault(t, []).append(s)
    touched = [{s.name: s for t in c.last for s in users[t]} for c in sets]
    best: tuple[float, dict[str, int]] = (costs.total(program.statements, {}), {})
    for start in (True, False):
        last: dict[str, int] = {}
        for c in sets:
            last |= c.last if start else {}
        for _ in range(SWEEPS):
            changed = False
            for c, statements in zip(sets, touched, strict=True):
                other = {t: a for t, a in last.items() if t not in c.last}
                other = other if c.last.keys() & last.keys() else {**last, **c.last}
                if costs.total(statements.values(), other) < costs.total(statements.values(), last):
                    last, changed = other, True
            if not changed:
                break
        total = costs.total(program.statements, last)
        best = min(best, (total, last), key=lambda found: found[0])
    return best[1]


# ---- what can change


def _movable(program: Program) -> frozenset[str]:
    """Temporaries of two long axes or more, of which every subscript is linear in iterators."""
    heads = [s.path[0] for s in program.statements]
    fixed = {t.name for t in program.tensors if t.role != "temporary" or t.layout is not None or t.scope}
    fixed |= {t.name for t in program.tensors if sum(e > 1 for e in t.extents(program.binding)) < 2}
    for s in program.statements:
        shared = heads.count(s.path[0]) > 1
        if s.external is not None or shared:
            fixed |= {*tensors_read(s), *tensors_written(s)}
            continue
        for access, _ in s.accesses:
            if not all(isinstance(i, Affine) and i.is_linear for i in access.index):
                fixed.add(access.tensor)
    return frozenset(t.name for t in program.tensors if t.name not in fixed)


@dataclass(frozen=True)
class _Tied:
    """Tensors that change together, and the axis that each would have last."""

    last: Mapping[str, int]


def _tied(program: Program, costs: _Costs, free: frozenset[str]) -> list[_Tied]:
    """Sets of tensors that statements walk alike, with the axis that contractions like best for each."""
    root = {t: t for t in free}

    def find(t: str) -> str:
        while root[t] != t:
            t = root[t]
        return t

    for s in program.statements:
        for read in s.reads:
            if {read.tensor, s.write.tensor} <= free and _alike(s, read):
                root[find(read.tensor)] = find(s.write.tensor)
    votes: dict[str, dict[int, float]] = {}
    for s in program.statements:
        for tensor, axis in costs.liked(s):
            if tensor in free:
                votes.setdefault(find(tensor), {}).setdefault(axis, 0.0)
                votes[find(tensor)][axis] += costs.elements(tensor)
    sets: dict[str, list[str]] = {}
    for t in program.tensors:
        if t.name in free:
            sets.setdefault(find(t.name), []).append(t.name)
    chosen = {r: max(v, key=lambda axis: (v[axis], -axis)) for r, v in votes.items()}
    return [
        _Tied({t: chosen[r] for t in members if costs.fast(t, {}) != chosen[r]})
        for r, members in sets.items() if r in chosen
    ]  # fmt: skip


def _alike(s: Statement, read: Access) -> bool:
    """Whether a read has the iterators of what is written, axis by axis (those of a window besides)."""
    if len(read.index) != len(s.write.index) or read.indirect:
        return False
    return all(w.names <= r.names for w, r in zip(s.write.affine_index, read.affine_index, strict=True))


# ---- what it costs


@dataclass(frozen=True)
class _Contraction:
    """A reduction of one operand with constants: the loops of the constants alone are its columns."""

    moving: Access
    columns: frozenset[str]
    reductions: frozenset[str]


class _Costs:
    """Cycles of statements under an order of axes, but for those that no order changes."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine = program, machine
        self.tensors = program.tensor
        self.shapes = {t.name: t.extents(program.binding) for t in program.tensors}
        self.units = core_of(machine, 4).fma
        self.known: dict[str, _Contraction | None] = {}

    def elements(self, tensor: str) -> int:
        return prod(self.shapes[tensor])

    def fast(self, tensor: str, last: Mapping[str, int]) -> int:
        """The axis along which a tensor is contiguous; axes of one element count nothing."""
        shape = self.shapes[tensor]
        if tensor in last:
            return last[tensor]
        return next((d for d in reversed(range(len(shape))) if shape[d] > 1), len(shape) - 1)

    def total(self, statements: Iterable[Statement], last: Mapping[str, int]) -> float:
        return sum(self.cycles(s, last) for s in statements)

    def cycles(self, s: Statement, last: Mapping[str, int]) -> float:
        """What the order of axes costs one statement."""
        if s.external is not None or any(a.indirect for a, _ in s.accesses) or not s.write.index:
            return 0.0
        found = self.contraction(s)
        if found is not None:
            return self._contracted(s, found, last)
        along = self._fastest(s.write, last)
        elements = self.elements(s.write.tensor) if s.combiner is not None else prod(self._extents(s).values())
        return elements * sum(self._walked(s, read, along, last) for read in s.reads)

    def _walked(self, s: Statement, read: Access, along: frozenset[str], last: Mapping[str, int]) -> float:
        """Cycles an element that is written, of a read of a statement which is no contraction."""
        own = self._fastest(read, last) if s.combiner is None else self._along(read, last)
        if not read.index or self.tensors[read.tensor].role == "constant" or not along:
            return 0.0
        if s.combiner is None:
            moves = any(along & i.names for i in read.affine_index)
            return 0.0 if own == along or not moves else STRIDED
        if along <= own or not any(along & i.names for i in read.affine_index):
            return 0.0
        written = {n for i in s.write.affine_index for n in i.names}
        return MIXED if len(own) > 1 or own <= written else 0.0

    def _along(self, access: Access, last: Mapping[str, int]) -> frozenset[str]:
        return access.affine_index[self.fast(access.tensor, last)].names if access.index else frozenset()

    def _fastest(self, access: Access, last: Mapping[str, int]) -> frozenset[str]:
        """Of axes that are joined in one subscript, the one along which elements lie side by side."""
        names = self._along(access, last)
        if len(names) < 2:
            return names
        subscript = access.affine_index[self.fast(access.tensor, last)]
        least = min(abs(subscript.coefficient(n)) for n in names)
        return frozenset(n for n in names if abs(subscript.coefficient(n)) == least)

    def contraction(self, s: Statement) -> _Contraction | None:
        if s.name not in self.known:
            self.known[s.name] = self._contraction(s)
        return self.known[s.name]

    def _contraction(self, s: Statement) -> _Contraction | None:
        if s.combiner is None or any(a.indirect for a, _ in s.accesses):
            return None
        constant = [r for r in s.reads if self.tensors[r.tensor].role == "constant"]
        moving = [r for r in s.reads if self.tensors[r.tensor].role != "constant"]
        if len(moving) != 1 or not constant:
            return None
        (read,) = moving
        written = {n for i in s.write.affine_index for n in i.names}
        seen = {n for i in read.affine_index for n in i.names}
        columns = frozenset(n for r in constant for i in r.affine_index for n in i.names) & written - seen
        return _Contraction(read, columns, frozenset(s.iterators) - written) if columns else None

    def liked(self, s: Statement) -> Iterator[tuple[str, int]]:
        """The axes that a contraction likes to be contiguous: of what it reads, and of what it writes."""
        found = self.contraction(s) if s.external is None else None
        if found is None:
            return
        lanes = self.machine.lanes(size_bytes(self.tensors[s.write.tensor].dtype))
        for access, names in ((found.moving, found.reductions), (s.write, found.columns)):
            shape = self.shapes[access.tensor]
            own = [d for d, i in enumerate(access.affine_index) if bare(i) in names and shape[d] >= lanes]
            if own:
                yield access.tensor, max(own, key=lambda d: shape[d])

    def _contracted(self, s: Statement, found: _Contraction, last: Mapping[str, int]) -> float:
        """Lanes along the columns, or along another loop of what is written; whichever takes less."""
        lanes = self.machine.lanes(size_bytes(self.tensors[s.write.tensor].dtype))
        extents = self._extents(s)
        work = prod(extents.values()) / lanes / self.units
        own, along = self._along(found.moving, last), self._fastest(s.write, last)
        streams = own <= found.reductions and len(own) == 1
        read, written = self.elements(found.moving.tensor), self.elements(s.write.tensor)
        across = max((extents[n] for n in found.columns), default=1)
        by_columns = work * _waste(across, lanes) + (0.0 if streams else TURNED * read)
        if along <= found.columns:
            return by_columns
        wide = max((extents[n] for n in along), default=1)
        direct = work * _waste(wide, lanes) + TURNED * read * (1.0 if along <= own else 2.0)
        return min(by_columns + TURNED * written, direct)

    def _extents(self, s: Statement) -> dict[str, int]:
        """Iterations of the loops that are subscripts by themselves; 1 for others."""
        found = dict.fromkeys(s.iterators, 1)
        for access in (s.write, *s.reads):
            for subscript, extent in zip(access.affine_index, self.shapes[access.tensor], strict=True):
                name = bare(subscript)
                if name is not None:
                    found[name] = max(found[name], extent)
        return found


def _waste(extent: int, lanes: int) -> float:
    return -(-extent // lanes) * lanes / max(1, extent)

