"""The primitives that move nothing: each says how a loop runs, then the checker decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.loops import MOST_NOWAIT, LoopKind
from poly.scheduling.edits import finish, loops_inside, new_names, renest
from poly.scheduling.leaving import why_not
from poly.scheduling.nowait import is_next, run_through
from poly.scheduling.paths import Nest
from poly.scheduling.schedule import Mark, Schedule, changed

FARTHEST = 1 << 20  # iterations that a loop may ask ahead: addresses stay within 64 bits
_SHOWN: Mapping[LoopKind, str] = {
    "vector": "a vector loop", "unroll": "unrolled", "parallel": "parallel", "unit": "a loop of an engine",
}  # fmt: skip


def _marked(schedule: Schedule, name: str, loop: str, kind: LoopKind) -> Schedule:
    return finish(schedule, _with_mark(schedule, [loop], Mark(kind)), name, loop=loop)


def _with_mark(schedule: Schedule, loops: Sequence[str], mark: Mark) -> Schedule:
    for loop in loops:
        schedule.under(loop)
        if schedule.kind(loop) != "serial":
            what = f"loop {loop!r} is {_SHOWN[schedule.kind(loop)]} already"
            hint = f"tile({{{loop!r}: 8}}) for two loops, with a mark for each"
            raise ScheduleError(what, where=schedule.source.name, hint=hint)
    return changed(schedule, marks={**schedule.marks, **dict.fromkeys(loops, mark)})


def unroll(schedule: Schedule, loop: str) -> Schedule:
    """Run a loop as literal copies of its body."""
    return _marked(schedule, "unroll", loop, "unroll")


def vectorise(schedule: Schedule, loop: str) -> Schedule:
    """Run an innermost loop's iterations as the lanes of one vector. It must carry nothing."""
    if inner := loops_inside(schedule, loop):
        raise ScheduleError(
            f"loop {loop!r} has {', '.join(sorted(inner))} inside",
            where=schedule.source.name,
            hint="vectorise an innermost loop",
        )
    return _marked(schedule, "vectorise", loop, "vector")


def nontemporal(schedule: Schedule, loop: str) -> Schedule:
    """Let a vector loop store past the caches: whole, aligned vectors of what it writes to memory. Or let the command
    of a unit loop load what need not stay in the first cache.

    Every such store replaces what is there: a target that is combined with its old value is read, so cached, anyway.
    """
    statements = [schedule.statement(name) for name in schedule.under(loop)]
    kind = schedule.kind(loop)
    if kind not in ("vector", "unit"):
        hint = f"vectorise({loop!r}) first"
        raise ScheduleError(f"loop {loop!r} is not a vector loop", where=schedule.source.name, hint=hint)
    stores = [s for s in statements if not schedule.program.tensor[s.write.tensor].scope]
    if kind == "vector" and (not stores or any(s.combiner is not None for s in stores)):
        raise ScheduleError(
            f"loop {loop!r} has no store that only replaces elements of a whole tensor", where=schedule.source.name,
            hint="mark the loop that writes the tensor, after promotion the one of its copy back",
        )  # fmt: skip
    if kind == "unit" and not all(s.copies and schedule.program.tensor[s.write.tensor].origin for s in statements):
        raise ScheduleError(
            f"loop {loop!r} loads nothing", where=schedule.source.name,
            hint="mark the innermost loop of a copy into a buffer of the engine",
        )  # fmt: skip
    marks = {**schedule.marks, loop: replace(schedule.marks[loop], nontemporal=True)}
    return finish(schedule, changed(schedule, marks=marks), "nontemporal", loop=loop)


def prefetch(schedule: Schedule, loop: str, along: str, ahead: int = 1) -> Schedule:
    """Let a vector loop ask, for every vector that it loads from memory and every line that it stores to of a whole
    tensor, for what it loads or stores `ahead` iterations of the loop `along` later, a loop around it; so for lines of
    elements of whole tensors that all lanes share and read, if each iteration of `along` goes on by a line at least:
    of those that stay in their line for several iterations nothing is asked for. Lines come into the first cache.

    Nothing is read or written by that, and no address is too far: it says where the caches will be needed. Where later
    edits leave no loop of that name, nothing is asked for.
    """
    if schedule.kind(loop) != "vector":
        hint = f"vectorise({loop!r}) first"
        raise ScheduleError(f"loop {loop!r} is not a vector loop", where=schedule.source.name, hint=hint)
    if along == loop or along not in schedule.outer(loop) or not 1 <= ahead <= FARTHEST:
        hint = f"ahead is 1 to {FARTHEST}, along one of {', '.join(schedule.outer(loop))}"
        what = f"loop {loop!r} cannot ask for what it touches {ahead} iterations of {along!r} later"
        raise ScheduleError(what, where=schedule.source.name, hint=hint)
    touched = [a for name in schedule.under(loop) for a, _ in schedule.statement(name).accesses]
    if all(a.indirect or schedule.program.tensor[a.tensor].scope for a in touched):
        raise ScheduleError(
            f"loop {loop!r} touches nothing of a whole tensor", where=schedule.source.name,
            hint="mark the loop that reads or writes the tensor, after promotion the one of its copy",
        )  # fmt: skip
    if (before := schedule.marks[loop].ahead) is not None:
        what = f"loop {loop!r} asks already for what it touches {before[1]} iterations of {before[0]!r} later"
        raise ScheduleError(what, where=schedule.source.name, hint="one prefetch for a loop")
    marks = {**schedule.marks, loop: replace(schedule.marks[loop], ahead=(along, ahead))}
    return finish(schedule, changed(schedule, marks=marks), "prefetch", loop=loop, along=along, ahead=ahead)


