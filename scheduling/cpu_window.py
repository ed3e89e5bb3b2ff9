"""Policy for windows: reductions over a small neighbourhood in which no operand is used again along rows and lanes but
the window itself (depthwise convolutions, pooling, filters).

From access maps and domains only. Loops from the outside in: outer, strips of rows [what a strip reads, with its
padding, in the first cache level; the other operands in registers], rows of register tiles, vectors [the sums in
registers], columns of the window, rows read, rows written, lanes. A row of the input is loaded once and used for all
the rows of the tile that its window reaches. Windows that leave the tensor read it where it is: the vectors that see
padding at their ends are pieces of their own, the others load without masks (whole rows of padding cost an address).
Where pieces would be too many what a strip reads is copied, and for windows with larger steps than two, which want
every n-th element together; every second one is picked from two loads that the window's columns share. Where vectors
are as wide as lines, loads in all columns but one would cross from one line to the next: there a row is loaded once,
and its columns are taken from these registers. Of windows with many columns and rows one column is summed up after the
other: all rows that a tile reads there in registers, every element of the window for all rows of the tile at once, so
that as many sums are on their way as there are rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import interval_of, intervals_of
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_core import core_of, own_share
from poly.scheduling.cpu_edits import (
    FEW_VECTORS,
    axis_last,
    cut,
    extent_of,
    fused,
    in_vectors,
    loop_of,
    loop_of_axis,
    loops_of_copy,
    outermost,
    unrolled,
)
from poly.scheduling.cpu_facts import bytes_apart, bytes_touched, own_capacity, widest_element
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

MOST_TAPS = 64  # points of a window
MOST_ROWS = 8  # of a register tile
COPIED_VECTORS = 16  # in a row of the copy: beyond, only its ends are told apart
ROLLED = 48  # operations of a register tile where a row read serves all rows written at once; FEW_ROWS may have more
FEW_ROWS = 5  # rows whose sums are on their way at once
COPIES = 40  # vectors of a copy that may be laid out
LONG = 2048  # bytes from a tile to the next, half a page: those within one the prefetchers find
PAIR = 2  # rows of a tile where lanes are picked from two loads, and PICKED_BODY would be passed by taller ones
PICKED_BODY = 100  # operations: 72 had 24 copies of vectors, 144 had 112, as loads were moved ahead (decision 0057)
BODY = 300  # operations of all register tiles that are laid out, or pieces of their own
BODY_BY_COLUMNS = 700  # where every load serves several
PICKED = 2  # step of a window whose lanes two whole loads and a shuffle give where they lie
SPARE = 2  # registers besides sums and kept operands
KEPT_BESIDE = 6  # registers that have to be left where operands are kept


@dataclass(frozen=True)
class Window:
    """`rows`, `lanes`: positions among the group's parallel loops; `down`, `sideways`: the reduction iterators beside
    them in the windowed read (`down` may be none), `step_down`, `step`: the strides of the window there, `spread`: its
    dilation along rows, `reach`: the rows it covers; `axis`: of the tensor's rows, `offset`: of the first one read.
    `height`: rows of a register tile, `strip`: of what is copied at a time. `copied`: the read goes through a buffer.
    `kept`: operands that stay in registers. `unrolled`: register tiles are laid out in full. `cuts`, `lane_cuts`: where
    rows and lanes are cut into pieces of their own, `vector_cuts`: where the loop over the vectors of a piece is.
    `shifted`: the columns are taken from a row in registers; `by_columns`: one is done for all rows before the next.
    `asks_ahead`: what is copied, or read by long tiles or faster than it comes, is from beyond a core's own caches, so
    that it is asked for a strip, or a tile, ahead.
    """

    statement: str
    tensor: str
    rows: int
    lanes: int
    down: str
    sideways: str
    step_down: int
    step: int
    spread: int
    reach: int
    axis: int
    offset: int
    vector: int
    height: int
    strip: int
    copied: bool
    kept: tuple[str, ...]
    unrolled: bool
    cuts: tuple[int, ...]
    lane_cuts: tuple[int, ...]
    vector_cuts: tuple[int, ...]
    asks_ahead: bool = False
    shifted: bool = False
    by_columns: bool = False


@dataclass(frozen=True)
class _Shape:
    """What the access maps say, named as in `Window`. `taps`: extents of the reduction iterators by name; `row`: the
    tensor's axis along rows; `height`, `width`: iterations of rows and lanes; `along`: the iterator of the lanes.
    """

    read: Access
    rows: int
    lanes: int
    down: str
    sideways: str
    taps: Mapping[str, int]
    others: tuple[Access, ...]
    row: int
    step: int
    step_down: int
    spread: int
    height: int
    width: int
    along: str


class _Way(NamedTuple):
    """How a tile sums, named as in `Window`."""

    vector: int
    kept: tuple[str, ...]
    shifted: bool
    by_columns: bool


class _Heights(NamedTuple):
    """Rows of a register tile, of all whole ones, and of a strip; `small`: tiles are laid out in full; `edges`: where
    the vectors of a row are cut; `ragged`: its last lanes are a piece of their own.
    """

    tile: int
    whole: int
    strip: int
    small: bool
    copied: bool
    edges: tuple[int, ...]
    ragged: bool


def window_of(program: Program, group: Group, machine: Machine, _threads: int = 1) -> Window | None:
    """The choices for a group whose reduction is a window; None where it is none."""
    update = next((s for s in group.statements if s.combiner is not None), None)
    if update is None or group.box is None or not suits(group, update):
        return None
    elements = machine.lanes(widest_element(program, group.statements))  # of a whole vector
    shape = _shape(program, group, update)
    if shape is None or elements < 2:
        return None
    vector = min(elements, 1 << max(0, shape.width - 1).bit_length())
    by_columns = _is_by_columns(shape, machine.vector_registers)
    shifted = not by_columns and _is_shifted(program, shape, vector, machine)
    kept = () if by_columns else _kept(shape, machine.vector_registers, shifted)
    way = _Way(vector, kept, shifted, by_columns)
    found = _heights(program, shape, way, machine)
    rows = group.axes[update.name][shape.rows]
    long = found.tile * (bytes_apart(program, shape.read, rows) or 0) >= LONG
    asking = found.copied or long or (shifted and _comes_slowly(program, shape, vector, machine))
    return Window(
        statement=update.name, tensor=shape.read.tensor, rows=shape.rows, lanes=shape.lanes, down=shape.down,
        sideways=shape.sideways, step_down=shape.step_down, step=shape.step, spread=shape.spread,
        reach=shape.spread * (shape.taps.get(shape.down, 1) - 1) + 1, axis=shape.row,
        offset=shape.read.affine_index[shape.row].constant, vector=vector, height=found.tile, strip=found.strip,
        copied=found.copied, kept=kept, unrolled=found.small,
        cuts=(found.whole,) if found.whole < shape.height else (), vector_cuts=found.edges,
        lane_cuts=(shape.width // vector * vector,) if found.ragged else (),
        asks_ahead=asking and bytes_touched(program, group.statements) > own_capacity(machine),
        shifted=shifted and not found.copied, by_columns=by_columns,
    )  # fmt: skip


def _heights(program: Program, shape: _Shape, way: _Way, machine: Machine) -> _Heights:
    """Rows of register tiles and strips, and what is copied: a tile's height depends on what is laid out and shuffled,
    that on its bodies, and they on the height; where a copy takes the shuffles away it is chosen again.
    """
    most = MOST_ROWS if way.by_columns else _most_rows(shape, machine.vector_registers, bool(way.kept))
    most, taps, vectors = min(shape.height, most), prod(shape.taps.values()), -(-shape.width // way.vector)
    body = BODY_BY_COLUMNS if way.by_columns else BODY
    laid_out = -(-shape.height // most) * vectors * most * taps * (2 if shape.step == PICKED else 1)
    small = laid_out <= body  # loads count, too
    tile, whole = _tiles(shape.height, most, small)
    long_body = way.by_columns and vectors > 1 and vectors * tile * taps > body
    ragged = shape.width % way.vector > 0 and (vectors > FEW_VECTORS or long_body)
    edges = () if small else _edges(program, shape, way.vector)
    bodies = len(edges) + 1 if shape.width % way.vector == 0 or ragged else vectors
    if way.shifted and not small:
        tile, whole = _tiles(shape.height, _shuffled_rows(shape.height, tile, shape.step, bodies * taps), small)
    if not _is_copied(shape, small or bodies * tile * taps <= body):
        return _Heights(tile, whole, shape.height, small, False, edges, ragged)
    fitting = _fitting(program, shape, machine)
    small = small and fitting >= shape.height
    tile, whole = _tiles(shape.height, most, small)
    strips = [n for n in range(tile, whole + 1, tile) if whole % n == 0 and n <= fitting]
    strip = shape.height if fitting >= shape.height else max(strips, default=tile)
    return _Heights(tile, whole, strip, small, True, (), ragged)


def _most_rows(shape: _Shape, registers: int, kept: bool) -> int:
    """Rows of a register tile: their sums fit beside what is loaded for one, and where a row read serves all of them
    the body stays short.
    """
    taps = prod(shape.taps.values())
    loaded = shape.taps[shape.sideways] if shape.step == PICKED else 1
    room = registers - max(SPARE, loaded) - (taps if kept else 1)
    rolling = kept or not shape.others
    return max(1, min(room, max(FEW_ROWS, ROLLED // taps) if rolling else MOST_ROWS, MOST_ROWS))


def _kept(shape: _Shape, registers: int, shifted: bool) -> tuple[str, ...]:
    """Operands beside the window that stay in registers; where a row read serves several rows anyway, only if that
    leaves room for the sums of a few.
    """
    left = registers - prod(shape.taps.values())
    few = not shifted or shape.step < PICKED or left - shape.taps[shape.sideways] >= FEW_ROWS
    return tuple(dict.fromkeys(a.tensor for a in shape.others)) if left >= KEPT_BESIDE and few else ()


def _is_by_columns(shape: _Shape, registers: int) -> bool:
    """Whether a column of the window is done for all rows before the next one: where a tile in which a row read serves
    all rows written at once would be low, or wait for its sums, and registers hold what many rows read.
    """
    if not shape.others or not shape.down or len(shape.taps) > 2 or shape.spread > 1 or shape.step > 1:
        return False
    read = shape.step_down * (MOST_ROWS - 1) + shape.taps[shape.down]
    return FEW_ROWS * prod(shape.taps.values()) > ROLLED and MOST_ROWS + read + SPARE <= registers


def _is_shifted(program: Program, shape: _Shape, vector: int, machine: Machine) -> bool:
    """Whether a row read is loaded once for all columns: vectors are lines, and few hold all that it takes."""
    size = size_bytes(program.tensor[shape.read.tensor].dtype)
    reach = shape.read.affine_index[-1].coefficient(shape.sideways) * (shape.taps[shape.sideways] - 1)
    rolls = bool(shape.down) and shape.spread == 1
    wide = machine.lanes(1) >= machine.line and shape.step * vector * size >= machine.line
    return wide and rolls and shape.step <= PICKED and 0 < reach <= vector


def _comes_slowly(program: Program, shape: _Shape, vector: int, machine: Machine) -> bool:
    """Whether what a vector of results reads takes longer from behind a core's own caches than its multiply-adds."""
    size = size_bytes(program.tensor[shape.read.tensor].dtype)
    core = core_of(machine, size)
    cycles = shape.step_down * shape.step * vector * size / core.caches[:2][-1].rate
    return cycles * core.fma_units > prod(shape.taps.values())


