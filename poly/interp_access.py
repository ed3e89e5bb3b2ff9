"""Arrays of elements at once: gathering reads, and storing or combining writes, with bounds checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, IntValue, Var
from poly.dtypes import Array, is_float, is_integer
from poly.errors import RunError
from poly.expr import Combiner, Expr, evaluate, reads_of
from poly.interp_points import Points
from poly.program import Access, ReadIndex, Statement

Index = npt.NDArray[np.int64]
UFUNCS: Final[dict[str, np.ufunc]] = {
    "+": np.add, "*": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


@dataclass(frozen=True)
class Instances:
    """A set of instances as arrays: `values` gives every iterator and size, arrays broadcast to `shape`, in order."""

    statement: Statement
    shape: tuple[int, ...]
    values: Mapping[str, IntValue]
    arrays: Mapping[str, Array]


def read_closure(s: Statement, body: Expr) -> list[int]:
    """The reads a body needs, those that give subscripts included, ascending."""
    needed: set[int] = set()
    open_reads = reads_of(body)
    while open_reads:
        position = open_reads.pop()
        if position not in needed:
            needed.add(position)
            open_reads += [i.position for i in s.reads[position].index if isinstance(i, ReadIndex)]
    return sorted(needed)


def gather_reads(at: Instances, positions: Sequence[int], box: Points | None = None) -> dict[int, Array]:
    """The values of reads; with `box` (the instances are exactly its points) as views where subscripts are simple."""
    found: dict[int, Array] = {}
    for position in positions:
        access = at.statement.reads[position]
        view = None if box is None or access.guard else box_view(at, access, box)
        found[position] = gather(at, access, found) if view is None else view
    return found


def gather(at: Instances, access: Access, read: Mapping[int, Array]) -> Array:
    """The elements of an access, with as many axes as the instances. Raises `RunError` out of bounds."""
    array = at.arrays[access.tensor]
    index = subscripts(at, access, read)
    inside: npt.NDArray[np.bool_] | None = None
    if access.guard:
        inside = np.ones((1,) * len(at.shape), np.bool_)
        for constraint in access.guard:
            inside = inside & constraint.holds(at.values)
    check_bounds(at, access, index, array.shape, inside)
    if inside is None:
        return array[tuple(index)] if index else array.reshape((1,) * len(at.shape))
    assert access.fill is not None
    fill = np.asarray(access.fill.value, array.dtype)
    if not inside.any():
        return fill.reshape((1,) * len(at.shape))
    clipped = tuple(np.clip(i, 0, extent - 1) for i, extent in zip(index, array.shape, strict=True))
    return np.where(inside, array[clipped] if clipped else array, fill)


def subscripts(at: Instances, access: Access, read: Mapping[int, Array]) -> list[Index]:
    """The subscripts as arrays of as many axes as the instances have."""
    rank = len(at.shape)
    index: list[Index] = []
    for e in access.index:
        value = np.asarray(e.evaluate(at.values) if isinstance(e, Affine) else read[e.position]).astype(np.int64)
        index.append(value.reshape((1,) * rank) if value.ndim != rank else value)
    return index


def check_bounds(
    at: Instances,
    access: Access,
    index: Sequence[Index],
    shape: Sequence[int],
    inside: npt.NDArray[np.bool_] | None,
) -> None:
    """Raise `RunError` for the first instance whose element is outside of its tensor and not guarded away."""
    for value, extent in zip(index, shape, strict=True):
        outside = (value < 0) | (value >= extent)
        if outside.any() and inside is not None:
            outside = outside & inside
        if outside.any():
            where = np.unravel_index(int(np.argmax(np.broadcast_to(outside, at.shape))), at.shape)
            element = [int(np.broadcast_to(i, at.shape)[where]) for i in index]
            iterators = at.statement.iterators
            instance = [int(np.broadcast_to(np.asarray(at.values[i]), at.shape)[where]) for i in iterators]
            raise out_of_bounds(at.statement.name, instance, access.tensor, element, shape)


def out_of_bounds(
    statement: str, instance: Sequence[int], tensor: str, index: Sequence[int], shape: Sequence[int]
) -> RunError:
    """The error for an element outside of its tensor."""
    at = ", ".join(map(str, instance))
    element = ", ".join(map(str, index))
    message = f"{tensor}[{element}] is outside of its shape [{', '.join(map(str, shape))}]"
    return RunError(message, where=f"statement {statement}[{at}]", hint="guard the read or shrink the domain")


def box_view(at: Instances, access: Access, box: Points) -> Array | None:
    """The elements over a box as a view with the box's axes (extent 1 where an axis does not matter).

    None where a subscript is not `factor * iterator + constant` with factor > 0 and iterators of their own.
    """
    picks: list[slice | int] = []
    axes: list[int] = []
    index: list[Index] = []
    rank = len(box.iterators)
    for e in access.index:
        taken = _slice(e, at.values, box)
        if taken is None or taken[1] in axes:
            return None
        assert isinstance(e, Affine)
        picks.append(taken[0])
        axes += [] if taken[1] is None else [taken[1]]
        value = np.asarray(e.evaluate(at.values), np.int64)
        index.append(value if value.ndim == rank else value.reshape((1,) * rank))
    array = at.arrays[access.tensor]
    check_bounds(at, access, index, array.shape, None)
    view = array[(*picks, Ellipsis)].transpose(np.argsort(np.array(axes, np.int64)))
    return view[(*(slice(None) if k in axes else None for k in range(rank)), Ellipsis)]


def _slice(
    e: Affine | ReadIndex, values: Mapping[str, IntValue], box: Points
) -> tuple[slice, int] | tuple[int, None] | None:
    """What one subscript picks, and the axis of the box along which it moves (None: it does not)."""
    if not isinstance(e, Affine):
        return None
    moving = [term for term in e.terms if Affine((term,)).names & set(box.iterators)]
    base = int(Affine(tuple(t for t in e.terms if t not in moving), e.constant).evaluate(values))
    if not moving:
        return base, None
    (atom, factor), *more = moving
    if more or not isinstance(atom, Var) or factor <= 0:
        return None
    axis = box.iterators.index(atom.name)
    first, last = base + factor * box.lower[axis], base + factor * (box.upper[axis] - 1)
    return slice(first, last + 1, factor), axis


def linear(index: Sequence[Index], shape: Sequence[int], broadcast: Sequence[int]) -> Index:
    """Subscripts (in bounds) as one position in C order, flattened over the instances."""
    total: Index = np.zeros((1,) * len(broadcast), np.int64)
    for value, extent in zip(index, shape, strict=True):
        total = total * extent + value
    return np.broadcast_to(total, broadcast).reshape(-1)


def accumulator(dtype: str, combiner: Combiner, reorder: bool) -> np.dtype[np.generic] | None:
    """What sums and products of floats are accumulated in; None: the target's own dtype."""
    if combiner.symbol not in ("+", "*") or not reorder:
        return None
    return np.dtype(np.float64) if is_float(dtype) else np.dtype(np.complex128) if dtype == "c64" else None


