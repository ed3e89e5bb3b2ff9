"""Windows with few results sum up their channels first where that is sooner done (`poly.scheduling.channels_first`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.channels_first import channels_first
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_facts import widest_element
from poly.scheduling.cpu_padding import contraction_cycles
from poly.scheduling.joined_axes import join_axes

GAIN = 0.9  # of the cycles, at most
GAIN_AFAR = 1.15  # where the last cache is `afar`: what is between is charged from there, and stays near
TERM = 16.0  # cycles of a vector of terms that are added up behind: loads in two lines, edges, what left the caches


def with_channels_first(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The program whose windows with few results sum up their channels first, where that pays."""
    for found in channels_first(program, finite) if machine.kind == "cpu" else ():
        before = _window_cycles(program, found.sums, machine, threads)
        after = contraction_cycles(join_axes(found.rated), {found.made}, machine, threads)
        if before is None or after is None:
            continue
        size = widest_element(program, [program.statement[found.sums]])
        lanes, most = machine.lanes(size), GAIN_AFAR if core_of(machine, size).afar else GAIN
        if after + TERM * found.terms / lanes / threads < most * before:
            return with_channels_first(found.program, finite, machine, threads)
    return program


def _window_cycles(program: Program, name: str, machine: Machine, threads: int) -> float | None:
    """What the model gives a window; by itself where its group has no lanes, as one that interleaves remainders."""
    target = program.statement[name].write.tensor
    alone = replace(program, statements=tuple(s for s in program.statements if s.write.tensor == target))
    found = contraction_cycles(program, {name}, machine, threads)
    return contraction_cycles(alone, {name}, machine, threads) if found is None else found


def channels_like(program: Program, other: Program, finite: Collection[str]) -> Program:
    """What `with_channels_first` gives where it chooses as for another program, on any machine."""
    for found in channels_first(program, finite):
        if found.made in other.statement:
            return channels_like(found.program, other, finite)
    return program
