"""The primitive that places statements anew: whole nests at once, for schedules that come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.program import PathStep
from poly.scheduling.edits import finish
from poly.scheduling.paths import Nest
from poly.scheduling.schedule import Schedule

Place = tuple[str, tuple[PathStep, ...], tuple[tuple[str, str], ...]]


def arrange(schedule: Schedule, nests: Sequence[Place]) -> Schedule:
    """Give statements other nests, all at once; the others stay.

    A place is (statement, path, loops): the path mixes positions and loop names from the outside in, loops are pairs
    of a name and an affine expression of the iterators: ("S", (0, "t0", "t1"), (("t0", "t"), ("t1", "t + i"))).
    Raises `ScheduleError` for what is no place of a statement and `IllegalEdit` where the order would be another one.
    """
    placed = dict(schedule.nests)
    for place in nests:
        if not _is_place(place):
            hint = '("S", (0, "t"), (("t", "i"),))'
            raise ScheduleError(f"{place!r:.80} is no place of a statement", where=schedule.source.name, hint=hint)
        name, path, loops = place
        placed[name] = _nest(schedule, name, tuple(path), dict(loops))
    inside = {n for nest in placed.values() for n in nest.names}
    for tensor in schedule.program.tensors:
        if not set(tensor.scope) <= inside:
            why = f"{tensor.name} lives in loops {tensor.scope}"
            raise ScheduleError(why, where=schedule.source.name, hint="arrange before promoting")
    marks = {loop: mark for loop, mark in schedule.marks.items() if loop in inside}
    return finish(schedule, schedule.with_nests(placed, marks=marks), "arrange", nests=tuple(nests))


def _is_place(place: object) -> bool:
    """True for a name, a path, and pairs of names and texts."""
    if not isinstance(place, tuple | list) or len(place) != 3 or not isinstance(place[0], str):
        return False
    _, path, loops = place
    if not isinstance(path, tuple | list) or not isinstance(loops, tuple | list):
        return False
    pairs = all(isinstance(p, tuple | list) and len(p) == 2 and all(isinstance(t, str) for t in p) for p in loops)
    return pairs and all(isinstance(step, str | int) for step in path)


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
