"""A tensor that a statement reads twice, in two ways: each read has its own plan, as if it were a tensor of its own."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.errors import ScheduleError
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from tests.machines import AVX2

PRODUCTS = ("ik,jk->ij", "ki,kj->ij", "ik,kj->ij", "bik,bjk->bij", "ij,jk,kl->il")
SUMS = (
    "C[i, j] = A[i, j] + A[j, i]",
    "C[i, j] = 2*A[j, i] - A[j, i]*A[j, i]",
    "C[i, j] = A[i, j]*A[i, j]; D[i, j] = C[i, j] + C[j, i]",
    "C[i] += A[i, j]*A[j, i]",
    "C[i, j] = A[i, j] - A[0, j]*A[j, i]",
)


def promotions(program: Program) -> int:
    return sum(e.name == "promote" for e in schedule_for_cpu(program, AVX2).log)


def text_of(spec: str, names: str) -> str:
    inputs, result = spec.split("->")
    factors = [f"{n}[{', '.join(i)}]" for n, i in zip(names, inputs.split(","), strict=False)]
    return f"C[{', '.join(result)}] += {'*'.join(factors)}"


@pytest.mark.parametrize("n", [96, 131])
@pytest.mark.parametrize("spec", PRODUCTS)
def test_products(spec: str, n: int) -> None:
    shape = (2, n, n) if "b" in spec else (n, n)
    program = poly.parse(text_of(spec, "AAA"), A=shape)
    factors = spec.split("->")[0].split(",")
    apart = poly.parse(text_of(spec, "XYZ"), dtypes=None, **dict.fromkeys("XYZ"[: len(factors)], shape))
    assert promotions(program) == promotions(apart) > 0
    a = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    found = poly.compile(program)(a)
    np.testing.assert_array_equal(found, np.einsum(spec, *[a] * len(factors), optimize=True))


@pytest.mark.parametrize("n", [7, 64, 100])
@pytest.mark.parametrize("text", SUMS)
def test_what_is_read_along_and_across_rows(text: str, n: int) -> None:
    program = poly.parse(text, A=(n, n))
    a = np.random.default_rng(0).integers(-4, 5, (n, n)).astype(np.float32)
    found, expected = poly.compile(program)(a), run_program(program, {"A": a})
    for t, x in zip(program.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        assert np.array_equal(x, expected[t.name])


def test_squares_of_the_read_across_alone_are_in_registers() -> None:
    script = [str(e) for e in schedule_for_cpu(poly.parse(SUMS[0], A=(64, 64)), AVX2).log]
    assert sum("promote" in e and "reads=(1,)" in e for e in script) == 1


@pytest.mark.parametrize(("reads", "why"), [((7,), "7 of C_update is none of A"), ((0, 9), "read 9"), ((), "no read")])
def test_positions_that_are_no_reads_are_told(reads: tuple[int, ...], why: str) -> None:
    schedule = poly.Schedule(poly.parse(text_of("ik,jk->ij", "AA"), A=(8, 8)))
    with pytest.raises(ScheduleError, match=why) as found:
        schedule.promote("A", "C_update.i", "l1", reads=reads)
    assert "[0, 1]" in str(found.value)
