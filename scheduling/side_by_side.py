"""Groups of assignments that write one tensor side by side, as the edges of a padded plane beside its middle.

Each by itself would walk all of the tensor, and those that write a few elements of each row would have most of its
lines once more from a cache that is further away. Their outer loops, along the first axes, become one; below them each
keeps the loops that it has by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import Final

from poly.affine import Affine
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_core import own_share
from poly.scheduling.cpu_edits import fused, pieces_of
from poly.scheduling.groups import Group, assignment_of, bare, tensors_read
from poly.scheduling.schedule import Schedule

_MORE: Final = 1.25  # times the lines of the tensor, that are touched where each part walks it


def side_by_side(program: Program, groups: Sequence[Group], machine: Machine) -> list[Group]:
    """The groups with those that follow each other and write one tensor's parts joined where that pays."""
    own = max((m.capacity or 0 for m in machine.own_caches), default=0)
    if machine.kind != "cpu" or not own:
        return list(groups)
    found: list[Group] = []
    for group in groups:
        joined = _joined(found[-1], group) if found else None
        found[-1:] = [joined] if joined is not None else [*found[-1:], group]
    own_bytes = own_share(own)
    apart = [
        [g] if not is_side_by_side(g) or _pays(program, g, own_bytes, machine.line) else g.parts for g in found
    ]
    return [group for groups in apart for group in groups]


def is_side_by_side(group: Group) -> bool:
    """Whether a group is one that `side_by_side` joined."""
    targets = {s.write.tensor for s in group.statements}
    return len(group.parts) > 1 and len(targets) == 1 and all(assignment_of(p) is not None for p in group.parts)


def with_shared_loops(schedule: Schedule, group: Group) -> Schedule:
    """The outer loops of parts that are in a schedule, as far as all pieces have them."""
    pieces = pieces_of(schedule, group)
    for depth in range(len(group.box or ())):
        try:
            schedule = fused(schedule, pieces, [depth])
        except ScheduleError:
            break
    return schedule


def _joined(first: Group, second: Group) -> Group | None:
    """One group of both, where they have first axes of the tensor in common."""
    s, before = assignment_of(second), [assignment_of(p) for p in first.parts or (first,)]
    if s is None or s.write.indirect or any(b is None or b.write.indirect for b in before):
        return None
    members = [b for b in before if b is not None]
    target = s.write.tensor
    if any(b.write.tensor != target or target in tensors_read(b) for b in (*members, s)):
        return None
    count = min(_common(first, members[0]), _common(second, s))
    one, other = members[0].iterators, s.iterators
    extents = dict(zip(first.axes[members[0].name], first.box or (), strict=True))
    others = dict(zip(second.axes[s.name], second.box or (), strict=True))
    alike = (extents[a] == others[b] for a, b in zip(one[:count], other[:count], strict=True))
    count = sum(takewhile(bool, alike))
    if not count:
        return None
    why = f"{s.name} writes beside {members[-1].name}"
    return Group(
        (*first.statements, s), {b.name: b.iterators[:count] for b in (*members, s)}, {},
        tuple(others[i] for i in other[:count]), (*first.why, *second.why, why), (*(first.parts or (first,)), second),
    )  # fmt: skip


def _common(group: Group, s: Statement) -> int:
    """How many first loops of a statement are the first axes of what it writes."""
    most = len(group.axes[s.name])
    pairs = zip(s.write.index[:most], s.iterators, strict=False)
    return next((k for k, (i, name) in enumerate(pairs) if not isinstance(i, Affine) or bare(i) != name), most)


def _pays(program: Program, group: Group, own: int, line: int) -> bool:
    """Whether parts that walk the tensor one after another touch a good part of its lines more than once."""
    tensor = program.tensor[group.statements[0].write.tensor]
    shape, size = tensor.extents(program.binding), tensor.nbytes(program.binding)
    if size <= own or not prod(shape):
        return False
    each, lines = size // prod(shape), 0.0
    for part in group.parts:
        s = part.statements[0]
        extents = {i: high - low + 1 for i, (low, high) in zip(part.axes[s.name], part.box or (), strict=True)}
        run = 1
        for subscript, extent in zip(reversed(s.write.affine_index), reversed(shape), strict=True):
            own_extent = prod(extents[n] for n in subscript.names)
            run *= own_extent
            if own_extent < extent:
                break
        lines += prod(extents.values()) / run * (run * each + line - each)
    return lines >= _MORE * size
