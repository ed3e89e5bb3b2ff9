"""Fusion groups: which statements run in one nest.

A group is an anchor (an assignment, or a reduction with its initialisation) and what follows it element by element:
consumers whose domain is the anchor's, and that read what the group makes at the very element its instance makes. Their
fusion needs no recomputation and keeps one element per value alive; footprints, not operators, decide. Assignments over
the same loops join where a consumer reads both. What would leave a nest without a loop for lanes stays alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import islpy as isl

from poly.affine import Affine, Var, var
from poly.program import Access, Program, Statement
from poly.relations import bound_domain, intervals_of
from poly.scheduling.uneven import uneven_axes
from poly.sets import SET, fix_sizes, interval, kept_by_name

OWN_ORDER: Final = ("statements share loops: kept in their own order",)


@dataclass(frozen=True)
class Group:
    """`axes`: for every statement its iterator on each of the group's parallel loops (outermost first); `box`: first
    and last value of these, None where they are no box of known size, or some tensor has an extent that is not known;
    `made`: the subscripts at which each tensor that the group makes is written, in terms of these (`placement`); `why`:
    the reasons for it.

    `parts`: the groups that a group of rows (`poly.scheduling.row_groups`) was joined from, or one of row blocks
    (`poly.scheduling.row_blocks`), which has `block` rows.
    """

    statements: tuple[Statement, ...]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    made: Mapping[str, tuple[Affine, ...]] = field(default_factory=dict[str, tuple[Affine, ...]])
    box: tuple[tuple[int, int], ...] | None = None
    why: tuple[str, ...] = ()
    parts: tuple[Group, ...] = ()
    block: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.statements)


def groups_of(program: Program) -> list[Group]:
    """Partition a program's statements, in an order in which the groups can run."""
    heads = [s.path[0] for s in program.statements]
    runs = [head for head, _ in groupby(heads)]
    if len(set(runs)) < len(runs) or not all(isinstance(head, int) for head in heads):
        return [Group(program.statements, why=OWN_ORDER)]
    single = written_once(program)
    groups: list[Group] = []
    maker: dict[str, int] = {}
    nests: dict[object, int] = {}  # nests of several statements: groups of their own
    for s, head in zip(program.statements, heads, strict=True):
        producers = {maker[t] for t in tensors_read(s) if t in maker}
        if heads.count(head) > 1:
            home = nests.setdefault(head, len(groups))
            if home == len(groups):
                groups.append(Group((), why=OWN_ORDER))
            groups[home] = replace(groups[home], statements=(*groups[home].statements, s))
        else:
            home = max(producers, default=-1)
            alone = not producers or home in nests.values()
            joined = None if alone else _joined(program, groups[home], s, single) or _begun(groups[home], s)
            if joined is None:
                home = len(groups)
                groups.append(_anchor(program, s))
            else:
                for k in sorted(producers - {home}, reverse=True):
                    both = _with_sibling(program, joined, groups[k], groups[k + 1 : home + 1], single)
                    if both is not None:
                        maker |= {t: home for x in groups[k].statements for t in tensors_written(x)}
                        joined, groups[k] = both, Group(())  # an empty place, so that others keep theirs
                groups[home] = joined
        for t in tensors_written(s):
            maker[t] = home
    return [g for g in groups if g.statements]


def assignment_of(group: Group) -> Statement | None:
    """The statement of a group that is one assignment over a box, whose loops are all parallel; None for others."""
    if len(group.statements) != 1 or group.box is None:
        return None
    (s,) = group.statements
    plain = s.combiner is None and s.external is None and {*group.axes[s.name]} == {*s.iterators}
    return s if plain else None


def tensors_read(s: Statement) -> tuple[str, ...]:
    """Tensors whose elements a statement reads, its own reduction target included."""
    return s.external.reads if s.external is not None else tuple(a.tensor for a, kind in s.accesses if kind == "read")


def tensors_written(s: Statement) -> tuple[str, ...]:
    return s.external.writes if s.external is not None else (s.write.tensor,)


