"""Sums of 8-bit products in f32: the same integers as in i32, and i32 where f32 might not hold one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.interp import run_program
from poly.program import Program, Tensor
from poly.scheduling.exact_sums import EXACT, sums_in_f32
from poly.text import parse_program
from tests.onnx_helpers import chain_model, node_model, reference

PRODUCT = """
program product
input x: u8[64, K]
constant w: i8[K, 32]
constant b: i32[32]
output y: i32[64, 32]
temporary t: i32[64, 32]
init[i, j]: t[i, j] = b[j] where 0 <= i < 64 and 0 <= j < 32
sum[i, j, k]: t[i, j] += i32(x[i, k])*i32(w[k, j]) where 0 <= i < 64 and 0 <= j < 32 and 0 <= k < K
out[i, j]: y[i, j] = t[i, j] + 1 where 0 <= i < 64 and 0 <= j < 32
"""


def product(depth: int) -> Program:
    return parse_program(PRODUCT.replace("K", str(depth)))


def dtype_of(program: Program, constants: Mapping[str, np.ndarray], tensor: str = "t") -> str:
    return sums_in_f32(program, constants).tensor[tensor].dtype


def most(depth: int, start: int, weight: int) -> dict[str, np.ndarray]:
    """Constants of a product whose greatest possible sum is start + depth * 255 * weight."""
    return {"w": np.full((depth, 32), -weight, np.int8), "b": np.full(32, -start, np.int32)}


def test_the_bound_is_sharp() -> None:
    depth, weight = 520, 126
    room = EXACT - depth * 255 * weight
    assert 0 < room < 255 * 126 * 4
    assert dtype_of(product(depth), most(depth, room - 1, weight)) == "f32"
    assert dtype_of(product(depth), most(depth, room, weight)) == "i32"
    assert dtype_of(product(depth), {"w": most(depth, 0, weight)["w"]}) == "i32", "the start is not known"
    assert dtype_of(product(depth), {"b": most(depth, 0, weight)["b"]}) == "i32", "weights may be -128"
    assert dtype_of(product(500), {"b": np.zeros(32, np.int32)}) == "f32", "any weights are small enough"


def test_values_at_the_bound() -> None:
    """Odd sums next to 2^24, which f32 would round beyond it."""
    constants = most(520, EXACT - 520 * 255 * 126 - 2, 126)
    program, x = product(520), np.full((64, 520), 255, np.uint8)
    x[:, ::7] -= np.arange(64, dtype=np.uint8)[:, None]
    changed = sums_in_f32(program, constants)
    want = x.astype(np.int64) @ constants["w"].astype(np.int64) + constants["b"] + 1
    assert want.min() == 3 - EXACT
    for made in (program, changed):
        found = run_program(made, {"x": x, **constants})["y"]
        np.testing.assert_array_equal(found, want)
    kernel: Any = poly.compile(changed, constants=constants)
    np.testing.assert_array_equal(kernel(x), want)


@pytest.mark.parametrize(("old", "new"), [
    ("temporary t", "output t"), ("u8[64, 256]", "i16[64, 256]"), ("+= i32", "max= i32"), ("64", "8"),
    ("t[i, j] + 1", "t[i, j] + i32(x[i, t[0, 0]])"), ("= b[j]", "= b[j]*3"),
    ("i32(w[k, j])", "i32(w[k, j])*i32(w[k, 0])"),
])  # fmt: skip
def test_what_stays_as_it_is(old: str, new: str) -> None:
    text = PRODUCT.replace("K", "256")
    assert old in text
    constants = most(256, 0, 3)
    assert dtype_of(parse_program(text), constants) == "f32"
    assert dtype_of(parse_program(text.replace(old, new)), constants) == "i32"


def quantised(shift: int, weights: np.ndarray, *, known: bool = True, **attributes: Any) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, (1, 6, 20, 20)).astype(np.uint8)
    inputs = [
        x, np.float32(0.02), np.uint8(shift), weights, np.float32(0.01), np.int8(0), np.float32(0.3), np.uint8(120),
        rng.integers(-500, 500, weights.shape[0]).astype(np.int32),
    ]  # fmt: skip
    return node_model("QLinearConv", inputs, constant=[1, 2, 4, 5, 6, 7, 8, *([3] if known else [])], **attributes)


@pytest.mark.parametrize("shift", [0, 117])
@pytest.mark.parametrize("known", [True, False])
def test_quantised_convolutions(shift: int, known: bool) -> None:
    """Padded with the zero point, in two groups; and with weights that only the run knows."""
    weights = np.random.default_rng(4).integers(-127, 128, (32, 6, 3, 3)).astype(np.int8)
    model, arrays = quantised(shift, weights, known=known, pads=[1, 1, 1, 1])
    graph = poly.from_onnx(model)
    changed = sums_in_f32(graph.to_program(), graph.constants)
    sums = [t for t in changed.tensors if t.name.startswith("sum_")]
    assert [t.dtype for t in sums] == ["f32"] if known or not shift else sums
    engine: Any = poly.compile(graph)
    for name, want in reference(model, arrays).items():
        np.testing.assert_array_equal(engine.run(arrays)[name], want)


def test_two_sums_of_one_operand_convert_it_once() -> None:
    text = PRODUCT.replace("K", "64").replace("output y", "temporary u: i32[64, 32]\noutput z: i32[64, 32]\noutput y")
    text += """init2[i, j]: u[i, j] = 0 where 0 <= i < 64 and 0 <= j < 32
