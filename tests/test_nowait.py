"""Parallel loops without a meeting in between: which are legal, which policies choose, and the results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.function import lower
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel, Origin
from poly.errors import IllegalEdit, ScheduleError, UnsupportedError
from poly.frontend.einsum import einsum_program
from poly.loops import MOST_NOWAIT, Alloc, For, LoopTree
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.nowait import after, without_meetings
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops
from tests.other_cpus import CPUS, run_here

TWO = "B[i] = 2*A[i]\nC[j] = A[j] + 1"
TURNED = "B[i] = 2*A[i]\nC[j] = B[99-j]"


THREE = "B[i] = 2*A[i]\nD[k] = B[99-k]\nC[j] = A[j] + 1"


def both_parallel(text: str, extent: int = 100) -> Schedule:
    schedule = Schedule(poly.parse(text, A=(extent,)))
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
    assert lower(schedule.nowait(first, second).lower(), host_machine(), "f").meetings({}) == 1
    assert lower(found.lower(), host_machine(), "f").meetings({}) == 2


def test_only_the_loop_right_behind() -> None:
    with pytest.raises(ScheduleError, match="'j' is not the one right behind 'i'"):
        both_parallel(THREE).nowait("i", "j")
    with pytest.raises(ScheduleError, match="'i' is not the one right behind 'j'"):
        both_parallel(TWO).nowait("j", "i")


def naming(tree: LoopTree, loop: str, following: str) -> LoopTree:
    """A loop tree with a mark that no schedule made."""
    body = [replace(n, nowait=following) if isinstance(n, For) and n.variable == loop else n for n in tree.body]
    return replace(tree, body=tuple(body))


def test_threads_meet_where_a_loop_names_one_that_is_farther_behind() -> None:
    assert lower(naming(both_parallel(THREE).lower(), "i", "j"), host_machine(), "f").meetings({}) == 3
    assert lower(naming(both_parallel(THREE).lower(), "k", "j"), host_machine(), "f").meetings({}) == 2


def test_threads_meet_where_another_buffer_is_around_the_next_loop() -> None:
    """Both may lie in one place."""
    text = "T[k] = 2*A[k]\nB[i] = T[4095-i]\nU[j] = 3*A[j]\nC[m] = U[4095-m]"
    tree = naming(both_parallel(text, 4096).lower(), "i", "j")
    known = {t.name: t for t in tree.tensors}
    body = (Alloc(known["T"], tree.body[:2]), Alloc(known["U"], tree.body[2:]))
    a, b, c = (known[name] for name in "ABC")
    kernel = Kernel(replace(tree, tensors=(a, b, c), body=body), host_machine(), [a], [b, c], threads=2)
    assert kernel.module.meetings({}) == 4
    x = np.arange(4096, dtype=np.float32)
    for _ in range(30):
        y, z = kernel(x)
        np.testing.assert_array_equal(y, 2 * x[::-1])
        np.testing.assert_array_equal(z, 3 * x[::-1])


def chain(loops: int) -> Schedule:
    return both_parallel("\n".join(f"Y{k}[i] = {k + 2}*A[i]" for k in range(loops)), 4096)


def test_a_thread_keeps_its_place_in_so_many_loops() -> None:
    """More in a row than a part has words for: the policy lets threads meet in between."""
    count = MOST_NOWAIT + 4
    schedule = without_meetings(chain(count))
    assert lower(schedule.lower(), host_machine(), "f").meetings({}) == 2
    kernel = poly.compile(schedule.source, schedule=schedule, threads=2)
    x = np.arange(4096, dtype=np.float32)
    for _ in range(30):
        for k, y in enumerate(kernel(x)):
            np.testing.assert_array_equal(y, (k + 2) * x)


def test_more_loops_in_a_row_are_refused() -> None:
    schedule = chain(MOST_NOWAIT + 1)
    loops = list(schedule.loop_statements)
    for loop, following in zip(loops[:-2], loops[1:-1], strict=True):
        schedule = schedule.nowait(loop, following)
    tree = schedule.lower()
    assert lower(tree, host_machine(), "f").meetings({}) == 2
    with pytest.raises(ScheduleError, match=f"more than {MOST_NOWAIT} loops in a row"):
        schedule.nowait(*loops[-2:])
    with pytest.raises(UnsupportedError, match=f"more than {MOST_NOWAIT} parallel loops in a row"):
        lower(naming(tree, *loops[-2:]), host_machine(), "f")
    backwards = chain(MOST_NOWAIT + 1)
    for loop, following in zip(loops[1:-1], loops[2:], strict=True):
        backwards = backwards.nowait(loop, following)
    with pytest.raises(ScheduleError, match=f"more than {MOST_NOWAIT} loops in a row"):
        backwards.nowait(*loops[:2])


@pytest.mark.parametrize("shape", [(113, 255, 300), (45, 70, 200), (197, 64, 197)])
def test_pieces_of_a_product(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in pieces: their loops write other rows, so threads go on. With 16 lanes on any host."""
    run_here(monkeypatch)
    (m, n, k), machine = shape, CPUS["avx512"]
    program = einsum_program("ik,kj->ij", [(m, k), (k, n)], ["f32"] * 2)
    schedule = schedule_for_cpu(program, machine, 2)
    following = {loop: mark.nowait for loop, mark in schedule.marks.items() if mark.nowait is not None}
    assert following
    assert all(schedule.kind(loop) == "parallel" == schedule.kind(other) for loop, other in following.items())
    a, b = (np.random.default_rng(k).integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n)))
    inputs, outputs = program.inputs, program.outputs
    kernel = Kernel(schedule.lower(), machine, inputs, outputs, threads=2, origin=Origin(program, schedule))
    for _ in range(100):
        np.testing.assert_array_equal(kernel(a, b), a @ b)  # whole numbers: exact in any order


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
