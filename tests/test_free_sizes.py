# ruff: noqa: F821, UP037
# pyright: basic, reportUndefinedVariable=false, reportGeneralTypeIssues=false
"""Calls with free sizes: what a program's context excludes is refused before its code runs, as the interpreter does."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.errors import RunError, ShapeError
from poly.interp import run_program
from poly.program import Program
from poly.relations import intervals_of
from poly.scheduling.cpu_calls import CallWork

pytestmark = pytest.mark.usefixtures("no_cache")

COPY_16 = "y[i] = x[i] where 0 <= i < 16"


@poly.nest
def firsts(x: poly.f32["N"], y: poly.f32["N"]):
    assert N >= 8
    for i in range(8):
        y[i] = x[i]


@poly.nest
def narrow(x: poly.f32["M"], y: poly.f32["N"], z: poly.f32["N"]):
    assert M <= N
    for i in range(M):
        z[i] = x[i] + y[i]


def compiled(program: object) -> Kernel:
    kernel = poly.compile(program)  # type: ignore[arg-type]
    assert isinstance(kernel, Kernel)
    return kernel


def refused(program: Program, kernel: Kernel, **arrays: np.ndarray) -> None:
    """Both refuse these arrays, in the same words."""
    with pytest.raises(RunError) as error:
        run_program(program, arrays)
    with pytest.raises(RunError, match=re.escape(str(error.value))):
        kernel(*(arrays[t.name] for t in program.inputs))


def test_nothing_is_written_outside() -> None:
    program = poly.parse(COPY_16, x=("N",), y=("N",))
    kernel, memory = compiled(program), np.full(32, -7, np.float32)
    for _ in range(2):
        with pytest.raises(RunError, match="N = 3 is not allowed: N"):
            kernel(np.arange(3, dtype=np.float32), out=memory[:3])
    assert (memory == -7).all()
    refused(program, kernel, x=np.arange(3, dtype=np.float32))
    x = np.arange(20, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(kernel(x))[:16], x[:16])


def test_other_ways_in() -> None:
    kernel = compiled(poly.parse(COPY_16, x=("N",), y=("N",)))
    with pytest.raises(RunError, match="N = 3 is not allowed: N"):
        kernel.runner(("x", "y"), {"N": 3})
    with pytest.raises(RunError, match="N = 3 is not allowed: N"):
        kernel.run((0, 0), {"N": 3})
    with pytest.raises(RunError, match="size N is free and has no value"):
        kernel.runner(("x", "y"))
    with pytest.raises(RunError, match="y has no address"):
        kernel.runner(("x",), {"N": 20})


def test_asserts_of_nests() -> None:
    kernel, x = compiled(firsts), np.arange(9, dtype=np.float32)
    refused(firsts.program, kernel, x=x[:3], y=x[:3])
    kernel = compiled(narrow)
    refused(narrow.program, kernel, x=x, y=x[:4], z=x[:4])


@pytest.mark.parametrize("length", [0, 1, 2])
def test_negative_and_empty_extents(length: int) -> None:
    """x has two elements more than y: no y of -2 elements, and one of none by both."""
    program = poly.parse("y[i] = x[i] where 0 <= i < N", x=("N + 2",), y=("N",))
    kernel, x = compiled(program), np.zeros(length, np.float32)
    if length == 2:
        assert np.shape(kernel(x)) == run_program(program, {"x": x})["y"].shape == (0,)
        return
    with pytest.raises(RunError) as error:
        run_program(program, {"x": x}, sizes={"N": length - 2})
    with pytest.raises(RunError, match=re.escape(str(error.value))):
        kernel(x)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 4), (0, 0, 0), (2, 3, 4)])
def test_sizes_of_nothing(m: int, k: int, n: int) -> None:
    text = "C[i,k] += A[i,j] * B[j,k]; D[i,k] = max(C[i,k] + b[k], 0); t[] += D[i,k]"
    program = poly.parse(text, A=("M", "K"), B=("K", "N"), b=("N",))
    kernel, a, b = compiled(program), np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    bias = np.arange(n, dtype=np.float32) - 1
    want = np.maximum(a @ b + bias, 0).sum()
    out = np.full((), 7, np.float32)
    assert kernel(a, b, bias) == kernel(A=a, B=b, b=bias, out=out) == out == want
    assert run_program(program, {"A": a, "B": b, "b": bias})["t"] == want
    product: Any = compiled(poly.parse("C[i,k] += A[i,j] * B[j,k]", A=("M", "K"), B=("K", "N")))(a, b)
    assert product.shape == (m, n) and np.array_equal(product, a @ b)


def test_nothing_where_the_context_wants_more() -> None:
    refused(program := poly.parse(COPY_16, x=("N",), y=("N",)), compiled(program), x=np.zeros(0, np.float32))
    refused(firsts.program, compiled(firsts), x=np.zeros(0, np.float32), y=np.zeros(0, np.float32))


@poly.nest
def sums(T: int, N: int, a: poly.f32["N"]):
    for t in range(T):  # noqa: B007
        for i in range(1, N):
            a[i] += a[i - 1]


def test_a_size_in_no_shape_is_given_by_name() -> None:
    kernel, a = compiled(sums), np.ones(5, np.float32)
    for steps in (3, 0, 1, 3, 2):  # what a call before was given is not remembered
        with pytest.raises(RunError, match=r"size T does not follow.*\n.*T=8"):
            kernel(a)
        want = a.copy()
        sums(steps, 5, want)
        for found in (kernel(a, T=steps), kernel(a=a, T=np.int64(steps), N=5), kernel(a.tolist(), T=steps)):
            np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(run_program(sums.program, {"a": a}, sizes={"T": steps})["a"], want)
    with pytest.raises(RunError, match=r"T = -1, N = 5 is not allowed: T > 0(?s:.)*or 0, with nothing to do"):
        kernel(a, T=-1)
    with pytest.raises(ShapeError, match=r"T = 0 is not allowed: T > 0(?s:.)*code for any size takes T=0"):
        sums.program.bind(T=0)
    with pytest.raises(TypeError, match=r"size T is 2\.5"):
        kernel(a, T=2.5)
    with pytest.raises(RunError, match=r"a has shape \[5\], expected \[6\]"):
        kernel(a, T=1, N=6)
    with pytest.raises(TypeError, match="none is called 'U'"):
        kernel(a, T=1, U=1)


@pytest.mark.parametrize("target", ["cpu", "s16"])
def test_a_size_that_is_bound_may_be_named(target: str) -> None:
    kernel, a = poly.compile(sums.program.bind(T=2, N=3), target), np.ones(3, np.float32)
    assert np.array_equal(kernel(a), kernel(a, T=2))
    with pytest.raises(RunError, match="size T is 2 in this kernel, given 3"):
        kernel(a, T=3)


@pytest.mark.parametrize(
    ("text", "shapes", "boxes"),
    [
        ("C[i,k] += A[i,j]*B[j,k]", {"A": ("M", 5), "B": (5, "N")}, 2),
        ("y[i] += A[i,j]*x[j] where 0 <= j <= i", {"A": ("M", "M"), "x": ("M",)}, 1),
        ("y[i] = x[i+2] where 0 <= i < M - 2", {"x": ("M",), "y": ("M",)}, 1),
    ],
)
def test_instances_of_boxes_need_no_isl(text: str, shapes: dict[str, Any], boxes: int) -> None:
    program = poly.parse(text, **shapes)
    work = CallWork(program)
    assert len(work.boxes) == boxes
    for m, n in ((3, 4), (7, 1), (40, 9)):
        sizes = {p: v for p, v in (("M", m), ("N", n)) if p in program.parameters}
        bound = program.bind(**sizes)
        found = [intervals_of(bound, s).values() for s in bound.statements]
        wanted = sum(prod(e[1] - e[0] + 1 for e in ends if e is not None) for ends in found)
        assert sum(work.instances(sizes).values()) == wanted > 0


@pytest.mark.parametrize(
    ("text", "shapes", "short", "long"),
    [
        ("y[i,j] = 2*x[i,j]", {"x": ("M", "N")}, {"M": 64, "N": 1000}, {"M": 64, "N": 1050}),
        ("s[i] += x[i,j]", {"x": ("M", "N")}, {"M": 64, "N": 1900}, {"M": 64, "N": 2100}),
    ],
)
def test_a_call_is_shared_that_takes_longer_than_its_meetings(
    text: str, shapes: dict[str, Any], short: dict[str, int], long: dict[str, int]
) -> None:
    kernel = poly.compile(poly.parse(text, **shapes), threads=2)
    assert isinstance(kernel, Kernel)
    found = [kernel._is_shared(sizes) for sizes in (short, long)]  # pyright: ignore[reportPrivateUsage]
    assert found == [False, True]
