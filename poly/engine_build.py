"""From a graph to an `Engine`: groups cut out, compiled once each, constants in the form in which they are used."""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count

from poly.cache_content import package_hash, pickled, read_pickle
from poly.console import Progress
from poly.disk_cache import cache_entry, write_entry
from poly.dtypes import Array
from poly.engine import CompiledGroup, CompileGroup, Engine, PrepareAhead, Step
from poly.engine_constants import in_order_of_use, streaming
from poly.errors import CapacityError, UnsupportedError
from poly.frontend.onnx_reference import external_by_numpy
from poly.graph import Graph
from poly.interp import run_program
from poly.machine import Machine
from poly.pointers import aligned_bytes, on_lines
from poly.program import Program
from poly.relations import writes_all
from poly.scheduling.cpu_program import for_cpu, model_for_cpu
from poly.scheduling.group_programs import canonical_names
from poly.scheduling.grouping import Grouping, group_program
from poly.scheduling.groups import Group
from poly.scheduling.initialised import read_before_written
from poly.scheduling.uneven import finite_factors


def build_engine(
    graph: Graph,
    machine: Machine,
    compile_group: CompileGroup,
    *,
    threads: int = 1,
    progress: Progress | None = None,
    prepare_ahead: PrepareAhead | None = None,
) -> Engine:
    """Compile every group of a graph. `progress(done, all)` is called after each.

    `prepare_ahead`: entered while the groups are compiled, with the different programs that will be.
    """
    start = time.perf_counter()
    source = model_for_cpu(graph.to_program(), graph.constants, machine)
    grouping, cuts = _cut_up(source, machine, threads, finite_factors(source, graph.constants))
    program = grouping.program
    parts_machine = streaming(machine, graph.constants)
    work = Build(program, with_known(graph.constants, grouping.known), parts_machine, compile_group, _reasons(graph))
    different = {cut.key: cut.canonical for cut in cuts if cut.canonical is not None}
    with prepare_ahead([*different.values()], parts_machine) if prepare_ahead is not None else nullcontext():
        for k, cut in enumerate(cuts):
            work.step(cut)
            if progress is not None:
                progress(k + 1, len(cuts))
    steps = tuple(work.steps)
    plan = grouping.arena()
    return Engine(
        replace(graph, constants={}), machine, steps, plan, *_outside(graph, steps),
        time.perf_counter() - start, work.constants(), aligned_bytes(plan.size + _beyond(grouping)), program.tensor,
        grouping.boxes, grouping.in_arrays(), whole_outputs(source),
    )  # fmt: skip


def whole_outputs(program: Program) -> frozenset[str]:
    """The outputs of which statements write every element, whatever groups they are in, before one is read: no run
    clears them.
    """
    whole = frozenset(t.name for t in program.outputs if writes_all(program, t))
    return whole - read_before_written(program)


def with_known(constants: Mapping[str, Array], known: Program | None) -> Mapping[str, Array]:
    """The constants of a model, and those that a program computes of them."""
    if known is None:
        return constants
    read = {t.name: constants[t.name] for t in known.with_role("constant")}
    return {**constants, **run_program(known, read)}


def _cut_up(
    program: Program, machine: Machine, threads: int, finite: Collection[str]
) -> tuple[Grouping, tuple[Cut, ...]]:
    """The groups of a model, from the disk cache where it was compiled before. `finite`: see `inside_windows`."""
    path = cache_entry(
        "groups", (str(program), repr(sorted(finite)), str(threads), machine.hash, package_hash()), ".pickle"
    )
    found = read_pickle(path)
    if isinstance(found, _Kept):
        return found.grouping, found.cuts
    grouping = group_program(program, machine, threads)
    parts = grouping.parts
    cuts = tuple(
        Cut.of(parts[k], group, f"group {k}", machine, threads, finite) for k, group in grouping.groups.items()
    )
    if path is not None:
        write_entry(path, pickled(_Kept(grouping, cuts)))
    return grouping, cuts


@dataclass(frozen=True)
class Cut:
    """A group as a program, and with canonical names and, for a CPU, axes joined (None where it is computed outside);
    `old`: names before.
    """

    group: Group
    name: str
    part: Program
    canonical: Program | None
    old: Mapping[str, str]
    key: str

    @staticmethod
    def of(part: Program, group: Group, name: str, machine: Machine, threads: int, finite: Collection[str]) -> Cut:
        if any(s.external is not None for s in part.statements):
            return Cut(group, name, part, None, {}, "")
        canonical, old = canonical_names(part)
        if machine.kind == "cpu":
            canonical = for_cpu(canonical, {n for n in old if old[n] in finite}, machine, threads)
        return Cut(group, name, part, canonical, old, str(canonical))


@dataclass(frozen=True)
class _Kept:
    """An entry of the disk cache."""

    grouping: Grouping
    cuts: tuple[Cut, ...]


