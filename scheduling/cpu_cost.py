"""Cycles of a blocked contraction on a core, in closed form, for many candidates in one call of numpy.

Operations and traffic of each level of the caches overlap, so that a norm of them counts; what a core waits for memory,
and copies, are added. What an operand brings into a cache follows from its walk through the boxes of a nest
(`poly.scheduling.cpu_reuse`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poly.scheduling.cpu_core import TILE_CYCLES, Core
from poly.scheduling.cpu_operand import Operand
from poly.scheduling.cpu_reuse import BlockedNest, Boxes, Copied, Loop, Residents, Walk, boxes_of
from poly.scheduling.cpu_shares import EDGE, FITTED_REMOTE, Numbers, Shares, share_from_afar, shared_time

# Of what pieces with pages of their own cost behind the core's caches: no prefetcher fetches them, so a core waits.
WAITING = 0.67
LOADING = 1 / 32  # cycles that a load costs besides its unit's: some meet in a bank, or wait in a queue
PANELS_STAY = (0.75, 1.0)  # of a core's own caches, as often as what is counted on: panels that are read again
ASKED_IN_PART = 0.05  # of the time of what two blocks leave no room for others beside
LEAST = 1e-3  # of a kernel's time in which something comes
HELD = 1 / 2  # of what bytes from the last cache cost in the level before: they overlap with it in part (0133)
FEW = 2  # register tiles that read an operand where it lies: as often as it costs a copy to read and to write it


@dataclass(frozen=True)
class SharedNest:
    """A nest of which some threads share a loop, none of those that are `carried`, and copies outside of it, and meet
    after each of these. What is copied there and does not move along the loop comes to every thread, from the one that
    copied it, and so do operands that are `made` by other nests (1; 0 for candidates that make them in copies).

    `copied`: by position of an operand. `pieces`: loops one after another that each of `loops` stands for. `remote`:
    bytes a cycle of what is fetched at the edges of rows that threads write side by side. `shares`: by position what
    threads have of loops whose iterations are not alike. `near`: cycles inside where all that comes from behind a
    core's own caches, the last of `capacity` bytes, is there from the call before; None: it never is. `edge`: bytes
    over the end of a row that come with it.
    """

    operands: Sequence[Operand]
    loops: Sequence[Loop]
    copied: Mapping[int, Copied]
    threads: int
    carried: Collection[str]
    pieces: Sequence[Numbers]
    made: Mapping[int, Numbers] = field(default_factory=dict[int, Numbers])
    remote: float = FITTED_REMOTE
    shares: Mapping[int, Shares] = field(default_factory=dict[int, Shares])
    near: Numbers | None = None
    capacity: int = 0
    edge: int = EDGE

    def cycles(self, inside: Numbers) -> Numbers:
        """Cycles until the last thread has done the nest, of which one alone takes `inside`, and its copies: with the
        loop with which that is soonest.
        """
        best = inside + sum((c.cycles for c in self.copied.values()), np.zeros(()))
        if self.threads == 1:
            return best
        reached = [np.ones(())]
        for depth, loop in enumerate(self.loops, 1):
            if loop.iterator not in self.carried:
                cycles, trips = self._with(depth, inside, reached)
                best = np.minimum(best, np.where(trips > 1, cycles, best))
            reached.append(reached[-1] * loop.trips)
        return best

    def _with(self, depth: int, inside: Numbers, reached: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
        """Cycles where threads share the loop at a depth, and its iterations; `reached`: how often loops are."""
        loop, threads = self.loops[depth - 1], self.threads
        before = [k for k, c in self.copied.items() if c.depth < depth]
        inside = self._divided(loop, inside)
        own = inside + sum((c.cycles for k, c in self.copied.items() if k not in before), np.zeros(()))
        common = sum((self.copied[k].cycles for k in before), np.zeros(()))
        travelling = self._travelling(loop, before)
        meetings = reached[-1] * self.pieces[depth - 1] - 1 + sum(reached[self.copied[k].depth] for k in before)
        share, trips = self.shares.get(depth - 1), loop.trips
        if share is None:
            shared = shared_time(own, trips, meetings, travelling, threads, FITTED_REMOTE)
        else:
            shared = share.cycles(own) + shared_time(0.0, trips, meetings, travelling, threads, FITTED_REMOTE)
            trips = share.trips
        return common / threads + shared + _at_edges(self.operands, loop, threads, self.edge) / self.remote, trips

    def _divided(self, loop: Loop, inside: Numbers) -> Numbers:
        """Cycles inside where threads divide what moves along a loop, so that more of it stays with each of them."""
        if self.near is None:
            return inside
        whole = sum(o.size for o in self.operands)
        each = sum(o.size / (self.threads if o.depends(loop.iterator) else 1) for o in self.operands)
        share = share_from_afar(whole, each, self.capacity)
        return share * inside + (1 - share) * np.minimum(self.near, inside)

    def _travelling(self, loop: Loop, before: Collection[int]) -> Numbers:
        """Bytes of what is copied `before` a loop that threads share, or made, that one of them has from the others."""
        far = [self.copied[k].bytes for k in before if not self.operands[k].depends(loop.iterator)]
        travelling = sum(far, np.zeros(())) * (1 - 1 / self.threads)
        for k, o in enumerate(self.operands):
            if k in self.made and k not in before and not o.depends(loop.iterator):
                others = o.size * (1 - 1 / self.threads)  # more than their caches hold lies in the last one
                travelling = travelling + self.made[k] * (others if not 0 < self.capacity < others else 0.0)
        return travelling


def _at_edges(operands: Sequence[Operand], loop: Loop, threads: int, edge: int) -> float:
    """Bytes that are fetched at the edges of rows which threads write side by side along a loop, `edge` of a row: of a
    tensor no more than what the others write of it.
    """
    found = 0.0
    for o in operands:
        if o.write and loop.iterator in o.axes[-1]:
            found += min(edge * (threads - 1) * float(prod(o.shape[:-1])), o.size * (1 - 1 / threads))
    return found


class MemoryCycles(NamedTuple):
    """Cycles of traffic by candidate: of each level before the last, the first one first, of what copies have asked for
    (`coming`), and of all else from behind the last level (`far`), with what a core waits for pieces that nothing
    prefetches. `bursts`: cycles of what is asked for on its way, and the share of the time in which it comes.
    """

    levels: Sequence[Numbers]
    coming: Numbers
    far: Numbers
    bursts: Sequence[tuple[Numbers, Numbers]] = ()


def cycles_of_memory(
    core: Core, operands: Sequence[Operand], nests: Sequence[BlockedNest], extents: Mapping[str, int],
    along: Collection[int] = (), panels: Collection[int] = (),
) -> tuple[MemoryCycles, list[dict[int, Copied]]]:  # fmt: skip
    """Cycles of traffic for all candidates; and by nest the copies of packed operands. All nests have the same number
    of loops.

    The outermost box of iterations that fits in a level is loaded once each time it is entered; what does not depend
    on the loops directly around it is there already. What is packed is where its copy left it, which is charged for
    what it fetches from beyond the caches that hold the operand. Operands that vectors walk `along` memory, for
    few register tiles, are in the last level if they fit there: a core waits for that, not for memory. Packed `panels`
    are read again and again, so that more of the core's own caches is theirs part of the time.
    """
    boxes = boxes_of(core, operands, nests, extents)
    walks = [boxes.walk(k) for k in range(len(operands))]
    room = sum((walk.touched.footprint for walk in walks), np.zeros(()))
    coming = sum((walk.asked for walk in walks), np.zeros(()))
    levels: list[Numbers] = []
    bursts: list[tuple[Numbers, Numbers]] = []
    waits: Numbers = np.zeros(())
    last = len(core.caches) - 1
    for n, cache in enumerate(core.caches):
        residents = boxes.residents(room, core.counted_on(n))
        larger = [boxes.residents(room, part * cache.capacity) for part in PANELS_STAY] if n < last else []
        total: Numbers = np.zeros(())
        for k, walk in enumerate(walks):
            moved, left = _brought(core, n, walk, residents, larger if k in panels else [])
            if n == last:
                moved, asked, burst = _from_last(core, boxes, walk, moved, left, k in along)
                coming, bursts = coming + asked, bursts + burst
            total = total + moved * (2.0 if walk.operand.write else 1.0)
            if 0 < n < last and walk.touched.scattered.any():
                scattered = np.where(left, 0.0, residents.moved(walk.touched.scattered, walk.around))
                waits = waits + scattered * WAITING / cache.rate
        levels.append(total / cache.rate)
    return MemoryCycles(levels[:-1], coming, levels[-1] + waits, bursts), _copies(core, boxes, walks, len(nests))


def _copies(core: Core, boxes: Boxes, walks: Sequence[Walk], nests: int) -> list[dict[int, Copied]]:
    """By nest the copies of packed operands."""
    walks = [boxes.with_buffer(walk, k) for k, walk in enumerate(walks)] if core.afar else walks
    return [{k: walk.copied[n] for k, walk in enumerate(walks) if n in walk.copied} for n in range(nests)]


def _brought(
    core: Core, level: int, walk: Walk, residents: Residents, larger: Sequence[Residents]
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Bytes of an operand that come into a level, and where its copy has `left` it there; `larger`: what stays
    there part of the time, if the operand is packed.
    """
    moved = residents.moved(walk.touched.further if level else walk.touched.first, walk.around)
    left = np.zeros((), bool)
    if walk.packed_at is not None and walk.at_run is not None:
        left = walk.at_run & residents.any & (residents.outermost[0] <= walk.packed_at)
        size = walk.operand.size
        moved = np.where(left, 0.0 if size > core.counted_on(level) else float(size), moved)
    if larger and walk.packed_at_run.any():
        parts = [moved, *(_brought(core, level, walk, some, [])[0] for some in larger)]
        moved = np.where(walk.packed_at_run, sum(parts, np.zeros(())) / len(parts), moved)
    return moved, left


