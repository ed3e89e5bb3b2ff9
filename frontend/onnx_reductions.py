"""Rows of the operator table that sum along whole axes: products, reductions, softmax, normalisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, var
from poly.dtypes import Array, is_float, numpy_dtype
from poly.frontend.contraction import EXACT_ENOUGH, walk_steps
from poly.frontend.einsum import choose_steps
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_shapes import given_axes, positions
from poly.frontend.onnx_terms import Index, Shape, Term, Value, fn

_Factor = tuple[Term, tuple[str, ...]]  # what is multiplied, and its indices
FloatArray = npt.NDArray[np.float64]


# -- products ------------------------------------------------------------------------------------------------------


def matmul(b: Notation) -> None:
    x, w = b.input(0), b.input(1)
    product(b, x, w, x.dtype, lambda p, q: p * q)


def matmul_integer(b: Notation) -> None:
    """Products of shifted 8-bit values, summed in i32."""
    x, w = b.input(0), b.input(1)
    shifts = [b.optional(2), b.optional(3)]
    for zero in shifts:
        b.supported(zero is None or zero.size == 1, "zero points per row or column have no compiled form")
    zeros = [None if zero is None else zero[(0,) * zero.rank].cast("i32") for zero in shifts]

    def shifted(v: Term, zero: Term | None) -> Term:
        return v.cast("i32") if zero is None else v.cast("i32") - zero

    product(b, x, w, "i32", lambda p, q: shifted(p, zeros[0]) * shifted(q, zeros[1]))


def product(
    b: Notation,
    x: Value,
    w: Value,
    dtype: str,
    multiply: Callable[[Term, Term], Term],
    target: Callable[[Shape], Value] | None = None,
) -> Value:
    """numpy's matmul: vectors lose their axis, leading axes broadcast. Into the output, or what `target` declares."""
    b.require(x.rank >= 1 and w.rank >= 1, "scalars have no matrix product")
    rows, columns = (x.shape[-2:-1] if x.rank > 1 else ()), (w.shape[-1:] if w.rank > 1 else ())
    inner, other = x.shape[-1], w.shape[-2] if w.rank > 1 else w.shape[-1]
    b.require(inner == other, f"inner extents {inner} and {other} differ")
    batch = b.broadcast(x.shape[:-2], w.shape[:-2])
    shape = (*batch, *rows, *columns)
    y = b.output(shape, dtype) if target is None else target(shape)
    ranges = (
        {f"b{k}": e for k, e in enumerate(batch)}
        | dict(zip("i", rows, strict=False))
        | dict(zip("j", columns, strict=False))
    )
    lead = [var(f"b{k}") for k in range(len(batch))]
    i, j, k = b.iterators("i", "j", "k")
    left = x[(*_lead(lead, x.shape[:-2]), *((i,) if rows else ()), k)]
    right = w[(*_lead(lead, w.shape[:-2]), k, *((j,) if columns else ()))]
    b.reduce(y, ranges, {"k": inner}, multiply(left, right), suffix="" if target is None else "_sum")
    return y


def _lead(iterators: Sequence[Affine], shape: Sequence[int]) -> list[Index]:
    inner = iterators[len(iterators) - len(shape) :]
    return [0 if extent == 1 else i for i, extent in zip(inner, shape, strict=True)]


