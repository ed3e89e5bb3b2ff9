"""Assignments that write one tensor side by side share their outer loops; values are those of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.row_groups import groups_for
from poly.scheduling.side_by_side import is_side_by_side, side_by_side

EDGES = (
    "L[p, i, j]: y[p, i, j] = x[p, i, 0] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 3\n"
    "M[p, i, j]: y[p, i, j + 3] = x[p, i, j] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 50\n"
    "R[p, i, j]: y[p, i, j + 53] = x[p, i, 49] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 2\n"
)
ROWS = (
    "T[p, j]: y[p, 0, j] = x[p, 0, j] where 0 <= p < P and 0 <= j < 50\n"
    "M[p, i, j]: y[p, i + 1, j] = x[p, i, j] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 50\n"
)
READ = (
    "L[p, i, j]: y[p, i, j] = x[p, i, 0] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 3\n"
    "M[p, i, j]: y[p, i, j + 3] = y[p, i, 0] where 0 <= p < P and 0 <= i < 50 and 0 <= j < 52\n"
)


def planes(body: str, count: int) -> Program:
    text = f"program p(P); input x: f32[P, 50, 50]; inout y: f32[P, 51, 55]\n{body}"
    return poly.parse(text).bind(P=count)


@pytest.mark.parametrize(("body", "count", "joined"), [
    (EDGES, 2000, True), (EDGES, 3, False), (ROWS, 2000, False), (READ, 2000, False),
])  # fmt: skip
def test_what_is_joined(body: str, count: int, joined: bool) -> None:
    """Not where all fits a core's caches, where parts are whole rows, and where one reads what another writes."""
    program, machine = planes(body, count), host_machine()
    groups = side_by_side(program, groups_for(program, machine), machine)
    assert [is_side_by_side(g) for g in groups] == ([True] if joined else [False] * len(program.statements))
    if joined:
        assert groups[0].box == ((0, count - 1), (0, 49))


@pytest.mark.parametrize("threads", [1, 2])
def test_values_and_loops(threads: int) -> None:
    program = planes(EDGES, 2000)
    kernel = poly.compile(program, threads=threads)
    assert str(kernel.loops).count("in range(0, 50)") == 1
    small = planes(EDGES, 4)
    x, y = np.random.default_rng(0).standard_normal((2000, 50, 50)).astype("f4"), np.zeros((2000, 51, 55), "f4")
    expected = run_program(small, {"x": x[:4], "y": y[:4].copy()})["y"]
    found = np.asarray(kernel(x, y))
    np.testing.assert_array_equal(found[:4], expected)
    np.testing.assert_array_equal(found[:, :50], np.pad(x, ((0, 0), (0, 0), (3, 2)), mode="edge"))


def test_mirrored_model() -> None:
    import onnx
    from onnx import helper, numpy_helper

    x = np.random.default_rng(1).standard_normal((2, 300, 31, 33)).astype("f4")
    pads = numpy_helper.from_array(np.array([0, 0, 2, 1, 0, 0, 1, 3]), "p")
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "p"], ["y"], mode="reflect")], "g",
        [helper.make_tensor_value_info("x", 1, x.shape)], [onnx.ValueInfoProto(name="y")], [pads],
    )  # fmt: skip
    engine = poly.compile(poly.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])))
    assert len(engine.steps) == 1
    expected = np.pad(x, ((0, 0), (0, 0), (2, 1), (1, 3)), mode="reflect")
    np.testing.assert_array_equal(engine.run({"x": x})["y"], expected)
