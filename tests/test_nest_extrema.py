"""Integers that a choice keeps the larger or smaller of, and locals that nothing depends on: programs and results."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f64, i32, i64, nest
from poly.interp import run_program


@nest
def by_if(N: int, K: int, x: i32[Array, "N, K"], z: i64[Array, "2, N"]) -> None:
    for i in range(N):
        high = x[i, 0]
        low = x[i, 0]
        for k in range(K):
            if x[i, k] > high:
                high = x[i, k]
            if low >= x[i, k]:
                low = x[i, k]
        z[0, i] = high
        z[1, i] = low


@nest
def by_choices(N: int, K: int, x: i32[Array, "N, K"], z: i64[Array, "2, N"]) -> None:
    for i in range(N):
        for k in range(K):
            z[0, i] = z[0, i] if x[i, k] * 3 - k <= z[0, i] else x[i, k] * 3 - k
            z[1, i] = x[i, k] if x[i, k] < z[1, i] else z[1, i]


@nest
def with_its_place(N: int, K: int, x: i32[Array, "N, K"], z: i64[Array, "2, N"]) -> None:
    for i in range(N):
        high = x[i, 0]
        place = 0
        for k in range(K):
            if x[i, k] > high:
                high = x[i, k]
                place = k
        z[0, i] = high
        z[1, i] = place


@nest
def without_its_place(N: int, K: int, x: i32[Array, "N, K"], z: i64[Array, "2, N"]) -> None:
    for i in range(N):
        high = x[i, 0]
        place = 0
        shown = 0
        for k in range(K):
            place = k if x[i, k] > high else place
            shown = place + shown
            high = x[i, k] if x[i, k] > high else high
        z[0, i] = high


@nest
def other_choices(N: int, K: int, x: i32[Array, "N, K"], z: i64[Array, "2, N"]) -> None:
    for i in range(N):
        for k in range(K):
            z[0, i] = x[i, k] if x[i, k] > 0 else z[0, i]
            z[1, i] = x[i, k] if z[0, i] > z[1, i] else z[1, i]


@pytest.mark.parametrize(("function", "updates", "locals_"), [
    (by_if, ["max", "min"], 2), (by_choices, ["max", "min"], 0), (with_its_place, [], 3),
    (without_its_place, ["max"], 1), (other_choices, [], 0),
])  # fmt: skip
def test_choices_of_integers(function: Nest[..., None], updates: list[str], locals_: int) -> None:
    program = function.program
    assert [s.combiner.symbol for s in program.statements if s.combiner] == updates
    assert sum(t.role == "temporary" for t in program.tensors) == locals_
    rng = np.random.default_rng(3)
    for n, k in ((5, 1), (7, 40), (40, 33)):
        x, z = rng.integers(-99, 99, (n, k)).astype("i4"), rng.integers(-99, 99, (2, n))
        wanted = z.copy()
        function(n, k, x, wanted)
        np.testing.assert_array_equal(run_program(program.bind(N=n, K=k), {"x": x, "z": z})["z"], wanted)
        for threads in (1, 2):
            np.testing.assert_array_equal(poly.compile(program.bind(N=n, K=k), threads=threads)(x, z), wanted)
        np.testing.assert_array_equal(poly.compile(program)(x, z), wanted)


def test_choices_of_floats_skip_nan_as_python_does() -> None:
    @nest
    def largest(N: int, x: f64[Array, "N"], z: f64[Array, "1"]) -> None:
        for i in range(N):
            if x[i] > z[0]:
                z[0] = x[i]

    x, wanted = np.array([1, np.nan, 3, 2, np.nan]), np.zeros(1)
    largest(5, x, wanted)
    np.testing.assert_array_equal(poly.compile(largest)(x, np.zeros(1)), wanted)
