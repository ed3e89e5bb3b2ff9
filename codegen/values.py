"""Values in SSA form, and typed instructions on scalars and vectors: lanes, shuffles, comparisons, conversions.

Conversions from float to integer truncate and saturate (NaN becomes 0); those to f16 and bf16 from f64 and wide
integers go through f32, which rounds twice only for bf16 (as ml_dtypes does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from poly.codegen.target import Target
from poly.codegen.text import Writer, constant_text, rounded, scalar_type, suffix, value_type
from poly.dtypes import is_float, is_integer, numpy_dtype, size_bytes
from poly.errors import UnsupportedError


class Value(NamedTuple):
    """A value in SSA form. `lanes` 0: scalar. `literal`: its number (in every lane) where it is known."""

    dtype: str
    lanes: int
    text: str
    literal: float | int | bool | None = None


NARROW: Final = frozenset({"f16", "bf16"})  # kept in two bytes, mostly calculated with in f32 and rounded
COMPARE: Final[dict[str, tuple[str, str, str]]] = {  # floats, signed, unsigned and bool
    "eq": ("oeq", "eq", "eq"), "ne": ("une", "ne", "ne"), "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"), "gt": ("ogt", "sgt", "ugt"), "ge": ("oge", "sge", "uge"),
}  # fmt: skip


@lru_cache(maxsize=1024)
def _mask(places: tuple[int | None, ...]) -> str:
    """The lanes that a shuffle takes."""
    return f"<{len(places)} x i32> <{', '.join('i32 poison' if p is None else f'i32 {p}' for p in places)}>"


def constant_mask(width: int, count: int) -> str | None:
    """The mask of the first `count` lanes; None for all."""
    if count == width:
        return None
    return "<" + ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(width)) + ">"


@lru_cache(maxsize=1024)
def _overloaded(name: str, dtype: str, lanes: int) -> str:
    """The name of an intrinsic on operands of one type."""
    return f"llvm.{name}.{suffix(dtype, lanes)}"


@lru_cache(maxsize=1024)
def _float(dtype: str, exact: str) -> tuple[float, str]:
    return _made(dtype, float.fromhex(exact))


def _made(dtype: str, value: float) -> tuple[float, str]:
    """A number as a floating dtype holds it, and as text."""
    found = float(rounded(dtype, value))
    return found, constant_text(dtype, found)


class Vectors:
    """Emits typed instructions for a target through a writer."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self.writer, self.target = writer, target
        self.uniform: set[str] = set()  # vectors with the same scalar in every lane
        self.sources: dict[str, tuple[Value, tuple[int, ...]]] = {}  # what `arranged` made, and of what
        self.from_zeros: dict[str, tuple[Value, tuple[int, ...]]] = {}  # what `among_zeros` made, and of what

    def const(self, dtype: str, value: float | int | bool, lanes: int = 0) -> Value:
        """A literal, in every lane for a vector."""
        if is_float(dtype):
            value, text = _float(dtype, value.hex()) if type(value) is float and value == value else _made(dtype, value)
        else:
            text = constant_text(dtype, value)
        return Value(dtype, lanes, f"splat ({scalar_type(dtype)} {text})" if lanes else text, value)

    def splat(self, a: Value, lanes: int) -> Value:
        """A scalar in every lane, hoisted where it is; vectors and, for `lanes` 0, scalars stay."""
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
        lanes = max([v.lanes for v in values])
        return [v if v.lanes == lanes else self.splat(v, lanes) for v in values]

    def lane(self, a: Value, index: int) -> Value:
        """One lane as a scalar."""
        if not a.lanes:
            return a
        if a.literal is not None:
            return self.const(a.dtype, a.literal)
        text = f"extractelement {value_type(a.dtype, a.lanes)} {a.text}, i64 {index}"
        return Value(a.dtype, 0, self.writer.cached(text))

    def shuffle(self, a: Value, b: Value | None, places: Sequence[int | None]) -> Value:
        """The lanes of two vectors at places (those of `b` come after those of `a`; None: any); each once."""
        found = self.from_zeros.get(a.text) if b is None and len(places) == a.lanes else None
        if found is not None:
            return self._among_zeros(found[0], [None if p is None else found[1][p] for p in places])
        kind = value_type(a.dtype, a.lanes)
        other = "poison" if b is None else b.text
        text = f"shufflevector {kind} {a.text}, {kind} {other}, {_mask(tuple(places))}"
        return Value(a.dtype, len(places), self.writer.cached(text))

    def among_zeros(self, a: Value, places: tuple[int, ...]) -> Value:
        """Lanes of a vector, and zero for the place behind them: what is shuffled out of that is so out of `a`."""
        result = self._among_zeros(a, places)
        self.from_zeros[result.text] = a, places
        return result

    def first_lanes(self, a: Value, count: int) -> Value:
        """A vector of which so many lanes are meant, where that spares `among_zeros` something; else itself."""
        if a.text not in self.from_zeros:
            return a
        return self.shuffle(a, None, [i if i < count else None for i in range(a.lanes)])

    def _among_zeros(self, a: Value, places: Sequence[int | None]) -> Value:
        """As integers: of floats instruction selection makes what takes two operations (`vexpandps`)."""
        if all(p is None or p == i for i, p in enumerate(places)):
            return a
        kind, bits = value_type(a.dtype, a.lanes), f"<{a.lanes} x i{8 * size_bytes(a.dtype)}>"
        number = self.writer.cached(f"bitcast {kind} {a.text} to {bits}")
        moved = self.writer.cached(f"shufflevector {bits} {number}, {bits} zeroinitializer, {_mask(tuple(places))}")
        return Value(a.dtype, a.lanes, self.writer.cached(f"bitcast {bits} {moved} to {kind}"))

    def arranged(self, a: Value, order: tuple[int, ...]) -> Value:
        """The lanes of a vector in order, where lane k of it is to become lane order[k].

        Operations lane by lane on such vectors, and on scalars, are done in the order in which the lanes are, and only
        their result is arranged; what nobody uses of that, instruction selection drops.
        """
        places = sorted(range(len(order)), key=order.__getitem__)
        result = self.shuffle(a, None, places)
        self.sources[result.text] = a, order
        return result

    def unarranged(self, operands: Sequence[Value]) -> tuple[list[Value], tuple[int, ...]] | None:
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

    def piece(self, a: Value, start: int, count: int) -> Value:
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

    def op(self, text: str, *operands: Value, dtype: str | None = None) -> Value:
        """`text <type> a, b`, giving their dtype or another one."""
        first = operands[0]
        kind = value_type(first.dtype, first.lanes)
        name = self.writer.cached(f"{text} {kind} {', '.join([o.text for o in operands])}")
        return Value(dtype or first.dtype, first.lanes, name)

    def in_f32(self, dtype: str) -> bool:
        """Whether a dtype is calculated with in f32."""
        return dtype in NARROW and not (dtype == "f16" and self.target.halves)

    def recast(self, a: Value, dtype: str) -> Value:
        """The same bits as another dtype."""
        source, target = value_type(a.dtype, a.lanes), value_type(dtype, a.lanes)
        return Value(dtype, a.lanes, self.writer.cached(f"bitcast {source} {a.text} to {target}"))

    def call(self, name: str, *operands: Value, dtype: str | None = None) -> Value:
        """An overloaded intrinsic on operands of one type."""
        a = operands[0]
        kind = value_type(a.dtype, a.lanes)
        arguments = tuple([(value_type(o.dtype, o.lanes), o.text) for o in operands])
        text = self.writer.intrinsic(kind, _overloaded(name, a.dtype, a.lanes), arguments)
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
        return Value(a.dtype, a.lanes, self.writer.cached(text))

    def compare(self, name: str, a: Value, b: Value) -> Value:
        """eq, ne, lt, le, gt, ge; comparisons with NaN are false, ne is true."""
        a, b = self.same(a, b)
        if self.in_f32(a.dtype):
            a, b = self.cast(a, "f32"), self.cast(b, "f32")
        floating, signed, unsigned = COMPARE[name]
        if is_float(a.dtype):
            return self.op(f"fcmp {floating}", a, b, dtype="bool")
        return self.op(f"icmp {signed if a.dtype[0] == 'i' else unsigned}", a, b, dtype="bool")

    def truth(self, a: Value) -> Value:
        """a != 0; NaN is true."""
        return a if a.dtype == "bool" else self.compare("ne", a, self.const(a.dtype, 0, a.lanes))

    def unlikely(self, condition: Value, usual: Value, otherwise: Callable[[], Value]) -> Value:
        """`usual`, but what `otherwise` computes (for every lane) where the condition holds in some lane."""
        writer = self.writer
        with writer.branch(self.any_lane(condition).text, own=True) as labels:
            value = otherwise()
        kind = value_type(usual.dtype, usual.lanes)
        text = writer.value(f"phi {kind} [{usual.text}, %{labels.before}], [{value.text}, %{labels.then}]")
        return Value(usual.dtype, usual.lanes, text)

    def extreme(self, name: str, a: Value) -> Value:
        """The greatest or least lane of floats, NaN where one is: found by one test beside the comparisons."""
        unknown = self.any_lane(self.op("fcmp uno", a, a, dtype="bool"))
        while a.lanes:
            half = a.lanes // 2
            x, y = (self.piece(a, k * half, half) if half > 1 else self.lane(a, k) for k in (0, 1))
            a = self.select(self.compare("gt" if name == "max" else "lt", x, y), x, y)
        return self.select(unknown, self.const(a.dtype, float("nan")), a)

    def any_lane(self, condition: Value) -> Value:
        """Whether a condition holds, in some lane of a vector."""
        if not condition.lanes:
            return condition
        name = f"llvm.vector.reduce.or.v{condition.lanes}i1"
        argument = value_type("bool", condition.lanes), condition.text
        hoisted = condition.text in self.writer.depth_of
        return Value("bool", 0, self.writer.intrinsic("i1", name, (argument,), pure=hoisted))

    def _from_bf16(self, a: Value) -> Value:
        """bf16 is the upper half of an f32."""
        narrow, wide = value_type("u16", a.lanes), value_type("u32", a.lanes)
        bits = Value("u32", a.lanes, self.writer.value(f"zext {narrow} {a.text} to {wide}"))
        high = self.op("shl", bits, self.const("u32", 16, a.lanes))
        return Value("f32", a.lanes, self.writer.value(f"bitcast {wide} {high.text} to {value_type('f32', a.lanes)}"))

    def _to_bf16(self, a: Value) -> Value:
        """To nearest, ties to even; NaN stays a quiet NaN."""
        wide, lanes = value_type("u32", a.lanes), a.lanes
        bits = Value("u32", lanes, self.writer.value(f"bitcast {value_type('f32', lanes)} {a.text} to {wide}"))
        odd = self.op(
            "and", self.op("lshr", bits, self.const("u32", 16, lanes)), self.const("u32", 1, lanes)
        )
        up = self.op("add", self.op("add", bits, self.const("u32", 0x7FFF, lanes)), odd)
        quiet = self.op("or", bits, self.const("u32", 0x400000, lanes))
        chosen = self.select(self.op("fcmp uno", a, a, dtype="bool"), quiet, up)
        return self.upper_half(chosen)

    def upper_half(self, a: Value) -> Value:
        """The bf16 that is an f32's upper half."""
        wide, lanes = value_type("u32", a.lanes), a.lanes
        bits = a if a.dtype == "u32" else self.recast(a, "u32")
        high = self.op("lshr", bits, self.const("u32", 16, lanes))
        return Value("bf16", lanes, self.writer.value(f"trunc {wide} {high.text} to {value_type('u16', lanes)}"))

    def _to_odd(self, a: Value) -> Value:
        """f64 to f32, toward zero and with the last bit set where that loses something: rounded again to 11 bits or
        fewer it gives what one rounding gives (Boldo and Melquiond, "When double rounding is odd", 2004).
        """
        near = self.cast(a, "f32")
        back, bits = self.cast(near, "f64"), self.recast(near, "i32")
        one, same = self.const("i32", 1, a.lanes), self.compare("eq", back, a)
        above = self.compare("gt", self.call("fabs", back), self.call("fabs", a))
        cut = self.op("or", self.select(above, self.op("sub", bits, one), bits), one)
        return self.recast(self.select(same, bits, cut), "f32")

    def cast(self, a: Value, dtype: str) -> Value:
        """Conversion: truncation toward zero, saturating from float to integer; to bool, a != 0."""
        if a.dtype == dtype:
            return a
        if a.literal is not None and _fits(a.literal, dtype):
            number = bool(a.literal) if dtype == "bool" else a.literal if is_float(dtype) else int(a.literal)
            return self.const(dtype, number, a.lanes)
        if dtype == "bool":
            return self.truth(a)
        if (a.dtype, dtype) == ("f64", "f16"):
            return self.cast(self._to_odd(a), dtype)
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
        return Value(dtype, a.lanes, self.writer.cached(f"{name} {source} {a.text} to {target}"))

    def whole(self, a: Value, dtype: str) -> Value:
        """Floats that are in the range of integers, without their fractions."""
        wide = dtype if size_bytes(dtype) >= 4 else "i32"
        source, target = value_type(a.dtype, a.lanes), value_type(wide, a.lanes)
        convert = "fptoui" if wide[0] == "u" else "fptosi"
        return self.cast(Value(wide, a.lanes, self.writer.value(f"{convert} {source} {a.text} to {target}")), dtype)

    def nearest(self, a: Value, dtype: str, shift: int) -> Value:
        """round(a) + shift of f32 in lanes as integers of up to 16 bits, saturating, NaN becoming 0: bounded before it
        is rounded, by whole numbers, so that the conversion to 32 bits rounds.
        """
        limits, lanes = np.iinfo(numpy_dtype(dtype).name), a.lanes
        if limits.min < 0:  # else the bound that a NaN becomes is that of 0
            a = self.select(self.op("fcmp ord", a, a, dtype="bool"), a, self.const("f32", -shift, lanes))
        kind, whole = value_type("f32", lanes), value_type("i32", lanes)
        for name, limit in (("maxnum", limits.min - shift), ("minnum", limits.max - shift)):
            bound = self.const("f32", limit, lanes)
            text = f"llvm.{name}.{suffix('f32', lanes)}"
            a = Value("f32", lanes, self.writer.intrinsic(kind, text, ((kind, a.text), (kind, bound.text))))
        name = f"llvm.lrint.{suffix('i32', lanes)}.{suffix('f32', lanes)}"
        found = Value("i32", lanes, self.writer.intrinsic(whole, name, ((kind, a.text),)))
        return self.cast(self.op("add", found, self.const("i32", shift, lanes)) if shift else found, dtype)

    def _saturated(self, a: Value, dtype: str) -> Value:
        """Floats in lanes to integers: bounded first, as machines convert lanes without saturating, to 32 bits or more.
        A greatest integer that is no float has the float below it as its bound, and is chosen for what lies above.
        """
        limits, lanes, kind = np.iinfo(numpy_dtype(dtype).name), a.lanes, value_type(a.dtype, a.lanes)
        top = float(rounded(a.dtype, limits.max))
        beyond = self.compare("ge", a, self.const(a.dtype, top, lanes)) if top > limits.max else None
        most = top if beyond is None else float(np.nextafter(rounded(a.dtype, top), rounded(a.dtype, 0)))
        if limits.min < 0:
            a = self.select(self.op("fcmp ord", a, a, dtype="bool"), a, self.const(a.dtype, 0, lanes))
        for name, limit in (("maxnum", float(limits.min)), ("minnum", most)):  # of a NaN the limit, which is 0 here
            bound = self.const(a.dtype, limit, lanes)
            intrinsic = f"llvm.{name}.{suffix(a.dtype, lanes)}"
            a = Value(a.dtype, lanes, self.writer.intrinsic(kind, intrinsic, ((kind, a.text), (kind, bound.text))))
        found = self.whole(a, dtype)
        return found if beyond is None else self.select(beyond, self.const(dtype, limits.max, lanes), found)


def _fits(literal: float | int | bool, dtype: str) -> bool:
    if is_float(dtype) or dtype == "bool":
        return True
    limits = np.iinfo(numpy_dtype(dtype).name)
    return bool(limits.min <= literal <= limits.max) and np.isfinite(literal)
