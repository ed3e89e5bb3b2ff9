"""Windows on the CPU: which groups are windows, what their schedules hold, and exact results over many shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.codegen import strided
from poly.codegen.function import lower
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.codegen.operators import Ops
from poly.codegen.target import Target
from poly.codegen.text import Writer
from poly.codegen.values import Value
from poly.interp import run_program
from poly.loops import For
from poly.machine import Engine, Machine, Memory
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_padded_copies import MOST_PADDED, padded_copy_pays, with_padded_reads
from poly.scheduling.cpu_program import known_for_cpu
from poly.scheduling.cpu_window import window_of
from poly.scheduling.groups import groups_of
from poly.scheduling.instances import check_instances
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.machines import AVX2
from tests.onnx_helpers import run_graph
from tests.test_codegen import before_a_closed_page

pytestmark = pytest.mark.usefixtures("no_cache")


def graph_of(
    operator: str,
    shape: tuple[int, ...],
    weights: tuple[int, ...] | None = None,
    relu: bool = False,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> tuple[poly.Graph, dict[str, np.ndarray]]:
    """One operator on small integers, with a bias and a clip behind it where asked for; its graph and its inputs."""
    random = np.random.default_rng(sum(shape))
    arrays = {"x": random.integers(-4, 5, shape).astype(np.float32)}
    constants: dict[str, np.ndarray] = {}
    if weights is not None:
        constants["w"] = random.integers(-3, 4, weights).astype(np.float32)
        constants["b"] = random.integers(-3, 4, weights[0]).astype(np.float32)
    nodes = [helper.make_node(operator, ["x", *constants], ["y"], name="window", **attrs)]  # type: ignore[arg-type]
    if relu:
        nodes.append(helper.make_node("Relu", ["y"], ["z"]))
    model = helper.make_model(
        helper.make_graph(
            nodes, "window", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("z" if relu else "y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
    )  # fmt: skip
    model.ir_version = 9
    return poly.from_onnx(onnx.shape_inference.infer_shapes(model)), arrays


CASES = {
    "3x3": ("Conv", (1, 4, 20, 24), (4, 1, 3, 3), {"pads": [1] * 4, "group": 4}),
    "3x3 odd": ("Conv", (2, 3, 13, 19), (3, 1, 3, 3), {"pads": [1] * 4, "group": 3}),
    "3x3 tall": ("Conv", (1, 2, 75, 20), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2}),
    "3x3 wide": ("Conv", (1, 2, 11, 163), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2}),
    "3x3 wide, strided": ("Conv", (1, 2, 9, 301), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2, "strides": [2, 2]}),
    "3x3, tiles of 8 rows": ("Conv", (1, 2, 40, 48), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2}),
    "strided, low tiles": ("Conv", (1, 2, 59, 110), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2, "strides": [2, 2]}),
    "3x3 beyond the cache": ("Conv", (1, 1, 60, 128), (1, 1, 3, 3), {"pads": [1] * 4, "group": 1}),
    "no padding": ("Conv", (1, 3, 18, 18), (3, 1, 3, 3), {"group": 3}),
    "strided": ("Conv", (1, 3, 21, 34), (3, 1, 3, 3), {"pads": [1] * 4, "group": 3, "strides": [2, 2]}),
    "strided, 5x5, small": ("Conv", (1, 3, 28, 28), (3, 1, 5, 5), {"pads": [2] * 4, "group": 3, "strides": [2, 2]}),
    "strided, 5x5": ("Conv", (1, 2, 27, 27), (2, 1, 5, 5), {"pads": [2] * 4, "group": 2, "strides": [2, 2]}),
    "uneven strides": ("Conv", (1, 2, 30, 30), (2, 1, 3, 3), {"pads": [1] * 4, "group": 2, "strides": [3, 1]}),
    "dilated": ("Conv", (1, 2, 20, 20), (2, 1, 3, 3), {"pads": [2] * 4, "group": 2, "dilations": [2, 2]}),
    "7x7": ("Conv", (1, 2, 14, 14), (2, 1, 7, 7), {"pads": [3] * 4, "group": 2}),
    "7x7 wide": ("Conv", (1, 2, 40, 56), (2, 1, 7, 7), {"pads": [3] * 4, "group": 2}),
    "7x7 odd": ("Conv", (2, 2, 29, 43), (2, 1, 7, 7), {"pads": [3] * 4, "group": 2}),
    "9x9": ("Conv", (1, 2, 32, 32), (2, 1, 9, 9), {"pads": [4] * 4, "group": 2}),
    "9x9 strided": ("Conv", (1, 2, 33, 40), (2, 1, 9, 9), {"pads": [4] * 4, "group": 2, "strides": [2, 2]}),
    "11x11 odd": ("Conv", (2, 2, 29, 43), (2, 1, 11, 11), {"pads": [5, 5, 4, 3], "group": 2}),
    "15x15": ("Conv", (1, 2, 20, 56), (2, 1, 15, 15), {"pads": [7] * 4, "group": 2}),
    "21x21": ("Conv", (1, 2, 20, 40), (2, 1, 21, 21), {"pads": [10] * 4, "group": 2}),
    "17x3": ("Conv", (2, 2, 31, 33), (2, 1, 17, 3), {"pads": [8, 1, 7, 0], "group": 2}),
    "31x19 of one plane": ("Conv", (1, 1, 45, 70), (1, 1, 31, 19), {"pads": [15, 9, 15, 9]}),
    "9x25 beside nothing": ("Conv", (1, 2, 17, 90), (2, 1, 9, 25), {"group": 2}),
    "5x5": ("Conv", (1, 3, 28, 28), (3, 1, 5, 5), {"pads": [2] * 4, "group": 3}),
    "5x5 wide": ("Conv", (1, 2, 17, 144), (2, 1, 5, 5), {"pads": [2, 1, 2, 3], "group": 2}),
    "5x5 beside nothing": ("Conv", (1, 3, 12, 23), (3, 1, 5, 5), {"group": 3}),
    "7 wide": ("Conv", (1, 8, 7, 7), (8, 1, 3, 3), {"pads": [1] * 4, "group": 8}),
    "3-d": ("Conv", (1, 2, 6, 9, 17), (2, 1, 3, 3, 3), {"pads": [1] * 6, "group": 2}),
    "largest": ("MaxPool", (1, 3, 20, 22), None, {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    "largest, stride 1": ("MaxPool", (1, 3, 13, 13), None, {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "largest of four": ("MaxPool", (1, 3, 22, 38), None, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "a strip of padding": ("Conv", (1, 4, 2, 1), (4, 1, 3, 2), {"pads": [1, 2, 7, 3], "group": 4}),
    "all padding but one": ("Conv", (1, 1, 1, 1), (1, 1, 3, 2), {"pads": [1, 2, 7, 3], "strides": [4, 3]}),
    "3-d, a strip of padding": (
        "Conv", (1, 8, 1, 3, 17), (4, 2, 1, 3, 5),
        {"strides": [2, 2, 1], "dilations": [2, 1, 3], "pads": [1, 2, 2, 7, 3, 1], "group": 4},
    ),
    "largest, 3-d": (
        "MaxPool", (1, 2, 6, 20, 64), None, {"kernel_shape": [3] * 3, "pads": [1] * 6, "strides": [2] * 3},
    ),
    "largest, 5x5": ("MaxPool", (1, 3, 13, 13), None, {"kernel_shape": [5, 5], "pads": [2] * 4}),
    "largest, 7x7, a copy": ("MaxPool", (1, 1, 40, 100), None, {"kernel_shape": [7, 7], "pads": [3] * 4}),
    "mean": ("AveragePool", (1, 3, 20, 22), None, {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "mean of four": ("AveragePool", (1, 3, 16, 16), None, {"kernel_shape": [2, 2], "strides": [2, 2]}),
}  # fmt: skip


def compiled(program: Program) -> Kernel:
    kernel = poly.compile(program)
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("threads", [1, 2])
def test_results(name: str, threads: int) -> None:
    operator, shape, weights, attrs = CASES[name]
    graph, arrays = graph_of(operator, shape, weights, relu=weights is not None, attrs=attrs)
    found = poly.compile(graph, threads=threads).run(arrays)
    (result,) = found.values()
    np.testing.assert_array_equal(result, next(iter(run_graph(graph, arrays).values())))


def test_a_chain_of_values_takes_a_register_each() -> None:
    """Seven rows of sums, and three values behind them that are used twice: 28 vectors if all were kept by tile."""
    text = (
        "input X: f32[4, 14, 14]\nconstant W: f32[4, 3, 3]\ntemporary T: f32[4, 14, 14]\n"
        "temporary U: f32[4, 14, 14]\ntemporary V: f32[4, 14, 14]\ntemporary Z: f32[4, 14, 14]\n"
        "output Y: f32[4, 14, 14]\n"
        "a[c, y, x]: T[c, y, x] = 0 where EVERY\n"
        "b[c, y, x, r, s]: T[c, y, x] += (X[c, y + r - 1, x + s - 1] if 0 <= y + r - 1 < 14 and 0 <= x + s - 1 < 14 "
        "else 0) * W[c, r, s] where EVERY and 0 <= r < 3 and 0 <= s < 3\n"
        "d[c, y, x]: U[c, y, x] = T[c, y, x] * 0.5 where EVERY\n"
        "e[c, y, x]: V[c, y, x] = max(U[c, y, x], 0) where EVERY\n"
        "f[c, y, x]: Z[c, y, x] = V[c, y, x] + U[c, y, x] where EVERY\n"
        "g[c, y, x]: Y[c, y, x] = V[c, y, x] * Z[c, y, x] + U[c, y, x] where EVERY\n"
    )
    every = "0 <= c < 4 and 0 <= y < 14 and 0 <= x < 14"
    program = parse_program("program chain\n" + text.replace("EVERY", every))
    assert any(window_of(program, g, AVX2) is not None for g in groups_of(program))
    check_capacity(schedule_for_cpu(program, AVX2).lower(), AVX2)
    random = np.random.default_rng(0)
    arrays = {n: random.integers(-3, 4, shape).astype("f4") for n, shape in (("X", (4, 14, 14)), ("W", (4, 3, 3)))}
    found = poly.compile(program, constants={"W": arrays["W"]})(arrays["X"])
    assert np.array_equal(np.asarray(found), run_program(program, arrays)["Y"])


@pytest.mark.parametrize("name", [n for n in CASES if n != "mean"])
def test_is_a_window(name: str) -> None:
    operator, shape, weights, attrs = CASES[name]
    program = graph_of(operator, shape, weights, attrs=attrs)[0].to_program()
    machine = host_machine()
    windows = [window_of(program, g, machine) for g in groups_of(program)]
    assert any(w is not None for w in windows)


@pytest.mark.parametrize(
    "name",
    ["C[i,k] += A[i,j]*B[j,k]", "C[i] += A[i,j]", "C[n,o,h,w] += A[n,c,h+r,w+s]*B[o,c,r,s]"],
)
def test_is_no_window(name: str) -> None:
    shapes = {"A": (16, 8), "B": (8, 16)} if "n,o" not in name else {"A": (1, 4, 12, 12), "B": (4, 4, 3, 3)}
    program = poly.parse(name, A=shapes["A"], B=shapes["B"]) if "B" in name else poly.parse(name, A=shapes["A"])
    assert all(window_of(program, g, host_machine()) is None for g in groups_of(program))


def test_weights_and_sums_stay_in_registers() -> None:
    """Three promotions: what a strip of a strided window reads, the weights, the sums; each row read serves all rows it
    reaches.
    """
    attrs = {"pads": [1] * 4, "group": 8, "strides": [1, 3]}
    graph, _ = graph_of("Conv", (1, 8, 32, 64), (8, 1, 2, 4), attrs=attrs)
    schedule = schedule_for_cpu(graph.to_program(), host_machine())
    spaces = {t.origin: t.space for t in schedule.program.tensors if t.origin}
    assert sorted(spaces.values()) == ["l1", "reg", "reg"]
    assert any(edit.name == "skew" for edit in schedule.log)
    assert str(poly.Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize("width", [128, 144, 163])
def test_padding_beside_a_row_is_in_pieces_of_its_own(width: int) -> None:
    """Nothing is copied, and most vectors of a row are loaded without conditions on their lanes."""
    graph, arrays = graph_of("Conv", (1, 2, 24, width), (2, 1, 3, 3), attrs={"pads": [1] * 4, "group": 2})
    program = graph.to_program()
    schedule = schedule_for_cpu(program, host_machine())
    assert not any(t.space == "l1" for t in schedule.program.tensors)
    plan = next(w for g in groups_of(program) if (w := window_of(program, g, host_machine())))
    assert plan.vector_cuts[0] == 1 and not plan.copied
    np.testing.assert_array_equal(
        next(iter(poly.compile(graph, threads=1).run(arrays).values())), next(iter(run_graph(graph, arrays).values()))
    )


def test_every_second_element_is_picked_where_it_lies() -> None:
    """No copy; the columns of a window share their loads, and only a result gets its lanes in order."""
    attrs = {"pads": [1] * 4, "group": 2, "strides": [2, 2]}
    graph, arrays = graph_of("Conv", (1, 2, 32, 128), (2, 1, 3, 3), attrs=attrs)
    program = graph.to_program()
    plan = next(w for g in groups_of(program) if (w := window_of(program, g, AVX2)))
    assert not plan.copied and plan.step == 2 and plan.vector_cuts[0] == 1
    schedule = schedule_for_cpu(program, AVX2)
    names = {t.name: t.origin or t.name for t in schedule.program.tensors}
    assert "x" not in {origin for name, origin in names.items() if name != origin}
    engine = poly.compile(graph, threads=1)
    np.testing.assert_array_equal(
        next(iter(engine.run(arrays).values())), next(iter(run_graph(graph, arrays).values()))
    )


def test_long_tiles_are_asked_for_ahead() -> None:
    """From beyond a core's own caches, where a tile of rows is half a page or more."""
    attrs = {"pads": [1] * 4, "group": 64}
    for width, strides, wanted in ((224, 2, True), (224, 1, True), (56, 1, False), (56, 2, False)):
        shape = (1, 64, 64, width)
        graph, _ = graph_of("Conv", shape, (64, 1, 3, 3), attrs=attrs | {"strides": [strides, strides]})
        program = graph.to_program()
        plan = next(w for g in groups_of(program) if (w := window_of(program, g, AVX2)))
        assert not plan.copied and plan.asks_ahead == wanted


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
@pytest.mark.parametrize("phase", [0, 1])
def test_lanes_picked_in_blocks_are_arranged(lanes: int, dtype: str, phase: int) -> None:
    """The shuffles of `strided.every_second`, done on numbers: every second element, in order; and sums of such."""
    ops = Ops(Writer("@.c"), Target(fma=True, half=True))
    known: dict[str, np.ndarray] = {"%a": np.arange(lanes), "%b": np.arange(lanes, 2 * lanes)}
    picked = strided.every_second(ops, [Value(dtype, lanes, "%a"), Value(dtype, lanes, "%b")], phase)
    twice = ops.apply("add", [picked, ops.splat(Value(dtype, 0, "%s"), lanes)])
    for line in ops.writer.lines:
        name, _, text = line.strip().partition(" = ")
        vectors = [known[v] for v in re.findall(r"> (%\w+|poison)", text) if v in known]
        if text.startswith("shufflevector"):
            places = re.findall(r"i32 (\d+)", text.rpartition("<")[2])
            every = np.concatenate([*vectors, np.full(lanes, -1)])
            known[name] = every[[int(p) for p in places]] if vectors else np.full(lanes, 10)
        elif "add" in text:
            known[name] = known[re.findall(r"%\w+", text)[0]] + 10
    np.testing.assert_array_equal(known[picked.text], np.arange(phase, 2 * lanes, 2))
    np.testing.assert_array_equal(known[twice.text], np.arange(phase, 2 * lanes, 2) + 10)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("stride", [2, 3, 4])
