"""Plans and code for AVX-512, for ARM and for plain SSE compute what the reference evaluator does; see `other_cpus`."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.dtypes import is_float, numpy_dtype
from poly.interp import run_program
from tests.other_cpus import CPUS, run_here

Shapes = dict[str, tuple[int, ...]]
PROGRAMS: dict[str, tuple[str, Shapes]] = {
    "product": ("C[i,j] += A[i,k]*B[k,j]", {"A": (127, 65), "B": (65, 133)}),
    "product, packed and turned": ("C[i,j] += A[k,i]*B[j,k]", {"A": (150, 70), "B": (161, 150)}),
    "few rows": ("C[i,j] += A[i,k]*B[k,j]", {"A": (5, 300), "B": (300, 200)}),
    "long sum": ("C[i,j] += A[i,k]*B[k,j]", {"A": (17, 3000), "B": (3000, 18)}),
    "many small": ("C[b,i,j] += A[b,i,k]*B[b,k,j]", {"A": (70, 8, 8), "B": (70, 8, 8)}),
    "contraction": ("C[a,b,c,d] += A[a,e,b,f]*B[d,f,c,e]", {"A": (6, 5, 7, 8), "B": (24, 8, 5, 5)}),
    "three factors": ("M[i,r] += T[i,j,k]*B[j,r]*C[k,r]", {"T": (20, 21, 22), "B": (21, 24), "C": (22, 24)}),
    "matrix and vector": ("y[i] += A[i,k]*x[k]", {"A": (133, 517), "x": (517,)}),
    "vector and matrix": ("y[j] += A[k,j]*x[k]", {"A": (133, 517), "x": (133,)}),
    "relu of a product": (
        "C[i,j] += A[i,k]*B[k,j]; D[j,i] = max(C[i,j] + b[j], 0)", {"A": (40, 33), "B": (33, 50), "b": (50,)},
    ),
    "window": ("Y[o,y,x] += X[c,y+r,x+s]*W[o,c,r,s]", {"X": (5, 16, 23), "W": (18, 5, 3, 3), "Y": (18, 14, 21)}),
    "window in steps": (
        "Y[o,y,x] += X[c,2*y+r,2*x+s]*W[o,c,r,s]", {"X": (3, 25, 35), "W": (9, 3, 3, 3), "Y": (9, 12, 17)},
    ),
    "window a plane": ("Y[c,y,x] += X[c,y+r,x+s]*W[c,r,s]", {"X": (7, 16, 16), "W": (7, 3, 3), "Y": (7, 14, 14)}),
    "window of many columns": (
        "Y[c,y,x] += X[c,y+r,x+s]*W[c,r,s]", {"X": (5, 18, 35), "W": (5, 5, 5), "Y": (5, 14, 31)},
    ),
    "window a plane in steps": (
        "Y[c,y,x] += X[c,2*y+r,2*x+s]*W[c,r,s]", {"X": (5, 29, 31), "W": (5, 3, 3), "Y": (5, 14, 15)},
    ),
    "permutation": ("B[j,i] = A[i,j]", {"A": (70, 97)}),
    "permutation past the caches": ("B[j,i] = A[i,j]", {"A": (512, 640)}),
    "reversed axes": ("B[d,c,b,a] = A[a,b,c,d]", {"A": (9, 17, 4, 33)}),
    "softmax": ("m[i] max= x[i,j]; e[i,j] = exp(x[i,j] - m[i]); s[i] += e[i,j]; y[i,j] = e[i,j]/s[i]", {"x": (21, 77)}),
    "normalisation": (
        "m[i] += x[i,j]/77; v[i] += (x[i,j] - m[i])*(x[i,j] - m[i])/77; "
        "y[i,j] = (x[i,j] - m[i])/sqrt(v[i] + 0.001)*g[j]",
        {"x": (21, 77), "g": (77,)},
    ),
    "functions": (
        "y[i] = erf(x[i]) + log(1 + x[i]*x[i]) + tanh(x[i])*sin(3*x[i]) + pow(abs(x[i]) + 0.1, z[i])",
        {"x": (143,), "z": (143,)},
    ),
    "rows and columns": ("r[i] max= x[i,j]; c[j] += x[i,j]", {"x": (61, 85)}),
    "choice": ("y[i,j] = select(x[i,j] > 0, x[i,j], 0.1*x[i,j])", {"x": (13, 37)}),
    "sums of every second": (
        "s[] += x[i,2*j] where 0 <= j < 60; r[i] += x[i,2*j]*v[2*j] where 0 <= j < 60", {"x": (41, 121), "v": (121,)},
    ),
    "sums so far": ("s[i,0] = x[i,0]; s[i,1+j] = s[i,j] + x[i,1+j]", {"x": (9, 41), "s": (9, 41)}),
}  # fmt: skip

# With 64 lanes of a byte two vectors are all that a vector loop may have; a row of up to 16 vectors stays in registers.
NARROW: dict[str, tuple[str, Shapes]] = {
    "columns": ("y[j] += A[i,j]", {"A": (9, 1000)}),
    "columns past the registers": ("y[j] += A[i,j]", {"A": (9, 1100)}),
    "few columns": ("y[j] max= A[i,j]", {"A": (9, 200)}),
    "rows": ("y[i] max= A[i,j]", {"A": (9, 1000)}),
    "rows in steps": ("y[i] += A[i,2*j] where 0 <= j < 150", {"A": (300, 300)}),
    "everything": ("y[] += A[i,j]", {"A": (3, 130)}),
    "elementwise": ("y[i,j] = max(A[i,j], B[j])", {"A": (9, 1000), "B": (1000,)}),
    "function": ("y[i] = pow(A[i], 3)", {"A": (1000,)}),
    "function in rows": ("m[i] max= A[i,j]; y[i,j] = pow(m[i], A[i,j])", {"A": (9, 1000)}),
    "triangle": ("y[j] max= A[i,j] where 0 <= j <= i and 0 <= i < 300", {"A": (300, 300)}),
    "permutation": PROGRAMS["permutation past the caches"],
    "product": ("C[i,j] += A[i,k]*B[k,j]", {"A": (50, 30), "B": (30, 200)}),
    "pool": ("y[h,w] max= A[h+r,w+s] where 0<=r<3 and 0<=s<3 and 0<=h<98 and 0<=w<98", {"A": (100, 100)}),
    "window of lines": (
        "y[h,w,c] max= A[h+r,w+s,c] where 0<=r<3 and 0<=s<3 and 0<=h<10 and 0<=w<10", {"A": (12, 12, 128)},
    ),
    "recurrence down columns": ("y[0,j] = A[0,j]; y[1+i,j] = y[i,j] + A[1+i,j]", {"A": (9, 300), "y": (9, 300)}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


def check(text: str, shapes: Shapes, cpu: str, dtype: str, threads: int = 1) -> None:
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    rng = np.random.default_rng(3)
    arrays = {t.name: rng.uniform(-2, 2, t.extents({})).astype(numpy_dtype(t.dtype)) for t in program.inputs}
    kernel = poly.compile(program, CPUS[cpu], threads=threads)
    assert isinstance(kernel, Kernel) and not kernel.refused and kernel.machine is CPUS[cpu]
    found, wanted = kernel(**arrays), run_program(program, arrays)
    exact = not is_float(program.outputs[0].dtype)
    for array, (name, reference) in zip(found if isinstance(found, tuple) else (found,), wanted.items(), strict=True):
        if exact:
            np.testing.assert_array_equal(array, reference, err_msg=name)
        else:
            tolerance = 1e-11 if dtype == "f64" else 3e-5
            pair = array.astype("f8"), reference.astype("f8")
            np.testing.assert_allclose(*pair, rtol=tolerance, atol=30 * tolerance, err_msg=name)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str, cpu: str) -> None:
    check(*PROGRAMS[name], cpu, "f32")


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("product, packed and turned", "f64"), ("window in steps", "f64"), ("rows and columns", "f64"),
        ("product, packed and turned", "i32"), ("window in steps", "i8"), ("permutation", "i8"), ("permutation", "f64"),
    ],
)  # fmt: skip
def test_other_types(name: str, dtype: str, cpu: str) -> None:
    check(*PROGRAMS[name], cpu, dtype)


@pytest.mark.parametrize("name", ["product", "long sum", "window", "permutation past the caches", "softmax"])
def test_two_threads_with_vectors_of_sixteen(name: str) -> None:
    check(*PROGRAMS[name], "avx512", "f32", threads=2)


def lanes_of(kernel: Kernel) -> set[str]:
    """The program's statements of which a part runs in lanes."""
    schedule = kernel.schedule
    assert schedule is not None
    kinds = {s: {schedule.kind(n) for n in schedule.nests[s.name].names} for s in schedule.program.statements}
    return {s.source_name for s, marks in kinds.items() if "vector" in marks}


@pytest.mark.parametrize("dtype", ["u8", "i8", "bool", "f16", "bf16", "f32"])
@pytest.mark.parametrize("name", NARROW)
def test_types_of_many_lanes(name: str, dtype: str) -> None:
    text, shapes = NARROW[name]
    if dtype == "bool" and ("+=" in text or "pow" in text or "+ A" in text):
        pytest.skip("no sums of truths")
    program = poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)
    rng = np.random.default_rng(3)
    arrays = {t.name: rng.integers(0, 2, t.extents({})).astype(numpy_dtype(t.dtype)) for t in program.inputs}
    kernel = poly.compile(program, CPUS["avx512"])
    assert isinstance(kernel, Kernel) and not kernel.refused
    assert lanes_of(kernel) >= {program.statements[-1].name}, str(kernel.loops)
    found, wanted = kernel(**arrays), run_program(program, arrays)
    for array, (output, reference) in zip(found if isinstance(found, tuple) else (found,), wanted.items(), strict=True):
        np.testing.assert_array_equal(array, reference, err_msg=output)
