"""Branches on data: the values are those of the function as plain Python."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from typing import Any

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f64, i64, nest


@nest
def largest(N: int, M: int, x: f64[Array, "N, M"], y: f64[Array, "N"], n: i64[Array, "N"]) -> None:
    for i in range(N):
        most = x[i, 0]
        for j in range(1, M):
            if x[i, j] > most:
                n[i] = j  # before what it is compared with
                most = x[i, j]
        y[i] = most


@nest
def sides(N: int, M: int, x: f64[Array, "N, M"], y: f64[Array, "N"], n: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            if x[i, j] > 0.25 and j != 1:
                y[i] += x[i, j]
                n[i] += 1
                x[i, j] /= 2
            else:
                y[i] -= 0.5
                x[i, j] = -x[i, j]


@nest
def neighbours(N: int, M: int, x: f64[Array, "N, M"], y: f64[Array, "N"], n: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            if j > 0 and x[i, j - 1] > x[i, j]:
                y[i] *= 1.5
        if n[i] != 0:
            pass
        else:
            n[i] = 3


@pytest.mark.parametrize("function", [largest, sides, neighbours])
def test_values_are_those_of_python(function: Nest[..., None]) -> None:
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (5, 3), (40, 33)):
        arrays: dict[str, Any] = {"x": rng.uniform(-1, 1, (n, m)), "y": rng.uniform(1, 2, n), "n": np.arange(n) % 2}
        arrays["x"][n // 2, m // 2] = np.nan
        wanted = {name: array.copy() for name, array in arrays.items()}
        function.python(n, m, *wanted.values())
        for program in (function.program, function.program.bind(N=n, M=m)):
            found: Any = poly.compile(program)(**{t.name: arrays[t.name] for t in program.inputs})
            for tensor, result in zip(program.outputs, found, strict=True):
                np.testing.assert_allclose(result, wanted[tensor.name], rtol=1e-12)


def test_a_largest_element_with_its_place_has_lanes() -> None:
    assert "vector" in str(poly.compile(largest.program.bind(N=64, M=50), threads=1).loops)


def positive(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        if x[i] > 0:
            y[i] += x[i]


def test_exact_targets_keep_the_sign_of_zero() -> None:
    kernel = poly.compile(nest(positive, exact=True))
    found = kernel(np.array([-1.0, 2.0, 0.0]), np.array([-0.0, 1.0, -0.0]))
    assert np.signbit(np.asarray(found)).tolist() == [True, False, True]
