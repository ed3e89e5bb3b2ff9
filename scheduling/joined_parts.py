"""Statements that each write one part of an element, one after the other, as one: `y[2*i] = a[i]` and
`y[2*i + 1] = b[i]` are `y[2*i + p] = (a[i] if p == 0 else b[i])`.

Apart, each stores every n-th element alone; together whole vectors leave (`poly.scheduling.cpu_interleaved`). The
parts are different elements, which no statement reads, and nothing runs between these statements, so values do not
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poly.affine import Var, var
from poly.expr import Apply, Const, Expr, IndexValue, dtype_of, with_reads_at
from poly.program import Program, Statement, box_domain
from poly.scheduling.cpu_facts import FEWEST_LANES, step_along
from poly.scheduling.cpu_interleaved import MOST_PARTS
from poly.scheduling.groups import domain_box


def with_parts_joined(program: Program) -> Program:
    """The program, its sizes put in, with one statement for those that interleave a target; itself where none do."""
    kept, left = list[Statement](), list(program.statements)
    while left:
        run = left[: _parts(program, left[0])]
        joined = _joined(program, run) if len(run) > 1 else None
        kept.append(joined or left[0])
        del left[: len(run) if joined else 1]
    return program if len(kept) == len(program.statements) else replace(program, statements=tuple(kept))


def _parts(program: Program, s: Statement) -> int:
    """How many elements of the target lie between two iterations of a statement: 1 where parts are not to be joined."""
    if s.external is not None or s.combiner is not None or any(a.indirect or a.guard for a, _ in s.accesses):
        return 1
    if not s.write.affine_index or any(r.tensor == s.write.tensor for t in program.statements for r in t.reads):
        return 1
    lanes = _lanes(s)
    return s.write.affine_index[-1].coefficient(lanes) if lanes else 1


def _lanes(s: Statement) -> str:
    """The iterator that steps over all parts; "" where there is none, or where another one steps between them."""
    last = s.write.affine_index[-1]
    steps = {n: last.coefficient(n) for n in s.iterators if n in last.names}
    parts = min(steps.values(), default=0)
    whole = all(isinstance(atom, Var) and n % max(parts, 1) == 0 for atom, n in last.terms)
    return next(n for n in steps if steps[n] == parts) if whole and 1 < parts <= MOST_PARTS else ""


def _joined(program: Program, run: Sequence[Statement]) -> Statement | None:
    """One statement for the parts 0, 1, ... in this order; None where they are not in one nest of the same loops."""
    first, lanes = run[0], _lanes(run[0])
    box = domain_box(program, first, first.iterators)
    parts = _parts(program, first)
    dtypes = {n: t.dtype for n, t in program.tensor.items()}
    typed = any(dtype_of(s.body, [dtypes[r.tensor] for r in s.reads]) for s in run)  # a choice of literals has no dtype
    if box is None or len(run) < parts or not typed:
        return None
    low, high = box[first.iterators.index(lanes)]
    near = all(step_along(program, r, lanes) in range(parts + 1) for s in run for r in s.reads)
    if high - low + 1 < FEWEST_LANES or not near or not _in_one_nest(program, run):
        return None
    *outer, last = first.write.affine_index
    for k, s in enumerate(run):
        same = s.iterators == first.iterators and s.write.tensor == first.write.tensor and _parts(program, s) == parts
        if not same or s.write.affine_index != (*outer, last + k) or domain_box(program, s, s.iterators) != box:
            return None
    part = next(n for k in range(len(first.iterators) + 1) if (n := f"part{'_' * k}") not in first.iterators)
    if part in program.parameters:
        return None
    reads = tuple(dict.fromkeys(r for s in run for r in s.reads))
    bodies = [with_reads_at(s.body, [reads.index(r) for r in s.reads]) for s in run]
    ranges = [(i, lo, hi + 1) for i, (lo, hi) in zip(first.iterators, box, strict=True)]
    return replace(
        first, iterators=(*first.iterators, part), path=(*first.path, part), reads=reads,
        domain=box_domain(first.name, [*ranges, (part, 0, parts)], program.parameters),
        write=replace(first.write, index=(*outer, last + var(part))), body=_by_part(bodies, part),
    )  # fmt: skip


def _by_part(bodies: Sequence[Expr], part: str) -> Expr:
    """The k-th body where `part` is k."""
    body = bodies[-1]
    for k, other in reversed(list(enumerate(bodies[:-1]))):
        body = Apply("select", (Apply("eq", (IndexValue(var(part)), Const(k))), other, body))
    return body


def _in_one_nest(program: Program, run: Sequence[Statement]) -> bool:
    """Whether statements differ in one position of a sequence, and have all below that for themselves."""
    first = run[0].path
    for s in run[1:]:
        apart = [d for d, (a, b) in enumerate(zip(first, s.path, strict=False)) if a != b]
        if len(s.path) != len(first) or len(apart) != 1 or isinstance(first[apart[0]], str):
            return False
        heads = {first[: apart[0] + 1], s.path[: apart[0] + 1]}  # where others were left out, paths have gaps
        if any(t not in run and t.path[: apart[0] + 1] in heads for t in program.statements):
            return False
    return True
