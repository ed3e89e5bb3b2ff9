"""Statements as relations: schedules, accesses and boxes as isl maps and sets, by names and without parsing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import islpy as isl

from poly.affine import Affine, Constraint, var
from poly.coefficients import relation_of, set_of
from poly.program import Access, Program, Statement
from poly.sets import IN, OUT, fix_sizes, header, interval


def bound_domain(program: Program, s: Statement) -> isl.Set:
    """The instances of a statement that the program's context allows, with the sizes that are bound put in."""
    return bound_set(s.domain, program.context, program.sizes)


@lru_cache(maxsize=1024)
def bound_set(domain: isl.Set, context: isl.Set, sizes: tuple[tuple[str, int], ...]) -> isl.Set:
    """What the context allows of a domain, with sizes put in; made once for all that is asked of a schedule."""
    return fix_sizes(domain.intersect_params(context), dict(sizes))


def bound_expressions(program: Program, s: Statement, values: Sequence[Affine], target: str = "") -> isl.Map:
    """`expressions_map` on `bound_domain`: cheaper than to put the sizes into it."""
    relation = relation_of(_known(program, values), s.iterators, free_sizes(program), s.name)
    relation = relation.intersect_domain(bound_domain(program, s))
    return relation.set_tuple_name(OUT, target) if target else relation


def bound_access(program: Program, s: Statement, access: Access) -> isl.Map:
    """`access_map` on `bound_domain`: cheaper than to put the sizes into it."""
    if access.indirect:
        relation = access_map(s, access, program.parameters, program.tensor[access.tensor].shape)
        return fix_sizes(relation.intersect_params(program.context), program.binding)
    relation = bound_expressions(program, s, access.affine_index, access.tensor)
    if access.guard:
        exprs = _known(program, [c.expr for c in access.guard])
        guard = [Constraint(e, c.equality) for e, c in zip(exprs, access.guard, strict=True)]
        relation = relation.intersect_domain(set_of(guard, s.iterators, free_sizes(program), s.name))
    return relation


def free_sizes(program: Program) -> tuple[str, ...]:
    """The parameters that have no value."""
    return tuple(p for p in program.parameters if p not in program.binding) if program.sizes else program.parameters


def _known(program: Program, values: Sequence[Affine]) -> Sequence[Affine]:
    """Expressions with the sizes put in."""
    sizes = program.binding
    return [e if e.names.isdisjoint(sizes) else e.substitute(sizes) for e in values] if sizes else values


def interval_of(program: Program, s: Statement, iterator: str) -> tuple[int, int] | None:
    """First and last value of an iterator over a statement's instances; None where not known."""
    return interval(bound_domain(program, s), s.iterators.index(iterator))


def intervals_of(program: Program, s: Statement) -> dict[str, tuple[int, int] | None]:
    """`interval_of` for all iterators."""
    domain = bound_domain(program, s)
    return {name: interval(domain, k) for k, name in enumerate(s.iterators)}


def range_of(program: Program, s: Statement, expression: Affine) -> tuple[int, int] | None:
    """First and last value of an expression of iterators over a statement's instances; None where not known."""
    return _range(bound_domain(program, s), s.iterators, *_known(program, [expression]), free_sizes(program))


@lru_cache(maxsize=4096)
def _range(
    domain: isl.Set, iterators: tuple[str, ...], expression: Affine, parameters: tuple[str, ...]
) -> tuple[int, int] | None:
    """The loops of one schedule are asked for again and again while it is changed."""
    values = relation_of([expression], iterators, parameters).set_tuple_name(IN, domain.get_tuple_name() or "")
    return interval(values.intersect_domain(domain).range(), 0)


def expressions_map(s: Statement, values: Sequence[Affine], parameters: Sequence[str], target: str = "") -> isl.Map:
    """`{ S[i, j] -> target[values] }`, on the statement's domain."""
    relation = relation_of(values, s.iterators, parameters, s.name).intersect_domain(s.domain)
    return relation.set_tuple_name(OUT, target) if target else relation


def access_map(s: Statement, access: Access, parameters: Sequence[str], extents: Sequence[Affine] = ()) -> isl.Map:
    """`{ S[i, j] -> T[subscripts] }` on the domain, cut by the guard; an indirect subscript ranges over its extent."""
    if access.indirect:
        relation = _indirect(s, access, parameters, extents)
    else:
        relation = relation_of(access.affine_index, s.iterators, parameters, s.name)
    relation = relation.set_tuple_name(OUT, access.tensor).intersect_domain(s.domain)
    if access.guard:
        relation = relation.intersect_domain(set_of(access.guard, s.iterators, parameters, s.name))
    return relation


def _indirect(s: Statement, access: Access, parameters: Sequence[str], extents: Sequence[Affine]) -> isl.Map:
    names = [f"a{d}_" for d in range(len(access.index))]
    conditions = [
        f"{name} = {subscript.isl_text}" if isinstance(subscript, Affine) else f"0 <= {name} < {extent.isl_text}"
        for name, subscript, extent in zip(names, access.index, extents, strict=True)
    ]
    return isl.Map(f"{header(parameters)}{{ {s.tuple_text} -> [{', '.join(names)}] : {' and '.join(conditions)} }}")


def box(name: str, extents: Sequence[Affine], parameters: Sequence[str]) -> isl.Set:
    """`{ name[a0, ...] : 0 <= a0 < extent ... }`"""
    names = [f"a{d}_" for d in range(len(extents))]
    places = zip(names, extents, strict=True)
    bounds = [c for n, e in places for c in (Constraint(var(n)), Constraint(e - 1 - var(n)))]
    return set_of(bounds, names, parameters, name)
