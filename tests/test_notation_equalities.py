"""Sums over indices that equalities of their `where` give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program

N = 60
CASES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "y[p] += x[i] where p == i % 10": ("[i]: y[i - 10*(i // 10)] += x[i]", lambda x: x.reshape(6, 10).sum(0)),
    "y[p] += x[i] where p == i % 10 and 2 <= p < 5": (
        "[i]: ", lambda x: np.r_[0, 0, x.reshape(6, 10).sum(0)[2:5]],
    ),
    "y[p] max= x[i] where p == i // 10": ("[i]: y[(i // 10)] max= x[i]", lambda x: x.reshape(6, 10).max(1)),
    "y[p] += x[i] where i == 3*p + 1": ("[p]: y[p] += x[3*p + 1]", lambda x: x[1::3]),
    "y[p, r] += x[i]*x[r] where 10*p + r == i and 0 <= r < 10": (
        "[p, r]: y[p, r] += x[10*p + r]*x[r]", lambda x: x.reshape(6, 10) * x[:10],
    ),
    "y[i, k] += x[j] where i == j and j == k and j < 30": ("[k]: y[k, k] += x[k]", lambda x: np.diag(x[:30])),
    "y[p] += x[i]*f32(p) where p == i % 10": ("[i]: ", lambda x: x.reshape(6, 10).sum(0) * np.arange(10)),
    "y += x[i] where i == 7": ("[]: y[] += x[7]", lambda x: x[7]),
    "y[p] += x[i] where p == i % 10 or p == i % 5": (
        "[p, i]: ", lambda x: x.reshape(6, 10).sum(0) + np.r_[x.reshape(12, 5)[1::2].sum(0), np.zeros(5)],
    ),
    "S[p, i]: y[p] += x[i] where p == i % 10": ("S[p, i]: ", lambda x: x.reshape(6, 10).sum(0)),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_equalities(text: str) -> None:
    statement, numpys = CASES[text]
    program = poly.parse(text, x=(N,))
    assert statement in str(program).splitlines()[-1]
    x = np.arange(N, dtype="f4") - 20
    kernel: Any = poly.compile(program)
    np.testing.assert_array_equal(kernel(x), numpys(x))
    for each in (program, poly.parse(str(program))):
        np.testing.assert_array_equal(np.nan_to_num(run_program(each, {"x": x})["y"]), numpys(x))


def test_with_free_sizes_and_shared_loops() -> None:
    x = np.arange(N, dtype="f4")
    free: Any = poly.compile(poly.parse("y[p] += x[i] where p == i % 10", x=("n",), y=(10,)))
    np.testing.assert_array_equal(free(x), x.reshape(6, 10).sum(0))
    text = "for i: y[p] += x[i] where p == i % 10; z[i] = x[i]"
    assert "[i, p]: y[p] += x[i]" in str(poly.parse(text, x=(N,)))
