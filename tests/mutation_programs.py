# ruff: noqa: E501 (a statement of a program is one line)
"""Small programs of many kinds, all sizes bound: what schedules are mutated and judged on."""

from __future__ import annotations

from functools import cache

from poly.program import Program
from poly.text import parse_program

_TEXTS: dict[str, str] = {}


def _add(name: str, sizes: str, text: str) -> None:
    names = [part.split("=")[0].strip() for part in sizes.split(",")]
    context = " and ".join(f"{n} >= 1" for n in names)
    _TEXTS[name] = f"program {name}({', '.join(names)}) where {context}\nsizes {sizes}\n{text.strip()}\n"


# ---- contractions

_add("matmul", "M = 4, N = 5, K = 3", """
input A: f32[M, K]
input B: f32[K, N]
output C: f32[M, N]
init[i, j]: C[i, j] = 0.0 where 0 <= i < M and 0 <= j < N
upd[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < M and 0 <= j < N and 0 <= k < K
""")
_add("matmul_relu", "M = 4, N = 4, K = 4", """
input A: f32[M, K]
input B: f32[K, N]
constant b: f32[N]
temporary C: f32[M, N]
output D: f32[M, N]
init[i, j]: C[i, j] = 0.0 where 0 <= i < M and 0 <= j < N
upd[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < M and 0 <= j < N and 0 <= k < K
epi[i, j]: D[i, j] = max(C[i, j] + b[j], 0) where 0 <= i < M and 0 <= j < N
""")
_add("matmul_fused", "M = 3, N = 4, K = 3", """
input A: f32[M, K]
input B: f32[K, N]
output D: f32[M, N]
temporary C: f32[M, N]
for i:
    for j:
        init[i, j]: C[i, j] = 0.0 where 0 <= i < M and 0 <= j < N
        upd[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < M and 0 <= j < N and 0 <= k < K
        epi[i, j]: D[i, j] = C[i, j] - 1 where 0 <= i < M and 0 <= j < N
""")
_add("two_matmuls", "M = 3, N = 3, K = 4", """
input A: f32[M, K]
input B: f32[K, N]
input E: f32[N, M]
temporary C: f32[M, N]
output D: f32[M, M]
init[i, j]: C[i, j] = 0.0 where 0 <= i < M and 0 <= j < N
upd[i, j, k]: C[i, j] += A[i, k]*B[k, j] where 0 <= i < M and 0 <= j < N and 0 <= k < K
init2[i, l]: D[i, l] = 0.0 where 0 <= i < M and 0 <= l < M
upd2[i, l, j]: D[i, l] += C[i, j]*E[j, l] where 0 <= i < M and 0 <= l < M and 0 <= j < N
""")
_add("ttm", "I = 2, J = 4, K = 3, L = 3", """
input X: f32[I, J, K]
input Y: f32[J, L]
output Z: f32[I, L, K]
init[i, l, k]: Z[i, l, k] = 0.0 where 0 <= i < I and 0 <= l < L and 0 <= k < K
upd[i, l, k, j]: Z[i, l, k] += X[i, j, k]*Y[j, l] where 0 <= i < I and 0 <= l < L and 0 <= k < K and 0 <= j < J
""")
_add("outer_product", "M = 5, N = 6", """
input x: f32[M]
input y: f32[N]
output C: f32[M, N]
S[i, j]: C[i, j] = x[i]*y[j] where 0 <= i < M and 0 <= j < N
""")
_add("quantised_dot", "M = 5, K = 6", """
input A: i8[M, K]
input x: i8[K]
output y: i32[M]
init[i]: y[i] = 0 where 0 <= i < M
upd[i, k]: y[i] += i32(A[i, k])*i32(x[k]) where 0 <= i < M and 0 <= k < K
""")

# ---- convolutions, pooling

