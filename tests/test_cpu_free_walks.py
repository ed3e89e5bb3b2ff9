"""Walks through memory with free sizes: squares, sums of columns, rows in one loop; right at every size."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.compiler import machine_of
from poly.dtypes import numpy_dtype
from poly.scheduling.cpu_free_walks import columns_summed, rows_shared, transposed
from poly.scheduling.edits import unchecked
from poly.scheduling.schedule import Schedule

pytestmark = pytest.mark.usefixtures("no_cache")

CPU = machine_of("cpu")
# text, shapes, dtype, what has to be in the schedule's script
CASES: dict[str, tuple[str, dict[str, tuple[int | str, ...]], str, str]] = {
    "transposed": ("B[j,i] = A[i,j]", {"A": ("M", "N")}, "f32", "A_B_set_lo_lo_t"),
    "transposed doubles": ("B[b,j,i] = 2*A[b,i,j] + c[i]", {"A": (3, "M", "N"), "c": ("M",)}, "f64", "_t'"),
    "both ways": ("B[j,i] = A[i,j] + A[j,i]", {"A": ("M", "M")}, "f32", "reads=(0,)"),
    "sum of columns": ("s[j] += A[i,j]", {"A": ("M", "N")}, "f32", "unroll(loop='i.lo.lo.p')"),
    "vector by matrix": ("s[b,j] += x[b,i]*A[b,i,j]", {"x": (2, "M"), "A": (2, "M", "N")}, "f32", "unroll(loop='i"),
    "greatest of columns": ("s[j] max= A[i,j]", {"A": ("M", "N")}, "f32", "unroll(loop='i.lo.lo.p')"),
    "rows": ("m[i] max= X[i,j]; d[i,j] = X[i,j] - m[i]; s[i] += d[i,j]; Y[i,j] = d[i,j] + s[i]", {"X": ("M", "N")},
             "f32", "promote(tensor='d', at='i'"),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_sizes_around_blocks(name: str, threads: int) -> None:
    text, shapes, dtype, edit = CASES[name]
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    kernel, rng = poly.compile(program, threads=threads), np.random.default_rng(0)
    assert isinstance(kernel, Kernel) and kernel.schedule is not None and edit in kernel.schedule.script
    kernel.schedule.check()
    for m, n in ((1, 1), (1, 40), (16, 8), (17, 9), (15, 7), (70, 33), (9, 2100)):
        sizes = {p: v for p, v in {"M": m, "N": n}.items() if p in program.parameters}
        given = [rng.integers(-4, 5, t.extents(sizes)).astype(numpy_dtype(dtype)) for t in program.inputs]
        wanted = poly.run_program(program, dict(zip((t.name for t in program.inputs), given, strict=True)))
        found = kernel(*given)
        for t, array in zip(program.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            np.testing.assert_array_equal(array, wanted[t.name])


def test_what_is_of_another_kind() -> None:
    """Known sizes, guards and sums of products that are used again have policies of their own."""
    for text, shapes in (
        ("B[j,i] = A[i,j]", {"A": (8, 9)}),
        ("B[i,j] = A[i,j] + 1", {"A": ("M", "N")}),
        ("B[j,i] = (A[i-1,j] if i > 0 else 0) where 0 <= i < M and 0 <= j < N", {"A": ("M", "N")}),
        ("C[i,k] += A[i,j]*B[j,k]", {"A": ("M", "K"), "B": ("K", "N")}),
    ):
        program = poly.parse(text, **shapes)  # pyright: ignore
        for s in program.statements:
            for make in (transposed, columns_summed):
                assert make(unchecked(Schedule(program)), s.name, CPU) is None


def test_rows_that_need_one_another_stay_apart() -> None:
    """A sum over rows is complete only after the last one: its loop is not shared with what uses it."""
    program = poly.parse("s[j] += A[i,j]; B[i,j] = A[i,j] - s[j]", A=("M", "N"))
    schedule = rows_shared(Schedule(program), [s.name for s in program.statements], CPU)
    assert schedule.under(schedule.nests["B_set"].names[0]) == ("B_set",)
