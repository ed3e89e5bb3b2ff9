"""Which loops threads share: by what the schedules say, and that results stay the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

import poly
from poly.codegen.host import host_machine
from poly.frontend.einsum import einsum_program
from poly.loops import For
from poly.prepared import prepare
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_loop_facts import Use, bytes_of_uses
from poly.scheduling.cpu_threads import is_short, share, share_outermost
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.machines import AVX512, MESH
from tests.onnx_helpers import node_model

Array = npt.NDArray[np.float32]
CONV = """
program conv()
input x: f32[32, 30, 30]
input w: f32[48, 32, 3, 3]
output y: f32[48, 30, 30]
init[m, h, v]: y[m, h, v] = 0.0 where 0 <= m < 48 and 0 <= h < 30 and 0 <= v < 30
upd[m, h, v, c, r, s]: y[m, h, v] += (x[c, h + r - 1, v + s - 1] if 0 <= h + r - 1 and h + r - 1 < 30 and \
0 <= v + s - 1 and v + s - 1 < 30 else 0.0)*w[m, c, r, s] where 0 <= m < 48 and 0 <= h < 30 and 0 <= v < 30 and \
0 <= c < 32 and 0 <= r < 3 and 0 <= s < 3
"""


def equation(spec: str, *shapes: tuple[int, ...]) -> Program:
    return einsum_program(spec, shapes, ["f32"] * len(shapes))


def shared(schedule: Schedule) -> list[str]:
    """The loops that threads share."""
    return [loop for loop in schedule.loop_statements if schedule.kind(loop) == "parallel"]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "square": ("ik,kj->ij", ((96, 80), (80, 112))),
    "blocks of the reduction": ("ik,kj->ij", ((16, 2048), (2048, 96))),
    "transposed": ("ki,kj->ij", ((130, 70), (130, 90))),
    "batches": ("bij,bjk->bik", ((5, 33, 40), (5, 40, 24))),
    "chain": ("ijk,jl,kl->il", ((24, 20, 32), (20, 16), (32, 16))),
    "two steps": ("bi,oij,bj->bo", ((24, 32), (20, 32, 40), (24, 40))),
    "rows": ("ij->i", ((300, 500),)),
    "columns": ("ij->j", ((300, 500),)),
    "everything": ("ij->", ((300, 500),)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
def test_the_same_from_run_to_run(case: tuple[str, tuple[tuple[int, ...], ...]]) -> None:
    spec, shapes = case
    inputs = [numbers(*s) for s in shapes]
    want = np.einsum(spec, *[a.astype(np.float64) for a in inputs])
    for threads in (1, 2, 3):
        kernel = poly.compile(equation(spec, *shapes), threads=threads)
        first = np.asarray(kernel(*inputs), np.float32)
        np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-3)
        for _ in range(10):
            np.testing.assert_array_equal(kernel(*inputs), first)


def test_a_convolution_is_the_same_from_run_to_run() -> None:
    program, x, w = parse_program(CONV), numbers(32, 30, 30), numbers(48, 32, 3, 3)
    kernels = [poly.compile(program, threads=threads) for threads in (1, 2, 3)]
    results = [[np.asarray(kernel(x, w), np.float32) for _ in range(5)] for kernel in kernels]
    for found in results:
        np.testing.assert_allclose(found[0], results[0][0], rtol=1e-4, atol=1e-3)
        assert all(np.array_equal(found[0], again) for again in found)


def test_every_part_of_a_nest_is_shared() -> None:
    """Where a reduction is in blocks, partial sums go through memory: the loops below are shared in every block. The
    columns are a multiple of every tile's: few that are left over may stay on one thread.
    """
    schedule = schedule_for_cpu(equation("ik,kj->ij", (16, 4096), (4096, 2304)), host_machine(), 2)
    loops = str(schedule.lower())
    for nest in re.split(r"\n(?=for )", loops)[1:]:
        assert "parallel" in nest, nest


def test_copies_are_shared_along_what_uses_them() -> None:
    """A padded copy for all threads: each makes the rows that it reads."""
    schedule = schedule_for_cpu(parse_program(CONV), host_machine(), 2)
    tensors, done = schedule.program.tensor, shared(schedule)
    inputs = {"x", "y"}
    copies = [s for s in schedule.program.statements if s.copies in inputs and not tensors[s.write.tensor].scope]
    for s in copies:
        assert any(loop in done for loop in schedule.nests[s.name].names), str(schedule)


def test_a_piece_of_a_copy_does_not_keep_the_others_on_one_thread() -> None:
    """The edges of a padded copy are too little work, what lies between them in the same loops is not."""
    text = CONV.replace("30", "56").replace("48", "64").replace("32", "64").replace("f64", "f32")
    schedule = schedule_for_cpu(parse_program(text), host_machine(), 2)
    copies = [s for s in schedule.program.statements if s.copies == "x"]
    assert any("lo" in s.name for s in copies), str(schedule)
    for s in copies:
        points = s.domain.count_val().to_python()
        assert points < 1 << 15 or any(loop in shared(schedule) for loop in schedule.nests[s.name].names), s.name


def test_shares_are_even() -> None:
    """Three batches are no work for two threads, their rows are."""
    schedule = schedule_for_cpu(equation("bik,bkj->bij", (3, 240, 64), (3, 64, 64)), host_machine(), 2)
    extents = [int(m) for m in re.findall(r"range\(0, (\d+)\) parallel", str(schedule.lower()))]
    assert extents and all(e % 2 == 0 or e > 20 for e in extents)


def test_small_nests_stay_on_one_thread() -> None:
    assert not shared(schedule_for_cpu(equation("ij->i", (20, 20)), host_machine(), 2))
    assert not shared(schedule_for_cpu(equation("ik,kj->ij", (128, 128), (128, 128)), host_machine(), 1))


@pytest.mark.parametrize(
    ("spec", "shapes", "several"),
    [("ij,j->i", ((100, 100), (100,)), False), ("ij,j->i", ((600, 600), (600,)), True),
     ("ij->ji", ((100, 100),), False), ("ij->ji", ((500, 500),), True),
     ("ik,kj->ij", ((24, 24), (24, 24)), False), ("ik,kj->ij", ((96, 96), (96, 96)), True)],
)  # fmt: skip
def test_others_are_called_for_more_than_a_call(spec: str, shapes: tuple[tuple[int, ...], ...], several: bool) -> None:
    """By cycles with everything in the first cache: instances are vectors' lanes."""
    assert bool(shared(schedule_for_cpu(equation(spec, *shapes), AVX512, 2))) == several


