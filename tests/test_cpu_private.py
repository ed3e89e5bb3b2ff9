"""Nests whose iterations have values of their own: kept in registers, in lanes where a loop allows it."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.affine import Constraint, var
from poly.expr import Const
from poly.frontend.nest import Array, Nest, f64, i64, nest
from poly.loops import Alloc, For, walk
from poly.program import Access
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.groups import groups_of
from poly.scheduling.private_nests import private_tensors, whole_nests
from tests.machines import AVX2


@nest
def orbits(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M"], y: f64[Array, "N, M"]) -> None:
    for i in range(N):
        for j in range(M):
            re = 0.0
            im = 0.0
            for _ in range(K):
                t = re * re - im * im + x[i]
                im = 2.0 * re * im + c[j]
                re = t
            y[i, j] = re * re + im * im


@nest
def triangle(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M"], y: f64[Array, "N, N"]) -> None:
    for i in range(N):
        for j in range(i + 1, N):
            low = x[i]
            for k in range(M):
                low = min(low, x[j] * c[k])
                low = low * 0.5
            y[i, j] = low


@nest
def largest(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "N, M"], y: i64[Array, "N"]) -> None:
    for i in range(N):
        most = c[i, 0]
        place = 0
        for j in range(1, M):
            place = j if c[i, j] > most else place
            most = c[i, j] if c[i, j] > most else most
        y[i] = place


@nest
def places(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M"], y: f64[Array, "N, 2*M"]) -> None:
    for i in range(N):
        for j in range(M):  # what is written does not lie side by side, but in the same lines
            a = x[i]
            for _ in range(K):
                b = a * c[j]
                a = b - a
            y[i, 2 * j] = a


@nest
def far_places(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M"], y: f64[Array, "N, 16*M"]) -> None:
    for i in range(N):
        for j in range(M):  # each element in a line of its own: no lanes
            a = x[i]
            for _ in range(K):
                b = a * c[j]
                a = b - a
            y[i, 16 * j] = a


@nest
def from_the_end(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M, N"], y: f64[Array, "M, N"]) -> None:
    for i in range(N - 1, -1, -1):
        s = x[i]
        for j in range(M):
            s += c[j, i]
            y[j, i] = s


@nest
def several(N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "N, 3"], y: f64[Array, "N, 3"]) -> None:
    for i in range(N):
        a = c[i, 0]
        b = c[i, 1]
        for _ in range(K):
            t = a * b - x[i]
            a = 0.5 * b - c[i, 2]
            b = t
        y[i, 0] = a
        y[i, 2] = b


@pytest.mark.parametrize(("function", "free", "known"), [  # whether there are lanes with sizes free, and known
    (orbits, True, True), (triangle, True, True), (largest, True, True), (places, True, True),
    (far_places, False, False), (from_the_end, False, True), (several, True, True),
])  # fmt: skip
def test_values_of_iterations_are_in_registers(function: Nest[..., None], free: bool, known: bool) -> None:
    program = function.program
    rng = np.random.default_rng(0)
    for sizes in ({"N": 1, "M": 2, "K": 3}, {"N": 9, "M": 4, "K": 1}, {"N": 45, "M": 70, "K": 3}):
        arrays: dict[str, Any] = {t.name: rng.uniform(-1, 1, t.extents(sizes)) for t in program.inputs}
        if program.tensor["y"].dtype == "i64":
            arrays["y"] = np.zeros(sizes["N"], "i8")
        wanted = {name: array.copy() for name, array in arrays.items()}
        function.python(*sizes.values(), *(wanted[n] for n in "xcy"))
        for form, threads in ((program, 1), (program.bind(**sizes), 1), (program.bind(**sizes), 2)):
            kernel = poly.compile(form, threads=threads)
            shown = {*form.binding, *(str(e) for t in program.inputs for e in t.shape)}
            unseen: dict[str, Any] = {n: v for n, v in sizes.items() if n in form.parameters and n not in shown}
            found: Any = kernel(**arrays, **unseen)
            np.testing.assert_allclose(found, wanted["y"], rtol=1e-12)
    for form, lanes in ((program, free), (program.bind(N=45, M=70, K=3), known)):
        tree = poly.compile(form, threads=1).loops
        assert all(a.tensor.space == "reg" for a in walk(tree.body) if isinstance(a, Alloc))
        assert not [t for t in tree.tensors if t.role == "temporary"]
        assert any(isinstance(n, For) and n.kind == "vector" for n in walk(tree.body)) == lanes


def test_sums_that_groups_take_are_cut_apart() -> None:
    @nest
    def product(N: int, a: f64[Array, "N, N"], b: f64[Array, "N, N"], c: f64[Array, "N, N"]) -> None:
        for i in range(N):
            for j in range(N):
                s = 0.0
                for k in range(N):
                    s += a[i, k] * b[k, j]
                c[i, j] = 2 * s

    program = product.program.bind(N=64)
    assert [*private_tensors(program, program.statements)] == ["s"]
    loops = str(poly.compile(program, threads=1).loops)
    assert "unroll" in loops and "for i, j" not in loops
    assert whole_nests(orbits.program, groups_of(orbits.program)) == {0}
    assert not whole_nests(product.program, groups_of(product.program))  # a product with free sizes


@pytest.mark.parametrize(
    ("function", "sizes", "widest"),
    [
        (orbits, {"N": 45, "M": 70}, 8),  # several vectors side by side
        (orbits, {"N": 45, "M": 2}, 2),  # no more lanes than iterations
        (largest, {"N": 45, "M": 70}, 4),  # reads that do not lie side by side: one vector
    ],
)
def test_registers_of_a_block(function: Nest[..., None], sizes: dict[str, int], widest: int) -> None:
    tree = schedule_for_cpu(function.program.bind(**sizes, K=3), AVX2).lower()
    assert max(n.tensor.extents({})[-1] for n in walk(tree.body) if isinstance(n, Alloc)) == widest


def test_guarded_values_are_not_private() -> None:
    program = orbits.program
    assert "t" in private_tensors(program, program.statements)

    def guarded(access: Access) -> Access:
        return replace(access, guard=(Constraint(var("i") - 1),), fill=Const(0.0)) if access.tensor == "t" else access

    statements = [replace(s, reads=tuple(map(guarded, s.reads))) for s in program.statements]
    assert "t" not in private_tensors(replace(program, statements=tuple(statements)), statements)


@nest
def beside(
    N: int, M: int, K: int, x: f64[Array, "N"], c: f64[Array, "M"], y: f64[Array, "N, M"], u: f64[Array, "N, M"],
    v: f64[Array, "N, M"],
) -> None:  # fmt: skip
    for i in range(N):
        for j in range(M):
            u[i, j] = 2.0 * x[i]
    for i in range(N):
        for j in range(M):
            v[i, j] = 3.0 * c[j]
    for i in range(N):
        for j in range(M):
            a = x[i]
            for _ in range(K):
                b = a * c[j]
                a = b - a
            y[i, j] = a


def test_threads_do_not_meet_between_the_nests_beside_one_that_stays_whole() -> None:
    program = beside.program.bind(N=400, M=300, K=9)
    kernel = poly.compile(program, threads=2)
    assert "nowait" in str(kernel.schedule)
    shapes = {t.name: t.extents(program.binding) for t in program.inputs}
    arrays: dict[str, Any] = {name: np.random.default_rng(0).uniform(-1, 1, shape) for name, shape in shapes.items()}
    one = poly.compile(program, threads=1)(**arrays)
    for found, wanted in zip(kernel(**arrays), one, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_group_without_a_policy_leaves_other_nests_whole() -> None:
    @nest
    def both(N: int, M: int, x: f64[Array, "N"], D: f64[Array, "N, N, N"], y: f64[Array, "N, M"]) -> None:
        for i in range(N - 1, -1, -1):
            s = 0.0
            for k in range(N):
                s += D[k, i, i]
            D[i, i, i] = s
        for i in range(N):
            for j in range(M):
                a = x[i]
                for _ in range(M):
                    b = a * 0.5 + j
                    a = b - a
                y[i, j] = a

    rng = np.random.default_rng(0)
    x, cube, y = rng.uniform(-1, 1, 40), rng.uniform(-1, 1, (40, 40, 40)), np.zeros((40, 24))
    kernel = poly.compile(both.program.bind(N=40, M=24), threads=1)
    assert not {"a", "b"} & {t.name for t in kernel.loops.tensors}
    found: Any = kernel(x, cube, y)
    wanted = cube.copy(), y.copy()
    both.python(40, 24, x, *wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_scalars_of_loops_in_order_are_in_registers() -> None:
    @nest
    def ordered(N: int, a: f64[Array, "N, N"]) -> None:
        for i in range(N):  # reads what it writes
            v = a[i, i]
            w = 1.0
            for k in range(N):
                t = 0.5 * v + a[i, k] - a[k, k]
                v = 0.5 * w - v
                w = t
            a[i, i] = 0.5 * w

    a = np.random.default_rng(0).uniform(-1, 1, (37, 37))
    wanted = a.copy()
    ordered.python(37, wanted)
    for form in (ordered.program, ordered.program.bind(N=37)):
        kernel = poly.compile(form, threads=1)
        scopes = {n.tensor.origin: n.tensor.scope for n in walk(kernel.loops.body) if isinstance(n, Alloc)}
        assert scopes == {"v": ("i",), "w": ("i",), "t": ("i", "k")}
        found: Any = kernel(a)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_scalars_that_outlive_their_loop_are_in_registers_around_it() -> None:
    @nest
    def averages(N: int, x: f64[Array, "N+8"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        s = 0.0
        d = 0.0
        for k in range(8):
            s += x[k]
        for i in range(N):
            y[i] = s / 8
            s += x[i + 8] - x[i]
            d = max(d, s)
        for i in range(N):
            z[i] = x[i] * s - d

    x = np.random.default_rng(0).uniform(-1, 1, 100_008)
    wanted = np.zeros((2, 100_000))
    averages.python(100_000, x, *wanted)
    for program, threads in ((averages.program, 1), (averages.program.bind(N=100_000), 2)):
        kernel = poly.compile(program, threads=threads)
        assert {"s", "d"} <= {n.tensor.origin for n in walk(kernel.loops.body) if isinstance(n, Alloc)}
        for one, other in zip(kernel(x, *np.zeros((2, 100_000))), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
