"""Which write every read gets: dataflow in the order of a schedule.

isl's analysis finds the last writer (Feautrier 1991; `compute_flow`) where sequence and distance do not say it
(`static_flow`). Copies pass values on: where the writer is a copy its own source takes its place, until a statement or
an untouched element of an input is reached. A reduction's instances are may-writes: all of them together are the
writer, in any order. Statements that clear and merge partial results (`rfactor`) pass values on like copies: a merge
brings what its partial result is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import islpy as isl

from poly.affine import Affine, var
from poly.coefficients import relation_of
from poly.errors import UnsupportedError
from poly.locks import cached_property
from poly.program import Statement
from poly.relations import bound_domain, box
from poly.scheduling.dependences import Touch
from poly.scheduling.paths import common_prefix
from poly.scheduling.schedule import Schedule
from poly.scheduling.static_flow import earlier_writers, is_may_write, last_writers
from poly.scheduling.vectors import Vectors
from poly.sets import IN, OUT, coalesced, fix_sizes

_MOST_PIECES = 100
END = "(end)"
NEUTRAL = "(neutral)"


@dataclass(frozen=True)
class Reader:
    """One read whose value is followed: `relation` { S[...] -> T[...] }; `touch` None for the end of the program."""

    name: str
    position: int
    tensor: str
    relation: isl.Map
    touch: Touch | None


class Flow:
    """Last writers in one schedule. Results are kept: several reads share the writers of a tensor."""

    def __init__(self, schedule: Schedule, vectors: Vectors | None = None) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.vectors = vectors or Vectors(schedule)
        self._writes: dict[str, list[Touch]] = {}
        for s in self.program.statements:
            for touch in self.vectors.touches(s):
                if touch.write:
                    self._writes.setdefault(touch.tensor, []).append(touch)
        self._found: dict[tuple[str, int], isl.UnionMap] = {}
        self._parts: dict[tuple[str, int], tuple[isl.UnionMap, isl.UnionMap]] = {}
        self._keys: dict[tuple[int, int], isl.Map] = {}  # by the identity of a touch, which `vectors` keeps
        self._latest: dict[tuple[int, int], isl.Map] = {}

    def readers(self, s: Statement) -> tuple[Reader, ...]:
        """The reads of a statement; a reduction's read of its own target is number -1."""
        touched = self.vectors.touches(s)
        return tuple(Reader(s.name, t.position, t.tensor, t.relation, t) for t in touched if not t.write)

    def at_end(self, tensor: str) -> Reader:
        """A reader of a whole tensor after the program."""
        shape = self.program.tensor[tensor].shape
        everything = fix_sizes(
            box(tensor, shape, self.program.parameters).intersect_params(self.program.context), self.program.binding
        )
        relation = everything.identity().set_tuple_name(IN, END)
        return Reader(END, 0, tensor, relation, None)

    def origin_of(self, reader: Reader) -> isl.UnionMap:
        """{ reader[...] -> writer[...], T[element] or neutral }: copies and merges replaced by what they bring."""
        direct, merges = self._parts_of(reader)
        return direct if merges.is_empty() else direct.union(merges.apply_range(self.merged))

    def merges_of(self, reader: Reader) -> isl.UnionMap:
        """The part of `writers_of` that ends in merges."""
        return self._parts_of(reader)[1]

    def _parts_of(self, reader: Reader) -> tuple[isl.UnionMap, isl.UnionMap]:
        """The writers that are no merges, and those that are."""
        key = _key(reader)
        if key not in self._parts:
            self._parts[key] = self._split(self.writers_of(reader), self._is_merge)
        return self._parts[key]

    def writers_of(self, reader: Reader) -> isl.UnionMap:
        """{ reader[...] -> writer[...], T[element] or neutral }: copies replaced by what they copied, and so on."""
        key = _key(reader)
        if key in self._found:
            return self._found[key]
        result = self._without_copies(self._last_writers(reader))
        self._found[key] = result
        return result

    def _without_copies(self, relation: isl.UnionMap) -> isl.UnionMap:
        """Copies in the range replaced by where their values come from."""
        direct, copied = self._split(relation, self._passes_on)
        return relation if copied.is_empty() else direct.union(copied.apply_range(self._copied))

    def _split(
        self, relation: isl.UnionMap, through: Callable[[Statement], bool]
    ) -> tuple[isl.UnionMap, isl.UnionMap]:
        """The part that ends in other statements and elements, and the part that ends in those `through` holds for."""
        direct = copied = isl.UnionMap("{ }")
        for part in maps_of(relation):
            s = self.program.statement.get(part.get_tuple_name(OUT) or "")
            if s is not None and through(s):
                copied = copied.union(part.to_union_map())
            else:
                direct = direct.union(part.to_union_map())
        return direct, copied

    @staticmethod
    def _passes_on(s: Statement) -> bool:
        return bool(s.copies) or (bool(s.partial) and s.combiner is None)

    @staticmethod
    def _is_merge(s: Statement) -> bool:
        return bool(s.partial) and s.combiner is not None

    @cached_property
    def merged(self) -> isl.UnionMap:
        """{ merge[...] -> writer[...] }: the instances whose contributions a merge brings, through other merges too."""
        step = isl.UnionMap("{ }")
        for s in self.program.statements:
            if self._is_merge(s):
                (reader,) = (r for r in self.readers(s) if r.position == 0)
                step = step.union(without_neutral(self.writers_of(reader))[0])
        result, further = self._split(step, self._is_merge)
        while not further.is_empty():  # each `rfactor` of one reduction adds a level
            direct, further = self._split(further.apply_range(step), self._is_merge)
            result = result.union(direct)
        return result

    @cached_property
    def shared(self) -> isl.UnionMap:
        """{ merge[...] -> merge[...] }: different ones that bring a contribution both have."""
        pairs = self.merged.apply_range(self.merged.reverse())
        return pairs.subtract(pairs.domain().identity())

    @cached_property
    def _copied(self) -> isl.UnionMap:
        """{ copy[...] -> writer[...] or T[element] }: what every copy moves, through as many others as it takes.

        What a copy moves is what it reads from statements, and what the copies move that it reads: linear equations,
        solved by elimination. Copies that feed themselves (a partial result out of one tile and into the next) take a
        transitive closure.
        """
        origins: dict[str, isl.UnionMap] = {}
        steps: dict[tuple[str, str], isl.Map] = {}
        for s in self.program.statements:
            if self._passes_on(s):
                origins[s.name], chained = self._split(self._behind(s), self._passes_on)
                steps |= {(s.name, m.get_tuple_name(OUT) or ""): m for m in maps_of(chained)}
        names = list(origins)
        for k, copy in enumerate(names):
            own = steps.pop((copy, copy), None)
            out = {b: m for (a, b), m in steps.items() if a == copy}
            if own is not None:
                again = self._self_closure(own)
                origins[copy] = origins[copy].union(again.to_union_map().apply_range(origins[copy]))
                out = {b: coalesced(m.union(again.apply_range(m))) for b, m in out.items()}
                steps |= {(copy, b): m for b, m in out.items()}
            for other in names[k + 1 :]:
                if (into := steps.pop((other, copy), None)) is not None:
                    origins[other] = origins[other].union(into.to_union_map().apply_range(origins[copy]))
                    for b, m in out.items():
                        further = into.apply_range(m)
                        steps[other, b] = coalesced(steps[other, b].union(further)) if (other, b) in steps else further
        result = isl.UnionMap("{ }")
        for copy in reversed(names):
            for (a, b), m in steps.items():
                if a == copy:
                    origins[copy] = origins[copy].union(m.to_union_map().apply_range(origins[b]))
            result = result.union(coalesced(origins[copy]))
        return result

    def _behind(self, s: Statement) -> isl.UnionMap:
        """The last writers of what a copy reads; what is filled in or cleared comes from nowhere."""
        if s.partial:
            return neutral_on(bound_domain(self.program, s))
        (reader,) = (r for r in self.readers(s) if r.position == 0)
        behind = self._last_writers(reader)
        if not s.reads[0].guard:
            return behind
        everything = bound_domain(self.program, s)
        filled = everything.subtract(reader.relation.domain()).identity()
        return behind.union(fill_of(filled, self.program.tensor[reader.tensor].source_name))

    def _self_closure(self, step: isl.Map) -> isl.Map:
        """The transitive closure of a copy's relation to itself: isl's where it is exact, else by squaring."""
        found, exact = step.transitive_closure()
        if exact:
            return found
        reached = step
        while reached.n_basic_map() < _MOST_PIECES:
            further = coalesced(reached.union(reached.apply_range(reached)))
            if further.is_subset(reached):
                return reached
            reached = further
        raise UnsupportedError(
            "copies feed one another in more ways than can be followed",
            where=self.schedule.source.name,
            hint="bind the sizes, or keep partial results in their buffer until they are complete",
        )

    def _last_writers(self, reader: Reader) -> isl.UnionMap:
        """{ reader -> writer in the schedule, or T[element] where nothing was written before }"""
        everyone = self._writes.get(reader.tensor, [])
        tensor = self.program.tensor[reader.tensor]
        prefix = self._shared_prefix(reader, everyone, tensor.scope)
        writers = [w for w in everyone if not _same_reduction(reader, w)]
        flow, missing = self._in_sequence(reader, writers, prefix) or self._flow(reader, writers, prefix)
        return flow if tensor.scope else flow.union(missing)

    def _in_sequence(
        self, reader: Reader, writers: Sequence[Touch], prefix: tuple[str | int, ...]
    ) -> tuple[isl.UnionMap, isl.UnionMap] | None:
        """What `_flow` gives, where sequence or distance orders reader and writers inside `prefix`; else None."""
        depth = sum(isinstance(step, str) for step in prefix)
        nests = self.schedule.nests

        def written(touch: Touch) -> isl.Map:
            return self._keyed(touch, depth) if depth else touch.relation

        def latest(touch: Touch) -> isl.Map:
            key = (id(touch), depth)
            if key not in self._latest:
                self._latest[key] = self._last_of_all(touch, written(touch), depth)
            return self._latest[key]

        def by_distance(first: Touch, second: Touch | None, loops: int) -> int | None:
            touch = second or reader.touch
            assert touch is not None
            steps = (self.vectors.by_distance(first, touch, k) for k in range(depth, loops))
            found = next((step for step in steps if step != 0), 0)
            if found is not None:
                return found
            a, b = (self._in_loops(t, depth, loops) for t in (first, touch))
            pairs = a.apply_range(b.reverse())
            return 0 if pairs.is_subset(pairs.domain().identity()) else None

        path = None if reader.touch is None else nests[reader.name].path
        paths = [nests[w.statement.name].path for w in writers]
        before = earlier_writers(path, writers, paths, depth, written, by_distance)
        if before is None:
            return None
        reads = reader.relation if reader.touch is None else written(reader.touch)
        found, missing = last_writers(reads, before, written, latest)
        if depth:
            assert reader.touch is not None
            found = self._instances(found, [reader.touch.statement, *(w.statement for w in before)])
        return found, missing.to_union_map()

    def _last_of_all(self, touch: Touch, relation: isl.Map, depth: int) -> isl.Map:
        """{ element -> the last of a statement's writes to it }, where `relation` is what it writes."""
        if relation.is_injective():
            return relation.reverse()
        last = self._keyed(touch, depth).reverse().lexmax()
        return last if depth else last.apply_range(self.vectors.of(touch.statement).reverse())

    def _instances(self, pairs: isl.UnionMap, statements: Sequence[Statement]) -> isl.UnionMap:
        """A relation of loop vectors of some statements as one of instances."""
        known = {self.vectors.of(s).get_tuple_name(IN): s for s in statements}  # a name as isl keeps it
        result = isl.UnionMap("{ }")
        for part in maps_of(pairs):
            first, second = known[part.get_tuple_name(IN)], known[part.get_tuple_name(OUT)]
            result = result.union(self.vectors.instances(first, second, part).to_union_map())
        return result

    def _shared_prefix(self, reader: Reader, writers: Sequence[Touch], scope: Sequence[str]) -> tuple[str | int, ...]:
        """The path down to the innermost loop of the tensor's scope that all users share.

        There the buffer is allocated (`poly.scheduling.lowering`): each iteration has one of its own, so only the order
        inside it matters.
        """
        if reader.touch is None or not scope:
            return ()
        paths = [self.schedule.nests[n].path for n in (reader.name, *(w.statement.name for w in writers))]
        shared = common_prefix(*paths)
        inside = [k + 1 for k, step in enumerate(shared) if step in scope]
        return shared[: inside[-1]] if inside else ()

    def _flow(
        self, reader: Reader, writers: Sequence[Touch], prefix: tuple[str | int, ...]
    ) -> tuple[isl.UnionMap, isl.UnionMap]:
        """The last writers, and the accesses that may see what was there before the first.

        isl's dataflow between loop vectors: there, accesses of tiled nests have no floors (and isl fewer troubles).
        """
        loops = tuple(step for step in prefix if isinstance(step, str))
        users = {t.statement.name for t in (*writers, *((reader.touch,) if reader.touch is not None else ()))}
        depth = max((len(self.schedule.nests[n].path) - len(prefix) for n in users), default=0) + 1
        empty = isl.UnionMap("{ }")
        must, may, order, vectors = empty, empty, empty, empty
        sink = empty
        done: set[str] = set()
        for touch in (*writers, *((reader.touch,) if reader.touch is not None else ())):
            s = touch.statement
            part = self._keyed(touch, len(loops)).to_union_map()
            if touch is reader.touch:
                sink = part
            elif is_may_write(touch):
                may = may.union(part)
            else:
                must = must.union(part)
            if s.name not in done:
                done.add(s.name)
                order = order.union(self._time(s, prefix, depth).to_union_map())
                vectors = vectors.union(self.vectors.of(s).to_union_map())
        if reader.touch is None:
            sink = reader.relation.to_union_map()
            order = order.union(_end_of_time(reader.relation.domain(), depth).to_union_map())
            vectors = vectors.union(reader.relation.domain().identity().to_union_map())
        access = isl.UnionAccessInfo.from_sink(sink).set_must_source(must).set_may_source(may)
        flow = access.set_schedule_map(order).compute_flow()
        found = flow.get_must_dependence().union(flow.get_may_dependence()).reverse()
        missing = vectors.apply_range(flow.get_may_no_source())
        return vectors.apply_range(found).apply_range(vectors.reverse()), missing

    def _keyed(self, touch: Touch, depth: int) -> isl.Map:
        """An access by loop vectors, the outermost `depth` loops before the subscripts: a tile's buffer is its own."""
        relation = self.vectors.access(touch)
        if not depth:
            return relation
        if (found := self._keys.get((id(touch), depth))) is not None:
            return found
        inner = relation.dim(IN) - depth
        tile = relation.domain().identity().project_out(OUT, depth, inner)
        found = self._keys[id(touch), depth] = tile.flat_range_product(relation).set_tuple_name(OUT, touch.tensor)
        return found

    def _in_loops(self, touch: Touch, depth: int, loops: int) -> isl.Map:
        """In which iterations of the outermost `loops` around it a statement touches an element; see `_keyed`."""
        relation = self._keyed(touch, depth)
        return relation.project_out(IN, loops, relation.dim(IN) - loops).set_tuple_name(IN, "")

    def _time(self, s: Statement, prefix: tuple[str | int, ...], depth: int) -> isl.Map:
        """When a loop vector runs inside `prefix`."""
        nest = self.schedule.nests[s.name]
        labels = [f"l{k}_" for k in range(len(nest.names))]
        steps = nest.path[len(prefix) :]
        values = [Affine((), p) if isinstance(p, int) else var(labels[nest.names.index(p)]) for p in steps]
        values = [Affine(), *values, *([Affine()] * (depth - len(values)))]  # 0: before the end, see `_end_of_time`
        return relation_of(values, labels, (), s.name).intersect_domain(self.vectors.of(s).range())


