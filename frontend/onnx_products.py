"""Rows of the operator table that are products: of matrices, and by index strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from poly.affine import Affine, var
from poly.dtypes import is_float
from poly.frontend.contraction import EXACT_ENOUGH, walk_steps
from poly.frontend.einsum import choose_steps
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Index, Shape, Term, Value

_Factor = tuple[Term, tuple[str, ...]]  # what is multiplied, and its indices


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
    left = x[(*_lead(lead, x.shape[:-2], batch), *((i,) if rows else ()), k)]
    right = w[(*_lead(lead, w.shape[:-2], batch), k, *((j,) if columns else ()))]
    b.reduce(y, ranges, {"k": inner}, multiply(left, right), suffix="" if target is None else "_sum")
    return y


def _lead(iterators: Sequence[Affine], shape: Sequence[int], batch: Sequence[int]) -> list[Index]:
    """The subscripts of an operand's leading axes: 0 along those that are stretched."""
    first = len(iterators) - len(shape)
    own = zip(iterators[first:], shape, batch[first:], strict=True)
    return [0 if extent == 1 != wanted else i for i, extent, wanted in own]


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


ROWS: Final[dict[str, Row]] = {
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
}
