"""Statements as relations: schedules, accesses and boxes as isl maps and sets, by names and without parsing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import islpy as isl

from poly.affine import Affine, Constraint, FloorDiv, Var, var
from poly.coefficients import conditions_of, relation_of, set_of
from poly.errors import PolyError
from poly.program import Access, Program, Statement, Tensor
from poly.sets import OUT, PARAM, SET, affine_of_pw, coalesced, fix_sizes, header, interval, kept_by_name


def bound_domain(program: Program, s: Statement) -> isl.Set:
    """The instances of a statement that the program's context allows, with the sizes that are bound put in."""
    known = s.__dict__.get("_bound")  # statements outlive the programs that edits make
    if known is None or known[0] is not program.context or known[1] is not program.sizes:
        found = bound_set(s.domain, program.context, program.sizes)
        known = s.__dict__["_bound"] = (program.context, program.sizes, found)
    return known[2]


@kept_by_name
def bound_set(domain: isl.Set, context: isl.Set, sizes: tuple[tuple[str, int], ...]) -> isl.Set:
    """What the context allows of a domain, with sizes put in; made once for all that is asked of a schedule."""
    return fix_sizes(domain.intersect_params(context), dict(sizes))


def bound_expressions(program: Program, s: Statement, values: Sequence[Affine], target: str = "") -> isl.Map:
    """`expressions_map` on `bound_domain`: cheaper than to put the sizes into it."""
    known = with_binding(program, values)
    return _expressions(known, s.iterators, free_sizes(program), s.name, bound_domain(program, s), target)


@lru_cache(maxsize=1024)
def _expressions(
    values: tuple[Affine, ...], iterators: tuple[str, ...], parameters: tuple[str, ...], name: str, domain: isl.Set,
    target: str,
) -> isl.Map:  # fmt: skip
    """Each edit of a schedule asks for the same maps again."""
    relation = relation_of(values, iterators, parameters, name).intersect_domain(domain)
    return relation.set_tuple_name(OUT, target) if target else relation


@lru_cache(maxsize=1024)
def values_taken(
    values: tuple[Affine, ...], iterators: tuple[str, ...], parameters: tuple[str, ...], name: str, domain: isl.Set,
) -> isl.Set:  # fmt: skip
    """`{ S[values] }` of a statement S; checks of a schedule and its lowering ask for the same."""
    return coalesced(_expressions(values, iterators, parameters, name, domain, name).range())


def bound_access(program: Program, s: Statement, access: Access) -> isl.Map:
    """`access_map` on `bound_domain`: cheaper than to put the sizes into it."""
    if access.indirect:
        relation = access_map(s, access, program.parameters, program.tensor[access.tensor].shape)
        return fix_sizes(relation.intersect_params(program.context), program.binding)
    relation = bound_expressions(program, s, access.affine_index, access.tensor)
    if access.guard:
        exprs = with_binding(program, [c.expr for c in access.guard])
        guard = [Constraint(e, c.equality) for e, c in zip(exprs, access.guard, strict=True)]
        relation = relation.intersect_domain(set_of(guard, s.iterators, free_sizes(program), s.name))
    return relation


def free_sizes(program: Program) -> tuple[str, ...]:
    """The parameters that have no value."""
    return tuple(p for p in program.parameters if p not in program.binding) if program.sizes else program.parameters


def with_binding(program: Program, values: Sequence[Affine]) -> tuple[Affine, ...]:
    """Expressions with the sizes put in."""
    sizes = program.binding
    return tuple([e if e.names.isdisjoint(sizes) else e.substitute(sizes) for e in values] if sizes else values)


def interval_of(program: Program, s: Statement, iterator: str) -> tuple[int, int] | None:
    """First and last value of an iterator over a statement's instances; None where not known."""
    return intervals_of(program, s)[iterator]


def intervals_of(program: Program, s: Statement) -> dict[str, tuple[int, int] | None]:
    """`interval_of` for all iterators."""
    return dict(_intervals(bound_domain(program, s), s.iterators))


@kept_by_name
def _intervals(domain: isl.Set, iterators: tuple[str, ...]) -> Mapping[str, tuple[int, int] | None]:
    bounds = box_bounds(domain, iterators)
    return bounds if bounds is not None else {name: interval(domain, k) for k, name in enumerate(iterators)}


