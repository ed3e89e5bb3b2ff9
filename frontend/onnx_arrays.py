"""Operators by numpy, on whole arrays: what has results of as many elements as the data says, and decompositions.

A routine takes the inputs of a node in order (None where one is absent) and its attributes by name; it gives the
outputs in order. They agree with onnx.reference, which takes up to 400 times as long (but `Unique` in order of first
places, which it has along the first axis alone).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from poly.frontend.onnx_boxes import max_roi_pool, non_max_suppression, roi_align

Array = npt.NDArray[Any]
Routine = Callable[..., tuple[Any, ...]]


def compress(x: Array, condition: Array, *, axis: int | None = None) -> tuple[Array]:
    """The slices along the axis, or the elements, where the condition holds."""
    places = np.flatnonzero(condition)
    return (x.reshape(-1)[places] if axis is None else np.take(x, places, axis),)


def non_zero(x: Array) -> tuple[Array]:
    """The places of what is not 0, one a column; a number is a row of one, as in ONNX Runtime."""
    x = np.atleast_1d(x)
    places = np.flatnonzero(x != 0)
    return (np.array(np.unravel_index(places, x.shape), np.int64).reshape(x.ndim, len(places)),)


def det(x: Array) -> tuple[Array]:
    """The determinants of square matrices."""
    return (np.linalg.det(x).astype(x.dtype),)


def multinomial(x: Array, *, dtype: int, sample_size: int, seed: float | None = None) -> tuple[Array]:
    """Classes drawn for each row, whose elements are logarithms of their weights; alike in each run with a seed."""
    from onnx import helper

    weights = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    bounds = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    source = np.random.default_rng(None if seed is None else list(np.float32(seed).tobytes()))
    drawn = source.random((len(x), sample_size))
    found = [np.searchsorted(row, some, side="right") for row, some in zip(bounds, drawn, strict=True)]
    return (np.array(found, helper.tensor_dtype_to_np_dtype(dtype)).reshape(drawn.shape),)


def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, Array, Array, Array]:
    """The different slices, the place of each one's first, which of them each slice is, and how many are alike."""
    rows = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    order = np.argsort(rows[:, 0]) if rows.shape[1] == 1 else np.lexsort(rows.T[::-1])
    lined = rows[order]
    before, after = lined[:-1], lined[1:]
    differ = (before != after) & ((before == before) | (after == after))  # NaNs are alike, as in numpy
    starts = np.flatnonzero(np.concatenate([[len(rows) > 0], differ.any(axis=1)]))
    counts = np.diff(np.append(starts, len(rows)))
    first = np.minimum.reduceat(order, starts) if len(rows) else order
    number = np.empty(len(rows), np.int64)
    rank = np.arange(len(starts))
    if not sorted:
        by_place = np.argsort(first)
        first, counts = first[by_place], counts[by_place]
        rank[by_place] = np.arange(len(starts))
    number[order] = np.repeat(rank, np.diff(np.append(starts, len(rows))))
    found = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    return found, first, number, counts


def tfidf(
    x: Array, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: Sequence[int], ngram_indexes: Sequence[int], pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (), weights: Sequence[float] = (),
) -> tuple[Array]:  # fmt: skip
    """How often the n-grams of a pool occur in each row, elements of a gram up to `max_skip_count` + 1 apart."""
    pool = np.array(pool_int64s or pool_strings)
    tokens, codes = np.unique(pool, return_inverse=True)
    given = x.reshape(-1, x.shape[-1] if x.ndim else 1).astype(pool.dtype if len(pool_int64s) else str)
    at = np.minimum(np.searchsorted(tokens, given), len(tokens) - 1)
    rows = np.where(tokens[at] == given, at, len(tokens))  # what is in no gram has the last code
    size, number = max(ngram_indexes) + 1, 0
    found = np.zeros((len(rows), size), np.int64)
    for n, (start, end) in enumerate(zip(ngram_counts, [*ngram_counts[1:], len(pool)], strict=True), 1):
        grams = codes[start : start + (end - start) // n * n].reshape(-1, n)
        places = np.array(ngram_indexes[number : number + len(grams)], np.int64)
        number += len(grams)
        if min_gram_length <= n <= max_gram_length and len(grams):
            _count(found, rows, grams, places, 1 if n == 1 else max_skip_count + 1, len(tokens) + 1)
    factors = np.array(weights, np.float32) if len(weights) else np.ones(size, np.float32)
    result = found if mode == "TF" else factors * (found > 0 if mode == "IDF" else found)
    return (result.astype(np.float32).reshape(*x.shape[:-1], size),)


def _count(found: Array, rows: Array, grams: Array, places: Array, skips: int, base: int) -> None:
    """Add to `found[r, places[g]]` how often gram g is in row r; a gram is one number, its codes as digits."""
    digits = base ** np.arange(grams.shape[1], dtype=object if base ** grams.shape[1] >= 2**63 else np.int64)
    keys = (grams * digits).sum(axis=1)
    order = np.argsort(keys, kind="stable")
    keys, places = keys[order], places[order]
    for skip in range(1, skips + 1):
        count = rows.shape[1] - skip * (grams.shape[1] - 1)
        if count <= 0:
            break
        windows = sum((rows[:, skip * k : skip * k + count] * d for k, d in enumerate(digits)), np.zeros((), np.int64))
        at = np.searchsorted(keys, windows, side="right") - 1  # of equal grams the last one counts
        row, column = np.nonzero((at >= 0) & (keys[at] == windows))
        flat = row * found.shape[1] + places[at[row, column]]
        found += np.bincount(flat, minlength=found.size).reshape(found.shape)


ROUTINES: Final[Mapping[str, Routine]] = {
    "Compress": compress,
    "Det": det,
    "MaxRoiPool": max_roi_pool,
    "Multinomial": multinomial,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": non_zero,
    "RoiAlign": roi_align,
    "TfIdfVectorizer": tfidf,
    "Unique": unique,
}
