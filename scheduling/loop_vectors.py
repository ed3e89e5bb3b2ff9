"""The loop vectors of a statement under a schedule, its instance as a function of them, and expressions by loops.

Iterators come from algebra where it gives them (`poly.scheduling.inverse`), else from the integer affine hull of
"loop vector -> value". That hull also removes floors and remainders that the domain makes redundant
(`(8*i.o + i.p) // 8` is `i.o` where `0 <= i.p < 8`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import islpy as isl

from poly.affine import Affine, Atom, Constraint
from poly.coefficients import outputs_of_hull, relation_of, set_of
from poly.errors import ScheduleError, UnsupportedError
from poly.expr import Expr, IndexValue, rewrite, walk
from poly.locks import cached_property
from poly.program import Access, Statement
from poly.relations import bound_set, box_bounds, values_taken
from poly.scheduling.inverse import by_loops, equalities_of, inverse_of, loops_that_are
from poly.sets import SET, affine_of_aff, has_floor, parameter_names


@dataclass(frozen=True)
class LoopVectors:
    """A statement with the set of its loop vectors (bound sizes put in) and its iterators as functions of them.

    `atoms`: floors and remainders of iterators that are loops.
    """

    statement: Statement
    loops: tuple[str, ...]
    vectors: isl.Set
    instance: tuple[Affine, ...]
    sizes: Mapping[str, int]
    atoms: Mapping[Atom, Affine] = field(default_factory=dict[Atom, Affine])

    @property
    def parameters(self) -> list[str]:
        """The free sizes."""
        return parameter_names(self.vectors)

    @cached_property
    def prefixes(self) -> list[isl.Set]:
        """The values of the first 0, 1, 2, ... loops."""
        found = [self.vectors]
        for depth in reversed(range(len(self.loops))):
            found.append(found[-1].project_out(SET, depth, 1))
        return found[::-1]

    @cached_property
    def ends(self) -> Mapping[str, tuple[int, int]]:
        """First and last value of every loop where all have numbers as bounds; else nothing."""
        return box_bounds(self.vectors.set_tuple_name(self.statement.name), self.loops) or {}

    def express(self, expressions: Sequence[Affine]) -> tuple[Affine, ...]:
        """Expressions of the iterators by loops, without the floors that the domain makes redundant."""
        values: dict[str, Affine | int] = dict(zip(self.statement.iterators, self.instance, strict=True)) | dict(
            self.sizes
        )
        return self.simplify([by_loops(e.substitute(self.sizes), values, self.atoms) for e in expressions])

    def simplify(self, expressions: Sequence[Affine]) -> tuple[Affine, ...]:
        """The same values on the loop vectors, without redundant floors; expressions of loops."""
        with_floor = [k for k, e in enumerate(expressions) if has_floor(e)]
        if not with_floor:
            return tuple(expressions)
        relation = relation_of([expressions[k] for k in with_floor], self.loops, self.parameters).intersect_domain(
            self.vectors
        )
        solved = dict(zip(with_floor, outputs_of_hull(relation, self.loops), strict=True))
        return tuple(solved.get(k) or e for k, e in enumerate(expressions))

    def implied(self, condition: Constraint) -> bool:
        """Whether a condition on the loops holds at every loop vector."""
        return bool(self.vectors.is_subset(set_of([condition], self.loops, self.parameters)))

    def access(self, access: Access) -> Access:
        """An access by loop variables; conditions of its guard that always hold are dropped."""
        found = iter(self.express([s for s in access.index if isinstance(s, Affine)]))
        index = tuple(next(found) if isinstance(s, Affine) else s for s in access.index)
        conditions = self.express([c.expr for c in access.guard])
        guard = [Constraint(e, c.equality) for e, c in zip(conditions, access.guard, strict=True)]
        kept = tuple(c for c in guard if not self.implied(c))
        return Access(access.tensor, index, kept, access.fill if kept else None)

    def body(self, body: Expr) -> Expr:
        """A body whose index values are by loop variables."""
        found = [node for node in walk(body) if isinstance(node, IndexValue)]
        if not found:
            return body
        by_loops = dict(zip(found, self.express([node.index for node in found]), strict=True))
        return rewrite(body, lambda node: replace(node, index=by_loops[node]) if isinstance(node, IndexValue) else None)


def loop_vectors(
    s: Statement,
    loops: Sequence[str],
    expressions: Sequence[Affine],
    parameters: Sequence[str],
    context: isl.Set,
    sizes: Mapping[str, int],
) -> LoopVectors:
    """The loop vectors of a statement. `expressions`: the loops by iterators; `context`: what holds for the sizes.

    Raises `ScheduleError` where two instances have the same loop vector, `UnsupportedError` where the inverse needs
    several pieces.
    """
    domain = bound_set(s.domain, context, tuple(sorted(sizes.items())))
    bound, free = [e.substitute(sizes) for e in expressions], [p for p in parameters if p not in sizes]
    vectors = values_taken(tuple(bound), s.iterators, tuple(free), s.name, domain).reset_tuple_id()
    if vectors.is_empty():
        return LoopVectors(s, tuple(loops), vectors, tuple(Affine() for _ in s.iterators), sizes)
    solved, fixed = _inverse(s, domain, free, loops, bound), _fixed(vectors, loops)
    atoms = {atom: value.substitute(fixed) for atom, value in loops_that_are(loops, bound).items()}
    result = LoopVectors(s, tuple(loops), vectors, (), sizes, atoms)
    return replace(result, instance=result.simplify([e.substitute(fixed) for e in solved if e is not None]))


def _fixed(vectors: isl.Set, loops: Sequence[str]) -> dict[str, int]:
    """Loops that have one value, as around a single tile: what is kept in registers has then no loop in its index."""
    values = {loop: vectors.plain_get_val_if_fixed(SET, d) for d, loop in enumerate(loops)}
    return {loop: value.to_python() for loop, value in values.items() if value.is_int()}


def _inverse(
    s: Statement, domain: isl.Set, free: Sequence[str], loops: Sequence[str], expressions: Sequence[Affine]
) -> Sequence[Affine | None]:
    """The iterators as functions of the loops, by the cheapest way that gives all."""
    solved = inverse_of(s.iterators, loops, expressions)
    if None in solved:
        solved = inverse_of(s.iterators, loops, expressions, zero=equalities_of(domain, s.iterators))
    if None not in solved:
        return solved
    inverse = relation_of(expressions, s.iterators, free, s.name).intersect_domain(domain).reverse()
    if any(has_floor(e) for e in expressions):
        solved = outputs_of_hull(inverse, loops)
        known = {i: e for i, e in zip(s.iterators, solved, strict=True) if e is not None}
        solved = inverse_of(s.iterators, loops, expressions, known)
    else:
        hull = outputs_of_hull(inverse, loops)
        solved = [h if e is None else e for e, h in zip(solved, hull, strict=True)]
    return _unique(s, inverse, solved, loops) if any(e is None for e in solved) else solved


def _unique(
    s: Statement, inverse: isl.Map, solved: Sequence[Affine | None], loops: Sequence[str]
) -> list[Affine | None]:
    """Iterators that the affine hull does not give, from the piecewise inverse."""
    if not inverse.is_single_valued():
        raise ScheduleError(
            f"its loops {', '.join(loops) or '(none)'} do not tell its instances apart",
            where=f"statement {s.name}",
            hint="give it a loop for every iterator",
        )
    result = list(solved)
    pieces: list[isl.MultiAff] = []
    isl.PwMultiAff.from_map(inverse.coalesce()).coalesce().foreach_piece(lambda _, function: pieces.append(function))
    for d, known in enumerate(solved):
        if known is None:
            result[d] = affine_of_aff(pieces[0].get_aff(d), loops) if len(pieces) == 1 else None
            if result[d] is None:
                raise UnsupportedError(
                    f"iterator {s.iterators[d]} is not one quasi-affine function of the loops {', '.join(loops)}",
                    where=f"statement {s.name}",
                    hint="split a loop, so that each piece has one",
                )
    return result