def _from_last(
    core: Core, boxes: Boxes, walk: Walk, moved: Numbers, left: npt.NDArray[np.bool_], along: bool
) -> tuple[Numbers, Numbers, list[tuple[Numbers, Numbers]]]:
    """What counts of the bytes that an operand has from behind the last level, cycles of what has been asked for, and
    its bursts.
    """
    bursts: list[tuple[Numbers, Numbers]] = []
    *nearer, last = core.caches
    moved = moved * held_share(core, walk.operand)
    coming = np.where(walk.asked > 0, moved, 0.0) / last.rate
    moved = np.where(walk.asked > 0, 0.0, moved)
    if nearer and walk.packed_before.any() and walk.operand.size > nearer[-1].capacity:
        bursts.append(_burst(core, boxes, walk, moved))
        moved = np.where(walk.packed_before, 0.0, moved)
    if nearer and along:
        few = ~left & (boxes.read(walk.operand) < (FEW + 1) * prod(walk.operand.shape))
        moved = np.where(few, moved * memory_share(core, walk.operand), moved)
    return moved, coming, bursts


def _burst(core: Core, boxes: Boxes, walk: Walk, moved: Numbers) -> tuple[Numbers, Numbers]:
    """Cycles in which an operand comes that was packed when compiling, out of the last cache where it may stay there,
    and the share of a kernel's time: of the register tiles that use some of it one after the other, only the first
    waits for it. All the time where the next block is asked for meanwhile, and stays.
    """
    *_, own, last = core.caches
    rate = own.rate if walk.operand.size <= last.capacity * core.part else last.rate
    used = walk.touched.first[-1] * boxes.entered[-1]
    share = np.where(walk.packed_before, np.clip(moved / used, LEAST, 1.0), 1.0)
    if core.afar:
        two, level = 2 * boxes.block(walk), len(core.own) - 1
        asked = np.where(two <= core.counted_on(level), 1.0, np.where(two <= own.capacity, ASKED_IN_PART, 0.0))
        share = np.maximum(share, asked)
    return np.where(walk.packed_before, moved, 0.0) / rate, share


