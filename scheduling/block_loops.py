"""Blocks of a loop: where something is read or written at `i//c` or `i%c` and i runs over whole blocks, i is two loops,
`c*i + r`.

A bijection of instances in their old order, so values do not change. What is read at i is then walked by two loops as a
matrix is, and no floor or remainder is left that no loop can be tiled or summed in lanes by. Elements that short blocks
share are better loaded as whole vectors and spread, so blocks that are only read are of some length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from poly.affine import Affine, FloorDiv, Mod, Var, var
from poly.expr import IndexValue, walk
from poly.program import Access, Program, Statement, box_domain, default_path
from poly.scheduling.groups import domain_box

# Elements of a block that is only read: of c up to 8, half a vector, `y[i] = x[i]*w[i%c]` takes 1.4 to 4.5 times longer
# by blocks; from 9 on 0.3 to 0.7 where vectors are no whole blocks (1.0 to 1.2 where they are), `w[i//c]` 0.2 to 1.
LEAST_READ = 9
LEAST_SUMMED = 4  # of a block along a sum: shorter ones are slower than whole vectors


def blocks_apart(program: Program) -> Program:
    """The program, its sizes put in, with two loops for each that walks blocks; itself where none does."""
    statements = tuple(_apart(program, s, k) for k, s in enumerate(program.statements))
    return program if statements == program.statements else replace(program, statements=statements)


def _apart(program: Program, s: Statement, position: int, least_read: int = LEAST_READ) -> Statement:
    """A statement whose first loop over blocks is two loops, and so on with what comes out; itself where none is."""
    if any(a.guard or a.indirect for a, _ in s.accesses):
        return s
    blocks = sorted({*_blocks(s, least_read)}, key=lambda b: (b[1], b[0]))
    for name, c in blocks:
        apart = in_blocks(program, s, position, name, c)
        if apart is not None:
            # In whole vectors now, so blocks of blocks may be short: A[i//40,i%40//20,i%20] is 20, then 2 of these.
            return _apart(program, apart, position, 2 if c >= LEAST_READ else least_read)
    return s


def in_blocks(program: Program, s: Statement, position: int, name: str, c: int) -> Statement | None:
    """A statement with two loops for one, over blocks of c iterations and in them; None where they do not make up all
    of it, or its values do not follow.
    """
    box = domain_box(program, s, s.iterators)
    if box is None or any(isinstance(e, IndexValue) and name in e.index.names for e in walk(s.body)):
        return None
    at, taken = s.iterators.index(name), {*s.iterators, *program.parameters}
    low, high = box[at]
    if low % c or (high + 1) % c or high - low < c:
        return None
    fast = next(n for k in range(len(taken) + 1) if (n := f"{name}_b{'_' * k}") not in taken)
    write, *reads = (_moved(a, name, fast, c) for a in (s.write, *s.reads))
    if not all(_is_plain(i, fast) for a in (write, *reads) for i in a.index if isinstance(i, Affine)):
        return None
    ranges = [(i, first, last + 1) for i, (first, last) in zip(s.iterators, box, strict=True)]
    ranges[at : at + 1] = [(name, low // c, (high + 1) // c), (fast, 0, c)]
    iterators = tuple(i for i, *_ in ranges)
    return replace(
        s, iterators=iterators, domain=box_domain(s.name, ranges, program.parameters), write=write,
        reads=tuple(reads), path=default_path(position, iterators),
    )  # fmt: skip


def _blocks(s: Statement, least_read: int) -> Iterator[tuple[str, int]]:
    """Iterators that stand in floors or remainders, and how many of them are one there, if that is long enough."""
    written = {n for i in s.write.affine_index for n in i.names}
    for access in (s.write, *s.reads):
        atoms = [a for i in access.index if isinstance(i, Affine) for a, _ in i.terms]
        for name in s.iterators:
            least = 2 if access is s.write else least_read if name in written else min(LEAST_SUMMED, least_read)
            for c in {a.divisor for a in atoms if not isinstance(a, Var) and a.argument == var(name)}:
                if c >= least:
                    yield name, c


def _moved(access: Access, name: str, fast: str, c: int) -> Access:
    """An access, with its guard, with `c*name + fast` for an iterator."""

    def atom(a: Var | FloorDiv | Mod) -> Affine:
        if isinstance(a, Var):
            return var(name) * c + var(fast) if a.name == name else Affine(((a, 1),))
        inside = moved(a.argument)
        slow, blocks = inside - var(fast), a.divisor // c
        if a.divisor % c or slow % c != Affine():
            return inside // a.divisor if isinstance(a, FloorDiv) else inside % a.divisor
        return slow // c // blocks if isinstance(a, FloorDiv) else slow // c % blocks * c + var(fast)

    def moved(i: Affine) -> Affine:
        return sum((atom(a) * k for a, k in i.terms), Affine.of(i.constant))

    index = tuple(moved(i) if isinstance(i, Affine) else i for i in access.index)
    return replace(access, index=index, guard=tuple(replace(g, expr=moved(g.expr)) for g in access.guard))


def _is_plain(i: Affine, name: str) -> bool:
    """Whether a name stands outside floors and remainders alone."""
    return not any(name in a.argument.names for a, _ in i.terms if not isinstance(a, Var))
