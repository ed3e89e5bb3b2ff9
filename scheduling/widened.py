"""Sums of products of operands that have another dtype than the sums: used often, they are converted once, before.

A core converts a vector of them while it loads it, but not what all lanes share: that takes a load, a conversion and a
broadcast where the sum's own dtype has one broadcast from memory. Values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from poly.affine import Affine, var
from poly.dtypes import numpy_dtype
from poly.expr import Apply, Cast, Const, Expr, Read, rewrite
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.sums import OFTEN, in_order, ranges_of, start_of, touched_by, with_statements

_SUMS: Final = ("f32", "f64")


def sums_of_widened(program: Program) -> Program:
    """The program with operands of sums in f32 and f64 copied to that dtype before, where each element is used often.
    Programs with free sizes stay as they are.
    """
    if set(program.parameters) - program.binding.keys():
        return program
    changed: dict[str, Statement] = {}
    tensors: dict[str, Tensor] = {}
    before: dict[str, list[Statement]] = {}
    made: dict[tuple[str, str, tuple[tuple[int, int], ...]], str] = {}
    for s in in_order(program):  # the first user's copy is there for the others
        init = start_of(program, s) if _sums_products(program, s) else None
        ranges = ranges_of(program, s) if init is not None else None
        if init is None or ranges is None:
            continue
        dtype = program.tensor[s.write.tensor].dtype
        for k, access in enumerate(s.reads):
            source = program.tensor[access.tensor]
            if source.dtype == dtype or prod(ranges.values()) < OFTEN * prod(source.extents(program.binding)):
                continue
            ends = tuple(touched_by(e, ranges, n) for e, n in _axes(program, access))
            name = made.get((source.name, dtype, ends))
            if name is None:
                name = made[source.name, dtype, ends] = unused_name(
                    {*program.tensor, *program.statement, *tensors}, f"{source.name}_wide", "_made"
                )
                before.setdefault(init.name, []).append(_copy(program, source, name, dtype, ends))
                tensors[name] = Tensor(name, source.shape, dtype)
            changed[s.name] = _reading(changed.get(s.name, s), k, name, source.dtype, dtype)
    return with_statements(program, changed, tensors, before) if changed else program


def _sums_products(program: Program, s: Statement) -> bool:
    """Whether a statement alone in its nest adds products of two operands, one converted at least, to f32 or f64."""
    target = program.tensor[s.write.tensor]
    if s.combiner is None or s.combiner.symbol != "+" or target.dtype not in _SUMS or s.external is not None:
        return False
    if all(program.tensor[r.tensor].dtype == target.dtype for r in s.reads):
        return False
    alone = sum(o.path[:1] == s.path[:1] for o in program.statements) == 1 and isinstance(s.path[0], int)
    plain = alone and all(not r.indirect and program.tensor[r.tensor].layout is None for r in (*s.reads, s.write))
    match s.body:
        case Apply("mul", (first, second)) if plain:
            a, b = (_operand(program, s, factor) for factor in (first, second))
            return a is not None and b is not None and s.reads[a].tensor != s.reads[b].tensor
        case _:
            return False


def _operand(program: Program, s: Statement, factor: Expr) -> int | None:
    """The read that a factor is, of the target's dtype or converted to it."""
    dtype = program.tensor[s.write.tensor].dtype
    match factor:
        case Read(k) if program.tensor[s.reads[k].tensor].dtype == dtype:
            return k
        case Cast(wanted, Read(k)) if wanted == dtype:
            return k
        case _:
            return None


def _axes(program: Program, access: Access) -> list[tuple[Affine, int]]:
    extents = program.tensor[access.tensor].extents(program.binding)
    return list(zip(access.affine_index, extents, strict=True))


def _copy(program: Program, source: Tensor, name: str, dtype: str, ends: Sequence[tuple[int, int]]) -> Statement:
    """What converts the elements of a tensor that are read."""
    point = tuple(f"i{k}" for k in range(source.rank))
    label, index = f"{name}_made", tuple(map(var, point))
    domain = box_domain(label, [(i, *e) for i, e in zip(point, ends, strict=True)])
    domain = domain.align_params(program.context.get_space())
    return Statement(label, point, domain, Access(name, index), (Access(source.name, index),), Cast(dtype, Read(0)))


def _reading(s: Statement, read: int, name: str, source: str, dtype: str) -> Statement:
    """A statement with one operand from a tensor of the sum's dtype; padding is rounded to its own, `source`, first."""

    def rule(e: Expr) -> Expr | None:
        return Read(read) if e == Cast(dtype, Read(read)) else None

    access = s.reads[read]
    with np.errstate(over="ignore"):  # infinite is what it stands for
        fill = None if access.fill is None else Const(float(np.asarray(access.fill.value, numpy_dtype(source))))
    wide = replace(access, tensor=name, fill=fill)
    return replace(s, reads=(*s.reads[:read], wide, *s.reads[read + 1 :]), body=rewrite(s.body, rule))
