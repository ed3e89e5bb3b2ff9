"""Own vector math against exact values, in units in the last place, as the module's docstring states them."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mpmath
import numpy as np
import pytest

import poly
from poly.affine import Affine, var
from poly.codegen.function import lower
from poly.codegen.host import host_machine, machine_of_features
from poly.codegen.jit import assembly
from poly.codegen.kernel import Kernel
from poly.dtypes import numpy_dtype
from poly.expr import Read, apply
from poly.interp import run_program
from poly.loops import Compute, For, LoopTree
from poly.machine import Machine
from poly.program import Access, Tensor
from poly.scheduling.schedule import Schedule
from poly.settings import usable_cores

pytestmark = pytest.mark.usefixtures("no_cache")

SPECIALS = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1e38, -1e38, 1e-38,
    88.7, 88.8, -87.5, -103.9, -104.5, 1.5, -1.5, 1e10, -1e10,
]  # fmt: skip
BOUNDS_F32 = {
    "exp": 1.2, "log": 0.9, "log2": 1.1, "log10": 1.0, "tanh": 6.0, "sigmoid": 1.9, "erf": 5.9, "sin": 1.6, "cos": 1.6,
    "pow": 0.6,
}  # fmt: skip
BOUNDS_F64 = {
    "exp": 1.3, "log": 0.9, "log2": 1.1, "log10": 1.0, "sigmoid": 1.8, "tanh": 1.4, "erf": 1.3, "sin": 1.6, "cos": 1.6,
    "pow": 2.0,
}  # fmt: skip
EDGES = [5e-324, 1e-310, 1e308, 709.7, 709.8, -745.1, -745.2]
SLOW = "POLYLOOM_SLOW" in os.environ
EXACT = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
}


def run(name: str, *arrays: np.ndarray, vector: bool = True, machine: Machine | None = None) -> np.ndarray:
    """The compiled operator on arrays of one length."""
    dtype = {"float32": "f32", "float64": "f64"}[arrays[0].dtype.name]
    result = compiled(name, dtype, len(arrays[0]), len(arrays), vector, machine)(*arrays)
    assert isinstance(result, np.ndarray)
    return result


def compiled(
    name: str, dtype: str, n: int, count: int = 1, vector: bool = True, machine: Machine | None = None
) -> Kernel:
    """The operator on `count` arrays of n elements."""
    machine = machine or host_machine()
    lanes = machine.lanes(4 if dtype == "f32" else 8) if vector else 1
    inputs = [Tensor(f"x{k}", (Affine.of(n),), dtype, "input") for k in range(count)]
    output = Tensor("y", (Affine.of(n),), dtype, "output")
    index = lanes * var("o") + var("v")
    body = apply(name, *(Read(k) for k in range(count)))
    statement = Compute("s", (), Access("y", (index,)), tuple(Access(t.name, (index,)) for t in inputs), body)
    inner = For("v", (Affine.of(0),), (Affine.of(lanes), n - lanes * var("o")), (statement,), kind="vector")
    outer = For("o", (Affine.of(0),), (Affine.of(-(-n // lanes)),), (inner,))
    return Kernel(LoopTree(name, (*inputs, output), (outer,)), machine, inputs, [output])


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


def strata(dtype: str, each: int) -> np.ndarray:
    """Numbers of every sign and exponent, denormals, infinities and NaN included, `each` with random mantissas."""
    rng = np.random.default_rng(7)
    bits, mantissa = ("u4", 23) if dtype == "f32" else ("u8", 52)
    exponents = np.arange(1 << (8 * int(bits[1]) - mantissa), dtype=bits) << np.array(mantissa, bits)
    fractions = rng.integers(0, 1 << mantissa, (each, len(exponents)), dtype=bits)
    fractions[:2] = [[0], [(1 << mantissa) - 1]]
    return (exponents + fractions).ravel().view("f4" if dtype == "f32" else "f8")


def samples(name: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    match name:
        case "exp" | "sigmoid":
            return rng.uniform(-110, 90, n)
        case "log" | "log2" | "log10":
            return rng.uniform(0.5, 2, n)
        case "tanh" | "erf":
            return np.concatenate([rng.uniform(-10, 10, n), rng.uniform(-1.2, 1.2, n)])
        case _:
            near = rng.integers(1, 2**20, n // 4) * (math.pi / 2)  # where most digits cancel
            return np.concatenate([rng.uniform(-10, 10, n), rng.uniform(-1e6, 1e6, n), near])


def check_f32(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        other = np.flatnonzero(~are_near(found, rounded, math.floor(BOUNDS_F32[name] - 0.5)))
        found, expected, rounded = found[other], expected[other], rounded[other]
        error = np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(rounded)).astype(np.float64)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert error[finite].max(initial=0) <= BOUNDS_F32[name]
    numbers = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(rounded[numbers]))


def are_near(found: np.ndarray, rounded: np.ndarray, steps: int) -> np.ndarray:
    """Which f32 are the same, or finite and no more than so many steps apart: bits tell it without a division."""
    left, right = found.view(np.int32), rounded.view(np.int32)
    if steps == 0:
        return left == right
    finite = np.maximum(left & 0x7FFFFFFF, right & 0x7FFFFFFF) < 0x7F800000
    return (left == right) | (((left - right + steps).view(np.uint32) <= 2 * steps) & finite)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_what_is_near(steps: int) -> None:
    edges = [0, -0.0, 1e-45, -1e-45, 7e-45, 1, 1 + 2**-23, 1 + 2**-22, -1, 3.4028235e38, np.inf, -np.inf, np.nan, -3e38]
    left, right = (a.ravel() for a in np.meshgrid(*[np.array(edges, "f4")] * 2))
    with np.errstate(all="ignore"):
        within = np.abs(left.astype("f8") - right) <= steps * np.spacing(np.minimum(np.abs(left), np.abs(right)))
    same = left.view("u4") == right.view("u4")
    near = within & np.isfinite(left) & np.isfinite(right) & (np.signbit(left) == np.signbit(right))
    np.testing.assert_array_equal(are_near(left, right, steps), same | near)


@pytest.mark.parametrize("name", [n for n in BOUNDS_F32 if n != "pow"])
@pytest.mark.parametrize("vector", [True, False])
def test_f32(name: str, vector: bool) -> None:
    x = np.concatenate([samples(name, 20000).astype("f4"), strata("f32", 64), np.array(SPECIALS, "f4")])
    check_f32(name, run(name, x, vector=vector), reference(name, x))


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_without_a_table(name: str) -> None:
    """On a machine whose vectors choose from no table."""
    host = host_machine()
    features = tuple(f"-{f}" if f.startswith("avx") and f != "avx" else f for f in host.engines[0].features)
    machine = machine_of_features(host.cpu, features, host.triple, {1: 1 << 15, 2: 1 << 19}, 1, 3000)
    x = np.concatenate([samples(name, 2000).astype("f4"), strata("f32", 8), np.array(SPECIALS, "f4")])
    check_f32(name, run(name, x, machine=machine), reference(name, x))


@pytest.mark.parametrize("lanes", [1, 4, 16, 64])
def test_a_table_on_wide_vectors(lanes: int) -> None:
    features = ("avx512f", "avx512vl", "avx512bw", "avx512dq", "fma")
    machine = machine_of_features("skylake-avx512", features, "x86_64-unknown-linux-gnu", {1: 1 << 15}, 1, 3000)
    schedule = Schedule(poly.parse("y[i] = exp(x[i])", x=(256,)))
    if lanes > 1:
        schedule = schedule.tile(i=lanes).vectorise("i.p")
    text = assembly(lower(schedule.lower(), machine, "entry").ir, machine)
    for instruction in ("vpermps", "vrangeps", "vscalefps"):
        assert sum(instruction in line and "zmm" in line for line in text.splitlines()) == max(1, lanes // 16)


def test_vectors_on_the_stack_lie_in_lines() -> None:
    """What registers do not hold crosses no line, whatever the caller's stack."""
    features = ("avx512f", "avx512vl", "avx512bw", "avx512dq", "fma")
    machine = machine_of_features("skylake-avx512", features, "x86_64-unknown-linux-gnu", {1: 1 << 15}, 1, 3000)
    schedule = Schedule(poly.parse("y[i] = erf(x[i]) + log(x[i])", x=(256,))).tile(i=64).vectorise("i.p")
    lines = [
        line for line in assembly(lower(schedule.lower(), machine, "entry").ir, machine).splitlines() if "rsp)" in line
    ]
    kept = [line.split()[0] for line in lines if "zmm" in line and "vmov" in line]
    assert kept and set(kept) <= {"vmovaps", "vmovdqa64", "vmovapd"}


