"""Models with free sizes: one program for a range of shapes, its code at many of them, and what is not affine."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import poly
from poly.errors import OnnxError, RunError
from poly.frontend.onnx_symbolic import agrees
from poly.graph import SizedGraph
from poly.interp import run_program
from poly.interp_arrays import bind_sizes
from poly.sized_engine import MOST_ENGINES, MOST_SIZES
from tests.onnx_helpers import Arrays, assert_close, chain_model, reference
from tests.test_onnx import f32

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / os.environ.get("POLYLOOM_MODELS", "../shared/models")
SLOW = pytest.mark.skipif("POLYLOOM_SLOW" not in os.environ, reason="set POLYLOOM_SLOW=1 for the slow tests")
Dims = Mapping[str, Sequence[int | str | None]]


def model(nodes: Sequence[onnx.NodeProto], dims: Dims, constants: Arrays | None = None) -> onnx.ModelProto:
    """A model whose inputs have the given dimensions."""
    inputs = {n: np.zeros([e if isinstance(e, int) else 2 for e in d], "f4") for n, d in dims.items()}
    found, _ = chain_model(nodes, inputs, [nodes[-1].output[0]], constants=constants, dims=dims)
    return found


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


W, B = f32(6, 4), f32(4)
# nodes, dims, constants, ranges: what an affine model may hold
AFFINE: dict[str, tuple[onnx.ModelProto, dict[str, tuple[int, int]]]] = {
    "dense": (model([node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Relu", "a", "y")],
                    {"x": ["batch", "len", 6]}, {"w": W, "b": B}), {"batch": (1, 64), "len": (1, 512)}),
    "attention": (model([node("MatMul", "q k", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p v", "y")],
                        {"q": ["b", 2, "n", 4], "k": ["b", 2, 4, "n"], "v": ["b", 2, "n", 4]}),
                  {"b": (1, 16), "n": (1, 64)}),
    "convolution": (model([node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"),
                           node("GlobalAveragePool", "r", "p"), node("Flatten", "p", "y")],
                          {"x": ["batch", 3, 9, 9]}, {"w": f32(4, 3, 3, 3)}), {"batch": (1, 32)}),
    "image of any height": (model([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"x": [1, 3, "h", "w"]},
                                  {"w": f32(4, 3, 3, 3)}), {"h": (3, 64), "w": (3, 64)}),
    "heads": (model([node("Reshape", "x s", "h"), node("Transpose", "h", "t", perm=[0, 2, 1, 3]),
                     node("Mul", "t t", "y")], {"x": ["batch", "len", 6]}, {"s": np.array([0, 0, 2, 3])}),
              {"batch": (1, 8), "len": (1, 30)}),
    "mean over a free axis": (model([node("ReduceMean", "x", "y", axes=[1], keepdims=0)], {"x": ["batch", "len", 3]}),
                              {"batch": (1, 8), "len": (1, 30)}),
    "positions": (model([node("Shape", "x", "s"), node("Gather", "s one", "n"), node("Unsqueeze", "n zero", "l"),
                         node("Slice", "table start l", "part"), node("Add", "x part", "y")],
                        {"x": ["batch", "len", 3]},
                        {"table": f32(40, 3), "one": np.array(1), "zero": np.array([0]), "start": np.array([0])}),
                  {"batch": (1, 8), "len": (1, 40)}),
    "concatenation": (model([node("Concat", "x x c", "y", axis=1)], {"x": [2, "n"]}, {"c": f32(2, 3)}), {"n": (1, 50)}),
    "padded": (model([node("Pad", "x p", "y", mode="constant")], {"x": ["n", 3]}, {"p": np.array([1, 0, 2, 0])}),
               {"n": (1, 50)}),
    "recurrent": (model([helper.make_node("LSTM", ["x", "w", "r"], ["y", "h", "c"], hidden_size=4)],
                        {"x": ["steps", 2, 3]}, {"w": f32(1, 16, 3), "r": f32(1, 16, 4)}), {"steps": (1, 20)}),
    "greatest": (model([helper.make_node("TopK", ["x", "k"], ["y", "at"])], {"x": ["n", 90]}, {"k": np.array([3])}),
                 {"n": (1, 64)}),
}  # fmt: skip


def inputs_at(graph: SizedGraph, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {graph.labels[t.name]: rng.standard_normal(t.extents(sizes)).astype("f4") for t in graph.inputs}


def some_sizes(ranges: Mapping[str, tuple[int, int]], count: int) -> list[dict[str, int]]:
    """The ends of the ranges and sizes between them."""
    rng = np.random.default_rng(1)
    drawn = [{n: int(rng.integers(low, high + 1)) for n, (low, high) in ranges.items()} for _ in range(count)]
    return [{n: r[0] for n, r in ranges.items()}, {n: r[1] for n, r in ranges.items()}, *drawn]


def at(graph: SizedGraph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes by the names of parameters, which may differ from those of the file."""
    return dict(zip(graph.parameters, sizes.values(), strict=True))


