"""Vector math: exp, log, tanh, sigmoid, erf, sin, cos, pow as polynomials, for scalars and any number of lanes.

Errors against the exact value, in units in the last place, over the whole range (measured by tests/test_vector_math.py,
with fused multiply-add):

    f32   exp 1.0   log 0.8   tanh 1.4   sigmoid 2.2   erf 1.1   sin 0.6   cos 0.6   pow 0.6
    f64   exp 0.9   log 0.8   sigmoid 1.6; tanh, erf, sin, cos, pow call the C library lane by lane

Infinities, NaN, denormals and signed zeros are as in C. f32 sin, cos beyond 2^20 call the C library too. Coefficients
are minimax fits (Remez exchange) of the function named beside them; arguments are reduced as in Muller, "Elementary
Functions" (2016), section 11 (two-constant Cody-Waite reduction).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from poly.codegen.text import value_type
from poly.errors import Bug

if TYPE_CHECKING:
    from poly.codegen.values import Ops, Value

# (exp(r) - 1 - r) / r^2 for |r| <= ln(2)/2
_EXP32: Final = (
    0.49999993374972943,
    0.16666519524083156,
    0.041668400459219028,
    0.0083688511333783776,
    0.0013814360021870073,
)
_EXP64: Final = (
    0.50000000000000108, 0.16666666666666408, 0.041666666666528102, 0.0083333333334969318, 0.0013888888944249412,
    0.000198412695027196, 2.4801492388141537e-5, 2.7557588442529215e-6, 2.7630523503127417e-7, 2.499985102368986e-8,
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
# (tanh(x) - x) / x^3 as a function of x^2, |x| <= 0.625
_TANH32: Final = (
    -0.33333330802949271, 0.13333206015163635, -0.053946763761179255, 0.021700706451921823, -0.0081774051853512209,
    0.0021429675136662855,
)  # fmt: skip
# erf(x) / x - 1 as a function of x^2, |x| <= 0.97; and -log(erfc(x)) for 0.95 <= x <= 3.95
_ERF32: Final = (
    0.1283791660547821, -0.37612628534108193, 0.11283621047495933, -0.026855534928843967, 0.0051920355944348084,
    -0.00080467179267274004, 7.9879774537940303e-5,
)  # fmt: skip
_ERFC32: Final = (
    -0.00018246131468620401, 1.1295520468950119, 0.63327240249535275, 0.10836156495291211, -0.025171816971532055,
    0.0041908589682617856, -0.00043853061853945037, 2.1445626969587752e-5,
)  # fmt: skip
# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 as functions of r^2, |r| <= pi/4
_SIN: Final = (-0.16666666641527698, 0.0083333293741617024, -0.00019839331002140189, 2.718274485615032e-6)
_COS: Final = (0.041666666622654553, -0.0013888883738169317, 2.4799515921397523e-5, -2.7209895248757505e-7)
# (2^f - 1) / f for |f| <= 1/2
_EXP2: Final = (
    0.69314718055995151, 0.24022650695714216, 0.055504108664317693, 0.0096181291834354139, 0.0013333558251996844,
    0.00015403439201107487, 1.5252644672968695e-5, 1.3258709025628116e-6, 1.0211037095197064e-7,
)  # fmt: skip
_LOG2E: Final = 1.4426950408889634
_LN2: Final = {"f32": (0.693359375, -0.00021219444005469057), "f64": (0.6931471805598903, 5.497923018708371e-14)}
_MAGIC: Final = {"f32": 12582912.0, "f64": 6755399441055744.0}  # 1.5 * 2^23, 1.5 * 2^52: adding it rounds to an integer
_MANTISSA: Final = {"f32": 23, "f64": 52}
_HALF_PI: Final = (1.5707963267341256, 6.077100506506192e-11)  # the first has 33 bits: exact multiples up to 2^20


class _Float:
    """Arithmetic on values of one floating dtype and one number of lanes."""

    def __init__(self, ops: Ops, dtype: str, lanes: int) -> None:
        self.ops, self.dtype, self.lanes = ops, dtype, lanes
        self.bits_type = "i32" if dtype == "f32" else "i64"

    def c(self, value: float) -> Value:
        return self.ops.const(self.dtype, value, self.lanes)

    def i(self, value: int) -> Value:
        return self.ops.const(self.bits_type, value, self.lanes)

    def add(self, a: Value, b: Value) -> Value:
        return self.ops.op("fadd", a, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.ops.op("fsub", a, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.ops.op("fmul", a, a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.ops.op("fdiv", a, a, b)

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
        return self.ops.op("fcmp uno", a, a, b, dtype="bool")

    def at_most(self, a: Value, limit: float) -> Value:
        """min(a, limit); NaN stays."""
        return self.when(self.less(self.c(limit), a), self.c(limit), a)

    def at_least(self, a: Value, limit: float) -> Value:
        return self.when(self.less(a, self.c(limit)), self.c(limit), a)

    def int_op(self, name: str, a: Value, b: Value) -> Value:
        return self.ops.op(name, a, a, b)

    def recast(self, a: Value, dtype: str) -> Value:
        """The same bits as another dtype."""
        source, target = value_type(a.dtype, a.lanes), value_type(dtype, a.lanes)
        from poly.codegen.values import Value

        return Value(dtype, a.lanes, self.ops.writer.value(f"bitcast {source} {a.text} to {target}"))

    def bits(self, a: Value) -> Value:
        return self.recast(a, self.bits_type)

    def floating(self, a: Value) -> Value:
        return self.recast(a, self.dtype)

    def poly(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's rule, constant term first in `coefficients`."""
        total = self.c(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.c(c))
        return total

    def round(self, x: Value, factor: float) -> tuple[Value, Value]:
        """round(x * factor) as a float, and the same plus a constant as bits (its low bits are the integer)."""
        shifted = self.fma(x, self.c(factor), self.c(_MAGIC[self.dtype]))
        return self.sub(shifted, self.c(_MAGIC[self.dtype])), self.bits(shifted)


