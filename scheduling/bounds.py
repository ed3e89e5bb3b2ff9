"""Bounds of one loop, from the loop vectors of the statements under it and what is known of the loops around.

A loop's bounds hold for every statement under it (the hull of their vectors); what a statement demands beyond them
becomes a guard further in. The returned context says exactly what the bounds say: nothing is lost or run twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from poly.affine import Affine, Constraint, Var, var
from poly.coefficients import CST, conditions_of, entry, set_of
from poly.errors import UnsupportedError
from poly.relations import box_bounds
from poly.sets import DIV, PARAM, SET, affine_of_aff, interval, parameter_names

Ends = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class LoopBounds:
    """`for loop from max(lower) while < min(upper) by step`, inside `guard` (conditions on the loops around).

    `value`: the only value, where there is at most one; it is taken where `value_guard` holds.
    `context`: the loop vectors up to and with this loop.
    """

    lower: tuple[Affine, ...]
    upper: tuple[Affine, ...]
    step: int
    guard: tuple[Constraint, ...]
    value: Affine | None
    value_guard: tuple[Constraint, ...]
    context: isl.Set


def loop_bounds(
    prefixes: Sequence[isl.Set], outer: isl.Set, context: isl.Set, names: Sequence[str], ends: Sequence[Ends] = ()
) -> LoopBounds:  # fmt: skip
    """Bounds of the last of the loops `names`.

    `prefixes`: per statement the values of these loops, `outer`: of the first statement without the last loop;
    `context`: what is known of the loops around; `ends`: per statement the first and the last value of its loops, where
    these are numbers whatever the other loops are. Raises `UnsupportedError` for a loop without bounds.
    """
    first, loop = prefixes[0], names[-1]
    if same(context, outer) and all(same(first, other) for other in prefixes[1:]):
        if ends and loop in ends[0]:
            low, end = Affine((), ends[0][loop][0]), Affine((), ends[0][loop][1] + 1)
            return LoopBounds((low,), (end,), 1, (), low if low + 1 == end else None, (), first)
        found = _exact_bounds(first, context, names)
        if found is not None:
            return found
    return bounds_of_boxes(ends, context, names) or bounds_of_hulls(prefixes, context, names)


def bounds_of_boxes(ends: Sequence[Ends], context: isl.Set, names: Sequence[str]) -> LoopBounds | None:
    """What `bounds_of_hulls` gives, where what the statements need is a box together, in a context that is one."""
    whole = _joined(ends, names)
    around = box_bounds(context.set_tuple_name(""), tuple(names[:-1])) if whole is not None and len(names) > 1 else {}
    if whole is None or around is None:
        return None
    guard: list[Constraint] = []
    for n, (first, last) in around.items():
        low, high = whole[n]
        if (low, high) != (first, last) and (low == high or low < first or high > last):
            return None
        guard += [Constraint(var(n) - low)] * (low > first) + [Constraint(high - var(n))] * (high < last)
    loop, (low, high) = names[-1], whole[names[-1]]
    limits = [Constraint(var(loop) - low), Constraint(high - var(loop))]
    known = context.add_dims(SET, 1)
    known = known.intersect(set_of([*guard, *limits], names, parameter_names(known)))
    start, end = Affine((), low), Affine((), high + 1)
    guard.sort(key=_long_first)
    return LoopBounds((start,), (end,), 1, tuple(guard), start if low == high else None, (), known)


def _joined(ends: Sequence[Ends], names: Sequence[str]) -> Ends | None:
    """The box that boxes are together, which differ along one loop at most and leave nothing out there; else None."""
    if not ends or any(n not in box for box in ends for n in names):
        return None
    whole = {n: ends[0][n] for n in names}
    differing = [n for n in names if any(box[n] != whole[n] for box in ends)]
    if len(differing) > 1:
        return None
    for n in differing:
        reach = whole[n] = min(box[n] for box in ends)
        for low, high in sorted({box[n] for box in ends}):
            if low > reach[1] + 1:
                return None
            reach = whole[n] = (reach[0], max(reach[1], high))
    return whole


def with_last(bounds: LoopBounds, prefixes: Sequence[isl.Set]) -> LoopBounds:
    """With the loop's last value over all that is around it as an end, where the others depend on that: lanes are
    counted by numbers, which isl leaves out where the values of the loops around imply them.
    """
    if any(b.is_constant for b in bounds.upper) or not all(b.is_constant for b in bounds.lower):
        return bounds
    found = [interval(values, values.dim(SET) - 1) for values in prefixes]
    if None in found:
        return bounds
    last = max(f[1] for f in found if f is not None)
    return replace(bounds, upper=(Affine((), last + 1), *bounds.upper))


def same(a: isl.Set, b: isl.Set) -> bool:
    """Whether two sets are equal; free where they are written the same."""
    return bool(a.plain_is_equal(b) or a.is_equal(b))


def _exact_bounds(values: isl.Set, context: isl.Set, names: Sequence[str]) -> LoopBounds | None:
    """The bounds where the loops around take just the values that all statements need: the constraints themselves."""
    if values.n_basic_set() != 1:
        return None
    basic = values.get_basic_sets()[0].remove_redundancies()
    if basic.dim(DIV):
        return None
    limits = [c for c in conditions_of(basic, names, len(names) - 1) if c is not None]
    limits = _needed(limits, context.add_dims(SET, 1), names)
    lower, upper = _limits(limits, names[-1])
    if not lower or not upper:
        return None
    value, _ = _only_value(lower, upper, 1, limits, names[-1])
    return LoopBounds(_sorted(lower), _sorted(upper), 1, (), value, (), values)


def bounds_of_hulls(prefixes: Sequence[isl.Set], context: isl.Set, names: Sequence[str]) -> LoopBounds:
    """The bounds that hold for all statements, cheapest way first."""
    known = context.add_dims(SET, 1)
    together = prefixes[0]
    for other in prefixes[1:]:
        together = together.union(other)
    plain = together
    found = _bounds(together.coalesce().remove_unknown_divs().simple_hull(), together, known, names)
    if not (found.lower and found.upper):  # the bounds hang on existentials: take the rational projection
        plain = together.remove_divs()
        found = _bounds(plain.simple_hull(), together, known, names)
    if not (found.lower and found.upper) and together.n_basic_set() > 1:  # two extents, say: i < N or i < M
        found = _bounds(plain.intersect(known.remove_divs()).convex_hull(), together, known, names)
    if not (found.lower and found.upper):
        missing = "upper" if found.lower else "lower"
        raise UnsupportedError(f"loop {names[-1]} has no {missing} bound", hint="give every size a range")
    return found


def _bounds(hull: isl.BasicSet, exact: isl.Set, known: isl.Set, names: Sequence[str]) -> LoopBounds:
    loop = names[-1]
    new = hull.to_set().gist(known).simple_hull()
    everything = conditions_of(new, names)
    conditions = [c for c in everything if c is not None and loop not in _split(c.expr, loop)[1].names]
    conditions = _needed(conditions, known, names)
    stride, offset = _stride(exact, known, names)
    congruence = [Constraint((var(loop) - offset) % stride, True)] if stride > 1 else []
    context = known.intersect(
        new.to_set()
        if len(conditions) == len(everything) and not congruence
        else set_of(conditions + congruence, names, parameter_names(known))
    )
    limits = [c for c in conditions if loop in c.expr.names]
    lower, upper = _limits(limits, loop)
    lower = [b + (offset - b) % stride for b in lower]
    value, value_guard = _only_value(lower, upper, stride, limits + congruence, loop)
    guard = tuple(c for c in conditions if loop not in c.expr.names)
    return LoopBounds(_sorted(lower), _sorted(upper), stride, guard, value, value_guard, context)


def _needed(conditions: list[Constraint], known: isl.Set, names: Sequence[str]) -> list[Constraint]:
    """Conditions without those that the others imply where `known` holds; long ones go first.

    isl leaves out other ones by how it has written its sets so far, which each question about a set may change:
    loops must not differ with what was asked before.
    """
    above, below = (sum(sign * c.expr.coefficient(names[-1]) > 0 for c in conditions) for sign in (1, -1))
    if above <= 1 and below <= 1 and above + below == len(conditions):
        return conditions
    parameters = parameter_names(known)
    kept = sorted(conditions, key=_long_first)
    for c in [*kept]:
        others = [other for other in kept if other is not c]
        if known.intersect(set_of(others, names, parameters)).is_subset(set_of([c], names, parameters)):
            kept = others
    return kept


def _long_first(c: Constraint) -> tuple[bool, int, str]:
    return c.equality, -len(c.expr.terms), str(c.expr)


def _split(expression: Affine, loop: str) -> tuple[int, Affine]:
    """An expression as a*loop + rest; the loop may still stand in a floor of the rest."""
    own = Var(loop)
    a = expression.coefficient(loop)
    return a, Affine(
        tuple(term for term in expression.terms if term[0] != own), expression.constant
    ) if a else expression


def _limits(conditions: Sequence[Constraint], loop: str) -> tuple[list[Affine], list[Affine]]:
    """Lower and (exclusive) upper bounds: a*loop + rest >= 0 gives ceil(-rest/a), or floor(rest/-a) + 1."""
    lower: list[Affine] = []
    upper: list[Affine] = []
    for c in conditions:
        a, rest = _split(c.expr, loop)
        if a > 0 or c.equality:
            lower.append(-((rest if a > 0 else -rest) // abs(a)))
        if a < 0 or c.equality:
            upper.append((rest if a < 0 else -rest) // abs(a) + 1)
    return lower, upper


def _only_value(
    lower: Sequence[Affine], upper: Sequence[Affine], stride: int, conditions: Sequence[Constraint], loop: str
) -> tuple[Affine | None, tuple[Constraint, ...]]:
    """The single value of a loop and when it is taken."""
    for c in conditions:
        a, rest = _split(c.expr, loop)
        if c.equality and abs(a) == 1 and loop not in rest.names:
            value = rest * -a
            guard = [other.substitute({loop: value}) for other in conditions if other is not c]
            return value, tuple(g for g in guard if not holds_always(g))
    if len(lower) == len(upper) == 1:
        trips = upper[0] - lower[0]
        if trips.is_constant and 0 < trips.constant <= stride:
            return lower[0], ()
    return None, ()


def holds_always(condition: Constraint) -> bool:
    """Whether a condition without names holds."""
    return condition.expr.is_constant and bool(condition.holds({}))


def _stride(exact: isl.Set, known: isl.Set, names: Sequence[str]) -> tuple[int, Affine]:
    """Every value of the last loop is offset + a multiple of the stride."""
    if any(_is_dense(basic, len(names) - 1) for basic in exact.get_basic_sets()):
        return 1, Affine()
    for known_too in (False, True):  # the offset may be integer only on the values that the loops around take
        values = exact.gist(known) if known_too else exact
        info = values.get_stride_info(len(names) - 1)
        stride = info.get_stride().to_python()
        if stride <= 1:
            return 1, Affine()
        offset = affine_of_aff(info.get_offset(), names)
        if offset is not None and names[-1] not in offset.names:
            return stride, offset % stride
    return 1, Affine()


def _is_dense(basic: isl.BasicSet, loop: int) -> bool:
    """Whether nothing makes a loop leave out values: no existential, and no equation that the loop is in."""
    if basic.dim(DIV):
        return False
    equations = basic.equalities_matrix(CST, PARAM, SET, DIV)
    column = 1 + basic.dim(PARAM) + loop
    return not any(entry(equations, row, column) for row in range(equations.rows()))


def _sorted(bounds: Sequence[Affine]) -> tuple[Affine, ...]:
    """Constants first, then by text, each once."""
    return tuple(sorted(set(bounds), key=lambda b: (not b.is_constant, len(b.terms), str(b))))
