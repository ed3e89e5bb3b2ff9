"""Sums of products of bf16 by a matrix unit, two steps of a sum in each element (`dot2_bf16` of `poly.expr.DOTS`).

`T += f32(x) * f32(w)` becomes `T += dot2_bf16(x2, w2)` on tensors of i32 that hold two steps of the sum side by side,
and a sum of half the steps. Only products of matrices, which the unit can do, are made so: for vectors operands are
widened (`poly.scheduling.widened`). Values are sums in f32 in another order, with subnormal numbers taken for zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from poly.affine import Affine, var
from poly.expr import DOT_BF16, DOTS, Apply, Cast, Const, Expr, Read, apply
from poly.machine import MATRIX_TILE
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.cpu_facts import bare_axes
from poly.scheduling.sums import alone, in_order, parts_of, ranges_of, start_of, with_statements

# Of a product on the unit: rows, columns, steps and products of elements at least. Smaller ones are sooner done with
# widened operands.
ROWS, COLUMNS, STEPS, PRODUCTS = 16, 16, 64, 200_000
_PAIR: Final = DOTS[DOT_BF16]
_DEEP: Final = MATRIX_TILE[1]  # elements of a row of a tile


def sums_of_pairs(program: Program, dots: Collection[str]) -> Program:
    """The program with such sums, where `dots` has the operator. Programs with free sizes stay as they are."""
    if DOT_BF16 not in dots or set(program.parameters) - program.binding.keys():
        return program
    work = _Work(program)
    for s in in_order(program):  # what the first user packs is there for the others
        work.convert(s)
    return with_statements(program, work.changed, work.tensors, work.before) if work.changed else program


@dataclass
class _Work:
    """What changes: statements by name, new tensors, and by an initialisation the statements before it. `packed`: by a
    tensor, the axis of its steps, and whether that is last then, which tensor holds pairs of them.
    """

    program: Program
    changed: dict[str, Statement] = field(default_factory=dict[str, Statement])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    before: dict[str, list[Statement]] = field(default_factory=dict[str, list[Statement]])
    packed: dict[tuple[str, int, bool], str] = field(default_factory=dict[tuple[str, int, bool], str])

    def convert(self, s: Statement) -> None:
        """One statement, where it is such a product."""
        if all(self.program.tensor[r.tensor].dtype != "bf16" for r in s.reads):
            return
        init, ranges = start_of(self.program, s), ranges_of(self.program, s)
        step = None if init is None or ranges is None else _step(self.program, s, ranges)
        if init is None or ranges is None or step is None:
            return
        reads = tuple(self._operand(s, access, step, init) for access in s.reads)
        short = {**ranges, step: _length(ranges[step])}
        domain = box_domain(s.name, [(i, 0, n) for i, n in short.items()])
        domain = domain.align_params(self.program.context.get_space())
        self.changed[s.name] = replace(s, domain=domain, reads=reads, body=apply(DOT_BF16, Read(0), Read(1)))

    def _operand(self, s: Statement, access: Access, step: str, init: Statement) -> Access:
        """A read of pairs. The steps of an operand whose rows are those of tiles lie side by side, last."""
        axis, rank = access.affine_index.index(var(step)), len(access.index)
        turned = s.write.affine_index[-1] not in access.affine_index and axis < rank - 1
        order = [*(d for d in range(rank) if d != axis), axis] if turned else [*range(rank)]
        key = access.tensor, axis, turned
        if key not in self.packed:
            packed, copy = _packed(self.program, self.program.tensor[access.tensor], self._name(access), axis)
            self._make(packed, copy, init)
            if turned:
                packed, copy = turned_tensor(self.program, packed, self._name(access), order)
                self._make(packed, copy, init)
            self.packed[key] = packed.name
        return replace(access, tensor=self.packed[key], index=tuple(access.index[d] for d in order))

    def _name(self, access: Access) -> str:
        taken = {*self.program.tensor, *self.program.statement, *self.tensors}
        return unused_name(taken, f"{access.tensor}_pairs", "_made")

    def _make(self, tensor: Tensor, copy: Statement, init: Statement) -> None:
        self.tensors[tensor.name] = tensor
        self.before.setdefault(init.name, []).append(copy)


def _step(program: Program, s: Statement, ranges: Mapping[str, int]) -> str | None:
    """The loop of the sum of a product of matrices of bf16 that is large enough; None where a statement is none."""
    match s.body:
        case Apply("mul", (Cast("f32", Read(a)), Cast("f32", Read(b)))) if {a, b} == {0, 1} and len(s.reads) == 2:
            pass
        case _:
            return None
    summed = s.combiner is not None and s.combiner.symbol == "+" and s.reorder and s.external is None
    axes = [bare_axes(x) if not (x.indirect or x.guard) else None for x in (*s.reads, s.write)]
    if not summed or not alone(s, program) or program.tensor[s.write.tensor].dtype != "f32" or None in axes:
        return None
    if any(program.tensor[r.tensor].dtype != "bf16" or program.tensor[r.tensor].layout is not None for r in s.reads):
        return None
    whole = all(
        tuple(ranges[i] for i in found or ()) == program.tensor[x.tensor].extents(program.binding)
        for x, found in zip(s.reads, axes, strict=False)
    )
    first, second, target = ({*(found or ())} for found in axes)
    steps = [i for i in (first & second) - target if ranges[i] >= STEPS]
    large = large_product(s, s.reads, ranges)
    return max(steps, key=lambda i: ranges[i], default=None) if whole and large else None


def large_product(s: Statement, operands: Sequence[Access], ranges: Mapping[str, int]) -> bool:
    """Whether two operands of a sum are matrices of which each axis is a loop, and large enough for a unit."""
    axes = [bare_axes(x) if not (x.indirect or x.guard) else None for x in (*operands, s.write)]
    if None in axes or not s.write.index:
        return False
    first, second, target = ({*(found or ())} for found in axes)
    rows, columns = (prod(ranges[i] for i in own & target) for own in (first - second, second - first))
    if s.write.affine_index[-1].names & first:  # rows are of the other one
        rows, columns = columns, rows
    return rows >= ROWS and columns >= COLUMNS and prod(ranges.values()) >= PRODUCTS


def _length(steps: int) -> int:
    """Elements for so many steps, zeros behind the last one: as many as the fewest commands of the unit take."""
    least = -(-steps // _PAIR)
    commands = {n: n // max(d for d in range(1, _DEEP + 1) if n % d == 0) for n in range(least, least + _DEEP)}
    return min(commands, key=lambda n: (commands[n], n))


def _packed(program: Program, source: Tensor, name: str, axis: int) -> tuple[Tensor, Statement]:
    """A tensor with two elements along an axis in one, and the statement that makes it; behind the last one is zero."""
    extents = list(source.extents(program.binding))
    steps = extents[axis]
    extents[axis] = _length(steps)
    reads = parts_of(source.name, _point(source), axis, steps, extents[axis], _PAIR)
    bits = [apply("bits", Cast("f32", Read(k))) for k in range(_PAIR)]  # the upper half of what they hold
    low = apply("bit_and", apply("shift_right", bits[0], Const(16, "i32")), Const((1 << 16) - 1, "i32"))
    return _made(program, name, extents, reads, apply("bit_or", low, bits[1]))


def turned_tensor(program: Program, source: Tensor, name: str, order: Sequence[int]) -> tuple[Tensor, Statement]:
    """A tensor with its axes in another order, and the statement that makes it."""
    point, extents = _point(source), source.extents(program.binding)
    index = tuple(var(point[order.index(d)]) for d in range(source.rank))
    return _made(program, name, [extents[d] for d in order], [Access(source.name, index)], Read(0))


def _point(tensor: Tensor) -> tuple[str, ...]:
    """The loops over all elements of a tensor."""
    return tuple(f"i{k}" for k in range(tensor.rank))


def _made(
    program: Program, name: str, extents: Sequence[int], reads: Sequence[Access], body: Expr
) -> tuple[Tensor, Statement]:
    """A tensor of i32, and the statement that writes all of it."""
    tensor, label = Tensor(name, tuple(Affine((), e) for e in extents), "i32"), f"{name}_made"
    point = _point(tensor)
    domain = box_domain(label, [(i, 0, e) for i, e in zip(point, extents, strict=True)])
    domain = domain.align_params(program.context.get_space())
    return tensor, Statement(label, point, domain, Access(name, tuple(map(var, point))), tuple(reads), body)
