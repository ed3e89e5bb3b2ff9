"""A free size that only counts items: the program of one item, and a schedule of it as one of all of them.

The items of a program are the slices of tensors along a free first axis which every statement that touches them walks
by one parallel loop, each iteration in its own slice. What is left without that axis and loop is a program of known
sizes, which the policies plan as any other (`poly.scheduling.cpu_items`). `repeat` is the way back, a primitive: it
runs edits on the program of one item and puts the loop around all that belongs to an item. Buffers belong to one
iteration of it; what no item decides, as weights in another layout, runs before it once. The result is checked like
any other schedule, for all sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.expr import IndexValue, walk
from poly.program import Access, Program, ReadIndex, Statement, Tensor, unused_name
from poly.scheduling.edits import finish, unchecked
from poly.scheduling.paths import Nest, canonical
from poly.scheduling.schedule import Schedule
from poly.sets import PARAM, SET, header


@dataclass(frozen=True)
class Items:
    """`size`: how many there are, of which `context` may know more; `iterators`: by statement its loop over them, of
    those that have one; `tensors`: those with an axis of them, the first.
    """

    size: str
    iterators: Mapping[str, str]
    tensors: frozenset[str]
    context: isl.Set


def items_of(program: Program) -> Items | None:
    """The items of a program with one free size; None where that size is more than their number."""
    if len(program.parameters) != 1 or program.sizes:
        return None
    (size,) = program.parameters
    counted = frozenset(t.name for t in program.tensors if any(size in e.names for e in t.shape))
    found = dict[str, str]()
    for t in program.tensors:
        own = t.name in counted
        if t.scope or t.layout or t.origin or own and (t.role == "constant" or not _is_counted(t, size)):
            return None
    for s in program.statements:
        iterator = _iterator(s, counted)
        if iterator is None or not _counts(program, s, iterator, size):
            return None
        if iterator:
            found[s.name] = iterator
    return Items(size, found, counted, program.context) if found else None


def _is_counted(t: Tensor, size: str) -> bool:
    return t.shape[0] == var(size) and all(size not in e.names for e in t.shape[1:])


def _iterator(s: Statement, counted: Collection[str]) -> str | None:
    """The loop over items of a statement, "" where it has nothing to do with them; None where it is no such loop."""
    if s.external is not None or s.tile_rank or s.origin or s.copies:
        return None
    own = [a for a, _ in s.accesses if a.tensor in counted]
    if not own:
        return ""
    first = own[0].index[0]
    iterator = next((i for i in s.iterators if first == var(i)), None)
    if iterator is None or s.write.tensor not in counted or any(a.index[0] != first for a in own):
        return None
    others = [x for a, _ in s.accesses for x in (a.index[1:] if a.tensor in counted else a.index)]
    return None if iterator in _names(s, others) else iterator


def _names(s: Statement, subscripts: Sequence[Affine | ReadIndex]) -> set[str]:
    """The names in some subscripts of a statement, in its guards and its body."""
    named = {n for x in subscripts if isinstance(x, Affine) for n in x.names}
    named |= {n for a in s.reads for c in a.guard for n in c.expr.names}
    return named | {n for e in walk(s.body) if isinstance(e, IndexValue) for n in e.index.names}


def _counts(program: Program, s: Statement, iterator: str, size: str) -> bool:
    """Whether the size is the extent of a loop over items, which nothing else depends on, and stands nowhere else."""
    if size in _names(s, [x for a, _ in s.accesses for x in a.index]):
        return False
    if not all(isinstance(step, int) or step in s.iterators for step in s.path):
        return False
    one = _one_domain(s, iterator, size)
    context = program.context
    whole = s.domain.intersect_params(context)
    if not iterator:
        return one.align_params(whole.get_space()).intersect_params(context).is_equal(whole)
    again = _all_domain(one, s.name, s.iterators, size, s.iterators.index(iterator))
    return again.intersect_params(context).is_equal(whole)


def _one_domain(s: Statement, iterator: str, size: str) -> isl.Set:
    """The domain of one item."""
    domain = s.domain
    if iterator:
        domain = domain.project_out(SET, s.iterators.index(iterator), 1)
    position = domain.find_dim_by_name(PARAM, size)
    domain = domain.project_out(PARAM, position, 1) if position >= 0 else domain
    return domain.set_tuple_name(s.name)


def _all_domain(
    domain: isl.Set, name: str, iterators: Sequence[str], size: str, *places: int
) -> isl.Set:
    """A domain with loops over so many items at some places of its iterators, which are all at one item."""
    for place in places:
        domain = domain.insert_dims(SET, place, 1).set_dim_name(SET, place, iterators[place])
    first, *others = (iterators[p] for p in places)
    bounds = " and ".join([f"0 <= {first} < {size}", *(f"{o} = {first}" for o in others)])
    box = isl.Set(f"{header((size,))}{{ [{', '.join(iterators)}] : {bounds} }}")
    return domain.reset_tuple_id().intersect(box).set_tuple_name(name)


def one_item(program: Program, items: Items) -> Program:
    """The program of one item."""

    def sliced(access: Access) -> Access:
        return replace(access, index=access.index[1:]) if access.tensor in items.tensors else access

    tensors = tuple(replace(t, shape=t.shape[1:]) if t.name in items.tensors else t for t in program.tensors)
    statements: list[Statement] = []
    for s in program.statements:
        iterator = items.iterators.get(s.name, "")
        statements.append(replace(
            s, iterators=tuple(i for i in s.iterators if i != iterator), domain=_one_domain(s, iterator, items.size),
            write=sliced(s.write), reads=tuple(map(sliced, s.reads)),
        ))  # fmt: skip
    paths = {s.name: tuple(i for i in s.path if i != items.iterators.get(s.name, "")) for s in program.statements}
    nests = canonical({n: Nest({i: var(i) for i in p if isinstance(i, str)}, p) for n, p in paths.items()})
    paths = {name: nest.path for name, nest in nests.items()}
    headed = all(isinstance(path[0], int) if path else False for path in paths.values())
    placed = tuple(replace(s, path=paths[s.name] if headed else (0, *paths[s.name])) for s in statements)
    return Program(program.name, tensors, placed)


def all_items(program: Program, items: Items) -> Program:
    """A program of one item, edited or not, for all of them."""
    loop = _loop_name(program, items)
    counted, inside = _of_items(program, items, {s.name: s.path[0] for s in program.statements})

    def of_all(access: Access) -> Access:
        return replace(access, index=(var(loop), *access.index)) if access.tensor in counted else access

    tensors = tuple(replace(t, shape=(var(items.size), *t.shape)) if t.name in counted else t for t in program.tensors)
    if any(t.layout for t in program.tensors):
        raise ScheduleError("a tensor of an item has a layout", where=program.name)
    statements: list[Statement] = []
    for s in program.statements:
        if s.name not in inside:
            statements.append(s)
            continue
        iterators = (loop, *s.iterators)
        statements.append(replace(
            s, iterators=iterators, domain=_all_domain(s.domain, s.name, iterators, items.size, 0),
            write=of_all(s.write), reads=tuple(map(of_all, s.reads)), path=(s.path[0], loop, *s.path[1:]),
        ))  # fmt: skip
    return Program(program.name, tensors, tuple(statements), (items.size,), items.context)


def _loop_name(program: Program, items: Items, loops: Collection[str] = ()) -> str:
    """A name for the loop over items: as it was, if no iterator of one item and none of its loops has it."""
    taken = {i for s in program.statements for i in s.iterators} | {items.size, *loops}
    return unused_name(taken, next(iter(items.iterators.values())))


def _of_items(
    program: Program, items: Items, places: Mapping[str, object]
) -> tuple[frozenset[str], frozenset[str]]:
    """The tensors and the statements of a program of one item that belong to the item: what it touches, what is made of
    that, and what shares a place with it.
    """
    tensors, inside = {*items.tensors} & program.tensor.keys(), set[str]()
    while True:
        held = {places[name] for name in inside}
        more = {s.name for s in program.statements if not tensors.isdisjoint(s.tensors) or places[s.name] in held}
        if more == inside:
            break
        inside = more
        tensors |= {s.write.tensor for s in program.statements if s.name in inside}
    if any(program.tensor[t].role != "temporary" and t not in items.tensors for t in tensors):
        raise ScheduleError("what all items share is written for each", where=program.name)
    return frozenset(tensors), frozenset(inside)


def repeat(schedule: Schedule, size: str, edits: Sequence[str]) -> Schedule:
    """Edits of the program of one item, then a loop over the items, of which there are `size`, around what they make.

    `edits`: lines of a script. The first edit of a schedule. Raises `ScheduleError` where `size` is more than a number
    of items, and what the edits raise.
    """
    from poly.scheduling.schedule_text import parse_edit
    from poly.scheduling.script import apply_edit

    items = items_of(schedule.program)
    if items is None or items.size != size or schedule.log:
        why = f"{size!r} is not the number of items of a program without edits"
        raise ScheduleError(why, where=schedule.source.name, hint="a free first axis that every statement walks alone")
    one = unchecked(Schedule(one_item(schedule.program, items)))
    text = "\n".join(edits)
    for number, line in enumerate(edits, 1):
        if (edit := parse_edit(line, number, text)) is not None:
            one = apply_edit(one, edit)
    return repeated(schedule, items, one)


def repeated(schedule: Schedule, items: Items, one: Schedule) -> Schedule:
    """`repeat` with a schedule of one item."""
    program, source = one.program, schedule.source
    loop = _loop_name(program, items, {n for nest in one.nests.values() for n in nest.names})
    places = {name: nest.names[:1] or name for name, nest in one.nests.items()}
    counted, inside = _of_items(program, items, places)
    whole = items.tensors  # with an axis of items; buffers of one item have none
    if counted & source.tensor.keys() - whole:
        raise ScheduleError("what all items share is made with an item", where=source.name)
    tensors = tuple(_tensor_of_all(t, t.name in whole, t.name in counted, loop, items.size) for t in program.tensors)
    statements = tuple(
        _statement_of_all(s, whole, loop, items.size) if s.name in inside else s for s in program.statements
    )
    made = Program(source.name, tensors, statements, source.parameters, source.context)
    nests = {
        name: Nest({loop: var(loop), **nest.loops}, (1, loop, *nest.path)) if name in inside
        else Nest(nest.loops, (0, *nest.path))
        for name, nest in one.nests.items()
    }  # fmt: skip
    new = replace(schedule, program=made, nests=canonical(nests), marks=one.marks)
    return finish(schedule, new, "repeat", size=items.size, edits=tuple(map(str, one.log)))


def _tensor_of_all(t: Tensor, whole: bool, counted: bool, loop: str, size: str) -> Tensor:
    if whole:
        if t.layout is not None:
            raise ScheduleError(f"{t.name} has a layout")
        return replace(t, shape=(var(size), *t.shape))
    return replace(t, scope=(loop, *t.scope)) if counted else t


def _statement_of_all(s: Statement, whole: Collection[str], loop: str, size: str) -> Statement:
    """A statement of one item with the loop over items: before the tile of a copy, say, and before the iterators of
    what it copies or computes again, if that has an axis or a loop of items.
    """
    again = s.tile_rank > 0 or bool(s.copies) or bool(s.partial)
    again_at = s.copies in whole if s.copies else s.recomputed
    names = (loop, *s.iterators)
    places, value = (0,), loop
    if again and again_at:
        value = unused_name({*names, size}, f"{loop}_0")
        at = s.tile_rank + 1
        names, places = (*names[:at], value, *names[at:]), (0, at)

    def of_all(access: Access) -> Access:
        return replace(access, index=(var(value), *access.index)) if access.tensor in whole else access

    return replace(
        s, iterators=names, domain=_all_domain(s.domain, s.name, names, size, *places),
        write=of_all(s.write), reads=tuple(map(of_all, s.reads)), tile_rank=s.tile_rank + again,
    )  # fmt: skip


