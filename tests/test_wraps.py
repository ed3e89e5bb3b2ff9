"""Loops that are cut where what they read goes around: into how many pieces, and with which results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.scheduling.wraps import wraps_apart


@pytest.mark.parametrize(
    ("text", "shapes", "pieces"),
    [
        ("Y[i] = X[(i + 70) % 300]", {"X": (300,), "Y": (300,)}, 2),
        ("Y[i] = X[(i - 70) % 300]", {"X": (300,), "Y": (300,)}, 2),
        ("Y[i,j] = X[(i + 100) % 200,(j + 80) % 160]", {"X": (200, 160), "Y": (200, 160)}, 4),
        ("Y[i] = X[i % 100]*Z[i]", {"X": (100,), "Y": (1003,), "Z": (1003,)}, 2),
        ("Y[i] = X[i // 100]*Z[i]", {"X": (11,), "Y": (1003,), "Z": (1003,)}, 2),
        ("Y[i] = X[i % 100]*Z[i]", {"X": (100,), "Y": (1000,), "Z": (1000,)}, 1),  # whole blocks
        ("Y[i] = X[(i + 1) % 300]", {"X": (300,), "Y": (300,)}, 1),  # one element beside the border
        ("Y[i] = X[i // 2]*Z[i]", {"X": (101,), "Y": (201,), "Z": (201,)}, 1),  # short blocks
        ("Y[i] = X[(i + 7) % 100]*Z[i]", {"X": (100,), "Y": (1000,), "Z": (1000,)}, 1),  # many borders
        ("Y[i] = X[(i + 70) % 300]\nW[i] = Y[i]*Y[i]", {"X": (300,), "Y": (300,), "W": (300,)}, 2),  # is read
    ],
)
def test_pieces_have_the_values_of_the_whole(text: str, shapes: dict[str, Any], pieces: int) -> None:
    program = poly.parse(text, **shapes)
    apart = wraps_apart(program)
    assert len(apart.statements) == pieces
    assert (apart is program) == (pieces == len(program.statements))
    rng = np.random.default_rng(0)
    values = {t.name: rng.standard_normal(t.extents(program.binding)).astype("f4") for t in program.inputs}
    wanted: Any = run_program(program, values)
    found = run_program(apart, values)
    for threads in (1, 2):
        kernel: Any = poly.compile(program, threads=threads)
        made = kernel(**values)
        for tensor, result in zip(program.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            np.testing.assert_array_equal(found[tensor.name], wanted[tensor.name])
            np.testing.assert_array_equal(result, wanted[tensor.name])


@pytest.mark.parametrize("reorder", [True, False])
def test_sums_are_cut_where_their_order_is_free(reorder: bool) -> None:
    order = "" if reorder else " ordered"
    program = poly.parse(
        "program p; input x: f32[1003]; inout y: f32[100]\n"
        f"S[i]: y[i % 100] += x[i] where 0 <= i < 1003{order}\n"
    )
    apart = wraps_apart(program)
    places = ["(i % 100)", "i - 1000"] if reorder else ["(i % 100)"]
    assert [str(s.write.affine_index[0]) for s in apart.statements] == places
    x, y = np.arange(1003, dtype=np.float32), np.ones(100, np.float32)
    wanted = y.copy()
    np.add.at(wanted, np.arange(1003) % 100, x)
    kernel: Any = poly.compile(program, threads=1)
    np.testing.assert_array_equal(kernel(x, y), wanted)
    np.testing.assert_array_equal(run_program(apart, {"x": x, "y": y})["y"], wanted)
