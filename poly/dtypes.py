"""The scalar types: one name each (`f32`, `i8`, ...), with the numpy type and the size in bytes."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from poly.errors import PolyError

Array = npt.NDArray[np.generic]

_NUMPY: Final[dict[str, str]] = {
    "f64": "float64", "f32": "float32", "f16": "float16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8",
    "bool": "bool", "c64": "complex64", "c128": "complex128",
}  # fmt: skip
_EXTENSION: Final[dict[str, str]] = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_NAMES: Final[dict[np.dtype[np.generic], str]] = {np.dtype(numpy): name for name, numpy in _NUMPY.items()}

NUMPYS_NAMES: Final[dict[str, str]] = {numpy: name for name, numpy in (_NUMPY | _EXTENSION).items()}
DTYPES: Final[frozenset[str]] = frozenset(_NUMPY) | frozenset(_EXTENSION)


@cache
def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy type of a dtype name; bf16 and fp8 come from ml_dtypes. Raises `PolyError` on an unknown name."""
    if name in _NUMPY:
        return np.dtype(_NUMPY[name])
    if name in _EXTENSION:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, _EXTENSION[name]))
    raise PolyError(f"unknown dtype {name!r}", hint=hint_for(name))


def hint_for(name: str) -> str:
    """What to write in place of a dtype that is unknown here: our name of numpy's, or one of all."""
    return repr(NUMPYS_NAMES[name]) if name in NUMPYS_NAMES else f"one of {', '.join(sorted(DTYPES))}"


def dtype_name(dtype: object) -> str:
    """The name of a numpy dtype, numpy scalar type or array's dtype.

    Raises `PolyError` where we have none (object, str).
    """
    found = np.dtype(dtype)  # type: ignore[arg-type]
    if found in _NAMES:
        return _NAMES[found]
    for name, numpy in _EXTENSION.items():
        if found.name == numpy:
            return name
    raise PolyError(
        f"arrays of dtype {found} have no compiled form", hint=f"convert to one of {', '.join(sorted(DTYPES))}"
    )


def converted(values: npt.ArrayLike, name: str) -> npt.NDArray[np.generic]:
    """What a cast means, on every level: numpy's conversion, and from floats to integers truncation toward zero that
    saturates, where numpy (and ONNX) leave open what comes of a value outside of the integers; NaN gives 0.
    """
    found, target = np.asarray(values), numpy_dtype(name)
    with np.errstate(all="ignore"):
        if target.kind not in "iu" or not (found.dtype.kind == "f" or found.dtype.name in _EXTENSION.values()):
            return found.astype(target)
        found = found if found.dtype.itemsize > 2 else found.astype(np.float32)  # f16 does not hold the limits
        limits = np.iinfo(target.name)
        whole = np.trunc(found)
        above, below = whole >= 2.0 * (limits.max // 2 + 1), whole < limits.min
        outside = above | below | np.isnan(found)
        if not outside.any():
            return found.astype(target)
        kept = np.where(outside, 0, found).astype(target)
        return np.where(above, limits.max, np.where(below, limits.min, kept)).astype(target)


def size_bytes(name: str) -> int:
    """Bytes of one element."""
    return numpy_dtype(name).itemsize


def is_float(name: str) -> bool:
    """True for the real floating types, bf16 and fp8 included."""
    return name[0] == "f" or name == "bf16"


def is_integer(name: str) -> bool:
    """True for signed and unsigned integers; False for bool."""
    return name[0] in "iu"
