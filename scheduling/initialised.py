"""Whether a program reads an element of a temporary before anything wrote it: such a value is whatever lay there.

Inputs come with values and outputs begin as zero; temporaries have neither. Exact for direct accesses: the last writers
of isl's dataflow (Feautrier 1991), asked only where textual order and the written sets do not already answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import islpy as isl

from poly.errors import PolyError
from poly.expr import Apply, Expr, Read, reads_of
from poly.program import Program, Role, Statement
from poly.scheduling.dependences import SourceFacts, Touch, touches
from poly.scheduling.flow import maps_of
from poly.sets import OUT, within_budget, witness

_OPERATIONS = 2_000_000


def check_initialised(program: Program) -> None:
    """Raise `PolyError` with a reading instance and the element of a temporary that nothing wrote before.

    Tensors that are written indirectly or by external statements are taken to be whole, and so is the old value that a
    conditional assignment keeps.
    """
    writers, otherwise = _writers(program, "temporary")
    facts: SourceFacts | None = None
    for s in program.statements:
        for touch in touches(program, s):
            if touch.write or touch.tensor not in writers.keys() - otherwise or _keeps(s, touch):
                continue
            if not _plainly_written(s, touch, writers[touch.tensor]):
                facts = facts or SourceFacts(program)
                _check_read(program, facts, s, touch)


def read_before_written(program: Program) -> frozenset[str]:
    """The outputs of which an element may be read before anything wrote it: they have to begin as zero."""
    writers, otherwise = _writers(program, "output")
    found: set[str] = set()
    facts: SourceFacts | None = None
    for s in program.statements:
        for touch in touches(program, s):
            if touch.write or touch.tensor not in writers.keys() - found:
                continue
            if not _plainly_written(s, touch, writers[touch.tensor]):
                facts = facts or SourceFacts(program)
                known = touch.tensor not in otherwise and s.external is None
                if not known or _unwritten(facts, s, touch) != []:
                    found.add(touch.tensor)
    return frozenset(found)


def _writers(program: Program, role: Role) -> tuple[Mapping[str, list[Touch]], set[str]]:
    """The direct writes of every tensor of a role, and the tensors that are also written otherwise."""
    found: dict[str, list[Touch]] = {t.name: [] for t in program.with_role(role)}
    otherwise: set[str] = set()
    for s in program.statements:
        for touch in touches(program, s):
            if touch.write and touch.tensor in found:
                if s.external is not None or s.write.indirect:
                    otherwise.add(touch.tensor)
                else:
                    found[touch.tensor].append(touch)
    return found, otherwise


def _keeps(s: Statement, touch: Touch) -> bool:
    """A read that may reach anything, or of the element that an assignment writes, where that keeps its value."""
    if s.external is not None:
        return True
    if touch.position < 0:
        return False
    read = s.reads[touch.position]
    if read.indirect:
        return True
    own = s.combiner is None and (read.tensor, read.index) == (s.write.tensor, s.write.index)
    return own and _is_kept(s.body, touch.position)


def _is_kept(body: Expr, position: int) -> bool:
    """Whether a body is the read's value as it is, or what does not use it."""
    match body:
        case Read():
            return True
        case Apply("select", (condition, *arms)):
            return position not in reads_of(condition) and all(_is_kept(arm, position) for arm in arms)
        case _:
            return position not in reads_of(body)


def _plainly_written(s: Statement, touch: Touch, writers: list[Touch]) -> bool:
    """Whether assignments in nests before the statement's write all that it reads."""
    missing = touch.relation.range()
    for w in writers:
        if not w.own and w.statement.path[0] != s.path[0] and _before(w.statement, s):
            missing = missing.subtract(w.relation.range())
    return bool(missing.is_empty())


def _before(first: Statement, second: Statement) -> bool:
    a, b = first.path[0], second.path[0]
    return isinstance(a, int) and isinstance(b, int) and a < b


def _check_read(program: Program, facts: SourceFacts, s: Statement, touch: Touch) -> None:
    for part in _unwritten(facts, s, touch) or ():
        labels = [f"a{d}" for d in range(part.dim(OUT))]
        instance, element = witness(part, (s.iterators, labels))
        raise PolyError(
            f"{instance} reads {element}, which nothing wrote before", where=f"{program.name}: statement {s.name}",
            hint=f"write all of {touch.tensor} first (zero, for padding), or make it an input",
        )  # fmt: skip


def _unwritten(facts: SourceFacts, s: Statement, touch: Touch) -> list[isl.Map] | None:
    """Which instances read which elements that nothing wrote before; None where to find them takes too long."""
    reader = next(r for r in facts.flow.readers(s) if r.position == touch.position)
    found = within_budget(_OPERATIONS, lambda: facts.flow.origin_of(reader), lambda: None)
    if found is None:
        return None
    return [p for p in maps_of(found) if p.get_tuple_name(OUT) == touch.tensor and not p.is_empty()]
