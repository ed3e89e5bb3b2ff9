"""What a core does in a cycle and what its caches hold, as models of time take it from a machine's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from poly.machine import USUAL_BYTES_PER_CYCLE, USUAL_CACHE, USUAL_CORE, Machine

# Fitted together with what descriptions say, and alike on the cores that we know. What a core waits in `cpu_cost` is of
# this kind, too, and what concerns threads in `cpu_shares`.
TILE_CYCLES = 20.0  # of a register tile, or a copy, besides loads, operations and stores: a missed branch, full units
# Pieces that do not follow one another: each costs as much as so many bytes more until a prefetcher follows it, what a
# machine says where it has a page of its own; near the core as much where they all meet in one set, and elsewhere what
# a machine says. Pieces over more pages than a core knows have pages of their own; a few pieces are streams.
START, STREAMS = 64.0, 4
WALKED = 32  # pieces of a register tile that prefetchers follow from memory at once
# What a cache gives. Who keeps something there counts on a share of what the description says: of one core's own half,
# as the core's other hardware thread may be at work for somebody else (`own_share`), of one of many cores an eighth
# (`Core.counted_on`, for both). One operand that was there before may fill a core's part of the last one, an eighth to
# a half (`Core.part`). Who asks whether bytes come from memory or go there, as streams, rows and stores past the caches
# do, asks what the machine's cores can have at all (`last_capacity`, `last_share`): a guest of a larger machine sees
# all of its cache, of which cores that it does not see have parts, none more than `MOST_OF_LAST`. For contractions
# an eighth of that, and not of all that is seen, is too little: 1024 and 2048 cubed 1.23, 1.27 (0088).
OWN_SHARE, LAST_SHARE = 0.5, 0.125
MOST_OF_LAST = 32 * 1024**2
PAGE = 4096  # bytes
# Bytes a cycle of what another core wrote: where they come faster, it costs little to share what is packed.
SLOWLY_SHARED = 4


class Cache(NamedTuple):
    """One level: bytes, bytes a cycle from behind it, lines that a set holds; `shared`: by all cores."""

    capacity: int
    rate: float
    ways: int = 8
    shared: bool = False


@dataclass(frozen=True)
class Core:
    """A core's lanes, vector registers and caches, the first level first; `part`: of the last cache, what one operand
    may fill; `line`: bytes. All that follows is as `USUAL_CORE` says, by the same names.
    """

    lanes: int
    registers: int
    caches: tuple[Cache, ...]
    part: float
    line: int
    fma: int
    load: int
    store: int
    issue: int
    latency: int
    reduce: int
    page: int
    near: int
    overlap: int
    remote: int
    pages: int
    turning: int
    lost: int
    gather: int
    sums: int
    afar: int
    crossing: int
    asked: int
    anew: int
    piece: int
    guarded: int
    unpadded: int
    streamed: int

    @property
    def own(self) -> tuple[Cache, ...]:
        """The caches that a core has for itself."""
        return tuple([c for c in self.caches if not c.shared])

    @property
    def asked_into(self) -> int:
        """The level that holds what copies ask for: the core's own last one where they ask for much."""
        return len(self.own) - 1 if self.afar else 0

    @property
    def in_flight(self) -> int:
        """Independent multiply-adds that hide the latency of one."""
        return self.fma * self.latency

    @property
    def padded_rate(self) -> float:
        """Elements a cycle of a copy with padding."""
        return self.guarded / 10

    @property
    def sets(self) -> int:
        """Sets of the first cache: a line is looked for by what its address is within a page."""
        return PAGE // self.line

    def crowding(self, stride: int) -> float:
        """Of the sets, how many a walk with a stride leaves out: all where every step meets the same one, none where
        steps are no whole lines, so that they drift.
        """
        return float(min(self.sets, max(1, (stride & -stride) // self.line)))

    def lines_kept(self, stride: int, beside: int = 0) -> float:
        """How many lines that far apart the first cache holds; `beside`: lines of a set that others need."""
        return (self.caches[0].ways - beside) * self.sets / self.crowding(stride)

    def counted_on(self, level: int) -> float:
        """Bytes of a cache that stay with the tiles."""
        cache = self.caches[level]
        return cache.capacity * (LAST_SHARE if cache.shared else OWN_SHARE)


def own_share(capacity: int) -> int:
    """Bytes of one of a core's own caches that are counted on."""
    return int(OWN_SHARE * capacity)


def last_capacity(machine: Machine) -> int:
    """Bytes of the last cache, as far as they can be those of the machine's cores; 0 where there is none."""
    return min(max((m.capacity or 0 for m in machine.caches), default=0), machine.cores * MOST_OF_LAST)


def last_share(machine: Machine, threads: int) -> float:
    """Bytes of these that some threads count on: half of them for one, else all."""
    return last_capacity(machine) * min(1.0, OWN_SHARE * threads)


def core_of(machine: Machine, element: int) -> Core:
    """The numbers of a machine's core, usual ones where its description has none; `element`: bytes."""
    levels, usual = [m for m in machine.caches if m.capacity], USUAL_BYTES_PER_CYCLE
    sizes = [(m.capacity or 0, m not in machine.own_caches) for m in levels] or [(USUAL_CACHE, False)]
    rates = [m.bytes_per_cycle or usual.get(level, usual[0]) for level, m in enumerate(levels, 1)]
    memory = machine.dram.bytes_per_cycle or usual[0]
    behind = [float(rate) for rate in (*rates[1:], memory)]
    first, *others = (Cache(n, rate, shared=shared) for (n, shared), rate in zip(sizes, behind, strict=True))
    caches = (first._replace(ways=max(1, first.capacity // PAGE)), *others)
    part = max(LAST_SHARE, min(OWN_SHARE, 1 / machine.cores))
    return Core(machine.lanes(element), machine.vector_registers, caches, part, machine.line, **_costs(machine))


def remote_rate(machine: Machine) -> int:
    """Bytes a cycle of what another core wrote."""
    return _costs(machine)["remote"]


def _costs(machine: Machine) -> Mapping[str, int]:
    engine = next((e for e in machine.engines if e.kind == "core"), None)
    return {**USUAL_CORE, **(engine.cost if engine is not None else {})}
