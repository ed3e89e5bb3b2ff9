"""Orders of axes between groups: chosen from access maps, an edit of all accesses, the same results."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.graph import Graph, Node
from poly.interp import run_program
from poly.machine import Engine, Machine, Memory
from poly.program import Program
from poly.scheduling.axis_orders import last_axes, reordered, with_last_axes
from poly.text import parse_program

CPU = Machine(
    "c", "cpu",
    (Memory("l1", 32768, "cache"), Memory("dram", None, "dram"), Memory("reg", 16, "register")),
    (Engine("core", "core", lanes=8),),
)  # fmt: skip


def chain(channels: int = 32, size: int = 12, step: int = 1) -> Program:
    """Window sums over maps: input -> T -> U -> output, rectified in between."""
    inner = (size - 1) // step + 1
    every = f"0 <= y < {inner} and 0 <= x < {inner} and 0 <= m < {channels}"
    taps = f"{every} and 0 <= c < {channels} and 0 <= r < 3 and 0 <= s < 3"

    def window(name: str, source: str, weights: str, target: str, step: int, size: int) -> str:
        index = f"c, {step}*y + r - 1, {step}*x + s - 1"
        guard = f"0 <= {step}*y + r - 1 < {size} and 0 <= {step}*x + s - 1 < {size}"
        return (
            f"{name}0[m, y, x]: {target}[m, y, x] = 0 where {every}\n"
            f"{name}1[m, y, x, c, r, s]: {target}[m, y, x] += ({source}[{index}] if {guard} else 0)"
            f" * {weights}[m, c, r, s] where {taps}"
        )

    shape = f"f32[{channels}, {inner}, {inner}]"
    return parse_program(
        f"program chain\ninput X: f32[{channels}, {size}, {size}]\n"
        f"constant V: f32[{channels}, {channels}, 3, 3]\nconstant W: f32[{channels}, {channels}, 3, 3]\n"
        f"temporary S: {shape}\ntemporary T: {shape}\ntemporary U: {shape}\noutput Y: {shape}\n"
        f"{window('a', 'X', 'V', 'S', step, size)}\n"
        f"b[m, y, x]: T[m, y, x] = max(S[m, y, x], 0) where {every}\n"
        f"{window('c', 'T', 'W', 'U', 1, inner)}\n"
        f"d[m, y, x]: Y[m, y, x] = max(U[m, y, x] + T[m, y, x], 0) where {every}\n"
    )


def whole(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("f4")


def test_contractions_want_channels_last_and_what_is_between_follows() -> None:
    assert last_axes(chain(), CPU) == {"S": 0, "T": 0}


def test_another_program_of_the_same_results() -> None:
    program = chain(8, 5)
    changed = with_last_axes(program, {"S": 0, "T": 0})
    assert changed.tensor["T"].extents({}) == (5, 5, 8)
    assert changed.statement["c1"].iterators == ("m", "y", "x", "r", "s", "c")  # along memory
    arrays = {t.name: whole(t.extents({}), k) for k, t in enumerate(program.tensors) if t.role in ("input", "constant")}
    assert np.array_equal(run_program(changed, arrays)["Y"], run_program(program, arrays)["Y"])


@pytest.mark.parametrize("step", [1, 2])
def test_engines_compute_the_same(step: int) -> None:
    program = chain(16, 9, step)
    constants = {n: whole((16, 16, 3, 3), k) for k, n in enumerate("VW")}
    graph = Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),), constants)
    engine = poly.compile(graph)
    assert any(t.extents({})[-1] == 16 for s in engine.steps for t in s.program.tensors if t.name == "T")
    x = whole((16, 9, 9), 3)
    expected = run_program(program, {**constants, "X": x})["Y"]
    assert np.array_equal(np.asarray(engine.run({"X": x})["Y"]), expected)


AT = "0 <= n < 2 and 0 <= m < 24 and 0 <= y < 30 and 0 <= x < 10"
PRODUCT = f"""program product
input X: f32[2, 16, 30, 10]
constant W: f32[24, 16]
temporary T: f32[2, 24, 30, 10]
output Y: f32[{{shape}}]
a[n, m, y, x]: T[n, m, y, x] = 0 where {AT}
b[n, m, y, x, c]: T[n, m, y, x] += X[n, c, y, x] * W[m, c] where {AT} and 0 <= c < 16
"""


def test_axes_that_are_joined_in_one_subscript_want_their_order() -> None:
    """As in a flattened result: what is contiguous there is the joined axis of the smallest step."""
    for joined, last in (("300*m + 10*y + x", {}), ("240*y + 24*x + m", {"T": 1})):
        after = f"c[n, m, y, x]: Y[n, {joined}] = T[n, m, y, x] where {AT}\n"
        assert last_axes(parse_program(PRODUCT.format(shape="2, 7200") + after), CPU) == last


def test_windows_that_write_planes_do_not_read_channels_last() -> None:
    every = "0 <= n < 2 and 0 <= m < 24 and 0 <= y < 15 and 0 <= x < 5"
    pool = f"""c[n, m, y, x]: Y[n, m, y, x] = f32(-inf) where {every}
d[n, m, y, x, r, s]: Y[n, m, y, x] max= T[n, m, 2*y + r, 2*x + s] where {every} and 0 <= r < 2 and 0 <= s < 2
"""
    assert last_axes(parse_program(PRODUCT.format(shape="2, 24, 15, 5") + pool), CPU) == {}


def test_few_channels_stay_as_they_are() -> None:
    assert last_axes(chain(4), CPU) == {}


@pytest.mark.parametrize(
    "line",
    [
        "e[i, j]: T[i, j, 0] = X[i, j, 0] where 0 <= i < 32 and 0 <= j < 12",  # still movable
        "e[i, j, k]: T[i, j, k % 6] = X[i, j, k] where 0 <= i < 32 and 0 <= j < 12 and 0 <= k < 6",
    ],
)
def test_only_linear_subscripts_move(line: str) -> None:
    """An axis that is cut by a division keeps its place."""
    program = parse_program(str(chain()) + line + "\n")
    assert ("T" in last_axes(program, CPU)) == ("%" not in line)


def test_accelerators_and_scalar_machines_keep_the_order() -> None:
    program = chain()
    for machine in (Machine("m", "accelerator", (Memory("dram", None, "dram"),), ()),
                    Machine("m", "cpu", (Memory("dram", None, "dram"),), ())):  # fmt: skip
        assert reordered(program, machine) is program
