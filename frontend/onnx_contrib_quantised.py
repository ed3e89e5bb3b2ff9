"""Operators on codes of ONNX Runtime's own domain, by ONNX's operators."""

from __future__ import annotations

from poly.frontend.onnx_contrib_text import FunctionText, product_of_codes


def _quantised(b: FunctionText, result: str, scale: str, zero: str, name: str) -> None:
    b.add(f"QuantizeLinear({result}, {scale}{zero and f', {zero}'})", name)


def of_codes(b: FunctionText, operation: str, scale: int = 3) -> None:
    """An operation between codes, of X. `scale`: the operand with that of the result."""
    result = b.add(operation.format(x=b.add(f"DequantizeLinear({', '.join(filter(None, map(b.name, range(3))))})")))
    _quantised(b, result, b.inputs[scale], b.name(scale + 1), "Y")


def of_pairs(b: FunctionText, operation: str) -> None:
    """A sum or product of codes, by factors to the result's scale: nothing is divided for each element."""
    one, left = b.like(1.0, "C_scale"), b.add("Div(A_scale, C_scale)")
    right = b.add("Div(B_scale, C_scale)") if operation == "Add" else "B_scale"
    operands = f"DequantizeLinear(A, {left}, A_zero)", f"DequantizeLinear(B, {right}, B_zero)"
    _quantised(b, b.add(f"{operation}({', '.join(map(b.add, operands))})"), one, b.name(7), "C")


def concat(b: FunctionText) -> None:
    scale, zero, *rest = b.inputs
    ends = [", ".join(rest[k : k + 3]) for k in range(0, len(rest), 3)]
    operands = ", ".join(b.add(f"DequantizeLinear({end})") for end in ends)
    _quantised(b, b.add(f"Concat <axis = {b.integer('axis')}> ({operands})"), scale, zero, "Y")


def where(b: FunctionText) -> None:
    sides = [b.add(f"DequantizeLinear({x}, {x}_scale, {x}_zero)") for x in "XY"]
    _quantised(b, b.add(f"Where(condition, {', '.join(sides)})"), "Z_scale", "Z_zero", "Z")


def pooled(b: FunctionText, operator: str) -> None:
    """Means of windows, or of planes."""
    attributes = b.copied("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    operation = f"{operator} {attributes if operator == 'AveragePool' else ''} ({{x}})"
    if not b.integer("channels_last"):
        of_codes(b, operation)
        return
    result = channels_first(b, b.add("DequantizeLinear(X, X_scale, X_zero)"), operation)
    _quantised(b, result, "Y_scale", b.name(4), "Y")


def channels_first(b: FunctionText, x: str, operation: str, name: str = "") -> str:
    """An operation of ONNX, whose channels come before rows and columns, where X has them last."""
    rank = b.known(0).rank
    turned = b.add(f"Transpose <perm = {[0, rank - 1, *range(1, rank - 1)]}> ({x})")
    result = b.add(operation.format(x=turned))
    return b.add(f"Transpose <perm = {[0, *range(2, rank), 1]}> ({result})", name)


def convolution(b: FunctionText) -> None:
    rest = ", ".join(name if b.given(k) is not None else "" for k, name in enumerate(b.inputs) if k).rstrip(", ")
    attributes = b.copied("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    operation = f"QLinearConv {attributes} ({{x}}, {rest})"
    if b.integer("channels_last"):
        channels_first(b, b.inputs[0], operation, b.outputs[0])
    else:
        b.add(operation.format(x=b.inputs[0]), b.outputs[0])


def softmax(b: FunctionText) -> None:
    """Before opset 13 of all axes from `axis` on."""
    shape = b.known(0).shape
    axis, newer = b.integer("axis") % max(len(shape), 1), b.integer("opset") >= 13
    x = b.add(f"DequantizeLinear({', '.join(filter(None, map(b.name, range(3))))})")
    together = x if newer else b.add(f"Reshape({x}, {b.ints(*shape[:axis], -1)})")
    result = b.add(f"Softmax <axis = {axis}> ({together})")
    result = result if newer else b.add(f"Reshape({result}, {b.ints(*shape)})")
    _quantised(b, result, "Y_scale", b.name(4), "Y")


def gemm(b: FunctionText) -> None:
    """The bias has the unit of the product; without a scale for it the result is a float."""
    codes = [b.add(f"Transpose <perm = [1, 0]> ({x})") if b.integer(f"trans{x}") else x for x in "AB"]
    total = b.add(f"MatMulInteger({codes[0]}, {codes[1]}, A_zero, B_zero)")
    total = total if b.given(6) is None else b.add(f"Add({total}, C)")
    unit = b.add("Mul(A_scale, B_scale)")
    if (factor := b.number("alpha")) != 1:
        unit = b.add(f"Mul({unit}, {b.like(factor, unit)})")
    result = f"Mul({b.add(f'CastLike({total}, {unit})')}, {unit})"
    if b.given(7) is None:
        b.add(result, "Y")
    else:
        _quantised(b, b.add(result), "Y_scale", b.name(8), "Y")


def integer_product(b: FunctionText) -> None:
    """Of codes, with their scales."""
    product = product_of_codes(b, ("A", "A_scale", b.name(4)), ("B", "B_scale", b.name(5)), b.name(6))
    b.add(f"Identity({product})", "Y")


def dynamic_product(b: FunctionText) -> None:
    """Of what becomes codes by its own range, and codes."""
    b.lines.append("codes, scale, zero = DynamicQuantizeLinear(A)")
    b.add(f"Identity({product_of_codes(b, ('codes', 'scale', 'zero'), ('B', 'B_scale', b.name(3)), b.name(4))})", "Y")
