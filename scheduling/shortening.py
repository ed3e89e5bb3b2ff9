"""Loops that end before their last iteration at a place that is known (`shorten`), and why nothing is lost by that.

    for i.o in range(0, 4):
        for j.o in range(0, 8) ends (2*i.o + 2):   # s[i, j] for j > i is wanted by nobody
            ...

What such a loop leaves out are terms of a reduction that may be left out (`poly.program.OptionalTerms`), or what only
instances read that are left out as well. The loops keep their bounds: all other checks are of whole loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import islpy as isl

from poly.affine import Affine, Constraint, FloorDiv, Mod, Var, var
from poly.coefficients import LARGEST, set_of
from poly.errors import IllegalEdit, PolyError, ScheduleError
from poly.program import MOST_SIZE, Statement
from poly.relations import free_sizes
from poly.scheduling.paths import common_prefix
from poly.scheduling.schedule import Mark, Schedule, changed
from poly.scheduling.vectors import Vectors, together
from poly.sets import witness


def why_not(schedule: Schedule, loop: str, at: str) -> str | None:
    """Why a loop cannot end before `at`, whatever that leaves out; None where it can."""
    if schedule.kind(loop) != "serial":
        return "it is not serial"
    try:
        unknown = Affine.of(at).names - set(schedule.outer(loop)[:-1])
    except PolyError as error:
        return f"{at!r} is not affine: {error.message}"
    return f"{at!r} names {', '.join(sorted(unknown))}, no loop around it" if unknown else None


def check_shortened(schedule: Schedule) -> None:
    """Raise `IllegalEdit` where a loop that ends early leaves out what is wanted."""
    ends = ends_of(schedule)
    if ends and (found := _Left(schedule, ends).wanted()) is not None:
        first, second, pairs = found
        what = "" if first is second else f", which {second.name} reads"
        raise IllegalEdit(
            f"loops that end early leave out what {first.name} writes{what}", kind="order",
            witness=witness(pairs, (first.iterators, second.iterators)), where=schedule.source.name,
            hint="shorten first the loops of what reads it, and sums to terms that are optional",
        )  # fmt: skip


def ends_of(schedule: Schedule) -> Mapping[str, Affine]:
    """The loops that end early, and where. Where later edits leave other loops around one, all of it runs."""
    here = ((n, m) for n, m in schedule.marks.items() if n in schedule.loop_statements and m.kind == "serial")
    found = {n: Affine.of(m.ends) for n, m in here if m.ends is not None}
    return {n: at for n, at in found.items() if at.names <= {*schedule.outer(n)[:-1]}}


class _Left:
    """The instances that loops with `ends` leave out, as loop vectors by statement."""

    def __init__(self, schedule: Schedule, ends: Mapping[str, Affine]) -> None:
        self.schedule, self.ends = schedule, ends
        self.vectors = Vectors(schedule)
        self.parameters = free_sizes(schedule.program)
        self.idle: set[str] = set()
        self.out = {s.name: out for s in schedule.program.statements if (out := self._out(s)) is not None}

    def wanted(self) -> tuple[Statement, Statement, isl.Map] | None:
        """A statement whose result is missed, who misses it, and pairs of instances; None where nothing is missed."""
        for name in self.out:
            s = self.schedule.program.statement[name]
            lost = self._lost(s)
            if lost.is_empty():
                continue
            if s.external is not None or self.schedule.program.tensor[s.write.tensor].role != "temporary":
                return s, s, lost.identity()
            for reader, pairs in self._missed(s, lost):
                return s, reader, self.vectors.instances(s, reader, pairs)
        return None

    def _out(self, s: Statement) -> isl.Set | None:
        names = self.schedule.nests[s.name].names
        found: isl.Set | None = None
        for loop in (n for n in names if n in self.ends):
            values = self.vectors.box(s) or dict.fromkeys(names, (0, MOST_SIZE))
            if _largest(self.ends[loop], values) >= LARGEST:
                raise IllegalEdit(
                    f"the end of loop {loop!r}, {self.ends[loop]}, gets larger than native code counts", kind="bounds",
                    where=self.schedule.source.name, hint=f"numbers below {LARGEST}",
                )  # fmt: skip
            beyond = set_of([Constraint(var(loop) - self.ends[loop])], names, self.parameters, s.name)
            found = beyond if found is None else found.union(beyond)
        found = None if found is None else found.intersect(self.vectors.range(s))
        return None if found is None or found.is_empty() else found

    def _lost(self, s: Statement) -> isl.Set:
        """The instances of a statement that are left out, but for terms that its source calls optional."""
        lost = self.vectors.of(s).intersect_range(self.out[s.name]).domain()
        origin = self.schedule.source.statement.get(s.source_name)
        if origin is None or not origin.spare or s.combiner != origin.combiner or s.recomputed:
            return lost
        if s.iterators != origin.iterators:
            return lost
        return lost.subtract(set_of(origin.spare, s.iterators, self.parameters, s.name))

    def _missed(self, s: Statement, instances: isl.Set) -> Iterator[tuple[Statement, isl.Map]]:
        """Who still reads an element that some instances would write, in one iteration of the tensor's loops."""
        tensor = self.schedule.program.tensor[s.write.tensor]
        nest = self.schedule.nests[s.name]
        write = next(t for t in self.vectors.touches(s) if t.write)
        lost = self.vectors.access(write).intersect_domain(instances.apply(self.vectors.of(s)))
        for reader in self.schedule.program.statements:
            shared = common_prefix(nest.path, self.schedule.nests[reader.name].path)
            around = [step for step in shared if isinstance(step, str)]
            private = [k for k, n in enumerate(around) if n in tensor.scope]
            for touch in self.vectors.touches(reader):
                if touch.write or touch.tensor != tensor.name:
                    continue
                read = self.vectors.access(touch)
                if reader.name in self.out:
                    read = read.intersect_domain(read.domain().subtract(self.out[reader.name]))
                pairs = together(lost.apply_range(read.reverse()), private)
                if not pairs.is_empty():
                    yield reader, pairs


