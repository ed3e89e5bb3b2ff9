"""Sums of one term, as assignments: a convolution with one channel a group, a product over an axis of one element.

    y[i] = 0
    for c in range(1): y[i] += w[c]*x[i, c]   ->   y[i] = w[0]*x[i, 0]

Nothing is left to keep in registers, and what a result is written by once may go past the caches. Loops of one value
go, too. Values are the same (floats: up to the sign of a zero).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from poly.affine import Affine, var
from poly.expr import Const, with_indices
from poly.program import Program, Statement, box_domain, default_path
from poly.scheduling.groups import domain_box, tensors_read, tensors_written
from poly.scheduling.joined_axes import is_plain

Ranges = Mapping[str, tuple[int, int]]  # inclusive


def without_single_terms(program: Program) -> Program:
    """The program whose sums of one term, from the value that changes nothing, are assignments."""
    if not is_plain(program):
        return program
    found = dict(_found(program))
    if not found:
        return program
    made = {name: assignment for name, (assignment, _) in found.items()}
    gone = {start for _, start in found.values()}
    kept = [made.get(s.name, s) for s in program.statements if s.name not in gone]
    statements = tuple(replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(kept))
    return replace(program, statements=statements)


def _found(program: Program) -> Iterator[tuple[str, tuple[Statement, str]]]:
    """The names of such sums, with the assignment and the statement that begins the sum."""
    for s in program.statements:
        if s.combiner is None or s.write.indirect or s.external is not None:
            continue
        ranges = _ranges(program, s)
        places = None if ranges is None else _places(s, ranges)
        start = None if places is None else _start(program, s)
        if ranges is not None and start is not None and places == _places_of(program, start):
            yield s.name, (_assignment(program, s, ranges), start.name)


def _start(program: Program, s: Statement) -> Statement | None:
    """The only statement before a sum that touches its target, if it writes what changes nothing."""
    target = s.write.tensor
    before = program.statements[: program.statements.index(s)]
    users = [w for w in before if target in tensors_written(w) or target in tensors_read(w)]
    if len(users) != 1 or target in {r.tensor for r in s.reads} or s.combiner is None:
        return None
    (first,) = users
    neutral = s.combiner.identity(program.tensor[target].dtype).value
    plain = first.combiner is None and first.external is None and not first.write.indirect
    return first if plain and isinstance(first.body, Const) and first.body.value == neutral else None


def _places_of(program: Program, s: Statement) -> tuple[tuple[int, int], ...] | None:
    ranges = _ranges(program, s)
    return None if ranges is None else _places(s, ranges)


def _ranges(program: Program, s: Statement) -> Ranges | None:
    box = domain_box(program, s, s.iterators)
    return None if box is None else dict(zip(s.iterators, box, strict=True))


def _places(s: Statement, ranges: Ranges) -> tuple[tuple[int, int], ...] | None:
    """The box of elements that a statement writes, each in one instance; None where it is not one."""
    several = left = {i for i, (low, high) in ranges.items() if low != high}
    written: list[tuple[int, int]] = []
    for index in s.write.affine_index:
        names = several & index.names
        rest = index - sum((var(i) for i in index.names), Affine())
        if len(names) > 1 or not names <= left or not rest.is_constant or not index.names <= ranges.keys():
            return None
        left = left - names
        low, high = (index.substitute({i: r[end] for i, r in ranges.items()}).constant for end in (0, 1))
        written.append((low, high))
    return None if left else tuple(written)


def _assignment(program: Program, s: Statement, ranges: Ranges) -> Statement:
    fixed = {i: low for i, (low, high) in ranges.items() if low == high}
    left = [i for i in s.iterators if i not in fixed]
    domain = box_domain(s.name, [(i, ranges[i][0], ranges[i][1] + 1) for i in left], program.parameters)
    return replace(
        s, iterators=tuple(left), domain=domain, combiner=None, write=s.write.substitute(fixed),
        reads=tuple(r.substitute(fixed) for r in s.reads),
        body=with_indices(s.body, {i: Affine((), v) for i, v in fixed.items()}),
    )  # fmt: skip
