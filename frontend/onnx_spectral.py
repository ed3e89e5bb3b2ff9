"""Rows of the operator table that are sums with constant sines and cosines, and others of signals and matrices.

A transform is a product of real numbers with a matrix made while importing: n^2 complex products of a signal of n, one
contraction like any other, or two for an n with factors. The real and the imaginary part of each element are
neighbours, so both are one axis of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import isqrt, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from poly.affine import var
from poly.dtypes import is_float, numpy_dtype
from poly.frontend.onnx_notation import NoCompiledForm, Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
_MAX_MATRIX: Final = 1 << 26  # elements: 256 MiB of f32, a complex transform of 4096
# A transform of N = P Q has 4 N N multiply-adds in one step and 4 N (P + Q + 2) in two, which write and read 6 N
# numbers between them, in three nests instead of one: they are taken where N is at least so many times P + Q.
_DIRECT: Final = 4
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
    if length == whole and _has_steps(whole):
        _in_two_steps(b, x, axis, whole, bins, inverse=inverse)
        return
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


def _factor(whole: int) -> int:
    """The greatest divisor that is at most the square root."""
    return next(d for d in range(isqrt(whole), 0, -1) if whole % d == 0)


def _has_steps(whole: int) -> bool:
    return whole >= _DIRECT * (_factor(whole) + whole // _factor(whole))


def _in_two_steps(b: Notation, x: Value, axis: int, whole: int, bins: int, *, inverse: bool) -> None:
    """The transform of the first P Q elements by P + Q products each, n = Q m + j and k = i + P h (Cooley and Tukey):

    z[j, i] = sum over m of x[Q m + j] e(m i / P), then y[i + P h] = sum over j of e(j h / Q) (z[j, i] e(j i / P Q)).
    """
    sign, inner = 1 if inverse else -1, _factor(whole)
    _require_small(b, whole, whole, 8)
    outer = whole // inner
    ranges = {f"i{k}": e for k, e in enumerate(x.shape[:-1]) if k != axis} | {"j": outer, "i": inner, "p": 2}
    (*lead, j, i, p), (m, q) = map(var, ranges), b.iterators("m", "q")
    z = b.temporary("inner", tuple(ranges.values()), x.dtype)
    waves = b.new_constant("waves", _waves(np.ones(inner), inner, inner, sign, (x.shape[-1], 2), x.dtype))
    place: list[Index] = [*lead[:axis], outer * m + j, *lead[axis:], q]
    b.reduce(z, ranges, {"m": inner, "q": x.shape[-1]}, x[tuple(place)] * waves[m, q, i, p], suffix="_inner")
    turned = _turned(b, z, ranges, np.full(outer, 1 / whole if inverse else 1.0), sign)
    _outer_sums(b, turned, axis, ranges, [*x.shape[:axis], bins, *x.shape[axis + 1 : -1], 2], sign)


def _turned(b: Notation, z: Value, ranges: Mapping[str, int], weights: Floats, sign: int) -> Value:
    """turned[.., j, 0, i] = z[.., j, i] e(j i / P Q) weights[j], and turned[.., j, 1, i] is that times the imaginary
    unit, so that real factors of the two are what is left of a complex one.
    """
    outer, inner, _ = z.shape[-3:]
    once = _waves(weights, inner, outer * inner, sign, (2, 2), z.dtype)
    turns = b.new_constant("turns", np.stack([once, np.stack([-once[..., 1], once[..., 0]], axis=-1)], axis=1))
    turned = b.temporary("turned", (*z.shape[:-2], 2, inner, 2), z.dtype)
    (*lead, j, i, p), r = map(var, ranges), var("r")
    value = z[(*lead, j, i, 0)] * turns[j, r, 0, i, p] + z[(*lead, j, i, 1)] * turns[j, r, 1, i, p]
    b.assign(turned, {**ranges, "r": 2}, value, (*lead, j, r, i, p), suffix="_turned")
    return turned


def _outer_sums(
    b: Notation, turned: Value, axis: int, ranges: Mapping[str, int], shape: Sequence[int], sign: int
) -> None:
    """The output of this shape, by blocks of P bins; what is more than it in the last block is left out."""
    outer, _, inner, _ = turned.shape[-4:]
    count, y = -(-shape[axis] // inner), b.output(shape, turned.dtype)
    extents = [count * inner if k == axis else e for k, e in enumerate(shape)]
    blocks = y if y.shape[axis] == count * inner else b.temporary("blocks", extents, turned.dtype)
    waves = b.new_constant("outer", _waves(np.ones(outer), count, outer, sign, (1, 2), turned.dtype))
    (*lead, j, i, p), (h, r) = map(var, ranges), b.iterators("h", "r")
    free = {"h" if name == "j" else name: count if name == "j" else e for name, e in ranges.items()}
    at: list[Index] = [*lead[:axis], inner * h + i, *lead[axis:], p]
    b.reduce(blocks, free, {"j": outer, "r": 2}, turned[(*lead, j, r, i, p)] * waves[j, 0, h, r], index=at)
    if blocks is not y:
        everywhere, point = positions(shape)
        b.assign(y, everywhere, blocks[tuple(point)], suffix="_bins")


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
    if _has_steps(length):
        framed = _frames(b, x, window, step, (x.shape[0], frames, length, x.shape[-1]))
        _in_two_steps(b, framed, 2, length, bins, inverse=False)
        return
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


def _frames(b: Notation, x: Value, window: Value | None, step: int, shape: tuple[int, ...]) -> Value:
    """framed[n, f, k] = x[n, f * step + k] * window[k]."""
    framed = b.temporary("framed", shape, x.dtype)
    ranges, (n, f, k, q) = positions(shape)
    value: Term = x[n, f * step + k, q]
    b.assign(framed, ranges, value if window is None else value * window[k], suffix="_framed")
    return framed


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
