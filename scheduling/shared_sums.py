"""Sums that threads share: a long reduction with a small target, cut into parts whose sums are added up at the end.

`C[i,j] += A[i,k]*B[k,j]` of 64 x 64 and 4096: whichever of i and j threads share, each of them reads all of one
operand, to use it for half of the result. With `k = 512*p + k'` the sums `P[p,i,j]` are independent of each other,
threads share p, and each reads a part of both operands. Then `C` adds the parts up, whoever made them, in one order:
results are the same from run to run. These are the partial sums of `rfactor`, but made before there are groups, so that
every policy meets p as one more parallel loop; Solomonik and Demmel, "Communication-optimal parallel 2.5D matrix
multiplication" (Euro-Par 2011), cut the reduction for the same reason. See docs/decisions/0029. Sums of everything,
`s += exp(x[i])`, leave threads no other loop.

A vector times a matrix uses no element of the matrix twice, nor do sums of columns. Threads that share these would each
walk pieces of all rows; with the sum in parts, each walks whole rows, one after another. See docs/decisions/0053.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, prod
from typing import Final

import islpy as isl

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.expr import OPERATORS, Apply, Read, walk, with_indices
from poly.machine import Machine
from poly.program import Access, PathStep, Program, Statement, Tensor, box_domain
from poly.scheduling.cpu import POLICIES
from poly.scheduling.cpu_contract import contraction_of
from poly.scheduling.cpu_core import OWN_SHARE, core_of
from poly.scheduling.cpu_facts import OPERATIONS, moves, own_capacity, step_along
from poly.scheduling.cpu_shares import FITTED_REMOTE, MEETING_CYCLES
from poly.scheduling.groups import domain_box
from poly.scheduling.joined_axes import axes_apart, with_sizes
from poly.scheduling.row_groups import groups_for
from poly.scheduling.thread_blocks import blocks_like

FEWEST_PARTS, MOST_PARTS = 2, 4  # for each thread: who is late has less left to do, or there is less to add up
FEW: Final = 5  # elements that threads read in common for one of the parts, which is stored and read again, at least
LONG_PIECE: Final = 8192  # bytes of a row: as good as a whole one, where there is nothing but rows to read
LONG: Final = 64  # steps of the reduction in a part, at the least: each tile is started and stored once more


def share_sums(program: Program, machine: Machine, threads: int) -> Program:
    """The program with its long reductions in parts for several threads.

    Contractions, sums that walk through rows of an operand once, and sums of everything. Programs with free sizes, and
    reductions that keep their order, stay as they are.
    """
    literal = with_sizes(program) if threads > 1 else None
    if literal is None:
        return program
    found = literal
    for s in literal.statements:
        own = found.statement[s.name]
        cut = _rows_cut(found, own, machine, threads) or _total_cut(found, own, machine, threads)
        if cut is None:
            cut = _cut(found, own, threads)
            cut = cut if cut is not None and _is_contraction(found, s.name, machine, threads) else None
        found = found if cut is None else in_parts(found, cut)
    return program if found is literal else found


def is_in_parts(program: Program, whole: Program) -> bool:
    """Whether a program is another one with some of its reductions in parts, others in blocks for threads."""
    found = with_sizes(whole)
    if found is None:
        return False
    for s in found.statements:
        parts = program.tensor.get(_parts_name(found, s))
        loop = _longest(found, found.statement[s.name]) if parts is not None else None
        if parts is None or loop is None:
            continue
        count = parts.shape[0]
        if count.is_constant and 0 < count.constant <= loop.size:
            found = in_parts(found, loop.in_parts(count.constant))
    return str(blocks_like(found, program)) == str(program)


@dataclass(frozen=True)
class Cut:
    """The reduction `statement` in `parts` parts of `size` iterations of `iterator` each, the first at `low`; `steps`:
    with those of the reduction's other loops.
    """

    statement: str
    iterator: str
    low: int
    size: int
    steps: int
    parts: int = 1

    def in_parts(self, parts: int) -> Cut:
        return replace(self, size=self.size // parts, steps=self.steps // parts, parts=parts)


def _longest(program: Program, s: Statement) -> Cut | None:
    """The longest loop of a reduction that can be cut, in one part."""
    target = program.tensor[s.write.tensor]
    plain = s.external is None and not s.partial and not any(a.indirect for a, _ in s.accesses)
    if s.combiner is None or not s.reorder or not plain or s.path[1:] != s.iterators:
        return None
    box = domain_box(program, s, s.iterators)
    written = {n for i in s.write.affine_index for n in i.names}
    own = s.write.tensor in {r.tensor for r in s.reads}
    if own or box is None or not written <= {*s.iterators} or target.layout is not None or target.scope:
        return None
    ranges = {i: r for i, r in zip(s.iterators, box, strict=True) if i not in written}
    longest = max(ranges, key=lambda i: ranges[i][1] - ranges[i][0], default=None)
    if longest is None:
        return None
    low, high = ranges[longest]
    steps = prod(last - first + 1 for first, last in ranges.values())
    return Cut(s.name, longest, low, high - low + 1, steps)


def _cut(program: Program, s: Statement, threads: int) -> Cut | None:
    """As many parts as there may be, where threads get equally many of them."""
    loop = _longest(program, s)
    if loop is None or len(s.reads) < 2:
        return None
    made = FEW * prod(program.tensor[s.write.tensor].extents(program.binding))
    for parts in range(MOST_PARTS * threads, FEWEST_PARTS * threads - 1, -threads):
        if loop.size % parts == 0 and loop.steps >= LONG * parts and parts * made <= _common(program, s, threads):
            return loop.in_parts(parts)
    return None


def _rows_cut(program: Program, s: Statement, machine: Machine, threads: int) -> Cut | None:
    """A part for each thread, where sums lie along the rows of an operand that is walked once, threads have no other
    loop to share, and to fetch a part of it takes longer than to meet and to add up. For memory they wait anyway.
    """
    loop = _longest(program, s)
    if loop is None or not s.reads or loop.size % threads or loop.steps < LONG * threads:
        return None
    ranges = zip(s.iterators, domain_box(program, s, s.iterators) or (), strict=False)
    long = {i: high - low + 1 for i, (low, high) in ranges if high > low}
    walked = next((r for r in s.reads if all(moves(r, i) for i in long)), None)
    if walked is None:
        return None
    written = {n for i in s.write.affine_index for n in i.names}
    lanes = [i for i in long if step_along(program, walked, i) == 1]
    shared = [i for i in long if i in written and i not in lanes and long[i] >= threads]
    alone = all(len(x.names & long.keys()) < 2 for x in walked.affine_index) and not walked.guard
    if not alone or shared or not lanes or step_along(program, s.write, lanes[0]) != 1:
        return None
    made, element = prod(long[i] for i in long if i in written), size_bytes(program.tensor[s.write.tensor].dtype)
    size = prod(long.values()) * size_bytes(program.tensor[walked.tensor].dtype)
    core = core_of(machine, element)
    rates = [cache.rate for cache in core.caches if size > cache.capacity]
    near = rates and size <= core.part * core.caches[-1].capacity
    spared = size / rates[-1] * (1 - 1 / threads) if near else 0.0
    if spared <= MEETING_CYCLES + (threads - 1) * made * element / FITTED_REMOTE:
        return None
    if len(s.reads) < 2:
        pieces = long[lanes[0]] * element <= threads * LONG_PIECE and size > threads * OWN_SHARE * own_capacity(machine)
        if not pieces or not _stands_alone(program, s.name, machine, threads, made * loop.steps // LONG):
            return None
    return loop.in_parts(threads)


def _total_cut(program: Program, s: Statement, machine: Machine, threads: int) -> Cut | None:
    """A part for each thread of a sum whose target has no loop for all of them, and which stands alone, where it takes
    longer than to meet. Fetching from memory counts nothing: one thread has all of it.
    """
    loop = _longest(program, s)
    target = program.tensor[s.write.tensor]
    if loop is None or loop.size % threads or loop.steps < LONG * threads:
        return None
    made = prod(target.extents(program.binding))
    core = core_of(machine, size_bytes(target.dtype))
    calls = [node.operator for node in walk(s.body) if isinstance(node, Apply)]
    cycles = made * loop.steps / core.lanes * sum(OPERATIONS[OPERATORS[o].cost] for o in calls) / core.fma
    size = sum(program.tensor[r.tensor].nbytes(program.binding) for r in s.reads)
    rates = [cache.rate for cache in core.caches if size > cache.capacity]
    near = size <= core.part * core.caches[-1].capacity
    cycles = max(cycles, size / (rates[-1] if rates else core.load * core.line) if near else 0.0)
    spared = cycles * (1 - 1 / threads)
    worth = made < threads and spared > MEETING_CYCLES
    return loop.in_parts(threads) if worth and _stands_alone(program, s.name, machine, threads) else None


def _stands_alone(program: Program, name: str, machine: Machine, threads: int, most: int = LONG - 1) -> bool:
    """Whether nothing of a statement's group runs through as much as it does: more than `most` iterations."""
    group = next(g for g in groups_for(program, machine, threads) if name in g.names)
    others = [s for s in group.statements if s.name != name]
    boxes = [domain_box(program, s, s.iterators) for s in others]
    return all(b is not None and prod(high - low + 1 for low, high in b) <= most for b in boxes)


