"""`break` and `continue` as conditions on what follows them: all trips run, those after a break have no effect.

    for k in range(100):                       stop = False
        if z[i] > 4.0:                         for k in range(100):
            break                      ->          if not stop:
        z[i] = z[i] * z[i] + c                         if z[i] > 4.0:
                                                           stop = True
                                                       else:
                                                           z[i] = z[i] * z[i] + c
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from itertools import count

from poly.frontend.nest_branches import like


def without_leaving(body: Sequence[ast.stmt], taken: Collection[str], sizes: Collection[str]) -> list[ast.stmt]:
    """A body whose loops are left by conditions, but for `break` where loop variables and `sizes` alone decide, which
    is a shorter range. `taken`: names that mean something beside those in the body.
    """
    nodes = [n for s in body for n in ast.walk(s)]
    known = {*taken, *(n.id for n in nodes if isinstance(n, ast.Name))}
    loops = {n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
    names = ("stop" if k == 1 else f"stop{k}" for k in count(1))
    leaving = _Leaving((n for n in names if n not in known), loops.union(sizes))
    return leaving.block(body)


class _Leaving:
    """`names`: of locals that say that a loop was left; `fixed`: those of loop variables and sizes."""

    def __init__(self, names: Iterator[str], fixed: Collection[str]) -> None:
        self.names, self.fixed = names, fixed

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for s in body for made in self._statement(s)]

    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        match s:
            case ast.For(target=target, iter=iterable, body=body, orelse=[]):
                stop = next(self.names) if self._breaks(body) else ""
                inner = _rest(self.block(body), stop)
                if not stop:
                    return [like(s, ast.For(target, iterable, inner, []))]
                going = like(s, ast.If(ast.UnaryOp(ast.Not(), ast.Name(stop, ast.Load())), inner, []))
                return [like(s, _set(stop, False)), like(s, ast.For(target, iterable, [going], []))]
            case ast.If(test=test, body=body, orelse=orelse):
                return [like(s, ast.If(test, self.block(body), self.block(orelse)))]
            case _:
                return [s]

    def _breaks(self, body: Sequence[ast.stmt], data: bool = False) -> bool:
        """Whether data decide on a `break` that ends a branch of the body. `data`: whether they decide on the body."""
        for s in (s for s in body if isinstance(s, ast.If)):
            decide = data or not self._is_fixed(s.test)
            for side in (side for side in (s.body, s.orelse) if side):
                if decide and isinstance(side[-1], ast.Break) or self._breaks(side, decide):
                    return True
        return False

    def _is_fixed(self, test: ast.expr) -> bool:
        return all(n.id in self.fixed for n in ast.walk(test) if isinstance(n, ast.Name))


def _rest(body: Sequence[ast.stmt], stop: str) -> list[ast.stmt]:
    """The body of a loop with what follows a branch that leaves in the other branch, and `stop` set at a break."""
    for k, s in enumerate(body):
        if isinstance(s, ast.If) and any(_leaves(n, stop) for n in ast.walk(s)):
            then, other = (_side(side, body[k + 1 :], stop) for side in (s.body, s.orelse))
            test = s.test if then else ast.UnaryOp(ast.Not(), s.test)
            return [*body[:k], like(s, ast.If(test, then or other or [ast.Pass()], other if then else []))]
    return [*body]


def _side(side: Sequence[ast.stmt], after: Sequence[ast.stmt], stop: str) -> list[ast.stmt]:
    """One side of a branch, with what follows the branch unless it leaves."""
    if not side or not _leaves(side[-1], stop):
        return _rest([*side, *deepcopy(after)], stop)
    return _rest([*side[:-1], *([_set(stop, True)] if isinstance(side[-1], ast.Break) else [])], stop)


def _leaves(s: ast.AST, stop: str) -> bool:
    return isinstance(s, ast.Continue) or isinstance(s, ast.Break) and bool(stop)


def _set(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))
