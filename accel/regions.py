"""Addresses of a loop nest as one start and one stride per loop.

A `Scope` says what every loop variable is inside one command: a fixed number, or a number that moves with the command's
own counters (`axes`). `form` turns a quasi-affine expression into a linear form of the counters. Floors and remainders
go where the range of their argument allows it; where it does not, `Bent` says how to cut the counters so that it will.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poly.accel.footprint import Ints, grid
from poly.affine import Affine, FloorDiv, Mod, Var
from poly.program import Tensor


@dataclass(frozen=True)
class Form:
    """base + sum of coefficient * counter; coefficients are not zero."""

    base: int
    terms: Mapping[str, int]

    def __add__(self, other: Form) -> Form:
        terms = dict(self.terms)
        for axis, c in other.terms.items():
            terms[axis] = terms.get(axis, 0) + c
        return Form(self.base + other.base, {a: c for a, c in terms.items() if c})

    def scaled(self, factor: int) -> Form:
        return Form(self.base * factor, {a: c * factor for a, c in self.terms.items()} if factor else {})


class Bent(Exception):
    """An expression that is no linear form here. `parts`: the scopes to use instead, together the same instances."""

    def __init__(self, parts: Sequence[Scope]) -> None:
        super().__init__("not linear")
        self.parts = parts


@dataclass(frozen=True)
class Scope:
    """`places`: every loop variable as a form of counters; `axes`: trips of the counters, outermost first."""

    places: Mapping[str, Form]
    axes: Mapping[str, int]

    def fixed(self, name: str, value: int) -> Scope:
        """With a loop variable that stands still."""
        return replace(self, places={**self.places, name: Form(value, {})})

    def moving(self, name: str, first: int, step: int, trips: int) -> Scope:
        """With a loop variable that counts; a single iteration needs no counter."""
        if trips == 1:
            return self.fixed(name, first)
        return Scope({**self.places, name: Form(first, {name: step})}, {**self.axes, name: trips})

    def cut(self, axis: str, start: int, trips: int) -> Scope:
        """Only the counts start .. start + trips - 1 of one counter."""
        places = {n: _moved(p, axis, start, trips) for n, p in self.places.items()}
        axes = {a: trips if a == axis else n for a, n in self.axes.items() if a != axis or trips > 1}
        return Scope(places, axes)

    def folded(self, axis: str, period: int) -> Scope:
        """A counter as two: one over periods, one inside a period (which divides its trips)."""
        outer, inner = f"{axis}/", f"{axis}%"

        def both(place: Form) -> Form:
            c = place.terms.get(axis, 0)
            terms = {a: k for a, k in place.terms.items() if a != axis}
            return Form(place.base, {**terms, outer: c * period, inner: c} if c else terms)

        axes: dict[str, int] = {}
        for a, n in self.axes.items():
            axes |= {outer: n // period, inner: period} if a == axis else {a: n}
        return Scope({n: both(p) for n, p in self.places.items()}, axes)

    def singles(self, axis: str) -> list[Scope]:
        """One scope for every count of a counter."""
        return [self.cut(axis, t, 1) for t in range(self.axes[axis])]

    def outermost(self, axes: Sequence[str] | Mapping[str, int]) -> str:
        return next(a for a in self.axes if a in axes)

    def interval(self, form: Form) -> tuple[int, int]:
        """Least and greatest value."""
        spans = [c * (self.axes[a] - 1) for a, c in form.terms.items()]
        return form.base + sum(s for s in spans if s < 0), form.base + sum(s for s in spans if s > 0)

    def form(self, expression: Affine) -> Form:
        """The linear form of an expression. Raises `Bent`."""
        total = Form(expression.constant, {})
        for atom, c in expression.terms:
            match atom:
                case Var(name):
                    part = self.places[name]
                case FloorDiv(argument, divisor):
                    part, _ = self._divided(self.form(argument), divisor)
                case Mod(argument, divisor):
                    _, part = self._divided(self.form(argument), divisor)
            total = total + part.scaled(c)
        return total

    def _divided(self, value: Form, divisor: int) -> tuple[Form, Form]:
        """Floor and remainder of a division."""
        whole = {a: c // divisor for a, c in value.terms.items() if c % divisor == 0}
        rest = Form(value.base % divisor, {a: c for a, c in value.terms.items() if c % divisor})
        low, high = self.interval(rest)
        if low // divisor != high // divisor:
            raise Bent(self._straightened(rest, divisor))
        quotient = low // divisor
        return Form(value.base // divisor + quotient, whole), Form(rest.base - quotient * divisor, rest.terms)

    def _straightened(self, rest: Form, divisor: int) -> list[Scope]:
        """Parts in each of which the quotient is constant along one counter more."""
        axis = self.outermost(rest.terms)
        if len(rest.terms) > 1:
            return self.singles(axis)
        c, trips = rest.terms[axis], self.axes[axis]
        quotients = (rest.base + c * np.arange(trips, dtype=np.int64)) // divisor
        period = divisor // abs(c) if divisor % abs(c) == 0 else 0
        head = int(np.argmax(quotients != quotients[0]))
        if period > 1 and head == period and trips % period == 0 and trips > period:
            return [self.folded(axis, period)]
        if period > 1 and head != period:
            return [self.cut(axis, 0, head), self.cut(axis, head, trips - head)]
        if period > 1 and trips > 2 * period:
            full = trips - trips % period
            return [self.cut(axis, 0, full), self.cut(axis, full, trips - full)]
        return self.runs(axis, quotients)

    def runs(self, axis: str, values: Ints) -> list[Scope]:
        """Parts along one counter over which `values` (its first axis) stays the same."""
        flat = values.reshape(self.axes[axis], -1)
        changes = np.flatnonzero((flat[1:] != flat[:-1]).any(axis=1)) + 1
        starts = [0, *changes.tolist(), len(flat)]
        return [self.cut(axis, a, b - a) for a, b in zip(starts[:-1], starts[1:], strict=True)]

    def values(self, form: Form, axes: Sequence[str]) -> Ints:
        """All values of a form over some counters (those it moves with among them), as `grid` gives them."""
        return grid(form.base, [form.terms.get(a, 0) for a in axes], [self.axes[a] for a in axes])


def _moved(place: Form, axis: str, start: int, trips: int) -> Form:
    c = place.terms.get(axis)
    if c is None:
        return place
    terms = place.terms if trips > 1 else {a: k for a, k in place.terms.items() if a != axis}
    return Form(place.base + c * start, terms)


def element_strides(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Row-major strides, in elements, of what is allocated for a tensor."""
    strides: list[int] = []
    step = 1
    for extent in reversed(tensor.storage_shape):
        strides.append(step)
        step *= int(extent.evaluate(sizes))
    return tuple(reversed(strides))


def address(tensor: Tensor, subscripts: Sequence[Affine], sizes: Mapping[str, int]) -> Affine:
    """The element's place in a tensor as one expression; addresses of reshapes come out without floors."""
    places = tensor.layout.place(subscripts) if tensor.layout is not None else subscripts
    total = Affine()
    for place, stride in zip(places, element_strides(tensor, sizes), strict=True):
        total = total + place * stride
    return total.recombined()
