"""Groups of rows: which chains are joined, that memory sees inputs and results once, results over ragged lengths."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poly
from poly.codegen.host import machine_of_features
from poly.codegen.kernel import Kernel
from poly.frontend.nest import nest
from poly.interp import run_program
from poly.loops import Alloc, Compute, For
from poly.machine import Machine, Memory
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_facts import LIGHT, QUICK
from poly.scheduling.cpu_rows import row_plan
from poly.scheduling.distribution import distributed
from poly.scheduling.edits import unchecked
from poly.scheduling.groups import groups_of
from poly.scheduling.row_groups import Room, groups_for, row_groups
from poly.scheduling.schedule import Schedule
from tests.machines import AVX2, AVX512, MESH
from tests.nest_texts import define

SOFTMAX = "m[i] max= x[i,j]; e[i,j] = exp(x[i,j] - m[i]); s[i] += e[i,j]; y[i,j] = e[i,j] / s[i]"
LAYERNORM = (
    "s[i] += x[i,j]; m[i] = s[i] / 64; q[i] += (x[i,j] - m[i]) * (x[i,j] - m[i]); "
    "r[i] = 1 / sqrt(q[i] / 64 + 0.00001); y[i,j] = (x[i,j] - m[i]) * r[i] * g[j] + b[j]"
)


def made_in_memory(schedule: Schedule) -> set[str]:
    """Tensors in memory, not promoted, that the loops write."""
    tree = schedule.lower()
    buffers = {n.tensor.name for n in tree.nodes() if isinstance(n, Alloc)}
    return {n.write.tensor for n in tree.nodes() if isinstance(n, Compute)} - buffers


def from_text(text: str) -> Program:
    return nest(define(text)).program


def agrees(program: Program, arrays: dict[str, np.ndarray], threads: int = 1) -> None:
    """Compiled results against the interpreter's, NaN where it has NaN."""
    expected = run_program(program, arrays)
    kernel = poly.compile(program, threads=threads)
    found = kernel(*[arrays[t.name] for t in program.inputs])
    results = found if isinstance(found, tuple) else (found,)
    for tensor, result in zip(program.outputs, results, strict=True):
        wanted = np.asarray(expected[tensor.name], "f8")
        np.testing.assert_allclose(np.asarray(result, "f8"), wanted, rtol=3e-6, atol=1e-6)


def test_softmax_is_one_group_of_rows() -> None:
    program = poly.parse(SOFTMAX, x=(12, 100))
    assert len(groups_of(program)) == 4
    (group,) = groups_for(program, AVX2)
    assert len(group.parts) == 4 and group.box == ((0, 11),)
    assert {group.axes[s.name] for s in program.statements} == {("i",)}


def test_memory_sees_inputs_and_results_only() -> None:
    for text, shapes in ((SOFTMAX, {"x": (12, 100)}), (LAYERNORM, {"x": (12, 64), "g": (64,), "b": (64,)})):
        schedule = schedule_for_cpu(poly.parse(text, dtypes=None, **shapes), AVX2)
        assert made_in_memory(schedule) == {"y"}
        assert all(t.role != "temporary" or t.origin for t in schedule.program.tensors)
        assert "rfactor" in schedule.script


def test_contractions_keep_a_group_to_themselves() -> None:
    program = poly.parse("c[i,j] += x[i,k] * w[k,j]; m[i] max= c[i,j]; e[i,j] = c[i,j] - m[i]", x=(64, 64), w=(64, 64))
    assert [len(g.statements) for g in groups_for(program, AVX2)] == [2, 3]


def test_rows_that_do_not_fit_a_cache_are_not_joined() -> None:
    program = poly.parse(SOFTMAX, x=(4, 1 << 20))
    assert len(groups_for(program, AVX2)) == 4
    assert len(row_groups(program, Room(1 << 30))) == 1


def test_sums_over_the_same_rows_are_one_group() -> None:
    text = "m[i] += x[i,j]; q[i] += x[i,j] * x[i,j]; y[i,j] = x[i,j] * (q[i] - m[i] * m[i])"
    (group,) = groups_for(program := poly.parse(text, x=(9, 37)), AVX2)
    assert len(group.parts) == 3
    agrees(program, {"x": np.random.default_rng(0).integers(-2, 3, (9, 37)).astype("f4")})


SUMS = {
    "sums": "s[i] += x[i, j]; q[i] += x[i, j] * x[i, j]",
    "extrema": "s[i] = min(s[i], x[i, j]); q[i] = max(q[i], x[i, j])",
}


