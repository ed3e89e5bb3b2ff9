"""Sums of products of 16-bit floats in f32: operands that are used often are widened once, not at every use.

A core widens a vector of them while it loads it, but not what all lanes share: that takes a load, a conversion and a
broadcast where f32 has one broadcast from memory. Values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from poly.affine import Affine, var
from poly.expr import Apply, Cast, Const, Expr, Read, rewrite
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.sums import OFTEN, in_order, ranges_of, start_of, touched_by, with_statements

_NARROW: Final = ("f16", "bf16")


def sums_of_widened(program: Program) -> Program:
    """The program with operands of sums in f32 copied to f32 before, where each element is used often. Programs with
    free sizes stay as they are.
    """
    if set(program.parameters) - program.binding.keys():
        return program
    changed: dict[str, Statement] = {}
    tensors: dict[str, Tensor] = {}
    before: dict[str, list[Statement]] = {}
    made: dict[tuple[str, tuple[tuple[int, int], ...]], str] = {}
    for s in in_order(program):  # the first user's copy is there for the others
        init = start_of(program, s) if _sums_products(program, s) else None
        ranges = ranges_of(program, s) if init is not None else None
        if init is None or ranges is None:
            continue
        for k, access in enumerate(s.reads):
            source = program.tensor[access.tensor]
            if source.dtype not in _NARROW or prod(ranges.values()) < OFTEN * prod(source.extents(program.binding)):
                continue
            ends = tuple(touched_by(e, ranges, n) for e, n in _axes(program, access))
            name = made.get((source.name, ends))
            if name is None:
                name = made[source.name, ends] = unused_name(
                    {*program.tensor, *program.statement, *tensors}, f"{source.name}_wide", "_made"
                )
                before.setdefault(init.name, []).append(_copy(program, source, name, ends))
                tensors[name] = Tensor(name, source.shape, "f32")
            changed[s.name] = _reading(changed.get(s.name, s), k, name)
    return with_statements(program, changed, tensors, before) if changed else program


def _sums_products(program: Program, s: Statement) -> bool:
    """Whether a statement alone in its nest adds products of two widened elements to f32."""
    target = program.tensor[s.write.tensor]
    alone = sum(o.path[:1] == s.path[:1] for o in program.statements) == 1 and isinstance(s.path[0], int)
    if s.combiner is None or s.combiner.symbol != "+" or target.dtype != "f32" or s.external is not None or not alone:
        return False
    plain = all(not r.indirect and program.tensor[r.tensor].layout is None for r in (*s.reads, s.write))
    match s.body:
        case Apply("mul", (Cast("f32", Read(a)), Cast("f32", Read(b)))):
            return plain and a != b and s.reads[a].tensor != s.reads[b].tensor
        case _:
            return False


def _axes(program: Program, access: Access) -> list[tuple[Affine, int]]:
    extents = program.tensor[access.tensor].extents(program.binding)
    return list(zip(access.affine_index, extents, strict=True))


def _copy(program: Program, source: Tensor, name: str, ends: Sequence[tuple[int, int]]) -> Statement:
    """What widens the elements of a tensor that are read."""
    point = tuple(f"i{k}" for k in range(source.rank))
    label, index = f"{name}_made", tuple(map(var, point))
    domain = box_domain(label, [(i, *e) for i, e in zip(point, ends, strict=True)])
    domain = domain.align_params(program.context.get_space())
    return Statement(label, point, domain, Access(name, index), (Access(source.name, index),), Cast("f32", Read(0)))


def _reading(s: Statement, read: int, name: str) -> Statement:
    """A statement with one operand from a wide tensor."""

    def rule(e: Expr) -> Expr | None:
        return Read(read) if e == Cast("f32", Read(read)) else None

    access = s.reads[read]
    fill = None if access.fill is None else Const(float(access.fill.value))
    wide = replace(access, tensor=name, fill=fill)
    return replace(s, reads=(*s.reads[:read], wide, *s.reads[read + 1 :]), body=rewrite(s.body, rule))
