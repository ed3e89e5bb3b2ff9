"""Policy for programs whose one free size counts items: a plan for one of them, repeated (`poly.scheduling.items`).

The program of one item has known sizes, so every policy of `poly.scheduling.cpu` knows it. That is worth more than to
see all items at once where an item has enough to do by itself: what all items share, as weights, is used often enough
in one to be fetched anew for the next.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Final

from poly.affine import Affine
from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Program
from poly.relations import intervals_of
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_program import known_for_cpu
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.items import all_items, items_of, one_item, repeated
from poly.scheduling.result_blocks import with_result_blocks
from poly.scheduling.schedule import Schedule
from poly.scheduling.shared_sums import share_sums
from poly.scheduling.thread_blocks import with_thread_blocks

FEWEST_USES: Final = 32  # of an element that items share, in one: it comes with its line while the others are used
FEWEST_POINTS: Final = 4096  # of an item, in all statements: loops of their own cost some hundred cycles


def schedule_items(program: Program, machine: Machine, threads: int) -> Schedule | None:
    """A checked schedule of a program, edited as `cpu_program` does it; None where its free size is no number of items
    or an item has too little to do.
    """
    items = items_of(program)
    if items is None:
        return None
    one = one_item(program, items)
    if not _is_enough(one, one.tensor.keys() - items.tensors):
        return None
    try:
        one = share_sums(known_for_cpu(one, {}, machine, threads), machine, threads)
        one = with_result_blocks(with_thread_blocks(one, machine, threads), machine, threads)
        source = all_items(one, items)
        again = items_of(source)
        if again is None or source.with_role("constant") != program.with_role("constant"):
            return None
        plan = schedule_for_cpu(one_item(source, again), machine, threads)
        return settle(repeated(unchecked(Schedule(source)), again, plan))
    except PolyError:  # it stays with the policies for any size
        return None


def _is_enough(one: Program, shared: Collection[str]) -> bool:
    """Whether an item has loops of known sizes, enough points, and enough use for each element of what items share."""
    points = 0
    for s in one.statements:
        extents = {i: ends[1] - ends[0] + 1 if ends is not None else 0 for i, ends in intervals_of(one, s).items()}
        if 0 in extents.values():
            return False
        points += prod(extents.values())
        for read in s.reads if s.combiner is not None else ():
            named = {n for x in read.index if isinstance(x, Affine) for n in x.names}
            uses = prod(extent for i, extent in extents.items() if i not in named)
            if read.tensor in shared and uses < FEWEST_USES:
                return False
    return points >= FEWEST_POINTS
