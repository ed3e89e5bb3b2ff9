"""`explain`: what a program, a schedule, a kernel, a command stream or an engine does, as data that prints.

Programs and schedules are in `poly.scheduling.explanation`; here is what is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poly.document import (
    Document,
    Explanation,
    Text,
    bytes_text,
    count_text,
    counted,
    ratio_text,
    seconds_text,
    some,
    table,
)
from poly.engine import CompiledGroup, Engine, Step
from poly.errors import PolyError
from poly.frontend.nest import Nest
from poly.frontend.notation import parse
from poly.graph import Graph
from poly.loops import For
from poly.machine import Machine
from poly.model_engine import ModelEngine
from poly.program import Program
from poly.scheduling.explanation import (
    ProgramExplanation,
    ScheduleExplanation,
    buffers_of,
    explain_program,
    explain_schedule,
)
from poly.scheduling.io_bound import Bound, io_lower_bound
from poly.scheduling.prediction import Prediction, predict
from poly.scheduling.schedule import Schedule
from poly.scheduling.traffic import compulsory_bytes, tensor_bytes, traffic
from poly.sized_engine import SizedEngine
from poly.tuning import Measured, measured_groups

if TYPE_CHECKING:
    from poly.accel.compiled import StreamKernel
    from poly.accel.timing import Report
    from poly.codegen.kernel import Kernel


@dataclass(frozen=True, repr=False)
class KernelExplanation(Explanation):
    """`seconds`: emitting, compiling and linking; `vector_bits`: of the machine's vectors.

    `bounds`: for every level of `prediction` the bytes that any order of the instances moves into it, at the least.
    `computed`: constants that were made of the program's when compiling, with their bytes (packed weights, say).
    `threads` were asked for; they share the loops `shared`, in the order in which they come to them. `refused`: why the
    schedule is a plainer one than the policy's first. `one_by_one`: vector loops without a form across lanes, why.
    `measured`: where the plan was chosen by measuring.
    """

    schedule: ScheduleExplanation
    machine: Machine
    threads: int
    seconds: float
    vector_bits: int
    instructions: int
    prediction: Prediction
    bounds: tuple[Bound | None, ...]
    computed: Mapping[str, int | None]
    shared: tuple[str, ...] = ()
    refused: str = ""
    one_by_one: Mapping[str, str] = field(default_factory=dict[str, str])
    measured: Measured | None = None

    @property
    def document(self) -> Document:
        p = self.prediction
        rows = [
            (v.name, bytes_text(v.capacity), bytes_text(v.bytes), bytes_text(b.bytes if b else None),
             _times(v.bytes, b.bytes if b else None), "-" if v.cycles is None else count_text(int(v.cycles)))
            for v, b in zip(p.levels, self.bounds, strict=True)
        ]  # fmt: skip
        heads = ("into", "capacity", "bytes", "lower bound", "of bound", "cycles")
        clock = self.machine.clock_mhz
        least = "not known" if p.seconds is None else f"{seconds_text(p.seconds)} at {clock} MHz, limited by {p.limit}"
        used = self.threads if self.shared else 1
        facts = (
            ("machine", f"{self.machine.name}, {counted(self.machine.cores, 'core')}, {used} used"),
            *((("threads", self._threads),) if self.threads > 1 else ()),
            *((("plainer", f"the policy's first schedule had no code: {self.refused}"),) if self.refused else ()),
            ("vectors", f"{self.vector_bits} bits, {self.machine.lanes(4)} lanes of 4 bytes"),
            *((("matrix unit", self._on_tiles),) if self._on_tiles else ()),
            *((("one by one", self._one_by_one),) if self.one_by_one else ()),
            ("code", f"{self.instructions} instructions, emitted and compiled in {seconds_text(self.seconds)}"),
            *((("measured", str(self.measured)),) if self.measured is not None else ()),
            ("operations", count_text(p.operations)),
            ("predicted", f"{least} (caches empty at first)"),
            *((f"constant {n}", f"{bytes_text(b)}, computed when compiling") for n, b in self.computed.items()),
        )
        name = self.schedule.schedule.source.name
        return Document(f"kernel {name}", facts, (table("predicted traffic", heads, rows), self.schedule.document))

    @property
    def _on_tiles(self) -> str:
        """The tensors that lie in the tiles of the matrix unit while it adds up; "" where none does."""
        found = dict.fromkeys(b.origin for b in self.schedule.buffers if b.space in self.machine.tile_spaces)
        return f"unit loops on tiles of {', '.join(found)}" if found else ""

    @property
    def _one_by_one(self) -> str:
        return "; ".join(f"vector loop {name}: {why}" for name, why in self.one_by_one.items())

    @property
    def _threads(self) -> str:
        if self.shared:
            return f"{self.threads} share {', '.join(self.shared)}"
        why = "no loop that carries nothing has work enough for a second thread"
        return f"{self.threads} were asked for, one does it all: {why}"


@dataclass(frozen=True, repr=False)
class StreamExplanation(Explanation):
    """`compulsory`: bytes by tensor, each counted once in each direction; cycles and DMA bytes are in `report`."""

    schedule: ScheduleExplanation
    machine: Machine
    report: Report
    commands: int
    compulsory: Mapping[str, int | None]

    @property
    def document(self) -> Document:
        r = self.report
        engines = [
            (e.name, e.kind, e.commands, e.busy, f"{100 * e.busy / max(1, r.cycles):.1f} %", _causes(e.stalls))
            for e in r.engines
        ]
        moved = [
            (name, way, bytes_text(b), bytes_text(self.compulsory.get(name)), _times(b, self.compulsory.get(name)))
            for way, counts in (("read", r.dram_read), ("written", r.dram_written))
            for name, b in counts.items()
        ]
        micro = r.cycles / max(1, self.machine.clock_mhz)
        facts = (
            ("machine", f"{self.machine.name}, {self.machine.clock_mhz} MHz"),
            ("cycles", f"{count_text(r.cycles)} ({micro:.1f} us)"),
            ("array", f"{count_text(r.macs)} multiply-adds, {r.utilisation:.1%} of what the array could do"),
            ("commands", count_text(self.commands)),
        )
        return Document(
            f"command stream {self.schedule.schedule.source.name}",
            facts,
            (
                table("engines", ("engine", "kind", "commands", "busy", "share", "waited for"), engines),
                table("DMA over DRAM", ("tensor", "", "bytes", "compulsory", "times"), moved),
                self.schedule.document,
            ),
        )


@dataclass(frozen=True)
class GroupFacts:
    """One group of an engine. `tiles`: the promoted buffers; `moved`: bytes over DRAM; `cycles` on an accelerator."""

    name: str
    statements: tuple[str, ...]
    why: tuple[str, ...]
    tiles: tuple[str, ...]
    moved: int | None
    compulsory: int | None
    cycles: int | None
    seconds: float
    compiled: bool


@dataclass(frozen=True, repr=False)
class EngineExplanation(Explanation):
    """`arena` bytes are planned for the tensors between groups; no plan could need less than `bound`."""

    engine: Engine
    groups: tuple[GroupFacts, ...]
    arena: int
    bound: int
    fallbacks: tuple[str, ...]
    by_numpy: tuple[str, ...]
    seconds: float

    @property
    def moved(self) -> int | None:
        """Bytes over DRAM of all groups."""
        return _sum(g.moved for g in self.groups)

    @property
    def compulsory(self) -> int | None:
        """What the groups use of their inputs and outputs, each once."""
        return _sum(g.compulsory for g in self.groups)

    @property
    def _different(self) -> str:
        compiled, different = sum(g.compiled for g in self.groups), len(self.engine.compiled_groups)
        outside = f", {compiled} compiled" if compiled < len(self.groups) else ""
        return outside + (f", {different} different ones" if different < compiled else "")

    @property
    def _moved(self) -> str:
        """Of the groups that are counted."""
        known = [g for g in self.groups if g.moved is not None and g.compulsory is not None]
        if not known:
            return "not counted"
        moved, least = _sum(g.moved for g in known), _sum(g.compulsory for g in known)
        part = f" of {len(known)} of the {len(self.groups)} groups" if len(known) < len(self.groups) else ""
        return f"{bytes_text(moved)}{part}, {_times(moved, least)} the least; caches do not count"

    @property
    def document(self) -> Document:
        e = self.engine
        cycles = [g.cycles for g in self.groups if g.cycles is not None]
        facts = [
            ("machine", e.machine.name),
            ("groups", f"{len(self.groups)}{self._different}, compiled in {seconds_text(self.seconds)}"),
            ("arena", f"{bytes_text(self.arena)} between groups, lower bound {bytes_text(self.bound)}"),
            *((("measured", text),) if (text := measured_text(e.compiled_groups)) else ()),
            ("bytes moved", self._moved),
            ("fallbacks", ", ".join(self.fallbacks) or ("none" if self.by_numpy else "none: every node is compiled")),
            *((("by numpy", ", ".join(self.by_numpy)),) if self.by_numpy else ()),
        ]
        if cycles:
            micro = sum(cycles) / max(1, e.machine.clock_mhz)
            facts.insert(2, ("cycles", f"{count_text(sum(cycles))} ({micro:.1f} us)"))
        rows = [
            (g.name, some(g.statements, " "), some(g.tiles, "; "), bytes_text(g.moved), _times(g.moved, g.compulsory),
             *(("-" if g.cycles is None else count_text(g.cycles),) if cycles else ()),
             seconds_text(g.seconds) if g.compiled else "not compiled")
            for g in self.groups
        ]  # fmt: skip
        why = "\n".join(f"{g.name}: {reason}" for g in self.groups for reason in (g.why if g.compiled else g.why[:-1]))
        slow = "\n".join(f"{g.name}: {g.why[-1]}" for g in self.groups if not g.compiled)
        heads = ("group", "statements", "tiles", "moved", "of least", *(("cycles",) if cycles else ()), "compiled in")
        return Document(
            f"engine {e.graph.name}",
            tuple(facts),
            (
                table("groups", heads, rows),
                Text("why fused", why or "nothing is fused"),
                *((Text("why not compiled", slow),) if slow else ()),
            ),
        )


def explain(
    what: Program | Nest[..., object] | str | Schedule | Graph | Kernel | StreamKernel | Engine | ModelEngine
    | SizedEngine,
    **sizes: int,
) -> (
    ProgramExplanation
    | ScheduleExplanation
    | KernelExplanation
    | StreamExplanation
    | EngineExplanation
    | ModelExplanation
    | SizedExplanation
):
    """Explain a program (its text, or a nest), schedule, compiled kernel, command stream or engine; a graph as its one
    program.

    `sizes` bind free sizes of a program or a schedule first, so that everything can be counted. Raises `PolyError` for
    anything else, `IllegalEdit` for an unchecked schedule that is illegal.
    """
    if isinstance(what, Graph):
        what = what.to_program()
    if isinstance(what, Nest):
        what = what.program
    if isinstance(what, str):
        what = parse(what)
    if isinstance(what, Program):
        return explain_program(what.bind(**sizes) if sizes else what)
    if isinstance(what, Schedule):
        return explain_schedule(_bound(what, sizes) if sizes else what)
    if sizes:
        raise PolyError("sizes of compiled code are fixed", hint="explain(kernel.schedule, **sizes)")
    return explain_compiled(what)


def _bound(schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """The same edits, bands and marks for sizes that are known; what is derived of the source program is so anew."""
    source, program = (p.bind(**sizes) for p in (schedule.source, schedule.program))
    return Schedule(source, program, schedule.nests, schedule.marks, schedule.log, schedule.checked)


@dataclass(frozen=True, repr=False)
class ModelExplanation(Explanation):
    """A model that is compiled while it runs: its stages so far, and what the last run did without.

    `engines`: the compiled stages. Before the first run there are none.
    """

    engine: ModelEngine
    engines: tuple[EngineExplanation, ...]

    @property
    def document(self) -> Document:
        share = self.engine.share
        if share is None:
            how = "at the first run: shapes, and the content of inputs that decide them, are only known then"
            return Document(repr(self.engine).strip("<>"), (("compiles", how),), ())
        rows = [(name, seconds_text(o.seconds), o.by, o.reason) for name, o in share.outside.items()]
        facts = (
            ("specialised on", ", ".join(self.engine.deciding) or "shapes only"),
            ("compiled code took", seconds_text(share.compiled)),
            ("the rest took", f"{share.fraction:.0%} of the last run"),
        )
        parts = (table("not compiled", ("node", "took", "by", "because"), rows),) if rows else ()
        return Document(repr(self.engine).strip("<>"), facts, (*parts, *(e.document for e in self.engines)))


@dataclass(frozen=True, repr=False)
class SizedExplanation(Explanation):
    """A model with free sizes: its groups for all of them. `engines`: those of sizes compiled for themselves."""

    engine: SizedEngine
    engines: tuple[EngineExplanation, ...]

    @property
    def document(self) -> Document:
        e = self.engine
        rows = [
            (s.name, some(s.statements, " "), ", ".join(map(e.graph.label, s.outputs)), seconds_text(s.kernel.seconds))
            for s in e.steps
        ]
        facts = (
            ("machine", e.machine.name),
            ("sizes", e.graph.shown_ranges(e.graph.parameters) or str(e.graph.context)),
            ("compiled in", seconds_text(e.seconds)),
            ("groups", f"{len(e.steps)} for all sizes" if e.steps else "compiled for each size by itself"),
        )
        parts = (table("groups", ("group", "statements", "writes", "compiled in"), rows),) if rows else ()
        return Document(repr(e).strip("<>"), facts, (*parts, *(one.document for one in self.engines)))


def explain_compiled(
    what: Kernel | StreamKernel | Engine | ModelEngine | SizedEngine,
) -> KernelExplanation | StreamExplanation | EngineExplanation | ModelExplanation | SizedExplanation:
    """See `poly.explainer.explain`. Raises `PolyError` for what is not compiled."""
    if isinstance(what, SizedEngine):
        return SizedExplanation(what, tuple(explain_engine(engine) for engine in what.engines))
    if isinstance(what, Engine):
        return explain_engine(what)
    if isinstance(what, ModelEngine):
        return ModelExplanation(what, tuple(explain_engine(engine) for engine in what.engines))
    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel

    if isinstance(what, StreamKernel):
        return explain_stream(what)
    if isinstance(what, Kernel) and what.schedule is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
        return explain_kernel(what)
    hint = "a Program, Schedule, Kernel, StreamKernel, Engine or Graph"
    raise PolyError(f"{type(what).__name__} has no explanation", hint=hint)


def explain_kernel(kernel: Kernel) -> KernelExplanation:
    """A CPU kernel: its schedule and its code."""
    assert kernel.schedule is not None
    code = [line for line in kernel.asm.splitlines() if line.startswith("\t") and line.lstrip()[:1] not in (".", "#")]
    prediction = predict(kernel.schedule, kernel.machine, kernel.threads if kernel.parallel else 1)
    loops = [n for n in kernel.loops.nodes() if isinstance(n, For)]
    shared = tuple(n.variable for n in loops if n.kind == "parallel")
    one_by_one = {n.variable: n.one_by_one for n in loops if n.kind == "vector" and n.one_by_one}
    program = kernel.schedule.source
    made = [t for t in kernel.loops.tensors if t.role == "constant" and t not in program.tensors]
    return KernelExplanation(
        explain_schedule(kernel.schedule), kernel.machine, kernel.threads, kernel.seconds,
        kernel.machine.lanes(4) * 32, len(code), prediction,
        tuple(io_lower_bound(kernel.schedule.source, level.capacity) for level in prediction.levels),
        {t.name: tensor_bytes(program, t) for t in made}, shared if kernel.parallel else (),
        kernel.refused, one_by_one, kernel.measured,
    )  # fmt: skip


def explain_stream(kernel: StreamKernel) -> StreamExplanation:
    """A command stream: cycles, engines, bytes."""
    from poly.accel.isa import command_count

    program = kernel.schedule.source
    return StreamExplanation(
        explain_schedule(kernel.schedule), kernel.machine, kernel.report,
        sum(command_count(q.items) for q in kernel.stream.queues),
        {t.name: tensor_bytes(program, t) for t in program.tensors},
    )  # fmt: skip


def explain_engine(engine: Engine) -> EngineExplanation:
    """Groups, arena and fallbacks of an engine."""
    known: dict[int, tuple[tuple[str, ...], int | None, int | None]] = {}
    groups: list[GroupFacts] = []
    seen: set[int] = set()
    for step in engine.steps:
        tiles, moved, cycles = (), None, None
        if step.compiled is not None:
            if id(step.compiled) not in known:
                known[id(step.compiled)] = facts_of_group(step.compiled)
            tiles, moved, cycles = known[id(step.compiled)]
        first = step.compiled is not None and id(step.compiled) not in seen
        seen.add(id(step.compiled))
        groups.append(
            GroupFacts(
                step.name, tuple(s.name for s in step.program.statements), step.why, tiles, moved, _compulsory(step),
                cycles, step.compiled.seconds if first and step.compiled else 0.0, step.compiled is not None,
            )
        )  # fmt: skip
    return EngineExplanation(
        engine, tuple(groups), engine.plan.size, engine.plan.bound, engine.fallbacks, engine.by_numpy,
        engine.seconds,
    )


def facts_of_group(group: CompiledGroup) -> tuple[tuple[str, ...], int | None, int | None]:
    """Tiles, bytes over DRAM and cycles (None on a CPU) of a compiled group."""
    from poly.accel.compiled import StreamKernel

    shapes = [f"{b.space} {'x'.join(b.extents) or '1'}" for b in buffers_of(group.schedule)]
    tiles = tuple(dict.fromkeys(shapes))
    if isinstance(group.kernel, StreamKernel):
        report = group.kernel.report
        return tiles, sum(report.dram_read.values()) + sum(report.dram_written.values()), report.cycles
    return tiles, traffic(group.schedule).between("dram"), None


def measured_text(groups: Sequence[CompiledGroup]) -> str:
    """What measuring chose for the groups of an engine, "" where nothing was measured."""
    from poly.codegen.kernel import Kernel

    kernels = [g.kernel for g in groups]
    return measured_groups([k.measured for k in kernels if isinstance(k, Kernel) and k.measured is not None])


def _compulsory(step: Step) -> int | None:
    program: Program = step.program
    return compulsory_bytes(program)


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _times(moved: int | None, least: int | None) -> str:
    return ratio_text(moved / least if moved is not None and least else None)


def _causes(stalls: Mapping[str, int]) -> str:
    ranked = sorted(((n, cause) for cause, n in stalls.items() if n and cause != "done"), reverse=True)
    return ", ".join(f"{cause} {n}" for n, cause in ranked[:4])
