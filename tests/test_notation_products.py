"""Sums of products of three and more tensors are made in pairs: against numpy's sum over all indices at once."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.frontend.einsum import einsum_program
from tests.onnx_helpers import assert_close, node_model, run_model
from tests.test_onnx import f32
from tests.test_onnx_compiled import compiled

Shapes = dict[str, tuple[int, ...]]
CHAIN: Shapes = {"A": (20, 21), "B": (21, 22), "C": (22, 23)}


def integers(shapes: Shapes, dtype: str = "f4") -> dict[str, np.ndarray]:
    """Small ones, whose sums are exact in any order."""
    random = np.random.default_rng(0)
    return {name: random.integers(-3, 3, shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype,numpy", [("f32", "f4"), ("f64", "f8"), ("i32", "i4"), ("i64", "i8")])
def test_a_chain_of_matrices(dtype: str, numpy: str) -> None:
    values = integers(CHAIN, numpy)
    program = poly.parse("D[i,l] += 2*A[i,j]*B[j,k]*C[k,l]", dtypes=dict.fromkeys(CHAIN, dtype), **CHAIN)
    assert [t.name for t in program.with_role("temporary")] == ["D_part"]
    assert max(len(s.iterators) for s in program.statements) == 3
    np.testing.assert_array_equal(poly.compile(program)(**values), 2 * (values["A"] @ values["B"] @ values["C"]))
    assert str(poly.parse(str(program))) == str(program)


def test_between_other_statements() -> None:
    """Places in the order are counted anew; a loop around statements stays one."""
    shapes: Shapes = {"X": (9,), "G": (9, 6), "H": (6, 7, 6), "K": (6, 8, 6), "L": (6, 9), "Z": (4, 9)}
    text = """
E[a] = X[a]*2
y[a,b,c,d] += G[a,r]*H[r,b,s]*K[s,c,t]*L[t,d]
for n:
    P[n,a]: Q[n + 1, a] = Q[n, a] + E[a] where 0 <= n < 3
    R[n,a]: Q[n + 1, a] = Q[n + 1, a]*Z[n, a] where 0 <= n < 3
W[a,b,c,d] = y[a,b,c,d] + Q[3, a]
"""
    values = integers({**shapes, "Q": (4, 9)})
    program = poly.parse(text, dtypes=None, **shapes, Q=(4, 9))
    assert max(len(s.iterators) for s in program.statements) < 8
    e, q = values["X"] * 2, values["Q"]
    rows = [q[0]]
    for n in range(3):
        rows.append((rows[-1] + e) * values["Z"][n])
    y = np.einsum("ar,rbs,sct,td->abcd", *(values[n] for n in "GHKL"))
    found = poly.compile(program)(**values)
    named = dict(zip((t.name for t in program.outputs), found, strict=True))
    np.testing.assert_array_equal(named["W"], y + rows[3][:, None, None, None])
    np.testing.assert_array_equal(named["Q"], rows)


@pytest.mark.parametrize(
    "text,shapes",
    [
        ("S[i,j,k,l]: D[i,l] += A[i,j]*B[j,k]*C[k,l]", CHAIN),  # labelled: as written
        ("D[i,l] += A[i,j]*B[j,k]*C[k,l] exact", CHAIN),
        ("D[i,l] += A[i,j]*B[j,k]*C[k,l] where j <= k", CHAIN),  # no box
        ("D[i,l] max= A[i,j]*B[j,k]*C[k,l]", CHAIN),
        ("D[i,l] += A[i,j]*B[j,k]*exp(C[k,l])", CHAIN),
        ("v += a[i]*b[i]*c[i]", {"a": (9,), "b": (9,), "c": (9,)}),  # pairs are no less work
    ],
)
def test_what_stays_as_it_is_written(text: str, shapes: Shapes) -> None:
    assert not poly.parse(text, dtypes=None, **shapes).with_role("temporary")


def test_free_sizes_stay_as_they_are_written() -> None:
    assert not poly.parse("D[i,l] += A[i,j]*B[j,k]*C[k,l]", A=("N", 9), B=(9, 9), C=(9, 9)).with_role("temporary")


@pytest.mark.parametrize(
    "text,spec,shapes",
    [
        ("D[i,l] += A[i,j]*B[j,k]*C[k,l]", "ij,jk,kl->il", {"A": (2, 3), "B": (3, 2), "C": (2, 3)}),
        ("M[i,r] += T[i,j,k]*B[j,r]*C[k,r]", "ijk,jr,kr->ir", {"T": (8, 9, 10), "B": (9, 11), "C": (10, 11)}),
        ("D[i,k] += A[i,j]*B[j,k]*s[i,k]", "ij,jk,ik->ik", {"A": (7, 8), "B": (8, 9), "s": (7, 9)}),
        ("v += a[i]*b[j]*c[k]*T[i,j]*U[j,k]", "i,j,k,ij,jk->",
         {"a": (99,), "b": (99,), "c": (99,), "T": (99, 99), "U": (99, 99)}),
    ],
)  # fmt: skip
def test_pairs_are_those_of_einsum(text: str, spec: str, shapes: Shapes) -> None:
    values = integers(shapes)
    program = poly.parse(text, dtypes=None, **shapes)
    other = einsum_program(spec, list(shapes.values()), ["f32"] * len(shapes))
    extents = [sorted(sorted(t.extents(p.binding)) for t in p.with_role("temporary")) for p in (program, other)]
    assert extents[0] == extents[1] and len(extents[0]) == len(shapes) - 2
    np.testing.assert_array_equal(poly.compile(program)(**values), np.einsum(spec, *values.values()))


def test_an_einsum_of_a_model() -> None:
    operands = [f32(20, 21), f32(21, 22), f32(22, 23)]
    model, arrays = node_model("Einsum", operands, equation="ij,jk,kl->il")
    a, b, c = (o.astype(np.float64) for o in operands)
    want = {"y0": (a @ b @ c).astype(np.float32)}
    assert_close(run_model(model, arrays), want, rtol=2e-5)
    assert_close(compiled(model, arrays), want, rtol=2e-5)
    from poly.frontend.onnx_import import from_onnx

    assert max(len(s.iterators) for s in from_onnx(model).to_program().statements) == 3