def _largest(expression: Affine, values: Mapping[str, tuple[int, int]]) -> int:
    """A bound of the magnitude of all numbers on the way to an expression's value."""
    total = abs(expression.constant)
    for atom, factor in expression.terms:
        match atom:
            case Var(name):
                total += abs(factor) * max(map(abs, values[name]))
            case FloorDiv(argument, divisor) | Mod(argument, divisor):
                total += abs(factor) * max(_largest(argument, values), divisor)
    return total


# ---- where loops of a group can end


def shortened(schedule: Schedule, block: str, rows: int) -> Schedule:
    """The schedule with all loops ended early that lie inside of the loop `block` over blocks of `rows`, and leave out
    what none of a block's rows wants; last ones first, as what they leave out decides for others.
    """
    found = _Ends(schedule, block, rows)
    for loop in reversed([n for n in schedule.loop_statements if block in schedule.outer(n)[:-1]]):
        at = found.of(loop)
        if at is not None and why_not(schedule, loop, str(at)) is None:
            trial = changed(schedule, marks=with_end(schedule, loop, str(at)))
            if _Left(trial, ends_of(trial)).wanted() is None:
                schedule = schedule.shorten(loop, str(at))
    return schedule


def with_end(schedule: Schedule, loop: str, at: str) -> Mapping[str, Mark]:
    """The marks with one more."""
    return {**schedule.marks, loop: replace(schedule.marks.get(loop, Mark()), ends=at)}


