"""Functions of other libraries as expressions that are as good: no digits are lost, nothing overflows before the result
does. What a nest computes for them, and what hints show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_WRITTEN_OUT: Final = 2048  # expressions of a value: calls in calls double it where a form reads an argument twice


@dataclass(frozen=True)
class Form:
    """An expression in Python's syntax, with `inf`, of its parameters."""

    text: str
    parameters: tuple[str, ...] = ("x",)


_ASIN: Final = Form("atan2(x, sqrt((1 - x) * (1 + x)))")
_ACOS: Final = Form("atan2(sqrt((1 - x) * (1 + x)), x)")
_ATAN: Final = Form("atan2(x, 1)")
FORMS: Final[Mapping[str, Form]] = {
    "square": Form("x * x"),
    "tan": Form("sin(x) / cos(x)"),
    "atan": _ATAN, "asin": _ASIN, "acos": _ACOS,
    "arctan": _ATAN, "arcsin": _ASIN, "arccos": _ACOS,
    "trunc": Form("ceil(x) if x < 0 else floor(x)"),
    "clip": Form("min(max(x, low), high)", ("x", "low", "high")),
    "isnan": Form("x != x"), "isinf": Form("abs(x) == inf"), "isfinite": Form("abs(x) < inf"),
}  # fmt: skip
