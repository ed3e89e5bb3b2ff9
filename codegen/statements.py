"""One statement: its reads, its body, and how what that gives gets to the element that it writes."""

from __future__ import annotations

from collections.abc import Sequence

from poly.codegen.expressions import expression, multiply_accumulate
from poly.codegen.instructions import dot, summed_bf16
from poly.codegen.joined import joined
from poly.codegen.loads import load
from poly.codegen.state import State
from poly.codegen.status import WRITE
from poly.codegen.stores import Update, side_by_side, store
from poly.codegen.values import Value
from poly.dtypes import is_float
from poly.errors import UnsupportedError
from poly.expr import DOT_BF16, DOTS, Apply, reads_of
from poly.loops import Compute
from poly.program import ReadIndex


def needed_reads(node: Compute) -> list[int]:
    """The reads whose values a statement takes. Raises `UnsupportedError` for more than a status can tell apart."""
    if len(node.reads) > WRITE:
        raise UnsupportedError(
            f"reads {len(node.reads)} elements, at most {WRITE}", where=f"statement {node.statement}",
            hint="compute it in several statements",
        )  # fmt: skip
    accesses = [*node.reads, node.write]
    return sorted({*reads_of(node.body), *(i.position for a in accesses for i in a.index if isinstance(i, ReadIndex))})


def compute(s: State, node: Compute, needed: Sequence[int]) -> None:
    """A statement at the current place. `needed`: of its reads, as `needed_reads` gives them."""
    with s.at_statement(node.statement):
        values: dict[int, Value] = {}
        if (whole := joined(s, node)) is not None:
            return store(s, node.write, Update(whole), values)
        for position in needed:
            values[position] = load(s, node.reads[position], values, position)
        store(s, node.write, _update(s, node, values), values)


def _update(s: State, node: Compute, values: dict[int, Value]) -> Update:
    """What a statement does to its element. A product to be summed may be added in one rounding."""
    body, dtype, combiner = node.body, s.tensors[node.write.tensor].dtype, node.combiner
    operator = None if combiner is None else combiner.operator
    sign, product = "add", body
    if isinstance(body, Apply) and body.operator == "neg":
        sign, product = "sub", body.arguments[0]
    fused = operator == "add" and node.contract and is_float(dtype)
    if fused and isinstance(product, Apply) and product.operator == "mul":
        a, b = s.ops.same(*(expression(s, e, values, dtype, True) for e in product.arguments))
        if a.dtype == dtype == b.dtype and side_by_side(s, node.write):
            return Update(a, lambda old, new: multiply_accumulate(s, sign, new, b, old), combiner)
    if operator == "add" and dtype == "i32" and isinstance(body, Apply) and body.operator in DOTS:
        a, b = (expression(s, e, values, dtype, True) for e in body.arguments)
        if side_by_side(s, node.write):
            return Update(a, lambda old, new: dot(s.ops, body.operator, new, b, old), combiner)
    if operator == "add" and isinstance(body, Apply) and body.operator == DOT_BF16:
        operands = (expression(s, e, values, "i32", True) for e in body.arguments)
        value = s.ops.cast(summed_bf16(s.ops, *operands), dtype)
    else:
        value = s.ops.cast(expression(s, body, values, dtype, node.contract), dtype)
    if operator is None:
        return Update(value)
    return Update(value, lambda old, new: s.ops.cast(s.ops.apply(operator, (old, new)), dtype), combiner)
