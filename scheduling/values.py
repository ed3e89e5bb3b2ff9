"""The value check: every read that goes through a promoted or recomputed tensor gets what the source program read.

Through the map from parts and recomputed instances to their origins the dataflow (`poly.scheduling.flow`) must be the
source program's own; a read that no write reaches, a stale tile or a short halo shows as a difference. Partial results
must begin with the neutral element, and no value may get a contribution twice.
"""

from __future__ import annotations

from typing import NoReturn

import islpy as isl

from poly.errors import IllegalEdit
from poly.program import Program, Statement
from poly.relations import bound_domain
from poly.scheduling.flow import Flow, Reader, fill_of, maps_of, neutral_on, without_neutral
from poly.scheduling.schedule import Schedule
from poly.scheduling.transparent import without_transparent
from poly.scheduling.vectors import Vectors
from poly.sets import IN, OUT, witness


def check_values(schedule: Schedule, vectors: Vectors | None = None) -> None:
    """Raise `IllegalEdit` (kind "value") with the reading instance and what it gets instead."""
    if not concerned_tensors(schedule):
        return
    vectors = vectors or Vectors(schedule)
    plainer = without_transparent(schedule, vectors)
    if plainer is not schedule:
        try:
            return _follow(plainer, vectors.of_fewer(plainer))
        except IllegalEdit:  # with all buffers there, the reason is told in their terms
            pass
    _follow(schedule, vectors)


def _follow(schedule: Schedule, vectors: Vectors) -> None:
    """Compare what every read gets with the source program's dataflow."""
    concerned = concerned_tensors(schedule)
    if not concerned:
        return
    flow = Flow(schedule, vectors)
    source = schedule.facts.flow
    for s in schedule.program.statements:
        if s.copies:
            continue
        for reader in flow.readers(s):
            if s.partial:
                _check_partial(schedule, flow, s, reader)
            elif reader.tensor in concerned:
                _check_read(schedule, flow, source, s, reader)
    for tensor in schedule.program.outputs:
        if tensor.name in concerned:
            _check_output(schedule, flow, source, tensor.name)


def concerned_tensors(schedule: Schedule) -> frozenset[str]:
    """Promoted tensors, what they stand for, those that copies, recomputed and partial statements touch, and those that
    hold another tensor's elements.
    """
    found = {name for t in schedule.program.tensors if t.origin for name in (t.name, t.origin)}
    for s in schedule.program.statements:
        if s.copies or s.recomputed or s.partial:
            found |= {access.tensor for access, _ in s.accesses}
        elif (source := schedule.source.statement.get(s.source_name)) is not None and source is not s:
            pairs = zip((s.write, *s.reads), (source.write, *source.reads), strict=True)
            found |= {now.tensor for now, before in pairs if now.tensor != before.tensor}
    return frozenset(found)


def _to_origin(program: Program, relation: isl.UnionMap, skip: str | None) -> isl.UnionMap:
    """Writers that are parts or recomputations mapped to the instances of the source program.

    `skip`: a reduction's own statement, whose partial results do not count as its sources.
    """
    result = isl.UnionMap("{ }")
    for part in maps_of(relation):
        s = program.statement.get(part.get_tuple_name(OUT) or "")
        if s is not None and s.origin:
            part = part.project_out(OUT, 0, s.tile_rank).set_tuple_name(OUT, s.origin)
        if part.get_tuple_name(OUT) != skip:
            result = result.union(part.to_union_map())
    return result


def _check_read(schedule: Schedule, flow: Flow, source: Flow, s: Statement, reader: Reader) -> None:
    origin = s.source_name
    (before,) = (r for r in source.readers(source.program.statement[origin]) if r.position == reader.position)
    skip = origin if reader.touch is not None and reader.touch.own else None
    domain = bound_domain(schedule.program, s)
    to_origin = _instances_to_origin(s, origin, domain)
    expected = to_origin.to_union_map().apply_range(_to_origin(source.program, source.origin_of(before), skip))
    actual = _to_origin(schedule.program, flow.origin_of(reader), skip)
    if s.reads and reader.position >= 0 and before.touch is not None:
        expected = expected.union(_padding_of(source, origin, reader, to_origin, s))
    if skip is None:
        _once(schedule, flow, s, reader)
        actual, _ = without_neutral(actual)
    else:  # a partial result instead of the target: what it becomes is judged where it is merged and read
        _, neutral = without_neutral(actual)
        expected = expected.subtract_domain(neutral.domain()).union(neutral)
    _compare(schedule, s, reader, expected, actual)


