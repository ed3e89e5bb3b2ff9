"""x^y = 2^(y log2 |x|), then the cases of C's `pow`.

f32 computes in f64. f64 carries log2 and the product as sums of two numbers, good to 2^-64 (Dekker's arithmetic, with
fused operations).
"""

from __future__ import annotations

from typing import Final

from poly.codegen.floats import BIAS, LOG2E, Floats
from poly.codegen.instructions import limited, scaled
from poly.codegen.values import Value

# (2 atanh(s) - 2 s) / s^3 as a function of s^2, |s| <= 0.1716; the first coefficient in two parts
_ATANH: Final = (
    0.6666666666666666, 0.4, 0.285714285714285, 0.2222222222225314, 0.18181818175013179, 0.1538461624406089,
    0.13333267352963726, 0.11767832728633622, 0.1043723243319011, 0.10910718474957551,
)  # fmt: skip
_ATANH_REST: Final = 3.700743415417188e-17
# (2^f - 1) / f for |f| <= 1/2
_EXP2: Final = (
    0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.009618129107628484, 0.0013333558146406469,
    0.00015403530393362755, 1.5252733841558449e-05, 1.321548681600089e-06, 1.0178057086967843e-07,
    7.0548943859833075e-09, 4.4558180309131894e-10, 2.5733568839729717e-11,
)  # fmt: skip
_LOG2E_REST: Final = 2.0355273740931033e-17
_MOST: Final = 1100.0  # beyond this exponent the result is 0 or infinite


def power(f: Floats, x: Value, y: Value) -> Value:
    """The power of two values of one dtype."""
    known = _known_power(f, x, y)
    if known is not None:
        return known
    d = Floats(f.ops, "f64", f.lanes)
    base, exponent = f.ops.cast(x, "f64"), f.ops.cast(y, "f64")
    size = d.abs(base)
    high, low = _log2(d, size) if f.dtype == "f64" else (_short_log2(d, size), None)
    high = d.when(d.equal(size, d.c(0.0)), d.c(float("-inf")), high)
    high = d.when(d.equal(size, d.c(float("inf"))), size, high)
    product = d.mul(exponent, high)
    rest = None
    if low is not None:
        rest = d.fma(exponent, low, d.fma(exponent, high, f.ops.negate(product)))
        rest = d.when(d.less(d.abs(product), d.c(_MOST)), rest, d.c(0.0))
    return _cases(f, x, y, f.ops.cast(_exp2(d, product, rest), f.dtype))


def _known_power(f: Floats, x: Value, y: Value) -> Value | None:
    """Small whole exponents by multiplications, those that are halves by square roots."""
    match y.literal:
        case 1:
            return x
        case 0.5:
            return _root(f, x)
        case -0.5:
            return f.div(f.c(1.0), _root(f, x))
        case 1.5:
            return f.mul(f.abs(x), _root(f, x))
        case -1.5:  # no product that is out of range before the result is
            return f.div(f.div(f.c(1.0), f.abs(x)), _root(f, x))
        case -2:
            inverse = f.div(f.c(1.0), x)
            return f.mul(inverse, inverse)
        case 4:
            square = f.mul(x, x)
            return f.mul(square, square)
        case 2:
            return f.mul(x, x)
        case 3:
            return f.mul(f.mul(x, x), x)
        case -1:
            return f.div(f.c(1.0), x)
        case _:
            return None


def _root(f: Floats, x: Value) -> Value:
    """x^0.5: the square root but of -0, which is 0, and of minus infinity, which is infinity."""
    root = f.abs(f.ops.apply("sqrt", (x,)))
    return f.when(f.equal(x, f.c(float("-inf"))), f.c(float("inf")), root)


