"""Instructions that not every target has: choice from a table, scaling by powers of two, sums of products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from poly.codegen.text import scalar_type, value_type
from poly.codegen.values import Value, Vectors
from poly.dtypes import size_bytes
from poly.expr import ALIKE, DOT_BF16, DOTS


def chosen(ops: Vectors, table: Sequence[int], index: Value) -> Value:
    """table[index] for 32-bit integers; of an index only the lowest bits count, as many as the table's length, a
    power of two and a divisor of `ops.target.table`, needs.
    """
    width = ops.target.table
    name = "avx512.permvar.si.512" if width == 16 else "avx2.permd"
    numbers = f"<{', '.join(f'i32 {v}' for v in (*table,) * (width // len(table)))}>"
    kind = f"<{width} x i32>"

    def one(part: Value) -> str:
        return ops.writer.intrinsic(kind, f"llvm.x86.{name}", ((kind, numbers), (kind, part.text)))

    return _by_whole(ops, width, one, index)


def chosen_byte(ops: Vectors, table: Sequence[str], index: Value, dtype: str) -> Value:
    """table[index] for bytes in lanes; the table is four vectors of 64."""
    kind, name = "<64 x i8>", "llvm.x86.avx512.vpermi2var.qi.512"

    def one(part: Value) -> str:
        halves = [
            ops.writer.intrinsic(kind, name, ((kind, first), (kind, part.text), (kind, second)))
            for first, second in (table[:2], table[2:])
        ]
        upper = ops.writer.value(f"icmp slt {kind} {part.text}, zeroinitializer")
        return ops.writer.value(f"select <64 x i1> {upper}, {kind} {halves[1]}, {kind} {halves[0]}")

    return _by_whole(ops, 64, one, index, dtype=dtype)


def scaled(ops: Vectors, a: Value, n: Value) -> Value:
    """a * 2^floor(n) in one rounding, whatever n is: a finite positive number becomes 0, infinite or NaN."""
    return _masked(ops, "scalef", a, n)


def limited(ops: Vectors, a: Value, limit: float) -> Value:
    """a where its magnitude is below the limit, else the limit with the sign of a; of NaN, too."""
    return _masked(ops, "range", a, ops.const(a.dtype, limit, a.lanes), "2")


def _masked(ops: Vectors, name: str, a: Value, b: Value, *immediate: str) -> Value:
    """An instruction of AVX-512 in every lane, in the rounding mode that is set."""
    width = 64 // size_bytes(a.dtype)
    kind = value_type(a.dtype, width)
    full = f"llvm.x86.avx512.mask.{name}.{'ps' if a.dtype == 'f32' else 'pd'}.512"
    rest = [*(("i32", i) for i in immediate), (kind, "poison"), (f"i{width}", "-1"), ("i32", "4")]

    def one(x: Value, y: Value) -> str:
        return ops.writer.intrinsic(kind, full, ((kind, x.text), (kind, y.text), *rest))

    return _by_whole(ops, width, one, a, b)


def dot(ops: Vectors, name: str, a: Value, b: Value, total: Value) -> Value:
    """total + an operator of `poly.expr.DOTS` on a and b."""
    a, b, total = ops.same(a, b, total)
    if name in ALIKE and a.lanes and ops.target.dots.get("dot4", 0):
        return _dot_alike(ops, name, a, b, total)
    width = ops.target.dots.get(name, 0)
    if not a.lanes or not width:
        return ops.op("add", total, _dot_of_parts(ops, name, a, b))
    kind = f"<{width} x i32>"

    def four(x: Value, y: Value, z: Value) -> str:
        full = f"llvm.x86.avx512.vpdpbusd.{32 * width}"
        return ops.writer.intrinsic(kind, full, ((kind, z.text), (kind, x.text), (kind, y.text)))

    def two(x: Value, y: Value, z: Value) -> str:  # where there is one instruction for both, LLVM takes it
        halves = f"<{2 * width} x i16>"
        full = "llvm.x86.avx512.pmaddw.d.512" if width == 16 else "llvm.x86.avx2.pmadd.wd"
        parts = tuple((halves, ops.writer.value(f"bitcast {kind} {v.text} to {halves}")) for v in (x, y))
        return ops.writer.value(f"add {kind} {z.text}, {ops.writer.intrinsic(kind, full, parts)}")

    return _by_whole(ops, width, four if name == "dot4" else two, a, b, total)


def _dot_alike(ops: Vectors, name: str, a: Value, b: Value, total: Value) -> Value:
    """total + products of four i8 each, or four u8 each, by an instruction for both kinds: of one operand the upper
    bits are turned, which adds 128 to i8 and takes it from u8, and 128 times the sum of the other one is put right.
    """
    bits = ops.const("i32", -0x7F7F7F80, a.lanes)
    zero = ops.const("i32", 0, a.lanes)
    if name == "dot4_i8":
        more, less = dot(ops, "dot4", ops.op("xor", a, bits), b, total), dot(ops, "dot4", bits, b, zero)
    else:
        more, less = dot(ops, "dot4", a, ops.op("xor", b, bits), total), dot(ops, "dot4", a, bits, zero)
    return ops.op("sub", more, less)


def dot_of_bf16(ops: Vectors, a: Value, b: Value) -> Value:
    """The products of two bf16 each in i32, added in f32."""
    up, top = ops.const("i32", 16, a.lanes), ops.const("i32", -(1 << 16), a.lanes)
    low, high = ((ops.op("shl", v, up) for v in (a, b)), (ops.op("and", v, top) for v in (a, b)))
    return ops.op("fadd", *(ops.op("fmul", *(ops.recast(v, "f32") for v in pair)) for pair in (low, high)))


def summed_bf16(ops: Vectors, a: Value, b: Value) -> Value:
    """`dot_of_bf16` for a sum, by an instruction where there is one: that takes subnormal numbers for zeros."""
    a, b = ops.same(a, b)
    width = ops.target.dots.get(DOT_BF16, 0)
    if not a.lanes or not width:
        return dot_of_bf16(ops, a, b)
    kind, pairs = f"<{width} x float>", f"<{2 * width} x bfloat>"

    def one(x: Value, y: Value) -> str:
        parts = tuple((pairs, ops.writer.value(f"bitcast <{width} x i32> {v.text} to {pairs}")) for v in (x, y))
        full = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"
        return ops.writer.intrinsic(kind, full, ((kind, "zeroinitializer"), *parts))

    return _by_whole(ops, width, one, a, b, dtype="f32")


def _dot_of_parts(ops: Vectors, name: str, a: Value, b: Value) -> Value:
    """The operator by shifts and products."""
    bits = 32 // DOTS[name]
    top = ops.const("i32", 32 - bits, a.lanes)
    products: list[Value] = []
    down = "lshr" if name in ("dot4", "dot4_u8") else "ashr", "lshr" if name == "dot4_u8" else "ashr"
    for place in range(0, 32, bits):
        up = ops.const("i32", 32 - bits - place, a.lanes)
        x, y = (ops.op(how, ops.op("shl", v, up), top) for how, v in zip(down, (a, b), strict=True))
        products.append(ops.op("mul", x, y))
    return reduce(lambda x, y: ops.op("add", x, y), products)


def _by_whole(ops: Vectors, width: int, one: Callable[..., str], *operands: Value, dtype: str = "") -> Value:
    """An instruction for `width` lanes on operands of any number of lanes."""
    a = operands[0]
    starts = range(0, max(a.lanes, 1), width)
    made = [one(*(_whole(ops, o, start, width) for o in operands)) for start in starts]
    parts = [Value(dtype or a.dtype, width, text) for text in made]
    if not a.lanes:
        return ops.lane(parts[0], 0)
    while len(parts) > 1:
        parts = [ops.shuffle(x, y, range(2 * x.lanes)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0] if a.lanes >= width else ops.piece(parts[0], 0, a.lanes)


def _whole(ops: Vectors, a: Value, start: int, width: int) -> Value:
    """`width` lanes from one on; beyond the end they may be anything."""
    if a.literal is not None:
        return ops.const(a.dtype, a.literal, width)
    if not a.lanes:
        text = f"insertelement {value_type(a.dtype, width)} poison, {scalar_type(a.dtype)} {a.text}, i64 0"
        return Value(a.dtype, width, ops.writer.value(text))
    if a.lanes == width:
        return a
    return ops.shuffle(a, None, [i if i < a.lanes else None for i in range(start, start + width)])
