"""Rows of the operator table that attend: Attention where each step sees those before it, LinearAttention, which keeps
a state over the steps of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from poly.affine import Affine, Constraint, var
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Term, Value, fn, index_value

_N, _H, _Q, _S, _D, _M, _T = (var(name) for name in ("n", "h", "q", "s", "d", "m", "t"))


@dataclass(frozen=True)
class _Inputs:
    """Of LinearAttention, with the numbers of steps, batches and heads, the sizes of keys and values of a head, and how
    many query heads read one state. `wide`: what is computed in.
    """

    query: Value
    key: Value
    value: Value
    past: Value | None
    decay: Value | None
    beta: Value | None
    steps: int
    batch: int
    heads: int
    width: int
    depth: int
    each: int
    wide: str


def _inputs(b: Notation) -> _Inputs:
    """The inputs, checked."""
    query, key, value, past = b.input(0), b.input(1), b.input(2), b.optional(3)
    heads, readers = b.int_attribute("kv_num_heads"), b.int_attribute("q_num_heads")
    b.require(heads > 0 and readers > 0 and readers % heads == 0, f"{readers} query heads for {heads} others")
    fits = query.rank == key.rank == value.rank == 3 and query.shape[2] % readers == 0 and value.shape[2] % heads == 0
    b.require(fits and query.shape[:2] == key.shape[:2] == value.shape[:2], "needs [batch, steps, heads * size] each")
    batch, steps, width, depth = *query.shape[:2], query.shape[2] // readers, value.shape[2] // heads
    b.require(key.shape[2] == heads * width, f"key {list(key.shape)} is not {heads} heads of {width}")
    b.require(past is None or past.shape == (batch, heads, width, depth), "past_state does not fit")
    rule = b.string_attribute("update_rule", "gated_delta")
    b.require(rule in ("linear", "gated", "delta", "gated_delta"), f"update_rule {rule!r} is unknown")
    decay, beta = b.optional(4), b.optional(5)
    b.require((decay is not None) == ("gated" in rule), f"decay does not go with update_rule {rule!r}")
    b.require((beta is not None) == ("delta" in rule), f"beta does not go with update_rule {rule!r}")
    b.supported(steps > 0, "a sequence without steps has no compiled form")
    wide = "f64" if query.dtype == "f64" else "f32"
    each = readers // heads
    return _Inputs(query, key, value, past, decay, beta, steps, batch, heads, width, depth, each, wide)


def linear_attention(b: Notation) -> None:
    """One step after the other: state = exp(decay) * state + key (x) value; output = scale * query . state.

    The state before each step is kept, [steps + 1, batch, heads, d_k, d_v], so that nothing is overwritten. Computed in
    f32 at least.
    """
    i = _inputs(b)
    scale = b.float_attribute("scale", 0.0) or 1 / float(np.sqrt(i.width))
    y = b.output((i.batch, i.steps, i.heads * i.each * i.depth), i.query.dtype)
    state = _states(b, i)
    total = b.temporary("read", (i.batch, i.steps, i.heads * i.each, i.depth), i.wide)
    reader = _H * i.each + _Q
    product = i.query[_N, _S, reader * i.width + _D].cast(i.wide) * state[_S + 1, _N, _H, _D, _M]
    ranges = {"n": i.batch, "s": i.steps, "h": i.heads, "q": i.each, "m": i.depth}
    b.reduce(total, ranges, {"d": i.width}, product, index=(_N, _S, reader, _M), suffix="_read")
    result = (total[_N, _S, reader, _M] * scale).cast(i.query.dtype)
    b.assign(y, ranges, result, (_N, _S, reader * i.depth + _M))
    if b.wants(1):
        dtype = i.query.dtype if i.past is None else i.past.dtype
        present = b.output((i.batch, i.heads, i.width, i.depth), dtype, 1)
        box = {"n": i.batch, "h": i.heads, "d": i.width, "m": i.depth}
        b.assign(present, box, state[i.steps, _N, _H, _D, _M].cast(present.dtype), suffix="_present")


def _states(b: Notation, i: _Inputs) -> Value:
    """The state before every step, and behind the last one."""
    state = b.temporary("state", (i.steps + 1, i.batch, i.heads, i.width, i.depth), i.wide)
    box = {"n": i.batch, "h": i.heads, "d": i.width, "m": i.depth}
    first = 0.0 if i.past is None else i.past[_N, _H, _D, _M].cast(i.wide)
    b.assign(state, box, first, (0, _N, _H, _D, _M), suffix="_state0")
    before = state[_S, _N, _H, _D, _M]
    with b.loop({"s": i.steps}):
        if i.decay is not None:
            kept = b.temporary("kept", (i.steps, i.batch, i.heads, i.width, i.depth), i.wide)
            gate = _of_head(b, i.decay, i.heads, i.width).cast(i.wide)
            b.assign(kept, box, before * fn("exp", gate), (_S, _N, _H, _D, _M), suffix="_kept")
            before = kept[_S, _N, _H, _D, _M]
        own = i.value[_N, _S, _H * i.depth + _M].cast(i.wide)
        key = i.key[_N, _S, _H * i.width + _D].cast(i.wide)
        if i.beta is not None:
            own = _corrected(b, i, i.beta, own, key, before)
        b.assign(state, box, before + key * own, (_S + 1, _N, _H, _D, _M), suffix="_state")
    return state


def _of_head(b: Notation, decay: Value, heads: int, width: int) -> Term:
    """The decay of a head, or of each of its key dimensions."""
    b.require(decay.rank == 3 and decay.shape[2] in (heads, heads * width), f"decay {list(decay.shape)} does not fit")
    return decay[_N, _S, _H if decay.shape[2] == heads else _H * width + _D]


def _corrected(b: Notation, i: _Inputs, beta: Value, own: Term, key: Term, kept: Term) -> Term:
    """beta * (value - what the state already gives for the key)."""
    b.require(beta.rank == 3 and beta.shape[2] in (i.heads, 1), f"beta {list(beta.shape)} does not fit")
    found = b.temporary("found", (i.steps, i.batch, i.heads, i.depth), i.wide)
    ranges = {"n": i.batch, "h": i.heads, "m": i.depth}
    b.reduce(found, ranges, {"d": i.width}, kept * key, index=(_S, _N, _H, _M), suffix="_found")
    fresh = b.temporary("fresh", (i.steps, i.batch, i.heads, i.depth), i.wide)
    rate = beta[_N, _S, _H if beta.shape[2] == i.heads and i.heads > 1 else Affine()].cast(i.wide)
    b.assign(fresh, ranges, rate * (own - found[_S, _N, _H, _M]), (_S, _N, _H, _M), suffix="_fresh")
    return fresh[_S, _N, _H, _M]


def attention(b: Notation) -> None:
    """softmax(scale * query . key) . value, of the keys up to the query's own step.

    Of what comes later the weights are 0: whether it is read is left open (`optional`). All other forms are a function
    (`poly.frontend.onnx_attention_function`).
    """
    query, key, value = b.input(0), b.input(1), b.input(2)
    alike = not query.rank == key.rank == 4 or query.shape[3] == key.shape[3]
    b.require(alike, f"query {list(query.shape)} and key {list(key.shape)} have heads of other sizes")
    b.supported(_is_plain(b, query, key, value), "a function is not a row")
    batch, heads, steps, width = query.shape
    total, depth = key.shape[2], value.shape[3]
    y = b.output((batch, heads, steps, depth), "f32")
    scaled = b.temporary("scaled", query.shape, "f32")
    own = {"n": batch, "h": heads, "s": steps}
    scale = b.float_attribute("scale", float(1 / np.sqrt(width)))
    b.assign(scaled, {**own, "d": width}, query[_N, _H, _S, _D] * scale, suffix="_scaled")
    keys, later = {"t": total}, [Constraint(_T - _S - 1)]
    rows, square = query.shape[:3], (*query.shape[:3], total)
    scores, seen, exps, weights = (b.temporary(n, square, "f32") for n in ("scores", "seen", "exp", "weights"))
    largest, sums, inverse = (b.temporary(n, rows, "f32") for n in ("max", "sum", "inverse"))
    b.reduce(scores, {**own, **keys}, {"d": width}, scaled[_N, _H, _S, _D] * key[_N, _H, _T, _D], suffix="_scores")
    row, at = (_N, _H, _S), (_N, _H, _S, _T)
    before = fn("le", index_value(_T), index_value(_S))
    b.assign(seen, {**own, **keys}, fn("select", before, scores[at], -np.inf), suffix="_seen")
    b.reduce(largest, own, keys, seen[at], "max", suffix="_max", optional=later)
    b.assign(exps, {**own, **keys}, fn("exp", seen[at] - largest[row]), suffix="_exp")
    b.reduce(sums, own, keys, exps[at], suffix="_sum", optional=later)
    b.assign(inverse, own, 1.0 / sums[row], suffix="_inverse")
    b.assign(weights, {**own, **keys}, exps[at] * inverse[row], suffix="_weights")
    found = weights[at] * value[_N, _H, _T, _M]
    b.reduce(y, {**own, "m": depth}, keys, found, optional=later)


def _is_plain(b: Notation, query: Value, key: Value, value: Value) -> bool:
    """Whether all that masks keys is that they come later, and queries have keys of their own."""
    if b.int_attribute("is_causal", 0) != 1 or any(b.optional(k) is not None for k in range(3, 7)):
        return False
    if any(b.wants(k) for k in range(1, 4)) or b.float_attribute("softcap", 0.0):
        return False
    if any(b.int_attribute(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        return False
    fits = all(v.rank == 4 and v.dtype == "f32" and v.size for v in (query, key, value))
    return fits and query.shape[:2] == key.shape[:2] == value.shape[:2] and key.shape[2] == value.shape[2]


ROWS: Final[dict[str, Row]] = {
    "Attention": attention,
    "LinearAttention": linear_attention,
}