_add("conv1d", "N = 9, R = 3", """
input X: f32[N]
input W: f32[R]
output Y: f32[N - R + 1]
init[y]: Y[y] = 0.0 where 0 <= y <= N - R
upd[y, r]: Y[y] += X[y + r]*W[r] where 0 <= y <= N - R and 0 <= r < R
""")
_add("conv_padded", "N = 8, R = 3", """
input X: f32[N]
input W: f32[R]
output Y: f32[N]
init[y]: Y[y] = 0.0 where 0 <= y < N
upd[y, r]: Y[y] += (X[y + r - 1] if 0 <= y + r - 1 and y + r - 1 < N else 0.0)*W[r] where 0 <= y < N and 0 <= r < R
""")
_add("conv_strided", "C = 2, N = 9, K = 2, R = 3", """
input X: f32[C, N]
input W: f32[K, C, R]
output Y: f32[K, 5]
init[k, y]: Y[k, y] = 0.0 where 0 <= k < K and 0 <= y < 5
upd[k, y, c, r]: Y[k, y] += (X[c, 2*y + r - 1] if 0 <= 2*y + r - 1 and 2*y + r - 1 < N else 0.0)*W[k, c, r] where 0 <= k < K and 0 <= y < 5 and 0 <= c < C and 0 <= r < R
""")
_add("conv2d", "H = 5, W = 5, R = 2", """
input X: f32[H, W]
input F: f32[R, R]
output Y: f32[H - R + 1, W - R + 1]
init[y, x]: Y[y, x] = 0.0 where 0 <= y <= H - R and 0 <= x <= W - R
upd[y, x, r, s]: Y[y, x] += X[y + r, x + s]*F[r, s] where 0 <= y <= H - R and 0 <= x <= W - R and 0 <= r < R and 0 <= s < R
""")
_add("max_pool", "C = 2, N = 8", """
input X: f32[C, N]
output Y: f32[C, 4]
init[c, y]: Y[c, y] = -1000.0 where 0 <= c < C and 0 <= y < 4
pool[c, y, r]: Y[c, y] max= (X[c, 2*y + r - 1] if 0 <= 2*y + r - 1 else -1000.0) where 0 <= c < C and 0 <= y < 4 and 0 <= r < 3
""")
_add("conv_relu_pool", "N = 9", """
input X: f32[N]
temporary C: f32[N - 2]
temporary P: f32[N - 2]
output Y: f32[N - 4]
init[y]: C[y] = 0.0 where 0 <= y < N - 2
upd[y, r]: C[y] += X[y + r] where 0 <= y < N - 2 and 0 <= r < 3
relu[y]: P[y] = max(C[y], 0) where 0 <= y < N - 2
start[y]: Y[y] = -1000.0 where 0 <= y < N - 4
pool[y, r]: Y[y] max= P[y + r] where 0 <= y < N - 4 and 0 <= r < 3
""")

# ---- reductions

_add("row_sum", "M = 4, N = 6", """
input X: f32[M, N]
output s: f32[M]
init[i]: s[i] = 0.0 where 0 <= i < M
upd[i, j]: s[i] += X[i, j] where 0 <= i < M and 0 <= j < N
""")
_add("total", "M = 4, N = 4", """
input X: f32[M, N]
output s: f32[]
init[]: s[] = 0.0
upd[i, j]: s[] += X[i, j] where 0 <= i < M and 0 <= j < N
""")
_add("maximum_ordered", "N = 8", """
input X: f32[N]
output m: f32[1]
init[i]: m[i] = -1000.0 where 0 <= i < 1
upd[i, j]: m[i] max= X[j] where 0 <= i < 1 and 0 <= j < N ordered
""")
_add("softmax_like", "M = 3, N = 4", """
input X: f32[M, N]
temporary m: f32[M]
temporary E: f32[M, N]
temporary s: f32[M]
output Y: f32[M, N]
m0[i]: m[i] = -1000.0 where 0 <= i < M
m1[i, j]: m[i] max= X[i, j] where 0 <= i < M and 0 <= j < N
e[i, j]: E[i, j] = X[i, j] - m[i] where 0 <= i < M and 0 <= j < N
s0[i]: s[i] = 0.0 where 0 <= i < M
s1[i, j]: s[i] += E[i, j] where 0 <= i < M and 0 <= j < N
y[i, j]: Y[i, j] = E[i, j]*s[i] where 0 <= i < M and 0 <= j < N
""")
_add("two_reductions", "N = 7", """
input X: f32[N]
input Z: f32[N]
output a: f32[1]
output b: f32[1]
a0[u]: a[u] = 0.0 where 0 <= u < 1
b0[u]: b[u] = 1.0 where 0 <= u < 1
a1[u, i]: a[u] += X[i] where 0 <= u < 1 and 0 <= i < N
b1[u, i]: b[u] *= Z[i] where 0 <= u < 1 and 0 <= i < N
""")
_add("accumulate_twice", "M = 4, N = 3", """
input X: f32[M, N]
input Z: f32[M, N]
inout s: f32[M]
one[i, j]: s[i] += X[i, j] where 0 <= i < M and 0 <= j < N
two[i, j]: s[i] += Z[i, j] where 0 <= i < M and 0 <= j < N
""")

