"""Memory of large results, kept for later ones: what nobody holds any more need not be cleared by the system again.

A block is an array of bytes, which a result is a view of: as long as the result or any view of it is alive, numpy holds
a reference to the block. One to which only this module holds a reference is free. Blocks are taken out of the queue
while they are looked at, which is one step for the interpreter, so that threads need no lock and a forked child none
that another thread held (docs/decisions/0130).
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final

import numpy as np

from poly.dtypes import Array
from poly.settings import kept_megabytes

MOST_LARGER: Final = 1.25  # times what is asked for
_BLOCKS: Final = deque[Array]()


def _references(blocks: deque[Array]) -> tuple[Array, int]:
    """The first block, taken out, and how many references to it there are."""
    block = blocks.popleft()
    return block, sys.getrefcount(block)


_, _ALONE = _references(deque([np.empty(1, np.uint8)]))
_COUNTS: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()  # else a count is no proof


def kept_block(size: int) -> Array | None:
    """A block of at least so many bytes that nobody uses, with any content; None where there is none."""
    for _ in range(len(_BLOCKS)):
        try:
            block, references = _references(_BLOCKS)
        except IndexError:  # another thread looks at it
            return None
        _BLOCKS.append(block)
        if references == _ALONE and size <= block.nbytes <= MOST_LARGER * size:
            return block
    return None


def keep_block(block: Array) -> None:
    """Let later results have a block's memory, once nobody uses it; those not asked for for longest are forgotten."""
    most = kept_megabytes() << 20 if _COUNTS else 0
    _BLOCKS.append(block)
    over = sum(b.nbytes for b in tuple(_BLOCKS)) - most
    while over > 0:
        try:
            over -= _BLOCKS.popleft().nbytes
        except IndexError:  # others forget them, too
            return


def forget_blocks() -> None:
    """Give back what nobody uses; the rest goes when its last user does."""
    _BLOCKS.clear()
