"""Attention of ONNX Runtime's own domain, as transformers' exporters write it, by ONNX's operators."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from poly.frontend.onnx_contrib_text import FunctionText, finite, product_of_codes, scaled
from poly.frontend.onnx_notation import NeedsValue
from poly.frontend.onnx_terms import Value


def _heads(b: FunctionText, name: str, shape: tuple[int, ...], heads: int) -> str:
    """[batch, steps, heads * size] as [batch, heads, steps, size]."""
    batch, steps, width = shape
    b.require(width % heads == 0, f"{width} is not {heads} heads")
    apart = b.add(f"Reshape({name}, {b.ints(batch, steps, heads, width // heads)})")
    return b.add(f"Transpose <perm = [0, 2, 1, 3]> ({apart})")


def _scores(b: FunctionText, query: str, key: str, size: int) -> str:
    """Of operands by heads, before masks. `size`: of a query."""
    factor = b.number("scale") or float(1 / np.sqrt(size))
    turned = b.add(f"Transpose <perm = [0, 1, 3, 2]> ({key})")
    return scaled(b, b.add(f"MatMul({query}, {turned})"), factor, query)


def _beside(b: FunctionText, heads: str, batch: int, steps: int, width: int) -> str:
    """[batch, heads, steps, size] as the output, [batch, steps, heads * size]."""
    together = b.add(f"Transpose <perm = [0, 2, 1, 3]> ({heads})")
    return b.add(f"Reshape({together}, {b.ints(batch, steps, width)})", "output")


def _attended(b: FunctionText, query: str, key: str, value: str, shape: tuple[int, ...], masks: list[str]) -> str:
    """[batch, steps, heads * size] of operands by heads. `shape`: batch, heads, steps, size of a query, of a value."""
    batch, heads, steps, size, depth = shape
    scores = _scores(b, query, key, size)
    for mask in masks:
        scores = b.add(f"Add({scores}, {mask})")
    weights = b.add(f"Softmax <axis = -1> ({scores})")
    return _beside(b, b.add(f"MatMul({weights}, {value})"), batch, steps, heads * depth)


def _masks(
    b: FunctionText, mask: tuple[str, Value] | None, bias: str, steps: int, total: int, past: int, like: str
) -> list[str]:
    """What is added to scores. `mask`: which of all steps count, or how many do, for each item; `bias`: a name; `past`:
    steps before the first query; `like`: what has the dtype of scores.
    """
    found = [bias] if bias else []
    lowest = b.number("mask_filter_value")
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
        found.append(b.add(f"Where({kept}, {b.like(0.0, like)}, {b.like(lowest, like)})"))
    if b.integer("unidirectional"):  # whatever the value for a mask is
        keys = total - past
        b.require(steps == keys, f"unidirectional for {steps} queries and {keys} keys has no compiled form")
        filled = b.add(f"ConstantOfShape <value = float[1] {{{finite(-np.inf)}}}> ({b.ints(steps, total)})")
        later = b.add(f"Trilu <upper = 1> ({filled}, {b.add(f'Constant <value_int = {past + 1}> ()')})")
        found.append(b.add(f"CastLike({later}, {like})"))
    return found


def _unpacked(b: FunctionText, heads: int) -> list[tuple[str, tuple[int, ...]]]:
    """Queries, keys and values with their shapes, also where an operand holds [batch, steps, heads, 2 or 3, size]."""
    found, packed = list[tuple[str, tuple[int, ...]]](), 3 - (b.given(1) is not None) - (b.given(2) is not None)
    for position in range(4 - packed):
        value, name = b.known(position), b.inputs[position]
        if value.rank < 5:
            b.require(value.rank == 3 or (value.rank == 4 and position > 0), f"{name} {list(value.shape)} has no form")
            found.append((name, value.shape))
            continue
        batch, steps, own, parts, size = value.shape
        b.require(own == heads and position == 3 - parts, f"{name} {list(value.shape)} is not {heads} heads")
        for part in range(parts):
            taken = b.add(f"Gather <axis = 3> ({name}, {b.add(f'Constant <value_int = {part}> ()')})")
            shape = (batch, steps, heads * size)
            found.append((b.add(f"Reshape({taken}, {b.ints(*shape)})"), shape))
    b.require(len(found) == 3, "packed operands need [batch, steps, heads, parts, size]")
    return found


def multi_head(b: FunctionText) -> None:
    """Of operands that have been projected: queries, keys and values, each [batch, steps, heads * size]; keys and
    values by heads, too, and behind those of steps before.
    """
    heads = b.integer("num_heads")
    names, shapes = zip(*_unpacked(b, heads), strict=True)
    names, start = [*names], 0
    for k, shape in enumerate(shapes):
        width = shape[2] if len(shape) == 3 else heads * shape[3]
        if b.given(3) is not None and len(shape) == 3:
            bias = b.add(f"Slice(bias, {b.ints(start)}, {b.ints(start + width)})")
            names[k] = b.add(f"Add({names[k]}, {bias})")
        names[k] = _heads(b, names[k], shape, heads) if len(shape) == 3 else names[k]
        start += width
    query, _, value = shapes
    total, before = shapes[1][1 if len(shapes[1]) == 3 else 2], 0
    if (past := b.given(6)) is not None:
        pairs = zip(b.inputs[6:8], names[1:], strict=True)
        names[1:] = [b.add(f"Concat <axis = 2> ({old}, {new})") for old, new in pairs]
        before = past.shape[2]
        total += before
    depth = value[2] // heads if len(value) == 3 else value[3]
    shape = (query[0], heads, query[1], query[2] // heads, depth)
    mask = None if (given := b.given(4)) is None else (b.inputs[4], given)
    bias = b.name(5)
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, query[1], total, before, names[0]))
    for position, name in enumerate(names[1:], 1):
        if b.wants(position):
            b.add(f"Identity({name})", b.outputs[position])


def attention(b: FunctionText) -> None:
    """Projections by one matrix, [width, queries and keys and values], then attention of a sequence with itself."""
    b.require(b.given(6) is None, "rotary or shared caches have no compiled form")
    product = b.add(f"MatMul({b.inputs[0]}, {b.inputs[1]})")
    product = b.add(f"Add({product}, {b.inputs[2]})") if b.given(2) is not None else product
    _with_itself(b, product, 3, 4, b.name(5))


def quantised_attention(b: FunctionText) -> None:
    """The same from codes and codes of the weights, whose product is exact."""
    codes, weights = (b.name(0), b.name(3), b.name(6)), (b.name(1), b.name(4), b.name(7))
    _with_itself(b, product_of_codes(b, codes, weights, b.name(2)), 5, 8, "")


def _with_itself(b: FunctionText, product: str, mask_at: int, past_at: int, bias: str) -> None:
    """Attention of what a product holds beside each other. `mask_at`, `past_at`: operands."""
    x, weights, heads = b.known(0), b.known(1), b.integer("num_heads")
    sizes = b.call.attributes.get("qkv_hidden_sizes")
    widths = [weights.shape[1] // 3] * 3 if not isinstance(sizes, tuple) else [int(s) for s in sizes]
    b.require(not b.integer("do_rotary"), "rotary or shared caches have no compiled form")
    b.require(sum(widths) == weights.shape[1], f"weights {list(weights.shape)} are not {widths} together")
    names, start = list[str](), 0
    for width in widths:
        part = b.add(f"Slice({product}, {b.ints(start)}, {b.ints(start + width)}, {b.ints(2)})")
        names.append(_heads(b, part, (*x.shape[:2], width), heads))
        start += width
    total = steps = x.shape[1]
    if (past := b.given(past_at)) is not None:
        places = [b.add(f"Constant <value_int = {k}> ()") for k in range(2)]
        old = [b.of("Gather <axis = 0>", b.inputs[past_at], place) for place in places]
        names[1:] = [b.add(f"Concat <axis = 2> ({before}, {new})") for before, new in zip(old, names[1:], strict=True)]
        total += past.shape[3]
    shape = (x.shape[0], heads, steps, widths[0] // heads, widths[2] // heads)
    mask = None if (given := b.given(mask_at)) is None else (b.inputs[mask_at], given)
    _attended(b, *names, shape=shape, masks=_masks(b, mask, bias, steps, total, total - steps, names[0]))
    if b.wants(1):
        both = ", ".join(b.add(f"Unsqueeze({name}, {b.ints(0)})") for name in names[1:])
        b.add(f"Concat <axis = 0> ({both})", b.outputs[1])


# -- heads that share keys -----------------------------------------------------------------------------------------


def rotary(b: FunctionText) -> None:
    """Positions may be one place for the first step of all."""
    x, positions = b.known(0), "position_ids"
    steps = x.shape[1 if x.rank == 3 else 2]
    b.require(not b.integer("is_packed_batching"), "packed batching has no compiled form")
    if b.known(1).size == 1 and x.shape[0] * steps > 1:
        first = b.add(f"Reshape(position_ids, {b.ints(1, 1)})")
        positions = b.add(f"Expand({b.add(f'Add({first}, {b.ints(*range(steps))})')}, {b.ints(x.shape[0], steps)})")
    heads = b.integer("num_heads")
    if x.rank == 3 and not heads:
        heads = x.shape[2] // (2 * b.known(2).shape[1])
    scaled(b, _rotated(b, "input", positions, heads, b.integer("interleaved")), b.number("scale"), "input", "output")


def _rotated(b: FunctionText, x: str, positions: str, heads: int, interleaved: int) -> str:
    size = b.call.attributes.get("rotary_embedding_dim", 0)
    attributes = f"<num_heads = {heads}, rotary_embedding_dim = {size}, interleaved = {interleaved}>"
    return b.add(f"RotaryEmbedding {attributes} ({x}, cos_cache, sin_cache, {positions})")


def grouped(b: FunctionText) -> None:
    """Attention of queries whose heads share keys and values by groups, with those of steps before: each item has
    `seqlens_k` + 1 steps of them, the last ones its own.
    """
    heads, kept = b.integer("num_heads"), b.integer("kv_num_heads")
    for position in (10, 11):
        b.require(b.given(position) is None, f"{b.inputs[position]} has no compiled form")
    b.require(b.integer("smooth_softmax") <= 0, "smooth_softmax has no compiled form")
    batch, steps, width = b.known(0).shape
    size = width // heads if b.given(1) is not None else width // (heads + 2 * kept)
    names = [*b.inputs[:3]]
    if b.given(1) is None:
        bounds = [0, heads * size, (heads + kept) * size, width]
        names = [b.add(f"Slice(query, {b.ints(p)}, {b.ints(q)}, {b.ints(2)})") for p, q in pairwise(bounds)]
    last = b.add(f"Reshape({b.add('Cast <to = 7> (seqlens_k)')}, {b.ints(-1, 1)})")
    first = b.add(f"Max({b.add(f'Sub({last}, {b.ints(steps - 1)})')}, {b.ints(0)})")
    if b.integer("do_rotary"):
        places = b.add(f"Add({first}, {b.ints(*range(steps))})") if b.given(9) is None else "position_ids"
        pairs = zip(names[:2], (heads, kept), strict=True)
        names[:2] = [_rotated(b, x, places, count, b.integer("rotary_interleaved")) for x, count in pairs]
    counts = (heads, kept, kept)
    query, *new = (_heads(b, x, (batch, steps, n * size), n) for x, n in zip(names, counts, strict=True))
    held = [_present(b, x, position, (batch, kept, steps, size), first) for position, x in enumerate(new)]
    total = _total(b, steps)
    rows = heads // kept * steps
    query = b.add(f"Reshape({query}, {b.ints(batch, kept, rows, size)})")
    scores = _scores(b, query, held[0], size)
    if cap := b.number("softcap"):
        most = b.like(cap, query)
        scores = b.of("Mul", b.of("Tanh", b.of("Div", scores, most)), most)
    own = b.of("Add", first, b.ints(*(k % steps for k in range(rows))))
    own, keys = b.of("Reshape", own, b.ints(batch, 1, rows, 1)), b.ints(*range(total))
    seen = b.of("LessOrEqual", keys, own)
    if (window := b.integer("local_window_size")) > 0:
        seen = b.of("And", seen, b.of("Greater", keys, b.of("Sub", own, b.ints(window))))
    weights = b.of("Softmax <axis = -1>", b.of("Where", seen, scores, b.like(-np.inf, query)))
    found = b.of("Reshape", b.of("MatMul", weights, held[1]), b.ints(batch, heads, steps, size))
    _beside(b, found, batch, steps, heads * size)


def _total(b: FunctionText, steps: int) -> int:
    """The steps that the results hold: as many as the longest item has, or as the operands have room for."""
    total, past = b.known(6), b.given(3)
    if total.array is None:
        raise NeedsValue(total, "total_sequence_length is only known at run time, and shapes depend on it")
    return max(int(total.array.reshape(-1)[0]), steps if past is None else past.shape[2])


def _present(b: FunctionText, new: str, position: int, shape: tuple[int, ...], first: str) -> str:
    """Keys or values of all steps: those of before, and from `first` on new ones."""
    batch, kept, steps, size = shape
    past, total = b.given(3 + position), _total(b, steps)
    before, result = 0 if past is None else past.shape[2], b.outputs[1 + position]
    if not before:
        b.require(total == steps, f"{steps} first steps of {total} have no compiled form")
        return b.add(f"Identity({new})", result)
    held = b.inputs[3 + position]
    if total > before:
        held = b.add(f"Pad({held}, {b.ints(0, 0, 0, 0, 0, 0, total - before, 0)})")
    place = b.add(f"Unsqueeze({first}, {b.ints(2, 3)})")
    if steps == 1:
        here = b.add(f"Equal({b.add(f'Reshape({b.ints(*range(total))}, {b.ints(total, 1)})')}, {place})")
        return b.add(f"Where({here}, {new}, {held})", result)
    rows = b.add(f"Add({place}, {b.add(f'Reshape({b.ints(*range(steps))}, {b.ints(steps, 1)})')})")
    rows = b.add(f"Expand({rows}, {b.ints(batch, kept, steps, size)})")
    return b.add(f"ScatterElements <axis = 2> ({held}, {rows}, {new})", result)
