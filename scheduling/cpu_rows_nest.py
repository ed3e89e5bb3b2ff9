"""Nests of groups of rows, composed of primitives as `poly.scheduling.cpu_rows` chooses.

The shared loops are fused over all statements; inside, statements over the same loops that hand each other elements in
place share a pass. Lanes go along a contiguous loop of the row; a reduction along it gets partial results (`rfactor`).
What lives inside a row is promoted: single values and partial results to registers, the rest to a buffer that fits the
nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.errors import ScheduleError
from poly.machine import Machine
from poly.scheduling.arrange import Place
from poly.scheduling.cpu_edits import fused, in_vectors, loop_of, pieces_of, unrolled
from poly.scheduling.cpu_nontemporal import written_past
from poly.scheduling.cpu_rows import Pass, RowPlan, crossing, in_results, moves_inside
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.schedule import Schedule


def schedule_rows(schedule: Schedule, group: Group, plan: RowPlan, machine: Machine, threads: int) -> Schedule:
    """Fuse, tile, promote and mark the statements of a group of rows."""
    return written_past(Rows(group, plan, machine).run(schedule), group, machine, threads)


class Rows:
    """The composition of one group of rows."""

    def __init__(self, group: Group, plan: RowPlan, machine: Machine, inside: bool = False) -> None:
        self.group, self.plan, self.machine, self.inside = group, plan, machine, inside
        self.depth = len(group.box or ()) + (inside or bool(plan.behind))
        self.high = int(plan.height > 1)  # loops over rows side by side, unrolled
        self.row = ""
        self.partial: list[str] = []  # tensors of partial results

    def run(self, schedule: Schedule) -> Schedule:
        order = [n for part in self.plan.passes for n in part.statements]
        for name in order:
            schedule = self._ordered(schedule, name)
        staggered = bool(self.plan.behind)
        schedule = self._staggered(schedule, order) if staggered else fused(schedule, order, range(self.depth))
        self.row = schedule.nests[order[0]].names[self.depth - 1]
        for part in self.plan.passes:
            if part.extents:
                schedule = self._pass(schedule, part)
            elif self.high:
                schedule = fused(schedule, part.statements, [self.depth])
        for s in schedule.program.statements:
            if s.source_name in self.plan.asked and not s.partial:
                ahead = self.plan.ahead + self.plan.behind.get(s.source_name, 0)  # of the first pass
                schedule = schedule.prefetch(schedule.nests[s.name].names[-1], self.row, ahead)
        return self._promoted(schedule)

    def _ordered(self, schedule: Schedule, name: str) -> Schedule:
        """The shared loops outside, rows side by side around the lanes."""
        rows = self._rows(schedule, name)
        inner = [loop_of(schedule, name, i) for i in self.plan.inner[name]]
        nest = schedule.nests[name].names
        inner = inner or [n for n in nest if n not in rows]
        schedule = schedule if nest == (*rows, *inner) else schedule.reorder(*rows, *inner)
        if self.plan.behind and not self.inside:
            schedule = schedule.tile({rows[-1]: self.plan.block})
            rows = [*rows[:-1], f"{rows[-1]}.o", f"{rows[-1]}.p"]
        if not self.high:
            return schedule
        outer, side = f"{rows[-1]}.o", f"{rows[-1]}.p"
        schedule = schedule.tile({rows[-1]: self.plan.height}).unroll(side)
        order = [outer, *inner[:-1], side, *inner[-1:]]
        return schedule.reorder(*order) if len(self.plan.inner[name]) > 1 else schedule

    def _staggered(self, schedule: Schedule, order: Sequence[str]) -> Schedule:
        """The loops around shared, each statement as many iterations over rows later as it is behind."""
        for tensor in self.plan.slots:
            schedule = self._in_slots(schedule, order, tensor)
        first, places = schedule.nests[order[0]], list[Place]()
        new = self.depth - 1 if self.inside else 0  # loops from here on are not shared yet
        prefix = first.path[: first.path.index(first.names[new])]
        for k, name in enumerate(order):
            nest = schedule.nests[name]
            values = [nest.loops[n] for n in nest.names]
            values[self.depth - 1] += self.plan.behind[name]
            inner = nest.names[self.depth :]
            names = (*first.names[: self.depth], *inner)
            path = (*prefix, *first.names[new : self.depth], k, *inner)
            places.append((name, path, tuple((n, str(v)) for n, v in zip(names, values, strict=True))))
        return schedule.arrange(places)

    def _in_slots(self, schedule: Schedule, order: Sequence[str], tensor: str) -> Schedule:
        """Rows of a tensor in the nearest cache, by turns: one is made while those before are used."""
        schedule = fused(schedule, order, range(self.depth))
        row, buffer = schedule.nests[order[0]].names[self.depth - 1], f"{tensor}_row"
        users = [s for s in self.group.statements if tensor in (*tensors_read(s), *tensors_written(s))]
        behind = [self.plan.behind[s.name] for s in users]
        schedule = schedule.promote(tensor, row, self._space(), name=buffer)
        return schedule.double_buffer(buffer, row, max(behind) - min(behind) + 1)

    def _rows(self, schedule: Schedule, name: str) -> list[str]:
        """The loops of a statement that all share, a row at last."""
        if self.inside:
            return list(schedule.nests[name].names[: self.depth])
        return [loop_of(schedule, name, i) for i in self.group.axes[name]]

    # ---- one pass over a row

    def _pass(self, schedule: Schedule, part: Pass) -> Schedule:
        step, extent = part.lanes * part.width, part.extents[-1]
        several = extent > step
        for name in part.statements if several else ():
            loop = schedule.nests[name].names[-1]
            side = schedule.nests[name].names[-1 - self.high : -1]
            schedule = schedule.tile({loop: step})
            schedule = schedule.reorder(f"{loop}.o", *side) if side else schedule
        shared = self.depth + len(part.extents) - 1 + several
        schedule = fused(schedule, part.statements, range(self.depth, shared))
        merges: list[str] = []
        for name in part.statements:
            s = schedule.program.statement[name]
            if s.combiner is not None and (extent > part.lanes or len(part.extents) > 1):
                merges.append(f"{s.write.tensor}_{name}_part")
                schedule = schedule.rfactor(name, schedule.nests[name].names[-1], at=self.row, name=merges[-1])
        pieces = [(part.statements, step if part.joined and extent >= step else part.lanes)]
        if several and extent % step:
            loop = schedule.nests[part.statements[0]].names[shared - 1]
            low, high = ([piece_name(schedule, n, piece) for n in part.statements] for piece in ("lo", "hi"))
            pieces = [(low, pieces[0][1]), (high, part.lanes)]
            schedule = schedule.split(loop, extent // step)
        for names, lanes in pieces:
            for together in self._abreast(schedule, names):
                schedule = self._vectors(schedule, together, lanes, min(step, extent), shared)
        for buffer in merges:
            schedule = self._merged(schedule, buffer, part.lanes, min(step, extent))
        return schedule

    def _abreast(self, schedule: Schedule, names: Sequence[str]) -> list[list[str]]:
        """Statements by how far they are behind: at the ends of a block each have iterations without the others."""
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(self.plan.behind.get(schedule.statement(name).source_name, 0), []).append(name)
        return list(found.values())

    def _vectors(self, schedule: Schedule, names: Sequence[str], vector: int, extent: int, depth: int) -> Schedule:
        """Rows and vectors side by side shared by the statements, then the lanes of each."""
        for name in names:
            schedule = self._side_by_side(schedule, name, vector, extent)
        schedule = fused(schedule, names, range(depth, depth + self.high + (extent > vector)))
        for name in names:
            schedule = schedule.vectorise(schedule.nests[name].names[-1])
        return schedule

    def _side_by_side(self, schedule: Schedule, name: str, vector: int, extent: int) -> Schedule:
        """The innermost loop of a statement as vectors, laid out, that are loops still."""
        loop = schedule.nests[name].names[-1]
        return schedule.tile({loop: vector}).unroll(f"{loop}.o") if extent > vector else schedule

    def _merged(self, schedule: Schedule, buffer: str, vector: int, extent: int) -> Schedule:
        """Partial results in vectors: added up by whole vectors first, then the lanes of one."""
        self.partial.append(buffer)
        clear, merge = f"clear_{buffer}", f"merge_{buffer}"
        for name in (clear, merge):
            schedule = unrolled(schedule, schedule.nests[name].names[self.depth : -1])
        schedule = in_vectors(schedule, schedule.nests[clear].names[-1], extent, vector)
        if extent <= vector:
            return schedule.vectorise(schedule.nests[merge].names[-1])
        schedule = self._side_by_side(schedule, merge, vector, extent)
        loop = schedule.nests[merge].names[-1]
        schedule = schedule.rfactor(merge, loop, at=self.row, name=f"{buffer}_1").vectorise(loop)
        return self._merged(schedule, f"{buffer}_1", vector, vector)

    # ---- what lives in a row

    def _promoted(self, schedule: Schedule) -> Schedule:
        registers = self.machine.register_space
        inside = set(pieces_of(schedule, self.group)) | {s.name for s in schedule.program.statements if s.partial}
        for tensor, place in in_results(schedule.source, self.group, self.plan).items():
            if tensor not in self.plan.slots:
                schedule = schedule.overlay(tensor, place)
        handed = crossing(self.group, self.plan)
        for tensor, users in self._users(schedule).items():
            buffer, at, space = f"{tensor}_row", self.row, self._space()
            single = not any(moves_inside(self.plan.inner, s, tensor) for s in self.group.statements)
            if tensor in handed:
                at = schedule.outer(self.row)[-2]
                space = space if single else self.machine.cache_space(1)
            elif single:
                space = registers
            if space == registers or (users <= inside and schedule.program.tensor[tensor].role == "temporary"):
                schedule = schedule.promote(tensor, at, space, name=buffer)
            if space == registers:
                for copy in {f"ld_{buffer}", f"st_{buffer}"} & schedule.nests.keys():
                    schedule = unrolled(schedule, schedule.nests[copy].names[self.depth :])
        for tensor in self.partial:  # last, so that they are allocated inside of the others
            schedule = schedule.promote(tensor, self.row, registers, name=f"{tensor}_r")
        return schedule

    def _users(self, schedule: Schedule) -> dict[str, set[str]]:
        """What the group makes, with all statements that touch it."""
        made = dict.fromkeys(s.write.tensor for s in self.group.statements if s.write.tensor in schedule.program.tensor)
        return {
            t: {s.name for s in schedule.program.statements if t in (*tensors_read(s), *tensors_written(s))}
            for t in made
        }

    def _space(self) -> str:
        """The nearest cache."""
        if not self.machine.caches:
            raise ScheduleError(f"{self.machine.name} has no cache")
        return self.machine.cache_space(0)
