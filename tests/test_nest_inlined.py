"""Local scalars in their readers' place: which are, and results are the function's own."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from typing import Any

import numpy as np
import pytest

import poly
from poly.frontend.nest import Array, Nest, f32, f64, i32, nest
from poly.interp import run_program


@nest
def distances(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        s = 0.0
        for k in range(K):
            d = x[i, k] - y[k]
            s += d * d
        z[i] = s


@nest
def outer(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(K):
            d = z[i] - y[j]  # with axes it would be larger than z and y
            for k in range(3):
                x[i, j] = x[i, j] * d + k


@nest
def scaled(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        h = z[i] * 2
        for k in range(K):
            x[i, k] += h * y[k]


@nest
def swapped(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        for k in range(K):
            old = x[i, k]
            x[i, k] = y[k]
            z[i] += old


@nest
def own(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        for k in range(K):
            d = z[i] * y[k]
            z[i] += d


@nest
def shifted(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(1, N):
        a = z[i - 1]
        b = a * 0.5 + z[i]
        z[i] = b - a


@nest
def rounded(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        for k in range(K):
            low: f32 = x[i, k] * y[k]
            part: i32 = low * 10
            x[i, k] = part * 0.5


@nest(exact=True)
def exact(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        for k in range(K):
            p = x[i, k] * y[k]
            z[i] += p


@nest
def sometimes(N: int, K: int, x: f64[Array, "N, K"], y: f64[Array, "K"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        last = y[0]
        for k in range(K):
            if k > 1:
                last = x[i, k]
            z[i] += last


@pytest.mark.parametrize(("function", "left"), [
    (distances, ["s"]), (outer, []), (scaled, ["h"]), (swapped, ["old"]), (own, ["d"]), (shifted, []),
    (exact, []), (sometimes, ["last"]),
])  # fmt: skip
def test_scalars_are_put_in_place(function: Nest[..., None], left: list[str]) -> None:
    program = function.program
    assert [t.name for t in program.tensors if t.role == "temporary"] == left
    rng = np.random.default_rng(0)
    for n, k in ((1, 1), (2, 3), (9, 4), (20, 17)):
        sizes = {"N": n, "K": k}
        arrays: dict[str, Any] = {"x": rng.uniform(1, 2, (n, k)), "y": rng.uniform(-1, 1, k), "z": rng.uniform(1, 2, n)}
        wanted = {name: array.copy() for name, array in arrays.items()}
        with np.errstate(all="ignore"):
            function.python(n, k, wanted["x"], wanted["y"], wanted["z"])
        given = {t.name: arrays[t.name] for t in program.inputs}
        bound = program.bind(**sizes)
        kernel = poly.compile(bound)
        found: Any = kernel(**given)
        results = found if isinstance(found, tuple) else (found,)
        for tensor, array in zip(program.outputs, results, strict=True):
            tolerance = 0 if function is exact else 1e-12
            np.testing.assert_allclose(array, wanted[tensor.name], rtol=tolerance, atol=tolerance)
        kept: dict[str, Any] = run_program(bound, given)
        for tensor in program.outputs:
            np.testing.assert_allclose(kept[tensor.name], wanted[tensor.name], rtol=1e-12)


def test_a_value_is_rounded_as_its_scalar() -> None:
    assert not [t for t in rounded.program.tensors if t.role == "temporary"]
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-9, 9, (7, 5)), rng.uniform(-9, 9, 5)
    wanted = ((x * y).astype("f4") * np.float32(10)).astype("i4") * 0.5
    found: Any = poly.compile(rounded.program.bind(N=7, K=5))(x, y, np.zeros(7))
    np.testing.assert_array_equal(found, wanted)
