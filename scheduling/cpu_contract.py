"""Choices for groups with rows: contractions and convolutions in a register tile, what is packed and where.

The register tile is Goto's (TOMS 2008), its shape follows from the operations, loads and latency of one step of the
reduction (Low et al., TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine
from poly.program import Access, Statement
from poly.scheduling.cpu_facts import Facts, Strides, axis_of, moving, step_of
from poly.scheduling.cpu_plan import Pack, Piece, Plan, Strip, balanced, step_cycles

PIECE_COST = 0.01  # share of a tile's work that a further kind of edge piece must save to be worth its code
FEW_TILES = 3  # packing pays from this many uses of a packed element outside the register tile
MOST_VECTORS = 4  # side by side in a register tile with rows


def contraction_plan(facts: Facts, lanes: int) -> Plan | None:
    """Lanes along one loop and rows along another; None where no loop's neighbours use anything again."""
    update = facts.update
    strides = facts.strides(update) if update is not None else []
    rows = _rows(strides, facts.extents, lanes)
    if update is None or rows is None:
        return None
    vector, others = facts.vector(lanes), [a for a in range(len(facts.extents)) if a not in (rows, lanes)]
    cut = _strips(facts, lanes, vector, rows)
    moved = moving(strides, lanes)
    packs = _packs(facts, update, strides, lanes, rows, cut)
    outer = tuple(a for a in others if not packs or any(strides[k].get(a) != 0 for k in moved))
    middle = tuple(a for a in others if a not in outer)
    return Plan(outer, middle, rows, lanes, vector, tuple(cut), packs)


def _strips(facts: Facts, lanes: int, vector: int, rows: int) -> list[Strip]:
    """The cheapest cover of lanes x rows by register tiles: one width, and what is left over in a narrower one."""
    low, extent = facts.group_low(lanes), facts.extents[lanes]
    registers, vectors = facts.registers(), -(-extent // vector)
    start, height = facts.group_low(rows), facts.extents[rows]
    best: tuple[float, list[Strip]] | None = None
    for width in range(1, min(vectors, MOST_VECTORS) + 1):
        whole, rest = divmod(vectors, width)
        cost, pieces = _best_rows(start, height, width, registers)
        total = cost * whole
        strips = [Strip(low, low + min(extent, whole * width * vector), width, 1, pieces)]
        if rest:
            cost, pieces = _best_rows(start, height, rest, registers)
            total = total * (1 + PIECE_COST / 2) + cost
            strips.append(Strip(strips[0].high, low + extent, rest, 1, pieces))
        elif extent % vector and whole > 1:  # the masked vector is a tile of its own
            cut = low + (whole - 1) * width * vector
            strips = [Strip(low, cut, width, 1, pieces), Strip(cut, low + extent, width, 1, pieces)]
            total *= 1 + PIECE_COST / 2
        if best is None or total < best[0]:
            best = total, strips
    assert best is not None
    return best[1]


def _packs(
    facts: Facts, s: Statement, strides: Sequence[Strides], lanes: int, rows: int, strips: Sequence[Strip]
) -> tuple[Pack, ...]:
    """The reads that move along the lanes and are hostile as they lie, used often enough to be copied."""
    tiles = sum(-(-(p.high - p.low) // p.tile) for p in strips[0].rows)
    found: dict[str, Pack] = {}
    for k in moving(strides, lanes):
        access = s.accesses[k][0]
        again = [a for a in range(len(facts.extents)) if a not in (rows, lanes) and strides[k].get(a) == 0]
        uses = tiles if strides[k].get(rows) == 0 else 1
        for a in again:
            uses *= facts.extents[a]
        axis = axis_of(access, facts.group.axes[s.name][lanes])
        if axis is not None and uses >= FEW_TILES and _hostile(facts, access, strides[k].get(lanes)):
            order = _order(facts, s, access, axis)
            step = step_of(access, axis, facts.group.axes[s.name][lanes])
            found[access.tensor] = Pack(s.name, access.tensor, order, axis, bool(access.guard), step)
    reads = [a.tensor for a, kind in s.accesses if kind == "read"]
    return tuple(p for p in found.values() if reads.count(p.tensor) == 1 and p.tensor != s.write.tensor)


def _hostile(facts: Facts, access: Access, stride: int | None) -> bool:
    """Strided or padded, or so large that its rows lie far apart."""
    tensor = facts.program.tensor[access.tensor]
    first = min((m.capacity for m in facts.machine.memories if m.kind == "cache" and m.capacity), default=32768)
    return stride != 1 or bool(access.guard) or tensor.nbytes(facts.program.binding) > 2 * first


def _order(facts: Facts, s: Statement, access: Access, lane: int) -> tuple[int, ...]:
    """Axes in the order of the reduction's loops, the lanes' axis last."""

    def depth(axis: int) -> tuple[bool, int, int]:
        subscript = access.index[axis]
        names = subscript.names if isinstance(subscript, Affine) else frozenset[str]()
        inner = [n for n in names if n not in facts.group.axes[s.name]]
        return axis == lane, min((s.iterators.index(n) for n in inner), default=-1), axis

    return tuple(sorted(range(len(access.index)), key=depth))


def _rows(strides: Sequence[Strides], extents: Sequence[int], lanes: int) -> int | None:
    """A second parallel loop along which reads are used again, those that move along the lanes before all."""

    def reuse(axis: int) -> tuple[int, int]:
        still = [access.get(lanes) != 0 for access in strides[:-1] if access.get(axis) == 0]
        return sum(still), len(still)

    found = [a for a in range(len(extents)) if a != lanes and extents[a] > 1 and reuse(a)[1] > 0]
    return max(found, key=lambda a: (reuse(a)[0], extents[a], a), default=None)


# ---- register tiles


def _best_rows(low: int, extent: int, width: int, registers: int) -> tuple[float, tuple[Piece, ...]]:
    """Cycles and pieces of the best height of tiles that are `width` vectors wide."""
    highest = max(1, min(extent, (registers - 1 - width) // width))
    best: tuple[float, tuple[Piece, ...]] | None = None
    for height in range(1, highest + 1):
        pieces = balanced(low, extent, height)
        cycles = sum((p.high - p.low) // p.tile * step_cycles(p.tile, width) for p in pieces)
        cost = cycles * (1 + PIECE_COST * (len(pieces) - 1))
        if best is None or cost <= best[0]:
            best = cost, pieces
    assert best is not None
    return best
