"""What is computed when compiling: chosen by data flow alone, and the results do not change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.codegen.kernel import Kernel
from poly.engine import Engine
from poly.graph import Graph, Node
from poly.loops import Compute, LoopTree
from poly.program import Program
from poly.scheduling.constants import split_constants
from poly.scheduling.schedule import Schedule

MACHINE = host_machine()


def program_of(text: str, constants: str = "", **shapes: tuple[int, ...]) -> Program:
    program = poly.parse(text, dtypes=None, **shapes)
    tensors = tuple(replace(t, role="constant") if t.name in constants.split() else t for t in program.tensors)
    return replace(program, tensors=tensors)


def statements(tree: LoopTree | None) -> list[str]:
    return [] if tree is None else [n.statement for n in tree.nodes() if isinstance(n, Compute)]


GEMM = "C[i,k] += A[i,j] * B[j,k]"


@pytest.mark.parametrize("order", [None, (1, 0)])
@pytest.mark.parametrize("block", [None, {1: 8}, {0: 3, 1: 8}])
def test_a_packed_weight_is_packed_once(order: tuple[int, int] | None, block: dict[int, int] | None) -> None:
    program = program_of(GEMM, "B", A=(8, 16), B=(16, 30))
    schedule = Schedule(program).promote("B", None, "l2", order=order, block=block)
    random = np.random.default_rng(0)
    a, b = random.standard_normal((8, 16), "f4"), random.standard_normal((16, 30), "f4")
    kernel = poly.compile(schedule, constants={"B": b})
    assert isinstance(kernel, Kernel)
    assert "ld_B_l2" not in statements(kernel.loops) and list(kernel.constants) == ["B_l2"]
    np.testing.assert_allclose(np.asarray(kernel(a), "f4"), a @ b, rtol=1e-5, atol=1e-5)


def test_blocks_lie_together() -> None:
    program = program_of(GEMM, "B", A=(8, 4), B=(4, 6))
    schedule = Schedule(program).promote("B", None, "l2", order=(1, 0), block={1: 4})
    b = np.arange(24, dtype=np.float32).reshape(4, 6)
    kernel = poly.compile(schedule, constants={"B": b})
    assert isinstance(kernel, Kernel)
    packed = kernel.constants["B_l2"]
    assert "B_l2" in str(poly.explain(kernel)) and "128 B, computed when compiling" in str(poly.explain(kernel))
    assert packed.shape == (2, 4, 4) and packed.ctypes.data % 64 == 0
    np.testing.assert_array_equal(packed[0], b[:, :4])
    np.testing.assert_array_equal(packed[1, :, :2], b[:, 4:])


@pytest.mark.parametrize(
    ("text", "constants", "known"),
    [
        ("T[i] = W[i] * 2; Y[i] = X[i] + T[i]", "W", ["T_set"]),
        ("T[i] = W[i] * 2; U[i] = T[i] + V[i]; Y[i] = X[i] + U[i]", "W V", ["T_set", "U_set"]),
        ("T[i] = X[i] * 2; Y[i] = W[i] + T[i]", "W", []),
        ("T[i] = W[i] * 2; U[i] = T[i] + X[i]; Y[i] = U[i]", "W", ["T_set"]),
        ("Y[i] = W[i] * 2", "W", []),  # an output is written at each call
        ("S[] += W[i]; Y[i] = X[i] * S[]", "W", ["S_init", "S_update"]),
    ],
)
def test_data_flow_decides(text: str, constants: str, known: list[str]) -> None:
    shapes = {n: (12,) for n in ("W", "V", "X") if n in text}
    program = program_of(text, constants, **shapes)
    split = split_constants(Schedule(program).lower(), MACHINE)
    assert statements(split.before) == known
    assert statements(split.after) == [s for s in program.statement if s not in known]
    values = {n: np.arange(12, dtype=np.float32) for n in shapes}
    kernel = poly.compile(Schedule(program), constants={n: values[n] for n in constants.split()})
    loose = program_of(text, "", **shapes)
    expected = poly.compile(Schedule(loose))(*(values[t.name] for t in loose.inputs))
    found = kernel(*(values[t.name] for t in program.inputs))
    np.testing.assert_allclose(np.asarray(found, "f4"), np.asarray(expected, "f4"), rtol=1e-6)


def test_a_tensor_that_is_written_again_after_a_use_stays() -> None:
    base = program_of("T[i] = W[i]; Y[i] = X[i] + T[i]; U[i] = W[i]; Z[i] = X[i] * U[i]", "W", W=(4,), X=(4,))
    again = base.statement["U_set"]
    merged = tuple(
        replace(s, write=replace(s.write, tensor="T")) if s is again
        else replace(s, reads=tuple(replace(r, tensor="T") if r.tensor == "U" else r for r in s.reads))
        for s in base.statements
    )  # fmt: skip
    program = replace(base, statements=merged, tensors=tuple(t for t in base.tensors if t.name != "U"))
    assert split_constants(Schedule(program).lower(), MACHINE).before is None


def test_registers_and_inner_buffers_stay() -> None:
    program = program_of(GEMM, "B", A=(8, 16), B=(16, 32))
    inner = Schedule(program).promote("B", "C_update.i", "l1")
    assert split_constants(inner.lower(), MACHINE).before is None


def engine_of(program: Program, constants: dict[str, np.ndarray]) -> Engine:
    return poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),), constants))


def test_an_engine_shares_code_and_constants() -> None:
    text = "P[i,k] += A[i,j] * B[j,k]; Q[i,k] += P[i,j] * C[j,k]; R[i,k] += Q[i,j] * B[j,k]"
    program = program_of(text, "B C", A=(4, 12), B=(12, 12), C=(12, 12))
    random = np.random.default_rng(0)
    b, c = (random.standard_normal((12, 12), "f4") for _ in range(2))
    engine = engine_of(program, {"B": b, "C": c})
    a = random.standard_normal((4, 12), "f4")
    np.testing.assert_allclose(np.asarray(engine.run({"A": a})["R"], "f4"), a @ b @ c @ b, rtol=1e-4, atol=1e-4)
    assert len(engine.constants) == 2 and not engine.graph.constants


def test_an_engine_computes_constants_when_compiling() -> None:
    program = program_of("T[i] = W[i] * 2; Y[i] = X[i] + T[i]", "W", W=(12,), X=(12,))
    w, x = np.arange(12, dtype=np.float32), np.ones(12, np.float32)
    engine = engine_of(program, {"W": w})
    np.testing.assert_array_equal(engine.run({"X": x})["Y"], x + 2 * w)
