"""Branches on data as choices between values, which have lanes: every iteration runs the same statements.

    if x[i] > most:                 most = x[i] if x[i] > most else most
        most = x[i]         ->

A local that counts in its branch alone needs no choice. Several statements read one truth, found before them
(if-conversion: Allen, Kennedy, Porterfield and Warren 1983).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from poly.frontend.nest_source import placed_as

# What leaves a target as it is, but for the sign of 0.
_NOTHING: Final[Mapping[type[ast.operator], int]] = {ast.Add: 0, ast.Sub: 0, ast.Mult: 1}


@dataclass(frozen=True)
class _Masked:
    """Statements that have an effect where `test` holds. `kept`: locals whose values count where it does not."""

    test: ast.expr
    kept: frozenset[str]


@dataclass(frozen=True)
class Branches:
    """Takes branches on data apart. `names`: of locals for truths; `affine`: whether loops decide a condition;
    `under`: what is read or written where a test holds, behind what it needs; `exact`: targets keep every bit;
    `live`: the names that are read after a branch; `made`: what the new locals stand for.
    """

    names: Iterator[str]
    affine: Callable[[ast.expr], bool]
    under: Callable[[ast.expr, ast.expr], tuple[list[ast.stmt], ast.expr]]
    exact: bool
    live: dict[ast.stmt, frozenset[str]]
    made: dict[str, str]

    def choices(self, node: ast.If, after: frozenset[str]) -> list[ast.stmt] | None:
        """The statements of an `if` without it; None where its branches hold more than assignments, loops and such
        `if`s.

        `after`: the locals that are read afterwards.
        """
        return self._taken_apart(node, after, None)

    def _taken_apart(self, node: ast.If, after: frozenset[str], around: _Masked | None) -> list[ast.stmt] | None:
        inside = [s for s in ast.walk(node) if isinstance(s, ast.Assign | ast.AugAssign | ast.For)]
        several = len(inside) > 1
        if any(isinstance(n, ast.In | ast.NotIn | ast.Is | ast.IsNot) for n in ast.walk(node.test)):
            return None
        found, test = list[ast.stmt](), node.test
        if several:
            name = next(self.names)
            before, test = self.under(around.test, test) if around else ([], test)
            self.made[name] = f"({ast.unparse(test)})"
            found += [placed_as(node, s) for s in (*before, ast.Assign([ast.Name(name, ast.Store())], test))]
            test = ast.Name(name, ast.Load())
        outside = around.kept if around else frozenset[str]()
        sides = (
            (node.body, test, live_before(node.orelse, after)), (node.orelse, ast.UnaryOp(ast.Not(), test), after),
        )  # fmt: skip
        for body, holds, kept in sides:
            both = ast.BoolOp(ast.And(), [around.test, holds]) if around else holds
            made = self._branch(body, after, _Masked(both, kept | outside))
            if made is None:
                return None
            found += made
        return found

    def _branch(self, body: Sequence[ast.stmt], after: frozenset[str], mask: _Masked) -> list[ast.stmt] | None:
        found = list[ast.stmt]()
        for k, s in enumerate(body):
            then = live_before(body[k + 1 :], after)
            made: list[ast.stmt] | None
            if isinstance(s, ast.Pass):
                continue
            if isinstance(s, ast.If) and self.affine(s.test):
                inner = [self._branch(side, then, mask) for side in (s.body, s.orelse)]
                made = None if inner[0] is None or inner[1] is None else [ast.If(s.test, inner[0], inner[1])]
            elif isinstance(s, ast.If) and (outer := with_loops_outside(s, self.affine)) is not None:
                made = self._branch([outer], then, mask)
            elif isinstance(s, ast.If):
                made = self._taken_apart(s, then, mask)
            elif isinstance(s, ast.For):
                made = [self._loop(s, then, mask)]
            else:
                made = self._masked(s, mask)
            if made is None:
                return None
            found += [placed_as(s, m) for m in made]
        return found

    def _loop(self, s: ast.For, after: frozenset[str], mask: _Masked) -> ast.stmt:
        """A loop that always runs around a branch, which is taken apart where the loop's variable is known."""
        branch = placed_as(s, ast.If(mask.test, s.body, []))
        self.live[branch] = after | live_before(s.body, after) | mask.kept
        return ast.For(s.target, s.iter, [branch], s.orelse)

    def _masked(self, s: ast.stmt, mask: _Masked) -> list[ast.stmt] | None:
        before = list[ast.stmt]()
        match s:
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                before, found = self.under(mask.test, target)
                s = placed_as(s, ast.Assign([found], value))
            case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                before, found = self.under(mask.test, target)
                assert isinstance(found, ast.Subscript)
                s = placed_as(s, ast.AugAssign(found, op, value))
            case ast.Assign(targets=[ast.Name(id=name)] as targets, value=value) if name not in mask.kept:
                before, found = self.under(mask.test, value)
                s = placed_as(s, ast.Assign(targets, found))
            case _:
                pass
        chosen = _chosen(s, mask, self.exact)
        return None if chosen is None else [*before, chosen]


def with_loops_outside(node: ast.If, is_condition: Callable[[ast.expr], bool]) -> ast.If | None:
    """`if i > 0 and x[i] > 0` as `if i > 0` around `if x[i] > 0`: what is written there need not exist elsewhere."""
    if node.orelse or not isinstance(node.test, ast.BoolOp) or not isinstance(node.test.op, ast.And):
        return None
    loops = [v for v in node.test.values if is_condition(v)]
    data = [v for v in node.test.values if v not in loops]
    if not loops:
        return None
    tests = (v[0] if len(v) == 1 else ast.BoolOp(ast.And(), v) for v in (loops, data))
    outer, inner = (ast.fix_missing_locations(ast.copy_location(t, node.test)) for t in tests)
    branch = ast.copy_location(ast.If(inner, node.body, []), node)
    return ast.copy_location(ast.If(outer, [branch], []), node)


def live_before(body: Sequence[ast.stmt], after: frozenset[str]) -> frozenset[str]:
    """The names that some path from here reads before it assigns them. `after`: those at the end of the body."""
    for s in reversed(body):
        after = _live_before_one(s, after)
    return after


def _live_before_one(s: ast.stmt, after: frozenset[str]) -> frozenset[str]:
    match s:
        case ast.If(test=test, body=then, orelse=other):
            return live_before(then, after) | live_before(other, after) | _names(test)
        case ast.For(iter=iterable, body=inner):
            return after | live_before(inner, after | live_before(inner, after)) | _names(iterable)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return after - {name} | _names(value)
        case _:
            return after | _names(s)


def live_after_branches(body: Sequence[ast.stmt], after: frozenset[str]) -> Iterator[tuple[ast.If, frozenset[str]]]:
    """Every `if` in a body, with the names that are read after it."""
    for s in reversed(body):
        match s:
            case ast.If(body=inner, orelse=other):
                yield s, after
                yield from live_after_branches(inner, after)
                yield from live_after_branches(other, after)
            case ast.For(body=inner):
                yield from live_after_branches(inner, after | live_before(inner, after))
            case _:
                pass
        after = _live_before_one(s, after)


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _chosen(s: ast.stmt, mask: _Masked, exact: bool) -> ast.stmt | None:
    test = mask.test
    match s:
        case ast.Assign(targets=[ast.Name(id=name)]) if name not in mask.kept:
            return s
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
