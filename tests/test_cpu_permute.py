"""Permutations on a core: which groups are one, what the blocks are, results for every type and ragged size."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.host import machine_of_features
from poly.codegen.kernel import Kernel
from poly.dtypes import numpy_dtype
from poly.frontend.einsum import einsum_program
from poly.loops import For, walk
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_permute import Buffered, Permutation, Tiles, permutation_of
from poly.scheduling.cpu_runs import runs_of
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_program

pytestmark = pytest.mark.usefixtures("own_cache")


AVX2 = ("avx", "avx2", "fma", "f16c")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")


def machine(features: tuple[str, ...]) -> Machine:
    caches = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}
    return machine_of_features("x86-64", features, "x86_64-unknown-linux-gnu", caches, 2, 3000)


def plan_of(program: Program, on: Machine) -> Permutation | None:
    (group,) = groups_of(program)
    return permutation_of(program, group, on)


def permuted(spec: str, *shape: int, dtype: str = "f32") -> Program:
    return einsum_program(spec, [shape], [dtype])


@pytest.mark.parametrize(
    ("dtype", "features", "rows", "columns"),
    [
        ("f32", AVX2, 8, 16),
        ("f64", AVX2, 8, 8),
        ("i16", AVX2, 16, 16),
        ("f32", AVX512, 16, 16),
        ("i16", AVX512, 32, 16),  # half of the registers, and vectors that are lines
        ("i8", AVX512, 64, 16),
    ],
)
def test_blocks_fill_registers_and_lines(dtype: str, features: tuple[str, ...], rows: int, columns: int) -> None:
    found = plan_of(permuted("ij->ji", 512, 512, dtype=dtype), machine(features))
    assert found is not None and (found.blocks.rows, found.blocks.columns) == (rows, columns)


def test_short_rows_of_the_target_are_written_one_after_the_other() -> None:
    avx2 = machine(AVX2)
    long, short = plan_of(permuted("ij->ji", 2048, 2048), avx2), plan_of(permuted("ij->ji", 128, 3136), avx2)
    assert long is not None and isinstance(long.blocks, Tiles)
    assert short is not None and not isinstance(short.blocks, Tiles)


@pytest.mark.parametrize(
    ("rows", "columns", "strip"),
    [(256, 3136, 64), (200, 1024, 6), (256, 1024, 32), (150, 1037, 0), (200, 7800, 64), (200, 8000, 0), (200, 8192, 6)],
)
def test_strips_of_rows_stay_near(rows: int, columns: int, strip: int) -> None:
    """Those that have a page each, of what the last cache keeps; or whose lines meet in few sets."""
    avx512 = machine(AVX512)
    program = poly.parse("Y[j, i] = X[i, j]", X=(rows, columns))
    plan = plan_of(program, avx512)
    assert plan is not None and not isinstance(plan.blocks, Buffered)
    inside = isinstance(plan.blocks, Tiles) and plan.blocks.lanes_inside
    assert inside == bool(strip)
    if strip:
        assert isinstance(plan.blocks, Tiles) and plan.blocks.tile == (strip, 256)
    for threads in (1, 2):
        assert_transposes(schedule_for_cpu(program, avx512, threads), (rows, columns))


@pytest.mark.parametrize(("columns", "width"), [(100, 48), (128, 64), (150, 48), (200, 64)])
def test_tiles_are_even(columns: int, width: int) -> None:
    """Of 64 iterations at most, what fills no block left out."""
    shape = (2000, columns)
    schedule = schedule_for_cpu(poly.parse("Y[j, i] = X[i, j]", X=shape), machine(AVX512))
    assert re.search(rf"tile\(sizes={{'i\S*': 64, 'j\S*': {width}}}", str(schedule))
    assert_transposes(schedule, shape)


@pytest.mark.parametrize("spec", ["abc->bac", "ab->ab", "ab->a"])
def test_what_keeps_its_fast_axis_is_no_permutation(spec: str) -> None:
    program = permuted(spec, *([12] * (spec.index("-"))))
    assert all(permutation_of(program, g, machine(AVX2)) is None for g in groups_of(program))


def test_guarded_and_diagonal_reads_are_left_to_others() -> None:
    diagonal = parse_program(
        "program p\ninput A: f32[40, 40]\noutput B: f32[30, 8]\n"
        "S[i, j]: B[i, j] = A[i + j, i] where 0 <= i < 30 and 0 <= j < 8"
    )
    assert plan_of(diagonal, machine(AVX2)) is None


@pytest.mark.parametrize(
    ("dtype", "shape", "turned"),
    [
        ("f32", (2, 40), True), ("f32", (40, 2), True), ("f64", (40, 2), True), ("f16", (40, 4), True),
        ("f16", (3, 40), True), ("u8", (2, 40), True), ("u8", (40, 5), True),
        ("u8", (40, 4), False), ("f16", (40, 3), False), ("f32", (1, 40), False),
    ],
)  # fmt: skip
def test_few_planes_are_interleaved(dtype: str, shape: tuple[int, ...], turned: bool) -> None:
    """From two elements on; a row read has some bytes or elements, else vectors are picked from."""
    assert (plan_of(permuted("ij->ji", *shape, dtype=dtype), machine(AVX2)) is not None) == turned


FLAT = [("ij->ji", s) for s in ((64, 64), (3, 70), (70, 3), (2, 33), (33, 4), (37, 53), (5, 200), (130, 7), (1100, 40))]
DEEP = [("abcd->dcba", (6, 5, 9, 18)), ("nchw->nhwc", (2, 19, 5, 8)), ("abc->cab", (3, 21, 34))]
TYPES = ("f32", "f64", "i8", "u16", "f16", "i64", "bool")


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [(*case, dtype) for dtype in TYPES for case in (*FLAT, *(DEEP if dtype in ("f32", "i8") else ()))],
)
def test_results(spec: str, shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 100, shape).astype(numpy_dtype(dtype))
    source, target = spec.split("->")
    expected = x.transpose([source.index(c) for c in target])
    np.testing.assert_array_equal(poly.einsum(spec, x), expected)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [("abcd->acbd", (3, 10, 4, 64)), ("abc->bac", (5, 7, 13)), ("abc->bac", (6, 9, 100)), ("abcd->cabd", (2, 3, 5, 8))],
)  # fmt: skip
def test_other_orders_of_rows(spec: str, shape: tuple[int, ...]) -> None:
    program = permuted(spec, *shape)
    (group,) = groups_of(program)
    assert runs_of(program, group, machine(AVX2)) is not None
    x = np.random.default_rng(3).integers(0, 100, shape).astype(np.float32)
    source, target = spec.split("->")
    np.testing.assert_array_equal(poly.einsum(spec, x), x.transpose([source.index(c) for c in target]))
    schedule = schedule_for_cpu(program, machine(AVX2), threads=2)
    schedule.check()
    np.testing.assert_array_equal(poly.einsum(spec, x, threads=2), x.transpose([source.index(c) for c in target]))


def test_with_other_operands() -> None:
    program = parse_program(
        "program p\ninput A: f32[45, 70]\ninput C: f32[70]\ninput D: f32[45, 70]\noutput B: f32[70, 45]\n"
        "S[i, j]: B[i, j] = max(A[j, i] + C[i], D[j, i]) where 0 <= i < 70 and 0 <= j < 45"
    )
    found = plan_of(program, machine(AVX2))
    assert found is not None and found.turned == (0, 2)
    rng = np.random.default_rng(2)
    a, c, d = (rng.integers(-9, 9, s).astype(np.float32) for s in ((45, 70), (70,), (45, 70)))
    np.testing.assert_array_equal(poly.compile(program)(a, c, d), np.maximum(a.T + c[:, None], d.T))


def test_more_turned_reads_than_registers_are_left_to_others() -> None:
    names = [f"A{k}" for k in range(17)]
    inputs = "".join(f"input {n}: f32[16, 20]\n" for n in names)
    total = " + ".join(f"{n}[j, i]" for n in names)
    program = parse_program(
        f"program p\n{inputs}output B: f32[20, 16]\nS[i, j]: B[i, j] = {total} where 0 <= i < 20 and 0 <= j < 16"
    )
    assert plan_of(program, machine(AVX2)) is None
    rng = np.random.default_rng(3)
    values = [rng.integers(-9, 9, (16, 20)).astype(np.float32) for _ in names]
    np.testing.assert_array_equal(poly.compile(program)(*values), np.sum(values, axis=0).T)


def test_its_schedule_is_a_checked_script() -> None:
    schedule = schedule_for_cpu(permuted("ij->ji", 100, 150), machine(AVX2), threads=2)
    assert any(t.space == "reg" for t in schedule.program.tensors)
    schedule.check()
    assert str(Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize(
    ("text", "shape", "along"),
    [
        ("Y[j, i] = X[i, j]", (160, 208), "j"),
        ("Y[j, i] = X[i, j]", (176, 83), "j"),
        ("Y[c, b, a] = X[a, b, c]", (64, 5, 48), "c"),
        ("Y[b, j, i] = X[b, i, j]", (3, 240, 80), "j"),
        ("Y[j, i] = max(X[i, j] + Z[i, j], 0)", (160, 208), "j"),
    ],
)
def test_beyond_the_caches_tiles_leave_from_a_buffer(text: str, shape: tuple[int, ...], along: str) -> None:
    """The next tile's lines are asked for along the loop that goes there."""
    small = machine_of_features("x86-64", AVX2, "x86_64-unknown-linux-gnu", dict.fromkeys((1, 2, 3), 32 << 10), 2, 3000)
    program = poly.parse(text, X=shape, Z=shape) if "Z" in text else poly.parse(text, X=shape)
    schedule = schedule_for_cpu(program, small)
    asked = {n.ahead[0].split(".")[0] for n in walk(schedule.lower().body) if isinstance(n, For) and n.ahead}
    assert asked == {along}
    assert any(t.space == small.cache_space(0) and t.origin == "Y" for t in schedule.program.tensors)
    kernel = poly.compile(schedule, threads=1)
    assert isinstance(kernel, Kernel)
    arrays = [np.random.default_rng(k).random(shape, np.float32) for k in range(len(program.inputs))]
    order = text[2 : text.index("]")].replace(", ", "")
    names = text[text.index("X[") + 2 : text.index("]", text.index("X["))].replace(", ", "")
    want = np.einsum(f"{names}->{order}", np.sum(arrays, axis=0))
    np.testing.assert_allclose(np.asarray(kernel(*arrays), np.float32), want)


