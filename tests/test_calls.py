"""Calls of kernels from Python: what goes through native code and what does not, with the same results and errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

import poly
from poly.affine import var
from poly.codegen.call import NATIVE
from poly.codegen.host import host_machine
from poly.codegen.kernel import MAX_RECORDS, Kernel
from poly.codegen.sized_calls import MOST_CALLS
from poly.errors import PolyError, RunError
from poly.expr import Const, IndexValue, Read, apply
from poly.frontend.nest import Array as Elements
from poly.frontend.nest import f32, i64
from poly.given_arrays import overlap
from poly.loops import LoopTree
from poly.pointers import ALIGN, LARGE, address
from poly.program import ReadIndex
from tests.loop_trees import at, compute, loop, tensor

pytestmark = pytest.mark.usefixtures("own_cache")

ROOT = Path(__file__).resolve().parent.parent
HOST = host_machine()
on_both = pytest.mark.parametrize("target", ["cpu", "s16"])
native = pytest.mark.skipif(not NATIVE, reason="objects are not laid out as in CPython")
Array = np.ndarray


def kernel_of(tree: LoopTree, threads: int = 1) -> Kernel:
    inputs = [t for t in tree.tensors if t.is_input]
    return Kernel(tree, HOST, inputs, [t for t in tree.tensors if t.is_output], threads=threads)


def plus() -> Kernel:
    """C[i, j] = A[i, j] + B[i, j]"""
    add = compute("add", at("C", "i", "j"), [at("A", "i", "j"), at("B", "i", "j")], apply("add", Read(0), Read(1)))
    shapes = (tensor("A", 3, 4, role="input"), tensor("B", 3, 4, role="input"), tensor("C", 3, 4, role="output"))
    return kernel_of(LoopTree("plus", shapes, (loop("i", 0, 3, loop("j", 0, 4, add)),)))


def plus_on(target: str) -> Callable[..., Any]:
    """`plus`, or the same for an accelerator."""
    program = poly.parse("C[i,j] = A[i,j] + B[i,j]", A=(3, 4), B=(3, 4))
    return plus() if target == "cpu" else poly.compile(program, target=target)


def doubled() -> Kernel:
    """y[i] = 2 * x[i] of a free size"""
    double = compute("double", at("y", "i"), [at("x", "i")], apply("mul", Read(0), Const(2)))
    shapes = (tensor("x", "N", role="input"), tensor("y", "N", role="output"))
    return kernel_of(LoopTree("doubled", shapes, (loop("i", 0, "N", double),), ("N",)))


def operands() -> tuple[Array, Array, Array]:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    return a, 2 * a + 1, np.full((3, 4), -1, np.float32)


@pytest.fixture
def careful(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A list that gets an entry for each call that is not native."""
    calls: list[int] = []
    own = Kernel._careful

    def counted(self: Kernel, *args: object, **keywords: object) -> object:
        calls.append(1)
        return own(self, *args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Kernel, "_careful", counted)
    yield calls


@native
def test_plain_calls_do_not_enter_python(careful: list[int]) -> None:
    kernel, (a, b, c) = plus(), operands()
    assert kernel(a, b, out=c) is c
    np.testing.assert_array_equal(c, a + b)
    fresh = kernel(a, b)
    assert isinstance(fresh, np.ndarray) and fresh.flags.owndata and fresh.flags.c_contiguous
    np.testing.assert_array_equal(fresh, a + b)
    np.testing.assert_array_equal(kernel(a, b, out=None), a + b)
    np.testing.assert_array_equal(kernel(a, a), a + a)
    assert kernel(a, b, out=(c,)) is c or careful == [1]
    careful.clear()
    kernel(*[a, b], **{"out": c})
    assert not careful


@native
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("rows", [127, 128, 129, 1000])
def test_large_results_start_at_lines(rows: int, order: Literal["C", "F"]) -> None:
    """And are otherwise as numpy's; what they lie in goes with them."""
    a = np.arange(rows * 128, dtype=np.float32).reshape((rows, 128), order=order)
    usual = a * a
    poly.einsum("ij,ij->ij", a, a)  # the first call, which plans, is not native
    for found in [poly.einsum("ij,ij->ij", a, a) for _ in range(3)]:
        np.testing.assert_array_equal(found, usual)
        assert found.strides == usual.strides and found.flags.writeable and found.flags.aligned
        assert (found.flags.c_contiguous, found.flags.f_contiguous) == (order == "C", order == "F")
        assert (found.nbytes < LARGE) == (found.base is None) and (found.base is None or address(found) % ALIGN == 0)
    found = poly.einsum("ij,ij->ij", a, a)
    if found.base is not None:
        memory = weakref.ref(found.base)
        del found
        assert memory() is None


