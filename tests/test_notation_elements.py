"""Elements as subscripts in choices of notation: a condition on data holds for the place as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import poly
from poly.errors import IndexRangeError
from poly.interp import run_program

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X, B = RNG.standard_normal(10), RNG.integers(-3, 14, 40)
ROWS, V = RNG.integers(-3, 14, (8, 20)).astype("i4"), RNG.standard_normal((8, 20))
INSIDE = (B >= 0) & (B < 10)
AT = np.where(INSIDE, B, 0)


def _by_rows(a: dict[str, Array]) -> Array:
    c, inside = a["c"], (a["c"] >= 0) & (a["c"] < 10)
    return np.where(inside, a["v"] * a["x"][np.where(inside, c, 0)], 0).sum(1)


def _walked(a: dict[str, Array]) -> Array:
    y = a["y"].copy()
    for t in range(3):
        for i in range(len(y)):
            y[i] = a["x"][a["b"][i]] + t if 0 <= a["b"][i] < 10 and y[i] < 2 else y[i] / 2
    return y


def _turns(a: dict[str, Array]) -> Array:
    b, x = a["b"], a["x"]
    return np.array([x[b[i]] if i < 5 or i > 20 and b[i] > 2 else 1.0 for i in range(len(b))])


def _of_places(a: dict[str, Array]) -> Array:
    p, x = a["p"], a["x"]
    return np.array([x[p[k]] if k >= 0 and p[k] >= 0 else 2.0 for k in p])


def _scan(a: dict[str, Array]) -> Array:
    y = a["y"].copy()
    for i in range(1, len(y)):
        y[i] = y[a["p"][i]] + 1 if a["p"][i] >= 0 else y[i - 1] / 2
    return y


STEPS = """for t:
    y[i] = x[b[i]] + f64(t) if 0 <= b[i] and b[i] < 10 and y[i] < 2 else y[i]/2 where 0 <= t < 3"""
GUARDED = np.concatenate([AT[:5], np.full(16, 99), AT[21:]])
BACK = np.concatenate([[-1], RNG.integers(-1, np.arange(1, 40))])
CASES: dict[str, tuple[str, dict[str, Array], Callable[[dict[str, Array]], Array]]] = {
    "choice": (
        "y[i] = x[b[i]] if b[i] >= 0 and b[i] < 10 else 0", {"x": X, "b": B}, lambda a: np.where(INSIDE, X[AT], 0)
    ),
    "select": (
        "y[i] = select(b[i] < 0 or b[i] > 9, 5, x[b[i]]*2)", {"x": X, "b": B}, lambda a: np.where(INSIDE, X[AT] * 2, 5)
    ),
    "other data": ("y[i] = x[b[i]] if m[i] > 0 else 0", {"x": X, "b": B, "m": INSIDE * 1.5},
                   lambda a: np.where(INSIDE, X[AT], 0)),
    "sum": ("y[i] += v[i,j]*x[c[i,j]] if c[i,j] >= 0 and c[i,j] < 10 else 0", {"v": V, "x": X, "c": ROWS}, _by_rows),
    "scalar": ("y[] = x[b[]] if b[] >= 0 else 5.0", {"x": X, "b": np.array(-4)}, lambda a: np.array(5.0)),
    "steps": (STEPS, {"y": RNG.standard_normal(40), "x": X, "b": B}, _walked),
    "loops as well": ("y[i] = x[b[i]] if i < 5 or i > 20 and b[i] > 2 else 1", {"x": X, "b": GUARDED}, _turns),
    "twice": ("y[i] = x[p[p[i]]] if p[i] >= 0 and p[p[i]] >= 0 else 2",
              {"x": X, "p": np.array([3, 1, 4, 1, 5, -1, 0])}, _of_places),
    "truths": ("y[i] = b[i] >= 0 and b[i] < 10 and x[b[i]] > 0", {"x": X, "b": B}, lambda a: INSIDE & (X[AT] > 0)),
    "itself": ("y[i] = y[p[i]] + 1 if p[i] >= 0 else y[i-1]/2 where 1 <= i < 40",
               {"y": RNG.standard_normal(40), "p": BACK}, _scan),
    "back": ("y[i+3] = x[b[i+3]] if b[i+3] >= 0 and b[i+3] < 10 else 0 where -3 <= i < 37", {"x": X, "b": B},
             lambda a: np.where(INSIDE, X[AT], 0)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "arrays", "expected"), CASES.values(), ids=CASES)
def test_places_under_conditions_on_data(
    text: str, arrays: dict[str, Array], expected: Callable[[dict[str, Array]], Array]
) -> None:
    dtypes = {n: {"d": "f64", "i": "i32", "l": "i64"}[a.dtype.char] for n, a in arrays.items()}
    program = poly.parse(text, dtypes=dtypes, **{n: a.shape for n, a in arrays.items()})
    assert poly.parse(str(program)) == program
    wanted = expected(arrays)
    np.testing.assert_allclose(np.asarray(run_program(program, arrays)["y"], float), wanted, rtol=1e-12, atol=1e-12)
    for threads in (1, 2):
        kernel = poly.compile(program, threads=threads)
        found = kernel(*(arrays[t.name].copy() for t in program.tensors if t.is_input))
        np.testing.assert_allclose(np.asarray(found, float), wanted, rtol=1e-12, atol=1e-12)


def test_sizes_stay_free() -> None:
    program = poly.parse("y[i] = x[b[i]] if b[i] >= 0 else 0", x=("M",), b=("N",))
    kernel, x = poly.compile(program), X.astype("f4")
    for places in (np.array([3, -1, 9]), np.array([-5])):
        np.testing.assert_array_equal(kernel(x, places), np.where(places >= 0, x[np.maximum(places, 0)], 0))


def test_a_place_beyond_the_end_is_refused_in_a_call() -> None:
    kernel = poly.compile(poly.parse("y[i] = x[b[i]] if b[i] >= 0 else 0", x=(10,), b=(3,)))
    with pytest.raises(IndexRangeError, match=r"index 10 of dimension 0 of x is outside 0 \.\. 9"):
        kernel(X.astype("f4"), np.array([1, -1, 10]))


@pytest.mark.parametrize("text", [
    "y[i] = x[b[i]] if i < 5 else 0 where 0 <= i < 20", "y[i] = x[b[i]] + 1 if i < 5 and i > 2 else 0 where 0 <= i < 9",
    "y[i] = x[b[i]] if b[i] < z[b[i]] else 0" , "y[i] = (1 if z[i] > 0 else 2)*x[b[i]]",
])  # fmt: skip
def test_no_place_is_made_where_none_is_needed(text: str) -> None:
    given = {n: (20,) for n in "xbz" if f"{n}[" in text}
    program = poly.parse(text, dtypes={"b": "i64", "z": "i64"} if "z" in given else {"b": "i64"}, **given)
    assert len(program.statements) == 1 or "z[b[i]]" in text


@pytest.mark.parametrize(("text", "shape", "lanes"), [
    ("y[i] += v[i,j]*x[c[i,j]]", (300, 20), False), ("y[i] += x[c[i,j]]", (300, 7), False),
    ("y[j] += v[i,j]*x[c[i,j]]", (20, 300), True),
])  # fmt: skip
def test_sums_of_elements_that_lie_apart_have_no_lanes(text: str, shape: tuple[int, int], lanes: bool) -> None:
    v, c = RNG.standard_normal(shape), RNG.integers(0, 10, shape)
    arrays = {"v": v, "x": X, "c": c} if "v[" in text else {"x": X, "c": c}
    program = poly.parse(text, dtypes={"v": "f64", "x": "f64", "c": "i64"} if "v[" in text else {"x": "f64"},
                         **{n: a.shape for n, a in arrays.items()})  # fmt: skip
    kernel = poly.compile(program)
    assert ("vectorise" in str(kernel.schedule)) == lanes
    found = kernel(*(arrays[t.name] for t in program.inputs))
    wanted = np.where("v[" in text, v, 1.0) * X[c]
    np.testing.assert_allclose(np.asarray(found, float), wanted.sum(0 if "y[j]" in text else 1), rtol=1e-10, atol=1e-10)
