"""The row of TopK: the greatest elements along an axis, by selection.

An element and its place are one integer: 32 bits that are ordered as the elements, and below them the place, so that
no two are equal and of equal elements the first is the greatest. The next one of a row is then the greatest that is
less than the last one. A long row is in blocks whose greatest are known: a step looks at these, and at one block again,
which are some 2 sqrt(n) elements of n (quadratic selection; Knuth, The Art of Computer Programming 3, 5.2.3). Of most
of a short row the ranks are found: all pairs are compared, many at once.
"""

from __future__ import annotations

from typing import Final

from poly.affine import Constraint, var
from poly.dtypes import is_float, size_bytes
from poly.frontend.onnx_notation import Notation
from poly.frontend.onnx_shapes import positions
from poly.frontend.onnx_terms import Index, Term, Value, fn, index_value, literal

_MAX_RANKED: Final = 1 << 15
_MAX_PLACES: Final = 1 << 31
_FEW_OF_ALL: Final = 3  # a third of a row is picked one by one: two looks at it for each, and ranks are one for all
_ONE_BLOCK: Final = 64  # elements that are looked at again in each step
# What ranks cost beside comparing all pairs, and picking one, and each element that it looks at: in pairs.
_OF_RANKS, _OF_A_STEP, _OF_AN_ELEMENT = 150, 80, 0.8
LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_S, _B, _J = (var(name) for name in ("s", "b", "j"))


def top_k(b: Notation) -> None:
    """The first k elements along the axis in descending (`largest` = 0: ascending) order, and their places."""
    x = b.input(0)
    count = b.int_attribute("k") if b.opset < 10 else b.constant_ints(1)[0]
    axis = b.axis(b.int_attribute("axis", -1), x.rank)
    b.require(0 <= count <= x.shape[axis], f"k = {count} of {x.shape[axis]}")
    shape = [count if d == axis else e for d, e in enumerate(x.shape)]
    y, found = b.output(shape, x.dtype), b.output(shape, "i64", 1)
    if found.size == 0:
        return
    if size_bytes(x.dtype) > 4:
        few = count * _FEW_OF_ALL <= x.shape[axis]
        (_picked if few else _ranked)(b, x, axis, found)
    else:
        b.supported(x.shape[axis] < _MAX_PLACES, f"{x.shape[axis]} elements have no places of 31 bits")
        _selected(b, x, axis, found)
    ranges, point = positions(shape)
    b.assign(y, ranges, x.take(*(found[tuple(point)] if d == axis else p for d, p in enumerate(point))))


# -- by selection --------------------------------------------------------------------------------------------------


def _selected(b: Notation, x: Value, axis: int, found: Value) -> None:
    extent, count = x.shape[axis], found.shape[axis]
    rows = {f"i{d}": e for d, e in enumerate(x.shape) if d != axis}
    row, extents = tuple(map(var, rows)), list(rows.values())
    if extent * extent + _OF_RANKS < count * (_OF_A_STEP + _OF_AN_ELEMENT * extent):
        last = _by_ranks(b, _keys(b, x, axis, rows, extent), rows)[*row, _S]
    elif extent <= _ONE_BLOCK:
        taken = _from_rows(b, _keys(b, x, axis, rows, extent), rows, count)
        last = taken[*row, _S + 1]
    else:
        size = 1 << ((extent - 1).bit_length() + 1) // 2
        keys = _keys(b, x, axis, rows, size)
        greatest = b.temporary("greatest", [*extents, keys.shape[-2]], "i64")
        b.reduce(greatest, {**rows, "b": keys.shape[-2]}, {"j": size}, keys[*row, _B, _J], "max", suffix="_greatest")
        last = _from_blocks(b, keys, greatest, rows, count)[*row, _S]
    place = tuple(_S if d == axis else var(f"i{d}") for d in range(x.rank))
    b.assign(found, {**rows, "s": count}, place_of(last), place, suffix="_places")