@pytest.mark.parametrize("features", [AVX2, AVX512])
@pytest.mark.parametrize("shape", [(1024, 96), (1024, 333), (2048, 40), (1024, 7)])
def test_lines_that_meet_in_few_sets_leave_from_a_buffer(shape: tuple[int, int], features: tuple[str, ...]) -> None:
    """The target's rows are a multiple of 4 KiB apart; what the last cache holds is stored as usual. A buffer takes two
    thirds of the nearest cache at most.
    """
    on = machine(features)
    schedule = schedule_for_cpu(poly.parse("Y[j, i] = X[i, j]", X=shape), on)
    buffered = [t for t in schedule.program.tensors if t.space == on.cache_space(0) and t.origin == "Y"]
    assert bool(buffered) == (shape[1] >= 16)
    sizes = [t.nbytes(schedule.program.binding) for t in buffered]
    assert all(on.nearest_cache / 4 < size <= on.nearest_cache * 2 / 3 for size in sizes)
    assert not any(n.nontemporal for n in walk(schedule.lower().body) if isinstance(n, For))
    assert_transposes(schedule, shape)


@pytest.mark.parametrize("features", [AVX2, AVX512])
@pytest.mark.parametrize(
    ("text", "shape", "tile", "beside"),
    [
        ("Y[e, c, a, d, b] = X[a, b, c, d, e]", (16, 24, 8, 20, 16), 24, (5,)),  # of 20: even parts of 160 elements
        ("Y[d, b, c, a] = X[a, b, c, d]", (20, 64, 4, 32), 20, (2, 4)),
        ("Y[d, a, c, b] = X[a, b, c, d]", (16, 160, 4, 32), 160, ()),
        ("Y[c, a, b] = X[a, b, c]", (64, 32, 77), 32, (5,)),  # columns left over have loops of their own around them
    ],
)
def test_short_rows_that_follow_one_another_leave_together(
    text: str, shape: tuple[int, ...], tile: int, beside: tuple[int, ...], features: tuple[str, ...]
) -> None:
    """Where the lines of a square of the target meet: whole rows, what is no whole vector of them as well."""
    on = machine(features)
    program = poly.parse(text, X=shape)
    plan, schedule = plan_of(program, on), schedule_for_cpu(program, on)
    assert plan is not None and isinstance(plan.blocks, Buffered)
    assert plan.blocks.tile[0] == tile and plan.blocks.beside == beside
    assert any(t.space == on.cache_space(0) and t.origin == "Y" for t in schedule.program.tensors)
    kernel = poly.compile(schedule, threads=1)
    assert isinstance(kernel, Kernel)
    x = np.random.default_rng(4).random(shape, np.float32)
    target, source = (part[2 : part.index("]")].replace(", ", "") for part in text.split(" = "))
    np.testing.assert_array_equal(kernel(x), np.einsum(f"{source}->{target}", x))


