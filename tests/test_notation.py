"""Einstein notation: what is inferred, what is refused, and that the programs compute what numpy does."""

import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings

from poly.compiler import compile as compile_for
from poly.dtypes import numpy_dtype
from poly.errors import ArgumentError, ParseError, PolyError, RunError, ShapeError
from poly.frontend.notation import parse
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.strategies import Array, inputs_for, programs


def run(p: Program, **sizes: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and results of a bound program, after its text came back the same."""
    assert parse_program(str(p)) == p and parse(str(p)) == p
    p = p.bind(**sizes)
    inputs = inputs_for(p)
    slow, fast = (run_program(p, inputs, vectorised=v) for v in (False, True))
    for name in slow:
        np.testing.assert_array_equal(slow[name], fast[name])
    return inputs, slow


def lines(p: Program) -> list[str]:
    return str(p).splitlines()


def test_linear_relu() -> None:
    p = parse("C[i,k] += A[i,j]*B[j,k]; D[i,k] = max(C[i,k] + b[k], 0)", A=("M", "K"), B=("K", "N"), b=("N",))
    assert [s.name for s in p.statements] == ["C_init", "C_update", "D_set"]
    assert [t.name for t in p.inputs] == ["A", "B", "b"] and [t.name for t in p.outputs] == ["D"]
    assert p.tensor["C"].role == "temporary" and p.parameters == ("M", "K", "N")
    x, y = run(p, M=3, K=4, N=5)
    np.testing.assert_array_equal(y["D"], np.maximum(x["A"] @ x["B"] + x["b"], 0))


def test_strided_convolution_takes_its_range_from_the_window() -> None:
    p = parse("O[y] += X[2*y + r]*W[r]", X=("H",), W=("R",))
    assert str(p.tensor["O"].shape[0]) == "((H - R) // 2) + 1"
    x, y = run(p, H=9, R=4)
    np.testing.assert_array_equal(y["O"], [x["X"][2 * i : 2 * i + 4] @ x["W"] for i in range(3)])
    with pytest.raises(ShapeError):
        p.bind(H=3, R=4)


def test_padding_is_a_guard_and_does_not_bound() -> None:
    text = "O[k,y] += (X[c,y+r-1] if 0 <= y+r-1 < H else 0)*W[k,c,r]"
    p = parse(text, X=("C", "H"), W=("K", "C", 3), O=("K", "H"))
    x, y = run(p, C=2, H=5, K=2)
    padded = np.pad(x["X"], ((0, 0), (1, 1)))
    expected = sum(x["W"][:, :, r] @ padded[:, r : r + 5] for r in range(3))
    np.testing.assert_array_equal(y["O"], expected)
    with pytest.raises(ParseError, match="'y'"):
        parse(text, X=("C", "H"), W=("K", "C", 3))


@pytest.mark.parametrize("where", ["k < i", "0 <= i < N and 0 <= k < i"])
def test_triangular_sum_sets_the_rows_without_terms(where: str) -> None:
    p = parse(f"y[i] += L[i,k]*x[k] where {where}", L=("N", "N"), x=("N",))
    x, y = run(p, N=5)
    np.testing.assert_array_equal(y["y"], np.tril(x["L"], -1) @ x["x"])


@pytest.mark.parametrize(
    ("text", "shapes", "extents", "taken"),
    [
        ("s[i] += x[i,j] where j > i", {"x": (5, 5)}, (5,), lambda i, j: j > i),
        ("s[i] += x[i,j] where j > i and 0 <= i < 5", {"x": (5, 5)}, (5,), lambda i, j: j > i),
        ("s[i] += x[i,j] where j > i", {"x": ("N", "N")}, (7,), lambda i, j: j > i),
        ("s[i] += x[i,j] where j >= i", {"x": (6, 5)}, (6,), lambda i, j: j >= i),
        ("s[i] += x[i,j] where j >= i", {"x": (65, 7)}, (65,), lambda i, j: j >= i),
        ("s[i] += x[i,j] where j >= i", {"x": ("N", 5)}, (7,), lambda i, j: j >= i),
        ("s[i] += x[i,j] where j >= 2*i", {"x": (6, 6)}, (6,), lambda i, j: j >= 2 * i),
        ("s[i] += x[i,j] where j > i and j < 3", {"x": (5, 5)}, (5,), lambda i, j: (j > i) & (j < 3)),
        ("s[i] += x[i,j] where j > i", {"x": (5, 5), "s": (4,)}, (4,), lambda i, j: j > i),
        ("for i:\n  s[i] += x[i,j] where j > i", {"x": (5, 5)}, (5,), lambda i, j: j > i),
        ("s[i] += x[i-2,j] where j > i", {"x": (6, 6)}, (8,), lambda i, j: j > i + 2),
        ("s[i] max= x[i,j] where i+j <= 3", {"x": (6, 5)}, (6,), lambda i, j: i + j <= 3),
        ("s[p] += x[i,j] where p == i//10", {"x": (33, 5)}, (4,), lambda i, j: i >= 0),
    ],
)
def test_a_sum_under_a_condition_is_as_long_as_what_sets_it(
    text: str, shapes: dict[str, Any], extents: tuple[int, ...], taken: Callable[..., Any]
) -> None:
    p = parse(text, **shapes)
    bound = p.bind(N=7) if p.parameters else p
    (tensor,) = (t for t in p.tensors if t.name == "s")
    assert tensor.extents(bound.binding) == extents
    inputs, results = run(p, **bound.binding)
    terms = np.where(taken(*np.indices(inputs["x"].shape)), inputs["x"], -np.inf if "max" in text else 0)
    expected = terms.max(1) if "max" in text else terms.sum(1)
    if "//" in text:
        expected = np.add.reduceat(expected, range(0, 33, 10))
    set_from = 2 if "i-2" in text else 0
    expected = expected[: extents[0] - set_from]
    np.testing.assert_array_equal(results["s"][set_from:], expected)
    np.testing.assert_array_equal(compile_for(p)(inputs["x"])[set_from:], expected.astype("f4"))


@pytest.mark.parametrize(
    ("text", "shapes", "remedy"),
    [
        ("y[k,p,q] += x[c,p+r,q+s]*w[k,c,r,s] where 0<=p<32 and 0<=q<32", {"x": (3, 32, 32), "w": (8, 3, 3, 3)},
         "(x[c, p + r, q + s] if p + r < 32 and q + s < 32 else 0)"),
        ("y[k,p] += x[c,2*p+r]*w[k,c,r] where 0<=p<16", {"x": (3, 32), "w": (8, 3, 3)}, "if 2*p + r < 32 else 0)"),
        ("y[p] += x[p+r]*w[2*r] where 0<=p<30", {"x": (31,), "w": (5,)}, "(x[p + r] if p + r < 31 else 0)"),
        ("y[i] += x[i+r-1]*w[r] where 0 <= i < 100", {"x": (100,), "w": (3,)},
         "where i + r - 1 >= 0, or (x[i + r - 1] if 0 <= i + r - 1 < 100 else 0)"),
        ("y[i] += A[i,k]*x[k] where k <= i", {"A": (10, 10), "x": (8,)}, "(x[k] if k < 8 else 0)"),
        ("y[i] = a[i] + x[i+1]", {"a": (10,), "x": (10,)}, "(x[i + 1] if i + 1 < 10 else 0)"),
    ],
)  # fmt: skip
def test_an_index_that_is_fixed_is_not_narrowed(text: str, shapes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ShapeError, match="accessed out of bounds: S") as caught:
        parse(text, **shapes)
    assert caught.value.hint is not None and remedy in caught.value.hint


@pytest.mark.parametrize("read", [
    "(x[i+r-1] if 0 <= i+r-1 < 9 else 0)", "select(0 <= i+r-1 and i+r-1 < 9, x[i+r-1], 0)",
])  # fmt: skip
def test_a_condition_around_a_read_pads_it(read: str) -> None:
    inputs, results = run(parse(f"y[i] += {read}*w[r] where 0 <= i < 9", x=(9,), w=(3,)))
    np.testing.assert_array_equal(results["y"], np.correlate(np.pad(inputs["x"], 1), inputs["w"]))


@pytest.mark.parametrize("read", [
    "(x[i-3] if not i < 3 else 0)", "(x[i-3] if not (i < 3 or 20 < i) else 0)", "(x[i-3] if not not i >= 3 else 0)",
    "(0 if i < 3 else x[i-3])", "(0 if i < 3 or not i < 20 else x[i-3])", "select(not i < 3, x[i-3], 0)",
    "select(i < 3, 0, x[i-3])",
])  # fmt: skip
def test_a_condition_guards_in_whatever_words(read: str) -> None:
    plain = parse("y[i] = (x[i-3] if i >= 3 and i <= 20 else 0) where 0 <= i < 12", x=(12,))
    program = parse(f"y[i] = {read} where 0 <= i < 12", x=(12,))
    assert str(parse(str(program))) == str(program)
    inputs, results = run(program)
    np.testing.assert_array_equal(results["y"], run_program(plain, inputs)["y"])
    np.testing.assert_array_equal(results["y"], np.pad(inputs["x"], (3, 0))[:12])


@pytest.mark.parametrize("condition", ["i >= 3 or i >= 5", "not (i < 3 and i < 5)", "i < 3"])
def test_a_condition_that_does_not_guard_is_refused(condition: str) -> None:
    with pytest.raises(ShapeError, match="accessed out of bounds: S") as caught:
        parse(f"y[i] = (x[i-3] if {condition} else 0) where 0 <= i < 12", x=(12,))
    hint = str(caught.value.hint)
    assert hint.endswith("(a condition with `or` guards no read)") == (" or " in condition)


@pytest.mark.parametrize(("condition", "a", "b", "shape"), [
    ("k < j", (1, 1), (1, 1), (1, 1)), ("j < k", (3, 1), (1, 1), (3, 1)), ("k > j and j < 3", (2, 1), (1, 4), (2, 3)),
    ("k > j and 1 <= i", (2, 1), (1, 4), (2, 4)),
])  # fmt: skip
def test_a_sum_whose_condition_leaves_no_term_is_0(
    condition: str, a: tuple[int, int], b: tuple[int, int], shape: tuple[int, int]
) -> None:
    program = parse(f"C[i,j] += A[i,k] * B[k,j] where {condition}", A=a, B=b)
    assert str(parse(str(program))) == str(program)
    want = np.zeros(shape, "f4")
    np.testing.assert_array_equal(run_program(program, {"A": np.ones(a, "f4"), "B": np.ones(b, "f4")})["C"], want)
    kernel: Any = compile_for(program)
    np.testing.assert_array_equal(kernel(np.ones(a, "f4"), np.ones(b, "f4")), want)


def test_an_assignment_that_its_condition_leaves_nothing_of_is_refused() -> None:
    with pytest.raises(ShapeError, match="the ranges of the indices are empty"):
        parse("C[i,j] = A[i,j] where j < i", A=(1, 1))


def test_a_condition_leaves_out_terms_where_it_says_so() -> None:
    inputs, results = run(parse("y[i] += x[i+r]*w[r] where 0 <= i < 9 and i + r < 9", x=(9,), w=(3,)))
    np.testing.assert_array_equal(results["y"], np.correlate(np.pad(inputs["x"], (0, 2)), inputs["w"]))
    p = parse("y[p] += x[p+r]*w[r] where 0 <= p < 4", x=("M",), w=("N",))
    inputs, results = run(p, M=6, N=3)
    np.testing.assert_array_equal(results["y"], np.correlate(inputs["x"], inputs["w"]))
    with pytest.raises(ShapeError):
        p.bind(M=5, N=3)


@pytest.mark.parametrize(("text", "want"), [
    ("y[i] = 0; y[i] += A[i,j]", lambda a: a.sum(1)), ("y[i] = -inf; y[i] max= A[i,j]", lambda a: a.max(1)),
    ("y[i] = 2; y[i+1] = A[i,0]", lambda a: [2, *a[:, 0]]), ("y[i] = A[i,0]; y[i] = y[i] + 1", lambda a: a[:, 0] + 1),
    ("z[i] = A[i,0]; y[i] = z[i] + 1; z[i] = 4", lambda a: a[:, 0] + 1),
])  # fmt: skip
def test_what_others_write_of_a_tensor_bounds_what_nothing_else_bounds(text: str, want: Any) -> None:
    inputs, results = run(parse(text, A=(3, 4)))
    np.testing.assert_array_equal(results["y"], want(inputs["A"]))


def test_isl_conditions() -> None:
    p = parse("y[i] += x[i + k] where (i) mod 2 = 0 and exists (q: k = 3q) and 0 <= k <= 6 and 0 <= i < 4", x=("N",))
    x, y = run(p, N=12)
    np.testing.assert_array_equal(y["y"][[0, 2]], [x["x"][i] + x["x"][i + 3] + x["x"][i + 6] for i in (0, 2)])
    assert str(p.tensor["y"].shape[0]) == "3"


def test_time_loop() -> None:
    p = parse(
        """
        program jacobi(T, N) where T >= 0 and N >= 3
        inout A: i64[N]
        B: i64[N]
        for t:
            B[i] = A[i - 1] + A[i + 1] where 0 <= t < T
            A[i] = B[i] where 1 <= i < N - 1 and 0 <= t < T
        """
    )
    assert p.statement["B_set"].path == (0, "t", 0, "i") and p.statement["A_set"].path == (0, "t", 1, "i")
    x, y = run(p, T=3, N=8)
    a = x["A"].copy()
    for _ in range(3):
        a[1:-1] = a[:-2] + a[2:]
    np.testing.assert_array_equal(y["A"], a)


def test_updates_inside_a_loop_start_over_in_each_iteration() -> None:
    p = parse("for t: s[t] += x[t, i]; y[t] = s[t]*2", x=("T", "N"))
    assert [s.path for s in p.statements] == [(0, "t", 0), (0, "t", 1, "i"), (0, "t", 2)]
    x, y = run(p, T=3, N=4)
    np.testing.assert_array_equal(y["y"], x["x"].sum(1) * 2)


def test_scalars_and_index_values() -> None:
    p = parse("m[] max= x[i]; y[i] = (x[i] - m)*f32(i + 1) + alpha*f32(N)", x=("N",), alpha=())
    x, y = run(p, N=5)
    np.testing.assert_array_equal(y["y"], (x["x"] - x["x"].max()) * np.arange(1, 6) + x["alpha"] * 5)


def test_gather_and_histogram() -> None:
    x, y = run(parse("y[i,k] = x[at[i],k]", x=("N", "K"), at=("M",)), N=4, K=3, M=5)
    np.testing.assert_array_equal(y["y"], x["x"][x["at"]])
    x, y = run(parse("h[at[i]] += 1", h=("B",), at=("M",)), B=4, M=6)
    np.testing.assert_array_equal(y["h"], np.bincount(x["at"], minlength=4))


def test_writes_that_are_not_bare() -> None:
    x, y = run(parse("C[i+j] += A[i]*B[j]", A=("N",), B=("M",)), N=4, M=3)
    np.testing.assert_array_equal(y["C"], np.convolve(x["A"], x["B"]))
    x, y = run(parse("C[2*i] += A[i,k]; C[2*i+1] max= A[i,k]", A=("N", "K")), N=3, K=4)
    np.testing.assert_array_equal(y["C"], np.stack([x["A"].sum(1), x["A"].max(1)], 1).ravel())
    x, y = run(parse("Y[n, i//2, i%2] = X[n, i]", X=("N", 8)), N=2)
    np.testing.assert_array_equal(y["Y"], x["X"].reshape(2, 4, 2))
    x, y = run(parse("Y[i] = X[i//2] - X[N - 1 - i//2]", X=("N",)), N=5)
    np.testing.assert_array_equal(y["Y"], np.repeat(x["X"] - x["X"][::-1], 2))


def test_combiners_and_dtypes() -> None:
    p = parse("C[i] and= A[i,j] < 2; D[i] min= A[i,j]; E[i] *= f64(A[i,j]); F[i] or= C[i] and A[i,0] > 0", A=(3, 4))
    assert [p.tensor[t].dtype for t in "CDEF"] == ["bool", "f32", "f64", "bool"]
    x, y = run(p)
    a = x["A"]
    np.testing.assert_array_equal(y["D"], a.min(1))
    np.testing.assert_array_equal(y["E"], a.astype(float).prod(1))
    np.testing.assert_array_equal(y["F"], (a < 2).all(1) & (a[:, 0] > 0))


def test_inout_goes_on_from_what_is_there() -> None:
    p = parse("inout C: f32[N]\nC[i] += A[i,k]", A=("N", 3))
    assert [s.name for s in p.statements] == ["C_update"]
    x, y = run(p, N=4)
    np.testing.assert_array_equal(y["C"], x["C"] + x["A"].sum(1))


def test_sizes_that_must_fit_go_to_the_context() -> None:
    p = parse("C[i] = A[i] where 0 <= i < N", A=("M",), C=("N",))
    with pytest.raises(ShapeError):
        p.bind(M=3, N=4)
    run(p, M=4, N=3)


def test_a_recurrence_goes_over_more_indices() -> None:
    inputs, results = run(parse("inout s: f32[]; s = 2*s + A[i]", A=(3,)))
    np.testing.assert_array_equal(results["s"], 8 * inputs["s"] + inputs["A"] @ np.array([4, 2, 1], "f4"))


@pytest.mark.parametrize(
    ("text", "last"),
    [("S[i, j]: C[i] = A[i,j]", 3), ("C[i] = A[i,j] where j = 2", 2), ("for j:\n  C[i] = A[i,j]", 3)],
)
def test_an_assignment_over_more_indices_where_it_is_meant(text: str, last: int) -> None:
    inputs, results = run(parse(text, A=(3, 4)))
    np.testing.assert_array_equal(results["C"], inputs["A"][:, last])


@settings(derandomize=True, max_examples=40, deadline=None)
@given(programs())
def test_complete_text_is_read_as_it_stands(p: Program) -> None:
    assert parse(str(p)) == p


@pytest.mark.parametrize(
    ("text", "shapes", "kind", "words"),
    [
        ("C[i] += A[i+j]", {"A": ("N",)}, ParseError, "'i'"),
        ("C[i] = A[i]*alpha", {"A": (3,)}, ParseError, "'alpha'"),
        ("C[i] = A[i] + B[i]", {"A": ("N",), "B": ("M",)}, ShapeError, "A .*N.* B .*M"),
        ("C[i,k] += A[i,j]*B[j,k]", {"A": (3, 4), "B": (5, 6)}, ShapeError, "'j'.* A .*4.* B .*5"),
        ("C[i] = A[i,j]", {"A": (3,)}, ShapeError, "rank 1"),
        ("C[i] = A[i,j]", {"A": (3, 4)}, ParseError, r"j only on the right.* last value(?s:.*)\+=.*S\[i, j\]:"),
        ("s = A[i,j]", {"A": (3, 4)}, ParseError, "i, j only on the right"),
        ("C[i] = A[i,j] where 1 <= j < N", {"A": (3, "N")}, ParseError, "j only on the right"),
        ("C[i] = A[i] + Q[i]", {"A": (3,)}, ParseError, "shape of Q"),
        ("A[i] = A[i-1]+x[i]", {"x": ("N",)}, ShapeError, "out of bounds"),
        ("C[i] = A[i] where 0 <= i <= N", {"A": ("N",)}, ShapeError, "out of bounds"),
        ("C[i] = A[i+1]", {"A": (20,)}, ShapeError, r"out of bounds.*try: \.\.\. where i >= 0"),
        ("C[i] = A[i-2] where 0 <= i < 4", {"A": (20,)}, ShapeError, r"where i - 2 >= 0"),
        ("C[i,j] += A[i,k]*B[k,j]", {"A": ("N", "k"), "B": ("k", 3)}, ShapeError, "k is a size here"),
        ("C[i] += X[i + r]*W[r]", {"X": (3,), "W": (5,)}, ShapeError, "empty"),
        ("C[i] = b[i]; C[i] += A[i,k]", {"A": ("N", 3), "b": ("N",)}, ParseError,
         r"lost\n  try: `inout C: f32\[N\]` in front"),
        ("C[i] = A[i]*2; C[i] += 1", {"A": (3,)}, ParseError, r"lost\n  try: C\[i\] = C\[i\] \+ \.\.\., `inout C"),
        ("C[i] = 1; C[i] += A[i]", {"A": (3,)}, ParseError, "lost"),
        ("C[i] = i32(A[i]); D[i] = (C[i+1] if i < 2 else 0.5) where 0 <= i < 3", {"A": (3,)}, ShapeError,
         "0.5 is no i32"),
        ("C[i] = A[i]", {"A": (3,), "Q": (3,)}, PolyError, "'Q'"),
        ("C[i] = A[i]", {"A": (-3,)}, ShapeError, "negative"),
        ("C[i] = A[i]", {"A": ("mod",)}, ParseError, "mod"),
        ("C[i] = A[i]", {"A": 3.0}, ShapeError, "tuple"),
        ("C[mod] = A[mod]", {"A": (3,)}, ParseError, "'mod'"),
        ("C[i] = A[i*i]", {"A": (3,)}, ParseError, "affine"),
        ("C[i] = A[i] where i < q", {"A": (3,)}, ParseError, "'q'"),
        ("C[i] /= A[i]", {"A": (3,)}, ParseError, "combiner"),
        ("C[i] = fxp(A[i])", {"A": (3,)}, ParseError, "exp"),
        ("C[i] = A[i] + i", {"A": (3,)}, ShapeError, "cast"),
        ("C[i] = A[i]", {}, ParseError, "shape of A"),
        ("A: f32[3]\nA: f32[3]\nC[i] = A[i]", {}, ParseError, "twice"),
        ("A: f32[3]\nC[i] = A[i]", {"A": (4,)}, ShapeError, "declared"),
        ("temporary C: f32[3]\nC[i] = A[i]", {"A": (3,)}, ParseError, "none is an output"),
        ("C[jé] = A[jé]", {"A": (3,)}, ParseError, "jé"),
        ("", {}, ParseError, "no statement"),
        ("C[i]", {}, ParseError, "TARGET"),
    ],
)
def test_refusals(text: str, shapes: dict[str, Any], kind: type[PolyError], words: str) -> None:
    with pytest.raises(kind, match=f"(?s){words}"):
        parse(text, **shapes)


def test_errors_show_the_place() -> None:
    with pytest.raises(ParseError) as caught:
        parse("D[i] = A[i]\nC[i] = A[i] + foo(A[i])", A=(3,))
    assert (caught.value.line, caught.value.column) == (2, 14)
    assert "\n  line 2: C[i] = A[i] + foo(A[i])\n                        ^" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("S[i, j] = Q[i, j] if j <= i else -1e9", "{ S_set[i, j] : 0 <= i <= 5 and 0 <= j <= 5 }"),
        ("S[i] max= Q[i, j] if j <= i else -1e9", "{ S_update[i, j] : 0 <= i <= 5 and 0 <= j <= 5 }"),
    ],
)
def test_an_index_of_guarded_reads_only_runs_over_their_tensor(text: str, domain: str) -> None:
    program = parse(text, Q=(6, 6))
    assert program.statements[-1].domain == isl.Set(domain)


def test_a_guarded_read_does_not_narrow_a_known_range() -> None:
    program = parse("Y[i] = X[i] + (Q[i] if i < 3 else 0)", X=(6,), Q=(3,))
    assert program.tensor["Y"].extents({}) == (6,)


@pytest.mark.parametrize("dtype", ["f64", "float64", "f8", "<f8", "=f8", np.float64, np.dtype("f8"), float])
def test_dtypes_by_our_names_and_numpys(dtype: Any) -> None:
    assert parse("y[i] = x[i]", x=(3,), dtypes={"x": dtype}).tensor["y"].dtype == "f64"
    for_all = parse("y[i] = x[at[i]] + z[i]; z: f64[3]; u[i] = 0 + w[i]", x=(5,), at=(3,), w=(2,), dtypes=dtype)
    assert [for_all.tensor[name].dtype for name in ("x", "at", "u")] == ["f64", "i64", "f64"]


@pytest.mark.parametrize("dtype", ["f31", "", object, 3.5, None])
def test_dtypes_that_are_none(dtype: Any) -> None:
    with pytest.raises(PolyError, match="tensor x: .*\n  try: one of bf16, bool"):
        parse("y[i] = x[i]", x=(3,), dtypes={"x": dtype})


@pytest.mark.parametrize(("dtype", "ours"), [
    ("f4", "f32"), ("<f4", "f32"), ("f2", "f16"), ("i8", "i8"), ("<i8", "i64"), ("u8", "u8"), ("<u2", "u16"),
])  # fmt: skip
def test_numpys_dtypes_with_bytes(dtype: str, ours: str) -> None:
    assert parse("y[i] = x[i]", x=(3,), dtypes=dtype).tensor["y"].dtype == ours


@pytest.mark.parametrize(("dtype", "ours"), [("i4", "i32"), (">f4", "f32"), ("d", "f64"), ("int", "i64")])
def test_dtypes_that_numpy_alone_has_are_named_in_the_hint(dtype: str, ours: str) -> None:
    with pytest.raises(ArgumentError, match=f"unknown dtype '{dtype}'\n  try: '{ours}'$"):
        parse("y[i] = x[i]", x=(3,), dtypes=dtype)


@pytest.mark.parametrize(("text", "expected"), [
    ("y[i] = x[(i+1)%7]", [2, 3, 4, 5, 6, 7, 1]), ("y[i] = x[(i-2)%7] - x[(3-i)%7]", [2, 4, -1, 1, -4, -2, 0]),
    ("y[k] += x[i]*x[(k-i)%7]", [105, 119, 126, 126, 119, 105, 84]),
])  # fmt: skip
def test_indices_go_around_once(text: str, expected: Sequence[int]) -> None:
    x = np.arange(1, 8, dtype="f4")
    assert np.asarray(run_program(parse(text, x=(7,)), {"x": x})["y"]).tolist() == expected


@pytest.mark.parametrize(("text", "last"), [
    ("s[i] = (s[i-1] if i >= 1 else 0) + x[i]", 28), ("s[i] = (s[i-1] + x[i] if i >= 1 else x[i])", 28),
    ("s[i] = (2*s[i-1] if i >= 1 else 0) + f64(x[i])", 247),
    ("t[i] = (t[i-1] if i >= 1 else 1)*x[i]; s[i] = t[i]", 5040),
])  # fmt: skip
def test_scans_need_no_shape(text: str, last: float) -> None:
    program = parse(text, x=(7,))
    assert [t.name for t in program.inputs] == ["x"]
    found: Any = compile_for(program)(np.arange(1, 8, dtype="f4"))
    assert found[6] == last and found.dtype == ("f8" if "f64" in text else "f4")
    assert [t.name for t in parse(text, x=(7,), s=(7,)).inputs] == (["s", "x"] if text[0] == "s" else ["x"])


@pytest.mark.parametrize("text", ["s[i] = s[i]*x[i]", "s = s*x[i]"])
def test_scans_of_what_is_not_written_yet(text: str) -> None:
    with pytest.raises(ParseError, match=r"not written by then(.*\n)*  try: s=\((7,)?\) as an argument"):
        parse(text, x=(7,))


@pytest.mark.parametrize(("text", "turned", "x"), [
    ("s[i] = (s[i+1] if i < 6 else 0) + x[i]", "s[6-i] = (s[6-i+1] if 6-i < 6 else 0) + x[6-i]", (7,)),
    ("s[i] = 2*(s[i+2] if 2*i < 10 else 1) + x[i]", "s[6-i] = 2*(s[6-i+2] if 2*(6-i) < 10 else 1) + x[6-i]", (7,)),
    ("s[i,j] = (s[i,j+1] if j < 4 else 0) + x[i,j]", "s[i,4-j] = (s[i,4-j+1] if 4-j < 4 else 0) + x[i,4-j]", (3, 5)),
])  # fmt: skip
def test_scans_from_the_end_are_turned_around(text: str, turned: str, x: tuple[int, ...]) -> None:
    with pytest.raises(ParseError, match=f": indices run upwards(.*\n)*  try: {re.escape(turned)}, the last first"):
        parse(text, x=x)
    a: Array = np.arange(1, 1 + int(np.prod(x)), dtype="f4").reshape(x)
    padded = np.concatenate([np.zeros_like(a), np.full_like(a, "2*(" in text)], -1)
    for k in reversed(range(x[-1])):
        later = 2 * padded[..., k + 2] if "2*(" in text else padded[..., k + 1] * (k + 1 < x[-1])
        padded[..., k] = later + a[..., k]
    np.testing.assert_array_equal(run_program(parse(turned, x=x), {"x": a})["s"], padded[..., : x[-1]])


@pytest.mark.parametrize(("text", "hint"), [
    ("m[i] max= X[i,j]; a[i]:i64 min= (j if X[i,j] == m[i] else 70)", "a[i] min= i64(j if X[i,j] == m[i] else 70)"),
    ("a[i]:i64 = X[i,0]", "a[i] = i64(X[i,0])"),
    ("a: i64[i] = (X[i,0]) + (X[i,1])", "a[i] = i64((X[i,0]) + (X[i,1]))"),
])  # fmt: skip
def test_a_dtype_at_a_target(text: str, hint: str) -> None:
    with pytest.raises(ParseError, match=f"try: {re.escape(hint)}$"):
        parse(text, X=(3, 4))


@pytest.mark.parametrize("read", ["x[max(i-1,0)]", "x[abs(i-1)]"])
def test_subscripts_that_choose_bound_no_index(read: str) -> None:
    with pytest.raises(ParseError, match=re.escape(f"'i' is not determined: {read} chooses where it reads")):
        parse(f"y[i] = {read}", x=(12,))
    assert parse(f"y[i] = {read} where 0 <= i < 12", x=(12,)).tensors[0].shape[0].constant == 12


def test_an_extent_that_no_size_gives() -> None:
    kernel = compile_for(parse("y[i] = x[i]", x=("2*N",)))
    with pytest.raises(RunError, match=r"an extent of 19 is 2\*N for no whole number N"):
        kernel(np.zeros(19, "f4"))


def test_a_name_that_is_no_index_is_told_where_sizes_stand() -> None:
    with pytest.raises(ParseError, match=r'one of i; a size b stands in a shape: x=\("b",\)'):
        parse("s[i] += x[i] where b < 10", x=(20,))


def test_a_name_that_only_a_condition_has_is_no_index_beside_others_that_it_lacks() -> None:
    with pytest.raises(ParseError, match="J"):  # a slip for j: the sum would be four times as large
        parse("c[i] += A[i,j] where 0 <= J < 4", A=(3, 4))


def test_functions_that_double_their_argument_end() -> None:
    with pytest.raises(ParseError, match="2048 operations written out"):
        parse("y[i] = " + "square(" * 30 + "x[i]" + ")" * 30, x=(4,))


@pytest.mark.parametrize(("text", "value"), [
    ("c += 1 where 0 <= i < 10", 10), ("c += 1 where 0 <= i < 8 and 0 <= j <= i", 36),
    ("c[j] += 1 where 0 <= i < 10 and 0 <= j < 2", [10, 10]), ("c[j] += 1 where 0 <= i <= j < 3", [1, 2, 3]),
    ("c += x[i] where 0 <= r < 3 and 0 <= i < 4", 30),
    ("for j:\n  c[j] += x[i] where 0 <= r <= j < 2 and i < 4 and i >= 0", [10, 20]),
    ("c *= 2 where 0 <= i < 9 and i % 3 == 0", 8), ("c -= 1 where exists (e: 0 <= i < 10 and i = 2e)", -5),
])  # fmt: skip
def test_updates_are_done_for_indices_that_only_the_condition_has(text: str, value: int | list[int]) -> None:
    x: Any = {"x": (4,)} if "x[" in text else {}
    found = run_program(parse(text, **x), {"x": np.array([1, 2, 3, 4], "f4")} if x else {})["c"]
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    "text", ["c += 1 where 0 <= i < 5 and i < r", "c += 1 where 0 <= i < r", "c = 1 where 0 <= r < 5"]
)
def test_a_name_that_a_condition_leaves_open_is_no_index(text: str) -> None:
    with pytest.raises(ParseError, match="unknown name '[ir]'"):
        parse(text)


@pytest.mark.parametrize(("literal", "value"), [
    ("u8(-1.5)", 0), ("i32(2.7)", 2), ("i32(3e9)", 2**31 - 1), ("u8(300)", 44), ("i8(-1)", -1), ("i8(nan)", 0),
    ("u8(inf)", 255), ("bool(2)", 1), ("u64(1e30)", 2**64), ("i64(9)", 9), ("u8(255)", 255),
])  # fmt: skip
def test_literals_of_a_dtype_are_converted_as_values_are(literal: str, value: int) -> None:
    program = parse(f"y[i] = f64({literal}) + x[i]", dtypes={"x": "f64"}, x=(5,))
    assert str(parse_program(str(program))) == str(program)
    x = np.zeros(5)
    kernel: Any = compile_for(program)
    for found in (run_program(program, {"x": x})["y"], kernel(x)):
        np.testing.assert_array_equal(found, np.full(5, value))


@pytest.mark.parametrize(("literals", "value"), [
    ("2**-1", 0.5), ("2**-(1+1)", 0.25), ("-(2**-1)", -0.5), ("3**21", 3**21), ("7//2", 3), ("7/2", 3.5), ("1//3", 0),
    ("2**-1 > 0", 1), ("2**40", 2**40), ("i32(2.7)", 2), ("i32(3*2**-1)", 1),
])  # fmt: skip
def test_literals_mean_the_same_everywhere(literals: str, value: float) -> None:
    """On an accelerator they were of the dtype that they are cast to; a power of a negative exponent was 0."""
    program, x = parse(f"y[i] = f32({literals}) * x[i]", x=(4,)), np.ones(4, np.float32)
    kernels: Any = (compile_for(program), compile_for(program, "g16"))
    found = [k(x) for k in kernels] + [run_program(program, {"x": x}, vectorised=v)["y"] for v in (False, True)]
    for y in found:
        np.testing.assert_array_equal(y, np.full(4, value, np.float32))


@pytest.mark.parametrize("target", ["cpu", "s16"])
@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 4), (0, 0, 0)])
def test_extents_may_be_0(m: int, k: int, n: int, target: str) -> None:
    program = parse("C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + b[k], 0); g[i] max= D[i,k]",
                    A=(m, k), B=(k, n), b=(n,))  # fmt: skip
    assert str(parse(str(program))) == str(program)
    a, b, bias = np.ones((m, k), "f4"), np.ones((k, n), "f4"), np.arange(n, dtype="f4") - 1
    want = np.max(np.maximum(a @ b + bias, 0), axis=1, initial=-np.inf)
    kernel: Any = compile_for(program, target)
    for found in (run_program(program, {"A": a, "B": b, "b": bias})["g"], kernel(a, b, bias)):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("text", "want"), [
    ("y[p] += x[i] where p == i//10", lambda x: x.reshape(4, 10).sum(1)),
    ("y[p,q] = x[i] where i == 10*p + q and 0 <= q < 10", lambda x: x.reshape(4, 10)),
    ("y[p] = x[i] where i == 2*p", lambda x: x[::2]), ("y[p] = x[i] where p + i == 39", lambda x: x[::-1]),
    ("y[p] += x[i] where 0 <= p <= i", lambda x: x[::-1].cumsum()[::-1]),
])  # fmt: skip
def test_a_condition_gives_an_index_its_range(text: str, want: Any) -> None:
    x = np.arange(40, dtype="f4")
    program = parse(text, x=(40,))
    kernel: Any = compile_for(program)
    for found in (kernel(x), run_program(program, {"x": x})["y"]):
        np.testing.assert_array_equal(found, want(x))
    with pytest.raises(ParseError, match="does not bound it at both ends"):
        parse("y[p] += x[i] where p <= i", x=(40,))


def test_windows_that_fit_nowhere_are_refused() -> None:
    for x, w in ((3, 5), (4, 5), (0, 5)):
        with pytest.raises(ShapeError, match="the ranges of the indices are empty|would have no elements"):
            parse("y[i] += x[i+r] * w[r]", x=(x,), w=(w,))
    assert parse("y[i] += x[i+r] * w[r]", x=(5,), w=(0,)).tensor["y"].extents({}) == (6,)


@pytest.mark.parametrize(("body", "value"), [
    ("f64(x[i]) / 2", lambda x: x / 2), ("f32(x[i]) / 2", lambda x: (x / 2).astype("f4")),
    ("trunc_div(x[i], 2)", lambda x: np.trunc(x / 2).astype("i4")), ("trunc_div(x[i], 0)", lambda x: 0 * x),
    ("i64(x[i]) + i % 3", lambda x: x.astype("i8") + np.arange(7) % 3),
    ("i64(x[i]) + (2*i + 1) // 3", lambda x: x.astype("i8") + (2 * np.arange(7) + 1) // 3),
    ("bit_and(x[i], 6)", lambda x: x & 6), ("x[i] // 3", lambda x: x // 3), ("x[i] % -3", lambda x: x % -3),
    ("x[i] // -4 % 2", lambda x: x // -4 % 2), ("x[i] % i32(i - 3)", lambda x: x % (np.arange(7, dtype="i4") - 3)),
    ("x[i] // 0", lambda x: 0 * x), ("f32(x[i]) // 0.3", lambda x: x.astype("f4") // np.float32(0.3)),
    ("f32(x[i]) % -0.3", lambda x: x.astype("f4") % np.float32(-0.3)),
    ("i64(x[i]) + i // (-3)", lambda x: x.astype("i8") + np.arange(7) // -3),
])  # fmt: skip
@pytest.mark.parametrize("target", ["cpu", "s16"])
def test_division_and_bits_of_integers(body: str, value: Any, target: str) -> None:
    program = parse(f"y[i] = {body}", x=(7,), dtypes={"x": "i32"})
    assert str(parse_program(str(program))) == str(program)
    x = np.array([-7, -2, 0, 3, 8, 5, 6], "i4")
    with np.errstate(all="ignore"):
        want = value(x)
    kernel: Any = compile_for(program, target)
    for found in (kernel(x), *(run_program(program, {"x": x}, vectorised=v)["y"] for v in (False, True))):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("text", "message"), [
    ("y[i] = x[i] / 2", r"/: takes floating operands, not i32\n  try: f64\(x\) / f64\(y\), or trunc_div\(x, y\)"),
    ("y[i] = i32(x[i] / x[i])", "/: takes floating operands"), ("y[i] = x[i] + 1/2", "/ of literals is no i32"),
    ("y[i] = exp(1)*x[i]", "exp of literals is no i32"), ("y[i] = x[i] // 2.5", "floor_div: the literal 2.5 is no i32"),
    ("y[i] = (x[i] > 1) % 2", "mod: takes numbers, not bool"), ("y[i] = f32(x[i]) ^ 2", r"a power is x\*\*y"),
    ("y[i] = f32(x[i]) & 1 > 0", r"try: .*\(x > 0\) & \(y > 0\)"),
    ("y[i] = f32(x[i]) << 1", "shift_left: takes integers, not f32"),
    ("y[i] = trunc_div(f32(x[i]), 2)", "trunc_div: takes integers, not f32"),
    ("y[i] = shift_right(1, 2) + x[i]", "shift_right: of literals only"), ("y and= x[i]", "and= combines truths"),
    ("y[i] = -(x[i] > 0)", "neg: takes numbers, not bool"), ("y[i] = (x[i] > 0) & -min(3, 3)", "neg: takes numbers"),
    ("y[i] = (x[i] > 0) | (3 - 1)", "sub: takes numbers, not bool"),
    ("y[i] = (x[i] > 0) | sqrt(4.0)", "sqrt of literals"), ("y += x[i] > 0", r"try: i64\(...\) around the right side"),
])  # fmt: skip
def test_operators_on_dtypes_that_they_do_not_have(text: str, message: str) -> None:
    with pytest.raises(PolyError, match=message):
        parse(text, x=(7,), dtypes={"x": "i32"})


@pytest.mark.parametrize(("text", "same"), [
    ("y[i] = ~x[i] + ~~x[i]", "y[i] = (x[i] ^ -1) + ((x[i] ^ -1) ^ -1)"),
    ("y[i] = x[i] & 6 | x[i] ^ 3", "y[i] = bit_or(bit_and(x[i], 6), bit_xor(x[i], 3))"),
    ("y[i] = 1 if (x[i] > 0) & (x[i] < 4) else 0", "y[i] = 1 if x[i] > 0 and x[i] < 4 else 0"),
    ("y[i] = 2 if (i >= 1) & (x[i] > 0) | (i == 3) else 0", "y[i] = 2 if i >= 1 and x[i] > 0 or i == 3 else 0"),
    ("y[i] = 1 if (i > 0) & (x[i-1] > 0) & (not x[i] > 4) else 0",
     "y[i] = 1 if i > 0 and x[i-1] > 0 and not x[i] > 4 else 0"),
])  # fmt: skip
def test_signs_of_bits_are_those_of_python(text: str, same: str) -> None:
    found = parse(text, x=(7,), dtypes={"x": "i32"})
    assert str(found) == str(parse(same, x=(7,), dtypes={"x": "i32"})) == str(parse(str(found)))


@pytest.mark.parametrize(("text", "shapes", "hint", "not_in"), [
    ("y = X*2", {"X": (3,)}, r"an index.*try: X\[i\]$", "tensors:"),
    ("y[i] = X*x[i]", {"X": (3, 4), "x": (2,)}, r"an index.*try: X\[i, j\]$", "tensors:"),
    ("y[i] = x[i]", {"x": (2,), "z": (3,)}, "no tensor 'z'.*tensors: y, x", "index"),
    ("y[i] = select(x[i] > 0, x[i], i)", {"x": (2,), "dtype": "i32"}, r"try: a cast: i32\(i\)", "f32"),
    ("y[I[i],j] = x[i,j]", {"I": (5,), "x": (5, 47)},
     r"y=\(512, 47\), with a number above every I\[i\] for 512", "47 for"),
    ("s[i] = (s[i+1] if i < 99 else 0) + x[i]", {"x": (100,)}, "the last first$", "s=("),
])  # fmt: skip
def test_hints_name_what_was_meant(text: str, shapes: Any, hint: str, not_in: str) -> None:
    shapes = dict(shapes)
    dtypes = {"x": shapes.pop("dtype")} if "dtype" in shapes else None
    with pytest.raises(PolyError) as found:
        parse(text, dtypes=dtypes, **shapes)
    assert re.search(hint, str(found.value), re.DOTALL) and not_in not in str(found.value)


def test_truths_are_counted_as_integers_and_combined_as_truths() -> None:
    x = np.array([1, -2, 3], "f4")
    for text, want in (("y += i64(x[i] > 0)", 2), ("y or= x[i] > 2", True), ("y and= x[i] > 2", False)):
        kernel: Any = compile_for(parse(text, x=(3,)))
        assert kernel(x) == want


@pytest.mark.parametrize("text", [
    "C[i,j] += A[i,k]*A[j,k] where j <= i", "C[i,j] += A[i,k]*A[j,k] where j <= i and k < j",
    "C[i] = A[i,i] where i % 2 == 0", "C[i,j] = A[i,j] where i < j or i > 5", "C[i//2] += A[i,j] where i % 4 != 3",
])  # fmt: skip
def test_a_schedule_that_is_read_again_is_of_the_program(text: str) -> None:
    program = parse(text, A=(9, 9))
    again = Schedule.parse(str(Schedule(program)))
    assert parse(str(program)) == program == again.source
    a = np.arange(81, dtype="f4").reshape(9, 9)
    first: Any = compile_for(program, schedule=again)
    second: Any = compile_for(program)
    np.testing.assert_array_equal(first(a), second(a))


def test_indices_of_one_residue() -> None:
    a = np.arange(1, 10, dtype="f4")
    kernel: Any = compile_for(parse("C[i] = A[i] where i % 2 == 0", A=(9,)))
    np.testing.assert_array_equal(kernel(a), np.where(np.arange(9) % 2 == 0, a, 0))
    kernel = compile_for(parse("s += A[i] where i % 3 == 1 and i > 2", A=("N",)))
    assert kernel(a) == 5 + 8
    with pytest.raises(ParseError, match="does not bound it at both ends"):
        parse("C[i] = 1 where i % 2 == 0")


@pytest.mark.parametrize(("text", "message"), [
    ("y[i] = where(x[i] > 0, x[i], 0)", r"where is no function(?s:.*)try: select\("),
    ("y[i] = 2*where(x[i] > 0, x[i], 0)", "where is no function"),
    ("y[i,j] = x[i] where 0 <= i < 3, 0 <= j <= i", r"no commas\n.*\n {40}\^\n  try: and"),
    ("k = argmin(x[i])", r"m min= x\[i\]; k min= select\(x\[i\] == m, i, 1000000\)"),
    ("y[i] = x[i]*i", r"dtypes f32 and i64\n  try: a cast: f32\(i\)"), ("s += x[i]/N", r"cast: f32\(N\)"),
    ("y[i] = i8(x[i]) * u8(x[i])", r"dtypes i8 and u8\n  try: convert both with casts, e.g. i32\(x\)"),
    ("y[i] = i32(x[i]) * u32(x[i])", r"convert both with casts, e.g. i64\(x\)"),
    ("y[i] = i8(x[i]) * i32(x[i])", r"convert one with a cast, e.g. i32\(x\)"),
    ("y[i] = f64(x[i]) + x[i]", r"dtypes f32 and f64\n  try: convert one"),
])  # fmt: skip
def test_messages_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(PolyError, match=message):
        parse(text, x=("N",))


def test_where_the_first_least_value_is() -> None:
    kernel: Any = compile_for(parse("m min= x[i]; k min= select(x[i] == m, i, 1000000)", x=(5,)))
    assert kernel(np.array([3, 1, 2, 1, 5], "f4")) == 1


@pytest.mark.parametrize("target", ["cpu", "s16"])
def test_a_call_without_an_inout_says_why_it_takes_it(target: str) -> None:
    kernel: Any = compile_for(parse("y: f32[4]; y[i] = select(i > 0, y[i-1], 0) + x[i]", x=(4,)), target)
    x = np.arange(4, dtype="f4")
    for call in (lambda: kernel(x), lambda: kernel(x=x)):
        with pytest.raises(PolyError, match="try: pass y, too: inout, an input as well as an output"):
            call()
    np.testing.assert_array_equal(kernel(x, x), np.cumsum(x))


def test_hints_for_what_notation_writes_otherwise() -> None:
    for text, hint in (
        ("C[i] = np.exp(A[i])", r"try: exp\(\.\.\.\)"), ("C[i] /= A[i]", r"try: \*= 1"),
        ("C[i] = " + "-" * 4000 + "A[i]", "deeply"),
    ):  # fmt: skip
        with pytest.raises(ParseError, match=hint) as error:
            parse(text, A=(3,))
        assert len(str(error.value)) < 800
    assert [s.name for s in parse("Ä[i] = A[i]", A=(3,)).statements] == ["i__set"]
    assert parse("C[i] = A[i]", A=("N",)).bind(N=np.int64(3)).sizes == (("N", 3),)


def test_constants_that_are_none() -> None:
    program = parse("C[i] = A[i]", A=(3,))
    for name, hint in (("A", "pass it in the call"), ("Z", "declare it in the program's text")):
        with pytest.raises(PolyError, match=f"'{name}' is no constant of the program\n  try: {hint}"):
            compile_for(program, constants={name: np.zeros(3, "f4")})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y[i] = x[idx[i]]", ["x", "idx"]),
        ("y[i] = a[i] if m[i] > 0 else b[i]", ["a", "m", "b"]),
        ("y[i] = x[p[q[i]]] + `b c`[i]", ["x", "p", "q", "b c"]),
        ("input q: i64[4]\ny[i] = x[p[q[i]]] + `b c`[i]", ["q", "x", "p", "b c"]),
    ],
)
def test_inputs_come_as_the_text_names_them(text: str, names: list[str]) -> None:
    shapes = {name: (4,) for name in names if not text.startswith(f"input {name}")}
    assert [t.name for t in parse(text, dtypes="i64", **shapes).inputs] == names


@pytest.mark.parametrize(
    ("text", "shapes", "tensor", "extents"),
    [
        ("y[t[i], j] += x[i,j]", {"x": (8, 1512), "t": (8,)}, "y", (None, 1512)),
        ("y[t[i], i + 1] += x[i]", {"x": ("N",), "t": ("N",)}, "y", (None, "N + 1")),
        ("y[i] = 2*x[i,j]", {}, "x", (None, None)),
    ],
)  # fmt: skip
def test_a_missing_shape_is_in_its_error(
    text: str, shapes: dict[str, Any], tensor: str, extents: tuple[int | str | None, ...]
) -> None:
    with pytest.raises((ParseError, ShapeError)) as found:
        parse(text, **shapes)
    wanted = found.value.wanted
    assert wanted is not None and (wanted.tensor, wanted.extents) == (tensor, extents)
    assert str(wanted) in (found.value.hint or "")
    assert pickle.loads(pickle.dumps(found.value)).wanted == wanted


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "bool", "u8", "u16", "u32", "u64"])
def test_bits_turned(dtype: str) -> None:
    program = parse("y[i] = ~x[i]; z[i] = ~(x[i] == 1)", x=(4,), dtypes=dtype)
    x: Any = np.array([0, 1, 1, 0], numpy_dtype(dtype))
    for found, wanted in zip(compile_for(program)(x), (~x, x != 1), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype
    with pytest.raises(PolyError, match="255 for all bits"):
        parse("y[i] = x[i] & -1", x=(4,), dtypes="u8")


def test_differences_and_shifts_as_python_writes_them() -> None:
    program = parse("y[i] -= x[i,j]; z[i] = (x[i,0] << 2) + (x[i,1] >> 1); c -= 2", x=(3, 4), dtypes="i32")
    assert str(program) == str(parse(str(program))) and "y[i] += -x[i, j]" in str(program)
    x = np.arange(12, dtype="i4").reshape(3, 4) - 5
    y, z, c = compile_for(program)(x)
    np.testing.assert_array_equal(y, -x.sum(1))
    np.testing.assert_array_equal(z, (x[:, 0] << 2) + (x[:, 1] >> 1))
    assert c == -2


@pytest.mark.parametrize(("text", "column", "message", "hint"), [
    ("C = A@B", 4, "@ has no meaning in a body", "C[i, k] += A[i, j]*B[j, k]"),
    ("C = A @ B", 4, "@ has no meaning in a body", "C[i, k] += A[i, j]*B[j, k]"),
    ("C[i] = A[i,0]*B.c", 14, "'B.c' is no name here", "B_c, or * for a product"),
    ("lambda[i] = A[i,0]", 0, "'lambda' is a keyword of Python, and no name", "lambda_"),
    ("C[i] = A[i,0]*class[i]", 14, "'class' is a keyword of Python, and no name", "class_"),
    ("C[i] = A[i,0]*pi", 0, "'pi' is no constant here", "3.141592653589793, or pi=() if it is a scalar tensor"),
])  # fmt: skip
def test_names_that_are_none(text: str, column: int, message: str, hint: str) -> None:
    shapes: dict[str, Any] = {name: (4, 4) for name in "AB" if f"{name}[" in text or "@" in text}
    with pytest.raises(ParseError) as found:
        parse(text, **shapes)
    assert message in str(found.value) and found.value.column == column and found.value.hint == hint


def test_the_shape_of_a_vector_may_be_an_int() -> None:
    assert parse("y[i] = x[i]", x=3) == parse("y[i] = x[i]", x=(3,)) == parse("y[i] = x[i]", x=np.int64(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="not True"):
        parse("y[i] = x[i]", x=True)


@pytest.mark.parametrize(
    ("body", "message", "column"),
    [
        ("A[i,j]*A[j,k", "not an expression: '[' was never closed", 20),
        ("A[i,k]]", "not an expression: unmatched ']'", 15),
        ("(A[i,k)", "not an expression: closing parenthesis ')' does not match opening parenthesis '['", 15),
        ("A[i,:]", "a slice has no meaning in a body", 13),
    ],
)
def test_errors_of_brackets_and_subscripts_show_the_line_once_and_what_was_written(
    body: str, message: str, column: int
) -> None:
    with pytest.raises(ParseError) as error:
        parse(f"C[i,k] = {body}", A=(2, 3))
    first, line, caret, *_ = str(error.value).splitlines()
    assert first == message and line == f"  line 1: C[i,k] = {body}"
    assert caret.strip() == "^" and caret.index("^") - len("  line 1: ") == column