def _from_rows(b: Notation, keys: Value, rows: dict[str, int], count: int) -> Value:
    """taken[.., s + 1], the greatest of a row that is less than taken[.., s]."""
    row, extent = tuple(map(var, rows)), keys.shape[-1]
    taken = b.temporary("taken", [*rows.values(), count + 1], "i64")
    b.assign(taken, rows, literal(_GREATEST), (*row, 0), suffix="_start")
    with b.loop({**rows, "s": count}):
        key, before = keys[*row, 0, _J], taken[*row, _S]
        value = fn("select", fn("lt", key, before), key, LEAST)
        b.reduce(taken, {}, {"j": extent}, value, "max", index=(*row, _S + 1), suffix="_taken")
    return taken


def _by_ranks(b: Notation, keys: Value, rows: dict[str, int]) -> Value:
    """The keys in order: the rank of each is how many are greater, which are many pairs at once, no step after another.
    """
    row, extent = tuple(map(var, rows)), keys.shape[-1]
    rank, ordered = (b.temporary(name, [*rows.values(), extent], "i64") for name in ("rank", "ordered"))
    key, other = keys[*row, 0, _J], keys[*row, 0, var("k")]
    ranges = {**rows, "j": extent}
    b.reduce(rank, ranges, {"k": extent}, fn("gt", other, key).cast("i64"), index=(*row, _J), suffix="_rank")
    b.assign(ordered, ranges, key, (*row, rank[*row, _J]), suffix="_ordered")
    return ordered


def _from_blocks(b: Notation, keys: Value, greatest: Value, rows: dict[str, int], count: int) -> Value:
    """taken[.., s], the greatest of the blocks' greatest, which for its block is then the next one."""
    row, (blocks, size) = tuple(map(var, rows)), keys.shape[-2:]
    taken, block, following = (
        b.temporary(name, [*rows.values(), count], "i64") for name in ("taken", "block", "following")
    )
    at = (*row, _S)
    with b.loop({**rows, "s": count}):
        b.reduce(taken, {}, {"b": blocks}, greatest[*row, _B], "max", index=at, suffix="_taken")
        b.assign(block, {}, fn("shift_right", place_of(taken[at]), size.bit_length() - 1), at, suffix="_block")
        key = keys.take(*row, block[at], _J)
        value = fn("select", fn("lt", key, taken[at]), key, LEAST)
        b.reduce(following, {}, {"j": size}, value, "max", index=at, suffix="_following")
        b.assign(greatest, {}, following[at], (*row, block[at]), suffix="_next")
    return taken