def function(ops: Ops, name: str, operands: Sequence[Value]) -> Value:
    """The function `name` on floating operands of one type."""
    a = operands[0]
    f = _Float(ops, a.dtype, a.lanes)
    match name, a.dtype:
        case "exp", _:
            return _exp(f, a)
        case "log", _:
            return _log32(f, a) if a.dtype == "f32" else _log64(f, a)
        case "sigmoid", _:
            return _sigmoid(f, a)
        case "tanh", "f32":
            return _tanh32(f, a)
        case "erf", "f32":
            return _erf32(f, a)
        case (("sin" | "cos"), "f32"):
            return _sine(f, a, name)
        case "pow", _ if (known := _known_power(f, a, operands[1])) is not None:
            return known
        case "pow", "f32":
            return _pow32(f, a, operands[1])
        case (("tanh" | "erf" | "sin" | "cos" | "pow"), _):
            return _library(ops, name, operands)
        case _:
            raise Bug(f"no function {name}")


def _exp(f: _Float, x: Value) -> Value:
    """2^n * e^r with n = round(x / ln 2); the scale in two factors, so that denormals and overflow round once."""
    low, high = (-105.0, 90.0) if f.dtype == "f32" else (-750.0, 715.0)
    x = f.at_most(f.at_least(x, low), high)
    n, shifted = f.round(x, _LOG2E)
    hi, lo = _LN2[f.dtype]
    r = f.fma(n, f.c(-lo), f.fma(n, f.c(-hi), x))
    q = f.poly(r, _EXP32 if f.dtype == "f32" else _EXP64)
    p = f.add(f.fma(f.mul(r, r), q, r), f.c(1.0))
    mantissa, bias = f.i(_MANTISSA[f.dtype]), 127 if f.dtype == "f32" else 1023
    # the integer sits below the constant's bits: of the low bits a biased, hence positive half is taken
    width = 32 if f.dtype == "f32" else 64
    magic = 0x4B400000 if f.dtype == "f32" else 0x4338000000000000
    biased = f.int_op("add", shifted, f.i((2 * bias - magic) & ((1 << width) - 1)))
    first = f.int_op("lshr", biased, f.i(1))
    second = f.int_op("sub", biased, first)
    for half in (first, second):
        p = f.mul(p, f.floating(f.int_op("shl", half, mantissa)))
    return p


def _sigmoid(f: _Float, x: Value) -> Value:
    """1 / (1 + e^-x), from e^-|x| so that neither side overflows."""
    e = _exp(f, f.ops.negate(f.abs(x)))
    numerator = f.when(f.less(x, f.c(0.0)), e, f.c(1.0))
    return f.div(f.when(f.unordered(x, x), x, numerator), f.add(e, f.c(1.0)))


def _tanh32(f: _Float, x: Value) -> Value:
    t = f.abs(x)
    u = f.at_most(f.mul(x, x), 1.0)
    small = f.fma(f.mul(f.poly(u, _TANH32), u), t, t)
    e = _exp(f, f.add(f.at_most(t, 9.5), f.at_most(t, 9.5)))
    large = f.sub(f.c(1.0), f.div(f.c(2.0), f.add(e, f.c(1.0))))
    return f.sign_of(f.when(f.less(t, f.c(0.625)), small, large), x)


def _erf32(f: _Float, x: Value) -> Value:
    t = f.at_most(f.abs(x), 3.95)
    u = f.at_most(f.mul(x, x), 1.0)
    small = f.fma(x, f.poly(u, _ERF32), x)
    large = f.sub(f.c(1.0), _exp(f, f.ops.negate(f.poly(t, _ERFC32))))
    return f.when(f.less(t, f.c(0.96)), small, f.sign_of(large, x))


