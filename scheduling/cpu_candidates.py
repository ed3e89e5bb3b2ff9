"""Other plans for a program's contractions than those that the model likes best: what measuring can choose from.

A candidate is a program after the edits of `cpu_program`, as they are chosen or otherwise, with a plan for one of its
contractions. Those that the model gives the fewest cycles, and by turns the best ones of different ways to do it: the
fastest of hundreds is among the first of the former, or of the latter where the model knows too little of a way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import left_to_contractions
from poly.scheduling.cpu_contract import chosen_plan, other_plans
from poly.scheduling.cpu_facts import Facts, facts_of
from poly.scheduling.cpu_plan import Plans
from poly.scheduling.cpu_rating import Rated
from poly.scheduling.result_blocks import with_result_blocks
from poly.scheduling.row_groups import groups_for
from poly.scheduling.shared_sums import share_sums
from poly.scheduling.thread_blocks import with_thread_blocks

POOL = 200  # plans of a contraction, the best of every way by turns, from which is taken
FAR = 3.0  # times the cycles of the best: what the model gives more is left out


@dataclass(frozen=True)
class Candidate:
    """A program, plans for some of its contractions (the policy chooses the others), and what the model gives all.
    `turn`: better plans that there are of the same way to do it.
    """

    program: Program
    plans: Plans
    cycles: float
    turn: int = 0


def candidates_of(
    programs: Sequence[tuple[Program, float]], machine: Machine, threads: int, count: int, far: float = FAR
) -> list[Candidate]:
    """The policy's choice for the first of some programs that compute the same, then at most `count - 1` others; each
    program with the cycles of copies that it makes for its contraction. Only the first where nothing can be chosen.
    """
    pool = max(count, POOL)
    chosen, *others = (
        _candidates(p, copies, machine, threads, pool, far)
        for program, copies in programs for p in _with_threads(program, machine, threads)
    )  # fmt: skip
    cycles = chosen[0].cycles if chosen else inf
    found = [*chosen[1:], *(c for own in others for c in own)]
    limit = far * min([cycles, *(c.cycles for c in found)])
    quick = sorted((k for k, c in enumerate(found) if c.cycles <= limit), key=lambda k: found[k].cycles)
    unlike = sorted(quick, key=lambda k: found[k].turn)
    order = (found[k] for both in zip(quick, unlike, strict=True) for k in both)
    different = {(id(c.program), c.plans): c for c in order}  # ways may come to the same plan
    return [Candidate(programs[0][0], (), cycles), *[*different.values()][: count - 1]]


def _with_threads(program: Program, machine: Machine, threads: int) -> Iterator[Program]:
    """A program as threads share it, then without blocks for each of them."""
    shared = share_sums(program, machine, threads)
    apart = with_result_blocks(with_thread_blocks(shared, machine, threads), machine, threads)
    yield apart
    if apart is not shared:
        yield shared


def _candidates(
    program: Program, copies: float, machine: Machine, threads: int, count: int, far: float
) -> list[Candidate]:
    """The policy's plans for a program's contractions, then others, for one of them at a time."""
    facts = [*_contractions(program, machine, threads)]
    total = copies + sum(own.cycles for _, own in facts)
    found = [Candidate(program, tuple((f.group.names, own.plan) for f, own in facts), total)] if facts else []
    for f, own in facts:
        others = other_plans(f, count, far)
        found += [Candidate(program, ((f.group.names, r.plan),), total - own.cycles + r.cycles, n) for n, r in others]
    return found


def _contractions(program: Program, machine: Machine, threads: int) -> Iterator[tuple[Facts, Rated]]:
    """The groups that are left to the policy for contractions, with its plans."""
    for group in groups_for(program, machine, threads):
        if group.box is None or not group.axes or group.parts or any(s.external is not None for s in group.statements):
            continue
        if left_to_contractions(program, group, machine, threads):
            facts = facts_of(program, group, machine, threads)
            if (plan := chosen_plan(facts)) is not None:
                yield facts, plan
