"""Indices from memory: asked once, turned to places for all lanes at once, gathered where a machine says so; planes
that they walk, in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.affine import var
from poly.codegen.host import host_machine
from poly.errors import IndexRangeError
from poly.expr import Read
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.loops import Compute, LoopKind, LoopTree
from poly.machine import Machine, Memory
from poly.program import Program, ReadIndex
from poly.scheduling.cpu_planes import planes_in_blocks, planes_like, walks_of_planes
from tests.loop_trees import at, compute, inside, loop, tensor
from tests.test_codegen import LANES, before_a_closed_page, integers, kernel_of

SAMPLED = "y[c,p] += x[c,i[p,t],j[p,t]] * w[p,t]"
ROWS = 3


def gathering(how: int) -> Machine:
    """This machine, as if one instruction for many places paid there (1) or not (0)."""
    host = host_machine()
    core, *others = host.engines
    return replace(host, engines=(replace(core, cost={**core.cost, "gather": how}), *others))


def sampled(channels: int, points: int, side: int) -> tuple[Program, dict[str, np.ndarray]]:
    shapes = {"x": (channels, side, side), "i": (points, 2), "j": (points, 2), "w": (points, 2)}
    dtypes = {"x": "f32", "i": "i64", "j": "i64", "w": "f32", "y": "f32"}
    rng = np.random.default_rng(3)
    values = {n: rng.integers(0, side, s).astype(np.int64 if n in "ij" else np.float32) for n, s in shapes.items()}
    return poly.parse(SAMPLED, dtypes=dtypes, **shapes), values


# -- what is emitted


def unrolled(count: int = LANES) -> LoopTree:
    """y[r, v] = x[r, i[v], j[v]] for rows that are laid out."""
    read = at("x", "r", ReadIndex(0), ReadIndex(1))
    body = compute("s", at("y", "r", "v"), [at("i", "v"), at("j", "v"), read], Read(2))
    shapes = (
        tensor("i", count, dtype="i32", role="input"), tensor("j", count, dtype="i64", role="input"),
        tensor("x", ROWS, 5, 7, role="input"), tensor("y", ROWS, count, role="output"),
    )  # fmt: skip
    return LoopTree("u", shapes, (loop("r", 0, ROWS, loop("v", 0, count, body, kind="vector"), kind="unroll"),))


def indices(count: int = LANES) -> tuple[np.ndarray, np.ndarray]:
    return integers(count, dtype="i32", low=0, high=5), integers(count, dtype="i64", low=0, high=7)


@pytest.mark.parametrize("count", [LANES, LANES - 3])
@pytest.mark.parametrize("how", [0, 1])
def test_copies_share_checks_and_places(how: int, count: int) -> None:
    i, j = indices(count)
    x = integers(ROWS, 5, 7)
    kernel = kernel_of(unrolled(count), machine=gathering(how))
    np.testing.assert_array_equal(kernel(i, j, x), x[:, i, j])
    assert kernel.ir.count("icmp uge") == 2  # of two indices, not of each row's
    places = kernel.ir.split("ret i64")[2].count("extractelement <" + str(LANES) + " x i64>")
    assert places == (0 if how else count)  # one for each lane: both indices together, for all rows
    for k, wrong in ((0, 5), (1, 7), (0, -1)):
        bad = [i.copy(), j.copy()]
        bad[k][count // 2] = wrong
        with pytest.raises(IndexRangeError, match=f"index {wrong} of dimension {k + 1} of x"):
            kernel(*bad, x)


@pytest.mark.parametrize("how", [0, 1])
def test_lanes_that_a_guard_leaves_out_touch_nothing(how: int) -> None:
    """Their indices are beyond all memory, and so would the element be."""
    read = at("x", ReadIndex(0), guard=inside(var("v") - 2, 5), fill=-1)
    body = compute("s", at("y", "v"), [at("i", "v"), read], Read(1))
    shapes = (
        tensor("i", LANES, dtype="i64", role="input"), tensor("x", 6, role="input"), tensor("y", LANES, role="output")
    )  # fmt: skip
    tree = LoopTree("g", shapes, (loop("v", 0, LANES, body, kind="vector"),))
    i = np.full(LANES, 1 << 40)
    i[2:7] = [5, 0, 3, 3, 1]
    with before_a_closed_page(6) as x:
        found = kernel_of(tree, machine=gathering(how))(i, x)
    np.testing.assert_array_equal(found, [-1, -1, 5, 0, 3, 3, 1, *[-1] * (LANES - 7)])


@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "u8", "bool", "f16"])
def test_elements_of_any_size(dtype: str, how: int) -> None:
    """Beside an index, lanes along another axis."""
    body = compute("s", at("y", "v"), [at("i", "v"), at("x", ReadIndex(0), 2 * var("v") + 1)], Read(1))
    shapes = (
        tensor("i", LANES, dtype="i64", role="input"), tensor("x", 4, 2 * LANES, dtype=dtype, role="input"),
        tensor("y", LANES, dtype=dtype, role="output"),
    )  # fmt: skip
    tree = LoopTree("d", shapes, (loop("v", 0, LANES, body, kind="vector"),))
    i, x = integers(LANES, dtype="i64", low=0, high=4), integers(4, 2 * LANES, dtype=dtype, low=0, high=2)
    np.testing.assert_array_equal(
        kernel_of(tree, machine=gathering(how))(i, x), x[i, 2 * np.arange(LANES) + 1]
    )


def test_what_is_stored_is_loaded_again() -> None:
    """A temporary is loaded once until it is written, in loops as beside them."""

    def put(name: str, source: str) -> Compute:
        return compute(name, at("t", 0), [at(source, "k")], Read(0), "+")

    def take(name: str, column: int) -> Compute:
        return compute(name, at("y", "k", column), [at("t", 0)], Read(0))

    start = compute("start", at("t", 0), [at("a", 0)], Read(0))
    body = (take("y0", 0), take("y1", 1), put("p", "a"), take("y2", 2), put("q", "b"), take("y3", 3))
    kinds: tuple[LoopKind, ...] = ("serial", "unroll")
    for kind in kinds:
        inner = loop("k", 0, 3, *body, kind=kind)
        after = compute("z", at("z", 0), [at("t", 0)], Read(0))
        shapes = (
            tensor("a", 3, role="input"), tensor("b", 3, role="input"), tensor("t", 1),
            tensor("y", 3, 4, role="output"), tensor("z", 1, role="output"),
        )  # fmt: skip
        tree = LoopTree("again", shapes, (start, inner, after))
        a, b = integers(3), integers(3, low=1)
        expected = run_loops(tree, {"a": a, "b": b})
        y, z = kernel_of(tree)(a, b)
        np.testing.assert_array_equal(y, expected["y"])
        np.testing.assert_array_equal(z, expected["z"])


# -- planes


def small(machine_bytes: int) -> Machine:
    """This machine with so many bytes of cache for a core, which counts on a quarter for planes."""
    host = host_machine()
    caches = (Memory("l2", machine_bytes, "cache", shared=False), Memory("l1", machine_bytes // 4, "cache"))
    others = tuple(m for m in host.memories if m.kind != "cache")
    return replace(host, memories=(*others, *caches))


PLANE = 4 * 16 * 16
BLOCKS = [  # planes, of those a core keeps, and the planes of a block
    (16, 4, 4), (16, 5, 4), (12, 5, 4), (15, 4, 3), (16, 16, 0), (16, 17, 0), (16, 1, 0), (13, 4, 0), (16, 0, 0)
]  # fmt: skip


@pytest.mark.parametrize(("channels", "kept", "block"), BLOCKS)
def test_blocks_of_planes(channels: int, kept: int, block: int) -> None:
    program, values = sampled(channels, 100, 16)
    machine = small(4 * PLANE * kept + PLANE)
    apart = planes_in_blocks(program, machine)
    assert (apart is program) == (block == 0)
    update = apart.statements[-1]
    if block:
        assert update.iterators[:2] == ("c", "c_b")
        assert update.domain.dim_max_val(1).to_python() == block - 1
        assert planes_in_blocks(apart, machine) == apart
        assert planes_like(program, apart) == apart
    walked = walks_of_planes(apart, update, machine)
    assert set(walked) == ({"c"} if 0 < kept < channels else set())
    kernel = poly.compile(program, target=machine)
    loops = [line.split()[1] for line in str(kernel.loops).splitlines() if line.strip().startswith("for ")]
    if block:
        assert loops[0] == "c"
    expected = run_program(program, values)["y"]
    np.testing.assert_array_equal(kernel(**values), expected)
    np.testing.assert_array_equal(poly.compile(program, schedule=kernel.schedule)(**values), expected)


def test_few_points_reach_few_lines() -> None:
    """Of a plane no more is kept than what all points may touch."""
    program, _ = sampled(16, 2, 64)
    line = host_machine().line
    reached = 2 * 2 * line
    assert walks_of_planes(program, program.statements[-1], small(4 * 16 * reached)) == {}
    assert walks_of_planes(program, program.statements[-1], small(4 * 8 * reached)) == {"c": 8}


@pytest.mark.parametrize(
    "text",
    [
        "y[c,p] += x[c,i[p,c],j[p,c]] * w[p,c]",  # an index depends on the plane
        "y[c,p] += x[i[p,t],j[p,t],c] * w[p,t]",  # no planes, but pieces of rows
    ],
)
def test_no_planes(text: str) -> None:
    shapes = {"x": (16, 16, 16), "i": (100, 16), "j": (100, 16), "w": (100, 16)}
    program = poly.parse(text, dtypes={"x": "f32", "i": "i64", "j": "i64", "w": "f32", "y": "f32"}, **shapes)
    assert planes_in_blocks(program, small(4 * PLANE * 4)) is program


@pytest.mark.parametrize("text", [
    "y[c,p] += (x[c,i[p,t],j[p,t]] if c >= 5 else 0) * w[p,t] where 0 <= c < 16",
    "y[c,p] += x[c,i[p,t],j[p,t]] * (w[p,t] if c >= 5 else 0)",
    "y[c,p] += (x[c-1,i[p,t],j[p,t]] if c >= 1 else 0) * w[p,t] where 0 <= c < 16",
    "y[c,p] += (x[c+1,i[p,t],j[p,t]] if c < 15 else 0) * w[p,t] where 0 <= c < 16",
    SAMPLED + "; z[c,p] = y[c,p] if c >= 9 else 0",
])  # fmt: skip
def test_conditions_on_blocks_of_planes(text: str) -> None:
    """What is asked of c is asked of both loops that it becomes."""
    _, values = sampled(16, 100, 16)
    shapes = {name: value.shape for name, value in values.items()}
    program = poly.parse(text, dtypes={"x": "f32", "i": "i64", "j": "i64", "w": "f32", "y": "f32"}, **shapes)
    machine = small(4 * PLANE * 4 + PLANE)
    assert planes_in_blocks(program, machine) is not program
    kernel = poly.compile(program, target=machine)
    found: Any = kernel(*(values[t.name] for t in kernel.inputs))
    want = run_program(program, values)
    np.testing.assert_array_equal(found, want[kernel.outputs[0].name])


def test_every_subscript_from_memory() -> None:
    """An operand without an iterator of its own, larger than what is counted on of the last cache."""
    shapes = {"i": (64,), "j": (64, 4), "x": (200, 200)}
    program = poly.parse("y[a,b] += x[i[a],j[a,b]]", dtypes={"x": "f32", "i": "i64", "j": "i32"}, **shapes)
    rng = np.random.default_rng(5)
    values = {"x": rng.standard_normal((200, 200)).astype("f4"), "i": rng.integers(0, 200, 64)}
    values["j"] = rng.integers(0, 200, (64, 4)).astype("i4")
    kernel = poly.compile(program, target=small(4096), threads=1)
    found: Any = kernel(*(values[t.name] for t in kernel.inputs))
    np.testing.assert_array_equal(found, values["x"][values["i"][:, None], values["j"]])


@pytest.mark.parametrize("how", [{}, {"pad": True}, {"block": {0: 4}}, {"fold": {0: 4}}])
@pytest.mark.parametrize("wrong", [9, 11, -1])
def test_a_buffer_is_told_by_what_it_holds(how: dict[str, Any], wrong: int) -> None:
    """An index of a copy is one of the tensor that was copied."""
    program = poly.parse("y[i] = x[J[i]]", dtypes={"x": "f32", "J": "i64"}, x=(9,), J=(30,))
    kernel = poly.compile(poly.Schedule(program).promote("x", None, "l1", **how))
    with pytest.raises(IndexRangeError, match=rf"index {wrong} of dimension 0 of x is outside 0 \.\. 8"):
        kernel(np.zeros(9, np.float32), np.full(30, wrong))


def test_an_index_of_a_copy_of_the_policy() -> None:
    program = poly.parse(
        "y[c,q] += (x[c-1,I[q,t]] * w[q,t] if c >= 1 else 0)",
        dtypes={"x": "f32", "I": "i64", "w": "f32"}, x=(64, 30), I=(50, 4), w=(50, 4), y=(65, 50),
    )  # fmt: skip
    index = np.zeros((50, 4), np.int64)
    index[7, 1] = 99
    with pytest.raises(IndexRangeError, match="index 99 of dimension 1 of x is outside"):
        poly.compile(program)(np.zeros((64, 30), np.float32), index, np.zeros((50, 4), np.float32))