def _log_specials(f: _Float, x: Value, result: Value) -> Value:
    result = f.when(f.equal(x, f.c(float("inf"))), x, result)
    result = f.when(f.equal(x, f.c(0.0)), f.c(float("-inf")), result)
    result = f.when(f.less(x, f.c(0.0)), f.c(float("nan")), result)
    return f.when(f.unordered(x, x), x, result)


def _split(f: _Float, x: Value, root: int) -> tuple[Value, Value]:
    """x = m * 2^e with sqrt(1/2) <= m < sqrt(2), for x > 0; `root`: the bits of sqrt(1/2). Gives m, e."""
    mantissa, bias = _MANTISSA[f.dtype], 127 if f.dtype == "f32" else 1023
    tiny = 1.1754943508222875e-38 if f.dtype == "f32" else 2.2250738585072014e-308
    lift = 2.0**mantissa
    denormal = f.less(x, f.c(tiny))
    x = f.when(denormal, f.mul(x, f.c(lift)), x)
    bits = f.bits(x)
    shifted = f.int_op("add", bits, f.i((bias << mantissa) - root))
    exponent = f.int_op("lshr", shifted, f.i(mantissa))
    power = f.int_op("shl", exponent, f.i(mantissa))
    m = f.floating(f.int_op("add", f.int_op("sub", bits, power), f.i(bias << mantissa)))
    # an integer below 2^mantissa under the exponent of 2^mantissa is that power plus the integer
    plain = f.floating(f.int_op("or", exponent, f.i((bias + mantissa) << mantissa)))
    offset = f.when(denormal, f.c(lift + bias + mantissa), f.c(lift + bias))
    return m, f.sub(plain, offset)


def _log32(f: _Float, x: Value) -> Value:
    m, e = _split(f, x, 0x3F3504F3)
    r = f.sub(m, f.c(1.0))
    square = f.mul(r, r)
    tail = f.mul(f.mul(square, r), f.poly(r, _LOG32))
    hi, lo = _LN2["f32"]
    tail = f.fma(square, f.c(-0.5), f.fma(e, f.c(lo), tail))
    return _log_specials(f, x, f.fma(e, f.c(hi), f.add(r, tail)))


def _log64(f: _Float, x: Value) -> Value:
    m, e = _split(f, x, 0x3FE6A09E667F3BCD)
    r = f.sub(m, f.c(1.0))
    s = f.div(r, f.add(m, f.c(1.0)))
    u = f.mul(s, s)
    half = f.mul(f.mul(r, r), f.c(0.5))
    # log(1 + r) = r - (r^2/2 - s (r^2/2 + u T(u))): r is exact, what is rounded is small
    t = f.mul(s, f.add(half, f.mul(u, f.poly(u, _LOG64))))
    hi, lo = _LN2["f64"]
    tail = f.sub(half, f.fma(e, f.c(lo), t))
    return _log_specials(f, x, f.fma(e, f.c(hi), f.sub(r, tail)))


def _sine(f: _Float, x: Value, name: str) -> Value:
    """In f64: r = x - n pi/2, then sin or cos of r by n mod 4."""
    d = _Float(f.ops, "f64", f.lanes)
    wide = f.ops.cast(x, "f64")
    n, shifted = d.round(wide, 0.6366197723675814)
    quadrant = f.ops.cast(shifted, "i32")
    if name == "cos":
        quadrant = f.int_op("add", quadrant, f.i(1))
    r = d.fma(n, d.c(-_HALF_PI[1]), d.fma(n, d.c(-_HALF_PI[0]), wide))
    u = d.mul(r, r)
    sine = f.ops.cast(d.mul(r, d.fma(u, d.poly(u, _SIN), d.c(1.0))), "f32")
    cosine = f.ops.cast(d.fma(d.mul(u, u), d.poly(u, _COS), d.fma(u, d.c(-0.5), d.c(1.0))), "f32")
    odd = f.ops.truth(f.int_op("and", quadrant, f.i(1)))
    flip = f.int_op("shl", f.int_op("and", quadrant, f.i(2)), f.i(30))
    chosen = f.when(odd, cosine, sine)
    fast = f.floating(f.int_op("xor", f.bits(chosen), flip))
    large = f.ops.op("fcmp uge", x, f.abs(x), f.c(1048576.0), dtype="bool")
    return f.ops.unlikely(large, fast, lambda: _library(f.ops, name, (x,)))


