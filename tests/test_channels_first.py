"""Sums over channels before those over a window: the same values, where results are few, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.channels_first import channels_first
from poly.scheduling.cpu_channels import channels_like, with_channels_first
from poly.scheduling.groups import groups_of
from poly.text import parse_program
from tests.machines import MESH
from tests.onnx_helpers import assert_close, chain_model, reference


def window(
    c: int, m: int, size: int, guard: bool = True, v: str = "m, c, a, b", step: int = 1, fill: int = 0
) -> Program:
    """A 3x3 window with padding; without `guard` one of a larger image."""
    places = f"0 <= m < {m} and 0 <= h < {size} and 0 <= w < {size}"
    read, edge = f"x[c, {step}*h + a, {step}*w + b]", step * (size - 1) + 3
    if guard:
        inside = f"h + a >= 1 and h + a <= {size} and w + b >= 1 and w + b <= {size}"
        read, edge = f"(x[c, h + a - 1, w + b - 1] if {inside} else {fill})", size
    shape = {"m": m, "c": c, "a": 3, "b": 3}
    return parse_program(f"""program window
input x: f32[{c}, {edge}, {edge}]
constant v: f32[{", ".join(str(shape[n]) for n in v.split(", "))}]
output y: f32[{m}, {size}, {size}]
i[m, h, w]: y[m, h, w] = 1 where {places}
u[m, h, w, c, a, b]: y[m, h, w] += {read}*v[{v}] where {places} and 0 <= c < {c} and 0 <= a < 3 and 0 <= b < 3
""")


def values(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    given = (t for t in program.tensors if t.role in ("input", "constant"))
    return {t.name: random.integers(-3, 4, t.extents(program.binding)).astype("f4") for t in given}


@pytest.mark.parametrize("weights", ["m, c, a, b", "c, m, a, b", "a, c, b, m"])
@pytest.mark.parametrize("guard", [True, False])
def test_the_same_values(weights: str, guard: bool) -> None:
    program = window(4, 2, 24, guard, weights)
    (found,) = channels_first(program, {"v"})
    arrays = values(program)
    assert np.array_equal(run_program(found.program, arrays)["y"], run_program(program, arrays)["y"])
    product, rest = (found.program.statement[n] for n in (found.made, *found.sums))
    assert product.iterators[-1] == "c" and not product.reads[0].guard
    assert "c" not in rest.iterators and bool(rest.reads[0].guard) == guard


def test_padding_by_another_number_stays() -> None:
    """What is added up behind would have it once, not once for each channel and times the weights."""
    assert [*channels_first(window(4, 2, 24), {"v"})] and not [*channels_first(window(4, 2, 24, fill=1), {"v"})]


def test_places_that_depend_on_two_loops_of_the_results() -> None:
    random = np.random.default_rng(3)
    x = random.integers(-3, 4, (2, 32, 9, 20)).astype("f4")
    cases: list[tuple[tuple[int, int], dict[str, Any], list[int]]] = [
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, [1]),
        ((9, 6), {"strides": [3, 2]}, [1]),
        ((6, 6), {"strides": [2, 2], "pads": [2, 2, 2, 2]}, [1]),
        ((5, 7), {"strides": [2, 2], "pads": [1, 3, 1, 3], "output_padding": [0, 1]}, [4, 1, 1, 1, 1]),  # backwards
        ((5, 5), {"strides": [3, 3], "pads": [1, 1, 1, 1]}, [9, *[1] * 8]),  # of one remainder a single tap
    ]
    for kernel, attributes, together in cases:
        w = random.integers(-3, 4, (32, 1, *kernel)).astype("f4")
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
        model, arrays = chain_model([node], {"x": x}, ["y"], constants={"w": w})
        program = poly.from_onnx(model).to_program()
        found = [*channels_first(program, {"w"})]
        assert [len(one.sums) for one in found] == together
        given = {**arrays, "w": w}
        for one in found:
            for changed in (one.program, one.rated):
                assert_close(run_program(changed, given), reference(model, arrays))
            (product,) = (g for g in groups_of(one.program) if one.made in g.names)
            assert len(product.names) == 2  # zeros around are of other nests, and sums begin in registers
            assert not any(one.program.statement[n].reads[0].guard for n in one.sums)


def two_windows(weights: str) -> Program:
    """Of the same data, with channels under two names; `made` is written behind the first one's start."""
    first, second = "0 <= m < 2 and 0 <= h < 18", "0 <= k < 3 and 0 <= g < 19"
    return parse_program(f"""program two
input x: f32[16, 20]
input u: f32[3, 16, 2]
constant v: f32[2, 16, 3]
constant w: f32[3, 16, 2]
temporary made: f32[3, 16, 2]
output y: f32[2, 18]
output z: f32[3, 19]
i[m, h]: y[m, h] = 0 where {first}
s[m, h, c, a]: y[m, h] += x[c, h + a]*v[m, c, a] where {first} and 0 <= c < 16 and 0 <= a < 3
l[k, d, b]: made[k, d, b] = u[k, d, b] where 0 <= k < 3 and 0 <= d < 16 and 0 <= b < 2
j[k, g]: z[k, g] = 1 where {second}
t[k, g, d, b]: z[k, g] += x[d, g + b]*{weights}[k, d, b] where {second} and 0 <= d < 16 and 0 <= b < 2
""")


