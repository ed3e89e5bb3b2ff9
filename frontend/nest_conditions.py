"""Conditions of a nest on loop variables, sizes and literals, in isl's syntax."""

from __future__ import annotations

import ast
from math import ceil, floor, isfinite

from poly.conditions import COMPARE, SIGNS
from poly.errors import ParseError
from poly.expr import OPERATORS
from poly.frontend.comparisons import MIRRORED
from poly.frontend.nest_scope import Scope
from poly.frontend.nest_values import decided


def is_condition(scope: Scope, node: ast.expr) -> bool:
    """True where `isl_condition` does not raise."""
    try:
        return bool(isl_condition(scope, node))
    except ParseError:
        return False


def isl_condition(scope: Scope, node: ast.expr) -> str:
    """A condition on loop variables, sizes and literals in isl's syntax. Raises `ParseError`."""
    if (known := decided(scope, node)) is not None:
        return "true" if known else "false"
    match node:
        case ast.Constant(value=bool(value)):
            return "true" if value else "false"
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.And) else " or "
            return f"({word.join(isl_condition(scope, v) for v in values)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"(not {isl_condition(scope, operand)})"
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides, parts = [left, *comparators], list[str]()
            for a, op, b in zip(sides, ops, sides[1:], strict=False):
                if type(op) not in COMPARE:
                    raise scope.source.error(node, "conditions compare with == != < <= > >=", "== in place of is")
                known = decided(scope, ast.Compare(a, [op], [b]))
                parts.append(_compared(scope, a, COMPARE[type(op)], b) if known is None else str(known).lower())
            return f"({' and '.join(parts)})"
        case _:
            raise scope.source.error(
                node, f"{ast.unparse(node)} is not a condition on loop variables and sizes",
                hint="compare affine expressions, combine them with and, or, not",
            )  # fmt: skip


def _compared(scope: Scope, a: ast.expr, name: str, b: ast.expr) -> str:
    """A comparison in isl's syntax, of a float with what is affine by the integer next to it."""
    if _fraction(scope, a) is not None:
        a, name, b = b, MIRRORED[name], a
    value = _fraction(scope, b)
    if value is None:
        return f"{scope.bound(a)} {SIGNS[name]} {scope.bound(b)}"
    side = scope.bound(a)
    if not isfinite(value) or (name in ("eq", "ne") and value != int(value)):
        return "true" if OPERATORS[name].evaluate(0.0, value) else "false"
    return f"{side} {SIGNS[name]} {floor(value) if name in ('gt', 'le') else ceil(value)}"


def _fraction(scope: Scope, node: ast.expr) -> float | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner) if (value := _fraction(scope, inner)) is not None:
            return -value
        case ast.Constant(value=float(value)):
            return value
        case ast.Name() | ast.Attribute():
            value = scope.literals.get(ast.unparse(node))
            return value if isinstance(value, float) else None
        case _:
            return None
