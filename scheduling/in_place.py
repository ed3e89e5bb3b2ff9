"""Results in the memory of an operand that nobody needs any more: one tensor is moved through the caches, not two.

An output of a group takes the place of an input where the group reads each of its elements only for the result that
lies there, and no later group reads or writes the input. The group's program then has one tensor that comes in and
goes out, so that its dependences say in which order a schedule may read and write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from poly.program import Access, Program, Tensor
from poly.scheduling.aliases import Alias
from poly.scheduling.groups import Group, placement, tensors_read, tensors_written


def in_place(
    program: Program, groups: Mapping[int, Group], parts: Mapping[int, Program], aliases: Mapping[str, Alias]
) -> tuple[dict[int, Program], dict[str, Alias]]:
    """The groups as programs, with results in the place of operands, and all tensors that lie in others' memory."""
    last = {t: k for k, g in groups.items() for s in g.statements for t in (*tensors_read(s), *tensors_written(s))}
    taken = {name for a in aliases.values() for name in (a.tensor, a.inside)}
    apart = {t.name for t in program.tensors if t.role == "temporary" and t.layout is None and t.name not in taken}
    found, known = dict(parts), dict(aliases)
    for k, group in groups.items():
        for result in parts[k].outputs:
            if result.role != "output" or result.name not in apart or group.parts:
                continue
            dead = {t.name for t in found[k].inputs if t.role == "input" and t.name in apart and last[t.name] == k}
            place = next((t for t in _places(found[k], group, result) if t in dead), None)
            if place is not None:
                found[k] = _joined(found[k], result.name, place)
                known[result.name] = Alias(result.name, place, 0)
    return found, known


def _places(part: Program, group: Group, result: Tensor) -> Iterator[str]:
    """Tensors like a result of which its group reads an element only where it makes that of the result, or before."""
    writers = [s for s in part.statements if s.write.tensor == result.name]
    if len(writers) != 1 or writers[0].combiner is not None or writers[0].write.indirect:
        return
    writer, names = writers[0], [s.name for s in part.statements]
    if not all(name in group.axes for name in names):
        return
    made = placement(writer.write, group.axes[writer.name])
    for t in part.inputs:
        reads = [(s, r) for s in part.statements for r in s.reads if r.tensor == t.name]
        alike = (t.shape, t.dtype, t.layout, t.space) == (result.shape, result.dtype, None, result.space)
        if alike and all(
            s.combiner is None and not r.guard and not r.indirect
            and placement(r, group.axes[s.name]) == made and names.index(s.name) <= names.index(writer.name)
            for s, r in reads
        ):  # fmt: skip
            yield t.name


def _joined(part: Program, result: str, place: str) -> Program:
    """The same program with one tensor for both, which comes in and goes out."""

    def renamed(a: Access) -> Access:
        return replace(a, tensor=place) if a.tensor == result else a

    tensors = tuple(
        replace(t, role="inout") if t.name == place else t for t in part.tensors if t.name != result
    )  # fmt: skip
    statements = tuple(
        replace(s, write=renamed(s.write), reads=tuple(renamed(r) for r in s.reads)) for s in part.statements
    )
    return replace(part, tensors=tensors, statements=statements)
