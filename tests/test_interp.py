"""The program interpreter: its two ways against numpy and each other, and what it refuses."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import hypothesis.strategies as st
import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings

import poly
from poly.affine import Affine, Constraint, var
from poly.dtypes import numpy_dtype
from poly.errors import RunError
from poly.expr import COMBINERS, Cast, Const, Expr, IndexValue, Read, apply
from poly.interp import run_program
from poly.program import Access, External, Program, ReadIndex, Statement, Tensor, box_domain

WAYS = [False, True]


def tensor(name: str, shape: Sequence[int | str | Affine], dtype: str = "f32", role: Any = "input") -> Tensor:
    return Tensor(name, tuple(Affine.of(e) for e in shape), dtype, role)


def access(name: str, *index: str | int | Affine | ReadIndex, guard: Sequence[str] = (), fill: float = 0) -> Access:
    subscripts = tuple(i if isinstance(i, ReadIndex) else Affine.of(i) for i in index)
    constraints = tuple(Constraint(Affine.of(text)) for text in guard)
    return Access(name, subscripts, constraints, Const(fill) if guard else None)


def statement(
    name: str,
    domain: str,
    write: Access,
    reads: Sequence[Access],
    body: Expr,
    combiner: str | None = None,
    path: Sequence[int | str] = (),
    **more: Any,
) -> Statement:
    """A statement on the domain `[n] -> { [i, j] : ... }`; its name is put in."""
    head, rest = domain.split("{", 1)
    iterators = tuple(i.strip() for i in rest[rest.index("[") + 1 : rest.index("]")].split(",") if i.strip())
    found = None if combiner is None else COMBINERS[combiner]
    points = isl.Set(f"{head}{{ {name}{rest.strip()}")
    return Statement(name, iterators, points, write, tuple(reads), body, found, path=tuple(path), **more)


def integers(shape: Sequence[int], dtype: str = "f32", seed: int = 0, low: int = -4, high: int = 5) -> Any:
    return np.random.default_rng(seed).integers(low, high, shape).astype(numpy_dtype(dtype))


def matmul(dtype: str = "f32", wide: str | None = None) -> Program:
    factors = [Cast(wide, Read(k)) if wide else Read(k) for k in (0, 1)]
    return Program(
        "matmul",
        (
            tensor("A", ["M", "K"], dtype),
            tensor("B", ["K", "N"], dtype),
            tensor("C", ["M", "N"], wide or dtype, "output"),
        ),
        (
            statement("Z", "[M,N] -> { [i,j] : 0<=i<M and 0<=j<N }", access("C", "i", "j"), [], Const(0)),
            statement(
                "S",
                "[M,N,K] -> { [i,j,k] : 0<=i<M and 0<=j<N and 0<=k<K }",
                access("C", "i", "j"),
                [access("A", "i", "k"), access("B", "k", "j")],
                apply("mul", *factors),
                "+",
            ),
        ),
        ("M", "N", "K"),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i8", "u64", "c64"])
def test_matmul(way: bool, dtype: str) -> None:
    a, b = integers((5, 7), dtype, 1, 0), integers((7, 4), dtype, 2, 0)
    c = run_program(matmul(dtype), {"A": a, "B": b}, vectorised=way)["C"]
    assert c.dtype == a.dtype and np.array_equal(c.astype(complex), a.astype(complex) @ b.astype(complex))


@pytest.mark.parametrize("way", WAYS)
def test_integers_wrap_the_same(way: bool) -> None:
    a, b = integers((5, 70), "i8", 1, -128, 128), integers((70, 4), "i8", 2, -128, 128)
    assert np.array_equal(run_program(matmul("i8"), {"A": a, "B": b}, vectorised=way)["C"], a @ b)
    wide = run_program(matmul("i8", "i32"), {"A": a, "B": b}, vectorised=way)["C"]
    assert np.array_equal(wide, a.astype(np.int32) @ b.astype(np.int32))
    large = integers((5, 7), "i64", 3, -(2**62), 2**62)
    assert np.array_equal(run_program(matmul("i64"), {"A": large, "B": large.T}, vectorised=way)["C"], large @ large.T)


def test_large_matmul_is_accurate() -> None:
    a, b = np.random.default_rng(0).random((2, 300, 300), np.float32)
    c = run_program(matmul(), {"A": a, "B": b})["C"]
    assert np.allclose(c, a.astype(np.float64) @ b, rtol=1e-6)


def convolution(stride: int, pad: int) -> Program:
    h, w = var("h") * stride + var("r") - pad, var("w") * stride + var("s") - pad
    size = (9 + 2 * pad - 3) // stride + 1
    domain = f"{{ [o,h,w,c,r,s] : 0<=o<4 and 0<=h,w<{size} and 0<=c,r,s<3 }}"
    guard = [str(h), str(8 - h), str(w), str(8 - w)]
    return Program(
        "convolution",
        (tensor("X", [3, 9, 9]), tensor("W", [4, 3, 3, 3]), tensor("Y", [4, size, size], role="output")),
        (
            statement("Z", f"{{ [o,h,w] : 0<=o<4 and 0<=h,w<{size} }}", access("Y", "o", "h", "w"), [], Const(0.0)),
            statement(
                "S",
                domain,
                access("Y", "o", "h", "w"),
                [access("X", "c", h, w, guard=guard), access("W", "o", "c", "r", "s")],
                apply("mul", Read(0), Read(1)),
                "+",
            ),
        ),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_convolution(way: bool, stride: int, pad: int) -> None:
    x, w = integers((3, 9, 9)), integers((4, 3, 3, 3), seed=1)
    y = run_program(convolution(stride, pad) if pad else unpadded(stride), {"X": x, "W": w}, vectorised=way)["Y"]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (pad, pad), (pad, pad))), (3, 3), (1, 2))
    assert np.array_equal(y, np.einsum("chwrs,ocrs->ohw", windows[:, ::stride, ::stride], w))


def unpadded(stride: int) -> Program:
    """The convolution without padding; its guard always holds, so it is left out."""
    p = convolution(stride, 0)
    x = replace(p.statements[1].reads[0], guard=(), fill=None)
    return replace(p, statements=(p.statements[0], replace(p.statements[1], reads=(x, p.statements[1].reads[1]))))


@pytest.mark.parametrize("way", WAYS)
def test_triangle(way: bool) -> None:
    p = Program(
        "trmm",
        (tensor("L", ["n", "n"]), tensor("B", ["n", "n"]), tensor("C", ["n", "n"], role="inout")),
        (
            statement(
                "S",
                "[n] -> { [i,j,k] : 0<=i<n and 0<=j<n and 0<=k<=i }",
                access("C", "i", "j"),
                [access("L", "i", "k"), access("B", "k", "j")],
                apply("mul", Read(0), Read(1)),
                "+",
            ),
        ),
        ("n",),
    )
    for n in (1, 2, 9, 17):
        low, b, c = integers((n, n)), integers((n, n), seed=1), integers((n, n), seed=2)
        low = np.where(np.tri(n, dtype=bool), low, np.nan).astype(np.float32)
        got = run_program(p, {"L": low, "B": b, "C": c}, vectorised=way)["C"]
        assert np.array_equal(got, c + np.tril(low) @ b) or np.array_equal(got, c + np.nan_to_num(low) @ b)


def stencil() -> Program:
    third = apply("add", apply("add", Read(0), Read(1)), Read(2))
    return Program(
        "stencil",
        (tensor("A", ["T+1", "N"], "i32", "inout"),),
        (
            statement(
                "S",
                "[T,N] -> { [t,i] : 0<=t<T and 1<=i<N-1 }",
                access("A", "t+1", "i"),
                [access("A", "t", "i-1"), access("A", "t", "i"), access("A", "t", "i+1")],
                third,
            ),
        ),
        ("T", "N"),
    )


@pytest.mark.parametrize("way", WAYS)
def test_time_stencil(way: bool) -> None:
    a = np.zeros((8, 20), np.int32)
    a[:, :] = integers((20,), "i32")
    expected = a.copy()
    for t in range(7):
        expected[t + 1, 1:-1] = expected[t, :-2] + expected[t, 1:-1] + expected[t, 2:]
    assert np.array_equal(run_program(stencil(), {"A": a}, sizes={"T": 7}, vectorised=way)["A"], expected)


@pytest.mark.parametrize("way", WAYS)
def test_two_statements_share_a_time_loop(way: bool) -> None:
    half = apply("add", Read(0), Read(1))
    domain = "[T,N] -> { [t,i] : 0<=t<T and 1<=i<N-1 }"
    ends = [access("A", "i-1"), access("A", "i+1")]
    p = Program(
        "pingpong",
        (tensor("A", ["N"], "i64", "inout"), tensor("B", ["N"], "i64", "temporary")),
        (
            statement("S", domain, access("B", "i"), ends, half, path=(0, "t", 0, "i")),
            statement("R", domain, access("A", "i"), [access("B", "i")], Read(0), path=(0, "t", 1, "i")),
        ),
        ("T", "N"),
    )
    a = integers((12,), "i64")
    expected = a.copy()
    for _ in range(5):
        expected[1:-1] = expected[:-2] + expected[2:]
    assert np.array_equal(run_program(p, {"A": a}, sizes={"T": 5}, vectorised=way)["A"], expected)


@pytest.mark.parametrize("way", WAYS)
def test_fused_loops_run_in_lockstep_or_apart(way: bool) -> None:
    """B[i] reads an A[i] that the same iteration wrote, C[i] an A[i+1] that none has written yet."""
    domain = "{ [i] : 0<=i<9 }"
    p = Program(
        "fused",
        (tensor("X", [9], "i32"), *(tensor(n, [10], "i32", "output") for n in "ABC")),
        (
            statement("S", domain, access("A", "i"), [access("X", "i")], Read(0), path=(0, "i", 0)),
            statement("T", domain, access("B", "i"), [access("A", "i")], Read(0), path=(0, "i", 1)),
            statement("U", domain, access("C", "i"), [access("A", "i+1")], Read(0), path=(0, "i", 2)),
        ),
    )
    x = integers((9,), "i32")
    got = run_program(p, {"X": x}, vectorised=way)
    assert np.array_equal(got["B"][:9], x) and np.array_equal(got["A"][:9], x) and not got["C"].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("symbol", "dtype"),
    [*product(("+", "*", "max", "min"), ("f32", "i16", "u8")), ("and", "bool"), ("or", "bool")],
)
def test_combiners(way: bool, symbol: str, dtype: str) -> None:
    combiner = COMBINERS[symbol]
    rows, lower = (f"[N,K] -> {{ [i,k] : 0<=i<N and 0<=k<K{more} }}" for more in ("", " and k<=i"))
    p = Program(
        "reduce",
        (tensor("X", ["N", "K"], dtype), tensor("Y", ["N"], dtype, "output"), tensor("S", [], dtype, "output")),
        (
            statement("I", "[N] -> { [i] : 0<=i<N }", access("Y", "i"), [], combiner.identity(dtype)),
            statement("R", rows, access("Y", "i"), [access("X", "i", "k")], Read(0), symbol),
            statement("J", "{ [] }", access("S"), [], combiner.identity(dtype)),
            statement("Q", lower, access("S"), [access("X", "i", "k")], Read(0), symbol),
        ),
        ("N", "K"),
    )
    x = integers((5, 4), dtype, 3, 0 if dtype in ("bool", "u8") else -2, 2 if dtype == "bool" else 4)
    ufuncs = (np.add, np.multiply, np.maximum, np.minimum, np.logical_and, np.logical_or)
    reduce = dict(zip(COMBINERS, ufuncs, strict=True))
    got = run_program(p, {"X": x}, vectorised=way)
    assert np.array_equal(got["Y"], reduce[symbol].reduce(x, axis=1, dtype=x.dtype))
    triangle = np.array([x[i, k] for i in range(5) for k in range(4) if k <= i])
    assert got["S"] == reduce[symbol].reduce(triangle, dtype=x.dtype)


@pytest.mark.parametrize("way", WAYS)
def test_ordered_sum_rounds_one_by_one(way: bool) -> None:
    p = Program(
        "sum",
        (tensor("X", [3]), tensor("S", [], role="inout")),
        (statement("R", "{ [i] : 0<=i<3 }", access("S"), [access("X", "i")], Read(0), "+", reorder=False),),
    )
    x = np.array([1, 2**24, 1], np.float32)
    assert run_program(p, {"X": x, "S": np.zeros((), np.float32)}, vectorised=way)["S"] == np.float32(2**24)


@pytest.mark.parametrize("way", WAYS)
def test_order_of_a_recurrence_and_of_overwriting(way: bool) -> None:
    both, ten = apply("add", Read(0), Read(1)), IndexValue(Affine.of("i*10 + j"))
    vectors = [tensor(n, [8], "i64", "output") for n in "DE"]
    p = Program(
        "recurrence",
        (tensor("X", [40], "i64", "inout"), tensor("L", [], "i64", "output"), *vectors),
        (
            statement("S", "{ [i] : 1<=i<40 }", access("X", "i"), [access("X", "i-1"), access("X", "i")], both),
            statement("T", "{ [i] : 0<=i<40 }", access("L"), [access("X", "i")], Read(0)),
            statement("U", "{ [i, j] : 0<=i<4 and 0<=j<5 }", access("D", "i+j"), [], ten),
            statement("V", "{ [i, j, k] : 0<=i<4 and 0<=j<5 and k=j }", access("E", "i + 2*j - k"), [], ten),
        ),
    )  # fmt: skip
    x = integers((40,), "i64")
    got = run_program(p, {"X": x}, vectorised=way)
    assert np.array_equal(got["X"], np.cumsum(x)) and got["L"] == x.sum()
    assert got["D"].tolist() == got["E"].tolist() == [0, 10, 20, 30, 31, 32, 33, 34]


@pytest.mark.parametrize("way", WAYS)
def test_indirect_reads_and_writes(way: bool) -> None:
    reads = [access("I", "i"), access("X", ReadIndex(0), "j")]
    p = Program(
        "gather",
        (
            tensor("I", ["n"], "i64"), tensor("X", ["m", 3]),
            tensor("Y", ["n", 3], role="output"), tensor("H", ["m"], "i32", "inout"),
        ),
        (
            statement("G", "[n] -> { [i, j] : 0<=i<n and 0<=j<3 }", access("Y", "i", "j"), reads, Read(1)),
            statement("C", "[n] -> { [i] : 0<=i<n }", access("H", ReadIndex(0)), reads[:1], Const(1, "i32"), "+"),
        ),
        ("n", "m"),
    )  # fmt: skip
    index, x = np.array([3, 0, 3, 1]), integers((4, 3))
    given = {"I": index, "X": x, "H": np.zeros(4, np.int32)}
    got = run_program(p, given, vectorised=way)
    assert np.array_equal(got["Y"], x[index]) and got["H"].tolist() == [1, 1, 0, 2]
    with pytest.raises(RunError, match=r"statement G\[1, 0\]: X\[4, 0\] is outside of its shape \[4, 3\]"):
        run_program(p, {**given, "I": np.array([3, 4, 3, 1])}, vectorised=way)
    with pytest.raises(RunError, match=r"X\[-1, 0\]"):
        run_program(p, {**given, "I": np.array([3, 0, 3, -1])}, vectorised=way)


@pytest.mark.parametrize("way", WAYS)
def test_out_of_bounds_names_the_instance(way: bool) -> None:
    p = Program(
        "shift",
        (tensor("X", [4]), tensor("Y", [4], role="output")),
        (statement("S", "{ [i] : 0<=i<4 }", access("Y", "i"), [access("X", "i+1")], Read(0)),),
    )
    with pytest.raises(RunError, match=r"statement S\[3\]: X\[4\] is outside of its shape \[4\]"):
        run_program(p, {"X": integers((4,))}, vectorised=way)
    writes = replace(p, statements=(replace(p.statements[0], write=access("Y", "i-1"), reads=(access("X", "i"),)),))
    with pytest.raises(RunError, match=r"statement S\[0\]: Y\[-1\]"):
        run_program(writes, {"X": integers((4,))}, vectorised=way)


@pytest.mark.parametrize("way", WAYS)
def test_uninitialised_reads_show_and_arguments_stay(way: bool) -> None:
    p = matmul()
    p = replace(p, statements=p.statements[1:])
    a = integers((3, 3))
    assert np.array_equal(run_program(p, {"A": a, "B": a}, vectorised=way)["C"], a @ a)  # outputs begin as zero
    own = replace(p, tensors=(*p.tensors[:2], replace(p.tensors[2], role="temporary")))
    assert np.isnan(run_program(own, {"A": a, "B": a}, vectorised=way, keep=("C",))["C"]).all()
    inout = replace(p, tensors=(*p.tensors[:2], replace(p.tensors[2], role="inout")))
    c = np.zeros((3, 3), np.float32)
    assert run_program(inout, {"A": a, "B": a, "C": c}, vectorised=way)["C"].any() and not c.any()


def test_wrong_arguments() -> None:
    p, a = matmul(), integers((3, 3))
    for arguments, text in (
        ({"A": a}, "tensor B: no array"),
        ({"A": a, "B": a, "Q": a}, "'Q' is not a tensor"),
        ({"A": a, "B": a.astype(np.float64)}, "tensor B: array has dtype float64, not f32"),
        ({"A": a, "B": a[:2]}, "size K is 3 by axis 1 of A and 2 by axis 0 of B"),
        ({"A": a, "B": a[0]}, "tensor B: array has shape"),
    ):
        with pytest.raises(RunError, match=text):
            run_program(p, arguments)
    with pytest.raises(RunError, match="size M is 2 by the sizes given and 3"):
        run_program(p, {"A": a, "B": a}, sizes={"M": 2})
    with pytest.raises(RunError, match="'Q' is not a size"):
        run_program(p, {"A": a, "B": a}, sizes={"Q": 2})
    with pytest.raises(RunError, match="size [NT] is not known"):
        run_program(poly.parse("inout A: i32[2*T + N]\nS[i]: A[i] = 1 where 0 <= i < N"), {"A": integers((7,), "i32")})
    with pytest.raises(RunError, match="size N is 4 by axis 0 of A and 3 by axis 0 of B"):
        text = "input A: i32[N - 1]\ninput B: i32[2*N + 1]\noutput C: i32[N - 1]\nS[i]: C[i] = A[i] + B[i + 1]"
        run_program(
            poly.parse(text + " where 0 <= i < N - 1"), {"A": integers((3,), "i32"), "B": integers((7,), "i32")}
        )
    with pytest.raises(RunError, match="not allowed: M >= 4"):
        run_program(replace(p, context=isl.Set("[M] -> { : M >= 4 }")), {"A": a, "B": a})
    constant = replace(p, tensors=(*p.tensors[:2], replace(p.tensors[2], role="constant")))
    with pytest.raises(RunError, match="statement Z: writes C, of role constant"):
        run_program(constant, {"A": a, "B": a, "C": a})
    with pytest.raises(RunError, match="not bounded"):
        unbounded = replace(p.statements[0], domain=isl.Set("{ Z[i,j] : i >= 0 }"))
        run_program(replace(p, statements=(unbounded,)), {"A": a, "B": a})


def test_sizes_follow_from_affine_extents() -> None:
    a = integers((3, 8), "i32")
    text = "input A: i32[T + 1, 2*N + T]\noutput C: i32[N, T]\nS[i, j]: C[i, j] = A[j + 1, 2*i + j]"
    found = run_program(poly.parse(text + " where 0 <= i < N and 0 <= j < T"), {"A": a})["C"]
    np.testing.assert_array_equal(found, [[a[j + 1, 2 * i + j] for j in range(2)] for i in range(3)])


def test_trace_sees_every_instance_in_order() -> None:
    p = convolution(2, 1)
    seen: list[tuple[str, tuple[int, ...], int]] = []
    x, w = integers((3, 9, 9)), integers((4, 3, 3, 3), seed=1)
    run_program(p, {"X": x, "W": w}, trace=lambda s, i, reads, write: seen.append((s.name, i, len(reads))))
    assert len(seen) == 4 * 25 + 4 * 25 * 27
    assert [i for n, i, _ in seen if n == "S"] == sorted(i for n, i, _ in seen if n == "S")
    assert seen[100] == ("S", (0, 0, 0, 0, 0, 0), 2) and seen[104] == ("S", (0, 0, 0, 0, 1, 1), 3)


def test_order_replaces_the_paths() -> None:
    p = replace(stencil(), sizes=(("T", 4),))
    a = np.tile(integers((9,), "i32"), (5, 1))
    expected = run_program(p, {"A": a})["A"]
    assert np.array_equal(run_program(p, {"A": a}, order={"S": [var("t") * 2 + var("i"), var("t")]})["A"], expected)
    assert not np.array_equal(run_program(p, {"A": a}, order={"S": [var("i"), var("t")]})["A"], expected)


@pytest.mark.parametrize("way", WAYS)
def test_external_statements(way: bool) -> None:
    external = External("sort", b"", ("X",), ("Y",))
    p = Program(
        "external",
        (tensor("X", [6]), tensor("Y", [6], role="temporary"), tensor("Z", [6], role="output")),
        (
            statement("E", "{ [] }", access("Y", 0), [], Const(0), external=external),
            statement("S", "{ [i] : 0<=i<6 }", access("Z", "i"), [access("Y", "i")], apply("neg", Read(0))),
        ),
    )
    x = integers((6,))
    kinds = {"sort": lambda e, arrays: {"Y": np.sort(arrays["X"])}}
    assert np.array_equal(run_program(p, {"X": x}, externals=kinds, vectorised=way)["Z"], -np.sort(x))
    with pytest.raises(RunError, match="kind 'sort'"):
        run_program(p, {"X": x}, vectorised=way)
    with pytest.raises(RunError, match="declared float32"):
        run_program(p, {"X": x}, externals={"sort": lambda e, arrays: {"Y": arrays["X"][:2]}}, vectorised=way)


# --- random programs, two ways ---

EXTENTS = {"i": 4, "j": 3, "k": 5}


@st.composite
def subscript(draw: st.DrawFn, names: Sequence[str], extent: int) -> tuple[Affine, list[str]]:
    """An affine expression and the guard that keeps it in 0 .. extent-1."""
    e = Affine((), draw(st.integers(-1, 2)))
    for name in draw(st.lists(st.sampled_from(list(names)), max_size=2, unique=True)) if names else []:
        e = e + var(name) * draw(st.sampled_from([-1, 1, 1, 1, 2]))
    if draw(st.integers(0, 5)) == 0:
        e = e // 2 if draw(st.booleans()) else e % 3
    return e, [str(e), str(extent - 1 - e)]


@st.composite
def random_statement(draw: st.DrawFn, number: int, tensors: Sequence[Tensor], shared: bool) -> Statement:
    names = draw(st.lists(st.sampled_from(["i", "j", "k"]), max_size=3, unique=True))
    if shared:
        names = ["i", *(n for n in names if n != "i")]
    bounds = [f"0 <= {n} < {EXTENTS[n]}" for n in names]
    if len(names) > 1 and draw(st.booleans()):
        bounds.append(draw(st.sampled_from([f"{names[0]} <= {names[1]}", f"({names[0]} + {names[1]}) mod 2 = 0"])))
    reads: list[Access] = []
    for _ in range(draw(st.integers(0, 2))):
        t = draw(st.sampled_from(list(tensors)))
        parts = [draw(subscript(names, e.constant)) for e in t.shape]
        guard = [c for _, g in parts for c in g]
        reads.append(access(t.name, *(e for e, _ in parts), guard=guard, fill=draw(st.integers(-2, 2))))
    target = draw(st.sampled_from(list(tensors[1:])))
    parts = [draw(subscript(names, e.constant)) for e in target.shape]
    bounds += [f"{c.isl_text} >= 0" for _, guard in parts for c in map(Affine.of, guard)]
    leaves: list[Expr] = [*map(Read, range(len(reads))), Const(3)]
    if names:
        leaves.append(Cast("i32", IndexValue(var(names[0]))))
    body: Expr = draw(st.sampled_from(leaves))
    for leaf in leaves[: draw(st.integers(0, 3))]:
        body = apply(draw(st.sampled_from(["add", "mul", "mul", "sub", "max"])), body, leaf)
    combiner = draw(st.sampled_from([None, "+", "+", "*", "max", "min"]))
    path: list[int | str] = [0, "i", draw(st.integers(0, 3))] if shared else [draw(st.integers(0, 1))]
    for n in names[1:] if shared else names:
        path += [n, draw(st.integers(0, 1))] if draw(st.booleans()) else [n]
    domain = f"{{ [{', '.join(names)}] : {' and '.join(bounds) or 'true'} }}"
    return statement(f"S{number}", domain, access(target.name, *(e for e, _ in parts)), reads, body, combiner, path)


@st.composite
def random_program(draw: st.DrawFn) -> Program:
    tensors = (
        tensor("X", [5, 4], "i32"),
        tensor("U", [6], "i32", "inout"),
        tensor("V", [3, 5], "i32", "inout"),
        tensor("W", [], "i32", "inout"),
    )
    shared, count = draw(st.booleans()), draw(st.integers(1, 4))
    return Program("random", tensors, tuple(draw(random_statement(k, tensors, shared)) for k in range(count)))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(random_program(), st.integers(0, 9))
def test_the_two_ways_agree(program: Program, seed: int) -> None:
    inputs = {t.name: integers([e.constant for e in t.shape], "i32", seed) for t in program.tensors}
    slow = run_program(program, inputs, vectorised=False)
    fast = run_program(program, inputs, vectorised=True)
    for name, array in slow.items():
        assert np.array_equal(array, fast[name]), name


def test_box_domain_without_iterators_is_one_instance() -> None:
    s = Statement("S", (), box_domain("S", []), access("Y"), (), Const(2.0))
    p = Program("one", (tensor("Y", [], role="output"),), (s,))
    assert run_program(p, {})["Y"] == 2 and run_program(p, {}, vectorised=True)["Y"] == 2


@pytest.mark.parametrize("vectorised", [True, False])
def test_pow(vectorised: bool) -> None:
    """Roots of -infinity and -0 as in C; integers to negative exponents truncated: both as compiled."""
    floats = poly.parse("y[i] = pow(x[i], z[i])", x=(4,), z=(4,))
    x, z = np.array([-np.inf, -0.0, 4, -4], np.float32), np.full(4, 0.5, np.float32)
    found = run_program(floats, {"x": x, "z": z}, vectorised=vectorised)["y"]
    np.testing.assert_array_equal(found, np.array([np.inf, 0, 2, np.nan], np.float32))
    assert not np.signbit(found[1])
    np.testing.assert_array_equal(poly.compile(floats)(x, z), found)
    dtypes = dict.fromkeys("xyz", "i32")
    whole = poly.parse("y[i] = pow(x[i], z[i])", dtypes=dtypes, x=(6,), z=(6,))
    x, z = np.array([2, 1, 0, -1, -1, 3], np.int32), np.array([-1, -1, -1, -1, -2, 3], np.int32)
    found = run_program(whole, {"x": x, "z": z}, vectorised=vectorised)["y"]
    np.testing.assert_array_equal(found, np.array([0, 1, 0, -1, 1, 27], np.int32))
    np.testing.assert_array_equal(poly.compile(whole)(x, z), found)


@pytest.mark.parametrize("vectorised", WAYS)
@pytest.mark.parametrize("dtype", ["u64", "i64", "u8", "i8"])
def test_shifts_keep_every_bit(dtype: str, vectorised: bool) -> None:
    """Of numbers that no float holds; the sign fills from the left."""
    info = np.iinfo(str(numpy_dtype(dtype)))
    values = [int(info.max), int(info.max) - 1, 5, int(info.min)]
    a, by = np.array(values, numpy_dtype(dtype)), info.bits - 3
    program = poly.parse(
        f"r[i] = shift_right(a[i], {dtype}(2)); l[i] = shift_left(a[i], {dtype}({by}))", dtypes=dtype, a=(4,)
    )
    found = run_program(program, {"a": a}, vectorised=vectorised)
    assert found["r"].tolist() == [v >> 2 for v in values]
    wanted = np.array([(v << by) % (1 << info.bits) for v in values], np.uint64).astype(a.dtype)
    assert found["l"].tolist() == wanted.tolist() == poly.compile(program)(a)[1].tolist()


@pytest.mark.parametrize("body", ["x[j, m]*w[k]", "x[j, m]*w[k]*x[k, m]"])
@pytest.mark.parametrize("vectorised", [False, True])
def test_what_is_infinite_is_multiplied_before_it_is_summed(body: str, vectorised: bool) -> None:
    """2*inf - 1*inf is NaN: a factor's own sum, taken first, made it inf."""
    program = poly.parse(f"y[m] += {body} where 0 <= j < 2 and 0 <= k < 2", x=(2, 3), w=(2,))
    x = np.array([[2, 2, 1], [-1, 1, 3]], np.float32)
    found = run_program(program, {"x": x, "w": np.array([np.inf, 1], np.float32)}, vectorised=vectorised)["y"]
    np.testing.assert_array_equal(found, np.array([np.nan, np.inf, np.inf], np.float32))
