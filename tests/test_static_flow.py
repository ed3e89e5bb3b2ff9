"""Last writers by the sequence alone are those of isl's dataflow, wherever the sequence is said to decide."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import random
from contextlib import suppress
from itertools import product

import islpy as isl
import pytest

import poly
from poly.affine import Affine, var
from poly.errors import PolyError
from poly.program import Program
from poly.relations import _values_in_box, box_bounds
from poly.scheduling.edits import unchecked
from poly.scheduling.flow import Flow, _same_reduction
from poly.scheduling.inverse import by_loops, equalities_of, inverse_of, loops_that_are
from poly.scheduling.legality import _in_sequence, pieces_of, violation
from poly.scheduling.schedule import Schedule
from poly.scheduling.vectors import Vectors, together
from poly.sets import IN, OUT
from tests.mutation_programs import NAMES, program
from tests.mutations import ANY, random_legal


def compared(schedule: Schedule) -> tuple[int, int]:
    """How many readers the sequence decides, each compared with isl's dataflow, and how many it leaves."""
    flow = Flow(schedule)
    decided = left = 0
    readers = [r for s in schedule.program.statements for r in flow.readers(s)]
    for reader in [*readers, *(flow.at_end(t.name) for t in schedule.program.outputs)]:
        writers = flow._writes.get(reader.tensor, [])
        scope = schedule.program.tensor[reader.tensor].scope
        prefix = flow._shared_prefix(reader, writers, scope)
        writers = [w for w in writers if not _same_reduction(reader, w)]
        found = flow._in_sequence(reader, writers, prefix)
        if found is None:
            left += 1
            continue
        decided += 1
        expected = flow._flow(reader, writers, prefix)
        assert found[0].is_equal(expected[0]), (reader.name, reader.tensor, str(schedule))
        if not scope:  # else nobody asks what comes from before, and it is told by loops
            assert found[1].is_equal(expected[1]), (reader.name, reader.tensor, str(schedule))
    return decided, left


def rows() -> Program:
    return poly.parse(
        """
        M[i] max= X[i, j]
        E[i, j] = exp(X[i, j] - M[i])
        S[i] += E[i, j]
        Y[i, j] = E[i, j] / S[i]
        """,
        X=(6, 8),
    )


def test_loops_over_rows_leave_the_order_to_the_sequence() -> None:
    schedule = Schedule(rows())
    assert compared(schedule)[1] == 0
    names = [s.name for s in schedule.program.statements]
    for first, second in zip(names, names[1:], strict=False):
        try:
            schedule = schedule.fuse(schedule.nests[first].names[0], schedule.nests[second].names[0])
        except PolyError:
            continue
    assert len(schedule.log) >= 2, "too little was fused"
    assert compared(schedule)[1] == 0


@pytest.mark.parametrize("by", [(0, 1, 1, 2), (0, 2, 2, 3), (3, 2, 1, 0), (1, 0, 0, 2)])
def test_passes_over_rows_behind_one_another(by: tuple[int, ...]) -> None:
    """Rows of a later pass some iterations later, or earlier, which no check would let pass."""
    schedule = Schedule(rows())
    names = [s.name for s in schedule.program.statements]
    for first, second in zip(names, names[1:], strict=False):
        with suppress(PolyError):
            schedule = schedule.fuse(schedule.nests[first].names[0], schedule.nests[second].names[0])
    shared = schedule.nests[names[-1]].names[0]
    together = schedule.loop_statements[shared]
    assert len(together) >= 4, together
    later = dict(zip(together[-4:], by, strict=True))
    staggered = unchecked(schedule)
    for name, k in later.items():
        if k:
            staggered = staggered.shift(name, schedule.nests[name].names[0], k)
    decided, left = compared(staggered)
    assert left <= (0 if by[0] == 0 else 2), (decided, left)


