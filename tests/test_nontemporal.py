"""Stores past the caches: what the mark means, where it is refused, and that results do not depend on alignment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.function import lower
from poly.codegen.host import host_machine, machine_of_features
from poly.codegen.jit import assembly
from poly.codegen.kernel import Kernel
from poly.errors import ScheduleError
from poly.loops import Compute, For, walk
from poly.machine import Machine
from poly.pointers import address
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_contract import contraction_plan, results_past_tiles
from poly.scheduling.cpu_core import last_capacity
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.cpu_plan import Strip
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops, print_loops

HOST = host_machine()
LANES = HOST.lanes(4)
CACHES = {1: 1 << 15, 2: 1 << 19, 3: 1 << 25}
WIDE = ("avx512f", "avx512vl", "avx512bw", "avx512dq", "fma")
SKYLAKE = machine_of_features("skylake-avx512", WIDE, "x86_64-unknown-linux-gnu", CACHES, 2, 3000)
ARM = machine_of_features("generic", ("neon",), "aarch64-unknown-linux-gnu", CACHES, 2, 3000)


def sums(rows: int, columns: int, lanes: int = LANES, threads: int = 1) -> Schedule:
    """C = A + B in whole vectors, an edge and a nontemporal mark on the vectors."""
    s = Schedule(poly.parse("C[i, j] = A[i, j] + B[i, j]", A=(rows, columns), B=(rows, columns)))
    s = s.parallelise("i") if threads > 1 else s
    whole, name = columns // lanes * lanes, "j"
    if whole < columns:
        s, name = s.split("j", whole), "j.lo"
    s = s.tile({name: lanes}).vectorise(f"{name}.p")
    return s.nontemporal(f"{name}.p")


def at_offset(shape: tuple[int, ...], offset: int) -> np.ndarray:
    """Memory that starts `offset` bytes after a multiple of 64."""
    size = 4 * int(np.prod(shape))
    raw = np.full(size + 128, 255, np.uint8)
    start = -address(raw) % 64 + offset
    return raw[start : start + size].view(np.float32).reshape(shape)


def ir_of(schedule: Schedule, machine: Machine = HOST) -> str:
    return lower(schedule.lower(), machine, "entry").ir


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [64, 67])
@pytest.mark.parametrize("offset", [0, 4, 16, 32])
def test_results_at_any_alignment(offset: int, columns: int, threads: int) -> None:
    shape = (37, columns)
    kernel = poly.compile(sums(*shape, threads=threads), threads=threads)
    assert isinstance(kernel, Kernel)
    a, b = (np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k in range(2))
    out = at_offset(shape, offset)
    kernel(a, b, out=out)
    np.testing.assert_array_equal(out, a + b)
    np.testing.assert_array_equal(kernel(a, b), a + b)


def test_only_vectors_known_to_be_aligned_go_past_the_caches() -> None:
    assert "!nontemporal" in ir_of(sums(8, 4 * LANES))
    assert "!nontemporal" not in ir_of(sums(8, 4 * LANES + 1))  # the second row is not aligned
    assert "!nontemporal" in ir_of(sums(1, 4 * LANES + 1))
    plain = Schedule(poly.parse("C[i, j] = A[i, j]", A=(8, 64))).tile({"j": LANES}).vectorise("j.p")
    assert "!nontemporal" not in ir_of(plain)


@pytest.mark.skipif(not HOST.triple.startswith("x86"), reason="instructions of x86")
def test_a_fence_ends_what_keeps_no_order() -> None:
    text = assembly(ir_of(sums(8, 64)), HOST)
    assert text.count("vmovntps") == text.count("sfence") == 1
    assert "sfence" in ir_of(sums(8, 64), replace(HOST, triple=""))  # no triple is this process's


def test_other_machines() -> None:
    wide = assembly(ir_of(sums(8, 64, 16), SKYLAKE), SKYLAKE)
    assert any("vmovntps" in line and "zmm" in line for line in wide.splitlines())
    ir = ir_of(sums(8, 64, 4), ARM)
    assert "!nontemporal" in ir and "sfence" not in ir


def test_entries_align_the_stack_to_long_vectors_on_x86() -> None:
    sse = machine_of_features("x86-64", (), "x86_64-unknown-linux-gnu", CACHES, 2, 3000)
    for machine, aligns in ((SKYLAKE, True), (sse, False), (ARM, False)):
        ir = ir_of(sums(8, 64, 4), machine)
        assert "stackrealign" in ir and ('"override-stack-alignment", i32 64' in ir) == aligns


def test_the_mark_in_texts() -> None:
    schedule = sums(8, 67)
    assert "for j.lo.p vector nontemporal:" in str(schedule)
    assert str(Schedule.parse(str(schedule))) == str(schedule)
    tree = schedule.lower()
    assert "vector nontemporal:" in print_loops(tree)
    assert parse_loops(print_loops(tree)) == tree
    assert "nontemporal vector j.lo.p" in str(schedule.isl_tree())
    assert "nontemporal" in schedule._repr_html_()


def test_the_mark_stays_with_the_vectors() -> None:
    schedule = sums(8, 64)
    assert schedule.split("j.o", 2).marks["j.p.hi"].nontemporal
    assert schedule.tile({"j.p": 4}).marks["j.p.p"].nontemporal


def test_a_command_loads_what_need_not_stay() -> None:
    s = Schedule(poly.parse("C[i, j] = A[i, j]", A=(16, 16))).promote("A", None, "tiles", name="At")
    s = s.tensorise(("ld_At.0", "ld_At.1"), "matrix").tensorise(("i", "j"), "matrix")
    with pytest.raises(ScheduleError, match="loads nothing"):
        s.nontemporal("j")
    schedule = s.nontemporal("ld_At.1")
    tree = schedule.lower()
    assert "engine matrix nontemporal:" in print_loops(tree) and parse_loops(print_loops(tree)) == tree
    assert str(Schedule.parse(str(schedule))) == str(schedule)


def test_where_nothing_could_be_stored_so() -> None:
    copy = Schedule(poly.parse("C[i, j] = A[i, j]", A=(8, 64)))
    with pytest.raises(ScheduleError, match="not a vector loop"):
        copy.nontemporal("j")
    added = Schedule(poly.parse("C[j] += A[i, j]", A=(8, 64)))
    loop, over = added.nests["C_update"].names
    with pytest.raises(ScheduleError, match="has no store"):
        added.interchange(loop, over).vectorise(loop).nontemporal(loop)


# ---- what the policy marks

FEW_BYTES = {1: 1 << 15, 2: 1 << 17}
SMALL = machine_of_features("x86-64", ("avx", "avx2", "fma"), "x86_64-unknown-linux-gnu", FEW_BYTES, 2, 3000)
SQUARE = (256, 256)


def marked(text: str, machine: Machine = SMALL, **shapes: tuple[int, ...]) -> set[str]:
    """The tensors that the policy's schedule stores to past the caches."""
    schedule = schedule_for_cpu(poly.parse(text, dtypes=None, **shapes), machine)
    loops = [n for n in schedule.lower().nodes() if isinstance(n, For) and n.nontemporal]
    return {c.write.tensor for loop in loops for c in walk(loop.body) if isinstance(c, Compute)}


