"""The value check: every read that goes through a promoted or recomputed tensor gets what the source program read.

For each such read, isl's dataflow analysis finds the last writer in the new order (Feautrier 1991; `compute_flow`).
Copies pass values on: where the writer is a copy its own source takes its place, until a statement or an untouched
element of an input is reached. Through the map from parts and recomputed instances to their origins the result must be
the source program's own dataflow; a read that no write reaches, a stale tile or a short halo shows as a difference.
A reduction's instances are may-writes: all of them together are the writer, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import islpy as isl

from poly.errors import IllegalEdit, UnsupportedError
from poly.program import Program, Statement
from poly.scheduling.dependences import Touch, touches
from poly.scheduling.schedule import Schedule, common_prefix
from poly.sets import IN, OUT, box, expressions_map, fix_sizes, witness

_DEEPEST_CHAIN = 12
END = "end_"


@dataclass(frozen=True)
class Reader:
    """One read whose value is followed: `relation` { S[...] -> T[...] }; `touch` None for the end of the program."""

    name: str
    position: int
    tensor: str
    relation: isl.Map
    touch: Touch | None


def check_values(schedule: Schedule) -> None:
    """Raise `IllegalEdit` (kind "value") with the reading instance and what it gets instead."""
    concerned = concerned_tensors(schedule)
    if not concerned:
        return
    flow = Flow(schedule)
    source = schedule.facts.flow
    for s in schedule.program.statements:
        if s.copies:
            continue
        for reader in flow.readers(s):
            if reader.tensor in concerned:
                _check_read(schedule, flow, source, s, reader)
    for tensor in schedule.program.outputs:
        if tensor.name in concerned:
            _check_output(schedule, flow, source, tensor.name)


def concerned_tensors(schedule: Schedule) -> frozenset[str]:
    """Promoted tensors, what they stand for, and those that copies or recomputed statements touch."""
    found = {name for t in schedule.program.tensors if t.origin for name in (t.name, t.origin)}
    for s in schedule.program.statements:
        if s.copies or s.recomputed:
            found |= {access.tensor for access, _ in s.accesses}
    return frozenset(found)


class Flow:
    """Last writers in one schedule. Results are kept: several reads share the writers of a tensor."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self._touches = {s.name: tuple(touches(self.program, s)) for s in self.program.statements}
        self._writes: dict[str, list[Touch]] = {}
        for group in self._touches.values():
            for touch in group:
                if touch.write:
                    self._writes.setdefault(touch.tensor, []).append(touch)
        self._found: dict[tuple[str, int], isl.UnionMap] = {}
        self._vectors: dict[str, tuple[isl.Map, tuple[str, ...]]] = {}

    def readers(self, s: Statement) -> tuple[Reader, ...]:
        """The reads of a statement; a reduction's read of its own target is number -1."""
        return tuple(Reader(s.name, t.position, t.tensor, t.relation, t) for t in self._touches[s.name] if not t.write)

    def at_end(self, tensor: str) -> Reader:
        """A reader of a whole tensor after the program."""
        shape = self.program.tensor[tensor].shape
        everything = fix_sizes(
            box(tensor, shape, self.program.parameters).intersect_params(self.program.context), self.program.binding
        )
        relation = everything.identity().set_tuple_name(IN, END)
        return Reader(END, 0, tensor, relation, None)

    def origin_of(self, reader: Reader) -> isl.UnionMap:
        """{ reader[...] -> writer[...] or T[element] }: copies replaced by what they copied, as often as it takes."""
        key = (reader.name if reader.touch else f"{END}{reader.tensor}", reader.position)
        if key in self._found:
            return self._found[key]
        result = self._last_writers(reader)
        for _ in range(_DEEPEST_CHAIN):
            passed = self._passed_on(result)
            if passed is None:
                break
            result = passed
        else:
            raise UnsupportedError(
                f"the copies behind {reader.name}'s read of {reader.tensor} feed one another",
                where=self.schedule.source.name,
                hint="promote so that partial results of one tile are not copied in again by the next",
            )  # fmt: skip
        self._found[key] = result
        return result

    def _passed_on(self, relation: isl.UnionMap) -> isl.UnionMap | None:
        """Copies among the writers replaced by their own sources; None where there is no copy."""
        replaced, changed = isl.UnionMap("{ }"), False
        for part in maps_of(relation):
            s = self.program.statement.get(part.get_tuple_name(OUT) or "")
            if s is None or not s.copies:
                replaced = replaced.union(part.to_union_map())
                continue
            changed = True
            (reader,) = (r for r in self.readers(s) if r.position == 0)
            behind = self._last_writers(reader)
            replaced = replaced.union(part.to_union_map().apply_range(behind))
            if s.reads[0].guard:  # what a padded copy fills in comes from nowhere: it counts as the copy's own
                filled = part.subtract_range(reader.relation.domain())
                replaced = replaced.union(_fill(filled, reader.tensor))
        return replaced if changed else None

    def _last_writers(self, reader: Reader) -> isl.UnionMap:
        """{ reader -> writer in the schedule, or T[element] where nothing was written before }"""
        writers = self._writes.get(reader.tensor, [])
        tensor = self.program.tensor[reader.tensor]
        if not writers:
            return reader.relation.to_union_map() if not tensor.scope else isl.UnionMap("{ }")
        prefix = self._shared_prefix(reader, writers, tensor.scope)
        flow = self._flow(reader, writers, prefix)
        if tensor.scope:
            return flow
        missing = reader.relation.to_union_map().subtract_domain(flow.domain())
        return flow.union(missing)

    def _shared_prefix(self, reader: Reader, writers: Sequence[Touch], scope: Sequence[str]) -> tuple[str | int, ...]:
        """The path down to the last loop that all users share and that is in the tensor's scope.

        One iteration of these loops has the tensor for itself, so only the order inside it matters.
        """
        if reader.touch is None or not scope:
            return ()
        paths = [self.schedule.nests[n].path for n in (reader.name, *(w.statement.name for w in writers))]
        shared = list(common_prefix(*paths))
        loops = [k for k, step in enumerate(shared) if isinstance(step, str)]
        length = 0
        for k in loops:
            if shared[k] not in scope:
                break
            length = k + 1
        return tuple(shared[:length])

    def _flow(self, reader: Reader, writers: Sequence[Touch], prefix: tuple[str | int, ...]) -> isl.UnionMap:
        """isl's dataflow between loop vectors: there,
        accesses of tiled nests have no floors (and isl fewer troubles).
        """
        loops = tuple(step for step in prefix if isinstance(step, str))
        depth = max(len(self.schedule.nests[n].path) for n in self.schedule.nests) + 1
        empty = isl.UnionMap("{ }")
        must, may, order, vectors = empty, empty, empty, empty
        sink = empty
        done: set[str] = set()
        for touch in (*writers, *((reader.touch,) if reader.touch is not None else ())):
            s = touch.statement
            vector, time = self._vector_and_time(s, prefix, depth)
            part = in_vectors(self._keyed(s, touch.relation, loops), vector).to_union_map()
            if touch is reader.touch:
                sink = part
            elif touch.own:
                may = may.union(part)
            else:
                must = must.union(part)
            if s.name not in done:
                done.add(s.name)
                order, vectors = order.union(time.to_union_map()), vectors.union(vector.to_union_map())
        if reader.touch is None:
            sink = reader.relation.to_union_map()
            order = order.union(_end_of_time(reader.relation.domain(), depth).to_union_map())
            vectors = vectors.union(reader.relation.domain().identity().to_union_map())
        access = isl.UnionAccessInfo.from_sink(sink).set_must_source(must).set_may_source(may)
        flow = access.set_schedule_map(order).compute_flow()
        found = flow.get_must_dependence().union(flow.get_may_dependence()).reverse()
        return vectors.apply_range(found).apply_range(vectors.reverse())

    def _keyed(self, s: Statement, relation: isl.Map, loops: Sequence[str]) -> isl.Map:
        """An access with the coordinates of the tile before the subscripts: a tile's buffer is its own."""
        if not loops:
            return relation
        tile = expressions_map(s, self.schedule.nests[s.name].expressions(loops), self.program.parameters)
        tile = fix_sizes(tile, self.program.binding)
        return tile.flat_range_product(relation).set_tuple_name(OUT, relation.get_tuple_name(OUT))

    def _vector_and_time(self, s: Statement, prefix: tuple[str | int, ...], depth: int) -> tuple[isl.Map, isl.Map]:
        """{ S[...] -> S[loop values] } and, on those, their order inside `prefix`."""
        if s.name not in self._vectors:
            nest = self.schedule.nests[s.name]
            vector = expressions_map(s, nest.expressions(nest.names), self.program.parameters, s.name)
            vector = fix_sizes(vector.intersect_params(self.program.context), self.program.binding)
            assert vector.is_injective(), f"two instances of {s.name} have one loop vector"
            self._vectors[s.name] = (vector, nest.names)
        vector, names = self._vectors[s.name]
        labels = [f"l{k}_" for k in range(len(names))]
        steps = self.schedule.nests[s.name].path[len(prefix) :]
        values = [str(step) if isinstance(step, int) else labels[names.index(step)] for step in steps]
        values += ["0"] * (depth - len(values))
        time = isl.Map(f"{{ {s.name}[{', '.join(labels)}] -> [{', '.join(values)}] }}")
        return vector, time.intersect_domain(vector.range())