@pytest.mark.parametrize("size", [1 << 14, 1 << 18])
def test_large_results_are_cleared_where_not_all_is_written(size: int) -> None:
    kernel = poly.compile(poly.parse("Y[i+1] = X[i]", X=size, Y=size + 2))
    for _ in range(3):
        found = kernel(np.ones(size, np.float32))
        assert isinstance(found, np.ndarray) and address(found) % ALIGN == 0
        assert list(found[[0, 1, -2, -1]]) == [0, 1, 1, 0]
        found[...] = 7


class Own(np.ndarray):
    """A class that may mean something else by its elements."""


def _misaligned(a: Array) -> Array:
    moved = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    moved[...] = a
    return moved


ODD: dict[str, Callable[[Array], object]] = {
    "columns": lambda a: np.asfortranarray(a),
    "every other": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "misaligned": _misaligned,
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "of a class": lambda a: a.view(Own),
    "a list": lambda a: a.tolist(),
    "other dtype object": lambda a: a.astype(np.dtype(np.float32, metadata={"a": 1})),
}


@on_both
@pytest.mark.parametrize("kind", ODD)
def test_inputs_of_any_kind(kind: str, target: str) -> None:
    kernel, (a, b, c) = plus_on(target), operands()
    odd = ODD[kind](b)
    for _ in range(2):
        np.testing.assert_array_equal(kernel(a, odd), a + b)
        assert kernel(a, odd, out=c) is c
        np.testing.assert_array_equal(c, a + b)


@on_both
def test_wrong_arguments(target: str) -> None:
    kernel, (a, b, c) = plus_on(target), operands()
    fixed = c.copy()
    fixed.flags.writeable = False
    one = np.zeros(28, np.float32)
    for args, out, message in [
        ((a,), None, "takes 2 arrays"),
        ((a, b, c), None, "takes 2 arrays"),
        ((a, b.T), None, r"input B has shape \[4, 3\]"),
        ((a, b.astype(np.float64)), None, "input B is float64"),
        ((a, b.astype(">f4")), None, "input B is >f4"),
        ((a, None), None, "input B: NoneType is no array"),
        ((a, b), 5, "out is int"),
        ((a, b), "c", "out is str"),
        ((a, b), [[1.0]], "out for C is list"),
        ((a, b), (c, c), "1 output, out has 2"),
        ((a, b), fixed, "not writable"),
        ((a, b), c.T, "out for C has shape"),
        ((a, b), c.astype(np.float64), "out for C is float64"),
        ((a, b), a, "overlaps input A"),
        ((one[:12].reshape(3, 4), b), one[11:23].reshape(3, 4), "overlaps input A"),
    ]:
        with pytest.raises(RunError, match=message):
            kernel(*args, out=out)
    kernel(one[:12].reshape(3, 4), b, out=one[12:24].reshape(3, 4))


@on_both
def test_out_between_the_elements_of_others(target: str) -> None:
    """What shares no element overlaps nothing, however it lies."""
    program = poly.parse("y[i] = 2*x[i]; z[i] = x[i]+1", x=(4,))
    kernel: Callable[..., object] = poly.compile(program, target=target)
    three = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = three[:, 1].copy()
    for given in (x, three[:, 1]):
        kernel(given, out=(three[:, 0], three[:, 2]))
        np.testing.assert_array_equal(three, np.stack([2 * x, x, x + 1], 1))
        three[:, ::2] = -1
    flat = np.zeros(9, np.float32)
    for out in ((flat[:8:2], flat[2::2]), (flat[:8:2], flat[0:4]), (three[:, 1], three[:, 0])):
        with pytest.raises(RunError, match="overlaps"):
            kernel(three[:, 1], out=out)
    kernel(x, out=(flat[:8:2], flat[1::2]))
    np.testing.assert_array_equal(flat[:8].reshape(4, 2), np.stack([2 * x, x + 1], 1))