@pytest.mark.skipif(not SLOW, reason="every f32, a minute or two a function: POLYLOOM_SLOW=1")
@pytest.mark.parametrize("name", [n for n in BOUNDS_F32 if n != "pow"])
def test_every_f32(name: str) -> None:
    """Against our own in f64, which are checked by themselves: numpy's take far longer."""
    size = 1 << 16  # what all arrays of it need stays in the caches of a core
    kernel, wide = compiled(name, "f32", size), compiled(name, "f64", size)

    def part(start: int) -> None:
        for first in range(start, start + (1 << 26), size):
            x = np.arange(first, first + size, dtype=np.uint32).view(np.float32)
            with np.errstate(all="ignore"):
                found, expected = kernel(x), wide(x.astype(np.float64))
            assert isinstance(found, np.ndarray) and isinstance(expected, np.ndarray)
            check_f32(name, found, expected)

    with ThreadPoolExecutor(usable_cores()) as threads:
        assert [*threads.map(part, range(0, 1 << 32, 1 << 26))] == [None] * 64


@pytest.mark.skipif(not SLOW, reason="two minutes: POLYLOOM_SLOW=1")
def test_many_powers_f32() -> None:
    """Pairs of any bits, of base and exponent whose power is finite, and of bases near 1."""
    rng, n = np.random.default_rng(9), 1 << 18
    kernel = compiled("pow", "f32", n, 2)
    for _ in range(64):
        bits = rng.integers(0, 1 << 32, (2, n), dtype=np.uint32).view(np.float32)
        base = np.exp2(rng.uniform(-149, 128, n)).astype(np.float32)
        exponent = (rng.uniform(-150, 128, n) / np.log2(base.astype(np.float64))).astype(np.float32)
        near = (1 + rng.uniform(-1, 1, n) * np.exp2(rng.uniform(-23, -1, n))).astype(np.float32)
        steep = (rng.uniform(-150, 128, n) / np.log2(near + 1e-9)).astype(np.float32)
        for x, y in (bits, (base, exponent), (near, steep), (-base, np.rint(exponent))):
            found = kernel(x, y)
            assert isinstance(found, np.ndarray)
            check_f32("pow", found, reference("pow", x, y))