def _common(program: Program, s: Statement, threads: int) -> float:
    """Elements of operands that all threads read where they share the loop of the target that leaves fewest of them."""
    written = {n for i in s.write.affine_index for n in i.names}
    ranges = zip(s.iterators, domain_box(program, s, s.iterators) or (), strict=True)
    left = [
        sum(prod(program.tensor[r.tensor].extents(program.binding)) for r in s.reads if not moves(r, i))
        for i, (low, high) in ranges
        if i in written and high - low + 1 >= threads
    ]
    return min(left, default=inf)


def _is_contraction(program: Program, name: str, machine: Machine, threads: int) -> bool:
    """Whether a statement's group is left to the policy for contractions."""
    group = next(g for g in groups_for(program, machine, threads) if name in g.names)
    if group.box is None or group.parts:
        return False
    for policy in POLICIES:
        if policy.recognise is contraction_of:
            return True
        if policy.recognise(program, group, machine, threads) is not None:
            return False
    return False


# ---- the program in parts


def in_parts(program: Program, cut: Cut) -> Program:
    """The program with one reduction cut: what clears the parts, what makes them, what adds them up."""
    s = program.statement[cut.statement]
    target = program.tensor[s.write.tensor]
    name, part = _parts_name(program, s), _free_iterator(s)
    shape = (Affine.of(cut.parts), *map(Affine.of, target.extents(program.binding)))
    parts = Tensor(name, shape, target.dtype, "temporary")
    clear, add = _around(program, s, cut, name, part)
    making = _made(program, s, cut, name, part)
    ordered: list[list[Statement]] = []
    for _, nest in groupby(program.statements, lambda other: other.path[0]):
        members = [*nest]
        if s not in members:
            ordered.append(members)
            continue
        starts = [ordered.pop()] if ordered and _starts(ordered[-1], s) else []  # one nest with what adds up
        ordered += [[clear], [making], *starts, [add]]
    statements = tuple(
        replace(other, path=(k, *_inner(other))) for k, members in enumerate(ordered) for other in members
    )
    made = replace(program, tensors=(*program.tensors, parts), statements=statements)
    return axes_apart(made, {t.name for t in program.with_role("constant")})


