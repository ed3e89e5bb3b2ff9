"""Plain loops under numba, for the cases where a person would write them."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, exp, sqrt
from typing import Any

import numpy as np

from benchmarks.calls import Call, written_out
from benchmarks.cases import Array, Case

# Loops over the operands and the result, last. `prange` over threads where the outer loop has no order.


def _row_sums(x: Array, y: Array) -> None:
    for i in prange(x.shape[0]):
        s = np.float32(0)
        for j in range(x.shape[1]):
            s += x[i, j]
        y[i] = s


def _column_sums(x: Array, y: Array) -> None:
    y[:] = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[j] += x[i, j]


def _transpose(x: Array, y: Array) -> None:
    for b in prange(x.shape[0] // 32):
        for c in range(x.shape[1] // 32):
            for i in range(32 * b, 32 * b + 32):
                for j in range(32 * c, 32 * c + 32):
                    y[j, i] = x[i, j]


def _outer(a: Array, b: Array, y: Array) -> None:
    for i in prange(a.shape[0]):
        for j in range(b.shape[0]):
            y[i, j] = a[i] * b[j]


def _gemv(a: Array, x: Array, y: Array) -> None:
    for i in prange(a.shape[0]):
        s = np.float32(0)
        for j in range(a.shape[1]):
            s += a[i, j] * x[j]
        y[i] = s


def _gemm(a: Array, b: Array, c: Array) -> None:
    c[:] = 0
    for i in prange(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


def _batched(a: Array, b: Array, c: Array) -> None:
    c[:] = 0
    for n in prange(a.shape[0]):
        for i in range(a.shape[1]):
            for k in range(a.shape[2]):
                for j in range(b.shape[2]):
                    c[n, i, j] += a[n, i, k] * b[n, k, j]


def _muladdrelu(x: Array, y: Array, z: Array, r: Array) -> None:
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            r[i, j] = max(x[i, j] * y[i, j] + z[i, j], np.float32(0))


def _bias_gelu(x: Array, b: Array, y: Array) -> None:
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            v = x[i, j] + b[j]
            y[i, j] = np.float32(0.5) * v * (np.float32(1) + np.float32(erf(v * np.float32(0.70710678))))


def _softmax(x: Array, y: Array) -> None:
    for n in prange(x.shape[0]):
        for i in range(x.shape[1]):
            m = x[n, i, 0]
            for j in range(x.shape[2]):
                m = max(m, x[n, i, j])
            s = np.float32(0)
            for j in range(x.shape[2]):
                e = np.float32(exp(x[n, i, j] - m))
                y[n, i, j] = e
                s += e
            for j in range(x.shape[2]):
                y[n, i, j] /= s


def _layernorm(x: Array, g: Array, b: Array, y: Array) -> None:
    for i in prange(x.shape[0]):
        s = np.float32(0)
        for j in range(x.shape[1]):
            s += x[i, j]
        mean = s / np.float32(x.shape[1])
        v = np.float32(0)
        for j in range(x.shape[1]):
            v += (x[i, j] - mean) ** 2
        scale = np.float32(1) / np.float32(sqrt(v / np.float32(x.shape[1]) + np.float32(1e-5)))
        for j in range(x.shape[1]):
            y[i, j] = (x[i, j] - mean) * scale * g[j] + b[j]


def _depthwise(x: Array, w: Array, y: Array, stride: int, pad: int) -> None:
    for c in prange(y.shape[1]):
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                s = np.float32(0)
                for r in range(w.shape[2]):
                    for q in range(w.shape[3]):
                        h, v = i * stride + r - pad, j * stride + q - pad
                        if 0 <= h < x.shape[2] and 0 <= v < x.shape[3]:
                            s += x[0, c, h, v] * w[c, 0, r, q]
                y[0, c, i, j] = s


def _noop(x: Array, y: Array) -> None:
    for i in range(x.shape[0]):
        y[i] = x[i] + x[i]


prange = range  # replaced below where numba is there

_SPECS = {
    "ij->i": _row_sums, "ij->j": _column_sums, "ij->ji": _transpose, "i,j->ij": _outer, "ij,j->i": _gemv,
    "ik,kj->ij": _gemm, "bij,bjk->bik": _batched,
}  # fmt: skip
_KINDS = {
    "muladdrelu": _muladdrelu, "bias_gelu": _bias_gelu, "softmax": _softmax, "layernorm": _layernorm, "noop": _noop,
}  # fmt: skip


def numba_peer(case: Case, threads: int) -> Call | None:
    """Loops with fast arithmetic, over threads where there are several."""
    import numba

    source = _SPECS.get(case.spec) if case.kind == "einsum" else _KINDS.get(case.kind)
    extra: tuple[int, ...] = ()
    if case.kind == "conv" and case.groups == case.inputs["x"][1]:
        source, extra = _depthwise, (case.stride, case.pad)
    if source is None or case.flops > 5e9:
        return None
    globals()["prange"] = numba.prange
    kernel: Any = numba.njit(source, fastmath=True, parallel=threads > 1, error_model="numpy")
    inputs, consts = case.operands()
    arrays = [*inputs.values(), *consts.values()]
    out = np.zeros(_result_shape(case), np.float32)

    run = written_out(kernel, *arrays, out, *extra)

    def call() -> Sequence[Array]:
        run()
        return (out,)

    call()
    return call


def _result_shape(case: Case) -> tuple[int, ...]:
    if case.kind == "einsum":
        terms, result = case.spec.split("->")
        sizes = {i: e for t, s in zip(terms.split(","), case.inputs.values(), strict=True)
                 for i, e in zip(t, s, strict=True)}  # fmt: skip
        return tuple(sizes[i] for i in result)
    x = case.inputs["x"]
    if case.kind != "conv":
        return x
    w = case.consts["w"]
    return (x[0], w[0], *((x[d] + 2 * case.pad - w[d]) // case.stride + 1 for d in (2, 3)))
