"""Loads and stores: one element, one vector, or lane by lane, guarded and masked; memory and registers alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import gcd

from poly.affine import Affine, var
from poly.codegen import strided
from poly.codegen.addresses import Address, LaneError
from poly.codegen.predicates import (
    Bit,
    Plan,
    State,
    active,
    any_lane,
    both,
    constant_mask,
    enabled,
    guard_parts,
    lane_bit,
)
from poly.codegen.text import LOCAL, constant_text, memory_type, suffix, value_type
from poly.codegen.values import Value
from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from poly.expr import Combiner, Const
from poly.program import Access, Layout, Tensor

WRITE = 254  # the place of a statement's write among its reads, in a status (8 bits, 0 for none)
MAX_DIMENSIONS = 255
ZERO = Const(0)
LEAST_MASKED = 4  # bytes of an element that machines load under a mask at once

Combine = Callable[[Value, Value], Value]  # (old, new) -> what the element becomes


def load(s: State, access: Access, values: dict[int, Value], statement: str, position: int) -> Value:
    """The value of a read: scalar, or a vector where it depends on the lane.

    `values`: the statement's earlier reads, for indirect subscripts; those are checked against the extents, where the
    guard holds, before anything is touched.
    """
    tensor = s.tensors[access.tensor]
    whole, lanes = guard_parts(s, access.guard)
    guard = both(s, whole, lanes)
    fill = access.fill or ZERO
    if guard is False:
        return s.ops.const(tensor.dtype, fill.value)
    if s.in_registers(tensor.name):
        value = _load_registers(s, access, statement)
        return value if guard is True else s.ops.select(_value(guard), value, s.ops.const(tensor.dtype, fill.value))
    subscripts, address = _located(s, access, values, guard, statement, position)
    stride = None if address is None else address.lane_stride
    if address is not None and stride == 0:
        if s.ahead is not None and not tensor.scope:
            _ask(s, tensor, subscripts, address, *s.ahead)
        return _load_uniform(s, tensor, address, guard, fill)
    if s.ahead is not None and address is not None and stride:
        _ask(s, tensor, subscripts, address, *s.ahead, near=_beside(s, stride))
    if address is not None and stride == 1:
        return _load_vector(s, tensor, address, whole, lanes, fill)
    if address is not None and stride is not None:
        value = _load_strided(s, tensor, subscripts, address, guard, fill)
        if value is not None:
            return value
    whole_lanes = s.lanes is not None and s.lanes.mask is None and guard is True
    value = _load_repeated(s, tensor, subscripts) if whole_lanes and address is None and not access.indirect else None
    return _load_lanes(s, tensor, subscripts, guard, fill) if value is None else value


def _ask(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], now: Address, loop: str, ahead: int, near: int = 0
) -> None:
    """Ask for what is touched some iterations of a loop later, if that moves with the loop: its line, once for all
    of a body that lies as near to one another as the elements of a line, or as `near` elements: where a line is asked
    for twice, it is less often missed; or, where `near` are more than a line, each line of them. The last element of a
    line counts: where memory starts inside a line, it is in the next.
    Past the loop's end that is what lies there in memory. An element that all lanes share and that stays in its line
    for several iterations is no stream: the mark asks for nothing there (`poly.scheduling.edits.prefetch` says so).
    """
    if not any(loop in c.names for c in subscripts):
        return
    line, step = s.line // size_bytes(tensor.dtype), s.indices.step(now, loop)
    if step is None:
        later = [c.substitute({loop: var(loop) + ahead}) for c in subscripts]
        address = _address(s, tensor, later, 0)
    elif not now.lane and abs(step) < line:
        return
    else:
        address = now.at(0)._replace(constant=now.constant + ahead * step)
    apart = min(near or line, line)
    first = address.constant // apart * apart + apart - 1
    for place in range(first, first + max(near, 1), line):
        pointer = _pointer(s, tensor, address._replace(constant=place))
        if f"ask {pointer}" not in s.writer.local:
            s.writer.local[f"ask {pointer}"] = pointer
            s.writer.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            s.writer.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")


def ask_for(s: State, access: Access) -> None:
    """Ask for the line of an element, into the second cache: the first one is in use, and it is needed later."""
    tensor = s.tensors[access.tensor]
    pointer = _pointer(s, tensor, _address(s, tensor, access.affine_index))
    s.writer.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    s.writer.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def _beside(s: State, stride: int) -> int:
    """How many elements lanes that lie so far apart touch side by side, 0 where they do not."""
    return s.lanes.width if s.lanes is not None and stride == 1 else 0


def _value(bit: Bit) -> Value:
    assert isinstance(bit, Value)
    return bit


def _load_registers(s: State, access: Access, statement: str) -> Value:
    at, stride = register_place(s, access, statement)
    if s.lanes is None or stride == 0:
        value = s.registers.scalar(access.tensor, at)
    elif stride == 1:
        value = s.registers.vector(access.tensor, at, s.lanes.width, s.lanes.count)
    else:
        value = s.registers.strided(access.tensor, at, stride, s.lanes.width, s.lanes.count)
    if value is None:
        raise UnsupportedError(
            f"register element {access.tensor}[{at}] is read before it is written", where=f"statement {statement}"
        )
    return value


def register_place(s: State, access: Access, statement: str) -> tuple[int, int]:
    """Storage element at lane 0 and the stride of the lanes. Raises `UnsupportedError` where it is not constant."""
    address = _direct(s, access) if id(access) in s.plans or not access.indirect else None
    if address is not None and not address.terms and (stride := address.lane_stride) is not None:
        return address.constant, stride
    raise UnsupportedError(
        f"the index of register tensor {access.tensor} is not constant: {', '.join(str(i) for i in access.index)}",
        where=f"statement {statement}",
        hint="unroll the loops that occur in it",
    )


def _address(s: State, tensor: Tensor, subscripts: Sequence[Affine], lane: int | None = None) -> Address:
    coordinates = subscripts if tensor.layout is None else _placed(tensor.layout, tuple(subscripts))
    return s.indices.address(tensor.name, [s.indices.linear(c, lane) for c in coordinates])


def _plan(s: State, access: Access) -> Plan:
    found = s.plans.get(id(access))
    if found is None:
        tensor, subscripts = s.tensors[access.tensor], access.affine_index
        coordinates = subscripts if tensor.layout is None else _placed(tensor.layout, subscripts)
        found = s.plans[id(access)] = Plan(access, subscripts, s.indices.flat(tensor.name, coordinates))
    return found


def _direct(s: State, access: Access) -> Address | None:
    """Where an access without indirection is; None where it is not linear in the lane. Found once a statement."""
    key = id(access)
    if key not in s.located:
        plan = _plan(s, access)
        try:
            flat = plan.flat
            s.located[key] = (
                _address(s, s.tensors[access.tensor], plan.subscripts) if flat is None else s.indices.offset(flat)
            )
        except LaneError:
            s.located[key] = None
    return s.located[key]


def _located(
    s: State, access: Access, values: dict[int, Value], guard: Bit, statement: str, position: int
) -> tuple[tuple[Affine, ...], Address | None]:
    """The subscripts of an access, and where it is; None where that is not linear in the lane."""
    if id(access) in s.plans or not access.indirect:
        return _plan(s, access).subscripts, _direct(s, access)
    subscripts = _subscripts(s, access, values, guard, statement, position)
    try:
        return subscripts, _address(s, s.tensors[access.tensor], subscripts)
    except LaneError:
        return subscripts, None


@lru_cache(maxsize=1024)
def _placed(layout: Layout, subscripts: tuple[Affine, ...]) -> tuple[Affine, ...]:
    """`Layout.place`, once for all unrolled copies of an access."""
    return layout.place(subscripts)


def _pointer(s: State, tensor: Tensor, address: Address) -> str:
    return s.indices.pointer(s.bases[tensor.name], memory_type(tensor.dtype), address)


def _subscripts(
    s: State, access: Access, values: dict[int, Value], guard: Bit, statement: str, position: int
) -> tuple[Affine, ...]:
    """Affine subscripts, where a loaded index is a variable of its own; indices are checked first."""
    found: list[Affine] = []
    for dimension, subscript in enumerate(access.index):
        if isinstance(subscript, Affine):
            found.append(subscript)
            continue
        name = f"#{subscript.position}"
        index = s.ops.cast(values[subscript.position], "i64")
        _check_index(s, access, dimension, index, guard, (statement, position))
        if index.lanes:
            assert s.lanes is not None
            lanes = [s.ops.lane(index, i).text for i in range(s.lanes.count)]
            s.indices.lane_values[name] = lanes
            s.writer.depth_of |= {name: LOCAL for name in lanes if name not in s.writer.depth_of}
        else:
            s.indices.lane_values.pop(name, None)
            s.indices.values[name] = s.indices.of_value(index.text, index.literal)
            s.writer.depth_of.setdefault(index.text, LOCAL)
        found.append(var(name))
    return tuple(found)


def _check_index(s: State, access: Access, dimension: int, index: Value, guard: Bit, where: tuple[str, int]) -> None:
    """Leave the function with a status where an index is outside 0 .. extent - 1 in an active lane."""
    writer = s.writer
    extent = s.indices.text(s.indices.linear(s.tensors[access.tensor].shape[dimension]))
    limit = s.ops.splat(Value("i64", 0, extent), index.lanes)
    bad: Bit = Value("bool", index.lanes, s.ops.op("icmp uge", index, index, limit).text)
    s.writer.depth_of[bad.text] = LOCAL
    bad = _value(both(s, bad, enabled(s, guard) if index.lanes else guard))
    failed, fine = writer.fresh_label(), writer.fresh_label()
    test = any_lane(s, bad)
    writer.emit(f"br i1 {test.text}, label %{failed}, label %{fine}")
    writer.label(failed)
    value = index.text
    if index.lanes:
        value = "0"
        for i in range(index.lanes):
            bit = writer.value(f"extractelement <{index.lanes} x i1> {bad.text}, i64 {i}")
            value = writer.value(f"select i1 {bit}, i64 {s.ops.lane(index, i).text}, i64 {value}")
    for test, end in (("slt", -(2**31)), ("sgt", 2**31 - 1)):  # as far as a status can tell
        beyond = writer.value(f"icmp {test} i64 {value}, {end}")
        value = writer.value(f"select i1 {beyond}, i64 {end}, i64 {value}")
    code = encode_status(s.statements[where[0]], where[1], dimension, where[0])
    high = writer.value(f"shl i64 {value}, 32")
    writer.emit(f"ret i64 {writer.value(f'or i64 {high}, {code}')}")
    writer.label(fine)


def encode_status(number: int, position: int, dimension: int, statement: str) -> int:
    """The low 32 bits of a status, see `poly.codegen.function.decode_status`; `position`: of the read, or `WRITE`."""
    if dimension >= MAX_DIMENSIONS:
        raise UnsupportedError(f"an indirect access has {dimension + 1} dimensions", where=f"statement {statement}")
    return number << 16 | (position + 1) << 8 | (dimension + 1)


def _safe(s: State, tensor: Tensor, pointer: str, condition: Bit, fill: Const, lanes: int = 0) -> str:
    """The pointer where the condition holds, else one to the fill value."""
    if isinstance(condition, bool):
        return pointer
    text = constant_text(tensor.dtype, fill.value)
    if tensor.dtype == "bool":
        text = str(int(bool(fill.value)))
    place = s.writer.constant(memory_type(tensor.dtype), lanes, text)
    return s.writer.value(f"select i1 {condition.text}, ptr {pointer}, ptr {place}")


def _raw_load(s: State, tensor: Tensor, pointer: str, lanes: int = 0) -> Value:
    """What is at a pointer; once in a block where nobody writes the tensor, since instruction selection would load it
    again behind every store.
    """
    text = f"load {memory_type(tensor.dtype, lanes)}, ptr {pointer}, align {size_bytes(tensor.dtype)}"
    found = s.writer.cached(text) if tensor.role in ("input", "constant") else s.writer.value(text)
    return _from_memory(s, tensor.dtype, found, lanes)


def _from_memory(s: State, dtype: str, text: str, lanes: int) -> Value:
    return s.ops.truth(Value("u8", lanes, text)) if dtype == "bool" else Value(dtype, lanes, text)


def _to_memory(s: State, value: Value) -> str:
    if value.dtype != "bool":
        return value.text
    kind = memory_type("bool", value.lanes)
    return s.writer.value(f"zext {value_type('bool', value.lanes)} {value.text} to {kind}")


def _load_uniform(s: State, tensor: Tensor, address: Address, guard: Bit, fill: Const) -> Value:
    """The same element for every lane; in a vector loop at least one lane is active."""
    some = guard
    if isinstance(guard, Value) and guard.lanes:
        some = any_lane(s, _value(enabled(s, guard)))
    value = _raw_load(s, tensor, _safe(s, tensor, _pointer(s, tensor, address), some, fill))
    if isinstance(guard, Value) and guard.lanes:
        return s.ops.select(guard, value, s.ops.const(tensor.dtype, fill.value))
    return value


def _load_vector(s: State, tensor: Tensor, address: Address, whole: Bit, lanes: Bit, fill: Const) -> Value:
    """Neighbouring elements, masked where lanes are inactive or guarded; where all are, the fill value is loaded.

    `whole`, `lanes`: the guard, as `guard_parts` gives it.
    """
    assert s.lanes is not None
    width, mask = s.lanes.width, s.lanes.mask
    pointer = _safe(s, tensor, _pointer(s, tensor, address.at(0)), whole, fill, width)
    if isinstance(lanes, Value):
        mask = _value(both(s, lanes, Value("bool", width, mask) if mask else True)).text
    if mask is None:
        return _raw_load(s, tensor, pointer, width)
    through = s.ops.const("u8" if tensor.dtype == "bool" else tensor.dtype, fill.value, width).text
    return _masked_load(s, tensor, pointer, mask, through)


def _masked_load(s: State, tensor: Tensor, pointer: str, mask: str, through: str) -> Value:
    """Neighbouring elements where the mask is set, else those of `through`; once in a block where nobody writes the
    tensor, since instruction selection would load them again behind every prefetch.
    """
    assert s.lanes is not None
    width = s.lanes.width
    kind = memory_type(tensor.dtype, width)
    name = f"llvm.masked.load.{_memory_suffix(tensor.dtype, width)}.p0"
    arguments = (("ptr", pointer), ("i32", str(size_bytes(tensor.dtype))), (f"<{width} x i1>", mask), (kind, through))
    still = tensor.role in ("input", "constant") or (s.written is not None and tensor.name not in s.written)
    return _from_memory(s, tensor.dtype, s.writer.intrinsic(kind, name, arguments, again=still), width)


def _memory_suffix(dtype: str, lanes: int) -> str:
    return suffix("u8" if dtype == "bool" else dtype, lanes)


def _pair_row(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> tuple[int, int] | None:
    """Of every second element of a tensor's rows: 0 or 1, the place of the first one in a pair of elements, and how
    many elements the row has from that pair on at least; None where pairs do not lie along a row.
    """
    forms = [s.indices.linear(c) for c in subscripts]
    if tensor.layout is not None or any(f.lane for f in forms[:-1]):
        return None
    phase = forms[-1].constant % 2
    extent, reach = s.indices.linear(tensor.shape[-1]), s.indices.interval(forms[-1])
    assert s.lanes is not None
    if extent.terms or reach is None or reach[0] < phase:
        return phase, 0
    return phase, extent.constant - (reach[1] - 2 * (s.lanes.count - 1) - phase)


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
    (phase, room), width = found, s.lanes.width
    inside = min(width, room - width)
    cheap = inside == width or s.masked_stores or size_bytes(tensor.dtype) >= LEAST_MASKED
    if phase + 2 * (s.lanes.count - 1) >= width + inside or not cheap:
        return None
    places = (address.at(0)._replace(constant=address.constant + n - phase) for n in (0, width))
    first, last = (_safe(s, tensor, _pointer(s, tensor, at), guard, fill, width) for at in places)
    mask = constant_mask(width, inside)
    rest = _masked_load(s, tensor, last, mask, "zeroinitializer") if mask else _raw_load(s, tensor, last, width)
    return strided.second(s.ops, [_raw_load(s, tensor, first, width), rest], phase)


def _load_strided(
    s: State, tensor: Tensor, subscripts: Sequence[Affine], address: Address, guard: Bit, fill: Const
) -> Value | None:
    """Elements a small stride apart, by whole loads; masked where lanes are; None where that does not apply."""
    lanes, stride = s.lanes, address.lane_stride or 0
    offsets = strided.loads(lanes.width, stride, lanes.count) if lanes is not None else None
    if lanes is None or offsets is None or tensor.dtype == "bool":
        return None
    mask = active(s, guard)
    each = mask if isinstance(mask, Value) and mask.lanes else None
    if stride == 2 and each is None:
        found = _load_pairs(s, tensor, subscripts, address, mask, fill)
        if found is not None:
            return found
    pair = _pair_row(s, tensor, subscripts) if stride == 2 and each is not None and _is_zero(fill) else None
    vectors: list[Value] = []  # what a mask leaves out is zero
    for offset in offsets if pair is None else (-pair[0], lanes.width - pair[0]):
        pointer = _pointer(s, tensor, address.at(0)._replace(constant=address.constant + offset))
        if each is None:
            pointer = _safe(s, tensor, pointer, mask, fill, lanes.width)
            vectors.append(_raw_load(s, tensor, pointer, lanes.width))
        else:
            bits = strided.spread(s.ops, each, offset, stride, lanes.count)
            vectors.append(_masked_load(s, tensor, pointer, bits, "zeroinitializer"))
    if pair is not None:
        return strided.second(s.ops, vectors, pair[0])
    value = strided.pick(s.ops, tensor.dtype, offsets, [v.text for v in vectors], stride, lanes.count)
    return value if each is None else s.ops.select(each, value, s.ops.const(tensor.dtype, fill.value))


def _is_zero(fill: Const) -> bool:
    """Whether a value is all bits zero; -0.0 is not."""
    return str(float(fill.value)) == "0.0"


def _load_repeated(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> Value | None:
    """Elements that several lanes share, by loads of neighbours and one shuffle; None where that does not apply.

    What is shared lies side by side (`l%8`, `l//2`), or in one column of several rows (`l//8` of a matrix): then whole
    pieces of these rows are loaded, which serve their other columns as well.
    """
    assert s.lanes is not None
    places = [_address(s, tensor, subscripts, i) for i in range(s.lanes.count)]
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
        pointer = _pointer(s, tensor, places[0]._replace(constant=start - phase))
        piece = _raw_load(s, stored, pointer, count)
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
    size = gcd(extent.constant, 1 << (most.bit_length() - 1), *(c for _, c in form.terms))
    return size, form.constant % size


def _load_lanes(s: State, tensor: Tensor, subscripts: Sequence[Affine], guard: Bit, fill: Const) -> Value:
    """Element by element; inactive and guarded lanes touch nothing."""
    assert s.lanes is not None
    items: list[Value | None] = []
    for i in range(s.lanes.count):
        bit = lane_bit(s, active(s, guard), i)
        pointer = _pointer(s, tensor, _address(s, tensor, subscripts, i))
        items.append(_raw_load(s, tensor, _safe(s, tensor, pointer, bit, fill)))
    return s.ops.gather(items, s.lanes.width, tensor.dtype)


def store(
    s: State,
    access: Access,
    value: Value,
    combine: Combine | None,
    combiner: Combiner | None,
    values: dict[int, Value],
    statement: str,
) -> None:
    """Write a value, or merge it into what is there as `combine` does, which is `combiner` in code.

    Lanes that all merge into one element are reduced first, halves by halves; others that share one go one by one.
    """
    if s.in_registers(access.tensor):
        return _store_registers(s, access, value, combine, combiner, statement)
    tensor = s.tensors[access.tensor]
    subscripts, address = _located(s, access, values, True, statement, WRITE)
    stride = None if address is None else address.lane_stride
    if s.ahead is not None and address is not None and stride and not s.past and not tensor.scope:
        width = _beside(s, stride)
        _ask(s, tensor, subscripts, address, *s.ahead, near=width if width * size_bytes(tensor.dtype) > s.line else 0)
    if address is not None and stride == 0:
        pointer = _pointer(s, tensor, address)
        new = _fold(s, value, combine, combiner, lambda: _raw_load(s, tensor, pointer))
        _raw_store(s, tensor, pointer, new)
    elif address is not None and stride == 1:
        _store_vector(s, tensor, address.at(0), value, combine)
    else:
        _store_lanes(s, tensor, subscripts, value, combine)


def _raw_store(s: State, tensor: Tensor, pointer: str, value: Value) -> None:
    kind = memory_type(tensor.dtype, value.lanes)
    s.writer.emit(f"store {kind} {_to_memory(s, value)}, ptr {pointer}, align {size_bytes(tensor.dtype)}")


def _fold(
    s: State, value: Value, combine: Combine | None, combiner: Combiner | None, old: Callable[[], Value]
) -> Value:
    """What one element becomes when all active lanes write it: the last one's, or the lanes reduced and merged."""
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
        value = combine(s.ops.part(value, 0, half), s.ops.part(value, half, half))
    return combine(s.ops.lane(value, 0), s.ops.lane(value, 1))


