"""Rows of results in blocks: where prefetchers do not follow all of them, with the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.machine import Machine
from poly.prepared import prepare
from poly.program import Program
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.result_blocks import with_result_blocks
from poly.scheduling.thread_blocks import blocks_like
from tests.machines import AVX512
from tests.test_thread_blocks import MESH

ROWS = "Y[f,h,w] += X[c,h,w+a] * W[f,c,a]"
POINTS = "Y[f,h,w] += X[c,h,w] * W[f,c]"


def window(text: str = ROWS, **shapes: tuple[int, ...]) -> Program:
    """96 rows of 48 x 200 results, of sums of 9."""
    shapes = {"X": (3, 48, 202), "W": (96, 3, 3), "Y": (96, 48, 200), **shapes}
    return join_axes(poly.parse(f"output Y: f32[{','.join(map(str, shapes.pop('Y')))}]; {text}", dtypes=None, **shapes))


def block(program: Program, machine: Machine = MESH, threads: int = 1) -> int:
    """Rows in a block, 0 where there are none."""
    made = with_result_blocks(program, machine, threads)
    (update,) = (s for s in made.statements if s.combiner is not None)
    return max(c for i in update.write.affine_index for _, c in i.terms) if made is not program else 0


@pytest.mark.parametrize(
    ("shapes", "blocked"),
    [
        ({}, True),
        ({"W": (75, 3, 3), "Y": (75, 48, 200)}, True),
        ({"W": (101, 3, 3), "Y": (101, 48, 200)}, False),  # no blocks make up all rows
        ({"W": (30, 3, 3), "Y": (30, 48, 200)}, False),  # prefetchers follow them
        ({"X": (3, 12, 202), "Y": (96, 12, 200)}, False),  # a core's own caches hold the result
        ({"X": (11, 48, 202), "W": (96, 11, 3)}, False),  # sums of 33
    ],
)
def test_rows_are_in_blocks_that_prefetchers_follow(shapes: dict[str, tuple[int, ...]], blocked: bool) -> None:
    rows = block(window(ROWS, **shapes))
    assert (6 <= rows <= 32) == blocked == (rows > 0)


def test_only_where_the_last_cache_is_far_and_for_one_thread() -> None:
    assert block(window(), AVX512) == block(window(), threads=2) == 0


def test_rows_that_go_on_at_once_stay() -> None:
    """h and w are one loop."""
    assert block(window(POINTS, X=(9, 48, 200), W=(96, 9))) == 0


def test_blocks_are_around_the_loop_along_which_the_result_goes_on() -> None:
    program = window()
    schedule = prepare(program, replace(MESH, cores=1), 1).schedule
    nest = schedule.nests[next(s.name for s in schedule.program.statements if s.combiner is not None)]
    order = [str(nest.loops[n]) for n in nest.names]
    assert order.index("f") < order.index("h") < order.index("c")
    assert blocks_like(program, with_result_blocks(program, MESH, 1)) == with_result_blocks(program, MESH, 1)


def test_values_stay() -> None:
    program = with_result_blocks(window(W=(75, 3, 3), Y=(75, 41, 203), X=(3, 41, 205)), MESH, 1)
    assert "f_b" in program.statements[-1].iterators
    kernel = poly.compile(program, threads=1)
    random = np.random.default_rng(1)
    given = {t.name: random.integers(-3, 4, t.extents({})).astype(np.float32) for t in program.inputs}
    np.testing.assert_array_equal(np.asarray(kernel(**given)), run_program(program, given)["Y"])
