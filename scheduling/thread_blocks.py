"""One block for each thread: a parallel loop of a contraction as two, of which the outer one has as many iterations as
there are threads and goes outside of all that is packed.

`C[i,j] += A[i,k]*B[k,j]` on two threads: where they share i inside of a block of j, they meet after B is packed for
both, and fetch what the other one packed; where they share j they write the same rows. With `i = n*t + i'` each thread
packs for itself what its rows need, and nothing travels. See docs/decisions/0096.
"""

from __future__ import annotations

from dataclasses import replace

from poly.machine import Machine
from poly.program import Program, Statement, default_path
from poly.scheduling.block_loops import in_blocks
from poly.scheduling.cpu import left_to_contractions
from poly.scheduling.cpu_contract import best_rated, least_of_plans
from poly.scheduling.cpu_core import SLOWLY_SHARED, own_share, remote_rate
from poly.scheduling.cpu_facts import Facts, facts_of
from poly.scheduling.cpu_plan import BlockPlan
from poly.scheduling.cpu_shares import MEETING_CYCLES
from poly.scheduling.groups import Group, bare, domain_box
from poly.scheduling.row_groups import groups_for

FEWEST = 8  # iterations of a block, at least: about a register tile
# Of the cycles without blocks, at most: closer to them, the model cannot tell; and where each thread packs all that it
# packs on its way: it does not count the lines that threads lose where they read the same ones (0115).
GAIN, GAIN_ON_WAY = 0.98, 1.0


def with_thread_blocks(program: Program, machine: Machine, threads: int) -> Program:
    """The program with a block for each thread in those of its contractions that are sooner done so, by the model."""
    if threads == 1 or machine.kind != "cpu" or remote_rate(machine) > SLOWLY_SHARED:
        return program
    if not is_plain(program):
        return program
    for group in groups_for(program, machine, threads):
        if is_contraction(program, group, machine, threads):
            program = _soonest(program, group, machine, threads)
    return program


def blocks_like(program: Program, other: Program) -> Program:
    """What `with_thread_blocks` gives where it chooses as for another program."""
    statements = list(program.statements)
    if len(statements) != len(other.statements):
        return program
    for k, (s, found) in enumerate(zip(statements, other.statements, strict=True)):
        fast = next((i for i in found.iterators if i not in s.iterators), None)
        if s.name != found.name or fast is None or len(found.iterators) != len(s.iterators) + 1:
            continue
        name = found.iterators[found.iterators.index(fast) - 1]
        box = domain_box(other, found, (fast,))
        apart = in_blocks(program, s, k, name, box[0][1] + 1) if box is not None and name in s.iterators else None
        statements[k] = apart or s
    return replace(program, statements=tuple(statements))


def is_plain(program: Program) -> bool:
    """Whether a program has a reduction, and statements that follow one another."""
    if not any(s.combiner is not None for s in program.statements):
        return False
    statements = enumerate(program.statements)
    return not any(s.external is not None or s.path != default_path(k, s.iterators) for k, s in statements)


def is_contraction(program: Program, group: Group, machine: Machine, threads: int) -> bool:
    """Whether a group is left to the policy for contractions."""
    reductions = [s for s in group.statements if s.combiner is not None]
    if group.box is None or group.parts or len(reductions) != 1 or len(reductions[0].reads) < 2:
        return False
    return left_to_contractions(program, group, machine, threads)


def _soonest(program: Program, group: Group, machine: Machine, threads: int) -> Program:
    """The program with blocks of a loop of a group where the model gives it fewer cycles so."""
    facts = facts_of(program, group, machine, threads)
    lanes = facts.lanes()
    best = best_rated(facts, lanes) if lanes is not None else None
    apart = _in_blocks(program, facts) if best is not None else None
    if best is None or apart is None:
        return program
    again = next(g for g in groups_for(apart, machine, threads) if {*g.names} & {*group.names})
    if {*again.names} != {*group.names} or not is_contraction(apart, again, machine, threads):
        return program
    without = best.cycles - _without_meetings(best.plan)
    turned = best.plan.lanes != lanes
    return apart if _is_sooner(facts_of(apart, again, machine, threads), without, turned) else program


def _without_meetings(plan: BlockPlan) -> float:
    """Cycles of meetings that the model counts, though the pieces of rows of what is not packed need none (0056)."""
    return 0.0 if plan.packs else (len(plan.strips[0].rows) - 1) * MEETING_CYCLES


def _is_sooner(facts: Facts, without: float, turned: bool) -> bool:
    """Whether the model gives a contraction fewer cycles than it takes without blocks, `turned`: also by tiles turned
    in registers, which it rates too well to take them where there were none.
    """
    lanes = facts.lanes()
    if lanes is None or least_of_plans(facts, lanes) >= GAIN_ON_WAY * without:
        return False
    best = best_rated(facts, lanes)
    if best is None or not (turned or best.plan.lanes == lanes):
        return False
    on_way = bool(best.plan.packs) and all(p.on_way for p in best.plan.packs)
    return best.cycles < (GAIN_ON_WAY if on_way else GAIN) * without


def _in_blocks(program: Program, facts: Facts) -> Program | None:
    """The program with blocks of a group's longest parallel loop, in all of its statements; not of the loop along which
    the result is contiguous, as threads would write the same rows side by side. None where there is no such loop.
    """
    update, group, threads = facts.update, facts.group, facts.threads
    assert update is not None
    if has_indices(group):
        return None
    rows = {bare(i) for i in update.write.affine_index[:-1]}
    axes = [a for a, n in enumerate(group.axes[update.name]) if n in rows and not facts.extents[a] % threads]
    axis = max(axes, key=lambda a: facts.extents[a], default=None)
    size = facts.extents[axis] // threads if axis is not None else 0
    if axis is None or size < FEWEST or _is_large(program, update, group.axes[update.name][axis], facts.machine):
        return None
    return in_blocks_of(program, group, axis, size)


def has_indices(group: Group) -> bool:
    """Whether what a group touches depends on indices from memory."""
    return any(a.indirect for s in group.statements for a, _ in s.accesses)


def in_blocks_of(program: Program, group: Group, axis: int, size: int) -> Program | None:
    """The program with blocks of one of a group's loops, in all of its statements; None where that cannot be."""
    cut = [_cut(program, k, group, axis, size) for k in range(len(program.statements))]
    statements = tuple(s for s in cut if s is not None)
    return replace(program, statements=statements) if len(statements) == len(cut) else None


def _is_large(program: Program, update: Statement, loop: str, machine: Machine) -> bool:
    """Whether more than a core's own last cache keeps is read by all iterations of a loop: each thread would fetch it
    from the last one, or from memory, whose pace they share.
    """
    common = [r for r in update.reads if not any(loop in i.names for i in r.affine_index)]
    kept = own_share(machine.own_caches[-1].capacity or 0) if machine.own_caches else 0
    return max((program.tensor[r.tensor].nbytes(program.binding) for r in common), default=0) > kept


def _cut(program: Program, position: int, group: Group, axis: int, size: int) -> Statement | None:
    """A statement with blocks of a group's loop, itself where it is of another group; None where that cannot be."""
    s = program.statements[position]
    return in_blocks(program, s, position, group.axes[s.name][axis], size) if s.name in group.names else s

