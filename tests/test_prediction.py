"""The I/O lower bound against published formulas, the cache model against a simulated cache."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import sqrt

import islpy as isl
import numpy as np
import pytest

import poly
from poly.affine import Affine, var
from poly.frontend.nest import read_nest
from poly.machine import Engine, Machine, Memory
from poly.program import Layout, Program, Tensor
from poly.scheduling.io_bound import io_lower_bound, kernel, least_cover, least_exponents
from poly.scheduling.prediction import _lines, predict
from poly.scheduling.schedule import Schedule
from poly.scheduling.traffic import count_points
from tests.nest_texts import define

LINE = 8  # bytes, the least


def machine(*capacities: int, line: int = LINE) -> Machine:
    caches = [Memory(f"l{k + 1}", c, "cache", line=line, bytes_per_cycle=4) for k, c in enumerate(capacities)]
    dram = Memory("dram", None, "dram", bytes_per_cycle=2)
    memories = (dram, *caches[::-1], Memory("reg", 16, "register"))
    return Machine("test", "cpu", memories, (Engine("core", "core", lanes=8),))


def exponent(projections: list[str], iterators: str) -> Fraction:
    rows = [[[Fraction(i == n) for n in iterators] for i in p] for p in projections]
    found = least_exponents([kernel(r, len(iterators)) for r in rows], len(iterators))
    assert found is not None
    return sum(found, Fraction(0))


def test_exponents_of_the_literature() -> None:
    assert exponent(["ik", "kj", "ij"], "ijk") == Fraction(3, 2)  # Irony, Toledo, Tiskin 2004
    assert exponent(["ijk", "jr", "kr", "ir"], "ijkr") == Fraction(5, 3)  # Ballard, Rouse 2020: 2 - 1/N
    assert exponent(["ij", "j", "i"], "ij") == 1
    assert exponent(["ijk", "kl", "ijl"], "ijkl") == Fraction(3, 2)
    assert least_exponents([kernel([[Fraction(1), Fraction(0)]], 2)], 2) is None  # nothing holds the second iterator


def test_sliding_windows_are_bounded_by_their_subspaces() -> None:
    """x[i+r] w[r] y[i]: any two of three projections of a plane hold it."""
    one, zero = Fraction(1), Fraction(0)
    found = least_exponents([kernel([[one, one]], 2), kernel([[zero, one]], 2), kernel([[one, zero]], 2)], 2)
    assert found is not None and sum(found) == 2


def test_least_covers_against_every_vertex() -> None:
    """At an optimum as many limits are tight as there are unknowns: try them all."""
    random = np.random.default_rng(5)
    for _ in range(60):
        count, limits = int(random.integers(1, 4)), int(random.integers(1, 6))
        gains = random.integers(0, 3, (count, limits))
        needs = random.integers(0, 4, limits)
        found = least_cover([[Fraction(int(g)) for g in row] for row in gains], [Fraction(int(n)) for n in needs])
        rows = np.vstack([gains.T, np.eye(count)])
        right = np.concatenate([needs, np.zeros(count)])
        best = np.inf
        for chosen in combinations(range(len(rows)), count):
            square = rows[list(chosen)]
            if abs(np.linalg.det(square)) > 1e-9:
                vertex = np.linalg.solve(square, right[list(chosen)])
                if (rows @ vertex >= right - 1e-9).all():
                    best = min(best, vertex.sum())
        assert (found is None) == (best == np.inf)
        if found is not None:
            assert float(sum(found)) == pytest.approx(best)
            assert (rows @ np.array([float(s) for s in found]) >= right - 1e-9).all()


@pytest.mark.parametrize("capacity", [4 * 256, 4 * 1024])
def test_bound_of_a_product(capacity: int) -> None:
    m, k, n = 128, 96, 160
    product = poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(m, k), B=(k, n))
    found, size = io_lower_bound(product, capacity), capacity // 4
    assert found is not None and found.statement == "C_update" and found.exponent == Fraction(3, 2)
    assert found.bytes == pytest.approx(4 * (2 * m * k * n / sqrt(size) - 2 * size), abs=8)


def test_bound_is_what_is_touched_once_where_everything_fits_or_nothing_is_reused() -> None:
    small = io_lower_bound(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(8, 8), B=(8, 8)), 1 << 20)
    assert small is not None and small.bytes == 4 * 3 * 64 and small.statement == ""
    vector = io_lower_bound(poly.parse("y[i] += A[i,j]*x[j]", A=(64, 64), x=(64,)), 64)
    assert vector is not None and vector.bytes == 4 * (64 * 64 + 128)
    assert io_lower_bound(poly.parse("C[i,k] += A[i,j]*B[j,k]", A=("M", 8), B=(8, 8)), 64) is None


# ---- a simulated cache


def entering(accesses: Iterator[tuple[str, int]], capacity: int, line: int) -> int:
    """Bytes that a fully associative cache of least recently used lines takes in."""
    held: OrderedDict[tuple[str, int], None] = OrderedDict()
    misses = 0
    for tensor, address in accesses:
        key = (tensor, address // line)
        if key in held:
            held.move_to_end(key)
            continue
        misses += 1
        held[key] = None
        if len(held) * line > capacity:
            held.popitem(last=False)
    return misses * line


M, K, N = 24, 40, 32


def product() -> Program:
    return poly.parse("C[i,k] += A[i,j]*B[j,k]", A=(M, K), B=(K, N))


def steps(order: str, tile: int) -> Iterator[tuple[int, int, int]]:
    """The instances of the product's update: the loops in an order, all tiled."""
    sizes = {"i": M, "j": K, "k": N}
    first, second, third = order

    def points(name: str, base: int) -> range:
        return range(base, min(base + tile, sizes[name]))

    for a in range(0, sizes[first], tile):
        for b in range(0, sizes[second], tile):
            for c in range(0, sizes[third], tile):
                for x in points(first, a):
                    for y in points(second, b):
                        for z in points(third, c):
                            found = {first: x, second: y, third: z}
                            yield found["i"], found["j"], found["k"]


