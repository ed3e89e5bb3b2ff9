"""Index arithmetic: quasi-affine expressions of loop variables become linear forms over SSA values, then addresses.

A vector loop's variable is the form `start + step * LANE`; unrolled variables are integers and vanish. Floors and
remainders are folded where the known ranges allow, else computed. Strides are integers, or SSA values for free sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from poly.affine import Affine, Atom, FloorDiv, Var, sum_of
from poly.codegen.text import Writer
from poly.errors import Bug


class LaneError(Exception):
    """An index is not linear in the lane: the access is done element by element."""


class Linear(NamedTuple):
    """constant + lane * LANE + sum of coefficient * SSA value."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0
    lane: int = 0

    @property
    def is_constant(self) -> bool:
        return not self.terms and not self.lane

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        constant, lane = self.constant + factor * other.constant, self.lane + factor * other.lane
        if not other.terms:
            return Linear(self.terms, constant, lane)
        total = dict(self.terms)
        for name, c in other.terms:
            total[name] = total.get(name, 0) + factor * c
        return Linear(tuple((n, c) for n, c in total.items() if c), constant, lane)

    def at(self, lane: int) -> Linear:
        """With the lane replaced by a number."""
        return Linear(self.terms, self.constant + self.lane * lane)


@dataclass(frozen=True)
class Stride:
    """Elements between neighbours along one dimension: factor * value, `value` "" where it is known."""

    factor: int
    value: str = ""


class Address(NamedTuple):
    """Offset in elements from a tensor's start; terms: (SSA value, stride value) -> coefficient, "" stands for 1."""

    terms: tuple[tuple[tuple[str, str], int], ...]
    lane: tuple[tuple[str, int], ...]
    constant: int

    @property
    def is_constant(self) -> bool:
        return not self.terms and not self.lane

    @property
    def lane_stride(self) -> int | None:
        """Elements between lanes; None where only known when running."""
        if not self.lane:
            return 0
        value, stride = self.lane[0]
        return stride if len(self.lane) == 1 and not value else None

    def at(self, lane: int) -> Address:
        """The address of one lane."""
        if not self.lane:
            return self
        if not lane and not any(value for value, _ in self.lane):
            return Address(self.terms, (), self.constant)
        terms, constant = dict(self.terms), self.constant
        for value, c in self.lane:
            if value:
                terms["", value] = terms.get(("", value), 0) + c * lane
            else:
                constant += c * lane
        return Address(tuple(terms.items()), (), constant)


class Flat(NamedTuple):
    """An offset in elements before it is known what loop variables are: constant + sum of factor * atom."""

    atoms: tuple[tuple[Atom, int], ...]
    constant: int

    def recombined(self) -> Flat:
        """`Affine.recombined` over all coordinates."""
        total = sum_of([*self.atoms], self.constant).recombined()
        return Flat(total.terms, total.constant)


