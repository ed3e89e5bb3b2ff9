"""Rows that convert: Cast, QuantizeLinear, DequantizeLinear; and the formats below 8 bits and of 8-bit floats.

A tensor of such a format (`float8_e4m3fn`, `int4`, ... as ml_dtypes calls them) is a tensor of its codes, u8, one an
element. Reading it is a look-up in a table of 256 values; writing it counts the thresholds that a value reaches,

    code[i] = sum over k of (|x[i]| >= T[k]),

with thresholds between neighbouring values, on the side that rounding to even asks for. Both are exact, and are the
same in every form of a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, var
from poly.dtypes import is_float, is_integer, size_bytes
from poly.expr import BITS
from poly.frontend.onnx_elementwise import onnx_dtype
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import INTEGER_BITS, Index, Term, Value, fn, format_dtype, is_format, literal

Floats = npt.NDArray[np.float64]
_LEGACY_TYPES: Final = {
    "FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "INT64": "i64", "INT32": "i32", "INT16": "i16", "INT8": "i8",
    "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64", "BOOL": "bool",
}  # fmt: skip
_LIMITS: Final = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767),
                  "uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1)}  # fmt: skip


# -- codes ---------------------------------------------------------------------------------------------------------


def _values(name: str) -> Floats:
    """The value of each of the 256 codes."""
    return np.arange(256, dtype=np.uint8).view(format_dtype(name)).astype(np.float64)


def _nan_code(name: str) -> int | None:
    """The code of NaN, without a sign; None where there is none."""
    if "fnuz" in name:
        return 0x80
    return {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E, "float8_e8m0fnu": 0xFF}.get(name)


def _positive(name: str) -> Floats:
    """The finite values of the codes 0, 1, ..., which ascend."""
    values = _values(name)[: 8 if name == "float4_e2m1fn" else 255 if name == "float8_e8m0fnu" else 128]
    return values[np.isfinite(values)]


def _thresholds(name: str, saturate: bool, mode: str) -> Floats:
    """T[k]: the least number that becomes code k + 1 or a greater one, in f64."""
    values = _positive(name)
    low, high = values[:-1], values[1:]
    if name == "float8_e8m0fnu":
        beyond = {"up": np.nextafter(low, np.inf), "down": high}.get(mode, (low + high) / 2)
        after = {"up": np.nextafter(values[-1], np.inf), "down": 2 * values[-1]}.get(mode, 1.5 * values[-1])
        return beyond if saturate else np.append(beyond, after)
    high = np.append(high, 2 * values[-1] - values[-2])  # the value that would come next
    middle = (values + high) / 2
    odd = np.arange(len(middle)) % 2 == 1  # a tie goes to the even code
    exact = np.where(odd, middle, np.nextafter(middle, np.inf))
    return exact[:-1] if saturate or name == "float4_e2m1fn" else exact


def decoded(b: Notation, x: Value, point: Sequence[Index], suffix: str = "table") -> Term:
    """The value of an element: f32, or i32 of an integer format."""
    if not is_format(x.dtype):
        return x[tuple(point)]
    integer = x.dtype in INTEGER_BITS
    if x.array is not None and x.size == 1:
        value = float(np.asarray(x.array).reshape(-1)[0])
        return literal(int(value)).cast("i32") if integer else literal(value).cast("f32")
    table = b.new_constant(suffix, _values(x.dtype).astype(np.int32 if integer else np.float32))
    return table.take(x[tuple(point)])


def encode(b: Notation, value: Term, dtype: str, y: Value, target: str, saturate: bool, mode: str = "up") -> None:
    """y = the codes in format `target` of a body of a dtype, over y's own iterators."""
    ranges, point = positions(y.shape)
    if target in INTEGER_BITS:
        whole = value if is_integer(dtype) else value.cast("i32")
        mask = (1 << INTEGER_BITS[target]) - 1
        b.assign(y, ranges, fn("bit_and", whole.cast("i32") if dtype != "i32" else whole, mask).cast("u8"))
        return
    held = b.temporary("held", y.shape, "f64")
    b.assign(held, ranges, value if dtype == "f64" else value.cast("f64"), suffix="_held")
    v = held[tuple(point)]
    limits = b.new_constant("threshold", _thresholds(target, saturate, mode))
    count, k = b.temporary("code", y.shape, "i32"), var("k")
    reached = fn("ge", fn("abs", v), limits[k]).cast("i32")
    b.reduce(count, ranges, {"k": limits.size}, reached, suffix="_code")
    b.assign(y, ranges, _signed(count[tuple(point)], v, target, saturate).cast("u8"))


