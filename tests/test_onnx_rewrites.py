"""Each rewrite of the ONNX importer alone: it applies, and what it leaves computes what was there before.

The model before a rewrite is one that the rewrite cannot touch (constants that come in at run time, a convolution that
is an output too, ...), so that both sides run through the same program and agree exactly wherever the arithmetic does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from poly import compile as compile_model
from poly.frontend.onnx_import import from_onnx
from poly.frontend.onnx_survey import survey_onnx
from tests.onnx_helpers import Arrays, chain_model, node_model, reference, run_graph, run_model

FEW = settings(derandomize=True, max_examples=40, deadline=None)
Nodes = list[onnx.NodeProto]


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.operator for n in from_onnx(model).nodes]


def same(found: Arrays, wanted: Arrays, rtol: float = 0.0) -> None:
    """Equal shapes, dtypes and values; floats within `rtol` of the largest value."""
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        assert (found[name].shape, found[name].dtype) == (want.shape, want.dtype), name
        scale = float(np.abs(want[np.isfinite(want)]).max(initial=0)) if want.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(found[name], want, rtol=rtol, atol=rtol * scale, err_msg=name)


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small whole numbers as floats: their sums and products are exact in any order."""
    return rng.integers(-4, 5, shape).astype(np.float32)


# -- constants -------------------------------------------------------------------------------------------------------

_UNARY = ("Neg", "Abs", "Relu", "Floor", "Sign", "Transpose", "Identity", "Exp", "ReduceMax", "ReduceSum", "Softsign")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "MatMul", "Where", "Concat")


def constant_chain(data: st.DataObject, count: int) -> Nodes:
    """Nodes that compute `r` of [3, 3] from the tensors k0 and k1 of [3, 3] alone."""
    names, nodes = ["k0", "k1"], Nodes()
    for k in range(count):
        operator, y = data.draw(st.sampled_from(_UNARY + _BINARY)), f"t{k}"
        p, q = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        match operator:
            case "ReduceMax" | "ReduceSum":
                nodes.append(helper.make_node("Neg" if operator == "ReduceSum" else "Abs", [p], [f"a{k}"]))
                nodes.append(helper.make_node(operator, [f"a{k}"], [f"b{k}"], keepdims=1))
                nodes.append(helper.make_node("Add", [f"b{k}", q], [y]))
            case "Exp":  # of numbers that do not overflow
                nodes.append(helper.make_node("Clip", [p, "low", "high"], [f"a{k}"]))
                nodes.append(helper.make_node("Exp", [f"a{k}"], [y]))
            case "Where":
                nodes.append(helper.make_node("Greater", [p, q], [f"a{k}"]))
                nodes.append(helper.make_node("Where", [f"a{k}", q, p], [y]))
            case "Concat":
                nodes.append(helper.make_node("Concat", [p, q], [f"a{k}"], axis=0))
                nodes.append(helper.make_node("Gather", [f"a{k}", "rows"], [y], axis=0))
            case "MatMul":
                nodes.append(helper.make_node("Sign", [p], [f"a{k}"]))
                nodes.append(helper.make_node("MatMul", [f"a{k}", q], [y]))
            case _:
                nodes.append(helper.make_node(operator, [p, q] if operator in _BINARY else [p], [y]))
        names.append(y)
    return [*nodes, helper.make_node("Identity", [names[-1]], ["r"])]


@FEW
@given(st.data())
def test_constant_nodes_are_folded(data: st.DataObject) -> None:
    """Against the same nodes over constants that come in at run time: to 1e-6, for sums in another order."""
    nodes = [*constant_chain(data, data.draw(st.integers(1, 6))), helper.make_node("Sub", ["x", "r"], ["y"])]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = {"x": whole_numbers(rng, 3, 3)}
    fixed = {"rows": np.array([4, 0, 2]), "low": np.array(-3, np.float32), "high": np.array(3, np.float32)}
    loose = {"k0": whole_numbers(rng, 3, 3), "k1": whole_numbers(rng, 3, 3)}
    folded, _ = chain_model(nodes, x, ["y"], constants={**fixed, **loose})
    kept, arrays = chain_model(nodes, {**x, **loose}, ["y"], constants=fixed)
    assert operators(folded) == ["Sub"]
    same(run_model(folded, x), run_model(kept, arrays), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_])
