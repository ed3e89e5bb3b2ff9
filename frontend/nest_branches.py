"""Branches on data as choices between values, which have lanes: every iteration runs the same statements.

    if x[i] > most:                 most = x[i] if x[i] > most else most
        most = x[i]         ->

Several statements read one truth, found before them (if-conversion: Allen, Kennedy, Porterfield and Warren 1983).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

# What leaves a target as it is, but for the sign of 0.
_NOTHING: Final[Mapping[type[ast.operator], int]] = {ast.Add: 0, ast.Sub: 0, ast.Mult: 1}


def as_choices(node: ast.If, name: str, exact: bool = False) -> list[ast.stmt] | None:
    """The statements of an `if` without it; None where its branches hold more than assignments to elements and scalars.

    `name`: of a local for the truth, assigned first where there are several. `exact`: targets keep every bit.
    """
    branches = [*((s, True) for s in node.body), *((s, False) for s in node.orelse)]
    branches = [(s, taken) for s, taken in branches if not isinstance(s, ast.Pass)]
    if not branches or any(isinstance(n, ast.In | ast.NotIn | ast.Is | ast.IsNot) for n in ast.walk(node.test)):
        return None
    test: ast.expr = node.test if len(branches) == 1 else ast.Name(name, ast.Load())
    found: list[ast.stmt] = []
    if len(branches) > 1:
        found.append(_like(node, ast.Assign([ast.Name(name, ast.Store())], node.test)))
    for s, taken in branches:
        chosen = _chosen(s, test if taken else ast.UnaryOp(ast.Not(), test), exact)
        if chosen is None:
            return None
        found.append(_like(s, chosen))
    return found


def _chosen(s: ast.stmt, test: ast.expr, exact: bool) -> ast.stmt | None:
    match s:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            return ast.Assign([target], ast.IfExp(test, value, _read(target)))
        case ast.AugAssign(target=ast.Name() | ast.Subscript() as target, op=op, value=value):
            if type(op) in _NOTHING and not exact:
                return ast.AugAssign(target, op, ast.IfExp(test, value, ast.Constant(_NOTHING[type(op)])))
            return ast.Assign([target], ast.IfExp(test, ast.BinOp(_read(target), op, value), _read(target)))
        case _:
            return None


def _read(target: ast.Name | ast.Subscript) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    return ast.Subscript(target.value, target.slice, ast.Load())


def _like(place: ast.stmt, made: ast.stmt) -> ast.stmt:
    """A statement with positions in the text, those of the one it stands for where it has none."""
    return ast.fix_missing_locations(ast.copy_location(made, place))
