"""Two tensors in one memory (`overlay`): what may share it, and what the value check refuses."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.errors import IllegalEdit, ScheduleError
from poly.interp_loops import run_loops
from poly.scheduling.schedule import Schedule

CHAIN = "e[i,j] = 2 * x[i,j]; s[i] += e[i,j]; y[i,j] = e[i,j] * s[i]"


def chain(text: str = CHAIN) -> Schedule:
    program = poly.parse(text, dtypes={"x": "i32", "e": "i32", "s": "i32", "y": "i32"}, x=(4, 6))
    return Schedule(program)


def test_a_temporary_lies_in_the_result() -> None:
    schedule = chain().overlay("e", "y")
    assert "e" not in schedule.program.tensor
    assert Schedule.parse(str(schedule)).script == schedule.script
    x = np.arange(24, dtype=np.int32).reshape(4, 6)
    doubled = 2 * x
    found = run_loops(schedule.lower(), {"x": x})
    np.testing.assert_array_equal(found["y"], doubled * doubled.sum(1, keepdims=True))


def test_edits_before_and_after() -> None:
    schedule = chain().fuse("e_set.i", "s_init.i").fuse("i", "s_update.i").overlay("e", "y").fuse("i", "y_set.i")
    x = np.arange(24, dtype=np.int32).reshape(4, 6)
    found = run_loops(schedule.lower(), {"x": x})
    np.testing.assert_array_equal(found["y"], 2 * x * (2 * x).sum(1, keepdims=True))


@pytest.mark.parametrize(
    "text",
    [
        "e[i,j] = 2 * x[i,j]; y[i,j] = x[i,j] + 1; z[i,j] = e[i,j] * y[i,j]",  # both are needed at once
        "e[i,j] = 2 * x[i,j]; y[i,j] = e[i,5-j]",  # half of it is overwritten before it is read
        "y[i,j] = x[i,j] + 1; e[i,j] = 2 * x[i,j]; z[i,j] = e[i,j]",  # the result is lost
    ],
)
def test_what_is_still_needed_is_not_overwritten(text: str) -> None:
    with pytest.raises(IllegalEdit) as refusal:
        Schedule(poly.parse(text, x=(4, 6))).overlay("e", "y")
    assert refusal.value.kind == "value" and refusal.value.witness is not None


@pytest.mark.parametrize(
    ("tensor", "inside", "why"),
    [("e", "x", "cannot lie"), ("y", "e", "cannot lie"), ("e", "e", "cannot lie"), ("e", "s", "differ"),
     ("e", "q", "no tensor"), ("x", "y", "cannot lie")],
)  # fmt: skip
def test_tensors_of_other_forms(tensor: str, inside: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        chain().overlay(tensor, inside)


def test_buffers_stay() -> None:
    schedule = chain().promote("e", None, "l1", name="b")
    with pytest.raises(ScheduleError, match="buffer"):
        schedule.overlay("b", "y")
