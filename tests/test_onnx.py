"""ONNX operators one by one against onnx.reference, by the interpreter on what the operator table writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from poly.frontend.onnx_shapes import reshape_indices
from tests.onnx_helpers import Operand, assert_close, chain_model, node_model, reference, run_model

RNG = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.1, 2, shape).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ints(low: int, high: int, *shape: int, dtype: type = np.int64) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


UNARY = """
    Abs Ceil Celu Cos Elu Erf Exp Floor HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Neg Reciprocal Relu Round
    Selu Shrink Sigmoid Sign Sin Softplus Softsign Tanh ThresholdedRelu
""".split()


@pytest.mark.parametrize("operator", UNARY)
def test_unary(operator: str) -> None:
    check(operator, [f32(2, 3, 5)])


@pytest.mark.parametrize("operator", ["Log", "Sqrt"])
def test_unary_on_positive_values(operator: str) -> None:
    check(operator, [positive(2, 3, 5)])


@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (3, 1)), ((4,), (2, 1, 1)), ((), (2, 2)), ((1, 3), (2, 1))]
)
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"])
def test_arithmetic_broadcasts(operator: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(operator, [positive(*s) for s in shapes])


@pytest.mark.parametrize("operator", ["Add", "Mul", "Div", "Sub"])
def test_a_constant_scalar_becomes_a_literal(operator: str) -> None:
    model, _ = node_model(operator, [f32(2, 3), np.float32(3.5).reshape(())], constant=[1])
    from poly.frontend.onnx_import import from_onnx

    assert not from_onnx(model).constants
    check(operator, [f32(2, 3), np.float32(3.5).reshape(())], constant=[1])


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparison(operator: str) -> None:
    check(operator, [ints(0, 3, 4, 5), ints(0, 3, 5)])


@pytest.mark.parametrize("operator", ["And", "Or", "Xor"])
def test_logic(operator: str) -> None:
    check(operator, [flags(4, 5), flags(1, 5)])


CASES: dict[str, tuple[str, Sequence[Operand], dict[str, Any]]] = {
    "not": ("Not", [flags(3)], {}),
    "where": ("Where", [flags(3, 1), f32(3, 4), f32(4)], {}),
    "integer division": ("Div", [ints(1, 99, 20), ints(1, 9, 20)], {}),
    "modulo": ("Mod", [ints(-9, 9, 40), i64(4)], {}),
    "modulo of C": ("Mod", [ints(-9, 9, 40), i64(4)], {"fmod": 1}),
    "clip by inputs": ("Clip", [f32(4, 4), np.float32(-1).reshape(()), np.float32(0.5).reshape(())], {}),
    "clip above only": ("Clip", [f32(4, 4), None, np.float32(0.5).reshape(())], {}),
    "clip by attributes": ("Clip", [f32(4, 4)], {"min": -0.5, "max": 0.25, "opset": 6}),
    "clip by defaults": ("Clip", [np.array([-np.inf, 1, np.inf, np.nan], np.float32)], {"opset": 6}),
    "power": ("Pow", [positive(3, 4), f32(4)], {}),
    "square": ("Pow", [f32(3, 4), np.float32(2).reshape(())], {"constant": [1]}),
    "power of another type": ("Pow", [positive(3, 4), i64(1, 2, 3, 4)], {}),
    "prelu": ("PRelu", [f32(2, 3, 4), f32(3, 1)], {}),
    "gelu": ("Gelu", [f32(9)], {"opset": 20}),
    "gelu tanh": ("Gelu", [f32(9)], {"opset": 20, "approximate": "tanh"}),
    "mish": ("Mish", [f32(9)], {"opset": 18}),
    "cast to integer": ("Cast", [f32(3, 4)], {"to": TensorProto.INT64}),
    "cast to bool": ("Cast", [ints(-1, 2, 9)], {"to": TensorProto.BOOL}),
    "dropout": ("Dropout", [f32(3, 4)], {}),
    "quantise": ("QuantizeLinear", [f32(3, 4), np.float32(0.1).reshape(()), np.uint8(20).reshape(())], {"opset": 19}),
    "dequantise by axis": ("DequantizeLinear", [ints(0, 9, 2, 3, dtype=np.uint8), positive(3)],
                           {"opset": 19, "constant": [1]}),
    "reshape": ("Reshape", [f32(2, 3, 4), i64(4, -1)], {"constant": [1]}),
    "reshape keeps an extent": ("Reshape", [f32(2, 3, 4), i64(0, 2, -1)], {"constant": [1]}),
    "reshape without a common radix": ("Reshape", [f32(4, 6, 5), i64(6, 4, 5)], {"constant": [1]}),
    "flatten": ("Flatten", [f32(2, 3, 4)], {"axis": 2}),
    "flatten to a row": ("Flatten", [f32(2, 3, 4)], {"axis": 0}),
    "squeeze": ("Squeeze", [f32(1, 3, 1), i64(-1)], {"constant": [1]}),
    "squeeze all": ("Squeeze", [f32(1, 3, 1)], {"opset": 11}),
    "unsqueeze": ("Unsqueeze", [f32(3, 4), i64(0, -1)], {"constant": [1]}),
    "unsqueeze by attribute": ("Unsqueeze", [f32(3, 4)], {"axes": [1], "opset": 11}),
    "transpose": ("Transpose", [f32(2, 3, 4)], {"perm": [1, 2, 0]}),
    "transpose reversed": ("Transpose", [f32(2, 3, 4)], {}),
    "concat": ("Concat", [f32(2, 3), f32(2, 1), f32(2, 4)], {"axis": -1}),
    "depth to space": ("DepthToSpace", [f32(2, 8, 2, 3)], {"blocksize": 2}),
    "depth to space, columns": ("DepthToSpace", [f32(2, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    "space to depth": ("SpaceToDepth", [f32(2, 3, 4, 6)], {"blocksize": 2}),
    "slice": ("Slice", [f32(6, 7), i64(1, -5), i64(5, 7), i64(0, 1), i64(2, 1)], {"constant": [1, 2, 3, 4]}),
    "slice backwards": ("Slice", [f32(6, 7), i64(-1), i64(-(2**63)), i64(1), i64(-2)], {"constant": [1, 2, 3, 4]}),
    "slice by attributes": ("Slice", [f32(6, 7)], {"starts": [1], "ends": [100], "axes": [1], "opset": 9}),
    "slice to nothing": ("Slice", [f32(6, 7), i64(3), i64(3)], {"constant": [1, 2]}),
    "gather a scalar": ("Gather", [f32(3, 4), np.int64(-1).reshape(())], {"axis": 1, "constant": [1]}),
    "gather a progression": ("Gather", [f32(3, 8), i64(1, 3, 5)], {"axis": 1, "constant": [1]}),
    "gather constants": ("Gather", [f32(5, 3), np.array([[4, 0], [-2, 0]])], {"constant": [1]}),
    "gather at run time": ("Gather", [f32(5, 3), ints(-5, 5, 2, 3)], {}),
    "gather elements": ("GatherElements", [f32(4, 3), ints(-4, 4, 2, 3)], {}),
    "split": ("Split", [f32(2, 7), i64(3, 4)], {"axis": 1, "constant": [1], "outputs": 2}),
    "split evenly": ("Split", [f32(6, 2)], {"outputs": 3, "opset": 13}),
    "expand": ("Expand", [f32(3, 1), i64(2, 1, 4)], {"constant": [1]}),
    "tile": ("Tile", [f32(2, 3), i64(2, 3)], {"constant": [1]}),
    "pad": ("Pad", [f32(3, 4), i64(0, 2, 1, 3), np.float32(7).reshape(())], {"constant": [1, 2]}),
    "pad by a run-time value": ("Pad", [f32(3, 4), i64(0, 2, 1, 3), np.float32(7).reshape(())], {"constant": [1]}),
    "pad at the edge": ("Pad", [f32(3, 4), i64(0, 2, 1, 3)], {"mode": "edge", "constant": [1]}),
    "pad by reflection": ("Pad", [f32(3, 4), i64(2, 3, 1, 2)], {"mode": "reflect", "constant": [1]}),
    "pad by attributes": ("Pad", [f32(3, 4)], {"pads": [1, 1, 0, 0], "value": 2.0, "opset": 2}),
    "upper triangle": ("Trilu", [f32(2, 4, 5), np.int64(1).reshape(())], {"constant": [1]}),
    "lower triangle": ("Trilu", [ints(0, 9, 4, 5)], {"upper": 0}),
    "matmul": ("MatMul", [f32(3, 4), f32(4, 5)], {}),
    "matmul in batches": ("MatMul", [f32(2, 1, 3, 4), f32(5, 4, 2)], {}),
    "matmul of vectors": ("MatMul", [f32(4), f32(4)], {}),
    "matmul vector by matrices": ("MatMul", [f32(4), f32(2, 4, 3)], {}),
    "matmul of integers": ("MatMul", [ints(-9, 9, 3, 4), ints(-9, 9, 4, 5)], {}),
    "matmul of 8-bit integers": ("MatMulInteger", [ints(0, 255, 3, 4, dtype=np.uint8), ints(-9, 9, 4, 5, dtype=np.int8),
                                                   np.uint8(128).reshape(())], {}),
    "gemm": ("Gemm", [f32(3, 4), f32(4, 5), f32(5)], {}),
    "gemm scaled and transposed": ("Gemm", [f32(4, 3), f32(5, 4), f32(3, 1)],
                                   {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}),
    "einsum": ("Einsum", [f32(2, 3, 4), f32(2, 4, 5)], {"equation": "bij, bjk -> bik"}),
    "einsum with an ellipsis": ("Einsum", [f32(2, 1, 3, 4), f32(5, 4)], {"equation": "...ij,...j->...i"}),
    "einsum, implicit output": ("Einsum", [f32(3, 4), f32(5, 4)], {"equation": "bj,aj"}),
    "einsum trace": ("Einsum", [f32(4, 4)], {"equation": "ii->"}),
    "softmax": ("Softmax", [f32(2, 3, 4)], {"axis": 1}),
    "softmax of large values": ("Softmax", [f32(2, 3) * 500], {}),
    "log softmax": ("LogSoftmax", [f32(2, 3)], {}),
    "layer norm": ("LayerNormalization", [f32(2, 3, 4), f32(4), f32(4)], {"outputs": 3}),
    "layer norm over two axes": ("LayerNormalization", [f32(2, 3, 4), f32(3, 4)], {"axis": 1}),
    "instance norm": ("InstanceNormalization", [f32(2, 3, 4, 5), f32(3), f32(3)], {}),
    "batch norm": ("BatchNormalization", [f32(2, 3, 4), f32(3), f32(3), f32(3), positive(3)],
                   {"constant": [1, 2, 3, 4]}),
    "batch norm at run time": ("BatchNormalization", [f32(2, 3, 4), f32(3), f32(3), f32(3), positive(3)], {}),
    "conv": ("Conv", [f32(2, 3, 6, 7), f32(4, 3, 3, 2), f32(4)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "conv 1-D, dilated": ("Conv", [f32(2, 3, 9), f32(4, 3, 3)], {"dilations": [2], "pads": [2, 2]}),
    "conv 3-D": ("Conv", [f32(1, 2, 4, 5, 4), f32(3, 2, 2, 3, 1)], {"pads": [1, 1, 0, 0, 1, 0]}),
    "conv in groups": ("Conv", [f32(1, 4, 5, 5), f32(6, 2, 3, 3), f32(6)], {"group": 2}),
    "conv depthwise": ("Conv", [f32(1, 4, 5, 5), f32(4, 1, 3, 3), f32(4)], {"group": 4, "pads": [1, 1, 1, 1]}),
    "conv same": ("Conv", [f32(1, 2, 5, 6), f32(3, 2, 3, 4)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "conv same, lower": ("Conv", [f32(1, 2, 5, 6), f32(3, 2, 2, 4)], {"auto_pad": "SAME_LOWER"}),
    "conv transpose": ("ConvTranspose", [f32(1, 3, 4, 3), f32(3, 2, 3, 3), f32(2)],
                       {"strides": [2, 3], "pads": [1, 0, 1, 1], "output_padding": [1, 0]}),
    "conv transpose 1-D": ("ConvTranspose", [f32(2, 3, 4), f32(3, 2, 3)], {"dilations": [2]}),
    "max pool": ("MaxPool", [f32(1, 2, 6, 7)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "max pool, ceil": ("MaxPool", [f32(1, 2, 6, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "max pool, dilated": ("MaxPool", [f32(1, 2, 7, 7)], {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    "average pool": ("AveragePool", [f32(1, 2, 6, 7)], {"kernel_shape": [3, 2], "strides": [2, 2]}),
    "average pool, padded": ("AveragePool", [f32(1, 2, 5, 5)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "average pool, padding counts": ("AveragePool", [f32(1, 2, 5, 5)],
                                     {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    "average pool, ceil": ("AveragePool", [f32(1, 1, 6, 6)],
                           {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "opset": 19}),
    "global average pool": ("GlobalAveragePool", [f32(2, 3, 4, 5)], {}),
    "global max pool": ("GlobalMaxPool", [f32(2, 3, 4, 5)], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_operator(case: str) -> None:
    operator, inputs, options = CASES[case]
    check(operator, inputs, **options)


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"])
def test_reductions(name: str, keep: int) -> None:
    operator = f"Reduce{name}"
    check(operator, [positive(2, 3, 4), i64(0, -1)], constant=[1], keepdims=keep, opset=18)
    check(operator, [positive(2, 3, 4)], keepdims=keep, opset=18)
    if name != "Sum":
        check(operator, [positive(2, 3, 4)], axes=[1], keepdims=keep, opset=13)


@pytest.mark.parametrize(("name", "wanted"), [("L2", [5, 5]), ("LogSum", [1, 2]), ("LogSumExp", [4, 5])])
def test_reductions_of_integers_are_cut_to_integers(name: str, wanted: list[int]) -> None:
    """As ONNX Runtime has them; the reference evaluator knows only the first."""
    numbers = np.array([[3, 4, 0], [1, 2, 5]])
    model, given_arrays = node_model(f"Reduce{name}", [numbers], axes=[1], keepdims=0, opset=13)
    (found,) = run_model(model, given_arrays).values()
    np.testing.assert_array_equal(found, wanted)


def check(operator: str, inputs: Sequence[Operand], **options: Any) -> None:
    model, given_arrays = node_model(operator, inputs, **options)
    assert_close(run_model(model, given_arrays), reference(model, given_arrays), rtol=2e-5)


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_reshape_indices_keep_the_row_major_order(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([2, 3, 2, 5]), max_size=4))

    def shape() -> tuple[int, ...]:
        mixed = data.draw(st.permutations(factors))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(mixed)), max_size=3)))
        ends = [0, *cuts, len(mixed)]
        return tuple(int(np.prod(mixed[a:b], dtype=int)) for a, b in zip(ends, ends[1:], strict=False))

    source, target = shape(), shape()
    ranges, reads, writes = reshape_indices(source, target)
    grid = np.indices(tuple(ranges.values())).reshape(len(ranges), int(np.prod(list(ranges.values()))))
    values = dict(zip(ranges, grid, strict=True))

    def flat(index: list, extents: tuple[int, ...]) -> np.ndarray:
        at = np.zeros(grid.shape[1] if ranges else 1, np.int64)
        for expression, extent in zip(index, extents, strict=True):
            place = np.asarray(expression.evaluate(values))
            assert (place >= 0).all() and (place < extent).all()
            at = at * extent + place
        return at

    assert sorted(flat(writes, target)) == list(range(int(np.prod(target, dtype=int))))
    np.testing.assert_array_equal(flat(reads, source), flat(writes, target))


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_convolutions_of_random_attributes(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 2))
    group, each, inner = (data.draw(st.integers(1, 3)) for _ in range(3))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    options: dict[str, Any] = {
        "strides": [data.draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "pads": [data.draw(st.integers(0, 2)) for _ in range(2 * rank)],
        "group": group,
    }
    extents = [data.draw(st.integers(6, 8)) for _ in range(rank)]
    x, w = f32(2, group * inner, *extents), f32(group * each, inner, *kernel)
    bias = [f32(group * each)] if data.draw(st.booleans()) else []
    check("Conv", [x, w, *bias], **options)


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_pooling_of_random_attributes(data: st.DataObject) -> None:
    """The oracle is written out here: onnx.reference does not drop windows that begin in the right padding."""
    kernel, stride, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    before, after = data.draw(st.integers(0, kernel - 1)), data.draw(st.integers(0, kernel - 1))
    ceil, padded = data.draw(st.booleans()), data.draw(st.booleans())
    extent = data.draw(st.integers(7, 9))
    x = f32(1, 1, extent)
    options: dict[str, Any] = dict(
        kernel_shape=[kernel], strides=[stride], dilations=[dilation], pads=[before, after], ceil_mode=int(ceil)
    )
    places, best, mean = 0, [], []
    while True:
        start = places * stride - before
        last = start + (kernel - 1) * dilation
        if last >= extent + after and not (ceil and start < extent and last - (stride - 1) < extent + after):
            break
        taps = list(range(start, last + 1, dilation))
        inside = [x[0, 0, t] for t in taps if 0 <= t < extent]
        count = sum(-before <= t < extent + after for t in taps) if padded else len(inside)
        best.append(max(inside, default=-np.inf))
        mean.append(np.sum(inside, dtype=np.float64) / max(count, 1))
        places += 1
    model, arrays = node_model("MaxPool", [x], opset=19, **options)
    assert_close(run_model(model, arrays), {"y0": np.array(best, np.float32).reshape(1, 1, -1)})
    model, arrays = node_model("AveragePool", [x], opset=19, count_include_pad=int(padded), **options)
    assert_close(run_model(model, arrays), {"y0": np.array(mean, np.float32).reshape(1, 1, -1)})


X = f32(2, 3, 4)
BYTES = ints(-99, 99, 1, 1, 5, dtype=np.int8)
E = np.exp(X - X.max((1, 2), keepdims=True))
CHANNELS = f32(1, 5, 2, 2)
SQUARES = np.array([(CHANNELS[:, max(c - 1, 0) : c + 2] ** 2).sum(1) for c in range(5)]).swapaxes(0, 1)


@pytest.mark.parametrize(
    ("operator", "inputs", "options", "want"),
    [
        ("Mean", [X, X[0], X[1]], {}, (X + X[0] + X[1]) / 3),
        ("Softmax", [X], {"axis": 1, "opset": 11}, E / E.sum((1, 2), keepdims=True)),
        ("LogSoftmax", [X * 1000], {"opset": 13}, X * 1000 - (X * 1000).max(-1, keepdims=True)),
        ("MaxPool", [BYTES], {"kernel_shape": [3], "pads": [1, 1]},
         np.array([[[max(BYTES[0, 0, max(k - 1, 0) : k + 2]) for k in range(5)]]])),
        ("MaxPool", [X], {"kernel_shape": [6], "strides": [3], "pads": [0, 1]}, X.max(2, keepdims=True)),
        ("AveragePool", [X], {"kernel_shape": [6], "strides": [2], "pads": [1, 0], "count_include_pad": 1},
         X.sum(2, keepdims=True) / 5),
        ("LpPool", [X], {"kernel_shape": [5], "strides": [2], "p": 1}, np.abs(X).sum(2, keepdims=True)),
        ("GlobalLpPool", [X], {"opset": 22}, np.sqrt((X * X).sum(2, keepdims=True))),
        ("GlobalLpPool", [X], {"p": 3}, np.cbrt((abs(X) ** 3).sum(2, keepdims=True))),
        ("GlobalLpPool", [X], {"p": 1}, np.abs(X).sum(2, keepdims=True)),
        ("Pad", [X[0], i64(0, 2, 1, -1)], {"constant": [1]}, np.pad(X[0], ((0, 1), (2, 0)))[:, :-1]),
        ("LRN", [CHANNELS], {"size": 3, "alpha": 0.3, "beta": 0.5, "bias": 2.0}, CHANNELS / np.sqrt(2 + 0.1 * SQUARES)),
        ("BatchNormalization", [X, *(positive(3) for _ in range(4))], {"opset": 9}, None),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_where_the_reference_is_wrong_or_lacks_it(
    operator: str, inputs: list[np.ndarray], options: dict[str, Any], want: np.ndarray | None
) -> None:
    """onnx.reference: old softmax by the new rule, LogSoftmax overflows, LRN and BatchNormalization 9-13 wrong."""
    model, arrays = node_model(operator, inputs, **options)
    if want is None:
        scale, shift, mean, variance = (a[:, None] for a in inputs[1:])
        want = (X - mean) / np.sqrt(variance + 1e-5) * scale + shift
    assert_close(run_model(model, arrays), {"y0": want.astype(inputs[0].dtype)}, rtol=2e-5)


@pytest.mark.parametrize(("groups", "opset"), [(1, 21), (3, 21), (6, 21), (3, 18)])
@pytest.mark.parametrize(("dtype", "near"), [("f2", 4e-3), ("f4", 5e-5)])
def test_group_normalisation(groups: int, opset: int, dtype: str, near: float) -> None:
    """Before opset 21 the scale and the bias are a group's; a mean far from zero costs little."""
    x = (f32(2, 6, 3, 5) + 100 * (dtype == "f4")).astype(dtype)
    kept = 6 if opset >= 21 else groups
    scale, bias = f32(kept).astype(dtype), f32(kept).astype(dtype)
    model, arrays = node_model("GroupNormalization", [x, scale, bias], num_groups=groups, opset=opset)
    rows = x.astype("f8").reshape(2, groups, -1)
    normal = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    by, add = (np.repeat(v.astype("f8"), 6 // kept)[:, None, None] for v in (scale, bias))
    want = (normal.reshape(x.shape) * by + add).astype(dtype)
    np.testing.assert_allclose(run_model(model, arrays)["y0"], want, rtol=near, atol=near)


@pytest.mark.parametrize(("dtype", "near"), [("f4", 1e-6), ("f2", 2e-3), ("f8", 1e-12)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization_is_by_the_mean_of_squares(dtype: str, near: float, axis: int) -> None:
    x, scale = f32(2, 6, 5).astype(dtype), f32(5).astype(dtype)
    model, arrays = node_model("RMSNormalization", [x, scale], axis=axis, epsilon=2**-10, opset=23)
    rows = x.astype("f8")
    mean = (rows**2).mean(tuple(range(axis % 3, 3)), keepdims=True)
    want = (rows / np.sqrt(mean + 2**-10) * scale.astype("f8")).astype(dtype)
    np.testing.assert_allclose(run_model(model, arrays)["y0"], want, rtol=near, atol=near)


def test_function_bodies_take_the_place_of_their_operator() -> None:
    labels = ints(0, 3, 5)
    check("SoftmaxCrossEntropyLoss", [f32(5, 3), labels], opset=17)


def test_both_branches_of_a_constant_condition() -> None:
    def branch(name: str, operator: str):
        inner = helper.make_node(operator, ["x"], [name])
        return helper.make_graph([inner], name, [], [helper.make_empty_tensor_value_info(name)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Relu"))
    x = f32(4)
    for flag, want in ((True, -x), (False, np.maximum(x, 0))):
        model, arrays = chain_model([node], {"x": x}, ["y"], constants={"c": np.array(flag)})
        assert_close(run_model(model, arrays), {"y": want})
