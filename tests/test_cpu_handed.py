"""The policy for running sums along an axis that is not the last: short rows are handed on in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_handed import handed_of
from poly.scheduling.groups import groups_of
from tests.machines import AVX2

RUNNING = "Y[i,0,k] = X[i,0,k]\nY[i,j+1,k] = Y[i,j,k] + X[i,j+1,k]"
BACKWARDS = "Y[i,9,k] = X[i,9,k]\nY[i,8-j,k] = Y[i,9-j,k] * X[i,8-j,k] where j < 9"
SECOND = "Y[i,j,k] = X[i,j,k] where j < 2\nY[i,j+2,k] = Y[i,j,k] + max(Y[i,j+1,k], X[i,j+2,k])"
FIRST = "Y[0,k] = X[0,k]\nY[j+1,k] = Y[j,k] + X[j+1,k]"


def values(shape: tuple[int, ...], dtype: str = "f4") -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (RUNNING, (7, 10, 10)), (RUNNING, (3, 40, 16)), (RUNNING, (3, 17, 21)), (RUNNING, (2, 2, 8)),
        (RUNNING, (5, 35, 2)), (SECOND, (3, 21, 9)), (FIRST, (50, 11)),
    ],
)  # fmt: skip
def test_results_are_those_of_the_interpreter(text: str, shape: tuple[int, ...], threads: int) -> None:
    program = poly.parse(text, X=shape, Y=shape)
    kernel: Any = poly.compile(program, threads=threads)
    x = values(shape)
    np.testing.assert_array_equal(kernel(x), run_program(program, {"X": x})["Y"])
    assert " in reg" in str(kernel.loops)


def test_on_a_narrower_machine() -> None:
    program = poly.parse(RUNNING, X=(3, 19, 13), Y=(3, 19, 13))
    x = values((3, 19, 13))
    loops = schedule_for_cpu(program, AVX2).lower()
    assert "_r: f32[1, 9, 8] in reg" in str(loops)  # 8 steps and the one before: half of the registers
    np.testing.assert_array_equal(run_loops(loops, {"X": x})["Y"], np.cumsum(x, 1, dtype=np.float32))


@pytest.mark.parametrize("dtype", ["f8", "i4", "i8"])
def test_other_elements(dtype: str) -> None:
    shape, name = (4, 20, 9), {"f8": "f64", "i4": "i32", "i8": "i64"}[dtype]
    kernel: Any = poly.compile(poly.parse(RUNNING, dtypes={"X": name, "Y": name}, X=shape, Y=shape))
    x = (values(shape) * 100).astype(dtype)
    np.testing.assert_array_equal(kernel(x), np.cumsum(x, 1, dtype=dtype))
    assert " in reg" in str(kernel.loops)


@pytest.mark.parametrize(
    "text",
    [
        RUNNING.replace("Y[i,j,k] +", "Y[i,j,k+1] +").replace("X[i,j+1,k]", "X[i,j+1,k] where k < 9"),  # beside it
        RUNNING.replace("Y[i,j,k] +", "Y[i,j+1,k] +"),  # itself
        RUNNING.replace("X[i,j+1,k]", "X[i,k,j+1]"),  # along the steps
        BACKWARDS,
    ],
)
def test_what_is_something_else(text: str) -> None:
    program = poly.parse(text, X=(10, 10, 10), Y=(10, 10, 10))
    found = [g for g in groups_of(program) if handed_of(program, g, AVX2, 1) is not None]
    assert not found
    kernel: Any = poly.compile(program)
    x = values((10, 10, 10))
    np.testing.assert_array_equal(kernel(x, out=np.zeros_like(x)), run_program(program, {"X": x, "Y": 0 * x})["Y"])


def test_long_rows_go_through_memory() -> None:
    for row, expected in ((1, False), (2, True), (16, True), (17, False)):
        program = poly.parse(RUNNING, X=(3, 9, row), Y=(3, 9, row))
        found = [handed_of(program, g, AVX2, 1) for g in groups_of(program)]
        assert any(found) == expected
