"""Copies that need no copying: one tensor lies inside the other, and the statement has nothing to do.

A group of plain copies `C[f(x)] = T[g(x)]` is dropped where every element of the smaller tensor has its address in the
larger one's memory, all by the same distance: joining along the outermost axis that is longer than 1, a part of it, a
change of shape. Addresses decide, not operators. Where a core walks memory in any steps, a tensor can lie in a larger
one as a box of it, too (joining along an inner axis): it then has the larger one's shape. It is sound where nobody else
writes the shared part: the copy is the only writer of its elements of `C`, and `T` is not written after it. A
temporary can lie in an input, which nobody writes, and a whole output in place of the temporary it is copied from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.expr import Read
from poly.program import Access, Program, Statement, Tensor
from poly.relations import access_map, box, expressions_map
from poly.scheduling.groups import Group, tensors_read, tensors_written
from poly.sets import fix_sizes

_ROLES = {("temporary", "temporary"), ("input", "temporary"), ("output", "temporary"), ("temporary", "output")}
"""Of a copy's source and target, one of which can lie in the other."""


@dataclass(frozen=True)
class Alias:
    """`tensor` starts `shift` bytes behind the start of `inside`; `shape`: that of `inside` if it is a box there."""

    tensor: str
    inside: str
    shift: int
    shape: tuple[Affine, ...] = ()


def aliases_of(
    program: Program, groups: Sequence[Group], boxes: bool = False
) -> tuple[dict[str, Alias], frozenset[int]]:
    """Tensors that can lie inside others, by name, and the positions of the groups that then have nothing to do.

    `boxes`: also as boxes of others.
    """
    found: dict[str, Alias] = {}
    dropped: set[int] = set()
    if program.parameters and set(program.parameters) - program.binding.keys():
        return found, frozenset()
    users = _Users.of(program)
    position = {s.name: k for k, s in enumerate(program.statements)}
    for k, group in enumerate(groups):
        wanted: dict[str, Alias] = {}
        for s in group.statements:
            ways = _aliases(program, users, position[s.name], s, boxes)
            alias = next((a for a in ways if _is_new(program, a, found | wanted)), None)
            if alias is None:
                break
            wanted[alias.tensor] = alias
        else:
            found |= wanted
            dropped.add(k)
    return found, frozenset(dropped)


def _is_new(program: Program, alias: Alias, known: Mapping[str, Alias]) -> bool:
    """Whether an alias goes with others: in no circle, nothing in a tensor that is a box of another one, and no box in
    an array of a caller, behind which there may be no memory."""
    root = place_of(alias.inside, known)[0]
    if alias.tensor in known or root == alias.tensor:
        return False
    boxes = [a for a in known.values() if a.shape and place_of(a.inside, known)[0] == alias.tensor]
    if program.tensor[root].role != "temporary" and (alias.shape or boxes):
        return False
    inside = known.get(alias.inside)
    holds = bool(alias.shape) and any(a.inside == alias.tensor for a in known.values())
    return not holds and (inside is None or not inside.shape)


def place_of(tensor: str, aliases: Mapping[str, Alias]) -> tuple[str, int]:
    """The tensor that has memory of its own, and the bytes from its start."""
    shift = 0
    while tensor in aliases:
        shift += aliases[tensor].shift
        tensor = aliases[tensor].inside
    return tensor, shift


def _aliases(
    program: Program, users: _Users, position: int, s: Statement, boxes: bool
) -> Iterator[Alias]:
    """How the tensors of a plain copy can share memory: the source in the target, or the target in the source."""
    if s.external is not None or s.combiner is not None or s.body != Read(0) or len(s.reads) != 1:
        return
    (read,) = s.reads
    source, target = program.tensor[read.tensor], program.tensor[s.write.tensor]
    if read.guard or read.indirect or s.write.indirect or not _can_share(source, target):
        return
    distance = _distance(program, s, _linear(program, s.write) - _linear(program, read))
    if not _alone(program, users, position, s, read.tensor):
        return
    between = source.role == target.role == "temporary"
    if distance is None:
        yield from _boxes(program, s, read) if boxes and between else ()
        return
    shift = distance * size_bytes(source.dtype)
    whole = _covers(program, s, s.write, target)
    if source.role == "temporary" and (between or whole) and _covers(program, s, read, source):
        yield Alias(source.name, target.name, shift)
    if target.role == "temporary" and whole:
        yield Alias(target.name, source.name, -shift)