@pytest.mark.parametrize(
    ("shape", "along"), [((160, 208), "j"), ((304, 999), "j"), ((1040, 30), "i"), ((1040, 3), "i")]
)
def test_vectors_that_are_lines_leave_straight(shape: tuple[int, int], along: str) -> None:
    """In tiles of two lines of what is read; what comes two tiles later along its rows is asked for, or after short
    rows.
    """
    caches: dict[int, int] = dict.fromkeys((1, 2, 3), 32 << 10)
    small = machine_of_features("x86-64", AVX512, "x86_64-unknown-linux-gnu", caches, 2, 3000)
    program = poly.parse("Y[j, i] = X[i, j]", X=shape)
    plan, schedule = plan_of(program, small), schedule_for_cpu(program, small)
    assert plan is not None and isinstance(plan.blocks, Tiles) and plan.blocks.tile == (64, 32)
    loops = [n for n in walk(schedule.lower().body) if isinstance(n, For)]
    assert any(n.nontemporal for n in loops)
    assert not any(t.space == small.cache_space(0) for t in schedule.program.tensors)
    assert {(n.ahead[0].split(".")[0], n.ahead[1]) for n in loops if n.ahead} == {(along, 2)}
    assert_transposes(schedule, shape)


def assert_transposes(schedule: Schedule, shape: tuple[int, int], dtype: str = "f32") -> None:
    kernel = poly.compile(schedule, threads=1)
    assert isinstance(kernel, Kernel)
    x = (100 * np.random.default_rng(6).random(shape, np.float32)).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(kernel(x), x.T)


