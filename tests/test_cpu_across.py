"""Groups of short rows with lanes across rows: when they are, results over blocks, rests and columns of any number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import poly
from poly.codegen.host import host_machine
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_across import AcrossPlan, across_of
from poly.scheduling.row_groups import groups_for
from tests.machines import AVX2
from tests.other_cpus import CPUS, run_here
from tests.test_cpu_rows import LAYERNORM, SOFTMAX, agrees, made_in_memory, row_programs

FEWEST_ACROSS = 12  # of the random programs


def planned(text: str, shape: tuple[int, int], machine: Machine = AVX2) -> AcrossPlan | None:
    program = poly.parse(text, dtypes=None, x=shape)
    (group,) = groups_for(program, machine)
    return across_of(program, group, machine)


@pytest.mark.parametrize(
    ("shape", "machine", "across"),
    [
        ((4000, 3), AVX2, True), ((4000, 9), AVX2, True), ((4000, 16), AVX2, False), ((4000, 100), AVX2, False),
        ((4000, 9), CPUS["avx512"], True), ((4000, 20), CPUS["avx512"], True), ((4000, 32), CPUS["avx512"], False),
        ((7, 3), AVX2, False), ((4000, 1), AVX2, False),
    ],
)  # fmt: skip
def test_rows_that_leave_lanes_empty_go_across(shape: tuple[int, int], machine: Machine, across: bool) -> None:
    assert (planned(SOFTMAX, shape, machine) is not None) == across


def test_a_block_has_a_row_for_each_lane() -> None:
    plan = planned(SOFTMAX, (4000, 9), CPUS["avx512"])
    assert plan is not None and (plan.vector, plan.columns) == (16, 9) and set(plan.turned) == {"x", "e", "y"}


def test_memory_sees_inputs_and_results_only() -> None:
    schedule = schedule_for_cpu(poly.parse(SOFTMAX, x=(40, 9)), AVX2)
    assert made_in_memory(schedule) == {"y"} and "square" in schedule.script


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("shape", [(64, 9), (35, 3), (49, 5), (40, 16), (33, 17), (50, 20)])
def test_softmax_of_short_rows(cpu: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks, rests of blocks, down to one row, and rests of squares, down to one column."""
    run_here(monkeypatch)
    machine = CPUS[cpu]
    program = poly.parse(SOFTMAX, x=shape)
    monkeypatch.setattr("poly.scheduling.cpu_across._pays", lambda *_: True)  # pyright: ignore
    schedule = schedule_for_cpu(program, machine)
    assert "square" in schedule.script
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype("f4")
    x[2, 1], x[3, 0], x[4] = np.nan, np.inf, -np.inf
    found = poly.compile(program, machine, schedule=schedule)(x)
    assert isinstance(found, np.ndarray)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(1, keepdims=True), dtype="f8")
    np.testing.assert_allclose(np.asarray(found, "f8"), e / e.sum(1, keepdims=True), rtol=3e-6, atol=1e-12)


def is_across(program: Program, threads: int = 1) -> bool:
    return "_square" in schedule_for_cpu(program, host_machine(), threads).script


def test_random_row_programs() -> None:
    across: list[bool] = []

    @settings(max_examples=25, derandomize=True, deadline=None)
    @given(row_programs())
    def check(case: tuple[str, int, int]) -> None:
        text, blocks, length = case
        shapes = {"x": (9 * blocks + 7, length % 13 + 2), "v": (9 * blocks + 7,), "g": (length % 13 + 2,)}
        random, read = np.random.default_rng(length), text.replace("max", "")
        used = {n: random.integers(-2, 3, s).astype("f4") for n, s in shapes.items() if f"{n}[" in read}
        program = poly.parse(text, dtypes=None, **{n: shapes[n] for n in used})
        agrees(program, used)
        across.append(is_across(program))

    check()
    assert sum(across) >= FEWEST_ACROSS, across


@pytest.mark.parametrize(("dtype", "threads"), [("f64", 1), ("f32", 2)])
def test_other_types_and_threads(dtype: str, threads: int) -> None:
    shapes, kind = {"x": (3000, 6), "g": (6,), "b": (6,)}, {"f32": "f4", "f64": "f8"}[dtype]
    program = poly.parse(LAYERNORM.replace("64", "6"), dtypes=dict.fromkeys(shapes, dtype), **shapes)
    random = np.random.default_rng(0)
    agrees(program, {n: random.integers(-4, 5, s).astype(kind) for n, s in shapes.items()}, threads)
    assert is_across(program, threads)


@pytest.mark.parametrize(
    ("text", "shapes", "across"),
    [
        ("y[i] += x[i,j]", {"x": (400, 9)}, True), ("y[b,i] max= x[b,i,j]", {"x": (3, 400, 9)}, True),
        ("y[i] += x[i,j] * v[j]", {"x": (400, 9), "v": (9,)}, True), ("y[i] += x[i,j]", {"x": (400, 3)}, False),
        ("y[i] += x[i,j]", {"x": (400, 64)}, False), ("y[i] += x[j,i]", {"x": (9, 400)}, False),
        ("y[b,i] += x[b,j] * w[i,j]", {"x": (400, 9), "w": (400, 9)}, False),
        ("y[i] max= x[i,j]", {"x": (1000, 19)}, True), ("y[i] += x[i,j]", {"x": (1000, 19)}, False),
    ],
)  # fmt: skip
def test_reductions_of_short_rows(text: str, shapes: dict[str, tuple[int, ...]], across: bool) -> None:
    """Where each row is read once, along its lanes otherwise."""
    program = poly.parse(text, dtypes=None, **shapes)
    assert ("square" in schedule_for_cpu(program, CPUS["avx512"]).script) == across
    random = np.random.default_rng(0)
    agrees(program, {n: random.integers(-4, 5, s).astype("f4") for n, s in shapes.items()})
