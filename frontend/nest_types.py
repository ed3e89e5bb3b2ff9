"""Conversions in bodies, as numpy puts them: operands of two dtypes meet in numpy's common one.

Literals and loop variables are weak: they take the dtype of what they are combined with, unless that is an integer and
they are not, as `i / 2`. `/` and the functions of real numbers make integers f64. Truths of elements are numpy's: the
sum of two is a truth again; comparisons of loop variables are Python's, whose sum is an integer. A choice (`x if c else
y`, `or`) has one dtype, the common one of what it may give: Python's depends on which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Final

import numpy as np

from poly.dtypes import dtype_name, is_float, is_integer, numpy_dtype
from poly.errors import ShapeError
from poly.expr import OPERATORS, Apply, Cast, Const, Expr, IndexValue, Read, apply, require_literals, walk
from poly.frontend.comparisons import MIRRORED, turned_bits, with_literal, with_u64
from poly.frontend.nest_literals import dtype_of_literals

Typed = tuple[Expr, str | None]
_OF_TRUTHS: Final = {"add": "or", "mul": "and"}  # numpy's meaning of + and * of two truths


def promoted(dtypes: Sequence[str]) -> str:
    """The common dtype of some, numpy's."""
    return dtype_name(np.result_type(*(numpy_dtype(d) for d in dtypes)))


def typed(body: Expr, reads: Sequence[str]) -> Typed:
    """The body with conversions written out, and its dtype; None where it is made of free literals only."""
    match body:
        case Const(_, dtype):
            return body, dtype
        case Read(position):
            return body, reads[position]
        case IndexValue():
            return body, "i64"
        case Cast(dtype, argument):
            inner, found = typed(argument, reads)
            if found is None:
                inner = settled(inner, dtype_of_literals(inner))
            return (inner if found == dtype else Cast(dtype, inner)), dtype
        case Apply(name, arguments):
            return _apply(name, arguments, reads)


def _apply(name: str, arguments: Sequence[Expr], reads: Sequence[str]) -> Typed:
    if name in ("and", "or", "not"):
        return Apply(name, tuple(_truth(a, reads) for a in arguments)), "bool"
    head = [_truth(arguments[0], reads)] if name == "select" else []
    operands = arguments[len(head) :]
    found = [typed(a, reads) for a in operands]
    if name == "bit_xor" and operands[1] == Const(-1) and (turned := turned_bits(*found[0])) is not None:
        return turned, found[0][1]
    if len(found) == 2 and (exact := _exact(name, *found)) is not None:
        return exact
    common = _common(name, [(o, d) for o, (_, d) in zip(operands, found, strict=True)])
    if common is None and OPERATORS[name].result == "bool":
        common = dtype_of_literals(Apply(name, tuple(operands)))
        found = [(_literal(e, common), common) for e, _ in found]
    if name.startswith("bit_") and common is not None and is_float(common):
        raise ShapeError(f"{name} of {common}: floats have no bits here", hint="integers or truths on both sides")
    converted = [e if common is None or d == common else settled(e, common) if d is None else Cast(common, e)
                 for e, d in found]  # fmt: skip
    if common == "bool" and name == "sub":
        raise ShapeError("numpy has no difference of truths", hint="p ^ q, or int(p) - int(q) for 1, 0 or -1")
    if common == "bool":
        name = _OF_TRUTHS.get(name, name)
    result = Apply(name, (*head, *converted))
    return result, "bool" if OPERATORS[name].result == "bool" else common


def _exact(name: str, a: Typed, b: Typed) -> Typed | None:
    """Comparisons and choices of operands that no dtype holds both of: u64 beside signed integers, far literals."""
    for (x, of_x), (y, of_y), named in ((a, b, name), (b, a, MIRRORED.get(name, name))):
        if of_x is None or not is_integer(of_x):
            continue
        if named in MIRRORED and isinstance(y, Const) and of_y is None and _beyond(y, of_x):
            found = with_literal(named, x, of_x, y.value)
            return None if found is None else (found, "bool")
        if of_x == "u64" and of_y is not None and of_y[0] == "i":
            return _beside_u64(named, x, y, of_y)
    return None


