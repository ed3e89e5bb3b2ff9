"""Policy for windows in narrow planes: lanes along an outer loop, as in `cpu_beside`, in blocks that are turned.

Where rows are narrower than vectors, or hardly a multiple of them, most lanes of a window that slides along them stand
still or see padding. With a vector of planes beside each other every lane is at work. Loops from the outside in: loops
that are no window's, blocks of lanes [what is read and written of a block in the nearest cache, along the lanes], then
as in `cpu_beside`. The copies turn squares in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from poly.affine import var
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_beside import Beside, WindowsBeside, beside_along, sliding_read
from poly.scheduling.cpu_chain import handed_on, keep_values
from poly.scheduling.cpu_core import own_share
from poly.scheduling.cpu_edits import axis_last, extent_of, fused, loops_of_copy, outermost, turned_square, users_of
from poly.scheduling.cpu_facts import axis_of, reduction_extents, widest_element
from poly.scheduling.cpu_window import PICKED, Window, window_of
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOVED = 5  # operations for which a vector is loaded, turned and stored
PICKS = 1.5  # operations of a window with steps along the lanes for one without


@dataclass(frozen=True)
class Turned:
    """`beside`: the choices for lanes along an outer loop; `tensors`: what goes through turned buffers, with its axis
    along the lanes; `target`: that of the sums.
    """

    beside: Beside
    tensors: tuple[tuple[str, int], ...]
    target: int


def turned_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Turned | None:
    """The choices for a group whose reduction is such a window; None where rows do as well."""
    window = window_of(program, group, machine, threads)
    if window is None or group.box is None:
        return None
    update = program.statement[window.statement]
    for lanes in range(len(group.box)):
        tensors = _tensors(program, group, lanes)
        if lanes in (window.rows, window.lanes) or tensors is None:
            continue
        found = beside_along(program, group, update, lanes, machine, blocks=False)
        read = sliding_read(program, update)
        loop = group.axes[update.name][lanes]
        axis, target = (None if a is None else axis_of(a, loop) for a in (read, update.write))
        if found is None or axis is None or target is None:
            continue
        if _pays(program, group, window, found, machine, threads):
            return Turned(found, ((found.window.tensor, axis), *tensors), target)
    return None


def _tensors(program: Program, group: Group, lanes: int) -> tuple[tuple[str, int], ...] | None:
    """What a group writes for others, with its axis along a loop; None where statements have none, or something else
    than the window reads more than one element for a lane.
    """
    inside = {s.write.tensor for s in group.statements}
    own = handed_on(program, [s.name for s in group.statements])
    found: dict[str, int] = {}
    for s in group.statements:
        loop = group.axes[s.name][lanes]
        axis = axis_of(s.write, loop)
        others = [r for r in s.reads if s.combiner is None and r.tensor not in inside]
        if axis is None or s.write.index[axis] != var(loop) or any(r.index != (var(loop),) for r in others if r.index):
            return None
        if s.write.tensor not in own:
            found[s.write.tensor] = axis
    return tuple(found.items())


def _pays(program: Program, group: Group, window: Window, found: Beside, machine: Machine, threads: int) -> bool:
    """Whether operations of whole vectors, and those for what is turned, are fewer than those along the rows; and a
    block stays in the nearest cache.
    """
    update, box, vector = program.statement[window.statement], group.box or (), found.window.vector
    read, names = sliding_read(program, update), group.axes[window.statement]
    blocks = (box[found.window.lanes][1] + 1) // vector
    if read is None or blocks < threads or any(_rest(n, vector) for n in _widths(program, update)):
        return False
    places = [high + 1 for a, (_, high) in enumerate(box) if a in found.cuts]
    taps = prod(reduction_extents(program, update, names).values())
    shape = program.tensor[read.tensor].extents(program.binding)
    sliding = [shape[d] for d, i in enumerate(read.affine_index) if any(names[a] in i.names for a in found.cuts)]
    width = box[window.lanes][1] + 1
    moved = prod(sliding) + prod(places)
    along = prod(places) // width * -(-width // vector) * taps * (PICKS if window.step >= PICKED else 1)
    across = (prod(places) * taps + MOVED * moved) / vector * -(-blocks // threads) * threads / blocks
    near = moved * vector * widest_element(program, group.statements)
    return across < along and near <= own_share(machine.nearest_cache)


def _widths(program: Program, update: Statement) -> list[int]:
    """Contiguous elements of what is read and written."""
    accesses = [update.write, *(r for r in update.reads if program.tensor[r.tensor].role != "constant")]
    return [program.tensor[a.tensor].extents(program.binding)[-1] for a in accesses]


def _rest(extent: int, vector: int) -> int:
    return extent % _piece(extent, vector)


def _piece(extent: int, vector: int) -> int:
    """Elements of a row that are turned at once, at most a vector, all pieces alike where that is possible."""
    return -(-extent // -(-extent // vector))


# ---- composition


def schedule_turned(schedule: Schedule, group: Group, plan: Turned, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a window's group."""
    return keep_values(_Turning(group, plan, machine).run(schedule), group, machine)


