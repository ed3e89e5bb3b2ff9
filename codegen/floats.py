"""Arithmetic on values of one floating dtype and one number of lanes: what the functions of vector math are made of.

Scalars and vectors go through the same operations, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from poly.codegen.operators import Ops
from poly.codegen.values import Value

MAGIC: Final = {"f32": 12582912.0, "f64": 6755399441055744.0}  # 1.5 * 2^23, 1.5 * 2^52: adding it rounds to an integer
MANTISSA: Final = {"f32": 23, "f64": 52}
BIAS: Final = {"f32": 127, "f64": 1023}
LOG2E: Final = 1.4426950408889634


class Floats:
    """Arithmetic on values of one floating dtype and one number of lanes."""

    def __init__(self, ops: Ops, dtype: str, lanes: int) -> None:
        self.ops, self.dtype, self.lanes = ops, dtype, lanes
        self.bits_type = "i32" if dtype == "f32" else "i64"
        self.width = 32 if dtype == "f32" else 64

    def c(self, value: float) -> Value:
        return self.ops.const(self.dtype, value, self.lanes)

    def i(self, value: int) -> Value:
        return self.ops.const(self.bits_type, value, self.lanes)

    def add(self, a: Value, b: Value) -> Value:
        return self.ops.op("fadd", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.ops.op("fsub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.ops.op("fmul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.ops.op("fdiv", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.ops.multiply_add(a, b, c)

    def abs(self, a: Value) -> Value:
        return self.ops.call("fabs", a)

    def sign_of(self, magnitude: Value, sign: Value) -> Value:
        return self.ops.call("copysign", magnitude, sign)

    def when(self, condition: Value, a: Value, b: Value) -> Value:
        return self.ops.select(condition, a, b)

    def less(self, a: Value, b: Value) -> Value:
        return self.ops.compare("lt", a, b)

    def equal(self, a: Value, b: Value) -> Value:
        return self.ops.compare("eq", a, b)

    def unordered(self, a: Value, b: Value) -> Value:
        return self.ops.op("fcmp uno", a, b, dtype="bool")

    def at_most(self, a: Value, limit: float) -> Value:
        """min(a, limit); NaN stays."""
        return self.when(self.less(self.c(limit), a), self.c(limit), a)

    def at_least(self, a: Value, limit: float) -> Value:
        return self.when(self.less(a, self.c(limit)), self.c(limit), a)

    def int_op(self, name: str, a: Value, b: Value) -> Value:
        return self.ops.op(name, a, b)

    def recast(self, a: Value, dtype: str) -> Value:
        """The same bits as another dtype."""
        return self.ops.recast(a, dtype)

    def bits(self, a: Value) -> Value:
        return self.recast(a, self.bits_type)

    def floating(self, a: Value) -> Value:
        return self.recast(a, self.dtype)

    def powers(self, x: Value, most: int) -> list[Value]:
        """x, x^2, x^4 ... as far as a polynomial of degree `most` needs them."""
        found = [x]
        while 2 << (len(found) - 1) <= most:
            found.append(self.mul(found[-1], found[-1]))
        return found

    def poly(self, x: Value | Sequence[Value], coefficients: Sequence[float]) -> Value:
        """Estrin's scheme (short chains), constant term first in `coefficients`; x, or what `powers` gives."""
        powers = self.powers(x, len(coefficients) - 1) if isinstance(x, Value) else x
        terms = [self.c(c) for c in coefficients]
        for power in powers:
            if len(terms) == 1:
                break
            pairs = [self.fma(b, power, a) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(terms) - len(terms) % 2 :]
        return terms[0]

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The fewest operations, one after another: for chains that others run beside; constant term first."""
        found = self.c(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            found = self.fma(found, x, self.c(c))
        return found

    def round(self, x: Value, factor: float, offset: int = 0, fraction: int = 0) -> tuple[Value, Value]:
        """round(x * factor) as a float, and bits whose lowest ones are that integer plus the offset; with so many bits
        after the binary point.
        """
        magic = self.c((MAGIC[self.dtype] + offset) / (1 << fraction))
        shifted = self.fma(x, self.c(factor), magic)
        return self.sub(shifted, magic), self.bits(shifted)

    def scaled(self, p: Value, shifted: Value) -> Value:
        """(1 + p) * 2^n with n and an offset of twice the bias from `round`; in two factors, so that denormals and
        overflow come out right.
        """
        high, low = self.halves(shifted)
        first = self.floating(low)
        return self.mul(self.fma(p, first, first), self.floating(high))

    def halves(self, shifted: Value, fraction: int = 0) -> tuple[Value, Value]:
        """Bits of two powers of two whose exponents add up to an integer, and the second half of that, rounded down.
        The lowest `fraction` bits of `shifted` come after the integer; they stay on top of the first one's mantissa.
        """
        mantissa = MANTISSA[self.dtype]
        # half of the integer is the exponent of the one factor: the constant's bits are shifted out
        doubled = self.int_op("shl", shifted, self.i(mantissa - fraction - 1))
        low = self.int_op("and", doubled, self.i(((1 << (self.width - 1 - mantissa)) - 1) << mantissa))
        return self.int_op("sub", self.int_op("shl", shifted, self.i(mantissa - fraction)), low), low

    def rare(self, condition: Value, usual: Value, otherwise: Callable[[], Value]) -> Value:
        """`usual`, but what `otherwise` computes in the lanes where the condition holds; costs little where it does
        not hold in any.
        """
        return self.ops.unlikely(condition, usual, lambda: self.when(condition, otherwise(), usual))
