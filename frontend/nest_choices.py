"""Choices of a nest whose condition its domain decides, and those that keep the larger of two integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import islpy as isl

from poly.conditions import SIGNS
from poly.dtypes import is_integer
from poly.expr import COMBINERS, Apply, Const, Expr, IndexValue, Read, dtype_of, reads_of, rewrite, with_reads_at
from poly.frontend.choice_guards import points_where, without
from poly.program import Access, Statement, Tensor, places_of

_ORDERS: Final = frozenset(("gt", "ge", "lt", "le"))


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
    wanted = {*reads_of(body), *places_of([statement.write])}
    while more := places_of([statement.reads[k] for k in wanted]) - wanted:
        wanted |= more
    needed = {k: _needed(statement.reads[k], statement, domain) for k in sorted(wanted)}
    kept = list(dict.fromkeys(needed.values()))
    places = {k: kept.index(read) for k, read in needed.items()}
    reads, body = tuple(r.moved(places) for r in kept), with_reads_at(body, places)
    return replace(statement, body=body, reads=reads, write=statement.write.moved(places))


def as_extremum(s: Statement, tensors: Mapping[str, Tensor]) -> Statement:
    """`if x > m: m = x` of integers as `m max= x`, for a statement that has each read once. With floats these differ
    where one is NaN.
    """
    dtype = tensors[s.write.tensor].dtype
    if s.combiner or s.write not in s.reads or not is_integer(dtype):
        return s
    own = Read(s.reads.index(s.write))
    match s.body:
        case Apply("select", (Apply(sign, (a, b)), *ends)) if sign in _ORDERS and ends in ([a, b], [b, a]):
            symbol = "max" if (sign in ("gt", "ge")) == (ends == [a, b]) else "min"
            other = ends[ends[0] == own]
        case _:
            return s
    if own not in ends:
        return s
    places = {k: n for n, k in enumerate(k for k in range(len(s.reads)) if k != own.position)}
    used = own.position in {*reads_of(other), *places_of([s.write, *s.reads])}
    if used or dtype_of(other, [tensors[r.tensor].dtype for r in s.reads]) != dtype:
        return s
    reads = tuple(s.reads[k].moved(places) for k in places)
    body, write = with_reads_at(other, places), s.write.moved(places)
    return replace(s, body=body, reads=reads, write=write, combiner=COMBINERS[symbol])


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
