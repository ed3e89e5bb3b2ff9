"""Register tensors as SSA values: which value holds which elements at the current place.

An entry is a scalar for one element, or a vector for the elements `start .. start + count - 1` of a tensor's storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poly.codegen import transpose
from poly.codegen.operators import Ops
from poly.codegen.text import value_type
from poly.codegen.values import Value, constant_mask
from poly.errors import UnsupportedError

Place = tuple[str, int]  # tensor, element of its storage


@dataclass(frozen=True)
class Entry:
    """The value that starts at a place, and how many elements of it are meant."""

    value: Value
    count: int

    @property
    def type(self) -> str:
        return value_type(self.value.dtype, self.value.lanes)

    def named(self, text: str) -> Entry:
        """The entry with another value of the same form."""
        return Entry(Value(self.value.dtype, self.value.lanes, text), self.count)


class Registers:
    """The environment of register elements.

    `left`: for each loop around, what an iteration of it leaves to the next at places that had no value before the
    loop, as `phi_for_skipped` asks: the value that enters the loop, and the name of the phi.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.entries: dict[Place, Entry] = {}
        self.owner: dict[Place, int] = {}
        self.left: list[dict[Place, tuple[str, Entry]]] = []
        self.begins_at: dict[str, int] = {}  # how many loops are around where a tensor's life begins

    def snapshot(self) -> dict[Place, Entry]:
        """What is where at the current place."""
        return dict(self.entries)

    def begin(self, tensor: str) -> None:
        """A tensor's life begins here: no element of it has a value."""
        self.forget(tensor)
        self.begins_at[tensor] = len(self.left)

    def phi_for_skipped(self, place: Place, like: Entry) -> Value | None:
        """What earlier iterations left at a place where nothing has been written in this one, in the form of an entry,
        by a phi that the loops around get for it; None where no iteration is earlier. Raises `UnsupportedError` where
        vectors of another form lie there.
        """
        text = None
        for loop in self.left[self.begins_at.get(place[0], 0) :]:
            if place not in loop:
                loop[place] = text or "poison", like.named(self.ops.writer.name("c"))
            kept = loop[place][1]
            if kept.type != like.type or kept.count != like.count:
                raise UnsupportedError(
                    f"register element {place[0]}[{place[1]}] is written in vectors of several widths under conditions"
                )
            text = kept.value.text
        return None if text is None else like.named(text).value

    def end_of_iteration(self) -> list[tuple[str, Entry, str]]:
        """The innermost loop ends: the entering value, phi and last value of all that its iterations leave."""
        found = list[tuple[str, Entry, str]]()
        for place, (start, kept) in self.left.pop().items():
            self.same_form(place, kept)
            end = self.entries.get(place)
            if end is None or end.type != kept.type or end.count != kept.count:
                raise UnsupportedError(f"register element {place[0]}[{place[1]}] is not written in one form")
            found.append((start, kept, end.value.text))
        return found

    def in_other_forms(self, place: Place, like: Entry) -> bool:
        """Whether a part of an entry's elements has values, but not all of them as one vector."""
        tensor, at = place
        some = any((tensor, at + i) in self.owner for i in range(like.count))
        return some and self.read(place, like) is None

    def forget(self, tensor: str) -> None:
        """Drop a tensor whose life ends."""
        self.entries = {k: v for k, v in self.entries.items() if k[0] != tensor}
        self.owner = {k: v for k, v in self.owner.items() if k[0] != tensor}

    def starts(self, places: Iterable[Place]) -> list[Place]:
        """The entries that hold any of the places, in a fixed order."""
        found = {(tensor, self.owner[tensor, at]) for tensor, at in places if (tensor, at) in self.owner}
        return sorted(found)

    def scalar(self, tensor: str, at: int) -> Value | None:
        """The value of one element; None where it was never written."""
        start = self.owner.get((tensor, at))
        if start is None:
            return None
        value = self.entries[tensor, start].value
        return self.ops.lane(value, at - start) if value.lanes else value

    def vector(self, tensor: str, at: int, lanes: int, count: int) -> Value | None:
        """The values of `count` elements as a vector; None where one was never written."""
        entry = self.entries.get((tensor, at))
        if entry is not None and entry.value.lanes == lanes and entry.count >= count:
            return self.ops.first_lanes(entry.value, count)
        return self._across(tensor, at, lanes, count) or self._gathered(tensor, range(at, at + count), lanes)

    def strided(self, tensor: str, at: int, stride: int, lanes: int, count: int) -> Value | None:
        """The elements at, at + stride, ... as a vector; None where one was never written.

        Where they are one column of several vectors, a network of shuffles gives it that all its columns share.
        """
        places = range(at, at + stride * count, stride)
        starts = [self.owner[tensor, p] for p in places if (tensor, p) in self.owner]
        rows = [self.entries[tensor, start].value for start in starts]
        if len(starts) == count and len(set(starts)) == 1 and rows[0].lanes:
            return self.ops.shuffle(rows[0], None, [*(p - starts[0] for p in places), *[None] * (lanes - count)])
        found = self._every_second(tensor, places, starts, lanes) if stride == 2 and len(starts) == count else None
        if found is not None:
            return found
        if len(set(starts)) == count > 1:
            width, column = rows[0].lanes, at - starts[0]
            alike = all(r.lanes == width and p - s == column for r, p, s in zip(rows, places, starts, strict=True))
            if alike and width > 1 and width & (width - 1) == 0:
                return transpose.column(self.ops, rows, column, lanes)
        return self._gathered(tensor, places, lanes)

    def _every_second(self, tensor: str, places: Sequence[int], starts: Sequence[int], lanes: int) -> Value | None:
        """Every second element of up to three vectors one behind the other, of one width but for the last; else None.
        Where places start further on, what they share with those that start earlier is picked once.
        """
        start, count = starts[0], len(places)
        width = self.entries[tensor, start].value.lanes
        reach = places[-1] - start
        if not width or lanes > width or any(s != p - (p - start) % width for p, s in zip(places, starts, strict=True)):
            return None
        parts = [self.entries[tensor, start + k * width].value for k in range(reach // width + 1)]
        if len(parts) not in (2, 3) or any(v.lanes != width for v in parts[:-1]) or parts[-1].lanes > width:
            return None
        first, following, *last = (self.ops.widened(v, width) for v in parts)
        steps, odd = divmod(places[0] - start, 2)
        picked = self.ops.shuffle(first, following, range(odd, 2 * width, 2))
        if not steps and lanes == width:
            return picked
        every = [*range(steps, width), *(width + odd + 2 * i for i in range(steps))]
        wanted = [p if i < count else None for i, p in enumerate(every[:lanes])]
        return self.ops.shuffle(picked, last[0] if last else None, wanted)

    def _gathered(self, tensor: str, places: Sequence[int], lanes: int) -> Value | None:
        items = [self.scalar(tensor, place) for place in places]
        if any(item is None for item in items):
            return None
        dtype = next(item.dtype for item in items if item is not None)
        return self.ops.gather(items, lanes, dtype)

    def _across(self, tensor: str, at: int, lanes: int, count: int) -> Value | None:
        """Elements that are part of one vector, or all of several of one width, by shuffles; else None."""
        start = self.owner.get((tensor, at))
        if start is None or not (width := self.entries[tensor, start].value.lanes):
            return None
        entry = self.entries[tensor, start]
        if at + count <= start + entry.count:
            return self.ops.shuffle(entry.value, None, [at - start + i if i < count else None for i in range(lanes)])
        after = self.entries.get((tensor, start + width))
        if entry.count == width and after is not None and at + count <= start + width + after.count:
            places = [at - start + i if i < count else None for i in range(lanes)]
            if start < at and after.value.lanes <= width:
                return self.ops.shuffle(entry.value, self.ops.widened(after.value, width), places)
        parts = [self.entries.get((tensor, at + k)) for k in range(0, count, width)]
        whole = [p.value for p in parts if p is not None and p.value.lanes == width and p.count == width]
        if count % width or len(whole) < len(parts) or lanes % width:
            return None
        whole += [Value(whole[0].dtype, width, "poison")] * (lanes // width - len(whole))
        while len(whole) > 1:
            pairs = zip(whole[::2], whole[1::2], strict=True)
            whole = [self.ops.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
        return whole[0]

    def read(self, place: Place, like: Entry) -> Value | None:
        """What lies at a place, in the form of another entry."""
        if like.value.lanes:
            return self.vector(*place, like.value.lanes, like.count)
        return self.scalar(*place)

    def set_scalar(self, tensor: str, at: int, value: Value) -> None:
        """Write one element."""
        start = self.owner.get((tensor, at))
        if start is not None and self.entries[tensor, start].value.lanes:
            entry = self.entries[tensor, start]
            kind = value_type(value.dtype, entry.value.lanes)
            scalar = value_type(value.dtype, 0)
            text = f"insertelement {kind} {entry.value.text}, {scalar} {value.text}, i64 {at - start}"
            merged = Value(value.dtype, entry.value.lanes, self.ops.writer.value(text))
            self.entries[tensor, start] = Entry(merged, entry.count)
        else:
            self.entries[tensor, at], self.owner[tensor, at] = Entry(value, 1), at

    def set_vector(self, tensor: str, at: int, value: Value, count: int) -> None:
        """Write the elements at .. at + count - 1; the other lanes of the value mean nothing."""
        old = self.entries.get((tensor, at))
        if old is not None and old.value.lanes == value.lanes and old.count == count:
            self.entries[tensor, at] = Entry(value, count)
            return
        if old is not None and old.value.lanes == value.lanes and old.count > count:
            mask = constant_mask(value.lanes, count)
            value = value if mask is None else self.ops.select(Value("bool", value.lanes, mask), value, old.value)
            count = old.count
        else:
            self._clear(tensor, at, count)
        self.entries[tensor, at] = Entry(value, count)
        for i in range(count):
            self.owner[tensor, at + i] = at

    def _clear(self, tensor: str, at: int, count: int) -> None:
        """Make room: entries that reach beyond the range become scalars there."""
        for _, start in self.starts((tensor, at + i) for i in range(count)):
            entry = self.entries[tensor, start]
            outside = [i for i in range(start, start + entry.count) if not at <= i < at + count]
            kept = {i: self.scalar(tensor, i) for i in outside}
            del self.entries[tensor, start]
            for i in range(start, start + entry.count):
                del self.owner[tensor, i]
            for i, item in kept.items():
                if item is not None:
                    self.entries[tensor, i], self.owner[tensor, i] = Entry(item, 1), i

    def same_form(self, place: Place, like: Entry) -> None:
        """Rewrite what lies at a place into the form of another entry (for a join of two ways)."""
        found = self.entries.get(place)
        if found is not None and found.count == like.count and found.value.lanes == like.value.lanes:
            return
        value = self.read(place, like)
        if value is None:
            return
        self._clear(*place, like.count)
        self.entries[place] = Entry(value, like.count)
        for i in range(like.count):
            self.owner[place[0], place[1] + i] = place[1]
