"""A pause of Python's collector of cyclic garbage: a compile makes half a million objects, hardly any of them garbage.

Each collection walks through objects that stay, and a full one through all that the process holds, whoever made it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from poly.locks import Lock


class _Pauses:
    """How many pauses there are at once, in all threads, and whether the collector was at work before the first."""

    def __init__(self) -> None:
        self.lock, self.count, self.enabled = Lock(), 0, False

    def begin(self) -> None:
        with self.lock:
            if not self.count:
                self.enabled = gc.isenabled()
                gc.disable()
            self.count += 1

    def end(self) -> None:
        with self.lock:
            if self.count == 1 and self.enabled:
                gc.enable()
            self.count = max(0, self.count - 1)

    def renew(self) -> None:
        """In a forked child, whose threads that would end their pauses are not there."""
        if self.count and self.enabled:
            gc.enable()
        self.count = 0


_PAUSES: Final = _Pauses()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PAUSES.renew)


@contextmanager
def collection_paused() -> Generator[None]:
    """Nothing is collected inside; behind it, in the last thread that leaves one, as it was before."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
