"""The same bits from run to run for a number of threads, wherever the arrays lie and whoever else is calling."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

import poly
from benchmarks.cases import CASES, Case, attention, conv, einsum, pointwise
from benchmarks.graphs import model_of
from benchmarks.peers import model_inputs
from poly.codegen.kernel import Kernel
from poly.frontend.einsum import einsum_program

Array = np.ndarray
SLOW = "POLYLOOM_SLOW" in os.environ
SMALL = (
    einsum("gemm", "ik,kj->ij", (67, 300), (300, 131)),
    einsum("gemv", "ij,j->i", (300, 511), (511,)),
    einsum("mttkrp", "ijk,jl,kl->il", (33, 20, 31), (20, 17), (31, 17)),
    einsum("rows", "ij->i", (300, 1021)),
    einsum("columns", "ij->j", (300, 1021)),
    einsum("all", "ij->", (300, 1021)),
    conv("conv", (1, 32, 15, 17), (40, 32, 3, 3), pad=1),
    conv("depthwise", (1, 40, 15, 17), (40, 1, 3, 3), stride=2, pad=1, groups=40),
    pointwise("softmax", "softmax", {"x": (2, 37, 129)}, {}, 4, exp=1),
    pointwise("layernorm", "layernorm", {"x": (37, 129)}, {"g": (129,), "b": (129,)}, 8),
    attention(2, 65, 24),
)
OFFSETS = (0, 4, 16, 20, 32, 60)  # bytes after a line of cache


def kernel_of(case: Case, threads: int) -> tuple[Kernel, list[Array]]:
    inputs: list[Array] = [*model_inputs(case).values()]
    if case.kind == "einsum":
        program = einsum_program(case.spec, [a.shape for a in inputs], ["f32"] * len(inputs))
        kernel = poly.compile(program, threads=threads)
    else:
        graph = poly.from_onnx(model_of(case))
        kernel = poly.compile(graph.to_program(), constants=graph.constants, threads=threads)
    assert isinstance(kernel, Kernel)
    return kernel, inputs


def placed(array: Array, offset: int) -> Array:
    """A copy that starts some bytes after a line of cache."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bits(array: object) -> Array:
    assert isinstance(array, np.ndarray)
    return np.array(array).view(np.uint32)


def check(case: Case, threads: int, others: Callable[[Callable[[], None]], None]) -> None:
    kernel, inputs = kernel_of(case, threads)
    first = bits(kernel(*inputs))

    def again() -> None:
        for offset in OFFSETS:
            out = placed(np.full(first.shape, np.nan, np.float32), offset)
            kernel(*(placed(a, 3 * offset % 64) for a in inputs), out=out)
            np.testing.assert_array_equal(bits(out), first)

    again()
    others(again)


def on_two_threads(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=guarded) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_small_kernels(case: Case, threads: int) -> None:
    check(case, threads, on_two_threads)


@pytest.mark.skipif(not SLOW, reason="all cases of the benchmarks, minutes: POLYLOOM_SLOW=1")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cases_of_the_benchmarks(case: Case, threads: int) -> None:
    check(case, threads, lambda _: None)
