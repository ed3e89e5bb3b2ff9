"""Which constants each thread has in memory for itself.

A line that several cores read is lost to them now and then, whatever else they do: where a core's own caches are not
part of the last one, that keeps what is shared, and others use it up. A line that one core alone has stays. So what is
computed when compiling, small, and read by all threads of a parallel loop is there once for each. Decided from the
loops, nothing else; values are the same. See docs/decisions/0115.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from poly.affine import Affine
from poly.loops import Alloc, Compute, For, If, Node
from poly.machine import Machine
from poly.scheduling.constants import Split
from poly.scheduling.cpu_core import SLOWLY_SHARED, core_of, remote_rate
from poly.scheduling.cpu_facts import own_capacity

ROOM: Final = 2  # of a core's own caches: what all copies of a constant may take


def with_thread_constants(split: Split, machine: Machine, threads: int) -> Split:
    """The loops with those of their computed constants once for each thread that threads share, and that are small."""
    if threads == 1 or machine.kind != "cpu" or not _keeps(machine):
        return split
    sizes, most = dict(split.after.sizes), ROOM * own_capacity(machine) // threads
    small = {t.name for t in split.computed if t.nbytes(sizes) <= most}
    shared = {*_read_by_all(split.after.body, None)} if small else set[str]()
    chosen = tuple(t.name for t in split.computed if t.name in small & shared)
    return replace(split, after=replace(split.after, per_thread=chosen)) if chosen else split


def _keeps(machine: Machine) -> bool:
    """Whether a core loses lines that others read, and has its own from call to call: parts of a model that all come
    anew would come once for each thread.
    """
    return remote_rate(machine) <= SLOWLY_SHARED and not core_of(machine, 4).streamed


def _read_by_all(nodes: Sequence[Node], around: str | None) -> Iterator[str]:
    """The tensors that iterations of the same parallel loop read at the same places, `around`: the loop."""
    for node in nodes:
        match node:
            case For(kind="parallel") if around is None:
                yield from _read_by_all(node.body, node.variable)
            case For(body=body) | If(body=body) | Alloc(body=body):
                yield from _read_by_all(body, around)
            case Compute() if around is not None:
                for access in node.reads:
                    if not any(isinstance(i, Affine) and around in i.names for i in access.index):
                        yield access.tensor
            case _:
                pass