def parallelise(schedule: Schedule, loop: str) -> Schedule:
    """Run a loop's iterations at once, split over threads. It must carry nothing, reductions included."""
    return _marked(schedule, "parallelise", loop, "parallel")


def nowait(schedule: Schedule, loop: str, following: str) -> Schedule:
    """Let threads that are done with a parallel loop go on to the parallel loop behind it before the others are done
    (the clause of this name of OpenMP). In one iteration of the loops around both they touch nothing in common that
    either writes; nor does any loop before, from which threads came without a meeting, and `following`. So many loops
    may be in a row as `poly.loops.MOST_NOWAIT` says.

    Where later edits leave another loop behind it, threads meet.
    """
    for name in (loop, following):
        schedule.under(name)
        if schedule.kind(name) != "parallel":
            hint = f"parallelise({name!r}) first"
            raise ScheduleError(f"loop {name!r} is not a parallel loop", where=schedule.source.name, hint=hint)
    if not is_next(schedule, loop, following):
        what = f"loop {following!r} is not the one right behind {loop!r}"
        raise ScheduleError(what, where=schedule.source.name, hint="name the loop that threads reach next")
    if before := [n for n, m in schedule.marks.items() if m.nowait == following and n != loop]:
        what = f"{before[0]!r} is already followed by {following!r}"
        raise ScheduleError(what, where=schedule.source.name, hint="one loop only may name another")
    marks = {**schedule.marks, loop: replace(schedule.marks[loop], nowait=following)}
    marked = changed(schedule, marks=marks)
    if len(run_through(marked, loop)) > MOST_NOWAIT:
        what = f"more than {MOST_NOWAIT} loops in a row without a meeting, with {loop!r} and {following!r}"
        raise ScheduleError(what, where=schedule.source.name, hint="let threads meet between two of them")
    return finish(schedule, marked, "nowait", loop=loop, following=following)


def leave(schedule: Schedule, loop: str, statement: str) -> Schedule:
    """Let a serial loop end after an iteration in which a statement right inside of it writes false: all that are left
    would change nothing. Where later edits put the statement elsewhere, all of them run.
    """
    if (reason := why_not(schedule, loop, statement)) is not None:
        message = f"loop {loop!r} cannot end where {statement!r} writes false: {reason}"
        hint = f"write what stays behind {loop!r} as select(go, new, old), and go in each iteration for itself"
        raise ScheduleError(message, where=schedule.source.name, hint=hint)
    marks = {**schedule.marks, loop: replace(schedule.marks.get(loop, Mark()), leaves=statement)}
    return finish(schedule, changed(schedule, marks=marks), "leave", loop=loop, statement=statement)


def tensorise(
    schedule: Schedule, loops: Sequence[str], engine: str, statement: str | None = None, fill: str | None = None
) -> Schedule:
    """Give a chain of innermost loops to one command of a machine's engine (its loop nest). One statement is inside.

    `statement`, in the place of loops: each instance is a command of its own, of a loop S.once that runs once. `fill`:
    the vector engine that writes what a DMA cannot, the pieces of a copy that are padding only.
    """
    if bool(loops) == (statement is not None):
        hint = "loops, outermost first, or () and the statement that has none of its own"
        raise ScheduleError("tensorise takes loops or a statement", where=schedule.source.name, hint=hint)
    placed, chain = (schedule, tuple(loops)) if statement is None else _with_once(schedule, statement)
    if not _innermost(placed, chain):
        raise ScheduleError(
            f"{list(loops)} is not a chain of innermost loops around one statement", where=schedule.source.name,
            hint="name the loops outermost first, down to the innermost one; distribute to get one statement",
        )  # fmt: skip
    marked = _with_mark(placed, chain, Mark("unit", engine, fill))
    return finish(schedule, marked, "tensorise", loops=tuple(loops), engine=engine, statement=statement, fill=fill)


def _innermost(schedule: Schedule, chain: Sequence[str]) -> bool:
    """Whether a chain of loops is innermost, around one statement. Raises `ScheduleError` for an unknown loop."""
    (statement, *others) = schedule.under(chain[-1])
    return not others and schedule.nests[statement].names[-len(chain) :] == tuple(chain)


def _with_once(schedule: Schedule, statement: str) -> tuple[Schedule, tuple[str, ...]]:
    """With a loop of one iteration directly around a statement, and that loop."""
    schedule.statement(statement)
    loop = f"{statement}.once"
    new_names(schedule, loop)
    once = renest(schedule, [statement], lambda nest: Nest({**nest.loops, loop: Affine()}, (*nest.path, loop)))
    return once, (loop,)
