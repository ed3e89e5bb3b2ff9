"""Reductions that are shorter at the ends of a parallel loop: windows that sum only what lies in a tensor.

A product with padding that is zero adds nothing where the other factor is finite, so a window near the edge of an image
may leave it out (`inside_windows`): of a 3x3 window on 7 x 7 places a tenth of all products, along one axis. What is
left is a box but for these ends (`uneven_axes`), and is scheduled like one; only a loop along which the reduction
changes cannot be lanes, and where it is rows of a register tile, a window is laid out for the tiles at its ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import islpy as isl
import numpy as np

from poly.affine import Constraint
from poly.coefficients import conditions_of, set_of
from poly.dtypes import Array
from poly.program import Access, Program, Statement
from poly.relations import bound_domain, box_bounds, intervals_of
from poly.scheduling.contraction import names_of, product_of
from poly.sets import SET

MOST_SHORTER = 0.5  # of a loop's iterations, those whose reduction is not whole, where nothing else fills lanes
EVEN = 4  # iterations of a loop along which the reduction is the same, so that it can be lanes
Uneven = Mapping[str, frozenset[str]]  # by parallel iterator those of the reduction whose range depends on it
LONGEST = 8  # iterations of a window that may be laid out


class Ends(NamedTuple):
    """A loop whose iterations low .. high - 1 alone have a whole reduction: the loops of the reduction that are shorter
    at the others, and the share of all instances that is there.
    """

    inside: frozenset[str]
    low: int
    high: int
    share: float


def inside_windows(program: Program, finite: Collection[str], planes: bool = False) -> Program:
    """The program whose sums of products leave out the padding of a read, where the other factor is one of the
    constants `finite` (`finite_factors`): same values, up to the sign of a zero.

    Only where a read is contiguous along a loop of the reduction that is no window's, or with `planes`: lanes cannot
    run along the places of a window then. Padding along the last of the read's padded axes stays where a window is too
    long to be laid out. Iterations of a window that meet padding alone, wherever it is, are left out in any case.
    """
    statements = tuple(
        _without_padding(program, _that_meet_data(program, s, finite), finite, planes) for s in program.statements
    )
    return program if statements == program.statements else replace(program, statements=statements)


def inside_rows(program: Program, finite: Collection[str]) -> Program:
    """Like `inside_windows`, of windows in which nothing is used again but rows: without the padding of all axes but
    the last, which is the lanes'.
    """
    statements = tuple(_without_rows(program, s, finite) for s in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


def finite_factors(program: Program, constants: Mapping[str, Array]) -> frozenset[str]:
    """The constants that padding is multiplied with and that are finite: zero times any other is not zero."""
    factors = ((s, _padded_factors(program, s, again=False)) for s in program.statements)
    found = {s.reads[k[1]].tensor for s, k in factors if k is not None}
    return frozenset(n for n in found if n in constants and bool(np.isfinite(constants[n]).all()))


def uneven_axes(program: Program, s: Statement, axes: Sequence[str]) -> Uneven | None:
    """Where a reduction's domain is no box, but one but for the ends of some of the loops `axes`; {} for a box.

    None for any other domain: where sizes are free, other iterators depend on one another, some element has no
    iteration, or most of a loop's iterations have a shorter reduction and no other loop is there for lanes.
    """
    found = shorter_ends(program, s, axes)
    return None if found is None else {a: ends.inside for a, ends in found.items()}


def shorter_ends(program: Program, s: Statement, axes: Sequence[str]) -> Mapping[str, Ends] | None:
    """Like `uneven_axes`, with more about the ends of these loops."""
    domain = bound_domain(program, s)
    if box_bounds(domain, s.iterators) is not None:
        return {}
    if s.combiner is None or set(program.parameters) - program.binding.keys():
        return None
    ranges = intervals_of(program, s)
    if any(r is None for r in ranges.values()):
        return None
    return _uneven(domain, s.iterators, tuple(axes), tuple((n, *r) for n, r in ranges.items() if r is not None))


@lru_cache(maxsize=1024)
def _uneven(
    domain: isl.Set, iterators: tuple[str, ...], axes: tuple[str, ...], ranges: tuple[tuple[str, int, int], ...]
) -> Mapping[str, Ends] | None:
    """The ends of loops that a reduction's loop hangs on, from conditions between one of `axes` and one other iterator
    each; None where there are others, or where the rest is no box. `ranges`: first and last value of each iterator.
    """
    pieces, limits = domain.get_basic_sets(), {n: (low, high) for n, low, high in ranges}
    conditions = conditions_of(pieces[0], iterators) if len(pieces) == 1 else [None]
    found: dict[str, set[str]] = {}
    whole = {a: limits[a] for a in axes}  # the first and the last iteration with a whole reduction
    windows: dict[tuple[str, str], list[Constraint]] = {}
    for c in conditions:
        if c is None or not c.expr.is_linear or (c.equality and len(c.expr.names) > 1):
            return None
        if len(c.expr.names) < 2:
            continue
        along, inside = c.expr.names & set(axes), c.expr.names - set(axes)
        if len(along) != 1 or len(inside) != 1:
            return None
        (a,), (r,) = along, inside
        found.setdefault(a, set()).add(r)
        windows.setdefault((a, r), []).append(c)
        least = c.expr.constant + min(c.expr.coefficient(r) * end for end in limits[r])
        whole[a] = _held(c.expr.coefficient(a), least, whole[a])
    # Where none is whole, they lie behind the last one.
    whole = {a: ends if ends[0] <= ends[1] else (limits[a][1] + 1, limits[a][1]) for a, ends in whole.items()}
    even = any(_length(limits[a]) >= EVEN for a in axes if a not in found)
    short = any(_length(whole[a]) < (1 - MOST_SHORTER) * _length(limits[a]) for a in found)
    if (short and not even) or not _is_whole_along(domain, iterators, axes, limits):
        return None
    shares = {(a, r): _share(conditions, a, r, limits, whole[a]) for (a, r), conditions in windows.items()}
    return {
        a: Ends(frozenset(inside), whole[a][0], whole[a][1] + 1, prod(shares[a, r] for r in inside))
        for a, inside in found.items()
    }


def _is_whole_along(
    domain: isl.Set, iterators: Sequence[str], axes: Sequence[str], limits: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether a domain has iterations everywhere along some of its loops."""
    every = isl.Set.universe(domain.get_space())
    for k, n in enumerate(iterators):
        every = every.lower_bound_val(SET, k, limits[n][0]).upper_bound_val(SET, k, limits[n][1])
    for k in reversed(range(len(iterators))):
        if iterators[k] not in axes:
            domain, every = domain.project_out(SET, k, 1), every.project_out(SET, k, 1)
    return bool(domain.is_equal(every))


