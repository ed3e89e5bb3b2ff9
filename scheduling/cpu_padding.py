"""A program as the policies for a CPU take it: axes joined, and windows without padding, where that is sooner done.

Where channels are contiguous it always is. Where an image's places are, lanes could run along them, but not with ends
of their own: the plan of a contraction says which of the two is better.
"""

from __future__ import annotations

from collections.abc import Collection

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_contract import best_rated
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.cpu_reduce import reduction_of
from poly.scheduling.cpu_window import window_of
from poly.scheduling.groups import groups_of
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.uneven import inside_windows


def for_cpu(program: Program, finite: Collection[str], machine: Machine) -> Program:
    """A program as the policies for a CPU take it. `finite`: constants, see `finite_factors` of `uneven`."""
    return join_axes(without_padding(program, finite, machine))


def without_padding(program: Program, finite: Collection[str], machine: Machine) -> Program:
    """The program whose windows leave out their padding where that pays; `finite`: see `inside_windows`."""
    some = inside_windows(program, finite)
    every = inside_windows(some, finite, planes=True)
    if every is some or machine.kind != "cpu":
        return some
    before, after = (_cycles(p, machine) for p in (some, every))
    return every if before is not None and after is not None and after < before else some


def _cycles(program: Program, machine: Machine) -> float | None:
    """What the model gives the contractions of a program; None where one is none, or is another kind of group."""
    total = 0.0
    for group in groups_of(program):
        if all(s.combiner is None for s in group.statements):
            continue
        if group.box is None or not group.axes or group.parts or window_of(program, group, machine):
            return None
        facts = facts_of(program, group, machine)
        lanes = facts.lanes()
        best = None if lanes is None or reduction_of(program, group, machine) else best_rated(facts, lanes)
        if best is None:
            return None
        total += best.cycles
    return total
