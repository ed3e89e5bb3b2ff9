"""`poly demo`: one einsum and one real network, for the CPU and for an accelerator, each checked against a reference.

The network is the onnx package's own squeezenet. Its weights there are constant, so they are drawn anew (seeded); its
opset is raised to 13 by onnx's converter, because onnx.reference runs the Softmax of older opsets along another axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.checking import Difference, compare, onnx_reference
from poly.commands import engine_cycles
from poly.compiler import compile, machine_of
from poly.console import busy, print_table, steps
from poly.document import bytes_text, count_text, counted, ratio_text, seconds_text
from poly.dtypes import Array
from poly.engine import Engine
from poly.explainer import GroupFacts, explain_engine
from poly.frontend.einsum import einsum_program
from poly.frontend.onnx_import import from_onnx
from poly.frontend.weights import light_model_path, random_weights
from poly.graph import Graph
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.explanation import buffers_of
from poly.scheduling.traffic import traffic
from poly.settings import usable_cores

if TYPE_CHECKING:
    import onnx

    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel

SPEC: Final = "bij,bjk->bik"
SHAPES: Final = ((4, 96, 64), (4, 64, 80))
NETWORK: Final = "squeezenet"
TOLERANCE: Final = 1e-4
_SEED: Final = 0


def demo(target: str = "s16", threads: int | None = None) -> bool:
    """Compile, run, check and print all of it; False where anything differs from its reference."""
    start = perf_counter()
    cpu, accelerator = machine_of("cpu"), machine_of(target)
    threads = threads or usable_cores()
    _say(
        "moved: bytes that code loads and stores outside of registers, or that DMA moves over DRAM; caches do not count"
    )
    _say("of least: those bytes against what is used of inputs and outputs, moved once")
    _say()
    found = [*_einsum((cpu, accelerator), threads), *_network((cpu, accelerator), threads)]
    bad = [d for d in found if not d.ok]
    seconds = seconds_text(perf_counter() - start)
    print(f"{len(found) - len(bad)} of {len(found)} results agree with their references, {seconds} in all")
    for d in bad:
        print(f"MISMATCH  {d}")
    return not bad


def _say(text: str = "") -> None:
    print(text, flush=True)


# ---- the einsum


def _einsum(machines: tuple[Machine, Machine], threads: int) -> list[Difference]:
    rng = np.random.default_rng(_SEED)
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    program = einsum_program(SPEC, SHAPES, ["f32", "f32"])
    expected = np.einsum(SPEC, *(a.astype(np.float64) for a in operands)).astype(np.float32)
    _say(f"einsum {SPEC}, {' x '.join(str(list(s)) for s in SHAPES)}, checked against numpy.einsum in float64")
    rows: list[tuple[str, ...]] = []
    found: list[Difference] = []
    for machine in machines:
        difference, row = _einsum_on(program, machine, threads, operands, expected)
        found.append(difference)
        rows.append(row)
    heads = ("target", "compiled in", "tiles", "moved", "of least", "one run", "largest error", "")
    print_table("", heads, rows)
    _say()
    return found


def _einsum_on(
    program: Program, machine: Machine, threads: int, operands: Sequence[Array], expected: Array
) -> tuple[Difference, tuple[str, ...]]:
    start = perf_counter()
    kernel = compile(program, machine, threads=threads)
    seconds = perf_counter() - start
    result = kernel(*operands)
    assert isinstance(result, np.ndarray) and kernel.schedule is not None
    difference = compare(f"einsum on {machine.name}", result, expected, 1e-5 * SHAPES[0][-1] ** 0.5)
    moved = traffic(kernel.schedule)
    tiles = dict.fromkeys(f"{b.space} {'x'.join(b.extents)}" for b in buffers_of(kernel.schedule))
    row = (
        machine.name, seconds_text(seconds), "; ".join(tiles), bytes_text(moved.between("dram")),
        ratio_text(moved.ratio), _one_run(kernel, operands), f"{difference.worst:.2g}", _verdict(difference),
    )  # fmt: skip
    return difference, row


def _one_run(kernel: Kernel | StreamKernel, operands: Sequence[Array]) -> str:
    report = getattr(kernel, "report", None)
    if report is not None:
        return f"{count_text(report.cycles)} cycles"
    times: list[float] = []
    for _ in range(20):
        start = perf_counter()
        kernel(*operands)
        times.append(perf_counter() - start)
    return seconds_text(float(np.median(times)))


def _verdict(difference: Difference) -> str:
    return "ok" if difference.ok else "MISMATCH"


# ---- the network


def network() -> onnx.ModelProto:
    """The network of the demo, with its random weights."""
    import onnx
    from onnx import version_converter

    model = random_weights(onnx.load(str(light_model_path(NETWORK))), _SEED)
    return version_converter.convert_version(model, 13)


def _network(machines: tuple[Machine, Machine], threads: int) -> list[Difference]:
    with busy("reading the network"):
        model = network()
        graph = from_onnx(model)
    weights = sum(a.nbytes for a in graph.constants.values())
    _say(f"{NETWORK}, {len(model.graph.node)} nodes, {bytes_text(weights)} of weights, checked against onnx.reference")
    rng = np.random.default_rng(_SEED)
    inputs: dict[str, Array] = {
        graph.label(t.name): rng.standard_normal(t.extents({})).astype(np.float32) for t in graph.inputs
    }
    with busy("running onnx.reference"):
        expected = onnx_reference(model, inputs)
    runs = [_network_on(graph, machine, threads, inputs, expected) for machine in machines]
    facts = zip(*(run.facts for run in runs), strict=True)
    print_table("", ("", *(m.name for m in machines)), [(a[0], *(b for _, b in (a, *rest))) for a, *rest in facts])
    _say()
    for run in runs:
        _groups(run)
    return [d for run in runs for d in run.differences]


@dataclass(frozen=True)
class NetworkRun:
    """The network on one machine. `facts`: label and value, the same labels for every machine."""

    engine: Engine
    groups: tuple[GroupFacts, ...]
    differences: tuple[Difference, ...]
    facts: tuple[tuple[str, str], ...]


def _network_on(
    graph: Graph, machine: Machine, threads: int, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> NetworkRun:
    with steps(f"compiling for {machine.name}") as progress:
        engine = compile(graph, machine, threads=threads, progress=progress)
    start = perf_counter()
    with busy(f"running on {machine.name}"):
        outputs = engine.run(inputs)
    first = perf_counter() - start
    differences = [compare(f"{NETWORK} on {machine.name}: {n}", outputs[n], a, TOLERANCE) for n, a in expected.items()]
    if engine.fallbacks:
        nodes = counted(len(engine.fallbacks), "node")
        missing = f"{nodes} ran by the reference evaluator or the interpreter: {', '.join(engine.fallbacks[:4])}"
        differences.append(Difference(f"{NETWORK} on {machine.name}", 0.0, 0.0, 0.0, missing))
    explained = explain_engine(engine)
    worst = max(d.worst for d in differences)
    facts = (
        ("groups", f"{len(engine.steps)}, {len(engine.compiled_groups)} different"),
        ("nodes left to the reference evaluator", str(len(engine.fallbacks))),
        ("compiled in", seconds_text(engine.seconds)),
        ("arena", bytes_text(explained.arena)),
        ("  lower bound", bytes_text(explained.bound)),
        ("moved", bytes_text(explained.moved)),
        ("  of least", ratio_text(_ratio(explained.moved, explained.compulsory))),
        ("one run", _time_of(engine, inputs)),
        ("  first run", f"{seconds_text(first)}" + (", simulated" if machine.kind == "accelerator" else "")),
        ("largest error", f"{worst:.2g} of {differences[0].scale:.2g}"),
        ("result", "ok" if all(d.ok for d in differences) else "MISMATCH"),
    )
    return NetworkRun(engine, explained.groups, tuple(differences), facts)


def _ratio(moved: int | None, least: int | None) -> float | None:
    return moved / least if moved is not None and least else None


def _time_of(engine: Engine, inputs: Mapping[str, Array]) -> str:
    """Cycles on an accelerator; on a CPU the median time of some runs."""
    cycles = engine_cycles(engine)
    if cycles is not None:
        return f"{count_text(cycles)} cycles, {seconds_text(cycles / max(1, engine.machine.clock_mhz) * 1e-6)}"
    times: list[float] = []
    for _ in range(7):
        start = perf_counter()
        engine.run(inputs)
        times.append(perf_counter() - start)
    return seconds_text(float(np.median(times)))


def _groups(run: NetworkRun) -> None:
    """One line for each different group of a machine, and how often it occurs."""
    kinds: dict[int, list[int]] = {}
    for k, step in enumerate(run.engine.steps):
        kinds.setdefault(id(step.compiled), []).append(k)
    rows: list[tuple[str | int, ...]] = []
    for same in kinds.values():
        facts = run.groups[same[0]]
        cycles = ("-" if facts.cycles is None else count_text(facts.cycles),) if _cycles(run) else ()
        rows.append((
            facts.name.removeprefix("group "), len(same), " ".join(facts.statements), _inner_tile(facts.tiles),
            bytes_text(facts.moved), ratio_text(_ratio(facts.moved, facts.compulsory)), *cycles,
        ))  # fmt: skip
    heads = ["group", "times", "statements", f"{_short(run)} tile", "moved", "of least"]
    print_table("", [*heads, *(["cycles"] if _cycles(run) else [])], rows)
    _say()


def _cycles(run: NetworkRun) -> bool:
    return run.engine.machine.kind == "accelerator"


def _short(run: NetworkRun) -> str:
    return run.engine.machine.name if _cycles(run) else "cpu"


def _inner_tile(tiles: Sequence[str]) -> str:
    """The buffer nearest to the arithmetic: registers or accumulator, else the first."""
    near = [t for t in tiles if t.startswith(("reg ", "acc "))]
    return (near or [*tiles, ""])[0]
