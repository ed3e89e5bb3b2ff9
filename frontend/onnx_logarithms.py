"""Rows of the operator table that are logarithms and exponentials inside: Softplus, Elu, Gelu, hyperbolic functions.

Each is written so that it keeps its leading digits at both ends of its range: none is a difference of close numbers, or
overflows before its result does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from poly.dtypes import is_float
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Term, fn, literal

_TINY: Final = 1e-9  # below it asinh and atanh are their argument, in f64
_HUGE: Final = 1e18  # above it v + 1 and sqrt(v^2 + 1) are v, in f64


def softplus(v: Term, terms: int = 16) -> Term:
    """log(1 + exp(v)) = max(v, 0) + log1p(e) with e = exp(-|v|) <= 1, which does not overflow.

    log1p(e) = 2 atanh(t / 2) with t = e / (1 + e / 2) <= 2/3: 16 terms of the series reach f64, 7 reach f32.
    """
    e = fn("exp", -fn("abs", v))
    t = e / (e * 0.5 + 1.0)
    quarter = t * t * 0.25
    series = literal(1 / (2 * terms - 1))
    for k in range(terms - 2, -1, -1):
        series = series * quarter + 1 / (2 * k + 1)
    return fn("max", v, 0) + t * series


def _softplus_row(b: Notation) -> None:
    dtype = b.input(0).dtype
    b.map(lambda v: softplus(v, 16 if dtype == "f64" else 7), b.input(0))


def _mish(v: Term) -> Term:
    """v tanh(log(1 + e^v)) = v n / (n + 2) with n = e^v (e^v + 2); beyond 20 the fraction is 1."""
    e = fn("exp", fn("min", v, 20.0))
    n = e * (e + 2.0)
    return v * (n / (n + 2.0))


def _cosh(v: Term) -> Term:
    """(h^2 + 1 / h^2) / 2 with h = exp(|v| / 2), which overflows only with the result."""
    h = fn("exp", fn("abs", v) * 0.5)
    return h * 0.5 * h + 0.5 / (h * h)


def _log1p(v: Term) -> Term:
    """log(1 + v) by log(u) v / (u - 1) with u the rounded 1 + v: Kahan's correction, needed for |v| < 1 only."""
    u = v + 1.0
    corrected = fn("log", u) * fn("select", fn("lt", fn("abs", v), 1.0), v / (u - 1.0), 1.0)
    return fn("select", fn("eq", u, 1.0), v, corrected)


def _with_sign(v: Term, size: Term) -> Term:
    """An odd function by its value at |v|; next to 0 it is v."""
    return fn("select", fn("lt", fn("abs", v), _TINY), v, fn("sign", v) * size)


def _log_of_twice(v: Term, small: Term) -> Term:
    """log(2 v) where v is huge, else log1p(small)."""
    huge = fn("gt", v, _HUGE)
    return _log1p(fn("select", huge, v, small)) + fn("select", huge, float(np.log(2)), 0.0)


def _asinh(v: Term) -> Term:
    a = fn("abs", v)
    square = a * a
    return _with_sign(v, _log_of_twice(a, a + square / (fn("sqrt", square + 1.0) + 1.0)))


def _acosh(v: Term) -> Term:
    t = v - 1.0
    return _log_of_twice(v, t + fn("sqrt", t) * fn("sqrt", t + 2.0))


def _atanh(v: Term) -> Term:
    a = fn("abs", v)
    return _with_sign(v, _log1p((a + a) / (1.0 - a)) * 0.5)


def _in(wide: str, function: Callable[[Term], Term]) -> Row:
    """A row that computes narrower floats in `wide`, and wider ones in their own dtype."""

    def row(b: Notation) -> None:
        dtype = b.input(0).dtype
        b.supported(is_float(dtype), f"on {dtype} has no compiled form")
        if dtype == "f64" or dtype == wide:
            b.map(function, b.input(0))
        else:
            b.map(lambda v: function(v.cast(wide)).cast(dtype), b.input(0))

    return row


def _expm1(v: Term) -> Term:
    """e^v - 1 where v <= 0, as 2 t / (1 - t) with t = tanh(v / 2) <= 0."""
    t = fn("tanh", v * 0.5)
    return (t + t) / (1.0 - t)


def _expm1_anywhere(v: Term) -> Term:
    """e^v - 1 = tanh(v / 2) (e^v + 1)."""
    return fn("tanh", v * 0.5) * (fn("exp", v) + 1.0)


def _elu(b: Notation) -> None:
    alpha = b.float_attribute("alpha", 1.0)
    _in("f32", lambda v: fn("select", fn("lt", v, 0), _expm1(v) * alpha, v))(b)


def _selu(b: Notation) -> None:
    alpha, gamma = b.float_attribute("alpha", 1.6732632), b.float_attribute("gamma", 1.050701)
    _in("f32", lambda v: fn("select", fn("le", v, 0), _expm1(v) * alpha, v) * gamma)(b)


def _celu(b: Notation) -> None:
    alpha = b.float_attribute("alpha", 1.0)
    if alpha > 0:
        _in("f32", lambda v: fn("select", fn("lt", v, 0), _expm1(v / alpha) * alpha, v))(b)
    else:  # then it is the positive v / alpha that are negative v
        _in("f32", lambda v: fn("max", v, 0) + fn("min", _expm1_anywhere(v / alpha) * alpha, 0))(b)


def _gelu(b: Notation) -> None:
    """v (1 + erf(v / sqrt 2)) / 2; by tanh, (1 + tanh(u)) / 2 = sigmoid(2 u) keeps its digits below 0."""
    if b.string_attribute("approximate", "none") != "tanh":
        _in("f32", lambda v: v * 0.5 * (fn("erf", v * float(np.sqrt(0.5))) + 1.0))(b)
        return
    twice = 2 * float(np.sqrt(2 / np.pi))
    _in("f32", lambda v: v * fn("sigmoid", (v * v * v * 0.044715 + v) * twice))(b)


ROWS: Final[dict[str, Row]] = {
    "Acosh": _in("f64", _acosh),
    "Asinh": _in("f64", _asinh),
    "Atanh": _in("f64", _atanh),
    "Celu": _celu,
    "Cosh": _in("f32", _cosh),
    "Elu": _elu,
    "Gelu": _gelu,
    "Mish": _in("f32", _mish),
    "Selu": _selu,
    "Sinh": _in("f32", lambda v: fn("tanh", v) * _cosh(v)),
    "Softplus": _softplus_row,
}
