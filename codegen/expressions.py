"""Statement bodies: `poly.expr` trees to values, with the dtype rules for free literals of `poly.expr.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from poly.affine import Affine
from poly.codegen.addresses import LaneError, Linear
from poly.codegen.state import State
from poly.codegen.text import constant_text
from poly.codegen.values import Value
from poly.dtypes import is_float, is_integer, numpy_dtype, size_bytes
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, dtype_of_literals, is_free

_SHORT: Final = 1 << 16  # sums of numbers up to it and 16 bits are exact in f32


def expression(s: State, body: Expr, reads: Mapping[int, Value], dtype: str | None, contract: bool) -> Value:
    """The value of a body; `dtype` is what free literals become at the top."""
    if isinstance(body, Read):  # most of all
        return reads[body.position]
    match body:
        case Const(value, own):
            return s.ops.const(own or dtype or _default(value), value)
        case IndexValue(index):
            return index_value(s, index)
        case Cast(("i32" | "i64") as target, IndexValue(index)):
            return index_value(s, index, target)
        case Cast(target, argument):
            inner = _unbounded(argument, target)
            if (nearest := _nearest(s, inner, reads, target, contract)) is not None:
                return nearest
            value = expression(s, inner, reads, dtype_of_literals((inner,)), contract)
            if inner is not argument and not is_float(value.dtype):  # integers wrap around
                value = expression(s, argument, reads, dtype_of_literals((argument,)), contract)
            return s.ops.cast(value, target)
        case Apply(name, arguments):
            if contract and name in ("add", "sub"):
                fused = _contracted(s, name, arguments, reads, dtype)
                if fused is not None:
                    return fused
            return s.ops.apply(name, _operands(s, name, arguments, reads, dtype, contract))


def _unbounded(argument: Expr, dtype: str) -> Expr:
    """A number without bounds that its conversion to an integer has itself, if it is a float."""
    match argument:
        case Apply(("max" | "min") as name, (value, Const(bound))) if is_integer(dtype) and not is_free(value):
            limits = np.iinfo(numpy_dtype(dtype).name)
            idle = bound <= limits.min if name == "max" else bound >= limits.max
            return _unbounded(value, dtype) if idle else argument
        case _:
            return argument


def _nearest(
    s: State, argument: Expr, reads: Mapping[int, Value], dtype: str, contract: bool
) -> Value | None:
    """`round(v) + shift` of f32 in lanes as a short integer, where one conversion rounds; None for anything else."""
    if s.lanes is None or not s.ops.target.x86 or not is_integer(dtype) or size_bytes(dtype) > 2:
        return None
    shift = 0.0
    match argument:
        case Apply("add", (Apply("round", (v,)), Const(shift) | Cast("f32", Const(shift)))):
            pass
        case Apply("round", (v,)):
            pass
        case _:
            return None
    value = expression(s, v, reads, dtype_of_literals((v,)), contract)
    if value.dtype != "f32" or not value.lanes or not float(shift).is_integer() or abs(shift) > _SHORT:
        return None
    return s.ops.nearest(value, dtype, int(shift))


def index_value(s: State, index: Affine, dtype: str = "i64") -> Value:
    """An affine expression as an integer, one for each lane where it depends on the lane; narrow ones wrap around."""
    try:
        form = s.indices.linear(index)
    except LaneError:
        assert s.lanes is not None
        items = [Value("i64", 0, s.indices.text(s.indices.linear(index, i))) for i in range(s.lanes.count)]
        return s.ops.cast(s.ops.gather(items, s.lanes.width, "i64"), dtype)
    if form.is_constant:
        return s.ops.cast(s.ops.const("i64", form.constant), dtype)
    base = s.indices.text(Linear(form.terms, form.constant))
    base = base if dtype == "i64" else s.writer.pure(f"trunc i64 {base} to {dtype}", base)
    if not form.lane:
        return Value(dtype, 0, base)
    assert s.lanes is not None
    width = s.lanes.width
    first = 0 if form.terms else form.constant
    numbers = [form.lane * i + first for i in range(width)]
    if dtype == "i32" and not all(-(2**31) <= n < 2**31 for n in numbers):
        return s.ops.cast(index_value(s, index), dtype)
    steps = "<" + ", ".join(f"{dtype} {constant_text(dtype, n)}" for n in numbers) + ">"
    if not form.terms:
        return Value(dtype, width, steps)
    splat = s.ops.splat(Value(dtype, 0, base), width).text
    return Value(dtype, width, s.writer.pure(f"add <{width} x {dtype}> {splat}, {steps}", splat))


def _default(value: float | int | bool) -> str:
    return "bool" if isinstance(value, bool) else "i64" if isinstance(value, int) else "f64"


def _operands(
    s: State, name: str, arguments: tuple[Expr, ...], reads: Mapping[int, Value], dtype: str | None, contract: bool
) -> list[Value]:
    found = [None if is_free(a) else expression(s, a, reads, None, contract) for a in arguments]
    typed = [v for v in (found[1:] if name == "select" else found) if v is not None]
    literal = typed[0].dtype if typed else dtype_of_literals(arguments) if OPERATORS[name].result == "bool" else dtype
    return [
        expression(s, a, reads, literal, contract) if v is None else v for a, v in zip(arguments, found, strict=True)
    ]


def _contracted(
    s: State, name: str, arguments: tuple[Expr, ...], reads: Mapping[int, Value], dtype: str | None
) -> Value | None:
    """`x + a*b`, `x - a*b` and `a*b - x` of floats in one rounding; None where the body is something else."""
    left, right = arguments
    for product, other, swapped in ((right, left, False), (left, right, True)):
        if not (isinstance(product, Apply) and product.operator == "mul") or is_free(product):
            continue  # of literals only: their dtype comes from the other operand
        a, b = _operands(s, "mul", product.arguments, reads, dtype, True)
        if not is_float(a.dtype):
            return None
        x = expression(s, other, reads, a.dtype, True)
        return multiply_accumulate(s, name, a, b, x, swapped)
    return None


def multiply_accumulate(s: State, name: str, a: Value, b: Value, x: Value, swapped: bool = False) -> Value:
    """x + a*b or x - a*b; `swapped`: a*b + x or a*b - x."""
    if name == "add":
        return s.ops.multiply_add(a, b, x)
    if swapped:
        return s.ops.multiply_add(a, b, s.ops.negate(x))
    return s.ops.multiply_add(s.ops.negate(a), b, x)
