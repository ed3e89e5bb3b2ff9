"""Windows whose conditions become guards: which programs change, and that results stay what they were."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.dtypes import numpy_dtype
from poly.frontend.nest import Array, f32, nest
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_padding import whole_windows
from poly.scheduling.filled_sums import with_filled_sums
from tests.machines import AVX2
from tests.other_cpus import CPUS

INSIDE = "where 0 <= i < 33 and 0 <= j < 37 and 0 <= d < 5 and 0 <= e < 5 and 0 <= i+d-2 < 33 and 0 <= j+e-2 < 37"
STEPS = "where 0 <= i < 17 and 0 <= j < 19 and 0 <= d < 3 and 0 <= e < 3 and 0 <= 2*i+d-1 < 33 and 0 <= 2*j+e-1 < 37"
TEXTS = {  # by what is in them
    "product": f"y[i,j] += w[d,e]*x[i+d-2,j+e-2] {INSIDE}",
    "step 2": f"y[i,j] += w[d,e]*x[2*i+d-1,2*j+e-1] {STEPS}",
    "sum": f"y[i,j] += x[i+d-2,j+e-2] {INSIDE}",
    "products": f"y[i,j] *= x[i+d-2,j+e-2] {INSIDE}",
    "largest": f"y[i,j] max= x[i+d-2,j+e-2] {INSIDE}",
    "smallest": f"y[i,j] min= x[i+d-2,j+e-2] {INSIDE}",
    "three factors": f"y[i,j] += w[d,e]*x[i+d-2,j+e-2]*x[i,j] {INSIDE}",
    "differences": f"y[i,j] += abs(x[i+d-2,j+e-2] - x[i,j]) {INSIDE}",
}
LEFT = {
    "not zero of zeros": f"y[i,j] += exp(w[d,e]*x[i+d-2,j+e-2]) {INSIDE}",
    "zero by zero": f"y[i,j] += x[i+d-2,j+e-2] / w[d,e] {INSIDE}",
    "a largest product": f"y[i,j] max= w[d,e]*x[i+d-2,j+e-2] {INSIDE}",
    "a triangle": "y[i,j] += w[i,k]*x[k,j] where 0 <= i < 33 and 0 <= k <= i and 0 <= j < 37",
    "a band": "y[i] += w[i,k]*x[k] where 0 <= i < 33 and 0 <= k < 33 and i - 2 <= k <= i + 2",
    "lanes elsewhere": "y[i,c] += w[d,c]*x[i+d-2,c] where 0 <= i < 33 and 0 <= c < 37 and 0 <= d < 5 and 2 <= i+d < 35",
    "few places": "y[i] += w[d]*x[i+d-2] where 0 <= i < 4 and 0 <= d < 5 and 0 <= i+d-2 < 4",
}  # fmt: skip


def parsed(text: str, dtype: str = "f32") -> Program:
    weights = {"w[i,k]": (33, 33), "w[d,c]": (5, 37), "w[d]": (5,), "w[d,e]": (5, 5)}
    shapes = {"w": next((shape for w, shape in weights.items() if w in text), ())}
    shapes["x"] = (33, 37) if "," in text.split("x[")[1].split("]")[0] else (33,) if "k" in text else (4,)
    shapes = {n: s for n, s in shapes.items() if f"{n}[" in text}
    return poly.parse(text, dtypes=dict.fromkeys(shapes, dtype), **shapes)


def values(program: Program, dtype: str, odd: bool = False) -> dict[str, np.ndarray]:
    """Whole numbers; `odd`: with infinities, numbers that are none, and zeros of either sign among them."""
    random, found = np.random.default_rng(3), dict[str, np.ndarray]()
    for t in (t for t in program.tensors if t.role == "input"):
        shape = tuple(e.constant for e in t.shape)
        given = random.integers(-3 if dtype != "u8" else 0, 4, shape).astype(numpy_dtype(dtype))
        if odd:
            places = random.random(shape)
            for k, value in enumerate((np.inf, -np.inf, np.nan, -0.0)):
                given[(places > 0.04 * k) & (places < 0.04 * k + 0.02)] = value
        if dtype[0] in "iu":  # sums and products wrap
            info = np.iinfo(dtype.replace("i", "int").replace("u", "uint"))
            given[random.random(shape) < 0.1] = info.max
        found[t.name] = given
    return found


@pytest.mark.parametrize(("dtype", "threads"), [("f32", 1), ("f32", 2), ("f64", 1), ("i32", 2), ("u8", 1)])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_windows_get_whole(text: str, dtype: str, threads: int) -> None:
    program = parsed(text, dtype)
    filled = with_filled_sums(program)
    s = next(s for s in filled.statements if s.combiner is not None)
    assert s != program.statement[s.name] and all(len(r.guard) == 4 for r in s.reads)
    kernel = poly.compile(program, threads=threads)
    assert kernel.schedule is not None and "vector" in str(kernel.schedule)
    again = poly.compile(program, threads=threads, schedule=kernel.schedule)
    for odd in (False, True) if dtype[0] == "f" else (False,):
        given = values(program, dtype, odd)
        want = run_program(program, given)["y"]
        np.testing.assert_array_equal(run_program(filled, given)["y"], want)
        np.testing.assert_array_equal(kernel(*given.values()), want)
        np.testing.assert_array_equal(again(*given.values()), want)


@pytest.mark.parametrize("machine", [AVX2, CPUS["avx512"], host_machine()], ids=["avx2", "avx512", "own"])
def test_places_are_lanes(machine: poly.Machine) -> None:
    program = with_filled_sums(parsed(TEXTS["product"]))
    schedule = schedule_for_cpu(program, machine)
    schedule.check()
    parts = [n for n in schedule.nests if schedule.program.statement[n].source_name == "y_update"]
    kinds = [{schedule.kind(n): v for n, v in schedule.nests[p].loops.items()} for p in parts]
    assert all("j" in kind["vector"].names for kind in kinds)


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_is_left_as_it_is(text: str) -> None:
    program = parsed(text)
    assert with_filled_sums(program) is program


@nest
def filtered(N: int, w: f32[Array, "5, 5"], x: f32[Array, "N, N"], y: f32[Array, "N, N"]):
    for i in range(N):
        for j in range(N):
            y[i, j] = 0.0
            for d in range(5):
                for e in range(5):
                    if 0 <= i + d - 2 < N and 0 <= j + e - 2 < N:
                        y[i, j] += w[d, e] * x[i + d - 2, j + e - 2]


def test_an_if_of_a_nest() -> None:
    """Infinite weights, too: at the border they meet no zero."""
    kernel, random = poly.compile(filtered.program.bind(N=40), threads=1), np.random.default_rng(5)
    w, x = (random.integers(-3, 4, s).astype(np.float32) for s in ((5, 5), (40, 40)))
    w[0, 0], w[4, 2], x[3, 3] = np.inf, -np.inf, np.nan
    want = np.zeros_like(x)
    with np.errstate(invalid="ignore"):
        filtered.python(40, w, x, want)
    np.testing.assert_array_equal(kernel(w, x, np.zeros_like(x)), want)
    assert kernel.schedule is not None and kernel.schedule.source.statement["S1"].reads[0].guard


def test_windows_whose_channels_fill_lanes_are_left() -> None:
    """Lanes along channels need no guards of the weights."""
    for channels, whole in ((32, False), (4, True)):
        text = f"y[o,j] += w[o,d]*x[o,j+d-1] where 0<=o<{channels} and 0<=j<40 and 0<=d<3 and 0<=j+d-1<40"
        program = poly.parse(text, w=(channels, 3), x=(channels, 40))
        assert (whole_windows(program, AVX2) is not program) == whole
        assert whole_windows(program, AVX2) == (with_filled_sums(program) if whole else program)
