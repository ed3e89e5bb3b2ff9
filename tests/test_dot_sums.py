"""Sums of products of small integers by dots: the same integers, modulo 2^32, with any machine's instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine, is_x86, machine_of_features
from poly.codegen.target import target_of
from poly.errors import ScheduleError
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.dot_sums import sums_by_dots
from poly.text import parse_program
from tests.onnx_helpers import node_model, reference
from tests.other_cpus import CACHES, CPUS, DOT_CPUS, TRIPLE, run_here

NUMPY = {"u8": np.uint8, "i8": np.int8, "i16": np.int16}
FOURS, PAIRS = DOT_CPUS["vnni"], DOT_CPUS["avx2"]


def product(left: str, right: str, shape: tuple[int, int, int]) -> Program:
    m, n, k = shape
    text = "C[i,j] += i32(A[i,k])*i32(B[k,j])"
    return poly.parse(text, A=(m, k), B=(k, n), dtypes={"A": left, "B": right})


def dots_of(program: Program) -> list[str]:
    text = str(program)
    return [name for name in ("dot2", "dot4") if f" += {name}(" in text]


def extremes(dtype: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    limits = np.iinfo(NUMPY[dtype])
    if kind == "random":
        return np.random.default_rng(len(shape)).integers(limits.min, limits.max + 1, shape).astype(NUMPY[dtype])
    return np.full(shape, limits.min if kind == "least" else limits.max, NUMPY[dtype])


def wanted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


@pytest.mark.parametrize("depth", [64, 67])
@pytest.mark.parametrize("right", ["u8", "i8", "i16"])
@pytest.mark.parametrize("left", ["u8", "i8", "i16"])
def test_products(left: str, right: str, depth: int) -> None:
    program = product(left, right, (33, 39, depth))
    kernel: Any = poly.compile(program)
    for kinds in (("random", "random"), ("least", "least"), ("most", "least"), ("least", "most"), ("most", "most")):
        a, b = extremes(left, (33, depth), kinds[0]), extremes(right, (depth, 39), kinds[1])
        np.testing.assert_array_equal(kernel(a, b), wanted(a, b))
    for machine in (FOURS, PAIRS):
        changed = sums_by_dots(program, machine.dots)
        assert dots_of(changed)
        for left_kind, right_kind in (("random", "random"), ("least", "least"), ("most", "least")):
            a, b = extremes(left, (33, depth), left_kind), extremes(right, (depth, 39), right_kind)
            np.testing.assert_array_equal(run_program(changed, {"A": a, "B": b})["C"], wanted(a, b))


@pytest.mark.parametrize("name", DOT_CPUS)
def test_machines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every instruction, in whole vectors and in parts of one."""
    run_here(monkeypatch)
    for left, right, shape in (("u8", "i8", (33, 39, 67)), ("i8", "i8", (20, 70, 32)), ("i16", "i16", (17, 18, 33))):
        program, (m, n, k) = product(left, right, shape), shape
        for kind in ("random", "least"):
            a, b = extremes(left, (m, k), kind), extremes(right, (k, n), kind)
            np.testing.assert_array_equal(poly.compile(program, DOT_CPUS[name])(a, b), wanted(a, b))


@pytest.mark.parametrize(("left", "right", "machine", "dots", "sums"), [
    ("u8", "i8", FOURS, ["dot4"], 0), ("i8", "u8", FOURS, ["dot4"], 0), ("i8", "i8", FOURS, ["dot4"], 1),
    ("u8", "u8", FOURS, ["dot4"], 1), ("u8", "i8", PAIRS, ["dot2"], 0), ("i16", "u8", FOURS, ["dot2"], 0),
    ("i8", "i8", CPUS["sse"], [], 0), ("i8", "i8", CPUS["arm"], [], 0),
])  # fmt: skip
def test_which_dot(left: str, right: str, machine: Machine, dots: list[str], sums: int) -> None:
    changed = sums_by_dots(product(left, right, (32, 32, 32)), machine.dots)
    assert dots_of(changed) == dots
    assert sum(t.name.endswith("_sum") for t in changed.tensors) == sums
    assert dots or changed == product(left, right, (32, 32, 32))


TEXT = """
program sums
input x: u8[32, 64]
input w: i8[64, 32]
input xz: u8[]
input wz: i8[]
input b: i32[32]
output y: i32[32, 32]
init[i, j]: y[i, j] = b[j] where 0 <= i < 32 and 0 <= j < 32
sum[i, j, k]: y[i, j] += (i32(x[i, k]) - i32(xz[]))*(i32(w[k, j]) - i32(wz[])) \
 where 0 <= i < 32 and 0 <= j < 32 and 0 <= k < 64
"""


