"""Facts of a group for the choices on a core: strides, extents, lanes, bytes (`Facts`).

In closed form, from access maps, extents and the machine description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine
from poly.dtypes import size_bytes
from poly.expr import OPERATORS, Apply, Cost, Read, walk
from poly.locks import cached_property
from poly.loops import MAX_LANES
from poly.machine import Machine
from poly.program import Access, Program, Statement, Tensor, places_of
from poly.relations import bound_domain
from poly.scheduling.groups import Group, bare
from poly.scheduling.uneven import Ends, shorter_ends
from poly.sets import interval

Strides = dict[int, int | None]
OPERATIONS: Mapping[Cost, int] = {"instruction": 1, "slow": 1, "exponential": 10, "function": 20}  # of a vector
QUICK = frozenset(o.name for o in OPERATORS.values() if o.cost == "instruction")
LIGHT = QUICK.union(o.name for o in OPERATORS.values() if o.cost == "slow")  # all others are functions
FUNCTION_CYCLES, FUNCTION_ELEMENT_CYCLES = 20, 2.0  # of a vector that waits for a function; of an element among many
INTERLEAVED = {1: 1.0, 2: 0.95, 4: 0.87}  # vectors of a long chain of operations as one wide one: time of each of them
BYTES_AHEAD = 8192  # that a stream is asked for: the hardware's own prefetchers stop at the end of a page
FEWEST_LANES = 4  # iterations of a loop along which lanes pay
NEAR = 0.25  # of the last cache: what is larger comes from it at its own pace, not at that of a nearer one


def own_capacity(machine: Machine) -> int:
    """Bytes of the caches that a core has for itself."""
    return sum(m.capacity or 0 for m in machine.own_caches)


def from_afar(program: Program, tensor: str, machine: Machine) -> bool:
    """Whether a caller's tensor comes from beyond a core's own caches."""
    found = program.tensor[tensor]
    return found.role in ("input", "inout") and found.nbytes(program.binding) > own_capacity(machine)


def most_vectors(machine: Machine) -> int:
    """Vectors of a result without rows that registers hold, beside as many of what is added to it."""
    return machine.vector_registers // 2


@dataclass(frozen=True)
class Facts:
    """What the choices for one group are made from. `extents`: of its parallel loops."""

    program: Program
    group: Group
    machine: Machine
    extents: Sequence[int]
    threads: int

    @property
    def update(self) -> Statement | None:
        """The group's reduction."""
        return next((s for s in self.group.statements if s.combiner is not None), None)

    @cached_property
    def uneven(self) -> Mapping[int, Ends]:
        """The loops along which the reduction is not everywhere as long: each iteration has bounds of its own."""
        s = self.update
        if s is None:
            return {}
        axes = self.group.axes[s.name]
        return {axes.index(a): ends for a, ends in (shorter_ends(self.program, s, axes) or {}).items()}

    def strides(self, s: Statement) -> list[Strides]:
        """For every access, the write last, the elements between neighbours along each loop (None: not constant)."""
        kept: dict[str, list[Strides]] = self.__dict__.setdefault("_strides", {})
        if s.name not in kept:
            tensors, sizes = self.program.tensor, self.program.binding
            axes = list(enumerate(self.group.axes[s.name]))
            every = (access for access, _ in s.accesses)
            kept[s.name] = [{a: stride(access, tensors[access.tensor], i, sizes) for a, i in axes} for access in every]
        return kept[s.name]

    def regular(self, s: Statement, axis: int) -> bool:
        """Whether all reads of a statement are contiguous or constant along a loop."""
        return all(access.get(axis) in (0, 1) for access in self.strides(s)[:-1])

    def lanes(self) -> int | None:
        """The loop along which all writes are contiguous, and most reads contiguous or constant."""
        strides = [self.strides(s) for s in self.group.statements]
        suited = [(_contiguity(strides, a), a) for a, extent in enumerate(self.extents) if extent > 1]
        share, axis = max(suited, default=(0.0, 0))
        return axis if share > 0 and self.machine.lanes(self.widest()) > 1 else None

    def widest(self) -> int:
        """Bytes of the widest element."""
        return widest_element(self.program, self.group.statements)

    def vector(self, lanes: int) -> int:
        """Elements of a vector along a loop: the machine's, fewer where the loop is shorter."""
        along = [(s, self.group.axes[s.name][lanes]) for s in self.group.statements]
        whole = self.machine.lanes(widest_in_lanes(self.program, along))
        return min(whole, 1 << max(0, self.extents[lanes] - 1).bit_length())

    def group_low(self, axis: int) -> int:
        assert self.group.box is not None
        return self.group.box[axis][0]


def facts_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Facts:
    """The facts of a group whose parallel loops are a box of known size."""
    assert group.box is not None
    return Facts(program, group, machine, [high - low + 1 for low, high in group.box], threads)


def widest_element(program: Program, statements: Sequence[Statement]) -> int:
    """Bytes of the widest element that some statements touch."""
    return max(size_bytes(program.tensor[a.tensor].dtype) for s in statements for a, _ in s.accesses)


