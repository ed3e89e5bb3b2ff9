"""Rows of a contraction's result in blocks, around the loops along which the result goes on behind a row of lanes.

`Y[f,h,w] += X[c,h,w+a] * W[f,c,a]` writes, for each h, pieces as long as w of all f, pages apart: more than prefetchers
follow. With `f = n*t + f'` and the loop over n around h, tiles write t rows of the result from end to end.
"""

from __future__ import annotations

from math import inf, prod

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_contract import best_rated, least_of_plans
from poly.scheduling.cpu_core import WALKED, core_of
from poly.scheduling.cpu_facts import Facts, bytes_apart, facts_of, own_capacity, reduction_extents
from poly.scheduling.cpu_plan import BlockPlan
from poly.scheduling.cpu_ways import FEWEST_ROWS
from poly.scheduling.groups import Group
from poly.scheduling.row_groups import groups_for
from poly.scheduling.thread_blocks import has_indices, in_blocks_of, is_contraction, is_plain

TRIED = 3  # sizes of blocks
WORSE = 1.05  # times the cycles without blocks, at most: the model does not count what stores wait for


def with_result_blocks(program: Program, machine: Machine, threads: int) -> Program:
    """The program with rows in blocks in those of its contractions whose results come from a slow last cache, in more
    rows at a time than prefetchers follow. Not for several threads, which have other blocks.
    """
    if threads > 1 or machine.kind != "cpu" or not core_of(machine, 4).afar or not is_plain(program):
        return program
    for group in groups_for(program, machine, threads):
        if is_contraction(program, group, machine, threads) and not has_indices(group):
            program = _in_blocks(program, group, machine)
    return program


def _in_blocks(program: Program, group: Group, machine: Machine) -> Program:
    """The program with blocks of the rows of a group, where the plan without them writes too many at a time; of the
    longest blocks those that the model gives the fewest cycles.
    """
    facts = facts_of(program, group, machine, 1)
    lanes = facts.lanes()
    best = best_rated(facts, lanes) if lanes is not None else None
    if best is None or not _scatters(facts, best.plan):
        return program
    extent = facts.extents[best.plan.rows]
    sizes = [n for n in range(WALKED, FEWEST_ROWS - 1, -1) if extent % n == 0]
    least, blocked = WORSE * best.cycles, program
    for size in sizes[:TRIED]:
        apart = in_blocks_of(program, group, best.plan.rows, size)
        cycles = _cycles(apart, group, machine, least) if apart is not None else inf
        if apart is not None and cycles < least:
            least, blocked = cycles, apart
    return blocked


def _cycles(program: Program, source: Group, machine: Machine, limit: float) -> float:
    """What the model gives the contraction of a group that has blocks, its lanes those along which it writes; of what
    takes more than a limit in any case no plan is made.
    """
    group = next(g for g in groups_for(program, machine, 1) if {*g.names} & {*source.names})
    if {*group.names} != {*source.names} or not is_contraction(program, group, machine, 1):
        return inf
    facts = facts_of(program, group, machine, 1)
    lanes = facts.lanes()
    if lanes is None or least_of_plans(facts, lanes) >= limit:
        return inf
    found = best_rated(facts, lanes)
    return found.cycles if found is not None and found.plan.lanes == lanes else inf


def _scatters(facts: Facts, plan: BlockPlan) -> bool:
    """Whether rows of lanes of a large result, more than prefetchers follow, are written for each iteration of a loop
    around that goes on behind them, and sums are so short that a line comes later from memory than operations end.
    """
    update, program = facts.update, facts.program
    assert update is not None
    axes = facts.group.axes[update.name]
    write, tensor = update.write, program.tensor[update.write.tensor]
    if plan.lanes != facts.lanes() or plan.depth is not None or plan.row_block or plan.matrix is not None:
        return False
    if tensor.nbytes(program.binding) <= own_capacity(facts.machine) or facts.extents[plan.rows] <= WALKED:
        return False
    core, steps = core_of(facts.machine, facts.widest()), prod(reduction_extents(program, update, axes).values())
    if steps / core.fma >= core.line / core.caches[-1].rate:
        return False
    width = bytes_apart(program, write, axes[plan.lanes]) or 0
    rows = bytes_apart(program, write, axes[plan.rows]) or 0
    apart = [bytes_apart(program, write, axes[a]) or 0 for a in (*plan.outer, *plan.middle) if facts.extents[a] > 1]
    return any(width < n < rows for n in apart)
