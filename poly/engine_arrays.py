"""The caller's arrays of a compiled model: inputs and targets by the model's own names, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poly.dtypes import Array
from poly.errors import RunError
from poly.given_arrays import array_of, overlap, target_of


@dataclass(frozen=True)
class ExpectedInput:
    """What an input has to be. `tensor`: its name in the graph; `shape` None: any of that rank."""

    tensor: str
    dtype: np.dtype[np.generic]
    rank: int
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.dtype} of rank {self.rank}" if self.shape is None else f"{self.dtype}{list(self.shape)}"

    def fits(self, array: Array) -> bool:
        return array.ndim == self.rank if self.shape is None else array.shape == self.shape


def inputs_of(
    inputs: Mapping[str, Array], known: Mapping[str, ExpectedInput], where: str, hint: str = ""
) -> dict[str, Array]:
    """The arrays by tensor, C-contiguous and aligned; `known`: what is expected, by label; `hint`: for other shapes.

    Raises `RunError` where one is missing, unknown, of another shape, or of a dtype that has other values.
    """
    if type(inputs) is not dict and not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = f"run({{{', '.join(f'{name!r}: ...' for name in known)}}})"
        raise RunError(f"takes a mapping of names to arrays, not {type(inputs).__name__}", where=where, hint=hint)
    for name in inputs:
        if name not in known:
            raise RunError(f"no input {name!r}", where=where, hint=f"inputs: {', '.join(known)}")
    found: dict[str, Array] = {}
    for label, expected in known.items():
        if label not in inputs:
            hint = f"run({{{', '.join(f'{name!r}: ...' for name in known)}}})"
            raise RunError(f"input {label!r} is missing", where=where, hint=hint)
        array = inputs[label]
        if type(array) is not np.ndarray or array.dtype != expected.dtype or not expected.fits(array):
            array = _converted(label, array, expected, where, hint)
        flags = array.flags
        found[expected.tensor] = array if flags.c_contiguous and flags.aligned else np.require(array, None, ["C", "A"])
    return found


def _converted(label: str, array: object, expected: ExpectedInput, where: str, hint: str) -> Array:
    """What is no array that fits already, as one."""
    found = array_of(repr(label), expected.dtype, array, f"inputs[{label!r}]")
    if not expected.fits(found):
        message = f"input {label!r} is {found.dtype}{list(found.shape)}, expected {expected}"
        raise RunError(message, where=where, hint=hint)
    return found


def targets_of(
    out: Mapping[str, Array], known: Mapping[str, tuple[str, tuple[int, ...], np.dtype[np.generic]]],
    given: Sequence[Array], where: str,
) -> dict[str, Array]:  # fmt: skip
    """The arrays of `out` by tensor; `known`: tensor, shape and dtype of each output by its label; `given`: inputs, all
    C-contiguous. Raises `RunError` where one is none of the outputs or cannot be written to.
    """
    require_mapping(out, where)
    found: dict[str, Array] = {}
    for label, array in out.items():
        if label not in known:
            raise RunError(f"no output {label!r}", where=where, hint=f"outputs: {', '.join(known)}")
        name, shape, kind = known[label]
        target_of(repr(label), array, shape, kind, where)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            hint = f"numpy.empty({shape}, {kind.name!r}), and copy from there"
            raise RunError(f"out for {label!r} is not C-contiguous and aligned", where=where, hint=hint)
        if any(overlap(array, other) for other in (*given, *found.values())):
            raise RunError(f"out for {label!r} overlaps an input or another output", where=where)
        found[name] = array
    return found


def require_mapping(out: object, where: str) -> None:
    """Raise `RunError` for an `out` that has no names."""
    if not isinstance(out, Mapping):
        raise RunError(f"out is {type(out).__name__}", where=where, hint="out={name: array}")
