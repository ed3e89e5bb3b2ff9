"""What the interpreters share: sizes found from arguments, arrays checked, fresh storage poisoned, externals run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.affine import Affine, Var
from poly.document import counted
from poly.dtypes import Array, is_float, numpy_dtype
from poly.errors import PolyError, RunError
from poly.program import External, Program, Tensor
from poly.sets import fix_sizes
from poly.text_sets import print_condition

RunExternal = Callable[[External, Mapping[str, Array]], Mapping[str, Array]]

POISON_BYTE: Final = 0xA5
_NEEDED: Final = ("input", "inout", "state", "constant")


def poisoned(shape: tuple[int, ...], dtype: str) -> Array:
    """Fresh storage whose content is recognisable: NaN in floats, bytes 0xA5 in integers, True in bool."""
    target = numpy_dtype(dtype)
    if is_float(dtype) or dtype[0] == "c":
        return np.full(shape, np.nan, target)
    if dtype == "bool":
        return np.ones(shape, target)
    return np.full((*shape, target.itemsize), POISON_BYTE, np.uint8).view(target).reshape(shape)


def check_given(tensors: Iterable[Tensor], inputs: Mapping[str, Array]) -> None:
    """Raise `RunError` that names the tensor where an argument is missing, unknown, or of another rank."""
    declared = {t.name: t for t in tensors}
    for name in inputs:
        if name not in declared:
            raise RunError(f"{name!r} is not a tensor here", hint=f"tensors: {', '.join(declared)}")
    for name, tensor in declared.items():
        where = f"tensor {name}"
        if tensor.role in _NEEDED and name not in inputs:
            hint = f"pass inputs={{{name!r}: ...}}"
            raise RunError(f"no array for this {tensor.role}", where=where, hint=hint)
        if name in inputs and np.ndim(inputs[name]) != tensor.rank:
            text = f"array has shape {np.shape(inputs[name])}, not rank {tensor.rank}"
            raise RunError(text, where=where, hint=f"an array with {counted(tensor.rank, 'dimension')}")


def bind_sizes(
    tensors: Iterable[Tensor],
    parameters: Iterable[str],
    bound: Mapping[str, int],
    inputs: Mapping[str, Array],
) -> dict[str, int]:
    """Every size as an int: `bound`, completed from the shapes of inputs.

    Raises `RunError` on a size that stays unknown, on two sources that contradict, and on an unknown name in `bound`.
    """
    names = tuple(parameters)
    for name in bound:
        if name not in names:
            raise RunError(f"{name!r} is not a size here", hint=f"sizes: {', '.join(names) or 'none'}")
    found: dict[str, tuple[int, str]] = {name: (int(value), "the sizes given") for name, value in bound.items()}
    _solve(tensors, names, inputs, found)
    for name in names:
        if name not in found:
            hint = f"pass sizes={{{name!r}: ...}}; it does not follow from the shapes of the inputs"
            raise RunError(f"size {name} is not known", hint=hint)
    return {name: found[name][0] for name in names}


def _solve(
    tensors: Iterable[Tensor], names: Collection[str], inputs: Mapping[str, Array], found: dict[str, tuple[int, str]]
) -> None:
    """Add to `found` (a size's value, and who says so) what the shapes of inputs tell. Raises `RunError` where two
    contradict.
    """
    waiting = [
        (extent, length, f"axis {axis} of {tensor.name}", tensor.name)
        for tensor in tensors
        if names and tensor.name in inputs
        for axis, (extent, length) in enumerate(zip(tensor.shape, np.shape(inputs[tensor.name]), strict=False))
    ]
    before: list[tuple[Affine, int, str, str]] = []
    while len(waiting) != len(before):  # an extent such as 2*N + M gives one size once the other is known
        values = {n: v for n, (v, _) in found.items()}
        before, waiting = waiting, []
        for extent, length, source, tensor_name in before:
            bare = _bare(extent)
            solved = (bare, length) if bare in names else solved_extent(extent.substitute(values), length)
            if solved is None or solved[0] not in names:
                waiting.append((extent, length, source, tensor_name))
                continue
            known, where = found.setdefault(solved[0], (solved[1], source))
            if known != solved[1]:
                both = f"size {solved[0]} is {known} by {where} and {solved[1]} by {source}"
                raise RunError(both, where=f"tensor {tensor_name}", hint="one of the two for both")



def check_context(program: Program, sizes: Mapping[str, int]) -> None:
    """Raise `RunError` where the program's context excludes these sizes."""
    if fix_sizes(program.context, sizes).is_empty():
        shown = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        allowed = print_condition(program.context)
        some = lacks_elements(program, {n: max(v, 0) for n, v in sizes.items()})
        hint = f"sizes with {allowed}{', or 0, with nothing to do' if some else ''}"
        raise RunError(f"{shown} is not allowed: {allowed}", where=f"program {program.name}", hint=hint)


def lacks_elements(program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether the program's context excludes these sizes only because some are 0: there is less to run then."""
    own = {p: sizes[p] for p in program.parameters if p in sizes}
    if 0 not in own.values() or not fix_sizes(program.context, own).is_empty():
        return False
    return not fix_sizes(program.context, {p: v or 1 for p, v in own.items()}).is_empty()


def _bare(extent: Affine) -> str:
    if len(extent.terms) == 1 and extent.constant == 0:
        atom, factor = extent.terms[0]
        if isinstance(atom, Var) and factor == 1:
            return atom.name
    return ""


def solved_extent(extent: Affine, length: int) -> tuple[str, int] | None:
    """The value of the one unknown of `extent == length`, if it has one."""
    match extent.terms:
        case ((Var(name), c),) if (length - extent.constant) % c == 0:
            return name, (length - extent.constant) // c
        case _:
            return None


def extents(tensor: Tensor, sizes: Mapping[str, int], *, storage: bool = False) -> tuple[int, ...]:
    """`Tensor.extents`, or `storage_extents`.

    Raises `RunError` where they depend on anything but the sizes, or a caller's array had a negative extent.
    """
    shape = tensor.storage_shape if storage else tensor.shape
    unknown = sorted({name for e in shape for name in e.names} - set(sizes))
    where = f"tensor {tensor.name}"
    if unknown:
        raise RunError(f"the shape depends on {', '.join(unknown)}, which is not a size", where=where)
    found = tensor.storage_extents(sizes) if storage else tensor.extents(sizes)
    if any(extent < 0 for extent in found):
        raise RunError(f"shape {found} has a negative extent", where=where)
    return found


def bind_arrays(tensors: Iterable[Tensor], sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """One logical array a tensor: inputs and constants as given (not copied), others a copy of what is given; else
    outputs are zero, and temporaries poison.

    Raises `RunError` that names the tensor on a wrong shape, a wrong dtype and a negative extent.
    """
    return {t.name: _bind_array(t, sizes, inputs.get(t.name)) for t in tensors}


def _bind_array(tensor: Tensor, sizes: Mapping[str, int], given: Array | None) -> Array:
    where = f"tensor {tensor.name}"
    shape = extents(tensor, sizes)
    if given is None:
        return np.zeros(shape, numpy_dtype(tensor.dtype)) if tensor.is_output else poisoned(shape, tensor.dtype)
    array = np.asarray(given)
    if array.dtype != numpy_dtype(tensor.dtype):
        raise RunError(f"array has dtype {array.dtype}, not {tensor.dtype}", where=where, hint="convert with .astype")
    if array.shape != shape:
        raise RunError(f"array has shape {array.shape}, not {shape}", where=where, hint=f"an array of shape {shape}")
    return array if tensor.role in ("input", "constant") else array.copy()


def check_writable(written: Iterable[tuple[str, str]], tensors: Mapping[str, Tensor]) -> None:
    """Raise `RunError` where a (statement, tensor) pair of `written` writes an input or a constant."""
    for statement, name in written:
        if tensors[name].role in ("input", "constant"):
            message = f"writes {name}, of role {tensors[name].role}"
            raise RunError(message, where=f"statement {statement}", hint="declare it inout")


def results(program_tensors: Iterable[Tensor], arrays: Mapping[str, Array], keep: Iterable[str]) -> dict[str, Array]:
    """The arrays of outputs, inouts and states, and those named in `keep`."""
    wanted = set(keep)
    shown = [t.name for t in program_tensors if t.is_output or t.name in wanted]
    return {name: arrays[name] for name in shown}


def run_external(
    program: Program, statement: str, arrays: Mapping[str, Array], externals: Mapping[str, RunExternal]
) -> None:
    """Run an external statement on whole arrays and store what it writes, in place.

    `externals` maps kinds to evaluators; the kind "onnx" defaults to the front end's reference evaluator. Raises
    `RunError` on an unknown kind or a result whose shape or dtype is not the tensor's.
    """
    external = program.statement[statement].external
    assert external is not None, f"{statement} is not external"
    where = f"statement {statement}"
    run = externals.get(external.kind)
    if run is None and external.kind == "onnx":
        # Imported by name: the core imports no layer, and onnx stays unloaded until it is needed.
        run = importlib.import_module("poly.frontend.onnx_reference").run_external
    if run is None:
        raise RunError(f"no evaluator for external statements of kind {external.kind!r}", where=where)
    try:
        values = run(external, {name: arrays[name] for name in external.reads})
    except PolyError:
        raise
    except Exception as error:
        raise RunError(f"the reference evaluator failed: {error}", where=where) from error
    for name in external.writes:
        value = np.asarray(values[name])
        if value.shape != arrays[name].shape or value.dtype != arrays[name].dtype:
            have, want = f"{value.dtype}{list(value.shape)}", f"{arrays[name].dtype}{list(arrays[name].shape)}"
            raise RunError(f"{name} came out as {have}, declared {want}", where=where)
        arrays[name][...] = value


def pack(tensor: Tensor, sizes: Mapping[str, int], logical: Array) -> Array:
    """The storage of a logical array, poison where no element lies; the array itself where there is no layout.

    Raises `RunError` where the layout puts an element outside of its storage, or two in one place.
    """
    if tensor.layout is None:
        return logical
    storage = poisoned(extents(tensor, sizes, storage=True), tensor.dtype)
    place = _placement(tensor, sizes)
    count = np.zeros(storage.shape, np.int64)
    np.add.at(count, place, 1)
    if (count > 1).any():
        raise RunError("the layout puts two elements in one place", where=f"tensor {tensor.name}")
    storage[place] = logical
    return storage


def unpack(tensor: Tensor, sizes: Mapping[str, int], storage: Array) -> Array:
    """The logical array in a storage."""
    return storage if tensor.layout is None else storage[_placement(tensor, sizes)]


def _placement(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[npt.NDArray[np.int64], ...]:
    """Physical coordinates of every element, as arrays of the logical shape."""
    assert tensor.layout is not None
    shape = tensor.extents(sizes)
    mesh = np.meshgrid(*(np.arange(extent) for extent in shape), indexing="ij", sparse=True)
    values = {**sizes, **dict(zip(tensor.layout.index, mesh, strict=True))}
    physical = extents(tensor, sizes, storage=True)
    place = tuple(np.broadcast_to(c.evaluate(values), shape) for c in tensor.layout.coordinates)
    for coordinate, extent in zip(place, physical, strict=True):
        if coordinate.size and not (0 <= coordinate.min() and coordinate.max() < extent):
            raise RunError(f"the layout leaves its storage {list(physical)}", where=f"tensor {tensor.name}")
    return place
