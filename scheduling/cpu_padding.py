"""Windows without their padding where a CPU has that sooner done, and whole ones where it needs their places as lanes.

Lanes cannot run along places that have ends of their own. Where channels are contiguous and another loop fills vectors,
padding is always left out; else the plan of a contraction says which is better: tiles of windows without padding keep
these in registers and load less, which the model sees only in part.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu import left_to_contractions
from poly.scheduling.cpu_contract import best_rated, other_lanes
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_facts import facts_of, widest_element
from poly.scheduling.cpu_turned import turned_of
from poly.scheduling.cpu_window import window_of
from poly.scheduling.filled_sums import with_filled_sums
from poly.scheduling.groups import Group, groups_of
from poly.scheduling.uneven import inside_rows, inside_windows, shorter_ends, uneven_axes

# Of all multiply-adds, what windows of each plane have left without rows of padding: tiles at the ends are code of
# their own, and where they are copied, copies of their own.
LEFT, LEFT_COPIED = 0.96, 0.8


def without_padding(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The program whose windows leave out their padding where that pays; `finite`: see `inside_windows`."""
    found = inside_windows(program, finite)
    if machine.kind != "cpu":
        return found
    changed = _changed(program, found)
    for group in groups_of(found) if changed else ():
        names = changed.intersection(group.names)
        if names and not _has_lanes(found, group, machine):
            found = _with(found, program, names)
    found = _inside_rows(found, finite, machine, threads)
    every = inside_windows(found, finite, planes=True)
    if every is found:
        return found
    changed = _changed(found, every)
    for group in groups_of(found):
        names = changed.intersection(group.names)
        shorter = _with(found, every, names) if names else found
        before, after = (contraction_cycles(p, names, machine, threads) for p in (found, shorter))
        sooner = core_of(machine, widest_element(program, group.statements)).unpadded / 100
        if before is not None and after is not None and after < before * sooner:
            found = shorter
    return found


def _inside_rows(program: Program, finite: Collection[str], machine: Machine, threads: int) -> Program:
    """The program whose windows of each plane leave out rows of padding where that spares enough."""
    found, every = program, inside_rows(program, finite)
    changed = _changed(program, every)
    for group in groups_of(every) if changed else ():
        names = changed.intersection(group.names)
        if names and _rows_pay(program, every, group, machine, threads):
            found = _with(found, every, names)
    return found


def _rows_pay(program: Program, every: Program, group: Group, machine: Machine, threads: int) -> bool:
    window = window_of(every, group, machine)
    if window is None or window.step_down > 1:  # of steps few tiles see an end, and rows are picked in pairs
        return False
    ends = shorter_ends(every, every.statement[window.statement], group.axes[window.statement]) or {}
    left = prod(e.share for e in ends.values())
    if left > (LEFT_COPIED if window.copied else LEFT):
        return False
    whole = next(g for g in groups_of(program) if window.statement in g.names)
    return turned_of(program, whole, machine, threads, left) is None


def whole_windows(program: Program, machine: Machine) -> Program:
    """The program whose windows are whole where only their places fill vectors."""
    if machine.kind != "cpu" or (filled := with_filled_sums(program)) is program:
        return program
    names = {n for n in _changed(program, filled) if _fills_lanes(program, filled, n, machine)}
    return _with(program, filled, names) if names else program


def _fills_lanes(program: Program, filled: Program, name: str, machine: Machine) -> bool:
    """Whether of a whole window's loops those alone fill vectors along which the window as it was has ends."""
    alone = replace(filled, statements=(filled.statement[name],))
    (group,) = groups_of(alone)
    if group.box is None or not group.axes:
        return False
    facts, axes = facts_of(alone, group, machine), group.axes[name]
    lanes, uneven = facts.lanes(), uneven_axes(program, program.statement[name], axes) or {}
    if lanes is None or axes[lanes] not in uneven:
        return False
    width = machine.lanes(facts.widest())
    return not any(e >= width and a not in uneven for a, e in zip(axes, facts.extents, strict=True))


def filled_like(program: Program, other: Program) -> Program:
    """The program that `whole_windows` gives where it chooses as for another one, on any machine."""
    filled = with_filled_sums(program)
    left = {n for n in _changed(program, filled) if n in other.statement and _guards(other.statement[n])}
    return _with(program, filled, left)


def padding_like(program: Program, other: Program, finite: Collection[str]) -> Program:
    """The program that `without_padding` gives where it chooses as for another one, on any machine."""
    found = program
    for edit in (inside_windows, inside_rows, _inside_planes):
        shorter = edit(found, finite)
        left = {n for n in _changed(found, shorter) if n in other.statement}
        left = {n for n in left if _guards(other.statement[n]) <= _guards(shorter.statement[n])}
        found = _with(found, shorter, left)
    return found


def _inside_planes(program: Program, finite: Collection[str]) -> Program:
    return inside_windows(program, finite, planes=True)


def _has_lanes(program: Program, group: Group, machine: Machine) -> bool:
    """Whether a loop that fills a vector is left to lanes in a group whose windows have no padding."""
    if group.box is None or not group.axes:
        return True
    facts = facts_of(program, group, machine)
    lanes, update = facts.lanes(), facts.update
    if lanes is None or update is None or lanes not in facts.uneven:
        return True
    return any(facts.extents[a] >= machine.lanes(facts.widest()) for a in other_lanes(facts, update, lanes))


def _changed(program: Program, other: Program) -> set[str]:
    return {s.name for s in program.statements if s != other.statement[s.name]}


def _with(program: Program, other: Program, names: Collection[str]) -> Program:
    """A program with some statements of another one."""
    return replace(
        program, statements=tuple(other.statement[s.name] if s.name in names else s for s in program.statements)
    )


def _guards(s: Statement) -> int:
    return sum(len(r.guard) for r in s.reads)


def contraction_cycles(program: Program, names: set[str], machine: Machine, threads: int) -> float | None:
    """What the model gives the groups of some statements; None where there is none, or one is no contraction."""
    total = 0.0
    for group in groups_of(program):
        if not names & {*group.names}:
            continue
        cycles = _contraction(program, group, machine, threads)
        if cycles is None:
            return None
        total += cycles
    return total or None


def _contraction(program: Program, group: Group, machine: Machine, threads: int) -> float | None:
    """What the model gives a group that is left to the policy for contractions."""
    if group.box is None or not group.axes:
        return None
    if not left_to_contractions(program, group, machine, threads):
        return None
    facts = facts_of(program, group, machine, threads)
    lanes = facts.lanes()
    best = None if lanes is None else best_rated(facts, lanes)
    return None if best is None else best.cycles
