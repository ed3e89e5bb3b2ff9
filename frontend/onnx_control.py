"""If, Loop and Scan at run time: their control, round bodies that run as models of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from poly.dtypes import Array
from poly.errors import OnnxError, RunError
from poly.frontend.onnx_reference import captured_names

if TYPE_CHECKING:
    import onnx

Body = Callable[[Mapping[str, object]], Mapping[str, object]]
CONTROL: Final = ("If", "Loop", "Scan")


def body_name(node: onnx.NodeProto, values: Mapping[str, object]) -> str | None:
    """The attribute that has the graph to run; None where the node is none of the three."""
    if node.domain:
        return None
    if node.op_type == "If":
        return "then_branch" if np.asarray(values[node.input[0]]).reshape(-1)[0] else "else_branch"
    return "body" if node.op_type in CONTROL else None


def body_model(node: onnx.NodeProto, model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A graph of a node as a model; what it reads from outside are inputs of it."""
    from onnx import helper

    found = helper.make_model(_attribute(node, name).g, opset_imports=model.opset_import)
    found.ir_version = model.ir_version
    found.graph.input.extend(helper.make_empty_tensor_value_info(read) for read in captured_names(node))
    return found


def graph_of(node: onnx.NodeProto) -> onnx.GraphProto:
    """The body of a Loop or Scan."""
    return _attribute(node, "body").g


def run_control(node: onnx.NodeProto, values: Mapping[str, object], name: str, body: Body) -> list[object]:
    """The node's outputs; `values`: what it reads, by name, outer values of its graphs included."""
    outer = {read: values[read] for read in captured_names(node)}
    graph = _attribute(node, name).g
    inner = Inner([i.name for i in graph.input], [o.name for o in graph.output], outer, body)
    inputs = [values[read] if read else None for read in node.input]
    match node.op_type:
        case "If":
            results = inner()
        case "Loop":
            results = _loop(inner, inputs, graph)
        case _ if any(a.name == "directions" for a in node.attribute) or len(inputs) == len(graph.input) + 1:
            results = _batched_scan(inner, inputs, node)
        case _:
            results = _scan(inner, inputs, node)
    return [*results[: len(node.output)]]


class Inner:
    """One turn of a body: values in order in, values in order out."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], outer: Mapping[str, object], body: Body) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._outer, self._body = outer, body

    def __call__(self, *values: object) -> list[object]:
        found = self._body({**self._outer, **dict(zip(self.inputs, values, strict=True))})
        return [found[name] for name in self.outputs]


def _loop(inner: Inner, inputs: Sequence[object], graph: onnx.GraphProto) -> list[object]:
    count, condition, *carried = [*inputs, None, None][: max(len(inputs), 2)]
    last = None if count is None else int(np.asarray(count).reshape(-1)[0])
    on = condition is None or bool(np.asarray(condition).reshape(-1)[0])
    if last is None and condition is None:
        raise RunError("the loop has neither a trip count nor a condition", where=f"Loop ({graph.name})")
    rows: list[list[object]] = [[] for _ in inner.outputs[1 + len(carried) :]]
    turn = 0
    while on and (last is None or turn < last):
        further, *results = inner(np.array(turn, np.int64), np.array(True), *carried)
        carried, made = results[: len(carried)], results[len(carried) :]
        for row, value in zip(rows, made, strict=True):
            row.append(value)
        on = condition is None or bool(np.asarray(further).reshape(-1)[0])
        turn += 1
    infos = graph.output[1 + len(carried) :]
    return [*carried, *(_stacked(row, info) for row, info in zip(rows, infos, strict=True))]


def _stacked(rows: Sequence[object], info: onnx.ValueInfoProto) -> Array:
    """One row a turn; without a turn, an empty array of the declared type."""
    from onnx import helper

    if rows:
        return np.stack([np.asarray(cast(Array, row)) for row in rows])
    dims = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
    return np.zeros((0, *dims), helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type or 1))


def _scan(inner: Inner, inputs: Sequence[object], node: onnx.NodeProto) -> list[object]:
    scanned = int_attribute(node, "num_scan_inputs")
    count = len(inputs) - scanned
    states, arrays = list(inputs[:count]), [np.asarray(cast(Array, v)) for v in inputs[count:]]
    axes = ints_attribute(node, "scan_input_axes", scanned)
    arrays = [np.moveaxis(a, axis, 0) for a, axis in zip(arrays, axes, strict=True)]
    turned = ints_attribute(node, "scan_input_directions", scanned)
    arrays = [a[::-1] if d else a for a, d in zip(arrays, turned, strict=True)]
    lengths = {len(a) for a in arrays}
    if len(lengths) != 1:
        raise RunError(f"the scanned axes have the lengths {sorted(lengths)}", where=f"Scan ({node.name})")
    rows: list[list[Array]] = [[] for _ in inner.outputs[count:]]
    for turn in range(lengths.pop()):
        results = inner(*states, *(np.array(a[turn], order="C") for a in arrays))
        states = results[:count]
        for row, value in zip(rows, results[count:], strict=True):
            row.append(np.asarray(cast(Array, value)))
    if not all(rows):
        raise RunError("it scans nothing, and its outputs' shapes are not known", where=f"Scan ({node.name})")
    backwards = ints_attribute(node, "scan_output_directions", len(rows))
    places = ints_attribute(node, "scan_output_axes", len(rows))
    stacks = [np.stack(row[::-1] if d else row) for row, d in zip(rows, backwards, strict=True)]
    return [*states, *(np.moveaxis(s, 0, axis) for s, axis in zip(stacks, places, strict=True))]


def _batched_scan(inner: Inner, inputs: Sequence[object], node: onnx.NodeProto) -> list[object]:
    """The Scan of opset 8: sequences along axis 1 of a batch, perhaps of their own lengths."""
    lengths, *given = inputs
    count = len(given) - int_attribute(node, "num_scan_inputs")
    arrays = [np.asarray(cast(Array, v)) for v in given]
    steps = [arrays[-1].shape[1]] * len(arrays[0]) if lengths is None else np.asarray(lengths).reshape(-1).tolist()
    if any(s != arrays[-1].shape[1] for s in steps) or any(ints_attribute(node, "directions", len(arrays) - count)):
        raise RunError("a Scan of opset 8 with lengths or directions is not supported", where=f"Scan ({node.name})")
    each = [_scan(inner, [a[k] for a in arrays], node) for k in range(len(arrays[0]))]
    return [np.stack([np.asarray(cast(Array, row[k])) for row in each]) for k in range(len(each[0]))]


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute
    hint = f"a {node.op_type} needs it: export the model again"
    label = next(iter(node.output), node.name)
    raise OnnxError(f"it has no attribute {name!r}", where=f"node {label!r} ({node.op_type})", hint=hint)


def int_attribute(node: onnx.NodeProto, name: str) -> int:
    return _attribute(node, name).i


def ints_attribute(node: onnx.NodeProto, name: str, count: int) -> list[int]:
    """As many integers as are wanted, 0 where the node has not that many."""
    found = next((list(a.ints) for a in node.attribute if a.name == name), [])
    return found if len(found) == count else [0] * count
