"""Footprints: which elements of a tensor a tile touches, as boxes with an affine corner.

`box_of` gives the corner and the extents of a footprint that is a relation; `parametric_extents` gives the extents for
all tile sizes at once, affine in the sizes, for the search. Both speak of interior tiles: clipped ones explode
(a corner is kept where the footprint would leave the array, and extents are clamped to the array's).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import islpy as isl

from poly.affine import Affine, var
from poly.coefficients import conditions_of, relation_of
from poly.errors import ScheduleError
from poly.sets import OUT, affine_of_pw, parameter_names, within_budget

_ELEMENT: Final = "e_"
_BUDGET: Final = 1_000_000  # operations of isl for one extent: about a second


@dataclass(frozen=True)
class Box:
    """Lower corner as a function of the tile, and extents (affine in free sizes; ints where nothing is free)."""

    lower: tuple[Affine, ...]
    extents: tuple[Affine, ...]


def box_of(footprint: isl.Map, tile: Sequence[str], where: str) -> Box:
    """The box around { [tile] -> [element] }: of all affine lower bounds of an axis the one with the least extent.

    (PPCG's fixed box hull.) Raises `ScheduleError` where an axis has no affine lower bound or no affine extent.
    """
    lower: list[Affine] = []
    extents: list[Affine] = []
    for d in range(footprint.dim(OUT)):
        axis = footprint.project_out(OUT, d + 1, footprint.dim(OUT) - d - 1).project_out(OUT, 0, d)
        rated = _rated_corners(axis, tile)
        if not rated:
            raise ScheduleError(
                f"axis {d} of the footprint has no corner that is affine in {', '.join(tile) or 'the sizes'}",
                where=where,
                hint="split the loop, or promote further out",
            )
        extent, bound = min(rated, key=lambda r: (not r[0].is_constant, r[0].constant, len(r[1].terms)))
        lower.append(bound)
        extents.append(extent)
    return Box(tuple(lower), tuple(extents))


def _rated_corners(axis: isl.Map, tile: Sequence[str]) -> list[tuple[Affine, Affine]]:
    """Extents of an axis with the lower bounds that they are from. The least element itself leaves the least extent:
    where it is affine, only bounds that are shorter are looked at besides.
    """
    least = affine_of_pw(axis.dim_min(0), tile) if _bounded(axis) else None
    values = None if least is None else _above(axis, tile, least)
    extent = None if values is None else _constant_extent(values)
    if least is not None and extent is not None:
        shorter = [b for b in _lower_bounds(axis, tile) if len(b.terms) < len(least.terms)] if least.terms else []
        above = [(b, v) for b in shorter if (v := _above(axis, tile, b)) is not None]
        return [(extent, least), *((e, b) for b, v in above if (e := _constant_extent(v)) is not None)]
    bounds = [b for b in (least, *_lower_bounds(axis, tile)) if b is not None]
    above = [(b, v) for b in dict.fromkeys(bounds) if (v := _above(axis, tile, b)) is not None]
    rated = [(e, b) for b, v in above if (e := _constant_extent(v)) is not None]
    return rated or [(e, b) for b, v in above if (e := _affine_extent(v)) is not None]


def _lower_bounds(axis: isl.Map, tile: Sequence[str]) -> list[Affine]:
    """Affine functions of the tile that are at most the (only) output of a relation."""
    found: list[Affine] = []
    for condition in conditions_of(axis.simple_hull().wrap(), [*tile, _ELEMENT]):
        c = 0 if condition is None else condition.expr.coefficient(_ELEMENT)
        if condition is None or c == 0 or (c < 0 and not condition.equality):
            continue
        rest = condition.expr - var(_ELEMENT) * c
        if _ELEMENT not in rest.names:
            bound = -((rest if c > 0 else -rest) // abs(c))  # c*e + rest >= 0  ->  e >= ceil(-rest/c)
            if bound not in found:
                found.append(bound)
    return found


def _bounded(axis: isl.Map) -> bool:
    return bool(axis.range().dim_has_any_lower_bound(isl.dim_type.set, 0))


def _above(axis: isl.Map, tile: Sequence[str], lower: Affine) -> isl.Set | None:
    """By how much the outputs are above `lower`, over all tiles; None where it is no bound, or there is no other."""
    points = axis.wrap().flatten()
    points = points.reset_tuple_id() if points.has_tuple_id() else points
    values = points.apply(relation_of([var(_ELEMENT) - lower], [*tile, _ELEMENT], parameter_names(axis)))
    if values.is_empty():
        return values
    bounded = values.dim_has_any_upper_bound(isl.dim_type.set, 0) and values.dim_min_val(0).is_nonneg()
    return values if bounded else None


def _constant_extent(values: isl.Set) -> Affine | None:
    """The greatest of `_above` plus one, where it is a number for all sizes."""
    if values.is_empty():
        return Affine((), 0)
    greatest = values.project_out_all_params().dim_max_val(0)
    return Affine((), int(str(greatest)) + 1) if greatest.is_int() else None


def _affine_extent(values: isl.Set) -> Affine | None:
    """The greatest of `_above` plus one, affine in the free sizes. isl may need seconds for it."""
    found = within_budget(_BUDGET, lambda: affine_of_pw(values.dim_max(0), []), lambda: None)
    return None if found is None else found + 1


def interval(expression: Affine, ranges: Mapping[str, tuple[Affine, Affine]]) -> tuple[Affine, Affine]:
    """Least and greatest value of a linear expression whose names lie in inclusive ranges (others stay symbolic)."""
    low = high = Affine((), expression.constant)
    for atom, c in expression.terms:
        name = str(Affine(((atom, 1),)))
        a, b = ranges.get(name, (Affine(((atom, 1),)), Affine(((atom, 1),))))
        low, high = low + (a if c > 0 else b) * c, high + (b if c > 0 else a) * c
    return low, high


def parametric_extents(
    accesses: Sequence[Sequence[Affine]], sizes: Mapping[str, Affine], shape: Sequence[Affine]
) -> tuple[Affine, ...]:
    """Extents of the box that a reference group touches in an interior tile, affine in the tile sizes.

    `accesses`: subscripts with one linear part (a reference group); `sizes`: for each iterator its extent inside the
    tile, an int or the name of a tile size (iterators left out are fixed in a tile). Clamp to `shape` when evaluating.
    """
    extents: list[Affine] = []
    for d in range(len(shape)):
        ranges = {i: (Affine(), e - 1) for i, e in sizes.items()}
        spans = [interval(subscripts[d] - _fixed(subscripts[d], sizes), ranges) for subscripts in accesses]
        offsets = [_offset(subscripts[d]) for subscripts in accesses]
        low, high = spans[offsets.index(min(offsets))][0], spans[offsets.index(max(offsets))][1]
        extents.append(high - low + 1)
    return tuple(extents)


def _fixed(expression: Affine, sizes: Mapping[str, Affine]) -> Affine:
    """The terms that do not vary inside a tile."""
    return Affine(tuple((a, c) for a, c in expression.terms if not (Affine(((a, 1),)).names & sizes.keys())))


def _offset(expression: Affine) -> int:
    return expression.constant
