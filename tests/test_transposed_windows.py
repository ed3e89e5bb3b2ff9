"""Transposed convolutions by remainders of the stride: every tap once, at every position, for all attributes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.frontend.onnx_windows import Phase, Window
from tests.onnx_helpers import assert_close, chain_model, reference, run_graph


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_phases_have_every_tap_once(stride: int, dilation: int, kernel: int) -> None:
    for before, size in product(range(3), (1, 4, 7)):
        axis = Window("h", size, kernel, stride, dilation, before, 0, 9)
        found: list[tuple[int, int, int]] = []
        for remainder in range(stride):
            phase = Phase.of(axis, remainder)
            for a, t in product(range(phase.size), range(phase.taps)):
                source, tap = (int(e.evaluate({"h": a, "kh": t})) for e in (phase.source, phase.tap))
                found.append((stride * a + remainder, source, tap))
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
        ((7, 8), {"strides": [6, 7]}),  # more phases than are made
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
