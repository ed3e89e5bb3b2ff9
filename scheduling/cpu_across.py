"""Policy for groups of short rows: lanes across rows, where a row would leave many of a vector's lanes empty.

As many rows as a vector has lanes are a block. Below the loop over blocks each pass over a row (`poly.scheduling
.cpu_rows`) is a loop over its columns, the lanes inside: a reduction is lane by lane, in its own order, and values of a
row are one vector in a register. What lies row by row in memory comes and goes by buffers with one vector a column;
squares of it are turned in registers on the way (`poly.codegen.transpose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.expr import OPERATORS, Apply, walk
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import Core, core_of
from poly.scheduling.cpu_edits import (
    axis_last,
    fused,
    in_vectors,
    loop_of,
    ordered,
    turned_square,
    unrolled,
    users_of,
    whole_blocks,
)
from poly.scheduling.cpu_facts import (
    FEWEST_LANES,
    OPERATIONS,
    axis_of,
    reduction_extents,
    step_along,
    widest_element,
)
from poly.scheduling.cpu_rows import Pass, passes_of
from poly.scheduling.edits import free_buffer_name, piece_name
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.schedule import Schedule

EXTREMUM = 3  # operations of a maximum


@dataclass(frozen=True)
class AcrossPlan:
    """`inner`: for every statement its loops inside the row; `turned`: the tensors that lie row by row, with the axis
    of the rows; `rows`, `columns`: of the group; `vector`: rows of a block.
    """

    passes: tuple[Pass, ...]
    inner: Mapping[str, tuple[str, ...]]
    turned: Mapping[str, int]
    rows: int
    columns: int
    vector: int


def across_of(program: Program, group: Group, machine: Machine, _threads: int = 1) -> AcrossPlan | None:
    """The choices for a group of rows of one length, where blocks of them take fewer cycles than rows.

    However few the blocks: where threads have none, rows are few and short, and all take less time than to meet.
    """
    if not group.box or machine.registers is None or not group.axes:
        return None
    vector = min(machine.lanes(widest_element(program, group.statements)), machine.vector_registers // 2)
    rows = group.box[-1][1] - group.box[-1][0] + 1
    if group.box[-1][0] or vector < 2 or rows < vector:
        return None
    known = {s.name: reduction_extents(program, s, group.axes[s.name]) for s in group.statements}
    inner = {s.name: tuple(known[s.name]) for s in group.statements}
    extents = {name: tuple(n for n in found.values() if n > 1) for name, found in known.items()}
    lengths = {e for e in extents.values() if e}
    turned = _turned(program, group, inner)
    if len(lengths) != 1 or len(next(iter(lengths))) != 1 or not turned:
        return None
    columns = next(iter(lengths))[0]
    if not group.parts and columns < FEWEST_LANES:
        return None  # as well in steps of a row
    inner = {name: own if extents[name] else () for name, own in inner.items()}
    plan = AcrossPlan(tuple(passes_of(group, inner, extents)), inner, turned, rows, columns, vector)
    values = len({s.write.tensor for s in group.statements} - turned.keys())
    fits = vector + values <= machine.vector_registers
    core = core_of(machine, widest_element(program, group.statements))
    return plan if fits and _pays(program, group, plan, core) else None


def _turned(program: Program, group: Group, inner: Mapping[str, Sequence[str]]) -> Mapping[str, int] | None:
    """The tensors that are not contiguous from row to row, with the axis of the rows; None where one's rows are not
    contiguous either, or several rows of the group read the same one.
    """
    found: dict[str, int | None] = {}
    for s in group.statements:
        row = group.axes[s.name][-1]
        for access, _ in s.accesses:
            if access.guard or access.indirect:
                return None
            step = step_along(program, access, row)
            axis = None if step in (0, 1) else _row_axis(program, access, row, inner[s.name])
            if axis is None and step not in (0, 1):
                return None
            if axis is not None and not {*group.axes[s.name]} <= names_of(access):
                return None  # turned again for other rows
            if found.setdefault(access.tensor, axis) != axis:
                return None
    return {t: axis for t, axis in found.items() if axis is not None}


def _row_axis(program: Program, access: Access, row: str, inner: Sequence[str]) -> int | None:
    """The subscript of the rows where the last one is that of the columns, and both go one by one."""
    axis, last = axis_of(access, row), access.index[-1]
    moving = [i for i in inner if any(isinstance(x, Affine) and i in x.names for x in access.index)]
    if axis is None or axis == len(access.index) - 1 or len(moving) != 1 or not isinstance(last, Affine):
        return None
    subscript = access.affine_index[axis]
    whole = step_along(program, access, moving[0]) == 1
    return axis if whole and last.names == frozenset({moving[0]}) and subscript.coefficient(row) == 1 else None


def _pays(program: Program, group: Group, plan: AcrossPlan, core: Core) -> bool:
    """Cycles of a block by columns and squares against those of its rows one by one."""
    moved = [t for t in plan.turned if _outside(program, group, t)]
    turning = _shuffles(plan.columns, plan.vector) * len(moved)
    inside = [s for s in group.statements if plan.inner[s.name]]
    column = sum(_operations(s) for s in inside) / core.issue
    ends = core.reduce * sum(s.combiner is not None for s in inside)
    along = -(-plan.columns // plan.vector) * column + ends
    blocks = -(-plan.rows // plan.vector)
    return blocks * (plan.columns * column + turning) < plan.rows * along


def _shuffles(columns: int, vector: int) -> int:
    """To turn so many columns: each round of a square takes pairs of vectors, of which only few are asked for last."""
    whole, rest = divmod(columns, vector)
    rounds = vector.bit_length() - 1
    return whole * vector * rounds + sum(min(vector, rest << k) for k in range(rounds))


def _operations(s: Statement) -> int:
    """Of an element: loads, stores, what is computed; an extremum keeps NaN."""
    used = [e.operator for e in walk(s.body) if isinstance(e, Apply)]
    combined = 0 if s.combiner is None else EXTREMUM if s.combiner.symbol in ("max", "min") else 1
    return combined + len(s.accesses) + sum(OPERATIONS[OPERATORS[o].cost] for o in used)


def _outside(program: Program, group: Group, tensor: str) -> bool:
    """Whether a tensor is more than a temporary of the group."""
    if program.tensor[tensor].role != "temporary":
        return True
    users = {s.name for s in program.statements if tensor in (*tensors_read(s), *tensors_written(s))}
    return not users <= {*group.names}


def schedule_across(schedule: Schedule, group: Group, plan: AcrossPlan, machine: Machine) -> Schedule:
    """Tile, fuse, promote and mark the statements of a group of short rows."""
    return _Across(group, plan, machine).run(schedule)


@dataclass(frozen=True)
class _Across:
    """The composition of one group."""

    group: Group
    plan: AcrossPlan
    machine: Machine

    @property
    def depth(self) -> int:
        """Loops that all statements share, the blocks last."""
        return len(self.group.box or ())

    def run(self, schedule: Schedule) -> Schedule:
        order = [n for part in self.plan.passes for n in part.statements]
        for name in order:
            rows = [loop_of(schedule, name, i) for i in self.group.axes[name]]
            inner = [n for n in schedule.nests[name].names if n not in rows]
            schedule = ordered(schedule, name, [*rows, *inner]).tile({rows[-1]: self.plan.vector})
            schedule = ordered(schedule, name, [*rows[:-1], f"{rows[-1]}.o", *inner, f"{rows[-1]}.p"])
        schedule = fused(schedule, order, range(self.depth))
        for part in self.plan.passes:
            if part.extents:
                schedule = fused(schedule, part.statements, [self.depth])
        blocks, rest = divmod(self.plan.rows, self.plan.vector)
        pieces = [order]
        if rest:
            pieces = [[piece_name(schedule, n, piece) for n in order] for piece in ("lo", "hi")]
            schedule = schedule.split(schedule.nests[order[0]].names[self.depth - 1], blocks)
        for names in pieces:
            schedule = self._block(schedule, names)
        return schedule

    def _block(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """The statements of whole blocks, or of the last few rows."""
        at = schedule.nests[names[0]].names[self.depth - 1]
        for name in names:
            *inner, lanes = schedule.nests[name].names[self.depth :]
            laid_out = [n for n in inner if schedule.kind(n) == "serial"]  # a pass shares its loop
            schedule = unrolled(schedule, laid_out).vectorise(lanes)
        touched = [t for n in names for a, _ in schedule.program.statement[n].accesses for t in [a.tensor]]
        made = {schedule.program.statement[n].write.tensor for n in names}
        for tensor in dict.fromkeys(touched):
            if tensor in self.plan.turned:
                schedule = self._columns(schedule, tensor, names, at)
            elif tensor in made:
                schedule = self._value(schedule, tensor, names, at)
        return schedule

    def _value(self, schedule: Schedule, tensor: str, names: Sequence[str], at: str) -> Schedule:
        """One value of each row, in registers."""
        buffer = free_buffer_name(schedule, f"{tensor}_row")
        users = users_of(schedule, tensor, names)
        schedule = schedule.promote(tensor, at, self.machine.register_space, name=buffer, users=users)
        for copy in {f"ld_{buffer}", f"st_{buffer}"} & schedule.nests.keys():
            schedule = schedule.vectorise(schedule.nests[copy].names[-1])
        return schedule

    # ---- columns

    def _columns(self, schedule: Schedule, tensor: str, names: Sequence[str], at: str) -> Schedule:
        """A block of a tensor column by column, with squares turned where it comes and where it goes."""
        buffer, rows = free_buffer_name(schedule, f"{tensor}_t"), self.plan.turned[tensor]
        users, order = users_of(schedule, tensor, names), axis_last(schedule, tensor, rows)
        schedule = schedule.promote(tensor, at, self.machine.cache_space(0), name=buffer, users=users, order=order)
        for copy, source in ((f"ld_{buffer}", tensor), (f"st_{buffer}", buffer)):
            if copy in schedule.nests:
                schedule = self._turned(schedule, copy, source, rows, at)
        return schedule

    def _turned(self, schedule: Schedule, copy: str, source: str, rows: int, at: str) -> Schedule:
        """A copy in squares: whole vectors of one side in registers, read across by the lanes of the other."""
        columns = schedule.program.tensor[source].rank - 1
        incoming = copy.startswith("ld_")
        row, column = f"{copy}.{rows}", f"{copy}.{columns}"
        if row not in schedule.nests[copy].names:  # a block of one row
            return in_vectors(schedule, column, self.plan.columns, self.plan.vector)
        schedule = ordered(schedule, copy, [column, row])
        schedule, parts = whole_blocks(
            schedule, copy, len(schedule.nests[copy].names) - 2, self.plan.columns, self.plan.vector
        )
        for part, width in parts:
            *_, column, row = schedule.nests[part].names
            anchor = at
            if self.plan.columns > width and width == self.plan.vector:
                schedule = schedule.tile({column: width})
                anchor, column = f"{column}.o", f"{column}.p"
            beside, lanes = (column, row) if incoming else (row, column)
            schedule = ordered(schedule, part, [beside, lanes]).unroll(beside).vectorise(lanes)
            square = free_buffer_name(schedule, f"{source}_square")
            order, space = axis_last(schedule, source, columns if incoming else rows), self.machine.register_space
            schedule = turned_square(schedule, part, source, anchor, space, square, order=order)
        return schedule
