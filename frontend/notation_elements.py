"""Elements as subscripts in choices of notation, in bounds where data decide (`poly.frontend.places_in_bounds`).

    y[i] = x[p[i]] if p[i] >= 0 else 0        ->        at = p[i] if p[i] >= 0 else 0
                                                        y[i] = x[at] if p[i] >= 0 else 0

The assignments of the places stand in the loops of their statement, where `poly.frontend.nest_scalars` makes arrays of
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from poly.affine import FloorDiv, Var, unequal_parts
from poly.conditions import affine_or_none, conjunction, necessary
from poly.expr import Expr, dtype_of, rewrite
from poly.frontend.comparisons import comparable
from poly.frontend.notation_dtypes import converted
from poly.frontend.notation_shapes import Draft, Shapes
from poly.frontend.places_in_bounds import Elements
from poly.program import Access, Tensor
from poly.text_body import BodyReader


def elements_in_bounds(drafts: Sequence[Draft], tensors: dict[str, Tensor], found: Shapes) -> list[Draft]:
    """The statements, whose domains are known, after those that their places need; `tensors`, and shapes, get these."""
    taken = {*tensors, *found.parameters, *(n for d in drafts for n in (*d.iterators, d.line.label))}
    names = (n for n in (f"at{k}" for k in count()) if n not in taken)
    return [each for d in drafts for each in _in_bounds(d, names, tensors, found)]


def _in_bounds(draft: Draft, names: Iterator[str], tensors: dict[str, Tensor], found: Shapes) -> list[Draft]:
    if "reads" in draft.line.clauses or not any(r.indirect for r in draft.reads):
        return [draft]
    reader = BodyReader(draft.scalars, bare_indices=True)
    meant = dict[str, str]()
    elements = Elements(partial(_is_element, reader), partial(_is_guard, reader), names, meant, set())
    target, value = ast.Name("y", ast.Store()), reader.tree(draft.line.body)
    *places, last = elements.in_bounds(ast.copy_location(ast.Assign([target], value), value))
    made = list[Draft]()
    for k, place in enumerate(places):
        assert isinstance(place, ast.Assign) and isinstance(place.targets[0], ast.Name)
        name, reader = place.targets[0].id, BodyReader({*draft.scalars, *meant}, bare_indices=True)
        body = _value(reader, draft, place.value)
        dtypes = [tensors[r.tensor].dtype for r in reader.reads]
        tensors[name] = Tensor(name, (), dtype_of(comparable(body, dtypes), dtypes) or "i64")
        found.shapes[name] = ()
        line = replace(draft.line, label=None, combiner=None, clauses={})
        made.append(_with(replace(draft, line=line, write=Access(name, ())), body, reader, k))
    if not made:
        return [draft]
    assert isinstance(last, ast.Assign)
    reader = BodyReader({*draft.scalars, *meant}, bare_indices=True)
    write = reader.access(draft.line.target.expression(), draft.line.target)
    assert write is not None
    body = _value(reader, draft, last.value)
    return [*made, _with(replace(draft, write=write), body, reader, len(made))]


def _value(reader: BodyReader, draft: Draft, node: ast.expr) -> Expr:
    return rewrite(reader.value(node, draft.line.body), converted)


def _with(draft: Draft, body: Expr, reader: BodyReader, step: int) -> Draft:
    return replace(draft, body=body, reads=tuple(reader.reads), chosen=frozenset(reader.chosen), step=step)


def _is_element(reader: BodyReader, node: ast.expr) -> bool:
    """Whether a subscript is data: an element, or one under a condition."""
    if isinstance(node, ast.IfExp):
        return reader.is_access(node.body) or reader.is_access(node.orelse)
    return reader.is_access(node)


def _is_guard(reader: BodyReader, test: ast.expr) -> bool:
    """Whether a condition is one that reads have as their guard, so that nothing is read where it fails."""
    found = conjunction(test, affine_or_none, with_unequal=True)
    if not found or not {*found} <= {*necessary(test, affine_or_none)}:
        return False
    plain = all(unequal_parts(c) or isinstance(a, Var | FloorDiv) for c in found for a, _ in c.expr.terms)
    return plain and not any(n in reader.scalars for c in found for n in c.expr.names)