def test_results_beyond_the_caches_are_marked() -> None:
    assert marked("C[i, j] = A[i, j] + B[i, j]", A=SQUARE, B=SQUARE) == {"C"}
    assert marked("C[i, j] = A[i, j] + B[i, j]", HOST, A=SQUARE, B=SQUARE) == set()
    assert marked("T[i, j] = A[i, j] + 1; C[i, j] = T[i, j] * T[i, j]", A=SQUARE) == {"C"}
    assert marked("C[j, i] = A[i, j]", A=(1088, 64)) == {"C"}


def test_half_of_the_last_cache_counts_where_reads_stay_in_it() -> None:
    """Here 96 KiB of 128 are touched."""
    assert marked("C[i, j] = A[i, j] + 1", A=(48, 256)) == {"C"}
    assert marked("C[i, j] = A[i] * B[j]", A=(96,), B=(256,)) == set()
    assert marked("C[i, j] = A[i, j] + 1", A=(24, 256)) == set()


def test_rows_beyond_the_caches_are_marked() -> None:
    text = "m[i] += x[i, j] / 512; y[i, j] = x[i, j] - m[i]"
    assert marked(text, x=(128, 512)) == {"y"}
    assert marked(text, x=(12, 512)) == set()


def test_what_is_read_or_written_again_is_not_marked() -> None:
    assert marked("C[i, j] = A[i, j] + 1; D[i] += C[i, j]", A=SQUARE) == set()
    assert marked("C[i, j] += A[i, j, k]", A=(64, 64, 16)) == set()
    assert marked("C[j, i] = A[i, j]", A=(1084, 64)) == set()  # rows of the target end inside of lines
    assert marked("C[i, j, k] = A[i, k] + B[j, k]", A=(64, 12), B=(200, 12)) == set()


