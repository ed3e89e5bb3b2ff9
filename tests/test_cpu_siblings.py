"""Sums of the same columns are one walk through what they read, results over ragged sizes."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.frontend.nest import nest
from poly.loops import Compute
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from tests.machines import AVX2
from tests.nest_texts import define

SIZES = ((100, 130), (83, 700), (9, 8001), (41, 67))
SUMS = """
def f(x: 'f64[{0}, {1}]', s: 'f64[{1}]', q: 'f64[{1}]'):
    for i in range({0}):
        for j in range({1}):
            s[j] += x[i, j]
            q[j] += x[i, j] * x[i, j]
"""
LOCALS = """
def f(x: 'f64[{0}, {1}]', s: 'f64[{1}]', q: 'f64[{1}]'):
    for j in range({1}):
        a = 0.0
        b = 0.0
        for i in range({0}):
            a += x[i, j]
            b += x[i, j] * x[i, j]
        m = a / {0}
        s[j] = m
        q[j] = b / {0} - m * m
"""
DIVIDED = (
    SUMS
    + """
    for j in range({1}):
        s[j] = s[j] / {0}
        q[j] = q[j] / {0} - s[j] * s[j]
"""
)
NOTATION = "s[j] += x[i,j]; q[j] += x[i,j]*x[i,j]; t[j] max= x[i,j]; u[j] = t[j] - s[j]"
CHAIN = "s[j] += x[i,j]; m[j] = s[j] * 0.01; q[j] += (x[i,j] - m[j])*(x[i,j] - m[j])"
BATCHES = "s[b,j] += x[b,i,j]; q[b,j] += x[b,i,j]*x[b,i,j]"


def program_of(text: str, *shape: int) -> Program:
    if text.lstrip().startswith("def"):
        return nest(define(text.format(*shape))).program
    return poly.parse(text, x=(2, *shape) if "x[b" in text else shape)


def walks(program: Program) -> int:
    """Outermost loops that read x."""
    schedule = schedule_for_cpu(program, AVX2)
    nodes = [n for n in schedule.lower().nodes() if isinstance(n, Compute)]
    names = {n.statement for n in nodes if any(r.tensor == "x" for r in n.reads)}
    return len({schedule.nests[n].names[0] for n in names})


@pytest.mark.parametrize(("text", "wanted"), [(SUMS, 1), (LOCALS, 1), (DIVIDED, 1), (NOTATION, 1), (CHAIN, 2)])
def test_walks(text: str, wanted: int) -> None:
    assert walks(program_of(text, 96, 128)) == wanted


@pytest.mark.parametrize("text", [SUMS, LOCALS, DIVIDED, NOTATION, CHAIN, BATCHES])
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results(text: str, shape: tuple[int, int], threads: int) -> None:
    program = program_of(text, *shape)
    source = np.random.default_rng(0)
    values = {t.name: source.integers(-3, 4, t.extents({})).astype(numpy_dtype(t.dtype)) for t in program.inputs}
    found = poly.compile(program, threads=threads)(**values)
    wanted = poly.run_program(program, values)
    results = found if isinstance(found, tuple) else (found,)
    for tensor, result in zip(program.outputs, results, strict=True):
        aim = np.asarray(wanted[tensor.name], "f8")
        np.testing.assert_allclose(np.asarray(result, "f8"), aim, rtol=1e-5, atol=1e-4, err_msg=tensor.name)