def _signed(code: Term, v: Term, target: str, saturate: bool) -> Term:
    """The sign into the highest bit, and the code of NaN."""
    nan = _nan_code(target)
    if target == "float8_e8m0fnu":
        out = fn("ne", v, v) if saturate else fn("or", fn("ne", v, v), fn("lt", fn("abs", v), 2.0**-127))
        return fn("select", out, 255, code)
    negative = fn("or", fn("lt", v, 0.0), fn("lt", 1.0 / v, 0.0))
    sign = 8 if target == "float4_e2m1fn" else 128
    if "fnuz" in target:  # one zero, and one NaN where the other would be
        negative = fn("and", negative, fn("and", fn("ne", code, 0), fn("ne", code, 128)))
    code = fn("select", negative, code + sign, code)
    if nan is None:
        return fn("select", fn("ne", v, v), sign, code)
    return fn("select", fn("ne", v, v), nan, code)


# -- casts ---------------------------------------------------------------------------------------------------------


def cast(b: Notation) -> None:
    to = b.call.attributes.get("to")
    cast_to(b, b.input(0), _LEGACY_TYPES.get(to, "") if isinstance(to, str) else onnx_dtype(b.int_attribute("to")))


def cast_like(b: Notation) -> None:
    cast_to(b, b.input(0), b.input(1).dtype)


def cast_to(b: Notation, x: Value, dtype: str) -> None:
    b.supported(dtype != "", "the target type has no compiled form")
    if dtype == x.dtype:
        b.alias(x)
        return
    if not is_format(dtype) and not is_format(x.dtype):
        b.map(lambda v: v.cast(dtype), x, dtype=dtype)
        return
    b.supported(x.dtype[0] != "c" and dtype[0] != "c", "complex numbers have no such form")
    y = b.output(x.shape, dtype)
    ranges, point = positions(x.shape)
    value = decoded(b, x, point)
    source = ("i32" if x.dtype in INTEGER_BITS else "f32") if is_format(x.dtype) else x.dtype
    if not is_format(dtype):
        b.assign(y, ranges, value if source == dtype else value.cast(dtype))
        return
    if source == "bool":
        value, source = value.cast("i32"), "i32"
    encode(b, value, source, y, dtype, b.int_attribute("saturate", 1) == 1, b.string_attribute("round_mode", "up"))


def bit_cast(b: Notation) -> None:
    """The same bits as another type; between integers of one width that is the cast."""
    x, dtype = b.input(0), onnx_dtype(b.int_attribute("to"))
    plain = all(d in BITS or is_integer(d) and not is_format(d) or d == "bool" for d in (x.dtype, dtype))
    b.supported(plain and dtype != "bool", f"the bits of {x.dtype} as {dtype} have no compiled form")
    b.require(size_bytes(x.dtype) == size_bytes(dtype), f"{x.dtype} and {dtype} differ in width")
    if is_float(x.dtype) == is_float(dtype):
        cast_to(b, x, dtype)
    elif is_float(x.dtype):
        b.map(lambda v: fn("bits", v).cast(dtype), x, dtype=dtype)
    else:
        b.map(lambda v: fn("bits", v.cast(BITS[dtype])), x, dtype=dtype)


# -- quantisation --------------------------------------------------------------------------------------------------


