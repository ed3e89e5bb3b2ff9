"""`SizedEngine`: a model with free sizes, compiled once for all of them.

The sizes of a call follow from the shapes of its inputs. Before a size is used for the first time the graph is compared
with what the front end makes for it (see `poly.frontend.onnx_symbolic`); where it is not the same, and on machines that
need literal sizes, the model is compiled for that size alone. Code for free sizes is right at every size, and has lanes
and register tiles, packed operands and blocks of fixed sizes (`poly.scheduling.cpu_free`), but fuses less than code for
one, unless the free size counts items (`poly.sized_build`): `specialise(batch=8)` compiles for a size that matters, and
calls of that size take it from then on. A bounded number of sizes is remembered. (`poly.compile(Path("model.onnx"))`
compiles for every shape that comes.)
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Final, SupportsIndex

from poly.affine import var
from poly.arguments import BY_NAME, RunByName, knows_arguments, shown
from poly.document import Document, counted, table
from poly.dtypes import Array, numpy_dtype
from poly.engine import Engine
from poly.engine_arrays import ExpectedInput, inputs_of, targets_of
from poly.engine_direct import DirectRun, direct_run
from poly.engine_errors import named_as_in_file
from poly.errors import IndexRangeError, RunError, UnsupportedError
from poly.graph import Graph, SizedGraph
from poly.interp_arrays import bind_sizes
from poly.locks import Lock, cached_property
from poly.machine import Machine
from poly.pointers import ALIGN, address, aligned_bytes, fresh_empty, fresh_zeros
from poly.program import Tensor
from poly.scheduling.placement import blocks_of, place
from poly.sets import fix_sizes

if TYPE_CHECKING:
    from poly.codegen.kernel import Kernel
    from poly.profiler import Profile

MOST_SIZES: Final = 256
MOST_COMPARED: Final = 65536  # as a comparison takes as long as importing the model
MOST_ENGINES: Final = 8
MOST_SPARE: Final = 4  # times the memory of a call that is kept for the next one
Key = tuple[int, ...]


@dataclass(frozen=True)
class SizedStep:
    """One group of the model: its kernel, and the tensors it takes and fills, by the graph's names."""

    name: str
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[str, ...]  # of the graph's program: the kernel may be that of another group, too

    @property
    def arrays(self) -> tuple[str, ...]:
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True)
class _Prepared:
    """What a size needs: where tensors between steps lie, and the steps ready to be entered."""

    offsets: Mapping[str, int]
    arena: int
    calls: tuple[Callable[[Sequence[int]], None], ...]


@dataclass(frozen=True)
class _Direct:
    """The runs of one size as native calls; None where they cannot be. `arena`: what lies between its steps."""

    key: Key
    call: DirectRun | None
    arena: Array


