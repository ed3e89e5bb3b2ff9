"""Functions that bodies have as expressions: against wider floats, in units in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poly
from poly.errors import ParseError
from poly.function_forms import FORMS, NUMPYS_OPERATORS
from tests.test_vector_math import EDGES, SPECIALS, strata

pytestmark = pytest.mark.usefixtures("no_cache")

BOUNDS = {
    "exp2": (0.6, 2.0), "expm1": (2.5, 2.5), "log1p": (2.5, 2.5), "cosh": (3.2, 3.2), "sinh": (8, 4),
    "asinh": (3.2, 3.2), "acosh": (3.2, 3.2), "atanh": (3.2, 3.2), "softplus": (3.2, 3.2), "cbrt": (0.8, 0.8),
    "hypot": (2.1, 2.1), "tan": (3.2, 3.2), "asin": (2.8, 2.8), "acos": (2.8, 2.8), "atan": (2.3, 2.4),
    "reciprocal": (0.5, 0.5), "rsqrt": (1.6, 1.6), "degrees": (1, 1), "radians": (1, 1), "square": (0.5, 0.5),
    "trunc": (0, 0), "isnan": (0, 0), "isinf": (0, 0), "isfinite": (0, 0), "negative": (0, 0), "copysign": (0, 0),
    "signbit": (0, 0), "relu": (0, 0), "fmax": (0, 0), "fmin": (0, 0), "heaviside": (0, 0),
}  # fmt: skip
TRUTHS = ("isnan", "isinf", "isfinite", "signbit")
OTHERS: dict[str, Any] = {
    "softplus": lambda x: np.logaddexp(x, np.zeros_like(x)), "rsqrt": lambda x: 1 / np.sqrt(x),
    "relu": lambda x: np.maximum(x, 0), "logaddexp": np.logaddexp, "clip": np.clip,
    "silu": lambda x: x / (1 + np.exp(-x)),
}  # fmt: skip


def numbers(dtype: str, count: int) -> list[np.ndarray]:
    rng, kind = np.random.default_rng(3), "f4" if dtype == "f32" else "f8"
    some = [rng.uniform(-a, a, 3000) for a in (1.2, 20, 100, 800)]
    x = np.concatenate([strata(dtype, 8 if dtype == "f32" else 2), SPECIALS, EDGES if dtype == "f64" else [], *some])
    x = x.astype(kind)
    beside = np.concatenate([rng.permutation(x), x * rng.uniform(-2, 2, len(x)).astype(kind)])
    return [np.concatenate([x, x]), beside][:count]


def computed(name: str, dtype: str, operands: list[np.ndarray]) -> np.ndarray:
    given = ", ".join("xyz"[k] + "[i]" for k in range(len(operands)))
    shapes: Any = {"xyz"[k]: a.shape for k, a in enumerate(operands)}
    dtypes = dict.fromkeys(shapes, dtype) | {"r": "bool" if name in TRUTHS else dtype}
    kernel: Any = poly.compile(poly.parse(f"r[i] = {name}({given})", dtypes=dtypes, **shapes))
    found = kernel(*operands)
    assert isinstance(found, np.ndarray)
    return found


def found_and_exact(name: str, dtype: str, operands: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    wide = np.float64 if dtype == "f32" else np.longdouble
    with np.errstate(all="ignore"):
        exact = (OTHERS[name] if name in OTHERS else getattr(np, name))(*(a.astype(wide) for a in operands))
    return computed(name, dtype, operands), np.asarray(exact, wide)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider float to compare with")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_forms(name: str, dtype: str) -> None:
    operands = numbers(dtype, len(FORMS[name].parameters))
    if name in ("copysign", "signbit"):
        operands = [np.where(np.isnan(a), np.nan, a).astype(a.dtype) for a in operands]  # NaN counts as positive
    found, exact = found_and_exact(name, dtype, operands)
    with np.errstate(all="ignore"):
        rounded = exact.astype(operands[0].dtype)
        error = np.abs(found.astype(exact.dtype) - exact) / np.spacing(np.abs(rounded)).astype(exact.dtype)
    finite, number = np.isfinite(rounded), ~np.isnan(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert error[finite].max() <= BOUNDS[name][dtype == "f64"], [a[finite][error[finite].argmax()] for a in operands]
    if name not in ("relu", "fmax", "fmin"):  # the greatest of 0 and -0
        np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))


def test_sums_of_logarithms() -> None:
    x, y = np.random.default_rng(0).normal(scale=50, size=(2, 9000))
    left = np.array([np.inf, -np.inf, np.inf, -np.inf, np.nan, 3, 0.0])
    right = np.array([np.inf, -np.inf, -np.inf, 2, 1, 3, -0.0])
    for a, b in ((x, y), (x, x + 1e-3), (left, right)):
        found, exact = found_and_exact("logaddexp", "f64", [a, b])
        np.testing.assert_allclose(found, exact.astype("f8"), rtol=1e-15, atol=1e-15)


def test_powers_are_exact() -> None:
    for dtype, kind, low, high, tens in (("f32", "f4", -149, 128, 11), ("f64", "f8", -1074, 1024, 23)):
        exponents = np.arange(low, high).astype(kind)
        powers = np.exp2(exponents.astype("g")).astype(kind)
        np.testing.assert_array_equal(found_and_exact("exp2", dtype, [exponents])[0], powers)
        np.testing.assert_array_equal(found_and_exact("log2", dtype, [powers])[0], exponents)
        ten = np.array([10**k for k in range(tens)], kind)
        np.testing.assert_array_equal(found_and_exact("log10", dtype, [ten])[0], np.arange(tens))


@pytest.mark.parametrize("name", sorted(set(FORMS) - set(BOUNDS)))
def test_other_names(name: str) -> None:
    operands = [np.array(a) for a in ([0.3, -0.75, 0.5], [0.5, 0.25, -0.6], [0.75, 0.5, 0.8])]
    found, exact = found_and_exact(name, "f64", operands[: len(FORMS[name].parameters)])
    np.testing.assert_allclose(found, exact.astype("f8"), rtol=1e-14)


@pytest.mark.parametrize("name", [n for n in NUMPYS_OPERATORS if n != "where"])
def test_numpys_names(name: str) -> None:
    x, y = np.array([3, 5, 0, 7]), np.array([1, 2, 3, 4])
    dtype = "f64" if name in ("fabs", "rint", "arctan2") else "bool" if "logical" in name else "i64"
    operands = [a.astype({"f64": "f8", "bool": "?", "i64": "i8"}[dtype]) for a in (x, y)]
    operands = operands[:1] if name in ("fabs", "absolute", "rint", "logical_not") else operands
    np.testing.assert_allclose(computed(name, dtype, operands), getattr(np, name)(*operands))


def test_how_many_arguments() -> None:
    for text, refusal in (
        ("hypot(x[i])", "hypot takes 2 arguments, not 1"), ("sin(x[i], 2)", "1 argument, not 2"),
        ("left_shift(x[i])", "left_shift takes 2 arguments, not 1"), ("f32(x[i], 2)", "1 argument, not 2"),
    ):  # fmt: skip
        with pytest.raises(ParseError, match=refusal):
            poly.parse(f"y[i] = {text}", x=(4,))


@pytest.mark.parametrize(("text", "numpys"), [
    ("hypot(x[i], 2)", lambda x: np.hypot(x, 2)), ("copysign(x[i], -1)", lambda x: np.copysign(x, -1)),
    ("logaddexp(x[i], 1)", lambda x: np.logaddexp(x, 1)), ("clip(x[i], 0, 1)", lambda x: np.clip(x, 0, 1)),
    ("exp2(3) * x[i]", lambda x: 8 * x), ("x[i] if 2 == 0.5 else cosh(2)", lambda x: np.full_like(x, np.cosh(2))),
    ("x[i] if 1 / 2 > 0 else 0", lambda x: x),
])  # fmt: skip
def test_of_literals(text: str, numpys: Any) -> None:
    x = np.linspace(-3, 3, 20).astype("f4")
    kernel: Any = poly.compile(poly.parse(f"y[i] = {text}", x=(20,)))
    np.testing.assert_allclose(kernel(x), numpys(x), rtol=5e-7)
