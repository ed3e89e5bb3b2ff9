"""What makes a schedule legal, decided by isl, each refusal with a pair of instances that shows it.

Order: every dependence of the source program points forward in time (checked down the tree, loop by loop: Feautrier;
isl manual, "Schedule Trees"). Marks: a parallel or vector loop carries nothing, reductions included, but for one whose
lanes all update one element; parallel loops between which threads do not meet have nothing in common. Values of what is
promoted, recomputed or a partial result: `poly.scheduling.values`. What needs the loops or a machine is checked when
compiling: each instance once and every access in bounds (`poly.scheduling.instances`), memories and their size
(`poly.scheduling.capacity`, on an accelerator the memory plan).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import islpy as isl

from poly.coefficients import bounded
from poly.errors import IllegalEdit, ScheduleError
from poly.program import Program, Statement
from poly.relations import bound_domain
from poly.scheduling.dependences import Dependence, Touch
from poly.scheduling.leaving import is_right_inside, why_not
from poly.scheduling.nowait import after, conflicts
from poly.scheduling.paths import canonical, relation_in_time
from poly.scheduling.schedule import Schedule
from poly.scheduling.shortening import check_shortened
from poly.scheduling.vectors import Vectors, before_in, together
from poly.sets import IN, OUT, witness

BUDGET = 20_000_000  # operations of isl for the check of a whole schedule, about as many microseconds
EDIT_BUDGET = 3_000_000  # for one edit, for which somebody may wait
Relaxed = Literal["none", "lanes", "all"]
_ADVICE = {
    "order": "keep the source before the sink: another loop order, a shift or a skew of the sink's loop",
    "parallel": "keep the loop serial, or promote what it carries inside it",
}


def check(schedule: Schedule, previous: Schedule | None = None, *, budget: int = BUDGET) -> None:
    """Raise `IllegalEdit` where the schedule does not compute what its source program does.

    `previous`: a legal schedule of the same source; what has not changed since is not looked at again. Raises
    `UnsupportedError` where isl needs more than `budget` operations.
    """
    from poly.scheduling.values import check_values

    changed = _changed(schedule, previous)
    vectors = Vectors(schedule)
    what = "the edit" if budget == EDIT_BUDGET else "the schedule"
    with bounded(budget, f"the check of {what}", schedule.source.name):
        check_pieces(schedule)
        check_order(schedule, changed, vectors)
        check_marks(schedule, changed, previous, vectors)
        check_values(schedule, vectors)


def _changed(schedule: Schedule, previous: Schedule | None) -> frozenset[str]:
    """Statements whose content differs from a legal schedule, or whose place among the others that were there."""
    if previous is None:
        return frozenset(schedule.nests)
    now, old = schedule.program.statement, previous.program.statement
    both = [name for name in schedule.nests if old.get(name) is now[name]]
    places, before = (canonical({name: x.nests[name] for name in both}) for x in (schedule, previous))
    return frozenset(name for name in schedule.nests if name not in places or places[name] != before[name])


def check_pieces(schedule: Schedule) -> None:
    """The pieces of a statement are its instances, all of them and each once (recomputed statements are left out)."""
    program, source = schedule.program, schedule.source.statement
    pieces = pieces_of(program)
    again = {s.origin for s in program.statements if s.recomputed}
    for name, original in source.items():
        group = pieces.get(name, [])
        if len(group) == 1 and group[0].domain is original.domain or not group and name in again:
            continue
        whole = bound_domain(program, original)
        seen = whole.subtract(whole)
        for s in group:
            piece = _bound(schedule, s).set_tuple_name(name)
            _same_instances(schedule, name, original.iterators, piece.intersect(seen), "twice")
            seen = seen.union(piece)
        _same_instances(schedule, name, original.iterators, whole.subtract(seen), "never")
        _same_instances(schedule, name, original.iterators, seen.subtract(whole), "outside its domain")


def _same_instances(schedule: Schedule, name: str, iterators: Sequence[str], wrong: isl.Set, how: str) -> None:
    if not wrong.is_empty():
        pair = witness(wrong.identity(), (iterators, iterators))
        raise IllegalEdit(f"an instance of {name} runs {how}", kind="order", witness=pair, where=schedule.source.name)


def check_order(schedule: Schedule, changed: frozenset[str] | None = None, vectors: Vectors | None = None) -> None:
    """Every dependence of the source program still points forward, between all pieces of its two statements."""
    pieces, order = pieces_of(schedule.program), _Order(schedule, vectors or Vectors(schedule))
    for dependence in schedule.facts.dependences:
        if dependence.kind == "reduction":
            continue
        for first in pieces.get(dependence.source, ()):
            for second in pieces.get(dependence.sink, ()):
                if changed is None or first.name in changed or second.name in changed:
                    order.check(dependence, first, second)


def pieces_of(program: Program) -> Mapping[str, list[Statement]]:
    """By statement of the source program, the statements that run its instances: itself or its pieces.

    Copies are nobody's piece; recomputed instances (more iterators than the origin) are judged by their values.
    """
    pieces: dict[str, list[Statement]] = {}
    for s in program.statements:
        if not s.copies and not s.recomputed and not s.partial:
            pieces.setdefault(s.source_name, []).append(s)
    return pieces


class _Order:
    """Checks that dependences point forward between two statements, and keeps what it has found: the statements of a
    nest have many dependences, but few that differ in more than names.
    """

    def __init__(self, schedule: Schedule, vectors: Vectors) -> None:
        self.schedule, self.vectors = schedule, vectors
        self.plain: dict[tuple[str, str, str], bool] = {}  # the kind of a dependence says nothing about the sequence
        self.proven = set[tuple[object, ...]]()

    def check(self, dependence: Dependence, first: Statement, second: Statement) -> None:
        key = first.name, second.name, dependence.tensor
        if key not in self.plain:
            self.plain[key] = _in_sequence(self.schedule, self.vectors, dependence, first, second)
        if not self.plain[key]:
            self._prove(dependence, first, second)

    def _prove(self, dependence: Dependence, first: Statement, second: Statement) -> None:
        schedule, relation = self.schedule, dependence.relation
        relation = relation.set_tuple_name(IN, first.name).set_tuple_name(OUT, second.name)
        if first.origin or second.origin:
            relation = relation.intersect_domain(_bound(schedule, first)).intersect_range(_bound(schedule, second))
        asked = _without_names(schedule, first, second, relation)
        if asked in self.proven:
            return
        if (bad := violation(schedule, self.vectors, first, second, relation)) is None:
            self.proven.add(asked)
            return
        loop, pairs = bad
        shown = witness(pairs, (first.iterators, second.iterators))
        where = f"loop {loop} runs" if loop else "the sequence runs"
        raise IllegalEdit(
            f"{where} {second.name} before {first.name}, against a {dependence.kind} dependence on {dependence.tensor}",
            kind="order", witness=shown, where=schedule.source.name, hint=_ADVICE["order"],
        )  # fmt: skip


def _without_names(schedule: Schedule, first: Statement, second: Statement, relation: isl.Map) -> tuple[object, ...]:
    """All that `violation` sees of two statements but their names, which it only hands to isl: pairs alike in it have
    one answer. The relation, their nests, how many loops they share, and their order there.
    """
    nests = [schedule.nests[s.name] for s in (first, second)]
    shared, order = relation_in_time(*(nest.path for nest in nests))
    places = ((s.iterators, nest.expressions(nest.names)) for s, nest in zip((first, second), nests, strict=True))
    return (len(shared), order, *places, relation.reset_tuple_id(IN).reset_tuple_id(OUT))


def _in_sequence(
    schedule: Schedule, vectors: Vectors, dependence: Dependence, first: Statement, second: Statement
) -> bool:
    """Whether it is plain that two statements touch an element only in the same iteration of all loops that they share,
    where the first one comes first.
    """
    shared, order = relation_in_time(schedule.nests[first.name].path, schedule.nests[second.name].path)
    source, sink = (schedule.source.statement[n] for n in (dependence.source, dependence.sink))
    if order != "before" or source.external or sink.external:
        return False
    if (source.iterators, sink.iterators) != (first.iterators, second.iterators):
        return False
    if not shared:
        return True
    touched = [[(a, k) for a, k in s.accesses if a.tensor == dependence.tensor] for s in (source, sink)]
    pairs = [(a, b) for a, how in touched[0] for b, other in touched[1] if "write" in (how, other)]
    return all(
        all(vectors.tell_apart(first, x, second, y, k) for k in range(len(shared)))
        for x, y in ((vectors.index_by_loops(first, a), vectors.index_by_loops(second, b)) for a, b in pairs)
    )


def _bound(schedule: Schedule, s: Statement) -> isl.Set:
    return bound_domain(schedule.program, s)


def violation(
    schedule: Schedule, vectors: Vectors, first: Statement, second: Statement, relation: isl.Map
) -> tuple[str, isl.Map] | None:
    """The first loop (or "") that does not run `relation`'s sources before its sinks, with the offending pairs."""
    shared, order = relation_in_time(schedule.nests[first.name].path, schedule.nests[second.name].path)
    if relation.is_empty():
        return None
    pairs = vectors.pairs(first, second, relation)
    for k, loop in enumerate(shared):
        backwards = pairs.order_gt(IN, k, OUT, k)
        if not backwards.is_empty():
            return loop, vectors.instances(first, second, backwards).intersect(relation)
        pairs = together(pairs, [k])
        if pairs.is_empty():
            return None
    if order == "before" or pairs.is_empty():
        return None
    return "", vectors.instances(first, second, pairs).intersect(relation)


