"""Where an array's memory begins, quickly: `array.ctypes.data` takes ten times as long, longer than a small kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from poly.dtypes import Array
from poly.kept_memory import forget_blocks, keep_block, kept_block

ALIGN: Final = 64  # bytes: arrays that are made here, and buffers, begin at a multiple of it
LARGE: Final = 1 << 16  # bytes from which on a result's start is chosen; numpy's own is mostly within a line
MAPPED: Final = 1 << 25  # bytes from which on each new array is memory that the system clears first (malloc's limit)
BEHIND: Final = 1 << 11  # bytes from numpy's start on, at most; half of a page, since some cores take a load for one
# of what was just stored where the lowest 12 bits of both addresses are alike
_BYTE: Final = np.dtype(np.uint8)
_FIELD: Final = object.__basicsize__  # numpy's ABI: the data pointer is the first field after the object's head


def _by_field(array: Array) -> int:
    return _at(id(array) + _FIELD).value


def _by_attribute(array: Array) -> int:
    return array.ctypes.data


def _choose() -> Callable[[Array], int]:
    probe = np.zeros(3)[1:]
    try:
        works = ctypes.c_size_t.from_address(id(probe) + _FIELD).value == probe.ctypes.data
    except (TypeError, ValueError):
        works = False
    return _by_field if works and type(id(probe)) is int else _by_attribute


_at: Final = ctypes.c_size_t.from_address
address: Final = _choose()
"""The address of an array's first element. The array must stay alive for as long as the address is used."""


def aligned_bytes(size: int) -> Array:
    """Memory of so many bytes that starts at a multiple of `ALIGN`, with any content."""
    return _aligned(np.empty, (size,), np.dtype(np.uint8))


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[np.generic], align: int = ALIGN) -> Array:
    """A C-contiguous array of zeros whose memory starts at a multiple of `align` bytes."""
    return _aligned(np.zeros, shape, dtype, align)


def on_lines(array: Array) -> Array:
    """The array, or an aligned copy: vectors of what is read again and again are lines then, not parts of two."""
    if array.nbytes < ALIGN or not address(array) % ALIGN:
        return array
    memory = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    memory[...] = array
    return memory


def fresh_zeros(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """A new result of zeros. A large one starts at a line of cache: no store is in two, and they may go past the
    caches.
    """
    return _fresh(np.zeros, shape, dtype)


def fresh_empty(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], strides: tuple[int, ...] | None = None
) -> Array:
    """`fresh_zeros` for a result that is written everywhere; `strides`: of one that is dense in another order."""
    if strides is None:
        return _fresh(np.empty, shape, dtype)
    size = _size(shape, dtype)
    return np.ndarray(shape, dtype, _fresh(np.empty, (size,), _BYTE) if size >= MAPPED else None, 0, strides)


def _fresh(
    make: Callable[[tuple[int, ...], np.dtype[np.generic]], Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> Array:
    size = _size(shape, dtype)
    if size < LARGE:
        return make(shape, dtype)
    raw = _mapped(make, size + BEHIND) if size >= MAPPED else make((size + BEHIND,), _BYTE)
    start = address(raw)
    start = (start + BEHIND) // ALIGN * ALIGN - start
    return raw[start : start + size].view(dtype).reshape(shape)


def _mapped(make: Callable[[tuple[int, ...], np.dtype[np.generic]], Array], size: int) -> Array:
    """So many bytes, of a result that nobody holds any more where there is one."""
    found = kept_block(size)
    if found is not None:
        if make is np.zeros:
            found[...] = 0
        return found
    try:
        found = make((size,), _BYTE)
    except MemoryError:
        forget_blocks()
        found = make((size,), _BYTE)
    keep_block(found)
    return found


def _aligned(
    make: Callable[[int, type[np.uint8]], Array], shape: tuple[int, ...], dtype: np.dtype[np.generic],
    align: int = ALIGN,
) -> Array:  # fmt: skip
    size = _size(shape, dtype)
    raw = make(size + align, np.uint8)
    start = -address(raw) % align
    return raw[start : start + size].view(dtype).reshape(shape)


def _size(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> int:
    return prod(shape) * dtype.itemsize