def test_windows_of_the_same_data() -> None:
    program = two_windows("w")
    together, *alone = channels_first(program, {"v", "w"})
    assert together.sums == ("s", "t") and [one.sums for one in alone] == [("s",), ("t",)]
    assert together.terms == sum(one.terms for one in alone)
    arrays = values(program)
    expected, found = run_program(program, arrays), run_program(together.program, arrays)
    assert all(np.array_equal(found[n], expected[n]) for n in ("y", "z"))
    made_late = channels_first(two_windows("made"), {"v", "w"})
    assert [one.sums for one in made_late] == [("s",), ("t",)]


def test_remainders_that_few_results_have_are_done_together() -> None:
    """Of 256 channels to one the data are read once, not nine times; of 32 to 8 a remainder has rows enough."""
    for c, m, together in ((256, 1, True), (32, 8, False)):
        w, x = np.ones((c, m, 5, 5), np.float32), np.ones((1, c, 8, 8), np.float32)
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[3, 3], pads=[1, 1, 1, 1])
        model, _ = chain_model([node], {"x": x}, ["y"], constants={"w": w})
        program = poly.from_onnx(model).to_program()
        chosen = with_channels_first(program, {"w"}, MESH, 1)
        assert any(s.name == "x_taps_made" for s in chosen.statements) == together
        assert channels_like(program, chosen, {"w"}) == chosen


@pytest.mark.parametrize(
    ("program", "finite"),
    [
        (window(4, 65, 20), {"v"}),  # many results
        (window(4, 2, 20), set[str]()),  # weights may be infinite, where padding is
        (window(4, 2, 20, False, step=2), {"v"}),  # of all places few are used
        (window(4, 2, 4, False), {"v"}),  # the same, of a small image
    ],
)
def test_left_as_it_is(program: Program, finite: set[str]) -> None:
    assert not [*channels_first(program, finite)]


def test_chosen_where_the_model_has_it_sooner_done() -> None:
    few, many, short = window(64, 1, 64), window(64, 8, 64), window(4, 3, 64)
    chosen = with_channels_first(few, {"v"}, MESH, 1)
    assert chosen is not few
    assert channels_like(few, chosen, {"v"}) == chosen and channels_like(few, few, {"v"}) is few
    for program in (many, short):
        assert with_channels_first(program, {"v"}, MESH, 1) is program


def test_more_results_where_the_last_cache_is_far() -> None:
    near = replace(MESH, engines=tuple(replace(e, cost={**e.cost, "afar": 0}) for e in MESH.engines))
    program = window(512, 9, 14)
    assert with_channels_first(program, {"v"}, MESH, 1) is not program
    assert with_channels_first(program, {"v"}, near, 1) is program
    assert with_channels_first(window(128, 16, 28), {"v"}, MESH, 1).tensor.keys() == program.tensor.keys()


def test_the_last_cache_that_is_far_is_charged_for_what_stays_near() -> None:
    near = replace(MESH, engines=tuple(replace(e, cost={**e.cost, "afar": 0}) for e in MESH.engines))
    program = window(128, 8, 14)
    assert with_channels_first(program, {"v"}, MESH, 1) is not program
    assert with_channels_first(program, {"v"}, near, 1) is program


def test_compiled() -> None:
    program = window(64, 1, 30)
    arrays = values(program)
    kernel = poly.compile(program, constants={"v": arrays["v"]}, threads=1)
    assert np.array_equal(kernel(arrays["x"]), run_program(program, arrays)["y"])
