"""The rows of a contraction with few columns and these as one axis: an edit of the whole program.

`C[b,i,k] += A[b,i,j] * B[b,j,k]` with 8 columns becomes `C[b,l] += A[b,l//8,j] * B[b,j,l%8]`: vectors of 16 lanes hold
two rows of the result, which lie side by side. Of an operand that has columns alone a row serves all rows in a vector;
of one that has rows alone each element does all columns. Steps of the sum are eight at a time, so that a schedule can
lay them out, and what is loaded of the rows serves them all. A bijection of iterations; sums keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poly.affine import Affine, var
from poly.program import Access, Program, Statement, box_domain, default_path
from poly.scheduling.groups import bare
from poly.scheduling.joined_columns import plain_contraction

STEPS = 8  # of a sum, laid out


@dataclass(frozen=True)
class Rows:
    """The reduction of a program of known sizes, its loops along the result's last two axes and along the sum's last
    one, and the extents of all.
    """

    program: Program
    update: Statement
    ranges: Mapping[str, int]
    row: str
    column: str
    step: str

    @property
    def columns(self) -> int:
        return self.ranges[self.column]

    def joined(self) -> Program:
        """The program with rows and columns as one loop."""
        target = self.program.tensor[self.update.write.tensor]
        length = Affine.of(self.ranges[self.row] * self.columns)
        target = replace(target, shape=(*target.shape[:-2], length))
        tensors = tuple(target if t.name == target.name else t for t in self.program.tensors)
        statements = (*(self._cleared(s) for s in self.program.statements[:-1]), self._summed())
        placed = tuple(replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(statements))
        return replace(self.program, tensors=tensors, statements=placed)

    def _summed(self) -> Statement:
        s, n = self.update, self.columns
        extents = {**self.ranges, self.row: self.ranges[self.row] * n}
        iterators = [i for i in s.iterators if i != self.column]
        moved = {self.row: var(self.row) // n, self.column: var(self.row) % n}
        if extents[self.step] > STEPS:
            inner = self._free(f"{self.step}_", extents)
            extents |= {self.step: extents[self.step] // STEPS, inner: STEPS}
            iterators.insert(iterators.index(self.step) + 1, inner)
            moved[self.step] = STEPS * var(self.step) + var(inner)
        reads = tuple(replace(r, index=tuple(i.substitute(moved) for i in r.affine_index)) for r in s.reads)
        domain = box_domain(s.name, [(i, 0, extents[i]) for i in iterators])
        return replace(s, iterators=tuple(iterators), domain=domain, write=self._written(s.write), reads=reads)

    def _cleared(self, s: Statement) -> Statement:
        """What sets the result to a value, for the joined one."""
        row, column = s.iterators[-2:]
        assert s.write.affine_index[-2:] == (var(row), var(column))
        iterators = s.iterators[:-1]
        extents = [self.ranges[str(i)] for i in self.update.write.affine_index[:-1]]
        extents[-1] *= self.columns
        domain = box_domain(s.name, [(i, 0, e) for i, e in zip(iterators, extents, strict=True)])
        return replace(s, iterators=iterators, domain=domain, write=self._written(s.write))

    def _written(self, write: Access) -> Access:
        return replace(write, index=write.index[:-1])

    @staticmethod
    def _free(name: str, taken: Mapping[str, int]) -> str:
        while name in taken:
            name += "_"
        return name


def rows_of(program: Program) -> Rows | None:
    """The rows and columns of a program that is one reduction of two operands, with what clears its result; None where
    one has both, or columns that do not lie side by side, or the sum's steps are no whole pieces.
    """
    found = plain_contraction(program)
    if found is None or len(found[1].reads) != 2:
        return None
    literal, update, ranges = found
    written = [str(i) for i in update.write.affine_index]
    steps = [i for i in update.iterators if i not in written]
    if len(written) < 2 or not steps or (ranges[steps[-1]] > STEPS and ranges[steps[-1]] % STEPS):
        return None
    rows = Rows(literal, update, ranges, written[-2], written[-1], steps[-1])
    return rows if all(_suits(r, rows) for r in update.reads) else None


def _suits(read: Access, rows: Rows) -> bool:
    """Whether lanes along rows and columns read whole pieces of rows: of one row of columns, or of several rows along
    the sum or along the lanes.
    """
    names = [bare(i) for i in read.affine_index]
    if rows.column in names:
        return names[-1] == rows.column and rows.row not in names
    whole = names[-1:] == [rows.step] and rows.ranges[rows.step] % rows.columns == 0
    return whole or rows.row not in names[:-1]
