"""Explanations of programs and schedules: what they do, what they move, and why a schedule is legal, as data.

Figures are fields of frozen dataclasses; `str` gives plain text, a notebook gets tables. See `poly.explainer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter

from poly.document import (
    Document,
    Explanation,
    Table,
    Text,
    bytes_text,
    count_text,
    ratio_text,
    seconds_text,
    some,
    table,
)
from poly.document import counted as number_of
from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.program import Program, Statement
from poly.relations import bound_domain, expressions_map
from poly.scheduling.dependences import Dependence, SourceFacts
from poly.scheduling.paths import Band, Ordered, TreeNode, statements_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import tile_of
from poly.scheduling.traffic import Traffic, compulsory_bytes, count_points, tensor_bytes, traffic
from poly.sets import fix_sizes, within_budget

_OPERATIONS = 1_000_000


@dataclass(frozen=True, repr=False)
class ProgramExplanation(Explanation):
    """`instances`: points of each statement's domain, None where a size is free. `compulsory`: bytes, see `Traffic`."""

    program: Program
    instances: Mapping[str, int | None]
    dependences: tuple[Dependence, ...]
    compulsory: int | None

    @property
    def document(self) -> Document:
        program = self.program
        statements = [
            (s.name, count_text(self.instances[s.name]), _kind(s), _names(r.tensor for r in s.reads), s.write.tensor)
            for s in program.statements
        ]
        tensors = [
            (t.name, t.role, f"{t.dtype}[{', '.join(map(str, t.shape))}]", bytes_text(tensor_bytes(program, t)))
            for t in program.tensors
        ]
        ties = [(d.kind, d.source, d.sink, d.tensor, _relation_text(d)) for d in self.dependences]
        facts = (
            ("statements", str(len(statements))),
            ("dependences", _counts(self.dependences)),
            ("compulsory bytes", bytes_text(self.compulsory)),
        )
        return Document(
            f"program {program.name}",
            facts,
            (
                table("tensors", ("name", "role", "type", "bytes"), tensors),
                table("statements", ("name", "instances", "kind", "reads", "writes"), statements),
                table("dependences", ("kind", "source", "sink", "tensor", "instances"), ties),
                Text("text", str(program), folded=True),
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class LoopFacts:
    """A loop of the tree. `values`: how many different values it takes in all, None where not counted."""

    name: str
    depth: int
    kind: str
    values: int | None
    statements: tuple[str, ...]


class Loops(tuple[LoopFacts, ...]):
    """Loops in the order of their tree, which print as a table."""

    __slots__ = ()

    @property
    def table(self) -> Table:
        rows = [("  " * f.depth + f.name, f.kind, count_text(f.values), some(f.statements)) for f in self]
        return table("loops", ("loop", "runs", "values", "statements"), rows)

    def __str__(self) -> str:
        return "\n".join(self.table.lines())


@dataclass(frozen=True)
class BufferFacts:
    """A promoted tensor: one copy for each iteration of the loops in `scope`."""

    name: str
    origin: str
    space: str
    extents: tuple[str, ...]
    bytes: int | None
    scope: tuple[str, ...]


@dataclass(frozen=True)
class FootprintFacts:
    """The box of `tensor` that one iteration of `loop` touches; `extents` empty where there is none."""

    loop: str
    tensor: str
    extents: tuple[str, ...]
    bytes: int | None


@dataclass(frozen=True)
class Checks:
    """What the checks looked at just now, and how long that took. `marks`: parallel, vector and unit loops."""

    dependences: int
    relaxed: int
    marks: int
    buffers: int
    copies: int
    parts: int
    seconds: float

    @property
    def lines(self) -> tuple[str, ...]:
        """One sentence for each check."""
        relaxed = f", {self.relaxed} of a reduction with itself may change order" if self.relaxed else ""
        points = f"{number_of(self.dependences, 'dependence')} {'points' if self.dependences == 1 else 'point'}"
        every = "the statement runs" if self.parts == 1 else f"the {self.parts} statements run"
        marks = number_of(self.marks, "parallel, vector or unit loop", "parallel, vector and unit loops")
        through = f"{number_of(self.buffers, 'buffer')} and {number_of(self.copies, 'copy', 'copies')}"
        return (
            f"order: {points} forward in time{relaxed}",
            f"parts: {every} every instance of the source program exactly once",
            f"marks: {marks} {'carries' if self.marks == 1 else 'carry'} no dependence",
            f"values: reads through {through} get the source program's values",
            f"all checked again just now, in {seconds_text(self.seconds)}",
        )


@dataclass(frozen=True, repr=False)
class ScheduleExplanation(Explanation):
    """`traffic`: bytes between memories, as counted; `checks`: why the schedule is legal."""

    schedule: Schedule
    program: ProgramExplanation
    loops: Loops
    buffers: tuple[BufferFacts, ...]
    footprints: tuple[FootprintFacts, ...]
    traffic: Traffic
    checks: Checks

    @property
    def document(self) -> Document:
        buffers = [
            (b.name, b.origin, b.space, _box(b.extents), bytes_text(b.bytes), ", ".join(b.scope)) for b in self.buffers
        ]
        prints = [(f.loop, f.tensor, _box(f.extents), bytes_text(f.bytes)) for f in self.footprints]
        pairs = [(source, target, bytes_text(moved)) for (source, target), moved in self.traffic.pairs.items()]
        least = bytes_text(self.traffic.compulsory)
        dram = f"{bytes_text(self.traffic.between('dram'))}, {ratio_text(self.traffic.ratio)} the compulsory {least}"
        if self.traffic.ratio is None and (free := self.schedule.source.parameters):
            given = ", ".join(f"{name}=100" for name in free)
            dram = f"not counted, as sizes are free: explain(schedule, {given}) counts for some"
        return Document(
            f"schedule of {self.schedule.source.name}: {number_of(len(self.schedule.log), 'edit')}",
            (("array traffic", f"{dram}; caches are not counted"), ("why legal", "\n".join(self.checks.lines))),
            (
                self.loops.table,
                table("promoted buffers", ("buffer", "of", "memory", "extents", "bytes", "one for each"), buffers),
                table("footprints of one iteration", ("loop", "tensor", "box", "bytes"), prints),
                table("bytes moved, caches not counted", ("from", "to", "bytes"), pairs),
                Text("script", self.schedule.script or "(no edits)"),
                self.program.document,
            ),
        )


def explain_program(program: Program, facts: SourceFacts | None = None) -> ProgramExplanation:
    """Statements with their instances, and dependences."""
    instances = {s.name: _points(program, s) for s in program.statements}
    found = (facts or SourceFacts(program)).dependences
    return ProgramExplanation(program, instances, found, compulsory_bytes(program))


def explain_schedule(schedule: Schedule) -> ScheduleExplanation:
    """Loops, buffers, footprints and traffic of a schedule, which is checked once more."""
    loops = schedule.loops
    return ScheduleExplanation(
        schedule, explain_program(schedule.source, schedule.facts), loops, buffers_of(schedule),
        tuple(_footprints(schedule, loops)), traffic(schedule), _checks(schedule),
    )  # fmt: skip


def buffers_of(schedule: Schedule) -> tuple[BufferFacts, ...]:
    """The promoted and recomputed tensors of a schedule."""
    known = schedule.source.tensor
    return tuple(
        BufferFacts(t.name, t.origin, t.space, tuple(map(str, t.shape)), tensor_bytes(schedule.program, t), t.scope)
        for t in schedule.program.tensors
        if t.name not in known
    )


def _points(program: Program, s: Statement) -> int | None:
    domain = bound_domain(program, s)
    return within_budget(_OPERATIONS, lambda: count_points(domain), lambda: None)


def _names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _kind(s: Statement) -> str:
    if s.external is not None:
        return f"external {s.external.kind}"
    return (
        "assignment" if s.combiner is None else f"reduction {s.combiner.symbol}=" + ("" if s.reorder else ", in order")
    )


def _counts(dependences: tuple[Dependence, ...]) -> str:
    kinds = Counter(d.kind for d in dependences)
    inside = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{len(dependences)} ({inside})" if inside else "0"


def _relation_text(d: Dependence) -> str:
    text = str(d.relation)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _box(extents: tuple[str, ...]) -> str:
    return f"[{', '.join(extents)}]" if extents else "no box"


def loop_facts(schedule: Schedule, node: TreeNode, depth: int = 0) -> tuple[LoopFacts, ...]:
    """The loops of a part of the tree, outer ones first."""
    match node:
        case Band(loop, child):
            names = statements_of(child)
            facts = LoopFacts(loop, depth, schedule.kind(loop), _values(schedule, loop, names[0]), names)
            return (facts, *loop_facts(schedule, child, depth + 1))
        case Ordered(children):
            return tuple(facts for child in children for facts in loop_facts(schedule, child, depth))
        case _:
            return ()


def _values(schedule: Schedule, loop: str, statement: str) -> int | None:
    program = schedule.program
    s = program.statement[statement]
    image = expressions_map(s, schedule.nests[statement].expressions([loop]), program.parameters).range()
    bound = fix_sizes(image.intersect_params(program.context), program.binding)
    return within_budget(_OPERATIONS, lambda: count_points(bound), lambda: None)


def _footprints(schedule: Schedule, loops: tuple[LoopFacts, ...]) -> list[FootprintFacts]:
    """Of the tile loops, the ones whose names end in `.o`; of all loops where nothing is tiled."""
    steady = [f for f in loops if f.kind in ("serial", "parallel")]
    chosen = [f for f in steady if f.name.endswith(".o")] or steady
    found: list[FootprintFacts] = []
    for loop in chosen:
        used = {a.tensor for name in loop.statements for a, _ in schedule.program.statement[name].accesses}
        for t in schedule.program.tensors:
            if t.name in used and not t.origin:
                found.append(_footprint(schedule, loop, t.name, size_bytes(t.dtype)))
    return found


def _footprint(schedule: Schedule, loop: LoopFacts, tensor: str, element: int) -> FootprintFacts:
    users = [n for n in loop.statements if any(a.tensor == tensor for a, _ in schedule.program.statement[n].accesses)]
    try:
        box = within_budget(_OPERATIONS, lambda: tile_of(schedule, tensor, loop.name, users).box, lambda: None)
    except ScheduleError:
        box = None
    if box is None:
        return FootprintFacts(loop.name, tensor, (), None)
    total: int | None = element
    for extent in box.extents:
        total = total * extent.constant if total is not None and extent.is_constant else None
    return FootprintFacts(loop.name, tensor, tuple(map(str, box.extents)), total)


def _checks(schedule: Schedule) -> Checks:
    start = perf_counter()
    schedule.check()
    seconds = perf_counter() - start
    relaxed = sum(d.kind == "reduction" for d in schedule.facts.dependences)
    copies = sum(bool(s.copies) for s in schedule.program.statements)
    return Checks(
        len(schedule.facts.dependences) - relaxed, relaxed,
        sum(schedule.kind(loop) in ("parallel", "vector", "unit") for loop in schedule.loop_statements),
        len(buffers_of(schedule)), copies, len(schedule.program.statements) - copies, seconds,
    )  # fmt: skip
