"""Operators of ONNX Runtime's own domain: as ONNX Runtime computes them, where it is installed, and as numpy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poly
from poly.errors import OnnxError

RNG = np.random.default_rng(5)
B, S, H, N, T = 2, 5, 12, 3, 7


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def codes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, np.uint8)


def model_of(
    operator: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[bool] = (True,),
    attributes: Mapping[str, Any] | None = None, domain: str = "com.microsoft", constants: Sequence[int] = (),
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A model of one node; its operands of the positions `constants` are initialisers."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    results = [f"y{k}" if wanted else "" for k, wanted in enumerate(outputs)]
    node = helper.make_node(operator, names, results, "node", domain=domain, **(attributes or {}))
    arrays = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    dtypes = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in arrays.items()}
    known = [names[k] for k in constants]
    kind = TensorProto.UINT8 if operator.startswith("QLinear") else TensorProto.FLOAT
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, dtypes[n], x.shape) for n, x in arrays.items() if n not in known],
        [helper.make_tensor_value_info(n, kind, None) for n in results if n],
        [onnx.numpy_helper.from_array(arrays[n], n) for n in known],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=8)
    return model, {n: x for n, x in arrays.items() if n not in known}


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


SCALE, ZERO = np.float32(0.05), np.uint8(120)
MASK = (RNG.random((B, S)) < 0.7).astype(np.int32)
MASK[:, 0] = 1
CASES: list[tuple[str, list[Any], tuple[bool, ...], dict[str, Any]]] = [
    ("Gelu", [f32(3, 40)], (True,), {}),
    ("FastGelu", [f32(3, 40)], (True,), {}),
    ("FastGelu", [f32(3, 40), f32(40)], (True,), {}),
    ("BiasGelu", [f32(3, 40), f32(40)], (True,), {}),
    ("QuickGelu", [f32(3, 40)], (True,), {"alpha": 1.5}),
    ("FusedMatMul", [f32(2, 5, 6), f32(2, 6, 7)], (True,), {"alpha": 0.25}),
    ("FusedMatMul", [f32(6, 5), f32(7, 6)], (True,), {"transA": 1, "transB": 1}),
    ("SkipLayerNormalization", [f32(B, S, H), f32(B, S, H), f32(H), f32(H)], (True,), {"epsilon": 1e-5}),
    ("SkipLayerNormalization", [f32(B, S, H), f32(B, S, H), f32(H), None, f32(H)], (True, False, False, True), {}),
    ("SkipSimplifiedLayerNormalization", [f32(B, S, H), f32(B, S, H), f32(H), f32(H)], (True, False, False, True), {}),
    ("SimplifiedLayerNormalization", [f32(B, S, H), f32(H)], (True,), {"epsilon": 1e-6}),
    ("EmbedLayerNormalization", [i32([1, 2, 3], [0, 4, 1]), i32([0, 0, 1], [1, 0, 1]), f32(9, H), f32(8, H), f32(2, H),
     f32(H), f32(H)], (True, False, True), {}),
    ("MultiHeadAttention", [f32(B, S, H), f32(B, T, H), f32(B, T, H)], (True,), {"num_heads": N}),
    ("MultiHeadAttention", [f32(B, S, H), f32(B, S, H), f32(B, S, H), f32(3 * H), MASK, f32(B, N, S, S)],
     (True,), {"num_heads": N, "scale": 0.3}),
    ("MultiHeadAttention", [*(f32(B, S, H) for _ in range(3)), None, None, None, f32(B, N, 4, 4), f32(B, N, 4, 4)],
     (True, True, True), {"num_heads": N, "unidirectional": 1}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H)], (True,), {"num_heads": N}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), MASK], (True,), {"num_heads": N, "unidirectional": 1}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), 1 - MASK], (True,),
     {"num_heads": N, "unidirectional": 1, "mask_filter_value": -3.0}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), 2 * MASK - 1], (True,), {"num_heads": N}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), i32(3, 5)], (True,), {"num_heads": N}),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), None, f32(2, B, N, 4, 4)], (True, True), {"num_heads": N}),
    ("QLinearAdd", [codes(3, 40), SCALE, ZERO, codes(40), SCALE, ZERO, SCALE * 2, ZERO], (True,), {}),
    ("QLinearMul", [codes(3, 40), SCALE, ZERO, codes(3, 40), SCALE, ZERO, SCALE * 4, ZERO], (True,), {}),
    ("QLinearSigmoid", [codes(3, 40), SCALE, ZERO, np.float32(1 / 256), np.uint8(0)], (True,), {}),
    ("QLinearLeakyRelu", [codes(3, 40), SCALE, ZERO, SCALE, ZERO], (True,), {"alpha": 0.1}),
    ("QLinearConcat", [SCALE, ZERO, codes(3, 4), SCALE, ZERO, codes(3, 5), SCALE * 2, ZERO], (True,), {"axis": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "outputs", "attributes"), CASES)
def test_as_onnx_runtime_has_it(
    operator: str, inputs: list[Any], outputs: tuple[bool, ...], attributes: dict[str, Any]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    known = [k for k, x in enumerate(arrays) if x is not None and operator.startswith("QLinear") and x.ndim == 0]
    domain = "" if operator.startswith("Simplified") else "com.microsoft"
    model, given = model_of(operator, arrays, outputs, attributes, domain, known)
    wanted = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    graph = poly.from_onnx(model)
    assert not poly.compile(graph).fallbacks
    results = poly.compile(graph).run(given).values()
    for found, expected in zip(map(np.asarray, results), map(np.asarray, wanted), strict=True):
        assert found.dtype == expected.dtype
        if operator.startswith("QLinear"):
            assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=2e-5, atol=2e-5)


def test_attention_by_numpy() -> None:
    """Also where ONNX Runtime is not installed."""
    q, k, v, mask = f32(B, S, H), f32(B, T, H), f32(B, T, H), np.ones((B, T), np.int32)
    mask[0, 4:] = 0
    model, given = model_of("MultiHeadAttention", [q, k, v, None, mask], attributes={"num_heads": N})
    heads = [x.reshape(B, -1, N, H // N).transpose(0, 2, 1, 3) for x in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(2, 3) / np.sqrt(H // N) + np.where(mask, 0, -10000)[:, None, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ heads[2]
    found = poly.compile(poly.from_onnx(model)).run(given)["y0"].astype("f8")
    np.testing.assert_allclose(found, expected.transpose(0, 2, 1, 3).reshape(B, S, H), rtol=2e-5, atol=2e-5)


def test_by_stages_and_with_free_sizes() -> None:
    operands = [f32(B, S, H), f32(B, S, H), f32(H)]
    model, given = model_of("SkipLayerNormalization", operands, attributes={"epsilon": 1e-5})
    for info in model.graph.input[:2]:
        info.type.tensor_type.shape.dim[0].dim_param = "n"
    sized = poly.compile(poly.from_onnx(model, ranges={"n": (1, 9)})).run(given)["y0"].astype("f8")
    staged = np.asarray(poly.compile(model).run(given)["y0"], "f8")
    total = given["x0"] + given["x1"]
    normal = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 1e-5) * given["x2"]
    np.testing.assert_allclose(sized, normal, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(staged, normal, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("operator", "inputs", "outputs", "attributes", "told"), [
    ("FusedMatMul", [f32(2, 3, 4), f32(4, 5)], (True,), {"transBatchA": 1}, "transBatchA has no compiled form"),
    ("SkipLayerNormalization", [f32(B, S, H)] * 2 + [f32(H)], (True, True), {}, "mean and inv_std_var"),
    ("MultiHeadAttention", [f32(B, S, 3 * H)], (True,), {"num_heads": N}, "packed operands"),
    ("MultiHeadAttention", [f32(B, S, H)] * 3, (True,), {"num_heads": 5}, "12 is not 5 heads"),
    ("MultiHeadAttention", [f32(B, S, H)] + [f32(B, T, H)] * 2, (True,), {"num_heads": N, "unidirectional": 1},
     "5 queries and 7 keys"),
    ("MultiHeadAttention", [f32(B, S, H)] * 3, (True,), {"heads": 5}, "unknown attribute 'heads'"),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), i32(1)], (True,), {"num_heads": N}, r"a mask \[1\]"),
    ("BiasGelu", [f32(3, 4)], (True,), {}, "has 1 inputs, needs 2"),
    ("BiasGelu", [f32(3, 4), f32(5)], (True,), {}, r"BiasGelu.*\[3, 4\](?s:.)*broadcast|broadcast(?s:.)*\[3, 4\]"),
    ("GroupQueryAttention", [f32(3, 4)], (True,), {}, "com.microsoft has no operator GroupQueryAttention"),
])  # fmt: skip
def test_what_has_no_form_is_said(
    operator: str, inputs: list[Any], outputs: tuple[bool, ...], attributes: dict[str, Any], told: str
) -> None:
    model, given = model_of(operator, inputs, outputs, attributes)
    with pytest.raises(OnnxError, match=told) as found:
        poly.from_onnx(model)
    assert "node" in str(found.value)
    if operator == "BiasGelu":
        with pytest.raises(OnnxError, match=told):
            poly.compile(model).run(given)