def asked(text: str, machine: Machine = SKYLAKE, **shapes: tuple[int, ...]) -> dict[str, tuple[str, int]]:
    """Of the statements that ask for lines ahead: along which loop, and how far."""
    schedule = schedule_for_cpu(poly.parse(text, dtypes=None, **shapes), machine)
    names = schedule.program.statement
    found = {s: schedule.marks[schedule.nests[s].names[-1]].ahead for s in names if schedule.nests[s].names}
    return {s: ahead for s, ahead in found.items() if ahead is not None}


def test_results_in_the_last_cache_are_asked_for() -> None:
    """8 KiB ahead, in whole rows; not past the caches, near ones, or beside as many reads."""
    assert asked("C[i, j] = A[i] * B[j]", A=(2048,), B=(1024,)) == {"C_set": ("i", 2)}
    assert set(asked("C[i, j] = A[i] * B[j]", A=(2048,), B=(1025,)).values()) == {("i", 2)}
    assert asked("C[i, j] = A[i] * B[j]", A=(256,), B=(1024,)) == {}
    assert asked("C[i, j] = A[i] * B[j]", A=(8192,), B=(2048,)) == {}
    assert asked("C[i, j] = A[i, j] * B[j]", A=(1024, 1024), B=(1024,)) == {}
    assert asked("C[i, j] = exp(A[i] * B[j])", A=(2048,), B=(1024,)) == {}


def test_what_functions_wait_for_is_asked_for_where_the_last_cache_is_slow() -> None:
    """Some steps ahead; and so are long rows that are only written. Not from near caches."""
    mesh = replace(SKYLAKE, engines=(replace(SKYLAKE.engines[0], cost={**SKYLAKE.engines[0].cost, "afar": 1}),))
    text = "y[i, j] = exp(x[i, j])"
    assert asked(text, mesh, x=(512, 1024)) == {"y_set": ("j.o", 8)}
    assert asked(text, mesh, x=(64, 1024)) == asked(text, SKYLAKE, x=(512, 1024)) == {}
    assert asked("y[i, j] = 2*x[i, j]", mesh, x=(512, 1024)) == {}
    chain = "q[i, j] = x[i, j] * w[i]; r[i, j] = sigmoid(q[i, j]); y[i, j] = r[i, j] * x[i, j]"  # r: in registers only
    assert asked(chain, mesh, x=(512, 1024), w=(512,)) == {"q_set": ("j.o", 8), "y_set": ("j.o", 8)}
    outer = "y[i, j] = a[i] + b[j]"
    assert asked(outer, mesh, a=(1024,), b=(1024,)) == {"y_set": ("j.o", 8)}
    assert asked(outer, mesh, a=(8192,), b=(128,)) == asked(outer, SKYLAKE, a=(8192,), b=(128,)) == {"y_set": ("i", 16)}