@pytest.mark.parametrize("old_new", [
    ("", ""), (" - i32(xz[])", ""), (" - i32(wz[])", " + 0"), (" - i32(wz[])", " - 3"), ("0 <= k < 64", "0 <= k < 61"),
    ("x: u8", "x: i8"), ("w: i8", "w: u8"),
])  # fmt: skip
def test_zero_points(old_new: tuple[str, str]) -> None:
    """Both taken off the sums, where only a call knows them."""
    old, new = old_new
    program = parse_program(TEXT.replace(old, new) if old else TEXT)
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {
        t.name: extremes(t.dtype, t.extents({}), "random") if t.dtype in NUMPY else rng.integers(-9, 9, 32).astype("i4")
        for t in program.inputs
    }
    expected = run_program(program, given)["y"]
    changed = sums_by_dots(program, FOURS.dots)
    assert dots_of(changed) == ["dot4"]
    np.testing.assert_array_equal(run_program(changed, given)["y"], expected)
    np.testing.assert_array_equal(poly.compile(program)(**given), expected)


@pytest.mark.parametrize(("old", "new"), [
    ("+= (", "max= ("), ("0 <= k < 64", "0 <= k <= i"), ("0 <= k < 64", "1 <= k < 64"), ("x[i, k]", "x[i, 63 - k]"),
    ("i < 32", "i < 8"), ("x: u8", "x: u32"), ("*(i32(w[k, j])", "*(i32(w[k, 31 - k % 32])"),
])  # fmt: skip
def test_what_stays_as_it_is(old: str, new: str) -> None:
    assert old in TEXT
    program = parse_program(TEXT)
    assert sums_by_dots(program, FOURS.dots) is not program
    program = parse_program(TEXT.replace(old, new))
    assert sums_by_dots(program, FOURS.dots) is program


def test_gaps_are_not_read() -> None:
    """An operand whose last row ends before its pitch does: what lies there may be no memory at all."""
    x, w = extremes("i8", (64, 100), "random")[:, :40], extremes("i8", (40, 64), "random")
    found = poly.einsum("ik,kj->ij", x, w, dtype="i4")
    np.testing.assert_array_equal(found, wanted(x, w))
    program = parse_program(TEXT.replace("x: u8[32, 64]", "x: u8[40, 90]").replace("w: i8[64, 32]", "w: i8[64, 60]"))
    changed = sums_by_dots(program, FOURS.dots)
    made = [s for s in changed.statements if s.name.endswith("_made")]
    assert ["i0 <= 31" in str(s.domain) for s in made] == [True, False]
    assert ["i1 <= 31" in str(s.domain) for s in made] == [False, True]


