"""Passes over columns in blocks: which groups are taken, what blocks are, results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.host import machine_of_features
from poly.codegen.kernel import Kernel
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_column_blocks import ColumnBlocks, column_blocks_of
from poly.scheduling.row_groups import groups_for

pytestmark = pytest.mark.usefixtures("own_cache")

AVX512 = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")
SOFTMAX = (
    "m[i, j] max= x[i, k, j]; e[i, k, j] = exp(x[i, k, j] - m[i, j]); s[i, j] += e[i, k, j]; "
    "y[i, k, j] = e[i, k, j] / s[i, j]"
)
NORM = "q[j] += x[k, j] * x[k, j]; y[k, j] = x[k, j] / sqrt(q[j])"
CHANNELS = (
    "m[j] += x[k, j]; d[k, j] = x[k, j] - m[j] / 40; v[j] += d[k, j] * d[k, j]; r[j] = 1 / sqrt(v[j] / 40 + 0.001); "
    "z[k, j] = d[k, j] * r[j]; y[k, j] = z[k, j] * w[k] + b[k]"
)


def core(afar: float, second: int = 64 << 10) -> Machine:
    caches = {1: 32 << 10, 2: second, 3: 32 << 20}
    near = machine_of_features("x86-64", AVX512, "x86_64-unknown-linux-gnu", caches, 2, 3000)
    (engine, *others) = near.engines
    return replace(near, engines=(replace(engine, cost={**engine.cost, "afar": afar}), *others))


def plan_of(program: Program, on: Machine) -> ColumnBlocks | None:
    (group,) = groups_for(program, on)
    return column_blocks_of(program, group, on)


def test_a_block_is_so_many_columns_that_a_core_keeps_them() -> None:
    wide = poly.parse(SOFTMAX, x=(2, 30, 1000))
    plan = plan_of(wide, core(1))
    assert plan is not None and (plan.columns, plan.block, plan.lanes) == (1000, 128, 64)
    larger = plan_of(poly.parse(SOFTMAX, x=(2, 30, 5000)), core(1, 1 << 20))
    assert larger is not None and larger.block == 1024 and not larger.ahead
    assert plan_of(wide, core(0)) is None  # the last cache is near enough
    assert plan_of(wide, core(1, 1 << 20)) is None  # all of it is in the second
    assert plan_of(poly.parse(SOFTMAX, x=(2, 3000, 1000)), core(1)) is None  # no block of four vectors is


def test_short_rows_of_a_block_are_asked_for_and_want_three_passes() -> None:
    three, two = plan_of(poly.parse(SOFTMAX, x=(2, 30, 1000)), core(1)), poly.parse(NORM, x=(100, 1000))
    assert three is not None and three.ahead
    assert plan_of(two, core(1)) is None
    wider = plan_of(poly.parse(NORM, x=(100, 9000)), core(1, 1 << 20))
    assert wider is not None and not wider.ahead


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (SOFTMAX, {"x": (2, 30, 1000)}),
        (SOFTMAX, {"x": (1, 7, 4096)}),
        (SOFTMAX, {"x": (3, 21, 777)}),
        (CHANNELS, {"x": (40, 1300), "w": (40,), "b": (40,)}),
        (NORM, {"x": (5, 9001)}),
    ],
)
def test_columns_in_blocks_give_the_interpreters_results(
    text: str, shapes: dict[str, tuple[int, ...]], threads: int
) -> None:
    program, on = poly.parse(text, dtypes=None, **shapes), core(1)
    assert plan_of(program, on) is not None
    schedule = schedule_for_cpu(program, on, threads)
    assert len({nest.names[0] for nest in schedule.nests.values()}) <= 2  # whole vectors, and what is left over
    kernel = poly.compile(schedule, threads=threads)
    assert isinstance(kernel, Kernel)
    rng = np.random.default_rng(4)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found, wanted = (np.asarray(y, np.float64) for y in (kernel(**given), run_program(program, given)["y"]))
    np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=3e-6)


def test_the_element_of_the_largest_in_each_column() -> None:
    """Its number is found in a second pass, as a sum of its own."""
    text = "m[j] max= x[k, j]; at[j] min= i32(k) if x[k, j] == m[j] else i32(1000)"
    program = poly.parse(text, x=(19, 3000))
    on = core(1)
    assert plan_of(program, on) is not None
    x = np.random.default_rng(5).standard_normal((19, 3000)).astype(np.float32)
    kernel = poly.compile(schedule_for_cpu(program, on), threads=1)
    assert isinstance(kernel, Kernel)
    np.testing.assert_array_equal(kernel(x), x.argmax(axis=0))