def test_where_the_last_cache_is_slow_all_that_the_nearer_ones_do_not_hold_is_asked_for() -> None:
    mesh = replace(SKYLAKE, engines=(replace(SKYLAKE.engines[0], cost={**SKYLAKE.engines[0].cost, "afar": 1}),))
    shapes = {"a": (250,), "b": (1024,)}
    assert asked("y[i, j] = a[i] + b[j]", mesh, **shapes) == {"y_set": ("j.o", 8)}
    assert asked("y[i, j] = a[i] + b[j]", SKYLAKE, **shapes) == {}
    assert asked("y[i, j] = a[i] + b[j]", mesh, a=(100,), b=(1024,)) == {}


def test_rows_that_go_past_a_slow_last_cache_are_asked_for_some_steps_ahead() -> None:
    """In the row; where the next step is in another one, which may lie anywhere, nothing is."""
    mesh = replace(SKYLAKE, engines=(replace(SKYLAKE.engines[0], cost={**SKYLAKE.engines[0].cost, "afar": 1}),))
    text = "y[i, j] = 2*x[i, j]"
    assert asked(text, mesh, x=(8192, 1024)) == {"y_set": ("j.o", 8)}
    assert asked(text, SKYLAKE, x=(8192, 1024)) == {}
    turned = "y[j, i, k] = x[i, j, k]"
    assert marked(turned, mesh, x=(512, 512, 64)) == {"y"} and asked(turned, mesh, x=(512, 512, 64)) == {}
    softmax = "m[i] max= x[i, j]; e[i, j] = exp(x[i, j] - m[i]); s[i] += e[i, j]; y[i, j] = e[i, j] / s[i]"
    found = schedule_for_cpu(poly.parse(softmax, x=(8192, 1024)), mesh)
    assert found.marks[found.nests["y_set"].names[-1]].ahead == ("j.o", 8)


@pytest.mark.parametrize("threads", [1, 2])
def test_asking_ahead_changes_no_result(threads: int) -> None:
    a, b = np.arange(700, dtype=np.float32), np.arange(1201, dtype=np.float32)
    program = poly.parse("C[i, j] = A[i] - B[j]", A=a.shape, B=b.shape)
    schedule = schedule_for_cpu(program, SKYLAKE, threads)
    assert "prefetch" in schedule.script
    np.testing.assert_array_equal(poly.compile(schedule, threads=threads)(a, b), a[:, None] - b)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offset", [0, 32, 48])
@pytest.mark.parametrize("shape", [(1088, 64), (1120, 70)])
def test_marked_schedules_give_the_same(shape: tuple[int, int], offset: int, threads: int) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    b = np.ascontiguousarray(a.T)
    for text, given in (("C[j, i] = A[i, j]", a), ("C[i, j] = A[i, j] * 1", b)):
        schedule = schedule_for_cpu(poly.parse(text, A=given.shape), SMALL, threads)
        assert "nontemporal" in schedule.script
        kernel = poly.compile(schedule, threads=threads)
        assert isinstance(kernel, Kernel)
        out = at_offset(b.shape, offset)
        kernel(given, out=out)
        np.testing.assert_array_equal(out, b)


def test_large_results_start_at_a_line() -> None:
    a = np.ones((1024, 300), np.float32)
    one = poly.compile(poly.parse("B[i, j] = A[i, j] + 1", A=a.shape))
    two = poly.compile(poly.parse("B[i, j] = A[i, j] + 1; C[i, j] = A[i, j] * 3", A=a.shape))
    for _ in range(3):  # the first call is a careful one, the others are native
        results = [r for r in (one(a), *two(a)) if isinstance(r, np.ndarray)]
        assert [address(r) % 64 for r in results] == [0, 0, 0]
        assert [r[5, 7] for r in results] == [2, 2, 3]


@pytest.mark.parametrize(
    "text", ["Y[i, j] = 2 * X[i, j]", "M[i] max= X[i, j]; Y[i, j] = X[i, j] - M[i]"]
)
@pytest.mark.parametrize(("threads", "past"), [(1, True), (2, False)])
def test_each_thread_counts_on_its_share_of_the_last_cache(text: str, threads: int, past: bool) -> None:
    """24 of 32 MiB, as much read as written."""
    program = poly.parse(text, X=(2048, 1536))
    loops = walk(schedule_for_cpu(program, SKYLAKE, threads).lower().body)
    assert any(isinstance(n, For) and n.nontemporal for n in loops) == past