class _Turning(WindowsBeside):
    def __init__(self, group: Group, plan: Turned, machine: Machine) -> None:
        super().__init__(group, plan.beside, machine, 1, plan.target)
        self.turned = plan
        self.fixed = [a for a in self.outer if a not in plan.beside.cuts]
        self.outer.sort(key=plan.beside.cuts.__contains__)  # the fixed ones, blocks of lanes, those of the window

    def run(self, schedule: Schedule) -> Schedule:
        w, names = self.window, list(self.group.names)
        for tensor, axis in self.plan.constants:
            first = (axis, *axis_last(schedule, tensor, axis)[:-1])
            schedule = self._packed(schedule, tensor, first, {axis: w.vector})
        schedule = self._ordered(schedule, names, (*self.outer, w.rows, w.lanes))
        for name in names:
            lanes, around = self._loop(schedule, name, w.lanes), [self._loop(schedule, name, a) for a in self.fixed]
            schedule = outermost(schedule.tile({lanes: w.vector}), name, [*around, f"{lanes}.o"])
        schedule = fused(schedule, names, range(len(self.fixed) + 1))
        for tensor, axis in self.turned.tensors:
            schedule = self._turn(schedule, names, tensor, axis)
        return self._from(schedule, names, len(self.fixed) + 1)

    def _turn(self, schedule: Schedule, names: Sequence[str], tensor: str, axis: int) -> Schedule:
        """A block of a tensor in the nearest cache, along the lanes."""
        at, order = schedule.nests[names[0]].names[len(self.fixed)], axis_last(schedule, tensor, axis)
        users = users_of(schedule, tensor, names)
        buffer = f"{tensor}_{self.window.statement}_t"
        schedule = schedule.promote(tensor, at, self.machine.cache_space(0), name=buffer, users=users, order=order)
        schedule = self._squares(schedule, f"ld_{buffer}", tensor, axis, tuple(range(len(order))))
        return self._squares(schedule, f"st_{buffer}", buffer, axis, order)

    def _squares(self, schedule: Schedule, copy: str, source: str, axis: int, order: tuple[int, ...]) -> Schedule:
        """A copy in squares of lanes and pieces of rows, which go to registers in the `order` of the source's axes and
        out across.
        """
        if copy not in schedule.nests:
            return schedule
        lanes, row = f"{copy}.{axis}", f"{copy}.{len(order) - 1}"
        extent = extent_of(schedule, copy.removeprefix("ld_").removeprefix("st_"), -1)
        schedule = schedule.tile({row: _piece(extent, self.window.vector)})
        across = [f"{row}.p", lanes] if order[-1] != axis else [lanes, f"{row}.p"]
        rest = [n for n in loops_of_copy(schedule, copy) if n not in (*across, f"{row}.o")]
        schedule = schedule.reorder(*rest, f"{row}.o", *across).unroll(across[0]).vectorise(across[1])
        space = self.machine.register_space
        return turned_square(schedule, copy, source, f"{row}.o", space, f"{copy}_q", order=order)