def order_free(s: Statement, dtype: str) -> bool:
    """Whether the instances of a reduction give the same in any order, up to the rounding that `reorder` allows."""
    assert s.combiner is not None
    return s.reorder or s.combiner.symbol not in ("+", "*") or is_integer(dtype) or dtype == "bool"


def scatter(
    array: Array, where: Index, value: Array, combiner: Combiner | None, wide: np.dtype[np.generic] | None
) -> None:
    """Store values at positions of a C-contiguous array in order: the last one stays, or all are combined."""
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array) or array.size == 0
    if combiner is None:
        places, last = np.unique(where[::-1], return_index=True)
        flat[places] = value[::-1][last]
        return
    places, inverse = np.unique(where, return_inverse=True)
    total = flat[places].astype(wide or array.dtype)
    UFUNCS[combiner.symbol].at(total, inverse.reshape(-1), value.astype(total.dtype))
    with np.errstate(all="ignore"):
        flat[places] = total.astype(array.dtype)


def body_values(at: Instances, body: Expr, box: Points | None, dtype: str) -> Array:
    """A body over the instances, with as many axes; extent 1 where an axis does not matter."""
    found = gather_reads(at, read_closure(at.statement, body), box)
    empty = np.zeros(())
    reads = [found.get(k, empty) for k in range(len(at.statement.reads))]

    def index(expression: Affine) -> Array:
        return np.asarray(expression.evaluate(at.values))

    value = np.asarray(evaluate(body, reads, index, dtype))
    return value.reshape((1,) * len(at.shape)) if value.ndim != len(at.shape) else value
