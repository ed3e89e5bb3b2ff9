"""Sine and cosine: reduction by multiples of pi/2, then a polynomial of each, chosen by the quadrant.

Small arguments subtract pi/2 in three parts with fused operations (Cody and Waite); in a rare branch, large ones are
multiplied by the bits of 2/pi that matter (Payne and Hanek, SIGNUM 1983).
"""

from __future__ import annotations

from typing import Final

from poly.codegen.floats import Floats
from poly.codegen.operators import Ops
from poly.codegen.text import value_type
from poly.codegen.values import Value

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 as functions of r^2, |r| <= pi/4
_SIN: Final = {
    "f32": (-0.1666666664093631, 0.008333329327156696, -0.00019839319768576792, 2.718191240401333e-06),
    "f64": (
        -0.16666666666666666, 0.008333333333333323, -0.00019841269841254925, 2.755731921413442e-06,
        -2.5052104900148668e-08, 1.6058365470283187e-10, -7.578652127702118e-13,
    ),
}  # fmt: skip
_COS: Final = {
    "f32": (0.04166666662102281, -0.0013888883624907148, 2.4799490998328296e-05, -2.7208136219698456e-07),
    "f64": (
        0.041666666666666664, -0.0013888888888888874, 2.4801587301571093e-05, -2.7557319215225667e-07,
        2.0876754336343294e-09, -1.1470290239349786e-11, 4.7379854598477943e-14,
    ),
}  # fmt: skip
_HALF_PI: Final = {  # in whole mantissas: the first product and difference are exact
    "f32": (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
    "f64": (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
}
_TWO_OVER_PI: Final = 0.6366197723675814
_LIMIT: Final = {"f32": 65536.0, "f64": 1073741824.0}  # beyond, the parts of pi/2 are too few
_BITS: Final = 1200  # of 2/pi, after the binary point
_WINDOW: Final = 192  # bits of the product: 2 of the quadrant, 53 lost below, the rest for cancellation and result
_TABLE: Final = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1d"
    "eb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b"
    "5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b",
    16,
)
_UNIT: Final = _WINDOW - 2  # the bit of weight 1 in the product
# Of x: the quadrant q, and the fraction's sign, mantissas h and l (53 bits each), and scale.
_FRACTION: Final = f"""\
  %b = bitcast double %x to i64
  %raised = lshr i64 %b, 52
  %e = and i64 %raised, 2047
  %m0 = and i64 %b, {2**52 - 1}
  %m1 = or i64 %m0, {2**52}
  %m = zext i64 %m1 to i{_WINDOW}
  %s = sub i64 {_BITS + 2 - _WINDOW + 1075}, %e
  %word = lshr i64 %s, 6
  %at = getelementptr i64, ptr @poly.two_over_pi, i64 %word
  %four = load i256, ptr %at, align 8
  %off = and i64 %s, 63
  %wide = zext i64 %off to i256
  %down = lshr i256 %four, %wide
  %w = trunc i256 %down to i{_WINDOW}
  %p = mul i{_WINDOW} %w, %m
  %up = add i{_WINDOW} %p, {1 << (_UNIT - 1)}
  %q = lshr i{_WINDOW} %up, {_UNIT}
  %whole = shl i{_WINDOW} %q, {_UNIT}
  %f = sub i{_WINDOW} %p, %whole
  %minus = icmp slt i{_WINDOW} %f, 0
  %neg = sub i{_WINDOW} 0, %f
  %a = select i1 %minus, i{_WINDOW} %neg, i{_WINDOW} %f
  %z = call i{_WINDOW} @llvm.ctlz.i{_WINDOW}(i{_WINDOW} %a, i1 false)
  %n = shl i{_WINDOW} %a, %z
  %t0 = lshr i{_WINDOW} %n, {_WINDOW - 53}
  %t1 = trunc i{_WINDOW} %t0 to i64
  %u0 = lshr i{_WINDOW} %n, {_WINDOW - 106}
  %u1 = trunc i{_WINDOW} %u0 to i64
  %u2 = and i64 %u1, {2**53 - 1}
  %h = uitofp i64 %t1 to double
  %l = uitofp i64 %u2 to double
  %z1 = trunc i{_WINDOW} %z to i64
  %k0 = sub i64 {1023 + _WINDOW - 53 - _UNIT}, %z1
  %k1 = shl i64 %k0, 52
  %scale = bitcast i64 %k1 to double"""


def sine(f: Floats, x: Value, name: str) -> Value:
    """`name`: sin or cos."""
    size = f.abs(x)
    n, shifted = f.round(size, _TWO_OVER_PI)
    first, second, third = _HALF_PI[f.dtype]
    r = f.fma(n, f.c(-third), f.fma(n, f.c(-second), f.fma(n, f.c(-first), size)))
    usual = _by_quadrant(f, r, shifted, x, name)
    large = f.ops.compare("ge", size, f.c(_LIMIT[f.dtype]))

    def reduced() -> Value:
        rest, quadrant = _reduce(f, f.when(large, size, f.c(_LIMIT[f.dtype])))
        found = _by_quadrant(f, rest, quadrant, x, name)
        return f.when(f.equal(size, f.c(float("inf"))), f.c(float("nan")), found)

    return f.rare(large, usual, reduced)


def _by_quadrant(f: Floats, r: Value, quadrant: Value, x: Value, name: str) -> Value:
    """The function of r + quadrant * pi/2; for the sine with the sign of x."""
    if name == "cos":
        quadrant = f.int_op("add", quadrant, f.i(1))
    u = f.mul(r, r)
    powers = f.powers(u, len(_SIN[f.dtype]) - 1)
    sin = f.fma(f.mul(r, u), f.poly(powers, _SIN[f.dtype]), r)
    half = f.mul(u, f.c(0.5))
    near = f.sub(f.c(1.0), half)
    lost = f.sub(f.sub(f.c(1.0), near), half)
    cos = f.add(near, f.fma(f.mul(u, u), f.poly(powers, _COS[f.dtype]), lost))
    odd = f.ops.truth(f.int_op("and", quadrant, f.i(1)))
    chosen = f.bits(f.when(odd, cos, sin))
    top = 31 if f.dtype == "f32" else 63
    flip = f.int_op("shl", f.int_op("and", quadrant, f.i(2)), f.i(top - 1))
    if name == "sin":
        flip = f.int_op("xor", flip, f.int_op("and", f.bits(x), f.i(1 << top)))
    return f.floating(f.int_op("xor", chosen, flip))


def _reduce(f: Floats, x: Value) -> tuple[Value, Value]:
    """r in [-pi/4, pi/4] and the quadrant, for x beyond the limit, lane by lane in a function of its own."""
    functions = f.ops.writer.functions
    functions.setdefault("poly.reduce", _scalar_reduction(f.ops))
    kind, bits = value_type(f.dtype, f.lanes), value_type(f.bits_type, f.lanes)
    name = f"poly.reduce.{f.dtype}.{f.lanes}"
    functions.setdefault(name, _lanes_of_reduction(name, f.dtype, f.lanes))
    f.ops.writer.declare("i192 @llvm.ctlz.i192(i192, i1)")
    pair = f.ops.writer.value(f"call {{ {kind}, {bits} }} @{name}({kind} {x.text})")
    rest = f.ops.writer.value(f"extractvalue {{ {kind}, {bits} }} {pair}, 0")
    quadrant = f.ops.writer.value(f"extractvalue {{ {kind}, {bits} }} {pair}, 1")
    return Value(f.dtype, f.lanes, rest), Value(f.bits_type, f.lanes, quadrant)


def _lanes_of_reduction(name: str, dtype: str, lanes: int) -> str:
    """A function in IR that reduces every lane of a vector by `@poly.reduce`: remainders, and quadrants."""
    scalar, kind = value_type(dtype, 0), value_type(dtype, lanes)
    integer = "i32" if dtype == "f32" else "i64"
    whole, bits = value_type(integer, 0), value_type(integer, lanes)
    lines = [f"define internal {{ {kind}, {bits} }} @{name}({kind} %x) nounwind noinline {{"]
    rest, quadrant = "poison", "poison"
    for i in range(max(lanes, 1)):
        lines.append(f"  %x{i} = extractelement {kind} %x, i64 {i}" if lanes else f"  %x{i} = fadd {kind} %x, -0.0")
        wide = f"%x{i}"
        if dtype == "f32":
            lines.append(f"  %w{i} = fpext float %x{i} to double")
            wide = f"%w{i}"
        lines.append(f"  %p{i} = call {{ double, i64 }} @poly.reduce(double {wide})")
        lines.append(f"  %r{i} = extractvalue {{ double, i64 }} %p{i}, 0")
        lines.append(f"  %q{i} = extractvalue {{ double, i64 }} %p{i}, 1")
        r, q = f"%r{i}", f"%q{i}"
        if dtype == "f32":
            lines += [f"  %rn{i} = fptrunc double {r} to float", f"  %qn{i} = trunc i64 {q} to i32"]
            r, q = f"%rn{i}", f"%qn{i}"
        if lanes:
            lines.append(f"  %rv{i} = insertelement {kind} {rest}, {scalar} {r}, i64 {i}")
            lines.append(f"  %qv{i} = insertelement {bits} {quadrant}, {whole} {q}, i64 {i}")
            r, q = f"%rv{i}", f"%qv{i}"
        rest, quadrant = r, q
    pair = f"{{ {kind}, {bits} }}"
    lines.append(f"  %one = insertvalue {pair} poison, {kind} {rest}, 0")
    lines.append(f"  %two = insertvalue {pair} %one, {bits} {quadrant}, 1")
    return "\n".join([*lines, f"  ret {pair} %two", "}"])


def _scalar_reduction(ops: Ops) -> str:
    """x = m 2^e: m times the window of 2/pi whose product counts modulo 4; its fraction in two doubles times pi/2."""
    words = [(_TABLE >> 64 * k) & (2**64 - 1) for k in range(-(-_BITS // 64) + 4)]
    table = ", ".join(f"i64 {w}" for w in words)
    return f"""@poly.two_over_pi = private unnamed_addr constant [{len(words)} x i64] [{table}], align 64
define internal {{ double, i64 }} @poly.reduce(double %x) nounwind noinline {{
{_FRACTION}{_times_half_pi(ops)}
  %rn = fneg double %r
  %rs = select i1 %minus, double %rn, double %r
  %q1 = trunc i{_WINDOW} %q to i64
  %one = insertvalue {{ double, i64 }} poison, double %rs, 0
  %two = insertvalue {{ double, i64 }} %one, i64 %q1, 1
  ret {{ double, i64 }} %two
}}"""


def _times_half_pi(ops: Ops) -> str:
    """r: the fraction h + l, with its scale, times pi/2 in two parts."""
    high, low = (_hex(part) for part in _HALF_PI["f64"][:2])
    lines = f"""
  %hs = fmul double %h, %scale
  %ls0 = fmul double %l, %scale
  %ls = fmul double %ls0, 0x3CA0000000000000
  %t = fmul double %ls, {high}"""
    if ops.target.fma:
        ops.writer.declare("double @llvm.fma.f64(double, double, double)")
        return f"""{lines}
  %v = call double @llvm.fma.f64(double %hs, double {low}, double %t)
  %r = call double @llvm.fma.f64(double %hs, double {high}, double %v)"""
    return f"""{lines}
  %v0 = fmul double %hs, {low}
  %v = fadd double %v0, %t
  %r0 = fmul double %hs, {high}
  %r = fadd double %r0, %v"""


def _hex(value: float) -> str:
    from poly.codegen.text import constant_text

    return constant_text("f64", value)
