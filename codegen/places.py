"""Where an access is: its subscripts, checked where they are data, and its address, linear in the lane or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from poly.affine import Affine, var
from poly.codegen.addresses import Address, LaneError
from poly.codegen.predicates import Bit, active_lanes, as_value, both
from poly.codegen.state import Plan, State
from poly.codegen.status import encode_status
from poly.codegen.text import LOCAL, memory_type
from poly.codegen.values import Value
from poly.errors import UnsupportedError
from poly.program import Access, Layout, Tensor


def register_place(s: State, access: Access) -> tuple[int, int]:
    """Storage element at lane 0 and the stride of the lanes. Raises `UnsupportedError` where it is not constant."""
    address = direct(s, access) if id(access) in s.plans or not access.indirect else None
    if address is not None and not address.terms and (stride := address.lane_stride) is not None:
        return address.constant, stride
    raise UnsupportedError(
        f"the index of register tensor {access.tensor} is not constant: {', '.join(str(i) for i in access.index)}",
        hint="unroll the loops that occur in it",
    )


def located(
    s: State, access: Access, values: dict[int, Value], guard: Bit, position: int
) -> tuple[tuple[Affine, ...], Address | None]:
    """The subscripts of an access, and where it is; None where that is not linear in the lane. `position`: of a read
    among those of its statement, or `WRITE`.
    """
    if id(access) in s.plans or not access.indirect:
        return _plan(s, access).subscripts, direct(s, access)
    subscripts = _subscripts(s, access, values, guard, position)
    try:
        return subscripts, address_at(s, s.tensors[access.tensor], subscripts)
    except LaneError:
        return subscripts, None


def direct(s: State, access: Access) -> Address | None:
    """Where an access without indirection is; None where it is not linear in the lane. Found once for what the names
    in it are, unless a number of the current block takes part.
    """
    key = place_key(s, access)
    if key in s.located:
        return s.located[key]
    plan = _plan(s, access)
    try:
        flat = plan.flat
        found = address_at(s, s.tensors[access.tensor], plan.subscripts) if flat is None else s.indices.offset(flat)
    except LaneError:
        found = None
    depth, local = s.writer.depth_of, s.writer.probing
    if not local and not (found and any([LOCAL in (depth.get(a, 0), depth.get(b, 0)) for (a, b), _ in found.terms])):
        s.located[key] = found
    return found


def place_key(s: State, access: Access) -> tuple[object, ...]:
    """What tells where an access without indirection is at the current place."""
    values, plan = s.indices.values, s.plans.get(id(access)) or _plan(s, access)
    return (id(access), s.indices.lane_range, *[values[name] for name in plan.names])


def _plan(s: State, access: Access) -> Plan:
    found = s.plans.get(id(access))
    if found is None:
        tensor, subscripts = s.tensors[access.tensor], access.affine_index
        coordinates = subscripts if tensor.layout is None else _placed(tensor.layout, subscripts)
        names = tuple(frozenset[str]().union(*(c.names for c in coordinates)))
        found = s.plans[id(access)] = Plan(access, subscripts, s.indices.flat(tensor.name, coordinates), names)
    return found


def address_at(s: State, tensor: Tensor, subscripts: Sequence[Affine], lane: int | None = None) -> Address:
    coordinates = subscripts if tensor.layout is None else _placed(tensor.layout, tuple(subscripts))
    return s.indices.address(tensor.name, [s.indices.linear(c, lane) for c in coordinates])


def joined_address(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> Address:
    """The same, with quotients and remainders of all coordinates put back together where strides are known."""
    coordinates = subscripts if tensor.layout is None else _placed(tensor.layout, tuple(subscripts))
    flat = s.indices.flat(tensor.name, coordinates)
    return address_at(s, tensor, subscripts) if flat is None else s.indices.offset(flat.recombined())


@lru_cache(maxsize=1024)
def _placed(layout: Layout, subscripts: tuple[Affine, ...]) -> tuple[Affine, ...]:
    """`Layout.place`, once for all unrolled copies of an access."""
    return layout.place(subscripts)


def pointer_to(s: State, tensor: Tensor, address: Address) -> str:
    return s.indices.pointer(s.bases[tensor.name], memory_type(tensor.dtype), address)


def _subscripts(
    s: State, access: Access, values: dict[int, Value], guard: Bit, position: int
) -> tuple[Affine, ...]:
    """Affine subscripts, where a loaded index is a variable of its own; indices are checked first."""
    found: list[Affine] = []
    for dimension, subscript in enumerate(access.index):
        if isinstance(subscript, Affine):
            found.append(subscript)
            continue
        name = f"#{subscript.position}"
        index = s.ops.cast(values[subscript.position], "i64")
        _check_index(s, access, dimension, index, guard, position)
        if index.lanes:
            s.index_vectors[name] = index
            s.indices.lane_values[name] = partial(_lane, s, index)
        else:
            s.index_vectors.pop(name, None)
            s.indices.lane_values.pop(name, None)
            s.indices.values[name] = s.indices.of_value(index.text, index.literal)
            s.writer.depth_of.setdefault(index.text, LOCAL)
        found.append(var(name))
    return tuple(found)


def index_offsets(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> tuple[list[Affine], Value] | None:
    """What indices from memory come to in elements, for all lanes at once, and the subscripts without them; None where
    they do not move an address by known strides.
    """
    strides = s.indices.strides_of[tensor.name]
    own = [s.index_vectors.get(_variable(c)) for c in subscripts]
    if tensor.layout is not None or any(v is not None and t.value for v, t in zip(own, strides, strict=True)):
        return None
    total: Value | None = None
    for index, stride in zip(own, strides, strict=True):
        if index is not None:
            step = s.ops.const("i64", stride.factor, index.lanes)
            part = index if stride.factor == 1 else s.ops.op("mul", index, step)
            total = part if total is None else s.ops.op("add", total, part)
    rest = [c if index is None else Affine() for index, c in zip(own, subscripts, strict=True)]
    return None if total is None else (rest, total)


def places_of_lanes(s: State, tensor: Tensor, subscripts: Sequence[Affine]) -> Callable[[int], Address]:
    """The address of each lane."""
    found = index_offsets(s, tensor, subscripts)
    if found is None:
        return lambda lane: address_at(s, tensor, subscripts, lane)
    rest, offsets = found

    def place(lane: int) -> Address:
        address = address_at(s, tensor, rest, lane)
        return address._replace(terms=(*address.terms, ((_lane(s, offsets, lane), ""), 1)))

    return place


def _variable(subscript: Affine) -> str:
    """The variable that a subscript is, "" for any other."""
    name = next(iter(subscript.names), "")
    return name if subscript == var(name) else ""


def _lane(s: State, index: Value, lane: int) -> str:
    """One lane of an index."""
    text = s.ops.lane(index, lane).text
    s.writer.depth_of.setdefault(text, LOCAL)
    return text


def _check_index(s: State, access: Access, dimension: int, index: Value, guard: Bit, position: int) -> None:
    """Leave the function with a status where an index is outside 0 .. extent - 1 in an active lane; where the same has
    been asked in this block or one around, it is inside.
    """
    writer = s.writer
    extent = s.indices.text(s.indices.linear(s.tensors[access.tensor].shape[dimension]))
    limit = s.ops.splat(Value("i64", 0, extent), index.lanes)
    bad: Bit = s.ops.op("icmp uge", index, limit, dtype="bool")
    s.writer.depth_of[bad.text] = LOCAL
    bad = as_value(both(s, bad, active_lanes(s, guard) if index.lanes else guard))
    if f"checked {bad.text}" in writer.local:
        return
    writer.local[f"checked {bad.text}"] = ""
    failed, fine = writer.fresh_label(), writer.fresh_label()
    test = s.ops.any_lane(bad)
    writer.emit(f"br i1 {test.text}, label %{failed}, label %{fine}")
    writer.label(failed)
    with writer.region() as lines:
        _leave(s, dimension, index, bad, position)
    writer.lines += lines
    writer.label(fine)


def _leave(s: State, dimension: int, index: Value, bad: Value, position: int) -> None:
    """Return the status of an index that is outside, of the last lane where one is."""
    writer = s.writer
    value = index.text
    if index.lanes:
        value = "0"
        for i in range(index.lanes):
            bit = writer.value(f"extractelement <{index.lanes} x i1> {bad.text}, i64 {i}")
            value = writer.value(f"select i1 {bit}, i64 {s.ops.lane(index, i).text}, i64 {value}")
    for test, end in (("slt", -(2**31)), ("sgt", 2**31 - 1)):  # as far as a status can tell
        beyond = writer.value(f"icmp {test} i64 {value}, {end}")
        value = writer.value(f"select i1 {beyond}, i64 {end}, i64 {value}")
    code = encode_status(s.statements[s.statement], position, dimension)
    high = writer.value(f"shl i64 {value}, 32")
    writer.emit(f"ret i64 {writer.value(f'or i64 {high}, {code}')}")
