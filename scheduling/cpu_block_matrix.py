"""Register tiles of a blocked contraction in the tiles of a core's matrix unit.

A whole piece of rows and lanes has its sums in tiles, and for each step of the unit the two operands: commands of the
unit fill, multiply and store them. What starts the sums otherwise than from zero, and what uses them, meets them in
memory. Pieces that are left over have vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.expr import Const
from poly.machine import Machine
from poly.program import Access, Statement
from poly.scheduling.cpu_edits import extent_of, in_vectors, loops_of_copy, only_read, ordered, unrolled
from poly.scheduling.cpu_facts import axis_of
from poly.scheduling.cpu_plan import BlockPlan, Piece, Strip
from poly.scheduling.edits import free_buffer_name
from poly.scheduling.groups import Group
from poly.scheduling.inlining import maker_of, suits_copies
from poly.scheduling.schedule import Schedule


def made_in_copies(schedule: Schedule, plan: BlockPlan) -> Schedule:
    """A contraction's copies that join elements themselves, where they pack what only joins them."""
    packed = {p.tensor for p in plan.packs}
    for copy in [s.name for s in schedule.program.statements if s.copies and s.reads[0].tensor in packed]:
        maker = maker_of(schedule, copy)
        if maker is not None and suits_copies(schedule.program, maker):
            schedule = schedule.inline(copy)
    return schedule


