"""Blocked contractions: every way that the model lists gives the exact result, not only the one that it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.affine import Affine
from poly.codegen.host import host_machine, machine_of_features
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_block import block_group, schedule_contraction
from poly.scheduling.cpu_contract import contraction_plan
from poly.scheduling.cpu_core import Cache, core_of
from poly.scheduling.cpu_cost import MemoryCycles, SharedNest, cycles_of_memory, overlapped
from poly.scheduling.cpu_facts import BYTES_AHEAD, Facts, facts_of, own_capacity
from poly.scheduling.cpu_operand import Operand, Touched
from poly.scheduling.cpu_plan import BlockPlan, tallest, window_stays
from poly.scheduling.cpu_rating import RatedWays
from poly.scheduling.cpu_reuse import BlockedNest, Copied, Copy, Loop
from poly.scheduling.cpu_shares import EDGE, FITTED_REMOTE, MEETING_CYCLES
from poly.scheduling.cpu_ways import TileSizes
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.machines import AVX2, AVX512, MESH

GEMM = "C[i,j] += A[i,k] * B[k,j]"
TRANSPOSED = "C[i,j] += A[k,i] * B[j,k]"
WITH_BIAS_AND_SUM = """program tile
input W: f32[40, 5, 3]
input X: f32[5, 37]
input bias: f32[40]
input S: f32[40, 18]
temporary T: f32[40, 18]
temporary Z: f32[40, 18]
output Y: f32[40, 18]
s0[o, x]: T[o, x] = bias[o] where 0 <= o <= 39 and 0 <= x <= 17
s1[o, x, c, r]: T[o, x] += W[o, c, r]*X[c, 2*x + r] where 0 <= o <= 39 and 0 <= x <= 17 and 0 <= c <= 4 and 0 <= r <= 2
s2[o, x]: Z[o, x] = T[o, x] + S[o, x] where 0 <= o <= 39 and 0 <= x <= 17
s3[o, x]: Y[o, x] = max(Z[o, x], 0) where 0 <= o <= 39 and 0 <= x <= 17
"""
CORE = core_of(AVX2, 4)
WINDOW = "Y[o,x] += W[o,c,r] * X[c,2*x + r]"


def facts_on(program: Program, machine: Machine | None = None) -> Facts:
    (group,) = groups_of(program)
    return facts_of(program, group, machine or host_machine())


def rated_ways(facts: Facts, lanes: int) -> RatedWays:
    assert facts.update is not None
    return RatedWays(facts, facts.update, lanes)


def run(program: Program, plan: BlockPlan, facts: Facts | None = None) -> None:
    """Compile as planned and compare with the interpreter of programs, exactly, on small whole numbers."""
    facts = facts or facts_on(program)
    schedule = settle(block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine))
    kernel = poly.compile(program, schedule=schedule)
    random = np.random.default_rng(3)
    arrays = [random.integers(-3, 4, t.extents(program.binding)).astype(np.float32) for t in kernel.inputs]
    (output,) = program.outputs
    wanted = run_program(program, {t.name: a for t, a in zip(kernel.inputs, arrays, strict=True)})[output.name]
    assert np.array_equal(kernel(*arrays), wanted)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (GEMM, ((13, 270), (270, 35))),
        (TRANSPOSED, ((270, 13), (35, 270))),
        ("C[i,j] += A[i,k,l] * B[j,k,l]", ((7, 33, 4), (20, 33, 4))),
    ],
)
def test_blocks_of_a_sum_start_from_zero(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    program = poly.parse(text, A=shapes[0], B=shapes[1])
    facts = facts_on(program)
    seen = 0
    for lanes in (0, 1):
        choice = rated_ways(facts, lanes)
        for way in (w for w in choice.ways() if choice.depths_of(w)):
            plan = choice.plan(way, TileSizes(3, 2, 2, 0, choice.depths_of(way)[-1]))
            schedule = block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine)
            merges = [s for s in schedule.program.statements if s.name.startswith("merge_") and s.combiner]
            assert merges
            seen += len(merges)
            run(program, plan)
    assert seen


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (GEMM, ((24, 60000), (60000, 96))),
        (GEMM, ((1, 60000), (60000, 24))),  # one tile of vectors, the last of them not whole
        ("C[i,j] += A[i,k,l] * B[k,l,j]", ((5, 200, 300), (200, 300, 9))),
        ("C[i] += A[k,i] * B[k]", ((60000, 20), (60000,))),
        ("C[i] += A[k,i] * B[k]", ((60000, 220), (60000,))),  # more columns than a tile holds
    ],
)
def test_long_sums_of_equal_elements_err_little(text: str, shapes: tuple[tuple[int, ...], ...], threads: int) -> None:
    arrays = [np.full(shape, 0.1, np.float32) for shape in shapes]
    program = poly.parse(text, A=shapes[0], B=shapes[1])
    found = np.asarray(poly.compile(program, threads=threads)(*arrays), np.float32)
    assert np.abs(found / (60000 * float(np.float32(0.1)) ** 2) - 1).max() < 6e-5  # one by one: 2e-4 to 7e-4


@pytest.mark.parametrize("text", [GEMM, TRANSPOSED])
def test_every_way_of_a_product_is_exact(text: str) -> None:
    a, b = ((21, 40), (40, 35)) if text == GEMM else ((40, 21), (35, 40))
    program = poly.parse(text, A=a, B=b)
    facts = facts_on(program)
    choice = rated_ways(facts, 1)
    for k, way in enumerate(w for w in choice.ways() if not w.lanes_outside):
        row_block = 2 if dict(way.packs).get(0) == "rows" else 0
        run(program, choice.plan(way, TileSizes(4, 2, 2, row_block, 16 * (k % 3 == 2))))


@pytest.mark.parametrize(
    ("steps", "depths"),
    [(1024, [16, 128, 512]), (1098, [18, 126, 552]), (1050, [18, 132, 528]), (1097, [16, 128, 512])],
)
def test_a_shorter_last_block_of_a_sum_has_whole_bodies(steps: int, depths: list[int]) -> None:
    """Where any number of steps in a body divides the loop."""
    choice = rated_ways(facts_on(poly.parse(GEMM, A=(64, steps), B=(steps, 96))), 1)
    assert choice.depths == depths


@pytest.mark.parametrize(
    ("steps", "depth", "sides"),
    [
        (32, 0, [8]), (24, 0, [8]), (36, 0, [4]), (70, 0, [8, 6]), (13, 0, [8, 5]), (7, 0, [7]), (3, 0, []),
        (44, 16, [4]), (56, 16, [8]), (70, 16, []),
    ],
)  # fmt: skip
def test_a_copy_across_has_squares_as_wide_as_divides_its_rows(steps: int, depth: int, sides: list[int]) -> None:
    """And those of the last block of the reduction; where nothing divides all of it, whole ones and what is left."""
    program = poly.parse(TRANSPOSED, A=(steps, 12), B=(32, steps))
    facts = facts_on(program, AVX2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(6, 2, 1, 0, depth))
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, AVX2)
    tiles = [t for t in schedule.program.tensors if t.space == "reg" and t.origin == "B"]
    assert [tuple(e.constant for e in t.shape) for t in tiles] == [(8, side) for side in sides]
    run(program, plan)


@pytest.mark.parametrize(("columns", "rows"), [(40, [8, 8]), (43, [8, 8, 3]), (35, [8, 3]), (27, [8, 8, 3]), (5, [5])])
def test_a_copy_across_has_squares_to_the_last_lane(columns: int, rows: list[int]) -> None:
    """Whole blocks of 16, whole vectors of the last one, and the rest."""
    program = poly.parse(TRANSPOSED, A=(24, 12), B=(columns, 24))
    facts = facts_on(program, AVX2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(6, min(2, choice.vectors), 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, AVX2)
    tiles = [t for t in schedule.program.tensors if t.space == "reg" and t.origin == "B"]
    assert [t.shape[0].constant for t in tiles] == rows
    run(program, plan)


@pytest.mark.parametrize(("columns", "rows"), [(48, [8]), (40, [8]), (43, [8, 3]), (29, [8, 5])])
def test_a_copy_across_of_several_blocks_has_squares_to_the_last_lane(columns: int, rows: list[int]) -> None:
    """A whole operand in blocks of 16 lanes, where that is what is packed; squares lie in one block each."""
    program = poly.parse(TRANSPOSED, A=(24, 12), B=(columns, 24))
    facts = facts_on(program, AVX2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(6, 2, 1, 0, 0))
    plan = replace(plan, packs=tuple(replace(p, site="whole", block=16) for p in plan.packs))
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, AVX2)
    tiles = [t for t in schedule.program.tensors if t.space == "reg" and t.origin == "B"]
    assert [t.shape[0].constant for t in tiles] == rows
    run(program, plan)


@pytest.mark.parametrize(("columns", "steps"), [(48, 2), (43, 3)])
def test_lanes_few_elements_apart_are_picked_from_whole_vectors(columns: int, steps: int) -> None:
    """Rows that are too short for squares."""
    program = poly.parse(TRANSPOSED, A=(steps, 12), B=(columns, steps))
    facts = facts_on(program, AVX2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(6, 2, 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, AVX2)
    copies = [n for n in schedule.nests if n.startswith("ld_B")]
    assert any(schedule.kind(schedule.nests[c].names[-1]) == "vector" for c in copies)
    run(program, plan)


def test_partial_sums_go_through_memory() -> None:
    program = poly.parse(GEMM, A=(13, 50), B=(50, 24))
    facts = facts_on(program)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if not w.packs)
    plan = choice.plan(way, TileSizes(6, 2, 1, 0, 16))
    assert plan.depth == ("k", 16)
    run(program, plan)


def test_blocks_of_lanes_around_those_of_the_reduction() -> None:
    program = poly.parse(GEMM, A=(13, 260), B=(260, 41))
    facts = facts_on(program)
    choice = rated_ways(facts, 1)
    ways = [w for w in choice.ways() if w.lanes_outside]
    assert {tuple(site for _, site in w.packs) for w in ways} >= {(), ("lanes",), ("rows", "lanes")}
    for way in ways[::2]:
        plan = choice.plan(way, TileSizes(6, 2, 2, 2 * ("rows" in dict(way.packs).values()), 128))
        run(program, plan)
        schedule = block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine)
        loops = schedule.nests["C_update_lo_lo"].loops
        first = [sorted(i for i in loop.names if i in "ijk") for loop in [*loops.values()][:2]]
        assert first == [["j"], ["k"]]


def test_lanes_along_a_strided_axis_of_the_target_are_turned_in_registers() -> None:
    program = poly.parse(WINDOW, W=(32, 5, 3), X=(5, 27), Y=(32, 13))
    each = rated_ways(facts_on(program), 0)
    plans = [r.plan for r in sorted(each.best_of_each(each.ways(), 8), key=lambda r: r.cycles)]
    assert plans and all(p.lanes == 0 and p.rows == 1 and p.depth is None for p in plans)
    for plan in plans[:3]:
        run(program, plan)


def test_maps_of_one_column_have_lanes() -> None:
    """Along rows or channels: the last axis has one element, though all accesses are contiguous along it."""
    program = poly.parse("Y[n,o,y,x] += X[n,c,y+q,x+r]*W[o,c,q,r]", X=(2, 8, 9, 3), W=(20, 8, 3, 3))
    facts = facts_on(program, AVX2)
    assert facts.group.axes["Y_update"] == ("n", "o", "y", "x") and facts.lanes() == 2


@pytest.mark.parametrize(("height", "width"), [(3, 2), (5, 2), (9, 1)])
def test_what_follows_a_turned_tile_runs_along_its_rows(height: int, width: int) -> None:
    program = parse_program(WITH_BIAS_AND_SUM)
    facts = facts_on(program)
    choice = rated_ways(facts, 0)
    ways = [*choice.ways()]
    assert {w.rows for w in ways} == {1}
    for way in ways[:2]:
        run(program, choice.plan(way, TileSizes(height, width, 1, 0, 0)))


@pytest.mark.parametrize(("height", "width"), [(4, 3), (5, 2)])
def test_partial_sums_of_turned_tiles_are_in_a_buffer_where_lanes_are_contiguous(height: int, width: int) -> None:
    program = poly.parse("Y[o,y,x] += W[o,c,q,r] * X[c,y + q,x + r]", W=(40, 32, 3, 3), X=(32, 5, 11))
    facts = facts_on(program)
    choice = rated_ways(facts, 0)
    ways = [w for w in choice.ways() if w.lanes_outside and w.rows == 2]
    plan = choice.plan(ways[0], TileSizes(height, width, 1, 0, 16))
    schedule = settle(block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine))
    sums = next(t for t in schedule.program.tensors if t.origin == "Y" and t.name.endswith("_s"))
    assert sums.layout is not None and sums.layout.coordinates[-1].names == {sums.layout.index[0]}
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    run(program, plan)


WITH_MAP_BEHIND = """program blocks
constant W: f32[24, 32, 3, 3]
input X: f32[5, 9, 32]
input bias: f32[24]
temporary T: f32[3, 7, 24]
output Y: f32[3, 7, 24]
s0[o, y, x]: T[y, x, o] = bias[o] where 0 <= o <= 23 and 0 <= y <= 2 and 0 <= x <= 6
s1[o, y, x, q, r, c]: T[y, x, o] += X[y + q, x + r, c]*W[o, c, q, r] where 0 <= o <= 23 and 0 <= y <= 2 and \
0 <= x <= 6 and 0 <= q <= 2 and 0 <= r <= 2 and 0 <= c <= 31
s2[o, y, x]: Y[y, x, o] = max(T[y, x, o], 0) where 0 <= o <= 23 and 0 <= y <= 2 and 0 <= x <= 6
""".replace("\\\n", "")


@pytest.mark.parametrize("outside", [False, True])
def test_a_reduction_in_blocks_with_a_map_behind_it(outside: bool) -> None:
    """What a block meets of a constant lies in one piece: its steps of the window one after the other."""
    program = parse_program(WITH_MAP_BEHIND)
    facts = facts_on(program, AVX2)
    choice = rated_ways(facts, 0)
    way = next(w for w in choice.ways() if w.rows == 2 and w.reused and w.lanes_outside == outside)
    plan = choice.plan(way, TileSizes(4, 2, 1, 0, 16))
    assert plan.depth == ("c", 16) and [p.deep for p in plan.packs] == [(1, 16)]
    schedule = settle(schedule_contraction(unchecked(Schedule(program)), facts.group, plan, AVX2))
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    layout = next(t.layout for t in schedule.program.tensors if t.origin == "W")
    assert layout is not None and [e.constant for e in layout.shape] == [2, 2, 3, 3, 16, 16]
    random = np.random.default_rng(3)
    w, x, bias = (random.integers(-3, 4, s).astype(np.float32) for s in ((24, 32, 3, 3), (5, 9, 32), (24,)))
    kernel = poly.compile(program, schedule=schedule, constants={"W": w})
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1))
    assert np.array_equal(kernel(x, bias), np.maximum(np.einsum("yxcqr,ocqr->yxo", windows, w) + bias, 0))


def test_what_is_walked_in_one_piece_is_not_cut() -> None:
    """Weights of one column of steps, and those whose window is walked inside of the blocks."""
    for text in ("Y[x,o] += X[x,c] * W[o,c]", "Y[x,o] += X[c,x + q] * W[o,c,q]"):
        shapes: dict[str, Any] = {"X": (32, 9), "W": (24, 32, 3)} if "q" in text else {"X": (9, 32), "W": (24, 32)}
        program = poly.parse(text, **shapes)
        program = replace(program, tensors=tuple(
            replace(t, role="constant") if t.name == "W" else t for t in program.tensors
        ))  # fmt: skip
        choice = rated_ways(facts_on(program, AVX2), 1)
        way = next(w for w in choice.ways() if dict(w.packs).get(1) == "whole")
        assert all(p.deep is None for p in choice.plan(way, TileSizes(4, 2, 1, 0, 16)).packs)


def test_a_tile_is_not_turned_for_what_follows_in_another_order() -> None:
    text = WITH_BIAS_AND_SUM.replace("S: f32[40, 18]", "S: f32[18, 40]").replace("S[o, x]", "S[x, o]")
    facts = facts_on(parse_program(text))
    assert not [*rated_ways(facts, 0).ways()]


def test_a_blocked_schedule_prints_as_a_script_that_replays() -> None:
    program = poly.parse(GEMM, A=(12, 300), B=(300, 32))
    facts = facts_on(program)
    plan = contraction_plan(facts, 1)
    assert plan is not None
    schedule = settle(block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine))
    assert str(Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_no_more_rows_fit_registers_than_in_the_tallest_tile(width: int, registers: int) -> None:
    for masked in (False, True):
        height = tallest(width, masked, registers)
        beside = width + 1 + (masked and width == 1)
        assert height * width + beside <= registers < (height + 1) * width + beside


def test_the_choice_is_among_the_best_of_the_model() -> None:
    facts = facts_on(poly.parse(GEMM, A=(96, 200), B=(200, 96)))
    each = rated_ways(facts, 1)
    best = min(each.best_of_each(each.ways(), 5), key=lambda r: r.cycles)
    assert contraction_plan(facts, 1) == best.plan


def test_ways_do_not_double_with_every_factor() -> None:
    counts: list[int] = []
    for n in (3, 12):
        shapes: dict[str, Any] = {f"A{k}": (33, 19) for k in range(n)} | {"B": (19, 40)}
        program = poly.parse(f"S: C[i,j] += {'*'.join(f'A{k}[i,l]' for k in range(n))} * B[l,j]", **shapes)
        counts.append(len([*rated_ways(facts_on(program), 1).ways()]))
    assert 0 < counts[0] == counts[1]


def test_power_of_two_strides_are_packed_and_small_operands_are_not() -> None:
    def packed(n: int) -> set[str]:
        plan = contraction_plan(facts_on(poly.parse(GEMM, A=(n, n), B=(n, n))), 1)
        assert plan is not None
        return {p.tensor for p in plan.packs}

    assert packed(512) == {"B"} and packed(32) == set()


@pytest.mark.parametrize(("rows", "cores", "packed"), [(4, 2, False), (8, 2, False), (64, 2, True), (8, 8, True)])
def test_what_few_rows_read_from_the_last_cache_is_not_packed(rows: int, cores: int, packed: bool) -> None:
    """A copy costs as much as the product; from memory, of a cache of many cores, it is worth it."""
    features = ("avx", "avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq")
    caches = {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}
    machine = machine_of_features("znver5", features, "x86_64-unknown-linux-gnu", caches, cores, 3000)
    plan = contraction_plan(facts_on(poly.parse(GEMM, A=(rows, 2048), B=(2048, 2048)), machine), 1)
    assert plan is not None
    assert ("B" in {p.tensor for p in plan.packs}) == packed


@pytest.mark.parametrize(("machine", "lanes", "ways"), [(AVX2, 7, 8), (AVX512, 16, 12)], ids=["8 ways", "12 ways"])
def test_rows_that_meet_in_few_sets_of_the_cache_are_few(machine: Machine, lanes: int, ways: int) -> None:
    """Fewer than a set has ways, of which other operands take one."""

    def tallest(depth: int) -> int:
        plan = contraction_plan(facts_on(poly.parse(GEMM, A=(2048, depth), B=(depth, lanes)), machine), 1)
        assert plan is not None
        return 0 if any(p.tensor == "A" for p in plan.packs) else max(r.tile for s in plan.strips for r in s.rows)

    assert tallest(2048) < ways - 1 and ways <= tallest(2064)


def test_turned_tiles_are_narrow_where_rows_of_the_result_meet_in_few_sets() -> None:
    def lanes(columns: int) -> int:
        plan = contraction_plan(facts_on(poly.parse(TRANSPOSED, A=(512, 512), B=(columns, 512)), AVX512), 1)
        assert plan is not None and plan.lanes == 0  # along the rows of the result
        return plan.strips[0].width

    assert lanes(512) < lanes(528)


def test_pieces_that_start_anywhere_touch_more_lines_and_meet_in_few_sets() -> None:
    sizes = {"k": np.array(64.0), "j": np.array(16.0)}

    def lines(columns: int) -> Touched:
        operand = Operand("B", ({"k": 1}, {"j": 1}), (64, columns), (4 * columns, 4), 4)
        return operand.lines(CORE, sizes)

    dense, far_apart, one_set = lines(16), lines(16 * 33), lines(16 * 64)
    assert dense.first == dense.further == dense.footprint and dense.first < 64 * (64 + 1)
    assert 1.9 < far_apart.first / dense.first < 2 and far_apart.footprint == far_apart.first
    assert one_set.footprint > 30 * far_apart.footprint and one_set.first > far_apart.first
    assert far_apart.further > far_apart.first


def test_rows_inside_of_a_step_fill_the_sets_that_it_leaves_out() -> None:
    """Planes 256 lines apart start in one set; their rows, three lines apart, lie in all of them."""
    planes = Operand("X", ({"c": 1}, {"y": 1}, {"x": 1}), (16, 64, 48), (4 * 64 * 64, 192, 4), 4)

    def crowded(rows: int) -> float:
        touched = planes.lines(CORE, {"c": np.array(16.0), "y": np.array(float(rows)), "x": np.array(1.0)})
        return float(touched.footprint / touched.first)

    assert crowded(1) > 30 and crowded(4) == 16 and crowded(64) == 1


def test_pieces_in_pages_of_their_own_are_waited_for() -> None:
    def alone(pages: int) -> float:
        operand = Operand("X", ({"c": 1}, {"x": 1}), (256, 4096), (4 * 4096, 4), 4)
        return float(operand.lines(CORE, {"c": np.array(float(pages)), "x": np.array(16.0)}).scattered)

    assert alone(8) == 0 < alone(128)
    batch = Operand("X", ({"n": 1}, {"c": 1}, {"x": 1}), (4, 128, 784), (401408, 3136, 4), 4)
    sizes = {"n": np.array(1.0), "c": np.array(128.0), "x": np.array(16.0)}
    assert float(batch.lines(CORE, sizes).scattered) == 0  # one image, whatever lies between it and the next


def test_threads_meet_after_every_piece_and_copy() -> None:
    """A loop inside of eight blocks of which something is packed, in one piece of rows or in two."""
    one, eight, inside = np.ones(()), np.full((), 8.0), np.full((), 1e7)
    loops = [Loop("k", np.full((), 64.0), eight), Loop("j", np.full((), 512.0), eight)]
    copied = {0: Copied(1, one, one)}
    operand = Operand("B", ({"k": 1}, {"j": 1}), (64, 512), (2048, 4), 4)

    def cycles(pieces: float, copies: dict[int, Copied]) -> float:
        return float(SharedNest([operand], loops, copies, 2, ["k"], [one, one * pieces]).cycles(inside))

    assert cycles(1, copied) - cycles(1, {}) == pytest.approx(8 * MEETING_CYCLES, abs=2)
    assert cycles(2, {}) - cycles(1, {}) == pytest.approx(8 * MEETING_CYCLES, abs=2)


def test_what_another_nest_made_travels_unless_threads_share_it_alike() -> None:
    one, eight, inside = np.ones(()), np.full((), 8.0), np.full((), 1e7)
    loops = [Loop("j", np.full((), 512.0), eight)]
    axes = (({"i": 1}, {"k": 1}), ({"k": 1}, {"j": 1}))
    made = [Operand(name, own, (64, 512), (2048, 4), 4) for name, own in zip("AB", axes, strict=True)]

    def cycles(*which: int, capacity: int = 0, there: float = 1.0) -> float:
        others = {k: np.full((), there) for k in which}
        return float(SharedNest(made, loops, {}, 2, ["k"], [one], others, capacity=capacity).cycles(inside))

    assert cycles(0) - cycles() == pytest.approx(64 * 512 * 4 / 2 / FITTED_REMOTE, abs=2)  # all of it, by each
    assert cycles(1) == cycles(0, there=0.0) == cycles(0, capacity=1 << 10) == cycles()
    assert cycles(0, capacity=1 << 20) == cycles(0)


def test_what_threads_divide_stays_with_each_of_them() -> None:
    """Of 3 MB that two threads divide half of the time goes where half stays of each part; by the loop along which
    neither moves, and of what one core holds as well, nothing does.
    """
    one, inside, near = np.ones(()), np.full((), 1e7), np.full((), 4e6)

    def cycles(loop: str, capacity: int, size: int = 768) -> float:
        operand = Operand("B", ({"k": 1}, {"j": 1}), (1024, size), (4 * size, 4), 4)
        loops = [Loop(loop, np.full((), 512.0), np.full((), 8.0))]
        return float(SharedNest([operand], loops, {}, 2, [], [one], near=near, capacity=capacity).cycles(inside))

    whole = cycles("i", 2 << 20)
    assert cycles("j", 2 << 20) == pytest.approx(whole * (1 / 3 + 0.4 * 2 / 3), rel=0.01)
    assert cycles("j", 8 << 20) == cycles("i", 8 << 20) == whole
    assert cycles("j", 1 << 20) == whole


def test_rows_that_threads_write_side_by_side_cost_their_edges() -> None:
    """512 rows shared by columns: each once an edge, at the rate of what another core wrote, but no more than half of
    the tensor; by rows: none.
    """
    one, eight, inside = np.ones(()), np.full((), 8.0), np.full((), 1e7)

    def cycles(loop: str, remote: float, columns: int = 512) -> float:
        out = Operand("C", ({"i": 1}, {"j": 1}), (512, columns), (4 * columns, 4), 4, write=True)
        loops = [Loop(loop, np.full((), 512.0), eight)]
        return float(SharedNest([out], loops, {}, 2, ["k"], [one], remote=remote).cycles(inside))

    assert cycles("j", 8) - cycles("i", 8) == pytest.approx(512 * EDGE / 8, abs=2)
    assert cycles("j", 8, 32) - cycles("i", 8, 32) == pytest.approx(512 * 32 * 4 / 2 / 8, abs=2)
    assert cycles("i", 2) == cycles("i", 8)


def test_what_a_model_takes_from_a_description() -> None:
    """A core with wider vectors has wider paths; the first cache keeps a line of each way a page apart."""
    caches = {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}
    wide, narrow = (
        core_of(machine_of_features("x", features, "x86_64-unknown-linux-gnu", caches, 1, 4000), 4)
        for features in (("avx", "avx2", "avx512f", "avx512vl"), ("avx", "avx2"))
    )
    assert [c.rate for c in wide.caches[:2]] == [2 * c.rate for c in narrow.caches[:2]]
    assert wide.lines_kept(4096) == narrow.lines_kept(4096) == 12 and CORE.lines_kept(4096) == 8
    operand = Operand("B", ({"k": 1}, {"j": 1}), (512, 4096), (4 * 4096, 4), 4)
    pieces = {"k": np.array(512.0), "j": np.array(32.0)}
    assert operand.lines(wide, pieces).scattered < operand.lines(narrow, pieces).scattered
    assert operand.lines(wide, pieces).first > operand.lines(narrow, pieces).first


def test_steps_of_less_than_whole_lines_meet_all_sets() -> None:
    """A row of 196 elements is twelve lines and a quarter: rows drift through all sets, those of 192 do not."""
    assert CORE.lines_kept(4 * 196) == 512 and CORE.lines_kept(4 * 192) == 128


@pytest.mark.parametrize(("rows", "dearer"), [(256, False), (4096, True)])
def test_what_comes_from_memory_costs_less_in_the_order_of_memory(rows: int, dearer: bool) -> None:
    """Tiles of a result go along its rows, or down its columns: from there every piece of a tile is a new start."""
    caches = {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}
    core = core_of(machine_of_features("x", ("avx", "avx2"), "x86_64-unknown-linux-gnu", caches, 1, 4000), 4)
    target = Operand("C", ({"i": 1}, {"j": 1}), (rows, 2048), (4 * 2048, 4), 4, write=True)
    across = Loop("j", np.full((), 2048.0), np.full((), 64.0))
    down = Loop("i", np.full((), 32.0), np.full((), 8.0))
    blocks = Loop("i", np.full((), float(rows)), np.full((), 32.0))
    along, over = (
        float(cycles_of_memory(core, [target], [nest], {"i": rows, "j": 2048})[0].far[0])
        for nest in (BlockedNest((blocks, *tiles), {}, 1) for tiles in ((down, across), (across, down)))
    )
    assert (over > 1.1 * along) == dearer and along <= over


@pytest.mark.parametrize("features", [("avx", "avx2"), ("avx", "avx2", "avx512f", "avx512vl")])
def test_vectors_of_callers_arrays_lie_in_two_lines(features: tuple[str, ...]) -> None:
    """A packed vector is one load; of an array that starts anywhere, as many more as a vector is of a line."""
    machine = machine_of_features("x", features, "x86_64-unknown-linux-gnu", {1: 32 << 10, 2: 1 << 20}, 1, 4000)
    facts = facts_on(poly.parse(GEMM, A=(64, 64), B=(64, 64)), machine)
    choice = rated_ways(facts, 1)
    b = next(k for k, o in enumerate(choice.operands[:-1]) if o.tensor == "B")
    found = {  # by whether B is packed
        b in dict(way.packs): choice._step(way).loads[b][1]  # pyright: ignore[reportPrivateUsage]
        for way in choice.ways()
    }
    assert found == {False: 1 + machine.lanes(4) * 4 / 64, True: 1}


def test_a_copy_from_far_waits_for_memory() -> None:
    core = replace(CORE, caches=(Cache(1 << 15, 32.0), Cache(1 << 19, 4.0)))

    def cycles(rows: int) -> float:
        operand = Operand("B", ({"k": 1},), (rows,), (4,), 4)
        loops = [Loop("k", np.array(float(rows)), np.ones(()))]
        nest = BlockedNest(loops, {0: Copy(0, np.array(4.0))}, 1)
        (copied,) = cycles_of_memory(core, [operand], [nest], {"k": rows})[1]
        return float(copied[0].cycles[0]) / rows

    assert 0.25 < cycles(1 << 10) < 0.33 and cycles(1 << 20) > 1.0


def scheduled(program: Program) -> Schedule:
    """The contraction of a program as the model chooses it for a core of 8 lanes and 16 registers, unchecked."""
    (group,) = groups_of(program)
    facts = facts_of(program, group, AVX2)
    lanes = facts.lanes()
    assert lanes is not None
    plan = contraction_plan(facts, lanes)
    assert plan is not None
    return schedule_contraction(unchecked(Schedule(program)), group, plan, AVX2)


@pytest.mark.parametrize(("rows", "depth", "columns", "asked"), [
    (16384, 128, 32, True), (16384, 128, 512, False), (64, 128, 32, False), (4096, 2050, 32, False),
])  # fmt: skip
def test_rows_from_afar_that_few_tiles_use_are_asked_for(rows: int, depth: int, columns: int, asked: bool) -> None:
    """Not where each of many tiles of lanes would ask again, where they are near, or where a tile's fill the cache."""
    schedule = scheduled(poly.parse(GEMM, A=(rows, depth), B=(depth, columns)))
    updates = [n for n in schedule.nests if (s := schedule.program.statement[n]).combiner and not s.copies]
    loops = [schedule.nests[n].names for n in updates]
    assert any(schedule.marks[n[-1]].ahead for n in loops) == asked
    assert all(schedule.marks[n[-1]].ahead or not asked for n in loops)


