"""Calling compiled code: records (see `poly.codegen.call_ir`), and objects that Python calls through native code.

A call whose arguments fit a record never enters Python: arguments are checked, results made, the kernel run by machine
code, in about 0.1 us. Everything else goes to the object's `_careful`. This needs CPython's and numpy's objects laid
out as usual, which is asked of probes once (`facts_hold`); where the answers differ, every call is a careful one.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from poly.codegen import call_ir as ir
from poly.codegen.host import host_machine
from poly.codegen.jit import compile_object, link
from poly.codegen.layout import ALIGNED, PLAIN, WRITABLE, facts_hold, numpy_functions
from poly.dtypes import Array
from poly.settings import kept_megabytes

Dtype = np.dtype[np.generic]
_EXPORTS: Final = ("polyloom.facts", "polyloom.enter", "polyloom.call", "polyloom.dispatch", "polyloom.most_kept")
_HAS_VECTORCALL: Final = 1 << 11


@dataclass(frozen=True)
class Expected:
    """What an array must be to fit. `strides` None: C-contiguous. `bytes`: from its first to behind its last element.

    `zero`: it is cleared first. `source`: the input whose elements an output starts with. `make`: what gives a
    fresh one, where that is not numpy's constructor.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    bytes: int
    strides: tuple[int, ...] | None = None
    writable: bool = False
    zero: bool = False
    source: int | None = None
    make: Callable[[], Array] | None = None

    def words(self, dims: int) -> list[int]:
        """The words of an array in a record whose dims and strides are written at address `dims`."""
        flags = (PLAIN if self.strides is None else ALIGNED) | (WRITABLE if self.writable else 0)
        rank = len(self.shape)
        strides = 0 if self.strides is None else dims + 8 * rank
        source = 0 if self.source is None else self.source + 1
        maker = 0 if self.make is None else id(self.make)
        return [id(self.dtype), rank, flags, dims, strides, self.bytes, int(self.zero), source, maker]


@dataclass(frozen=True)
class Entry:
    """How a kernel is entered: its address, threads, argument block and buffers.

    `template`: the words of the block that are the same in all calls. `positions`: the slot of each pointer that a call
    gives, -1 for one that is not used. `moves`: (slot, offset) of what lies in the `scratch` bytes that a call gets.
    """

    entry: int
    parts: int
    run: int
    template: tuple[int, ...]
    positions: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]
    scratch: int


class Record:
    """A record in memory; `address` is valid as long as this object lives. `key` is for whoever made it, `keep` stays
    as long as it does."""

    def __init__(
        self,
        entry: Entry,
        arrays: Sequence[Expected] = (),
        outputs: int = 0,
        *,
        release: bool = True,
        scalar: bool = False,
        key: tuple[int, ...] = (),
        keep: object = None,
    ) -> None:
        self.entry, self.arrays, self.key, self.keep = entry, tuple(arrays), key, keep
        self.outputs, self.release = outputs, release
        given = len(entry.positions)
        moved = [word for move in entry.moves for word in move]
        lengths = [w for a in arrays for w in (*a.shape, *(a.strides or a.shape))]
        total = ir.RECORD + len(entry.template) + given + len(moved) + ir.ARRAY * len(arrays) + len(lengths)
        self._words = (ctypes.c_int64 * total)()
        self.address = ctypes.addressof(self._words)
        template = self.address + 8 * ir.RECORD
        positions = template + 8 * len(entry.template)
        moves = positions + 8 * given
        specs = moves + 8 * len(moved)
        dims = specs + 8 * ir.ARRAY * len(arrays)
        words = [
            0, given - outputs, outputs, entry.entry, entry.parts, int(release), len(entry.template), template,
            positions, len(entry.moves), moves, entry.scratch, entry.run, specs, int(scalar),
            *entry.template, *entry.positions, *moved,
        ]  # fmt: skip
        for array in arrays:
            words += array.words(dims)
            dims += 16 * len(array.shape)
        self._words[:] = [*words, *lengths]

    def before(self, following: Record | None) -> Record:
        """Let calls that do not fit go on to another record."""
        self._words[ir.NEXT] = following.address if following is not None else 0
        return self

    def run(self, pointers: Sequence[int]) -> int:
        """Enter with the pointers of a call, none of them checked; gives the status."""
        return runtime().enter(self.address, struct.pack(f"{len(pointers)}q", *pointers))

    def block(self, pointers: Sequence[int], scratch: int) -> list[int]:
        """The argument block of a call with buffers at `scratch`."""
        words = list(self.entry.template)
        for position, pointer in zip(self.entry.positions, pointers, strict=True):
            if position >= 0:
                words[position] = pointer
        for slot, offset in self.entry.moves:
            words[slot] = scratch + offset
        return words


