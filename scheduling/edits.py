"""The primitives that only move instances: each edits loop expressions and paths, then the checker decides.

A primitive takes a schedule and plain values, and returns a new schedule with one more line in its log. It raises
`ScheduleError` where it does not apply and `IllegalEdit`, with a witness, where it would change a result. The
primitives that add statements are `promotion`, `recompute` and `buffering`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import signature
from itertools import count

from poly.affine import Affine, Constraint
from poly.coefficients import set_of
from poly.document import counted
from poly.errors import PolyError, ScheduleError
from poly.loops import MOST_NOWAIT, LoopKind
from poly.program import PathStep, Program
from poly.scheduling.legality import check
from poly.scheduling.nowait import is_next, run_through
from poly.scheduling.schedule import Edit, Mark, Nest, Schedule, canonical, placed
from poly.sets import fix_sizes

FARTHEST = 1 << 20  # iterations that a loop may ask ahead: addresses stay within 64 bits


def finish(old: Schedule, new: Schedule, primitive: str, /, **arguments: object) -> Schedule:
    """Log the edit and, unless checks are put off (`unchecked`), have the new schedule checked."""
    new = replace(new, log=(*old.log, Edit(primitive, tuple(arguments.items()))))
    if new.checked:
        check(new, old)
    return new


def unchecked(schedule: Schedule) -> Schedule:
    """The same schedule, whose edits are checked together by `settle` instead of one by one."""
    return replace(schedule, checked=False)


def settle(schedule: Schedule) -> Schedule:
    """Check a schedule made by unchecked edits. Raises `IllegalEdit`."""
    check(schedule)
    return replace(schedule, checked=True)


def renest(schedule: Schedule, names: Sequence[str], change: Callable[[Nest], Nest]) -> Schedule:
    """Change loops of some statements, and their order, but no place in a sequence: paths stay canonical."""
    return replace(schedule, nests={**schedule.nests, **{n: placed(change(schedule.nests[n])) for n in names}})


def replaced(path: tuple[PathStep, ...], loop: str, by: Sequence[PathStep]) -> tuple[PathStep, ...]:
    """A path with other steps in the place of a loop."""
    k = path.index(loop)
    return (*path[:k], *by, *path[k + 1 :])


def _new_names(schedule: Schedule, *names: str) -> None:
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
    outer, point = f"{loop}.o", f"{loop}.p"
    _new_names(schedule, outer, point)

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
    return replace(moved, marks=marks, program=_with_tensors(moved.program, tensors))


def _with_tensors(program: Program, tensors: tuple[object, ...]) -> Program:
    return program if tensors == program.tensors else replace(program, tensors=tensors)


def _require_band(schedule: Schedule, loops: Sequence[str]) -> None:
    """Loops, outermost first, must follow one another directly."""
    for first, second in zip(loops, loops[1:], strict=False):
        path = schedule.nests[schedule.under(second)[0]].path
        k = path.index(second)
        if k == 0 or path[k - 1] != first or schedule.under(first) != schedule.under(second):
            raise ScheduleError(
                f"loops {first!r} and {second!r} are not directly nested", where=schedule.source.name,
                hint="distribute or fuse first; a band has no statement between its loops",
            )  # fmt: skip


def _permute(schedule: Schedule, order: Sequence[str]) -> Schedule:
    present = set(order)

    def permuted(nest: Nest) -> Nest:
        wanted = iter(order)
        return Nest(nest.loops, tuple(next(wanted) if s in present else s for s in nest.path))

    result = renest(schedule, schedule.under(order[0]), permuted)
    for loop in present:
        if schedule.kind(loop) == "vector" and (inner := _inside(result, loop)) - _inside(schedule, loop):
            raise ScheduleError(
                f"the vector loop {loop!r} would have loops {sorted(inner)} inside", where=schedule.source.name,
                hint="vectorise after the loops are in their order",
            )  # fmt: skip
    return result


def _inside(schedule: Schedule, loop: str) -> set[str]:
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
        replace(schedule, nests=canonical(nests, prefix[:-1]), marks=marks, program=program),
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
    _new_names(schedule, name)
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
    return finish(schedule, replace(schedule.with_nests(nests), marks=marks), "distribute", loop=loop, at=at)


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


def split(schedule: Schedule, loop: str, at: int | str) -> Schedule:
    """Cut a loop's range in two pieces that can be scheduled apart: iterations below `at`, then the others.

    `at`: a number, or a quasi-affine expression of loops around it and sizes, such as "8*((N - i)//8)"; or a condition
    on these, such as "M >= 24": all iterations where it holds, then those where it does not.

    Statements S under it become S_lo and S_hi (`piece_name`), the loop and those inside it get the suffixes .lo and
    .hi; where such a name is taken, _2, _3 ... is appended.
    """
    around = set(schedule.outer(loop)[:-1])
    _split_point(schedule, at, around)
    statements = schedule.under(loop)
    inside = {n for s in statements for n in schedule.nests[s].names} - around
    for tensor in schedule.program.tensors:
        if inside & set(tensor.scope):
            raise ScheduleError(
                f"{tensor.name} lives inside loop {loop!r}", where=schedule.source.name, hint="split before promoting"
            )
    program, parts = _split_statements(schedule, loop, at)
    nests = {n: nest for n, nest in schedule.nests.items() if n not in statements}
    marks = dict(schedule.marks)
    names = {(n, p): _free(f"{n}.{p}", schedule.loop_statements) for n in inside for p in ("lo", "hi")}
    for name, (origin, piece) in parts.items():
        nest = schedule.nests[origin]
        k = nest.path.index(loop)
        new = {n: names.get((n, piece), n) for n in nest.names}
        path = tuple(new[s] if isinstance(s, str) else s for s in nest.path[k:])
        nests[name] = Nest(
            {new[n]: v for n, v in nest.loops.items()}, (*nest.path[:k], 0 if piece == "lo" else 1, *path)
        )
        marks |= {new[n]: schedule.marks[n] for n in nest.names if n in schedule.marks}
    live = {n for nest in nests.values() for n in nest.names}
    result = replace(
        schedule, program=program, nests=canonical(nests), marks={n: m for n, m in marks.items() if n in live}
    )
    return finish(schedule, result, "split", loop=loop, at=at)


def piece_name(schedule: Schedule, statement: str, piece: str) -> str:
    """What `split` calls a statement's piece "lo" or "hi": a name that no statement has or had."""
    return _free(f"{statement}_{piece}", schedule.program.statement.keys() | schedule.source.statement.keys())


