"""How often what is in a cache is used again: boxes of blocked nests, the walks of operands through them, and copies.

Loops are a list from the outside in. An operand comes into a cache once for every iteration of the loops around the
part that stays there (the reuse of Low et al., TOMS 2016, for any order of loops).

A box is what one iteration of a loop of the nest does, at a depth: 0 is all of it, the last a register tile. What its
cache lines need of a cache is its footprint; the boxes of the outermost depth that fits are the cache's residents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np
import numpy.typing as npt

from poly.locks import cached_property
from poly.scheduling.cpu_core import TILE_CYCLES, WALKED, Core
from poly.scheduling.cpu_operand import Operand, Touched, next_stays
from poly.scheduling.cpu_shares import Numbers

FREE = 1e9  # elements a cycle of what is copied when compiling
# Of the cache that asks fill, what a block takes up that is asked for, with its copy and what was copied before: lines
# are lost from here on, and all of them (0133).
LOSING, LOST = 0.7, 1.2
COPYING = 1.5  # norm of a copy's instructions and of the time that it waits for what it reads: they hardly overlap


@dataclass(frozen=True)
class Loop:
    """A loop of the blocked nest: the iterations of its iterator that it is given, and those that one step takes."""

    iterator: str
    outside: Numbers
    inside: Numbers

    @property
    def trips(self) -> Numbers:
        return np.ceil(self.outside / self.inside)


@dataclass(frozen=True)
class Copy:
    """A packed operand: copied at a depth of the nest, `rate` elements a cycle; from there inwards it lies densely.
    `asked_rate`: where what is copied has been asked for and is in the nearest cache, 0 where nothing is;
    `on_way`: a panel is used while it is copied.
    """

    depth: int
    rate: Numbers
    asked_rate: Numbers | float = 0.0
    on_way: bool = False


@dataclass(frozen=True)
class Copied:
    """All copies of an operand at a depth of the nest: their cycles and bytes."""

    depth: int
    cycles: Numbers
    bytes: Numbers


@dataclass(frozen=True)
class BlockedNest:
    """Candidates with the same loops and packed operands: arrays of `count` elements, or of none."""

    loops: Sequence[Loop]
    copies: Mapping[int, Copy]
    count: int


@dataclass(frozen=True)
class Residents:
    """Which boxes stay in a cache, by candidate: the depth of the `outermost` that does, and whether `any` does;
    `entered`: by depth and candidate, how often a box is.
    """

    entered: Numbers
    outermost: npt.NDArray[np.int_]
    any: npt.NDArray[np.bool_]

    def moved(self, touched: Numbers, around: Numbers) -> Numbers:
        """Bytes that come into the cache: of the boxes that stay each time these change, else everything every time."""
        boxes = np.take_along_axis(touched * around, self.outermost, 0)[0]
        return np.where(self.any, boxes, touched[-1] * self.entered[-1])


@dataclass(frozen=True)
class Walk:
    """What the boxes touch of an operand, by depth and candidate, and how often each of them changes that (`around`).

    `packed_at`: the depth at which it is packed, `at_run`: whether its copy is made when the kernel runs (both None:
    never packed); `copied`: such copies by nest; `asked`: cycles in which what they have asked for comes, while others
    go on.
    """

    operand: Operand
    touched: Touched
    around: Numbers
    packed_at: npt.NDArray[np.int_] | None
    at_run: npt.NDArray[np.bool_] | None
    copied: Mapping[int, Copied]
    asked: Numbers

    @property
    def packed_at_run(self) -> npt.NDArray[np.bool_]:
        """By candidate whether it is packed when the kernel runs."""
        return np.zeros((), bool) if self.at_run is None else self.at_run

    @property
    def packed_before(self) -> npt.NDArray[np.bool_]:
        """By candidate whether it was packed when compiling: it is asked for on its way."""
        return np.zeros((), bool) if self.at_run is None else ~self.at_run & (self.packed_at == 0)


@dataclass(frozen=True)
class Boxes:
    """The boxes of all candidates of some nests, which have the same number of loops. `sizes`: iterations of a box by
    iterator, `entered`: how often it is, both by depth and candidate.
    """

    core: Core
    operands: Sequence[Operand]
    nests: Sequence[BlockedNest]
    sizes: Mapping[str, Numbers]
    entered: Numbers

    def residents(self, footprint: Numbers, capacity: float) -> Residents:
        """What stays in a cache of so many bytes, by the footprint of all operands together."""
        fits = footprint <= capacity
        return Residents(self.entered, np.argmax(fits, axis=0)[None], np.asarray(fits.any(axis=0)))

    def read(self, operand: Operand) -> Numbers:
        """By candidate how many elements of an operand its register tiles read."""
        return operand.elements(self.sizes)[-1] * self.entered[-1]

    def block(self, walk: Walk) -> Numbers:
        """By candidate the bytes of an operand in the blocks that come one after the other, none of them twice."""
        found = np.array(np.broadcast_to(walk.touched.footprint[0], self.entered.shape[1:]))
        for nest, at in _placed(self.nests):
            first = np.ones((), bool)
            for d, loop in enumerate(nest.loops, 1):
                if walk.operand.depends(loop.iterator):
                    found[at] = np.where(first, walk.touched.footprint[d, at], found[at])
                else:
                    first = first & (loop.trips < 2)
        return found

    def walk(self, k: int) -> Walk:
        """The walk of one operand, and its copies."""
        operand = self.operands[k]
        if not any(k in nest.copies for nest in self.nests):
            return Walk(operand, *self._touched(operand, None), None, None, {}, np.zeros(()))
        counts = [nest.count for nest in self.nests]
        at = np.repeat([_depth(nest, k) for nest in self.nests], counts)
        at_run = np.repeat([_is_at_run(nest.copies.get(k)) for nest in self.nests], counts)
        return Walk(operand, *self._touched(operand, at), at, at_run, *self._copied(k))

    def _touched(self, operand: Operand, at: npt.NDArray[np.int_] | None) -> tuple[Touched, Numbers]:
        """What boxes touch of an operand, dense from the depth `at` which it is packed, by depth and candidate; and
        how often each of them changes that.
        """
        changed = [_entries(operand, nest.loops) for nest in self.nests]
        follows = [_follows(operand, nest.loops, c) for nest, c in zip(self.nests, changed, strict=True)]
        around = np.take_along_axis(self.entered, self._columns(changed), 0)
        far = operand.size > self.core.counted_on(len(self.core.caches) - 1)  # comes from memory
        walked = self._walked(operand) if far else inf
        found = operand.lines(self.core, self.sizes, self._columns(follows) > 0, walked)
        found = Touched(*(np.broadcast_to(v, self.entered.shape) for v in found))
        if at is None:
            return found, around
        dense, inside = operand.elements(self.sizes) * operand.element, np.arange(len(self.entered))[:, None] >= at
        first, further, scattered, footprint = found
        return Touched(
            np.where(inside, dense, first), np.where(inside, dense, further), np.where(inside, 0.0, scattered),
            np.where(inside, dense, footprint),
        ), around  # fmt: skip

    def with_buffer(self, walk: Walk, k: int) -> Walk:
        """A walk whose copies go to a buffer that the core's own caches have lost, if they have when the next block is
        copied: tiles were done with one panel of it after the other, and with all the rest in between. The first cache
        has lost what it holds one panel of, if none is used on its way or asked for ahead (0124).
        """
        first, own = self.core.caches[0], self.core.caches[len(self.core.own) - 1]
        copied = dict(walk.copied)
        for n, (nest, at) in enumerate(_placed(self.nests)):
            depth = _panels(walk.operand, nest, copied[n].depth) if n in copied else None
            if depth is not None:
                between, bytes_twice = self._together[depth, at], 2 * copied[n].bytes
                reused = prod((loop.trips for loop in nest.loops[depth + 1 :]), start=np.ones(()))
                several = (nest.loops[depth].trips > 1) & (reused > 1)
                in_first = walk.touched.footprint[depth + 1, at] <= self.core.counted_on(0)
                in_first &= (walk.asked[at] == 0) & (not nest.copies[k].on_way)
                lost = np.where(several & (between > own.capacity), bytes_twice / own.rate, 0.0)
                again = np.where(several & (between > first.capacity) & in_first, bytes_twice / first.rate, 0.0)
                copied[n] = replace(copied[n], cycles=copied[n].cycles + lost + again)
        return replace(walk, copied=copied)

    @cached_property
    def _together(self) -> Numbers:
        """Bytes that boxes use of all operands, by depth and candidate."""
        used = sum((o.elements(self.sizes) * o.element for o in self.operands), np.zeros(()))
        return np.broadcast_to(used, self.entered.shape)

    def _columns(self, by_nest: Sequence[Sequence[int]]) -> npt.NDArray[np.int_]:
        """Values by depth of every nest, for each of its candidates."""
        return np.repeat(np.array(by_nest).T, [nest.count for nest in self.nests], axis=1)

    def _walked(self, operand: Operand) -> Numbers:
        """By candidate the bytes that its tile loops walk along memory before they leave a piece: prefetchers follow
        the few pieces of a register tile on to the next one, but not the many of what all its steps read.
        """
        inner = {i: sizes[-1] for i, sizes in self.sizes.items()}
        pieces = operand.extents(inner)[-1][0] * operand.element
        few = operand.elements(inner) * operand.element <= WALKED * pieces
        few = np.broadcast_to(few, self.entered.shape[1:])  # one for all where every subscript is from memory
        found = np.broadcast_to(pieces, few.shape).copy()
        for nest, at in _placed(self.nests):
            run, goes_on = found[at], few[at]
            for loop in reversed(nest.loops):
                if operand.depends(loop.iterator):
                    stride = operand.stride(loop.iterator)
                    adjacent = stride * loop.inside == run
                    run = np.where(goes_on & adjacent, np.maximum(run, stride * loop.outside), run)
                    goes_on = goes_on & (adjacent | (loop.trips < 2))
            found[at] = run
        return found

    def _copied(self, k: int) -> tuple[dict[int, Copied], Numbers]:
        """The copies of one operand by nest, as far as they are made when the kernel runs; by candidate the cycles in
        which what they have asked for comes, while others go on.
        """
        operand, asked = self.operands[k], np.zeros(self.entered.shape[1])
        placed = list(enumerate(_placed(self.nests)))
        copies = [(n, nest.copies[k], at) for n, (nest, at) in placed if _is_at_run(nest.copies.get(k))]
        if not copies:
            return {}, asked
        inner = {i: np.concatenate([sizes[c.depth, at] for _, c, at in copies]) for i, sizes in self.sizes.items()}
        times = np.concatenate([self.entered[c.depth, at] for _, c, at in copies])
        rate = np.concatenate([np.broadcast_to(c.rate, at.stop - at.start) for _, c, at in copies])
        asked_rate = np.concatenate([np.broadcast_to(c.asked_rate, at.stop - at.start) for _, c, at in copies])
        ahead = (asked_rate > 0) & next_stays(self.core, self.operands, k, inner, self.core.asked_into)
        elements = operand.elements(inner) * times
        each = _copy_cycles(self.core, operand, inner, rate, np.where(ahead, asked_rate, 0.0))
        cycles, moved = elements * each + times * TILE_CYCLES, elements * operand.element
        lines = moved * _line_share(self.core, operand, inner)
        if self.core.afar:
            turns = [np.full(at.stop - at.start, not _goes_on(operand, self.nests[n], c)) for n, c, at in copies]
            starts = _pieces(operand, inner) * times * self.core.page
            lines = lines + np.where(np.concatenate(turns), starts, 0.0)
        twice = 1 + _lost_share(self.core, operand, inner)
        coming = np.where(ahead, lines / _source(self.core, operand) * twice, 0.0)
        found: dict[int, Copied] = {}
        low = 0
        for n, copy, at in copies:
            high = low + at.stop - at.start
            found[n] = Copied(copy.depth, cycles[low:high], moved[low:high])
            asked[at] = coming[low:high]
            low = high
        return found, asked


def boxes_of(
    core: Core, operands: Sequence[Operand], nests: Sequence[BlockedNest], extents: Mapping[str, int]
) -> Boxes:
    """The boxes of nests over loops with some extents."""
    shape = (len(nests[0].loops) + 1, sum(nest.count for nest in nests))
    sizes = {i: np.full(shape, float(e)) for i, e in extents.items()}
    entered = np.ones(shape)
    for nest, at in _placed(nests):
        for d, loop in enumerate(nest.loops, 1):
            sizes[loop.iterator][d:, at] = loop.inside
            entered[d, at] = entered[d - 1, at] * loop.trips
    return Boxes(core, operands, nests, sizes, entered)


def _lost_share(core: Core, operand: Operand, box: Mapping[str, Numbers]) -> Numbers | float:
    """The share of what copies ask for that the core's own caches lose before it is copied: it comes twice."""
    if not core.afar:
        return 0.0
    filled = 3 * operand.lines(core, box).footprint / core.caches[core.asked_into].capacity
    return np.clip((filled - LOSING) / (LOST - LOSING), 0.0, 1.0)