@pytest.mark.parametrize("seed", [2, 7])
def test_random_schedules_legal_or_not(seed: int) -> None:
    """Also of schedules that are not legal: the flow is what legality is judged by."""
    rng = random.Random(seed)
    total = [0, 0]
    for name in NAMES:
        legal = random_legal(rng, Schedule(program(name)), 3, ANY)
        wild = random_legal(rng, unchecked(legal), 2, ("interchange", "fuse", "shift", "split", "tile"))
        for schedule in (legal, wild):
            decided, left = compared(schedule)
            total[0] += decided
            total[1] += left
    assert total[0] > 200 and total[1] > 20, total


def test_accesses_by_loops_are_those_that_isl_finds() -> None:
    rng = random.Random(5)
    direct = 0
    for name in NAMES:
        schedule = random_legal(rng, Schedule(program(name)), 3, ANY)
        vectors = Vectors(schedule)
        for touch in (t for s in schedule.program.statements for t in vectors.touches(s)):
            found = vectors._by_loops(touch)
            if found is not None:
                assert found.is_equal(vectors._by_hull(touch)), (name, touch.statement.name)
                direct += 1
    assert direct > 150, direct


def test_accesses_that_are_plainly_apart_are_apart() -> None:
    """Under random schedules, legal or not, with copies in buffers: what algebra says, isl says of the same pairs."""
    rng = random.Random(11)
    apart = staggered = total = 0
    for name in NAMES:
        legal = random_legal(rng, Schedule(program(name)), 3, ANY)
        vectors = Vectors(random_legal(rng, unchecked(legal), 2, ("interchange", "fuse", "shift", "skew", "tile")))
        for loop, names in vectors.schedule.loop_statements.items():
            depth = len(vectors.schedule.outer(loop)) - 1
            touched = [t for n in names for t in vectors.touches(vectors.program.statement[n])]
            for a, b in ((a, b) for a in touched for b in touched if a.tensor == b.tensor and a.write):
                total += 1
                if vectors.apart(a, b, depth):
                    pairs = vectors.access(a).apply_range(vectors.access(b).reverse())
                    pairs = together(pairs, range(depth))
                    assert pairs.is_subset(together(pairs, [depth])), (name, loop, str(vectors.schedule))
                    apart += 1
                elif step := vectors.by_distance(a, b, depth):
                    pairs = together(vectors.access(a).apply_range(vectors.access(b).reverse()), range(depth))
                    bad = pairs.order_le(IN, depth, OUT, depth) if step > 0 else pairs.order_ge(IN, depth, OUT, depth)
                    assert bad.is_empty(), (name, loop, str(vectors.schedule))
                    staggered += 1
    assert staggered > 5, staggered
    assert apart > 100 and total - apart > 100, (apart, total)


def test_dependences_that_are_plainly_in_sequence_are_in_order() -> None:
    """Under schedules legal or not: what algebra lets pass, isl finds no violation of."""
    rng = random.Random(3)
    plain = total = 0
    for name in NAMES:
        legal = random_legal(rng, Schedule(program(name)), 3, ANY)
        schedule = random_legal(rng, unchecked(legal), 2, ("interchange", "fuse", "shift", "split", "tile"))
        vectors, parts = Vectors(schedule), pieces_of(schedule.program)
        for d in (d for d in schedule.facts.dependences if d.kind != "reduction"):
            for first, second in product(parts.get(d.source, ()), parts.get(d.sink, ())):
                total += 1
                if _in_sequence(schedule, vectors, d, first, second):
                    relation = d.relation.set_tuple_name(IN, first.name).set_tuple_name(OUT, second.name)
                    assert violation(schedule, vectors, first, second, relation) is None, (name, str(d), str(schedule))
                    plain += 1
    assert plain > 50 and total - plain > 50, (plain, total)