def _free(wanted: str, taken: Container[str]) -> str:
    return next(n for k in count(1) if (n := wanted if k == 1 else f"{wanted}_{k}") not in taken)


def _split_point(schedule: Schedule, at: int | str, around: set[str]) -> None:
    if not isinstance(at, str):
        whole_number("the split point", at)
        return
    try:
        unknown = {n for side in _sides(at) for n in side.names} - around - set(schedule.program.parameters)
    except PolyError as error:
        text = f"the split point {at!r} is neither affine nor a condition: {error.message}"
        raise ScheduleError(text, where=schedule.source.name, hint="'8*(i//8)', or 'M >= 24' with one >=") from error
    if unknown:
        text = f"the split point {at!r} names {', '.join(sorted(unknown))}"
        raise ScheduleError(text, where=schedule.source.name, hint=f"loops around it: {', '.join(sorted(around))}")


def _sides(at: int | str) -> tuple[Affine, ...]:
    """A split point, or the two sides of a condition. Raises `PolyError` for other text."""
    parts = at.split(">=") if isinstance(at, str) else (at,)
    if len(parts) > 2:
        raise ScheduleError("more than one >=")
    return tuple(Affine.of(part.strip() if isinstance(part, str) else part) for part in parts)


def _split_statements(schedule: Schedule, loop: str, at: int | str) -> tuple[Program, dict[str, tuple[str, str]]]:
    """The program with the statements under a loop cut, and for every piece (statement, "lo" | "hi")."""
    program, parts, result = schedule.program, dict[str, tuple[str, str]](), []
    sizes, sides, under = program.binding, _sides(at), frozenset(schedule.under(loop))
    for s in program.statements:
        if s.name not in under:
            result.append(s)
            continue
        loops = schedule.nests[s.name].loops
        *left, point = (side.substitute(loops) for side in sides)
        above = (left[0] if left else loops[loop]) - point
        holds, fails = (above, -above - 1) if left else (-above - 1, above)
        for piece, condition in (("lo", holds), ("hi", fails)):
            where = set_of([Constraint(condition)], s.iterators, program.parameters, s.name)
            cut = s.domain.intersect(where).coalesce()
            if fix_sizes(cut.intersect_params(program.context), sizes).is_empty():
                continue
            name = piece_name(schedule, s.name, piece)
            origin = s.origin or ("" if s.copies or s.partial else s.name)
            result.append(replace(s, name=name, domain=cut.set_tuple_name(name), origin=origin))
            parts[name] = (s.name, piece)
    if len({piece for _, piece in parts.values()}) < 2:
        hint = "a number above the loop's first value, and at most its last"
        raise ScheduleError(f"{at} is not inside the range of loop {loop!r}", where=schedule.source.name, hint=hint)
    return replace(program, statements=tuple(result)), parts