def quantize_linear(b: Notation) -> None:
    """saturate(round(x / scale) + zero point), half to even; scales per tensor, along `axis`, or for blocks of it."""
    x, scale, zero = b.input(0), b.input(1), b.optional(2)
    number, precision = b.int_attribute("output_dtype", 0), b.int_attribute("precision", 0)
    dtype = zero.dtype if zero is not None else onnx_dtype(number) if number else "u8"
    wide = onnx_dtype(precision) if precision else scale.dtype
    fits = is_float(wide) and is_float(x.dtype) and not any(is_format(d) for d in (x.dtype, scale.dtype, wide))
    b.supported(fits or x.dtype == "i32", f"{x.dtype} by {scale.dtype} has no compiled form")
    b.supported(dtype in _LIMITS or is_format(dtype), f"{x.dtype} to {dtype} has no compiled form")
    y = b.output(x.shape, dtype)
    ranges, point = positions(x.shape)
    s = _of(b, scale, point, "scale")
    v = _as(x[tuple(point)], x.dtype, wide) / _as(scale[s], scale.dtype, wide)
    shift = None if zero is None else decoded(b, zero, _of(b, zero, point, "zero point"), "zeros")
    if dtype not in _LIMITS:
        if shift is not None:
            v = v + _as(shift, "f32", wide)
        encode(b, v, wide, y, dtype, b.int_attribute("saturate", 1) == 1)
        return
    exact = "f64" if wide == "f64" else "f32"
    rounded = _as(fn("round", v), wide, exact)
    low, high = _LIMITS[dtype]
    shifted = rounded if shift is None else rounded + shift.cast(exact)
    held = fn("max", fn("min", shifted, float(high)), float(low))
    if is_format(dtype):
        encode(b, held, exact, y, dtype, True)
    else:
        b.assign(y, ranges, held.cast(dtype))


def dequantize_linear(b: Notation) -> None:
    """(x - zero point) * scale; scales per tensor, along `axis`, or for blocks of it."""
    x, scale, zero = b.input(0), b.input(1), b.optional(2)
    number = b.int_attribute("output_dtype", 0)
    dtype = onnx_dtype(number) if number else scale.dtype
    b.supported(is_float(dtype) and not is_format(dtype), f"{x.dtype} to {dtype} has no compiled form")
    integer = is_integer(x.dtype)
    y = b.output(x.shape, dtype)
    ranges, point = positions(x.shape)
    v = decoded(b, x, point)
    s = _as(scale[_of(b, scale, point, "scale")], scale.dtype, dtype)
    if zero is not None:
        shift = decoded(b, zero, _of(b, zero, point, "zero point"), "zeros")
        v = _wide(v, x.dtype, integer) - _wide(shift, x.dtype, integer)
    source = x.dtype if zero is None and not is_format(x.dtype) else "i32" if integer else "f32"
    b.assign(y, ranges, _as(v, source, dtype) * s)


def _wide(v: Term, dtype: str, integer: bool) -> Term:
    return v if is_format(dtype) or not integer else v.cast("i32")


def _as(v: Term, dtype: str, wanted: str) -> Term:
    return v if dtype == wanted else v.cast(wanted)


def _of(b: Notation, v: Value, point: Sequence[Affine], what: str) -> tuple[Index, ...]:
    """The place of an element's scale: the only one, the one along `axis`, or the one of its block."""
    x, size = b.input(0), b.int_attribute("block_size", 0)
    if v.rank == 0 or (v.rank == 1 and v.size == 1):
        return (0,) * v.rank
    axis = b.axis(b.int_attribute("axis", 1), x.rank)
    if size == 0:
        b.require(v.shape == (x.shape[axis],), f"{what} {list(v.shape)} is not one value along axis {axis}")
        return (point[axis],)
    blocks = tuple(-(-e // size) if k == axis else e for k, e in enumerate(x.shape))
    b.require(size > 0 and v.shape == blocks, f"{what} {list(v.shape)} is not one value for {size} along axis {axis}")
    return tuple(p // size if k == axis else p for k, p in enumerate(point))


ROWS: Final[dict[str, Row]] = {
    "BitCast": bit_cast,
    "Cast": cast,
    "CastLike": cast_like,
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
}