def _store_past(s: State, tensor: Tensor, address: Address, value: Value) -> bool:
    """Store whole, aligned vectors past the caches; False where they are not."""
    size = size_bytes(tensor.dtype)
    places = gcd(*(size * c for _, c in address.terms), size * address.constant)
    if not s.aligned or value.lanes * size % s.aligned or places % s.aligned:
        return False
    s.streamed.add(tensor.name)
    text, kind = _to_memory(s, value), memory_type(tensor.dtype, value.lanes)
    s.writer.emit(f"store {kind} {text}, ptr {_pointer(s, tensor, address)}, align {s.aligned}, !nontemporal !0")
    return True


def _store_vector(s: State, tensor: Tensor, address: Address, value: Value, combine: Combine | None) -> None:
    assert s.lanes is not None
    if s.past and s.lanes.mask is None and combine is None:
        value = s.ops.splat(value, s.lanes.width)
        if _store_past(s, tensor, address, value):
            return
    width, mask, pointer = s.lanes.width, s.lanes.mask, _pointer(s, tensor, address)
    dtype, alignment = tensor.dtype, str(size_bytes(tensor.dtype))
    value = s.ops.splat(value, width)
    kind = memory_type(dtype, width)
    if combine is not None and mask is None:
        value = combine(_raw_load(s, tensor, pointer, width), value)
    elif combine is not None:
        value = combine(_masked_load(s, tensor, pointer, mask or "", "zeroinitializer"), value)
    if mask is None:
        return _raw_store(s, tensor, pointer, value)
    if s.lanes.constant and not s.masked_stores:
        return _store_prefix(s, tensor, pointer, value, s.lanes.count)
    name = f"llvm.masked.store.{_memory_suffix(dtype, width)}.p0"
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