@pytest.mark.parametrize(("depth", "columns", "asked"), [(512, 1024, True), (64, 64, False)])
def test_a_constant_from_afar_is_asked_for_on_its_way(depth: int, columns: int, asked: bool) -> None:
    """By steps of the reduction that are so much of a panel as a stream is asked for ahead."""
    program = poly.parse(GEMM, A=(48, depth), B=(depth, columns))
    tensors = [replace(t, role="constant") if t.name == "B" else t for t in program.tensors]
    schedule = scheduled(replace(program, tensors=tuple(tensors)))
    updates = [n for n in schedule.nests if (s := schedule.program.statement[n]).combiner and not s.copies]
    for nest in (schedule.nests[n] for n in updates):
        found = schedule.marks[nest.names[-1]].ahead
        assert (found is not None) == asked
        if found is not None:
            laid = [n for n in nest.names if schedule.kind(n) == "unroll" and nest.loops[n].names == {"k"}]
            assert nest.loops[found[0]].names == {"k"} and found[0] not in laid
            # a panel of one to four vectors, one to eight steps
            assert BYTES_AHEAD / 1024 <= found[1] <= BYTES_AHEAD / 64


def test_rows_that_meet_in_few_sets_are_not_asked_for() -> None:
    """Rows of 128 elements of a matrix in which they are a power of two apart, or not."""
    for between, asked in ((128, False), (125, True)):
        schedule = scheduled(poly.parse("C[i,j] += A[i,0,k] * B[k,j]", A=(512, between, 128), B=(128, 8)))
        updates = [n for n in schedule.nests if (s := schedule.program.statement[n]).combiner and not s.copies]
        assert any(schedule.marks[schedule.nests[n].names[-1]].ahead for n in updates) == asked