def check_marks(
    schedule: Schedule, changed: frozenset[str], previous: Schedule | None, vectors: Vectors | None = None
) -> None:
    """Parallel, vector and unit loops carry nothing, but a unit its own reduction, and lanes one into one element."""
    for loop, mark in schedule.marks.items():
        if loop not in schedule.loop_statements or mark.kind not in ("parallel", "vector", "unit"):
            continue
        same = previous is not None and previous.marks.get(loop) == mark
        if same and not changed & set(schedule.under(loop)):
            continue
        kind: Relaxed = "all" if mark.kind == "unit" else "lanes" if mark.kind == "vector" else "none"
        for first, second, tensor, pairs in carried(schedule, loop, relaxed=kind, vectors=vectors):
            raise IllegalEdit(
                f"{mark.kind} loop {loop} carries a dependence on {tensor} between {first.name} and {second.name}",
                kind="parallel", witness=witness(pairs, (first.iterators, second.iterators)),
                where=schedule.source.name, hint=_ADVICE["parallel"],
            )  # fmt: skip
    _check_nowait(schedule, changed, previous, vectors)
    _check_leaving(schedule)
    check_shortened(schedule)


def _check_nowait(
    schedule: Schedule, changed: frozenset[str], previous: Schedule | None, vectors: Vectors | None
) -> None:
    """Parallel loops that run without a meeting in between touch nothing in common that either writes."""
    marks = {loop: mark.nowait for loop, mark in schedule.marks.items() if mark.nowait is not None}
    before = {loop: mark.nowait for loop, mark in previous.marks.items()} if previous is not None else {}
    for loop in marks:
        for following in after(schedule, loop):
            same = {*schedule.under(loop), *schedule.under(following)}.isdisjoint(changed)
            if same and all(before.get(n) == found for n, found in marks.items()):
                continue
            for first, second, tensor, pairs in conflicts(schedule, loop, following, vectors or Vectors(schedule)):
                raise IllegalEdit(
                    f"threads go from loop {loop} to loop {following} without a meeting, but {first.name} and "
                    f"{second.name} touch the same elements of {tensor}",
                    kind="parallel", witness=witness(pairs, (first.iterators, second.iterators)),
                    where=schedule.source.name, hint="let threads meet: no nowait between these loops",
                )  # fmt: skip


