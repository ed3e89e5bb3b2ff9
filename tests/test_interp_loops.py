"""The interpreter of loop trees: hand-written trees against numpy, what it refuses, lowered random programs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from poly.affine import Affine, var
from poly.dtypes import numpy_dtype
from poly.errors import RunError
from poly.expr import COMBINERS, Const, Read
from poly.interp import run_program
from poly.interp_loops import loops_source, run_loops
from poly.loops import Alloc, Compute, External, For, LoopTree, Sync
from poly.program import Access, Layout, Program, Tensor
from poly.program import External as ExternalCall
from poly.scheduling.lowering import lower
from poly.scheduling.schedule import Schedule
from poly.text import parse_loops, parse_program
from tests.strategies import inputs_for, programs


def integers(shape: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 4, shape).astype(numpy_dtype(dtype))


MATMUL = """\
loops matmul(M)
sizes M = 13
input A: f32[M, 8]
input B: f32[8, 16]
output C: f32[M, 16]
for i.o in range(0, M, 4) parallel:
    for j.o in range(0, 16, 8):
        alloc temporary Cr: f32[4, 8] in reg:
            for i.p in range(0, min(4, M - i.o)) unroll:
                for j.p in range(0, 8) vector:
                    zero[i.o + i.p, j.o + j.p]: Cr[i.p, j.p] = 0.0
            for k in range(0, 8):
                for i.p in range(0, min(4, M - i.o)) unroll:
                    for j.p in range(0, 8) vector:
                        upd[i.o + i.p, j.o + j.p, k]: Cr[i.p, j.p] += A[i.o + i.p, k]*B[k, j.o + j.p]
            for i.p in range(0, 4) unroll:
                if i.o + i.p < M:
                    for j.p in range(0, 8) vector:
                        out[i.o + i.p, j.o + j.p]: C[i.o + i.p, j.o + j.p] = Cr[i.p, j.p]
"""


@pytest.mark.parametrize("shuffle", [None, 0, 1])
def test_matmul_in_registers(shuffle: int | None) -> None:
    a, b = integers((13, 8)), integers((8, 16), seed=1)
    assert np.array_equal(run_loops(parse_loops(MATMUL), {"A": a, "B": b}, shuffle=shuffle)["C"], a @ b)


def test_what_is_wrong_in_a_tree_shows() -> None:
    a, b = integers((13, 8)), integers((8, 16), seed=1)
    no_edge = parse_loops(MATMUL.replace("min(4, M - i.o)", "4").replace("if i.o + i.p < M", "if 0 == 0"))
    with pytest.raises(RunError, match=r"statement upd\[13, 0, 0\]: A\[13, 0\] is outside of its shape \[13, 8\]"):
        run_loops(no_edge, {"A": a, "B": b})
    no_zero = parse_loops(MATMUL.replace("= 0.0", "+= 0.0"))
    assert np.isnan(run_loops(no_zero, {"A": a, "B": b})["C"]).all()
    small = parse_loops(MATMUL.replace("f32[4, 8] in reg", "f32[4, 7] in reg"))
    with pytest.raises(RunError, match=r"zero\[0, 7\]: Cr\[0, 7\] is outside"):
        run_loops(small, {"A": a, "B": b})
    lost = parse_loops(MATMUL.replace("M - i.o)", "M - q)", 1))
    with pytest.raises(RunError, match=r"'q'.* neither loops around nor sizes"):
        run_loops(lost, {"A": a, "B": b})
    with pytest.raises(RunError, match="tensor Cr: the shape depends on i.o"):
        run_loops(parse_loops(MATMUL.replace("f32[4, 8] in reg", "f32[i.o, 8] in reg")), {"A": a, "B": b})
    with pytest.raises(RunError, match="tensor B: no array"):
        run_loops(no_edge, {"A": a})
    with pytest.raises(RunError, match="size M is 13 by the sizes given and 12"):
        run_loops(no_edge, {"A": a[:12], "B": b})
    assert "range" in loops_source(no_edge)


RECURRENCE = """\
loops recurrence
inout X: i32[9]
output S: i32[]
init[]: S[] = 0
for i in range(1, 9)KIND:
    S[i]: X[i] = X[i - 1] + X[i]
for i in range(0, 9)KIND:
    T[i]: S[] += X[i]
"""


def test_vector_lanes_read_before_they_write() -> None:
    x = integers((9,), "i32") + np.int32(1)
    serial = run_loops(parse_loops(RECURRENCE.replace("KIND", "")), {"X": x})
    assert np.array_equal(serial["X"], np.cumsum(x)) and serial["S"] == np.cumsum(x).sum()
    vector = run_loops(parse_loops(RECURRENCE.replace("KIND", " vector")), {"X": x})
    assert np.array_equal(vector["X"][1:], x[:-1] + x[1:]) and vector["S"] == vector["X"].sum()


def test_shuffled_parallel_loop_shows_a_dependence() -> None:
    x = integers((9,), "i32") + np.int32(1)
    tree = parse_loops(RECURRENCE.replace("KIND", " parallel"))
    assert np.array_equal(run_loops(tree, {"X": x})["X"], np.cumsum(x))
    assert not np.array_equal(run_loops(tree, {"X": x}, shuffle=3)["X"], np.cumsum(x))


LANES = """\
loops lanes
input X: i32[4, 6]
output Y: i32[4, 6]
for l in range(0, 4) vector:
    alloc temporary P: i32[6]:
        for j in range(l, 6, 2):
            if j >= 2 or l == 0:
                put[l, j]: P[j] = X[l, j]*2
                get[l, j]: Y[l, j] = P[j]
        for m in range(0, 2) vector:
            more[l, m]: Y[l, m] = X[l, m]