def _boxes(program: Program, s: Statement, read: Access) -> Iterator[Alias]:
    """A copy of a whole tensor to the same subscripts of a larger one, up to distances."""
    source, target = program.tensor[read.tensor], program.tensor[s.write.tensor]
    apart = [w - r for w, r in zip(s.write.affine_index, read.affine_index, strict=False)]
    same = source.rank == target.rank and all(d.is_constant and d.constant >= 0 for d in apart)
    if same and _covers(program, s, read, source):
        shift = 0
        for d, extent in zip(apart, target.extents(program.binding), strict=True):
            shift = shift * extent + d.constant
        yield Alias(source.name, target.name, shift * size_bytes(source.dtype), target.shape)


def _can_share(source: Tensor, target: Tensor) -> bool:
    plain = all(t.layout is None and t.space == "dram" for t in (source, target))
    alike = source.dtype == target.dtype and source.name != target.name
    return plain and alike and (source.role, target.role) in _ROLES


def _linear(program: Program, access: Access) -> Affine:
    """The element's number in row-major order; axes of extent 1 count nothing."""
    total, step = Affine((), 0), 1
    shape = program.tensor[access.tensor].extents(program.binding)
    for subscript, extent in zip(reversed(access.affine_index), reversed(shape), strict=True):
        if extent > 1:
            total = total + subscript * step
        step *= extent
    return total


def _distance(program: Program, s: Statement, difference: Affine) -> int | None:
    """The value of an expression where it is the same in all instances."""
    values = fix_sizes(
        expressions_map(s, (difference,), program.parameters).intersect_params(program.context), program.binding
    ).range()
    if values.is_empty() or not values.is_singleton():
        return None
    return int(str(values.dim_min_val(0)))


def _covers(program: Program, s: Statement, access: Access, tensor: Tensor) -> bool:
    touched = fix_sizes(access_map(s, access, program.parameters).range(), program.binding)
    whole = fix_sizes(box(tensor.name, tensor.shape, program.parameters), program.binding)
    return whole.is_subset(touched)


@dataclass(frozen=True)
class _Users:
    """Who writes and who reads each tensor, with their positions in the program."""

    writers: Mapping[str, Sequence[tuple[int, Statement]]]
    readers: Mapping[str, Sequence[tuple[int, Statement]]]

    @staticmethod
    def of(program: Program) -> _Users:
        writers: dict[str, list[tuple[int, Statement]]] = {}
        readers: dict[str, list[tuple[int, Statement]]] = {}
        for k, s in enumerate(program.statements):
            for table, names in ((writers, tensors_written(s)), (readers, tensors_read(s))):
                for name in dict.fromkeys(names):
                    table.setdefault(name, []).append((k, s))
        return _Users(writers, readers)


def _alone(program: Program, users: _Users, position: int, s: Statement, source: str) -> bool:
    """Nobody but the copy writes its elements of the target or reads it before, nobody writes the source after it."""
    target = s.write.tensor
    if any(k > position for k, _ in users.writers.get(source, ())):
        return False
    if any(k < position for k, _ in users.readers.get(target, ())):
        return False
    others = [other for _, other in users.writers[target] if other is not s]
    if any(other.external is not None or other.write.indirect for other in others):
        return False
    mine = access_map(s, s.write, program.parameters).range()
    for other in others:
        theirs = access_map(other, other.write, program.parameters).range()
        if not fix_sizes(mine.intersect(theirs), program.binding).is_empty():
            return False
    return True
