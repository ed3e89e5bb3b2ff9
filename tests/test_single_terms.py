"""Sums of one term: which become assignments, which stay, and that values stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.dtypes import numpy_dtype
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu_program import for_cpu
from poly.scheduling.single_terms import without_single_terms

PRODUCT = "y[i, j] += x[i, k]*w[k, j] where 0 <= k < 1"
SUMS = {  # text of the sum, shapes
    "outer product": (PRODUCT, {"x": (13, 1), "w": (1, 37)}),
    "products": ("y[i, j] *= x[i, k]*w[k, j]", {"x": (13, 1), "w": (1, 37)}),
    "largest": ("y[i, j] max= x[i, k]*w[k, j]", {"x": (13, 1), "w": (1, 37)}),
    "one of many": ("y[i, j] += x[i, k]*w[k, j] where 3 <= k < 4 and 0 <= i < 13", {"x": (13, 5), "w": (5, 37)}),
    "window of one": ("y[c, i] += w[c, d]*x[c, i+d]", {"w": (3, 1), "x": (3, 19)}),
    "index as a value": ("y[i] += x[i, k]*f32(k + 2) where 4 <= k < 5", {"x": (13, 6)}),
    "one element": ("y[i] += x[i]", {"x": (1,)}),
}
LEFT = {
    "two terms": ("y[i, j] += x[i, k]*w[k, j]", {"x": (13, 2), "w": (2, 37)}),
    "a diagonal": ("y[i, i] += x[i, k]", {"x": (13, 1)}),
    "a diagonal beside": ("y[i, j, i] += x[i, j, k]", {"x": (13, 3, 1)}),
    "a steeper line": ("y[2*i, i] += x[i, k]", {"x": (13, 1)}),
    "each second element": ("y[2*i] += x[i, k]", {"x": (13, 1)}),
    "a bias before": ("inout y: f32[13, 37]; y[i, j] += x[i, k]*w[k, j]", {"x": (13, 1), "w": (1, 37)}),
    "seen in between": ("t[i] = 0\nz[i] = t[i] + x[i, 0]\nt[i] += x[i, k]\ny[i] = t[i]", {"x": (13, 1)}),
    "begun in parts": ("y[i] = 0 where 0 <= i < 5\ny[i] = 0 where 5 <= i < 13\ny[i] += x[i, k]", {"x": (13, 1)}),
}


def parsed(text: str, shapes: dict[str, tuple[int, ...]], dtype: str = "f32") -> Program:
    return poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)


def given(program: Program, odd: bool = False) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(3), dict[str, np.ndarray]()
    for t in (t for t in program.tensors if t.role == "input"):
        found[t.name] = random.integers(-3, 4, t.extents(program.binding)).astype(numpy_dtype(t.dtype))
        if odd:
            np.put(found[t.name], range(0, found[t.name].size, 3), (np.inf, np.nan, -0.0, -np.inf))
    return found


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i8"])
@pytest.mark.parametrize("what", SUMS)
def test_sums_of_one_term_are_assignments_of_the_same_values(what: str, dtype: str) -> None:
    text, shapes = SUMS[what]
    program = parsed(text.replace("f32(", f"{dtype}("), shapes, dtype)
    single = without_single_terms(program)
    assert [s.combiner for s in single.statements] == [None]
    arrays = given(program, odd=dtype == "f32")
    old, new = (run_program(p, arrays)["y"] for p in (program, single))
    np.testing.assert_array_equal(old, new)
    np.testing.assert_array_equal(old, poly.compile(program)(**arrays))


@pytest.mark.parametrize("what", LEFT)
def test_other_sums_stay(what: str) -> None:
    program = parsed(*LEFT[what])
    assert without_single_terms(program) is program


def test_the_policies_of_a_core_see_the_assignment() -> None:
    edited = for_cpu(parsed(*SUMS["outer product"]), (), host_machine(), 1)
    assert [s.combiner for s in edited.statements] == [None]