# ---- marks

_SHOWN: Mapping[LoopKind, str] = {
    "vector": "a vector loop", "unroll": "unrolled", "parallel": "parallel", "unit": "a loop of an engine",
}  # fmt: skip


def _marked(schedule: Schedule, name: str, loops: Sequence[str], kind: LoopKind, engine: str | None = None) -> Schedule:
    for loop in loops:
        schedule.under(loop)
        if schedule.kind(loop) != "serial":
            what = f"loop {loop!r} is {_SHOWN[schedule.kind(loop)]} already"
            hint = f"tile({{{loop!r}: 8}}) for two loops, with a mark for each"
            raise ScheduleError(what, where=schedule.source.name, hint=hint)
    marks = {**schedule.marks, **{loop: Mark(kind, engine) for loop in loops}}
    arguments = {"loop": loops[0]} if engine is None else {"loops": tuple(loops), "engine": engine}
    return finish(schedule, replace(schedule, marks=marks), name, **arguments)


def unroll(schedule: Schedule, loop: str) -> Schedule:
    """Run a loop as literal copies of its body."""
    return _marked(schedule, "unroll", [loop], "unroll")


def vectorise(schedule: Schedule, loop: str) -> Schedule:
    """Run an innermost loop's iterations as the lanes of one vector. It must carry nothing."""
    if inner := _inside(schedule, loop):
        raise ScheduleError(
            f"loop {loop!r} has loops {sorted(inner)} inside",
            where=schedule.source.name,
            hint="vectorise an innermost loop",
        )
    return _marked(schedule, "vectorise", [loop], "vector")


def nontemporal(schedule: Schedule, loop: str) -> Schedule:
    """Let a vector loop store past the caches: whole, aligned vectors of what it writes to memory.

    Every such store replaces what is there: a target that is combined with its old value is read, so cached, anyway.
    """
    statements = [schedule.statement(name) for name in schedule.under(loop)]
    if schedule.kind(loop) != "vector":
        hint = f"vectorise({loop!r}) first"
        raise ScheduleError(f"loop {loop!r} is not a vector loop", where=schedule.source.name, hint=hint)
    stores = [s for s in statements if not schedule.program.tensor[s.write.tensor].scope]
    if not stores or any(s.combiner is not None for s in stores):
        raise ScheduleError(
            f"loop {loop!r} has no store that only replaces elements of a whole tensor", where=schedule.source.name,
            hint="mark the loop that writes the tensor, after promotion the one of its copy back",
        )  # fmt: skip
    marks = {**schedule.marks, loop: replace(schedule.marks[loop], nontemporal=True)}
    return finish(schedule, replace(schedule, marks=marks), "nontemporal", loop=loop)