@dataclass
class SizedEngine(RunByName):
    """`run({name: array}) -> {name: array}` for inputs of any shape in the ranges. Safe to call from several threads.

    `steps` are empty where every size is compiled for itself. At most 256 sizes are kept ready, and 8 engines of sizes
    that are compiled for themselves; the least recently used go first.
    """

    graph: SizedGraph
    machine: Machine
    steps: tuple[SizedStep, ...]
    literal: Callable[[Graph], Engine] = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)
    constants: Mapping[str, Array] = field(repr=False)
    seconds: float = 0.0
    _whole: frozenset[str] = field(default=frozenset(), repr=False)
    _prepared: OrderedDict[Key, _Prepared | None] = field(
        default_factory=OrderedDict[Key, "_Prepared | None"], repr=False
    )
    _same: dict[Key, bool] = field(default_factory=dict[Key, bool], repr=False)
    _engines: OrderedDict[Key, Engine] = field(default_factory=OrderedDict[Key, Engine], repr=False)
    _sizes: dict[tuple[object, ...], dict[str, int]] = field(
        default_factory=dict[tuple[object, ...], dict[str, int]], repr=False
    )
    _direct: _Direct | None = field(default=None, repr=False)
    _last: Key = field(default=(), repr=False)
    _arena: Array = field(default_factory=lambda: aligned_bytes(0), repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @cached_property
    def _filled(self) -> tuple[tuple[Tensor, str], ...]:
        """The outputs with their labels."""
        return tuple((t, self.graph.label(t.name)) for t in self.graph.outputs)

    @cached_property
    def _expected(self) -> Mapping[str, ExpectedInput]:
        """What each input has to be, by label."""
        return {
            self.graph.label(t.name): ExpectedInput(t.name, numpy_dtype(t.dtype), t.rank, None)
            for t in self.graph.inputs
        }

    @cached_property
    def _fixed(self) -> dict[str, int]:
        """Where the constants are."""
        return {name: address(a) for name, a in self.constants.items()}

    @cached_property
    def _given_back(self) -> Mapping[str, Array]:
        """The outputs that are constants."""
        return {t.name: self.graph.constants[t.name] for t in self.graph.outputs if t.name in self.graph.constants}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's input names."""
        return tuple(self.graph.label(t.name) for t in self.graph.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The model's output names."""
        return tuple(self.graph.label(t.name) for t in self.graph.outputs)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines of sizes that were compiled for themselves, the last used last."""
        with self._lock:
            return tuple(self._engines.values())

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that the reference evaluator or the interpreter runs."""
        return tuple(dict.fromkeys(name for engine in self.engines for name in engine.fallbacks))

    @property
    def by_numpy(self) -> tuple[str, ...]:
        """Nodes that routines of numpy run."""
        return tuple(dict.fromkeys(name for engine in self.engines for name in engine.by_numpy))

    @knows_arguments(hint=BY_NAME)
    def run(
        self,
        inputs: Mapping[str, Array],
        *,
        out: Mapping[str, Array] | None = None,
        observe: Callable[[SizedStep, float], None] | None = None,
    ) -> dict[str, Array]:
        """The outputs for a set of inputs, whose shapes give the sizes. Raises `RunError` for what does not fit.

        `out`: arrays to write to, as of `Engine.run`. `observe(step, seconds)` is called after each step, unless the
        size was compiled for itself.
        """
        if observe is None and self._direct is not None and (found := self._as_is(inputs, out)) is not None:
            return found
        given = self._given(inputs)
        sizes = self.sizes_of(given)
        with self._lock:
            key = self._key(sizes)
            prepared = None if key in self._engines else self._at(key, sizes)
            if prepared is None:
                return self._specialised(key, sizes).run(inputs, out=out)
            if key == self._last and (self._direct is None or self._direct.key != key):  # a size that comes again
                self._direct = self._made_direct(key, sizes, prepared)
            self._last = key
            values: dict[str, Array] = {**self._given_back, **given}
            values |= self._targets(out, sizes, values) if out is not None else {}
            for t, _ in self._filled:
                if t.name not in values:
                    fresh = fresh_empty if t.name in self._whole else fresh_zeros
                    values[t.name] = fresh(t.extents(sizes), numpy_dtype(t.dtype))
            self._run_steps(prepared, values, observe)
        return {label: values[t.name] for t, label in self._filled}

    def _as_is(self, inputs: Mapping[str, Array], out: Mapping[str, Array] | None) -> dict[str, Array] | None:
        """`run` in one native call, for the size that came twice; None where an array does not fit as it is."""
        try:
            with self._lock:
                direct = self._direct
                return None if direct is None or direct.call is None else direct.call.run(inputs, out)
        except IndexRangeError as error:
            raise self._told(error, self.steps[error.position]) from None

    def _made_direct(self, key: Key, sizes: Mapping[str, int], prepared: _Prepared) -> _Direct:
        from poly.codegen.sequence import KernelSequence

        borders = {t.name for t in self.graph.inputs}
        outputs = {t.name for t in self.graph.outputs}
        arena = self._memory(prepared.arena)
        if not outputs.isdisjoint(borders | self.constants.keys()):  # a result that is a copy
            return _Direct(key, None, arena)
        places: dict[str, int | str] = {name: address(arena) + at for name, at in prepared.offsets.items()}
        places |= self._fixed | {name: name for name in borders | outputs}
        calls = [(step.kernel, [places[name] for name in step.arrays]) for step in self.steps]
        call = direct_run(KernelSequence(calls, sizes), self.graph, sizes, frozenset(outputs - self._whole), {})
        return _Direct(key, call, arena)

    def _run_steps(
        self, prepared: _Prepared, values: Mapping[str, Array], observe: Callable[[SizedStep, float], None] | None
    ) -> None:
        arena = self._memory(prepared.arena)
        start = address(arena)
        places = {name: start + offset for name, offset in prepared.offsets.items()}
        places |= self._fixed | {name: address(a) for name, a in values.items()}
        for step, call in zip(self.steps, prepared.calls, strict=True):
            start_of_step = time.perf_counter()
            try:
                call([places[name] for name in step.arrays])
            except IndexRangeError as error:
                raise self._told(error, step) from None
            if observe is not None:
                observe(step, time.perf_counter() - start_of_step)

    def _told(self, error: IndexRangeError, step: SizedStep) -> IndexRangeError:
        own, names = (*step.kernel.inputs, *step.kernel.outputs), (*step.inputs, *step.outputs)
        return named_as_in_file(error, self.graph, own, names, step.statements)

    def _targets(
        self, out: Mapping[str, Array], sizes: Mapping[str, int], values: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The arrays of `out` by tensor, with what the outputs are before the steps."""
        known = {self.graph.label(t.name): (t.name, t.extents(sizes), numpy_dtype(t.dtype)) for t in self.graph.outputs}
        found = targets_of(out, known, [*values.values(), *self.constants.values()], self.graph.name)
        for name, array in found.items():
            if name not in self._whole:
                array[...] = values.get(name, 0)  # an output may be an input or a constant
        return found

    def _memory(self, size: int) -> Array:
        """So many bytes for what lies between steps: those of the last call, whose pages are there, unless they are too
        few or far too many.
        """
        if not size <= len(self._arena) <= MOST_SPARE * size:
            self._arena = aligned_bytes(size)
        return self._arena

    def profile(self, inputs: Mapping[str, Array], runs: int = 10) -> Profile:
        """Where the time goes at the size of these inputs, group by group; see `Engine.profile`."""
        from poly.profiler import Part, profile

        sizes = self.sizes_of(self._given(inputs))
        self.run(inputs)
        with self._lock:
            if (own := self._engines.get(self._key(sizes))) is not None:
                return own.profile(inputs, runs)
        parts: list[Part] = []
        for step in self.steps:
            assert step.kernel.schedule is not None
            program = step.kernel.schedule.source
            program = program.bind(**{n: v for n, v in sizes.items() if n in program.parameters})
            parts.append(Part(step.name, step.statements, program, True))

        return profile(self.graph.name, parts, lambda observe: self.run(inputs, observe=observe), runs)

    def specialise(self, **sizes: SupportsIndex) -> Engine:
        """Compile for one size, given by the names of the dimensions; calls of that size use it from then on.

        Raises `RunError` for sizes that are unknown, missing or out of range, and what compiling raises.
        """
        names = {self.graph.label(p): p for p in self.graph.parameters}
        hint = f"specialise({', '.join(f'{n}=1' for n in names)})"
        for name, value in sizes.items():
            if name not in names:
                raise RunError(f"no size {name!r}, the sizes are {', '.join(names)}", where=self.graph.name, hint=hint)
            if not isinstance(value, Integral) or isinstance(value, bool):  # pyright: ignore
                raise RunError(f"size {name!r} is {shown(value)}", where=self.graph.name, hint=hint)
        if missing := [n for n in names if n not in sizes]:
            raise RunError(f"size {missing[0]!r} is not given", where=self.graph.name, hint=hint)
        given = {names[name]: int(value) for name, value in sizes.items()}
        found = bind_sizes((), self.graph.parameters, dict(self.graph.sizes) | given, {})
        self._require_range(found)
        with self._lock:
            return self._specialised(self._key(found), found)

    def _key(self, sizes: Mapping[str, int]) -> Key:
        return tuple(sizes[p] for p in self.graph.parameters)

    def sizes_of(self, given: Mapping[str, Array]) -> dict[str, int]:
        """The sizes that arrays of the inputs imply. Raises `RunError` outside of the graph's ranges."""
        shapes = tuple([(name, a.shape) for name, a in given.items()])
        sizes = self._sizes.get(shapes)
        if sizes is None:
            sizes = self._found_sizes(given)
            if len(self._sizes) >= MOST_SIZES:
                self._sizes.clear()
            self._sizes[shapes] = sizes
        return dict(sizes)

    def _found_sizes(self, given: Mapping[str, Array]) -> dict[str, int]:
        sizes = self._bound(given)
        for t in self.graph.inputs:
            if given[t.name].shape != t.extents(sizes):
                expected = ", ".join(map(str, t.extents(sizes)))
                values = ", ".join(f"{self.graph.label(n)}={v}" for n, v in sizes.items())
                message = f"input {self.graph.label(t.name)!r} is {list(given[t.name].shape)}, expected [{expected}]"
                hint = f"only {', '.join(map(self.graph.label, sizes))} may vary; from_onnx fixed the other dimensions"
                raise RunError(f"{message} at {values}", where=self.graph.name, hint=hint)
        self._require_range(sizes)
        return sizes

    def _bound(self, given: Mapping[str, Array]) -> dict[str, int]:
        graph, label = self.graph, self.graph.label
        try:
            return bind_sizes(graph.inputs, graph.parameters, dict(graph.sizes), given)
        except RunError:  # once more in the words of the model's file
            sizes = {p: var(label(p)) for p in graph.parameters}
            shapes = {t.name: tuple(e.substitute(sizes) for e in t.shape) for t in graph.inputs}
            inputs = [replace(t, name=label(t.name), shape=shapes[t.name]) for t in graph.inputs]
            bound = {label(n): v for n, v in graph.sizes}
            bind_sizes(inputs, [*map(label, graph.parameters)], bound, {label(n): a for n, a in given.items()})
            raise

    def _require_range(self, sizes: Mapping[str, int]) -> None:
        if fix_sizes(self.graph.context, sizes).is_empty():
            graph = self.graph
            values = ", ".join(f"{graph.label(n)}={v}" for n, v in sizes.items())
            left = [n for n, (a, b) in graph.ranges.items() if n in sizes and not a <= sizes[n] <= b]
            hint = f"from_onnx(..., ranges=...) gave {graph.shown_ranges(left) or graph.context}"
            raise RunError(f"{values} is outside of the ranges", where=graph.name, hint=hint)

    def _at(self, key: Key, sizes: Mapping[str, int]) -> _Prepared | None:
        """The size made ready; None where it has to be compiled for itself."""
        if key in self._prepared:
            self._prepared.move_to_end(key)
            return self._prepared[key]
        found = self._prepare(sizes) if self.steps and self._holds(key, sizes) else None
        self._prepared[key] = found
        while len(self._prepared) > MOST_SIZES:
            self._prepared.popitem(last=False)
        return found

    def _holds(self, key: Key, sizes: Mapping[str, int]) -> bool:
        """Whether the graph is at a size what the front end makes for it."""
        from poly.frontend.onnx_symbolic import agrees

        if self.graph.literal is None:
            return True
        if key not in self._same:
            if len(self._same) >= MOST_COMPARED:
                self._same.clear()
            self._same[key] = agrees(self.graph, self.graph.literal(sizes), sizes)
        return self._same[key]

    def _prepare(self, sizes: Mapping[str, int]) -> _Prepared:
        own = {n for n, t in self.tensors.items() if t.role == "temporary"} - self.constants.keys()
        between = [[n for n in step.arrays if n in own] for step in self.steps]
        plan = place(blocks_of(between, lambda name: self.tensors[name].nbytes(sizes)), align=ALIGN)
        calls = tuple(step.kernel.runner(_own_names(step.kernel), sizes) for step in self.steps)
        return _Prepared(plan.offsets, plan.size, calls)

    def _specialised(self, key: Key, sizes: Mapping[str, int]) -> Engine:
        if key not in self._engines:
            if self.graph.literal is None:
                raise UnsupportedError("this graph has no form for single sizes", where=self.graph.name)
            self._engines[key] = self.literal(self.graph.literal(sizes))
            self._direct = None
            while len(self._engines) > MOST_ENGINES:
                self._engines.popitem(last=False)
        self._engines.move_to_end(key)
        return self._engines[key]

    def _given(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return inputs_of(inputs, self._expected, self.graph.name)

    def __repr__(self) -> str:
        how = f"{counted(len(self.steps), 'group')} for all sizes" if self.steps else "compiled for each size"
        name = f"{self.graph.name}({', '.join(map(self.graph.label, self.graph.parameters))})"
        return f"<SizedEngine {name} on {self.machine.name}: {how}, {len(self._engines)} specialised>"

    def _repr_html_(self) -> str:
        rows = [(s.name, " ".join(s.statements), ", ".join(s.outputs)) for s in self.steps]
        tables = (table("groups", ("group", "statements", "writes"), rows),) if rows else ()
        return Document(repr(self).strip("<>"), (), tables).html()


def _own_names(kernel: Kernel) -> list[str]:
    return [t.name for t in (*kernel.inputs, *kernel.outputs)]
