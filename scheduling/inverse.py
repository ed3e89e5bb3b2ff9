"""Iterators as functions of the loops of a statement by algebra alone: what tiles took apart is put together again.

`e == d*(e // d) + e % d` holds for all e, so two loops with these values stand for one with the value e; loops that
are affine without floors then are equations that give one iterator after the other. What they give is exact wherever
the loops have their values, so that isl's affine hull is only needed where an iterator is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poly.affine import Affine, Mod, var


def inverse_of(
    iterators: Sequence[str],
    loops: Sequence[str],
    expressions: Sequence[Affine],
    known: Mapping[str, Affine] | None = None,
) -> list[Affine | None]:
    """For every iterator an expression of the loops, None where there is none; `known`: those that are known before.

    `expressions`: the loops by iterators.
    """
    found = dict(known or {})
    facts = _put_together([(var(loop), e) for loop, e in zip(loops, expressions, strict=True)])
    for _ in iterators:
        for value, expression in facts:
            unknown = [i for i in iterators if i in expression.names and i not in found]
            if len(unknown) == 1 and abs(c := expression.coefficient(unknown[0])) == 1:
                rest = expression - var(unknown[0]) * c
                if unknown[0] not in rest.names:
                    found[unknown[0]] = (value - rest.substitute(found)) * c
    return [found.get(i) for i in iterators]


def _put_together(facts: list[tuple[Affine, Affine]]) -> list[tuple[Affine, Affine]]:
    """Values with what they are equal to: every remainder and the quotient that belongs to it become one."""
    again = True
    while again:
        again = False
        for k, (rest, remainder) in enumerate(facts):
            if len(remainder.terms) != 1 or remainder.constant or remainder.terms[0][1] != 1:
                continue
            atom = remainder.terms[0][0]
            if not isinstance(atom, Mod):
                continue
            quotient = atom.argument // atom.divisor
            other = next((n for n, (_, e) in enumerate(facts) if e == quotient), None)
            if other is not None:
                whole = (facts[other][0] * atom.divisor + rest, atom.argument)
                facts = [fact for n, fact in enumerate(facts) if n not in (k, other)] + [whole]
                again = True
                break
    return facts