def test_strided_loads_stay_inside(width: int, stride: int) -> None:
    """Every load lies between the first and the last element, and together they hold all of them."""
    for count in range(1, width + 1):
        offsets = strided.offsets(width, stride, count)
        span = stride * (count - 1) + 1
        if offsets is None:
            assert span < width
            continue
        assert min(offsets) == 0 and max(offsets) + width == span
        assert all(any(o <= stride * i < o + width for o in offsets) for i in range(count))


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bool"])
@pytest.mark.parametrize("size", [5, 53])
def test_strided_reads(stride: int, dtype: str, size: int) -> None:
    program = poly.parse(f"y[i] = x[{stride}*i + 1]", dtypes={"x": dtype}, x=(stride * size,), y=(size,))
    x = np.arange(stride * size) % 7
    x = x.astype({"f32": "f4", "f64": "f8", "i8": "i1", "bool": "?"}[dtype])
    np.testing.assert_array_equal(compiled(program)(x), x[1::stride])


def test_padded_strided_reads() -> None:
    """Lanes outside the tensor are masked, those inside keep their values."""
    program = poly.parse("y[i] = (x[2*i - 3] if 2*i >= 3 and 2*i <= 46 else 9)", x=(44,), y=(26,))
    x = np.arange(44, dtype=np.float32)
    padded = np.concatenate([np.full(3, 9), x, np.full(8, 9)])
    np.testing.assert_array_equal(compiled(program)(x), padded[:52:2])


