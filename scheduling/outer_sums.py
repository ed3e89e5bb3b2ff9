"""Sums over axes on both sides of others, the outer ones first: rows are then added along their length.

    y[j] += x[i, j, k]    ->    t[j, k] += x[i, j, k];  y[j] += t[j, k]

A tile of some j that adds up all i would jump from one i to the next, a short piece at a time. Only where nothing
weighs the elements, the reduction may change its order, and a first cache keeps the tensor between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.expr import Read
from poly.program import Access, Program, Statement, Tensor, unused_name
from poly.scheduling.contraction import names_of
from poly.scheduling.groups import bare, tensors_read, tensors_written
from poly.scheduling.sums import alone, number_of, over_box, ranges_of, start_of, with_statements

# Bytes, of caches and pages as nearly all cores have them: a program has the same sums on each.
KEPT = 24 << 10  # of the tensor between, beside the rows that are read
PIECE = 1 << 10  # that lies side by side: a tile of four walks whole pages
MANY = 64  # rows that are added up: the tensor between is written and read once


def with_outer_sums_first(program: Program) -> Program:
    """The program whose sums over outer and inner axes add the outer ones up first, where that pays."""
    for s in program.statements:
        made = _outer_first(program, s)
        program = program if made is None else made
    return program


def _outer_first(program: Program, s: Statement) -> Program | None:
    order = _order(program, s)
    ranges, start = (ranges_of(program, s), start_of(program, s)) if order else (None, None)
    if ranges is None or start is None or not _is_whole(program, s, [ranges[i] for i in order]):
        return None
    written = names_of(s.write)
    outer = list(takewhile(lambda i: i not in written, order))
    inner = list(takewhile(lambda i: i not in written, reversed(order)))
    if not outer or not inner or len(outer) == len(order) or prod(ranges[i] for i in outer) < MANY:
        return None
    rest, size = order[len(outer) :], size_bytes(program.tensor[s.write.tensor].dtype)
    piece, row = (size * prod(ranges[i] for i in loops) for loops in (inner, rest))
    return _with_rows(program, s, start, ranges, outer, rest) if piece < PIECE and row <= KEPT else None


def _order(program: Program, s: Statement) -> list[str]:
    """The iterators as the only operand is walked; [] where there is more to a statement than its sum, or another one
    touches the operand.
    """
    plain = s.combiner is not None and s.reorder and s.external is None and s.body == Read(0) and len(s.reads) == 1
    if not plain or not alone(s, program) or s.write.indirect or s.reads[0].indirect or s.reads[0].guard:
        return []
    (read,) = s.reads
    others = {t for o in program.statements if o is not s for t in (*tensors_read(o), *tensors_written(o))}
    if read.tensor in others or program.tensor[read.tensor].layout is not None:
        return []
    if program.tensor[read.tensor].dtype != program.tensor[s.write.tensor].dtype:
        return []
    walked = [i for e in read.affine_index if (i := bare(e)) is not None]
    return walked if len(walked) == len(read.index) and sorted(walked) == sorted(s.iterators) else []


def _is_whole(program: Program, s: Statement, extents: Sequence[int]) -> bool:
    shape = (e.substitute(program.binding) for e in program.tensor[s.reads[0].tensor].shape)
    return [*map(Affine.of, extents)] == [*shape]


def _with_rows(
    program: Program, s: Statement, start: Statement, ranges: Mapping[str, int], outer: list[str], rest: list[str]
) -> Program:
    """What is read has one axis for the `rest` of its iterators: a row, as the tensor between."""
    assert s.combiner is not None
    source, dtype = program.tensor[s.reads[0].tensor], program.tensor[s.write.tensor].dtype
    name = unused_name({*program.tensor, *program.statement}, f"{s.write.tensor}_{outer[-1]}", "_start", "_made")
    row, rows = {rest[-1]: prod(ranges[i] for i in rest)}, {i: ranges[i] for i in outer}
    length, element = Affine.of(row[rest[-1]]), Access(name, (var(rest[-1]),))
    between, flat = Tensor(name, (length,), dtype), replace(source, shape=(*map(Affine.of, rows.values()), length))
    begun = over_box(program, s, f"{name}_start", row, element, ())
    begun = replace(begun, body=s.combiner.identity(dtype), combiner=None)
    read = Access(source.name, tuple(map(var, (*outer, rest[-1]))))
    made = over_box(program, s, f"{name}_made", rows | row, element, (read,))
    place = Access(name, (number_of(rest, ranges),))
    left = over_box(program, s, s.name, {i: ranges[i] for i in rest}, s.write, (place,))
    tensors = {name: between, source.name: flat}
    return with_statements(program, {s.name: left}, tensors, {start.name: [begun, made]})
