"""Guards of reads that stand in a choice: `(2*x[i - 1] if i >= 1 else x[i])` reads x only where the branch is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import islpy as isl

from poly.affine import Affine, Constraint, unequal_parts
from poly.expr import Apply, Const, Expr, IndexValue, Read, dtype_of, reads_of, rewrite
from poly.frontend.notation_shapes import Draft, Shapes
from poly.program import Access, ReadIndex, Statement
from poly.relations import access_map, box
from poly.sets import header

_SIGNS: Final = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def drop_guards(drafts: Sequence[Draft], found: Shapes) -> None:
    """Do without the guards of choices where what is read is in bounds anyway: one load then serves both branches."""
    for draft in drafts:
        statement = draft.statement()
        domain = statement.domain.intersect_params(found.context)
        reads: list[Access] = []
        for k, read in enumerate(draft.reads):
            bare = _without(read, read.guard)
            if k in draft.chosen and _is_inside(bare, statement, domain, found.shapes[read.tensor]):
                reads.append(bare)
            else:
                reads.append(one_sided(read, statement, domain, found.shapes[read.tensor]))
        if reads == list(draft.reads):
            continue
        kept = list(dict.fromkeys(reads))
        places = [kept.index(r) for r in reads]
        draft.reads = tuple(_moved(r, places) for r in kept)
        draft.write = _moved(draft.write, places)
        draft.body = rewrite(draft.body, lambda e, to=places: _renumbered(e, to))


def one_sided(read: Access, statement: Statement, domain: isl.Set, shape: Sequence[Affine]) -> Access:
    """A read without each `a != b` of its guard that its bounds do not need, else with the half of it that there is.

    `domain`: of the statement, the condition on the sizes included.
    """
    for constraint in read.guard:
        difference = unequal_parts(constraint)
        if difference is None:
            continue
        less = _without(read, (constraint,))
        if _is_inside(less, statement, domain, shape):
            read = less
            continue
        rest = [c for c in read.guard if c != constraint]
        for part in (difference, -difference):
            if domain.is_disjoint(_set(domain, statement, [*(c.isl_text for c in rest), f"{part.isl_text} < 0"])):
                read = replace(read, guard=(*rest, Constraint(part - 1)))
                break
    return read


def _without(read: Access, constraints: Sequence[Constraint]) -> Access:
    guard = tuple(c for c in read.guard if c not in constraints)
    return replace(read, guard=guard, fill=read.fill if guard else None)


def _is_inside(read: Access, statement: Statement, domain: isl.Set, shape: Sequence[Affine]) -> bool:
    """Whether all elements that are read exist; an index that is data may be any where nobody asks for it."""
    if read.indirect:
        return False
    sizes = _sizes(domain)
    relation = access_map(statement, read, sizes, shape).intersect_domain(domain)
    return relation.range().is_subset(box(read.tensor, shape, sizes))


def _sizes(domain: isl.Set) -> list[str]:
    return [str(domain.get_dim_name(isl.dim_type.param, d)) for d in range(domain.dim(isl.dim_type.param))]


def _set(domain: isl.Set, statement: Statement, conditions: Sequence[str]) -> isl.Set:
    text = f"{statement.name}[{', '.join(statement.iterators)}] : {' and '.join(conditions)}"
    return isl.Set(f"{header(_sizes(domain))}{{ {text} }}")


def _renumbered(e: Expr, places: Sequence[int]) -> Expr | None:
    return Read(places[e.position]) if isinstance(e, Read) else None


def _moved(access: Access, places: Sequence[int]) -> Access:
    index = tuple(ReadIndex(places[s.position]) if isinstance(s, ReadIndex) else s for s in access.index)
    return replace(access, index=index)


def decided(statement: Statement, domain: isl.Set, dtypes: Sequence[str]) -> Statement:
    """The statement without branches that it never takes, and without guards that always hold: `x[(i + 1) % N]` at
    i >= 0 never counts from the end.

    `domain`: as for `one_sided`; `dtypes`: of its reads.
    """

    def taken(e: Expr) -> Expr | None:
        match e:
            case Apply("select", (test, then, other)) if (condition := _condition(test)) is not None:
                holds = _set(domain, statement, [condition])
                kept = then if domain.is_subset(holds) else other if domain.is_disjoint(holds) else None
                return None if kept is None or dtype_of(kept, dtypes) != dtype_of(e, dtypes) else kept
            case _:
                return None

    body = rewrite(statement.body, taken)
    if statement.write.indirect or any(r.indirect for r in statement.reads):
        return statement
    needed = {k: _needed(statement.reads[k], statement, domain) for k in reads_of(body)}
    kept = list(dict.fromkeys(needed.values()))
    body = rewrite(body, lambda e: Read(kept.index(needed[e.position])) if isinstance(e, Read) else None)
    return replace(statement, body=body, reads=tuple(kept))


def _needed(read: Access, statement: Statement, domain: isl.Set) -> Access:
    """The read without constraints that hold wherever the statement runs."""
    return _without(read, [c for c in read.guard if domain.is_subset(_set(domain, statement, [c.isl_text]))])


def _condition(test: Expr) -> str | None:
    """A comparison of indices and integers in isl's syntax; None for any other test."""
    match test:
        case Apply(name, (left, right)) if name in _SIGNS:
            sides = [_index(left), _index(right)]
            return None if None in sides else f"({sides[0]}) {_SIGNS[name]} ({sides[1]})"
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