def touched(order: str, tile: int) -> Iterator[tuple[str, int]]:
    for i in range(M):
        for k in range(N):
            yield "C", 4 * (i * N + k)
    for i, j, k in steps(order, tile):
        yield "C", 4 * (i * N + k)
        yield "A", 4 * (i * K + j)
        yield "B", 4 * (j * N + k)


@pytest.mark.parametrize("line", [8, 32])
@pytest.mark.parametrize("capacity", [512, 1024, 4096, 32768])
@pytest.mark.parametrize(("order", "tile"), [("ikj", 8), ("kji", 8), ("jik", 8), ("ikj", 1)])
def test_the_model_is_near_a_simulated_cache(order: str, tile: int, capacity: int, line: int) -> None:
    schedule = Schedule(product())
    names = {i: f"C_update.{i}" if f"C_update.{i}" in schedule.loop_statements else i for i in order}
    if tile > 1:
        schedule = schedule.reorder(*(names[i] for i in order))
        schedule = schedule.tile({names[i]: tile for i in order})
    (level,) = predict(schedule, machine(capacity, line=line)).levels
    simulated = entering(touched(order, tile), capacity, line)
    assert level.bytes is not None
    if capacity == 32768:
        assert level.bytes == simulated
    assert 0.6 <= level.bytes / simulated <= 1.5, (level.bytes, simulated)
    bound = io_lower_bound(product(), capacity)
    assert bound is not None and bound.bytes <= simulated + 4 * M * N  # stores are not simulated


def test_time_is_that_of_the_busiest_resource() -> None:
    found = predict(Schedule(product()), machine(1024, 1 << 20))
    assert found.operations == 2 * M * N * K and found.compute_cycles == M * N * K / 2
    slowest = max(float(found.compute_cycles or 0), *(v.cycles or 0.0 for v in found.levels))
    assert found.cycles == slowest and found.seconds == pytest.approx(slowest / 1e9)
    shared = predict(Schedule(product()), machine(1024, 1 << 20), threads=2)
    assert [2 * (a.cycles or 0) for a in shared.levels[:1]] == [b.cycles for b in found.levels[:1]]
    assert shared.levels[1] == found.levels[1]  # all threads share the last cache
    free = predict(Schedule(poly.parse("C[i] = A[i]", A=("n",))), machine(1024))
    assert free.levels[0].bytes is None and free.seconds is None


def test_what_is_updated_in_place_comes_in_once() -> None:
    twice = read_nest(define("def f(N: int, A: 'f32[N]'):\n    for i in range(N):\n        A[i] = A[i] * 2\n"))
    bound = io_lower_bound(twice.bind(N=64), 1 << 15)
    assert bound is not None and bound.bytes == 4 * 64


def test_lines_of_a_packed_buffer_are_those_of_its_layout() -> None:
    """A panel of 16 columns of 3 x 3 weights, the columns side by side: 9 lines a channel, not 48."""
    a = [var(f"a{d}") for d in range(4)]
    sizes = tuple(Affine((), n) for n in (4, 8, 3, 3, 16))
    layout = Layout(("a0", "a1", "a2", "a3"), (a[0] // 16, a[1], a[2], a[3], a[0] % 16), sizes)
    packed = Tensor("w", tuple(Affine((), n) for n in (64, 8, 3, 3)), layout=layout)
    plain = replace(packed, layout=None)
    panel = isl.Set("{ w[o, 0, r, q] : 0 <= o < 16 and 0 <= r < 3 and 0 <= q < 3 }")
    assert count_points(panel.apply(_lines(packed, 64))) == 9
    assert count_points(panel.apply(_lines(plain, 64))) == 48
