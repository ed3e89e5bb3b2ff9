"""Rows and few columns of a contraction as one axis of lanes: the same results, where neither alone fills a vector."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_columns import with_columns
from poly.scheduling.joined_rows import rows_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.other_cpus import CPUS, DOT_CPUS, run_here

Given = dict[str, tuple[int, ...]]
BATCH = "C[b,i,k] += A[b,i,j] * B[b,j,k]"
TURNED = "C[b,i,k] += A[b,j,i] * B[b,j,k]"
MACHINES = {**CPUS, "avx2": DOT_CPUS["avx2"]}


def program_of(text: str, given: Given, dtype: str = "f32") -> Program:
    return poly.parse(text, dtypes=dict.fromkeys([*given, "C"], dtype), **given)  # pyright: ignore[reportArgumentType]


def arrays(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    kind = {"f32": "f4", "f64": "f8", "i32": "i4", "i8": "i1"}
    return {t.name: random.integers(-3, 4, t.extents({})).astype(kind[t.dtype]) for t in program.inputs}


def batch(rows: int, steps: int, columns: int, count: int = 5) -> Given:
    return {"A": (count, rows, steps), "B": (count, steps, columns)}


@pytest.mark.parametrize(
    ("text", "given", "index"),
    [
        (BATCH, batch(6, 8, 4), ["C[b, i]", "A[b, (i // 4), j]", "B[b, j, (i % 4)]"]),
        (BATCH, batch(3, 24, 8), ["C[b, i]", "A[b, (i // 8), 8*j + j_]", "B[b, 8*j + j_, (i % 8)]"]),
        (TURNED, {"A": (5, 3, 6), "B": (5, 3, 4)}, ["C[b, i]", "A[b, j, (i // 4)]", "B[b, j, (i % 4)]"]),
        ("C[i,k] += A[i,j] * B[j,k]", {"A": (6, 8), "B": (8, 4)}, ["C[i]", "A[(i // 4), j]", "B[j, (i % 4)]"]),
        ("C[b,i,k] max= A[b,i,j] + B[j,k,b]", {"A": (2, 6, 4), "B": (4, 4, 2)}, None),  # columns are not side by side
        (BATCH, batch(6, 12, 4), None),  # twelve steps are no eights
        (BATCH, batch(6, 4, 8), None),  # rows of four steps are no pieces of eight
        ("C[b,i,k] += A[b,i,j] * B[b,j,i,k]", {"A": (2, 6, 8), "B": (2, 8, 6, 4)}, None),  # rows and columns
        ("C[b,i,k] += A[b,i,j] * B[b,j,k] * D[b,j]", {**batch(6, 8, 4), "D": (5, 8)}, None),
    ],
)  # fmt: skip
def test_rows_and_columns_are_one_axis(text: str, given: Given, index: list[str] | None) -> None:
    program = program_of(text, given)
    rows = rows_of(program)
    assert (rows is None) == (index is None)
    if rows is None:
        return
    joined, inputs = rows.joined(), arrays(program)
    update = joined.statements[-1]
    assert [f"{a.tensor}[{', '.join(map(str, a.index))}]" for a in (update.write, *update.reads)] == index
    (expected,), (found,) = run_program(program, inputs).values(), run_program(joined, inputs).values()
    assert np.array_equal(found.ravel(), expected.ravel())
    assert str(parse_program(str(joined))) == str(joined)


@pytest.mark.parametrize(
    ("cpu", "dtype", "given", "joined"),
    [
        ("avx512", "f32", batch(8, 8, 8), True),
        ("avx512", "f32", batch(8, 8, 4), True),
        ("avx512", "f64", batch(4, 8, 4), True),
        ("avx2", "f32", batch(6, 8, 4), True),
        ("avx2", "f32", batch(7, 8, 4), False),  # half a vector would be left
        ("avx2", "f32", batch(8, 8, 4), False),  # rows fill vectors
        ("avx2", "f32", batch(8, 8, 8), False),  # columns do
        ("avx2", "f64", batch(4, 8, 4), False),
        ("avx512", "f32", batch(8, 8, 2), False),
        ("sse", "f32", batch(8, 8, 4), False),
        ("arm", "f32", batch(8, 8, 4), False),
    ],
)
def test_only_where_neither_fills_a_vector(cpu: str, dtype: str, given: Given, joined: bool) -> None:
    program = program_of(BATCH, given, dtype)
    assert (len(with_columns(program, MACHINES[cpu], 1).statements[-1].write.index) == 2) == joined


def loads(kernel: Kernel, kind: str) -> int:
    return kernel.ir.count(f"load {kind}, ptr")


def on(cpu: str, program: Program, threads: int = 1) -> Kernel:
    machine: Machine = MACHINES[cpu]
    kernel = poly.compile(program, machine, threads=threads)
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("cpu", "dtype", "sizes", "kinds"),
    [
        ("avx512", "f32", (8, 8, 8), {"<16 x float>": 4, "<8 x float>": 8}),
        ("avx512", "f32", (14, 8, 8), {"<16 x float>": 7, "<8 x float>": 8}),
        ("avx512", "f32", (4, 4, 4), {"<16 x float>": 1, "<4 x float>": 4}),
        ("avx512", "f32", (8, 8, 4), {"<16 x float>": 0, "<4 x float>": 8 * 2 + 8}),
        ("avx512", "f32", (8, 16, 8), {"<16 x float>": 0, "<8 x float>": 2 * (8 + 8)}),
        ("avx512", "i32", (8, 8, 8), {"<16 x i32>": 4, "<8 x i32>": 8}),
        ("avx512", "i8", (8, 8, 8), {"<64 x i8>": 1, "<8 x i8>": 8}),
        ("avx512", "f64", (4, 4, 4), {"<8 x double>": 2, "<4 x double>": 4}),
        ("avx512", "f64", (6, 8, 4), {"<8 x double>": 0, "<4 x double>": 6 * 2 + 8}),
        ("avx2", "f32", (4, 4, 4), {"<8 x float>": 2, "<4 x float>": 4}),
        ("avx2", "f32", (6, 32, 4), {"<8 x float>": 0, "<4 x float>": 4 * (6 * 2 + 8)}),
    ],
)  # fmt: skip
def test_each_row_is_loaded_once(
    monkeypatch: pytest.MonkeyPatch,
    cpu: str,
    dtype: str,
    sizes: tuple[int, int, int],
    kinds: dict[str, int],
    threads: int,
) -> None:
    run_here(monkeypatch)
    program = program_of(BATCH, batch(*sizes, count=300), dtype)
    kernel, inputs = on(cpu, program, threads), arrays(program)
    assert np.array_equal(np.asarray(kernel(*inputs.values())), np.einsum("bij,bjk->bik", *inputs.values()))
    if threads == 1:
        element = next(iter(kinds)).split(" ")[-1].rstrip(">")
        assert {kind: loads(kernel, kind) for kind in kinds} == kinds
        assert not loads(kernel, element)


@pytest.mark.parametrize("text", [TURNED, "C[b,i,k] max= A[b,i,j] + B[b,j,k]", "C[b,i,k] += A[i,j] * B[b,j,k]"])
@pytest.mark.parametrize(("cpu", "columns"), [("avx512", 8), ("avx512", 4), ("avx2", 4)])
def test_other_operands(monkeypatch: pytest.MonkeyPatch, text: str, cpu: str, columns: int) -> None:
    run_here(monkeypatch)
    rows = 6 if cpu == "avx2" else 12
    shape = (9, 8, rows) if text == TURNED else (rows, 8) if "A[i" in text else (9, rows, 8)
    given: Given = {"A": shape, "B": (9, 8, columns)}
    program = program_of(text, given)
    inputs = arrays(program)
    (expected,) = run_program(program, inputs).values()
    assert np.array_equal(np.asarray(on(cpu, program)(*inputs.values())), expected)


def test_a_schedule_with_joined_rows_can_be_used_again() -> None:
    program = program_of(BATCH, batch(6, 16, 4))
    rows, inputs = rows_of(program), arrays(program)
    assert rows is not None
    expected = np.einsum("bij,bjk->bik", *inputs.values())
    for schedule in (Schedule(rows.joined()), Schedule.parse(str(Schedule(rows.joined())))):
        kernel = poly.compile(program, schedule=schedule)
        assert np.array_equal(np.asarray(kernel(*inputs.values())), expected)
