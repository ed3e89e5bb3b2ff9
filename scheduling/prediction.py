"""What a schedule should cost on a core with caches: bytes into every level, operations, and the time they allow.

A cache keeps what one iteration of a loop touches if it is no larger than the cache; then every byte of it enters once
an iteration (Ferrante, Sarkar and Thrash, LCPC 1991), and what the loop does not move stays from one to the next.
Footprints are counted exactly (isl), in cache lines along the last dimension; conflicts and prefetching are not
modelled, and all caches are empty at first. The time is that of the busiest resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import islpy as isl

from poly.affine import var
from poly.dtypes import size_bytes
from poly.expr import DOTS, Apply, walk
from poly.machine import Machine
from poly.program import Statement, Tensor
from poly.relations import relation_of
from poly.scheduling.cpu_core import core_of
from poly.scheduling.paths import Band, Ordered, TreeNode, statements_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.traffic import count_points
from poly.scheduling.vectors import Vectors
from poly.sets import OUT, SET, within_budget

_OPERATIONS = 400_000


@dataclass(frozen=True)
class CacheLevel:
    """`bytes` that enter a cache; None where they could not be counted. `cycles` that its supply needs."""

    name: str
    capacity: int
    bytes: int | None
    cycles: float | None


@dataclass(frozen=True)
class Prediction:
    """`operations` as written (a multiply-add is two); `cycles` of the busiest resource, which is `limit`."""

    levels: tuple[CacheLevel, ...]
    operations: int | None
    compute_cycles: float | None
    cycles: float | None
    limit: str
    seconds: float | None


def predict(schedule: Schedule, machine: Machine, threads: int = 1) -> Prediction:
    """The cost of a schedule on a machine with caches, see the module text. Free sizes leave figures unknown (None).

    `threads` share the operations and the traffic of a core's own caches.
    """
    work = _Model(schedule, machine)
    caches = [m for m in machine.caches if m.capacity]
    levels: list[CacheLevel] = []
    for cache, supply in zip(caches, [*caches[1:], machine.dram], strict=True):
        moved = work.entering(cache.capacity or 0, cache.line or 64)
        rate = supply.bytes_per_cycle
        own = threads if cache in machine.own_caches else 1
        cycles = moved / rate / own if moved is not None and rate else None
        levels.append(CacheLevel(cache.name, cache.capacity or 0, moved, cycles))
    operations, compute = work.operations(), work.compute_cycles()
    resources = {f"bytes into {v.name}": v.cycles for v in levels if v.cycles is not None}
    if compute is not None:
        resources["operations"] = compute / threads
    limit = max(resources, key=lambda name: resources[name], default="")
    cycles = resources.get(limit) if compute is not None else None
    seconds = cycles / (machine.clock_mhz * 1e6) if cycles is not None else None
    return Prediction(tuple(levels), operations, compute, cycles, limit, seconds)


class _Model:
    """Footprints at every place of a schedule's tree, counted once."""

    def __init__(self, schedule: Schedule, machine: Machine) -> None:
        self.schedule, self.machine = schedule, machine
        self.program = schedule.program
        self.vectors = Vectors(schedule)
        self.registers = machine.tile_spaces | {m.name for m in machine.memories if m.kind == "register"}
        self._counts: dict[tuple[tuple[str, ...], tuple[str, ...], str, int, bool], int | None] = {}

    def entering(self, capacity: int, line: int) -> int | None:
        """Bytes that enter a cache."""
        return self._node(self.schedule.tree, (), capacity, line)

    def _node(self, node: TreeNode, loops: tuple[str, ...], capacity: int, line: int) -> int | None:
        names = statements_of(node)
        inner = self._kept(node)
        if not inner or self._working_set(names, loops, line) <= capacity:
            return self._moved(names, loops, line)
        match node:
            case Band(loop, child):
                kept = (*loops, loop) if self._stays(loop) else loops
                return self._node(child, kept, capacity, line)
            case Ordered(children):
                total = 0
                for child in children:
                    found = self._node(child, loops, capacity, line)
                    if found is None:
                        return None
                    total += found
                return total
            case _:
                return self._moved(names, loops, line)

    def _stays(self, loop: str) -> bool:
        """Whether a loop is still one when it runs: neither unrolled nor lanes."""
        return self.schedule.kind(loop) not in ("unroll", "vector", "unit")

    def _kept(self, node: TreeNode) -> bool:
        match node:
            case Band(loop, child):
                return self._stays(loop) or self._kept(child)
            case Ordered(children):
                return any(self._kept(c) for c in children)
            case _:
                return False

    def _working_set(self, names: Sequence[str], loops: tuple[str, ...], line: int) -> float:
        """Bytes that one iteration of some loops touches, on average; infinite where not counted."""
        total = 0.0
        for tensor in self._tensors(names):
            count, iterations = self._count(names, loops, tensor, line), self._iterations(names, loops)
            if count is None or not iterations:
                return float("inf")
            total += count * line / iterations
        return total

    def _moved(self, names: Sequence[str], loops: tuple[str, ...], line: int) -> int | None:
        """Bytes that all iterations of some loops bring in, where what one of them touches fits."""
        total = 0
        for tensor in self._tensors(names):
            kept = loops
            count = self._count(names, kept, tensor, line)
            while count is not None and kept:
                fewer = self._count(names, kept[:-1], tensor, line)
                around, inside = self._iterations(names, kept[:-1]), self._iterations(names, kept)
                if fewer is None or not around or not inside or fewer * inside != count * around:
                    break
                kept, count = kept[:-1], fewer  # the innermost loop does not move it
            if kept:
                count = self._count(names, kept, tensor, line, new=True)
            if count is None:
                return None
            total += count * line
        return total

    def _tensors(self, names: Sequence[str]) -> list[str]:
        found = dict.fromkeys(a.tensor for n in names for a, _ in self.program.statement[n].accesses)
        return [t for t in found if self.program.tensor[t].space not in self.registers]

    def _iterations(self, names: Sequence[str], loops: tuple[str, ...]) -> int | None:
        return self._count(names, loops, "", 0)

    def _count(
        self, names: Sequence[str], loops: tuple[str, ...], tensor: str, line: int, new: bool = False
    ) -> int | None:
        """Different pairs of loop values and lines of a tensor (of loop values alone for no tensor).

        `new`: without lines that the innermost loop's iteration before has, too.
        """
        key = (tuple(names), loops, tensor, line, new)
        if key not in self._counts:
            self._counts[key] = within_budget(_OPERATIONS, lambda: self._counted(*key), lambda: None)
        return self._counts[key]

    def _counted(
        self, names: Sequence[str], loops: tuple[str, ...], tensor: str, line: int, new: bool
    ) -> int | None:
        found: isl.Set | None = None
        for name in names:
            for part in self._parts(self.program.statement[name], loops, tensor, line):
                found = part if found is None else found.union(part)
        if found is None:
            return 0
        return count_points(found.subtract(_next(found, len(loops) - 1)) if new else found)

    def _parts(self, s: Statement, loops: tuple[str, ...], tensor: str, line: int) -> list[isl.Set]:
        nest = self.schedule.nests[s.name]
        inside = [k for k, loop in enumerate(nest.names) if loop not in loops]
        if not tensor:
            domain = self.vectors.of(s).range().reset_tuple_id()
            return [_without(domain, inside)]
        parts: list[isl.Set] = []
        for touch in self.vectors.touches(s):
            if touch.tensor == tensor:
                relation = self.vectors.access(touch).apply_range(_lines(self.program.tensor[tensor], line))
                parts.append(_without(relation.wrap().flatten().reset_tuple_id(), inside))
        return parts

    # ---- computing

    def operations(self) -> int | None:
        """Operations of all instances of the source program's statements."""
        return _total(self._points(s, 1.0, _operations(s)) for s in self.program.statements if not s.copies)

    def compute_cycles(self) -> float | None:
        """Cycles that the operations take, lanes and multiply-adds counted, copies left out."""
        return _total(
            self._points(s, self._lanes(s), _instructions(s)) for s in self.program.statements if not s.copies
        )

    def _points(self, s: Statement, lanes: float, each: float) -> float | None:
        domain = self.vectors.of(s).domain()
        count = within_budget(_OPERATIONS, lambda: count_points(domain), lambda: None) if s.external is None else None
        return None if count is None else count * each / lanes

    def _lanes(self, s: Statement) -> float:
        """Instances of a statement in a cycle, if each is one instruction."""
        unit, marks = self.machine.matrix_unit, self.schedule.marks
        own = {marks[n].engine for n in self.schedule.nests[s.name].names if n in marks}
        if unit is not None and unit.name in own:
            return unit.products(s.body.operator if isinstance(s.body, Apply) else "")
        widest = max(size_bytes(self.program.tensor[a.tensor].dtype) for a, _ in s.accesses)
        vector = any(self.schedule.kind(n) == "vector" for n in self.schedule.nests[s.name].names)
        return core_of(self.machine, widest).fma * (self.machine.lanes(widest) if vector else 1)


