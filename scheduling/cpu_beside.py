"""Policy for windows that slide beside the lanes: the contiguous axis of what is read stands still in the window.

Loops from the outside in: blocks of lanes [the rows that the window reads again in the nearest cache], outer, register
tiles of rows, vectors [the sums in registers], rows of the window, what is read along the tile, what is written there,
lanes. Nothing is copied: what lies outside is cut off as pieces of their own, in which every position is known when the
code is made. Constants of the window are laid along the lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from poly.affine import var
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_core import own_share
from poly.scheduling.cpu_edits import axis_last, cut, fused, outermost
from poly.scheduling.cpu_facts import axis_of, bytes_touched, own_capacity, reduction_extents, widest_element
from poly.scheduling.cpu_window import MOST_ROWS, Window
from poly.scheduling.cpu_window_nest import Windows
from poly.scheduling.cpu_window_shape import MOST_TAPS, beside, inside_of, row_axis, suits
from poly.scheduling.groups import Group, domain_box
from poly.scheduling.schedule import Schedule

AGAIN = 2  # times that a row is read, from which on it is kept near
PIECE = 4  # lines of a block of lanes at least: shorter pieces of memory cost more than the rows spare
SOONER = 0.8  # of the time of tiles along the last axis
SPARE = 3  # registers besides the sums and one row of the window's constants


@dataclass(frozen=True)
class Beside:
    """`window`: rows, lanes and the register tile; `cuts`: by parallel loop where it is cut, `edges`: how many of the
    pieces at its start and its end are laid out; `constants`: reads that are laid along the lanes, with that axis;
    `block`: lanes at a time outside of all other loops, 0 for all of them.
    """

    window: Window
    cuts: Mapping[int, tuple[int, ...]]
    edges: Mapping[int, tuple[bool, bool]]
    constants: tuple[tuple[str, int], ...]
    block: int = 0


def beside_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Beside | None:
    """The choices for a group whose reduction is such a window; None where it is none."""
    update = next((s for s in group.statements if s.combiner is not None), None)
    if update is None or group.box is None or not suits(group, update):
        return None
    lanes = group.axes[update.name].index(str(update.write.index[-1]))
    read = sliding_read(program, update)
    if read is None or read.index[-1:] != update.write.index[-1:]:
        return None
    return beside_along(program, group, update, lanes, machine, blocks=threads == 1, turned=False)


def beside_along(
    program: Program, group: Group, update: Statement, lanes: int, machine: Machine, *, blocks: bool, turned: bool
) -> Beside | None:
    """The choices with lanes along one of the parallel loops, whether what is read is contiguous there or not.
    `blocks`: lanes may go through blocks; not for several threads, as who shares a group along rows made what it reads
    along rows, too. `turned`: what is read is copied first, so that tiles may lie along any loop, and vectors need not
    have all of their lanes.
    """
    names, vector = group.axes[update.name], machine.lanes(widest_element(program, group.statements))
    read, constants = sliding_read(program, update), _constants(program, update, names[lanes])
    if read is None or group.box is None or axis_of(read, names[lanes]) is None:
        return None
    taps = reduction_extents(program, update, names)
    rest = 0 if turned else (group.box[lanes][1] + 1) % vector
    if constants is None or prod(taps.values()) > MOST_TAPS or rest:
        return None
    slides = _slides(program, update, read, names, taps)
    if not slides or lanes in slides:
        return None
    tiles = _register_tiles(program, group, read, names, taps, slides, machine.vector_registers, turned=turned)
    if tiles is None:
        return None
    (down, axis), index = slides[tiles.rows], read.affine_index[slides[tiles.rows][1]]
    window = Window(
        statement=update.name, tensor=read.tensor, rows=tiles.rows, lanes=lanes, down=down, sideways="",
        step_down=index.coefficient(names[tiles.rows]), step=1, spread=index.coefficient(down), reach=1, axis=axis,
        offset=index.constant, vector=vector, height=tiles.height, strip=group.box[tiles.rows][1] + 1, copied=False,
        kept=(), unrolled=False, cuts=(), lane_cuts=(), vector_cuts=(),
    )  # fmt: skip
    extents = [(a, d, taps[n]) for a, (n, d) in slides.items()]
    block = _block(program, group, window, read, extents, machine) if blocks else 0
    return Beside(window, tiles.cuts, tiles.edges, constants, block)


def _slides(
    program: Program, update: Statement, read: Access, names: Sequence[str], taps: Mapping[str, int]
) -> Mapping[int, tuple[str, int]]:
    """By parallel loop the one of the window beside it, with the read's axis; none where others are in the window."""
    box, found = domain_box(program, update, update.iterators), beside(read, names, taps)
    if box is None or any(low for low, _ in box) or found.keys() != taps.keys():
        return {}
    slides = {names.index(i): (n, row_axis(read, i)) for n, i in found.items()}
    return slides if len(slides) == len(taps) else {}