def unrolled_steps(schedule: Schedule, iterators: str) -> list[str]:
    """Unrolled loops along iterators of the reduction."""
    nest = schedule.nests["s0" if "s0" in schedule.nests else next(n for n in schedule.nests if "update" in n)]
    return [n for n in nest.names if schedule.kind(n) == "unroll" and nest.loops[n].names & set(iterators)]


def test_steps_over_whole_lines_leave_them_out() -> None:
    """Rows of a dilated window far apart: those between them come into no cache."""
    sizes = {"y": np.array(24.0), "r": np.array(3.0), "c": np.array(128.0)}
    far = Operand("X", ({"r": 2048, "y": 1}, {"c": 1}), (11596, 128), (512, 4), 4)
    assert float(far.elements(sizes)) == 3 * 24 * 128
    near = Operand("X", ({"r": 2, "y": 1}, {"c": 1}), (11596, 128), (512, 4), 4)
    assert float(near.elements(sizes)) == 28 * 128
    inside = Operand("X", ({"y": 2},), (11596,), (4,), 4)
    assert float(inside.elements(sizes)) == 47


def test_steps_over_lines_touch_a_line_each() -> None:
    """Every second row of a map comes into the caches where rows are short; elements far apart cost a line each."""
    sizes = {"y": np.array(28.0), "x": np.array(28.0)}
    map_of = Operand("X", ({"y": 2}, {"x": 2}), (56, 56), (224, 4), 4)
    assert float(map_of.elements(sizes)) == 55 * 55
    column = Operand("X", ({"y": 512},), (1 << 20,), (4,), 4)
    assert float(column.elements(sizes)) == 28
    assert float(column.lines(CORE, sizes).first) == 28 * 64


