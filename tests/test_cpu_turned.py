"""Windows in narrow planes: lanes along the planes, blocks of which are turned; the same results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.machine import Memory
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_turned import Turned, turned_of
from poly.scheduling.groups import groups_of
from poly.scheduling.instances import check_instances
from tests.machines import AVX2
from tests.onnx_helpers import run_graph
from tests.other_cpus import CPUS, run_here
from tests.test_cpu_window import WIDE, graph_of

Case = tuple[str, tuple[int, ...], tuple[int, ...] | None, Mapping[str, object]]
CASES: dict[str, Case] = {
    "5x5": ("Conv", (1, 32, 7, 7), (32, 1, 5, 5), {"pads": [2] * 4, "group": 32}),
    "3x3": ("Conv", (1, 48, 7, 7), (48, 1, 3, 3), {"pads": [1] * 4, "group": 48}),
    "7x7": ("Conv", (2, 32, 7, 7), (32, 1, 7, 7), {"pads": [3] * 4, "group": 32}),
    "in steps": ("Conv", (1, 32, 14, 14), (32, 1, 5, 5), {"pads": [2] * 4, "group": 32, "strides": [2, 2]}),
    "12 wide in steps": ("Conv", (1, 32, 12, 12), (32, 1, 3, 3), {"group": 32, "strides": [2, 2]}),
    "uneven padding": ("Conv", (1, 32, 9, 6), (32, 1, 5, 5), {"pads": [1, 2, 3, 0], "group": 32}),
    "no padding": ("Conv", (3, 32, 12, 11), (32, 1, 5, 5), {"group": 32}),
    "odd widths": ("Conv", (1, 32, 18, 19), (32, 1, 7, 7), {"group": 32, "strides": [2, 2]}),
    "largest": ("MaxPool", (1, 32, 7, 7), None, {"kernel_shape": [5, 5], "pads": [2] * 4}),
}
WIDER: dict[str, Case] = {
    "14 wide": ("Conv", (1, 32, 14, 14), (32, 1, 5, 5), {"pads": [2] * 4, "group": 32}),
    "one element": ("Conv", (1, 32, 5, 5), (32, 1, 5, 5), {"group": 32}),
    "14 wide in steps": ("Conv", (1, 32, 14, 14), (32, 1, 3, 3), {"pads": [1] * 4, "group": 32, "strides": [2, 2]}),
}

REST: dict[str, Case] = {
    "half a block": ("Conv", (1, 24, 7, 7), (24, 1, 5, 5), {"pads": [2] * 4, "group": 24}),
    "less than a block": ("Conv", (2, 14, 14, 9), (14, 1, 7, 7), {"pads": [3] * 4, "group": 14, "strides": [2, 2]}),
    "odd planes": ("Conv", (1, 43, 9, 6), (43, 1, 5, 5), {"pads": [1, 2, 3, 0], "group": 43, "strides": [3, 3]}),
}
TALL: dict[str, Case] = {
    "two wide": ("Conv", (1, 32, 40, 8), (32, 1, 7, 7), {"pads": [1] * 4, "group": 32, "strides": [3, 3]}),
    "nine wide, to the second cache": ("Conv", (1, 32, 70, 15), (32, 1, 7, 7), {"group": 32}),
}
EVERY = CASES | REST | TALL
CACHES = tuple(Memory(f"l{n}", 1 << bits, "cache") for n, bits in ((3, 25), (2, 20)))
NEAR = replace(WIDE, memories=(WIDE.memories[0], *CACHES, *WIDE.memories[1:]))


def plan(case: Case, threads: int = 1) -> Turned | None:
    program = graph_of(case[0], *case[1:3], attrs=case[3])[0].to_program()
    found = [turned_of(program, group, WIDE, threads) for group in groups_of(program)]
    return next((t for t in found if t is not None), None)


@pytest.mark.parametrize("name", CASES)
def test_lanes_are_planes(name: str) -> None:
    found = plan(CASES[name])
    assert found is not None and found.beside.window.lanes == 1 and ("x", 1) in found.tensors
    operator, shape, weights, attrs = CASES[name]
    program = graph_of(operator, shape, weights, relu=weights is not None, attrs=attrs)[0].to_program()
    schedule = schedule_for_cpu(program, WIDE)
    turned = {t.origin: t for t in schedule.program.tensors if t.space == "l1" and t.origin != "w"}
    assert {"x", program.outputs[0].name} == turned.keys()
    for tensor in turned.values():
        assert tensor.storage_shape[-1].evaluate({}) == 16
    check_instances(schedule.lower(), schedule.program)
    check_capacity(schedule.lower(), WIDE)


@pytest.mark.parametrize("name", WIDER)
def test_others_run_along_rows(name: str) -> None:
    assert plan(WIDER[name]) is None


def test_every_thread_has_a_block() -> None:
    assert plan(CASES["5x5"], threads=2) is not None
    assert plan(CASES["5x5"], threads=3) is None


def test_rows_that_fill_vectors_are_walked() -> None:
    program = graph_of("Conv", (1, 32, 7, 7), (32, 1, 3, 3), attrs={"pads": [1] * 4, "group": 32})[0].to_program()
    assert not any(turned_of(program, group, AVX2) for group in groups_of(program))


@pytest.mark.parametrize("name", REST)
def test_planes_that_are_left_over(name: str) -> None:
    found, planes = plan(REST[name]), REST[name][1][1]
    assert found is not None and found.whole == (() if planes < 16 else (planes // 16 * 16,))


@pytest.mark.parametrize("name", TALL)
def test_tiles_along_tall_planes(name: str) -> None:
    operator, shape, weights, attrs = TALL[name]
    program = graph_of(operator, shape, weights, attrs=attrs)[0].to_program()
    found = next(t for g in groups_of(program) if (t := turned_of(program, g, NEAR)) is not None)
    assert found.beside.window.rows == 2 and found.beside.window.height > 5
    assert found.level == ("second" in name)
    schedule = schedule_for_cpu(program, NEAR)
    assert any(t.space == NEAR.cache_space(found.level) and t.origin == "x" for t in schedule.program.tensors)
    check_capacity(schedule.lower(), NEAR)


def test_rows_of_padding_stay_where_planes_are_turned() -> None:
    graph = graph_of("Conv", (1, 32, 7, 7), (32, 1, 5, 5), attrs={"pads": [2] * 4, "group": 32})[0]
    schedule = poly.compile(graph.to_program(), CPUS["avx512"], constants=graph.constants).schedule
    assert schedule is not None
    assert any(t.origin == "x" and t.storage_shape[-1].evaluate({}) == 16 for t in schedule.program.tensors)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_results(monkeypatch: pytest.MonkeyPatch, name: str, relu: bool, threads: int) -> None:
    run_here(monkeypatch)
    operator, shape, weights, attrs = EVERY[name]
    graph, arrays = graph_of(operator, shape, weights, relu=relu and weights is not None, attrs=attrs)
    kernel = poly.compile(graph.to_program(), CPUS["avx512"], constants=graph.constants, threads=threads)
    found = kernel(**arrays)
    np.testing.assert_array_equal(found, next(iter(run_graph(graph, arrays).values())))
