"""Last writers by the sequence alone are those of isl's dataflow, wherever the sequence is said to decide."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import random

import poly
from poly.affine import var
from poly.errors import PolyError
from poly.program import Program
from poly.scheduling.edits import unchecked
from poly.scheduling.inverse import inverse_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.values import Flow, _same_reduction
from poly.scheduling.vectors import Vectors
from tests.mutation_programs import NAMES, program
from tests.mutations import ANY, random_legal


def compared(schedule: Schedule) -> tuple[int, int]:
    """How many readers the sequence decides, each compared with isl's dataflow, and how many it leaves."""
    flow = Flow(schedule)
    decided = left = 0
    readers = [r for s in schedule.program.statements for r in flow.readers(s)]
    for reader in [*readers, *(flow.at_end(t.name) for t in schedule.program.outputs)]:
        writers = flow._writes.get(reader.tensor, [])
        prefix = flow._shared_prefix(reader, writers, schedule.program.tensor[reader.tensor].scope)
        writers = [w for w in writers if not _same_reduction(reader, w)]
        found = flow._in_sequence(reader, writers, prefix)
        if found is None:
            left += 1
            continue
        decided += 1
        expected = flow._flow(reader, writers, prefix)
        assert found[0].is_equal(expected[0]), (reader.name, reader.tensor, str(schedule))
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


def test_random_schedules_legal_or_not() -> None:
    """Also of schedules that are not legal: the flow is what legality is judged by."""
    rng = random.Random(7)
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


def test_tiles_of_tiles_are_put_together() -> None:
    i, j = var("i"), var("j")
    loops = {"i.o": i // 32, "i.m": i // 8 % 4, "i.p": i % 8, "s": i + j}
    assert inverse_of(("i", "j"), tuple(loops), tuple(loops.values())) == [
        var("i.o") * 32 + var("i.m") * 8 + var("i.p"),
        var("s") - var("i.o") * 32 - var("i.m") * 8 - var("i.p"),
    ]
    assert inverse_of(("i",), ("a",), (i // 2,)) == [None]
    assert inverse_of(("i",), ("a", "b"), (i // 2, i % 4)) == [None]