@dataclass
class Build:
    """Steps under construction: compiled groups by canonical text, and computed constants, each made once.
    `outside`: why statements are external."""

    program: Program
    given: Mapping[str, Array]
    machine: Machine
    compile_group: CompileGroup
    outside: Mapping[str, str] = field(default_factory=dict[str, str])
    steps: list[Step] = field(default_factory=list[Step])
    compiled: dict[str, CompiledGroup | str] = field(default_factory=dict[str, "CompiledGroup | str"])
    computed: dict[str, Array] = field(default_factory=dict[str, Array])
    names: dict[tuple[int, tuple[str, ...]], Mapping[str, str]] = field(
        default_factory=dict[tuple[int, tuple[str, ...]], Mapping[str, str]]
    )

    def step(self, cut: Cut) -> None:
        group, name, part, canonical, old, key = cut.group, cut.name, cut.part, cut.canonical, cut.old, cut.key
        outputs = tuple(t.name for t in part.tensors if t.is_output)
        inputs = tuple(t.name for t in part.tensors if t.is_input or t.role == "constant")
        if canonical is None:
            told = (self.outside[s.name] for s in part.statements if s.name in self.outside)
            why = "; ".join(told) or "computed outside of the program"
            self.steps.append(Step(name, part, inputs, outputs, None, (*group.why, why)))
            return
        if key not in self.compiled:
            try:
                self.compiled[key] = self.compile_group(canonical, self.machine)
            except (UnsupportedError, CapacityError) as error:
                self.compiled[key] = "not compiled: " + "; ".join(line.strip() for line in str(error).splitlines())
        found = self.compiled[key]
        if isinstance(found, str):
            self.steps.append(Step(name, part, inputs, outputs, None, (*group.why, found)))
            return
        names = {**old, **self.computed_names(found, old)}
        arguments = tuple(names[a] for a in found.arguments)
        results = tuple(old[t.name] for t in canonical.outputs)
        self.steps.append(Step(name, part, arguments, results, found, tuple(group.why)))

    def computed_names(self, group: CompiledGroup, old: Mapping[str, str]) -> Mapping[str, str]:
        """The group's computed constants by their names in the engine, made of the constants in this place."""
        if group.compute is None:
            return {}
        constants = {t.name: old[t.name] for t in group.program.with_role("constant")}
        key = (id(group), tuple(constants.values()))
        if key not in self.names:
            arrays = group.compute({n: self.given[o] for n, o in constants.items()})
            found: dict[str, str] = {}
            for name in group.computed:
                found[name] = _computed_name(name, constants, self.computed)
                self.computed[found[name]] = arrays[name]
            self.names[key] = found
        return self.names[key]

    def constants(self) -> dict[str, Array]:
        """Everything that steps read and nothing else, so that no weight is kept in two forms without need; read-only,
        so that none of it can be the `out` of a run."""
        used = dict.fromkeys(name for step in self.steps for name in step.inputs)
        computed = in_order_of_use(self.computed, [*used], self.machine)
        given = {n: on_lines(a) for n, a in self.given.items() if n in used}
        found = {n: a.view() for n, a in {**given, **computed}.items() if n in used}
        for array in found.values():
            array.flags.writeable = False
        return found


def _computed_name(name: str, constants: Mapping[str, str], taken: Container[str]) -> str:
    """A computed constant's name for a reader: of which constant it is a copy, else what it is made of; no other's."""
    copied = max((n for n in constants if name.startswith(f"{n}_")), key=len, default="")
    text = f"{constants[copied]} packed" if copied else f"{name} of {' '.join(constants.values())}"
    return next(t for k in count(1) if (t := text if k == 1 else f"{text} {k}") not in taken)


def _outside(graph: Graph, steps: Sequence[Step]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The model's nodes with a statement that no compiled group runs: those that fall back (some in groups whose
    compilation was refused), and those that numpy runs.
    """
    slow = {s.name: s for step in steps if step.compiled is None for s in step.program.statements}
    found: tuple[list[str], list[str]] = ([], [])
    for node in graph.nodes:
        if own := [slow[s.name] for s in node.statements if s.name in slow]:
            fast = all(s.external is not None and external_by_numpy(s.external) for s in own)
            found[fast].append(f"{node.name} ({node.operator})")
    return tuple(found[0]), tuple(found[1])


def _reasons(graph: Graph) -> Mapping[str, str]:
    """Why nodes have no compiled form, by their external statements."""
    return {
        s.name: f"{node.name} ({node.operator}): {node.reason}{f'; try: {node.hint}' if node.hint else ''}"
        for node in graph.nodes if node.reason for s in node.statements if s.external is not None
    }  # fmt: skip


def _beyond(grouping: Grouping) -> int:
    """Bytes that views of boxes reach behind what they lie in, whose shape they have; nothing is touched there."""
    return max((a.shift for name, a in grouping.aliases.items() if name in grouping.boxes), default=0)
