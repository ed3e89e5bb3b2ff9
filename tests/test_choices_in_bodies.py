"""Reads in a choice are done where the choice takes them: boundaries of stencils, triangles, parts of tensors."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import poly
from poly.errors import ParseError, PolyError
from poly.frontend.nest import Array, Nest, f64, nest
from poly.interp import run_program

Floats = npt.NDArray[Any]
N, M = 7, 5
X, A = np.arange(1.0, N + 1, dtype="f4"), np.arange(1.0, N * M + 1, dtype="f4").reshape(N, M)
SQUARE = np.arange(1.0, N * N + 1, dtype="f4").reshape(N, N) % 5
AT = np.array([3, 0, 6, 6, 1, 2, 5])
TRUTHS = X % 3 == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s[i] += (Q[i,k]*x[k] if k < i else 0)", np.tril(SQUARE, -1) @ X),
        ("y[i,j] = (Q[i,j]*x[j] if j <= i else -inf)", np.where(np.tri(N, dtype=bool), SQUARE * X, -np.inf)),
        ("y[i] = (2*x[i-1] if i >= 1 else x[i])", np.r_[X[:1], 2 * X[:-1]]),
        ("y[i] = (x[i] if i == 0 else 2*x[i-1])", np.r_[X[:1], 2 * X[:-1]]),
        ("y[i] = select(i >= 1, 2*x[i-1], 5) where 0 <= i < 7", np.r_[5, 2 * X[:-1]]),
        ("y[i] = (x[i-1] + x[i+1] if 1 <= i < 6 else x[i])", np.r_[X[:1], X[:-2] + X[2:], X[-1:]]),
        ("y[i] = (9 if i == 0 or i == 6 else x[i-1]*x[i+1] + 0*x[i])", np.r_[9, X[:-2] * X[2:], 9]),
        ("y[i] = (1 if i >= 1 and x[i-1] > 3 else x[i])", np.r_[X[:1], np.where(X[:-1] > 3, 1, X[1:])]),
        ("y[i] = (x[i] if i < 7 else 3*z[i-7]) where 0 <= i < 14", np.r_[X, 3 * X]),
        ("y[i] = (x[i] if x[i] > 3 else 2.0*3.0 + x[i])", np.where(X > 3, X, X + 6)),
        ("y[i] = (2*x[at[i-1]] if i >= 1 else 0) where 0 <= i < 7", np.r_[0, 2 * X[AT[:-1]]]),
        ("y[i] = (m[i-1] and m[i] if i >= 1 else True)", np.r_[True, TRUTHS[:-1] & TRUTHS[1:]]),
        ("y[i] = (x[max(i-2, 0)] if max(i-2, 0) < 7 else 5) where 0 <= i < 12", np.r_[X[:1], X[:1], X, 5, 5, 5]),
        ("y[i] = (x[i] if min(i, 9-i) >= 3 else 1) where 0 <= i < 10", np.r_[1, 1, 1, X[3:], 1, 1, 1]),
        ("y[i] = (1 if abs(i-3) > 3 else x[i]) where 0 <= i < 9", np.r_[X, 1, 1]),
        ("y[i] = x[max(i-1, 0)] + x[min(i+1, 6)] + 0*x[i]", np.pad(X, 1, "edge")[:-2] + np.pad(X, 1, "edge")[2:]),
        ("y[i] = x[abs(i-1)]*x[6 - abs(5-i)] + 0*x[i]", np.pad(X, 1, "reflect")[:-2] * np.pad(X, 1, "reflect")[2:]),
        ("y[i] = x[i-1 if i >= 1 else 6]*x[0 if z[i] > 2 else i] + 0*x[i]", np.roll(X, 1)*np.where(X > 2, X[0], X)),
        ("y[i] = (x[max(i-3, 0, 1)] if i > 0 else 9) + 0*x[i]", np.r_[9, X[np.maximum(np.arange(1, 7) - 3, 1)]]),
        ("y[i] = (2*x[i-1] if i % 2 == 0 else 3*x[i+1])", [0, 9, 4, 15, 8, 21]),  # as far as all is in bounds
    ],
)
def test_choices_in_notation(text: str, expected: npt.ArrayLike) -> None:
    known: dict[str, Floats] = {"x": X, "z": X, "Q": SQUARE, "at": AT, "m": TRUTHS}
    used = {name: array for name, array in known.items() if f"{name}[" in text}
    program = poly.parse(text, dtypes={"m": "bool"} if "m" in used else None, **_shapes(used))
    np.testing.assert_array_equal(poly.compile(program)(**used), np.asarray(expected))
    assert str(poly.parse(str(program))) == str(program)


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = (2*x[i-1] if i >= 1 else 5)",  # where x may be read the choice is none
        "y[i] = (x[i]*2 if i < 7 else 3*z[i-7])",  # two tensors one after the other: how many elements?
    ],
)
def test_ranges_that_a_choice_leaves_open_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="range of index 'i'.*(\n.*)*try: where 0 <= i < [57],"):
        poly.parse(text, **_shapes({name: X for name in "xz" if f"{name}[" in text}))


def test_a_guard_that_is_not_needed_goes() -> None:
    text = "y[i] = (2*x[i] if i >= 3 else 3*x[i])"
    assert len(poly.parse(text, x=(N,)).statements[0].reads) == 1  # one load for both, in whole vectors


@nest
def edges(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = x[i] if i == 0 else 9.0 if i == N - 1 or x[i - 1] > 4 else x[i - 1] * x[i + 1]


@nest
def before(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = 1.0 if i > 0 and x[i - 1] > 4 and not (i == N - 1 or x[i + 1] > 6) else 0.0


@nest
def clipped(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = x[min(max(i - 3, 0), N - 1)] - x[max(0, min(i + 2, N - 1, 7))] if i != 4 else x[max(i, 1) - 1]


@nest
def around(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = x[(i - 1) % N] + 2 * x[(i + 1) % N] if i > 0 else x[(2 * i) % N]


@nest
def inner(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(1, N - 1):
        y[i] = x[max(i - 1, 0)] + x[(i + 1) % N] if i > 0 else 7.0


@nest
def within(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = x[i + 1] if max(i, 2) < N - 1 else x[i - 2] if not min(i - 1, 5) < 1 else 3.0


@pytest.mark.parametrize("function", [edges, before, clipped, around, inner, within])
def test_choices_in_nests(function: Nest[..., None]) -> None:
    for count in (1, 2, 9):
        x, y = np.arange(float(count)), np.zeros(count)
        found = poly.compile(function)(x, y)
        function(count, x, y)
        np.testing.assert_array_equal(found, y)


def test_branches_that_are_never_taken_go() -> None:
    assert "y[i] = x[i - 1] + x[i + 1] where" in str(inner.program)


def test_further_around_than_once_is_refused() -> None:
    def far(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
        for i in range(N):
            y[i] = x[(3 * i) % N]

    with pytest.raises(ParseError, match="more than once"):
        nest(far)


class Checked:
    """An array that refuses negative indices, too."""

    def __init__(self, array: Floats) -> None:
        self.array = array

    def __getitem__(self, index: int | tuple[int, ...]) -> float:
        if np.min(index) < 0:
            raise IndexError
        return float(self.array[index])


def condition(rng: random.Random, deep: int = 0) -> str:
    kind = rng.random()
    if deep < 2 and kind < 0.3:
        inner = f"{condition(rng, deep + 1)} {rng.choice(['and', 'or'])} {condition(rng, deep + 1)}"
        return f"not ({inner})" if kind < 0.05 else f"({inner})"
    sign = rng.choice(["<", "<=", ">", ">=", "==", "!="])
    return "x[i] > 3" if kind < 0.35 else f"{rng.choice('ij')} {sign} {rng.randint(0, 6)}"


def value(rng: random.Random, deep: int = 0) -> str:
    kind = rng.random()
    if deep < 3 and kind < 0.45:
        return f"({value(rng, deep + 1)} if {condition(rng)} else {value(rng, deep + 1)})"
    if deep < 3 and kind < 0.7:
        return f"({value(rng, deep + 1)} {rng.choice('+*-')} {value(rng, deep + 1)})"
    a, b = rng.choice(["i", "i-1", "i+1", "j+1", "i-2"]), rng.choice(["j", "j-1", "j+1"])
    return rng.choice([f"{rng.randint(0, 3)}.0", f"x[{a}]", f"A[{a},{b}]"])


def test_random_choices_are_pythons() -> None:
    """What is accepted is what Python computes, and never reads what is not there."""
    rng, accepted = random.Random(5), 0
    for k in range(300):
        body = value(rng)
        used: dict[str, Floats] = {name: array for name, array in (("x", X), ("A", A)) if f"{name}[" in body}
        try:
            program = poly.parse(f"y[i,j] = {body} where 0 <= i < {N} and 0 <= j < {M}", **_shapes(used))
        except PolyError:
            continue
        names = {name: Checked(array) for name, array in used.items()}
        expected = [[eval(body, {**names, "i": i, "j": j}) for j in range(M)] for i in range(N)]
        found: Any = poly.compile(program)(**used) if k % 10 == 0 else run_program(program, used)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        accepted += 1
    assert accepted > 60


def _shapes(arrays: dict[str, Floats]) -> dict[str, Any]:
    return {name: array.shape for name, array in arrays.items()}
