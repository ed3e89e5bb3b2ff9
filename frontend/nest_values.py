"""Python expressions of a nest: affine ones, conditions on iterators and sizes, and values.

What a value means is Python's on numpy arrays: `/` is true division, an integer variable of a loop takes the dtype of
what it is combined with. Bodies come out without conversions; `poly.frontend.nest_types` puts those in.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isfinite
from typing import Final

from poly.affine import Affine, Constraint
from poly.chosen_elements import choice, chosen_element
from poly.conditions import COMPARE, SIGNS, conjunction, necessary
from poly.document import counted
from poly.dtypes import DTYPES, dtype_name
from poly.errors import ParseError, PolyError
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, apply
from poly.frontend import nest_hints as hints
from poly.frontend.comparisons import MIRRORED
from poly.frontend.nest_literals import folded
from poly.frontend.nest_signature import last_name
from poly.frontend.nest_source import Source
from poly.program import Access, ReadIndex, Subscript

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.BitAnd: "bit_and",
    ast.BitOr: "bit_or", ast.BitXor: "bit_xor", ast.FloorDiv: "floor_div", ast.Mod: "mod",
}  # fmt: skip
_SAME: Final = {
    "fabs": "abs", "absolute": "abs", "maximum": "max", "minimum": "min",
    "floor_divide": "floor_div", "remainder": "mod",
    "where": "select", "power": "pow", "rint": "round", "logical_and": "and", "logical_or": "or", "logical_not": "not",
    "bitwise_and": "bit_and", "bitwise_or": "bit_or", "bitwise_xor": "bit_xor",
}  # fmt: skip
_NUMBERS: Final = {"fmax": "gt", "fmin": "lt"}  # of two numbers as max and min, else the one that is none NaN
_TRUTHS: Final = frozenset(("and", "or", "not", *COMPARE.values()))
_CASTS: Final = {"float": "f64", "int": "i64", "bool": "bool"}


@dataclass(frozen=True)
class Scope:
    """What the names mean at one place of the function.

    `indices`: loop variables and integer names as affine expressions of iterators and sizes; `literals`: names of
    numbers, from outside the function or of locals that are set once; `shapes`: of the arrays, scalars included;
    `places`: what stands for locals in subscripts and ranges.
    """

    source: Source
    sizes: tuple[str, ...]
    indices: Mapping[str, Affine]
    literals: Mapping[str, int | float | bool]
    shapes: Mapping[str, tuple[Affine, ...]]
    places: Mapping[str, ast.expr] = field(default_factory=dict)

    def affine(self, node: ast.expr) -> Affine:
        """The expression as an affine one. Raises `ParseError` that says which part is not."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(node.value, bool):
                return Affine((), value)
            case ast.Name(id=name):
                return self._index(node, name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                inner = self.affine(operand)
                return -inner if isinstance(op, ast.USub) else inner
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Div):
                    text = f"{ast.unparse(node)} is not affine: / makes a float"
                    raise self.source.error(node, text, hints.affine(node))
                return self._affine_operation(node, self.affine(left), op, self.affine(right))
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=d)):
                return self._extent(node, name, d)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
                return self._extent(node, name, 0)
            case _:
                text = f"{ast.unparse(node)} is not affine in loop variables and sizes"
                raise self.source.error(node, text, hints.affine(node))

    def _index(self, node: ast.Name, name: str) -> Affine:
        if name in self.indices:
            return self.indices[name]
        if name in self.sizes:
            return Affine.of(name)
        value = self.literals.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return Affine((), value)
        if name in self.shapes:
            raise self.source.error(
                node, f"{name} is data, not affine in loop variables and sizes",
                hint="subscripts, ranges and conditions are made of loop variables and sizes",
            )  # fmt: skip
        hint = f"inside of the loop over {name}, or {name}: int among the arguments"
        raise self.source.error(node, f"{name!r} is not a loop variable or a size here", hint)

    def _extent(self, node: ast.expr, name: str, dimension: object) -> Affine:
        shape = self.shapes.get(name, ())
        if not isinstance(dimension, int) or not -len(shape) <= dimension < len(shape):
            raise self.source.error(node, f"{name} has no dimension {dimension}", f"0 to {len(shape) - 1}")
        return shape[dimension]

    def _affine_operation(self, node: ast.BinOp, a: Affine, op: ast.operator, b: Affine) -> Affine:
        match op:
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
            case _:
                raise self.source.error(node, f"{ast.unparse(node)} is not affine", hints.affine(node))

    def affine_or_none(self, node: ast.expr) -> Affine | None:
        """`affine`, None where it raises."""
        try:
            return self.affine(node)
        except ParseError:
            return None

    def is_affine(self, node: ast.expr) -> bool:
        """True where `affine` does not raise."""
        return self.affine_or_none(node) is not None

    def is_condition(self, node: ast.expr) -> bool:
        """True where `condition` does not raise."""
        try:
            return bool(self.condition(node))
        except ParseError:
            return False

    def is_element(self, node: ast.expr) -> bool:
        """Whether a subscript is an element or a scalar."""
        match node:
            case ast.Name(id=name):
                return name in self.shapes and not self.shapes[name]
            case ast.Subscript():
                return not self.is_affine(node)
            case _:
                return False

    def bound(self, node: ast.expr) -> str:
        """An end of a range in isl's syntax: affine, or a max or min of such, and sums of these."""
        match node:
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others], keywords=[]) if others:
                text = self.bound(first)
                for other in others:
                    text = f"{name}({text}, {self.bound(other)})"
                return text
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not self.is_affine(node):
                return f"({self.bound(left)} {'+' if isinstance(op, ast.Add) else '-'} {self.bound(right)})"
            case _:
                read = next((n for n in ast.walk(node) if isinstance(n, ast.Subscript) and not self.is_affine(n)), None)
                if read is not None and last_name(read.value) in self.shapes:
                    raise self.source.error(read, f"{ast.unparse(read)} is data, a range ends at sizes", hints.RANGE)
                return f"({self.affine(node).isl_text})"

    def decided(self, node: ast.expr) -> bool | None:
        """Whether a condition on names of literals holds; None for any other."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if not any(n in self.literals for n in names) or any(n in self.indices or n in self.shapes for n in names):
            return None
        try:
            value = Values(self).truth(node)
        except ParseError:
            return None
        return bool(value.value) if isinstance(value, Const) else None

    def condition(self, node: ast.expr) -> str:
        """A condition on loop variables, sizes and literals in isl's syntax. Raises `ParseError`."""
        if (known := self.decided(node)) is not None:
            return "true" if known else "false"
        match node:
            case ast.Constant(value=bool(value)):
                return "true" if value else "false"
            case ast.BoolOp(op=op, values=values):
                word = " and " if isinstance(op, ast.And) else " or "
                return f"({word.join(self.condition(v) for v in values)})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(not {self.condition(operand)})"
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[ast.Tuple(elts=[_, *_] as parts)]
            ):
                found = " or ".join(self._compared(left, "eq", part) for part in parts)
                return f"({found})" if isinstance(op, ast.In) else f"(not ({found}))"
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                sides, parts = [left, *comparators], list[str]()
                for a, op, b in zip(sides, ops, sides[1:], strict=False):
                    if type(op) not in COMPARE:
                        raise self.source.error(node, "conditions compare with == != < <= > >=", "== in place of is")
                    parts.append(self._compared(a, COMPARE[type(op)], b))
                return f"({' and '.join(parts)})"
            case _:
                raise self.source.error(
                    node, f"{ast.unparse(node)} is not a condition on loop variables and sizes",
                    hint="compare affine expressions, combine them with and, or, not",
                )  # fmt: skip

    def _compared(self, a: ast.expr, name: str, b: ast.expr) -> str:
        """A comparison in isl's syntax, of a float with what is affine by the integer next to it."""
        if self._fraction(a) is not None:
            a, name, b = b, MIRRORED[name], a
        value = self._fraction(b)
        if value is None:
            return f"{self.bound(a)} {SIGNS[name]} {self.bound(b)}"
        side = self.bound(a)
        if not isfinite(value) or (name in ("eq", "ne") and value != int(value)):
            return "true" if OPERATORS[name].evaluate(0.0, value) else "false"
        return f"{side} {SIGNS[name]} {floor(value) if name in ('gt', 'le') else ceil(value)}"

    def _fraction(self, node: ast.expr) -> float | None:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=inner) if (value := self._fraction(inner)) is not None:
                return -value
            case ast.Constant(value=float(value)):
                return value
            case ast.Name() | ast.Attribute():
                value = self.literals.get(ast.unparse(node))
                return value if isinstance(value, float) else None
            case _:
                return None


