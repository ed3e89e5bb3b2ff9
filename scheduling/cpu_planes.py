"""Planes that indices walk: of an array read as `x[c, I[p], J[p]]` every c has one, of which any p may read any part.

Where all planes are more than a core keeps and some are not, a walk that meets every c at each p fetches nearly all
that it reads from afar, and one that meets all p for a block of c fetches it once. Blocks are a loop of their own,
around those over p: the loop over c becomes two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, ReadIndex, Statement
from poly.scheduling.block_loops import in_blocks
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import own_share
from poly.scheduling.groups import bare, domain_box

PASSING = 2  # results and indices pass by, so that planes may be as small a part of what a core's own cache counts on


def walks_of_planes(program: Program, s: Statement, machine: Machine) -> dict[str, int]:
    """The iterators of a sum that go from planes which a core keeps to others, and how many of their iterations it
    keeps.
    """
    indirect = [r for r in s.reads if r.indirect] if s.combiner is not None else []
    box = domain_box(program, s, s.iterators) if indirect and machine.own_caches else None
    if box is None:
        return {}
    extents = {i: high - low + 1 for i, (low, high) in zip(s.iterators, box, strict=True)}
    kept = own_share(machine.own_caches[-1].capacity or 0) // PASSING
    found: dict[str, int] = {}
    for read in indirect:
        for name, size in _walks(program, s, read, extents, machine.line):
            if size <= kept < size * extents[name]:
                found[name] = min(found.get(name, extents[name]), kept // size)
    return found


def _walks(
    program: Program, s: Statement, read: Access, extents: Mapping[str, int], line: int
) -> Iterator[tuple[str, int]]:
    """Iterators that walk an array from plane to plane, and the bytes that one iteration of each may touch: no index
    depends on them, and a plane is all that lies behind them.
    """
    tensor = program.tensor[read.tensor]
    shape, element = tensor.extents(program.binding), size_bytes(tensor.dtype)
    first = next(d for d, i in enumerate(read.index) if isinstance(i, ReadIndex))
    points = {n for i in read.index if isinstance(i, ReadIndex) for n in names_of(s.reads[i.position])}
    for d, subscript in enumerate(read.index[:first]):
        if isinstance(subscript, Affine) and not subscript.names & points and subscript.names <= names_of(s.write):
            size = min(element * prod(shape[d + 1 :]), line * prod(extents[n] for n in points))
            for name in sorted(subscript.names, key=subscript.coefficient):
                yield name, size
                size *= extents[name]


def planes_in_blocks(program: Program, machine: Machine) -> Program:
    """The program with two loops for each that walks more planes than a core keeps."""
    if machine.kind != "cpu":
        return program
    for s in program.statements:
        for name, kept in walks_of_planes(program, s, machine).items():
            program = _apart(program, s.name, name, kept)
    return program


def planes_like(program: Program, other: Program) -> Program:
    """What `planes_in_blocks` gives where it chooses as for another program, on any machine."""
    for s in program.statements:
        found = other.statement.get(s.name)
        box = domain_box(other, found, found.iterators) if found is not None and s.combiner is not None else None
        if found is None or box is None or not any(r.indirect for r in s.reads):
            continue
        for name, fast, (_, last) in zip(found.iterators, found.iterators[1:], box[1:], strict=False):
            if name in s.iterators and fast not in s.iterators:
                program = _apart(program, s.name, name, last + 1)
    return program


def _apart(program: Program, statement: str, name: str, most: int) -> Program:
    """The program with blocks of at most so many iterations of a loop, in all statements that touch what it writes;
    itself where one of them does not walk that as the loop does.
    """
    s = program.statement[statement]
    box = domain_box(program, s, (name,))
    axis = next((d for d, i in enumerate(s.write.index) if isinstance(i, Affine) and bare(i) == name), None)
    extent = box[0][1] + 1 if box is not None else 0
    block = max((b for b in range(2, min(most, extent // 2) + 1) if extent % b == 0), default=0)
    if axis is None or not block:
        return program
    statements = list(program.statements)
    for k, other in enumerate(statements):
        uses = [a.index[axis] for a in (other.write, *other.reads) if a.tensor == s.write.tensor]
        loops = {bare(i) if isinstance(i, Affine) else None for i in uses}
        if not uses:
            continue
        loop = loops.pop() if len(loops) == 1 else None
        apart = in_blocks(program, other, k, loop, block) if loop is not None else None
        if apart is None:
            return program
        statements[k] = apart
    return replace(program, statements=tuple(statements))
