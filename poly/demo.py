"""`poly demo`: one einsum and one real network, for the CPU and for an accelerator, each checked against a reference.

The network is the onnx package's own squeezenet. Its weights there are constant, so they are drawn anew (seeded); its
opset is raised to 13 by onnx's converter, because onnx.reference runs the Softmax of older opsets along another axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.checking import Array, Difference, compare, onnx_reference
from poly.commands import engine_cycles
from poly.compiler import compile, machine_of
from poly.console import busy, print_table, steps
from poly.document import bytes_text, count_text, ratio_text, seconds_text
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
    threads = threads or cpu.cores
    _say(
        "moved: bytes that code loads and stores outside of registers, or that DMA moves over DRAM; caches do not count"
    )
    _say("of least: those bytes against what is used of inputs and outputs, moved once")
    _say()
    found = [*_einsum((cpu, accelerator), threads), *_network((cpu, accelerator), threads)]
    bad = [d for d in found if not d.ok]
    print()
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
        ratio_text(moved.ratio), _one_run(kernel, machine, operands), f"{difference.worst:.2g}", _verdict(difference),
    )  # fmt: skip
    return difference, row


def _one_run(kernel: Kernel | StreamKernel, machine: Machine, operands: Sequence[Array]) -> str:
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
    inputs = _inputs(graph)
    with busy("running onnx.reference"):
        start = perf_counter()
        expected = onnx_reference(model, inputs)
        _say(f"  onnx.reference took {seconds_text(perf_counter() - start)}")
    return [d for machine in machines for d in _network_on(graph, machine, threads, inputs, expected)]


def _inputs(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(_SEED)
    return {
        graph.labels.get(t.name, t.name): rng.standard_normal(t.extents({})).astype(np.float32) for t in graph.inputs
    }


def _network_on(
    graph: Graph, machine: Machine, threads: int, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> list[Difference]:
    with steps(f"compiling for {machine.name}") as progress:
        engine = compile(graph, machine, threads=threads, progress=progress)
    start = perf_counter()
    with steps(f"running on {machine.name}") as progress:
        done = 0

        def observe(_step: object, _seconds: float) -> None:
            nonlocal done
            done += 1
            progress(done, len(engine.steps))

        outputs = engine.run(inputs, observe=observe)
    first = perf_counter() - start
    differences = [compare(f"{NETWORK} on {machine.name}: {n}", outputs[n], a, TOLERANCE) for n, a in expected.items()]
    if engine.fallbacks:
        missing = f"{len(engine.fallbacks)} nodes ran by the reference evaluator: {', '.join(engine.fallbacks[:4])}"
        differences.append(Difference(f"{NETWORK} on {machine.name}", 0.0, 0.0, 0.0, missing))
    _report(engine, inputs, first, differences)
    return differences


def _report(engine: Engine, inputs: Mapping[str, Array], first: float, differences: list[Difference]) -> None:
    explanation = explain_engine(engine)
    cycles = engine_cycles(engine)
    if cycles is None:
        run = _time_of(engine, inputs)
    else:
        milliseconds = cycles / max(1, engine.machine.clock_mhz) / 1000
        run = f"{count_text(cycles)} cycles ({milliseconds:.2f} ms), simulated in {seconds_text(first)}"
    _say()
    _say(f"{NETWORK} on {engine.machine.name}")
    for label, value in (*explanation.document.facts[1:], ("one run", run)):
        if label != "cycles":
            _say(f"  {label:13} {value}")
    _groups(explanation.groups, engine)
    for d in differences:
        _say(f"  {_verdict(d)}  {d}")


def _time_of(engine: Engine, inputs: Mapping[str, Array]) -> str:
    times: list[float] = []
    for _ in range(7):
        start = perf_counter()
        engine.run(inputs)
        times.append(perf_counter() - start)
    return seconds_text(float(np.median(times)))


def _groups(groups: tuple[GroupFacts, ...], engine: Engine) -> None:
    """One line for each different group, how often it occurs, and one for the sum."""
    kinds: dict[int, list[GroupFacts]] = {}
    for facts, step in zip(groups, engine.steps, strict=True):
        kinds.setdefault(id(step.unit), []).append(facts)
    rows = [
        (same[0].name, len(same), " ".join(same[0].statements), "; ".join(same[0].tiles), bytes_text(same[0].moved),
         ratio_text(None if same[0].moved is None or not same[0].compulsory else same[0].moved / same[0].compulsory),
         "-" if same[0].cycles is None else count_text(same[0].cycles))
        for same in kinds.values()
    ]  # fmt: skip
    print_table("", ("first", "times", "statements", "tiles", "moved", "of least", "cycles"), rows)
