"""Rows of the operator table that compute each element from the elements at the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from poly.affine import var
from poly.dtypes import is_float, is_integer, numpy_dtype
from poly.frontend.onnx_notation import NoCompiledForm, Notation, Row
from poly.frontend.onnx_terms import FORMATS, Term, Value, fn, literal, python_scalar

_MOST_DRAWN: Final = 1 << 24


def unary(function: Callable[[Term], Term], result: str | None = None) -> Row:
    """A row without attributes on one input."""

    def row(b: Notation) -> None:
        b.map(function, b.input(0), dtype=result)

    return row


def binary(operator: str, result: str | None = None) -> Row:
    """A row on two inputs with numpy broadcasting (opsets below 7: `broadcast` and `axis` attributes)."""

    def row(b: Notation) -> None:
        x, y = legacy_operands(b)
        b.map(lambda p, q: fn(operator, p, q), x, y, dtype=result)

    return row


def divide(b: Notation) -> None:
    """A quotient; of integers without its fraction."""
    binary("trunc_div" if is_integer(b.input(0).dtype) else "div")(b)


def legacy_operands(b: Notation) -> tuple[Value, Value]:
    """Both inputs; before opset 7 the second one lines up with the first at `axis` instead of at the end."""
    x, y = b.input(0), b.input(1)
    if b.opset >= 7 or not b.call.attributes.get("broadcast"):
        return x, y
    axis = b.axis(b.int_attribute("axis", x.rank - y.rank), x.rank) if y.rank else 0
    after = x.rank - axis - y.rank
    if after <= 0:
        return x, y
    if y.array is not None:
        return x, b.new_constant("aligned", y.array.reshape(*y.shape, *(1,) * after))
    aligned = b.temporary("aligned", (*y.shape, *(1,) * after), y.dtype)
    ranges = {f"i{k}": extent for k, extent in enumerate(y.shape)}
    point = tuple(map(var, ranges))
    b.assign(aligned, ranges, y[point], (*point, *(0,) * after), suffix="_aligned")
    return x, aligned


def variadic(operator: str) -> Row:
    """A row that folds any number of inputs with one operator."""

    def row(b: Notation) -> None:
        def fold(*terms: Term) -> Term:
            result = terms[0]
            for term in terms[1:]:
                result = fn(operator, result, term)
            return result

        values = b.inputs
        if len(values) == 1:
            b.alias(values[0])
        else:
            b.map(fold, *values)

    return row


def mean(b: Notation) -> None:
    def average(*terms: Term) -> Term:
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total / float(len(terms))

    b.map(average, *b.inputs)


def identity(b: Notation) -> None:
    b.alias(b.input(0))


def dropout(b: Notation) -> None:
    """Inference: the input itself; the mask, where it is used, is all true."""
    x = b.input(0)
    training = b.optional(2) is not None and bool(b.constant_ints(2)[0])
    ratio = 0.5 if b.optional(1) is None else float(python_scalar(b.constant(1))) if training else 0.0
    if training and ratio:
        _drop(b, x, ratio)
        return
    b.alias(x)
    if b.wants(1):
        mask = b.output(x.shape, "bool" if b.opset >= 10 else x.dtype, 1)
        b.assign(mask, {f"i{k}": e for k, e in enumerate(x.shape)}, literal(True if b.opset >= 10 else 1.0))


def _drop(b: Notation, x: Value, ratio: float) -> None:
    """Training with a seed, which every run draws from anew: the mask is a constant, as the reference evaluator's."""
    b.require(0 <= ratio < 1, f"ratio {ratio} is outside of 0 <= ratio < 1")
    b.supported(b.has("seed"), "training mode without a seed is random", "export the model for inference")
    b.supported(x.size <= _MOST_DRAWN, f"a mask of more than {_MOST_DRAWN} elements is drawn at each run")
    mask = np.random.RandomState(b.int_attribute("seed") % 2**32).uniform(0, 1, x.shape) >= ratio
    kept = b.new_constant("mask", mask)
    scale = float(1 / (1 - np.float32(ratio)))
    b.map(lambda v, m: v * m.cast(x.dtype) * scale, x, kept)
    if b.wants(1):
        b.map(lambda m: m, kept, position=1)


ONNX_DTYPES: Final[dict[int, str]] = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64",
    12: "u32", 13: "u64", 14: "c64", 15: "c128", 16: "bf16", **FORMATS,
}  # fmt: skip


def onnx_dtype(number: int) -> str:
    """The dtype name of a TensorProto.DataType. Raises `OnnxError` where there is none."""
    found = ONNX_DTYPES.get(number)
    if found is None:
        raise NoCompiledForm(f"data type {number} has no compiled form", "strings are not supported")
    return found


