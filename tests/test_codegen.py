"""Loop trees to native code: every construct against the interpreter of loop trees or numpy, and what is refused."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import poly
from poly.affine import Affine, Constraint, var
from poly.codegen.function import lower
from poly.codegen.host import cache_sizes, host_machine, machine_of_features
from poly.codegen.jit import assembly, compile_object
from poly.codegen.kernel import Kernel
from poly.dtypes import numpy_dtype
from poly.errors import Bug, MachineError, RunError, UnsupportedError
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, Read, apply, dtype_of, evaluate
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.loops import Alloc, Compute, External, For, LoopTree, Node, Sync
from poly.machine import Machine
from poly.program import Access, Layout, ReadIndex, Tensor
from poly.scheduling.lowering import lower as lower_schedule
from tests.loop_trees import Case, at, cases, compute, inside, loop, tensor

pytestmark = pytest.mark.usefixtures("own_cache")

HOST = host_machine()
X86_64 = pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="the host is no x86-64")
LANES = HOST.lanes(4)
MULTIPLY = apply("mul", Read(0), Read(1))
PLAIN = ["f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"]


def emit(tree: LoopTree, machine: Machine, entry: str) -> str:
    return lower(tree, machine, entry).ir


def kernel_of(tree: LoopTree, threads: int = 1, machine: Machine = HOST) -> Kernel:
    inputs = [t for t in tree.tensors if t.role in ("input", "inout")]
    return Kernel(tree, machine, inputs, [t for t in tree.tensors if t.role in ("output", "inout")], threads=threads)


def check(tree: LoopTree, *arrays: np.ndarray, sizes: dict[str, int] | None = None, threads: int = 1) -> np.ndarray:
    """Run and compare with the interpreter, exactly; gives the output."""
    kernel = kernel_of(tree, threads)
    found = kernel(*arrays)
    assert isinstance(found, np.ndarray)
    named = {t.name: a for t, a in zip(kernel.inputs, arrays, strict=True)}
    np.testing.assert_array_equal(found, run_loops(tree, named, sizes=sizes)[kernel.outputs[0].name])
    return found


def plain(array: object) -> np.ndarray:
    assert isinstance(array, np.ndarray)
    return array


def integers(*shape: int, dtype: str = "f32", low: int = -4, high: int = 5) -> np.ndarray:
    return np.random.default_rng(5).integers(low, high, shape).astype(numpy_dtype(dtype))


# -- matrix products


def matrices(m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    return tensor("A", m, k, role="input"), tensor("B", k, n, role="input"), tensor("C", m, n, role="output")


def plain_product(m: int, n: int, k: int) -> LoopTree:
    zero = compute("zero", at("C", "i", "j"), [], Const(0.0))
    update = compute("update", at("C", "i", "j"), [at("A", "i", "k"), at("B", "k", "j")], MULTIPLY, "+")
    body = loop("i", 0, m, loop("j", 0, n, zero, loop("k", 0, k, update)), kind="parallel")
    return LoopTree("product", matrices(m, n, k), (body,))


def tiled_product(m: int, n: int, k: int, rows: int = 6, vectors: int = 2) -> LoopTree:
    """C in registers, tile heights balanced over the rows, a narrower panel of columns at the edge."""

    def tile(top: Affine, height: int, left: Affine, width: int) -> Node:
        def lanes(*body: Node) -> For:
            inner = loop("v", 0, [LANES, width - LANES * var("q")], *body, kind="vector")
            return loop("q", 0, -(-width // LANES), inner, kind="unroll")

        column = LANES * var("q") + var("v")
        zero = loop("u", 0, height, lanes(compute("zero", at("Cr", "u", column), [], Const(0.0))), kind="unroll")
        load_b = lanes(compute("load_b", at("Br", column), [at("B", "k", left + column)], Read(0)))
        load_a = compute("load_a", at("Ar", 0), [at("A", top + var("u"), "k")], Read(0))
        update = compute("update", at("Cr", "u", column), [at("Ar", 0), at("Br", column)], MULTIPLY, "+")
        fma = loop("u", 0, height, Alloc(tensor("Ar", 1, space="reg"), (load_a, lanes(update))), kind="unroll")
        copy = compute("copy", at("C", top + var("u"), left + column), [at("Cr", "u", column)], Read(0))
        save = loop("u", 0, height, lanes(copy), kind="unroll")
        reduction = loop("k", 0, k, Alloc(tensor("Br", width, space="reg"), (load_b, fma)))
        return Alloc(tensor("Cr", height, width, space="reg"), (zero, reduction, save))

    def panel(left: Affine, width: int) -> list[Node]:
        count = -(-m // rows)
        low, tall = m // count, m % count
        top = [loop("t", 0, tall, tile((low + 1) * var("t"), low + 1, left, width))] if tall else []
        return [*top, loop("t", 0, count - tall, tile(low * var("t") + tall * (low + 1), low, left, width))]

    width = vectors * LANES
    body: list[Node] = (
        [loop("p", 0, n // width, *panel(width * var("p"), width), kind="parallel")] if n >= width else []
    )
    body += panel(Affine.of(n // width * width), n % width) if n % width else []
    return LoopTree("tiled_product", matrices(m, n, k), tuple(body))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_plain_product(threads: int) -> None:
    a, b = integers(7, 5), integers(5, 13)
    np.testing.assert_array_equal(check(plain_product(7, 13, 5), a, b, threads=threads), a @ b)


@pytest.mark.parametrize("shape", [(6, 16, 4), (13, 37, 5), (1, 1, 1), (5, 8, 3), (20, 33, 2), (7, 3, 9)])
def test_tiled_product(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = integers(m, k), integers(k, n)
    np.testing.assert_array_equal(check(tiled_product(m, n, k), a, b), a @ b)
    found = kernel_of(tiled_product(m, n, k), threads=2)(a, b)
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.skipif("fma" not in HOST.engines[0].features, reason="the host has no fused multiply-add")
def test_register_tile_has_no_spills() -> None:
    assembly = kernel_of(tiled_product(12, 64, 128)).asm
    body = assembly[assembly.index("0.body:") : assembly.index(".size")]
    loops = [b for b in re.split(r"^\.LBB\w+:", body, flags=re.M) if "vfmadd" in b]
    hot = re.split(r"\n\tj\w+\t", max(loops, key=lambda b: b.count("vfmadd")))[0]
    assert len(re.findall(r"vfmadd\w+ps\s+.*[yz]mm", hot)) == 12
    assert "%rsp" not in hot and "%rbp" not in hot
    assert not re.search(r"vmov[au]ps\s+%[yz]mm\d+, .*\(", hot)  # nothing is stored
    assert "imul" not in hot and "lea" not in hot


def test_contraction_is_a_flag() -> None:
    def ir(contract: bool, summed: bool = False) -> str:
        body = apply("neg", MULTIPLY) if summed else apply("add", MULTIPLY, Read(2))
        reads = [at(n, "i") for n in "abc"]
        statement = compute("s", at("y", "i"), reads, body, "+" if summed else None, contract=contract)
        names = [tensor(n, 8, role="input") for n in "abc"]
        tree = LoopTree("f", (*names, tensor("y", 8, role="output")), (loop("i", 0, 8, statement),))
        return emit(tree, machine_of_features("haswell", ("avx", "avx2", "fma"), HOST.triple, {}, 1, 1000), "f")

    for summed in (False, True):  # y += -(a*b) as well
        assert "llvm.fma" in ir(True, summed) and "llvm.fma" not in ir(False, summed)


# -- operators and conversions


def samples(dtype: str, count: int = 48) -> np.ndarray:
    rng, kind = np.random.default_rng(1), numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype[0] == "f":
        x = (rng.normal(size=count) * 10).astype(kind)
        x[:10] = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 2.5, -2.5]
    else:
        limits = np.iinfo(kind)  # type: ignore[type-var]
        x = rng.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
        x[:5] = [0, 1, limits.max, limits.min, limits.max if limits.min == 0 else -1]
        x[5:20] = rng.integers(0, 10, 15)
    return x


def pairs(a: np.ndarray, arity: int) -> list[np.ndarray]:
    """The samples, and permutations of them, so that special values meet."""
    rng = np.random.default_rng(2)
    return [a, *(rng.permutation(a) for _ in range(arity - 1))]


def elementwise(body: Expr, tensors: list[Tensor], out: str, lanes: int, count: int = 48) -> LoopTree:
    def statement(index: Affine) -> Compute:
        return compute("s", at("y", index), [at(t.name, index) for t in tensors], body)

    y = tensor("y", count, dtype=out, role="output")
    if not lanes:
        return LoopTree("f", (*tensors, y), (loop("i", 0, count, statement(var("i"))),))
    inner = loop("v", 0, [lanes, count - lanes * var("o")], statement(lanes * var("o") + var("v")), kind="vector")
    return LoopTree("f", (*tensors, y), (loop("o", 0, -(-count // lanes), inner),))


def operator_cases(dtype: str) -> list[tuple[str, Expr, str, np.ndarray]]:
    """Operator, body over reads, result dtype and numpy's result, where numpy has the operator."""
    x = pairs(samples(dtype), 3)
    found: list[tuple[str, Expr, str, np.ndarray]] = []
    for name, operator in OPERATORS.items():
        arrays = x[: operator.arity]
        reads: Sequence[Expr] = [Read(k) for k in range(operator.arity)]
        if name == "select":
            arrays, reads = [samples("bool"), *x[1:]], [Read(3), Read(1), Read(2)]
        if name == "pow" and dtype[0] in "iu":
            arrays, reads = [x[0], np.abs(x[1]) % 70], [Read(0), Read(4)]
        body = apply(name, *reads)
        try:
            out = dtype_of(apply(name, *(Read(0) for _ in reads)), [dtype])
            with np.errstate(all="ignore"):
                expected = evaluate(apply(name, *(Read(k) for k in range(len(arrays)))), arrays, lambda _: 0)
        except Exception:
            continue  # numpy has no such operator on this dtype
        if out is not None and expected.dtype == numpy_dtype(out):
            found.append((name, body, out, expected))
    return found


