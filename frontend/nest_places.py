"""Locals that name a place stand as what they are where subscripts and ranges have them.

    right = (i + 1) % N                ->        y[i] = x[(i + 1) % N] - x[max(i - 1, 0)]
    left = max(i - 1, 0)
    y[i] = x[right] - x[left]
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Final

_CHOOSING: Final = frozenset(("max", "min", "abs"))
_PARTS: Final = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call, ast.IfExp, ast.Compare, ast.BoolOp, ast.operator,
    ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def put_in_place(name: str, value: ast.expr, rest: Sequence[ast.stmt], is_whole: Callable[[str], bool]) -> None:
    """Write a value into the subscripts and ranges of the statements behind it, in place of its name, if it is made of
    whole numbers that stay the same there (`is_whole`: loop variables and sizes).
    """
    functions = {n.func for n in ast.walk(value) if isinstance(n, ast.Call)}
    names = {n for n in ast.walk(value) if isinstance(n, ast.Name)}
    plain = all(isinstance(n, _PARTS) for n in ast.walk(value))
    chooses = all(isinstance(f, ast.Name) and f.id in _CHOOSING for f in functions)
    if plain and chooses and names > functions and all(is_whole(n.id) for n in names - functions):
        for s in rest:
            _Places(name, value).visit(s)


class _Places(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr, inside: bool = False) -> None:
        self.name, self.value, self.inside = name, value, inside

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.visit(node.value)
        node.slice = _Places(self.name, self.value, inside=True).visit(node.slice)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        if isinstance(node.iter, ast.Call):
            within = _Places(self.name, self.value, inside=True)
            node.iter.args = [within.visit(a) for a in node.iter.args]
        for s in node.body:
            self.visit(s)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not self.inside or node.id != self.name or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(deepcopy(self.value), node)
