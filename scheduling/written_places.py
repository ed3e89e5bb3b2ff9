"""Scattered sums: where a sum is written at `i + j`, i becomes the place that is written, and what is read at i is read
at `i - j`.

A bijection of instances: the same sums in another order. The loop of written elements has vectors and is tiled in
registers as any other is; that its ends move with j is what the policy for uneven loops is for.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from poly.affine import Affine, var
from poly.expr import IndexValue, walk
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_facts import step_along
from poly.scheduling.groups import bare, domain_box
from poly.scheduling.joined_axes import with_sizes

LEAST_ITERATIONS = 16  # iterations that are worth vectors whose ends differ from row to row


def with_written_places(program: Program) -> Program:
    """The program with loops along what sums write, where their last subscript has several; itself where none has."""
    literal = with_sizes(program)
    if literal is None:
        return program
    statements = tuple(_placed(literal, s) for s in literal.statements)
    return program if statements == literal.statements else replace(literal, statements=statements)


def _placed(program: Program, s: Statement) -> Statement:
    if s.combiner is None or not s.reorder or s.external is not None or s.path[1:] != s.iterators:
        return s
    box = domain_box(program, s, s.iterators)
    as_value = any(isinstance(e, IndexValue) for e in walk(s.body))
    if box is None or as_value or not s.write.index or any(a.guard or a.indirect for a, _ in s.accesses):
        return s
    if len(s.write.affine_index[-1].names) < 2:
        return s
    extents = {i: high - low + 1 for i, (low, high) in zip(s.iterators, box, strict=True)}
    for axis in reversed(range(len(s.write.index))):
        if len(s.write.affine_index[axis].names) > 1:
            s = _along(program, s, axis, extents)
        if bare(s.write.affine_index[-1]) is None:
            break
    return s


def _along(program: Program, s: Statement, axis: int, extents: dict[str, int]) -> Statement:
    """The statement with a loop along an axis of what it writes, in place of the longest that may be."""
    place = s.write.affine_index[axis]
    others = {n for d, i in enumerate(s.write.affine_index) if d != axis for n in i.names}
    last = axis == len(s.write.index) - 1
    names = [n for n in place.names - others if place.coefficient(n) == 1 and _is_linear(s, n)]
    names = [n for n in names if extents[n] >= LEAST_ITERATIONS and (not last or _fills_lanes(program, s, n))]
    if not place.is_linear or not names:
        return s
    name = max(names, key=lambda n: (extents[n], n))
    value = var(name) - (place - var(name))

    def moved(access: Access) -> Access:
        return replace(access, index=tuple(Affine.of(i).substitute({name: value}) for i in access.affine_index))

    write = [var(name) if d == axis else i for d, i in enumerate(s.write.affine_index)]
    written = [n for i in write if (n := bare(i)) is not None]
    iterators = (*dict.fromkeys(written), *(i for i in s.iterators if i not in written))
    new = (place.isl_text if i == name else i for i in iterators)
    by_place = isl.Map(f"{{ {s.tuple_text} -> {s.name}[{', '.join(new)}] }}")
    return replace(
        s, iterators=iterators, domain=s.domain.apply(by_place), write=replace(s.write, index=tuple(write)),
        reads=tuple(moved(r) for r in s.reads), path=(s.path[0], *iterators),
    )  # fmt: skip


def _is_linear(s: Statement, name: str) -> bool:
    """Whether a loop stands in no floor or remainder."""
    return all(i.is_linear or name not in i.names for a, _ in s.accesses for i in a.affine_index)


def _fills_lanes(program: Program, s: Statement, name: str) -> bool:
    """Whether neighbours along a loop lie side by side in all that is read, or are the same."""
    steps = (step_along(program, r, name) for r in s.reads)
    return all(step in (0, 1) for step in steps)