@pytest.mark.parametrize(
    ("rows", "extent", "steps"),
    [(48, 64, 4), (48, 36, 4), (48, 35, 5), (48, 21, 7), (48, 61, 0), (9000, 64, 8), (9000, 36, 4)],
)
def test_steps_of_a_reduction_share_a_body(rows: int, extent: int, steps: int) -> None:
    """More where an operand comes from beyond a core's own caches."""
    schedule = scheduled(poly.parse(GEMM, A=(rows, extent), B=(extent, 32)))
    assert schedule.lower() is not None
    found = unrolled_steps(schedule, "k")
    assert bool(found) == (steps > 0)
    assert not steps or f"tile(sizes={{'k': {steps}}})" in str(schedule)


@pytest.mark.parametrize(("extent", "steps"), [(60, 4), (58, 0), (64, 4), (61, 0)])
def test_steps_of_blocks_with_a_shorter_last_one_share_a_body(extent: int, steps: int) -> None:
    """As many as divide 16 steps and what is left over; not two, whose loads leave no room for a tile's 4 x 3 sums."""
    program = poly.parse(GEMM, A=(24, extent), B=(extent, 48))
    facts = facts_on(program, AVX2)
    plan = contraction_plan(facts, 1)
    assert plan is not None
    blocks = replace(plan, depth=("k", 16), packs=())
    schedule = settle(schedule_contraction(unchecked(Schedule(program)), facts.group, blocks, AVX2))
    found = unrolled_steps(schedule, "k")
    assert bool(found) == (steps > 0)
    assert not steps or f"tile(sizes={{'{found[0].rsplit('.', 1)[0]}': {steps}}})" in str(schedule), str(schedule)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((24, extent), (extent, 48)))
    np.testing.assert_array_equal(poly.compile(Schedule.parse(str(schedule)))(a, b), a @ b)


