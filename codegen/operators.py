"""Every operator of `poly.expr` on every dtype that has a compiled form.

Semantics are numpy's, as `poly.expr.evaluate` gives them: maximum and minimum propagate NaN, integer division truncates
and gives 0 for a zero divisor. A power of integers with a negative exponent (an error in numpy) is 0, or +-1 for the
bases +-1. f16 and bf16 compute in f32 and round after each operation. Where a core computes in f16 itself, it does so
where that gives the same: what is once rounded from f32's 24 bits to 11 is rounded right.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np

from poly.codegen import division, instructions
from poly.codegen.values import COMPARE, NARROW, Value, Vectors
from poly.dtypes import is_float, is_integer, size_bytes
from poly.errors import UnsupportedError
from poly.expr import BITS, DOT_BF16, DOTS

_ARITHMETIC: Final = frozenset({"add", "sub", "mul"})
_LANEWISE: Final = _ARITHMETIC | {"max", "min"}
_LOGIC: Final = frozenset({"and", "or", "not"})
_BITWISE: Final = frozenset({"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})
_CHOOSING: Final = frozenset({"max", "min", "abs", "neg"})  # their results are operands but for the sign
_HALVES: Final = _ARITHMETIC | _CHOOSING | frozenset(COMPARE) | {"div", "sqrt", "floor", "ceil", "round"}
_ROUND: Final[dict[str, str]] = {"floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt"}


class Ops(Vectors):
    """The operators of the expression language, on values of any dtype."""

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c: in one rounding where the target has it."""
        a, b, c = self.same(a, b, c)
        if self.in_f32(a.dtype):
            return self.cast(self.multiply_add(*(self.cast(v, "f32") for v in (a, b, c))), a.dtype)
        if self.sources and (found := self.unarranged((a, b, c))) is not None:
            return self.arranged(self.multiply_add(*found[0]), found[1])
        if self.target.fma:
            return self.call("fma", a, b, c)
        return self.op("fadd", self.op("fmul", a, b), c)

    def negate(self, a: Value) -> Value:
        if a.literal is not None:
            return self.const(a.dtype, -a.literal, a.lanes)
        if self.in_f32(a.dtype):
            return self.cast(self.negate(self.cast(a, "f32")), a.dtype)
        if is_float(a.dtype):
            return self.op("fneg", a)
        if a.dtype == "bool":
            raise UnsupportedError("neg of a bool", hint="use not")
        return self.op("sub", self.const(a.dtype, 0, a.lanes), a)

    def apply(self, name: str, arguments: Sequence[Value]) -> Value:
        """An operator of `poly.expr.OPERATORS`. Raises `UnsupportedError` where numpy has none for the dtype."""
        if name == "select":
            return self.select(self.truth(arguments[0]), arguments[1], arguments[2])
        operands = self.same(*arguments)
        a = operands[0]
        if name == "bits":
            return self.recast(a, BITS[a.dtype])
        if a.dtype in NARROW and (name not in _HALVES or self.in_f32(a.dtype)):
            result = self.apply(name, [self.cast(o, "f32") for o in operands])
            if a.dtype == "bf16" and name in _CHOOSING:
                return self.upper_half(result)
            return result if result.dtype == "bool" else self.cast(result, a.dtype)
        if self.sources and name in _LANEWISE and (found := self.unarranged(operands)) is not None:
            return self.arranged(self.apply(name, found[0]), found[1])
        return self._operator(name, operands)

    def _operator(self, name: str, operands: Sequence[Value]) -> Value:
        """An operator on operands of one shape, of a dtype that is calculated with."""
        a = operands[0]
        if name in COMPARE:
            return self.compare(name, *operands)
        if name in _ARITHMETIC:
            return self._arithmetic(name, *operands)
        if name in _BITWISE:
            return self._bitwise(name, *operands)
        if name in _ROUND and is_float(a.dtype):
            return self.call(_ROUND[name], a)
        if name in DOTS:
            return self._dot(name, *operands)
        if name in _LOGIC:
            return self._logic(name, [self.truth(o) for o in operands])
        return self._single(name, operands)

    def _single(self, name: str, operands: Sequence[Value]) -> Value:
        """An operator that is in no table of them."""
        a = operands[0]
        match name:
            case "div" if is_float(a.dtype):
                return self.op("fdiv", *operands)
            case "trunc_div" if is_integer(a.dtype):
                return division.truncated(self, *operands)
            case "floor_div" | "mod" if a.dtype != "bool":
                return division.floored(self, name, *operands)
            case "neg":
                return self.negate(a)
            case "max" | "min":
                return self._extreme(name, *operands)
            case "abs":
                return self._abs(a)
            case "sign":
                return self._sign(a)
            case "pow" if is_integer(a.dtype):
                return self._integer_power(*operands)
            case "fmod" if is_float(a.dtype):
                return division.remainder(self, *operands)
            case _ if is_float(a.dtype):
                from poly.codegen import vector_math

                return vector_math.function(self, name, operands)
            case _:
                raise UnsupportedError(f"{name} of {a.dtype}", hint="convert the operand with a cast")

    def _dot(self, name: str, a: Value, b: Value) -> Value:
        if name == DOT_BF16:
            return instructions.dot_of_bf16(self, a, b)
        return instructions.dot(self, name, a, b, self.const("i32", 0, a.lanes))

    def _logic(self, name: str, truths: Sequence[Value]) -> Value:
        if name == "not":
            return self.op("xor", *truths, self.const("bool", True, truths[0].lanes), dtype="bool")
        return self.op(name, *truths, dtype="bool")

    def _arithmetic(self, name: str, a: Value, b: Value) -> Value:
        if is_float(a.dtype):
            return self.op(f"f{name}", a, b)
        if a.dtype == "bool":
            if name == "sub":
                raise UnsupportedError("sub of bools", hint="use !=, or convert with a cast")
            return self.op("or" if name == "add" else "and", a, b)
        return self.op(name, a, b)

    def _bitwise(self, name: str, a: Value, b: Value) -> Value:
        if name.startswith("bit_") and not is_float(a.dtype):
            return self.op(name.removeprefix("bit_"), a, b)
        if is_integer(a.dtype):
            return self._shift(name, a, b)
        raise UnsupportedError(f"{name} of {a.dtype}", hint="convert the operands to integers")

    def _extreme(self, name: str, a: Value, b: Value) -> Value:
        if a.dtype == "bool":
            return self.op("or" if name == "max" else "and", a, b)
        if is_integer(a.dtype):
            return self.call(("s" if a.dtype[0] == "i" else "u") + name, a, b)
        if b.literal is not None and not np.isnan(b.literal):
            a, b = b, a
        if a.literal == (float("-inf") if name == "max" else float("inf")):
            return b
        if a.literal is None or np.isnan(a.literal):
            a, b = b, a  # of a reduction the first is what there is so far: nothing but the choice waits for it
        # `a > b ? a : b` gives b where one is NaN: right already where a is a number
        chosen = self.select(self.compare("gt" if name == "max" else "lt", a, b), a, b)
        if a.literal is not None and not np.isnan(a.literal):
            return chosen
        return self.select(self.op("fcmp uno", a, a, dtype="bool"), a, chosen)

    def _abs(self, a: Value) -> Value:
        if is_float(a.dtype):
            return self.call("fabs", a)
        return self.flag("abs", a, "false") if a.dtype[0] == "i" else a

    def _sign(self, a: Value) -> Value:
        if a.dtype == "bool":
            raise UnsupportedError("sign of a bool", hint="convert with a cast")
        zero, one = self.const(a.dtype, 0, a.lanes), self.const(a.dtype, 1, a.lanes)
        positive = self.compare("gt", a, zero)
        if a.dtype[0] == "u":
            return self.select(positive, one, zero)
        rest = self.select(self.compare("lt", a, zero), self.const(a.dtype, -1, a.lanes), zero)
        if is_float(a.dtype):
            rest = self.select(self.op("fcmp uno", a, a, dtype="bool"), a, rest)
        return self.select(positive, one, rest)

    def _shift(self, name: str, a: Value, count: Value) -> Value:
        """Counts that are not below the width shift everything out."""
        signed, zero = a.dtype[0] == "i", self.const(a.dtype, 0, a.lanes)
        width = 8 * size_bytes(a.dtype)
        inside = self.compare("lt", count, self.const(a.dtype, width, a.lanes))
        if signed:
            inside = self.op("and", inside, self.compare("ge", count, zero), dtype="bool")
        safe = self.select(inside, count, zero)
        if name == "shift_left":
            return self.select(inside, self.op("shl", a, safe), zero)
        beyond = self.op("ashr", a, self.const(a.dtype, width - 1, a.lanes)) if signed else zero
        return self.select(inside, self.op("ashr" if signed else "lshr", a, safe), beyond)

    def _integer_power(self, a: Value, b: Value) -> Value:
        """Square and multiply over the exponent's bits, 64 at most; known exponents take only their own bits."""
        if b.literal is not None and 0 <= b.literal <= 64:
            return self._literal_power(a, int(b.literal))
        signed, zero, one = a.dtype[0] == "i", self.const(a.dtype, 0, a.lanes), self.const(a.dtype, 1, a.lanes)
        result, base, exponent = one, a, b
        for _ in range(8 * size_bytes(a.dtype) - signed):
            odd = self.op("and", exponent, one)
            result = self.select(self.compare("ne", odd, zero), self.op("mul", result, base), result)
            base = self.op("mul", base, base)
            exponent = self.op("lshr", exponent, one)
        if not signed:
            return result
        minus = self.const(a.dtype, -1, a.lanes)
        is_one = self.compare("eq", a, one)
        odd = self.compare("ne", self.op("and", b, one), zero)
        unit = self.select(is_one, one, self.select(self.compare("eq", a, minus), self.select(odd, minus, one), zero))
        return self.select(self.compare("lt", b, zero), unit, result)

    def _literal_power(self, a: Value, exponent: int) -> Value:
        factors: list[Value] = []
        base = a
        while exponent:
            if exponent & 1:
                factors.append(base)
            exponent >>= 1
            if exponent:
                base = self.op("mul", base, base)
        return reduce(lambda x, y: self.op("mul", x, y), factors) if factors else self.const(a.dtype, 1, a.lanes)