def written_once(program: Program) -> frozenset[str]:
    """Tensors with one writer, or with an assignment followed by one reduction; only these move between groups."""
    writers: dict[str, list[Statement]] = {}
    for s in program.statements:
        for t in tensors_written(s):
            writers.setdefault(t, []).append(s)
    roles = {t.name: t.role for t in program.tensors}

    def once(name: str, group: list[Statement]) -> bool:
        kinds = [s.combiner is not None for s in group]
        return roles[name] not in ("inout", "state") and kinds in ([False], [False, True])

    return frozenset(name for name, group in writers.items() if once(name, group))


def _joined(program: Program, group: Group, s: Statement, single: frozenset[str]) -> Group | None:
    """A group with a statement that reads what it makes; None where that is one of another group."""
    if s.external is not None:
        return None
    if s.combiner is not None:
        first = group.statements[0]
        own = first.write.tensor == s.write.tensor and len(group.statements) == 1 and first.combiner is None
        kept = s.write.tensor in single or _directly_behind(program, first, s)
        return _with_update(program, group, s) if own and kept else None
    if not (s.write.tensor in single or _overwrites(program, group, s)):
        return None
    if not all(t in single for t in tensors_read(s) if t in group.made):
        return None
    joined = _with_pointwise(program, group, s)
    return joined if joined is not None and _has_rows(program, joined) else None


def _directly_behind(program: Program, first: Statement, s: Statement) -> bool:
    """Whether no nest lies between those of two statements that write a tensor which is the program's own, so that
    nothing passes what others write of it where they become one.
    """
    own = program.tensor[s.write.tensor].role == "temporary"
    return own and not any(first.path[:1] < x.path[:1] < s.path[:1] for x in program.statements)


def _begun(group: Group, s: Statement) -> Group | None:
    """A recurrence along the last subscript of what it writes with what its rows begin with: an assignment of one
    element to each, whose lines would come again.
    """
    first = group.statements[0]
    own = len(group.statements) == 1 and first.write.tensor == s.write.tensor and s.combiner is first.combiner is None
    if not own or not s.write.index or s.external is not None or s.write.indirect or first.write.indirect:
        return None
    *rows, last = first.write.affine_index
    along = s.write.affine_index[-1]
    alike = last.is_constant and rows == [*s.write.affine_index[:-1]] and not along.is_constant
    carried = any(r.tensor == s.write.tensor and r.index[:-1] == s.write.index[:-1] for r in s.reads)
    return Group((first, s), why=OWN_ORDER) if alike and carried else None


def _overwrites(program: Program, group: Group, s: Statement) -> bool:
    """Whether an assignment is the only writer of a tensor that came in, all of whose readers are in the group."""
    name, own = s.write.tensor, {*group.names, s.name}
    if program.tensor[name].role != "inout" or s.write.indirect:
        return False
    others = [x for x in program.statements if x is not s]
    return all(name not in tensors_written(x) and (x.name in own or name not in tensors_read(x)) for x in others)


def _reads_own(group: Group, s: Statement, axes: Sequence[str]) -> bool:
    """Whether statements of a group read of what another one overwrites only the element that its instance writes."""
    made = placement(s.write, axes)
    places = {**group.axes, s.name: tuple(axes)}
    reads = [(x, r) for x in (*group.statements, s) for r in x.reads if r.tensor == s.write.tensor]
    return all(not r.guard and not r.indirect and placement(r, places[x.name]) == made for x, r in reads)


def _anchor(program: Program, s: Statement) -> Group:
    if s.external is not None:
        return Group((s,))
    axes = _parallel(program, s)
    rest = [i for i in s.iterators if i not in axes]
    whole = (not rest or s.combiner is not None) and _has_extents(program, s)
    box = domain_box(program, s, axes) if whole else None
    return Group((s,), {s.name: axes}, {s.write.tensor: placement(s.write, axes)}, box)


def _has_extents(program: Program, s: Statement) -> bool:
    """Whether all that a statement touches has known extents: strides and bytes, which choices are made from."""
    shapes = (program.tensor[a.tensor].shape for a, _ in s.accesses)
    return all(e.names <= program.binding.keys() for shape in shapes for e in shape)