def test_constants_of_every_kind_are_folded(dtype: type) -> None:
    tensor = onnx.numpy_helper.from_array(np.array([1]).astype(dtype))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=tensor),
        helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(np.ones((2, 3), dtype))),
        helper.make_node("Cast", ["x"], ["c"], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
        helper.make_node("Equal", ["ones", "k"], ["e"]),
        helper.make_node("Where", ["e", "c", "k"], ["y"]),
    ]
    model, arrays = chain_model(nodes, {"x": np.eye(2, 3, dtype=np.int8)}, ["y"],
                                constants={"shape": np.array([2, 3])}, opset=19)  # fmt: skip
    assert operators(model) == ["Cast", "Where"]
    same(run_model(model, arrays), {"y": np.eye(2, 3).astype(dtype)})


_OLD = np.random.default_rng(9).normal(size=(1, 3, 4, 1)).astype(np.float32)
_OLD_FORMS: dict[str, tuple[str, int, list[np.ndarray], dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = {
    "Squeeze of one axis": ("Squeeze", 6, [], {"axes": [0]}, lambda x: x[0]),
    "Squeeze of the last": ("Squeeze", 11, [], {"axes": [-1]}, lambda x: x[..., 0]),
    "Unsqueeze": ("Unsqueeze", 9, [], {"axes": [1, 3]}, lambda x: x[:, None, :, None]),
    "Softmax": ("Softmax", 11, [], {"axis": 1}, lambda x: np.exp(x) / np.exp(x).sum((1, 2, 3), keepdims=True)),
    "LogSoftmax": ("LogSoftmax", 11, [], {"axis": 2},
                   lambda x: x - np.log(np.exp(x).sum((2, 3), keepdims=True))),
    "Hardmax": ("Hardmax", 11, [], {"axis": 1}, lambda x: (x == x.max((1, 2, 3), keepdims=True)).astype(np.float32)),
    "Hardmax of nothing": ("Hardmax", 11, [], {"axis": 4}, np.ones_like),
    "ReduceSum": ("ReduceSum", 11, [], {"axes": [1], "keepdims": 0}, lambda x: x.sum(1)),
    "ReduceMax": ("ReduceMax", 11, [], {"axes": [1, -2]}, lambda x: x.max((1, 2), keepdims=True)),
    "ReduceMean": ("ReduceMean", 13, [], {"axes": [2], "keepdims": 0}, lambda x: x.mean(2)),
    "Slice": ("Slice", 9, [], {"starts": [1, -3], "ends": [99, -1], "axes": [1, 2]}, lambda x: x[:, 1:, -3:-1]),
    "Pad": ("Pad", 10, [], {"pads": [0, 1, 0, 0, 0, 0, 2, 0], "value": 3.0},
            lambda x: np.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0)), constant_values=3)),
    "Clip": ("Clip", 6, [], {"min": -0.5, "max": 0.25}, lambda x: np.clip(x, -0.5, 0.25)),
    "TopK": ("TopK", 9, [], {"k": 2, "axis": 2}, lambda x: -np.sort(-x, 2)[:, :, :2]),
    "Upsample": ("Upsample", 7, [], {"scales": [1.0, 2.0, 1.0, 3.0]}, lambda x: x.repeat(2, 1).repeat(3, 3)),
    "Cast": ("Cast", 9, [], {"to": 6}, lambda x: x.astype(np.int32)),
    "Add along an axis": ("Add", 6, [np.arange(3, dtype=np.float32)], {"broadcast": 1, "axis": 1},
                          lambda x: x + np.arange(3, dtype=np.float32)[:, None, None]),
    "Gemm": ("Gemm", 6, [np.ones((4, 2), np.float32), np.ones(2, np.float32)], {"broadcast": 1},
             lambda x: x[0, :, :, 0] @ np.ones((4, 2), np.float32) + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", _OLD_FORMS)
def test_old_forms_mean_the_same_folded_and_not(name: str) -> None:
    """Of an operator whose attributes became inputs, or whose axis meant something else; to 1e-6."""
    operator, opset, others, attributes, function = _OLD_FORMS[name]
    x, count = _OLD[0, :, :, 0] if operator == "Gemm" else _OLD, 2 if operator == "TopK" else 1
    want = {"y0": function(_OLD)}
    loose = [()] if operator == "Add" else []
    for constant in (*loose, range(1, 1 + len(others)), range(1 + len(others))):
        model, arrays = node_model(operator, [x, *others], opset=opset, constant=constant, outputs=count, **attributes)
        if len(constant) > len(others):
            assert set(operators(model)) <= {"Identity"}
        same({"y0": run_model(model, arrays)["y0"]}, want, 1e-6)


# -- shapes ----------------------------------------------------------------------------------------------------------


@FEW
@given(st.data())
def test_shape_subgraphs_are_folded(data: st.DataObject) -> None:
    """Shapes taken apart, reckoned with and put together again: only the nodes that use them stay. Exactly."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Shape", ["a"], ["s"])]
    match data.draw(st.sampled_from(["gather", "slice", "attributes", "split"])):
        case "gather":
            nodes += [helper.make_node("Gather", ["s", "axis"], ["g"])]
            nodes += [helper.make_node("Unsqueeze", ["g", "zero"], ["e"])]
        case "slice":
            nodes += [helper.make_node("Slice", ["s", "axis1", "after"], ["e"])]
        case "attributes":
            nodes += [helper.make_node("Shape", ["a"], ["e"], start=axis, end=axis + 1 or None)]
        case _:
            parts = [f"p{k}" for k in range(len(shape))]
            nodes += [helper.make_node("Split", ["s", "each"], parts)]
            nodes += [helper.make_node("Identity", [parts[axis]], ["e"])]
    nodes += [
        helper.make_node("Size", ["a"], ["n"]),
        helper.make_node("Mul", ["e", "two"], ["twice"]),
        helper.make_node("Div", ["twice", "two"], ["half"]),
        helper.make_node("Div", ["n", "half"], ["rest"]),
        helper.make_node("Concat", ["half", "rest"], ["both"], axis=0),
        helper.make_node("Reshape", ["a", "both"], ["b"]),
        helper.make_node("ConstantOfShape", ["both"], ["o"]),
        helper.make_node("Concat", ["one", "both"], ["wide"], axis=0),
        helper.make_node("Sub", ["b", "o"], ["d"]),
        helper.make_node("Expand", ["d", "wide"], ["y"]),
    ]
    constants = {
        "axis": np.array(axis), "axis1": np.array([axis]), "after": np.array([axis + 1 or 99]), "zero": np.array([0]),
        "two": np.array([2]), "one": np.array([3]), "each": np.ones(len(shape), np.int64),
    }  # fmt: skip
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    model, arrays = chain_model(nodes, {"x": x}, ["y"], constants=constants)
    graph = from_onnx(model)
    assert set(n.operator for n in graph.nodes) <= {"Relu", "Reshape", "Sub", "Expand"}
    assert not any(a.dtype.kind == "i" for a in graph.constants.values())
    want = x.reshape(shape[axis], -1)
    same(run_graph(graph, arrays), {"y": np.broadcast_to(want, (3, *want.shape))})


# -- batch normalisation ---------------------------------------------------------------------------------------------


@settings(FEW, max_examples=15)
@given(st.data())
def test_batch_norm_goes_into_the_convolution(data: st.DataObject) -> None:
    """Against the convolution that is an output too, which is left alone: to 1e-5 sqrt(products of an element)."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    spatial, group = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([1, 2]))
    inner, outer = data.draw(st.integers(1, 3)), group * data.draw(st.integers(1, 3))
    kernel = data.draw(st.integers(1, 3))
    opset = data.draw(st.sampled_from([8, 9, 13, 14, 15]))
    inputs = ["x", "w", "b"] if data.draw(st.booleans()) else ["x", "w"]
    nodes = [
        helper.make_node("Conv", inputs, ["c"], group=group, pads=[1] * (2 * spatial)),
        helper.make_node("BatchNormalization", ["c", *"somv"], ["n"], epsilon=data.draw(st.sampled_from([1e-5, 0.1]))),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    constants = {n: rng.normal(size=outer).astype(np.float32) for n in "bsom"}
    constants |= {"v": rng.uniform(0.01, 4, outer).astype(np.float32)}
    constants |= {"w": rng.normal(size=(outer, inner, *[kernel] * spatial)).astype(np.float32)}
    constants = {n: a for n, a in constants.items() if n in {i for node in nodes for i in node.input}}
    x = {"x": rng.normal(size=(2, group * inner, *[5] * spatial)).astype(np.float32)}
    merged, _ = chain_model(nodes, x, ["y"], constants=constants, opset=opset)
    apart, arrays = chain_model(nodes, x, ["y", "c"], constants=constants, opset=opset)
    assert operators(merged) == ["Conv", "Relu"]
    assert operators(apart) == ["Conv", "BatchNormalization", "Relu"]
    want = run_model(apart, arrays)
    same(run_model(merged, arrays), {"y": want["y"]}, 1e-5 * float(np.sqrt(inner * kernel**spatial)))


@pytest.mark.parametrize("how", ["statistics at run time", "weights at run time", "training", "two readers", "no Conv"])
def test_where_batch_norm_stays(how: str) -> None:
    rng = np.random.default_rng(2)
    conv = helper.make_node("ConvTranspose" if how == "no Conv" else "Conv", ["x", "w"], ["c"])
    training: dict[str, Any] = {"training_mode": 1} if how == "training" else {}
    outputs = ["n", "m2", "v2"] if training else ["n"]
    nodes = [conv, helper.make_node("BatchNormalization", ["c", *"somv"], outputs, **training)]
    nodes += [helper.make_node("Add", ["n", "c" if how == "two readers" else "n"], ["y"])]
    constants = {n: rng.uniform(0.5, 2, 3).astype(np.float32) for n in "somv"}
    constants["w"] = rng.normal(size=(3, 3, 3, 3)).astype(np.float32)
    loose = {"statistics at run time": "m", "weights at run time": "w"}.get(how, "")
    inputs = {"x": rng.normal(size=(1, 3, 6, 6)).astype(np.float32)} | ({loose: constants.pop(loose)} if loose else {})
    model, arrays = chain_model(nodes, inputs, ["y"], constants=constants, opset=15)
    assert "BatchNormalization" in operators(model)
    same(run_model(model, arrays), reference(model, arrays), 1e-4)


# -- identities ------------------------------------------------------------------------------------------------------

_SHAPE = (2, 3, 4)
_IDENTITIES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "Identity": ("Identity", [], {}),
    "Dropout": ("Dropout", [], {}),
    "Cast to its own dtype": ("Cast", [], {"to": 1}),
    "CastLike": ("CastLike", [np.zeros(1, np.float32)], {}),
    "Concat of one": ("Concat", [], {"axis": 1}),
    "Sum of one": ("Sum", [], {}),
    "Max of one": ("Max", [], {}),
    "Min of one": ("Min", [], {}),
    "Clip without bounds": ("Clip", [], {}),
    "Slice of all": ("Slice", [np.array([0, -4]), np.array([99, 2**62]), np.array([1, 2])], {}),
    "Reshape to its own shape": ("Reshape", [np.array([2, -1, 4])], {}),
    "Expand to its own shape": ("Expand", [np.array([3, 1])], {}),
    "Transpose of nothing": ("Transpose", [], {"perm": [0, 1, 2]}),
    "Squeeze of no axes": ("Squeeze", [np.array([], np.int64)], {}),
    "Unsqueeze of no axes": ("Unsqueeze", [np.array([], np.int64)], {}),
    "ReduceSum of no axes": ("ReduceSum", [np.array([], np.int64)], {"noop_with_empty_axes": 1}),
    "ReduceMax of no axes": ("ReduceMax", [np.array([], np.int64)], {"noop_with_empty_axes": 1}),
    "ReduceMean of no axes": ("ReduceMean", [np.array([], np.int64)], {"noop_with_empty_axes": 1}),
    "Resize by 1": ("Resize", [np.zeros(0, np.float32), np.ones(3, np.float32)], {"mode": "linear"}),
}


def identities(names: Sequence[str]) -> tuple[Nodes, Arrays]:
    """Nodes from `a` to `b` that change nothing, and their constants."""
    nodes, constants, last = Nodes(), Arrays(), "a"
    for k, name in enumerate(names):
        operator, operands, attributes = _IDENTITIES[name]
        given = {f"o{k}_{j}": a for j, a in enumerate(operands)}
        constants |= given
        nodes.append(helper.make_node(operator, [last, *given], [f"i{k}"], **attributes))
        last = f"i{k}"
    return [*nodes, helper.make_node("Identity", [last], ["b"])], constants


def check_identities(names: Sequence[str]) -> None:
    nodes, constants = identities(names)
    ends = helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Softmax", ["b"], ["y"], axis=1)
    x = {"x": np.random.default_rng(3).normal(size=_SHAPE).astype(np.float32)}
    model, arrays = chain_model([ends[0], *nodes, ends[1]], x, ["y"], constants=constants, opset=18)
    without, _ = chain_model([ends[0], helper.make_node("Softmax", ["a"], ["y"], axis=1)], x, ["y"], opset=18)
    assert operators(model) == ["Exp", "Softmax"]
    same(run_model(model, arrays), run_model(without, arrays))


@pytest.mark.parametrize("name", _IDENTITIES)
def test_what_changes_nothing_vanishes(name: str) -> None:
    check_identities([name])


@FEW
@given(st.lists(st.sampled_from(sorted(_IDENTITIES)), min_size=2, max_size=6))
def test_chains_that_change_nothing_vanish(names: list[str]) -> None:
    check_identities(names)


# -- common subexpressions and dead nodes ----------------------------------------------------------------------------


def random_nodes(data: st.DataObject, count: int) -> Nodes:
    """A graph over x and z of [3, 4]; no two of its nodes compute the same."""
    names, nodes, known = ["x", "z"], Nodes(), set[tuple[object, ...]]()
    for k in range(count):
        operator = data.draw(st.sampled_from(["Exp", "Softmax", "Sub", "Max", "Relu"]))
        p, q = (data.draw(st.sampled_from(names)) for _ in range(2))
        attributes: dict[str, Any] = {"axis": data.draw(st.integers(0, 1))} if operator == "Softmax" else {}
        operands = [p, q] if operator in ("Sub", "Max") else [p]
        key = (operator, *operands, *attributes.values())
        if key not in known and not (operator == "Exp" and p not in ("x", "z")):
            known.add(key)
            nodes.append(helper.make_node(operator, operands, [f"t{k}"], **attributes))
            names.append(f"t{k}")
    return nodes or [helper.make_node("Relu", ["x"], ["t0"])]


def inputs_of_two() -> Arrays:
    rng = np.random.default_rng(4)
    return {n: rng.normal(size=(3, 4)).astype(np.float32) for n in "xz"}


@FEW
@given(st.data())
def test_common_subexpressions_are_computed_once(data: st.DataObject) -> None:
    """Any node twice, under another name, readers of both: as many statements as without, and exactly its values."""
    nodes, twice = random_nodes(data, data.draw(st.integers(2, 8))), Nodes()
    other: dict[str, str] = {}
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [data.draw(st.sampled_from([i, other.get(i, i)])) for i in node.input]
        twice.append(copy)
        if data.draw(st.booleans()):
            second = onnx.NodeProto()
            second.CopyFrom(node)
            second.output[0] = other[node.output[0]] = f"{node.output[0]}_again"
            twice.append(second)
    wanted = list(dict.fromkeys([nodes[-1].output[0], data.draw(st.sampled_from([n.output[0] for n in nodes]))]))
    once, arrays = chain_model(nodes, inputs_of_two(), wanted)
    model, _ = chain_model(twice, arrays, wanted)
    assert operators(model) == operators(once)
    same(run_model(model, arrays), run_model(once, arrays))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("Softmax", ["x"], {"axis": 0}), ("Softmax", ["x"], {"axis": 1})),
        (("Sub", ["x", "z"], {}), ("Sub", ["z", "x"], {})),
        (("Elu", ["x"], {"alpha": 1.0}), ("Elu", ["x"], {"alpha": 1.5})),
    ],
)
def test_what_differs_is_computed_twice(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    nodes = [helper.make_node(o, i, [y], **a) for (o, i, a), y in ((first, "p"), (second, "q"))]
    model, arrays = chain_model([*nodes, helper.make_node("Sub", ["p", "q"], ["y"])], inputs_of_two(), ["y"])
    assert operators(model) == [first[0], second[0], "Sub"]
    same(run_model(model, arrays), reference(model, arrays), 1e-5)


def test_random_nodes_are_no_common_subexpressions() -> None:
    nodes = [helper.make_node("RandomUniformLike", ["x"], [y]) for y in "pq"]
    model, _ = chain_model([*nodes, helper.make_node("Sub", ["p", "q"], ["y"])], inputs_of_two(), ["y"])
    assert operators(model) == ["RandomUniformLike", "RandomUniformLike", "Sub"]


@FEW
@given(st.data())
def test_dead_nodes_vanish(data: st.DataObject) -> None:
    """Nodes that no output needs, and the constants that only they read. Exactly."""
    nodes, last = random_nodes(data, data.draw(st.integers(1, 6))), ""
    alive, dead = list(nodes), Nodes()
    for k in range(data.draw(st.integers(1, 5))):
        source = last or data.draw(st.sampled_from(["x", *(n.output[0] for n in nodes)]))
        last = f"d{k}" if data.draw(st.booleans()) else ""
        dead.append(helper.make_node("Mul", [source, "k"], [f"d{k}"]))
    wanted = [n.output[0] for n in alive]
    mixed = [*alive]
    for node in dead:  # behind what it reads
        ready = {n.output[0]: k + 1 for k, n in enumerate(mixed)}
        mixed.insert(data.draw(st.integers(ready.get(node.input[0], 0), len(mixed))), node)
    without, arrays = chain_model(alive, inputs_of_two(), wanted)
    constants = {"k": np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)}
    model, _ = chain_model(mixed, arrays, wanted, constants=constants)
    assert operators(model) == operators(without) and not from_onnx(model).constants
    same(run_model(model, arrays), run_model(without, arrays))