@pytest.mark.parametrize("body", SUMS.values(), ids=list(SUMS))
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_rows_in_a_nest_are_one_pass(body: str, threads: int) -> None:
    text = f"for i in range(24):\n        for j in range(300):\n            {body}"
    program = from_text(f"def f(x: 'f32[24, 300]', s: 'f32[24]', q: 'f32[24]'):\n    {text}\n")
    _, apart = distributed(unchecked(Schedule(program)))
    (group,) = groups_for(apart, AVX2)
    assert len(group.parts) == 2
    source = np.random.default_rng(0)
    agrees(program, {t.name: source.standard_normal(t.extents({})).astype("f4") for t in program.inputs}, threads)


def test_sums_in_local_scalars_are_one_pass() -> None:
    text = """
def f(x: 'f64[24, 300]', s: 'f64[24]', q: 'f64[24]'):
    for i in range(24):
        a = 0.0
        b = 0.0
        for j in range(300):
            a += x[i, j]
            b += x[i, j] * x[i, j]
        s[i] = a / 300
        q[i] = b / 300 - (a / 300) * (a / 300)
"""
    program = from_text(text)
    schedule = schedule_for_cpu(program, AVX2)
    assert made_in_memory(schedule) == {"s", "q"}
    source = np.random.default_rng(0)
    agrees(program, {t.name: source.standard_normal(t.extents({})) for t in program.inputs})


CHANGES = """
    for i in range(24):
        s[i] = s[i] * q[i]
    for i in range(24):
        for j in range(300):
            q[i] += x[i, j] * s[i]
"""
OLD_VALUE = """
    for i in range(24):
        y[i] = q[i]
    for i in range(24):
        for j in range(300):
            q[i] += x[i, j] * x[i, j]
"""
BEFORE = """
    for i in range(24):
        q[i] = y[i] * 3
    for i in range(24):
        for j in range(300):
            q[i] += x[i, j] * x[i, j]
    for i in range(24):
        q[i] = q[i] - s[i]
"""


@pytest.mark.parametrize("rest", [CHANGES, OLD_VALUE, BEFORE], ids=["changes", "old", "before"])
def test_what_lies_between_sums_stays_there(rest: str) -> None:
    text = "def f(x: 'f64[24, 300]', s: 'f64[24]', q: 'f64[24]', y: 'f64[24]'):\n    for i in range(24):\n"
    program = from_text(text + "        for j in range(300):\n            s[i] += x[i, j]\n" + rest.strip("\n") + "\n")
    source = np.random.default_rng(0)
    agrees(program, {t.name: source.standard_normal(t.extents({})) for t in program.inputs})


def test_elementwise_groups_that_read_the_same_stay_apart() -> None:
    program = poly.parse("a[i,j] = x[i,j] + 1; b[i,j] = x[i,j] * 2", x=(9, 37))
    assert all(not g.parts for g in groups_for(program, AVX2))


def test_axes_of_extent_one_are_values_of_a_row() -> None:
    text = "s[i] += x[i,j]; m[i,u] = s[i] / 8 where 0 <= u < 1; y[i,j] = x[i,j] - m[i,0]"
    program = poly.parse(text, x=(6, 50))
    assert made_in_memory(schedule_for_cpu(program, AVX2)) == {"y"}
    agrees(program, {"x": np.random.default_rng(0).integers(-2, 3, (6, 50)).astype("f4")})


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 9])
def test_rows_side_by_side(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 13)).astype("f4")
    program = poly.parse(SOFTMAX, x=x.shape)
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and plan.height == {1: 1, 2: 2, 3: 3, 4: 4, 8: 4, 9: 3}[rows]
    agrees(program, {"x": x})


@pytest.mark.parametrize(("columns", "lanes"), [(64, 8), (256, 16), (768, 32), (144, 16), (136, 8)])
def test_long_chains_side_by_side(columns: int, lanes: int) -> None:
    """Wide vectors where few of their lanes are empty; rows side by side do the same for short ones."""
    x = np.random.default_rng(columns).standard_normal((4, columns)).astype("f4")
    program = poly.parse(SOFTMAX.replace("exp", "sigmoid"), x=x.shape)
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and max(p.lanes for p in plan.passes) == lanes
    agrees(program, {"x": x})


def test_exponentials_of_two_rows_side_by_side() -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype("f4")
    program = poly.parse(SOFTMAX, x=x.shape)
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and plan.height == 2 and max(p.lanes for p in plan.passes[1:]) == 8
    agrees(program, {"x": x})


