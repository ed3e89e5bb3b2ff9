"""`poly check`: coverage, memory and work of a model without compiling it, and models that are not."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.cli import main
from poly.engine import Engine
from poly.errors import OnnxError
from poly.frontend.onnx_import import from_onnx
from poly.model_check import check_model
from tests.onnx_coverage import cases, model_of, read_table
from tests.onnx_helpers import chain_model, node_model
from tests.test_onnx import f32

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / os.environ.get("POLYLOOM_MODELS", "../shared/models")
NAMES = sorted(p.stem for p in MODELS.glob("*.onnx"))


def save(model: onnx.ModelProto, path: Path) -> str:
    path.write_bytes(model.SerializeToString())
    return str(path)


def convolution() -> onnx.ModelProto:
    """Conv of 2 x 3 channels with 3 x 3 windows on 8 x 8, then Relu, then a Shape subgraph that folds."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
        helper.make_node("Reshape", ["r", "s"], ["y"], name="reshape"),
    ]
    model, _ = chain_model(nodes, {"x": f32(1, 3, 8, 8)}, ["y"], constants={"w": f32(2, 3, 3, 3)},
                           dims={"x": ["batch", 3, 8, 8]})  # fmt: skip
    return model


def test_memory_and_work_are_counted_by_hand() -> None:
    found = check_model(convolution(), {"batch": 4})
    assert found.ok and not found.fallbacks and found.assumed == ()
    assert found.coverage == {"compiled": 3, "folded": 1}
    assert found.weights == 4 * 2 * 3 * 3 * 3
    assert found.io == 4 * (4 * 3 * 8 * 8 + 4 * 2 * 8 * 8)
    # the zero padding's products are counted: the domain is the box
    assert found.heaviest[0].operations == 2 * 4 * 2 * 8 * 8 * 3 * 3 * 3
    assert found.heaviest[0].name == "conv"
    assert found.peak == found.bound <= 2 * 4 * 4 * 2 * 8 * 8


def test_dynamic_extents_that_are_not_given_are_assumed() -> None:
    found = check_model(convolution())
    assert found.ok and found.sizes == {"batch": 1} and found.assumed == ("batch",)
    assert "batch=1 (assumed)" in str(found)


def test_outputs_are_named_where_their_shapes_are_not_known() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    chain, _ = chain_model(nodes, {"x": f32(3)}, ["y", "z"])
    assert check_model(chain).outputs == {"y": "not known before it runs", "z": "f32[3]"}


def test_what_falls_back_and_why() -> None:
    model, _ = node_model("Unique", [f32(6)], opset=11)
    node = helper.make_node("NonZero", ["x"], ["y"], name="places")
    chain, _ = chain_model([node], {"x": f32(3)}, ["y"])
    for proto in (model, chain):
        found = check_model(proto)
        assert found.ok and not found.fallbacks and len(found.by_numpy) == 1 and found.by_numpy[0].why
        assert "that numpy runs" in str(found)
    nodes = [helper.make_node("Det", ["x"], ["d"], name="det"), helper.make_node("Relu", ["d"], ["y"], name="relu")]
    chain, _ = chain_model(nodes, {"x": f32(2, 3, 3)}, ["y"])
    found = check_model(chain)
    fates = {f.name: f.fate for f in found.fates}
    if fates["det"] == "by numpy":
        assert found.ok and found.by_numpy[0].why and found.uncounted == ("det",)


def test_a_length_that_only_the_run_can_tell() -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["y"], name="best"),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT, name="behind"),
    ]
    chain, _ = chain_model(nodes, {"boxes": f32(1, 6, 4), "scores": f32(1, 1, 6), "most": np.array([3])}, ["y", "z"])
    chain.graph.initializer.append(numpy_helper.from_array(np.array([3]), "most"))
    found = check_model(chain)
    assert {f.name: f.fate for f in found.fates} == {"best": "compiled", "behind": "at first run"}
    assert found.ok and {*found.outputs.values()} == {"not known before it runs"}


