"""Choices of a nest whose condition its domain decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from poly.conditions import SIGNS
from poly.expr import Apply, Const, Expr, IndexValue, dtype_of, reads_of, rewrite, with_reads_at
from poly.frontend.choice_guards import points_where, without
from poly.program import Access, Statement


def decided(statement: Statement, domain: isl.Set, dtypes: Sequence[str]) -> Statement:
    """The statement without branches that it never takes, and without guards that always hold: `x[(i + 1) % N]` at
    i >= 0 never counts from the end.

    `domain`: as for `without_unequal`; `dtypes`: of its reads.
    """

    def taken(e: Expr) -> Expr | None:
        match e:
            case Apply("select", (test, then, other)) if (condition := _condition(test)) is not None:
                holds = points_where(domain, statement, [condition])
                kept = then if domain.is_subset(holds) else other if domain.is_disjoint(holds) else None
                return None if kept is None or dtype_of(kept, dtypes) != dtype_of(e, dtypes) else kept
            case _:
                return None

    body = rewrite(statement.body, taken)
    needed = {k: _needed(statement.reads[k], statement, domain) for k in reads_of(body)}
    kept = list(dict.fromkeys(needed.values()))
    body = with_reads_at(body, {k: kept.index(read) for k, read in needed.items()})
    return replace(statement, body=body, reads=tuple(kept))


def _needed(read: Access, statement: Statement, domain: isl.Set) -> Access:
    """The read without constraints that hold wherever the statement runs."""
    return without(read, [c for c in read.guard if domain.is_subset(points_where(domain, statement, [c.isl_text]))])


def _condition(test: Expr) -> str | None:
    """A comparison of indices and integers in isl's syntax; None for any other test."""
    match test:
        case Apply(name, (left, right)) if name in SIGNS:
            sides = [_index(left), _index(right)]
            return None if None in sides else f"({sides[0]}) {SIGNS[name]} ({sides[1]})"
        case _:
            return None


def _index(value: Expr) -> str | None:
    match value:
        case IndexValue(index):
            return index.isl_text
        case Const(number) if isinstance(number, int) and not isinstance(number, bool):
            return str(number)
        case _:
            return None
