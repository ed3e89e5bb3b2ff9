"""Statements on their loop vectors, where accesses of tiled nests have no floors and a shared loop is one dimension.

What the checks of one schedule compute, kept for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.program import Statement
from poly.relations import bound_expressions
from poly.scheduling.dependences import Touch, touches
from poly.scheduling.schedule import Schedule
from poly.sets import IN, OUT, coalesced


class Vectors:
    """The loop vectors of a schedule's statements, with their accesses. Sizes that are bound are put in."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.program = schedule, schedule.program
        self._maps: dict[str, isl.Map] = {}
        self._touches: dict[str, tuple[Touch, ...]] = {}
        self._accesses: dict[tuple[str, int], isl.Map] = {}

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
            plain = coalesced(self.of(touch.statement).reverse().apply_range(touch.relation))
            hull = isl.Map.from_basic_map(plain.affine_hull()).intersect_domain(plain.domain())
            self._accesses[key] = hull if hull.is_single_valued() else plain
        return self._accesses[key]

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