class Indices:
    """What the loop variables and sizes are at the current place, and arithmetic on them."""

    def __init__(self, writer: Writer, sizes: Mapping[str, int], frozen: bool = False) -> None:
        """`frozen`: whether pointers in heads of loops are, see `_base`."""
        self.writer, self.frozen = writer, frozen
        self.values: dict[str, Linear] = {name: Linear((), value) for name, value in sizes.items()}
        self.lane_values: dict[str, Callable[[int], str]] = {}  # indices loaded from memory, by lane
        self.ranges: dict[str, tuple[int, int]] = {}
        self.lane_range: tuple[int, int] = (0, 0)
        self.strides_of: dict[str, tuple[Stride, ...]] = {}

    def of_value(self, text: str, literal: float | int | bool | None) -> Linear:
        """The form of an i64 value."""
        return Linear(((text, 1),)) if literal is None else Linear((), int(literal))

    def set_variable(self, name: str, counter: str, interval: tuple[int, int] | None) -> None:
        """A loop's variable is an SSA value, whose least and greatest value are given where they are known."""
        if interval is not None:
            self.ranges[counter] = interval
        self.values[name] = Linear(((counter, 1),))

    def linear(self, expression: Affine, lane: int | None = None) -> Linear:
        """The expression at the current place; for one lane only where `lane` is given. Raises `LaneError`."""
        if not expression.terms:
            return Linear((), expression.constant)
        constant, lanes, terms = expression.constant, 0, dict[str, int]()
        for atom, c in expression.terms:
            part = self._atom(atom, lane)
            constant += c * part.constant
            lanes += c * part.lane
            for name, factor in part.terms:
                terms[name] = terms.get(name, 0) + c * factor
        return Linear(tuple((n, c) for n, c in terms.items() if c) if terms else (), constant, lanes)

    def _atom(self, atom: Atom, lane: int | None) -> Linear:
        if isinstance(atom, Var):
            if atom.name in self.lane_values:
                if lane is None:
                    raise LaneError
                return Linear(((self.lane_values[atom.name](lane), 1),))
            value = self.values[atom.name]
            return value if lane is None or not value.lane else value.at(lane)
        inner = self.linear(atom.argument, lane)
        whole = self._floor(inner, atom.divisor)
        return whole if isinstance(atom, FloorDiv) else inner.plus(whole, -atom.divisor)

    def interval(self, form: Linear) -> tuple[int, int] | None:
        """Bounds of a form's value over all iterations and lanes, None where they are not known."""
        low = high = form.constant
        for (lo, hi), c in [
            (self.lane_range, form.lane),
            *((self.ranges.get(n, (None, None)), c) for n, c in form.terms),
        ]:
            if not c:
                continue
            if lo is None or hi is None:
                return None
            low, high = low + min(c * lo, c * hi), high + max(c * lo, c * hi)
        return low, high

    def _floor(self, form: Linear, divisor: int) -> Linear:
        """floor(form / divisor)."""
        whole = Linear(
            tuple((n, c // divisor) for n, c in form.terms if c % divisor == 0),
            form.constant // divisor,
            form.lane // divisor if form.lane % divisor == 0 else 0,
        )
        rest = form.plus(whole, -divisor)
        if rest.is_constant:
            return whole
        bounds = self.interval(rest)
        if bounds is not None and bounds[0] // divisor == bounds[1] // divisor:
            return whole.plus(Linear((), bounds[0] // divisor))
        if rest.lane:
            raise LaneError
        value = self.divide(rest, divisor)
        if bounds is not None:
            self.ranges[value] = (bounds[0] // divisor, bounds[1] // divisor)
        return whole.plus(Linear(((value, 1),)))

    def divide(self, form: Linear, divisor: int) -> str:
        """SSA value of floor(form / divisor); shifts for powers of two, else a division corrected for negatives."""
        argument = self.text(form)
        pure = self.writer.pure
        if divisor & (divisor - 1) == 0:
            return pure(f"ashr i64 {argument}, {divisor.bit_length() - 1}", argument)
        bounds = self.interval(form)
        if bounds is not None and bounds[0] >= 0:
            return pure(f"udiv i64 {argument}, {divisor}", argument)
        quotient = pure(f"sdiv i64 {argument}, {divisor}", argument)
        product = pure(f"mul i64 {quotient}, {divisor}", quotient)
        rest = pure(f"sub i64 {argument}, {product}", argument, product)
        sign = pure(f"ashr i64 {rest}, 63", rest)
        return pure(f"add i64 {quotient}, {sign}", quotient, sign)

    def text(self, form: Linear) -> str:
        """The form as an i64: a literal or an SSA value, its parts computed in the loops that own them."""
        if form.lane:
            raise Bug("a form with a lane has no scalar value")
        total = ""
        pure = self.writer.pure
        for name, c in sorted(form.terms, key=lambda t: self.writer.depth_of.get(t[0], 0)):
            part = name if c == 1 else pure(f"mul i64 {name}, {c}", name)
            total = pure(f"add i64 {total}, {part}", total, part) if total else part
        if not total:
            return str(form.constant)
        return pure(f"add i64 {total}, {form.constant}", total) if form.constant else total

    def multiply(self, a: str, b: str) -> str:
        """Product of two i64 texts, folded where both are literals."""
        if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
            return str(int(a) * int(b))
        if "1" in (a, b):
            return b if a == "1" else a
        return self.writer.pure(f"mul i64 {a}, {b}", a, b)

    def set_strides(self, tensor: str, extents: Sequence[Affine]) -> None:
        """Row-major strides of a tensor's storage; computed at the function's start where sizes are free."""
        strides: list[Stride] = []
        factor, value = 1, ""
        for extent in reversed(extents):
            strides.append(Stride(factor, value))
            form = self.linear(extent)
            if form.is_constant:
                factor *= form.constant
            else:
                value = self.multiply(value or "1", self.text(form))
        self.strides_of[tensor] = tuple(reversed(strides))

    def address(self, tensor: str, coordinates: Sequence[Linear]) -> Address:
        """The offset of an element given by its physical coordinates."""
        terms: dict[tuple[str, str], int] = {}
        lanes: dict[str, int] = {}
        constant = 0
        for form, stride in zip(coordinates, self.strides_of[tensor], strict=True):
            for name, c in form.terms:
                terms[name, stride.value] = terms.get((name, stride.value), 0) + c * stride.factor
            if form.lane:
                lanes[stride.value] = lanes.get(stride.value, 0) + form.lane * stride.factor
            if stride.value and form.constant:
                terms["", stride.value] = terms.get(("", stride.value), 0) + form.constant * stride.factor
            elif form.constant:
                constant += form.constant * stride.factor
        kept = tuple((k, c) for k, c in terms.items() if c)
        return Address(kept, tuple((v, c) for v, c in lanes.items() if c), constant)

    def step(self, address: Address, loop: str) -> int | None:
        """Elements by which an iteration of a loop moves an address; None where other values may depend on the loop,
        or where it is only known when running.
        """
        variables = {form.terms[0][0] for form in self.values.values() if len(form.terms) == 1}
        own = self.values[loop].terms
        if len(own) != 1 or any(name not in variables or stride for (name, stride), _ in address.terms):
            return None
        return sum(c * own[0][1] for (name, _), c in address.terms if name == own[0][0])

    def flat(self, tensor: str, coordinates: Sequence[Affine]) -> Flat | None:
        """Physical coordinates as one sum, for `offset`; None where a stride is only known when running."""
        atoms: list[tuple[Atom, int]] = []
        constant = 0
        for form, stride in zip(coordinates, self.strides_of[tensor], strict=True):
            if stride.value:
                return None
            atoms += [(atom, c * stride.factor) for atom, c in form.terms]
            constant += form.constant * stride.factor
        return Flat(tuple(atoms), constant)

    def offset(self, flat: Flat) -> Address:
        """What `address` gives for the coordinates, at the current place. Raises `LaneError`."""
        constant, lanes, terms = flat.constant, 0, dict[tuple[str, str], int]()
        values, known = self.values, self.lane_values
        for atom, factor in flat.atoms:
            found = values[atom.name] if isinstance(atom, Var) and atom.name not in known else self._atom(atom, None)
            parts, part, lane = found
            constant += factor * part
            lanes += factor * lane
            for name, c in parts:
                key = (name, "")
                terms[key] = terms.get(key, 0) + factor * c
        kept = tuple([(k, c) for k, c in terms.items() if c]) if terms else ()
        return Address(kept, (("", lanes),) if lanes else (), constant)

    def pointer(self, base: str, element: str, address: Address) -> str:
        """The pointer of an address without lanes; the constant part stays a displacement at the place of use."""
        pointer = self._base(base, element, address.terms) if address.terms else base
        if address.constant:
            pointer = self.writer.cached(f"getelementptr {element}, ptr {pointer}, i64 {address.constant}")
        return pointer

    def _base(self, base: str, element: str, terms: tuple[tuple[tuple[str, str], int], ...]) -> str:
        """The pointer without the constant; found once for every loop that it is used in.

        LLVM's strength reduction takes as long as there are addresses that it sees to move with a loop. They are in
        the heads of loops already, so it is shown those alone: what is made of a frozen pointer is hidden from it. And
        from its scheduler, which would move all loads of a long body to its front if it saw that they are of another
        tensor than what is written, and spill them. With few registers transposed squares would spill, frozen.
        """
        writer = self.writer
        depth, found, key = writer.depth_of, writer.regions[-1].pointers, (base, element, terms)
        if key in found:
            return found[key]
        pointer = base
        order = [(max(depth.get(name, 0), depth.get(stride, 0)), name, stride, c) for (name, stride), c in terms]
        for _, name, stride, c in sorted(order, key=lambda t: t[0]):
            offset = self.multiply(self.multiply(name or "1", str(c)), stride or "1")
            pointer = writer.pure(f"getelementptr {element}, ptr {pointer}, i64 {offset}", pointer, offset)
            pointer = writer.pure(f"freeze ptr {pointer}", pointer) if self.frozen else pointer
        if max(at for at, *_ in order) < len(writer.regions):  # in the head of a loop around, not in a branch
            found[key] = pointer
        return pointer
