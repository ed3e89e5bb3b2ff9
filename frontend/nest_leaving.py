"""`break` and `continue` as conditions on what follows them: all trips run, those after a break have no effect.

    for k in range(100):                       stop = False
        if z[i] > 4.0:                         for k in range(100):
            break                      ->          if not stop:
        z[i] = z[i] * z[i] + c                         if z[i] > 4.0:
                                                           stop = True
                                                       else:
                                                           z[i] = z[i] * z[i] + c

A loop's `else` follows it, under `not stop`.
A branch of which both sides may go on, as `if a: (if b: continue)`, sets `left`, and what follows is under `not left`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count

from poly.frontend.nest_source import placed_as


def without_leaving(body: Sequence[ast.stmt], taken: Collection[str], sizes: Collection[str]) -> list[ast.stmt]:
    """A body whose loops are left by conditions, but for `break` where loop variables and `sizes` alone decide, which
    is a shorter range. `taken`: names that mean something beside those in the body.
    """
    nodes = [n for s in body for n in ast.walk(s)]
    known = {*taken, *(n.id for n in nodes if isinstance(n, ast.Name))}
    loops = {n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}

    def names(stem: str) -> Iterator[str]:
        return (n for n in (stem if k == 1 else f"{stem}{k}" for k in count(1)) if n not in known)

    return _Leaving(names("stop"), names("left"), loops.union(sizes)).block(body)


class _Leaving:
    """`stops`: names of locals that say that a loop was left, `lefts`: that an iteration was; `fixed`: those of loop
    variables and sizes.
    """

    def __init__(self, stops: Iterator[str], lefts: Iterator[str], fixed: Collection[str]) -> None:
        self.stops, self.lefts, self.fixed = stops, lefts, fixed

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for s in body for made in self._statement(s)]

    def _statement(self, s: ast.stmt) -> list[ast.stmt]:
        match s:
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                body, last = self.block(body), self.block(orelse)
                stop = next(self.stops) if self._breaks(body) else ""
                inner = self._inner(body, stop)
                if not stop:
                    return [placed_as(s, ast.For(target, iterable, inner, [])), *last]
                going, at_end = (
                    [placed_as(s, ast.If(_not(ast.Name(stop, ast.Load())), part, []))] if part else []
                    for part in (inner, last)
                )
                return [placed_as(s, _set(stop, False)), placed_as(s, ast.For(target, iterable, going, [])), *at_end]
            case ast.If(test=test, body=body, orelse=orelse):
                return [placed_as(s, ast.If(test, self.block(body), self.block(orelse)))]
            case _:
                return [s]

    def _inner(self, body: Sequence[ast.stmt], stop: str) -> list[ast.stmt]:
        """The body of a loop without what leaves an iteration."""
        used = list[str]()

        def flag() -> str:
            if not used:
                used.append(next(self.lefts))
            return used[0]

        made = _Left(stop, flag, self._is_fixed).rest(body)
        return [*(placed_as(body[0], _set(name, False)) for name in used), *made]

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


@dataclass(frozen=True)
class _Left:
    """What is set where a loop is left: `stop` at a break, "" where none is by data, `flags` at a continue, too.

    `flag`: names the local for the rest of this loop's iteration; `is_fixed`: whether loops decide a test.
    """

    stop: str
    flag: Callable[[], str]
    is_fixed: Callable[[ast.expr], bool]
    flags: tuple[str, ...] = ()

    def rest(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """A body without what leaves it. What follows a branch goes into the side that goes on; where both may, it
        stands once behind the branch, under a condition, as copies would double with each branch.
        """
        for k, s in enumerate(body):
            if not (isinstance(s, ast.If) and self._may_leave(s)):
                continue
            after = body[k + 1 :]
            on = [side for side in (s.body, s.orelse) if not self._leaves(side)]
            if not after or len(on) < 2:
                then, other = (self._side(side, after if side in on else []) for side in (s.body, s.orelse))
                return [*body[:k], _branch(s, then, other)]
            where = self._where(s)
            if where is not None:
                branch = _branch(s, self._side(s.body, []), self._side(s.orelse, []))
                return [*body[:k], branch, _branch(s, self.rest(after), [], _not(deepcopy(where)))]
            name = self.flag()
            inner = replace(self, flags=(*self.flags, name)) if name not in self.flags else self
            branch = _branch(s, inner._side(s.body, []), inner._side(s.orelse, []))
            return [*body[:k], branch, *_while_not(name, s, self.rest(after))]
        return [*body]

    def _side(self, side: Sequence[ast.stmt], after: Sequence[ast.stmt]) -> list[ast.stmt]:
        """One side of a branch and what follows it."""
        if not side or not self._is_leaving(side[-1]):
            return self.rest([*side, *after])
        names = (self.stop, *self.flags) if isinstance(side[-1], ast.Break) else self.flags
        return self.rest([*side[:-1], *(_set(n, True) for n in names)])

    def _is_leaving(self, s: ast.stmt) -> bool:
        return isinstance(s, ast.Continue) or isinstance(s, ast.Break) and bool(self.stop)

    def _leaves(self, side: Sequence[ast.stmt]) -> bool:
        """Whether every way through a side leaves."""
        match side:
            case [*_, ast.If(body=body, orelse=orelse)]:
                return self._leaves(body) and self._leaves(orelse)
            case _:
                return bool(side) and self._is_leaving(side[-1])

    def _may_leave(self, s: ast.stmt) -> bool:
        return self._is_leaving(s) or isinstance(s, ast.If) and any(map(self._may_leave, (*s.body, *s.orelse)))

    def _where(self, s: ast.If) -> ast.expr | None:
        """The condition under which a branch leaves, of loops alone; None where data decide."""
        if not self.is_fixed(s.test):
            return None
        found = list[ast.expr]()
        for test, side in ((s.test, s.body), (_not(s.test), s.orelse)):
            for part in side:
                if self._is_leaving(part):
                    found.append(test)
                elif isinstance(part, ast.If) and self._may_leave(part):
                    inner = self._where(part)
                    if inner is None:
                        return None
                    found.append(ast.BoolOp(ast.And(), [test, inner]))
        return found[0] if len(found) == 1 else ast.BoolOp(ast.Or(), found)


def _branch(s: ast.If, then: list[ast.stmt], other: list[ast.stmt], test: ast.expr | None = None) -> ast.stmt:
    test = test or s.test
    if not then and other:
        test, then, other = _not(test), other, []
    return placed_as(s, ast.If(test, then or [ast.Pass()], other))


def _while_not(flag: str, s: ast.If, body: list[ast.stmt]) -> list[ast.stmt]:
    """A body where a flag is not set, of which a part may already be under it."""
    last = list[ast.stmt]()
    if isinstance(body[-1], ast.If) and ast.unparse(body[-1].test) == f"not {flag}":
        last = [body.pop()]
    return [_branch(s, body, [], _not(ast.Name(flag, ast.Load()))), *last]


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _set(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))