@pytest.mark.parametrize("name", AFFINE)
def test_one_program_is_every_import(name: str) -> None:
    proto, ranges = AFFINE[name]
    graph = poly.from_onnx(proto, ranges=ranges)
    assert len(graph.parameters) == len(ranges) and graph.literal is not None
    for sizes in some_sizes(ranges, 5):
        literal = poly.from_onnx(proto, {**sizes})
        assert agrees(graph, literal, at(graph, sizes)), sizes


@pytest.mark.parametrize("name", AFFINE)
def test_one_compilation_serves_every_size(name: str) -> None:
    proto, ranges = AFFINE[name]
    graph = poly.from_onnx(proto, ranges=ranges)
    engine = poly.compile(graph)
    assert engine.steps and not engine.fallbacks
    for sizes in some_sizes(ranges, 4):
        inputs = inputs_at(graph, at(graph, sizes))
        assert_close(engine.run(inputs), reference(proto, inputs), 2e-4)
    assert not engine.engines


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 64), st.integers(1, 512))
def test_the_interpreter_agrees_at_any_size(batch: int, length: int) -> None:
    proto, ranges = AFFINE["dense"]
    graph = poly.from_onnx(proto, ranges=ranges)
    inputs = inputs_at(graph, {"batch": batch, "len": length})
    named = {t.name: inputs[graph.labels[t.name]] for t in graph.inputs}
    found = run_program(graph.to_program(), {**named, **graph.constants}, vectorised=True)
    assert_close({graph.labels[n]: a for n, a in found.items()}, reference(proto, inputs), 1e-4)


def test_what_grows_beyond_the_limit_of_one_import_folds_alike_at_all_sizes() -> None:
    grown = model([node("Shape", "x", "s"), node("Expand", "one s", "e"), node("Add", "x e", "y")],
                  {"x": ["n", "m"]}, {"one": f32(1, 1)})  # fmt: skip
    ranges = {"n": (1, 2100), "m": (1, 2100)}
    graph = poly.from_onnx(grown, ranges=ranges)
    assert graph.literal is not None
    for sizes in ({"n": 2100, "m": 2100}, {"n": 3, "m": 5}):
        assert agrees(graph, graph.literal(at(graph, sizes)), at(graph, sizes))


def test_agreement_is_not_vacuous() -> None:
    proto, ranges = AFFINE["dense"]
    graph = poly.from_onnx(proto, ranges=ranges)
    other = poly.from_onnx(proto, {"batch": 3, "len": 7})
    assert agrees(graph, other, {"batch": 3, "len": 7})
    for sizes in ({"batch": 4, "len": 7}, {"batch": 3, "len": 8}, {"batch": 7, "len": 3}):
        assert not agrees(graph, other, sizes)
    changed, _ = AFFINE["convolution"]
    assert not agrees(graph, poly.from_onnx(changed, {"batch": 3}), {"batch": 3, "len": 7})