class _Ends:
    """From which value on an iterator belongs to what is not wanted, by statement: those of the optional terms of a
    block, then those that run along the same axis of what these read.
    """

    def __init__(self, schedule: Schedule, block: str, rows: int) -> None:
        self.schedule, self.block = schedule, block
        self.along: dict[str, str] = {}
        axes: dict[str, int] = {}
        self.first: Affine | None = None
        for s in reversed(schedule.program.statements):
            origin = schedule.source.statement.get(s.source_name)
            spare = origin.spare if origin is not None else ()
            inner = s.iterators[s.tile_rank :]
            if len(spare) == 1 and (key := self._key(s, spare[0], rows)) is not None:
                self.along[s.name] = key
            elif s.write.tensor in axes and not s.write.indirect:
                own = [i for i in inner if i in s.write.affine_index[axes[s.write.tensor]].names]
                if len(own) == 1:
                    self.along[s.name] = own[0]
            for r in s.reads if s.name in self.along else ():
                own = [k for k, e in enumerate(r.index) if isinstance(e, Affine) and self.along[s.name] in e.names]
                if len(own) == 1 and schedule.program.tensor[r.tensor].role == "temporary":
                    axes.setdefault(r.tensor, own[0])

    def _key(self, s: Statement, condition: Constraint, rows: int) -> str | None:
        """Of terms from `row + c` on, the iterator that counts them; notes from which on no row of a block has any.
        Iterators that are loops around the block may take part in `c`.
        """
        steps = {i: condition.expr.coefficient(i) for i in s.iterators if i in condition.expr.names}
        keys, others = [i for i, c in steps.items() if c == 1], [i for i, c in steps.items() if c == -1]
        if condition.equality or not condition.expr.is_linear or (len(keys), len(others)) != (1, 1):
            return None
        loops = self.schedule.nests[s.name].loops
        if loops.get(self.block) != Affine.of(f"{others[0]}//{rows}"):
            return None
        around = {str(loops[n]): var(n) for n in self.schedule.outer(self.block)[:-1]}
        further = {i: c for i, c in steps.items() if c not in (1, -1)}
        if not further.keys() <= around.keys():
            return None
        first = rows * var(self.block) + rows - 1 - condition.expr.constant
        for i, c in further.items():
            first -= c * around[i]
        self.first = first if self.first is None or self.first == first else None
        return keys[0] if self.first is not None else None

    def of(self, loop: str) -> Affine | None:
        """Where a loop can end: where each of its statements is done with what is wanted; None where that differs."""
        found = {self._end(name, loop) for name in self.schedule.under(loop)}
        return next(iter(found)) if len(found) == 1 else None

    def _end(self, name: str, loop: str) -> Affine | None:
        if self.first is None or name not in self.along:
            return None
        nest, key = self.schedule.nests[name], self.along[name]
        value = nest.loops[loop]
        match value.terms:
            case ((Mod(Affine(((FloorDiv(inside, by), 1),), 0), count), 1),) if inside == var(key):
                around = [n for n in nest.names if nest.loops[n] == var(key) // (by * count)]
                past = (self.first + (by - 1)) // by + value.constant
                return past - var(around[0]) * count if around else None
            case ((FloorDiv(inside, by), 1),) if (inside - var(key)).is_constant:
                past = self.first + inside - var(key) + (by - 1)
                return past // by + value.constant
            case _:
                return self.first + value - var(key) if (value - var(key)).is_constant else None


def shorten(schedule: Schedule, loop: str, at: str) -> Schedule:
    """Let a serial loop end before `at`, an expression of the loops around it: all that it leaves out are terms that
    their statement calls optional, or what nobody reads then.
    """
    from poly.scheduling.edits import finish

    schedule.under(loop)
    if (reason := why_not(schedule, loop, at)) is not None:
        raise ScheduleError(f"loop {loop!r} cannot end early: {reason}", where=schedule.source.name, hint="'2*i.o + 2'")
    at = str(Affine.of(at))  # a text that parses back, for one meaning
    return finish(schedule, changed(schedule, marks=with_end(schedule, loop, at)), "shorten", loop=loop, at=at)