@pytest.mark.parametrize(
    ("shape", "height", "ahead"),
    [((64, 256), 2, 1), ((1 << 15, 256), 1, 8), ((1 << 16, 128), 2, 8), ((1 << 19, 16), 4, 32)],
)
def test_rows_from_far_make_one_stream(shape: tuple[int, int], height: int, ahead: int) -> None:
    """From memory they are asked for 8 KiB ahead."""
    program = poly.parse(SOFTMAX, x=shape)
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and (plan.height, plan.ahead) == (height, ahead)


@pytest.mark.parametrize(
    ("columns", "height", "asks"), [(500, 4, True), (1000, 2, True), (2700, 1, True), (2800, 1, False)]
)
def test_rows_that_fill_the_nearest_cache_are_not_asked_for(columns: int, height: int, asks: bool) -> None:
    """As many rows side by side as are asked for ahead, 8 KiB: read, written, and the next ones, in 32 KiB."""
    caches, features = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}, ("avx", "avx2", "fma", "f16c")
    machine = machine_of_features("x86-64", features, "x86_64-unknown-linux-gnu", caches, 2, 3000)
    program = poly.parse(LAYERNORM, x=(512, columns), g=(columns,), b=(columns,))
    (group,) = groups_for(program, machine)
    plan = row_plan(program, group, machine)
    assert plan is not None and plan.height == height and bool(plan.asked) == asks


@pytest.mark.parametrize("columns", [300, 301, 1024])
def test_the_next_rows_are_asked_for_while_there_is_something_to_compute(columns: int) -> None:
    """By the exponentials, in all pieces of their loop, where rows come from beyond a core's own caches."""
    far, near = (poly.parse(SOFTMAX, x=(rows, columns)) for rows in (1024, 8))
    schedule = schedule_for_cpu(far, AVX2)
    marked = {loop for loop, mark in schedule.marks.items() if mark.ahead}
    asking = {n for n, nest in schedule.nests.items() if marked & {*nest.names}}
    assert len(asking) == 1 + (columns % 8 > 0)
    assert {schedule.program.statement[n].origin or n for n in asking} == {"e_set"}
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    quiet = schedule_for_cpu(near, AVX2)
    assert not any(mark.ahead for mark in quiet.marks.values())
    agrees(far, {"x": np.random.default_rng(0).standard_normal((1024, columns)).astype("f4")})


WIDE = machine_of_features(
    "skylake-avx512", ("avx", "avx2", "avx512f", "avx512vl", "avx512bw", "avx512dq", "fma", "f16c"),
    "x86_64-unknown-linux-gnu", {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}, 2, 3000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shape", "height"),
    [
        (SOFTMAX, (6144, 512), 1),
        (SOFTMAX, (12000, 256), 3),
        (LAYERNORM, (6144, 512), 4),
        (SOFTMAX, (30000, 256), 1),  # from memory
        (LAYERNORM, (30000, 512), 1),
    ],
)
def test_rows_from_the_last_cache_are_side_by_side(text: str, shape: tuple[int, int], height: int) -> None:
    shapes = {"x": shape} | ({"g": shape[-1:], "b": shape[-1:]} if text == LAYERNORM else {})
    program = poly.parse(text, dtypes=None, **shapes)
    (group,) = groups_for(program, WIDE)
    plan = row_plan(program, group, WIDE)
    assert plan is not None and plan.height == height


@pytest.mark.parametrize(
    ("shape", "height", "width", "joined"),
    [
        ((64, 512), 2, 2, True),
        ((64, 1000), 2, 2, True),
        ((64, 1024), 1, 4, True),  # two rows of three passes would fill the nearest cache
        ((6144, 512), 1, 4, True),
        ((5000, 500), 1, 4, False),  # from afar, from within lines on
    ],
)
def test_exponentials_side_by_side_are_a_wide_vector(
    shape: tuple[int, int], height: int, width: int, joined: bool
) -> None:
    program = poly.parse(SOFTMAX, x=shape)
    (group,) = groups_for(program, WIDE)
    plan = row_plan(program, group, WIDE)
    assert plan is not None and plan.height == height
    (whole,) = (p for p in plan.passes if p.extents)
    assert (whole.lanes, whole.width, whole.joined) == (16, width, joined)
    vectors = re.findall(r"range\(0, (\d+)\) vector", str(schedule_for_cpu(program, WIDE).lower()))
    assert max(map(int, vectors)) == (16 * width if joined else 16)