def test_a_search_for_shared_elements_that_takes_too_long_ends() -> None:
    def window(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        return np.lib.stride_tricks.as_strided(memory[start:], shape, strides)

    memory = np.zeros(60_000_000, np.int8)
    steps = (11, 101, 1009, 10007, 100003, 1000003)
    one, other = window(0, (9,) * 6, tuple(7 * s for s in steps)), window(1, (9,) * 6, tuple(7 * s for s in steps))
    start = time.perf_counter()
    assert overlap(one, one) and isinstance(overlap(one, other), bool)
    assert time.perf_counter() - start < 1


@on_both
def test_arguments_by_name(target: str) -> None:
    program = poly.parse("C[i,j] = A[i,j] - B[i,j]", A=(3, 4), B=(3, 4))
    kernel: Callable[..., object] = poly.compile(program, target=target)
    a, b, c = operands()
    for _ in range(2):
        np.testing.assert_array_equal(kernel(B=b, A=a), a - b)
        assert kernel(a, B=b, out=c) is c
        np.testing.assert_array_equal(c, a - b)
    for args, named, message in [
        ((a,), {}, r"takes 2 arrays \(A, B\), got 1: B missing"),
        ((a, b, c), {}, "takes 2 arrays"),
        ((a, b), {"into": c}, "none is called 'into'"),
        ((a, b), {"B": b}, "B is given by position and by name"),
        ((), {"B": b}, "A is missing"),
    ]:
        for kind in (RunError, TypeError):
            with pytest.raises(kind, match=message):
                kernel(*args, **named)


@on_both
def test_inputs_with_the_names_of_arguments(target: str) -> None:
    a, b, _ = operands()
    make = cast("Callable[..., Callable[..., object]]", poly.compile)
    one = make(poly.parse("C[i,j] = self[i,j] - b[i,j]", self=(3, 4), b=(3, 4)), target)
    two = make(poly.parse("C[i,j] = out[i,j] - b[i,j]", out=(3, 4), b=(3, 4)), target)
    for _ in range(2):
        np.testing.assert_array_equal(one(b=b, **{"self": a}), a - b)
        np.testing.assert_array_equal(two(a, b=b), a - b)
        with pytest.raises(RunError, match="out is missing.*\n.*by position"):
            two(b=b, out=a)


def test_constants_are_checked_and_kept() -> None:
    text = "input x: f32[64,64]\nconstant w: f32[64,64]\noutput y: f32[64,64]\n"
    x, w = np.eye(64, dtype=np.float32), np.arange(4096, dtype=np.float32).reshape(64, 64)
    for equation, want in (("y[i,j] += x[i,k] * w[j,k]", w.T), ("y[i,j] = x[i,j] + w[j,i]", x + w.T)):
        program = poly.parse(text + equation)
        for bad, message in [
            (w[:2, :2], r"constant w has shape \[2, 2\]"),
            (w.ravel(), r"constant w has shape \[4096\]"),
            (w.astype(np.float64), "constant w is float64"),
            ("w", "constant w: str is no array"),
            (None, "constant w: NoneType is no array"),
        ]:
            with pytest.raises(RunError, match=message):
                poly.compile(program, constants={"w": bad})  # type: ignore[dict-item]
        mine = w.copy()
        kernel, expected = poly.compile(program, constants={"w": mine}), want.copy()
        assert isinstance(kernel, Kernel)
        np.testing.assert_array_equal(kernel(x, out=mine), expected)  # the kernel has its own
        mine[...] = 0
        np.testing.assert_array_equal(kernel(x), expected)


def test_references_are_kept_in_balance() -> None:
    kernel, (a, b, c) = plus(), operands()
    gc.collect()
    objects = (a, b, c, a.dtype, np.ndarray, kernel)
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        kernel(a, b, out=c)
        kernel(a, b)
        kernel(a, b.tolist(), out=c)
        with pytest.raises(RunError):
            kernel(a, b, out=a)
    gc.collect()
    assert all(abs(x - sys.getrefcount(o)) < 10 for x, o in zip(before, objects, strict=True))


def test_a_kernel_is_freed() -> None:
    import weakref

    kernel, (a, b, _) = plus(), operands()
    kernel(a, b)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


def test_several_outputs() -> None:
    halves = [
        compute("low", at("L", "i"), [at("x", "i")], apply("min", Read(0), Const(0.0))),
        compute("high", at("H", "i"), [at("x", "i")], apply("max", Read(0), Const(0.0))),
    ]
    shapes = (tensor("x", 6, role="input"), tensor("L", 6, role="output"), tensor("H", 6, role="output"))
    kernel = kernel_of(LoopTree("halves", shapes, (loop("i", 0, 6, *halves),)))
    x = np.arange(-3, 3, dtype=np.float32)
    for out in (None, (np.empty(6, np.float32), np.empty(6, np.float32)), [np.empty(6, np.float32)] * 2):
        if isinstance(out, list):
            with pytest.raises(RunError, match="overlaps another output"):
                kernel(x, out=out)
            out = [np.empty(6, np.float32), np.empty(6, np.float32)]
        found = kernel(x, out=out)
        assert isinstance(found, tuple) and len(found) == 2
        np.testing.assert_array_equal(found[0], np.minimum(x, 0))
        np.testing.assert_array_equal(found[1], np.maximum(x, 0))
        assert out is None or (found[0] is out[0] and found[1] is out[1])
    one = np.empty(6, np.float32)
    for bad in ((one, one), (one,), one, (one, 3)):
        with pytest.raises(RunError):
            kernel(x, out=bad)  # type: ignore[arg-type]


def test_inout() -> None:
    update = compute("update", at("x", "i"), [at("d", "i")], Read(0), "+")
    shapes = (tensor("d", 4, role="input"), tensor("x", 4, role="inout"))
    kernel = kernel_of(LoopTree("add", shapes, (loop("i", 0, 4, update),)))
    x, d, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.full(4, 9, np.float32)
    np.testing.assert_array_equal(kernel(d, x), x + 1)
    assert kernel(d, x, out=y) is y
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(x, np.arange(4))
    assert kernel(d, x, out=x) is x
    np.testing.assert_array_equal(x, np.arange(4) + 1)
    with pytest.raises(RunError, match="overlaps input d"):
        kernel(d, x, out=d)


@native
def test_sizes_from_shapes(careful: list[int]) -> None:
    kernel = doubled()
    sizes = [5, 6, 5, 0, 1, 6, *range(10, 10 + MAX_RECORDS + 3), 5, 6]
    for n in sizes:
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel(x), 2 * x)
        out = np.empty_like(x)
        assert kernel(x, out=out) is out
        np.testing.assert_array_equal(out, 2 * x)
    careful.clear()
    kernel(np.ones(5, np.float32))
    assert not careful