def _held(step: int, least: int, within: tuple[int, int]) -> tuple[int, int]:
    """The first and the last v of a range with `step*v + least >= 0`."""
    low, high = within
    return (max(low, -(least // step)), high) if step > 0 else (low, min(high, least // -step))


def _length(ends: tuple[int, int]) -> int:
    return max(0, ends[1] - ends[0] + 1)


def _share(
    conditions: Sequence[Constraint], a: str, r: str, limits: Mapping[str, tuple[int, int]], whole: tuple[int, int]
) -> float:
    """The share of the pairs of two loops' iterations for which some conditions hold, as all do where a is whole."""
    (low, high), (first, last) = limits[a], limits[r]
    places = np.concatenate([np.arange(low, whole[0]), np.arange(whole[1] + 1, high + 1)])
    least, most = np.full(places.shape, first), np.full(places.shape, last)
    for c in conditions:
        step, rest = c.expr.coefficient(r), c.expr.coefficient(a) * places + c.expr.constant
        if step > 0:
            least = np.maximum(least, -(rest // step))
        else:
            most = np.minimum(most, rest // -step)
    pairs = int(np.maximum(most - least + 1, 0).sum()) + _length(whole) * _length(limits[r])
    return pairs / (_length(limits[a]) * _length(limits[r]))


def _that_meet_data(program: Program, s: Statement, finite: Collection[str]) -> Statement:
    """A statement without the iterations of its reduction that meet padding at every place, as most rows of a window do
    that is larger than the image; but for one where all do.
    """
    factors = _padded_factors(program, s)
    box = box_bounds(bound_domain(program, s), s.iterators) if factors is not None else None
    if factors is None or box is None or s.reads[factors[1]].tensor not in finite:
        return s
    read, left = s.reads[factors[0]], dict(box)
    for c in (c for c in read.guard if c.expr.is_linear and not c.equality):
        for r in c.expr.names - names_of(s.write):
            most = c.expr.constant + sum(max(_values(c, n, box)) for n in c.expr.names - {r})
            step, (low, high) = c.expr.coefficient(r), left[r]
            left[r] = (max(low, -(most // step)), high) if step > 0 else (low, min(high, most // -step))
    if any(low > high for low, high in left.values()):  # nothing does: one iteration is zero, too
        left = {n: ends if n in names_of(s.write) else (ends[0], ends[0]) for n, ends in box.items()}
    if left == dict(box):
        return s
    kept = tuple(c for c in read.guard if not _holds(c, left))
    reads = [*s.reads]
    reads[factors[0]] = replace(read, guard=kept, fill=read.fill if kept else None)
    domain = s.domain
    for k, n in enumerate(s.iterators):
        if left[n] != box[n]:
            domain = domain.lower_bound_val(SET, k, left[n][0]).upper_bound_val(SET, k, left[n][1])
    return replace(s, domain=domain, reads=tuple(reads))


def _values(c: Constraint, name: str, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """What a name adds to a condition at either end of its range."""
    step = c.expr.coefficient(name)
    return step * box[name][0], step * box[name][1]


def _holds(c: Constraint, box: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a condition holds everywhere in a box."""
    if not c.expr.is_linear or c.equality:
        return False
    return c.expr.constant + sum(min(_values(c, n, box)) for n in c.expr.names) >= 0


def _without_padding(program: Program, s: Statement, finite: Collection[str], planes: bool) -> Statement:
    """A statement whose domain says what some of a read's guards did."""
    factors = _padded_factors(program, s)
    if factors is None or s.reads[factors[1]].tensor not in finite:
        return s
    position, read = factors[0], s.reads[factors[0]]
    box = box_bounds(bound_domain(program, s), s.iterators)
    left_out = [] if box is None else _left_out(s, read, planes, box)
    return _cut(program, s, position, left_out) if left_out else s


def _without_rows(program: Program, s: Statement, finite: Collection[str]) -> Statement:
    """A statement whose domain says what a read's guards did of a row."""
    factors = _padded_factors(program, s, again=False)
    if factors is None or s.reads[factors[1]].tensor not in finite:
        return s
    read, written = s.reads[factors[0]], names_of(s.write)
    rows = [c for c in read.guard if not c.equality and not c.expr.names & read.affine_index[-1].names]
    rows = [c for c in rows if len(c.expr.names) == 2 and len(c.expr.names & written) == 1]
    return _cut(program, s, factors[0], rows) if rows else s


def _cut(program: Program, s: Statement, position: int, left_out: Sequence[Constraint]) -> Statement:
    """A statement with some of a read's guards in its domain; itself where that is none that can be scheduled."""
    read = s.reads[position]
    kept = tuple(c for c in read.guard if c not in left_out)
    reads = [*s.reads]
    reads[position] = replace(read, guard=kept, fill=read.fill if kept else None)
    outside = set_of(left_out, s.iterators, program.parameters, s.name)
    shorter = replace(s, domain=s.domain.intersect(outside).coalesce(), reads=tuple(reads))
    axes = [i for i in s.iterators if i in names_of(s.write)]
    return shorter if uneven_axes(program, shorter, axes) else s


def _padded_factors(program: Program, s: Statement, again: bool = True) -> tuple[int, int] | None:
    """Of a sum of products the read that is zero where it is padded, and a constant; `again`: one that moves along a
    loop which the read does not, so that both are used again, as no window of one channel is.
    """
    factors = product_of(s.body)
    if factors is None or s.combiner is None or s.combiner.symbol != "+" or not s.reorder:
        return None
    for position, other in (factors, factors[::-1]):
        read, factor = s.reads[position], s.reads[other]
        if read.fill is None or read.fill.value != 0 or factor.guard or read.indirect or factor.indirect:
            continue
        if program.tensor[factor.tensor].role != "constant" or program.tensor[read.tensor].layout is not None:
            continue
        if not again or names_of(factor) & names_of(s.write) - names_of(read):
            return position, other
    return None


def _left_out(s: Statement, read: Access, planes: bool, box: Mapping[str, tuple[int, int]]) -> list[Constraint]:
    """The guards about one parallel loop and one of the reduction each, but for those on the last axis with some where
    a window is long.
    """
    written, fast = names_of(s.write), read.affine_index[-1].names
    if not planes and (fast & written or not fast or fast & {n for c in read.guard for n in c.expr.names}):
        return []
    place = {n: d for d, i in enumerate(read.affine_index) for n in i.names if n in written}
    windows = [c for c in read.guard if len(c.expr.names & written) == 1 and len(c.expr.names) == 2 and not c.equality]
    extents = {n: high - low + 1 for n, (low, high) in box.items()}
    last = max((place.get(n, -1) for c in windows for n in c.expr.names & written), default=-1)
    ends = last if any(extents[n] > LONGEST for c in windows for n in c.expr.names - written) else last + 1
    return [c for c in windows if all(-1 < place.get(n, -1) < ends for n in c.expr.names & written)]