def _starts(nest: Sequence[Statement], s: Statement) -> bool:
    """Whether a nest does nothing but set what a reduction adds to."""
    return len(nest) == 1 and nest[0].combiner is None and nest[0].write.tensor == s.write.tensor


def _inner(s: Statement) -> tuple[PathStep, ...]:
    return s.path[1:] if s.path else s.iterators


def _made(program: Program, s: Statement, cut: Cut, name: str, part: str) -> Statement:
    """The reduction into the parts."""
    values = {cut.iterator: cut.size * var(part) + var(cut.iterator) + cut.low}
    ranges = [(part, (0, cut.parts - 1)), *_ranges(program, s, s.iterators)]
    ranges = [(i, (0, cut.size - 1) if i == cut.iterator else r) for i, r in ranges]
    return replace(
        s, iterators=(part, *s.iterators), domain=_domain(s.name, ranges), path=(),
        write=Access(name, (var(part), *s.write.index)), reads=tuple(r.substitute(values) for r in s.reads),
        body=with_indices(s.body, values),
    )  # fmt: skip


def _around(program: Program, s: Statement, cut: Cut, name: str, part: str) -> tuple[Statement, Statement]:
    """What clears the parts, what adds them up."""
    assert s.combiner is not None
    written = {n for i in s.write.affine_index for n in i.names}
    kept = tuple(i for i in s.iterators if i in written)
    ranges, own = _ranges(program, s, kept), (part, (0, cut.parts - 1))
    element = Access(name, (var(part), *s.write.index))
    first, last = _free(program, f"clear_{name}"), _free(program, f"add_{name}")
    clear = Statement(
        first, (part, *kept), _domain(first, [own, *ranges]), element, (),
        s.combiner.identity(program.tensor[s.write.tensor].dtype),
    )  # fmt: skip
    add = Statement(
        last, (*kept, part), _domain(last, [*ranges, own]), s.write, (element,), Read(0), combiner=s.combiner
    )
    return replace(clear, path=()), replace(add, path=())


def _ranges(program: Program, s: Statement, iterators: tuple[str, ...]) -> list[tuple[str, tuple[int, int]]]:
    box = domain_box(program, s, iterators)
    assert box is not None
    return [*zip(iterators, box, strict=True)]


def _domain(name: str, ranges: list[tuple[str, tuple[int, int]]]) -> isl.Set:
    return box_domain(name, [(i, low, high + 1) for i, (low, high) in ranges])


def _parts_name(program: Program, s: Statement) -> str:
    return _free(program, f"{s.write.tensor}_parts")


def _free(program: Program, wanted: str) -> str:
    taken = program.tensor.keys() | program.statement.keys()
    return next(n for n in (wanted, *(f"{wanted}{k}" for k in range(2, len(taken) + 3))) if n not in taken)


def _free_iterator(s: Statement) -> str:
    return next(n for n in ("part", *(f"part{k}" for k in range(2, len(s.iterators) + 3))) if n not in s.iterators)
