"""The primitive that places statements anew: whole nests at once, for schedules that come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.program import PathStep
from poly.scheduling.edits import finish
from poly.scheduling.schedule import Nest, Schedule

Place = tuple[str, tuple[PathStep, ...], tuple[tuple[str, str], ...]]


def arrange(schedule: Schedule, nests: Sequence[Place]) -> Schedule:
    """Give statements other nests, all at once; the others stay.

    A place is (statement, path, loops): the path mixes positions and loop names from the outside in, loops are pairs
    of a name and an affine expression of the iterators: ("S", (0, "t0", "t1"), (("t0", "t"), ("t1", "t + i"))).
    Raises `ScheduleError` for what is no place of a statement and `IllegalEdit` where the order would be another one.
    """
    placed = dict(schedule.nests)
    for name, path, loops in nests:
        placed[name] = _nest(schedule, name, tuple(path), dict(loops))
    inside = {n for nest in placed.values() for n in nest.names}
    for tensor in schedule.program.tensors:
        if not set(tensor.scope) <= inside:
            why = f"{tensor.name} lives in loops {tensor.scope}"
            raise ScheduleError(why, where=schedule.source.name, hint="arrange before promoting")
    marks = {loop: mark for loop, mark in schedule.marks.items() if loop in inside}
    return finish(schedule, schedule.with_nests(placed, marks=marks), "arrange", nests=tuple(nests))


def _nest(schedule: Schedule, name: str, path: tuple[PathStep, ...], loops: dict[str, str]) -> Nest:
    expressions = {loop: Affine.of(text) for loop, text in loops.items()}
    names = [step for step in path if isinstance(step, str)]
    known = {*schedule.statement(name).iterators, *schedule.program.parameters}
    unknown = {n for e in expressions.values() for n in e.names} - known
    if unknown or sorted(names) != sorted(expressions):
        why = f"unknown {sorted(unknown)}" if unknown else f"path {path} has not the loops {sorted(expressions)}"
        raise ScheduleError(f"{name} cannot be placed there: {why}", where=schedule.source.name)
    return Nest(expressions, path)


def places_of(schedule: Schedule) -> tuple[Place, ...]:
    """The nests of a schedule as `arrange` takes them."""
    return tuple(
        (name, nest.path, tuple((loop, str(nest.loops[loop])) for loop in nest.names))
        for name, nest in schedule.nests.items()
    )
