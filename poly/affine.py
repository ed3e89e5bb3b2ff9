"""Quasi-affine expressions over named integers: sums of terms, floor divisions and remainders by positive literals.

They are the subscripts of accesses, the loop expressions of schedules and the addresses and bounds of loop trees.
`str` is Python syntax (and parses back with `parse_affine`), `isl_text` is isl's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from poly.errors import ParseError
from poly.lexical import decode, encode, is_scalar, quote
from poly.locks import cached_property

IntValue = int | npt.NDArray[np.int64]
_MOST = 2**60
_SHIFTS = 32  # bits by which an index is shifted at most, so that coefficients stay far below what i64 holds


class Var(NamedTuple):
    """A named integer: an iterator, a loop variable or a size parameter. A tuple, as those are hashed in no time."""

    name: str


@dataclass(frozen=True)
class FloorDiv:
    """floor(argument / divisor), divisor a positive literal."""

    argument: Affine
    divisor: int


@dataclass(frozen=True)
class Mod:
    """argument mod divisor in 0 .. divisor-1, divisor a positive literal."""

    argument: Affine
    divisor: int


Atom = Var | FloorDiv | Mod


@dataclass(frozen=True, init=False)
class Affine:
    """constant + sum of coefficient * atom; terms are sorted, without zero coefficients and without repeats."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    def __init__(self, terms: tuple[tuple[Atom, int], ...] = (), constant: int = 0) -> None:
        """As `dataclass` makes it, in half of the time: most of what a compile makes are these."""
        own = self.__dict__
        own["terms"], own["constant"] = terms, constant

    def __hash__(self) -> int:
        try:
            found: int = self.__dict__["_hash"]
        except KeyError:
            found = self.__dict__["_hash"] = hash((self.terms, self.constant))
        return found

    def __getstate__(self) -> dict[str, object]:
        """Without what is derived: hashes of names differ from process to process."""
        return {"terms": self.terms, "constant": self.constant}

    @staticmethod
    def of(value: Affine | int | str) -> Affine:
        """An `Affine` from an int, a name, Python text such as `2*i + r - 1`, or itself."""
        if isinstance(value, Affine):
            return value
        if isinstance(value, str):
            return var(value) if value.isidentifier() else parse_affine(value)
        return Affine((), int(value))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other) if other else self
        other = Affine.of(other)
        if not (self.terms and other.terms):
            return Affine(self.terms or other.terms, self.constant + other.constant)
        return sum_of([*self.terms, *other.terms], self.constant + other.constant)

    def __radd__(self, other: int) -> Affine:
        return self + other

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return self + -other
        other = Affine.of(other)
        if not other.terms:
            return self + -other.constant
        return sum_of([*self.terms, *[(a, -c) for a, c in other.terms]], self.constant - other.constant)

    def __rsub__(self, other: int) -> Affine:
        return Affine.of(other) - self

    def __mul__(self, factor: int) -> Affine:
        if not factor:
            return Affine()
        return self if factor == 1 else Affine(tuple([(a, c * factor) for a, c in self.terms]), self.constant * factor)

    def __rmul__(self, factor: int) -> Affine:
        return self * factor

    def __floordiv__(self, divisor: int) -> Affine:
        """Floor division by a positive literal; multiples of the divisor leave the floor."""
        if divisor == 1:
            return self
        whole = Affine(tuple((a, c // divisor) for a, c in self.terms if c % divisor == 0), self.constant // divisor)
        rest = Affine(tuple((a, c) for a, c in self.terms if c % divisor), self.constant % divisor)
        if not rest.terms:
            return whole
        if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
            inner = rest.terms[0][0]
            if isinstance(inner, FloorDiv):  # floor(floor(x/a)/b) = floor(x/(a*b))
                return whole + Affine(((FloorDiv(inner.argument, inner.divisor * divisor), 1),))
        if _is_below(rest, divisor):
            return whole
        return whole + Affine(((FloorDiv(rest, divisor), 1),))

    def __mod__(self, divisor: int) -> Affine:
        """Remainder in 0 .. divisor-1; multiples of the divisor vanish."""
        if divisor == 1:
            return Affine()
        rest = Affine(tuple((a, c) for a, c in self.terms if c % divisor), self.constant % divisor)
        if not rest.terms:
            return rest
        if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
            inner = rest.terms[0][0]
            if isinstance(inner, Mod) and inner.divisor % divisor == 0:
                return inner.argument % divisor
        if _is_below(rest, divisor):
            return rest
        return Affine(((Mod(rest, divisor), 1),))

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that occurs, inside floors and remainders too."""
        found: set[str] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Var):
                found.add(atom.name)
            else:
                found |= atom.argument.names
        return frozenset(found)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def is_linear(self) -> bool:
        """True without floors and remainders."""
        return all([isinstance(atom, Var) for atom, _ in self.terms])

    def coefficient(self, name: str) -> int:
        """The coefficient of a name outside floors and remainders (0 where it does not occur)."""
        for atom, c in self.terms:
            if isinstance(atom, Var) and atom.name == name:
                return c
        return 0

    def substitute(self, values: Mapping[str, Affine | int]) -> Affine:
        """Replace names by expressions; names not in `values` stay."""
        if values.keys().isdisjoint(self.names):
            return self
        terms, constant = list[tuple[Atom, int]](), self.constant
        for atom, c in self.terms:
            if isinstance(atom, Var):
                value = values.get(atom.name)
                if value is None:
                    terms.append((atom, c))
                    continue
                inner = Affine.of(value)
            elif isinstance(atom, FloorDiv):
                inner = atom.argument.substitute(values) // atom.divisor
            else:
                inner = atom.argument.substitute(values) % atom.divisor
            terms += inner.terms if c == 1 else [(a, k * c) for a, k in inner.terms]
            constant += inner.constant * c
        return sum_of(terms, constant)

    def evaluate(self, values: Mapping[str, IntValue]) -> IntValue:
        """The value where every name is an int or an int64 array (arrays broadcast)."""
        total: IntValue = self.constant
        for atom, c in self.terms:
            match atom:
                case Var(name):
                    value = values[name]
                case FloorDiv(argument, divisor):
                    value = argument.evaluate(values) // divisor
                case Mod(argument, divisor):
                    value = argument.evaluate(values) % divisor
            total = total + c * value
        return total

    def recombined(self) -> Affine:
        """The same value with c*d*(e // d) + c*(e % d) put back together as c*e: addresses of reshapes become
        linear.
        """
        for atom, c in self.terms:
            if isinstance(atom, Mod):
                quotient = atom.argument // atom.divisor
                if len(quotient.terms) == 1 and (quotient.terms[0][0], c * atom.divisor) in self.terms:
                    pair = Affine(((atom, c),)) + quotient * (c * atom.divisor)
                    return (self - pair + atom.argument * c).recombined()
        return self

    def _text(self, atom_text: Callable[[Atom], str]) -> str:
        parts: list[str] = []
        for atom, c in self.terms:
            shown = atom_text(atom)
            magnitude = shown if abs(c) == 1 else f"{abs(c)}*{shown}"
            parts.append(("-" if c < 0 else "") + magnitude if not parts else f"{'-' if c < 0 else '+'} {magnitude}")
        if self.constant or not parts:
            c = self.constant
            parts.append(str(c) if not parts else f"{'-' if c < 0 else '+'} {abs(c)}")
        return " ".join(parts)

    def __str__(self) -> str:
        def shown(atom: Atom) -> str:
            match atom:
                case Var(name):
                    return quote(name, inside=True)
                case FloorDiv(argument, divisor):
                    return f"({argument} // {divisor})" if _bare(argument) else f"(({argument}) // {divisor})"
                case Mod(argument, divisor):
                    return f"({argument} % {divisor})" if _bare(argument) else f"(({argument}) % {divisor})"

        return self._text(shown)

    @cached_property
    def isl_text(self) -> str:
        """The same expression in isl's syntax."""

        def shown(atom: Atom) -> str:
            match atom:
                case Var(name):
                    return name
                case FloorDiv(argument, divisor):
                    return f"floor(({argument.isl_text})/{divisor})"
                case Mod(argument, divisor):
                    return f"(({argument.isl_text}) mod {divisor})"

        return self._text(shown)


@lru_cache(maxsize=4096)
def var(name: str) -> Affine:
    """The expression that is one name."""
    return Affine(((Var(name), 1),))


def _bare(argument: Affine) -> bool:
    return len(argument.terms) == 1 and argument.constant == 0 and argument.terms[0][1] == 1


@lru_cache(maxsize=4096)
def _text_of(atom: Atom) -> str:
    return str(Affine(((atom, 1),)))


def _place(term: tuple[Atom, int]) -> str:
    """The place of a floor or remainder among others."""
    return _text_of(term[0])


def _is_below(rest: Affine, divisor: int) -> bool:
    """Whether a sum of remainders is in 0 .. divisor-1."""
    most = rest.constant
    for atom, coefficient in rest.terms:
        if not isinstance(atom, Mod) or coefficient < 0:
            return False
        most += coefficient * (atom.divisor - 1)
    return most < divisor


def sum_of(terms: list[tuple[Atom, int]], constant: int) -> Affine:
    """The expression of terms in any order, in which an atom may stand more than once."""
    total: dict[Atom, int] = {}
    for atom, c in terms:
        total[atom] = total.get(atom, 0) + c
    names: list[tuple[Atom, int]] = []
    others: list[tuple[Atom, int]] = []
    for term in total.items():
        if term[1]:
            (names if type(term[0]) is Var else others).append(term)
    if len(names) > 1:
        names.sort()  # pyright: ignore[reportCallIssue, reportArgumentType]  # by name
    if others:
        names += sorted(others, key=_place) if len(others) > 1 else others
    return Affine(tuple(names), constant)


def parse_affine(text: str) -> Affine:
    """Read Python syntax: `+ - *` by literals, `//` and `%` by positive literals. Raises `ParseError`."""
    try:
        tree = ast.parse(encode(text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"not an affine expression: {text!r}") from error
    return affine_of_ast(tree, text)


def affine_operation(a: Affine, operator: ast.operator, b: Affine) -> Affine | None:
    """Two expressions under an operator of Python; None where that is not affine."""
    match operator:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult() if a.is_constant or b.is_constant:
            return b * a.constant if a.is_constant else a * b.constant
        case ast.FloorDiv() if b.is_constant and b.constant:
            return a // b.constant if b.constant > 0 else (-a) // -b.constant
        case ast.Mod() if b.is_constant and b.constant:
            return a % b.constant if b.constant > 0 else -((-a) % -b.constant)
        case ast.LShift() if b.is_constant and 0 <= b.constant < _SHIFTS:
            return a * 2**b.constant
        case ast.RShift() if b.is_constant and 0 <= b.constant < _SHIFTS:
            return a // 2**b.constant
        case _:
            return None


def affine_of_ast(node: ast.expr, text: str = "") -> Affine:
    """An `Affine` from a Python syntax tree. Raises `ParseError` with the column where it is not quasi-affine."""

    def fail(why: str, hint: str = "") -> ParseError:
        at = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return ParseError(why, text=text, line=at[0], column=at[1], hint=hint)

    match node:
        case ast.Constant(value=int(value)) if not isinstance(node.value, bool):
            if value > _MOST:
                raise fail(f"a subscript has numbers up to {_MOST}")
            return Affine((), value)
        case ast.Name(id=name) if not is_scalar(name):
            return var(decode(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -affine_of_ast(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return affine_of_ast(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = affine_of_ast(left, text), affine_of_ast(right, text)
            positive = not isinstance(op, ast.FloorDiv | ast.Mod) or (b.is_constant and b.constant > 0)
            if positive and (found := affine_operation(a, op, b)) is not None:
                return found
            hint = "// for whole numbers" if isinstance(op, ast.Div) else ""
            raise fail("subscripts are affine: + and -, * by a literal, // and % by a positive literal", hint)
        case ast.Call(func=ast.Name(id="max" | "min" as name)):
            raise fail(f"a subscript has no {name}", "a choice of elements: x[i-1] if i >= 1 else x[0]")
        case ast.Slice():
            raise fail("a slice has no meaning in a body", "an index with a name, as in y[i] += A[i, j]")
        case _:
            raise fail("not an affine subscript")


@dataclass(frozen=True)
class Constraint:
    """expr >= 0, or expr == 0 where `equality`."""

    expr: Affine
    equality: bool = False

    def __str__(self) -> str:
        difference = unequal_parts(self)
        expr, sign = (self.expr, "==" if self.equality else ">=") if difference is None else (difference, "!=")
        negative = Affine(tuple((a, -c) for a, c in expr.terms if c < 0), max(-expr.constant, 0))
        positive = Affine(tuple((a, c) for a, c in expr.terms if c > 0), max(expr.constant, 0))
        return f"{positive} {sign} {negative}"

    @property
    def isl_text(self) -> str:
        return f"{self.expr.isl_text} {'=' if self.equality else '>='} 0"

    def substitute(self, values: Mapping[str, Affine | int]) -> Constraint:
        return Constraint(self.expr.substitute(values), self.equality)

    def holds(self, values: Mapping[str, IntValue]) -> npt.NDArray[np.bool_] | bool:
        """Whether it holds, elementwise where names are arrays."""
        value = self.expr.evaluate(values)
        return value == 0 if self.equality else value >= 0


_BEYOND: Final = 2**40  # more than any subscript, and what it is compared with, differ by


def unequal(a: Affine, b: Affine) -> Constraint:
    """a != b as one constraint, though it is two half-planes; `unequal_parts` gives a - b back."""
    return Constraint((a - b) % _BEYOND - 1)


def unequal_parts(constraint: Constraint) -> Affine | None:
    """a - b, or b - a, of `unequal(a, b)`; None for another constraint."""
    match constraint:
        case Constraint(Affine(((Mod(argument, divisor), 1),), -1), False) if divisor == _BEYOND:
            return Affine(tuple((t, _least(c)) for t, c in argument.terms), _least(argument.constant))
        case _:
            return None


def _least(number: int) -> int:
    """Of all that are the same up to multiples of `_BEYOND` the one nearest to 0."""
    return (number + _BEYOND // 2) % _BEYOND - _BEYOND // 2
