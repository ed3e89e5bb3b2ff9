"""`poly run` and `poly show`: what they work on, from a word on the command line, and what they print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from re import match
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal
from warnings import catch_warnings, simplefilter

import numpy as np
import numpy.typing as npt

from poly.affine import Affine
from poly.checking import Array, Difference, compare, onnx_reference
from poly.compiler import compile, machine_of
from poly.console import busy, print_facts, print_table, steps
from poly.document import bytes_text, count_text, seconds_text
from poly.dtypes import dtype_name, is_float, numpy_dtype
from poly.engine import Engine
from poly.errors import FallbackWarning, OnnxError, ParseError, PolyError, RunError, ShapeError
from poly.graph import Graph
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program, Tensor
from poly.scheduling.axis_orders import reordered
from poly.scheduling.groups import extract
from poly.scheduling.row_groups import groups_for
from poly.scheduling.schedule import Schedule
from poly.scheduling.traffic import count_points
from poly.sets import fix_sizes, identifier

if TYPE_CHECKING:
    import onnx

    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel

Level = Literal["program", "schedule", "loops", "ir", "asm", "stream", "explain"]
Named = tuple[str | None, str]
DEFAULT_PROFILE: Final = "s16"  # where a command needs an accelerator and names none


class UsageError(PolyError):
    """Arguments that do not go together; the command ends with 2."""


@dataclass(frozen=True)
class Work:
    """What a command works on. `spec`: of an einsum; `model`: of a graph, `constants` its fixed inputs; `schedule`:
    where the text brought one. `refused`: why a model has no static graph; it then compiles while it runs, for
    `tensors`, its inputs by the names a user knows them by.
    """

    name: str
    program: Program | None = None
    graph: Graph | None = None
    spec: str = ""
    model: onnx.ModelProto | None = None
    schedule: Schedule | None = None
    constants: Mapping[str, Array] = field(default_factory=dict)
    refused: OnnxError | None = None
    tensors: tuple[tuple[str, Tensor], ...] = ()

    @property
    def inputs(self) -> tuple[tuple[str, Tensor], ...]:
        """Inputs by the names a user knows them by."""
        if self.graph is not None:
            return tuple((self.graph.label(t.name), t) for t in self.graph.inputs)
        if self.program is None:
            return self.tensors
        return tuple((t.name, t) for t in self.program.with_role("input", "inout", "state", "constant"))


def load(
    what: str, shapes: Sequence[Named] = (), dtype: str = "", arrays: Sequence[Named] = (),
    bind: Sequence[Named] = (), constants: Sequence[Named] = (),
) -> Work:  # fmt: skip
    """Read an ONNX file, a text file, Einstein notation or an einsum spec.

    `shapes`: (tensor or None, "64,32"); for einsum in the order of the operands. `arrays`: (name or None, file), which
    also give shapes and dtypes of einsum operands. `bind`, `constants`: dynamic dimensions and fixed inputs of a model.
    Raises `UsageError` for a word that is none of these.
    """
    path = Path(what)
    if dtype and (what.endswith(".onnx") or path.suffix == ".nest" or "[" in what or "=" in what):
        raise UsageError("--dtype is for einsum specs", hint="notation and models have dtypes of their own")
    if what.endswith(".onnx"):
        given, fixed = bindings(what, shapes, bind, constants)
        return _load_onnx(path, given, fixed, arrays)
    if bind or constants:
        raise UsageError("--bind and --constant are for ONNX files", hint="--shape NAME=64,64")
    if len(what) < 4096 and "\n" not in what and path.is_file():
        return _load_nest(path) if path.suffix == ".nest" else _load_text(path.read_text(), shapes, path.stem)
    if "[" in what or "=" in what:
        return _load_text(what, shapes, "")
    if not any(c in what for c in ",>. ") and not what.isalpha():
        raise UsageError(f"{what!r} is no file, no notation and no einsum spec", hint='"C[i,k] += A[i,j]*B[j,k]"')
    return _load_einsum(what, shapes, dtype or "f32", arrays)


def _extents(text: str) -> tuple[int | str, ...]:
    parts = [p.strip() for p in text.strip("()[] ").split(",") if p.strip()]
    return tuple(int(p) if p.lstrip("-").isdigit() else p for p in parts)


def _ints(text: str, what: str) -> tuple[int, ...]:
    found: list[int] = []
    for extent in _extents(text):
        if not isinstance(extent, int) or extent < 0:
            raise UsageError(f"--shape {text}: {what} have extents of ints", hint="--shape 64,96")
        found.append(extent)
    return tuple(found)


def read_array(file: str) -> Array:
    """An array from a .npy file. Raises `UsageError` where it is none."""
    try:
        found = np.load(file)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{file}: {str(error).splitlines()[0]}", hint="a file that numpy.save has written") from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{file} holds several arrays", hint="one .npy file for each input")
    return found


def bindings(
    file: str, shapes: Sequence[Named], bind: Sequence[Named], constants: Sequence[Named]
) -> tuple[dict[str, tuple[int, ...] | int], dict[str, Array]]:
    """What binds a model: shapes of inputs and extents of dynamic dimensions; the arrays of fixed inputs.

    Raises `UsageError` for what is no NAME=VALUE, or where there is no such file.
    """
    if not Path(file).is_file():
        raise UsageError(f"no file {file}")
    given: dict[str, tuple[int, ...] | int] = {}
    for name, text in shapes:
        if name is None:
            raise UsageError(f"--shape {text}: of which input?", hint=f"--shape INPUT={text}")
        given[name] = _ints(text, "inputs of a model")
    for name, text in bind:
        if name is None or not text.isdigit():
            raise UsageError(f"--bind {text}: no extent of a dimension", hint="--bind batch=1")
        given[name] = int(text)
    return given, {name or "": _fixed(file, name, text) for name, text in constants}


def _fixed(file: str, name: str | None, text: str) -> Array:
    """The array of a fixed input: a file's, or a number in the dtype that the model declares."""
    if name is None:
        raise UsageError(f"--constant {text}: of which input?", hint=f"--constant INPUT={text}")
    if text.endswith(".npy"):
        return read_array(text)
    from poly.frontend.onnx_model import input_dtype, load_model

    dtype = input_dtype(load_model(file), name)
    try:
        return np.array(float(text) if is_float(dtype) else int(text), numpy_dtype(dtype))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--constant {name}={text}: no {dtype}", hint="a number, or FILE.npy") from error


