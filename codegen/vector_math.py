"""Vector math: exp, logarithms, tanh, sigmoid, erf, sin, cos, atan2, pow as polynomials, for scalars and any lanes.

Errors against the exact value, at most, in units in the last place, over the whole range of finite arguments (measured
by tests/test_vector_math.py, over every f32 with POLYLOOM_SLOW=1; with fused multiply-add):

    f32  exp 1.2  log 0.9  log2 1.1  log10 1.0  tanh 6.0  sigmoid 1.9  erf 5.9  sin, cos 1.6  atan2 2.3  pow 0.6
    f64  exp 1.3  log 0.9  log2 1.1  log10 1.0  tanh 1.4  sigmoid 1.8  erf 1.3  sin, cos 1.6  atan2 2.4  pow 2.0

The greatest over all 2^32 f32, against f64 of a C library or of our own, on 21 November 2026: exp 1.14, log 0.86, tanh
5.90, sigmoid 1.87, erf 5.89, sin 1.514 (at 0x1.6d3bc2p+93), cos 1.501 (at 0x1.84e7a4p+99). pow of f32: 0.5000024
over 174 million pairs, 16 million of them a grid of mantissas and exponents. f64 on 32 million samples each (erf: 4
million), against 80-bit floats and mpmath: exp 1.235, log 0.830, tanh 1.340, sigmoid 1.713 (at -1.1471567), erf 1.210,
sin 1.493, cos 1.510, pow 1.914 (1.6296e152 to the power -0.178954). With AVX-512 exp of f32: 0.990, sigmoid 1.82;
exp, tanh and pow of f64 go another way there, too, whose samples of that many have not been drawn (exp: 1.17 in fewer).
log2 of f32: 1.027 (at 1.4013), log10: 0.968, over every f32 from 0.125 to 3 and an eighth of the others.

Infinities, NaN, denormals and signed zeros are as in C. Scalars and vectors give the same bits; no function of a
library is called. Coefficients are minimax or least-squares fits of the function named beside them; arguments are
reduced as in Muller, "Elementary Functions" (2016), section 11 (Cody-Waite with fused operations, Payne-Hanek). f16 and
bf16 compute in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from poly.codegen.floats import BIAS, LOG2E, MANTISSA, Floats
from poly.codegen.instructions import chosen, limited, scaled
from poly.codegen.operators import Ops
from poly.codegen.values import Value
from poly.errors import Bug

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/2
_EXP: Final = {
    "f32": (
        0.49999993374972943, 0.16666519524083156, 0.041668400459219028, 0.0083688511333783776, 0.0013814360021870073,
    ),
    "f64": (
        0.50000000000000108, 0.16666666666666408, 0.041666666666528102, 0.0083333333334969318, 0.0013888888944249412,
        0.000198412695027196, 2.4801492388141537e-5, 2.7557588442529215e-6, 2.7630523503127417e-7,
        2.499985102368986e-8,
    ),
}  # fmt: skip
# (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/16, short and close; the mantissas of 2^(k/8)
_EXP_SHORT: Final = (0.50006497, 0.16668237)
_EXP_CLOSE: Final = (0.49999999744887136, 0.16668025964748323, 0.04167063269622346)
_EIGHTHS: Final = (0, 759234, 1587184, 2490071, 3474675, 4548394, 5719293, 6996167)
# (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/32; the mantissas of 2^(k/16)
_EXP_SIXTEENTH: Final = (0.500016203145533, 0.16667058054956835)
_SIXTEENTHS: Final = (
    0, 371395, 759234, 1164243, 1587184, 2028850, 2490071, 2971711, 3474675, 3999908, 4548394, 5121164, 5719293,
    6343903, 6996167, 7677309,
)  # fmt: skip
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG32: Final = (
    0.33333311967677674, -0.2500000871167215, 0.20002167034385857, -0.16668090349243368, 0.14218554664225099,
    -0.12403083767094478, 0.1189351172635967, -0.11694335919999753, 0.06757571834700813,
)  # fmt: skip
# (2 atanh(s) - 2 s) / s^3 as a function of s^2, |s| <= 0.1716
_LOG64: Final = (
    0.66666666666667309, 0.39999999999431764, 0.28571428739435497, 0.22222198815190846, 0.18183554158693292,
    0.15314261112064732, 0.14794257422251804,
)  # fmt: skip
# tanh(x) / x as a function of x^2, |x| <= 9.02: numerator, denominator
_TANH32: Final = (
    (
        0.9999999999634755, 0.1409921283022865, 0.004425953254420396, 4.227384090424163e-05, 1.1117660997925514e-07,
        3.674467044207231e-11,
    ),
    (
        1.0, 0.47432546123512703, 0.029201107728835593, 0.0005008349687834108, 2.6038637920608302e-06,
        2.951195651961565e-09,
    ),
)  # fmt: skip
# (tanh(x) - x) / x^3 as a function of x^2, |x| <= 0.63: numerator, denominator
_TANH64: Final = (
    (-0.3333333333333332, -0.020496571125360352, -0.00019907939114594203),
    (1.0, 0.461489713376065, 0.023288361619374677, 0.00020642808841636945),
)
# erf(x) / x as a function of x^2, |x| <= 3.92: numerator, denominator
_ERF32: Final = (
    (
        1.1283791461304475, 0.19040702815458682, 0.052748801968745325, 0.003765642558603794, 0.000284883565934619,
        2.0500862573689346e-06,
    ),
    (
        1.0, 0.5020765758747917, 0.1141093481220822, 0.014969267252279341, 0.001162542235666551,
        3.809174874924902e-05,
    ),
)  # fmt: skip
# erf(x) / x - 1 as a function of x^2, |x| <= 1
_ERF64: Final = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954882, -0.026866170645077334, 0.005223977624823223,
    -0.0008548326981129666, 0.00012055331122299266, -1.4925595519506043e-05, 1.6461004480962034e-06,
    -1.6350354461959655e-07, 1.4660051998394848e-08, -1.1373902296430911e-09, 5.958930743134941e-11,
)  # fmt: skip
# erfc(x) exp(x^2) for 0.98 <= x <= 6: numerator, denominator
_ERFCX64: Final = (
    (
        0.99999990130641, 1.3872625095274738, 0.9454066452809432, 0.3711456339674404, 0.08356832489413103,
        0.008813253097636472,
    ),
    (
        1.0, 2.5156406250938144, 2.784008457247035, 1.7491576723095876, 0.6657106778882051, 0.14811692777844765,
        0.015621213023127656,
    ),
)  # fmt: skip
_LN2: Final = {"f32": (0.693359375, -0.00021219444005469057), "f64": (0.6931471805598903, 5.497923018708371e-14)}
# logarithms of 2 and of e to other bases, in two parts; an exponent times the first part of 2's is exact
_BASES: Final = {
    ("log2", "f32"): (1.0, 0.0, 1.4426950216293335, 1.925963033500011e-08),
    ("log2", "f64"): (1.0, 0.0, 1.4426950408889634, 2.0355273740931033e-17),
    ("log10", "f32"): (0.301025390625, 4.605039066518657e-06, 0.4342944920063019, -1.0103049952192578e-08),
    ("log10", "f64"): (0.3010299956640665, -8.532344317057107e-14, 0.4342944819032518, 1.098319650216765e-17),
}


def function(ops: Ops, name: str, operands: Sequence[Value]) -> Value:
    """The function `name` on floating operands of one type, f32 or f64."""
    from poly.codegen import vector_angle, vector_power, vector_sine

    a = operands[0]
    f = Floats(ops, a.dtype, a.lanes)
    wide = a.dtype == "f64"
    match name:
        case "exp":
            return exp(f, a)
        case "log" | "log2" | "log10":
            return _log(f, a, name)
        case "sigmoid":
            return _sigmoid(f, a)
        case "tanh":
            return _tanh64(f, a) if wide else _odd_ratio(f, a, 9.02, _TANH32)
        case "erf":
            return _erf64(f, a) if wide else _odd_ratio(f, a, 4.2, _ERF32)  # above 1 there
        case "sin" | "cos":
            return vector_sine.sine(f, a, name)
        case "atan2":
            return vector_angle.angle(f, a, operands[1])
        case "pow":
            return vector_power.power(f, a, operands[1])
        case _:
            raise Bug(f"no function {name}")


def exp(f: Floats, x: Value) -> Value:
    """e^x; x may be anything."""
    if f.ops.target.scales:
        return _exp_scaled(f, x, _SIXTEENTHS, _EXP_SIXTEENTH)
    return _exp_below(f, f.at_most(x, 90.0 if f.dtype == "f32" else 715.0), _EXP_SHORT)


def _exp_below(f: Floats, x: Value, short: Sequence[float]) -> Value:
    """2^n * e^r with n = round(x / ln 2), for x below that of infinity; `short`: the terms where there is a table."""
    x = f.at_least(x, -105.0 if f.dtype == "f32" else -750.0)
    if f.dtype == "f32" and f.ops.target.table:
        return _exp_by_table(f, x, short)
    n, shifted = f.round(x, LOG2E, 2 * BIAS[f.dtype])
    hi, lo = _LN2[f.dtype]
    r = f.fma(n, f.c(-lo), f.fma(n, f.c(-hi), x))
    powers = f.powers(r, 9)
    low, high = _EXP[f.dtype][:2], _EXP[f.dtype][2:]
    p = f.fma(powers[1], f.poly(powers, low), r)
    return f.scaled(f.fma(powers[2], f.poly(powers, high), p), shifted)


def _exp_by_table(f: Floats, x: Value, terms: Sequence[float]) -> Value:
    """2^(n / 8) * e^r with n = round(8 x / ln 2): fewer terms, and a choice among eight numbers in one instruction
    (Tang, "Table-driven implementation of the exponential function", 1989).
    """
    mantissa, steps = MANTISSA["f32"], len(_EIGHTHS)
    n, shifted = f.round(x, steps * LOG2E, steps * 2 * BIAS["f32"])
    hi, lo = _LN2["f32"]
    r = f.fma(n, f.c(-lo / steps), f.fma(n, f.c(-hi / steps), x))
    p = f.fma(f.mul(r, r), f.poly(r, terms), r)
    first, second = f.halves(shifted, 3)
    # the index, still in the mantissa of `first`, is taken off the entries of the table
    table = [bits - (k << mantissa - 3) for k, bits in enumerate(_EIGHTHS)]
    first = f.floating(f.int_op("add", first, chosen(f.ops, table, shifted)))
    return f.mul(f.fma(p, first, first), f.floating(second))


def _exp_scaled(f: Floats, x: Value, table: Sequence[int], terms: Sequence[float]) -> Value:
    """2^n * e^r, where one instruction multiplies by 2^floor(n) for any n: infinities and NaN, too, as long as the
    other factor is a finite positive number. Of f32 n is whole steps of a table, as many as it has in 1.
    """
    wide = f.dtype == "f64"
    n, shifted = f.round(x, LOG2E, fraction=0 if wide else len(table).bit_length() - 1)
    hi, lo = _LN2[f.dtype]
    r = limited(f.ops, f.fma(n, f.c(-lo), f.fma(n, f.c(-hi), x)), 0.5)
    if wide:
        powers = f.powers(r, 9)
        p = f.fma(powers[1], f.poly(powers, _EXP["f64"][:2]), r)
        return scaled(f.ops, f.add(f.fma(powers[2], f.poly(powers, _EXP["f64"][2:]), p), f.c(1.0)), n)
    p = f.fma(f.mul(r, r), f.poly(r, terms), r)
    one = BIAS["f32"] << MANTISSA["f32"]
    root = f.floating(chosen(f.ops, [one + bits for bits in table], shifted))
    return scaled(f.ops, f.fma(p, root, root), n)


def _sigmoid(f: Floats, x: Value) -> Value:
    """1 / (1 + e^-x), from e = e^-|x| so that neither side overflows: 1 - q or e - e q with q = e / (1 + e), where the
    errors of q count little. NaN stays in the denominator.
    """
    t = f.ops.negate(f.abs(x))
    e = _exp_scaled(f, t, _EIGHTHS, _EXP_CLOSE) if f.ops.target.scales else _exp_below(f, t, _EXP_CLOSE)
    q = f.div(e, f.add(e, f.c(1.0)))
    n = f.when(f.less(x, f.c(0.0)), e, f.c(1.0))
    return f.fma(f.ops.negate(n), q, n)


def _odd_ratio(f: Floats, x: Value, limit: float, ratio: tuple[Sequence[float], Sequence[float]]) -> Value:
    """x * P(x^2) / Q(x^2) of an odd function that is 1 beyond `limit`; results above 1 are 1."""
    t = f.at_most(f.at_least(x, -limit), limit)
    u = f.mul(t, t)
    found = f.div(f.mul(t, f.horner(u, ratio[0])), f.horner(u, ratio[1]))
    return f.at_most(f.at_least(found, -1.0), 1.0)


def _tanh64(f: Floats, x: Value) -> Value:
    """x + x^3 P/Q near 0, else 1 - 2 / (e^2x + 1), with one division for both."""
    t = f.at_most(f.abs(x), 20.0)
    u = f.mul(t, t)
    e = exp(f, f.add(t, t))
    near = f.less(t, f.c(0.625))
    small = f.mul(f.mul(u, t), f.poly(u, _TANH64[0]))
    numerator = f.when(near, small, f.c(-2.0))
    denominator = f.when(near, f.poly(u, _TANH64[1]), f.add(e, f.c(1.0)))
    return f.sign_of(f.add(f.when(near, t, f.c(1.0)), f.div(numerator, denominator)), x)


def _erf64(f: Floats, x: Value) -> Value:
    """x + x P(x^2) near 0, else 1 - e^(-x^2) R(|x|)."""
    t = f.at_most(f.abs(x), 6.0)
    u = f.mul(t, t)
    small = f.fma(t, f.poly(u, _ERF64), t)
    powers = f.powers(t, 6)
    tail = f.mul(exp(f, f.ops.negate(u)), f.poly(powers, _ERFCX64[0]))
    large = f.sub(f.c(1.0), f.div(tail, f.poly(powers, _ERFCX64[1])))
    return f.sign_of(f.when(f.less(t, f.c(1.0)), small, large), x)


def _log_specials(f: Floats, x: Value, result: Value) -> Value:
    result = f.when(f.equal(x, f.c(float("inf"))), x, result)
    result = f.when(f.equal(x, f.c(0.0)), f.c(float("-inf")), result)
    result = f.when(f.less(x, f.c(0.0)), f.c(float("nan")), result)
    return f.when(f.unordered(x, x), x, result)


def split(f: Floats, x: Value, normal: bool = False) -> tuple[Value, Value]:
    """x = m * 2^e with sqrt(1/2) <= m < sqrt(2), for x > 0, denormals included unless all are `normal`. Gives m, e."""
    mantissa, bias = MANTISSA[f.dtype], BIAS[f.dtype]
    root = 0x3F3504F3 if f.dtype == "f32" else 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
    tiny = 1.1754943508222875e-38 if f.dtype == "f32" else 2.2250738585072014e-308
    lift = 2.0**mantissa
    denormal = f.less(x, f.c(tiny))
    if not normal:
        x = f.when(denormal, f.mul(x, f.c(lift)), x)
    bits = f.bits(x)
    shifted = f.int_op("add", bits, f.i((bias << mantissa) - root))
    exponent = f.int_op("lshr", shifted, f.i(mantissa))
    power = f.int_op("shl", exponent, f.i(mantissa))
    m = f.floating(f.int_op("add", f.int_op("sub", bits, power), f.i(bias << mantissa)))
    # an integer below 2^mantissa under the exponent of 2^mantissa is that power plus the integer
    plain = f.floating(f.int_op("or", exponent, f.i((bias + mantissa) << mantissa)))
    offset = f.c(lift + bias) if normal else f.when(denormal, f.c(lift + bias + mantissa), f.c(lift + bias))
    return m, f.sub(plain, offset)


def _log(f: Floats, x: Value, name: str) -> Value:
    """Denormals, zero, infinity, NaN and what is negative on a path of their own."""
    short = _log64 if f.dtype == "f64" else _log32
    mantissa, top = MANTISSA[f.dtype], 1 << f.width - 1
    endless = top - (1 << mantissa)  # the bits of infinity
    # with the bits of the smallest normal number taken to those of the smallest integer one comparison is enough
    moved = f.int_op("add", f.bits(x), f.i(top - (1 << mantissa)))
    unusual = f.ops.compare("ge", moved, f.i(endless - top - (1 << mantissa)))
    return f.rare(unusual, short(f, x, name, True), lambda: _log_specials(f, x, short(f, x, name, False)))


def _in_base(f: Floats, name: str, e: Value, r: Value, rest: Value) -> Value:
    """The logarithm of 2^e (1 + r), with log(1 + r) = r + rest."""
    two, two_low, scale, scale_low = _BASES[name, f.dtype]
    low = f.mul(r, f.c(scale_low))
    if two_low:
        low = f.fma(e, f.c(two_low), low)
    return f.fma(e, f.c(two), f.fma(r, f.c(scale), f.fma(rest, f.c(scale), low)))


def _log32(f: Floats, x: Value, name: str, normal: bool) -> Value:
    m, e = split(f, x, normal)
    r = f.sub(m, f.c(1.0))
    powers = f.powers(r, 8)
    tail = f.mul(f.mul(powers[1], r), f.poly(powers, _LOG32))
    if name != "log":
        return _in_base(f, name, e, r, f.fma(powers[1], f.c(-0.5), tail))
    hi, lo = _LN2["f32"]
    tail = f.fma(powers[1], f.c(-0.5), f.fma(e, f.c(lo), tail))
    return f.fma(e, f.c(hi), f.add(r, tail))


def _log64(f: Floats, x: Value, name: str, normal: bool) -> Value:
    m, e = split(f, x, normal)
    r = f.sub(m, f.c(1.0))
    s = f.div(r, f.add(m, f.c(1.0)))
    u = f.mul(s, s)
    half = f.mul(f.mul(r, r), f.c(0.5))
    # log(1 + r) = r - (r^2/2 - s (r^2/2 + u T(u))): r is exact, what is rounded is small
    t = f.mul(s, f.add(half, f.mul(u, f.poly(u, _LOG64))))
    if name != "log":
        return _in_base(f, name, e, r, f.sub(t, half))
    hi, lo = _LN2["f64"]
    tail = f.sub(half, f.fma(e, f.c(lo), t))
    return f.fma(e, f.c(hi), f.sub(r, tail))
