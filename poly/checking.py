"""Comparing what was compiled with references that are not ours: numpy, and onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.dtypes import Array, dtype_name, is_float, numpy_dtype
from poly.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx

_COERCED: Final = ("Softmax", "LogSoftmax", "Hardmax")  # before opset 13 they flatten their input to a matrix first
_OTHERWISE: Final = "--save OUT.npz, and compare with what the model gives elsewhere"


@dataclass(frozen=True)
class Difference:
    """`worst`: the largest absolute difference; `scale`: the largest magnitude expected; `allowed`: what may differ."""

    name: str
    worst: float
    scale: float
    allowed: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.worst <= self.allowed

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        if self.allowed == 0:
            return f"{self.name}: {'equal' if self.ok else f'differs by up to {self.worst:g}'}"
        bound = f"{'<=' if self.ok else '>'} {self.allowed:.3g}"
        return f"{self.name}: largest difference {self.worst:.3g} {bound} (values up to {self.scale:.3g})"


def tolerance_of(dtype: str, terms: float = 1) -> float:
    """What a sum of so many terms in a floating dtype may be off, of the largest magnitude: 1e-5 for one term in f32,
    as many units in the last place in f64, and two in narrower floats.
    """
    from ml_dtypes import finfo

    eps, usual = float(finfo(numpy_dtype(dtype)).eps), float(np.finfo(np.float32).eps)
    return max(terms, 1.0) ** 0.5 * (2 * eps if eps > usual else 1e-5 * eps / usual)


def compare(name: str, found: Array, expected: Array, tolerance: float) -> Difference:
    """Integers and bools must be equal, floats agree to `tolerance` of the largest magnitude; NaN only meets NaN.

    For narrow floats the tolerance is two units in the last place at least.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        problem = f"is {found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"
        return Difference(name, float("inf"), 0.0, 0.0, problem)
    if not found.size:
        return Difference(name, 0.0, 0.0, 0.0)
    if found.dtype.kind != "c" and not is_float(dtype_name(found.dtype)):
        wrong = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        return Difference(name, float(wrong.max()), float(np.abs(expected.astype(np.float64)).max()), 0.0)
    from ml_dtypes import finfo

    tolerance = max(tolerance, 2 * float(finfo(found.dtype).eps))
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        worst = np.abs(np.where(same, 0, a - b))
    finite = np.abs(b[np.isfinite(b)])
    scale = float(finite.max()) if finite.size else 0.0
    largest = float("inf") if np.isnan(worst).any() else float(worst.max())
    return Difference(name, largest, scale, max(tolerance * scale, float(np.finfo(np.float32).tiny)))


def onnx_reference(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A model's outputs by onnx's own reference evaluator.

    The evaluator runs Softmax, LogSoftmax and Hardmax of opset 12 and older by their newer meaning (along one axis);
    those three get the meaning of their opset here, as does DequantizeLinear before 19, which it lacks.
    """
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    replaced = [_flattened(OpRun, name) for name in _COERCED] if opset < 13 else []
    replaced += [_dequantised(OpRun)] if opset < 19 else []
    try:
        evaluator = ReferenceEvaluator(model, new_ops=replaced)
        with np.errstate(all="ignore"):
            found = evaluator.run(None, dict(inputs))
    except Exception as error:  # whatever operators raise; where the evaluator lacks a version of one, RuntimeError
        text, hint = f"nothing to compare with: onnx.reference cannot run the model: {error}", _OTHERWISE
        if "need at least one array" in str(error):  # numpy's words for no rows
            text = "nothing to compare with: onnx.reference has no rows to stack where a Loop makes no turn"
            hint = "a trip count of 1 or more, and a condition (it takes an absent one for False); or no check"
        raise UnsupportedError(text, hint=hint) from error
    assert isinstance(found, list)
    return {o.name: np.asarray(a) for o, a in zip(model.graph.output, found, strict=True)}


def _flattened(base: type, operator: str) -> type:
    """The operator on the matrix of the leading axes by those from `axis` (default 1), by rows."""

    def _run(self: object, x: Array, axis: int | None = None) -> tuple[Array]:
        node: onnx.NodeProto = getattr(self, "onnx_node")  # noqa: B009  # where the axis is absent we get today's default
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        matrix = x.reshape(int(np.prod(x.shape[:axis])), -1).astype(np.float64)
        if operator == "Hardmax":
            result = np.zeros_like(matrix)
            result[np.arange(len(matrix)), matrix.argmax(1)] = 1
        else:
            shifted = matrix - matrix.max(1, keepdims=True)
            sums = np.exp(shifted).sum(1, keepdims=True)
            result = shifted - np.log(sums) if operator == "LogSoftmax" else np.exp(shifted) / sums
        return (result.astype(x.dtype).reshape(x.shape),)

    return type(operator, (base,), {"op_domain": "", "_run": _run})


def _dequantised(base: type) -> type:
    """DequantizeLinear with one scale, or one for each element of an axis."""

    def _run(
        _self: object, x: Array, scale: Array, zero: Array | None = None, axis: int = 1, **_later: object
    ) -> tuple[Array]:  # `_later`: attributes of newer opsets, at their defaults
        shape = [1] * x.ndim
        if scale.size > 1:
            shape[axis] = -1
        moved = x.astype(np.float32) - (0 if zero is None else zero.astype(np.float32).reshape(shape))
        return (np.multiply(moved, scale.reshape(shape)).astype(scale.dtype),)

    return type("DequantizeLinear", (base,), {"op_domain": "", "_run": _run})
