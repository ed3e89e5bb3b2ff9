"""Operators of ONNX Runtime's own domain that exporters and its optimiser write, as functions of ONNX's operators.

A function is text for the node that it replaces: shapes, dtypes, and which operands are given are known by then. The
operators are those of the domain com.microsoft as ONNX Runtime documents them (docs/ContribOperators.md there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.errors import OnnxError
from poly.frontend.onnx_notation import Call
from poly.frontend.onnx_terms import Value

if TYPE_CHECKING:
    import onnx

DOMAIN: Final = "com.microsoft"
_OPSET: Final = 23  # of ONNX, which the texts are written in
_IN_BOTH: Final = ("SimplifiedLayerNormalization",)  # written without a domain, too
_MANY: Final = 2**31 - 1
_LOWEST: Final = -10000.0  # what is added to a masked score, unless the node says otherwise


@dataclass
class _Body:
    """The text of one function under construction: lines that set a name each."""

    call: Call
    lines: list[str] = field(default_factory=list[str])

    @property
    def inputs(self) -> list[str]:
        """The names of operands in the text."""
        names = [n.rstrip("?*") for n in _OPERATORS[self.call.operator].inputs.split()]
        if not _OPERATORS[self.call.operator].inputs.endswith("*"):
            return names
        return [*names[:-1], *(f"{names[-1]}{k}" for k in range(len(names) - 1, len(self.call.inputs)))]

    @property
    def outputs(self) -> list[str]:
        return _OPERATORS[self.call.operator].outputs.split()

    def given(self, position: int) -> Value | None:
        """An operand that may be absent."""
        return self.call.inputs[position] if position < len(self.call.inputs) else None

    def known(self, position: int) -> Value:
        """An operand that the schema asks for."""
        value = self.given(position)
        if value is None:
            self.refuse(f"operand {position} is missing")
            raise AssertionError
        return value

    def integer(self, name: str) -> int:
        value = self.call.attributes[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self.call.attributes[name]
        assert isinstance(value, float)
        return value

    def wants(self, position: int) -> bool:
        return position < len(self.call.outputs) and bool(self.call.outputs[position])

    def refuse(self, why: str) -> None:
        raise OnnxError(why, where=self.call.where, hint="convert the model to ai.onnx operators")

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            self.refuse(why)

    def add(self, text: str, name: str = "") -> str:
        """A line `name = text`; the name is new unless given."""
        name = name or f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def ints(self, *values: int) -> str:
        return self.add(f"Constant <value_ints = [{', '.join(map(str, values))}]> ()")

    def like(self, value: float, other: str) -> str:
        """A number in the dtype of another value."""
        constant = self.add(f"Constant <value_float = {np.float32(value)!s}> ()".replace("inf", "3.4028235e38"))
        return self.add(f"CastLike({constant}, {other})")


_Make = Callable[[_Body], None]
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


def is_contrib(operator: str, domain: str) -> bool:
    """Whether an operator has a function here."""
    return operator in _OPERATORS and (domain == DOMAIN or (not domain and operator in _IN_BOTH))


def contrib_function(call: Call) -> onnx.FunctionProto | None:
    """The function that computes a node; None where the table lacks the operator. Raises `OnnxError`."""
    from onnx import parser

    if not is_contrib(call.operator, call.domain):
        return None
    found, body = _OPERATORS[call.operator], _Body(call)
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

    def make(b: _Body) -> None:
        b.lines += lines

    return make


def _fast_gelu(b: _Body) -> None:
    x = "X" if b.given(1) is None else b.add("Add(X, bias)")
    b.add(f'Gelu <approximate = "tanh"> ({x})', "Y")


def _quick_gelu(b: _Body) -> None:
    scaled = b.add(f"Mul(X, {b.like(b.number('alpha'), 'X')})")
    b.add(f"Mul(X, {b.add(f'Sigmoid({scaled})')})", "Y")


def _fused_matmul(b: _Body) -> None:
    names: list[str] = []
    for position, name in enumerate("AB"):
        rank = b.known(position).rank
        b.require(not b.integer(f"transBatch{name}"), f"transBatch{name} has no compiled form")
        if b.integer(f"trans{name}") and rank > 1:
            order = [*range(rank - 2), rank - 1, rank - 2]
            name = b.add(f"Transpose <perm = {order}> ({name})")
        names.append(name)
    _scaled(b, b.add(f"MatMul({', '.join(names)})"), b.number("alpha"), "A", "Y")


def _scaled(b: _Body, value: str, factor: float, like: str, name: str = "") -> str:
    if factor == 1:
        return b.add(f"Identity({value})", name) if name else value
    return b.add(f"Mul({value}, {b.like(factor, like)})", name)


# -- normalisations ------------------------------------------------------------------------------------------------


def _simplified(b: _Body) -> None:
    b.require(not b.wants(1), "inv_std_var has no compiled form")
    b.add(f"RMSNormalization <axis = {b.integer('axis')}, epsilon = {b.number('epsilon')!r}> (X, scale)", "Y")


def _skip_layer(b: _Body) -> None:
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


def _embed_layer(b: _Body) -> None:
    """Words, places and segments, normalised."""
    b.require(not b.wants(1), "mask_index has no compiled form")
    _, steps = b.known(0).shape
    places = "position_ids" if b.given(8) is not None else b.ints(*range(steps))
    total = b.add(f"Add({b.add('Gather(word, input_ids)')}, {b.add(f'Gather(place, {places})')})")
    if b.given(1) is not None:
        total = b.add(f"Add({total}, {b.add('Gather(segment, segment_ids)')})")
    b.add(f"Identity({total})", "sum")
    b.add(f"LayerNormalization <axis = -1, epsilon = {b.number('epsilon')!r}> (sum, gamma, beta)", "output")


# -- attention -----------------------------------------------------------------------------------------------------


def _heads(b: _Body, name: str, shape: tuple[int, ...], heads: int) -> str:
    """[batch, steps, heads * size] as [batch, heads, steps, size]."""
    batch, steps, width = shape
    b.require(width % heads == 0, f"{width} is not {heads} heads")
    apart = b.add(f"Reshape({name}, {b.ints(batch, steps, heads, width // heads)})")
    return b.add(f"Transpose <perm = [0, 2, 1, 3]> ({apart})")


def _attended(b: _Body, query: str, key: str, value: str, shape: tuple[int, ...], masks: list[str]) -> str:
    """[batch, steps, heads * size] of operands by heads. `shape`: batch, heads, steps, size of a query, of a value."""
    batch, heads, steps, size, depth = shape
    factor = b.number("scale") or float(1 / np.sqrt(size))
    turned = b.add(f"Transpose <perm = [0, 1, 3, 2]> ({key})")
    scores = _scaled(b, b.add(f"MatMul({query}, {turned})"), factor, query)
    for mask in masks:
        scores = b.add(f"Add({scores}, {mask})")
    weights = b.add(f"Softmax <axis = -1> ({scores})")
    together = b.add(f"Transpose <perm = [0, 2, 1, 3]> ({b.add(f'MatMul({weights}, {value})')})")
    return b.add(f"Reshape({together}, {b.ints(batch, steps, heads * depth)})", "output")


def _masks(b: _Body, mask: tuple[str, Value] | None, bias: str, steps: int, total: int) -> list[str]:
    """What is added to scores. `mask`: which of all steps count, or how many do, for each item; `bias`: a name."""
    found = [bias] if bias else []
    lowest, first = b.number("mask_filter_value"), b.inputs[0]
    if mask is not None:
        name, value = mask
        batch = b.known(0).shape[0]
        if value.shape == (batch,):
            count = b.add(f"Unsqueeze({b.add(f'Cast <to = 7> ({name})')}, {b.ints(1)})")
            kept = b.add(f"Less({b.ints(*range(total))}, {count})")
        else:
            fits = value.shape in ((batch, total), (batch, steps, total))
            b.require(fits, f"a mask {list(value.shape)} for scores of {[batch, steps, total]} has no compiled form")
            kept = b.add(f"Cast <to = 9> ({name})")
        kept = b.add(f"Unsqueeze({kept}, {b.ints(1) if value.rank == 3 else b.ints(1, 2)})")
        found.append(b.add(f"Where({kept}, {b.like(0.0, first)}, {b.like(lowest, first)})"))
    if b.integer("unidirectional"):
        filled = b.add(f"ConstantOfShape <value = float[1] {{{lowest!r}}}> ({b.ints(steps, total)})")
        later = b.add(f"Trilu <upper = 1> ({filled}, {b.add(f'Constant <value_int = {total - steps + 1}> ()')})")
        found.append(b.add(f"CastLike({later}, {first})"))
    return found


def _multi_head(b: _Body) -> None:
    """Of operands that have been projected: queries, keys and values, each [batch, steps, heads * size]; keys and
    values by heads, too, and behind those of steps before.
    """
    query, heads = b.known(0), b.integer("num_heads")
    b.require(query.rank == 3 and b.given(1) is not None and b.given(2) is not None, "packed operands have no form")
    b.require(all(b.known(k).rank in (3, 4) for k in (1, 2)), "packed keys have no compiled form")
    sides = [b.known(k) for k in range(3)]
    names, start = [*b.inputs[:3]], 0
    for k, value in enumerate(sides):
        width = value.shape[2] if value.rank == 3 else heads * value.shape[3]
        if b.given(3) is not None and value.rank == 3:
            bias = b.add(f"Slice(bias, {b.ints(start)}, {b.ints(start + width)})")
            names[k] = b.add(f"Add({names[k]}, {bias})")
        names[k] = _heads(b, names[k], value.shape, heads) if value.rank == 3 else names[k]
        start += width
    total = sides[1].shape[1 if sides[1].rank == 3 else 2]
    if (past := b.given(6)) is not None:
        pairs = zip(b.inputs[6:8], names[1:], strict=True)
        names[1:] = [b.add(f"Concat <axis = 2> ({before}, {new})") for before, new in pairs]
        total += past.shape[2]
    depth = sides[2].shape[2] // heads if sides[2].rank == 3 else sides[2].shape[3]
    shape = (query.shape[0], heads, query.shape[1], query.shape[2] // heads, depth)
    mask = None if (given := b.given(4)) is None else (b.inputs[4], given)
    bias = b.inputs[5] if b.given(5) is not None else ""
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, query.shape[1], total))
    for position, name in enumerate(names[1:], 1):
        if b.wants(position):
            b.add(f"Identity({name})", b.outputs[position])


def _attention(b: _Body) -> None:
    """Projections by one matrix, [width, queries and keys and values], then attention of a sequence with itself."""
    x, weights, heads = b.known(0), b.known(1), b.integer("num_heads")
    sizes = b.call.attributes.get("qkv_hidden_sizes")
    widths = [weights.shape[1] // 3] * 3 if not isinstance(sizes, tuple) else [int(s) for s in sizes]
    b.require(not b.integer("do_rotary") and b.given(6) is None, "rotary or shared caches have no compiled form")
    b.require(sum(widths) == weights.shape[1], f"weights {list(weights.shape)} are not {widths} together")
    product = b.add(f"MatMul({b.inputs[0]}, {b.inputs[1]})")
    product = b.add(f"Add({product}, {b.inputs[2]})") if b.given(2) is not None else product
    names, start = list[str](), 0
    for width in widths:
        part = b.add(f"Slice({product}, {b.ints(start)}, {b.ints(start + width)}, {b.ints(2)})")
        names.append(_heads(b, part, (*x.shape[:2], width), heads))
        start += width
    total = steps = x.shape[1]
    if (past := b.given(4)) is not None:
        old = [b.add(f"Gather <axis = 0> ({b.inputs[4]}, {b.add(f'Constant <value_int = {k}> ()')})") for k in range(2)]
        names[1:] = [b.add(f"Concat <axis = 2> ({before}, {new})") for before, new in zip(old, names[1:], strict=True)]
        total += past.shape[3]
    shape = (x.shape[0], heads, steps, widths[0] // heads, widths[2] // heads)
    mask = None if (given := b.given(3)) is None else (b.inputs[3], given)
    bias = b.inputs[5] if b.given(5) is not None else ""
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, steps, total))
    if b.wants(1):
        both = ", ".join(b.add(f"Unsqueeze({name}, {b.ints(0)})") for name in names[1:])
        b.add(f"Concat <axis = 0> ({both})", b.outputs[1])


# -- quantised -----------------------------------------------------------------------------------------------------


def _quantised(operation: str) -> _Make:
    """An operation between codes, of X; `{name}` is an attribute."""

    def make(b: _Body) -> None:
        attributes = {n: repr(v) for n, v in b.call.attributes.items()}
        x = b.add("DequantizeLinear(X, X_scale, X_zero)")
        result = b.add(operation.format_map({"x": x, **attributes}))
        b.add(f"QuantizeLinear({result}, Y_scale{', Y_zero' if b.given(4) is not None else ''})", "Y")

    return make


def _quantised_pair(operation: str) -> _Make:
    """A sum or product of codes, by factors to the result's scale: nothing is divided for each element."""

    def make(b: _Body) -> None:
        one, left = b.like(1.0, "C_scale"), b.add("Div(A_scale, C_scale)")
        right = b.add("Div(B_scale, C_scale)") if operation == "Add" else "B_scale"
        operands = f"DequantizeLinear(A, {left}, A_zero)", f"DequantizeLinear(B, {right}, B_zero)"
        result = b.add(f"{operation}({', '.join(map(b.add, operands))})")
        b.add(f"QuantizeLinear({result}, {one}{', C_zero' if b.given(7) is not None else ''})", "C")

    return make


def _quantised_concat(b: _Body) -> None:
    scale, zero, *rest = b.inputs
    ends = [", ".join(rest[k : k + 3]) for k in range(0, len(rest), 3)]
    operands = ", ".join(b.add(f"DequantizeLinear({end})") for end in ends)
    joined = b.add(f"Concat <axis = {b.integer('axis')}> ({operands})")
    b.add(f"QuantizeLinear({joined}, {scale}, {zero})", "Y")


_SKIP: Final = ("output", "mean", "inverse", "sum")
_CODES: Final = "A A_scale A_zero B B_scale B_zero C_scale C_zero?"
_ONE_CODE: Final = "X X_scale X_zero Y_scale Y_zero?"
_OPERATORS: Final[Mapping[str, _Operator]] = {
    "Attention": _Operator(
        "input weights bias? mask_index? past? attention_bias? past_length?", "output present", _attention,
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
        "output present_key present_value", _multi_head,
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
        "input skip gamma beta? bias?", " ".join(_SKIP), _skip_layer, {"epsilon": 1e-12}
    ),
    "SkipSimplifiedLayerNormalization": _Operator(
        "input skip gamma bias?", " ".join(_SKIP), _skip_layer, {"epsilon": 1e-12}
    ),
}
