"""Locks of this library: none is held for ever in a process forked while another thread held it.

`functools.cached_property` of Python 3.11 computes under one lock for all objects of a class: a child forked in the
middle waits for it for ever, and threads with different objects wait for each other. The one here has no lock: two
threads at once may both compute, to the same result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from types import TracebackType
from typing import Final, Generic, TypeVar, overload
from weakref import WeakSet

T = TypeVar("T")


class Lock:
    """A reentrant lock, free in a forked child. What it protects must be usable at any point of a block under it."""

    def __init__(self) -> None:
        self.renew()
        _LOCKS.add(self)

    def renew(self) -> None:
        """Make it free, whoever holds it."""
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


_LOCKS: Final[WeakSet[Lock]] = WeakSet()


def _renew_all() -> None:
    for lock in list(_LOCKS):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class cached_property(Generic[T]):  # noqa: N801  # it stands for the one of functools
    """An attribute computed when it is first asked for, kept in the object's `__dict__`."""

    def __init__(self, compute: Callable[..., T]) -> None:
        self._compute = compute
        self._name = ""
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._compute(instance)
        return found
