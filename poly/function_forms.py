"""Functions of other libraries as expressions that are as good: no digits are lost, nothing overflows before the result
does. Their greatest errors in units in the last place: `BOUNDS` of tests/test_function_forms.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from poly.dtypes import DTYPES
from poly.expr import OPERATORS

MOST_WRITTEN_OUT: Final = 2048  # expressions of a value: calls in calls double it where a form reads an argument twice


@dataclass(frozen=True)
class Form:
    """An expression in Python's syntax, with `inf`, of its parameters."""

    text: str
    parameters: tuple[str, ...] = ("x",)


NUMPYS_OPERATORS: Final = {
    "fabs": "abs", "absolute": "abs", "maximum": "max", "minimum": "min", "arctan2": "atan2", "power": "pow",
    "rint": "round", "where": "select", "floor_divide": "floor_div", "remainder": "mod",
    "logical_and": "and", "logical_or": "or", "logical_not": "not", "left_shift": "shift_left",
    "right_shift": "shift_right", "bitwise_and": "bit_and", "bitwise_or": "bit_or", "bitwise_xor": "bit_xor",
}  # fmt: skip
_XY: Final = ("x", "y")
_ASIN: Final = Form("atan2(x, sqrt((1 - x) * (1 + x)))")
_ACOS: Final = Form("atan2(sqrt((1 - x) * (1 + x)), x)")
_ATAN: Final = Form("atan2(x, 1)")
_ASINH: Final = Form(
    "x if abs(x) < 1e-9 else sign(x) * (log1p(abs(x)) + 0.6931471805599453 if abs(x) > 1e18 else "
    "log1p(abs(x) + abs(x) / (1 / abs(x) + sqrt(1 + 1 / abs(x) / abs(x)))))"
)
_ACOSH: Final = Form("log(x) + 0.6931471805599453 if x > 1e18 else log1p((x - 1) + sqrt(x - 1) * sqrt(x + 1))")
_ATANH: Final = Form("x if abs(x) < 1e-9 else sign(x) * 0.5 * log1p(2 * abs(x) / (1 - abs(x)))")
_LONG: Final = "max(abs(x), abs(y))"
_SHORT: Final = "min(abs(x), abs(y))"
_THIRD: Final = "pow(abs(x), 0.3333333333333333)"
_DEGREES: Final = Form("x * 57.29577951308232")
_RADIANS: Final = Form("x * 0.017453292519943295")
FORMS: Final[Mapping[str, Form]] = {
    "negative": Form("-x"), "square": Form("x * x"), "reciprocal": Form("1 / x"), "rsqrt": Form("1 / sqrt(x)"),
    "degrees": _DEGREES, "rad2deg": _DEGREES, "radians": _RADIANS, "deg2rad": _RADIANS,
    "tan": Form("sin(x) / cos(x)"),
    "atan": _ATAN, "asin": _ASIN, "acos": _ACOS,
    "arctan": _ATAN, "arcsin": _ASIN, "arccos": _ACOS,
    "asinh": _ASINH, "acosh": _ACOSH, "atanh": _ATANH,
    "arcsinh": _ASINH, "arccosh": _ACOSH, "arctanh": _ATANH,
    "exp2": Form("pow(2.0, x)"),
    "expm1": Form("x if exp(x) == 1 else (exp(x) - 1) * (x / log(exp(x))) if abs(x) < 1 else exp(x) - 1"),  # Kahan's
    "log1p": Form("x if 1 + x == 1 or x == inf else log(1 + x) * (x / ((1 + x) - 1))"),
    "cosh": Form("0.5 * exp(abs(x) * 0.5) * exp(abs(x) * 0.5) + 0.5 / (exp(abs(x) * 0.5) * exp(abs(x) * 0.5))"),
    "sinh": Form("tanh(x) * cosh(x)"),
    "logaddexp": Form("x + 0.6931471805599453 if x == y else max(x, y) + log1p(exp(-abs(x - y)))", _XY),
    "softplus": Form("max(x, 0) + log1p(exp(-abs(x)))"),
    "cbrt": Form(
        "x if x == 0 or abs(x) == inf else "
        f"sign(x) * ({_THIRD} - ({_THIRD} - abs(x) / ({_THIRD} * {_THIRD})) * 0.3333333333333333)"
    ),
    "hypot": Form(
        f"inf if abs(x) == inf or abs(y) == inf else {_LONG} if {_LONG} == 0 else "
        f"{_LONG} * sqrt(1 + ({_SHORT} / {_LONG}) * ({_SHORT} / {_LONG}))", _XY,
    ),
    "relu": Form("max(x, 0)"), "silu": Form("x * sigmoid(x)"),
    "copysign": Form("-abs(x) if y < 0 or 1 / y < 0 else abs(x)", _XY),
    "signbit": Form("x < 0 or 1 / x < 0"),
    "trunc": Form("ceil(x) if x < 0 else floor(x)"), "fix": Form("ceil(x) if x < 0 else floor(x)"),
    "fmax": Form("y if x != x else x if y != y else max(x, y)", _XY),  # of numbers, if one is
    "fmin": Form("y if x != x else x if y != y else min(x, y)", _XY),
    "heaviside": Form("x if x != x else 0 if x < 0 else 1 if x > 0 else y", _XY),
    "clip": Form("min(max(x, low), high)", ("x", "low", "high")),
    "isnan": Form("x != x"), "isinf": Form("abs(x) == inf"), "isfinite": Form("abs(x) < inf"),
}  # fmt: skip


def wanted(name: str) -> tuple[str, ...] | None:
    """The arguments of a function, by names for them; None where there is no such function."""
    if name in FORMS:
        return FORMS[name].parameters
    if name in DTYPES:
        return ("x",)
    return ("x", "y", "z")[: OPERATORS[name].arity] if name in OPERATORS else None
