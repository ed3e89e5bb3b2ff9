"""The arrays of a kernel: what each must be, careful checks with clear errors, sizes that follow from shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, cast

import numpy as np

from poly.codegen.call import Expected
from poly.dlpack import Exporter, from_dlpack
from poly.document import counted
from poly.dtypes import Array, numpy_dtype
from poly.errors import PolyError, RunError
from poly.interp_arrays import pack, solved_extent
from poly.pointers import LARGE, aligned_zeros, fresh_empty, fresh_zeros
from poly.program import Program, Tensor
from poly.relations import access_map, bound_domain, box
from poly.sets import fix_sizes

Shapes = Mapping[str, tuple[int, ...]]
_KINDS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # what converts only upwards


def expected_arrays(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], shapes: Shapes, zeros: frozenset[str]
) -> list[Expected]:
    """What native code asks of the arrays of a call. `zeros`: outputs with elements that no statement writes."""
    position = {t.name: k for k, t in enumerate(inputs)}

    def one(t: Tensor, output: bool) -> Expected:
        dtype, shape = numpy_dtype(t.dtype), shapes[t.name]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        source = position.get(t.name) if output else None
        zero = t.name in zeros and source is None
        make = partial(fresh_zeros if zero else fresh_empty, shape, dtype) if output and size >= LARGE else None
        return Expected(shape, dtype, size, None, output, zero, source, make)

    return [*(one(t, False) for t in inputs), *(one(t, True) for t in outputs)]


def unwritten(program: Program | None, outputs: Sequence[Tensor]) -> frozenset[str]:
    """The outputs that may have elements which no statement writes."""
    return frozenset(t.name for t in outputs if program is None or not _written(program, t))


def _written(program: Program, tensor: Tensor) -> bool:
    everything = box(tensor.name, tensor.shape, program.parameters).intersect_params(program.context)
    left = fix_sizes(everything, program.binding)
    try:
        for s in program.statements:
            if s.external is not None or s.write.tensor != tensor.name or s.write.indirect:
                continue
            relation = access_map(s, s.write, program.parameters)
            relation = fix_sizes(relation, program.binding).intersect_domain(bound_domain(program, s))
            left = left.subtract(relation.range())
        return left.is_empty()
    except PolyError:
        return False


def typed(tensor: Tensor, array: object) -> Array:
    """A numpy array on what was given: an array of the dtype of this tensor, anything with `__dlpack__` (its memory is
    used), or numbers and lists of them. Raises `RunError`."""
    what = "constant" if tensor.role == "constant" else "input"
    return array_of(tensor.name, numpy_dtype(tensor.dtype), array, tensor.name, what)


def array_of(
    name: str, expected: np.dtype[np.generic], array: object, spelled: str, what: str = "input"
) -> Array:
    """`typed` for an input `name`, which the caller writes as `spelled`. Messages name dtypes as numpy does."""
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
            raise RunError(text, hint=f"an array of {expected.name} for {spelled}") from error
    if found.dtype != expected:
        hint = f"{spelled}.astype({expected.name!r})"
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
    """Raise `RunError` where an array has another shape than its tensor."""
    if array.shape == expected:
        return
    shown = ", ".join(map(str, tensor.shape))
    text = f"{what} {tensor.name} has shape {list(array.shape)}, expected {list(expected)}"
    hint = f"{tensor.name}.T" if array.ndim == 2 and array.shape[::-1] == expected else ""
    hint = hint or f"an array of that shape, or compile for this one: parse(..., {tensor.name}={array.shape})"
    raise RunError(text if all(e.is_constant for e in tensor.shape) else f"{text} from [{shown}]", hint=hint)


def results_of(
    out: object, inputs: Sequence[Tensor], given: Sequence[Array], outputs: Sequence[Tensor], shapes: Shapes, where: str
) -> dict[str, Array]:
    """The arrays to write to: fresh ones of zeros, or those of `out`, of any strides. Raises `RunError`."""
    if out is None:
        return {t.name: fresh_zeros(shapes[t.name], numpy_dtype(t.dtype)) for t in outputs}
    if isinstance(out, np.ndarray):
        chosen: tuple[object, ...] = (out,)
    elif isinstance(out, tuple | list):
        chosen = tuple(out)
    else:
        hint = "a numpy array" if len(outputs) == 1 else f"a tuple of {len(outputs)} numpy arrays"
        raise RunError(f"out is {type(out).__name__}", where=where, hint=hint)
    if len(chosen) != len(outputs):
        text = f"{counted(len(outputs), 'output')}, out has {len(chosen)}"
        raise RunError(text, where=where, hint="an array for each, in a tuple")
    results: dict[str, Array] = {}
    for tensor, array in zip(outputs, chosen, strict=True):
        results[tensor.name] = target = _target(tensor, array, inputs, given, shapes[tensor.name], where)
        if any(np.may_share_memory(target, other) for name, other in results.items() if name != tensor.name):
            raise RunError(f"out for {tensor.name} overlaps another output", where=where)
    return results


def _target(
    tensor: Tensor, array: object, inputs: Sequence[Tensor], given: Sequence[Array], shape: tuple[int, ...], where: str
) -> Array:
    dtype = numpy_dtype(tensor.dtype)
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got, also = type(array).__name__, ""
        if isinstance(array, np.ndarray):
            got, also = str(array.dtype), str(list(shape)) if array.shape != shape else ""
            got += str(list(array.shape)) if also else ""
        hint = f"numpy.empty({shape}, {dtype.name!r})"
        raise RunError(f"out for {tensor.name} is {got}, expected {dtype.name}{also}", where=where, hint=hint)
    check_shape(tensor, array, shape, "out for")
    if not array.flags.writeable:
        raise RunError(f"out for {tensor.name} is not writable", where=where, hint="pass another array, or a copy")
    for source, other in zip(inputs, given, strict=True):
        same = source.name == tensor.name and other is array
        if not same and np.may_share_memory(array, other):
            raise RunError(
                f"out for {tensor.name} overlaps input {source.name}", where=where, hint="pass another array"
            )
    return array


def overlap(out: object, given: Sequence[Array]) -> bool:
    """Whether something in `out` may share memory with an input."""
    targets = out if isinstance(out, tuple | list) else (out,)
    return any(isinstance(t, np.ndarray) and any(np.may_share_memory(t, a) for a in given) for t in targets)


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
        return kept
    copy = aligned_zeros(kept.shape, kept.dtype)
    np.copyto(copy, kept)
    copy.flags.writeable = False
    return copy


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
            raise RunError(f"input {tensor.name} has shape {list(shape)}, expected [{shown}]")
