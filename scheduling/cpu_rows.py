"""Policy for groups of rows: several statements below shared loops, one pass over a cache-resident row after another.

The shared loops are fused over all statements; inside, statements over the same loops that hand each other elements in
place share a pass. Lanes go along a contiguous loop of the row; a reduction along it gets partial results
(`rfactor`), as many vectors of them as hide the latency of an operation. What lives inside a row is promoted: single
values and partial results to registers, the rest to a buffer that fits the nearest cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.expr import Apply, walk
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_chain import parts_of
from poly.scheduling.cpu_facts import reduction_extents, stride
from poly.scheduling.cpu_plan import FMA_UNITS, LATENCY
from poly.scheduling.cpu_tile import loop_of
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.schedule import Schedule

FEWEST = 4  # iterations of a loop along which lanes pay
SIDE_BY_SIDE = 4  # vectors of an assignment in one iteration
LIGHT = frozenset({"add", "sub", "mul", "div", "max", "min", "neg", "abs", "select", "sqrt"})


@dataclass
class Pass:
    """Statements that share their loops inside a row: `inner` (iterators by statement, the lanes last).

    `width`: vectors side by side.
    """

    extents: tuple[int, ...]
    statements: list[str] = field(default_factory=list)
    width: int = 1


@dataclass(frozen=True)
class RowPlan:
    """`inner`: for every statement its loops inside the row, the lanes last; `vector`: elements of one vector."""

    passes: tuple[Pass, ...]
    inner: Mapping[str, tuple[str, ...]]
    vector: int


def row_plan(program: Program, group: Group, machine: Machine) -> RowPlan | None:
    """The choices for a group of rows; None where some statement has no contiguous loop inside the row."""
    inner: dict[str, tuple[str, ...]] = {}
    extents: dict[str, tuple[int, ...]] = {}
    for s in group.statements:
        known = reduction_extents(program, s, group.axes[s.name])
        lanes = _lanes(program, s, known)
        if known and lanes is None:
            return None
        inner[s.name] = (*(i for i in known if i != lanes), *([lanes] if lanes is not None else []))
        extents[s.name] = tuple(known[i] for i in inner[s.name])
    widest = max(size_bytes(program.tensor[a.tensor].dtype) for s in group.statements for a, _ in s.accesses)
    passes = _passes(group, inner, extents)
    vector = machine.lanes(widest)
    for part in passes:
        if part.extents:
            _set_width(program, part, vector)
    return RowPlan(tuple(passes), inner, vector)


def _lanes(program: Program, s: Statement, extents: Mapping[str, int]) -> str | None:
    """The loop of a row along which every access is contiguous or constant, and the write not constant unless it
    reduces.
    """
    rated: list[tuple[int, str]] = []
    for i, extent in extents.items():
        steps = [stride(a, program.tensor[a.tensor], i, program.binding) for a, _ in s.accesses]
        target = steps[-1] == 1 or (steps[-1] == 0 and s.combiner is not None)
        if target and set(steps) <= {0, 1} and 1 in steps and extent >= FEWEST:
            rated.append((extent, i))
    return max(rated)[1] if rated else None


def _passes(
    group: Group, inner: Mapping[str, tuple[str, ...]], extents: Mapping[str, tuple[int, ...]]
) -> list[Pass]:
    """Every statement in the first pass over its loops that comes after what it reads, or makes it in place."""
    passes: list[Pass] = []
    home: dict[str, int] = {}
    statements = {s.name: s for s in group.statements}
    for s in group.statements:
        first = 0
        for name, place in home.items():
            if statements[name].write.tensor in (*tensors_read(s), *tensors_written(s)):
                together = not extents[s.name] or _in_place(group, statements[name], s, inner)
                first = max(first, place + (not (together and extents[s.name] == extents[name])))
        found = [k for k in range(first, len(passes)) if passes[k].extents == extents[s.name]]
        if not found:
            passes.append(Pass(extents[s.name]))
        home[s.name] = found[0] if found else len(passes) - 1
        passes[home[s.name]].statements.append(s.name)
    return passes


def _in_place(group: Group, maker: Statement, user: Statement, inner: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a statement reads what another one makes at the element that the same iteration makes."""
    if maker.combiner is not None:
        return False

    def by_loops(s: Statement, index: Sequence[Affine]) -> list[Affine]:
        names = (*group.axes[s.name], *inner[s.name])
        return [i.substitute({n: var(f"loop{k}") for k, n in enumerate(names)}) for i in index]

    made = by_loops(maker, maker.write.affine_index)
    return all(by_loops(user, r.affine_index) == made for r in user.reads if r.tensor == maker.write.tensor)