def _copy_cycles(core: Core, operand: Operand, box: Mapping[str, Numbers], rate: Numbers, ahead: Numbers) -> Numbers:
    """Cycles an element of a box's copy; `ahead`: elements a cycle of what has been asked for, 0 where nothing is."""
    touched, elements = operand.lines(core, box), operand.elements(box)
    stays = touched.footprint <= core.counted_on(0)
    rate = np.where((ahead > 0) & stays, ahead, rate)
    waiting = np.where(ahead > 0, 0.0, touched.further / elements / _source(core, operand))
    each = ((1 / rate) ** COPYING + waiting**COPYING) ** (1 / COPYING)
    first = core.caches[0]
    if core.afar:  # what is copied in pieces as it comes, into the second cache
        second = (ahead > 0) & (elements * operand.element > first.capacity) & (_pieces(operand, box) > 0)
        each = each + np.where(second, operand.element / first.rate, 0.0)
    return each + _spilled(core, elements * operand.element, operand.element)


def _line_share(core: Core, operand: Operand, box: Mapping[str, Numbers]) -> Numbers:
    """Bytes of the lines of pieces side by side, for each byte of these."""
    length = operand.extents(box)[-1][0] * operand.element
    return (length + core.line - np.gcd(length.astype(int), core.line)) / length


