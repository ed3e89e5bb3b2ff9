"""What a model would be, before anything is compiled: coverage, memory and work. `poly check` prints it.

Counts are of the program that the importer writes, after its simplification. Work counts every operation of a body once
(a multiply-add is two, a call of exp is one), each reduction step included; bytes count each tensor once for each
group of statements that is compiled together, which is the least that the groups move between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poly.arguments import checks_kinds
from poly.document import Document, Table, bytes_text, count_text, counted
from poly.dtypes import Array
from poly.errors import OnnxError
from poly.expr import Apply, walk
from poly.frontend.onnx_model import dynamic_dimensions, load_model
from poly.frontend.onnx_survey import Fate, NodeFate, survey_onnx
from poly.graph import Graph
from poly.machine import Machine
from poly.program import Program, Statement
from poly.relations import bound_domain
from poly.scheduling.grouping import group_program
from poly.scheduling.groups import Group, domain_box, tensors_read, tensors_written
from poly.scheduling.traffic import count_points
from poly.sets import within_budget

if TYPE_CHECKING:
    import onnx

_TRIED: Final = (64, 16, 224, 256, 512, 1024, 4096, 16000, 1)
_OPERATIONS: Final = 300_000
_SHOWN: Final = 8


@dataclass(frozen=True)
class NodeWork:
    """Operations of one node of the graph; None where its instances are too many cases to count."""

    name: str
    operator: str
    operations: int | None


@dataclass(frozen=True, repr=False)
class ModelCheck:
    """The report. Bytes and operations are of one run at `sizes`.

    `sizes`: dynamic extents by name, `assumed` those that the caller did not give. `fates`: what became of each node of
    the file; `problem`: why the model as a whole cannot be read, "" where it can. `peak`: bytes of the arena for
    tensors between groups, and `bound` the least any placement needs.
    """

    name: str
    opsets: Mapping[str, int]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    sizes: Mapping[str, int]
    assumed: tuple[str, ...]
    fates: tuple[NodeFate, ...]
    problem: str = ""
    statements: int = 0
    groups: int = 0
    weights: int = 0
    io: int = 0
    peak: int = 0
    bound: int = 0
    operations: int = 0
    uncounted: tuple[str, ...] = ()
    moved: int = 0
    heaviest: tuple[NodeWork, ...] = ()

    @property
    def coverage(self) -> Mapping[Fate, int]:
        """Nodes by what became of them."""
        return Counter(f.fate for f in self.fates)

    @property
    def fallbacks(self) -> tuple[NodeFate, ...]:
        """Nodes that the reference evaluator would run."""
        return tuple(f for f in self.fates if f.fate == "fallback")

    @property
    def by_numpy(self) -> tuple[NodeFate, ...]:
        """Nodes that routines of numpy would run."""
        return tuple(f for f in self.fates if f.fate == "by numpy")

    @property
    def refused(self) -> tuple[NodeFate, ...]:
        """Nodes that cannot be imported."""
        return tuple(f for f in self.fates if f.fate == "refused")

    @property
    def waiting(self) -> tuple[NodeFate, ...]:
        """Nodes that are compiled at the first run, when values are known that decide their shapes or branches."""
        return tuple(f for f in self.fates if f.fate == "at first run")

    @property
    def ok(self) -> bool:
        """True where the model can be compiled, fallbacks included."""
        return not self.problem and not self.refused

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        fields = asdict(self)
        fields["fates"] = [asdict(f) for f in self.fates if f.why]
        fields["operators"] = {f"{o}-{v}": dict(c) for (o, v), c in _by_operator(self.fates).items()}
        return {"ok": self.ok, "coverage": dict(self.coverage), **fields}

    def __str__(self) -> str:
        return str(self.document())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.document().html()

    def document(self) -> Document:
        """Facts and tables."""
        return Document(f"{self.name}: {self._verdict()}", tuple(_facts(self)), tuple(_tables(self)))

    def _verdict(self) -> str:
        if self.problem:
            return "cannot be read"
        if self.refused:
            return f"cannot be compiled: {counted(len(self.refused), 'node')} refused"
        if self.waiting:
            nodes = counted(len(self.waiting), "node")
            return f"compiles at its first run: {nodes} without values (poly.compile of its path)"
        if self.fallbacks:
            return f"compiles, but for {counted(len(self.fallbacks), 'node')} that the reference evaluator runs"
        if self.by_numpy:
            return f"compiles, but for {counted(len(self.by_numpy), 'node')} that numpy runs"
        return "compiles"


@checks_kinds(OnnxError)
def check_model(
    path: str | Path | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...] | int] | None = None,
    constants: Mapping[str, Array] | None = None,
    machine: Machine | None = None,
) -> ModelCheck:
    """Check a model without compiling it for a machine, this one's CPU unless given; other arguments as `from_onnx`.

    Dynamic extents that are not given are assumed, and `assumed` names them. Raises `OnnxError` for what is no model.
    """
    model = load_model(path)
    machine = machine or _host()
    name = Path(path).stem if isinstance(path, (str, Path)) else str(model.graph.name or "model")
    given, fixed = dict(shapes or {}), dict(constants or {})
    opsets = {(o.domain or "ai.onnx"): int(o.version) for o in model.opset_import}
    first: ModelCheck | None = None
    for sizes in _assumptions(model, given, fixed):
        try:
            survey = survey_onnx(model, given | sizes, fixed)
        except OnnxError as error:
            first = first or ModelCheck(name, opsets, {}, {}, sizes, tuple(sizes), (), problem=str(error))
            continue
        if not sizes or not any(f.fate == "refused" for f in survey.fates):
            return _report(model, name, opsets, survey.graph, survey.fates, given, sizes, machine)
        if first is None or first.problem:
            first = _report(model, name, opsets, survey.graph, survey.fates, given, sizes, machine)
    assert first is not None
    return first


def assumed_sizes(
    model: onnx.ModelProto, given: Mapping[str, tuple[int, ...] | int], fixed: Mapping[str, Array]
) -> dict[str, int]:
    """Extents of the dynamic dimensions that are not bound, with which no node is refused; none if there are none."""
    for sizes in _assumptions(model, given, fixed):
        try:
            survey = survey_onnx(model, dict(given) | sizes, dict(fixed))
        except OnnxError:
            continue
        if not any(f.fate == "refused" for f in survey.fates):
            return sizes
    return {}


def _host() -> Machine:
    from poly.codegen.host import host_machine

    return host_machine()


def _assumptions(
    model: onnx.ModelProto, given: Mapping[str, tuple[int, ...] | int], fixed: Mapping[str, Array]
) -> Iterator[dict[str, int]]:
    """Extents for dynamic dimensions that are not bound: 1 for leading axes, for others what is common."""
    free = dynamic_dimensions(model, given, fixed)
    leading = {name: 1 for name, axis in free.items() if axis == 0}
    rest = [name for name in free if name not in leading]
    if not rest:
        yield leading
        return
    for extent in _TRIED:
        yield leading | dict.fromkeys(rest, extent)
    for extent in _TRIED:
        yield dict.fromkeys(free, extent)


# -- counting --------------------------------------------------------------------------------------------------------


def _report(
    model: onnx.ModelProto, name: str, opsets: Mapping[str, int], graph: Graph, fates: tuple[NodeFate, ...],
    given: Mapping[str, tuple[int, ...] | int], assumed: Mapping[str, int], machine: Machine,
) -> ModelCheck:  # fmt: skip
    program = graph.to_program()
    grouping = group_program(program, machine)
    arena = grouping.arena()
    work = [_work(program, n.name, n.operator, n.statements) for n in graph.nodes]
    counted = [w for w in work if w.operations]
    outputs = {graph.label(t.name): f"{t.dtype}{list(t.extents({}))}" for t in graph.outputs}
    return ModelCheck(
        name, opsets,
        {graph.label(t.name): f"{t.dtype}{list(t.extents({}))}" for t in graph.inputs},
        {o.name: outputs.get(o.name, "not known before it runs") for o in model.graph.output},
        {k: v for k, v in given.items() if isinstance(v, int)} | dict(assumed), tuple(assumed), fates,
        statements=len(program.statements), groups=len(grouping.groups),
        weights=sum(t.nbytes({}) for t in program.with_role("constant")),
        io=sum(t.nbytes({}) for t in (*graph.inputs, *graph.outputs)), peak=arena.size, bound=arena.bound,
        operations=sum(w.operations or 0 for w in work),
        uncounted=tuple(w.name for w in work if w.operations is None),
        moved=sum(_moved(program, g) for g in grouping.groups.values()),
        heaviest=tuple(sorted(counted, key=lambda w: -(w.operations or 0))[:_SHOWN]),
    )  # fmt: skip


def _work(program: Program, name: str, operator: str, statements: Sequence[Statement]) -> NodeWork:
    total = 0
    for s in statements:
        each = sum(isinstance(e, Apply) for e in walk(s.body)) + (s.combiner is not None)
        if s.external is not None:
            return NodeWork(name, operator, None)
        if each:
            found = instances(program, s)
            if found is None:
                return NodeWork(name, operator, None)
            total += each * found
    return NodeWork(name, operator, total)


def instances(program: Program, s: Statement) -> int | None:
    """How often a statement runs under the program's binding; None where that is too many cases to count."""
    box = domain_box(program, s, s.iterators)
    if box is not None:
        return prod(high - low + 1 for low, high in box)
    return within_budget(_OPERATIONS, lambda: count_points(bound_domain(program, s)), lambda: None)


