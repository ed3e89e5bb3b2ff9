"""Policy for windows: reductions over a small neighbourhood in which no operand is used again along rows and lanes but
the window itself (depthwise convolutions, pooling, filters). `poly.scheduling.cpu_window_nest` composes them.

Windows that leave the tensor read it where it is: the vectors that see padding at their ends are pieces of their own,
the others load without masks (whole rows of padding cost an address). Where pieces would be too many what a strip reads
is copied, and for windows with larger steps than two, which want every n-th element together; every second one is
picked from two loads that the window's columns share. Where vectors are as wide as lines, loads in all columns but one
would cross from one line to the next: there a row is loaded once, and its columns are taken from these registers. Of
windows with many columns and rows one column is summed up after the other: all rows that a tile reads there in
registers, every element of the window for all rows of the tile at once, so that as many sums are on their way as there
are rows; where registers do not hold them all, the window's rows are done in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_core import core_of, own_share
from poly.scheduling.cpu_edits import FEW_VECTORS
from poly.scheduling.cpu_facts import bytes_apart, bytes_touched, own_capacity, widest_element
from poly.scheduling.cpu_window_shape import MOST_ROLLED, MOST_TAPS, MOST_WEIGHED, Shape, inside_of, shape_of, suits
from poly.scheduling.groups import Group
from poly.scheduling.uneven import uneven_axes

MOST_ROWS = 8  # of a register tile
ROLLED = 48  # operations of a register tile where a row read serves all rows written at once; FEW_ROWS may have more
FEWEST_READ = 8  # rows of a window that are done at once, if it has as many: what two blocks share is loaded twice
FEW_ROWS = 5  # rows whose sums are on their way at once
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
    `shifted`: the columns are taken from a row in registers; `by_columns`: one is done for all rows before the next,
    of a large window in a loop, `rolled`, in blocks of `rows_read` of the window's rows (0: all at once).
    `columns_first`: what a window takes from a row, in its `columns`, is reduced before rows are.
    `asks_ahead`: what is copied, or read by long tiles or faster than it comes, is from beyond a core's own caches, so
    that it is asked for a strip, or a tile, ahead. `asks_results`: and so is what tiles write.
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
    asks_results: bool = False
    shifted: bool = False
    by_columns: bool = False
    columns_first: bool = False
    columns: int = 1
    rolled: bool = False
    rows_read: int = 0


class _Way(NamedTuple):
    """How a tile sums, named as in `Window`."""

    vector: int
    kept: tuple[str, ...]
    shifted: bool
    by_columns: bool
    columns_first: bool


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
    shape = shape_of(program, group, update)
    if shape is None or elements < 2:
        return None
    vector = min(elements, 1 << max(0, shape.width - 1).bit_length())
    by_columns = _is_by_columns(shape, machine.vector_registers)
    points = prod(shape.taps.values())
    if points > (MOST_ROLLED if by_columns else MOST_WEIGHED if shape.others else MOST_TAPS):
        return None
    shifted = not by_columns and _is_shifted(program, shape, vector, machine)
    kept = () if by_columns else _kept(shape, machine.vector_registers, shifted)
    way = _Way(vector, kept, shifted, by_columns, shifted and _sharing_pays(shape, update))
    found = _heights(program, shape, way, machine)
    apart = bytes_apart(program, shape.read, group.axes[update.name][shape.rows]) or 0
    beyond = bytes_touched(program, group.statements) > own_capacity(machine)
    asking = found.copied or found.tile * apart >= LONG or (shifted and _comes_slowly(program, shape, vector, machine))
    return Window(
        statement=update.name, tensor=shape.read.tensor, rows=shape.rows, lanes=shape.lanes, down=shape.down,
        sideways=shape.sideways, step_down=shape.step_down, step=shape.step, spread=shape.spread,
        reach=shape.spread * (shape.taps.get(shape.down, 1) - 1) + 1, axis=shape.row,
        offset=shape.read.affine_index[shape.row].constant, vector=vector, height=found.tile, strip=found.strip,
        copied=found.copied, kept=kept, unrolled=found.small,
        cuts=_cuts(program, update, shape, found), vector_cuts=found.edges,
        lane_cuts=(shape.width // vector * vector,) if found.ragged else (),
        asks_ahead=asking and beyond, asks_results=beyond and not by_columns and core_of(machine, 1).afar > 0,
        shifted=shifted and not found.copied, by_columns=by_columns,
        columns_first=way.columns_first, columns=shape.taps[shape.sideways],
        rolled=by_columns and points > MOST_TAPS,
        rows_read=_rows_read(shape, machine.vector_registers) if by_columns else 0,
    )  # fmt: skip


def _cuts(program: Program, update: Statement, shape: Shape, found: _Heights) -> tuple[int, ...]:
    """Where rows are cut: behind whole tiles, and where windows are shorter at the ends, around each tile that has
    such ones, so that its iterations are known when compiling.
    """
    cuts = {found.whole} if found.whole < shape.height else set[int]()
    axes = [n for n in update.iterators if n not in shape.taps]
    if not found.small and uneven_axes(program, update, axes):
        low, high = inside_of(program, shape.read, axes[shape.rows], shape.down, shape.row, shape.taps[shape.down])
        tiles = range(found.tile, found.whole, found.tile)
        cuts.update(n for n in tiles if n - found.tile < low or n + found.tile > high)
    return tuple(sorted(cuts))


def _heights(program: Program, shape: Shape, way: _Way, machine: Machine) -> _Heights:
    """Rows of register tiles and strips, and what is copied: a tile's height depends on what is laid out and shuffled,
    that on its bodies, and they on the height; where a copy takes the shuffles away it is chosen again.
    """
    most = min(shape.height, MOST_ROWS if way.by_columns else _most_rows(shape, machine.vector_registers, way))
    taps, vectors = _operations(shape, way), -(-shape.width // way.vector)
    body = BODY_BY_COLUMNS if way.by_columns else BODY
    laid_out = -(-shape.height // most) * vectors * most * taps * (2 if shape.step == PICKED else 1)
    small = laid_out <= body  # loads count, too
    highest, _ = _tiles(shape.height, most, small)
    long_body = way.by_columns and vectors > 1 and vectors * highest * taps > body
    ragged = shape.width % way.vector > 0 and (vectors > FEW_VECTORS or long_body)
    edges = () if small else _edges(program, shape, way.vector)
    bodies = len(edges) + 1 if shape.width % way.vector == 0 or ragged else vectors
    shuffles = way.shifted and not small
    rows = _shuffled_rows(shape.height, highest, shape.step, bodies * taps) if shuffles else most
    tile, whole = _tiles(shape.height, rows, small)
    if not _is_copied(shape, small or bodies * tile * taps <= body):
        return _Heights(tile, whole, shape.height, small, False, edges, ragged)
    return _heights_copied(shape.height, most, small, _fitting(program, shape, machine), ragged)


def _heights_copied(height: int, most: int, small: bool, fitting: int, ragged: bool) -> _Heights:
    """Where what is read is copied: strips are whole tiles of which so many rows are `fitting` the first cache."""
    one_strip = fitting >= height
    tile, whole = _tiles(height, most, small and one_strip)
    strips = [n for n in range(tile, whole + 1, tile) if whole % n == 0 and n <= fitting]
    return _Heights(
        tile, whole, height if one_strip else max(strips, default=tile), small and one_strip, True, (), ragged
    )


def _most_rows(shape: Shape, registers: int, way: _Way) -> int:
    """Rows of a register tile: their sums fit beside what is loaded for one, and where a row read serves all of them
    the body stays short.
    """
    taps = _operations(shape, way)
    loaded = shape.taps[shape.sideways] if shape.step == PICKED else 1
    room = registers - max(SPARE, loaded) - (taps if way.kept else 1)
    rolling = bool(way.kept) or not shape.others
    return max(1, min(room, max(FEW_ROWS, ROLLED // taps) if rolling else MOST_ROWS, MOST_ROWS))


def _sharing_pays(shape: Shape, update: Statement) -> bool:
    """Whether to reduce what a window takes from a row before rows, as equal for all windows that take it, spares
    operations; a sum begins with zero, a maximum with the first element.
    """
    if shape.others or update.combiner is None or not update.reorder:
        return False
    rows, columns = shape.taps[shape.down], shape.taps[shape.sideways]
    first_is_free = 0 if update.combiner.symbol == "+" else 1
    return shape.step_down * (columns - first_is_free) + rows < rows * columns - first_is_free


def _operations(shape: Shape, way: _Way) -> int:
    """Of an element written; where lanes are picked, before equal ones are found."""
    every = prod(shape.taps.values())
    if not way.columns_first or shape.step == PICKED:
        return every
    rows, columns = shape.taps[shape.down], shape.taps[shape.sideways]
    return every // (rows * columns) * (rows + columns)


def _kept(shape: Shape, registers: int, shifted: bool) -> tuple[str, ...]:
    """Operands beside the window that stay in registers; where a row read serves several rows anyway, only if that
    leaves room for the sums of a few.
    """
    left = registers - prod(shape.taps.values())
    few = not shifted or shape.step < PICKED or left - shape.taps[shape.sideways] >= FEW_ROWS
    return tuple(dict.fromkeys(a.tensor for a in shape.others)) if left >= KEPT_BESIDE and few else ()


def _is_by_columns(shape: Shape, registers: int) -> bool:
    """Whether a column of the window is done for all rows before the next one: where a tile in which a row read serves
    all rows written at once would be low, or wait for its sums, and registers hold what many rows read.
    """
    if not shape.others or not shape.down or len(shape.taps) > 2 or shape.spread > 1 or shape.step > 1:
        return False
    many = min(shape.taps[shape.down], FEWEST_READ) <= _room_beside(shape, registers)
    return FEW_ROWS * prod(shape.taps.values()) > ROLLED and many


def _room_beside(shape: Shape, registers: int) -> int:
    """Rows of a window which registers hold, for the first row of a tile, beside those for its others and all sums."""
    return registers - SPARE - MOST_ROWS - shape.step_down * (MOST_ROWS - 1)


def _rows_read(shape: Shape, registers: int) -> int:
    """Rows of a window that are done at once where registers do not hold all: blocks of about the same size."""
    rows, most = shape.taps[shape.down], _room_beside(shape, registers)
    return 0 if rows <= most else -(-rows // -(-rows // most))


def _is_shifted(program: Program, shape: Shape, vector: int, machine: Machine) -> bool:
    """Whether a row read is loaded once for all columns: vectors are lines, and few hold all that it takes."""
    size = size_bytes(program.tensor[shape.read.tensor].dtype)
    reach = shape.read.affine_index[-1].coefficient(shape.sideways) * (shape.taps[shape.sideways] - 1)
    rolls = bool(shape.down) and shape.spread == 1
    wide = machine.lanes(1) >= machine.line and shape.step * vector * size >= machine.line
    return wide and rolls and shape.step <= PICKED and 0 < reach <= vector


def _comes_slowly(program: Program, shape: Shape, vector: int, machine: Machine) -> bool:
    """Whether what a vector of results reads takes longer from behind a core's own caches than its multiply-adds."""
    size = size_bytes(program.tensor[shape.read.tensor].dtype)
    core = core_of(machine, size)
    cycles = shape.step_down * shape.step * vector * size / core.own[-1].rate
    return cycles * core.fma > prod(shape.taps.values())