@pytest.mark.parametrize("name", list(BOUNDS_F32))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_lanes_and_scalars_give_the_same_bits(name: str, dtype: str) -> None:
    kind = "f4" if dtype == "f32" else "f8"
    x = np.concatenate([samples(name, 500).astype(kind), strata(dtype, 2), np.array(SPECIALS, kind)])
    operands = (x, np.roll(x, 3)) if name == "pow" else (x,)
    lanes, scalars = (run(name, *operands, vector=v).view("u" + kind[1]) for v in (True, False))
    undefined = np.isnan(lanes.view(kind)) & np.isnan(scalars.view(kind))
    np.testing.assert_array_equal(lanes[~undefined], scalars[~undefined])


@pytest.mark.parametrize("name", list(BOUNDS_F32))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_no_library(name: str, dtype: str) -> None:
    """All that a kernel calls is in its module, or an instruction."""
    operands = "x[i], x[i]" if name == "pow" else "x[i]"
    kernel = poly.compile(poly.parse(f"y[i] = {name}({operands})", dtypes={"x": dtype, "y": dtype}, x=(64,)))
    assert isinstance(kernel, Kernel)
    declared = [line for line in kernel.module.ir.splitlines() if line.startswith("declare")]
    assert [line for line in declared if "@llvm." not in line] == []


@pytest.mark.parametrize("vector", [True, False])
def test_erf_reaches_one(vector: bool) -> None:
    x = np.array([4, 4.2, 5, 1000, 3e38, np.inf] * 4, np.float32)
    np.testing.assert_array_equal(run("erf", x, vector=vector), np.ones_like(x))
    np.testing.assert_array_equal(run("erf", -x, vector=vector), -np.ones_like(x))


def test_pow_f32() -> None:
    rng, n = np.random.default_rng(3), 20000
    special = np.array(SPECIALS)
    x = [rng.uniform(0, 10, n), np.exp(rng.uniform(-80, 80, n)), rng.uniform(0.9, 1.1, n), -rng.uniform(0, 10, n)]
    y = [rng.uniform(-30, 30, n), rng.uniform(-1, 1, n), rng.uniform(-800, 800, n), rng.integers(-30, 30, n)]
    base = np.concatenate([*x, np.repeat(special, len(special))]).astype(np.float32)
    exponent = np.concatenate([*y, np.tile(special, len(special))]).astype(np.float32)
    check_f32("pow", run("pow", base, exponent), reference("pow", base, exponent))


