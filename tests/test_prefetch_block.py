"""Lines of the next block that are asked for while this one is in use: which, where, its refusals and text forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest

import poly
from poly.affine import Affine
from poly.codegen.function import lower
from poly.codegen.host import machine_of_features
from poly.dtypes import Array
from poly.engine_constants import in_order_of_use, streaming
from poly.errors import ScheduleError
from poly.loops import Alloc, Compute, For, If, LoopTree, Node, walk
from poly.machine import Machine
from poly.pictures import blocks_of
from poly.pointers import address
from poly.program import Program
from poly.scheduling.asked_copies import MOST_ASKS
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_contract import contraction_plan
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_schedule
from poly.scheduling.uneven import inside_windows
from poly.text import parse_loops, parse_program, print_loops

LINE = 8
FEATURES = ("avx", "avx2", "avx512f", "avx512vl")
CACHES = {1: 48 * 1024, 2: 2 * 1024**2, 3: 64 * 1024**2}
NEAR = machine_of_features("", FEATURES, "x86_64-unknown-linux-gnu", CACHES, 2, 3000)
MESH = machine_of_features("", (*FEATURES, "avx512fp16", "amx-tile"), "x86_64-unknown-linux-gnu", CACHES, 2, 3000)


def product(rows: int, columns: int, steps: int, along: str | None = "C_update.j.o") -> Schedule:
    return packed(rows, columns, steps).prefetch_block("k", "P", LINE, along)


def packed(rows: int, columns: int, steps: int) -> Schedule:
    """Tiles of 3 rows and 16 columns, of which two are a block; B is packed by tiles before all loops."""
    program = poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(rows, steps), B=(steps, columns))
    s = Schedule(program).promote("B", None, "l2", name="P", users=["C_update"], order=(1, 0), block={1: 16})
    s = s.tile({"C_update.j": 32}).tile({"C_update.j.p": 16}).tile({"C_update.i": 3})
    s = s.reorder("C_update.j.o", "C_update.i.o", "C_update.j.p.o", "k", "C_update.i.p", "C_update.j.p.p")
    return s.vectorise("C_update.j.p.p")


def loops_of(tree: LoopTree) -> list[For]:
    return [n for n in walk(tree.body) if isinstance(n, For)]


def events(tree: LoopTree) -> Iterator[tuple[str, int]]:
    """Places of P, in lines, that are asked for and read, in order."""
    tensor = next(n.tensor for n in walk(tree.body) if isinstance(n, Alloc) and n.tensor.name == "P")
    layout = tensor.layout
    assert layout is not None
    sizes = dict(tree.sizes)
    extents = [int(e.evaluate(sizes)) for e in layout.shape]

    def line(subscripts: Sequence[Affine], values: Mapping[str, int]) -> int:
        place = [int(c.evaluate(values)) for c in layout.place(subscripts)]
        return sum(p * prod(extents[k + 1 :]) for k, p in enumerate(place)) // LINE

    def run(nodes: tuple[Node, ...], values: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for node in nodes:
            if isinstance(node, For):
                low = max(int(e.evaluate(values)) for e in node.lower)
                for i in range(low, min(int(e.evaluate(values)) for e in node.upper), node.step):
                    inside = {**values, node.variable: i}
                    yield from (("ask", line(a.affine_index, inside)) for a in node.asks)
                    yield from run(node.body, inside)
            elif isinstance(node, Compute):
                yield from (("read", line(r.affine_index, values)) for r in node.reads if r.tensor == "P")
            elif isinstance(node, If | Alloc):
                yield from run(node.body, values)

    return run(tree.body, sizes)


@pytest.mark.parametrize(("rows", "columns", "steps"), [(6, 96, 12), (3, 64, 20), (12, 64, 12), (7, 96, 9)])
def test_each_line_of_the_next_block_is_asked_for(rows: int, columns: int, steps: int) -> None:
    """By the time that it is read; behind the last block what lies there."""
    block = steps * 32 // LINE
    asked: set[int] = set(range(block))
    for what, line in events(product(rows, columns, steps).lower()):
        if what == "ask":
            asked.add(line)
        else:
            assert line in asked
    assert set(range(columns // 32 * block + block)) <= asked
    assert max(asked) < columns // 32 * block + 2 * block


def test_what_lies_behind_all_of_it_is_asked_for() -> None:
    asked = {line for what, line in events(product(6, 96, 12, None).lower()) if what == "ask"}
    size = 12 * 96 // LINE
    assert set(range(size, 2 * size)) <= asked
    assert min(asked) == size


def test_places_side_by_side_are_found_without_divisions() -> None:
    """Of panels of three lines: which panel's row it is and which of its lines are one number in memory."""
    program = poly.parse("C[i, j] += A[i, k] * B[k, j]", A=(6, 20), B=(20, 96))
    s = Schedule(program).promote("B", None, "l2", name="P", users=["C_update"], order=(1, 0), block={1: 24})
    s = s.tile({"C_update.j": 24}).tile({"C_update.j.p": 8}).tile({"C_update.i": 3})
    s = s.reorder("C_update.j.o", "C_update.i.o", "k", "C_update.i.p", "C_update.j.p.o", "C_update.j.p.p")
    s = s.vectorise("C_update.j.p.p")
    tree = s.prefetch_block("k", "P", LINE, "C_update.j.o").lower()
    assert "% 3" in print_loops(tree)
    marked, plain = (lower(t, NEAR, "entry").ir for t in (tree, s.lower()))
    assert "llvm.prefetch" in marked
    assert marked.count("div i64") == plain.count("div i64")