def _tiles(height: int, most: int, small: bool) -> tuple[int, int]:
    """Rows of a register tile, and of all whole ones: of a small window the last tile may be lower."""
    tile = -(-height // -(-height // most)) if small else _even(height, most)
    return tile, height if small else height // tile * tile


def _shuffled_rows(height: int, tile: int, step: int, operations: int) -> int:
    """Rows of a register tile whose columns are shuffled. With step 1 the more, the fewer shuffles for each, as long as
    all bodies, with so many operations for each row, stay short; where lanes are picked, two of a long body.
    """
    if step == PICKED:
        return tile if tile * operations <= PICKED_BODY else min(tile, PAIR)
    even = [n for n in range(tile, MOST_ROWS + 1) if height % n == 0 and n * operations <= BODY]
    return max(even, default=tile)


def _is_copied(shape: Shape, short: bool) -> bool:
    """Whether what a strip reads goes through a buffer: elements too far apart, or padding where the pieces that see it
    are too many to be laid out (not `short`).
    """
    columns = shape.taps[shape.sideways]
    if shape.step > PICKED and columns > shape.step:
        return True
    rows = shape.taps.get(shape.down, 1)
    flat = prod(shape.taps.values()) == rows * columns  # no window along other axes, whose padding would not be apart
    return bool(shape.read.guard) and not (flat and short)


def _fitting(program: Program, shape: Shape, machine: Machine) -> int:
    """Rows of a strip that reads no more than stays in the first cache, at least one."""
    columns = (shape.step * (shape.width - 1) + shape.taps[shape.sideways]) * shape.planes
    lines = own_share(machine.nearest_cache) // (columns * size_bytes(program.tensor[shape.read.tensor].dtype))
    return max(1, (lines - shape.spread * (shape.taps.get(shape.down, 1) - 1)) // shape.step_down)


def _edges(program: Program, shape: Shape, vector: int) -> tuple[int, ...]:
    """Where the vectors of a row are cut, so that the window leaves the row in the first and the last piece alone."""
    if not shape.read.guard:
        return ()
    last = len(shape.read.index) - 1
    low, high = inside_of(program, shape.read, shape.along, shape.sideways, last, shape.taps[shape.sideways])
    return tuple(sorted(c for c in {-(-low // vector), high // vector} if c > 0))


def _even(extent: int, most: int) -> int:
    """The largest tile that divides an extent; where that is low, so that its sums would wait for one another, the one
    of as few tiles as there can be, the last one lower.
    """
    best = max(t for t in range(1, most + 1) if extent % t == 0)
    return best if 2 * best > most else -(-extent // -(-extent // most))
