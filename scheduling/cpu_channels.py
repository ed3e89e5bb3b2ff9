"""Windows with few results sum up their channels first where that is sooner done (`poly.scheduling.channels_first`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.channels_first import First, channels_first
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_facts import widest_element
from poly.scheduling.cpu_padding import contraction_cycles
from poly.scheduling.joined_axes import join_axes

GAIN = 0.9  # of the cycles, at most
# Of windows of the same data beside each by itself, where the last cache is `afar`, and what a line takes on its way
# from the first cache and back, if half of that does not hold what is between (0128).
GAIN_TOGETHER, LINE_AWAY = 0.86, 8.0
FEW_RESULTS = 8  # of more, an element is loaded seldom enough: together not, and else not where caches are near
GAIN_AFAR = 1.15  # of few, where the last cache is `afar`: what is between is charged from there, and stays near
TERM = 16.0  # cycles of a vector of terms that are added up behind: loads in two lines, edges, what left the caches


def with_channels_first(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The program whose windows with few results sum up their channels first, where that pays: those of the same data
    together, then each by itself.
    """
    ways = [*channels_first(program, finite)] if machine.kind == "cpu" else []
    alone = {way.sums[0]: way for way in ways if len(way.sums) == 1}
    for way in ways:
        own = [alone[n] for n in way.sums if n in alone]
        if len(way.sums) > 1 and way.results <= FEW_RESULTS and _pays_together(program, way, own, machine, threads):
            return with_channels_first(way.program, finite, machine, threads)
    return _each(program, finite, machine, threads) if alone else program


def _each(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The same of windows by themselves."""
    for way in channels_first(program, finite):
        core, few = core_of(machine, _widest(program, way)), way.results <= FEW_RESULTS
        if len(way.sums) != 1 or not (few or core.afar):
            continue
        (window,) = way.sums
        before = _window_cycles(program, window, machine, threads)
        most = (GAIN_AFAR if few and core.afar else GAIN) * (before or 0.0)
        lanes = machine.lanes(_widest(program, way))
        if (way.channels / core.fma + TERM) * way.terms / lanes / threads >= most:
            continue  # by operations alone
        after = _cycles(program, way, machine, threads)
        if after is not None and after < most:
            return _each(way.program, finite, machine, threads)
    return program


def _pays_together(
    program: Program, way: First, alone: Sequence[First], machine: Machine, threads: int
) -> bool:
    """Whether windows of the same data do better together than in the better way for each, of which the first one
    brings the data near.
    """
    core, after = core_of(machine, _widest(program, way)), _cycles(program, way, machine, threads)
    if after is None or not core.afar:
        return False
    known = {one.sums[0]: _cycles(program, one, machine, threads) for one in alone}
    each = [_least(known.get(n), _window_cycles(program, n, machine, threads)) for n in way.sums]
    again = (len(way.sums) - 1) * program.tensor[way.data].nbytes(program.binding) / core.own[-1].rate
    between = way.program.tensor[way.program.statement[way.made].write.tensor].nbytes(program.binding)
    if between > core.counted_on(0):
        after += between / core.line * LINE_AWAY / threads
    after += between * (1 - 1 / threads) / core.remote
    return after < GAIN_TOGETHER * (sum(each) - again / threads)


def _least(*cycles: float | None) -> float:
    """The least of what is known, 0 where nothing is: what no contraction does counts for nothing."""
    return min((c for c in cycles if c is not None), default=0.0)


def _cycles(program: Program, way: First, machine: Machine, threads: int) -> float | None:
    """What the model gives the products of a way, and what is added up behind."""
    made = contraction_cycles(join_axes(way.rated), {way.made}, machine, threads)
    return None if made is None else made + TERM * way.terms / machine.lanes(_widest(program, way)) / threads


def _widest(program: Program, way: First) -> int:
    return widest_element(program, [program.statement[n] for n in way.sums])


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
