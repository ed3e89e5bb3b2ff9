"""Cases as ONNX models: what ours and the ONNX runtimes compile where there is no equation. One entry a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from benchmarks.cases import RESULT, Case

if TYPE_CHECKING:
    import onnx

Attributes = Mapping[str, int | str | Sequence[int]]
Call = tuple[str, Sequence[str], str, Attributes]
Arrays = Mapping[str, npt.NDArray[np.generic]]
Nodes = tuple[Sequence[Call], Arrays]


def model_of(case: Case) -> onnx.ModelProto:
    """The case as an ONNX model with inputs and initialisers named like its operands and the output `result`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    if case.path:
        return onnx.load(case.path)
    nodes, extra = NODES[case.kind](case)
    _, consts = case.operands()
    calls: list[onnx.NodeProto] = []
    for k, (operator, ins, out, attributes) in enumerate(nodes):
        calls.append(helper.make_node(operator, list(ins), [out], name=f"n{k}"))
        calls[-1].attribute.extend(helper.make_attribute(a, v) for a, v in attributes.items())
    graph = helper.make_graph(
        calls,
        case.name.replace(">", ""),
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in case.inputs.items()],
        [helper.make_tensor_value_info(RESULT, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in {**consts, **extra}.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _einsum(case: Case) -> Nodes:
    names = list(case.inputs)
    terms, result = case.spec.split("->")
    first, *rest = terms.split(",")
    if not rest and sorted(first) == sorted(result):
        return [("Transpose", names, RESULT, {"perm": [first.index(i) for i in result]})], {}
    if not rest:
        axes = np.array([k for k, i in enumerate(first) if i not in result], np.int64)
        return [("ReduceSum", [*names, "axes"], RESULT, {"keepdims": 0})], {"axes": axes}
    if (first, rest, result) in (("ik", ["kj"], "ij"), ("bij", ["bjk"], "bik")):
        return [("MatMul", names, RESULT, {})], {}
    if case.spec in ("ki,kj->ij", "ik,jk->ij", "ki,jk->ij"):
        return [("Gemm", names, RESULT, {"transA": int(first == "ki"), "transB": int(rest == ["jk"])})], {}
    return [("Einsum", names, RESULT, {"equation": case.spec})], {}


def _conv(case: Case) -> Nodes:
    attrs = {"strides": [case.stride] * 2, "pads": [case.pad] * 4, "group": case.groups}
    return [("Conv", ["x", "w"], RESULT, attrs)], {}


def _attention(case: Case) -> Nodes:
    scale = np.array(1 / np.sqrt(case.inputs["q"][-1]), np.float32)
    return [
        ("Transpose", ["k"], "kt", {"perm": [0, 2, 1]}),
        ("MatMul", ["q", "kt"], "s", {}),
        ("Mul", ["s", "scale"], "t", {}),
        ("Softmax", ["t"], "p", {"axis": -1}),
        ("MatMul", ["p", "v"], RESULT, {}),
    ], {"scale": scale}


def _fixed(*nodes: Call) -> Callable[[Case], Nodes]:
    return lambda _: (nodes, {})


NODES: Mapping[str, Callable[[Case], Nodes]] = {
    "einsum": _einsum,
    "conv": _conv,
    "attention": _attention,
    "linear": _fixed(
        ("MatMul", ["x", "w"], "m", {}), ("Add", ["m", "b"], "a", {}), ("Relu", ["a"], RESULT, {})
    ),
    "muladdrelu": _fixed(
        ("Mul", ["x", "y"], "m", {}), ("Add", ["m", "z"], "a", {}), ("Relu", ["a"], RESULT, {})
    ),
    "bias_gelu": _fixed(("Add", ["x", "b"], "a", {}), ("Gelu", ["a"], RESULT, {"approximate": "none"})),
    "softmax": _fixed(("Softmax", ["x"], RESULT, {"axis": -1})),
    "layernorm": _fixed(("LayerNormalization", ["x", "g", "b"], RESULT, {"axis": -1})),
    "noop": _fixed(("Add", ["x", "x"], RESULT, {})),
}
