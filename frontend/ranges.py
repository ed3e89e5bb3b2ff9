"""Ranges of indices from the shapes that they subscript, as in Tensor Comprehensions (Vasilache et al. 2018).

Rounds. An index that is the whole subscript of a read runs over that dimension. One that is alone in other subscripts
gets the largest range that keeps these in bounds, and one that stands beside others only, the largest that keeps those
subscripts in bounds whose other indices have a range, whatever they do; then the next round. One that is found in
remainders only, `x[(i + 1) % 100]`, goes around once. So an index that is fixed by itself is narrowed by no other
subscript, which would leave out terms of a sum: such a read is refused by the check of bounds. Ranges are affine in the
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import islpy as isl

from poly.affine import Affine, Atom, FloorDiv, Mod, Var, var
from poly.errors import ParseError, ShapeError, WantedShape
from poly.sets import SET, affine_of_pw, header

UNKNOWN: Final = "8"  # in hints, for an extent that nothing says
_CONSTANTS: Final = {"pi": math.pi, "tau": math.tau}


@dataclass(frozen=True)
class Range:
    """max(lower) <= index < min(upper), affine in the sizes. Empty tuples: bounded, but not by one expression."""

    lower: tuple[Affine, ...]
    upper: tuple[Affine, ...]

    @property
    def ends(self) -> tuple[Affine, Affine] | None:
        """The first and the last value, where each is one expression."""
        return (self.lower[0], self.upper[0] - 1) if len(self.lower) == len(self.upper) == 1 else None


@dataclass(frozen=True)
class Subscripted:
    """One subscript of one access: `tensor[..., expression, ...]` where the extent is `extent`.

    `reads`: it is of a read without a condition, which fixes an index that is all of it.
    """

    tensor: str
    dimension: int
    expression: Affine
    extent: Affine
    reads: bool = True

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{self.tensor} (dimension {self.dimension}, extent {self.extent})"


def infer_ranges(
    indices: Sequence[str],
    subscripts: Sequence[Subscripted],
    known: Mapping[str, Range],
    context: isl.Set,
    loose: Collection[str] = (),
    beside: Callable[[Mapping[str, Range]], Mapping[str, Range]] = dict,
    ends: Callable[[str], tuple[str, str]] = lambda _: ("0", UNKNOWN),
) -> dict[str, Range]:
    """A range for every index; `known` are given. `loose`: indices that a condition names, which may differ in extents.
    `beside`: what a condition makes of the ranges found so far, asked where no subscript says more: `p == i // 10`.
    `ends`: for messages, of an index that a condition bounds at one end, both.

    Raises `ShapeError` for an index that is the whole subscript of two different extents, and `ParseError` that names
    an index without a range.
    """
    ranges = dict(known)
    while missing := [i for i in indices if i not in ranges]:
        found = {i: r for i in missing if (r := _range(i, indices, subscripts, ranges, context, loose)) is not None}
        found = found or {i: r for i in missing if (r := _round(i, subscripts)) is not None}
        found = found or {i: r for i, r in beside(ranges).items() if i in missing}
        if not found:
            raise _underconstrained(missing, subscripts, loose, ends)
        ranges.update(found)
    return ranges


def _range(
    index: str,
    indices: Sequence[str],
    subscripts: Sequence[Subscripted],
    ranges: Mapping[str, Range],
    context: isl.Set,
    loose: Collection[str],
) -> Range | None:
    """What the subscripts say of an index in this round; None where they say nothing yet."""
    whole = list(_whole(index, subscripts))
    if index not in loose:
        _check_extents(index, whole, context)
    if any(s.reads for s in whole):  # where a condition lets extents differ, over all of them
        return Range((Affine(),), strongest([s.extent for s in whole], context, least=False)[:1])
    beside = {s: [i for i in indices if i != index and i in s.expression.names] for s in subscripts}
    own = [s for s in subscripts if index in s.expression.names]
    for bounding in (
        [s for s in own if not beside[s]],
        [s for s in own if beside[s] and all(i in ranges for i in beside[s])],
    ):
        solved = (solve(s.expression, Affine(), s.extent - 1, index, ranges) for s in bounding)
        pairs = [pair for pair in solved if pair is not None]
        if pairs:
            lower = strongest([low for low, _ in pairs], context, least=False)
            return Range(lower, strongest([high + 1 for _, high in pairs], context, least=True))
    return None


def _round(index: str, subscripts: Sequence[Subscripted]) -> Range | None:
    """Once around, for an index that only moves in circles: `x[(i + 1) % 100]`."""
    own = [s.expression for s in subscripts if index in s.expression.names]
    around = {_modulus(index, e) for e in own}
    if not own or len(around) > 1 or None in around:
        return None
    return Range((Affine(),), (Affine((), max(m for m in around if m)),))


def _modulus(index: str, expression: Affine) -> int | None:
    """m of `(index + ...) % m`; None for anything else."""
    match [(atom, c) for atom, c in expression.terms if index in Affine(((atom, 1),)).names]:
        case [(Mod(argument, divisor), _)] if dict(argument.terms).get(Var(index)) in (1, -1):
            alone = sum(index in Affine(((a, 1),)).names for a, _ in argument.terms) == 1
            return divisor if alone else None
        case _:
            return None


def _whole(index: str, subscripts: Sequence[Subscripted]) -> Iterator[Subscripted]:
    """Where an index is the whole subscript, of dimensions that it does not also reach shifted (as in a stencil)."""
    shifted = {
        (s.tensor, s.dimension) for s in subscripts if index in s.expression.names and s.expression != var(index)
    }
    for s in subscripts:
        if s.expression == var(index) and (s.tensor, s.dimension) not in shifted:
            yield s


def end_of(index: str, subscripts: Iterable[tuple[object, Affine]]) -> str:
    """For hints: where a range of an index may end, by the first of some subscripts with extents that it is in."""
    own = (extent for s, extent in subscripts if isinstance(s, Affine) and index in s.names)
    return str(next(own, UNKNOWN))


def _underconstrained(
    missing: Sequence[str],
    subscripts: Iterable[Subscripted],
    loose: Collection[str],
    ends: Callable[[str], tuple[str, str]],
) -> ParseError:
    index = missing[0]
    together = [s for s in subscripts if index in s.expression.names]
    beside = together[0].expression.names if together else ()
    if half := [i for i in missing if i in loose and (i in beside or not together)]:  # a condition leaves an end open
        why = "the condition does not bound it at both ends"
        low, high = ends(half[0])
        hint = f"both ends, such as where {low} <= {half[0]} < {high}"
        return ParseError(f"the range of index {half[0]!r} is not determined: {why}", hint=hint)
    why = f"it occurs only in {together[0].tensor}[{together[0].expression}]" if together else "no subscript bounds it"
    hint = f"where 0 <= {index} < {end_of(index, ((s.expression, s.extent) for s in together))}, or "
    if not together and index in _CONSTANTS:
        text = f"{index!r} is no constant here, but an index, and no subscript bounds it"
        return ParseError(text, hint=f"{_CONSTANTS[index]!r}, or {index}=() if it is a scalar tensor")
    scalar = None if together else WantedShape(index, ())  # most likely an index, yet
    hint += "give the shape of the tensor it writes" if scalar is None else f"{scalar} if it is a scalar tensor"
    return ParseError(f"the range of index {index!r} is not determined: {why}", hint=hint, wanted=scalar)


def _check_extents(index: str, bare: Sequence[Subscripted], context: isl.Set) -> None:
    for other in bare[1:]:
        if other.extent == bare[0].extent:
            continue
        if context.is_subset(compare(bare[0].extent, "=", other.extent, context)):
            continue
        raise ShapeError(
            f"index {index!r} runs over {bare[0].shown} and {other.shown}", hint="give both the same extent"
        )


def solve(
    expression: Affine, low: Affine, high: Affine, index: str, ranges: Mapping[str, Range]
) -> tuple[Affine, Affine] | None:
    """The first and last value of `index` with low <= expression <= high, whatever the other indices do.

    None where the expression does not bound it, or another index has no simple range.
    """
    inside: list[tuple[Atom, int]] = [(a, c) for a, c in expression.terms if index in Affine(((a, 1),)).names]
    if len(inside) != 1:
        return None
    atom, factor = inside[0]
    rest = expression - Affine(((atom, factor),))
    least, most = extreme(rest, ranges, False), extreme(rest, ranges, True)
    if least is None or most is None:
        return None
    bottom, top = low - least, high - most  # bottom <= factor * atom <= top
    first, last = (bottom, top) if factor > 0 else (-top, -bottom)
    first, last = -((-first) // abs(factor)), last // abs(factor)
    match atom:
        case Var():
            return first, last
        case FloorDiv(argument, divisor):
            return solve(argument, first * divisor, last * divisor + (divisor - 1), index, ranges)
        case Mod():
            return None


def extreme(expression: Affine, ranges: Mapping[str, Range], most: bool) -> Affine | None:
    """The least or greatest value of an expression over ranges; None without a simple closed form."""
    total = Affine((), expression.constant)
    for atom, c in expression.terms:
        if not any(name in ranges for name in Affine(((atom, 1),)).names):
            total = total + Affine(((atom, c),))
            continue
        match atom:
            case Var(name):
                ends = ranges[name].ends
                value = None if ends is None else ends[(c > 0) == most]
            case FloorDiv(argument, divisor):
                inner = extreme(argument, ranges, (c > 0) == most)
                value = None if inner is None else inner // divisor
            case Mod(_, divisor):
                value = Affine((), divisor - 1 if (c > 0) == most else 0)
        if value is None:
            return None
        total = total + value * c
    return total


def strongest(bounds: Sequence[Affine], context: isl.Set, least: bool) -> tuple[Affine, ...]:
    """The bounds that no other one implies; the least are the strongest upper bounds."""
    kept = list(dict.fromkeys(bounds))
    sign = "<=" if least else ">="
    for bound in list(kept):
        if any(context.is_subset(compare(o, sign, bound, context)) for o in kept if o is not bound):
            kept.remove(bound)
    return tuple(kept)


def compare(a: Affine, sign: str, b: Affine, context: isl.Set) -> isl.Set:
    """The sizes for which the comparison holds."""
    names = [str(context.get_dim_name(isl.dim_type.param, d)) for d in range(context.dim(isl.dim_type.param))]
    return isl.Set(f"{header(names)}{{ : {a.isl_text} {sign} {b.isl_text} }}")


def ranges_of_set(domain: isl.Set, iterators: Sequence[str]) -> dict[str, Range]:
    """The ranges of the dimensions that a set bounds on both sides, by constants and sizes."""
    found: dict[str, Range] = {}
    for d, name in enumerate(iterators):
        if not bounded(domain, d):
            continue
        least, most = affine_of_pw(domain.dim_min(d), ()), affine_of_pw(domain.dim_max(d), ())
        found[name] = Range(() if least is None else (least,), () if most is None else (most + 1,))
    return found


def likely_ends(domain: isl.Set, d: int) -> tuple[str, str]:
    """For hints: the first value of a dimension and one after the last, an end that a set leaves open as an example."""
    rank = domain.dim(SET)
    alone = domain.project_out(SET, d + 1, rank - d - 1).project_out(SET, 0, d)

    def end(found: Callable[[int], isl.PwAff]) -> Affine | None:
        try:
            return affine_of_pw(found(0), ())
        except isl.Error:  # there is none
            return None

    least, most = end(alone.dim_min), end(alone.dim_max)
    return str(least or 0), str((least or 0) + int(UNKNOWN) if most is None else most + 1)


def bounded(domain: isl.Set, d: int) -> bool:
    """True where dimension d has a least and a greatest value for all sizes, whatever the other dimensions are."""
    rank = domain.dim(SET)
    alone = domain.project_out(SET, d + 1, rank - d - 1).project_out(SET, 0, d)
    if not alone.dim_is_bounded(SET, 0):
        return False
    if all(part.dim(isl.dim_type.div) == 0 for part in alone.get_basic_sets()):
        return True
    try:  # to isl every multiple of 2 is bounded
        for end in (alone.dim_min, alone.dim_max):
            end(0)
    except isl.Error:
        return False
    return True