NOT_AFFINE: dict[str, tuple[onnx.ModelProto, dict[str, tuple[int, int]], str]] = {
    "two sizes in one axis": (model([node("Reshape", "x s", "y")], {"x": ["a", "b", 2]}, {"s": np.array([-1, 2])}),
                              {"a": (1, 9), "b": (1, 9)}, "tensor 'y'"),
    "strided": (model([node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[2, 2])], {"x": [1, 1, "h", 8]}),
                {"h": (2, 64)}, "tensor 'y'"),
    "content": (model([node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Mul", "f f", "m"),
                       node("Add", "x m", "y")], {"x": ["n", 1]}), {"n": (1, 50)}, "depends on a size"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_is_said(name: str) -> None:
    proto, ranges, message = NOT_AFFINE[name]
    with pytest.raises(OnnxError, match="not affine in") as caught:
        poly.from_onnx(proto, ranges=ranges)
    assert message in str(caught.value) and "poly.compile" in str(caught.value)


@pytest.mark.parametrize(("ranges", "message"), [
    ({"batch": (5, 2), "len": (1, 4)}, "range of 'batch'"), ({"batch": (-1, 2), "len": (1, 4)}, "range of 'batch'"),
    ({"batch": (1, 2)}, "not bound"), ({"batch": (1, 2), "len": (1, 2), "no": (1, 2)}, "ranges: 'no' is no dynamic"),
    ({"batch": 3}, "ranges"),
])  # fmt: skip
def test_bad_ranges(ranges: Any, message: str) -> None:
    with pytest.raises(OnnxError, match=message):
        poly.from_onnx(AFFINE["dense"][0], ranges=ranges)


def cache_model(total: str = "total") -> onnx.ModelProto:
    """A step of a decoder: a row for each call, behind those of the calls before."""
    return model([node("Concat", "cache row", "all", axis=0), node("MatMul", "all w", "m"), node("Add", "m mask", "y")],
                 {"cache": ["past", 6], "row": ["seq", 6], "mask": [total, 4]}, {"w": W})  # fmt: skip


def cache_inputs(past: int) -> dict[str, np.ndarray]:
    return {"cache": f32(past, 6), "row": f32(1, 6), "mask": f32(past + 1, 4)}


@pytest.mark.parametrize(("proto", "linked"), [
    (cache_model(), {"total": "past + 1"}), (cache_model(), {"total": "seq+past"}), (cache_model("past + seq"), {}),
    (cache_model(), {"total": "2*past - past + 1"}),
])  # fmt: skip
def test_extents_that_follow_from_others(proto: onnx.ModelProto, linked: Mapping[str, str]) -> None:
    graph = poly.from_onnx(proto, shapes={"seq": 1}, ranges={"past": (1, 40), **linked})
    assert graph.parameters == ("past",)
    engine = poly.compile(graph)
    for past in (1, 2, 17, 40):
        inputs = cache_inputs(past)
        assert_close(engine.run(inputs), reference(proto, inputs))
    assert not engine.engines  # none was compiled for one size
    with pytest.raises(RunError, match="past is 16 by axis 0 of cache and 17 by axis 0 of mask"):
        engine.run(cache_inputs(16) | {"mask": f32(18, 4)})


def test_a_name_that_is_an_expression_is_bound_by_its_names() -> None:
    graph = poly.from_onnx(cache_model("past + seq"), shapes={"cache": (5, 6), "seq": 2})
    assert [t.extents({}) for t in graph.inputs] == [(5, 6), (2, 6), (7, 4)]


@pytest.mark.parametrize(
    "text", ["past + rows", "past / 2", "past +", "past[0]", "f(past)", "1.5", "past + True", "", "(" * 999]
)
def test_extents_that_are_no_expressions(text: str) -> None:
    with pytest.raises(OnnxError, match=r"ranges\['total'\] is .*\n.*expression of sizes and numbers"):
        poly.from_onnx(cache_model(), shapes={"seq": 1}, ranges={"past": (1, 40), "total": text})


def test_inputs_outside_of_the_ranges() -> None:
    proto, _ = AFFINE["dense"]
    engine = poly.compile(poly.from_onnx(proto, ranges={"batch": (1, 4), "len": (2, 8)}))
    for shape, message in (((5, 4, 6), r"outside of the ranges\n.*gave batch from 1 to 4$"),
                           ((1, 1, 6), "gave len from 2 to 8$"), ((1, 4, 7), r"len=4\n.*only batch, len may"),
                           ((4, 6), "rank 3")):  # fmt: skip
        with pytest.raises(RunError, match=message):
            engine.run({"x": np.zeros(shape, "f4")})
    with pytest.raises(RunError, match="float64"):
        engine.run({"x": np.zeros((1, 4, 6))})
    with pytest.raises(RunError, match="missing"):
        engine.run({})


def test_a_size_that_matters_gets_its_own_code() -> None:
    proto, ranges = AFFINE["dense"]
    graph = poly.from_onnx(proto, ranges=ranges)
    engine = poly.compile(graph)
    own = engine.specialise(batch=2, len=16)
    assert engine.engines == (own,)
    inputs = inputs_at(graph, {"batch": 2, "len": 16})
    assert_close(engine.run(inputs), reference(proto, inputs), 1e-4)
    other = inputs_at(graph, {"batch": 3, "len": 5})
    assert_close(engine.run(other), reference(proto, other), 1e-4)
    assert len(engine.engines) == 1
    for sizes in ({"batch": 2}, {"batch": 2, "len": 999}, {"batch": 2, "len": 16, "no": 1}):
        with pytest.raises(RunError):
            engine.specialise(**sizes)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", AFFINE)
def test_a_size_that_comes_again_has_the_same_results(name: str, threads: int) -> None:
    """In one native call: with arrays that fit as they are, others, and sizes in between."""
    proto, ranges = AFFINE[name]
    graph = poly.from_onnx(proto, ranges=ranges)
    assert isinstance(graph, SizedGraph)
    engine = poly.compile(graph, threads=threads)
    low, high = ({p: ends[k] for p, ends in graph.ranges.items()} for k in (0, 1))
    a, b = inputs_at(graph, low), inputs_at(graph, high)
    first, other = engine.run(a), engine.run(b)
    for _ in range(3):
        assert_close(engine.run(b), other, rtol=0)
        assert_close(engine.run({n: np.asfortranarray(v) for n, v in b.items()}), other, rtol=0)
        out = {n: np.full_like(v, np.nan if v.dtype.kind == "f" else 7) for n, v in other.items()}
        assert_close(engine.run(b, out=out), other, rtol=0)
        assert all(engine.run(b, out=out)[n] is v for n, v in out.items())
        assert_close(engine.run(a), first, rtol=0)
    engine.specialise(**{graph.label(p): v for p, v in low.items()})
    assert_close(engine.run(a), first, rtol=1e-4)
    assert len(engine.engines) == 1


def test_an_index_out_of_range_is_told_in_each_run() -> None:
    table = {"table": f32(5, 3)}
    proto = model([node("Gather", "table at", "y")], {"at": ["n"]}, table)
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    engine = poly.compile(poly.from_onnx(proto, ranges={"n": (1, 9)}), threads=1)
    for _ in range(4):
        assert np.array_equal(engine.run({"at": np.array([0, 4, 1])})["y"], table["table"][[0, 4, 1]])
    for _ in range(2):
        with pytest.raises(RunError, match="5"):
            engine.run({"at": np.array([0, 5, 1])})


def test_what_is_remembered_is_bounded() -> None:
    proto = model([node("Relu", "x", "y")], {"x": ["n"]})
    graph = poly.from_onnx(proto, ranges={"n": (1, 500)})
    engine = poly.compile(graph)
    for n in range(1, MOST_SIZES + 10):
        assert engine.run({"x": np.arange(n, dtype="f4") - 3})["y"].sum() == sum(max(k - 3, 0) for k in range(n))
    for n in range(1, MOST_ENGINES + 3):
        engine.specialise(n=n)
    assert len(engine.engines) == MOST_ENGINES and len(engine._prepared) <= MOST_SIZES


def test_sizes_are_looked_for_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, ranges = AFFINE["dense"]
    engine = poly.compile(poly.from_onnx(proto, ranges=ranges))
    bound: list[object] = []

    def counted(*given: Any) -> dict[str, int]:
        bound.append(given)
        return bind_sizes(*given)

    monkeypatch.setattr("poly.sized_engine.bind_sizes", counted)
    for length in (7, 7, 9, 7):
        inputs = inputs_at(engine.graph, at(engine.graph, {"batch": 3, "len": length}))
        assert_close(engine.run(inputs), reference(proto, inputs), 2e-4)
    assert len(bound) == 2


def test_machines_that_need_sizes_compile_for_each() -> None:
    proto, ranges = AFFINE["dense"]
    graph = poly.from_onnx(proto, ranges=ranges)
    engine = poly.compile(graph, "s16")
    assert not engine.steps
    inputs = inputs_at(graph, {"batch": 2, "len": 4})
    assert_close(engine.run(inputs), reference(proto, inputs), 1e-4)
    assert len(engine.engines) == 1


REAL = {
    "mtcnn_rnet": {"N": (1, 64)}, "attacut_c": {"seq_len": (1, 256)}, "silero_seq": {"sequence_length": (1, 64)},
    "dnsmos_p808": {"N": (1, 8)}, "minilm_l3": {"batch_size": (1, 64), "sequence_length": (1, 512)},
    "pplcnet_orient": {"DynamicDimension.0": (1, 64)},
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_models_are_affine(name: str) -> None:
    if not (MODELS / f"{name}.onnx").exists():
        pytest.skip(f"{MODELS / name}.onnx is absent (POLYLOOM_MODELS names the folder)")
    graph = poly.from_onnx(MODELS / f"{name}.onnx", ranges=REAL[name])
    for sizes in some_sizes(REAL[name], 1):
        named = at(graph, sizes)
        assert graph.literal is not None and agrees(graph, graph.literal(named), named)


@SLOW
@pytest.mark.parametrize("name", ["mtcnn_rnet", "attacut_c", "silero_seq", "minilm_l3"])
def test_real_models_at_many_sizes(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = MODELS / f"{name}.onnx"
    graph = poly.from_onnx(path, ranges=REAL[name])
    engine, session = poly.compile(graph), ort.InferenceSession(str(path))
    rng = np.random.default_rng(0)
    for sizes in some_sizes({n: (low, min(high, 48)) for n, (low, high) in REAL[name].items()}, 6):
        inputs: Arrays = {}
        for t in graph.inputs:
            shape, label = t.extents(at(graph, sizes)), graph.labels[t.name]
            integers = rng.integers(0, 2 if "mask" in label else 100, shape)
            if "mask" in label:
                integers[:, 0] = 1
            inputs[label] = integers if t.dtype == "i64" else rng.standard_normal(shape).astype("f4")
        wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        for label, found in engine.run(inputs).items():
            want: np.ndarray = wanted[label]
            assert np.allclose(found, want, rtol=1e-3, atol=2e-5 * float(np.abs(want).max())), (label, sizes)


@pytest.mark.parametrize("low", [0, 1])
def test_short_ranges_from_an_extent_that_is_imported_otherwise(low: int) -> None:
    given = model([node("Unsqueeze", "x at", "u"), node("Transpose", "u", "t", perm=[0, 3, 1, 2]),
                   node("Conv", "t w", "y", pads=[1, 1, 1, 1])],
                  {"x": ["n", 6, 5]}, {"at": np.array([3]), "w": f32(4, 1, 3, 3)})  # fmt: skip
    engine = poly.compile(poly.from_onnx(given, ranges={"n": (low, 3)}))
    for n in range(low, 4):
        x = np.ones((n, 6, 5), np.float32)
        assert_close(engine.run({"x": x}), reference(given, {"x": x}))


def test_a_range_of_one_extent_is_bound() -> None:
    given, _ = AFFINE["dense"]
    x = np.ones((5, 3, 6), np.float32)
    for ranges in ({"batch": (5, 5), "len": (1, 8)}, {"batch": (5, 5), "len": (3, 3)}):
        (found,) = poly.compile(poly.from_onnx(given, ranges=ranges)).run({"x": x}).values()
        np.testing.assert_allclose(np.asarray(found, np.float32), np.maximum(x @ W + B, 0), rtol=1e-5)


def test_a_dimension_is_bound_or_free() -> None:
    given, _ = AFFINE["dense"]
    with pytest.raises(OnnxError, match="'batch' is in shapes and in ranges"):
        poly.from_onnx(given, shapes={"batch": 2}, ranges={"batch": (1, 4), "len": (1, 4)})


def test_imports_at_several_sizes_share_the_arrays_of_initialisers() -> None:
    """So that one more import neither reads nor compares them; a pickle has the model's alone."""
    graph = poly.from_onnx(model([node("MatMul", "x w", "y")], {"x": ["n", 6]}, {"w": W}), ranges={"n": (1, 64)})
    assert isinstance(graph, SizedGraph) and graph.literal is not None
    first, second = (graph.literal({graph.parameters[0]: n}) for n in (3, 9))
    assert first.constants["w"] is second.constants["w"] is graph.constants["w"]
    again = pickle.loads(pickle.dumps(graph))
    assert again.literal is not None
    assert again.literal({graph.parameters[0]: 5}).constants["w"].tobytes() == W.tobytes()
    assert pickle.dumps(graph.literal).count(W.tobytes()) == 1


def test_an_explanation_has_the_models_names() -> None:
    found = model([node("MatMul", "x w", "/m.0"), node("Softmax", "/m.0", "y.out", axis=-1)], {"x": ["n", 6]}, {"w": W})
    text = str(poly.explain(poly.compile(poly.from_onnx(found, ranges={"n": (1, 64)}))))
    assert "/m.0" in text and "y.out" in text and "matmul0" in text and "s0" not in text.split()
