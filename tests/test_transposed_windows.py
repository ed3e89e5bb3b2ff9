"""Transposed convolutions by remainders of the stride: every tap once, at every position, for all attributes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.frontend.onnx_transposed import phases_of
from poly.frontend.onnx_windows import Window
from tests.onnx_helpers import assert_close, chain_model, reference, run_graph


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_phases_have_every_tap_once(stride: int, dilation: int, kernel: int) -> None:
    for before, size in product(range(3), (1, 4, 7)):
        axis = Window("h", size, kernel, stride, dilation, before, 0, 9)
        found: list[tuple[int, int, int]] = []
        for phase in phases_of(axis):
            for a, r, t in product(range(phase.size), range(phase.count), range(phase.taps)):
                at = {"h": a, "rh": r, "kh": t}
                source, tap = (int(e.evaluate(at)) for e in (phase.source, phase.tap))
                # the iteration r is the one that is placed where `made` says r
                placed = next(k for k in range(phase.count) if phase.made.evaluate({"rh": k}) == r)
                found.append((int(phase.place.evaluate(at | {"rh": placed})), source, tap))
        places = [(h, h + before - dilation * k, k) for h in range(size) for k in range(kernel)]
        expected = [(h, low // stride, k) for h, low, k in places if low % stride == 0]
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((3, 3), {"strides": [3, 3], "pads": [1, 1, 1, 1], "output_padding": [2, 2]}),  # as large as without padding
        ((3, 3), {"pads": [1, 0, 1, 2]}),
        ((3, 2), {"strides": [2, 3], "dilations": [2, 3]}),
        ((1, 3), {"strides": [2, 1]}),
        ((3, 3), {"strides": [2, 2], "group": 2}),
        ((4, 4), {"strides": [2, 2], "group": 4}),
        ((2, 3), {"strides": [4, 2], "output_shape": [18, 13]}),
        ((3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((7, 8), {"strides": [6, 7]}),  # few taps more than steps
        ((8, 8), {"strides": [4, 4], "pads": [2, 2, 2, 2]}),  # several remainders in each loop
        ((5, 11), {"strides": [5, 4], "pads": [1, 3, 2, 2]}),
        ((9, 9), {"strides": [7, 7], "dilations": [3, 5]}),  # more phases than are made
    ],
)
def test_results(kernel: tuple[int, int], attributes: dict[str, Any]) -> None:
    rng, group = np.random.default_rng(0), attributes.get("group", 1)
    x = rng.integers(-3, 4, (2, 4, 5, 6)).astype(np.float32)
    w = rng.integers(-3, 4, (4, 4 // group if group > 1 else 3, *kernel)).astype(np.float32)
    bias = rng.integers(-3, 4, w.shape[1] * group).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    model, arrays = chain_model([node], {"x": x}, ["y"], constants={"w": w, "b": bias})
    want = reference(model, arrays) if group == 1 else {"y": scattered(x, w, bias, group, attributes["strides"])}
    graph = poly.from_onnx(model)
    assert_close(run_graph(graph, arrays), want)
    assert_close(poly.compile(graph).run(arrays), want)
    assert_close(poly.compile(graph, target="s16").run(arrays), want)


def scattered(x: np.ndarray, w: np.ndarray, bias: np.ndarray, group: int, strides: list[int]) -> np.ndarray:
    """Without padding, from the definition (onnx's reference takes one channel a group)."""
    (n, channels, height, width), (_, each, kh, kw), (sh, sw) = x.shape, w.shape, strides
    y = np.zeros((n, each * group, sh * (height - 1) + kh, sw * (width - 1) + kw), np.float32)
    for c, m, i, j in product(range(channels), range(each), range(kh), range(kw)):
        of = c // (channels // group) * each + m
        y[:, of, i : i + sh * height : sh, j : j + sw * width : sw] += x[:, c] * w[c, m, i, j]
    return y + bias[:, None, None]


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 1)])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_one_position_has_a_tap_for_each_element(pads: tuple[int, ...], stride: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 5, 1, 1)).astype(np.float32)
    w = rng.integers(-3, 4, (5, 3, 4, 4)).astype(np.float32)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride, stride], pads=pads)
    model, arrays = chain_model([node], {"x": x}, ["y"], constants={"w": w})
    graph = poly.from_onnx(model)
    assert len(graph.to_program().statement["convtranspose0"].iterators) == 5  # a sum over channels alone
    assert_close(run_graph(graph, arrays), reference(model, arrays))
    assert_close(poly.compile(graph).run(arrays), reference(model, arrays))


def test_phases_that_are_alike_are_loops() -> None:
    axis = Window("h", 160, 16, 8, 1, 4, 4, 20)
    assert [(p.count, p.taps) for p in phases_of(axis)] == [(4, 2), (4, 2)]
    assert [(p.count, p.taps) for p in phases_of(Window("h", 128, 4, 2, 1, 1, 1, 64))] == [(2, 2)]
    assert [(p.count, p.taps) for p in phases_of(Window("h", 9, 3, 2, 1, 0, 0, 4))] == [(1, 2), (1, 1)]
