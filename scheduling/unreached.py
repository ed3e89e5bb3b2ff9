"""Reads that no iteration reaches as the values that stand there instead: conditions that hold nowhere together.

`b[k] if i == 2 and i == k else 0` with k < 2 is 0. What is read there is nowhere copied in, so an engine that does not
reach the tensor itself could not run the statement.
"""

from __future__ import annotations

from dataclasses import replace

from poly.expr import Const, Expr, Read, rewrite, with_reads_at
from poly.program import Program, Statement, places_of
from poly.relations import bound_access


def without_unreached(program: Program) -> Program:
    """The program, its sizes bound, without such reads; itself where there are none."""
    statements = tuple(_without(program, s) for s in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


def _without(program: Program, s: Statement) -> Statement:
    never = {k for k, r in enumerate(s.reads) if r.guard and bound_access(program, s, r).is_empty()}
    never -= places_of([s.write, *s.reads])
    if s.external is not None or not never:
        return s

    def value(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or e.position not in never:
            return None
        read = s.reads[e.position]
        assert read.fill is not None
        return Const(read.fill.value, program.tensor[read.tensor].dtype)

    kept = [k for k in range(len(s.reads)) if k not in never]
    places = {k: n for n, k in enumerate(kept)}
    body = with_reads_at(rewrite(s.body, value), places)
    return replace(s, body=body, reads=tuple(s.reads[k].moved(places) for k in kept), write=s.write.moved(places))
