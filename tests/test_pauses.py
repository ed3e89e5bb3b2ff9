"""The pause of the collector of garbage while something is compiled."""

import gc
import os
from threading import Event, Thread
from typing import Any

import pytest

import poly
from poly import prepared
from poly.pauses import collection_paused


@pytest.fixture(autouse=True)
def collector():
    before = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if before else gc.disable)()


def test_a_pause_ends_with_its_block():
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), collection_paused():
        raise ValueError
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with collection_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_the_last_thread_ends_the_pause():
    inside, leave = Event(), Event()

    def other() -> None:
        with collection_paused():
            inside.set()
            leave.wait(10)

    thread = Thread(target=other)
    thread.start()
    inside.wait(10)
    with collection_paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_pause():
    with collection_paused():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_nothing_is_collected_while_something_is_planned(monkeypatch: pytest.MonkeyPatch):
    program = poly.parse("B[i] = 2 * A[i]", A=(7,))
    plain, seen = prepared._of_schedule, list[bool]()

    def watched(*given: Any) -> prepared.Prepared:
        seen.append(gc.isenabled())
        return plain(*given)

    monkeypatch.setattr(prepared, "_of_schedule", watched)
    monkeypatch.setenv("POLYLOOM_CACHE", "off")  # what is there is not planned
    poly.compile(program)
    assert seen == [False]
    assert gc.isenabled()
