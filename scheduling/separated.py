"""Windows along one axis after the other: a sum, or a maximum, over the elements of a window is one over those of
its rows, and neighbouring windows share these.

    y[i,j] += x[i + p, j + q]    ->    t[r,j] += x[r, j + q];  y[i,j] += t[i + p, j]

Only where nothing weighs the elements, and the reduction may change its order: of 13 x 13 elements 26 are left. Small
windows along rows and lanes share in registers what they take from a row (`cpu_window`). Padding is the reduction's
neutral value, so that rows of padding alone need not be in the tensor between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from poly.affine import Affine, var
from poly.expr import Read
from poly.program import Access, Program, Statement, Tensor, box_domain, unused_name
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_window_shape import MOST_TAPS
from poly.scheduling.sums import alone, ranges_of, start_of, touched_by, with_statements

SPARED = 2  # of so many operations one at least, where windows are small: a tensor between is written and read


@dataclass(frozen=True)
class _Window:
    """A statement that reduces windows of a tensor, and the one that starts it; `axes`: of what is read, those along
    which windows slide, with the iterators of a window's place and of its elements; `ranges`: of all iterators.
    """

    program: Program
    start: Statement
    statement: Statement
    axes: Mapping[int, tuple[str, str]]
    ranges: Mapping[str, int]

    @property
    def elements(self) -> int:
        """Of a window."""
        return prod(self.ranges[element] for _, element in self.axes.values())

    @property
    def shares_rows(self) -> bool:
        """Whether it is left to `cpu_window`: of few points along two axes, one of them the lanes', whose neighbours
        take what they share of a row from one load.
        """
        places = [place for place, _ in self.axes.values()]
        lanes = str(self.statement.write.affine_index[-1])
        return len(places) == 2 and self.elements <= MOST_TAPS and lanes in places

    @property
    def read(self) -> Access:
        return self.statement.reads[0]

    @property
    def source(self) -> Tensor:
        return self.program.tensor[self.read.tensor]


def with_windows_separated(program: Program) -> Program:
    """The program whose windows are reduced along one axis after the other, where that pays; itself where none is."""
    for s in program.statements:
        window = _window(program, s)
        separated = None if window is None else _separated(window)
        if separated is not None:
            return with_windows_separated(separated)
    return program


def _window(program: Program, s: Statement) -> _Window | None:
    """What a statement says of its windows; None where it has none, or does more than to reduce them."""
    if s.combiner is None or not s.reorder or s.body != Read(0) or len(s.reads) != 1 or not alone(s, program):
        return None
    (read,), target = s.reads, program.tensor[s.write.tensor]
    start, ranges, tensor = start_of(program, s), ranges_of(program, s), program.tensor[read.tensor]
    known = all(e.is_constant for e in tensor.shape) and tensor.layout is None
    if start is None or ranges is None or not known or read.indirect or s.write.indirect:
        return None
    neutral = s.combiner.identity(target.dtype).value
    if tensor.dtype != target.dtype or (read.fill is not None and read.fill.value != neutral):
        return None
    if names_of(read) != frozenset(s.iterators) or not all(i.is_linear for i in read.affine_index):
        return None
    written, axes = names_of(s.write), dict[int, tuple[str, str]]()
    for d, i in enumerate(read.affine_index):
        places, elements = i.names & written, i.names - written
        others = {n for e, other in enumerate(read.affine_index) if e != d for n in other.names}
        if len(places) == len(elements) == 1 and others.isdisjoint(i.names):
            (place,), (element,) = places, elements
            axes[d] = place, element
    window = _Window(program, start, s, axes, ranges)
    return window if len(axes) > 1 and not window.shares_rows else None


def _separated(window: _Window) -> Program | None:
    """The program with a window's last axis reduced first; None where that spares too little, or padding depends on
    this axis and others together.
    """
    s, program, axis = window.statement, window.program, max(window.axes)
    place, element = window.axes[axis]
    loops = _loops(window, axis)
    every, along = prod(window.ranges.values()), prod(high - low for low, high in loops.values())
    own = tuple(c for c in window.read.guard if element in c.expr.names)
    left = along + every // window.ranges[element]
    if left > every:
        return None
    if window.elements <= MOST_TAPS and left * SPARED > every:
        return None
    if any(not c.expr.names <= {place, element} for c in own):
        return None
    name = unused_name({*program.tensor, *program.statement}, f"{s.write.tensor}_{element}", "_start", "_made")
    shape = tuple(Affine.of(window.ranges[place]) if d == axis else e for d, e in enumerate(window.source.shape))
    between = Tensor(name, shape, window.source.dtype)
    first, rest = _along_axis(window, axis, name, loops), _along_others(window, axis, name)
    return with_statements(program, {s.name: rest}, {name: between}, {window.start.name: first})


def _loops(window: _Window, axis: int) -> dict[str, tuple[int, int]]:
    """The loops of the statement that reduces along an axis: their first value and the one after the last. Along other
    axes of the window they are the places that it reads.
    """
    loops: dict[str, tuple[int, int]] = {}
    for d, (i, extent) in enumerate(zip(window.read.affine_index, window.source.shape, strict=True)):
        if d in window.axes and d != axis:
            loops[window.axes[d][0]] = touched_by(i, window.ranges, extent.constant)
        else:
            loops |= {n: (0, window.ranges[n]) for n in window.statement.iterators if n in i.names}
    return loops


def _along_axis(window: _Window, axis: int, name: str, loops: Mapping[str, tuple[int, int]]) -> list[Statement]:
    """What starts the tensor between, and reduces into it along an axis."""
    s, (place, element) = window.statement, window.axes[axis]
    assert s.combiner is not None
    places = {d: var(p) for d, (p, _) in window.axes.items() if d != axis}
    index = tuple(places.get(d, i) for d, i in enumerate(window.read.affine_index))
    write = Access(name, tuple(var(place) if d == axis else i for d, i in enumerate(index)))
    neutral, outer = s.combiner.identity(window.source.dtype), tuple(i for i in loops if i != element)
    start = Statement(f"{name}_start", outer, _box(window, f"{name}_start", loops, outer), write, (), neutral)
    read = _with_guard(replace(window.read, index=index), element, True)
    domain = _box(window, f"{name}_made", loops, tuple(loops))
    made = replace(
        s, name=f"{name}_made", iterators=tuple(loops), domain=domain, write=write, reads=(read,), path=()
    )
    return [start, made]


def _along_others(window: _Window, axis: int, name: str) -> Statement:
    """The window's statement on the tensor between."""
    s, (place, element) = window.statement, window.axes[axis]
    index = tuple(var(place) if d == axis else i for d, i in enumerate(window.read.affine_index))
    read = _with_guard(replace(window.read, tensor=name, index=index), element, False)
    iterators = tuple(i for i in s.iterators if i != element)
    domain = _box(window, s.name, {i: (0, window.ranges[i]) for i in iterators}, iterators)
    return replace(s, iterators=iterators, domain=domain, reads=(read,), path=(s.path[0], *iterators))


def _with_guard(read: Access, element: str, along: bool) -> Access:
    """A read with those of its conditions that are about a window's element along an axis, or with the others."""
    guard = tuple(c for c in read.guard if (element in c.expr.names) == along)
    return replace(read, guard=guard, fill=read.fill if guard else None)


def _box(window: _Window, name: str, ranges: Mapping[str, tuple[int, int]], iterators: tuple[str, ...]) -> isl.Set:
    domain = box_domain(name, [(i, *ranges[i]) for i in iterators])
    return domain.align_params(window.program.context.get_space())