MASKED = SOFTMAX.replace("exp(x[i,j] - m[i])", "(exp(x[i,j] - m[i]) if x[i,j] > 0 and floor(x[i,j]) != 1 else 0)")


def test_comparisons_and_roundings_are_no_functions() -> None:
    assert {"gt", "ne", "and", "not", "bit_xor", "floor", "round", "select"} <= QUICK < LIGHT
    assert not {"exp", "log", "pow", "fmod"} & LIGHT
    program = poly.parse(MASKED, x=(64, 300))
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and plan.behind["y_set"] == 2
    agrees(program, {"x": np.random.default_rng(2).standard_normal((64, 300)).astype("f4")})


@pytest.mark.parametrize(
    ("rows", "columns", "threads"),
    [(32, 300, 1), (128, 64, 2), (1024, 40, 1), (16, 1030, 1), (2048, 21, 2), (1536, 40, 2)],
)
def test_passes_with_exponentials_are_staggered(rows: int, columns: int, threads: int) -> None:
    """One loop, in which the largest elements are of one row, exponentials of the one before, quotients of the next."""
    program = poly.parse(SOFTMAX, x=(rows, columns))
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2, threads)
    assert plan is not None and [plan.behind[s] for s in ("m_update", "e_set", "s_update", "y_set")] == [0, 1, 1, 2]
    assert len([p for p in plan.passes if p.extents]) == 1
    assert rows % plan.block == 0 and rows // plan.block % threads == 0
    schedule = schedule_for_cpu(program, AVX2, threads)
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    assert made_in_memory(schedule) == {"y"}
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype("f4")
    x[rows // 2, columns // 2] = np.nan
    agrees(program, {"x": x}, threads)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (SOFTMAX, 15),  # too few
        (SOFTMAX, 523),  # no even blocks
        (f"{SOFTMAX}; z[i,j] = e[i,j] - s[i]", 64),  # exponentials of two rows would need a buffer
        (LAYERNORM, 64),  # nothing that takes longer than the loads
    ],
)
def test_passes_that_stay_one_after_another(text: str, rows: int) -> None:
    shapes = {"x": (rows, 64)} | ({"g": (64,), "b": (64,)} if text == LAYERNORM else {})
    program = poly.parse(text, dtypes=None, **shapes)
    (group,) = groups_for(program, AVX2)
    plan = row_plan(program, group, AVX2)
    assert plan is not None and not plan.behind
    rng = np.random.default_rng(0)
    agrees(program, {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()})


@pytest.mark.parametrize(
    ("machine", "rows", "columns", "staggered"),
    [
        (MESH, 1000, 1000, False),
        (MESH, 96, 1000, True),  # from the core's own caches
        (MESH, 250, 4000, True),  # more than the first cache holds
        (MESH, 20000, 1024, True),  # past the caches, in slots
        (AVX512, 1000, 1000, True),
    ],
)
def test_rows_that_come_slowly_are_passed_over_one_after_another(
    machine: Machine, rows: int, columns: int, staggered: bool
) -> None:
    program = poly.parse(SOFTMAX, x=(rows, columns))
    plan = row_plan(program, groups_for(program, machine)[0], machine)
    assert plan is not None and bool(plan.behind) == staggered


def test_values_of_rows_that_are_results_are_staggered_too() -> None:
    text = f"{SOFTMAX}; z[i] = m[i] + s[i]; w[i] = s[i] * 2"
    program = poly.parse(text, x=(96, 70))
    assert "arrange" in schedule_for_cpu(program, AVX2).script
    agrees(program, {"x": np.random.default_rng(1).standard_normal((96, 70)).astype("f4")})


def test_exponentials_lie_in_the_result() -> None:
    """Where the result is written last, element by element; else they have a buffer of their own."""
    elsewhere = f"{SOFTMAX}; z[i,j] = e[i,j] - s[i]"
    for text, inside in ((SOFTMAX, True), (elsewhere, False)):
        program = poly.parse(text, x=(4, 40))
        schedule = schedule_for_cpu(program, AVX2)
        assert ("overlay(tensor='e', inside='y')" in schedule.script) == inside
        agrees(program, {"x": np.random.default_rng(0).standard_normal((4, 40)).astype("f4")})