def _parallel(program: Program, s: Statement) -> tuple[str, ...]:
    """The iterators that say which element is written, each by itself: `i`, or the digits of a subscript `8*g + o`."""
    names = [n for i in s.write.index if isinstance(i, Affine) for n in i.names]
    alone = {n for n in names if names.count(n) == 1}
    found: set[str] = set()
    for subscript in s.write.index:
        if not isinstance(subscript, Affine):
            continue
        if (name := bare(subscript)) is not None:
            found.add(name)
        elif subscript.names and subscript.names <= alone & set(s.iterators) and _digits(program, s, subscript):
            found |= subscript.names
    return tuple(i for i in s.iterators if i in found)


def _digits(program: Program, s: Statement, subscript: Affine) -> bool:
    """Whether different values of a subscript's iterators give different sums."""
    box = domain_box(program, s, s.iterators)
    if box is None or not subscript.is_linear:
        return False
    extents = {i: high - low + 1 for i, (low, high) in zip(s.iterators, box, strict=True)}
    reach = 0
    for factor, name in sorted((subscript.coefficient(n), n) for n in subscript.names):
        if factor <= reach:
            return False
        reach += factor * (extents[name] - 1)
    return True


def placement(access: Access, axes: Sequence[str]) -> tuple[Affine, ...]:
    """An access' subscripts, with `#k` for the k-th parallel loop."""
    names = {name: var(f"#{k}") for k, name in enumerate(axes)}
    return tuple(i.substitute(names) if isinstance(i, Affine) else var("?") for i in access.index)


def bare(subscript: Affine) -> str | None:
    """The iterator that a subscript is, or None."""
    match subscript.terms:
        case ((Var(name), 1),) if subscript.constant == 0:
            return name
        case _:
            return None


def domain_box(program: Program, s: Statement, iterators: Sequence[str]) -> tuple[tuple[int, int], ...] | None:
    """Inclusive ranges of some iterators where the domain is a box of known size, else None."""
    ranges = _ranges(bound_domain(program, s), program.context, program.sizes)
    if ranges is None:
        return None
    by_name = dict(zip(s.iterators, ranges, strict=True))
    return tuple(by_name[i] for i in iterators)


@kept_by_name
def _ranges(
    domain: isl.Set, context: isl.Set, sizes: tuple[tuple[str, int], ...]
) -> tuple[tuple[int, int], ...] | None:
    """Of all dimensions, where the set is one box for all sizes that the context allows. Grouping asks again and again
    for the same sets.
    """
    ranges: list[tuple[int, int]] = []
    product = isl.Set.universe(domain.get_space())
    for k in range(domain.dim(SET)):
        found = interval(domain, k)
        if found is None:
            return None
        product = product.lower_bound_val(SET, k, found[0]).upper_bound_val(SET, k, found[1])
        ranges.append(found)
    return tuple(ranges) if fix_sizes(product.intersect_params(context), dict(sizes)).is_equal(domain) else None


def _with_update(program: Program, group: Group, s: Statement) -> Group | None:
    """A group with the reduction that its only statement initialises."""
    first = group.statements[0]
    aligned = _aligned(s.write, group.made[s.write.tensor], len(group.axes[first.name]))
    if aligned is None or group.box is None or not _has_extents(program, s):
        return None
    if domain_box(program, s, aligned) != group.box and not _uneven_in(program, s, aligned, group.box):
        return None
    return replace(group, statements=(*group.statements, s), axes={**group.axes, s.name: aligned})


def _uneven_in(program: Program, s: Statement, axes: Sequence[str], box: Sequence[tuple[int, int]]) -> bool:
    """Whether a reduction's parallel loops are a box, though it is shorter at their ends."""
    ranges = intervals_of(program, s)
    return bool(uneven_axes(program, s, axes)) and all(ranges[a] == r for a, r in zip(axes, box, strict=True))