def in_vectors(relation: isl.Map, vector: isl.Map) -> isl.Map:
    """An access on loop vectors instead of instances; floors go where the affine hull is as exact."""
    plain = vector.reverse().apply_range(relation).coalesce()
    hull = isl.Map.from_basic_map(plain.affine_hull()).intersect_domain(plain.domain())
    return hull if hull.is_single_valued() else plain


def _end_of_time(domain: isl.Set, depth: int) -> isl.Map:
    later = isl.Set(f"{{ [{', '.join(['1000000000', *['0'] * (depth - 1)])}] }}")
    return isl.Map.from_domain_and_range(domain, later)


def maps_of(relation: isl.UnionMap) -> list[isl.Map]:
    """The maps of a union map."""
    found: list[isl.Map] = []
    relation.foreach_map(found.append)
    return found


def _fill(filled: isl.Map, tensor: str) -> isl.UnionMap:
    target = isl.Set(f"{{ fill_{tensor}[] }}")
    return isl.Map.from_domain_and_range(filled.domain(), target).to_union_map()


def _to_origin(program: Program, relation: isl.UnionMap, skip: str | None) -> isl.UnionMap:
    """Writers that are parts or recomputations turned to the instances of the source program.

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
    origin = s.origin or s.name
    (before,) = (r for r in source.readers(source.program.statement[origin]) if r.position == reader.position)
    skip = origin if reader.touch is not None and reader.touch.own else None
    domain = fix_sizes(s.domain.intersect_params(schedule.program.context), schedule.program.binding)
    to_origin = _instances_to_origin(s, origin, domain)
    expected = to_origin.to_union_map().apply_range(_to_origin(source.program, source.origin_of(before), skip))
    actual = _to_origin(schedule.program, flow.origin_of(reader), skip)
    if s.reads and reader.position >= 0 and before.touch is not None:
        expected = expected.union(_padding_of(source, origin, reader, to_origin, s))
    _compare(schedule, s, reader, expected, actual)


def _padding_of(source: Flow, origin: str, reader: Reader, to_origin: isl.Map, s: Statement) -> isl.UnionMap:
    """Where the source read padding and the promoted read has no guard, its value must come from a copy's fill."""
    original = source.program.statement[origin].reads[reader.position]
    if not original.guard or s.reads[reader.position].guard:
        return isl.UnionMap("{ }")
    (before,) = (r for r in source.readers(source.program.statement[origin]) if r.position == reader.position)
    padded = to_origin.subtract_range(before.relation.domain())
    return _fill(padded, original.tensor)