def _known_power(f: _Float, x: Value, y: Value) -> Value | None:
    """The exponents 1, 2, 3 and -1 by multiplications."""
    match y.literal:
        case 1:
            return x
        case 2:
            return f.mul(x, x)
        case 3:
            return f.mul(f.mul(x, x), x)
        case -1:
            return f.div(f.c(1.0), x)
        case _:
            return None


def _pow32(f: _Float, x: Value, y: Value) -> Value:
    """2^(y log2 |x|) in f64, then the cases of C's `pow`."""
    d = _Float(f.ops, "f64", f.lanes)
    base, exponent = f.ops.cast(x, "f64"), f.ops.cast(y, "f64")
    size = d.abs(base)
    log2 = _log2(d, size)
    log2 = d.when(d.equal(size, d.c(0.0)), d.c(float("-inf")), log2)
    log2 = d.when(d.equal(size, d.c(float("inf"))), size, log2)
    result = _exp2(d, d.mul(exponent, log2))
    result = d.when(d.equal(size, d.c(1.0)), d.c(1.0), result)
    whole = d.equal(f.ops.call("rint", exponent), exponent)
    half = d.mul(exponent, d.c(0.5))
    even = d.equal(f.ops.call("rint", half), half)
    odd = f.ops.op("and", x, whole, f.ops.apply("not", (even,)), dtype="bool")
    result = d.when(odd, d.sign_of(result, base), result)
    finite = d.less(d.c(float("-inf")), base)
    negative = f.ops.op("and", x, finite, d.less(base, d.c(0.0)), dtype="bool")
    complex_ = f.ops.op("and", x, negative, f.ops.apply("not", (whole,)), dtype="bool")
    undefined = f.ops.op("or", x, complex_, d.unordered(base, exponent), dtype="bool")
    result = d.when(undefined, d.c(float("nan")), result)
    one = f.ops.op("or", x, d.equal(exponent, d.c(0.0)), d.equal(base, d.c(1.0)), dtype="bool")
    return f.ops.cast(d.when(one, d.c(1.0), result), "f32")


def _log2(d: _Float, x: Value) -> Value:
    """log2 of positive normal f64 numbers, to 1e-15."""
    m, e = _split(d, x, 0x3FE6A09E667F3BCD)
    s = d.div(d.sub(m, d.c(1.0)), d.add(m, d.c(1.0)))
    u = d.mul(s, s)
    log = d.mul(s, d.fma(u, d.poly(u, _LOG64), d.c(2.0)))
    return d.fma(log, d.c(_LOG2E), e)


def _exp2(d: _Float, x: Value) -> Value:
    """2^x in f64 for |x| <= 1000 (clamped), to 1e-13."""
    x = d.at_most(d.at_least(x, -1000.0), 1000.0)
    n, shifted = d.round(x, 1.0)
    r = d.sub(x, n)
    p = d.fma(r, d.poly(r, _EXP2), d.c(1.0))
    return d.floating(d.int_op("add", d.bits(p), d.int_op("shl", shifted, d.i(52))))


def _library(ops: Ops, name: str, operands: Sequence[Value]) -> Value:
    """The C library's function, lane by lane, in a function of its own."""
    from poly.codegen.values import Value

    a = operands[0]
    scalar, kind = value_type(a.dtype, 0), value_type(a.dtype, a.lanes)
    callee = name + ("f" if a.dtype == "f32" else "")
    ops.writer.declare(f"{scalar} @{callee}({', '.join([scalar] * len(operands))})")
    if not a.lanes:
        arguments = ", ".join(f"{scalar} {o.text}" for o in operands)
        return Value(a.dtype, 0, ops.writer.value(f"call {scalar} @{callee}({arguments})"))
    helper = f"poly.{callee}.{a.lanes}"
    ops.writer.functions.setdefault(helper, _lanewise(helper, callee, scalar, kind, a.lanes, len(operands)))
    arguments = ", ".join(f"{kind} {o.text}" for o in operands)
    return Value(a.dtype, a.lanes, ops.writer.value(f"call {kind} @{helper}({arguments})"))


def _lanewise(helper: str, callee: str, scalar: str, kind: str, lanes: int, arity: int) -> str:
    names = [f"%a{k}" for k in range(arity)]
    lines = [f"define internal {kind} @{helper}({', '.join(f'{kind} {n}' for n in names)}) nounwind noinline {{"]
    total = "poison"
    for i in range(lanes):
        lines += [f"  {n}.{i} = extractelement {kind} {n}, i64 {i}" for n in names]
        lines.append(f"  %r.{i} = call {scalar} @{callee}({', '.join(f'{scalar} {n}.{i}' for n in names)})")
        lines.append(f"  %s.{i} = insertelement {kind} {total}, {scalar} %r.{i}, i64 {i}")
        total = f"%s.{i}"
    return "\n".join([*lines, f"  ret {kind} {total}", "}"])
