"""The check that a loop tree executes each instance exactly once and in bounds, run at every compile.

It knows nothing of how the tree was made: the loop vectors of each statement are rebuilt from bounds, steps and guards
of the loops around it, and mapped to instances by what the tree itself says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from poly.affine import Affine, Constraint, FloorDiv, Mod, Var, var
from poly.coefficients import bounded, relation_of, set_of
from poly.errors import Bug, IllegalEdit
from poly.locks import cached_property
from poly.loops import Alloc, Compute, For, If, LoopTree, Node
from poly.program import Access, Program, ReadIndex, Statement, Tensor
from poly.relations import bound_set
from poly.sets import PARAM, SET, fix_sizes, parameter_names
from poly.text_printed import access_text

BUDGET = 20_000_000
Interval = tuple[int | None, int | None]


@dataclass(frozen=True)
class Place:
    """A statement of the tree with the loops and guards around it, outermost first. `parameters`: the free sizes, for
    which the `context` holds.
    """

    compute: Compute
    around: tuple[For | If, ...]
    parameters: tuple[str, ...]
    context: isl.Set

    @cached_property
    def loops(self) -> tuple[str, ...]:
        return tuple(node.variable for node in self.around if isinstance(node, For))

    @cached_property
    def intervals(self) -> Mapping[str, Interval]:
        return _intervals(self.around)

    @cached_property
    def vectors(self) -> isl.Set:
        """The values that the loops take."""
        found = _loop_vectors(self, self.parameters)
        return found if self.context.plain_is_universe() else found.intersect_params(self.context)

    @cached_property
    def relation(self) -> isl.Map:
        """{ [loop values] -> [instance] }"""
        return relation_of(self.compute.instance, self.loops, self.parameters).intersect_domain(self.vectors)

    @property
    def tells_apart(self) -> bool:
        """Whether algebra tells that no instance runs twice: from one iterator after the other loops follow, each of
        which moves it further than all that move it less, but for loops that are known before.
        """
        left = {*self.loops}
        for e in self.compute.instance:
            reach, found = 0, list[str]()
            for atom, c in sorted(e.terms, key=lambda term: abs(term[1])):
                name = atom.name if isinstance(atom, Var) else ""
                if name and name not in left:
                    continue
                low, high = self.intervals.get(name, (None, None))
                if low is None or high is None or abs(c) <= reach:
                    break
                reach += abs(c) * (high - low)
                found.append(name)
            else:
                left.difference_update(found)
        return not left


def check_instances(tree: LoopTree, program: Program) -> None:
    """Check that the tree runs every instance of every statement once, and that no subscript leaves its tensor.

    `program`: the schedule's current program, whose statements the tree names. Raises `Bug` with an instance that is
    missing, repeated or invented, `IllegalEdit` of kind "bounds" with an instance whose subscript is outside, and
    `UnsupportedError` where isl needs more than its budget of operations.
    """
    with bounded(BUDGET, "the check of its instances", tree.name):
        _check(tree, program)


def _check(tree: LoopTree, program: Program) -> None:
    """`check_instances`, inside of the budget: each instance runs once, all run, and what they touch is there."""
    sizes = dict(tree.sizes)
    context = fix_sizes(program.context, sizes)
    tensors = {t.name: t for t in tree.tensors} | {
        n.tensor.name: n.tensor for n in tree.nodes() if isinstance(n, Alloc)
    }
    places: dict[str, list[Place]] = {}
    for compute, around in _places(tree.body, ()):
        places.setdefault(compute.statement, []).append(Place(compute, around, tree.parameters, context))
    for name, own in places.items():
        _check_once(program.statement[name], own, program, tree)
    for s in program.statements:
        if s.external is None and s.name not in places:
            _check_coverage(s, None, bound_set(s.domain, program.context, tree.sizes), tree.name)
    for place in (place for own in places.values() for place in own):
        _check_elements(place, program.statement[place.compute.statement], sizes)
        _check_accesses(place, tensors, program.statement[place.compute.statement], sizes)


def _check_once(s: Statement, places: Sequence[Place], program: Program, tree: LoopTree) -> None:
    """No instance runs twice, and all run."""
    images: isl.Set | None = None
    for place in places:
        image = place.relation.range().set_tuple_name(s.name)
        if not place.tells_apart and not place.relation.is_injective():
            raise Bug(f"{tree.name}: instance {_repeated(place.relation, s)} runs twice")
        if images is not None and not images.is_disjoint(image):
            raise Bug(f"{tree.name}: instance {_point(images.intersect(image), s)} runs at two places")
        images = image if images is None else images.union(image)
    if s.external is None:
        _check_coverage(s, images, bound_set(s.domain, program.context, tree.sizes), tree.name)


def _check_coverage(s: Statement, image: isl.Set | None, domain: isl.Set, where: str) -> None:
    if image is None:
        if not domain.is_empty():
            raise Bug(f"{where}: instance {_point(domain, s)} does not run")
    elif not domain.is_subset(image):
        raise Bug(f"{where}: instance {_point(domain.subtract(image), s)} does not run")
    elif not image.is_subset(domain):
        raise Bug(f"{where}: {_point(image.subtract(domain), s)} runs, but is no instance")


def _places(nodes: Sequence[Node], around: tuple[For | If, ...]) -> Iterator[tuple[Compute, tuple[For | If, ...]]]:
    for node in nodes:
        match node:
            case Compute():
                yield node, around
            case For() | If():
                yield from _places(node.body, (*around, node))
            case Alloc():
                yield from _places(node.body, around)
            case _:
                pass


def _loop_vectors(place: Place, parameters: Sequence[str]) -> isl.Set:
    """The values the loops around take, from bounds, steps and guards."""
    names = place.loops
    always: list[Constraint] = []
    choices: list[list[tuple[Constraint, ...]]] = []
    for node in place.around:
        match node:
            case For(variable, lower, upper):
                v = var(variable)
                always += [Constraint(v - b) for b in lower] + [Constraint(b - v - 1) for b in upper]
                if node.step > 1:
                    choices.append([_starts_at(v, b, lower, node.step) for b in lower])
            case If(any_of):
                choices.append([tuple(piece) for piece in any_of])
    always += [c for pieces in choices if len(pieces) == 1 for c in pieces[0]]
    result = set_of(always, names, parameters)
    for pieces in choices:
        if len(pieces) != 1:
            union = isl.Set.empty(result.get_space())
            for piece in pieces:
                union = union.union(set_of(piece, names, parameters))
            result = result.intersect(union)
    return result


def _starts_at(v: Affine, start: Affine, lower: Sequence[Affine], step: int) -> tuple[Constraint, ...]:
    """The loop starts at this one of its lower bounds and goes in steps."""
    return (*(Constraint(start - b) for b in lower if b != start), Constraint((v - start) % step, True))


def _check_elements(place: Place, s: Statement, sizes: Mapping[str, int]) -> None:
    """The tree touches the elements that the program says, where the program's guards say so."""
    values: dict[str, Affine | int] = dict(zip(s.iterators, place.compute.instance, strict=True)) | dict(sizes)
    pairs = zip((*place.compute.reads, place.compute.write), (*s.reads, s.write), strict=True)
    for new, old in ((new, old.substitute(values)) for new, old in pairs):
        wanted: isl.Set | None = None
        if new.guard != old.guard:
            sets = (set_of(a.guard, place.loops, place.parameters) for a in (old, new))
            wanted, found = (guard.intersect(place.vectors) for guard in sets)
            if not wanted.is_equal(found):
                raise Bug(f"{s.name} reads {new.tensor} under another guard than {s.name}{list(s.iterators)} should")
        differing = [(a, b) for a, b in zip(new.index, old.index, strict=True) if not _alike(a, b, place.intervals)]
        equal = [Constraint(a - b, True) for a, b in differing if isinstance(a, Affine) and isinstance(b, Affine)]
        alike = new.tensor == old.tensor and len(equal) == len(differing)
        same = set_of(equal, place.loops, place.parameters) if equal else None
        if not alike or (same is not None and not (place.vectors if wanted is None else wanted).is_subset(same)):
            raise Bug(f"{s.name} touches {access_text(new)}, which should be {access_text(old)}")


