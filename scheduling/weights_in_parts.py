"""Sums with exponentials over their sum as weights, in parts of their terms whose operands stay in a core's caches.

Of a part p of the terms k (`poly.scheduling.weighted_sums`) the maximum, the sum and the result are m[p, i], s[p, i]
and y[p, i, d]. Put together they are, with u[p, i] = exp(m[p, i] - the greatest m[., i]),

    y[i, d] = sum of u[p, i]*y[p, i, d] / sum of u[p, i]*s[p, i]

(Milakov and Gimelshein 2018, Dao et al. 2022, without the running maximum: no part waits for another.) A part whose
terms are all -inf has the least number as its maximum: its exponentials are 0, where -inf minus itself is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from poly.affine import Affine, var
from poly.expr import COMBINERS, Apply, Const, Expr, Read, with_indices
from poly.machine import Machine
from poly.program import Access, OptionalTerms, Program, Statement, Tensor, unused_name
from poly.scheduling.cpu_core import core_of
from poly.scheduling.groups import tensors_written
from poly.scheduling.row_blocks import HELD, KEPT, LEAST_SAVED, MOST_ROWS
from poly.scheduling.sums import over_box, ranges_of, with_statements
from poly.scheduling.weighted_sums import (
    Operand,
    WeightedSum,
    elements_of_term,
    iterators_of,
    rows_of,
    weighted_sums,
)

LEAST_ROWS = 512  # that read each operand, of which there is a copy in parts
LEAST_PART = 256  # terms: each part leaves an element of the result for as many products
_BYTES = 4
_LEAST = Const(float(-np.finfo(np.float32).max), "f32")
_PRODUCT = Apply("mul", (Read(0), Read(1)))


def with_weights_in_parts(program: Program, machine: Machine) -> Program:
    """The program with such sums in parts, where operands of all terms do not stay in a core's own caches."""
    return _edited(program, lambda found: _best_part(program, found, machine)) if machine.kind == "cpu" else program


def weights_like(program: Program, other: Program) -> Program:
    """What `with_weights_in_parts` gives where it chooses as for another program, on any machine."""

    def part(found: WeightedSum) -> int:
        name = found.maximum.update.write.tensor
        made = other.tensor.get(name)
        if made is None or made.rank <= program.tensor[name].rank or not made.shape[0].is_constant:
            return 0
        return _terms(program, found) // made.shape[0].constant

    return _edited(program, part)


def _edited(program: Program, part_of: Callable[[WeightedSum], int]) -> Program:
    for found in weighted_sums(program):
        size = part_of(found)
        if size and _terms(program, found) % size == 0:
            program = _Parts(program, found, size).program()
    return program


def _terms(program: Program, found: WeightedSum) -> int:
    ranges = ranges_of(program, found.exponential)
    assert ranges is not None
    return ranges[iterators_of(found.exponential.write)[-1]]


