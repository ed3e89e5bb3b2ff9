"""Where the sums of a register tile are: in registers for all steps of the reduction, or from zero in blocks of them.

The error of a sum grows with the additions that follow one another: with those of a block and with the blocks, as in
every BLAS, instead of with all steps (docs/decisions/0081).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Statement, Tensor
from poly.relations import interval
from poly.scheduling.cpu_edits import FEW_VECTORS, axis_last, extent_of, in_vectors, loops_of_copy
from poly.scheduling.cpu_facts import most_vectors
from poly.scheduling.schedule import Schedule
from poly.scheduling.vectors import Vectors

FROM_ZERO = 64  # steps of a block from zero: those with fewer are streams of few rows, and wait for their sums
# Steps of a block that is made for the error alone, hardly a share of the time: a tile's sums come and go through the
# first cache. Those of a row have their lanes to add up instead, and have shorter blocks (`cpu_reduce`).
LONG_CHAIN = 4096


@dataclass(frozen=True)
class Sums:
    """The sums of register tiles with vectors of so many lanes."""

    vector: int
    machine: Machine

    def promoted(self, schedule: Schedule, s: Statement, anchor: str, space: str = "") -> Schedule:
        """Keep a reduction's target in registers, or another space, while its tile is computed; the copies get rows
        and lanes too.
        """
        buffer, axis = f"{s.write.tensor}_{s.name}_{'s' if space else 'r'}", _lane_axis(schedule, s)
        last, fast = len(s.write.index) - 1, _fastest(schedule.program.tensor[s.write.tensor])
        turned = axis is not None and axis != fast
        order = axis_last(schedule, s.write.tensor, axis) if axis not in (None, last) else None
        space = space or self.machine.register_space
        schedule = schedule.promote(s.write.tensor, anchor, space, name=buffer, order=order)
        return self._laid_out(schedule, (f"ld_{buffer}", f"st_{buffer}"), buffer, fast if turned else axis)

    def in_blocks(self, schedule: Schedule, s: Statement, anchor: str, steps: int) -> Schedule:
        """The same for a tile of so many `steps`; of very many, in blocks, whose sums meet in the first cache."""
        names = schedule.nests[s.name].names
        loop, size = names[names.index(anchor) + 1], max(LONG_CHAIN, isqrt(steps))
        trips = _trips(schedule, s, loop) if steps >= 2 * size and schedule.kind(loop) == "serial" else 0
        each = -(-size * trips // steps)
        if trips <= each:
            return self.promoted(schedule, s, anchor)
        schedule = self.promoted(schedule.tile({loop: each}), s, anchor, self.machine.cache_space(0))
        return self.partial(schedule, schedule.program.statement[s.name], f"{loop}.o")

    def partial(self, schedule: Schedule, s: Statement, anchor: str) -> Schedule:
        """The sums of an iteration of a loop in registers, from zero, added to the target."""
        part, axis = f"{s.write.tensor}_{s.name}_part", _lane_axis(schedule, s)
        schedule = schedule.rfactor(s.name, anchor, at=anchor, name=part)
        order = None if axis is None else axis_last(schedule, part, axis)
        schedule = schedule.promote(part, anchor, self.machine.register_space, name=f"{part}_r", order=order)
        return self._laid_out(schedule, (f"clear_{part}", f"merge_{part}"), f"{part}_r", axis)

    def _laid_out(self, schedule: Schedule, copies: Sequence[str], buffer: str, lanes: int | None) -> Schedule:
        """What fills a buffer and empties it, laid out, in vectors along one of its axes."""
        for copy in (c for c in copies if c in schedule.nests):
            own = {int(n.removeprefix(f"{copy}.")): n for n in loops_of_copy(schedule, copy)}
            if lanes in own and own[lanes] != schedule.nests[copy].names[-1]:
                schedule = schedule.reorder(*(n for d, n in own.items() if d != lanes), own[lanes])
            for d, loop in own.items():
                if d == lanes:
                    extent = extent_of(schedule, buffer, d)
                    if extent > self.vector * max(FEW_VECTORS, most_vectors(self.machine)):
                        raise ScheduleError(f"{extent} elements of {buffer} in registers are too many")
                    schedule = in_vectors(schedule, loop, extent, self.vector)
                else:
                    schedule = schedule.unroll(loop)
        return schedule


def _trips(schedule: Schedule, s: Statement, loop: str) -> int:
    """Iterations of a loop; 0 where nothing bounds them."""
    found = interval(Vectors(schedule).range(s), schedule.nests[s.name].names.index(loop))
    return 0 if found is None else found[1] - found[0] + 1


def _lane_axis(schedule: Schedule, s: Statement) -> int | None:
    """The axis of what a statement writes that its vectors move along."""
    nest = schedule.nests[s.name]
    vector = next((n for n in nest.names if schedule.kind(n) == "vector"), None)
    names = nest.loops[vector].names if vector is not None else frozenset[str]()
    return next((d for d, i in enumerate(s.write.index) if isinstance(i, Affine) and names & i.names), None)


def _fastest(tensor: Tensor) -> int:
    """The axis along which a tensor is contiguous in memory."""
    if tensor.layout is None:
        return tensor.rank - 1
    return next(d for d, name in enumerate(tensor.layout.index) if name in tensor.layout.coordinates[-1].names)
