"""Rotating buffers: the copy into a buffer runs ahead of its use, into another slot (`double_buffer`)."""

from __future__ import annotations

from dataclasses import replace

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.program import Access, Layout, Program, Statement, Tensor
from poly.relations import range_of
from poly.scheduling.edits import finish
from poly.scheduling.paths import Nest, canonical
from poly.scheduling.schedule import Schedule

MOST_SLOTS = 1024  # over a loop whose length is not known
FEW_SLOTS = 4  # however few iterations there are


def double_buffer(schedule: Schedule, tensor: str, loop: str, depth: int = 2) -> Schedule:
    """Give a promoted tensor `depth` slots in rotation over `loop`, and load `depth - 1` iterations ahead.

    `loop` is the innermost loop of the tensor's scope. The copies into the buffer move ahead; copies out of it stay
    (they overlap with the next iteration where the machine has a queue for them). Raises `ScheduleError` where the
    tensor has no tile per iteration of the loop.
    """
    program = schedule.program
    old = program.tensor.get(tensor)
    if old is None or not old.scope or old.scope[-1] != loop:
        raise ScheduleError(
            f"{tensor} has no tile per iteration of {loop!r}", where=schedule.source.name,
            hint=f"promote it with at={loop!r}; its loops are {old.scope if old is not None else 'none'}",
        )  # fmt: skip
    depth = int(depth)  # a text has no numpy integers
    if depth < 2:
        raise ScheduleError(f"depth {depth}", hint="2 or more slots")
    new = _rotating(old, depth)
    statements: list[Statement] = []
    nests = dict(schedule.nests)
    for s in program.statements:
        if any(a.tensor == tensor for a, _ in s.accesses):
            nest = schedule.nests[s.name]
            if loop not in nest.loops:
                raise ScheduleError(f"{s.name} uses {tensor} outside loop {loop!r}", where=schedule.source.name)
            _require_slots(program, s, nest.loops[loop], loop, depth)
            slot = nest.loops[loop] % depth
            s = replace(
                s, write=_slotted(s.write, tensor, slot), reads=tuple(_slotted(r, tensor, slot) for r in s.reads)
            )
            if s.copies and s.write.tensor == tensor:
                nests[s.name] = Nest({**nest.loops, loop: nest.loops[loop] - (depth - 1)}, nest.path)
        statements.append(s)
    tensors = tuple(new if t.name == tensor else t for t in program.tensors)
    changed = replace(program, tensors=tensors, statements=tuple(statements))
    result = replace(schedule, program=changed, nests=canonical(nests))
    return finish(schedule, result, "double_buffer", tensor=tensor, loop=loop, depth=depth)


def _require_slots(program: Program, s: Statement, place: Affine, loop: str, depth: int) -> None:
    """No more slots than iterations: loads farther ahead only lengthen the loop."""
    ends = range_of(program, s, place)
    most = MOST_SLOTS if ends is None else max(FEW_SLOTS, ends[1] - ends[0] + 1)
    if depth > most:
        raise ScheduleError(f"depth {depth}: loop {loop!r} has uses for {most} slots at the most", hint="2 or 3 slots")


def _rotating(old: Tensor, depth: int) -> Tensor:
    layout = old.layout
    if layout is not None:
        slots = Affine((), depth)
        layout = Layout(("slot", *layout.index), (var("slot"), *layout.coordinates), (slots, *layout.shape))
    return replace(old, shape=(Affine((), depth), *old.shape), layout=layout, scope=old.scope[:-1])


def _slotted(access: Access, tensor: str, slot: Affine) -> Access:
    return replace(access, index=(slot, *access.index)) if access.tensor == tensor else access
