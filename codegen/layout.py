"""Whether Python's objects and numpy's arrays lie in memory as native code reads them: asked of probes, once."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from poly.codegen import call_ir as ir
from poly.dtypes import Array

PLAIN: Final = 0x1 | 0x100  # numpy's flags: C-contiguous, aligned
ALIGNED: Final = 0x100
WRITABLE: Final = 0x400


@cache
def facts_hold() -> bool:
    """Compare what native code would read with what numpy and the interpreter say themselves."""
    if object.__basicsize__ != 16 or np.ndarray.__basicsize__ < ir.ND_FLAGS + 4:
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    base = np.zeros((4, 6, 2), np.float32)
    frozen = np.arange(7)
    frozen.flags.writeable = False
    shifted = np.zeros(9, np.uint8)[1:].view(np.float64)
    probes = [base, base[1:, ::2], base.T, base[::-1], np.zeros(()), np.zeros((0, 3), np.int8), frozen, shifted]
    try:
        return all(map(_laid_out, probes)) and _tuple_laid_out() and _allocates()
    except (AttributeError, ImportError, ValueError, TypeError):
        return False


def _laid_out(array: Array) -> bool:
    at, rank = id(array), array.ndim
    word = ctypes.c_uint64.from_address
    if word(at + ir.ND_TYPE).value != id(np.ndarray) or word(at + ir.ND_DESCR).value != id(array.dtype):
        return False
    if ctypes.c_int.from_address(at + ir.ND_RANK).value != rank or word(at + ir.ND_DATA).value != array.ctypes.data:
        return False
    for offset, wanted in ((ir.ND_DIMS, array.shape), (ir.ND_STRIDES, array.strides)):
        start = word(at + offset).value
        if rank and tuple((ctypes.c_ssize_t * rank).from_address(start)) != wanted:
            return False
    flags = ctypes.c_int.from_address(at + ir.ND_FLAGS).value
    told = array.flags
    return (bool(flags & 1), bool(flags & ALIGNED), bool(flags & WRITABLE)) == (
        told.c_contiguous, told.aligned, told.writeable,
    )  # fmt: skip


def _tuple_laid_out() -> bool:
    pair = (object(), "out")
    word = ctypes.c_uint64.from_address
    places = (ir.ND_TYPE, ir.TUPLE_SIZE, ir.TUPLE_ITEMS, ir.TUPLE_ITEMS + 8)
    return [word(id(pair) + at).value for at in places] == [id(tuple), 2, id(pair[0]), id(pair[1])]


@cache
def numpy_functions() -> Sequence[int]:
    """The functions of numpy's C interface by number."""
    module = importlib.import_module("numpy._core._multiarray_umath")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    start = pointer(module._ARRAY_API, None)
    return (ctypes.c_void_p * 283).from_address(start)  # type: ignore[return-value]


def _allocates() -> bool:
    """Whether entries 94 and 282 of the table, PyArray_NewFromDescr and PyArray_SetBaseObject since numpy 1.7, make the
    arrays that they should.
    """
    table = numpy_functions()
    if ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])() >> 24 != 2:  # the ABI of numpy 2
        return False
    memory = np.zeros(64, np.uint8)
    made, given = _made(table[94], None, 0), _made(table[94], memory.ctypes.data, ir.CARRAY)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # and so does this one
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(table[282])(given, memory)
    alike = all((a.shape, a.strides, a.dtype) == ((3, 5), (2, 6), np.dtype(np.int16)) for a in (made, given))
    return alike and made.flags.owndata and given.base is memory and given.ctypes.data == memory.ctypes.data


def _made(function: int, data: int | None, flags: int) -> Array:
    """An array of 3 x 5 by a function of the table."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int, *[ctypes.c_void_p] * 3,
                             ctypes.c_int, ctypes.c_void_p)  # fmt: skip
    dtype = np.dtype(np.int16)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))  # the function takes a reference over
    dims, steps = (ctypes.c_ssize_t * 2)(3, 5), (ctypes.c_ssize_t * 2)(2, 6)
    return kind(function)(np.ndarray, dtype, 2, ctypes.addressof(dims), ctypes.addressof(steps), data, flags, None)
