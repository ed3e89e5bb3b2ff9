"""What can be chosen for a contraction besides numbers, from access maps, sizes and what a core's own caches hold.

Which loop is rows, what is packed and where, and the order of the loops are a `Way`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.locks import cached_property
from poly.program import Access, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_core import PAGE, Core, core_of
from poly.scheduling.cpu_facts import Facts, axis_of, own_capacity, reduction_extents
from poly.scheduling.cpu_operand import Operand
from poly.scheduling.cpu_plan import Site
from poly.scheduling.cpu_planes import walks_of_planes
from poly.scheduling.uneven import LONGEST

DEPTHS = (16, 128, 512)  # iterations in a block of the reduction
# Steps that a shorter last block should have in a body, too; bodies of 5 take longer than of 2 where panels come from
# afar, with 24 rows and 1050 steps 1.07 of the time.
EVEN_STEPS = (4, 6, 8, 3)
FEWEST_STEPS = 64  # of such a block: sums that come and go take as long as some of them
FEWEST_ROWS = 6  # of a block of rows
MOST_CHOOSING = 3  # operands that may be packed or not, a choice for each


@dataclass(frozen=True)
class Way:
    """What is no number: the loop of rows, the site of every packed operand, the order of the tile loops.

    `reused`: what is packed once is used again by loops inside of the blocks of lanes, else these are outside.
    `lanes_outside`: blocks of lanes are around blocks of the reduction, of which there are some.
    """

    rows: int
    packs: tuple[tuple[int, Site], ...]
    lanes_inside: bool
    reused: bool = False
    lanes_outside: bool = False


class TileSizes(NamedTuple):
    """What is a number: height and width of a register tile in rows and vectors, tiles of lanes and of rows in a block
    (0 rows: all), iterations of the sum in a block (0: all).
    """

    height: int
    width: int
    lane_block: int
    row_block: int
    depth: int


def operation_cycles(facts: Facts) -> float:
    """Cycles of a group's multiply-adds alone, of all threads."""
    s, core = facts.update, core_of(facts.machine, facts.widest())
    assert s is not None
    steps = prod(reduction_extents(facts.program, s, facts.group.axes[s.name]).values())
    return prod(facts.extents) * steps / core.lanes / core.fma


