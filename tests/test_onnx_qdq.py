"""What is between DequantizeLinear and QuantizeLinear, on codes, beside onnx.reference in f32."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import onnx
import pytest
from onnx import helper

import poly
from tests.onnx_helpers import chain_model, reference

SOURCE = np.random.default_rng(5)
Nodes = list[onnx.NodeProto]
Constants = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """Each test draws the same, whatever ran before it."""
    own = np.random.default_rng(crc32(request.node.name.encode()))
    SOURCE.bit_generator.state = own.bit_generator.state


def codes(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return SOURCE.integers(limits.min, limits.max + 1, shape).astype(dtype)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def around(operator: str, x: np.ndarray, w: np.ndarray, zero: int = 120, **attributes: Any) -> tuple[Nodes, Constants]:
    """x -> dequantised -> `operator` with dequantised weights -> "t"."""
    nodes = [
        node("DequantizeLinear", "x xs xz", "xf"),
        node("DequantizeLinear", "w ws wz", "wf", axis=0),
        helper.make_node(operator, ["xf", "wf", *attributes.pop("bias", [])], ["t"], **attributes),
    ]
    constants = {
        "w": w, "xs": np.array(0.02, "f4"), "xz": np.array(zero, x.dtype), "ws": np.array(0.01, "f4"),
        "wz": np.array(0, w.dtype), "ys": np.array(0.3, "f4"), "yz": np.array(100, "u1"),
    }  # fmt: skip
    return nodes, constants


def check(nodes: Nodes, constants: Constants, x: np.ndarray, operators: set[str], levels: int = 20) -> None:
    """Within a code of the f32 model's; `operators`: those of the products among the nodes that are compiled."""
    model, arrays = chain_model(nodes, {"x": x}, ["y"], constants=constants, opset=19)
    graph = poly.from_onnx(model)
    products = ("Conv", "MatMul", "QLinearConv", "QLinearMatMul", "QLinearAdd", "Relu", "DequantizeLinear")
    assert {n.operator for n in graph.nodes} & set(products) == operators
    found, want = np.asarray(poly.compile(model).run(arrays)["y"]), reference(model, arrays)["y"]
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    away = np.abs(found.astype(np.float64) - want)
    assert away.max() <= 1 and (away > 0).mean() < 0.01 and len(np.unique(want)) > levels


LAST = node("QuantizeLinear", "t ys yz", "y")


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("bias", ["none", "known", "codes"])
def test_a_convolution(bias: str, channels: bool) -> None:
    x, w = codes("u1", 2, 6, 9, 9), codes("i1", 8, 3, 3, 3)
    names = {"none": [], "known": ["b"], "codes": ["bf"]}[bias]
    nodes, constants = around("Conv", x, w, bias=names, pads=[1, 0, 1, 0], strides=[2, 1], group=2)
    if channels:
        constants |= {"ws": SOURCE.uniform(0.005, 0.02, 8).astype("f4"), "wz": np.zeros(8, "i1")}
    unit = constants["xs"] * constants["ws"]
    constants |= {"b": SOURCE.uniform(-3, 3, 8).astype("f4"), "bc": SOURCE.integers(-9999, 9999, 8).astype("i4")}
    constants |= {"bs": np.broadcast_to(unit, 8).astype("f4") if channels else unit.astype("f4")}
    constants |= {"bz": np.zeros(8, "i4")}
    more = [node("DequantizeLinear", "bc bs bz" if channels else "bc bs", "bf", axis=0)] if bias == "codes" else []
    check([*more, *nodes, LAST], constants, x, {"QLinearConv"})


@pytest.mark.parametrize("unit", [1.0, 2.0**-12, 0.0])
def test_a_bias_between_two_units(unit: float) -> None:
    """It is rounded where no code can tell."""
    x, w = SOURCE.integers(0, 3, (1, 2, 9, 9)).astype("u1"), SOURCE.integers(-1, 2, (4, 2, 1, 1)).astype("i1")
    nodes, constants = around("Conv", x, w, zero=1, bias=["b"])
    constants |= {"b": np.array([0.45, -0.35, 2.5, 2], "f4"), "xs": np.array(1, "f4"), "ws": np.array(unit, "f4")}
    left = {"QLinearConv"} if unit == 2.0**-12 else {"Conv", "DequantizeLinear"}
    with np.errstate(all="raise"):
        check([*nodes, LAST], {**constants, "ys": np.array(0.05, "f4")}, x, left, levels=3)


