"""`ModelEngine`: a model that is compiled while it runs, for what only the run can tell.

The first run with new shapes (or with new content of an input that decides shapes or branches) compiles; the next one
finds its stages in a cache. What has no static form runs by numpy or, with a `FallbackWarning`, by the reference
evaluator.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

import numpy as np

from poly.arguments import BY_NAME, RunByName, knows_arguments
from poly.document import Document, counted, table
from poly.dtypes import Array
from poly.engine import Engine
from poly.engine_arrays import require_mapping
from poly.errors import FallbackWarning, RunError, SettingWarning, warn_caller
from poly.frontend.onnx_control import body_name, run_control
from poly.frontend.onnx_extents import advice
from poly.frontend.onnx_reference import Evaluator, by_numpy, evaluator_of
from poly.frontend.onnx_stages import Stage, StagedModel
from poly.given_arrays import overlap, target_of
from poly.graph import Graph
from poly.locks import Lock

if TYPE_CHECKING:
    from poly.profiler import Profile

_MAX_STAGES: Final = 64
_MANY_SIZES: Final = 5  # that a model is compiled for, before the caller is told how to leave them free
Signature = tuple[object, ...]
_Array = tuple[str, tuple[int, ...], object]


class Key(NamedTuple):
    """What a stage is compiled for: where it begins, what came before, shapes and dtypes, and content that decides."""

    position: int
    history: bytes
    signature: Signature
    content: tuple[tuple[str, bytes], ...] = ()

    @property
    def shapes(self) -> Key:
        """Without the content."""
        return self._replace(content=())


@dataclass(frozen=True)
class _Compiled:
    """A stage with its engine, and what stands for it and all before it in the keys of those behind it."""

    stage: Stage
    engine: Engine | None
    history: bytes

    def run(self, values: Mapping[str, object]) -> dict[str, Array]:
        """What the stage computes of the values that it reads."""
        assert self.engine is not None
        results = self.engine.run(_arrays_of(self.engine, values))
        return self.stage.cut(results) if self.stage.cuts else results


@dataclass(frozen=True)
class Outside:
    """A node that is not compiled: its seconds in the last run, what ran it, and why."""

    seconds: float
    by: Literal["numpy", "onnx.reference"]
    reason: str


@dataclass(frozen=True)
class Share:
    """Seconds of the last run in compiled code, and the nodes that ran outside of it, by name."""

    compiled: float
    outside: Mapping[str, Outside]

    @property
    def fraction(self) -> float:
        """The share in the time of what is not compiled."""
        slow = sum(o.seconds for o in self.outside.values())
        return slow / (slow + self.compiled) if slow else 0.0


@dataclass
class ModelEngine(RunByName):
    """`run({name: value}) -> {name: value}`, by the model's own names. Safe to call from several threads.

    Values are arrays; sequences are lists, strings are arrays of objects, an absent optional is None. Inputs with a
    default may be left out. At most 64 stages are kept besides those of the last run, the least recently
    used go first. `inner`: it is the body of a node of another model.
    """

    model: StagedModel
    build: Callable[[Graph], Engine] = field(repr=False)
    inner: bool = False
    share: Share | None = None
    compiled: int = 0
    _cache: OrderedDict[Key, _Compiled] = field(default_factory=OrderedDict[Key, _Compiled], repr=False)
    _decided: dict[Key, frozenset[str]] = field(default_factory=dict[Key, "frozenset[str]"], repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)
    _bodies: dict[tuple[int, str], ModelEngine] = field(
        default_factory=dict[tuple[int, str], "ModelEngine"], repr=False
    )
    _evaluators: dict[int, Evaluator] = field(default_factory=dict[int, "Evaluator"], repr=False)
    _warned: set[str] = field(default_factory=set[str], repr=False)
    _advised: bool = field(default=False, repr=False)
    _accepted: set[Signature] = field(default_factory=set[Signature], repr=False)
    _whole: dict[Signature, Key] = field(default_factory=dict[Signature, Key], repr=False)
    _last: _Compiled | None = field(default=None, repr=False)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's input names."""
        return self.model.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The model's output names."""
        return self.model.outputs

    @property
    def deciding(self) -> tuple[str, ...]:
        """Values whose content the stages in the cache are specialised on."""
        return tuple(sorted(frozenset[str]().union(*self._decided.values())))

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The compiled stages in the cache."""
        with self._lock:
            return tuple(c.engine for c in self._cache.values() if c.engine is not None)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that the reference evaluator ran in the last run, and the `fallbacks` of compiled stages."""
        inner = [name for engine in self.engines for name in engine.fallbacks]
        return tuple(dict.fromkeys([*self._run_by("onnx.reference"), *inner]))

    @property
    def by_numpy(self) -> tuple[str, ...]:
        """Nodes that routines of numpy ran in the last run, or have to run in a compiled stage."""
        inner = [name for engine in self.engines for name in engine.by_numpy]
        return tuple(dict.fromkeys([*self._run_by("numpy"), *inner]))

    def _run_by(self, what: str) -> list[str]:
        return [] if self.share is None else [name for name, o in self.share.outside.items() if o.by == what]

    @knows_arguments(hint=BY_NAME)
    def run(self, inputs: Mapping[str, object], *, out: Mapping[str, Array] | None = None) -> dict[str, object]:
        """The outputs, which the caller owns; those in `out` are copied to its arrays, of the same shape and dtype.

        Raises `RunError` for inputs that the model does not take, `OnnxError` where a node is wrong.
        """
        if out is None and (results := self._as_last(inputs)) is not None:
            return results
        if type(inputs) is not dict and not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"inputs is {type(inputs).__name__}", hint="a dict from names to arrays")
        if out is not None:
            require_mapping(out, self.model.model.graph.name)
        given = {name: self.model.as_given(name, v) for name, v in inputs.items()}
        signature = self._checked_signature(given)
        with self._lock:
            self._last = None
            results = self._by_one_stage(signature, given) or self._by_stages(signature, given)
        return {**results, **self._copied(results, out)} if out else results

    def _as_last(self, inputs: Mapping[str, object]) -> dict[str, object] | None:
        """The outputs where these inputs fit the stage that was all of the model in the last run, as they are."""
        with self._lock:
            if self._last is None:
                return None
            start = time.perf_counter()
            engine = self._last.engine
            results = None if engine is None else engine.run_as_is(cast("Mapping[str, Array]", inputs))
            if results is None:
                return None
            self.share = Share(time.perf_counter() - start, {})
            return {**self._last.stage.cut(results)} if self._last.stage.cuts else {**results}

    def _checked_signature(self, given: Mapping[str, object]) -> Signature:
        """What the inputs are, but for their content. Raises `RunError` for inputs that the model does not take; what
        it took once is not looked at again.
        """
        found = tuple((n, v.shape, v.dtype) if isinstance(v, np.ndarray) else (n, None) for n, v in given.items())
        if found not in self._accepted:
            self.model.check_inputs(given)
            if len(self._accepted) >= _MAX_STAGES:
                self._accepted.clear()
                self._whole.clear()
            if all(isinstance(v, np.ndarray) for v in given.values()):
                self._accepted.add(found)
        return found

    def _by_one_stage(self, signature: Signature, given: Mapping[str, object]) -> dict[str, object] | None:
        """The outputs where a stage that no content decides is known to be all of the model for such inputs."""
        key = self._whole.get(signature)
        found = None if key is None else self._cache.get(key)
        if key is None or found is None or found.engine is None:
            return None
        self._cache.move_to_end(key)
        start = time.perf_counter()
        results = found.run(given)
        self.share = Share(time.perf_counter() - start, {})
        self._last = found if {*results} == {*self.outputs} else None
        return {name: results[name] for name in self.outputs}

    def _by_stages(self, signature: Signature, given: Mapping[str, object]) -> dict[str, object]:
        values: dict[str, object] = dict(given)
        known: dict[str, Array] = {}
        outside: dict[str, Outside] = {}
        position, history, seconds = 0, b"", 0.0
        used: set[Key] = set()
        fresh: set[str] = set()
        while position < len(self.model.nodes):
            key, found = self._stage(position, history, values, known)
            used.add(key)
            start = time.perf_counter()
            if found.engine is not None:
                values |= found.run(values)
                fresh.update(found.engine.outputs)
            seconds += time.perf_counter() - start
            known |= found.stage.known
            if position == 0 and found.stage.end == len(self.model.nodes) and signature in self._accepted:
                self._remember(signature, key, found)
            position, history = found.stage.end, found.history
            if found.stage.alone:
                self._alone(position, found.stage, values, known, outside)
                position += 1
        self._evict(used)
        self.share = Share(seconds, outside)
        missing = {name: self._default(name) for name in self.outputs if name not in values and name not in known}
        results = {name: known[name] if name in known else values.get(name, missing.get(name)) for name in self.outputs}
        shared = not self.inner  # by whoever runs a body, which changes nothing
        return {n: _own(v) if shared and (n in known or n not in fresh) else v for n, v in results.items()}

    def _remember(self, signature: Signature, key: Key, found: _Compiled) -> None:
        """That a stage is all of the model, where no content is part of its key and it computes all outputs."""
        if found.engine is not None and not key.content and set(self.outputs) <= set(found.engine.outputs):
            self._whole[signature] = key
            if len(self._whole) == _MANY_SIZES and not self.inner:
                self._advise()

    def _advise(self) -> None:
        """Say once how the sizes that differ can be free."""
        shapes = [dict((name, shape) for name, shape, _ in cast("Iterable[_Array]", s)) for s in self._whole]
        graph = self.model.model.graph
        text = advice(graph.input, shapes) if len({frozenset(s) for s in shapes}) == 1 else None
        if text is not None and not self._advised:
            self._advised = True
            warn_caller(f"model {graph.name!r} is compiled anew for each size {text}", SettingWarning)

    def _copied(self, results: Mapping[str, object], out: Mapping[str, Array]) -> Mapping[str, Array]:
        """The arrays of `out`, with the results in them. Raises `RunError`."""
        where, known = self.model.model.graph.name, list[tuple[Array, Array]]()
        for name, array in out.items():
            if name not in results:
                raise RunError(f"no output {name!r}", where=where, hint=f"outputs: {', '.join(self.outputs)}")
            result = results[name]
            if not isinstance(result, np.ndarray):
                raise RunError(f"out for {name!r}: the output is no array", where=where)
            target_of(repr(name), array, result.shape, result.dtype, where)
            if any(overlap(array, other) for other, _ in known):
                raise RunError(f"out for {name!r} overlaps another output", where=where)
            known.append((array, result))
        for array, result in known:
            array[...] = result
        return out

    def profile(self, inputs: Mapping[str, Array], runs: int = 10) -> Profile:
        """`Engine.profile` of a model that is one compiled stage for these inputs. Raises `RunError` for others."""
        self.run(inputs)
        with self._lock:
            last = next(reversed(self._cache.values()), None)
        whole = last is not None and last.stage.first == 0 and last.stage.end == len(self.model.nodes)
        if last is None or last.engine is None or not whole:
            hint = "profile its engines one by one (.engines), or see .share and poly.explain"
            raise RunError("it runs in several stages for these inputs", where=self.model.model.graph.name, hint=hint)
        return last.engine.profile({name: inputs[name] for name in last.engine.inputs}, runs)

    def _default(self, name: str) -> object:
        from onnx import numpy_helper

        return numpy_helper.to_array(self.model.defaults[name])

    def _stage(
        self, position: int, history: bytes, values: Mapping[str, object], known: Mapping[str, Array]
    ) -> tuple[Key, _Compiled]:
        """The stage at a node for the values at hand, from the cache or compiled now."""
        here = Key(position, history, self._signature(position, values))
        while True:
            decided = sorted(self._decided.get(here, frozenset()))
            content = {name: np.asarray(values[name]) for name in decided}
            key = here._replace(content=tuple((name, a.tobytes()) for name, a in content.items()))
            if key in self._cache:
                self._cache.move_to_end(key)
                return key, self._cache[key]
            found = self.model.stage(position, values, {**known, **content})
            if isinstance(found, frozenset):
                self._decided[here] = self._decided.get(here, frozenset()) | found
                continue
            engine = None if found.graph is None else self.build(found.graph)
            self.compiled += engine is not None
            self._cache[key] = _Compiled(found, engine, hashlib.sha256(repr(key).encode()).digest())
            return key, self._cache[key]

    def _evict(self, used: Set[Key]) -> None:
        """Forget the oldest stages, and what decided them. Never one of this run, which the next will want again."""
        while len(self._cache) > _MAX_STAGES and (oldest := next(iter(self._cache))) not in used:
            del self._cache[oldest]
            if not any(key.shapes == oldest.shapes for key in self._cache):
                self._decided.pop(oldest.shapes, None)

    def _signature(self, position: int, values: Mapping[str, object]) -> Signature:
        """Shapes and dtypes of what is read from here on."""
        needed = self.model.needed_from(position)
        return tuple(
            (name, v.shape, v.dtype) if isinstance(v, np.ndarray) else (name, type(v).__name__)
            for name, v in sorted(values.items()) if name in needed
        )  # fmt: skip

    def _alone(
        self, position: int, stage: Stage, values: dict[str, object], known: Mapping[str, Array],
        outside: dict[str, Outside],
    ) -> None:  # fmt: skip
        """Run one node: If, Loop and Scan by compiled graphs, another by numpy or the reference evaluator."""
        node = self.model.nodes[position]
        label = f"{node.name or next(iter(node.output), node.op_type)} ({node.op_type})"
        reads: dict[str, object] = {}
        for read in self.model.reads[position]:
            if read in known or read in values:
                reads[read] = known[read] if read in known else values[read]
            elif read in self.model.defaults:
                reads[read] = self._default(read)
        name = body_name(node, reads)
        if name is not None:
            body = self._body(position, name)
            results = run_control(node, reads, name, body.run)
            if body.share is not None:
                outside |= {f"{label}: {one}": found for one, found in body.share.outside.items()}
        else:
            if not by_numpy(node):
                self._warn(label, stage.reason)
            start = time.perf_counter()
            if position not in self._evaluators:
                self._evaluators[position] = evaluator_of(node, self.model.model)
            results = self._evaluators[position](reads)
            seconds = time.perf_counter() - start + (outside[label].seconds if label in outside else 0.0)
            outside[label] = Outside(seconds, "numpy" if by_numpy(node) else "onnx.reference", stage.reason)
        for output, value in zip(node.output, results, strict=True):
            if output:
                values[output] = np.asarray(value) if isinstance(value, np.generic) else value

    def _warn(self, label: str, reason: str) -> None:
        if label not in self._warned:
            self._warned.add(label)
            message = f"node {label} runs by the reference evaluator: {reason}"
            warn_caller(message, FallbackWarning)

    def _body(self, position: int, name: str) -> ModelEngine:
        """A graph inside of a node, compiled as a model of its own; the control runs here."""
        if (position, name) not in self._bodies:
            self._bodies[position, name] = ModelEngine(self.model.body(position, name), self.build, inner=True)
        return self._bodies[position, name]

    def __repr__(self) -> str:
        if self.share is None:
            return f"<ModelEngine {self.model.model.graph.name}: compiles at the first run>"
        return (
            f"<ModelEngine {self.model.model.graph.name}: {counted(len(self._cache), 'stage')}, "
            f"{self.compiled} compiled, {len(self.by_numpy)} by numpy, {counted(len(self.fallbacks), 'fallback')}; "
            f"what is not compiled took {self.share.fraction:.0%} of the last run>"
        )

    def __str__(self) -> str:
        lines = [repr(self)]
        if self.deciding:
            lines.append(f"  specialised on the content of {', '.join(self.deciding)}")
        for found in self._cache.values():
            stage = found.stage
            lines.append(f"  nodes {stage.first} to {stage.end - 1}: {found.engine or 'known from the shapes'!r}")
            if stage.alone:
                node = self.model.nodes[stage.end]
                inside = any(position == stage.end for position, _ in self._bodies)
                evaluated = "numpy" if by_numpy(node) else "reference evaluator"
                how = "control here, its body compiled" if inside else evaluated
                lines.append(f"  node {node.name or node.op_type}: {how}: {stage.reason}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [line.strip().split(": ", 1) for line in str(self).splitlines()[1:]]
        tables = (table("stages", ("nodes", "run by"), rows),) if rows else ()
        return Document(repr(self).strip("<>"), (), tables).html()


def _own(value: object) -> object:
    """A result that may be an input, a constant or another result, for the caller to change."""
    match value:
        case np.ndarray():
            return value.copy()
        case list():
            return [_own(v) for v in cast("list[object]", value)]
        case _:
            return value


def _arrays_of(engine: Engine, values: Mapping[str, object]) -> dict[str, Array]:
    """What an engine reads; it checks for itself that they are arrays."""
    return cast("dict[str, Array]", {name: values[name] for name in engine.inputs})
