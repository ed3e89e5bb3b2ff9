"""`poly run` and `poly show`: what they do and print."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt

from poly.checking import Difference, compare, onnx_reference, tolerance_of
from poly.compiler import compile, machine_of
from poly.console import busy, print_facts, print_table, steps
from poly.document import bytes_text, count_text, seconds_text
from poly.dtypes import Array, dtype_name, is_float, is_integer
from poly.engine import Engine
from poly.errors import FallbackWarning, RunError
from poly.explainer import measured_text
from poly.expr import Apply, Cast, dtype_of, walk
from poly.graph import Graph
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_program import model_for_cpu
from poly.scheduling.grouping import group_program
from poly.scheduling.traffic import count_points
from poly.sets import fix_sizes
from poly.work import Named, UsageError, Work, known_sizes, random_array, read_inputs

if TYPE_CHECKING:
    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel

Level = Literal["program", "schedule", "loops", "ir", "asm", "stream", "explain"]
DEFAULT_PROFILE: Final = "s16"  # where a command needs an accelerator and names none


# ---- run


def run(
    work: Work, target: str, threads: int, given: Sequence[Named], seed: int, check: bool, save: str | None, tune: int
) -> bool:
    """Compile, run, print; False where `check` finds a difference."""
    if save and not Path(save).absolute().parent.is_dir():
        raise UsageError(f"--save {save}: no folder {Path(save).parent}", hint="make it first")
    machine = machine_of(target)
    inputs = read_inputs(work, given, seed)
    if work.graph is not None:
        facts, outputs = _run_graph(work.graph, machine, threads, inputs, tune)
    elif work.refused is not None:
        facts, outputs = _run_model(work, machine, threads, inputs, tune)
    else:
        facts, outputs = _run_program(work, machine, threads, inputs, tune)
    drawn = f"random, seed {seed}"
    source = "files" if len(given) >= len(inputs) else f"{len(given)} of files, others {drawn}" if given else drawn
    print_facts(f"{work.name} on {machine.name}", [*facts, ("inputs", f"{len(inputs)}, {source}")])
    print()
    rows = [(n, f"{a.dtype}{list(a.shape)}", *_figures(a)) for n, a in outputs.items()]
    print_table("", ("output", "type", "min", "max", "mean"), rows)
    if not given and (note := _of_random(work, outputs)):
        print(f"\n{note}")
    if save:
        np.savez(save, allow_pickle=False, **outputs)
        print(f"\nsaved to {save if save.endswith('.npz') else f'{save}.npz'}")  # as numpy names it
    return _check(work, inputs, outputs) if check else True


def _of_random(work: Work, outputs: Mapping[str, Array]) -> str:
    """What to try where random integers, as of a mask, may be why outputs are NaN."""
    whole = [n for n, t in work.inputs if n not in work.constants and is_integer(t.dtype)]
    if not whole or not any(a.dtype.kind == "f" and np.isnan(a).any() for a in outputs.values()):
        return ""
    files = " ".join(f"--input {name}=FILE.npy" for name in whole)
    return f"NaN, of random integers from 0 to 7; where the model means others: {files}"


def _figures(array: Array) -> tuple[str, ...]:
    """Least, largest and mean element."""
    if not array.size or array.dtype.kind in "cOSU":
        return ("-", "-", "-")
    wide = array.astype(np.float64).ravel()
    numbers = wide[~np.isnan(wide)]
    lost = "" if len(numbers) == len(wide) else f", {len(wide) - len(numbers)} of {len(wide)} NaN"
    if not len(numbers):
        return ("nan", "nan", f"nan{lost}")
    least, largest, mean = (f"{figure:.6g}" for figure in (numbers.min(), numbers.max(), numbers.mean()))
    return (least, largest, mean + lost)


def _run_graph(
    graph: Graph, machine: Machine, threads: int, inputs: Mapping[str, Array], tune: int
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    with steps(f"compiling {graph.name}") as progress:
        engine = compile(graph, machine, threads=threads, progress=progress, tune=tune)
    outputs, seconds = _timed_graph(engine, inputs, machine)
    plan = engine.plan
    facts = [
        ("groups", f"{len(engine.steps)}, {len(engine.compiled_groups)} different"),
        ("compiled in", seconds_text(engine.seconds)),
        ("arena", f"{bytes_text(plan.size)}, lower bound {bytes_text(plan.bound)}"),
        *((("measured", text),) if (text := measured_text(engine.compiled_groups)) else ()),
        ("fallbacks", ", ".join(engine.fallbacks) or "none"),
        *((("by numpy", ", ".join(engine.by_numpy)),) if engine.by_numpy else ()),
        *_speed(machine, seconds, engine_cycles(engine)),
    ]
    return facts, outputs


def _run_model(
    work: Work, machine: Machine, threads: int, inputs: Mapping[str, Array], tune: int
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    """A model whose shapes or branches only the run can tell."""
    assert work.model is not None
    values = {**inputs, **work.constants}
    with busy(f"compiling and running {work.name}"), catch_warnings():
        simplefilter("ignore", FallbackWarning)  # the facts name them
        engine = compile(work.model, machine, threads=threads, tune=tune)
        start = perf_counter()
        found = engine.run(values)
        first = perf_counter() - start
        seconds = first if machine.kind == "accelerator" else _median(lambda: engine.run(values), first)
    facts = [
        ("stages", f"{len(engine.engines)} compiled, for the shapes and values of these inputs"),
        ("first run", seconds_text(first)),
        ("fallbacks", ", ".join(engine.fallbacks) or "none"),
        *((("by numpy", ", ".join(engine.by_numpy)),) if engine.by_numpy else ()),
        ("one run", seconds_text(seconds)),
    ]
    return facts, {name: _as_array(name, value) for name, value in found.items()}


def _as_array(name: str, value: object) -> Array:
    """An output as an array, a sequence of arrays of one shape stacked, text as text."""
    try:
        found = np.asarray(value)
        found = found.astype(np.str_) if found.dtype == object and all(type(t) is str for t in found.flat) else found
    except ValueError:
        found = np.array(None)
    if found.dtype == object:
        text = f"output {name!r} is {type(value).__name__}, no array"
        raise RunError(text, hint="poly.compile(pathlib.Path(...)).run(...) in Python gives it as it is")
    return found


def engine_cycles(engine: Engine) -> int | None:
    """Cycles of one run on an accelerator, group after group; None on a CPU."""
    if engine.machine.kind != "accelerator":
        return None
    from poly.accel.compiled import StreamKernel

    kernels = (step.compiled.kernel for step in engine.steps if step.compiled is not None)
    return sum(k.report.cycles for k in kernels if isinstance(k, StreamKernel))


def _timed_graph(engine: Engine, inputs: Mapping[str, Array], machine: Machine) -> tuple[dict[str, Array], float]:
    """Outputs of the first run; on a CPU the median time of some more."""
    with steps("running") as progress:
        done = 0

        def observe(_step: object, _seconds: float) -> None:
            nonlocal done
            done += 1
            progress(done, len(engine.steps))

        start = perf_counter()
        outputs = engine.run(inputs, observe=observe)
        first = perf_counter() - start
    if machine.kind == "accelerator":
        return outputs, first
    return outputs, _median(lambda: engine.run(inputs), first)


def _median(call: Callable[[], object], first: float) -> float:
    """Median seconds of a call, over about half a second."""
    times: list[float] = []
    for _ in range(max(1, min(50, int(0.5 / max(first, 1e-5))))):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return float(np.median(times))


def _speed(machine: Machine, seconds: float, cycles: int | None) -> list[tuple[str, str]]:
    if cycles is None:
        return [("one run", seconds_text(seconds))]
    micro = cycles / max(1, machine.clock_mhz)
    return [("one run", f"{count_text(cycles)} cycles ({micro:.1f} us), simulated in {seconds_text(seconds)}")]


def _run_program(
    work: Work, machine: Machine, threads: int, inputs: Mapping[str, Array], tune: int
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    program = work.program
    assert program is not None
    constants = {t.name: inputs[t.name] for t in program.with_role("constant")}
    start = perf_counter()
    literal = machine.kind == "accelerator" and program.parameters
    bound = program.bind(**known_sizes(work, inputs)) if literal else program
    with busy("compiling"):
        kernel = compile(
            bound, machine, constants=constants, threads=threads, schedule=work.schedule, tune=tune
        )  # fmt: skip
    compiled = perf_counter() - start
    arrays = [inputs[t.name] for t in program.inputs]
    start = perf_counter()
    found = kernel(*arrays)
    seconds = perf_counter() - start
    results = found if isinstance(found, tuple) else (found,)
    report = getattr(kernel, "report", None)
    if report is None:
        seconds = _median(lambda: kernel(*arrays), seconds)
    measured = getattr(kernel, "measured", None)
    facts = [
        ("statements", ", ".join(s.name for s in program.statements)),
        ("compiled in", seconds_text(compiled)),
        *((("measured", str(measured)),) if measured is not None else ()),
        *_speed(machine, seconds, None if report is None else report.cycles),
    ]
    return facts, dict(zip([t.name for t in program.outputs], results, strict=True))


_TO_CODES = ("QuantizeLinear", "DynamicQuantizeLinear")
_OF_CODES = """\
the model rounds to codes: a value between two of them goes to either with the last bit of a sum, and further layers may
make more of it, so that two right results differ by a few steps of the output's scale"""