@dataclass
class Values:
    """Reads a body; the accesses it meets, equal ones once, with the place where each is written, are in `reads`."""

    scope: Scope
    reads: list[Access] = field(default_factory=list)
    places: list[ast.expr] = field(default_factory=list)

    def value(self, node: ast.expr, guard: tuple[Constraint, ...] = ()) -> Expr:
        """A body without conversions; reads in it are done only where `guard` holds. Raises `ParseError`."""
        return folded(self._value(node, guard))

    def _value(self, node: ast.expr, guard: tuple[Constraint, ...]) -> Expr:
        if _mentions_index(node, self.scope) and self.scope.is_affine(node):
            return IndexValue(self.scope.affine(node))
        match node:
            case ast.Constant(value=bool(value) | int(value) | float(value)):
                return Const(value)
            case ast.Name(id=name):
                return self._named(node, name, guard)
            case ast.Attribute() if ast.unparse(node) in self.scope.literals:
                return Const(self.scope.literals[ast.unparse(node)])
            case ast.Subscript() if (chosen := self._chosen(node)) is not None:
                return self._choice(chosen, guard)
            case ast.Subscript():
                return self._read(node, self.subscripted(node, guard), guard)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._operation(_ARITHMETIC[type(op)], self.value(left, guard), self.value(right, guard))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return apply("not", self.truth(operand, guard))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(node, op, self.value(operand, guard))
            case ast.Compare(left=left, ops=ops, comparators=rest):
                return self._comparison(node, [self.value(e, guard) for e in (left, *rest)], ops)
            case ast.BoolOp(op=op):
                return _first_that_decides(isinstance(op, ast.And), self._operands(node, guard, self.value))
            case ast.IfExp():
                return self._choice(node, guard)
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))], keywords=[]):
                return self._float(node, text)
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._call(node, last_name(function), arguments, guard)
            case _:
                raise self._unknown(node)

    def _float(self, node: ast.expr, text: str) -> Expr:
        """`float("-inf")`."""
        try:
            return Const(float(text))
        except ValueError:
            raise self._unknown(node) from None

    def truth(self, node: ast.expr, guard: tuple[Constraint, ...] = ()) -> Expr:
        """A value of which only the truth counts: `and` and `or` need not give an operand there."""
        if isinstance(node, ast.BoolOp):
            name = "and" if isinstance(node.op, ast.And) else "or"
            return folded(_folded(name, self._operands(node, guard, self.truth)))
        return self.value(node, guard)

    def subscripted(self, node: ast.Subscript, guard: tuple[Constraint, ...] = ()) -> Access:
        """The element that `A[i, j]` names; `A[i][j]` is the same, `s[()]` an array of rank 0. `guard`: where it is
        read, and with it what its subscripts read.
        """
        groups: list[ast.expr] = [node.slice]
        base = node.value
        while isinstance(base, ast.Subscript):
            groups.insert(0, base.slice)
            base = base.value
        if not isinstance(base, ast.Name):
            raise self.scope.source.error(node, f"{ast.unparse(base)} is not an array of this nest", "A[i, j]")
        subscripts = [e for g in groups for e in (g.elts if isinstance(g, ast.Tuple) else [g])]
        shape = self.scope.shapes.get(base.id)
        if shape is None:
            hint = f'an argument {base.id}: f64[Array, "N"], or a local {base.id} = np.zeros(N)'
            raise self.scope.source.error(base, f"{base.id!r} is not an array of this nest", hint)
        for subscript in subscripts:
            if isinstance(subscript, ast.Slice):
                lower, upper = (ast.unparse(e) if e else "" for e in (subscript.lower, subscript.upper))
                extent = str(shape[0]) if shape else ""
                upper = f"{extent} - {upper[1:]}" if upper[:1] == "-" and extent else upper or extent
                span = ", ".join(e for e in (lower, upper) if e)
                hint = f"a loop over its elements: for k in range({span})"
                raise self.scope.source.error(node, f"a slice of {base.id}", hint)
        if len(subscripts) != len(shape):
            text = f"{base.id} has rank {len(shape)}, it is subscripted with {len(subscripts)}"
            wanted = ", ".join("ijklmnop"[: len(shape)]) or "()"
            raise self.scope.source.error(node, text, f"{base.id}[{wanted}]")
        return Access(base.id, tuple(self._subscript(s, guard) for s in subscripts))

    def _subscript(self, node: ast.expr, guard: tuple[Constraint, ...]) -> Subscript:
        """An affine subscript, or an element or a scalar of integers whose value it is."""
        if self.scope.is_element(node) and isinstance(read := self.value(node, guard), Read):
            return ReadIndex(read.position)
        if _reads_elements(node, self.scope):
            raise self.scope.source.error(node, *hints.place(node))
        return self.scope.affine(node)

    def _chosen(self, node: ast.Subscript) -> ast.IfExp | None:
        """The choice that a read with `max`, `min` or `abs` in a subscript is, or with `% N` where N elements are."""
        found = chosen_element(node, self.scope.is_affine)
        if found is not None or not isinstance(node.value, ast.Name):
            return found
        subscripts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for subscript, extent in zip(subscripts, self.scope.shapes.get(node.value.id, ()), strict=False):
            match subscript:
                case ast.BinOp(left=left, op=ast.Mod(), right=right) if (
                    self.scope.is_affine(left) and self.scope.is_affine(right) and self.scope.affine(right) == extent
                ) and not extent.is_constant:
                    return self._around(node, subscript, left, right)
                case _:
                    continue
        return None

    def _around(self, node: ast.Subscript, part: ast.expr, index: ast.expr, extent: ast.expr) -> ast.IfExp:
        """`x[e % N]` of N elements, for e from -N to 2N - 1: beyond, x[e + N] or x[e - N] is out of bounds."""
        less, more = (ast.BinOp(index, op, extent) for op in (ast.Sub(), ast.Add()))
        below = choice(ast.Compare(index, [ast.Lt()], [ast.Constant(0)]), (node, part), more, index)
        above = choice(ast.Compare(index, [ast.GtE()], [extent]), (node, part), less, index)
        return ast.fix_missing_locations(ast.copy_location(ast.IfExp(above.test, above.body, below), node))

    def _named(self, node: ast.Name, name: str, guard: tuple[Constraint, ...]) -> Expr:
        shape = self.scope.shapes.get(name)
        if shape is not None:
            if shape:
                raise self.scope.source.error(
                    node, f"{name} has rank {len(shape)}: subscript it",
                    hint=f"single elements: {name}[{', '.join('ijklmnop'[: len(shape)])}] in loops over them",
                )  # fmt: skip
            return self._read(node, Access(name, ()), guard)
        if name in self.scope.literals:
            return Const(self.scope.literals[name])
        raise self.scope.source.error(node, f"{name!r} has no value here", f"assign {name} before it is read")

    def _read(self, node: ast.expr, access: Access, guard: tuple[Constraint, ...]) -> Expr:
        if guard:
            access = Access(access.tensor, access.index, guard, Const(0))
        return Read(self._position(node, access))

    def _position(self, node: ast.expr, access: Access) -> int:
        if access not in self.reads:
            self.reads.append(access)
            self.places.append(node)
        return self.reads.index(access)

    def _operation(self, name: str, a: Expr, b: Expr) -> Expr:
        if name == "pow" and isinstance(b, Const) and b.value == 2 and not isinstance(b.value, bool):
            return apply("mul", a, a)
        return apply(name, a, b)

    def _unary(self, node: ast.UnaryOp, op: ast.unaryop, operand: Expr) -> Expr:
        match op:
            case ast.USub() if isinstance(operand, Const):
                return Const(-operand.value)
            case ast.USub():
                return apply("neg", operand)
            case ast.UAdd():
                return operand
            case _:
                raise self._unknown(node)

    def _comparison(self, node: ast.Compare, sides: Sequence[Expr], ops: Sequence[ast.cmpop]) -> Expr:
        parts: list[Expr] = []
        for a, op, b in zip(sides, ops, sides[1:], strict=False):
            if type(op) not in COMPARE:
                raise self.scope.source.error(node, "values are compared with == != < <= > >=", "== in place of is")
            parts.append(folded(apply(COMPARE[type(op)], a, b)))
        return _folded("and", parts)

    def _choice(self, node: ast.IfExp, guard: tuple[Constraint, ...]) -> Expr:
        """A conditional: where its condition is affine, each branch reads only where it is taken."""
        if (known := self.scope.decided(node.test)) is not None:
            return self.value(node.body if known else node.orelse, guard)
        then = conjunction(node.test, self.scope.affine_or_none)
        plain = isinstance(node.body, ast.Subscript) and self._chosen(node.body) is None
        if then and plain and isinstance(node.orelse, ast.Constant) and isinstance(node.body, ast.Subscript):
            fill = self.value(node.orelse)
            if isinstance(fill, Const):
                access = self.subscripted(node.body, (*guard, *then))
                return Read(self._position(node, Access(access.tensor, access.index, (*guard, *then), fill)))
        test = self.truth(node.test, guard)
        affine = self.scope.affine_or_none
        first = self.value(node.body, (*guard, *necessary(node.test, affine)))
        second = self.value(node.orelse, (*guard, *necessary(node.test, affine, negated=True)))
        return apply("select", test, first, second)

    def _operands(self, node: ast.BoolOp, guard: tuple[Constraint, ...], read: Callable[..., Expr]) -> list[Expr]:
        """The operands of `and` and `or`; what those before decide leaves the next unread."""
        found: list[Expr] = []
        for value in node.values:
            found.append(read(value, guard))
            guard = (*guard, *necessary(value, self.scope.affine_or_none, negated=isinstance(node.op, ast.Or)))
        return found

    def _call(self, node: ast.Call, name: str, nodes: Sequence[ast.expr], guard: tuple[Constraint, ...]) -> Expr:
        cast = _cast_of(name)
        spelled = _SAME.get(name, name)
        if name in _NUMBERS and len(nodes) == 2:
            return _of_numbers(_NUMBERS[name], self.value(nodes[0], guard), self.value(nodes[1], guard))
        if not (cast or spelled in OPERATORS or spelled in ("max", "min", "pow")):
            raise self.scope.source.error(node, f"unknown function {name!r}", hints.function(name))
        arguments = [self.value(a, guard) for a in nodes]
        if cast is not None and len(arguments) == 1:
            return Cast(cast, arguments[0])
        name = spelled
        if name in ("max", "min") and len(arguments) >= 2:
            return _folded(name, arguments)
        if name == "pow" and len(arguments) == 2:
            return self._operation(name, *arguments)
        arity = 1 if cast else OPERATORS[name].arity
        if arity != len(arguments):
            written = last_name(node.func)
            text = f"{written} takes {counted(arity, 'argument')}, not {len(arguments)}"
            raise self.scope.source.error(node, text, f"{written}({', '.join('xyz'[:arity])})")
        return Apply(name, tuple(arguments))

    def _unknown(self, node: ast.expr) -> ParseError:
        return self.scope.source.error(node, f"{ast.unparse(node)} has no meaning in a nest", hints.value(node))


