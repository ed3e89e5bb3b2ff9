"""Parallel loops without a meeting in between: which are legal, which policies choose, and the results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.errors import IllegalEdit, ScheduleError
from poly.frontend.einsum import einsum_program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.nowait import after
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops

TWO = "B[i] = 2*A[i]\nC[j] = A[j] + 1"
TURNED = "B[i] = 2*A[i]\nC[j] = B[99-j]"


def both_parallel(text: str) -> Schedule:
    schedule = Schedule(poly.parse(text, A=(100,)))
    for name in schedule.source.statement:
        schedule = schedule.parallelise(schedule.nests[name].names[0])
    return schedule


def test_loops_that_share_nothing_but_what_they_read() -> None:
    schedule = both_parallel(TWO)
    first, second = schedule.loop_statements
    found = schedule.nowait(first, second)
    assert f"for {first} parallel nowait {second}:" in str(found)
    assert Schedule.parse(str(found)) == found
    loops = found.lower()
    assert f"parallel nowait {second}:" in str(loops) and parse_loops(str(loops)) == loops
    kernel = poly.compile(schedule.source, schedule=found, threads=2)
    a = np.arange(100, dtype=np.float32)
    for _ in range(50):
        b, c = kernel(a)
        np.testing.assert_array_equal(b, 2 * a)
        np.testing.assert_array_equal(c, a + 1)


def test_what_one_loop_makes_and_the_next_reads_needs_a_meeting() -> None:
    schedule = both_parallel(TURNED)
    first, second = schedule.loop_statements
    with pytest.raises(IllegalEdit, match="without a meeting.*of B") as refused:
        schedule.nowait(first, second)
    assert refused.value.witness is not None


def test_a_loop_that_is_reached_through_another_one() -> None:
    schedule = both_parallel("B[i] = 2*A[i]\nC[j] = A[j] + 1\nD[k] = B[99-k]")
    first, second, third = schedule.loop_statements
    found = schedule.nowait(first, second)
    assert after(found, first) == [second]
    with pytest.raises(IllegalEdit, match=f"from loop {first} to loop {third}"):
        found.nowait(second, third)
    assert after(schedule.nowait(second, third), second) == [third]


@pytest.mark.parametrize("names", [("i", "i"), ("x", "j"), ("i", "x")])
def test_only_parallel_loops(names: tuple[str, str]) -> None:
    schedule = both_parallel(TWO)
    known: dict[str, str] = dict(zip("ij", schedule.loop_statements, strict=True))
    with pytest.raises(ScheduleError):
        schedule.nowait(known.get(names[0], names[0]), known.get(names[1], names[1]))
    serial = Schedule(schedule.source)
    with pytest.raises(ScheduleError, match="not a parallel loop"):
        serial.nowait(*serial.loop_statements)


def test_threads_meet_where_an_edit_puts_another_loop_behind() -> None:
    schedule = both_parallel("B[i] = 2*A[i]\nC[j] = A[j] + 1")
    first, second = schedule.loop_statements
    found = schedule.nowait(first, second).tile({second: 8})
    assert after(found, first) == []
    assert poly.compile(schedule.source, schedule=found, threads=2)


@pytest.mark.parametrize("shape", [(127, 255, 513), (45, 70, 200), (197, 64, 197)])
def test_pieces_of_a_product(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    program = einsum_program("ik,kj->ij", [(m, k), (k, n)], ["f32"] * 2)
    schedule = schedule_for_cpu(program, host_machine(), 2)
    following = {loop: mark.nowait for loop, mark in schedule.marks.items() if mark.nowait is not None}
    assert all(schedule.kind(loop) == "parallel" == schedule.kind(other) for loop, other in following.items())
    a, b = (np.random.default_rng(k).standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    kernel, alone = (poly.compile(program, schedule=schedule, threads=t) for t in (2, 1))
    expected = alone(a, b)
    for _ in range(100):
        np.testing.assert_array_equal(kernel(a, b), expected)


def test_pieces_of_rows_go_on() -> None:
    """13 and 12 rows at a time: more pieces than one, whose loops write other rows."""
    program = einsum_program("ik,kj->ij", [(127, 513), (513, 255)], ["f32"] * 2)
    marks = schedule_for_cpu(program, host_machine(), 2).marks.values()
    pieces = [m for m in marks if m.kind == "parallel"]
    assert len(pieces) < 2 or any(m.nowait for m in pieces)


def test_an_index_out_of_range_before_threads_meet() -> None:
    text = "B[i] = A[P[i]]\nC[j] = A[j] + 1"
    schedule = Schedule(poly.parse(text, A=(100,), P=(100,), dtypes={"P": "i32"}))
    for name in schedule.source.statement:
        schedule = schedule.parallelise(schedule.nests[name].names[0])
    first, second = schedule.loop_statements
    kernel = poly.compile(schedule.source, schedule=schedule.nowait(first, second), threads=2)
    a, wrong = np.arange(100, dtype=np.float32), np.arange(100, dtype=np.int32)
    wrong[17] = 1000
    for _ in range(20):
        with pytest.raises(poly.PolyError, match="1000"):
            kernel(A=a, P=wrong)
        b, c = kernel(A=a, P=np.arange(100, dtype=np.int32))
        np.testing.assert_array_equal(b, a)
        np.testing.assert_array_equal(c, a + 1)
