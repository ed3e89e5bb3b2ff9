"""Sums of blocks: where a sum is written at `i//c` and i runs over whole blocks, i is two loops, `c*i + r`.

A bijection of instances in their old order, so values do not change. What is read at i is then walked by two loops as a
matrix is, and the written element no longer stands in a floor that no loop can be tiled or summed in lanes by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poly.affine import Affine, FloorDiv, Mod, Var, var
from poly.expr import IndexValue, walk
from poly.program import Access, Program, Statement, box_domain, default_path
from poly.scheduling.groups import domain_box


def blocks_apart(program: Program) -> Program:
    """The program, its sizes put in, with two loops for each that sums blocks; itself where none does."""
    statements = tuple(_apart(program, s, k) for k, s in enumerate(program.statements))
    return program if statements == program.statements else replace(program, statements=statements)


def _apart(program: Program, s: Statement, position: int) -> Statement:
    box = domain_box(program, s, s.iterators) if s.combiner is not None else None
    if box is None or any(a.guard or a.indirect for a, _ in s.accesses):
        return s
    taken = {*s.iterators, *program.parameters}
    as_values = {n for e in walk(s.body) if isinstance(e, IndexValue) for n in e.index.names}
    for name, c in _blocks(s):
        low, high = box[s.iterators.index(name)]
        if low % c or (high + 1) % c or name in as_values:
            continue
        fast = next(n for k in range(len(taken) + 1) if (n := f"{name}_b{'_' * k}") not in taken)
        write, *reads = (_moved(a, name, fast, c) for a in (s.write, *s.reads))
        plain = all(_is_plain(i, fast) for a in (write, *reads) for i in a.affine_index)
        if not plain or any(fast in i.names for i in write.affine_index):
            continue
        ranges = [(i, first, last + 1) for i, (first, last) in zip(s.iterators, box, strict=True)]
        at = s.iterators.index(name)
        ranges[at : at + 1] = [(name, low // c, (high + 1) // c), (fast, 0, c)]
        iterators = tuple(i for i, *_ in ranges)
        apart = replace(
            s, iterators=iterators, domain=box_domain(s.name, ranges, program.parameters), write=write,
            reads=tuple(reads), path=default_path(position, iterators),
        )  # fmt: skip
        return _apart(program, apart, position)
    return s


def _blocks(s: Statement) -> Iterator[tuple[str, int]]:
    """Iterators that stand in floors of what is written, and how many of them are one there."""
    for i in s.write.affine_index:
        for atom, _ in i.terms:
            if isinstance(atom, FloorDiv) and atom.argument.names <= {*s.iterators} and len(atom.argument.names) == 1:
                (name,) = atom.argument.names
                if atom.argument == var(name):
                    yield name, atom.divisor


def _moved(access: Access, name: str, fast: str, c: int) -> Access:
    """An access with `c*name + fast` for an iterator."""

    def atom(a: Var | FloorDiv | Mod) -> Affine:
        if isinstance(a, FloorDiv) and a.argument == var(name) and a.divisor % c == 0:
            return var(name) // (a.divisor // c)
        if isinstance(a, Mod) and a.argument == var(name) and a.divisor == c:
            return var(fast)
        return Affine(((a, 1),)).substitute({name: var(name) * c + var(fast)})

    index = (
        sum((atom(a) * k for a, k in i.terms), Affine.of(i.constant)) if isinstance(i, Affine) else i
        for i in access.index
    )
    return replace(access, index=tuple(index))


def _is_plain(i: Affine, name: str) -> bool:
    """Whether a name stands outside floors and remainders alone."""
    return not any(name in a.argument.names for a, _ in i.terms if not isinstance(a, Var))
