"""Rows of the operator table that normalise: by means and variances, given or computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, var
from poly.dtypes import Array, is_float, numpy_dtype
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_reductions import axes_from, outer_and_inner
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value, cast_between, fn, sum_dtype, summand

_BF16: Final = 16  # ONNX's number for it
FloatArray = npt.NDArray[np.float64]


def batch_normalization(b: Notation) -> None:
    """Inference: x * factor[c] + offset[c]; both are constants where the statistics are."""
    x = b.input(0)
    scale, shift, mean, variance = (b.input(k) for k in range(1, 5))
    if b.opset >= 14 and b.int_attribute("training_mode", 0) == 1:
        _batch_statistics(b, x, scale, shift, mean, variance)
        return
    b.require(b.opset >= 7 or b.int_attribute("is_test", 0) == 1, "training mode (is_test = 0) updates its statistics")
    b.supported(b.int_attribute("spatial", 1) == 1, "statistics for each position have no compiled form")
    channels = x.shape[1] if x.rank > 1 else 1
    statistics = (scale, shift, mean, variance)
    b.require(all(v.shape == (channels,) for v in statistics), f"statistics are not [{channels}]")
    epsilon = b.float_attribute("epsilon", 1e-5)
    arrays = [v.array for v in statistics]
    y = b.output(x.shape, x.dtype)
    ranges, point = positions(x.shape)
    c: Index = point[1] if x.rank > 1 else 0
    known = [a for a in arrays if a is not None]
    dtype = numpy_dtype(x.dtype)
    if len(known) == 4 and (affine := affine_of_statistics(known, epsilon, dtype)) is not None:
        factor, offset = affine
        f, o = b.new_constant("factor", factor.astype(dtype)), b.new_constant("offset", offset.astype(dtype))
        b.assign(y, ranges, x[tuple(point)] * f[c] + o[c])
        return
    kind = sum_dtype(x.dtype)
    factor_value = b.temporary("factor", (channels,), kind)
    by, around = (cast_between(v[var("c")], v.dtype, kind) for v in (scale, variance))
    b.assign(factor_value, {"c": channels}, by / fn("sqrt", around + epsilon), suffix="_factor")
    center, add = (cast_between(v[c], v.dtype, kind) for v in (mean, shift))
    b.assign(y, ranges, cast_between((summand(x, point) - center) * factor_value[c] + add, kind, x.dtype))


def _batch_statistics(b: Notation, x: Value, scale: Value, shift: Value, mean: Value, variance: Value) -> None:
    """Training: by the batch's own statistics; outputs 1 and 2 are the running ones, moved a little towards them."""
    b.require(x.rank >= 2 and is_float(x.dtype) and x.size > 0, f"{x.dtype}{list(x.shape)} has no channels")
    b.require(all(v.shape == x.shape[1:2] for v in (scale, shift, mean, variance)), f"statistics are not {x.shape[1]}")
    y = b.output(x.shape, x.dtype)
    axes = [k for k in range(x.rank) if k != 1]
    ranges, over, point = outer_and_inner(x, axes)
    c, everywhere = point[1], dict(zip(map(str, point), x.shape, strict=True))
    count = float(np.prod(list(over.values()), dtype=np.int64))
    kind, element = sum_dtype(x.dtype), summand(x, point)
    total, own = b.temporary("sum", x.shape[1:2], kind), b.temporary("mean", x.shape[1:2], kind)
    b.reduce(total, ranges, over, element, suffix="_sum")
    b.assign(own, ranges, total[c] / count, suffix="_mean")
    squares = b.temporary("squares", x.shape[1:2], kind)
    away = element - own[c]
    b.reduce(squares, ranges, over, away * away, suffix="_squares")
    factor = b.temporary("factor", x.shape[1:2], kind)
    by, offset = (cast_between(v[c], v.dtype, kind) for v in (scale, shift))
    epsilon, momentum = b.float_attribute("epsilon", 1e-5), b.float_attribute("momentum", 0.9)
    b.assign(factor, ranges, by / fn("sqrt", squares[c] / count + epsilon), suffix="_factor")
    b.assign(y, everywhere, cast_between((element - own[c]) * factor[c] + offset, kind, x.dtype))
    for position, before, now in ((1, mean, own[c]), (2, variance, squares[c] / count)):
        if b.wants(position):
            kept = b.output(x.shape[1:2], before.dtype, position)
            value = cast_between(before[c], before.dtype, kind) * momentum + now * (1 - momentum)
            b.assign(kept, ranges, cast_between(value, kind, before.dtype), suffix=f"_{position}")