def _total(counts: Iterable[float | None]) -> int | None:
    total = 0.0
    for count in counts:
        if count is None:
            return None
        total += count
    return int(total)


def _operations(s: Statement) -> float:
    return sum(isinstance(node, Apply) for node in walk(s.body)) + (s.combiner is not None)


def _instructions(s: Statement) -> float:
    """Like operations, a product that is added at once being one."""
    fused = s.contract and s.combiner is not None and isinstance(s.body, Apply) and s.body.operator in ("mul", *DOTS)
    return max(0, _operations(s) - fused)


def _next(points: isl.Set, loop: int) -> isl.Set:
    """Points moved on by one along a dimension."""
    names = [f"a{d}" for d in range(points.dim(SET))]
    moved = [f"{n} + 1" if d == loop else n for d, n in enumerate(names)]
    return points.apply(isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(moved)}] }}"))


def _without(domain: isl.Set, positions: Sequence[int]) -> isl.Set:
    for k in reversed(positions):
        domain = domain.project_out(SET, k, 1)
    return domain


def _lines(tensor: Tensor, line: int) -> isl.Map:
    """{ T[index] -> T[place, but for the last coordinate the line that holds it] }, rows taken to begin lines."""
    names = [f"a{d}" for d in range(tensor.rank)]
    place = [var(n) for n in names] if tensor.layout is None else list(tensor.layout.place([var(n) for n in names]))
    if place:
        place[-1] = place[-1] // max(1, line // size_bytes(tensor.dtype))
    return relation_of(place, names, (), tensor.name).set_tuple_name(OUT, tensor.name)
