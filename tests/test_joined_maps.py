"""Statements that compute elements one by one as one with their only reader: which, with which results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.expr import MOST_EXPRESSIONS, walk
from poly.graph import Graph, Node
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.joined_maps import with_maps_joined
from poly.text import parse_program

BEFORE = "f[p,c] = f32(x[p,c]); g[p,c] = f[p,c]*0.5 + b[c]; y[c,p] = g[p,c]"
AFTER = "f[c,p] = x[p,c]; g[c,p] = f[c,p]*0.5 + b[c]; y[c,p] = max(g[c,p], 0)"


def parsed(text: str, x: tuple[int, ...] = (40, 5), dtype: str = "f32") -> Program:
    shapes = {"x": x, **({"b": x[-1:]} if "b[" in text else {})}
    return poly.parse(text, dtypes={"x": dtype}, **shapes)


def check_joined(text: str, shape: tuple[int, int]) -> None:
    """`f` is made nowhere, and `y` is the same."""
    program = parsed(text, shape)
    joined = with_maps_joined(program)
    assert "f" not in joined.tensor and len(joined.statements) < len(program.statements)
    random = np.random.default_rng(0)
    given = {n: random.integers(-4, 5, program.tensor[n].extents({})) for n in program.tensor if n in "xb"}
    arrays = {n: a.astype("f4") for n, a in given.items()}
    expected = run_program(program, arrays)["y"]
    assert np.array_equal(run_program(joined, arrays)["y"], expected)
    assert np.allclose(poly.compile(program, threads=1)(**arrays), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["u8", "f16", "f32"])
@pytest.mark.parametrize("shape", [(40, 5), (3, 50), (33, 47)])
@pytest.mark.parametrize(
    "text",
    [
        BEFORE,
        AFTER.replace("= x[p,c]", "= f32(x[p,c])"),
        "f[p,c] = f16(f32(x[p,c])/3); y[c,p] = f32(f[p,c])",  # what is between rounds
        "f[p,c] = f32(x[p,c]); y[c,p] = f[p,c] - f[p,c]*f[p,c]",
    ],
)
def test_one_statement_has_the_same_results(text: str, shape: tuple[int, int], dtype: str) -> None:
    program = parsed(text, shape, dtype)
    joined = with_maps_joined(program)
    assert len(joined.statements) == 1 and not [t for t in joined.tensors if t.role == "temporary"]
    random = np.random.default_rng(0)
    given = {n: random.integers(0, 9, program.tensor[n].extents({})) for n in program.tensor if n in "xb"}
    arrays = {n: a.astype(numpy_dtype(program.tensor[n].dtype)) for n, a in given.items()}
    expected = run_program(program, arrays)["y"]
    assert np.array_equal(run_program(joined, arrays)["y"], expected)
    assert np.allclose(poly.compile(program, threads=1)(**arrays), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(40, 5), (3, 50), (33, 47)])
@pytest.mark.parametrize(
    "text",
    [
        "f[p,c] = x[p,c] - b[c]; g[p,c] = f[p,c]*f[p,c]; y[c] += g[p,c]",
        "f[p,c] = abs(x[p,c] - b[c]); y[p] max= f[p,c]",
        "f[c,p] = x[p,c]*b[c]; y += f[c,p]",
        "f[p,c] = x[p,c]*x[p,c]; g[c] += f[p,c]; y[c] = g[c]/40",
    ],
)
def test_sums_of_one_statement_have_the_same_results(text: str, shape: tuple[int, int]) -> None:
    check_joined(text, shape)


@pytest.mark.parametrize(
    "text",
    [
        "f[c,p] = x[p,c]; y[c] += f[c,p]*b[c]",
        "f[c,p] = x[p,c]; y[p,q] += f[c,p]*x[q,c]",
        "f[c,p] = x[p,c]; y[p,c] max= f[c,p] - b[c]",
    ],
)
@pytest.mark.parametrize("shape", [(40, 5), (3, 50), (33, 47)])
def test_products_read_copies_where_they_lie(text: str, shape: tuple[int, int]) -> None:
    check_joined(text, shape)


CODES = (
    "f[p,c] = i8(max(min(round(x[p,c]*b[c]) + 3, 127), -128)); g[p,c] = (f32(i32(f[p,c])) - 3)*0.05; "
    "h[p,c] = max(min(g[p,c]*0.17 + 0.5, 1), 0); k[p,c] = u8(max(min(round(h[p,c]/0.004), 255), 0)); "
    "l[p,c] = f32(k[p,c])*0.004; m[p,c] = g[p,c]*l[p,c]; y[p,c] = i8(max(min(round(m[p,c]/0.04) - 7, 127), -128))"
)


def test_maps_between_codes_are_one_statement_in_a_group() -> None:
    """But for what two read, and for a product that is added."""
    program = parsed(CODES)
    joined = with_maps_joined(program, codes=True)
    assert [s.write.tensor for s in joined.statements] == ["g", "y"]
    assert with_maps_joined(program) is program
    apart = parsed("f[p,c] = f32(i32(x[p,c]) - 3)*0.05; y[p,c] = f[p,c] + b[c]", dtype="i8")
    assert with_maps_joined(apart, codes=True) is apart
    random = np.random.default_rng(0)
    x, b = random.normal(0, 40, (40, 5)).astype("f4"), random.uniform(0.2, 2, 5).astype("f4")
    expected = run_program(program, {"x": x, "b": b})["y"]
    assert np.array_equal(run_program(joined, {"x": x, "b": b})["y"], expected)
    assert np.array_equal(poly.compile(program, threads=1)(x=x, b=b), expected)


@pytest.mark.parametrize("last", ["y[c,p] = t10[c,p]", "y[c] += t10[c,p]*t10[c,p]"])
def test_squares_of_squares_stay_short(last: str) -> None:
    squares = [f"t{k + 1}[c,p] = t{k}[c,p]*t{k}[c,p] - 0.5" for k in range(10)]
    program = parsed("; ".join(["t0[c,p] = x[p,c]*0.25", *squares, last]))
    joined = with_maps_joined(program)
    assert len(joined.statements) < len(program.statements)
    assert max(len([*walk(s.body)]) for s in joined.statements) <= MOST_EXPRESSIONS
    x = np.random.default_rng(0).integers(-4, 5, (40, 5)).astype("f4")
    assert np.allclose(run_program(joined, {"x": x})["y"], run_program(program, {"x": x})["y"])


def test_axes_of_one_element_and_images() -> None:
    program = parsed("f[n,h,w,c] = x[n,h,w,c]*2; y[n,c,h,w] = f[n,h,w,c] - 1", (1, 6, 7, 3))
    assert "y[n, c, h, w] = x[n, h, w, c]*2 - 1 where" in str(with_maps_joined(program))


@pytest.mark.parametrize("n", ["0", "n"])
def test_products_of_an_axis_of_one_element_read_copies_where_they_lie(n: str) -> None:
    """Whether its subscript is an iterator or a number."""
    program = parsed(f"f[n,b,k,j] = x[n,b,j,k]; y[{n},b,i,j] += x[{n},b,i,k]*f[{n},b,k,j]", (1, 3, 6, 7))
    joined = with_maps_joined(program)
    assert "f" not in joined.tensor and f"*x[{n}, b, j, k]" in str(joined)
    x = np.random.default_rng(0).integers(-4, 5, (1, 3, 6, 7)).astype("f4")
    assert np.array_equal(run_program(joined, {"x": x})["y"], x @ x.swapaxes(2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "f[p,c] = x[p,c]*2; y[p,c] = f[p,c] + 1",  # nothing is turned
        "f[c,p] = x[p,c]; y[p,c] = f[c,p]*2",  # turned back
        "f[p,c] = x[p,c]*2; y[c,p] = f[p,c]; z[p,c] = f[p,c]",  # somebody else reads it
        "f[p,c] = x[p,c]*2; y[c,p] = f[p,c] + x[p,c]",  # two operands
        "f[p,c] = exp(x[p,c]); y[c,p] = f[p,c]",  # a function
        "f[p,c] = x[p,c]*f32(p); y[c,p] = f[p,c]",
        "f[p,c] = x[p,c]*2 where 1 <= p < 40 and 0 <= c < 5; y[c,p] = f[p,c] where 1 <= p < 40 and 0 <= c < 5",
        "f[p,c] = x[p,c]*2; y[c] += f[p,c]*x[p,c]",  # two operands of a sum
        "f[p] = x[p,0]*2 where 0 <= p < 40; y[p,c] += f[p] where 0 <= p < 40 and 0 <= c < 3",  # elements used again
        "f[p,c] = x[p,c]*f32(c); y[p] += f[p,c]",
        "f[5*p + c] = x[p,c]*2; y += f[i]",  # in another shape
        "f[c,p] = x[p,c]*2; y[p,q] += f[c,p]*x[q,c]",  # a product of it, but no copy
        "f[c,p] = x[p,c]; y[c,i] += f[c,i+r]*x[r,c] where 0 <= i < 30 and 0 <= r < 3 and 0 <= c < 5",  # windows
        "f[c,p] = x[p,c]; y[p,q] += f[c,p]*f[c,q]",
    ],
)
def test_others_stay(text: str) -> None:
    program = parsed(text)
    assert with_maps_joined(program) is program


def test_what_is_overwritten_before_it_is_turned_stays() -> None:
    box = "where 0 <= p <= 39 and 0 <= c <= 4"
    program = parse_program(
        "program p\ninput x: f32[40, 5]\ntemporary a: f32[40, 5]\ntemporary f: f32[40, 5]\noutput y: f32[5, 40]\n"
        f"r[p, c]: a[p, c] = x[p, c] {box}\ns[p, c]: f[p, c] = a[p, c] + 1 {box}\n"
        f"t[p, c]: a[p, c] = 0 {box}\nu[p, c]: y[c, p] = f[p, c] + a[0, 0] {box}\n"
    )
    assert with_maps_joined(program) is program


def test_models_have_them_across_groups() -> None:
    program = parsed(AFTER.replace("= x[p,c]", "= f32(x[p,c])"), (300, 3), "u8")
    nodes = tuple(Node(s.name, "Op", (), (), (s,)) for s in program.statements)
    engine = poly.compile(Graph("g", program.tensors, nodes), threads=1)
    assert len(engine.steps) == 1
    x, b = np.arange(900, dtype=np.uint8).reshape(300, 3), np.ones(3, np.float32)
    assert np.array_equal(engine.run({"x": x, "b": b})["y"], np.maximum(x.T * np.float32(0.5) + b[:, None], 0))
