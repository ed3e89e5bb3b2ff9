"""Copies that make what they copy themselves (`inline`)."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.errors import IllegalEdit, ScheduleError
from poly.interp_loops import run_loops
from poly.program import Program
from poly.scheduling.schedule import Schedule

TEXT = "T[i,k] = 2*A[i,2*k] + A[i,2*k+1]; C[i,j] += T[i,k]*B[k,j]"
SIZES = {"A": (12, 14), "B": (7, 9), "T": (12, 7)}


def packed(text: str = TEXT, at: str | None = "C_update.i.o") -> Schedule:
    """Blocks of four rows of T in a buffer of their own, columns outside of rows."""
    program = poly.parse(text, dtypes={}, **{n: s for n, s in SIZES.items() if n in text})
    schedule = Schedule(program).tile({"C_update.i": 4})
    return schedule.promote("T", at, "l2", name="Tp", users=["C_update"], order=(1, 0), block={0: 2})


def same_sums(program: Program, schedule: Schedule) -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(-9, 9, SIZES[n]).astype(np.float32) for n in "AB")
    t = 2 * a[:, ::2] + a[:, 1::2]
    found = run_loops(schedule.lower(), {t.name: {"A": a, "B": b}[t.name] for t in program.inputs})
    np.testing.assert_array_equal(found["C"], t @ b)
    if "D" in found:
        np.testing.assert_array_equal(found["D"], t + 1)


def test_a_copy_makes_what_it_copies() -> None:
    before = packed()
    schedule = before.inline("ld_Tp")
    assert "T" not in schedule.program.tensor and schedule.nests.keys() == before.nests.keys() - {"T_set"}
    made = schedule.program.statement["ld_Tp"]
    assert made.recomputed and not made.copies and schedule.nests["ld_Tp"].loops == before.nests["ld_Tp"].loops
    assert schedule.program.tensor["Tp"].layout == before.program.tensor["Tp"].layout
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    same_sums(schedule.source, schedule)


def test_what_others_read_is_made_for_them_too() -> None:
    schedule = packed(f"{TEXT}; D[i,k] = T[i,k] + 1").inline("ld_Tp")
    assert "T_set" in schedule.nests
    same_sums(schedule.source, schedule)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (TEXT, None),  # no loop that it would run in again
        ("T[i,k] += A[i,k]*A[i,k+l] where 0 <= l < 8; C[i,j] += T[i,k]*B[k,j]", "C_update.i.o"),
        ("C[i,j] += T[i,k]*B[k,j]", "C_update.i.o"),
        (f"{TEXT.split(';')[0]}; T[0,k] = A[0,k+7]; C[i,j] += T[i,k]*B[k,j]", "C_update.i.o"),
    ],
    ids=["whole", "sums", "input", "two writers"],
)
def test_what_cannot_be_made_again(text: str, at: str | None) -> None:
    with pytest.raises(ScheduleError, match="no copy of what can be made again"):
        packed(text, at).inline("ld_Tp")


def test_only_copies_are_inlined() -> None:
    with pytest.raises(ScheduleError, match="C_update is no copy"):
        packed().inline("C_update")
    with pytest.raises(ScheduleError, match="no copy"):
        packed().inline("ld_Tp").inline("ld_Tp")


def test_values_of_indices_are_those_of_the_copy() -> None:
    """The body names its own iterators, here as the copy does, the other way round."""
    program = poly.parse("T[e1,e0] = A[e1,e0] + f32(index(40*e1 + e0)); C[i,j] += T[i,k]*B[k,j]", A=(12, 7), B=(7, 9))
    schedule = Schedule(program).tile({"C_update.i": 4}).promote("T", "C_update.i.o", "l2", name="Tp").inline("ld_Tp")
    assert schedule.program.statement["ld_Tp"].iterators[-2:] == ("e0", "e1")
    a, b = np.ones((12, 7), np.float32), np.ones((7, 9), np.float32)
    t = 1 + np.add.outer(40 * np.arange(12), np.arange(7))
    np.testing.assert_array_equal(run_loops(schedule.lower(), {"A": a, "B": b})["C"], t @ b)


def test_what_changes_before_a_copy_is_not_made_again_there() -> None:
    text = "inout A: f32[32,16]; T[i,j] = A[31-i,j]*2; A[i,j] = T[i,j] + 1"
    schedule = Schedule(poly.parse(text)).tile({"A_set.i": 8}).promote("T", "A_set.i.o", "l1")
    with pytest.raises(IllegalEdit, match="ld_T_l1 reads A and gets a value it should not of A_set"):
        schedule.inline("ld_T_l1")
