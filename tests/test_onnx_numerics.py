"""ONNX operators at the ends of their ranges (digits, overflow, no elements): interpreter and CPU against numpy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import poly
from poly.errors import OnnxError
from poly.frontend.onnx_import import from_onnx
from tests.onnx_helpers import Operand, node_model, run_model
from tests.test_onnx import i64
from tests.test_onnx_compiled import compiled

Function = Callable[[np.ndarray], np.ndarray]
Axes = Operand


def results(operator: str, inputs: list[Operand], **options: object) -> list[np.ndarray]:
    """By the interpreter and on the CPU."""
    model, arrays = node_model(operator, inputs, **options)  # type: ignore[arg-type]
    return [run_model(model, arrays)["y0"], compiled(model, arrays)["y0"]]


# -- reductions over no axes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [None, i64()], ids=["absent", "empty"])
@pytest.mark.parametrize(
    ("operator", "values", "want"),
    [
        ("ReduceSumSquare", [2, -3], [4, 9]),
        ("ReduceLogSum", [2, 3], np.log([2, 3])),
        ("ReduceL1", [-2, 3], [2, 3]),
        ("ReduceL2", [-2, 3], [2, 3]),
        ("ReduceLogSumExp", [-2, 3], [-2, 3]),
        ("ReduceSum", [-2, 3], [-2, 3]),
        ("ReduceMean", [-2, 3], [-2, 3]),
        ("ReduceProd", [-2, 3], [-2, 3]),
        ("ReduceMax", [-2, 3], [-2, 3]),
        ("ReduceMin", [-2, 3], [-2, 3]),
    ],
)
def test_a_reduction_over_no_axes_is_the_rest_of_its_operator(
    operator: str, values: list[int], want: list[float], axes: Axes
) -> None:
    inputs: list[Operand] = [np.array(values, np.float32), *([] if axes is None else [axes])]
    for found in results(operator, inputs, opset=18, constant=[1], noop_with_empty_axes=1):
        np.testing.assert_allclose(found, np.array(want, np.float32), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "near"), [("f2", 2e-3), ("f4", 1e-5), ("f8", 1e-12)])
def test_normalisation_by_mean_and_variance_whose_function_is_in_f32(dtype: str, near: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(dtype)
    x[:, 1] = 2  # no variance, and 1e-9 for it, which f16 has not
    wide = x.astype("f8")
    want = (wide - wide.mean((0, 2, 3), keepdims=True)) / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    for found in results("MeanVarianceNormalization", [x], opset=13, axes=[0, 2, 3]):
        assert found.dtype == x.dtype
        np.testing.assert_allclose(found, want, rtol=near, atol=near)


_ROWS: dict[str, tuple[Function, dict[str, object]]] = {
    "ReduceSum": (lambda v: v.sum(0, keepdims=True), {}),
    "ReduceMean": (lambda v: v.mean(0, keepdims=True), {}),
    "ReduceL1": (lambda v: v.sum(0, keepdims=True), {}),
    "ReduceL2": (lambda v: np.sqrt((v * v).sum(0, keepdims=True)), {}),
    "Softmax": (lambda v: np.exp(v - v.max(0)) / np.exp(v - v.max(0)).sum(0), {"axis": 0}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operator", _ROWS)
def test_sums_of_16_bit_floats_are_rounded_once(operator: str, dtype: str) -> None:
    """Of 3000 equal elements, whose running sum soon is too large to feel the next one."""
    wanted, options = _ROWS[operator]
    x = np.full((3000, 3), 1.5).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    axes: list[Operand] = [] if operator == "Softmax" else [i64(0)]
    near = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    for found in results(operator, [x, *axes], opset=18, constant=[1] if axes else [], **options):
        np.testing.assert_allclose(found.astype(np.float64), wanted(x.astype(np.float64)), rtol=near)


@pytest.mark.parametrize(
    ("operator", "options"), [("AveragePool", {"kernel_shape": [9, 50]}), ("GlobalAveragePool", {})]
)
def test_means_of_f16_whose_sum_overflows(operator: str, options: dict[str, object]) -> None:
    x = np.full((1, 2, 9, 50), 300).astype(np.float16)
    for found in results(operator, [x], opset=18, **options):
        np.testing.assert_array_equal(found, np.full((1, 2, 1, 1), 300, np.float16))


# -- log softmax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 13])
def test_log_softmax_of_large_and_of_distant_values(opset: int) -> None:
    x = np.array([[1e6, 1e6 + 1, 1e6 + 2], [-1e6, -1e6 + 1, -1e6 + 2], [0, 1000, -1e6], [3e38, 0, -3e38]], np.float32)
    wide = x.astype(np.float64) - x.max(1, keepdims=True)
    with np.errstate(over="ignore"):  # -6e38 is beyond f32
        want = (wide - np.log(np.exp(wide).sum(1, keepdims=True))).astype(np.float32)
    np.testing.assert_allclose(want[0], [-2.407606, -1.407606, -0.407606], rtol=1e-6)
    for found in results("LogSoftmax", [x], opset=opset, axis=1):
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_log_sum_exp_of_infinities(dtype: type) -> None:
    inf, nan = np.inf, np.nan
    x = [[1, 2, 3], [1, inf, 2], [-inf, -inf, -inf], [inf, -inf, inf], [inf, nan, 1], [-inf, -inf, 1]]
    want = np.array([3.407606, inf, -inf, inf, nan, 1], dtype)
    for found in results("ReduceLogSumExp", [np.array(x, dtype), i64(1)], constant=[1], opset=18, keepdims=0):
        np.testing.assert_allclose(found, want, rtol=2e-3 if dtype is np.float16 else 1e-6)


# -- logarithms and exponentials -----------------------------------------------------------------------------------


def softplus(v: np.ndarray) -> np.ndarray:
    return np.logaddexp(v, 0)


def mish(v: np.ndarray) -> np.ndarray:
    return v * np.tanh(softplus(v))


_MAGNITUDES = np.concatenate([10.0 ** np.arange(-37, 38), np.linspace(0, 20, 101), [0.999, 1.001, 12, 20, 88, 88.8,
                                                                                    89, 89.4, 90, 104, 3.4e38]])
_SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, -1e10, -1e20, -3.4e38])
_WIDER = np.array([709.5, 710, 710.4, 711, 745, 1e150, 1e160, 1e300, 1.7e308, 1e-300])
_FUNCTIONS: dict[str, Function] = {
    "Acosh": np.arccosh, "Asinh": np.arcsinh, "Atanh": np.arctanh, "Cosh": np.cosh, "Mish": mish, "Sinh": np.sinh,
    "Softplus": softplus,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", _FUNCTIONS)
def test_digits_are_kept_over_the_whole_range(operator: str, dtype: type) -> None:
    sizes = _MAGNITUDES if dtype is np.float32 else np.concatenate([_MAGNITUDES, _WIDER])
    x = np.concatenate([sizes, -sizes, _SPECIAL]).astype(dtype)
    with np.errstate(all="ignore"):
        want = _FUNCTIONS[operator](x.astype(np.float64)).astype(dtype)
    ulp, least = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    for found in results(operator, [x], opset=22):
        assert found.dtype == dtype
        # exp(v) that is denormal has few digits, and Mish multiplies them by v
        np.testing.assert_allclose(found, want, rtol=20 * ulp, atol=128 * least * ulp, err_msg=operator)
        kept = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(found[kept]), np.signbit(want[kept]))


@pytest.mark.parametrize("operator", _FUNCTIONS)
def test_half_floats_keep_what_they_can(operator: str) -> None:
    x = np.linspace(-12, 12, 97).astype(np.float16)
    with np.errstate(all="ignore"):
        want = _FUNCTIONS[operator](x.astype(np.float64)).astype(np.float16)
    for found in results(operator, [x], opset=22):
        np.testing.assert_allclose(found, want, rtol=8e-3, atol=1e-6, err_msg=operator)


# -- activations -----------------------------------------------------------------------------------------------------


def sigmoid(v: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(-v, 0))


def elu(v: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(v < 0, alpha * np.expm1(np.minimum(v, 0)), v)


_ACTIVATIONS: dict[str, tuple[str, dict[str, object], Function]] = {
    "elu": ("Elu", {}, elu),
    "elu of another slope": ("Elu", {"alpha": -0.5}, lambda v: elu(v, -0.5)),
    "selu": ("Selu", {}, lambda v: float(np.float32(1.050701)) * elu(v, float(np.float32(1.6732632)))),
    "celu": ("Celu", {"alpha": 2.0}, lambda v: np.where(v < 0, 2 * np.expm1(np.minimum(v, 0) / 2), v)),
    "celu of a negative slope": (
        "Celu", {"alpha": -2.0}, lambda v: np.maximum(v, 0) + np.minimum(-2 * np.expm1(v / -2), 0)
    ),
    "sigmoid": ("Sigmoid", {}, sigmoid),
    "swish": ("Swish", {}, lambda v: v * sigmoid(v)),
    "softsign": ("Softsign", {}, lambda v: v / (1 + np.abs(v))),
    "tanh": ("Tanh", {}, np.tanh),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_activations_keep_their_digits(name: str, dtype: type) -> None:
    """Tiny negative values above all: exp(v) - 1 has none of their digits."""
    operator, options, function = _ACTIVATIONS[name]
    x = np.concatenate([_MAGNITUDES, -_MAGNITUDES, _SPECIAL[:2]]).astype(dtype)
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64)).astype(dtype)
    ulp, least = float(np.finfo(dtype).eps), float(np.finfo(dtype).tiny)
    for found in results(operator, [x], opset=24, **options):
        np.testing.assert_allclose(found, want, rtol=12 * ulp, atol=128 * least * ulp, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_over_the_whole_range(dtype: type) -> None:
    """By erf to the digits of |v|, as 1 + erf(v / sqrt 2) has no others; by tanh to its own, as far as f32 has u."""
    from math import erfc

    x = np.concatenate([_MAGNITUDES, -_MAGNITUDES, _SPECIAL[:2]]).astype(dtype)
    v, ulp = x.astype(np.float64), float(np.finfo(dtype).eps)
    want = 0.5 * v * np.vectorize(erfc)(-v / np.sqrt(2))
    for found in results("Gelu", [x], opset=20):
        assert np.all(np.abs(found - want) <= 4 * ulp * np.abs(v) + 1e-44)
    with np.errstate(all="ignore"):
        u = 2 * np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)
        want = np.where(np.isinf(u), np.maximum(v, 0), v * sigmoid(u))
    for found in results("Gelu", [x], opset=20, approximate="tanh"):
        bound = 4 * ulp * (2 + np.minimum(np.abs(u), 1000)) * np.abs(want) + 128 * float(np.finfo(dtype).tiny) * ulp
        assert np.all(np.abs(found - want) <= bound)


# -- parts by a constant -------------------------------------------------------------------------------------------

_BLOCK = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("x", "condition", "axis"),
    [
        (_BLOCK, [1, 0, 1], 1),
        (_BLOCK, [1, 1, 0, 1], -1),
        (_BLOCK, [0, 1], 2),
        (_BLOCK, [0, 0, 0], 1),
        (_BLOCK, [1, 1, 1], 1),
        (_BLOCK, [0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1], None),
        (_BLOCK, [0, 0], None),
        (_BLOCK[0, 0], [1, 0, 0, 1], None),
        (_BLOCK[0, 0].astype(np.int64), [0, 0, 0, 1, 0], 0),
        (np.float32(3), [1], None),
    ],
)
def test_compress_by_a_constant_is_a_gather(x: np.ndarray, condition: list[int], axis: int | None) -> None:
    given = np.array(condition, bool)
    options = {} if axis is None else {"axis": axis}
    want = np.compress(given, x, axis)
    for found in results("Compress", [x, given], opset=11, constant=[1], **options):
        assert (found.shape, found.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    ("operator", "inputs", "options", "words"),
    [
        ("Compress", [_BLOCK, np.array([0, 0, 1], bool)], {"axis": 0, "constant": [1]}, "beyond the 2 places"),
        ("Compress", [_BLOCK, np.ones((1, 2), bool)], {"axis": 0, "constant": [1]}, "not a vector"),
        ("Resize", [_BLOCK, None, np.array([1, 0.3, 1], np.float32)], {"constant": [2]},
         "scale 0.3 leaves no elements of 3 along axis 1"),
        ("Resize", [_BLOCK, None, np.array([1, 1, 0.1], np.float32)],
         {"constant": [2], "mode": "linear"}, "no elements of 4 along axis 2"),
        ("Resize", [_BLOCK, None, None, i64(2, 0, 4)], {"constant": [3]}, "not positive"),
    ],
    ids=["beyond", "matrix", "nearest", "linear", "sizes"],
)  # fmt: skip
def test_what_leaves_nothing_or_lies_outside_is_refused(
    operator: str, inputs: list[Operand], options: dict[str, object], words: str
) -> None:
    with pytest.raises(OnnxError, match=words):
        from_onnx(node_model(operator, inputs, opset=13, **options)[0])  # type: ignore[arg-type]


def test_compress_by_a_run_time_condition_still_runs() -> None:
    model, arrays = node_model("Compress", [_BLOCK, np.array([1, 0, 1], bool)], opset=11, axis=1)
    compiled_once = poly.compile(model)
    for given in (np.array([True, False, True]), np.array([False, True, False])):
        found = compiled_once.run({**arrays, "x1": given})["y0"]
        np.testing.assert_array_equal(found, np.compress(given, _BLOCK, 1))


@pytest.mark.parametrize("constant", [[], [1, 2, 3, 4]], ids=["inputs", "constants"])
def test_batch_normalisation_without_variance_or_epsilon_is_as_in_the_reference(constant: list[int]) -> None:
    """(x - mean) / 0: infinite but at the mean itself, where a factor and an offset would give NaN everywhere."""
    x = np.array([[[1, 2, -3], [0, 1, -0.0]]], np.float32)
    statistics = [np.array(a, np.float32) for a in ([1, 2], [3, 4], [1, 0], [0, 0])]
    options = {"constant": constant, "opset": 15, "epsilon": 0.0}
    want = [[[np.nan, np.inf, -np.inf], [np.nan, np.inf, np.nan]]]
    for found in results("BatchNormalization", [x, *statistics], **options):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("options", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}], ids=str)
def test_running_sums_of_16_bit_floats_are_kept_in_f32(options: dict[str, int], dtype: type) -> None:
    x = np.full((3000, 3), 1.5).astype(dtype)
    sums = 1.5 * (np.arange(3000) + (0 if "exclusive" in options else 1))
    want = (sums[::-1] if "reverse" in options else sums)[:, None] * np.ones(3)
    for found in results("CumSum", [x, i64(0)], opset=14, constant=[1], **options):
        np.testing.assert_array_equal(found, want.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_products_of_16_bit_floats_are_kept_in_f32(axis: int, dtype: type) -> None:
    """Rounded each time, 0.998 would stay what it is after few; and what is too large or small between comes back."""
    x = np.full((300, 300), 0.998).astype(dtype)
    x[:, 7], x[:, 8], x[:, 20] = 60000, 60000, 2**-24
    x = x if axis == 1 else np.ascontiguousarray(x.T)
    want = np.prod(x.astype(np.float32), axis=axis)
    for found in results("ReduceProd", [x, i64(axis)], opset=18, constant=[1], keepdims=0):
        np.testing.assert_allclose(found.astype(np.float32), want, rtol=1e-3 if dtype is np.float16 else 8e-3)


# -- no elements ---------------------------------------------------------------------------------------------------

NOTHING = np.zeros((0, 3), np.float32)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("options", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}], ids=str)
def test_running_sums_of_nothing(axis: int, options: dict[str, int]) -> None:
    for found in results("CumSum", [NOTHING, i64(axis)], opset=14, constant=[1], **options):
        assert (found.shape, found.dtype) == ((0, 3), np.float32)


@pytest.mark.parametrize("axis", [0, 1])
def test_maxima_of_nothing(axis: int) -> None:
    for found in results("Hardmax", [NOTHING], opset=13, axis=axis):
        assert found.shape == (0, 3)
    for found in results("ArgMax", [np.zeros((0, 0), np.float32)], opset=13, axis=axis):
        assert (found.shape, found.dtype) == ((1, 0) if axis == 0 else (0, 1), np.int64)
    with pytest.raises(OnnxError, match="no elements along axis 0"):
        results("ArgMax", [NOTHING], opset=13, axis=0)


def test_means_of_nothing() -> None:
    for found in results("ReduceMean", [NOTHING, i64(0)], opset=18, constant=[1]):
        np.testing.assert_array_equal(found, np.full((1, 3), np.nan, np.float32))
    for found in results("ReduceMean", [NOTHING.astype(np.int32), i64(1)], opset=18, constant=[1]):
        assert found.shape == (0, 1)
    with pytest.raises(OnnxError, match="no integers"):
        results("ReduceMean", [NOTHING.astype(np.int32), i64(0)], opset=18, constant=[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_normalised_half_floats_are_rounded_where_the_standard_says(dtype: str) -> None:
    """Sums of squares here are beyond f16; the mean in 16 bits would err by more than a thousandth of the result."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    eps = float(ml_dtypes.finfo(kind).eps)
    rng = np.random.default_rng(1)
    given = (rng.standard_normal((3, 2500)) * 9 + 90, *rng.standard_normal((2, 2500)))
    x, scale, bias = (a.astype(kind) for a in given)
    wide = x.astype("f8")
    inverse = 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    normal = ((wide - wide.mean(1, keepdims=True)) * inverse).astype(kind)
    want = (normal * scale + bias).astype("f8")
    model, arrays = node_model("LayerNormalization", [x, scale, bias], outputs=3, opset=17)
    for found in (run_model(model, arrays), compiled(model, arrays)):
        assert found["y0"].dtype == kind and found["y1"].dtype == found["y2"].dtype == np.float32
        # a normalised value that lies between two of 16 bits may be either
        np.testing.assert_allclose(found["y0"].astype("f8"), want, rtol=eps, atol=eps * 12)
        np.testing.assert_allclose(found["y1"], wide.mean(1, keepdims=True), rtol=1e-6)
        np.testing.assert_allclose(found["y2"], inverse, rtol=1e-5)
    model, arrays = node_model("InstanceNormalization", [x[None], scale[0, None].repeat(3), bias[:3]], opset=17)
    exact = (wide - wide.mean(1, keepdims=True)) * inverse * float(scale[0]) + bias[:3, None].astype("f8")
    for found in (run_model(model, arrays), compiled(model, arrays)):
        np.testing.assert_allclose(found["y0"][0].astype("f8"), exact, rtol=eps, atol=1e-4)