sum2[i, j, k]: u[i, j] += i32(x[i, k])*i32(w[k, j]) where 0 <= i < 64 and 0 <= j < 32 and 0 <= k < 64
out2[i, j]: z[i, j] = u[i, j] - t[i, j] where 0 <= i < 64 and 0 <= j < 32
"""
    program = parse_program(text)
    rng = np.random.default_rng(5)
    weights = rng.integers(-128, 128, (64, 32)).astype(np.int8)
    constants: dict[str, np.ndarray] = {"w": weights, "b": np.arange(32, dtype=np.int32)}
    x = rng.integers(0, 256, (64, 64)).astype(np.uint8)
    want = run_program(program, {"x": x, **constants})
    for listed in (program, replace(program, statements=program.statements[::-1])):
        changed = sums_in_f32(listed, constants)
        added = {t.name for t in changed.tensors} - {t.name for t in program.tensors}
        assert added == {"x_f32", "w_f32"}
        found = run_program(changed, {"x": x, **constants})
        assert all(np.array_equal(found[n], want[n]) for n in ("y", "z")) and found["z"].any()


def test_operands_made_after_the_start_stay() -> None:
    """The conversion stands before the start of the sums."""
    made = "input x: u8[64, 64]", "temporary x: u8[64, 64]\ninput x0: i32[64, 64]"
    text = PRODUCT.replace("K", "64").replace(*made)
    make = "make[i, k]: x[i, k] = u8(x0[i, k]) where 0 <= i < 64 and 0 <= k < 64\n"
    constants = most(64, 0, 3)
    assert dtype_of(parse_program(text.replace("init[", make + "init[")), constants) == "f32"
    assert dtype_of(parse_program(text.replace("sum[", make + "sum[")), constants) == "i32"


@pytest.mark.parametrize(("padding", "dtype"), [(7, "f32"), (EXACT + 3, "i32")])
def test_sums_with_padding_that_f32_does_not_hold(padding: int, dtype: str) -> None:
    x, w = np.full((32, 64), 255, np.uint8), np.arange(64 * 32, dtype=np.uint8).reshape(64, 32)
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["t"]), helper.make_node("Pad", ["t", "pads", "value"], ["y"]),
    ]  # fmt: skip
    fixed = {"w": w, "pads": np.array([1, 0, 0, 2]), "value": np.array(padding, np.int32)}
    model, _ = chain_model(nodes, {"x": x}, ["y"], constants=fixed)
    graph = poly.from_onnx(model)
    changed = sums_in_f32(graph.to_program(), graph.constants)
    assert dtype == ("f32" if any(t.name.endswith("_f32") for t in changed.tensors) else "i32")
    engine: Any = poly.compile(graph)
    want = np.pad(x.astype(np.int32) @ w.astype(np.int32), ((1, 0), (0, 2)), constant_values=padding)
    np.testing.assert_array_equal(engine.run({"x": x})["y"], want)


@pytest.mark.parametrize(("extent", "dtype"), [(256, "f32"), (259, "i32")])
def test_products_that_meet_in_one_element(extent: int, dtype: str) -> None:
    """In t[i + j] both i and j are summed over."""
    program = parse_program(f"""
program polynomial
input x: u8[{extent}]
input w: u8[{extent}]
output y: i32[{2 * extent - 1}]
temporary t: i32[{2 * extent - 1}]
init[i]: t[i] = 0 where 0 <= i < {2 * extent - 1}
sum[i, j]: t[i + j] += i32(x[i])*i32(w[j]) where 0 <= i < {extent} and 0 <= j < {extent}
out[i]: y[i] = t[i] where 0 <= i < {2 * extent - 1}
""")
    assert dtype_of(program, {"w": np.ones(extent, np.uint8)}) == dtype


def test_free_sizes_stay() -> None:
    text = PRODUCT.replace("program product", "program product(K) where K > 0")
    program = parse_program(text)
    assert sums_in_f32(program, {}) is program and isinstance(program.tensor["t"], Tensor)


@pytest.mark.parametrize("known", [True, False])
def test_zero_points_that_only_the_run_knows(known: bool) -> None:
    """x - zero in -255 .. 255: with weights as they may be at most, 400 of them are too many."""
    rng = np.random.default_rng(6)
    x, w = rng.integers(0, 256, (32, 400)).astype(np.uint8), rng.integers(-40, 41, (400, 32)).astype(np.int8)
    chain, given = quantised_product(x, w, known)
    graph = poly.from_onnx(chain)
    changed = sums_in_f32(graph.to_program(), graph.constants)
    assert any(t.name.endswith("_f32") for t in changed.tensors) is known
    engine: Any = poly.compile(graph)
    for name, want in reference(chain, given).items():
        np.testing.assert_array_equal(engine.run(given)[name], want)


def quantised_product(x: np.ndarray, w: np.ndarray, known: bool) -> tuple[Any, dict[str, Any]]:
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "x_zero", "w_zero"], ["t"]),
        helper.make_node("Cast", ["t"], ["f"], to=1), helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]  # fmt: skip
    fixed = {"scale": np.array(0.5, np.float32), "w_zero": np.array(3, np.int8), **({"w": w} if known else {})}
    given = {"x": x, "x_zero": np.array(200, np.uint8), **({} if known else {"w": w})}
    return chain_model(nodes, given, ["y"], constants=fixed)