# ---- stencils in time, in place

_add("jacobi", "T = 3, N = 8", """
inout A: f32[N]
temporary B: f32[N]
for t:
    S[t, i]: B[i] = A[i - 1] + A[i] + A[i + 1] where 0 <= t < T and 1 <= i < N - 1
    R[t, i]: A[i] = B[i] where 0 <= t < T and 1 <= i < N - 1
""")
_add("seidel", "T = 3, N = 7", """
inout A: f32[N]
S[t, i]: A[i] = A[i - 1] + A[i] + A[i + 1] where 0 <= t < T and 1 <= i < N - 1
""")
_add("heat_expanded", "T = 4, N = 7", """
inout U: f32[T + 1, N]
S[t, i]: U[t + 1, i] = U[t, i - 1] + U[t, i] + U[t, i + 1] where 0 <= t < T and 1 <= i < N - 1
""")
_add("seidel2d", "T = 2, N = 5", """
inout A: f32[N, N]
S[t, i, j]: A[i, j] = A[i - 1, j] + A[i, j - 1] + A[i + 1, j] + A[i, j + 1] where 0 <= t < T and 1 <= i < N - 1 and 1 <= j < N - 1
""")
_add("wavefront", "M = 5, N = 5", """
inout H: f32[M, N]
S[i, j]: H[i, j] = max(H[i - 1, j], H[i, j - 1]) where 1 <= i < M and 1 <= j < N
""")

# ---- triangles, scans

_add("triangular_solve", "N = 5", """
input L: f32[N, N]
inout x: f32[N]
for i:
    sub[i, k]: x[i] += -L[i, k]*x[k] where 0 <= i < N and 0 <= k < i
    fix[i]: x[i] = x[i]*L[i, i] where 0 <= i < N
""")
_add("triangular_product", "N = 5", """
input L: f32[N, N]
input B: f32[N, N]
output C: f32[N, N]
init[i, j]: C[i, j] = 0.0 where 0 <= i < N and 0 <= j < N
upd[i, j, k]: C[i, j] += L[i, k]*B[k, j] where 0 <= i < N and 0 <= j < N and 0 <= k <= i
""")
_add("scan", "N = 8", """
input X: f32[N]
output Y: f32[N]
first[i]: Y[i] = X[i] where 0 <= i < 1
rest[i]: Y[i] = Y[i - 1] + X[i] where 1 <= i < N
""")
_add("scan_rows", "M = 3, N = 5", """
input X: f32[M, N]
output Y: f32[M, N]
first[i, j]: Y[i, j] = X[i, j] where 0 <= i < M and 0 <= j < 1
rest[i, j]: Y[i, j] = Y[i, j - 1] + X[i, j] where 0 <= i < M and 1 <= j < N
""")
_add("lu", "N = 4", """
inout A: f32[N, N]
for k:
    div[k, i]: A[i, k] = A[i, k]*A[k, k] where 0 <= k < N and k < i < N
    upd[k, i, j]: A[i, j] = A[i, j] - A[i, k]*A[k, j] where 0 <= k < N and k < i < N and k < j < N
""")
_add("upper_half", "N = 6", """
input X: f32[N, N]
temporary T: f32[N, N]
output Y: f32[N, N]
P[i, j]: T[i, j] = X[i, j] - X[j, i] where 0 <= i < N and i <= j < N
zero[i, j]: Y[i, j] = 0.0 where 0 <= i < N and 0 <= j < N
Q[i, j]: Y[i, j] = T[i, j] + 1 where 0 <= i < N and i <= j < N
""")

# ---- chains with halos, copies, scalars