def gemm(b: Notation) -> None:
    """alpha * A' * B' + beta * C: the sum begins from beta * C, or is scaled when it is complete."""
    x, w, c = b.input(0), b.input(1), b.optional(2)
    b.require(x.rank == 2 and w.rank == 2, f"needs matrices, not ranks {x.rank} and {w.rank}")
    turned = [b.int_attribute("transA", 0) != 0, b.int_attribute("transB", 0) != 0]
    m, inner = reversed(x.shape) if turned[0] else x.shape
    other, n = reversed(w.shape) if turned[1] else w.shape
    b.require(inner == other, f"inner extents {inner} and {other} differ")
    alpha, beta = b.float_attribute("alpha", 1.0), b.float_attribute("beta", 1.0)
    y = b.output((m, n), x.dtype)
    i, j, k = b.iterators("i", "j", "k")
    start = None
    if c is not None and beta != 0:
        b.require(b.broadcast(c.shape, y.shape) == y.shape, f"C {list(c.shape)} does not broadcast to {list(y.shape)}")
        start = _scaled(b, c.aligned([i, j], y.shape), beta, y.dtype)
    term = (x[k, i] if turned[0] else x[i, k]) * (w[j, k] if turned[1] else w[k, j])
    if alpha == 1:
        b.reduce(y, {"i": m, "j": n}, {"k": inner}, term, start=start)
        return
    total = b.temporary("product", (m, n), y.dtype)
    b.reduce(total, {"i": m, "j": n}, {"k": inner}, term, suffix="_product")
    scaled = _scaled(b, total[i, j], alpha, y.dtype)
    b.assign(y, {"i": m, "j": n}, scaled if start is None else scaled + start)


def _scaled(b: Notation, term: Term, factor: float, dtype: str) -> Term:
    if factor == 1:
        return term
    b.require(is_float(dtype) or factor == int(factor), f"factor {factor} on {dtype}")
    return term * (factor if is_float(dtype) else int(factor))