def _end_of_time(domain: isl.Set, depth: int) -> isl.Map:
    """A time after all others: these begin with 0, it with 1."""
    later = isl.Set(f"{{ [{', '.join(['1', *['0'] * depth])}] }}")
    return isl.Map.from_domain_and_range(domain, later)


def _key(reader: Reader) -> tuple[str, int]:
    """What tells a reader from the others of a schedule."""
    return (reader.name if reader.touch else f"{END}{reader.tensor}", reader.position)


def _same_reduction(reader: Reader, writer: Touch) -> bool:
    """A reduction's update does not get what updates of the same one left there: any order of them will do."""
    if reader.touch is None or not reader.touch.own or not writer.own or writer.statement.partial:
        return False
    first, second = reader.touch.statement, writer.statement
    return first.source_name == second.source_name


def maps_of(relation: isl.UnionMap) -> list[isl.Map]:
    """The maps of a union map."""
    found: list[isl.Map] = []
    relation.foreach_map(found.append)
    return found


def neutral_on(domain: isl.Set) -> isl.UnionMap:
    """{ instance -> the neutral element of a reduction }"""
    return isl.Map.from_domain_and_range(domain, isl.Set("{ [] }").set_tuple_name(NEUTRAL)).to_union_map()


def without_neutral(relation: isl.UnionMap) -> tuple[isl.UnionMap, isl.UnionMap]:
    """A relation to writers without and with the neutral element."""
    rest = found = isl.UnionMap("{ }")
    for part in maps_of(relation):
        if part.get_tuple_name(OUT) == NEUTRAL:
            found = found.union(part.to_union_map())
        else:
            rest = rest.union(part.to_union_map())
    return rest, found


def fill_of(filled: isl.Map, tensor: str) -> isl.UnionMap:
    target = isl.Set(f"{{ fill_{tensor}[] }}")
    return isl.Map.from_domain_and_range(filled.domain(), target).to_union_map()
