"""Convolutions and products between DequantizeLinear and QuantizeLinear, on the codes themselves.

    q = QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), bias)) = QLinearConv(x, w, bias)

and the same of MatMul, and of Add as ONNX Runtime's QLinearAdd, also with a Relu before the last: where the zero point
is the least code, saturation is one.
The sums of codes are exact; what was f32 rounds to a neighbouring code at most, where it is half way between two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.dtypes import Array, numpy_dtype
from poly.frontend.onnx_notation import CONTRIB, Call
from poly.frontend.onnx_terms import Value

_ON_CODES: Final = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul"}
_CODES: Final = {"u8": 0, "i8": -128}  # with the least one
_MAX_BIAS: Final = 1 << 30
_OF_A_CODE: Final = 2.0**-8  # how far a bias may be from a whole number of units
_MAX_STEPS: Final = 1 << 14  # of a sum, so that 32 bits hold it
Operand = tuple[Value, Value, Value | None]  # codes, scale, zero point
Maker = Callable[[Value | None], Call | None]
Floats = npt.NDArray[np.float64]
Constant = Callable[[str, Array], Value]


def on_codes(last: Call, made_by: Maker, made_for_one: Maker, constant: Constant) -> Call | None:
    """The operator on codes that a QuantizeLinear comes down to; None where it is none.

    `made_by`: the node that makes a value, `made_for_one`: where one node reads it; `constant` registers a new array.
    """
    found = made_for_one(last.inputs[0])
    if found is not None and found.operator == "Relu" and _cuts_at_zero(last):
        found = made_for_one(found.inputs[0])
    result = last.inputs[1:3]
    if found is not None and found.operator == "Add" and not found.domain:
        return _sum(last, found, made_by, constant)
    if found is None or found.domain or found.operator not in _ON_CODES or not _whole(result):
        return None
    x, w = (_dequantised(made_by(v), 0 if found.operator == "Conv" else -1) for v in found.inputs[:2])
    if x is None or w is None or not _are_weights(w, found.operator):
        return None
    x, w = _with_zero(x, constant), _with_zero(w, constant)
    if not _whole(x[1:]):
        return None
    bias = _bias(found, (x[1], w[1], result[0]), made_by, constant)
    if len(found.inputs) > 2 and found.inputs[2] is not None and bias is None:
        return None
    operands = (*x, *w, *result, *(() if bias is None else (bias,)))
    return replace(last, operator=_ON_CODES[found.operator], attributes=found.attributes, inputs=operands)


def _sum(last: Call, found: Call, made_by: Maker, constant: Constant) -> Call | None:
    """A sum of two: factors to the result's scale, and one number for all zero points."""
    sides = [_dequantised(made_by(v), -1) for v in found.inputs]
    operands = [_with_zero(side, constant) for side in sides if side is not None]
    if len(operands) < 2 or not all(_whole(part) for part in (*(o[1:] for o in operands), last.inputs[1:3])):
        return None
    if {o[0].dtype for o in operands} != {last.inputs[2].dtype if last.inputs[2] is not None else ""}:
        return None
    return replace(
        last, operator="QLinearAdd", domain=CONTRIB, attributes={},
        inputs=(*operands[0], *operands[1], *last.inputs[1:3]),
    )  # fmt: skip


def _whole(scale_and_zero: tuple[Value | None, ...]) -> bool:
    """One known f32 scale, above 0, and one known zero point of 8 bits, for all of a tensor."""
    scale, zero = (*scale_and_zero, None, None)[:2]
    if scale is None or zero is None or scale.array is None or zero.array is None:
        return False
    known = scale.dtype == "f32" and scale.size == zero.size == 1 and zero.dtype in _CODES
    return known and bool((0 < _flat(scale.array)).all() and np.isfinite(_flat(scale.array)).all())


def _with_zero(operand: Operand, constant: Constant) -> Operand:
    """The operand, its zero point 0 where it has none."""
    codes, scale, zero = operand
    return codes, scale, zero or constant(f"{codes.name}_zero", np.zeros((), numpy_dtype(codes.dtype)))


def _cuts_at_zero(last: Call) -> bool:
    zero = last.inputs[2] if len(last.inputs) > 2 else None
    return zero is not None and zero.array is not None and bool((zero.array == _CODES.get(zero.dtype)).all())


def _dequantised(call: Call | None, channel: int) -> Operand | None:
    """The operands of a DequantizeLinear of codes of 8 bits, with one scale or one for each place along an axis."""
    if call is None or call.domain or call.operator != "DequantizeLinear" or call.attributes.get("block_size"):
        return None
    codes, scale, zero = (*call.inputs, None)[:3]
    if codes is None or scale is None or codes.dtype not in _CODES or scale.array is None or scale.dtype != "f32":
        return None
    channel %= max(codes.rank, 1)
    by_channel = call.attributes.get("axis", 1) in (channel, channel - codes.rank)
    fits = scale.size == 1 or by_channel and scale.shape == codes.shape[channel : channel + 1]
    return (codes, scale, zero) if fits and (zero is None or zero.array is not None) else None


def _are_weights(w: Operand, operator: str) -> bool:
    """Known codes whose sums 32 bits hold; columns of a product have no zero points of their own."""
    codes, _, zero = w
    if codes.array is None or codes.rank < 2:
        return False
    if operator == "Conv":
        return prod(codes.shape[1:]) <= _MAX_STEPS
    shifted = zero is not None and zero.size > 1 and zero.array is not None and bool(zero.array.any())
    return codes.shape[-2] <= _MAX_STEPS and not shifted


def _bias(found: Call, scales: tuple[Value, Value, Value | None], made_by: Maker, constant: Constant) -> Value | None:
    """The bias in the unit of the sums, as i32; None where it is not known, too large, or between two units that a
    code of the result tells apart.
    """
    given = found.inputs[2] if len(found.inputs) > 2 else None
    x_scale, w_scale, y_scale = (None if s is None or s.array is None else _flat(s.array) for s in scales)
    values = None if given is None else _known(given, made_by(given))
    if given is None or x_scale is None or w_scale is None or y_scale is None or values is None:
        return None
    with np.errstate(all="ignore"):  # a unit of 0 fits nothing
        unit = x_scale * w_scale
        steps = np.rint(values / unit)
        fits = (np.abs(steps) < _MAX_BIAS) & (np.abs(steps * unit - values) <= y_scale * _OF_A_CODE)
    return constant(f"{given.name}_codes", steps.astype(np.int32)) if fits.all() else None


def _flat(array: Array) -> Floats:
    return array.reshape(-1).astype(np.float64)


def _known(value: Value, made: Call | None) -> Floats | None:
    """What is known of a value, a constant or the DequantizeLinear of one, one-dimensional."""
    if made is None or made.operator != "DequantizeLinear" or made.domain:
        return None if value.array is None else value.array.astype(np.float64)
    codes, scale, zero = (None if v is None else v.array for v in (*made.inputs, None)[:3])
    if codes is None or scale is None or zero is None and len(made.inputs) > 2 or made.attributes.get("block_size"):
        return None
    shifted = codes.astype(np.float64) - (0.0 if zero is None else zero.astype(np.float64))
    return shifted * scale.astype(np.float64)
