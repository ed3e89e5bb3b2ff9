"""Local scalars get an axis for each loop that they are private to; results are the function's own."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from typing import Any

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f64, i64, nest


@nest
def horner(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        acc = 0.0
        for k in range(K - 1, -1, -1):
            acc = acc * x[i] + c[k]
        y[i] = acc


@nest
def life(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], o: i64[Array, "N, K"]) -> None:
    for i in range(N):
        for j in range(K):
            n = 0
            for d in range(-1, 2):
                if 0 <= i + d < N:
                    n += 1 if x[i + d] > c[j] else 0
            o[i, j] = n * n


@nest
def triangle(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N, N"]) -> None:
    for i in range(1, N):
        for j in range(i - 1, -1, -2):
            low = x[i]
            low = min(low, x[j])
            high = x[j]
            high = max(high, x[i])
            y[i, j] = high - low * c[0]


@nest
def steps(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"]) -> None:
    for _ in range(K):
        for i in range(1, N - 1):
            mean = x[i - 1]
            mean = (mean + x[i + 1]) / 2
            x[i] = mean * 0.5 + x[i] / 2


@nest
def twice(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        s = x[i]
        s = s * 2
        y[i] = s + 1
    for k in range(K):
        for i in range(N):
            s = c[k]
            s = s * y[i]
            y[i] = s - x[i]


@nest
def carried(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N"]) -> None:
    last = 0.0
    for i in range(N):
        y[i] = last
        last = x[i]


@nest
def sometimes(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N"]) -> None:
    held = 0.5
    for i in range(N):
        if i % 3 == 0:
            held = x[i]
        y[i] = held


@nest
def after(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "N"]) -> None:
    s = 0.0
    for i in range(N):
        s = x[i]
    y[0] = s


@nest
def summed(N: int, K: int, x: f64[Array, "N"], c: f64[Array, "K"], y: f64[Array, "K"]) -> None:
    for i in range(N):
        for k in range(K):
            d = x[i]
            d = abs(d - c[k])
            y[k] += d


@pytest.mark.parametrize(("function", "ranks"), [
    (horner, {"acc": 1}), (life, {"n": 2}), (triangle, {"low": 2, "high": 2}),
    (steps, {"mean": 0}),  # every element meets its neighbours
    (twice, {"s": 1, "s_2": 1}),  # in the second nest along i alone: k goes over y again
    (carried, {"last": 0}), (sometimes, {"held": 0}), (after, {"s": 0}),
    (summed, {"d": 1}),  # along k: iterations of i meet in y
])  # fmt: skip
def test_scalars_have_the_axes_of_parallel_loops(function: Nest[..., None], ranks: dict[str, int]) -> None:
    program = function.program
    assert {t.name: t.rank for t in program.tensors if t.role == "temporary"} == ranks
    rng = np.random.default_rng(0)
    for n, k in ((1, 1), (2, 3), (9, 4), (33, 17)):
        sizes = {"N": n, "K": k}
        arrays: dict[str, Any] = {t.name: rng.uniform(1, 2, t.extents(sizes)) for t in program.inputs}
        if "o" in arrays:
            arrays["o"] = np.zeros((n, k), "i8")
        wanted = {name: array.copy() for name, array in arrays.items()}
        function.python(n, k, *[wanted[a] for a in ("x", "c", "y", "o") if a in wanted])
        for bound in (program, program.bind(**sizes)):
            kernel = poly.compile(bound)
            free: dict[str, Any] = {s: v for s, v in sizes.items() if s in bound.parameters and s not in bound.binding}
            found: Any = kernel(**arrays, **free)
            results = found if isinstance(found, tuple) else (found,)
            for tensor, array in zip(program.outputs, results, strict=True):
                np.testing.assert_allclose(array, wanted[tensor.name], rtol=1e-12, err_msg=tensor.name)


def test_iterations_with_scalars_have_lanes_and_threads() -> None:
    loops = str(poly.compile(horner.program.bind(N=20000, K=8), threads=2).loops)
    assert "parallel" in loops and "vector" in loops
