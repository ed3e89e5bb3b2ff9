"""ONNX operators that are loops over time, quantised or indirect: interpreter and CPU against onnx.reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.frontend.onnx_import import from_onnx
from tests.onnx_helpers import Arrays, Operand, assert_close, chain_model, node_model, reference, run_model
from tests.test_onnx import f32, i64, ints, positive


def scalar(value: float, dtype: type) -> np.ndarray:
    return np.array(value, dtype)


def compiled(model: Any, inputs: Arrays) -> Arrays:
    graph = from_onnx(model)
    return poly.compile(graph).run(inputs)


def weights(gates: int, directions: int = 1, inputs: int = 3, hidden: int = 4) -> list[np.ndarray]:
    return [f32(directions, gates * hidden, inputs), f32(directions, gates * hidden, hidden),
            f32(directions, 2 * gates * hidden)]  # fmt: skip


X, H = f32(5, 2, 3), f32(1, 2, 4)
RECURRENT: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "rnn": ("RNN", [X, *weights(1), None, H], {"hidden_size": 4, "outputs": 2}),
    "rnn without bias": ("RNN", [X, *weights(1)[:2]], {"hidden_size": 4, "outputs": 2}),
    "gru": ("GRU", [X, *weights(3), None, H], {"hidden_size": 4, "outputs": 2}),
    "gru, linear before reset": ("GRU", [X, *weights(3)],
                                 {"hidden_size": 4, "outputs": 2, "linear_before_reset": 1}),
    "lstm": ("LSTM", [X, *weights(4), None, H, H], {"hidden_size": 4, "outputs": 3}),
    "lstm, gates side by side": ("LSTM", [X, *weights(4, hidden=24)], {"hidden_size": 24, "outputs": 3}),
    "gru, gates side by side": ("GRU", [X, *weights(3, hidden=32)], {"hidden_size": 32, "outputs": 2}),
    "gru, linear, gates side by side": ("GRU", [X, *weights(3, hidden=16)],
                                        {"hidden_size": 16, "outputs": 2, "linear_before_reset": 1}),
    "lstm with peepholes": ("LSTM", [X, *weights(4), None, H, H, f32(1, 12)], {"hidden_size": 4, "outputs": 3}),
}  # fmt: skip

U8, I8 = np.uint8, np.int8
SHARED = [scalar(0.05, np.float32), scalar(120, U8)]
QUANTISED: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "qlinear matmul": ("QLinearMatMul", [ints(0, 255, 3, 6, dtype=U8), *SHARED, ints(-99, 99, 6, 4, dtype=I8),
                                         scalar(0.02, np.float32), scalar(3, I8), scalar(0.3, np.float32),
                                         scalar(117, U8)], {}),
    "conv of integers": ("ConvInteger", [ints(0, 255, 1, 2, 5, 5, dtype=U8), ints(0, 255, 3, 2, 3, 3, dtype=U8),
                                         scalar(9, U8), scalar(7, U8)], {"pads": [1, 1, 1, 1]}),
    "conv of integers, constants": ("ConvInteger", [ints(0, 255, 1, 2, 5, 5, dtype=U8),
                                                    ints(0, 255, 3, 2, 3, 3, dtype=U8), scalar(9, U8), scalar(7, U8)],
                                    {"pads": [1, 1, 1, 1], "constant": [1, 2, 3]}),
}  # fmt: skip
TIES = ints(0, 3, 4, 5, dtype=np.int32)
SELECTION: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "argmax": ("ArgMax", [f32(3, 4, 5)], {"axis": 1}),
    "argmax with ties": ("ArgMax", [TIES], {"axis": -1, "keepdims": 0}),
    "argmax, the last": ("ArgMax", [TIES], {"axis": 0, "select_last_index": 1}),
    "argmin": ("ArgMin", [TIES.astype(np.float32)], {"axis": 1}),
    "argmax of a NaN": ("ArgMax", [np.array([1, np.nan, 3, np.nan], np.float32)], {}),
    "hardmax": ("Hardmax", [TIES.astype(np.float32)], {"axis": 0}),
    "prefix sums": ("CumSum", [f32(3, 6), scalar(1, np.int64)], {"constant": [1]}),
    "prefix sums, exclusive": ("CumSum", [f32(6, 3), scalar(0, np.int64)], {"constant": [1], "exclusive": 1}),
    "prefix sums, backwards": ("CumSum", [ints(-9, 9, 2, 7), scalar(-1, np.int64)],
                               {"constant": [1], "reverse": 1, "exclusive": 1}),
    "scatter elements": ("ScatterElements", [f32(4, 5), np.array([[0, -1, 2], [1, 1, 3]]), f32(2, 3)], {"axis": 1}),
    "scatter, the last one stays": ("ScatterElements", [f32(6), i64(1, 4, 1, 1), f32(4)], {}),
    "scatter and add": ("ScatterElements", [f32(6), i64(1, 4, 1, 1), f32(4)], {"reduction": "add", "opset": 18}),
    "scatter slices": ("ScatterND", [f32(4, 3), np.array([[2], [-4]]), f32(2, 3)], {}),
    "scatter tuples": ("ScatterND", [f32(4, 3), np.array([[2, 1], [0, 2]]), f32(2)], {"constant": [1]}),
    "scatter slices and max": ("ScatterND", [f32(4, 3), np.array([[2], [2]]), f32(2, 3)],
                               {"reduction": "max", "opset": 18}),
    "gather tuples": ("GatherND", [f32(4, 3, 2), np.array([[[2, 1]], [[-1, 0]]])], {}),
    "gather tuples of a batch": ("GatherND", [f32(2, 3, 4), np.array([[2], [-1]])], {"batch_dims": 1}),
    "one hot": ("OneHot", [ints(-4, 4, 2, 3), scalar(4, np.int64), f32(2)], {"constant": [1], "axis": 1}),
    "over the norm": ("LpNormalization", [f32(3, 4)], {"axis": 0, "opset": 22}),
    "reversed sequences": ("ReverseSequence", [f32(5, 3, 2), i64(5, 1, 3)], {"time_axis": 0, "batch_axis": 1}),
    "max pool with places": ("MaxPool", [f32(1, 2, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "outputs": 2}),
    "pool by the norm of 3": ("LpPool", [f32(1, 2, 6, 6)], {"kernel_shape": [2, 3], "p": 3}),
    "dequantise by axis at run time": ("DequantizeLinear", [ints(0, 9, 2, 3, 2, dtype=U8), positive(3)],
                                       {"opset": 19}),
    "atan": ("Atan", [np.array([0, 1e-4, -0.3, 1, -7, 1e9, np.inf], np.float32)], {}),
    "atan of f64": ("Atan", [np.array([0, 1e-4, -0.3, 1, -7, 1e9])], {}),
    "asin": ("Asin", [f32(9) * 0.5], {}),
    "acos": ("Acos", [f32(9) * 0.5], {}),
    "sinh": ("Sinh", [f32(9) * 1e-3], {}),
    "cosh": ("Cosh", [f32(9)], {}),
    "tan": ("Tan", [f32(9) * 0.5], {}),
    "asinh": ("Asinh", [f32(9) * 1e-3], {}),
    "acosh": ("Acosh", [f32(9) + 4], {}),
    "atanh": ("Atanh", [f32(9) * 0.4], {}),
}  # fmt: skip
IMAGE = f32(1, 2, 4, 5)


def by_scales(*scales: float) -> list[Operand]:
    return [IMAGE, None, np.array(scales, np.float32)]


def by_sizes(*sizes: int) -> list[Operand]:
    return [IMAGE, None, None, i64(*sizes)]


SCALES, SIZES = {"constant": [2]}, {"constant": [3]}
RESAMPLED: dict[str, tuple[str, list[Operand], dict[str, Any]]] = {
    "nearest, twice": ("Resize", by_scales(1, 1, 2, 3), {**SCALES, "coordinate_transformation_mode": "asymmetric",
                                                         "nearest_mode": "floor"}),
    "nearest": ("Resize", by_sizes(1, 2, 7, 3), {**SIZES, "opset": 19}),
    "nearest, ceil": ("Resize", by_sizes(1, 2, 7, 3), {**SIZES, "opset": 19, "nearest_mode": "ceil",
                                                       "coordinate_transformation_mode": "half_pixel"}),
    "linear": ("Resize", by_scales(1, 1, 2, 0.6), {**SCALES, "mode": "linear", "opset": 19}),
    "linear, corners": ("Resize", by_sizes(1, 2, 7, 3), {**SIZES, "mode": "linear", "opset": 19,
                                                         "coordinate_transformation_mode": "align_corners"}),
    "linear of some axes": ("Resize", by_sizes(7, 3), {**SIZES, "mode": "linear", "opset": 19, "axes": [2, 3]}),
    "linear, antialias": ("Resize", by_scales(1, 1, 0.6, 0.5), {**SCALES, "mode": "linear", "antialias": 1,
                                                                "opset": 19}),
    "cubic": ("Resize", by_scales(1, 1, 1.7, 0.8), {**SCALES, "mode": "cubic", "opset": 19}),
    "cubic, without what is outside": ("Resize", by_sizes(1, 2, 7, 3), {**SIZES, "mode": "cubic", "opset": 19,
                                                                        "exclude_outside": 1}),
    # Weights are exact: by thirds a tie could be rounded either way.
    "linear of codes": ("Resize", [ints(0, 255, 1, 2, 4, 5, dtype=U8), None, np.array([1, 1, 4, 2], np.float32)],
                        {**SCALES, "mode": "linear", "opset": 19}),
    "cubic of codes": ("Resize", [ints(-99, 99, 1, 2, 4, 5, dtype=I8), None, np.array([1, 1, 4, 2], np.float32)],
                       {**SCALES, "mode": "cubic", "opset": 19}),
    "ratio kept": ("Resize", by_sizes(7, 8), {**SIZES, "opset": 19, "axes": [2, 3],
                                              "keep_aspect_ratio_policy": "not_larger"}),
}  # fmt: skip
CASES = RECURRENT | QUANTISED | SELECTION | RESAMPLED


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_operator_by_the_interpreter_and_on_the_cpu(case: str) -> None:
    operator, inputs, options = CASES[case]
    model, arrays = node_model(operator, inputs, **options)
    want = reference(model, arrays)
    assert_close(run_model(model, arrays), want, rtol=2e-5)
    assert_close(compiled(model, arrays), want, rtol=2e-5)


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_backward_directions_are_forward_ones_on_the_reversed_sequence(operator: str, direction: str) -> None:
    """onnx.reference has no backward direction of some: each direction is compared with a forward node of its own."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator]
    count = 2 if direction == "bidirectional" else 1
    w, r, bias = weights(gates, count)
    model, arrays = node_model(operator, [X, w, r, bias], hidden_size=4, outputs=2, direction=direction)
    found = run_model(model, arrays)
    assert_close(compiled(model, arrays), found, rtol=2e-5)
    for d in range(count):
        backwards = direction == "reverse" or d == 1
        x = X[::-1].copy() if backwards else X
        one, given = node_model(operator, [x, w[d : d + 1], r[d : d + 1], bias[d : d + 1]], hidden_size=4, outputs=2)
        want = reference(one, given)
        whole = want["y0"][::-1] if backwards else want["y0"]
        np.testing.assert_allclose(found["y0"][:, d], whole[:, 0], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(found["y1"][d], want["y1"][0], rtol=2e-5, atol=2e-5)


def test_parameters_of_those_activations_that_take_one() -> None:
    operands, activations = [X, *weights(3)], ["Sigmoid", "LeakyRelu"]
    found, want = (
        node_model("GRU", operands, outputs=2, hidden_size=4, activations=activations, activation_alpha=alpha)
        for alpha in ([0.3], [0.0, 0.3])
    )
    engine = poly.compile(from_onnx(found[0]))
    assert not engine.fallbacks
    assert_close(engine.run(found[1]), run_model(*want), rtol=2e-5)


@pytest.mark.parametrize("direction,constant", [("forward", ()), ("reverse", (4,))])
@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_shorter_sequences_are_as_alone(operator: str, direction: str, constant: tuple[int, ...]) -> None:
    """onnx.reference takes no notice of lengths: each sequence is compared with a node for it alone, of its length."""
    gates, outputs = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator], 3 if operator == "LSTM" else 2
    x, lengths, start, operands = f32(5, 4, 3), np.array([2, 5, 1, 0], np.int32), f32(1, 4, 4), weights(gates)
    options: dict[str, Any] = {"hidden_size": 4, "outputs": outputs, "direction": direction}
    model, arrays = node_model(operator, [x, *operands, lengths, start], constant=constant, **options)
    engine = poly.compile(from_onnx(model))
    found = run_model(model, arrays)
    assert not engine.fallbacks
    assert_close(engine.run(arrays), found, rtol=2e-5)
    assert not any(found[name][:, 3].any() for name in ("y1", "y2")[: outputs - 1])  # as ONNX Runtime has it
    for row, length in enumerate(lengths[:3]):
        alone = [x[:length, row : row + 1], *operands, None, start[:, row : row + 1]]
        want = run_model(*node_model(operator, alone, **options))
        np.testing.assert_allclose(found["y0"][:length, :, row], want["y0"][:, :, 0], rtol=2e-5, atol=2e-5)
        assert not found["y0"][length:, :, row].any()
        for name in ("y1", "y2")[: outputs - 1]:
            np.testing.assert_allclose(found[name][:, row], want[name][:, 0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("constant", [(), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_qlinear_conv(group: int, constant: tuple[int, ...]) -> None:
    """The oracle is written out: the sum in integers, the padding as the zero point, a scale for each channel."""
    x, w = ints(0, 255, 1, 4, 6, 6, dtype=U8), ints(-99, 99, 4, 4 // group, 3, 3, dtype=I8)
    scale, bias = positive(4) * np.float32(0.01), ints(-500, 500, 4, dtype=np.int32)
    inputs = [x, *SHARED, w, scale, np.zeros(4, I8), scalar(0.4, np.float32), scalar(100, U8), bias]
    model, arrays = node_model("QLinearConv", inputs, constant=constant, group=group, pads=[1, 1, 1, 1])
    padded = np.pad(x.astype(np.int64) - 120, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    each = 4 // group
    total = np.stack(
        [np.einsum("nchwkl,ckl->nhw", windows[:, m // each * each :][:, :each], w[m]) + bias[m] for m in range(4)], 1
    )
    factor = (np.float32(0.05) * scale / np.float32(0.4))[:, None, None]
    want = {"y0": np.clip(np.rint(total.astype(np.float32) * factor) + 100, 0, 255).astype(U8)}
    assert_close(run_model(model, arrays), want)
    assert_close(compiled(model, arrays), want)


def test_a_loop_over_time_is_a_group_of_its_own() -> None:
    """What lies before and behind is grouped, and scheduled, as in any model."""
    w, r, bias = weights(1)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("RNN", ["a", "w", "r", "b"], ["y", "last"], hidden_size=4),
        helper.make_node("Exp", ["y"], ["z"]),
    ]
    model, arrays = chain_model(nodes, {"x": X}, ["z"], constants={"w": w, "r": r, "b": bias})
    engine = poly.compile(from_onnx(model))
    shared = [s for s in engine.steps if "statements share loops" in " ".join(s.why)]
    assert len(shared) == 1 and len(engine.steps) > 3
    assert_close(engine.run(arrays), reference(model, arrays), rtol=2e-5)


def test_a_convolution_that_reads_padding_only_along_an_axis() -> None:
    inputs = [f32(1, 1, 1, 49), f32(2, 1, 1, 1), f32(2)]
    model, arrays = node_model("Conv", inputs, pads=[1, 1, 2, 2], strides=[2, 2], constant=[1, 2])
    assert_close(compiled(model, arrays), reference(model, arrays))
