"""Loops of nests that `break` and `continue` leave, beside the Python functions that they are."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poly
from poly.errors import ParseError
from poly.frontend.nest import Array, Nest, f64, i32, i64, nest

RNG = np.random.default_rng(0)
N, M = 20, 30


@nest
def mandelbrot(N: int, M: int, trips: i32[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            x = 0.0
            y = 0.0
            for _ in range(60):
                if x * x + y * y > 4.0:
                    break
                x, y = x * x - y * y - 2.0 + 3.0 * j / M, 2 * x * y - 1.0 + 2.0 * i / N
                trips[i, j] += 1


@nest
def found(N: int, M: int, x: i64[Array, "N, M"], at: i64[Array, "N"], s: i64[Array, "N"]) -> None:
    for i in range(N):
        at[i] = -1
        for j in range(M):
            s[i] += x[i, j]
            if x[i, j] == 7:
                at[i] = j
                break
            s[i] += 1


@nest
def deep(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: f64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            if i == j:
                continue
            if x[i, j] < 5:
                c[i] += 1
                if x[i, j] == 3:
                    s[i] += 2
                    continue
                else:
                    s[i] -= 3
            elif x[i, j] == 8:
                s[i] *= 1.5
                continue
            else:
                if x[i, j] == 9 and j > 4:
                    break
            s[i] += x[i, j]


@nest
def two_loops(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            t = 0
            for k in range(j):
                if x[i, k] == t:
                    break
                t += x[i, k]
            if t > 20:
                s[i] = t
                break
            c[i] += t


@nest
def to_the_end(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            c[i] += x[i, j]
            if x[i, j] > 4:
                if j >= 9:
                    break
                else:
                    pass
            if c[i] > 20:
                continue


@nest
def sorted_in(N: int, x: f64[Array, "N"]) -> None:
    for i in range(1, N):
        for j in range(i, 0, -1):
            if x[j - 1] <= x[j]:
                break
            x[j - 1], x[j] = x[j], x[j - 1]


@nest
def bisected(N: int, M: int, x: f64[Array, "N"], q: f64[Array, "M"], at: i64[Array, "M"]) -> None:
    for k in range(M):
        low = 0
        high = N
        for _ in range(12):
            if low >= high:
                break
            middle = (low + high) // 2
            if x[middle] < q[k]:
                low = middle + 1
            else:
                high = middle
        at[k] = low


DIGITS, COUNTS = RNG.integers(0, 10, (N, M)), np.zeros(N, "i8")
CASES: list[tuple[Nest[..., Any], tuple[int, ...], tuple[np.ndarray[Any, Any], ...]]] = [
    (mandelbrot, (N, M), (np.zeros((N, M), "i4"),)),
    (found, (N, M), (DIGITS, COUNTS, COUNTS)),
    (deep, (N, M), (DIGITS, COUNTS, np.ones(N))),
    (two_loops, (N, M), (DIGITS, COUNTS, COUNTS)),
    (to_the_end, (N, M), (DIGITS, COUNTS)),
    (sorted_in, (N,), (RNG.random(N),)),
    (bisected, (N, M), (np.sort(RNG.random(N)), RNG.random(M), np.zeros(M, "i8"))),
]


@pytest.mark.parametrize(("function", "sizes", "arrays"), CASES, ids=[c[0].__name__ for c in CASES])
def test_loops_that_are_left(
    function: Nest[..., Any], sizes: tuple[int, ...], arrays: tuple[np.ndarray[Any, Any], ...]
) -> None:
    expected = [a.copy() for a in arrays]
    function(*sizes, *expected)
    inputs = [t.name for t in function.program.tensors if t.is_input]
    made: Any = poly.compile(function)(*arrays)
    results = made if isinstance(made, tuple) else (made,)
    for tensor, found in zip(function.program.outputs, results, strict=True):
        np.testing.assert_allclose(found, expected[inputs.index(tensor.name)], err_msg=tensor.name)


def test_a_break_that_loops_decide_is_a_shorter_range() -> None:
    def triangle(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
        for i in range(N):
            if x[i] > 0:
                for j in range(N):
                    if j > i:
                        break
                    y[i] += x[j]

    with pytest.raises(ParseError, match=r"a break that data do not decide(.|\n)*try: end the range earlier"):
        nest(triangle)