@pytest.mark.parametrize(("extent", "several"), [(100, False), (230, True)])
def test_others_are_called_for_a_whole_program(extent: int, several: bool) -> None:
    """Two groups, each of less than a call: 1250 cycles together, and 6600."""
    program = poly.parse(
        "y[i] += A[i,j] * x[j]; z[i] += B[i,j] * x[j]", A=(extent, extent), B=(extent, extent), x=(extent,)
    )
    assert bool(shared(schedule_for_cpu(program, AVX512, 2))) == several


def test_a_short_program_is_one_by_its_schedule() -> None:
    """A recurrence has no lanes: what would be over soon in lanes is not; of free sizes nothing is known."""
    text = "program p({0})\ninput X: f32[{1}]\noutput Y: f32[{1}]\ns[i]: Y[i] = 2.0*X[i] where 0 <= i < {1}\n"
    start = Schedule(parse_program(text.format("", 10000)))
    assert is_short(start, AVX512, lanes=True) and not is_short(start, AVX512)
    assert not is_short(Schedule(parse_program(text.format("", 50000))), AVX512, lanes=True)
    assert not is_short(Schedule(parse_program(text.format("n", "n"))), AVX512, lanes=True)


@pytest.mark.parametrize(("rows", "several"), [(50, False), (60, True)])
def test_a_loop_is_worth_two_calls_whatever_its_functions_take(rows: int, several: bool) -> None:
    program = poly.parse("Y[i,j] = exp(X[i,j])", X=(rows, 64))
    (name,) = program.statement
    assert bool(shared(share(Schedule(program), {name}, AVX512, 2))) == several


