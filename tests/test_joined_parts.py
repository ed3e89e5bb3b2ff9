"""Statements that interleave a target as one: which, with which results, and that whole vectors are stored."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.joined_parts import with_parts_joined

PAIRS = "for i:\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n    T[i]: y[2*i + 1] = b[i] where 0 <= i < N\n"
APART = "S[i]: y[2*i] = a[i] where 0 <= i < N\nT[i]: y[2*i + 1] = b[i] where 0 <= i < N\n"
THREE = (
    "for i:\n    S[i]: y[3*i] = a[i]*b[i] where 0 <= i < N\n    T[i]: y[3*i + 1] = 0.5 where 0 <= i < N\n"
    "    U[i]: y[3*i + 2] = a[i] - b[i] where 0 <= i < N\n"
)
PRODUCTS = (
    "for i:\n    S[i]: y[2*i] = c[2*i]*d[2*i] - c[2*i + 1]*d[2*i + 1] where 0 <= i < N\n"
    "    T[i]: y[2*i + 1] = c[2*i]*d[2*i + 1] + c[2*i + 1]*d[2*i] where 0 <= i < N\n"
)
BETWEEN = (
    "for i:\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n    U[i]: z[i] = b[i] where 0 <= i < N\n"
    "    T[i]: y[2*i + 1] = b[i] where 0 <= i < N\n"
)
BESIDE = (
    "for i:\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n    T[i]: y[2*i + 1] = b[i] where 0 <= i < N\n"
    "    U[i]: z[i] = b[i] where 0 <= i < N\n"
)
ONE_NEST_EACH = (
    "for i:\n    U[i]: z[i] = a[i] where 0 <= i < N\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n"
    "T[i]: y[2*i + 1] = z[i] where 0 <= i < N\n"
)
SHIFTED = "for i:\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n    T[i]: y[2*i + 1] = b[i] where 0 <= i < N - 1\n"
READ = PAIRS + "U[i]: z[i] = y[i] where 0 <= i < N\n"
OVERLAP = "for i:\n    S[i]: y[i] = a[i] where 0 <= i < N\n    T[i]: y[i + 1] = b[i] where 0 <= i < N\n"
LITERALS = "for i:\n    S[i]: y[2*i] = 1 where 0 <= i < N\n    T[i]: y[2*i + 1] = 2 where 0 <= i < N\n"
TWO_OF_THREE = (
    "for i:\n    S[i]: y[3*i] = a[i] where 0 <= i < N\n    T[i]: y[3*i + 1] = b[i] where 0 <= i < N\n"
)
HOLES = (
    "for i:\n    S[i]: y[2*i] = a[i] where 0 <= i < N and i % 3 < 2\n"
    "    T[i]: y[2*i + 1] = b[i] where 0 <= i < N and i % 3 < 2\n"
)
TURNED = "for i:\n    S[i]: y[2*i + 1] = a[i] where 0 <= i < N\n    T[i]: y[2*i] = b[i] where 0 <= i < N\n"


def parsed(body: str, n: int, dtype: str = "f32") -> Program:
    extents = {"a": "N", "b": "N", "c": "2*N", "d": "2*N", "y": "3*N", "z": "N"}
    written = set(re.findall(r"(\w)\[[^]]*\] = ", body))
    used = {m for m in extents if f"{m}[" in body}
    tensors = [f"{'inout' if m in written else 'input'} {m}: {dtype}[{extents[m]}]" for m in sorted(used)]
    return poly.parse(f"program p(N); {'; '.join(tensors)}\n{body}").bind(N=n)


@pytest.mark.parametrize("n", [4, 16, 53])
@pytest.mark.parametrize(
    ("body", "statements"),
    [
        (PAIRS, 1), (APART, 1), (THREE, 1), (PRODUCTS, 1), (BESIDE, 2),
        (BETWEEN, 3), (ONE_NEST_EACH, 3), (SHIFTED, 2), (READ, 3), (OVERLAP, 2), (TURNED, 2),
        (LITERALS, 2), (TWO_OF_THREE, 2), (HOLES, 2),
    ],
)  # fmt: skip
def test_parts_are_one_statement_where_nothing_is_between(body: str, statements: int, n: int) -> None:
    program = parsed(body, n)
    joined = with_parts_joined(program)
    assert len(joined.statements) == statements
    rng = np.random.default_rng(0)
    values = {t.name: rng.standard_normal(t.extents(program.binding)).astype("f4") for t in program.inputs}
    wanted: Any = run_program(program, values)
    found = run_program(joined, values)
    kernel: Any = poly.compile(program, threads=1)
    made = kernel(**values)
    results = made if isinstance(made, tuple) else (made,)
    for tensor, result in zip(program.outputs, results, strict=True):
        np.testing.assert_array_equal(found[tensor.name], wanted[tensor.name])
        np.testing.assert_allclose(result, wanted[tensor.name], rtol=1e-6, atol=1e-6)


def test_a_size_that_has_the_name_of_the_loop_over_parts() -> None:
    head = "program p(N, part); inout y: f32[2*N]; input a: f32[N]; input b: f32[N]; input c: f32[part]\n"
    program = poly.parse(head + PAIRS).bind(N=16, part=3)
    assert with_parts_joined(program) is program


def test_parts_whose_nests_have_others_in_them_stay() -> None:
    """Statements side by side whose paths differ in one position, as where something was left out of a nest."""
    body = "for i:\n    U[i]: z[i] = a[i] where 0 <= i < N\n    S[i]: y[2*i] = a[i] where 0 <= i < N\n"
    program = parsed(body + "T[i]: y[2*i + 1] = z[i] where 0 <= i < N\n", 16)
    u, s, t = program.statements
    assert (s.path, t.path) == ((0, "i", 1), (1, "i"))
    apart = replace(program, statements=(u, s, replace(t, path=(1, "i", 1))))
    assert with_parts_joined(apart) is apart


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64"])
def test_parts_leave_as_whole_vectors(dtype: str) -> None:
    kernel: Any = poly.compile(parsed(PAIRS, 64, dtype), threads=1)
    assert "y_S_r" in str(kernel.loops)
    rng = np.random.default_rng(0)
    a, b, y = (rng.integers(-9, 9, e).astype(dtype[0] + str(int(dtype[1:]) // 8)) for e in (64, 64, 192))
    wanted = y.copy()
    wanted[0:128:2], wanted[1:128:2] = a, b
    np.testing.assert_array_equal(kernel(a, b, y), wanted)
