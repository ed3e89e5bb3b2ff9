"""Attention of ONNX Runtime's own domain, as transformers' exporters write it, by ONNX's operators."""

from __future__ import annotations

import numpy as np

from poly.frontend.onnx_contrib_text import FunctionText, finite, scaled
from poly.frontend.onnx_terms import Value


def _heads(b: FunctionText, name: str, shape: tuple[int, ...], heads: int) -> str:
    """[batch, steps, heads * size] as [batch, heads, steps, size]."""
    batch, steps, width = shape
    b.require(width % heads == 0, f"{width} is not {heads} heads")
    apart = b.add(f"Reshape({name}, {b.ints(batch, steps, heads, width // heads)})")
    return b.add(f"Transpose <perm = [0, 2, 1, 3]> ({apart})")


def _attended(b: FunctionText, query: str, key: str, value: str, shape: tuple[int, ...], masks: list[str]) -> str:
    """[batch, steps, heads * size] of operands by heads. `shape`: batch, heads, steps, size of a query, of a value."""
    batch, heads, steps, size, depth = shape
    factor = b.number("scale") or float(1 / np.sqrt(size))
    turned = b.add(f"Transpose <perm = [0, 1, 3, 2]> ({key})")
    scores = scaled(b, b.add(f"MatMul({query}, {turned})"), factor, query)
    for mask in masks:
        scores = b.add(f"Add({scores}, {mask})")
    weights = b.add(f"Softmax <axis = -1> ({scores})")
    together = b.add(f"Transpose <perm = [0, 2, 1, 3]> ({b.add(f'MatMul({weights}, {value})')})")
    return b.add(f"Reshape({together}, {b.ints(batch, steps, heads * depth)})", "output")


def _masks(
    b: FunctionText, mask: tuple[str, Value] | None, bias: str, steps: int, total: int, past: int
) -> list[str]:
    """What is added to scores. `mask`: which of all steps count, or how many do, for each item; `bias`: a name; `past`:
    steps before the first query.
    """
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
            kept = b.add(f"Greater({name}, {b.add(f'CastLike({b.ints(0)}, {name})')})")
        kept = b.add(f"Unsqueeze({kept}, {b.ints(1) if value.rank == 3 else b.ints(1, 2)})")
        found.append(b.add(f"Where({kept}, {b.like(0.0, first)}, {b.like(lowest, first)})"))
    if b.integer("unidirectional"):  # whatever the value for a mask is
        keys = total - past
        b.require(steps == keys, f"unidirectional for {steps} queries and {keys} keys has no compiled form")
        filled = b.add(f"ConstantOfShape <value = float[1] {{{finite(-np.inf)}}}> ({b.ints(steps, total)})")
        later = b.add(f"Trilu <upper = 1> ({filled}, {b.add(f'Constant <value_int = {past + 1}> ()')})")
        found.append(b.add(f"CastLike({later}, {first})"))
    return found


def multi_head(b: FunctionText) -> None:
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
    total, before = sides[1].shape[1 if sides[1].rank == 3 else 2], 0
    if (past := b.given(6)) is not None:
        pairs = zip(b.inputs[6:8], names[1:], strict=True)
        names[1:] = [b.add(f"Concat <axis = 2> ({old}, {new})") for old, new in pairs]
        before = past.shape[2]
        total += before
    depth = sides[2].shape[2] // heads if sides[2].rank == 3 else sides[2].shape[3]
    shape = (query.shape[0], heads, query.shape[1], query.shape[2] // heads, depth)
    mask = None if (given := b.given(4)) is None else (b.inputs[4], given)
    bias = b.inputs[5] if b.given(5) is not None else ""
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, query.shape[1], total, before))
    for position, name in enumerate(names[1:], 1):
        if b.wants(position):
            b.add(f"Identity({name})", b.outputs[position])


def attention(b: FunctionText) -> None:
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
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, steps, total, total - steps))
    if b.wants(1):
        both = ", ".join(b.add(f"Unsqueeze({name}, {b.ints(0)})") for name in names[1:])
        b.add(f"Concat <axis = 0> ({both})", b.outputs[1])
