"""Quotients and remainders: `trunc_div` of integers and `fmod` of floats are C's; `floor_div` and `mod` are Python's
`//` and `%`, as numpy has them, whose remainder has the sign of the divisor. Integers give 0 for a divisor 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poly.dtypes import is_float, size_bytes

if TYPE_CHECKING:
    from poly.codegen.operators import Ops
    from poly.codegen.values import Value


def truncated(ops: Ops, a: Value, b: Value) -> Value:
    """The quotient of integers without its fraction; 0 for a divisor 0."""
    zero, one = ops.const(a.dtype, 0, a.lanes), ops.const(a.dtype, 1, a.lanes)
    if b.literal is not None and b.literal not in (0, -1):
        return ops.op("sdiv" if a.dtype[0] == "i" else "udiv", a, b)
    by_zero = ops.compare("eq", b, zero)
    if a.dtype[0] == "u":
        quotient = _quotient(ops, a, ops.select(by_zero, one, b))
        return ops.select(by_zero, zero, quotient)
    by_minus = ops.compare("eq", b, ops.const(a.dtype, -1, a.lanes))
    unsafe = ops.op("or", by_zero, by_minus, dtype="bool")
    quotient = _quotient(ops, a, ops.select(unsafe, one, b))
    quotient = ops.select(by_minus, ops.op("sub", zero, a), quotient)
    return ops.select(by_zero, zero, quotient)


def _quotient(ops: Ops, a: Value, b: Value) -> Value:
    """The quotient for a divisor other than 0 and -1. No core divides integers in lanes; floats with more bits give the
    same, as a quotient that is no integer is at least 1/b below the next one, which rounding does not reach.
    """
    if not a.lanes or size_bytes(a.dtype) > 4:
        return ops.op("sdiv" if a.dtype[0] == "i" else "udiv", a, b)
    real = "f64" if size_bytes(a.dtype) == 4 else "f32"
    return ops.whole(ops.op("fdiv", ops.cast(a, real), ops.cast(b, real)), a.dtype)


def remainder(ops: Ops, a: Value, b: Value) -> Value:
    """The exact remainder of floats, with the sign of the dividend.

    While the quotient is a small number, rounding can only have made it the next integer, and `a - quotient*b` is
    exact either way, as both are multiples of the smaller one's last place and the difference is below b.
    """
    if not ops.target.fma:
        return ops.op("frem", a, b)
    zero, most = ops.const(a.dtype, 0.0, a.lanes), ops.const(a.dtype, 2.0 ** (51 if a.dtype == "f64" else 22), a.lanes)
    quotient = ops.call("trunc", ops.op("fdiv", a, b))
    rest = ops.call("fma", ops.op("fneg", quotient), b, a)
    beyond = ops.compare("ne", ops.call("copysign", rest, a), rest)
    rest = ops.select(beyond, ops.op("fadd", rest, ops.call("copysign", b, a)), rest)
    small = ops.select(ops.compare("eq", quotient, zero), a, ops.call("copysign", rest, a))
    large = ops.op("fcmp uge", ops.call("fabs", quotient), most, dtype="bool")  # or not a number
    return ops.unlikely(large, small, lambda: ops.op("frem", a, b))


def floored(ops: Ops, name: str, a: Value, b: Value) -> Value:
    """`floor_div` or `mod`."""
    if is_float(a.dtype):
        return _of_floats(ops, name, a, b)
    signed, zero = a.dtype[0] == "i", ops.const(a.dtype, 0, a.lanes)
    known = int(b.literal or 0)
    if known > 0 and known & (known - 1) == 0:  # a power of two
        if name == "mod":
            return ops.op("and", a, ops.const(a.dtype, known - 1, a.lanes))
        return ops.op("ashr" if signed else "lshr", a, ops.const(a.dtype, known.bit_length() - 1, a.lanes))
    quotient = truncated(ops, a, b)
    rest = ops.op("sub", a, ops.op("mul", quotient, b))
    if signed:
        unlike = ops.compare("lt", ops.op("xor", rest, b), zero)
        unlike = ops.op("and", unlike, ops.compare("ne", rest, zero), dtype="bool")
        if name == "mod":
            rest = ops.select(unlike, ops.op("add", rest, b), rest)
        else:
            quotient = ops.select(unlike, ops.op("sub", quotient, ops.const(a.dtype, 1, a.lanes)), quotient)
    found = rest if name == "mod" else quotient
    return found if b.literal else ops.select(ops.compare("eq", b, zero), zero, found)


def _of_floats(ops: Ops, name: str, a: Value, b: Value) -> Value:
    """As numpy's `npy_divmod`: by the exact remainder, so that a quotient just below an integer is not rounded up."""
    zero, one, half = (ops.const(a.dtype, value, a.lanes) for value in (0.0, 1.0, 0.5))
    rest = remainder(ops, a, b)
    whole = ops.compare("eq", rest, zero)
    unlike = ops.op("xor", ops.compare("lt", rest, zero), ops.compare("lt", b, zero), dtype="bool")
    unlike = ops.op("and", unlike, ops.compare("ne", rest, zero), dtype="bool")
    if name == "mod":
        return ops.select(unlike, ops.op("fadd", rest, b), ops.select(whole, ops.call("copysign", zero, b), rest))
    quotient = ops.op("fdiv", ops.op("fsub", a, rest), b)
    quotient = ops.select(unlike, ops.op("fsub", quotient, one), quotient)
    below = ops.call("floor", quotient)
    far = ops.compare("gt", ops.op("fsub", quotient, below), half)
    found = ops.select(far, ops.op("fadd", below, one), below)
    plain = ops.op("fdiv", a, b)
    found = ops.select(ops.compare("eq", quotient, zero), ops.call("copysign", zero, plain), found)
    return ops.select(ops.compare("eq", b, zero), plain, found)
