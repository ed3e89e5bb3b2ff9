"""Nests whose reads are guarded, at any sizes, have lanes: boundaries of stencils, wraps, windows."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from typing import Any

import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.frontend.nest import Array, Nest, f32, f64, i8, i32, nest
from poly.interp import run_program
from tests.machines import AVX2


@nest
def wrapped(N: int, M: int, g: i32[Array, "N, M"], o: i32[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            n = g[(i - 1) % N, j] + g[(i + 1) % N, j] + g[i, (j - 1) % M] + g[i, (j + 1) % M]
            o[i, j] = 1 if n == 3 or (n == 2 and g[i, j] == 1) else 0


@nest
def local_sum(N: int, M: int, g: i32[Array, "N, M"], o: i32[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            n = 0
            for a in range(-1, 2):
                for b in range(-1, 2):
                    if a != 0 or b != 0:
                        n += g[(i + a) % N, (j + b) % M]
            o[i, j] = n * 3 - g[i, j]


@nest
def stencil(N: int, M: int, g: f32[Array, "N, M"], o: f32[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            up = g[i - 1, j] if i > 0 else 0.0
            left = 1 / g[i, j - 1] if j > 0 else 0.0
            o[i, j] = up - 2 * left + (g[i + 1, j] if i < N - 1 else 1.0) + (g[i, j + 1] if j < M - 1 else 0.5)


@nest
def narrow(N: int, M: int, g: i8[Array, "N, M"], o: i8[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            o[i, j] = max(g[i, j], g[i, j - 1] if j > 0 else g[i, j])


@nest
def window(N: int, M: int, g: f64[Array, "N, M"], o: f64[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            for a in range(3):
                for b in range(3):
                    if 0 <= i + a - 1 < N:
                        o[i, j] += (a + 2 * b) * (g[i + a - 1, j + b - 1] if 0 <= j + b - 1 < M else 0.5)


@nest
def row_sums(N: int, M: int, g: f64[Array, "N, M"], o: f64[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            o[i, 0] += g[i, j] * (g[i, j - 2] if j > 1 else 0.5)


@nest
def triangle(N: int, M: int, g: f64[Array, "N, M"], o: f64[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(min(i + 1, M)):
            o[i, 0] += g[j, 0] + (g[j + 1, M - 1] if j < i else 0.0)


FUNCTIONS = (wrapped, local_sum, stencil, narrow, window, row_sums, triangle)


def arrays(function: Nest[..., None], *shape: int) -> dict[str, Any]:
    source = np.random.default_rng(0)
    dtypes = {t.name: numpy_dtype(t.dtype) for t in function.program.inputs}
    return {n: source.integers(1, 4, shape).astype(d) for n, d in dtypes.items()}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_at_any_sizes(function: Nest[..., None], threads: int) -> None:
    kernel = poly.compile(function.program, threads=threads)
    for shape in ((1, 1), (2, 3), (1, 40), (19, 17), (5, 67), (70, 8)):
        found, wanted = (arrays(function, *shape) for _ in range(2))
        function(*shape, **wanted)
        np.testing.assert_allclose(np.asarray(kernel(**found), "f8"), wanted["o"], rtol=1e-6, err_msg=str(shape))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_lanes(function: Nest[..., None]) -> None:
    assert " vector:" in str(poly.compile(function.program, target=AVX2, threads=1).loops)


@pytest.mark.parametrize(
    "condition", ["100000000*i <= 600000000 + j", "1000000000*i <= 3000000000 + j", "1000000000*i == 3000000000 + j",
     "1000000000*i == 3000000000"]
)
def test_conditions_in_lanes_whose_multiples_are_long(condition: str) -> None:
    """Up to 2^29 from lane to lane they are compared in 32 bits, clamped; not beyond."""
    program = poly.parse(f"y[j,i] = (x[j,i] if {condition} else 0.0)", x=(8, 16))
    x = np.arange(1, 129, dtype="f4").reshape(8, 16)
    kernel = poly.compile(program, target=AVX2)
    assert " vector:" in str(kernel.loops)
    np.testing.assert_array_equal(kernel(x), run_program(program, {"x": x})["y"])


def test_values_in_lanes_beyond_32_bits() -> None:
    program = poly.parse("y[j,i] = x[j,i] + i*1000000000 + j*(-2000000000)", dtypes="i64", x=(8, 16))
    x = np.arange(128, dtype="i8").reshape(8, 16)
    np.testing.assert_array_equal(poly.compile(program, target=AVX2)(x), run_program(program, {"x": x})["y"])