def functions_in(statements: Sequence[Statement]) -> frozenset[str]:
    """The operations of some bodies that are no instruction or few."""
    used = {e.operator for s in statements for e in walk(s.body) if isinstance(e, Apply)}
    return frozenset(used - LIGHT)


def interleaved(extent: int, vector: int, height: int = 1) -> int:
    """How many of a row's vectors to take together, where the last ones of them may be empty, if so many rows are side
    by side: their chains of operations overlap, and they share what constants cost.
    """
    vectors, most = -(-extent // vector), min(max(INTERLEAVED) // height, MAX_LANES // vector)
    possible = [k for k in INTERLEAVED if k == 1 or k <= min(vectors, most)]
    return min(possible, key=lambda k: -(-vectors // k) * k * INTERLEAVED[k])


def widest_in_lanes(program: Program, along: Sequence[tuple[Statement, str]]) -> int:
    """Bytes of the widest element that statements touch in lanes along an iterator each: a place that is the same in
    all of them is no vector.
    """
    found = list[int]()
    for s, iterator in along:
        read = {e.position for e in walk(s.body) if isinstance(e, Read)}
        still = {k for k in places_of(a for a, _ in s.accesses) - read if not s.reads[k].indirect}
        touched = [r for k, r in enumerate(s.reads) if k not in still or moves(r, iterator)]
        found += [size_bytes(program.tensor[a.tensor].dtype) for a in (*touched, s.write)]
    return max(found)


def bytes_touched(program: Program, statements: Sequence[Statement]) -> int:
    """Bytes of the tensors in memory that some statements touch; temporaries that no others touch do not count."""
    inside = {s.name for s in statements}
    touched = {a.tensor for s in statements for a, _ in s.accesses}
    shared = {a.tensor for s in program.statements if s.name not in inside for a, _ in s.accesses}
    there = [t for t in program.tensors if t.name in touched and (t.role != "temporary" or t.name in shared)]
    return sum(t.nbytes(program.binding) for t in there)


def reduction_extents(program: Program, s: Statement, axes: Sequence[str]) -> dict[str, int]:
    """The known extents of a statement's iterators that are no parallel loops (1 where not known)."""
    domain = bound_domain(program, s)
    found = {name: interval(domain, k) for k, name in enumerate(s.iterators) if name not in axes}
    return {name: 1 if values is None else values[1] - values[0] + 1 for name, values in found.items()}


def bytes_apart(program: Program, access: Access, iterator: str) -> int | None:
    """Bytes between what neighbouring iterations of a loop touch; None where that is not constant."""
    step = step_along(program, access, iterator)
    return None if step is None else abs(step) * size_bytes(program.tensor[access.tensor].dtype)


def moves(access: Access, iterator: str) -> bool:
    """Whether iterations of a loop touch different elements."""
    return any(iterator in i.names for i in access.affine_index)


def step_along(program: Program, access: Access, iterator: str) -> int | None:
    """`stride` with a program's tensor and sizes, so that an access is asked about by name alone."""
    return stride(access, program.tensor[access.tensor], iterator, program.binding)


def stride(access: Access, tensor: Tensor, iterator: str, sizes: Mapping[str, int]) -> int | None:
    """Elements from what an iteration of a loop touches to what the next one does; None where that is not constant."""
    total, step = 0, 1
    for subscript, extent in zip(reversed(access.index), reversed(tensor.shape), strict=True):
        if not isinstance(subscript, Affine):
            return None
        coefficient = subscript.coefficient(iterator)
        if iterator in subscript.names and not coefficient:
            return None
        total += coefficient * step
        known = extent.substitute(sizes)
        step *= known.constant if known.is_constant else 1 << 20
    return total


def _contiguity(strides: Sequence[Sequence[Strides]], axis: int) -> float:
    """How well a loop suits lanes: 0 where a write is strided, else the share of accesses of stride 0 or 1."""
    good = every = 0
    for accesses in strides:
        if accesses[-1].get(axis) != 1:
            return 0.0
        for access in accesses:
            every += 1
            good += access.get(axis) in (0, 1)
    return good / every if every else 0.0


def moving(strides: Sequence[Strides], lanes: int) -> list[int]:
    """The reads whose element changes along the lanes."""
    return [k for k, access in enumerate(strides[:-1]) if access.get(lanes) != 0 and None not in access.values()]


def axis_of(access: Access, iterator: str) -> int | None:
    """The only subscript that holds an iterator, where its factor is positive."""
    found = [d for d, i in enumerate(access.index) if not isinstance(i, Affine) or iterator in i.names]
    if len(found) != 1 or access.indirect:
        return None
    subscript = access.index[found[0]]
    return found[0] if isinstance(subscript, Affine) and subscript.coefficient(iterator) > 0 else None


def bare_axes(access: Access) -> tuple[str, ...] | None:
    """The iterators that an access' subscripts are, each another one."""
    found = [bare(i) if isinstance(i, Affine) else None for i in access.index]
    names = tuple(n for n in found if n is not None)
    return names if names and len(names) == len(found) == len(set(names)) else None


def step_of(access: Access, axis: int, iterator: str) -> int:
    subscript = access.index[axis]
    assert isinstance(subscript, Affine)
    return subscript.coefficient(iterator)
