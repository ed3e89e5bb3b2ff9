"""Rows of the operator table on quantised tensors: exact sums in i32, then one rounding to 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from poly.affine import var
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_products import product
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value, fn, python_scalar
from poly.frontend.onnx_windows import ConvNest, conv_nest


def conv_integer(b: Notation) -> None:
    """A convolution of shifted 8-bit values, summed in i32."""
    x, w = b.input(0), b.input(1)
    nest = conv_nest(b, x, w, None)
    y = b.output(nest.shape, "i32")
    _sum(b, y, nest, x, w, (b.optional(2), b.optional(3)), None)


def qlinear_conv(b: Notation) -> None:
    """saturate(round(sum * (x_scale * w_scale / y_scale)) + y_zero_point), the sum in i32 and begun from the bias."""
    x, w, bias = b.input(0), b.input(3), b.optional(8)
    nest = conv_nest(b, x, w, bias)
    y = b.output(nest.shape, b.input(7).dtype)
    total = b.temporary("sum", nest.shape, "i32")
    _sum(b, total, nest, x, w, (b.optional(2), b.optional(5)), bias)
    _requantise(b, y, total, nest.place, nest.ranges, (b.input(1), b.input(4), b.input(6)), nest.channel)


def _sum(
    b: Notation,
    total: Value,
    nest: ConvNest,
    x: Value,
    w: Value,
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> None:
    """sum (x - x_zero) * (w - w_zero) + bias; outside of x the difference is 0."""
    x_zero, w_zero = zeros
    b.supported(x_zero is None or x_zero.size == 1, "a zero point for each position has no compiled form")
    b.require(w_zero is None or w_zero.size in (1, w.shape[0]), f"zero points of weights are not [{w.shape[0]}]")
    ranges = {**nest.ranges, **nest.over}
    start = None if bias is None else bias[nest.channel]
    weight = _less(w[nest.taps].cast("i32"), w_zero, nest.channel)
    if x_zero is None or x_zero.array is not None:
        zero = 0 if x_zero is None or x_zero.array is None else int(python_scalar(x_zero.array))
        data = b.padded(x, nest.source, zero, ranges).cast("i32")
        known = w.array is not None and (w_zero is None or w_zero.array is not None)
        if zero and known and (bias is None or bias.array is not None):
            # x_zero * sum(w - w_zero) comes off the start, so that the body is a plain product
            start = _corrected(b, w, w_zero, bias, zero)[nest.channel]
        elif zero:
            data = data - zero
    else:
        shifted = b.temporary("shifted", x.shape, "i32")
        own = {f"i{k}": e for k, e in enumerate(x.shape)}
        point = tuple(map(var, own))
        b.assign(shifted, own, _less(x[point].cast("i32"), x_zero, 0), point, suffix="_shifted")
        data = b.padded(shifted, nest.source, 0, ranges)
    b.reduce(total, nest.ranges, nest.over, data * weight, index=nest.place, start=start, suffix="_sum")


def _less(value: Term, zero: Value | None, channel: Index) -> Term:
    """value - zero point, of the tensor or of each channel."""
    if zero is None or (zero.array is not None and not zero.array.any()):
        return value
    return value - zero[_one(zero, channel)].cast("i32")


def _one(value: Value, channel: Index) -> tuple[Index, ...]:
    return (0,) * value.rank if value.size == 1 else (channel,)


def _corrected(b: Notation, w: Value, w_zero: Value | None, bias: Value | None, zero: int) -> Value:
    assert w.array is not None
    weights = w.array.astype(np.int64)
    if w_zero is not None and w_zero.array is not None:
        weights = weights - w_zero.array.astype(np.int64).reshape(-1, *(1,) * (w.rank - 1))
    start = -zero * weights.reshape(weights.shape[0], -1).sum(1)
    if bias is not None and bias.array is not None:
        start = start + bias.array.astype(np.int64)
    return b.new_constant("start", start.astype(np.int32))


def _requantise(
    b: Notation,
    y: Value,
    total: Value,
    place: tuple[Index, ...],
    ranges: Mapping[str, int],
    scales: tuple[Value, Value, Value],
    channel: Index,
) -> None:
    """y = saturate(round(total * (left * right / result)) + zero point), half to even."""
    b.supported(all(s.dtype in ("f32", "f16") for s in scales), "scales that are not f32 or f16 have no compiled form")
    left, right, result = (s.array for s in scales)
    b.supported(scales[0].size == 1 and scales[2].size == 1, "scales per row have no compiled form")
    if left is not None and right is not None and result is not None:
        lhs, rhs, out = (a.reshape(-1).astype(np.float32) for a in (left, right, result))
        factors = lhs * rhs / out
        factor = b.new_constant("factor", factors)[channel if factors.size > 1 else 0]
    else:
        terms = [s[_one(s, channel)].cast("f32") for s in scales]
        factor = terms[0] * terms[1] / terms[2]
    zero = b.input(7)
    limits = np.iinfo("int8" if zero.dtype == "i8" else "uint8")
    b.require(zero.dtype in ("i8", "u8") and zero.size == 1, "the output's zero point must be one 8-bit value")
    rounded = fn("round", total[place].cast("f32") * factor) + zero[_one(zero, 0)].cast("f32")
    value = fn("max", fn("min", rounded, float(limits.max)), float(limits.min)).cast(zero.dtype)
    b.assign(y, ranges, value, place)


def qlinear_matmul(b: Notation) -> None:
    """The integer product, its sum in i32, then one rounding; scales of tensors, or of columns of the second."""
    x, w = b.input(0), b.input(3)
    x_zero, w_zero = b.input(2), b.input(5)
    scales = (b.input(1), b.input(4), b.input(6))
    whole = all(v.size == 1 for v in (x_zero, scales[0], scales[2]))
    by_columns = scales[1].shape == w.shape[-1:] and w_zero.array is not None and not w_zero.array.any()
    fits = whole and (by_columns or scales[1].size == w_zero.size == 1)
    b.supported(fits, "scales per row, or zero points per column, have no compiled form")
    total = product(
        b, x, w, "i32",
        lambda p, q: _less(p.cast("i32"), x_zero, 0) * _less(q.cast("i32"), w_zero, 0),
        target=lambda shape: b.temporary("sum", shape, "i32"),
    )  # fmt: skip
    y = b.output(total.shape, b.input(7).dtype)
    ranges, point = positions(y.shape)
    _requantise(b, y, total, tuple(point), ranges, scales, point[-1] if point else 0)


def qlinear_add(b: Notation) -> None:
    """saturate(round(x * (x_scale / scale) + y * (y_scale / scale) - zero points) + zero point), by known numbers."""
    x, y, zero = b.input(0), b.input(3), b.optional(7)
    given = [v.array for v in (*b.inputs[1:3], *b.inputs[4:7])]
    whole = [None if a is None or a.size != 1 else float(a.reshape(-1)[0]) for a in given]
    known = [v for v in whole if v is not None]
    b.supported(len(known) == 5 and (zero is None or zero.array is not None), "scales are only known at run time")
    floats = all(v.dtype == "f32" for v in (b.input(1), b.input(4), b.input(6)))
    alike = x.dtype == y.dtype == (x.dtype if zero is None else zero.dtype)
    b.supported(floats and alike and x.dtype in ("i8", "u8"), "no codes of 8 bits")
    x_scale, x_zero, y_scale, y_zero, scale = known
    b.require(scale > 0, f"the scale {scale:g} is not above 0")
    left, right = (float(np.float32(s / scale)) for s in (x_scale, y_scale))
    shape = b.broadcast(x.shape, y.shape)
    result = b.output(shape, x.dtype)
    ranges, point = positions(shape)
    p, q = (v.aligned(point, shape).cast("f32") for v in (x, y))
    total = p * left + (q * right - float(np.float32(left * x_zero + right * y_zero)))
    shift = 0.0 if zero is None or zero.array is None else float(zero.array.reshape(-1)[0])
    limits = np.iinfo("int8" if x.dtype == "i8" else "uint8")
    held = fn("max", fn("min", fn("round", total) + shift, float(limits.max)), float(limits.min))
    b.assign(result, ranges, held.cast(x.dtype))


ROWS: Final[dict[str, Row]] = {
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
}
CONTRIB_ROWS: Final[Mapping[str, Row]] = {"QLinearAdd": qlinear_add}