@pytest.mark.parametrize("dtype", ["i8", "f16", "bool"])
@pytest.mark.parametrize("shape", [(100, 77), (64, 16), (65, 17), (3, 130), (700, 300)])
def test_short_elements_in_pieces_of_rows(dtype: str, shape: tuple[int, int]) -> None:
    schedule = schedule_for_cpu(permuted("ij->ji", *shape, dtype=dtype), with_slow_last_cache(machine(AVX512)))
    assert_transposes(schedule, shape, dtype)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("Y[d, c, b, a] = X[a, b, c, d]", (48, 9, 7, 18)), ("Y[c, b, a] = X[a, b, c]", (32, 24, 45)),
     ("Y[a, c, b, d] = X[a, b, c, d]", (3, 21, 5, 64)), ("Y[b, a, c] = X[a, b, c]", (37, 21, 80))],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
def test_short_rows_beyond_the_caches_leave_straight(text: str, shape: tuple[int, ...], threads: int) -> None:
    """Whole lines from registers, the loops around in the order of what is read; what is turned is asked for."""
    small = machine_of_features("x86-64", AVX2, "x86_64-unknown-linux-gnu", dict.fromkeys((1, 2, 3), 32 << 10), 2, 3000)
    schedule = schedule_for_cpu(poly.parse(text, X=shape), small, threads)
    loops = [n for n in walk(schedule.lower().body) if isinstance(n, For)]
    assert any(n.nontemporal for n in loops)
    assert not any(t.space == small.cache_space(0) for t in schedule.program.tensors)
    kernel = poly.compile(schedule, threads=threads)
    assert isinstance(kernel, Kernel)
    x = np.random.default_rng(5).random(shape, np.float32)
    target, source = (part[2 : part.index("]")].replace(", ", "") for part in text.split(" = "))
    assert any(n.ahead for n in loops) == (source[-1] != target[-1])
    np.testing.assert_array_equal(kernel(x), np.einsum(f"{source}->{target}", x))


