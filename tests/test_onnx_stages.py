"""Models that are compiled while they run: deciding inputs, branches, loops, sequences, strings."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import poly
from poly.errors import FallbackWarning, OnnxError, RunError, SettingWarning
from poly.frontend.onnx_stages import StagedModel
from poly.model_engine import ModelEngine
from tests.onnx_helpers import assert_close, chain_model, node_model, reference
from tests.test_calls import Exporter
from tests.test_onnx import f32
from tests.test_onnx_symbolic import cache_inputs, cache_model


def engine_of(model: onnx.ModelProto) -> ModelEngine:
    engine = poly.compile(model)
    assert "first run" in str(engine) and "first run" in str(poly.explain(engine))
    return engine


def test_an_input_that_decides_a_shape_is_specialised_on_and_cached() -> None:
    x = f32(2, 6)
    model, _ = node_model("Reshape", [x, np.array([3, 4])])
    engine = engine_of(model)
    for shape in ((3, 4), (4, 3), (3, 4)):
        found = engine.run({"x0": x, "x1": np.array(shape)})
        np.testing.assert_array_equal(found["y0"], x.reshape(shape))
    assert engine.fallbacks == () and engine.deciding == ("x1",)
    assert re.search("specialised on +x1", str(poly.explain(engine)))
    assert "specialised on the content of x1" in str(engine)


def test_content_that_was_seen_is_not_compiled_again() -> None:
    x = f32(2, 6)
    model, _ = node_model("Slice", [x, np.array([1]), np.array([4]), np.array([1])])
    engine = engine_of(model)
    for start, end in ((1, 4), (0, 6), (1, 4), (2, 5), (0, 6)):
        found = engine.run({"x0": x, "x1": np.array([start]), "x2": np.array([end]), "x3": np.array([1])})
        np.testing.assert_array_equal(found["y0"], x[:, start:end])
    assert engine.compiled == 3


def test_shapes_need_not_be_given_before() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    model, _ = chain_model([node], {"x": f32(2, 3)}, ["y"], dims={"x": ["n", None]})
    engine = engine_of(model)
    for shape in ((2, 3), (5, 4), (2, 3)):
        x = f32(*shape)
        assert_close(engine.run({"x": x}), reference(model, {"x": x}))  # type: ignore[arg-type]
    assert engine.compiled == 2


def test_results_are_the_callers() -> None:
    """An output that is an input is another array, which `out` may give."""
    x_info, y_info = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x_info], [x_info, y_info])
    engine = engine_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    x = np.arange(-4, 4, dtype="f4").reshape(2, 4)
    before = x.copy()
    found = engine.run({"x": x})["x"]
    assert isinstance(found, np.ndarray)
    found[:] = 7
    np.testing.assert_array_equal(x, before)
    kept = np.empty_like(x)
    engine.run({"x": x}, out={"y": x, "x": kept})
    np.testing.assert_array_equal(kept, before)
    np.testing.assert_array_equal(x, np.maximum(before, 0))


def test_runs_like_the_last_one_are_checked_as_the_first() -> None:
    """Where they do not fit the compiled stage as they are, too."""
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    model, _ = chain_model([node], {"x": f32(2, 3)}, ["y"], dims={"x": ["n", None]})
    engine = engine_of(model)
    x = f32(2, 3)
    wanted = reference(model, {"x": x})["y"]
    first, second, third = (engine.run({"x": x})["y"] for _ in range(3))
    assert all(isinstance(y, np.ndarray) and np.allclose(y, wanted) for y in (first, second, third))
    assert second is not third and engine.share is not None and not engine.share.outside
    assert_close(engine.run({"x": x.T}), reference(model, {"x": x.T}))  # type: ignore[arg-type]
    assert_close(engine.run({"x": np.asfortranarray(x)}), {"y": wanted})  # type: ignore[arg-type]
    for wrong in ({}, {"z": x}, {"x": x, "z": x}, {"x": x.astype("f8")}, 5):
        engine.run({"x": x})
        with pytest.raises(RunError):
            engine.run(wrong)  # type: ignore[arg-type]
    assert np.array_equal(engine.run({"x": x})["y"], first)  # type: ignore[arg-type]


def test_what_a_model_took_once_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
    model, _ = chain_model([node], {"x": f32(2, 3)}, ["y"], dims={"x": ["n", None]})
    engine = engine_of(model)
    looked_at: list[object] = []
    check = StagedModel.check_inputs

    def counted(staged: StagedModel, values: Mapping[str, object]) -> None:
        looked_at.append(values["x"])
        check(staged, values)

    monkeypatch.setattr(StagedModel, "check_inputs", counted)
    for shape in ((2, 3), (2, 3), (4, 3), (2, 3)):
        engine.run({"x": f32(*shape)})
    assert len(looked_at) == 2
    for wrong in (np.zeros((2, 3)), f32(2, 3, 1)):
        for _ in range(2):
            with pytest.raises(RunError, match="'x'"):
                engine.run({"x": wrong})


def test_arrays_of_other_libraries_and_lists_are_read_as_by_a_kernel() -> None:
    """Where a stage begins they are arrays: their shapes are part of its key, and numpy and the evaluator take them."""
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    model, _ = chain_model(nodes, {"x": f32(2, 3)}, ["y", "where"], dims={"x": ["n", None]})
    engine = engine_of(model)
    for shape in ((2, 3), (5, 4)):
        x = f32(*shape)
        for given in (Exporter(x), x.tolist()):
            assert_close(engine.run({"x": given}), reference(model, {"x": x}))  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"input 'x'.*float64, expected float32(.|\n)*inputs\['x'\].astype"):
        engine.run({"x": Exporter(f32(2, 3).astype(np.float64))})
    with pytest.raises(RunError, match="input 'x': NoneType is no array"):
        engine.run({"x": None})


def test_computed_values_that_decide_end_a_stage() -> None:
    """The shape comes from data: what lies before is compiled, and what lies behind, for this shape."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceMax", ["r"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["k"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["k", "one"], ["shape"]),
        helper.make_node("Expand", ["c", "shape"], ["y"]),
    ]
    x = np.full((40, 40), 3, np.float32)
    constants = {"c": np.ones(1, np.float32), "one": np.array([1])}
    model, _ = chain_model(nodes, {"x": x}, ["y"], constants=constants)
    engine = engine_of(model)
    assert engine.run({"x": x})["y"].shape == (3,)  # type: ignore[union-attr]
    assert engine.run({"x": x + 2})["y"].shape == (5,)  # type: ignore[union-attr]
    assert engine.fallbacks == ()


