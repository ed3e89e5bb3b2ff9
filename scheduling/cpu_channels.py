"""Windows with few results sum up their channels first where that is sooner done (`poly.scheduling.channels_first`)."""

from __future__ import annotations

from collections.abc import Collection

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.channels_first import channels_first
from poly.scheduling.cpu_facts import widest_element
from poly.scheduling.cpu_padding import contraction_cycles
from poly.scheduling.joined_axes import join_axes

GAIN = 0.9  # of the cycles, at most
TERM = 16.0  # cycles of a vector of terms that are added up behind: loads in two lines, edges, what left the caches


def with_channels_first(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The program whose windows with few results sum up their channels first, where that pays."""
    for found in channels_first(program, finite) if machine.kind == "cpu" else ():
        before = contraction_cycles(program, {found.sums}, machine, threads)
        after = contraction_cycles(join_axes(found.program), {found.made}, machine, threads)
        if before is None or after is None:
            continue
        lanes = machine.lanes(widest_element(program, [program.statement[found.sums]]))
        if after + TERM * found.terms / lanes / threads < GAIN * before:
            return with_channels_first(found.program, finite, machine, threads)
    return program


def channels_like(program: Program, other: Program, finite: Collection[str]) -> Program:
    """What `with_channels_first` gives where it chooses as for another program, on any machine."""
    for found in channels_first(program, finite):
        if found.made in other.statement:
            return channels_like(found.program, other, finite)
    return program
