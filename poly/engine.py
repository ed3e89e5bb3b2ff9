"""`Engine`: a compiled model. Groups of statements as kernels or command streams, one memory plan, the constants.

Each fusion group is compiled as a program of its own, identical groups once (same canonical text). Tensors between
groups lie in one arena at planned offsets and share space where their lifetimes allow; constants are referenced where
they are. What has no compiled form runs by numpy (`by_numpy`), or by the reference evaluator or the interpreter
(`fallbacks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poly.arguments import BY_NAME, RunByName, knows_arguments
from poly.document import bytes_text, counted
from poly.dtypes import Array, numpy_dtype
from poly.engine_arrays import ExpectedInput, inputs_of, targets_of
from poly.engine_direct import DirectRun, direct_run
from poly.engine_errors import named_as_in_file
from poly.errors import IndexRangeError
from poly.graph import Graph
from poly.interp import run_program
from poly.locks import Lock, cached_property
from poly.machine import Machine
from poly.pointers import address, fresh_empty, fresh_zeros
from poly.program import Program, Tensor
from poly.scheduling.placement import Placement
from poly.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from poly.accel.compiled import StreamKernel
    from poly.codegen.kernel import Kernel
    from poly.codegen.sequence import KernelSequence
    from poly.profiler import Profile


@dataclass(frozen=True)
class CompiledGroup:
    """One compiled group: `run(arrays of arguments, outputs)` fills the outputs, in the order of the program's.

    `arguments`: inputs and constants of the program, and names of `computed`: constants that `compute` makes of the
    program's, once (`poly.scheduling.constants`). `kernel`: what runs; `seconds` it took to compile.
    """

    program: Program
    run: Callable[[Sequence[Array], Sequence[Array]], None]
    kernel: Kernel | StreamKernel
    seconds: float
    arguments: tuple[str, ...]
    computed: tuple[str, ...] = ()
    compute: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule of the program."""
        found = self.kernel.schedule
        assert found is not None
        return found


CompileGroup = Callable[[Program, Machine], CompiledGroup]
PrepareAhead = Callable[[Sequence[Program], Machine], AbstractContextManager[None]]


@dataclass(frozen=True)
class Step:
    """One group of the model, on which tensors; `compiled` None: its statements are not.

    `inputs`: the arrays of the compiled group's arguments by their names in the engine (`Engine.constants` holds
    computed ones). `why`: the reasons for the group, and last, where it is not compiled, why.
    """

    name: str
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    compiled: CompiledGroup | None
    why: tuple[str, ...] = ()


_Dtype = np.dtype[np.generic]
_Result = tuple[str, Callable[[tuple[int, ...], _Dtype], Array], tuple[int, ...], _Dtype]


@dataclass(frozen=True)
class _Piece:
    """Steps from number `first` on: several compiled ones, or one that is run from Python."""

    first: int
    run: KernelSequence | Step


@dataclass(frozen=True)
class _Run:
    """How an engine runs: its steps in as few `pieces` as there can be, or in `single` ones; memory that stays; outputs
    with the function that makes them, and those of them that are `given`: inputs or constants."""

    pieces: tuple[_Piece, ...]
    single: tuple[_Piece, ...]
    memory: Mapping[str, Array]
    results: tuple[_Result, ...]
    given: tuple[str, ...]