def _load_onnx(
    path: Path, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array], arrays: Sequence[Named]
) -> Work:
    import onnx

    from poly.frontend.onnx_import import from_onnx
    from poly.frontend.onnx_model import load_model

    with busy(f"reading {path.name}"):
        given = {**_shapes_of(load_model(path), constants, arrays), **given}
        try:
            graph = from_onnx(path, given, constants)
        except OnnxError as error:
            refused = _as_options(error, path, given, constants)
            tensors = _inputs_at_run_time(load_model(path), given, constants)
            if tensors is None:
                raise refused from None
            return Work(path.stem, model=load_model(path), constants=dict(constants), refused=refused, tensors=tensors)
        model = onnx.load(str(path))
    return Work(path.stem, graph=graph, model=model, constants=dict(constants))


def _shapes_of(
    model: onnx.ModelProto, constants: Mapping[str, Array], arrays: Sequence[Named]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs that files give, by name or in order."""
    free = [i.name for i in _free_inputs(model, constants)]
    unnamed = [file for name, file in arrays if name is None]
    pairs = [(n, f) for n, f in arrays if n is not None] + list(zip(free, unnamed, strict=False))
    return {name: read_array(file).shape for name, file in pairs if name in free}


def _free_inputs(model: onnx.ModelProto, constants: Mapping[str, Array]) -> list[onnx.ValueInfoProto]:
    fixed = {i.name for i in model.graph.initializer} | constants.keys()
    return [i for i in model.graph.input if i.name not in fixed]


def _inputs_at_run_time(
    model: onnx.ModelProto, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> tuple[tuple[str, Tensor], ...] | None:
    """The inputs of a model that compiles while it runs; None where a shape is open, or one is no array of numbers."""
    from poly.frontend.onnx_model import input_dtype, input_shapes

    free = _free_inputs(model, constants)
    try:
        shapes = input_shapes(list(model.graph.input), given, constants)
        known = {
            i.name: tuple(Affine((), n) for n in shape) for i, (shape, _) in zip(model.graph.input, shapes, strict=True)
        }
        tensors = [Tensor(identifier(i.name), known[i.name], input_dtype(model, i.name), "input") for i in free]
    except PolyError:
        return None
    return tuple(zip([i.name for i in free], tensors, strict=True))


def _as_options(
    error: OnnxError, path: Path, given: Mapping[str, tuple[int, ...] | int], constants: Mapping[str, Array]
) -> OnnxError:
    """An error whose hint is a call of `from_onnx`, with options of the command instead."""
    if not (error.hint or "").startswith("from_onnx("):
        return error
    from poly.frontend.onnx_model import dynamic_dimensions, load_model

    free = dynamic_dimensions(load_model(path), given, constants)
    hint = " ".join(f"--bind {name}=1" for name in free) or "--shape INPUT=1,3,224,224"
    return OnnxError(error.message, where=error.where, hint=f"{hint}, with the extents you need")


def _load_text(text: str, shapes: Sequence[Named], name: str) -> Work:
    from poly.frontend.notation import parse

    if any(line.rstrip() == "script" for line in text.splitlines()):
        from poly.scheduling.schedule_text import parse_schedule

        schedule = parse_schedule(text)
        return Work(schedule.source.name, program=schedule.source, schedule=schedule)
    given: dict[str, tuple[int | str, ...]] = {}
    for tensor, extents in shapes:
        if tensor is None:
            raise UsageError(f"--shape {extents}: notation needs the tensor's name", hint=f"--shape A={extents}")
        given[tensor] = _extents(extents)
    try:
        program = parse(text, **given)  # type: ignore[arg-type]  # a tensor may not be called dtypes
    except (ParseError, ShapeError) as error:
        if call := match(r"(\w+)=\(", error.hint or ""):  # an argument of parse
            raise UsageError(error.message, where=error.where, hint=f"--shape {call[1]}=64,96") from None
        raise
    return Work(name or program.name, program=program)


def _load_nest(path: Path) -> Work:
    """A case of the regression tests: its sections `[program]` and `[script]`."""
    from poly.frontend.notation import parse
    from poly.scheduling.edits import apply_edit
    from poly.scheduling.schedule_text import parse_edit

    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("[") and line.endswith("]") and line[1:-1].isidentifier():
            current = sections.setdefault(line[1:-1], [])
        else:
            current.append(line)
    if "program" not in sections:
        raise UsageError("has no section [program]", where=str(path))
    schedule = Schedule(parse("\n".join(sections["program"])))
    script = sections.get("script", [])
    for number, line in enumerate(script, 1):
        edit = parse_edit(line, number, "\n".join(script))
        schedule = schedule if edit is None else apply_edit(schedule, edit)
    return Work(path.stem, program=schedule.source, schedule=schedule if schedule.log else None)


def _load_einsum(spec: str, shapes: Sequence[Named], dtype: str, arrays: Sequence[Named]) -> Work:
    from poly.frontend.einsum import einsum_program

    operands = spec.split("->")[0].count(",") + 1
    if arrays:
        given = [read_array(file) for _, file in arrays]
        found, dtypes = [a.shape for a in given], [dtype_name(a.dtype) for a in given]
    else:
        found = [_ints(text, "operands of an einsum") for _, text in shapes]
        dtypes = [dtype] * len(found)
    if len(found) != operands:
        raise UsageError(
            f"{spec!r} has {operands} operands, {len(found)} are given",
            hint=" ".join(["--shape 64,64"] * operands) + ", or --input FILE.npy for each",
        )
    return Work(spec, program=einsum_program(spec, found, dtypes), spec=spec)


# ---- inputs


def random_array(tensor: Tensor, sizes: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Seeded values: normal floats, small integers (not negative where they may be subscripts), bools."""
    shape, dtype = tensor.extents(sizes), numpy_dtype(tensor.dtype)
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if is_float(tensor.dtype):
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.integers(-8 if tensor.dtype in ("i8", "i16") else 0, 8, shape).astype(dtype)


def read_inputs(work: Work, given: Sequence[Named], seed: int) -> dict[str, Array]:
    """Arrays by input name: from files (by name, or in order), random where none is given. Raises `UsageError`."""
    known = dict(work.inputs)
    found: dict[str, Array] = {}
    unnamed = [file for name, file in given if name is None]
    for name, file in [(n, f) for n, f in given if n is not None] + list(zip(known, unnamed, strict=False)):
        if name not in known:
            raise UsageError(f"no input {name!r}", hint=f"inputs: {', '.join(known)}")
        found[name] = read_array(file)
    if len(unnamed) > len(known):
        raise UsageError(f"{len(unnamed)} arrays for {len(known)} inputs", hint=f"inputs: {', '.join(known)}")
    rng = np.random.default_rng(seed)
    sizes = _sizes(work, found)
    return {n: found[n] if n in found else random_array(t, sizes, rng) for n, t in known.items()}


def _sizes(work: Work, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Values of all sizes: bound ones, and those that the arrays give. Raises `UsageError` where one stays open."""
    if work.program is None:
        return {}
    sizes = work.program.binding
    for name, tensor in work.inputs:
        for extent, length in zip(tensor.shape, np.shape(arrays[name]) if name in arrays else (), strict=False):
            if len(extent.names) == 1 and extent.constant == 0:
                sizes.setdefault(next(iter(extent.names)), length)
    if free := [p for p in work.program.parameters if p not in sizes]:
        raise UsageError(
            f"size {free[0]} is not known", hint="give arrays with --input, or shapes of ints with --shape"
        )
    return sizes


# ---- run


def run(
    work: Work, target: str, threads: int, given: Sequence[Named], seed: int, check: bool, save: str | None
) -> bool:
    """Compile, run, print; False where `check` finds a difference."""
    if save and not Path(save).absolute().parent.is_dir():
        raise UsageError(f"--save {save}: no folder {Path(save).parent}", hint="make it first")
    machine = machine_of(target)
    inputs = read_inputs(work, given, seed)
    if work.graph is not None:
        facts, outputs = _run_graph(work.graph, machine, threads, inputs)
    elif work.refused is not None:
        facts, outputs = _run_model(work, machine, threads, inputs)
    else:
        facts, outputs = _run_program(work, machine, threads, inputs)
    source = "files" if given else f"random, seed {seed}"
    print_facts(f"{work.name} on {machine.name}", [*facts, ("inputs", f"{len(inputs)}, {source}")])
    print()
    rows = [
        (n, f"{a.dtype}{list(a.shape)}", *(_figure(f, a) for f in (np.min, np.max, np.mean)))
        for n, a in outputs.items()
    ]
    print_table("", ("output", "type", "min", "max", "mean"), rows)
    if save:
        np.savez(save, allow_pickle=False, **outputs)
        print(f"saved to {save}")
    return _check(work, inputs, outputs) if check else True


def _figure(function: object, array: Array) -> str:
    if not array.size or array.dtype.kind in "cOSU":
        return "-"
    return f"{float(function(array.astype(np.float64))):.6g}"  # type: ignore[operator]


def _run_graph(
    graph: Graph, machine: Machine, threads: int, inputs: Mapping[str, Array]
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    with steps(f"compiling {graph.name}") as progress:
        engine = compile(graph, machine, threads=threads, progress=progress)
    outputs, seconds = _timed_graph(engine, inputs, machine)
    plan = engine.plan
    facts = [
        ("groups", f"{len(engine.steps)}, {len(engine.units)} different"),
        ("compiled in", seconds_text(engine.seconds)),
        ("arena", f"{bytes_text(plan.size)}, lower bound {bytes_text(plan.bound)}"),
        ("fallbacks", ", ".join(engine.fallbacks) or "none"),
        *_speed(machine, seconds, engine_cycles(engine)),
    ]
    return facts, outputs


def _run_model(
    work: Work, machine: Machine, threads: int, inputs: Mapping[str, Array]
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    """A model whose shapes or branches only the run can tell."""
    assert work.model is not None
    values = {**inputs, **work.constants}
    with busy(f"compiling and running {work.name}"), catch_warnings():
        simplefilter("ignore", FallbackWarning)  # the facts name them
        engine = compile(work.model, machine, threads=threads)
        start = perf_counter()
        found = engine.run(values)
        first = perf_counter() - start
        seconds = first if machine.kind == "accelerator" else _median(lambda: engine.run(values), first)
    facts = [
        ("stages", f"{len(engine.engines)} compiled, for the shapes and values of these inputs"),
        ("first run", seconds_text(first)),
        ("fallbacks", ", ".join(engine.fallbacks) or "none"),
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

    kernels = (step.unit.kernel for step in engine.steps if step.unit is not None)
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


def _median(call: object, first: float) -> float:
    """Median seconds of a call, over about half a second."""
    times: list[float] = []
    for _ in range(max(1, min(50, int(0.5 / max(first, 1e-5))))):
        start = perf_counter()
        call()  # type: ignore[operator]
        times.append(perf_counter() - start)
    return float(np.median(times))


def _speed(machine: Machine, seconds: float, cycles: int | None) -> list[tuple[str, str]]:
    if cycles is None:
        return [("one run", seconds_text(seconds))]
    micro = cycles / max(1, machine.clock_mhz)
    return [("one run", f"{count_text(cycles)} cycles ({micro:.1f} us), simulated in {seconds_text(seconds)}")]


def _run_program(
    work: Work, machine: Machine, threads: int, inputs: Mapping[str, Array]
) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    program = work.program
    assert program is not None
    constants = {t.name: inputs[t.name] for t in program.with_role("constant")}
    start = perf_counter()
    bound = program.bind(**_sizes(work, inputs)) if machine.kind == "accelerator" and program.parameters else program
    with busy("compiling"):
        kernel = compile(bound, machine, constants=constants, threads=threads, schedule=work.schedule)
    compiled = perf_counter() - start
    arrays = [inputs[t.name] for t in program.inputs]
    start = perf_counter()
    found = kernel(*arrays)
    seconds = perf_counter() - start
    results = found if isinstance(found, tuple) else (found,)
    report = getattr(kernel, "report", None)
    if report is None:
        seconds = _median(lambda: kernel(*arrays), seconds)
    facts = [
        ("statements", ", ".join(s.name for s in program.statements)),
        ("compiled in", seconds_text(compiled)),
        *_speed(machine, seconds, None if report is None else report.cycles),
    ]
    return facts, dict(zip([t.name for t in program.outputs], results, strict=True))


def _check(work: Work, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> bool:
    """Print the differences from a reference that is not ours where there is one; True where there are none."""
    with busy("running the reference"):
        reference, differences = _differences(work, inputs, outputs)
    for d in differences:
        print(f"{'ok' if d.ok else 'MISMATCH'}  {d}")
    good = all(d.ok for d in differences)
    print(f"{'agrees' if good else 'does not agree'} with {reference}")
    return good


def _differences(work: Work, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[str, list[Difference]]:
    if work.model is not None:
        expected = onnx_reference(work.model, {**inputs, **work.constants})
        return "onnx.reference", [compare(n, outputs[n], np.asarray(a), 1e-4) for n, a in expected.items()]
    assert work.program is not None
    tolerance = 1e-5 * longest_reduction(work.program, _sizes(work, inputs)) ** 0.5
    if work.spec:
        operands = list(inputs.values())
        wide: list[npt.NDArray[Any]] = [a.astype(np.float64) if is_float(dtype_name(a.dtype)) else a for a in operands]
        (name, found), *_ = outputs.items()
        expected_array = np.asarray(np.einsum(work.spec, *wide)).astype(found.dtype)
        return "numpy.einsum in float64", [compare(name, found, expected_array, tolerance)]
    values = run_program(work.program, dict(inputs))
    return "the reference interpreter", [compare(n, a, values[n], tolerance) for n, a in outputs.items()]


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
        work = _group_of(work, group, level, machine_of(target))
    elif group is not None:
        raise UsageError("--group is for ONNX files")
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


def _group_of(work: Work, group: int | None, level: Level, machine: Machine) -> Work:
    assert work.graph is not None
    program = reordered(work.graph.to_program(), machine)  # as engines do
    groups = groups_for(program, machine)
    if group is None:
        raise UsageError(f"{level} of which group?", hint=f"--group 0 to --group {len(groups) - 1}")
    if not 0 <= group < len(groups):
        raise UsageError(f"no group {group}", where=work.name, hint=f"--group 0 to --group {len(groups) - 1}")
    part = extract(program, groups[group], f"group_{group}")
    loose = tuple(replace(t, role="input") if t.role == "constant" else t for t in part.tensors)
    return Work(part.name, program=replace(part, tensors=loose))


def _level_text(work: Work, program: Program, level: Level, machine: Machine, threads: int) -> str:
    if machine.kind == "cpu" and level in ("schedule", "loops"):  # without making code
        from poly.scheduling.cpu import schedule_for_cpu

        schedule = work.schedule or schedule_for_cpu(program, machine, threads)
        return str(schedule) if level == "schedule" else str(schedule.lower())
    constants = {
        t.name: random_array(t, program.binding, np.random.default_rng(0)) for t in program.with_role("constant")
    }
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


def require_inputs(arrays: Sequence[Named]) -> None:
    """Raise `RunError` for array files that are not there, before anything is compiled."""
    for _, file in arrays:
        if not Path(file).is_file():
            raise RunError(f"no file {file}")
