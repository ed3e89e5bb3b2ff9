"""Windows that leave out padding: which programs change, and that results stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.groups import groups_of
from poly.scheduling.uneven import finite_factors, inside_windows, uneven_axes
from poly.text import parse_program
from tests.machines import AVX2
from tests.other_cpus import CPUS


def window(extent: int, step: int = 1, image: str = "X[{y}, {x}, c]", shape: str = "{n}, {n}, 16") -> Program:
    """A 3x3 window over an image with one element of padding, and what follows it."""
    places, n = (extent - 1) // step + 1, str(extent)
    y, x = (f"{i} + {k} - 1" if step == 1 else f"{step}*{i} + {k} - 1" for i, k in (("y", "q"), ("x", "r")))
    guard = " and ".join(f"{e} >= 0 and {e} <= {extent - 1}" for e in (y, x))
    box = f"0 <= o <= 23 and 0 <= y <= {places - 1} and 0 <= x <= {places - 1}"
    return parse_program(f"""program window
constant W: f32[24, 16, 3, 3]
input X: f32[{shape.format(n=n)}]
constant bias: f32[24]
temporary T: f32[{places}, {places}, 24]
output Y: f32[{places}, {places}, 24]
s0[o, y, x]: T[y, x, o] = bias[o] where {box}
s1[o, y, x, q, r, c]: T[y, x, o] += ({image.format(y=y, x=x)} if {guard} else 0)*W[o, c, q, r] where {box} and """
        f"""0 <= q <= 2 and 0 <= r <= 2 and 0 <= c <= 15
s2[o, y, x]: Y[y, x, o] = max(T[y, x, o], 0) where {box}
""")  # fmt: skip


def constants() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {n: random.integers(-3, 4, s).astype(np.float32) for n, s in {"W": (24, 16, 3, 3), "bias": (24,)}.items()}


@pytest.mark.parametrize(("extent", "step"), [(7, 1), (14, 1), (13, 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_padding_are_left_out(extent: int, step: int, threads: int) -> None:
    program, given = window(extent, step), constants()
    shorter = inside_windows(program, finite_factors(program, given))
    s = shorter.statement["s1"]
    assert uneven_axes(shorter, s, ("o", "y", "x")) == {"y": {"q"}}
    assert {n for c in s.reads[0].guard for n in c.expr.names} == {"x", "r"}
    assert [g.names for g in groups_of(shorter)] == [("s0", "s1", "s2")]
    x = np.random.default_rng(2).integers(-3, 4, (extent, extent, 16)).astype(np.float32)
    kernel = poly.compile(program, constants=given, threads=threads)
    assert kernel.schedule is not None and kernel.schedule.source.statement["s1"].domain.is_equal(s.domain)
    assert np.array_equal(kernel(x), run_program(program, {"X": x, **given})["Y"])
    again = poly.compile(program, constants=given, threads=threads, schedule=kernel.schedule)
    assert np.array_equal(again(x), kernel(x))


@pytest.mark.parametrize("machine", [AVX2, CPUS["avx512"]])
def test_what_is_uneven_is_no_row_of_a_register_tile(machine: poly.Machine) -> None:
    program = window(14)
    schedule = schedule_for_cpu(inside_windows(program, {"W"}), machine, 1)
    updates = [n for n in schedule.nests if schedule.program.statement[n].source_name == "s1"]
    for nest in (schedule.nests[n] for n in updates):
        laid_out = [n for n in nest.names if schedule.kind(n) in ("unroll", "vector")]
        assert laid_out and not any({"y", "q"} & nest.loops[n].names for n in laid_out)


def test_what_is_left_as_it_is() -> None:
    """Weights that are not finite or not known, planes of an image, few places, and a window of each channel."""
    program, given = window(14), constants()
    given["W"][3, 2, 1, 0] = np.inf
    assert finite_factors(program, given) == frozenset() == finite_factors(program, {})
    assert inside_windows(program, ()) is program
    planes = window(14, image="X[c, {y}, {x}]", shape="16, {n}, {n}")
    few = window(3)
    assert all(inside_windows(p, {"W"}) is p for p in (planes, few))
    own = poly.parse("Y[y,x,c] += X[y + q,x + r,c] * W[c,q,r]", X=(9, 9, 16), W=(16, 3, 3))
    assert finite_factors(own, {"W": np.ones((16, 3, 3), np.float32)}) == frozenset()


def test_infinite_weights_meet_padding() -> None:
    program, given = window(7), constants()
    given["W"][3, 2, 0, 0] = np.inf
    x = np.ones((7, 7, 16), np.float32)
    with np.errstate(invalid="ignore"):
        expected = run_program(program, {"X": x, **given})["Y"]
    found = np.asarray(poly.compile(program, constants=given)(x))
    assert np.array_equal(np.isinf(found), np.isinf(expected)) and np.isinf(found[3, 3, 3])


def test_triangles_are_no_boxes_with_ends() -> None:
    program = parse_program("""program triangle
input A: f32[8, 8]
input x: f32[8]
output y: f32[8]
s0[i]: y[i] = 0 where 0 <= i <= 7
s1[i, j]: y[i] += A[i, j]*x[j] where 0 <= i <= 7 and 0 <= j <= i
""")
    assert uneven_axes(program, program.statement["s1"], ("i",)) is None
    assert uneven_axes(program, program.statement["s0"], ("i",)) == {}
