"""Windows that slide beside the lanes: recognised by accesses alone, nothing copied, the same results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_beside import Beside, beside_of
from poly.scheduling.groups import groups_of
from poly.text import parse_program
from tests.machines import AVX2


def sums(height: int, width: int, lanes: int, taps: int = 3, step: int = 1, pad: int = 1, spread: int = 1) -> Program:
    """A weighted sum over a window of rows and columns for every lane, rectified."""
    reach = spread * (taps - 1) + 1
    rows, columns = ((e + 2 * pad - reach) // step + 1 for e in (height, width))
    every = f"0 <= y < {rows} and 0 <= x < {columns} and 0 <= c < {lanes}"
    index = f"{step}*y + {spread}*r - {pad}, {step}*x + {spread}*s - {pad}"
    first, second = index.split(", ")
    guard = f"0 <= {first} < {height} and 0 <= {second} < {width}"
    read = f"(X[{index}, c] if {guard} else 0)" if pad else f"X[{index}, c]"
    return parse_program(
        f"program sums\ninput X: f32[{height}, {width}, {lanes}]\nconstant W: f32[{lanes}, {taps}, {taps}]\n"
        f"temporary T: f32[{rows}, {columns}, {lanes}]\noutput Y: f32[{rows}, {columns}, {lanes}]\n"
        f"a[y, x, c]: T[y, x, c] = 0 where {every}\n"
        f"b[y, x, c, r, s]: T[y, x, c] += {read} * W[c, r, s] where {every} and 0 <= r < {taps} and 0 <= s < {taps}\n"
        f"d[y, x, c]: Y[y, x, c] = max(T[y, x, c], 0) where {every}\n"
    )


def chained(program: Program) -> Program:
    """The same with several values behind the sums, each used twice: more than registers hold for a whole tile."""
    head, tail = str(program).split("output Y", 1)
    shape = tail.split("\n", 1)[0]
    text = "".join(f"temporary V{k}{shape}\n" for k in range(3)) + "output Y" + tail
    last = text.strip().splitlines()[-1]
    every = last.split(" where ", 1)[1]
    chain = [
        f"e[y, x, c]: V0[y, x, c] = T[y, x, c] * 0.5 where {every}",
        f"f[y, x, c]: V1[y, x, c] = i32(max(V0[y, x, c], 0)) where {every}",
        f"g[y, x, c]: V2[y, x, c] = f32(V1[y, x, c]) + V0[y, x, c] where {every}",
        f"d[y, x, c]: Y[y, x, c] = V0[y, x, c] * V2[y, x, c] + f32(V1[y, x, c]) where {every}",
    ]
    text = text.replace(f"temporary V1{shape}", f"temporary V1{shape.replace('f32', 'i32')}")
    return parse_program(head + text.replace(last, "\n".join(chain)))


def plan(program: Program) -> Beside | None:
    found = [beside_of(program, group, AVX2) for group in groups_of(program)]
    return next((plan for plan in found if plan is not None), None)


def test_what_lies_outside_is_cut_off() -> None:
    found = plan(sums(20, 30, 16))
    assert found is not None
    assert (found.window.rows, found.window.lanes, found.window.down) == (1, 2, "s")
    assert found.cuts == {0: (1, 19), 1: (8, 24)} and found.edges == {0: (True, True)}
    assert found.constants == (("W", 0),)


def test_names_of_other_statements_that_begin_alike() -> None:
    text = str(sums(1, 30, 16)).replace("output Y", "input V: f32[64]\noutput Z: f32[64]\noutput Y", 1)
    other = "a_z[i]: Z[i] = V[i] * 2 where 0 <= i < 64"
    program = parse_program(text.replace("a[y, x, c]", f"{other}\na[y, x, c]", 1))
    assert plan(program) is not None
    schedule_for_cpu(program, AVX2).check()


@pytest.mark.parametrize(
    "program",
    [
        sums(20, 30, 12),  # no whole vectors
        parse_program(str(sums(20, 30, 16)).replace("W[c, r, s]", "W[c, s, r]*W[c, r, s]")),
        parse_program(str(sums(20, 30, 16)).replace("constant W", "input W")),
        parse_program(str(sums(20, 30, 16)).replace("0 <= s <= 2", "r <= s <= 2")),  # no box
        parse_program(
            "program scaled\ninput a: f32[]\ninout B: f32[4, 16]\n"
            "s[i, j]: B[i, j] *= a[] where 0 <= i < 4 and 0 <= j < 16\n"
        ),
    ],
)
def test_others_are_left_to_other_policies(program: Program) -> None:
    assert plan(program) is None


@pytest.mark.parametrize(
    ("height", "width", "lanes", "taps", "step", "pad", "spread"),
    [
        (9, 11, 8, 3, 1, 1, 1), (7, 7, 16, 5, 1, 2, 1), (14, 14, 8, 5, 2, 2, 1), (6, 33, 8, 3, 2, 1, 1),
        (12, 10, 8, 3, 1, 2, 2), (9, 9, 8, 2, 2, 0, 1), (5, 4, 8, 3, 3, 1, 1), (8, 20, 24, 7, 1, 3, 1),
    ],
)  # fmt: skip
def test_results_are_exact(
    height: int, width: int, lanes: int, taps: int, step: int, pad: int, spread: int
) -> None:
    program = sums(height, width, lanes, taps, step, pad, spread)
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (height, width, lanes)).astype("f4")
    w = random.integers(-3, 4, (lanes, taps, taps)).astype("f4")
    expected = run_program(program, {"X": x, "W": w})["Y"]
    assert np.array_equal(np.asarray(poly.compile(program, constants={"W": w})(x)), expected)


def test_the_schedule_is_checked_and_copies_no_input() -> None:
    schedule = schedule_for_cpu(sums(20, 30, 16), AVX2)
    assert not any(t.origin == "X" for t in schedule.program.tensors)
    assert any(s.origin == "b" for s in schedule.program.statements)  # cut, so by this policy


def test_lanes_in_blocks_whose_rows_stay_near() -> None:
    """For one thread, where rows are read several times and together are more than the nearest cache holds."""
    wide = sums(7, 7, 576)
    found = plan(wide)
    assert found is not None and found.block and 576 % found.block == 0 and found.block % 32 == 0
    for program in (sums(7, 7, 64), sums(8, 8, 576, step=2), sums(64, 64, 576)):
        other = plan(program)  # little in a row, hardly a row read again, and beyond a core's own caches
        assert other is not None and not other.block
    shared = [beside_of(wide, group, AVX2, 2) for group in groups_of(wide)]
    assert not any(other is not None and other.block for other in shared)
    loops = str(schedule_for_cpu(wide, AVX2, threads=1).lower())
    assert f"in range(0, {576 // found.block})" in loops
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, shape).astype("f4") for shape in ((7, 7, 576), (576, 3, 3)))
    expected = run_program(wide, {"X": x, "W": w})["Y"]
    assert np.array_equal(np.asarray(poly.compile(wide, constants={"W": w}, threads=1)(x)), expected)


def test_a_chain_of_values_takes_a_register_each() -> None:
    program = chained(sums(14, 14, 16, taps=5, pad=2))
    assert plan(program) is not None
    schedule = schedule_for_cpu(program, AVX2)
    check_capacity(schedule.lower(), AVX2)
    kept = [t for t in schedule.program.tensors if t.origin.startswith("V")]
    assert kept and all(t.space == "reg" and t.nbytes({}) == 32 for t in kept)
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, (14, 14, 16)).astype("f4")
    w = random.integers(-3, 4, (16, 5, 5)).astype("f4")
    expected = run_program(program, {"X": x, "W": w})["Y"]
    assert np.array_equal(np.asarray(poly.compile(program, constants={"W": w})(x)), expected)
