"""Results of register tiles that are asked for ahead: whose, along which loop, and that values stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.machine import Machine
from poly.scheduling.cpu_block import schedule_contraction
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.cpu_rating import RatedWays
from poly.scheduling.cpu_ways import TileSizes
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from tests.test_prefetch_block import MESH, NEAR

PLANES = "Y[n,f,p] += W[f,c]*X[n,c,p]"
APART = "Y[f,n,p] += W[f,c]*X[n,c,p]"
TURNED = "Y[n,f,p] += X[n,p,c]*W[c,f]"


def scheduled(
    text: str, machine: Machine, tile: tuple[int, int], inside: bool, **shapes: tuple[int, ...]
) -> Schedule:
    """A tile of so many rows and vectors, all of them in one block; `inside`: tiles of lanes follow one another."""
    program = poly.parse(text, dtypes=None, **shapes)
    (group,) = groups_of(program)
    facts = facts_of(program, group, machine)
    assert facts.update is not None
    lanes, rows = (group.axes[facts.update.name].index(n) for n in ("fp" if text == TURNED else "pf"))
    ways = RatedWays(facts, facts.update, lanes)
    way = next(w for w in ways.ways() if w.rows == rows and not w.packs and w.lanes_inside == inside)
    plan = ways.plan(way, TileSizes(*tile, 64, 0, 0))
    return schedule_contraction(unchecked(Schedule(program)), group, plan, machine)


def asked(schedule: Schedule) -> set[tuple[str, int]]:
    """The iterator along which stores ask ahead, and how many iterations."""
    found = set[tuple[str, int]]()
    for name, nest in schedule.nests.items():
        s, mark = schedule.program.statement[name], schedule.marks.get(nest.names[-1])
        if s.write.tensor == "Y" and mark is not None and mark.ahead is not None:
            (along,) = {n.rsplit(".", 1)[-1][0] for n in nest.loops[mark.ahead[0]].names}
            found.add((along, mark.ahead[1]))
    return found


@pytest.mark.parametrize(
    ("machine", "inside", "shapes", "wanted"),
    [
        (MESH, False, {}, {("f", 2)}),
        (MESH, True, {}, set()),  # eight rows go on, which prefetchers follow
        (MESH, True, {"X": (100, 64, 30)}, {("f", 2)}),  # all of them are short
        (NEAR, False, {}, set()),
        (MESH, False, {"X": (1, 64, 1056)}, set()),  # 1 MB of results
        (MESH, False, {"X": (8, 64, 1024)}, set()),  # rows of three tiles meet in one set
        (MESH, False, {"W": (256, 16), "X": (8, 16, 1056)}, {("f", 2)}),
        (MESH, False, {"W": (256, 16), "X": (70, 16, 1056)}, set()),  # from memory, later than operations end
        (MESH, False, {"W": (56, 16), "X": (20, 16, 1056)}, set()),  # 56 rows, which are followed
        (MESH, False, {"W": (56, 64), "X": (20, 64, 1056)}, {("f", 2)}),  # while operations take longer
        (MESH, False, {"W": (24, 64), "X": (720, 64, 1056)}, set()),  # 24 rows are
    ],
)
def test_results_of_many_rows_are_asked_for(
    machine: Machine, inside: bool, shapes: dict[str, tuple[int, ...]], wanted: set[tuple[str, int]]
) -> None:
    shapes = {"W": (256, 64), "X": (8, 64, 1056), **shapes}
    assert asked(scheduled(PLANES, machine, (8, 2), inside, **shapes)) == wanted


@pytest.mark.parametrize(
    ("text", "steps", "items", "wanted"),
    [
        (APART, 31, 33, {("f", 2)}),
        (PLANES, 31, 33, set()),  # rows follow one another
        (APART, 31, 26, set()),  # all stays
        (APART, 64, 33, set()),  # operations take longer
    ],
)
def test_rows_apart_of_short_sums_are_asked_for_though_they_alone_would_stay(
    text: str, steps: int, items: int, wanted: set[tuple[str, int]]
) -> None:
    assert asked(scheduled(text, MESH, (8, 2), False, W=(72, steps), X=(items, steps, 160))) == wanted


def test_along_the_outer_loop_where_the_inner_one_is_short() -> None:
    """64 rows of results are the lanes of two tiles, and the columns of the next but one are asked for."""
    schedule = scheduled(TURNED, MESH, (14, 2), True, X=(8, 1960, 64), W=(64, 64))
    assert asked(schedule) == {("p", 2)}


@pytest.mark.parametrize("text", [PLANES, TURNED])
def test_values_stay(text: str) -> None:
    small = tuple(replace(m, capacity=2048) if m.kind == "cache" else m for m in MESH.memories)
    first, second = ((68, 40), (2, 40, 70)) if text == PLANES else ((40, 68), (2, 70, 40))
    schedule = scheduled(text, replace(MESH, memories=small), (7, 1), text == TURNED, W=first, X=second)
    assert asked(schedule)
    kernel = poly.compile(schedule.source, schedule=settle(schedule))
    random = np.random.default_rng(1)
    sizes = schedule.source.binding
    given = {t.name: random.integers(-3, 4, t.extents(sizes)).astype(np.float32) for t in schedule.source.inputs}
    wanted = run_program(schedule.source, given)["Y"]
    np.testing.assert_array_equal(np.asarray(kernel(*given.values())), wanted)
