"""Long reductions in parts for threads: the same sums, where the parts pay and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.affine import var
from poly.codegen.host import host_machine
from poly.dtypes import Array
from poly.errors import ScheduleError
from poly.frontend.einsum import einsum_program
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.shared_sums import is_in_parts, share_sums
from poly.text import parse_program
from tests.machines import AVX512

MACHINE = host_machine()


def product(m: int, n: int, k: int) -> Program:
    return join_axes(poly.parse("C[i,j] += A[i,k] * B[k,j]", A=(m, k), B=(k, n)))


def parts_of(program: Program, threads: int = 2, machine: Machine = MACHINE) -> list[int]:
    """The parts of each reduction that was cut."""
    made = share_sums(program, machine, threads)
    return [t.shape[0].constant for t in made.tensors if t.name not in program.tensor]


def check_same(program: Program, threads: int = 2) -> Program:
    """Exactly the same results on small whole numbers: interpreted in parts, and compiled."""
    random = np.random.default_rng(3)
    arrays = {t.name: random.integers(-3, 4, t.extents(program.binding)).astype("f4") for t in program.inputs}
    made = share_sums(program, MACHINE, threads)
    given = {t.name: arrays[t.name].reshape(t.extents(program.binding)) for t in made.inputs}
    expected, found = run_program(program, arrays), run_program(made, given)
    (name,) = expected
    assert np.array_equal(found[name].ravel(), expected[name].ravel())
    assert np.array_equal(poly.compile(program, threads=threads)(*arrays.values()), expected[name])
    return made


@pytest.mark.parametrize(
    ("m", "n", "k", "threads", "parts"),
    [
        (16, 16, 1024, 2, [8]),
        (16, 16, 1024, 3, []),  # no thirds
        (16, 16, 768, 3, [6]),  # twelve would be too many to add up
        (16, 16, 4 * 121, 2, [4]),  # no eighths
        (16, 16, 509, 2, []),
        (16, 16, 128, 2, []),  # short
        (16, 16, 1024, 1, []),
        (64, 64, 256, 2, []),  # what is read in common is less than what would be stored and read again
        (16, 4096, 1024, 2, []),
    ],
)
def test_a_long_reduction_with_a_small_target_is_in_parts(
    m: int, n: int, k: int, threads: int, parts: list[int]
) -> None:
    assert parts_of(product(m, n, k), threads) == parts


@pytest.mark.parametrize(
    ("shapes", "spec", "threads", "parts"),
    [
        (((3072,), (3072, 200)), "k,kj->j", 2, [2]),
        (((3072,), (3072, 200)), "k,kj->j", 3, [3]),
        (((1, 2048), (2048, 1000)), "ik,kj->ij", 2, [2]),
        (((3071,), (3071, 200)), "k,kj->j", 2, []),  # no halves
        (((400,), (400, 100)), "k,kj->j", 2, []),  # over before threads have met
        (((100,), (100, 9000)), "k,kj->j", 2, []),  # short
        (((3072,), (200, 3072)), "k,jk->j", 2, []),  # rows to share
        (((4, 1024), (4, 1024, 300)), "bk,bkj->bj", 2, []),  # one vector after another to share
    ],
)
def test_a_vector_times_a_matrix_is_in_a_part_for_each_thread(
    shapes: tuple[tuple[int, ...], ...], spec: str, threads: int, parts: list[int]
) -> None:
    assert parts_of(einsum_program(spec, shapes, ["f32"] * 2), threads) == parts


@pytest.mark.parametrize(
    ("text", "shape", "parts"),
    [
        ("S[j] += X[i, j]", (2048, 2048), [2]),
        ("S[j] max= X[i, j]", (9000, 300), [2]),
        ("S[j] += X[i, j]", (2048, 8192), []),  # half a row is long
        ("S[j] += X[i, j]", (500, 300), []),  # each thread's half stays with it
        ("S[j] += X[i, j]; Y[i, j] = X[i, j] - S[j]", (2048, 2048), []),  # one nest with what uses it
    ],
)
def test_sums_of_columns_are_in_a_part_for_each_thread(text: str, shape: tuple[int, int], parts: list[int]) -> None:
    assert parts_of(poly.parse(text, X=shape), machine=AVX512) == parts


def test_sums_of_columns_in_parts_give_the_same() -> None:
    check_same(poly.parse("S[j] += X[i, j]", X=(1536, 1024)))


def test_a_vector_times_a_matrix_gives_the_same() -> None:
    random = np.random.default_rng(0)
    x, w = random.integers(-3, 4, 3072).astype("f4"), random.integers(-3, 4, (3072, 200)).astype("f4")
    program = einsum_program("k,kj->j", (x.shape, w.shape), ["f32"] * 2)
    assert np.array_equal(poly.compile(program, threads=2)(x, w), x @ w)
    check_same(einsum_program("k,kj->j", ((1024,), (1024, 260)), ["f32"] * 2))


def test_parts_are_axes_of_what_nothing_else_reads() -> None:
    made = check_same(product(16, 16, 1024))
    shapes = {t.name: t.extents(made.binding) for t in made.tensors}
    assert shapes == {"A": (16, 8, 128), "B": (8, 128, 16), "C": (16, 16), "C_parts": (8, 16, 16)}


TEXT = """program sums
input A: f32[16, 1026]
input B: f32[1030, 16]
input D: f32[16, 16]
temporary T: f32[16, 16]
output C: f32[16, 16]
start[i, j]: T[i, j] = D[i, j] where 0 <= i <= 15 and 0 <= j <= 15
sum[i, j, k]: T[i, j] += A[i, k]*B[k + 3, j] where 0 <= i <= 15 and 0 <= j <= 15 and 2 <= k <= 1025
last[i, j]: C[i, j] = max(T[i, j], 0) where 0 <= i <= 15 and 0 <= j <= 15
"""


def test_a_reduction_that_starts_elsewhere_from_something() -> None:
    program = parse_program(TEXT)
    made = check_same(program)
    assert [s.name for s in made.statements] == ["clear_T_parts", "sum", "start", "add_T_parts", "last"]
    assert made.tensor["A"].extents({}) == (16, 1026)
    moved = 128 * var("part") + var("k") + 2
    assert [r.index for r in made.statement["sum"].reads] == [(var("i"), moved), (moved + 3, var("j"))]


@pytest.mark.parametrize("combiner", ["max", "min", "*"])
def test_other_combiners(combiner: str) -> None:
    program = parse_program(TEXT.replace("T[i, j] += A", f"T[i, j] {combiner}= A").replace("A[i, k]*B", "A[i, k] + B"))
    if combiner == "*":  # of ones, as products of many numbers leave f32
        made = share_sums(program, MACHINE, 2)
        ones = {t.name: np.full(t.extents({}), 0.5, "f4") for t in made.inputs}
        assert np.array_equal(run_program(made, ones)["C"], np.full((16, 16), 0.5))
    else:
        check_same(program)
    assert len(parts_of(program)) == 1


def test_what_keeps_its_order_stays_whole() -> None:
    program = parse_program(TEXT)
    ordered = replace(program.statement["sum"], reorder=False)
    kept = replace(program, statements=tuple(ordered if s.name == "sum" else s for s in program.statements))
    assert share_sums(kept, MACHINE, 2) is kept
    free = parse_program(TEXT.replace("program sums", "program sums(N) where N > 2").replace("<= 1025", "< N"))
    assert share_sums(free, MACHINE, 2) is free


def test_a_window_and_constants() -> None:
    maps = "where 0 <= m <= 7 and 0 <= y <= 3 and 0 <= x <= 3"
    taps = "0 <= c <= 127 and 0 <= r <= 2 and 0 <= s <= 2"
    text = f"""program window
