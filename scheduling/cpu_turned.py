"""Policy for windows in narrow planes: lanes along an outer loop, as in `cpu_beside`, in blocks that are turned.

Where rows are narrower than vectors, or hardly a multiple of them, most lanes of a window that slides along them stand
still or see padding. With a vector of planes beside each other every lane is at work. Loops from the outside in: loops
that are no window's, blocks of lanes [what is read and written of a block in a core's own cache, along the lanes], then
as in `cpu_beside`. The copies turn squares in registers. Planes that fill no vector are a block of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from poly.affine import var
from poly.machine import Machine
from poly.program import Access, Program
from poly.scheduling.cpu_beside import Beside, WindowsBeside, beside_along, sliding_read
from poly.scheduling.cpu_chain import handed_on, keep_values
from poly.scheduling.cpu_core import own_share
from poly.scheduling.cpu_edits import (
    axis_last,
    cut,
    extent_of,
    fused,
    loops_of_copy,
    outermost,
    turned_square,
    users_of,
)
from poly.scheduling.cpu_facts import axis_of, reduction_extents, widest_element
from poly.scheduling.cpu_window import PICKED, Window, window_of
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOVED = (5, 7)  # operations for which a vector is loaded, turned and stored, by the cache that holds a block
PICKS = 1.5  # operations of a window with steps along the lanes for one without
COPIED = 3  # and where what it reads is copied


@dataclass(frozen=True)
class Turned:
    """`beside`: the choices for lanes along an outer loop; `tensors`: what goes through turned buffers, with its axis
    along the lanes; `target`: that of the sums; `whole`: where the lanes are cut behind whole vectors; `level`: the
    cache that holds a block, 0 for the nearest.
    """

    beside: Beside
    tensors: tuple[tuple[str, int], ...]
    target: int
    whole: tuple[int, ...] = ()
    level: int = 0


class _Plane(NamedTuple):
    """Of one lane: `places` where a window is summed up, elements that are turned (`moved`), read and written."""

    places: int
    moved: int


def turned_of(
    program: Program, group: Group, machine: Machine, threads: int = 1, share: float = 1.0
) -> Turned | None:
    """The choices for a group whose reduction is such a window; None where rows do as well, which do a `share` of the
    window's operations.
    """
    window = window_of(program, group, machine, threads)
    if window is None or group.box is None:
        return None
    update = program.statement[window.statement]
    for lanes in range(len(group.box)):
        tensors = _tensors(program, group, lanes)
        if lanes in (window.rows, window.lanes) or tensors is None:
            continue
        found = beside_along(program, group, update, lanes, machine, blocks=False, turned=True)
        read = sliding_read(program, update)
        loop = group.axes[update.name][lanes]
        axis, target = (None if a is None else axis_of(a, loop) for a in (read, update.write))
        if found is None or read is None or axis is None or target is None:
            continue
        plane = _plane(program, group, found, read)
        size = plane.moved * found.window.vector * widest_element(program, group.statements)
        level = next((n for n, near in enumerate(_near(machine)) if size <= own_share(near)), None)
        if level is None or not _pays(program, group, window, found, plane, MOVED[level], threads, share):
            continue
        extent, rest = group.box[lanes][1] + 1, (group.box[lanes][1] + 1) % found.window.vector
        whole = (extent - rest,) if 0 < rest < extent else ()
        return Turned(found, ((found.window.tensor, axis), *tensors), target, whole, level)
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


def _near(machine: Machine) -> list[int]:
    """Bytes of the caches that may hold a block."""
    return [machine.nearest_cache, *(m.capacity or 0 for m in machine.own_caches[1:])][: len(MOVED)]


def _plane(program: Program, group: Group, found: Beside, read: Access) -> _Plane:
    names = group.axes[found.window.statement]
    places = prod(high + 1 for a, (_, high) in enumerate(group.box or ()) if a in found.cuts)
    slides, shape = {names[a] for a in found.cuts}, program.tensor[read.tensor].extents(program.binding)
    return _Plane(places, places + prod(shape[d] for d, i in enumerate(read.affine_index) if slides & i.names))


def _pays(
    program: Program,
    group: Group,
    window: Window,
    found: Beside,
    plane: _Plane,
    moved: int,
    threads: int,
    share: float,
) -> bool:
    """Whether operations of whole vectors, and those for what is turned, are fewer than those along the rows."""
    update, vector = program.statement[window.statement], found.window.vector
    extents = [high + 1 for _, high in group.box or ()]
    lanes, width = extents[found.window.lanes], extents[window.lanes]
    items = prod(e for a, e in enumerate(extents) if a not in found.cuts and a != found.window.lanes)
    whole, rest = items * (lanes // vector), items * (lanes % vector > 0)
    taps = prod(reduction_extents(program, update, group.axes[update.name]).values())
    picks = COPIED if window.step > PICKED else PICKS if window.step == PICKED else 1
    along = plane.places // width * -(-width // vector) * taps * share * picks
    blocks = (-(-whole // threads) - (-rest // threads)) * threads
    across = (plane.places * taps + moved * plane.moved) * blocks / (items * lanes)
    return (whole or rest) >= threads and across < along


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
        w, names, depth = self.window, list(self.group.names), len(self.fixed)
        for tensor, axis in self.plan.constants:
            first = (axis, *axis_last(schedule, tensor, axis)[:-1])
            schedule = self._packed(schedule, tensor, first, {axis: w.vector})
        schedule = self._ordered(schedule, names, (*self.outer, w.rows, w.lanes))
        for name in names:
            loops = [self._loop(schedule, name, a) for a in (*self.fixed, w.lanes)]
            schedule = outermost(schedule, name, loops)
        schedule = fused(schedule, names, range(depth))
        schedule, parts = cut(schedule, self.group, names, w.lanes, self.turned.whole)
        for part in parts:
            schedule = self._part(schedule, part)
        return schedule

    def _part(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """Whole blocks of lanes, or those that are left over."""
        depth = len(self.fixed)
        for name in names:
            around, lanes = schedule.nests[name].names[:depth], schedule.nests[name].names[depth]
            schedule = schedule.tile({lanes: self.window.vector})
            inner = [self._loop(schedule, name, a) for a in (*self.outer[depth:], self.window.rows, self.window.lanes)]
            schedule = outermost(schedule, name, [*around, f"{lanes}.o", *inner])
        schedule = fused(schedule, names, [depth])
        for tensor, axis in self.turned.tensors:
            schedule = self._turn(schedule, names, tensor, axis)
        return self._from(schedule, names, depth + 1)

    def _turn(self, schedule: Schedule, names: Sequence[str], tensor: str, axis: int) -> Schedule:
        """A block of a tensor in a near cache, along the lanes."""
        at, order = schedule.nests[names[0]].names[len(self.fixed)], axis_last(schedule, tensor, axis)
        users = users_of(schedule, tensor, names)
        buffer = f"{tensor}_{users[-1]}_t"
        space = self.machine.cache_space(self.turned.level)
        schedule = schedule.promote(tensor, at, space, name=buffer, users=users, order=order)
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