@pytest.mark.parametrize(("extent", "bodies"), [(61, 60), (41, 40), (263, 260), (29, 0)])
def test_what_no_steps_divide_has_bodies_and_a_rest(extent: int, bodies: int) -> None:
    """The rest is laid out behind the loop; a short sum keeps its loop."""
    schedule = scheduled(poly.parse(GEMM, A=(48, extent), B=(extent, 32)))
    assert (f"split(loop='k', at={bodies})" in str(schedule)) == (bodies > 0)
    rest = [n for n in schedule.nests if n.endswith("_hi")]
    assert bool(rest) == (bodies > 0)
    for name in rest:
        (loop,) = (n for n in schedule.nests[name].names if schedule.nests[name].loops[n] == Affine.of("k"))
        assert schedule.kind(loop) == "unroll"
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((48, extent), (extent, 32)))
    np.testing.assert_array_equal(poly.compile(Schedule.parse(str(settle(schedule))))(a, b), a @ b)


def test_steps_that_share_elements_stay_in_a_loop() -> None:
    program = poly.parse("Y[o,y,x] += W[o,c,q,r] * X[c,y + q,x + r]", W=(32, 24, 3, 3), X=(24, 20, 20))
    schedule = scheduled(program)
    found = unrolled_steps(schedule, "cqr")
    nest = schedule.nests[next(n for n in schedule.nests if "update" in n)]
    assert found and all("r" not in nest.loops[n].names for n in found)