def test_what_the_check_says_is_what_the_run_does() -> None:
    """ONNX's own node cases: a fallback is foretold where one runs, and nowhere else; strings, sequences included."""
    words = re.compile("sequence|string|optional|loop|scan_|test_if|compress|nonzero|unique")
    table, wrong = read_table(), list[str]()
    for case in cases("node"):
        row = table[f"node/{case.name}"]
        if words.search(case.name) and row.result != "refused":
            found = check_model(model_of(case))
            if not found.ok or bool(found.fallbacks + found.by_numpy) != (row.result == "fallback"):
                wrong.append(case.name)
    assert wrong == ["test_if_seq", "test_if_opt"]  # their branches are looked at when they run


def test_every_refused_node_is_found_in_one_run() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="first", axis=9),
        helper.make_node("Relu", ["a"], ["b"], name="fine"),
        helper.make_node("Transpose", ["b"], ["y"], name="second", perm=[0, 0]),
        helper.make_node("Neg", ["y"], ["z"], name="behind"),
    ]
    model, _ = chain_model(nodes, {"x": f32(2, 3)}, ["z"])
    found = check_model(model)
    fates = {f.name: f.fate for f in found.fates}
    assert not found.ok and fates["first"] == "refused"
    assert fates["second"] == "refused" or fates["second"] == fates["behind"] == "not reached"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(convolution(), tmp_path / "small.onnx")
    assert main(["check", path, "--bind", "batch=2"]) == 0
    shown = capsys.readouterr().out
    assert "small: compiles" in shown and "f32[2, 3, 8, 8]" in shown and "conv" in shown
    assert main(["check", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["sizes"] == {"batch": 1} and found["coverage"] == {"compiled": 3, "folded": 1}
    assert main(["check", str(tmp_path / "none.onnx")]) == 2
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07garbage")
    assert main(["check", str(tmp_path / "bad.onnx")]) == 1
    assert "OnnxError" in capsys.readouterr().err


def test_a_fixed_input_decides_a_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = helper.make_empty_tensor_value_info("o")
    branches = [helper.make_graph([helper.make_node(op, ["x"], ["o"])], op, [], [result]) for op in ("Neg", "Abs")]
    node = helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1])
    model, _ = chain_model([node], {"x": f32(3), "flag": np.array(True)}, ["y"])
    path = save(model, tmp_path / "choice.onnx")
    assert main(["check", path]) == 0
    shown = capsys.readouterr().out
    assert "compiles at its first run" in shown and "constants={...} of flag" in shown
    assert main(["check", path, "--constant", "flag=1"]) == 0
    assert "inlined" in capsys.readouterr().out
    assert main(["run", path, "--constant", "flag=0", "--check"]) == 0
    assert "agrees with onnx.reference" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_real_models(name: str) -> None:
    """With the sizes of their goldens, and with assumed ones; nothing is compiled, so it is quick."""
    arrays = np.load(MODELS / f"{name}.npz")
    shapes = {k[3:]: arrays[k].shape for k in arrays if k.startswith("in:")}
    constants = {"sr": arrays["in:sr"]} if name == "silero_ifless" else {}
    start = time.process_time()
    found = check_model(MODELS / f"{name}.onnx", shapes, constants)
    assert time.process_time() - start < 5
    assert found.ok and not found.fallbacks and not found.uncounted, str(found)
    assert found.operations > 0 and found.bound <= found.peak
    graph = from_onnx(MODELS / f"{name}.onnx", shapes, constants)
    assert found.weights == sum(a.nbytes for a in graph.constants.values())
    if name != "silero_ifless":
        assert check_model(MODELS / f"{name}.onnx").ok


def test_what_is_no_model_raises() -> None:
    with pytest.raises(OnnxError):
        check_model(onnx.ModelProto())


@pytest.mark.parametrize("softmax", [True, False])
def test_groups_and_memory_are_those_of_the_engine(softmax: bool) -> None:
    """Rows that become one group, and parts that lie inside of what they are joined to."""
    rows = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    joined = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        helper.make_node("AveragePool", ["x"], ["b"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ]
    x = f32(64, 256) if softmax else f32(1, 2, 9, 9)
    model, _ = chain_model(rows if softmax else joined, {"x": x}, ["y"])
    found, engine = check_model(model), poly.compile(from_onnx(model))
    assert isinstance(engine, Engine)
    assert (found.groups, found.peak, found.bound) == (len(engine.steps), engine.plan.size, engine.plan.bound)
    assert found.groups == (1 if softmax else 3)
