"""Stores: one element, one vector, or lane by lane, merged with what is there; to memory and registers alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from poly.affine import Affine
from poly.codegen.addresses import Address
from poly.codegen.asks import ask_of_store
from poly.codegen.loads import load_registers, masked_load, memory_suffix, raw_load
from poly.codegen.places import address_at, direct, located, pointer_to, register_place
from poly.codegen.predicates import active_at_runtime, lane_bit
from poly.codegen.registers import Entry
from poly.codegen.state import State
from poly.codegen.status import WRITE
from poly.codegen.text import memory_type, value_type
from poly.codegen.values import Value
from poly.dtypes import size_bytes
from poly.expr import Combiner
from poly.program import Access, Tensor

Combine = Callable[[Value, Value], Value]  # (old, new) -> what the element becomes


@dataclass(frozen=True)
class Update:
    """A value to write, or to merge into what is there as `combine` does, which is `combiner` in code.

    Of a product that is added in one rounding `value` is one factor, and `combine` has the other. That is for lanes
    side by side, which meet what is there all at once: others are taken apart, or merged with each other, before.
    """

    value: Value
    combine: Combine | None = None
    combiner: Combiner | None = None


def store(s: State, access: Access, update: Update, values: dict[int, Value]) -> None:
    """Write a value, or merge it into what is there.

    Lanes that all merge into one element are reduced first, halves by halves; others that share one go one by one.
    """
    if s.in_registers(access.tensor):
        return _store_registers(s, access, update)
    tensor = s.tensors[access.tensor]
    subscripts, address = located(s, access, values, True, WRITE)
    stride = None if address is None else address.lane_stride
    ask_of_store(s, tensor, subscripts, address)
    if address is not None and stride == 0:
        pointer = pointer_to(s, tensor, address)
        new = _fold(s, update, lambda: raw_load(s, tensor, pointer))
        _raw_store(s, tensor, pointer, new)
    elif address is not None and stride == 1:
        _store_vector(s, tensor, address.at(0), update)
    else:
        _store_lanes(s, tensor, subscripts, update)


def _raw_store(s: State, tensor: Tensor, pointer: str, value: Value) -> None:
    kind = memory_type(tensor.dtype, value.lanes)
    s.writer.emit(f"store {kind} {_to_memory(s, value)}, ptr {pointer}, align {size_bytes(tensor.dtype)}")


def _to_memory(s: State, value: Value) -> str:
    if value.dtype != "bool":
        return value.text
    kind = memory_type("bool", value.lanes)
    return s.writer.value(f"zext {value_type('bool', value.lanes)} {value.text} to {kind}")


def _fold(s: State, update: Update, old: Callable[[], Value]) -> Value:
    """What one element becomes when all active lanes write it: the last one's, or the lanes reduced and merged."""
    value, combine, combiner = update.value, update.combine, update.combiner
    if s.lanes is None:
        return value if combine is None else combine(old(), value)
    if combine is not None and combiner is not None:
        return combine(old(), _reduced(s, s.ops.splat(value, s.lanes.width), combine, combiner))
    mask = s.lanes.runtime_mask
    if not value.lanes or mask is None:
        return s.ops.lane(value, s.lanes.count - 1) if value.lanes else value
    total = s.ops.lane(value, 0)
    for i in range(s.lanes.count):
        bit = lane_bit(s, Value("bool", s.lanes.width, mask), i)
        item = s.ops.lane(value, i)
        total = item if isinstance(bit, bool) else s.ops.select(bit, item, total)
    return total


def _reduced(s: State, value: Value, combine: Combine, combiner: Combiner) -> Value:
    """The active lanes combined: one half with the other until one is left. (The combiner is associative.)"""
    assert s.lanes is not None
    if s.lanes.mask is not None:
        rest = s.ops.const(value.dtype, combiner.identity(value.dtype).value, value.lanes)
        value = s.ops.select(Value("bool", value.lanes, s.lanes.mask), value, rest)
    if value.dtype in ("f32", "f64") and combiner.symbol in ("max", "min"):
        return s.ops.extreme(combiner.symbol, value)
    while value.lanes > 2:
        half = value.lanes // 2
        value = combine(s.ops.piece(value, 0, half), s.ops.piece(value, half, half))
    return combine(s.ops.lane(value, 0), s.ops.lane(value, 1))


def _store_past(s: State, tensor: Tensor, address: Address, value: Value) -> bool:
    """Store whole, aligned vectors past the caches; False where they are not."""
    size = size_bytes(tensor.dtype)
    places, aligned = gcd(*(size * c for _, c in address.terms), size * address.constant), s.target.vector
    if value.lanes * size % aligned or places % aligned:
        return False
    s.streamed.add(tensor.name)
    pointer, text, kind = pointer_to(s, tensor, address), _to_memory(s, value), memory_type(tensor.dtype, value.lanes)
    store = f"store {kind} {text}, ptr {pointer}, align"
    s.writer.emit(f"{store} {aligned}, !nontemporal !0")
    s.unaligned[s.writer.lines[-1]] = f"  {store} {size}"
    return True