class _Tiles(NamedTuple):
    """The loop of a register tile, its height; `cuts`, `edges`: as in `Beside`."""

    rows: int
    height: int
    cuts: Mapping[int, tuple[int, ...]]
    edges: Mapping[int, tuple[bool, bool]]


def _register_tiles(
    program: Program,
    group: Group,
    read: Access,
    names: Sequence[str],
    taps: Mapping[str, int],
    slides: Mapping[int, tuple[str, int]],
    registers: int,
    *,
    turned: bool,
) -> _Tiles | None:
    """Register tiles along the tensor's last axis, or where what is read is turned along any that takes less time;
    None where windows are cut off in other tiles than the first and the last.
    """
    box = group.box or ()
    inside = {a: inside_of(program, read, names[a], n, d, taps[n]) for a, (n, d) in slides.items()}
    heights = {a: _height(box[a][1] + 1, taps[n], registers) for a, (n, _) in slides.items()}
    tiles = {a: _tiles(box[a][1] + 1, h, inside[a]) for a, h in heights.items()}
    last = max(slides, key=lambda a: slides[a][1])
    able = [a for a in slides if turned and tiles[a] is not None]
    idle = {a: -(-(box[a][1] + 1) // heights[a]) / (box[a][1] + 1) / (1 if a == last else SOONER) for a in able}
    rows = min(idle, key=lambda a: idle[a], default=last)
    if (cuts := tiles[rows]) is None:
        return None
    others = [a for a in slides if a != rows]
    edges = {a: (inside[a][0] > 0, inside[a][1] <= box[a][1]) for a in others}
    return _Tiles(rows, heights[rows], {**{a: _cuts(box[a][1] + 1, inside[a]) for a in others}, rows: cuts}, edges)


def sliding_read(program: Program, s: Statement) -> Access | None:
    """The one read that is of no constant, where every tensor is read once."""
    sliding = [r for r in s.reads if program.tensor[r.tensor].role != "constant"]
    if len(sliding) != 1 or sliding[0].indirect or len({r.tensor for r in s.reads}) < len(s.reads):
        return None
    return sliding[0]


def _constants(program: Program, s: Statement, lanes: str) -> tuple[tuple[str, int], ...] | None:
    """The constants with their axes along the lanes."""
    found: list[tuple[str, int]] = []
    for read in (r for r in s.reads if program.tensor[r.tensor].role == "constant"):
        axis = axis_of(read, lanes)
        if read.guard or axis is None or read.index[axis] != var(lanes):
            return None
        found.append((read.tensor, axis))
    return tuple(found)


def _block(
    program: Program,
    group: Group,
    window: Window,
    read: Access,
    slides: Sequence[tuple[int, int, int]],
    machine: Machine,
) -> int:
    """Lanes outside of all other loops at a time, so that rows come from the nearest cache all times but the first.

    0, which is all, where hardly a row is read again, and for what lies beyond a core's own caches, where longer
    pieces count more. `slides`: parallel loops, the axes of the read beside them, and the window's extents there.
    """
    w, box, names = window, group.box or (), group.axes[window.statement]
    steps = {a: read.affine_index[d].coefficient(names[a]) for a, d, _ in slides}
    again = any(taps >= AGAIN * steps[a] for a, _, taps in slides if a != w.rows)
    if not again or bytes_touched(program, group.statements) > own_capacity(machine):
        return 0
    shape = program.tensor[read.tensor].extents(program.binding)
    rows = prod(shape[d] if a == w.rows else taps for a, d, taps in slides)
    vectors = rows + box[w.rows][1] + 1 + prod(taps for *_, taps in slides)  # read, written, constants
    size, every = w.vector * widest_element(program, group.statements), (box[w.lanes][1] + 1) // w.vector
    least, most = PIECE * machine.line // size, own_share(machine.nearest_cache) // (vectors * size)
    return w.vector * max((b for b in range(max(1, least), min(most, every - 1) + 1) if every % b == 0), default=0)


def _height(extent: int, taps: int, registers: int) -> int:
    """Rows of a register tile: as many as fit beside a row of constants, all tiles of about one size."""
    most = max(1, min(MOST_ROWS, registers - SPARE - taps))
    return -(-extent // -(-extent // most))


def _cuts(extent: int, inside: tuple[int, int]) -> tuple[int, ...]:
    """Where a loop is cut, so that the window lies inside in the middle piece."""
    low, high = inside
    return tuple(sorted({c for c in (low, max(low, high)) if 0 < c < extent}))


def _tiles(extent: int, height: int, inside: tuple[int, int]) -> tuple[int, ...] | None:
    """Where rows are cut: the first and the last tile apart, in which alone the window may leave the tensor."""
    count = -(-extent // height)
    last = (count - 1) * height
    if inside[0] > height or inside[1] < last:
        return None
    return tuple(sorted({c for c in (height, last) if 0 < c < extent}))


# ---- composition


def schedule_beside(schedule: Schedule, group: Group, plan: Beside, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a window's group."""
    return keep_values(WindowsBeside(group, plan, machine, int(plan.block > 0)).run(schedule), group, machine)


class WindowsBeside(Windows):
    """The composition for one group."""

    def __init__(
        self, group: Group, plan: Beside, machine: Machine, blocks: int, along: int | None = None
    ) -> None:
        super().__init__(group, plan.window, machine, blocks, along)
        self.plan = plan

    def run(self, schedule: Schedule) -> Schedule:
        w, names = self.window, list(self.group.names)
        for tensor, axis in self.plan.constants:
            schedule = self._packed(schedule, tensor, axis_last(schedule, tensor, axis))
        schedule = self._ordered(schedule, names, (*self.outer, w.rows, w.lanes))
        if self.plan.block:
            for name in names:
                lanes = self._loop(schedule, name, w.lanes)
                schedule = schedule.tile({lanes: self.plan.block})
                schedule = outermost(schedule, name, [f"{lanes}.o"])
            schedule = fused(schedule, names, [0])
        return self._from(schedule, names, self.depth - len(self.outer))

    def _packed(
        self, schedule: Schedule, tensor: str, order: Sequence[int], block: Mapping[int, int] | None = None
    ) -> Schedule:
        buffer, users = f"{tensor}_{self.window.statement}_p", [self.window.statement]
        space = self.machine.cache_space(1)
        return schedule.promote(tensor, None, space, name=buffer, users=users, order=order, block=block)

    def _loop(self, schedule: Schedule, name: str, axis: int) -> str:
        """Of two loops over lanes the one inside of a block."""
        if axis != self.window.lanes:
            return super()._loop(schedule, name, axis)
        nest, lanes = schedule.nests[name], self.group.axes[schedule.program.statement[name].source_name][axis]
        return [n for n in nest.names if nest.loops[n].names == frozenset({lanes})][-1]

    def _from(self, schedule: Schedule, names: Sequence[str], depth: int) -> Schedule:
        """Pieces of the loops from a depth on; those at the edges laid out."""
        if depth == self.depth:
            rows = self.window.rows
            schedule, parts = cut(schedule, self.group, names, rows, self.plan.cuts.get(rows, ()))
            for part in parts:
                schedule = self._piece(schedule, part)
            return schedule
        axis = self.outer[depth - self.depth]
        schedule, parts = cut(schedule, self.group, names, axis, self.plan.cuts.get(axis, ()))
        for k, part in enumerate(parts):
            schedule = fused(schedule, part, [depth])
            loop = schedule.nests[part[0]].names[depth]  # keeps its name where those inside are cut
            schedule = self._from(schedule, part, depth + 1)
            first, last = self.plan.edges.get(axis, (False, False))
            if (first and k == 0) or (last and k == len(parts) - 1):
                schedule = schedule.unroll(loop)
        return schedule

    def _rolls(self, schedule: Schedule, name: str) -> bool:
        s, w = schedule.program.statement[name], self.window
        return s.source_name == w.statement and w.spread == 1
