"""Steps of a blocked contraction's reduction that make one body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.machine import Machine
from poly.scheduling.cpu_edits import ordered
from poly.scheduling.cpu_facts import from_afar, reduction_extents
from poly.scheduling.cpu_plan import UNROLLED, BlockPlan, window_stays
from poly.scheduling.cpu_tile import MOST_SHORT, with_short_unrolled
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule
from poly.scheduling.uneven import uneven_axes

# Steps in one body, the first of these that divides the loop's extent: four spare most of a loop's instructions, more
# spare little and cost compile time, fewer still spare something where nothing else divides it. Where four do not fit
# in a body, fewer would cost registers and spare hardly anything. Of what comes from afar, eight if they fit.
STEPS = (4, 5, 6, 7, 8, 3, 2)
STEPS_FROM_AFAR = (8, *(n for n in STEPS if n != 8))
FEWEST_BODIES = 8  # with so many steps that what they leave over of a loop is little
CLUSTER = 4  # neighbouring loads that LLVM keeps together: of two steps with three vectors, one of the second step's


@dataclass(frozen=True)
class Steps:
    """The reduction loops of one register tile."""

    group: Group
    plan: BlockPlan
    machine: Machine

    def in_body(
        self, schedule: Schedule, name: str, loops: Sequence[str], points: Sequence[str], tile: tuple[int, int]
    ) -> Schedule:
        """Several steps of the reduction in one body: a loop costs four instructions every time, of which a core whose
        other hardware thread is busy is short; with one step LLVM puts loads that operations share into each of them
        (docs/decisions/0041). All steps of a window where what they share stays in registers, else steps along the
        innermost loop that share nothing.
        """
        if not loops or schedule.program.statement[name].combiner is None or schedule.kind(loops[-1]) == "unroll":
            return schedule
        fixed = [n for n in loops if schedule.kind(n) == "unroll" or self._is_uneven(schedule, name, n)]
        free = [n for n in loops if n not in fixed and not self._slides(schedule, name, n)]
        body = tile[0] * tile[1]
        registers = self.machine.vector_registers
        if loops[-1] not in free and window_stays(*tile, self.trips(schedule, name, loops[-1]), registers):
            return schedule.unroll(loops[-1])
        if loops[-1] in free and max(self._lengths(schedule, name, loops[-1])) <= MOST_SHORT:
            return with_short_unrolled(schedule, self.group, name, free, body)
        wished = self._wished(schedule, name, tile)
        for loop in reversed(free):
            lengths = self._lengths(schedule, name, loop)
            steps = next((u for u in wished if not any(n % u for n in lengths)), 1)
            if steps == 1:
                continue
            rest, inner = [n for n in loops if n != loop], loop
            if steps < lengths[0]:
                schedule, inner = schedule.tile({loop: steps}), f"{loop}.p"
                rest = [f"{n}.o" if n == loop else n for n in loops]
            return ordered(schedule, name, [*rest, inner, *points]).unroll(inner)
        return with_short_unrolled(schedule, self.group, name, free, body)

    def _wished(self, schedule: Schedule, name: str, tile: tuple[int, int]) -> list[int]:
        """Numbers of steps that make one body of a register tile, the best first."""
        program, body = schedule.program, tile[0] * tile[1]
        most, registers = UNROLLED // body, self.machine.vector_registers
        full = CLUSTER % tile[1] > 0 and body + CLUSTER + 1 >= registers  # then two steps take sums to the stack
        far = any(from_afar(program, r.tensor, self.machine) for r in program.statement[name].reads)
        wished = [n for n in (STEPS_FROM_AFAR if far else STEPS) if n <= most and not (full and n == 2)]
        return wished if most >= STEPS[0] else []

    def with_rest(self, schedule: Schedule, name: str, tile: tuple[int, int]) -> tuple[Schedule, str]:
        """Several steps in a body though no number of them divides the innermost reduction loop: what is left over is
        laid out behind the loop. Not where that differs from block to block, nor where lanes or rows are asked for on
        their way. Also the name of the statement that has the loop.
        """
        s, nest = schedule.program.statement[name], schedule.nests[name]
        axes, wished = {*self.group.axes[s.source_name]}, self._wished(schedule, name, tile)
        loops, vector = [n for n in nest.names if nest.loops[n].names - axes], nest.names[-1]
        if not wished or not loops or schedule.kind(loops[-1]) != "serial" or schedule.marks[vector].ahead:
            return schedule, name
        length, *others = self._lengths(schedule, name, loops[-1])
        if others or length < FEWEST_BODIES * wished[0] or self._slides(schedule, name, loops[-1]):
            return schedule, name
        names = [piece_name(schedule, name, part) for part in ("lo", "hi")]
        schedule = schedule.split(loops[-1], length - length % wished[0])
        bodies, rest = (next(n for n in schedule.nests[m].names if n not in nest.names) for m in names)
        schedule = schedule.unroll(rest).tile({bodies: wished[0]}).unroll(f"{bodies}.p")
        return schedule, names[0]

    def trips(self, schedule: Schedule, name: str, loop: str) -> int:
        """Iterations of a reduction loop; 1 where they differ."""
        lengths = self._lengths(schedule, name, loop)
        return lengths[0] if len(set(lengths)) == 1 else 1

    def _lengths(self, schedule: Schedule, name: str, loop: str) -> tuple[int, ...]:
        """The numbers of iterations that a reduction loop has: two where its last block is shorter."""
        s = schedule.program.statement[name]
        extents = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        if self._is_uneven(schedule, name, loop):
            return (1,)
        for iterator, extent in extents.items():
            if iterator in schedule.nests[name].loops[loop].names:
                if self.plan.depth is None or self.plan.depth[0] != iterator:
                    return (extent,)
                size, rest = self.plan.depth[1], extent % self.plan.depth[1]
                return (size, rest) if rest else (size,)
        return (1,)

    def _is_uneven(self, schedule: Schedule, name: str, loop: str) -> bool:
        """Whether a reduction loop is shorter at the ends of a parallel one that is around the tiles."""
        s = schedule.source.statement[schedule.program.statement[name].source_name]
        axes, own = self.group.axes[s.name], schedule.nests[name].loops[loop].names
        uneven = uneven_axes(schedule.source, s, axes) or {}
        return any(inside & own for axis, inside in uneven.items() if axis != axes[self.plan.rows])

    def _slides(self, schedule: Schedule, name: str, loop: str) -> bool:
        """Whether neighbouring rows meet the same elements one after another along a loop: unrolled, they would be
        kept in registers that are needed for the tile.
        """
        s = schedule.program.statement[name]
        rows, own = self.group.axes[s.source_name][self.plan.rows], schedule.nests[name].loops[loop].names
        return any(isinstance(i, Affine) and rows in i.names and own & i.names for r in s.reads for i in r.index)
