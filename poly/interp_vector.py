"""The vectorised interpreter of programs: whole models in seconds, with the meaning of the per-instance one.

Loops that several statements share run one iteration at a time, unless what the statements exchange stays within an
iteration. A single statement runs over arrays: a sum of products by matrix multiplication, anything over a box by
broadcasting, the rest point by point in execution order, cut where an instance reads what an earlier one wrote.
Arrays of at most `LIMIT` elements are made at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import islpy as isl
import numpy as np
import numpy.typing as npt

from poly.affine import Affine, var
from poly.dtypes import Array, numpy_dtype
from poly.interp_access import (
    UFUNCS,
    Index,
    Instances,
    accumulator,
    body_values,
    box_view,
    check_bounds,
    gather_reads,
    linear,
    order_free,
    scatter,
    subscripts,
)
from poly.interp_arrays import RunExternal, run_external
from poly.interp_contract import axes_of, contract, factors_of, is_contraction, volume
from poly.interp_points import Points, points_of
from poly.program import Access, PathStep, Program, ReadIndex, Statement

LIMIT: Final = 1 << 22
FLAT_LIMIT: Final = 1 << 19
POINTS_PER_BOX: Final = 512


@dataclass(frozen=True)
class Item:
    """The instances of a statement that remain: rest of its path, points, and values of what is fixed already."""

    statement: Statement
    position: int
    path: tuple[PathStep, ...]
    points: Points
    fixed: Mapping[str, int]

    def at(self, name: str, value: int) -> Item | None:
        """The instances in one iteration of the loop on top of the path."""
        points = self.points.fix(name, value)
        if points is None:
            return None
        return replace(self, path=self.path[1:], points=points, fixed={**self.fixed, name: value})


def run_vectorised(
    program: Program,
    sizes: Mapping[str, int],
    domains: Mapping[str, isl.Set],
    paths: Mapping[str, tuple[PathStep, ...]],
    arrays: Mapping[str, Array],
    externals: Mapping[str, RunExternal],
) -> None:
    """Execute a program on logical arrays, in place. `domains`: bounded and without parameters; `paths`: complete."""
    items: list[Item] = []
    for position, s in enumerate(program.statements):
        path = paths[s.name]
        points = points_of(domains[s.name], s.iterators, [step for step in path if isinstance(step, str)])
        if points is not None:
            items.append(Item(s, position, path, points, sizes))
    _Run(program, arrays, externals).sequence(items)


@dataclass(frozen=True)
class _Run:
    program: Program
    arrays: Mapping[str, Array]
    externals: Mapping[str, RunExternal]

    def sequence(self, items: Sequence[Item]) -> None:
        """Run items in the order of what is left of their paths."""
        if len(items) == 1:
            self.alone(items[0])
        elif not any(item.path for item in items):
            for item in items:
                self.alone(item)
        elif all(isinstance(_head(item), int) for item in items):
            for _, group in groupby(sorted(items, key=_head_number), key=_head_number):
                self.sequence([replace(item, path=item.path[1:]) for item in group])
        else:
            parts = distributed(items)
            for part in [items] if parts is None else parts:
                self.loop(part) if parts is None else self.sequence(part)

    def loop(self, items: Sequence[Item]) -> None:
        """Run a shared loop one iteration at a time; a position among loop values is an iteration of its own."""
        values: set[int] = set()
        for item in items:
            head = _head(item)
            if isinstance(head, int):
                values.add(head)
            else:
                axis = item.points.iterators.index(head)
                values |= set(range(item.points.lower[axis], item.points.upper[axis]))
        for value in sorted(values):
            inside: list[Item] = []
            for item in items:
                head = _head(item)
                now = item.at(head, value) if isinstance(head, str) else None
                if head == value:
                    now = replace(item, path=item.path[1:])
                inside += [] if now is None else [now]
            if inside:
                self.sequence(inside)

    def alone(self, item: Item) -> None:
        """Run all instances of one statement."""
        s, points = item.statement, item.points
        if s.external is not None:
            run_external(self.program, s.name, self.arrays, self.externals)
            return
        parts = [points] if points.pieces is None else None
        if s.combiner is None:
            easy = _covered(s.write, points) and _reads_self_in_place(s)
            ordered = not _once(s.write)
        else:
            easy = order_free(s, self.program.tensor[s.write.tensor].dtype) and not _own_reads(s)
            ordered = False
        if easy and not ordered and not s.write.indirect:
            parts = points.boxes(max(16, points.volume // POINTS_PER_BOX))
        if easy and parts is not None and not s.write.indirect:
            for part in parts:
                self.box(item, part)
        else:
            for part in points.chunks(FLAT_LIMIT):
                self.flat(item, part)

    def box(self, item: Item, box: Points) -> None:
        """Run a statement over a box where order does not matter, in parts whose arrays are bounded."""
        s = item.statement
        dtype = self.program.tensor[s.write.tensor].dtype
        kept = _axes(s.write, box)
        wanted = [tuple(range(len(box.iterators)))]
        contraction = is_contraction(s, box, dtype)
        if contraction:
            wanted = [kept, *(axes_of(s, f, box) for f in factors_of(s.body))]
        largest = max(wanted, key=lambda axes: volume(box, axes))
        if volume(box, largest) > LIMIT:
            for part in _halves(box, largest, kept if s.combiner else ()):
                self.box(item, part)
            return
        at = Instances(s, box.shape, {**item.fixed, **box.axes()}, self.arrays)
        if contraction:
            values = [body_values(at, f, box, dtype) for f in factors_of(s.body)]
            self.store_box(at, box, kept, contract(values, kept, box.shape, dtype))
        else:
            value = body_values(at, s.body, box, dtype)
            self.store_box(at, box, kept, value if s.combiner is None else _reduced(s, value, kept, box, dtype))

    def store_box(self, at: Instances, box: Points, kept: Sequence[int], value: Array) -> None:
        """Write values over the axes `kept`, extent 1 elsewhere; combine where the statement does."""
        s = at.statement
        target = self.arrays[s.write.tensor]
        dtype = self.program.tensor[s.write.tensor].dtype
        wide = None if s.combiner is None else accumulator(dtype, s.combiner, s.reorder)
        view = box_view(at, s.write, box)
        with np.errstate(all="ignore"):
            if view is not None and s.combiner is not None:
                value = UFUNCS[s.combiner.symbol](view.astype(wide or target.dtype), value.astype(wide or target.dtype))
            if view is not None:
                view[...] = value.astype(target.dtype)
                return
        shape = [extent if k in kept else 1 for k, extent in enumerate(box.shape)]
        index = subscripts(at, s.write, {})
        check_bounds(at, s.write, index, target.shape, None)
        value = np.broadcast_to(value, shape).reshape(-1)
        scatter(target, linear(index, target.shape, shape), value, s.combiner, wide)

    def flat(self, item: Item, part: Points) -> None:
        """Run a statement over points in order, as one array from one cut to the next."""
        s = item.statement
        iterators, count = part.flat()
        if not count:
            return
        at = Instances(s, (count,), {**item.fixed, **iterators}, self.arrays)
        start = 0
        for end in self.cuts(at, count):
            segment = {name: array[start:end] for name, array in iterators.items()}
            self.segment(Instances(s, (end - start,), {**item.fixed, **segment}, self.arrays))
            start = end

    def segment(self, at: Instances) -> None:
        """Instances none of which reads what another one of them writes before."""
        s = at.statement
        target = self.arrays[s.write.tensor]
        dtype = self.program.tensor[s.write.tensor].dtype
        value = np.broadcast_to(body_values(at, s.body, None, dtype), at.shape).astype(numpy_dtype(dtype))
        read = gather_reads(at, _index_reads(s.write, s))
        index = subscripts(at, s.write, read)
        check_bounds(at, s.write, index, target.shape, None)
        wide = None if s.combiner is None else accumulator(dtype, s.combiner, s.reorder)
        scatter(target, linear(index, target.shape, at.shape), value, s.combiner, wide)

    def cuts(self, at: Instances, count: int) -> list[int]:
        """Where to cut `count` instances: each part ends before one that reads an element written in that part."""
        s = at.statement
        own = _own_reads(s)
        if not own:
            return [count]
        deep = [k for a in (*s.reads, s.write) for k in _index_reads(a, s)]
        if any(s.reads[k].tensor == s.write.tensor for k in deep):
            return list(range(1, count + 1))
        shape = self.arrays[s.write.tensor].shape
        written = _positions(at, s.write, shape)
        latest = np.full(count, -1, np.int64)
        for access in own:
            latest = np.maximum(latest, _latest_writer(written, _positions(at, access, shape)))
        ends: list[int] = []
        start = 0
        for instance, source in enumerate(latest.tolist()):
            if source >= start:
                ends.append(instance)
                start = instance
        return [*ends, count]


def _positions(at: Instances, access: Access, shape: Sequence[int]) -> Index:
    """Linear positions of an access for each instance, -1 where its guard does not hold."""
    read = gather_reads(at, _index_reads(access, at.statement))
    index = subscripts(at, access, read)
    inside: npt.NDArray[np.bool_] = np.ones(at.shape, np.bool_)
    for constraint in access.guard:
        inside &= constraint.holds(at.values)
    check_bounds(at, access, index, shape, inside)
    return np.where(inside, linear(index, shape, at.shape), -1)


def _latest_writer(written: Index, read: Index) -> Index:
    """For each instance the last earlier one that wrote the element it reads, -1 where there is none."""
    count = len(written)
    numbers = np.arange(count, dtype=np.int64)
    keys = np.sort(written * count + numbers)
    found = np.searchsorted(keys, read * count + numbers) - 1
    candidate = keys[np.maximum(found, 0)]
    return np.where((found >= 0) & (candidate // count == read), candidate % count, -1)


def _index_reads(access: Access, s: Statement) -> list[int]:
    """The reads that give subscripts of an access, and those that give theirs."""
    found: set[int] = set()
    for e in access.index:
        if isinstance(e, ReadIndex):
            found |= {e.position, *_index_reads(s.reads[e.position], s)}
    return sorted(found)


def _head(item: Item) -> PathStep:
    return item.path[0] if item.path else 0


def _head_number(item: Item) -> int:
    head = _head(item)
    assert isinstance(head, int)
    return head


def _axes(access: Access, box: Points) -> tuple[int, ...]:
    """The axes of the box that the subscripts depend on."""
    names = {name for e in access.index if isinstance(e, Affine) for name in e.names}
    return tuple(k for k, name in enumerate(box.iterators) if name in names)


def _covered(write: Access, points: Points) -> bool:
    """Whether every iterator that moves occurs in the write, so that no value is written for many instances."""
    kept = _axes(write, points)
    return all(k in kept or extent == 1 for k, extent in enumerate(points.shape))


def _own_reads(s: Statement) -> list[Access]:
    return [r for r in s.reads if r.tensor == s.write.tensor]


def _once(write: Access) -> bool:
    """Whether instances that differ in an iterator of the write write different elements: one iterator a subscript."""
    moving = [name for e in write.index if isinstance(e, Affine) for name in e.names]
    simple = all(isinstance(e, Affine) and e.is_linear and len(e.terms) <= 1 for e in write.index)
    return simple and len(set(moving)) == len(moving)


def _reads_self_in_place(s: Statement) -> bool:
    """Whether reads of the written tensor, if any, are of the very element that the instance writes."""
    own = _own_reads(s)
    return not own or (_once(s.write) and all(r.index == s.write.index for r in own))


def _reduced(s: Statement, value: Array, kept: Sequence[int], box: Points, dtype: str) -> Array:
    """Combine values over the axes not kept."""
    assert s.combiner is not None
    gone = tuple(k for k in range(len(box.shape)) if k not in kept)
    wide = accumulator(dtype, s.combiner, s.reorder) or numpy_dtype(dtype)
    value = value.astype(numpy_dtype(dtype))
    if s.combiner.symbol in ("+", "*"):
        extents = [extent if k in gone else value.shape[k] for k, extent in enumerate(box.shape)]
        value = np.broadcast_to(value, extents)
    with np.errstate(all="ignore"):
        ufunc = UFUNCS[s.combiner.symbol]
        return np.asarray(ufunc.reduce(value, axis=gone, keepdims=True, dtype=wide)) if gone else value


def _halves(box: Points, axes: Sequence[int], preferred: Sequence[int]) -> list[Points]:
    """A box cut in two: on the first of its axes that moves, or on the longest, those preferred first."""
    moving = [k for k in axes if box.shape[k] > 1]
    axis = moving[0]
    if preferred:
        axis = max(moving, key=lambda k: (k in preferred, box.shape[k]))
    middle = (box.lower[axis] + box.upper[axis]) // 2
    halves = (box.restrict(axis, box.lower[axis], middle), box.restrict(axis, middle, box.upper[axis]))
    return [half for half in halves if half is not None]


def distributed(items: Sequence[Item]) -> list[list[Item]] | None:
    """Statements of shared loops as consecutive groups that may run one after the other; None where they may not.

    Sound where for each pair of groups, tensor and shared loop some subscript of both accesses is the same function of
    that loop's iterator alone: then all conflicts are within an iteration, where the groups' order decides.
    """
    depth = 0
    loops: list[int] = []
    while True:
        steps = [item.path[depth] if len(item.path) > depth else None for item in items]
        if all(isinstance(step, str) for step in steps):
            loops.append(depth)
        elif not all(isinstance(step, int) for step in steps):
            return None
        elif len(set(steps)) > 1:
            break
        depth += 1

    def number(item: Item) -> int:
        step = item.path[depth]
        assert isinstance(step, int)
        return step

    groups = [list(group) for _, group in groupby(sorted(items, key=number), key=number)]
    pairs = [(a, b) for k, first in enumerate(groups) for second in groups[k + 1 :] for a in first for b in second]
    return groups if all(_within_iteration(a, b, loops) for a, b in pairs) else None


def _within_iteration(a: Item, b: Item, loops: Sequence[int]) -> bool:
    if a.statement.external or b.statement.external:
        return False
    for x, x_kind in a.statement.accesses:
        for y, y_kind in b.statement.accesses:
            if x.tensor == y.tensor and "write" in (x_kind, y_kind):
                for level in loops:
                    i, j = str(a.path[level]), str(b.path[level])
                    if not any(_same(p, q, i, j) for p, q in zip(x.index, y.index, strict=True)):
                        return False
    return True


def _same(p: Affine | ReadIndex, q: Affine | ReadIndex, i: str, j: str) -> bool:
    """Whether p is a linear function of i alone, and q is the same function of j."""
    if not isinstance(p, Affine) or not isinstance(q, Affine) or p.names != frozenset((i,)) or not p.is_linear:
        return False
    return p.substitute({i: var(j)}) == q