def branching() -> onnx.ModelProto:
    def branch(operator: str, name: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x"], [name])
        return helper.make_graph([node], name, [], [helper.make_empty_tensor_value_info(name)])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Exp", "a"), else_branch=branch("Neg", "b")),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    return chain_model(nodes, {"x": f32(100)}, ["z"], constants={"zero": np.array(0, np.float32)})[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_is_chosen_at_run_time_and_compiled(sign: int) -> None:
    x = np.abs(f32(100)) * sign
    engine = engine_of(branching())
    assert_close(engine.run({"x": x}), {"z": np.exp(x) if sign > 0 else -x})  # type: ignore[arg-type]
    assert engine.fallbacks == ()


def looping(further: str = "Identity") -> onnx.ModelProto:
    """`further`: of what it is told, whether a turn goes on, so that the compiler knows, or of its number."""
    told = ["go"] if further == "Identity" else ["i", "count"]
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "step"], ["w"]), helper.make_node(further, told, ["on"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, []),
         helper.make_tensor_value_info("v", 1, [3])],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("w", 1, [3])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["v0"]),
        helper.make_node("Loop", ["count", "true", "v0"], ["last"], name="turns", body=body),
        helper.make_node("Neg", ["last"], ["y"]),
    ]
    constants = {"count": np.array(4), "true": np.array(True), "step": np.ones(3, np.float32)}
    return chain_model(nodes, {"x": f32(3)}, ["y"], constants=constants)[0]


@pytest.mark.parametrize(("further", "how"), [("Identity", "1 stage,"), ("Less", "its body compiled")])
def test_a_loop_of_known_turns_is_compiled_and_of_others_its_body(further: str, how: str) -> None:
    x = f32(3)
    engine = engine_of(looping(further))
    for _ in range(2):
        assert_close(engine.run({"x": x}), {"y": -(np.maximum(x, 0) + 4)})  # type: ignore[arg-type]
    assert engine.fallbacks == () and how in str(engine)