def _mentions_index(node: ast.expr, scope: Scope) -> bool:
    """True where an expression is made of loop variables or sizes, not of numbers only."""
    if isinstance(node, ast.Call | ast.Subscript):
        return True  # len(A), A.shape[0]
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return any(n in scope.indices or n in scope.sizes for n in names)


def _reads_elements(node: ast.expr, scope: Scope) -> bool:
    """Whether a subscript that is not affine is computed from what arrays hold."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return not names.isdisjoint(scope.shapes) and not scope.is_affine(node)


def _folded(name: str, values: Sequence[Expr]) -> Expr:
    result = values[0]
    for value in values[1:]:
        result = apply(name, result, value)
    return result


def _first_that_decides(every: bool, values: Sequence[Expr]) -> Expr:
    """`a and b`, `a or b` of values: one of the operands, as in Python; a truth where all of them are."""
    if all(_is_truth(v) for v in values):
        return _folded("and" if every else "or", values)
    result = values[-1]
    for value in reversed(values[:-1]):
        result = apply("select", value, result, value) if every else apply("select", value, value, result)
    return result


def _is_truth(value: Expr) -> bool:
    return isinstance(value, Apply) and value.operator in _TRUTHS or (
        isinstance(value, Const) and isinstance(value.value, bool)
    )


def _of_numbers(sign: str, a: Expr, b: Expr) -> Expr:
    """`np.fmax`, `np.fmin`: NaN only where both are."""
    return apply("select", apply("ne", a, a), b, apply("select", apply(sign, b, a), b, a))


def _cast_of(name: str) -> str | None:
    """The dtype of `f32(...)`, `np.float32(...)`, `float(...)`."""
    if name in _CASTS:
        return _CASTS[name]
    return dtype_of_name(name)


def dtype_of_name(name: str) -> str | None:
    """The dtype that a name stands for, ours or numpy's; None where it is none."""
    if name in DTYPES:
        return name
    if name in _CASTS:
        return _CASTS[name]
    try:
        return dtype_name(name) if name.rstrip("0123456789") in ("float", "int", "uint", "bool", "bool_") else None
    except (TypeError, PolyError):
        return None
