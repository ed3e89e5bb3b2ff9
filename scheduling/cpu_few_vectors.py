"""Whether a matrix and a few vectors are a reduction, with lanes along the matrix, or a contraction (decision 0132).

Lanes along the matrix multiply whole vectors of it for each of the few, whose lanes are added up at the end of a row,
and load the few again for every tile of rows. Lanes along the few leave some of a vector empty and load them for many
rows: a panel of them is copied first.
"""

from __future__ import annotations

from math import hypot, prod

from poly.dtypes import is_float
from poly.program import Access
from poly.scheduling.cpu_core import Core, core_of
from poly.scheduling.cpu_facts import moves, step_along
from poly.scheduling.cpu_reduce_plan import Folded, Summed, size_of
from poly.scheduling.cpu_tile_work import SQUARES

GAIN = 0.95  # of a reduction's cycles: what is nearer is not known so well


def few_as_lanes(summed: Summed, plan: Folded, large: Access) -> bool:
    """Whether lanes along the loop in which a reduction uses a row again take fewer cycles than it does."""
    program, s, again = summed.program, summed.statement, plan.again
    others = [r for r in s.reads if moves(r, again)]
    types = {program.tensor[t].dtype for t in s.tensors}
    if not again or len(others) != 1 or len(s.reads) != 2 or any(r.guard for r in s.reads):
        return False
    if len(types) > 1 or not all(map(is_float, types)) or step_along(program, large, plan.lanes) != 1:
        return False
    if not _has_lanes(summed, plan, others[0]):
        return False
    core = core_of(summed.machine, summed.widest)
    if not core.afar:  # not measured on others
        return False
    coming = _bytes(summed, large) / _rate(core, _bytes(summed, large))
    rows = _along_rows(summed, plan, others[0], core, coming)
    return _along_few(summed, plan, others[0], core, coming) < GAIN * rows


def _has_lanes(summed: Summed, plan: Folded, few: Access) -> bool:
    """Whether the target is contiguous along the few, or along rows that all of these share."""
    write, rows = summed.statement.write, (i for i in (*plan.outer, plan.rows) if not moves(few, i))
    return any(step_along(summed.program, write, i) == 1 for i in (plan.again, *rows))


def _along_rows(summed: Summed, plan: Folded, few: Access, core: Core, coming: float) -> float:
    """Cycles of the reduction; `coming`: of those until the matrix is there."""
    extents, rows = summed.extents, prod(summed.extents[i] for i in summed.parallel)
    vectors = -(-extents[plan.lanes] // plan.vector) * prod(extents[i] for i in plan.inner)
    work = rows * extents[plan.again] * (vectors / core.fma + core.reduce)
    held = prod(n for i, n in extents.items() if moves(few, i) and i not in summed.parallel) * summed.widest
    first = core.caches[0]
    loaded = rows / plan.height * held / first.rate if held > first.capacity else 0.0
    return hypot(work, coming + loaded)


def _along_few(summed: Summed, plan: Folded, few: Access, core: Core, coming: float) -> float:
    """Cycles of register tiles with one step of the sum at a time."""
    extents, parallel = summed.extents, summed.parallel
    steps = extents[plan.lanes] * prod(extents[i] for i in (*plan.inner, *parallel))
    waiting = max(1.0, core.in_flight / max(extents[i] for i in parallel))
    copied = 0 if few.tensor in plan.turned else size_of(few, extents)
    work = steps * -(-extents[plan.again] // plan.vector) / core.fma * waiting
    panel = plan.vector * _bytes(summed, few) / extents[plan.again]
    shared = not any(moves(few, i) for i in parallel)
    travelling = (summed.threads - 1) * panel / core.remote if shared else 0.0  # what one thread copies for all
    return hypot(work, coming) + copied / SQUARES + travelling


def _bytes(summed: Summed, access: Access) -> int:
    return size_of(access, summed.extents) * summed.widest


def _rate(core: Core, size: int) -> float:
    """Bytes a cycle of what is read once, from the cache that holds it."""
    behind = [cache.rate for n, cache in enumerate(core.caches) if size > core.counted_on(n)]
    return behind[-1] if behind else core.caches[0].rate
