"""Engines: what has no compiled form says why, wherever the engine is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.engine import CompiledGroup, Engine
from poly.engine_build import build_engine
from poly.errors import RunError, UnsupportedError
from poly.explainer import explain
from poly.frontend.notation import parse
from poly.graph import Graph, Node
from poly.machine import Machine
from poly.pointers import address
from poly.program import Program
from tests.onnx_helpers import chain_model, node_model, reference


def refuse(_program: Program, _machine: Machine) -> CompiledGroup:
    raise UnsupportedError("has no compiled form", where="statement S", hint="another one")


def test_the_reason_of_a_fallback_is_kept() -> None:
    program = parse("Y[i] = X[i] + 1", X=(4,))
    node = Node("plus", "Add", ("X",), ("Y",), program.statements)
    engine = build_engine(Graph("g", program.tensors, (node,)), host_machine(), refuse)
    (step,) = engine.steps
    assert step.compiled is None and step.why[-1] == "not compiled: statement S: has no compiled form; try: another one"
    for shown in (str(engine), engine._repr_html_(), str(explain(engine))):
        assert "has no compiled form" in shown
    np.testing.assert_array_equal(engine.run({"X": np.zeros(4, np.float32)})["Y"], np.ones(4, np.float32))


def test_a_profile_counts_operations_and_bytes() -> None:
    program = parse("C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + 1, 0)", A=(8, 16), B=(16, 4))
    engine = poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),)))
    inputs = {"A": np.ones((8, 16), np.float32), "B": np.ones((16, 4), np.float32)}
    found = engine.profile(inputs, runs=2)
    assert [g.operations for g in found.groups] == [2 * 8 * 16 * 4 + 2 * 8 * 4]
    assert [g.bytes for g in found.groups] == [4 * (8 * 16 + 16 * 4 + 8 * 4)]
    assert found.slowest[0].seconds > 0 and found.seconds > 0
    assert "C_update" in str(found) and "C_update" in found._repr_html_()
    with pytest.raises(RunError, match="runs"):
        engine.profile(inputs, runs=0)


def test_a_profile_says_which_groups_run_plainer() -> None:
    program = parse("Y[i] = X[i] + 1", X=(4,))
    engine = poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),)))
    x = {"X": np.zeros(4, np.float32)}
    assert "plainer" not in str(engine.profile(x, runs=1))
    (step,) = engine.steps
    assert step.compiled is not None and isinstance(step.compiled.kernel, Kernel)
    step.compiled.kernel.refused = "memory reg is too small"
    assert "plainer" in (shown := str(engine.profile(x, runs=1))) and "memory reg is too small" in shown


def test_outputs_go_where_they_are_wanted() -> None:
    program = parse("Y[i] = X[i] + 1; Z[i] = X[i] * 2 where 1 <= i < 4", X=(4,))
    engine = poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),)))
    x, y, z = (np.full(4, v, np.float32) for v in (1, 7, 7))
    assert engine.run({"X": x}, out={"Y": y, "Z": z})["Y"] is not None
    np.testing.assert_array_equal(y, [2, 2, 2, 2])
    np.testing.assert_array_equal(z, [0, 2, 2, 2])
    wrong = [{"W": y}, {"Y": y[:3]}, {"Y": y.astype("f8")}, {"Y": x}, {"Y": y, "Z": y}, {"Y": np.zeros(8, "f4")[::2]}]
    for out in (*wrong, [y], y, 5):
        with pytest.raises(RunError, match="out"):
            engine.run({"X": x}, out=out)  # type: ignore[arg-type]


def test_constants_are_no_outputs() -> None:
    program = parse("input x: f32[4]\nconstant w: f32[4]\noutput y: f32[4]\ny[i] = x[i] + w[3-i]")
    w, x = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    graph = Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),), {"w": w})
    engine = poly.compile(graph)
    for array in engine.constants.values():
        with pytest.raises(RunError, match="not writable"):
            engine.run({"x": x}, out={"y": array})
    np.testing.assert_array_equal(engine.run({"x": x})["y"], x + w[::-1])


def _integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


PIECEWISE: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "joined": ("Concat", [_integers(3, 5), _integers(3, 9)], {"axis": 1}),
    "reflected": ("Pad", [_integers(4, 9), np.array([1, 2, 2, 3])], {"mode": "reflect"}),
    "sums so far": ("CumSum", [_integers(9, 5), np.array(0)], {}),
    "scattered": ("ScatterND", [_integers(6, 5), np.array([[4], [1]]), _integers(2, 5)], {}),
    "four phases": ("ConvTranspose", [_integers(1, 2, 4, 4), _integers(2, 3, 4, 4)], {"strides": [2, 2]}),
    "with gaps": ("ConvTranspose", [_integers(1, 2, 4, 4), _integers(2, 3, 1, 1)], {"strides": [2, 2]}),
}


@pytest.mark.parametrize("name", list(PIECEWISE))
def test_outputs_that_groups_fill_together_are_not_cleared(name: str) -> None:
    """Whatever was there before."""
    operator, (first, *rest), attrs = PIECEWISE[name]
    model, arrays = node_model(operator, [first, *rest], constant=range(1, len(rest) + 1), **attrs)
    engine = poly.compile(poly.from_onnx(model))
    assert isinstance(engine, Engine) and engine._whole == {"y0"}  # pyright: ignore[reportPrivateUsage]
    wanted = reference(model, arrays)["y0"]
    out = np.full(wanted.shape, np.nan, np.float32)
    engine.run(arrays, out={"y0": out})
    assert np.array_equal(out, wanted) and np.array_equal(engine.run(arrays)["y0"], wanted)


def test_constants_start_at_lines() -> None:
    """Given ones that are read as they lie, those that are computed of them, and packed ones."""
    random = np.random.default_rng(0)
    weights = [random.random(shape).astype(np.float32) for shape in ((1, 64, 32), (1, 64, 16), (1, 128))]
    model, arrays = node_model("LSTM", [_integers(5, 1, 32), *weights], constant=[1, 2, 3], outputs=3, hidden_size=16)
    engine = poly.compile(poly.from_onnx(model))
    assert isinstance(engine, Engine)
    found = [address(a) for a in engine.constants.values() if a.nbytes >= 64]
    assert len(found) > 2 and not any(at % 64 for at in found)
    wanted = reference(model, arrays)
    assert all(np.abs(array - wanted[name]).max() < 1e-5 for name, array in engine.run(arrays).items())


def test_packed_constants_are_called_after_what_they_are_copies_of() -> None:
    """So that `print(engine)` can be read; a constant that is packed in two ways has two names."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["y", "w"], ["b"])]
    random = np.random.default_rng(0)
    x, y, w = (random.random(shape).astype("f4") for shape in ((64, 96), (3, 96), (96, 160)))
    model, _ = chain_model(nodes, {"x": x, "y": y}, ["a", "b"], constants={"w": w})
    engine = poly.compile(poly.from_onnx(model))
    assert isinstance(engine, Engine)
    assert "w packed" in engine.constants and {*engine.constants} <= {"w", "w packed", "w packed 2"}
    assert "y, w packed" in str(engine)