def ends_of(program: Program, s: Statement, iterator: str) -> tuple[Affine, Affine] | None:
    """The first and the last value of an iterator, affine in the others and the sizes; None where they are not."""
    domain = bound_domain(program, s).reset_tuple_id()
    position, count = s.iterators.index(iterator), domain.dim(PARAM)
    free = domain
    for k, name in reversed(list(enumerate(s.iterators))):
        if k != position:
            free = free.move_dims(PARAM, count, SET, k, 1).set_dim_name(PARAM, count, name)
    context = free.params()
    found: list[Affine] = []
    for end in (free.dim_min(0), free.dim_max(0)):
        value = affine_of_pw(end.gist(context).coalesce(), ())
        if value is None:
            return None
        found.append(value)
    return found[0], found[1]


def extents_of(program: Program, s: Statement) -> dict[str, Affine] | None:
    """The extents of a statement's iterators where its domain is a box that starts at 0, whatever the sizes."""
    found: dict[str, Affine] = {}
    for i in s.iterators:
        ends = ends_of(program, s, i)
        if ends is None or ends[0] != Affine() or ends[1].names - set(program.parameters):
            return None
        found[i] = ends[1] + 1
    return found


def range_of(program: Program, s: Statement, expression: Affine) -> tuple[int, int] | None:
    """First and last value of an expression of iterators over a statement's instances; None where not known."""
    key = s.name, expression
    if key not in program.ranges:
        (value,) = with_binding(program, [expression])
        bounds = box_bounds(bound_domain(program, s), s.iterators)
        plain = _values_in_box(value, bounds) if bounds is not None else None
        isl_range = None if plain else interval(bound_expressions(program, s, [expression]).range(), 0)
        program.ranges[key] = plain[:2] if plain else isl_range
    return program.ranges[key]


def box_bounds(domain: isl.Set, iterators: tuple[str, ...]) -> Mapping[str, tuple[int, int]] | None:
    """First and last value of every iterator of a domain that is a box with numbers as bounds; None for any other."""
    found = cut_box(domain, iterators)
    return found[0] if found is not None and not found[1] else None


@kept_by_name
def cut_box(
    domain: isl.Set, iterators: tuple[str, ...]
) -> tuple[Mapping[str, tuple[int, int]], Mapping[str, tuple[int, int, int]]] | None:
    """A domain that is a box of which an iterator may take a part of every so many values alone: first and last value
    of every iterator, and of some (n, first, last) of what they leave when divided by n; None for any other.
    """
    pieces = domain.get_basic_sets()
    if len(pieces) != 1:
        return None
    low, high, parts = dict[str, int](), dict[str, int](), dict[str, tuple[int, int, int, int]]()
    for condition in conditions_of(pieces[0], iterators):
        if condition is None or not condition.expr.terms or not _narrowed(condition, low, high, parts):
            return None
    rests = {i: (n, first, last) for i, (n, _, first, last) in parts.items() if last - first + 1 < n}
    if any(first < 0 or first > last for _, first, last in rests.values()):
        return None
    if any(i not in low or i not in high or low[i] > high[i] for i in iterators):
        return None
    return {i: (low[i], high[i]) for i in iterators}, rests


