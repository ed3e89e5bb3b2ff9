"""A backend for opt_einsum: `opt_einsum.contract("ij,jk,kl->il", a, b, c, backend="poly.opt_einsum_backend")`.

opt_einsum decides the order of the contractions and calls these functions for each of them. Arrays of other libraries
come in through DLPack, and results go back to the library of the first operand that has its own arrays, through DLPack
too: nothing is copied on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from poly.dtypes import Array
from poly.einsum_call import Casting, Order, as_array
from poly.einsum_call import einsum as _einsum
from poly.errors import ArgumentError

Axes = int | Sequence[int] | tuple[Sequence[int] | int, Sequence[int] | int]


def einsum(
    *operands: object,
    out: object = None,
    dtype: np.typing.DTypeLike | None = None,
    order: Order | None = "K",
    casting: Casting = "safe",
) -> object:
    """`poly.einsum`; the result is an array of the first operand's library."""
    target = None if out is None else as_array(out)
    result = _einsum(*operands, out=target, dtype=dtype, order=order, casting=casting)
    return out if out is not None else _like(operands, result)


def tensordot(a: object, b: object, axes: Axes = 2) -> object:
    """`numpy.tensordot`: products summed over `axes` of a and of b, or over the last of a and the first of b.

    Raises `ArgumentError` where the axes are not there, `ShapeError` where their extents differ.
    """
    left, right = as_array(a), as_array(b)
    first, second = _pairs(axes, left.ndim, right.ndim)
    names = [*range(left.ndim)]
    others = [left.ndim + k for k in range(right.ndim)]
    for i, j in zip(first, second, strict=True):
        if left.shape[i] != right.shape[j]:
            raise ArgumentError(f"axis {i} of a has extent {left.shape[i]}, axis {j} of b {right.shape[j]}")
        others[j] = names[i]
    kept = [i for i in names if i not in first] + [j for k, j in enumerate(others) if k not in second]
    return _like((a, b), _einsum(left, names, right, others, kept))


def transpose(a: object, axes: Sequence[int] | None = None) -> object:
    """`numpy.transpose`: a view."""
    return _like((a,), np.transpose(as_array(a), axes))


def _pairs(axes: Axes, left: int, right: int) -> tuple[list[int], list[int]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(left, right):
            raise ArgumentError(f"axes={axes} for arrays of {left} and {right} dimensions")
        return [*range(left - axes, left)], [*range(axes)]
    chosen = [[p] if isinstance(p, int) else list(p) for p in axes]
    if len(chosen) != 2 or len(chosen[0]) != len(chosen[1]):
        raise ArgumentError(f"axes={axes!r}", hint="a number, or as many axes of a as of b")
    found: list[list[int]] = []
    for positions, rank in zip(chosen, (left, right), strict=True):
        if any(not -rank <= p < rank for p in positions):
            raise ArgumentError(f"axes {positions} of an array of {rank} dimensions")
        found.append([p % rank for p in positions])
        if len(set(found[-1])) < len(found[-1]):
            raise ArgumentError(f"an axis occurs twice in {positions}")
    return found[0], found[1]


def _like(operands: Sequence[object], result: Array) -> object:
    """The result as an array of the library that an operand comes from."""
    for operand in operands:
        if isinstance(operand, np.ndarray | np.generic | str) or not hasattr(operand, "__dlpack__"):
            continue
        namespace = getattr(operand, "__array_namespace__", None)
        library = namespace() if callable(namespace) else sys.modules[type(operand).__module__.partition(".")[0]]
        take = cast("Callable[[Array], object] | None", getattr(library, "from_dlpack", None))
        if take is not None:
            return take(np.asarray(result))
    return result
