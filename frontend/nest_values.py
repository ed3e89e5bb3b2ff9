"""Python expressions of a nest as values.

What a value means is Python's on numpy arrays: `/` is true division, an integer variable of a loop takes the dtype of
what it is combined with. Bodies come out without conversions; `poly.frontend.nest_types` puts those in.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from poly.affine import Constraint
from poly.chosen_elements import choice, chosen_element
from poly.conditions import COMPARE, conjunction, necessary
from poly.document import counted
from poly.dtypes import DTYPES, dtype_name
from poly.errors import ParseError, PolyError
from poly.expr import Apply, Cast, Const, Expr, IndexValue, Read, apply
from poly.frontend import nest_hints as hints
from poly.frontend.nest_literals import folded
from poly.frontend.nest_scope import Scope
from poly.frontend.nest_signature import last_name
from poly.function_forms import FORMS, MOST_WRITTEN_OUT, NUMPYS_OPERATORS, wanted
from poly.program import Access, ReadIndex, Subscript
from poly.text_body import exceeds, written_out

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.BitAnd: "bit_and",
    ast.BitOr: "bit_or", ast.BitXor: "bit_xor", ast.FloorDiv: "floor_div", ast.Mod: "mod",
    ast.LShift: "shift_left", ast.RShift: "shift_right",
}  # fmt: skip
_NUMBERS: Final = {"fmax": "gt", "fmin": "lt"}  # of two numbers as max and min, else the one that is none NaN
_TRUTHS: Final = frozenset(("and", "or", "not", *COMPARE.values()))
_CASTS: Final = {"float": "f64", "int": "i64", "bool": "bool"}


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
            case ast.Subscript() if (chosen := self.chosen(node)) is not None:
                return self._choice(chosen, guard)
            case ast.Subscript():
                return self._read(node, self.subscripted(node, guard), guard)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._operation(node, _ARITHMETIC[type(op)], self.value(left, guard), self.value(right, guard))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return apply("not", self.truth(operand, guard))
            case ast.UnaryOp(op=op, operand=operand):
                return self._unary(op, self.value(operand, guard))
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
        return self.scope.affine(node)

    def chosen(self, node: ast.Subscript) -> ast.IfExp | None:
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

    def _operation(self, node: ast.expr, name: str, a: Expr, b: Expr) -> Expr:
        if name == "pow" and isinstance(b, Const) and b.value == 2 and not isinstance(b.value, bool):
            return self._bounded(node, apply("mul", a, a))
        return apply(name, a, b)

    def _unary(self, op: ast.unaryop, operand: Expr) -> Expr:
        match op:
            case ast.USub() if isinstance(operand, Const):
                return Const(-operand.value)
            case ast.USub():
                return apply("neg", operand)
            case ast.UAdd():
                return operand
            case _:  # ast.Invert, of integers and truths
                return apply("bit_xor", operand, Const(-1))

    def _comparison(self, node: ast.Compare, sides: Sequence[Expr], ops: Sequence[ast.cmpop]) -> Expr:
        parts: list[Expr] = []
        for a, op, b in zip(sides, ops, sides[1:], strict=False):
            if type(op) not in COMPARE:
                raise self.scope.source.error(node, "values are compared with == != < <= > >=", "== in place of is")
            parts.append(folded(apply(COMPARE[type(op)], a, b)))
        return _folded("and", parts)

    def _choice(self, node: ast.IfExp, guard: tuple[Constraint, ...]) -> Expr:
        """A conditional: where its condition is affine, each branch reads only where it is taken."""
        if (known := decided(self.scope, node.test)) is not None:
            return self.value(node.body if known else node.orelse, guard)
        then = conjunction(node.test, self.scope.affine_or_none)
        plain = isinstance(node.body, ast.Subscript) and self.chosen(node.body) is None
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
        spelled = _cast_of(name) or NUMPYS_OPERATORS.get(name, name)
        if name in _NUMBERS and len(nodes) == 2:
            return _of_numbers(_NUMBERS[name], self.value(nodes[0], guard), self.value(nodes[1], guard))
        if (parameters := wanted(spelled)) is None:
            raise self.scope.source.error(node, f"unknown function {name!r}", hints.function(name))
        arguments = [self.value(a, guard) for a in nodes]
        if spelled in ("max", "min") and len(arguments) >= 2:
            return _folded(spelled, arguments)
        if len(parameters) != len(arguments):
            text = f"{name} takes {counted(len(parameters), 'argument')}, not {len(arguments)}"
            raise self.scope.source.error(node, text, f"{name}({', '.join(parameters)})")
        if spelled in DTYPES:
            return Cast(spelled, arguments[0])
        if spelled == "pow":
            return self._operation(node, spelled, *arguments)
        if spelled not in FORMS:
            return Apply(spelled, tuple(arguments))
        found = written_out(spelled, arguments, folded)
        if found is None:
            raise self._too_long(node)
        return found

    def _bounded(self, node: ast.expr, body: Expr) -> Expr:
        """A body that has an argument several times, which doubles with each such operation in another."""
        if exceeds(body):
            raise self._too_long(node)
        return body

    def _too_long(self, node: ast.expr) -> ParseError:
        text = f"{ast.unparse(node)[:40]}... is more than {MOST_WRITTEN_OUT} operations written out"
        return self.scope.source.error(node, text, "a local for what it is of: t = ..., and t in its place")

    def _unknown(self, node: ast.expr) -> ParseError:
        return self.scope.source.error(node, f"{ast.unparse(node)} has no meaning in a nest", hints.value(node))


def _mentions_index(node: ast.expr, scope: Scope) -> bool:
    """True where an expression is made of loop variables or sizes, not of numbers only."""
    if isinstance(node, ast.Call | ast.Subscript):
        return True  # len(A), A.shape[0]
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return any(n in scope.indices or n in scope.sizes for n in names)


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


def decided(scope: Scope, node: ast.expr) -> bool | None:
    """Whether a condition on literals, and names of such, holds; None for any other."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if names and names.isdisjoint(scope.literals) or any(n in scope.indices or n in scope.shapes for n in names):
        return None
    try:
        value = Values(scope).truth(node)
    except ParseError:
        return None
    return bool(value.value) if isinstance(value, Const) else None
