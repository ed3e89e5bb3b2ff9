"""The text of a function for a node of ONNX Runtime's own domain (`poly.frontend.onnx_contrib`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from poly.errors import OnnxError
from poly.frontend.onnx_notation import Call
from poly.frontend.onnx_terms import Value

Codes = tuple[str, str, str]  # the names of codes, of their scale and of their zero point, '' without one


@dataclass
class FunctionText:
    """The text of one function under construction: lines that set a name each. `inputs`, `outputs`: the names of the
    node's operands and results in it.
    """

    call: Call
    inputs: Sequence[str]
    outputs: Sequence[str]
    lines: list[str] = field(default_factory=list[str])

    def given(self, position: int) -> Value | None:
        """An operand that may be absent."""
        return self.call.inputs[position] if position < len(self.call.inputs) else None

    def known(self, position: int) -> Value:
        """An operand that the schema asks for."""
        value = self.given(position)
        if value is None:
            self.refuse(f"operand {position} is missing")
        return value

    def name(self, position: int) -> str:
        """The name of an operand that may be absent: then ''."""
        return "" if self.given(position) is None else self.inputs[position]

    def integer(self, name: str) -> int:
        value = self.call.attributes[name]
        assert isinstance(value, int)
        return value

    def word(self, name: str) -> str:
        value = self.call.attributes[name]
        assert isinstance(value, str)
        return value

    def number(self, name: str) -> float:
        value = self.call.attributes[name]
        assert isinstance(value, float)
        return value

    def wants(self, position: int) -> bool:
        return position < len(self.call.outputs) and bool(self.call.outputs[position])

    def refuse(self, why: str) -> NoReturn:
        raise OnnxError(why, where=self.call.where, hint="convert the model to ai.onnx operators")

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            self.refuse(why)

    def add(self, text: str, name: str = "") -> str:
        """A line `name = text`; the name is new unless given."""
        name = name or f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def copied(self, *names: str) -> str:
        """Attributes of the node as they are, in `<>`; '' where it has none of them."""
        texts = list[str]()
        for name in names:
            value = self.call.attributes.get(name)
            if isinstance(value, str) and value:
                texts.append(f'{name} = "{value}"')
            elif isinstance(value, (int, float)) or (isinstance(value, tuple) and value):
                texts.append(f"{name} = {list(value) if isinstance(value, tuple) else value!r}")
        return f"<{', '.join(texts)}>" if texts else ""

    def of(self, operator: str, *operands: str, name: str = "") -> str:
        """A line for an operator, which may be followed by attributes."""
        return self.add(f"{operator} ({', '.join(operands)})", name)

    def byte(self, value: int) -> str:
        return self.add(f"Constant <value = uint8[1] {{{value}}}> ()")

    def ints(self, *values: int) -> str:
        return self.add(f"Constant <value_ints = [{', '.join(map(str, values))}]> ()")

    def like(self, value: float, other: str) -> str:
        """A number in the dtype of another value."""
        constant = self.add(f"Constant <value_float = {finite(value)}> ()")
        return self.add(f"CastLike({constant}, {other})")


def finite(value: float) -> str:
    """A number as the text has it, which knows no infinities: f32's greatest instead."""
    limits = np.finfo(np.float32)
    return str(np.float32(np.clip(value, limits.min, limits.max)))


def scaled(b: FunctionText, value: str, factor: float, like: str, name: str = "") -> str:
    """A value times a number, which gets the dtype of another value."""
    if factor == 1:
        return b.add(f"Identity({value})", name) if name else value
    return b.add(f"Mul({value}, {b.like(factor, like)})", name)


def product_of_codes(b: FunctionText, left: Codes, right: Codes, bias: str) -> str:
    """The product of two matrices of codes in the dtype of their scales, and a bias ('' without one)."""
    zeros = [left[2], right[2]] if right[2] else [left[2]] if left[2] else []
    exact = b.add(f"MatMulInteger({', '.join([left[0], right[0], *zeros])})")
    factor = b.add(f"Mul({left[1]}, {right[1]})")
    product = b.add(f"Mul({b.add(f'CastLike({exact}, {factor})')}, {factor})")
    return b.add(f"Add({product}, {bias})") if bias else product