def _best_part(program: Program, found: WeightedSum, machine: Machine) -> int:
    """Terms of a part: the most whose operands stay in a core's own caches beside a block of rows; 0 where those of all
    terms do, or come fast enough again for each block, or the last cache does not hold the results of all parts.
    """
    core, terms = core_of(machine, _BYTES), _terms(program, found)
    near = core.own[-1].capacity * KEPT
    size = _BYTES * sum(elements_of_term(program, o) for o in found.operands)
    if rows_of(program, found) < LEAST_ROWS or terms * size <= near:
        return 0
    behind = [c.rate for c in core.caches if terms * size > HELD * c.capacity]
    multiplied = MOST_ROWS * size / _BYTES / core.lanes / core.fma  # cycles a term of a block of rows
    if size / behind[-1] <= LEAST_SAVED * multiplied:
        return 0
    most = min(terms // 2, int(near // (size + _BYTES * MOST_ROWS)))
    part = max((n for n in range(LEAST_PART, most + 1) if terms % n == 0), default=0)
    result = program.tensor[found.result.update.write.tensor].nbytes(program.binding)
    return part if part and terms // part * result <= HELD * core.caches[-1].capacity else 0


class _Parts:
    """The statements of a sum in parts of so many terms. What is made for each part has these as its first axis."""

    def __init__(self, source: Program, found: WeightedSum, size: int) -> None:
        self.source, self.found, self.size = source, found, size
        self.count = _terms(source, found) // size
        self.part = unused_name({i for s in source.statements for i in s.iterators}, "part")
        made = [found.exponential, *found.makers]
        self.whole = {s.write.tensor for s in made}  # of rows and terms
        self.rows = {s.update.write.tensor for s in (found.maximum, found.total)}
        self.tensors: dict[str, Tensor] = {}
        for name in (*self.whole, *self.rows):
            tensor = source.tensor[name]
            last = (Affine.of(size),) if name in self.whole else tensor.shape[-1:]
            self.tensors[name] = replace(tensor, shape=(Affine.of(self.count), *tensor.shape[:-1], *last))
        self.copies: dict[tuple[str, int], tuple[str, int]] = {}

    def program(self) -> Program:
        found = self.found
        before: dict[str, list[Statement]] = {}
        for operand in found.operands:
            before.setdefault(self._place_of_copy(operand), []).append(self._copied(operand))
        changed = {s.name: self._in_parts(s) for s in (*found.maximum, *found.total, *found.makers)}
        base = self._base()
        changed[found.exponential.name] = self._in_parts(found.exponential, {1: base.write.tensor})
        before[found.exponential.name] = [base]
        last, together = self._put_together()
        changed[found.result.update.name] = last
        before.setdefault(found.result.start.name, []).extend(together)
        gone = {found.inverse.name, found.weights.name}
        left = replace(self.source, statements=tuple(s for s in self.source.statements if s.name not in gone))
        program = with_statements(left, changed, self.tensors, before)
        unused = {found.inverse.write.tensor, found.weights.write.tensor}
        return replace(program, tensors=tuple(t for t in program.tensors if t.name not in unused))

    # ---- statements of all parts

    def _ranges(self, s: Statement) -> dict[str, int]:
        found = ranges_of(self.source, s)
        assert found is not None
        return found

    def _in_parts(self, s: Statement, others: Mapping[int, str] | None = None) -> Statement:
        """A statement over all parts; `others`: tensors that it reads instead."""
        ranges = self._ranges(s)
        key = next((iterators_of(a)[-1] for a in (s.write, *s.reads) if a.tensor in self.whole), "")
        extents = {self.part: self.count} | {i: self.size if i == key else n for i, n in ranges.items()}
        at = {key: var(key) + self.size * var(self.part)}
        reads = [self._access(a, self.copies.get((s.name, k)), key) for k, a in enumerate(s.reads)]
        reads = [replace(r, tensor=others[k]) if others and k in others else r for k, r in enumerate(reads)]
        made = over_box(self.source, s, s.name, extents, self._access(s.write, None, key), tuple(reads))
        left_out = tuple(c.substitute(at) for c in s.spare)
        optional = OptionalTerms(made.iterators, made.domain, left_out) if left_out else None
        return replace(made, body=with_indices(s.body, at), optional=optional)

    def _access(self, a: Access, copy: tuple[str, int] | None, key: str) -> Access:
        if copy is not None:
            name, axis = copy
            return Access(name, (*a.index[:axis], var(self.part), var(key), *a.index[axis + 1 :]))
        return replace(a, index=(var(self.part), *a.index)) if a.tensor in self.whole | self.rows else a

    def _place_of_copy(self, operand: Operand) -> str:
        """The statement before which an operand is copied: the first of all where the operand is there by then."""
        first = min(self.found.makers, key=lambda s: s.path[:1])
        late = (s for s in self.source.statements if operand.read.tensor in tensors_written(s))
        return self.found.result.start.name if any(s.path[:1] > first.path[:1] for s in late) else first.name

    def _copied(self, operand: Operand) -> Statement:
        """An operand with its terms in parts."""
        read, axis = operand.read, operand.axis
        tensor = self.source.tensor[read.tensor]
        name = self._name(f"{tensor.name}_parts")
        lengths = [n.substitute(self.source.binding).constant for n in tensor.shape]
        split = [*lengths[:axis], self.count, self.size, *lengths[axis + 1 :]]
        self.tensors[name] = Tensor(name, tuple(map(Affine.of, split)), tensor.dtype)
        self.copies[operand.statement.name, operand.position] = name, axis
        names = [f"x{k}" for k in range(len(split))]
        whole = var(names[axis]) * self.size + var(names[axis + 1])
        index = (*map(var, names[:axis]), whole, *map(var, names[axis + 2 :]))
        extents = dict(zip(names, split, strict=True))
        return self._new(extents, Access(name, tuple(map(var, names))), [Access(tensor.name, index)], Read(0))

    def _base(self) -> Statement:
        """What exponentials are of the difference to."""
        s = self.found.maximum.start
        name = self._name(f"{s.write.tensor}_base")
        self.tensors[name] = replace(self.tensors[s.write.tensor], name=name)
        maximum = self._access(s.write, None, "")
        body = Apply("max", (Read(0), _LEAST))
        extents = {self.part: self.count} | self._ranges(s)
        return self._new(extents, replace(maximum, tensor=name), [maximum], body)

    # ---- one of all parts

    def _put_together(self) -> tuple[Statement, list[Statement]]:
        """The last statement of the result, and those before it."""
        found, update, every = self.found, self.found.result.update, var(self.part)
        row = iterators_of(self._weights())[:-1]
        ranges = self._ranges(update)
        extents = {i: ranges[i] for i in row}
        each = {self.part: self.count} | extents
        top, total, inverse = (self._of_rows(n, row, each=False) for n in ("top", "total", "inverse"))
        ratio, share = (self._of_rows(n, row, each=True) for n in ("ratio", "share"))
        maximum, amount = (
            Access(s.update.write.tensor, (every, *map(var, row))) for s in (found.maximum, found.total)
        )
        part, made = self._result_of_parts()
        made += self._reduced("max", extents, top, [maximum], Read(0))
        made.append(self._new(each, ratio, [maximum, top], Apply("exp", (Apply("sub", (Read(0), Read(1))),))))
        made += self._reduced("+", extents, total, [ratio, amount], _PRODUCT)
        made.append(self._new(extents, inverse, [total], found.inverse.body))
        made.append(self._new(each, share, [ratio, inverse], _PRODUCT))
        own = {i: n for i, n in ranges.items() if i in iterators_of(update.write)} | {self.part: self.count}
        last = over_box(self.source, update, update.name, own, update.write, (share, part))
        return replace(last, body=_PRODUCT, optional=None), made

    def _weights(self) -> Access:
        """The read of the weights by the products of the result."""
        return self.found.result.update.reads[1 - self.found.operands[0].position]

    def _of_rows(self, end: str, row: Sequence[str], *, each: bool) -> Access:
        """A new tensor with an element for each row, or for each part of one."""
        name = self._name(f"{self.found.result.update.write.tensor}_{end}")
        shape = self.tensors[self.found.maximum.update.write.tensor].shape
        self.tensors[name] = Tensor(name, shape if each else shape[1:], "f32")
        return Access(name, ((var(self.part),) if each else ()) + tuple(map(var, row)))

    def _result_of_parts(self) -> tuple[Access, list[Statement]]:
        """The result of each part, which is not divided by the sum of its weights, as the last statement reads it."""
        start, update = self.found.result
        target = self.source.tensor[update.write.tensor]
        name = self._name(f"{target.name}_part")
        self.tensors[name] = Tensor(name, (Affine.of(self.count), *target.shape), target.dtype)
        first, written = (Access(name, (var(self.part), *s.write.index)) for s in (start, update))
        extents = {self.part: self.count} | self._ranges(start)
        begun = over_box(self.source, start, f"{name}_start", extents, first, ())
        self.whole.add(self._weights().tensor)  # the exponentials take their place
        place = 1 - self.found.operands[0].position
        made = self._in_parts(update, {place: self.found.exponential.write.tensor})
        made = replace(made, name=f"{name}_made", domain=made.domain.set_tuple_name(f"{name}_made"), write=written)
        optional = made.optional and replace(made.optional, domain=made.domain)
        return written, [begun, replace(made, optional=optional)]

    def _reduced(
        self, symbol: str, extents: Mapping[str, int], write: Access, reads: Sequence[Access], body: Expr
    ) -> Sequence[Statement]:  # fmt: skip
        combiner = COMBINERS[symbol]
        start = self._new(extents, write, (), combiner.identity("f32"), "start")
        update = self._new({**extents, self.part: self.count}, write, reads, body)
        return start, replace(update, combiner=combiner)

    def _new(
        self, extents: Mapping[str, int], write: Access, reads: Sequence[Access], body: Expr, end: str = "made"
    ) -> Statement:  # fmt: skip
        like, name = replace(self.found.exponential, optional=None), f"{write.tensor}_{end}"
        return replace(over_box(self.source, like, name, extents, write, tuple(reads)), body=body)

    def _name(self, wanted: str) -> str:
        taken = {*self.source.tensor, *self.source.statement, *self.tensors}
        return unused_name(taken, wanted, "_made", "_start")
