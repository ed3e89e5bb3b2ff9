"""Statements on their loop vectors, where accesses of tiled nests have no floors and a shared loop is one dimension.

What the checks of one schedule compute, kept for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from poly.affine import Affine, Atom, FloorDiv, Mod, Var, sum_of
from poly.coefficients import relation_of
from poly.program import Access, Statement
from poly.relations import (
    bound_domain,
    bound_expressions,
    box_bounds,
    free_sizes,
    range_of,
    values_taken,
    with_binding,
)
from poly.scheduling.dependences import Touch, touches
from poly.scheduling.inverse import by_loops, equalities_of, inverse_of, loops_that_are
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
        self._subscripts: dict[int, Sequence[Affine] | None] = {}
        self._instances: dict[str, tuple[Mapping[str, Affine | int], Mapping[Atom, Affine]] | None] = {}
        self._expressions: dict[tuple[str, Affine], Affine | None] = {}
        self._parts: dict[tuple[str, Affine, int], _Parts] = {}
        self._inside: dict[tuple[str, tuple[tuple[Affine, int], ...]], tuple[int, int] | None] = {}

    def of_fewer(self, schedule: Schedule) -> Vectors:
        """The loop vectors of a schedule of some of the statements with other accesses, but the same instances."""
        found = Vectors(schedule)
        found._maps, found._ranges, found._instances = self._maps, self._ranges, self._instances
        found._expressions, found._parts, found._inside = self._expressions, self._parts, self._inside
        return found

    def of(self, s: Statement) -> isl.Map:
        """{ S[iterators] -> S[loop values] }"""
        if s.name not in self._maps:
            nest = self.schedule.nests[s.name]
            self._maps[s.name] = bound_expressions(self.program, s, nest.expressions(nest.names), s.name)
        return self._maps[s.name]

    def range(self, s: Statement) -> isl.Set:
        """{ S[loop values] }"""
        if s.name not in self._ranges:
            nest, domain = self.schedule.nests[s.name], bound_domain(self.program, s)
            loops = with_binding(self.program, nest.expressions(nest.names))
            self._ranges[s.name] = values_taken(loops, s.iterators, free_sizes(self.program), s.name, domain)
        return self._ranges[s.name]

    def box(self, s: Statement) -> Mapping[str, tuple[int, int]] | None:
        """First and last value of every loop of a statement where these are numbers; None where they are not."""
        return box_bounds(self.range(s), self.schedule.nests[s.name].names)

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
        """An access by its subscripts as functions of the loops; None where these have floors, or are not known.

        isl then neither composes nor simplifies anything.
        """
        s, index = touch.statement, self.subscripts(touch)
        if index is None:
            return None
        guarded = not touch.write and touch.position >= 0 and s.reads[touch.position].guard
        where = self.of(s).intersect_domain(touch.relation.domain()).range() if guarded else self.range(s)
        loops = self.schedule.nests[s.name].names
        relation = relation_of(index, loops, free_sizes(self.program), s.name).intersect_domain(where)
        return relation.set_tuple_name(OUT, touch.tensor)

    def subscripts(self, touch: Touch) -> Sequence[Affine] | None:
        """The subscripts of an access as sums of loops, where algebra gives them: the iterators are put in."""
        if id(touch) not in self._subscripts:
            self._subscripts[id(touch)] = self._found_subscripts(touch)
        return self._subscripts[id(touch)]

    def _found_subscripts(self, touch: Touch) -> Sequence[Affine] | None:
        return None if touch.access is None else self.index_by_loops(touch.statement, touch.access)

    def index_by_loops(self, s: Statement, access: Access) -> Sequence[Affine] | None:
        """Subscripts of a statement's iterators as sums of its loops, where algebra gives them."""
        if access.indirect:
            return None
        found = [self._by_loops_of(s, e) for e in access.affine_index]
        index = [e for e in found if e is not None]
        return index if len(index) == len(found) else None

    def _by_loops_of(self, s: Statement, expression: Affine) -> Affine | None:
        key = s.name, expression
        if key not in self._expressions:
            known = self._instance(s)
            found = None if known is None else by_loops(expression, *known)
            self._expressions[key] = None if found is None or has_floor(found) else found
        return self._expressions[key]

    def apart(self, a: Touch, b: Touch, depth: int) -> bool:
        """Whether it is plain from the subscripts that two accesses meet in no element in different iterations of the
        loop at `depth`, alike in the loops around it.
        """
        return self.tell_apart(a.statement, self.subscripts(a), b.statement, self.subscripts(b), depth)

    def tell_apart(
        self, a: Statement, first: Sequence[Affine] | None, b: Statement, second: Sequence[Affine] | None, depth: int
    ) -> bool:
        """`apart` of two statements' subscripts by loops. False says nothing."""
        found = self._distance(a, first, b, second, depth)
        return found is not None and found[0] >= 0 >= found[1]

    def by_distance(self, a: Touch, b: Touch, depth: int) -> int | None:
        """Where it is plain from the subscripts when one access touches the elements of another, alike in the loops
        around the loop at `depth`: -1 in earlier iterations of that, 0 in the same one, 1 in later ones.
        """
        found = self._distance(a.statement, self.subscripts(a), b.statement, self.subscripts(b), depth)
        if found is None:
            return None
        low, high = found
        return 0 if low >= 0 >= high else 1 if low > 0 else -1 if high < 0 else None

    def _distance(
        self, a: Statement, first: Sequence[Affine] | None, b: Statement, second: Sequence[Affine] | None, depth: int
    ) -> tuple[int, int] | None:
        """The least and most iterations of the loop at `depth` from where the second access meets an element of the
        first to where the first does (none where the least is more); None where nothing bounds them.

        Subscripts factor*loop + (loops inside) + (loops around), alike but for what is inside, meet where that makes up
        for a multiple of the factor; the loop's own ends bound the distance too.
        """
        if first is None or second is None:
            return None
        found: list[tuple[int, int]] = []
        for x, y in zip(first, second, strict=True):
            one, other = self._split(a, x, depth), self._split(b, y, depth)
            if not one.factor or (one.factor, one.around) != (other.factor, other.around):
                continue
            p, q = self._range(a, one), self._range(b, other)
            if p is not None and q is not None:
                low, high, factor = q[0] - p[1], q[1] - p[0], abs(one.factor)
                low, high = (low, high) if one.factor > 0 else (-high, -low)
                found.append((-(-low // factor), high // factor))
                if found[-1] == (0, 0):
                    return found[-1]
        ends = [range_of(self.program, s, self._loop(s, depth)) for s in (a, b)]
        if ends[0] is not None and ends[1] is not None:
            found.append((ends[0][0] - ends[1][1], ends[0][1] - ends[1][0]))
        return (max(low for low, _ in found), min(high for _, high in found)) if found else None

    def _loop(self, s: Statement, depth: int) -> Affine:
        """The value of the loop at a depth."""
        nest = self.schedule.nests[s.name]
        return nest.loops[nest.names[depth]]

    def _split(self, s: Statement, subscript: Affine, depth: int) -> _Parts:
        """A subscript by the loop at `depth`, those around it (and sizes), and those inside."""
        key = s.name, subscript, depth
        if key not in self._parts:
            nest = self.schedule.nests[s.name]
            factor, around, inside = 0, set[tuple[Atom, int]](), list[tuple[Affine, int]]()
            for atom, c in subscript.terms:
                assert isinstance(atom, Var)
                place = nest.names.index(atom.name) if atom.name in nest.loops else -1  # -1: a size
                if place < depth:
                    around.add((atom, c))
                elif place == depth:
                    factor = c
                else:
                    inside.append((nest.loops[atom.name], c))
            self._parts[key] = _Parts(factor, frozenset(around), tuple(inside), subscript.constant)
        return self._parts[key]

    def _range(self, s: Statement, parts: _Parts) -> tuple[int, int] | None:
        """The least and the most of what loops inside and the constant add; None where nothing bounds them."""
        key = s.name, parts.inside
        if key not in self._inside:
            self._inside[key] = self._found_range(s, parts.inside)
        found = self._inside[key]
        return None if found is None else (found[0] + parts.constant, found[1] + parts.constant)

    def _found_range(self, s: Statement, inside: Sequence[tuple[Affine, int]]) -> tuple[int, int] | None:
        if inside and box_bounds(bound_domain(self.program, s), s.iterators) is None:
            # only isl could tell what one loop adds
            terms = [(atom, c * k) for loop, c in inside for atom, k in loop.terms]
            own = _own_bounds(sum_of(terms, sum(c * loop.constant for loop, c in inside)).recombined())
            if own is not None:
                return own
        low = high = 0
        for loop, c in inside:
            found = range_of(self.program, s, loop)
            if found is None:
                return None
            low, high = low + min(c * found[0], c * found[1]), high + max(c * found[0], c * found[1])
        return low, high

    def _instance(self, s: Statement) -> tuple[Mapping[str, Affine | int], Mapping[Atom, Affine]] | None:
        """The iterators and sizes, and floors of iterators, as functions of the loops, where algebra gives them."""
        if s.name not in self._instances:
            nest = self.schedule.nests[s.name]
            loops = nest.names, nest.expressions(nest.names)
            found = inverse_of(s.iterators, *loops)
            if None in found:
                found = inverse_of(s.iterators, *loops, zero=equalities_of(bound_domain(self.program, s), s.iterators))
            values = {i: e for i, e in zip(s.iterators, found, strict=True) if e is not None}
            known = values | self.program.binding, loops_that_are(*loops)
            self._instances[s.name] = known if len(values) == len(found) else None
        return self._instances[s.name]

    def pairs(self, first: Statement, second: Statement, relation: isl.Map) -> isl.Map:
        """A relation of instances as one of loop vectors."""
        return self.of(first).reverse().apply_range(relation).apply_range(self.of(second))

    def instances(self, first: Statement, second: Statement, pairs: isl.Map) -> isl.Map:
        """A relation of loop vectors as one of instances."""
        return self.of(first).apply_range(pairs).apply_range(self.of(second).reverse())


@dataclass(frozen=True)
class _Parts:
    """A subscript as factor * loop + a sum of what is around + loops inside, each times a number, + a constant."""

    factor: int
    around: frozenset[tuple[Atom, int]]
    inside: tuple[tuple[Affine, int], ...]
    constant: int


def _own_bounds(expression: Affine) -> tuple[int, int] | None:
    """Bounds of an expression whatever its names are: sums of remainders, and of these divided."""
    low = high = expression.constant
    for atom, c in expression.terms:
        if isinstance(atom, Mod):
            ends = 0, atom.divisor - 1
        elif isinstance(atom, FloorDiv) and (inner := _own_bounds(atom.argument)) is not None:
            ends = inner[0] // atom.divisor, inner[1] // atom.divisor
        else:
            return None
        low, high = low + min(c * ends[0], c * ends[1]), high + max(c * ends[0], c * ends[1])
    return low, high


def before_in(pairs: isl.Map, loop: int) -> isl.Map:
    """The pairs whose first is in an earlier iteration of the loop at a position."""
    return pairs.order_lt(IN, loop, OUT, loop)


def together(pairs: isl.Map, loops: Sequence[int]) -> isl.Map:
    """The pairs in one iteration of some loops."""
    for k in loops:
        pairs = pairs.equate(IN, k, OUT, k)
    return pairs