@pytest.mark.parametrize(("taps", "pays"), [(3, True), (1, False)])
def test_padded_copies_that_are_large_are_made_where_elements_are_used_often(taps: int, pays: bool) -> None:
    """A border makes them many times the tensor: read by nine taps it pays, by one it does not."""
    inside = "4 <= i + k < 8 and 4 <= j + l < 8"
    text = f"Y[i, j] += W[k, l] * (X[i + k - 4, j + l - 4] if {inside} else 0)"
    program = poly.parse(text, W=(taps, taps), X=(4, 4), Y=(12, 12))
    schedule = Schedule(program)
    (s,) = (s for s in program.statements if s.combiner is not None)
    assert padded_copy_pays(schedule, "X", s) == pays
    _, made = with_padded_reads(schedule, [s])
    assert [tensor for tensor, _ in made] == (["X"] if pays else [])
    assert prod(program.tensor["X"].extents({})) * MOST_PADDED < 12 * 12


WIDE = Machine(
    "wide", "cpu",
    (Memory("dram", None, "dram"), Memory("l1", 48 * 1024, "cache"), Memory("reg", 32, "register")),
    (Engine("core", "core", lanes=16),),
)  # fmt: skip
FEW = Memory("reg", 16, "register")
NARROW = Machine("narrow", "cpu", (*WIDE.memories[:2], FEW), (Engine("core", "core", lanes=4),))


