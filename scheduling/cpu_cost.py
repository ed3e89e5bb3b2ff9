"""Cycles of a blocked contraction on a core, in closed form, for many candidates in one call of numpy.

Loops are a list from the outside in; what an iteration touches of an operand is a box, its corners affine in the tile
sizes. An operand comes into a cache once for every iteration of the loops around the part that stays there (the reuse
of Low et al., TOMS 2016, for any order of loops); operations, traffic of each level and copies are added up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poly.locks import cached_property
from poly.machine import Machine
from poly.scheduling.cpu_shares import EDGE, Numbers, shared_time

TILE_CYCLES = 20.0  # of a register tile, or a copy, besides loads, operations and stores: a missed branch, full units
OVERLAP = 4.0  # norm of operations and of the traffic of each cache, where a machine does not say
FREE = 1e9  # elements a cycle of what is copied when compiling
# Of a cache, what stays with the tiles: of one core's own half, as the core's other hardware thread may be at work for
# somebody else, of one of many cores an eighth.
SHARE, SHARED = 0.5, 0.125
# Pieces that do not follow one another: each costs as much as so many bytes more until a prefetcher follows it, others
# where it has a page of its own (if a machine does not say); near the core as much where they all meet in one set,
# and elsewhere what a machine says. A few pieces are streams.
LINE, SETS, PAGE = 64, 64, 4096  # bytes of a cache's line, sets of the first level, bytes of a page
START, PAGE_START, STREAMS = 64.0, 192.0, 4
WALKED = 32  # pieces of a register tile that prefetchers follow from memory at once
PAGES = 64  # that a core finds without looking further: pieces over more of them have pages of their own
# Of what pieces with pages of their own cost behind the core's caches: no prefetcher fetches them, so a core waits.
WAITING = 0.67
LOADING = 1 / 32  # cycles that a load costs besides its unit's: some meet in a bank, or wait in a queue
COPYING = 1.5  # norm of a copy's instructions and of the time that it waits for what it reads: they hardly overlap
FEW = 2  # register tiles that read an operand where it lies: as often as it costs a copy to read and to write it
SHORT = 256  # bytes of a piece from which on a copy keeps its pace


class Cache(NamedTuple):
    """One level: bytes, bytes a cycle from behind it, lines that a set holds."""

    capacity: int
    rate: float
    ways: int = 8


@dataclass(frozen=True)
class Core:
    """What a core does in a cycle; `caches`: the first level first; bytes that a piece costs more than its lines where
    it has a page of its own, and in the second cache; `overlap`: norm of what hides behind what takes longest; `part`:
    of the last cache, what one operand may fill.
    """

    lanes: int
    registers: int
    fma_units: int
    load_units: int
    store_units: int
    latency: int
    caches: tuple[Cache, ...]
    page_start: float = PAGE_START
    near_start: float = 0.0
    overlap: float = OVERLAP
    part: float = SHARED

    @property
    def in_flight(self) -> int:
        """Independent multiply-adds that hide the latency of one."""
        return self.fma_units * self.latency


def own_share(capacity: int) -> int:
    """Bytes of one of a core's own caches that are counted on."""
    return int(SHARE * capacity)


