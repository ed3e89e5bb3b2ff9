"""What loops of a schedule do, for the choice of those that threads share: iterations, bytes, what moves along them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.program import Access, Statement
from poly.relations import interval_of, range_of
from poly.scheduling.cpu_shares import EDGE
from poly.scheduling.schedule import Schedule


@dataclass(frozen=True)
class Use:
    """An access of a statement in a nest."""

    statement: Statement
    access: Access
    makes: bool  # writes, and not when compiling


def extent_of(schedule: Schedule, loop: str) -> int:
    """Iterations of a loop: the most of those that are known of the statements under it, 0 where none are."""
    kept: dict[str, int] = schedule.__dict__.setdefault("_extents", {})  # asked for again and again
    if loop not in kept:
        most = 0
        for name in schedule.loop_statements[loop]:
            s = schedule.program.statement[name]
            found = range_of(schedule.program, s, schedule.nests[name].loops[loop])
            if found is not None:
                most = max(most, found[1] - found[0] + 1)
        kept[loop] = most
    return kept[loop]


def runs_of(schedule: Schedule, name: str, lanes: int) -> int:
    """Iterations of all loops of a statement, those of loops of lanes in whole vectors; 0 where a size is free."""
    loops = {n: extent_of(schedule, n) for n in schedule.nests[name].names}
    return prod(-(-e // lanes) * lanes if schedule.kind(n) == "vector" else e for n, e in loops.items())


def instances_under(schedule: Schedule, loop: str) -> int:
    """Of all statements under a loop, without those whose sizes are free."""
    return sum(prod(extent_of(schedule, n) for n in schedule.nests[name].names) for name in schedule.under(loop))


def largest_share(schedule: Schedule, loop: str, extent: int) -> float:
    """Of all that a loop does, what one iteration does at the most: of blocks the last one may be smaller."""
    most = 1 / extent
    for name in schedule.under(loop):
        s, nest = schedule.program.statement[name], schedule.nests[name]
        along = nest.loops[loop].names
        same = [n for n in nest.names if nest.loops[n].names == along]
        if s.copies or len(along) != 1 or same[0] != loop or not along <= {*s.iterators}:
            continue
        found = interval_of(schedule.program, s, *along)
        if found is not None and found[1] >= found[0]:
            most = max(most, prod(extent_of(schedule, n) for n in same[1:]) / (found[1] - found[0] + 1))
    return min(1.0, most)


def moved_axes(schedule: Schedule, s: Statement, access: Access, loop: str) -> Iterator[int]:
    """The subscripts of an access in which the loop takes part; of a copy that is made in every iteration those of the
    elements that this one is about.
    """
    names = schedule.nests[s.name].loops[loop].names
    if s.copies:
        subscripts = [x for a, _ in s.accesses for x in a.affine_index if names & x.names]
        names = names.union(*(x.names for x in subscripts))
    for axis, subscript in enumerate(access.index):
        if isinstance(subscript, Affine) and names & subscript.names:
            yield axis


def _steps(schedule: Schedule, s: Statement, access: Access, axes: Collection[int]) -> int:
    """Iterations of the loops that move an access along some axes."""
    names, scope = schedule.nests[s.name].names, schedule.program.tensor[access.tensor].scope
    return prod(
        extent_of(schedule, n) for n in names
        if n in scope or any(a in axes for a in moved_axes(schedule, s, access, n))
    )  # fmt: skip


def _bytes(schedule: Schedule, tensor: str) -> int:
    """Of a tensor as often as it is filled."""
    t = schedule.program.tensor[tensor]
    try:
        return t.nbytes(schedule.program.binding) * prod(max(1, extent_of(schedule, loop)) for loop in t.scope)
    except KeyError:  # a free size
        return 0


def bytes_of_uses(schedule: Schedule, uses: Sequence[Use]) -> int:
    """Bytes of a tensor that some accesses touch, at the most."""
    tensor = schedule.program.tensor[uses[0].access.tensor]
    elements = sum(_steps(schedule, u.statement, u.access, range(tensor.rank)) for u in uses)
    return min(_bytes(schedule, tensor.name), elements * size_bytes(tensor.dtype))


def bytes_at_edges(schedule: Schedule, loop: str) -> float:
    """Bytes that prefetchers fetch of what another thread writes, where threads write the same rows side by side."""
    reached: dict[str, int] = {}
    for name in schedule.under(loop):
        s = schedule.program.statement[name]
        tensor = schedule.program.tensor[s.write.tensor]
        moved = {*moved_axes(schedule, s, s.write, loop)}
        if tensor.layout is not None or loop in tensor.scope or moved != {tensor.rank - 1}:
            continue
        rows = EDGE * _steps(schedule, s, s.write, range(tensor.rank - 1))
        most = bytes_of_uses(schedule, [Use(s, s.write, True)]) // 2
        reached[tensor.name] = reached.get(tensor.name, 0) + min(rows, most)
    return float(sum(reached.values()))
