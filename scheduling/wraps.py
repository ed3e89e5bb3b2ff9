"""Loops that go around once or more in what they read are cut where they do: `y[i] = x[(i + 3000) % 10000]` is two
copies, and `y[i % 100] += x[i]` whole blocks (`poly.scheduling.block_loops`) and what is left.

Statements whose target nobody reads, and which write each element once or sum up in any order: instances are the same,
those of one piece before those of the next. Pieces are long, as a few elements beside a border are cheaper as lanes
that are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from poly.affine import Affine, FloorDiv, Mod, Var, var
from poly.program import Access, Program, Statement, box_domain, default_path
from poly.scheduling.block_loops import LEAST_READ
from poly.scheduling.groups import domain_box

LEAST = 64  # iterations of a piece that has no whole blocks
Box = dict[str, tuple[int, int]]


def wraps_apart(program: Program) -> Program:
    """The program, its sizes put in and each statement in a nest of its own, with pieces; itself where none is cut."""
    pieces = [p for s in program.statements for p in _pieces(program, s)]
    if len(pieces) == len(program.statements):
        return program
    placed = tuple(replace(p, path=default_path(k, p.iterators)) for k, p in enumerate(pieces))
    return replace(program, statements=placed)


def _pieces(program: Program, s: Statement) -> list[Statement]:
    ranges = domain_box(program, s, s.iterators)
    if ranges is None or not _any_order(program, s):
        return [s]
    box = dict(zip(s.iterators, ranges, strict=True))
    for name, shift, c in sorted({*_borders(s)}):
        ends = _ends(*box[name], shift, c)
        if len(ends) < 3:
            continue
        parts = [{**box, name: (a, b - 1)} for a, b in pairwise(ends)]
        names = [f"{s.name}_{k}" for k in range(len(parts))]
        if not {*names} & program.statement.keys():
            made = (_piece(program, s, n, part) for n, part in zip(names, parts, strict=True))
            return [p for piece in made for p in _pieces(program, piece)]
    return [s]


def _ends(low: int, high: int, shift: int, c: int) -> list[int]:
    """Where i in low .. high is cut so that floors of (i + shift) / c are constant, or that whole blocks are apart from
    the rest: first, ..., one past the last; only the two ends where it is not cut.
    """
    first, last = -((-low - shift) // c) * c - shift, (high + 1 + shift) // c * c - shift  # borders inside
    ends = sorted({low, *(e for e in (first, last) if low < e <= high), high + 1})
    if last - first > c:
        return [low, high + 1] if shift else ends  # blocks begin at multiples
    return [low, high + 1] if min(b - a for a, b in pairwise(ends)) < LEAST else ends


def _any_order(program: Program, s: Statement) -> bool:
    """Whether pieces of a statement may follow one another: what it writes is not read, nor written twice."""
    read = any(r.tensor == s.write.tensor for t in program.statements for r in t.reads)
    if s.external is not None or read or any(a.guard or a.indirect for a, _ in s.accesses):
        return False
    once = all(any(x == var(i) for x in s.write.affine_index) for i in s.iterators)
    return once if s.combiner is None else s.reorder


def _borders(s: Statement) -> Iterator[tuple[str, int, int]]:
    """Iterators that stand in floors or remainders with a constant, the constant, and the divisor, where that is no
    short block that is only read.
    """
    for access in (s.write, *s.reads):
        for atom in (a for x in access.affine_index for a, _ in x.terms if not isinstance(a, Var)):
            for name in s.iterators:
                long = access is s.write or atom.divisor >= LEAST_READ
                if long and (atom.argument - var(name)).is_constant:
                    yield name, (atom.argument - var(name)).constant, atom.divisor


def _piece(program: Program, s: Statement, name: str, box: Box) -> Statement:
    """The part of a statement inside a box."""
    domain = box_domain(name, [(i, low, high + 1) for i, (low, high) in box.items()], program.parameters)
    write, *reads = (_without_floors(a, box) for a in (s.write, *s.reads))
    return replace(s, name=name, domain=domain, write=write, reads=tuple(reads))


def _without_floors(access: Access, box: Box) -> Access:
    """An access whose floors and remainders that are in one block in a box are plain."""

    def plain(a: Var | FloorDiv | Mod) -> Affine:
        if isinstance(a, Var):
            return Affine(((a, 1),))
        name = next(iter(a.argument.names), "")
        rest = a.argument - var(name) if name in box else a.argument
        if name in box and rest.is_constant:
            block, last = ((end + rest.constant) // a.divisor for end in box[name])
            if block == last:
                return Affine.of(block) if isinstance(a, FloorDiv) else a.argument - block * a.divisor
        return Affine(((a, 1),))

    index = (sum((plain(a) * k for a, k in x.terms), Affine.of(x.constant)) for x in access.affine_index)
    return replace(access, index=tuple(index))
