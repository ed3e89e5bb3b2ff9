"""The primitive `split`: a loop's range is cut, and its statements with it."""

from __future__ import annotations

from dataclasses import replace

from poly.affine import Affine, Constraint
from poly.coefficients import set_of
from poly.errors import PolyError, ScheduleError
from poly.program import Program
from poly.scheduling.edits import finish, free_of, piece_name, whole_number
from poly.scheduling.paths import Nest, canonical
from poly.scheduling.schedule import Schedule
from poly.sets import fix_sizes


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
    names = {(n, p): free_of(f"{n}.{p}", schedule.loop_statements) for n in inside for p in ("lo", "hi")}
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
