"""Comparisons in conditions are those of the numbers, whatever dtypes hold them, on every level."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import poly
from poly.dtypes import dtype_name, numpy_dtype
from poly.errors import ShapeError
from poly.interp import run_program

OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
PAIRS = [(a, b) for a in INTEGERS for b in INTEGERS if a != b] + [
    ("f32", "f16"), ("f32", "f64"), ("f16", "f64"), ("f32", "i32"), ("f32", "u8"), ("f16", "i16"), ("f16", "u32"),
    ("f64", "u32"), ("bool", "i8"), ("bool", "f32"), ("f16", "bf16"), ("f32", "bf16"),
]  # fmt: skip
LITERALS = [-300, -1, -0.5, 0, 0.5, 1.5, 100, 200, 255.5, 300, 2**31, 2**33, -(2**33), 2**64, "inf", "-inf"]


def samples(dtype: str) -> np.ndarray:
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([False, True] * 6)
    if dtype[0] in "iu":
        limits = np.iinfo(kind.name)
        some = [limits.min, limits.max, 0, 1, 2, 3, 100, 127, limits.max - 1, limits.min + 1, limits.max // 2, 5]
        return np.array(some, kind)
    some = [-1, -0.5, 0, 0.5, 1, 2.5, 3, 127, 200, 300, -2000, 2.0**15]
    return np.array(some, np.float64).astype(kind)


def exact(value: np.generic | float) -> Fraction | float:
    number = int(value) if isinstance(value, np.integer | int | np.bool_) else float(value)
    return Fraction(number) if np.isfinite(float(number)) else number


def bits(left: str, right: str) -> str:
    """The answers of all operators as one number."""
    return " + ".join(f"({1 << k} if {left} {o} {right} else 0)" for k, o in enumerate(OPERATORS))


def expected_bits(left: Any, right: Any) -> int:
    return sum(f(left, right) << k for k, f in enumerate(OPERATORS.values()))


def check(
    text: str, operands: dict[str, np.ndarray], expected: list[list[list[int]]], **shapes: tuple[int, ...]
) -> None:
    dtypes = {name: dtype_name(a.dtype) for name, a in operands.items()}
    program = poly.parse(text, dtypes=dtypes, **{name: a.shape for name, a in operands.items()}, **shapes)
    found = poly.compile(program)(*operands.values())
    slow = run_program(program, operands)
    for k, wanted in enumerate(expected):
        np.testing.assert_array_equal(slow[f"z{k}"], wanted, err_msg=f"z{k} of {text}")
        np.testing.assert_array_equal(found[k] if len(expected) > 1 else found, wanted, err_msg=f"z{k} of {text}")


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", "f16", "f32", "f64"])
def test_two_dtypes(dtype: str) -> None:
    others = [b for a, b in PAIRS if a == dtype]
    a, arrays = samples(dtype), {f"b{k}": samples(other) for k, other in enumerate(others)}
    text = "; ".join(f"z{k}[i, j] = {bits('a[i]', f'b{k}[j]')}" for k in range(len(others)))
    expected = [[[expected_bits(exact(x), exact(y)) for y in b] for x in a] for b in arrays.values()]
    check(text, {"a": a, **arrays}, expected)


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", "f16", "f32", "f64"])
def test_an_index(dtype: str) -> None:
    a = samples(dtype)
    text = f"z0[i, j] = {bits('a[i]', 'j - 2')}; z1[i, j] = {bits('j - 2', 'a[i]')}"
    expected = [
        [[expected_bits(exact(x), j - 2) for j in range(6)] for x in a],
        [[expected_bits(j - 2, exact(x)) for j in range(6)] for x in a],
    ]
    check(text, {"a": a}, expected, z0=(12, 6), z1=(12, 6))


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_a_literal(dtype: str) -> None:
    a = samples(dtype)[:, None]
    numbers = [exact(float(n)) if isinstance(n, str) else exact(n) for n in LITERALS]
    text = "; ".join(f"z{k}[i, j] = {bits('a[i, j]', str(n))}" for k, n in enumerate(LITERALS))
    check(text, {"a": a}, [[[expected_bits(exact(x), n)] for x in a[:, 0]] for n in numbers])


def test_one_hot() -> None:
    program = poly.parse("z[i, b] = 1 if x[i] == b else 0 where 0 <= b < 4", x=(5,))
    found = poly.compile(program)(np.array([0, 3, 2.5, 1, 7], np.float32))
    np.testing.assert_array_equal(found, np.array([0, 3, 2.5, 1, 7])[:, None] == np.arange(4))


@pytest.mark.parametrize("text", ["i > 0.5", "0.5 <= i"])
def test_an_index_beside_a_fraction(text: str) -> None:
    program = poly.parse(f"z[i] = 1.0 if {text} else 0.0", z=(4,))
    np.testing.assert_array_equal(poly.compile(program)(), [0, 1, 1, 1])


def test_truths_of_two_dtypes() -> None:
    program = poly.parse("z[i] = 1.0 if x[i] and y[i] else 0.0", x=(3,), y=(3,), dtypes={"x": "i32"})
    found = poly.compile(program)(np.array([0, 256, 1], np.int32), np.array([1, 0.5, 0], np.float32))
    np.testing.assert_array_equal(found, [0, 1, 0])


@pytest.mark.parametrize(
    ("condition", "dtypes", "message"),
    [
        ("a[i] > b[i]", {"a": "i64", "b": "f32"}, "gt: operands of dtypes f32 and i64"),
        ("a[i] / 2 > 0.4", {"a": "i32"}, "/: takes floating operands, not i32"),
        ("i / 2 > 0.6", {}, "/: takes floating operands, not i64"),
        ("a[i] + i > 3", {"a": "f32"}, "add: operands of dtypes f32 and i64"),
    ],
)
def test_what_no_dtype_holds(condition: str, dtypes: dict[str, str], message: str) -> None:
    shapes = {name: (5,) for name in ("a", "b") if f"{name}[" in condition} | {"z": (5,)}
    with pytest.raises(ShapeError, match=message) as error:
        poly.parse(f"z[i] = 1.0 if {condition} else 0.0", dtypes=dtypes, **shapes)
    assert error.value.hint