@pytest.mark.parametrize(
    ("shape", "dtype", "threads", "tile", "ahead"),
    [
        ((200, 200), "f32", 1, None, 1),  # in the core's own caches: a row of blocks at a time
        ((208, 200), "f32", 1, None, 2),  # rows of the target are whole lines
        ((1001, 777), "f32", 1, (1001, 64), 1),  # else some lines of each row read
        ((1000, 50), "f32", 2, (500, 50), 1),  # three blocks are uneven shares of two threads
        ((1000, 66), "f32", 2, None, 1),
        ((300, 300), "i8", 1, (300, 64), 1),  # all blocks of a line read
        ((2000, 192), "i8", 2, (1000, 64), 1),
    ],
)
def test_lines_to_write_are_asked_for_where_they_come_slowly(
    shape: tuple[int, int], dtype: str, threads: int, tile: tuple[int, int] | None, ahead: int
) -> None:
    """By whole blocks along the target's rows; what is left over of these is written in the same loop."""
    program, mesh = permuted("ij->ji", *shape, dtype=dtype), with_slow_last_cache(machine(AVX512))
    (group,) = groups_of(program)
    plan = permutation_of(program, group, mesh, threads)
    assert plan is not None and plan.blocks.asks == ahead
    assert (plan.blocks.tile if isinstance(plan.blocks, Tiles) else None) == tile
    schedule = schedule_for_cpu(program, mesh, threads)
    nests = {n.name: schedule.nests[n.name] for n in schedule.program.statements if n.source_name == "out_set"}
    asked = {name: schedule.marks[nest.names[-1]].ahead for name, nest in nests.items()}
    asking = [name for name, mark in asked.items() if mark is not None and mark[1] == ahead]
    assert asking
    assert {nests[name].names[0] for name in nests if name not in asking} <= {nests[n].names[0] for n in asking}
    assert_transposes(schedule, shape, dtype)


def with_slow_last_cache(near: Machine) -> Machine:
    (core, *others) = near.engines
    return replace(near, engines=(replace(core, cost={**core.cost, "afar": 1}), *others))


def test_lines_that_are_near_are_not_asked_for() -> None:
    near, mesh = machine(AVX512), with_slow_last_cache(machine(AVX512))
    small = plan_of(permuted("ij->ji", 90, 40), mesh)
    assert small == plan_of(permuted("ij->ji", 90, 40), near) and small is not None and not small.blocks.asks
    large = plan_of(permuted("ij->ji", 300, 300), near)
    assert large is not None and not large.blocks.asks
