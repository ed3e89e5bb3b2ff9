"""The points of a bounded domain as a box and constraints, to be cut into parts of the size of an array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl
import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Atom, Constraint, FloorDiv, Mod, Var, var
from poly.sets import conjunctions_of

Piece = tuple[Constraint, ...]
Ranges = dict[str, tuple[int, int]]  # inclusive


@dataclass(frozen=True)
class Points:
    """The points of `lower <= iterator < upper` where one of the pieces (conjunctions) holds; None: everywhere.

    Iterators are in path order, so that C order of arrays over the box is the order of execution. Never empty as a box.
    """

    iterators: tuple[str, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pieces: tuple[Piece, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in zip(self.lower, self.upper, strict=True))

    @property
    def volume(self) -> int:
        """Points of the box."""
        return prod(self.shape)

    def axes(self) -> dict[str, npt.NDArray[np.int64]]:
        """The iterators as arrays that broadcast over the box, one axis each."""
        rank = len(self.iterators)
        return {
            name: np.arange(lo, hi, dtype=np.int64).reshape([-1 if a == k else 1 for a in range(rank)])
            for k, (name, lo, hi) in enumerate(zip(self.iterators, self.lower, self.upper, strict=True))
        }

    def flat(self) -> tuple[dict[str, npt.NDArray[np.int64]], int]:
        """The iterators as one-dimensional arrays over the points, in order, and how many there are."""
        full = [np.broadcast_to(a, self.shape).reshape(-1) for a in self.axes().values()]
        values = dict(zip(self.iterators, full, strict=True))
        if self.pieces is None:
            return values, self.volume
        mask = np.zeros(self.volume, np.bool_)
        for piece in self.pieces:
            inside = np.ones(self.volume, np.bool_)
            for constraint in piece:
                inside &= constraint.holds(values)
            mask |= inside
        return {name: array[mask] for name, array in values.items()}, int(mask.sum())

    def restrict(self, axis: int, lower: int, upper: int) -> Points | None:
        """The part with `lower <= iterator < upper` on one axis; None where its box is empty."""
        lower, upper = max(lower, self.lower[axis]), min(upper, self.upper[axis])
        if lower >= upper:
            return None
        lows = (*self.lower[:axis], lower, *self.lower[axis + 1 :])
        highs = (*self.upper[:axis], upper, *self.upper[axis + 1 :])
        return replace(self, lower=lows, upper=highs).tightened()

    def fix(self, name: str, value: int) -> Points | None:
        """The points where an iterator has a value, without that iterator; None where its box is empty."""
        axis = self.iterators.index(name)
        if not self.lower[axis] <= value < self.upper[axis]:
            return None
        pieces = self.pieces
        if pieces is not None:
            pieces = tuple(tuple(c.substitute({name: value}) for c in piece) for piece in pieces)
        lower, upper = (bounds[:axis] + bounds[axis + 1 :] for bounds in (self.lower, self.upper))
        return Points(self.iterators[:axis] + self.iterators[axis + 1 :], lower, upper, pieces).tightened()

    def tightened(self) -> Points | None:
        """The same points in a box as small as interval arithmetic sees, without constraints that always hold."""
        if self.pieces is None:
            return self
        kept: dict[tuple[Piece, tuple[tuple[int, int], ...]], None] = {}
        for piece in self.pieces:
            ranges = {n: (lo, hi - 1) for n, lo, hi in zip(self.iterators, self.lower, self.upper, strict=True)}
            if _narrow(piece, ranges):
                rest = tuple(c for c in piece if not _always(c, ranges))
                kept[rest, tuple(ranges[n] for n in self.iterators)] = None
        if not kept:
            return None
        lower = tuple(min(box[k][0] for _, box in kept) for k in range(len(self.iterators)))
        upper = tuple(max(box[k][1] for _, box in kept) + 1 for k in range(len(self.iterators)))
        whole = tuple((lo, hi - 1) for lo, hi in zip(lower, upper, strict=True))
        if any(not piece and box == whole for piece, box in kept):
            return Points(self.iterators, lower, upper)
        pieces = tuple((*piece, *_box(self.iterators, box, whole)) for piece, box in kept)
        return Points(self.iterators, lower, upper, pieces)

    def chunks(self, limit: int) -> Iterator[Points]:
        """Consecutive parts, in order, of at most `limit` points of the box each."""
        if self.volume <= limit:
            yield self
            return
        axis = next(k for k, extent in enumerate(self.shape) if extent > 1)
        step = max(1, limit // prod(self.shape[axis + 1 :]))
        for start in range(self.lower[axis], self.upper[axis], step):
            part = self.restrict(axis, start, start + step)
            if part is not None:
                yield from part.chunks(limit)

    def boxes(self, limit: int) -> list[Points] | None:
        """Disjoint boxes that make up the points, in order, at most `limit`; None where that is not enough."""
        if self.pieces is None:
            return [self]
        names = {name for piece in self.pieces for c in piece for name in c.expr.names}
        axis = next(k for k, n in enumerate(self.iterators) if n in names and self.shape[k] > 1)
        found: list[Points] = []
        for value in range(self.lower[axis], self.upper[axis]):
            part = self.restrict(axis, value, value + 1)
            inner = [] if part is None else part.boxes(limit - len(found))
            if inner is None or len(found) + len(inner) > limit:
                return None
            found += inner
        return found


def points_of(domain: isl.Set, iterators: Sequence[str], ordered: Sequence[str]) -> Points | None:
    """A bounded set without parameters, its iterators put in the order `ordered`; None where it is empty."""
    if domain.is_empty():
        return None
    bounds = {
        name: (domain.dim_min_val(k).to_python(), domain.dim_max_val(k).to_python() + 1)
        for k, name in enumerate(iterators)
    }
    lower, upper = tuple(bounds[n][0] for n in ordered), tuple(bounds[n][1] for n in ordered)
    box = isl.Set.universe(domain.get_space())
    for k, name in enumerate(iterators):
        box = box.lower_bound_val(isl.dim_type.set, k, bounds[name][0])
        box = box.upper_bound_val(isl.dim_type.set, k, bounds[name][1] - 1)
    if box.is_subset(domain):
        return Points(tuple(ordered), lower, upper)
    pieces = conjunctions_of(domain.coalesce(), iterators)
    assert pieces is not None, f"{domain}: a bounded set whose existentials have no closed form"
    return Points(tuple(ordered), lower, upper, pieces).tightened()


def _box(
    names: Sequence[str], box: Sequence[tuple[int, int]], whole: Sequence[tuple[int, int]]
) -> Iterator[Constraint]:
    """What keeps a piece inside of its own box, where that is smaller than the whole one."""
    for name, (lo, hi), (least, most) in zip(names, box, whole, strict=True):
        if lo > least:
            yield Constraint(var(name) - lo)
        if hi < most:
            yield Constraint(hi - var(name))


def _narrow(piece: Piece, ranges: Ranges) -> bool:
    """Shrink ranges by a conjunction, twice over its constraints; False where it cannot hold."""
    for _ in range(2):
        for constraint in piece:
            if not _narrow_by(constraint.expr, ranges):
                return False
            if constraint.equality and not _narrow_by(-constraint.expr, ranges):
                return False
    return True


def _narrow_by(expr: Affine, ranges: Ranges) -> bool:
    """Shrink ranges by expr >= 0."""
    if interval(expr, ranges)[1] < 0:
        return False
    for atom, factor in expr.terms:
        if not isinstance(atom, Var):
            continue
        lo, hi = ranges[atom.name]
        most = interval(expr - Affine(((atom, factor),)), ranges)[1]
        if factor > 0:
            lo = max(lo, -(most // factor))
        else:
            hi = min(hi, most // -factor)
        if lo > hi:
            return False
        ranges[atom.name] = lo, hi
    return True


def _always(constraint: Constraint, ranges: Ranges) -> bool:
    lo, hi = interval(constraint.expr, ranges)
    return lo == hi == 0 if constraint.equality else lo >= 0


def interval(expr: Affine, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Bounds (inclusive) of an expression whose names lie in `ranges`."""
    low = high = expr.constant
    for atom, factor in expr.terms:
        lo, hi = _atom_interval(atom, ranges)
        low += factor * (lo if factor > 0 else hi)
        high += factor * (hi if factor > 0 else lo)
    return low, high


def _atom_interval(atom: Atom, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    match atom:
        case Var(name):
            return ranges[name]
        case FloorDiv(argument, divisor):
            lo, hi = interval(argument, ranges)
            return lo // divisor, hi // divisor
        case Mod(argument, divisor):
            lo, hi = interval(argument, ranges)
            return (lo % divisor, hi % divisor) if lo // divisor == hi // divisor else (0, divisor - 1)
