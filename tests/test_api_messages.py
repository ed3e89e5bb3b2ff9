"""What a user meets at the edges of the interface: what is taken, and what a refusal says."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import numpy as np

import poly
from poly.frontend.nest import Array, f64


@poly.nest
def scaled(N: int, A: f64[Array, "N"]) -> None:
    t = 2.0
    for i in range(N):
        A[i] *= t


def test_a_constant_scalar_beside_free_sizes() -> None:
    kernel = poly.compile(scaled)
    for n in (3, 7):
        assert np.asarray(kernel(np.arange(float(n)))).tolist() == [2.0 * k for k in range(n)]
