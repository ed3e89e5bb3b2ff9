"""Bad ONNX files: an error that says what and where, in under a second, without an allocation of what they claim."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poly
from poly.errors import OnnxError
from poly.model_check import check_model
from tests import fuzz_onnx
from tests.onnx_helpers import chain_model, node_model
from tests.test_onnx import f32

SECONDS = 1.0
ROOT = Path(__file__).resolve().parent.parent


def add() -> onnx.ModelProto:
    model, _ = node_model("Add", [f32(4, 8), f32(4, 8)], constant=[1])
    return model


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = add()
    change(model)
    return model


def external(location: str, **more: str) -> onnx.ModelProto:
    """The second operand's data are said to lie in another file."""
    model = add()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return model


def cycle() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Neg", ["a"], ["b"], name="two")]
    return chain_model(nodes, {"x": f32(3)}, ["b"])[0]


def folded(operator: str, *operands: Any, **attributes: Any) -> onnx.ModelProto:
    """A node of constants whose result would be huge."""
    return node_model(operator, list(operands), constant=range(len(operands)), **attributes)[0]


HUGE = 2**40
MODELS: dict[str, tuple[onnx.ModelProto, str]] = {
    "cycle": (cycle(), "'b' is not defined before"),
    "missing initialiser": (changed(lambda m: m.graph.ClearField("initializer")), "'x1' is not defined before"),
    "initialiser twice": (changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])), "there 2 times"),
    "input twice": (changed(lambda m: m.graph.input.append(m.graph.input[0])), "there 2 times"),
    "output twice": (changed(lambda m: m.graph.output.append(m.graph.output[0])), "there 2 times"),
    "node twice": (changed(lambda m: m.graph.node.append(m.graph.node[0])), "name of an earlier value"),
    "no operator set": (changed(lambda m: m.ClearField("opset_import")), "no operator set"),
    "unknown domain": (changed(lambda m: setattr(m.graph.node[0], "domain", "com.example")), "com.example"),
    "unknown operator": (changed(lambda m: setattr(m.graph.node[0], "op_type", "Nonsense")), "no operator Nonsense"),
    "opset of tomorrow": (changed(lambda m: setattr(m.opset_import[0], "version", 99)), "knows opsets up to"),
    "opset 0": (changed(lambda m: setattr(m.opset_import[0], "version", 0)), "no operator Add"),
    "dtype of nothing": (changed(lambda m: setattr(m.graph.initializer[0], "data_type", 99)), "data type 99"),
    "dtype of input": (changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 0)), "input 'x0'"),
    "wrong dtype": (changed(lambda m: setattr(m.graph.initializer[0], "data_type", 7)), "cannot be read|operands are"),
    "wrong extent": (changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 5)), "cannot be read"),
    "negative extent": (changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)), "negative extent"),
    "huge extent": (changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, HUGE)), "cannot be read"),
    "extents beyond 64 bits": (changed(lambda m: m.graph.initializer[0].dims.extend([2**62, 2**62])), "cannot be read"),
    "external, up": (external("../../../../etc/passwd"), "x1|not a readable"),
    "external, absolute": (external("/etc/passwd"), "x1|not a readable"),
    "external, absent": (external("weights.bin"), "x1|not a readable|no file"),
    "external, no place": (external(""), "x1|not a readable"),
    "huge constant of shape": (folded("ConstantOfShape", np.array([HUGE, HUGE])), "elements|memory|bytes"),
    "huge expand": (folded("Expand", f32(1), np.array([2**20, 2**20, 2**10])), "elements|memory|bytes"),
    "huge tile": (folded("Tile", f32(4), np.array([HUGE])), "elements|memory|bytes"),
    "huge range": (folded("Range", np.array(0), np.array(HUGE), np.array(1)), "elements|memory|bytes"),
    "huge pad": (folded("Pad", f32(4), np.array([0, 2**50])), "elements|memory|bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_wrong(name: str, tmp_path: Path) -> None:
    model, message = MODELS[name]
    path = tmp_path / "bad.onnx"
    path.write_bytes(model.SerializeToString())
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for source in (path, model):
        with pytest.raises(OnnxError, match=message):
            poly.from_onnx(source)
    assert not check_model(path).ok if name not in _NO_MODEL else True
    assert time.process_time() - start < 4 * SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


_NO_MODEL = {"initialiser twice", "input twice", "output twice", "no operator set", "external, up",
             "external, absolute", "external, absent", "external, no place"}  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 7, 20, 50, 100, 200])
def test_truncated_files(length: int, tmp_path: Path) -> None:
    data = add().SerializeToString()
    path = tmp_path / "short.onnx"
    path.write_bytes(data[: min(length, len(data) - 1)])
    with pytest.raises(OnnxError):
        poly.from_onnx(path)


@pytest.mark.parametrize(
    ("extents", "kernel", "pads"),
    [((9, 2**33), (3, 1), (0,) * 4), ((9, 2**27), (9, 2**26), (0, 2, 0, 2)), ((9, 9), (3, 3), (1, 2**31, 1, 2**31))],
)
def test_a_pool_over_huge_extents_is_not_counted_out(
    extents: tuple[int, ...], kernel: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=kernel, pads=pads)
    model, _ = chain_model([node], {"x": f32(1, 1, 2, 2)}, ["y"], dims={"x": [1, 1, *extents]})
    start = time.process_time()
    check_model(model)
    assert time.process_time() - start < 4 * SECONDS


def test_a_huge_input_costs_nothing_to_import() -> None:
    """Nothing is allocated before an array of that size is there."""
    start = time.process_time()
    node, x = helper.make_node("Relu", ["x"], ["y"]), {"x": f32(2, 2)}
    model, _ = chain_model([node], x, ["y"], dims={"x": [2**30, 2**5]})
    assert check_model(model).ok
    model, _ = chain_model([node], x, ["y"], dims={"x": [2**40, 2**40]})
    with pytest.raises(OnnxError, match="elements"):
        poly.from_onnx(model)
    assert time.process_time() - start < SECONDS


@pytest.mark.skipif(not fuzz_onnx.MODELS.is_dir(), reason=f"no models in {fuzz_onnx.MODELS}")
def test_some_mutated_models() -> None:
    """The first 150 of the 10,000 that `python -m tests.fuzz_onnx --count 10000` runs, in a process with limits."""
    command = [sys.executable, "-m", "tests.fuzz_onnx", "--count", "150", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "150 files" in done.stdout
