"""Sums over an index that an equality gives: `y[p] += x[i] where p == i % 8` adds to `y[i % 8]`.

With the equality as a condition the loops would be those of every p and i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from poly.affine import Affine, Var, var
from poly.expr import with_indices
from poly.program import Statement
from poly.sets import IN, OUT, SET, affine_of_pw


def with_equalities(s: Statement) -> Statement:
    """A sum without indices that follow from the others: first those that are affine in them, as i is by `i == 3*p + 1`
    in `y[p] += x[i]`, then those that say where it is written.
    """
    if s.combiner is None or not s.reorder:
        return s
    written = [name for name in s.iterators if var(name) in s.write.index]
    for name in (*(n for n in s.iterators if n not in written), *written):
        k = s.iterators.index(name)
        others = (*s.iterators[:k], *s.iterators[k + 1 :])
        value = _value(s.domain, k, others)
        if value is not None and (name in written or all(isinstance(atom, Var) for atom, _ in value.terms)):
            return with_equalities(_with(s, k, others, value))
    return s


def _value(domain: isl.Set, k: int, others: Sequence[str]) -> Affine | None:
    """What one dimension of a set is, of the others; None where they leave several, or it has no single expression."""
    given = isl.Map.from_domain(domain).move_dims(OUT, 0, IN, k, 1)
    if not given.is_single_valued():
        return None
    return affine_of_pw(isl.PwMultiAff.from_map(given).get_pw_aff(0), others)


def _with(s: Statement, k: int, others: tuple[str, ...], value: Affine) -> Statement:
    name = s.iterators[k]
    known = {name: value}
    domain = s.domain.project_out(SET, k, 1).set_tuple_name(s.name)
    reads = tuple(r.substitute(known) for r in s.reads)
    path = tuple(step for step in s.path if step != name)
    write, body = s.write.substitute(known), with_indices(s.body, known)
    return replace(s, iterators=others, domain=domain, write=write, reads=reads, body=body, path=path)
