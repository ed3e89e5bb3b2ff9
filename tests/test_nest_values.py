"""Operators of nests mean what they mean in Python, or, for `max` and `min` with NaN, what the README says."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import poly
from poly.errors import ParseError, PolyError
from poly.frontend.nest import Array, boolean, f64, i32, i64, nest, u8, u64
from poly.interp import run_program

NAN = float("nan")
FLOATS = (np.array([0, 2, NAN, 3, -0.0, 0.3, NAN]), np.array([5, 0, 1, 4, 0, NAN, NAN]), np.full(7, 9.0))
TRUTHS = (np.arange(7) % 2 == 0, np.arange(7) > 3, np.full((9, 7), 9.0))
BITS = (np.arange(7) % 2 == 0, np.arange(7) > 3, np.arange(42).reshape(6, 7) % 3 == 0)
INTEGERS = (np.array([0, 2, 5, 3, 0, 6, 12]), np.array([5, 0, 1, 4, 0, 3, 10]), np.full(7, 9))


def operand_of_and(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = x[i] and y[i]


def operand_of_or(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = x[i] or y[i] or 7.0


def truth_of_both(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = 3.0 * (x[i] > 0 and y[i] > 0) + (not (x[i] or y[i])) if x[i] or y[i] else -1.0


def numbers_before_nan(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = np.fmax(x[i], y[i]) - 2.0 * np.fmin(x[i], 1.0)


def nan_before_numbers(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = np.maximum(x[i], y[i]) - 2.0 * np.minimum(1.0, y[i])


def bits_of_both(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = 100 * (x[i] | y[i]) + 10 * (x[i] & y[i]) + (x[i] ^ y[i]) + (x[i] | (y[i] > 2))


def bits_that_come_in(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "N"]) -> None:
    for i in range(N):
        z[i] |= x[i]
        z[i] &= y[i]


def operand_and_truth(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = x[i] and y[i] > 2


def sums_of_truths(N: int, x: boolean[Array, "N"], y: boolean[Array, "N"], z: f64[Array, "9, N"]) -> None:
    for i in range(N):
        z[0, i] = x[i] + y[i]
        z[1, i] = (z[0, i] > 0) + (z[1, i] > 0)
        z[2, i] = x[i] + y[i] + 1
        z[3, i] = (i > 2) + (i > 4)
        z[4, i] = (i > 2) + x[i]
        z[5, i] = max(x[i], 2) + x[i] * i
        z[6, i] = (x[i] < 2) + 0.5
        z[7, i] -= x[i]
        z[8, i] = x[i] ** y[i] + x[i] ** x[i]


def truths_that_change(N: int, x: boolean[Array, "N"], y: boolean[Array, "N"], z: boolean[Array, "6, N"]) -> None:
    for i in range(N):
        z[0, i] += x[i]
        z[1, i] *= x[i]
        z[2, i] -= 1
        z[3, i] += 2
        z[4, i] = z[4, i] + x[i] * y[i]
        z[5, i] = max(z[5, i], x[i])


def literals_by_themselves(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = x[i] + 1 / 2 + np.int64(1.5 + -1) + (x[i] if 3 == False else 2**-1)
        z[i] += (y[i] < 3 < 3.5) + (not np.sqrt(2) - 1) + 4.0 * (y[i] == np.bool_(2)) + np.bool_(0.5) * 8.0


def literals_in_conditions(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        if -1 >= 0.5:
            z[i] = 3.0
        if 0.5 < 1.5 and i > 0:
            z[i] += x[i]
        elif not 0.5 + 0.5 > 2.5:
            z[i] = y[i]
        if 0.5 < 1.5 < i:
            z[i] -= 0.5


def fractions_among_integers(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "6, N"]) -> None:
    for i in range(N):
        z[0, i] = 0.25 * 0.5 if i > 3 else -1.5
        z[1, i] = (1.5 if x[i] > 2 else 2.5) * 2
        z[2, i] = (3 if x[i] > 2 else 5) / 2 * 2 + (0.5 if y[i] > 0 else 0.25)
        z[3, i] = -2.5
        z[4, i] += max(1.5, 0.5 if y[i] > 0 else 2.5) * 2
        s = 2.75
        z[5, i] = s


def literals_beyond_a_byte(N: int, x: u8[Array, "N"], y: u8[Array, "N"], z: u8[Array, "2, N"]) -> None:
    for i in range(N):
        z[0, i] = (300 if x[i] > 2 else 200) // 2
        z[1, i] += (300 if y[i] > 0 else 200) // 2


def differences_of_dtypes(N: int, x: u8[Array, "N"], y: u8[Array, "N"], z: f64[Array, "2, N"]) -> None:
    for i in range(N):
        z[0, i] -= x[i]
        z[1, i] = z[1, i] - (x[i] + y[i])


def wider_differences(N: int, x: u8[Array, "N"], y: u8[Array, "N"], z: i64[Array, "N"]) -> None:
    for i in range(N):
        z[i] -= x[i] - 1
        z[i] -= 3


def numbers_beyond_a_dtype(N: int, x: u8[Array, "N"], y: u8[Array, "N"], z: f64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = (x[i] > i - 3) + 2.0 * (-1 < y[i]) + max(x[i], i - 9) + (i - 7 if y[i] < 3 else x[i])


def beside_u64(N: int, x: u64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "6, N"]) -> None:
    for i in range(N):
        z[0, i] = (x[i] > y[i]) + 2 * (x[i] == y[i]) + 4 * (y[i] <= x[i])
        z[1, i] = (x[i] > i - 3) + 2 * (i - 3 >= x[i]) + 4 * (x[i] != i)
        z[2, i] = (x[i] > -1) + 2 * (x[i] <= 18446744073709551616) + 4 * (y[i] > 9223372036854775808)
        z[3, i] = min(x[i], y[i])
        z[4, i] = max(x[i], i - 3) // 2
        z[5, i] = y[i] if x[i] > y[i] else 3


def whole_divisions(N: int, x: i64[Array, "N"], y: i64[Array, "N"], z: i64[Array, "6, N"]) -> None:
    for i in range(N):
        z[0, i] = (x[i] - 5) // (y[i] - 11)
        z[1, i] = (x[i] - 5) % (y[i] - 11)
        z[2, i] = (x[i] - 5) // 4 + 10 * ((x[i] - 5) % 4) + 7 // -2
        z[3, i] //= i - 9
        z[4, i] %= i + 2
        z[5, i] = (i - 3) // (x[i] + 1) + np.floor_divide(i - 3, 2) + np.mod(x[i], 3) + np.remainder(y[i], -3)


def whole_parts_of_floats(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "3, N"]) -> None:
    for i in range(N):
        z[0, i] = (x[i] - 1.5) // (y[i] + 0.1)
        z[1, i] = (x[i] - 1.5) % -0.1
        z[2, i] //= i + 1


@pytest.mark.parametrize(("nest", "arrays"), [
    (beside_u64, (
        np.array([0, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1, 5], "u8"),
        np.array([0, -1, 2**53 + 1, 2**53, 2**63 - 1, -1, 5]), np.zeros((6, 7), "i8"),
    )),
    (whole_divisions, (*INTEGERS[:2], np.full((6, 7), -9))),
    (whole_parts_of_floats, (*FLOATS[:2], np.full((3, 7), -9.5))),
    (numbers_beyond_a_dtype, (*(a.astype("u1") for a in INTEGERS[:2]), FLOATS[2])),
    (differences_of_dtypes, (*(a.astype("u1") for a in INTEGERS[:2]), np.full((2, 7), 9.0))),
    (wider_differences, ((INTEGERS[0] + 1).astype("u1"), INTEGERS[1].astype("u1"), INTEGERS[2])),
    (fractions_among_integers, (*INTEGERS[:2], np.full((6, 7), 9))),
    (literals_beyond_a_byte, (*(a.astype("u1") for a in INTEGERS[:2]), np.full((2, 7), 9, "u1"))),
    (literals_by_themselves, (*INTEGERS[:2], FLOATS[2])),
    (literals_in_conditions, (*INTEGERS[:2], FLOATS[2])),
    (sums_of_truths, TRUTHS), (truths_that_change, BITS),
    *((f, FLOATS) for f in (operand_of_and, operand_of_or, truth_of_both, numbers_before_nan, nan_before_numbers)),
    *((f, INTEGERS) for f in (bits_of_both, bits_that_come_in, operand_and_truth)),
])  # fmt: skip
def test_compiled_and_interpreted_as_in_python(
    nest: Callable[..., None], arrays: tuple[npt.NDArray[np.generic], ...]
) -> None:
    expected = arrays[2].copy()
    nest(7, arrays[0], arrays[1], expected)
    found = poly.compile(poly.nest(nest))(*arrays)
    np.testing.assert_array_equal(found, expected)
    names = ("x", "y", "z")
    bound = poly.nest(nest).program.bind(N=7)
    np.testing.assert_array_equal(run_program(bound, dict(zip(names, arrays, strict=True)))["z"], expected)


@nest
def other_functions(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "9, N"]) -> None:
    for i in range(N):
        z[0, i] = math.atan2(y[i], x[i])
        z[1, i] = np.arctan2(-x[i], y[i])
        z[2, i] = np.arctan(x[i]) + math.atan(0.5)
        z[3, i] = np.arcsin(y[i])
        z[4, i] = np.arccos(y[i] * 0.875)
        z[5, i] = np.tan(x[i]) + np.square(y[i])
        z[6, i] = np.clip(x[i], -1.5, y[i])
        z[7, i] = np.trunc(3 * x[i])
        z[8, i] = np.isnan(y[i]) or np.isinf(x[i] / 0.5) or np.isfinite(x[i] * y[i]) and x[i] > 0


def test_functions_of_math_and_numpy() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.uniform(-1, 1, 50)
    wanted = np.zeros((9, 50))
    other_functions(50, x, y, wanted)
    kernel: Any = poly.compile(other_functions)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(kernel(x, y, np.zeros((9, 50))), wanted, rtol=1e-14, atol=1e-15)


@nest
def functions_of_integers(N: int, x: f64[Array, "N"], y: f64[Array, "4, N"]) -> None:
    for i in range(N):
        y[0, i] = np.log2(i + 1)
        y[1, i] = np.exp2(i - 3)
        y[2, i] = np.log1p(np.expm1(x[i])) + np.hypot(i, 3)
        y[3, i] = np.cosh(i) - np.copysign(2, x[i])


def test_functions_of_integers() -> None:
    kernel: Any = poly.compile(functions_of_integers)
    x, wanted = np.linspace(-2, 2, 9), np.zeros((4, 9))
    functions_of_integers(9, x, wanted)
    np.testing.assert_allclose(kernel(x, np.zeros((4, 9))), wanted, rtol=1e-14)


def test_a_function_of_functions_has_a_size(tmp_path: Path) -> None:
    for text in ("np.square({})", "np.tan({})", "({}) ** 2"):
        value = "x[i]"
        for _ in range(16):
            value = text.format(value)
        with pytest.raises(ParseError, match=r"operations written out(.|\n)*try: a local"):
            _nest_of(tmp_path, value)
    kernel: Any = poly.compile(_nest_of(tmp_path, "np.square(np.tan(np.square(np.trunc(3.5) * x[i])))"))
    x = np.linspace(-0.5, 0.4, 20)
    np.testing.assert_allclose(kernel(x, np.zeros(20)), np.tan(9 * x * x) ** 2, rtol=1e-14)


def _nest_of(folder: Path, value: str) -> Any:
    head = 'def f(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:'
    path = folder / f"value{len([*folder.iterdir()])}.py"
    path.write_text(f"from __future__ import annotations\n\n{head}\n    for i in range(N):\n        y[i] = {value}\n")
    names: dict[str, Any] = {"np": np, "Array": Array, "f64": f64}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return nest(names["f"])


def far_literal(N: int, z: u8[Array, "N"]) -> None:
    for i in range(N):
        z[i] = 300


def far_choice(N: int, z: u8[Array, "N"]) -> None:
    for i in range(N):
        z[i] = 300 if z[i] > 3 else 2


def infinity_among_integers(N: int, z: i64[Array, "N"]) -> None:
    for i in range(N):
        z[i] = math.inf if z[i] > 3 else 2.5


@pytest.mark.parametrize(("nest", "says"), [
    (far_literal, "300 does not fit u8"), (far_choice, "300 does not fit u8"),
    (infinity_among_integers, "inf is no i64"),
])  # fmt: skip
def test_literals_that_no_element_holds_are_refused_where_they_are(nest: Callable[..., None], says: str) -> None:
    with pytest.raises(ParseError, match=f"{says}(.|\n)*z.i. = "):
        poly.nest(nest)


def test_bits_of_floats_are_refused() -> None:
    def floats(N: int, x: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = x[i] | x[i]

    with pytest.raises(ParseError, match="bit_or of f64"):
        poly.nest(floats)
    with pytest.raises(PolyError, match="bit_or: takes integers, not f32"):
        poly.parse("z[i] = bit_or(x[i], x[i])", x=(4,))


def test_a_difference_of_truths_is_refused_where_it_stands() -> None:
    def difference(N: int, x: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = (x[i] > 0) - (x[i] > 1)

    with pytest.raises(ParseError, match=r"no difference of truths\n.*z\[i\] = "):
        poly.nest(difference)


def test_the_largest_along_an_axis_is_no_maximum_of_two() -> None:
    def along(N: int, x: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = np.amax(x[i], 0)

    with pytest.raises(ParseError, match="amax"):
        poly.nest(along)


@pytest.mark.parametrize("place", [None, 0, 17, 36])
def test_max_and_min_with_nan_are_nan_in_every_frontend(place: int | None) -> None:
    def largest(N: int, x: f64[Array, "N"], z: f64[Array, ""]) -> None:
        for i in range(N):
            z[()] = max(z[()], x[i])

    x = np.sin(np.arange(37.0))
    if place is not None:
        x[place] = NAN
    z = np.array(-5.0)
    np.testing.assert_array_equal(poly.compile(poly.nest(largest))(x, z), np.maximum.reduce(x))
    for sign, ufunc in (("max", np.maximum), ("min", np.minimum)):
        text = f"s {sign}= x[i]; e[i] = {sign}(x[i], 0.25); f[i] = {sign}(0.25, x[i])"
        program = poly.parse(text, dtypes={"x": "f64"}, x=(37,))
        found = poly.compile(program)(x)
        for a, b in zip(found, (ufunc.reduce(x), ufunc(x, 0.25), ufunc(0.25, x)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_constants_of_modules() -> None:
    def constants(N: int, x: f64[Array, "N"], m: f64[Array, "2"]) -> None:
        m[0] = -math.inf
        m[1] = float("inf")
        for i in range(N):
            m[0] = max(m[0], x[i] * math.pi - np.e)
            m[1] = min(m[1], x[i])

    found, x = poly.nest(constants), np.arange(-3.0, 4)
    assert str(poly.parse(str(found.program))) == str(found.program)
    kernel: Any = poly.compile(found)
    np.testing.assert_allclose(kernel(x, np.zeros(2)), [3 * math.pi - math.e, -3])


def test_hints_for_subscripts() -> None:
    def back(N: int, x: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = x[-i - 1]

    def piece(N: int, x: f64[Array, "N"], z: f64[Array, "N"]) -> None:
        z[1:] = x[:-1]

    def infinite(N: int, z: f64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = float("endless")

    for function, hint in (
        (back, r"try: from the end: x\[N - i - 1\]"), (piece, r"try: .*range\(N - 1\)"),
        (infinite, "no meaning"),
    ):  # fmt: skip
        with pytest.raises(ParseError, match=hint):
            poly.nest(function)


@nest
def handed_around(N: int, K: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(N):
        a = 0.0
        b = 1
        for _ in range(K):
            t = a * a + x[i]  # a float by `a`, which is one by its literal: nobody else says so
            a = t
            old = b
            b = old + t
        y[i] = a + b


def test_locals_that_get_their_dtypes_from_one_another() -> None:
    x, wanted = np.linspace(-1, 0.4, 9), np.zeros(9)
    handed_around.python(9, 5, x, wanted)
    dtypes = {t.name: t.dtype for t in handed_around.program.tensors}
    assert dtypes["b"] == "f64" and set(dtypes.values()) == {"f64"}
    found: Any = poly.compile(handed_around.program.bind(N=9, K=5))(x, np.zeros(9))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_choice_that_no_dtype_holds_is_refused() -> None:
    def chosen(N: int, x: u64[Array, "N"], z: u64[Array, "N"]) -> None:
        for i in range(N):
            z[i] = x[i] if x[i] > 3 else i - 3

    with pytest.raises(ParseError, match=r"a choice between u64 and an index(?s:.*)try: u64\(...\) around the index"):
        poly.nest(chosen)


@nest
def turned(N: int, x: i32[Array, "N"], y: i32[Array, "2, N"]) -> None:
    for i in range(N):
        y[0, i] = ~x[i]
        y[1, i] = 1 if ~(x[i] > 0) & (i > 2) else ~0


@nest
def turned_unsigned(N: int, x: u8[Array, "N"], y: u64[Array, "N"]) -> None:
    for i in range(N):
        x[i] = ~x[i]
        y[i] = ~y[i]


@nest
def in_pairs(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    assert N % 2 == 0
    for i in range(0, N, 2):
        y[i], y[i + 1] = x[i + 1], x[i]


def pairs_of_any_size(N: int, x: f64[Array, "N"], y: f64[Array, "N"]) -> None:
    for i in range(0, N, 2):
        y[i], y[i + 1] = x[i + 1], x[i]


def test_bits_turned() -> None:
    x = np.arange(-4, 4, dtype="i4")
    kernel: Any = poly.compile(turned)
    wanted = [~x, np.where(~(x > 0) & (np.arange(8) > 2), 1, -1)]
    np.testing.assert_array_equal(kernel(x, np.zeros((2, 8), "i4")), wanted)
    unsigned: Any = poly.compile(turned_unsigned)
    x, y = np.arange(4, dtype="u1"), np.arange(4, dtype="u8")
    for found, wanted in zip(unsigned(x, y), (~x, ~y), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_what_is_tried_for_pairs_is_python() -> None:
    """Of names that the nest has, not of those that its steps got."""
    with pytest.raises(ParseError, match=r"loops in which i \+ 1 < N, .*: assert N % 2 == 0$"):
        nest(pairs_of_any_size)
    kernel: Any = poly.compile(in_pairs)
    assert [*kernel(np.arange(4.0), np.zeros(4))] == [1, 0, 3, 2]


def unknown_function(N: int, y: f64[Array, "N"]) -> None:
    for i in range(N):
        y[i] = np.spacing(y[i])


def test_an_unknown_function_names_all_that_there_are() -> None:
    with pytest.raises(ParseError, match=r"not inlined: arithmetic and abs, .*expm1.*hypot, .*log1p.*tanh"):
        nest(unknown_function)
