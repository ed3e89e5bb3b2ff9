"""Operators of ONNX Runtime's own domain that exporters and its optimiser write, as functions of ONNX's operators.

A function is text for the node that it replaces: shapes, dtypes, and which operands are given are known by then. The
operators are those of the domain com.microsoft as ONNX Runtime documents them (docs/ContribOperators.md there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from poly.frontend.onnx_contrib_attention import attention, multi_head
from poly.frontend.onnx_contrib_text import FunctionText, scaled
from poly.frontend.onnx_notation import Call

if TYPE_CHECKING:
    import onnx

DOMAIN: Final = "com.microsoft"
_OPSET: Final = 23  # of ONNX, which the texts are written in
_LOWEST: Final = -10000.0  # what is added to a masked score, unless the node says otherwise
_IN_BOTH: Final = ("SimplifiedLayerNormalization",)  # written without a domain, too

_Make = Callable[[FunctionText], None]
_Default = int | float | tuple[int, ...] | None


@dataclass(frozen=True)
class _Operator:
    """`inputs`: names, those that may be absent with `?`, the last with `*` as often as one likes; `attributes`: their
    defaults, None where a node has to say it.
    """

    inputs: str
    outputs: str
    make: _Make
    attributes: Mapping[str, _Default] = field(default_factory=dict[str, "_Default"])

    def input_names(self, count: int) -> list[str]:
        """The names of so many operands of a node, and of those that it leaves out."""
        names = [n.rstrip("?*") for n in self.inputs.split()]
        if not self.inputs.endswith("*"):
            return names
        return [*names[:-1], *(f"{names[-1]}{k}" for k in range(len(names) - 1, count))]


def is_contrib(operator: str, domain: str) -> bool:
    """Whether an operator has a function here."""
    return operator in _OPERATORS and (domain == DOMAIN or (not domain and operator in _IN_BOTH))


def contrib_function(call: Call) -> onnx.FunctionProto | None:
    """The function that computes a node; None where the table lacks the operator. Raises `OnnxError`."""
    from onnx import parser

    if not is_contrib(call.operator, call.domain):
        return None
    found = _OPERATORS[call.operator]
    body = FunctionText(call, found.input_names(len(call.inputs)), found.outputs.split())
    found.make(body)
    head = f'<domain: "{DOMAIN}", opset_import: ["": {_OPSET}]>'
    text = f"{head} F ({', '.join(body.inputs)}) => ({', '.join(body.outputs)}) {{ {' '.join(body.lines)} }}"
    return parser.parse_function(text)


@cache
def contrib_schema(operator: str) -> onnx.defs.OpSchema:
    """A schema with the names, counts and defaults of an operator here; of any types."""
    from onnx import defs, helper

    found, kind = _OPERATORS[operator], defs.OpSchema.FormalParameterOption
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
        if default is None or default == ():
            kind_of = kinds.INT if default is None else kinds.INTS
            attributes.append(defs.OpSchema.Attribute(name, kind_of, "", required=default is None))
        else:
            attributes.append(defs.OpSchema.Attribute(name, helper.make_attribute(name, default)))
    return defs.OpSchema(operator, DOMAIN, 1, inputs=inputs, outputs=outputs, attributes=attributes)


# -- elementwise and products --------------------------------------------------------------------------------------


def _simple(*lines: str) -> _Make:
    """A function of text alone."""

    def make(b: FunctionText) -> None:
        b.lines += lines

    return make


def _fast_gelu(b: FunctionText) -> None:
    x = "X" if b.given(1) is None else b.add("Add(X, bias)")
    b.add(f'Gelu <approximate = "tanh"> ({x})', "Y")


def _quick_gelu(b: FunctionText) -> None:
    scaled = b.add(f"Mul(X, {b.like(b.number('alpha'), 'X')})")
    b.add(f"Mul(X, {b.add(f'Sigmoid({scaled})')})", "Y")


def _fused_matmul(b: FunctionText) -> None:
    names: list[str] = []
    for position, name in enumerate("AB"):
        rank = b.known(position).rank
        b.require(not b.integer(f"transBatch{name}"), f"transBatch{name} has no compiled form")
        if b.integer(f"trans{name}") and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            name = b.add(f"Transpose <perm = {order}> ({name})")
        names.append(name)
    scaled(b, b.add(f"MatMul({', '.join(names)})"), b.number("alpha"), "A", "Y")


# -- normalisations ------------------------------------------------------------------------------------------------


def _simplified(b: FunctionText) -> None:
    b.require(not b.wants(1), "inv_std_var has no compiled form")
    b.add(f"RMSNormalization <axis = {b.integer('axis')}, epsilon = {b.number('epsilon')!r}> (X, scale)", "Y")


def _skip_layer(b: FunctionText) -> None:
    """Of a sum, which is an output, too."""
    simplified = b.call.operator == "SkipSimplifiedLayerNormalization"
    bias = b.given(3 if simplified else 4)
    b.require(not b.wants(1) and not b.wants(2), "mean and inv_std_var have no compiled form")
    total = b.add("Add(input, skip)")
    b.add(f"Add({total}, bias)" if bias is not None else f"Identity({total})", "sum")
    epsilon = f"<axis = -1, epsilon = {b.number('epsilon')!r}>"
    if simplified:
        b.add(f"RMSNormalization {epsilon} (sum, gamma)", "output")
    else:
        beta = ", beta" if b.given(3) is not None else ""
        b.add(f"LayerNormalization {epsilon} (sum, gamma{beta})", "output")


def _embed_layer(b: FunctionText) -> None:
    """Words, places and segments, normalised."""
    b.require(not b.wants(1), "mask_index has no compiled form")
    _, steps = b.known(0).shape
    places = "position_ids" if b.given(8) is not None else b.ints(*range(steps))
    total = b.add(f"Add({b.add('Gather(word, input_ids)')}, {b.add(f'Gather(place, {places})')})")
    if b.given(1) is not None:
        total = b.add(f"Add({total}, {b.add('Gather(segment, segment_ids)')})")
    b.add(f"Identity({total})", "sum")
    b.add(f"LayerNormalization <axis = -1, epsilon = {b.number('epsilon')!r}> (sum, gamma, beta)", "output")


# -- quantised -----------------------------------------------------------------------------------------------------


def _quantised(operation: str) -> _Make:
    """An operation between codes, of X; `{name}` is an attribute."""

    def make(b: FunctionText) -> None:
        attributes = {n: repr(v) for n, v in b.call.attributes.items()}
        x = b.add("DequantizeLinear(X, X_scale, X_zero)")
        result = b.add(operation.format_map({"x": x, **attributes}))
        b.add(f"QuantizeLinear({result}, Y_scale{', Y_zero' if b.given(4) is not None else ''})", "Y")

    return make


def _quantised_pair(operation: str) -> _Make:
    """A sum or product of codes, by factors to the result's scale: nothing is divided for each element."""

    def make(b: FunctionText) -> None:
        one, left = b.like(1.0, "C_scale"), b.add("Div(A_scale, C_scale)")
        right = b.add("Div(B_scale, C_scale)") if operation == "Add" else "B_scale"
        operands = f"DequantizeLinear(A, {left}, A_zero)", f"DequantizeLinear(B, {right}, B_zero)"
        result = b.add(f"{operation}({', '.join(map(b.add, operands))})")
        b.add(f"QuantizeLinear({result}, {one}{', C_zero' if b.given(7) is not None else ''})", "C")

    return make