def einsum(b: Notation) -> None:
    """One sum of a product over all the labels; an ellipsis stands for the leading labels of each operand."""
    values = b.inputs
    spec = b.string_attribute("equation").replace(" ", "")
    left, _, right = spec.partition("->")
    operands = left.split(",")
    b.require(len(operands) == len(values), f"equation {spec!r} is not for {len(values)} operands")
    labels = [_labels(b, text, v.rank) for text, v in zip(operands, values, strict=True)]
    dots = max((sum(len(name) > 1 for name in row) for row in labels), default=0)
    labels = [[_dot(name, dots) for name in row] for row in labels]
    extents: dict[str, int] = {}
    for row, v in zip(labels, values, strict=True):
        for name, extent in zip(row, v.shape, strict=True):
            known = extents.get(name, 1)
            b.require(extent in (1, known) or known == 1, f"{name} is {known} and {extent} in {spec!r}")
            extents[name] = max(known, extent) if 0 not in (known, extent) else 0
    if "->" in spec:
        result = [
            _dot(name, dots) for name in _labels(b, right, right.count(".") // 3 * dots + len(right.replace("...", "")))
        ]
    else:
        count = [name for row in labels for name in row]
        single = sorted(name for name in extents if name[0] != "." and count.count(name) == 1)
        result = [f".{k}" for k in range(dots)] + single
    b.require(set(result) <= set(extents) and len(set(result)) == len(result), f"output of {spec!r} is not valid")
    iterator = {name: f"i{k}" for k, name in enumerate([*result, *(n for n in extents if n not in result)])}
    y = b.output([extents[name] for name in result], values[0].dtype)
    sizes = {iterator[name]: extent for name, extent in extents.items()}
    factors: list[_Factor] = []
    for row, v in zip(labels, values, strict=True):
        names = [None if e == 1 else iterator[n] for n, e in zip(row, v.shape, strict=True)]
        read = v[tuple(0 if n is None else var(n) for n in names)]
        factors.append((read, tuple(dict.fromkeys(n for n in names if n is not None))))
    kept = [iterator[name] for name in result]
    factors = _in_pairs(b, factors, kept, sizes) if y.dtype in EXACT_ENOUGH and 0 not in sizes.values() else factors
    _summed(b, y, factors, kept, sizes)


def _in_pairs(b: Notation, factors: Sequence[_Factor], kept: Sequence[str], sizes: Mapping[str, int]) -> list[_Factor]:
    """The factors of the last sum, after those of pairs that einsum's order takes before it."""
    terms, found = [names for _, names in factors], [*factors]
    *pairs, (last, _, _) = walk_steps(terms, kept, choose_steps(terms, kept, sizes))
    for number, (chosen, every, needed) in enumerate(pairs):
        part = b.temporary("part", [sizes[n] for n in needed], b.input(0).dtype)
        _summed(b, part, [found[k] for k in chosen], needed, {n: sizes[n] for n in every}, suffix=f"_part{number}")
        found.append((part[tuple(map(var, needed))], tuple(needed)))
    return [found[k] for k in last]


def _summed(
    b: Notation, y: Value, factors: Sequence[_Factor], kept: Sequence[str], sizes: Mapping[str, int], suffix: str = ""
) -> None:
    """y[kept] = the product of the factors, summed over their other indices."""
    term, used = factors[0][0], {n for _, names in factors for n in names}
    for read, _ in factors[1:]:
        term = term * read
    ranges, over = {n: sizes[n] for n in kept}, {n: e for n, e in sizes.items() if n not in kept and n in used}
    if over:
        b.reduce(y, ranges, over, term, suffix=suffix)
    else:
        b.assign(y, ranges, term, suffix=suffix)


def _labels(b: Notation, text: str, rank: int) -> list[str]:
    """One label an axis; axes under an ellipsis are counted from the last: '.-1', '.-2', ..."""
    before, dots, after = text.partition("...")
    hidden = rank - len(before) - len(after)
    b.require(hidden == 0 or (bool(dots) and hidden > 0), f"{text!r} does not label {rank} axes")
    return [*before, *(f".{k - hidden}" for k in range(hidden)), *after]


def _dot(name: str, dots: int) -> str:
    return f".{int(name[1:]) + dots}" if len(name) > 1 else name


# -- reductions ----------------------------------------------------------------------------------------------------


def reduction(
    combiner: str,
    before: Callable[[Term], Term] = lambda v: v,
    after: Callable[[Term], Term] | None = None,
    alone: Callable[[Term], Term] | None = None,
) -> Row:
    """A row for Reduce*: `before` on each element, `after` on each result.

    Both together are `alone`, where no axis is reduced; without one the input is left as it is.
    """

    def row(b: Notation) -> None:
        x = b.input(0)
        axes = reduced_axes(b, x, 13 if b.call.operator == "ReduceSum" else 18)
        if axes is None and alone is not None:
            b.map(alone, x)
        elif axes is None:
            b.alias(x)
        else:
            _reduce(b, x, axes, combiner, before, after)

    return row


def reduced_axes(b: Notation, x: Value, since: int) -> tuple[int, ...] | None:
    """The axes to reduce; None for none of them (`noop_with_empty_axes`), which is still the rest of the operator."""
    given = given_axes(b, since)
    if not given:
        return None if b.int_attribute("noop_with_empty_axes", 0) == 1 else tuple(range(x.rank))
    return b.axes(given, x.rank)


def _reduce(
    b: Notation,
    x: Value,
    axes: Sequence[int],
    combiner: str,
    before: Callable[[Term], Term],
    after: Callable[[Term], Term] | None,
) -> None:
    keep = b.int_attribute("keepdims", 1) == 1
    shape = [1 if k in axes else e for k, e in enumerate(x.shape) if keep or k not in axes]
    y = b.output(shape, x.dtype)
    point = [var(f"k{k}") if k in axes else var(f"i{k}") for k in range(x.rank)]
    ranges = {f"i{k}": e for k, e in enumerate(x.shape) if k not in axes}
    over = {f"k{k}": x.shape[k] for k in axes}
    place: list[Index] = [0 if k in axes else var(f"i{k}") for k in range(x.rank) if keep or k not in axes]
    if after is None:
        b.reduce(y, ranges, over, before(x[tuple(point)]), combiner, index=place)
        return
    total = b.temporary("sum", [e for k, e in enumerate(x.shape) if k not in axes], x.dtype)
    b.reduce(total, ranges, over, before(x[tuple(point)]), combiner, suffix="_sum")
    b.assign(y, ranges, after(total[tuple(map(var, ranges))]), place)


def reduce_mean(b: Notation) -> None:
    x = b.input(0)
    axes = reduced_axes(b, x, 18)
    if axes is None:
        b.alias(x)
        return
    count = int(np.prod([x.shape[k] for k in axes], dtype=np.int64))
    empty = any(e == 0 for k, e in enumerate(x.shape) if k not in axes)
    b.require(count > 0 or is_float(x.dtype) or empty, "the mean of no integers is no integer")

    def mean(total: Term) -> Term:
        return total / float(count) if is_float(x.dtype) else fn("trunc_div", total, count)

    _reduce(b, x, axes, "+", lambda v: v, mean)


def reduce_log_sum_exp(b: Notation) -> None:
    """log(sum(exp(x - m))) + m with m the maximum, so that nothing overflows, and 0 where that is not finite."""
    x = b.input(0)
    axes = reduced_axes(b, x, 18)
    if axes is None:
        b.alias(x)
        return
    keep = b.int_attribute("keepdims", 1) == 1
    y = b.output([1 if k in axes else e for k, e in enumerate(x.shape) if keep or k not in axes], x.dtype)
    ranges, _, point = _outer_inner(x, axes)
    outer = tuple(map(var, ranges))
    largest, total = _max_and_sum(b, x, axes, finite=True)
    place: list[Index] = [0 if k in axes else point[k] for k in range(x.rank) if keep or k not in axes]
    b.assign(y, ranges, fn("log", total[outer]) + largest[outer], place)


def _outer_inner(x: Value, axes: Sequence[int]) -> tuple[dict[str, int], dict[str, int], list[Affine]]:
    """Iterators of the axes kept, of the axes reduced, and the point they make."""
    names = [f"k{k}" if k in axes else f"i{k}" for k in range(x.rank)]
    ranges = {names[k]: e for k, e in enumerate(x.shape) if k not in axes}
    return ranges, {names[k]: x.shape[k] for k in axes}, [var(n) for n in names]


def _max_and_sum(
    b: Notation, x: Value, axes: Sequence[int], exps: Value | None = None, finite: bool = False
) -> tuple[Value, Value]:
    """m = max x and sum exp(x - m) along the axes; the exponentials are kept in `exps` where that is given.

    `finite`: m is 0 where the maximum is infinite, as infinity - infinity is no number.
    """
    ranges, over, point = _outer_inner(x, axes)
    outer = tuple(map(var, ranges))
    largest = b.temporary("max", list(ranges.values()), x.dtype)
    b.reduce(largest, ranges, over, x[tuple(point)], "max", suffix="_max")
    if finite:
        shift = b.temporary("shift", largest.shape, x.dtype)
        m = largest[outer]
        b.assign(shift, ranges, fn("select", fn("lt", fn("abs", m), float("inf")), m, 0.0), suffix="_shift")
        largest = shift
    value = fn("exp", x[tuple(point)] - largest[outer])
    if exps is not None:
        b.assign(exps, dict(zip(map(str, point), x.shape, strict=True)), value, suffix="_exp")
        value = exps[tuple(point)]
    total = b.temporary("sum", list(ranges.values()), x.dtype)
    b.reduce(total, ranges, over, value, suffix="_sum")
    return largest, total


def softmax_axes(b: Notation, x: Value) -> tuple[int, ...]:
    """From opset 13 on one axis; before that all axes from `axis` on, taken as one."""
    if b.opset >= 13:
        return (b.axis(b.int_attribute("axis", -1), x.rank),)
    axis = b.int_attribute("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    b.require(0 <= axis <= x.rank, f"axis {axis} is outside of rank {x.rank}")
    return tuple(range(axis, x.rank))


def softmax(b: Notation) -> None:
    """max, exp, sum, and a division: one by the sum for each row, whose inverse is exact to the last bit or two."""
    x = b.input(0)
    axes = softmax_axes(b, x)
    y = b.output(x.shape, x.dtype)
    if x.size == 0:
        return
    ranges, _, point = _outer_inner(x, axes)
    exps = b.temporary("exp", x.shape, x.dtype)
    _, total = _max_and_sum(b, x, axes, exps)
    everywhere = dict(zip(map(str, point), x.shape, strict=True))
    outer = tuple(map(var, ranges))
    if x.dtype not in ("f32", "f64"):
        b.assign(y, everywhere, exps[tuple(point)] / total[outer])
        return
    inverse = b.temporary("inverse", total.shape, x.dtype)
    b.assign(inverse, ranges, 1.0 / total[outer], suffix="_inverse")
    b.assign(y, everywhere, exps[tuple(point)] * inverse[outer])


def log_softmax(b: Notation) -> None:
    """(x - max) - log(sum): the maximum goes first, as max + log(sum) would lose the logarithm beside a large one."""
    x = b.input(0)
    axes = softmax_axes(b, x)
    y = b.output(x.shape, x.dtype)
    if x.size == 0:
        return
    ranges, _, point = _outer_inner(x, axes)
    largest, total = _max_and_sum(b, x, axes)
    logs = b.temporary("log", total.shape, x.dtype)
    outer = tuple(map(var, ranges))
    b.assign(logs, ranges, fn("log", total[outer]), suffix="_log")
    value = x[tuple(point)] - largest[outer] - logs[outer]
    b.assign(y, dict(zip(map(str, point), x.shape, strict=True)), value)


def axes_from(rank: int, first: int) -> tuple[int, ...]:
    """Axes from `first` to the last."""
    return tuple(range(first, rank))


# -- normalisations ------------------------------------------------------------------------------------------------


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
    factor_value = b.temporary("factor", (channels,), x.dtype)
    i = var("c")
    b.assign(factor_value, {"c": channels}, scale[i] / fn("sqrt", variance[i] + epsilon), suffix="_factor")
    b.assign(y, ranges, (x[tuple(point)] - mean[c]) * factor_value[c] + shift[c])


def _batch_statistics(b: Notation, x: Value, scale: Value, shift: Value, mean: Value, variance: Value) -> None:
    """Training: by the batch's own statistics; outputs 1 and 2 are the running ones, moved a little towards them."""
    b.require(x.rank >= 2 and is_float(x.dtype) and x.size > 0, f"{x.dtype}{list(x.shape)} has no channels")
    b.require(all(v.shape == x.shape[1:2] for v in (scale, shift, mean, variance)), f"statistics are not {x.shape[1]}")
    y = b.output(x.shape, x.dtype)
    axes = [k for k in range(x.rank) if k != 1]
    ranges, over, point = _outer_inner(x, axes)
    c, everywhere = point[1], dict(zip(map(str, point), x.shape, strict=True))
    count = float(np.prod(list(over.values()), dtype=np.int64))
    total, own = b.temporary("sum", x.shape[1:2], x.dtype), b.temporary("mean", x.shape[1:2], x.dtype)
    b.reduce(total, ranges, over, x[tuple(point)], suffix="_sum")
    b.assign(own, ranges, total[c] / count, suffix="_mean")
    squares = b.temporary("squares", x.shape[1:2], x.dtype)
    away = x[tuple(point)] - own[c]
    b.reduce(squares, ranges, over, away * away, suffix="_squares")
    factor = b.temporary("factor", x.shape[1:2], x.dtype)
    epsilon, momentum = b.float_attribute("epsilon", 1e-5), b.float_attribute("momentum", 0.9)
    b.assign(factor, ranges, scale[c] / fn("sqrt", squares[c] / count + epsilon), suffix="_factor")
    b.assign(y, everywhere, (x[tuple(point)] - own[c]) * factor[c] + shift[c])
    for position, before, now in ((1, mean, own[c]), (2, variance, squares[c] / count)):
        if b.wants(position):
            kept = b.output(x.shape[1:2], before.dtype, position)
            value = before[c] * momentum + now * (1 - momentum)
            b.assign(kept, ranges, value, suffix=f"_{position}")


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
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on."""
    x, scale, bias = b.input(0), b.input(1), b.optional(2)
    axes = axes_from(x.rank, b.axis(b.int_attribute("axis", -1), x.rank))
    y = b.output(x.shape, x.dtype)
    mean, inverse = _moments(b, x, axes, b.float_attribute("epsilon", 1e-5))
    ranges, _, point = _outer_inner(x, axes)
    outer = tuple(map(var, ranges))
    value = (x[tuple(point)] - mean[outer]) * inverse[outer] * scale.aligned(point, x.shape)
    everywhere = dict(zip(map(str, point), x.shape, strict=True))
    b.assign(y, everywhere, value if bias is None else value + bias.aligned(point, x.shape))
    for position, source in ((1, mean), (2, inverse)):
        if b.wants(position):
            kept = b.output([1 if k in axes else e for k, e in enumerate(x.shape)], x.dtype, position)
            b.assign(
                kept, ranges, source[outer], [0 if k in axes else p for k, p in enumerate(point)], suffix=f"_{position}"
            )


def instance_normalization(b: Notation) -> None:
    """Each channel of each sample by its own mean and variance."""
    x, scale, bias = b.input(0), b.input(1), b.input(2)
    b.require(x.rank >= 3 and scale.shape == bias.shape == x.shape[1:2], f"needs [N, C, ...], not {list(x.shape)}")
    y = b.output(x.shape, x.dtype)
    axes = axes_from(x.rank, 2)
    mean, inverse = _moments(b, x, axes, b.float_attribute("epsilon", 1e-5))
    ranges, _, point = _outer_inner(x, axes)
    outer = tuple(map(var, ranges))
    value = (x[tuple(point)] - mean[outer]) * inverse[outer] * scale[point[1]] + bias[point[1]]
    b.assign(y, dict(zip(map(str, point), x.shape, strict=True)), value)


def _moments(b: Notation, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """The mean, and 1 / sqrt(variance + epsilon), along the axes; in two passes, as the variance is about the mean."""
    ranges, over, point = _outer_inner(x, axes)
    outer, shape = tuple(map(var, ranges)), list(ranges.values())
    count = float(np.prod(list(over.values()), dtype=np.int64))
    b.require(is_float(x.dtype) and count > 0, f"{x.dtype}{list(x.shape)} has no mean along {list(axes)}")
    total, mean = b.temporary("sum", shape, x.dtype), b.temporary("mean", shape, x.dtype)
    b.reduce(total, ranges, over, x[tuple(point)], suffix="_sum")
    b.assign(mean, ranges, total[outer] / count, suffix="_mean")
    squares, inverse = b.temporary("squares", shape, x.dtype), b.temporary("inverse", shape, x.dtype)
    away = x[tuple(point)] - mean[outer]
    b.reduce(squares, ranges, over, away * away, suffix="_squares")
    b.assign(inverse, ranges, 1.0 / fn("sqrt", squares[outer] / count + epsilon), suffix="_inverse")
    return mean, inverse


ROWS: Final[dict[str, Row]] = {
    "BatchNormalization": batch_normalization,
    "Einsum": einsum,
    "Gemm": gemm,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
    "ReduceL1": reduction("+", lambda v: fn("abs", v), alone=lambda v: fn("abs", v)),
    "ReduceL2": reduction("+", lambda v: v * v, lambda s: fn("sqrt", s), lambda v: fn("abs", v)),
    "ReduceLogSum": reduction("+", after=lambda s: fn("log", s), alone=lambda v: fn("log", v)),
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduction("max"),
    "ReduceMean": reduce_mean,
    "ReduceMin": reduction("min"),
    "ReduceProd": reduction("*"),
    "ReduceSum": reduction("+"),
    "ReduceSumSquare": reduction("+", lambda v: v * v, alone=lambda v: v * v),
    "Softmax": softmax,
}