@pytest.mark.parametrize("dtype", PLAIN)
def test_operators(dtype: str) -> None:
    rows = operator_cases(dtype)
    assert len(rows) >= 15
    x = pairs(samples(dtype), 3)
    exponent = np.abs(x[1]) % 70 if dtype[0] in "iu" else x[1]
    arrays = {"x0": x[0], "x1": x[1], "x2": x[2], "x3": samples("bool"), "x4": exponent}
    inputs = [tensor(n, 48, dtype="bool" if n == "x3" else dtype, role="input") for n in arrays]
    outputs = [tensor(f"y_{name}", 48, dtype=out, role="output") for name, _, out, _ in rows]
    for lanes in (1, HOST.lanes(numpy_dtype(dtype).itemsize), 7):
        index = lanes * var("o") + var("v")
        reads = [at(n, index) for n in arrays]
        statements = [compute(name, at(f"y_{name}", index), reads, body) for name, body, _, _ in rows]
        inner = loop("v", 0, [lanes, 48 - lanes * var("o")], *statements, kind="vector")
        tree = LoopTree("f", (*inputs, *outputs), (loop("o", 0, -(-48 // lanes), inner),))
        for (name, _, _, expected), found in zip(rows, kernel_of(tree)(*arrays.values()), strict=True):
            tolerance = {"f32": 5e-7, "f64": 1e-14}.get(dtype, 0.0) if name in TRANSCENDENTAL else 0.0
            np.testing.assert_allclose(
                plain(found), expected, rtol=tolerance, atol=0, err_msg=f"{name} of {dtype}, {lanes} lanes"
            )


TRANSCENDENTAL = {"exp", "log", "log2", "log10", "tanh", "sigmoid", "erf", "sin", "cos", "atan2", "pow"}


@pytest.mark.parametrize("source", PLAIN)
def test_conversions(source: str) -> None:
    arrays: list[np.ndarray] = []
    for target in PLAIN:
        x = samples(source)
        if source[0] == "f" and target[0] in "iu":
            x = np.nan_to_num(x, posinf=5, neginf=7) % 100 - (50 if target[0] == "i" else 0)
        arrays.append(x)
    inputs = [tensor(f"x_{t}", 48, dtype=source, role="input") for t in PLAIN]
    outputs = [tensor(f"y_{t}", 48, dtype=t, role="output") for t in PLAIN]
    for lanes in (1, 8):
        index = lanes * var("o") + var("v")
        statements = [compute(t, at(f"y_{t}", index), [at(f"x_{t}", index)], Cast(t, Read(0))) for t in PLAIN]
        inner = loop("v", 0, lanes, *statements, kind="vector")
        found = kernel_of(LoopTree("f", (*inputs, *outputs), (loop("o", 0, 48 // lanes, inner),)))(*arrays)
        for target, x, y in zip(PLAIN, arrays, found, strict=True):
            np.testing.assert_array_equal(
                y, evaluate(Cast(target, Read(0)), [x], lambda _: 0), err_msg=f"{source} to {target}"
            )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_compute_in_f32(dtype: str) -> None:
    kind, rng = numpy_dtype(dtype), np.random.default_rng(3)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3e-5, 1e-39, 60000, 1 / 3]
    x, y = (np.concatenate([special, rng.normal(size=37) * 9])[rng.permutation(48)].astype(kind) for _ in range(2))
    tensors = [tensor(n, 48, dtype=dtype, role="input") for n in ("x0", "x1")]
    for name in ("add", "sub", "mul", "div", "max", "min", "lt", "ne", "neg", "abs", "floor", "exp", "tanh", "sqrt"):
        operands = [x, y][: OPERATORS[name].arity]
        body = apply(name, *(Read(k) for k in range(len(operands))))
        with np.errstate(all="ignore"):
            expected = np.asarray(OPERATORS[name].evaluate(*(o.astype(np.float32) for o in operands)))
            expected = expected if expected.dtype == bool else expected.astype(kind)
        for lanes in (0, 7, 8):
            out = "bool" if expected.dtype == bool else dtype
            found = plain(kernel_of(elementwise(body, tensors[: len(operands)], out, lanes))(*operands))
            if name in TRANSCENDENTAL:
                ulps = np.abs(found.view(np.int16).astype(int) - expected.view(np.int16).astype(int))
                assert ulps[~np.isnan(expected)].max() <= 1
            else:
                wide = [a.astype(np.float64) for a in (found, expected)]  # of bf16, numpy does not see that NaN is NaN
                np.testing.assert_array_equal(*wide, err_msg=f"{name} of {dtype}, {lanes} lanes")
    for target in ("f32", "f64", "i32", "u8", "bool", "f16", "bf16"):
        source = np.nan_to_num(x.astype(np.float32), posinf=3, neginf=4) % 200
        found = plain(kernel_of(elementwise(Cast(target, Read(0)), tensors[:1], target, 8))(source.astype(kind)))
        np.testing.assert_array_equal(found, source.astype(kind).astype(numpy_dtype(target)))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "sqrt", "neg", "floor", "le"])
def test_any_bits_of_narrow_floats(dtype: str, name: str) -> None:
    """Also where the core computes in f16 itself; operands that are alike, too."""
    kind, rng = numpy_dtype(dtype), np.random.default_rng(7)
    bits = rng.integers(0, 1 << 16, 4096, dtype=np.uint16)
    near = np.where(rng.random(4096) < 0.5, bits ^ rng.integers(0, 64, 4096, dtype=np.uint16), rng.permutation(bits))
    operands = [b.view(kind) for b in (bits, near)][: OPERATORS[name].arity]
    tensors = [tensor(f"x{k}", 4096, dtype=dtype, role="input") for k in range(len(operands))]
    with np.errstate(all="ignore"):
        expected = np.asarray(OPERATORS[name].evaluate(*(o.astype(np.float32) for o in operands)))
        expected = expected if expected.dtype == bool else expected.astype(kind).astype(np.float32)
    body = apply(name, *(Read(k) for k in range(len(operands))))
    out = "bool" if expected.dtype == bool else dtype
    for lanes in (0, 32):
        found = plain(kernel_of(elementwise(body, tensors, out, lanes, 4096))(*operands)).astype(expected.dtype)
        np.testing.assert_array_equal(found, expected)
        known = ~np.isnan(expected) & (expected != 0)
        np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


@X86_64
@pytest.mark.parametrize(
    ("name", "halves"), [("add", True), ("div", True), ("max", True), ("lt", True), ("sqrt", True), ("exp", False)]
)
def test_f16_where_a_core_computes_in_it(name: str, halves: bool) -> None:
    features = ("fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512fp16")
    tensors = [tensor(n, 64, dtype="f16", role="input") for n in ("x0", "x1")][: OPERATORS[name].arity]
    body, out = apply(name, *(Read(k) for k in range(len(tensors)))), "bool" if name == "lt" else "f16"
    for has in (features, features[:-1]):
        core = machine_of_features("skylake-avx512", has, HOST.triple, {1: 32768}, 1, 1000)
        text = assembly(emit(elementwise(body, tensors, out, 32, 64), core, "f"), core)
        assert ("vcvtph2ps" not in text) == (halves and has is features)


@pytest.mark.parametrize("lanes", [0, 7, 8])
def test_f64_becomes_f16_in_one_rounding(lanes: int) -> None:
    """At ties between two f16 and beside them, where f32 would be the tie."""
    halves = np.arange(0, 0x7C00, 997, dtype=np.uint16).view(np.float16)
    ties = (halves.astype(np.float64) + np.nextafter(halves, np.float16(np.inf)).astype(np.float64)) / 2
    ends = [0, 5e-324, 2.0**-25, 2.0**-24 * 1.5, 65520.0, 65519.99999999999, 3.4e38, 1e300, np.inf]
    near = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), ends])
    x = np.concatenate([near, -near, np.ones(-2 * len(near) % 48)]).reshape(-1, 48)
    kernel = kernel_of(elementwise(Cast("f16", Read(0)), [tensor("x0", 48, dtype="f64", role="input")], "f16", lanes))
    with np.errstate(over="ignore"):
        for row in x:
            np.testing.assert_array_equal(plain(kernel(row)).view(np.uint16), row.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("source", ["f16", "f32", "f64", "bf16"])
@pytest.mark.parametrize("target", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_float_to_integer_saturates_on_every_level(source: str, target: str) -> None:
    around = [0.9, -0.9, -1.5, -129, 128, 255, 300.7, -300.7, 32768, -32769, 65504, -65504, 3e9, 2**31, 2**63, 2**64]
    with np.errstate(over="ignore"):
        values = [*around, np.nan, np.inf, -np.inf, 1e30, -1e30, 1, 0, -1]
        x = np.array(values * 2, np.float64).astype(numpy_dtype(source))
    limits = np.iinfo(numpy_dtype(target).name)
    wide = [int(np.clip(v, -1e25, 1e25)) if v == v else 0 for v in x.astype(np.float64).tolist()]
    want = [min(max(v, limits.min), limits.max) for v in wide]
    kernel = kernel_of(elementwise(Cast(target, Read(0)), [tensor("x", 48, dtype=source, role="input")], target, 8))
    assert plain(kernel(x)).tolist() == want
    program = poly.parse(f"y[i] = {target}(x[i])", x=(48,), dtypes={"x": source})
    assert run_program(program, {"x": x})["y"].tolist() == want
    assert run_loops(lower_schedule(poly.Schedule(program)), {"x": x})["y"].tolist() == want
    if source == "f32" and target != "u64":
        stream = poly.compile(program, target="s16")
        assert callable(stream) and plain(stream(x)).tolist() == want


@pytest.mark.parametrize(("target", "zero"), [("i8", -3), ("i8", 100), ("u8", 120), ("u8", 0), ("i16", 7), ("u16", 1)])
def test_what_is_rounded_to_short_integers(target: str, zero: int) -> None:
    """Ties to even before the shift, saturation behind it, NaN as 0, with bounds written out and without."""
    limits = np.iinfo(numpy_dtype(target).name)
    around = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, limits.max - zero + 0.5, limits.min - zero - 0.5, 254.5, -128.5]
    x = np.array([*around, np.nan, np.inf, -np.inf, 1e30, -1e30, 2**31, 8388608.5] * 3, np.float32)
    want = np.nan_to_num(np.clip(np.rint(x.astype(np.float64)) + zero, limits.min, limits.max), nan=0)
    for text in (f"round(x[i]) + {zero}", f"max(min(round(x[i]) + {zero}, {limits.max}.0), {limits.min}.0)"):
        program = poly.parse(f"y[i] = {target}({text})", x=(len(x),))
        assert plain(poly.compile(program)(x)).tolist() == want.tolist()
        assert run_program(program, {"x": x})["y"].tolist() == want.tolist()


@pytest.mark.parametrize("target", ["i8", "u8", "i16", "u16", "i32"])
def test_lanes_of_floats_become_integers_together(target: str) -> None:
    kernel = kernel_of(elementwise(Cast(target, Read(0)), [tensor("x", 48, dtype="f32", role="input")], target, 8))
    assert "cvttss2si" not in kernel.asm


@pytest.mark.parametrize(
    "body", [apply("sub", Const(2), Read(0)), apply("max", Read(0), Const(0)), apply("pow", Read(0), Const(3))]
)
def test_literals_take_their_neighbours_dtype(body: Apply) -> None:
    for dtype in ("f32", "f64", "i32"):
        x = np.abs(np.nan_to_num(samples(dtype), posinf=3, neginf=4)) % 10
        found = kernel_of(elementwise(body, [tensor("x", 48, dtype=dtype, role="input")], dtype, LANES))(x)
        np.testing.assert_allclose(plain(found), evaluate(body, [x], lambda _: 0), rtol=3e-7)


# -- loops, guards, addresses


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_random_trees_agree_with_the_interpreter(case: Case) -> None:
    expected = run_loops(case.tree, case.inputs, sizes=case.sizes)["Y"]
    for threads in (1, 2):
        kernel = kernel_of(case.tree, threads)
        found = np.empty(expected.shape, expected.dtype)
        arrays = case.inputs | {"Y": found}
        kernel.run([arrays[name].ctypes.data for name in kernel.module.tensors], case.sizes)
        np.testing.assert_array_equal(found, expected)


def test_convolution_with_padding_stride_and_dilation() -> None:
    n, c, size, out, taps = 2, 3, 11, 4, 3
    row, column = 2 * var("y") + 2 * var("r") - 1, 2 * (4 * var("xo") + var("x")) + var("s") - 1
    guard = [*inside(row, size), *inside(column, size)]
    reads = [at("X", "n", "c", row, column, guard=guard), at("W", "o", "c", "r", "s")]
    width = 6
    where = at("Y", "n", "o", "y", 4 * var("xo") + var("x"))
    zero, update = compute("zero", where, [], Const(0)), compute("update", where, reads, MULTIPLY, "+")

    def lanes(body: Node) -> Node:
        return loop("xo", 0, 2, loop("x", 0, [4, width - 4 * var("xo")], body, kind="vector"))

    def around(*body: Node) -> Node:
        return loop("n", 0, n, loop("o", 0, out, loop("y", 0, 4, *body)))

    taps_loop = loop("c", 0, c, loop("r", 0, taps, loop("s", 0, taps, lanes(update))))
    shapes = (tensor("X", n, c, size, size, role="input"), tensor("W", out, c, taps, taps, role="input"))
    tree = LoopTree("conv", (*shapes, tensor("Y", n, out, 4, width, role="output")), (around(lanes(zero), taps_loop),))
    check(tree, integers(n, c, size, size), integers(out, c, taps, taps))


@contextmanager
def before_a_closed_page(size: int) -> Generator[np.ndarray]:
    """The numbers 0 .. size - 1 as f32, and behind the last one a page that nobody may touch."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    base = np.frombuffer(mmap.mmap(-1, 2 * page), np.float32)
    end = ctypes.c_void_p(base.ctypes.data + page)
    assert libc.mprotect(end, ctypes.c_size_t(page), 0) == 0
    try:
        x = base[page // 4 - size : page // 4]
        x[:] = np.arange(size)
        yield x
    finally:
        libc.mprotect(end, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)


def test_guards_touch_nothing() -> None:
    """Beyond the tensor lies a page without access: a read there would end the process."""
    with before_a_closed_page(10) as x:
        index = LANES * var("o") + var("v") + 3
        read = at("x", index, guard=inside(index, 10), fill=-1)
        for kind in ("vector", "serial"):
            statement = compute("s", at("y", index - 3), [read], Read(0))
            tree = LoopTree(
                "edge",
                (tensor("x", 10, role="input"), tensor("y", 5 * LANES, role="output")),
                (loop("o", 0, 5, loop("v", 0, LANES, statement, kind=kind)),),
            )
            found = kernel_of(tree)(x)
            np.testing.assert_array_equal(found, [*range(3, 10), *[-1] * (5 * LANES - 7)])


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("lanes", range(LANES // 2 + 1, LANES + 1))
def test_every_second_element_of_fewer_than_all_lanes(lanes: int, phase: int) -> None:
    """Two whole vectors would reach beyond the row: a page without access follows."""
    size = 2 * lanes + phase
    with before_a_closed_page(size) as x:
        statement = compute("s", at("y", "v"), [at("x", 2 * var("v") + phase)], Read(0))
        shapes = (tensor("x", size, role="input"), tensor("y", lanes, role="output"))
        tree = LoopTree("pairs", shapes, (loop("v", 0, lanes, statement, kind="vector"),))
        kernel = kernel_of(tree)
        np.testing.assert_array_equal(kernel(x), np.arange(lanes) * 2 + phase)
        assert ("masked.load" in kernel.ir) == (lanes < LANES)  # of the second vector, what lies in the row


def test_complex_rows_with_a_gap_end_with_their_last_element() -> None:
    """Behind the last row of a view there need be no gap."""
    rows, columns, pitch = 4, LANES // 2 + 2, LANES + 7
    with before_a_closed_page(2 * ((rows - 1) * pitch + columns)) as x:
        pairs = x.view(np.complex64)
        view = np.lib.stride_tricks.as_strided(pairs, (rows, columns), (pitch * 8, 8))
        ones = np.ones((rows, 3), np.complex64)
        found = poly.einsum("ki,kj,jl->il", view, ones, np.eye(3, dtype=np.complex64))
        np.testing.assert_array_equal(found, np.repeat(view.sum(axis=0)[:, None], 3, axis=1))


@pytest.mark.parametrize("gap", [1, 2])
def test_windows_by_two_in_rows_with_a_gap_end_with_their_last_element(gap: int) -> None:
    rows, windows, size = 3, 4 * LANES, 3
    used = 2 * (windows - 1) + size
    with before_a_closed_page((rows - 1) * (used + gap) + used) as x:
        view = np.lib.stride_tricks.as_strided(x, (rows, windows, size), ((used + gap) * 4, 8, 4))
        np.testing.assert_array_equal(poly.einsum("awk->aw", view), view.sum(axis=2))


@pytest.mark.parametrize("gaps", [0, 1, 2])
def test_what_lanes_share_in_rows_with_a_gap(gaps: int) -> None:
    """Pieces of rows serve several columns, where memory has all of them."""
    rows, pitch = LANES // 4, 4
    with before_a_closed_page((rows - 1) * pitch + (1, 2, 4)[gaps - 1]) as x:
        view = np.lib.stride_tricks.as_strided(x, (rows, pitch), (4 * pitch, 4))
        statement = compute("s", at("y", "v"), [at("x", var("v") // 4, 0)], Read(0))
        source = replace(tensor("x", rows, pitch, role="input"), gaps=gaps)
        shapes = (source, tensor("y", LANES, role="output"))
        tree = LoopTree("rows", shapes, (loop("v", 0, LANES, statement, kind="vector"),))
        kernel = kernel_of(tree)
        np.testing.assert_array_equal(kernel(view), np.arange(LANES) // 4 * pitch)


@pytest.mark.parametrize("kind", ["serial", "vector"])
def test_triangle(kind: str) -> None:
    n = 13
    upper: list[Affine | int | str] = [LANES, var("i") + 1 - LANES * var("o")]
    column = LANES * var("o") + var("v")
    update = compute("update", at("y", "i"), [at("L", "i", column), at("x", column)], MULTIPLY, "+")
    zero = compute("zero", at("y", "i"), [], Const(0))
    inner = loop("o", 0, (var("i") + LANES) // LANES, loop("v", 0, upper, update, kind=kind))  # type: ignore[arg-type]
    shapes = (tensor("L", n, n, role="input"), tensor("x", n, role="input"), tensor("y", n, role="output"))
    check(LoopTree("triangle", shapes, (loop("i", 0, n, zero, inner),)), integers(n, n), integers(n))


@pytest.mark.parametrize("ends", [False, True])
def test_triangle_over_lanes(ends: bool) -> None:
    """The inner loop's bounds, or where it ends early, depend on the vector variable: it runs lane by lane."""
    update = compute("update", at("y", "i"), [at("L", "i", "j")], Read(0), "+")
    zero = compute("zero", at("y", "z"), [], Const(0))
    stop = var("i") + 1
    inner = replace(loop("j", 0, 8, update), ends=(stop,)) if ends else loop("j", 0, stop, update)
    body = loop("i", 0, 8, inner, kind="vector")
    assert body.one_by_one == "loop j inside is as long as the lane says"
    tree = LoopTree(
        "f", (tensor("L", 8, 8, role="input"), tensor("y", 8, role="output")), (loop("z", 0, 8, zero), body)
    )
    check(tree, integers(8, 8))


def test_floors_remainders_negative_and_steps() -> None:
    forms = [(7 * var("i") - 20) // 3, (5 - 3 * var("i")) % 7, (var("i") - 9) // 4, (var("i") - 9) % 8]
    index = sum(forms, Affine.of(40)) % 64
    statement = compute("s", at("y", "i"), [at("x", index)], Read(0))
    shapes = (tensor("x", 64, role="input"), tensor("y", 40, role="output"))
    for kind in ("serial", "vector"):
        pieces = loop("i", "o", [var("o") + 8, 40], statement, kind=kind)
        zero = loop("i", 0, 40, compute("z", at("y", "i"), [], Const(0)))
        check(LoopTree("f", shapes, (zero, loop("o", 1, 40, pieces, step=9))), integers(64))
    steps = loop("i", 1, 40, statement, kind="serial", step=3)
    check(LoopTree("f", shapes, (loop("i", 0, 40, compute("z", at("y", "i"), [], Const(0))), steps)), integers(64))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 21])
def test_free_sizes(n: int) -> None:
    column = LANES * var("o") + var("v")
    statement = compute(
        "s", at("y", "i", column), [at("x", column, "i"), at("b", column)], apply("add", Read(0), Read(1))
    )
    inner = loop("v", 0, [LANES, var("N") - LANES * var("o")], statement, kind="vector")
    body = loop("i", 0, "M", loop("o", 0, (var("N") + LANES - 1) // LANES, inner), kind="parallel")
    shapes = (tensor("x", "N", "M", role="input"), tensor("b", "N", role="input"), tensor("y", "M", "N", role="output"))
    tree = LoopTree("transpose", shapes, (body,), ("M", "N"))
    check(tree, integers(n, 5), integers(n), threads=2)


def test_layouts_are_packed_at_the_border() -> None:
    blocked = Layout(("i", "j"), (var("j") // 4, var("i"), var("j") % 4), (Affine.of(2), Affine.of(3), Affine.of(4)))
    x = Tensor("x", (Affine.of(3), Affine.of(7)), "f32", "input", layout=blocked)
    y = Tensor("y", (Affine.of(3), Affine.of(7)), "f32", "output", layout=blocked)
    statement = compute("s", at("y", "i", "j"), [at("x", "i", "j")], apply("neg", Read(0)))
    for kind in ("serial", "vector"):
        tree = LoopTree("f", (x, y), (loop("i", 0, 3, loop("j", 0, 7, statement, kind=kind)),))
        a = integers(3, 7)
        np.testing.assert_array_equal(check(tree, a), -a)
        kernel = Kernel(tree, HOST, [], [y], constants={"x": a})
        np.testing.assert_array_equal(kernel(), -a)


# -- lanes


@pytest.mark.parametrize("combiner", ["+", "*", "max", "min"])
@pytest.mark.parametrize("extent", [1, 5, 8, 37])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i64", "i8", "u16"])
def test_reduction_over_lanes(combiner: str, extent: int, dtype: str) -> None:
    x = integers(extent, dtype=dtype, low=1, high=3)
    start = compute("start", at("y", 0), [], Const(2))
    update = compute("update", at("y", 0), [at("x", "i")], Read(0), combiner)
    if combiner == "*" and extent > 8 and dtype == "f16":
        x[8:] = 1
    shapes = (tensor("x", extent, dtype=dtype, role="input"), tensor("y", 1, dtype=dtype, role="output"))
    check(LoopTree("f", shapes, (start, loop("i", 0, extent, update, kind="vector"))), x)


@pytest.mark.parametrize("combiner", ["and", "or"])
def test_reduction_of_bools_over_lanes(combiner: str) -> None:
    start = compute("start", at("y", 0), [], Const(combiner == "and"))
    update = compute("update", at("y", 0), [at("x", "i")], Read(0), combiner)
    shapes = (tensor("x", 6, dtype="bool", role="input"), tensor("y", 1, dtype="bool", role="output"))
    tree = LoopTree("f", shapes, (start, loop("i", 0, 6, update, kind="vector")))
    for x in (np.zeros(6, bool), np.ones(6, bool), np.arange(6) == 5):
        check(tree, x)


def test_reduction_over_lanes_that_are_known_when_running() -> None:
    start = compute("start", at("y", "r"), [], Const(5))
    update = compute("update", at("y", "r"), [at("x", "i")], Read(0), "min")
    lanes = loop("i", 0, [var("r"), Affine.of(8)], update, kind="vector")
    shapes = (tensor("x", 8, role="input"), tensor("y", 12, role="output"))
    check(LoopTree("f", shapes, (loop("r", 0, 12, start, lanes),)), integers(8))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i16", "u8", "bool"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (5, 8), (16, 16), (4, 16), (16, 4), (8, 24), (3, 2), (2, 8)])
def test_registers_read_across(dtype: str, rows: int, columns: int) -> None:
    width = next(w for w in (16, 8, 4, 2) if columns % w == 0)
    x = integers(rows, columns, dtype=dtype, low=0, high=2 if dtype == "bool" else 100)
    column = var("q") * width + var("v")
    fill = loop("v", 0, width, compute("fill", at("R", "u", column), [at("x", "u", column)], Read(0)), kind="vector")
    fill = loop("u", 0, rows, loop("q", 0, columns // width, fill, kind="unroll"), kind="unroll")
    across = loop("v", 0, rows, compute("turn", at("y", "j", "v"), [at("R", "v", "j")], Read(0)), kind="vector")
    across = loop("j", 0, columns, across, kind="unroll")
    given = tensor("x", rows, columns, dtype=dtype, role="input")
    shapes = (given, tensor("y", columns, rows, dtype=dtype, role="output"))
    tree = LoopTree("f", shapes, (Alloc(tensor("R", rows, columns, dtype=dtype, space="reg"), (fill, across)),))
    np.testing.assert_array_equal(check(tree, x), x.T)
    if dtype == "f32" and rows == columns == 8:
        assert emit(tree, HOST, "f").count("shufflevector") == 24
        assert "insertelement" not in emit(tree, HOST, "f")


def test_wide_lanes_are_whole_vectors_side_by_side() -> None:
    fill = loop("v", 0, 8, compute("fill", at("R", 8 * var("q") + var("v")), [at("x", 8 * var("q") + var("v"))],
                                   Read(0)), kind="vector")  # fmt: skip
    start = compute("start", at("y", 0), [], Const(1))
    total = loop("v", 0, 24, compute("total", at("y", 0), [at("R", "v")], Read(0), "+"), kind="vector")
    body = (start, loop("q", 0, 3, fill, kind="unroll"), total)
    shapes = (tensor("x", 24, role="input"), tensor("y", 1, role="output"))
    tree = LoopTree("f", shapes, (Alloc(tensor("R", 24, space="reg"), body),))
    check(tree, integers(24))
    assert "insertelement" not in emit(tree, HOST, "f")


def test_lanes_that_share_an_element() -> None:
    zero = compute("zero", at("y", "i"), [], Const(0))
    update = compute("update", at("y", var("i") // 3), [at("x", "i")], Read(0), "+")
    last = compute("last", at("z", 0), [at("x", "i")], Read(0))
    shapes = (tensor("x", 8, role="input"), tensor("y", 3, role="output"), tensor("z", 1, role="output"))
    tree = LoopTree("f", shapes, (loop("i", 0, 3, zero), loop("i", 0, 8, update, last, kind="vector")))
    x = integers(8)
    found = kernel_of(tree)(x)
    expected = run_loops(tree, {"x": x})
    np.testing.assert_array_equal(found[0], expected["y"])
    np.testing.assert_array_equal(found[1], expected["z"])


# -- buffers, threads, indirection


@pytest.mark.parametrize("width", [40, 5000])
@pytest.mark.parametrize("threads", [1, 2])
def test_buffers(width: int, threads: int) -> None:
    """On the stack, and in scratch memory with a slice for each part."""
    copy = compute("copy", at("P", "j"), [at("x", "i", "j")], Read(0))
    reverse = compute(
        "reverse", at("y", "i", "j"), [at("P", width - 1 - var("j")), at("Q", 0)], apply("add", Read(0), Read(1))
    )
    one = compute("one", at("Q", 0), [], Const(1))
    body = Alloc(tensor("Q", 5000), (one, loop("j", 0, width, copy), loop("j", 0, width, reverse)))
    tree = LoopTree(
        "reverse",
        (tensor("x", 6, width, role="input"), tensor("y", 6, width, role="output")),
        (loop("i", 0, 6, Alloc(tensor("P", width), (body,)), kind="parallel"),),
    )
    x = integers(6, width)
    np.testing.assert_array_equal(kernel_of(tree, threads)(x), x[:, ::-1] + 1)


def test_buffers_of_free_size_and_shared_ones() -> None:
    copy = compute("copy", at("P", "i"), [at("x", "i")], Read(0))
    use = compute("use", at("y", "i"), [at("P", var("N") - 1 - var("i")), at("Q", 0)], apply("mul", Read(0), Read(1)))
    two = compute("two", at("Q", 0), [], Const(2))
    phases = (loop("i", 0, "N", copy, kind="parallel"), two, Sync(), loop("i", 0, "N", use, kind="parallel"))
    shapes = (tensor("x", "N", role="input"), tensor("y", "N", role="output"))
    tree = LoopTree("f", shapes, (Alloc(tensor("P", "N"), (Alloc(tensor("Q", 1), phases),)),), ("N",))
    kernel = kernel_of(tree, threads=2)
    assert kernel.module.parallel == (True, False, True)
    for n in (1, 9, 7000):
        x = integers(n)
        np.testing.assert_array_equal(kernel(x), 2 * x[::-1])


def lookup(kind: str, guard: bool = False) -> LoopTree:
    condition = [Constraint(var("i") - 2)] if guard else []
    read = at("x", ReadIndex(0), "j", guard=condition, fill=9)
    statement = compute("look", at("y", "i", "j"), [at("idx", "i"), read], Read(1))
    shapes = (
        tensor("idx", 5, dtype="i64", role="input"),
        tensor("x", 4, 3, role="input"),
        tensor("y", 5, 3, role="output"),
    )
    rows = loop("i", 0, 5, loop("j", 0, 3, statement, kind="vector" if kind == "columns" else "serial"))
    across = loop("j", 0, 3, loop("i", 0, 5, statement, kind="vector"))
    return LoopTree("look", shapes, (across if kind == "rows" else rows,))


@pytest.mark.parametrize("kind", ["serial", "columns", "rows"])
def test_indirect_reads(kind: str) -> None:
    x = integers(4, 3)
    check(lookup(kind), np.array([3, 0, 0, 2, 1]), x)
    check(lookup(kind, guard=True), np.array([99, -99, 0, 2, 1]), x)
    for bad in (4, -1, 1 << 30):
        with pytest.raises(RunError, match=rf"statement look: index {bad} of dimension 0 of x is outside 0 .. 3"):
            kernel_of(lookup(kind))(np.array([3, 0, bad, 2, 1]), x)


def test_indirect_writes() -> None:
    zero = compute("zero", at("y", "i"), [], Const(0))
    for kind in ("serial", "vector"):
        update = compute("scatter", at("y", ReadIndex(0)), [at("idx", "i"), at("x", "i")], Read(1), "+")
        shapes = (
            tensor("idx", 6, dtype="i32", role="input"),
            tensor("x", 6, role="input"),
            tensor("y", 4, role="output"),
        )
        tree = LoopTree("scatter", shapes, (loop("i", 0, 4, zero), loop("i", 0, 6, update, kind=kind)))
        check(tree, np.array([1, 1, 3, 0, 1, 3], np.int32), integers(6))
        with pytest.raises(RunError, match="index 4 of dimension 0 of y"):
            kernel_of(tree)(np.array([1, 1, 4, 0, 1, 3], np.int32), integers(6))


# -- registers


def test_registers_across_conditions_and_loops_that_may_not_run() -> None:
    carry = compute("carry", at("R", 0), [at("x", "i")], Read(0), "+")
    begin = compute("begin", at("R", 0), [], Const(1))
    end = compute("end", at("y", "n"), [at("R", 0)], Read(0))
    some = loop("i", 0, "n", carry)
    tree = LoopTree(
        "f",
        (tensor("x", 9, role="input"), tensor("y", 9, role="output")),
        (loop("n", 0, 9, Alloc(tensor("R", 1, space="reg"), (begin, some, end))),),
    )
    check(tree, integers(9))


def test_registers_read_in_another_width() -> None:
    fill = loop("v", 0, 8, compute("fill", at("R", "v"), [at("x", "v")], Read(0)), kind="vector")
    one = compute("one", at("R", 3), [at("R", 5)], apply("add", Read(0), Const(100)))
    half = loop(
        "q",
        0,
        2,
        loop(
            "v",
            0,
            4,
            compute("half", at("y", 4 * var("q") + var("v")), [at("R", 4 * var("q") + var("v"))], Read(0)),
            kind="vector",
        ),
        kind="unroll",
    )
    reverse = loop(
        "v", 0, 8, compute("reverse", at("y", 8 + var("v")), [at("R", 7 - var("v"))], Read(0)), kind="vector"
    )
    shapes = (tensor("x", 8, role="input"), tensor("y", 16, role="output"))
    check(LoopTree("f", shapes, (Alloc(tensor("R", 8, space="reg"), (fill, one, half, reverse)),)), integers(8))


@pytest.mark.parametrize(("step", "extent"), [(1, 32), (3, 30), (1, 4)])
def test_an_unrolled_loop_with_ragged_ends(step: int, extent: int) -> None:
    """Copies under guards, in memory and in registers: tiles of 5 that overhang on both sides, some empty."""
    low: list[int | str | Affine] = [0] if step > 1 else [0, 2 - 5 * var("o")]
    high: list[int | str | Affine] = [5, extent - 5 * var("o")]
    place = 5 * var("o") + var("i")
    plain = loop("i", low, high, compute("copy", at("y", place), [at("x", place)], Read(0)), step=step, kind="unroll")
    input_, output = tensor("x", 40, role="input"), tensor("y", 40, role="inout")
    check(LoopTree("f", (input_, output), (loop("o", 0, 7, plain),)), integers(40), np.zeros(40, np.float32))
    add = compute("add", at("R", "i"), [at("x", place)], Read(0), "+")
    sums = loop("i", low, high, add, step=step, kind="unroll")
    filled = loop("i", 0, 5, compute("load", at("R", "i"), [at("y", "i")], Read(0)), kind="unroll")
    back = loop("i", 0, 5, compute("back", at("y", "i"), [at("R", "i")], Read(0)), kind="unroll")
    registers = Alloc(tensor("R", 5, space="reg"), (filled, loop("o", 0, 7, sums), back))
    check(LoopTree("f", (input_, output), (registers,)), integers(40), np.zeros(40, np.float32))


# -- what is refused


def refused(*body: Node, tensors: tuple[Tensor, ...] = ()) -> str:
    shapes = (tensor("x", 32, role="input"), tensor("y", 32, role="output"), *tensors)
    with pytest.raises(UnsupportedError) as info:
        lower(LoopTree("f", shapes, body, ("N",)), HOST, "f")
    return str(info.value)


def copy(write: Access | None = None, read: Access | None = None) -> Compute:
    return compute("copy", write or at("y", "i"), [read or at("x", "i")], Read(0))


def test_refusals_name_the_place() -> None:
    assert "unrolled loop i are not constant: from 0 to N" in refused(loop("i", 0, "N", copy(), kind="unroll"))
    assert "vector loop i" in refused(loop("i", 0, "N", copy(), kind="vector"))
    assert "inside another" in refused(loop("i", 0, 8, loop("j", 0, 4, copy(), kind="vector"), kind="vector"))
    register = tensor("R", 32, space="reg")
    message = refused(Alloc(register, (loop("i", 0, 32, copy(at("R", "i"))),)))
    assert "register tensor R is not constant" in message and "statement copy" in message
    assert "before it is written" in refused(Alloc(register, (copy(at("y", 0), at("R", 3)),)))
    assert "parallel loop i" in refused(loop("i", 0, 4, copy(), Sync(), kind="parallel"))
    assert "external" in refused(External("sort"))
    assert "instructions long" in refused(loop("i", 0, 1 << 20, copy(at("y", 0), at("x", 0)), kind="unroll"))
    complex_ = compute("s", at("z", 0), [at("z", 0)], apply("add", Read(0), Read(0)))
    assert "c64" in refused(complex_, tensors=(tensor("z", 1, dtype="c64"),))
    many = compute("s", at("y", 0), [at("x", 0)] * 255, Read(0))
    assert "reads 255 elements, at most 254" in refused(many)
    across = (loop("i", 0, 4, copy(), kind="parallel"), compute("s", at("R", 0), [], Const(0)))
    assert "register tensor R lives across a parallel loop" in refused(*across, tensors=(register,))
    wrong = compute("s", at("b", 0), [at("b", 0)], apply("neg", Read(0)))
    assert "statement s" in refused(wrong, tensors=(tensor("b", 1, dtype="bool"),))


# -- cache and host


def test_object_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ir = emit(plain_product(3, 4, 2), HOST, "f")
    code = compile_object(ir, HOST)
    (entry,) = own_cache.rglob("*.o")
    assert compile_object(ir, HOST) == code
    for damage in (b"", entry.read_bytes()[:-3], b"junk" * 100):
        entry.write_bytes(damage)
        assert compile_object(ir, HOST) == code
    assert not list(own_cache.rglob("*.tmp"))
    other = machine_of_features("haswell", ("avx", "avx2"), HOST.triple, {}, 1, 1000)
    compile_object(ir, other)
    assert len(list(own_cache.rglob("*.o"))) == 2
    blocked = own_cache / "file"
    blocked.write_text("")
    monkeypatch.setenv("POLYLOOM_CACHE", str(blocked))
    assert compile_object(ir, HOST) == code


def test_broken_ir_is_a_bug_not_a_crash() -> None:
    with pytest.raises(Bug, match="not valid"):
        compile_object("define i64 @f() { ret i32 0 }", HOST)


def test_host_and_other_cpus() -> None:
    registers = HOST.registers
    assert registers is not None and registers.capacity in (16, 32)
    assert HOST.engines_of("core")[0].lanes in (4, 8, 16) and HOST.cores >= 1
    assert [m.name for m in HOST.memories][0] == "dram" and cache_sizes()[1] >= 8192
    wide = machine_of_features(
        "skylake-avx512", ("avx", "avx2", "avx512f", "avx512vl", "fma"), HOST.triple, {1: 32768}, 1, 1000
    )
    assert wide.lanes(4) == 16 and wide.registers is not None and wide.registers.capacity == 32
    arm = machine_of_features("generic", ("neon",), "aarch64-unknown-linux-gnu", {1: 32768}, 1, 1000)
    assert arm.lanes(4) == 4
    assert compile_object(emit(plain_product(3, 4, 2), arm, "f"), arm)[:4] == b"\x7fELF"
    with pytest.raises(MachineError):
        compile_object("", machine_of_features("x", (), "nonsense-unknown-none", {}, 1, 1))


@X86_64
def test_other_x86_cpus() -> None:
    """The oldest one runs here too: no AVX, no fused multiply-add. The widest is only compiled."""
    oldest = machine_of_features("x86-64", ("sse2",), HOST.triple, {1: 32768}, 1, 1000)
    a, b = integers(13, 5), integers(5, 37)
    np.testing.assert_array_equal(kernel_of(tiled_product(13, 37, 5), machine=oldest)(a, b), a @ b)
    x, tensors = samples("f32"), [tensor("x0", 48, role="input")]
    for name in ("floor", "round", "exp", "erf"):
        body = apply(name, Read(0))
        found = plain(kernel_of(elementwise(body, tensors, "f32", 4), machine=oldest)(x))
        np.testing.assert_allclose(found, evaluate(body, [x], lambda _: 0), rtol=5e-7)
    half = [tensor("x0", 48, dtype="f16", role="input")]
    with pytest.raises(UnsupportedError, match="f16"):
        kernel_of(elementwise(apply("neg", Read(0)), half, "f16", 4), machine=oldest)
    widest = machine_of_features("skylake-avx512", ("avx512f", "avx512vl", "fma"), HOST.triple, {1: 32768}, 1, 1000)
    text = assembly(emit(elementwise(apply("exp", Read(0)), tensors, "f32", 16), widest, "f"), widest)
    assert re.search(r"vfmadd.*%zmm", text)


WHOLE = ("i8", "u8", "i16", "u16", "i32", "u32", "i64")


@pytest.mark.parametrize("body", ["trunc_div(a[i], b[i])", "a[i] // b[i]", "a[i] % b[i]"])
@pytest.mark.parametrize("dtype", WHOLE)
def test_integers_divided_in_lanes(dtype: str, body: str) -> None:
    """By floats with more bits, up to 32: all pairs of 8 bits; of more those next to multiples, and the limits."""
    kind = np.dtype(numpy_dtype(dtype))
    limits, random = np.iinfo(kind.name), np.random.default_rng(1)
    if kind.itemsize == 1:
        every = np.arange(limits.min, limits.max + 1)
        a, b = (m.ravel().astype(kind) for m in np.meshgrid(every, every))
    else:
        b = random.integers(limits.min, limits.max, 3000, dtype=kind, endpoint=True)
        b >>= random.integers(0, 8 * kind.itemsize - 1, 3000).astype(kind)
        b[:6] = [limits.min, limits.max, 1, 0, limits.max, limits.min]
        with np.errstate(all="ignore"):
            a = b * random.integers(0, 9, 3000).astype(kind) + random.integers(-1, 2, 3000).astype(kind)
        a[:6] = [limits.max, limits.min, limits.min, limits.max, limits.max, limits.min]
    program = poly.parse(f"y[i] = {body}", dtypes={"a": dtype, "b": dtype}, a=a.shape, b=b.shape)
    kernel = poly.compile(program)
    assert isinstance(kernel, Kernel)
    assert np.array_equal(kernel(a=a, b=b), run_program(program, {"a": a, "b": b})["y"])
    assert ("fdiv" in kernel.ir) == (kind.itemsize <= 4)


@pytest.mark.parametrize("source", ["f32", "f64", "f16", "i32"])
@pytest.mark.parametrize("bounds", [(-128, 127), (-200, 300), (-100, 100), (0, 127)])
@pytest.mark.parametrize("target", ["i8", "u8", "i32"])
def test_bounds_that_a_conversion_has_itself(source: str, bounds: tuple[int, int], target: str) -> None:
    """Of floats they are left out where nothing changes; integers wrap around without them."""
    few = [0.4, -0.6, 126.5, 127.9, 128.5, 255.5, 256.5, -127.5, -128.9, -129.5, 1e4, -1e4, 3e9, -3e9]
    numbers = np.array(few + [np.nan, np.inf, -np.inf], np.float64)
    numbers = np.nan_to_num(numbers, posinf=2e9, neginf=-2e9).clip(-2e9, 2e9) if source == "i32" else numbers
    with np.errstate(over="ignore"):
        x = np.tile(numbers, 3).astype(numpy_dtype(source))
    low, high = bounds
    program = poly.parse(f"y[i] = {target}(max(min(x[i], {high}), {low}))", dtypes={"x": source}, x=x.shape)
    kernel = poly.compile(program)
    assert isinstance(kernel, Kernel)
    assert np.array_equal(kernel(x=x), run_program(program, {"x": x})["y"])
