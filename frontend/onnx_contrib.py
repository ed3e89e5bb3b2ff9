"""Operators of ONNX Runtime's own domain that exporters and its optimiser write, as functions of ONNX's operators.

A function is text for the node that it replaces: shapes, dtypes, and which operands are given are known by then. The
operators are those of the domain com.microsoft as ONNX Runtime documents them (docs/ContribOperators.md there).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from poly.frontend import onnx_contrib_blocks as blocks
from poly.frontend import onnx_contrib_floats as floats
from poly.frontend import onnx_contrib_quantised as quantised
from poly.frontend.onnx_contrib_attention import attention, grouped, multi_head, quantised_attention, rotary
from poly.frontend.onnx_contrib_text import FunctionText
from poly.frontend.onnx_notation import CONTRIB, Call
from poly.frontend.onnx_quantized import CONTRIB_ROWS as QUANTIZED

if TYPE_CHECKING:
    import onnx

_OPSET: Final = 23  # of ONNX, which the texts are written in
_LOWEST: Final = -10000.0  # what is added to a masked score, unless the node says otherwise
_IN_BOTH: Final = ("SimplifiedLayerNormalization",)  # written without a domain, too

_Default = int | float | str | tuple[int, ...] | type | None


@dataclass(frozen=True)
class _Operator:
    """`inputs`: names, those that may be absent with `?`, the last with `*` as often as one likes; `attributes`: their
    defaults, None where a node has to say it; `float`, `list` or () for a number, numbers or integers that may be
    absent.
    """

    inputs: str
    outputs: str
    make: floats.Make
    attributes: Mapping[str, _Default] = field(default_factory=dict[str, "_Default"])

    def input_names(self, count: int) -> list[str]:
        """The names of so many operands of a node, and of those that it leaves out."""
        names = [n.rstrip("?*") for n in self.inputs.split()]
        if not self.inputs.endswith("*"):
            return names
        return [*names[:-1], *(f"{names[-1]}{k}" for k in range(len(names) - 1, count))]


def is_contrib(operator: str, domain: str) -> bool:
    """Whether an operator has a function here."""
    return operator in OPERATORS and (domain == CONTRIB or (not domain and operator in _IN_BOTH))


def contrib_function(call: Call) -> onnx.FunctionProto | None:
    """The function that computes a node; None where the table lacks the operator. Raises `OnnxError`."""
    from onnx import parser

    if not is_contrib(call.operator, call.domain):
        return None
    found = OPERATORS[call.operator]
    body = FunctionText(call, found.input_names(len(call.inputs)), found.outputs.split())
    found.make(body)
    head = f'<domain: "{CONTRIB}", opset_import: ["": {_OPSET}]>'
    text = f"{head} F ({', '.join(body.inputs)}) => ({', '.join(body.outputs)}) {{ {' '.join(body.lines)} }}"
    return parser.parse_function(text)


@cache
def contrib_schema(operator: str) -> onnx.defs.OpSchema:
    """A schema with the names, counts and defaults of an operator here; of any types."""
    from onnx import defs, helper

    found, kind = OPERATORS[operator], defs.OpSchema.FormalParameterOption
    options = {"?": kind.Optional, "*": kind.Variadic}
    inputs = [
        defs.OpSchema.FormalParameter(
            name.rstrip("?*"), "tensor(float)", param_option=options.get(name[-1], kind.Single), is_homogeneous=False
        )
        for name in found.inputs.split()
    ]
    outputs = [
        defs.OpSchema.FormalParameter(name, "tensor(float)", param_option=kind.Optional if k else kind.Single)
        for k, name in enumerate(found.outputs.split())
    ]
    kinds, attributes = defs.OpSchema.AttrType, list[defs.OpSchema.Attribute]()
    for name, default in found.attributes.items():
        if default is None or default == () or isinstance(default, type):
            by_default: Mapping[_Default, defs.OpSchema.AttrType] = {
                None: kinds.INT, (): kinds.INTS, float: kinds.FLOAT, list: kinds.FLOATS
            }  # fmt: skip
            kind_of = by_default[default]
            attributes.append(defs.OpSchema.Attribute(name, kind_of, "", required=default is None))
        else:
            attributes.append(defs.OpSchema.Attribute(name, helper.make_attribute(name, default)))
    return defs.OpSchema(operator, CONTRIB, 1, inputs=inputs, outputs=outputs, attributes=attributes)


_SKIP: Final = "output mean inverse sum"
_CODES: Final = "A A_scale A_zero B B_scale B_zero C_scale C_zero?"
_ONE_CODE: Final = "X X_scale X_zero Y_scale Y_zero?"
_WINDOW: Final[Mapping[str, _Default]] = {
    "auto_pad": "NOTSET", "ceil_mode": 0, "dilations": (), "group": 1, "kernel_shape": (), "pads": (), "strides": (),
}
_FUSED: Final[Mapping[str, _Default]] = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
CONTRIB_ROWS: Final = {**blocks.ROWS, **QUANTIZED}  # asked before the functions
OPERATORS: Final[Mapping[str, _Operator]] = {
    "Attention": _Operator(
        "input weights bias? mask_index? past? attention_bias? past_length?", "output present", attention,
        {"num_heads": None, "unidirectional": 0, "scale": 0.0, "mask_filter_value": _LOWEST, "do_rotary": 0,
         "rotary_embedding_dim": 0, "past_present_share_buffer": 0, "qkv_hidden_sizes": ()},
    ),
    "BiasGelu": _Operator("A B", "C", floats.simple("s = Add(A, B)", "C = Gelu(s)")),
    "CDist": _Operator("A B", "C", floats.distances, {"metric": "sqeuclidean"}),
    "DequantizeLinear": _Operator("x x_scale x_zero?", "y", floats.as_onnx, {"axis": 1}),
    "DynamicQuantizeMatMul": _Operator("A B B_scale B_zero? bias?", "Y", quantised.dynamic_product),
    "EmbedLayerNormalization": _Operator(
        "input_ids segment_ids? word place segment? gamma beta mask? position_ids?", "output mask_index sum",
        floats.embed_layer, {"epsilon": 1e-12, "mask_index_type": 0},
    ),
    "ExpandDims": _Operator(
        "X axis", "Y",
        floats.simple("a = Constant <value_ints = [-1]> ()", "b = Reshape(axis, a)", "c = Cast <to = 7> (b)",
                "Y = Unsqueeze(X, c)"),
    ),
    "FastGelu": _Operator("X bias?", "Y", floats.fast_gelu),
    "FusedConv": _Operator(
        "X W B? Z?", "Y", floats.fused_conv, {**_WINDOW, "activation": "", "activation_params": list}
    ),
    "FusedGemm": _Operator(
        "A B C?", "Y", floats.fused_gemm,
        {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, "activation": "", "activation_alpha": float,
         "activation_beta": float, "activation_gamma": float},
    ),
    "FusedMatMul": _Operator("A B", "Y", floats.fused_matmul, _FUSED),
    "GatherBlockQuantized": _Operator(
        "data indices scales zero_points?", "output", blocks.gathered_blocks,
        {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
    ),
    "Gelu": _Operator("X", "Y", floats.simple("Y = Gelu(X)")),
    "GridSample": _Operator(
        "X Grid", "Y", floats.grid_sample, {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}
    ),
    "GroupQueryAttention": _Operator(
        "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
        "attention_bias? head_sink?", "output present_key present_value", grouped,
        {"num_heads": None, "kv_num_heads": None, "scale": 0.0, "softcap": 0.0, "local_window_size": -1, "do_rotary": 0,
         "rotary_interleaved": 0, "smooth_softmax": -1},
    ),
    "MatMulIntegerToFloat": _Operator("A B A_scale B_scale A_zero? B_zero? bias?", "Y", quantised.integer_product),
    "MatMulNBits": _Operator(
        "A B scales zero_points? g_idx? bias?", "Y", blocks.product_of_blocks,
        {"K": None, "N": None, "bits": 4, "block_size": None, "accuracy_level": 0},
    ),
    "MultiHeadAttention": _Operator(
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value?",
        "output present_key present_value", multi_head,
        {"num_heads": None, "unidirectional": 0, "scale": 0.0, "mask_filter_value": _LOWEST},
    ),
    "NhwcMaxPool": _Operator("x", "y", floats.in_last_channels, {k: v for k, v in _WINDOW.items() if k != "group"}),
    "QAttention": _Operator(
        "input weight bias input_scale weight_scale mask_index? input_zero? weight_zero? past?", "output present",
        quantised_attention,
        {"num_heads": None, "unidirectional": 0, "scale": 0.0, "mask_filter_value": _LOWEST, "do_rotary": 0,
         "past_present_share_buffer": 0},
    ),
    "QGemm": _Operator(
        "A A_scale A_zero B B_scale B_zero C? Y_scale? Y_zero?", "Y", quantised.gemm,
        {"alpha": 1.0, "transA": 0, "transB": 0},
    ),
    "QLinearAdd": _Operator(_CODES, "C", partial(quantised.of_pairs, operation="Add")),
    "QLinearAveragePool": _Operator(
        _ONE_CODE, "Y", partial(quantised.pooled, operator="AveragePool"),
        {**_WINDOW, "count_include_pad": 0, "channels_last": 0},
    ),
    "QLinearConcat": _Operator("Y_scale Y_zero x*", "Y", quantised.concat, {"axis": None}),
    "QLinearConv": _Operator(
        "x x_scale x_zero w w_scale w_zero y_scale y_zero B?", "y", quantised.convolution,
        {**_WINDOW, "channels_last": 0},
    ),
    "QLinearGlobalAveragePool": _Operator(
        _ONE_CODE, "Y", partial(quantised.pooled, operator="GlobalAveragePool"), {"channels_last": 0}
    ),
    "QLinearLeakyRelu": _Operator(
        _ONE_CODE, "Y", floats.leaky, {"alpha": 0.01}
    ),
    "QLinearMul": _Operator(_CODES, "C", partial(quantised.of_pairs, operation="Mul")),
    "QLinearSigmoid": _Operator(_ONE_CODE, "Y", partial(quantised.of_codes, operation="Sigmoid({x})")),
    "QLinearSoftmax": _Operator(
        "X X_scale X_zero? Y_scale Y_zero", "Y", quantised.softmax, {"axis": -1, "opset": None}
    ),
    "QLinearWhere": _Operator(
        "condition X X_scale X_zero Y Y_scale Y_zero Z_scale Z_zero", "Z", quantised.where
    ),
    "QuantizeLinear": _Operator("x y_scale y_zero?", "y", floats.as_onnx, {"axis": 1}),
    "QuickGelu": _Operator("X", "Y", floats.quick_gelu, {"alpha": 1.702}),
    "RotaryEmbedding": _Operator(
        "input position_ids cos_cache sin_cache", "output", rotary,
        {"interleaved": 0, "is_packed_batching": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0},
    ),
    "SimplifiedLayerNormalization": _Operator(
        "X scale", "Y inverse", floats.simplified, {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    ),
    "SkipLayerNormalization": _Operator(
        "input skip gamma beta? bias?", _SKIP, floats.skip_layer, {"epsilon": 1e-12}
    ),
    "SkipSimplifiedLayerNormalization": _Operator(
        "input skip gamma bias?", _SKIP, floats.skip_layer, {"epsilon": 1e-12}
    ),
    "TransposeMatMul": _Operator("A B", "Y", floats.fused_matmul, _FUSED),
    "Trilu": _Operator("X k?", "Y", floats.as_onnx, {"upper": 1}),
}