def _check(work: Work, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    """Print the differences from a reference that is not ours where there is one; True where there are none."""
    with busy("running the reference"):
        reference, differences = _differences(work, inputs, outputs)
    print()
    for d in differences:
        print(f"{'ok' if d.ok else 'MISMATCH'}  {d}")
    good = all(d.ok for d in differences)
    print(f"{'agrees' if good else 'does not agree'} with {reference}")
    if not good and work.model is not None and any(n.op_type in _TO_CODES for n in work.model.graph.node):
        print(f"\n{_OF_CODES}")
    return good


def _differences(work: Work, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[str, list[Difference]]:
    if work.model is not None:
        expected = onnx_reference(work.model, {**inputs, **work.constants})
        return "onnx.reference", [compare(n, outputs[n], np.asarray(a), 1e-4) for n, a in expected.items()]
    assert work.program is not None
    program = work.program
    terms = longest_reduction(program, known_sizes(work, inputs))
    if work.spec:
        operands = list(inputs.values())
        wide: list[npt.NDArray[Any]] = [a.astype(np.float64) if is_float(dtype_name(a.dtype)) else a for a in operands]
        (name, found), *_ = outputs.items()
        tolerance = tolerance_of("f64" if found.dtype == np.float64 else "f32", terms)  # which narrow sums are kept in
        expected_array = np.asarray(np.einsum(work.spec, *wide)).astype(found.dtype)
        return "numpy.einsum in float64", [compare(name, found, expected_array, tolerance)]
    values = run_program(program, dict(inputs))
    tolerances = {n: max((tolerance_of(d, terms) for d in floats_of(program, n)), default=0.0) for n in outputs}
    return "the reference interpreter", [compare(n, a, values[n], tolerances[n]) for n, a in outputs.items()]


def floats_of(program: Program, output: str) -> set[str]:
    """The floating dtypes in which an output and what it is made of are computed."""
    found, behind, left = set[str](), set[str](), [output]
    while left:
        behind.add(tensor := left.pop())
        for s in program.statements:
            if s.write.tensor == tensor:
                reads = [program.tensor[r.tensor].dtype for r in s.reads]
                inner = [dtype_of(e, reads) for e in walk(s.body) if isinstance(e, Apply | Cast)]
                found |= {program.tensor[tensor].dtype, *(d for d in inner if d is not None)}
                left += {r.tensor for r in s.reads} - behind
    return set(filter(is_float, found))


def longest_reduction(program: Program, sizes: Mapping[str, int]) -> float:
    """Instances for each element written, of the statement that has most; 1 where it is not counted."""
    longest = 1.0
    for s in program.statements:
        if s.combiner is not None:
            points = count_points(fix_sizes(s.domain.intersect_params(program.context), sizes))
            elements = math.prod(program.tensor[s.write.tensor].extents(sizes))
            longest = max(longest, (points or 1) / max(1, elements))
    return longest


# ---- show


def show(work: Work, level: Level, target: str, group: int | None, threads: int) -> str:
    """The text of a level. Raises `UsageError` where a graph needs a group, or a level another target."""
    if work.refused is not None:
        raise work.refused
    if work.graph is not None:
        if group is None and level == "program":
            return str(work.graph)
        if group is None and level == "explain":
            return _explain_graph(work.graph, target, threads)
        work = _group_of(work, group, level, machine_of(target), threads)
    elif group is not None:
        raise UsageError("--group is for ONNX files", hint="leave it out")
    program = work.program
    assert program is not None
    if level == "program":
        return str(program)
    machine = machine_of(target)
    if level in ("ir", "asm") and machine.kind != "cpu":
        raise UsageError(f"{machine.name} has no {level}", hint="--level stream, or --target cpu")
    if level == "stream" and machine.kind == "cpu":
        raise UsageError("a CPU has no command stream", hint=f"--target {DEFAULT_PROFILE}")
    return _level_text(work, program, level, machine, threads)


def _explain_graph(graph: Graph, target: str, threads: int) -> str:
    from poly.explainer import explain

    with steps(f"compiling {graph.name}") as progress:
        engine = compile(graph, target, threads=threads, progress=progress)
    return str(explain(engine))


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as "4 to 9"."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def _group_of(work: Work, group: int | None, level: Level, machine: Machine, threads: int) -> Work:
    assert work.graph is not None
    program = model_for_cpu(work.graph.to_program(), work.graph.constants, machine)
    parts = group_program(program, machine, threads).parts  # as engines do
    hint = f"--group N, of {_spans([*parts])}"
    if group is None:
        raise UsageError(f"{level} of which group?", hint=hint)
    if group not in parts:
        raise UsageError(f"no group {group}", where=work.name, hint=hint)
    part, known = parts[group], work.graph.constants
    return Work(part.name, program=part, constants={n: known[n] for n in part.tensor if n in known})


def _level_text(work: Work, program: Program, level: Level, machine: Machine, threads: int) -> str:
    constants = {
        t.name: work.constants.get(t.name, random_array(t, program.binding, np.random.default_rng(0)))
        for t in program.with_role("constant")
        if all(e.names <= program.binding.keys() for e in t.shape)
    }
    if machine.kind == "cpu" and level in ("schedule", "loops"):  # without making code
        from poly.prepared import prepare_edited

        schedule = work.schedule or prepare_edited(program, constants, machine, threads)[1].schedule
        return str(schedule) if level == "schedule" else str(schedule.lower())
    with busy("compiling"):
        kernel = compile(program, machine, constants=constants, threads=threads, schedule=work.schedule)
    return _kernel_text(kernel, level)


def _kernel_text(kernel: Kernel | StreamKernel, level: Level) -> str:
    match level:
        case "schedule":
            return str(kernel.schedule)
        case "loops":
            return str(kernel.loops)
        case "ir" | "asm":
            return str(getattr(kernel, level))
        case "stream":
            return str(getattr(kernel, "stream"))  # noqa: B009
        case _:
            from poly.explainer import explain

            return str(explain(kernel))
