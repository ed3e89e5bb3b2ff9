"""What the policies for register tiles decide about a group, as data.

A `TilePlan` is made by `poly.scheduling.cpu_lanes` and composed of primitives by `poly.scheduling.cpu_tile`, a
`BlockPlan` made by `poly.scheduling.cpu_contract` and composed by `poly.scheduling.cpu_block`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

LEAST_SIDE = 4  # elements of a row that are loaded at once and turned
UNROLLED = 128  # multiply-adds in the body of the innermost loop that stays: four steps of the largest register tile

Site = Literal["whole", "lanes", "rows"]


@dataclass(frozen=True)
class Piece:
    """The iterations low .. high - 1 of a loop in tiles of one size, all whole."""

    low: int
    high: int
    tile: int


@dataclass(frozen=True)
class Strip:
    """A piece of the lanes' loop. `width`: vectors side by side in the register tile; `rows`: the pieces of the rows'
    loop; `block`: tiles that share what is packed (of a `BlockPlan`).
    """

    low: int
    high: int
    width: int
    rows: tuple[Piece, ...] = ()
    block: int = 1


@dataclass(frozen=True)
class Pack:
    """A read, by its position among the statement's, that goes through a packed buffer.

    `order`: its axes from slow to fast; `lane`: the axis that moves along the lanes (or the rows); `step`: of
    neighbouring lanes along it. `block`: elements of that axis that lie together, fastest of all (0: all). `site`:
    where it is made: once, outside of the blocks, per block of lanes or per block of rows. `across`: the axis that is
    contiguous in the source where that is another one: copied through squares in registers. `ahead`: while one block of
    lanes is used, the next one is asked for. `deep`: an axis along blocks of the reduction, and the elements of one:
    what a block meets lies together. `on_way`: the first tile of rows makes the copy, step by step.
    `asked`: tiles of rows ask for the next one, little by each; where it is made on the way, all but the first.
    """

    statement: str
    tensor: str
    read: int
    order: tuple[int, ...]
    lane: int
    pad: bool
    step: int = 1
    block: int = 0
    site: Site = "lanes"
    across: int | None = None
    ahead: bool = False
    deep: tuple[int, int] | None = None
    on_way: bool = False
    asked: bool = False


@dataclass(frozen=True)
class Turn:
    """A read, by its position, contiguous along a reduction loop (`iterator`) and not along the lanes: square tiles of
    it are loaded into registers as they lie, and used across.
    """

    statement: str
    read: int
    iterator: str


@dataclass(frozen=True)
class TilePlan:
    """Register tiles of a group of which nothing is packed. `outer`, `rows`, `lanes`: positions among the group's
    parallel loops; `vector`: elements of one vector, 1 where no loop suits lanes. Without `strips` the loops are only
    ordered. `turns`: of the reduction's reads. `threads`: of the caches that count.
    """

    outer: tuple[int, ...]
    rows: int | None
    lanes: int | None
    vector: int
    strips: tuple[Strip, ...] = ()
    turns: tuple[Turn, ...] = ()
    threads: int = 1


@dataclass(frozen=True)
class MatrixPlan:
    """Register tiles in tiles of a core's matrix unit, an `engine`: each is so many `rows` and a vector of lanes, and a
    command makes `steps` iterations of the reduction's loop over `iterator`, of `length`, by an `operator` of
    `poly.expr.DOTS`. `passing`: what is packed for the lanes does not stay in the first cache.
    """

    engine: str
    operator: str
    rows: int
    iterator: str
    steps: int
    length: int
    passing: bool = False


@dataclass(frozen=True)
class BlockPlan:
    """A contraction in blocks. `outer`, `middle`, `rows`, `lanes`: positions among the group's parallel loops; the
    loops of `middle` use again what is packed. `depth`: a reduction loop and its iterations per block, None where it
    is whole (else partial sums go through memory); `row_block`: tiles of rows per block, 0 for all; `lanes_inside`:
    the order of the tile loops; `lanes_outside`: blocks of lanes are around blocks of the reduction, and around what
    initialises or uses the sums; `past`: the results that go past the caches; `matrix`: how a matrix unit does
    whole register tiles, None where vectors do.
    """

    outer: tuple[int, ...]
    middle: tuple[int, ...]
    rows: int
    lanes: int
    vector: int
    strips: tuple[Strip, ...]
    packs: tuple[Pack, ...] = ()
    depth: tuple[str, int] | None = None
    row_block: int = 0
    lanes_inside: bool = False
    lanes_outside: bool = False
    past: frozenset[str] = frozenset()
    matrix: MatrixPlan | None = None

    def without_packs(self) -> BlockPlan:
        """The same where operands are used as they lie."""
        return replace(self, outer=(*self.outer, *self.middle), middle=(), packs=())


Plans: TypeAlias = tuple[tuple[tuple[str, ...], BlockPlan], ...]
"""Plans of contractions, each with the names of the statements of its group."""


def square_side(extent: int, vector: int) -> int:
    """Elements of a row of squares that divide an axis, of at most a vector; 0 where that are too few to turn."""
    side = min(vector, extent & -extent)
    return side if side >= min(vector, LEAST_SIDE) else 0


def tallest(width: int, masked: bool, registers: int) -> int:
    """Rows of the tallest register tile of so many vectors, less than 1 where there is none. Registers hold its sums,
    the vectors of one step, what a row has beside them, and where the only vector is `masked` the mask, which is kept.
    """
    return (registers - 1 - (masked and width == 1)) // width - 1


def window_stays(height: int, width: int, steps: int, registers: int) -> bool:
    """Whether registers hold the sums of a tile, the elements that all steps of a window along its rows meet, and the
    vectors of one step: each is read once then. The first is not needed any more when the last is read.
    """
    fits = height * width + (height + steps - 1) + width <= registers + 1
    return steps > 1 and fits and height * width * steps <= UNROLLED


def ends_apart(pieces: Sequence[Piece], low: int, high: int) -> tuple[Piece, ...]:
    """Pieces with every tile that reaches beyond low .. high - 1 in one of its own."""
    found: list[Piece] = []
    for p in pieces:
        tiles = range(p.low, p.high, p.tile)
        before = sum(t < low for t in tiles)
        after = sum(low <= t and t + p.tile > high for t in tiles)
        first, last = p.low + before * p.tile, p.high - after * p.tile
        found += [Piece(t, t + p.tile, p.tile) for t in range(p.low, first, p.tile)]
        found += [Piece(first, last, p.tile)] if first < last else []
        found += [Piece(t, t + p.tile, p.tile) for t in range(last, p.high, p.tile)]
    return tuple(found)


def first_apart(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces with the first tile in one of its own."""
    first, *others = pieces
    cut = first.low + first.tile
    rest = (Piece(cut, first.high, first.tile),) if cut < first.high else ()
    return (Piece(first.low, cut, first.tile), *rest, *others)


def balanced(low: int, extent: int, tile: int) -> tuple[Piece, ...]:
    """A range in as few tiles of at most `tile` as possible, of sizes that differ by at most one."""
    count = -(-extent // tile)
    small, more = divmod(extent, count)
    middle = low + more * (small + 1)
    pieces = (Piece(low, middle, small + 1), Piece(middle, low + extent, small))
    return tuple(p for p in pieces if p.low < p.high)