def _store_vector(s: State, tensor: Tensor, address: Address, update: Update) -> None:
    """A vector into memory, side by side: past the caches, whole, its first lanes only, or under a mask."""
    assert s.lanes is not None
    value, combine = update.value, update.combine
    if s.past and s.lanes.mask is None and combine is None:
        value = s.ops.splat(value, s.lanes.width)
        if _store_past(s, tensor, address, value):
            return
    width, mask, pointer = s.lanes.width, s.lanes.mask, pointer_to(s, tensor, address)
    dtype, alignment = tensor.dtype, str(size_bytes(tensor.dtype))
    value = s.ops.splat(value, width)
    kind = memory_type(dtype, width)
    if combine is not None and mask is None:
        value = combine(raw_load(s, tensor, pointer, width), value)
    elif combine is not None:
        value = combine(masked_load(s, tensor, pointer, mask or "", "zeroinitializer"), value)
    if mask is None:
        return _raw_store(s, tensor, pointer, value)
    if s.lanes.constant and not s.target.masked_stores:
        return _store_prefix(s, tensor, pointer, value, s.lanes.count)
    name = f"llvm.masked.store.{memory_suffix(dtype, width)}.p0"
    s.writer.declare(f"void @{name}({kind}, ptr, i32, <{width} x i1>)")
    text = _to_memory(s, value)
    s.writer.emit(f"call void @{name}({kind} {text}, ptr {pointer}, i32 {alignment}, <{width} x i1> {mask})")


def _store_prefix(s: State, tensor: Tensor, pointer: str, value: Value, count: int) -> None:
    """The first lanes in stores of 8, 4, 2, 1: where the machine masks stores slowly or not at all."""
    kind, memory = value_type(value.dtype, value.lanes), memory_type(tensor.dtype)
    done = 0
    while done < count:
        size = 1 << ((count - done).bit_length() - 1)
        places = ", ".join(f"i32 {done + i}" for i in range(size))
        text = f"shufflevector {kind} {value.text}, {kind} poison, <{size} x i32> <{places}>"
        part = s.ops.lane(value, done) if size == 1 else Value(value.dtype, size, s.writer.value(text))
        at = s.writer.value(f"getelementptr {memory}, ptr {pointer}, i64 {done}") if done else pointer
        _raw_store(s, tensor, at, part)
        done += size


def _store_lanes(s: State, tensor: Tensor, subscripts: Sequence[Affine], update: Update) -> None:
    """Element by element, in the order of the lanes."""
    assert s.lanes is not None
    value, combine = update.value, update.combine
    for i in range(s.lanes.count):
        bit = lane_bit(s, active_at_runtime(s, True), i)
        pointer = pointer_to(s, tensor, address_at(s, tensor, subscripts, i))
        item = s.ops.lane(value, i)

        def write(pointer: str = pointer, item: Value = item) -> None:
            new = item if combine is None else combine(raw_load(s, tensor, pointer), item)
            _raw_store(s, tensor, pointer, new)

        if isinstance(bit, bool):
            write()
            continue
        with s.writer.branch(bit.text):
            write()


def _store_registers(s: State, access: Access, update: Update) -> None:
    """A vector into registers: one entry where its elements lie side by side. What a mask leaves out stays."""
    tensor, value, combine = access.tensor, update.value, update.combine
    at, stride = place = register_place(s, access)
    old = load_registers(s, access, place) if combine is not None else None
    if s.lanes is None or stride == 0:
        new = _fold(s, update, lambda: old if old is not None else update.value)
        s.registers.set_scalar(tensor, at, new)
        return
    lanes = s.lanes
    value = s.ops.splat(value, lanes.width)
    if combine is not None and old is not None:
        value = combine(old, value)
    whole = Entry(value, lanes.count)
    if stride == 1 and (lanes.runtime_mask is None or not s.registers.in_other_forms((tensor, at), whole)):
        if lanes.runtime_mask is not None:
            before = s.registers.read((tensor, at), whole) or s.registers.phi_for_skipped((tensor, at), whole)
            if before is not None:
                value = s.ops.select(Value("bool", lanes.width, lanes.runtime_mask), value, before)
        s.registers.set_vector(tensor, at, value, lanes.count)
        return
    for i in range(lanes.count):
        item = s.ops.lane(value, i)
        place, bit = (tensor, at + stride * i), lane_bit(s, active_at_runtime(s, True), i)
        before = s.registers.scalar(*place) or s.registers.phi_for_skipped(place, Entry(item, 1))
        if isinstance(bit, Value) and before is not None:
            item = s.ops.select(bit, item, before)
        s.registers.set_scalar(tensor, at + stride * i, item)


def side_by_side(s: State, access: Access) -> bool:
    """Whether a write puts the lanes one behind the other, or is outside of vector loops."""
    if s.lanes is None:
        return True
    if access.indirect:
        return False
    address = direct(s, access)
    return address is not None and address.lane_stride == 1


def register_writes(s: State, access: Access) -> list[tuple[str, int]]:
    """The register elements that a write at the current place touches."""
    at, stride = register_place(s, access)
    count = s.lanes.count if s.lanes is not None and stride else 1
    return [(access.tensor, at + stride * i) for i in range(count)]