def _moved(program: Program, group: Group) -> int:
    """Bytes of what a group reads and writes, once each; what only it touches is not counted."""
    inside = {t for s in group.statements for t in tensors_written(s)}
    used = {t for s in group.statements for t in tensors_read(s)} - inside
    return sum(program.tensor[t].nbytes({}) for t in used | {t for t in inside if _leaves(program, group, t)})


def _leaves(program: Program, group: Group, name: str) -> bool:
    own = set(group.names)
    return program.tensor[name].is_output or any(
        name in tensors_read(s) for s in program.statements if s.name not in own
    )


# -- words -----------------------------------------------------------------------------------------------------------


def _facts(c: ModelCheck) -> Iterator[tuple[str, str]]:
    yield "operator sets", ", ".join(f"{d} {v}" for d, v in c.opsets.items())
    if c.problem:
        yield "problem", c.problem
        return
    yield "inputs", ", ".join(f"{n}: {t}" for n, t in c.inputs.items()) or "none"
    yield "outputs", ", ".join(f"{n}: {t}" for n, t in c.outputs.items()) or "none"
    if c.sizes:
        yield "sizes", ", ".join(f"{n}={v}{' (assumed)' if n in c.assumed else ''}" for n, v in c.sizes.items())
    yield "nodes", ", ".join(f"{count} {fate}" for fate, count in c.coverage.items()) or "none"
    if not c.ok:
        return
    if c.waiting:
        yield "counts", "of what is known before the first run"
    yield "program", f"{counted(c.statements, 'statement')} in {counted(c.groups, 'group')}"
    yield "weights", bytes_text(c.weights)
    yield "activations", f"{bytes_text(c.peak)} at most at a time, lower bound {bytes_text(c.bound)}"
    yield "inputs and outputs", bytes_text(c.io)
    unknown = f", and {counted(len(c.uncounted), 'node')} not counted" if c.uncounted else ""
    yield "work", f"{count_text(c.operations)} operations{unknown}"
    yield "moved", f"{bytes_text(c.moved)} between groups, {c.operations / max(1, c.moved):.2f} operations a byte"


