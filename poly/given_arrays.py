"""What callers give: inputs as arrays of their tensors, arrays to write to, checked with clear errors. The same for
kernels of cores and of accelerators, and for engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, cast

import numpy as np

from poly.dlpack import Exporter, from_dlpack
from poly.document import counted
from poly.dtypes import Array, numpy_dtype
from poly.errors import RunError
from poly.pointers import fresh_zeros
from poly.program import Tensor

_KINDS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # what converts only upwards
_SEARCHED: Final = 1 << 22  # elements whose addresses are compared
_WORK: Final = 1 << 14  # steps of numpy's search for an element in common, some 0.1 ms


def typed(tensor: Tensor, array: object) -> Array:
    """A numpy array on what was given: an array of the dtype of this tensor, anything with `__dlpack__` (its memory is
    used), or numbers and lists of them. Raises `RunError`."""
    what = "constant" if tensor.role == "constant" else "input"
    return array_of(tensor.name, numpy_dtype(tensor.dtype), array, tensor.name, what)


def array_of(
    name: str, expected: np.dtype[np.generic], array: object, spelled: str, what: str = "input"
) -> Array:
    """`typed` for an input `name`, which the caller writes as `spelled`. Messages name dtypes as numpy does."""
    if isinstance(array, np.generic) and array.dtype != expected:
        array = array.item()  # as a number of Python's: `np.float64(2.5)` is one
    if isinstance(array, np.ndarray | np.generic):
        found = np.asarray(array)
    else:
        try:
            if array is None or isinstance(array, str | bytes):  # numpy would make numbers of them
                raise TypeError("no numbers")
            if not hasattr(array, "__dlpack__"):
                return _numbers(array, expected)
            found = from_dlpack(cast("Exporter", array))
        except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
            text = f"{what} {name}: {type(array).__name__} is no array of {expected.name}: {error}"
            tracked = getattr(array, "requires_grad", False) is True  # a tensor of torch
            hint = f"{spelled}.detach()" if tracked else f"an array of {expected.name} for {spelled}"
            raise RunError(text, hint=hint) from error
    if found.dtype != expected:
        hint = f"{spelled}.astype({expected.name!r})"
        if found.dtype.kind == "c":  # a conversion drops what is imaginary
            hint = f"{spelled}.real.astype({expected.name!r})"
        elif found.dtype.names:
            hint = f"one of its fields, as {spelled}[{found.dtype.names[0]!r}]"
        if type(array).__module__.partition(".")[0] == "torch":
            hint = f"{spelled}.to(torch.{expected.name})"
        raise RunError(f"{what} {name} is {found.dtype}, expected {expected.name}", hint=hint)
    return found


def _numbers(array: object, expected: np.dtype[np.generic]) -> Array:
    """Numbers and lists of them, converted where none of them can lose more than digits: no fraction, no sign of a
    complex, no text. Raises `TypeError`, `OverflowError`."""
    found = np.asarray(array)
    kind = found.dtype.kind
    numbers = kind in _KINDS or found.dtype == expected or (kind == "O" and all(type(e) is int for e in found.flat))
    if not numbers:
        raise TypeError("its values are no numbers")
    if found.size and _KINDS.get(kind, 0) > _KINDS.get(expected.kind, 2):
        raise TypeError(f"its values are {found.dtype}; convert them: numpy.array(values).astype({expected.name!r})")
    return np.asarray(array, expected)


def check_shape(tensor: Tensor, array: Array, expected: tuple[int, ...], what: str) -> None:
    """Raise `RunError` where an array that is read has another shape than its tensor."""
    if array.shape == expected:
        return
    text = f"{what} {tensor.name} has shape {list(array.shape)}, expected {list(expected)}"
    hint = f"an array of shape {expected}"
    if all(e.is_constant for e in tensor.shape):
        hint += "; other shapes are another program: parse it with those of all its inputs, a nest in its annotations"
    else:
        text += f" from [{', '.join(map(str, tensor.shape))}]"
    turned = array.ndim == 2 and array.shape[::-1] == expected
    raise RunError(text, hint=f"{tensor.name}.T" if turned else hint)


def results_of(
    out: object, inputs: Sequence[Tensor], given: Sequence[Array], outputs: Sequence[Tensor],
    shapes: Mapping[str, tuple[int, ...]], where: str,
) -> dict[str, Array]:  # fmt: skip
    """The arrays to write to: fresh ones of zeros, or those of `out`, of any strides. Raises `RunError`."""
    if out is None:
        return {t.name: fresh_zeros(shapes[t.name], numpy_dtype(t.dtype)) for t in outputs}
    if isinstance(out, np.ndarray):
        chosen: tuple[object, ...] = (out,)
    elif isinstance(out, tuple | list):
        chosen = tuple(out)
    else:
        hint = f"a tuple of {len(outputs)} numpy arrays"
        if hasattr(out, "__dlpack__"):
            hint = "numpy.from_dlpack(out)"
        elif len(outputs) == 1:
            hint = _empty(shapes[outputs[0].name], numpy_dtype(outputs[0].dtype))
        raise RunError(f"out is {type(out).__name__}", where=where, hint=hint)
    if len(chosen) != len(outputs):
        text = f"{counted(len(outputs), 'output')}, out has {len(chosen)}"
        raise RunError(text, where=where, hint="an array for each, in a tuple")
    results: dict[str, Array] = {}
    for k, (t, array) in enumerate(zip(outputs, chosen, strict=True)):
        turned = "out.T" if array is out else f"out[{k}].T"
        target = target_of(t.name, array, shapes[t.name], numpy_dtype(t.dtype), where, turned)
        if any(overlap(target, other) for other in results.values()):
            raise RunError(f"out for {t.name} overlaps another output", where=where, hint="pass another array")
        for source, other in zip(inputs, given, strict=True):
            same = source.name == t.name and other is target
            if not same and overlap(target, other):
                text = f"out for {t.name} overlaps input {source.name}"
                raise RunError(text, where=where, hint="pass another array")
        results[t.name] = target
    return results


def target_of(
    label: str, array: object, shape: tuple[int, ...], dtype: np.dtype[np.generic], where: str, turned: str = ""
) -> Array:
    """An array of the caller's to write to, which he can give turned where `turned` says how. Raises `RunError`."""
    if not isinstance(array, np.ndarray):
        text = f"out for {label} is {type(array).__name__}, expected {dtype.name}"
        hint = "numpy.from_dlpack of it" if hasattr(array, "__dlpack__") else _empty(shape, dtype)
        raise RunError(text, where=where, hint=hint)
    if array.dtype != dtype:
        both = array.shape != shape
        found, wanted = (list(array.shape), list(shape)) if both else ("", "")
        text = f"out for {label} is {array.dtype}{found}, expected {dtype.name}{wanted}"
        raise RunError(text, where=where, hint=_empty(shape, dtype))
    if array.shape != shape:
        text = f"out for {label} has shape {list(array.shape)}, expected {list(shape)}"
        fits = turned and array.ndim == 2 and array.shape[::-1] == shape
        raise RunError(text, where=where, hint=turned if fits else _empty(shape, dtype))
    if not array.flags.writeable:
        raise RunError(f"out for {label} is not writable", where=where, hint="pass another array, or a copy")
    if not array.flags.c_contiguous and overlaps_itself(array.shape, array.strides, array.dtype.itemsize):
        raise RunError(f"elements of out for {label} share memory", where=where, hint=_empty(shape, dtype))
    return array