@pytest.mark.parametrize(("rows", "past"), [(2000, False), (3000, True)])
def test_a_guest_counts_on_no_more_of_a_large_cache_than_cores_have(rows: int, past: bool) -> None:
    """480 MiB of a cache that are of more cores than the two that a guest sees."""
    guest = machine_of_features("rocketlake", WIDE, "x86_64-unknown-linux-gnu", {**CACHES, 3: 480 << 20}, 2, 3000)
    assert last_capacity(guest) == 64 << 20 and last_capacity(SKYLAKE) == 32 << 20
    program = poly.parse("Y[i, j] = 2 * X[i, j]", X=(rows, 2048))
    loops = walk(schedule_for_cpu(program, guest, 1).lower().body)
    assert any(isinstance(n, For) and n.nontemporal for n in loops) == past


PRODUCT = "C[i, j] += A[i, k] * B[k, j]"


@pytest.mark.parametrize(
    ("text", "steps", "columns", "past"),
    [
        (PRODUCT, 16, 512, True),
        ("T[i, j] += A[i, k] * B[k, j]; C[i, j] = max(T[i, j], 0)", 16, 512, True),
        (PRODUCT, 16, 516, False),  # rows share lines
        (PRODUCT, 512, 512, False),  # operations take much longer
        (PRODUCT + "; D[i] += C[i, j]", 16, 512, False),  # read again
    ],
)
def test_register_tiles_write_large_results_past_the_caches(text: str, steps: int, columns: int, past: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((150, steps), (steps, columns)))
    program = poly.parse(text, A=a.shape, B=b.shape)
    schedule = schedule_for_cpu(program, SMALL, 1)
    assert any(isinstance(n, For) and n.nontemporal for n in walk(schedule.lower().body)) == past
    kernel = poly.compile(schedule)
    assert isinstance(kernel, Kernel)
    for offset in (0, 16, 32) if past else ():
        out = at_offset((150, columns), offset)
        kernel(a, b, out=out)
        np.testing.assert_array_equal(out, np.maximum(a @ b, 0) if "max" in text else a @ b)


def product_past(text: str = PRODUCT, **changes: object) -> frozenset[str]:
    """What a product that is large for its caches writes past them, its plan changed."""
    extra = {"E": (512,)} if "E[" in text else {}
    program = poly.parse(text, dtypes=None, A=(150, 16), B=(16, 512), **extra)
    facts = facts_of(program, next(g for g in groups_of(program) if any(s.combiner for s in g.statements)), SMALL)
    plan = contraction_plan(facts, 1)
    assert plan is not None and plan.depth is None and plan.lanes_inside
    return results_past_tiles(facts, replace(plan, **changes), 0.0)  # pyright: ignore[reportArgumentType]


def test_only_whole_lines_of_rows_that_tiles_finish_go_past() -> None:
    """Not partial sums, columns of tiles, tiles of half lines, or what another nest writes to as well."""
    assert product_past() == {"C"}
    assert product_past(depth=("k", 8)) == product_past(lanes_inside=False) == frozenset()
    assert product_past(strips=(Strip(0, 512, 3, ()),)) == frozenset()
    assert product_past(PRODUCT + "; C[0, j] = E[j]") == frozenset()


@pytest.mark.parametrize(("threads", "past"), [(1, True), (2, False)])
def test_of_results_that_fill_a_share_one_thread_writes_past_the_last_cache(threads: int, past: bool) -> None:
    program = poly.parse(PRODUCT, A=(2048, 16), B=(16, 2048))
    loops = walk(schedule_for_cpu(program, SKYLAKE, threads).lower().body)
    assert any(isinstance(n, For) and n.nontemporal for n in loops) == past
