"""Bytes that a schedule moves between memories, counted exactly under the binding, and the least that any must move.

An access moves what it touches anew in each iteration of the loops that stay loops: unrolled copies, lanes and the
loops inside one command of an engine share what they touch. Nothing is said about caches: what is in `dram` counts
as often as it is touched. Counts are of integer points (isl), never of formulas that may be wrong at an edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import islpy as isl

from poly.dtypes import size_bytes
from poly.locks import cached_property
from poly.program import Access, Program, Statement, Tensor
from poly.relations import access_map, expressions_map
from poly.scheduling.dependences import touches
from poly.scheduling.schedule import Schedule
from poly.sets import DIV, IN, SET, fix_sizes, within_budget

COMPUTE = "compute"
_OPERATIONS = 3_000_000
_SHARED = ("unroll", "vector", "unit")


@dataclass(frozen=True)
class Move:
    """What one access of one statement moves. `elements` None: too many cases to count, or a size is free."""

    statement: str
    tensor: str
    source: str
    target: str
    elements: int | None
    dtype: str

    @property
    def bytes(self) -> int | None:
        return None if self.elements is None else self.elements * size_bytes(self.dtype)


@dataclass(frozen=True)
class Traffic:
    """All moves of a schedule. `compulsory`: what is used of inputs and outputs once, None where a size is free."""

    moves: tuple[Move, ...]
    compulsory: int | None

    @cached_property
    def pairs(self) -> dict[tuple[str, str], int | None]:
        """Bytes by (source memory, target memory), in order of first use."""
        found: dict[tuple[str, str], int | None] = {}
        for move in self.moves:
            key = (move.source, move.target)
            so_far = found.get(key, 0)
            found[key] = None if so_far is None or move.bytes is None else so_far + move.bytes
        return found

    def between(self, memory: str) -> int | None:
        """Bytes that leave or enter a memory; moves inside it count twice."""
        total = 0
        for (source, target), moved in self.pairs.items():
            if memory in (source, target):
                if moved is None:
                    return None
                total += moved * (2 if source == target else 1)
        return total

    @property
    def ratio(self) -> float | None:
        """Bytes over `dram` for each compulsory byte."""
        moved = self.between("dram")
        return None if moved is None or not self.compulsory else moved / self.compulsory


def traffic(schedule: Schedule) -> Traffic:
    """What a schedule moves, see the module text. External statements move their whole tensors."""
    return Traffic(
        tuple(m for s in schedule.program.statements for m in _moves(schedule, s)), compulsory_bytes(schedule.source)
    )


def compulsory_bytes(program: Program, *, inward: bool = False) -> int | None:
    """Bytes that no schedule can avoid moving: what is read of inputs and constants, once, and written of outputs.

    `inward`: into a memory only, where what is read and then written comes once.
    """
    touched: dict[tuple[str, bool], isl.Set] = {}
    for s in program.statements:
        for touch in touches(program, s):
            role, key = program.tensor[touch.tensor].role, (touch.tensor, touch.write and not inward)
            if role != "temporary" and (touch.write or role != "output"):
                part = touch.relation.range()
                touched[key] = touched[key].union(part) if key in touched else part
    total = 0
    for (name, _), elements in touched.items():
        count = within_budget(_OPERATIONS, lambda part=elements: count_points(part), lambda: None)
        if count is None:
            return None
        total += count * size_bytes(program.tensor[name].dtype)
    return total


def tensor_bytes(program: Program, tensor: Tensor) -> int | None:
    """Bytes of a tensor under the binding; None where a size is free."""
    free = {n for extent in tensor.storage_shape for n in extent.names} - set(program.binding)
    return None if free else tensor.nbytes(program.binding)


def _moves(schedule: Schedule, s: Statement) -> Iterator[Move]:
    tensors = schedule.program.tensor
    if s.external is not None:
        for names, outward in ((s.external.reads, False), (s.external.writes, True)):
            for name in names:
                t = tensors[name]
                size = tensor_bytes(schedule.program, t)
                count = None if size is None else size // size_bytes(t.dtype)
                yield _move(s, t, count, outward)
        return
    if s.copies:
        read, write = s.reads[0], s.write
        count = touched(schedule, s, read)
        yield Move(
            s.name, s.copies, tensors[read.tensor].space, tensors[write.tensor].space, count, tensors[read.tensor].dtype
        )
        return
    for access, kind in s.accesses:
        yield _move(s, tensors[access.tensor], touched(schedule, s, access), kind == "write")


def _move(s: Statement, tensor: Tensor, elements: int | None, outward: bool) -> Move:
    ends = (COMPUTE, tensor.space) if outward else (tensor.space, COMPUTE)
    return Move(s.name, tensor.name, *ends, elements, tensor.dtype)


def touched(schedule: Schedule, s: Statement, access: Access) -> int | None:
    """Elements that an access touches, once in each iteration of the loops around that stay loops.

    A buffer is another one in each iteration of the loops of its scope, also of those that are laid out.
    """
    program, nest = schedule.program, schedule.nests[s.name]
    tensor = program.tensor[access.tensor]
    kept = [loop for loop in nest.names if loop in tensor.scope or schedule.kind(loop) not in _SHARED]
    relation = access_map(s, access, program.parameters, tensor.shape)
    iterations = expressions_map(s, nest.expressions(kept), program.parameters)

    def count() -> int | None:
        pairs = iterations.reverse().apply_range(relation).intersect_params(program.context)
        return count_points(fix_sizes(pairs, program.binding).wrap())

    return within_budget(_OPERATIONS, count, lambda: None)


def count_points(domain: isl.Set) -> int | None:
    """The integer points of a set without free parameters, None where it has some or is unbounded.

    Dimensions that no constraint ties together are counted apart, so that boxes of any size cost nothing. Runs for as
    long as isl counts the largest of the parts: put it under `within_budget`.
    """
    if domain.dim(isl.dim_type.param) and domain.involves_dims(isl.dim_type.param, 0, domain.dim(isl.dim_type.param)):
        return None
    if not domain.is_bounded():
        return None
    total = 0
    flat = domain.flatten() if domain.is_wrapping() else domain
    for part in flat.coalesce().make_disjoint().compute_divs().get_basic_sets():
        total += _count_basic(part.remove_redundancies())
    return total


def _count_basic(part: isl.BasicSet) -> int:
    if part.is_empty():
        return 0
    result = 1
    dims = part.dim(SET)
    for component in _components(part):
        factor = isl.Set.from_basic_set(part)
        for d in reversed(range(dims)):
            if d not in component:
                factor = factor.project_out(SET, d, 1)
        result *= int(str(factor.count_val()))
    return result


def _components(part: isl.BasicSet) -> list[set[int]]:
    """Sets of dimensions that constraints tie together, through existentials too."""
    dims, divs = part.dim(SET), part.dim(DIV)
    leader = list(range(dims + divs))

    def find(k: int) -> int:
        while leader[k] != k:
            k = leader[k]
        return k

    local = part.get_local_space()
    definitions = [(dims + k, local.get_div(k)) for k in range(divs)]
    groups = [
        [d for d in range(dims) if c.involves_dims(SET, d, 1)]
        + [dims + k for k in range(divs) if c.involves_dims(DIV, k, 1)]
        for c in part.get_constraints()
    ] + [
        [k, *(d for d in range(dims) if aff.involves_dims(IN, d, 1))]
        + [dims + e for e in range(divs) if aff.involves_dims(DIV, e, 1)]
        for k, aff in definitions
        if not aff.is_nan()
    ]
    for tied in groups:
        for other in tied[1:]:
            leader[find(other)] = find(tied[0])
    found: dict[int, set[int]] = {}
    for d in range(dims):
        found.setdefault(find(d), set()).add(d)
    return list(found.values())