_add("blur_chain", "N = 10", """
input X: f32[N]
temporary A: f32[N - 2]
output B: f32[N - 4]
P[i]: A[i] = X[i] + X[i + 1] + X[i + 2] where 0 <= i < N - 2
Q[i]: B[i] = A[i] + A[i + 1] + A[i + 2] where 0 <= i < N - 4
""")
_add("blur2d", "H = 6, W = 5", """
input X: f32[H, W]
temporary A: f32[H, W - 1]
output B: f32[H - 1, W - 1]
P[y, x]: A[y, x] = X[y, x] + X[y, x + 1] where 0 <= y < H and 0 <= x < W - 1
Q[y, x]: B[y, x] = A[y, x] + A[y + 1, x] where 0 <= y < H - 1 and 0 <= x < W - 1
""")
_add("three_stages", "N = 9", """
input X: f32[N]
temporary A: f32[N]
temporary B: f32[N]
output C: f32[N]
P[i]: A[i] = X[i] + 1 where 0 <= i < N
Q[i]: B[i] = A[i] + (A[i - 1] if i >= 1 else 0.0) where 0 <= i < N
R[i]: C[i] = B[i] + (B[i + 1] if i + 1 < N else 0.0) where 0 <= i < N
""")
_add("downsample", "N = 10", """
input X: f32[N]
temporary A: f32[N]
output B: f32[N // 2]
P[i]: A[i] = X[i] - 2 where 0 <= i < N
Q[i]: B[i] = A[2*i] + A[2*i + 1] where 0 <= 2*i and 2*i + 1 < N
""")
_add("transpose_chain", "M = 4, N = 5", """
input X: f32[M, N]
temporary T: f32[N, M]
output Y: f32[M, N]
P[i, j]: T[j, i] = X[i, j] where 0 <= i < M and 0 <= j < N
Q[i, j]: Y[i, j] = T[j, i] + T[j, 0] where 0 <= i < M and 0 <= j < N
""")
_add("copies", "M = 4, N = 4", """
input X: f32[M, N]
output Y: f32[M, N]
output Z: f32[M, N]
P[i, j]: Y[i, j] = X[i, j] where 0 <= i < M and 0 <= j < N
Q[i, j]: Z[i, j] = X[i, N - 1 - j] where 0 <= i < M and 0 <= j < N
""")
_add("scalar_temporary", "N = 6", """
input X: f32[N]
temporary s: f32[]
output Y: f32[N]
for i:
    P[i]: s[] = X[i] + 1 where 0 <= i < N
    Q[i]: Y[i] = s[] + s[] where 0 <= i < N
""")
_add("row_temporary", "M = 4, N = 4", """
input X: f32[M, N]
temporary r: f32[N]
output Y: f32[M, N]
for i:
    P[i, j]: r[j] = X[i, j] - 1 where 0 <= i < M and 0 <= j < N
    Q[i, j]: Y[i, j] = r[j] + r[N - 1 - j] where 0 <= i < M and 0 <= j < N
""")
_add("in_place", "M = 4, N = 4", """
inout A: f32[M, N]
P[i, j]: A[i, j] = A[i, j] + 1 where 0 <= i < M and 0 <= j < N
Q[i, j]: A[i, j] = A[i, j] - 2 where 0 <= i < M and 0 <= j < N
""")
_add("reversal_in_place", "N = 8", """
inout A: f32[N]
P[i]: A[i] = A[N - 1 - i] + 1 where 0 <= i < N
""")
_add("overwritten", "N = 6", """
input X: f32[N]
output Y: f32[N]
P[i]: Y[i] = X[i] where 0 <= i < N
Q[i]: Y[i] = Y[i] + X[N - 1 - i] where 0 <= i < N
R[i]: Y[i] = 0.0 where 0 <= i < 2
""")
_add("siblings", "M = 4, N = 4", """
input X: f32[M, N]
temporary A: f32[M, N]
output B: f32[M, N]
output s: f32[M]
P[i, j]: A[i, j] = X[i, j] + 1 where 0 <= i < M and 0 <= j < N
Q[i, j]: B[i, j] = A[i, j] + A[i, 0] where 0 <= i < M and 0 <= j < N
s0[i]: s[i] = 0.0 where 0 <= i < M
s1[i, j]: s[i] += A[i, j] where 0 <= i < M and 0 <= j < N
""")
_add("gather", "N = 4, M = 5", """
input x: f32[N]
input at: i32[M]
output y: f32[M]
output z: f32[M]
G[i]: y[i] = x[at[i]] + 1 where 0 <= i < M
H[i]: z[i] = y[i] + x[0] where 0 <= i < M
""")
_add("scatter", "N = 4, M = 5", """
input v: f32[M]
input at: i32[M]
inout x: f32[N]
output y: f32[N]
G[i]: x[at[i]] = v[i] where 0 <= i < M
H[i]: y[i] = x[i] + 1 where 0 <= i < N
""")

NAMES: tuple[str, ...] = tuple(_TEXTS)


@cache
def program(name: str) -> Program:
    """One of the programs by name."""
    return parse_program(_TEXTS[name])