@dataclass(frozen=True)
class Ways:
    """What can be chosen for one reduction with given lanes."""

    facts: Facts
    update: Statement
    lanes: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The iterators of the parallel loops."""
        return self.facts.group.axes[self.update.name]

    @cached_property
    def ranges(self) -> dict[str, int]:
        """Extents of the reduction's loops, outermost first."""
        return reduction_extents(self.facts.program, self.update, self.names)

    @cached_property
    def extents(self) -> dict[str, int]:
        return {**dict(zip(self.names, self.facts.extents, strict=True)), **self.ranges}

    @cached_property
    def vector(self) -> int:
        return self.facts.vector(self.lanes)

    @cached_property
    def vectors(self) -> int:
        """Vectors of the lanes' loop."""
        return -(-self.facts.extents[self.lanes] // self.vector)

    @cached_property
    def core(self) -> Core:
        return core_of(self.facts.machine, self.facts.widest())

    @cached_property
    def operation_cycles(self) -> float:
        """Cycles of the operations alone, of all threads."""
        return operation_cycles(self.facts)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The reads, then what is written."""
        reads = tuple(self._operand(a, False) for a in self.update.reads)
        return (*reads, self._operand(self.update.write, True))

    def _operand(self, access: Access, write: bool) -> Operand:
        tensor = self.facts.program.tensor[access.tensor]
        shape = tensor.extents(self.facts.program.binding)
        element = size_bytes(tensor.dtype)
        strides = [element * int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
        axes = tuple(
            {n: i.coefficient(n) for n in i.names if n in self.extents} if isinstance(i, Affine) else {}
            for i in access.index
        )
        return Operand(access.tensor, axes, shape, tuple(strides), element, write)

    @cached_property
    def deep(self) -> str:
        """The reduction loop that may be cut in blocks: the longest, or one of at least half its length whose blocks
        leave operands in longer pieces.
        """
        found = [n for n in self.ranges if n not in names_of(self.update.write)]
        long = [n for n in found if 2 * self.ranges[n] >= max(self.ranges[m] for m in found)]
        return max(long, key=lambda n: (self._piece(n), self.ranges[n]), default="")

    def _piece(self, name: str) -> int:
        """Bytes between what neighbouring iterations of a loop read, the least of all operands that move with it."""
        return min((abs(o.stride(name)) for o in self.operands[:-1] if o.depends(name)), default=0)

    @cached_property
    def depths(self) -> list[int]:
        """Iterations of that loop in a block of the reduction that are tried, where it can be cut."""
        if not self.deep:
            return []
        steps = prod(self.ranges.values()) // self.ranges[self.deep]  # in an iteration, as of a window
        if self.turned and (steps == 1 or len(self.facts.group.statements) > 2):  # sums beside it are read across
            return []
        extent = self.ranges[self.deep]
        return [_even_depth(d, extent) for d in DEPTHS if 2 * d <= extent]

    def depths_of(self, way: Way) -> list[int]:
        """Those that a way can have."""
        steps = prod(self.ranges.values()) // self.ranges[self.deep] if self.depths else 1
        return [d for d in self.depths if d * steps >= FEWEST_STEPS or (not way.packs and self._bound_by_streams)]

    @cached_property
    def _bound_by_streams(self) -> bool:
        """Whether something along the lanes, its rows in pages of their own, takes longer to come from the last cache
        than all operations: blocks of few steps are as many streams, which prefetchers follow, and hide the sums that
        come and go.
        """
        own, *behind = self.core.caches
        rate = behind[0].rate if behind else own.rate
        return any(
            o.size > max(own_capacity(self.facts.machine), rate * self.operation_cycles)
            for o in self.operands[:-1]
            if o.stride(self.names[self.lanes]) == o.element and o.stride(self.deep) >= PAGE
        )

    @cached_property
    def turned(self) -> bool:
        """Whether a register tile is turned before it is stored."""
        return self.operands[-1].stride(self.names[self.lanes]) != self.operands[-1].element

    def _turns(self, rows: int) -> bool:
        """Whether a loop can be rows where a register tile is turned: what is written after the reduction, or from the
        tile itself, is contiguous along it.
        """
        target = self.update.write.tensor
        after = [s for s in self.facts.group.statements if s.write.tensor != target]
        if self.operands[-1].stride(self.names[rows]) != self.operands[-1].element:
            return False
        return all(self.facts.strides(s)[-1].get(rows) == 1 and self.facts.regular(s, rows) for s in after)

    def laid_out(self, rows: int) -> frozenset[str]:
        """The loops of the reduction that are laid out in tiles of rows as they are shorter at the ends of these."""
        return self.facts.uneven[rows].inside if rows in self.facts.uneven else frozenset()

    @cached_property
    def walks(self) -> frozenset[str]:
        """Loops from planes that a core keeps to others, which go outside of all that indices depend on."""
        return frozenset(walks_of_planes(self.facts.program, self.update, self.facts.machine))

    @cached_property
    def blocks(self) -> frozenset[str]:
        """Loops over a block for each thread, who packs for itself."""
        return frozenset(n for n, _ in self._cut_axes if self.extents[n] == self.facts.threads > 1)

    @cached_property
    def _cut_axes(self) -> list[tuple[str, str]]:
        """The loops over blocks of an axis of the result, each with the loop in one."""
        pairs = [(axis, *order) for axis in self.operands[-1].axes if len(axis) == 2 for order in permutations(axis)]
        return [(n, m) for axis, n, m in pairs if axis[m] == 1 and axis[n] == self.extents[m]]

    @cached_property
    def row_blocks(self) -> frozenset[str]:
        """Loops over blocks of rows that go around the loops along which the result goes on (`result_blocks`)."""
        if self.facts.threads > 1 or not self.core.afar:
            return frozenset()
        return frozenset(n for n, m in self._cut_axes if self.extents[m] >= FEWEST_ROWS)

    @cached_property
    def outside(self) -> frozenset[str]:
        """Loops that go outside of all that is packed."""
        return self.walks | self.blocks

    # ---- ways

    def ways(self) -> Iterator[Way]:
        lanes = self.names[self.lanes]
        for rows, name in enumerate(self.names if lanes not in self.outside else ()):
            reads = self.operands[:-1]
            if rows == self.lanes or self.extents[name] < 2 or all(o.depends(name) for o in reads):
                continue
            if name in self.outside | self.row_blocks or prod(self.ranges[n] for n in self.laid_out(rows)) > LONGEST:
                continue
            if self.turned and not self._turns(rows):
                continue
            sites = [self._sites(k, o, name, o.depends(lanes)) for k, o in enumerate(reads)]
            for chosen in product(*self._largest(sites)):
                packs: tuple[tuple[int, Site], ...] = tuple((k, site) for k, site in enumerate(chosen) if site)
                for reused in (False, True) if self._again(rows, packs) else (self.turned,):
                    for inside in (False, True):
                        yield Way(rows, packs, inside, reused)
                        outside = Way(rows, packs, inside, reused, True)
                        if self.depths_of(outside):
                            yield outside

    def _largest(self, sites: Sequence[tuple[Site | None, ...]]) -> list[tuple[Site | None, ...]]:
        """Only the largest operands choose: every one that does doubles the ways."""
        choosing = [k for k, there in enumerate(sites) if len(there) > 1]
        small = sorted(choosing, key=lambda k: -prod(self.operands[k].shape))[MOST_CHOOSING:]
        return [there[:1] if k in small else there for k, there in enumerate(sites)]

    def _again(self, rows: int, packs: Sequence[tuple[int, Site]]) -> bool:
        """Whether loops around can be on either side of the blocks of lanes: operands packed once do not move there."""
        others = [n for a, n in enumerate(self.names) if a not in (rows, self.lanes) and self.facts.extents[a] > 1]
        whole = [self.operands[k] for k, site in packs if site == "whole"]
        moving = [o for o in whole if o.depends(self.names[self.lanes])]
        lanes_packed = any(site == "lanes" for _, site in packs)
        return bool(moving) and not self.turned and not lanes_packed and any(
            not o.depends(n) for o in moving for n in others
        )

    def _sites(self, k: int, operand: Operand, rows: str, moving: bool) -> tuple[Site | None, ...]:
        """Where an operand can be packed (None: used as it lies)."""
        access = self.update.accesses[k][0]
        iterator = self.names[self.lanes] if moving else rows
        axis = axis_of(access, iterator)
        tensor, own = self.facts.program.tensor[access.tensor], self.update.write.tensor == access.tensor
        if axis is None or own or len(access.index) < 2 or not operand.depends(iterator):
            return (None,)
        if not moving:
            plain = not access.guard and self._simple(k, axis, iterator, once=tensor.role == "constant")
            if not plain:
                return (None,)
            return (None, "whole") if tensor.role == "constant" else (None, "rows")
        if tensor.role == "constant" and self._simple(k, axis, iterator):
            return ("whole",)
        if access.guard or operand.stride(iterator) != operand.element:
            return ("lanes", "whole") if access.guard or axis == len(access.index) - 1 else ("lanes",)
        apart = any(not operand.depends(n) for n in self.names if n != rows) and self._simple(k, axis, iterator)
        return (None, "lanes", "whole") if apart else (None, "lanes")

    def _simple(self, k: int, axis: int, iterator: str, once: bool = True) -> bool:
        """Whether the subscript is the iterator alone, so that blocks of it are blocks of the tensor; of what is not
        packed `once`, but for where a thread's block begins.
        """
        index = self.update.accesses[k][0].index[axis]
        if not isinstance(index, Affine):
            return False
        begin = [Affine.of(n) * index.coefficient(n) for n in sorted(index.names & self.blocks) if not once]
        return index == sum(begin, Affine.of(iterator))

    def around(self, way: Way) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The other parallel loops: those outside of the blocks, and those that use again what is packed for lanes."""
        others = [a for a in range(len(self.names)) if a not in (way.rows, self.lanes)]
        packed = [self.operands[k] for k, site in way.packs if site == "lanes" or self._reused(way, k, site)]
        first = tuple(a for a in others if self.names[a] in self.outside)
        inside = [a for a in others if a not in first]
        fixed = [a for a in inside if not packed or self.names[a] in self.row_blocks]
        outer = first + tuple(a for a in inside if a in fixed or any(o.depends(self.names[a]) for o in packed))
        return outer, tuple(a for a in others if a not in outer)

    def _reused(self, way: Way, k: int, site: Site) -> bool:
        """Whether an operand that is packed once says which loops are outside."""
        return way.reused and site == "whole" and self.operands[k].depends(self.names[self.lanes])


def _even_depth(depth: int, extent: int) -> int:
    """A length of about as many blocks whose last one, which is shorter, has a multiple of the same steps, where the
    loop allows it: a body has several of them.
    """
    common = gcd(depth, extent % depth)
    steps = next((n for n in EVEN_STEPS if extent % n == 0), 0)
    if not steps or any(common % n == 0 for n in EVEN_STEPS):
        return depth
    return steps * -(-extent // (steps * round(extent / depth)))
