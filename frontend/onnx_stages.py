"""A model by stages, for what only the run can tell: values that decide shapes, branches, sequences, strings.

A stage is a run of nodes that has a static form once the shapes of what comes in are known, and the content of the few
inputs that decide something. Where a node has none, the stage ends; the node runs by numpy or the reference
evaluator, or its deciding operands, now computed, become constants of the next stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.dtypes import Array, numpy_dtype
from poly.errors import OnnxError, PolyError, RunError
from poly.frontend.onnx_contrib import is_contrib
from poly.frontend.onnx_control import body_model
from poly.frontend.onnx_elementwise import ONNX_DTYPES
from poly.frontend.onnx_importer import Importer, Interrupted
from poly.frontend.onnx_model import input_shapes, tensor_array
from poly.frontend.onnx_operators import OPERATORS
from poly.frontend.onnx_reference import captured_names
from poly.frontend.onnx_terms import Value, is_format, logical_dtype
from poly.given_arrays import array_of
from poly.graph import Graph

if TYPE_CHECKING:
    import onnx

# An input larger than this is never specialised on its content.
_MAX_DECIDING: Final = {"i": 4096, "u": 4096, "b": 4096, "f": 64, "V": 64}


@dataclass(frozen=True)
class Stage:
    """Nodes `first` to `end` - 1 of the model as a graph (None where nothing is computed).

    `known`: results that follow from the shapes and the deciding inputs alone. `reason`: why it ends before the model
    does; `alone`: the node at `end` has to run by numpy or the reference evaluator. `cuts`: results that have only as
    many slices as another result says, by the names of both.
    """

    first: int
    end: int
    graph: Graph | None
    known: Mapping[str, Array]
    reason: str = ""
    alone: bool = False
    cuts: Mapping[str, str] = field(default_factory=dict[str, str])

    def cut(self, results: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a run, those of `cuts` without what is behind their ends."""
        counts = {*self.cuts.values()}
        ends = {name: int(results[count][0]) for name, count in self.cuts.items()}
        return {n: a[: ends[n]] if n in ends else a for n, a in results.items() if n not in counts}


