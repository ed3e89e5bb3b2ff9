"""Boxes of tiles by algebra, against every point of the tiles and against isl."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from random import Random

import islpy as isl
import pytest

import poly
from poly.affine import Affine, Constraint, var
from poly.coefficients import set_of
from poly.errors import PolyError
from poly.expr import Const
from poly.loops import Compute, For
from poly.program import Access, Statement, box_domain
from poly.scheduling import bounds
from poly.scheduling.bounds import Ends
from poly.scheduling.edits import unchecked
from poly.scheduling.footprint import box_of
from poly.scheduling.instances import Place
from poly.scheduling.plain_boxes import plain_box
from poly.scheduling.schedule import Schedule
from poly.scheduling.tile_footprints import tile_of

TEXT = "C[i,j] += A[{c}*i + r, j] * B[r, j]"


def tiled(random: Random) -> Schedule:
    """A small reduction whose loops are shifted, tiled again and again, and in some order."""
    rows, columns, window, step = (random.randint(*ends) for ends in ((3, 17), (2, 9), (1, 4), (1, 3)))
    a, b = (step * (rows - 1) + window, columns), (window, columns)
    schedule = Schedule(poly.parse(TEXT.format(c=step), A=a, B=b))
    (name,) = (s.name for s in schedule.program.statements if s.combiner is not None)
    schedule = unchecked(schedule)
    for _ in range(random.randint(1, 4)):
        loop = random.choice(schedule.nests[name].names)
        try:
            if random.random() < 0.25:
                schedule = schedule.shift(name, loop, random.randint(-3, 3))
            schedule = schedule.tile({loop: random.choice([2, 3, 4, 6, 8, 12])})
            order = list(schedule.nests[name].names)
            random.shuffle(order)
            if random.random() < 0.6:
                schedule = schedule.reorder(*order)
        except PolyError:
            continue
    return schedule


def pieces(random: Random) -> Schedule:
    """Rows in blocks, each block cut in two pieces that are tiled by themselves, as blocks that rows do not divide."""
    block, blocks = random.choice([5, 8, 12]), random.randint(2, 4)
    rows, window = block * blocks - random.randint(0, 2), random.randint(1, 3)
    schedule = unchecked(Schedule(poly.parse(TEXT.format(c=1), A=(rows + window - 1, 4), B=(window, 4))))
    (name,) = (s.name for s in schedule.program.statements if s.combiner is not None)
    schedule = schedule.tile({schedule.nests[name].names[0]: block})
    at = random.randint(1, block - 2)
    inner = next(n for n in schedule.nests[name].names if n.endswith(".p"))
    schedule = schedule.split(inner, at)
    schedule = schedule.shift(f"{name}_hi", f"{inner}.hi", -at)
    return schedule.tile({f"{inner}.lo": random.choice([1, 2, 3])}).tile({f"{inner}.hi": random.choice([2, 3])})


def test_pieces_of_blocks_have_plain_boxes_and_isl_finds_the_same():
    plain = 0
    for seed in range(12):
        schedule = pieces(Random(seed))
        for s in schedule.program.statements:
            if s.combiner is None:
                continue
            for at in schedule.nests[s.name].names:
                for tensor in ("A", "C"):
                    tile = tile_of(schedule, tensor, at, [s.name])
                    uses = [(s, a) for a, _ in s.accesses if a.tensor == tensor]
                    box = plain_box(schedule, schedule.outer(at), tile.variables, uses)
                    plain += box is not None
                    assert box is None or box == box_of(tile.footprint, tile.variables, ""), (seed, s.name, at)
    assert plain > 100


def test_bounds_of_loops_around_several_boxes_are_those_of_isl():
    rng, found = Random(1), 0
    names = ("a", "b", "c")
    for _ in range(300):
        around: Ends = {n: (rng.randint(-1, 1), rng.randint(4, 6)) for n in names[:-1]}
        moved = rng.choice(names)
        first: Ends = {n: (rng.randint(0, 1), rng.randint(2, 4)) for n in names}
        ends = [first, *({**first, moved: (k, k + rng.randint(0, 4))} for k in range(rng.randint(0, 3)))]
        context, *prefixes = (_box(box) for box in (around, *ends))
        ours = bounds.bounds_of_boxes(ends, context, names)
        if ours is None:
            continue
        found += 1
        isls = bounds.bounds_of_hulls(prefixes, context, names)
        assert ours.context.is_equal(isls.context)
        assert replace(ours, context=context) == replace(isls, context=context), (around, ends)
    assert found > 150


def _box(ends: Ends) -> isl.Set:
    limits = [c for n, (low, high) in ends.items() for c in (Constraint(var(n) - low), Constraint(high - var(n)))]
    return set_of(limits, [*ends], ())


def touched(schedule: Schedule, loops: tuple[str, ...], uses: list[tuple[Statement, Access]]):
    """By tile the elements that are touched, an axis at a time."""
    found: dict[tuple[int, ...], list[set[int]]] = defaultdict(lambda: [set() for _ in uses[0][1].index])
    sizes = dict(schedule.program.binding)
    for s, access in uses:
        for point in product(*map(range, extents(schedule, s))):
            values = dict(zip(s.iterators, point, strict=True)) | sizes
            at = tuple(int(schedule.nests[s.name].loops[n].evaluate(values)) for n in loops)
            for axis, subscript in zip(found[at], access.affine_index, strict=True):
                axis.add(int(subscript.evaluate(values)))
    return found


def extents(schedule: Schedule, s: Statement) -> list[int]:
    shapes = {t.name: t.extents(schedule.program.binding) for t in schedule.source.tensors}
    known = {"i": shapes["C"][0], "j": shapes["C"][1], "r": shapes["B"][0]}
    return [known[i] for i in s.iterators]


@pytest.mark.parametrize("seed", range(24))
def test_a_plain_box_is_the_least_around_every_tile(seed: int):
    schedule = tiled(Random(seed))
    for name, nest in schedule.nests.items():
        for at in nest.names:
            loops = schedule.outer(at)
            for tensor in {a.tensor for a, _ in schedule.program.statement[name].accesses}:
                s = schedule.program.statement[name]
                uses = [(s, a) for a, _ in s.accesses if a.tensor == tensor]
                box = plain_box(schedule, loops, loops, uses)
                if box is None:
                    continue
                tiles = touched(schedule, loops, uses)
                for tile, axes in tiles.items():
                    corner = [int(c.evaluate(dict(zip(loops, tile, strict=True)))) for c in box.lower]
                    assert corner == [min(axis) for axis in axes], (at, tensor)
                reach = [max(max(axes[d]) - min(axes[d]) + 1 for axes in tiles.values()) for d in range(len(box.lower))]
                assert [Affine((), n) for n in reach] == [*box.extents], (at, tensor)


def test_many_boxes_are_plain_and_isl_finds_the_same():
    plain = 0
    for seed in range(12):
        schedule = tiled(Random(seed))
        (name,) = (s.name for s in schedule.program.statements if s.combiner is not None)
        for at in schedule.nests[name].names:
            loops = schedule.outer(at)
            for tensor in ("A", "B", "C"):
                s = schedule.program.statement[name]
                try:
                    tile = tile_of(schedule, tensor, at, [name])
                except PolyError:
                    continue
                box = plain_box(schedule, loops, tile.variables, [(s, a) for a, _ in s.accesses if a.tensor == tensor])
                plain += box is not None
                assert box is None or box == box_of(tile.footprint, tile.variables, "")
    assert plain > 30


def test_uses_in_different_tiles_are_left_to_isl():
    schedule = unchecked(Schedule(poly.parse("C[i] = A[i] + 1; D[i] = A[i] * 2", A=(12,))))
    first, second = schedule.program.statements
    schedule = schedule.tile({schedule.nests[first.name].names[0]: 4})
    schedule = schedule.shift(second.name, schedule.nests[second.name].names[0], 1)
    schedule = schedule.tile({schedule.nests[second.name].names[0]: 4})
    schedule = schedule.fuse(schedule.nests[first.name].names[0], schedule.nests[second.name].names[0])
    loop = schedule.nests[first.name].names[0]
    uses = [(s, s.reads[0]) for s in (first, second)]
    assert plain_box(schedule, (loop,), (loop,), uses[:1]) is not None
    assert plain_box(schedule, (loop,), (loop,), uses) is None


def _read(name: str, ranges: list[tuple[str, Affine, Affine]], parameters: tuple[str, ...]) -> isl.Set:
    conditions = " and ".join(f"{lo.isl_text} <= {i} < {hi.isl_text}" for i, lo, hi in ranges) or "true"
    return isl.Set(f"[{', '.join(parameters)}] -> {{ {name}[{', '.join(i for i, _, _ in ranges)}] : {conditions} }}")


@pytest.mark.parametrize(
    ("ranges", "parameters"),
    [
        ([], ()),
        ([("i", 0, 5), ("j", -3, 4)], ()),
        ([("i", 2, 2)], ("N",)),
        ([("i", 0, 1), ("j", 0, 1)], ("N",)),
        ([("i", 0, "N"), ("j", "i // 2", "M + 1")], ("N", "M")),
        ([("i", 0, "N"), ("j", 0, 24)], ("N",)),
    ],
)
def test_box_domain_is_what_isl_reads(
    ranges: list[tuple[str, int | str, int | str]], parameters: tuple[str, ...]
) -> None:
    bounds = [(i, Affine.of(lo), Affine.of(hi)) for i, lo, hi in ranges]
    made, read = box_domain("S", bounds, parameters), _read("S", bounds, parameters)
    assert made.plain_is_equal(read)
    assert (str(made), hash(made)) == (str(read), hash(read))


def test_places_whose_instances_algebra_tells_apart_run_none_twice() -> None:
    rng = Random(0)
    told = twice = 0
    for _ in range(300):
        names = [f"l{k}" for k in range(rng.randint(1, 4))]
        loops = tuple(For(n, (Affine(),), (Affine((), rng.randint(1, 4)),), ()) for n in names)
        instance = tuple(
            sum((var(n) * rng.choice((-4, -2, 0, 0, 1, 2, 3, 6)) for n in names), Affine((), rng.randint(-2, 2)))
            for _ in range(rng.randint(1, 3))
        )
        compute = Compute("S", instance, Access("x", instance), (), Const(0), None)
        place = Place(compute, loops, (), isl.Set("{ : }"))
        injective = bool(place.relation.is_injective())
        assert injective or not place.tells_apart
        told, twice = told + place.tells_apart, twice + (not injective)
    assert told > 50 < twice