@dataclass
class Engine(RunByName):
    """`run({name: array}) -> {name: array}`, by the model's own names. Safe to call from several threads.

    `fallbacks`: nodes that the reference evaluator or the interpreter runs; `by_numpy`: those that numpy does.
    `constants`: what the steps read, the model's own and those computed from them when compiling; weights that are
    packed are kept in their packed form only. `graph` is the model without arrays.
    """

    graph: Graph
    machine: Machine
    steps: tuple[Step, ...]
    plan: Placement
    fallbacks: tuple[str, ...]
    by_numpy: tuple[str, ...]
    seconds: float
    constants: Mapping[str, Array] = field(repr=False)
    _arena: np.ndarray = field(repr=False)
    _tensors: Mapping[str, Tensor] = field(repr=False)
    _boxes: Mapping[str, tuple[int, ...]] = field(repr=False)
    _in_arrays: Mapping[str, tuple[str, int]] = field(repr=False)
    _whole: frozenset[str] = field(repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def compiled_groups(self) -> tuple[CompiledGroup, ...]:
        """The different compiled groups, in order of first use."""
        found: dict[int, CompiledGroup] = {}
        for step in self.steps:
            if step.compiled is not None:
                found.setdefault(id(step.compiled), step.compiled)
        return tuple(found.values())

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The model's input names."""
        return tuple(self.graph.label(t.name) for t in self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The model's output names."""
        return tuple(self.graph.label(t.name) for t in self.graph.outputs)

    @knows_arguments(hint=BY_NAME)
    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        out: Mapping[str, Array] | None = None,
        observe: Callable[[Step, float], None] | None = None,
    ) -> dict[str, Array]:
        """The outputs for a set of inputs. Arrays are checked (`RunError`); outputs are new arrays, owned by the
        caller, or those of `out`, by name: C-contiguous and apart from the inputs and from one another.

        `observe(step, seconds)` is called after each step.
        """
        if observe is None and (found := self.run_as_is(inputs, out)) is not None:
            return found
        given = self._checked(inputs)
        wanted = self._targets(out, given) if out is not None else {}
        with self._lock:
            plan = self._plan_of_run
            fresh = _results_of_run(plan, given, wanted)
            arrays = given | fresh
            named = {name: address(array) for name, array in arrays.items()}
            if self._in_arrays:
                named |= {name: named[root] + shift for name, (root, shift) in self._in_arrays.items()}
            for piece in plan.pieces if observe is None else plan.single:
                start = time.perf_counter() if observe is not None else 0.0
                self._piece(piece, plan.memory, arrays, named)
                if observe is not None:
                    observe(self.steps[piece.first], time.perf_counter() - start)
        if self.graph.formats:
            fresh = {n: a.view(self.graph.border_dtype(self._tensors[n])) for n, a in fresh.items()}
        results = {label: fresh[name] for label, (name, *_) in self._wanted.items()}
        return {**results, **out} if out else results

    def run_as_is(self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> dict[str, Array] | None:
        """`run` in one native call; None where an array does not fit as it is, or a step is run from Python."""
        if (direct := self._direct) is None:
            return None
        try:
            with self._lock:
                return direct.run(inputs, out)
        except IndexRangeError as error:
            raise self._told(error, self.steps[error.position]) from None

    def _piece(
        self, piece: _Piece, memory: Mapping[str, Array], arrays: Mapping[str, Array], named: Mapping[str, int]
    ) -> None:
        """Run a piece; `named`: the addresses of `arrays`."""
        try:
            if isinstance(piece.run, Step):
                self._step(piece.run, {**memory, **arrays, **self._views(arrays)})
            else:
                piece.run.run(named)
        except IndexRangeError as error:
            raise self._told(error, self.steps[piece.first + error.position]) from None

    def _told(self, error: IndexRangeError, step: Step) -> IndexRangeError:
        arguments = (*step.compiled.kernel.inputs, *step.compiled.kernel.outputs) if step.compiled is not None else ()
        names, statements = (*step.inputs, *step.outputs), [s.name for s in step.program.statements]
        return named_as_in_file(error, self.graph, arguments, names if arguments else (), statements)

    def profile(self, inputs: Mapping[str, Array], runs: int = 10) -> Profile:
        """Where the time goes, group by group: seconds, operations and bytes a second. Prints as a table."""
        from poly.codegen.kernel import Kernel
        from poly.profiler import Part, profile

        parts = [
            Part(
                step.name, tuple(s.name for s in step.program.statements),
                step.program if step.compiled is None else step.compiled.program, step.compiled is not None,
                kernel.refused if isinstance(kernel, Kernel) else "",
            )
            for step in self.steps
            for kernel in (step.compiled.kernel if step.compiled is not None else None,)
        ]  # fmt: skip

        return profile(self.graph.name, parts, lambda observe: self.run(inputs, observe=observe), runs)

    def _step(self, step: Step, values: Mapping[str, Array]) -> None:
        if step.compiled is not None:
            step.compiled.run([values[n] for n in step.inputs], [values[n] for n in step.outputs])
            return
        results = run_program(step.program, {n: values[n] for n in step.inputs})
        for name in step.outputs:  # a box of another tensor has that one's shape
            part = tuple(slice(extent) for extent in self._boxes.get(name, values[name].shape))
            values[name][part] = results[name][part]

    @cached_property
    def _plan_of_run(self) -> _Run:
        """What is the same in every run: steps in native sequences, with the addresses of all that stays."""
        from poly.codegen.kernel import Kernel
        from poly.codegen.sequence import KernelSequence

        offsets = self.plan.offsets
        arena = {name: self._view(name, self._arena, start) for name, start in offsets.items()}
        memory = {n: np.require(a, requirements=["C", "A"]) for n, a in self.constants.items()} | arena
        places: dict[str, int | str] = {name: address(array) for name, array in memory.items()}
        borders = (t.name for t in (*self.graph.inputs, *self.graph.outputs))
        places |= {name: name for name in (*borders, *self._in_arrays)}

        def native(first: int, last: int) -> _Piece:
            parts = [(s.compiled.kernel, (*s.inputs, *s.outputs)) for s in self.steps[first:last] if s.compiled]
            calls = [(k, [places[n] for n in names]) for k, names in parts if isinstance(k, Kernel)]
            return _Piece(first, KernelSequence(calls))

        single: list[_Piece] = []
        runs: list[tuple[int, int]] = []
        for k, step in enumerate(self.steps):
            compiled = step.compiled is not None and isinstance(step.compiled.kernel, Kernel)
            single.append(native(k, k + 1) if compiled else _Piece(k, step))
            follows = compiled and bool(runs) and runs[-1][1] == k and not isinstance(single[k - 1].run, Step)
            runs[-1:] = [(runs[-1][0], k + 1)] if follows else [*runs[-1:], (k, k + 1)]
        pieces = [native(a, b) if b - a > 1 else single[a] for a, b in runs]
        results = tuple(
            (t.name, fresh_empty if t.name in self._whole else fresh_zeros, t.extents({}), numpy_dtype(t.dtype))
            for t in self.graph.outputs
        )
        known = memory.keys() | {t.name for t in self.graph.inputs}
        given = tuple(t.name for t in self.graph.outputs if t.name in known)
        return _Run(tuple(pieces), tuple(single), memory, results, given)

    @cached_property
    def _direct(self) -> DirectRun | None:
        """The run as one native call; None where a step is run from Python, or a result is a copy."""
        plan = self._plan_of_run
        if len(plan.pieces) != 1 or plan.given or self.graph.formats:
            return None
        sequence = plan.pieces[0].run
        if isinstance(sequence, Step):
            return None
        cleared = frozenset(name for name, make, *_ in plan.results if make is fresh_zeros)
        return direct_run(sequence, self.graph, {}, cleared, self._in_arrays)

    def _view(self, name: str, memory: np.ndarray, start: int) -> Array:
        """The tensor that starts at a byte of a piece of memory."""
        extents, dtype = self._tensors[name].extents({}), numpy_dtype(self._tensors[name].dtype)
        count = int(np.prod(extents, dtype=np.int64))
        return memory[start : start + count * dtype.itemsize].view(dtype).reshape(extents)

    def _views(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The temporaries that lie in the caller's arrays."""
        return {
            name: self._view(name, arrays[root].reshape(-1).view(np.uint8), start)
            for name, (root, start) in self._in_arrays.items()
        }

    def _targets(self, out: Mapping[str, Array], given: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays of `out` by tensor. Raises `RunError` where one cannot be written to."""
        found = targets_of(out, self._wanted, [*given.values()], self.graph.name)
        if not self.graph.formats:
            return found
        return {n: found[n].view(dtype) for n, _, _, dtype in self._plan_of_run.results if n in found}

    @cached_property
    def _wanted(self) -> Mapping[str, tuple[str, tuple[int, ...], _Dtype]]:
        """Tensor, shape and dtype of the caller's array of every output, by label."""
        kinds = {n: self.graph.border_dtype(self._tensors[n]) for n in self.graph.formats if n in self._tensors}
        results = self._plan_of_run.results
        return {self.graph.label(n): (n, shape, kinds.get(n, dtype)) for n, _, shape, dtype in results}

    @cached_property
    def _known(self) -> Mapping[str, ExpectedInput]:
        graph = self.graph
        return {
            graph.label(t.name): ExpectedInput(t.name, graph.border_dtype(t), t.rank, t.extents({}))
            for t in graph.inputs
        }

    def _checked(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        hint = "compile for other shapes with from_onnx(path, shapes=...)"
        found = inputs_of(inputs, self._known, self.graph.name, hint)
        formats = self.graph.formats
        return {n: a.view(np.uint8) if n in formats else a for n, a in found.items()} if formats else found

    def __repr__(self) -> str:
        groups = f"{counted(len(self.steps), 'group')} ({len(self.compiled_groups)} different)"
        arena, outside = bytes_text(self.plan.size), counted(len(self.fallbacks), "fallback")
        return f"<Engine {self.graph.name} on {self.machine.name}: {groups}, arena {arena}, {outside}>"

    def __str__(self) -> str:
        lines = [repr(self)]
        for step in self.steps:
            kind = ", ".join(s.name for s in step.program.statements)
            if step.compiled is None:
                kind = f"not compiled: {step.why[-1].removeprefix('not compiled: ')}"
            lines.append(f"  {step.name}: {', '.join(step.inputs)} -> {', '.join(step.outputs)}  [{kind}]")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from poly.document import Document, table

        rows = [
            (
                s.name,
                " ".join(t.name for t in s.program.statements),
                ", ".join(s.outputs),
                "" if s.compiled else s.why[-1],
            )
            for s in self.steps
        ]
        heads = ("group", "statements", "writes", "runs by")
        return Document(repr(self).strip("<>"), (), (table("groups", heads, rows),)).html()


def _results_of_run(plan: _Run, given: Mapping[str, Array], wanted: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a run's outputs, those `wanted` and new ones, with what they are before the steps."""
    fresh = {n: wanted[n] if n in wanted else make(shape, dtype) for n, make, shape, dtype in plan.results}
    for name, make, *_ in plan.results if wanted else ():
        if make is fresh_zeros and name in wanted:
            wanted[name][...] = 0
    for name in plan.given:
        fresh[name][...] = given[name] if name in given else plan.memory[name]
    return fresh
