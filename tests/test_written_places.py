"""Scattered sums have a loop along the elements that they write."""

from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.scheduling.written_places import with_written_places

CASES: dict[str, tuple[dict[str, Any], list[str] | None]] = {  # the subscripts that are written after the edit
    "s[i+j] += x[i] * y[j]": ({"x": (40,), "y": (9,)}, ["i"]),
    "s[i+j] max= x[i] + y[j]": ({"x": (9,), "y": (40,)}, ["j"]),
    "s[c,i+j] += x[c,i] * y[c,j]": ({"x": (3, 40), "y": (3, 7)}, ["c", "i"]),
    "s[i+a,j+b] += x[i,j] * w[a,b]": ({"x": (20, 30), "w": (3, 5)}, ["i", "j"]),
    "s[2*i+j] += x[i] * y[j]": ({"x": (40,), "y": (50,)}, ["j"]),
    "s[i-j+8] += x[i] * y[j]": ({"x": (40,), "y": (9,)}, ["i"]),
    "s[i+j] += A[i,j]": ({"A": (40, 20)}, ["j"]),  # along rows of A
    "s[i+j] += x[2*i] * y[2*j]": ({"x": (79,), "y": (79,)}, None),  # no neighbours
    "s[i+j] += x[i] * y[j] * f32(i)": ({"x": (40,), "y": (9,)}, None),
    "s[i+j] += x[i] * y[j] where j < 3": ({"x": (5,), "y": (9,)}, None),  # too short
    "s[i+j,c] += x[i,c] * y[j]": ({"x": (40, 16), "y": (9,)}, None),  # c is contiguous
    "s[i+j] += x[i] * y[j] where i >= j": ({"x": (40,), "y": (9,)}, None),  # no box
}


@pytest.mark.parametrize("text", CASES)
def test_written_places(text: str) -> None:
    shapes, subscripts = CASES[text]
    program = poly.parse(text, **shapes)
    placed = with_written_places(program)
    assert (placed is program) == (subscripts is None)
    if subscripts is not None:
        assert [str(i) for i in placed.statements[-1].write.index] == subscripts
    rng = np.random.default_rng(1)
    values = {n: rng.integers(-9, 9, shape).astype(np.float32) for n, shape in shapes.items()}
    expected = run_program(program, values)["s"]
    kernel = poly.compile(program)
    np.testing.assert_array_equal(run_program(placed, values)["s"], expected)
    np.testing.assert_array_equal(kernel(**values), expected)
    np.testing.assert_array_equal(poly.compile(program, schedule=kernel.schedule)(**values), expected)


def test_a_convolution_has_vectors() -> None:
    kernel = poly.compile(poly.parse("s[i+j] += x[i] * y[j]", x=(500,), y=(30,)))
    assert "vector" in str(kernel.loops).rsplit("init", 1)[-1]
