"""One wrong node for each refusal that random changes seldom reach: operator, operands, options, words of the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tests.onnx_helpers import Operand


def f32(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_X: Final = f32(2, 3, 4)
_IMAGE: Final = f32(1, 2, 5, 5)
_STEPS: Final = [f32(4, 1, 3), f32(1, 8, 3), f32(1, 8, 2)]  # of an LSTM with two units
_HEADS: Final = {"opset": 27, "kv_num_heads": 2, "q_num_heads": 2}
_CODES: Final = np.ones((3, 3), np.uint8)
_QUANTUM: Final = [np.float32(0.5), np.uint8(1)]

WRONG_NODES: Final[Sequence[tuple[str, Sequence[Operand], dict[str, Any], str]]] = [
    # elementwise
    ("Sum", [], {}, "has 0 inputs, needs 1"),
    ("Concat", [None], {"axis": 0}, "has 0 inputs, needs 1"),
    ("Dropout", [_X, np.float32(1.5), np.array(True)], {"constant": [1, 2], "seed": 1}, "ratio 1.5 is outside"),
    ("PRelu", [_IMAGE, f32(3)], {"opset": 6, "constant": [1]}, "not one a channel"),
    ("BitCast", [_X], {"opset": 26, "to": 7}, "differ in width"),
    ("Gemm", [np.ones((2, 3), np.int64), np.ones((3, 2), np.int64)], {"alpha": 0.5}, "factor 0.5 on i64"),
    # shapes
    ("Reshape", [_X, i64(-1, -1)], {"constant": [1]}, "is not one"),
    ("Reshape", [_X, i64(-1, 7)], {"constant": [1]}, "do not fill the shape"),
    ("Reshape", [_X], {"opset": 4}, "has no shape"),
    ("Squeeze", [_X, i64(1)], {"constant": [1]}, "not all 1"),
    ("Unsqueeze", [_X], {"opset": 11}, "has no axes"),
    ("Expand", [_X, i64(2, 5, 4)], {"constant": [1]}, "do not broadcast"),
    ("Range", [i64(0)[0], i64(4)[0], i64(0)[0]], {"constant": [0, 1, 2]}, "delta is 0"),
    # indexing
    ("Split", [_X], {"opset": 13, "axis": 1, "outputs": 2}, "not a multiple of 2"),
    ("Split", [_X], {"opset": 18, "axis": 1, "outputs": 2, "num_outputs": 9}, "num_outputs 9"),
    ("Slice", [_X], {"opset": 9}, "no starts or ends"),
    ("Slice", [_X, i64(0), i64(1, 2), i64(0)], {"constant": [1, 2, 3]}, "differ in length"),
    ("Slice", [_X, i64(0), i64(1), i64(0), i64(0)], {"constant": [1, 2, 3, 4]}, "a step is 0"),
    ("Compress", [_X, np.ones((1, 2), bool)], {"opset": 11, "constant": [1], "axis": 0}, "not a vector"),
    ("Compress", [_X, np.ones(3, bool)], {"opset": 11, "constant": [1], "axis": 0}, "true beyond"),
    ("Tile", [_X, f32(1), f32(1)], {"opset": 5, "constant": [1, 2]}, "tiles one axis only"),
    ("Tile", [_X, i64(1, -1, 1)], {"constant": [1]}, "do not fit rank"),
    ("Pad", [f32(0), i64(1, 1)], {"constant": [1], "mode": "edge"}, "cannot pad an empty axis"),
    # reductions
    ("Einsum", [f32(2, 3)], {"equation": "ij->k"}, "is not valid"),
    ("Softmax", [_X], {"opset": 11, "axis": 4}, "outside of rank 3"),
    ("BatchNormalization", [_IMAGE, f32(2), f32(2), f32(3), f32(2)], {"opset": 15}, r"statistics are not \[2\]"),
    ("GroupNormalization", [f32(2, 5, 3), f32(5), f32(5)], {"num_groups": 2, "opset": 21}, "2 groups of"),
    ("GroupNormalization", [f32(2, 4, 3), f32(2), f32(2)], {"num_groups": 2, "opset": 21}, "are not \\[4\\]"),
    ("InstanceNormalization", [f32(2), f32(2), f32(2)], {}, "needs \\[N, C"),
    ("BatchNormalization", [f32(0, 2, 3), *[f32(2)] * 4], {"opset": 15, "training_mode": 1, "outputs": 3},
     "has no channels"),
    ("LpNormalization", [_X], {"p": 3}, "neither 1 nor 2"),
    # windows
    ("Conv", [_IMAGE, f32(3, 2, 2, 2)], {"auto_pad": "NONE"}, "auto_pad 'NONE' is unknown"),
    ("Conv", [_IMAGE, f32(3, 2, 2, 2), f32(2)], {}, r"bias is not \[3\]"),
    *[("ConvTranspose", [_IMAGE, f32(2, 3, 2, 2)], options, words) for options, words in (
        ({"strides": [0, 1]}, "strides, dilations and kernel must be positive"),
        ({"dilations": [1, -1]}, "strides, dilations and kernel must be positive"),
        ({"strides": [1]}, r"strides \[1\] do not fit 2 spatial axes"),
        ({"pads": [1, 1, 1, 1, 1]}, r"pads \[1, 1, 1, 1, 1\] do not fit 2 spatial axes"),
        ({"output_padding": [0, -1]}, r"output_padding \[0, -1\] is negative"),
        ({"output_shape": [6]}, r"output_shape \[6\] do not fit 2 spatial axes"),
        ({"kernel_shape": [3, 2]}, r"kernel_shape \[3, 2\] is not that of the weights"),
        ({"auto_pad": "FOO"}, "auto_pad 'FOO' is unknown"),
    )],
    ("ConvTranspose", [_IMAGE, f32(2, 3, 2, 2), f32(2)], {}, r"bias is not \[3\]"),
    ("Col2Im", [f32(1, 1, 1), i64(), i64()], {"opset": 18, "constant": [1, 2]}, "has no spatial axes"),
    ("Col2Im", [f32(1, 5, 5), i64(5, 5), i64(2, 2)], {"opset": 18, "constant": [1, 2]}, "blocks|columns"),
    ("Col2Im", [f32(1, 4, 7), i64(5, 5), i64(2, 2)], {"opset": 18, "constant": [1, 2]}, "blocks|columns"),
    # resampling
    ("Resize", [_IMAGE, None, None, i64(1, 2, 9, 9)], {"opset": 19, "constant": [3], "mode": "area"}, "mode 'area'"),
    ("Resize", [_IMAGE], {"opset": 19}, "scales or sizes do not fit 4 axes"),
    ("Upsample", [_IMAGE], {"opset": 7}, "has no scales"),
    ("Resize", [f32(1, 2, 0, 5), None, None, i64(1, 2, 3, 5)], {"opset": 19, "constant": [3]}, "nothing to resample"),
    ("Resize", [_IMAGE, None, f32(4) * 0 + np.float32(0.1)], {"opset": 19, "constant": [2]}, "leaves no elements"),
    ("Resize", [_IMAGE, None, None, i64(1, 2, 9, 9)], {"opset": 19, "constant": [3], "nearest_mode": "up"},
     "nearest_mode 'up' is unknown"),
    ("RoiAlign", [_IMAGE, f32(1, 4), i64(0)], {"opset": 16, "mode": "sum", "sampling_ratio": 2}, "mode .sum. is unkn"),
    ("DeformConv", [_IMAGE, f32(3, 2, 2, 2), f32(1, 8, 3, 4)], {"opset": 19}, "not one a position"),
    ("DeformConv", [_IMAGE, f32(3, 2, 2, 2), f32(1, 8, 4, 4), f32(3), f32(1, 3, 4, 4)], {"opset": 19}, "mask .* fit"),
    ("DeformConv", [_IMAGE, f32(3, 2, 2, 2), f32(1, 8, 4, 4)], {"opset": 19, "offset_group": 0}, "do not fit together"),
    ("DeformConv", [_IMAGE, f32(3, 2, 2, 2), f32(1, 8, 4, 4)], {"opset": 19, "kernel_shape": [2, 3]}, "kernel_shape"),
    ("MaxUnpool", [_IMAGE, np.zeros((1, 2, 5, 5), np.int64)], {"kernel_shape": [2, 2], "pads": [0] * 5}, "do not fit"),
    # selection
    ("TopK", [_X, i64(9)], {"constant": [1], "outputs": 2, "axis": 1}, "k = 9 of 3"),
    ("ScatterElements", [f32(3), i64(1), f32(1)], {"opset": 18, "reduction": "xor"}, "reduction 'xor' is unknown"),
    ("ScatterElements", [f32(3, 2), np.zeros((3, 3), np.int64), f32(3, 3)], {"opset": 18}, "do not lie inside"),
    ("TensorScatter", [f32(2, 4, 3), f32(2, 1, 2), i64(0, 0)], {"opset": 24}, "do not fit along axis"),
    ("TensorScatter", [f32(2, 4, 3), f32(2, 1, 3), i64(0)], {"opset": 24}, "not one a sequence"),
    ("TensorScatter", [f32(2, 4, 3), f32(2, 1, 3), i64(0, 0)], {"opset": 24, "mode": "ring"}, "mode 'ring'"),
    ("TensorScatter", [f32(2, 4, 3), f32(2, 5, 3), i64(0, 0)], {"opset": 24}, "do not fit"),
    ("GatherND", [_X, np.zeros((3, 1, 1), np.int64)], {"batch_dims": 1}, "share no batch"),
    ("OneHot", [i64(1), i64(3), f32(3)], {"constant": [1]}, "not \\[off, on\\]"),
    # recurrent
    ("LSTM", _STEPS, {"hidden_size": 2, "direction": "upward"}, "direction 'upward' is unknown"),
    ("LSTM", _STEPS, {"hidden_size": 2, "activations": ["Sigmoid", "Tanh", "Step"]}, "activation 'Step' is unknown"),
    ("Attention", [f32(1, 2, 3, 4), f32(1, 2, 3, 5), f32(1, 2, 3, 2)], {"opset": 23, "is_causal": 1}, "other sizes"),
    ("LayerNormalization", [_X, f32(8)], {}, "do not broadcast"),
    ("LayerNormalization", [f32(2, 3, 1), f32(5)], {}, "\\[5\\] does not broadcast"),
    ("LayerNormalization", [_X, f32(4), f32(2, 2, 3, 4)], {}, "does not broadcast"),
    ("RMSNormalization", [_X, f32(8)], {"opset": 23}, "do not broadcast"),
    ("RoiAlign", [_IMAGE, f32(3, 4), i64(0, 0)], {"opset": 16}, "batch_indices \\[2\\] for rois"),
    ("ConvInteger", [np.ones((1, 1, 4, 4), np.uint8), np.ones((3, 1, 2, 2), np.uint8), np.uint8(1), _CODES[0, :2]],
     {"opset": 10}, "zero points of weights are not \\[3\\]"),
    ("LinearAttention", [f32(1, 2, 4)] * 3, {**_HEADS, "update_rule": "none"}, "update_rule 'none' is unknown"),
    ("LinearAttention", [f32(1, 2, 4)] * 3, {**_HEADS, "update_rule": "gated"}, "decay does not go with"),
    # constants and codes
    ("Constant", [], {"value_string": "x"}, "value_string has no compiled form"),
    ("ConstantOfShape", [i64(2**20, 2**20)], {"constant": [0]}, "a constant of more than"),
    ("QLinearMatMul", [*[_CODES, *_QUANTUM] * 2, np.float32(1), np.zeros(3, np.uint8)], {}, "one 8-bit value"),
    ("Col2Im", [f32(1, 5, 5), i64(5, 5), i64(2)], {"opset": 18, "constant": [1, 2]}, "has no blocks of"),
    # spectral
    ("DFT", [f32(1, 4, 2)], {"opset": 17, "axis": 2}, "that of the parts"),
    ("DFT", [f32(1, 4, 2), i64(0)[0]], {"opset": 17, "axis": 1, "constant": [1]}, "dft_length is 0"),
    ("STFT", [f32(1, 8, 1), i64(2)[0], None, i64(99)[0]], {"constant": [1, 3]}, "give no frame"),
    ("STFT", [f32(1, 8, 1), i64(2)[0], f32(3), i64(4)[0]], {"constant": [1, 3]}, r"window is not \[4\]"),
]  # fmt: skip
