"""Contractions with free sizes: packed and blocked, right at every size, proven for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as pairs

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.compiler import machine_of
from poly.errors import ScheduleError
from poly.scheduling.cpu_each import schedule_each
from poly.scheduling.free_products import free_product
from poly.scheduling.schedule import Schedule

pytestmark = pytest.mark.usefixtures("no_cache")

CPU = machine_of("cpu")
# text, shapes, numpy's subscripts
CASES: dict[str, tuple[str, dict[str, tuple[int | str, ...]], str]] = {
    "rows by columns": ("C[i,k] += A[i,j]*B[j,k]", {"A": ("M", "K"), "B": ("K", "N")}, "ij,jk->ik"),
    "both turned": ("C[i,k] += A[j,i]*B[k,j]", {"A": ("K", "M"), "B": ("N", "K")}, "ji,kj->ik"),
    "batched": ("C[b,i,k] += A[b,i,j]*B[b,j,k]", {"A": (2, "M", "K"), "B": (2, "K", "N")}, "bij,bjk->bik"),
    "one matrix for all": ("C[b,i,k] += A[b,i,j]*B[j,k]", {"A": (2, "M", "K"), "B": ("K", "N")}, "bij,jk->bik"),
    "two sums": ("C[i,k] += A[i,j,l]*B[l,j,k]", {"A": ("M", "K", 3), "B": (3, "K", "N")}, "ijl,ljk->ik"),
    "columns known": ("C[i,k] += A[i,j]*B[j,k]", {"A": ("M", "K"), "B": ("K", 24)}, "ij,jk->ik"),
    "rows known": ("C[i,k] += A[i,j]*B[j,k]", {"A": (67, "K"), "B": ("K", "N")}, "ij,jk->ik"),
}  # fmt: skip


def compiled(what: poly.Program | Schedule, threads: int = 1) -> Kernel:
    kernel = poly.compile(what, threads=threads)
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("name", CASES)
def test_sizes_around_tiles_and_blocks(name: str) -> None:
    text, shapes, subscripts = CASES[name]
    program = poly.parse(text, dtypes=None, **shapes)
    kernel, rng = compiled(program), np.random.default_rng(0)
    assert kernel.schedule is not None
    assert any(s.copies and s.name.endswith("_p") for s in kernel.schedule.program.statements)
    width, edge = 2 * CPU.lanes(4), CPU.lanes(4)
    rows, steps = (0, 1, 2, 5, 6, 7, 97, 103), (0, 3, 9)
    lanes = (0, 1, edge - 1, edge, width - 1, width, width + 1, 259)
    every = [*pairs(rows, lanes, steps)]
    for m, n, k in (every[i] for i in rng.permutation(len(every))[:24]):
        sizes = {p: v for p, v in {"M": m, "N": n, "K": k}.items() if p in program.parameters}
        given = [rng.integers(-4, 5, t.extents(sizes)).astype(np.float32) for t in program.inputs]
        np.testing.assert_array_equal(kernel(*given), np.einsum(subscripts, *given))  # whole numbers: no rounding


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_what_follows_is_in_the_tile(dtype: str) -> None:
    text = "C[i,k] += A[i,j]*B[j,k]; D[i,k] = max(C[i,k] + c[k], 0); E[i,k] = D[i,k]*F[i,k]"
    shapes = {"A": ("M", "K"), "B": ("K", "N"), "c": ("N",), "F": ("M", "N")}
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    kernel, rng = compiled(program), np.random.default_rng(0)
    assert kernel.schedule is not None
    schedule = kernel.schedule
    together = (schedule.under(nest.names[0]) for n, nest in schedule.nests.items() if n.startswith("C_update_lo"))
    sources = [{schedule.program.statement[n].source_name for n in names} for names in together]
    assert any({"C_init", "C_update", "D_set"} <= s for s in sources)
    for m, k, n in ((4, 3, 5), (37, 9, 50), (100, 8, 16)):
        a, b, c, f = (rng.integers(-4, 5, s).astype(f"f{dtype[1:]}"[0] + str(int(dtype[1:]) // 8))
                      for s in ((m, k), (k, n), (n,), (m, n)))  # fmt: skip
        want = np.maximum(a @ b + c, 0) * f
        np.testing.assert_array_equal(kernel(A=a, B=b, c=c, F=f), want)


def test_two_threads() -> None:
    program = poly.parse("C[i,k] += A[i,j]*B[k,j]", A=("M", "K"), B=("N", "K"))
    kernel, rng = compiled(program, 2), np.random.default_rng(0)
    assert sum(kernel.module.parallel) > 1 and kernel.schedule is not None
    kernel.schedule.check()
    for m, k, n in ((1, 1, 1), (30, 9, 20), (200, 65, 300)):
        a, b = rng.integers(-4, 5, (m, k)).astype(np.float32), rng.integers(-4, 5, (n, k)).astype(np.float32)
        np.testing.assert_array_equal(kernel(a, b), a @ b.T)


def test_few_rows_and_what_is_no_product() -> None:
    """Rows that are known to be few are not packed; sums along the lanes alone, and other dtypes, are none."""
    few = poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(3, "K"), B=("K", "N"))
    assert not any(s.copies == "B" for s in schedule_each(few, CPU, blocked=True).program.statements)
    for text, shapes, dtype in (
        ("y[i] += A[i,j]*x[j]", {"A": ("M", "K"), "x": ("K",)}, "f32"),
        ("C[i,k] += A[i,j]*B[j,k]", {"A": ("M", "K"), "B": ("K", "N")}, "i32"),
        ("C[i,k] += A[i,j]*B[j,k] where 0 <= i < M and 0 <= k < i and 0 <= j < K",
         {"A": ("M", "K"), "B": ("K", "M")}, "f32"),
    ):  # fmt: skip
        program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
        names = [s.name for s in program.statements]
        assert all(free_product(program, name, names) is None for name in names)


def test_a_split_at_a_condition() -> None:
    program = poly.parse("y[i] = x[i] + 1", x=("M",))
    schedule = Schedule(program).split("i", "M >= 24").tile({"i.lo": 8})
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    kernel = compiled(schedule)
    for m in (0, 1, 23, 24, 25):
        np.testing.assert_array_equal(kernel(np.arange(m, dtype=np.float32)), np.arange(m, dtype=np.float32) + 1)
    for wrong, why in (("M >= 0", "not inside"), ("K >= 3", "names K"), ("9 >= M >= 3", "more than one"),
                       ("M <= 24", "or .M >= 24. with one")):  # fmt: skip
        with pytest.raises(ScheduleError, match=why):
            Schedule(program).split("i", wrong)


@pytest.mark.parametrize(("text", "shape", "subscripts"), [
    ("C[i,k] += A[i,j]*B[j,k]", (75, 90), "ij,jk->ik"), ("C[i,k] += A[i,j]*B[k,j]", (90, 75), "ij,kj->ik"),
])  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
def test_constants_are_packed_when_compiling(
    text: str, shape: tuple[int, ...], subscripts: str, threads: int
) -> None:
    B = np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)
    program = poly.parse(text, A=("M", 75), B=shape)
    program = replace(program, tensors=tuple(
        replace(t, role="constant") if t.name == "B" else t for t in program.tensors
    ))  # fmt: skip
    kernel = poly.compile(program, constants={"B": B}, threads=threads)
    assert isinstance(kernel, Kernel)
    loops = str(kernel.loops)
    assert "constant B_" in loops
    assert "B[" not in loops.replace("constant B_", "")
    for rows in (1, 5, 13, 14, 61):
        A = np.random.default_rng(rows).integers(-4, 5, (rows, 75)).astype(np.float32)
        np.testing.assert_array_equal(kernel(A), np.einsum(subscripts, A, B))