def _empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> str:
    return f"numpy.empty({shape}, {dtype.name!r})"


def overlap(one: Array, other: Array) -> bool:
    """Whether two arrays have an element in common; where that takes too long to say, whether it may be."""
    return np.may_share_memory(one, other, _WORK)  # pyright: ignore[reportArgumentType]


def overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two elements of an array share memory; of millions that are interleaved in no plain way, True. Strides
    and the size of an element: bytes.
    """
    moving = sorted((abs(t), n) for n, t in zip(shape, strides, strict=True) if n > 1)
    if prod(shape) < 2:
        return False
    end, apart = itemsize, True
    for stride, extent in moving:
        apart = apart and stride >= end
        end += (extent - 1) * stride
    if apart or prod(n for _, n in moving) > _SEARCHED:
        return not apart
    starts = np.zeros(1, np.int64)
    for stride, extent in moving:
        starts = np.add.outer(starts, stride * np.arange(extent)).ravel()
    return bool((np.diff(np.sort(starts)) < itemsize).any())


def shares_any(out: object, given: Sequence[Array]) -> bool:
    """Whether something in `out` has an element in common with one of these."""
    targets = out if isinstance(out, tuple | list) else (out,)
    return any(isinstance(t, np.ndarray) and any(overlap(t, a) for a in given) for t in targets)
