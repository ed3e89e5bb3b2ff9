"""The CPU policy: what it promotes where, no gathers in inner loops, and exact results over many shapes."""

from typing import Any

import numpy as np
import pytest

import poly
from poly.affine import Affine
from poly.codegen.host import machine_of_features
from poly.errors import PolyError, ScheduleError
from poly.frontend.einsum import einsum_program
from poly.loops import Alloc, Compute, For, LoopTree, Node
from poly.machine import Engine, Machine, Memory
from poly.program import Program
from poly.scheduling import cpu
from poly.scheduling.cpu import Policy, schedule_for_cpu
from poly.scheduling.cpu_contract import contraction_of
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_cost import step_cycles
from poly.scheduling.cpu_lanes import tiles_of
from poly.scheduling.cpu_plan import balanced
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.machines import AVX2

WIDE = Machine("wide", "cpu", (*AVX2.memories[:3], Memory("reg", 32, "register")), (Engine("core", "core", lanes=16),))


def program_of(spec: str, *shapes: tuple[int, ...]) -> Program:
    return einsum_program(spec, shapes, ["f32"] * len(shapes))


def spaces(schedule: Schedule) -> dict[str, str]:
    """Memory space of every promoted tensor, by what it stands for."""
    return {t.origin: t.space for t in schedule.program.tensors if t.origin}


def strided(tree: LoopTree) -> list[str]:
    """Memory accesses in vector loops whose element is neither the same nor the next one in the next lane."""
    buffers = {n.tensor.name: n.tensor for n in tree.nodes() if isinstance(n, Alloc)}
    tensors = {t.name: t for t in tree.tensors} | buffers
    found: list[str] = []

    def visit(nodes: tuple[Node, ...], lane: str) -> None:
        for node in nodes:
            if isinstance(node, Compute):
                for access in (*node.reads, node.write):
                    tensor = tensors[access.tensor]
                    index = tuple(i for i in access.index if isinstance(i, Affine))
                    place = tensor.layout.place(index) if tensor.layout is not None else index
                    values = dict.fromkeys({n for i in place for n in i.names}, 0)
                    steps = [int(i.evaluate(values | {lane: 1}) - i.evaluate(values | {lane: 0})) for i in place]
                    if lane and tensor.space != "reg" and (any(steps[:-1]) or steps[-1:] not in ([0], [1])):
                        found.append(f"{node.statement}: {access.tensor}")
            elif isinstance(node, For):
                visit(node.body, node.variable if node.kind == "vector" else lane)
            elif not isinstance(node, Compute):
                visit(getattr(node, "body", ()), lane)

    visit(tree.body, "")
    return found


