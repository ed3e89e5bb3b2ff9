"""Local scalars of nests: the dtypes they get, and the values they have in plain Python."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

import ast
from collections.abc import Callable, Iterator
from textwrap import indent
from typing import Any

import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.frontend.nest import Array, f32, nest
from tests.nest_texts import define

SIZES = {"N": 5, "K": 7}
FLOATS = [  # a body, the dtype of x and c, and that of the local s: a literal with a fraction makes it a float
    ("s = 0.0\nfor k in range(K):\n    s += x[i, k]\ny[i] = s / K", "u8", "f64"),
    ("s = 1.0\nfor k in range(K):\n    s *= x[i, k]\ny[i] = s", "u8", "f64"),
    ("s = 0.5\nfor k in range(K):\n    s = max(s, x[i, k])\ny[i] = s", "u8", "f64"),
    ("s = 0.5\ns += c[i]\ny[i] = s", "i64", "f64"),
    ("s = c[i]\ns *= 0.5\ny[i] = s", "i64", "f64"),
    ("s = c[i]\ns = s + 0.5\ny[i] = s", "i64", "f64"),
    ("s = c[i]\ns -= 0.5\ny[i] = s", "u8", "f64"),
    ("s = c[i]\ns = max(s, 0.5)\ny[i] = s", "i64", "f64"),
    ("s = c[i]\nif c[i] > 2:\n    s *= 0.5\ny[i] = s", "i64", "f64"),
    ("s = 1\nfor k in range(3):\n    s *= 0.5\n    s += c[i]\ny[i] = s", "i64", "f64"),
    ("s = 0.0\nfor k in range(5):\n    s += k\n    s *= 0.5\ny[i] = s", "f32", "f64"),
    ("s = 0.0\nfor k in range(K):\n    s = s * 0.5 + x[i, k]\ny[i] = s", "f32", "f32"),
    ("s = 0.0\nfor k in range(K):\n    s += k * 0.5\n    s += x[i, k]\ny[i] = s", "f32", "f32"),
    ("s = 0\nfor k in range(K):\n    s += x[i, k]\ny[i] = s", "u8", "u8"),
]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("body", "dtype", "local"), FLOATS)
def test_a_literal_with_a_fraction_makes_a_local_a_float(body: str, dtype: str, local: str, exact: bool) -> None:
    head = f"def f(N: int, K: int, x: '{dtype}[N, K]', c: '{dtype}[N]', y: 'f64[N]'):\n    for i in range(N):\n"
    function = define(head + indent(body, "        "))
    program = poly.nest(function, exact=exact).program
    assert {t.name: t.dtype for t in program.with_role("temporary")} == {"s": local}
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    x, c, wanted = rng.integers(100, 201, (5, 7)).astype(kind), np.arange(5).astype(kind), np.zeros(5)
    with np.errstate(over="ignore"):
        function(5, 7, x, c, wanted)
    for given in (program, program.bind(**SIZES)):
        found: Any = poly.compile(given)(x, c, np.zeros(5))
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if local == "f32" else 1e-12)


def test_a_running_sum_is_stored_at_every_step() -> None:
    @nest
    def running(N: int, K: int, x: f32[Array, "N, K"], y: f32[Array, "N, K"]) -> None:
        for i in range(N):
            s = 0.0
            for k in range(K):
                s += x[i, k]
                y[i, k] = s

    x = np.random.default_rng(0).integers(-9, 10, (5, 70)).astype(np.float32)
    for given in (running.program, running.program.bind(N=5, K=70)):
        np.testing.assert_array_equal(poly.compile(given)(x, 0 * x), np.cumsum(x, 1))


LITERALS = [  # statements before a loop, and its body
    ("t = True", "if t:\n    y[i] = x[i]\nelse:\n    y[i] = 1"),
    ("t = 1", "if t:\n    y[i] = x[i]"),
    ("t = 0.5", "if t > 0.25:\n    y[i] = x[i]"),
    ("t = 0.5", "if t < 0.25 or i > 2:\n    y[i] = x[i]"),
    ("t = 0.5", "if i > 2 and t > 0.25:\n    y[i] = x[i]"),
    ("t = 2.5", "if i > t:\n    y[i] = x[i]\nelse:\n    y[i] = 3"),
    ("t = 2.5", "if i < t or x[i] > 0:\n    y[i] = x[i]"),
    ("t = 2.5", "y[i] = x[i] if i > t and t > 1 else 2.0"),
    ("t = False", "y[i] = x[i + 1] if t else 2.0"),
    ("t = False", "if t:\n    y[i] = x[i + 1]\ny[i] += 1"),
    ("t = False", "if not t and x[i] > 0:\n    y[i] = x[i]"),
    ("t = False; u = 0.5", "if x[i] > u:\n    if t:\n        y[i] = 1\n    elif u:\n        y[i] = 7\ny[i] += 1"),
    ("t = 2.5", "if i > t:\n    for k in range(i):\n        y[i] += x[k]"),
    ("t = -2.5", "if -i <= t or i == 1.0 or i == 0.5:\n    for k in range(i):\n        y[i] += x[k]"),
    ("t = float('inf')", "if 1.5 < i < t:\n    for k in range(i):\n        y[i] += x[k]"),
    ("", "if i in (1, N - 2):\n    for k in range(N):\n        y[i] += x[k]\nelse:\n    y[i] = 3"),
    ("", "if i not in (0, max(i, 2)) and x[i] < 9:\n    y[i] = x[i - 1]"),
    ("", "if i > max(2, N - 3):\n    y[i] = x[i - 3]"),
    ("t = True", "s = 0.0\nif t:\n    s = x[i]\ny[i] = s"),
]


@pytest.mark.parametrize(("before", "body"), LITERALS)
def test_conditions_on_literals(before: str, body: str) -> None:
    text = f"{before}\nfor i in range(N):\n{indent(body, '    ')}"
    _agrees_with_python(define("def f(N: int, x: 'f64[N]', y: 'f64[N]'):\n" + indent(text, "    ")))


PLACES = [  # statements before a loop, and its body
    ("two = 2", "left = max(i - two, 0)\ny[i] = x[left]"),
    ("", "a = max(i - 1, 0)\nb = min(a + 2, N - 1)\nc = abs(b - 3)\nif N > 3:\n    y[i] = x[b] - x[a] + x[c]"),
    ("", "a = max(i - 1, 0)\nb = min(i + 2, N)\nfor k in range(a, b):\n    y[i] += x[k]"),
    ("", "a = max(i - 1, 0)\nif x[a] > 0:\n    b = min(a + 1, N - 1)\n    y[i] = x[b] + a"),
    ("", "r = (i + 1) % N\ns = (r + 1) % N\ny[i] = x[s] - x[r]"),
    ("", "for k in range(min(max(i - 1, 0) + 3, N)):\n    y[i] += x[k]"),
    ("", "for k in range(max(i - 4, 0) - 0, N - max(1, i)):\n    y[i] += x[k]"),
    ("", "k = max(i - 1, 0)\ny[k] += x[i]\nr = (i + 2) % N\ny[r] = x[k]"),
    ("one = 1.0", "a = max(i - one, 0)\ny[i] = a"),
]


def test_truths_stay_truths() -> None:
    @nest
    def first(N: int, x: f32[Array, "N"], y: f32[Array, "N"]) -> None:
        stop = False
        count = False
        for i in range(N):
            stop = x[i] > 0.9 or stop
            count = count + 1
            y[i] = 1.0 if stop else count * 0.25

    dtypes = {t.name: t.dtype for t in first.program.with_role("temporary")}
    assert dtypes == {"stop": "bool", "count": "i64"}
    x, wanted = np.random.default_rng(0).random(30, np.float32), np.zeros(30, np.float32)
    first(30, x, wanted)
    np.testing.assert_array_equal(poly.compile(first)(x, 0 * x), wanted)


def test_literals_that_are_swapped_stay_weak() -> None:
    @nest(exact=True)
    def swapped(N: int, x: f32[Array, "N"], y: f32[Array, "N"]) -> None:
        a = 0.0
        b = 1.0
        for i in range(N):
            a, b = a + x[i], b * 0.5
            y[i] = a + b

    assert {t.name: t.dtype for t in swapped.program.with_role("temporary")} == {"a": "f32", "b": "f64"}
    x, wanted = np.random.default_rng(0).random(50, np.float32), np.zeros(50, np.float32)
    swapped(50, x, wanted)
    np.testing.assert_array_equal(poly.compile(swapped)(x, 0 * x), wanted)


@pytest.mark.parametrize(("before", "body"), PLACES)
def test_locals_that_name_places(before: str, body: str) -> None:
    text = f"{before}\nfor i in range(N):\n{indent(body, '    ')}"
    _agrees_with_python(define("def f(N: int, x: 'f64[N]', y: 'f64[N]'):\n" + indent(text, "    ")))


def test_the_work_of_reading_grows_as_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, walk = [0], ast.walk

    def counted(node: ast.AST) -> Iterator[ast.AST]:
        for found in walk(node):
            seen[-1] += 1
            yield found

    monkeypatch.setattr(ast, "walk", counted)
    for count in (20, 80):
        lines = [*(f"t{k} = x[i] + {k}.5" for k in range(count)), *(f"y[i] += t{k}" for k in range(count))]
        text = f"for i in range(N):\n{indent(chr(10).join(lines), '    ')}"
        seen.append(0)
        poly.nest(define("def f(N: int, x: 'f64[N]', y: 'f64[N]'):\n" + indent(text, "    ")))
    assert seen[2] < 5 * seen[1]


def _agrees_with_python(function: Callable[..., object]) -> None:
    program = poly.nest(function).program
    for n in (1, 6, 13):
        x, wanted = np.random.default_rng(n).integers(-8, 9, n) / 4, np.ones(n)  # sums are exact
        function(n, x, wanted)
        for given in (program, program.bind(N=n)):
            found: Any = poly.compile(given)(x, np.ones(n))
            np.testing.assert_array_equal(found, wanted)
