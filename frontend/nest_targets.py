"""Assignments to several targets as one for each, in the order that Python makes them: all values, then the targets.

    a, b = b, a + b    ->        held = b; held2 = a + b; a = held; b = held2
    x[i] = t = y[i]    ->        held = y[i]; x[i] = held; t = held

A literal needs no name, nor do values that read nothing of what is set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import count


def one_target_each(body: Sequence[ast.stmt], taken: frozenset[str]) -> list[ast.stmt]:
    """A body whose assignments have one target each, where each target has a value. `taken`: names
    that mean something beside those in the body.
    """
    known = taken | {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
    names = ("held" if k == 1 else f"held{k}" for k in count(1))
    split = _Split(n for n in names if n not in known)
    found = list[ast.stmt]()
    for s in body:
        made = split.visit(s)
        found += made if isinstance(made, list) else [made]
    return found


class _Split(ast.NodeTransformer):
    def __init__(self, names: Iterator[str]) -> None:
        self.names = names

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=targets) | ast.List(elts=targets)],
                value=ast.Tuple(elts=values) | ast.List(elts=values),
            ):
                pass
            case ast.Assign(targets=[_, _, *_] as targets, value=value):
                values = [value] * len(targets)
            case _:
                return node
        if len(targets) != len(values) or not all(isinstance(t, ast.Name | ast.Subscript) for t in targets):
            return node
        each = {id(v): v for v in values if not isinstance(v, ast.Constant)}
        if len(each) > 1 and not _set(targets) & _read(*values, *targets):
            return [_assignment(t, t, v) for t, v in zip(targets, values, strict=True)]
        held = {k: next(self.names) for k in each}
        first = [_assignment(v, ast.Name(held[k], ast.Store()), v) for k, v in each.items()]
        last = [_assignment(t, t, _again(v, held.get(id(v)))) for t, v in zip(targets, values, strict=True)]
        return [*first, *last]


def _set(targets: Sequence[ast.expr]) -> set[str]:
    """The names of locals and arrays that are written."""
    bases = (t.value if isinstance(t, ast.Subscript) else t for t in targets)
    return {n.id for b in bases for n in ast.walk(b) if isinstance(n, ast.Name)}


def _read(*parts: ast.expr) -> set[str]:
    """The names that values, and the subscripts of targets, read."""
    inside = (p.slice if isinstance(p, ast.Subscript) and isinstance(p.ctx, ast.Store) else p for p in parts)
    return {n.id for p in inside for n in ast.walk(p) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _again(value: ast.expr, held: str | None) -> ast.expr:
    if held is not None:
        return ast.Name(held, ast.Load())
    assert isinstance(value, ast.Constant)
    return ast.Constant(value.value)


def _assignment(place: ast.expr, target: ast.expr, value: ast.expr) -> ast.stmt:
    made = ast.Assign([ast.copy_location(target, place)], ast.copy_location(value, place))
    return ast.fix_missing_locations(ast.copy_location(made, place))
