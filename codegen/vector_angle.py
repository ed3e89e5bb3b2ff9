"""The angle of a point, atan2(y, x): a quotient of at most tan(pi/8) and its polynomial, then the octant.

Which of the two is larger, whether their quotient is nearer to 1 than to 0, and the sign of x give the multiple of pi/4
to which the polynomial is added, or from which it is taken.
"""

from __future__ import annotations

from typing import Final

from poly.codegen.floats import Floats
from poly.codegen.values import Value

# (atan(q) - q) / q^3 as a function of q^2, |q| <= tan(pi/8)
_ATAN: Final = {
    "f32": (-0.3333331547219596, 0.19998487494039685, -0.14243812697928657, 0.1059573662461469, -0.060827811866575564),
    "f64": (
        -0.333333333333332, 0.1999999999995396, -0.14285714280236272, 0.11111110785520702, -0.09090897818507972,
        0.07692061314228625, -0.06663116669989325, 0.058479815764171966, -0.05039720917711149, 0.03807512046319194,
        -0.017918737048706588,
    ),
}  # fmt: skip
_TAN_EIGHTH: Final = 0.4142135623730951
_QUARTER_PI: Final = {  # of the first part, multiples up to 4 are exact
    "f32": (0.785398006439209, 1.5695823932524066e-07),
    "f64": (0.7853981633974483, 3.061616997868383e-17),
}
_LARGE: Final = {"f32": 2.0**126, "f64": 2.0**1022}  # above, sums of two overflow
_SMALL: Final = {"f32": 2.0**-120, "f64": 2.0**-1000}  # below, products lose digits
_DOWN: Final = 0.25  # of any two finite numbers, the sum is finite
_UP: Final = 2.0**30  # the least number has 30 digits or all, enough to compare with tan(pi/8)


def angle(f: Floats, y: Value, x: Value) -> Value:
    """atan2(y, x), with the cases of C's."""
    one, zero = f.c(1.0), f.c(0.0)
    high, wide = f.abs(y), f.abs(x)
    steep = f.less(wide, high)
    small, large = f.when(steep, wide, high), f.when(steep, high, wide)
    endless = f.equal(small, f.c(float("inf")))  # both are
    small, large = f.when(endless, one, small), f.when(endless, one, large)
    large = f.when(f.equal(large, zero), one, large)
    scale = f.when(f.less(f.c(_LARGE[f.dtype]), large), f.c(_DOWN), one)
    scale = f.when(f.less(large, f.c(_SMALL[f.dtype])), f.c(_UP), scale)
    small, large = f.mul(small, scale), f.mul(large, scale)
    near = f.less(f.mul(large, f.c(_TAN_EIGHTH)), small)  # to the diagonal
    q = f.div(f.when(near, f.sub(small, large), small), f.when(near, f.add(small, large), large))
    u = f.mul(q, q)
    p = f.fma(f.mul(q, u), f.poly(u, _ATAN[f.dtype]), q)
    eighths = f.when(near, one, zero)
    p, eighths = f.when(steep, f.ops.negate(p), p), f.when(steep, f.sub(f.c(2.0), eighths), eighths)
    left = f.ops.compare("lt", f.bits(x), f.i(0))  # -0.0, too
    p, eighths = f.when(left, f.ops.negate(p), p), f.when(left, f.sub(f.c(4.0), eighths), eighths)
    first, second = _QUARTER_PI[f.dtype]
    found = f.fma(eighths, f.c(first), f.fma(eighths, f.c(second), p))
    return f.when(f.unordered(y, x), f.c(float("nan")), f.sign_of(found, y))
