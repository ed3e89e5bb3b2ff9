"""Loops of nests that `break` and `continue` leave, beside the Python functions that they are."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import ast
from random import Random
from typing import Any

import numpy as np
import pytest

import poly
from poly.errors import ParseError
from poly.frontend.nest import Array, Nest, f64, i32, i64, nest
from poly.frontend.nest_leaving import without_leaving

RNG = np.random.default_rng(0)
N, M = 20, 30


@nest
def mandelbrot(N: int, M: int, trips: i32[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            x = 0.0
            y = 0.0
            for _ in range(60):
                if x * x + y * y > 4.0:
                    break
                x, y = x * x - y * y - 2.0 + 3.0 * j / M, 2 * x * y - 1.0 + 2.0 * i / N
                trips[i, j] += 1


@nest
def found(N: int, M: int, x: i64[Array, "N, M"], at: i64[Array, "N"], s: i64[Array, "N"]) -> None:
    for i in range(N):
        at[i] = -1
        for j in range(M):
            s[i] += x[i, j]
            if x[i, j] == 7:
                at[i] = j
                break
            s[i] += 1


@nest
def deep(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: f64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            if i == j:
                continue
            if x[i, j] < 5:
                c[i] += 1
                if x[i, j] == 3:
                    s[i] += 2
                    continue
                else:
                    s[i] -= 3
            elif x[i, j] == 8:
                s[i] *= 1.5
                continue
            else:
                if x[i, j] == 9 and j > 4:
                    break
            s[i] += x[i, j]


@nest
def two_loops(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            t = 0
            for k in range(j):
                if x[i, k] == t:
                    break
                t += x[i, k]
            if t > 20:
                s[i] = t
                break
            c[i] += t


@nest
def to_the_end(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            c[i] += x[i, j]
            if x[i, j] > 4:
                if j >= 9:
                    break
                else:
                    pass
            if c[i] > 20:
                continue


@nest
def sorted_in(N: int, x: f64[Array, "N"]) -> None:
    for i in range(1, N):
        for j in range(i, 0, -1):
            if x[j - 1] <= x[j]:
                break
            x[j - 1], x[j] = x[j], x[j - 1]


@nest
def bisected(N: int, M: int, x: f64[Array, "N"], q: f64[Array, "M"], at: i64[Array, "M"]) -> None:
    for k in range(M):
        low = 0
        high = N
        for _ in range(12):
            if low >= high:
                break
            middle = (low + high) // 2
            if x[middle] < q[k]:
                low = middle + 1
            else:
                high = middle
        at[k] = low


@nest
def three_in_a_row(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: f64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(M):
            if x[i, j] > 2:
                if x[i, j] < 4:
                    continue
                c[i] += 1
            if i > j:
                if i < 5:
                    continue
            s[i] += x[i, j]
            if x[i, j] > 7:
                if s[i] > 40.0:
                    break
                c[i] += j
            s[i] *= 1.25


@nest
def not_found(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"], s: i64[Array, "N"]) -> None:
    for i in range(N):
        for j in range(i, M):
            if x[i, j] == 7:
                c[i] = j
                break
            s[i] += x[i, j]
        else:
            c[i] = -1
            for j in range(M):
                if x[i, j] == 3:
                    break
            else:
                s[i] *= 2
            if s[i] > 90:
                break
        for j in range(1):
            s[i] += x[i, j]
        else:
            s[i] += 3


@nest
def counting(N: int, M: int, x: i64[Array, "N, M"], c: i64[Array, "N"]) -> None:
    i = 0
    while i < N:
        s = 0
        j = 1
        last = M - 2
        while j <= last:
            s += x[i, j] + j
            if s > 30:
                break
            j += 2
        c[i] += s
        j, k = i - 1, 0
        while j >= k:
            c[i] = 3 * c[i] % 7 + c[j]
            j -= 3
        i += 1


DIGITS, COUNTS = RNG.integers(0, 10, (N, M)), np.zeros(N, "i8")
CASES: list[tuple[Nest[..., Any], tuple[int, ...], tuple[np.ndarray[Any, Any], ...]]] = [
    (mandelbrot, (N, M), (np.zeros((N, M), "i4"),)),
    (found, (N, M), (DIGITS, COUNTS, COUNTS)),
    (deep, (N, M), (DIGITS, COUNTS, np.ones(N))),
    (three_in_a_row, (N, M), (DIGITS, COUNTS, np.ones(N))),
    (two_loops, (N, M), (DIGITS, COUNTS, COUNTS)),
    (to_the_end, (N, M), (DIGITS, COUNTS)),
    (not_found, (N, M), (DIGITS, COUNTS, COUNTS)),
    (counting, (N, M), (DIGITS, COUNTS)),
    (sorted_in, (N,), (RNG.random(N),)),
    (bisected, (N, M), (np.sort(RNG.random(N)), RNG.random(M), np.zeros(M, "i8"))),
]


@pytest.mark.parametrize(("function", "sizes", "arrays"), CASES, ids=[c[0].__name__ for c in CASES])
def test_loops_that_are_left(
    function: Nest[..., Any], sizes: tuple[int, ...], arrays: tuple[np.ndarray[Any, Any], ...]
) -> None:
    expected = [a.copy() for a in arrays]
    function(*sizes, *expected)
    inputs = [t.name for t in function.program.tensors if t.is_input]
    made: Any = poly.compile(function)(*arrays)
    results = made if isinstance(made, tuple) else (made,)
    for tensor, found in zip(function.program.outputs, results, strict=True):
        np.testing.assert_allclose(found, expected[inputs.index(tensor.name)], err_msg=tensor.name)


def test_a_break_that_loops_decide_is_a_shorter_range() -> None:
    def triangle(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
        for i in range(N):
            if x[i] > 0:
                for j in range(N):
                    if j > i:
                        break
                    y[i] += x[j]

    with pytest.raises(ParseError, match=r"a break that data do not decide(.|\n)*try: end the range earlier"):
        nest(triangle)


TESTS = ("x[i, j] > 5", "x[i, j] == 3", "i > j", "x[i, j] + c[i] > 9", "j == 4", "i + j > 9 or i < 3", "x[j, i] < 2")
STEPS = ("s[i] += x[i, j]", "c[i] += 1", "s[i] *= 0.5", "c[i] += x[i, j] * j")


def _block(random: Random, depth: int, indent: str) -> list[str]:
    found = list[str]()
    for _ in range(random.randint(1, 3)):
        if not depth or random.random() < 0.45:
            found.append(indent + random.choice(STEPS))
            continue
        found += [f"{indent}if {random.choice(TESTS)}:", *_side(random, depth - 1, f"{indent}    ")]
        if random.random() < 0.4:
            found += [f"{indent}else:", *_side(random, depth - 1, f"{indent}    ")]
    return found


def _side(random: Random, depth: int, indent: str) -> list[str]:
    chance = random.random()
    inner = _block(random, depth, indent) if chance < 0.8 else []
    return [*inner, indent + random.choice(("continue", "continue", "break"))] if chance > 0.5 else inner


def _left(text: str) -> tuple[str, int]:
    """A body that is left by conditions, and how many nodes it has."""
    made = without_leaving(ast.parse(text).body, (), ("N",))
    return "\n".join(map(ast.unparse, made)), sum(1 for s in made for _ in ast.walk(s))


def _values(text: str, x: np.ndarray[Any, Any]) -> list[float]:
    names: dict[str, Any] = {"N": len(x), "x": x, "c": np.zeros(len(x), "i8"), "s": np.ones(len(x))}
    exec(text, names)
    return [*names["c"], *names["s"]]


def test_bodies_that_are_left_by_conditions_do_the_same_in_python() -> None:
    x = RNG.integers(0, 10, (7, 7))
    for seed in range(300):
        lines = ["for i in range(N):", "    for j in range(N):", *_block(Random(seed), 3, " " * 8)]
        text = "\n".join(lines)
        assert _values(_left(text)[0], x) == _values(text, x), text


@pytest.mark.parametrize("test", ["i > {k}", "x[i, j] > {k}"])
def test_twice_the_branches_are_no_more_than_three_times_the_nodes(test: str) -> None:
    def nodes(count: int) -> int:
        branch = (
            f"        if {test}:\n            if x[j, i] < {{k}}:\n                continue\n        s[i] += x[i, j]"
        )
        lines = (branch.format(k=k) for k in range(count))
        return _left("\n".join(["for i in range(N):", "    for j in range(N):", *lines]))[1]

    assert nodes(12) < 3 * nodes(6)


def test_a_while_that_does_more_than_count_is_refused() -> None:
    def read_after(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        while k < N - 1:
            x[k] = 0.0
            k += 1
        x[k] = 1.0

    def without_its_step(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        while k < N:
            if x[k] > 0:
                continue
            k += 1

    def moving_end(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        end = 9
        while k < end:
            x[0] += k
            end -= 1
            k += 1

    def begun_once(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        for i in range(N):
            while k < N:
                x[i] += k
                k += 1

    def half(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        while k < N / 2:
            x[k] = 0.0
            k += 1

    def of_data(N: int, x: f64[Array, "N"]) -> None:
        k = 0
        end = x[0]
        while k < end:
            x[0] += 1.0
            k += 1

    for function in (read_after, without_its_step, moving_end, begun_once, half, of_data):
        with pytest.raises(ParseError, match=r"a while loop only counts(.|\n)*try: a bound that no run exceeds"):
            nest(function)