def affine_of_statistics(
    statistics: Sequence[Array], epsilon: float, dtype: np.dtype[np.generic]
) -> tuple[FloatArray, FloatArray] | None:
    """Batch normalisation by (scale, shift, mean, variance) as factor and offset, both f64.

    None where one is not finite in `dtype`: (x - mean) * factor + shift then gives other values (epsilon + variance 0).
    """
    scale, shift, mean, variance = (a.astype(np.float64) for a in statistics)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        offset = shift - mean * factor
        finite = all(np.isfinite(a.astype(dtype).astype(np.float64)).all() for a in (factor, offset))
    return (factor, offset) if finite else None


def layer_normalization(b: Notation) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on.

    16-bit floats are normalised in f32 and rounded before the scale, as `stash_type` says, which f32 and f64 need not.
    """
    x, scale, bias = b.input(0), b.input(1), b.optional(2)
    axes = axes_from(x.rank, b.axis(b.int_attribute("axis", -1), x.rank))
    _require_fitting(b, x, scale, *(() if bias is None else (bias,)))
    y = b.output(x.shape, x.dtype)
    ranges, over, point = outer_and_inner(x, axes)
    mean, inverse = _moments(b, x, ranges, over, point)
    outer = tuple(map(var, ranges))
    normal = (summand(x, point) - mean[outer]) * inverse[outer]
    value = cast_between(normal, mean.dtype, x.dtype) * scale.aligned(point, x.shape)
    everywhere = dict(zip(map(str, point), x.shape, strict=True))
    stashed = "bf16" if b.int_attribute("stash_type", 1) == _BF16 and mean.dtype == "f32" else mean.dtype
    b.assign(y, everywhere, value if bias is None else value + bias.aligned(point, x.shape))
    for position, source in ((1, mean), (2, inverse)):
        if b.wants(position):
            kept = b.output([1 if k in axes else e for k, e in enumerate(x.shape)], stashed, position)
            place = [0 if k in axes else p for k, p in enumerate(point)]
            b.assign(kept, ranges, cast_between(source[outer], source.dtype, stashed), place, suffix=f"_{position}")


def rms_normalization(b: Notation) -> None:
    """x / sqrt(mean of squares + epsilon) * scale over the axes from `axis` on; 16-bit floats as `layer_normalization`.

    ONNX's own body divides every element by what its row has once.
    """
    x, scale = b.input(0), b.input(1)
    _require_fitting(b, x, scale)
    y = b.output(x.shape, x.dtype)
    ranges, over, point = outer_and_inner(x, axes_from(x.rank, b.axis(b.int_attribute("axis", -1), x.rank)))
    b.require(is_float(x.dtype) and x.size > 0, f"{x.dtype}{list(x.shape)} has no mean")
    inverse = _inverse(b, sum_dtype(x.dtype), ranges, over, summand(x, point))
    value = cast_between(summand(x, point) * inverse[tuple(map(var, ranges))], inverse.dtype, x.dtype)
    everywhere = dict(zip(map(str, point), x.shape, strict=True))
    b.assign(y, everywhere, value * scale.aligned(point, x.shape))


def _require_fitting(b: Notation, x: Value, *factors: Value) -> None:
    """Raise `OnnxError` where scale or bias has more elements than there are to scale."""
    for v in factors:
        b.require(b.broadcast(v.shape, x.shape) == x.shape, f"{list(v.shape)} does not broadcast to {list(x.shape)}")


def instance_normalization(b: Notation) -> None:
    """Each channel of each sample by its own mean and variance."""
    x, scale, bias = b.input(0), b.input(1), b.input(2)
    b.require(x.rank >= 3 and scale.shape == bias.shape == x.shape[1:2], f"needs [N, C, ...], not {list(x.shape)}")
    y = b.output(x.shape, x.dtype)
    ranges, over, point = outer_and_inner(x, axes_from(x.rank, 2))
    mean, inverse = _moments(b, x, ranges, over, point)
    outer = tuple(map(var, ranges))
    factor, shift = (cast_between(v[point[1]], v.dtype, mean.dtype) for v in (scale, bias))
    value = (summand(x, point) - mean[outer]) * inverse[outer] * factor + shift
    b.assign(y, dict(zip(map(str, point), x.shape, strict=True)), cast_between(value, mean.dtype, x.dtype))


def group_normalization(b: Notation) -> None:
    """Each group of channels of each sample by its own mean and variance. Before opset 21 scale and bias are a group's.

    16-bit floats are normalised in f32 and rounded before the scale.
    """
    x, scale, bias = b.input(0), b.input(1), b.input(2)
    groups = b.int_attribute("num_groups", 0)
    b.require(x.rank >= 2 and groups > 0 and x.shape[1] % groups == 0, f"{groups} groups of {list(x.shape)}")
    each, kept = x.shape[1] // groups, groups if b.opset < 21 else x.shape[1]
    b.require(scale.shape == bias.shape == (kept,), f"scale and bias are not [{kept}]")
    y = b.output(x.shape, x.dtype)
    _, over, point = outer_and_inner(x, axes_from(x.rank, 1))
    ranges, over = {"i0": x.shape[0], "i1": groups}, {**over, "k1": each}
    channel = point[1] = var("i1") * each + var("k1")
    mean, inverse = _moments(b, x, ranges, over, point)
    outer, of = tuple(map(var, ranges)), channel if b.opset >= 21 else var("i1")
    normal = (summand(x, point) - mean[outer]) * inverse[outer]
    value = cast_between(normal, mean.dtype, x.dtype) * scale[of] + bias[of]
    b.assign(y, {**ranges, **over}, value, point)


def _moments(
    b: Notation, x: Value, ranges: dict[str, int], over: dict[str, int], point: Sequence[Affine]
) -> tuple[Value, Value]:
    """The mean, and 1 / sqrt(variance + epsilon), over some loops; in two passes, as the variance is about the mean.

    Of 16-bit floats they are f32.
    """
    outer, shape = tuple(map(var, ranges)), list(ranges.values())
    count = float(np.prod(list(over.values()), dtype=np.int64))
    b.require(is_float(x.dtype) and count > 0, f"{x.dtype}{list(x.shape)} has no mean")
    kind = sum_dtype(x.dtype)
    total, mean = b.temporary("sum", shape, kind), b.temporary("mean", shape, kind)
    b.reduce(total, ranges, over, summand(x, point), suffix="_sum")
    b.assign(mean, ranges, total[outer] / count, suffix="_mean")
    return mean, _inverse(b, kind, ranges, over, summand(x, point) - mean[outer])


def _inverse(b: Notation, kind: str, ranges: dict[str, int], over: dict[str, int], away: Term) -> Value:
    """1 / sqrt(the mean of squares over some loops + epsilon)."""
    outer, shape = tuple(map(var, ranges)), list(ranges.values())
    count, epsilon = float(np.prod(list(over.values()), dtype=np.int64)), b.float_attribute("epsilon", 1e-5)
    squares, inverse = b.temporary("squares", shape, kind), b.temporary("inverse", shape, kind)
    b.reduce(squares, ranges, over, away * away, suffix="_squares")
    b.assign(inverse, ranges, 1.0 / fn("sqrt", squares[outer] / count + epsilon), suffix="_inverse")
    return inverse


ROWS: Final[dict[str, Row]] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
}
