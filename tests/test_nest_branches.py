"""Branches on data: the values are those of the function as plain Python."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from textwrap import indent
from typing import Any

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f64, i64, nest
from tests.nest_texts import define


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


def test_counts_are_integers_whatever_is_compared() -> None:
    """A literal that a condition compares is none of the sum's: 2**53 + 1 is no f64."""

    @nest
    def counts(N: int, M: int, x: f64[Array, "N, M"], n: i64[Array, "N"], total: i64[Array, "1"]) -> None:
        for i in range(N):
            most = 0
            for j in range(M):
                if x[i, j] > 0.5:
                    most += 1
                total[0] += 1 if x[i, j] < 0.25 else 0
            n[i] = most

    x = np.random.default_rng(0).uniform(0, 1, (33, 70))
    n, total = np.zeros(33, np.int64), np.full(1, 2**53 + 1)
    for program in (counts.program, counts.program.bind(N=33, M=70)):
        assert all(s.combiner is not None for s in program.statements if len(s.iterators) == 2)
        kernel: Any = poly.compile(program, threads=1)
        found = kernel(x, n, total)
        np.testing.assert_array_equal(found[0], (x > 0.5).sum(1))
        np.testing.assert_array_equal(found[1], total + (x < 0.25).sum())


def test_exact_targets_keep_the_sign_of_zero() -> None:
    kernel = poly.compile(nest(positive, exact=True))
    found = kernel(np.array([-1.0, 2.0, 0.0]), np.array([-0.0, 1.0, -0.0]))
    assert np.signbit(np.asarray(found)).tolist() == [True, False, True]


BODIES = [  # of a loop over i
    "if x[i] > 0:\n    t = 2*x[i]\n    y[i] = t*t",  # a local of one branch
    "if x[i] > 0:\n    t = x[i]\nelse:\n    t = -1.0\ny[i] = t",
    "if i > 0:\n    if x[i-1] > x[i]:\n        t = x[i]\n        x[i] = x[i-1]\n        x[i-1] = t",
    "if x[i] > 2:\n    t = x[i]\nelif x[i] > 0:\n    t = 1.5\nelse:\n    t = y[i]\ny[i] = t - 1",
    "if x[i] > 0:\n    m = i + 1\n    y[i] = m * x[i]",
    "t = 4.0\nif x[i] > 0:\n    t = x[i]\ny[i] = t",  # one that counts outside of it
    "t = 0.0\nfor k in range(4):\n    if x[i] > k:\n        t = x[i] - k\n    else:\n        y[i] += t",
    "t = 4.0\nif x[i] > 0:\n    t = x[i]\n    if x[i] > 3:\n        t = 9*t\n        y[i] = t\n    else:\n        t = 1"
    "\nelse:\n    if y[i] > 0:\n        t = 5\ny[i] += t",
    "if x[i] > 3:\n    y[i] = 1\nelif x[i] > 0:\n    y[i] = 2.5\nelse:\n    y[i] *= 2\n    x[i] = 0",
    "if x[i] > 0:\n    if y[i] > 0:\n        y[i] = 3\n    x[i] = 7",
    "if x[i] > 0:\n    if y[i] > 0:\n        y[i] = 3",
    "if x[i] > 0:\n    if i > 0:\n        y[i-1] = 3\n    else:\n        y[i] = -2",  # loops decide what is written
    "if x[i] > 2:\n    y[i] = 1\nelif i > 2:\n    y[i-2] = 1.5\nelse:\n    y[i] = 8",
    "if i > 0 and x[i] > 0 and i < N - 1:\n    y[i-1] = 2.0\n    y[i+1] = x[i]",
    "if x[i] > 0:\n    for k in range(i):\n        y[i] += x[k]",  # loops in a branch
    "s = 0.0\nif x[i] > 0:\n    for k in range(N):\n        s += x[k]\n        x[i] -= 1\n"
    "else:\n    y[i] = 3\ny[i] += s",
    "if x[i] > 0:\n    t = 1.0\n    for k in range(N):\n        if k > 0 and y[k] > 1:\n"
    "            y[k-1] = t\n            t = x[k-1]\n        if k < 2:\n            t += 1\n    y[i] = t",
    "for k in range(3):\n    if x[i] > k:\n        for l in range(k, N):\n            if l > i:\n"
    "                y[l] += x[i]\n            else:\n                y[l] = max(y[l], 2*k)\n    else:\n"
    "        for l in range(2):\n            y[i] -= l",
    "t = 2.0\nif x[i] > 0:\n    for k in range(2):\n        t = x[i] + k\nelse:\n    y[i] = t\ny[i] += t",
]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_branches_in_branches_and_locals_of_branches(body: str, exact: bool) -> None:
    head = "def f(N: int, x: 'f64[N]', y: 'f64[N]'):\n    for i in range(N):\n"
    function = define(head + indent(body, "        "))
    program = poly.nest(function, exact=exact).program
    rng = np.random.default_rng(0)
    for n in (1, 23):
        arrays: dict[str, Any] = {name: rng.integers(-5, 6, n).astype(float) for name in "xy"}
        wanted = {name: array.copy() for name, array in arrays.items()}
        function(n, **wanted)
        found: Any = poly.compile(program)(**{t.name: arrays[t.name] for t in program.inputs})
        results = found if isinstance(found, tuple) else (found,)
        for tensor, result in zip(program.outputs, results, strict=True):
            np.testing.assert_array_equal(result, wanted[tensor.name])


