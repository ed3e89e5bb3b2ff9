"""The primitives that only move instances: each edits loop expressions and paths, then the checker decides. And what
all edits share: their end (`finish`), checks put off (`unchecked`, `settle`), names that are free.

A primitive takes a schedule and plain values, and returns a new schedule with one more line in its log. It raises
`ScheduleError` where it does not apply and `IllegalEdit`, with a witness, where it would change a result. The
primitives that cut statements are in `splitting`, those that add some in `promotion`, `recompute` and `buffering`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import count

from poly.document import counted
from poly.errors import ScheduleError
from poly.program import PathStep, Program
from poly.scheduling.legality import BUDGET, EDIT_BUDGET, check
from poly.scheduling.paths import Nest, canonical, placed
from poly.scheduling.schedule import Edit, Schedule, changed


def finish(old: Schedule, new: Schedule, primitive: str, /, **arguments: object) -> Schedule:
    """Log the edit and, unless checks are put off (`unchecked`), have the new schedule checked."""
    new = changed(new, log=(*old.log, Edit(primitive, tuple(arguments.items()))))
    if new.checked:
        check(new, old, budget=EDIT_BUDGET)
    return new


def unchecked(schedule: Schedule) -> Schedule:
    """The same schedule, whose edits are checked together by `settle` instead of one by one."""
    return changed(schedule, checked=False)


def settle(schedule: Schedule, previous: Schedule | None = None) -> Schedule:
    """Check a schedule made by unchecked edits, of `previous` where that was checked. Raises `IllegalEdit`."""
    check(schedule, previous if previous is not None and previous.checked else None, budget=BUDGET)
    return changed(schedule, checked=True)


def settled(schedule: Schedule) -> Schedule:
    """The schedule, checked where its edits were not. Raises `IllegalEdit`."""
    return schedule if schedule.checked else settle(schedule)


def renest(schedule: Schedule, names: Sequence[str], change: Callable[[Nest], Nest]) -> Schedule:
    """Change loops of some statements, and their order, but no place in a sequence: paths stay canonical."""
    return changed(schedule, nests={**schedule.nests, **{n: placed(change(schedule.nests[n])) for n in names}})


def replaced(path: tuple[PathStep, ...], loop: str, by: Sequence[PathStep]) -> tuple[PathStep, ...]:
    """A path with other steps in the place of a loop."""
    k = path.index(loop)
    return (*path[:k], *by, *path[k + 1 :])


def new_names(schedule: Schedule, *names: str) -> None:
    taken = [n for n in names if any(n in nest.loops for nest in schedule.nests.values())]
    if taken:
        raise ScheduleError(
            f"the loop name {taken[0]!r} is taken", where=schedule.source.name, hint="tile another loop"
        )


def whole_number(what: str, value: int) -> None:
    """Raise `ScheduleError` for an argument that is no int of reasonable size."""
    if not isinstance(value, int) or abs(value) > 2**48:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScheduleError(f"{what} is {value!r}", hint="an integer of a magnitude of at most 2^48")


def buffer_name(schedule: Schedule, name: str) -> str:
    """A name given to a new tensor. Raises `ScheduleError` for one that is taken, or that isl, whose names end at a
    zero byte, would cut.
    """
    if "\0" in name:
        raise ScheduleError(f"the name {name!r} has a zero byte", hint="letters and digits")
    if _is_taken(schedule, name):
        hint = "every tensor and statement has its own name, those of the source program included"
        raise ScheduleError(f"tensor {name!r}: the name is taken", where=schedule.source.name, hint=hint)
    return name


def free_buffer_name(schedule: Schedule, wanted: str) -> str:
    """A buffer's name that is free, as are those of its copies."""
    return first_free(schedule, wanted, "ld_", "st_")


def first_free(schedule: Schedule, wanted: str, *begin: str) -> str:
    """The first of `wanted`, wanted2, wanted3 ... that is free, also with each of these beginnings."""
    names = (wanted if k == 1 else f"{wanted}{k}" for k in count(1))
    return next(n for n in names if not any(_is_taken(schedule, f"{b}{n}") for b in ("", *begin)))


def _is_taken(schedule: Schedule, name: str) -> bool:
    """Whether a tensor or a statement has a name, or had it in the source program, where values are looked up."""
    return any(name in p.tensor or name in p.statement for p in (schedule.program, schedule.source))


def _positive(what: str, value: int) -> None:
    whole_number(what, value)
    if value < 1:  # scripts bring any type
        raise ScheduleError(f"{what} is {value!r}", hint="a positive integer")


