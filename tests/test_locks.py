"""Locks and forks: whatever a thread is in the middle of when another one forks, the child can do the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import islpy as isl
import pytest

from poly.locks import Lock, cached_property
from poly.sets import operation_budget

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


class Square:
    """An attribute whose computation can be held up."""

    def __init__(self, side: int, between: Callable[[], None] = lambda: None) -> None:
        self.side, self.between, self.computed = side, between, 0

    @cached_property
    def area(self) -> int:
        """Of the square."""
        self.computed += 1
        self.between()
        return self.side**2


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child; a child that hangs is ended by an alarm."""
    pid = os.fork()
    if pid == 0:
        import signal

        signal.alarm(20)
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def while_another_thread(holds: Callable[[Callable[[], None]], object], then: Callable[[], bool]) -> bool:
    """`then` while a thread stands in the middle of `holds(between)`, where it calls `between`."""
    inside, leave = threading.Event(), threading.Event()

    def between() -> None:
        inside.set()
        assert leave.wait(60)

    thread = threading.Thread(target=holds, args=(between,))
    thread.start()
    try:
        assert inside.wait(60)
        return then()
    finally:
        leave.set()
        thread.join()


def test_cached_property() -> None:
    square = Square(3)
    assert (square.area, square.area, square.computed) == (9, 9, 1)
    assert Square.area.__doc__ == "Of the square." and isinstance(Square.area, cached_property)


def test_an_attribute_that_another_thread_computes() -> None:
    def hold(between: Callable[[], None]) -> int:
        return Square(2, between).area

    assert while_another_thread(hold, lambda: Square(4).area == 16)
    assert while_another_thread(hold, lambda: in_child(lambda: Square(4).area == 16))


def test_a_lock_that_another_thread_holds() -> None:
    lock = Lock()

    def hold(between: Callable[[], None]) -> None:
        with lock:
            between()

    def take() -> bool:
        with lock, lock:
            return True

    assert while_another_thread(hold, lambda: in_child(take))
    assert take()


def test_a_budget_that_another_thread_is_in() -> None:
    def hold(between: Callable[[], None]) -> None:
        with operation_budget(10):
            between()

    def work() -> bool:
        with operation_budget(100_000):
            text = "{ A[i, j] : 0 <= i < 10 and 0 <= j < i }"
            return bool(isl.Set(text).subtract(isl.Set(text)).is_empty())

    assert while_another_thread(hold, lambda: in_child(work))
    assert isl.DEFAULT_CONTEXT.get_max_operations() == 0 and work()