def memory_share(core: Core, operand: Operand) -> float:
    """What a byte of an operand costs beside one from memory: less where the last cache holds the operand when a kernel
    starts, but no cache of the core's own does (`held_share` says it of all operands).
    """
    *_, own, last = core.caches
    far = own.capacity < operand.size <= last.capacity * core.part and not core.afar
    return last.rate / own.rate if far else 1.0


def held_share(core: Core, operand: Operand) -> float:
    """The same where the last cache is as slow as memory elsewhere, of all that it holds: half of it, since what comes
    from there is also among the traffic of the level before.
    """
    *nearer, last = core.caches
    held = core.afar and nearer and operand.size <= core.counted_on(len(nearer))
    return HELD * last.rate / nearer[-1].rate if held else 1.0


def step_cycles(core: Core, work: Numbers, loads: Numbers) -> Numbers:
    """Cycles of one step of a reduction on a register tile with `work` sums: operations, loads, latency."""
    return np.maximum(np.maximum(work / core.fma, loads / core.load), core.latency) + loads * LOADING


def tile_cycles(
    core: Core, work: Numbers, loads: Numbers, crossed: Numbers, again: Numbers
) -> tuple[Numbers, Numbers]:
    """Of a register tile with `work` sums, `loads` a step, `crossed` of them for vectors that lie in two lines: cycles
    of one step of the reduction, and of all the rest (`again`: sums come from memory).
    """
    rest = TILE_CYCLES + work / core.store + again * work * (1 / core.load + core.sums)
    return step_cycles(core, work, loads) + crossed * core.crossing / 100, rest


def overlapped(core: Core, work: Numbers, traffic: MemoryCycles) -> Numbers:
    """Cycles of operations and of traffic: what comes from caches overlaps, less where the last one is far, bursts only
    while they come; for memory a core waits, as prefetchers start anew in every page.
    """
    if core.afar:
        first = _longest(core.overlap, (work, *traffic.levels[:1]))
        cycles = _longest(max(1, core.overlap - 1), (first, *traffic.levels[1:], traffic.coming))
    else:
        cycles = _longest(core.overlap, (work, *traffic.levels, traffic.coming))
    for burst, share in traffic.bursts:
        cycles = (1 - share) * cycles + share * _longest(core.overlap, (cycles, burst / share))
    return cycles + traffic.far


def overlapped_near(core: Core, work: Numbers, traffic: MemoryCycles) -> Numbers:
    """The same where nothing comes from behind a core's own caches."""
    zero = np.zeros(())
    return overlapped(core, work, MemoryCycles([*traffic.levels[:1], *(zero for _ in traffic.levels[1:])], zero, zero))


def _longest(norm: int, parts: Sequence[Numbers]) -> Numbers:
    """A norm: the longest hides most of the others."""
    return sum((p**norm for p in parts), np.zeros(())) ** (1 / norm)
