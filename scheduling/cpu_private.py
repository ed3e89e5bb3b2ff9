"""Policy for nests whose iterations have values of their own (`poly.scheduling.private_nests`).

    for i, j.o:                                     # whole blocks of lanes, then the rest
        re[8], im[8] = 0                            # in registers
        for k:                                      # in order: a recurrence in each lane
            t[8] = re*re - im*im + x[i] ...
        o[i, j] = ...

All statements stay in their order, each in lanes along a loop that is parallel: outer-loop vectorisation (Nuzman and
Zaks 2008). What is private becomes a few vectors inside a block of lanes. Without lanes it is one element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poly.affine import Affine
from poly.dtypes import numpy_dtype
from poly.errors import PolyError, ScheduleError
from poly.machine import Machine
from poly.program import Statement
from poly.relations import ends_of
from poly.scheduling.arrange import places_of
from poly.scheduling.cpu_edits import loop_of
from poly.scheduling.cpu_nests import (
    MOST_VECTORS,
    blocks_of,
    cut_whole,
    in_registers,
    schedule_nest,
    shifted_to_zero,
    step_of_access,
)
from poly.scheduling.edits import free_buffer_name, piece_name, settle, unchecked
from poly.scheduling.paths import common_prefix
from poly.scheduling.private_nests import private_tensors
from poly.scheduling.schedule import Schedule


def schedule_private(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    """The nests of these statements in a checked schedule, with what is private to their iterations in registers.

    Raises `ScheduleError` where one cannot be scheduled so.
    """
    for loop in dict.fromkeys(schedule.nests[n].names[0] for n in names):
        schedule = _nest(schedule, schedule.under(loop), machine)
    return schedule


def _statements(schedule: Schedule, names: Sequence[str]) -> list[Statement]:
    return [schedule.program.statement[n] for n in names]


def _nest(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    private = private_tensors(schedule.program, _statements(schedule, names))
    for iterator, scattered in _lanes(schedule, names, private, machine):
        try:
            return settle(_with_lanes(unchecked(schedule), names, private, iterator, scattered, machine), schedule)
        except PolyError:
            continue
    kept = settle(_elements_kept(unchecked(schedule), names, private, machine), schedule)
    return schedule_nest(kept, names, machine, 1)


def _lanes(
    schedule: Schedule, names: Sequence[str], private: Mapping[str, tuple[str, ...]], machine: Machine
) -> list[tuple[str, bool]]:
    """The loops that may become lanes, best first, and whether what is touched then does not lie side by side; what is
    written has several lanes in each line."""
    program, found = schedule.program, list[tuple[int, int, str, bool]]()
    if any(s.external is not None or s.write.indirect for s in _statements(schedule, names)):
        return []
    shared = set.intersection(*({*axes} for axes in private.values()))
    for depth, iterator in enumerate(i for i in program.statement[names[0]].iterators if i in shared):
        steps = [
            (step_of_access(s, a, program.tensor, iterator, program.binding), a.tensor, kind)
            for s in _statements(schedule, names)
            for a, kind in s.accesses
            if a.tensor not in private
        ]
        apart = {t: machine.line // numpy_dtype(program.tensor[t].dtype).itemsize for _, t, _ in steps}
        if any(step is None or kind == "write" and abs(step) >= apart[t] for step, t, kind in steps):
            continue
        scattered = any(step not in (0, 1) for step, *_ in steps)
        found.append((-sum(step == 1 for step, *_ in steps), -depth, iterator, scattered))
    return [(iterator, scattered) for *_, iterator, scattered in sorted(found, key=lambda r: (r[3], *r[:2]))]


def _with_lanes(
    schedule: Schedule, names: Sequence[str], private: Mapping[str, tuple[str, ...]], iterator: str, scattered: bool,
    machine: Machine,
) -> Schedule:  # fmt: skip
    """Blocks of lanes along a loop, innermost of those that all statements share."""
    program, statements = schedule.program, _statements(schedule, names)
    loop = loop_of(schedule, names[0], iterator)
    room = machine.vector_registers // (2 * len(private) + 2)
    most = 1 if scattered else min(MOST_VECTORS, room)
    width, vectors = blocks_of(program, statements, iterator, machine, most)
    found = {ends_of(program, s, iterator) for s in statements}
    ends = found.pop()
    if found or ends is None or width < 2:
        raise ScheduleError(f"loop {loop} is not the same for all statements")
    band = [n for n in common_prefix(*(schedule.nests[n].path for n in names)) if isinstance(n, str)]
    if band[-1] != loop:
        schedule = schedule.reorder(*band[band.index(loop) + 1 :], loop)
    schedule = shifted_to_zero(schedule, names[0], loop, ends[0])
    for name in names[1:] if ends[0].constant else ():
        schedule = schedule.shift(name, loop, -ends[0].constant)
    schedule, pieces = _pieces(schedule, names, loop, ends, (width * vectors, width))
    for part, block in pieces:
        schedule = _blocked(schedule, part, block, private, machine)
    return schedule


def _pieces(
    schedule: Schedule, names: Sequence[str], loop: str, ends: tuple[Affine, Affine], blocks: tuple[int, int]
) -> tuple[Schedule, list[tuple[list[str], int]]]:
    """The iterations of a loop that starts at 0 which make whole blocks, and the others in smaller ones: statements
    with the sizes of their blocks.
    """
    lower, upper = ([piece_name(schedule, n, piece) for n in names] for piece in ("lo", "hi"))
    schedule, parts = cut_whole(schedule, names[0], loop, ends, *blocks)
    if len(parts) == 1:
        return schedule, [([*names], parts[0][1])]
    return schedule, [(lower, blocks[0]), (upper, blocks[1])]


def _blocked(
    schedule: Schedule, names: Sequence[str], block: int, private: Mapping[str, tuple[str, ...]], machine: Machine
) -> Schedule:
    """The innermost loop that statements share in blocks of lanes, which every statement has for itself, innermost;
    what is private in registers meanwhile.
    """
    band = [n for n in common_prefix(*(schedule.nests[n].path for n in names)) if isinstance(n, str)]
    outer, inner = f"{band[-1]}.o", f"{band[-1]}.p"
    schedule = schedule.tile({band[-1]: block})
    places = [p for p in places_of(schedule) if p[0] in names]
    lanes = {n: f"{n}.{inner}" for n in names}
    schedule = schedule.arrange(
        [
            (n, (*(step for step in path if step != inner), lanes[n]),
             tuple((lanes[n] if loop == inner else loop, value) for loop, value in loops))
            for n, path, loops in places
        ]
    )  # fmt: skip
    schedule = _kept(schedule, outer, names, private, machine)
    for name in names:
        schedule = schedule.vectorise(lanes[name])
    return schedule


def _elements_kept(
    schedule: Schedule, names: Sequence[str], private: Mapping[str, tuple[str, ...]], machine: Machine
) -> Schedule:
    """What is private as one element inside the innermost of its loops, the order left as it is."""
    for tensor, axes in private.items():
        shared = [loop_of(schedule, names[0], i) for i in axes]
        inner = max(shared, key=schedule.nests[names[0]].names.index)
        schedule = _kept(schedule, inner, names, {tensor: axes}, machine)
    return schedule


def _kept(
    schedule: Schedule, loop: str, names: Sequence[str], private: Mapping[str, tuple[str, ...]], machine: Machine
) -> Schedule:
    for tensor in private:
        users = [n for n in names if tensor in schedule.program.statement[n].tensors]
        buffer = free_buffer_name(schedule, f"{tensor}_r")
        schedule = in_registers(schedule, tensor, loop, machine, users, buffer)
        if {f"ld_{buffer}", f"st_{buffer}"} & schedule.program.statement.keys():
            raise ScheduleError(f"{tensor} is not private to loop {loop}", where=schedule.source.name)
    return schedule
