"""Kernels as they are called: arguments, results, constants and sizes, against numpy."""
# ruff: noqa: F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import poly
from poly.affine import var
from poly.codegen.kernel import Kernel
from poly.errors import RunError
from poly.expr import Read, apply
from poly.frontend.nest import Array, f32
from poly.loops import Alloc, LoopTree, Node
from poly.program import Tensor
from tests.loop_trees import at, compute, loop, tensor
from tests.test_codegen import HOST, integers, kernel_of, matrices, plain_product, tiled_product

pytestmark = pytest.mark.usefixtures("own_cache")


def test_calls_check_their_arguments() -> None:
    kernel = kernel_of(plain_product(3, 4, 2))
    a, b = integers(3, 2), integers(2, 4)
    for arguments, message in [
        ((a,), r"takes 2 arrays \(A, B\), got 1"),
        ((a, b.astype(np.float64)), "input B is float64, expected float32"),
        ((a, integers(4, 2)), r"input B has shape \[4, 2\], expected \[2, 4\]"),
        ((a, "text"), "input B: str is no array of float32"),
        ((a, b.astype(np.complex64)), r"input B is complex64(.|\n)*B\.real\.astype\('float32'\)"),
        ((a, np.zeros((2, 4), [("u", "f4"), ("v", "f4")])), r"one of its fields, as B\['u'\]"),
    ]:
        with pytest.raises(RunError, match=message):
            kernel(*arguments)
    np.testing.assert_array_equal(kernel(a.tolist(), b), a @ b)
    np.testing.assert_array_equal(kernel(np.asfortranarray(a), b[::1]), a @ b)
    wide = integers(3, 4)
    np.testing.assert_array_equal(kernel(wide[:, ::2], b), wide[:, ::2] @ b)


def test_out() -> None:
    kernel = kernel_of(plain_product(3, 4, 2))
    a, b, out = integers(3, 2), integers(2, 4), np.empty((3, 4), np.float32)
    assert kernel(a, b, out=out) is out
    np.testing.assert_array_equal(out, a @ b)
    fixed = np.empty((3, 4), np.float32)
    fixed.flags.writeable = False
    buffer = np.zeros(12, np.float32)
    for bad, message in [
        (np.empty((3, 4)), "out for C is float64, expected float32"),
        (np.empty((3, 3)), r"out for C is float64\[3, 3\], expected float32\[3, 4\]"),
        (np.empty((4, 3), np.float32), "out for C has shape"),
        (fixed, "not writable"),
        ((out, out), "1 output, out has 2"),
    ]:
        with pytest.raises(RunError, match=message):
            kernel(a, b, out=bad)
    inside_buffer = buffer[:6].reshape(3, 2)
    with pytest.raises(RunError, match="out for C overlaps input A"):
        kernel(inside_buffer, b, out=buffer.reshape(3, 4))


@pytest.mark.parametrize("strided", [
    lambda: np.full((8, 10), 7, np.float32)[:, ::2], lambda: np.full((5, 8), 7, np.float32).T,
    lambda: np.full((8, 5), 7, np.float32)[::-1], lambda: np.full(161, 7, np.uint8)[1:].view(np.float32).reshape(8, 5),
])  # fmt: skip
@pytest.mark.parametrize("text", ["y[i,j] = 2*x[i,j] where i < 6", "y[i,j] += x[i,j]; z[i] += x[i,j]"])
@pytest.mark.parametrize("rows", [8, "N"])
def test_results_to_arrays_with_strides(strided: Any, text: str, rows: int | str) -> None:
    program = poly.parse(text, x=(rows, 5), y=(rows, 5))
    x, update = np.arange(40, dtype=np.float32).reshape(8, 5), "+=" in text
    kernel: Any = poly.compile(program)
    y = strided()
    want = x if update else np.where(np.arange(8)[:, None] < 6, 2 * x, 0)
    out = (y, np.zeros(16, np.float32)[::2]) if update else y
    found = kernel(x, out=out)
    assert found is y if not update else (found[0] is y and found[1] is out[1])
    np.testing.assert_array_equal(y, want)
    if update:
        np.testing.assert_array_equal(out[1], x.sum(1))


def test_an_inout_tensor_with_strides_changes_in_place() -> None:
    kernel: Any = poly.compile(poly.parse("inout y: f32[4]; y[i] += x[i]", x=(4,)))
    buffer = np.arange(8, dtype=np.float32)
    y = buffer[::2]
    assert kernel(y=y, x=np.ones(4, np.float32), out=y) is y
    np.testing.assert_array_equal(buffer, [1, 1, 3, 3, 5, 5, 7, 7])


