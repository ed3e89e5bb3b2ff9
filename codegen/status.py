"""What a kernel gives back where an index from memory was out of range: an i64 with its value in the upper half, then
16 bits for the statement, 8 for the access and 8 for the dimension, these two from 1 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.errors import UnsupportedError

WRITE = 254  # the place of a statement's write among its reads
MOST_NUMBERED = 0xFFFF  # statements
MAX_DIMENSIONS = 255


@dataclass(frozen=True)
class Status:
    """An index that was out of range: which statement, which read (None: the write), which dimension, which value."""

    statement: str
    read: int | None
    dimension: int
    value: int


def encode_status(number: int, position: int, dimension: int) -> int:
    """The low 32 bits of a status. `number`: of the statement; `position`: of the read, or `WRITE`."""
    if dimension >= MAX_DIMENSIONS:
        raise UnsupportedError(f"an indirect access has {dimension + 1} dimensions")
    return number << 16 | (position + 1) << 8 | (dimension + 1)


def decode_status(statements: Sequence[str], status: int) -> Status:
    """What a non-zero result of an entry says; the value is the end of 32 bits where it lies beyond."""
    position = (status >> 8 & 0xFF) - 1
    read = None if position == WRITE else position
    return Status(statements[status >> 16 & 0xFFFF], read, (status & 0xFF) - 1, status >> 32)
