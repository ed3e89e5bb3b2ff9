"""The text of a function for a node of ONNX Runtime's own domain (`poly.frontend.onnx_contrib`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from poly.errors import OnnxError
from poly.frontend.onnx_notation import Call
from poly.frontend.onnx_terms import Value


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