@pytest.mark.parametrize(
    ("text", "shape", "threads", "heights"),
    [
        (LAYERNORM, (512, 512), 1, (1, 4)),
        (LAYERNORM, (512, 512), 2, (4, 4)),  # each thread's rows in its own caches
        (LAYERNORM, (8000, 128), 1, (2, 4)),
        (SOFTMAX, (4096, 256), 1, (4, 4)),
    ],
)
def test_rows_from_a_last_cache_as_slow_as_memory_are_one_stream(
    text: str, shape: tuple[int, int], threads: int, heights: tuple[int, int]
) -> None:
    mesh = replace(WIDE, engines=(replace(WIDE.engines[0], cost={**WIDE.engines[0].cost, "afar": 1}),))
    row = (shape[1],)
    program = poly.parse(text, x=shape, g=row, b=row) if text == LAYERNORM else poly.parse(text, x=shape)
    plans = [row_plan(program, groups_for(program, m, threads)[0], m, threads) for m in (mesh, WIDE)]
    assert [p.height for p in plans if p is not None] == [*heights]


@pytest.mark.parametrize(
    ("text", "columns", "slots"),
    [
        (SOFTMAX, 512, 2),
        (f"{SOFTMAX[: SOFTMAX.index('y')]}t[i] max= e[i,j] / s[i]; y[i,j] = e[i,j] * t[i]", 512, 3),
        (SOFTMAX, 500, 0),  # rows that end within a line
    ],
)
def test_exponentials_of_results_past_the_caches_take_turns(text: str, columns: int, slots: int) -> None:
    """In as many rows of the nearest cache as passes are apart; a result that is read back would not leave at once."""
    sizes, features = {1: 32 << 10, 2: 128 << 10, 3: 256 << 10}, ("avx", "avx2", "fma", "f16c")
    small = machine_of_features("x86-64", features, "x86_64-unknown-linux-gnu", sizes, 2, 3000)
    x = np.random.default_rng(columns).standard_normal((96, columns)).astype("f4")
    program = poly.parse(text, x=x.shape)
    schedule = schedule_for_cpu(program, small)
    past = any(n.nontemporal for n in schedule.lower().nodes() if isinstance(n, For))
    rows = [t.shape for t in schedule.program.tensors if t.origin == "e"]
    assert (past, [int(str(r[0])) for r in rows]) == (slots > 0, [slots] * (slots > 0))
    expected = np.asarray(run_program(program, {"x": x})["y"], "f8")
    np.testing.assert_allclose(np.asarray(poly.compile(schedule)(x), "f8"), expected, rtol=3e-6, atol=1e-6)


def test_threads_share_rows_not_what_is_inside() -> None:
    for rows, shared in ((6, True), (1, False)):
        program = poly.parse(SOFTMAX, x=(rows, 1000))
        assert ("parallelise(loop='i" in schedule_for_cpu(program, AVX2, 2).script) == shared
        agrees(program, {"x": np.random.default_rng(0).standard_normal((rows, 1000)).astype("f4")}, threads=2)


def test_a_small_factor_is_no_reason_to_join() -> None:
    program = poly.parse("s[n,c] = 2 * a[n,c]; y[n,c,h] = x[n,c,h] * s[n,c]", a=(2, 8), x=(2, 8, 100))
    assert all(not g.parts for g in groups_for(program, AVX2))


def test_an_accelerator_keeps_its_groups() -> None:
    program = poly.parse(SOFTMAX, x=(12, 100))
    assert len(groups_for(program, Machine("m", "accelerator", (Memory("dram", None, "dram"),), ()))) == 4


def test_digits_of_a_subscript_are_parallel_loops() -> None:
    text = "y[8*g+o,h] += x[g,c,h] * w[8*g+o,c] where 0 <= o < 8"
    program = poly.parse(text, x=(4, 3, 9), w=(32, 3), y=(32, 9))
    (group,) = groups_of(program)
    assert {group.axes[s.name] for s in program.statements} == {("g", "o", "h")}
    random = np.random.default_rng(0)
    agrees(program, {n: random.integers(-3, 4, s).astype("f4") for n, s in (("x", (4, 3, 9)), ("w", (32, 3)))})


def test_values_of_a_chain_stay_in_registers() -> None:
    text = "a[i,j] = x[i,j] * y[i,j]; b[i,j] = a[i,j] + x[i,j]; c[i,j] = max(b[i,j], 0)"
    program = poly.parse(text, x=(9, 37), y=(9, 37))
    schedule = schedule_for_cpu(program, AVX2)
    assert made_in_memory(schedule) == {"c"}
    assert {t.space for t in schedule.program.tensors if t.origin} == {"reg"}


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 9, 16, 33, 64, 65, 100, 257])
def test_softmax_over_lengths(length: int) -> None:
    x = np.random.default_rng(length).standard_normal((5, length)).astype("f4")
    agrees(poly.parse(SOFTMAX, x=x.shape), {"x": x}, 1 + length % 2)


