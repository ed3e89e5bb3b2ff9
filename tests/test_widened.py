"""Sums of products of another dtype: rounded once; operands that are used often are converted before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.interp import run_program
from poly.scheduling.widened import sums_of_widened
from poly.text import parse_program
from tests.onnx_helpers import node_model

TEXT = """
program sums
input x: f16[24, 40]
input w: f16[30, 32]
output y: f32[20, 32]
init[i, j]: y[i, j] = 0 where 0 <= i < 20 and 0 <= j < 32
sum[i, j, k]: y[i, j] += f32(x[i, k])*f32(w[k, j]) where 0 <= i < 20 and 0 <= j < 32 and 0 <= k < 30
"""


def normal(shape: tuple[int, ...], dtype: Any = np.float16) -> np.ndarray:
    return np.random.default_rng(shape[-1]).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("operator", "shapes", "attributes"), [
    ("MatMul", [(40, 70), (70, 50)], {}), ("MatMul", [(3, 2, 70), (3, 70, 50)], {}), ("MatMul", [(70,), (70, 50)], {}),
    ("Gemm", [(70, 40), (50, 70), (50,)], {"transA": 1, "transB": 1}),
    ("Conv", [(1, 8, 14, 14), (16, 8, 3, 3), (16,)], {"pads": [1, 1, 1, 1]}),
    ("Conv", [(1, 8, 14, 14), (8, 1, 3, 3)], {"pads": [1, 1, 1, 1], "group": 8}),
])  # fmt: skip
def test_sums_are_rounded_once(operator: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    """What f32 gives, rounded: one in the last place apart at most, where f32 itself is between two numbers."""
    inputs = [normal(s) for s in shapes]
    model, arrays = node_model(operator, inputs, constant=[1], **attributes)
    (found,) = poly.compile(poly.from_onnx(model)).run(arrays).values()
    wide, given = node_model(operator, [a.astype(np.float32) for a in inputs], constant=[1], **attributes)
    exact: Any
    (exact,) = poly.compile(poly.from_onnx(wide)).run(given).values()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype("f4"), exact, rtol=6e-4, atol=2e-5)


def test_operands_that_are_used_often() -> None:
    program = parse_program(TEXT)
    changed = sums_of_widened(program)
    assert {t.name for t in changed.tensors} >= {"x_wide", "w_wide"}
    assert str(changed).count("f32(") == 2, "conversions in the copies alone"
    assert "i0 <= 19" in str(changed.statement["x_wide_made"].domain), "no row is touched that the sum does not read"
    given = {"x": normal((24, 40)), "w": normal((30, 32))}
    before, after = (run_program(p, given)["y"] for p in (program, changed))
    np.testing.assert_array_equal(before, after)
    few = parse_program(TEXT.replace("< 32", "< 12"))
    assert "x_wide" not in {t.name for t in sums_of_widened(few).tensors}
    w = "*f32(w[k, j])"
    for old, new in (("+= f32", "max= f32"), (w, "*f32(x[k, j])"), (w, "*sqrt(f32(w[k, j]))")):
        other = parse_program(TEXT.replace(old, new))
        assert sums_of_widened(other) is other


@pytest.mark.parametrize(("a", "b", "total", "made"), [
    ("f32", "f64", "f64", ["x_wide"]), ("f64", "f16", "f64", ["w_wide"]), ("i32", "f32", "f64", ["w_wide", "x_wide"]),
    ("i8", "f32", "f32", ["x_wide"]), ("f64", "f32", "f32", ["x_wide"]), ("f64", "f64", "f64", []),
])  # fmt: skip
def test_operands_of_any_dtype(a: str, b: str, total: str, made: list[str]) -> None:
    text = TEXT.replace("x: f16", f"x: {a}").replace("w: f16", f"w: {b}").replace("y: f32", f"y: {total}")
    for dtype, read in ((a, "x[i, k]"), (b, "w[k, j]")):
        text = text.replace(f"f32({read})", f"{total}({read})" if dtype != total else read)
    program = parse_program(text)
    changed = sums_of_widened(program)
    assert sorted(t.name for t in changed.tensors if t.name not in program.tensor) == made
    assert all(changed.tensor[name].dtype == total for name in made)
    given = {"x": (normal((24, 40)) * 9).astype(numpy_dtype(a)), "w": (normal((30, 32)) * 9).astype(numpy_dtype(b))}
    want: Any = run_program(program, given)["y"]
    np.testing.assert_array_equal(run_program(changed, given)["y"], want)
    found: Any = poly.compile(program)(given["x"], given["w"])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)


QUERIES = """
input v: f16[{n}, 32]
output z: f32[20, 32]
init2[i, j]: z[i, j] = 0 where 0 <= i < 20 and 0 <= j < 32
sum2[i, j, k]: z[i, j] += f32(x[i, k])*f32(v[k, j]) where 0 <= i < 20 and 0 <= j < 32 and 0 <= k < {n}
"""


@pytest.mark.parametrize(("steps", "made"), [(30, ["x_wide"]), (34, ["x_wide", "x_wide_1"])])
def test_one_operand_in_two_sums(steps: int, made: list[str]) -> None:
    """Widened once, unless the second sum reads more of it."""
    inputs, outputs, statements = QUERIES.format(n=steps).split("\n", 3)[1:]
    program = parse_program(TEXT.replace("output y", f"{inputs}\n{outputs}\noutput y") + statements)
    changed = sums_of_widened(program)
    assert sorted(t.name for t in changed.tensors if t.name.startswith("x_")) == made
    given: dict[str, Any] = {"x": normal((24, 40)), "w": normal((30, 32)), "v": normal((steps, 32))}
    before: Any
    after: Any
    before, after = (run_program(p, given) for p in (program, changed))
    results: Any = poly.compile(program)(**given)
    found = dict(zip((t.name for t in program.outputs), results, strict=True))
    for name in ("y", "z"):
        np.testing.assert_array_equal(before[name], after[name])
        np.testing.assert_allclose(found[name], before[name], rtol=1e-5, atol=1e-5)
    turned = sums_of_widened(replace(program, statements=program.statements[2:] + program.statements[:2]))
    for name in ("y", "z"):
        np.testing.assert_array_equal(run_program(turned, given)[name], before[name])


@pytest.mark.parametrize(("old", "new"), [("init[", "x_wide_made["), ("y", "x_wide")])
def test_names_that_are_taken(old: str, new: str) -> None:
    text = TEXT.replace(old, new)
    assert text != TEXT
    program = parse_program(text)
    changed = sums_of_widened(program)
    assert "x_wide_1" in changed.tensor and "w_wide" in changed.tensor
    given: dict[str, Any] = {"x": normal((24, 40)), "w": normal((30, 32))}
    before: Any
    (before,), (after,) = (run_program(p, given).values() for p in (program, changed))
    np.testing.assert_array_equal(before, after)
    found: Any = poly.compile(program)(**given)
    np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-5)


def test_bfloat16() -> None:
    x, w = normal((33, 70), ml_dtypes.bfloat16), normal((70, 40), ml_dtypes.bfloat16)
    program = parse_program(TEXT.replace("f16[24, 40]", "bf16[33, 70]").replace("f16[30, 32]", "bf16[70, 40]"))
    changed = sums_of_widened(program)
    found: list[Any] = [run_program(p, {"x": x, "w": w})["y"] for p in (program, changed)]
    np.testing.assert_array_equal(found[0], found[1])
    kernel: Any = poly.compile(changed)
    np.testing.assert_allclose(kernel(x, w), found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("fill", ["0.1", "1e-8", "65519.0", "70000.0"])
def test_padding_is_rounded_to_what_it_stands_for(dtype: str, fill: str) -> None:
    """As elements are: 0.1 of f16 is not 0.1 of f32, and 70000 is infinite."""
    text = TEXT.replace("f16", dtype).replace("f32(x[i, k])", f"f32((x[i, k] if k >= 3 else {fill}))")
    program = parse_program(text)
    changed = sums_of_widened(program)
    assert "x_wide" in changed.tensor
    given = {"x": normal((24, 40)).astype(numpy_dtype(dtype)), "w": np.ones((30, 32), numpy_dtype(dtype))}
    want: Any
    with np.errstate(over="ignore"):
        want, found = (run_program(p, given)["y"] for p in (program, changed))
    np.testing.assert_array_equal(found, want)
    kernel: Any = poly.compile(program)
    np.testing.assert_allclose(kernel(given["x"], given["w"]), want, rtol=1e-5, atol=1e-5)