TWO = """
input A: f32[6,8]
input I: i64[6]
output Y: f32[6,8]
output Z: f32[6,8]
output M: f32[6]
T[i,j] = A[i,j] * 2
Y[i,j] = T[I[i],j] + 1
Z[i,j] = T[i,j] where 1 <= i < 5
M[i] max= T[i,j]
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_in_one_native_call_is_like_one_by_steps(threads: int) -> None:
    """For arrays that fit as they are; others are checked and copied as ever."""
    program = parse(TWO)
    graph = Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),))
    engine = poly.compile(graph, threads=threads)
    a, index = _integers(6, 8), np.array([5, 0, 1, 1, 2, 3])
    wide, shifted = np.zeros((6, 16), np.float32), np.zeros(193, np.uint8)[1:].view(np.float32).reshape(6, 8)
    wide[:, ::2], shifted[...] = a, a
    wanted = engine.run({"A": a, "I": index}, observe=lambda *_: None)
    assert list(wanted) == ["Y", "Z", "M"] and np.array_equal(wanted["Y"], 2 * a[index] + 1)
    for given in (a, np.asfortranarray(a), wide[:, ::2], shifted, a.view(np.ma.MaskedArray), a.tolist()):
        found = engine.run({"I": index, "A": given})
        assert list(found) == list(wanted) and all(np.array_equal(v, wanted[n]) for n, v in found.items())
        assert all(type(v) is np.ndarray and v.flags.owndata and v.flags.writeable for v in found.values())
    first, second = (engine.run({"A": a, "I": index}) for _ in range(2))
    assert not any(np.shares_memory(x, y) for x in first.values() for y in second.values())
    refused: list[dict[str, Any]] = [{"A": a}, {"A": a, "I": index, "X": a}, {"A": a.T, "I": index}, {"A": a, "I": a}]
    for given in refused:
        with pytest.raises(RunError):
            engine.run(given)
    index[3] = 6
    with pytest.raises(RunError, match="6"):
        engine.run({"A": a, "I": index})
    index[3] = 1
    assert all(np.array_equal(v, wanted[n]) for n, v in engine.run({"A": a, "I": index}).items())


def test_results_of_a_native_run_go_to_arrays_that_are_apart() -> None:
    """Whatever was in them; their names in any order."""
    program = parse("Y[i] = X[i] + 1; Z[i] = X[i] * W[i]", X=(8,), W=(8,))
    engine = poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),)))
    memory = np.arange(40, dtype=np.float32)
    x, w, y, z = (memory[k : k + 8] for k in (0, 8, 16, 24))
    wanted = x + 1, x * w
    assert isinstance(engine, Engine) and (direct := engine._direct) is not None  # pyright: ignore[reportPrivateUsage]
    assert direct.run({"X": x, "W": w}, None) is not None and direct.run({"X": x, "W": w[::-1]}, None) is None
    found = engine.run({"X": x, "W": w}, out={"Z": z, "Y": y})
    assert found["Y"] is y and found["Z"] is z and np.array_equal(y, wanted[0]) and np.array_equal(z, wanted[1])
    before = memory.copy()
    overlapping = ({"Y": memory[15:23]}, {"Y": memory[15:23], "Z": z}, {"Y": y, "Z": memory[23:31]}, {"Y": y, "Z": x})
    for out in overlapping:
        with pytest.raises(RunError, match="overlaps"):
            engine.run({"X": x, "W": w}, out=out)
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(RunError, match="not writable"):
        engine.run({"X": x, "W": w}, out={"Y": y, "Z": frozen})
    assert np.array_equal(memory, before)
