"""What a core does in a cycle and what its caches hold, as models of time take it from a machine's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from poly.machine import USUAL_BYTES_PER_CYCLE, USUAL_CACHE, USUAL_CORE, USUAL_LINE, Machine

TILE_CYCLES = 20.0  # of a register tile, or a copy, besides loads, operations and stores: a missed branch, full units
# Of a cache, what stays with the tiles: of one core's own half, as the core's other hardware thread may be at work for
# somebody else, of one of many cores an eighth.
SHARE, SHARED = 0.5, 0.125
PAGE = 4096  # bytes


class Cache(NamedTuple):
    """One level: bytes, bytes a cycle from behind it, lines that a set holds; `shared`: by all cores."""

    capacity: int
    rate: float
    ways: int = 8
    shared: bool = False


@dataclass(frozen=True)
class Core:
    """What a core does in a cycle; `caches`: the first level first; bytes that a piece costs more than its lines where
    it has a page of its own, and in the second cache; `overlap`: norm of what hides behind what takes longest; `part`:
    of the last cache, what one operand may fill; `line`: bytes; `issue`: operations of
    all kinds together; `reduce`: cycles until all lanes of a vector have what its own give together; `remote`: bytes of
    what another core wrote; `pages`: those whose addresses are at hand; `turning`, `lost`: cycles for a vector of a
    turned tile, and for a line that it stores a piece of and that the first cache has lost; `sums`: for a vector of
    sums that come and go; `afar`: whether the last cache is as slow as memory elsewhere; `crossing`: cycles for a
    vector that lies in two lines, besides its loads.
    """

    lanes: int
    registers: int
    fma_units: int
    load_units: int
    store_units: int
    latency: int
    caches: tuple[Cache, ...]
    page_start: float = float(USUAL_CORE["page"])
    near_start: float = float(USUAL_CORE["near"])
    overlap: float = float(USUAL_CORE["overlap"])
    part: float = SHARED
    line: int = USUAL_LINE
    issue: int = USUAL_CORE["issue"]
    reduce: int = USUAL_CORE["reduce"]
    remote: int = USUAL_CORE["remote"]
    pages: int = USUAL_CORE["pages"]
    turning: int = USUAL_CORE["turning"]
    lost: int = USUAL_CORE["lost"]
    sums: int = USUAL_CORE["sums"]
    afar: int = USUAL_CORE["afar"]
    crossing: float = USUAL_CORE["crossing"] / 100

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
        return self.fma_units * self.latency

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
        return cache.capacity * (SHARED if cache.shared else SHARE)


def own_share(capacity: int) -> int:
    """Bytes of one of a core's own caches that are counted on."""
    return int(SHARE * capacity)


def core_of(machine: Machine, element: int) -> Core:
    """The numbers of a machine's core, usual ones where its description has none; `element`: bytes."""
    cost = _costs(machine)
    levels, usual = [m for m in machine.caches if m.capacity], USUAL_BYTES_PER_CYCLE
    sizes = [(m.capacity or 0, m not in machine.own_caches) for m in levels] or [(USUAL_CACHE, False)]
    rates = [m.bytes_per_cycle or usual.get(level, usual[0]) for level, m in enumerate(levels, 1)]
    memory = next(m.bytes_per_cycle for m in machine.memories if m.kind == "dram") or usual[0]
    behind = [float(rate) for rate in (*rates[1:], memory)]
    first, *others = (Cache(n, rate, shared=shared) for (n, shared), rate in zip(sizes, behind, strict=True))
    return Core(
        machine.lanes(element), machine.vector_registers, cost["fma"], cost["load"], cost["store"], cost["latency"],
        (first._replace(ways=max(1, first.capacity // PAGE)), *others),
        float(cost["page"]), float(cost["near"]), float(cost["overlap"]),
        max(SHARED, min(SHARE, 1 / machine.cores)), machine.line, cost["issue"], cost["reduce"],
        cost["remote"], cost["pages"], cost["turning"], cost["lost"], cost["sums"], cost["afar"],
        cost["crossing"] / 100,
    )  # fmt: skip


def remote_rate(machine: Machine) -> int:
    """Bytes a cycle of what another core wrote."""
    return _costs(machine)["remote"]


def _costs(machine: Machine) -> Mapping[str, int]:
    engine = next((e for e in machine.engines if e.kind == "core"), None)
    return {**USUAL_CORE, **(engine.cost if engine is not None else {})}
