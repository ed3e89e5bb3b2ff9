"""Elements of an operand that lie apart, copied together: the same values, and only where that pays."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.codegen.host import machine_of_features
from poly.dtypes import numpy_dtype
from poly.interp import run_program
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_columns import columns_like, with_columns
from poly.scheduling.dense_operands import dense_operands
from poly.scheduling.grouping import group_program
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.other_cpus import TRIPLE

Shapes = dict[str, tuple[int, ...]]
FEATURES = ("avx", "avx2", "avx512f", "avx512vl", "avx512bw", "avx512dq", "fma", "f16c")
CACHES = {1: 48 << 10, 2: 2 << 20, 3: 64 << 20}
NEAR = machine_of_features("skylake-avx512", FEATURES, TRIPLE, CACHES, 2, 3000)
AFAR = machine_of_features("rocketlake", (*FEATURES, "avx512fp16", "amx-tile"), TRIPLE, CACHES, 2, 3000)
STRIDED = "y[m,h,w] += x[c,2*h,2*w] * v[m,c]"


def program(text: str, **shapes: tuple[int, ...]) -> Program:
    return poly.parse(text, **shapes)  # pyright: ignore[reportArgumentType]


def arrays(p: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {t.name: random.integers(-3, 4, t.extents({})).astype(numpy_dtype(t.dtype)) for t in p.inputs}


def strided(c: int, m: int, size: int, step: int = 2) -> Program:
    """A product with one position in `step` by `step` of an image."""
    out = -(-size // step)
    text = STRIDED.replace("2", str(step))
    return join_axes(program(f"y: f32[{m},{out},{out}]; {text}", x=(c, size, size), v=(m, c)))


@pytest.mark.parametrize(
    ("text", "shapes", "reads"),
    [
        (STRIDED, {"x": (5, 6, 8), "v": (3, 5)}, ["x_dense[h, c, w]"]),
        ("y[m,w] += x[c,3*w] * v[m,c]", {"x": (5, 40), "v": (3, 5)}, ["x_dense[c, w]"]),
        ("y[m,d,h,w] += x[c,2*d,3*h,2*w] * v[m,c]", {"x": (3, 4, 9, 6), "v": (2, 3)}, ["x_dense[d, h, c, w]"]),
        ("y[h,w,m] += x[2*h,4*w,c] * v[c,m]", {"x": (6, 8, 5), "v": (5, 3)}, ["x_dense[h, w, c]"]),
        ("y[m,n] += a[m,2*k] * b[3*k,n]", {"a": (5, 12), "b": (18, 7)}, ["a_dense[m, k]", "b_dense[k, n]"]),
        ("y: f32[3,3,4]; y[m,h,w] += x[c,2*h+1,2*w] * v[m,c]", {"x": (5, 7, 8), "v": (3, 5)}, ["x_dense[h, c, w]"]),
        ("y: f32[3,4]; y[m,w] += x[c,2*w,0] * v[m,c]", {"x": (5, 8, 1), "v": (3, 5)}, ["x_dense[c, w]"]),
        ("y[m,h] max= x[2*h,2*c] + v[m,c]", {"x": (8, 10), "v": (3, 5)}, ["x_dense[h, c]"]),
        ("v: i32[3,5]; x: i32[5,16]; y[m,w] += x[c,2*w] * v[m,c]", {}, ["x_dense[c, w]"]),
        ("y: f32[3,8]; t[m,w] += x[c,2*w] * v[m,c]; y[m,w] = max(t[m,w] + b[m] + x[m+1,w+3], 0)",
         {"b": (3,), "x": (5, 16), "v": (3, 5)}, ["x_dense[c, w]"]),  # read whole besides
        ("inout y: f32[3,8]; y[m,w] += x[c,2*w] * v[m,c]", {"x": (5, 16), "v": (3, 5)}, ["x_dense[c, w]"]),
    ],
)  # fmt: skip
def test_elements_that_lie_apart_are_copied_as_rows_need_them(text: str, shapes: Shapes, reads: list[str]) -> None:
    source = program(text, **shapes)
    inputs = arrays(source)
    expected = run_program(source, inputs)["y"]
    found = [*dense_operands(source)]
    names = {t for p in found for t in p.tensor if t.endswith("_dense")}
    dense = [r for p in found for s in p.statements if s.combiner for r in s.reads if r.tensor in names]
    assert [f"{r.tensor}[{', '.join(map(str, r.index))}]" for r in dense] == reads
    for one in found:
        assert str(parse_program(str(one))) == str(one)
        assert np.array_equal(run_program(one, inputs)["y"], expected)
        given = {name: array.copy() for name, array in inputs.items()}
        assert np.array_equal(np.asarray(poly.compile(one, schedule=Schedule(one))(*given.values())), expected)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("y[m,h,w] += x[c,h,w] * v[m,c]", {"x": (5, 6, 8), "v": (3, 5)}),
        ("y[m,w] += x[c,2*w+k] * v[m,c,k]", {"x": (5, 40), "v": (3, 5, 4)}),  # windows that share elements
        ("y: f32[3,9]; y[m,w] += x[c,2*w+2*k] * v[m,c,k]", {"x": (5, 40), "v": (3, 5, 4)}),  # with holes
        ("y: f32[3,9]; y[m,w] += x[c,w+3*k] * v[m,c,k]", {"x": (5, 40), "v": (3, 5, 4)}),
        ("y: f32[3,4]; y[m,i] += x[2*i,2*i,c] * v[m,c]", {"x": (8, 8, 5), "v": (3, 5)}),  # a loop twice
        ("y: f32[3,3]; y[i,j] += x[2*i,c] * x[2*j,c]", {"x": (6, 5)}),  # a tensor twice
        ("y: f32[3,5]; y[m,w] += x[c,2*w] * v[m,c]", {"x": (5, 9), "v": (3, 5)}),  # more than half of what is there
        ("y: f32[3,4]; y[m,w] += x[c,7-2*w] * v[m,c]", {"x": (5, 8), "v": (3, 5)}),  # backwards
        ("y: f32[4]; y[w] = x[2*w]", {"x": (8,)}),  # no reduction
        ("t[m] += x[2*m,c]; y[m] += t[m] * v[m,k]", {"x": (8, 5), "v": (4, 3)}),  # two
    ],
)
def test_all_else_stays(text: str, shapes: Shapes) -> None:
    assert not [*dense_operands(program(text, **shapes))]


def test_only_what_is_given_is_copied() -> None:
    """Not what is added to, nor constants, which are packed when compiling, nor what lies outside of an array."""
    text = str(program(STRIDED, x=(5, 6, 8), v=(3, 5)))
    assert len([*dense_operands(parse_program(text))]) == 1
    assert not [*dense_operands(parse_program(text.replace("input x", "constant x")))]
    guarded = "y: f32[3,4]; y[m,w] += (x[c,2*w-1] if 2*w >= 1 else 0) * v[m,c]"
    assert not [*dense_operands(program(guarded, x=(5, 16), v=(3, 5)))]


@pytest.mark.parametrize(
    ("c", "m", "size", "step", "machine", "pays"),
    [
        (256, 512, 56, 2, AFAR, True),
        (1024, 2048, 14, 2, AFAR, True),
        (256, 2048, 56, 2, AFAR, True),  # by 4 % of the cycles
        (256, 192, 80, 2, AFAR, False),  # the copy costs more than it gains
        (256, 512, 56, 2, NEAR, False),  # whole lines come soon enough
        (128, 512, 28, 2, AFAR, False),  # all stays in the core's own caches
        (256, 64, 56, 2, AFAR, False),  # each element is used too seldom
        (256, 256, 112, 8, AFAR, False),  # whole lines come for single elements
    ],
)
def test_a_copy_is_made_where_it_pays(c: int, m: int, size: int, step: int, machine: Machine, pays: bool) -> None:
    source = strided(c, m, size, step)
    assert ("x_dense" in with_columns(source, machine, 1).tensor) == pays


def test_what_comes_after_a_product_stays_with_it() -> None:
    text = "t[m,h,w] += x[c,2*h,2*w] * v[m,c]; y[m,h,w] = max(t[m,h,w] + b[m] + r[m,h,w], 0)"
    shapes = {"b": (512,), "x": (256, 56, 56), "v": (512, 256), "r": (512, 28, 28)}
    source = join_axes(program(text, **shapes))
    chosen = with_columns(source, AFAR, 1)
    assert [s.name for s in chosen.statements[1:]] == [s.name for s in source.statements]
    assert len(group_program(chosen, AFAR).groups) == 2
    assert with_columns(source, NEAR, 1) == source


def test_what_is_chosen_calculates_the_same() -> None:
    source = strided(256, 512, 56)
    chosen = with_columns(source, AFAR, 1)
    assert columns_like(source, chosen) == chosen
    random = np.random.default_rng(5)
    x, v = random.random((256, 56, 56), np.float32), random.random((512, 256), np.float32)
    expected = np.einsum("chw,mc->mhw", x[:, ::2, ::2], v)
    for threads in (1, 2):
        result = np.asarray(poly.compile(chosen, threads=threads)(x, v), "f4")
        np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_free_sizes_stay() -> None:
    source = poly.parse("y[m,w] += x[c,2*w] * v[m,c]; y: f32[M,W]", x=("C", "2*W"), v=("M", "C"))
    assert not [*dense_operands(source)]
    assert with_columns(source, AFAR, 1) == source
