"""Results of contractions as operands lie, copied out: the same values, and only where it pays."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.frontend.einsum import einsum_program
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu_columns import with_columns
from poly.scheduling.laid_results import laid_results
from poly.scheduling.schedule import Schedule
from tests.other_cpus import CPUS

Shape = tuple[int, ...]


def arrays(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {t.name: random.integers(-3, 4, t.extents(program.binding)).astype("f4") for t in program.inputs}


def einsum(spec: str, *shapes: Shape) -> Program:
    return einsum_program(spec, shapes, ["f32"] * len(shapes))


@pytest.mark.parametrize(
    ("spec", "shapes", "orders"),
    [
        ("ij,jk->ik", ((3, 4), (4, 5)), []),  # rows of the first, columns of the second
        ("ij,jk->ki", ((3, 4), (4, 5)), []),  # or the other way around
        ("xea,ec->acx", ((6, 4, 3), (4, 5)), ["c, x, a", "x, a, c"]),
        ("dbea,ec->abcd", ((4, 3, 5, 2), (5, 6)), ["c, d, b, a", "d, b, a, c"]),
        ("bik,bkj->jbi", ((2, 3, 4), (2, 4, 5)), ["b, i, j", "b, j, i"]),  # of a batch
        ("bik,kbj->ibj", ((2, 3, 4), (4, 2, 5)), ["b, i, j", "b, j, i"]),
        ("xea->ax", ((6, 4, 3),), []),  # no product
    ],
)
def test_the_result_can_lie_as_either_operand_does(spec: str, shapes: tuple[Shape, ...], orders: list[str]) -> None:
    program = einsum(spec, *shapes)
    inputs = arrays(program)
    (expected,) = run_program(program, inputs).values()
    laid = [*laid_results(program)]
    assert [", ".join(map(str, p.statements[1].write.index)) for p in laid] == orders
    for one in laid:
        assert one.statements[-1].write.tensor == "out"
        (result,) = run_program(one, inputs).values()
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(poly.compile(one, schedule=Schedule(one))(*inputs.values()), expected)


@pytest.mark.parametrize("text", ["C[a,b,c] += A[b,k] * B[k,a]", "C[c,a,b] += A[b,k] * B[k,a]"])
def test_a_result_that_repeats_what_its_operands_give_stays_as_it_is(text: str) -> None:
    program = poly.parse(text, A=(20, 33), B=(33, 40), C=(40, 20, 3) if text.startswith("C[a") else (3, 40, 20))
    assert not [*laid_results(program)]
    inputs = arrays(program)
    np.testing.assert_array_equal(poly.compile(program)(*inputs.values()), run_program(program, inputs)["C"])


def test_what_a_program_adds_to_is_left_where_it_is() -> None:
    program = poly.parse("inout C: f32[3,5,6]; C[a,c,x] += A[x,e,a] * B[e,c]", A=(6, 4, 3), B=(4, 5))
    assert len(program.statements) == 1
    assert not [*laid_results(program)]


@pytest.mark.parametrize(
    ("spec", "shapes", "pays"),
    [
        ("xea,ec->acx", ((1280, 48, 32), (48, 32)), True),
        ("ifdba,ifj->dbajf", ((64, 4, 10, 10, 8), (64, 4, 130)), True),
        ("xea,ec->xac", ((1280, 48, 32), (48, 32)), False),
        ("ki,jk->ij", ((512, 512), (512, 512)), False),
    ],
)
def test_a_copy_of_the_result_is_made_where_it_pays(spec: str, shapes: tuple[Shape, ...], pays: bool) -> None:
    program = einsum(spec, *shapes)
    chosen = with_columns(program, CPUS["avx512"], 1)
    assert ("out_laid" in chosen.tensor) == pays
    inputs = [np.random.default_rng(3).random(s, np.float32) for s in shapes]
    result = np.asarray(poly.compile(program)(*inputs), "f4")
    np.testing.assert_allclose(result, np.einsum(spec, *inputs, optimize=True), rtol=2e-5)