def _placed(nests: Sequence[BlockedNest]) -> list[tuple[BlockedNest, slice]]:
    """Where the candidates of every nest lie."""
    ends = np.cumsum([nest.count for nest in nests])
    return [(nest, slice(end - nest.count, end)) for nest, end in zip(nests, ends, strict=True)]


def _entries(operand: Operand, loops: Sequence[Loop]) -> list[int]:
    """By depth the depth from which inwards no loop around a box changes what it touches of an operand."""
    found = [0]
    for d, loop in enumerate(loops, 1):
        found.append(d if operand.depends(loop.iterator) else found[-1])
    return found


def _follows(operand: Operand, loops: Sequence[Loop], changed: Sequence[int]) -> list[bool]:
    """By depth whether the loop around a box that changes what it touches walks along memory."""
    return [at > 0 and operand.stride(loops[at - 1].iterator) == operand.element for at in changed]


def _panels(operand: Operand, nest: BlockedNest, depth: int) -> int | None:
    """The depth of the loop from panel to panel of what is packed at a depth."""
    inside = range(depth, len(nest.loops))
    return next((d for d in inside if operand.depends(nest.loops[d].iterator)), None)


def _goes_on(operand: Operand, nest: BlockedNest, copy: Copy) -> bool:
    """Whether the next copy goes on in memory where this one ends: else each of its pieces is a new start."""
    return _follows(operand, nest.loops, _entries(operand, nest.loops))[copy.depth]


def _pieces(operand: Operand, box: Mapping[str, Numbers]) -> Numbers:
    """Parts of rows in a box; none where rows are whole."""
    length = operand.extents(box)[-1][0]
    return np.where(length < operand.shape[-1], operand.elements(box) / length, 0.0)


def _depth(nest: BlockedNest, k: int) -> int:
    """At which depth an operand is packed, one more than there are where it is not."""
    return nest.copies[k].depth if k in nest.copies else len(nest.loops) + 1


def _is_at_run(copy: Copy | None) -> bool:
    """Whether a copy is made when the kernel runs."""
    return copy is not None and not bool(np.all(copy.rate >= FREE))


def _source(core: Core, operand: Operand) -> float:
    """Bytes a cycle of what is copied: a copy waits for memory, operations hide nothing of it."""
    far = [cache.rate for n, cache in enumerate(core.caches) if n and operand.size > core.counted_on(n)]
    return far[-1] if far else core.caches[0].rate


def _spilled(core: Core, size: Numbers, element: int) -> Numbers:
    """Cycles an element of a packed buffer that leaves the core's own caches, on its way out and back."""
    level = len(core.own) - 1
    return np.where(size > core.counted_on(level), 2 * element / core.caches[level].rate, 0.0)