GUARDED = [  # of a loop over i; b holds places and negative numbers
    "if b[i] >= 0:\n    if c[b[i]] > 1:\n        y[i] = 2.0\n        y[i] += 1.0",
    "if b[i] < 0:\n    y[i] = 1.0\nelif c[b[i]] > 1:\n    y[i] = 2.0\n    y[i] += 1.0\nelse:\n    y[i] -= c[b[i]]",
    "if b[i] >= 0:\n    k = b[i]\n    if c[k] > 1:\n        k = c[k]\n        y[i] = c[k]\n    else:\n        y[i] = k",
    "lo = 0\nhi = N\nfor s in range(8):\n    if lo < hi:\n        mid = (lo + hi) // 2\n        if c[mid] < 3 * b[i]:\n"
    "            lo = mid + 1\n        else:\n            hi = mid\ny[i] = lo",
    "if 0 <= b[i] < c[b[i]] + 1:\n    y[i] = 2.0",  # comparisons stop where Python stops
    "y[i] = 2.0 if 0 <= b[i] < 5 < c[b[i]] + 4 else 0.0",
    "y[i] = c[i-1] if 0 < i < b[i] + 3 else 0.5",
    "k = b[i] + 3\ny[i] = c[i-1] if 0 < i < k else 0.5\nif 0 < i < k:\n    y[i-1] += c[i-1]",
    "y[i] = 2.0 if i in (0, N - 2) else c[i]",
    "if i in (2, 9) or c[i] > 5:\n    y[i] = 5.0",
    "if i not in [2, 0] and b[i] not in {3, 5}:\n    y[i] = 5.0\n    y[i] += i",
    "if b[i] in (4,) or 0.5 > 1.0:\n    y[i] = 5.0",
]


@pytest.mark.parametrize("body", GUARDED)
def test_conditions_read_only_where_those_around_them_hold(body: str) -> None:
    head = "def f(N: int, b: 'i64[N]', c: 'i64[N]', y: 'f64[N]'):\n    for i in range(N):\n"
    function = define(head + indent(body, "        "))
    kernel: Any = poly.compile(poly.nest(function))
    b, c, wanted = np.array([-2, 0, 3, -9, 4, 1, 5]), np.arange(7), np.ones(7)
    function(7, b, c, wanted)
    np.testing.assert_array_equal(kernel(b, c, np.ones(7)), wanted)
