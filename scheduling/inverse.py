"""Iterators as functions of the loops of a statement by algebra alone: what tiles took apart is put together again.

`e == d*(e // d) + e % d` holds for all e, so two loops with these values stand for one with the value e; loops that
are affine without floors are equations that give one iterator after the other. What comes out is exact wherever the
loops have their values: isl's affine hull is needed only where an iterator is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from poly.affine import Affine, FloorDiv, Var, var

Fact = tuple[Affine, Affine]  # a value by loops, and the expression of the iterators that it is equal to


def inverse_of(
    iterators: Sequence[str],
    loops: Sequence[str],
    expressions: Sequence[Affine],
    known: Mapping[str, Affine] | None = None,
) -> list[Affine | None]:
    """For every iterator an expression of the loops, None where there is none; `known`: those that are known before.

    `expressions`: the loops by iterators.
    """
    return [*_inverse(tuple(iterators), tuple(loops), tuple(expressions), tuple((known or {}).items()))]


@lru_cache(maxsize=1024)
def _inverse(
    iterators: tuple[str, ...],
    loops: tuple[str, ...],
    expressions: tuple[Affine, ...],
    known: tuple[tuple[str, Affine], ...],
) -> tuple[Affine | None, ...]:
    """Each check of a schedule, and its lowering, ask for the same again."""
    found = dict(known)
    facts = [(var(loop), e) for loop, e in zip(loops, expressions, strict=True)]
    while True:
        _solve(iterators, facts, found)
        joined = None if all(i in found for i in iterators) else _joined(iterators, facts, found)
        if joined is None:
            return tuple(found.get(i) for i in iterators)
        facts = joined


def _solve(iterators: Sequence[str], facts: Sequence[Fact], found: dict[str, Affine]) -> None:
    """Iterators of factor 1 or -1 outside floors in an expression whose others are known."""
    for _ in iterators:
        for value, expression in facts:
            unknown = [i for i in iterators if i in expression.names and i not in found]
            if len(unknown) == 1 and abs(c := expression.coefficient(unknown[0])) == 1:
                rest = expression - var(unknown[0]) * c
                if unknown[0] not in rest.names:
                    found[unknown[0]] = (value - rest.substitute(found)) * c


def _joined(iterators: Sequence[str], facts: list[Fact], found: Mapping[str, Affine]) -> list[Fact] | None:
    """The facts with one pair of a quotient and its remainder joined; None where there is none."""
    unknown = frozenset(iterators) - found.keys()

    def value_of(target: Affine, besides: int) -> tuple[int, Affine] | None:
        for n, (value, expression) in enumerate(facts):
            if n != besides and (rest := expression - target).names.isdisjoint(unknown):
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