def _keys(b: Notation, x: Value, axis: int, rows: dict[str, int], size: int) -> Value:
    """keys[rows, block, j]: a block's elements with their places; behind a row's end less than any element."""
    extent, row = x.shape[axis], tuple(map(var, rows))
    blocks = -(-extent // size)
    keys = b.temporary("keys", [*rows.values(), blocks, size], "i64")
    at: Index = _B * size + _J
    element = x[tuple(at if d == axis else var(f"i{d}") for d in range(x.rank))]
    value = _wanted_first(b, element, x.dtype)
    number = value.cast("i64") * 2**32 + (2**31 - index_value(at))
    ranges = {**rows, "b": blocks, "j": size}
    inside = [Constraint(extent - 1 - at)] if extent < blocks * size else []
    b.assign(keys, ranges, number, (*row, _B, _J), suffix="_keys", where=inside)
    if inside:
        rest = {**rows, "j": blocks * size - extent}
        behind = (*row, blocks - 1, _J + (extent - (blocks - 1) * size))
        b.assign(keys, rest, literal(LEAST), behind, suffix="_behind")
    return keys


def _wanted_first(b: Notation, v: Term, dtype: str) -> Term:
    """An integer that is the greater, the sooner an element comes. A NaN comes first either way, as the greatest does
    in numpy.
    """
    value = ordered(v, dtype)
    if b.int_attribute("largest", 1) != 1:
        value = -1 - value
    most = 2 ** (63 if size_bytes(dtype) > 4 else 31) - 1
    return fn("select", fn("ne", v, v), most, value) if is_float(dtype) else value


def ordered(v: Term, dtype: str) -> Term:
    """An integer of 32 or 64 bits in the order of the elements: of floats the bits, all but the sign inverted below 0.
    """
    if dtype == "u64":
        return fn("bit_xor", v.cast("i64"), LEAST)
    if not is_float(dtype):
        return (v.cast("i64") - 2**31).cast("i32") if dtype == "u32" else v.cast("i64" if dtype == "i64" else "i32")
    top = 8 * max(size_bytes(dtype), 4) - 1
    bits = fn("bits", v.cast("f64" if top == 63 else "f32") + 0.0)  # no -0
    return fn("bit_xor", bits, fn("bit_and", fn("shift_right", bits, top), 2**top - 1))


def place_of(key: Term) -> Term:
    """The place below an element, as which it is stored: the first one is the greatest."""
    return 2**31 - fn("bit_and", key, 2**32 - 1)


# -- elements of 64 bits, which leave no room for a place: a few of a row one by one, more by ranks ----------------


def _picked(b: Notation, x: Value, axis: int, found: Value) -> None:
    """at[.., s + 1], the first place of the greatest element that comes after the last one taken."""
    extent, count = x.shape[axis], found.shape[axis]
    rows = {f"i{d}": e for d, e in enumerate(x.shape) if d != axis}
    row = tuple(map(var, rows))
    keys = b.temporary("keys", [*rows.values(), extent], "i64")
    element = x[tuple(_J if d == axis else var(f"i{d}") for d in range(x.rank))]
    b.assign(keys, {**rows, "j": extent}, _wanted_first(b, element, x.dtype), (*row, _J), suffix="_keys")
    taken, at = (b.temporary(name, [*rows.values(), count + 1], "i64") for name in ("taken", "at"))
    b.assign(taken, rows, literal(_GREATEST), (*row, 0), suffix="_start")
    b.assign(at, rows, literal(-1), (*row, 0), suffix="_before")
    with b.loop({**rows, "s": count}):
        key, last, place = keys[*row, _J], taken[*row, _S], index_value(_J)
        behind = fn("and", fn("eq", key, last), fn("gt", place, at[*row, _S]))
        left, following = fn("or", fn("lt", key, last), behind), (*row, _S + 1)
        b.reduce(taken, {}, {"j": extent}, fn("select", left, key, LEAST), "max", index=following, suffix="_taken")
        first = fn("and", left, fn("eq", key, taken[following]))
        b.reduce(at, {}, {"j": extent}, fn("select", first, place, extent), "min", index=following, suffix="_at")
    place = tuple(_S if d == axis else var(f"i{d}") for d in range(x.rank))
    b.assign(found, {**rows, "s": count}, at[*row, _S + 1], place, suffix="_places")


def _ranked(b: Notation, x: Value, axis: int, found: Value) -> None:
    """Each element's rank is how many come before it (ties: the first one does); then they are placed by rank."""
    extent = x.shape[axis]
    b.supported(extent <= _MAX_RANKED, f"the ranks of {extent} elements by comparing all pairs would be slow")
    ranges, point = positions(x.shape)
    other, own = [var("k") if d == axis else p for d, p in enumerate(point)], point[axis]
    v, u = x[tuple(point)], x[tuple(other)]
    before = fn("gt" if b.int_attribute("largest", 1) == 1 else "lt", u, v)
    earlier = fn("lt", index_value(var("k")), index_value(own))
    equal = fn("eq", u, v)
    if is_float(x.dtype):  # a NaN comes first, as the largest does
        nan, other_nan = fn("ne", v, v), fn("ne", u, u)
        before = fn("or", before, fn("and", other_nan, fn("not", nan)))
        equal = fn("or", equal, fn("and", other_nan, nan))
    rank = b.temporary("rank", x.shape, "i64")
    value = fn("or", before, fn("and", equal, earlier)).cast("i64")
    b.reduce(rank, ranges, {"k": extent}, value, suffix="_rank")
    order = b.temporary("order", x.shape, "i64")
    place = [rank[tuple(point)] if d == axis else p for d, p in enumerate(point)]
    b.assign(order, ranges, index_value(own), place, suffix="_order")
    ranges, point = positions(found.shape)
    b.assign(found, ranges, order[tuple(point)], suffix="_places")
