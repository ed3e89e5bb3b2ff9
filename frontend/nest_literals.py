"""Expressions of literals in a nest are what Python makes of them: `1 / 2` is 0.5 also among integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final

from poly.expr import OPERATORS, Apply, Const, Expr, walk

Number = bool | int | float
_PYTHON: Final[Mapping[str, Callable[..., object]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "floor_div": operator.floordiv, "mod": operator.mod,
    "neg": operator.neg, "abs": abs, "max": max, "min": min, "bit_and": operator.and_, "bit_or": operator.or_,
    "bit_xor": operator.xor, "shift_left": operator.lshift, "shift_right": operator.rshift,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "not": operator.not_, "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b), "select": lambda c, a, b: a if c else b,
}  # fmt: skip


def folded(body: Expr) -> Expr:
    """An operator whose arguments are all free literals as the one that Python gives, where it gives a number."""
    if not (isinstance(body, Apply) and body.operator in _PYTHON):
        return body
    values = [a.value for a in body.arguments if isinstance(a, Const) and a.dtype is None]
    if len(values) < len(body.arguments):
        return body
    try:
        found = _PYTHON[body.operator](*values)
    except (ArithmeticError, TypeError, ValueError):
        return body
    return Const(found) if isinstance(found, Number) else body


def dtype_of_literals(body: Expr) -> str:
    """What free literals are by themselves: f64 where one has a fraction, or a function of reals is applied."""
    for part in walk(body):
        if isinstance(part, Const) and isinstance(part.value, float):
            return "f64"
        if isinstance(part, Apply) and OPERATORS[part.operator].result == "float":
            return "f64"
    return "i64"
