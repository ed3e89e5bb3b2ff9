"""Loads: one element, one vector, or lane by lane, guarded and masked; from memory and registers alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import copysign, gcd, prod

from poly.affine import Affine, Constraint
from poly.codegen import strided
from poly.codegen.addresses import Address, LaneError, Linear
from poly.codegen.asks import ask_of_load
from poly.codegen.instructions import chosen_byte
from poly.codegen.places import (
    address_at,
    index_offsets,
    located,
    place_key,
    places_of_lanes,
    pointer_to,
    register_place,
)
from poly.codegen.predicates import Bit, active_at_runtime, active_lanes, as_value, both, guard_parts, lane_bit
from poly.codegen.state import State
from poly.codegen.text import constant_text, memory_type, suffix
from poly.codegen.values import Value, constant_mask
from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from poly.expr import Const
from poly.machine import BYTES
from poly.program import Access, ReadIndex, Tensor

ZERO = Const(0)
GATHERED, FEWEST_GATHERED = 4, 4  # bytes of an element that an instruction can gather, and lanes for which it is used
LEAST_SHUFFLED = 4  # bytes of an element of which one instruction shuffles two vectors


def load(s: State, access: Access, values: dict[int, Value], position: int) -> Value:
    """The value of a read: scalar, or a vector where it depends on the lane. What nobody writes is loaded once in a
    block: of the copies of an unrolled loop, many read the same.

    `values`: the statement's earlier reads, for indirect subscripts; those are checked against the extents, where the
    guard holds, before anything is touched. `position`: of this one.
    """
    tensor = s.tensors[access.tensor]
    if access.guard or access.indirect or s.ahead is not None or s.in_registers(tensor.name) or not _still(s, tensor):
        return _load(s, tensor, access, values, position)
    lanes = None if s.lanes is None else (s.lanes.width, s.lanes.count, s.lanes.mask)
    key = (s.writer.block, lanes, *place_key(s, access))
    found = s.loaded.get(key)
    if found is None:
        found = s.loaded[key] = _load(s, tensor, access, values, position)
    return found


def _load(s: State, tensor: Tensor, access: Access, values: dict[int, Value], position: int) -> Value:
    all_lanes, each_lane = guard_parts(s, access.guard)
    guard = both(s, all_lanes, each_lane)
    fill = access.fill or ZERO
    if guard is False:
        return s.ops.const(tensor.dtype, fill.value)
    if s.in_registers(tensor.name):
        value = load_registers(s, access)
        return value if guard is True else s.ops.select(as_value(guard), value, s.ops.const(tensor.dtype, fill.value))
    if access.indirect and guard is True and (value := _from_table(s, tensor, access, values)) is not None:
        return value
    subscripts, address = located(s, access, values, guard, position)
    stride = None if address is None else address.lane_stride
    ask_of_load(s, tensor, subscripts, address)
    if address is not None and stride == 0:
        return _load_uniform(s, tensor, address, guard, fill)
    if address is not None and stride == 1:
        inside = _load_inside(s, tensor, access, address, all_lanes) if isinstance(each_lane, Value) else None
        return _load_vector(s, tensor, address, all_lanes, each_lane, fill) if inside is None else inside
    if address is not None and stride is not None:
        value = _load_strided(s, tensor, subscripts, address, guard, fill)
        if value is not None:
            return value
    if address is None and access.indirect and s.target.gathers:
        value = _load_gathered(s, tensor, subscripts, all_lanes, each_lane, fill)
        if value is not None:
            return value
    unmasked = s.lanes is not None and s.lanes.mask is None and guard is True
    value = _load_repeated(s, tensor, subscripts) if unmasked and address is None and not access.indirect else None
    return _load_lanes(s, tensor, subscripts, guard, fill) if value is None else value


def _from_table(s: State, tensor: Tensor, access: Access, values: Mapping[int, Value]) -> Value | None:
    """Bytes of a table with one for each, all of whose indices are inside; None for any other read."""
    (subscript, *others) = access.index
    if others or not isinstance(subscript, ReadIndex) or not s.target.byte_table or tensor.layout is not None:
        return None
    index = values[subscript.position]
    whole = tensor.shape[0].is_constant and tensor.shape[0].constant == BYTES
    if not whole or size_bytes(tensor.dtype) > 1 or tensor.dtype == "bool" or index.dtype != "u8" or not index.lanes:
        return None
    starts = [address_at(s, tensor, (Affine.of(k),)) for k in range(0, BYTES, 64)]
    parts = [raw_load(s, tensor, pointer_to(s, tensor, start), 64).text for start in starts]
    return chosen_byte(s.ops, parts, index, tensor.dtype)


def load_registers(s: State, access: Access, place: tuple[int, int] | None = None) -> Value:
    """`place`: as `register_place` gives it, where it is known."""
    at, stride = register_place(s, access) if place is None else place
    if s.lanes is None or stride == 0:
        value = s.registers.scalar(access.tensor, at)
    elif stride == 1:
        value = s.registers.vector(access.tensor, at, s.lanes.width, s.lanes.count)
    else:
        value = s.registers.strided(access.tensor, at, stride, s.lanes.width, s.lanes.count)
    if value is None:
        raise UnsupportedError(f"register element {access.tensor}[{at}] is read before it is written")
    return value


def _safe(s: State, tensor: Tensor, pointer: str, condition: Bit, fill: Const, width: int = 0) -> str:
    """The pointer where the condition holds, else one to the fill value."""
    if isinstance(condition, bool):
        return pointer
    text = constant_text(tensor.dtype, fill.value)
    if tensor.dtype == "bool":
        text = str(int(bool(fill.value)))
    place = s.writer.constant(memory_type(tensor.dtype), width, text)
    return s.writer.value(f"select i1 {condition.text}, ptr {pointer}, ptr {place}")


def raw_load(s: State, tensor: Tensor, pointer: str, width: int = 0) -> Value:
    """What is at a pointer; once in a block where nobody writes the tensor, since instruction selection would load it
    again behind every store or prefetch.
    """
    text = f"load {memory_type(tensor.dtype, width)}, ptr {pointer}, align {size_bytes(tensor.dtype)}"
    found = s.writer.cached(text) if _still(s, tensor) else s.writer.value(text)
    return _from_memory(s, tensor.dtype, found, width)


def _from_memory(s: State, dtype: str, text: str, lanes: int) -> Value:
    return s.ops.truth(Value("u8", lanes, text)) if dtype == "bool" else Value(dtype, lanes, text)


def _load_uniform(s: State, tensor: Tensor, address: Address, guard: Bit, fill: Const) -> Value:
    """The same element for every lane; in a vector loop at least one lane is active."""
    some = guard
    if isinstance(guard, Value) and guard.lanes:
        some = s.ops.any_lane(as_value(active_lanes(s, guard)))
    value = raw_load(s, tensor, _safe(s, tensor, pointer_to(s, tensor, address), some, fill))
    if isinstance(guard, Value) and guard.lanes:
        return s.ops.select(guard, value, s.ops.const(tensor.dtype, fill.value))
    return value


def _load_vector(
    s: State, tensor: Tensor, address: Address, all_lanes: Bit, each_lane: Bit, fill: Const
) -> Value:
    """Neighbouring elements, masked where lanes are inactive or guarded; where all are, the fill value is loaded.

    `all_lanes`, `each_lane`: the guard, as `guard_parts` gives it.
    """
    assert s.lanes is not None
    width, mask = s.lanes.width, s.lanes.mask
    pointer = _safe(s, tensor, pointer_to(s, tensor, address.at(0)), all_lanes, fill, width)
    if isinstance(each_lane, Value):
        mask = as_value(both(s, each_lane, Value("bool", width, mask) if mask else True)).text
    if mask is None:
        return raw_load(s, tensor, pointer, width)
    through = s.ops.const("u8" if tensor.dtype == "bool" else tensor.dtype, fill.value, width).text
    return masked_load(s, tensor, pointer, mask, through)


def _load_inside(s: State, tensor: Tensor, access: Access, address: Address, all_lanes: Bit) -> Value | None:
    """Neighbouring elements with zeros at both ends, for registers, by a load with no mask: one with a mask takes an
    operation that whoever takes parts of a row from registers spends on a shuffle anyway. None where these lanes are
    known when running alone, a whole load might leave the tensor, or masks cost nothing.
    """
    assert s.lanes is not None
    fill, width = access.fill or ZERO, s.lanes.width
    fits = s.target.vector >= s.target.line and size_bytes(tensor.dtype) >= LEAST_SHUFFLED and tensor.layout is None
    if not (s.kept and fits and _is_zero(fill)) or s.lanes.runtime_mask or tensor.dtype == "bool":
        return None
    low, high = _lanes_inside(s, access.guard)
    row, extent = s.indices.linear(access.affine_index[-1]), s.indices.linear(tensor.shape[-1])
    whole_row = row == Linear((), -low, 1) and extent == Linear((), high - low)  # a view's may have a gap behind them
    if not (0 < low < high < s.lanes.count and whole_row):
        return None
    first = address.at(0)._replace(constant=address.constant + low)
    if not _has_room(s, tensor, first, width):
        return None
    whole = raw_load(s, tensor, _safe(s, tensor, pointer_to(s, tensor, first), all_lanes, fill, width), width)
    return s.ops.among_zeros(whole, tuple(i - low if low <= i < high else width for i in range(width)))


def _has_room(s: State, tensor: Tensor, first: Address, width: int) -> bool:
    """Whether so many elements from an address on are in a tensor that is known to lie in one piece."""
    if any(stride for (_, stride), _ in first.terms):
        return False
    reach = s.indices.interval(Linear(tuple((n, c) for (n, _), c in first.terms), first.constant))
    sizes = [s.indices.linear(e) for e in tensor.shape]
    room = prod(e.constant for e in sizes) if all(e.is_constant for e in sizes) else 0
    return reach is not None and reach[0] >= 0 and reach[1] + width <= room


def _lanes_inside(s: State, guard: Sequence[Constraint]) -> tuple[int, int]:
    """The lanes, first and end, in which conditions about lanes hold; (0, 0) where that is not known."""
    assert s.lanes is not None
    low, high = 0, s.lanes.width
    try:
        forms = [(c, s.indices.linear(c.expr)) for c in guard]
    except LaneError:
        return 0, 0
    for c, form in forms:
        if form.lane and (form.terms or c.equality):
            return 0, 0
        if form.lane > 0:
            low = max(low, -(form.constant // form.lane))
        elif form.lane < 0:
            high = min(high, form.constant // -form.lane + 1)
    return low, high


def masked_load(s: State, tensor: Tensor, pointer: str, mask: str, through: str) -> Value:
    """Neighbouring elements where the mask is set, else those of `through`; once in a block where nobody writes the
    tensor, since instruction selection would load them again behind every prefetch.
    """
    assert s.lanes is not None
    width = s.lanes.width
    kind = memory_type(tensor.dtype, width)
    name = f"llvm.masked.load.{memory_suffix(tensor.dtype, width)}.p0"
    arguments = (("ptr", pointer), ("i32", str(size_bytes(tensor.dtype))), (f"<{width} x i1>", mask), (kind, through))
    again = _still(s, tensor)
    return _from_memory(s, tensor.dtype, s.writer.intrinsic(kind, name, arguments, again=again), width)


def _still(s: State, tensor: Tensor) -> bool:
    """Whether nothing writes a tensor in an iteration of the loop around."""
    return tensor.role in ("input", "constant") or (s.written is not None and tensor.name not in s.written)


def memory_suffix(dtype: str, lanes: int) -> str:
    return suffix("u8" if dtype == "bool" else dtype, lanes)


def _pair_row(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> tuple[int, int] | None:
    """Of every second element of a tensor's rows: 0 or 1, the place of the first one in a pair of elements, and how
    many elements the row has from that pair on at least; None where pairs do not lie along a row."""
    forms = [s.indices.linear(c) for c in subscripts]
    if tensor.layout is not None or any(f.lane for f in forms[:-1]):
        return None
    odd = forms[-1].constant % 2
    extent, reach = s.indices.linear(tensor.shape[-1]), s.indices.interval(forms[-1])
    assert s.lanes is not None
    if extent.terms or reach is None or reach[0] < odd:
        return odd, 0
    there = (reach[1] // tensor.gaps + 1) * tensor.gaps if tensor.gaps else extent.constant
    return odd, min(extent.constant, there) - (reach[1] - 2 * (s.lanes.count - 1) - odd)


def _load_pairs(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], address: Address, guard: Bit, fill: Const
) -> Value | None:
    """Every second element of a row from two whole vectors; what of the second one may lie beyond the row is left out.
    None where that does not apply.
    """
    found = _pair_row(s, tensor, subscripts)
    assert s.lanes is not None
    if found is None:
        return None
    (odd, room), width = found, s.lanes.width
    inside = min(width, room - width)
    cheap = inside == width or size_bytes(tensor.dtype) >= s.target.least_masked_load
    if odd + 2 * (s.lanes.count - 1) >= width + inside or not cheap:
        return None
    places = (address.at(0)._replace(constant=address.constant + n - odd) for n in (0, width))
    first, last = (_safe(s, tensor, pointer_to(s, tensor, at), guard, fill, width) for at in places)
    mask = constant_mask(width, inside)
    rest = masked_load(s, tensor, last, mask, "zeroinitializer") if mask else raw_load(s, tensor, last, width)
    return strided.every_second(s.ops, [raw_load(s, tensor, first, width), rest], odd)


def _load_strided(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], address: Address, guard: Bit, fill: Const
) -> Value | None:
    """Elements a small stride apart, by whole loads; masked where lanes are; None where that does not apply."""
    lanes, stride = s.lanes, address.lane_stride or 0
    offsets = strided.offsets(lanes.width, stride, lanes.count) if lanes is not None else None
    if lanes is None or offsets is None or tensor.dtype == "bool":
        return None
    mask = active_at_runtime(s, guard)
    each = mask if isinstance(mask, Value) and mask.lanes else None
    if stride == 2 and each is None:
        found = _load_pairs(s, tensor, subscripts, address, mask, fill)
        if found is not None:
            return found
    pair = _pair_row(s, tensor, subscripts) if stride == 2 and each is not None and _is_zero(fill) else None
    vectors: list[Value] = []  # what a mask leaves out is zero
    for offset in offsets if pair is None else (-pair[0], lanes.width - pair[0]):
        pointer = pointer_to(s, tensor, address.at(0)._replace(constant=address.constant + offset))
        if each is None:
            pointer = _safe(s, tensor, pointer, mask, fill, lanes.width)
            vectors.append(raw_load(s, tensor, pointer, lanes.width))
        else:
            bits = strided.spread(s.ops, each, offset, stride, lanes.count)
            vectors.append(masked_load(s, tensor, pointer, bits, "zeroinitializer"))
    if pair is not None:
        return strided.every_second(s.ops, vectors, pair[0])
    value = strided.pick(s.ops, offsets, vectors, stride, lanes.count)
    return value if each is None else s.ops.select(each, value, s.ops.const(tensor.dtype, fill.value))


def _is_zero(fill: Const) -> bool:
    """Whether a value is all bits zero; -0.0 is not."""
    return fill.value == 0 and copysign(1, fill.value) > 0


def _load_repeated(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> Value | None:
    """Elements that several lanes share, by loads of neighbours and one shuffle; None where that does not apply.

    What is shared lies side by side (`l%8`, `l//2`), or in one column of several rows (`l//8` of a matrix): then whole
    pieces of these rows are loaded, which serve their other columns as well.
    """
    assert s.lanes is not None
    places = [address_at(s, tensor, subscripts, i) for i in range(s.lanes.count)]
    starts = sorted({a.constant for a in places})
    size, phase = 1, 0
    if any(a.terms != places[0].terms for a in places) or 2 * len(starts) > len(places):
        return None
    if starts[-1] - starts[0] >= len(starts):
        size, phase = _row_piece(s, tensor, subscripts, len(places) // len(starts))
        if size == 1:
            return None
    touching = all(b - a == size for a, b in pairwise(starts))
    pieces = [(starts[0], size * len(starts))] if touching else [(start, size) for start in starts]
    stored = replace(tensor, dtype="u8") if tensor.dtype == "bool" else tensor
    loaded: Value | None = None
    for start, count in pieces:
        pointer = pointer_to(s, tensor, places[0]._replace(constant=start - phase))
        piece = raw_load(s, stored, pointer, count)
        loaded = piece if loaded is None else s.ops.joined(loaded, piece)
    assert loaded is not None
    found = s.ops.shuffle(loaded, None, [size * starts.index(a.constant) + phase for a in places])
    return _from_memory(s, tensor.dtype, found.text, found.lanes)


def _row_piece(s: State, tensor: Tensor, subscripts: Sequence[Affine], most: int) -> tuple[int, int]:
    """How many elements, a power of two and at most so many, are known to lie around the one that all lanes have in
    their rows, and which of them it is; (1, 0) where rows are no whole pieces, or somebody writes them.
    """
    try:
        form, extent = s.indices.linear(subscripts[-1]), s.indices.linear(tensor.shape[-1])
    except LaneError:
        return 1, 0
    if tensor.layout is not None or form.lane or not extent.is_constant or tensor.role not in ("input", "constant"):
        return 1, 0
    most = min(most, tensor.gaps or most)
    size = gcd(extent.constant, 1 << (most.bit_length() - 1), *(c for _, c in form.terms))
    return size, form.constant % size


def _load_gathered(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], all_lanes: Bit, each_lane: Bit, fill: Const
) -> Value | None:
    """Elements at indices from memory by one instruction, the fill value in other lanes than active ones; None where
    that does not apply.
    """
    assert s.lanes is not None
    found = index_offsets(s, tensor, subscripts) if all_lanes is True and size_bytes(tensor.dtype) >= GATHERED else None
    if found is None:
        return None
    (rest, offsets), width = found, s.lanes.width
    try:
        address = address_at(s, tensor, rest)
    except LaneError:
        return None
    stride = address.lane_stride
    if stride is None or offsets.lanes != width or width < FEWEST_GATHERED:
        return None
    if stride:
        steps = "<" + ", ".join(f"i64 {stride * i}" for i in range(width)) + ">"
        offsets = s.ops.op("add", offsets, Value("i64", width, steps))
    bits = active_lanes(s, each_lane)
    mask = "splat (i1 true)" if isinstance(bits, bool) else bits.text
    through = "poison" if isinstance(bits, bool) else s.ops.const(tensor.dtype, fill.value, width).text
    kind, base = memory_type(tensor.dtype, width), pointer_to(s, tensor, address.at(0))
    at = s.writer.cached(f"getelementptr {memory_type(tensor.dtype)}, ptr {base}, <{width} x i64> {offsets.text}")
    arguments = (
        (f"<{width} x ptr>", at), ("i32", str(size_bytes(tensor.dtype))), (f"<{width} x i1>", mask), (kind, through),
    )  # fmt: skip
    name = f"llvm.masked.gather.{memory_suffix(tensor.dtype, width)}.v{width}p0"
    return Value(tensor.dtype, width, s.writer.intrinsic(kind, name, arguments))


def _load_lanes(s: State, tensor: Tensor, subscripts: Sequence[Affine], guard: Bit, fill: Const) -> Value:
    """Element by element; inactive and guarded lanes touch nothing."""
    assert s.lanes is not None
    items: list[Value | None] = []
    place = places_of_lanes(s, tensor, subscripts)
    for i in range(s.lanes.count):
        bit = lane_bit(s, active_at_runtime(s, guard), i)
        pointer = pointer_to(s, tensor, place(i))
        items.append(raw_load(s, tensor, _safe(s, tensor, pointer, bit, fill)))
    return s.ops.gather(items, s.lanes.width, tensor.dtype)