def test_loops_that_are_floors_take_their_place() -> None:
    i = var("i")
    loops = {"i.o": i // 6, "i": (i + 3) % 5 + 7}  # a loop of an iterator's name
    atoms = loops_that_are(tuple(loops), tuple(loops.values()))
    assert by_loops(i * 2 - i // 6 * 12, {"i": var("x")}, atoms) == var("x") * 2 - var("i.o") * 12
    assert by_loops((i + 3) % 5 + i, {"i": var("x")}, atoms) == var("i") - 7 + var("x")


def test_equalities_of_a_domain_give_what_no_loop_does() -> None:
    domain = isl.Set("{ S[i, j, k] : i = 2j + 1 and k = 3 and 0 <= j < 4 }")
    zero = equalities_of(domain, ("i", "j", "k"))
    j = var("t") * 4 + var("p")
    assert inverse_of(("i", "j", "k"), ("t", "p"), (var("j") // 4, var("j") % 4), zero=zero) == [
        j * 2 + 1, j, var("k") * 0 + 3,
    ]  # fmt: skip
    assert inverse_of(("i", "k"), (), ()) == [None, None]


def test_tiles_of_tiles_are_put_together() -> None:
    i, j = var("i"), var("j")
    loops = {"i.o": i // 32, "i.m": i // 8 % 4, "i.p": i % 8, "s": i + j}
    assert inverse_of(("i", "j"), tuple(loops), tuple(loops.values())) == [
        var("i.o") * 32 + var("i.m") * 8 + var("i.p"),
        var("s") - var("i.o") * 32 - var("i.m") * 8 - var("i.p"),
    ]
    assert inverse_of(("i",), ("a",), (i // 2,)) == [None]
    assert inverse_of(("i",), ("a", "b"), (i // 2, i % 4)) == [None]


def random_expression(rng: random.Random, depth: int) -> Affine:
    kind = rng.randrange(5) if depth else 0
    if kind == 0:
        return var(rng.choice("ij")) * rng.choice((1, 1, -1, 2)) + rng.randrange(-5, 6)
    first = random_expression(rng, depth - 1)
    if kind < 3:
        return first // rng.randrange(1, 7) if kind == 1 else first % rng.randrange(1, 7)
    return first + random_expression(rng, depth - 1)


def test_ranges_of_expressions_in_a_box_are_those_of_its_points() -> None:
    rng = random.Random(1)
    plain = 0
    for _ in range(1500):
        i, j = ((low, low + rng.randrange(14)) for low in (rng.randrange(-6, 7), rng.randrange(-6, 7)))
        domain = isl.Set(f"{{ S[i, j] : {i[0]} <= i <= {i[1]} and 2*{j[0]} - 1 <= 2j < 2*{j[1]} + 2 }}")
        assert box_bounds(domain, ("i", "j")) == {"i": i, "j": j}
        expression = random_expression(rng, 3)
        points = product(range(i[0], i[1] + 1), range(j[0], j[1] + 1))
        values = {int(expression.evaluate({"i": a, "j": b})) for a, b in points}
        found = _values_in_box(expression, {"i": i, "j": j})
        if found is not None:
            assert found[:2] == (min(values), max(values)), (str(expression), i, j)
            assert not found[2] or len(values) == found[1] - found[0] + 1, (str(expression), i, j)
            plain += 1
    assert plain > 500, plain


def test_what_is_no_box_has_no_bounds() -> None:
    for condition in ("0 <= i < 7 and i <= j < 9", "0 <= i < 7 and i mod 2 = 0 and 0 <= j < 3", "5 <= i < 3 and j = 0",
                      "0 <= i < 7", "(0 <= i < 3 or 5 <= i < 9) and j = 2"):  # fmt: skip
        assert box_bounds(isl.Set(f"{{ S[i, j] : {condition} }}"), ("i", "j")) is None, condition
    assert box_bounds(isl.Set("{ S[i, j] : 0 <= i < 7 and j = 3 }"), ("i", "j")) == {"i": (0, 6), "j": (3, 3)}
    assert box_bounds(isl.Set("[N] -> { S[i] : 0 <= i < N }"), ("i",)) is None