def _by_operator(fates: Sequence[NodeFate]) -> dict[tuple[str, int], Counter[str]]:
    found: dict[tuple[str, int], Counter[str]] = {}
    for f in sorted(fates, key=lambda f: f.operator):
        found.setdefault((f.operator, f.opset), Counter())[f.fate] += 1
    return found


def _tables(c: ModelCheck) -> Iterator[Table]:
    order: tuple[Fate, ...] = ("compiled", "expanded", "folded", "inlined", "at first run", "by numpy", "fallback",
                               "refused", "not reached")  # fmt: skip
    kinds = [k for k in order if k in c.coverage]
    rows = [(o, str(v), *(str(n[k]) if n[k] else "-" for k in kinds)) for (o, v), n in _by_operator(c.fates).items()]
    if rows:
        yield Table("operators", ("operator", "opset", *kinds), tuple(rows))
    tables = (
        ("compiled at the first run", c.waiting), ("by numpy", c.by_numpy),
        ("by the reference evaluator", c.fallbacks), ("refused", c.refused),
    )  # fmt: skip
    for title, found in tables:
        if found:
            lines = tuple((f.name, f"{f.operator}-{f.opset}", f.why, f.hint or "-") for f in found)
            yield Table(title, ("node", "operator", "why", "try"), lines)
    if c.heaviest:
        whole = max(1, c.operations)
        lines = tuple((w.name, w.operator, count_text(w.operations or 0), f"{(w.operations or 0) / whole:.1%}")
                      for w in c.heaviest)  # fmt: skip
        yield Table("most work", ("node", "operator", "operations", "share"), lines)
