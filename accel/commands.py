"""One command for one statement over a box of counters: what the engine's kind makes of linear addresses.

The engine is given. The roles m, n, k and outer of an array command are not in the loop tree: they follow from which
of result, a and b a counter moves (`roles_of`), from the innermost counter outwards: first k, then n, then m, each
while it fits (k in the array's rows, n in its columns); what is left is outer. An expression that is not linear, a
guard that no pad can express and a nest that is too deep for the engine end in `Bent`, and the box is cut in parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poly.accel.isa import (
    MAX_DMA_RANK,
    MAX_INNER,
    MAX_OUTER,
    MAX_VEC_RANK,
    Command,
    Dma,
    Gather,
    Imm,
    Linear,
    Load,
    Micro,
    Mm,
    Number,
    Region,
    Vec,
)
from poly.accel.regions import Bent, Form, Scope, address, element_strides
from poly.accel.vector_code import code_of
from poly.affine import Affine, Constraint
from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from poly.expr import Cast, Const, Expr, Read, rewrite
from poly.loops import Compute
from poly.machine import Engine
from poly.program import Access, ReadIndex, Tensor
from poly.scheduling.contraction import product_of


@dataclass(frozen=True)
class Operand:
    """A tensor with its place: the memory's name, the first byte on chip, the symbol in DRAM."""

    tensor: Tensor
    memory: str
    start: int = 0
    symbol: str | None = None

    def region(self, form: Form, axes: Sequence[str]) -> Region:
        strides = tuple(form.terms.get(a, 0) for a in axes)
        unit = 1 if self.symbol is not None else size_bytes(self.tensor.dtype)
        return Region(self.memory, self.start + form.base * unit, self.tensor.dtype, strides, (), self.symbol)


@dataclass(frozen=True)
class Site:
    """A statement in a box of counters. `where`: conditions (not negative) on its instances that are left.

    `addresses`: linear addresses found before, by the access's identity (the loop tree keeps them alive).
    """

    compute: Compute
    scope: Scope
    operands: Mapping[str, Operand]
    sizes: Mapping[str, int]
    tag: str
    addresses: dict[int, Affine]
    where: tuple[Form, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.scope.axes)

    @property
    def trips(self) -> tuple[int, ...]:
        return tuple(self.scope.axes.values())

    def place(self, access: Access) -> Form:
        """Where in its tensor an access lies; indirect subscripts count as 0. Raises `Bent`."""
        if id(access) not in self.addresses:
            subscripts = [s if isinstance(s, Affine) else Affine() for s in access.index]
            self.addresses[id(access)] = address(self.operands[access.tensor].tensor, subscripts, self.sizes)
        return self.scope.form(self.addresses[id(access)])

    def region(self, access: Access) -> Region:
        return self.operands[access.tensor].region(self.place(access), self.axes)

    def linear(self, form: Form) -> Linear:
        return Linear(form.base, tuple(form.terms.get(a, 0) for a in self.axes))

    def refuse(self, why: str, hint: str | None = None) -> UnsupportedError:
        return UnsupportedError(why, where=f"statement {self.compute.statement}", hint=hint)

    def cut_outermost(self) -> Bent:
        """Give up on the outermost counter."""
        return Bent(self.scope.singles(self.axes[0]))


def command(site: Site, engine: Engine) -> Command:
    """The command of a statement on an engine. Raises `Bent`, and `UnsupportedError` for what the engine cannot do."""
    match engine.kind:
        case "dma":
            return dma(site)
        case "array":
            return mm(site, engine)
        case "vector":
            return vec(site)
        case _:
            raise site.refuse(f"engine {engine.name} of kind {engine.kind} has no commands")


# ---- DMA


