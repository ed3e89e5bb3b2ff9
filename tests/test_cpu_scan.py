"""The policy for recurrences along rows: blocks of rows as lanes, rows together, the program's order of additions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poly
from poly.compiler import machine_of
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.machine import Engine, Machine, Memory
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_scan import scan_of
from poly.scheduling.schedule import Schedule
from tests.machines import AVX2

AVX512 = Machine(
    "avx512", "cpu",
    (Memory("dram", None, "dram"), Memory("l2", 1 << 20, "cache"), Memory("l1", 32768, "cache"),
     Memory("reg", 32, "register")),
    (Engine("core", "core", lanes=16),),
)  # fmt: skip
RUNNING = "Y[i,0] = X[i,0]\nY[i,j+1] = Y[i,j] + X[i,j+1]"
GUARDED = "Y[i,j] = (Y[i,j-1] if j > 0 else 0) + X[i,j]"
SECOND = "Y[i,j] = max(A[i], Y[i,j-1] if j > 0 else 0) + max(B[j], Y[i,j-2] if j > 1 else 0) + X[i,j]"
BATCHES = "Y[b,i,0] = X[b,i,0]\nY[b,i,j+1] = min(Y[b,i,j], X[b,i,j+1])"
BACKWARDS = "Y[i,19-1] = X[i,19-1]\nY[i,19-2-j] = Y[i,19-1-j] + X[i,19-2-j]"
BESIDE = "Y[i,0] = X[i,0]\nY[i,j+1] = Y[i,j] + max(X[i,j+1], X[i,j])"


def inputs(program: Program) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {t.name: (t.extents(program.binding), t.dtype) for t in program.inputs}
    return {n: rng.standard_normal(s).astype({"f32": "f4", "f64": "f8"}[d]) for n, (s, d) in shapes.items()}


def same(program: Program) -> Any:
    """A kernel whose results are the interpreter's, bit for bit."""
    values = inputs(program)
    kernel: Any = poly.compile(program)
    found = kernel(*[values[t.name] for t in program.inputs])
    np.testing.assert_array_equal(found, run_program(program, values)["Y"])
    return kernel


@pytest.mark.parametrize(
    ("text", "shape", "lanes"),
    [
        (RUNNING, (16, 33), True),
        (RUNNING, (37, 51), True),
        (RUNNING, (16, 9), True),
        (RUNNING, (5, 100), False),
        (RUNNING, (1, 40), False),
        (GUARDED, (19, 23), True),
        (SECOND, (17, 29), True),
        (BATCHES, (3, 9, 21), True),
        (BACKWARDS, (20, 19), False),
        (BESIDE, (20, 19), False),
    ],
)
def test_results(text: str, shape: tuple[int, ...], lanes: bool) -> None:
    more: dict[str, Any] = {n: (e,) for n, e in (("A", shape[0]), ("B", shape[-1])) if text is SECOND}
    kernel = same(poly.parse(text, X=shape, Y=shape, **more))
    vectors = [n for n, mark in kernel.schedule.marks.items() if mark.kind == "vector"]
    assert bool(vectors) == lanes


def test_threads_share_blocks_of_rows() -> None:
    kernel: Any = poly.compile(poly.parse(RUNNING, X=(400, 257), Y=(400, 257)), threads=2)
    assert any(mark.kind == "parallel" for mark in kernel.schedule.marks.values())
    x = np.random.default_rng(0).standard_normal((400, 257)).astype(np.float32)
    np.testing.assert_array_equal(kernel(x), np.cumsum(x, 1, dtype=np.float32))


def test_doubles() -> None:
    program = poly.parse(RUNNING, dtypes={"X": "f64", "Y": "f64"}, X=(21, 18), Y=(21, 18))
    scan = scan_of(Schedule(program), program.statements[-1].name, machine_of("cpu"))
    assert scan is not None and scan.vector == machine_of("cpu").lanes(8)
    assert f"_t: f64[{scan.vector}, {scan.columns}] in reg" in str(same(program).loops)


def test_rows_of_a_wider_machine() -> None:
    program = poly.parse(RUNNING, X=(35, 40), Y=(35, 40))
    values = inputs(program)
    wanted = run_program(program, values)["Y"]
    for machine, columns in ((AVX2, 4), (AVX512, 8)):
        schedule = schedule_for_cpu(program, machine)
        name = program.statements[-1].name
        scan = scan_of(Schedule(program), name, machine)
        assert scan is not None and (scan.vector, scan.columns) == (machine.lanes(4), columns)
        np.testing.assert_array_equal(run_loops(schedule.lower(), values)["Y"], wanted)
        assert str(Schedule.parse(str(schedule)).lower()) == str(schedule.lower())