def _set_width(program: Program, part: Pass, vector: int) -> None:
    statements = [program.statement[n] for n in part.statements]
    heavy = any(isinstance(e, Apply) and e.operator not in LIGHT for s in statements for e in walk(s.body))
    reductions = sum(s.combiner is not None for s in statements)
    most = FMA_UNITS * LATENCY // reductions if reductions else SIDE_BY_SIDE
    part.width = max(1, min(1 if heavy else most, part.extents[-1] // vector))


def schedule_rows(schedule: Schedule, group: Group, plan: RowPlan, machine: Machine) -> Schedule:
    """Fuse, tile, promote and mark the statements of a group of rows."""
    return _Rows(group, plan, machine).run(schedule)


class _Rows:
    def __init__(self, group: Group, plan: RowPlan, machine: Machine) -> None:
        self.group, self.plan, self.machine = group, plan, machine
        self.depth = len(group.box or ())
        self.partial: list[str] = []  # tensors of partial results

    def run(self, schedule: Schedule) -> Schedule:
        order = [n for part in self.plan.passes for n in part.statements]
        for name in order:
            schedule = self._ordered(schedule, name)
        for k in range(self.depth):
            for name in order[1:]:
                schedule = schedule.fuse(schedule.nests[order[0]].names[k], schedule.nests[name].names[k])
        row = schedule.nests[order[0]].names[self.depth - 1]
        for part in self.plan.passes:
            if part.extents:
                schedule = self._pass(schedule, part)
        return self._promoted(schedule, row)

    def _ordered(self, schedule: Schedule, name: str) -> Schedule:
        """The shared loops outside, the lanes inside."""
        wanted = [loop_of(schedule, name, i) for i in (*self.group.axes[name], *self.plan.inner[name])]
        return schedule if tuple(wanted) == schedule.nests[name].names else schedule.reorder(*wanted)

    # ---- one pass over a row

    def _pass(self, schedule: Schedule, part: Pass) -> Schedule:
        step, extent = self.plan.vector * part.width, part.extents[-1]
        several = extent > step
        if several:
            for name in part.statements:
                schedule = schedule.tile({schedule.nests[name].names[-1]: step})
        shared = self.depth + len(part.extents) - 1 + several
        schedule = self._fused(schedule, part.statements, range(self.depth, shared))
        merges: list[str] = []
        for name in part.statements:
            s = schedule.program.statement[name]
            if s.combiner is not None and (extent > self.plan.vector or len(part.extents) > 1):
                merges.append(f"{s.write.tensor}_{name}_part")
                schedule = schedule.rfactor(name, schedule.nests[name].names[-1], name=merges[-1])
        pieces = [part.statements]
        if several and extent % step:
            loop = schedule.nests[part.statements[0]].names[shared - 1]
            schedule, pieces = self._split(schedule, part.statements, loop, extent // step)
        for names in pieces:
            schedule = self._vectors(schedule, names, min(step, extent), shared)
        for buffer in merges:
            schedule = self._merged(schedule, buffer, min(step, extent))
        return schedule

    def _fused(self, schedule: Schedule, names: Sequence[str], depths: Sequence[int]) -> Schedule:
        for k in depths:
            for name in names[1:]:
                schedule = schedule.fuse(schedule.nests[names[0]].names[k], schedule.nests[name].names[k])
        return schedule

    def _split(
        self, schedule: Schedule, names: Sequence[str], loop: str, at: int
    ) -> tuple[Schedule, list[list[str]]]:
        """The whole tiles, and what is left over."""
        before = schedule.program.statement.keys()
        schedule = schedule.split(loop, at)
        new = [s for s in schedule.program.statements if s.name not in before]
        origins = {n: self._origin(schedule, n) for n in names}
        lower = [s.name for n in names for s in new if s.origin == origins[n] and "_lo" in s.name]
        upper = [s.name for n in names for s in new if s.origin == origins[n] and "_hi" in s.name]
        return schedule, [lower, upper]

    def _origin(self, schedule: Schedule, name: str) -> str:
        s = schedule.program.statement.get(name)
        return (s.origin or s.name) if s is not None else name

    def _vectors(self, schedule: Schedule, names: Sequence[str], extent: int, depth: int) -> Schedule:
        """Vectors side by side shared by the statements, then the lanes of each."""
        if extent > self.plan.vector:
            for name in names:
                loop = schedule.nests[name].names[-1]
                schedule = schedule.tile({loop: self.plan.vector}).unroll(f"{loop}.o")
            schedule = self._fused(schedule, names, [depth])
        for name in names:
            schedule = schedule.vectorise(schedule.nests[name].names[-1])
        return schedule

    def _merged(self, schedule: Schedule, buffer: str, extent: int) -> Schedule:
        """Partial results in vectors: added up by whole vectors first, then the lanes of one."""
        self.partial.append(buffer)
        schedule = self._by_vectors(schedule, f"clear_{buffer}", extent)
        merge = f"merge_{buffer}"
        loop = schedule.nests[merge].names[-1]
        if extent > self.plan.vector:
            schedule = schedule.tile({loop: self.plan.vector}).unroll(f"{loop}.o")
            last = f"{buffer}_1"
            schedule = schedule.rfactor(merge, f"{loop}.p", name=last)
            schedule = schedule.vectorise(f"{loop}.p")
            schedule = self._by_vectors(schedule, f"clear_{last}", self.plan.vector)
            self.partial.append(last)
            merge = f"merge_{last}"
        return schedule.vectorise(schedule.nests[merge].names[-1])

    def _by_vectors(self, schedule: Schedule, name: str, extent: int) -> Schedule:
        loop = schedule.nests[name].names[-1]
        if extent > self.plan.vector:
            schedule = schedule.tile({loop: self.plan.vector}).unroll(f"{loop}.o")
            loop = f"{loop}.p"
        return schedule.vectorise(loop)

    # ---- what lives in a row

    def _promoted(self, schedule: Schedule, row: str) -> Schedule:
        assert self.machine.registers is not None
        registers = self.machine.registers.name
        inside = set(parts_of(schedule, self.group)) | {s.name for s in schedule.program.statements if s.partial}
        for tensor, users in self._users(schedule).items():
            single = not any(self._moves(s, tensor) for s in self.group.statements)
            if single:
                schedule = schedule.promote(tensor, row, registers, name=f"{tensor}_row")
            elif users <= inside and schedule.program.tensor[tensor].role == "temporary":
                schedule = schedule.promote(tensor, row, self._space(), name=f"{tensor}_row")
        for tensor in self.partial:  # last, so that they are allocated inside of the others
            schedule = schedule.promote(tensor, row, registers, name=f"{tensor}_r")
        return schedule

    def _users(self, schedule: Schedule) -> dict[str, set[str]]:
        """What the group makes, with all statements that touch it."""
        made = dict.fromkeys(s.write.tensor for s in self.group.statements)
        return {
            t: {s.name for s in schedule.program.statements if t in (*tensors_read(s), *tensors_written(s))}
            for t in made
        }

    def _moves(self, s: Statement, tensor: str) -> bool:
        """Whether a statement touches different elements of a tensor inside a row."""
        inner = set(self.plan.inner[s.name])
        return any(i.names & inner for a, _ in s.accesses if a.tensor == tensor for i in a.affine_index)

    def _space(self) -> str:
        """The nearest cache."""
        caches = [(m.capacity or 0, m.name) for m in self.machine.memories if m.kind == "cache"]
        if not caches:
            raise ScheduleError(f"{self.machine.name} has no cache")
        return min(caches)[1]
