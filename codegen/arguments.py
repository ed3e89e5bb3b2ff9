"""The arrays of a kernel: what native code asks of each, its constants, sizes that follow from shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from poly.codegen.buffers import copy_bytes
from poly.codegen.call import Expected
from poly.document import counted
from poly.dtypes import Array, numpy_dtype
from poly.errors import RunError
from poly.given_arrays import check_shape, typed
from poly.interp_arrays import pack, solved_extent
from poly.pointers import MAPPED, aligned_zeros, fresh_empty, fresh_zeros, on_lines
from poly.program import Program, Tensor
from poly.relations import writes_all
from poly.scheduling.initialised import read_before_written

Shapes = Mapping[str, tuple[int, ...]]
_CLEARED: Final = 1 << 20  # bytes of zeros from which on numpy asks the system for them


def expected_arrays(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], shapes: Shapes, zeros: frozenset[str]
) -> list[Expected]:
    """What native code asks of the arrays of a call. `zeros`: see `unwritten`."""
    position = {t.name: k for k, t in enumerate(inputs)}

    def one(t: Tensor, output: bool) -> Expected:
        dtype, shape = numpy_dtype(t.dtype), shapes[t.name]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        source = position.get(t.name) if output else None
        zero = t.name in zeros and source is None
        asked = output and size >= (_CLEARED if zero else MAPPED)  # native code makes others
        make = partial(fresh_zeros if zero else fresh_empty, shape, dtype) if asked else None
        return Expected(shape, dtype, size, None, output, zero, source, make)

    return [*(one(t, False) for t in inputs), *(one(t, True) for t in outputs)]


def unwritten(program: Program | None, outputs: Sequence[Tensor]) -> frozenset[str]:
    """The outputs that may have elements which no statement writes, or reads before that: zeros, for these."""
    if program is None:
        return frozenset(t.name for t in outputs)
    early = read_before_written(program)
    return frozenset(t.name for t in outputs if t.name in early or not writes_all(program, t))


def plain(array: Array) -> Array:
    """C-contiguous and aligned, copied where it is not."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=["C", "A"])


def constant(tensor: Tensor, array: object, sizes: Mapping[str, int]) -> Array:
    """What was given for a constant, in its dtype and shape. Raises `RunError` for an array that does not fit."""
    found = plain(typed(tensor, array))
    check_shape(tensor, found, tensor.extents(sizes), "constant")
    return found


def constant_memory(tensor: Tensor, array: object, sizes: Mapping[str, int]) -> Array:
    """The memory of a constant: the caller's own array only where nobody can write to it. Raises as `constant` does."""
    kept = pack(tensor, sizes, constant(tensor, array, sizes))
    if not kept.flags.writeable:
        return on_lines(kept)
    copy = aligned_zeros(kept.shape, kept.dtype)
    np.copyto(copy, kept)
    copy.flags.writeable = False
    return copy


def copies_of(tensor: Tensor, array: Array, sizes: Mapping[str, int], threads: int) -> Array:
    """A constant's memory once for each of some threads, as the code for a tree that has it `per_thread` reads it."""
    size = copy_bytes(tensor, sizes)
    memory = aligned_zeros((threads, size // array.itemsize), array.dtype)
    memory[:, : array.size] = array.reshape(-1)
    memory.flags.writeable = False
    return memory


def unsolved(tensors: Sequence[Tensor], known: Mapping[str, int], sizes: Sequence[str]) -> list[str]:
    """The sizes that follow from no shapes of these tensors."""
    found = dict(known)
    lengths = [e for t in tensors for e in t.shape]
    while solved := {s[0] for e in lengths if (s := solved_extent(e.substitute(found), e.substitute(found).constant))}:
        found |= dict.fromkeys(solved, 1)
    return [s for s in sizes if s not in found]


def infer_sizes(
    tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], known: Mapping[str, int], names: Sequence[str]
) -> dict[str, int]:
    """Values of the free sizes from the shapes of the inputs. Raises `RunError` where one cannot be found."""
    sizes = dict(known)
    equations = [
        (extent, length)
        for tensor, shape in zip(tensors, shapes, strict=True)
        if len(shape) == tensor.rank
        for extent, length in zip(tensor.shape, shape, strict=True)
    ]
    missing = [n for n in names if n not in sizes]
    while missing:
        before = len(missing)
        for extent, length in equations:
            solved = solved_extent(extent.substitute(sizes), length)
            if solved is not None:
                sizes.setdefault(*solved)
        missing = [n for n in missing if n not in sizes]
        if len(missing) == before:
            _check_ranks(tensors, shapes)
            for extent, length in equations:
                if extent.substitute(sizes).names == frozenset(missing[:1]):
                    text = f"an extent of {length} is {extent} for no whole number {missing[0]}"
                    raise RunError(text, hint=f"an extent that is {extent} for some {missing[0]}")
            hint = f"give it by name: {missing[0]}=8, or bind it before compiling: program.bind({missing[0]}=8)"
            raise RunError(f"size {missing[0]} does not follow from the shapes of the inputs", hint=hint)
    return sizes


def _check_ranks(tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    for tensor, shape in zip(tensors, shapes, strict=True):
        if len(shape) != tensor.rank:
            shown = ", ".join(map(str, tensor.shape))
            text = f"input {tensor.name} has shape {list(shape)}, expected [{shown}]"
            raise RunError(text, hint=f"an array with {counted(tensor.rank, 'dimension')}")
