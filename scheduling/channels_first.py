"""Sums of a window over its channels first: for few results, products of all places with all weights, added up behind.

    y[m,h,w] += x[c, h + a, w + b] * v[m,c,a,b]    ->    t[m,a,b,h,w] += x[c,h,w] * v[m,c,a,b]
                                                         y[m,h,w] += t[m,a,b, h + a, w + b]

An element of x is loaded for as many products as there are m, here for as many as there are m, a and b: a product of
matrices. Windows of the same x, as the remainders of a transposed one are, have one tensor between: then for as many as
all of them have. Only where t has hardly more elements than the sums behind it have terms, and weights are finite where
padding is left out. Sums change their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from poly.affine import Affine, var
from poly.expr import COMBINERS, Apply, Read
from poly.program import Access, Program, Statement, Tensor, unused_name
from poly.scheduling.contraction import names_of
from poly.scheduling.groups import bare, tensors_written
from poly.scheduling.sums import alone, number_of, over_box, ranges_of, start_of, with_statements

MOST_RESULTS = 64  # at a place: of more, an element is loaded seldom enough
# Elements of the tensor between for each term of the sums behind it; of several windows together, whose results end
# sooner for some remainders than for others.
UNUSED, UNUSED_TOGETHER = 1.2, 2.0


@dataclass(frozen=True)
class First:
    """A program with channels first, the statements whose sums they were, of windows of `data`, and the one that makes
    them now, how many terms are added up behind, each a sum over so many channels, and how many results at most are at
    a place. `rated`: the program without the margins of what is between, as the model rates it.
    """

    program: Program
    rated: Program
    sums: tuple[str, ...]
    data: str
    made: str
    terms: int
    channels: int
    results: int


@dataclass(frozen=True)
class _Sums:
    """Sums of products of a window of `data` with `weights`: the loops over channels alone, the others of the weights,
    the axes of the data along others; `ranges`: of all iterators; `slides`: whether windows overlap, or it has one tap;
    `results`: at a place.
    """

    statement: Statement
    start: Statement
    data: Access
    weights: Access
    channels: tuple[str, ...]
    taps: tuple[str, ...]
    places: tuple[int, ...]
    ranges: dict[str, int]
    slides: bool
    results: int

    @property
    def terms(self) -> int:
        """How many are added up behind what is between."""
        return prod(e for n, e in self.ranges.items() if n not in self.channels)

    @property
    def axes(self) -> list[int]:
        """Of the data along its channels."""
        return [next(d for d, i in enumerate(self.data.affine_index) if bare(i) == c) for c in self.channels]


def channels_first(program: Program, finite: Collection[str]) -> Iterator[First]:
    """One program for all statements that may be done so together, then for every one; `finite`: constants without
    infinities.
    """
    found = [sums for s in program.statements if (sums := _sums(program, s)) is not None]
    found = [sums for sums in found if not sums.data.guard or sums.weights.tensor in finite]
    for sums in (*_of_same_data(program, found), *((one,) for one in found if one.slides)):
        changed = _first(program, sums)
        if changed is not None:
            yield changed


def _of_same_data(program: Program, found: Sequence[_Sums]) -> Iterator[tuple[_Sums, ...]]:
    """The sums of which several windows are of the same data, in the order of their starts, where all that they read is
    there before the first of them.
    """
    for tensor in dict.fromkeys(sums.data.tensor for sums in found):
        same = sorted((sums for sums in found if sums.data.tensor == tensor), key=lambda sums: sums.start.path[:1])
        same = [sums for sums in same if sums.places == same[0].places]
        read = {sums.weights.tensor for sums in same}
        late = any(
            w.path[:1] >= same[0].start.path[:1] for w in program.statements if not read.isdisjoint(tensors_written(w))
        )
        if sum(sums.slides for sums in same) > 1 and not late:
            yield tuple(same)


def _sums(program: Program, s: Statement) -> _Sums | None:
    """What a statement says of its window; None where it is no such sum."""
    start = start_of(program, s) if s.combiner is not None and s.reorder and alone(s, program) else None
    if start is None:
        return None
    match s.body:
        case Apply("mul", (Read(a), Read(b))) if a != b and len(s.reads) == 2:
            pairs = ((s.reads[a], s.reads[b]), (s.reads[b], s.reads[a]))
        case _:
            return None
    dtypes = {program.tensor[access.tensor].dtype for access, _ in s.accesses}
    ranges = ranges_of(program, s)
    plain = all(not access.indirect and program.tensor[access.tensor].layout is None for access, _ in s.accesses)
    if s.combiner != COMBINERS["+"] or not plain or ranges is None or dtypes not in ({"f32"}, {"f64"}):
        return None
    return next((f for data, v in pairs if (f := _of(program, s, start, data, v, ranges)) is not None), None)


def _of(
    program: Program, s: Statement, start: Statement, data: Access, weights: Access, ranges: dict[str, int]
) -> _Sums | None:
    written, own = names_of(s.write), names_of(data)
    slides = any(i.names & written and i.names - written for i in data.affine_index)
    zero = data.fill is None or data.fill.value == 0  # a sum over channels of what is filled in is no fill
    if not zero or weights.guard or program.tensor[data.tensor].role == "constant":
        return None
    alone_in = [{bare(i) for i in access.affine_index} - {None} for access in (data, weights)]
    channels = tuple(n for n in s.iterators if n in alone_in[0] & alone_in[1] and n not in written)
    taps = tuple(n for i in weights.affine_index for n in _slow_first(i) if n not in channels)
    places = tuple(d for d, i in enumerate(data.affine_index) if not i.names & {*channels})
    shared = alone_in[0] & alone_in[1] - {*channels}
    results = prod(ranges[n] for n in names_of(weights) - own)
    guarded = any(c.expr.names & {*channels} for c in data.guard)
    apart = len({*taps}) == len(taps) and len(data.index) - len(places) == len(channels)
    if not channels or not apart or shared or guarded or results > MOST_RESULTS:
        return None
    return _Sums(s, start, data, weights, channels, taps, places, ranges, slides, results)


def _slow_first(i: Affine) -> list[str]:
    return sorted(i.names, key=i.coefficient, reverse=True)


def _first(program: Program, sums: tuple[_Sums, ...]) -> First | None:
    lead, several = sums[0], len(sums) > 1
    made = tuple(f"_weights{k or ''}_made" for k in range(len(sums)))
    ends = ("_start", "_made", "_weights", *made, *(f"_edge{d}{k}" for d in lead.places for k in (0, 1)))
    target = lead.data.tensor if several else lead.statement.write.tensor
    name = unused_name({*program.tensor, *program.statement}, f"{target}_taps", *ends)
    taken = {*program.tensor, *(n for one in sums for n in one.ranges)}
    steps = {d: unused_name(taken, f"place{d}") for d in lead.places}
    margins = [_margins(program, one) for one in sums]
    if any(m is None for m in margins):
        return None
    covered = frozenset(one.statement.name for one, m in zip(sums, margins, strict=True) if m)
    between = _Between(program, sums, name, unused_name(taken, "tap"), steps, _widest(margins), covered)
    terms = sum(one.terms for one in sums)
    if prod(between.extents[n] for n in between.loops) > (UNUSED_TOGETHER if several else UNUSED) * terms:
        return None
    changed = _changed(between)
    rated = _changed(replace(between, margins={})) if between.margins else changed
    names = tuple(one.statement.name for one in sums)
    channels, results = prod(lead.ranges[c] for c in lead.channels), max(one.results for one in sums)
    return First(changed, rated, names, lead.data.tensor, between.made().name, terms, channels, results)


def _changed(between: _Between) -> Program:
    """The program of `between` with its statements."""
    before = [*between.ordered(), *between.edges(), between.start(), between.made()]
    rest = {one.statement.name: between.rest(one) for one in between.sums}
    return with_statements(between.program, rest, between.tensors(), {between.lead.start.name: before})


def _widest(margins: Sequence[Mapping[int, tuple[int, int]] | None]) -> dict[int, tuple[int, int]]:
    """Margins that hold all of some."""
    found: dict[int, tuple[int, int]] = {}
    for d, (before, behind) in ((d, ends) for m in margins if m for d, ends in m.items()):
        own = found.get(d, (0, 0))
        found[d] = max(own[0], before), max(own[1], behind)
    return found


def _margins(program: Program, sums: _Sums) -> dict[int, tuple[int, int]] | None:
    """How many zeros are to lie before and behind what is between along axes of the data: none but where several loops
    of the results choose taps, or taps run backwards (remainders of a transposed window): no window slides over these,
    so that padding would be copied for each. None where guards say more than what padding is.
    """
    data, shape = sums.data, program.tensor[sums.data.tensor].extents(program.binding)
    backwards = any(data.affine_index[d].coefficient(n) < 0 for d in sums.places for n in sums.taps)
    if len(names_of(sums.statement.write) & {*sums.taps}) < 2 and not backwards:
        return {}
    ends = {d: (data.affine_index[d], Affine.of(shape[d] - 1) - data.affine_index[d]) for d in sums.places}
    if any(c.equality or all(c.expr not in pair for pair in ends.values()) for c in data.guard):
        return None
    return {d: (_most(-low, sums.ranges), _most(-high, sums.ranges)) for d, (low, high) in ends.items()}


def _most(number: Affine, ranges: Mapping[str, int]) -> int:
    """The largest value of a number, or 0."""
    return max(0, number.constant + sum(max(0, number.coefficient(n) * (ranges[n] - 1)) for n in number.names))


@dataclass(frozen=True)
class _Between:
    """The tensor between, by taps and places, and the statements around it. `tap`: its loop over the loops of all
    weights, so that they fill register tiles; `steps`: those along axes of the data, `margins`: zeros before and behind
    it there, which are the padding of what is `covered`.
    """

    program: Program
    sums: tuple[_Sums, ...]
    name: str
    tap: str
    steps: Mapping[int, str]
    margins: Mapping[int, tuple[int, int]]
    covered: frozenset[str]

    @property
    def lead(self) -> _Sums:
        """Whose names of channels the products have."""
        return self.sums[0]

    @property
    def before(self) -> dict[int, int]:
        """How many zeros lie before the data along its axes."""
        return {d: self.margins[d][0] if self.margins else 0 for d in self.steps}

    @property
    def loops(self) -> tuple[str, ...]:
        return (self.tap, *self.steps.values())

    @property
    def first(self) -> list[int]:
        """Where the taps of each window begin, and where all end."""
        return [0, *accumulate(prod(one.ranges[n] for n in one.taps) for one in self.sums)]

    @property
    def extents(self) -> dict[str, int]:
        shape = self.program.tensor[self.lead.data.tensor].extents(self.program.binding)
        return {**self.lead.ranges, self.tap: self.first[-1], **{n: shape[d] for d, n in self.steps.items()}}

    def tensors(self) -> dict[str, Tensor]:
        dtype = self.program.tensor[self.lead.statement.write.tensor].dtype
        weights = [self.extents[i] for i in (self.tap, *self.lead.channels)]
        places = [self.extents[n] + sum(self.margins.get(d, ())) for d, n in self.steps.items()]
        shapes = {f"{self.name}_weights": weights, self.name: [self.extents[self.tap], *places]}
        return {n: Tensor(n, tuple(map(Affine.of, shape)), dtype) for n, shape in shapes.items()}

    def edges(self) -> list[Statement]:
        """Zeros in the margins: before and behind the data along one axis after the other."""
        found: list[Statement] = []
        extents, first = self.extents, self.before
        for d, (before, behind) in self.margins.items():
            step = self.steps[d]
            for k, (at, size) in enumerate(((0, before), (before + extents[step], behind))):
                if size:
                    found.append(self._zeros(f"edge{d}{k}", {**extents, step: size}, {**first, d: at}))
            extents[step], first[d] = extents[step] + before + behind, 0
        return found

    def ordered(self) -> list[Statement]:
        """The weights with channels last, which is done when compiling where they are constant."""
        found: list[Statement] = []
        for k, one in enumerate(self.sums):
            channels = [one.data.affine_index[d] for d in self.lead.axes]
            write = Access(f"{self.name}_weights", (self._places(one), *channels))
            name, iterators = f"{self.name}_weights{k or ''}_made", (*one.taps, *one.channels)
            made = self._nest(name, iterators, one.ranges, write, (one.weights,))
            found.append(replace(made, body=Read(0), combiner=None))
        return found

    def start(self) -> Statement:
        return self._zeros("start", self.extents, self.before)

    def made(self) -> Statement:
        """The sums over channels, of every place with every tap."""
        data, channels = self.lead.data, tuple(map(var, self.lead.channels))
        where = tuple(var(self.steps[d]) if d in self.steps else i for d, i in enumerate(data.index))
        weights = Access(f"{self.name}_weights", (var(self.tap), *channels))
        reads, iterators = (Access(data.tensor, where), weights), (*self.loops, *self.lead.channels)
        made = self._nest(f"{self.name}_made", iterators, self.extents, self._element(self.before), reads)
        return replace(made, body=Apply("mul", (Read(0), Read(1))))

    def rest(self, one: _Sums) -> Statement:
        """The statement that adds them up where a window is."""
        s, data = one.statement, one.data
        places = [data.affine_index[d] + before for d, before in self.before.items()]
        guard, fill = ((), None) if self.margins and s.name in self.covered else (data.guard, data.fill)
        found = Access(self.name, (self._places(one), *places), guard, fill)
        left = tuple(n for n in s.iterators if n not in one.channels)
        rest = self._nest(s.name, left, one.ranges, s.write, (found,))
        return replace(rest, body=Read(0), path=(s.path[0], *left))

    def _element(self, first: Mapping[int, int]) -> Access:
        """`first`: places where the loops along axes begin."""
        return Access(self.name, (var(self.tap), *(var(n) + first[d] for d, n in self.steps.items())))

    def _places(self, one: _Sums) -> Affine:
        """Where the loops of a window's weights are along the axis of taps."""
        return number_of(one.taps, one.ranges) + self.first[self.sums.index(one)]

    def _zeros(self, end: str, extents: Mapping[str, int], first: Mapping[int, int]) -> Statement:
        """`extents`: of the loops, `first`: as in `_element`."""
        dtype = self.program.tensor[self.lead.statement.write.tensor].dtype
        made = self._nest(f"{self.name}_{end}", self.loops, extents, self._element(first), ())
        return replace(made, body=COMBINERS["+"].identity(dtype), combiner=None)

    def _nest(
        self, name: str, iterators: tuple[str, ...], extents: Mapping[str, int], write: Access,
        reads: tuple[Access, ...],
    ) -> Statement:  # fmt: skip
        return over_box(self.program, self.lead.statement, name, {i: extents[i] for i in iterators}, write, reads)
