"""isl's scheduler as a policy: what comes out is legal and right, what takes too long is killed, scripts replay."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import poly
from poly.errors import IllegalEdit, ScheduleError
from poly.frontend.nest import read_nest
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.program import Program
from poly.scheduling.arrange import arrange, places_of
from poly.scheduling.dependences import dependences
from poly.scheduling.isl_client import Worker, shared_worker
from poly.scheduling.isl_scheduler import Mode, request, schedule_by_isl
from poly.scheduling.isl_worker import Request
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_schedule, print_schedule
from poly.text import parse_program
from tests.nest_texts import SIZES, arrays, define, nest_texts

MODES: tuple[Mode, ...] = ("maximise-coincidence", "pluto", "feautrier")
JACOBI = """
program jacobi(T, N) where T >= 1 and N >= 3
inout A: f64[N]
temporary B: f64[N]
for t:
    S[t, i]: B[i] = A[i - 1] + A[i] + A[i + 1] where 0 <= t < T and 1 <= i < N - 1
    R[t, i]: A[i] = B[i] where 0 <= t < T and 1 <= i < N - 1
"""
CONVOLUTIONS = """
Y[n, o, p, q] += W1[o, c, r, s]*X[n, c, p + r, q + s]
Z[n, o, p, q] = max(Y[n, o, p, q], 0)
V[n, o, p, q] += W2[o, c, r, s]*Z[n, c, p + r, q + s]
U[n, o, p, q] = max(V[n, o, p, q], 0)
"""


def jacobi() -> Program:
    return parse_program(JACOBI).bind(T=5, N=12)


def same_result(program: Program, schedule: Schedule, inputs: Mapping[str, np.ndarray]) -> None:
    wanted = run_program(program, inputs, vectorised=False)
    found = run_loops(schedule.lower(), inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("tile", (None, 4))
@pytest.mark.parametrize("mode", MODES)
def test_a_stencil(mode: Mode, tile: int | None) -> None:
    program = jacobi()
    schedule = schedule_by_isl(program, mode=mode, tile=tile, timeout=20)
    names = [edit.name for edit in schedule.log]
    assert names == ["arrange", *(["tile"] if tile and mode != "feautrier" else [])]
    assert schedule.checked
    same_result(program, schedule, {"A": np.arange(12.0)})


def test_time_is_skewed_and_tiled() -> None:
    schedule = schedule_by_isl(jacobi(), tile=4, timeout=20)
    assert list(schedule.loop_statements) == ["t0.o", "t1.o", "t0.p", "t1.p"]
    skewed = schedule_by_isl(jacobi(), tile=None, timeout=20).nests["S"].loops["t1"]
    assert skewed.coefficient("t") > 0 and skewed.coefficient("i") == 1


def test_the_script_replays_and_the_text_parses_back() -> None:
    schedule = schedule_by_isl(jacobi(), tile=4, timeout=20)
    text = print_schedule(schedule)
    again = parse_schedule(text)
    assert again.nests == schedule.nests and print_schedule(again) == text


def test_nests_and_what_is_no_program() -> None:
    nested = poly.nest(define("def f(T: int, x: 'f64[N]'):\n    for t in range(T):\n        x[0] += x[t % 1]\n"))
    assert Schedule(nested).source == schedule_by_isl(nested).source == nested.program
    for call in (Schedule, schedule_by_isl):
        with pytest.raises(ScheduleError, match="a schedule is of a program; this is 'x'"):
            call("x")  # type: ignore[arg-type]


def test_statements_that_never_run_keep_a_place() -> None:
    program = parse_program(JACOBI + "Q[i]: B[i] = A[i + 1] where N < i < N - 1\n").bind(T=3, N=8)
    schedule = schedule_by_isl(program, timeout=20)
    assert schedule.log and set(schedule.nests) == {"S", "R", "Q"}
    same_result(program, schedule, {"A": np.arange(8.0)})


def test_without_dependences_the_order_stays() -> None:
    program = poly.parse("C[i, j] = A[i, j]*2.0", A=(4, 5))
    assert schedule_by_isl(program).log == ()


@given(nest_texts())
@settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_nests(text: str) -> None:
    function, wanted = define(text), arrays()
    with np.errstate(all="ignore"):
        function(**SIZES, **wanted)
    program = read_nest(function).bind(**SIZES)
    schedule = schedule_by_isl(program, mode=MODES[len(text) % 3], tile=3, timeout=20)
    found = run_loops(schedule.lower(), {t.name: arrays()[t.name] for t in program.inputs})
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=f"{text}\n{schedule}")


# ---- bounded


def replaced(good: Request, **texts: str) -> Request:
    changed = good.copy()
    for name, text in texts.items():
        changed[name] = text
    return changed


def test_what_takes_too_long_is_killed_and_the_ladder_goes_on() -> None:
    program = poly.parse(CONVOLUTIONS, X=(4, 64, 56, 56), W1=(64, 64, 3, 3), W2=(64, 64, 3, 3))
    start = perf_counter()
    schedule = schedule_by_isl(program, mode="pluto", tile=None, timeout=0.4)  # many minutes without a limit
    assert perf_counter() - start < 20
    assert [edit.name for edit in schedule.log] == ["arrange"]  # Feautrier's


def test_without_time_the_original_order_is_left() -> None:
    sums = "; ".join(f"x{k + 1}[i,j,l] = x{k}[i,j,l] + x{k}[j,i,l] + x{k}[l,j,i]" for k in range(12))
    program = poly.parse(sums, x0=(16, 16, 16))  # a timer counts in milliseconds; isl needs tens of them here
    assert schedule_by_isl(program, timeout=1e-4).log == ()
    assert schedule_by_isl(program, timeout=20).log, "a new process is started"


def test_the_worker_survives_nonsense() -> None:
    worker = Worker()
    good = request(parse_program(JACOBI), dependences(parse_program(JACOBI)), "pluto", 20.0)
    assert worker.ask(replaced(good, validity="{ no relation")) is None
    assert worker.ask(replaced(good, domain="x" * 300_000)) is None  # more than a pipe holds
    assert "schedule" in (worker.ask(good) or "")


def test_a_worker_that_was_killed_is_replaced() -> None:
    worker = Worker()
    program = parse_program(JACOBI)
    good = request(program, dependences(program), "pluto", 20.0)
    assert worker.ask(good)
    process = worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert worker.ask(good)
    assert shared_worker() is shared_worker()


@pytest.mark.parametrize("arguments", ({"mode": "fast"}, {"tile": 0}, {"timeout": 0.0}))
def test_arguments_without_sense(arguments: dict[str, object]) -> None:
    with pytest.raises(ScheduleError):
        schedule_by_isl(jacobi(), **arguments)  # type: ignore[arg-type]


# ---- arrange


def test_arrange_is_checked() -> None:
    schedule = Schedule(jacobi())
    backwards = (("S", ("u", "v", 0), (("u", "-t"), ("v", "i"))), ("R", ("u", "v", 1), (("u", "-t"), ("v", "i"))))
    with pytest.raises(IllegalEdit) as caught:
        arrange(schedule, backwards)
    assert caught.value.witness is not None
    same = arrange(schedule, places_of(schedule))
    assert same.nests == schedule.nests and same.log[0].name == "arrange"


@pytest.mark.parametrize(
    "place",
    (
        ("X", (0,), ()),
        ("S", ("u",), ()),
        ("S", ("u",), (("u", "k"),)),
        ("S", (), (("u", "t"),)),
    ),
)
def test_places_that_are_none(place: tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]) -> None:
    with pytest.raises(ScheduleError):
        arrange(Schedule(jacobi()), (place,))
