"""The columns of a contraction as one axis, with copies of what has them elsewhere: an edit of the whole program.

Columns are the loops that one operand and the result have, and no other operand. Where they lie next to one another in
both, nothing is copied (`poly.scheduling.joined_axes`). Else the operand is copied to a temporary that has them last,
as one axis, and the product goes to another temporary, copied out afterwards, where they are not last in the result:
`C[a,b,c,d] += A[a,e,c,f] * B[b,f,d,e]` with columns b, d becomes `L[f,e,20*b+d] = B[b,f,d,e]`, `S[a,c,j] += A[a,e,c,f]
* L[f,e,j]`, `C[a,b,c,d] = S[a,c,20*b+d]` (transpose-transpose-GEMM-transpose of Springer and Bientinesi, TOMS 2018,
which moves only what the lanes walk). Copies are bijections of elements, and so is the joined loop of iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from poly.affine import Affine, var
from poly.expr import IndexValue, Read, walk
from poly.program import Access, Program, Statement, Tensor, box_domain, default_path, unused_name
from poly.scheduling.groups import bare, domain_box
from poly.scheduling.joined_axes import with_sizes


@dataclass(frozen=True)
class Columns:
    """Of the reduction of a program of known sizes: the position of the operand that has columns, and these in the
    order in which they are joined. `ranges`: the extents of the reduction's loops.
    """

    program: Program
    update: Statement
    ranges: Mapping[str, int]
    read: int
    names: tuple[str, ...]

    def joined(self) -> Program:
        """The program with the columns as one loop."""
        laid, operand, before = self._operand()
        target, product, after = self._result()
        s, j = self.update, self.names[0]
        kept = [i for i in s.iterators if i not in self.names]
        inner = [i for i in kept if i not in _names(s.write)]
        iterators = (*(i for i in kept if i not in inner), j, *inner)
        extents = {**self.ranges, j: self._extent}
        reads = tuple(laid if k == self.read else r for k, r in enumerate(s.reads))
        domain = whole_box(s.name, iterators, extents)
        update = replace(s, iterators=iterators, domain=domain, write=product, reads=reads)
        cleared = [self._cleared(x, product, extents) for x in self.program.statements[:-1]]
        statements = [*before, *cleared, update, *after]
        tensors = {t.name: t for t in (*self.program.tensors, operand, target)}
        placed = tuple(replace(x, path=default_path(k, x.iterators)) for k, x in enumerate(statements))
        return replace(self.program, tensors=tuple(tensors.values()), statements=placed)

    @property
    def _extent(self) -> int:
        return prod(self.ranges[n] for n in self.names)

    @property
    def _place(self) -> Affine:
        """The joined loop's iteration, of the columns' iterations."""
        total = Affine((), 0)
        for name in self.names:
            total = total * self.ranges[name] + var(name)
        return total

    def _operand(self) -> tuple[Access, Tensor, list[Statement]]:
        """The operand with its columns as one axis: how it is read, the tensor, and the copy where there is one."""
        read = self.update.reads[self.read]
        tensor, once = self.program.tensor[read.tensor], _tensors(self.update.reads).count(read.tensor) == 1
        if once and self._last_in(read):
            return self._without(read), self._reshaped(tensor), []
        order = [i for i in self.update.iterators if i in _names(read) and i not in self.names]
        order.sort(key=lambda i: i not in _names(self.update.write))
        return self._moved(tensor, order, read, f"{tensor.name}_columns", inward=True)

    def _result(self) -> tuple[Tensor, Access, list[Statement]]:
        """The result with its columns as one axis: the tensor, how it is written, and the copy where there is one."""
        write = self.update.write
        tensor = self.program.tensor[write.tensor]
        if self._last_in(write):
            return self._reshaped(tensor), self._without(write), []
        order = [str(i) for i in write.affine_index if str(i) not in self.names]
        access, new, copies = self._moved(tensor, order, write, f"{tensor.name}_columns", inward=False)
        return new, access, copies

    def _moved(
        self, tensor: Tensor, order: Sequence[str], outer: Access, name: str, inward: bool
    ) -> tuple[Access, Tensor, list[Statement]]:
        """A temporary with the columns last, and the copy between it and a tensor."""
        name = unused_name({*self.program.tensor, *self.program.statement}, name, "_copy")
        shape = [*(self.ranges[n] for n in order), self._extent]
        new = Tensor(name, tuple(map(Affine.of, shape)), tensor.dtype)
        iterators = (*order, *self.names) if inward else tuple(map(str, outer.affine_index))
        inner = Access(name, (*map(var, order), self._place))
        write, read = (inner, outer) if inward else (outer, inner)
        domain = whole_box(f"{name}_copy", iterators, self.ranges)
        copy = Statement(f"{name}_copy", iterators, domain, write, (read,), Read(0))
        return Access(name, (*map(var, order), var(self.names[0]))), new, [copy]

    def _last_in(self, access: Access) -> bool:
        return access.affine_index[-len(self.names) :] == tuple(map(var, self.names))

    def _without(self, access: Access) -> Access:
        return replace(access, index=(*access.index[: -len(self.names)], var(self.names[0])))

    def _reshaped(self, tensor: Tensor) -> Tensor:
        return replace(tensor, shape=(*tensor.shape[: -len(self.names)], Affine.of(self._extent)))

    def _cleared(self, s: Statement, product: Access, extents: Mapping[str, int]) -> Statement:
        """What sets the result to a value, for the joined one."""
        iterators = tuple(map(str, product.affine_index))
        return replace(s, iterators=iterators, domain=whole_box(s.name, iterators, extents), write=product)


def plain_contraction(program: Program) -> tuple[Program, Statement, dict[str, int]] | None:
    """A program that is one reduction, with what clears its result, of whole tensors: with its sizes put in, the
    reduction, and the extents of its loops; None for others.
    """
    literal = with_sizes(program)
    update = literal.statements[-1] if literal is not None and 0 < len(literal.statements) < 3 else None
    box = domain_box(literal, update, update.iterators) if literal is not None and update is not None else None
    if literal is None or update is None or box is None or any(low for low, _ in box):
        return None
    ranges = {i: high + 1 for i, (_, high) in zip(update.iterators, box, strict=True)}
    return (literal, update, ranges) if _is_plain(literal, update, ranges) else None


def columns_of(program: Program) -> Iterator[Columns]:
    """The ways to join columns in a program that is one reduction, with what clears its result; none in others."""
    found = plain_contraction(program)
    if found is None:
        return
    literal, update, ranges = found
    written = [str(i) for i in update.write.affine_index]
    for k, read in enumerate(update.reads):
        others = (_names(r) for n, r in enumerate(update.reads) if n != k)
        own = _names(read).intersection(written).difference(*others)
        if len(own) < 2:
            continue
        as_read = tuple(n for n in map(str, read.affine_index) if n in own)
        orders = [tuple(n for n in written if n in own), as_read]
        if read.affine_index[-len(own) :] != tuple(map(var, as_read)) or orders[0] == as_read:
            orders.pop()  # it spares no copy
        for order in orders:
            if len(literal.statements) == 2 or tuple(written[-len(order) :]) == order:
                yield Columns(literal, update, ranges, k, order)


def _is_plain(program: Program, update: Statement, ranges: Mapping[str, int]) -> bool:
    """Whether all subscripts are iterators that run over whole axes, and nothing but a constant clears the result."""
    if update.combiner is None or len(update.reads) < 2 or any(isinstance(e, IndexValue) for e in walk(update.body)):
        return False
    if any(t.layout is not None or t.scope for t in program.tensors) or update.write.tensor in _tensors(update.reads):
        return False
    for access in (update.write, *update.reads):
        if access.guard or access.indirect:
            return False
        names = [bare(i) for i in access.affine_index]
        shape = program.tensor[access.tensor].extents({})
        if len({*names}) < len(names) or [ranges.get(n or "") for n in names] != [*shape]:
            return False
    if any(s.path != default_path(k, s.iterators) for k, s in enumerate(program.statements)):
        return False
    return all(
        s.combiner is None and not s.reads and s.external is None and s.write.tensor == update.write.tensor
        and not any(isinstance(e, IndexValue) for e in walk(s.body))
        and sorted(s.iterators) == sorted(names := [str(i) for i in s.write.affine_index])
        and domain_box(program, s, names) == tuple((0, ranges[str(i)] - 1) for i in update.write.affine_index)
        for s in program.statements[:-1]
    )  # fmt: skip


def _tensors(reads: Sequence[Access]) -> list[str]:
    return [r.tensor for r in reads]


def _names(access: Access) -> frozenset[str]:
    return frozenset(n for i in access.affine_index for n in i.names)


def whole_box(name: str, iterators: Sequence[str], extents: Mapping[str, int]) -> isl.Set:
    """The domain of a statement whose loops run from 0 over all of their extents."""
    return box_domain(name, [(i, 0, extents[i]) for i in iterators])