@dataclass(frozen=True)
class MatrixTiles:
    """What a plan gives to the matrix unit."""

    group: Group
    plan: BlockPlan
    machine: Machine

    def suits(self, strip: Strip, piece: Piece) -> bool:
        """Whether a piece is tiles of the unit: whole ones, or one of fewer rows or columns."""
        unit, vector, lanes = self.plan.matrix, self.plan.vector, strip.high - strip.low
        if unit is None:
            return False
        across = lanes % (vector * strip.width) == 0 or 1 < lanes < vector
        return across and (piece.tile % unit.rows == 0 or 1 < piece.tile < unit.rows)

    def in_commands(
        self, schedule: Schedule, name: str, inner: Sequence[str], points: tuple[str, str], tile: tuple[int, int]
    ) -> Schedule:
        """The loops inside of a register tile of rows and vectors: those over tiles of the unit laid out, one command
        inside. What only meets the sums in memory has vectors, row after row.
        """
        s, unit = schedule.program.statement[name], self.plan.matrix
        assert unit is not None
        rows, lanes = points
        outside, chain = list[str](), [rows, lanes]
        for k, (loop, size, count) in enumerate(
            ((rows, unit.rows, tile[0] // unit.rows), (lanes, self.plan.vector, tile[1]))
        ):
            if count > 1:
                schedule = schedule.tile({loop: size})
                outside, chain[k] = [*outside, f"{loop}.o"], f"{loop}.p"
        if s.combiner is None and not self._is_clearing(s):
            over = [n for n in outside if n == f"{lanes}.o"]
            order = [n for n in outside if n not in over] + [chain[0], *over, chain[1]]
            return unrolled(ordered(schedule, name, order), over).vectorise(chain[1])
        inner = list(inner)
        if s.combiner is not None:
            steps = [n for n in inner if unit.iterator in schedule.nests[name].loops[n].names][-1]
            if self._length(schedule, name, steps) > unit.steps:
                schedule = schedule.tile({steps: unit.steps})
                inner[inner.index(steps) : inner.index(steps) + 1] = [f"{steps}.o"]
                steps = f"{steps}.p"
            else:
                inner.remove(steps)
            chain.insert(1, steps)
        schedule = ordered(schedule, name, [*inner, *outside, *chain])
        return unrolled(schedule, outside).tensorise(chain, unit.engine)

    def in_tiles(self, schedule: Schedule, names: Sequence[str], update: str, anchor: str) -> Schedule:
        """The sums of an iteration of a loop in tiles, and the operands of each step."""
        s = schedule.program.statement[update]
        inside = [n for n in names if n == update or self._is_clearing(schedule.program.statement[n])]
        if any(r.tensor == s.write.tensor for n in names for r in self._reads(schedule, n)):  # in memory for these
            buffer = free_buffer_name(schedule, f"{s.write.tensor}_{update}_m")
            schedule = schedule.promote(s.write.tensor, anchor, self.machine.cache_space(0), name=buffer)
            schedule = self._in_vectors(schedule, buffer)
        rows, lanes = (self._axis(schedule, update, -1, a) for a in (self.plan.rows, self.plan.lanes))
        schedule = self._promoted(schedule, update, -1, anchor, (rows, lanes), inside)
        loops = schedule.nests[update].names
        at = loops[next(k for k, n in enumerate(loops) if schedule.kind(n) in ("unit", "unroll")) - 1]
        for k, read in enumerate(s.reads):
            iterators = self.group.axes[s.source_name]
            first, unit = axis_of(read, iterators[self.plan.rows]), self.plan.matrix
            assert unit is not None
            step = axis_of(read, unit.iterator)
            assert step is not None
            if first is not None:
                axes = (first, step)
            else:
                last = axis_of(read, iterators[self.plan.lanes])
                assert last is not None
                axes = (step, last)
            schedule = self._promoted(schedule, update, k, at, axes, [update])
            if unit.passing and first is None:
                copy = f"ld_{schedule.program.statement[update].reads[k].tensor}"
                schedule = schedule.nontemporal(schedule.nests[copy].names[-1])
        return schedule

    def _promoted(
        self, schedule: Schedule, update: str, k: int, at: str, axes: tuple[int, int], users: Sequence[str]
    ) -> Schedule:
        """What an access (-1: the write) touches in tiles, rows and columns along two axes."""
        s, unit = schedule.program.statement[update], self.plan.matrix
        assert unit is not None
        tensor = s.write.tensor if k < 0 else s.reads[k].tensor
        buffer = free_buffer_name(schedule, f"{tensor}_{update}_t")
        rank = schedule.program.tensor[tensor].rank
        order = (*(d for d in range(rank) if d not in axes), *axes)
        space = self.machine.engine[unit.engine].writes[0]
        reads = None if k < 0 else only_read(s, k)
        schedule = schedule.promote(tensor, at, space, name=buffer, users=users, order=order, reads=reads)
        for copy in (c for c in (f"ld_{buffer}", f"st_{buffer}") if c in schedule.nests):
            own = loops_of_copy(schedule, copy)
            outside, chain = list[str](), list[str]()
            for d, size in zip(axes, (unit.rows, self.plan.vector), strict=True):
                loop = f"{copy}.{d}"
                if extent_of(schedule, buffer, d) > size:
                    schedule = schedule.tile({loop: size})
                    outside, loop = [*outside, f"{loop}.o"], f"{loop}.p"
                chain.append(loop)
            rest = [n for n in own if n not in (f"{copy}.{axes[0]}", f"{copy}.{axes[1]}")]
            schedule = ordered(schedule, copy, [*rest, *outside, *chain])
            schedule = unrolled(schedule, outside).tensorise(chain, unit.engine)
        return schedule

    def _in_vectors(self, schedule: Schedule, buffer: str) -> Schedule:
        """The copies of sums in memory, in vectors, row after row."""
        for copy in (c for c in (f"ld_{buffer}", f"st_{buffer}") if c in schedule.nests):
            loop = loops_of_copy(schedule, copy)[-1]
            extent = extent_of(schedule, buffer, int(loop.rpartition(".")[2]))
            schedule = in_vectors(schedule, loop, extent, self.plan.vector)
        return schedule

    def _axis(self, schedule: Schedule, name: str, k: int, axis: int) -> int:
        s = schedule.program.statement[name]
        found = axis_of(s.write if k < 0 else s.reads[k], self.group.axes[s.source_name][axis])
        assert found is not None
        return found

    def _reads(self, schedule: Schedule, name: str) -> tuple[Access, ...]:
        return schedule.program.statement[name].reads

    def _is_clearing(self, s: Statement) -> bool:
        """Whether a statement only starts sums from zero."""
        return s.body == Const(0) and s.combiner is None and not s.reads

    def _length(self, schedule: Schedule, name: str, loop: str) -> int:
        """Iterations of a reduction's loop, the longest of its blocks."""
        unit = self.plan.matrix
        assert unit is not None
        blocked = schedule.nests[name].loops[loop] != Affine.of(unit.iterator)
        return self.plan.depth[1] if self.plan.depth is not None and blocked else unit.length
