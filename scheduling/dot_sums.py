"""Sums of products of 8-bit integers by instructions that make several steps of a sum at once (`poly.expr.DOTS`).

`T += i32(x) * i32(w)` becomes `T += dot4(x4, w4)` on tensors whose elements hold four steps of the sum side by side, or
`dot2` on pairs. Everything after that, packing, register tiles, the model of cost, sees a product of i32 with a shorter
sum. `dot4` takes u8 times i8, matrix units also two of one kind (`dot4_i8`, `dot4_u8`); else one of two i8 gets 128
added, and of a zero point and that, `offset * sum(w)` is taken from what the sum starts with; where that does not
apply, `dot2` holds both factors as they are. All of it is exact, modulo 2^32 as sums in i32 are. (Of weights that are
constants, all but the products is computed when compiling.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Final

import islpy as isl
import numpy as np

from poly.affine import Affine, var
from poly.dtypes import numpy_dtype
from poly.expr import ALIKE, COMBINERS, DOTS, Apply, Cast, Const, Expr, Read, apply, evaluate, reads_of, with_reads_at
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.groups import bare
from poly.scheduling.paired_sums import STEPS, large_product, turned_tensor
from poly.scheduling.sums import (
    OFTEN,
    Factor,
    factors_of,
    in_order,
    parts_of,
    ranges_of,
    start_of,
    touched_by,
    with_statements,
)  # fmt: skip

U8, I8, I16 = (0, 255), (-128, 127), (-(1 << 15), (1 << 15) - 1)
_LIMITS: Final = {"i8": I8, "u8": U8, "i16": I16}


def sums_by_dots(program: Program, dots: Collection[str]) -> Program:
    """The program with sums of products of small integers by some of `poly.expr.DOTS`, where each element of an operand
    is used often. Programs with free sizes stay as they are.
    """
    if not dots or set(program.parameters) - program.binding.keys():
        return program
    work = _Work(program, frozenset(dots))
    for s in in_order(program):  # what the first user packs is there for the others
        work.convert(s)
    return with_statements(program, work.changed, work.tensors, work.before) if work.changed else program


@dataclass(frozen=True)
class _Side:
    """One factor as a dot's operand: `body` on the reads of its statement, with values in the operand's parts."""

    factor: Factor
    body: Expr

    def ends_in_zeros(self, s: Statement) -> bool:
        """Whether parts of an element beyond the last step are 0: where what moves is 0, so is this, and padding, which
        fills all parts, is nothing else.
        """
        fill = s.reads[self.factor.main].fill
        return isinstance(self.body, Cast) and (fill is None or fill.value == 0)


@dataclass(frozen=True)
class _Way:
    """A dot and its operands. `missing`: what each adds to the sums is a number times the sum of another operand."""

    name: str
    left: _Side
    right: _Side
    missing: tuple[tuple[Expr, _Side], ...] = ()


_Packed = tuple[str, int, tuple[tuple[int, int], ...], tuple[Access, ...], Expr]  # what tells packed operands apart


@dataclass
class _Start:
    """How sums start: the statement, and what makes the sums of operands that it reads."""

    statement: Statement
    sums: list[Statement] = field(default_factory=list[Statement])
    tensors: list[Tensor] = field(default_factory=list[Tensor])


@dataclass
class _Work:
    """What becomes of a program: statements by name, tensors, and what is made before the statement that needs it."""

    program: Program
    dots: frozenset[str]
    changed: dict[str, Statement] = field(default_factory=dict[str, Statement])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    before: dict[str, list[Statement]] = field(default_factory=dict[str, list[Statement]])
    packed: dict[_Packed, str] = field(default_factory=dict[_Packed, str])
    turned: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    def convert(self, s: Statement) -> None:
        """Make one statement's sum by dots, if it is one that may be."""
        target = self.program.tensor[s.write.tensor]
        summed = s.combiner is not None and s.combiner.symbol == "+" and s.reorder and target.dtype == "i32"
        factors = factors_of(s, self.program) if summed and not s.write.indirect else None
        if factors is None or target.name in {r.tensor for r in s.reads}:
            return
        init, ranges = start_of(self.program, s), ranges_of(self.program, s)
        if init is None or ranges is None or init.name in self.changed:
            return
        step = _step(s, factors, ranges)
        if step is None or not self._used_often(s, factors, ranges):
            return
        for way in self._ways(s, factors):
            start = self._start(s, init, way, ranges)
            fits = ranges[step] % DOTS[way.name] == 0 or way.left.ends_in_zeros(s) or way.right.ends_in_zeros(s)
            if fits and start is not None:
                return self._make(s, init, way, step, ranges, start)

    def _used_often(self, s: Statement, factors: tuple[Factor, Factor], ranges: Mapping[str, int]) -> bool:
        """Whether packing an operand in a call is little beside the products."""
        tensors = [self.program.tensor[s.reads[f.main].tensor] for f in factors]
        volume = prod(ranges.values())
        return all(t.role == "constant" or volume >= OFTEN * prod(t.extents(self.program.binding)) for t in tensors)

    # ---- which dot

    def _ways(self, s: Statement, factors: tuple[Factor, Factor]) -> list[_Way]:
        """The dots that may do, the best first."""
        found: list[_Way] = []
        if "dot4" in self.dots:
            constant = [self.program.tensor[s.reads[f.main].tensor].role == "constant" for f in factors]
            pairs = [(factors[0], factors[1]), (factors[1], factors[0])]
            pairs.sort(key=lambda p: not constant[factors.index(p[1])])  # sums of constants cost nothing
            ways = [w for moving, other in pairs for w in self._fours(s, moving, other)]
            found += sorted(ways, key=lambda w: len(w.missing))
        if "dot2" in self.dots and all(_within(_range(f.body, s, self.program), I16) for f in factors):
            found.append(_Way("dot2", _Side(factors[0], factors[0].body), _Side(factors[1], factors[1].body)))
        return found

    def _fours(self, s: Statement, moving: Factor, other: Factor) -> list[_Way]:
        """u8 times i8, of one factor what its read holds, shifted where that helps, of the other one the same or all:
        (a + n)*(b + m) is a*b + n*(b + m) + m*a.
        """
        found: list[_Way] = []
        ranges = ranges_of(self.program, s)
        on_unit = ranges is not None and self._on_unit(s, (moving, other), ranges)
        kinds = {(U8, I8): "dot4", (I8, U8): "dot4", (I8, I8): "dot4_i8", (U8, U8): "dot4_u8"}
        for (one, two), name in kinds.items():
            first, second = self._side(s, moving, one), self._side(s, other, two)
            there = name in self.dots and (name not in ALIKE or on_unit)
            if first is None or second is None or not there:
                continue
            whole = _Side(other, other.body)
            missing = [(first[1], whole)] * (first[1] is not None) + [(second[1], first[0])] * (second[1] is not None)
            operands = (second[0], first[0]) if (one, two) == (I8, U8) else (first[0], second[0])
            found.append(_Way(name, *operands, tuple((n, side) for n, side in missing if n is not None)))
        return found

    def _on_unit(self, s: Statement, factors: tuple[Factor, Factor], ranges: Mapping[str, int]) -> bool:
        """Whether a sum is a product of whole matrices, large enough for a unit that the machine has."""
        accesses = [s.reads[f.main] for f in factors]
        step = _step(s, factors, ranges)
        long = step is not None and ranges[step] >= STEPS
        if self.dots.isdisjoint(ALIKE) or not long or not large_product(s, accesses, ranges):
            return False
        extents = [self.program.tensor[a.tensor].extents(self.program.binding) for a in accesses]
        return all(
            tuple(ranges[str(i)] for i in a.affine_index) == e for a, e in zip(accesses, extents, strict=True)
        )

    def _side(self, s: Statement, factor: Factor, limits: tuple[int, int]) -> tuple[_Side, Expr | None] | None:
        """A factor as an operand with these values, and what has to be added to that (None: nothing)."""
        if _within(_range(factor.body, s, self.program), limits):
            return _Side(factor, factor.body), None
        plain = _plain(factor)
        core = None if plain is None else _range(plain[0], s, self.program)
        if plain is None or core is None or core[1] - core[0] > U8[1]:
            return None
        body, rest = plain
        if _within(core, limits):
            return _Side(factor, body), rest
        shift = limits[0] - core[0]
        less = Const(-shift, "i32") if rest is None else apply("sub", rest, Const(shift, "i32"))
        return _Side(factor, apply("add", body, Const(shift, "i32"))), less

    # ---- what is made

    def _make(
        self, s: Statement, init: Statement, way: _Way, step: str, ranges: Mapping[str, int], start: _Start
    ) -> None:
        made = self.before.setdefault(init.name, [])
        made += start.sums
        self.tensors |= {t.name: t for t in start.tensors}
        self.changed[init.name] = start.statement
        reads = tuple(self._packed(s, side, way.name, step, ranges, made) for side in (way.left, way.right))
        if self._on_unit(s, (way.left.factor, way.right.factor), ranges):
            reads = tuple(self._along_rows(s, read, step, made) for read in reads)
        short = {**ranges, step: -(-ranges[step] // DOTS[way.name])}
        domain = self._aligned(box_domain(s.name, [(i, 0, n) for i, n in short.items()]))
        self.changed[s.name] = replace(s, domain=domain, reads=reads, body=apply(way.name, Read(0), Read(1)))

    def _packed(
        self, s: Statement, side: _Side, dot: str, step: str, ranges: Mapping[str, int], made: list[Statement]
    ) -> Access:
        """The read of an operand whose elements hold several steps; the statement that makes it is added. Elements that
        the sum does not read are not touched: a tensor with gaps may end before its last one.
        """
        count, steps, access = DOTS[dot], ranges[step], s.reads[side.factor.main]
        source = self.program.tensor[access.tensor]
        axis = access.affine_index.index(var(step))
        point = tuple(f"i{k}" for k in range(source.rank))
        extents = list(source.extents(self.program.binding))
        touched = [touched_by(e, ranges, n) for e, n in zip(access.affine_index, extents, strict=True)]
        extents[axis] = -(-steps // count)
        touched[axis] = (0, extents[axis])
        others = [k for k in reads_of(side.body) if k != side.factor.main]
        reads = parts_of(source.name, point, axis, steps, extents[axis], count)
        parts: list[Expr] = []
        for part in range(count):
            places = {side.factor.main: part} | {k: count + n for n, k in enumerate(others)}
            parts.append(with_reads_at(side.body, places))
        reads += [s.reads[k] for k in others]
        fill = None if access.fill is None else Const(_filled(side, access.fill, source, count))
        body = _joined(parts)
        key = (dot, axis, tuple(touched), tuple(reads), body)
        name = self.packed.get(key)
        if name is None:
            name = self.packed[key] = self._free_name(f"{source.name}_{dot}")
            label = self._free_name(f"{name}_made")
            self.tensors[name] = Tensor(name, tuple(Affine((), e) for e in extents), "i32")
            domain = self._aligned(box_domain(label, [(i, *ends) for i, ends in zip(point, touched, strict=True)]))
            made.append(Statement(label, point, domain, Access(name, tuple(map(var, point))), tuple(reads), body))
        return replace(access, tensor=name, fill=fill)

    def _along_rows(self, s: Statement, access: Access, step: str, made: list[Statement]) -> Access:
        """The read of packed steps that lie side by side where they are those of a matrix unit's rows: turned where
        they do not.
        """
        axis, rank = access.affine_index.index(var(step)), len(access.index)
        if s.write.affine_index[-1] in access.affine_index or axis == rank - 1:
            return access
        order = [*(d for d in range(rank) if d != axis), axis]
        key = access.tensor, axis
        if key not in self.turned:
            name = self._free_name(f"{access.tensor}_turned")
            tensor, copy = turned_tensor(self.program, self.tensors[access.tensor], name, order)
            self.turned[key], self.tensors[name] = name, tensor
            made.append(copy)
        return replace(access, tensor=self.turned[key], index=tuple(access.index[d] for d in order))

    def _start(self, s: Statement, init: Statement, way: _Way, ranges: Mapping[str, int]) -> _Start | None:
        """The statement that starts the sums, with what a way misses; None where that has another form."""
        found = _Start(init)
        for number, side in way.missing:
            more = self._summed(s, init, side, ranges, f"{s.reads[side.factor.main].tensor}_sum", found)
            if more is None:
                return None
            access, times = more
            count, reads = len(found.statement.reads), reads_of(number)
            number = with_reads_at(number, {k: count + 1 + n for n, k in enumerate(reads)})
            product = apply("mul", Read(count), number)
            product = product if times == 1 else apply("mul", product, Const(times, "i32"))
            accesses = (*found.statement.reads, access, *(s.reads[k] for k in reads))
            body = apply("add", found.statement.body, product)
            found.statement = replace(found.statement, reads=accesses, body=body)
        return found

    def _summed(
        self, s: Statement, init: Statement, side: _Side, ranges: Mapping[str, int], wanted: str, found: _Start
    ) -> tuple[Access, int] | None:
        """The read of an operand's sum where the sums start, and how often it is to be added; None where its indices
        are not those of single axes of what is written.
        """
        if init.write.indirect:
            return None
        used = reads_of(side.body)
        accesses = tuple(s.reads[k] for k in used)
        names = {n for a in accesses for e in (*a.affine_index, *(c.expr for c in a.guard)) for n in e.names}
        written = {n for e in s.write.affine_index for n in e.names}
        kept = [i for i in s.iterators if i in names and i in written]
        inner = [i for i in s.iterators if i in names and i not in written]
        starts = [bare(e) for e in init.write.affine_index]
        at = {bare(e): start for e, start in zip(s.write.affine_index, starts, strict=True)}
        if any(at.get(i) is None for i in kept) or None in starts or len({*starts}) != len(starts):
            return None
        name = self._free_name(wanted, found)
        target = Access(name, tuple(var(i) for i in kept))
        body = with_reads_at(side.body, {k: n for n, k in enumerate(used)})
        first = tuple(a.substitute({i: 0 for i in inner}) for a in accesses)
        clear, update = (self._free_name(f"{name}{end}", found) for end in ("_init", "_update"))
        own = [(i, 0, ranges[i]) for i in kept]
        every = [*own, *((i, 0, ranges[i]) for i in inner)]
        zero = apply("mul", body, Const(0, "i32"))  # reads what the sum does: of constants, both are known
        found.sums += [
            Statement(clear, tuple(kept), self._aligned(box_domain(clear, own)), target, first, zero),
            Statement(
                update, (*kept, *inner), self._aligned(box_domain(update, every)), target, accesses, body,
                COMBINERS["+"],
            ),
        ]  # fmt: skip
        found.tensors.append(Tensor(name, tuple(Affine((), ranges[i]) for i in kept), "i32"))
        times = prod(n for i, n in ranges.items() if i not in names and i not in written)
        return Access(name, tuple(var(str(at[i])) for i in kept)), times

    def _aligned(self, domain: isl.Set) -> isl.Set:
        return domain.align_params(self.program.context.get_space())

    def _free_name(self, wanted: str, start: _Start | None = None) -> str:
        taken = {*self.program.tensor, *self.program.statement, *self.tensors}
        taken |= {s.name for made in self.before.values() for s in made}
        taken |= {t.name for t in (*start.tensors, *start.sums)} if start is not None else set()
        return unused_name(taken, wanted)


# ---- what is there


def _step(s: Statement, factors: tuple[Factor, Factor], ranges: Mapping[str, int]) -> str | None:
    """The longest loop of the sum that is an axis of both operands, and moves nothing else; None where none is."""
    written = {n for e in s.write.affine_index for n in e.names}

    def suits(i: str) -> bool:
        for f in factors:
            access = s.reads[f.main]
            moved = [e for e in access.affine_index if i in e.names]
            if moved != [var(i)] or any(i in c.expr.names for c in access.guard):
                return False
        return i not in written

    return max((i for i in s.iterators if suits(i) and ranges[i] > 1), key=lambda i: ranges[i], default=None)


def _range(body: Expr, s: Statement, program: Program) -> tuple[int, int] | None:
    """Least and greatest value of an i32 expression, padding included; None where they are not known."""
    match body:
        case Cast("i32", Read(position)):
            return _LIMITS.get(program.tensor[s.reads[position].tensor].dtype)
        case Const(int(value)) | Cast("i32", Const(int(value))):
            return value, value
        case Apply("add" | "sub" as name, (a, b)):
            first, second = _range(a, s, program), _range(b, s, program)
            if first is None or second is None:
                return None
            low, high = (second[0], second[1]) if name == "add" else (-second[1], -second[0])
            return first[0] + low, first[1] + high
        case _:
            return None


def _within(values: tuple[int, int] | None, limits: tuple[int, int]) -> bool:
    return values is not None and limits[0] <= values[0] and values[1] <= limits[1]


def _plain(factor: Factor) -> tuple[Expr, Expr | None] | None:
    """A factor as what its moving read holds, and what is the same for all elements and is added to that."""
    main = Cast("i32", Read(factor.main))
    match factor.body:
        case Cast("i32", Read(position)) if position == factor.main:
            return main, None
        case Apply("sub", (first, rest)) if first == main and factor.main not in reads_of(rest):
            return main, apply("neg", rest)
        case Apply("add", (first, rest)) if first == main and factor.main not in reads_of(rest):
            return main, rest
        case _:
            return None


def _joined(parts: list[Expr]) -> Expr:
    """Numbers side by side in 32 bits, the first one lowest."""
    bits = 32 // len(parts)
    low = Const((1 << bits) - 1, "i32")
    placed = [apply("bit_and", p, low) if k < len(parts) - 1 else p for k, p in enumerate(parts)]
    moved = [apply("shift_left", p, Const(k * bits, "i32")) if k else p for k, p in enumerate(placed)]
    return reduce(lambda a, b: apply("bit_or", a, b), moved)


def _filled(side: _Side, fill: Const, source: Tensor, count: int) -> int:
    """What an operand holds beyond its edges."""
    value = np.asarray(fill.value, numpy_dtype(source.dtype))
    main = side.factor.main
    assert reads_of(side.body) == [main], "what else it reads is not padded"
    part = int(np.asarray(evaluate(side.body, [value] * (main + 1), lambda _: 0)))
    bits = 32 // count
    whole = sum((part & ((1 << bits) - 1)) << (k * bits) for k in range(count))
    return whole - (1 << 32) if whole >= 1 << 31 else whole
