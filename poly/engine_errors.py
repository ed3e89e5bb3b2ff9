"""What goes wrong inside of an engine's groups, in the words of the model's file."""

from __future__ import annotations

from collections.abc import Sequence
from re import match

from poly.errors import IndexRangeError
from poly.expr import Apply, Const, Expr, Read
from poly.graph import Graph
from poly.program import Tensor


def named_as_in_file(
    error: IndexRangeError, graph: Graph, arguments: Sequence[Tensor], names: Sequence[str], statements: Sequence[str]
) -> IndexRangeError:
    """An index out of range with its node and tensor, where the group's code has numbers (`canonical_names`).

    `arguments`: tensors of the group's kernel, which are called `names` in the graph; `statements`: its statements.
    """
    tensor = {t.name: n for t, n in zip(arguments, names, strict=True)}.get(error.tensor, error.tensor)
    number = match(r"s(\d+)", error.statement)
    statement = statements[int(number[1])] if number and int(number[1]) < len(statements) else error.statement
    node = next((n for n in graph.nodes if statement in {s.name for s in n.statements}), None)
    where = f"node {node.name!r} ({node.operator})" if node is not None else f"statement {statement}"
    value, first = error.value, 0
    if node is not None and any(_counts_from_end(s.body) for s in node.statements):
        first = -error.extent
        value -= error.extent if -(2**31) < value < 0 else 0  # to what the file's tensor holds
    return IndexRangeError(where, statement, graph.label(tensor), error.dimension, value, error.extent, first)


def _counts_from_end(body: Expr) -> bool:
    """Whether a statement computes `i + extent if i < 0 else i`, as operators do whose indices may be negative."""
    match body:
        case Apply("select", (Apply("lt", (Read() as i, Const(value=0))), Apply("add", (j, _)), k)):
            return i == j == k
        case _:
            return False
