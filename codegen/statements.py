"""One statement: its reads, its body, and how what that gives gets to the element that it writes."""

from __future__ import annotations

from collections.abc import Sequence

from poly.codegen.expressions import expression, multiply_accumulate
from poly.codegen.instructions import dot, summed_bf16
from poly.codegen.joined import joined
from poly.codegen.loads import load
from poly.codegen.places import register_place
from poly.codegen.registers import Entry
from poly.codegen.state import State
from poly.codegen.status import WRITE
from poly.codegen.stores import Update, side_by_side, store
from poly.codegen.values import Value
from poly.dtypes import is_float
from poly.errors import UnsupportedError
from poly.expr import DOT_BF16, DOTS, Apply, Read, reads_of
from poly.loops import Compute
from poly.program import Access, ReadIndex


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
        s.kept = s.in_registers(node.write.tensor)
        values: dict[int, Value] = {}
        if (whole := joined(s, node)) is not None:
            return store(s, node.write, Update(whole), values)
        for position in needed:
            values[position] = load(s, node.reads[position], values, position)
        factors = _factors(s, node)
        if factors is None or not _added(s, node.write, *(values[p] for p in factors)):
            store(s, node.write, _update(s, node, values), values)


def _factors(s: State, node: Compute) -> tuple[int, ...] | None:
    """The two reads whose product a statement adds, in one rounding, to registers of their dtype; None for others."""
    key = id(node)
    if key not in s.factors:
        body, combiner, dtype = node.body, node.combiner, s.tensors[node.write.tensor].dtype
        added = combiner is not None and combiner.operator == "add" and node.contract and dtype in ("f32", "f64")
        fused = added and s.target.fma and s.in_registers(node.write.tensor)
        operands = body.arguments if fused and isinstance(body, Apply) and body.operator == "mul" else ()
        reads = tuple(e.position for e in operands if isinstance(e, Read))
        alike = len(reads) == 2 and all(s.tensors[node.reads[p].tensor].dtype == dtype for p in reads)
        s.factors[key] = reads if alike else None
    return s.factors[key]


def _added(s: State, write: Access, a: Value, b: Value) -> bool:
    """Add a product to a whole vector of registers, as `_update` and `store` do it; False where none is there. The
    copies of a register tile are most of what is emitted.
    """
    lanes = s.lanes
    if lanes is None or lanes.runtime_mask is not None or s.ops.sources:
        return False
    at, stride = register_place(s, write)
    old = s.registers.entries.get((write.tensor, at))
    if stride != 1 or old is None or old.value.lanes != lanes.width or old.count != lanes.count:
        return False
    s.registers.entries[write.tensor, at] = Entry(s.ops.call("fma", *s.ops.same(a, b, old.value)), old.count)
    return True


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
