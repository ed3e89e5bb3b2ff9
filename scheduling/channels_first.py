"""Sums of a window over its channels first: for few results, products of all places with all weights, added up behind.

    y[m,h,w] += x[c, h + a, w + b] * v[m,c,a,b]    ->    t[m,a,b,h,w] += x[c,h,w] * v[m,c,a,b]
                                                         y[m,h,w] += t[m,a,b, h + a, w + b]

An element of x is loaded for as many products as there are m, here for as many as there are m, a and b: a product of
matrices. Only where t has hardly more elements than the sums behind it have terms, and weights are finite where padding
is left out. Sums change their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from poly.affine import Affine, var
from poly.expr import COMBINERS, Apply, Read
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.contraction import names_of
from poly.scheduling.groups import bare
from poly.scheduling.sums import alone, ranges_of, start_of, with_statements

MOST_RESULTS = 8  # at a place: of more, an element is loaded seldom enough
UNUSED = 1.2  # elements of the tensor between for each term of the sums behind it


@dataclass(frozen=True)
class First:
    """A program with channels first, the statement whose sums they were and the one that makes them now, and how many
    terms are added up behind. `rated`: the program without the margins of what is between, as the model rates it.
    """

    program: Program
    rated: Program
    sums: str
    made: str
    terms: int


@dataclass(frozen=True)
class _Sums:
    """Sums of products of a window of `data` with `weights`: the loops over channels alone, the others of the weights,
    the axes of the data along others; `ranges`: of all iterators.
    """

    statement: Statement
    start: Statement
    data: Access
    weights: Access
    channels: tuple[str, ...]
    taps: tuple[str, ...]
    places: tuple[int, ...]
    ranges: dict[str, int]


def channels_first(program: Program, finite: Collection[str]) -> Iterator[First]:
    """One program for every statement that may be done so; `finite`: constants without infinities."""
    for s in program.statements:
        sums = _sums(program, s)
        if sums is not None and (not sums.data.guard or sums.weights.tensor in finite):
            found = _first(program, sums)
            if found is not None:
                yield found


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
    if not slides or not zero or weights.guard or program.tensor[data.tensor].role == "constant":
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
    return _Sums(s, start, data, weights, channels, taps, places, ranges)


def _slow_first(i: Affine) -> list[str]:
    return sorted(i.names, key=i.coefficient, reverse=True)


def _first(program: Program, sums: _Sums) -> First | None:
    s = sums.statement
    ends = ("_start", "_made", "_weights", "_weights_made", *(f"_edge{d}{k}" for d in sums.places for k in (0, 1)))
    name = unused_name({*program.tensor, *program.statement}, f"{s.write.tensor}_taps", *ends)
    taken = {*program.tensor, *sums.ranges}
    steps = {d: unused_name(taken, f"place{d}") for d in sums.places}
    margins = _margins(program, sums)
    if margins is None:
        return None
    between = _Between(program, sums, name, unused_name(taken, "tap"), steps, margins)
    terms = prod(sums.ranges[n] for n in s.iterators if n not in sums.channels)
    if prod(between.extents[n] for n in between.loops) > UNUSED * terms:
        return None
    changed = _changed(between)
    rated = _changed(replace(between, margins={})) if margins else changed
    return First(changed, rated, s.name, between.made().name, terms)


def _changed(between: _Between) -> Program:
    """The program of `between` with its statements."""
    sums = between.sums
    before = [between.ordered(), *between.edges(), between.start(), between.made()]
    rest = {sums.statement.name: between.rest()}
    return with_statements(between.program, rest, between.tensors(), {sums.start.name: before})


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
    """The tensor between, by taps and places, and the statements around it. `tap`: its loop over all the weights'
    loops, so that they fill register tiles; `steps`: those along axes of the data, `margins`: zeros before and behind
    it there.
    """

    program: Program
    sums: _Sums
    name: str
    tap: str
    steps: Mapping[int, str]
    margins: Mapping[int, tuple[int, int]]

    @property
    def before(self) -> dict[int, int]:
        """How many zeros lie before the data along its axes."""
        return {d: self.margins[d][0] if self.margins else 0 for d in self.steps}

    @property
    def loops(self) -> tuple[str, ...]:
        return (self.tap, *self.steps.values())

    @property
    def extents(self) -> dict[str, int]:
        ranges, shape = self.sums.ranges, self.program.tensor[self.sums.data.tensor].extents(self.program.binding)
        taps = prod(ranges[n] for n in self.sums.taps)
        return {**ranges, self.tap: taps, **{n: shape[d] for d, n in self.steps.items()}}

    def tensors(self) -> dict[str, Tensor]:
        dtype = self.program.tensor[self.sums.statement.write.tensor].dtype
        weights = [self.extents[i] for i in (self.tap, *self.sums.channels)]
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

    def ordered(self) -> Statement:
        """The weights with channels last, which is done when compiling where they are constant."""
        write = Access(f"{self.name}_weights", (self._places(), *map(var, self.sums.channels)))
        made = self._nest(f"{write.tensor}_made", (*self.sums.taps, *self.sums.channels), write, (self.sums.weights,))
        return replace(made, body=Read(0), combiner=None)

    def start(self) -> Statement:
        return self._zeros("start", self.extents, self.before)

    def made(self) -> Statement:
        """The sums over channels, of every place with every tap."""
        data, channels = self.sums.data, tuple(map(var, self.sums.channels))
        where = tuple(var(self.steps[d]) if d in self.steps else i for d, i in enumerate(data.index))
        weights = Access(f"{self.name}_weights", (var(self.tap), *channels))
        reads, iterators = (Access(data.tensor, where), weights), (*self.loops, *self.sums.channels)
        made = self._nest(f"{self.name}_made", iterators, self._element(self.before), reads)
        return replace(made, body=Apply("mul", (Read(0), Read(1))))

    def rest(self) -> Statement:
        """The statement that adds them up where the window is."""
        s, data = self.sums.statement, self.sums.data
        places = [data.affine_index[d] + before for d, before in self.before.items()]
        guard, fill = ((), None) if self.margins else (data.guard, data.fill)
        found = Access(self.name, (self._places(), *places), guard, fill)
        left = tuple(n for n in s.iterators if n not in self.sums.channels)
        return replace(self._nest(s.name, left, s.write, (found,)), body=Read(0), path=(s.path[0], *left))

    def _element(self, first: Mapping[int, int]) -> Access:
        """`first`: places where the loops along axes begin."""
        return Access(self.name, (var(self.tap), *(var(n) + first[d] for d, n in self.steps.items())))

    def _places(self) -> Affine:
        """Where the weights' loops are along the axis of taps."""
        return _flat(self.sums.taps, self.sums.ranges)

    def _zeros(self, end: str, extents: Mapping[str, int], first: Mapping[int, int]) -> Statement:
        """`extents`: of the loops, `first`: as in `_element`."""
        dtype = self.program.tensor[self.sums.statement.write.tensor].dtype
        domain = self._domain(f"{self.name}_{end}", self.loops, extents)
        made = self._nest(f"{self.name}_{end}", self.loops, self._element(first), ())
        return replace(made, domain=domain, body=COMBINERS["+"].identity(dtype), combiner=None)

    def _nest(self, name: str, iterators: tuple[str, ...], write: Access, reads: tuple[Access, ...]) -> Statement:
        domain, s = self._domain(name, iterators, self.extents), self.sums.statement
        return replace(s, name=name, iterators=iterators, domain=domain, write=write, reads=reads, path=())

    def _domain(self, name: str, iterators: Sequence[str], extents: Mapping[str, int]) -> isl.Set:
        domain = box_domain(name, [(i, 0, extents[i]) for i in iterators])
        return domain.align_params(self.program.context.get_space())


def _flat(names: Sequence[str], ranges: Mapping[str, int]) -> Affine:
    """The number of an iteration of some loops."""
    number = Affine()
    for n in names:
        number = number * ranges[n] + var(n)
    return number