def _alike(a: Affine | ReadIndex, b: Affine | ReadIndex, intervals: Mapping[str, Interval]) -> bool:
    """Whether two subscripts are the same, by algebra where floors are numbers for what lies in the intervals."""
    if a == b or not isinstance(a, Affine) or not isinstance(b, Affine):
        return a == b
    return _without_floors(a, intervals) == _without_floors(b, intervals)


def _without_floors(expression: Affine, intervals: Mapping[str, Interval]) -> Affine:
    """The same values without floors and remainders that follow from the intervals."""
    result = Affine((), expression.constant)
    for atom, c in expression.terms:
        if isinstance(atom, Var):
            result = result + Affine(((atom, c),))
            continue
        inner, divisor = _without_floors(atom.argument, intervals), atom.divisor
        whole = Affine(tuple((a, k // divisor) for a, k in inner.terms if k % divisor == 0), inner.constant // divisor)
        low, high = _interval(inner - whole * divisor, intervals)
        if low is None or high is None or low // divisor != high // divisor:
            result = result + Affine(((atom, c),))
            continue
        whole = whole + low // divisor
        result = result + (whole if isinstance(atom, FloorDiv) else inner - whole * divisor) * c
    return result


def _check_accesses(place: Place, tensors: Mapping[str, Tensor], s: Statement, sizes: Mapping[str, int]) -> None:
    """All that a place touches is inside of its tensor and its storage. isl is asked where intervals do not show it."""
    seen: set[Access] = set()
    for access in (*place.compute.reads, place.compute.write):
        if access in seen:
            continue
        seen.add(access)
        tensor = tensors.get(access.tensor)
        if tensor is None:
            raise Bug(f"{s.name} touches {access.tensor}, which is not allocated there")
        limits = [e.substitute(sizes) for e in tensor.shape]
        pairs = [(e, n) for e, n in zip(access.index, limits, strict=True) if isinstance(e, Affine)]
        if tensor.layout is not None and not access.indirect:
            stored = [e.substitute(sizes) for e in tensor.layout.shape]
            pairs += zip(tensor.layout.place(access.affine_index), stored, strict=True)
        doubtful = [(e, n) for e, n in pairs if not _inside(_interval(e, place.intervals), n)]
        if not doubtful:
            continue
        reached = place.vectors
        if access.guard:
            reached = reached.intersect(set_of(access.guard, place.loops, place.parameters))
        for subscript, extent in doubtful:
            legal = set_of([Constraint(subscript), Constraint(extent - subscript - 1)], place.loops, place.parameters)
            if not reached.is_subset(legal):
                _refuse(place, reached.subtract(legal), access, subscript, extent, s)


def _refuse(place: Place, outside: isl.Set, access: Access, subscript: Affine, extent: Affine, s: Statement) -> None:
    values = _values(outside.sample_point(), place.loops)
    instance = ", ".join(f"{i}={e.evaluate(values)}" for i, e in zip(s.iterators, place.compute.instance, strict=True))
    shown = ", ".join(str(e.evaluate(values)) if isinstance(e, Affine) else "?" for e in access.index)
    last = (extent - 1).evaluate(values)
    raise IllegalEdit(
        f"{access.tensor}: subscript {subscript} is {subscript.evaluate(values)}, outside 0 .. {last}",
        kind="bounds",
        witness=(f"{s.name}[{instance}]", f"{access.tensor}[{shown}]"),
        where=f"statement {s.name}",
        hint=f"a larger {access.tensor}, a smaller range, or a guard with a fill value",
    )


# ---- intervals: the cheap proof that a subscript is in bounds


def _intervals(around: Sequence[For | If]) -> dict[str, Interval]:
    """An interval for every loop variable; None where it is not bounded by constants."""
    found: dict[str, Interval] = {}
    for node in around:
        if isinstance(node, For):
            lows = [low for b in node.lower if (low := _interval(b, found)[0]) is not None]
            highs = [high for b in node.upper if (high := _interval(b, found)[1]) is not None]
            found[node.variable] = (max(lows, default=None), min(highs) - 1 if highs else None)
    return found


def _interval(expression: Affine, intervals: Mapping[str, Interval]) -> Interval:
    low: int | None = expression.constant
    high: int | None = expression.constant
    for atom, c in expression.terms:
        match atom:
            case Var(name):
                a, b = intervals.get(name, (None, None))
            case FloorDiv(argument, divisor):
                a, b = _interval(argument, intervals)
                a, b = (None if a is None else a // divisor), (None if b is None else b // divisor)
            case Mod(_, divisor):
                a, b = 0, divisor - 1
        if c < 0:
            a, b = b, a
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
    return low, high


def _inside(interval: Interval, extent: Affine) -> bool:
    low, high = interval
    return low is not None and low >= 0 and high is not None and extent.is_constant and high < extent.constant


# ---- witnesses


def _values(point: isl.Point, loops: Sequence[str]) -> dict[str, int]:
    sizes = parameter_names(point.get_space())
    values = {name: point.get_coordinate_val(PARAM, d).to_python() for d, name in enumerate(sizes)}
    return values | {name: point.get_coordinate_val(SET, d).to_python() for d, name in enumerate(loops)}


def _point(points: isl.Set, s: Statement) -> str:
    values = _values(points.sample_point(), s.iterators)
    return f"{s.name}[{', '.join(f'{i}={values[i]}' for i in s.iterators)}]"


def _repeated(relation: isl.Map, s: Statement) -> str:
    same = relation.apply_range(relation.reverse())
    twice = same.subtract(isl.Map.identity(same.get_space()))
    return _point(relation.intersect_domain(twice.domain()).range(), s)
