"""Matrix products and their relatives, written from their formulas."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import numpy as np

from poly.frontend.nest import Array, f64, nest


@nest
def gemm(
    NI: int, NJ: int, NK: int, alpha: float, beta: float,
    C: f64[Array, "NI, NJ"], A: f64[Array, "NI, NK"], B: f64[Array, "NK, NJ"],
):  # fmt: skip
    for i in range(NI):
        for j in range(NJ):
            C[i, j] *= beta
        for k in range(NK):
            for j in range(NJ):
                C[i, j] += alpha * A[i, k] * B[k, j]


@nest
def two_mm(
    NI: int, NJ: int, NK: int, NL: int, alpha: float, beta: float, A: f64[Array, "NI, NK"], B: f64[Array, "NK, NJ"],
    C: f64[Array, "NJ, NL"], D: f64[Array, "NI, NL"],
):  # fmt: skip
    tmp = np.empty((NI, NJ))
    for i in range(NI):
        for j in range(NJ):
            tmp[i, j] = 0.0
            for k in range(NK):
                tmp[i, j] += alpha * A[i, k] * B[k, j]
    for i in range(NI):
        for j in range(NL):
            D[i, j] *= beta
            for k in range(NJ):
                D[i, j] += tmp[i, k] * C[k, j]


@nest
def three_mm(
    NI: int, NJ: int, NK: int, NL: int, NM: int, A: f64[Array, "NI, NK"], B: f64[Array, "NK, NJ"],
    C: f64[Array, "NJ, NM"], D: f64[Array, "NM, NL"], G: f64[Array, "NI, NL"],
):  # fmt: skip
    E = np.empty((NI, NJ))
    F = np.empty((NJ, NL))
    for i in range(NI):
        for j in range(NJ):
            E[i, j] = 0.0
            for k in range(NK):
                E[i, j] += A[i, k] * B[k, j]
    for i in range(NJ):
        for j in range(NL):
            F[i, j] = 0.0
            for k in range(NM):
                F[i, j] += C[i, k] * D[k, j]
    for i in range(NI):
        for j in range(NL):
            G[i, j] = 0.0
            for k in range(NJ):
                G[i, j] += E[i, k] * F[k, j]


@nest
def gemver(
    N: int, alpha: float, beta: float, A: f64[Array, "N, N"], u1: f64[Array, "N"], v1: f64[Array, "N"],
    u2: f64[Array, "N"], v2: f64[Array, "N"], w: f64[Array, "N"], x: f64[Array, "N"], y: f64[Array, "N"],
    z: f64[Array, "N"],
):  # fmt: skip
    for i in range(N):
        for j in range(N):
            A[i, j] = A[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
    for i in range(N):
        for j in range(N):
            x[i] += beta * A[j, i] * y[j]
    for i in range(N):
        x[i] = x[i] + z[i]
    for i in range(N):
        for j in range(N):
            w[i] += alpha * A[i, j] * x[j]


@nest
def gesummv(
    N: int, alpha: float, beta: float, A: f64[Array, "N, N"], B: f64[Array, "N, N"], x: f64[Array, "N"],
    y: f64[Array, "N"],
):  # fmt: skip
    tmp = np.empty(N)
    for i in range(N):
        tmp[i] = 0.0
        y[i] = 0.0
        for j in range(N):
            tmp[i] += A[i, j] * x[j]
            y[i] += B[i, j] * x[j]
        y[i] = alpha * tmp[i] + beta * y[i]


@nest
def symm(
    M: int, N: int, alpha: float, beta: float, C: f64[Array, "M, N"], A: f64[Array, "M, M"], B: f64[Array, "M, N"]
):
    for i in range(M):
        for j in range(N):
            below = 0.0
            for k in range(i):
                C[k, j] += alpha * B[i, j] * A[i, k]
                below += B[k, j] * A[i, k]
            C[i, j] = beta * C[i, j] + alpha * B[i, j] * A[i, i] + alpha * below


@nest
def syr2k(
    M: int, N: int, alpha: float, beta: float, C: f64[Array, "N, N"], A: f64[Array, "N, M"], B: f64[Array, "N, M"]
):
    for i in range(N):
        for j in range(i + 1):
            C[i, j] *= beta
        for k in range(M):
            for j in range(i + 1):
                C[i, j] += A[j, k] * alpha * B[i, k] + B[j, k] * alpha * A[i, k]


@nest
def syrk(M: int, N: int, alpha: float, beta: float, C: f64[Array, "N, N"], A: f64[Array, "N, M"]):
    for i in range(N):
        for j in range(i + 1):
            C[i, j] *= beta
        for k in range(M):
            for j in range(i + 1):
                C[i, j] += alpha * A[i, k] * A[j, k]


@nest
def trmm(M: int, N: int, alpha: float, A: f64[Array, "M, M"], B: f64[Array, "M, N"]):
    for i in range(M):
        for j in range(N):
            for k in range(i + 1, M):
                B[i, j] += A[k, i] * B[k, j]
            B[i, j] = alpha * B[i, j]


@nest
def atax(M: int, N: int, A: f64[Array, "M, N"], x: f64[Array, "N"], y: f64[Array, "N"]):
    tmp = np.empty(M)
    for i in range(N):
        y[i] = 0.0
    for i in range(M):
        tmp[i] = 0.0
        for j in range(N):
            tmp[i] += A[i, j] * x[j]
        for j in range(N):
            y[j] += A[i, j] * tmp[i]


@nest
def bicg(
    M: int, N: int, A: f64[Array, "N, M"], s: f64[Array, "M"], q: f64[Array, "N"], p: f64[Array, "M"],
    r: f64[Array, "N"],
):  # fmt: skip
    for i in range(M):
        s[i] = 0.0
    for i in range(N):
        q[i] = 0.0
        for j in range(M):
            s[j] += r[i] * A[i, j]
            q[i] += A[i, j] * p[j]


@nest
def doitgen(NQ: int, NR: int, NP: int, A: f64[Array, "NR, NQ, NP"], C4: f64[Array, "NP, NP"]):
    row = np.empty(NP)
    for r in range(NR):
        for q in range(NQ):
            for p in range(NP):
                row[p] = 0.0
                for s in range(NP):
                    row[p] += A[r, q, s] * C4[s, p]
            for p in range(NP):
                A[r, q, p] = row[p]


@nest
def mvt(
    N: int, x1: f64[Array, "N"], x2: f64[Array, "N"], y1: f64[Array, "N"], y2: f64[Array, "N"], A: f64[Array, "N, N"]
):
    for i in range(N):
        for j in range(N):
            x1[i] += A[i, j] * y1[j]
    for i in range(N):
        for j in range(N):
            x2[i] += A[j, i] * y2[j]
