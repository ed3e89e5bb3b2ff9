"""Single nodes on arrays, by a routine of numpy or the onnx package's reference evaluator: for constants, for external
statements, and for what has no static form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from poly.dtypes import Array
from poly.errors import RunError
from poly.frontend.onnx_arrays import ROUTINES
from poly.program import External

if TYPE_CHECKING:
    import onnx

_OPSET: Final = "polyloom.opset"
Evaluator = Callable[[Mapping[str, object]], list[object]]


def reference_outputs(node: onnx.NodeProto, opset: int, inputs: Mapping[str, Array]) -> list[object]:
    """The node's outputs, in order. Raises whatever runs it raises."""
    from onnx.reference import ReferenceEvaluator

    if routine := _routine(node, opset):
        return routine(inputs)
    evaluator = ReferenceEvaluator(node, opsets={node.domain: opset, "": opset})
    with np.errstate(all="ignore"):
        found = evaluator.run(None, dict(inputs))
    return list(found) if isinstance(found, (list, tuple)) else [found]


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names from outside that the node's subgraphs read."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            inner = {i.name for i in (*graph.input, *graph.initializer)}
            for body in graph.node:
                found.update((name, None) for name in (*body.input, *captured_names(body)) if name not in inner)
                inner.update(body.output)
            found.update((o.name, None) for o in graph.output if o.name not in inner)
    return tuple(name for name in found if name)


def evaluator_of(node: onnx.NodeProto, model: onnx.ModelProto) -> Evaluator:
    """What gives the outputs of a node of a model, of whatever kind (sequences are lists, an absent optional is None),
    for what it reads, outer values of its subgraphs included. Both raise `RunError` where that fails.
    """
    if node.op_type in ("Optional", "OptionalGetElement", "OptionalHasElement"):  # the evaluator's optional is a list
        return partial(_optional, node)
    try:
        opset = next((o.version for o in model.opset_import if o.domain == node.domain), 1)
        run = _routine(node, opset) or _alone(node, model)
    except Exception as error:  # the evaluator has no error type of its own
        raise _failed(node, error) from error

    def evaluated(values: Mapping[str, object]) -> list[object]:
        try:
            with np.errstate(all="ignore"):
                results = iter(run(values))
        except Exception as error:  # whatever numpy or the evaluator raises
            raise _failed(node, error) from error
        return [next(results) if name else None for name in node.output]

    return evaluated


def _optional(node: onnx.NodeProto, values: Mapping[str, object]) -> list[object]:
    value = values[node.input[0]] if node.input and node.input[0] else None
    return [np.array(value is not None)] if node.op_type == "OptionalHasElement" else [value]


def by_numpy(node: onnx.NodeProto) -> bool:
    """True where a routine of numpy runs the node. The data decide how many results most of these have, so that no
    compiled form is meant; else it is the reference evaluator.
    """
    return not node.domain and node.op_type in ROUTINES


def external_by_numpy(external: External) -> bool:
    """`by_numpy` of the node of an external statement of kind "onnx"."""
    import onnx

    return external.kind == "onnx" and by_numpy(onnx.NodeProto.FromString(external.payload))


def _routine(node: onnx.NodeProto, opset: int) -> Evaluator | None:
    """The routine of a node, for what it reads; None where it has none."""
    from onnx import defs, helper

    if not by_numpy(node):
        return None
    schema = defs.get_schema(node.op_type, opset, node.domain)
    given = {**{n: a.default_value for n, a in schema.attributes.items()}, **{a.name: a for a in node.attribute}}
    attributes = {name: _decoded(helper.get_attribute_value(a)) for name, a in given.items() if a.type}
    routine = partial(ROUTINES[node.op_type], **attributes)

    def run(values: Mapping[str, object]) -> list[object]:
        found = routine(*(values[name] if name else None for name in node.input))
        return [value for name, value in zip(node.output, found, strict=False) if name]

    return run


def _decoded(value: object) -> object:
    if isinstance(value, list):
        return [_decoded(v) for v in cast("list[object]", value)]
    return value.decode() if isinstance(value, bytes) else value


def _alone(node: onnx.NodeProto, model: onnx.ModelProto) -> Evaluator:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = dict.fromkeys(name for name in (*node.input, *captured_names(node)) if name)
    graph = helper.make_graph(
        [node], "one", [helper.make_empty_tensor_value_info(n) for n in names],
        [helper.make_empty_tensor_value_info(n) for n in node.output if n],
    )  # fmt: skip
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    evaluator = ReferenceEvaluator(alone)
    return lambda values: list(evaluator.run(None, {name: values[name] for name in names}))


def _failed(node: onnx.NodeProto, error: Exception) -> RunError:
    """Where what runs the node failed, and which operator may be meant where none has the name."""
    from difflib import get_close_matches

    from onnx import defs

    where = f"node {node.name or next(filter(None, node.output), '')!r} ({node.op_type})"
    if defs.has(node.op_type, node.domain):
        text = str(error).partition(" You may either")[0]  # it goes on with all that it has
        return RunError(f"{'numpy' if by_numpy(node) else 'the reference evaluator'} failed: {text}", where=where)
    known = {s.name for s in defs.get_all_schemas() if s.domain == node.domain}
    near = get_close_matches(node.op_type, known, 1)
    domain = node.domain or "ai.onnx"
    hint = near[0] if near else "export it without operators of other domains, or as a function of the model"
    return RunError(f"no operator {node.op_type} in the domain {domain}", where=where, hint=hint)


def make_external(node: onnx.NodeProto, opset: int, inputs: Sequence[str], outputs: Sequence[str]) -> External:
    """The external form of a node; `inputs` and `outputs` are tensor names, '' where absent."""
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.input[:], copy.output[:]
    copy.input.extend(inputs)
    copy.output.extend(outputs)
    copy.metadata_props.add(key=_OPSET, value=str(opset))
    reads = tuple(dict.fromkeys(name for name in inputs if name))
    return External("onnx", copy.SerializeToString(deterministic=True), reads, tuple(name for name in outputs if name))


def run_external(external: External, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Run an external statement of kind "onnx" on whole arrays. Raises `RunError` where that fails."""
    import onnx

    node = onnx.NodeProto.FromString(external.payload)
    opset = next((int(p.value) for p in node.metadata_props if p.key == _OPSET), 1)
    try:
        found = reference_outputs(node, opset, {name: arrays[name] for name in external.reads})
    except Exception as error:  # the evaluator has no error type of its own
        raise _failed(node, error) from error
    return {name: np.asarray(array) for name, array in zip(node.output, found, strict=False) if name}