# -- branches, function bodies, literals -----------------------------------------------------------------------------


def graph_of(nodes: Nodes, output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(output)])


@FEW
@given(st.data())
def test_a_known_branch_takes_the_place_of_its_if(data: st.DataObject) -> None:
    """Both branches have the same inner names, and one If is inside the other. Exactly the nodes of the branch."""
    chosen = data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    inner = [random_nodes(data, 3) for _ in range(2)]
    branches = [graph_of(nodes, nodes[-1].output[0]) for nodes in inner]
    nested = [helper.make_node("If", ["c1"], ["v"], then_branch=branches[0], else_branch=branches[1])]
    other = [helper.make_node("Neg", ["x"], ["t0"]), helper.make_node("Abs", ["t0"], ["v"])]
    outer = helper.make_node("If", ["c0"], ["u"], then_branch=graph_of(nested, "v"), else_branch=graph_of(other, "v"))
    conditions = {f"c{k}": np.array(c) for k, c in enumerate(chosen)}
    model, arrays = chain_model([outer, helper.make_node("Sub", ["u", "z"], ["y"])], inputs_of_two(), ["y"],
                                constants=conditions)  # fmt: skip
    straight = inner[not chosen[1]] if chosen[0] else other
    last = helper.make_node("Sub", [straight[-1].output[0], "z"], ["y"])
    plain, _ = chain_model([*straight, last], arrays, ["y"])
    assert operators(model) == operators(plain)
    same(run_model(model, arrays), run_model(plain, arrays))