@pytest.mark.parametrize(("rows", "several"), [(120, False), (140, True)])
def test_a_nest_of_no_group_is_worth_more_than_a_call(rows: int, several: bool) -> None:
    """By the instances of a run of its outermost loop, as elements that are moved."""
    program = poly.parse("Y[i,j] = 2.0 * X[i,j]", X=(rows, 128))
    (name,) = program.statement
    assert bool(shared(share_outermost(Schedule(program), {name}, 2))) == several


RECURRENT = """
program recurrent
input w: f32[128, 128]
inout h: f32[41, 128]
for s:
    z[s, j]: h[s + 1, j] = 0.0 where 0 <= s < 40 and 0 <= j < 128
    u[s, j, k]: h[s + 1, j] += h[s, k]*w[k, j] where 0 <= s < 40 and 0 <= j < 128 and 0 <= k < 128
"""


@pytest.mark.parametrize("lanes", [False, True])
def test_products_in_lanes_of_one_step_are_worth_less_than_elements(lanes: bool) -> None:
    """The loop is reached again and again, and its products take less than elements that are moved."""
    schedule = Schedule(parse_program(RECURRENT)).tile({"u.j": 16}).interchange("u.j.p", "k")
    found = share_outermost(schedule.vectorise("u.j.p") if lanes else schedule, {"u"}, 2)
    assert bool(shared(found)) == (not lanes)


def test_what_starts_sums_follows_their_shares() -> None:
    """Too little work to call another thread for, but it would have to fetch what the first one wrote."""
    program = parse_program(
        "program few()\ninput A: f32[16, 4096]\ninput B: f32[4096, 64]\noutput C: f32[16, 64]\n"
        "init[i, j]: C[i, j] = 0.0 where 0 <= i < 16 and 0 <= j < 64\n"
        "upd[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < 16 and 0 <= j < 64 and 0 <= k < 4096\n"
    )
    start = Schedule(program)
    alone = share(start, {"init"}, host_machine(), 2)
    both = share(start, {"init", "upd"}, host_machine(), 2)
    assert not shared(alone)
    (first, second) = (next(n for n in both.nests[s].names if both.kind(n) == "parallel") for s in ("init", "upd"))
    assert both.nests["init"].loops[first] == both.nests["upd"].loops[second]


@pytest.mark.parametrize(
    ("read", "names", "worth"), [("S", {"s"}, False), ("S", {"r", "s"}, False), ("X", {"s"}, True)]
)
def test_what_one_thread_made_has_to_be_worth_fetching(read: str, names: set[str], worth: bool) -> None:
    """A recurrence is one thread's; to double what it gives takes less than half of it takes to another thread."""
    program = parse_program(
        "program doubled()\ninput X: f32[65536]\ntemporary S: f32[65536]\noutput Y: f32[65536]\n"
        "r[i]: S[i] = 0.5*S[i - 1] + X[i] where 1 <= i < 65536\n"
        f"s[i]: Y[i] = 2.0*{read}[i] where 0 <= i < 65536\n"
    )
    start = Schedule(program)
    (loop,) = start.nests["s"].names
    found = share(start.tile({loop: 16}).vectorise(f"{loop}.p"), names, host_machine(), 2)
    assert shared(found) == ([f"{loop}.o"] if worth else [])


def test_what_is_not_shared_is_planned_for_one_thread() -> None:
    for extent in (20, 60, 100):
        program = equation("ik,jk->ij", (extent, extent), (extent, extent))
        one, two = (schedule_for_cpu(program, host_machine(), threads) for threads in (1, 2))
        assert shared(two) or str(two) == str(one)


def test_several_loops_inside_where_they_spare_more_than_the_one_around() -> None:
    """Three batches are uneven; the two nests in each of them have rows."""
    text = (
        "program two()\ninput A: f32[3, 256, 64]\noutput B: f32[3, 256, 64]\noutput C: f32[3, 256, 64]\n"
    )
    first, second = (f"s{t}[b, i, j]: {t}[b, i, j] = exp(A[b, i, j]) where 0 <= b < 3 and 0 <= i < 256 and "
                     "0 <= j < 64\n" for t in "BC")  # fmt: skip
    program = parse_program(text + first + second)
    schedule = Schedule(program)
    schedule = schedule.fuse(schedule.nests["sB"].names[0], schedule.nests["sC"].names[0])
    found = share(schedule, {"sB", "sC"}, host_machine(), 2)
    assert len(shared(found)) == 2 and schedule.nests["sB"].names[0] not in shared(found)


