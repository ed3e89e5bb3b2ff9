"""Elements of an operand that a contraction reads apart from one another, copied together: an edit of the program.

`Y[m,h,w] += X[c,2*h,2*w] * W[m,c]` reads a quarter of X, for each step of the sum in other pages, and all register
tiles meet the same few sets of the first cache. As `K[h,c,w] = X[c,2*h,2*w]`, `Y[m,h,w] += K[h,c,w] * W[m,c]` these
elements lie together as a row of the result needs them: what is contiguous stays so, loops of the sum go next to it.
Each loop is in one subscript at most, so that no element is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from poly.affine import Affine, Var, var
from poly.expr import Read
from poly.program import Access, Program, Statement, Tensor, default_path, unused_name
from poly.scheduling.groups import domain_box
from poly.scheduling.joined_axes import with_sizes
from poly.scheduling.joined_columns import whole_box

FEW = 2  # elements of a tensor for each that is read


def dense_operands(program: Program) -> Iterator[Program]:
    """One program for each operand that has such elements, of the only reduction of a program, over a box."""
    sums = [s for s in program.statements if s.combiner is not None]
    literal = with_sizes(program) if len(sums) == 1 and _has_steps(sums[0]) else None
    update = literal.statement[sums[0].name] if literal is not None else None
    box = domain_box(literal, update, update.iterators) if literal is not None and update is not None else None
    if literal is None or update is None or box is None or any(low for low, _ in box):
        return
    if any(s.path != default_path(k, s.iterators) for k, s in enumerate(literal.statements)):
        return
    ranges = {i: high + 1 for i, (_, high) in zip(update.iterators, box, strict=True)}
    for k, read in enumerate(update.reads):
        once = [a.tensor for a, _ in update.accesses].count(read.tensor) == 1
        names = _apart(literal.tensor[read.tensor], read, ranges) if once else ()
        if names:
            written = {n for i in update.write.affine_index for n in i.names}
            order = (*sorted(names[:-1], key=lambda n: n not in written), names[-1])
            yield _dense(literal, update, k, order, ranges)


def _has_steps(update: Statement) -> bool:
    """Whether a subscript may leave elements out."""
    affine = (i for r in update.reads if not r.indirect for i in r.affine_index)
    return any(abs(c) > 1 for i in affine for _, c in i.terms)


def _apart(tensor: Tensor, read: Access, ranges: Mapping[str, int]) -> tuple[str, ...]:
    """The loops of the subscripts, one for each that has any, where elements of an input lie apart; else nothing."""
    if tensor.role != "input" or tensor.layout is not None or read.guard or read.indirect:
        return ()
    terms = [e.terms for e in read.affine_index]
    found = [(a.name, c) for t in terms if len(t) == 1 for a, c in t if isinstance(a, Var) and a.name in ranges]
    names = tuple(n for n, _ in found)
    if any(len(t) > 1 for t in terms) or len(found) < sum(map(len, terms)) or len({*names}) < len(names):
        return ()
    few = FEW * prod(ranges[n] for n in names) <= prod(tensor.extents({}))
    return names if few and all(c > 0 for _, c in found) and any(c > 1 for _, c in found) else ()


def _dense(
    program: Program, update: Statement, k: int, names: tuple[str, ...], ranges: Mapping[str, int]
) -> Program:
    """The program with a copy of what one operand's elements are, along the loops that they are read by."""
    read = update.reads[k]
    name = unused_name({*program.tensor, *program.statement}, f"{read.tensor}_dense", "_copy")
    dense = Access(name, tuple(map(var, names)))
    copy = Statement(f"{name}_copy", names, whole_box(f"{name}_copy", names, ranges), dense, (read,), Read(0))
    product = replace(update, reads=tuple(dense if n == k else r for n, r in enumerate(update.reads)))
    tensor = Tensor(name, tuple(Affine.of(ranges[n]) for n in names), program.tensor[read.tensor].dtype)
    statements = (copy, *(product if s.name == update.name else s for s in program.statements))
    placed = tuple(replace(s, path=default_path(k, s.iterators)) for k, s in enumerate(statements))
    return replace(program, tensors=(*program.tensors, tensor), statements=placed)
