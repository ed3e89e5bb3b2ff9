"""Registers that are written under conditions keep what earlier iterations left in them."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f32, f64, i64, nest
from poly.scheduling.schedule import Schedule


@nest
def held(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    s = 0.0
    for i in range(N):
        if i < 4:
            s = x[i]
        y[i] = s + x[i]


@nest
def sampled(N: int, x: i64[Array, "N"], y: i64[Array, "N"]) -> None:
    s = 0
    for i in range(N):
        if i % 3 == 0:
            s = x[i]
        y[i] = s * 2 + i


@nest
def held_in_rows(N: int, x: i64[Array, "N, N"], y: i64[Array, "N, N"]) -> None:
    s = 0
    for i in range(N):
        for j in range(N):
            if (i + j) % 4 == 0:
                s = x[i, j]
            y[i, j] = x[i, j] - s


@nest
def last_of_rows(N: int, x: i64[Array, "N, N"], y: i64[Array, "N"]) -> None:
    s = 0
    for i in range(N):
        for j in range(max(i - 1, 0), min(N, 3)):
            s = x[i, j]
        y[i] = s


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("given", [held, sampled, held_in_rows, last_of_rows], ids=lambda n: n.program.name)
def test_scalars_that_some_iterations_write(given: Nest, free: bool, threads: int) -> None:
    n, (x, y) = 13, [t for t in given.program.tensors if t.role != "temporary"]
    rng = np.random.default_rng(0)
    values = rng.integers(-99, 99, (n,) * x.rank).astype(x.dtype.replace("i", "int").replace("f", "float"))
    wanted = np.zeros((n,) * y.rank, values.dtype)
    given(n, values, wanted)
    program = given.program if free else given.program.bind(N=n)
    np.testing.assert_array_equal(poly.compile(program, threads=threads)(values, 0 * wanted), wanted)


@pytest.mark.parametrize(("rows", "columns"), [(7, 16), (5, 13)])
@pytest.mark.parametrize("mark", ["vectorise", "unroll"])
def test_lanes_that_some_iterations_write(mark: str, rows: int, columns: int) -> None:
    @nest
    def masked(N: int, M: int, x: f32[Array, "N, M"], s: f32[Array, "M"], y: f32[Array, "N, M"]) -> None:
        for i in range(N):
            for j in range(M):
                if i <= j % 5 or (i + j) % 3 == 0:
                    s[j] = x[i, j]
                y[i, j] = s[j] + x[i, j]

    program = masked.program.bind(N=rows, M=columns)
    schedule = Schedule(program).promote("s", None, "reg", users=["S0", "S1"])
    for loop in ("j", "st_s_reg.0"):
        schedule = getattr(schedule, mark)(loop)
    x = np.random.default_rng(1).random((rows, columns), np.float32)
    s, y = np.zeros(columns, np.float32), np.zeros_like(x)
    masked(rows, columns, x, s, y)
    found = poly.compile(program, schedule=schedule)(x, 0 * s, 0 * y)
    np.testing.assert_array_equal(found[0], s)
    np.testing.assert_array_equal(found[1], y)
