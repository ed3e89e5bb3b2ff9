"""Targets that interleave parts: lanes across them, whole vectors stored, the same results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.loops import For
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_interleaved import Interleaved, interleaved_of
from poly.scheduling.groups import groups_of
from poly.scheduling.instances import check_instances
from tests.machines import AVX2
from tests.other_cpus import CPUS, run_here

PRODUCT = (
    "z[2*i+p] = (x[2*i]*y[2*i] - x[2*i+1]*y[2*i+1] if p < 1 else x[2*i]*y[2*i+1] + x[2*i+1]*y[2*i])"
    " where 0 <= i < {n} and 0 <= p < 2"
)
PIXELS = "z[k,3*i+p] = (x[k,i] if p < 1 else 2*x[k,i] if p < 2 else exp(x[k,i])) where 0 <= i < {n} and 0 <= p < 3"


def product(n: int) -> Program:
    return poly.parse(PRODUCT.format(n=n), x=(2 * n,), y=(2 * n,))


def pixels(n: int) -> Program:
    return poly.parse(PIXELS.format(n=n), x=(5, n))


def plan(program: Program) -> Interleaved | None:
    (group,) = groups_of(program)
    return interleaved_of(program, group, AVX2)


@pytest.mark.parametrize("program", [product(100), product(7), pixels(50), pixels(5)])
def test_stores_are_whole_vectors(program: Program) -> None:
    found = plan(program)
    assert found is not None and found.vector == 8
    schedule = schedule_for_cpu(program, AVX2)
    (result,) = {t.name for t in schedule.program.tensors if t.role == "output"}
    writers = [s.name for s in schedule.program.statements if s.write.tensor == result]
    assert writers and all(name.startswith("st_") for name in writers)
    loops = [n for n in schedule.lower().nodes() if isinstance(n, For)]
    for name in writers:
        (lanes,) = [n for n in loops if n.variable == schedule.nests[name].names[-1]]
        assert lanes.kind == "vector" and min(u.constant for u in lanes.upper if u.is_constant) <= 8
    check_instances(schedule.lower(), schedule.program)
    check_capacity(schedule.lower(), AVX2)


def test_long_rows_are_written_past_the_caches() -> None:
    text = "z[k,2*i+p] = (x[k,i] if p < 1 else y[k,i]) where 0 <= k < 2000 and 0 <= i < {n} and 0 <= p < 2"
    for n, past in ((80, False), (200, True)):
        found = plan(poly.parse(text.format(n=n), x=(2000, n), y=(2000, n)))
        assert found is not None and found.past == past


@pytest.mark.parametrize(
    "text",
    [
        "z[2*i+p] = x[i+p] * y[100*i] where 0 <= i < 50 and 0 <= p < 2",  # reads that are far apart
        "z[8*i+p] = x[i+p] * y[p] where 0 <= i < 50 and 0 <= p < 8",  # parts that are lanes
        "z[2*i+p] = x[i+p] * y[p] where 0 <= i < 3 and 0 <= p < 2",  # too few to pay
        "z[3*i+p] = x[i+p] * y[p] where 0 <= i < 50 and 0 <= p < 2",  # places between that nobody writes
        "z[i,p] = x[i+p] * y[p] where 0 <= i < 50 and 0 <= p < 2",
    ],
)
def test_others_are_not_interleaved(text: str) -> None:
    assert plan(poly.parse(text, x=(200,), y=(5000,))) is None


@pytest.mark.parametrize("cpu", list(CPUS))
@pytest.mark.parametrize("n", [4, 15, 64, 101])
def test_results(monkeypatch: pytest.MonkeyPatch, n: int, cpu: str) -> None:
    run_here(monkeypatch)
    draw = np.random.default_rng(n)
    x, y = (draw.standard_normal(2 * n).astype(np.float32) for _ in "xy")
    found = np.asarray(poly.compile(product(n), CPUS[cpu])(x, y)).view(np.complex64)
    np.testing.assert_allclose(found, x.view(np.complex64) * y.view(np.complex64), rtol=1e-5, atol=1e-5)
    x = draw.standard_normal((5, n)).astype(np.float32)
    for threads in (1, 2):
        wanted = np.stack([x, 2 * x, np.exp(x)], -1).reshape(5, 3 * n)
        found = np.asarray(poly.compile(pixels(n), CPUS[cpu], threads=threads)(x)).view(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
