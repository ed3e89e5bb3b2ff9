"""Functions of ONNX Runtime's own domain on floats, by ONNX's operators: products, activations, normalisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poly.frontend import onnx_contrib_quantised as quantised
from poly.frontend.onnx_contrib_text import FunctionText, scaled

Make = Callable[[FunctionText], None]


# -- elementwise and products --------------------------------------------------------------------------------------


def simple(*lines: str) -> Make:
    """A function of text alone."""

    def make(b: FunctionText) -> None:
        b.lines += lines

    return make


def fast_gelu(b: FunctionText) -> None:
    x = "X" if b.given(1) is None else b.add("Add(X, bias)")
    b.add(f'Gelu <approximate = "tanh"> ({x})', "Y")


def quick_gelu(b: FunctionText) -> None:
    factor = b.add(f"Mul(X, {b.like(b.number('alpha'), 'X')})")
    b.add(f"Mul(X, {b.add(f'Sigmoid({factor})')})", "Y")


def fused_matmul(b: FunctionText) -> None:
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


def simplified(b: FunctionText) -> None:
    b.require(not b.wants(1), "inv_std_var has no compiled form")
    b.add(f"RMSNormalization <axis = {b.integer('axis')}, epsilon = {b.number('epsilon')!r}> (X, scale)", "Y")


def skip_layer(b: FunctionText) -> None:
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


def embed_layer(b: FunctionText) -> None:
    """Words, places and segments, normalised."""
    b.require(not b.wants(1), "mask_index has no compiled form")
    _, steps = b.known(0).shape
    places = "position_ids" if b.given(8) is not None else b.ints(*range(steps))
    total = b.add(f"Add({b.add('Gather(word, input_ids)')}, {b.add(f'Gather(place, {places})')})")
    if b.given(1) is not None:
        total = b.add(f"Add({total}, {b.add('Gather(segment, segment_ids)')})")
    b.add(f"Identity({total})", "sum")
    b.add(f"LayerNormalization <axis = -1, epsilon = {b.number('epsilon')!r}> (sum, gamma, beta)", "output")


# -- with an activation --------------------------------------------------------------------------------------------


def activated(b: FunctionText, x: str, parameters: Sequence[float], name: str) -> None:
    """The function that a node says, of the parameters that it has."""
    kind = b.word("activation")
    known = {"": "Identity", "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "HardSigmoid": "HardSigmoid"}
    if kind in ("LeakyRelu", "HardSigmoid", "Elu") and parameters:
        names = ("alpha", "beta") if kind == "HardSigmoid" else ("alpha",)
        texts = [f"{n} = {float(v)!r}" for n, v in zip(names, parameters, strict=False)]
        b.add(f"{kind} <{', '.join(texts)}> ({x})", name)
    elif kind == "Clip" and len(parameters) == 2:
        b.add(f"Clip({x}, {', '.join(b.like(float(v), x) for v in parameters)})", name)
    else:
        b.require(kind in known, f"activation {kind!r} with {list(parameters)} has no compiled form")
        b.add(f"{known[kind]}({x})", name)


def fused_conv(b: FunctionText) -> None:
    operands = ", ".join(filter(None, map(b.name, range(3))))
    attributes = b.copied("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    total = b.add(f"Conv {attributes} ({operands})")
    total = total if b.given(3) is None else b.add(f"Add({total}, Z)")
    given = b.call.attributes.get("activation_params")
    activated(b, total, [float(v) for v in given] if isinstance(given, tuple) else [], "Y")


def fused_gemm(b: FunctionText) -> None:
    operands = ", ".join(filter(None, map(b.name, range(3))))
    total = b.add(f"Gemm {b.copied('alpha', 'beta', 'transA', 'transB')} ({operands})")
    given = [b.call.attributes.get(n) for n in ("activation_alpha", "activation_beta")]
    activated(b, total, [float(v) for v in given if isinstance(v, float)], "Y")


# -- others --------------------------------------------------------------------------------------------------------


def as_onnx(b: FunctionText) -> None:
    """ONNX's operator of the name, with what the node has."""
    operands = ", ".join(b.name(k) for k in range(len(b.inputs))).rstrip(", ")
    b.add(f"{b.call.operator} {b.copied(*b.call.attributes)} ({operands})", b.outputs[0])


def grid_sample(b: FunctionText) -> None:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(b.word("mode"), b.word("mode"))
    b.add(f'GridSample <mode = "{mode}", {b.copied("align_corners", "padding_mode")[1:-1]}> (X, Grid)', "Y")


def distances(b: FunctionText) -> None:
    """Of all pairs of rows, by one product."""
    left, right = (b.of("ReduceSumSquare", x, b.ints(1)) for x in "AB")
    squares = b.of("Add", left, b.of("Transpose", right))
    product = scaled(b, b.of("MatMul", "A", b.of("Transpose", "B")), 2.0, "A")
    found = b.of("Relu", b.of("Sub", squares, product))
    b.of("Sqrt" if b.word("metric") == "euclidean" else "Identity", found, name="C")


def in_last_channels(b: FunctionText) -> None:
    attributes = b.copied("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    quantised.channels_first(b, "x", f"MaxPool {attributes} ({{x}})", "y")


def leaky(b: FunctionText) -> None:
    quantised.of_codes(b, f"LeakyRelu <alpha = {b.number('alpha')!r}> ({{x}})")