@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_half_floats_normalised_by_batches(kind: type, training: int) -> None:
    """Statistics of f16 or f32; the batch's own have sums that f16 does not hold."""
    x = (np.random.default_rng(0).standard_normal((4, 3, 50, 50)) * 5 + 20).astype(np.float16)
    rows = ([1, 2, 0.5], [0, 1, 2], [18, 19, 20], [20, 25, 30])
    scale, shift, mean, variance = (np.array(row, kind) for row in rows)
    wide = x.astype("f8")
    own = (wide.mean((0, 2, 3)), wide.var((0, 2, 3))) if training else (mean.astype("f8"), variance.astype("f8"))
    about, spread = (v[:, None, None] for v in own)
    want = (wide - about) / np.sqrt(spread + 1e-5) * scale[:, None, None] + shift[:, None, None]
    model, arrays = node_model(
        "BatchNormalization", [x, scale, shift, mean, variance], opset=17, outputs=1 + 2 * training,
        training_mode=training,
    )  # fmt: skip
    for found in (run_model(model, arrays), compiled(model, arrays)):
        np.testing.assert_allclose(found["y0"].astype("f8"), want, rtol=1e-3, atol=1e-4)
        if training:
            assert found["y1"].dtype == found["y2"].dtype == kind
            np.testing.assert_allclose(found["y1"], mean * 0.9 + own[0] * 0.1, rtol=1e-3)
            np.testing.assert_allclose(found["y2"], variance * 0.9 + own[1] * 0.1, rtol=1e-3)