def dma(site: Site) -> Command:
    """A copy; the part of its box where a guard does not hold becomes padding."""
    compute = site.compute
    copied = compute.body.argument if isinstance(compute.body, Cast) else compute.body
    if copied != Read(0) or compute.combiner is not None:
        raise site.refuse("a DMA engine copies, it does not compute", "give its loops to the vector engine")
    read = compute.reads[0]
    if read.indirect or compute.write.indirect:  # more reads than one are places
        raise site.refuse("a DMA engine has no indirect addresses", "give its loops to the vector engine")
    if site.where:
        raise Bent(site.scope.singles(site.scope.outermost(site.where[0].terms)))
    inside = guarded(site.scope, read.guard)
    fill = read.fill.value if read.fill is not None else 0
    if inside is None:
        return filled(site, fill)
    target, source = site.place(compute.write), site.place(read)
    moved = Form(source.base + sum(c * inside.get(a, (0, 0))[0] for a, c in source.terms.items()), source.terms)
    dims = [
        _Dim(n, target.terms.get(a, 0), source.terms.get(a, 0), inside.get(a, (0, n)))
        for a, n in site.scope.axes.items()
    ]
    dims = merged(dims, MAX_DMA_RANK) or [_Dim(1, 1, 1, (0, 1))]
    if len(dims) > MAX_DMA_RANK:
        raise site.cut_outermost()
    write, reads = site.operands[compute.write.tensor], site.operands[read.tensor]
    return Dma(
        replace(write.region(target, ()), strides=tuple(d.target for d in dims)),
        replace(reads.region(moved, ()), strides=tuple(d.source for d in dims)),
        tuple(d.inside[1] - d.inside[0] for d in dims),
        tuple((d.inside[0], d.trips - d.inside[1]) for d in dims),
        fill,
        tag=site.tag,
    )


@dataclass(frozen=True)
class _Dim:
    """A dimension of a copy; counts inside[0] .. inside[1] - 1 are copied, the others padded."""

    trips: int
    target: int
    source: int
    inside: tuple[int, int]


def merged(dims: Sequence[_Dim], rank: int) -> list[_Dim]:
    """The same copy in at most `rank` dimensions where neighbours can be one."""
    result = list(dims)
    k = len(result) - 1
    while len(result) > rank and k > 0:
        outer, inner = result[k - 1], result[k]
        whole = inner.inside == (0, inner.trips)
        if whole and outer.target == inner.target * inner.trips and outer.source == inner.source * inner.trips:
            first, last = outer.inside
            inside = (first * inner.trips, last * inner.trips)
            result[k - 1 : k + 1] = [_Dim(outer.trips * inner.trips, inner.target, inner.source, inside)]
        k -= 1
    return result


