"""Conditions in Python's syntax as affine constraints; who asks says which affine value an expression has."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Final

from poly.affine import Affine, Constraint, affine_of_ast, unequal
from poly.errors import ParseError

AffineValue = Callable[[ast.expr], Affine | None]  # None: the expression is not affine

COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
SIGNS: Final = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # isl's
_OPPOSITE: Final = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_CONSTRAINT: Final[dict[str, Callable[[Affine, Affine], Constraint]]] = {
    "le": lambda a, b: Constraint(b - a),
    "lt": lambda a, b: Constraint(b - a - 1),
    "ge": lambda a, b: Constraint(a - b),
    "gt": lambda a, b: Constraint(a - b - 1),
    "eq": lambda a, b: Constraint(a - b, equality=True),
    "ne": unequal,
}


def affine_or_none(node: ast.expr) -> Affine | None:
    """`affine_of_ast`, None where it raises."""
    try:
        return affine_of_ast(node)
    except ParseError:
        return None


def conjunction(
    node: ast.expr, affine: AffineValue, negated: bool = False, with_unequal: bool = False
) -> tuple[Constraint, ...] | None:
    """The constraints that a condition of affine comparisons is; None where it is something else, or any of several,
    as `a != b` is too, but in complete texts (`with_unequal`), which have it as the one constraint that it was.
    """
    match node:
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.Or) == negated:
            parts = [conjunction(v, affine, negated, with_unequal) for v in values]
            return None if None in parts else tuple(c for part in parts for c in part or ())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return conjunction(operand, affine, not negated, with_unequal)
        case ast.Compare(left=left, ops=ops, comparators=rest) if not negated or len(ops) == 1:
            names = [COMPARE.get(type(op), "") for op in ops]
            names = [_OPPOSITE.get(n, "") if negated else n for n in names]
            return None if "ne" in names and not with_unequal else _compared([left, *rest], names, affine)
        case _:
            return None


def necessary(node: ast.expr, affine: AffineValue, negated: bool = False) -> tuple[Constraint, ...]:
    """Constraints that hold wherever a condition, of data too, does; or where it does not."""
    match node:
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.Or) == negated:
            return tuple(c for v in values for c in necessary(v, affine, negated))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return necessary(operand, affine, not negated)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]) if (
            isinstance(op, ast.Eq) == negated
        ):
            a, b = affine(left), affine(right)
            return () if a is None or b is None else (unequal(a, b),)
        case ast.Compare(ops=[_]) if (each := _of_each(node, negated)) is not None:
            return tuple(c for e in each for c in necessary(e, affine, negated))
        case _:
            return conjunction(node, affine, negated) or ()


def _of_each(node: ast.Compare, negated: bool) -> list[ast.Compare] | None:
    """Comparisons that all hold where one of a largest or smallest value does: `max(a, b) < c` is `a < c` and `b < c`.
    None where neither side is such a value.
    """
    left, op, right = node.left, node.ops[0], node.comparators[0]
    if not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return None
    below = isinstance(op, ast.Lt | ast.LtE) != negated
    smaller, larger = _values(left, below), _values(right, not below)
    if len(smaller) * len(larger) == 1:
        return None
    return [ast.copy_location(ast.Compare(a, [op], [b]), node) for a in smaller for b in larger]


def _values(side: ast.expr, smaller: bool) -> list[ast.expr]:
    """What must be the smaller (else the larger) side of a comparison for this one to be."""
    match side:
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, _, *_] as each, keywords=[]):
            return each if (name == "max") == smaller else [side]
        case ast.Call(func=ast.Name(id="abs"), args=[value], keywords=[]) if smaller:
            return [value, ast.copy_location(ast.UnaryOp(ast.USub(), value), value)]
        case _:
            return [side]


def _compared(sides: Sequence[ast.expr], names: Sequence[str], affine: AffineValue) -> tuple[Constraint, ...] | None:
    found = [affine(side) for side in sides]
    values = [v for v in found if v is not None]
    if len(values) < len(found) or not all(name in _CONSTRAINT for name in names):
        return None
    return tuple(_CONSTRAINT[name](a, b) for name, a, b in zip(names, values, values[1:], strict=False))