class StagedModel:
    """The nodes of a model, and which values each needs; it holds no state of a run. `counting`: nodes with as many
    results as the data say are compiled where they can be (`onnx_counted`), not left to numpy.
    """

    def __init__(self, model: onnx.ModelProto, counting: bool = True) -> None:
        self.model, self.counting = model, counting
        self.nodes: Sequence[onnx.NodeProto] = list(model.graph.node)
        self.defaults = {i.name: i for i in model.graph.initializer}
        self.outputs = tuple(o.name for o in model.graph.output)
        numbers = {i.name: ONNX_DTYPES.get(i.type.tensor_type.elem_type) for i in model.graph.input}
        self._dtypes = {name: dtype for name, dtype in numbers.items() if dtype is not None}
        self.reads = [{n for n in (*node.input, *captured_names(node)) if n} for node in self.nodes]
        self._after = [set(self.outputs)]
        for reads in reversed(self.reads):
            self._after.append(self._after[-1] | reads)
        self._after.reverse()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Every input, those with a default included."""
        return tuple(i.name for i in self.model.graph.input)

    def needed_from(self, position: int) -> set[str]:
        """What the nodes from `position` on read, and the model's outputs."""
        return self._after[position]

    def as_given(self, name: str, value: object) -> object:
        """The array of a value where the input is a tensor of numbers, as `Engine` takes it; other values as they are.

        Raises `RunError`.
        """
        dtype = self._dtypes.get(name)
        if isinstance(value, np.ndarray) or dtype is None or is_format(dtype):
            return np.asarray(value) if isinstance(value, np.generic) else value
        return array_of(repr(name), numpy_dtype(dtype), value, f"inputs[{name!r}]")

    def check_inputs(self, values: Mapping[str, object]) -> None:
        """Raises `RunError` for names, shapes and dtypes that the model does not take."""
        where = self.model.graph.name
        for name in values:
            if name not in self.inputs:
                raise RunError(f"no input {name!r}", where=where, hint=f"inputs: {', '.join(self.inputs)}")
        tensors: list[onnx.ValueInfoProto] = []
        for info in self.model.graph.input:
            if info.name not in values:
                if info.name not in self.defaults:
                    raise RunError(f"input {info.name!r} is missing", where=where, hint=f"run({{{info.name!r}: ...}})")
            elif info.type.tensor_type.elem_type not in (0, 8):
                tensors.append(info)
        arrays = {i.name: np.asarray(values[i.name]) for i in tensors}
        try:
            found = input_shapes(tensors, {n: a.shape for n, a in arrays.items()}, {})
            for info, (_, dtype) in zip(tensors, found, strict=True):
                if logical_dtype(arrays[info.name].dtype) != dtype:
                    name = dtype if is_format(dtype) else numpy_dtype(dtype).name
                    hint = f"inputs[{info.name!r}].astype({name!r})"
                    message = f"input {info.name!r} is {arrays[info.name].dtype}, expected {dtype}"
                    raise RunError(message, where=where, hint=hint)
        except OnnxError as error:
            raise RunError(error.message, where=error.where, hint=error.hint) from None

    def body(self, position: int, name: str) -> StagedModel:
        """A graph inside of a node."""
        return StagedModel(body_model(self.nodes[position], self.model, name), self.counting)

    def stage(
        self, first: int, values: Mapping[str, object], constants: Mapping[str, Array]
    ) -> Stage | frozenset[str]:
        """The stage that begins at node `first`; or the names of values whose content has to be known for it.

        `values`: what the run has so far, of which only shapes and dtypes are used; `constants`: content that may be
        relied on.
        """
        importer = Importer(self.model, staged=True, counting=self.counting)
        foreign = self._declare(importer, first, values, constants)
        end, stop = first, Interrupted("")
        alone = False
        for end in range(first, len(self.nodes)):
            node = self.nodes[end]
            if strange := sorted(foreign & self.reads[end]) or _strings(node):
                stop, alone = Interrupted(f"{', '.join(strange)}: no tensor of numbers"), True
                break
            try:
                importer.node(node)
                if importer.cuts:
                    end, stop = end + 1, Interrupted(f"only the run can tell how long {node.output[0]} is")
                    break
            except Interrupted as found:
                stop = found
                wanted = frozenset[str]() if stop.value is None else self._deciding(importer, stop.value, values)
                if wanted:
                    return wanted
                alone = stop.value is None or end == first
                break
            except OnnxError as error:
                known = not node.domain and node.op_type in OPERATORS
                if known or is_contrib(node.op_type, node.domain):
                    raise
                stop, alone = Interrupted(error.message), True
                break
        else:
            end = len(self.nodes)
        return self._finished(importer, first, end, stop.reason, alone)

    def _declare(
        self, importer: Importer, first: int, values: Mapping[str, object], constants: Mapping[str, Array]
    ) -> set[str]:
        """Declare what is read from here on; the names of values that are no tensors of numbers."""
        foreign: set[str] = set()
        for name in sorted(self.needed_from(first)):
            if name in constants:
                importer.values.constant(name, constants[name])
            elif name in values:
                try:
                    array = np.asarray(values[name]) if isinstance(values[name], (np.ndarray, np.generic)) else None
                    if array is None:
                        foreign.add(name)
                    else:
                        importer.values.own_input(name, array.shape, logical_dtype(array.dtype))
                except PolyError:
                    foreign.add(name)
            elif name in self.defaults:
                try:
                    importer.values.constant(name, tensor_array(self.defaults[name], f"initialiser {name!r}"))
                except OnnxError:
                    foreign.add(name)
        return foreign

    def _deciding(self, importer: Importer, value: Value, values: Mapping[str, object]) -> frozenset[str]:
        """The inputs to specialise on for the content of a value; none where they are too large, or floats."""
        names = importer.values.origins(value)
        arrays = [np.asarray(values[name]) for name in names]
        return names if all(a.size <= _MAX_DECIDING.get(a.dtype.kind, 0) for a in arrays) else frozenset()

    def _finished(self, importer: Importer, first: int, end: int, reason: str, alone: bool) -> Stage:
        made = dict.fromkeys(name for node in self.nodes[first:end] for name in node.output if name)
        needed = [name for name in made if name in self.needed_from(end)]
        if missing := [name for name in needed if name not in importer.values]:
            what, where = f"output {missing[0]!r} is computed by no node", f"model {self.model.graph.name!r}"
            raise OnnxError(what, where=where, hint="a node has it that has fewer outputs, with its attributes")
        known = {name: array for name in needed if (array := importer.values[name].array) is not None}
        cuts = {name: count for name, count in importer.cuts.items() if name in needed}
        outputs = [*(name for name in needed if name not in known), *cuts.values()]
        graph = importer.graph(outputs=outputs) if outputs else None
        return Stage(first, end, graph, known, reason, alone, cuts)


def _strings(node: onnx.NodeProto) -> list[str]:
    """The attributes of a node that hold strings as data."""
    if node.op_type != "Constant":
        return []
    return [a.name for a in node.attribute if a.name in ("value_string", "value_strings") or a.t.data_type == 8]
