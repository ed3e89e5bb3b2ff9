"""Lines asked for ahead of their use: what the mark means, where it is refused, and its text forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.function import lower
from poly.codegen.host import host_machine
from poly.errors import ParseError, ScheduleError
from poly.loops import For, walk
from poly.pictures import blocks_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops, print_loops
from tests.machines import AVX2

HOST = host_machine()
LANES = HOST.lanes(4)


def sums(rows: int, columns: int) -> Schedule:
    s = Schedule(poly.parse("C[i, j] = A[i, j] + B[j]", A=(rows, columns), B=(columns,)))
    return s.tile({"j": LANES}).vectorise("j.p")


def test_what_moves_with_the_loop_is_asked_for() -> None:
    s = sums(5, 4 * LANES)
    assert "llvm.prefetch" not in lower(s.lower(), HOST, "entry").ir
    rows, columns = (lower(s.prefetch("j.p", n).lower(), HOST, "entry").ir for n in ("i", "j.o"))
    assert rows.count("call void @llvm.prefetch") == 2  # A and C
    assert columns.count("call void @llvm.prefetch") == 3


def test_a_shared_element_that_stays_in_its_line_is_no_stream() -> None:
    """One element of A for all lanes, a column later in the same line, a row later in another one."""
    s = Schedule(poly.parse("C[i,j] += A[i,k] * B[k,j]", A=(8, 64), B=(64, LANES))).tile({"C_update.j": LANES})
    vector = "C_update.j.p"
    s = s.reorder("k", "C_update.j.o", vector).vectorise(vector)
    columns, rows = (lower(s.prefetch(vector, n).lower(), HOST, "entry").ir for n in ("k", "C_update.i"))
    assert columns.count("call void @llvm.prefetch") == 1  # B
    assert rows.count("call void @llvm.prefetch") == 2  # A and C


@pytest.mark.parametrize("ahead", [1, 1000])
def test_results_are_the_same(ahead: int) -> None:
    kernel = poly.compile(sums(5, 4 * LANES).prefetch("j.p", "i", ahead), threads=1)
    a, b = np.arange(20.0 * LANES, dtype=np.float32).reshape(5, -1), np.ones(4 * LANES, np.float32)
    np.testing.assert_array_equal(kernel(a, b), a + 1)


def test_a_loop_asks_once() -> None:
    with pytest.raises(ScheduleError, match="'j.p' asks already for what it touches 1 iterations of 'i' later"):
        sums(5, 4 * LANES).prefetch("j.p", "i", 1).prefetch("j.p", "i", 2)


def test_text_forms() -> None:
    s = sums(5, 4 * LANES).prefetch("j.p", "i", 2)
    assert str(Schedule.parse(str(s))) == str(s)
    loops = s.lower()
    assert [n.ahead for n in walk(loops.body) if isinstance(n, For)] == [None, None, ("i", 2)]
    assert parse_loops(print_loops(loops)) == loops
    assert len(blocks_of(s)[1]) == 1
    for text in ("serial ahead (i, 2)", "vector ahead (i, 0)", "vector ahead (i)"):
        with pytest.raises(ParseError):
            parse_loops(print_loops(loops).replace("vector ahead (i, 2)", text))


def test_a_loop_that_is_gone_asks_for_nothing() -> None:
    s = sums(5, 4 * LANES).prefetch("j.p", "i").tile({"i": 5})
    assert "llvm.prefetch" not in lower(s.lower(), HOST, "entry").ir
    whole = sums(1, 4 * LANES).prefetch("j.p", "i")  # the loop has one iteration
    assert "llvm.prefetch" not in lower(whole.lower(), HOST, "entry").ir


@pytest.mark.parametrize(
    ("loop", "along", "ahead"), [("j.o", "i", 1), ("j.p", "j.p", 1), ("j.p", "i", 0), ("j.p", "x", 1)]
)
def test_refusals(loop: str, along: str, ahead: int) -> None:
    with pytest.raises(ScheduleError):
        sums(5, 4 * LANES).prefetch(loop, along, ahead)


def test_registers_are_not_asked_for() -> None:
    s = sums(5, 4 * LANES).promote("A", "j.o", HOST.register_space, name="R")
    s = s.promote("B", "j.o", HOST.register_space, name="S")
    assert s.prefetch("j.p", "i").marks["j.p"].ahead == ("i", 1)  # C
    s = s.promote("C", "j.o", HOST.register_space, name="T")
    with pytest.raises(ScheduleError, match="whole tensor"):
        s.prefetch("j.p", "i")


def test_what_is_stored_past_the_caches_is_asked_for_only_where_it_lies_between_lines() -> None:
    ir = lower(sums(5, 4 * LANES).nontemporal("j.p").prefetch("j.p", "i").lower(), HOST, "entry").ir
    aligned, plain = ir.split("define internal i64 @entry.0.aligned(")[1], ir.split(".aligned(")[0]
    counts = [text.split("\n}\n")[0].count("\n  call void @llvm.prefetch") for text in (aligned, plain)]
    assert counts == [1, 2]


@pytest.mark.parametrize(("line", "times"), [(32, 4), (64, 2), (128, 1)])
def test_a_line_is_as_long_as_the_machine_says(line: int, times: int) -> None:
    """Of each row of A the 32 elements of a body of the reduction, a broadcast each."""
    s = Schedule(poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(12, 64), B=(64, 8)))
    s = s.tile({"k": 32}).reorder("k.o", "C_update.i", "k.p", "C_update.j").unroll("k.p")
    s = s.vectorise("C_update.j").prefetch("C_update.j", "C_update.i")
    machine = replace(AVX2, memories=tuple(replace(m, line=line) for m in AVX2.memories))
    assert lower(s.lower(), machine, "entry").ir.count("call void @llvm.prefetch") == times + 1  # and C


def test_wide_vectors_ask_for_each_line() -> None:
    s = Schedule(poly.parse("C[i, j] = A[i, j] + B[j]", A=(5, 256), B=(256,))).tile({"j": 64}).vectorise("j.p")
    ir = lower(s.prefetch("j.p", "i").lower(), AVX2, "entry").ir
    assert ir.count("call void @llvm.prefetch") == 2 * 4  # of A and C 256 bytes
    kernel = poly.compile(s.prefetch("j.p", "i"), threads=1)
    x = np.arange(5.0 * 256, dtype=np.float32).reshape(5, 256)
    np.testing.assert_array_equal(kernel(x, x[1]), x + x[1])


def test_elements_that_all_lanes_share_are_asked_for_once_a_line() -> None:
    """Four rows, eight steps of the reduction in a body: a line each."""
    s = Schedule(poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(12, 32), B=(32, LANES)))
    s = s.tile({"C_update.i": 4}).tile({"k": 8}).reorder("C_update.i.o", "k.o", "k.p", "C_update.i.p", "C_update.j")
    s = s.unroll("k.p").unroll("C_update.i.p").vectorise("C_update.j").prefetch("C_update.j", "C_update.i.o")
    lines = 4 + LANES * 4 * 4 // 64  # of A, and of C
    assert lower(s.lower(), HOST, "entry").ir.count("call void @llvm.prefetch") == lines
    kernel = poly.compile(s, threads=1)
    a, b = np.arange(12.0 * 32, dtype=np.float32).reshape(12, 32), np.ones((32, LANES), np.float32)
    np.testing.assert_array_equal(kernel(a, b), a @ b)


def test_lanes_of_a_part_of_a_vector_are_loaded_once_for_all_rows() -> None:
    """Instruction selection would load them again behind each line that is asked for."""
    s = Schedule(poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(12, 32), B=(32, LANES - 2)))
    s = s.tile({"C_update.i": 4}).reorder("C_update.i.o", "k", "C_update.i.p", "C_update.j").unroll("C_update.i.p")
    s = s.vectorise("C_update.j").prefetch("C_update.j", "C_update.i.o")
    lines = lower(s.lower(), HOST, "entry").ir.splitlines()
    assert sum("= call" in line and "masked.load" in line for line in lines) == 4 + 1  # rows of C, and of B