def test_what_is_not_written_is_zero() -> None:
    some = compute("some", at("y", 2 * var("i")), [at("x", "i")], Read(0))
    shapes = (tensor("x", 500, role="input"), tensor("y", 1000, role="output"))
    kernel = kernel_of(LoopTree("some", shapes, (loop("i", 0, 500, some),)))
    x = np.ones(500, np.float32)
    for _ in range(20):
        np.full(1000, 7, np.float32)  # leaves its elements in memory that is used again
        np.testing.assert_array_equal(kernel(x), np.arange(1000) % 2 == 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_indices_out_of_range(threads: int) -> None:
    gather = compute("gather", at("y", "i"), [at("p", "i"), at("x", ReadIndex(0))], Read(1))
    shapes = (tensor("p", 64, dtype="i64", role="input"), tensor("x", 8, role="input"), tensor("y", 64, role="output"))
    kernel = kernel_of(LoopTree("gather", shapes, (loop("i", 0, 64, gather, kind="parallel"),)), threads)
    p, x = np.arange(64) % 8, np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(kernel(p, x), p)
    p[50] = 9
    p[5] = 11  # each part meets one
    found: set[str] = set()
    for _ in range(10):
        with pytest.raises(RunError, match="of dimension 0 of x is outside 0 .. 7") as caught:
            kernel(p, x)
        found.add(str(caught.value))
    assert len(found) == 1
    p[[5, 50]] = 0
    np.testing.assert_array_equal(kernel(p, x), p)


class Exporter:
    """An array of some other library."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **keywords: object) -> object:
        return self.array.__dlpack__(**keywords)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@on_both
def test_arrays_of_other_libraries(target: str) -> None:
    kernel, (a, b, _) = plus_on(target), operands()
    np.testing.assert_array_equal(kernel(Exporter(a), b), a + b)
    with pytest.raises(RunError, match="input A is float64"):
        kernel(Exporter(a.astype(np.float64)), b)

    class Refusing(Exporter):
        def __dlpack__(self, **keywords: object) -> object:
            raise BufferError("on another device")

    with pytest.raises(RunError, match="input A: Refusing is no array of float32: on another device"):
        kernel(Refusing(a), b)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    kernel, (a, b, _) = plus(), operands()
    np.testing.assert_array_equal(kernel(torch.from_numpy(a), torch.from_numpy(b).T.contiguous().T), a + b)
    with pytest.raises(RunError, match=r"is no array(.|\n)*try: A.detach\(\)"):
        kernel(torch.from_numpy(a).requires_grad_(), b)
    with pytest.raises(RunError, match=r"try: A.to\(torch.float32\)"):
        kernel(torch.from_numpy(a).double(), b)
    with pytest.raises(RunError, match=r"input A: .*resolve_neg"):
        kernel(torch.from_numpy(-1j * a).conj().imag, b)
    out = torch.zeros(a.shape)
    for given in (out, (out,)):
        with pytest.raises(RunError, match=r"try: numpy.from_dlpack"):
            kernel(a, b, out=given)
    kernel(a, b, out=np.from_dlpack(out))
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.5, 2, 3], "its values are float64"), ([1j, 2, 3], "its values are complex128"),
        (["1", "2", "3"], "no numbers"), ([1, None, 3], "no numbers"), ([2**40, 1, 2], "out of bounds"),
        ([2**70, 1, 2], "too large"), ([np.float32(1.5), 2, 3], "its values are float64"),
    ],
)  # fmt: skip
@on_both
def test_lists_lose_nothing(values: list[Any], message: str, target: str) -> None:
    program = poly.parse("input x: i32[3]\noutput y: i32[3]\ny[i] = x[i] + 1")
    kernel: Callable[..., object] = poly.compile(program, target=target)
    with pytest.raises(RunError, match=message):
        kernel(values)


@on_both
def test_lists_of_numbers_are_arrays(target: str) -> None:
    kernel: Callable[..., object] = poly.compile(
        poly.parse("input x: i32[3]\noutput y: i32[3]\ny[i] = x[i] + 1"), target=target
    )
    many: list[Any] = [[1, 2, 3], (1, 2, 3), range(1, 4), [np.int8(1), True + 1, 3], [np.int64(1), 2, 3]]
    for values in many:
        np.testing.assert_array_equal(kernel(values), [2, 3, 4])
    kernel = poly.compile(poly.parse("input x: f32[3]\noutput y: f32[3]\ny[i] = x[i] + 1"), target=target)
    np.testing.assert_array_equal(kernel([1, 2.5, True]), [2, 3.5, 2])


def test_long_calls_let_other_threads_run() -> None:
    count = compute("count", at("y", 0), [], IndexValue(var("i")), "+")
    shapes = (tensor("x", 1, dtype="i64", role="input"), tensor("y", 1, dtype="i64", role="output"))
    kernel = kernel_of(LoopTree("count", shapes, (loop("k", 0, 40, loop("i", 0, 1_000_000, count)),)))
    x = np.zeros(1, np.int64)
    kernel(x)
    calls: list[tuple[float, float]] = []
    seen: list[float] = []

    def work() -> None:
        for _ in range(30):
            start = time.monotonic()
            kernel(x)
            calls.append((start, time.monotonic()))

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        seen.append(time.monotonic())
        time.sleep(0)
    assert any(start < moment < end for start, end in calls for moment in seen)


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


CHANGES = ["ND_DESCR = 48", "ND_FLAGS = 68", "TUPLE_ITEMS = 16"]


@pytest.mark.parametrize("change", CHANGES)
def test_other_layouts_of_objects_take_the_careful_way(change: str) -> None:
    """As on another interpreter or another numpy."""
    run(f"""
import poly.codegen.call_ir as ir
ir.{change}
import numpy as np, poly
from poly.codegen.call import NATIVE
assert not NATIVE
kernel = poly.compile(poly.parse("C[i] = A[i] + B[i]", A=(8,), B=(8,)))
a, c = np.ones(8, "f4"), np.zeros(8, "f4")
assert kernel(a, a, out=c) is c and (c == 2).all() and (kernel(a, a) == 2).all()
try:
    kernel(a, a, out=5)
    raise SystemExit("accepted")
except poly.PolyError:
    pass
""")


def test_a_target_whose_elements_share_memory_is_refused() -> None:
    kernel = poly.compile(poly.parse("y[i] = x[i]*2", dtypes="f64", x=(10,)))
    shared = np.lib.stride_tricks.as_strided(np.zeros(10), (10,), (0,))
    with pytest.raises(RunError, match=r"elements of out for y share memory\n  try: numpy.empty\(\(10,\), 'float64'\)"):
        kernel(np.arange(10.0), out=shared)


@pytest.mark.parametrize("value", [np.float64(2.5), np.float32(2.5), np.float16(2.5), np.int64(2), np.uint8(2)])
def test_scalars_of_numpy_are_taken_as_those_of_python(value: Any) -> None:
    x = np.arange(3, dtype=np.float32)
    for dtype in ("f32", "f64", "bf16"):
        kernel = poly.compile(poly.parse("y[i] = x[i] * f32(a)", x=(3,), a=(), dtypes={"a": dtype}))
        np.testing.assert_array_equal(kernel(x, value), kernel(x, value.item()))
    kernel = poly.compile(poly.parse("y[i] = x[i] + f32(a)", x=(3,), a=(), dtypes={"a": "i32"}))
    if isinstance(value, np.integer):
        np.testing.assert_array_equal(kernel(x, value), x + 2)
    for lost in (np.float64(2), np.int64(2**40), np.complex64(1), np.str_("1"), np.datetime64("2020")):
        with pytest.raises(PolyError, match="input a"):
            kernel(x, lost)


@poly.nest
def thirds(T: int, N: int, x: f32[Elements, "N"], y: f32[Elements, "3"]):  # noqa: F821, UP037
    assert T <= N
    for t in range(T):
        y[t % 3] += x[t]


@poly.nest
def counts(T: int, N: int, p: i64[Elements, "N"], y: f32[Elements, "4"]):  # noqa: F821, UP037
    assert T <= N
    for t in range(T):
        y[p[t]] += 1


@native
def test_calls_that_name_a_size_are_native_from_the_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = poly.compile(thirds)
    y, arrays = np.ones(3, "f4"), [np.arange(n, dtype="f4") for n in (5, 9, 7)]
    expected = {(len(a), t): [1 + a[:t][k::3].sum() for k in range(3)] for a in arrays for t in (2, 5)}
    for (n, steps), wanted in expected.items():
        np.testing.assert_array_equal(kernel(np.arange(n, dtype="f4"), y, T=steps), wanted)
    slow: list[object] = []
    monkeypatch.setattr(Kernel, "_computed", lambda *given: slow.append(given))
    for (n, steps), wanted in expected.items():
        x, out = np.arange(n, dtype="f4"), np.empty(3, "f4")
        np.testing.assert_array_equal(kernel(x, y, T=steps), wanted)
        assert kernel(x, y, T=steps, out=out) is out and list(out) == wanted
    assert not slow
    kernel(arrays[0], y, T=2, N=5)
    kernel(np.ones(10, "f4")[::2], y, T=2)
    assert len(slow) == 2


def test_what_is_no_size_is_refused_after_calls_that_name_one() -> None:
    kernel: Any = poly.compile(thirds)
    x, y = np.ones(5, "f4"), np.zeros(3, "f4")
    for _ in range(3):
        assert kernel(x, y, T=1)[0] == 1
    for steps, refusal in ((True, "size T is True"), (1.0, "size T is 1.0"), (6, "not allowed")):
        with pytest.raises(PolyError, match=refusal):
            kernel(x, y, T=steps)
    assert kernel(x=x, y=y, T=1)[0] == kernel(x, y, T=np.int64(1))[0] == kernel([1, 1, 1.0], y, T=1)[0] == 1
    for wrong in (x.astype("f8"), x[:, None], "x"):
        with pytest.raises(PolyError):
            kernel(wrong, y, T=1)
    long = np.ones(50, "f4")
    for steps in range(MOST_CALLS + 3):
        assert kernel(long, y, T=steps).sum() == kernel(long, y, T=steps).sum() == steps


def test_an_index_that_is_out_of_bounds_stops_a_call_that_names_a_size() -> None:
    kernel: Any = poly.compile(counts)
    p, y = np.arange(9) % 4, np.zeros(4, "f4")
    for _ in range(2):
        np.testing.assert_array_equal(kernel(p, y, T=9), [3, 2, 2, 2])
    p[7] = 4
    with pytest.raises(RunError, match="p"):
        kernel(p, y, T=9)
    np.testing.assert_array_equal(kernel(p, y, T=7), [2, 2, 2, 1])
