"""Loops that end early: when that changes nothing, that it happens, and what is refused."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.errors import IndexRangeError, ParseError, ScheduleError
from poly.frontend.nest import Array, f32, f64, i64, nest
from poly.interp import run_program
from poly.loops import For
from poly.program import Program
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops

# The first three numbers above a limit; what is behind them is looked up at places that may be anywhere.
FIRST = """
program first
input x: f32[50]
input at: i64[50]
output found: i64[60]
output count: i64[1]
temporary go: bool[50]
temporary take: bool[50]
temporary place: i64[50]
I0[k]: found[k] = -1 where 0 <= k < 60
I1[k]: count[k] = 0 where 0 <= k < 1
for s:
    S0[s]: go[s] = GOING where 0 <= s < 50
    S1[s]: take[s] = go[s] and x[at[s]] > 1.0 where 0 <= s < 50
    S2[s]: place[s] = select(take[s], count[0], 0) where 0 <= s < 50
    S3[s]: found[place[s]] = select(take[s], index(s), found[place[s]]) where 0 <= s < 50
    S4[s]: count[0] += select(take[s], i64(1), i64(0)) where 0 <= s < 50
"""


def first(going: str = "count[0] < 3", **lines: str) -> Program:
    text = FIRST.replace("GOING", going)
    for name, line in lines.items():
        start = text.index(f"    {name}[s]:")
        text = text[:start] + f"    {name}[s]: {line} where 0 <= s < 50" + text[text.index("\n", start) :]
    return poly.parse(text)


def kept(program: Program) -> Schedule:
    """With what each iteration has for itself inside of the loop."""
    schedule = Schedule(program)
    for name in ("go", "take", "place"):
        schedule = schedule.promote(name, "s", "reg", name=f"{name}_r")
    return schedule


def data(above: int) -> dict[str, np.ndarray]:
    x = np.zeros(50, np.float32)
    x[:: max(1, 50 // above)] = 2
    return {"x": x, "at": np.arange(50)[::-1].copy()}


@pytest.mark.parametrize("above", [1, 3, 25])
def test_a_loop_that_data_end_computes_what_all_of_its_trips_do(above: int) -> None:
    program, given = first(), data(above)
    expected = run_program(program, given)
    kernel = poly.compile(program, threads=1)
    assert "for s in range(0, 50) leaves S0:" in str(kernel.loops)
    found, count = kernel(given["x"], given["at"])
    np.testing.assert_array_equal(found, expected["found"])
    assert count[0] == expected["count"][0]


def test_the_trips_that_are_left_do_not_run() -> None:
    given = data(50)
    given["at"][20:] = 1000  # no iteration from there on asks for an element
    found, _ = poly.compile(first(), threads=1)(given["x"], given["at"])
    assert found[:4].tolist() == [0, 1, 2, -1]
    with pytest.raises(IndexRangeError):
        poly.compile(first(), schedule=kept(first()), threads=1)(given["x"], given["at"])


def test_texts_and_later_edits() -> None:
    schedule = kept(first()).leave("s", "S0")
    assert Schedule.parse(str(schedule)) == schedule
    loops = schedule.lower()
    assert parse_loops(str(loops)) == loops
    (loop,) = (n for n in loops.nodes() if isinstance(n, For) and n.leaves)
    assert loop.variable == "s"
    with pytest.raises(ParseError, match="only a serial loop ends"):
        parse_loops(str(loops).replace("leaves S0", "parallel leaves S0"))
    assert not any(isinstance(n, For) and n.leaves for n in schedule.tile({"s": 10}).lower().nodes())
    with pytest.raises(ScheduleError, match="not serial"):
        kept(first()).unroll("s").leave("s", "S0")
    assert schedule.unroll("s").marks["s"].leaves is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (first("x[s] > 0.0"), "may be true again"),
        (first("x[at[s]] > 0.0"), "may be true again"),
        (first("index(s) > 10 and count[0] < 3"), "may be true again"),
        (first("index(s)*3 % 7 < 5"), "may be true again"),
        (first(S1="take[s] = x[at[s]] > 1.0"), "'S3' may change 'found'"),
        (first(S1="take[s] = go[s] or x[at[s]] > 1.0"), "'S3' may change 'found'"),
        (first(S4="count[0] += select(take[s], i64(1), i64(2))"), "'S4' may change 'count'"),
        (first(S4="count[0] = select(take[s], count[0] + 1, 7)"), "'S4' may change 'count'"),
        (first(S3="found[place[s]] = select(take[s], index(s), found[0])"), "'S3' may change 'found'"),
    ],
)
def test_what_is_not_idle_or_not_over_is_refused(program: Program, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        kept(program).leave("s", "S0")
    given = data(25)
    expected = run_program(program, given)
    for name, array in zip(("found", "count"), poly.compile(program, threads=1)(**given), strict=True):
        np.testing.assert_array_equal(array, expected[name])


def test_what_stays_false_as_the_loop_goes_on() -> None:
    program = first("index(s) < 10 and 5 > index(2*s) and count[0] < 3")
    assert kept(program).leave("s", "S0").marks["s"].leaves == "S0"
    given = data(25)
    np.testing.assert_array_equal(poly.compile(program, threads=1)(**given)[0], run_program(program, given)["found"])


def test_a_statement_elsewhere_or_a_bool_that_lives_on_is_refused() -> None:
    text = FIRST.replace("GOING", "count[0] < 3") + "S5[r]: flags[r] = go[r] where 0 <= r < 50\n"
    with pytest.raises(ScheduleError, match="'go' is not private"):
        Schedule(poly.parse(text.replace("temporary go", "output flags: bool[50]\ntemporary go"))).leave("s", "S0")
    assert Schedule(first()).leave("s", "S0").marks["s"].leaves == "S0"  # what others read of it is of the iteration
    with pytest.raises(ScheduleError, match="not right inside"):
        kept(first()).leave("s", "I0")
    with pytest.raises(ScheduleError, match="does not assign a bool"):
        kept(first()).leave("s", "S2")
    with pytest.raises(ScheduleError, match="no statement"):
        kept(first()).leave("s", "S9")


def test_floats_that_are_added_up_are_not_idle() -> None:
    """-0.0 + 0.0 is 0.0."""
    text = FIRST.replace("GOING", "count[0] < 3").replace("output found: i64[60]", "output found: f32[60]")
    line = "found[place[s]] = select(take[s], index(s), found[place[s]])"
    text = text.replace(line, "found[0] += select(take[s], 1, 0)")
    with pytest.raises(ScheduleError, match="'S3' may change 'found'"):
        kept(poly.parse(text.replace("= -1", "= -1.0"))).leave("s", "S0")


@nest
def picked(N: int, L: int, x: f32[Array, "N"], found: i64[Array, "L"], count: i64[Array, "1"]) -> None:
    for n in range(N):
        if count[0] < L:
            if x[n] > 1.0:
                found[count[0]] = n
                count[0] += 1


def test_a_nest_of_python_under_a_condition_ends_with_it() -> None:
    program = picked.program.bind(N=100, L=4)
    kernel = poly.compile(program, threads=1)
    assert " leaves " in str(kernel.loops)
    x = np.arange(100, dtype=np.float32) % 7
    results = kernel(x, np.zeros(4, np.int64), np.zeros(1, np.int64))
    expected = [np.zeros(4, np.int64), np.zeros(1, np.int64)]
    picked.python(100, 4, x, *expected)
    np.testing.assert_array_equal(results[0], expected[0])
    assert results[1] == expected[1] == 4


@nest
def escapes(N: int, T: int, c: f64[Array, "N"], steps: i64[Array, "N"], last: f64[Array, "N"]) -> None:
    for i in range(N):
        z = 0.0
        n = 0
        for _ in range(T):
            if z > 4.0:
                break
            z = z * z + c[i]
            n += 1
        steps[i] = n
        last[i] = z


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("least", [-1.0, 0.2, 3.0])
def test_lanes_end_together(least: float, threads: int) -> None:
    """A block of lanes goes on while one of them does: those that are over change nothing."""
    program = escapes.program.bind(N=107, T=60)
    kernel = poly.compile(program, threads=threads)
    assert str(kernel.loops).count(" leaves ") >= 1
    c = np.random.default_rng(0).random(107) + least
    found = kernel(c, np.zeros(107, np.int64), np.zeros(107))
    expected = np.zeros(107, np.int64), np.zeros(107)
    escapes.python(107, 60, c, *expected)
    np.testing.assert_array_equal(found[0], expected[0])
    assert np.allclose(np.array(found[1]), expected[1], rtol=1e-12)


LANES = """
program lanes
input x: f64[16]
output z: f64[16]
temporary go: bool[16]
I0[i]: z[i] = x[i] where 0 <= i < 16
for k:
    S0[k, i]: go[i] = z[i] < 9.0 where 0 <= k < 40 and 0 <= i < 16
    S1[k, i]: z[i] = select(SEEN, z[i]*2.0, z[i]) where 0 <= k < 40 and 0 <= i < 16
"""


def lanes(seen: str) -> Schedule:
    schedule = Schedule(poly.parse(LANES.replace("SEEN", seen)))
    inner = [schedule.nests[s].names[-1] for s in ("S0", "S1")]
    return schedule.vectorise(inner[0]).vectorise(inner[1])


def test_each_lane_has_a_bool_of_its_own() -> None:
    schedule = lanes("go[i]").leave("k", "S0")
    assert " leaves S0" in str(schedule.lower())
    x = np.linspace(0.5, 5, 16)
    found = poly.compile(schedule.source, schedule=schedule, threads=1)(x)
    np.testing.assert_array_equal(found, run_program(schedule.source, {"x": x})["z"])
    for seen in ("go[15 - i]", "go[0]", "z[i] < 9.5"):
        with pytest.raises(ScheduleError, match="is not private|may change 'z'"):
            lanes(seen).leave("k", "S0")
