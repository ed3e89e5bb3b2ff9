"""Several kernels in a row as one native call: for engines."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from poly.codegen.call import Entry, Expected, NativeCall, Record, attach
from poly.codegen.kernel import Kernel
from poly.codegen.pool import pool
from poly.codegen.team_ir import PLACES, SEQUENCE
from poly.dtypes import Array
from poly.errors import IndexRangeError, RunError
from poly.pointers import address, aligned_bytes

Pointer = int | str
"""An address that stays, or the name of one that each call gives."""


class KernelSequence:
    """Kernels with the pointers of their inputs and outputs, run one after the other.

    `run` gives the addresses of what is named; nothing about memory is checked. Buffers of the kernels are shared, so
    only one call may run at a time; whoever calls sees to that, and keeps the memory. `sizes`: values of free sizes.
    """

    def __init__(
        self, calls: Sequence[tuple[Kernel, Sequence[Pointer]]], sizes: Mapping[str, int] | None = None
    ) -> None:
        self.kernels, self._sizes = [kernel for kernel, _ in calls], dict(sizes or {})
        records = [Record(k.entry([t.name for t in (*k.inputs, *k.outputs)], sizes)) for k in self.kernels]
        self._memory = aligned_bytes(max((r.entry.scratch for r in records), default=0))
        scratch = address(self._memory)
        words: list[int] = [len(calls), -1]
        blocks: list[list[int]] = []
        self._named: list[tuple[int, str]] = []
        start = 2 + SEQUENCE * len(calls)
        for record, (_, pointers) in zip(records, calls, strict=True):
            block = record.block([p if isinstance(p, int) else 0 for p in pointers], scratch)
            positions = zip(record.entry.positions, pointers, strict=True)
            self._named += [(start + slot, p) for slot, p in positions if isinstance(p, str) and slot >= 0]
            words += [record.entry.entry, 8 * start, int(record.entry.parts > 1)]
            blocks.append(block)
            start += len(block)
        self._words = (ctypes.c_int64 * start)(*words, *(w for block in blocks for w in block))
        at = ctypes.addressof(self._words)
        for k in range(len(calls)):
            self._words[2 + SEQUENCE * k + 1] += at
        self._parts = max((r.entry.parts for r in records), default=1)
        native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pool().run)
        self._enter = native
        self._arguments = (pool().sequence, at, self._parts)

    def run(self, named: Mapping[str, int]) -> None:
        """Run all of them. Raises `RunError` as the kernels do."""
        words = self._words
        for slot, name in self._named:
            words[slot] = named[name]
        if status := self._enter(*self._arguments):
            raise self.failure(status)

    def failure(self, status: int) -> RunError:
        """The error of the last run, which ended with this status."""
        number = self._words[1]
        error = self.kernels[number].failure(status, self._sizes)
        if isinstance(error, IndexRangeError):
            error.position = number
        return error

    def placed(self, names: Sequence[str], within: Mapping[str, tuple[str, int]]) -> Entry:
        """How native code enters with pointers of all that is named. `within`: what lies in the memory of another one,
        so many bytes behind its start. Whoever enters keeps this object."""
        number = {name: k for k, name in enumerate(names)}
        places: list[int] = []
        for slot, name in self._named:
            root, shift = within.get(name, (name, 0))
            places += [ctypes.addressof(self._words) + 8 * slot, number[root], shift]
        _, at, parts = self._arguments
        count = PLACES + len(places)
        self._places = (ctypes.c_int64 * count)(at, parts, len(self._named), *places)
        template = (ctypes.addressof(self._places), *[0] * len(names))
        return Entry(pool().placed, 1, 0, template, tuple(range(1, len(template))), (), 0)


class SequenceCall(NativeCall):
    """A sequence as `call(*inputs, out=None)`, arrays for all that is named; None where they do not fit as they are.

    As of the sequence, only one call may run at a time.
    """

    def __init__(self, sequence: KernelSequence, entry: Entry, arrays: Sequence[Expected], outputs: int) -> None:
        self._sequence = sequence
        self._record = Record(entry, arrays, outputs)
        attach(self, self._record)

    if TYPE_CHECKING:

        def __call__(
            self, /, *inputs: Array, out: Array | tuple[Array, ...] | None = None
        ) -> Array | tuple[Array, ...] | None: ...

    def _careful(self, /, *_: object, out: object = None) -> None:
        """Called where the arguments do not fit."""

    def _failed(self, _: int, status: int) -> NoReturn:
        """Called by native code."""
        raise self._sequence.failure(status)
