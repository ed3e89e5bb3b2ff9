"""Comparisons of several values as those of two, of which Python leaves the later ones unread.

    0 <= b[i] < c[b[i]]    ->    0 <= b[i] and b[i] < c[b[i]]
    i in (0, N)            ->    i == 0 or i == N
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from copy import deepcopy


def of_two_values(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """A body in which `in` of some values is == and or, and chains that read elements or locals are joined by and."""
    assigned = [t for s in body for n in ast.walk(s) if isinstance(n, ast.Assign) for t in n.targets]
    comparisons = _Comparisons(frozenset(t.id for t in assigned if isinstance(t, ast.Name)))
    return [comparisons.visit(deepcopy(s)) for s in body]


class _Comparisons(ast.NodeTransformer):
    def __init__(self, locals: frozenset[str]) -> None:
        self.locals = locals

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        late = [n for c in node.comparators[1:] for n in ast.walk(c)]  # what Python may leave unread
        data = any(isinstance(n, ast.Subscript) or isinstance(n, ast.Name) and n.id in self.locals for n in late)
        if not data and not any(map(_is_among, node.ops)):
            return node
        sides = [node.left, *node.comparators]
        return _joined(node, ast.And(), [
            _of_two(node, a, op, b) for a, op, b in zip(sides, node.ops, sides[1:], strict=False)
        ])  # fmt: skip


def _is_among(op: ast.cmpop) -> bool:
    return isinstance(op, ast.In | ast.NotIn)


def _of_two(place: ast.expr, a: ast.expr, op: ast.cmpop, b: ast.expr) -> ast.expr:
    if _is_among(op) and isinstance(b, ast.Tuple | ast.List | ast.Set) and b.elts:
        same = isinstance(op, ast.In)
        each, word = (ast.Eq(), ast.Or()) if same else (ast.NotEq(), ast.And())
        return _joined(place, word, [_of_two(place, a, each, e) for e in b.elts])
    return ast.copy_location(ast.Compare(deepcopy(a), [op], [deepcopy(b)]), place)


def _joined(place: ast.expr, word: ast.boolop, parts: Sequence[ast.expr]) -> ast.expr:
    return parts[0] if len(parts) == 1 else ast.copy_location(ast.BoolOp(word, [*parts]), place)