def test_a_window_that_stays_in_registers_is_read_once() -> None:
    assert window_stays(7, 1, 3, 16) and window_stays(4, 2, 3, 16) and not window_stays(6, 2, 3, 16)
    assert not window_stays(7, 1, 1, 16)
    program = poly.parse("Y[o,y,x] += W[o,c,q,r] * X[c,y + q,x + r]", W=(16, 8, 3, 3), X=(8, 9, 9))
    facts = facts_on(program)
    choice = rated_ways(facts, 0)
    plan = choice.plan(next(w for w in choice.ways() if w.rows == 2), TileSizes(7, 1, 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine)
    assert unrolled_steps(schedule, "r")


def test_only_what_comes_from_afar_is_asked_for() -> None:
    def asked(rows: int, columns: int) -> set[str]:
        text = "T[i,j] += A[i,k]*B[k,j]\nY[i,j] = T[i,j] + R[i,j]"
        schedule = scheduled(poly.parse(text, A=(rows, 64), B=(64, columns), R=(rows, columns)))
        marked = [loop for loop, mark in schedule.marks.items() if mark.ahead is not None]
        return {n.split("_")[0] for loop in marked for n in schedule.under(loop)}

    assert asked(48, 64) == set()
    assert asked(1024, 512) == {"Y"}


@pytest.mark.parametrize(
    ("text", "steps", "number", "asked"),
    [
        ("C[i,j] += A[i,k] * B[k,j]", 700, 8, True),
        ("C[i,j] += A[i,k] * B[k,j]", 700, 0, False),
        ("C[i,j] += A[i,k] * B[k,j]", 200, 8, False),
        ("C[i,j] += A[i,k,0] * B[k,j]", 700, 8, False),
    ],
)
def test_lanes_that_lie_apart_are_asked_for(text: str, steps: int, number: int, asked: bool) -> None:
    """Where a core says so, and the first cache does not hold those of a tile; not with each row of another operand."""
    rows = (40, steps, 100) if "0" in text else (40, steps)
    program = poly.parse(text, A=rows, B=(steps, 90))
    (group,) = groups_of(program)
    machine = replace(AVX2, engines=(replace(AVX2.engines[0], cost={**AVX2.engines[0].cost, "asked": number}),))
    choice = rated_ways(facts_of(program, group, machine), 1)
    way = next(w for w in choice.ways() if not w.packs and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(4, 2, 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), group, plan, machine)
    for nest in (schedule.nests[n] for n in schedule.nests if n.startswith("C_update")):
        found, laid = schedule.marks[nest.names[-1]].ahead, [n for n in nest.names if schedule.kind(n) == "unroll"]
        assert (found is not None) == asked
        if found is not None:
            assert nest.loops[found[0]].names == {"k"} and found[0] not in laid and 1 <= found[1] <= 8
    if asked:
        run(program, plan)


@pytest.mark.parametrize(
    ("rows", "height", "steps", "columns", "asked"),
    [(12, 6, 128, 3000, True), (18, 6, 128, 3000, False), (8, 4, 128, 3000, False), (12, 6, 48, 8000, False),
     (12, 6, 128, 400, False)],
)  # fmt: skip
def test_lanes_of_a_large_operand_are_asked_for_where_few_rows_use_them(
    rows: int, height: int, steps: int, columns: int, asked: bool
) -> None:
    """By two tiles at most, of so many rows and steps, and more than half of a core's own caches of it."""
    program = poly.parse("C[i,j] += A[i,k] * B[k,j]", A=(rows, steps), B=(steps, columns))
    (group,) = groups_of(program)
    machine = replace(AVX2, engines=(replace(AVX2.engines[0], cost={**AVX2.engines[0].cost, "asked": 8}),))
    assert own_capacity(machine) // 2 in range(400 * 128 * 4, 3000 * 128 * 4)
    choice = rated_ways(facts_of(program, group, machine), 1)
    way = next(w for w in choice.ways() if not w.packs and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(height, 2, 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), group, plan, machine)
    marks = [schedule.marks[schedule.nests[n].names[-1]] for n in schedule.nests if n.startswith("C_update")]
    assert marks and all((m.ahead is not None) == asked for m in marks)


@pytest.mark.parametrize(
    ("rows", "steps", "number", "asked"),
    [(600, 700, 8, True), (600, 700, 0, False), (600, 200, 8, False), (40, 700, 8, False)],
)
def test_rows_side_by_side_are_asked_for(rows: int, steps: int, number: int, asked: bool) -> None:
    """Beside packed lanes, where a tile's steps touch more lines than the first cache holds, of a large operand."""
    program = poly.parse("C[i,j] += A[k,i] * B[k,j]", A=(steps, rows), B=(steps, 90))
    (group,) = groups_of(program)
    machine = replace(AVX2, engines=(replace(AVX2.engines[0], cost={**AVX2.engines[0].cost, "asked": number}),))
    choice = rated_ways(facts_of(program, group, machine), 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(4, 2, 1, 0, 0))
    schedule = block_group(unchecked(Schedule(program)), group, plan, machine)
    marks = [schedule.marks[schedule.nests[n].names[-1]] for n in schedule.nests if n.startswith("C_update")]
    assert marks and all((m.ahead is not None) == asked for m in marks)
    if asked:
        assert all(m.ahead is not None and 1 <= m.ahead[1] <= 8 for m in marks)
        run(program, plan)


@pytest.mark.parametrize(("outer", "inner", "deep"), [(100, 140, "i"), (140, 100, "i"), (60, 140, "k"), (3, 140, "k")])
def test_the_loop_that_is_cut_leaves_long_pieces(outer: int, inner: int, deep: str) -> None:
    """The one outside, along which the large operand's steps are whole rows, if it is about as long as the longest."""
    program = poly.parse("C[j,l] += A[i,j,k] * B[i,k,l]", A=(outer, 30, inner), B=(outer, inner, 16))
    assert rated_ways(facts_on(program), 1).deep == deep


@pytest.mark.parametrize(("rows", "columns", "ahead"), [(16, 1536, True), (64, 1536, False), (16, 64, False)])
def test_the_next_block_of_a_large_operand_is_asked_for(rows: int, columns: int, ahead: bool) -> None:
    """Where the nearest cache holds it besides all that is used until then, and where it comes from afar."""
    program = poly.parse(GEMM, A=(rows, 1536), B=(1536, columns))
    (group,) = groups_of(program)
    facts = facts_of(program, group, AVX2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside and not w.lanes_inside)
    plan = choice.plan(way, TileSizes(6, 2, 1, 0, 128))
    assert [p.ahead for p in plan.packs] == [ahead]
    assert not any(p.ahead for p in choice.plan(way, TileSizes(6, 2, 8, 0, 128)).packs)
    schedule = block_group(unchecked(Schedule(program)), group, plan, AVX2)
    marks = {mark.ahead for mark in schedule.marks.values() if mark.ahead is not None}
    assert marks == ({("C_update.j.o", 1)} if ahead else set())  # else the first tile of rows makes the copy
    if ahead:
        run(program, plan)


@pytest.mark.parametrize(
    ("text", "shapes", "inside", "outside", "depth"),
    [
        (GEMM, ((21, 40), (40, 100)), False, False, 0),
        (GEMM, ((21, 40), (40, 100)), True, False, 16),
        (GEMM, ((9, 256), (256, 128)), True, True, 128),
        (TRANSPOSED, ((33, 20), (50, 33)), False, False, 0),  # both are packed
        ("C[n,i,j] += A[n,i,k] * B[n,k,j]", ((3, 9, 17), (3, 17, 70)), True, False, 0),
        ("C[i,j] += A[i,k,l] * B[k,l,j]", ((9, 12, 7), (12, 7, 64)), False, False, 0),
    ],
)
def test_the_first_tile_of_rows_makes_the_copy(
    text: str, shapes: tuple[tuple[int, ...], ...], inside: bool, outside: bool, depth: int
) -> None:
    program = poly.parse(text, A=shapes[0], B=shapes[1])
    facts = facts_on(program)
    lanes = 0 if text == TRANSPOSED else len(shapes[0]) - 1 if "n" in text else 1
    choice = rated_ways(facts, lanes)
    ways = [w for w in choice.ways() if (w.lanes_inside, w.lanes_outside) == (inside, outside)]
    plans = [choice.plan(way, TileSizes(3, 2, 2, 0, depth)) for way in ways]
    plan = next(p for p in plans if any(pack.on_way for pack in p.packs))
    assert all(s.rows[0].high == s.rows[0].low + 3 for s in plan.strips)
    run(program, plan)
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine)
    (pack,) = [p for p in plan.packs if p.on_way]
    copies = [n for n in schedule.nests if n.startswith(f"ld_{pack.tensor}") and n.endswith("_p")]
    steps = [n for nest in schedule.nests.values() for n in nest.names if n in ("k", "l") or n[:2] in ("k.", "l.")]
    assert copies and all(set(schedule.nests[c].names) & {*steps} - {"k.o"} for c in copies)