def _quantised_concat(b: FunctionText) -> None:
    scale, zero, *rest = b.inputs
    ends = [", ".join(rest[k : k + 3]) for k in range(0, len(rest), 3)]
    operands = ", ".join(b.add(f"DequantizeLinear({end})") for end in ends)
    joined = b.add(f"Concat <axis = {b.integer('axis')}> ({operands})")
    b.add(f"QuantizeLinear({joined}, {scale}, {zero})", "Y")


_SKIP: Final = "output mean inverse sum"
_CODES: Final = "A A_scale A_zero B B_scale B_zero C_scale C_zero?"
_ONE_CODE: Final = "X X_scale X_zero Y_scale Y_zero?"
_OPERATORS: Final[Mapping[str, _Operator]] = {
    "Attention": _Operator(
        "input weights bias? mask_index? past? attention_bias? past_length?", "output present", attention,
        {"num_heads": None, "unidirectional": 0, "scale": 0.0, "mask_filter_value": _LOWEST, "do_rotary": 0,
         "rotary_embedding_dim": 0, "past_present_share_buffer": 0, "qkv_hidden_sizes": ()},
    ),
    "BiasGelu": _Operator("A B", "C", _simple("s = Add(A, B)", "C = Gelu(s)")),
    "EmbedLayerNormalization": _Operator(
        "input_ids segment_ids? word place segment? gamma beta mask? position_ids?", "output mask_index sum",
        _embed_layer, {"epsilon": 1e-12, "mask_index_type": 0},
    ),
    "FastGelu": _Operator("X bias?", "Y", _fast_gelu),
    "FusedMatMul": _Operator(
        "A B", "Y", _fused_matmul, {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
    ),
    "Gelu": _Operator("X", "Y", _simple("Y = Gelu(X)")),
    "MultiHeadAttention": _Operator(
        "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value?",
        "output present_key present_value", multi_head,
        {"num_heads": None, "unidirectional": 0, "scale": 0.0, "mask_filter_value": _LOWEST},
    ),
    "QLinearAdd": _Operator(_CODES, "C", _quantised_pair("Add")),
    "QLinearConcat": _Operator("Y_scale Y_zero x*", "Y", _quantised_concat, {"axis": None}),
    "QLinearLeakyRelu": _Operator(
        _ONE_CODE, "Y", _quantised("LeakyRelu <alpha = {alpha}> ({x})"), {"alpha": 0.01}
    ),
    "QLinearMul": _Operator(_CODES, "C", _quantised_pair("Mul")),
    "QLinearSigmoid": _Operator(_ONE_CODE, "Y", _quantised("Sigmoid({x})")),
    "QuickGelu": _Operator("X", "Y", _quick_gelu, {"alpha": 1.702}),
    "SimplifiedLayerNormalization": _Operator(
        "X scale", "Y inverse", _simplified, {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    ),
    "SkipLayerNormalization": _Operator(
        "input skip gamma beta? bias?", _SKIP, _skip_layer, {"epsilon": 1e-12}
    ),
    "SkipSimplifiedLayerNormalization": _Operator(
        "input skip gamma bias?", _SKIP, _skip_layer, {"epsilon": 1e-12}
    ),
}
