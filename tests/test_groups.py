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


def parsed(text: str) -> Program:
    return poly.parse(text, dtypes=None, **{n: (24, 24) for n in "XYZ" if f"{n}[" in text})


def agrees(program: Program) -> None:
    """Compiled and interpreted, from the same random arrays."""
    random = np.random.default_rng(0)
    given = {t.name: random.random(t.extents(program.binding), np.float32) for t in program.inputs}
    expected = run_program(program, {n: a.copy() for n, a in given.items()})
    for t, a in zip(program.outputs, results(program, given), strict=True):
        assert np.allclose(a, expected[t.name], rtol=1e-5)


def results(program: Program, given: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    found = poly.compile(program)(**given)
    return found if isinstance(found, tuple) else (found,)


def test_values_that_meet_are_made_in_one_nest() -> None:
    """Two assignments that read nothing of one another, and a third one that reads both."""
    program = parsed("A[i, j] = 2*X[i, j]; B[i, j] = Y[i, j] + 1; D[i, j] = A[i, j] + 1; C[i, j] = B[i, j]*D[i, j]")
    assert kinds(program) == [("A_set", "B_set", "D_set", "C_set")]
    schedule = poly.compile(program).schedule
    assert schedule is not None
    assert {t.origin for t in schedule.program.tensors if t.scope} == {"A", "B", "D"}  # in registers
    agrees(program)


def test_a_value_that_others_need_too_is_still_written() -> None:
    program = parsed("A[i, j] = 2*X[i, j]; B[i, j] = Y[i, j] + 1; C[i, j] = A[i, j]*B[i, j]; R[i] += A[i, j]")
    assert kinds(program)[0] == ("A_set", "B_set", "C_set")
    agrees(program)


@pytest.mark.parametrize(
    "text",
    [
        "A[i, j] = 2*Z[j, i]; B[i, j] = Y[i, j] + 1; C[i, j] = A[i, j]*B[i, j]",  # across the rows of Z
        "A[i, j] = 2*X[i, j]; B[j, i] = Z[j, i] + 1; C[i, j] = A[i, j]*B[j, i]",  # loops in another order
        "A[i, j] = 2*X[i, j]; R[i] += A[i, j]; B[i, j] = Y[i, j] + R[i]; C[i, j] = A[i, j]*B[i, j]",  # R is between
        "A[i, j] = 2*X[i, j]; B[i, j] += X[i, k]*Z[k, j]; C[i, j] = A[i, j]*B[i, j]",  # a reduction
        "A[i, j] = 2*X[i, j]; B[i, j] = Y[i, j] + 1; C[i, j] = A[i, 23 - j]*B[i, j]",  # another element
    ],
)
def test_values_that_meet_but_stay_apart(text: str) -> None:
    program = parsed(text)
    assert not any({"A_set", "C_set"} <= {*g} for g in kinds(program))
    agrees(program)


@pytest.mark.parametrize("read", ["i, j", "7 - i, j"])
def test_what_is_overwritten_between(read: str) -> None:
    """What reads the old X stays before what writes the new one."""
    program = parse_program(f"""program over
input Y: f32[8, 16]
inout X: f32[8, 16]
output C: f32[8, 16]
temporary A: f32[8, 16]
a[i, j]: A[i, j] = 2*X[{read}] where 0 <= i < 8 and 0 <= j < 16
b[i, j]: X[i, j] = Y[i, j] + 1 where 0 <= i < 8 and 0 <= j < 16
c[i, j]: C[i, j] = A[i, j]*X[i, j] where 0 <= i < 8 and 0 <= j < 16
""")
    x, y = np.random.default_rng(0).random((2, 8, 16), np.float32)
    expected = run_program(program, {"X": x.copy(), "Y": y})["C"]
    assert any(np.array_equal(a, expected) for a in results(program, {"X": x.copy(), "Y": y}))


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("B[j, i] = tanh(Y[j, i]); C[i, j] = X[i, j]*B[j, i]", True),
        ("B[i, j] = X[i, j]*Y[j, i]; C[i, j] = max(B[i, j], 0)", True),
        ("B[i, j] += X[i, k]*Y[k, j]; C[j, i] = max(B[i, j], 0)", True),
        ("B[i, j] += X[i, k]*Y[k, j]; C[i, j] = max(B[i, j], 0) + Z[j, i]", False),  # the sums stay in registers
        ("B[i, j] = X[i, j] + Y[0, j]; C[i, j] = B[i, j]*Z[i, 0]", False),
    ],
)
def test_what_goes_across_rows_stays_alone(text: str, apart: bool) -> None:
    """No loop would be left along which all of a nest touches neighbours."""
    program = parsed(text)
    assert any("C_set" in names and len(names) > 1 for names in kinds(program)) is not apart
    agrees(program)


def test_a_recurrence_along_rows_runs_with_what_they_begin_with() -> None:
    along = "Y[i,0] = X[i,0]\nY[i,j+1] = Y[i,j] + X[i,j+1]"
    assert len(kinds(parsed(along))) == 1
    assert len(kinds(parsed("Y[0,j] = X[0,j]\nY[i+1,j] = Y[i,j] + X[i+1,j]"))) == 2
