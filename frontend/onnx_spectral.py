"""Rows of the operator table that are sums with constant sines and cosines, and others of signals and matrices.

A transform is a product of real numbers with a matrix made while importing: n^2 complex products of a signal of n, one
contraction like any other. The real and the imaginary part of each element are neighbours, so both are one axis of it.
"""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.dtypes import is_float, numpy_dtype
from poly.frontend.onnx_notation import NoCompiledForm, Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64]
_MAX_MATRIX: Final = 1 << 26  # elements: 256 MiB of f32, a complex transform of 4096
_ROWS: Final = 64  # of the matrix, made at a time in f64


def _waves(weights: Floats, bins: int, whole: int, sign: int, parts: tuple[int, int], dtype: str) -> Array:
    """[length, q, bins, p] for `parts` q and p: what part q of element n adds to part p of bin k, of
    weights[n] * exp(sign * 2 pi i k n / whole). The product k n is reduced first, so that it is exact.
    """
    given, made = parts
    found = np.empty((len(weights), given, bins, made), numpy_dtype(dtype))
    for first in range(0, len(weights), _ROWS):
        rows = np.arange(first, min(first + _ROWS, len(weights)), dtype=np.int64)
        turns = np.outer(rows, np.arange(bins, dtype=np.int64)) % whole
        angle, weight = sign * 2 * np.pi * turns / whole, weights[rows, None]
        cosine, sine = weight * np.cos(angle), weight * np.sin(angle)
        for q, row in enumerate(((cosine, sine), (-sine, cosine))[:given]):
            for p in range(made):
                found[rows, q, :, p] = row[p]
    return found


def _require_small(b: Notation, whole: int, *extents: int) -> None:
    b.supported(prod(extents) <= _MAX_MATRIX, f"a transform of {whole} as a product is too large")


def dft(b: Notation) -> None:
    """y[.., k, :] = sum over n of exp(-2 pi i k n / N) x[.., n, :]; the inverse has the other sign and 1 / N."""
    x = b.input(0)
    b.require(x.rank >= 2 and x.shape[-1] in (1, 2) and is_float(x.dtype), f"{x.dtype}{list(x.shape)} is no signal")
    inverse, onesided = b.int_attribute("inverse", 0) == 1, b.int_attribute("onesided", 0) == 1
    given = b.int_attribute("axis", 1) if b.opset < 20 else -2 if b.optional(2) is None else b.constant_ints(2)[0]
    axis = b.axis(given, x.rank)
    b.require(axis != x.rank - 1, f"axis {given} is that of the parts")
    default = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    whole = default if b.optional(1) is None else b.constant_ints(1)[0]
    b.require(whole > 0, f"dft_length is {whole}")
    if inverse and onesided:
        _real_inverse(b, x, axis, whole)
        return
    bins, length = whole // 2 + 1 if onesided else whole, min(whole, x.shape[axis])
    _require_small(b, whole, bins, length, x.shape[-1], 2)
    weights = np.full(length, 1 / whole if inverse else 1.0)
    _transform(b, x, axis, _waves(weights, bins, whole, 1 if inverse else -1, (x.shape[-1], 2), x.dtype))


def _transform(b: Notation, x: Value, axis: int, waves: Array) -> None:
    """y[.., k, p] = sum over n and q of x[.., n, q] waves[n, q, k, p]."""
    length, parts, bins, _ = waves.shape
    y = b.output([*(bins if k == axis else e for k, e in enumerate(x.shape[:-1])), waves.shape[-1]], x.dtype)
    matrix = b.new_constant("waves", waves)
    ranges, point = positions(y.shape)
    n, q = b.iterators("n", "q")
    source: list[Index] = [n if d == axis else p for d, p in enumerate(point[:-1])]
    b.reduce(y, ranges, {"n": length, "q": parts}, x[(*source, q)] * matrix[n, q, point[axis], point[-1]])


def _real_inverse(b: Notation, x: Value, axis: int, whole: int) -> None:
    """The real signal of a half spectrum: inner bins count twice, for their conjugates."""
    b.require(x.shape[-1] == 2, "the spectrum is not complex")
    bins = min(whole // 2 + 1, x.shape[axis])
    _require_small(b, whole, bins, whole, 2)
    twice = np.full(bins, 2.0)
    twice[0] = 1.0
    if whole % 2 == 0 and bins == whole // 2 + 1:
        twice[-1] = 1.0
    _transform(b, x, axis, _waves(twice / whole, whole, whole, 1, (2, 1), x.dtype))


def stft(b: Notation) -> None:
    """Frames of the signal, each times the window, transformed: y[n, f, k] = sum of x[n, f * step + i] w[i] e(k i)."""
    x, window = b.input(0), b.optional(2)
    b.require(x.rank == 3 and x.shape[-1] in (1, 2) and is_float(x.dtype), f"{x.dtype}{list(x.shape)} is no signal")
    step = b.constant_ints(1)[0]
    length = b.constant_ints(3)[0] if b.optional(3) is not None else window.shape[0] if window else x.shape[1]
    frames = 1 + (x.shape[1] - length) // step if step > 0 else 0
    b.require(frames > 0 and 0 < length <= x.shape[1], f"step {step} and length {length} give no frame")
    b.require(window is None or window.shape == (length,), f"the window is not [{length}]")
    bins = length // 2 + 1 if b.int_attribute("onesided", 1) == 1 else length
    _require_small(b, length, bins, length, x.shape[-1], 2)
    weights = np.ones(length)
    if window is not None and window.array is not None:
        weights, window = window.array.astype(np.float64), None
    y = b.output((x.shape[0], frames, bins, 2), x.dtype)
    matrix = b.new_constant("waves", _waves(weights, bins, length, -1, (x.shape[-1], 2), x.dtype))
    n, f, j, p, k, q = b.iterators("n", "f", "j", "p", "k", "q")
    value: Term = x[n, f * step + k, q] * matrix[k, q, j, p]
    value = value if window is None else value * window[k]
    b.reduce(y, dict(zip("nfjp", y.shape, strict=True)), {"k": length, "q": x.shape[-1]}, value)


def determinant(b: Notation) -> None:
    """The sum over the permutations (Leibniz), for matrices up to 4 x 4."""
    x = b.input(0)
    b.require(x.rank >= 2 and x.shape[-1] == x.shape[-2], f"{list(x.shape)} is not square")
    size = x.shape[-1]
    b.supported(0 < size <= 4, f"{size} x {size} has no compiled form")
    y = b.output(x.shape[:-2], x.dtype)
    ranges, point = positions(y.shape)
    total: Term | None = None
    for order in permutations(range(size)):
        product = x[(*point, 0, order[0])]
        for row in range(1, size):
            product = product * x[(*point, row, order[row])]
        odd = sum(p > q for k, p in enumerate(order) for q in order[k + 1 :]) % 2
        total = product if total is None else total - product if odd else total + product
    assert total is not None
    b.assign(y, ranges, total)


def from_constants(b: Notation) -> None:
    """The output's shape depends on the inputs' content: with constants the node folds before it comes here."""
    for position in range(len(b.inputs)):
        b.constant(position)
    raise NoCompiledForm("the reference evaluator does not fold it")


ROWS: Final[dict[str, Row]] = {
    "DFT": dft,
    "Det": determinant,
    "MelWeightMatrix": from_constants,
    "STFT": stft,
}
