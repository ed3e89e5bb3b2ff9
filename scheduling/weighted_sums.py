"""Sums of products with exponentials over their sum as weights: how statements that make them hang together.

    m[i] max= t[i, k];  e[i, k] = exp(t[i, k] - m[i]);  s[i] += e[i, k]
    r[i] = 1/s[i];  w[i, k] = e[i, k]*r[i];  y[i, d] += w[i, k]*v[k, d]

All are f32, over boxes from 0 on, each a nest of its own, and what is between is used for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from poly.affine import Affine
from poly.expr import Apply, Const, Read
from poly.program import Access, Program, Statement
from poly.scheduling.contraction import names_of
from poly.scheduling.groups import bare, tensors_read, tensors_written
from poly.scheduling.sums import alone, ranges_of, start_of


class Sum(NamedTuple):
    """A reduction: what starts it, and its updates."""

    start: Statement
    update: Statement


class Operand(NamedTuple):
    """A read of what is the same for all rows, or for many: of which statement, and which axis the terms are along."""

    statement: Statement
    position: int
    axis: int

    @property
    def read(self) -> Access:
        return self.statement.reads[self.position]


@dataclass(frozen=True)
class WeightedSum:
    """`makers`: what makes the scores `t` from others of their form, over rows and terms. `operands`: what these and
    the result read along the terms, that of the result first.
    """

    maximum: Sum
    exponential: Statement
    total: Sum
    inverse: Statement
    weights: Statement
    result: Sum
    makers: tuple[Statement, ...]
    operands: tuple[Operand, ...]

    @property
    def scores(self) -> str:
        return self.maximum.update.reads[0].tensor


def weighted_sums(program: Program) -> Iterator[WeightedSum]:
    """All such sums of a program."""
    if not any(s.body == _EXPONENTIAL for s in program.statements):
        return
    finder = _Finder(program)
    for s in program.statements:
        if s.combiner is not None and (found := finder.found(s)) is not None:
            yield found


def iterators_of(access: Access) -> tuple[str, ...]:
    """The iterators that the subscripts are; () where some is anything else, or two are the same."""
    names = [bare(i) if isinstance(i, Affine) else None for i in access.index]
    found = tuple(n for n in names if n is not None)
    return found if len(set(found)) == len(names) else ()


def rows_of(program: Program, found: WeightedSum) -> int:
    """How many rows read the same values."""
    ranges, value = ranges_of(program, found.result.update) or {}, found.operands[0]
    weights = next(r for r in value.statement.reads if r is not value.read)
    return prod(ranges[i] for i in iterators_of(weights)[:-1] if i not in names_of(value.read))


def elements_of_term(program: Program, operand: Operand) -> int:
    """How many elements of an operand belong to one term, of one batch of rows."""
    s, read = operand.statement, operand.read
    ranges, key = ranges_of(program, s) or {}, bare(read.affine_index[operand.axis])
    whole = next((iterators_of(a) for a in (s.write, *s.reads) if iterators_of(a)[-1:] == (key,)), ())
    return prod(ranges[i] for i in names_of(read) - {*whole})


class _Finder:
    """Who writes and reads each tensor of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.writers: dict[str, list[Statement]] = {}
        self.readers: dict[str, set[str]] = {}
        for s in program.statements:
            for t in tensors_written(s):
                self.writers.setdefault(t, []).append(s)
            for t in {*tensors_read(s)} - {*tensors_written(s)}:
                self.readers.setdefault(t, set()).add(s.name)

    def found(self, update: Statement) -> WeightedSum | None:
        """The sum whose products a statement adds up."""
        if update.body not in (_PRODUCT, _TURNED) or len(update.reads) != 2:
            return None
        result = self._sum(update.write.tensor, "+", whole=False)
        for k in (0, 1) if result is not None else ():
            weights = self._made(update.reads[k].tensor, update)
            match None if weights is None else weights.body:
                case Apply("mul", (Read(a), Read(b))) if weights is not None and result is not None:
                    found = self._weighted(result, k, weights, a, b) or self._weighted(result, k, weights, b, a)
                case _:
                    found = None
            if found is not None:
                return found
        return None

    def _weighted(self, result: Sum, place: int, weights: Statement, e: int, r: int) -> WeightedSum | None:
        """`place`: of the weights in the product; `e`, `r`: of the exponentials and the inverse of their sum."""
        exponential = self._exponentials(weights.reads[e].tensor)
        inverse = self._made(weights.reads[r].tensor, weights)
        if exponential is None or inverse is None or not _is_inverse(inverse):
            return None
        total = self._sum(inverse.reads[0].tensor, "+", inverse)
        maximum = self._sum(exponential.reads[1].tensor, "max", exponential)
        if total is None or maximum is None or total.update.reads[0].tensor != exponential.write.tensor:
            return None
        scores = exponential.reads[0].tensor
        used = {exponential.write.tensor: {total.update.name, weights.name}}
        used[scores] = {maximum.update.name, exponential.name}
        if maximum.update.reads[0].tensor != scores or any(self.readers[t] != users for t, users in used.items()):
            return None
        along = [_rows_first(weights, weights.reads[e], weights.reads[r])]
        along += [_rows_first(exponential, exponential.reads[0], exponential.reads[1])]
        along += [_rows_first(s, s.reads[0], s.write) for s in (total.update, maximum.update)]
        value = self._value(result.update, place)
        if not all(along) or value is None:
            return None
        axes = enumerate(iterators_of(result.update.reads[place])[:-1])
        makers = self._makers(scores, [k for k, i in axes if i not in names_of(value.read)])
        if makers is None:
            return None
        statements, operands = makers
        found, made = (value, *operands), {s.write.tensor for s in statements}
        elsewhere = (r for s in statements for r in s.reads if iterators_of(r) != iterators_of(s.write))
        if not made.isdisjoint(r.tensor for r in (*elsewhere, *(o.read for o in found))):
            return None
        return WeightedSum(maximum, exponential, total, inverse, weights, result, statements, found)

    def _exponentials(self, tensor: str) -> Statement | None:
        s = self._made(tensor)
        return s if s is not None and s.body == _EXPONENTIAL and len(s.reads) == 2 else None

    def _made(self, tensor: str, reader: Statement | None = None) -> Statement | None:
        """The assignment that alone writes a temporary, which only `reader` reads."""
        writers = self.writers.get(tensor, [])
        if len(writers) != 1 or writers[0].combiner is not None or not self._plain(writers[0]):
            return None
        return writers[0] if reader is None or self.readers[tensor] == {reader.name} else None

    def _sum(self, tensor: str, symbol: str, reader: Statement | None = None, *, whole: bool = True) -> Sum | None:
        """The reduction that alone writes a tensor; `whole`: a temporary that adds elements up as they are."""
        update = next((s for s in self.writers.get(tensor, []) if s.combiner is not None), None)
        start = start_of(self.program, update) if update is not None else None
        if update is None or start is None or update.combiner is None or update.combiner.symbol != symbol:
            return None
        identity = update.combiner.identity("f32").value
        plain = self._plain(update, whole) and self._plain(start, whole) and update.reorder
        if not plain or not isinstance(start.body, Const) or start.body.value != identity:
            return None
        if not whole:
            return Sum(start, update)
        one = update.body == Read(0) and len(update.reads) == 1
        return Sum(start, update) if one and (reader is None or self.readers[tensor] == {reader.name}) else None

    def _plain(self, s: Statement, temporary: bool = True) -> bool:
        tensors = [self.program.tensor[t] for t in s.tensors]
        if s.external is not None or not alone(s, self.program) or ranges_of(self.program, s) is None:
            return False
        if any(t.dtype != "f32" or t.layout is not None for t in tensors) or not iterators_of(s.write):
            return False
        role = self.program.tensor[s.write.tensor].role
        return role == "temporary" or not temporary and role == "output"

    def _value(self, update: Statement, place: int) -> Operand | None:
        """The other operand of the product, whose rows have all results."""
        whole, written = iterators_of(update.reads[place]), {*iterators_of(update.write)}
        if not whole or not {*whole[:-1]} <= written or whole[-1] in written:
            return None
        if {*whole[:-1]} <= names_of(update.reads[1 - place]):
            return None
        return self._operand(update, 1 - place, whole, ())

    def _makers(
        self, scores: str, rows: Sequence[int]
    ) -> tuple[tuple[Statement, ...], tuple[Operand, ...]] | None:
        """What makes the scores, and of what; `rows`: the axes of these that the values do not have."""
        made, operands, left = list[Statement](), list[Operand](), [scores]
        while left:
            for s in self.writers.get(left.pop(), []):
                whole = iterators_of(s.write)
                if not self._plain(s) or not whole:
                    return None
                made.append(s)
                for k, r in enumerate(s.reads):
                    if whole[-1] not in names_of(r):
                        continue
                    inner = iterators_of(r) == whole and self.readers[r.tensor] == {s.name}
                    if inner and self.program.tensor[r.tensor].role == "temporary":
                        left.append(r.tensor)
                    elif (operand := self._operand(s, k, whole, [whole[d] for d in rows])) is not None:
                        operands.append(operand)
                    else:
                        return None
        return (tuple(made), tuple(operands)) if made and operands else None

    def _operand(
        self, s: Statement, position: int, whole: Sequence[str], rows: Sequence[str]
    ) -> Operand | None:
        """A read that is the same for all rows, with the terms along one axis."""
        read = s.reads[position]
        axes = [k for k, i in enumerate(read.index) if isinstance(i, Affine) and whole[-1] in i.names]
        if read.guard or read.indirect or len(axes) != 1 or not names_of(read).isdisjoint(rows):
            return None
        return Operand(s, position, axes[0]) if self._is_whole(s, read) else None

    def _is_whole(self, s: Statement, read: Access) -> bool:
        """Whether a statement reads all of a tensor, by iterators alone."""
        ranges, tensor = ranges_of(self.program, s) or {}, self.program.tensor[read.tensor]
        lengths = [Affine.of(1 if e.is_constant else ranges.get(bare(e) or "", 0)) for e in read.affine_index]
        names = [bare(e) for e in read.affine_index if not e.is_constant]
        shape = [n.substitute(self.program.binding) for n in tensor.shape]
        return len({*names}) == len(names) and lengths == shape


_PRODUCT, _TURNED = Apply("mul", (Read(0), Read(1))), Apply("mul", (Read(1), Read(0)))
_EXPONENTIAL = Apply("exp", (Apply("sub", (Read(0), Read(1))),))


def _is_inverse(s: Statement) -> bool:
    match s.body:
        case Apply("div", (Const(value), Read(0))):
            return value == 1 and len(s.reads) == 1 and iterators_of(s.reads[0]) == iterators_of(s.write)
        case _:
            return False


def _rows_first(s: Statement, whole: Access, rows: Access) -> bool:
    """Whether elements of a row are along the last axis, and the others are the rows'."""
    names = iterators_of(whole)
    same = s.combiner is not None or iterators_of(s.write) == names
    return bool(names) and same and {*names} == {*s.iterators} and iterators_of(rows) == names[:-1]
