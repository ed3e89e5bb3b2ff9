"""Arrays of other libraries through DLPack, also of the dtypes that numpy itself does not take."""

from __future__ import annotations

import ctypes
from typing import Final, Protocol

import numpy as np

from poly.dtypes import Array


class Exporter(Protocol):
    """What has its memory described by DLPack."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Tensor(ctypes.Structure):
    """DLPack's `DLTensor`, up to the dtype."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip


_UINT: Final = 1
_NAMES: Final = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2"}  # (code, bits)


class _Retyped:
    """A capsule whose elements are unsigned integers of the same width; `name`: of their true dtype, "" for none."""

    def __init__(self, source: Exporter) -> None:
        self.capsule = source.__dlpack__()
        self.device = source.__dlpack_device__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = _Tensor.from_address(pointer(self.capsule, b"dltensor"))
        self.name = _NAMES.get((tensor.code, tensor.bits), "") if tensor.lanes == 1 else ""
        if self.name:
            tensor.code = _UINT

    def __dlpack__(self, **_: object) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def from_dlpack(source: Exporter) -> Array:
    """A numpy array on the memory of `source`; bfloat16 and fp8 as the dtypes of ml_dtypes.

    Raises `BufferError`, `RuntimeError` or `TypeError` where it has no memory that this process can read.
    """
    is_neg = getattr(source, "is_neg", None)
    if is_neg is not None and is_neg():  # torch exports the memory without saying that values are its negatives
        raise BufferError("its memory has the negated values, as the imaginary part of a conjugate: resolve_neg()")
    try:
        return np.from_dlpack(source)  # type: ignore[arg-type]
    except (BufferError, RuntimeError, TypeError):
        try:
            retyped = _Retyped(source)
        except (BufferError, RuntimeError, TypeError, ValueError):
            retyped = None
        if retyped is None or not retyped.name:
            raise
    import ml_dtypes

    integers: Array = np.from_dlpack(retyped)  # type: ignore[arg-type]
    return integers.view(getattr(ml_dtypes, retyped.name))
