"""ONNX operators that sample, transform, rank or keep a state: interpreter and CPU against onnx.reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from poly.frontend.onnx_import import from_onnx
from tests.onnx_helpers import Operand, assert_close, node_model, reference, run_model
from tests.test_onnx import f32, i64, ints, positive
from tests.test_onnx_compiled import compiled

U8 = np.uint8
IMAGE, VOLUME = f32(2, 3, 4, 5), f32(1, 2, 3, 4, 3)
GRID = f32(2, 3, 4, 2) * np.float32(0.8)
Case = tuple[str, list[Operand], dict[str, Any]]

GRIDS: dict[str, Case] = {
    f"grid {mode} {outside} {corners}": (
        "GridSample", [IMAGE, GRID],
        {"mode": mode, "padding_mode": outside, "align_corners": corners, "opset": 20},
    )
    for mode, outside, corners in product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1))
}  # fmt: skip
SAMPLED: dict[str, Case] = {
    "grid of a volume": ("GridSample", [VOLUME, f32(1, 2, 3, 2, 3)], {"mode": "linear", "opset": 20}),
    "moved taps": ("DeformConv", [f32(1, 4, 5, 5), f32(2, 2, 3, 3), f32(1, 36, 3, 3), f32(2),
                                  positive(1, 18, 3, 3)], {"group": 2, "offset_group": 2, "opset": 19}),
    "regions, mean": ("RoiAlign", [IMAGE, positive(2, 4) * np.float32(3), i64(1, 0)],
                      {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "opset": 16}),
    "regions, greatest": ("RoiAlign", [IMAGE, positive(2, 4) * np.float32(3), i64(1, 0)],
                          {"output_height": 2, "output_width": 2, "sampling_ratio": 3, "mode": "max", "opset": 16}),
    "places, moved": ("AffineGrid", [f32(2, 2, 3), i64(2, 1, 4, 5)], {"constant": [1], "opset": 20}),
    "places of a volume, to corners": ("AffineGrid", [f32(2, 3, 4), i64(2, 1, 2, 4, 5)],
                                       {"constant": [1], "opset": 20, "align_corners": 1}),
    "unpooled": ("MaxUnpool", [f32(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])],
                 {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "columns to an image": ("Col2Im", [f32(2, 18, 12), i64(5, 6), i64(3, 3)], {"constant": [1, 2], "opset": 18}),
    "cropped": ("Resize", [IMAGE, np.array([0, 0, .2, -.3, 1, 1, .9, 1.1], np.float32), None, i64(2, 3, 3, 4)],
                {"constant": [1, 3], "coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear",
                 "extrapolation_value": 7.0, "opset": 19}),
}  # fmt: skip
SIGNAL = f32(2, 12, 1)
TRANSFORMED: dict[str, Case] = {
    "transform": ("DFT", [SIGNAL], {"axis": 1}),
    "transform of complex": ("DFT", [f32(3, 10, 2)], {"axis": 1}),
    "inverse transform": ("DFT", [f32(3, 10, 2)], {"axis": 1, "inverse": 1}),
    "transform in two steps": ("DFT", [f32(2, 64, 3, 1)], {"axis": 1}),
    "inverse transform in two steps": ("DFT", [f32(3, 2, 72, 2)], {"axis": 2, "inverse": 1}),
    "half a transform in two steps": ("DFT", [f32(2, 72, 1)], {"axis": 1, "onesided": 1}),
    "frames in two steps": ("STFT", [f32(2, 150, 1), i64(8).reshape(()), positive(70)], {"constant": [1]}),
    "half a transform": ("DFT", [SIGNAL], {"axis": 1, "onesided": 1}),
    "shorter transform in two steps": ("DFT", [f32(2, 80, 2), i64(72).reshape(())], {"axis": 1, "constant": [1]}),
    "longer transform": ("DFT", [SIGNAL, i64(16).reshape(())], {"axis": 1, "constant": [1]}),
    "real inverse, odd": ("DFT", [f32(2, 6, 2), i64(11).reshape(())],
                          {"constant": [1], "inverse": 1, "onesided": 1, "opset": 20}),
    "real inverse, even": ("DFT", [f32(2, 6, 2), i64(10).reshape(())],
                           {"constant": [1], "inverse": 1, "onesided": 1, "opset": 20}),
    "frames": ("STFT", [f32(1, 40, 1), i64(8).reshape(()), positive(16)], {"constant": [1]}),
    "frames, constant window": ("STFT", [f32(1, 40, 1), i64(8).reshape(()), positive(16)], {"constant": [1, 2]}),
    "determinant": ("Det", [f32(2, 3, 3)], {}),
    "determinant of 4": ("Det", [f32(4, 4)], {}),
}  # fmt: skip
RANKED: dict[str, Case] = {
    "greatest": ("TopK", [f32(3, 7), i64(3)], {"constant": [1], "outputs": 2}),
    "least, with ties": ("TopK", [ints(0, 3, 4, 9), i64(5)], {"constant": [1], "outputs": 2, "largest": 0}),
    "greatest of a column": ("TopK", [f32(6, 2), i64(2)], {"constant": [1], "outputs": 2, "axis": 0}),
    "cache": ("TensorScatter", [f32(2, 2, 5, 3), f32(2, 2, 2, 3), i64(1, 3)], {"opset": 24}),
    "cache, wrapping": ("TensorScatter", [f32(2, 2, 5, 3), f32(2, 2, 3, 3), i64(4, 3)],
                        {"opset": 24, "mode": "circular"}),
}  # fmt: skip
SIGNED = np.array([5.5, -5.5, 5.5, -5.5, 1e20, -3, np.inf, 2], np.float32)
BY = np.array([2.1, 2.1, -2.1, -2.1, 0.3, np.inf, 2, 0], np.float32)
ELEMENTS: dict[str, Case] = {
    "remainder of C": ("Mod", [SIGNED, BY], {"fmod": 1}),
    "remainder of f64": ("Mod", [f32(9).astype(np.float64) * 1e6, f32(9).astype(np.float64)], {"fmod": 1}),
    "and": ("BitwiseAnd", [ints(0, 255, 3, 4, dtype=U8), ints(0, 255, 4, dtype=U8)], {"opset": 18}),
    "or": ("BitwiseOr", [ints(-99, 99, 3, 4), ints(-99, 99, 3, 1)], {"opset": 18}),
    "xor": ("BitwiseXor", [ints(-99, 99, 3, 4), ints(-99, 99, 3, 1)], {"opset": 18}),
    "not": ("BitwiseNot", [ints(0, 255, 3, 4, dtype=U8)], {"opset": 18}),
    "not of signed": ("BitwiseNot", [ints(-99, 99, 3, 4)], {"opset": 18}),
    "normalised by the batch": ("BatchNormalization", [IMAGE, *(positive(3) for _ in range(4))],
                                {"training_mode": 1, "outputs": 3, "opset": 15}),
}  # fmt: skip
Q, K, V = f32(2, 3, 8), f32(2, 3, 4), f32(2, 3, 6)
HEADS = {"q_num_heads": 4, "kv_num_heads": 2, "outputs": 2, "opset": 27}
STATEFUL: dict[str, Case] = {
    "linear": ("LinearAttention", [Q, K, V], {**HEADS, "update_rule": "linear"}),
    "gated, by key": ("LinearAttention", [Q, K, V, f32(2, 2, 2, 3), f32(2, 3, 4)], {**HEADS, "update_rule": "gated"}),
    "delta": ("LinearAttention", [Q, K, V, None, None, f32(2, 3, 1)], {**HEADS, "update_rule": "delta"}),
    "gated delta": ("LinearAttention", [Q, K, V, None, f32(2, 3, 2), f32(2, 3, 2)], {**HEADS, "scale": 0.7}),
}
HEADS_OF_SHARED, KEYS = f32(2, 6, 3, 4), (f32(2, 2, 5, 4), f32(2, 2, 5, 7))
SEEN = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 1]], bool)
PAST = (f32(2, 2, 2, 4), f32(2, 2, 2, 7))
SHARED: dict[str, Case] = {  # heads that share keys
    "shared": ("Attention", [HEADS_OF_SHARED, *KEYS], {"opset": 23}),
    "shared, some rows see nothing": ("Attention", [HEADS_OF_SHARED, *KEYS, SEEN], {"opset": 23, "scale": 0.3}),
    "shared, by heads": ("Attention", [HEADS_OF_SHARED, *KEYS, f32(2, 6, 3, 5)], {"opset": 23, "softcap": 1.5}),
    "shared, after others": ("Attention", [HEADS_OF_SHARED, *KEYS, None, *PAST],
                             {"opset": 23, "is_causal": 1, "outputs": 3}),
    "shared, side by side": ("Attention", [f32(2, 3, 24), f32(2, 5, 8), f32(2, 5, 14), f32(3, 5)],
                             {"opset": 24, "q_num_heads": 6, "kv_num_heads": 2, "is_causal": 1}),
}
CASES = SHARED | GRIDS | SAMPLED | TRANSFORMED | RANKED | ELEMENTS | STATEFUL


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_operator_by_the_interpreter_and_on_the_cpu(case: str) -> None:
    operator, inputs, options = CASES[case]
    model, arrays = node_model(operator, inputs, **options)
    want = reference(model, arrays)
    assert_close(run_model(model, arrays), want, rtol=3e-5)
    assert_close(compiled(model, arrays), want, rtol=3e-5)


def test_shared_keys_are_not_repeated() -> None:
    operator, inputs, options = SHARED["shared"]
    graph = from_onnx(node_model(operator, inputs, **options)[0])
    assert "Expand" not in {n.operator for n in graph.nodes}


def test_python_remainder_has_the_sign_of_the_divisor() -> None:
    """The oracle is numpy's; what opset 28 says about infinities is numpy's rule, too."""
    a, b = np.array([5.5, -5.5, 5.5, -5.5, -3, 3], np.float32), np.array([2, 2, -2, -2, np.inf, -np.inf], np.float32)
    model, arrays = node_model("Mod", [a, b], opset=28)
    assert_close(run_model(model, arrays), {"y0": np.mod(a, b)})
    assert_close(compiled(model, arrays), {"y0": np.mod(a, b)})


def test_a_nan_is_the_greatest() -> None:
    values = np.array([1, np.nan, 3, np.nan, 2], np.float32)
    model, arrays = node_model("TopK", [values, i64(3)], constant=[1], outputs=2)
    want = {"y0": np.array([np.nan, np.nan, 3], np.float32), "y1": np.array([1, 3, 2])}
    assert_close(run_model(model, arrays), want)
    assert_close(compiled(model, arrays), want)


def test_a_place_that_is_no_number_counts_as_outside() -> None:
    grid = np.array([[[[np.nan, 0], [1e30, 0], [0, 0]]]], np.float32)
    model, arrays = node_model("GridSample", [np.ones((1, 1, 3, 3), np.float32), grid], opset=20, align_corners=1)
    want = {"y0": np.array([[[[0, 0, 1]]]], np.float32)}
    assert_close(run_model(model, arrays), want)
    assert_close(compiled(model, arrays), want)
