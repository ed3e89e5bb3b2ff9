"""Subscripts of nests that are elements or local integers: what numpy's users call fancy indexing, in loops."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poly
from poly.errors import IndexRangeError, ParseError
from poly.frontend.nest import Array, Nest, f32, f64, i32, i64, nest, u8
from poly.interp import run_program

RNG = np.random.default_rng(0)
N, K, M = 300, 7, 37


@nest
def histogram(N: int, M: int, b: i64[Array, "N"], h: f64[Array, "M"]) -> None:
    for i in range(N):
        h[b[i]] += 1


@nest(exact=True)
def by_a_local(N: int, M: int, b: i32[Array, "N"], x: f32[Array, "N"], h: f32[Array, "M"], c: i64[Array, "M"]) -> None:
    for i in range(N):
        k = b[i]
        h[k] = h[k] + x[i]
        c[k] += 1


@nest
def of_floats(N: int, M: int, x: f64[Array, "N"], h: f64[Array, "M"]) -> None:
    for i in range(N):
        k = int(x[i] * M)
        h[k] += 1


@nest
def rows(N: int, K: int, M: int, col: i32[Array, "N, K"], v: f64[Array, "N, K"], x: f64[Array, "M"],
         y: f64[Array, "N"]) -> None:  # fmt: skip
    for i in range(N):
        s = 0.0
        for k in range(K):
            s += v[i, k] * x[col[i, k]]
        y[i] = s


@nest
def scattered(N: int, p: i64[Array, "N"], a: f64[Array, "N"], c: f64[Array, "N"]) -> None:
    for i in range(N):
        c[p[i]] = a[i] * 2
    for i in range(N):
        a[p[i]] = a[p[p[i]]] + c[i]


@nest
def table(N: int, K: int, image: u8[Array, "N, K"], t: f32[Array, "256"], y: f32[Array, "N, K"]) -> None:
    for i in range(N):
        for j in range(K):
            y[i, j] = t[image[i, j]] if j > 0 else 0.0


@nest
def swapped(N: int, p: i64[Array, "N"], a: f64[Array, "N"]) -> None:
    for i in range(N):
        a[i], a[p[i]] = a[p[i]], a[i]


@nest
def walked(N: int, p: i64[Array, "N"], seen: i64[Array, "N"]) -> None:
    k = 0
    for i in range(N):
        seen[i] = k
        k = p[k]


@nest
def largest(N: int, M: int, b: i64[Array, "N"], x: i64[Array, "N"], h: i64[Array, "M"], g: i64[Array, "M"]) -> None:
    for i in range(N):
        if x[i] > h[b[i]]:
            h[b[i]] = x[i]
        g[b[i]] = max(x[i], g[b[i]]) + 1


@nest
def itself(N: int, p: i64[Array, "N"], x: i64[Array, "N"]) -> None:
    for i in range(N):
        p[i] = p[i] + x[p[i]]


@nest
def branches(N: int, M: int, b: i64[Array, "N"], x: f64[Array, "N"], h: f64[Array, "M"]) -> None:
    for i in range(1, N):
        if x[i] > 0.5:
            h[b[i - 1]] += x[i]
        else:
            h[b[i]] -= x[b[i]] if i > 2 else 1.0


@nest
def bins(N: int, M: int, K: int, b: i64[Array, "N, K"], h: f64[Array, "M, K"], total: f64[Array, "K"]) -> None:
    for i in range(N):
        for j in range(K):
            h[b[i, j], j] += 1
    for k in range(M):
        for j in range(K):
            total[j] += h[k, j] * k


@nest
def padded(N: int, K: int, M: int, col: i32[Array, "N, K"], v: f64[Array, "N, K"], x: f64[Array, "M"],
           y: f64[Array, "N"], z: f64[Array, "N"]) -> None:  # fmt: skip
    for i in range(N):
        z[i] = x[col[i, 0]] if col[i, 0] >= 0 else 0.0
        for k in range(K):
            if col[i, k] >= 0:
                y[i] += v[i, k] * x[col[i, k]]


@nest
def inside(N: int, M: int, x: f64[Array, "N"], h: f64[Array, "M"]) -> None:
    for i in range(N):
        k = int(x[i] * (M + 5)) - 3
        if 0 <= k < M:
            h[k] += 1


@nest
def by_two_tests(N: int, M: int, b: i64[Array, "N"], x: f64[Array, "N"], h: f64[Array, "M"],
                 y: f64[Array, "N"]) -> None:  # fmt: skip
    for i in range(N):
        if b[i] >= 0 and h[b[i]] < 0.5:
            h[b[i]] = x[i]
            y[i] = h[b[i]] * 2
        elif not (b[i] < 0 or h[b[i]] > 3):
            h[b[i]] *= 1.5


@nest
def steps(N: int, p: i64[Array, "N"], x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = (
            (x[p[p[i]]] if p[p[i]] >= 0 else 1.0) if i > 0 and p[i] >= 0
            else (x[p[i - 1]] if i > 1 and p[i - 1] >= 0 else 2.0)
        )  # fmt: skip


@nest
def in_branches(N: int, M: int, b: i64[Array, "N"], x: f64[Array, "M"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        if 0 <= b[i] < M:
            k = b[i]
            v = x[k]
            y[i] = v
            for j in range(3):
                x[k] += v / 64
                y[i] -= x[b[i]] if j > 0 else 0.0


@nest
def computed(N: int, M: int, b: i64[Array, "N"], x: f64[Array, "N"], h: f64[Array, "M"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        h[int(x[i] * (M - 1)) + 1] += 1
        h[(b[i] + i) % M] = h[(b[i] + i) % M] * 0.5
        if b[i] >= 3:
            y[i] = h[b[i] - 3] + h[max(b[i] - 5, 0)]
        y[i * i % N] += h[(b[i] >> 1) & 7] if b[i] > 1 else h[-b[i] + 1]


@nest
def twiddles(N: int, w: f64[Array, "N"], x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for k in range(N):
        for j in range(N):
            y[(k + 5) % N] += x[j] * w[j * k % N]


@nest
def butterflies(x: f64[Array, "32"]) -> None:
    for s in range(5):
        h = 1 << s
        for j in range(32 >> 1):
            p = j // h * 2 * h + j % h
            x[p], x[p + h] = x[p] + x[p + h], x[p] - x[p + h]


PLACES, FLOATS, NUMBERS = RNG.integers(0, M, N), RNG.random(N), RNG.integers(0, 100, N)
EVERYWHERE, ORDER = RNG.integers(0, N, N), RNG.permutation(N)
CASES: list[tuple[Nest[..., Any], tuple[int, ...], tuple[np.ndarray[Any, Any], ...]]] = [
    (histogram, (N, M), (PLACES, np.zeros(M))),
    (by_a_local, (N, M), (PLACES.astype("i4"), FLOATS.astype("f4"), np.ones(M, "f4"), np.zeros(M, "i8"))),
    (of_floats, (N, M), (FLOATS, np.zeros(M))),
    (rows, (40, K, M), (RNG.integers(0, M, (40, K)).astype("i4"), RNG.random((40, K)), RNG.random(M), np.zeros(40))),
    (scattered, (N,), (EVERYWHERE, FLOATS, np.zeros(N))),
    (table, (N, K), (RNG.integers(0, 256, (N, K)).astype("u1"), RNG.random(256).astype("f4"), np.zeros((N, K), "f4"))),
    (swapped, (N,), (EVERYWHERE, FLOATS)),
    (walked, (N,), (ORDER, np.zeros(N, "i8"))),
    (largest, (N, M), (PLACES, NUMBERS, np.zeros(M, "i8"), np.zeros(M, "i8"))),
    (itself, (N,), (ORDER, NUMBERS)),
    (branches, (N, M), (PLACES, FLOATS, np.zeros(M))),
    (padded, (40, K, M), (
        RNG.integers(-1, M, (40, K)).astype("i4"), RNG.random((40, K)), RNG.random(M), np.zeros(40), np.zeros(40)
    )),
    (inside, (N, M), (FLOATS, np.zeros(M))),
    (by_two_tests, (N, M), (np.where(PLACES % 7 == 0, -5, PLACES), FLOATS, RNG.random(M), np.zeros(N))),
    (steps, (N,), (np.maximum(RNG.integers(-40, N, N), -1), FLOATS, np.zeros(N))),
    (in_branches, (N, M), (PLACES - 3, RNG.random(M), np.zeros(N))),
    (computed, (N, M), (PLACES, FLOATS, np.zeros(M), np.zeros(N))),
    (twiddles, (K,), (FLOATS[:K], RNG.random(K), np.zeros(K))),
    (butterflies, (), (FLOATS[:32],)),
    (bins, (40, M, K), (RNG.integers(0, M, (40, K)), np.zeros((M, K)), np.zeros(K))),
]


@pytest.mark.parametrize(("function", "sizes", "arrays"), CASES, ids=[c[0].__name__ for c in CASES])
def test_elements_as_subscripts(
    function: Nest[..., Any], sizes: tuple[int, ...], arrays: tuple[np.ndarray[Any, Any], ...]
) -> None:
    expected = [a.copy() for a in arrays]
    function(*sizes, *expected)
    program = function.program
    wanted = {t.name: a for t, a in zip((t for t in program.tensors if t.is_input), expected, strict=True)}
    bound = program.bind(**dict(zip(program.parameters, sizes, strict=True)))
    given = dict(zip(wanted, arrays, strict=True))
    for made in (poly.compile(function), poly.compile(bound), poly.compile(bound, threads=2)):
        found = made(*arrays)
        results = found if isinstance(found, tuple) else (found,)
        for name, array in zip((t.name for t in program.outputs), results, strict=True):
            np.testing.assert_allclose(np.asarray(array, float), wanted[name], rtol=1e-5, err_msg=name)
    for name, array in run_program(bound, given).items():
        np.testing.assert_allclose(np.asarray(array, float), wanted[name], rtol=1e-5, err_msg=name)


def test_a_subscript_beyond_the_end_is_refused_in_a_call() -> None:
    kernel, h = poly.compile(histogram), np.zeros(M)
    for wrong in (-1, M):
        with pytest.raises(IndexRangeError, match=f"index {wrong} of dimension 0 of h is outside 0 .. {M - 1}"):
            kernel(np.array([3, wrong]), h)
    with pytest.raises(IndexRangeError, match=f"indices do not count from the end: k [+] {M} if k < 0 else k"):
        kernel(np.array([3, -M]), h)


def test_a_refusal_in_a_call_names_the_line() -> None:
    lines = Path(__file__).read_text().splitlines()
    bound = histogram.program.bind(**dict.fromkeys(histogram.program.parameters, 2) | {"M": M})
    for made in (histogram, bound, poly.Schedule(histogram)):
        kernel: Any = poly.compile(made)
        with pytest.raises(IndexRangeError, match=r"^statement S0, .*test_nest_elements.py:\d+: index") as refusal:
            kernel(np.array([3, M]), np.zeros(M))
        assert refusal.value.statement == "S0"
        line = int(re.findall(r"py:(\d+):", str(refusal.value))[0])
        assert lines[line - 1].strip() == "h[b[i]] += 1"


def test_a_place_that_its_condition_reads_stays_as_it_is() -> None:
    assert "h[b[i]] max= x[i]" in str(largest.program)


def test_subscripts_that_are_no_elements() -> None:
    def of_float(N: int, x: f64[Array, "N"], h: f64[Array, "N"]) -> None:
        for i in range(N):
            h[x[i]] += 1

    def beyond(N: int, b: i64[Array, "N"], h: f64[Array, "N, N"]) -> None:
        for i in range(N):
            h[b[i], i + 1] += 1

    def sparse(N: int, L: int, p: i64[Array, "N + 1"], v: f64[Array, "L"], y: f64[Array, "N"]) -> None:
        for i in range(N):
            for k in range(p[i], p[i + 1]):
                y[i] += v[k]

    def in_a_branch(N: int, b: i64[Array, "N"], c: i64[Array, "N"], y: i64[Array, "N"]) -> None:
        for i in range(N):
            if b[i] >= 0:
                if c[b[i]] > 1:
                    y[i] = c[c[b[i]] * 0.5]  # pyright: ignore
                    y[i] += 1

    def in_a_choice(N: int, b: i64[Array, "N"], h: f64[Array, "N, N"], y: f64[Array, "N"]) -> None:
        for i in range(N):
            y[i] = h[b[i], i + 1] if b[i] >= 0 else 0.0

    wrong: list[tuple[Callable[..., None], str]] = [
        (in_a_branch, r"c\[b\[i\]\] \* 0.5 is f64(.|\n)*try: k = int\(c\[b\[i\]\] \* 0.5\) before it"),  # not our names
        (in_a_choice, r"h\[b\[i\], i \+ 1\] is outside(.|\n)*, or h\[b\[i\], i \+ 1\] if i \+ 1 < N else 0.0"),
        (of_float, r"a subscript is an integer, x is f64(.|\n)*try: k = int\(x\[i\]\) before it, and k as"),
        (beyond, r"h\[b\[i\], i \+ 1\] is outside its shape \(N, N\)(.|\n)*try: loops in which i \+ 1 < N"),
        (sparse, r"p\[i\] is data(.|\n)*try: all elements with the row of each"),
    ]
    for function, hint in wrong:
        with pytest.raises(ParseError, match=hint):
            poly.nest(function)
