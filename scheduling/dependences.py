"""Dependences of a program: memory-based, instance-wise, in the program's own order.

A dependence is a pair of statements with the relation of instance pairs that touch one element, at least one of them
writing, the first running before the second. What a reduction does to its own target is a class of its own
(`reduction`): such pairs may be reordered, but not run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import islpy as isl

from poly.affine import var
from poly.locks import cached_property
from poly.program import Access, PathStep, Program, Statement
from poly.relations import bound_access
from poly.scheduling.paths import relation_in_time
from poly.scheduling.schedule import Schedule
from poly.sets import IN, OUT, coalesced, fix_sizes, header

if TYPE_CHECKING:
    from poly.scheduling.flow import Flow

DependenceKind = Literal["flow", "anti", "output", "reduction"]


@dataclass(frozen=True)
class Dependence:
    """`relation`: { source[...] -> sink[...] } on one element of `tensor`."""

    kind: DependenceKind
    source: str
    sink: str
    tensor: str
    relation: isl.Map

    def __str__(self) -> str:
        return f"{self.kind} on {self.tensor}: {self.relation}"


@dataclass(frozen=True)
class SourceFacts:
    """What is derived from a source program once and shared by all its schedules."""

    program: Program

    @cached_property
    def dependences(self) -> tuple[Dependence, ...]:
        return dependences(self.program)

    @cached_property
    def flow(self) -> Flow:
        """The dataflow of the program in its own order."""
        from poly.scheduling.flow import Flow

        return Flow(Schedule(self.program, facts=self))


@dataclass(frozen=True)
class Touch:
    """One access of a statement: `relation` { S[...] -> T[...] }, `own` for a reduction's update of its target.

    `access` None: of an external statement, which touches whole tensors.
    """

    program: Program = field(repr=False)
    statement: Statement
    tensor: str
    access: Access | None
    write: bool
    own: bool = False
    position: int = -1

    @cached_property
    def relation(self) -> isl.Map:
        """The access with the program's known sizes put in; made when asked for: often algebra is enough."""
        if self.access is not None:
            return bound_access(self.program, self.statement, self.access)
        everything = _everything(self.program, self.statement, self.tensor).intersect_params(self.program.context)
        return fix_sizes(everything, self.program.binding)


def touches(program: Program, s: Statement) -> Iterator[Touch]:
    """Every access of a statement."""
    if s.external is not None:
        for names, write in ((s.external.reads, False), (s.external.writes, True)):
            for position, name in enumerate(names):
                yield Touch(program, s, name, None, write, position=position)
        return
    for position, read in enumerate(s.reads):
        yield Touch(program, s, read.tensor, read, False, position=position)
    if s.combiner is not None:
        yield Touch(program, s, s.write.tensor, s.write, False, own=s.reorder)
    yield Touch(program, s, s.write.tensor, s.write, True, own=s.combiner is not None and s.reorder)


def _everything(program: Program, s: Statement, tensor: str) -> isl.Map:
    from poly.relations import box

    return isl.Map.from_domain_and_range(s.domain, box(tensor, program.tensor[tensor].shape, program.parameters))


def before(
    first: Statement,
    second: Statement,
    paths: tuple[tuple[PathStep, ...], tuple[PathStep, ...]],
    parameters: Sequence[str],
) -> isl.Map | None:
    """{ first[x] -> second[y] : x runs before y } by the given paths over iterators; None where it never does."""
    found = _order(first.iterators, second.iterators, *relation_in_time(*paths), tuple(parameters))
    return None if found is None else found.set_tuple_name(IN, first.name).set_tuple_name(OUT, second.name)


@lru_cache(maxsize=256)
def _order(
    first: tuple[str, ...], second: tuple[str, ...], shared: tuple[str, ...], order: str, parameters: tuple[str, ...]
) -> isl.Map | None:
    """`before` of statements with these iterators, which is the same for all of a nest."""
    x = {n: var(f"{n}_x") for n in first}
    y = {n: var(f"{n}_y") for n in second}
    cases: list[str] = []
    equal: list[str] = []
    for loop in shared:
        a, b = x[loop].isl_text, y[loop].isl_text
        cases.append(" and ".join([*equal, f"{a} < {b}"]))
        equal.append(f"{a} = {b}")
    if order == "before":
        cases.append(" and ".join(equal) or "true")
    if not cases:
        return None
    left, right = (f"[{', '.join(str(v) for v in names.values())}]" for names in (x, y))
    return isl.Map(f"{header(parameters)}{{ {left} -> {right} : {' or '.join(f'({c})' for c in cases)} }}")


def dependences(program: Program) -> tuple[Dependence, ...]:
    """All dependences of a program in its own order (see the module text), non-empty ones only."""
    by_tensor: dict[str, list[Touch]] = {}
    for s in program.statements:
        for touch in touches(program, s):
            by_tensor.setdefault(touch.tensor, []).append(touch)
    found: list[Dependence] = []
    for tensor, group in by_tensor.items():
        if any(t.write for t in group):
            found += _of_tensor(program, tensor, group)
    return tuple(found)


def _of_tensor(program: Program, tensor: str, group: Sequence[Touch]) -> Iterator[Dependence]:
    for a in group:
        for b in group:
            if not (a.write or b.write):
                continue
            own = a.statement is b.statement and a.own and b.own
            if own and not (a.write and b.write):
                continue  # the three kinds of a reduction's self-dependence are one
            order = before(a.statement, b.statement, (a.statement.path, b.statement.path), program.parameters)
            if order is None:
                continue
            relation = a.relation.apply_range(b.relation.reverse()).intersect(fix_sizes(order, program.binding))
            if relation.is_empty():
                continue
            kind = "reduction" if own else "output" if a.write and b.write else "flow" if a.write else "anti"
            yield Dependence(kind, a.statement.name, b.statement.name, tensor, coalesced(relation))