@pytest.mark.parametrize("machine", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["3x3", "3x3 wide, strided", "strided, 5x5", "7x7", "largest"])
def test_other_machines(machine: Machine, name: str) -> None:
    """Widths and registers come from the description; what comes out is checked like everything else."""
    operator, shape, weights, attrs = CASES[name]
    program = graph_of(operator, shape, weights, attrs=attrs)[0].to_program()
    schedule = schedule_for_cpu(program, machine)
    vectors = [n for n in schedule.lower().nodes() if isinstance(n, For) and n.kind == "vector"]
    lanes = {n.upper[0].constant - n.lower[0].constant for n in vectors}
    assert machine.lanes(4) / 2 < max(lanes) <= machine.lanes(4)
    check_instances(schedule.lower(), schedule.program)
    check_capacity(schedule.lower(), machine)


@pytest.mark.parametrize("size", [3, 11, 16])
@pytest.mark.parametrize("first", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("step", [1, 2])
def test_lanes_that_lie_in_several_vectors_of_registers(step: int, first: int, size: int) -> None:
    text = f"y[c,i] = x[c,{step}*i] + 10*x[c,{step}*i + 1] + 100*x[c,{step}*i + {first}]"
    schedule = Schedule(poly.parse(text, x=(3, 48), y=(3, size)))
    schedule = schedule.promote("x", "c", host_machine().register_space, name="r")
    schedule = schedule.tile({"ld_r.1": 16}).unroll("ld_r.1.o").vectorise("ld_r.1.p").vectorise("i")
    kernel = poly.compile(schedule)
    assert isinstance(kernel, Kernel) and "extractelement" not in kernel.ir.split("define")[1]
    x = np.arange(3 * 48, dtype=np.float32).reshape(3, 48)
    places = step * np.arange(size)
    np.testing.assert_array_equal(kernel(x), x[:, places] + 10 * x[:, places + 1] + 100 * x[:, places + first])


@pytest.mark.parametrize("name", ["3x3", "3x3 wide", "strided", "largest", "largest, stride 1"])
def test_columns_share_a_row_where_vectors_are_lines(name: str) -> None:
    """A row of what is read is in registers, for all columns, whose vectors are shuffles of those of the row, hardly
    ever single elements; where vectors are shorter each column loads its own.
    """
    operator, shape, weights, attrs = CASES[name]
    program = graph_of(operator, shape, weights, attrs=attrs)[0].to_program()
    wide = lower(schedule_for_cpu(program, WIDE).lower(), WIDE, "entry").ir
    assert wide.count("extractelement") < wide.count("shufflevector")
    for machine in (WIDE, NARROW):
        schedule = schedule_for_cpu(program, machine)
        rows = [t for t in schedule.program.tensors if t.origin == "x" and t.space == "reg"]
        assert bool(rows) == (machine is WIDE)
        taken = [a for s in schedule.program.statements if s.combiner for a in s.reads if a.tensor.startswith("x")]
        assert {a.tensor for a in taken} == ({t.name for t in rows} or {"x"})


@pytest.mark.parametrize("size", [9, 13, 14])
def test_rows_between_padding_are_loaded_whole(size: int) -> None:
    """Where the tensor goes on behind a row no load has a mask; what follows a row touches no other window than its
    own, and a page without access follows the last one.
    """
    attrs = {"pads": [1] * 4, "group": 3}
    graph, arrays = graph_of("Conv", (1, 3, size, size), (3, 1, 3, 3), attrs=attrs)
    wide = lower(schedule_for_cpu(graph.to_program(), WIDE).lower(), WIDE, "entry").ir
    rows = [x for x in wide.splitlines() if "call <16 x float> @llvm.masked.load" in x]
    assert len(rows) == sum(row * size + 16 > size * size for row in range(size))  # of the last plane
    kernel = poly.compile(graph.to_program(), constants=graph.constants)
    with before_a_closed_page(3 * size * size) as memory:
        x = memory.reshape(1, 3, size, size)
        x[...] = arrays["x"]
        x[0, 1, :, 0] = np.nan
        x[0, 2, :, -1] = np.inf
        expected = run_program(graph.to_program(), {"x": x, **graph.constants})
        np.testing.assert_array_equal(kernel(x), expected["y"])


@pytest.mark.parametrize(
    ("size", "taps", "step", "more", "shorter"),
    [
        (14, 3, 1, 0, True),
        (14, 7, 1, 0, True),
        (14, 27, 1, 0, True),  # what is copied: half of all rows are padding
        (20, 9, 1, 0, False),  # a tenth: copies of their own take longer
        (56, 3, 1, 0, False),
        (14, 5, 2, 0, False),
        (14, 3, 1, np.inf, False),
    ],
)
def test_rows_of_padding_are_left_out(size: int, taps: int, step: int, more: float, shorter: bool) -> None:
    attrs = {"pads": [taps // 2] * 4, "group": 2, "strides": [step, step]}
    graph, arrays = graph_of("Conv", (1, 2, size, size), (2, 1, taps, taps), attrs=attrs)
    weights = np.add(np.asarray(graph.constants["w"], np.float32), np.float32(more))
    program, constants = graph.to_program(), {**graph.constants, "w": weights}
    known = known_for_cpu(program, constants, WIDE, 1)
    (before,), (after,) = ([s for s in p.statements if s.combiner] for p in (program, known))
    assert (len(after.reads[0].guard) < len(before.reads[0].guard)) == shorter
    if not shorter:
        return
    (plan,) = (w for g in groups_of(known) if (w := window_of(known, g, WIDE)))
    assert plan.unrolled or plan.cuts  # every tile at an end is a piece of its own
    kernel = poly.compile(program, constants=constants)
    expected = run_program(program, {**arrays, **constants})
    np.testing.assert_array_equal(kernel(arrays["x"]), expected["y"])


@pytest.mark.parametrize(
    ("height", "width", "step", "tile"),
    [(112, 112, 1, 8), (28, 28, 1, 7), (61, 90, 1, 5), (112, 112, 2, 2), (40, 32, 2, 5), (56, 224, 2, 2)],
)
def test_tiles_whose_columns_are_shuffled(height: int, width: int, step: int, tile: int) -> None:
    """Many rows, in even tiles, where a row serves all columns; two where lanes are picked for long bodies."""
    attrs = {"pads": [1] * 4, "group": 2, "strides": [step, step]}
    program = graph_of("Conv", (1, 2, height, width), (2, 1, 3, 3), attrs=attrs)[0].to_program()
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, WIDE)))
    assert plan.shifted and plan.height == tile


