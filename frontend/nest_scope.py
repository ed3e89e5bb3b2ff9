"""What the names of a nest mean at one place, and Python expressions of them that are affine."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from poly.affine import Affine, affine_operation
from poly.errors import ParseError
from poly.frontend import nest_hints as hints
from poly.frontend.nest_signature import last_name
from poly.frontend.nest_source import Source


@dataclass(frozen=True)
class Scope:
    """What the names mean at one place of the function.

    `indices`: loop variables and integer names as affine expressions of iterators and sizes; `literals`: names of
    numbers, from outside the function or of locals that are set once; `shapes`: of the arrays, scalars included;
    `places`: what stands for locals in subscripts and ranges.
    """

    source: Source
    sizes: tuple[str, ...]
    indices: Mapping[str, Affine]
    literals: Mapping[str, int | float | bool]
    shapes: Mapping[str, tuple[Affine, ...]]
    places: Mapping[str, ast.expr] = field(default_factory=dict)

    def affine(self, node: ast.expr) -> Affine:
        """The expression as an affine one. Raises `ParseError` that says which part is not."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(node.value, bool):
                return Affine((), value)
            case ast.Name(id=name):
                return self._index(node, name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                inner = self.affine(operand)
                return -inner if isinstance(op, ast.USub) else inner
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Div):
                    text = f"{ast.unparse(node)} is not affine: / makes a float"
                    raise self.source.error(node, text, hints.affine(node))
                return self._affine_operation(node, self.affine(left), op, self.affine(right))
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=d)):
                return self._extent(node, name, d)
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]):
                return self._extent(node, name, 0)
            case _:
                text = f"{ast.unparse(node)} is not affine in loop variables and sizes"
                raise self.source.error(node, text, hints.affine(node))

    def _index(self, node: ast.Name, name: str) -> Affine:
        if name in self.indices:
            return self.indices[name]
        if name in self.sizes:
            return Affine.of(name)
        value = self.literals.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return Affine((), value)
        if name in self.shapes:
            raise self.source.error(
                node, f"{name} is data, not affine in loop variables and sizes",
                hint="subscripts, ranges and conditions are made of loop variables and sizes",
            )  # fmt: skip
        hint = f"inside of the loop over {name}, or {name}: int among the arguments"
        raise self.source.error(node, f"{name!r} is not a loop variable or a size here", hint)

    def _extent(self, node: ast.expr, name: str, dimension: object) -> Affine:
        shape = self.shapes.get(name, ())
        if not isinstance(dimension, int) or not -len(shape) <= dimension < len(shape):
            raise self.source.error(node, f"{name} has no dimension {dimension}", f"0 to {len(shape) - 1}")
        return shape[dimension]

    def _affine_operation(self, node: ast.BinOp, a: Affine, op: ast.operator, b: Affine) -> Affine:
        found = affine_operation(a, op, b)
        if found is None:
            raise self.source.error(node, f"{ast.unparse(node)} is not affine", hints.affine(node))
        return found

    def affine_or_none(self, node: ast.expr) -> Affine | None:
        """`affine`, None where it raises."""
        try:
            return self.affine(node)
        except ParseError:
            return None

    def is_affine(self, node: ast.expr) -> bool:
        """True where `affine` does not raise."""
        return self.affine_or_none(node) is not None

    def is_element(self, node: ast.expr) -> bool:
        """Whether a subscript is an element or a scalar."""
        match node:
            case ast.Name(id=name):
                return name in self.shapes and not self.shapes[name]
            case ast.Subscript():
                return not self.is_affine(node)
            case _:
                return False

    def bound(self, node: ast.expr) -> str:
        """An end of a range in isl's syntax: affine, or a max or min of such, and sums of these."""
        match node:
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others], keywords=[]) if others:
                text = self.bound(first)
                for other in others:
                    text = f"{name}({text}, {self.bound(other)})"
                return text
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not self.is_affine(node):
                return f"({self.bound(left)} {'+' if isinstance(op, ast.Add) else '-'} {self.bound(right)})"
            case _:
                read = next((n for n in ast.walk(node) if isinstance(n, ast.Subscript) and not self.is_affine(n)), None)
                if read is not None and last_name(read.value) in self.shapes:
                    raise self.source.error(read, f"{ast.unparse(read)} is data, a range ends at sizes", hints.RANGE)
                return f"({self.affine(node).isl_text})"