@pytest.mark.parametrize(("old", "new", "made"), [
    ("", "", ["x_dot4"]), ("x[i, k]) - i32(xz[])", "x[i, k])", ["x_dot4"]),
    ("0 <= k < 64", "0 <= k < 60", ["x_dot4", "x_dot4_1"]), ("k < 64", "k < 63", ["x_dot4", "x_dot4_1"]),
])  # fmt: skip
@pytest.mark.parametrize("listed", ["in order", "the second sum first"])
def test_one_operand_in_two_sums(old: str, new: str, made: list[str], listed: str) -> None:
    """Packed once, unless the second sum takes other steps of it."""
    *head, init, first = TEXT.strip().split("\n", 8)
    second = f"{init}\n{first}".replace("y[", "z[").replace("init[", "init2[").replace("sum[", "sum2[")
    second = second.replace("w[", "v[").replace(old, new)
    declared = "\n".join(head).replace("output y", "input v: i8[64, 32]\noutput z: i32[32, 32]\noutput y")
    program = parse_program(f"{declared}\n{init}\n{first}\n{second}\n")
    if listed != "in order":
        program = replace(program, statements=program.statements[2:] + program.statements[:2])
    changed = sums_by_dots(program, FOURS.dots)
    assert sorted(t.name for t in changed.tensors if t.name.startswith("x_dot4")) == made
    given: dict[str, Any] = {
        t.name: extremes(t.dtype, t.extents({}), "random") for t in program.inputs if t.dtype in NUMPY
    }
    given["b"] = np.arange(32, dtype=np.int32)
    expected, found = (run_program(p, given) for p in (program, changed))
    for name in ("y", "z"):
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("zero", [0, 9])
@pytest.mark.parametrize("known", [True, False])
def test_convolutions(dtype: str, zero: int, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded with the zero point, of twelve channels in two groups, by instructions for four steps and for two."""
    rng = np.random.default_rng(5)
    weights, x = rng.integers(-128, 128, (32, 12, 3, 3)).astype(np.int8), extremes(dtype, (1, 24, 18, 18), "random")
    inputs = [x, weights, NUMPY[dtype](zero), np.int8(0)]
    model, arrays = node_model(
        "ConvInteger", inputs, constant=[2, 3, *([1] if known else [])], pads=[1, 1, 1, 1], group=2
    )
    expected = reference(model, arrays)
    run_here(monkeypatch)
    for machine in (host_machine(), *DOT_CPUS.values()):
        (found,) = poly.compile(poly.from_onnx(model), machine).run(arrays).values()
        np.testing.assert_array_equal(found, next(iter(expected.values())))


@pytest.mark.parametrize("wz", [0, 5, 130])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_padding_beyond_the_last_step(dtype: str, wz: int) -> None:
    """Of three channels the fourth part is nothing: neither padding nor a zero point may count there."""
    weights, x = extremes(dtype, (32, 3, 3, 3), "random"), extremes("u8", (1, 3, 18, 18), "random")
    zeros = [np.uint8(9), np.array(wz).astype(NUMPY[dtype])]
    model, arrays = node_model("ConvInteger", [x, weights, *zeros], constant=[1, 2, 3], pads=[1, 1, 1, 1])
    graph = poly.from_onnx(model)
    (expected,) = reference(model, arrays).values()
    for machine in DOT_CPUS.values():
        changed = sums_by_dots(graph.to_program(), machine.dots)
        (found,) = run_program(changed, {**arrays, **graph.constants}).values()
        np.testing.assert_array_equal(found, expected)
    (found,) = poly.compile(graph).run(arrays).values()
    np.testing.assert_array_equal(found, expected)


def test_schedules_of_the_program_itself() -> None:
    """A kernel's schedule goes with the program that it was made of."""
    program = product("u8", "i8", (32, 48, 64))
    kernel = poly.compile(program)
    again = poly.compile(program, schedule=kernel.schedule)
    a, b = extremes("u8", (32, 64), "random"), extremes("i8", (64, 48), "random")
    np.testing.assert_array_equal(again(a, b), wanted(a, b))
    assert replace(host_machine(), engines=()).dots == {}


@pytest.mark.parametrize("name", DOT_CPUS)
def test_schedules_for_another_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine takes what was made for one with other dots."""
    run_here(monkeypatch)
    program = product("u8", "i8", (32, 48, 64))
    kernel = poly.compile(program, DOT_CPUS[name])
    again = poly.compile(program, CPUS["avx512"], schedule=kernel.schedule)
    a, b = extremes("u8", (32, 64), "random"), extremes("i8", (64, 48), "random")
    np.testing.assert_array_equal(again(a, b), wanted(a, b))
    with pytest.raises(ScheduleError, match="another program"):
        poly.compile(product("i8", "i8", (32, 48, 64)), DOT_CPUS[name], schedule=kernel.schedule)


def test_a_dot_that_the_features_do_not_have_is_shifts_and_products() -> None:
    """As in a description whose features somebody edits: LLVM would end the process."""
    here = host_machine()
    if not is_x86(here.triple):
        pytest.skip("x86 only")
    core = here.engines_of("core")[0]
    features = (*core.features, "-avx512vnni", "-avx512bw", "-avxvnni")
    edited = replace(core, features=features, dots=(("dot2", 16), ("dot4", 16)))
    machine = replace(here, engines=(edited,))
    a, b = extremes("u8", (33, 64), "random"), extremes("i8", (64, 39), "random")
    kernel: Any = poly.compile(product("u8", "i8", (33, 39, 64)), target=machine)
    assert dots_of(kernel.schedule.source) == ["dot4"]
    np.testing.assert_array_equal(kernel(a, b), wanted(a, b))


@pytest.mark.parametrize(
    ("features", "dots"),
    [
        (("avx512vnni", "avx512bw"), {"dot2": 16, "dot4": 16}),
        (("avx512vnni", "avx512bw", "-avx512vnni"), {"dot2": 16}),
        (("-avx512bw", "avx512vnni"), {"dot4": 16}),
        (("avx512bw", "avx512vnni", "-f16c"), {}),
        (("avx512bw", "avx512vnni", "-f16c", "avx512bw"), {"dot2": 16}),
    ],
)
def test_features_one_after_another_are_those_of_llvm(features: tuple[str, ...], dots: dict[str, int]) -> None:
    machine = machine_of_features("x", features, TRIPLE, CACHES, 1, 3000)
    core = replace(machine.engines_of("core")[0], dots=(("dot2", 16), ("dot4", 16)))
    assert target_of(replace(machine, engines=(core,))).dots == dots