input X: f32[128, 6, 6]
constant W: f32[8, 128, 3, 3]
output Y: f32[8, 4, 4]
s0[m, y, x]: Y[m, y, x] = 0 {maps}
s1[m, y, x, c, r, s]: Y[m, y, x] += X[c, y + r, x + s]*W[m, c, r, s] {maps} and {taps}
"""
    program = parse_program(text)
    assert parts_of(program) == [4]
    random = np.random.default_rng(0)
    x, w = random.integers(-3, 4, (128, 6, 6)).astype("f4"), random.integers(-3, 4, (8, 128, 3, 3)).astype("f4")
    expected = run_program(program, {"X": x, "W": w})["Y"]
    assert np.array_equal(poly.compile(program, constants={"W": w}, threads=2)(x), expected)


def test_several_reductions_one_from_the_other() -> None:
    program = poly.parse("T[j,k,l] = B[j,l]*C[k,l]\nY[i,l] += A[i,j,k]*T[j,k,l]", A=(16, 64, 8), B=(64, 16), C=(8, 16))
    assert parts_of(program) == [4]
    check_same(program)


def test_the_schedule_of_a_program_in_parts_is_one_of_the_program() -> None:
    program = poly.parse("C[i,j] += A[i,k] * B[k,j]", A=(16, 1024), B=(1024, 16))
    kernel = poly.compile(program, threads=2)
    assert kernel.schedule is not None and "C_parts" in kernel.schedule.source.tensor
    assert is_in_parts(kernel.schedule.source, join_axes(program))
    again = poly.compile(program, threads=2, schedule=kernel.schedule)
    a, b = np.ones((16, 1024), "f4"), np.ones((1024, 16), "f4")
    assert np.array_equal(again(a, b), kernel(a, b)) and np.array_equal(kernel(a, b), np.full((16, 16), 1024))
    other = poly.parse("C[i,j] += A[i,k] * B[j,k]", A=(16, 1024), B=(16, 1024))
    with pytest.raises(ScheduleError, match="of another program"):
        poly.compile(other, threads=2, schedule=kernel.schedule)


def test_parts_are_told_where_their_tensor_had_to_have_another_name() -> None:
    program = poly.parse("C[i,j] += A[i,k] * B[k,j]; C_parts[i] = A[i,0]", A=(16, 1024), B=(1024, 16))
    kernel = poly.compile(program, threads=2)
    assert kernel.schedule is not None and "C_parts2" in kernel.schedule.source.tensor
    assert is_in_parts(kernel.schedule.source, join_axes(program))
    poly.compile(program, threads=2, schedule=kernel.schedule)


def test_the_same_results_from_run_to_run() -> None:
    random = np.random.default_rng(5)
    a, b = random.standard_normal((16, 2048), "f4"), random.standard_normal((2048, 16), "f4")
    kernel = poly.compile(product(16, 16, 2048), threads=2)
    first = np.asarray(kernel(a.reshape(16, 2048), b)).tobytes()
    assert all(np.asarray(kernel(a, b)).tobytes() == first for _ in range(200))


@pytest.mark.parametrize(
    ("text", "shape", "shared"),
    [
        ("s += exp(x[i])", (400000,), True), ("s += x[i]", (1000000,), True), ("s max= x[i]", (1000000,), True),
        ("s[k] += x[k,i]", (1, 1000000), True), ("s += x[i,j]", (1000, 1200), True),
        ("s += exp(x[i])", (20000,), False),
        ("m max= x[i]; s += exp(x[i] - m); y[i] = exp(x[i] - m) / s", (400000,), True),
    ],
)  # fmt: skip
def test_sums_of_everything_are_shared(text: str, shape: tuple[int, ...], shared: bool) -> None:
    program = poly.parse(text, x=shape)
    kernel = poly.compile(program, target="cpu", threads=2)
    assert ("parallel" in str(kernel.loops)) == shared
    x = np.random.default_rng(3).standard_normal(shape, "f4")
    wanted = np.asarray(poly.compile(program, threads=1)(x), np.float32)
    tolerance = 1e-4 if "exp" in text else 0.2
    np.testing.assert_allclose(np.asarray(kernel(x), np.float32), wanted, rtol=1e-3, atol=tolerance)
    assert np.array_equal(kernel(x), kernel(x))


@pytest.mark.filterwarnings("ignore:threads=3")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("text", "by_numpy"),
    [
        ("y[i,j] = x[p[i],j]", lambda x, p, w: x[p]),
        ("y[i,j] = w[3,p[j]] where 0 <= i < 16", lambda x, p, w: np.tile(w[3, p], (16, 1))),
        ("y[i] += x[p[i],j]", lambda x, p, w: x[p].sum(1)),
        ("y[j] += x[p[i],j]", lambda x, p, w: x[p].sum(0)),
        ("y[i] max= x[p[i],j]", lambda x, p, w: x[p].max(1)),
        ("y[j] max= x[p[i],j]", lambda x, p, w: x[p].max(0)),
        ("y[i,k] += x[p[i],j] * w[j,k]", lambda x, p, w: x[p] @ w),
        ("y[i,k] += w[i,j] * x[p[j],k]", lambda x, p, w: w @ x[p]),
        ("y[j] += w[i,j] * x[p[i],p[j]]", lambda x, p, w: (w * x[p][:, p]).sum(0)),
        ("y[i,j] += x[p[(i+b) % 33],j] where 0 <= i < 33 and 0 <= b < 5",
         lambda x, p, w: sum(x[np.roll(p, -b)] for b in range(5))),
        ("y[j] += (x[p[i],j] if j >= 1 else 0) where 0 <= i < 33 and 0 <= j < 17",
         lambda x, p, w: (x[p] * (np.arange(33) >= 1))[:, :17].sum(0)),
        ("y[j] += (x[p[i],j] if j <= i else 0)", lambda x, p, w: np.tril(x[p]).sum(0)),
        ("y[i] += (x[p[i],j] if j <= i else 0)", lambda x, p, w: np.tril(x[p]).sum(1)),
        ("y[j] += (x[i,p[j]] if j <= i else 0)", lambda x, p, w: np.tril(x[:, p]).sum(0)),
        ("m[i] max= x[p[i],j]\ne[i,j] = x[p[i],j] - m[i]\ny[i] += e[i,j]",
         lambda x, p, w: (x[p] - x[p].max(1, keepdims=True)).sum(1)),
    ],
)  # fmt: skip
def test_indirect_reads_go_among_threads(text: str, by_numpy: Callable[..., Array], threads: int) -> None:
    random = np.random.default_rng(5)
    arrays = {n: random.integers(-3, 4, (33, 33)).astype("f4") for n in ("x", "w")}
    arrays["p"] = random.integers(0, 33, 33)
    shapes = {n: a.shape for n, a in arrays.items() if f"{n}[" in text}
    program = poly.parse(text, **shapes, dtypes={n: "i64" if n == "p" else "f32" for n in shapes})
    found = poly.compile(program, threads=threads)(**{n: arrays[n] for n in shapes})
    assert np.array_equal(found, by_numpy(**arrays))