@pytest.mark.parametrize("name", [n for n in BOUNDS_F64 if n != "pow"])
def test_f64(name: str) -> None:
    x = np.concatenate([samples(name, 700), strata("f64", 2)[::2], SPECIALS, EDGES])
    found, expected = run(name, x), reference(name, x)
    finite = np.isfinite(expected) & np.isfinite(x)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    with mpmath.workprec(1200 if name in ("sin", "cos") else 140):
        for argument, value in list(zip(x[finite], found[finite], strict=True))[::3]:
            a = mpmath.mpf(float(argument))
            exact = 1 / (1 + mpmath.exp(-a)) if name == "sigmoid" else EXACT[name](a)
            assert error_f64(value, exact) <= BOUNDS_F64[name], (argument, value)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider float to compare with")
@pytest.mark.parametrize("name", [n for n in BOUNDS_F64 if n not in ("pow", "erf")])
def test_many_f64(name: str) -> None:
    rng, n = np.random.default_rng(5), 1 << (18 if SLOW else 13)
    some = [rng.uniform(-a, a, n) for a in (1, 20, 740)] + [rng.uniform(0.4, 2, n)]
    some += [np.exp2(rng.uniform(a, b, n)) * rng.choice([-1, 1], n) for a, b in ((-60, 4), (-1074, 1023))]
    if name in ("sin", "cos"):
        near = np.rint(rng.uniform(1, 1e9, n)) * np.pi / 2
        some += [rng.uniform(-1e6, 1e6, n), np.exp2(rng.uniform(20, 60, n)), near]
    x = np.concatenate([np.abs(a) if name.startswith("log") else a for a in some])
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)
        small = np.exp(-np.abs(wide))
        exact = np.where(x >= 0, 1, small) / (1 + small) if name == "sigmoid" else getattr(np, name)(wide)
        rounded = exact.astype(np.float64)
        errors = np.abs(run(name, x) - exact) / np.spacing(np.abs(rounded))
    assert errors[np.isfinite(rounded)].max() <= BOUNDS_F64[name]


def error_f64(value: float, exact: Any) -> float:
    return abs(mpmath.mpf(float(value)) - exact) / float(np.spacing(abs(float(exact))))


def test_pow_f64() -> None:
    rng, special = np.random.default_rng(3), np.array(SPECIALS)
    base = np.concatenate([rng.uniform(0.1, 9, 600), np.exp(rng.uniform(-600, 600, 600)), rng.uniform(0.99, 1.01, 600)])
    exponent = np.concatenate([rng.uniform(-290, 290, 600), rng.uniform(-1.1, 1.1, 600), rng.uniform(-6e4, 6e4, 600)])
    found = run("pow", base, exponent)
    with mpmath.workprec(140):
        for a, b, value in zip(base, exponent, found, strict=True):
            exact = mpmath.power(mpmath.mpf(float(a)), mpmath.mpf(float(b)))
            assert error_f64(value, exact) <= BOUNDS_F64["pow"], (a, b, value)
    a, b = np.repeat(special, len(special)), np.tile(special, len(special))
    expected, found = reference("pow", a, b), run("pow", a, b)
    np.testing.assert_allclose(found, expected, rtol=4e-16)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no wider float to compare with")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 1.5, -1.5, -1, -2, 1, 2, 3, 4])