def clip(b: Notation) -> None:
    """Bounds are attributes before opset 11, which bring infinities down to f32 without being given; optional inputs
    after."""
    x = b.input(0)
    if b.opset < 11:
        largest = float(np.finfo(np.float32).max)
        low, high = b.float_attribute("min", -largest), b.float_attribute("max", largest)
        b.map(lambda v: _clipped(v, literal(low), literal(high)), x)
        return
    given = {k: v for k in (1, 2) if (v := b.optional(k)) is not None}
    if not given:
        b.alias(x)
        return

    def body(v: Term, *rest: Term) -> Term:
        by_position = dict(zip(given, rest, strict=True))
        return _clipped(v, by_position.get(1), by_position.get(2))

    b.map(body, x, *given.values())


def _clipped(v: Term, low: Term | None, high: Term | None) -> Term:
    v = v if low is None else fn("max", v, low)
    return v if high is None else fn("min", v, high)


def power(b: Notation) -> None:
    """The result has the base's type; small constant exponents become products and roots."""
    x, y = b.input(0), b.input(1)
    b.broadcast(x.shape, y.shape)
    if is_float(x.dtype) and y.array is not None and y.array.size == 1 and y.rank <= x.rank:
        exponent = float(python_scalar(y.array))
        simple = _SIMPLE_POWERS.get(exponent)
        if simple is not None:
            b.map(simple, x)
            return

    def body(p: Term, q: Term) -> Term:
        if x.dtype == y.dtype:
            return fn("pow", p, q)
        wide = x.dtype if is_float(x.dtype) else "f64"
        result = fn("pow", p if wide == x.dtype else p.cast(wide), q.cast(wide))
        return result if wide == x.dtype else result.cast(x.dtype)

    b.map(body, x, y, dtype=x.dtype)


def _root(v: Term) -> Term:
    """`pow(v, 0.5)`: the square root, but 0 of -0 and infinity of minus infinity."""
    return fn("select", fn("eq", v, float("-inf")), float("inf"), fn("sqrt", v + 0.0))


_SIMPLE_POWERS: Final[dict[float, Callable[[Term], Term]]] = {
    2.0: lambda v: v * v,
    3.0: lambda v: v * v * v,
    0.5: _root,
    -1.0: lambda v: 1.0 / v,
    -0.5: lambda v: 1.0 / _root(v),
}


def modulo(b: Notation) -> None:
    """`fmod` 1: the sign of the dividend (C); else the sign of the divisor (Python)."""
    x, y = b.input(0), b.input(1)
    c_rule = b.int_attribute("fmod", 0) == 1

    def body(p: Term, q: Term) -> Term:
        rest = p - fn("trunc_div", p, q) * q if is_integer(x.dtype) else fn("fmod", p, q)
        if c_rule or x.dtype[0] == "u":
            return rest
        unlike = fn("ne", fn("lt", rest, 0), fn("lt", q, 0))
        return fn("select", fn("and", fn("ne", rest, 0), unlike), rest + q, rest)

    b.map(body, x, y)


def bits(operator: str) -> Row:
    """A row of BitwiseAnd and its like."""

    def row(b: Notation) -> None:
        b.map(lambda p, q: fn(operator, p, q), b.input(0), b.input(1))

    return row


def bitwise_not(b: Notation) -> None:
    x = b.input(0)
    ones = -1 if x.dtype[0] == "i" else int(np.iinfo(numpy_dtype(x.dtype).name).max)
    b.map(lambda v: fn("bit_xor", v, ones), x)


def bit_shift(b: Notation) -> None:
    direction = b.string_attribute("direction")
    b.require(direction in ("LEFT", "RIGHT"), f"direction {direction!r} is unknown")
    b.map(lambda p, q: fn(f"shift_{direction.lower()}", p, q), b.input(0), b.input(1))


def where(b: Notation) -> None:
    b.map(lambda c, p, q: fn("select", c, p, q), b.input(0), b.input(1), b.input(2), dtype=b.input(1).dtype)


def prelu(b: Notation) -> None:
    """The slope broadcasts to the input only; before opset 7 a vector of slopes lies along the channels."""
    x, slope = b.input(0), b.input(1)
    if slope.rank == 1 and b.opset < 7 and slope.size > 1:
        shape = x.shape[1:2] + (1,) * (x.rank - 2)
        b.require(
            slope.array is not None and slope.shape == x.shape[1:2], f"slope {list(slope.shape)} is not one a channel"
        )
        assert slope.array is not None
        slope = b.new_constant("slope", slope.array.reshape(shape))
    b.require(
        b.broadcast(x.shape, slope.shape) == x.shape, f"slope {list(slope.shape)} does not broadcast to {list(x.shape)}"
    )
    b.map(lambda v, s: fn("select", fn("lt", v, 0), s * v, v), x, slope)