def _check_partial(schedule: Schedule, flow: Flow, s: Statement, reader: Reader) -> None:
    """What a merge reads began with the neutral element. (Its own target is judged where that is read.)"""
    if reader.touch is None or reader.touch.own:
        return
    _once(schedule, flow, s, reader)
    actual = _to_origin(schedule.program, flow.origin_of(reader), s.partial)
    _compare(schedule, s, reader, neutral_on(bound_domain(schedule.program, s)), actual)


def _once(schedule: Schedule, flow: Flow, s: Statement | None, reader: Reader) -> None:
    """No contribution comes to a read through two merges."""
    merges = flow.merges_of(reader)
    if merges.is_empty() or flow.merged.intersect_domain(merges.range()).is_injective():
        return
    twice = merges.apply_range(flow.shared).intersect(merges)
    if twice.is_empty():
        return
    pair = isl.Map.from_basic_map(maps_of(twice)[0].sample())
    instance, merge = pair.domain().to_union_set(), pair.range().to_union_set()
    others = instance.apply(merges).intersect(merge.apply(flow.shared))
    brought = merge.apply(flow.merged).intersect(others.apply(flow.merged))
    both = isl.UnionMap.from_domain_and_range(instance, brought)
    _refuse(schedule, s, reader, maps_of(_to_origin(schedule.program, both, None))[0], "gets twice the value of")


def _padding_of(source: Flow, origin: str, reader: Reader, to_origin: isl.Map, s: Statement) -> isl.UnionMap:
    """Where the source read padding and the promoted read has no guard, its value must come from a copy's fill."""
    original = source.program.statement[origin].reads[reader.position]
    if not original.guard or s.reads[reader.position].guard:
        return isl.UnionMap("{ }")
    (before,) = (r for r in source.readers(source.program.statement[origin]) if r.position == reader.position)
    padded = to_origin.subtract_range(before.relation.domain())
    return fill_of(padded, original.tensor)


def _instances_to_origin(s: Statement, origin: str, domain: isl.Set) -> isl.Map:
    return domain.identity().project_out(OUT, 0, s.tile_rank).set_tuple_name(OUT, origin)


def _check_output(schedule: Schedule, flow: Flow, source: Flow, tensor: str) -> None:
    expected = _to_origin(source.program, source.origin_of(source.at_end(tensor)), None)
    reader = flow.at_end(tensor)
    _once(schedule, flow, None, reader)
    actual, _ = without_neutral(_to_origin(schedule.program, flow.origin_of(reader), None))
    _compare(schedule, None, reader, expected, actual)


def _compare(
    schedule: Schedule, s: Statement | None, reader: Reader, expected: isl.UnionMap, actual: isl.UnionMap
) -> None:
    if actual.is_equal(expected):
        return
    lost, wrong = expected.subtract(actual), actual.subtract(expected)
    if not wrong.is_empty():
        _refuse(schedule, s, reader, maps_of(wrong)[0], "gets a value it should not of")
    _refuse(schedule, s, reader, maps_of(lost)[0], "does not get the value written by")


def _refuse(schedule: Schedule, s: Statement | None, reader: Reader, pairs: isl.Map, what: str) -> NoReturn:
    """`pairs`: { reader[...] -> source instance, element or neutral } of which one is the witness."""
    who = s.name if s is not None else "the result"
    names = s.iterators if s is not None else [f"a{d}" for d in range(reader.relation.dim(IN))]
    other = schedule.source.statement.get(pairs.get_tuple_name(OUT) or "")
    labels = other.iterators if other is not None else [f"a{d}" for d in range(pairs.dim(OUT))]
    reads, writes = witness(pairs, (names, labels))
    raise IllegalEdit(
        f"{who} reads {reader.tensor} and {what} {writes}", kind="value", witness=(writes, reads),
        where=schedule.program.name,
        hint="a copy is missing, late or short, or a buffer is overwritten before its last use",
    )  # fmt: skip