def _cases(f: Floats, base: Value, exponent: Value, result: Value) -> Value:
    """The sign of odd powers, what has no real value, and what is 1 whatever the other operand is."""
    ops = f.ops
    result = f.when(f.equal(f.abs(base), f.c(1.0)), f.c(1.0), result)
    whole = f.equal(ops.call("rint", exponent), exponent)
    half = f.mul(exponent, f.c(0.5))
    even = f.equal(ops.call("rint", half), half)
    odd = ops.op("and", whole, ops.apply("not", (even,)), dtype="bool")
    result = f.when(odd, f.sign_of(result, base), result)
    finite = f.less(f.c(float("-inf")), base)
    negative = ops.op("and", finite, f.less(base, f.c(0.0)), dtype="bool")
    endless = f.equal(f.abs(exponent), f.c(float("inf")))
    real = ops.op("or", whole, endless, dtype="bool")
    complex_ = ops.op("and", negative, ops.apply("not", (real,)), dtype="bool")
    undefined = ops.op("or", complex_, f.unordered(base, exponent), dtype="bool")
    result = f.when(undefined, f.c(float("nan")), result)
    one = ops.op("or", f.equal(exponent, f.c(0.0)), f.equal(base, f.c(1.0)), dtype="bool")
    return f.when(one, f.c(1.0), result)


def _short_log2(d: Floats, x: Value) -> Value:
    """log2 of positive f32 numbers, to 1e-15."""
    m, e = _split(d, x, normal=True)
    s = d.div(d.sub(m, d.c(1.0)), d.add(m, d.c(1.0)))
    u = d.mul(s, s)
    log = d.mul(s, d.fma(u, d.poly(u, _ATANH[:8]), d.c(2.0)))
    return d.fma(log, d.c(LOG2E), e)


def _log2(d: Floats, x: Value) -> tuple[Value, Value]:
    """log2 of positive numbers as a sum of two."""
    m, e = _split(d, x)
    above, below = d.sub(m, d.c(1.0)), d.add(m, d.c(1.0))
    lost = d.sub(m, d.sub(below, d.c(1.0)))
    inverse = d.div(d.c(1.0), below)
    s = d.mul(above, inverse)
    minus = d.ops.negate(s)
    s_rest = d.mul(d.fma(minus, lost, d.fma(minus, below, above)), inverse)
    u = d.mul(s, s)
    u_rest = d.fma(d.add(s, s), s_rest, d.fma(s, s, d.ops.negate(u)))
    small = d.mul(u, d.poly(u, _ATANH[1:]))
    t = d.add(d.c(_ATANH[0]), small)
    t_rest = d.add(d.add(d.sub(d.c(_ATANH[0]), t), small), d.c(_ATANH_REST))
    cube, cube_rest = _product(d, (s, s_rest), (u, u_rest))
    v, v_rest = _product(d, (cube, cube_rest), (t, t_rest))
    twice = d.add(s, s)
    log = d.add(twice, v)
    log_rest = d.add(d.add(d.sub(twice, log), v), d.fma(d.c(2.0), s_rest, v_rest))
    k, k_rest = _product(d, (log, log_rest), (d.c(LOG2E), d.c(_LOG2E_REST)))
    high = d.add(e, k)
    return high, d.add(d.add(d.sub(e, high), k), k_rest)


def _product(d: Floats, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """The product of two sums of two, as a sum of two."""
    high = d.mul(a[0], b[0])
    rest = d.fma(a[0], b[0], d.ops.negate(high))
    return high, d.fma(a[1], b[0], d.fma(a[0], b[1], rest))


def _split(d: Floats, x: Value, normal: bool = False) -> tuple[Value, Value]:
    from poly.codegen.vector_math import split

    return split(d, x, normal)


def _exp2(d: Floats, x: Value, rest: Value | None) -> Value:
    """2^(x + rest)."""
    if not d.ops.target.scales:
        x = d.at_most(d.at_least(x, -_MOST), _MOST)
    n, shifted = d.round(x, 1.0, 2 * BIAS[d.dtype])
    r = d.sub(x, n)
    if d.ops.target.scales:
        r = limited(d.ops, r, 0.5)
    p = d.mul(r, d.poly(r, _EXP2 if rest is not None else _EXP2[:10]))
    if rest is not None:
        rest = d.mul(rest, d.c(_EXP2[0]))
        p = d.add(p, d.fma(p, rest, rest))
    return scaled(d.ops, d.add(p, d.c(1.0)), n) if d.ops.target.scales else d.scaled(p, shifted)