def leaky_relu(b: Notation) -> None:
    alpha = b.float_attribute("alpha", 0.01)
    b.map(lambda v: fn("select", fn("lt", v, 0), v * alpha, v), b.input(0))


def thresholded_relu(b: Notation) -> None:
    alpha = b.float_attribute("alpha", 1.0)
    b.map(lambda v: fn("select", fn("gt", v, alpha), v, 0), b.input(0))


def shrink(b: Notation) -> None:
    bias, lambd = b.float_attribute("bias", 0.0), b.float_attribute("lambd", 0.5)
    b.supported(is_float(b.input(0).dtype), "is compiled for floats only")
    b.map(
        lambda v: fn("select", fn("lt", v, -lambd), v + bias, fn("select", fn("gt", v, lambd), v - bias, 0)), b.input(0)
    )


def hard_sigmoid(b: Notation) -> None:
    alpha, beta = b.float_attribute("alpha", 0.2), b.float_attribute("beta", 0.5)
    b.map(lambda v: fn("max", fn("min", v * alpha + beta, 1.0), 0.0), b.input(0))


def hard_swish(b: Notation) -> None:
    sixth = float(np.float32(1 / 6))
    b.map(lambda v: v * fn("max", fn("min", v * sixth + 0.5, 1.0), 0.0), b.input(0))


def is_inf(b: Notation) -> None:
    negative, positive = b.int_attribute("detect_negative", 1), b.int_attribute("detect_positive", 1)

    def body(v: Term) -> Term:
        low, high = fn("eq", v, float("-inf")), fn("eq", v, float("inf"))
        if negative and positive:
            return fn("or", low, high)
        return low if negative else high if positive else fn("ne", v, v)

    b.map(body, b.input(0), dtype="bool")


def _other_leg(v: Term) -> Term:
    """sqrt(1 - v^2), the other leg of a right triangle with hypotenuse 1; v close to 1 loses nothing."""
    return fn("sqrt", (1.0 - v) * (v + 1.0))


ROWS: Final[dict[str, Row]] = {
    "Abs": unary(lambda v: fn("abs", v)),
    "Acos": unary(lambda v: fn("atan2", _other_leg(v), v)),
    "Add": binary("add"),
    "And": binary("and", "bool"),
    "Asin": unary(lambda v: fn("atan2", v, _other_leg(v))),
    "Atan": unary(lambda v: fn("atan2", v, 1.0)),
    "BitShift": bit_shift,
    "BitwiseAnd": bits("bit_and"),
    "BitwiseNot": bitwise_not,
    "BitwiseOr": bits("bit_or"),
    "BitwiseXor": bits("bit_xor"),
    "Ceil": unary(lambda v: fn("ceil", v)),
    "Clip": clip,
    "Cos": unary(lambda v: fn("cos", v)),
    "Div": divide,
    "Dropout": dropout,
    "Equal": binary("eq", "bool"),
    "Erf": unary(lambda v: fn("erf", v)),
    "Exp": unary(lambda v: fn("exp", v)),
    "Floor": unary(lambda v: fn("floor", v)),
    "Greater": binary("gt", "bool"),
    "GreaterOrEqual": binary("ge", "bool"),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": identity,
    "IsInf": is_inf,
    "IsNaN": unary(lambda v: fn("ne", v, v), "bool"),
    "LeakyRelu": leaky_relu,
    "Less": binary("lt", "bool"),
    "LessOrEqual": binary("le", "bool"),
    "Log": unary(lambda v: fn("log", v)),
    "Max": variadic("max"),
    "Mean": mean,
    "Min": variadic("min"),
    "Mod": modulo,
    "Mul": binary("mul"),
    "Neg": unary(lambda v: -v),
    "Not": unary(lambda v: fn("not", v)),
    "Or": binary("or", "bool"),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": unary(lambda v: 1.0 / v),
    "Relu": unary(lambda v: fn("max", v, 0)),
    "Round": unary(lambda v: fn("round", v)),
    "Shrink": shrink,
    "Sigmoid": unary(lambda v: fn("sigmoid", v)),
    "Sign": unary(lambda v: fn("sign", v)),
    "Sin": unary(lambda v: fn("sin", v)),
    "Softsign": unary(lambda v: v / (fn("abs", v) + 1.0)),
    "Sqrt": unary(lambda v: fn("sqrt", v)),
    "Sub": binary("sub"),
    "Sum": variadic("add"),
    "Tan": unary(lambda v: fn("sin", v) / fn("cos", v)),
    "Tanh": unary(lambda v: fn("tanh", v)),
    "ThresholdedRelu": thresholded_relu,
    "Where": where,
    "Xor": binary("ne", "bool"),
}
