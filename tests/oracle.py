"""What is legal, found the slow way: every instance is enumerated, ordered and executed on symbolic values.

Nothing here asks isl about order, dependences or last writers: isl only spells out the constraints of a domain, which
are enumerated in Python. `Oracle(program).verdict(schedule)` lists what a schedule of the program does wrong:

- `order`: two instances of the source program that touch one element, one of them writing, run the other way round
  (the updates of one reduction among themselves may);
- `value`: a read, or an element of a result, gets another value than in the source program. A value is a token: which
  instance wrote it, with which contributions if it is a reduction. Copies pass tokens on, merges of partial results
  their contributions;
- `parallel`: two iterations of a parallel, vector or unit loop touch one cell, one of them writing (the updates of one
  reduction may meet in a unit, and in lanes that all update one cell);
- `instances`: an instance of the source program runs never, twice, or is none;
- `bounds`: an element outside of its tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import gcd
from typing import Literal

import islpy as isl
import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Constraint, FloorDiv, Mod, Var
from poly.program import Access, Program, Statement, Tensor
from poly.scheduling.flow import END
from poly.scheduling.flow import NEUTRAL as NEUTRAL_NAME
from poly.scheduling.schedule import Schedule
from poly.sets import conjunctions_of

Ints = npt.NDArray[np.int64]
Instance = tuple[str, tuple[int, ...]]
Cell = tuple[str, tuple[int, ...], tuple[int, ...]]
Token = tuple[object, ...]
Range = tuple[Ints | int, Ints | int]
FAR = 10_000
NEUTRAL: Token = ("neutral",)


# ---- points of a domain


def range_of(expression: Affine, env: Mapping[str, Range]) -> Range:
    """Least and greatest value of an expression where every name has a range."""
    low: Ints | int = expression.constant
    high: Ints | int = expression.constant
    for atom, c in expression.terms:
        match atom:
            case Var(name):
                a, b = env[name]
            case FloorDiv(argument, divisor):
                a, b = (v // divisor for v in range_of(argument, env))
            case Mod(argument, divisor):
                x, y = range_of(argument, env)
                same = np.equal(x // divisor, y // divisor)
                a, b = np.where(same, x % divisor, 0), np.where(same, y % divisor, divisor - 1)
        low, high = (low + c * a, high + c * b) if c > 0 else (low + c * b, high + c * a)
    return low, high


def possible(constraint: Constraint, env: Mapping[str, Range]) -> npt.NDArray[np.bool_]:
    """Where a constraint may hold for values in the ranges; exact where every range is one value."""
    low, high = range_of(constraint.expr, env)
    return np.asarray((low <= 0) & (high >= 0) if constraint.equality else high >= 0)


def bounding_box(piece: Sequence[Constraint], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Bounds of every name by propagation through the constraints."""
    box = {n: (-FAR, FAR) for n in names}
    for _ in range(60):
        before = dict(box)
        for constraint in piece:
            for sign in (1, -1) if constraint.equality else (1,):
                expr = constraint.expr * sign
                for atom, c in expr.terms:
                    if not isinstance(atom, Var):
                        continue
                    rest = expr - Affine(((atom, c),))
                    most = int(range_of(rest, box)[1])  # c*x >= -most
                    low, high = box[atom.name]
                    box[atom.name] = (max(low, -(most // c)), high) if c > 0 else (low, min(high, most // -c))
        if box == before or any(a > b for a, b in box.values()):
            break
    if all(-FAR < a and b < FAR for a, b in box.values()):
        return box
    rows = linear_rows(piece)
    return {n: bounds_of(rows, n) for n in names}


Row = tuple[tuple[tuple[str, int], ...], int]


def linear_rows(piece: Sequence[Constraint]) -> set[Row]:
    """Constraints as coefficients and constants of `>= 0`; a floor division is a name of its own with its bounds."""
    rows: set[Row] = set()

    def flat(expression: Affine) -> dict[str, int]:
        total: dict[str, int] = {"": expression.constant}
        for atom, c in expression.terms:
            match atom:
                case Var(name):
                    parts = {name: 1}
                case FloorDiv(argument, divisor) | Mod(argument, divisor):
                    quotient = f"floor {argument} {divisor}"
                    inner = flat(argument)
                    rest = inner | {quotient: -divisor}
                    add(rest)
                    add({n: -v for n, v in rest.items()} | {"": divisor - 1 - rest[""]})
                    parts = {quotient: 1} if isinstance(atom, FloorDiv) else rest
            for name, value in parts.items():
                total[name] = total.get(name, 0) + c * value
        return total

    def add(total: Mapping[str, int]) -> None:
        rows.add(normal({n: v for n, v in total.items() if n}, total[""]))

    for constraint in piece:
        add(flat(constraint.expr))
        if constraint.equality:
            add(flat(-constraint.expr))
    return rows


def normal(coefficients: Mapping[str, int], constant: int) -> Row:
    kept = tuple(sorted((n, v) for n, v in coefficients.items() if v))
    divisor = gcd(*(v for _, v in kept)) or 1
    return tuple((n, v // divisor) for n, v in kept), constant // divisor


def pairs_with(rows: set[Row], name: str) -> int:
    """How many rows come out of eliminating a name."""
    signs = [dict(c)[name] > 0 for c, _ in rows if name in dict(c)]
    return signs.count(True) * signs.count(False)


def bounds_of(rows: set[Row], name: str) -> tuple[int, int]:
    """Bounds of one name: all others eliminated (Fourier and Motzkin)."""
    while others := {n for coefficients, _ in rows for n, _ in coefficients} - {name}:
        gone = min(sorted(others), key=lambda n, rows=rows: pairs_with(rows, n))
        with_it = [(dict(c), k) for c, k in rows if gone in dict(c)]
        rows = {(c, k) for c, k in rows if gone not in dict(c)}
        for a, k in with_it:
            for b, m in with_it:
                if a[gone] > 0 > b[gone]:
                    x, y = -b[gone], a[gone]
                    rows.add(normal({n: x * a.get(n, 0) + y * b.get(n, 0) for n in {*a, *b}}, x * k + y * m))
        tightest: dict[object, int] = {}
        for c, k in rows:
            tightest[c] = min(k, tightest.get(c, k))
        rows = {(c, tightest[c]) for c, _ in rows}
    lower = [-(k // c[0][1]) for c, k in rows if c and c[0][1] > 0]
    upper = [k // -c[0][1] for c, k in rows if c and c[0][1] < 0]
    if any(not c and k < 0 for c, k in rows):
        return 0, -1
    assert lower and upper, f"no bounds for {name}"
    return max(lower), min(upper)


def points_of_piece(piece: Sequence[Constraint], names: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """The points of one conjunction, name by name."""
    if not names:
        if all(bool(possible(c, {})) for c in piece):
            yield ()
        return
    box = bounding_box(piece, names)
    if any(low > high for low, high in box.values()):
        return
    rows: dict[str, Ints] = {}
    count = 1
    for name in names:
        low, high = box[name]
        values = np.arange(low, high + 1)
        rows = {n: np.repeat(v, len(values)) for n, v in rows.items()} | {name: np.tile(values, count)}
        env: dict[str, Range] = {n: (rows[n], rows[n]) if n in rows else box[n] for n in names}
        keep = np.ones(count * len(values), bool)
        for constraint in piece:
            keep &= possible(constraint, env)
        rows = {n: v[keep] for n, v in rows.items()}
        count = int(keep.sum())
    yield from zip(*(v.tolist() for v in rows.values()), strict=True)


@lru_cache(maxsize=4096)
def _points(domain: isl.Set, names: tuple[str, ...], sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[int, ...], ...]:
    pieces = conjunctions_of(domain, names)
    assert pieces is not None, f"{domain} has an existential without a closed form"
    found: set[tuple[int, ...]] = set()
    for piece in pieces:
        found.update(points_of_piece([c.substitute(dict(sizes)) for c in piece], names))
    return tuple(sorted(found))


def points(s: Statement, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """The instances of a statement, sorted."""
    return _points(s.domain, s.iterators, tuple(sorted(sizes.items())))


# ---- events: instances with what they touch, in order


@dataclass(frozen=True)
class Event:
    """One instance. `reads`: the cells of every read, None where its guard fails. `loops`: the values of its loops."""

    statement: Statement
    values: tuple[int, ...]
    time: tuple[int, ...]
    loops: Mapping[str, int]
    reads: tuple[tuple[Cell, ...] | None, ...]
    write: tuple[Cell, ...]

    @property
    def instance(self) -> Instance:
        return self.statement.name, self.values

    @property
    def origin(self) -> Instance:
        """The instance of the source program that this is, or repeats."""
        s = self.statement
        return s.origin or s.name, self.values[s.tile_rank :]

    @property
    def own(self) -> bool:
        return self.statement.combiner is not None and self.statement.reorder


Place = tuple[Mapping[str, Affine], tuple[int | str, ...]]


def places_of_source(program: Program) -> dict[str, Place]:
    """The program's own order: its paths over iterators."""
    return {s.name: ({i: Affine.of(i) for i in s.iterators}, s.path) for s in program.statements}


def home_loops(tensor: Tensor, program: Program, places: Mapping[str, Place]) -> tuple[str, ...]:
    """The loops whose every iteration has this buffer anew: down to the innermost of its scope around all users."""
    paths = [places[s.name][1] for s in program.statements if any(a.tensor == tensor.name for a, _ in s.accesses)]
    shared: list[str] = []
    result: tuple[str, ...] = ()
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        if isinstance(steps[0], str):
            shared.append(steps[0])
            result = tuple(shared) if steps[0] in tensor.scope else result
    return result


def events_of(program: Program, places: Mapping[str, Place]) -> list[Event]:
    """Every instance of every statement, in the order of the paths."""
    sizes = program.binding
    homes = {t.name: home_loops(t, program, places) for t in program.tensors}
    extents = {t.name: t.extents(sizes) for t in program.tensors}
    found: list[Event] = []
    for s in program.statements:
        instances = points(s, sizes)
        if not instances:
            continue
        columns: dict[str, Ints | int] = {
            **sizes, **{i: np.array([p[k] for p in instances]) for k, i in enumerate(s.iterators)}
        }  # fmt: skip
        loops, path = places[s.name]
        count = len(instances)
        values = {name: column(e, columns, count) for name, e in loops.items()}
        times = rows([values[step] if isinstance(step, str) else [step] * count for step in path], count)
        reads = [
            cells(a, columns, count, [values[name] for name in homes[a.tensor]], extents[a.tensor]) for a in s.reads
        ]
        write = cells(
            s.write, columns, count, [values[name] for name in homes[s.write.tensor]], extents[s.write.tensor]
        )
        for k, instance in enumerate(instances):
            target = write[k]
            assert target is not None
            where = {name: v[k] for name, v in values.items()}
            found.append(Event(s, instance, times[k], where, tuple(r[k] for r in reads), target))
    return sorted(found, key=lambda e: e.time)


def column(expression: Affine, columns: Mapping[str, Ints | int], count: int) -> list[int]:
    return np.broadcast_to(np.asarray(expression.evaluate(columns)), (count,)).tolist()


def rows(columns: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def cells(
    access: Access, columns: Mapping[str, Ints | int], count: int, home: Sequence[Sequence[int]], extents: Sequence[int]
) -> list[tuple[Cell, ...] | None]:
    """What an access touches in each instance; an indirect subscript may touch its whole extent."""
    direct = [column(e, columns, count) if isinstance(e, Affine) else None for e in access.index]
    homes = rows(home, count)
    keep = np.ones(count, bool)
    for c in access.guard:
        keep &= np.broadcast_to(np.asarray(c.holds(columns)), (count,))
    result: list[tuple[Cell, ...] | None] = []
    for k in range(count):
        if not keep[k]:
            result.append(None)
        elif all(d is not None for d in direct):
            result.append(((access.tensor, homes[k], tuple(d[k] for d in direct if d is not None)),))
        else:
            choices = [range(n) if d is None else (d[k],) for d, n in zip(direct, extents, strict=True)]
            result.append(tuple((access.tensor, homes[k], element) for element in product(*choices)))
    return result


# ---- values


@dataclass
class Trace:
    """What an execution on tokens saw: for every instance its reads, its own target's first (None: has none)."""

    seen: dict[Instance, tuple[Token | None, ...]] = field(default_factory=dict)
    cells: dict[Cell, Token] = field(default_factory=dict)


def untouched(source: Program, cell: Cell) -> Token:
    """The content of a cell before the first write: of a tensor of the source program its own, of a buffer nothing."""
    tensor, home, element = cell
    return ("init", tensor, element) if tensor in source.tensor else ("poison", tensor, home, element)


def execute(source: Program, events: Sequence[Event]) -> Trace:
    """Run events on tokens."""
    trace = Trace()

    def load(group: tuple[Cell, ...]) -> Token:
        tokens = [trace.cells.get(c) or untouched(source, c) for c in group]
        return tokens[0] if len(tokens) == 1 else ("any", frozenset(tokens))

    for event in events:
        s = event.statement
        read = [("fill", r.fill) if c is None else load(c) for c, r in zip(event.reads, s.reads, strict=True)]
        if s.copies:
            for cell in event.write:
                trace.cells[cell] = read[0]
            continue
        if s.partial:
            if s.combiner is not None:
                trace.seen[event.instance] = (without_own(read[0], s.partial),)
            for cell in event.write:
                old = trace.cells.get(cell) or untouched(source, cell)
                trace.cells[cell] = NEUTRAL if s.combiner is None else merged(old, read[0], s.partial)
            continue
        own = load(event.write) if s.combiner else None
        if own is not None and event.own:
            own = without_own(own, event.origin[0])
        trace.seen[event.instance] = (own, *read)
        for cell in event.write:
            old = trace.cells.get(cell) or untouched(source, cell)
            new = updated(old, event.origin) if event.own else ("write", event.origin)
            trace.cells[cell] = new if len(event.write) == 1 else ("maybe", new, old)
    return trace


def updated(old: Token, instance: Instance) -> Token:
    """A reduction's target after one more contribution; a second time is not the same."""
    if old[0] == "sum" and old[2] == instance[0]:
        done = old[3]
        assert isinstance(done, frozenset)
        return ("twice", instance, old) if instance in done else ("sum", old[1], instance[0], done | {instance})
    return ("sum", old, instance[0], frozenset([instance]))


def merged(old: Token, partial: Token, statement: str) -> Token:
    """A reduction's target after the contributions of a partial result that began with the neutral element."""
    if partial == NEUTRAL:
        return old
    if partial[:3] != ("sum", NEUTRAL, statement):
        return ("bad", old, partial)
    parts = partial[3]
    assert isinstance(parts, frozenset)
    if old[0] != "sum" or old[2] != statement:
        return ("sum", old, statement, parts)
    done = old[3]
    assert isinstance(done, frozenset)
    return ("twice", min(parts & done), old) if parts & done else ("sum", old[1], statement, done | parts)


def without_own(token: Token, statement: str) -> Token:
    """What a reduction started from: partial results of its own are not told apart."""
    while token[0] == "sum" and token[2] == statement:
        inner = token[1]
        assert isinstance(inner, tuple)
        token = inner
    return token


def sources(token: object) -> frozenset[tuple[str, tuple[int, ...]]]:
    """The instances and elements that a token is made of."""
    match token:
        case ("write", (str(name), tuple(values))):
            return frozenset([(name, values)])
        case ("init", str(tensor), tuple(element)) | ("poison", str(tensor), _, tuple(element)):
            return frozenset([(tensor, element)])
        case ("sum", base, str(), frozenset(parts)):
            return sources(base) | frozenset(parts)
        case ("maybe" | "twice", first, old):
            return sources(first) | sources(old) | sources(("write", first))
        case ("neutral",):
            return frozenset([(NEUTRAL_NAME, ())])
        case ("bad", old, partial):
            return sources(old) | sources(partial)
        case ("any", frozenset(tokens)):
            return frozenset(leaf for t in tokens for leaf in sources(t))
        case _:
            return frozenset()


# ---- the verdict


Kind = Literal["order", "value", "parallel", "instances", "bounds"]


@dataclass(frozen=True)
class Violation:
    """`first`, `second`: the instances (or elements) concerned, as `(name, values)`; `detail` is for people."""

    kind: Kind
    first: Instance
    second: Instance
    detail: str = ""


def conflicts(touched: Iterable[tuple[int, Event]]) -> Iterator[tuple[int, int]]:
    """Pairs of numbered events, smaller number first, that touch one cell, one of them writing it.

    Two updates of one reduction that only meet in its target do not count.
    """
    by_cell: dict[Cell, list[tuple[int, str, str]]] = {}
    for k, event in touched:
        for group in event.reads:
            for cell in group or ():
                by_cell.setdefault(cell, []).append((k, "read", event.origin[0]))
        for cell in event.write:
            kind = "own" if event.own else "write"
            by_cell.setdefault(cell, []).append((k, kind, event.origin[0]))
    for group in by_cell.values():
        if all(kind == "read" for _, kind, _ in group):
            continue
        for n, (a, first, s) in enumerate(group):
            for b, second, t in group[n + 1 :]:
                if a != b and not first == second == "read" and not (first == second == "own" and s == t):
                    yield (a, b) if a < b else (b, a)


class Oracle:
    """Judges schedules of one program; every size of it is bound."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = events_of(program, places_of_source(program))
        self.trace = execute(program, self.events)
        self.number = {e.instance: k for k, e in enumerate(self.events)}
        self.pairs: tuple[Ints, Ints] = self._pairs(enumerate(self.events))

    @staticmethod
    def _pairs(numbered: Iterable[tuple[int, Event]]) -> tuple[Ints, Ints]:
        found = np.array(sorted(set(conflicts(numbered))), np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def verdict(self, schedule: Schedule) -> list[Violation]:
        """Everything a schedule of the program does wrong; [] where it is legal."""
        places = {name: (nest.loops, nest.path) for name, nest in schedule.nests.items()}
        events = events_of(schedule.program, places)
        bounds = list(self._outside(schedule.program, events))
        trace = execute(self.program, events)
        return [
            *self._instances(schedule.program, events), *self._order(events),
            *self._values(events, trace), *self._marks(schedule, events), *self._unmet(schedule, events), *bounds,
        ]  # fmt: skip

    def _instances(self, program: Program, events: Sequence[Event]) -> Iterator[Violation]:
        """Each instance of the source program runs once; all of a statement may be missing, if recomputed."""
        count: dict[Instance, int] = {}
        for event in events:
            if not event.statement.copies and not event.statement.recomputed and not event.statement.partial:
                count[event.origin] = count.get(event.origin, 0) + 1
        again = {s.origin for s in program.statements if s.recomputed}
        gone = again - {name for name, _ in count}
        for event in events:
            if event.origin not in self.number and event.statement.recomputed:
                yield Violation("instances", event.origin, event.instance, "recomputes no instance")
        for instance in self.number:
            if count.get(instance, 0) != 1 and not (instance not in count and instance[0] in gone):
                yield Violation("instances", instance, instance, f"runs {count.get(instance, 0)} times")
        for instance in count:
            if instance not in self.number:
                yield Violation("instances", instance, instance, "is no instance")
        last: dict[tuple[str, tuple[int, ...]], Event] = {}
        for event in events:
            twin = last.setdefault((event.statement.name, event.time), event)
            if twin is not event:
                yield Violation("instances", twin.instance, event.instance, "run at the same time")

    def _order(self, events: Sequence[Event]) -> Iterator[Violation]:
        position = np.full(len(self.events), -1)
        running: dict[int, Event] = {}
        for k, event in enumerate(events):
            number = self.number.get(event.origin, -1)
            if number >= 0 and not event.statement.copies and not event.statement.recomputed:  # partial: no number
                position[number] = k
                running[number] = event
        first, second = self.pairs
        wrong = (position[first] > position[second]) & (position[second] >= 0)
        for a, b in zip(first[wrong].tolist(), second[wrong].tolist(), strict=True):
            yield Violation("order", running[a].instance, running[b].instance, "runs after the second")

    def _values(self, events: Sequence[Event], trace: Trace) -> Iterator[Violation]:
        for event in events:
            if event.statement.copies:
                continue
            if event.statement.partial:
                for token in trace.seen.get(event.instance, ()):
                    if token != NEUTRAL:
                        yield from _differing(event.instance, NEUTRAL, token)
                continue
            expected = self.trace.seen.get(event.origin)
            if expected is None:
                for token in trace.seen[event.instance]:
                    yield from _differing(event.instance, None, token)
                continue
            for k, (a, b) in enumerate(zip(expected, trace.seen[event.instance], strict=True)):
                if a != b and not (k == 0 and b == NEUTRAL):  # a partial result is judged where it is merged and read
                    yield from _differing(event.instance, a, b)
        for tensor in self.program.outputs:
            for element in product(*(range(n) for n in tensor.extents(self.program.binding))):
                cell = (tensor.name, (), element)
                blank = untouched(self.program, cell)
                a, b = self.trace.cells.get(cell, blank), trace.cells.get(cell, blank)
                if a != b:
                    yield from _differing((END, element), a, b)

    def _marks(self, schedule: Schedule, events: Sequence[Event]) -> Iterator[Violation]:
        for loop, mark in schedule.marks.items():
            if mark.kind not in ("parallel", "vector", "unit") or loop not in schedule.loop_statements:
                continue
            groups: dict[tuple[int, ...], list[tuple[int, Event]]] = {}
            around = schedule.outer(loop)[:-1]
            for k, event in enumerate(events):
                if loop in event.loops:
                    groups.setdefault(tuple(event.loops[o] for o in around), []).append((k, event))
            reduced = lane_reductions(events, loop) if mark.kind == "vector" else frozenset[str]()
            for group in groups.values():
                for a, b in set(conflicts(group) if mark.kind == "unit" else at_once(group, reduced)):
                    if events[a].loops[loop] != events[b].loops[loop]:
                        yield Violation("parallel", events[a].instance, events[b].instance, f"conflict in loop {loop}")

    def _unmet(self, schedule: Schedule, events: Sequence[Event]) -> Iterator[Violation]:
        """Conflicts between a parallel loop and those that threads reach from it without a meeting."""
        next_of = {n: m.nowait for n, m in schedule.marks.items() if m.nowait and n in schedule.loop_statements}
        for loop in next_of:
            other, passed = next_of[loop], {loop}
            while other in schedule.loop_statements and other not in passed:
                passed.add(other)
                around = [o for o in schedule.outer(loop)[:-1] if o in schedule.outer(other)]
                groups: dict[tuple[int, ...], list[tuple[int, Event]]] = {}
                for k, event in enumerate(events):
                    if loop in event.loops or other in event.loops:
                        groups.setdefault(tuple(event.loops[o] for o in around), []).append((k, event))
                for a, b in {pair for group in groups.values() for pair in at_once(group)}:
                    if (loop in events[a].loops) != (loop in events[b].loops):
                        yield Violation("parallel", events[a].instance, events[b].instance, f"{loop} to {other}")
                other = next_of.get(other, "")

    def _outside(self, program: Program, events: Sequence[Event]) -> Iterator[Violation]:
        extents = {t.name: t.extents(program.binding) for t in program.tensors}
        for event in events:
            for group in (*event.reads, event.write):
                for tensor, _, element in group or ():
                    if not all(0 <= e < n for e, n in zip(element, extents[tensor], strict=True)):
                        yield Violation("bounds", event.instance, (tensor, element), "is outside")


def lane_reductions(events: Iterable[Event], loop: str) -> frozenset[str]:
    """Reductions whose iterations of a loop update one cell, whatever the values of their other loops."""
    cells: dict[tuple[str, tuple[int, ...]], set[Cell]] = {}
    for event in events:
        if event.own and loop in event.loops:
            others = tuple(v for name, v in event.loops.items() if name != loop)
            cells.setdefault((event.statement.name, others), set()).update(event.write)
    return frozenset(n for n, _ in cells) - {n for (n, _), found in cells.items() if len(found) > 1}


def at_once(
    group: Sequence[tuple[int, Event]], reduced: frozenset[str] = frozenset()
) -> Iterator[tuple[int, int]]:
    """Conflicts between events where updates of a reduction conflict too, but for those of `reduced` statements."""
    by_cell: dict[Cell, list[tuple[int, bool, str]]] = {}
    for k, event in group:
        for cell in (c for read in event.reads for c in read or ()):
            by_cell.setdefault(cell, []).append((k, False, ""))
        for cell in event.write:
            name = event.statement.name
            by_cell.setdefault(cell, []).append((k, True, name if name in reduced else ""))
    for touched in by_cell.values():
        for n, (a, writes, first) in enumerate(touched):
            for b, also, second in touched[n + 1 :]:
                if a != b and (writes or also) and not (first and first == second):
                    yield (a, b) if a < b else (b, a)


def _differing(reader: Instance, expected: Token | None, actual: Token | None) -> Iterator[Violation]:
    """One violation for every source that is in one of two tokens only."""
    different = sources(expected) ^ sources(actual)
    if actual is not None and actual[0] == "twice":
        different |= sources(("write", actual[1]))
    for source in different or {("nothing", ())}:
        yield Violation("value", source, reader, f"{expected} expected, {actual} found")


# ---- witnesses

_INSTANCE = re.compile(r"(.+?)\[([^\]]*)\]")


def parse_instance(text: str) -> Instance:
    """`S[i=0, j=3]` as (name, values)."""
    match = _INSTANCE.match(text)
    assert match is not None, text
    inside = [part.partition("=")[2] for part in match[2].split(",") if part.strip()]
    return match[1], tuple(int(v) for v in inside)


def is_real(violations: Sequence[Violation], witness: tuple[str, str], kind: str) -> bool:
    """Whether a witness names a pair that the oracle found, too."""
    pair = (parse_instance(witness[0]), parse_instance(witness[1]))
    kinds = ("order", "instances") if kind == "order" else (kind,)
    for v in violations:
        if v.kind in kinds and pair in ((v.first, v.second), (v.second, v.first)):
            return True
    return False