def _beside_u64(name: str, x: Expr, y: Expr, of_y: str) -> Typed | None:
    """`name` of a u64 and a signed integer, exact where the result is one of the two, or a truth."""
    match name:
        case "max":  # is not negative
            return apply("select", with_u64("lt", y, x), x, Cast("u64", y)), "u64"
        case "min":  # is not beyond the signed one
            return apply("select", with_u64("gt", y, x), Cast("i64", x), y if of_y == "i64" else Cast("i64", y)), "i64"
        case "select" if is_weak(y):
            hint = "u64(...) around the index where it is not negative, else i64(...) around the element"
            raise ShapeError("a choice between u64 and an index, which may be negative", hint=hint)
        case _:
            return (with_u64(MIRRORED[name], y, x), "bool") if name in MIRRORED else None


def settled(body: Expr, dtype: str) -> Expr:
    """A body of free literals as one of a dtype; a single literal needs no help."""
    match body:
        case Apply(name, arguments) if OPERATORS[name].result != "bool":
            head = 1 if name == "select" else 0
            return Apply(name, (*arguments[:head], *(_literal(a, dtype) for a in arguments[head:])))
        case _:
            return body


def assigned(body: Expr, dtype: str | None, target: str) -> Expr:
    """A typed body as an element of an array holds it: floats that are put among integers lose their fraction."""
    if dtype is not None:
        return body if dtype == target else Cast(target, body)
    if not is_integer(target):
        return settled(body, target)
    match body:
        case Const(value):
            whole = Const(int(value)) if isinstance(value, float) and isfinite(value) else body
            require_literals(whole, target, "an element")
            return whole
        case Apply("select", (condition, *choices)):
            return settled(Apply("select", (condition, *(assigned(c, None, target) for c in choices))), target)
        case _:
            return Cast(target, settled(body, dtype_of_literals(body)))


def _literal(body: Expr, dtype: str) -> Expr:
    return Const(body.value, dtype) if isinstance(body, Const) else settled(body, dtype)


def _truth(argument: Expr, reads: Sequence[str]) -> Expr:
    value, dtype = typed(argument, reads)
    if dtype is None:
        value = settled(value, dtype_of_literals(value))
    return value if dtype == "bool" or isinstance(value, Const) else Apply("ne", (value, Const(0)))


def _common(name: str, operands: Sequence[tuple[Expr, str | None]]) -> str | None:
    strong = [d for e, d in operands if d is not None and not is_weak(e)]
    weak = [d for e, d in operands if d is not None and is_weak(e)]
    free = [e for e, d in operands if d is None]
    common = promoted(strong) if strong else promoted(weak) if weak else None
    fraction = any(_has_fraction(e) for e in free) or any(is_float(d) for d in weak)
    real = OPERATORS[name].result == "float"
    if common is not None and not is_float(common) and common[0] != "c" and (fraction or real):
        return "f64"
    if common is not None and is_integer(common) and strong and _of_values(name):
        outside = any(_beyond(e, common) for e in free)  # Python compares and chooses numbers, whatever their dtype
        return "i64" if common != "u64" and (outside or weak) else common
    if common != "bool":
        return common
    if any(is_integer(d) for d in weak) or any(_has_integer(e) for e in free):
        return "i64"
    if name == "neg" or not strong and name in ("add", "sub", "mul"):
        return "i64"
    return "i8" if name in ("pow", "floor_div", "mod") else common


def _of_values(name: str) -> bool:
    """Operators that make no number of their own dtype: comparisons, choices."""
    return OPERATORS[name].result == "bool" or name in ("select", "max", "min")


def _beyond(body: Expr, dtype: str) -> bool:
    limits = np.iinfo(numpy_dtype(dtype).name)
    values = [e.value for e in walk(body) if isinstance(e, Const)]
    return any(not limits.min <= v <= limits.max for v in values)


def is_weak(body: Expr) -> bool:
    """True for loop variables and what is computed from them and literals only."""
    return all(not isinstance(e, Read | Cast) for e in walk(body)) and not any(
        isinstance(e, Const) and e.dtype is not None for e in walk(body)
    )


def _has_fraction(body: Expr) -> bool:
    return any(isinstance(v, float) for v in literals_of(body))


def _has_integer(body: Expr) -> bool:
    return any(not isinstance(v, bool | float) for v in literals_of(body))


def literals_of(body: Expr) -> Iterator[float | int | bool]:
    """The literals that a value is made of: not those that a choice or a truth only compares."""
    match body:
        case Const(value):
            yield value
        case Apply(name, arguments) if OPERATORS[name].result != "bool":
            for argument in arguments[name == "select" :]:
                yield from literals_of(argument)
        case Cast(_, argument):
            yield from literals_of(argument)
        case _:
            pass
