"""Comparisons compare numbers, whatever dtypes hold them: in notation both sides are converted to one that holds both.

`x[i] == b` with an index b, i32 against u32, u8 against -1: conversions are written out here, and a literal that the
other side's integers lack is replaced by one that decides alike (`b >= 0.5` is `b >= 1`, `u < 300` is `u <= 255`).
Literals beside floats are rounded to them, as everywhere. Elements of 64-bit integers beside floats have no dtype that
holds both, and stay for `dtype_of` to refuse. Nests, which convert as numpy does, compare what it compares exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isinf, isnan
from typing import Final

import numpy as np

from poly.dtypes import is_float, is_integer, numpy_dtype, size_bytes
from poly.errors import ShapeError
from poly.expr import Apply, Cast, Const, Expr, IndexValue, Read, apply, dtype_of, is_free, rewrite, walk

MIRRORED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_BELOW: Final = frozenset({"ne", "lt", "le"})  # what a number below all others is to them
_ABOVE: Final = frozenset({"ne", "gt", "ge"})


def comparable(body: Expr, reads: Sequence[str]) -> Expr:
    """The body with the conversions that its comparisons, `and` and `or` need; `reads`: dtypes."""

    def rule(node: Expr) -> Expr | None:
        try:
            match node:
                case Apply(name, (a, b)) if name in MIRRORED:
                    return _compared(name, a, b, reads)
                case Apply("and" | "or" as name, operands):
                    return _truths(name, operands, reads)
                case Apply("bit_xor", (a, Const(-1))):
                    return turned_bits(a, dtype_of(a, reads))
                case _:
                    return None
        except ShapeError:
            return None  # `dtype_of` says so with the statement

    return rewrite(body, rule)


def turned_bits(value: Expr, dtype: str | None) -> Expr | None:
    """`~x` of unsigned integers, which have no -1; None of others."""
    if dtype is None or dtype[0] != "u":
        return None
    return apply("bit_xor", value, Const(int(np.iinfo(numpy_dtype(dtype).name).max)))


def _compared(name: str, a: Expr, b: Expr, reads: Sequence[str]) -> Expr | None:
    of_a, of_b = dtype_of(a, reads), dtype_of(b, reads)
    if is_free(a) and of_b is not None:
        return with_literal(MIRRORED[name], b, of_b, _number(a))
    if is_free(b) and of_a is not None:
        return with_literal(name, a, of_a, _number(b))
    if of_a == of_b or of_a is None or of_b is None:
        return None
    if of_a == "u64" and of_b[0] == "i":
        return with_u64(MIRRORED[name], b, a)
    if of_b == "u64" and of_a[0] == "i":
        return with_u64(name, a, b)
    common = _holding(_narrowest(a, of_a), _narrowest(b, of_b))
    return None if common is None else apply(name, _cast(a, of_a, common), _cast(b, of_b, common))


def _cast(value: Expr, dtype: str, common: str) -> Expr:
    return value if dtype == common else Cast(common, value)


def _narrowest(value: Expr, dtype: str) -> str:
    """What is made of indices only has fewer bits than f64 holds."""
    only = dtype == "i64" and not any(isinstance(e, Read | Cast) for e in walk(value))
    return "index" if only and any(isinstance(e, IndexValue) for e in walk(value)) else dtype


def _holding(a: str, b: str) -> str | None:
    """The dtype that holds the numbers of both; None where there is none."""
    if a[0] == "c" or b[0] == "c":
        return None
    if "bool" in (a, b):
        other = b if a == "bool" else a
        return "i64" if other == "index" else other
    floats = [d for d in (a, b) if d != "index" and is_float(d)]
    if not floats:
        if "index" in (a, b):
            return "i64"
        bits = max(8 * size_bytes(d) * (1 if d[0] == "i" else 2) for d in (a, b))
        if a[0] == b[0] == "u":
            bits //= 2
        return f"{a[0] if a[0] == b[0] else 'i'}{bits}"
    if {"i64", "u64"} & {a, b}:
        return None
    wide = {"index", "i32", "u32", "f64"} & {a, b}
    return "f64" if wide else "f32"


def with_u64(name: str, signed: Expr, unsigned: Expr) -> Expr:
    """A signed integer beside a u64: below all of them, or one."""
    inside = apply(name, Cast("u64", signed), unsigned)
    if name in _BELOW:
        return apply("or", apply("lt", signed, Const(0)), inside)
    return apply("and", apply("ge", signed, Const(0)), inside)


def with_literal(name: str, value: Expr, dtype: str, number: float | None) -> Expr | None:
    """The comparison of integers or truths with a literal, by one that they have."""
    if number is None or not (is_integer(dtype) or dtype == "bool"):
        return None
    limits = np.iinfo(numpy_dtype(dtype).name) if dtype != "bool" else None
    least, most = (0, 1) if limits is None else (int(limits.min), int(limits.max))
    always, never = apply("ge", value, Const(least)), apply("lt", value, Const(least))
    if isnan(number):
        return always if name == "ne" else never
    if isinf(number) or not least <= number <= most:
        return always if name in (_ABOVE if number < least else _BELOW) else never
    if number == int(number):
        return apply(name, value, Const(int(number)))
    if name in ("eq", "ne"):
        return always if name == "ne" else never
    return apply(name, value, Const(floor(number) if name in ("gt", "le") else ceil(number)))


def _number(literal: Expr) -> float | None:
    """The value of free literals; None of functions of them."""
    match literal:
        case Const(value):
            return int(value) if isinstance(value, bool) else value
        case Apply("neg", (a,)):
            inner = _number(a)
            return None if inner is None else -inner
        case Apply("add" | "sub" | "mul" | "div" as name, (left, right)):
            a, b = _number(left), _number(right)
            if a is None or b is None or (name == "div" and b == 0):
                return None
            return {"add": a.__add__, "sub": a.__sub__, "mul": a.__mul__, "div": a.__truediv__}[name](b)
        case _:
            return None


def _truths(name: str, operands: Sequence[Expr], reads: Sequence[str]) -> Expr | None:
    """Operands of several dtypes, each as a truth of its own."""
    found = [dtype_of(o, reads) for o in operands]
    if len(set(found)) == 1:
        return None
    return apply(name, *(_truth(o, d) for o, d in zip(operands, found, strict=True)))


def _truth(value: Expr, dtype: str | None) -> Expr:
    if isinstance(value, Const) and dtype is None:
        return Const(bool(value.value))
    return value if dtype in (None, "bool") else apply("ne", value, Const(0))