def guarded(scope: Scope, guard: Sequence[Constraint]) -> dict[str, tuple[int, int]] | None:
    """For each counter the counts for which a conjunction holds; None where it never does. Raises `Bent`."""
    inside: dict[str, tuple[int, int]] = {a: (0, n) for a, n in scope.axes.items()}
    for condition in guard:
        form = scope.form(condition.expr)
        for side in (form, form.scaled(-1)) if condition.equality else (form,):
            low, high = scope.interval(side)
            if high < 0:
                return None
            if low >= 0:
                continue
            if len(side.terms) > 1:
                raise Bent(scope.singles(scope.outermost(side.terms)))
            ((axis, c),) = side.terms.items()
            first, last = inside[axis]
            inside[axis] = (max(first, -(side.base // c)), last) if c > 0 else (first, min(last, side.base // -c + 1))
    return None if any(first >= last for first, last in inside.values()) else inside


def filled(site: Site, value: Number) -> Vec:
    """A box that is padding only: there is nothing to copy, so a vector engine writes it."""
    target = site.operands[site.compute.write.tensor]
    return Vec(site.region(site.compute.write), (Imm(value, target.tensor.dtype),), site.trips, tag=site.tag)


# ---- array


def mm(site: Site, engine: Engine) -> Mm:
    """A product accumulated in place. Counters become outer, m, n and k loops by which operands they move."""
    compute = site.compute
    factors = product_of(compute.body)
    if compute.combiner is None or compute.combiner.symbol != "+" or factors is None:
        raise site.refuse("the array computes sums of products of two elements", "give its loops to the vector engine")
    reads = [compute.reads[f] for f in factors]
    if any(r.guard or r.indirect for r in reads) or compute.write.indirect:
        raise site.refuse("the array has no guards and no indirect addresses", "promote with pad=True")
    if site.where:
        raise Bent(site.scope.singles(site.scope.outermost(site.where[0].terms)))
    if site.operands[reads[0].tensor].memory not in engine.reads[:1]:
        reads.reverse()
    c, a, b = site.region(compute.write), site.region(reads[0]), site.region(reads[1])
    moves = list(zip(c.strides, a.strides, b.strides, strict=True))
    roles = roles_of(moves, site.trips, engine)
    for role, most in (("k", engine.rows), ("n", engine.cols)):
        used = math.prod(n for n, r in zip(site.trips, roles, strict=True) if r == role)
        if used > most:
            raise site.refuse(
                f"{used} {role} steps do not fit the {engine.rows} x {engine.cols} array", "smaller tiles"
            )
    outer = len(roles) - len(roles.lstrip("o"))
    if outer > MAX_OUTER:
        raise site.cut_outermost()
    return Mm(c, a, b, site.trips, roles, True, tag=site.tag)


def roles_of(moves: Sequence[tuple[int, int, int]], trips: Sequence[int], engine: Engine) -> str:
    """Roles of loops that move (c, a, b) by these strides: from inside k, n, m as far as they fit, then outer."""
    kinds = ["k" if not c else "o" if a and b else "m" if a else "n" for c, a, b in moves]
    roles = ["o"] * len(kinds)
    room = {"k": engine.rows, "n": engine.cols, "m": math.prod(trips)}
    order = ["k", "n", "m"]
    for at in reversed(range(len(kinds))):
        kind = kinds[at]
        if kind not in order or trips[at] > room[kind] or len(kinds) - at > MAX_INNER:
            break
        order = order[order.index(kind) :]
        room[kind] = room[kind] // trips[at]
        roles[at] = kind
    return "".join(roles)


# ---- vector


def vec(site: Site) -> Vec:
    """The statement's body at every point of the box."""
    compute = site.compute
    if len(site.axes) > MAX_VEC_RANK:
        raise site.cut_outermost()
    if compute.write.indirect:
        raise site.refuse("the vector engine has no indirect results")
    first: list[Micro] = []
    registers: dict[int, int] = {}
    for access in compute.reads:
        for part in access.index:
            if isinstance(part, ReadIndex) and part.position not in registers:
                first.append(_load(site, compute.reads[part.position], registers))
                registers[part.position] = len(first) - 1
    loads = [_load(site, access, registers) for access in compute.reads]
    dtype = site.operands[compute.write.tensor].tensor.dtype

    def index(expression: Affine) -> Linear:
        return site.linear(site.scope.form(expression))

    code = code_of(_without_padding(site), loads, index, dtype, len(first))
    combine = compute.combiner.symbol if compute.combiner is not None else None
    where = tuple(map(site.linear, site.where))
    return Vec(
        site.region(compute.write), (*first, *code), site.trips, combine, combine is not None, where, tag=site.tag
    )


def _without_padding(site: Site) -> Expr:
    """The body with reads whose guard never holds in the box replaced by their fill."""
    values: dict[int, Const] = {}
    for position, access in enumerate(site.compute.reads):
        outside = bool(access.guard) and _never(site.scope, access.guard)
        if outside and access.fill is not None:
            values[position] = replace(access.fill, dtype=site.operands[access.tensor].tensor.dtype)
    if not values:
        return site.compute.body
    return rewrite(site.compute.body, lambda node: values.get(node.position) if isinstance(node, Read) else None)


def _never(scope: Scope, guard: Sequence[Constraint]) -> bool:
    """Whether a conjunction holds nowhere in a box, as far as its conditions on one counter each tell."""
    alone = [c for c in guard if len(scope.form(c.expr).terms) <= 1]
    return guarded(scope, alone) is None or any(scope.interval(scope.form(c.expr))[1] < 0 for c in guard)


def _load(site: Site, access: Access, registers: Mapping[int, int]) -> Load:
    operand = site.operands[access.tensor]
    conditions = [site.scope.form(c.expr) for c in access.guard]
    region = site.region(access)
    gather: list[Gather] = []
    strides = element_strides(operand.tensor, site.sizes)
    for d, part in enumerate(access.index):
        if isinstance(part, ReadIndex):
            extent = int(operand.tensor.shape[d].evaluate(site.sizes))
            gather.append(Gather(registers[part.position], strides[d], extent))
    guard: list[Linear] = []
    for condition, form in zip(access.guard, conditions, strict=True):
        sides = (form, form.scaled(-1)) if condition.equality else (form,)
        guard += [site.linear(s) for s in sides if site.scope.interval(s)[0] < 0]
    fill = access.fill.value if access.fill is not None and guard else None
    return Load(region, tuple(guard), fill, tuple(gather))
