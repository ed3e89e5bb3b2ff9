"""Own vector math against exact values, in units in the last place, as the module's docstring states them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from poly.affine import Affine, var
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.expr import Read, apply
from poly.loops import Compute, For, LoopTree
from poly.program import Access, Tensor

SPECIALS = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1e38, -1e38, 1e-38,
    88.7, 88.8, -87.5, -103.9, -104.5, 1.5, -1.5, 1e10, -1e10,
]  # fmt: skip
BOUNDS_F32 = {"exp": 1.0, "log": 0.8, "tanh": 1.4, "sigmoid": 2.2, "erf": 1.1, "sin": 0.6, "cos": 0.6, "pow": 0.6}
BOUNDS_F64 = {"exp": 0.9, "log": 0.8, "sigmoid": 1.6, "tanh": 2.5, "erf": 1.5, "sin": 1.0, "cos": 1.0}
EXACT = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_CACHE", "off")


def run(name: str, *arrays: np.ndarray, vector: bool = True) -> np.ndarray:
    """The compiled operator on arrays of one length."""
    dtype, n = {"float32": "f32", "float64": "f64"}[arrays[0].dtype.name], len(arrays[0])
    lanes = host_machine().lanes(arrays[0].itemsize) if vector else 1
    inputs = [Tensor(f"x{k}", (Affine.of(n),), dtype, "input") for k in range(len(arrays))]
    output = Tensor("y", (Affine.of(n),), dtype, "output")
    index = lanes * var("o") + var("v")
    body = apply(name, *(Read(k) for k in range(len(arrays))))
    statement = Compute("s", (), Access("y", (index,)), tuple(Access(t.name, (index,)) for t in inputs), body)
    inner = For("v", (Affine.of(0),), (Affine.of(lanes), n - lanes * var("o")), (statement,), kind="vector")
    outer = For("o", (Affine.of(0),), (Affine.of(-(-n // lanes)),), (inner,))
    kernel = Kernel(LoopTree(name, (*inputs, output), (outer,)), host_machine(), inputs, [output])
    result = kernel(*arrays)
    assert isinstance(result, np.ndarray)
    return result


def reference(name: str, *arrays: np.ndarray) -> np.ndarray:
    """In f64, at least."""
    x = [a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        if name == "erf":
            return np.array([math.erf(v) for v in x[0]])
        if name == "sigmoid":
            e = np.exp(-np.abs(x[0]))
            return np.where(x[0] >= 0, 1 / (1 + e), e / (1 + e))
        return getattr(np, {"pow": "power"}.get(name, name))(*x)


def samples(name: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    match name:
        case "exp" | "sigmoid":
            x = rng.uniform(-110, 90, n)
        case "log":
            everything = rng.integers(1, 0x7F7FFFFF, n, dtype=np.uint32).view(np.float32)
            x = np.concatenate([everything, rng.uniform(0.5, 2, n)])
        case "tanh" | "erf":
            x = np.concatenate([rng.uniform(-10, 10, n), rng.uniform(-1.2, 1.2, n), rng.uniform(-1e-3, 1e-3, n)])
        case _:
            x = np.concatenate([rng.uniform(-10, 10, n), rng.uniform(-1e6, 1e6, n), rng.uniform(-1e30, 1e30, 64)])
    return x


def check_f32(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        error = np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(rounded)).astype(np.float64)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert error[finite].max() <= BOUNDS_F32[name]
    numbers = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(rounded[numbers]))


@pytest.mark.parametrize("name", [n for n in BOUNDS_F32 if n != "pow"])
@pytest.mark.parametrize("vector", [True, False])
def test_f32(name: str, vector: bool) -> None:
    x = np.concatenate([samples(name, 20000), SPECIALS]).astype(np.float32)
    check_f32(name, run(name, x, vector=vector), reference(name, x))


def test_pow_f32() -> None:
    rng, n = np.random.default_rng(3), 20000
    special = np.array(SPECIALS)
    x = [rng.uniform(0, 10, n), np.exp(rng.uniform(-80, 80, n)), rng.uniform(0.9, 1.1, n), -rng.uniform(0, 10, n)]
    y = [rng.uniform(-30, 30, n), rng.uniform(-1, 1, n), rng.uniform(-800, 800, n), rng.integers(-30, 30, n)]
    base = np.concatenate([*x, np.repeat(special, len(special))]).astype(np.float32)
    exponent = np.concatenate([*y, np.tile(special, len(special))]).astype(np.float32)
    check_f32("pow", run("pow", base, exponent), reference("pow", base, exponent))


@pytest.mark.parametrize("name", list(BOUNDS_F64))
def test_f64(name: str) -> None:
    x = np.concatenate(
        [samples(name, 700).astype(np.float64), SPECIALS, [5e-324, 1e-310, 1e308, 709.7, 709.8, -745.1, -745.2]]
    )
    found, expected = run(name, x), reference(name, x)
    finite = np.isfinite(expected) & np.isfinite(x)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    with mpmath.workprec(140):
        for argument, value in list(zip(x[finite], found[finite], strict=True))[::3]:
            a = mpmath.mpf(float(argument))
            exact = 1 / (1 + mpmath.exp(-a)) if name == "sigmoid" else EXACT[name](a)
            error = abs(mpmath.mpf(float(value)) - exact) / np.spacing(abs(float(exact)))
            assert error <= BOUNDS_F64[name], (argument, value)
