"""The order of a contraction's reduction loops: along memory of the operand that is only broadcast.

A register tile meets a vector of the operand that has the lanes in any order of the steps; of the other one it reads an
element for every row. Neighbours in memory should follow one another there, so that each line comes once (memory order
of McKinley, Carr and Tseng, TOPLAS 1996). So should the other loops, but where the operand of the lanes has to be
packed they go as that lies, in whose order the copy reads; and all go so where the other operand is small. Only of sums
that may be taken in any order.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import islpy as isl

from poly.program import Access, Program, Statement
from poly.scheduling.cpu_facts import step_along
from poly.scheduling.groups import bare

FEWEST = 4  # iterations along memory
LARGE = 0.5  # of the other operand's elements: a smaller one is near, and all loops go as the other lies


def with_steps_in_order(program: Program) -> Program:
    """The program with the reduction loops of contractions along memory; itself where they are."""
    if set(program.parameters) - program.binding.keys():
        return program
    statements = tuple(_ordered(program, s) for s in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


def _ordered(program: Program, s: Statement) -> Statement:
    order = _order(program, s)
    if order is None:
        return s
    iterators = (*(i for i in s.iterators if i not in order), *order)
    return permuted(s, iterators)


def permuted(s: Statement, iterators: tuple[str, ...]) -> Statement:
    """A statement alone in its nest with its loops in another order."""
    moved = isl.Map(f"{{ {s.tuple_text} -> {s.name}[{', '.join(iterators)}] }}")
    return replace(s, iterators=iterators, domain=s.domain.apply(moved), path=(s.path[0], *iterators))


def _order(program: Program, s: Statement) -> list[str] | None:
    """The reduction loops in their new order; None where that is the old one, or the statement is no contraction."""
    if s.combiner is None or not s.reorder or s.external is not None or s.path[1:] != s.iterators:
        return None
    accesses = (s.write, *s.reads)
    plain = not any(a.guard or a.indirect for a in accesses)
    if not plain or not s.write.index or any(bare(i) is None for a in accesses for i in a.affine_index):
        return None
    written = [str(i) for i in s.write.affine_index]
    inner = [i for i in s.iterators if i not in written]
    lanes = [r for r in s.reads if written[-1] in _names(r)]
    rows = [r for r in s.reads if r not in lanes and {*written} & _names(r)]
    if len(inner) < 2 or len(lanes) != 1 or not rows or s.iterators[-len(inner) :] != tuple(inner):
        return None
    largest = max(rows, key=lambda r: _elements(program, r))
    order = _along(program, inner, largest, lanes[0], str(s.write.affine_index[-1]))
    return None if order == inner else order


def _along(program: Program, inner: list[str], broadcast: Access, lanes: Access, written: str) -> list[str] | None:
    """Reduction loops along memory of an operand that is only broadcast, or of that of the lanes, which are `written`
    side by side; None where neither is clear.
    """
    last = str(broadcast.affine_index[-1])
    extent = program.tensor[broadcast.tensor].extents(program.binding)[-1]
    if _elements(program, broadcast) < LARGE * _elements(program, lanes):
        return _as_it_lies(program, inner, lanes)
    if last not in inner or extent < FEWEST:
        return None
    packed = step_along(program, lanes, written) != 1
    others = _as_it_lies(program, [i for i in inner if i != last], lanes if packed else broadcast)
    return [*others, last]


def _as_it_lies(program: Program, loops: list[str], access: Access) -> list[str]:
    """Loops in the order in which an operand lies in memory."""
    return sorted(loops, key=lambda i: -(step_along(program, access, i) or 0))


def _elements(program: Program, access: Access) -> int:
    return prod(program.tensor[access.tensor].extents(program.binding))


def _names(access: Access) -> set[str]:
    return {str(i) for i in access.affine_index}
