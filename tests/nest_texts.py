"""Python functions from text, and random loop nests on integer arrays whose subscripts stay inside."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import count
from textwrap import dedent

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[np.int64]
EXTENT = 7  # of every array, in every dimension
SIZES = {"N": 5, "M": 4}
_NUMBER = count()


def define(text: str, **names: object) -> Callable[..., object]:
    """The function `f` of a text, as if it stood in a file of its own. `names`: what else its module has."""
    text = dedent(text).lstrip("\n")
    file = f"nests_{next(_NUMBER)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = {"__name__": file, "np": np, **names}
    exec(compile(text, file, "exec", dont_inherit=True), module)
    found = module["f"]
    assert callable(found)
    return found


def _affine(draw: st.DrawFn, names: list[str]) -> str:
    chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else []
    terms = [f"{draw(st.sampled_from((1, 1, 2, -1)))}*{name}" for name in chosen]
    return " + ".join([*terms, str(draw(st.integers(-2, 3)))])


def _element(draw: st.DrawFn, names: list[str]) -> str:
    array = draw(st.sampled_from(("A", "B", "C")))
    rank = 1 if array == "C" else 2
    return f"{array}[{', '.join(f'({_affine(draw, names)}) % {EXTENT}' for _ in range(rank))}]"


def _value(draw: st.DrawFn, names: list[str], depth: int = 2) -> str:
    kind = draw(st.sampled_from(("element", "element", "affine", "sum", "choice", "extreme")))
    if kind == "element" or depth == 0:
        return _element(draw, names)
    if kind == "affine":
        return f"({_affine(draw, names)})"
    a, b = _value(draw, names, depth - 1), _value(draw, names, depth - 1)
    if kind == "sum":
        return f"({a} {draw(st.sampled_from(('+', '-', '*')))} {b})"
    if kind == "extreme":
        return f"{draw(st.sampled_from(('min', 'max')))}({a}, {b})"
    return f"({a} if {draw(st.sampled_from((a, _affine(draw, names))))} < {b} else {_value(draw, names, 0)})"


def _condition(draw: st.DrawFn, names: list[str]) -> str:
    text = f"{_affine(draw, names)} {draw(st.sampled_from(('<', '>=', '==', '!=')))} {_affine(draw, names)}"
    kind = draw(st.sampled_from(("plain", "not", "and", "or", "parity")))
    if kind == "plain":
        return text
    if kind == "not":
        return f"not ({text})"
    if kind == "parity":
        return f"({_affine(draw, names)}) % 2 == 0"
    return f"{text} {kind} {_affine(draw, names)} > 0"


def _range(draw: st.DrawFn, names: list[str]) -> str:
    start, stop = _affine(draw, names), draw(st.sampled_from(("N", "M", "N - 1", *names, _affine(draw, names))))
    step = draw(st.sampled_from((None, 1, 1, 2, -1, -1, -2)))
    if step is None:
        return f"range({stop})"
    if step in (1, -1) and draw(st.booleans()):
        stop = f"min({stop}, M + 2)" if step == 1 else f"max({stop}, 1)"
    return f"range({start}, {stop}, {step})" if step in (1, 2) else f"range({stop}, {start}, {step})"


def _block(draw: st.DrawFn, names: list[str], depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3 if depth < 3 else 2))):
        kind = draw(st.sampled_from(("assign", "update", "for", "for", "if")))
        if kind == "for" and depth < 3:
            name = "ijk"[depth]
            lines.append(f"for {name} in {_range(draw, names)}:")
            lines += ["    " + line for line in _block(draw, [*names, name], depth + 1)]
        elif kind == "if" and depth < 3:
            lines.append(f"if {_condition(draw, names)}:")
            lines += ["    " + line for line in _block(draw, names, 3)]
            if draw(st.booleans()):
                lines += ["else:", *("    " + line for line in _block(draw, names, 3))]
        elif kind == "update":
            operator = draw(st.sampled_from(("+=", "-=", "*=")))
            lines.append(f"{_element(draw, names)} {operator} {_value(draw, names, 1)}")
        else:
            lines.append(f"{_element(draw, names)} = {_value(draw, names)}")
    return lines


@st.composite
def nest_texts(draw: st.DrawFn) -> str:
    """The text of a nest `f(N, M, A, B, C)`."""
    shape = f"{EXTENT}, {EXTENT}"
    head = f'def f(N: int, M: int, A: "i64[{shape}]", B: "i64[{shape}]", C: "i64[{EXTENT}]"):'
    return "\n".join([head, *("    " + line for line in _block(draw, ["N", "M"], 0))]) + "\n"


def arrays() -> dict[str, Array]:
    """Small integers for the arguments of a random nest."""
    random = np.random.default_rng(0)
    return {name: random.integers(-3, 4, (EXTENT,) * rank) for name, rank in (("A", 2), ("B", 2), ("C", 1))}
