"""One block of rows for each thread: where the model gives a contraction fewer cycles so, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine, machine_of_features
from poly.errors import ScheduleError
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.cpu_ways import Ways
from poly.scheduling.groups import groups_of
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.paired_sums import sums_of_pairs
from poly.scheduling.thread_blocks import blocks_like, with_thread_blocks
from tests.machines import AVX512

MESH = machine_of_features(
    "x", ("avx512f", "avx512vl", "avx512fp16", "amx-tile"), "x86_64-unknown-linux-gnu",
    {1: 48 << 10, 2: 2 << 20, 3: 480 << 20}, 2, 2600,
)  # fmt: skip
UNIT = machine_of_features(
    "sapphirerapids", (*MESH.features, "avx512bw", "avx512dq", "avx512vnni", "avx512bf16", "amx-bf16", "amx-int8"),
    "x86_64-unknown-linux-gnu", {1: 48 << 10, 2: 2 << 20, 3: 480 << 20}, 2, 2600,
)  # fmt: skip
FLAT = {"A": (512, 32), "B": (32, 512)}  # what threads share of B is little, the result large


def product(text: str, shapes: dict[str, tuple[int, ...]]) -> Program:
    return join_axes(poly.parse(text, dtypes=None, **shapes))


def blocks_of(program: Program, threads: int = 2, machine: Machine = MESH) -> list[tuple[str, int]]:
    """The loops that became two, and the iterations of a block."""
    made = with_thread_blocks(program, machine, threads)
    found: list[tuple[str, int]] = []
    for s, whole in zip(made.statements, program.statements, strict=True):
        new = [i for i in s.iterators if i not in whole.iterators]
        slow = s.iterators[s.iterators.index(new[0]) - 1] if new else ""
        found += [(slow, c) for i in s.write.affine_index[:1] if (c := i.coefficient(slow)) > 1] if new else []
    return sorted({*found})


@pytest.mark.parametrize(
    ("rows", "threads", "block"),
    [(512, 2, [256]), (512, 4, [128]), (510, 3, [170]), (512, 1, []), (511, 2, []), (512, 3, []), (512, 128, [])],
)
def test_rows_are_in_a_block_for_each_thread(rows: int, threads: int, block: list[int]) -> None:
    program = product("C[i,j] += A[i,k] * B[k,j]", {"A": (rows, 32), "B": (32, 512)})
    assert [size for _, size in blocks_of(program, threads)] == block


def test_where_other_cores_lines_come_fast_what_is_packed_is_shared() -> None:
    assert blocks_of(product("C[i,j] += A[i,k] * B[k,j]", FLAT), machine=AVX512) == []


@pytest.mark.parametrize(
    ("text", "shapes", "block"),
    [
        ("C[i,j] += A[i,k] * B[k,j]", {"A": (256, 256), "B": (256, 256)}, [128]),  # 0.989
        ("C[i,j] += A[i,k] * B[j,k]", {"A": (1144, 16), "B": (840, 16)}, []),  # 0.992
    ],
    ids=["packed on its way", "packed by itself"],
)
def test_near_ties_are_cut_where_copies_are_on_their_way(
    text: str, shapes: dict[str, tuple[int, ...]], block: list[int]
) -> None:
    assert [size for _, size in blocks_of(product(text, shapes))] == block


def test_what_a_core_does_not_keep_is_packed_once() -> None:
    """B is 4.8 MB, of which each thread would fetch all from the last cache."""
    assert blocks_of(product("C[i,j] += A[i,k] * B[k,j]", {"A": (600, 1000), "B": (1000, 1200)})) == []


def test_rows_that_indices_choose_are_not_cut() -> None:
    program = poly.parse("C[i,j] += A[I[i],k] * B[k,j]", dtypes={"I": "i32"}, A=(99, 16), I=(512,), B=(16, 512))
    assert with_thread_blocks(program, MESH, 2) is program


@pytest.mark.parametrize("sizes", [(256, 256), (2048, 128)], ids=["small", "few steps"])
def test_each_thread_packs_for_its_matrix_unit(sizes: tuple[int, int]) -> None:
    """Copies make pairs on their way, so that nothing which another thread made is read."""
    text = "C[i,j] += f32(A[i,k])*f32(B[k,j])"
    program = poly.parse(text, A=sizes, B=sizes[::-1], dtypes={"A": "bf16", "B": "bf16", "C": "f32"})
    pairs = sums_of_pairs(program, UNIT.dot_operators)
    schedule = schedule_for_cpu(with_thread_blocks(pairs, UNIT, 2), UNIT, 2)
    (block,) = [n for n, m in schedule.marks.items() if m.kind == "parallel" and n in schedule.loop_statements]
    assert all(schedule.nests[s.name].names[0] == block for s in schedule.program.statements)
    assert {r.tensor for s in schedule.program.statements if s.origin for r in s.reads} >= {"A", "B"}


def test_a_batch_is_shared_as_it_is() -> None:
    program = product("C[b,i,j] += A[b,i,k] * B[b,k,j]", {"A": (8, 64, 64), "B": (8, 64, 64)})
    assert blocks_of(program) == []


def test_the_loop_along_which_the_result_is_contiguous_stays_whole() -> None:
    program = product("C[i,j] += A[i,k] * B[k,j]", {"A": (7, 512), "B": (512, 512)})
    assert blocks_of(program) == []


@pytest.mark.parametrize("shapes", [FLAT, {"A": (2000, 100), "B": (100, 100)}])
def test_what_is_packed_is_a_threads_own(shapes: dict[str, tuple[int, ...]]) -> None:
    """The packed buffer lives inside of the loop that threads share, which is the outermost; nothing is shared else."""
    program = product("C[i,j] += A[i,k] * B[k,j]", shapes)
    kernel = poly.compile(program, threads=2)
    schedule = kernel.schedule
    assert schedule is not None
    shared = [n for n in schedule.loop_statements if schedule.kind(n) == "parallel"]
    packed = [t for t in schedule.program.tensors if t.origin == "B" and t.scope]
    if blocks_of(join_axes(program), 2, host_machine()):
        assert len(shared) == 1 and packed and all(t.scope[0] == shared[0] for t in packed)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("C[i,j] += A[i,k] * B[k,j]", FLAT),
        ("C[i,j] += A[k,i] * B[k,j]", {"A": (64, 192), "B": (64, 170)}),
        ("C[i,j] += A[i,k] * B[k,j]; D[i,j] = max(C[i,j] + E[j], 0)", {**FLAT, "E": (512,)}),
        ("T[i,j] += A[i,k] * B[k,j]; C[i,l] += T[i,j] * D[j,l]", {"A": (128, 16), "B": (16, 200), "D": (200, 33)}),
    ],
)
@pytest.mark.parametrize("threads", [2, 4])
def test_the_same_results(text: str, shapes: dict[str, tuple[int, ...]], threads: int) -> None:
    """Exactly, on small whole numbers: interpreted after the edit, and compiled for this machine."""
    program = product(text, shapes)
    made = with_thread_blocks(program, MESH, threads)
    random = np.random.default_rng(2)
    arrays = {t.name: random.integers(-3, 4, t.extents(program.binding)).astype("f4") for t in program.inputs}
    expected, found = run_program(program, arrays), run_program(made, arrays)
    assert all(np.array_equal(found[n], expected[n]) for n in expected)
    results = poly.compile(program, threads=threads)(*arrays.values())
    results = results if isinstance(results, tuple) else (results,)
    assert all(np.array_equal(a, expected[t.name]) for a, t in zip(results, program.outputs, strict=True))


def test_a_schedule_with_blocks_is_one_of_the_program() -> None:
    program = product("C[i,j] += A[i,k] * B[k,j]", FLAT)
    made = with_thread_blocks(program, MESH, 2)
    assert made != program and blocks_like(program, made) == made and blocks_like(program, program) == program
    schedule = poly.Schedule(made)
    a, b = np.ones((512, 32), "f4"), np.ones((32, 512), "f4")
    assert np.array_equal(poly.compile(program, threads=2, schedule=schedule)(a, b), np.full((512, 512), 32))
    other = product("C[i,j] += A[i,k] * B[j,k]", {"A": (512, 32), "B": (512, 32)})
    with pytest.raises(ScheduleError, match="of another program"):
        poly.compile(other, threads=2, schedule=schedule)


def blocks(program: Program) -> frozenset[str]:
    """The loops that the model takes for those over blocks of two threads."""
    facts = facts_of(program, groups_of(program)[0], MESH, 2)
    lanes, update = facts.lanes(), facts.update
    assert lanes is not None and update is not None
    return Ways(facts, update, lanes).blocks


def test_a_loop_over_blocks_is_told_by_what_is_written() -> None:
    program = product("C[i,j] += A[i,k] * B[k,j]", FLAT)
    assert blocks(with_thread_blocks(program, MESH, 2)) == {"i"}
    assert not blocks(program) and not blocks(with_thread_blocks(program, MESH, 4))
    assert not blocks(poly.parse("C[t,i,j] += A[t,i,k] * B[k,j]", A=(2, 64, 64), B=(64, 64)))


def test_the_same_results_from_run_to_run() -> None:
    random = np.random.default_rng(5)
    a, b = random.standard_normal((512, 32), "f4"), random.standard_normal((32, 512), "f4")
    kernel = poly.compile(product("C[i,j] += A[i,k] * B[k,j]", FLAT), threads=2)
    first = np.asarray(kernel(a, b)).tobytes()
    assert all(np.asarray(kernel(a, b)).tobytes() == first for _ in range(200))
