"""`compile`: the way from a program, a graph or text to something that runs.

Program -> Schedule (the given one, or the policy's for the target) -> LoopTree -> Kernel | CommandStream. Everything
that comes out has been checked: the schedule against its source program, the loop tree for running each instance once
and in bounds, the stream by the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from re import MULTILINE, fullmatch, search
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, SupportsIndex, TypeGuard, cast, overload

import numpy as np

from poly.arguments import checks_kinds, shown
from poly.console import Progress, interactive, steps
from poly.dtypes import Array, numpy_dtype
from poly.engine import CompiledGroup, CompileGroup, Engine, PrepareAhead
from poly.errors import ArgumentError, MachineError, PolyError, ScheduleError, within_depth
from poly.files import model_instead
from poly.graph import Graph, SizedGraph
from poly.machine import Machine
from poly.pointers import aligned_zeros
from poly.prepared import Prepared, prepare, prepare_edited, prepare_free, prepare_scheduled
from poly.program import Program, deepest_body, program_of
from poly.scheduling.initialised import check_initialised
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.schedule import Schedule
from poly.settings import MOST_THREADS, check_settings, compiling_processes, thread_number, usable_cores, warn_of_cores
from poly.tuning import ALONE, Measured, Tuning, tuning_of

if TYPE_CHECKING:
    import onnx

    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel
    from poly.frontend.nest import Nest
    from poly.model_engine import ModelEngine
    from poly.sized_engine import SizedEngine


def machine_of(target: str | Machine) -> Machine:
    """A machine from "cpu", a profile's name, a path to a TOML file, or itself. Raises `MachineError`."""
    if isinstance(target, Machine):
        return target
    if not isinstance(target, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = '"cpu", a name from `poly machines`, or a TOML file'
        hint = "arrays go to what it returns: compile(what)(array)" if hasattr(target, "shape") else hint
        raise MachineError(f"the target is {shown(target)}", hint=hint)
    if target == "cpu":
        from poly.codegen.host import host_machine

        return host_machine()
    from poly.accel.profile import profile

    return profile(target)


@overload
def compile(  # pyright: ignore[reportOverlappingOverload]  # every other graph has an Engine
    what: SizedGraph,
    target: str | Machine = "cpu",
    *,
    constants: Mapping[str, Array] | None = None,
    threads: SupportsIndex | None = None,
    schedule: None = None,
    tune: None = None,
    progress: Progress | None = None,
) -> SizedEngine: ...
@overload
def compile(
    what: Graph,
    target: str | Machine = "cpu",
    *,
    constants: Mapping[str, Array] | None = None,
    threads: SupportsIndex | None = None,
    schedule: None = None,
    tune: Tuning | int | bool | None = None,
    progress: Progress | None = None,
) -> Engine: ...
@overload
def compile(
    what: onnx.ModelProto | Path,
    target: str | Machine = "cpu",
    *,
    constants: None = None,
    threads: SupportsIndex | None = None,
    schedule: None = None,
    tune: Tuning | int | bool | None = None,
    progress: Progress | None = None,
) -> ModelEngine: ...
@overload
def compile(
    what: Program | Schedule | Nest[..., object] | str,
    target: str | Machine = "cpu",
    *,
    constants: Mapping[str, Array] | None = None,
    threads: SupportsIndex | None = None,
    schedule: Schedule | None = None,
    tune: Tuning | int | bool | None = None,
    progress: Progress | None = None,
) -> Kernel | StreamKernel: ...
@checks_kinds(PolyError, "Schedule", "Tuning", hint=lambda args, given: _meant(args, given))
def compile(
    what: Program | Graph | Schedule | Nest[..., object] | str | onnx.ModelProto | Path,
    target: str | Machine = "cpu",
    *,
    constants: Mapping[str, Array] | None = None,
    threads: SupportsIndex | None = None,
    schedule: Schedule | None = None,
    tune: Tuning | int | bool | None = None,
    progress: Progress | None = None,
) -> Kernel | StreamKernel | Engine | ModelEngine | SizedEngine:
    """Compile a program (its text, a nest, or a schedule of it) to a kernel, or a graph to an engine.

    An ONNX model, or the path of one, gives an engine that compiles at its first run, for what it then sees. A graph
    with free sizes (`from_onnx(..., ranges=...)`) is compiled once for all of them; see `poly.sized_engine`.

    Elements of an output that no statement writes are zero, in `out=` too (on an accelerator such a program is
    refused); a read of a temporary's element before it is written is refused.

    `target`: "cpu", the name of an accelerator profile, a path to a machine's TOML file, or a `Machine`. `constants`:
    arrays of the program's constant tensors. `threads`: for the CPU, 1 unless given; all kernels of a process
    share one pool, whose settings `poly.pool()` has; more than there are cores take turns on them, with a
    `SettingWarning`. `schedule`: a schedule of this program to use instead of the policy's. `tune`: how many plans are
    measured for each contraction on a CPU, or a `poly.Tuning`; the fastest is used, and kept on disk. `progress(done,
    all)` is called while a graph is compiled; without one, a bar shows after a second in an interactive session or a
    notebook (`POLYLOOM_PROGRESS`).
    Raises `PolyError` kinds: `ParseError`, `ScheduleError`, `UnsupportedError`, `CapacityError`, `MachineError`.
    """
    check_settings()
    machine = machine_of(target)
    if threads is not None:
        threads = thread_number(threads)
        warn_of_cores(threads, usable_cores() if machine.kind == "cpu" else MOST_THREADS)
    if isinstance(what, Graph):
        if schedule is not None or constants:
            hint = "compile graph.to_program() instead"
            raise ScheduleError("a graph brings its own constants and schedules", hint=hint)
        with within_depth(lambda: deepest_body(s for n in what.nodes for s in n.statements)):
            return _graph_engine(what, machine, threads or 1, progress, _tuning(tune, machine))
    if _is_model(what):
        if schedule is not None or constants:
            raise ScheduleError("a model brings its own constants and schedules", hint="from_onnx(..., constants=...)")
        return _model_engine(what, machine, threads or 1, progress, _tuning(tune, machine))
    program, own = _program_and_schedule(what)
    with within_depth(lambda: deepest_body(program.statements)):
        return _compiled(program, machine, constants or {}, threads or 1, schedule or own, _tuning(tune, machine))


def _tuning(tune: Tuning | int | bool | None, machine: Machine) -> Tuning | None:
    """What is to be measured. Raises `ArgumentError` where nothing can be on this machine."""
    from poly.codegen.here import absent_here

    found = tuning_of(tune)
    if found is not None and machine.kind != "cpu":
        hint = "compile without tune: commands are chosen by the cycles that the simulator counts"
        raise ArgumentError(f"tune={shown(tune)} for {machine.name}, which is no CPU", hint=hint)
    if found is not None and (absent := absent_here(machine)):
        text, hint = f"this CPU has no {', '.join(absent)}", 'tune where it runs, or target="cpu"'
        raise ArgumentError(text, where=f"tune={shown(tune)} for {machine.name}", hint=hint)
    return found


def _compiled(
    program: Program, machine: Machine, constants: Mapping[str, Array], threads: int, schedule: Schedule | None,
    tuning: Tuning | None,
) -> Kernel | StreamKernel:  # fmt: skip
    if schedule is not None and tuning is not None:
        raise ScheduleError("a schedule leaves nothing to tune", where=schedule.source.name, hint="tune the program")
    if tuning is not None and (free := sorted({*program.parameters} - {*program.binding})):
        hint = f"program.bind({free[0]}=...): what is fastest depends on sizes"
        raise ArgumentError(f"size {free[0]} is free, so nothing can be measured", where=program.name, hint=hint)
    if schedule is not None and not _is_of(schedule, program, constants):
        raise ScheduleError(f"the schedule is of another program, {schedule.source.name!r}", hint="Schedule(program)")
    check_initialised(program)
    return compile_program(program, machine, dict(constants), threads, schedule, tuning)


def _is_of(schedule: Schedule, program: Program, constants: Mapping[str, Array]) -> bool:
    """Whether a schedule is of a program as it is written, or as the policies for a CPU take it."""
    from poly.scheduling.items import items_of, one_item

    source = schedule.source
    if _is_like(source, program, constants):
        return True
    items, own = items_of(program), items_of(source)
    if items is not None and own is not None:
        return _is_like(one_item(source, own), one_item(program, items), constants)
    return source == program  # one set has several texts, of which a file may hold another


def _is_like(source: Program, program: Program, constants: Mapping[str, Array]) -> bool:
    """Whether a program is another one after edits of the policies."""
    from poly.scheduling.cpu_program import like_another
    from poly.scheduling.shared_sums import is_in_parts
    from poly.scheduling.thread_blocks import blocks_like

    text = str(source)
    if text == str(program):
        return True
    for edited in like_another(program, source, constants):
        if text in (str(edited), str(blocks_like(edited, source))) or is_in_parts(source, edited) or source == edited:
            return True
    return False


def _meant(args: tuple[object, ...], given: Mapping[str, object]) -> str:
    """The call that gives shapes to what takes them, where they came to `compile`; else nothing."""
    what = args[0] if args else given.get("what")
    if isinstance(what, str) and _is_einsum(what):
        return f"einsum({what!r}, a, b)"
    strange = {name: value for name, value in given.items() if name not in signature(compile).parameters}
    named = strange.pop("shapes", strange)
    if not isinstance(what, str | Path) or not isinstance(named, Mapping) or not named:
        return ""
    shapes = {str(name): getattr(value, "shape", value) for name, value in cast("Mapping[str, object]", named).items()}
    if not any(isinstance(shape, tuple | list) for shape in shapes.values()):  # a near name of an argument is meant
        return ""
    if isinstance(what, Path) or _is_model_name(what):
        return f"compile(from_onnx({str(what)!r}, shapes={shapes}))"
    return f"compile(parse(text, {', '.join(f'{name}={shape}' for name, shape in shapes.items())}))"


def _is_model(what: object) -> TypeGuard[onnx.ModelProto | Path]:
    """Told by the name of its class: onnx is imported only where there is a model."""
    return isinstance(what, Path) or type(what).__name__ == "ModelProto"


def _program_and_schedule(what: object) -> tuple[Program, Schedule | None]:
    """The program of a text, a nest, a schedule or something compiled before; a schedule itself, too."""
    if isinstance(what, Schedule):
        return what.source, what
    found = _read_text(what) if isinstance(what, str) else program_of(what)
    if found is None:
        hint = "a Program, its text, a nest, a Schedule, a Graph or an ONNX model"
        hint = model_instead(what) if any(hasattr(what, name) for name in ("model_proto", "state_dict")) else hint
        hint = f"poly.nest({what.__name__}), of a function of loops" if _is_named(what) else hint
        raise PolyError(f"cannot compile {type(what).__name__}", hint=hint)
    return found, None


def _is_named(what: object) -> TypeGuard[FunctionType]:
    return isinstance(what, FunctionType) and what.__name__.isidentifier()


def _graph_engine(
    graph: Graph, machine: Machine, threads: int, progress: Progress | None, tuning: Tuning | None
) -> Engine | SizedEngine:
    from poly.engine_build import build_engine

    if progress is None and interactive() and tuning is None:
        with steps(f"compiling {graph.name}") as shown_steps:
            return _graph_engine(graph, machine, threads, shown_steps, None)
    compile_group, prepare_ahead = _group_compiler(machine, threads)
    if isinstance(graph, SizedGraph):
        if tuning is not None:
            hint = "from_onnx(..., shapes=...): what is fastest depends on sizes"
            raise ArgumentError("sizes are free, so nothing can be measured", where=graph.name, hint=hint)
        from poly.sized_build import build_sized_engine

        kernel = partial(_sized_kernel, machine, threads)
        literal = partial(_literal_engine, machine, threads, compile_group)
        return build_sized_engine(
            graph, machine, kernel, literal, compile_group=compile_group, threads=threads, progress=progress
        )
    if tuning is not None:
        return _tuned_engine(graph, machine, threads, tuning, progress)
    return build_engine(graph, machine, compile_group, threads=threads, progress=progress, prepare_ahead=prepare_ahead)


def _is_einsum(text: str) -> bool:
    return fullmatch(r"[A-Za-z., ]+(->[A-Za-z. ]*)?", text) is not None and ("->" in text or "," in text)


def _is_model_name(text: str) -> bool:
    return text.strip().lower().endswith(".onnx")


def _read_text(text: str) -> Program:
    """The program of a text; a file's name and an einsum string are met with where they belong."""
    if _is_model_name(text):
        hint = f"compile(pathlib.Path({text!r})), or compile(from_onnx({text!r}))"
        raise PolyError(f"a text is a program, not the name of a file: {text!r}", hint=hint)
    if _is_einsum(text):
        raise PolyError(f"{text!r} is a string of einsum, which has no shapes", hint=f"einsum({text!r}, a, b)")
    if search(r"^script\s*$", text, MULTILINE):
        raise PolyError("the text is of a schedule, not of a program", hint="compile(Schedule.parse(text))")
    from poly.frontend.notation import parse

    return parse(text)


def _model_engine(
    what: onnx.ModelProto | Path, machine: Machine, threads: int, progress: Progress | None, tuning: Tuning | None
) -> ModelEngine:
    from poly.engine_build import build_engine
    from poly.frontend.onnx_model import load_model
    from poly.frontend.onnx_stages import StagedModel
    from poly.model_engine import ModelEngine

    compile_group, prepare_ahead = _group_compiler(machine, threads)
    build = partial(
        build_engine, machine=machine, compile_group=compile_group, threads=threads, progress=progress,
        prepare_ahead=prepare_ahead,
    )  # fmt: skip
    if tuning is not None:
        build = partial(_tuned_engine, machine=machine, threads=threads, tuning=tuning, progress=progress)
    return ModelEngine(StagedModel(load_model(what), counting=machine.kind != "accelerator"), build)


def _tuned_engine(
    graph: Graph, machine: Machine, threads: int, tuning: Tuning, progress: Progress | None
) -> Engine:
    """A model with the fastest of several plans for each of its groups."""
    from poly.engine_build import build_engine
    from poly.tuned_engine import EngineTuner
    from poly.tuner import TuningContext

    def made_group(program: Program, made: Prepared, measured: Measured | None) -> CompiledGroup:
        return _compiled_group(program, made, machine, threads, perf_counter(), measured)

    def build(compile_group: CompileGroup, prepare_ahead: PrepareAhead) -> Engine:
        return build_engine(graph, machine, compile_group, threads=threads, prepare_ahead=prepare_ahead)

    return EngineTuner(TuningContext(tuning, machine, threads), made_group, progress).engine(build)


def compile_program(
    program: Program, machine: Machine, constants: Mapping[str, Array], threads: int, schedule: Schedule | None,
    tuning: Tuning | None = None,
) -> Kernel | StreamKernel:  # fmt: skip
    """One program for one machine.

    Raises `PolyError` where a constant is missing or does not fit, or the program has no compiled form.
    """
    from poly.codegen.arguments import constant

    for t in program.with_role("constant"):
        if t.name not in constants:
            raise PolyError(
                f"constant {t.name!r} has no value", where=program.name, hint="compile(..., constants={name: array})"
            )
    if unknown := constants.keys() - {t.name for t in program.with_role("constant")}:
        name = min(unknown)
        declared = program.tensor.get(name)
        hint = f"declare it in the program's text: constant {name}: f32[...]"
        if declared is not None:
            hint = f"pass it in the call, or declare it: constant {name}: {declared.dtype}[...]"
        raise PolyError(f"{name!r} is no constant of the program", where=program.name, hint=hint)
    fitting = {t.name: constant(t, constants[t.name], program.binding) for t in program.with_role("constant")}
    constants = {**constants, **fitting}
    if machine.kind == "accelerator":
        from poly.prepared_streams import prepare_stream

        return prepare_stream(program, machine, constants, schedule)
    if tuning is not None and (kernel := _tuned(program, machine, constants, threads, tuning)) is not None:
        return kernel
    early = compiling_processes() > 1
    if schedule is not None:
        loops, made = schedule.source, prepare_scheduled(schedule, machine, threads, early=early)
    else:
        loops, made = prepare_edited(program, constants, machine, threads, early=early)
    alone = ALONE if tuning is not None else None
    return _kernel(program, made, machine, _joined(constants, program, loops), threads, alone)


def _tuned(
    program: Program, machine: Machine, constants: Mapping[str, Array], threads: int, tuning: Tuning
) -> Kernel | None:
    """The program under the fastest of several plans; None where there is nothing to choose from."""
    from poly.scheduling.cpu_program import known_ways_for_cpu
    from poly.scheduling.uneven import finite_factors
    from poly.tuner import TuningContext, tuned

    def kernel(loops: Program, made: Prepared, measured: Measured | None = None) -> Kernel:
        return _kernel(program, made, machine, _joined(constants, program, loops), threads, measured)

    found = tuned(
        program, lambda: known_ways_for_cpu(program, constants, machine, threads), finite_factors(program, constants),
        kernel, TuningContext(tuning, machine, threads),
    )  # fmt: skip
    return None if found is None else kernel(found.program, found.made, found.measured)


def _joined(constants: Mapping[str, Array], program: Program, loops: Program) -> Mapping[str, Array]:
    """Constants of the program in the shapes that they have in one with joined axes."""
    found = dict(constants)
    for t in loops.with_role("constant"):
        shape = t.extents(program.binding) if t.shape != program.tensor[t.name].shape else None
        if shape is not None and np.shape(found[t.name]) == program.tensor[t.name].extents(program.binding):
            found[t.name] = np.reshape(found[t.name], shape)
    return found


def _kernel(
    program: Program, made: Prepared, machine: Machine, constants: Mapping[str, Array], threads: int,
    measured: Measured | None = None,
) -> Kernel:  # fmt: skip
    from poly.codegen.kernel import Code, Kernel, Origin

    compute = constant_kernel(made, machine, threads)
    computed = compute(constants) if compute is not None else {}
    origin, code = Origin(program, lambda: made.schedule, made.refused, measured), made.code(made.after)
    return Kernel(
        made.split.after, machine, program.inputs, program.outputs, constants, threads, stored=computed, origin=origin,
        code=Code(made.after, code),
    )  # fmt: skip


def constant_kernel(
    made: Prepared, machine: Machine, threads: int
) -> Callable[[Mapping[str, Array]], dict[str, Array]] | None:
    """The function from constants to those computed of them, in memory as their layouts say; zero where none lies.
    What each thread has for itself is there for so many `threads`.
    """
    from poly.codegen.arguments import copies_of
    from poly.codegen.here import absent_here
    from poly.codegen.host import host_machine
    from poly.codegen.kernel import Code, Kernel

    split = made.split
    if split.before is None:
        return None
    inputs = [t for t in split.before.tensors if t.role == "constant"]
    outputs = [t for t in split.before.tensors if t.is_output]
    if absent_here(machine):  # they are computed here
        kernel = Kernel(split.before, host_machine(), inputs, outputs)
    else:
        code = Code(made.before, made.code(made.before)) if made.before is not None else None
        kernel = Kernel(split.before, machine, inputs, outputs, code=code)
    sizes = dict(split.before.sizes)

    def compute(constants: Mapping[str, Array]) -> dict[str, Array]:
        results = {t.name: aligned_zeros(t.storage_extents(sizes), numpy_dtype(t.dtype)) for t in outputs}
        given = [np.require(constants[t.name], numpy_dtype(t.dtype), ["C", "A"]) for t in inputs]
        kernel.run_into(given, [*results.values()])
        for t in split.computed:
            if t.name in split.after.per_thread:
                results[t.name] = copies_of(t, results[t.name], sizes, threads)
        return results

    return compute


def _literal_engine(machine: Machine, threads: int, compile_group: CompileGroup, graph: Graph) -> Engine:
    from poly.engine_build import build_engine

    return build_engine(graph, machine, compile_group, threads=threads)


def compile_small(program: Program, machine: Machine) -> Kernel:
    """A program with free sizes for calls of little work: it compiles sooner. Raises `PolyError`."""
    return _kernel(program, prepare_free(join_axes(program), machine, 1, small=True), machine, {}, 1)


def _sized_kernel(machine: Machine, threads: int, program: Program) -> Kernel:
    """A group with free sizes; in its own order where lanes have no code."""
    return _kernel(program, prepare_free(program, machine, threads), machine, {}, threads)


def _group_compiler(machine: Machine, threads: int) -> tuple[CompileGroup, PrepareAhead | None]:
    """What compiles a group, and for a CPU what lets other cores prepare a model's groups, too."""
    if machine.kind == "accelerator":
        return _stream_group, None

    def prepare_ahead(programs: Sequence[Program], machine: Machine) -> AbstractContextManager[None]:
        from poly.ahead import prepared_ahead

        return prepared_ahead(programs, machine, threads)

    return partial(_cpu_group, threads), prepare_ahead


def _stream_group(program: Program, machine: Machine) -> CompiledGroup:
    """A group as a command stream, to which constants are inputs."""
    from poly.prepared_streams import prepare_stream

    start = perf_counter()
    loose = replace(
        program, tensors=tuple(replace(t, role="input") if t.role == "constant" else t for t in program.tensors)
    )
    kernel = prepare_stream(loose, machine, {})

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        kernel.run_into(inputs, outputs)

    arguments = tuple(t.name for t in loose.inputs)
    return CompiledGroup(loose, run, kernel, perf_counter() - start, arguments)


def _cpu_group(threads: int, program: Program, machine: Machine) -> CompiledGroup:
    """A group as a kernel, whose constants are arguments: groups that differ only in them share it."""
    start = perf_counter()
    return _compiled_group(program, prepare(program, machine, threads), machine, threads, start)


def _compiled_group(
    program: Program, made: Prepared, machine: Machine, threads: int, start: float, measured: Measured | None = None
) -> CompiledGroup:
    kernel, compute = _group_kernel(program, made, machine, threads, measured)
    arguments, computed = tuple(t.name for t in kernel.inputs), tuple(t.name for t in made.split.computed)
    return CompiledGroup(program, kernel.run_into, kernel, perf_counter() - start, arguments, computed, compute)


def _group_kernel(
    program: Program, made: Prepared, machine: Machine, threads: int, measured: Measured | None = None
) -> tuple[Kernel, Callable[[Mapping[str, Array]], dict[str, Array]] | None]:
    """The kernel of a group, to which constants are inputs, and what computes some of them."""
    from poly.codegen.kernel import Code, Kernel, Origin

    loops = made.split.after
    compute = constant_kernel(made, machine, threads)
    constants = tuple(t for t in loops.tensors if t.role == "constant")
    kernel = Kernel(
        loops, machine, (*program.inputs, *constants), program.outputs, {}, threads,
        origin=Origin(program, lambda: made.schedule, made.refused, measured), code=Code(made.after),
    )  # fmt: skip
    return kernel, compute
