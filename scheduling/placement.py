"""Addresses from lifetimes: one planner for an arena on the CPU and for the scratchpads of an accelerator.

Dynamic storage allocation: blocks with a size and an interval of time, to be placed so that blocks alive together do
not overlap. Greedy by size with best fit (Sekiyama et al. 2018; Pisarchyk and Lee, MLSys 2020), which is within a few
percent of the bound on neural networks; the bound is the largest sum of live sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from poly.errors import CapacityError


@dataclass(frozen=True)
class Block:
    """`size` bytes, alive from step `first` to step `last`, both included."""

    name: str
    size: int
    first: int
    last: int

    def overlaps(self, other: Block) -> bool:
        """True where both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


def blocks_of(steps: Iterable[Iterable[str]], size: Callable[[str], int]) -> list[Block]:
    """What is alive from the first step that touches it to the last; `steps`: the names that each touches."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, names in enumerate(steps):
        for name in names:
            first.setdefault(name, k)
            last[name] = k
    return [Block(name, size(name), first[name], last[name]) for name in first]


@dataclass(frozen=True)
class Placement:
    """Byte offsets by block, the bytes needed in all, and the least any placement could need."""

    offsets: Mapping[str, int]
    size: int
    bound: int


def place(blocks: Sequence[Block], align: int = 64, capacity: int | None = None, where: str = "") -> Placement:
    """Offsets for all blocks, multiples of `align`. Raises `CapacityError` where they do not fit `capacity` bytes."""
    placed: list[tuple[Block, int]] = []
    for block in sorted(blocks, key=lambda b: (-b.size, b.first, b.name)):
        busy = sorted(
            (offset, offset + _rounded(other.size, align)) for other, offset in placed if other.overlaps(block)
        )
        placed.append((block, _best_gap(busy, _rounded(block.size, align))))
    size = max((offset + _rounded(b.size, align) for b, offset in placed), default=0)
    bound = lower_bound(blocks, align)
    if capacity is not None and size > capacity:
        largest = ", ".join(f"{b.name} {b.size} B" for b, _ in placed[:4])
        raise CapacityError(
            f"needs {size} B, has {capacity} B ({largest})", kind="capacity", where=where,
            hint="smaller tiles" if bound > capacity else "fewer slots, or tiles of other sizes",
        )  # fmt: skip
    return Placement({b.name: offset for b, offset in placed}, size, bound)


def lower_bound(blocks: Sequence[Block], align: int = 64) -> int:
    """The largest sum of sizes that are alive at once."""
    steps = {b.first for b in blocks}
    return max((sum(_rounded(b.size, align) for b in blocks if b.first <= t <= b.last) for t in steps), default=0)


def _rounded(size: int, align: int) -> int:
    return -(-max(size, 1) // align) * align


def _best_gap(busy: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds `size` bytes, or the end of everything."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in busy:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, stop)
    return best[1] if best is not None else end