def test_an_array_of_a_nest_that_is_named_out() -> None:
    @poly.nest
    def twice(N: int, x: f32[Array, "N"], out: f32[Array, "N"]) -> None:
        for i in range(N):
            out[i] = 2 * out[i] + x[i]

    kernel, x = poly.compile(twice), np.arange(5, dtype=np.float32)
    calls: list[Callable[[Any], Any]] = [
        lambda out: kernel(x, out=out), lambda out: kernel(x=x, out=out), lambda out: kernel(x, out, out=out),
    ]  # fmt: skip
    for call in calls:
        for out in (np.ones(5, np.float32), np.ones(10, np.float32)[::2]):
            assert call(out) is out
            np.testing.assert_array_equal(out, 2 + x)
    with pytest.raises(RunError, match=r"input out has shape \[4\]|size N"):
        kernel(x=x, out=np.ones(4, np.float32))
    other = poly.compile(poly.parse("y[i] = out[i] + x[i]", x=5, out=5))
    with pytest.raises(TypeError, match="out= is where results go"):
        other(x=x, out=x)


def test_inout_leaves_the_callers_array() -> None:
    update = compute("update", at("x", "i"), [at("d", "i")], Read(0), "+")
    tree = LoopTree("f", (tensor("x", 4, role="inout"), tensor("d", 4, role="input")), (loop("i", 0, 4, update),))
    kernel, x, d = kernel_of(tree), integers(4), np.ones(4, np.float32)
    before = x.copy()
    np.testing.assert_array_equal(kernel(x, d), before + 1)
    np.testing.assert_array_equal(x, before)
    assert kernel(x, d, out=x) is x
    np.testing.assert_array_equal(x, before + 1)


def test_sizes_come_from_shapes() -> None:
    statement = compute(
        "s", at("y", "i"), [at("x", 2 * var("i")), at("x", 2 * var("i") + 1)], apply("add", Read(0), Read(1))
    )
    shapes = (tensor("x", 2 * var("N"), role="input"), tensor("y", "N", role="output"))
    kernel = kernel_of(LoopTree("f", shapes, (loop("i", 0, "N", statement),), ("N",)))
    np.testing.assert_array_equal(kernel(np.arange(6, dtype=np.float32)), [1, 5, 9])
    with pytest.raises(RunError, match=r"2\*N for no whole number N"):
        kernel(np.arange(5, dtype=np.float32))
    with pytest.raises(RunError, match=r"input x has shape \[3, 2\], expected \[2\*N\]"):
        kernel(np.zeros((3, 2), np.float32))


def test_calls_from_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    kernel = kernel_of(tiled_product(13, 40, 6), threads=2)
    a, b = integers(13, 6), integers(6, 40)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: kernel(a, b), range(40)):
            np.testing.assert_array_equal(found, a @ b)


def test_constants_are_needed_and_checked() -> None:
    a, b, c = matrices(3, 4, 2)
    tree = LoopTree("f", (a, Tensor("B", b.shape, "f32", "constant"), c), plain_product(3, 4, 2).body)
    x, w = integers(3, 2), integers(2, 4)
    np.testing.assert_array_equal(Kernel(tree, HOST, [a], [c], {"B": w})(x), x @ w)
    for values, message in [({}, "constant B has no array"), ({"B": w.T.copy()}, "constant B has shape")]:
        with pytest.raises(RunError, match=message):
            Kernel(tree, HOST, [a], [c], values)


def test_many_small_buffers_do_not_fill_the_stack() -> None:
    """Small buffers beyond the stack's share lie in scratch memory."""
    last = compute("last", at("y", "i"), [at(f"P{k}", "i") for k in range(40)], Read(39))
    body: tuple[Node, ...] = (loop("i", 0, 4000, last),)
    for k in reversed(range(40)):
        fill = loop("i", 0, 4000, compute(f"fill{k}", at(f"P{k}", "i"), [at("x", "i")], Read(0)))
        body = (Alloc(tensor(f"P{k}", 4000), (fill, *body)),)
    shapes = (tensor("x", 4000, role="input"), tensor("y", 4000, role="output"))
    tree = LoopTree("f", shapes, body)
    kernel = kernel_of(tree)
    assert kernel.ir.count("alloca") <= 4
    x = integers(4000)
    np.testing.assert_array_equal(kernel(x), x)


def test_kernel_shows_itself() -> None:
    kernel = kernel_of(plain_product(3, 4, 2))
    assert "define" in kernel.ir and ".text" in kernel.asm
    assert repr(kernel) == f"<Kernel product(A, B) -> C for {HOST.name}>"
    assert "input A: f32[3, 2]" in str(kernel)