@pytest.mark.parametrize(
    ("machine", "rows", "columns", "panels", "depth", "on_way", "asked"),
    [
        (AVX512, 128, 3072, 1, 0, True, True),
        (AVX512, 128, 3072, 8, 0, True, True),  # two blocks do not fit the second cache, but smaller ones do
        (AVX512, 36, 3072, 8, 0, True, True),  # few tiles of rows, but from memory
        (AVX512, 36, 1024, 8, 0, True, False),  # few tiles of rows
        (AVX512, 36, 3072, 64, 0, False, False),  # all in one block
        (AVX512, 2048, 3072, 1, 0, False, False),  # hardly any of the time
        (AVX2, 36, 3072, 8, 512, False, True),  # short pieces
        (AVX2, 480, 3072, 8, 512, False, False),  # a small part of the time
        (AVX2, 32, 3072, 1, 0, True, True),
    ],
)
def test_which_copies_the_first_tile_makes(
    machine: Machine, rows: int, columns: int, panels: int, depth: int, on_way: bool, asked: bool
) -> None:
    facts = facts_on(poly.parse(GEMM, A=(rows, 768), B=(768, columns)), machine)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    (pack,) = choice.plan(way, TileSizes(6, 4 if machine is AVX512 else 2, panels, 0, depth)).packs
    assert (pack.on_way, pack.asked) == (on_way, asked)


@pytest.mark.parametrize(("columns", "on_way"), [(512, True), (192, False), (64 * 33, True), (64, False)])
def test_threads_share_blocks_whose_first_tile_makes_the_copy(columns: int, on_way: bool) -> None:
    """Blocks of 64 columns: as many for each of two threads, or so many that one more is little."""
    program = poly.parse(GEMM, A=(64, 64), B=(64, columns))
    (group,) = groups_of(program)
    facts = facts_of(program, group, AVX512, 2)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    plan = choice.plan(way, TileSizes(6, 4, 1, 0, 0))
    assert [p.on_way for p in plan.packs] == [on_way]
    run(program, plan, facts)


def test_short_pieces_of_a_copy_fill_whole_lines() -> None:
    program = poly.parse("C[i,j] += A[k,i] * B[k,j]", A=(16, 24), B=(16, 32))
    facts = facts_on(program)
    choice = rated_ways(facts, 1)
    way = next(w for w in choice.ways() if (0, "rows") in w.packs and len(w.packs) == 1 and not w.lanes_inside)
    plan = choice.plan(way, TileSizes(6, 1, 1, 4, 0))
    run(program, plan)
    schedule = block_group(unchecked(Schedule(program)), facts.group, plan, facts.machine)
    copy = next(n for n in schedule.nests if n.startswith("ld_A"))
    around = [n.removeprefix(copy) for n in schedule.nests[copy].names if n.startswith(copy)]
    assert around == [".0.o", ".1.o", ".0.p", ".1.p"] and schedule.kind(f"{copy}.0.p") == "unroll"
    assert schedule.kind(f"{copy}.1.p") == "vector"


def test_a_single_block_has_no_next_one() -> None:
    program = poly.parse("C[b,i,j] += A[b,i,k] * B[b,k,j]", A=(4096, 8, 8), B=(4096, 8, 8))
    (group,) = groups_of(program)
    choice = rated_ways(facts_of(program, group, AVX2), 2)
    way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
    assert not choice.plan(way, TileSizes(8, 1, 1, 0, 0)).packs[0].ahead
    assert not choice.asks(way, 1, np.ones(1), np.zeros(1)).any()


@pytest.mark.parametrize(("rows", "columns", "few"), [(8, 1024, False), (2, 1024, True), (2, 512, False)])
def test_blocks_of_a_reduction_have_many_steps_but_of_streams(rows: int, columns: int, few: bool) -> None:
    """Of few steps are those of what is used as it lies and takes longer to come than all operations, page by page."""
    choice = rated_ways(facts_on(poly.parse(GEMM, A=(rows, 1024), B=(1024, columns)), AVX512), 1)
    found = {bool(way.packs): choice.depths_of(way) for way in choice.ways()}
    assert found == {True: [128, 512], False: [16, 128, 512] if few else [128, 512]}


def test_blocks_of_a_windows_channels_have_many_steps() -> None:
    window = poly.parse("Y[o,y,x] += W[o,c,q,r] * X[c,y + q,x + r]", W=(32, 64, 3, 3), X=(64, 20, 20))
    choice = rated_ways(facts_on(window), 0)
    assert {tuple(choice.depths_of(way)) for way in choice.ways()} == {(16,)}


@pytest.mark.parametrize("groups", [2, 8])
def test_what_a_group_of_channels_reads_is_padded_there(groups: int) -> None:
    """Its copy is of one group, made inside of the loop over them."""
    every = f"0 <= g < {groups} and 0 <= m < 4 and 0 <= y < 28 and 0 <= z < 28"
    program = parse_program(
        f"program groups\ninput X: f32[{groups}, 4, 28, 28]\nconstant W: f32[{groups}, 4, 4, 3, 3]\n"
        f"output Y: f32[{groups}, 4, 28, 28]\n"
        f"a[g, m, y, z]: Y[g, m, y, z] = 0 where {every}\n"
        "b[g, m, y, z, c, r, s]: Y[g, m, y, z] += "
        "(X[g, c, y + r - 1, z + s - 1] if 0 <= y + r - 1 < 28 and 0 <= z + s - 1 < 28 else 0)*W[g, m, c, r, s] "
        f"where {every} and 0 <= c < 4 and 0 <= r < 3 and 0 <= s < 3\n"
    )
    schedule = schedule_for_cpu(program, AVX2)
    (copied,) = (t for t in schedule.program.tensors if t.origin == "X" and t.space != "reg")
    assert copied.extents({})[0] == 1 and copied.extents({})[2] >= 28
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, shape).astype("f4") for shape in ((groups, 4, 28, 28), (groups, 4, 4, 3, 3)))
    expected = run_program(program, {"X": x, "W": w})["Y"]
    for threads in (1, 2):
        kernel = poly.compile(program, constants={"W": w}, threads=threads)
        np.testing.assert_array_equal(kernel(x), expected)


