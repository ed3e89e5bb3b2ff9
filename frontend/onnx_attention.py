"""Rows of the operator table that keep a state over the steps of a sequence: LinearAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.frontend.onnx_notation import Notation
from poly.frontend.onnx_terms import Index, Term, Value, fn

Row = Callable[[Notation], None]
_N, _H, _Q, _S, _D, _M = (var(name) for name in ("n", "h", "q", "s", "d", "m"))


def linear_attention(b: Notation) -> None:
    """One step after the other: state = exp(decay) * state + key (x) value; output = scale * query . state.

    The state before each step is kept, [steps + 1, batch, heads, d_k, d_v], so that nothing is overwritten. Computed in
    f32 at least.
    """
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
    scale = b.float_attribute("scale", 0.0) or 1 / float(np.sqrt(width))
    y = b.output((batch, steps, readers * depth), query.dtype)
    state = b.temporary("state", (steps + 1, batch, heads, width, depth), wide)
    box = {"n": batch, "h": heads, "d": width, "m": depth}
    first = 0.0 if past is None else past[_N, _H, _D, _M].cast(wide)
    b.assign(state, box, first, (0, _N, _H, _D, _M), suffix="_state0")
    kept: Value = state
    read: Index = _S
    with b.loop({"s": steps}):
        if decay is not None:
            kept, read = b.temporary("kept", (steps, batch, heads, width, depth), wide), _S
            gate = _of_head(b, decay, heads, width).cast(wide)
            b.assign(kept, box, state[_S, _N, _H, _D, _M] * fn("exp", gate), (_S, _N, _H, _D, _M), suffix="_kept")
        own = value[_N, _S, _H * depth + _M].cast(wide)
        key_of = key[_N, _S, _H * width + _D].cast(wide)
        if beta is not None:
            extents = (steps, batch, heads, width, depth)
            own = _corrected(b, beta, own, key_of, kept[read, _N, _H, _D, _M], wide, extents)
        new = kept[read, _N, _H, _D, _M] + key_of * own
        b.assign(state, box, new, (_S + 1, _N, _H, _D, _M), suffix="_state")
    each = readers // heads
    total = b.temporary("read", (batch, steps, readers, depth), wide)
    reader = _H * each + _Q
    product = query[_N, _S, reader * width + _D].cast(wide) * state[_S + 1, _N, _H, _D, _M]
    ranges = {"n": batch, "s": steps, "h": heads, "q": each, "m": depth}
    b.reduce(total, ranges, {"d": width}, product, index=(_N, _S, reader, _M), suffix="_read")
    result = (total[_N, _S, reader, _M] * scale).cast(query.dtype)
    b.assign(y, ranges, result, (_N, _S, reader * depth + _M))
    if b.wants(1):
        present = b.output((batch, heads, width, depth), query.dtype if past is None else past.dtype, 1)
        b.assign(present, box, state[steps, _N, _H, _D, _M].cast(present.dtype), suffix="_present")


def _of_head(b: Notation, decay: Value, heads: int, width: int) -> Term:
    """The decay of a head, or of each of its key dimensions."""
    b.require(decay.rank == 3 and decay.shape[2] in (heads, heads * width), f"decay {list(decay.shape)} does not fit")
    return decay[_N, _S, _H if decay.shape[2] == heads else _H * width + _D]


def _corrected(
    b: Notation, beta: Value, own: Term, key_of: Term, kept: Term, wide: str, extents: tuple[int, int, int, int, int]
) -> Term:
    """beta * (value - what the state already gives for the key)."""
    steps, batch, heads, width, depth = extents
    b.require(beta.rank == 3 and beta.shape[2] in (heads, 1), f"beta {list(beta.shape)} does not fit")
    found = b.temporary("found", (steps, batch, heads, depth), wide)
    ranges = {"n": batch, "h": heads, "m": depth}
    b.reduce(found, ranges, {"d": width}, kept * key_of, index=(_S, _N, _H, _M), suffix="_found")
    fresh = b.temporary("fresh", (steps, batch, heads, depth), wide)
    rate = beta[_N, _S, _H if beta.shape[2] == heads and heads > 1 else Affine()].cast(wide)
    b.assign(fresh, ranges, rate * (own - found[_S, _N, _H, _M]), (_S, _N, _H, _M), suffix="_fresh")
    return fresh[_S, _N, _H, _M]


ROWS: Final[dict[str, Row]] = {
    "LinearAttention": linear_attention,
}