"""


def test_control_and_buffers_inside_of_vector_loops() -> None:
    x = integers((4, 6), "i32")
    vector = run_loops(parse_loops(LANES), {"X": x})["Y"]
    serial = run_loops(parse_loops(LANES.replace(" vector", "")), {"X": x})["Y"]
    assert np.array_equal(vector, serial) and np.array_equal(vector[0, 2::2], 2 * x[0, 2::2])


def test_sync_in_a_parallel_loop_lets_all_catch_up() -> None:
    text = """\
loops threads
input X: i32[8]
output Y: i32[8]
temporary Z: i32[8]
for t in range(0, 8) parallel:
    put[t]: Z[t] = X[t]
    sync
    for k in range(0, 1):
        sync "again"
    get[t]: Y[t] = Z[(t + 3) % 8]
"""
    x = integers((8,), "i32")
    for seed in range(4):
        assert np.array_equal(run_loops(parse_loops(text), {"X": x}, shuffle=seed)["Y"], np.roll(x, -3))
    late = parse_loops(text.replace("range(0, 1)", "range(0, t // 7)"))
    with pytest.raises(RunError, match="sync is reached by some"):
        run_loops(late, {"X": x}, shuffle=0)
    without = parse_loops(text[: text.index("    sync")] + text[text.index("    get") :])
    assert any(not np.array_equal(run_loops(without, {"X": x}, shuffle=s)["Y"], np.roll(x, -3)) for s in range(4))
    assert not any(isinstance(n, Sync) for n in without.nodes())


def test_layouts_and_deep_nests() -> None:
    """A blocked layout on every tensor, and a nest deeper than a Python function may have."""
    split = Layout(("i",), (var("i") % 4, var("i") // 4), (Affine.of(4), Affine.of(3)))
    tensors = (
        Tensor("X", (Affine.of(10),), "f32", "input", layout=split),
        Tensor("Y", (Affine.of(10),), "f32", "output", layout=split),
    )
    node: Any = Compute("S", (var("i"),), Access("Y", (var("i"),)), (Access("X", (9 - var("i"),)),), Read(0))
    node = For("i", (Affine(),), (Affine.of(10),), (node,))
    for k in range(30):
        node = For(f"d{k}", (Affine(),), (Affine.of(1),), (node,))
    tree = LoopTree("deep", tensors, (node,))
    x = integers((10,))
    seen: list[tuple[str, tuple[int, ...]]] = []
    got = run_loops(tree, {"X": x}, trace=lambda s, i: seen.append((s, i)))
    assert np.array_equal(got["Y"], x[::-1]) and seen == [("S", (k,)) for k in range(10)]
    small = replace(split, shape=(Affine.of(4), Affine.of(2)))
    bad = replace(tree, tensors=(tensors[0], replace(tensors[1], layout=small)))
    with pytest.raises(RunError, match=r"tensor Y: the layout leaves its storage \[4, 2\]"):
        run_loops(bad, {"X": x})
    buffer = replace(tensors[1], role="temporary", layout=small)
    with pytest.raises(RunError, match=r"statement S\[8\]: storage of Y\[0, 2\] is outside"):
        run_loops(replace(tree, tensors=tensors[:1], body=(Alloc(buffer, (node,)),)), {"X": x})
    folded = replace(split, coordinates=(var("i") % 4, var("i") // 8))
    with pytest.raises(RunError, match="two elements in one place"):
        run_loops(replace(bad, tensors=(replace(tensors[0], layout=folded), tensors[1])), {"X": x})


def test_external_statements_and_scopes() -> None:
    text = "program p\ninput X: f32[5]\noutput Y: f32[5]\nS[i]: Y[i] = X[i] where 0 <= i < 5"
    program = parse_program(text)
    call = ExternalCall("sort", b"", ("X",), ("Y",))
    external = replace(program.statements[0], external=call, name="E")
    program = Program("p", program.tensors, (external,))
    tree = LoopTree("p", program.tensors, (External("E"),))
    x = integers((5,))
    kinds = {"sort": lambda e, arrays: {"Y": np.sort(arrays["X"])}}
    assert np.array_equal(run_loops(tree, {"X": x}, program=program, externals=kinds)["Y"], np.sort(x))
    with pytest.raises(RunError, match="its program is needed"):
        run_loops(tree, {"X": x})
    node = Compute("S", (), Access("Y", (Affine(),)), (), Const(1.0), COMBINERS["+"])
    with pytest.raises(RunError, match="no tensor 'Y' in scope"):
        run_loops(LoopTree("p", (), (node,)), {})


@settings(derandomize=True, max_examples=60, deadline=None)
@given(programs())
def test_lowered_programs_agree(program: Program) -> None:
    inputs: Any = inputs_for(program)
    slow = run_program(program, inputs, vectorised=False)
    fast = run_program(program, inputs, vectorised=True)
    loops = run_loops(lower(Schedule(program)), inputs, program=program)
    for name, array in slow.items():
        assert np.array_equal(array, fast[name], equal_nan=True), name
        assert np.array_equal(array, loops[name], equal_nan=True), name
