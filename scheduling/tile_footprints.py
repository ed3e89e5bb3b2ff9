"""What some statements touch of a tensor in one iteration of loops around them: a tile, with the box around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import islpy as isl

from poly.program import Access, Statement
from poly.relations import bound_access, bound_expressions
from poly.scheduling.footprint import Box, box_of
from poly.scheduling.plain_boxes import plain_box
from poly.scheduling.schedule import Schedule
from poly.sets import OUT, coalesced, identifier


@dataclass(frozen=True)
class Tile:
    """What the users of a promotion touch per tile. `footprint`: { [variables] -> [elements] }, names of their own;
    `parts`: what of it is each access of a statement.
    """

    loops: tuple[str, ...]
    variables: tuple[str, ...]
    elements: tuple[str, ...]
    footprint: isl.Map
    box: Box
    parts: Mapping[tuple[str, Access], isl.Map] = field(default_factory=dict[tuple[str, Access], isl.Map])


def accesses_to(s: Statement, tensor: str, reads: Sequence[int] | None) -> list[Access]:
    """A statement's different accesses to a tensor: all, or of its reads those at some positions."""
    if reads is None:
        return [*dict.fromkeys(a for a, _ in s.accesses if a.tensor == tensor)]
    return [r for k, r in enumerate(s.reads) if k in reads and r.tensor == tensor]


def tile_of(
    schedule: Schedule, tensor: str, at: str | None, users: Sequence[str], pad: bool = False,
    reads: Sequence[int] | None = None,
) -> Tile:  # fmt: skip
    """The footprint on a tensor of one iteration of the loops down to `at`, over the statements `users`."""
    loops = () if at is None else schedule.outer(at)
    program = schedule.program
    variables = apart([identifier(name) for name in loops], program.parameters)
    footprint: isl.Map | None = None
    parts: dict[tuple[str, Access], isl.Map] = {}
    uses: list[tuple[Statement, Access]] = []
    for name in users:
        s = program.statement[name]
        where = bound_expressions(program, s, schedule.nests[name].expressions(loops)).reverse()
        for access in accesses_to(s, tensor, reads):
            seen = replace(access, guard=(), fill=None) if pad else access
            uses.append((s, seen))
            part = parts[name, seen] = where.apply_range(bound_access(program, s, seen))
            footprint = part if footprint is None else footprint.union(part)
    assert footprint is not None
    known = coalesced(footprint.set_tuple_name(OUT, "") if footprint.has_tuple_name(OUT) else footprint)
    elements = apart([f"e{d}" for d in range(known.dim(OUT))], (*variables, *program.parameters))
    box = plain_box(schedule, loops, variables, uses)
    box = box or box_of(known, variables, f"{schedule.source.name}: {tensor} at {at}")
    return Tile(loops, variables, elements, known, box, parts)


def tile_access(schedule: Schedule, s: Statement, access: Access, tile: Tile) -> isl.Map:
    """What a statement touches by one access in each tile: { [loop values] -> T[subscripts] }."""
    if (found := tile.parts.get((s.name, access))) is not None:
        return found
    program = schedule.program
    where = bound_expressions(program, s, schedule.nests[s.name].expressions(tile.loops))
    return where.reverse().apply_range(bound_access(program, s, access))


def apart(names: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """The names, with underscores where one is taken or stands twice."""
    found: list[str] = []
    for name in names:
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return tuple(found)


def named(domain: isl.Set, iterators: Sequence[str]) -> isl.Set:
    """The set with its dimensions called like the iterators, for whoever prints it."""
    for k, name in enumerate(iterators):
        domain = domain.set_dim_name(isl.dim_type.set, k, name)
    return domain