def core_of(machine: Machine, element: int) -> Core:
    """The numbers of a machine's core, usual ones where its description has none; `element`: bytes."""
    engine = next((e for e in machine.engines if e.kind == "core"), None)
    cost = engine.cost if engine is not None else {}
    levels = [m for m in machine.caches if m.capacity]
    behind = [*levels[1:], *(m for m in machine.memories if m.kind == "dram")]
    usual = (28, 14, 6)
    found = [
        Cache(m.capacity or 0, float(b.bytes_per_cycle or usual[min(k, 2)]))
        for k, (m, b) in enumerate(zip(levels, behind, strict=False))
    ]
    found[:1] = [c._replace(ways=max(1, c.capacity // (SETS * LINE))) for c in found[:1]]
    return Core(
        machine.lanes(element), machine.vector_registers,
        cost.get("fma", 2), cost.get("load", 2), cost.get("store", 1), cost.get("latency", 4),
        tuple(found) or (Cache(32768, 24.0), Cache(1 << 20, 5.0)),
        float(cost.get("page", PAGE_START)), float(cost.get("near", 0)), float(cost.get("overlap", OVERLAP)),
        max(SHARED, min(SHARE, 1 / machine.cores)),
    )  # fmt: skip


class Touched(NamedTuple):
    """Bytes of an operand's cache lines that boxes touch: `near` as they come into the first cache, `behind` as they
    count further out, `alone` what of these is for pieces in pages of their own; `needed`: of a cache, where they fall
    together.
    """

    near: Numbers
    behind: Numbers
    alone: Numbers
    needed: Numbers


@dataclass(frozen=True)
class Operand:
    """One access. `axes`: factors of the iterators in every subscript; `strides`: bytes along every axis."""

    tensor: str
    axes: tuple[Mapping[str, int], ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: int
    write: bool = False

    def depends(self, iterator: str) -> bool:
        return iterator in self._apart

    def stride(self, iterator: str) -> int:
        """Bytes between neighbours along a loop."""
        return self._apart.get(iterator, 0)

    @cached_property
    def _apart(self) -> Mapping[str, int]:
        """Bytes between neighbours along every loop."""
        found: dict[str, int] = {}
        for axis, step in zip(self.axes, self.strides, strict=True):
            for iterator, factor in axis.items():
                found[iterator] = found.get(iterator, 0) + factor * step
        return found

    def extents(self, sizes: Mapping[str, Numbers]) -> list[tuple[Numbers, Numbers | None]]:
        """By axis the elements in a row that a box of iterations touches, and the number of such rows, where steps
        leave more out between them than a prefetcher reaches over (None: nowhere).
        """
        found: list[tuple[Numbers, Numbers | None]] = []
        for axis, extent, stride in zip(self.axes, self.shape, self.strides, strict=True):
            far = {i: c for i, c in axis.items() if (abs(c) - 1) * stride > EDGE}
            near = _reach({i: c for i, c in axis.items() if i not in far}, extent, sizes)
            if not far:
                found.append((near, None))
                continue
            total, rows = _reach(axis, extent, sizes), prod((sizes[i] for i in far), start=np.ones(()))
            one = near * rows >= total
            found.append((np.where(one, total, near), np.where(one, 1.0, rows)))
        return found

    def elements(self, sizes: Mapping[str, Numbers]) -> Numbers:
        total: Numbers = np.ones(())
        for extent, rows in self.extents(sizes):
            total = total * extent if rows is None else total * extent * rows
        return total

    def lines(
        self,
        core: Core,
        sizes: Mapping[str, Numbers],
        follows: npt.NDArray[np.bool_] | bool = False,
        walked: Numbers | float = inf,
        line: int = LINE,
    ) -> Touched:
        """The cache lines that a box touches. `follows`: the next box goes on where this one ends, in lines that only
        the first cache has lost by then. `walked`: bytes after which a walk through the box leaves a piece.
        """
        run, count, crowd = np.ones(()), np.ones(()), np.ones(())
        far = apart = np.zeros((), bool)
        whole: npt.NDArray[np.bool_] | None = np.ones((), bool)  # the axes so far lie in one piece; None: they cannot
        dense = self.element
        for (extent, rows), size, stride in zip(
            reversed(self.extents(sizes)), reversed(self.shape), reversed(self.strides), strict=True
        ):
            if rows is not None:
                count = count * rows
            sets = crowding(stride, line) / count  # the pieces of a step fill the sets that it leaves out
            over = (extent > 1) & (extent * stride > PAGES * PAGE) & (stride >= PAGE)
            if whole is not None and stride == dense:
                count = np.where(whole, count, count * extent)
                crowd = np.where(whole | (extent < 2), crowd, np.maximum(crowd, sets))
                far, apart = far | (~whole & over), apart | ((extent > 1) & (stride >= PAGE))
                run = np.where(whole, run * extent, run)
                whole, dense = whole & (extent >= size), dense * size
                continue
            whole = None
            count = count * extent
            crowd = np.where(extent < 2, crowd, np.maximum(crowd, sets))
            far, apart = far | over, apart | ((extent > 1) & (stride >= PAGE))
        length = run * self.element
        lines = (length - self.element) / line + 1  # of a piece that starts anywhere
        touched = count * lines * line
        starts = np.where(count > STREAMS, count, 0.0)
        near = touched + starts * (core.near_start + START * (crowd >= SETS))
        left = count * np.where(apart, np.maximum(length / walked, 1.0), 1.0)  # pieces as they are walked
        starts = np.where(left > STREAMS, left, 0.0)
        shared = np.where(follows, np.minimum(length / line, 1.0), 1.0)  # of a line with the box before
        start = starts * shared * np.where(far, core.page_start, START)
        behind = touched * np.where(follows, length / line / lines, 1.0) + start
        return Touched(near, behind, np.where(far, start, 0.0), touched * np.maximum(crowd / lines, 1.0))


def _reach(axis: Mapping[str, int], extent: int, sizes: Mapping[str, Numbers]) -> Numbers:
    """Elements of an axis from the first to the last that a box touches."""
    total: Numbers | None = None
    for i, c in axis.items():
        part = sizes[i] - 1.0 if abs(c) == 1 else abs(c) * (sizes[i] - 1.0)
        total = part if total is None else total + part
    return np.ones(()) if total is None else np.minimum(1.0 + total, float(extent))


def crowding(stride: int, line: int = LINE) -> float:
    """Of `SETS` sets, how many a walk with a stride leaves out: all where every step meets the same one, none where
    steps are no whole lines, so that they drift.
    """
    return float(min(SETS, max(1, (stride & -stride) // line)))


def lines_kept(core: Core, stride: int) -> float:
    """How many lines that far apart the first cache holds."""
    return core.caches[0].ways * SETS / crowding(stride)


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
    `near`: elements a cycle where what is copied has been asked for and is in the nearest cache, 0 where nothing is.
    """

    depth: int
    rate: Numbers
    near: Numbers | float = 0.0


@dataclass(frozen=True)
class Copied:
    """All copies of an operand at a depth of the nest: their cycles and bytes."""

    depth: int
    cycles: Numbers
    bytes: Numbers


def shared_cycles(
    inside: Numbers,
    operands: Sequence[Operand],
    loops: Sequence[Loop],
    copied: Mapping[int, Copied],
    threads: int,
    carried: Collection[str],
    pieces: Sequence[Numbers],
    made: Collection[int] = (),
) -> Numbers:
    """Cycles until the last of some threads has done a nest that takes one of them `inside`, and its copies.

    They share the loop with which that is soonest, none of those that are `carried`, and copies outside of it, and meet
    after each of these. What is copied there and does not move along the loop comes to every thread, from the one that
    copied it, and so do operands that are `made` by other nests. `pieces`: loops one after another that each of `loops`
    stands for.
    """
    best = inside + sum((c.cycles for c in copied.values()), np.zeros(()))
    if threads == 1:
        return best
    reached = [np.ones(())]
    for depth, loop in enumerate(loops, 1):
        if loop.iterator not in carried:
            before = [k for k, c in copied.items() if c.depth < depth]
            own = inside + sum((c.cycles for k, c in copied.items() if k not in before), np.zeros(()))
            common = sum((copied[k].cycles for k in before), np.zeros(()))
            far = [copied[k].bytes for k in before if not operands[k].depends(loop.iterator)]
            travelling = sum(far, np.zeros(())) * (1 - 1 / threads)
            for k, o in enumerate(operands):
                if k in made and k not in before and not o.depends(loop.iterator):
                    travelling = travelling + _size(o) * (1 - 1 / threads)
                if o.write and o.stride(loop.iterator) == o.element:
                    travelling = travelling + EDGE * (threads - 1) * float(prod(o.shape[:-1]))
            meetings = reached[-1] * pieces[depth - 1] - 1 + sum(reached[copied[k].depth] for k in before)
            cycles = common / threads + shared_time(own, loop.trips, meetings, travelling, threads)
            best = np.minimum(best, np.where(loop.trips > 1, cycles, best))
        reached.append(reached[-1] * loop.trips)
    return best


@dataclass(frozen=True)
class Nest:
    """Some candidates with the same loops and packed operands: arrays of `count` elements, or of none."""

    loops: Sequence[Loop]
    copies: Mapping[int, Copy]
    count: int


class Traffic(NamedTuple):
    """Cycles of traffic by candidate: of each level before the last, the first one first (`near`), of what copies have
    asked for (`coming`), and of all else from behind the last level (`far`), with what a core waits for pieces that
    nothing prefetches.
    """

    near: Sequence[Numbers]
    coming: Numbers
    far: Numbers


def cycles_of_memory(
    core: Core,
    operands: Sequence[Operand],
    nests: Sequence[Nest],
    extents: Mapping[str, int],
    along: Collection[int] = (),
) -> tuple[Traffic, list[dict[int, Copied]]]:
    """Cycles of traffic for all candidates; and by nest the copies of packed operands. All nests have the same number
    of loops.

    The outermost box of iterations that fits in a level is loaded once each time it is entered; what does not depend
    on the loops directly around it is there already. What is packed is where its copy left it, which is charged for
    what it fetches from beyond the caches that hold the operand. Operands that vectors walk `along` memory, for
    few register tiles, are in the last level if they fit there: a core waits for that, not for memory.
    """
    boxes, entered = _boxes(nests, extents)
    copying: list[dict[int, Copied]] = [{} for _ in nests]
    walks = [_walk(core, operands, k, nests, boxes, entered, copying) for k in range(len(operands))]
    room = sum((walk.touched.needed for walk in walks), np.zeros(()))
    coming = sum((walk.asked for walk in walks), np.zeros(()))
    levels: list[Numbers] = []
    waits: Numbers = np.zeros(())
    last = len(core.caches) - 1
    for n, (capacity, rate, _) in enumerate(core.caches):
        fits = room <= capacity * _share(n)
        kept = _Kept(entered, np.argmax(fits, axis=0)[None], np.asarray(fits.any(axis=0)))
        total: Numbers = np.zeros(())
        for k, walk in enumerate(walks):
            moved, own = _brought(core, n, walk, kept)
            if n == last:
                coming = coming + np.where(walk.asked > 0, moved, 0.0) / rate
                moved = np.where(walk.asked > 0, 0.0, moved)
            if n == last > 0 and k in along:
                few = ~own & (walk.operand.elements(boxes)[-1] * entered[-1] < (FEW + 1) * prod(walk.operand.shape))
                moved = np.where(few, np.maximum(moved - _there(core, walk.operand), 0.0), moved)
            total = total + moved * (2.0 if walk.operand.write else 1.0)
            if 0 < n < last and walk.touched.alone.any():
                waits = waits + np.where(own, 0.0, kept.moved(walk.touched.alone, walk.around)) * WAITING / rate
        levels.append(total / rate)
    return Traffic(levels[:-1], coming, levels[-1] + waits), copying


@dataclass(frozen=True)
class _Kept:
    """Which boxes stay in a cache, by candidate: the depth of the outermost that does, and whether there is `some`;
    `entered`: by depth and candidate, how often a box is.
    """

    entered: Numbers
    stays: npt.NDArray[np.int_]
    some: npt.NDArray[np.bool_]

    def moved(self, touched: Numbers, around: Numbers) -> Numbers:
        """Bytes that come into the cache: of the boxes that stay each time these change, else everything every time."""
        boxes = np.take_along_axis(touched * around, self.stays, 0)[0]
        return np.where(self.some, boxes, touched[-1] * self.entered[-1])


@dataclass(frozen=True)
class _Walk:
    """What the boxes touch of an operand, by depth and candidate, and how often each of them changes that (`around`).

    `at`: the depth at which it is packed, `paid`: whether its copy is made when the kernel runs (None: never packed);
    `asked`: cycles in which what copies have asked for comes.
    """

    operand: Operand
    touched: Touched
    around: Numbers
    at: npt.NDArray[np.int_] | None
    paid: npt.NDArray[np.bool_] | None
    asked: Numbers


def _walk(
    core: Core,
    operands: Sequence[Operand],
    k: int,
    nests: Sequence[Nest],
    boxes: Mapping[str, Numbers],
    entered: Numbers,
    copying: Sequence[dict[int, Copied]],
) -> _Walk:
    """The walk of one operand; its copies are added to those of each nest."""
    operand = operands[k]
    if not any(k in nest.copies for nest in nests):
        touched, around = _touched(core, operand, nests, boxes, entered, None)
        return _Walk(operand, touched, around, None, None, np.zeros(()))
    counts = [nest.count for nest in nests]
    at = np.repeat([_depth(nest, k) for nest in nests], counts)
    paid = np.repeat([_paid(nest.copies.get(k)) for nest in nests], counts)
    asked = _copied(core, operands, k, nests, boxes, entered, copying)
    return _Walk(operand, *_touched(core, operand, nests, boxes, entered, at), at, paid, asked)


def _brought(core: Core, level: int, walk: _Walk, kept: _Kept) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Bytes of an operand that come into a level, and where its own copy has left it there."""
    moved = kept.moved(walk.touched.behind if level else walk.touched.near, walk.around)
    if walk.at is None or walk.paid is None:
        return moved, np.zeros((), bool)
    own, size = walk.paid & kept.some & (kept.stays[0] <= walk.at), _size(walk.operand)
    return np.where(own, 0.0 if size > core.caches[level].capacity * _share(level) else float(size), moved), own


def _touched(
    core: Core,
    operand: Operand,
    nests: Sequence[Nest],
    boxes: Mapping[str, Numbers],
    entered: Numbers,
    at: npt.NDArray[np.int_] | None,
) -> tuple[Touched, Numbers]:
    """What boxes touch of an operand, dense from the depth `at` which it is packed, by depth and candidate; and how
    often each of them changes that.
    """
    counts = [nest.count for nest in nests]
    changed = [_entries(operand, nest.loops) for nest in nests]
    follows = [_follows(operand, nest.loops, c) for nest, c in zip(nests, changed, strict=True)]
    around = np.take_along_axis(entered, _columns(changed, counts), 0)
    far = _size(operand) > core.caches[-1].capacity * _share(len(core.caches) - 1)  # comes from memory
    walked = _walked(operand, nests, boxes) if far else inf
    found = operand.lines(core, boxes, _columns(follows, counts) > 0, walked)
    found = Touched(*(np.broadcast_to(v, entered.shape) for v in found))
    if at is None:
        return found, around
    dense, inside = operand.elements(boxes) * operand.element, np.arange(len(entered))[:, None] >= at
    near, behind, alone, needed = found
    return Touched(
        np.where(inside, dense, near), np.where(inside, dense, behind), np.where(inside, 0.0, alone),
        np.where(inside, dense, needed),
    ), around  # fmt: skip


def _boxes(nests: Sequence[Nest], extents: Mapping[str, int]) -> tuple[dict[str, Numbers], Numbers]:
    """By depth and candidate the iterations of a box by iterator, and how often it is entered."""
    shape = (len(nests[0].loops) + 1, sum(nest.count for nest in nests))
    boxes = {i: np.full(shape, float(e)) for i, e in extents.items()}
    entered, low = np.ones(shape), 0
    for nest in nests:
        own = slice(low, low + nest.count)
        for d, loop in enumerate(nest.loops, 1):
            boxes[loop.iterator][d:, own] = loop.inside
            entered[d, own] = entered[d - 1, own] * loop.trips
        low += nest.count
    return boxes, entered


def _depth(nest: Nest, k: int) -> int:
    """At which depth an operand is packed, one more than there are where it is not."""
    return nest.copies[k].depth if k in nest.copies else len(nest.loops) + 1


def _paid(copy: Copy | None) -> bool:
    """Whether a copy is made when the kernel runs."""
    return copy is not None and not bool(np.all(copy.rate >= FREE))


def _columns(by_nest: Sequence[Sequence[int]], counts: Sequence[int]) -> npt.NDArray[np.int_]:
    """Values by depth of every nest, for each of its candidates."""
    return np.repeat(np.array(by_nest).T, counts, axis=1)


def _copied(
    core: Core,
    operands: Sequence[Operand],
    k: int,
    nests: Sequence[Nest],
    boxes: Mapping[str, Numbers],
    entered: Numbers,
    copying: Sequence[dict[int, Copied]],
) -> Numbers:
    """Add the copies of one operand in all nests that have some; by candidate the cycles in which what they have asked
    for comes, while others go on.
    """
    operand = operands[k]
    asked = np.zeros(sum(nest.count for nest in nests))
    ends = np.cumsum([nest.count for nest in nests])
    places = [(n, slice(end - nest.count, end)) for n, (nest, end) in enumerate(zip(nests, ends, strict=True))]
    own = [(n, nests[n].copies[k], at) for n, at in places if _paid(nests[n].copies.get(k))]
    if not own:
        return asked
    inner = {i: np.concatenate([sizes[c.depth, at] for _, c, at in own]) for i, sizes in boxes.items()}
    times = np.concatenate([entered[c.depth, at] for _, c, at in own])
    rate, near = (
        np.concatenate([np.broadcast_to(r, at.stop - at.start) for (_, _, at), r in zip(own, rates, strict=True)])
        for rates in ([c.rate for _, c, _ in own], [c.near for _, c, _ in own])
    )
    elements, element = operand.elements(inner), operand.element
    touched, nearest = operand.lines(core, inner), core.caches[0].capacity
    ahead = (near > 0) & next_stays(core, operands, k, inner)
    rate = np.where(ahead & (touched.needed <= SHARE * nearest), near, rate)
    source = _source(core, operand)
    waiting = np.where(ahead, 0.0, touched.behind / elements / source)
    each = ((1 / rate) ** COPYING + waiting**COPYING) ** (1 / COPYING)
    each = each + _spilled(core, elements * element, element)
    total, length = elements * times, operand.extents(inner)[-1][0] * element
    whole = (length + LINE - np.gcd(length.astype(int), LINE)) / length  # lines of pieces side by side, for their bytes
    cycles, moved, low = total * each + times * TILE_CYCLES, total * element, 0
    for n, copy, at in own:
        high = low + at.stop - at.start
        copying[n][k] = Copied(copy.depth, cycles[low:high], moved[low:high])
        asked[at] = np.where(ahead, moved * whole / source, 0.0)[low:high]
        low = high
    return asked


def next_stays(core: Core, operands: Sequence[Operand], k: int, sizes: Mapping[str, Numbers]) -> npt.NDArray[np.bool_]:
    """Whether the nearest cache holds, besides all that is used of a box, as much of one operand once more: what is
    copied for the next box can be asked for while this one is used.
    """
    used = sum((o.elements(sizes) * o.element for o in (*operands, operands[k])), np.zeros(()))
    return used <= core.caches[0].capacity


def _entries(operand: Operand, loops: Sequence[Loop]) -> list[int]:
    """By depth the depth from which inwards no loop around a box changes what it touches of an operand."""
    found = [0]
    for d, loop in enumerate(loops, 1):
        found.append(d if operand.depends(loop.iterator) else found[-1])
    return found


def _follows(operand: Operand, loops: Sequence[Loop], changed: Sequence[int]) -> list[bool]:
    """By depth whether the loop around a box that changes what it touches walks along memory."""
    return [at > 0 and operand.stride(loops[at - 1].iterator) == operand.element for at in changed]


def _walked(operand: Operand, nests: Sequence[Nest], boxes: Mapping[str, Numbers]) -> Numbers:
    """By candidate the bytes that its tile loops walk along memory before they leave a piece: prefetchers follow the
    few pieces of a register tile on to the next one, but not the many of what all its steps read.
    """
    inner = {i: sizes[-1] for i, sizes in boxes.items()}
    pieces = operand.extents(inner)[-1][0] * operand.element
    few = operand.elements(inner) * operand.element <= WALKED * pieces
    found, low = np.broadcast_to(pieces, few.shape).copy(), 0
    for nest in nests:
        own = slice(low, low + nest.count)
        run, goes_on = found[own], few[own]
        for loop in reversed(nest.loops):
            if operand.depends(loop.iterator):
                stride = operand.stride(loop.iterator)
                adjacent = stride * loop.inside == run
                run = np.where(goes_on & adjacent, np.maximum(run, stride * loop.outside), run)
                goes_on = goes_on & (adjacent | (loop.trips < 2))
        found[own], low = run, low + nest.count
    return found


def _source(core: Core, operand: Operand) -> float:
    """Bytes a cycle of what is copied: a copy waits for memory, operations hide nothing of it."""
    far = [rate for n, (capacity, rate, _) in enumerate(core.caches) if n and _size(operand) > capacity * _share(n)]
    return far[-1] if far else core.caches[0].rate


def _there(core: Core, operand: Operand) -> float:
    """Bytes from memory that are spared as the last of the caches has an operand when a kernel starts: all but what
    takes as long to come from there. What a core's own caches can hold is as near either way.
    """
    *_, own, last = core.caches
    far = own.capacity < _size(operand) <= last.capacity * core.part
    return _size(operand) * (1 - last.rate / own.rate) if far else 0.0


def _size(operand: Operand) -> int:
    """Bytes of the tensor."""
    return prod(operand.shape) * operand.element


def _share(level: int) -> float:
    return SHARE if level < 2 else SHARED


def _spilled(core: Core, size: Numbers, element: int) -> Numbers:
    """Cycles an element of a packed buffer that leaves the core's own caches, on its way out and back."""
    own = core.caches[: max(1, len(core.caches) - 1)]
    return np.where(size > SHARE * own[-1].capacity, 2 * element / own[-1].rate, 0.0)


def step_cycles(core: Core, work: Numbers, loads: Numbers) -> Numbers:
    """Cycles of one step of a reduction on a register tile with `work` sums: operations, loads, latency."""
    return np.maximum(np.maximum(work / core.fma_units, loads / core.load_units), core.latency) + loads * LOADING


def tile_cycles(core: Core, work: Numbers, loads: Numbers, again: Numbers) -> tuple[Numbers, Numbers]:
    """Of a register tile with `work` sums, `loads` a step: cycles of one step of the reduction, and of all the rest
    (`again`: sums come from memory).
    """
    rest = TILE_CYCLES + work / core.store_units + again * work / core.load_units
    return step_cycles(core, work, loads), rest


def together(core: Core, work: Numbers, traffic: Traffic) -> Numbers:
    """Cycles of operations and of traffic: what comes from caches overlaps, and the longest hides most of the others;
    for memory a core waits, as prefetchers start anew in every page.
    """
    overlapping = (work, *traffic.near, traffic.coming)
    return sum((p**core.overlap for p in overlapping), np.zeros(())) ** (1 / core.overlap) + traffic.far
