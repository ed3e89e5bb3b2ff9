"""The result of a contraction as its operands lie, copied out into the order that is asked for: an edit of the program.

`C[a,c,x] += A[x,e,a] * B[e,c]` stores neither a row of A's loops nor one of B's side by side. As `S[x,a,c] += A[x,e,a]
* B[e,c]`, `C[a,c,x] = S[x,a,c]` the product has rows of A and columns of B, and a permutation is left, which has a
policy of its own (transpose-transpose-GEMM-transpose, Springer and Bientinesi, TOMS 2018, of the result alone). The
copy is a bijection of elements; sums keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from poly.affine import Affine, var
from poly.expr import Read
from poly.program import Access, Program, Statement, Tensor, default_path, unused_name
from poly.scheduling.joined_columns import plain_contraction, whole_box


def laid_results(program: Program) -> Iterator[Program]:
    """One program for each operand that can have the last loops of the result; none if the result lies so already."""
    found = plain_contraction(program)
    if found is None or len(found[0].statements) < 2:
        return
    literal, update, ranges = found
    written = tuple(map(str, update.write.affine_index))
    orders = {_order(update, k, written) for k in range(len(update.reads))}
    repeated = {*written}.difference(*orders)  # loops of no operand: in none of these orders
    if written not in orders and not repeated and all(ranges.values()):
        for order in sorted(orders):
            yield _laid(literal, update, order, ranges)


def _order(update: Statement, last: int, written: Sequence[str]) -> tuple[str, ...]:
    """The result's loops: of the other operands first, each as in its operand."""
    reads = [r for k, r in enumerate(update.reads) if k != last] + [update.reads[last]]
    names = (str(i) for r in reads for i in r.affine_index)
    return tuple(dict.fromkeys(n for n in names if n in written))


def _laid(program: Program, update: Statement, order: Sequence[str], extents: Mapping[str, int]) -> Program:
    target, clear = program.tensor[update.write.tensor], program.statements[0]
    name = unused_name({*program.tensor, *program.statement}, f"{target.name}_laid", "_copy")
    laid = Access(name, tuple(map(var, order)))
    statements = (
        _over(replace(clear, write=laid), order, extents),
        _over(replace(update, write=laid), (*order, *(i for i in update.iterators if i not in order)), extents),
        _over(
            replace(clear, name=f"{name}_copy", reads=(laid,), write=update.write, body=Read(0)),
            tuple(map(str, update.write.affine_index)), extents,
        ),
    )  # fmt: skip
    placed = tuple(replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(statements))
    tensor = Tensor(name, tuple(Affine.of(extents[i]) for i in order), target.dtype)
    return replace(program, tensors=(*program.tensors, tensor), statements=placed)


def _over(s: Statement, iterators: Sequence[str], extents: Mapping[str, int]) -> Statement:
    return replace(s, iterators=tuple(iterators), domain=whole_box(s.name, iterators, extents))
