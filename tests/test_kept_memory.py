"""Memory of large results and buffers is used again, once nobody holds what lies in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import numpy as np
import pytest

import poly
from poly import kept_memory
from poly.dtypes import Array
from poly.kept_memory import keep_block, kept_block
from poly.pointers import MAPPED, address, fresh_empty, fresh_zeros

ROWS = 1 << 13
COLUMNS = MAPPED // ROWS // 4 + 8  # of f32: a little more than MAPPED bytes


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> deque[Array]:
    monkeypatch.delenv("POLYLOOM_KEPT", raising=False)
    found = deque[Array]()
    monkeypatch.setattr(kept_memory, "_BLOCKS", found)
    return found


def block(size: int) -> Array:
    made = np.empty(size, np.uint8)
    keep_block(made)
    return made


def test_a_block_is_free_once_nothing_refers_to_it() -> None:
    size = 1000
    view = block(size)[10:]
    assert kept_block(size) is None
    further, at = view.view(np.int16).reshape(5, 99)[::2, 1], address(view) - 10
    del view
    assert kept_block(size) is None
    text = memoryview(further.data)
    del further
    assert kept_block(size) is None
    del text
    found = kept_block(size)
    assert found is not None and address(found) == at
    assert kept_block(size) is None  # it has a user again
    del found
    assert kept_block(size + 1) is None and kept_block(size // 2) is None and kept_block(900) is not None


def test_of_several_each_has_one_user(blocks: deque[Array]) -> None:
    for _ in range(3):
        block(1000)
    starts = {address(b) for b in blocks}
    for order in permutations(range(3)):
        users = {k: kept_block(1000) for k in range(3)}
        assert {address(u) for u in users.values() if u is not None} == starts
        assert kept_block(1000) is None
        for k in order:
            gone = users.pop(k)
            assert gone is not None
            at = address(gone)
            del gone
            users[k] = kept_block(1000)
            found = users[k]
            assert found is not None and address(found) == at
            del found
        users.clear()


def test_what_is_over_the_size_is_forgotten(blocks: deque[Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYLOOM_KEPT", "3")
    for k in range(1, 6):
        block((1 << 20) + k)
    assert [b.nbytes - (1 << 20) for b in blocks] == [4, 5]
    block(1 << 22)
    assert not blocks
    monkeypatch.setenv("POLYLOOM_KEPT", "0")
    block(1000)
    assert not blocks


def test_threads_never_share_a_block() -> None:
    def work(number: int) -> bool:
        for _ in range(300):
            found = kept_block(64)
            mine = block(64) if found is None else found
            mine[:] = number
            if not (mine == number).all():
                return False
            del found, mine
        return True

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("make", [fresh_empty, fresh_zeros])
def test_large_results_lie_where_dropped_ones_did(make: Callable[..., Array]) -> None:
    first = make((ROWS, COLUMNS), np.dtype(np.float32))
    first[...] = 7
    at, second = address(first), make((ROWS, COLUMNS), np.dtype(np.float32))
    assert address(second) != at and address(second) % 64 == 0 and (first == 7).all()
    del first
    third = make((ROWS, COLUMNS), np.dtype(np.float32))
    assert address(third) == at
    assert make is fresh_empty or not third.any()


def test_results_of_calls_are_used_again_only_when_dropped() -> None:
    kernel = poly.compile(poly.parse("Y[i,j] = x[i] + z[j]", x=(ROWS,), z=(COLUMNS,)), threads=1)
    x, z = np.arange(ROWS, dtype=np.float32), np.arange(COLUMNS, dtype=np.float32)
    row, other = np.asarray(kernel(x, z))[5], np.asarray(kernel(x, -z))
    assert not np.shares_memory(other, row) and np.array_equal(row, 5 + z)
    at = address(other)
    del other
    again = np.asarray(kernel(x, z))
    assert address(again) == at and np.array_equal(again, x[:, None] + z)


def test_einsum_uses_memory_again_in_any_order() -> None:
    a, b = np.ones((COLUMNS, 3, ROWS), np.float32).transpose(2, 1, 0), np.arange(3, dtype=np.float32)
    first = poly.einsum("ijk,j->ik", a, b)
    at = first.base is not None and address(first)
    assert (first == 3).all()
    del first
    assert address(poly.einsum("ijk,j->ik", a, b)) == at
    assert address(poly.einsum("ijk,j->ik", a, b)) == at


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_writes_to_memory_of_its_own() -> None:
    code = f"""
import os, numpy as np, poly
from poly.pointers import address, fresh_empty
y = fresh_empty(({ROWS}, {COLUMNS}), np.dtype(np.float32)); y[...] = 1; at = address(y)
view = y[0]; del y
child = os.fork()
if child == 0:
    view = None
    y = fresh_empty(({ROWS}, {COLUMNS}), np.dtype(np.float32)); y[...] = 2
    os._exit(0 if address(y) == at else 1)
assert os.waitpid(child, 0)[1] == 0 and (view == 1).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_buffers_of_calls_at_once_are_apart() -> None:
    """Each of several calls at once, whose buffer is larger than what malloc keeps, has one to itself."""
    text = "T[i,j] = x[i,j] * s[0]; S[j] += T[i,j]; Y[i,j] = T[i,j] + S[j]"
    kernel = poly.compile(poly.parse(text, x=(600, 700), s=(1,)), threads=1)
    x = np.ones((600, 700), np.float32)

    def call(k: int) -> bool:
        return np.array_equal(np.asarray(kernel(x, np.full(1, k, np.float32))), np.full((600, 700), 601 * k))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(60)))
