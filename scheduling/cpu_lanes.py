"""Choices for groups without rows of a register tile: elementwise, reductions along one loop, matrix by vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from poly.affine import Affine
from poly.expr import Apply, walk
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_cost import step_cycles
from poly.scheduling.cpu_facts import (
    QUICK,
    Facts,
    Strides,
    axis_of,
    facts_of,
    functions_in,
    interleaved,
    most_vectors,
    moving,
    reduction_extents,
)
from poly.scheduling.cpu_plan import Strip, TilePlan, Turn, balanced
from poly.scheduling.groups import Group

SCALAR_ROWS = 8
SIDE_BY_SIDE = 4  # vectors of light work in one iteration
FEW_OPERATIONS = 6


def tiles_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> TilePlan | None:
    """The choices for any group whose parallel loops are a box of known size, with a loop for tiles."""
    if group.box is None:
        return None
    facts = facts_of(program, group, machine, threads)
    lanes = facts.lanes()
    if lanes is None and facts.update is not None and max(facts.extents, default=1) == 1:
        return None  # a sum of everything without neighbours in memory
    if lanes is not None and _gathers(facts, lanes):
        lanes = None
    return replace(scalar_plan(facts) if lanes is None else lane_plan(facts, lanes), threads=threads)


def _gathers(facts: Facts, lanes: int) -> bool:
    """Whether a sum reads where data say, and nothing that lies side by side along the lanes: what comes as single
    elements is faster added up as such than put in vectors first.
    """
    s = facts.update
    if s is None or not any(r.indirect for r in s.reads):
        return False
    strides = facts.strides(s)
    reads = [k for k, (access, _) in enumerate(s.accesses) if access.tensor != s.write.tensor]
    return not any(strides[k].get(lanes) == 1 for k in reads)


def scalar_plan(facts: Facts) -> TilePlan:
    """Several independent accumulators where a reduction has a parallel loop around it."""
    every = tuple(range(len(facts.extents)))
    long = [a for a in every if facts.extents[a] > 1]
    if facts.update is None or not long:
        return TilePlan(every, None, None, 1)
    rows = long[-1]
    pieces = balanced(facts.group_low(rows), facts.extents[rows], SCALAR_ROWS)
    outer = tuple(a for a in every if a != rows)
    return TilePlan(outer, rows, None, 1, (Strip(0, 1, 1, pieces),))


def lane_plan(facts: Facts, lanes: int) -> TilePlan:
    """Lanes along one loop, nothing used again between neighbours of another."""
    vector = facts.vector(lanes)
    others = tuple(a for a in range(len(facts.extents)) if a != lanes)
    update = facts.update
    if update is None:
        width = SIDE_BY_SIDE if _light(facts) else 1
        if functions_in(facts.group.statements):
            vector *= interleaved(facts.extents[lanes], vector)
        return TilePlan(_as_written(facts, others), None, lanes, vector, _whole_and_rest(facts, lanes, vector, width))
    turns = _turns(facts, update, facts.strides(update), lanes, vector)
    strips = _whole_and_rest(facts, lanes, vector) if turns else _strips(facts, lanes, vector)
    return TilePlan(others, None, lanes, vector, strips, turns)


def _as_written(facts: Facts, axes: Sequence[int]) -> tuple[int, ...]:
    """Loops of assignments in the order of the largest target, so that its pieces of rows follow one another."""
    sizes = facts.program.binding
    large = max(facts.group.statements, key=lambda s: facts.program.tensor[s.write.tensor].nbytes(sizes))
    steps = facts.strides(large)[-1]
    return tuple(sorted(axes, key=lambda a: -abs(steps[a] or 0)))


def _light(facts: Facts) -> bool:
    """Whether the work on an element is so little that counting the loop would be much of it."""
    used = [e.operator for s in facts.group.statements for e in walk(s.body) if isinstance(e, Apply)]
    return len(used) <= FEW_OPERATIONS and QUICK.issuperset(used)


def _whole_and_rest(facts: Facts, lanes: int, vector: int, width: int = 1) -> tuple[Strip, ...]:
    """Some vectors side by side, single ones, and a masked one."""
    low, extent = facts.group_low(lanes), facts.extents[lanes]
    cuts = [low, *(low + extent // n * n for n in (width * vector, vector)), low + extent]
    return tuple(Strip(a, b, w) for a, b, w in zip(cuts, cuts[1:], (width, 1, 1), strict=False) if a < b)


def _strips(facts: Facts, lanes: int, vector: int) -> tuple[Strip, ...]:
    """The widest tiles that hide the latency of a multiply-add, and what is left over in a narrower one."""
    low, extent = facts.group_low(lanes), facts.extents[lanes]
    vectors = -(-extent // vector)
    core = core_of(facts.machine, facts.widest())
    widths = np.arange(1, min(vectors, most_vectors(facts.machine)) + 1, dtype=np.float64)
    left = np.mod(vectors, widths)
    step, last = (step_cycles(core, w, w + 1.0) for w in (widths, left))  # one element for all lanes, and a vector each
    width = 1 + int(np.argmin(np.floor(vectors / widths) * step + np.where(left > 0, last, 0)))
    whole, rest = divmod(vectors, width)
    if not rest and extent % vector and whole > 1:  # the masked vector is a tile of its own
        whole, rest = whole - 1, width
    middle = low + min(extent, whole * width * vector)
    strips = (Strip(low, middle, width), Strip(middle, low + extent, rest))
    return tuple(s for s in strips if s.low < s.high)


def _turns(facts: Facts, s: Statement, strides: Sequence[Strides], lanes: int, vector: int) -> tuple[Turn, ...]:
    """The reads that are hostile to the lanes and contiguous along a long enough reduction loop."""
    found: list[Turn] = []
    ranges = reduction_extents(facts.program, s, facts.group.axes[s.name])
    for k in moving(strides, lanes):
        access = s.accesses[k][0]
        fast = access.index[-1]
        names = fast.names if isinstance(fast, Affine) else frozenset[str]()
        name = next((n for n in names if len(names) == 1 and fast == Affine.of(n)), "")
        axis = axis_of(access, facts.group.axes[s.name][lanes])
        plain = access.tensor != s.write.tensor and not access.guard
        if (
            strides[k].get(lanes) != 1
            and axis not in (None, len(access.index) - 1)
            and plain
            and ranges.get(name, 0) >= vector
            and not any(isinstance(c, Affine) and name in c.names for c in access.index[:-1])
        ):
            found.append(Turn(s.name, k, name))
    return tuple(found) if len({t.iterator for t in found}) == 1 else ()