def test_a_constant_that_was_packed_is_waited_for_where_a_panels_first_tile_meets_all_of_it() -> None:
    core = replace(CORE, overlap=3.0)
    cycles = np.array([100.0])
    evenly, first = (
        overlapped(core, cycles, MemoryCycles((), np.zeros(1), np.zeros(1), [(np.array([50.0]), np.array([share]))]))
        for share in (1.0, 0.1)
    )
    assert cycles < evenly < first < cycles + 50  # a tenth of the time hides a tenth of the operations' worth


def test_tiles_of_each_width_are_rated_on_a_constant_that_was_packed() -> None:
    def widths(role: str) -> set[int]:
        text = f"""program tile
input A: f32[49, 512]
{role} B: f32[512, 512]
output C: f32[49, 512]
init[i, j]: C[i, j] = 0 where 0 <= i <= 48 and 0 <= j <= 511
s[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i <= 48 and 0 <= j <= 511 and 0 <= k <= 511
"""
        choice = rated_ways(facts_on(parse_program(text), AVX512), 1)
        ways = [w for w in choice.ways() if w.packs == ((1, "whole" if role == "constant" else "lanes"),)]
        step = choice._step(ways[0])  # pyright: ignore[reportPrivateUsage]
        return {w for _, w in choice._shapes(step, False, (0,)).best}  # pyright: ignore[reportPrivateUsage]

    assert widths("constant") >= {2, 3, 4} and len(widths("input")) < 3


@pytest.mark.parametrize("spec", [GEMM, "C[i,j] += A[i,k] * B[j,k]"])
def test_a_panel_that_fills_half_of_a_cache_spares_blocks_of_a_reduction(spec: str) -> None:
    """512 KiB of B for a tile of 64 columns: of a cache of 1 MiB that the rows walk through besides."""
    plan = contraction_plan(facts_on(poly.parse(spec, A=(2048, 2048), B=(2048, 2048)), AVX512), 1)
    assert isinstance(plan, BlockPlan) and plan.depth is None


def test_blocks_of_rows_left_over_start_at_their_first() -> None:
    """What whole tiles leave starts inside of a block of tiles: a register tile of two blocks has no constant place."""
    program = poly.parse("T[m,h] += X[h,c] * W[m,c]", X=(232, 5), W=(16, 5))
    choice = rated_ways(facts_on(program), 0)
    way = next(w for w in choice.ways() if w.rows == 1)
    plan = choice.plan(way, TileSizes(9, 1, 1, 4, 0))
    rows = plan.strips[0].rows
    assert plan.row_block == 4 and len(rows) == 2
    assert rows[1].low % rows[1].tile == 0 and rows[1].low // rows[1].tile % 4 == 3
    run(program, plan)


def test_a_panel_stays_in_the_first_cache_beside_rows_that_meet_in_few_sets() -> None:
    """A panel of 64 steps is used by all rows of C, which are 2 KiB apart: tiles go down these."""
    program = poly.parse("C[b,i,j] += A[b,i,k] * B[b,j,k]", A=(12, 512, 64), B=(12, 512, 64))
    plan = contraction_plan(facts_on(program, AVX512), 2)
    assert isinstance(plan, BlockPlan) and not plan.lanes_inside and plan.strips[0].width > 2


def test_tiles_have_more_rows_where_their_operand_is_copied_in_pieces_as_long() -> None:
    """A piece costs the same before its first element: of A[k,i] for 14 rows less than for 6."""
    choice = rated_ways(facts_on(poly.parse("C[i,j] += A[k,i] * B[k,j]", A=(512, 512), B=(512, 512)), MESH), 1)
    heights = {
        bool(packs): {h for h, _ in shapes.best}
        for way, shapes in choice._shaped(choice.ways())  # pyright: ignore[reportPrivateUsage]
        for packs in [[site for _, site in way.packs if site == "rows"]]
    }
    assert min(heights[True]) > 9 > min(heights[False])


def test_rows_of_results_are_waited_for_where_a_cores_own_caches_do_not_hold_them() -> None:
    sizes = np.array([[6, 4, 4, 0, 0], [12, 2, 8, 0, 0], [6, 4, 4, 0, 128]], float)

    def waits(extent: int) -> list[float]:
        square = (extent, extent)
        choice = rated_ways(facts_on(poly.parse(GEMM, A=square, B=square), MESH), 1)
        way = next(w for w in choice.ways() if w.packs == ((1, "lanes"),) and not w.lanes_outside)
        return choice._anew(way, sizes).tolist()  # pyright: ignore[reportPrivateUsage]

    assert waits(256) == [0, 0, 0]
    wide, narrow, partial = waits(1024)
    assert 0 < wide == narrow / 2 < partial


def test_a_tile_more_is_rated_where_a_cores_own_caches_hold_all_operands() -> None:
    """Of 128 cubed the fourth by its operations takes less time than the first three; of larger ones it is too tall."""

    def height(extent: int, machine: Machine) -> int:
        square = (extent, extent)
        plan = contraction_plan(facts_on(poly.parse(GEMM, A=square, B=square), machine), 1)
        assert isinstance(plan, BlockPlan)
        return plan.strips[0].rows[0].tile

    near = replace(MESH, engines=tuple(replace(e, cost={**e.cost, "afar": 0}) for e in MESH.engines))
    assert height(128, MESH) > 9 > max(height(128, near), height(512, MESH))


def test_a_far_cache_hides_less() -> None:
    work, moved, none = np.full(1, 100.0), np.full(1, 80.0), np.zeros(1)
    core = replace(CORE, overlap=4)
    near, behind = (MemoryCycles(levels, none, none) for levels in ((moved, none), (none, moved)))
    assert overlapped(core, work, near) == overlapped(core, work, behind)
    far = replace(core, afar=1)
    assert overlapped(core, work, near) == pytest.approx(overlapped(far, work, near))
    assert overlapped(far, work, near) < overlapped(far, work, behind)


def test_panels_of_a_buffer_are_not_used_one_after_the_other_where_it_is_lost_meanwhile() -> None:
    """With all rows of A between two copies to a panel, its lines come from the last cache to be written."""
    plan = contraction_plan(facts_on(poly.parse(GEMM, A=(1024, 1024), B=(1024, 1024)), MESH), 1)
    assert isinstance(plan, BlockPlan)
    assert plan.row_block or plan.lanes_inside or plan.strips[0].block == 1


def test_panels_that_the_first_cache_keeps_are_packed_one_by_one_or_used_in_turns() -> None:
    """Of two of 16 KB, turned when they are packed, one is lost to the other's rows of A until it is written again."""
    program = poly.parse("C[b,i,j] += A[b,i,k]*B[b,j,k]", A=(12, 128, 64), B=(12, 128, 64))
    plan = contraction_plan(facts_on(program, MESH), 2)
    assert isinstance(plan, BlockPlan)
    assert [p.site for p in plan.packs] == ["lanes"]
    assert plan.lanes_inside or plan.strips[0].block == 1