def _aligned(access: Access, places: Sequence[Affine], count: int) -> tuple[str, ...] | None:
    """The iterators that an access puts on the group's loops, by the places of the tensor's subscripts."""
    axes: dict[str, str] = {}
    for subscript, place in zip(access.index, places, strict=True):
        if not isinstance(subscript, Affine) or not subscript.is_linear or not place.is_linear:
            return None
        factors = {subscript.coefficient(n): n for n in subscript.names}
        wanted = {place.coefficient(n): n for n in place.names}
        if factors.keys() != wanted.keys() or len(factors) < len(subscript.names) or "?" in place.names:
            return None
        if place.names and subscript.constant != place.constant:
            return None
        if any(axes.setdefault(wanted[f], n) != n for f, n in factors.items()):
            return None
    known = [axes[f"#{k}"] for k in range(count) if f"#{k}" in axes]
    return tuple(known) if len(known) == count and len(set(known)) == count else None


def _with_pointwise(program: Program, group: Group, s: Statement) -> Group | None:
    """A group with an assignment that reads what it makes only at its own element."""
    if group.box is None or not group.axes or not _has_extents(program, s):
        return None
    count = len(group.box)
    axes: tuple[str, ...] | None = None
    for read in s.reads:
        if read.tensor in group.made:
            found = None if read.guard or read.indirect else _aligned(read, group.made[read.tensor], count)
            if found is None or axes not in (None, found):
                return None
            axes = found
    if axes is None or set(axes) != set(s.iterators) or domain_box(program, s, axes) != group.box:
        return None
    if not all(isinstance(i, Affine) for i in s.write.index) or not _reads_own(group, s, axes):
        return None
    made = {**group.made, s.write.tensor: placement(s.write, axes)}
    why = f"{s.name} reads {', '.join(r.tensor for r in s.reads if r.tensor in made)} where it is made"
    return replace(
        group, statements=(*group.statements, s), axes={**group.axes, s.name: axes}, made=made, why=(*group.why, why)
    )


def _with_sibling(
    program: Program, group: Group, sibling: Group, later: Sequence[Group], single: frozenset[str]
) -> Group | None:
    """A group whose last statement reads what an earlier one makes, and that earlier one, as one group of assignments
    over the same loops; None where they are no such groups, or one of the `later` groups needs, or changes, what the
    earlier one touches.
    """
    s, inside = group.statements[-1], (*sibling.names, *group.names)
    reads = [r for r in s.reads if r.tensor in sibling.made]
    if not group.box or group.box != sibling.box or any(r.guard or r.indirect for r in reads):
        return None
    if {_aligned(r, sibling.made[r.tensor], len(group.box)) for r in reads} != {group.axes[s.name]}:
        return None
    if any(x.combiner is not None or x.external is not None for x in (*sibling.statements, *group.statements)):
        return None
    read = {t for x in sibling.statements for t in tensors_read(x)}
    past = [x for g in later for x in g.statements]
    crossed = any(sibling.made.keys() & {*tensors_read(x)} or read & {*tensors_written(x)} for x in past)
    if crossed or not sibling.made.keys() <= single:
        return None
    both = replace(
        group, statements=tuple(x for x in program.statements if x.name in inside), axes={**sibling.axes, **group.axes},
        made={**sibling.made, **group.made},
        why=(*sibling.why, *group.why, f"{s.name} reads {', '.join(r.tensor for r in reads)} of the same loops"),
    )  # fmt: skip
    return both if _reads_own(both, s, group.axes[s.name]) and _has_rows(program, both) else None


def _has_rows(program: Program, group: Group) -> bool:
    """Whether some loop stays inside the rows of all that a group's assignments touch, or, where it has a reduction, of
    what it writes: lanes go along it, and where there is none every statement is better off alone.
    """
    long = {k for k, (low, high) in enumerate(group.box or ()) if high > low}
    reduces = any(s.combiner is not None for s in group.statements)
    crossed: set[int] = set()
    for s in group.statements:
        for access in [s.write] if reduces else [a for a, _ in s.accesses]:
            shape = program.tensor[access.tensor].extents(program.binding)
            last = max((d for d, n in enumerate(shape) if n > 1), default=0)
            names = {n for i in access.index[:last] if isinstance(i, Affine) for n in i.names}
            crossed |= {k for k, n in enumerate(group.axes[s.name]) if n in names}
    return not long or not long <= crossed
