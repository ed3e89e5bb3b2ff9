"""Subscripts that are data get locals: what is computed from elements, and elements under conditions on data, which are
0 where the condition fails, so that all are in bounds.

    h[int(x[i] * 16)] += 1                     ->        at = int(x[i] * 16)
                                                         h[at] += 1
    y[i] = x[p[i]] if p[i] >= 0 else 0.0       ->        at = p[i] if p[i] >= 0 else 0
                                                         y[i] = x[at] if p[i] >= 0 else 0.0

A choice on data computes both of its values, and an index that is out of bounds stops a kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field


@dataclass
class Elements:
    """`is_element`: whether a subscript is data; `is_condition`: whether loops decide a test; `names`: of locals for
    places; `made`: what each stands for; `safe`: those that a test keeps in bounds; `is_computed`: whether a subscript
    of a node is neither data nor affine, and can be computed, None where there are none.
    """

    is_element: Callable[[ast.expr], bool]
    is_condition: Callable[[ast.expr], bool]
    names: Iterator[str]
    made: dict[str, str]
    safe: set[str]
    is_computed: Callable[[ast.Subscript, ast.expr], bool] | None = None

    def in_bounds(self, node: ast.stmt) -> list[ast.stmt]:
        """An assignment after those that its places need."""
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            return [node]
        places, made = _Places(self), deepcopy(node)
        places.generic_visit(made)
        if not places.made:
            return [node]
        return [ast.fix_missing_locations(ast.copy_location(s, node)) for s in (*places.made, made)]

    def under(self, test: ast.expr, node: ast.expr) -> tuple[list[ast.stmt], ast.expr]:
        """A target or a value that counts where a test holds, after the assignments that its places need."""
        places = _Places(self, [test])
        found = places.visit(deepcopy(node))
        return (places.made, found) if places.made else ([], node)

    def is_place(self, node: ast.expr) -> bool:
        """Whether a subscript is data that may be out of bounds."""
        return self.is_element(node) and not (isinstance(node, ast.Name) and node.id in self.safe)


@dataclass
class _Places(ast.NodeTransformer):
    elements: Elements
    tests: list[ast.expr] = field(default_factory=list)
    made: list[ast.stmt] = field(default_factory=list[ast.stmt])
    named: dict[str, str] = field(default_factory=dict[str, str])

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        then = self._under(node.body, [test])
        return ast.IfExp(test, then, self._under(node.orelse, [ast.UnaryOp(ast.Not(), test)]))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        every, before = isinstance(node.op, ast.And), list[ast.expr]()
        for value in node.values:
            tests = before if every else [ast.UnaryOp(ast.Not(), b) for b in before]
            before.append(self._under(value, tests))
        return ast.BoolOp(node.op, before)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node = ast.Subscript(self.visit(node.value), self.visit(node.slice), node.ctx)
        read = any(ast.unparse(node) == ast.unparse(n) for t in self.tests for n in _surely_read(t))
        inside = read or all(map(self.elements.is_condition, self.tests))  # what a test itself reads is in bounds
        places = list[ast.expr]()
        for s in subscripts(node):
            computed = self.elements.is_computed is not None and self.elements.is_computed(node, s)
            held = computed or not inside and self.elements.is_place(s)
            places.append(self._place(s) if held else s)
        node.slice = ast.Tuple(places, ast.Load()) if isinstance(node.slice, ast.Tuple) else places[0]
        return node

    def _under(self, node: ast.expr, tests: Sequence[ast.expr]) -> ast.expr:
        outer, self.tests = self.tests, [*self.tests, *tests]
        try:
            return self.visit(node)
        finally:
            self.tests = outer

    def _place(self, place: ast.expr) -> ast.expr:
        value = place
        if self.tests:
            test = self.tests[0] if len(self.tests) == 1 else ast.BoolOp(ast.And(), [*self.tests])
            value = ast.IfExp(test, place, ast.Constant(0))
        text = ast.unparse(value)
        if text not in self.named:
            name = self.named[text] = next(self.elements.names)
            self.elements.made[name] = ast.unparse(place)
            if self.tests:
                self.elements.safe.add(name)
            self.made.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.copy_location(ast.Name(self.named[text], ast.Load()), place)


def names_of_data(node: ast.stmt, is_element: Callable[[ast.expr], bool]) -> set[str]:
    """The locals that a branch sets to what data say, as `k = b[i]`."""
    found, before = set[str](), -1
    assigned = [s for s in ast.walk(node) if isinstance(s, ast.Assign | ast.AugAssign)]
    while len(found) > before:
        before = len(found)
        for s in assigned:
            target = s.target if isinstance(s, ast.AugAssign) else s.targets[0]
            parts = [n for n in ast.walk(s.value) if isinstance(n, ast.expr)]
            data = any(is_element(n) or isinstance(n, ast.Name) and n.id in found for n in parts)
            if isinstance(target, ast.Name) and (data or isinstance(s, ast.AugAssign)):
                found.add(target.id)
    return found


def _surely_read(test: ast.expr) -> Iterator[ast.Subscript]:
    """The elements that a test reads in any case."""
    match test:
        case ast.BoolOp(values=[first, *_]) | ast.IfExp(test=first):
            yield from _surely_read(first)
        case _:
            if isinstance(test, ast.Subscript):
                yield test
            for part in ast.iter_child_nodes(test):
                if isinstance(part, ast.expr):
                    yield from _surely_read(part)


def subscripts(node: ast.Subscript) -> list[ast.expr]:
    """`i` and `j` of `A[i, j]`."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
