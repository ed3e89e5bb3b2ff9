"""Functions of one byte by tables: which, with which results, and reads of tables of any length of a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.codegen.host import host_machine
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.byte_tables import with_byte_tables

HOST = host_machine()
CORE = HOST.engines[0]
WITH = replace(HOST, engines=(replace(CORE, features=(*CORE.features, "avx512vbmi")), *HOST.engines[1:]))
WITHOUT = replace(HOST, engines=(replace(CORE, features=("-avx512vbmi",)), *HOST.engines[1:]))

CHAIN = (
    "A[i, j]: a[i, j] = f32(x[i, j])*0.02 where 0 <= i < 80 and 0 <= j < 60\n"
    "B[i, j]: b[i, j] = sigmoid(a[i, j]) where 0 <= i < 80 and 0 <= j < 60\n"
    "C[i, j]: y[i, j] = u8(b[i, j]*256.0) where 0 <= i < 80 and 0 <= j < 60\n"
)
USED = CHAIN + "D[i, j]: z[i, j] = a[i, j] where 0 <= i < 80 and 0 <= j < 60\n"
TURNED = "C[i, j]: y[j, i] = u8(f32(x[i, j])*0.5) where 0 <= i < 80 and 0 <= j < 60\n"
PAIRS = "C[i, j]: y[i, j] = u8(f32(x[i, j])*f32(x[i, 0])) where 0 <= i < 80 and 0 <= j < 60\n"
NARROW = "C[i, j]: y[i, j] = max(x[i, j], 7) where 0 <= i < 80 and 0 <= j < 60\n"
FEW = "C[i, j]: y[i, j] = u8(f32(x[i, j])*0.5) where 0 <= i < 8 and 0 <= j < 60\n"


def program_of(text: str) -> Program:
    tensors = ["input x: u8[80, 60]", "inout y: u8[80, 80]", "temporary a: f32[80, 60]", "temporary b: f32[80, 60]",
               "inout z: f32[80, 60]"]  # fmt: skip
    used = [t for t in tensors if f"{t.split()[1][0]}[" in text]
    return poly.parse(f"program p; {'; '.join(used)}\n{text}")


@pytest.mark.parametrize(("text", "statements"), [
    (CHAIN, ["C_table_of_bytes", "C"]), (TURNED, ["C_table_of_bytes", "C"]), (PAIRS, ["C"]), (NARROW, ["C"]),
    (FEW, ["C"]), (USED, ["A", "B", "C", "D"]),
])  # fmt: skip
def test_what_is_looked_up(text: str, statements: list[str]) -> None:
    """Not what reads two elements, computes with bytes, or is short; a value that others read ends a chain."""
    program = program_of(text)
    found = with_byte_tables(program, WITH)
    assert [s.name for s in found.statements] == statements
    assert with_byte_tables(program, WITHOUT) is program
    assert found is not program or "C_table_of_bytes" not in statements
    x = np.random.default_rng(0).integers(0, 256, (80, 60)).astype("u1")
    arrays = {"x": x, "y": np.zeros((80, 80), "u1"), "z": np.zeros((80, 60), "f4")}
    arrays = {t.name: arrays[t.name] for t in program.tensors if t.name in arrays}
    np.testing.assert_array_equal(run_program(found, arrays)["y"], run_program(program, arrays)["y"])


@pytest.mark.parametrize("count", [1, 3, 16, 63, 64, 65, 200, 5000])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_tables_are_read(count: int, dtype: str) -> None:
    program = poly.parse("y[i] = t[x[i]]", x=(count,), t=(256,), dtypes={"x": "u8", "t": dtype})
    draws = np.random.default_rng(count)
    x, table = draws.integers(0, 256, count).astype("u1"), draws.integers(-128, 128, 256).astype("i1")
    table = table.view("u1") if dtype == "u8" else table
    given = {"x": x, "t": table}
    found = poly.compile(program)(*(given[t.name] for t in program.inputs))
    np.testing.assert_array_equal(np.asarray(found), table[x])


def test_between_codes() -> None:
    """All codes, with the result of a machine that has no such instruction."""
    x = np.tile(np.arange(256, dtype=np.uint8), 40).reshape(4, -1)
    constants = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(0.01), "n": np.int8(-5)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]), helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]), helper.make_node("QuantizeLinear", ["c", "t", "n"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    engine = poly.compile(poly.from_onnx(model))
    assert any("table" in str(step.program) for step in engine.steps) == HOST.looks_up_bytes
    wide = (x.astype("f8") - 120) * 0.03
    swish = np.tanh(wide * np.clip(wide / 6 + 0.5, 0, 1))
    want = np.clip(np.rint(swish / 0.01) - 5, -128, 127)
    assert np.abs(engine.run({"x": x})["y"].astype("f8") - want).max() <= 1
