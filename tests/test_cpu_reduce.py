"""Reductions that use little twice, on a core: which loops become lanes and rows, and results for types and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine, machine_of_features
from poly.dtypes import numpy_dtype
from poly.frontend.einsum import einsum_program
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_reduce import reduction_of
from poly.scheduling.cpu_reduce_plan import Folded, Spread
from poly.scheduling.groups import groups_of
from poly.scheduling.nowait import without_meetings
from poly.scheduling.schedule import Schedule
from poly.text import parse_program

pytestmark = pytest.mark.usefixtures("own_cache")

CACHES = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}
AVX2 = machine_of_features("x86-64", ("avx", "avx2", "fma", "f16c"), "x86_64-unknown-linux-gnu", CACHES, 2, 3000)
AVX512 = machine_of_features("x86-64-v4", ("avx512f", "avx512vl"), "x86_64-unknown-linux-gnu", CACHES, 2, 3000)
TILES = ("avx512f", "avx512vl", "avx512fp16", "amx-tile")
LARGE = {1: 48 << 10, 2: 2 << 20, 3: 480 << 20}
MESH, PLAIN = (machine_of_features("x", f, "x86_64-unknown-linux-gnu", LARGE, 2, 3000) for f in (TILES, TILES[:2]))


def plan_of(program: Program, threads: int = 1) -> Folded | Spread | None:
    (group,) = groups_of(program)
    return reduction_of(program, group, AVX2, threads)


def einsum(spec: str, *shapes: tuple[int, ...], dtype: str = "f32") -> Program:
    return einsum_program(spec, shapes, [dtype] * len(shapes))


def test_rows_that_share_an_operand_go_side_by_side() -> None:
    found = plan_of(einsum("ij,j->i", (512, 512), (512,)))
    assert isinstance(found, Folded)
    assert (found.rows, found.lanes, found.height, found.width) == ("i", "j", 4, 2)


IN_ORDER = [  # rows, columns, threads: whether rows go one by one, of how many for each copy
    (200, 256, 1, True, 0), (200, 256, 2, True, 25), (400, 300, 2, True, 32), (60, 256, 2, False, 0),
    (30, 256, 1, False, 0), (1000, 128, 1, True, 0), (1000, 127, 1, False, 0),
    (2000, 100, 1, False, 0), (1000, 256, 1, False, 0), (50, 2500, 1, False, 0),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "threads", "ordered", "block"), IN_ORDER)
def test_rows_in_a_cores_own_cache_go_one_by_one(
    rows: int, columns: int, threads: int, ordered: bool, block: int
) -> None:
    """Long ones that the first cache does not hold, not for a few of them; beside a vector that it does."""
    program = einsum("ij,j->i", (rows, columns), (columns,))
    (group,) = groups_of(program)
    found = reduction_of(program, group, AVX512, threads)
    assert isinstance(found, Folded) and (found.rows == "", found.placed_for) == (ordered, block)
    assert found.placed == (("x1",) if ordered else ())


OWN_START = [  # spec, shapes, threads: whether tiles start their own sums
    ("ij,j->i", [(512, 512), (512,)], 2, True), ("bij->bi", [(6, 100, 300)], 3, True), ("ij->i", [(64, 700)], 2, True),
    ("ij,j->i", [(512, 512), (512,)], 1, False),  # nobody waits
    ("ij,j->i", [(514, 512), (512,)], 2, True),  # a rest of the rows
    ("ij,kj->ik", [(4, 300), (301, 300)], 2, True), ("ij,kj->ki", [(5, 300), (401, 300)], 2, True),  # a few vectors
    ("ij->i", [(32, 700)], 2, False),  # a line for each thread
]  # fmt: skip


@pytest.mark.parametrize(("spec", "shapes", "threads", "own"), OWN_START)
def test_tiles_of_threads_start_their_own_sums(
    spec: str, shapes: list[tuple[int, ...]], threads: int, own: bool
) -> None:
    """In one loop with what adds to them, behind which no thread waits for another."""
    program = einsum(spec, *shapes)
    schedule = schedule_for_cpu(program, AVX2, threads)
    added = {nest.names[0] for name, nest in schedule.nests.items() if name.startswith("clear")}
    started = {nest.names[0] for name, nest in schedule.nests.items() if name.startswith("out_init")}
    assert (started == added) == own
    arrays = [np.random.default_rng(5).integers(-3, 4, s).astype(np.float32) for s in shapes]
    result = poly.compile(program, threads=threads)(*arrays)
    np.testing.assert_array_equal(result, np.einsum(spec, *arrays))


STRIPS = [  # spec, shapes, threads, loops that threads share without a meeting
    ("ij,i->j", [(303, 300), (303,)], 2, 2), ("ij->j", [(64, 2000)], 2, 2), ("ij->j", [(200, 512)], 2, 1),
    ("bij,bi->bj", [(5, 30, 600), (5, 30)], 2, 1), ("ij->j", [(50, 1000)], 3, 2),
    ("ij->i", [(601, 300)], 2, 2), ("ij->i", [(600, 300)], 3, 1), ("bij,bj->bi", [(6, 127, 300), (6, 300)], 2, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "threads", "strip"),
    [(300, 2, 144), (300, 4, 80), (2000, 3, 672), (2000, 8, 256), (512, 4, 128), (20000, 2, 3328)],
)
def test_strips_are_even_for_threads(columns: int, threads: int, strip: int) -> None:
    """Whole vectors, of which the last may be fewer, and no more than the first cache keeps about half of."""
    program = einsum("ij->j", (300, columns))
    (group,) = groups_of(program)
    found = reduction_of(program, group, AVX512, threads)
    assert isinstance(found, Spread) and found.start and found.strip == strip


@pytest.mark.parametrize(("spec", "shapes", "threads", "loops"), STRIPS)
def test_strips_and_rows_of_threads_are_done_without_a_meeting(
    spec: str, shapes: list[tuple[int, ...]], threads: int, loops: int
) -> None:
    """With the start of their sums. What is left over, of the rows of a strip, is in its loop, and where threads share
    these, or strips, for one of them, who goes on to it.
    """
    program = einsum(spec, *shapes)
    schedule = without_meetings(schedule_for_cpu(program, AVX512, threads))
    outermost = list(dict.fromkeys(nest.names[0] for nest in schedule.nests.values() if nest.names))
    assert [schedule.kind(loop) for loop in outermost] == ["parallel"] * loops
    assert [bool(schedule.marks[loop].nowait) for loop in outermost] == [True] * (loops - 1) + [False]
    arrays = [np.random.default_rng(5).integers(-3, 4, s).astype(np.float32) for s in shapes]
    result = poly.compile(program, threads=threads)(*arrays)
    np.testing.assert_array_equal(result, np.einsum(spec, *arrays))


def test_a_row_has_half_as_many_sums_as_hide_a_latency() -> None:
    """Two units, of four cycles each: of 8 doubles a vector holds a row has room for more."""
    program = einsum("ij,j->i", (200, 256), (256,), dtype="f64")
    (group,) = groups_of(program)
    found = reduction_of(program, group, AVX512)
    assert found is not None and (found.rows, found.width) == ("", 4)
    (core,) = AVX512.engines
    quick = replace(AVX512, engines=(replace(core, cost={**core.cost, "fma": 1, "latency": 1}),))
    found = reduction_of(program, group, quick)
    assert found is not None and (found.rows, found.width) == ("", 1)


ONE_BY_ONE = [
    ("ij,j->i", (200, 300), (300,)), ("ij,j->i", (131, 517), (517,)), ("ijk,k->i", (70, 3, 160), (160,)),
    ("bij,j->bi", (5, 30, 300), (300,)), ("bij,bj->bi", (5, 30, 300), (5, 300)), ("ij,j,->i", (200, 300), (300,), ()),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "shapes"), [(spec, shapes) for spec, *shapes in ONE_BY_ONE])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_of_rows_one_by_one(spec: str, shapes: list[tuple[int, ...]], threads: int) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, s).astype(np.float32) for s in shapes]
    kernel = poly.compile(einsum(spec, *shapes), threads=threads)
    np.testing.assert_array_equal(kernel(*arrays), np.einsum(spec, *arrays))


@pytest.mark.parametrize(("vectors", "height"), [(2, 4), (4, 3), (6, 2), (7, 0)])
def test_a_few_vectors_use_every_row_in_one_tile(vectors: int, height: int) -> None:
    """What is used again is in registers, beside a sum for each; with too many there is a better way to use it."""
    found = plan_of(einsum("ij,kj->ik", (vectors, 96), (60, 96)))
    assert (found is None) == (height == 0)
    if found is not None:
        assert isinstance(found, Folded)
        assert (found.again, found.rows, found.height, found.width) == ("i", "k", height, 1)


FEW = [  # equation, shapes, whether lanes run along the matrix where the last cache is far
    ("ij,kj->ik", [(800, 128), (10, 128)], False),  # lanes added up for few steps
    ("ij,kj->ki", [(2000, 64), (6, 64)], False),
    ("dcba,bea->cde", [(25, 32, 56, 32), (56, 14, 32)], False),  # the few are more than the first cache
    ("ij,kj->ik", [(800, 1792), (6, 1792)], True),
    ("ij,kj->ik", [(300, 512), (4, 512)], True),
    ("ij,kj->ik", [(5, 1000), (4, 1000)], True),  # too few rows to hide the latency of a multiply-add
    ("aij,akj->ika", [(70, 40, 64), (70, 8, 64)], True),  # a target with neither of them last
]


@pytest.mark.parametrize(("spec", "shapes", "along_rows"), FEW)
def test_a_few_vectors_are_lanes_where_that_is_sooner(
    spec: str, shapes: list[tuple[int, ...]], along_rows: bool
) -> None:
    program = einsum(spec, *shapes)
    (group,) = groups_of(program)
    assert isinstance(reduction_of(program, group, MESH), Folded) == along_rows
    assert isinstance(reduction_of(program, group, AVX512), Folded)


def test_a_constant_is_packed_for_lanes_along_the_target() -> None:
    program = poly.parse("C[i,k] += A[i,j]*W[k,j]", A=(3, 96), W=(60, 96))
    tensors = tuple(replace(t, role="constant") if t.name == "W" else t for t in program.tensors)
    assert plan_of(program) is not None and plan_of(replace(program, tensors=tensors)) is None


@pytest.mark.parametrize(
    ("rows", "steps", "columns", "turned"),
    [(600, 96, 3, True), (600, 96, 6, False), (600, 24, 3, False), (600, 400, 6, True), (2, 96, 3, False)],
)
def test_few_columns_are_turned_where_rows_are_long(rows: int, steps: int, columns: int, turned: bool) -> None:
    """Adding up the lanes of a vector takes 6 operations an element here, a copy all elements of what is copied."""
    found = plan_of(einsum("ij,jk->ik", (rows, steps), (steps, columns)))
    assert (found is not None) == turned
    if found is not None:
        assert isinstance(found, Folded)
        assert (found.turned, found.again, found.lanes) == (("x1",), "k", "j")


def test_long_rows_alone_have_many_accumulators() -> None:
    found = plan_of(einsum("ij->i", (64, 4096)))
    assert found is not None and (found.rows, found.height, found.width) == ("", 1, 8)


@pytest.mark.parametrize(
    ("shape", "ahead"), [((64, 1024), 0), ((2048, 2048), 32), ((2048, 1999), 32), ((4096, 4096), 0)]
)
def test_a_stream_from_the_last_cache_is_asked_for_ahead(shape: tuple[int, int], ahead: int) -> None:
    """Not what is small, and not what comes from memory."""
    found = plan_of(einsum("ij->i", shape))
    assert found is not None and found.ahead == ahead
    schedule = schedule_for_cpu(einsum("ij->i", shape), AVX2)
    assert {mark.ahead[1] for mark in schedule.marks.values() if mark.ahead} == ({ahead} if ahead else set())
    if shape[1] % 2:
        x = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
        np.testing.assert_array_equal(poly.einsum("ij->i", x), x.sum(axis=1))


@pytest.mark.parametrize(
    ("rows", "columns", "ahead"), [(20000, 64, 16), (9000, 200, 6), (9000, 100, 11), (400, 200, 0), (20000, 2000, 4)]
)
def test_a_row_of_a_tile_is_asked_for_a_page_ahead(rows: int, columns: int, ahead: int) -> None:
    """Where one tile of lanes holds a whole row of what comes from afar; else rows are read side by side."""
    schedule = schedule_for_cpu(einsum("i,ij->j", (rows,), (rows, columns)), AVX512)
    assert {mark.ahead[1] for mark in schedule.marks.values() if mark.ahead} == ({ahead} if ahead else set())


def test_a_scalar_beside_a_stream() -> None:
    a = np.random.default_rng(0).integers(-4, 5, (30000, 64)).astype(np.float32)
    kernel = poly.compile(poly.parse("y[j] += c[] * a[i,j]", a=a.shape, c=()))
    np.testing.assert_array_equal(kernel(np.float32(2), a), 2 * a.sum(axis=0))


@pytest.mark.parametrize(("spec", "ahead"), [("ij->i", 16), ("ij,j->i", 8)])
def test_memory_is_asked_ahead_where_vectors_are_lines(spec: str, ahead: int) -> None:
    program = einsum(spec, (4096, 4096), *[(4096,)] * spec.count(","))
    found = [reduction_of(program, g, AVX512) for g in groups_of(program)]
    assert [f.ahead for f in found if f is not None] == [ahead]


@pytest.mark.parametrize(
    ("spec", "size", "threads", "ahead"),
    [("ij->i", 1024, 1, 16), ("ij,j->i", 1024, 1, 4), ("ij,i->j", 1024, 1, 4), ("ij->i", 1024, 2, 16),
     ("ij->i", 256, 1, 0), ("ij->i", 400, 1, 4), ("ij->i", 400, 2, 0)],
)  # fmt: skip
def test_vectors_that_are_lines_ask_for_what_no_cache_of_their_own_holds(
    spec: str, size: int, threads: int, ahead: int
) -> None:
    program = einsum(spec, (size, size), *[(size,)] * spec.count(","))
    found = [reduction_of(program, g, AVX512, threads) for g in groups_of(program)]
    assert [f.ahead for f in found if f is not None] == [ahead]
    found = [reduction_of(program, g, AVX2, threads) for g in groups_of(program)]
    assert [f.ahead for f in found if f is not None] == [0]


@pytest.mark.parametrize(
    ("spec", "shape", "ahead"),
    [("ij,j->i", (2048, 2048), 8), ("ij,j->i", (4096, 4096), 0), ("ij->j", (2048, 2048), 8), ("ij->j", (1024, 1024), 0),
     ("ij,i->j", (4096, 4096), 8), ("ij,i->j", (2050, 1999), 8)],
)  # fmt: skip
def test_rows_side_by_side_are_asked_for_a_little_ahead(spec: str, shape: tuple[int, int], ahead: int) -> None:
    vectors = [(shape["ij".index(term)],) for term in spec.split("->")[0].split(",")[1:]]
    found = plan_of(einsum(spec, shape, *vectors))
    assert found is not None and found.ahead == ahead
    marks = schedule_for_cpu(einsum(spec, shape, *vectors), AVX2).marks.values()
    assert {mark.ahead[1] for mark in marks if mark.ahead} == ({ahead} if ahead else set())
    if shape[1] % 2:
        rng = np.random.default_rng(0)
        arrays = [rng.integers(-4, 5, s).astype(np.float32) for s in (shape, *vectors)]
        np.testing.assert_array_equal(poly.einsum(spec, *arrays), np.einsum(spec, *arrays))


def test_rows_of_the_operand_go_over_a_strip_in_the_first_cache() -> None:
    found = plan_of(einsum("ij,i->j", (4096, 8192), (4096,)))
    assert isinstance(found, Spread)
    assert (found.rows, found.lanes, found.strip, found.kept) == ("i", "j", 4096, ("x1",))
    threads = plan_of(einsum("ij,i->j", (4096, 2048), (4096,)), threads=2)
    assert isinstance(threads, Spread) and threads.strip == 1024


@pytest.mark.parametrize(
    ("spec", "shapes"), [("ij,jk->ik", [(64, 64), (64, 64)]), ("ij->ji", [(64, 64)]), ("ij,kj->ik", [(9, 64), (8, 64)])]
)
def test_what_uses_operands_again_is_left_to_others(spec: str, shapes: list[tuple[int, ...]]) -> None:
    assert plan_of(einsum(spec, *shapes)) is None


def test_windows_and_triangles_are_left_to_others() -> None:
    window = "program p\ninput A: f32[70]\noutput B: f32[64]\nS[i, j]: B[i] += A[i + j] where 0 <= i < 64"
    window += " and 0 <= j < 7"
    triangle = "program p\ninput A: f32[64, 64]\noutput B: f32[64]\nS[i, j]: B[i] += A[i, j] where 0 <= i < 64"
    triangle += " and 0 <= j <= i"
    assert plan_of(parse_program(window)) is None and plan_of(parse_program(triangle)) is None


GUARDED = [  # a sum, the lanes' loop, and whether the lanes are summed
    ("y[i] += (x[i,j-1] if j >= 1 else 2) * x[i,j]", "j", True),
    ("y[i] += (x[i-1,j] if i >= 1 else 2) where 0 <= i < 40", "j", True),
    ("y[i] max= (x[i,j] if j <= i else -9)", "j", True),
    ("y[i] += (x[i,2*j-1] if j >= 1 else 0) + x[i,2*j] where 0 <= j < 50", "j", True),
    ("y[i,k] += x[i,j] * (w[k,j-1] if j >= 1 else 2)", "j", True),
    ("y[] += x[i,j] * (x[i-1,j] if i >= 1 else 2)", "j", True),
]


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize(("text", "lanes", "folded"), GUARDED)
def test_guarded_reads_have_lanes(text: str, lanes: str, folded: bool, dtype: str) -> None:
    """A condition on what is read is a mask of its vectors."""
    shapes = {"x": (40, 101), "w": (3, 101)}
    shapes = {name: shape for name, shape in shapes.items() if f"{name}[" in text}
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    found = plan_of(program)
    assert found is not None and (found.lanes, isinstance(found, Folded)) == (lanes, folded)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-4, 5, shape).astype(numpy_dtype(dtype)) for name, shape in shapes.items()}
    for threads in (1, 2):
        given: Any = poly.compile(program, threads=threads)(**arrays)
        np.testing.assert_array_equal(given, run_program(program, arrays)["y"])


CASES: Sequence[tuple[str, list[tuple[int, ...]]]] = [
    ("ij->i", [(37, 53)]), ("ij->i", [(5, 300)]), ("ij->i", [(33, 9)]), ("ij->j", [(37, 301)]), ("ij->j", [(9, 2000)]),
    ("ij->", [(21, 67)]), ("i,i->", [(333,), (333,)]), ("ij,j->i", [(23, 130), (130,)]),
    ("ij,i->j", [(45, 211), (45,)]), ("ij,jk->ik", [(1, 60), (60, 333)]), ("bij,bj->bi", [(3, 10, 50), (3, 50)]),
    ("ijk->j", [(5, 9, 40)]), ("ijk->ik", [(4, 19, 170)]), ("bij,bi->bj", [(3, 18, 150), (3, 18)]),
    ("ij,kj->ik", [(2, 77), (33, 77)]), ("ij,kj->ki", [(5, 64), (31, 64)]), ("bij,bkj->bik", [(3, 2, 45), (3, 50, 45)]),
    ("ijl,kjl->ik", [(3, 5, 40), (18, 5, 40)]), ("ij,kj->ik", [(6, 9), (300, 9)]),
    ("ij,jk->ik", [(70, 177), (177, 3)]), ("ij,jk->ki", [(70, 160), (160, 4)]),
    ("bij,bjk->bik", [(2, 45, 99), (2, 99, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "shapes"), CASES)
@pytest.mark.parametrize(("dtype", "threads"), [("f32", 1), ("f64", 2)])
def test_results(spec: str, shapes: list[tuple[int, ...]], dtype: str, threads: int) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, s).astype(numpy_dtype(dtype)) for s in shapes]
    program = einsum(spec, *shapes, dtype=dtype)
    expected = np.einsum(spec, *[np.asarray(a, "f8") for a in arrays])
    np.testing.assert_array_equal(poly.compile(program, threads=threads)(*arrays), expected)


@pytest.mark.parametrize(
    ("dtype", "combiner"), [("f16", "+"), ("i8", "+"), ("u8", "max"), ("f32", "max"), ("f64", "min"), ("i64", "*"),
                            ("bool", "or"), ("bool", "and")],
)  # fmt: skip
@pytest.mark.parametrize("target", ["i", "j", ""])
def test_combiners(dtype: str, combiner: str, target: str) -> None:
    extent = {"i": "[11]", "j": "[290]", "": "[]"}[target]
    start = {"+": "0", "*": "1", "max": "0", "min": "9", "or": "False", "and": "True"}[combiner]
    where = {"i": "where 0 <= i < 11", "j": "where 0 <= j < 290", "": ""}[target]
    program = parse_program(
        f"program p\ninput A: {dtype}[11, 290]\noutput B: {dtype}{extent}\n"
        f"I[{target}]: B[{target}] = {start} {where}\n"
        f"S[i, j]: B[{target}] {combiner}= A[i, j] where 0 <= i < 11 and 0 <= j < 290"
    )
    a = np.random.default_rng(4).integers(0, 2, (11, 290)).astype(numpy_dtype(dtype))
    axes = {"i": 1, "j": 0, "": None}[target]
    reduce = {"+": np.sum, "*": np.prod, "max": np.max, "min": np.min, "or": np.any, "and": np.all}[combiner]
    expected = np.asarray(reduce(a.astype(np.float64) if dtype == "f16" else a, axis=axes)).astype(a.dtype)  # type: ignore[call-overload]
    np.testing.assert_array_equal(poly.compile(program)(a), expected)


@pytest.mark.parametrize("combiner", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_nan_comes_through(combiner: str, dtype: str) -> None:
    """From every place of a row, one vector long and longer; in the first row there is none."""
    for n in (16, 100):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(n + 1, n)).astype({"f32": "f4", "f64": "f8", "f16": "f2"}[dtype])
        x[1 + np.arange(n), np.arange(n)] = rng.choice([np.nan, -np.nan], n)
        program = poly.parse(f"B[i] {combiner}= A[i,j]", dtypes={"A": dtype, "B": dtype}, A=x.shape)
        expected = x.max(axis=1) if combiner == "max" else x.min(axis=1)
        np.testing.assert_array_equal(poly.compile(program)(x), expected)


@pytest.mark.parametrize(
    ("spec", "shapes"), [("ij->i", [(64, 512)]), ("ij->j", [(512, 64)]), ("ij,j->i", [(64, 512), (512,)])]
)
def test_partial_results_are_in_registers(spec: str, shapes: list[tuple[int, ...]]) -> None:
    machine = host_machine()
    program = schedule_for_cpu(einsum(spec, *shapes), machine).program
    written = {s.write.tensor for s in program.statements if s.combiner is not None}
    assert machine.register_space in {program.tensor[t].space for t in written}


def test_ordered_sums_keep_their_order() -> None:
    program = parse_program(
        "program p\ninput A: f32[3, 500]\noutput B: f32[3]\nI[i]: B[i] = 0 where 0 <= i < 3\n"
        "S[i, j]: B[i] += A[i, j] where 0 <= i < 3 and 0 <= j < 500 ordered"
    )
    a = np.random.default_rng(5).normal(size=(3, 500)).astype(np.float32)
    expected = np.zeros(3, np.float32)
    for j in range(500):
        expected += a[:, j]
    np.testing.assert_array_equal(poly.compile(program)(a), expected)


@pytest.mark.parametrize(("spec", "other"), [("ij,j->i", (300,)), ("ij,i->j", (100,)), ("ij,jk->ik", (300, 3))])
def test_its_schedule_is_a_checked_script(spec: str, other: tuple[int, ...]) -> None:
    shapes = [(100, 300), other]
    schedule = schedule_for_cpu(einsum(spec, *shapes), host_machine(), threads=2)
    schedule.check()
    assert str(Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize("text", ["s[] += A[i,2*j] where 0 <= j < 250", "r[i] += A[i,2*j] where 0 <= j < 250"])
def test_sums_of_every_second_element_have_lanes(text: str) -> None:
    kernel: Any = poly.compile(poly.parse(text, A=(40, 500)))
    lines = str(kernel.loops).splitlines()
    assert any("+= A[" in line and " vector" in before for before, line in zip(lines, lines[1:], strict=False))
    a = np.random.default_rng(5).normal(size=(40, 500)).astype("f4")
    wanted = a[:, ::2].sum(axis=1 if text[0] == "r" else None)
    np.testing.assert_allclose(kernel(a), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        ("ab,ba->", [(70, 51), (51, 70)]),
        ("aab,ba->", [(41, 41, 30), (30, 41)]),
        ("abc,cba->", [(9, 10, 21), (21, 10, 9)]),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_everything_have_lanes_where_memory_lies_apart(
    spec: str, shapes: list[tuple[int, ...]], threads: int
) -> None:
    kernel = poly.compile(einsum(spec, *shapes), threads=threads)
    arrays = [np.random.default_rng(5).integers(-3, 4, s).astype("f4") for s in shapes]
    np.testing.assert_array_equal(kernel(*arrays), np.einsum(spec, *arrays))
    lines = str(kernel.loops).splitlines()
    assert any("*" in line and " vector" in before for before, line in zip(lines, lines[1:], strict=False))


LONG_ROWS = [
    ("i->", (300_007,)), ("ij->i", (5, 300_007)), ("ij,j->i", (5, 70_001), (70_001,)),
    ("ij,kj->ik", (9, 70_001), (3, 70_001)), ("kil->i", (1500, 5, 307)), ("kijl->ij", (101, 3, 7, 999)),
    ("kiml,kml->i", (50, 5, 33, 70), (50, 33, 70)),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "shapes"), [(spec, shapes) for spec, *shapes in LONG_ROWS])
def test_long_rows_are_summed_in_blocks(spec: str, shapes: list[tuple[int, ...]]) -> None:
    """Sums of integers up to 2^24 are exact in any order; of equal fractions each addition may err the same way: in one
    block 2e-5 to 6e-5.
    """
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-3, 4, s).astype(np.float32) for s in shapes]
    kernel = poly.compile(einsum(spec, *shapes))
    np.testing.assert_array_equal(kernel(*arrays), np.einsum(spec, *arrays, dtype=np.float64))
    equal = [np.full(s, 0.1, np.float32) for s in shapes]
    np.testing.assert_allclose(np.asarray(kernel(*equal), "f4"), np.einsum(spec, *equal, dtype=np.float64), rtol=1e-5)


def test_errors_of_a_long_sum_grow_with_its_blocks() -> None:
    """In one block they are 1e-4: 2^15 additions to each partial sum."""
    x = np.full(1 << 22, 0.1, np.float32)
    found = poly.compile(einsum("i->", x.shape))(x)
    assert abs(found / x.sum(dtype=np.float64) - 1) < 2e-5


@pytest.mark.parametrize(("text", "strip"), [("S[j] += X[i, j]", 2048), ("S[p, j] += X[p, i, j]", 4096)])
def test_a_strip_is_a_whole_row_where_threads_share_another_loop(text: str, strip: int) -> None:
    program = poly.parse(text, X=(2, 1024, 4096) if "p" in text else (1024, 4096))
    plan = reduction_of(program, groups_of(program)[0], AVX512, 2)
    assert isinstance(plan, Spread) and min(plan.strip, 4096) == strip


@pytest.mark.parametrize(
    ("columns", "along", "ahead"), [(512, "out_update.i.o", 1), (150, "out_update.i.o", 3), (1600, "j.o", 4)]
)
def test_the_next_rows_of_a_cores_own_cache_are_asked_for_where_the_first_one_has_room(
    columns: int, along: str, ahead: int
) -> None:
    schedule = schedule_for_cpu(einsum("ij,j->i", (300, columns), (columns,)), MESH)
    assert {m.ahead for m in schedule.marks.values() if m.ahead} == {(along, ahead)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("spec", "shapes", "asked"),
    [
        ("ij,j->i", ((512, 512), (512,)), True),
        ("ij->i", ((512, 512),), True),
        ("ij,ij->i", ((300, 500), (300, 500)), False),  # two streams
        ("ij->i", ((16, 512),), False),  # in the first cache
    ],
)
def test_rows_from_a_cores_own_cache_are_asked_for_where_vectors_in_two_lines_come_slowly(
    spec: str, shapes: tuple[tuple[int, ...], ...], asked: bool, threads: int
) -> None:
    program = einsum_program(spec, shapes, ["f32"] * len(shapes))
    mesh, other = (reduction_of(program, groups_of(program)[0], m, threads) for m in (MESH, PLAIN))
    assert isinstance(mesh, Folded) and (mesh.ahead > 0) == asked and not mesh.placed
    assert isinstance(other, Folded) and bool(other.placed) == (spec == "ij,j->i")
    assert asked or mesh == other
