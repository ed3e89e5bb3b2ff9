"""What a policy for a core with vector registers decides about a group, as data (`Plan`).

Made by `poly.scheduling.cpu_choice`, composed of primitives by `poly.scheduling.cpu_tile`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FMA_UNITS, LOAD_UNITS, LATENCY = 2, 2, 4  # of a core: vector operations and loads a cycle, cycles of a multiply-add
UNROLLED = 96  # multiply-adds in the body of the innermost loop that stays
MOST_PANEL_COPIES = 8


Site = Literal["whole", "outer", "lanes", "rows"]


@dataclass(frozen=True)
class Piece:
    """The iterations low .. high - 1 of a loop in tiles of one size, all whole."""

    low: int
    high: int
    tile: int


@dataclass(frozen=True)
class Strip:
    """A piece of the lanes' loop. `width`: vectors side by side in the register tile; `block`: tiles that share what
    is packed; `rows`: the pieces of the rows' loop.
    """

    low: int
    high: int
    width: int
    block: int
    rows: tuple[Piece, ...]


@dataclass(frozen=True)
class Pack:
    """A read that goes through a packed buffer.

    `order`: its axes from slow to fast; `lane`: the axis that moves along the lanes (or the rows); `step`: of
    neighbouring lanes along it. `block`: elements of that axis that lie together, fastest of all (0: all). `site`:
    where it is made: once, outside of the blocks, per block of lanes or per block of rows. `across`: the axis that is
    contiguous in the source where that is another one: copied through squares in registers.
    """

    statement: str
    tensor: str
    order: tuple[int, ...]
    lane: int
    pad: bool
    step: int = 1
    block: int = 0
    site: Site = "lanes"
    across: int | None = None


@dataclass(frozen=True)
class Turn:
    """A read that is contiguous along a reduction loop (`iterator`), not along the lanes: square tiles of it are loaded
    into registers as they lie, and used across.
    """

    statement: str
    tensor: str
    iterator: str


@dataclass(frozen=True)
class Plan:
    """`outer`, `middle`, `rows`, `lanes`: positions among the group's parallel loops; the loops of `middle` use
    again what is packed. `vector`: elements of one vector, 1 where no loop suits lanes. `blocked`: composed by
    `poly.scheduling.cpu_block`, there `depth` names a reduction loop and its iterations per block (partial sums go
    through memory), `row_block` counts tiles of rows per block, `lanes_inside` is the order of the tile loops.
    """

    outer: tuple[int, ...]
    middle: tuple[int, ...]
    rows: int | None
    lanes: int | None
    vector: int
    strips: tuple[Strip, ...]
    packs: tuple[Pack, ...] = ()
    turns: tuple[Turn, ...] = ()
    blocked: bool = False
    depth: tuple[str, int] | None = None
    row_block: int = 0
    lanes_inside: bool = False


def step_cycles(height: int, width: int) -> float:
    """Cycles of one step of a reduction on a register tile, at the least: operations, loads, latency."""
    return max(height * width / FMA_UNITS, (height + width) / LOAD_UNITS, LATENCY) + (height + width) / 16


def balanced(low: int, extent: int, tile: int) -> tuple[Piece, ...]:
    """A range in as few tiles of at most `tile` as possible, of sizes that differ by at most one."""
    count = -(-extent // tile)
    small, more = divmod(extent, count)
    middle = low + more * (small + 1)
    pieces = (Piece(low, middle, small + 1), Piece(middle, low + extent, small))
    return tuple(p for p in pieces if p.low < p.high)