# ---- tiling and loop order


def tile(schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """Cut loops into tiles: loop i becomes i.o over tiles of `size` iterations and i.p inside a tile.

    Several loops are one band (consecutive, nothing between them): all i.o come before all i.p, in the band's order.
    """
    if not sizes:
        raise ScheduleError("no loop to tile", hint='tile(i=32) or tile({"S.i": 32})')
    if sizes.keys() & {"size", "sizes"} and not sizes.keys() <= schedule.loop_statements.keys():
        loops = [*schedule.loop_statements]
        hint = f"tile({{{loops[0]!r}: 32}}); loops: {', '.join(loops)}" if loops else "there is no loop to tile"
        raise ScheduleError("tile takes sizes by the names of loops", where=schedule.source.name, hint=hint)
    band = sorted(sizes, key=lambda loop: len(schedule.outer(loop)))
    _require_band(schedule, band)
    result = schedule
    for loop in band:
        _positive(f"tile size of {loop}", sizes[loop])
        result = _strip_mine(result, loop, sizes[loop])
    if len(band) > 1:
        result = _permute(result, [f"{b}.o" for b in band] + [f"{b}.p" for b in band])
    return finish(schedule, result, "tile", sizes=dict(sizes))


def _strip_mine(schedule: Schedule, loop: str, size: int) -> Schedule:
    """One loop as two, `.o` over tiles and `.p` inside; in no log. Marks of lanes, literal copies and engines go in,
    others stay outside.
    """
    outer, point = f"{loop}.o", f"{loop}.p"
    new_names(schedule, outer, point)

    def cut(nest: Nest) -> Nest:
        value = nest.loops[loop]
        loops = {n: v for n, v in nest.loops.items() if n != loop} | {outer: value // size, point: value % size}
        return Nest(loops, replaced(nest.path, loop, (outer, point)))

    marks = {name: m for name, m in schedule.marks.items() if name != loop}
    if loop in schedule.marks:
        marks[point if schedule.kind(loop) in ("vector", "unroll", "unit") else outer] = schedule.marks[loop]
    moved = renest(schedule, schedule.under(loop), cut)
    tensors = tuple(
        replace(t, scope=tuple(n for s in t.scope for n in ((outer, point) if s == loop else (s,))))
        if loop in t.scope
        else t
        for t in moved.program.tensors
    )
    return changed(moved, marks=marks, program=_with_tensors(moved.program, tensors))


def _with_tensors(program: Program, tensors: tuple[object, ...]) -> Program:
    return program if tensors == program.tensors else replace(program, tensors=tensors)


def _require_band(schedule: Schedule, loops: Sequence[str]) -> None:
    """Loops, outermost first, must follow one another directly."""
    for first, second in zip(loops, loops[1:], strict=False):
        path = schedule.nests[schedule.under(second)[0]].path
        k = path.index(second)
        if k == 0 or path[k - 1] != first or schedule.under(first) != schedule.under(second):
            text = f"loops {first!r} and {second!r} are not directly nested"
            raise ScheduleError(text, where=schedule.source.name, hint=_how_to_nest(path[:k], first))


def _how_to_nest(path: Sequence[str | int], first: str) -> str:
    """What makes one band of a loop and of one that is under `path`."""
    if first not in path:
        return "fuse their loops first; no statement is under both"
    between = [n for n in path[path.index(first) + 1 :] if isinstance(n, str)]
    if len(between) == len(path) - path.index(first) - 1:
        return f"name {' and '.join(between)} between them, too" if between else "distribute first"
    return "distribute or fuse first; a band has no statement between its loops"


def _permute(schedule: Schedule, order: Sequence[str]) -> Schedule:
    present = set(order)

    def permuted(nest: Nest) -> Nest:
        wanted = iter(order)
        return Nest(nest.loops, tuple(next(wanted) if s in present else s for s in nest.path))

    result = renest(schedule, schedule.under(order[0]), permuted)
    for loop in present:
        if schedule.kind(loop) == "vector" and (inner := loops_inside(result, loop)) - loops_inside(schedule, loop):
            raise ScheduleError(
                f"the vector loop {loop!r} would have {', '.join(sorted(inner))} inside", where=schedule.source.name,
                hint="vectorise after the loops are in their order",
            )  # fmt: skip
    return result


def loops_inside(schedule: Schedule, loop: str) -> set[str]:
    """The loops inside of a loop."""
    return {n for s in schedule.under(loop) for n in schedule.nests[s].names[len(schedule.outer(loop)) :]}


def interchange(schedule: Schedule, first: str, second: str) -> Schedule:
    """Swap two loops of one band."""
    outer, inner = sorted((first, second), key=lambda loop: len(schedule.outer(loop)))
    chain = schedule.outer(inner)
    if outer not in chain or outer == inner:
        raise ScheduleError(f"{first!r} and {second!r} are not nested in one another", where=schedule.source.name)
    band = list(chain[chain.index(outer) :])
    _require_band(schedule, band)
    band[0], band[-1] = band[-1], band[0]
    return finish(schedule, _permute(schedule, band), "interchange", first=first, second=second)


def reorder(schedule: Schedule, loops: Sequence[str]) -> Schedule:
    """Put the loops of one band in the order given, outermost first."""
    if len(set(loops)) < max(2, len(loops)):
        raise ScheduleError("name at least two different loops", hint='reorder("j", "i")')
    band = sorted(loops, key=lambda loop: len(schedule.outer(loop)))
    _require_band(schedule, band)
    return finish(schedule, _permute(schedule, loops), "reorder", loops=tuple(loops))


# ---- fusion


def fuse(schedule: Schedule, first: str, second: str) -> Schedule:
    """Make two loops of one sequence one loop: in every iteration the first one's body, then the second one's.

    The result is called like the part of the names after the last statement's dot where they agree (`init.i` and
    `upd.i` give `i`) and that name is free, else like the first loop. Its mark is theirs where they have the same one;
    else it is serial, and may be marked.
    """
    prefix = _place_in_sequence(schedule, first, second)
    name = _fused_name(schedule, first, second)

    def moved(position: int, loop: str) -> Callable[[Nest], Nest]:
        def change(nest: Nest) -> Nest:
            rest = nest.path[nest.path.index(loop) + 1 :]
            loops = {(name if n == loop else n): v for n, v in nest.loops.items()}
            return Nest(loops, (*prefix, name, position, *rest))

        return change

    nests = dict(schedule.nests)
    nests |= {s: moved(0, first)(nests[s]) for s in schedule.under(first)}
    nests |= {s: moved(1, second)(nests[s]) for s in schedule.under(second)}
    marks = {n: m for n, m in schedule.marks.items() if n not in (first, second)}
    if first in schedule.marks and schedule.marks.get(first) == schedule.marks.get(second):
        marks[name] = schedule.marks[first]
    program = renamed_scopes(schedule.program, {first: name, second: name})
    return finish(
        schedule,
        changed(schedule, nests=canonical(nests, prefix[:-1]), marks=marks, program=program),
        "fuse",
        first=first,
        second=second,
    )


def _place_in_sequence(schedule: Schedule, first: str, second: str) -> tuple[PathStep, ...]:
    """The path to the first of two loops that stand in one sequence in this order. Raises `ScheduleError`."""
    path_a, path_b = (schedule.nests[schedule.under(loop)[0]].path for loop in (first, second))
    prefix, other = path_a[: path_a.index(first)], path_b[: path_b.index(second)]
    here, there = prefix[-1] if prefix else "", other[-1] if other else ""
    if first == second or prefix[:-1] != other[:-1] or not isinstance(here, int) or not isinstance(there, int):
        raise ScheduleError(
            f"{first!r} and {second!r} do not stand in one sequence",
            where=schedule.source.name,
            hint="fuse the loops around them first",
        )
    if there < here:
        raise ScheduleError(
            f"{second!r} comes before {first!r}", where=schedule.source.name, hint=f"fuse({second!r}, {first!r})"
        )
    return prefix


def renamed_scopes(program: Program, names: Mapping[str, str]) -> Program:
    """Loops of other names in the scopes of promoted tensors."""
    tensors = tuple(
        replace(t, scope=tuple(names.get(s, s) for s in t.scope)) if set(t.scope) & names.keys() else t
        for t in program.tensors
    )
    return _with_tensors(program, tensors)


def _fused_name(schedule: Schedule, first: str, second: str) -> str:
    def stem(loop: str) -> str:
        head, _, rest = loop.partition(".")
        return rest if rest and head in schedule.nests else loop

    short = stem(first)
    return short if short == stem(second) and short not in schedule.loop_statements else first


def distribute(schedule: Schedule, loop: str, at: int = 1) -> Schedule:
    """Cut a loop in two: the first `at` things inside it, then the rest in a loop of its own (`loop.2`)."""
    whole_number("the position", at)
    inside = {s: _position_inside(schedule, s, loop) for s in schedule.under(loop)}
    later = [s for s, p in inside.items() if p >= at]
    if not later or len(later) == len(inside):
        things = len(set(inside.values()))
        hint = f"a position from 1 to {things - 1}" if things > 1 else "a loop with several statements or loops inside"
        text = f"loop {loop!r} has {counted(things, 'thing')} inside, cannot cut at {at}"
        raise ScheduleError(text, where=schedule.source.name, hint=hint)
    name = f"{loop}.2"
    new_names(schedule, name)
    for tensor in schedule.program.tensors:
        if loop in tensor.scope and {touched for s in later for touched in _tensors_of(schedule, s)} & {tensor.name}:
            raise ScheduleError(
                f"{tensor.name} lives inside loop {loop!r}",
                where=schedule.source.name,
                hint="distribute before promoting",
            )

    def moved(nest: Nest) -> Nest:
        k = nest.path.index(loop)
        loops = {(name if n == loop else n): v for n, v in nest.loops.items()}
        return Nest(loops, (*nest.path[:k], 1, name, *nest.path[k + 1 :]))

    def kept(nest: Nest) -> Nest:
        k = nest.path.index(loop)
        return Nest(nest.loops, (*nest.path[:k], 0, *nest.path[k:]))

    nests = {
        n: moved(nest) if n in later else kept(nest) if n in inside else nest for n, nest in schedule.nests.items()
    }
    marks = dict(schedule.marks) | ({name: schedule.marks[loop]} if loop in schedule.marks else {})
    return finish(schedule, schedule.with_nests(nests, marks=marks), "distribute", loop=loop, at=at)


def _tensors_of(schedule: Schedule, statement: str) -> set[str]:
    return {access.tensor for access, _ in schedule.program.statement[statement].accesses}


def _position_inside(schedule: Schedule, statement: str, loop: str) -> int:
    path = schedule.nests[statement].path
    step = path[path.index(loop) + 1 :][:1]
    return step[0] if step and isinstance(step[0], int) else 0


# ---- changes of the loop expressions


def shift(schedule: Schedule, statement: str, loop: str, by: int) -> Schedule:
    """Run a statement `by` iterations of a loop later (earlier where negative)."""
    whole_number("the shift", by)
    if loop not in schedule.nests[schedule.statement(statement).name].loops:
        raise ScheduleError(f"{statement} is not under loop {loop!r}", where=schedule.source.name)
    _not_in_scope(schedule, loop, (statement,), "shift")
    shifted = renest(schedule, [statement], lambda n: Nest({**n.loops, loop: n.loops[loop] + by}, n.path))
    return finish(schedule, shifted, "shift", statement=statement, loop=loop, by=by)


def _not_in_scope(schedule: Schedule, loop: str, statements: Sequence[str], what: str) -> None:
    for statement in statements:
        for name in _tensors_of(schedule, statement):
            if loop in schedule.program.tensor[name].scope:
                raise ScheduleError(
                    f"{name} has one tile an iteration of {loop!r}",
                    where=schedule.source.name,
                    hint=f"{what} before promoting it",
                )


def skew(schedule: Schedule, loop: str, by: str, factor: int = 1) -> Schedule:
    """Add `factor` times an outer loop to a loop, for all statements under it (time skewing)."""
    whole_number("the factor", factor)
    schedule.under(by)
    if by not in schedule.outer(loop)[:-1]:
        raise ScheduleError(
            f"{by!r} is not a loop around {loop!r}",
            where=schedule.source.name,
            hint="skew an inner loop by an outer one",
        )
    _not_in_scope(schedule, loop, schedule.under(loop), "skew")
    skewed = renest(
        schedule, schedule.under(loop), lambda n: Nest({**n.loops, loop: n.loops[loop] + n.loops[by] * factor}, n.path)
    )
    return finish(schedule, skewed, "skew", loop=loop, by=by, factor=factor)


def piece_name(schedule: Schedule, statement: str, piece: str) -> str:
    """What `split` calls a statement's piece "lo" or "hi": a name that no statement has or had."""
    return free_of(f"{statement}_{piece}", schedule.program.statement.keys() | schedule.source.statement.keys())


def free_of(wanted: str, taken: Container[str]) -> str:
    return next(n for k in count(1) if (n := wanted if k == 1 else f"{wanted}_{k}") not in taken)
