"""Padded copies of what a window reads: where they pay, and their edits, which the policies for a core share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from poly.errors import PolyError
from poly.program import Statement
from poly.relations import intervals_of
from poly.scheduling.cpu_edits import FEW_VECTORS, extent_of, in_vectors, loops_of_copy
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import tile_of

MOST_PADDED = 4  # times the elements of a tensor that a padded copy may have, whatever its uses
FEWEST_USES = 4  # of each element of a larger one


def with_padding(
    schedule: Schedule, group: Group, vector: int, packed: Collection[tuple[str, str]] = ()
) -> Schedule:
    """Guarded reads inside reductions go through a padded copy of the tensor, made in vectors, but for those that are
    packed, given as (statement, tensor).
    """
    schedule, made = with_padded_reads(schedule, group.statements, packed)
    for tensor, buffer in made:
        schedule = _edges_apart(schedule, tensor, buffer, vector)
    return schedule


def with_padded_reads(
    schedule: Schedule, statements: Sequence[Statement], packed: Collection[tuple[str, str]] = ()
) -> tuple[Schedule, list[tuple[str, str]]]:
    """Guarded reads inside reductions from padded copies; the tensors and their copies."""
    made: list[tuple[str, str]] = []
    for s in statements:
        padded = {r.tensor for r in s.reads if r.guard} if s.combiner is not None else set[str]()
        for tensor in sorted(t for t in padded if (s.name, t) not in packed):
            buffer = f"{tensor}_{s.name}_padded"
            try:
                if not padded_copy_pays(schedule, tensor, s):
                    continue
                schedule = schedule.promote(tensor, None, "dram", users=[s.name], name=buffer, pad=True)
            except PolyError:
                continue
            made.append((tensor, buffer))
    return schedule, made


def padded_copy_pays(schedule: Schedule, tensor: str, s: Statement) -> bool:
    """Whether a padded copy is hardly larger than its tensor, or its elements are used often; masks serve elsewhere.

    Raises `ScheduleError` where the copy would have no box.
    """
    shape, sizes = schedule.program.tensor[tensor].shape, schedule.program.binding
    padded = tile_of(schedule, tensor, None, [s.name], pad=True).box.extents
    if any(not e.names <= sizes.keys() for e in (*padded, *shape)):
        return True
    copied, own = (prod(int(e.evaluate(sizes)) for e in extents) for extents in (padded, shape))
    ranges = intervals_of(schedule.program, s)
    uses = prod(high - low + 1 for low, high in (r or (0, 0) for r in ranges.values()))
    return copied <= MOST_PADDED * own or copied * FEWEST_USES <= uses


def _edges_apart(schedule: Schedule, tensor: str, buffer: str, vector: int) -> Schedule:
    """A padded copy axis by axis, its padding apart from what lies in the tensor; the last axis in vectors."""
    copy = f"ld_{buffer}"
    if copy not in schedule.nests:
        return schedule
    axes = [int(loop.rsplit(".", 1)[1]) for loop in loops_of_copy(schedule, copy)]
    sizes, last = schedule.program.binding, schedule.program.tensor[tensor].rank - 1
    if not axes or axes[-1] != last or len(schedule.nests[copy].names) != len(axes):
        return schedule
    length = extent_of(schedule, tensor, last)
    starts = {d: schedule.nests[copy].loops[f"{copy}.{d}"].constant for d in axes}
    part, padding = "", list[str]()
    wide = extent_of(schedule, buffer, last)
    for d in axes:
        low, high = max(0, starts[d]), starts[d] + int(schedule.program.tensor[tensor].shape[d].evaluate(sizes))
        extent = extent_of(schedule, buffer, d)
        edges = list[str]()
        if 0 < low < extent:
            schedule = schedule.split(f"{copy}.{d}{part}", low)
            edges, part = [f"{part}.lo"], f"{part}.hi"
        if low < high < extent:
            schedule = schedule.split(f"{copy}.{d}{part}", high)
            edges, part = [*edges, f"{part}.hi"], f"{part}.lo"
        padding += edges if d != last else []
        length = min(high, extent) - low if d == last else length
    for piece in padding:
        schedule = in_vectors(schedule, f"{copy}.{last}{piece}", wide, vector, FEW_VECTORS)
    return in_vectors(schedule, f"{copy}.{last}{part}", length, vector, FEW_VECTORS)
