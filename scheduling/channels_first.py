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
    """A program with channels first, the statement whose sums they were and the one that adds them up now, and how many
    terms it has.
    """

    program: Program
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
    ends = ("_start", "_made", "_weights", "_weights_made")
    name = unused_name({*program.tensor, *program.statement}, f"{s.write.tensor}_taps", *ends)
    taken = {*program.tensor, *sums.ranges}
    taps = {unused_name(taken, f"tap{k}"): names for k, names in enumerate(_axes(sums))}
    between = _Between(program, sums, name, taps, {d: unused_name(taken, f"place{d}") for d in sums.places})
    terms = prod(sums.ranges[n] for n in s.iterators if n not in sums.channels)
    if prod(between.extents[n] for n in between.loops) > UNUSED * terms:
        return None
    before = [between.ordered(), between.start(), between.made()]
    changed = with_statements(program, {s.name: between.rest()}, between.tensors(), {sums.start.name: before})
    return First(changed, s.name, before[-1].name, terms)


def _axes(sums: _Sums) -> list[tuple[str, ...]]:
    """The loops of the weights by axis of the tensor between: all in one, so that they fill register tiles; one each
    where places depend on several loops of the results, since what is padding depends on several axes then.
    """
    written = names_of(sums.statement.write)
    plain = all(len(sums.data.affine_index[d].names & written) < 2 for d in sums.places)
    return [sums.taps] if plain else [(n,) for n in sums.taps]


@dataclass(frozen=True)
class _Between:
    """The tensor between, by taps and places, and the statements around it. `taps`: its loops over the weights' loops;
    `steps`: those along axes of the data.
    """

    program: Program
    sums: _Sums
    name: str
    taps: Mapping[str, tuple[str, ...]]
    steps: Mapping[int, str]

    @property
    def loops(self) -> tuple[str, ...]:
        return (*self.taps, *self.steps.values())

    @property
    def extents(self) -> dict[str, int]:
        ranges, shape = self.sums.ranges, self.program.tensor[self.sums.data.tensor].extents(self.program.binding)
        taps = {t: prod(ranges[n] for n in names) for t, names in self.taps.items()}
        return {**ranges, **taps, **{n: shape[d] for d, n in self.steps.items()}}

    def tensors(self) -> dict[str, Tensor]:
        dtype = self.program.tensor[self.sums.statement.write.tensor].dtype
        orders = {f"{self.name}_weights": (*self.taps, *self.sums.channels), self.name: self.loops}
        shapes = {n: tuple(Affine.of(self.extents[i]) for i in order) for n, order in orders.items()}
        return {n: Tensor(n, shape, dtype) for n, shape in shapes.items()}

    def ordered(self) -> Statement:
        """The weights with channels last, which is done when compiling where they are constant."""
        write = Access(f"{self.name}_weights", (*self._places(), *map(var, self.sums.channels)))
        made = self._nest(f"{write.tensor}_made", (*self.sums.taps, *self.sums.channels), write, (self.sums.weights,))
        return replace(made, body=Read(0), combiner=None)

    def start(self) -> Statement:
        dtype = self.program.tensor[self.sums.statement.write.tensor].dtype
        made = self._nest(f"{self.name}_start", self.loops, self._element(), ())
        return replace(made, body=COMBINERS["+"].identity(dtype), combiner=None)

    def made(self) -> Statement:
        """The sums over channels, of every place with every tap."""
        data, channels = self.sums.data, tuple(map(var, self.sums.channels))
        where = tuple(var(self.steps[d]) if d in self.steps else i for d, i in enumerate(data.index))
        weights = Access(f"{self.name}_weights", (*map(var, self.taps), *channels))
        reads, iterators = (Access(data.tensor, where), weights), (*self.loops, *self.sums.channels)
        made = self._nest(f"{self.name}_made", iterators, self._element(), reads)
        return replace(made, body=Apply("mul", (Read(0), Read(1))))

    def rest(self) -> Statement:
        """The statement that adds them up where the window is."""
        s, data = self.sums.statement, self.sums.data
        found = Access(self.name, (*self._places(), *(data.index[d] for d in self.sums.places)), data.guard, data.fill)
        left = tuple(n for n in s.iterators if n not in self.sums.channels)
        return replace(self._nest(s.name, left, s.write, (found,)), body=Read(0), path=(s.path[0], *left))

    def _element(self) -> Access:
        return Access(self.name, tuple(map(var, self.loops)))

    def _places(self) -> tuple[Affine, ...]:
        """Where the weights' loops are along the axes of taps."""
        return tuple(_flat(names, self.sums.ranges) for names in self.taps.values())

    def _nest(self, name: str, iterators: tuple[str, ...], write: Access, reads: tuple[Access, ...]) -> Statement:
        domain = box_domain(name, [(i, 0, self.extents[i]) for i in iterators])
        domain = domain.align_params(self.program.context.get_space())
        s = self.sums.statement
        return replace(s, name=name, iterators=iterators, domain=domain, write=write, reads=reads, path=())


def _flat(names: Sequence[str], ranges: Mapping[str, int]) -> Affine:
    """The number of an iteration of some loops."""
    number = Affine()
    for n in names:
        number = number * ranges[n] + var(n)
    return number