def test_a_bias_whose_scales_are_of_blocks() -> None:
    x, w = codes("u1", 1, 6, 5, 5), codes("i1", 4, 6, 3, 3)
    nodes, constants = around("Conv", x, w, bias=["bf"])
    blocks = node("DequantizeLinear", "bc bs", "bf", axis=0, block_size=2)
    constants |= {"bc": SOURCE.integers(-9999, 9999, 4).astype("i4"), "bs": np.array([0.0002, 0.0004], "f4")}
    model, arrays = chain_model([blocks, *nodes, LAST], {"x": x}, ["y"], constants=constants, opset=21)
    found, want = poly.compile(model).run(arrays)["y"], reference(model, arrays)["y"]
    assert np.abs(np.asarray(found).astype(int) - want).max() <= 1


@pytest.mark.parametrize("operator", ["Conv", "MatMul"])
@pytest.mark.parametrize("without", ["x", "w", "xw"])
def test_no_zero_point_is_one_of_zero(operator: str, without: str) -> None:
    shapes = ((2, 5, 8, 8), (6, 5, 3, 3)) if operator == "Conv" else ((2, 7, 20), (20, 12))
    nodes, constants = around(operator, codes("i1", *shapes[0]), codes("u1", *shapes[1]), zero=3)
    for name in without:
        nodes["xw".index(name)].input.pop()
    check([*nodes, LAST], constants, codes("i1", *shapes[0]), {f"QLinear{operator}"})


def test_a_product() -> None:
    x, w = codes("u1", 2, 7, 20), codes("u1", 20, 12)
    nodes, constants = around("MatMul", x, w)
    check([*nodes, LAST], {**constants, "wz": np.array(99, "u1")}, x, {"QLinearMatMul"})


def test_a_product_with_a_scale_for_each_column() -> None:
    x, w = codes("u1", 7, 20), codes("i1", 20, 12)
    nodes, constants = around("MatMul", x, w)
    nodes[1] = node("DequantizeLinear", "w ws wz", "wf", axis=1)
    constants |= {"ws": SOURCE.uniform(0.005, 0.02, 12).astype("f4"), "wz": np.zeros(12, "i1")}
    check([*nodes, LAST], constants, x, {"QLinearMatMul"})
    check([*nodes, LAST], {**constants, "wz": codes("i1", 12)}, x, {"MatMul", "DequantizeLinear"})


@pytest.mark.parametrize(("zero", "left"), [(0, {"QLinearConv"}), (3, {"Conv", "Relu", "DequantizeLinear"})])
def test_a_relu_goes_where_saturation_is_one(zero: int, left: set[str]) -> None:
    x = codes("u1", 1, 4, 8, 8)
    nodes, constants = around("Conv", x, codes("i1", 5, 4, 3, 3))
    nodes = [*nodes, node("Relu", "t", "r"), node("QuantizeLinear", "r ys yz", "y")]
    check(nodes, {**constants, "yz": np.array(zero, "u1")}, x, left)


@pytest.mark.parametrize("dtype", ["u1", "i1"])
@pytest.mark.parametrize("relu", [False, True])
def test_a_sum_of_two(dtype: str, relu: bool) -> None:
    zero = np.array(np.iinfo(dtype).min if relu else 7, dtype)
    constants = {"xs": np.array(0.0213, "f4"), "xz": np.array(50, dtype), "c": codes(dtype, 40, 1),
                 "cs": np.array(0.0311, "f4"), "ys": np.array(0.0427, "f4"), "yz": zero}  # fmt: skip
    nodes = [
        node("DequantizeLinear", "x xs xz", "xf"), node("DequantizeLinear", "c cs", "cf"),
        node("Add", "xf cf", "s"), *([node("Relu", "s", "t")] if relu else []),
        node("QuantizeLinear", "t ys yz" if relu else "s ys yz", "y"),
    ]  # fmt: skip
    check(nodes, constants, codes(dtype, 3, 40, 50), {"QLinearAdd"})


def test_what_others_read_stays() -> None:
    """A block with a way around it: its dequantised input is read twice; and a result that is read as f32, too."""
    x, w = codes("u1", 1, 4, 8, 8), codes("i1", 4, 4, 1, 1)
    nodes, constants = around("Conv", x, w)
    around_it = [
        node("QuantizeLinear", "t ys yz", "q"),
        node("DequantizeLinear", "q ys yz", "qf"), node("Add", "qf xf", "u"), node("QuantizeLinear", "u ys yz", "y"),
    ]  # fmt: skip
    check([*nodes, *around_it], constants, x, {"QLinearConv", "QLinearAdd"})
    twice = [node("Add", "t t", "u"), node("QuantizeLinear", "u ys yz", "y")]
    check([*nodes, *twice], constants, x, {"Conv", "DequantizeLinear"})