_BLOCK = np.random.default_rng(8).normal(size=(2, 4, 6)).astype(np.float32)
_BODIES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "Swish": ("Swish", [_BLOCK], {"opset": 24, "alpha": 1.5}),
    "SoftmaxCrossEntropyLoss": ("SoftmaxCrossEntropyLoss", [_BLOCK[0], np.array([0, 5, 2, 2])], {"opset": 13}),
    "Attention": ("Attention", [_BLOCK[:, None], _BLOCK[:, None] + 1, _BLOCK[:, None] - 1], {"opset": 23}),
}  # fmt: skip


@pytest.mark.parametrize("name", _BODIES)
def test_a_function_body_takes_the_place_of_its_operator(name: str) -> None:
    operator, inputs, options = _BODIES[name]
    model, arrays = node_model(operator, inputs, **options)
    assert [f.fate for f in survey_onnx(model, {}, {}).fates] == ["expanded"]
    same(run_model(model, arrays), reference(model, arrays), 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, -0.5])
def test_a_power_by_a_small_constant_is_products_and_roots(exponent: float, dtype: type) -> None:
    """Against the power by an exponent of run time: to 4 units in the last place."""
    x = np.abs(np.random.default_rng(6).normal(size=(5, 7))).astype(dtype) + dtype(0.01)
    fixed, arrays = node_model("Pow", [x, dtype(exponent)], constant=[1])
    free, both = node_model("Pow", [x, dtype(exponent)])

    def uses_pow(model: onnx.ModelProto) -> bool:
        return any("pow(" in str(s) for s in str(from_onnx(model).to_program()).splitlines())

    assert uses_pow(free) and not uses_pow(fixed)
    same(run_model(fixed, arrays), run_model(free, both), 4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, -0.5])