def test_what_a_loop_makes_in_its_turns_is_stacked() -> None:
    """The evaluator gives scalars a second axis, and takes an absent condition for false: the oracle is written out."""
    body = helper.make_graph(
        [helper.make_node("Mul", ["v", "two"], ["w"]), helper.make_node("Identity", ["w"], ["out"]),
         helper.make_node("Less", ["w", "limit"], ["on"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, []),
         helper.make_tensor_value_info("v", 1, [])],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("on", 9), ("w", 1), ("out", 1))],
    )  # fmt: skip
    node = helper.make_node("Loop", ["count", "go", "x"], ["last", "all"], body=body)
    x = np.array(3, np.float32)
    constants = {"count": np.array(9), "go": np.array(True), "two": np.float32(2), "limit": np.float32(40)}
    arrays = {n: np.asarray(a) for n, a in constants.items()}
    model, _ = chain_model([node], {"x": x}, ["last", "all"], constants=arrays)
    want = {"last": np.float32(48), "all": np.array([6, 12, 24, 48], np.float32)}
    assert_close(engine_of(model).run({"x": x}), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_goes_both_ways(backwards: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "v"], ["t"]), helper.make_node("Identity", ["t"], ["out"])], "body",
        [helper.make_tensor_value_info(n, 1, [2]) for n in ("s", "v")],
        [helper.make_tensor_value_info(n, 1, [2]) for n in ("t", "out")],
    )  # fmt: skip
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_input_directions=[backwards], scan_output_directions=[backwards], scan_output_axes=[1],
    )  # fmt: skip
    x = f32(2, 5)
    model, _ = chain_model([node], {"x": x}, ["last", "all"], constants={"start": np.zeros(2, np.float32)})
    sums = np.cumsum(x[:, ::-1], 1)[:, ::-1] if backwards else np.cumsum(x, 1)
    want = {"last": x.sum(1), "all": sums}
    assert_close(engine_of(model).run({"x": x}), want)  # type: ignore[arg-type]


def test_a_fallback_is_told_with_its_share_of_the_time() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("SplitToSequence", ["r"], ["parts"], name="which"),
        helper.make_node("ConcatFromSequence", ["parts"], ["all"], axis=0),
        helper.make_node("Neg", ["r"], ["y"]),
    ]
    model, arrays = chain_model(nodes, {"x": f32(3)}, ["all", "y"])
    engine = engine_of(model)
    with pytest.warns(FallbackWarning, match="which.*not in the table"):
        assert_close(engine.run(arrays), reference(model, arrays))  # type: ignore[arg-type]
    assert engine.fallbacks == ("which (SplitToSequence)", "all (ConcatFromSequence)")
    assert engine.share is not None and 0 < engine.share.fraction < 1
    assert "reference evaluator" in str(engine)
    told = str(poly.explain(engine))
    assert "which (SplitToSequence)" in told and "of the last run" in told


def test_sequences_and_strings_pass_through() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("Exp", ["c"], ["y"]),
        helper.make_node("SequenceLength", ["s"], ["n"]),
    ]
    model, arrays = chain_model(nodes, {"x": f32(2, 3)}, ["y", "n"])
    with pytest.warns(FallbackWarning) as told:
        found = engine_of(model).run(arrays)
    assert {w.filename for w in told} == {__file__}  # the line that ran it
    assert_close(found, {"y": np.exp(np.concatenate([arrays["x"]] * 2)), "n": np.array(2)})  # type: ignore[arg-type]
    words = np.array(["a", "b"], object)
    graph = helper.make_graph(
        [helper.make_node("StringConcat", ["p", "p"], ["q"])], "words",
        [helper.make_tensor_value_info("p", TensorProto.STRING, [2])], [helper.make_empty_tensor_value_info("q")],
    )  # fmt: skip
    with pytest.warns(FallbackWarning):
        assert list(engine_of(helper.make_model(graph)).run({"p": words})["q"]) == ["aa", "bb"]  # type: ignore[call-overload]


def test_a_default_can_be_overridden() -> None:
    node = helper.make_node("Add", ["x", "weight"], ["y"])
    model, _ = chain_model([node], {"x": f32(3)}, ["y"], constants={"weight": np.ones(3, np.float32)})
    model.graph.input.append(helper.make_tensor_value_info("weight", 1, [3]))
    x, w = f32(3), f32(3)
    engine = engine_of(model)
    assert_close(engine.run({"x": x}), {"y": x + 1})  # type: ignore[arg-type]
    assert_close(engine.run({"x": x, "weight": w}), {"y": x + w})  # type: ignore[arg-type]
    assert [t.name for t in poly.from_onnx(model).inputs] == ["x"]
    assert [t.name for t in poly.from_onnx(model, {"weight": (3,)}).inputs] == ["x", "weight"]
    fixed = poly.compile(poly.from_onnx(model, constants={"weight": w}))
    assert_close(fixed.run({"x": x}), {"y": x + w})


def test_wrong_inputs_and_wrong_nodes_are_errors() -> None:
    model, _ = node_model("Relu", [f32(2, 3)])
    engine = engine_of(model)
    with pytest.raises(RunError, match="no input 'z'"):
        engine.run({"z": f32(2)})
    with pytest.raises(RunError, match="'x0' is missing"):
        engine.run({})
    with pytest.raises(RunError, match="axis 1 is 3"):
        engine.run({"x0": f32(2, 4)})
    with pytest.raises(RunError, match="float64"):
        engine.run({"x0": f32(2, 3).astype(np.float64)})
    wrong, arrays = node_model("Add", [f32(2, 3), f32(4)])
    with pytest.raises(OnnxError, match="do not broadcast"):
        engine_of(wrong).run(arrays)


