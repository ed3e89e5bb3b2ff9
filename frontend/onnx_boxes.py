"""Boxes by numpy: those that no better one overlaps, and regions of which the data says how many places they sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_BLOCK: Final = 64  # boxes compared, or looked at, at once: some thousand numbers for a call of numpy, few in vain


# -- the best of those that overlap --------------------------------------------------------------------------------


def non_max_suppression(
    boxes: Array, scores: Array, most: Array | None = None, overlap: Array | None = None, least: Array | None = None, *,
    center_point_box: int = 0,
) -> tuple[Array]:  # fmt: skip
    """[batch, class, box] of the best boxes of each class: none overlaps a better one by more than `overlap`."""
    if boxes.shape[:2] != scores.shape[::2]:
        raise ValueError(f"boxes {boxes.shape} and scores {scores.shape} are not of as many batches and boxes")
    limit = 0 if most is None or not most.size else int(most.reshape(-1)[0])
    threshold = np.float32(0) if overlap is None or not overlap.size else overlap.reshape(-1)[0]
    wanted = np.ones(scores.shape, bool) if least is None or not least.size else scores > least.reshape(-1)[0]
    found: list[Array] = []
    for batch in range(len(boxes) if limit > 0 else 0):
        corners = _corners(boxes[batch], center_point_box == 1)
        candidates = [np.flatnonzero(row) for row in wanted[batch]]
        orders = [c[np.argsort(-s[c], kind="stable")] for c, s in zip(candidates, scores[batch], strict=True)]
        pairs = sum(len(order) * min(len(order), limit) for order in orders)
        # All pairs once, for all classes, unless those that classes compare with what they keep are fewer.
        known = _bits(_overlapping(corners, corners, threshold)) if corners.shape[1] ** 2 <= pairs else None
        for number, order in enumerate(orders):
            kept = _best(corners, order, limit, threshold) if known is None else _first(known, order.tolist(), limit)
            rows = np.full((len(kept), 3), (batch, number, 0), np.int64)
            rows[:, 2] = kept
            found.append(rows)
    return (np.concatenate(found) if found else np.zeros((0, 3), np.int64),)


def _corners(boxes: Array, centred: bool) -> Array:
    """Least y, least x, greatest y, greatest x, and the area, each of all boxes."""
    if centred:
        x, y, width, height = boxes.T
        sides = y - height / 2, x - width / 2, y + height / 2, x + width / 2
    else:
        y, x, other_y, other_x = boxes.T
        sides = np.minimum(y, other_y), np.minimum(x, other_x), np.maximum(y, other_y), np.maximum(x, other_x)
    return np.stack([*sides, (sides[3] - sides[1]) * (sides[2] - sides[0])])


def _best(corners: Array, order: Array, limit: int, threshold: np.float32) -> Array:
    """The boxes kept of those in order, by blocks: beside those kept before, and among themselves."""
    lined = corners[:, order]
    kept = np.empty((len(corners), min(limit, len(order)) + _BLOCK), corners.dtype)  # a block lies behind them
    places = np.empty(0, np.int64)
    for start in range(0, len(order), _BLOCK):
        block, count = lined[:, start : start + _BLOCK], len(places)
        kept[:, count : count + block.shape[1]] = block
        found = _overlapping(block, kept[:, : count + block.shape[1]], threshold)
        free = np.flatnonzero(~found[:, :count].any(axis=1))
        chosen = start + np.array(_first(_bits(found[:, count:]), free.tolist(), limit - count), np.int64)
        places = np.concatenate([places, chosen])
        kept[:, count : len(places)] = lined[:, chosen]
        if len(places) == limit:
            break
    return order[places]


def _first(overlaps: Sequence[int], order: Sequence[int], limit: int) -> list[int]:
    """Of boxes in order up to `limit` that overlap none before; `overlaps`: of each box, a bit for every other."""
    kept: list[int] = []
    gone = 0
    for box in order:
        if not gone >> box & 1:
            kept.append(box)
            gone |= overlaps[box]
            if len(kept) == limit:
                break
    return kept


def _bits(overlaps: Array) -> list[int]:
    packed = np.packbits(overlaps, axis=1, bitorder="little")
    text, width = packed.tobytes(), packed.shape[1]
    return [int.from_bytes(text[width * k : width * k + width], "little") for k in range(len(packed))]


def _overlapping(some: Array, others: Array, threshold: np.float32) -> Array:
    """[some, others]: their intersection is more than `threshold` of their union."""
    top, left, bottom, right, area = some[:, :, None]
    other_top, other_left, other_bottom, other_right, other_area = others[:, None]
    height = np.minimum(bottom, other_bottom)
    height -= np.maximum(top, other_top)
    width = np.minimum(right, other_right)
    width -= np.maximum(left, other_left)
    np.maximum(height, 0, out=height)  # where the width is negative, so is what they share
    shared = np.multiply(height, width, out=height)
    union = np.add(area, other_area, out=width)
    union -= shared
    found = np.divide(shared, union, out=union) > threshold
    return found if threshold >= 0 else found & (shared > 0)


# -- regions -------------------------------------------------------------------------------------------------------


def roi_align(
    x: Array, rois: Array, batch: Array, *, coordinate_transformation_mode: str = "output_half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> tuple[Array]:  # fmt: skip
    """A mean (or the greatest) for each bin of a region, of as many places as the region is large.

    The default is that before opset 16, which has one of its own.
    """
    half = coordinate_transformation_mode.lower() == "half_pixel"
    starts, ends = (rois[:, k : k + 2].astype(np.float64) * spatial_scale - (0.5 if half else 0.0) for k in (0, 2))
    pooled = _means if mode.lower() == "avg" else _peaks
    result = np.zeros((len(rois), x.shape[1], output_height, output_width), x.dtype)
    for first in range(0, len(rois), _BLOCK):
        some = slice(first, first + _BLOCK)
        rows, columns = (
            _taps(starts[some, d], ends[some, d], bins, sampling_ratio, extent, half)
            for d, bins, extent in ((1, output_height, x.shape[2]), (0, output_width, x.shape[3]))
        )
        for k in np.flatnonzero(rows.counts * columns.counts).tolist():
            result[first + k] = pooled(x[batch[first + k]], rows.of(k), columns.of(k))
    return (result,)


class _Taps(NamedTuple):
    """Along an axis, of [regions, bins, places * 2]: the two elements beside each place, and their weights, 0 where it
    is outside; `counts`: places of a bin of each region, behind which nothing is meant.
    """

    elements: Array
    weights: Array
    counts: Array

    def of(self, region: int) -> tuple[Array, Array]:
        used = 2 * self.counts[region]
        return self.elements[region, :, :used], self.weights[region, :, :used]


def _taps(starts: Array, ends: Array, bins: int, ratio: int, extent: int, half: bool) -> _Taps:
    sizes = (ends - starts if half else np.maximum(ends - starts, 1.0)) / bins
    counts = np.full(len(starts), ratio) if ratio else np.maximum(np.ceil(sizes), 0).astype(np.int64)
    parts = (np.arange(counts.max(initial=0)) + 0.5) / np.maximum(counts, 1)[:, None]
    places = starts[:, None, None] + (np.arange(bins)[:, None] + parts[:, None]) * sizes[:, None, None]
    inside = (places >= -1.0) & (places <= extent)
    held = np.clip(places, 0.0, extent - 1.0)
    low = held.astype(np.int64)
    weights = np.stack([1.0 - (held - low), held - low], axis=-1) * inside[..., None]
    taps = np.stack([low, np.minimum(low + 1, extent - 1)], axis=-1)
    return _Taps(taps.reshape(*taps.shape[:2], -1), weights.reshape(*taps.shape[:2], -1), counts)


def _means(image: Array, *axes: tuple[Array, Array]) -> Array:
    """The mean of each bin: a product with what each element of the region adds to it, along one axis and the other."""
    (rows, down), (columns, across) = (_matrix(*axis, image.dtype) for axis in axes)
    sums = image[:, rows, columns].reshape(-1, across.shape[1]) @ across.T
    return np.matmul(down, sums.reshape(len(image), -1, len(across)))


def _matrix(taps: Array, weights: Array, dtype: np.dtype[Any]) -> tuple[slice, Array]:
    """The elements of a region, and [bins, elements]: what each of them adds to the mean of a bin."""
    first, end = taps.min(), taps.max() + 1
    flat = taps - first + np.arange(len(taps))[:, None] * (end - first)
    found = np.bincount(flat.ravel(), weights.ravel(), len(taps) * (end - first)) / (taps.shape[1] // 2)
    return slice(first, end), found.reshape(len(taps), -1).astype(dtype)


def _peaks(image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Array:
    values = image[:, rows[0]][..., columns[0]] * rows[1][:, :, None, None] * columns[1]
    return values.max(axis=(2, 4))


def max_roi_pool(
    x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> tuple[Array]:
    """The greatest element of each bin of a region [image, x, y, x, y], both ends inside; 0 of none."""
    result = np.empty((len(rois), x.shape[1], *pooled_shape), x.dtype)
    for number, (image, *sides) in enumerate(rois.tolist()):
        left, top, right, bottom = (int(np.floor(side * spatial_scale + 0.5)) for side in sides)
        rows = _greatest(x[int(image)], 1, top, bottom, pooled_shape[0])
        result[number] = _greatest(rows, 2, left, right, pooled_shape[1])
    return (result,)


def _greatest(x: Array, axis: int, start: int, end: int, bins: int) -> Array:
    extent, size = x.shape[axis], max(end - start + 1, 1) / bins
    bounds = [(start + int(np.floor(k * size)), start + int(np.ceil((k + 1) * size))) for k in range(bins)]
    lined = np.moveaxis(x, axis, 0)
    result = np.zeros((bins, *lined.shape[1:]), x.dtype)
    for place, pair in enumerate(bounds):
        first, last = (min(max(p, 0), extent) for p in pair)
        if first < last:
            lined[first:last].max(axis=0, out=result[place])
    return np.moveaxis(result, 0, axis)
