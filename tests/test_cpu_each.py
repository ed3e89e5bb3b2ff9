"""Each statement for itself: what gets lanes where sizes are free, and that the code agrees with the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.compiler import machine_of
from poly.dtypes import numpy_dtype
from poly.errors import PolyError
from poly.scheduling.cpu_each import schedule_each
from poly.scheduling.schedule import Schedule

CPU = machine_of("cpu")
# text, shapes, dtype, how many statements get lanes
CASES: dict[str, tuple[str, dict[str, tuple[int | str, ...]], str, int]] = {
    "product": ("C[b,s,k] += A[b,s,j]*B[j,k]", {"A": ("M", "N", 24), "B": (24, 32)}, "f32", 2),
    "an extent with a rest": ("C[b,k] += A[b,j]*B[j,k]", {"A": ("M", 7), "B": (7, 27)}, "f32", 2),
    "less than a vector": ("C[b,k] += A[b,j]*B[j,k]", {"A": ("M", 7), "B": (7, 3)}, "f32", 2),
    "chain": ("C[b,k] += A[b,j]*B[j,k]; D[b,k] = max(C[b,k] + c[k], 0)", {"A": ("M", 9), "B": (9, 16), "c": (16,)},
              "f32", 3),
    "doubles": ("C[b,k] += A[b,j]*B[j,k]", {"A": ("M", 9), "B": (9, 16)}, "f64", 2),
    "integers": ("C[b,k] += A[b,j]*B[j,k]", {"A": ("M", 9), "B": (9, 16)}, "i32", 2),
    "a free last extent": ("C[k,b] += A[k,j]*B[j,b]", {"A": (8, 9), "B": (9, "M")}, "f32", 2),
    "across the lanes": ("C[b,k] += A[b,j]*B[k,j]", {"A": ("M", 16), "B": (16, 16)}, "f32", 4),
    "greatest": ("C[b,k] max= A[b,j,k]", {"A": ("M", 5, 40)}, "f32", 2),
    "elementwise": ("C[b,k] = exp(A[b,k]) + B[k]", {"A": ("M", 40), "B": (40,)}, "f32", 1),
    "transposed": ("C[b,k] = A[k,b]", {"A": (16, "M")}, "f32", 0),
}  # fmt: skip


def arrays(program: poly.Program, sizes: dict[str, int], dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.integers(-4, 5, t.extents(sizes)).astype(numpy_dtype(dtype)) for t in program.inputs}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_lanes_and_results(name: str, threads: int) -> None:
    text, shapes, dtype, lanes = CASES[name]
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    schedule = schedule_each(program, CPU, threads)
    schedule.check()
    marked = {n for n in schedule.nests if any(schedule.kind(x) == "vector" for x in schedule.nests[n].names)}
    assert len({s.origin or s.name for s in schedule.program.statements if s.name in marked and not s.copies}) == lanes
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    kernel = poly.compile(schedule, threads=threads)
    for m, n in ((1, 1), (2, 3), (5, 1), (13, 4)):
        sizes = {k: v for k, v in {"M": m, "N": n}.items() if k in program.parameters}
        given = arrays(program, sizes, dtype)
        wanted = poly.run_program(program, given)
        found = kernel(*given.values())
        for t, array in zip(program.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            np.testing.assert_allclose(array, wanted[t.name], rtol=1e-5)  # pyright: ignore


def test_what_a_check_refuses_stays_as_it_was() -> None:
    program = poly.parse("A[i,k] += A[i-1,k] where 1 <= i < M and 0 <= k < 16", A=("M", 16))
    schedule = schedule_each(program, CPU)
    schedule.check()
    scan = poly.parse("S[b,k] = S[b,k-1] + A[b,k] where 0 <= b < M and 1 <= k < 16", A=("M", 16), S=("M", 16))
    with pytest.raises(PolyError):
        Schedule(scan).vectorise("k")
    assert "vectorise" not in schedule_each(scan, CPU).script


def test_threads_share_what_sizes_leave_open() -> None:
    """The outermost loop of every nest, a padded copy's too; not where it is known to be short work."""
    text = "Y[i,j] += (X[i+r-1,j] if 0 <= i+r-1 and i+r-1 < M else 0) where 0 <= i < M and 0 <= j < 40 and 0 <= r < 3"
    schedule = schedule_each(poly.parse(text, X=("M", 40)), CPU, 2)
    schedule.check()
    outermost = {nest.names[0] for nest in schedule.nests.values() if nest.names}
    assert any(s.copies for s in schedule.program.statements)
    assert {schedule.kind(loop) for loop in outermost} == {"parallel"}
    short = schedule_each(poly.parse("C[i] = A[i] + 1", A=(64,)), CPU, 2)
    assert "parallelise" not in short.script
