"""Dynamic dimensions that follow from others: `past + 1`, as a name in a model or as the caller says it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx

Signatures = Sequence[Mapping[str, Sequence[int]]]
_MOST_SHOWN: Final = 5


def extent_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of a sum, difference or product of sizes and numbers; None of another text, or of an unknown name."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, sizes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int | None:
    match node:
        case ast.Name(name):
            return sizes.get(name)
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(left, operator, right):
            a, b = _value(left, sizes), _value(right, sizes)
            if a is None or b is None:
                return None
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case _:
                    return None
        case _:
            return None


def advice(inputs: Sequence[onnx.ValueInfoProto], seen: Signatures) -> str | None:
    """What to tell who runs a model at ever new sizes: the arguments of `from_onnx` that leave these free. None where a
    dimension that changes has no name.
    """
    extents: dict[str, tuple[int, ...]] = {}
    for info in inputs:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim if info.name in seen[0] else ()):
            found = tuple(shapes[info.name][axis] for shapes in seen)
            if dim.HasField("dim_value"):
                continue
            if not dim.dim_param or extents.setdefault(dim.dim_param, found) != found:
                return None
    free = {name: e for name, e in extents.items() if len(set(e)) > 1}
    known = set(extents)
    implied = {n for n in extents if not n.isidentifier() and extent_of(n, dict.fromkeys(known - {n}, 1)) is not None}
    first: dict[tuple[int, ...], str] = {}
    ranges: dict[str, object] = {}
    for name in sorted(free.keys() - implied, key=lambda n: min(free[n])):
        steps = tuple(e - free[name][0] for e in free[name])
        base = first.setdefault(steps, name)
        most = 1 << (2 * max(free[name])).bit_length()
        ranges[name] = (min(1, *free[name]), most) if base == name else _shifted(base, free[name][0] - free[base][0])
    if not ranges:
        return None
    fixed = {name: e[0] for name, e in extents.items() if name not in free and name not in implied}
    name = next(iter(first.values()))
    shown = ", ".join(map(str, free[name][-_MOST_SHOWN:]))
    arguments = f"shapes={fixed}, ranges={ranges}" if fixed else f"ranges={ranges}"
    before = "..., " if len(seen) > _MOST_SHOWN else ""
    return f"({name}: {before}{shown}); once for all of them: poly.compile(poly.from_onnx(model, {arguments}))"


def _shifted(name: str, by: int) -> str:
    return f"{name} {'-' if by < 0 else '+'} {abs(by)}" if by else name
