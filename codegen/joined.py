"""Narrow elements that lie side by side in memory, joined in one number of each lane: one vector as it lies.

`sums_by_dots` packs so (`poly.scheduling.dot_sums`). LLVM finds such a load for single numbers only; of lanes that are
four elements apart it makes a shuffle for each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from poly.codegen.loads import raw_load
from poly.codegen.places import direct, pointer_to
from poly.codegen.state import State
from poly.codegen.text import value_type
from poly.codegen.values import Value
from poly.dtypes import size_bytes
from poly.expr import Apply, Cast, Const, Expr, Read
from poly.loops import Compute

_BITS = 32


class Part(NamedTuple):
    """One part of a number: its read, how far up, what is added to it first, the bits that it is cut to
    (0: all); whether it is a bf16.
    """

    read: int
    up: int
    more: int
    cut: int
    bf16: bool = False


def joined(s: State, node: Compute) -> Value | None:
    """The value of a statement that joins neighbouring elements, for all lanes; None where it does something else."""
    match node.body:
        case Apply("bit_or") if node.combiner is None and s.lanes is not None:
            found = [*_parts(node.body)] if s.lanes.mask is None and s.ahead is None else [None]
        case _:
            return None
    if None in found or s.tensors[node.write.tensor].dtype != "i32":
        return None
    parts = sorted((p for p in found if p is not None), key=lambda p: p.up)
    first = node.reads[parts[0].read]
    tensor, bits = s.tensors[first.tensor], _BITS // len(parts)
    kinds = ("bf16",) if parts[0].bf16 else ("i8", "u8", "i16")
    narrow = tensor.dtype in kinds and 8 * size_bytes(tensor.dtype) == bits and len({p.bf16 for p in parts}) == 1
    whole = [(p.up, p.more) for p in parts] == [(k * bits, parts[0].more) for k in range(len(parts))]
    if not narrow or not whole or any(p.cut != (1 << bits) - 1 for p in parts[:-1]) or parts[-1].cut:
        return None
    for k, part in enumerate(parts):
        access = node.reads[part.read]
        at, start = (None if a.indirect or a.guard else direct(s, a) for a in (access, first))
        if at is None or start is None or access.tensor != first.tensor or s.in_registers(tensor.name):
            return None
        if at != start._replace(constant=start.constant + k) or at.lane_stride != len(parts):
            return None
    return _loaded(s, node, parts)


def _loaded(s: State, node: Compute, parts: list[Part]) -> Value:
    assert s.lanes is not None
    first = node.reads[parts[0].read]
    tensor, count = s.tensors[first.tensor], s.lanes.width * len(parts)
    address = direct(s, first)
    assert address is not None
    value = raw_load(s, tensor, pointer_to(s, tensor, address.at(0)), count)
    if parts[0].more:
        value = s.ops.op("add", value, s.ops.const(tensor.dtype, parts[0].more, count))
    kind = value_type("i32", s.lanes.width)
    text = s.writer.value(f"bitcast {value_type(tensor.dtype, count)} {value.text} to {kind}")
    return Value("i32", s.lanes.width, text)


def _parts(body: Expr) -> Iterator[Part | None]:
    """The parts that a number is joined of; None among them: something else."""
    match body:
        case Apply("bit_or", (a, b)):
            yield from _parts(a)
            yield from _parts(b)
        case Apply("shift_left", (inner, Const(int(up), "i32"))):
            yield _part(inner, up)
        case _:
            yield _part(body, 0)


def _part(body: Expr, up: int) -> Part | None:
    cut = 0
    match body:
        case Apply("bit_and", (inner, Const(int(cut), "i32"))):
            body = inner
        case _:
            pass
    match body:
        case Cast("i32", Read(k)):
            return Part(k, up, 0, cut)
        case Apply("shift_right", (Apply("bits", (Cast("f32", Read(k)),)), Const(16, "i32"))):
            return Part(k, up, 0, cut, True)
        case Apply("bits", (Cast("f32", Read(k)),)) if not up:  # its own bits are the upper ones, the others zeros
            return Part(k, 16, 0, 0, True)
        case Apply("add", (Cast("i32", Read(k)), Const(int(more), "i32"))):
            return Part(k, up, more, cut)
        case _:
            return None
