"""Rows of the operator table that are loops over time: RNN, GRU, LSTM.

The products with the input do not depend on the step before and are sums over all steps at once; the biases, the
products with the state, the gates and the new state are statements of one loop over time, in this order. A step's
values have the step as their first subscript, so that no value is overwritten. Behind the end of a sequence that is
shorter than the input the state stays as it is and the output is zero: a reverse one begins at its own last element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from poly.affine import Affine, var
from poly.dtypes import is_float
from poly.frontend.onnx_logarithms import softplus
from poly.frontend.onnx_notation import Notation, Row
from poly.frontend.onnx_terms import Index, Term, Value, fn, index_value, literal

Activation = Callable[[Term], Term]
_S, _B, _H, _G, _J, _K = (var(name) for name in ("s", "b", "h", "g", "j", "k"))
_SIDE_BY_SIDE: Final = 32  # gates that lie together: what a step reads of R is contiguous
_LEAST_SIDE_BY_SIDE: Final = 8


@dataclass(frozen=True)
class _Layer:
    """One direction: operands, extents (steps, batch, inputs, hidden), and how its steps lie in the sequence."""

    b: Notation
    x: Value
    gates: int
    direction: int
    backwards: bool
    extents: tuple[int, int, int, int]
    batch_first: bool
    activations: tuple[Activation, ...]
    clip: float | None
    turned: Value  # R of this direction as [block, k, j of the block]
    lengths: Value | None  # of the batch's sequences; None: all are as long as the input

    @property
    def suffix(self) -> str:
        return f"_{self.direction}"

    @property
    def step(self) -> Affine:
        """The place in the sequence of step s."""
        return self.extents[0] - 1 - _S if self.backwards else _S

    def inside(self, value: Term, behind: Term | float) -> Term:
        """A value in the steps that belong to a sequence, another one in those that do not."""
        if self.lengths is None:
            return value
        return fn("select", fn("lt", index_value(self.step), self.lengths[_B].cast("i64")), value, behind)

    def temporary(self, name: str, *shape: int) -> Value:
        return self.b.temporary(name, shape, self.x.dtype)

    def clipped(self, v: Term) -> Term:
        return v if self.clip is None else fn("max", fn("min", v, self.clip), -self.clip)

    def activate(self, which: int, v: Term) -> Term:
        return self.activations[which](self.clipped(v))

    def bias(self, j: Index, *, recurrent: bool) -> Term | None:
        bias = self.b.optional(3)
        return None if bias is None else bias[self.direction, j + (self.gates * self.extents[3] if recurrent else 0)]

    def inputs(self) -> Value:
        """[s, b, j]: x W', for all steps at once."""
        steps, batch, width, hidden = self.extents
        sums = self.temporary("sums", steps, batch, self.gates * hidden)
        where = (_B, self.step, _K) if self.batch_first else (self.step, _B, _K)
        value = self.x[where] * self.b.input(1)[self.direction, _J, _K]
        ranges = {"s": steps, "b": batch, "j": self.gates * hidden}
        self.b.reduce(sums, ranges, {"k": width}, value, suffix=f"_input{self.suffix}")
        return sums

    def begin(self, sums: Value, recurrent_bias: int) -> Value:
        """z[s, b, j] in step s: the sums with the biases, those of the state only for the first `recurrent_bias` gates.

        The products with the state are added here, and not to the sums, which are complete before the first step.
        """
        steps, batch, _, hidden = self.extents
        z = self.temporary("z", steps, batch, self.gates * hidden)
        for first, last, both in ((0, recurrent_bias, True), (recurrent_bias, self.gates, False)):
            if first == last:
                continue
            j = _J + first * hidden
            own, other = self.bias(j, recurrent=False), self.bias(j, recurrent=True)
            value = sums[_S, _B, j]
            if own is not None and other is not None:
                value = value + (own + other if both else own)
            ranges = {"b": batch, "j": (last - first) * hidden}
            self.b.assign(z, ranges, value, (_S, _B, j), suffix=f"_bias{self.suffix}")
        return z

    def state(self, name: str, position: int) -> Value:
        """A state before every step and after the last one: [steps + 1, batch, hidden]."""
        steps, batch, _, hidden = self.extents
        state = self.temporary(name, steps + 1, batch, hidden)
        initial = self.b.optional(position)
        d = self.direction
        value = 0.0 if initial is None else initial[(_B, d, _H) if self.batch_first else (d, _B, _H)]
        self.b.assign(state, {"b": batch, "h": hidden}, value, (0, _B, _H), suffix=f"_{name}0{self.suffix}")
        return state

    def last(self, state: Value, y: Value | None, name: str) -> None:
        """The state after the last step, into an output."""
        steps, batch, _, hidden = self.extents
        if y is None:
            return
        where = (_B, self.direction, _H) if self.batch_first else (self.direction, _B, _H)
        value = state[steps, _B, _H]
        if self.lengths is not None:  # ONNX Runtime has no state of a sequence without elements
            value = fn("select", fn("gt", self.lengths[_B].cast("i64"), 0), value, 0.0)
        self.b.assign(y, {"b": batch, "h": hidden}, value, where, suffix=f"_{name}_last{self.suffix}")

    def product(self, target: Value, state: Value, at: Index, rows: tuple[int, int], first: int) -> None:
        """target[s, b, first + j] += state[at, b, k] R[j, k] for the gates rows[0] .. rows[1] - 1."""
        _, batch, _, hidden = self.extents
        size = self.turned.shape[2]
        ranges = {"b": batch, "g": (rows[1] - rows[0]) * hidden // size, "j": size, "k": hidden}
        value = state[at, _B, _K] * self.turned[_G + rows[0] * hidden // size, _K, _J]
        where = (_S, _B, _G * size + _J + first)
        self.b.assign(target, ranges, value, where, suffix=f"_state{self.suffix}", combiner="+")

    def write(self, target: Value, index: Sequence[Index], value: Term, name: str) -> None:
        """One value for each element of the batch and the state, inside the loop over time."""
        ranges = {"b": self.extents[1], "h": self.extents[3]}
        self.b.assign(target, ranges, value, index, suffix=f"_{name}{self.suffix}")


def _rnn_step(layer: _Layer, z: Value, h: Value) -> None:
    layer.product(z, h, _S, (0, 1), 0)
    layer.write(h, (_S + 1, _B, _H), layer.inside(layer.activate(0, z[_S, _B, _H]), h[_S, _B, _H]), "h")


def _gru_step(layer: _Layer, z: Value, h: Value) -> None:
    """Gates in the order update, reset, hidden."""
    steps, batch, _, hidden = layer.extents
    layer.product(z, h, _S, (0, 2), 0)
    update, new = layer.temporary("update", steps, batch, hidden), layer.temporary("new", steps, batch, hidden)
    reset = layer.activate(0, z[_S, _B, _H + hidden])
    layer.write(update, (_S, _B, _H), layer.activate(0, z[_S, _B, _H]), "update")
    point = (_S, _B, _H)
    if layer.b.int_attribute("linear_before_reset", 0):
        q = layer.temporary("q", steps, batch, hidden)
        bias = layer.bias(_H + 2 * hidden, recurrent=True)
        layer.write(q, point, literal(0.0) if bias is None else bias, "q")
        layer.product(q, h, _S, (2, 3), 0)
        layer.write(new, point, layer.activate(1, z[_S, _B, _H + 2 * hidden] + reset * q[point]), "new")
    else:
        kept = layer.temporary("kept", steps, batch, hidden)
        layer.write(kept, point, reset * h[point], "kept")
        layer.product(z, kept, _S, (2, 3), 2 * hidden)
        layer.write(new, point, layer.activate(1, z[_S, _B, _H + 2 * hidden]), "new")
    value = (1.0 - update[point]) * new[point] + update[point] * h[point]
    layer.write(h, (_S + 1, _B, _H), layer.inside(value, h[point]), "h")


def _lstm_step(layer: _Layer, z: Value, h: Value, c: Value) -> None:
    """Gates in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    hidden = layer.extents[3]
    layer.product(z, h, _S, (0, 4), 0)
    peepholes = layer.b.optional(7)

    def gate(number: int, cell: Index) -> Term:
        v = z[_S, _B, _H + number * hidden]
        if peepholes is not None:
            v = v + peepholes[layer.direction, _H + number * hidden] * c[cell, _B, _H]
        return layer.activate(0, v)

    def coupled() -> Term:
        return 1.0 - gate(0, _S) if layer.b.int_attribute("input_forget", 0) else gate(2, _S)

    new = layer.activate(1, z[_S, _B, _H + 3 * hidden])
    cell = coupled() * c[_S, _B, _H] + gate(0, _S) * new
    layer.write(c, (_S + 1, _B, _H), layer.inside(cell, c[_S, _B, _H]), "c")
    # the clip is about the gates' own sums: the cell state goes to h unclipped
    value = gate(1, _S + 1) * layer.activations[2](c[_S + 1, _B, _H])
    layer.write(h, (_S + 1, _B, _H), layer.inside(value, h[_S, _B, _H]), "h")


# -- the rows ------------------------------------------------------------------------------------------------------


def _row(gates: int, default: tuple[str, ...]) -> Row:
    def row(b: Notation) -> None:
        layers = _layers(b, gates, default)
        steps, batch, _, hidden = layers[0].extents
        count, dtype = len(layers), layers[0].x.dtype
        batch_first = layers[0].batch_first
        whole = (batch, steps, count, hidden) if batch_first else (steps, count, batch, hidden)
        final = (batch, count, hidden) if batch_first else (count, batch, hidden)
        y = b.output(whole, dtype) if b.wants(0) else None
        last = [b.output(final, dtype, k) if b.wants(k) else None for k in (1, 2)]
        for layer in layers:
            states = _run(layer)
            for state, target, name in zip(states, last, ("h", "c"), strict=False):
                layer.last(state, target, name)
            if y is not None:
                at, d = layer.step, layer.direction
                index = (_B, at, d, _H) if batch_first else (at, d, _B, _H)
                ranges = {"s": steps, "b": batch, "h": hidden}
                value = layer.inside(states[0][_S + 1, _B, _H], 0.0)
                b.assign(y, ranges, value, index, suffix=f"_y{layer.suffix}")

    return row


def _run(layer: _Layer) -> tuple[Value, ...]:
    """The states of one direction, before every step and after the last."""
    linear = layer.gates == 3 and layer.b.int_attribute("linear_before_reset", 0) != 0
    sums = layer.inputs()
    h = layer.state("h", 5)
    c = layer.state("c", 6) if layer.gates == 4 else h
    with layer.b.loop({"s": layer.extents[0]}):
        z = layer.begin(sums, 2 if linear else layer.gates)
        match layer.gates:
            case 1:
                _rnn_step(layer, z, h)
            case 3:
                _gru_step(layer, z, h)
            case _:
                _lstm_step(layer, z, h, c)
    return (h, c) if layer.gates == 4 else (h,)


def _layers(b: Notation, gates: int, default: tuple[str, ...]) -> list[_Layer]:
    """The node's directions. Raises `OnnxError` where shapes do not fit together."""
    x, w, r = b.input(0), b.input(1), b.input(2)
    b.require(x.rank == w.rank == r.rank == 3 and is_float(x.dtype), "needs floats X, W and R of rank 3")
    batch_first = b.int_attribute("layout", 0) == 1
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    direction = b.string_attribute("direction", "forward")
    b.require(direction in ("forward", "reverse", "bidirectional"), f"direction {direction!r} is unknown")
    count, hidden, width = 2 if direction == "bidirectional" else 1, r.shape[2], x.shape[2]
    b.require(b.int_attribute("hidden_size", hidden) == hidden, f"hidden_size is not that of R {list(r.shape)}")
    _fits(b, "W", w, (count, gates * hidden, width))
    _fits(b, "R", r, (count, gates * hidden, hidden))
    _fits(b, "B", b.optional(3), (count, 2 * gates * hidden))
    state = (batch, count, hidden) if batch_first else (count, batch, hidden)
    _fits(b, "initial_h", b.optional(5), state)
    _fits(b, "initial_c", b.optional(6), state)
    _fits(b, "P", b.optional(7), (count, 3 * hidden))
    b.supported(steps > 0, "a sequence without steps has no compiled form")
    lengths = b.optional(4)
    _fits(b, "sequence_lens", lengths, (batch,))
    if lengths is not None and lengths.array is not None and bool((lengths.array == steps).all()):
        lengths = None
    functions = _activations(b, count, default)
    clip = b.float_attribute("clip") if b.has("clip") else None
    each, extents = len(default), (steps, batch, width, hidden)
    return [
        _Layer(b, x, gates, d, direction == "reverse" or d == 1, extents, batch_first,
               tuple(functions[d * each : (d + 1) * each]), clip, _turned(b, r, d), lengths)
        for d in range(count)
    ]  # fmt: skip


def _turned(b: Notation, r: Value, direction: int) -> Value:
    """r[direction, g * size + j, k] as [g, k, j]: once, for all steps."""
    rows, hidden = r.shape[1:]
    size = gcd(hidden, _SIDE_BY_SIDE)
    size = size if size >= _LEAST_SIDE_BY_SIDE else hidden
    turned = b.temporary("turned", (rows // size, hidden, size), r.dtype)
    ranges = {"g": rows // size, "j": size, "k": hidden}
    value = r[direction, _G * size + _J, _K]
    b.assign(turned, ranges, value, (_G, _K, _J), suffix=f"_turned_{direction}")
    return turned


def _fits(b: Notation, name: str, value: Value | None, shape: tuple[int, ...]) -> None:
    if value is not None:
        b.require(value.shape == shape, f"{name} is {list(value.shape)}, not {list(shape)}")


def _activations(b: Notation, count: int, default: tuple[str, ...]) -> list[Activation]:
    names = b.call.attributes.get("activations") or default * count
    if not isinstance(names, tuple) or len(names) < count * len(default):
        raise b.fail(f"activations {names!r} are not {count * len(default)} names")
    names = names[: count * len(default)]  # the schema's default is always for two directions
    alphas, betas = b.call.attributes.get("activation_alpha"), b.call.attributes.get("activation_beta")
    found: list[Activation] = []
    for k, name in enumerate(names):
        entry = _ACTIVATIONS.get(str(name).lower())
        if entry is None:
            raise b.fail(f"activation {name!r} is unknown")
        function, alpha, beta = entry
        own = _given(b, alphas, k, names, _WITH_ALPHA, alpha), _given(b, betas, k, names, _WITH_BETA, beta)
        found.append(_with(function, *own))
    return found


def _given(
    b: Notation, values: object, position: int, names: Sequence[object], takers: frozenset[str], default: float
) -> float:
    """A parameter of one activation: there is one for each, or one for each that takes one."""
    if not values or not isinstance(values, tuple):
        return default
    places = [k for k, name in enumerate(names) if len(values) == len(names) or str(name).lower() in takers]
    b.require(len(values) == len(places), f"{len(values)} activation parameters for {len(names)} activations")
    return float(values[places.index(position)]) if position in places else default


def _with(function: Callable[[Term, float, float], Term], alpha: float, beta: float) -> Activation:
    return lambda v: function(v, alpha, beta)


_ACTIVATIONS: Final[dict[str, tuple[Callable[[Term, float, float], Term], float, float]]] = {
    "affine": (lambda v, a, b: v * a + b, 1.0, 0.0),
    "elu": (lambda v, a, b: fn("select", fn("lt", v, 0), (fn("exp", v) - 1.0) * a, v), 1.0, 0.0),
    "hardsigmoid": (lambda v, a, b: fn("max", fn("min", v * a + b, 1.0), 0.0), 0.2, 0.5),
    "leakyrelu": (lambda v, a, b: fn("select", fn("lt", v, 0), v * a, v), 0.01, 0.0),
    "relu": (lambda v, a, b: fn("max", v, 0), 0.0, 0.0),
    "scaledtanh": (lambda v, a, b: fn("tanh", v * b) * a, 1.0, 1.0),
    "sigmoid": (lambda v, a, b: fn("sigmoid", v), 0.0, 0.0),
    "softplus": (lambda v, a, b: softplus(v), 0.0, 0.0),
    "softsign": (lambda v, a, b: v / (fn("abs", v) + 1.0), 0.0, 0.0),
    "tanh": (lambda v, a, b: fn("tanh", v), 0.0, 0.0),
    "thresholdedrelu": (lambda v, a, b: fn("select", fn("gt", v, a), v, 0), 1.0, 0.0),
}

_WITH_BETA: Final = frozenset({"affine", "hardsigmoid", "scaledtanh"})
_WITH_ALPHA: Final = _WITH_BETA | {"elu", "leakyrelu", "thresholdedrelu"}


ROWS: Final[dict[str, Row]] = {
    "GRU": _row(3, ("Sigmoid", "Tanh")),
    "LSTM": _row(4, ("Sigmoid", "Tanh", "Tanh")),
    "RNN": _row(1, ("Tanh",)),
}
