"""Formats below 8 bits and of 8-bit floats: casts and quantisation by the interpreter and on the CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import poly
from poly.frontend.onnx_import import from_onnx
from poly.frontend.onnx_terms import FORMATS, INTEGER_BITS, format_dtype
from tests.onnx_helpers import Arrays, node_model, reference, run_graph
from tests.test_onnx import f32

NUMBER = {name: number for number, name in FORMATS.items()}
FLOATS = [name for name in NUMBER if name not in INTEGER_BITS]
_POINTS = np.concatenate([np.linspace(-9, 9, 2001), np.geomspace(1e-12, 1e7, 400), -np.geomspace(1e-12, 1e7, 400)])


def both(operator: str, inputs: list[np.ndarray], **options: object) -> list[np.ndarray]:
    """The first output by the interpreter and by compiled code."""
    model, arrays = node_model(operator, inputs, opset=26, **options)  # type: ignore[arg-type]
    graph = from_onnx(model)
    assert not any(n.external for n in graph.nodes)
    return [run_graph(graph, arrays)["y0"], poly.compile(graph).run(arrays)["y0"]]


def bits(a: np.ndarray) -> list[int]:
    return a.view(np.uint8).tolist()


@pytest.mark.parametrize("name", sorted(NUMBER))
def test_every_code_has_its_value(name: str) -> None:
    width = INTEGER_BITS.get(name, 4 if name == "float4_e2m1fn" else 8)
    x = np.arange(1 << width, dtype=np.uint8).view(format_dtype(name))
    for found in both("Cast", [x], to=1):
        np.testing.assert_array_equal(found, x.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("name", [n for n in FLOATS if n != "float8_e8m0fnu"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_floats_round_to_even_and_saturate(name: str, saturate: int, dtype: type) -> None:
    """The oracle is ml_dtypes, clipped first to saturate; values half way between two codes are among the points."""
    exact = np.sort(np.arange(256, dtype=np.uint8).view(format_dtype(name)).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, *exact, *((exact[1:] + exact[:-1]) / 2)]
    with np.errstate(over="ignore"):
        x = np.concatenate([_POINTS, special]).astype(np.float32).astype(dtype)  # ml_dtypes goes through f32, too
    want = numpy_helper.saturate_cast(x, format_dtype(name)) if saturate else x.astype(format_dtype(name))
    numbers = ~np.isnan(x)
    for found in both("Cast", [x], to=NUMBER[name], saturate=saturate):
        assert found.dtype == format_dtype(name)
        wide, wanted = found.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(wide[numbers], wanted[numbers])
        np.testing.assert_array_equal(np.signbit(wide[numbers]), np.signbit(wanted[numbers]))
        assert name == "float4_e2m1fn" or np.isnan(wide[~numbers]).all()


@pytest.mark.parametrize(("mode", "want"), [("up", [127, 128, 128, 129, 0]), ("down", [127, 127, 127, 128, 0]),
                                            ("nearest", [127, 127, 128, 129, 0])])  # fmt: skip
def test_powers_of_two_by_rounding_mode(mode: str, want: list[int]) -> None:
    x = np.array([1, 1.25, 1.5, 3.5, 0], np.float32)
    for found in both("Cast", [x], to=NUMBER["float8_e8m0fnu"], round_mode=mode):
        assert bits(found) == want


@pytest.mark.parametrize("name", sorted(INTEGER_BITS))
def test_integers_keep_their_low_bits(name: str) -> None:
    x = np.arange(-40, 40, dtype=np.int32)
    for found in both("Cast", [x], to=NUMBER[name]):
        np.testing.assert_array_equal(found.astype(np.int32), x.astype(format_dtype(name)).astype(np.int32))


def test_moves_carry_codes() -> None:
    x = np.arange(-8, 8).astype(ml_dtypes.int4).reshape(2, 8)
    for found in both("Transpose", [x]):
        np.testing.assert_array_equal(found.astype(np.int8), x.astype(np.int8).T)


def quantised(name: str, blocks: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    shape = (3, 8) if blocks else (8,)
    dtype = np.dtype(name) if name in ("uint8", "int16") else format_dtype(name)
    scale = np.abs(f32(*(3, 4) if blocks else (8,))) + np.float32(0.2)
    zero = np.ones(scale.shape, np.int8).astype(dtype) if dtype.name in ("uint8", "int16", *INTEGER_BITS) else None
    x = f32(*shape) * np.float32(5) if blocks else f32(3, 8) * np.float32(5)
    return [x, scale, *([] if zero is None else [zero])], {"axis": 1, "block_size": 2 if blocks else 0}


@pytest.mark.parametrize("name", ["uint8", "int16", "uint4", "int4", "int2", "float8_e4m3fn", "float4_e2m1fn"])
@pytest.mark.parametrize("blocks", [0, 1])
def test_quantised_and_back(name: str, blocks: int) -> None:
    inputs, options = quantised(name, blocks)
    extra: dict[str, Any] = {} if len(inputs) == 3 else {"output_dtype": NUMBER[name]}
    model, arrays = node_model("QuantizeLinear", inputs, opset=25, **options, **extra)
    want = reference(model, arrays)["y0"]
    for found in both("QuantizeLinear", inputs, **options, **extra):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found.astype(np.float32), want.astype(np.float32))
    model, arrays = node_model("DequantizeLinear", [want, *inputs[1:]], opset=25, **options)
    back: Arrays = reference(model, arrays)
    for found in both("DequantizeLinear", [want, *inputs[1:]], **options):
        np.testing.assert_allclose(found, back["y0"], rtol=1e-6)


_OF_WIDTH = {4: (np.float32, np.int32, np.uint32), 8: (np.float64, np.int64, np.uint64)}


@pytest.mark.parametrize("target", range(3))
@pytest.mark.parametrize("source", range(3))
@pytest.mark.parametrize("width", _OF_WIDTH)
def test_the_bits_of_a_number_as_another_type(width: int, source: int, target: int) -> None:
    """Denormals, both zeros, infinities and NaN included: every bit stays."""
    types = _OF_WIDTH[width]
    special = np.array([0.0, -0.0, 1.5, -np.inf, np.nan, 1e-40 if width == 4 else 5e-324], types[0]).view(types[1])
    codes = np.random.default_rng(5).integers(np.iinfo(types[1]).min, np.iinfo(types[1]).max, 94, types[1])
    x = np.concatenate([special, codes]).reshape(4, 25).view(types[source])
    for found in both("BitCast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(types[target]))):
        assert found.dtype == types[target] and bits(found) == bits(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.75])
def test_dropout_with_a_seed_is_the_reference_evaluators(ratio: float, dtype: type) -> None:
    """In training mode, which may only be known at run time; without a seed the evaluator draws."""
    inputs = [f32(3, 40).astype(dtype), np.array(ratio, np.float32), np.array(True)]
    for constant in ([1, 2], []):
        model, arrays = node_model("Dropout", inputs, opset=13, constant=constant, outputs=2, seed=7)
        engine = poly.compile(model)
        found, want = engine.run(arrays), reference(model, arrays)
        assert not engine.fallbacks
        values, mask = np.asarray(found["y0"], dtype), np.asarray(found["y1"], bool)
        np.testing.assert_array_equal(mask, want["y1"])
        np.testing.assert_allclose(values, want["y0"], rtol=1e-6)
        assert 0 < np.mean(mask) <= 1 and (ratio == 0) == bool(np.all(mask))
    model, arrays = node_model("Dropout", inputs, opset=13, constant=[1, 2], outputs=2)
    assert any(n.external for n in from_onnx(model).nodes) == (ratio > 0)