def _store_lanes(
    s: State,
    tensor: Tensor,
    subscripts: Sequence[Affine],
    value: Value,
    combine: Combine | None,
) -> None:
    """Element by element, in the order of the lanes."""
    assert s.lanes is not None
    for i in range(s.lanes.count):
        bit = lane_bit(s, active(s, True), i)
        pointer = _pointer(s, tensor, _address(s, tensor, subscripts, i))
        item = s.ops.lane(value, i)

        def write(pointer: str = pointer, item: Value = item) -> None:
            new = item if combine is None else combine(_raw_load(s, tensor, pointer), item)
            _raw_store(s, tensor, pointer, new)

        if isinstance(bit, bool):
            write()
            continue
        then, end = s.writer.fresh_label(), s.writer.fresh_label()
        s.writer.emit(f"br i1 {bit.text}, label %{then}, label %{end}")
        with s.writer.region() as lines:
            write()
        s.writer.label(then)
        s.writer.lines += lines
        s.writer.emit(f"br label %{end}")
        s.writer.label(end)


def _store_registers(
    s: State, access: Access, value: Value, combine: Combine | None, combiner: Combiner | None, statement: str
) -> None:
    tensor = access.tensor
    at, stride = register_place(s, access, statement)
    old = _load_registers(s, access, statement) if combine is not None else None
    if s.lanes is None or stride == 0:
        new = _fold(s, value, combine, combiner, lambda: old if old is not None else value)
        s.registers.set_scalar(tensor, at, new)
        return
    lanes = s.lanes
    value = s.ops.splat(value, lanes.width)
    if combine is not None and old is not None:
        value = combine(old, value)
    if lanes.runtime_mask is not None and stride == 1:
        before = s.registers.vector(tensor, at, lanes.width, lanes.count)
        if before is not None:
            value = s.ops.select(Value("bool", lanes.width, lanes.runtime_mask), value, before)
    if stride == 1:
        s.registers.set_vector(tensor, at, value, lanes.count)
        return
    for i in range(lanes.count):
        item = s.ops.lane(value, i)
        before = s.registers.scalar(tensor, at + stride * i)
        bit = lane_bit(s, active(s, True), i)
        if isinstance(bit, Value) and before is not None:
            item = s.ops.select(bit, item, before)
        s.registers.set_scalar(tensor, at + stride * i, item)


def elementwise(s: State, access: Access) -> bool:
    """Whether a write puts each lane's value (or, outside of vector loops, the one value) at a place of its own."""
    if s.lanes is None:
        return True
    if access.indirect:
        return False
    address = _direct(s, access)
    return address is not None and address.lane_stride == 1


def register_writes(s: State, access: Access, statement: str) -> list[tuple[str, int]]:
    """The register elements that a write at the current place touches."""
    at, stride = register_place(s, access, statement)
    count = s.lanes.count if s.lanes is not None and stride else 1
    return [(access.tensor, at + stride * i) for i in range(count)]
