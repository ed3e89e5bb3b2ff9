"""The box around what accesses touch in a tile by algebra, where loops are plain tiles of iterators.

A loop `(i + s) // d` says `i == d*loop - s + rest`, where the rest starts at 0 in every tile of a domain that is a box
and begins with one, and `rest // e` says the same of the rest. So a subscript with positive factors starts in every
tile at the same sum of loops, and goes furthest in the first tile, which is whole. What `box_of` finds by isl is the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.affine import Affine, FloorDiv, Var, var
from poly.program import Access, Statement
from poly.relations import bound_domain, box_bounds
from poly.scheduling.footprint import Box
from poly.scheduling.schedule import Schedule

Span = tuple[Affine, int]  # the first value in a tile, and how many there are in a whole one


def plain_box(
    schedule: Schedule, loops: Sequence[str], variables: Sequence[str], uses: Sequence[tuple[Statement, Access]]
) -> Box | None:
    """The box that uses of a tensor touch in one iteration of `loops`, called `variables`; None where it is not plain
    (`poly.scheduling.footprint.box_of` may find one).
    """
    tiles: list[tuple[Affine, int, int]] | None = None
    found: list[list[Span]] = []
    for s, access in uses:
        if access.guard or access.indirect:
            return None
        split = _Split.of(schedule, s, loops, variables)
        if split is None or (tiles is not None and split.tiles != tiles):  # not in the same tiles
            return None
        tiles = split.tiles
        spans = [split.span(e.substitute(schedule.program.binding)) for e in access.affine_index]
        known = [span for span in spans if span is not None]
        if len(known) < len(spans):
            return None
        found.append(known)
    lower: list[Affine] = []
    extents: list[Affine] = []
    for axis in zip(*found, strict=True):
        apart = [first - axis[0][0] for first, _ in axis]
        if any(a.terms for a in apart):
            return None
        least = min(a.constant for a in apart)
        lower.append(axis[0][0] + least)
        extents.append(Affine((), max(a.constant + n for a, (_, n) in zip(apart, axis, strict=True)) - least))
    return Box(tuple(lower), tuple(extents))


@dataclass(frozen=True)
class _Split:
    """The iterators of a statement as what loops around say and a rest. `tiles`: these loops, with the ends of their
    iterator, which is called by its place among them.
    """

    spans: dict[str, Span]
    tiles: list[tuple[Affine, int, int]]

    @staticmethod
    def of(schedule: Schedule, s: Statement, loops: Sequence[str], variables: Sequence[str]) -> _Split | None:
        bounds = box_bounds(bound_domain(schedule.program, s), s.iterators)
        if bounds is None:
            return None
        spans: dict[str, Span] = {i: (Affine((), low), high - low + 1) for i, (low, high) in bounds.items()}
        rests: dict[str, Affine] = {}
        tiles: list[tuple[Affine, int, int]] = []
        nest = schedule.nests[s.name]
        for loop, variable in zip(loops, variables, strict=True):
            value = nest.loops[loop].substitute(schedule.program.binding)
            if value.is_constant:
                tiles.append((value, 0, 0))
                continue
            if len(value.terms) != 1 or value.terms[0][1] != 1 or len(value.names) != 1:
                return None
            (name,) = value.names
            if name not in spans:
                return None
            place = list(rests).index(name) if name in rests else len(rests)
            tiles.append((value.substitute({name: var(f"#{place}")}), *bounds[name]))
            first, count = spans[name]
            atom, rest = value.terms[0][0], rests.get(name, var(name))
            argument, divisor = (atom.argument, atom.divisor) if isinstance(atom, FloorDiv) else (value, 1)
            shift = argument - rest
            start = (bounds[name][0] if name not in rests else 0) + shift.constant
            if shift.terms or start % divisor or (name in rests and start):
                return None
            outer = var(variable) - (value.constant if divisor > 1 else 0)
            if count <= divisor:  # one tile
                spans[name], rests[name] = (first, count), argument % divisor
                continue
            begin = first if name in rests else Affine()
            moved = outer * divisor - (shift.constant if name not in rests else 0)
            spans[name], rests[name] = (begin + moved, divisor), argument % divisor
        return _Split(spans, tiles)

    def span(self, subscript: Affine) -> Span | None:
        """A subscript's first value in a tile, and how many from the first to the last."""
        first, reach = Affine((), subscript.constant), 1
        for atom, c in subscript.terms:
            if not isinstance(atom, Var) or atom.name not in self.spans:
                return None
            start, count = self.spans[atom.name]
            if c < 0 and count > 1:
                return None
            first, reach = first + start * c, reach + c * (count - 1)
        return first, reach
