"""Register tensors as SSA values: which value holds which elements at the current place.

An entry is a scalar for one element, or a vector for the elements `start .. start + count - 1` of a tensor's storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poly.codegen.text import value_type
from poly.codegen.values import Ops, Value

Place = tuple[str, int]  # tensor, element of its storage


@dataclass(frozen=True)
class Entry:
    """The value that starts at a place, and how many elements of it are meant."""

    value: Value
    count: int


class Registers:
    """The environment of register elements."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.entries: dict[Place, Entry] = {}
        self.owner: dict[Place, int] = {}

    def snapshot(self) -> tuple[dict[Place, Entry], dict[Place, int]]:
        return dict(self.entries), dict(self.owner)

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
            return entry.value
        items = [self.scalar(tensor, at + i) for i in range(count)]
        if any(item is None for item in items):
            return None
        dtype = next(item.dtype for item in items if item is not None)
        return self.ops.gather(items, lanes, dtype)

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
        if old is not None and old.value.lanes == value.lanes and old.count > count:
            lanes = value.lanes
            mask = "<" + ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(lanes)) + ">"
            value = self.ops.select(Value("bool", lanes, mask), value, old.value)
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
        value = self.read(place, like)
        if value is None:
            return
        self._clear(*place, like.count)
        self.entries[place] = Entry(value, like.count)
        for i in range(like.count):
            self.owner[place[0], place[1] + i] = place[1]
