"""Sums of products of small integers, made in f32 where no partial sum can leave the integers that f32 holds.

A CPU without products of 8-bit integers widens each operand to i32 where it is used, and multiplies at half the pace
of f32. A statement `T += i32(x) * i32(w)` on 8-bit tensors gives the same values in f32 as long as the sum of the
products' magnitudes, with the value it starts from, stays below 2^24: every partial sum, in any order, is an integer
that f32 holds. With constants among the operands their values count, not their range. The operands become tensors of
their own, converted once; those of constants are computed when compiling (`poly.scheduling.known`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from poly.affine import Affine, Var, var
from poly.dtypes import Array, numpy_dtype
from poly.expr import Apply, Cast, Const, Expr, Read, evaluate, reads_of, rewrite, with_reads_at
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.groups import tensors_read, tensors_written
from poly.scheduling.sums import (
    EXACT,
    OFTEN,
    Factor,
    factors_of,
    in_order,
    magnitude,
    start_of,
    with_statements,
)
from poly.sets import fix_sizes, interval


def sums_in_f32(program: Program, constants: Mapping[str, Array]) -> Program:
    """The program with sums of products of 8-bit integers in f32, where that is exact and operands are used often.

    `constants`: arrays of its constants. Programs with free sizes stay as they are.
    """
    if set(program.parameters) - program.binding.keys():
        return program
    work = _Work(program, constants)
    for s in in_order(program):  # what the first user converts is there for the others
        work.convert(s)
    return work.result()


@dataclass
class _Work:
    """What becomes of a program: statements by name, tensors, and conversions before the statement that needs them."""

    program: Program
    constants: Mapping[str, Array]
    changed: dict[str, Statement] = field(default_factory=dict[str, Statement])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    before: dict[str, list[Statement]] = field(default_factory=dict[str, list[Statement]])
    converted: dict[tuple[Expr, tuple[Access, ...]], str] = field(
        default_factory=dict[tuple[Expr, tuple[Access, ...]], str]
    )

    def convert(self, s: Statement) -> None:
        """Make one statement's sum in f32, if it is one that may be."""
        target = self.program.tensor[s.write.tensor]
        init, factors = self._start(s, target), factors_of(s, self.program)
        if init is None or factors is None or not self._used_often(s, factors):
            return
        start = self._first_value(init)
        if start is None or start + self._most(s, factors) >= EXACT:
            return
        self.tensors[target.name] = replace(target, dtype="f32")
        reads = list(s.reads)
        for f in factors:
            reads[f.main] = self._operand(s, f, init)
        kept = [f.main for f in factors]
        body = Apply("mul", tuple(Read(k) for k in range(2)))
        self.changed[s.name] = replace(s, reads=tuple(reads[k] for k in kept), body=body)
        own = None if isinstance(init.body, Const) and init.body.dtype is None else Cast("f32", init.body)
        self.changed[init.name] = replace(init, body=own or init.body)
        for user in self.program.statements:
            if user.name not in (s.name, init.name) and target.name in tensors_read(user):
                user = self.changed.get(user.name, user)
                self.changed[user.name] = replace(user, body=_reading_floats(user, target.name))

    def _start(self, s: Statement, target: Tensor) -> Statement | None:
        """The statement that starts the sums in a temporary that nothing takes indices from, and that is read with no
        padding beyond what f32 holds.
        """
        fits = target.role == "temporary" and target.dtype == "i32" and target.layout is None and not target.scope
        if not fits or s.combiner is None or s.combiner.symbol != "+" or not s.reorder:
            return None
        writers = [w for w in self.program.statements if target.name in tensors_written(w)]
        users = [u for u in self.program.statements if target.name in tensors_read(u) and u is not s]
        plain = all(u.external is None and not any(r.indirect for r in (*u.reads, u.write)) for u in (*writers, *users))
        fills = [r.fill.value for u in users for r in u.reads if r.fill is not None and r.tensor == target.name]
        plain = plain and all(abs(value) < EXACT for value in fills)
        return start_of(self.program, s) if plain and target.name not in {r.tensor for r in s.reads} else None

    def _first_value(self, init: Statement) -> int | None:
        """The greatest magnitude that sums start from; None where that is not known."""
        match init.body:
            case Const(int(value)):
                return abs(value)
            case Read(position) if (array := self.constants.get(init.reads[position].tensor)) is not None:
                return _largest(array)
            case _:
                return None

    def _used_often(self, s: Statement, factors: Sequence[Factor]) -> bool:
        ranges = self._ranges(s)
        if ranges is None:
            return False
        volume = prod(ranges.values())
        elements = [prod(self.program.tensor[s.reads[f.main].tensor].extents({})) for f in factors]
        return all(volume >= OFTEN * count for count in elements)

    def _ranges(self, s: Statement) -> dict[str, int] | None:
        """How many values each iterator has."""
        domain = fix_sizes(s.domain, self.program.binding)
        found = [interval(domain, k) for k in range(len(s.iterators))]
        return {i: r[1] - r[0] + 1 for i, r in zip(s.iterators, found, strict=True) if r} if all(found) else None

    def _most(self, s: Statement, factors: Sequence[Factor]) -> int:
        """A bound of the sum of the products' magnitudes for any element."""
        ranges = self._ranges(s)
        assert ranges is not None
        single = {a.terms[0][0] for a in s.write.affine_index if len(a.terms) == 1}  # in `t[i + j]` many of both meet
        summed = {i: n for i, n in ranges.items() if Var(i) not in single}
        bounds = [magnitude(f.body, s, self.program) for f in factors]
        found = prod(summed.values()) * bounds[0] * bounds[1]
        for f, other in zip(factors, reversed(bounds), strict=True):
            array = self.constants.get(s.reads[f.main].tensor)
            only = reads_of(f.body) == [f.main]
            axes = None if array is None or not only else _summed_axes(s.reads[f.main], summed)
            if array is not None and axes is not None:
                values = np.abs(np.asarray(evaluate(f.body, [array] * (f.main + 1), lambda _: 0)).astype(np.int64))
                rest = prod(n for i, n in summed.items() if not any(i in e.names for e in s.reads[f.main].affine_index))
                found = min(found, int(values.sum(axes).max(initial=0)) * rest * other)
        return found

    def _operand(self, s: Statement, f: Factor, init: Statement) -> Access:
        """The read of an operand in f32; the statement that makes it is added before `init` where it is not there."""
        access = s.reads[f.main]
        source = self.program.tensor[access.tensor]
        point = tuple(f"i{k}" for k in range(source.rank))
        reads = tuple(Access(source.name, tuple(map(var, point))) if k == f.main else r for k, r in enumerate(s.reads))
        positions = reads_of(f.body)
        body = with_reads_at(f.body, {p: k for k, p in enumerate(positions)})
        key = (body, tuple(reads[k] for k in positions))
        name = self.converted.get(key)
        if name is None:
            name = self.converted[key] = self._free_name(f"{source.name}_f32")
            self.tensors[name] = Tensor(name, source.shape, "f32")
            label = self._free_name(f"{name}_made")
            domain = box_domain(label, [(i, 0, e) for i, e in zip(point, source.shape, strict=True)])
            domain = domain.align_params(self.program.context.get_space())
            wide = body.argument if isinstance(body, Cast) else body
            made = Statement(label, point, domain, Access(name, tuple(map(var, point))), key[1], Cast("f32", wide))
            self.before.setdefault(init.name, []).append(made)
        fill = access.fill
        if fill is not None:
            value = evaluate(f.body, [np.asarray(fill.value, numpy_dtype(source.dtype))] * len(s.reads), lambda _: 0)
            fill = Const(float(np.asarray(value)))
        return replace(access, tensor=name, fill=fill)

    def _free_name(self, wanted: str) -> str:
        made = {s.name for made in self.before.values() for s in made}
        return unused_name({*self.program.tensor, *self.program.statement, *self.tensors, *made}, wanted)

    def result(self) -> Program:
        """The program, with the conversions before the nests that start their sums."""
        return with_statements(self.program, self.changed, self.tensors, self.before) if self.changed else self.program


def _summed_axes(access: Access, summed: Mapping[str, int]) -> tuple[int, ...] | None:
    """The axes along which a reduction moves, each by an iterator of its own; None where it is not that plain."""
    axes: list[int] = []
    used: list[str] = []
    for k, e in enumerate(access.affine_index):
        inner = [n for n in e.names if n in summed]
        if inner and not _plain(e):
            return None
        used += inner
        axes += [k] if inner else []
    return tuple(axes) if len(set(used)) == len(used) else None


def _plain(e: Affine) -> bool:
    return len(e.terms) == 1 and isinstance(e.terms[0][0], Var) and e.terms[0][1] in (1, -1)


def _largest(array: Array) -> int:
    return max(abs(int(array.max(initial=0))), abs(int(array.min(initial=0))))


def _reading_floats(user: Statement, tensor: str) -> Expr:
    """The body of a statement that reads sums, which are floats now."""
    ours = {k for k, r in enumerate(user.reads) if r.tensor == tensor}

    def rule(e: Expr) -> Expr | None:
        match e:
            case Read(position) if position in ours:
                return Cast("i32", e)
            case Cast("f32", Cast("i32", Read(position))) if position in ours:
                return Read(position)
            case _:
                return None

    return rewrite(user.body, rule)