@pytest.mark.parametrize(("taps", "height", "tile"), [(7, 40, 8), (7, 33, 7), (7, 38, 8), (5, 26, 7), (3, 34, 5)])
def test_heights_without_a_good_divisor_have_no_low_tiles(taps: int, height: int, tile: int) -> None:
    attrs = {"pads": [taps // 2] * 4, "group": 2}
    program = graph_of("Conv", (1, 2, height, height), (2, 1, taps, taps), attrs=attrs)[0].to_program()
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, WIDE)))
    assert plan.height == tile


@pytest.mark.parametrize(("taps", "strides", "wanted"), [(3, 1, False), (3, 2, True), (5, 2, False)])
def test_rows_that_come_slower_than_they_are_used_are_asked_for(taps: int, strides: int, wanted: bool) -> None:
    """Of 56 columns, whose tiles are short: a line takes 2.3 cycles from the last cache."""
    levels = [Memory("l1", 48 << 10, "cache"), Memory("l2", 1 << 20, "cache")]
    levels.append(Memory("l3", 32 << 20, "cache", bytes_per_cycle=28))
    machine = replace(WIDE, memories=(WIDE.memories[0], *levels, WIDE.memories[-1]))
    attrs = {"pads": [taps // 2] * 4, "group": 96, "strides": [strides, strides]}
    program = graph_of("Conv", (1, 96, 56, 56), (96, 1, taps, taps), attrs=attrs)[0].to_program()
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, machine)))
    assert plan.shifted and plan.asks_ahead == wanted


