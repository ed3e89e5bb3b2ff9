"""Small ONNX models for tests, and how to run a model through the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from poly.frontend.onnx_import import from_onnx
from poly.frontend.onnx_terms import stored
from poly.graph import Graph
from poly.interp import run_program

Arrays = dict[str, np.ndarray]
Operand = np.ndarray | np.generic | None


def node_model(
    operator: str,
    inputs: Sequence[Operand],
    *,
    opset: int = 17,
    constant: Sequence[int] = (),
    outputs: int = 1,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Arrays]:
    """A model of one node, and its run-time inputs; the inputs numbered in `constant` are initialisers."""
    names = ["" if a is None else f"x{k}" for k, a in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(operator, names, results, name="node", **attributes)
    given = {f"x{k}": np.asarray(a) for k, a in enumerate(inputs) if a is not None}
    fixed = {f"x{k}" for k in constant}
    return chain_model([node], {n: a for n, a in given.items() if n not in fixed}, results, opset=opset,
                       constants={n: a for n, a in given.items() if n in fixed})  # fmt: skip


def chain_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    *,
    opset: int = 17,
    constants: Mapping[str, np.ndarray] | None = None,
    dims: Mapping[str, Sequence[int | str | None]] | None = None,
) -> tuple[onnx.ModelProto, Arrays]:
    """A model of some nodes; `dims` replaces the shapes that inputs declare."""

    def info(name: str, a: np.ndarray) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(a.dtype), (dims or {}).get(name, a.shape)
        )

    graph = helper.make_graph(
        list(nodes), "test", [info(n, a) for n, a in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model, dict(inputs)


def run_graph(graph: Graph, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """The outputs of a graph by the interpreter; names are those of the model's file."""
    arrays = {t.name: stored(inputs[graph.labels[t.name]]) for t in graph.inputs}
    found = run_program(graph.to_program(), {**arrays, **graph.constants})
    return {graph.labels[t.name]: found[t.name].view(graph.border_dtype(t)) for t in graph.outputs}


def run_model(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """The outputs of a model; nothing may be left to the reference evaluator."""
    graph = from_onnx(model)
    assert not [n.name for n in graph.nodes if n.external]
    return run_graph(graph, inputs)


def reference(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """The outputs by onnx.reference."""
    from onnx.reference import ReferenceEvaluator

    names = [o.name for o in model.graph.output]
    found = ReferenceEvaluator(model).run(names, dict(inputs))
    return {name: np.asarray(array) for name, array in zip(names, found, strict=True)}


def assert_close(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], rtol: float = 1e-5) -> None:
    """Equal names, shapes and dtypes; integers equal, floats close."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        have = found[name]
        assert (have.shape, have.dtype) == (want.shape, want.dtype), name
        if want.dtype.kind == "f":
            np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol, err_msg=name)
        else:
            np.testing.assert_array_equal(have, want, err_msg=name)
