"""What would keep somebody waiting ends soon, with a reason: long unrolled loops, checks that isl cannot finish."""
# ruff: noqa: F722, F821, UP037, B007 (texts in annotations are shapes, not types)

from __future__ import annotations

import islpy as isl
import numpy as np
import pytest

import poly
from poly.coefficients import bounded
from poly.errors import IllegalEdit, UnsupportedError
from poly.frontend.nest import Array, f64
from poly.interp import run_program
from tests.mutation_programs import program


def test_what_isl_cannot_analyse_is_no_fault_of_the_caller() -> None:
    with pytest.raises(UnsupportedError, match="the check is beyond isl's dataflow analysis"):
        with bounded(1000, "the check", "lu"):
            raise isl.Error("call to isl_union_access_info_compute_flow failed: domain_factor_domain")


def test_a_buffer_of_a_copy_of_a_copy_is_judged_where_isl_has_no_answer() -> None:
    s = poly.Schedule(program("lu")).tile({"k": 3}).fuse("div.i", "upd.i").promote("A", "k.o", "l2", name="B", pad=True)
    s = s.promote("A", "st_B.0", "l2", name="C").promote("C", "st_C.1", "l2", name="D")
    with pytest.raises(IllegalEdit, match="the result reads A"):
        s.double_buffer("B", "k.o", 2).double_buffer("D", "st_C.1", 2).double_buffer("D", "st_B.0", 3)


def test_a_long_unrolled_loop_is_refused_before_llvm_sees_it() -> None:
    with pytest.raises(UnsupportedError, match="unrolled loop i is more than .* instructions long") as found:
        poly.compile(poly.Schedule(poly.parse("C[i] = exp(A[i])", A=(2048,))).unroll("i"))
    most = int(str(found.value).split("tile it by ")[1].split()[0])
    assert 100 < most < 2048
    poly.compile(poly.Schedule(poly.parse("C[i] = 2 * A[i]", A=(1024,))).unroll("i"))
    with pytest.raises(UnsupportedError, match="leave it, or loops inside of it, a loop"):
        schedule = poly.Schedule(poly.parse("C[i,j] = exp(A[i,j])", A=(4, 600)))
        poly.compile(schedule.unroll("i").unroll("j"))


@poly.nest
def heat(T: int, N: int, A: f64[Array, "N, N"], B: f64[Array, "N, N"]):
    for t in range(T):  # pyright: ignore[reportUnusedVariable]
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                B[i, j] = A[i, j] + A[i - 1, j] + A[i + 1, j] + A[i, j - 1] + A[i, j + 1]
        for i in range(1, N - 1):
            for j in range(1, N - 1):
                A[i, j] = B[i, j] + B[i - 1, j] + B[i + 1, j] + B[i, j - 1] + B[i, j + 1]


def test_an_edit_whose_check_isl_cannot_finish_is_given_up_soon() -> None:
    """A buffer inside a skewed tile of time, for some of what touches the tensor: its dataflow took isl a minute."""
    schedule = skewed()
    with pytest.raises(UnsupportedError, match="given up without a verdict") as found:
        schedule.promote("A", "j.o", "l1", users=["S0"])
    assert "further out" in str(found.value)
    assert schedule.promote("A", "i.o", "l1").log[-1].name == "promote"


def test_a_buffer_that_changes_no_values_needs_no_dataflow() -> None:
    """For all that touches the tensor it is filled, used and emptied tile by tile (decision 0028)."""
    random, sizes = np.random.default_rng(0), {"T": 9, "N": 33}
    arrays = {n: random.random((33, 33)) for n in "AB"}
    expected = run_program(heat.program, {n: a.copy() for n, a in arrays.items()}, sizes=sizes)
    found = poly.compile(skewed().promote("A", "j.o", "l1").promote("B", "j.o", "l1"))(**arrays, T=9)
    for a, name in zip(found, "AB", strict=True):
        assert np.allclose(a, expected[name], rtol=1e-9)


def skewed() -> poly.Schedule:
    """Tiles of time, both sweeps in one nest."""
    return (
        poly.Schedule(heat.program).shift("S1", "S1.i", 1).shift("S1", "S1.j", 1).fuse("S0.i", "S1.i")
        .fuse("S0.j", "S1.j").skew("i", "t", 2).skew("j", "t", 2).tile({"t": 8, "i": 16, "j": 16})
    )  # fmt: skip