@pytest.mark.parametrize(
    ("shape", "taps", "afar", "wanted"),
    [
        ((96, 56, 56), 3, 1, True),
        ((96, 56, 56), 3, 0, False),
        ((96, 56, 56), 7, 1, False),  # a column at a time: multiply-adds take longer
        ((32, 56, 56), 3, 1, False),  # the core's own caches hold all
    ],
)
def test_results_in_a_last_cache_as_slow_as_memory_are_asked_for(
    shape: tuple[int, int, int], taps: int, afar: int, wanted: bool
) -> None:
    levels = [Memory("l1", 48 << 10, "cache"), Memory("l2", 2 << 20, "cache"), Memory("l3", 480 << 20, "cache")]
    core = replace(WIDE.engines[0], cost={**WIDE.engines[0].cost, "afar": afar})
    machine = replace(WIDE, memories=(WIDE.memories[0], *levels, WIDE.memories[-1]), engines=(core,))
    attrs = {"pads": [taps // 2] * 4, "group": shape[0]}
    program = graph_of("Conv", (1, *shape), (shape[0], 1, taps, taps), attrs=attrs)[0].to_program()
    schedule = schedule_for_cpu(program, machine)
    (output,) = program.outputs
    stores = [s.name for s in schedule.program.statements if s.write.tensor == output.name and s.combiner is None]
    assert stores and {schedule.marks[schedule.nests[n].names[-1]].ahead is not None for n in stores} == {wanted}


def test_a_copied_window_has_tiles_of_its_own_height() -> None:
    """Its columns are not shuffled, so that low tiles, which have fewer shuffles ahead, would gain nothing."""
    attrs = {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6}
    program = graph_of("MaxPool", (1, 1, 6, 20, 64), attrs=attrs)[0].to_program()
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, WIDE)))
    assert plan.copied and not plan.shifted and plan.height == 5


