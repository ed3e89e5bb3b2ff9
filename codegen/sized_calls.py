"""Calls that name sizes, `kernel(a, T=10)`: native from the second one with the same names and shapes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import numpy.typing as npt

from poly.codegen.call import NativeCall, Record, attach
from poly.dtypes import Array

MOST_CALLS: Final = 16  # sizes as they are named
MOST_RECORDS: Final = 8  # shapes, for each of them
Names = tuple[tuple[str, object], ...]
Results = Array | tuple[Array, ...]


class SizedCall(NativeCall):
    """A kernel's calls with some sizes: records of shapes that were seen, everything else is `careful`."""

    def __init__(self, careful: Callable[..., Results], failed: Callable[[Record, int], NoReturn]) -> None:
        self._careful, self._fails = careful, failed
        self._records: list[Record] = []
        attach(self, None)

    if TYPE_CHECKING:

        def __call__(self, /, *inputs: npt.ArrayLike, out: Array | Sequence[Array] | None = None) -> Results: ...

    def add(self, record: Record) -> None:
        """Let calls that fit a record go through one like it."""
        if len(self._records) < MOST_RECORDS and all(r.key != record.key for r in self._records):
            outputs = record.outputs
            own = Record(record.entry, record.arrays, outputs, release=record.release, key=record.key)
            self._records.append(own.before(self._records[-1] if self._records else None))
            attach(self, own)

    def _failed(self, at: int, status: int) -> None:
        """Called by native code."""
        self._fails(next(r for r in self._records if r.address == at), status)


def names_of(named: Mapping[str, object]) -> Names | None:
    """What calls with the same sizes have in common; None where not all are ints, as arrays are not."""
    return tuple(named.items()) if all(type(v) is int for v in named.values()) else None
