"""ONNX operators whose plain formula loses digits or overflows: interpreter and CPU against numpy, end to end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

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
