"""Choices for a core with vector registers: lanes, rows, the register tile, what is packed and where.

In closed form, from access maps, extents and the machine description. The register tile is Goto's (TOMS 2008), its
shape follows from the operations, loads and latency of one step of the reduction (Low et al., TOMS 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.machine import Machine
from poly.program import Access, Program, Statement, Tensor
from poly.scheduling.groups import Group
from poly.sets import fix_sizes

FMA_UNITS, LOAD_UNITS, LATENCY = 2, 2, 4  # of a core: vector operations and loads a cycle, cycles of a multiply-add
PIECE_COST = 0.05  # share of a tile's work that a further kind of edge piece must save to be worth its code
FEW_TILES = 3  # packing pays from this many uses of a packed element outside the register tile
MOST_VECTORS = 4  # side by side in a register tile with rows
SCALAR_ROWS = 8
UNROLLED = 96  # multiply-adds in the body of the innermost loop that stays
MOST_PANEL_COPIES = 8

Strides = dict[int, int | None]


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

    `order`: its axes from slow to fast; `lane`: the axis of the lanes; `step`: of neighbouring lanes along it.
    """

    statement: str
    tensor: str
    order: tuple[int, ...]
    lane: int
    pad: bool
    step: int = 1


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
    again what is packed. `vector`: elements of one vector, 1 where no loop suits lanes.
    """

    outer: tuple[int, ...]
    middle: tuple[int, ...]
    rows: int | None
    lanes: int | None
    vector: int
    strips: tuple[Strip, ...]
    packs: tuple[Pack, ...] = ()
    turns: tuple[Turn, ...] = ()


def plan_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Plan:
    """The choices for one group whose parallel loops are a box of known size."""
    assert group.box is not None
    extents = [high - low + 1 for low, high in group.box]
    work = _Work(program, group, machine, extents, threads)
    lanes = work.lanes()
    if lanes is None:
        return work.scalar_plan()
    return work.vector_plan(lanes)


@dataclass(frozen=True)
class _Work:
    program: Program
    group: Group
    machine: Machine
    extents: Sequence[int]
    threads: int

    @property
    def update(self) -> Statement | None:
        """The group's reduction."""
        return next((s for s in self.group.statements if s.combiner is not None), None)

    def strides(self, s: Statement) -> list[Strides]:
        """For every access the elements between neighbours along each parallel loop (None: not constant)."""
        tensors, sizes = self.program.tensor, self.program.binding
        axes = list(enumerate(self.group.axes[s.name]))
        return [{a: _stride(access, tensors[access.tensor], i, sizes) for a, i in axes} for access, _ in s.accesses]

    def lanes(self) -> int | None:
        """The loop along which all writes are contiguous, and most reads contiguous or constant."""
        strides = [self.strides(s) for s in self.group.statements]
        rated = [(_contiguity(strides, a), self.extents[a] > 1, a) for a in range(len(self.extents))]
        best = max(rated, default=(0.0, False, 0))
        return best[2] if best[0] > 0 and best[1] and self.machine.lanes(self.widest()) > 1 else None

    def widest(self) -> int:
        """Bytes of the widest element."""
        tensors = self.program.tensor
        return max(size_bytes(tensors[a.tensor].dtype) for s in self.group.statements for a, _ in s.accesses)

    def registers(self) -> int:
        memory = self.machine.registers
        return memory.capacity if memory is not None and memory.capacity else 16

    # ---- without lanes

    def scalar_plan(self) -> Plan:
        """Several independent accumulators where a reduction has a parallel loop around it."""
        every = tuple(range(len(self.extents)))
        long = [a for a in every if self.extents[a] > 1]
        if self.update is None or not long:
            return Plan(every, (), None, None, 1, ())
        rows = long[-1]
        pieces = balanced(self.group_low(rows), self.extents[rows], SCALAR_ROWS)
        outer = tuple(a for a in every if a != rows)
        return Plan(outer, (), rows, None, 1, (Strip(0, 1, 1, 1, pieces),))

    def group_low(self, axis: int) -> int:
        assert self.group.box is not None
        return self.group.box[axis][0]

    # ---- with lanes

    def vector_plan(self, lanes: int) -> Plan:
        vector = min(self.machine.lanes(self.widest()), 1 << max(0, self.extents[lanes] - 1).bit_length())
        low, extent = self.group_low(lanes), self.extents[lanes]
        others = [a for a in range(len(self.extents)) if a != lanes]
        update = self.update
        if update is None:
            whole = extent // vector * vector
            pieces = [(low, low + whole), (low + whole, low + extent)]
            strips = tuple(Strip(a, b, 1, 1, ()) for a, b in pieces if a < b)
            return Plan(tuple(others), (), None, lanes, vector, strips)
        strides = self.strides(update)
        rows = _rows(strides, self.extents, lanes)
        cut = self._strips(low, extent, vector, rows)
        moving = _moving(strides, lanes)
        packs = self._packs(update, strides, lanes, rows, cut)
        turns = self._turns(update, strides, lanes, {p.tensor for p in packs}, vector) if rows is None else ()
        if turns:
            whole = low + extent // vector * vector
            ends = [(low, whole), (whole, low + extent)]
            cut = [Strip(a, b, 1, 1, ()) for a, b in ends if a < b]
        outer = tuple(a for a in others if a != rows and (not packs or any(strides[k].get(a) != 0 for k in moving)))
        middle = tuple(a for a in others if a != rows and a not in outer)
        strips = tuple(self._blocked(s, update, lanes, vector, packs, bool(outer)) for s in cut)
        return Plan(outer, middle, rows, lanes, vector, strips, packs, turns)

    def _turns(
        self, s: Statement, strides: Sequence[Strides], lanes: int, packed: set[str], vector: int
    ) -> tuple[Turn, ...]:
        """The reads, not packed, that are hostile to the lanes and contiguous along a long enough reduction loop."""
        found: list[Turn] = []
        ranges = reduction_extents(self.program, s, self.group.axes[s.name])
        for k in _moving(strides, lanes):
            access = s.accesses[k][0]
            fast = access.index[-1]
            names = fast.names if isinstance(fast, Affine) else frozenset[str]()
            name = next((n for n in names if len(names) == 1 and fast == Affine.of(n)), "")
            axis = _axis(access, self.group.axes[s.name][lanes])
            alone = [a.tensor for a, _ in s.accesses].count(access.tensor) == 1 and not access.guard
            if (
                strides[k].get(lanes) != 1
                and axis not in (None, len(access.index) - 1)
                and alone
                and ranges.get(name, 0) >= vector
            ):
                if access.tensor not in packed and not any(
                    isinstance(c, Affine) and name in c.names for c in access.index[:-1]
                ):
                    found.append(Turn(s.name, access.tensor, name))
        return tuple(found) if len({t.iterator for t in found}) == 1 else ()

    def _strips(self, low: int, extent: int, vector: int, rows: int | None) -> list[Strip]:
        """The cheapest cover of lanes x rows by register tiles: one width, and what is left over in a narrower one."""
        registers, vectors = self.registers(), -(-extent // vector)
        height = 1 if rows is None else self.extents[rows]
        start = 0 if rows is None else self.group_low(rows)
        most = registers // 2 if rows is None else MOST_VECTORS
        best: tuple[float, list[Strip]] | None = None
        for width in range(1, min(vectors, most) + 1):
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
        self, s: Statement, strides: Sequence[Strides], lanes: int, rows: int | None, strips: Sequence[Strip]
    ) -> tuple[Pack, ...]:
        """The reads that move along the lanes and are hostile as they lie, used often enough to be copied."""
        tiles = sum(-(-(p.high - p.low) // p.tile) for p in strips[0].rows) if rows is not None else 1
        found: dict[str, Pack] = {}
        for k in _moving(strides, lanes):
            access = s.accesses[k][0]
            again = [a for a in range(len(self.extents)) if a not in (rows, lanes) and strides[k].get(a) == 0]
            uses = tiles if rows is not None and strides[k].get(rows) == 0 else 1
            for a in again:
                uses *= self.extents[a]
            axis = _axis(access, self.group.axes[s.name][lanes])
            if axis is not None and uses >= FEW_TILES and self._hostile(access, strides[k].get(lanes)):
                order = self._order(s, access, axis)
                step = _step(access, axis, self.group.axes[s.name][lanes])
                found[access.tensor] = Pack(s.name, access.tensor, order, axis, bool(access.guard), step)
        reads = [a.tensor for a, kind in s.accesses if kind == "read"]
        return tuple(p for p in found.values() if reads.count(p.tensor) == 1 and p.tensor != s.write.tensor)

    def _hostile(self, access: Access, stride: int | None) -> bool:
        """Strided or padded, or so large that its rows lie far apart."""
        tensor = self.program.tensor[access.tensor]
        first = min((m.capacity for m in self.machine.memories if m.kind == "cache" and m.capacity), default=32768)
        return stride != 1 or bool(access.guard) or tensor.nbytes(self.program.binding) > 2 * first

    def _order(self, s: Statement, access: Access, lane: int) -> tuple[int, ...]:
        """Axes in the order of the reduction's loops, the lanes' axis last."""

        def depth(axis: int) -> tuple[bool, int, int]:
            subscript = access.index[axis]
            names = subscript.names if isinstance(subscript, Affine) else frozenset[str]()
            inner = [n for n in names if n not in self.group.axes[s.name]]
            return axis == lane, min((s.iterators.index(n) for n in inner), default=-1), axis

        return tuple(sorted(range(len(access.index)), key=depth))

    def _blocked(
        self, strip: Strip, s: Statement, lanes: int, vector: int, packs: Sequence[Pack], outer: bool
    ) -> Strip:
        """As many tiles side by side as share a packed buffer in half of the second cache level."""
        if not packs:
            return strip
        tiles = -(-(strip.high - strip.low) // (strip.width * vector))
        caches = sorted(m.capacity for m in self.machine.memories if m.kind == "cache" and m.capacity)
        room = (caches[1] if len(caches) > 1 else 1 << 18) // 2
        column = sum(self._column(s, p, strip.width * vector) for p in packs)
        fitting = [b for b in range(1, tiles + 1) if tiles % b == 0 and b * column <= room] or [1]
        if self.threads > 1 and not outer:
            shared = [b for b in fitting if tiles // b % self.threads == 0]
            fitting = shared or fitting
        return Strip(strip.low, strip.high, strip.width, fitting[-1], strip.rows)

    def _column(self, s: Statement, pack: Pack, lanes: int) -> int:
        """Bytes that one register tile reads of a packed tensor."""
        access = next(r for r in s.reads if r.tensor == pack.tensor)
        ranges = reduction_extents(self.program, s, self.group.axes[s.name])
        total = size_bytes(self.program.tensor[pack.tensor].dtype)
        for axis, subscript in enumerate(access.index):
            assert isinstance(subscript, Affine)
            reach = sum(abs(subscript.coefficient(n)) * (ranges[n] - 1) for n in subscript.names & ranges.keys())
            total *= reach + (lanes * pack.step if axis == pack.lane else 1)
        return total


def reduction_extents(program: Program, s: Statement, axes: Sequence[str]) -> dict[str, int]:
    """The known extents of a statement's iterators that are no parallel loops (1 where not known)."""
    domain = fix_sizes(s.domain.intersect_params(program.context), program.binding)
    found: dict[str, int] = {}
    for k, name in enumerate(s.iterators):
        if name not in axes:
            low, high = domain.dim_min_val(k), domain.dim_max_val(k)
            found[name] = int(str(high)) - int(str(low)) + 1 if low.is_int() and high.is_int() else 1
    return found


def _stride(access: Access, tensor: Tensor, iterator: str, sizes: Mapping[str, int]) -> int | None:
    total, step = 0, 1
    for subscript, extent in zip(reversed(access.index), reversed(tensor.shape), strict=True):
        if not isinstance(subscript, Affine):
            return None
        coefficient = subscript.coefficient(iterator)
        if iterator in subscript.names and not coefficient:
            return None
        total += coefficient * step
        known = extent.substitute(sizes)
        step *= known.constant if known.is_constant else 1 << 20
    return total


def _contiguity(strides: Sequence[Sequence[Strides]], axis: int) -> float:
    """How well a loop suits lanes: 0 where a write is strided, else the share of accesses of stride 0 or 1."""
    good = every = 0
    for accesses in strides:
        if accesses[-1].get(axis) != 1:
            return 0.0
        for access in accesses:
            every += 1
            good += access.get(axis) in (0, 1)
    return good / every if every else 0.0


def _moving(strides: Sequence[Strides], lanes: int) -> list[int]:
    """The reads whose element changes along the lanes."""
    return [k for k, access in enumerate(strides[:-1]) if access.get(lanes) != 0 and None not in access.values()]


def _axis(access: Access, iterator: str) -> int | None:
    """The only subscript that holds an iterator, where its factor is positive."""
    found = [d for d, i in enumerate(access.index) if not isinstance(i, Affine) or iterator in i.names]
    if len(found) != 1 or access.indirect:
        return None
    subscript = access.index[found[0]]
    return found[0] if isinstance(subscript, Affine) and subscript.coefficient(iterator) > 0 else None


def _step(access: Access, axis: int, iterator: str) -> int:
    subscript = access.index[axis]
    assert isinstance(subscript, Affine)
    return subscript.coefficient(iterator)


def _rows(strides: Sequence[Strides], extents: Sequence[int], lanes: int) -> int | None:
    """A second parallel loop along which reads are used again, those that move along the lanes before all."""

    def reuse(axis: int) -> tuple[int, int]:
        still = [access.get(lanes) != 0 for access in strides[:-1] if access.get(axis) == 0]
        return sum(still), len(still)

    found = [a for a in range(len(extents)) if a != lanes and extents[a] > 1 and reuse(a)[1] > 0]
    return max(found, key=lambda a: (reuse(a)[0], extents[a], a), default=None)


# ---- register tiles


def step_cycles(height: int, width: int) -> float:
    """Cycles of one step of a reduction on a register tile, at the least: operations, loads, latency."""
    return max(height * width / FMA_UNITS, (height + width) / LOAD_UNITS, LATENCY) + (height + width) / 64


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


def balanced(low: int, extent: int, tile: int) -> tuple[Piece, ...]:
    """A range in as few tiles of at most `tile` as possible, of sizes that differ by at most one."""
    count = -(-extent // tile)
    small, more = divmod(extent, count)
    middle = low + more * (small + 1)
    pieces = (Piece(low, middle, small + 1), Piece(middle, low + extent, small))
    return tuple(p for p in pieces if p.low < p.high)
