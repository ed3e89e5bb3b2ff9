"""Sums over axes on both sides of others: which add up the outer ones first, and that values stay what they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.affine import Affine
from poly.dtypes import numpy_dtype
from poly.expr import Const
from poly.interp import run_program
from poly.program import Access, External, Program, Statement, box_domain
from poly.scheduling.outer_sums import with_outer_sums_first

SUMS = {  # by what is in them: text, shape
    "middle": ("y[j] += x[i, j, k]", (70, 5, 9)),
    "two axes": ("y[j, l] += x[i, j, l, k]", (70, 5, 3, 9)),
    "other order": ("y[l, j] += x[i, j, l, k]", (70, 5, 3, 9)),
    "two outside": ("y[j] += x[i, h, j, k]", (16, 5, 5, 9)),
    "all around": ("y[j, l] += x[i, j, h, l, k]", (70, 3, 2, 5, 9)),
    "largest": ("y[j] max= x[i, j, k]", (70, 5, 9)),
    "products": ("y[j] *= x[i, j, k]", (70, 5, 9)),
}
LEFT = {
    "few rows": ("y[j] += x[i, j, k]", (63, 5, 9)),
    "long pieces": ("y[j] += x[i, j, k]", (70, 5, 256)),
    "much between": ("y[j] += x[i, j, k]", (70, 100, 100)),
    "nothing inside": ("y[j] += x[i, j]", (70, 9)),
    "nothing around": ("y[i] += x[i, k]", (70, 9)),
    "everything": ("y += x[i, k]", (70, 9)),
    "squares": ("y[j] += x[i, j, k]*x[i, j, k]", (70, 5, 9)),
    "a part": ("y[j] += x[i, j, k] where 0 <= k < 8", (70, 5, 9)),
    "backwards": ("y[j] += x[69 - i, j, k] where 0 <= i < 70", (70, 5, 9)),
    "a diagonal": ("y[j] += x[i, j, j, k]", (70, 5, 5, 9)),
    "another reader": ("y[j] += x[i, j, k]\nz[i, j, k] = x[i, j, k] + 1", (70, 5, 9)),
}


def parsed(text: str, shape: tuple[int, ...], dtype: str = "f32") -> Program:
    return poly.parse(text, dtypes={"x": dtype}, x=shape)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i8"])
@pytest.mark.parametrize("what", SUMS)
def test_outer_axes_are_added_up_first(what: str, dtype: str) -> None:
    program = parsed(*SUMS[what], dtype)
    edited = with_outer_sums_first(program)
    assert [s.combiner is None for s in edited.statements] == [True, False, True, False]
    low, high = (1, 3) if "*=" in SUMS[what][0] else (-3, 4)
    x = np.random.default_rng(3).integers(low, high, SUMS[what][1]).astype(numpy_dtype(dtype))
    x = np.sign(x) if "*=" in SUMS[what][0] else x
    expected = run_program(program, {"x": x})["y"]
    flat = x.reshape(edited.tensor["x"].extents(edited.binding))
    np.testing.assert_array_equal(run_program(edited, {"x": flat})["y"], expected)
    for threads in (1, 2):
        np.testing.assert_array_equal(poly.compile(program, threads=threads)(x=x), expected)


def test_what_an_external_statement_reads_keeps_its_axes() -> None:
    program = parsed(*SUMS["middle"])
    x, outside = program.tensor["x"], replace(program.tensor["x"], name="z", role="output")
    first = Access("z", (Affine(),) * x.rank)
    external = External("sort", b"", ("x",), ("z",))
    sort = Statement("E", (), box_domain("E", []), first, (), Const(0), path=(9,), external=external)
    both = replace(program, tensors=(*program.tensors, outside), statements=(*program.statements, sort))
    assert with_outer_sums_first(both) is both


def test_sums_of_free_sizes_stay() -> None:
    program = poly.parse("y[j] += x[i, j, k]", x=("N", 5, 9))
    assert with_outer_sums_first(program) is program


@pytest.mark.parametrize("what", LEFT)
def test_other_sums_stay(what: str) -> None:
    program = parsed(*LEFT[what])
    assert with_outer_sums_first(program) is program