def _check_leaving(schedule: Schedule) -> None:
    """Loops that end early leave out what changes nothing; where the statement is elsewhere by now, they do not."""
    for loop, mark in schedule.marks.items():
        if mark.leaves is None or loop not in schedule.loop_statements:
            continue
        if mark.leaves in schedule.nests and is_right_inside(schedule, loop, mark.leaves):
            if (reason := why_not(schedule, loop, mark.leaves)) is not None:
                message = f"loop {loop!r} ends where {mark.leaves!r} writes false: {reason}"
                hint = "leave() after the other edits of what is in the loop"
                raise ScheduleError(message, where=schedule.source.name, hint=hint)


def _updates(a: Touch, b: Touch, depth: int, relaxed: Relaxed, vectors: Vectors) -> bool:
    """Whether two accesses are updates of one reduction that may meet in an iteration of the loop at `depth`."""
    if relaxed == "none" or not (a.own and b.own and a.statement.combiner == b.statement.combiner):
        return False
    if relaxed == "all":
        return True
    element = vectors.access(a)
    return a.statement is b.statement and bool(element.project_out(IN, depth, 1).is_single_valued())


def carried(
    schedule: Schedule, loop: str, *, relaxed: Relaxed = "none", vectors: Vectors | None = None
) -> Iterator[tuple[Statement, Statement, str, isl.Map]]:
    """Pairs of instances in different iterations of a loop, alike in the loops around it, that conflict on one element.

    A tensor whose scope holds the loop, or a loop inside it, has a copy for every iteration: it does not count.
    `relaxed`: the updates of one reduction do not count ("all"), or only where all iterations update one element
    ("lanes": a vector that is reduced to one value first).
    """
    vectors = vectors or Vectors(schedule)
    program = schedule.program
    around = schedule.outer(loop)[:-1]
    groups: dict[str, list[Touch]] = {}
    for name in schedule.under(loop):
        for touch in vectors.touches(program.statement[name]):
            if set(program.tensor[touch.tensor].scope) <= set(around):
                groups.setdefault(touch.tensor, []).append(touch)
    for tensor, group in groups.items():
        for a in group:
            for b in group:
                if not (a.write or b.write) or vectors.apart(a, b, len(around)):
                    continue
                if _updates(a, b, len(around), relaxed, vectors):
                    continue
                pairs = vectors.access(a).apply_range(vectors.access(b).reverse())
                pairs = before_in(together(pairs, range(len(around))), len(around))
                if not pairs.is_empty():
                    yield a.statement, b.statement, tensor, vectors.instances(a.statement, b.statement, pairs)