POOLS = {
    "C[c,i,j] max= A[c,i+p,j+q] where 0<=p<5 and 0<=q<5": True,
    "C[c,i,j] += A[c,i+p,j+q] where 0<=p<5 and 0<=q<5": True,
    "C[c,i,j] += A[c,i+p,j+q]*A[c,i+p,j+q] where 0<=p<3 and 0<=q<3": True,
    "C[c,i,j] min= A[c,2*i+p,2*j+q] where 0<=p<3 and 0<=q<3": True,
    "C[c,i,j] += A[c,2*i+p,2*j+q] where 0<=p<3 and 0<=q<3": False,  # rows share too little
    "C[c,i,j] max= A[c,i+p,j+q] where 0<=p<2 and 0<=q<2": False,
}


@pytest.mark.parametrize("text", list(POOLS))
def test_columns_of_windows_without_weights_are_reduced_before_rows(text: str) -> None:
    """Once for all rows that take them; a NaN is in all windows that have it."""
    program = poly.parse(text, A=(3, 41, 53))
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, WIDE)))
    assert plan.columns_first == POOLS[text] and plan.shifted
    schedule = schedule_for_cpu(program, WIDE)
    check_instances(schedule.lower(), schedule.program)
    check_capacity(schedule.lower(), WIDE)
    assert any(s.partial for s in schedule.program.statements) == plan.columns_first
    a = np.random.default_rng(0).integers(-4, 5, (3, 41, 53)).astype(np.float32)
    a[1, 7::9, 5::11] = np.nan
    assert np.array_equal(compiled(program)(a), run_program(program, {"A": a})["C"], equal_nan=True)
    in_order = replace(program, statements=tuple(replace(s, reorder=False) for s in program.statements))
    assert not any(w.columns_first for g in groups_of(in_order) if (w := window_of(in_order, g, WIDE)))