@pytest.mark.parametrize("spec", ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij"])
def test_product_packs_what_moves_along_the_lanes(spec: str) -> None:
    schedule = schedule_for_cpu(program_of(spec, (256, 256), (256, 256)), AVX2)
    found = {(t.origin, t.space) for t in schedule.program.tensors if t.origin}
    assert ("out", "reg") in found and found & {("x0", "l2"), ("x1", "l2")}  # lanes may be along either operand
    assert not [f for f in strided(schedule.lower()) if "update" in f.split(":")[0] and not f.startswith("ld_")]
    marks = {mark.kind for mark in schedule.marks.values()}
    assert {"vector", "unroll"} <= marks


@pytest.mark.parametrize(
    ("text", "shapes", "kind"),
    [
        ("Y[c,y,x] += X[c,y+r,x+s]*W[c,r,s]", {"X": (3, 18, 18), "W": (3, 3, 3), "Y": (3, 16, 16)}, "Window"),
        ("B[j,i] = A[i,j]", {"A": (40, 32)}, "Permutation"),
        ("B[j,i,k] = A[i,j,k]", {"A": (20, 30, 64)}, "Runs"),
        ("C[i] += A[i,k]*B[k]", {"A": (64, 256), "B": (256,)}, "Folded"),
        ("C[i,j] += A[i,k]*B[k,j]", {"A": (64, 64), "B": (64, 64)}, "BlockPlan"),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": (64, 64), "B": (64, 64)}, "TilePlan"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_policy_that_recognises_a_group(text: str, shapes: dict[str, tuple[int, ...]], kind: str) -> None:
    program = poly.parse(text, dtypes=None, **shapes)
    (group,) = groups_of(program)
    plans = (policy.recognise(program, group, AVX2, 1) for policy in cpu.POLICIES)
    assert type(next(p for p in plans if p is not None)).__name__ == kind


def test_what_one_policy_cannot_compose_the_next_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Schedule:
        raise ScheduleError("not this way")

    program = program_of("ik,kj->ij", (24, 16), (16, 24))
    usual = str(schedule_for_cpu(program, AVX2))
    monkeypatch.setattr(cpu, "POLICIES", (Policy(lambda *_: "anything", fails), *cpu.POLICIES))
    assert str(schedule_for_cpu(program, AVX2)) == usual
    monkeypatch.setattr(cpu, "POLICIES", (Policy(lambda *_: "anything", fails),))
    assert schedule_for_cpu(program, AVX2).lower() is not None  # the program's own order, or lanes of nests


def test_small_product_is_not_packed() -> None:
    assert spaces(schedule_for_cpu(program_of("ik,kj->ij", (48, 48), (48, 48)), AVX2)) == {"out": "reg"}


def test_packed_buffer_is_contiguous_along_the_lanes() -> None:
    schedule = schedule_for_cpu(program_of("ik,jk->ij", (256, 256), (256, 256)), AVX2)
    buffers = [t for t in schedule.program.tensors if t.origin == "x1"]
    assert buffers
    for buffer in buffers:
        if buffer.space != "reg":
            assert buffer.layout is not None and buffer.layout.coordinates[-1].names == {buffer.layout.index[0]}


@pytest.mark.parametrize("machine", [AVX2, WIDE], ids=lambda m: m.name)
@pytest.mark.parametrize("shape", [(512, 512, 512), (127, 255, 513), (7, 100, 3), (1000, 24, 64)])
def test_register_tile_fits_the_registers(machine: Machine, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    program = program_of("ik,kj->ij", (m, k), (k, n))
    (group,) = groups_of(program)
    plan = contraction_of(program, group, machine)
    assert plan is not None and plan.vector <= machine.lanes(4) and plan.rows == 0 and plan.lanes == 1
    for strip in plan.strips:
        assert sum(p.high - p.low for p in strip.rows) == m
        for piece in strip.rows:
            assert strip.width * piece.tile + strip.width + 1 <= (machine.registers or AVX2.memories[-1]).capacity  # type: ignore[operator]
            assert (piece.high - piece.low) % piece.tile == 0
    assert sum(s.high - s.low for s in plan.strips) == n


def test_register_tile_is_as_large_as_the_registers() -> None:
    (group,) = groups_of(program := program_of("ik,kj->ij", (512, 512), (512, 512)))
    for machine in (AVX2, WIDE):
        registers = machine.registers
        assert registers is not None and registers.capacity is not None
        plan = contraction_of(program, group, machine)
        assert plan is not None
        strip = plan.strips[0]
        assert all(2 * strip.width * p.tile >= registers.capacity for p in strip.rows)


def test_balanced_pieces() -> None:
    assert [(p.low, p.high, p.tile) for p in balanced(0, 512, 6)] == [(0, 12, 6), (12, 512, 5)] or sum(
        (p.high - p.low) // p.tile for p in balanced(0, 512, 6)
    ) == 86
    assert [(p.low, p.high, p.tile) for p in balanced(3, 12, 6)] == [(3, 15, 6)]


def test_step_is_bound_by_operations_in_large_tiles_and_by_latency_in_small_ones() -> None:
    core = core_of(AVX2, 4)
    large, small = step_cycles(core, np.array([12.0, 1.0]), np.array([8.0, 2.0]))  # 6 rows of 2 vectors, 1 of 1
    assert 6 <= large < 7 and 4 <= small < 4.5


def test_a_panel_whose_vectors_lie_in_two_lines_is_packed_where_that_costs_something() -> None:
    """An array of a caller starts anywhere in a line; a Zen 5 loads such vectors in the shade of operations."""
    program, caches = program_of("ik,kj->ij", (256, 256), (256, 256)), {1: 48 << 10, 2: 2 << 20, 3: 64 << 20}
    wide = ("avx", "avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma")
    packed: list[bool] = []
    for more in ((), ("avx512fp16", "amx-tile")):
        machine = machine_of_features("", (*wide, *more), "x86_64-unknown-linux-gnu", caches, 2, 3000)
        schedule = schedule_for_cpu(program, machine)
        packed.append(any(t.scope and t.space != machine.register_space for t in schedule.program.tensors))
    assert packed == [False, True]


def test_reduction_along_the_contiguous_axis_has_partial_results_in_registers() -> None:
    schedule = schedule_for_cpu(program_of("ij,j->i", (64, 64), (64,)), AVX2)
    assert spaces(schedule) == {"out": "reg"} and any(s.partial for s in schedule.program.statements)
    assert strided(schedule.lower()) == []


def test_strided_reads_are_folded_so_that_lanes_are_contiguous() -> None:
    program = poly.parse("Y[o, x] += W[o, c, r]*X[c, 2*x + r]", W=(16, 8, 3), X=(8, 65), Y=(16, 32))
    schedule = schedule_for_cpu(program, AVX2)
    (buffer,) = [t for t in schedule.program.tensors if t.origin == "X"]
    assert buffer.layout is not None and buffer.layout.shape[-2].constant == 2
    tree = schedule.lower()
    uses = {n.statement for n in tree.nodes() if isinstance(n, Compute) and buffer.name in {r.tensor for r in n.reads}}
    assert uses and not [f for f in strided(tree) if f.split(":")[0] in uses]  # the copy itself walks with the step
    random = np.random.default_rng(1)
    w, x = (random.integers(-3, 4, s).astype(np.float32) for s in ((16, 8, 3), (8, 65)))
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::2]
    assert np.array_equal(poly.compile(program)(w, x), np.einsum("ocr,cxr->ox", w, windows))


def test_column_sum_has_no_gathers() -> None:
    assert strided(schedule_for_cpu(program_of("ij->j", (64, 128)), AVX2).lower()) == []


CASES = [
    ("ik,kj->ij", (65, 33), (33, 47)),
    ("ik,kj->ij", (1, 40), (40, 200)),
    ("ik,kj->ij", (200, 3), (3, 5)),
    ("ik,kj->ij", (130, 129), (129, 131)),
    ("ki,kj->ij", (31, 67), (31, 75)),
    ("ik,jk->ij", (67, 31), (75, 31)),
    ("ki,jk->ij", (31, 13), (90, 31)),
    ("ik,jk->ij", (120, 91), (130, 91)),
    ("ik,jk->ij", (110, 5), (300, 5)),
    ("ibk,jbk->ibj", (24, 5, 13), (184, 5, 13)),
    ("bij,bjk->bik", (3, 29, 31), (3, 31, 37)),
    ("bid,bjd->bij", (3, 29, 33), (3, 37, 33)),
    ("bij,bjk->bik", (20, 8, 8), (20, 8, 8)),
    ("dfce,aebf->abcd", (12, 5, 7, 6), (4, 6, 9, 5)),
    ("bda,dc->abc", (10, 11, 12), (11, 13)),
    ("ijk,jl->ilk", (5, 6, 19), (6, 7)),
    ("ijk,jl,kl->il", (9, 10, 11), (10, 12), (11, 12)),
    ("ij,j->i", (67, 131), (131,)),
    ("ij,j->i", (7, 5), (5,)),
    ("ij,i->j", (67, 131), (67,)),
    ("ij->i", (19, 23)),
    ("bij->bi", (3, 67, 131)),
    ("aij->a", (67, 3, 13)),
    ("ij->j", (19, 23)),
    ("ij->", (19, 23)),
    ("ij->ji", (19, 23)),
    ("abcd->dcba", (3, 4, 5, 9)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}:{c[1:]}")
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_exact(case: tuple[str, tuple[int, ...]], threads: int) -> None:
    spec, *shapes = case
    random = np.random.default_rng(7)
    arrays = [random.integers(-3, 4, s).astype(np.float32) for s in shapes]
    kernel = poly.compile(program_of(spec, *shapes), threads=threads)
    assert np.array_equal(kernel(*arrays), np.einsum(spec, *(a.astype(np.float64) for a in arrays)))


CONVOLUTIONS = [
    ("(1, 3, 9, 11)", (1, 3, 9, 11), (5, 3, 3, 3), 1, 1, 1),
    ("strided", (2, 4, 12, 13), (6, 4, 3, 3), 2, 1, 1),
    ("depthwise", (1, 8, 14, 18), (8, 1, 3, 3), 1, 1, 8),
    ("depthwise strided", (1, 8, 14, 18), (8, 1, 3, 3), 2, 1, 8),
    ("grouped", (1, 8, 9, 20), (6, 4, 3, 3), 1, 1, 2),
    ("1x1", (1, 12, 7, 9), (20, 12, 1, 1), 1, 0, 1),
    ("7x7", (1, 3, 20, 20), (17, 3, 7, 7), 2, 3, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: c[0])
def test_convolutions_are_exact(case: tuple[str, tuple[int, ...], tuple[int, ...], int, int, int]) -> None:
    from onnx import TensorProto, helper

    _, x_shape, w_shape, stride, pad, groups = case
    random = np.random.default_rng(3)
    x, w = (random.integers(-3, 4, s).astype(np.float32) for s in (x_shape, w_shape))
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[stride] * 2, pads=[pad] * 4, group=groups)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("w", w))]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "conv", infos, [out]), opset_imports=[helper.make_opsetid("", 20)]
    )
    engine = poly.compile(poly.from_onnx(model))
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    n, c, h, v = windows.shape[:4]
    grouped = windows.reshape(n, groups, c // groups, h, v, *w.shape[2:])
    expected = np.einsum("ngchvrs,gocrs->ngohv", grouped, w.reshape(groups, -1, *w.shape[1:])).reshape(n, -1, h, v)
    assert np.array_equal(engine.run({"x": x, "w": w})["y"], expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "update",
    [
        "C_update[i, k, j]: C[i, k] += A[i, j]*B[j, k] where 0 <= i <= 63 and 0 <= k <= 31 and 0 <= j <= 95",
        "C_update[i, k]: C[i, k] = C[i, k] + A[i, k]*B[i, k] where 0 <= i <= 63 and 0 <= k <= 31",
    ],
)
def test_known_loops_over_a_tensor_with_a_free_extent(update: str, threads: int) -> None:
    text = f"""program p(N){{context}}
output C: f32[64, 32]
input A: f32[N, 96]
input B: f32[96, 32]
C_init[i, k]: C[i, k] = 0 where 0 <= i <= 63 and 0 <= k <= 31
{update}
"""
    with pytest.raises(PolyError, match="A: subscript .* is 0, outside"):
        poly.compile(parse_program(text.format(context="")), threads=threads)
    program = parse_program(text.format(context=" where N >= 64"))
    kernel = poly.compile(program, threads=threads)
    a, b = (np.random.default_rng(k).integers(-4, 5, n).astype(np.float32) for k, n in enumerate([(70, 96), (96, 32)]))
    np.testing.assert_array_equal(kernel(a, b), a[:64] @ b if "+=" in update else a[:64, :32] * b[:64])


@pytest.mark.parametrize(("columns", "lanes"), [(8, 8), (40, 8), (47, 16), (61, 32), (512, 32), (515, 32)])
@pytest.mark.parametrize("body", ["tanh(X[i, j] + Z[j])", "X[i, j] * sigmoid(X[i, j])"])
def test_vectors_of_functions_are_taken_together(body: str, columns: int, lanes: int) -> None:
    """Where few of their lanes stay empty."""
    shapes = {"X": (3, columns), "Z": (columns,)} if "Z" in body else {"X": (3, columns)}
    program = poly.parse(f"Y[i, j] = {body}", dtypes=None, **shapes)
    (group,) = groups_of(program)
    plan = tiles_of(program, group, AVX2)
    assert plan is not None and plan.vector == lanes
    schedule = schedule_for_cpu(program, AVX2)
    schedule.check()
    rng = np.random.default_rng(columns)
    arrays = [rng.standard_normal(t.extents(program.binding)).astype(np.float32) for t in program.inputs]
    given = dict(zip((t.name for t in program.inputs), arrays, strict=True))
    x = given["X"].astype(np.float64)
    want = np.tanh(x + given["Z"]) if "Z" in given else x / (1 + np.exp(-x))
    found: Any = poly.compile(program)(*arrays)
    np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-6)