def test_threads_share_the_cache(tmp_path: Path) -> None:
    model, _ = node_model("Reshape", [f32(2, 6), np.array([3, 4])])
    onnx.save(model, str(tmp_path / "m.onnx"))
    engine = poly.compile(tmp_path / "m.onnx")
    x, wrong = f32(2, 6), list[str]()

    def work(shape: tuple[int, int]) -> None:
        for _ in range(5):
            found = engine.run({"x0": x, "x1": np.array(shape)})["y0"]
            if not np.array_equal(found, x.reshape(shape)):  # type: ignore[arg-type]
                wrong.append(str(shape))

    threads = [threading.Thread(target=work, args=(s,)) for s in ((3, 4), (4, 3), (6, 2), (12, 1))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and engine.compiled == 4


def test_a_run_of_more_stages_than_are_kept_finds_them_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poly.model_engine._MAX_STAGES", 1)
    engine = engine_of(branching())
    x = f32(100)
    first = engine.run({"x": x})["z"]
    compiled = engine.compiled
    assert compiled > 1
    assert np.array_equal(np.asarray(engine.run({"x": x})["z"]), np.asarray(first))
    assert engine.compiled == compiled


def test_what_decided_a_stage_is_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poly.model_engine._MAX_STAGES", 1)
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Relu", ["r"], ["y"])]
    x, shape = f32(12), np.array([3, 4])
    model, _ = chain_model(nodes, {"x": x, "shape": shape}, ["y"], dims={"x": ["n"]})
    engine = engine_of(model)
    for size in (12, 24, 36):
        y = engine.run({"x": np.resize(x, size), "shape": np.array([3, size // 3])})["y"]
        assert np.asarray(y).shape == (3, size // 3)
    assert len(engine._cache) == len(engine._decided) == 1


def test_ever_new_sizes_are_told_once_how_they_are_free() -> None:
    """What the warning says is Python that compiles once for all."""
    proto = cache_model()
    engine = engine_of(proto)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for past in (3, 4, 5, 3, 9, 6, 7, 8):
            engine.run(cache_inputs(past))
    (one,) = [w for w in told if w.category is SettingWarning]
    assert one.filename == __file__ and "(past: 3, 4, 5, 9, 6)" in str(one.message)
    text = str(one.message).partition("for all of them: ")[2]
    arguments = "shapes={'seq': 1}, ranges={'past': (1, 32), 'total': 'past + 1'}"
    assert text == f"poly.compile(poly.from_onnx(model, {arguments}))"
    inputs = cache_inputs(30)
    assert_close(eval(text, {"poly": poly, "model": proto}).run(inputs), reference(proto, inputs))


def test_sizes_without_a_name_are_told_nothing() -> None:
    proto = cache_model()
    for info in proto.graph.input:
        info.type.tensor_type.shape.dim[0].Clear()
    engine = engine_of(proto)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for past in range(1, 8):
            engine.run(cache_inputs(past))


def test_arrays_that_outputs_are_copied_to_are_checked_before_any_is_written() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    model, arrays = chain_model(nodes, {"x": f32(4, 8)}, ["y", "z"])
    engine, whole, fixed = engine_of(model), np.full((6, 8), 7, np.float32), np.zeros((4, 8), np.float32)
    fixed.flags.writeable = False
    wrong: list[tuple[dict[str, object], str]] = [
        ({"y": whole[:4], "z": whole[2:]}, "out for 'z' overlaps another output"),
        ({"y": whole[:4], "z": fixed}, "out for 'z' is not writable"),
        ({"y": whole[:4], "z": None}, "out for 'z' is NoneType, expected float32"),
        ({"y": whole[:4], "z": whole[:3]}, r"out for 'z' has shape \[3, 8\], expected \[4, 8\]"),
    ]
    for out, told in wrong:
        with pytest.raises(RunError, match=told):
            engine.run(arrays, out=out)  # type: ignore[arg-type]
        assert (whole == 7).all()
    np.testing.assert_array_equal(engine.run(arrays, out={"z": whole[2:]})["z"], -arrays["x"])


def test_an_output_that_a_node_does_not_have_is_refused() -> None:
    """It was a KeyError of Python's."""
    x = f32(2, 3)
    model, _ = chain_model([helper.make_node("Relu", ["x"], ["y", "z"])], {"x": x}, ["y", "z"])
    with pytest.raises(OnnxError, match="output 'z' is computed by no node"):
        poly.compile(model).run({"x": x})


def test_boxes_without_scores_are_refused() -> None:
    model, inputs = node_model("NonMaxSuppression", [f32(1, 7, 4), f32(1, 1, 6)], opset=11)
    with pytest.raises(RunError, match="not of as many batches and boxes"):
        poly.compile(model).run(inputs)
