"""If, Loop, Scan and sequences in odd shapes, against onnx.reference, or against numpy where that has no such form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.checking import onnx_reference
from poly.errors import OnnxError, UnsupportedError
from tests.onnx_helpers import assert_close, reference, run_model

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
Feeds = Sequence[Mapping[str, np.ndarray]]


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Names by words; `-` is an input that is left out."""
    return helper.make_node(operator, ["" if i == "-" else i for i in inputs.split()], outputs.split(), **attributes)


def info(name: str, kind: int = F, shape: Sequence[int | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: str,
    **constants: np.ndarray | np.generic,
) -> onnx.GraphProto:
    results = [helper.make_empty_tensor_value_info(o) for o in outputs.split()]
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    return helper.make_graph(list(nodes), "g", list(inputs), results, arrays)


def model(whole: onnx.GraphProto, opset: int = 21) -> onnx.ModelProto:
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def both(n: int) -> list[dict[str, np.ndarray]]:
    """Every combination of n conditions c0, c1, ... beside x."""
    return [{"x": X, **{f"c{k}": np.array(bool(m >> k & 1)) for k in range(n)}} for m in range(1 << n)]


TURN = [info("turn", INT, []), info("on", B, [])]
GO = np.array(True)


def cases() -> dict[str, tuple[onnx.ModelProto, Feeds]]:
    found: dict[str, tuple[onnx.ModelProto, Feeds]] = {}
    state = info("a", F, [3])
    inner = graph(
        [node("Cast", "turn", "t", to=F), node("Mul", "t w", "p"), node("Add", "b p", "b1"),
         node("Identity", "o2", "o3")],
        [info("turn2", INT, []), info("o2", B, []), info("b", F, [3])], "o3 b1",
    )  # fmt: skip
    outer = graph(
        [node("Loop", "k go a", "a1", body=inner), node("Identity", "on", "on1"), node("Identity", "a1", "row")],
        [*TURN, state], "on1 a1 row", k=np.array(2), go=GO,
    )  # fmt: skip
    nested = [node("Neg", "x", "w"), node("Loop", "n go x", "y rows", body=outer)]
    whole = graph(nested, [info("x", F, [3]), info("n", INT, [])], "y rows", go=GO)
    found["a loop in a loop that reads the outer turn"] = model(whole), [{"x": X[0], "n": np.array(3)}]

    grow = graph([node("Concat", "a x", "a1", axis=0), node("Identity", "on", "on1")],
                 [*TURN, info("a", F, [None, 3])], "on1 a1")  # fmt: skip
    whole = graph([node("Loop", "n go x", "y", body=grow), node("Shape", "y", "s")],
                  [info("x", F, [None, 3]), info("n", INT, [])], "y s", go=GO)  # fmt: skip
    found["a loop whose state grows"] = model(whole), [{"x": X[:2], "n": np.array(k)} for k in (0, 1, 4)]

    one, five = np.float32(1), np.float32(5)
    stop = graph([node("Add", "a one", "a1"), node("Less", "a1 five", "on1")], [*TURN, info("a", F, [])], "on1 a1",
                 one=one, five=five)  # fmt: skip
    whole = graph([node("Loop", "n c a", "y", body=stop)],
                  [info("n", INT, []), info("c", B, []), info("a", F, [])], "y")  # fmt: skip
    found["a loop that stops itself"] = model(whole), [
        {"a": np.array(0, np.float32), "n": np.array(n), "c": np.array(c)}
        for n, c in ((100, True), (3, True), (3, False))
    ]

    branches = {
        "then_branch": graph([node("Neg", "x", "t"), node("Add", "t x", "u")], [], "u"),
        "else_branch": graph([node("Abs", "x", "t"), node("Mul", "t x", "u")], [], "u"),
    }
    twice = [node("If", "c0", "y", **branches), node("If", "c1", "z", **branches), node("Sub", "y z", "w")]
    flags = [info("c0", B, []), info("c1", B, [])]
    found["branches with the same names"] = model(graph(twice, [info("x", F, [4, 3]), *flags], "w")), both(2)
    for first in (True, False):
        known = graph(twice, [info("x", F, [4, 3])], "w", c0=np.array(first), c1=np.array(True))
        found[f"known branches with the same names, {first}"] = model(known), [{"x": X}]

    deep = graph([node("Exp", "x", "p"), node("If", "c1", "m", then_branch=graph([node("Add", "x p", "k")], [], "k"),
                                             else_branch=graph([node("Identity", "p", "l")], [], "l"))], [], "m")
    other = graph([node("Concat", "x x", "v", axis=0)], [], "v")
    whole = graph([node("If", "c0", "y", then_branch=deep, else_branch=other), node("Neg", "y", "z")],
                  [info("x", F, [4, 3]), *flags], "z")  # fmt: skip
    found["branches of other shapes, one in another"] = model(whole), both(2)

    fixed = graph([], [], "k", k=X[0]), graph([node("Constant", "", "l", value=numpy_helper.from_array(X[1]))], [], "l")
    whole = graph([node("If", "c0", "y", then_branch=fixed[0], else_branch=fixed[1])], [info("c0", B, [])], "y")
    found["branches without nodes"] = model(whole), [{"c0": np.array(c)} for c in (True, False)]

    collect = graph([node("Cast", "turn", "t", to=F), node("Mul", "x t", "p"), node("SequenceInsert", "s p", "s1"),
                     node("Identity", "on", "on1")],
                    [*TURN, helper.make_tensor_sequence_value_info("s", F, None)], "on1 s1")  # fmt: skip
    whole = graph([node("SequenceEmpty", "", "e", dtype=F), node("Loop", "n go e", "s", body=collect),
                   node("ConcatFromSequence", "s", "y", axis=0)],
                  [info("x", F, [4, 3]), info("n", INT, [])], "y", go=GO)  # fmt: skip
    found["a loop that makes a sequence"] = model(whole), [{"x": X, "n": np.array(n)} for n in (1, 3)]

    places = [node("Greater", "x zero", "g"), node("NonZero", "g", "n"), node("Transpose", "n", "i"),
              node("GatherND", "x i", "v"), node("ReduceSum", "v", "s", keepdims=0), node("Size", "v", "c")]
    whole = graph(places, [info("x", F, [4, 3])], "v s c", zero=np.float32(0))
    found["as many elements as are positive"] = model(whole), [{"x": v} for v in (X, np.abs(X), -np.abs(X))]
    return {**found, **known_turns()}


def known_turns() -> dict[str, tuple[onnx.ModelProto, Feeds]]:
    """Loops and scans that are compiled as one loop."""
    found: dict[str, tuple[onnx.ModelProto, Feeds]] = {}
    x, four = [info("x", F, [4, 3])], {"n": np.array(4), "go": GO}
    a, b = info("a", F, [3]), info("b", F, [3])
    first = helper.make_tensor("r", INT, [], [1])

    def add(name: str, nodes: Sequence[onnx.NodeProto], outputs: str, **constants: np.ndarray | np.generic) -> None:
        found[name] = model(graph(nodes, x, outputs, **four, **constants)), [{"x": X}]

    row = node("Constant", "", "r", value=first), node("Gather", "x r", "u")
    double = graph([node("Add", "a a", "a1"), node("Identity", "on", "on1")], [*TURN, a], "on1 a1")
    add("two loops with the same names", [*row, node("Loop", "n go u", "y", body=double),
                                          node("Loop", "n go y", "z", body=double)], "y z")  # fmt: skip

    swap = graph([node("Identity", "on", "on1")], [*TURN, a, b, info("c", F, [3])], "on1 b a c a u")
    add("states that are swapped and kept", [*row, node("Neg", "u", "v"), node("Loop", "n go u v u", "p q r1 s xs",
                                                                               body=swap)], "p q r1 s xs")  # fmt: skip

    mixed = graph(
        [node("Gather", "x turn", "xt"), node("Exp", "xt", "e"), node("Sin", "x", "w"),
         node("ReduceSum", "w", "k", keepdims=0), node("Mul", "a k", "m"), node("Add", "m e", "a1"),
         node("Tanh", "a1", "o"), node("Sqrt", "e", "f"), node("Identity", "on", "on1")],
        [*TURN, a], "on1 a1 o f",
    )  # fmt: skip
    add("nodes before, between and after states", [*row, node("Loop", "n go u", "y os fs", body=mixed)], "y os fs")

    inner = graph([node("MatMul", "s w", "p"), node("Add", "p v", "q")], [info("s", F, [3]), info("v", F, [3])], "q p")
    outer = graph(
        [node("Scan", "a x", "a1 ps", body=inner, num_scan_inputs=1),
         node("ReduceMax", "ps zero", "top", keepdims=0), node("Identity", "on", "on1")], [*TURN, a], "on1 a1 top",
    )  # fmt: skip
    add("a scan in a loop, with products", [*row, node("Loop", "n go u", "y tops ws", body=outer)], "y tops",
        w=np.eye(3, dtype=np.float32)[::-1] / 2, zero=np.array([0]))  # fmt: skip

    average = graph([node("AveragePool", "a", "p", kernel_shape=[3], pads=[1, 1]), node("CumSum", "p axis", "c"),
                     node("Softmax", "c", "a1", axis=-1), node("Reshape", "c flat", "d"),
                     node("Identity", "on", "on1")],
                    [*TURN, info("a", F, [1, 4, 3])], "on1 a1 d", axis=np.array(1), flat=np.array([-1]))  # fmt: skip
    add("operators of several statements", [node("Unsqueeze", "x zero", "u"), node("Loop", "n go u", "y cs",
                                                                                    body=average)], "y cs",
        zero=np.array([0]))  # fmt: skip
    return found


CASES = cases()


@pytest.mark.filterwarnings("ignore::poly.errors.FallbackWarning")
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference_evaluator(name: str) -> None:
    proto, feeds = CASES[name]
    engine = poly.compile(proto)
    for feed in feeds:
        found, want = engine.run(dict(feed)), reference(proto, feed)
        for key, array in want.items():
            have = np.asarray(found[key])
            assert (have.shape, have.dtype) == (array.shape, array.dtype)
            np.testing.assert_allclose(have, array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", known_turns())
def test_known_turns_are_one_graph(name: str) -> None:
    proto, (feed,) = CASES[name]
    assert_close(run_model(proto, feed), reference(proto, feed))


def test_turns_with_many_values_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, (feed,) = CASES["nodes before, between and after states"]
    monkeypatch.setattr("poly.frontend.onnx_turns.MOST_ELEMENTS", 50)
    engine = poly.compile(proto)
    for key, array in reference(proto, feed).items():
        np.testing.assert_allclose(np.asarray(engine.run(dict(feed))[key]), array, rtol=1e-5, atol=1e-6)
    assert "its body compiled" in str(engine)


def test_a_loop_without_a_count_stacks_numbers() -> None:
    """The evaluator gives such rows one axis too many: ONNX stacks n scalars to [n]."""
    body = graph([node("Cast", "turn", "t", to=F), node("Mul", "t t", "o"), node("Less", "turn three", "on1")], TURN,
                 "on1 o", three=np.array(3))  # fmt: skip
    proto = model(graph([node("Loop", "- go", "rows", body=body)], [], "rows", go=GO))
    np.testing.assert_array_equal(poly.compile(proto).run({})["rows"], np.array([0, 1, 4, 9], np.float32))


@pytest.mark.parametrize("axes", [(0, 1, 1), (0, -1, 0)])
@pytest.mark.parametrize("flips", [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0)])
def test_a_scan_in_any_direction_along_any_axis(flips: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Two scanned inputs, a state, a stacked vector and a stacked number; the evaluator goes forwards only."""
    body = graph([node("Add", "s u", "p"), node("Mul", "p v", "q"), node("Identity", "q", "o"),
                  node("ReduceSum", "p", "r", keepdims=0)],
                 [info(n, F, [3]) for n in "suv"], "q o r")  # fmt: skip
    scan = node("Scan", "z x t", "last rows sums", body=body, num_scan_inputs=2, scan_input_axes=axes[:2],
                scan_output_axes=[axes[2], 0], scan_input_directions=flips[:2], scan_output_directions=[flips[2], 0])
    proto = model(graph([scan], [info("z", F, [3]), info("x", F, [4, 3]), info("t", F, [3, 4])], "last rows sums"))
    us, vs = (X[::-1] if flip else X for flip in flips[:2])
    state, rows, sums = X[0], list[np.ndarray](), list[np.ndarray]()
    for u, v in zip(us, vs, strict=True):
        total = state + u
        state = total * v
        rows.append(state)
        sums.append(total.sum())
    found = poly.compile(proto).run({"z": X[0], "x": X, "t": np.ascontiguousarray(X.T)})
    want = np.moveaxis(np.stack(rows[::-1] if flips[2] else rows), 0, axes[2])
    for key, array in (("last", state), ("rows", want), ("sums", np.array(sums))):
        have = np.asarray(found[key])
        assert have.shape == array.shape
        np.testing.assert_allclose(have, array, rtol=1e-5)


def test_a_loop_without_a_static_graph_says_what_compiles_it() -> None:
    turn = graph([node("Add", "a a", "a1"), node("Identity", "on", "on1"), node("Identity", "a1", "row")],
                 [*TURN, info("a", F, [3])], "on1 a1 row")  # fmt: skip
    loop = model(graph([node("Loop", "n go x", "y rows", body=turn)], [info("x", F, [3]), info("n", INT, [])], "y rows",
                       go=GO))  # fmt: skip
    with pytest.raises(OnnxError, match=r"Loop.*the turns are only known(?s:.*)poly.compile\(model\) compiles at the"):
        poly.from_onnx(loop)
    none = {"x": np.ones(3, np.float32), "n": np.array(0)}
    assert len(np.asarray(poly.compile(loop).run(none)["rows"])) == 0
    with pytest.raises(UnsupportedError, match=r"where a Loop makes no turn\n  try: a trip count of 1"):
        onnx_reference(loop, none)
