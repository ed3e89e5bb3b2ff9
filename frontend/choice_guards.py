"""Guards of reads that stand in a choice: `(2*x[i - 1] if i >= 1 else x[i])` reads x only where the branch is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from poly.affine import Affine, Constraint, unequal_parts
from poly.program import Access, Statement
from poly.relations import access_map, box
from poly.sets import header


def without_unequal(read: Access, statement: Statement, domain: isl.Set, shape: Sequence[Affine]) -> Access:
    """A read without each `a != b` of its guard that its bounds do not need, else with the half of it that there is.

    `domain`: of the statement, the condition on the sizes included.
    """
    for constraint in read.guard:
        difference = unequal_parts(constraint)
        if difference is None:
            continue
        less = without(read, (constraint,))
        if is_inside(less, statement, domain, shape):
            read = less
            continue
        rest = [c for c in read.guard if c != constraint]
        for part in (difference, -difference):
            conditions = [*(c.isl_text for c in rest), f"{part.isl_text} < 0"]
            if domain.is_disjoint(points_where(domain, statement, conditions)):
                read = replace(read, guard=(*rest, Constraint(part - 1)))
                break
    return read


def without(read: Access, constraints: Sequence[Constraint]) -> Access:
    """A read without some constraints of its guard."""
    guard = tuple(c for c in read.guard if c not in constraints)
    return replace(read, guard=guard, fill=read.fill if guard else None)


def is_inside(read: Access, statement: Statement, domain: isl.Set, shape: Sequence[Affine]) -> bool:
    """Whether all elements that are read exist; an index that is data may be any where nobody asks for it."""
    if read.indirect:
        return False
    sizes = _sizes(domain)
    relation = access_map(statement, read, sizes, shape).intersect_domain(domain)
    return relation.range().is_subset(box(read.tensor, shape, sizes))


def _sizes(domain: isl.Set) -> list[str]:
    return [str(domain.get_dim_name(isl.dim_type.param, d)) for d in range(domain.dim(isl.dim_type.param))]


def points_where(domain: isl.Set, statement: Statement, conditions: Sequence[str]) -> isl.Set:
    """The instances at which conditions in isl's syntax hold, of the parameters of a domain."""
    text = f"{statement.name}[{', '.join(statement.iterators)}] : {' and '.join(conditions)}"
    return isl.Set(f"{header(_sizes(domain))}{{ {text} }}")