def _narrowed(
    condition: Constraint, low: dict[str, int], high: dict[str, int], parts: dict[str, tuple[int, int, int, int]]
) -> bool:
    """Whether a condition is a bound of an iterator, or of a part of a box: `i - n*((i + s) // n) >= first`, which is
    (i + s) % n >= first + s, or the like for the last. `parts`: by iterator n, s, first and last.
    """
    match condition:
        case Constraint(Affine(((Var(name), c),), constant)) if not condition.equality or abs(c) == 1:
            if c > 0 or condition.equality:  # c * i + constant >= 0, or i = constant / -c
                first = -(constant // c)
                low[name] = max(low.get(name, first), first)
            if c < 0 or condition.equality:
                last = constant // -c
                high[name] = min(high.get(name, last), last)
            return True
        case Constraint(Affine(((Var(name), 1 | -1 as c), (FloorDiv(argument, n), k)), constant), False) if k == -n * c:
            shift = argument.constant
            whole, first, last = (n, shift), -shift, n - 1 - shift
            *known, first, last = parts.get(name, (*whole, first, last))
            first, last = (max(first, -constant), last) if c > 0 else (first, min(last, constant))
            parts[name] = (*whole, first, last)
            return known == [*whole] and argument - shift == var(name)
        case _:
            return False


def _values_in_box(expression: Affine, box: Mapping[str, tuple[int, int]]) -> tuple[int, int, bool] | None:
    """The least and the greatest value that an expression takes in a box, and whether it surely takes all between;
    None where this is not plain.
    """
    low = high = expression.constant
    seen, every = set[str](), len(expression.terms) < 2
    for atom, c in expression.terms:
        names = Affine(((atom, 1),)).names
        if not seen.isdisjoint(names) or not names <= box.keys():
            return None
        seen |= names
        if isinstance(atom, Var):
            first, last, all_between = *box[atom.name], True
        else:
            inner = _values_in_box(atom.argument, box)
            if inner is None:
                return None
            first, last, all_between = inner
            if isinstance(atom, FloorDiv):
                first, last = first // atom.divisor, last // atom.divisor
            elif first // atom.divisor == last // atom.divisor:
                first, last = first % atom.divisor, last % atom.divisor
            elif all_between:
                first, last, all_between = 0, atom.divisor - 1, last - first >= atom.divisor - 1
            else:
                return None
        every = every and all_between and abs(c) == 1
        low, high = low + min(c * first, c * last), high + max(c * first, c * last)
    return low, high, every


def expressions_map(s: Statement, values: Sequence[Affine], parameters: Sequence[str], target: str = "") -> isl.Map:
    """`{ S[i, j] -> target[values] }`, on the statement's domain."""
    relation = relation_of(values, s.iterators, parameters, s.name).intersect_domain(s.domain)
    return relation.set_tuple_name(OUT, target) if target else relation


def access_map(s: Statement, access: Access, parameters: Sequence[str], extents: Sequence[Affine] = ()) -> isl.Map:
    """`{ S[i, j] -> T[subscripts] }` on the domain, cut by the guard; an indirect subscript ranges over its extent."""
    if access.indirect:
        relation = _indirect(s, access, parameters, extents)
    else:
        relation = relation_of(access.affine_index, s.iterators, parameters, s.name)
    relation = relation.set_tuple_name(OUT, access.tensor).intersect_domain(s.domain)
    if access.guard:
        relation = relation.intersect_domain(set_of(access.guard, s.iterators, parameters, s.name))
    return relation


def _indirect(s: Statement, access: Access, parameters: Sequence[str], extents: Sequence[Affine]) -> isl.Map:
    names = [f"a{d}_" for d in range(len(access.index))]
    conditions = [
        f"{name} = {subscript.isl_text}" if isinstance(subscript, Affine) else f"0 <= {name} < {extent.isl_text}"
        for name, subscript, extent in zip(names, access.index, extents, strict=True)
    ]
    return isl.Map(f"{header(parameters)}{{ {s.tuple_text} -> [{', '.join(names)}] : {' and '.join(conditions)} }}")


def box(name: str, extents: Sequence[Affine], parameters: Sequence[str]) -> isl.Set:
    """`{ name[a0, ...] : 0 <= a0 < extent ... }`"""
    names = [f"a{d}_" for d in range(len(extents))]
    places = zip(names, extents, strict=True)
    bounds = [c for n, e in places for c in (Constraint(var(n)), Constraint(e - 1 - var(n)))]
    return set_of(bounds, names, parameters, name)


def writes_all(program: Program, tensor: Tensor) -> bool:
    """Whether statements surely write every element of a tensor, for all sizes that are not known."""
    everything = box(tensor.name, tensor.shape, program.parameters).intersect_params(program.context)
    left = fix_sizes(everything, program.binding)
    try:
        for s in program.statements:
            if s.external is not None or s.write.tensor != tensor.name or s.write.indirect:
                continue
            relation = access_map(s, s.write, program.parameters)
            relation = fix_sizes(relation, program.binding).intersect_domain(bound_domain(program, s))
            left = left.subtract(relation.range())
        return left.is_empty()
    except PolyError:
        return False