def _instances_to_origin(s: Statement, origin: str, domain: isl.Set) -> isl.Map:
    return domain.identity().project_out(OUT, 0, s.tile_rank).set_tuple_name(OUT, origin)


def _check_output(schedule: Schedule, flow: Flow, source: Flow, tensor: str) -> None:
    expected = _to_origin(source.program, source.origin_of(source.at_end(tensor)), None)
    reader = flow.at_end(tensor)
    _compare(schedule, None, reader, expected, _to_origin(schedule.program, flow.origin_of(reader), None))


def _compare(
    schedule: Schedule, s: Statement | None, reader: Reader, expected: isl.UnionMap, actual: isl.UnionMap
) -> None:
    if actual.is_equal(expected):
        return
    who = s.name if s is not None else "the result"
    names = s.iterators if s is not None else [f"a{d}" for d in range(reader.relation.dim(IN))]
    lost, wrong = expected.subtract(actual), actual.subtract(expected)
    program = schedule.program
    if not wrong.is_empty():
        pairs, what = maps_of(wrong)[0], "gets a value it should not"
    else:
        pairs, what = maps_of(lost)[0], "does not get the value"
    other = schedule.source.statement.get(pairs.get_tuple_name(OUT) or "")
    labels = other.iterators if other is not None else [f"a{d}" for d in range(pairs.dim(OUT))]
    reads, writes = witness(pairs, (names, labels))
    action = "of" if not wrong.is_empty() else "written by"
    raise IllegalEdit(
        f"{who} reads {reader.tensor} and {what} {action} {writes}", kind="value", witness=(writes, reads),
        where=program.name,
        hint="a copy is missing, late or short, or a buffer is overwritten before its last use",
    )  # fmt: skip
