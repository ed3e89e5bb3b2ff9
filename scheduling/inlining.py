"""Inlining: what copies a tile of a temporary makes its elements itself (`inline`).

A copy behind one assignment of all elements passes memory twice where once is enough. The copy becomes a recomputation
of that assignment's instances, with the copy's loops and its buffer's layout.
"""

from __future__ import annotations

from dataclasses import replace

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.expr import with_indices
from poly.program import Program, Statement
from poly.scheduling.edits import finish
from poly.scheduling.paths import canonical
from poly.scheduling.recompute import without_dead
from poly.scheduling.schedule import Schedule


def inline(schedule: Schedule, copy: str) -> Schedule:
    """Let a copy into a buffer run the assignment that makes what it copies, in a loop at least.

    The assignment is the only one of its temporary, element by element; it stays only where somebody else reads that.
    Raises `ScheduleError` where there is none.
    """
    s = schedule.statement(copy)
    maker = maker_of(schedule, copy)
    if maker is None:
        hint = "promote in a loop what one assignment writes, element by element"
        raise ScheduleError(f"{copy} is no copy of what can be made again", where=schedule.source.name, hint=hint)
    elements = s.iterators[s.tile_rank :]
    values = {old: var(new) for old, new in zip(maker.iterators, elements, strict=True)}
    reads = tuple(r.substitute(values) for r in maker.reads)
    made = replace(
        s, reads=reads, body=with_indices(maker.body, values), contract=maker.contract, copies="",
        origin=maker.source_name,
    )  # fmt: skip
    tensor = s.reads[0].tensor
    statements = tuple(made if o.name == copy else o for o in schedule.program.statements)
    program = without_dead(replace(schedule.program, statements=statements), tensor)
    nests = canonical({n: nest for n, nest in schedule.nests.items() if n in program.statement})
    return finish(schedule, replace(schedule, program=program, nests=nests), "inline", copy=copy)


def suits_copies(program: Program, s: Statement) -> bool:
    """Whether an assignment is as soon done by a copy: it reads along the rows of memory in which it writes,
    with no condition that moves there, and not only constants, as then it runs when compiling.
    """
    last = s.iterators[-1:]
    rows = (isinstance(r.index[-1], Affine) and r.index[-1].names.issuperset(last) for r in s.reads if r.index)
    known = all(program.tensor[r.tensor].role == "constant" for r in s.reads)
    apart = any(not c.expr.names.isdisjoint(last) for r in s.reads for c in r.guard)
    return bool(last) and not known and not apart and all(rows)


def maker_of(schedule: Schedule, copy: str) -> Statement | None:
    """The assignment that a copy can run itself; None where there is no such one."""
    s = schedule.program.statement[copy]
    if not s.copies or not s.tile_rank or len(s.reads) != 1 or s.reads[0].guard:
        return None
    tensor = schedule.program.tensor[s.reads[0].tensor]
    elements = tuple(map(var, s.iterators[s.tile_rank :]))
    writers = [w for w in schedule.program.statements if w.write.tensor == tensor.name]
    if not writers or tensor.role != "temporary" or tensor.scope or s.reads[0].index != elements:
        return None
    maker = writers[0]
    if any((w.source_name, w.write, w.reads) != (maker.source_name, maker.write, maker.reads) for w in writers):
        return None  # others than parts of one
    plain = maker.external is None and maker.combiner is None and not (maker.copies or maker.partial or maker.tile_rank)
    each = maker.write.index == tuple(map(var, maker.iterators)) and not maker.write.guard
    return maker if plain and each and not any(r.indirect for r in maker.reads) else None
