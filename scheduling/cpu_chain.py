"""Values that the statements of a group hand on stay in registers (`keep_values`).

After tiling, neighbouring assignments share their loops down to the vector loop, so that what one of them makes and
others read is a vector or a few; it is promoted to the register space there, and memory never sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.errors import ScheduleError
from poly.machine import Machine
from poly.program import Program
from poly.relations import expressions_map
from poly.scheduling.cpu_edits import pieces_of
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.scheduling.paths import common_prefix, statements_of
from poly.scheduling.schedule import Schedule
from poly.sets import fix_sizes

MOST_VECTORS = 4  # that one tensor takes


def keep_values(schedule: Schedule, group: Group, machine: Machine) -> Schedule:
    """Fuse a tiled group's assignments inward, and promote what only they touch to registers."""
    if machine.registers is None or len(group.statements) < 2:
        return schedule
    pieces = set(pieces_of(schedule, group))
    names = [n for n in statements_of(schedule.tree) if n in pieces and _assigns(schedule, n)]
    for first, second in zip(names, names[1:], strict=False):
        schedule = _fused_inward(schedule, group, first, second)
    for tensor in handed_on(schedule.program, names):
        for users in _clusters(schedule, names, tensor):
            schedule = _kept(schedule, tensor, users, machine)
    return schedule


def _assigns(schedule: Schedule, name: str) -> bool:
    s = schedule.program.statement[name]
    return s.combiner is None and not s.copies and bool(s.reads)


def _fused_inward(schedule: Schedule, group: Group, first: str, second: str) -> Schedule:
    """Share the loops below those that two statements share, as long as they are the same ones."""
    while True:
        a, b = schedule.nests[first].path, schedule.nests[second].path
        k = len(common_prefix(a, b))
        heads = (a[k : k + 1], b[k : k + 1])
        inner = (a[k + 1 : k + 2], b[k + 1 : k + 2])
        match heads, inner:
            case (((int(x),), (int(y),)), ((str(left),), (str(right),))) if y == x + 1:
                pass
            case _:
                return schedule
        same = _by_axes(schedule, group, first, left) == _by_axes(schedule, group, second, right)
        plain = schedule.kind(left) == schedule.kind(right) in ("serial", "unroll")
        alone = schedule.under(right) == (second,) and all(_assigns(schedule, n) for n in schedule.under(left))
        if not (same and plain and alone and _values(schedule, first, left).is_equal(_values(schedule, second, right))):
            return schedule
        schedule = schedule.fuse(left, right)


def _values(schedule: Schedule, name: str, loop: str) -> isl.Set:
    """What a loop and those around it run over for a statement."""
    program, nest = schedule.program, schedule.nests[name]
    loops = nest.expressions(nest.names[: nest.names.index(loop) + 1])
    return fix_sizes(expressions_map(program.statement[name], loops, program.parameters), program.binding).range()


def _by_axes(schedule: Schedule, group: Group, name: str, loop: str) -> Affine:
    """What a loop is, with the group's parallel loops for a statement's iterators."""
    axes = group.axes[schedule.program.statement[name].source_name]
    return schedule.nests[name].loops[loop].substitute({i: var(f"axis{k}") for k, i in enumerate(axes)})


def handed_on(program: Program, names: Sequence[str]) -> list[str]:
    """Temporaries that some statements write and read, and nobody else touches."""
    inside = set(names)
    touched = {
        t.name: {s.name for s in program.statements if t.name in (*tensors_read(s), *tensors_written(s))}
        for t in program.tensors
        if t.role == "temporary" and not t.origin
    }
    return [name for name, users in touched.items() if len(users) > 1 and users <= inside]


def _clusters(schedule: Schedule, names: Sequence[str], tensor: str) -> list[list[str]]:
    """Every writer of a tensor with the readers that share more loops with it than with another writer."""
    program = schedule.program
    writers = [n for n in names if program.statement[n].write.tensor == tensor]
    found = {w: [w] for w in writers}
    for n in names:
        if tensor in tensors_read(program.statement[n]):
            path = schedule.nests[n].path
            found[max(writers, key=lambda w: len(common_prefix(schedule.nests[w].path, path)))].append(n)
    return [users for users in found.values() if len(users) > 1]


def _kept(schedule: Schedule, tensor: str, users: Sequence[str], machine: Machine) -> Schedule:
    """The tensor in registers, at the innermost loop around all users, where it is only a few vectors there."""
    assert machine.registers is not None
    shared = [n for n in common_prefix(*(schedule.nests[u].path for u in users)) if isinstance(n, str)]
    inner = {n for u in users for n in schedule.nests[u].names[len(shared) :]}
    if not shared or any(schedule.kind(n) not in ("unroll", "vector") for n in inner):
        return schedule
    buffer = f"{tensor}_{users[0]}_v"
    try:
        kept = schedule.promote(tensor, shared[-1], machine.registers.name, name=buffer, users=list(users))
    except ScheduleError:
        return schedule
    new = kept.program.tensor[buffer]
    copied = {f"ld_{buffer}", f"st_{buffer}"} & kept.program.statement.keys()
    room = MOST_VECTORS * machine.lanes(size_bytes(new.dtype))
    return kept if not copied and new.nbytes(kept.program.binding) <= room * size_bytes(new.dtype) else schedule
