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
from poly.loops import Alloc, Compute, For, If, LoopTree, Node
from poly.program import Access, Program, Statement, Tensor
from poly.relations import bound_set
from poly.sets import PARAM, SET, fix_sizes, parameter_names
from poly.text_printed import access_text

BUDGET = 20_000_000
Interval = tuple[int | None, int | None]


@dataclass(frozen=True)
class _Place:
    """A statement of the tree with the loops and guards around it, outermost first."""

    compute: Compute
    around: tuple[For | If, ...]

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(node.variable for node in self.around if isinstance(node, For))


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
    images: dict[str, isl.Set] = {}
    reached: list[tuple[_Place, isl.Set]] = []
    for place in _places(tree.body, ()):
        s = program.statement[place.compute.statement]
        vectors = _loop_vectors(place, tree.parameters)
        vectors = vectors if context.plain_is_universe() else vectors.intersect_params(context)
        relation = relation_of(place.compute.instance, place.loops, tree.parameters).intersect_domain(vectors)
        image = relation.range().set_tuple_name(s.name)
        if not relation.is_injective():
            raise Bug(f"{tree.name}: instance {_repeated(relation, s)} runs twice")
        before = images.get(s.name)
        if before is not None and not before.is_disjoint(image):
            raise Bug(f"{tree.name}: instance {_point(before.intersect(image), s)} runs at two places")
        images[s.name] = image if before is None else before.union(image)
        reached.append((place, vectors))
    for s in program.statements:
        if s.external is None:
            _check_coverage(s, images.get(s.name), bound_set(s.domain, program.context, tree.sizes), tree.name)
    for place, vectors in reached:
        _check_elements(place, vectors, program.statement[place.compute.statement], tree.parameters, sizes)
        _check_accesses(place, vectors, tensors, program.statement[place.compute.statement], tree.parameters, sizes)


def _check_coverage(s: Statement, image: isl.Set | None, domain: isl.Set, where: str) -> None:
    if image is None:
        if not domain.is_empty():
            raise Bug(f"{where}: instance {_point(domain, s)} does not run")
    elif not domain.is_subset(image):
        raise Bug(f"{where}: instance {_point(domain.subtract(image), s)} does not run")
    elif not image.is_subset(domain):
        raise Bug(f"{where}: {_point(image.subtract(domain), s)} runs, but is no instance")


def _places(nodes: Sequence[Node], around: tuple[For | If, ...]) -> Iterator[_Place]:
    for node in nodes:
        match node:
            case Compute():
                yield _Place(node, around)
            case For() | If():
                yield from _places(node.body, (*around, node))
            case Alloc():
                yield from _places(node.body, around)
            case _:
                pass


def _loop_vectors(place: _Place, parameters: Sequence[str]) -> isl.Set:
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


def _check_elements(
    place: _Place, vectors: isl.Set, s: Statement, parameters: Sequence[str], sizes: Mapping[str, int]
) -> None:
    """The tree touches the elements that the program says, where the program's guards say so."""
    values: dict[str, Affine | int] = dict(zip(s.iterators, place.compute.instance, strict=True)) | dict(sizes)
    pairs = zip((*place.compute.reads, place.compute.write), (*s.reads, s.write), strict=True)
    for new, old in ((new, old.substitute(values)) for new, old in pairs):
        inside = vectors
        if new.guard != old.guard:
            wanted, found = (set_of(a.guard, place.loops, parameters).intersect(vectors) for a in (old, new))
            if not wanted.is_equal(found):
                raise Bug(f"{s.name} reads {new.tensor} under another guard than {s.name}{list(s.iterators)} should")
            inside = wanted
        differing = [(a, b) for a, b in zip(new.index, old.index, strict=True) if a != b]
        equal = [Constraint(a - b, True) for a, b in differing if isinstance(a, Affine) and isinstance(b, Affine)]
        alike = new.tensor == old.tensor and len(equal) == len(differing)
        if not alike or (equal and not inside.is_subset(set_of(equal, place.loops, parameters))):
            raise Bug(f"{s.name} touches {access_text(new)}, which should be {access_text(old)}")


def _check_accesses(
    place: _Place,
    vectors: isl.Set,
    tensors: Mapping[str, Tensor],
    s: Statement,
    parameters: Sequence[str],
    sizes: Mapping[str, int],
) -> None:
    """All that a place touches is inside of its tensor and its storage. isl is asked where intervals do not show it."""
    intervals = _intervals(place.around)
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
        doubtful = [(e, n) for e, n in pairs if not _inside(_interval(e, intervals), n)]
        if not doubtful:
            continue
        reached = vectors.intersect(set_of(access.guard, place.loops, parameters)) if access.guard else vectors
        for subscript, extent in doubtful:
            legal = set_of([Constraint(subscript), Constraint(extent - subscript - 1)], place.loops, parameters)
            if not reached.is_subset(legal):
                _refuse(place, reached.subtract(legal), access, subscript, extent, s)


def _refuse(place: _Place, outside: isl.Set, access: Access, subscript: Affine, extent: Affine, s: Statement) -> None:
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
