"""Operators that ONNX defines by a function: its body, with the node's names and attributes put in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from poly.frontend.onnx_attention_function import attention_function
from poly.frontend.onnx_contrib import contrib_function
from poly.frontend.onnx_model import tensor_type
from poly.frontend.onnx_notation import Call

if TYPE_CHECKING:
    import onnx


class _Functions(Protocol):
    """What the onnx package's stubs leave out of `OpSchema`."""

    function_opset_versions: list[int]
    context_dependent_function_opset_versions: list[int]

    def get_function_with_opset_version(self, version: int, /) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: list[bytes], /
    ) -> bytes: ...


def function_body(
    call: Call, node: onnx.NodeProto, schema: onnx.defs.OpSchema
) -> tuple[list[onnx.NodeProto], list[onnx.OperatorSetIdProto]] | None:
    """The nodes that compute this node, and the operator sets they are in; None where ONNX gives no body.

    Names inside get the prefix of the node's first output, which is unique in a model.
    """
    function = _function(call, node, schema)
    if function is None:
        return None
    prefix = next((name for name in node.output if name), node.name)
    names = {formal: actual for formal, actual in zip(function.input, node.input, strict=False)}
    names |= {formal: "" for formal in function.input[len(node.input) :]}
    names |= {formal: actual for formal, actual in zip(function.output, node.output, strict=False) if actual}
    attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
    for name, formal in schema.attributes.items():
        if name not in attributes and formal.default_value.name:
            attributes[name] = formal.default_value
    return _renamed(_nodes(function, call), names, prefix, attributes), list(function.opset_import)


def has_function_body(schema: onnx.defs.OpSchema) -> bool:
    """Whether ONNX gives a body for some version of the operator."""
    functions = cast(_Functions, schema)
    return bool(functions.function_opset_versions or functions.context_dependent_function_opset_versions)


def _function(call: Call, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> onnx.FunctionProto | None:
    """The body for the newest operator set that is not beyond the model's, if there is one; or ours."""
    import onnx

    if (ours := contrib_function(call) or attention_function(call)) is not None:
        return ours
    functions = cast(_Functions, schema)
    versions = [v for v in functions.function_opset_versions if v <= call.opset]
    if versions:
        return onnx.FunctionProto.FromString(functions.get_function_with_opset_version(max(versions)))
    versions = [v for v in functions.context_dependent_function_opset_versions if v <= call.opset]
    if not versions:
        return None
    types = [onnx.TypeProto() if v is None else tensor_type(v) for v in call.inputs]
    types += [onnx.TypeProto()] * (len(node.input) - len(types))
    text = functions.get_context_dependent_function_with_opset_version(
        max(versions), node.SerializeToString(), [t.SerializeToString() for t in types]
    )
    return onnx.FunctionProto.FromString(text) if text else None


def _nodes(function: onnx.FunctionProto, call: Call) -> list[onnx.NodeProto]:
    """The nodes of a body. One with constants in f32 computes 16-bit floats in f32, and doubles as such."""
    import onnx

    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in function.node]
    single = onnx.TensorProto.FLOAT
    constants = [n for n in nodes if n.op_type == "Constant" and any(a.t.data_type == single for a in n.attribute)]
    value = call.inputs[0] if len(function.input) == len(function.output) == 1 else None
    if not constants or value is None or value.dtype not in ("f16", "bf16", "f64"):
        return nodes
    dtype = tensor_type(value).tensor_type.elem_type
    if value.dtype != "f64":
        ends = {name: f"{name}_f32" for name in (*function.input, *function.output)}
        _with_names(nodes, ends)
        x, y = ends
        return [_cast(x, ends[x], single), *nodes, _cast(ends[y], y, dtype)]
    ends = {name: f"{name}_f32" for n in constants for name in n.output}
    _with_names(constants, ends)
    casts = [_cast(narrow, name, dtype) for name, narrow in ends.items()]
    return [*constants, *casts, *(n for n in nodes if n not in constants)]


def _with_names(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        for used in (node.input, node.output):
            used[:] = [names.get(name, name) for name in used]


def _cast(source: str, name: str, dtype: int) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node("Cast", [source], [name], f"{name}_cast", to=dtype)


def _renamed(
    nodes: Iterable[onnx.NodeProto], names: dict[str, str], prefix: str, attributes: Mapping[str, onnx.AttributeProto]
) -> list[onnx.NodeProto]:
    import onnx

    def actual(name: str) -> str:
        return names.setdefault(name, f"{prefix}/{name}") if name else ""

    found: list[onnx.NodeProto] = []
    for body in nodes:
        node = onnx.NodeProto(op_type=body.op_type, domain=body.domain, name=f"{prefix}/{body.name or body.op_type}")
        node.input.extend(actual(name) for name in body.input)
        node.output.extend(actual(name) for name in body.output)
        for attribute in body.attribute:
            if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
                continue
            kept = node.attribute.add()
            kept.CopyFrom(attributes[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
            kept.name = attribute.name
            if kept.HasField("g"):
                _rename_graph(kept.g, names, prefix, attributes)
        found.append(node)
    return found


def _rename_graph(
    graph: onnx.GraphProto, names: dict[str, str], prefix: str, attributes: Mapping[str, onnx.AttributeProto]
) -> None:
    """A branch inside a function: it sees the function's names, and its own get the prefix too."""
    for value in (*graph.input, *graph.initializer):
        value.name = names.setdefault(value.name, f"{prefix}/{value.name}")
    nodes = _renamed(graph.node, names, prefix, attributes)
    del graph.node[:]
    graph.node.extend(nodes)
    for output in graph.output:
        output.name = names.get(output.name, output.name)