def test_infinities_and_nan_in_rows() -> None:
    x = np.random.default_rng(0).standard_normal((6, 45)).astype("f4")
    x[1, 7], x[2, 44], x[3, :], x[4, 0] = np.inf, np.nan, -np.inf, -np.inf
    agrees(poly.parse("m[i] max= x[i,j]; n[i] min= x[i,j]; y[i,j] = x[i,j] - m[i] * n[i]", x=x.shape), {"x": x})


STEPS = (
    "{a}[i] += {r}[i,j]", "{a}[i] max= {r}[i,j]", "{a}[i] min= {r}[i,j] + {s}[i]", "{a}[i] += {r}[i,j] * {q}[i,j]",
    "{a}[i,j] = {r}[i,j] - {s}[i]", "{a}[i,j] = {r}[i,j] + {q}[i,j]", "{a}[i] = {s}[i] + {t}[i]",
    "{a}[i,j] = {r}[i,j] * g[j]",
)  # fmt: skip


@st.composite
def row_programs(draw: st.DrawFn) -> tuple[str, int, int]:
    """Statements over one row after another: each makes a row or a value of one from those before."""
    rows, values, lines = ["x"], ["v"], list[str]()
    for k in range(draw(st.integers(2, 6))):
        step = draw(st.sampled_from(STEPS))
        name = f"t{k}"
        pick = {"r": rows, "q": rows, "s": values, "t": values}
        lines.append(step.format(a=name, **{n: draw(st.sampled_from(of)) for n, of in pick.items()}))
        (rows if step.startswith("{a}[i,j]") else values).append(name)
    lines.append(f"y[i,j] = {rows[-1]}[i,j] + {values[-1]}[i]")
    return "; ".join(lines), draw(st.integers(1, 5)), draw(st.integers(1, 40))


@settings(max_examples=15, derandomize=True, deadline=None)
@given(row_programs())
def test_random_row_programs(case: tuple[str, int, int]) -> None:
    text, rows, length = case
    random = np.random.default_rng(length)
    shapes = {"x": (rows, length), "v": (rows,), "g": (length,)}
    used = {n: random.integers(-2, 3, s).astype("f4") for n, s in shapes.items() if f"{n}[" in text.replace("max", "")}
    agrees(poly.parse(text, dtypes=None, **{n: shapes[n] for n in used}), used)


def test_results_of_a_row_do_not_narrow_its_vectors() -> None:
    """A wide number for each row, and positions in 32 bits: the elements of a row fill whole vectors."""
    text = (
        "program p; input x: f32[6, 96]; output y: i64[6]; temporary best: f32[6]; temporary first: i32[6]\n"
        "A[i]: best[i] = -inf where 0 <= i < 6\n"
        "B[i, j]: best[i] max= x[i, j] where 0 <= i < 6 and 0 <= j < 96\n"
        "C[i]: first[i] = 96 where 0 <= i < 6\n"
        "D[i, j]: first[i] min= select(x[i, j] == best[i], i32(index(j)), 96) where 0 <= i < 6 and 0 <= j < 96\n"
        "E[i]: y[i] = i64(first[i]) where 0 <= i < 6\n"
    )
    program = poly.parse(text)
    plan = row_plan(program, groups_for(program, AVX2)[0], AVX2)
    assert plan is not None and {p.lanes for p in plan.passes if p.extents} <= {8, 16}
    x = np.random.default_rng(0).integers(-9, 9, (6, 96)).astype(np.float32)
    agrees(program, {"x": x})


def test_narrow_index_values_wrap_around() -> None:
    text = "program p; output y: i32[40]\nA[i]: y[i] = i32(index(100000000*i + 7)) where 0 <= i < 40\n"
    agrees(poly.parse(text), {})


def test_nothing_is_compared_with_what_a_maximum_starts_from() -> None:
    kernel = poly.compile(poly.parse(SOFTMAX, x=(8, 32)))
    assert isinstance(kernel, Kernel) and "fcmp" in kernel.ir
    assert not [line for line in kernel.ir.split("\n") if "fcmp" in line and "0xFFF" in line]
