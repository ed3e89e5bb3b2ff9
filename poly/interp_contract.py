"""Sums of products over boxes by matrix multiplication: the fast path of the vectorised interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from poly.dtypes import is_float, is_integer
from poly.expr import Apply, Expr, IndexValue, walk
from poly.interp_access import Array, read_closure
from poly.interp_points import Points
from poly.program import Statement

EXACT: Final = 2**53  # integers up to here are exact in f64, in any order of summing


@dataclass(frozen=True)
class Operand:
    """A factor as an array with one axis for each of `axes` (positions in the box)."""

    axes: tuple[int, ...]
    array: Array


def factors_of(body: Expr) -> tuple[Expr, ...]:
    """The factors of a product, itself where it is none."""
    if isinstance(body, Apply) and body.operator == "mul":
        return tuple(f for argument in body.arguments for f in factors_of(argument))
    return (body,)


def axes_of(s: Statement, body: Expr, box: Points) -> tuple[int, ...]:
    """The axes of the box that a body's value may change along."""
    names: set[str] = set()
    for position in read_closure(s, body):
        access = s.reads[position]
        for e in (*access.index, *(c.expr for c in access.guard)):
            names |= getattr(e, "names", frozenset[str]())
    for node in walk(body):
        if isinstance(node, IndexValue):
            names |= node.index.names
    return tuple(k for k, name in enumerate(box.iterators) if name in names)


def is_contraction(s: Statement, box: Points, dtype: str) -> bool:
    """Whether a statement sums products whose factors are each smaller than the box."""
    if s.combiner is None or s.combiner.symbol != "+" or not s.reorder or dtype == "bool":
        return False
    factors = factors_of(s.body)
    return len(factors) > 1 and all(volume(box, axes_of(s, f, box)) < box.volume for f in factors)


def volume(box: Points, axes: Sequence[int]) -> int:
    """Points of the box along some of its axes."""
    return prod(box.shape[k] for k in axes)


def contract(values: Sequence[Array], kept: Sequence[int], shape: Sequence[int], dtype: str) -> Array:
    """The sum over the box of the product of `values` (arrays that broadcast over `shape`), axes not `kept` gone to 1.

    Floats in f64, complex in c128. Integers exactly modulo their width: in f64 where no partial sum reaches 2^53, else
    in i64, whose wrapping agrees with every narrower type's.
    """
    wide = np.float64 if is_float(dtype) else np.complex128 if dtype[0] == "c" else np.int64
    summed = prod(extent for k, extent in enumerate(shape) if k not in kept)
    if is_integer(dtype) and prod(_largest(v) for v in values) * summed < EXACT:
        wide = np.float64
    operands = [_operand(value.astype(wide), shape) for value in values]
    present = {axis for operand in operands for axis in operand.axes}
    absent = prod(extent for k, extent in enumerate(shape) if k not in present and k not in kept)
    out = tuple(k for k in kept if k in present)
    with np.errstate(all="ignore"):
        total: Array = _product(operands[0], operands[1], out) if len(operands) == 2 else _einsum(operands, out)
        total = np.multiply(total, absent)
    exact = total.astype(np.int64) if is_integer(dtype) else total
    return exact.reshape([extent if k in out else 1 for k, extent in enumerate(shape)])


def _largest(value: Array) -> int:
    return max(abs(int(value.max())), abs(int(value.min()))) if value.size else 0


def _operand(value: Array, shape: Sequence[int]) -> Operand:
    axes = tuple(k for k, extent in enumerate(value.shape) if extent == shape[k] and extent > 1)
    return Operand(axes, value.reshape([value.shape[k] for k in axes]))


def _product(a: Operand, b: Operand, out: tuple[int, ...]) -> Array:
    """Two operands: axes of both that stay are a batch, axes of both that go are summed by a matrix product; axes of
    one that go are summed before it, or behind it where a factor is infinite: (1 - 1)*inf is not inf - inf.
    """
    if _finite((a, b)):
        a, b = _presummed(a, b, out), _presummed(b, a, out)
    late = tuple(k for k in (*a.axes, *b.axes) if k not in out and (k in a.axes) != (k in b.axes))
    batch = [k for k in a.axes if k in b.axes and k in out]
    inner = [k for k in a.axes if k in b.axes and k not in out]
    rows, columns = ([k for k in x.axes if k not in batch and k not in inner] for x in (a, b))
    extent = {k: n for x in (a, b) for k, n in zip(x.axes, x.array.shape, strict=True)}

    def flat(x: Operand, *groups: list[int]) -> Array:
        moved = x.array.transpose([x.axes.index(k) for group in groups for k in group])
        return moved.reshape([prod(extent[k] for k in group) for group in groups])

    result = np.matmul(flat(a, batch, rows, inner), flat(b, batch, inner, columns))
    order = [*batch, *rows, *columns]
    whole = result.reshape([extent[k] for k in order]).transpose([order.index(k) for k in (*out, *late)])
    return whole.sum(axis=tuple(range(len(out), whole.ndim))) if late else whole


def _finite(operands: Sequence[Operand]) -> bool:
    return all(bool(np.isfinite(x.array).all()) for x in operands)


def _presummed(x: Operand, other: Operand, out: tuple[int, ...]) -> Operand:
    alone = [k for k in x.axes if k not in other.axes and k not in out]
    if not alone:
        return x
    summed = x.array.sum(axis=tuple(x.axes.index(k) for k in alone))
    return Operand(tuple(k for k in x.axes if k not in alone), summed)


def _einsum(operands: Sequence[Operand], out: tuple[int, ...]) -> Array:
    arguments: list[object] = []
    for operand in operands:
        arguments += [operand.array, list(operand.axes)]
    return np.asarray(np.einsum(*arguments, list(out), optimize="greedy" if _finite(operands) else False))  # type: ignore[call-overload]
