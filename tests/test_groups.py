"""Which statements run in one nest: boxes in programs with sizes that have nothing to do with them."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.groups import domain_box, groups_of
from poly.text import parse_program

TEXT = """program apart(N) where N >= 3
input A: f32[4, 5]
input B: f32[5, 6]
input V: f32[N]
output W: f32[N]
output C: f32[4, 6]
s[i]: W[i] = V[i] * 2 where 0 <= i < N
a[i, j]: C[i, j] = 1 where 0 <= i < 4 and 0 <= j < 6
b[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < 4 and 0 <= j < 6 and 0 <= k < 5
"""


def kinds(program: Program) -> list[tuple[str, ...]]:
    return [g.names for g in groups_of(program)]


def test_a_free_size_elsewhere_leaves_a_box_a_box() -> None:
    program = parse_program(TEXT)
    assert kinds(program) == [("s",), ("a", "b")]
    assert domain_box(program, program.statement["b"], ("k", "i")) == ((0, 4), (0, 3))
    assert domain_box(program, program.statement["s"], ("i",)) is None
    random = np.random.default_rng(0)
    kernel = poly.compile(program)
    for n in (3, 8):
        arrays = {"A": random.integers(-3, 4, (4, 5)), "B": random.integers(-3, 4, (5, 6)), "V": np.arange(n)}
        arrays = {name: a.astype("f4") for name, a in arrays.items()}
        found = kernel(**arrays)
        expected = run_program(program, arrays)
        assert all(np.array_equal(f, expected[t.name]) for f, t in zip(found, program.outputs, strict=True))


@pytest.mark.parametrize("condition", ["k < N", "N >= 4", "i < N"])
def test_what_depends_on_a_free_size_is_no_box(condition: str) -> None:
    """Neither in its extents nor in whether it runs at all."""
    program = parse_program(TEXT.replace("0 <= k < 5", f"0 <= k < 5 and {condition}"))
    assert domain_box(program, program.statement["b"], ("i", "j")) is None
    assert kinds(program) == [("s",), ("a",), ("b",)]


def test_a_condition_that_the_context_holds_is_none() -> None:
    program = parse_program(TEXT.replace("0 <= k < 5", "0 <= k < 5 and N >= 3"))
    assert kinds(program) == [("s",), ("a", "b")]
    assert kinds(parse_program(TEXT.replace("N >= 3", "N >= 5").replace("k < 5", "k < 5 and k < N")))[-1] == ("a", "b")
