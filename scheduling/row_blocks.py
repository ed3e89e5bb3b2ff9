"""Groups of row blocks: products, and groups of rows between them, that share a loop over blocks of rows.

A product that makes rows which only one later group uses, row by row, need not make all of them first: below a shared
loop over blocks of rows the groups run one after another, and what they hand on is a block that stays in a cache. It
pays where the bytes that memory or a farther cache need not move are more than what is fetched again for every block:
the operands that all rows use, where they do not stay beside a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from poly.affine import Affine
from poly.expr import Apply, walk
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import Core, core_of
from poly.scheduling.cpu_facts import FUNCTION_CYCLES, LIGHT, widest_element
from poly.scheduling.groups import Group, bare, domain_box, tensors_read, tensors_written, written_once

KEPT = 0.75  # of a cache that a block and the operands that all rows use may fill
HELD = 0.5  # of any cache, the last one, too: what it still holds of bytes when they are wanted again
LEAST_ROWS, MOST_ROWS = 8, 128  # of a block: enough register tiles to use a panel again, and no more than pays
WHOLE = 0.5  # of that, where all rows are one block, as no block divides them: 257 gain by it, 577 lose
SPARED = 0.5  # of the terms of sums, where some may be left out: those behind a diagonal
LITTLE = 16  # times less is what groups may use that come later than what all else is made for
LEAST_SAVED = 1 / 16  # of the operations' time, which every nest of the block pays back


def row_blocks(program: Program, groups: Sequence[Group], machine: Machine) -> list[Group]:
    """The groups with those joined that pay (see the module text); each later group with the makers of what it reads.

    A joined group has `block` rows, its axes are the shared loops with the rows last, its `parts` what it was before.
    """
    found = list(groups)
    single = written_once(program)
    facts = _Blocks(program, machine, single, {t for s in program.statements for t in tensors_written(s)} - single)
    for second in groups:
        at = next(k for k, g in enumerate(found) if g is second)
        for first in [g for g in found[:at] if facts.feeds(g, found[at], found[at + 1 :])]:
            joined = facts.joined(first, found[at])
            if joined is not None:
                found[at] = joined
                found.remove(first)
                at -= 1
    return found


@dataclass(frozen=True)
class _Blocks:
    """What is asked of the groups of one program."""

    program: Program
    machine: Machine
    single: frozenset[str]
    changed: Set[str]  # what is written more than once, or comes in and is written

    def feeds(self, first: Group, second: Group, behind: Sequence[Group]) -> bool:
        """Whether what a group makes for another one is used by these two only; and is not made of constants. What else
        it makes groups `behind` that may use, too, if it is little, as a value of each row is.
        """
        made = {t for s in first.statements for t in tensors_written(s)}
        handed = made & {t for s in second.statements for t in tensors_read(s)}
        if not handed or not made <= self.single:
            return False
        if any(t in self.changed for s in first.statements for t in tensors_read(s)):
            return False  # a statement between the groups may write it
        if all(self.program.tensor[t].role == "constant" for s in first.statements for t in tensors_read(s)):
            return False
        inside, later = {*first.names, *second.names}, {name for g in behind for name in g.names}
        users = [(s.name, made & {*tensors_read(s), *tensors_written(s)}) for s in self.program.statements]
        wanted = {t for t in made if self.program.tensor[t].role != "temporary"}
        wanted |= {t for name, used in users if name not in inside for t in used}
        if not wanted:
            return True
        least = min((self._size(t) for t in handed), default=0)
        few = wanted.isdisjoint(handed) and all(0 < self._size(t) * LITTLE <= least for t in wanted)
        return few and all(name in inside or name in later for name, used in users if used)

    def _size(self, tensor: str) -> int:
        """Bytes of a tensor, 0 where a size is free."""
        found, known = self.program.tensor[tensor], self.program.binding
        return found.nbytes(known) if all(e.names <= known.keys() for e in found.shape) else 0

    def joined(self, first: Group, second: Group) -> Group | None:
        """One group of both, or None where that is not possible or does not pay."""
        statements = (*first.statements, *second.statements)
        if first.box is None or second.box is None or not all(self._plain(s) for s in statements):
            return None
        made = {s.write.tensor: [(s, s.write)] for s in first.statements}
        pairs = shared_loops(first, second, loop_pairs(first, second, made))
        if not pairs or not _reduced(first, second):
            return None
        axes = {s.name: tuple(first.axes[s.name][a] for a in pairs) for s in first.statements}
        axes |= {s.name: tuple(second.axes[s.name][p] for p in pairs.values()) for s in second.statements}
        rows = self._rows(statements, axes, len(pairs))
        if rows is None:
            return None
        order = [*(k for k in range(len(pairs)) if k != rows), rows]
        axes = {name: tuple(own[k] for k in order) for name, own in axes.items()}
        box = tuple(first.box[list(pairs)[k]] for k in order)
        parts = tuple(p for g in (first, second) for p in (g.parts if g.block else (g,)))
        return self._paying(statements, axes, box, parts)

    def _plain(self, s: Statement) -> bool:
        """A statement over a box from 0 whose subscripts are iterators or numbers, without guards."""
        if s.external is not None or any(r.guard or r.indirect for r in s.reads):
            return False
        shapes = [e for a, _ in s.accesses for e in self.program.tensor[a.tensor].shape]
        if any(not e.names <= self.program.binding.keys() for e in shapes):
            return False
        box = domain_box(self.program, s, s.iterators)
        if box is None or any(low for low, _ in box) or not s.reorder:
            return False
        every = [i for access, _ in s.accesses for i in access.index]
        return all(isinstance(i, Affine) and (bare(i) is not None or i.is_constant) for i in every)

    def _rows(self, statements: Sequence[Statement], axes: Mapping[str, Sequence[str]], count: int) -> int | None:
        """The longest shared loop along which every product uses an operand again, and does not write what is
        contiguous; None where nothing is a product.
        """
        products = [s for s in statements if s.combiner is not None and len(s.iterators) > len(names_of(s.write))]
        products = [s for s in products if len({r.tensor for r in s.reads if r.tensor != s.write.tensor}) > 1]
        again = [
            k for k in range(count)
            if products and all(_uses_again(s, axes[s.name][k]) for s in products)
        ]  # fmt: skip
        extents = {k: self._extents(statements[0])[axes[statements[0].name][k]] for k in again}
        return max(again, key=lambda k: extents[k], default=None)

    def _extents(self, s: Statement) -> dict[str, int]:
        box = domain_box(self.program, s, s.iterators)
        assert box is not None
        return {i: high + 1 for i, (_, high) in zip(s.iterators, box, strict=True)}

    # ---- what pays

    def _paying(
        self,
        statements: Sequence[Statement],
        axes: Mapping[str, tuple[str, ...]],
        box: tuple[tuple[int, int], ...],
        parts: tuple[Group, ...],
    ) -> Group | None:
        """The group with the most rows whose block stays in a cache, where it pays."""
        core = core_of(self.machine, widest_element(self.program, statements))
        near = core.own[-1].capacity * KEPT
        extent, batches = box[-1][1] + 1, prod(high + 1 for _, high in box[:-1])
        row, resident, handed = self._bytes(statements, axes, parts)
        saved = 2 * sum(self._cycles(core, size) for size in handed) - self._idle(core, statements)
        fitting = [n for n in range(LEAST_ROWS, min(MOST_ROWS, extent) + 1) if extent % n == 0]
        if not fitting and extent > MOST_ROWS and resident + extent * row <= near * WHOLE:  # a prime number of rows
            fitting = [extent]
        best = max((n for n in fitting if resident + n * row <= near), default=0)
        again = 0.0
        if not best:
            best = max((n for n in fitting if n * row <= near), default=0)
            again = batches * (extent / best - 1) * self._cycles(core, resident) if best else 0.0
        work = sum(prod(self._extents(s).values()) for s in statements if s.combiner is not None)
        work = work / core.lanes / core.fma
        if any(s.spare for s in statements):  # blocks of rows leave them out, and what they read (`shortened`)
            saved, again = saved + SPARED * work, again * (1 - SPARED)
        if not best or saved <= max(again, LEAST_SAVED * work):
            return None
        why = f"{best} rows at a time: {row * best} bytes a block instead of {sum(handed)} bytes handed on"
        whys = (w for p in parts for w in p.why)
        return Group(tuple(statements), axes, {}, box, (*whys, why), parts, best)

    def _idle(self, core: Core, statements: Sequence[Statement]) -> float:
        """Cycles lost in lanes that rows leave empty, where assignments could have all elements in one row."""
        lost = 0.0
        for s in statements:
            if s.combiner is not None or any(names_of(r) and r.index != s.write.index for r in s.reads):
                continue
            extents, last = self._extents(s), s.write.index[-1] if s.write.index else Affine()
            row = extents.get(bare(last) or "", 1) if isinstance(last, Affine) else 1
            work = [1 if e.operator in LIGHT else FUNCTION_CYCLES for e in walk(s.body) if isinstance(e, Apply)]
            lost += prod(extents.values()) * (-(-row // core.lanes) / row - 1 / core.lanes) * sum(work)
        return lost

    def _bytes(
        self, statements: Sequence[Statement], axes: Mapping[str, tuple[str, ...]], parts: Sequence[Group]
    ) -> tuple[int, int, list[int]]:
        """Bytes of memory or of a block that a row touches, where what is handed on is changed in place, those that
        all rows of a batch do, and those of every tensor that parts hand on.
        """
        rows: dict[str, int] = {}
        resident: dict[str, int] = {}
        for s, access in _accesses(statements):
            size = bytes_inside(self.program, access, set(axes[s.name]))
            into = rows if axes[s.name][-1] in names_of(access) else resident
            into[access.tensor] = max(into.get(access.tensor, 0), size)
        home = {s.name: k for k, part in enumerate(parts) for s in part.statements}
        used: dict[str, set[int]] = {}
        for s, access in _accesses(statements):
            used.setdefault(access.tensor, set()).add(home[s.name])
        binding, tensor = self.program.binding, self.program.tensor
        made = {s.write.tensor for s in statements if tensor[s.write.tensor].role == "temporary"}
        handed = [t for t in made if len(used[t]) > 1]
        inside = [t for t in made if len(used[t]) == 1]
        place = {t: (tensor[t].shape, tensor[t].dtype) if t in handed else t for t in rows}  # one form: in place
        row = sum({place[t]: size for t, size in rows.items() if t not in inside}.values())
        return row, sum(resident.values()), [tensor[t].nbytes(binding) for t in handed]

    def _cycles(self, core: Core, size: int) -> float:
        """Cycles to bring bytes, or take them, from behind the caches that cannot hold them; 0 where the second can."""
        behind = [c.rate for c in core.caches if size > HELD * c.capacity]
        return size / behind[-1] if len(behind) > 1 or (behind and len(core.caches) < 2) else 0.0


def bytes_inside(program: Program, access: Access, outside: Set[str]) -> int:
    """Bytes of what an access touches in one iteration of some loops."""
    tensor = program.tensor[access.tensor]
    size = tensor.nbytes(program.binding)
    for subscript, extent in zip(access.affine_index, tensor.extents(program.binding), strict=True):
        size = size // extent if subscript.names and subscript.names <= outside else size
    return size


def _accesses(statements: Sequence[Statement]) -> Iterator[tuple[Statement, Access]]:
    for s in statements:
        for access, _ in s.accesses:
            yield s, access


def _uses_again(s: Statement, loop: str) -> bool:
    last = s.write.index[-1]
    return any(loop not in names_of(r) for r in s.reads) and not (isinstance(last, Affine) and loop in last.names)


def _reduced(first: Group, second: Group) -> bool:
    """Whether the second group adds up, or otherwise reduces, what the first one makes along a row."""
    made = {s.write.tensor for s in first.statements}
    reads = [(s, r) for s in second.statements if s.combiner is not None for r in s.reads if r.tensor in made]
    return any(names_of(r) - names_of(s.write) for s, r in reads)


def loop_pairs(
    first: Group, second: Group, handed: Mapping[str, Sequence[tuple[Statement, Access]]]
) -> dict[int, set[int | None]]:
    """For every loop of the first group those of the second that are the same subscript of what is handed on (None:
    there is none).
    """
    pairs: dict[int, set[int | None]] = {}
    for s in second.statements:
        for read in s.reads:
            for maker, access in handed.get(read.tensor, ()):
                for a, axis in enumerate(first.axes[maker.name]):
                    pairs.setdefault(a, set()).add(_place_of_loop(access, axis, read, second.axes[s.name]))
    return pairs


def shared_loops(first: Group, second: Group, pairs: Mapping[int, Set[int | None]]) -> dict[int, int]:
    """Of such pairs those of one loop with one other, over the same range."""
    if first.box is None or second.box is None:
        return {}
    found: dict[int, int] = {}
    for a, places in sorted(pairs.items()):
        place = next(iter(places)) if len(places) == 1 else None
        if place is not None and place not in found.values() and first.box[a] == second.box[place]:
            found[a] = place
    return found


def _place_of_loop(write: Access, axis: str, read: Access, loops: Sequence[str]) -> int | None:
    """Which of a reader's loops the subscript is that a maker's loop is, or None."""
    d = next((k for k, i in enumerate(write.index) if isinstance(i, Affine) and bare(i) == axis), None)
    subscript = read.index[d] if d is not None else None
    name = bare(subscript) if isinstance(subscript, Affine) else None
    return loops.index(name) if name in loops else None
