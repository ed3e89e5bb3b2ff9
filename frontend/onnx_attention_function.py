"""Attention of ONNX as a function of its operators that repeats no keys: queries whose heads share keys are rows beside
each other, and what a query is compared with is scaled once, not the keys, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from poly.frontend.onnx_contrib_text import FunctionText, scaled
from poly.frontend.onnx_notation import Call

if TYPE_CHECKING:
    import onnx

_INPUTS: Final = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_OUTPUTS: Final = ("Y", "present_key", "present_value", "qk_matmul_output")
_ATTRIBUTES: Final = frozenset(
    "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision".split()
)
_WINDOWS: Final = frozenset({"left_window_size", "right_window_size"})


def attention_function(call: Call) -> onnx.FunctionProto | None:
    """The function; None for other operators, and for what only ONNX's own one has."""
    if call.domain or call.operator != "Attention":
        return None
    b = FunctionText(call, _INPUTS, _OUTPUTS)
    sides = [b.given(k) for k in range(3)]
    plain = all(v is not None and v.dtype == "f32" and v.rank in (3, 4) for v in sides)
    windowed = any(call.attributes.get(name, -1) != -1 for name in _WINDOWS)
    if windowed or not call.attributes.keys() <= _ATTRIBUTES | _WINDOWS:
        return None
    if not plain or b.given(6) is not None or b.wants(3) or not _attended(b):
        return None
    from onnx import parser

    head = f'<domain: "poly", opset_import: ["": {call.opset}]> F ({", ".join(_INPUTS)}) => ({", ".join(_OUTPUTS[:3])})'
    return parser.parse_function(f"{head} {{ {' '.join(b.lines)} }}")


def _attended(b: FunctionText) -> bool:
    """The lines; False where the operands do not fit."""
    found = [_by_heads(b, k) for k in range(3)]
    parts = [part for part in found if part is not None]
    if len(parts) < 3:
        return False
    (query, (batch, heads, steps, size)), *others = parts
    total, past = others[0][1][2], b.given(4)
    names = [name for name, _ in others]
    if past is not None:
        total += past.shape[2]
        names = [b.of("Concat <axis = 2>", b.inputs[4 + k], name) for k, name in enumerate(names)]
    for name, result, position in zip(names, b.outputs[1:], (1, 2), strict=False):
        if b.wants(position):
            b.of("Identity", name, name=result)
    kept, depth = others[0][1][1], others[1][1][3]
    mask = b.given(3)
    fits = mask is None or (mask.rank >= 2 and mask.shape[-1] == total and mask.dtype in ("bool", "f32"))
    if not fits or heads % max(kept, 1) or min(batch, kept, steps, total, size, depth) == 0:
        return False
    weights = _weights(b, query, names[0], (batch, heads, kept, steps, total, size))
    rows = b.of("Reshape", weights, b.ints(batch, kept, heads // kept * steps, total))
    result = b.of("Reshape", b.of("MatMul", rows, names[1]), b.ints(batch, heads, steps, depth))
    if b.known(0).rank == 3:
        turned = b.of("Transpose <perm = [0, 2, 1, 3]>", result)
        b.of("Reshape", turned, b.ints(batch, steps, heads * depth), name="Y")
    else:
        b.of("Identity", result, name="Y")
    return True


def _by_heads(b: FunctionText, position: int) -> tuple[str, tuple[int, ...]] | None:
    """An operand as [batch, heads, steps, size], and these."""
    value, name = b.known(position), b.inputs[position]
    if value.rank == 4:
        return name, value.shape
    heads = b.call.attributes.get("kv_num_heads" if position else "q_num_heads")
    batch, steps, width = value.shape
    if not isinstance(heads, int) or heads <= 0 or width % heads:
        return None
    apart = b.of("Reshape", name, b.ints(batch, steps, heads, width // heads))
    return b.of("Transpose <perm = [0, 2, 1, 3]>", apart), (batch, heads, steps, width // heads)


def _weights(b: FunctionText, query: str, key: str, sizes: tuple[int, ...]) -> str:
    """[batch, heads, steps, total], 0 where all of a row is masked."""
    batch, heads, kept, steps, total, size = sizes
    scale = b.call.attributes.get("scale")
    factor = float(scale) if isinstance(scale, float) else float(1 / np.sqrt(size))
    rows = scaled(b, b.of("Reshape", query, b.ints(batch, kept, heads // kept * steps, size)), factor, "Q")
    scores = b.of("MatMul", rows, b.of("Transpose <perm = [0, 1, 3, 2]>", key))
    scores = b.of("Reshape", scores, b.ints(batch, heads, steps, total))
    cap = b.call.attributes.get("softcap")
    if isinstance(cap, float) and cap:
        most = b.like(cap, "Q")
        scores = b.of("Mul", b.of("Tanh", b.of("Div", scores, most)), most)
    bias = _bias(b, steps, total)
    weights = b.of("Softmax <axis = -1>", scores if bias is None else b.of("Add", scores, bias))
    if bias is None or b.given(3) is None:
        return weights
    greatest = b.of("ReduceMax", bias, b.ints(-1))
    return b.of("Where", b.of("LessOrEqual", greatest, b.like(-np.inf, "Q")), b.like(0.0, "Q"), weights)


def _bias(b: FunctionText, steps: int, total: int) -> str | None:
    """What is added to scores: for a mask of truths, and for what comes later, 0 or the least number."""
    mask, past, least = b.given(3), b.given(4), b.like(-np.inf, "Q")
    found = None if mask is None else "attn_mask"
    if mask is not None and mask.dtype == "bool":
        found = b.of("Where", "attn_mask", b.like(0.0, "Q"), least)
    if b.call.attributes.get("is_causal"):
        before = 0 if past is None else past.shape[2]
        own = b.of("Reshape", b.ints(*range(before, before + steps)), b.ints(steps, 1))
        later = b.of("Where", b.of("Less", own, b.ints(*range(total))), least, b.like(0.0, "Q"))
        found = later if found is None else b.of("Add", found, later)
    return found
