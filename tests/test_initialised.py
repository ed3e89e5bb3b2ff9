"""Reads of temporaries that nothing wrote before are refused, with the instance; all others compile."""

import numpy as np
import pytest

import poly
from poly.codegen.kernel import Kernel
from poly.errors import PolyError
from poly.interp import run_program
from poly.scheduling.initialised import read_before_written
from poly.text import parse_program

PADDED = "p[i] = x[i-1] where 1 <= i <= 8; y[i] = p[i]+p[i+2]"


def test_padding_that_nobody_wrote() -> None:
    program = poly.parse(PADDED, x=(8,), p=(10,))
    with pytest.raises(PolyError, match=r"y_set\[i=0\] reads p\[a0=0\], which nothing wrote before"):
        poly.compile(program)
    filled = poly.parse(f"p[i] = 0 where 0 <= i < 10; {PADDED}", x=(8,), p=(10,))
    x = np.arange(1, 9, dtype="f4")
    whole = np.pad(x, 1)
    np.testing.assert_array_equal(np.asarray(poly.compile(filled)(x)), whole[:-2] + whole[2:])


HEAD = "program p\ninput A: f32[8]\ntemporary t: f32[]\noutput B: f32[8]\n"


@pytest.mark.parametrize(
    ("body", "legal"),
    [
        ("S[i]: t[] = A[i] where 0 <= i < 8 path (i, 0)\nT[i]: B[i] = t[] where 0 <= i < 8 path (i, 1)", True),
        ("T[i]: B[i] = t[] where 0 <= i < 8 path (i, 0)\nS[i]: t[] = A[i] where 0 <= i < 8 path (i, 1)", False),
        ("S[i]: t[] = A[i] where 4 <= i < 8 path (i, 0)\nT[i]: B[i] = t[] where 0 <= i < 8 path (i, 1)", False),
        ("S[i]: t[] = A[i] where i = 0 path (i, 0)\nT[i]: B[i] = t[] where 0 <= i < 8 path (i, 1)", True),
        ("S[i]: t[] += A[i] where 0 <= i < 8 path (0, i)\nT[i]: B[i] = t[] where 0 <= i < 8 path (1, i)", False),
    ],
)
def test_order_decides(body: str, legal: bool) -> None:
    program = parse_program(HEAD + body)
    if legal:
        poly.compile(program)
    else:
        with pytest.raises(PolyError, match="which nothing wrote before"):
            poly.compile(program)


OUTPUT = "program p\ninput x: f32[64]\noutput y: f32[64]\n"


@pytest.mark.parametrize(
    ("body", "early"),
    [
        ("u[i]: y[i] += x[i] where 0 <= i < 64", True),
        ("u[i]: y[i] = y[i] + x[i] where 0 <= i < 64", True),
        ("a[i]: y[i] = 0 where 2 <= i < 64\nu[i]: y[i] += x[i] where 0 <= i < 64", True),
        ("a[i]: y[i] = 0 where 0 <= i < 64\nu[i]: y[i] += x[i] where 0 <= i < 64", False),
        ("u[i]: y[i] = (y[i - 1] if i >= 1 else 0) + x[i] where 0 <= i < 64", False),
    ],
)
def test_an_output_that_is_read_before_it_is_written_begins_as_zero(body: str, early: bool) -> None:
    program = parse_program(OUTPUT + body)
    kernel = poly.compile(program)
    assert isinstance(kernel, Kernel)
    assert ("y" in kernel.partial) == early
    x = np.arange(64, dtype="f4")
    for _ in range(4):  # of which the memory is that of the one before
        expected = x if "i - 1" not in body else np.cumsum(x)
        np.testing.assert_array_equal(np.asarray(kernel(x)), expected)


def test_an_output_begins_as_zero_where_it_takes_too_long_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = parse_program(f"{OUTPUT}u[i]: y[i] = (y[i - 1] if i >= 1 else 0) + x[i] where 0 <= i < 64")
    assert not read_before_written(scan)
    monkeypatch.setattr("poly.scheduling.initialised._OPERATIONS", 1)
    assert read_before_written(scan) == {"y"}


@pytest.mark.parametrize(
    ("body", "legal"),
    [
        ("a[i] if x[i] < 0.0 else 1.0", True),
        ("(a[i] if x[i] < 1.0 else 2.0) if x[i] < 3.0 else a[i]", True),
        ("a[i] * x[i] - a[i]", False),
        ("a[i] + 1.0 if x[i] < 0.0 else 1.0", False),
        ("1.0 if a[i] < 0.0 else 2.0", False),
    ],
)
def test_only_a_value_that_is_kept_may_be_one_that_nobody_wrote(body: str, legal: bool) -> None:
    head = "program p\ninput x: f32[8]\ntemporary a: f32[8]\noutput y: f32[8]\n"
    first = "s[i]: a[i] = x[i] where 0 <= i < 4\n"
    program = parse_program(f"{head}{first}t[i]: a[i] = {body} where 0 <= i < 8\nu[i]: y[i] = a[i] where 0 <= i < 4")
    if legal:
        poly.compile(program)
    else:
        with pytest.raises(PolyError, match=r"t\[i=4\] reads a\[a0=4\], which nothing wrote before"):
            poly.compile(program)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", [1, 2])
def test_an_output_begins_as_zero_wherever_it_lies(step: int, threads: int) -> None:
    """In arrays that are given, dense or not, and in the interpreter as in fresh ones."""
    outputs = "output y: f32[8]\noutput z: f32[8]\ninout w: f32[8]\n"
    text = "s[i]: y[i] = x[i] where 0 <= i < 4\nt[i]: z[i] = z[i] + x[i] where 0 <= i < 8\nu[i]: w[i] = 3 where i = 0"
    program = parse_program(f"program p\ninput x: f32[8]\n{outputs}{text}")
    x, w = np.arange(1, 9, dtype="f4"), np.full(8, 5, "f4")
    expected = run_program(program, {"x": x, "w": w})
    assert expected["y"].tolist() == [1, 2, 3, 4, 0, 0, 0, 0] and expected["w"].tolist() == [3, *[5] * 7]
    kernel = poly.compile(program, threads=threads)
    out = tuple(np.full(8 * step, 7, "f4")[::step] for _ in range(3))
    for _ in range(2):
        for results in (kernel(x, w, out=out), kernel(x, w)):
            for found, name in zip(results, ("y", "z", "w"), strict=True):
                np.testing.assert_array_equal(found, expected[name])
    kernel(x, w, out=(out[0], out[1], w))
    np.testing.assert_array_equal(w, expected["w"])
