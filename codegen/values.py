"""Typed scalar and vector expressions: every operator of `poly.expr` on every dtype that has a compiled form.

Semantics are numpy's, as `poly.expr.evaluate` gives them: maximum and minimum propagate NaN, integer division truncates
and gives 0 for a zero divisor, conversions from float to integer truncate and saturate (NaN becomes 0). A power of
integers with a negative exponent (an error in numpy) is 0, or +-1 for the bases +-1. f16 and bf16 compute in f32 and
round after each operation; conversions to them from f64 and wide integers go through f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Final, NamedTuple

import numpy as np

from poly.codegen import division
from poly.codegen.target import Target
from poly.codegen.text import Writer, constant_text, rounded, scalar_type, suffix, value_type
from poly.dtypes import is_float, is_integer, numpy_dtype, size_bytes
from poly.errors import UnsupportedError
from poly.expr import BITS, DOTS


class Value(NamedTuple):
    """A value in SSA form. `lanes` 0: scalar. `literal`: its number (in every lane) where it is known."""

    dtype: str
    lanes: int
    text: str
    literal: float | int | bool | None = None


NARROW: Final = frozenset({"f16", "bf16"})  # kept in two bytes, each operation done in f32 and rounded
_COMPARE: Final[dict[str, tuple[str, str, str]]] = {  # floats, signed, unsigned and bool
    "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"), "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip
_ARITHMETIC: Final = frozenset({"add", "sub", "mul"})
_LANEWISE: Final = _ARITHMETIC | {"max", "min"}
_BITWISE: Final = frozenset({"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})
_ROUND: Final[dict[str, str]] = {"floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt"}


@lru_cache(maxsize=1024)
def _mask(places: tuple[int | None, ...]) -> str:
    """The lanes that a shuffle takes."""
    return f"<{len(places)} x i32> <{', '.join('i32 poison' if p is None else f'i32 {p}' for p in places)}>"


class Ops:
    """Emits typed instructions for a target through a writer."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self.writer, self.target = writer, target
        self.uniform: set[str] = set()  # vectors with the same scalar in every lane
        self.sources: dict[str, tuple[Value, tuple[int, ...]]] = {}  # what `arranged` made, and of what

    def const(self, dtype: str, value: float | int | bool, lanes: int = 0) -> Value:
        """A literal, in every lane for a vector."""
        if is_float(dtype):
            value = float(rounded(dtype, value))
        text = constant_text(dtype, value)
        return Value(dtype, lanes, f"splat ({scalar_type(dtype)} {text})" if lanes else text, value)

    def splat(self, a: Value, lanes: int) -> Value:
        """A scalar in every lane; vectors and, for `lanes` 0, scalars stay."""
        if a.lanes == lanes:
            return a
        if a.literal is not None:
            return self.const(a.dtype, a.literal, lanes)
        kind = value_type(a.dtype, lanes)
        text = f"insertelement {kind} poison, {scalar_type(a.dtype)} {a.text}, i64 0"
        shuffle = f"shufflevector {kind} {{}}, {kind} poison, <{lanes} x i32> zeroinitializer"
        writer = self.writer
        if a.text in writer.depth_of:
            one = writer.pure(text, a.text)
            every = writer.pure(shuffle.format(one), one)
        else:
            every = writer.cached(shuffle.format(writer.cached(text)))
        self.uniform.add(every)
        return Value(a.dtype, lanes, every)

    def same(self, *values: Value) -> list[Value]:
        """Scalars become vectors where one is a vector."""
        lanes = max(v.lanes for v in values)
        return [self.splat(v, lanes) for v in values]

    def lane(self, a: Value, index: int) -> Value:
        """One lane as a scalar."""
        if not a.lanes or a.literal is not None:
            return Value(a.dtype, 0, a.text) if not a.lanes else self.const(a.dtype, a.literal or 0)
        return Value(
            a.dtype, 0, self.writer.value(f"extractelement {value_type(a.dtype, a.lanes)} {a.text}, i64 {index}")
        )

    def shuffle(self, a: Value, b: Value | None, places: Sequence[int | None]) -> Value:
        """The lanes of two vectors at places (those of `b` come after those of `a`; None: any); each once."""
        kind = value_type(a.dtype, a.lanes)
        other = "poison" if b is None else b.text
        text = f"shufflevector {kind} {a.text}, {kind} {other}, {_mask(tuple(places))}"
        return Value(a.dtype, len(places), self.writer.cached(text))

    def arranged(self, a: Value, order: tuple[int, ...]) -> Value:
        """The lanes of a vector in order, where lane k of it is to become lane order[k].

        Operations lane by lane on such vectors, and on scalars, are done in the order in which the lanes are, and only
        their result is arranged; what nobody uses of that, instruction selection drops.
        """
        places = sorted(range(len(order)), key=order.__getitem__)
        result = self.shuffle(a, None, places)
        self.sources[result.text] = a, order
        return result

    def _unarranged(self, operands: Sequence[Value]) -> tuple[list[Value], tuple[int, ...]] | None:
        """What operands were arranged from, and how, where that is the same for all but scalars in every lane."""
        found = [self.sources.get(v.text) for v in operands]
        orders = {f[1] for f in found if f is not None}
        fits = all(f or v.literal is not None or v.text in self.uniform for f, v in zip(found, operands, strict=True))
        if len(orders) != 1 or not fits:
            return None
        return [v if f is None else f[0] for f, v in zip(found, operands, strict=True)], orders.pop()

    def widened(self, a: Value, lanes: int) -> Value:
        """A vector with so many lanes, of which those after its own mean nothing."""
        a = self.splat(a, a.lanes or lanes)
        return a if a.lanes == lanes else self.shuffle(a, None, [*range(a.lanes), *[None] * (lanes - a.lanes)])

    def joined(self, a: Value, b: Value) -> Value:
        """The lanes of two vectors, one behind the other; the shorter one is widened."""
        lanes = max(a.lanes, b.lanes)
        places = [*range(a.lanes), *range(lanes, lanes + b.lanes)]
        return self.shuffle(self.widened(a, lanes), self.widened(b, lanes), places)

    def as_it_is(self, a: Value) -> Value:
        """A vector of floats that instruction selection takes from where it is made, without a look at how."""
        if a.dtype not in ("f32", "f64"):
            return a
        kind, name = value_type(a.dtype, a.lanes), f"llvm.arithmetic.fence.{suffix(a.dtype, a.lanes)}"
        self.writer.declare(f"{kind} @{name}({kind})")
        return Value(a.dtype, a.lanes, self.writer.cached(f"call {kind} @{name}({kind} {a.text})"))

    def part(self, a: Value, start: int, count: int) -> Value:
        """The lanes start .. start + count - 1."""
        if a.literal is not None:
            return self.const(a.dtype, a.literal, count)
        return self.shuffle(a, None, range(start, start + count))

    def gather(self, lanes: Sequence[Value | None], width: int, dtype: str) -> Value:
        """A vector from scalars; lanes that are None or missing are 0."""
        text = "poison" if len(lanes) == width and None not in lanes else "zeroinitializer"
        for i, item in enumerate(lanes):
            if item is not None:
                kind = f"insertelement {value_type(dtype, width)} {text}, {scalar_type(dtype)} {item.text}, i64 {i}"
                text = self.writer.value(kind)
        return Value(dtype, width, text)

    def op(self, text: str, like: Value, *operands: Value, dtype: str | None = None) -> Value:
        """`text <type> a, b`, giving the type of `like` or one of `dtype`."""
        kind = value_type(operands[0].dtype, operands[0].lanes)
        name = self.writer.value(f"{text} {kind} {', '.join(o.text for o in operands)}")
        return Value(dtype or like.dtype, like.lanes, name)

    def recast(self, a: Value, dtype: str) -> Value:
        """The same bits as another dtype."""
        source, target = value_type(a.dtype, a.lanes), value_type(dtype, a.lanes)
        return Value(dtype, a.lanes, self.writer.value(f"bitcast {source} {a.text} to {target}"))

    def call(self, name: str, *operands: Value, dtype: str | None = None) -> Value:
        """An overloaded intrinsic on operands of one type."""
        a = operands[0]
        kind = value_type(a.dtype, a.lanes)
        full = f"llvm.{name}.{suffix(a.dtype, a.lanes)}"
        text = self.writer.intrinsic(kind, full, tuple((value_type(o.dtype, o.lanes), o.text) for o in operands))
        return Value(dtype or a.dtype, a.lanes, text)

    def flag(self, name: str, a: Value, immediate: str) -> Value:
        """An intrinsic with an extra `i1` immediate (`llvm.abs`)."""
        kind = value_type(a.dtype, a.lanes)
        full = f"llvm.{name}.{suffix(a.dtype, a.lanes)}"
        return Value(a.dtype, a.lanes, self.writer.intrinsic(kind, full, ((kind, a.text), ("i1", immediate))))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """a where the condition holds, else b."""
        condition, a, b = self.same(condition, a, b)
        if condition.literal is not None:
            return a if condition.literal else b
        kind = value_type(a.dtype, a.lanes)
        text = f"select {value_type('bool', a.lanes)} {condition.text}, {kind} {a.text}, {kind} {b.text}"
        return Value(a.dtype, a.lanes, self.writer.value(text))

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """eq, ne, lt, le, gt, ge; comparisons with NaN are false, ne is true."""
        a, b = self.same(a, b)
        if a.dtype in NARROW:
            a, b = self.cast(a, "f32"), self.cast(b, "f32")
        floating, signed, unsigned = _COMPARE[name]
        if is_float(a.dtype):
            return self.op(f"fcmp {floating}", a, a, b, dtype="bool")
        return self.op(f"icmp {signed if a.dtype[0] == 'i' else unsigned}", a, a, b, dtype="bool")

    def truth(self, a: Value) -> Value:
        """a != 0; NaN is true."""
        return a if a.dtype == "bool" else self.compare("ne", a, self.const(a.dtype, 0, a.lanes))

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c: in one rounding where the target has it."""
        a, b, c = self.same(a, b, c)
        if a.dtype in NARROW:
            return self.cast(self.multiply_add(*(self.cast(v, "f32") for v in (a, b, c))), a.dtype)
        if self.sources and (found := self._unarranged((a, b, c))) is not None:
            return self.arranged(self.multiply_add(*found[0]), found[1])
        if self.target.fma:
            return self.call("fma", a, b, c)
        return self.op("fadd", a, self.op("fmul", a, a, b), c)

    def chosen(self, table: Sequence[int], index: Value) -> Value:
        """table[index] for 32-bit integers; of an index only the lowest bits count, as many as the table's length, a
        power of two and a divisor of `self.target.table`, needs.
        """
        width = self.target.table
        name = "avx512.permvar.si.512" if width == 16 else "avx2.permd"
        numbers = f"<{', '.join(f'i32 {v}' for v in (*table,) * (width // len(table)))}>"
        kind = f"<{width} x i32>"

        def one(part: Value) -> str:
            return self.writer.intrinsic(kind, f"llvm.x86.{name}", ((kind, numbers), (kind, part.text)))

        return self._by_whole(width, one, index)

    def scaled(self, a: Value, n: Value) -> Value:
        """a * 2^floor(n) in one rounding, whatever n is: a finite positive number becomes 0, infinite or NaN."""
        return self._masked("scalef", a, n)

    def limited(self, a: Value, limit: float) -> Value:
        """a where its magnitude is below the limit, else the limit with the sign of a; of NaN, too."""
        return self._masked("range", a, self.const(a.dtype, limit, a.lanes), "2")

    def _masked(self, name: str, a: Value, b: Value, *immediate: str) -> Value:
        """An instruction of AVX-512 in every lane, in the rounding mode that is set."""
        width = 64 // size_bytes(a.dtype)
        kind = value_type(a.dtype, width)
        full = f"llvm.x86.avx512.mask.{name}.{'ps' if a.dtype == 'f32' else 'pd'}.512"
        rest = [*(("i32", i) for i in immediate), (kind, "poison"), (f"i{width}", "-1"), ("i32", "4")]

        def one(x: Value, y: Value) -> str:
            return self.writer.intrinsic(kind, full, ((kind, x.text), (kind, y.text), *rest))

        return self._by_whole(width, one, a, b)

    def dot(self, name: str, a: Value, b: Value, total: Value) -> Value:
        """total + an operator of `poly.expr.DOTS` on a and b."""
        a, b, total = self.same(a, b, total)
        width = self.target.dots.get(name, 0)
        if not a.lanes or not width:
            return self.op("add", total, total, self._dot_of_parts(name, a, b))
        kind = f"<{width} x i32>"

        def four(x: Value, y: Value, z: Value) -> str:
            full = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
            return self.writer.intrinsic(kind, full, ((kind, z.text), (kind, x.text), (kind, y.text)))

        def two(x: Value, y: Value, z: Value) -> str:  # where there is one instruction for both, LLVM takes it
            halves = f"<{2 * width} x i16>"
            full = "llvm.x86.avx512.pmaddw.d.512" if width == 16 else "llvm.x86.avx2.pmadd.wd"
            parts = tuple((halves, self.writer.value(f"bitcast {kind} {v.text} to {halves}")) for v in (x, y))
            return self.writer.value(f"add {kind} {z.text}, {self.writer.intrinsic(kind, full, parts)}")

        return self._by_whole(width, four if name == "dot4" else two, a, b, total)

    def _dot_of_parts(self, name: str, a: Value, b: Value) -> Value:
        """The operator by shifts and products."""
        bits = 32 // DOTS[name]
        top = self.const("i32", 32 - bits, a.lanes)
        products: list[Value] = []
        for place in range(0, 32, bits):
            up = self.const("i32", 32 - bits - place, a.lanes)
            x, y = (self.op("shl", v, v, up) for v in (a, b))
            x = self.op("lshr" if name == "dot4" else "ashr", x, x, top)
            products.append(self.op("mul", x, x, self.op("ashr", y, y, top)))
        return reduce(lambda x, y: self.op("add", x, x, y), products)

    def _by_whole(self, width: int, one: Callable[..., str], *operands: Value) -> Value:
        """An instruction for `width` lanes on operands of any number of lanes."""
        a = operands[0]
        starts = range(0, max(a.lanes, 1), width)
        made = [one(*(self._whole(o, start, width) for o in operands)) for start in starts]
        parts = [Value(a.dtype, width, text) for text in made]
        if not a.lanes:
            return self.lane(parts[0], 0)
        while len(parts) > 1:
            parts = [self.shuffle(x, y, range(2 * x.lanes)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0] if a.lanes >= width else self.part(parts[0], 0, a.lanes)

    def _whole(self, a: Value, start: int, width: int) -> Value:
        """`width` lanes from one on; beyond the end they may be anything."""
        if a.literal is not None:
            return self.const(a.dtype, a.literal, width)
        if not a.lanes:
            text = f"insertelement {value_type(a.dtype, width)} poison, {scalar_type(a.dtype)} {a.text}, i64 0"
            return Value(a.dtype, width, self.writer.value(text))
        if a.lanes == width:
            return a
        return self.shuffle(a, None, [i if i < a.lanes else None for i in range(start, start + width)])

    def unlikely(self, condition: Value, usual: Value, otherwise: Callable[[], Value]) -> Value:
        """`usual`, but what `otherwise` computes (for every lane) where the condition holds in some lane."""
        writer = self.writer
        test = self._any(condition).text if condition.lanes else condition.text
        before, slow, join = writer.fresh_label(), writer.fresh_label(), writer.fresh_label()
        writer.emit(f"br label %{before}")
        writer.label(before)
        writer.emit(f"br i1 {test}, label %{slow}, label %{join}")
        with writer.region() as lines:
            value = otherwise()
        writer.label(slow)
        writer.lines += lines
        writer.emit(f"br label %{join}")
        writer.label(join)
        kind = value_type(usual.dtype, usual.lanes)
        text = writer.value(f"phi {kind} [{usual.text}, %{before}], [{value.text}, %{slow}]")
        return Value(usual.dtype, usual.lanes, text)

    def negate(self, a: Value) -> Value:
        if a.literal is not None:
            return self.const(a.dtype, -a.literal, a.lanes)
        if a.dtype in NARROW:
            return self.cast(self.negate(self.cast(a, "f32")), a.dtype)
        if is_float(a.dtype):
            return self.op("fneg", a, a)
        if a.dtype == "bool":
            raise UnsupportedError("neg of a bool", hint="use not")
        return self.op("sub", a, self.const(a.dtype, 0, a.lanes), a)

    def apply(self, name: str, arguments: Sequence[Value]) -> Value:
        """An operator of `poly.expr.OPERATORS`. Raises `UnsupportedError` where numpy has none for the dtype."""
        if name == "select":
            return self.select(self.truth(arguments[0]), arguments[1], arguments[2])
        operands = self.same(*arguments)
        a = operands[0]
        if name == "bits":
            return self.recast(a, BITS[a.dtype])
        if a.dtype in NARROW:
            result = self.apply(name, [self.cast(o, "f32") for o in operands])
            return result if result.dtype == "bool" else self.cast(result, a.dtype)
        if self.sources and name in _LANEWISE and (found := self._unarranged(operands)) is not None:
            return self.arranged(self.apply(name, found[0]), found[1])
        return self._operator(name, operands)

    def _operator(self, name: str, operands: Sequence[Value]) -> Value:
        """An operator on operands of one shape, of a dtype that is calculated with."""
        a = operands[0]
        if name in _COMPARE:
            return self.compare(name, *operands)
        if name in _ARITHMETIC:
            return self._arithmetic(name, *operands)
        if name in _BITWISE:
            return self._bitwise(name, *operands)
        if name in _ROUND and is_float(a.dtype):
            return self.call(_ROUND[name], a)
        match name:
            case "dot2" | "dot4":
                return self.dot(name, operands[0], operands[1], self.const("i32", 0, a.lanes))
            case "and" | "or":
                return self.op(name, a, *(self.truth(o) for o in operands), dtype="bool")
            case "not":
                return self.op("xor", a, self.truth(a), self.const("bool", True, a.lanes), dtype="bool")
            case "div" if is_float(a.dtype):
                return self.op("fdiv", a, *operands)
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

    def _arithmetic(self, name: str, a: Value, b: Value) -> Value:
        if is_float(a.dtype):
            return self.op(f"f{name}", a, a, b)
        if a.dtype == "bool":
            if name == "sub":
                raise UnsupportedError("sub of bools", hint="use !=, or convert with a cast")
            return self.op("or" if name == "add" else "and", a, a, b)
        return self.op(name, a, a, b)

    def _bitwise(self, name: str, a: Value, b: Value) -> Value:
        if name.startswith("bit_") and not is_float(a.dtype):
            return self.op(name.removeprefix("bit_"), a, a, b)
        if is_integer(a.dtype):
            return self._shift(name, a, b)
        raise UnsupportedError(f"{name} of {a.dtype}", hint="convert the operands to integers")

    def _extreme(self, name: str, a: Value, b: Value) -> Value:
        if a.dtype == "bool":
            return self.op("or" if name == "max" else "and", a, a, b)
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
        return self.select(self.op("fcmp uno", a, a, a, dtype="bool"), a, chosen)

    def extreme(self, name: str, a: Value) -> Value:
        """The greatest or least lane of floats, NaN where one is: found by one test beside the comparisons."""
        unknown = self._any(self.op("fcmp uno", a, a, a, dtype="bool"))
        while a.lanes:
            half = a.lanes // 2
            x, y = (self.part(a, k * half, half) if half > 1 else self.lane(a, k) for k in (0, 1))
            a = self.select(self.compare("gt" if name == "max" else "lt", x, y), x, y)
        return self.select(unknown, self.const(a.dtype, float("nan")), a)

    def _any(self, condition: Value) -> Value:
        """Whether a condition holds in some lane."""
        kind = value_type("bool", condition.lanes)
        test = self.writer.intrinsic("i1", f"llvm.vector.reduce.or.v{condition.lanes}i1", ((kind, condition.text),))
        return Value("bool", 0, test)

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
            rest = self.select(self.op("fcmp uno", a, a, a, dtype="bool"), a, rest)
        return self.select(positive, one, rest)

    def _shift(self, name: str, a: Value, count: Value) -> Value:
        """Counts that are not below the width shift everything out."""
        signed, zero = a.dtype[0] == "i", self.const(a.dtype, 0, a.lanes)
        width = 8 * size_bytes(a.dtype)
        inside = self.compare("lt", count, self.const(a.dtype, width, a.lanes))
        if signed:
            inside = self.op("and", a, inside, self.compare("ge", count, zero), dtype="bool")
        safe = self.select(inside, count, zero)
        if name == "shift_left":
            return self.select(inside, self.op("shl", a, a, safe), zero)
        beyond = self.op("ashr", a, a, self.const(a.dtype, width - 1, a.lanes)) if signed else zero
        return self.select(inside, self.op("ashr" if signed else "lshr", a, a, safe), beyond)

    def _integer_power(self, a: Value, b: Value) -> Value:
        """Square and multiply over the exponent's bits, 64 at most; known exponents take only their own bits."""
        if b.literal is not None and 0 <= b.literal <= 64:
            return self._literal_power(a, int(b.literal))
        signed, zero, one = a.dtype[0] == "i", self.const(a.dtype, 0, a.lanes), self.const(a.dtype, 1, a.lanes)
        result, base, exponent = one, a, b
        for _ in range(8 * size_bytes(a.dtype) - signed):
            odd = self.op("and", a, exponent, one)
            result = self.select(self.compare("ne", odd, zero), self.op("mul", a, result, base), result)
            base = self.op("mul", a, base, base)
            exponent = self.op("lshr", a, exponent, one)
        if not signed:
            return result
        minus = self.const(a.dtype, -1, a.lanes)
        is_one = self.compare("eq", a, one)
        odd = self.compare("ne", self.op("and", a, b, one), zero)
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
                base = self.op("mul", a, base, base)
        return reduce(lambda x, y: self.op("mul", a, x, y), factors) if factors else self.const(a.dtype, 1, a.lanes)

    def _from_bf16(self, a: Value) -> Value:
        """bf16 is the upper half of an f32."""
        narrow, wide = value_type("u16", a.lanes), value_type("u32", a.lanes)
        bits = Value("u32", a.lanes, self.writer.value(f"zext {narrow} {a.text} to {wide}"))
        high = self.op("shl", bits, bits, self.const("u32", 16, a.lanes))
        return Value("f32", a.lanes, self.writer.value(f"bitcast {wide} {high.text} to {value_type('f32', a.lanes)}"))

    def _to_bf16(self, a: Value) -> Value:
        """To nearest, ties to even; NaN stays a quiet NaN."""
        wide, lanes = value_type("u32", a.lanes), a.lanes
        bits = Value("u32", lanes, self.writer.value(f"bitcast {value_type('f32', lanes)} {a.text} to {wide}"))
        odd = self.op(
            "and", bits, self.op("lshr", bits, bits, self.const("u32", 16, lanes)), self.const("u32", 1, lanes)
        )
        up = self.op("add", bits, self.op("add", bits, bits, self.const("u32", 0x7FFF, lanes)), odd)
        quiet = self.op("or", bits, bits, self.const("u32", 0x400000, lanes))
        chosen = self.select(self.op("fcmp uno", a, a, a, dtype="bool"), quiet, up)
        high = self.op("lshr", bits, chosen, self.const("u32", 16, lanes))
        return Value("bf16", lanes, self.writer.value(f"trunc {wide} {high.text} to {value_type('u16', lanes)}"))

    def cast(self, a: Value, dtype: str) -> Value:
        """Conversion: truncation toward zero, saturating from float to integer; to bool, a != 0."""
        if a.dtype == dtype:
            return a
        if a.literal is not None and _fits(a.literal, dtype):
            number = bool(a.literal) if dtype == "bool" else a.literal if is_float(dtype) else int(a.literal)
            return self.const(dtype, number, a.lanes)
        if dtype == "bool":
            return self.truth(a)
        if (a.dtype in NARROW and dtype != "f32") or (dtype in NARROW and a.dtype != "f32"):
            return self.cast(self.cast(a, "f32"), dtype)
        if "bf16" in (a.dtype, dtype):
            return self._from_bf16(a) if dtype == "f32" else self._to_bf16(a)
        if "f16" in (a.dtype, dtype) and not self.target.half:
            raise UnsupportedError("f16 on a CPU without conversions of it", hint="convert the model to f32")
        source, target = value_type(a.dtype, a.lanes), value_type(dtype, a.lanes)
        if is_float(a.dtype) and is_integer(dtype):
            if a.lanes:
                return self._saturated(a, dtype)
            kind = "fptosi" if dtype[0] == "i" else "fptoui"
            name = f"llvm.{kind}.sat.{suffix(dtype, 0)}.{suffix(a.dtype, 0)}"
            return Value(dtype, 0, self.writer.intrinsic(target, name, ((source, a.text),)))
        if source == target:
            return Value(dtype, a.lanes, a.text)
        wider = size_bytes(dtype) > size_bytes(a.dtype) or a.dtype == "bool"
        signed = a.dtype[0] == "i"
        match is_float(a.dtype), is_float(dtype):
            case True, True:
                name = "fpext" if wider else "fptrunc"
            case False, True:
                name = "sitofp" if signed else "uitofp"
            case _:
                name = ("sext" if signed else "zext") if wider else "trunc"
        return Value(dtype, a.lanes, self.writer.value(f"{name} {source} {a.text} to {target}"))

    def _saturated(self, a: Value, dtype: str) -> Value:
        """Floats in lanes to integers: bounded first, as machines convert lanes without saturating, to 32 bits or more.
        A greatest integer that is no float has the float below it as its bound, and is chosen for what lies above.
        """
        limits, lanes, kind = np.iinfo(numpy_dtype(dtype).name), a.lanes, value_type(a.dtype, a.lanes)
        top = float(rounded(a.dtype, limits.max))
        beyond = self.compare("ge", a, self.const(a.dtype, top, lanes)) if top > limits.max else None
        most = top if beyond is None else float(np.nextafter(rounded(a.dtype, top), rounded(a.dtype, 0)))
        if limits.min < 0:
            a = self.select(self.op("fcmp ord", a, a, a, dtype="bool"), a, self.const(a.dtype, 0, lanes))
        for name, limit in (("maxnum", float(limits.min)), ("minnum", most)):  # of a NaN the limit, which is 0 here
            bound = self.const(a.dtype, limit, lanes)
            intrinsic = f"llvm.{name}.{suffix(a.dtype, lanes)}"
            a = Value(a.dtype, lanes, self.writer.intrinsic(kind, intrinsic, ((kind, a.text), (kind, bound.text))))
        wide = dtype if size_bytes(dtype) >= 4 else "i32"
        convert = "fptoui" if wide[0] == "u" else "fptosi"
        whole = Value(wide, lanes, self.writer.value(f"{convert} {kind} {a.text} to {value_type(wide, lanes)}"))
        found = self.cast(whole, dtype)
        return found if beyond is None else self.select(beyond, self.const(dtype, limits.max, lanes), found)


def _fits(literal: float | int | bool, dtype: str) -> bool:
    if is_float(dtype) or dtype == "bool":
        return True
    limits = np.iinfo(numpy_dtype(dtype).name)
    return bool(limits.min <= literal <= limits.max) and np.isfinite(literal)
