"""Loops that end before their last iteration (`leave`), and why nothing is lost by that.

    for s in range(0, 1000) leaves go:             # data say when it is over; it is written for all trips
        go[] = taken[] > 0 and count[0] < 100
        place[] = select(go[], count[0], 0)
        found[place[]] = select(go[], taken[], found[place[]])
        count[0] += select(go[], 1, 0)

A statement right inside of the loop writes a bool, or one for each lane. An iteration in which that is false is idle:
it changes nothing but what lives inside of the iteration. What the bool is computed from does not depend on the
iteration, or so that it stays false. Then the next iteration finds everything as this one did, is idle too, and so are
all that are left.
"""

from __future__ import annotations

from collections.abc import Iterator

from poly.affine import Affine, var
from poly.dtypes import is_integer
from poly.expr import Apply, Cast, Const, Expr, IndexValue, Read, walk
from poly.program import Access, ReadIndex, Statement
from poly.relations import bound_domain, box_bounds, range_of
from poly.scheduling.paths import relation_in_time
from poly.scheduling.schedule import Mark, Schedule


def left_early(schedule: Schedule) -> Schedule:
    """Every loop that can end early does."""
    for s in schedule.program.statements:
        loops = schedule.nests[s.name].names
        if not loops or s.combiner is not None or schedule.program.tensor[s.write.tensor].dtype != "bool":
            continue
        *outer, loop = loops
        loop = outer[-1] if outer and schedule.kind(loop) == "vector" else loop
        if schedule.marks.get(loop, Mark()) == Mark() and why_not(schedule, loop, s.name) is None:
            schedule = schedule.leave(loop, s.name)
    return schedule


def is_right_inside(schedule: Schedule, loop: str, statement: str) -> bool:
    """Whether no loop is between a loop and a statement in it but one of lanes."""
    names = schedule.nests[statement].names
    return names[-1:] == (loop,) or (names[-2:-1] == (loop,) and schedule.kind(names[-1]) == "vector")


def why_not(schedule: Schedule, loop: str, statement: str) -> str | None:
    """Why a loop cannot end where a statement in it writes false; None where it can."""
    s, inside = schedule.statement(statement), schedule.under(loop)
    if schedule.kind(loop) != "serial":
        return "it is not serial"
    if not is_right_inside(schedule, loop, statement):
        return f"{statement!r} is not right inside of it"
    if s.combiner is not None or schedule.program.tensor[s.write.tensor].dtype != "bool":
        return f"{statement!r} does not assign a bool"
    if any(schedule.program.statement[n].external for n in inside):
        return "a statement in it is external"
    return _Iteration(schedule, loop, s).refusal()


