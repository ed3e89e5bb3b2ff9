"""Whether what one statement accesses of a buffer in every tile is accessed by others of the same tile, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from poly.affine import Affine, Var, var
from poly.coefficients import relation_of
from poly.program import Access, Statement
from poly.relations import bound_access, bound_domain, box_bounds, free_sizes
from poly.scheduling.vectors import Vectors
from poly.sets import has_floor

Use = tuple[Statement, Access]


class Cover:
    """Elements that statements access in one iteration of the outermost loops around them, a tile; guards do not count.

    `depth`: how many loops that are; all statements that are compared share them.
    """

    def __init__(self, vectors: Vectors, depth: int) -> None:
        self._vectors, self._program, self._depth = vectors, vectors.program, depth
        self._sets: dict[tuple[str, tuple[Affine, ...]], isl.Set] = {}

    def within(self, what: Use, others: Sequence[Use]) -> bool:
        """Whether what is accessed in every tile is accessed by some others, too."""
        if not others or any(self._fits(what, other) for other in others):
            return bool(others)
        sets = [self._elements(*one) for one in (what, *others)]
        if any(s is None for s in sets):
            return False
        first, *rest = [s for s in sets if s is not None]
        together = rest[0]
        for s in rest[1:]:
            together = together.union(s)
        return bool(first.is_subset(together))

    def _fits(self, what: Use, other: Use) -> bool:
        """`within` where loops have numbers as bounds: the ends say it."""
        (s, access), (t, whole) = what, other
        boxes = self._box(s), self._box(t)
        inner, outer = self._index(s, access), self._index(t, whole)
        if boxes[0] is None or boxes[1] is None or inner is None or outer is None:
            return False
        around = self._vectors.schedule.nests[s.name].names[: self._depth]
        if not all(boxes[1][n][0] <= boxes[0][n][0] and boxes[0][n][1] <= boxes[1][n][1] for n in around):
            return False
        seen = set(around)
        for one, all_ in zip(inner, outer, strict=True):
            known = one.names <= boxes[0].keys() and all_.names <= boxes[1].keys()
            if not known or has_floor(one) or has_floor(all_):
                return False
            varying = {n for n in all_.names if boxes[1][n][0] < boxes[1][n][1]}
            (low, high, _), (first, last, every) = _ends(one, boxes[0]), _ends(all_, boxes[1])
            if not every or not first <= low <= high <= last or not varying.isdisjoint(seen):
                return False
            seen |= varying
        return True

    def _box(self, s: Statement) -> Mapping[str, tuple[int, int]] | None:
        """The ends of loops, or of iterators where there is one tile for all."""
        return self._vectors.box(s) if self._depth else box_bounds(bound_domain(self._program, s), s.iterators)

    def _index(self, s: Statement, access: Access) -> Sequence[Affine] | None:
        if self._depth:
            return self._vectors.index_by_loops(s, access)
        return access.substitute(self._program.binding).affine_index

    def _elements(self, s: Statement, access: Access) -> isl.Set | None:
        """{ [loops of the scope, subscripts] }"""
        if not self._depth:
            return bound_access(self._program, s, replace(access, guard=(), fill=None)).range()
        index = self._vectors.index_by_loops(s, access)
        if index is None:
            return None
        loops, key = self._vectors.schedule.nests[s.name].names, (s.name, tuple(index))
        if key not in self._sets:
            relation = relation_of([*map(var, loops[: self._depth]), *index], loops, free_sizes(self._program), s.name)
            self._sets[key] = relation.intersect_domain(self._vectors.range(s)).range()
        return self._sets[key]


def _ends(e: Affine, box: Mapping[str, tuple[int, int]]) -> tuple[int, int, bool]:
    """First and last value of a sum of loops in a box, and whether it surely takes all between."""
    low = high = e.constant
    every, reach = True, 1
    for atom, c in sorted(e.terms, key=lambda term: abs(term[1])):
        assert isinstance(atom, Var)
        first, last = box[atom.name]
        every = every and (first == last or abs(c) <= reach)
        reach += abs(c) * (last - first)
        low, high = low + min(c * first, c * last), high + max(c * first, c * last)
    return low, high, every