def test_a_copy_counts_as_often_as_it_is_made() -> None:
    program = poly.parse("C[i,j] += A[i,k]*B[k,j]", A=(64, 32), B=(32, 128))
    schedule = Schedule(program).tile({"C_update.j": 32}).reorder("C_update.j.o", "C_update.i", "C_update.j.p", "k")
    schedule = schedule.promote("B", "C_update.j.o", "l2", name="Bp")
    copy = schedule.program.statement["ld_Bp"]
    assert bytes_of_uses(schedule, [Use(copy, copy.write, True)]) == 32 * 128 * 4


@pytest.mark.parametrize(("size", "several"), [(5, False), (24, True)])
def test_what_is_spared_is_worth_a_meeting_behind_each_nest(size: int, several: bool) -> None:
    """A window with its padding is four nests: three pieces of a copy and sums."""
    model, _ = node_model(
        "Conv", [numbers(1, 64, size, size), numbers(16, 64, 3, 3)], constant=(1,), pads=[1, 1, 1, 1], strides=[2, 2]
    )  # fmt: skip
    made = prepare(poly.from_onnx(model).to_program(), replace(MESH, cores=2), 2)
    assert any(isinstance(n, For) and n.kind == "parallel" for n in made.split.after.nodes()) == several


def test_no_loop_is_shared_around_one_that_is() -> None:
    schedule = schedule_for_cpu(equation("ik,kj->ij", (128, 768), (768, 3072)), host_machine(), 2)
    assert shared(schedule)
    for nest in schedule.nests.values():
        assert sum(schedule.kind(loop) == "parallel" for loop in nest.names) <= 1


def test_blocks_that_are_not_alike_are_not_shared_evenly() -> None:
    """192 columns in blocks of 128: the loop of blocks is no work for two threads, the one inside of them is."""
    program = parse_program(
        "program blocks()\ninput A: f32[64, 192]\noutput B: f32[64, 192]\n"
        "s[j, i]: B[i, j] = exp(A[i, j]) where 0 <= i < 64 and 0 <= j < 192\n"
    )
    start = Schedule(program)
    outer, rows = start.nests["s"].names
    blocks = start.tile({outer: 128}).reorder(f"{outer}.o", rows, f"{outer}.p")
    assert shared(share(blocks, {"s"}, host_machine(), 2)) == [rows]
    even = start.tile({outer: 48}).reorder(f"{outer}.o", rows, f"{outer}.p")
    assert shared(share(even, {"s"}, host_machine(), 2)) == [f"{outer}.o"]


@pytest.mark.parametrize(("columns", "blocks"), [(4096, True), (512, False)])
def test_parts_of_a_copy_of_long_rows_are_blocks(columns: int, blocks: bool) -> None:
    """Panels that threads share are copied several at a time where a row of the source is a page or more."""
    program = parse_program(
        f"program panels()\ninput A: f32[64, 256]\ninput B: f32[256, {columns}]\noutput C: f32[64, {columns}]\n"
        f"init[i, j]: C[i, j] = 0.0 where 0 <= i < 64 and 0 <= j < {columns}\n"
        f"s[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < 64 and 0 <= j < {columns} and 0 <= k < 256\n"
    )
    start = Schedule(program)
    rows, lanes, deep = start.nests["s"].names
    tiled = start.tile({lanes: 16}).reorder(f"{lanes}.o", rows, deep, f"{lanes}.p")
    packed = tiled.promote("B", None, host_machine().cache_space(1), name="P", order=(1, 0), block={1: 16})
    panels = packed.tile({"ld_P.1": 16}).reorder("ld_P.0", "ld_P.1.o", "ld_P.1.p")
    found = share(panels, {"s", "ld_P"}, host_machine(), 2)
    names = found.nests["ld_P"].names
    assert found.kind(names[0]) == "parallel" and names[0] == "ld_P.1.o" + ".o" * blocks, names