@pytest.mark.parametrize("extent", [3, 20, 40])
@pytest.mark.parametrize(
    "text",
    [
        "Y[0] = X[0]\nY[j+1] = Y[j] + X[j+1]",
        "Y[j] = (Y[j-1] if j > 0 else 0) + X[j]",
        "Y[j] = max(Y[j-1] if j > 0 else 0, Y[j-2] if j > 1 else 0) + X[j]",
    ],
)
def test_one_row_is_handed_on_in_registers(text: str, extent: int) -> None:
    kernel = same(poly.parse(text, X=(extent,), Y=(extent,)))
    assert (" in reg" in str(kernel.loops)) == (extent > 3)


@pytest.mark.parametrize("columns", [9, 20, 35])
@pytest.mark.parametrize(
    "text",
    [
        "output Y: f32[7, W]; X[i,j] + (Y[i-1,j] if i > 0 else 0) + (Y[i,j-1] if j > 0 else 0)"
        " - (Y[i-1,j-1] if i > 0 and j > 0 else 0)",
        "inout Y: f32[8, W + 1]; X[i,j]*0.25 + min(Y[i,j+1], min(Y[i+1,j], Y[i,j]))",
        "inout Y: f32[9, W + 2]; X[i,j] + 0.25*(Y[i,j+1] + Y[i+2,j+1] + Y[i+1,j] + Y[i+1,j+2])",
    ],
)
def test_rows_after_one_another_hand_on_in_registers(text: str, columns: int) -> None:
    """Summed areas, tables of least distances, Gauss-Seidel: the row above is read, too, or what comes next."""
    declared, body = text.split("; ")
    target = "Y[i,j]" if declared.startswith("output") else "Y[i+1,j+1]"
    program = poly.parse(
        f"program p(W); input X: f32[7, W]; {declared}\nS[i, j]: {target} = {body} where 0 <= i < 7 and 0 <= j < W\n"
    ).bind(W=columns)
    assert (" in reg" in str(same(program).loops)) == (columns > 16)


def test_rows_whose_reads_move_through_them_stay_in_memory() -> None:
    """What Y[i] reads has no place of its own among registers: no plan that fits would come of it."""
    text = "inout Y: f32[33]\nfor i, j:\n    S[i, j]: Y[j + 1] = 0.25 * (Y[i] + Y[j]) where 0 <= i < 32 and 0 <= j < 32"
    program = poly.parse(text)
    assert scan_of(Schedule(program), "S", machine_of("cpu")) is None
    assert same(program).refused == ""


def test_what_is_no_scan() -> None:
    """Along other axes, within an element, or with rows that depend on one another."""
    texts = [
        "Y[0,j] = X[0,j]\nY[i+1,j] = Y[i,j] + X[i+1,j]",
        "Y[i,j] = X[i,j] + X[i,j+1]",
        "Y[i,j] = (Y[i-1,j-1] if i > 0 and j > 0 else 0) + X[i,j]",
    ]
    for text in texts:
        shapes: dict[str, Any] = {"X": (20, 20), **({"Y": (20, 20)} if "Y[i" in text[3:] else {})}
        program = poly.parse(text, **shapes)
        schedule = Schedule(program)
        assert all(scan_of(schedule, s.name, machine_of("cpu")) is None for s in program.statements)


def test_rows_of_free_size() -> None:
    program = poly.parse(
        "program p(N); input X: f32[N, 37]; output Y: f32[N, 37]\n"
        "for i:\n"
        "    A[i]: Y[i, 0] = X[i, 0] where 0 <= i < N\n"
        "    B[i, j]: Y[i, j + 1] = Y[i, j] + X[i, j + 1] where 0 <= i < N and 0 <= j < 36\n"
    )
    kernel: Any = poly.compile(program)
    for n in (1, 8, 21):
        x = np.random.default_rng(n).standard_normal((n, 37)).astype(np.float32)
        np.testing.assert_array_equal(kernel(x), np.cumsum(x, 1, dtype=np.float32))


@pytest.mark.parametrize("shape", [(48, 7), (64, 51), (3, 9)])
def test_what_rows_begin_with_is_made_beside_them(shape: tuple[int, int]) -> None:
    """So rows that no cache holds come once, and for blocks of columns and what is left over of them, too."""
    schedule = schedule_for_cpu(poly.parse(RUNNING, X=shape, Y=shape), AVX512)
    outermost = {nest.names[0] for nest in schedule.nests.values()}
    assert len(outermost) == 1