def test_known_exponents(exponent: float, dtype: str) -> None:
    """Also where a square or an inverse on the way is out of range, or loses its digits, and the result is not."""
    rng, wide = np.random.default_rng(3), np.float64 if dtype == "f32" else np.longdouble
    kind = np.float32 if dtype == "f32" else np.float64
    ends = np.log10([float(np.finfo(kind).smallest_subnormal), float(np.finfo(kind).max)])
    some = [10 ** rng.uniform(ends[0], ends[1], 4000), 10 ** rng.uniform(-1, 1, 2000)]
    x = np.concatenate([*some, -some[0], SPECIALS]).astype(kind)
    kernel: Any = poly.compile(poly.parse(f"y[i] = x[i]**{exponent}", x=x.shape, dtypes=dtype))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(wide), np.full(x.shape, wide(exponent)))  # of a scalar it is numpy's own choice
        rounded = exact.astype(kind)
        found = kernel(x)
        error = np.abs(found - exact) / np.spacing(np.abs(rounded)).astype(wide)
    finite, number = np.isfinite(rounded), ~np.isnan(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))
    assert error[finite].max() <= 2


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("exponent", [4, -2, 0.5, -0.5, 1.5, -1.5])
def test_known_exponents_of_special_values_are_those_of_c(exponent: float, dtype: str) -> None:
    """Also in the interpreters, where numpy takes roots of its own."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 4.0, -4.0, 0.25] * 7, numpy_dtype(dtype))
    with np.errstate(all="ignore"):
        want = np.power(x.astype("f8"), np.full(x.shape, float(exponent))).astype(x.dtype)
    program = poly.parse(f"y[i] = x[i]**{exponent}", x=x.shape, dtypes=dtype)
    kernel: Any = poly.compile(program)
    for found in (kernel(x), *(run_program(program, {"x": x}, vectorised=v)["y"] for v in (False, True))):
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(np.signbit(found[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize(("dtype", "wide", "bound"), [("f4", "f8", 2.3), ("f8", "g", 2.4)])
def test_atan2(dtype: str, wide: str, bound: float, vector: bool) -> None:
    rng, n, limits = np.random.default_rng(5), 20000, np.finfo(np.dtype(dtype))
    signs, few = rng.choice([-1, 1], n), [float(a) for a in (limits.max, limits.tiny, limits.smallest_subnormal, 1)]
    x = [rng.normal(size=n), np.exp2(rng.uniform(limits.minexp - 20, limits.maxexp, n)), rng.choice(few, n)]
    y = [x[0] * rng.uniform(-3, 3, n), np.exp2(rng.uniform(limits.minexp - 20, limits.maxexp, n)), rng.choice(few, n)]
    special = [a.ravel() for a in np.meshgrid(np.array(SPECIALS, dtype), np.array(SPECIALS, dtype))]
    for a, b in (*((p.astype(dtype), (q * signs).astype(dtype)) for p, q in zip(y, x, strict=True)), tuple(special)):
        found, exact = run("atan2", a, b, vector=vector), np.arctan2(a.astype(wide), b.astype(wide))
        rounded = exact.astype(dtype)
        number = ~np.isnan(rounded)
        np.testing.assert_array_equal(np.isnan(found), ~number)
        np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(rounded[number]))
        error = np.abs(found.astype(wide) - exact) / np.spacing(np.abs(rounded)).astype(wide)
        assert error[number].max() <= bound, (a[number][error[number].argmax()], b[number][error[number].argmax()])


def test_hard_arguments() -> None:
    """The f64 and f32 numbers that lie closest to a multiple of pi/2 (Muller, "Elementary Functions", table 11.1)."""
    x = np.array([6381956970095103 * 2.0**797, 16367173 * 2.0**72, 1e22, 2.0**1023, 2.0**31])
    for name in ("sin", "cos"):
        with mpmath.workprec(1300):
            exact = [EXACT[name](mpmath.mpf(float(a))) for a in x]
            errors = [error_f64(v, e) for v, e in zip(run(name, x), exact, strict=True)]
        assert max(errors) <= BOUNDS_F64[name]
    narrow = np.array([16367173 * 2.0**72, 1e22], np.float32)
    np.testing.assert_allclose(run("cos", narrow), np.cos(narrow.astype(np.float64)), rtol=2e-7)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("fma", [True, False])
def test_remainders_are_exact_to_the_sign_of_a_zero(dtype: str, fma: bool) -> None:
    rng, host = np.random.default_rng(5), host_machine()
    machine = host if fma else machine_of_features("x86-64", ("sse2",), host.triple, {}, 1, 1000)
    y = (rng.integers(1, 2**20, 4000) * 2.0 ** rng.integers(-140, -3, 4000)).astype(dtype)
    x = (y * rng.integers(-(2**10), 2**10, 4000)).astype(dtype)  # quotients at and beside integers
    x[::3] = np.nextafter(x[::3], np.asarray(rng.choice([-1e30, 1e30], x[::3].shape), dtype))
    y[::7] *= -1
    away = (rng.normal(size=4000).astype(dtype), (rng.normal(size=4000) * 1e-12).astype(dtype))  # large quotients
    special = [a.ravel() for a in np.meshgrid(np.array(SPECIALS, dtype), np.array(SPECIALS, dtype))]
    names: dict[str, Any] = {"fmod": np.fmod, "mod": np.remainder, "floor_div": np.floor_divide}
    for a, b in ((x, y), away, tuple(special)):
        for name, numpys in names.items():
            with np.errstate(all="ignore"):
                want = numpys(a, b)
            found: Any = run(name, a, b, machine=machine)
            np.testing.assert_array_equal(found, want, err_msg=name)
            number = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(want[number]), err_msg=name)
