"""Statements on their loop vectors, where accesses of tiled nests have no floors and a shared loop is one dimension.

What the checks of one schedule compute, kept for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.affine import Affine
from poly.coefficients import relation_of
from poly.program import Statement
from poly.relations import bound_expressions, free_sizes
from poly.scheduling.dependences import Touch, touches
from poly.scheduling.inverse import inverse_of
from poly.scheduling.schedule import Schedule
from poly.sets import IN, OUT, coalesced, has_floor


class Vectors:
    """The loop vectors of a schedule's statements, with their accesses. Sizes that are bound are put in."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.program = schedule, schedule.program
        self._maps: dict[str, isl.Map] = {}
        self._touches: dict[str, tuple[Touch, ...]] = {}
        self._accesses: dict[tuple[str, int], isl.Map] = {}
        self._ranges: dict[str, isl.Set] = {}
        self._instances: dict[str, Sequence[Affine] | None] = {}

    def of(self, s: Statement) -> isl.Map:
        """{ S[iterators] -> S[loop values] }"""
        if s.name not in self._maps:
            nest = self.schedule.nests[s.name]
            self._maps[s.name] = bound_expressions(self.program, s, nest.expressions(nest.names), s.name)
        return self._maps[s.name]

    def touches(self, s: Statement) -> tuple[Touch, ...]:
        """The accesses of a statement, on instances."""
        if s.name not in self._touches:
            self._touches[s.name] = tuple(touches(self.program, s))
        return self._touches[s.name]

    def access(self, touch: Touch) -> isl.Map:
        """{ S[loop values] -> T[subscripts] }; floors go where the affine hull is as exact."""
        key = (touch.statement.name, id(touch))
        if key not in self._accesses:
            found = self._by_loops(touch)
            self._accesses[key] = self._by_hull(touch) if found is None else found
        return self._accesses[key]

    def _by_hull(self, touch: Touch) -> isl.Map:
        plain = coalesced(self.of(touch.statement).reverse().apply_range(touch.relation))
        hull = isl.Map.from_basic_map(plain.affine_hull()).intersect_domain(plain.domain())
        return hull if hull.is_single_valued() else plain

    def _by_loops(self, touch: Touch) -> isl.Map | None:
        """An access with the iterators put in as functions of the loops; None where they have floors, or are not known.

        isl then neither composes nor simplifies anything.
        """
        s = touch.statement
        if s.external is not None:
            return None
        access = s.write if touch.write or touch.position < 0 else s.reads[touch.position]
        if access.indirect or (instance := self._instance(s)) is None:
            return None
        values = dict(zip(s.iterators, instance, strict=True)) | self.program.binding
        index = [e.substitute(values) for e in access.affine_index]
        if any(map(has_floor, index)):
            return None
        if s.name not in self._ranges:
            self._ranges[s.name] = coalesced(self.of(s).range())
        where = self.of(s).intersect_domain(touch.relation.domain()).range() if access.guard else self._ranges[s.name]
        loops = self.schedule.nests[s.name].names
        relation = relation_of(index, loops, free_sizes(self.program), s.name).intersect_domain(where)
        return relation.set_tuple_name(OUT, touch.tensor)

    def _instance(self, s: Statement) -> Sequence[Affine] | None:
        """The iterators as functions of the loops, where algebra gives them."""
        if s.name not in self._instances:
            nest = self.schedule.nests[s.name]
            found = inverse_of(s.iterators, nest.names, nest.expressions(nest.names))
            self._instances[s.name] = None if None in found else [e for e in found if e is not None]
        return self._instances[s.name]

    def pairs(self, first: Statement, second: Statement, relation: isl.Map) -> isl.Map:
        """A relation of instances as one of loop vectors."""
        return self.of(first).reverse().apply_range(relation).apply_range(self.of(second))

    def instances(self, first: Statement, second: Statement, pairs: isl.Map) -> isl.Map:
        """A relation of loop vectors as one of instances."""
        return self.of(first).apply_range(pairs).apply_range(self.of(second).reverse())


def before_in(pairs: isl.Map, loop: int) -> isl.Map:
    """The pairs whose first is in an earlier iteration of the loop at a position."""
    return pairs.order_lt(IN, loop, OUT, loop)


def together(pairs: isl.Map, loops: Sequence[int]) -> isl.Map:
    """The pairs in one iteration of some loops."""
    for k in loops:
        pairs = pairs.equate(IN, k, OUT, k)
    return pairs
