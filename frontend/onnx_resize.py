"""Rows of the operator table that resample: Resize and Upsample, one axis after the other.

Where an output element comes from depends on its place only, so that places and weights are computed while importing:
along each axis y[p] = sum over t of W[p, t] * x[I[p, t]], and for `nearest` y[p] = x[I[p]], affine where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, var
from poly.dtypes import is_float, numpy_dtype, size_bytes
from poly.frontend.onnx_indexing import MOST_PLACES
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value, cast_between, fn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def resize(b: Notation) -> None:
    x = b.input(0)
    scales, shape = _sizes(b, x)
    mode = b.string_attribute("mode", "nearest")
    mode = "linear" if mode == "bilinear" else mode
    b.require(mode in ("nearest", "linear", "cubic"), f"mode {mode!r} is unknown")
    changed = [k for k in range(x.rank) if (shape[k], scales[k]) != (x.shape[k], 1.0)]
    b.require(all(x.shape[k] > 0 for k in changed), f"{list(x.shape)} has nothing to resample")
    for k in changed:
        left = f"scale {scales[k]:g} leaves no elements of {x.shape[k]} along axis {k}"
        b.require(shape[k] > 0, left, "take a larger scale")
    if not changed:
        b.alias(x)
        return
    if b.call.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        _cropped(b, x, mode, shape, scales, changed)
        return
    places = {k: _coordinates(b, x.shape[k], shape[k], scales[k]) for k in changed}
    if mode == "nearest":
        _nearest(b, x, b.output(shape, x.dtype), places)
        return
    taps = {k: _taps(b, mode, places[k], x.shape[k], scales[k]) for k in changed}
    whole = None if is_float(x.dtype) else _of_integers(b, x, mode, shape)
    _interpolate(b, x, shape, changed, taps, whole)
    if whole is not None:
        y, (ranges, point) = b.output(shape, x.dtype), positions(shape)
        b.assign(y, ranges, fn("round", whole[tuple(point)]).cast(x.dtype), suffix="_rounded")


def _of_integers(b: Notation, x: Value, mode: str, shape: Sequence[int]) -> Value:
    """What integers are interpolated in, to be rounded and saturated at the end, as in the reference."""
    b.supported(x.dtype != "bool" and size_bytes(x.dtype) <= 4, f"mode {mode!r} on {x.dtype} has no compiled form")
    return b.temporary("whole", shape, "f64")


def _interpolate(
    b: Notation, x: Value, shape: Sequence[int], changed: Sequence[int], taps: dict[int, tuple[Ints, Floats]],
    result: Value | None = None,
) -> None:
    """One axis after the other, into `result` or the output."""
    value = x
    for k in changed:
        now = [*value.shape[:k], shape[k], *value.shape[k + 1 :]]
        last = k == changed[-1]
        dtype = x.dtype if result is None else result.dtype
        y = (result or b.output(now, x.dtype)) if last else b.temporary(f"axis{k}", now, dtype)
        _weighted(b, value, y, k, taps[k])
        value = y


def _cropped(
    b: Notation, x: Value, mode: str, shape: Sequence[int], scales: Sequence[float], changed: Sequence[int]
) -> None:
    """The region `roi` of the input (corners as fractions of it); what lies outside has one value."""
    axes = b.axes(b.ints_attribute("axes") or range(x.rank), x.rank)
    roi = [float(v) for v in np.asarray(b.constant(1), np.float64).reshape(-1)]
    b.require(len(roi) == 2 * len(axes), f"roi {roi} does not fit {len(axes)} axes")
    edges = {k: (roi[n], roi[n + len(axes)]) for n, k in enumerate(axes)}
    changed = sorted({*changed, *(k for k, edge in edges.items() if edge != (0.0, 1.0))})
    places: dict[int, Floats] = {}
    for k in changed:
        (start, end), last = edges.get(k, (0.0, 1.0)), x.shape[k] - 1
        p = np.arange(shape[k], dtype=np.float64)
        places[k] = start * last + (p * (end - start) * last / (shape[k] - 1) if shape[k] > 1 else
                                    p + 0.5 * (end - start) * last)  # fmt: skip
    plain = mode == "nearest" or is_float(x.dtype)
    inner = b.temporary("inner", shape, x.dtype) if plain else _of_integers(b, x, mode, shape)
    if mode == "nearest":
        _nearest(b, x, inner, places)
    else:
        taps = {k: _taps(b, mode, np.clip(at, 0, x.shape[k] - 1), x.shape[k], scales[k]) for k, at in places.items()}
        _interpolate(b, x, shape, changed, taps, inner)
    y = b.output(shape, x.dtype)
    ranges, point = positions(shape)
    value = inner[tuple(point)]
    beyond = b.float_attribute("extrapolation_value", 0.0)
    for k, at in places.items():
        outside = (at < 0) | (at > x.shape[k] - 1)
        if outside.any():
            value = fn("select", b.new_constant(f"outside{k}", outside)[point[k]], beyond, value)
    value = value if inner.dtype == x.dtype else fn("round", value).cast(x.dtype)
    b.assign(y, ranges, value, suffix="_cropped")


def _sizes(b: Notation, x: Value) -> tuple[list[float], list[int]]:
    """Scale and extent of every axis. Raises `OnnxError`."""
    if b.call.operator == "Upsample" and b.opset < 9:
        given = b.call.attributes.get("scales")
        if not isinstance(given, tuple):
            raise b.fail("has no scales")
        values = [float(s) for s in given]
        sizes = None
    else:
        position = 1 if b.opset < 11 else 2
        scales = b.optional(position)
        sizes = b.constant_ints(3) if b.opset >= 11 and b.optional(3) is not None else None
        absent = sizes is not None or scales is None or scales.size == 0
        values = [] if absent else [float(v) for v in np.asarray(b.constant(position), np.float64).reshape(-1)]
    axes = b.axes(b.ints_attribute("axes") or range(x.rank), x.rank)
    b.require(len(sizes or values) == len(axes), f"scales or sizes do not fit {len(axes)} axes")
    if sizes is not None:
        values = [size / max(x.shape[k], 1) for k, size in zip(axes, sizes, strict=True)]
        policy = b.string_attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            common = min(values) if policy == "not_larger" else max(values)
            values = [common] * len(axes)
            sizes = tuple(int(np.floor(common * x.shape[k] + 0.5)) for k in axes)
    b.require(all(v > 0 for v in values), f"scales {values} are not positive")
    scale, shape = [1.0] * x.rank, list(x.shape)
    for n, k in enumerate(axes):
        scale[k] = values[n]
        # the file's scales are f32: 1.4 of them times 5 must not become 6.9999
        shape[k] = sizes[n] if sizes is not None else int(np.floor(np.float32(values[n]) * np.float32(x.shape[k])))
    return scale, shape


def _coordinates(b: Notation, extent: int, size: int, scale: float) -> Floats:
    """Where each output element lies on the input's axis."""
    rule = b.string_attribute("coordinate_transformation_mode", "half_pixel") if b.opset >= 11 else "asymmetric"
    rule = "asymmetric" if b.call.operator == "Upsample" else rule
    b.supported(size <= MOST_PLACES, f"an axis of {size} is more than {MOST_PLACES}")
    p = np.arange(size, dtype=np.float64)
    length = scale * extent
    match rule:
        case "half_pixel":
            return (p + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return extent / 2 * (1 - size / length) + (p + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (p + 0.5) / scale - 0.5 if size > 1 else p * 0
        case "align_corners":
            return p * (extent - 1) / (length - 1) if length != 1 else p * 0
        case "asymmetric":
            return p / scale
        case _:
            b.supported(rule == "tf_half_pixel_for_nn", f"the coordinates {rule!r} have no compiled form")
            return (p + 0.5) / scale


def _nearest(b: Notation, x: Value, y: Value, places: dict[int, Floats]) -> None:
    rule = b.string_attribute("nearest_mode", "round_prefer_floor") if b.opset >= 11 else "floor"
    rule = "floor" if b.call.operator == "Upsample" else rule
    rounded = _ROUNDINGS.get(rule)
    if rounded is None:
        raise b.fail(f"nearest_mode {rule!r} is unknown")
    ranges, point = positions(y.shape)
    index: list[Index | Term] = list(point)
    for k, at in places.items():
        source = np.clip(rounded(at).astype(np.int64), 0, x.shape[k] - 1)
        affine = _affine(source, point[k])
        index[k] = b.new_constant(f"source{k}", source)[point[k]] if affine is None else affine
    b.assign(y, ranges, x.take(*index))


_ROUNDINGS: Final[dict[str, Callable[[Floats], Floats]]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
}


def _affine(source: Ints, p: Affine) -> Index | None:
    """The table as an expression of p: first + step * p, or p // factor."""
    size = len(source)
    step = int(source[1] - source[0]) if size > 1 else 0
    if np.array_equal(source, source[0] + step * np.arange(size)):
        return p * step + int(source[0])
    factor = int(np.argmax(source != source[0]))
    return p // factor if factor and np.array_equal(source, np.arange(size) // factor) else None


def _taps(b: Notation, mode: str, at: Floats, extent: int, scale: float) -> tuple[Ints, Floats]:
    """Places and weights of each output element's neighbours: [size, taps]."""
    low = np.floor(at)
    shrink = min(scale, 1.0) if b.int_attribute("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    offsets = np.arange(first, reach / shrink + 1 if shrink < 1 else reach + 1)
    away = np.abs(offsets[None, :] - (at - low)[:, None]) * shrink
    weights = np.clip(1 - away, 0, 1) if mode == "linear" else _cubic(away, b.float_attribute("cubic_coeff_a", -0.75))
    source = (low[:, None] + offsets[None, :]).astype(np.int64)
    if b.int_attribute("exclude_outside", 0):
        weights = np.where((source >= 0) & (source < extent), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    return np.clip(source, 0, extent - 1), weights


def _cubic(away: Floats, a: float) -> Floats:
    """Keys' kernel."""
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    far = ((away - 5) * away + 8) * away * a - 4 * a
    return np.where(away <= 1, near, np.where(away < 2, far, 0.0))


def _weighted(b: Notation, x: Value, y: Value, axis: int, taps: tuple[Ints, Floats]) -> None:
    """y[.., p, ..] = sum over t of W[p, t] * x[.., I[p, t], ..]"""
    source, weights = taps
    table = b.new_constant(f"source{axis}", source)
    weight = b.new_constant(f"weight{axis}", weights.astype(numpy_dtype(y.dtype)))
    ranges, point = positions(y.shape)
    k = var("k")
    index: list[Index | Term] = [table[point[axis], k] if d == axis else p for d, p in enumerate(point)]
    value = cast_between(x.take(*index), x.dtype, y.dtype) * weight[point[axis], k]
    b.reduce(y, ranges, {"k": source.shape[1]}, value, suffix=f"_{axis}")


ROWS: Final[dict[str, Row]] = {
    "Resize": resize,
    "Upsample": resize,
}