def prefetch(schedule: Schedule, loop: str, along: str, ahead: int = 1) -> Schedule:
    """Let a vector loop ask, for every vector that it loads from memory or stores to a whole tensor, for the one that
    it loads or stores `ahead` iterations of the loop `along` later, which is a loop around it; so for the lines of
    elements of whole tensors that all lanes share and read, if each iteration of `along` goes on by a line at least:
    of those that stay in their line for several iterations nothing is asked for.

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
    return finish(schedule, replace(schedule, marks=marks), "prefetch", loop=loop, along=along, ahead=ahead)


def parallelise(schedule: Schedule, loop: str) -> Schedule:
    """Run a loop's iterations at once, split over threads. It must carry nothing, reductions included."""
    return _marked(schedule, "parallelise", [loop], "parallel")


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
    marked = replace(schedule, marks=marks)
    if len(run_through(marked, loop)) > MOST_NOWAIT:
        what = f"more than {MOST_NOWAIT} loops in a row without a meeting, with {loop!r} and {following!r}"
        raise ScheduleError(what, where=schedule.source.name, hint="let threads meet between two of them")
    return finish(schedule, marked, "nowait", loop=loop, following=following)


def tensorise(schedule: Schedule, loops: Sequence[str], engine: str) -> Schedule:
    """Give a chain of innermost loops to one command of a machine's engine (its loop nest). One statement is inside."""
    if not loops:
        raise ScheduleError("no loops to tensorise")
    statements = schedule.under(loops[-1])
    chain = schedule.nests[statements[0]].names
    if len(statements) != 1 or chain[len(chain) - len(loops) :] != tuple(loops):
        raise ScheduleError(
            f"{list(loops)} is not a chain of innermost loops around one statement", where=schedule.source.name,
            hint="name the loops outermost first, down to the innermost one; distribute to get one statement",
        )  # fmt: skip
    return _marked(schedule, "tensorise", loops, "unit", engine)


def replay(program: Program, edits: Sequence[Edit]) -> Schedule:
    """Run a script on a source program. Raises what the edits raise."""
    schedule = Schedule(program)
    for edit in edits:
        schedule = apply_edit(schedule, edit)
    return schedule


def apply_edit(schedule: Schedule, edit: Edit) -> Schedule:
    """One line of a script. Raises `ScheduleError` where it is no call of a primitive, else what that raises."""
    if edit.name not in PRIMITIVES:
        raise ScheduleError(f"no primitive {edit.name!r}", hint=f"one of {', '.join(PRIMITIVES)}")
    primitive: Callable[..., Schedule] = getattr(import_module(f"poly.scheduling.{PRIMITIVES[edit.name]}"), edit.name)
    parameters = signature(primitive)
    try:
        call = parameters.bind(schedule, **dict(edit.arguments))
    except TypeError as error:
        raise ScheduleError(f"{edit}: {error}", hint="the arguments are in the primitive's docstring") from error
    for name, value in edit.arguments:
        wanted = str(parameters.parameters[name].annotation)
        if not any(isinstance(value, _VALUES[part.partition("[")[0]]) for part in wanted.split(" | ")):
            raise ScheduleError(f"{edit}: {name} is {value!r}", hint=f"{name}: {wanted}")
    return primitive(*call.args, **call.kwargs)


_VALUES: Mapping[str, type | tuple[type, ...]] = {
    "int": int, "str": str, "bool": bool, "None": type(None), "Sequence": (tuple, list), "Mapping": dict,
}  # fmt: skip

# By the module that holds each: those beyond this one are imported when they are used.
PRIMITIVES: Mapping[str, str] = {
    **dict.fromkeys(
        ("tile", "interchange", "reorder", "fuse", "distribute", "shift", "skew", "split", "unroll", "vectorise",
         "nontemporal", "prefetch", "parallelise", "nowait", "tensorise"), "edits",
    ),
    "promote": "promotion", "recompute": "recompute", "double_buffer": "buffering", "arrange": "arrange",
    "rfactor": "rfactor", "overlay": "overlay", "prefetch_copy": "asked_copies",
}  # fmt: skip