def test_a_power_by_a_small_constant_of_zeros_and_infinities(exponent: float, dtype: type) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 4, -4] * 3, dtype)
    model, arrays = node_model("Pow", [x, dtype(exponent)], constant=[1])
    with np.errstate(all="ignore"):
        want = np.power(x, np.full_like(x, exponent))
    for found in (run_model(model, arrays), compile_model(from_onnx(model)).run(arrays)):
        np.testing.assert_array_equal(found["y0"], want)
        np.testing.assert_array_equal(np.signbit(found["y0"][:4]), np.signbit(want[:4]))


_LITERALS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add, "Mul": np.multiply, "Max": np.maximum, "Div": np.divide,
}  # fmt: skip


@FEW
@given(st.sampled_from(sorted(_LITERALS)), st.integers(0, 2), st.integers(1, 9))
def test_a_constant_of_one_element_becomes_a_literal(operator: str, rank: int, value: int) -> None:
    """No tensor is left of it; exactly what the tensor gives."""
    x, k = np.arange(12, dtype=np.float32).reshape(3, 4), np.full([1] * rank, value / 3, np.float32)
    fixed, arrays = node_model(operator, [x, k], constant=[1])
    free, both = node_model(operator, [x, k])
    assert not from_onnx(fixed).constants
    same(run_model(fixed, arrays), run_model(free, both))
    same(run_model(fixed, arrays), {"y0": _LITERALS[operator](x, k)})