def test_it_is_in_all_text_forms() -> None:
    s = product(6, 96, 24)
    assert "prefetch_block(loop='k', tensor='P', line=8, along='C_update.j.o')" in s.script
    assert parse_schedule(str(s)) == s
    assert "next (P, 8, C_update.j.o)" in str(s)
    assert "next (P, 8)" in str(product(6, 96, 24, None))
    assert "next (" not in str(blocks_of(s)[1])
    tree = s.lower()
    (loop,) = [f for f in loops_of(tree) if f.asks]
    assert loop.variable == "k"
    assert parse_loops(print_loops(tree)) == tree


def test_values_stay_as_they_are() -> None:
    random = np.random.default_rng(5)
    a, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((7, 24), (24, 80)))
    np.testing.assert_array_equal(poly.compile(product(7, 80, 24), threads=1)(a, b), a @ b)


@pytest.mark.parametrize(
    ("loop", "tensor", "line", "along", "why"),
    [
        ("C_update.j.p.p", "P", 8, None, "not serial"),
        ("k", "Q", 8, None, "whole tensor 'Q'"),
        ("k", "C", 8, None, "whole tensor 'C'"),
        ("k", "P", 8, "C_update.j.p.p", "not inside of"),
        ("k", "P", 0, None, "a line of 0"),
        ("k", "P", 8, None, "'k' asks already for blocks of 'P'"),
    ],
)
def test_refusals(loop: str, tensor: str, line: int, along: str | None, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        product(6, 96, 24).prefetch_block(loop, tensor, line, along)


def test_where_it_means_nothing_nothing_is_asked_for() -> None:
    s = product(6, 96, 24)
    assert not any(f.asks for f in loops_of(s.unroll("k").lower()))
    many = packed(3, 96, 24).prefetch_block("k", "P", 1, "C_update.j.o")  # 768 elements in 48 iterations
    assert 24 * 32 // 48 == MOST_ASKS
    assert {len(f.asks) for f in loops_of(many.lower())} == {0, MOST_ASKS}
    more = product(3, 96, 24).prefetch_block("C_update.j.p.o", "P", 1, "C_update.j.o")
    assert {f.variable for f in loops_of(more.lower()) if f.asks} == {"k"}
    single = Schedule(poly.parse("y[i] = x[i] * s[]", x=(40,), s=())).prefetch_block("i", "s", 8)
    assert not any(f.asks for f in loops_of(single.lower()))


def dense(rows: int, steps: int, columns: int) -> Program:
    return parse_program(
        f"""program dense
input x: f32[{rows}, {steps}]
constant w: f32[{steps}, {columns}]
output y: f32[{rows}, {columns}]
start[i, j]: y[i, j] = 0 where 0 <= i < {rows} and 0 <= j < {columns}
sum[i, j, k]: y[i, j] += x[i, k]*w[k, j] where 0 <= i < {rows} and 0 <= j < {columns} and 0 <= k < {steps}
"""
    )


@pytest.mark.parametrize(
    ("machine", "streamed", "steps", "asks"),
    [(MESH, False, 1024, True), (MESH, False, 256, False), (MESH, True, 256, True), (NEAR, True, 1024, False)],
)
def test_constants_from_afar_are_asked_for(machine: Machine, streamed: bool, steps: int, asks: bool) -> None:
    """4 MB are; 1 MB where other constants of a model come between; where the last cache is near none."""
    found = streaming(machine, {"all": np.empty(3 * 1024**2, np.uint8)}) if streamed else machine
    schedule = schedule_for_cpu(dense(96, steps, 1024), found, 1)
    assert any(mark.block is not None for mark in schedule.marks.values()) == asks


def windows(channels: int, places: int) -> Program:
    """3x3 windows over planes with padding."""
    n, last = places, places - 1
    box = f"0 <= o <= {channels - 1} and 0 <= y <= {last} and 0 <= x <= {last}"
    guard = " and ".join(f"{i} + {k} >= 1 and {n} >= {i} + {k}" for i, k in ("yq", "xr"))
    read = f"(X[c, y + q - 1, x + r - 1] if {guard} else 0)"
    return parse_program(f"""program windows
constant W: f32[{channels}, {channels}, 3, 3]
input X: f32[{channels}, {n}, {n}]
output Y: f32[{channels}, {n}, {n}]
s0[o, y, x]: Y[o, y, x] = 0 where {box}
s1[o, y, x, c, q, r]: Y[o, y, x] += {read}*W[o, c, q, r] where {box} """
        f"""and 0 <= c <= {channels - 1} and 0 <= q <= 2 and 0 <= r <= 2
""")  # fmt: skip


@pytest.mark.parametrize(("channels", "places", "elsewhere"), [(512, 7, False), (512, 6, False), (768, 7, True)])
def test_blocks_of_constants_leave_room_for_the_next(channels: int, places: int, elsewhere: bool) -> None:
    """Where they are asked for a block ahead; elsewhere only those are cut that a cache does not hold once."""
    program = inside_windows(windows(channels, places), {"W"}, planes=True)
    (group,) = groups_of(program)
    mesh, near = (contraction_plan(facts_of(program, group, m), 2) for m in (MESH, NEAR))
    assert mesh is not None and near is not None and (near.depth is not None) == elsewhere
    assert mesh.depth is not None and mesh.lanes_outside and mesh.depth[0] == "c"
    block = mesh.depth[1] * 9 * mesh.vector * mesh.strips[0].width * mesh.strips[0].block * 4
    assert 2 * block <= CACHES[2] // 2 < 2 * block * channels // mesh.depth[1]


def test_constants_lie_in_the_order_of_use() -> None:
    sizes = {"a": 40000, "b": 5, "c": 30001}
    arrays: dict[str, Array] = {n: np.full(size, k, np.float32) for k, (n, size) in enumerate(sizes.items())}
    before = {n: a.copy() for n, a in arrays.items()}
    found = in_order_of_use(arrays, ["c", "b", "a", "c", "other"], MESH)
    assert not arrays and [*found] == ["b", "c", "a"]
    for n, a in before.items():
        np.testing.assert_array_equal(found[n], a)
    assert address(found["c"]) == address(found["b"]) + 64
    assert address(found["a"]) == address(found["c"]) + -(-30001 * 4 // 64) * 64
    assert streaming(MESH, before) == MESH
    assert replace(streaming(MESH, {"w": np.empty(3 * 1024**2, np.uint8)}), engines=MESH.engines) == MESH
