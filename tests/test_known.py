"""Statements that read only constants are computed when a model is compiled."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.codegen.host import host_machine
from poly.interp import run_program
from poly.program import Program
from poly.scheduling import known
from poly.scheduling.grouping import group_program
from poly.scheduling.known import split_known
from poly.text import parse_program

CODES = """program codes
constant W: i8[6, 8]
constant scale: f32[6]
input X: f32[8]
temporary D: f32[6, 8]
temporary N: f32[6]
temporary E: f32[6, 8]
output Y: f32[6]
a[i, j]: D[i, j] = f32(W[i, j]) * scale[i] where 0 <= i < 6 and 0 <= j < 8
b[i, j]: E[i, j] = D[i, j] * 2 where 0 <= i < 6 and 0 <= j < 8
c[i]: N[i] = X[i] * scale[i] where 0 <= i < 6
d[i]: Y[i] = N[i] where 0 <= i < 6
e[i, j]: Y[i] += E[i, j] * X[j] where 0 <= i < 6 and 0 <= j < 8
"""


def arrays_of(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        t.name: random.integers(-4, 5, t.extents({})).astype("i1" if t.dtype == "i8" else "f4")
        for t in program.tensors if t.role in ("input", "constant")
    }  # fmt: skip


def test_what_reads_only_constants_is_computed_first() -> None:
    program = parse_program(CODES)
    first, rest = split_known(program)
    assert first is not None
    assert [s.name for s in first.statements] == ["a", "b"] and [s.name for s in rest.statements] == ["c", "d", "e"]
    assert [t.name for t in first.outputs] == ["E"]
    assert {t.name for t in rest.with_role("constant")} == {"scale", "E"}
    arrays = arrays_of(program)
    made = run_program(first, {t.name: arrays[t.name] for t in first.with_role("constant")})
    found = run_program(rest, {"X": arrays["X"], "scale": arrays["scale"], **made})
    assert np.array_equal(found["Y"], run_program(program, arrays)["Y"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("temporary D", "output D"),  # callers want it
        ("scale[i] where 0 <= i < 6 and", "X[i] where 0 <= i < 6 and"),  # made of an input
        ("b[i, j]", "a_2[i]: D[i, 0] = X[i] where 0 <= i < 6\nb[i, j]"),  # written again
    ],
)
def test_what_anything_else_touches_is_left(old: str, new: str) -> None:
    program = parse_program(CODES.replace(old, new, 1))
    assert split_known(program) == (None, program)


def test_free_sizes_are_left() -> None:
    text = (
        "program free(n) where n >= 1\nconstant A: f32[n]\ntemporary B: f32[n]\noutput C: f32[n]\n"
        "a[i]: B[i] = A[i] where 0 <= i < n\nb[i]: C[i] = B[i] where 0 <= i < n\n"
    )
    free = parse_program(text)
    assert split_known(free) == (None, free)
    assert split_known(free.bind(n=5))[0] is not None


def test_results_that_take_too_much_stay_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_BYTES", 6 * 8 * 4)
    first, rest = split_known(parse_program(CODES))
    assert first is not None and [s.name for s in first.statements] == ["a"]
    assert [s.name for s in rest.statements] == ["b", "c", "d", "e"]
    monkeypatch.setattr(known, "MOST_BYTES", 100)
    assert split_known(parse_program(CODES))[0] is None


def test_a_result_that_a_later_statement_makes_of_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_BYTES", 100)
    text = (
        "program parts\nconstant A: f32[64]\nconstant B: f32[2]\ninput X: f32[4]\ntemporary U: f32[64]\n"
        "temporary T: f32[4]\noutput Y: f32[4]\na[i]: U[i] = A[i] * 2 where 0 <= i < 64\n"
        "b[i]: T[i] = B[i] where 0 <= i < 2\nc[i]: T[i + 2] = U[i] where 0 <= i < 2\n"
        "d[i]: Y[i] = T[i] + X[i] where 0 <= i < 4\n"
    )
    program = parse_program(text)
    assert split_known(program) == (None, program)


def quantised() -> tuple[poly.Graph, np.ndarray, np.ndarray]:
    """A convolution whose weights are codes and a scale, an input, and the result in f64."""
    random = np.random.default_rng(0)
    codes, scale = random.integers(-9, 10, (8, 4, 3, 3)).astype("i1"), np.float32(0.25)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    arrays = {"codes": codes, "scale": np.asarray(scale), "zero": np.asarray(1, "i1")}
    graph = helper.make_graph(
        nodes, "quantised", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 9, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 9, 9))],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    model.ir_version = 9
    x = random.integers(-4, 5, (1, 4, 9, 9)).astype("f4")
    weights = (codes.astype("f8") - 1) * 0.25
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return poly.from_onnx(model), x, np.einsum("nchwrs,mcrs->nmhw", windows, weights)


def test_weights_kept_as_codes_are_expanded_once() -> None:
    graph, x, expected = quantised()
    assert group_program(graph.to_program(), host_machine()).known is not None
    for _ in range(2):  # compiled, then from the cache
        engine = poly.compile(graph)
        assert not any("dequantize" in s.name for step in engine.steps for s in step.program.statements)
        assert not any(a.dtype == np.int8 for a in engine.constants.values())
        assert np.array_equal(engine.run({"x": x})["y"], expected)
