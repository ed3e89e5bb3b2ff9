"""Locals that name a place stand as what they are where subscripts and ranges have them.

    right = (i + 1) % N                ->        y[i] = x[(i + 1) % N] - x[max(i - 1, 0)]
    left = max(i - 1, 0)
    y[i] = x[right] - x[left]
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import deepcopy
from typing import Final

from poly.frontend.nest_scope import Scope

_CHOOSING: Final = frozenset(("max", "min", "abs"))
_MOST: Final = 64  # syntax nodes: each max doubles what is read
_PARTS: Final = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Call, ast.IfExp, ast.Compare, ast.BoolOp, ast.operator,
    ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def place_of(value: ast.expr, scope: Scope) -> ast.expr | None:
    """A value as subscripts have it, if it is made of whole numbers that stay the same: loop variables, sizes, names of
    literals, and of other places, which stand as what they are.
    """
    if not is_whole(value, scope):
        return None
    found = _Places(scope.places, inside=True).visit(deepcopy(value))
    return found if sum(1 for _ in ast.walk(found)) <= _MOST and not _goes_around_twice(found, scope) else None


def _goes_around_twice(value: ast.expr, scope: Scope) -> bool:
    """`((i + 1) % N + 1) % N`, of which no subscript is made."""
    around = [n for n in ast.walk(value) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
    far = [n for n in around if not scope.is_affine(n)]
    return any(inner in far for outer in far for inner in ast.walk(outer.left))


def is_whole(value: ast.expr, scope: Scope) -> bool:
    """Whether a value is made of loop variables, sizes, names of integers, and of places, by functions that choose."""
    nodes = [*ast.walk(value)]
    functions = {n.func for n in nodes if isinstance(n, ast.Call)}
    names = {n.id for n in nodes if isinstance(n, ast.Name) and n not in functions}
    plain = all(isinstance(n, _PARTS) and not isinstance(n, ast.Div) for n in nodes)
    chooses = all(isinstance(f, ast.Name) and f.id in _CHOOSING for f in functions)
    return bool(names) and plain and chooses and all(_names_whole(n, scope) for n in names)


def _names_whole(name: str, scope: Scope) -> bool:
    return name in scope.indices or name in scope.sizes or name in scope.places or type(scope.literals.get(name)) is int


def put_in_place(node: ast.stmt, places: Mapping[str, ast.expr]) -> ast.stmt:
    """A statement with places in its subscripts and ranges instead of their names; what stands in a loop or under a
    condition is left as it is.
    """
    head = node.iter if isinstance(node, ast.For) else node.test if isinstance(node, ast.If) else node
    if not any(isinstance(n, ast.Name) and n.id in places for n in ast.walk(head)):
        return node
    put = _Places(places)
    match node:
        case ast.For(iter=ast.Call(func=function, args=arguments, keywords=keywords) as ends):
            within = _Places(places, inside=True)
            call = ast.Call(function, [within.visit(deepcopy(a)) for a in arguments], keywords)
            made = ast.For(node.target, ast.copy_location(call, ends), node.body, node.orelse)
        case ast.For():
            return node
        case ast.If(test=test, body=body, orelse=orelse):
            made = ast.If(put.visit(deepcopy(test)), body, orelse)
        case _:
            return put.visit(deepcopy(node))
    return ast.copy_location(made, node)


class _Places(ast.NodeTransformer):
    def __init__(self, places: Mapping[str, ast.expr], inside: bool = False) -> None:
        self.places, self.inside = places, inside

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value = self.visit(node.value)
        if isinstance(node.ctx, ast.Store):  # what is written has no choice of places: the local itself says which
            return node
        node.slice = _Places(self.places, inside=True).visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not self.inside or node.id not in self.places or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(deepcopy(self.places[node.id]), node)
