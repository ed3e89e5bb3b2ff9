"""Windows reduced along one axis after the other: which, with which results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

import poly
from poly.dtypes import numpy_dtype
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.separated import with_windows_separated

SEPARATED = {
    "C[c,i,j] max= A[c,i+p,j+q] where 0<=p<9 and 0<=q<9": 2,
    "C[c,i,j] += A[c,3*i+p,2*j+q] where 0<=p<9 and 0<=q<10": 2,
    "C[c,i,j] min= A[c,i+2*p,j+2*q] where 0<=p<9 and 0<=q<9": 2,
    "C[i,j] *= A[c,i+p,j+q] where 0<=p<9 and 0<=q<9": 2,  # over all planes, too
    "C[i,j,c] += A[c,i+p,j+q] where 0<=p<5 and 0<=q<5": 2,  # lanes beside the window
    "C[k,i,j] += A[k+r,i+p,j+q] where 0<=p<5 and 0<=q<5 and 0<=r<3": 2,  # then its rows are shared
}
WHOLE = [
    "C[c,i,j] max= A[c,i+p,j+q] where 0<=p<5 and 0<=q<5",  # rows are shared in registers
    "C[i,j,c] += A[c,i+p,j+q] where 0<=p<3 and 0<=q<3",  # too little is spared
    "C[c,i,j] += A[c,9*i+p,9*j+q] where 0<=p<9 and 0<=q<9",  # nothing is shared
    "C[c,i,j] += A[c,i+p,j+q]*B[p,q] where 0<=p<9 and 0<=q<9",
    "C[c,i] += A[c,i+p,i+q] where 0<=p<9 and 0<=q<9",
]


def parsed(text: str, dtype: str = "f32") -> Program:
    shapes = {"A": (4, 30, 33), **({"B": (9, 9)} if "B[" in text else {})}
    return poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64"])
@pytest.mark.parametrize("text", list(SEPARATED))
def test_the_same_results(text: str, dtype: str) -> None:
    program = parsed(text, dtype)
    separated = with_windows_separated(program)
    assert sum(s.combiner is not None for s in separated.statements) == SEPARATED[text]
    a = np.random.default_rng(0).integers(-3, 4, (4, 30, 33))
    a = np.where(a > 0, 1, -1) if "*=" in text else a
    a = a.astype(numpy_dtype(dtype))
    expected = run_program(program, {"A": a})["C"]
    assert np.array_equal(run_program(separated, {"A": a})["C"], expected)
    assert np.array_equal(poly.compile(program, threads=1)(a), expected)


@pytest.mark.parametrize("text", WHOLE)
def test_left_whole(text: str) -> None:
    program = parsed(text)
    assert with_windows_separated(program) is program


def test_ordered_sums_are_left_whole() -> None:
    program = parsed(next(iter(SEPARATED)).replace("max=", "+="))
    assert with_windows_separated(program) is not program
    ordered = replace(program, statements=tuple(replace(s, reorder=False) for s in program.statements))
    assert with_windows_separated(ordered) is ordered


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("size", "kernel", "pads"), [(13, [9, 13], [4, 6, 4, 6]), (20, [3, 25], [0, 12, 2, 12])])
def test_padding(operator: str, size: int, kernel: list[int], pads: list[int]) -> None:
    """Also where rows are padding alone, and with elements that are no numbers."""
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=kernel, pads=pads)
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3, size, size))
    made = helper.make_graph([node], "g", [given], [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    graph = poly.from_onnx(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]))
    program = graph.to_program()
    separated = with_windows_separated(program)
    assert separated is not program
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, size, size)).astype(np.float32)
    x[0, 1, 2, 3] = np.nan
    arrays = {"x": x, **graph.constants}
    expected = run_program(program, arrays)["y"]
    assert np.allclose(run_program(separated, arrays)["y"], expected, rtol=1e-5, equal_nan=True)
    found = poly.compile(program, constants=graph.constants, threads=1)(x)
    assert np.allclose(np.asarray(found), expected, rtol=1e-5, equal_nan=True)
