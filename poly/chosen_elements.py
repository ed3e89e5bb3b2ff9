"""Subscripts that choose: `x[max(i - 1, 0)]` is `x[i - 1] if i - 1 >= 0 else x[0]`, each of them affine."""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import deepcopy
from typing import Final

_SIGNS: Final[dict[str, type[ast.cmpop]]] = {"max": ast.GtE, "min": ast.LtE}


def chosen_element(node: ast.Subscript, is_affine: Callable[[ast.expr], bool]) -> ast.IfExp | None:
    """The choice of elements that a `max`, `min` or `abs` of affine values in a subscript means, or one that is written
    there; None without one.
    """
    for call in ast.walk(node.slice):
        match call:
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[first, second, *rest], keywords=[]):
                test = ast.Compare(first, [_SIGNS[name]()], [second])
                chosen = [_of_all(call, [each, *rest]) for each in (first, second)]
            case ast.Call(func=ast.Name(id="abs"), args=[first], keywords=[]):
                second = ast.copy_location(ast.Constant(0), call)
                test = ast.Compare(first, [ast.GtE()], [second])
                chosen = [first, ast.copy_location(ast.UnaryOp(ast.USub(), first), call)]
            case ast.IfExp(test=test, body=first, orelse=second):
                chosen = [first, second]
            case _:
                continue
        if is_affine(first) and is_affine(second):
            return choice(test, (node, call), chosen[0], chosen[1])
    return None


def _of_all(call: ast.Call, arguments: list[ast.expr]) -> ast.expr:
    return arguments[0] if len(arguments) == 1 else ast.copy_location(ast.Call(call.func, arguments, []), call)


def choice(test: ast.expr, place: tuple[ast.Subscript, ast.expr], then: ast.expr, other: ast.expr) -> ast.IfExp:
    """`node[..then..] if test else node[..other..]`, for a node and what stands in its subscript in their place."""
    node, part = place
    first, second = (deepcopy(node, {id(part): new}) for new in (then, other))
    return ast.fix_missing_locations(ast.copy_location(ast.IfExp(test, first, second), node))