def _tiles(height: int, most: int, small: bool) -> tuple[int, int]:
    """Rows of a register tile, and of all whole ones: of a small window the last tile may be lower."""
    tile = -(-height // -(-height // most)) if small else _divisor(height, most)
    return tile, height if small else height // tile * tile


def _shuffled_rows(height: int, tile: int, step: int, operations: int) -> int:
    """Rows of a register tile whose columns are shuffled. With step 1 the more, the fewer shuffles for each, as long as
    all bodies, with so many operations for each row, stay short; where lanes are picked, two of a long body.
    """
    if step == PICKED:
        return tile if tile * operations <= PICKED_BODY else min(tile, PAIR)
    even = [n for n in range(tile, MOST_ROWS + 1) if height % n == 0 and n * operations <= BODY]
    return max(even, default=tile)


def _is_copied(shape: _Shape, short: bool) -> bool:
    """Whether what a strip reads goes through a buffer: elements too far apart, or padding where the pieces that see it
    are too many to be laid out (not `short`).
    """
    columns = shape.taps[shape.sideways]
    if shape.step > PICKED and columns > shape.step:
        return True
    rows = shape.taps.get(shape.down, 1)
    flat = prod(shape.taps.values()) == rows * columns  # no window along other axes, whose padding would not be apart
    return bool(shape.read.guard) and not (flat and short)


def _fitting(program: Program, shape: _Shape, machine: Machine) -> int:
    """Rows of a strip that reads no more than stays in the first cache, at least one."""
    columns = (shape.step * (shape.width - 1) + shape.taps[shape.sideways]) * _planes(shape)
    lines = own_share(machine.nearest_cache) // (columns * size_bytes(program.tensor[shape.read.tensor].dtype))
    return max(1, (lines - shape.spread * (shape.taps.get(shape.down, 1) - 1)) // shape.step_down)


def _edges(program: Program, shape: _Shape, vector: int) -> tuple[int, ...]:
    """Where the vectors of a row are cut, so that the window leaves the row in the first and the last piece alone."""
    if not shape.read.guard:
        return ()
    last = len(shape.read.index) - 1
    low, high = inside_of(program, shape.read, shape.along, shape.sideways, last, shape.taps[shape.sideways])
    return tuple(sorted(c for c in {-(-low // vector), high // vector} if c > 0))


def inside_of(program: Program, read: Access, loop: str, tap: str, axis: int, taps: int) -> tuple[int, int]:
    """The positions of a loop, first and end, at which the whole window lies in the tensor."""
    index = read.affine_index[axis]
    step, reach = index.coefficient(loop), (index.coefficient(tap) if tap else 0) * (taps - 1)
    extent = int(program.tensor[read.tensor].shape[axis].evaluate(program.binding))
    return max(0, -(index.constant // step)), (extent - 1 - reach - index.constant) // step + 1


def _divisor(extent: int, most: int) -> int:
    """The largest tile that divides an extent, or the most rows where none does."""
    best = max(t for t in range(1, most + 1) if extent % t == 0)
    return best if best > 1 else most


def _planes(shape: _Shape) -> int:
    """Rows that a window reads at once along other axes than the rows' own."""
    planes = 1
    for axis, subscript in enumerate(shape.read.index[:-1]):
        if axis != shape.row and isinstance(subscript, Affine):
            planes *= prod(shape.taps[n] for n in subscript.names if n in shape.taps)
    return planes


def row_axis(access: Access, iterator: str) -> int:
    return next(d for d, i in enumerate(access.index) if isinstance(i, Affine) and iterator in i.names)


def suits(group: Group, update: Statement) -> bool:
    """Whether loops start at 0, and every statement writes its parallel loops as they are, lanes last."""
    assert group.box is not None
    axes = group.axes[update.name]
    if len(axes) < 2 or any(low != 0 for low, _ in group.box):
        return False
    places = [i for i in update.write.index if isinstance(i, Affine) and i.names]
    if {str(i) for i in places} != set(axes) or update.write.indirect:
        return False
    last = update.write.index[-1]
    if not isinstance(last, Affine) or last != var(str(last)):
        return False
    lanes = axes.index(str(last))
    return all(s.write.index[-1] == var(group.axes[s.name][lanes]) for s in group.statements)


def _shape(program: Program, group: Group, update: Statement) -> _Shape | None:
    """Every reduction iterator stands beside one parallel loop in one subscript of the windowed read; the other reads
    stand still along rows and lanes.
    """
    axes, box = group.axes[update.name], group.box or ()
    lanes = axes.index(str(update.write.index[-1]))
    moving = [a for a in update.reads if any(isinstance(i, Affine) and axes[lanes] in i.names for i in a.index)]
    if len(moving) != 1 or moving[0].indirect or [a.tensor for a in update.reads].count(moving[0].tensor) != 1:
        return None
    read, every = moving[0], _extents(program, update, axes)
    placed = beside(read, axes, every or {})
    taps = {n: e for n, e in (every or {}).items() if e > 1 or n in placed}
    used = {n for i in read.affine_index for n in i.names}
    again = any(high > 0 and a not in used for a, (_, high) in zip(axes, box, strict=True))
    if every is None or again or prod(taps.values()) > MOST_TAPS or placed.keys() != taps.keys():
        return None
    sideways = next((n for n, a in placed.items() if a == axes[lanes] and n in read.affine_index[-1].names), "")
    rows, down = max(((axes.index(a), n) for n, a in placed.items() if n != sideways), default=(-1, ""))
    if not sideways or rows < 0 or box[rows][1] < 1:
        return None
    others = tuple(a for a in update.reads if a is not read)
    still = {axes[lanes], axes[rows]}
    if any(a.guard or any(not isinstance(i, Affine) or i.names & still for i in a.index) for a in others):
        return None
    row = row_axis(read, axes[rows])
    along, last = read.affine_index[row], read.affine_index[-1]
    return _Shape(
        read, rows, lanes, down, sideways, taps, others, row, step=last.coefficient(axes[lanes]),
        step_down=along.coefficient(axes[rows]), spread=along.coefficient(down) if down else 1,
        height=box[rows][1] + 1, width=box[lanes][1] + 1, along=axes[lanes],
    )  # fmt: skip


def beside(read: Access, axes: Sequence[str], taps: Mapping[str, int]) -> dict[str, str]:
    """The parallel loop beside each reduction iterator, in subscripts of the form a*loop + b*iterator + c, a, b > 0."""
    found: dict[str, str] = {}
    for subscript in read.affine_index:
        inner, outer = subscript.names & taps.keys(), subscript.names & set(axes)
        if len(inner) == 1 and len(outer) == 1 and subscript.is_linear and len(subscript.names) == 2:
            if all(subscript.coefficient(n) > 0 for n in subscript.names):
                found[next(iter(inner))] = next(iter(outer))
    return found


def _extents(program: Program, s: Statement, axes: Sequence[str]) -> dict[str, int] | None:
    """Extents of the reduction iterators where all start at 0."""
    found: dict[str, int] = {}
    for name, values in intervals_of(program, s).items():
        if name not in axes:
            if values is None or values[0] != 0:
                return None
            found[name] = values[1] + 1
    return found


# ---- composition


def schedule_window(schedule: Schedule, group: Group, window: Window, machine: Machine) -> Schedule:
    """Fuse, split, tile, promote and mark the statements of a window's group."""
    return keep_values(Windows(group, window, machine).run(schedule), group, machine)


class Windows:
    """The composition for one group."""

    def __init__(
        self, group: Group, window: Window, machine: Machine, blocks: int = 0, along: int | None = None
    ) -> None:
        """`blocks`: loops over blocks of lanes; `along`: the target's axis along the lanes (None: its last)."""
        self.group, self.window, self.machine, self.along = group, window, machine, along
        axes = group.axes[window.statement]
        self.outer = [a for a in range(len(axes)) if a not in (window.rows, window.lanes)]
        self.depth = len(self.outer) + blocks  # of loops around those of a piece

    def run(self, schedule: Schedule) -> Schedule:
        w, names = self.window, list(self.group.names)
        schedule = self._ordered(schedule, names, (*self.outer, w.lanes, w.rows))
        schedule = fused(schedule, names, range(len(self.outer)))
        schedule, parts = cut(schedule, self.group, names, w.lanes, w.lane_cuts)
        for part in parts:
            schedule = self._ordered(schedule, part, (*self.outer, w.rows, w.lanes))
            schedule, pieces = cut(schedule, self.group, part, w.rows, w.cuts)
            for piece in pieces:
                schedule = self._piece(schedule, piece)
        return schedule

    def _ordered(self, schedule: Schedule, names: Sequence[str], axes: Sequence[int]) -> Schedule:
        """Parallel loops in an order, then the others."""
        for name in names:
            schedule = outermost(schedule, name, [self._loop(schedule, name, a) for a in axes])
        return schedule

    def _loop(self, schedule: Schedule, name: str, axis: int) -> str:
        return loop_of_axis(schedule, self.group, name, axis)

    def _range(self, schedule: Schedule, name: str, axis: int) -> tuple[int, int]:
        """First and last value of a parallel loop's iterator in one piece of a statement."""
        s = schedule.program.statement[name]
        found = interval_of(schedule.program, s, self.group.axes[s.source_name][axis])
        assert found is not None  # a group's parallel loops are a box
        return found

    def _piece(self, schedule: Schedule, names: Sequence[str]) -> Schedule:
        """Strips, register tiles and lanes of one piece; promotions from the outside in."""
        w, depth = self.window, self.depth
        low, high = self._range(schedule, names[0], w.rows)
        height, strip = min(w.height, high - low + 1), min(w.strip, high - low + 1)
        if strip % height and not w.unrolled:
            strip = height
        first, last = self._range(schedule, names[0], w.lanes)
        vectors = -(-(last - first + 1) // w.vector)
        laid_out = w.unrolled or (last - first + 1) % w.vector != 0
        for name in names:
            schedule = self._tiled(schedule, name, (low, strip, height), first, laid_out and vectors > 1)
        schedule = fused(schedule, names, range(depth, depth + 3))
        around = schedule.nests[names[0]].names
        update = next(n for n in names if schedule.program.statement[n].source_name == w.statement)
        if w.copied:
            schedule = self._copied(schedule, update, around[depth], (low, high, strip))
        for tensor in w.kept:
            schedule = self._kept(schedule, tensor, update, around[depth])
        schedule, parts = self._vectors_apart(schedule, names, depth + 2, 0 if laid_out else vectors)
        for part in parts:
            schedule = self._targets(schedule, part, schedule.nests[part[0]].names[depth + 2])
            update = next(n for n in part if schedule.program.statement[n].source_name == w.statement)
            tiles, vectors = around[depth + 1], schedule.nests[update].names[-1]
            if w.shifted:
                schedule, vectors = self._shifted(schedule, update)
            if w.by_columns:
                schedule, vectors = self._column(schedule, update)
            if w.asks_ahead and not w.copied and schedule.kind(tiles) == "serial":
                schedule = schedule.prefetch(vectors, tiles)
        return schedule

    def _vectors_apart(
        self, schedule: Schedule, names: Sequence[str], depth: int, vectors: int
    ) -> tuple[Schedule, list[list[str]]]:
        """The loop over vectors that statements share at a depth, cut where the window meets an edge."""
        parts = [list(names)]
        for place in self.window.vector_cuts:
            if place < vectors:
                lower, upper = ([piece_name(schedule, n, piece) for n in parts[-1]] for piece in ("lo", "hi"))
                schedule = schedule.split(schedule.nests[parts[-1][0]].names[depth], place)
                parts[-1:] = [lower, upper]
        return schedule, parts

    def _tiled(
        self, schedule: Schedule, name: str, rows: tuple[int, int, int], first: int, laid_out: bool
    ) -> Schedule:
        """Loops: strips, register tiles of rows, vectors, [columns of the window], rows, lanes."""
        w, (low, strip, height) = self.window, rows
        down, lanes = self._loop(schedule, name, w.rows), self._loop(schedule, name, w.lanes)
        for loop, start, size in ((down, low, strip), (lanes, first, w.vector)):
            if start % size:
                schedule = schedule.shift(name, loop, -start)
        schedule = schedule.tile({down: strip}).tile({f"{down}.p": height}).tile({lanes: w.vector})
        row = f"{down}.p.p"
        order = [f"{down}.o", f"{down}.p.o", f"{lanes}.o"]
        rest = [n for n in schedule.nests[name].names[self.depth :] if n not in (*order, row, f"{lanes}.p")]
        schedule = schedule.reorder(*order, *self._inner(schedule, name, rest, row), f"{lanes}.p")
        schedule = unrolled(schedule, (*rest, row))
        if laid_out:
            schedule = schedule.unroll(f"{lanes}.o")
        if w.unrolled:
            schedule = schedule.unroll(f"{down}.p.o")
        schedule = self._by_rows(schedule, name, rest, row)
        return schedule.vectorise(f"{lanes}.p")

    def _inner(self, schedule: Schedule, name: str, reductions: Sequence[str], row: str) -> list[str]:
        """The window's columns, the tile's rows, the window's rows; with operands that do not stay, rows last."""
        if self.window.by_columns and reductions:
            columns = loop_of(schedule, name, self.window.sideways)
            return [columns, *(n for n in reductions if n != columns), row]
        if not self._rolls(schedule, name):
            return [*reductions, row]
        down = loop_of(schedule, name, self.window.down)
        return [*(n for n in reductions if n != down), row, down]

    def _rolls(self, schedule: Schedule, name: str) -> bool:
        """Whether one row read is used for all rows that it reaches before the next is read."""
        s, w = schedule.program.statement[name], self.window
        alone = bool(w.kept) or len(s.reads) < 2 or w.shifted
        return s.source_name == w.statement and bool(w.down) and w.spread == 1 and alone and not w.by_columns

    def _by_rows(self, schedule: Schedule, name: str, reductions: Sequence[str], row: str) -> Schedule:
        """Count the window's rows as rows of the input, and go through these first."""
        if not self._rolls(schedule, name):
            return schedule
        down = loop_of(schedule, name, self.window.down)
        band = [n for n in reductions if n != down]
        schedule = schedule.skew(down, row, self.window.step_down)
        if self.window.shifted:
            columns = loop_of(schedule, name, self.window.sideways)
            return schedule.reorder(down, *(n for n in band if n != columns), columns, row)
        if self.window.step > 1 and not self.window.copied:  # the columns share what a row loads
            *band, down = [down, *band]
        return schedule.reorder(*band, down, row) if band else schedule.reorder(down, row)

    def _shifted(self, schedule: Schedule, update: str) -> tuple[Schedule, str]:
        """A row of what is read in registers; the loop over its lanes, or of the update where it reads none."""
        w, around, buffer = self.window, schedule.nests[update].names, f"{self.window.tensor}_{update}_s"
        at = around[around.index(loop_of(schedule, update, w.sideways)) - 1]
        schedule = schedule.promote(w.tensor, at, self.machine.register_space, name=buffer, users=[update], pad=True)
        if f"ld_{buffer}" not in schedule.nests:
            return schedule, around[-1]
        *others, lane = loops_of_copy(schedule, f"ld_{buffer}")
        schedule = unrolled(schedule, others)
        whole = w.vector * w.step
        if extent_of(schedule, buffer, -1) > whole:
            schedule = schedule.split(lane, whole).vectorise(f"{lane}.hi")
            lane = f"{lane}.lo"
        if w.step > 1:
            schedule = schedule.tile({lane: w.vector}).unroll(f"{lane}.o")
            lane = f"{lane}.p"
        return schedule.vectorise(lane), lane

    def _column(self, schedule: Schedule, update: str) -> tuple[Schedule, str]:
        """The rows of one column in registers; the loop over their lanes, or of the update where it reads none."""
        w, buffer = self.window, f"{self.window.tensor}_{update}_s"
        at, tensors = loop_of(schedule, update, w.sideways), schedule.program.tensor
        read = [r.tensor for r in schedule.program.statement[update].reads]
        found = [t for t in read if w.tensor in (t, tensors[t].origin)]
        if not found:
            return schedule, schedule.nests[update].names[-1]
        schedule = schedule.promote(
            found[0], at, self.machine.register_space, name=buffer, users=[update], pad=True
        )
        if f"ld_{buffer}" not in schedule.nests:
            return schedule, schedule.nests[update].names[-1]
        *rows, lane = loops_of_copy(schedule, f"ld_{buffer}")
        return unrolled(schedule, rows).vectorise(lane), lane

    def _copied(self, schedule: Schedule, update: str, at: str, rows: tuple[int, int, int]) -> Schedule:
        """What a strip reads, with its padding, in the first cache level, in vectors."""
        w = self.window
        space, buffer = self.machine.cache_space(0), f"{w.tensor}_{update}_w"
        rank = schedule.program.tensor[w.tensor].rank
        fold = {rank - 1: w.step} if w.step > 1 else None
        schedule = schedule.promote(w.tensor, at, space, name=buffer, users=[update], pad=True, fold=fold)
        if f"ld_{buffer}" not in schedule.nests:  # only padding is read, so that there is nothing to copy
            return schedule
        shape = [int(e.evaluate(schedule.program.binding)) for e in schedule.program.tensor[buffer].shape]
        row, pieces = f"ld_{buffer}.{w.axis}", [""]
        if row in schedule.nests[f"ld_{buffer}"].names and schedule.program.statement[f"ld_{buffer}"].reads[0].guard:
            if shape[w.axis] * -(-shape[-1] // w.vector) <= COPIES:
                schedule = schedule.unroll(row)
            else:
                schedule, pieces = self._edges(schedule, row, at, rows)
        for piece in pieces:
            schedule = self._in_vectors(schedule, f"ld_{buffer}.{rank - 1}{piece}", shape[-1])
        return self._asked(schedule, f"ld_{buffer}", rows) if w.asks_ahead else schedule

    def _asked(self, schedule: Schedule, copy: str, rows: tuple[int, int, int]) -> Schedule:
        """A copy asks for what the next strip reads; where there is one only, for that of the next loop around."""
        low, high, strip = rows
        strips = high - low >= strip
        for name in [n for n in schedule.nests if n == copy or n.startswith(f"{copy}_")]:
            loops = schedule.nests[name].names
            own = [n for n in loops if n.startswith(f"{copy}.{self.window.axis}")]
            around = own[:1] if strips else loops[len(self.outer) - 1 : len(self.outer)]
            if around and schedule.kind(loops[-1]) == "vector":
                schedule = schedule.prefetch(loops[-1], around[0], self.window.step_down * strip if strips else 1)
        return schedule

    def _edges(
        self, schedule: Schedule, row: str, at: str, rows: tuple[int, int, int]
    ) -> tuple[Schedule, list[str]]:
        """Count the rows of a copy as rows of the tensor, and cut off those outside: the pieces' suffixes."""
        w, (low, high, strip) = self.window, rows
        first, last = (w.step_down * h + w.offset for h in (low, high))
        extent = int(schedule.program.tensor[w.tensor].shape[w.axis].evaluate(schedule.program.binding))
        if high - low >= strip:
            schedule = schedule.skew(row, at, w.step_down * strip)
        pieces, rest = list[str](), ""
        if first < 0:
            schedule = schedule.split(row, -first)
            pieces, rest = [".lo"], ".hi"
        if last + w.reach > extent:
            schedule = schedule.split(f"{row}{rest}", extent - first)
            pieces.append(f"{rest}.lo")
            rest = f"{rest}.hi"
        return schedule, [*pieces, rest]

    def _in_vectors(self, schedule: Schedule, lane: str, extent: int) -> Schedule:
        """A row of a copy: short ones laid out, of long ones the first and the last vector apart."""
        w = self.window
        if w.step > 1:
            schedule = schedule.tile({lane: w.step}).reorder(f"{lane}.p", f"{lane}.o").unroll(f"{lane}.p")
            lane, extent = f"{lane}.o", -(-extent // w.step)
        if extent > w.vector * COPIED_VECTORS:
            schedule = schedule.split(lane, w.vector).vectorise(f"{lane}.lo")
            whole = (extent - 1) // w.vector * w.vector
            schedule = schedule.split(f"{lane}.hi", whole).vectorise(f"{lane}.hi.hi")
            return schedule.tile({f"{lane}.hi.lo": w.vector}).vectorise(f"{lane}.hi.lo.p")
        return in_vectors(schedule, lane, extent, w.vector)

    def _kept(self, schedule: Schedule, tensor: str, update: str, at: str) -> Schedule:
        buffer = f"{tensor}_{update}_k"
        schedule = schedule.promote(tensor, at, self.machine.register_space, name=buffer, users=[update])
        return unrolled(schedule, loops_of_copy(schedule, f"ld_{buffer}"))

    def _targets(self, schedule: Schedule, names: Sequence[str], at: str) -> Schedule:
        """The sums in registers."""
        update = next(n for n in names if schedule.program.statement[n].source_name == self.window.statement)
        tensor = schedule.program.statement[update].write.tensor
        users = [n for n in names if tensor in _touched(schedule.program.statement[n])]
        if len(users) < 2:
            return schedule
        along = schedule.program.tensor[tensor].rank - 1 if self.along is None else self.along
        buffer, order = f"{tensor}_{users[0]}_r", axis_last(schedule, tensor, along)
        schedule = schedule.promote(tensor, at, self.machine.register_space, name=buffer, order=order)
        for copy in (f"ld_{buffer}", f"st_{buffer}"):
            if copy in schedule.nests:
                for loop in loops_of_copy(schedule, copy):
                    last = loop == f"{copy}.{order[-1]}"
                    schedule = schedule.vectorise(loop) if last else schedule.unroll(loop)
        return schedule


def _touched(s: Statement) -> set[str]:
    return {a.tensor for a, _ in s.accesses}
