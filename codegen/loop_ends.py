"""Where loops begin and end, at the place where they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from poly.affine import Affine
from poly.codegen.addresses import Indices, Linear
from poly.errors import UnsupportedError
from poly.loops import For


class Ends(NamedTuple):
    """From the greatest of `lower` to the least of `upper`, by `step`. `trips`: iterations, where that is known."""

    lower: list[Linear]
    upper: list[Linear]
    step: int
    trips: int | None

    def interval(self, indices: Indices) -> tuple[int, int] | None:
        """Values that the variable can take."""
        lows = [b[0] for b in map(indices.interval, self.lower) if b is not None]
        highs = [b[1] - 1 for b in map(indices.interval, self.upper) if b is not None]
        return (max(lows), max(max(lows), min(highs))) if lows and highs else None

    def first(self, indices: Indices) -> str:
        """The greatest of `lower` as an i64."""
        return _bound(indices, self.lower, "smax")

    def last(self, indices: Indices) -> str:
        """The least of `upper` as an i64."""
        return _bound(indices, self.upper, "smin")

    def extent(self, indices: Indices) -> str:
        """The number of iterations as an i64; not above 0: there are none."""
        writer = indices.writer
        first, last = self.first(indices), self.last(indices)
        extent = writer.pure(f"sub i64 {last}, {first}", last, first)
        if self.step == 1:
            return extent
        extent = writer.pure(f"add i64 {extent}, {self.step - 1}", extent)
        return writer.pure(f"sdiv i64 {extent}, {self.step}", extent)

    def most_lanes(self, indices: Indices, variable: str) -> int:
        """The most lanes that there can be. Raises `UnsupportedError` where nothing bounds them."""
        extents = [indices.interval(u.plus(low, -1)) for u in self.upper for low in self.lower]
        known = [e[1] for e in extents if e is not None]
        if not known:
            raise UnsupportedError(
                f"the extent of vector loop {variable} has no constant bound",
                hint="tile the loop and vectorise the inner one",
            )
        return max(1, -(-min(known) // self.step))


def ends_of(indices: Indices, node: For) -> Ends:
    """The ends of a loop at the current place, without bounds that others make superfluous."""
    lower = _extreme(indices, node.lower, node.variable, 1)
    upper = _extreme(indices, node.stops, node.variable, -1)
    return Ends(lower, upper, node.step, _trips(lower, upper, node.step))


def _extreme(indices: Indices, bounds: Sequence[Affine], variable: str, sign: int) -> list[Linear]:
    """Those of some bounds that can be the greatest (for -1 the least)."""
    if len(bounds) == 1 and not bounds[0].terms:
        return [Linear((), bounds[0].constant)]
    kept: list[Linear] = []
    for bound in bounds:
        form = indices.linear(bound)
        if form.lane:
            raise UnsupportedError(f"the bounds of loop {variable} depend on the lane of a vector loop")
        if len(bounds) == 1:
            return [form]
        if any(_at_most(indices, form, other, sign) for other in kept):
            continue
        kept = [other for other in kept if not _at_most(indices, other, form, sign)] + [form]
    return kept


def _at_most(indices: Indices, a: Linear, b: Linear, sign: int) -> bool:
    """Whether sign * a <= sign * b always."""
    bounds = indices.interval(b.plus(a, -1))
    return bounds is not None and (bounds[0] >= 0 if sign > 0 else bounds[1] <= 0)


def _trips(lower: Sequence[Linear], upper: Sequence[Linear], step: int) -> int | None:
    if len(lower) > 1 or len(upper) > 1:
        return None
    if lower[0].is_constant and upper[0].is_constant:
        return max(0, -((lower[0].constant - upper[0].constant) // step))
    extent = upper[0].plus(lower[0], -1)
    return max(0, -(-extent.constant // step)) if extent.is_constant else None


def _bound(indices: Indices, forms: Sequence[Linear], name: str) -> str:
    """The largest (smax) or smallest (smin) of the forms as an i64."""
    texts = [indices.text(f) for f in forms]
    total = texts[0]
    for text in texts[1:]:
        total = indices.writer.intrinsic("i64", f"llvm.{name}.i64", (("i64", total), ("i64", text)), pure=True)
    return total
