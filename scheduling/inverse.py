"""Iterators as functions of the loops of a statement by algebra alone: what tiles took apart is put together again.

`e == d*(e // d) + e % d` holds for all e, so two loops with these values stand for one with the value e; loops that
are affine without floors are equations that give one iterator after the other. What comes out is exact wherever the
loops have their values: isl's affine hull is needed only where an iterator is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import islpy as isl

from poly.affine import Affine, Atom, FloorDiv, Var, var
from poly.coefficients import conditions_of
from poly.sets import has_floor

Fact = tuple[Affine, Affine]  # a value by loops, and the expression of the iterators that it is equal to


def inverse_of(
    iterators: Sequence[str],
    loops: Sequence[str],
    expressions: Sequence[Affine],
    known: Mapping[str, Affine] | None = None,
    zero: Sequence[Affine] = (),
) -> list[Affine | None]:
    """For every iterator an expression of the loops, None where there is none; `known`: those that are known before.

    `expressions`: the loops by iterators; `zero`: expressions of iterators that are 0 (`equalities_of`).
    """
    return [*_inverse(tuple(iterators), tuple(loops), tuple(expressions), tuple((known or {}).items()), tuple(zero))]


@lru_cache(maxsize=1024)
def equalities_of(domain: isl.Set, iterators: tuple[str, ...]) -> tuple[Affine, ...]:
    """Expressions of iterators without floors that are 0 on all of a domain."""
    conditions = conditions_of(domain.affine_hull(), iterators)
    return tuple(c.expr for c in conditions if c is not None and c.equality and not has_floor(c.expr))


def loops_that_are(loops: Sequence[str], expressions: Sequence[Affine]) -> dict[Atom, Affine]:
    """Floors and remainders of iterators that are loops, up to a number, by these; `expressions`: the loops."""
    found: dict[Atom, Affine] = {}
    for loop, e in zip(loops, expressions, strict=True):
        if len(e.terms) == 1 and e.terms[0][1] == 1 and not isinstance(e.terms[0][0], Var):
            found[e.terms[0][0]] = var(loop) - e.constant
    return found


def by_loops(expression: Affine, values: Mapping[str, Affine | int], atoms: Mapping[Atom, Affine]) -> Affine:
    """An expression of iterators by loops: `atoms` (`loops_that_are`) as they are, what else there is by `values`."""
    if not atoms or atoms.keys().isdisjoint(atom for atom, _ in expression.terms):
        return expression.substitute(values)
    rest = Affine(tuple(t for t in expression.terms if t[0] not in atoms), expression.constant).substitute(values)
    return sum((atoms[atom] * c for atom, c in expression.terms if atom in atoms), rest)


@lru_cache(maxsize=1024)
def _inverse(
    iterators: tuple[str, ...],
    loops: tuple[str, ...],
    expressions: tuple[Affine, ...],
    known: tuple[tuple[str, Affine], ...],
    zero: tuple[Affine, ...],
) -> tuple[Affine | None, ...]:
    """Each check of a schedule, and its lowering, ask for the same again."""
    found = dict(known)
    facts = [(var(loop), e) for loop, e in zip(loops, expressions, strict=True)] + [(Affine(), e) for e in zero]
    while True:
        _solve(iterators, facts, found)
        unknown = frozenset(iterators) - found.keys()
        joined = (_tiles(unknown, facts) or _joined(iterators, facts, found)) if unknown else None
        if joined is None:
            return tuple(found.get(i) for i in iterators)
        facts = joined


def _solve(iterators: Sequence[str], facts: Sequence[Fact], found: dict[str, Affine]) -> None:
    """Iterators of factor 1 or -1 outside floors in an expression whose others are known."""
    unknown, more = set(iterators) - found.keys(), True
    while more and unknown:
        more = False
        for value, expression in facts:
            if len(here := expression.names & unknown) == 1:
                (name,) = here
                if abs(c := expression.coefficient(name)) == 1:
                    rest = expression - var(name) * c
                    if name not in rest.names:
                        found[name], more = (value - rest.substitute(found)) * c, True
                        unknown.discard(name)


def _tiles(unknown: frozenset[str], facts: list[Fact]) -> list[Fact] | None:
    """The facts with quotients and remainders joined that are loops up to a number; None where none is."""
    left, places = dict(enumerate(facts)), {e.terms: n for n, (_, e) in enumerate(facts)}
    for k, (value, expression) in enumerate(facts):
        atom = expression.terms[0][0] if len(expression.terms) == 1 and expression.terms[0][1] == 1 else None
        if not isinstance(atom, FloorDiv) or k not in left or atom.argument.names.isdisjoint(unknown):
            continue
        rest = atom.argument % atom.divisor
        n = places.get(rest.terms, k)
        if n != k and n in left:
            other, low = left.pop(n)
            high = (value - expression.constant) * atom.divisor
            left[k] = high + other + (rest.constant - low.constant), atom.argument
    return [*left.values()] if len(left) < len(facts) else None


def _joined(iterators: Sequence[str], facts: list[Fact], found: Mapping[str, Affine]) -> list[Fact] | None:
    """The facts with one pair of a quotient and its remainder joined; None where there is none."""
    unknown = frozenset(iterators) - found.keys()

    def value_of(target: Affine, besides: int) -> tuple[int, Affine] | None:
        parts = [term for term in target.terms if not Affine((term,)).names.isdisjoint(unknown)]
        for n, (value, expression) in enumerate(facts):
            if n == besides or any(part not in expression.terms for part in parts):
                continue
            if (rest := expression - target).names.isdisjoint(unknown):
                return n, value - rest.substitute(found)
        return None

    for k, (_, expression) in enumerate(facts):
        for atom, c in expression.terms:
            if isinstance(atom, Var) or c != 1 or atom.argument.names.isdisjoint(unknown):
                continue
            quotient, remainder = atom.argument // atom.divisor, atom.argument % atom.divisor
            own, other = (quotient, remainder) if isinstance(atom, FloorDiv) else (remainder, quotient)
            mine = facts[k][0] - (expression - own).substitute(found)
            if not (expression - own).names.isdisjoint(unknown) or (partner := value_of(other, k)) is None:
                continue
            high, low = (mine, partner[1]) if isinstance(atom, FloorDiv) else (partner[1], mine)
            rest = [fact for n, fact in enumerate(facts) if n not in (k, partner[0])]
            return [*rest, (high * atom.divisor + low, atom.argument)]
    return None