class _Iteration:
    """What an iteration of a loop leaves as it was where `chosen` writes false. `private`: tensors that live inside."""

    def __init__(self, schedule: Schedule, loop: str, chosen: Statement) -> None:
        self.schedule, self.loop, self.chosen = schedule, loop, chosen
        program = schedule.program
        self.inside = [program.statement[n] for n in schedule.under(loop)]
        names = {s.name for s in self.inside}
        outside = {t for s in program.statements if s.name not in names for t in s.tensors}
        used = {t for s in self.inside for t in s.tensors}
        self._steady: dict[str, bool] = {}
        self.private = {t for t in used if loop in program.tensor[t].scope and t not in outside}
        temporary = {t for t in used - outside - self.private if program.tensor[t].role == "temporary"}
        self.private |= {t for t in temporary if self._made_anew(t)}

    def refusal(self) -> str | None:
        if self.chosen.write.tensor not in self.private or len(self._writers(self.chosen.write.tensor)) != 1:
            return f"{self.chosen.write.tensor!r} is not private to its iterations, or is written twice"
        for s in self.inside:
            if s.write.tensor not in self.private and not self._idle(s):
                return f"{s.name!r} may change {s.write.tensor!r} then"
        if not self._plain(self.chosen) or not all(self._stays_false(e) for e in _parts(self.chosen.body)):
            return "it may be true again in a later iteration"
        return None

    def _made_anew(self, tensor: str) -> bool:
        """Whether all that is read of a tensor was written in the same iteration, as nobody outside reads it."""
        writers = self._writers(tensor)
        if len(writers) != 1 or writers[0].combiner is not None:
            return False
        (writer,) = writers
        readers = [(s, r) for s in self.inside for r in s.reads if r.tensor == tensor]
        return all(self._is_before(writer, s) and self._same_element(s, r, writer) for s, r in readers)

    def _is_before(self, writer: Statement, s: Statement) -> bool:
        return relation_in_time(*(self.schedule.nests[x.name].path for x in (writer, s)))[1] == "before"

    def _writers(self, tensor: str) -> list[Statement]:
        return [s for s in self.inside if s.write.tensor == tensor]

    # -- what changes nothing

    def _idle(self, s: Statement) -> bool:
        """Whether a statement leaves its element as it is."""
        match s.body:
            case Apply("select", (condition, _, other)):
                return self._is_false(s, condition) and _keeps(self.schedule, s, other)
            case _:
                return False

    def _is_false(self, s: Statement, condition: Expr) -> bool:
        """Whether a condition of a statement is false where the chosen one is."""
        match condition:
            case Apply("and", parts):
                return any(self._is_false(s, part) for part in parts)
            case Apply("select", (first, value, other)):
                no = isinstance(other, Const) and not other.value
                return self._is_false(s, first) and (no or self._is_false(s, other)) or (
                    self._is_false(s, value) and (no or self._is_false(s, other))
                )
            case Read(position):
                return self._reads_false(s, s.reads[position])
            case _:
                return False

    def _reads_false(self, s: Statement, access: Access) -> bool:
        """Whether what is read is the chosen bool, or one that is false where that is."""
        writers = self._writers(access.tensor) if access.tensor in self.private else []
        if len(writers) != 1 or not self._same_element(s, access, writers[0]):
            return False
        (writer,) = writers
        return writer is self.chosen or writer.combiner is None and self._is_false(writer, writer.body)

    def _same_element(self, s: Statement, access: Access, writer: Statement) -> bool:
        """Whether an instance reads what the writer's for the same iterators writes in the same iteration, or the only
        element that there is. Lanes write elements of their own.
        """
        if access.guard or access.indirect or writer.write.indirect:
            return False
        found = self._place(s, access)
        if found is not None and found == self._place(writer, writer.write):
            return True
        nest, other = (self.schedule.nests[x.name] for x in (s, writer))
        around = self.schedule.outer(self.loop)
        alike = s.iterators == writer.iterators and access.index == writer.write.index
        if not alike or nest.expressions(around) != other.expressions(around):
            return False
        inner = other.names[len(around) :]
        lanes = len(inner) == 0 or (len(inner) == 1 and self.schedule.kind(inner[0]) == "vector")
        domains = [bound_domain(self.schedule.program, x).reset_tuple_id() for x in (s, writer)]
        return lanes and domains[0].is_subset(domains[1])

    def _place(self, s: Statement, access: Access) -> tuple[int, ...] | None:
        """The only element that an access is to; None where there are more."""
        ranges = [] if access.indirect else [range_of(self.schedule.program, s, x) for x in access.affine_index]
        found = tuple(r[0] for r in ranges if r is not None and r[0] == r[1])
        return None if access.indirect or len(found) != len(ranges) else found

    # -- what is as it was in the iteration before

    def _stays_false(self, part: Expr) -> bool:
        match part:
            case Apply("lt" | "le", (IndexValue(index), other)) | Apply("gt" | "ge", (other, IndexValue(index))):
                return self._rises(index) and self._same_value(self.chosen, other)
            case _:
                return self._same_value(self.chosen, part)

    def _rises(self, index: Affine) -> bool:
        iterator = self._iterator(self.chosen)
        if iterator is None or (step := index.coefficient(iterator)) < 0:
            return False
        return iterator not in (index - step * var(iterator)).names

    def _same_value(self, s: Statement, value: Expr) -> bool:
        """Whether an expression of a statement is the same in the next iteration, where nothing is changed meanwhile.
        """
        iterator = self._iterator(s)
        if iterator is None:
            return False
        for e in walk(value):
            if isinstance(e, IndexValue) and iterator in e.index.names:
                return False
            if isinstance(e, Read) and not self._same_element_read(s, s.reads[e.position], iterator):
                return False
        return True

    def _same_element_read(self, s: Statement, access: Access, iterator: str) -> bool:
        if any(iterator in c.expr.names for c in access.guard):
            return False
        for subscript in access.index:
            if isinstance(subscript, ReadIndex):
                if not self._same_element_read(s, s.reads[subscript.position], iterator):
                    return False
            elif iterator in subscript.names:
                return False
        return access.tensor not in self.private or all(self._is_steady(w) for w in self._writers(access.tensor))

    def _is_steady(self, s: Statement) -> bool:
        """Whether a statement writes the same in the next iteration, to the same elements of a private tensor."""
        known = self._steady.get(s.name)
        if known is None:
            self._steady[s.name] = True  # of what it reads of its own target, the first write decides
            iterator = self._iterator(s)
            places = iterator is not None and not s.write.indirect and all(
                iterator not in x.names for x in s.write.affine_index
            )  # fmt: skip
            known = self._steady[s.name] = places and self._plain(s) and self._same_value(s, s.body)
        return known

    def _plain(self, s: Statement) -> bool:
        """Whether each iteration has the same instances of a statement."""
        domain = bound_domain(self.schedule.program, s)
        return self._iterator(s) is not None and box_bounds(domain, s.iterators) is not None

    def _iterator(self, s: Statement) -> str | None:
        """The iterator of a statement that the loop counts, one by one."""
        value = self.schedule.nests[s.name].loops[self.loop]
        found = [n for n in value.names if n in s.iterators]
        return found[0] if len(found) == 1 and (value - var(found[0])).is_constant else None


def _parts(condition: Expr) -> Iterator[Expr]:
    match condition:
        case Apply("and", parts):
            for part in parts:
                yield from _parts(part)
        case _:
            yield condition


def _keeps(schedule: Schedule, s: Statement, value: Expr) -> bool:
    """Whether a value that a statement writes, or combines with its target, leaves that as it is."""
    if s.combiner is None:
        return isinstance(value, Read) and _same_place(s, s.reads[value.position], s.write)
    dtype = schedule.program.tensor[s.write.tensor].dtype
    plain = value.argument if isinstance(value, Cast) and value.dtype == dtype else value
    if not isinstance(plain, Const) or not is_integer(dtype):  # -0.0 + 0.0 is 0.0
        return False
    return plain.value == s.combiner.identity(dtype).value


def _same_place(s: Statement, a: Access, b: Access) -> bool:
    """Whether two accesses of a statement are to one element, by subscripts that are alike."""
    pairs = [*zip(a.index, b.index, strict=False)]
    return (a.tensor, a.guard, len(a.index)) == (b.tensor, b.guard, len(b.index)) and all(
        _same_place(s, s.reads[x.position], s.reads[y.position])
        if isinstance(x, ReadIndex) and isinstance(y, ReadIndex)
        else x == y
        for x, y in pairs
    )
