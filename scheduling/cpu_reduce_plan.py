"""What a plan of a reduction says (`poly.scheduling.cpu_reduce` chooses it), and what it is chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.scheduling.cpu_core import core_of, last_capacity
from poly.scheduling.cpu_facts import NEAR, moves, own_capacity, widest_element


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """`outer`, `rows` ("" where there are none), then those of its kind, and `lanes`: iterators of the reduction
    `statement`, from the outside in. A tile has `height` rows and `width` vectors, each of `vector` lanes. `ahead`:
    iterations of the loop over tiles that loads are asked for ahead, 0 for not at all. `start`: the statement that
    tiles begin with, which starts their own sums; "" where it has a nest of its own.
    """

    statement: str
    outer: tuple[str, ...]
    rows: str
    lanes: str
    vector: int
    height: int
    width: int
    ahead: int = 0
    start: str = ""


@dataclass(frozen=True, kw_only=True)
class Folded(Reduction):
    """The lanes are reduced, and the `inner` iterators around them. `again`: a parallel one in all of whose iterations
    a tile uses what it has loaded, "" for none. `turned`: operands that are copied with the lanes' axis last first.
    `placed`: those that all rows share and that are copied to where vectors are lines first, by every thread for
    `placed_for` rows (0: once for all). `by_rows`: `ahead` counts blocks of rows, not tiles of one. `lane_block`: lanes
    of the blocks that a long row is summed in, 0 for none; `block_of`: an iterator of `inner` and how many of its
    iterations make a block of many short rows.
    """

    inner: tuple[str, ...] = ()
    again: str = ""
    turned: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    placed_for: int = 0
    by_rows: bool = False
    lane_block: int = 0
    block_of: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Spread(Reduction):
    """The lanes are those of the result, in strips of `strip`, and `rows` are added. `kept`: operands that the lanes do
    not move.
    """

    strip: int
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Summed:
    """A reduction with what its plans are made of. `axes`: its loops along the group's box; `extents`: of all loops;
    `lanes`: the loop that becomes lanes, of which a vector has `vector`; `others`: the other long ones, those that the
    streamed operand walks in the longest steps first; `touched`: bytes of all operands.
    """

    program: Program
    statement: Statement
    axes: Sequence[str]
    extents: Mapping[str, int]
    others: Sequence[str]
    lanes: str
    vector: int
    touched: int
    machine: Machine
    threads: int

    @property
    def parallel(self) -> list[str]:
        return [i for i in self.others if i in self.axes]

    @property
    def reduced(self) -> list[str]:
        return [i for i in self.others if i not in self.axes]

    @property
    def widest(self) -> int:
        """Bytes of an element."""
        return widest_element(self.program, [self.statement])

    @property
    def has_lines(self) -> bool:
        """Whether vectors are lines: by shorter ones the near part of the last cache keeps up, and memory does not."""
        return self.vector * self.widest >= self.machine.line

    @property
    def is_far(self) -> bool:
        """Whether operands are asked for ahead: where vectors are lines, those from behind the cores' own caches, else
        those from behind the near part of the last one.
        """
        near = last_capacity(self.machine) * NEAR
        return (own_capacity(self.machine) * self.threads if self.has_lines else near) < self.touched

    @property
    def is_asked_near(self) -> bool:
        """Whether a single operand is asked for ahead though it comes from a core's own caches, not the first one, on
        cores whose last cache is far: lines that are at hand give vectors that lie in two of them sooner (0088).
        """
        streams = [r for r in self.statement.reads if all(moves(r, i) for i in (*self.others, self.lanes))]
        own = self.machine.nearest_cache < self.touched <= self.threads * own_capacity(self.machine)
        return own and self.has_lines and len(streams) == 1 and core_of(self.machine, self.widest).afar > 0


def axis_along(access: Access, iterator: str) -> int | None:
    """The axis of a tensor that a loop alone walks along."""
    found = [n for n, c in enumerate(access.affine_index) if iterator in c.names]
    return found[0] if len(found) == 1 and access.affine_index[found[0]].names == frozenset((iterator,)) else None


def size_of(access: Access, extents: Mapping[str, int]) -> int:
    """Elements that loops touch by an access that walks each of them alone."""
    return prod(n for i, n in extents.items() if moves(access, i))
