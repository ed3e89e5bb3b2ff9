"""Operators of ONNX Runtime's own domain: as ONNX Runtime computes them, where it is installed, and as numpy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import poly
from poly.errors import OnnxError
from poly.frontend.onnx_contrib import OPERATORS

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
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, dtypes[n], x.shape) for n, x in arrays.items() if n not in known],
        [onnx.ValueInfoProto(name=n) for n in results if n],
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
    ("QLinearGlobalAveragePool", [codes(2, 5, 7, 6), SCALE, ZERO, SCALE, ZERO], (True,), {}),
    ("QLinearGlobalAveragePool", [codes(2, 7, 6, 5), SCALE, ZERO, SCALE, ZERO], (True,), {"channels_last": 1}),
    ("QLinearAveragePool", [codes(1, 3, 7, 6), SCALE, ZERO, SCALE, ZERO], (True,),
     {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "count_include_pad": 1}),
    ("QLinearSoftmax", [codes(3, 40), SCALE, ZERO, np.float32(1 / 256), np.uint8(0)], (True,), {"opset": 13}),
    ("QLinearSoftmax", [codes(3, 4, 5), SCALE, ZERO, np.float32(1 / 256), np.uint8(0)], (True,),
     {"opset": 12, "axis": 1}),
    ("QLinearWhere", [RNG.random((3, 1)) < 0.5, codes(3, 40), SCALE, ZERO, codes(40), SCALE * 2, ZERO, SCALE, ZERO],
     (True,), {}),
    ("QLinearConv", [codes(1, 7, 6, 4), SCALE, ZERO, codes(5, 4, 3, 3), SCALE, ZERO, SCALE * 9, ZERO], (True,),
     {"channels_last": 1, "pads": [1, 1, 1, 1]}),
    ("NhwcMaxPool", [codes(1, 7, 6, 4)], (True,), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QGemm", [codes(4, 6), SCALE, ZERO, codes(6, 5), SCALE, ZERO, i32(*range(-2000, 3000, 1000))], (True,), {}),
    ("QGemm", [codes(4, 6), SCALE, ZERO, codes(5, 6), SCALE, ZERO, None, SCALE * 9, ZERO], (True,),
     {"transB": 1, "alpha": 0.5}),
    ("DynamicQuantizeMatMul", [f32(4, 6), codes(6, 5), SCALE, ZERO, f32(5)], (True,), {}),
    ("DynamicQuantizeMatMul", [f32(4, 6), codes(6, 5), SCALE], (True,), {}),
    ("MatMulIntegerToFloat", [codes(4, 6), codes(6, 5), SCALE, SCALE * 2, None, ZERO, f32(5)], (True,), {}),
    ("QAttention", [codes(B, S, H), codes(H, 3 * H), f32(3 * H), SCALE, SCALE / 9, MASK, ZERO, ZERO], (True,),
     {"num_heads": N}),
    ("QAttention", [codes(B, S, H), codes(H, 3 * H), f32(3 * H), SCALE, SCALE / 9, None, ZERO, ZERO,
                    f32(2, B, N, 3, 4)], (True, True), {"num_heads": N, "unidirectional": 1}),
    ("QuantizeLinear", [f32(3, 40), SCALE, ZERO], (True,), {}),
    ("DequantizeLinear", [codes(3, 40), SCALE, ZERO], (True,), {}),
    ("FusedConv", [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4)], (True,), {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedConv", [f32(1, 3, 8, 8), f32(4, 3, 3, 3), f32(4), f32(1, 4, 6, 6)], (True,),
     {"activation": "LeakyRelu", "activation_params": [0.25]}),
    ("FusedConv", [f32(1, 3, 8, 8), f32(4, 3, 3, 3)], (True,),
     {"activation": "Clip", "activation_params": [-0.5, 1.5], "strides": [2, 2]}),
    ("FusedConv", [f32(1, 3, 8, 8), f32(4, 3, 3, 3)], (True,),
     {"activation": "HardSigmoid", "activation_params": [0.25, 0.5]}),
    ("FusedGemm", [f32(4, 6), f32(5, 6), f32(5)], (True,), {"transB": 1, "alpha": 0.5, "activation": "Tanh"}),
    ("FusedGemm", [f32(4, 6), f32(6, 5), f32(5)], (True,), {"activation": "LeakyRelu", "activation_alpha": 0.25}),
    ("TransposeMatMul", [f32(6, 5), f32(6, 7)], (True,), {"transA": 1}),
    ("Trilu", [f32(2, 5, 6)], (True,), {"upper": 0}),
    ("ExpandDims", [f32(5, 6), i32(1)], (True,), {}),
    ("CDist", [f32(5, 6), f32(7, 6)], (True,), {"metric": "euclidean"}),
    ("CDist", [f32(5, 6), f32(7, 6)], (True,), {}),
    ("GridSample", [f32(1, 2, 6, 6), f32(1, 4, 5, 2)], (True,), {"mode": "bicubic", "padding_mode": "zeros"}),
    ("RotaryEmbedding", [f32(B, S, H), np.array([3]), f32(9, 2), f32(9, 2)], (True,), {}),
    ("RotaryEmbedding", [f32(B, N, S, 4), np.array([range(S), range(2, S + 2)]), f32(9, 2), f32(9, 2)], (True,),
     {"interleaved": 1}),
    ("MatMulNBits", [f32(3, 40), codes(5, 3, 8), f32(15)], (True,), {"K": 40, "N": 5, "block_size": 16}),
    ("MatMulNBits", [f32(3, 64), codes(5, 4, 8), f32(20), codes(10), None, f32(5)], (True,),
     {"K": 64, "N": 5, "block_size": 16}),
    ("MatMulNBits", [f32(2, 64), codes(5, 4, 8), f32(20), f32(5, 4)], (True,), {"K": 64, "N": 5, "block_size": 16}),
    ("MatMulNBits", [f32(1, 2, 48), codes(20, 3, 8), f32(60), codes(40), None, f32(20)], (True,),
     {"K": 48, "N": 20, "block_size": 16}),
    ("MatMulNBits", [f32(1, 64), codes(20, 4, 8), f32(80)], (True,), {"K": 64, "N": 20, "block_size": 16}),
    ("GatherBlockQuantized", [codes(9, 16), np.array([[1, 8], [0, 3]]), f32(9, 2)], (True,),
     {"block_size": 16, "quantize_axis": 1}),
    ("GatherBlockQuantized", [codes(9, 24), np.array([1, 8]), f32(9, 3), codes(9, 2)], (True,),
     {"block_size": 16, "quantize_axis": 1}),
    *(("GroupQueryAttention",
       [f32(2, S, 48), f32(2, S, 16), f32(2, S, 16), None, None, i32(S - 1, S - 1), i32(S), *rotary],
       (True, True, True), {"num_heads": N, "kv_num_heads": 1, "do_rotary": len(rotary) // 2})
      for rotary in ((), (f32(9, 8), f32(9, 8)))),
    ("GroupQueryAttention",
     [f32(2, 1, 64), f32(2, 1, 32), f32(2, 1, 32), f32(2, 2, 6, 16), f32(2, 2, 6, 16), i32(6, 4), i32(7), f32(9, 8),
      f32(9, 8)], (True, True, True), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 3}),
    ("GroupQueryAttention",
     [f32(1, 1, 128), None, None, f32(1, 2, 9, 16), f32(1, 2, 9, 16), i32([5]), i32(6), f32(9, 8), f32(9, 8)],
     (True, True, True),
     {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1, "softcap": 2.0, "scale": 0.7}),
    ("GroupQueryAttention",
     [f32(1, 3, 32), f32(1, 3, 16), f32(1, 3, 16), f32(1, 2, 4, 8), f32(1, 2, 4, 8), i32([6]), i32(7)],
     (True, True, True), {"num_heads": 4, "kv_num_heads": 2}),
]
_KNOWN = {  # operands that are constants of a model
    "ExpandDims": (1,), "GroupQueryAttention": (6,), "MatMulNBits": (1, 2, 3, 5), "QGemm": (1, 2, 4, 5, 7, 8),
    "QAttention": (3, 4, 6, 7), "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2),
    "DynamicQuantizeMatMul": (1, 2, 3, 4),
}  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "outputs", "attributes"), CASES)
def test_as_onnx_runtime_has_it(
    operator: str, inputs: list[Any], outputs: tuple[bool, ...], attributes: dict[str, Any]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    constants = _KNOWN.get(operator, range(9) if operator.startswith("QLinear") else ())
    given = [(k, x) for k, x in enumerate(arrays) if x is not None and k in constants]
    known = [k for k, x in given if x.ndim == 0 or operator in _KNOWN]
    domain = "" if operator.startswith("Simplified") else "com.microsoft"
    model, given = model_of(operator, arrays, outputs, attributes, domain, known)
    wanted = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    graph = poly.from_onnx(model)
    assert not poly.compile(graph).fallbacks
    results = poly.compile(graph).run(given).values()
    for found, expected in zip(map(np.asarray, results), map(np.asarray, wanted), strict=True):
        assert found.dtype == expected.dtype
        if operator == "GroupQueryAttention" and found.ndim == 4:  # what lies behind the steps of an item is anything
            found = np.where(np.arange(found.shape[2])[:, None] > inputs[5].reshape(-1, 1, 1, 1), 0, found)
        if found.dtype == np.uint8:
            assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), rtol=2e-5, atol=2e-5)


def test_each_has_a_case() -> None:
    assert {operator for operator, *_ in CASES} == set(OPERATORS)


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


def test_packed_heads() -> None:
    """ONNX Runtime has them on other devices."""
    q, k, v, bias = *(f32(B, S, N, 4) for _ in range(3)), f32(3 * H)
    plain = [x.reshape(B, S, H) for x in (q, k, v)]
    sides = [[*plain, bias], [np.stack([q, k, v], 3), None, None, bias], [plain[0], np.stack([k, v], 3), None, bias]]
    results: list[np.ndarray] = []
    for operands in sides:
        model, given = model_of("MultiHeadAttention", operands, attributes={"num_heads": N})
        results.append(poly.compile(poly.from_onnx(model)).run(given)["y0"].astype("f8"))
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], rtol=1e-5, atol=1e-5)


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
    ("MultiHeadAttention", [f32(B, S, N, 3, 5)], (True,), {"num_heads": 4}, r"query \[2, 5, 3, 3, 5\] is not 4 heads"),
    ("FusedGemm", [f32(4, 6), f32(6, 5)], (True,), {"activation": "Swish"}, "activation 'Swish'"),
    ("MatMulNBits", [f32(4, 32), codes(5, 2, 4), f32(10)], (True,), {"K": 32, "N": 5, "block_size": 16, "bits": 2},
     "codes of 2 bits"),
    ("GroupQueryAttention",
     [f32(1, 1, 16), *(f32(1, 1, 8) for _ in range(2)), *(f32(1, 2, 4, 4) for _ in range(2)), i32([4]), i32(5)],
     (True,), {"num_heads": 4, "kv_num_heads": 2}, "total_sequence_length is only known at run time"),
    ("MultiHeadAttention", [f32(B, S, H)] * 3, (True,), {"num_heads": 5}, "12 is not 5 heads"),
    ("MultiHeadAttention", [f32(B, S, H)] + [f32(B, T, H)] * 2, (True,), {"num_heads": N, "unidirectional": 1},
     "5 queries and 7 keys"),
    ("MultiHeadAttention", [f32(B, S, H)] * 3, (True,), {"heads": 5}, "unknown attribute 'heads'"),
    ("Attention", [f32(B, S, H), f32(H, 3 * H), f32(3 * H), i32(1)], (True,), {"num_heads": N}, r"a mask \[1\]"),
    ("BiasGelu", [f32(3, 4)], (True,), {}, "has 1 inputs, needs 2"),
    ("BiasGelu", [f32(3, 4), f32(5)], (True,), {}, r"BiasGelu.*\[3, 4\](?s:.)*broadcast|broadcast(?s:.)*\[3, 4\]"),
    ("SparseAttention", [f32(3, 4)], (True,), {}, "com.microsoft has no operator SparseAttention"),
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
