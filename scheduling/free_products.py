"""Contractions whose sizes are free, recognised by their accesses alone: what `poly.scheduling.cpu_free` composes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from poly.affine import Affine
from poly.dtypes import is_float
from poly.program import Access, Program, Statement
from poly.relations import extents_of
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_facts import axis_of, bare_axes


@dataclass(frozen=True)
class FreeProduct:
    """A contraction and what stands around it, by their iterators: `axes` of every statement on the parallel loops,
    whose `extents` are affine in the sizes. `outer`, `middle`, `rows`, `lanes`: positions among these. `packed`: the
    reads, by position, that are packed for lanes; `rows_packed`: the one that is packed for rows.
    """

    axes: dict[str, tuple[str, ...]]
    extents: tuple[Affine, ...]
    update: str
    outer: tuple[int, ...]
    middle: tuple[int, ...]
    rows: int
    lanes: int
    packed: tuple[int, ...]
    rows_packed: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.axes)


def free_product(program: Program, name: str, among: Sequence[str]) -> FreeProduct | None:
    """A statement as a contraction with free sizes; None where it is of another kind."""
    s = program.statement[name]
    if s.combiner is None or not is_float(program.tensor[s.write.tensor].dtype) or not _plain(s):
        return None
    ends = extents_of(program, s)
    axes = bare_axes(s.write)
    if ends is None or axes is None or len(axes) == len(s.iterators):
        return None
    own = tuple(i for i in s.iterators if i in axes)
    extents = tuple(ends[i] for i in own)
    if all(e.is_constant for e in ends.values()):
        return None
    lanes = own.index(axes[-1])
    moving = [k for k, r in enumerate(s.reads) if axes[-1] in names_of(r)]
    fixed = [k for k, r in enumerate(s.reads) if axes[-1] not in names_of(r)]
    again = [a for a, i in enumerate(own) if a != lanes and all(i not in names_of(s.reads[k]) for k in moving)]
    again = [a for a in again if any(own[a] in names_of(s.reads[k]) for k in fixed)]
    if not moving or not again:
        return None
    rows = max(again, key=lambda a: (not extents[a].is_constant, extents[a].constant, a))
    packed = tuple(k for k in moving if _packs(program, s, k, own[lanes]))
    if any(_apart(s.reads[k], own[lanes]) and k not in packed for k in moving):
        return None
    middle = tuple(a for a in again if a != rows) if packed else ()
    outer = tuple(a for a in range(len(own)) if a not in (rows, lanes, *middle))
    statements = _around(program, s, own, extents, among)
    turned = next((k for k in fixed if own[rows] in names_of(s.reads[k]) and _packs_rows(s, k, own[rows])), None)
    return FreeProduct(statements, extents, name, outer, middle, rows, lanes, packed, turned)


def _plain(s: Statement) -> bool:
    """Whether two or more operands meet, none of them the target."""
    return len(s.reads) >= 2 and s.write.tensor not in {r.tensor for r in s.reads} and _simple(s)


def _apart(access: Access, iterator: str) -> bool:
    """Whether neighbours along a loop do not lie side by side."""
    last = access.affine_index[-1]
    return iterator not in last.names or last.coefficient(iterator) != 1


def _packs(program: Program, s: Statement, read: int, lanes: str) -> bool:
    """Whether a read is a matrix along the lanes, of which blocks of lanes are blocks of the tensor."""
    access = s.reads[read]
    axis = axis_of(access, lanes)
    bares = bare_axes(access)
    again = sum(r.tensor == access.tensor for r in s.reads) > 1
    return axis is not None and bares is not None and len(bares) > 1 and not again and program.tensor[
        access.tensor
    ].layout is None


def _packs_rows(s: Statement, read: int, rows: str) -> bool:
    """Whether the elements of neighbouring rows lie side by side and those of neighbouring steps do not."""
    bares = bare_axes(s.reads[read])
    return bares is not None and len(bares) > 1 and bares[-1] == rows and sum(
        r.tensor == s.reads[read].tensor for r in s.reads
    ) == 1


def _around(
    program: Program, update: Statement, own: tuple[str, ...], extents: tuple[Affine, ...], among: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The parallel loops of the contraction, of the assignment that starts it where that is right before it, and of the
    assignments right behind it that follow it element by element.
    """
    statements, tensor = program.statements, update.write.tensor
    at = statements.index(update)
    target = bare_axes(update.write)
    assert target is not None
    aligned = partial(_aligned, program, tuple(target.index(i) for i in own), extents)
    found = {update.name: own}
    if at and (first := statements[at - 1]).name in among and first.combiner is None and _simple(first):
        axes = aligned(first, first.write) if first.write.tensor == tensor else None
        if axes is not None:
            found = {first.name: axes, **found}
    for s in statements[at + 1 :]:
        bares = bare_axes(s.write)
        reads = [r for r in s.reads if r.tensor == tensor]
        if s.name not in among or s.combiner is not None or not _simple(s) or bares is None or len(reads) != 1:
            break
        axes = aligned(s, reads[0])
        if axes is None or bares[-1] != axes[own.index(target[-1])] or s.write.tensor == tensor:
            break
        if any(_apart(r, bares[-1]) and bares[-1] in names_of(r) for r in s.reads):
            break
        found[s.name] = axes
    return found


def _aligned(
    program: Program, places: Sequence[int], extents: tuple[Affine, ...], s: Statement, access: Access
) -> tuple[str, ...] | None:
    """The iterators of a statement that walks what a contraction makes as that does, on its parallel loops: `places` of
    these in the target's subscripts, and their `extents`. None where it walks it otherwise, or has other loops, too.
    """
    bares, ends = bare_axes(access), extents_of(program, s)
    if bares is None or ends is None or not len(bares) == len(places) == len(s.iterators):
        return None
    axes = tuple(bares[k] for k in places)
    return axes if tuple(ends.get(i) for i in axes) == extents else None


def _simple(s: Statement) -> bool:
    """Whether subscripts alone say what is read and written."""
    return s.external is None and not any(a.indirect or a.guard for a, _ in s.accesses)
