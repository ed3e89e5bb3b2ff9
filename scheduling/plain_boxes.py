"""The box around what accesses touch in a tile by algebra, where loops are plain tiles of iterators.

A loop `(i + s) // d` says `i == d*loop - s + rest`, where the rest starts at 0 in every tile of a domain that is a box
and begins with one, and `rest // e` says the same of the rest. So a subscript with positive factors starts in every
tile at the same sum of loops, and goes furthest in the first tile, which is whole. Of a domain that takes a part of
every tile alone, as pieces of a split inside of tiles do, the rest starts where that part does. What `box_of` finds by
isl is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poly.affine import Affine, FloorDiv, Var, var
from poly.program import Access, Statement
from poly.relations import bound_domain, cut_box
from poly.scheduling.footprint import Box
from poly.scheduling.schedule import Schedule

Span = tuple[Affine, int]  # the first value in a tile, and how many there are in a whole one
_Around = tuple[Affine, int, int, tuple[int, int, int] | None]  # a loop, the ends of its iterator, the part it takes


def plain_box(
    schedule: Schedule, loops: Sequence[str], variables: Sequence[str], uses: Sequence[tuple[Statement, Access]]
) -> Box | None:
    """The box that uses of a tensor touch in one iteration of `loops`, called `variables`; None where it is not plain
    (`poly.scheduling.footprint.box_of` may find one).
    """
    tiles: list[_Around] | None = None
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
    iterator, which is called by its place among them, and the part of tiles that it takes.
    """

    spans: dict[str, Span]
    tiles: list[_Around]

    @staticmethod
    def of(schedule: Schedule, s: Statement, loops: Sequence[str], variables: Sequence[str]) -> _Split | None:
        found = cut_box(bound_domain(schedule.program, s), s.iterators)
        if found is None:
            return None
        bounds, parts = found
        cut: dict[str, int] = {}  # where the part of a tile begins, of those that are walked
        spans: dict[str, Span] = {i: (Affine((), low), high - low + 1) for i, (low, high) in bounds.items()}
        rests: dict[str, Affine] = {}
        tiles: list[_Around] = []
        nest = schedule.nests[s.name]
        for loop, variable in zip(loops, variables, strict=True):
            value = nest.loops[loop].substitute(schedule.program.binding)
            if value.is_constant:
                tiles.append((value, 0, 0, None))
                continue
            if len(value.terms) != 1 or value.terms[0][1] != 1 or len(value.names) != 1:
                return None
            (name,) = value.names
            if name not in spans:
                return None
            place = list(rests).index(name) if name in rests else len(rests)
            tiles.append((value.substitute({name: var(f"#{place}")}), *bounds[name], parts.get(name)))
            first, count = spans[name]
            atom, rest = value.terms[0][0], rests.get(name, var(name))
            argument, divisor = (atom.argument, atom.divisor) if isinstance(atom, FloorDiv) else (value, 1)
            shift = argument - rest
            start = (bounds[name][0] if name not in rests else cut.get(name, 0)) + shift.constant
            if shift.terms or start % divisor:
                return None
            begin = first - cut.get(name, 0) if name in rests else Affine()
            outer = var(variable) - (value.constant if divisor > 1 else 0)
            rests[name] = argument % divisor
            cut |= {name: 0} if name in cut else {}
            if count <= divisor:  # one tile
                continue
            spans[name] = begin + outer * divisor - shift.constant, divisor
            if name in parts and name not in cut and rests[name] == var(name) % parts[name][0]:
                _, low, high = parts[name]
                spans[name], cut[name] = (spans[name][0] + low, high - low + 1), low
        return _Split(spans, tiles) if cut.keys() == parts.keys() else None

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