@dataclass(frozen=True)
class Runtime:
    """The native functions of calls. `call` and `dispatch` are vectorcall functions, 0 where they may not be used."""

    enter: Callable[[int, bytes], int]
    call: int
    dispatch: int


@cache
def runtime() -> Runtime:
    """The functions, linked once in a process and never unloaded: objects anywhere point to them."""
    linked = link(compile_object(ir.call_ir(), host_machine()), _EXPORTS)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(linked))
    at = linked.addresses
    enter = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(at["polyloom.enter"])
    ctypes.c_int64.from_address(at["polyloom.most_kept"]).value = kept_megabytes() << 20
    if not NATIVE:
        return Runtime(enter, 0, 0)
    table = numpy_functions()
    facts = [
        id(np.ndarray), id(None), id(sys.intern("out")), table[94], id(sys.intern("_careful")), table[76],
        id(np.dtype(np.uint8)), table[282],
    ]  # fmt: skip
    (ctypes.c_void_p * len(facts)).from_address(at["polyloom.facts"])[:] = facts
    return Runtime(enter, at["polyloom.call"], at["polyloom.dispatch"])


# ---- objects that are called


class _Plain:
    """Where there is no native way: every call is a careful one."""

    def __call__(self, /, *args: object, **keywords: object) -> object:
        careful: Callable[..., object] = getattr(self, "_careful")  # noqa: B009 - its signature is the class's own
        return careful(*args, **keywords)


class _Native:
    """Marks the base class that has fields for native code."""


class _Slot(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("value", ctypes.c_void_p)]


class _Member(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]  # fmt: skip


class _Spec(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("size", ctypes.c_int), ("item", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    ]  # fmt: skip


@cache
def _native_type() -> type | None:
    """A type with two words after the object's head: a vectorcall function and what it works on."""
    if not facts_hold():
        return None
    members = (_Member * 4)(
        _Member(b"__vectorcalloffset__", 19, ir.OWN_CODE, 1, None),  # T_PYSSIZET, read-only
        _Member(b"native_code", 18, ir.OWN_CODE, 0, None),  # T_ULONGLONG
        _Member(b"native_record", 18, ir.OWN_RECORD, 0, None),
    )
    call = ctypes.cast(ctypes.pythonapi.PyVectorcall_Call, ctypes.c_void_p).value
    slots = (_Slot * 3)(_Slot(50, call), _Slot(72, ctypes.addressof(members)))  # tp_call, tp_members
    spec = _Spec(b"poly.codegen.call.NativeObject", 32, 0, 1 << 10 | _HAS_VECTORCALL, slots)  # BASETYPE
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p]
    made: type = make(ctypes.addressof(spec))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object((members, slots, spec)))  # the type points into them
    return made


def _base() -> type:
    """The base of what is called: native, or `_Plain` where an instance does not hold what was put into it."""
    try:
        native = _native_type()
        if native is None:
            return _Plain
        probe = native()
        probe.native_record = 0x1234567812345678
        held = ctypes.c_uint64.from_address(id(probe) + ir.OWN_RECORD).value == 0x1234567812345678
        return type("NativeObject", (native, _Native), {"__slots__": ()}) if held else _Plain
    except (AttributeError, TypeError, SystemError):
        return _Plain


if TYPE_CHECKING:

    class NativeCall:
        """An object whose call goes to `_careful(*args, **keywords)` unless a record fits."""

        native_code: int
        native_record: int

    NATIVE: bool
else:

    class NativeCall(_base()):
        """An object whose call goes to `_careful(*args, **keywords)` unless a record fits."""

        def __init_subclass__(cls) -> None:
            super().__init_subclass__()
            _mark(cls)

    NATIVE = issubclass(NativeCall, _Native)


def _mark(made: type) -> None:
    """Let the interpreter call instances directly. CPython before 3.12 does not inherit the flag that says so."""
    if not issubclass(made, _Native) or made.__flags__ & _HAS_VECTORCALL or "__call__" in made.__dict__:
        return
    field = ctypes.c_ulong.from_address(id(made) + 168)  # tp_flags
    if sys.version_info[:2] == (3, 11) and field.value == made.__flags__:
        field.value |= _HAS_VECTORCALL


def attach(target: NativeCall, record: Record | None, dispatch: int = 0) -> None:
    """Let calls of an object go through records, or (`dispatch`) through a dict of objects by first argument, a str.

    The object must hold the record (the dict) itself.
    """
    found = runtime()
    if NATIVE:
        target.native_record = dispatch or (record.address if record is not None else 0)
        target.native_code = found.dispatch if dispatch else found.call