@pytest.mark.parametrize("name", [
    "5x5", "5x5 wide", "7x7", "7x7 wide", "7x7 odd", "9x9", "11x11 odd", "15x15", "9x25 beside nothing",
    "21x21", "17x3", "31x19 of one plane",
])  # fmt: skip
def test_many_columns_are_done_one_after_the_other(name: str) -> None:
    """With 32 registers; what a tile reads in one is loaded once, and every sum of the tile is next in turn."""
    operator, shape, weights, attrs = CASES[name]
    program = graph_of(operator, shape, weights, attrs=attrs)[0].to_program()
    (plan,) = (w for g in groups_of(program) if (w := window_of(program, g, WIDE)))
    narrow = [w for g in groups_of(program) if (w := window_of(program, g, NARROW))]
    assert plan.by_columns and plan.height > 4 and not plan.kept and not any(w.by_columns for w in narrow)
    assert weights is not None and plan.rolled == (weights[2] * weights[3] > 64)
    assert plan.rows_read == {17: 9, 21: 11, 31: 11}.get(weights[2], 0)
    schedule = schedule_for_cpu(program, WIDE)
    for s in schedule.program.statements:
        if s.combiner is not None:
            columns = next(n for n in schedule.nests[s.name].names if n.startswith("kw"))
            assert schedule.kind(columns) == ("serial" if plan.rolled else "unroll")
            (rows,) = (schedule.program.tensor[a.tensor] for a in s.reads if a.tensor.startswith("x"))
            loops = schedule.nests[s.name].names
            assert rows.space == "reg" and ".p.p" in loops[-2]  # rows of the tile, then lanes
            first = int(rows.shape[2].evaluate({}))
            assert first <= plan.height - 1 + (plan.rows_read or weights[2])
    check_instances(schedule.lower(), schedule.program)
    check_capacity(schedule.lower(), WIDE)


@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "u8"])
def test_other_dtypes(dtype: str) -> None:
    program = poly.parse("y[c,i,j] max= x[c,2*i + r,2*j + q] * k[r,q]", dtypes=dict.fromkeys("xky", dtype),
                         x=(3, 29, 43), k=(3, 3), y=(3, 14, 21))  # fmt: skip
    kind = {"f64": "f8", "f16": "f2", "i32": "i4", "u8": "u1"}[dtype]
    random = np.random.default_rng(0)
    x, k = (random.integers(0, 9, shape).astype(kind) for shape in ((3, 29, 43), (3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(compiled(program)(x, k), (windows * k).max((-1, -2)))
