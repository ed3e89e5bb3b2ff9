"""Two tensors in one memory: a temporary lies where a tensor of the same form will be written later (`overlay`).

Nothing is moved or added: the order is checked against the dependences of the source program, where the two are apart,
and the value check follows what every read and the result then get.
"""

from __future__ import annotations

from dataclasses import replace

from poly.errors import ScheduleError
from poly.program import Access, Program, Statement, Tensor
from poly.scheduling.edits import finish
from poly.scheduling.insertion import drop_unused
from poly.scheduling.schedule import Schedule


def overlay(schedule: Schedule, tensor: str, inside: str) -> Schedule:
    """Keep the elements of the temporary `tensor` in those of `inside`, an output or a temporary of the same shape
    (any) and dtype, until they are overwritten.

    The value check refuses it where one of the two is still needed when the other one is written. Raises
    `ScheduleError` where the tensors are not of one form, or are read or written by other means than subscripts.
    """
    program = schedule.program
    old, new = (_plain(program, name) for name in (tensor, inside))
    where = schedule.source.name
    if old.role != "temporary" or new.role not in ("output", "temporary") or old.name == new.name:
        raise ScheduleError(
            f"{tensor} cannot lie in {inside}", where=where, hint="a temporary lies in another temporary or an output"
        )
    form = (old.shape, old.dtype, old.space)
    if form != (new.shape, new.dtype, new.space):
        hint = f"{_form(old)} and {_form(new)}"
        raise ScheduleError(f"{tensor} and {inside} differ in shape, dtype or memory", where=where, hint=hint)
    statements = tuple(_redirected(s, tensor, inside) for s in program.statements)
    result = replace(schedule, program=drop_unused(program, statements))
    return finish(schedule, result, "overlay", tensor=tensor, inside=inside)


def _form(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}] in {tensor.space}"


def _plain(program: Program, name: str) -> Tensor:
    """A tensor of the program that is no buffer and that all statements reach by affine subscripts."""
    found = program.tensor.get(name)
    if found is None:
        raise ScheduleError(f"no tensor {name!r}", where=program.name, hint=f"tensors: {', '.join(program.tensor)}")
    if found.origin or found.scope or found.layout is not None:
        raise ScheduleError(f"{name} is a buffer, or has a layout", where=program.name, hint="overlay before promote")
    for s in program.statements:
        outside = s.external is not None and name in (*s.external.reads, *s.external.writes)
        if outside or any(a.tensor == name and a.indirect for a, _ in s.accesses):
            raise ScheduleError(f"{s.name} may touch any element of {name}", where=program.name)
    return found


def _redirected(s: Statement, tensor: str, inside: str) -> Statement:
    def seen(access: Access) -> Access:
        return replace(access, tensor=inside) if access.tensor == tensor else access

    if not any(access.tensor == tensor for access, _ in s.accesses):
        return s
    copies = inside if s.copies == tensor else s.copies
    return replace(s, write=seen(s.write), reads=tuple(seen(r) for r in s.reads), copies=copies)
