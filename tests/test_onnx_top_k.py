"""TopK against numpy's stable sort: ties, both zeros, no numbers, every element type, rows of one block and of many."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

import poly
from poly.codegen.kernel import Kernel
from tests.onnx_helpers import assert_close, node_model, run_model
from tests.test_onnx import i64
from tests.test_onnx_compiled import compiled

Array = npt.NDArray[np.generic]
DTYPES = ("f4", "f2", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")


def values(dtype: str, *shape: int) -> Array:
    """Few different elements, the ends of the dtype among them, and of floats both zeros, infinities and NaN."""
    t, random = np.dtype(dtype), np.random.default_rng(0)
    if t.kind == "f":
        few = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, -np.nan, 6e-8, -6e-8], t)
    else:
        ends = np.iinfo(t)
        few = np.array([ends.min, ends.max, ends.min + 1, 0, 3], t)
    return random.choice(few, shape)


def sorted_by_numpy(x: Array, count: int, axis: int, largest: bool) -> dict[str, Array]:
    """NaN first either way; of equal elements the first one."""
    order = np.sort(np.unique(x[x == x]))
    rank = np.searchsorted(order, x)  # exact for every dtype, -0 equal to 0
    rank = len(order) - rank if largest else rank
    rank = np.where(x == x, rank, -1)
    places = np.take(np.argsort(rank, axis, kind="stable"), range(count), axis)
    return {"y0": np.take_along_axis(x, places, axis), "y1": places.astype(np.int64)}


def check(x: Array, count: int, axis: int, largest: int) -> None:
    model, arrays = node_model("TopK", [x, i64(count)], constant=[1], outputs=2, axis=axis, largest=largest)
    want = sorted_by_numpy(x, count, axis, bool(largest))
    assert_close(run_model(model, arrays), want)
    assert_close(compiled(model, arrays), want)


@pytest.mark.parametrize("dtype,largest", list(product(DTYPES, (1, 0))))
def test_every_dtype(dtype: str, largest: int) -> None:
    check(values(dtype, 3, 11), 7, 1, largest)  # by ranks
    check(values(dtype, 3, 40), 2, 1, largest)


@pytest.mark.parametrize("dtype,largest", [*product(("f8", "i8", "u8"), (1, 0))])
def test_a_few_of_many_elements_of_64_bits(dtype: str, largest: int) -> None:
    check(values(dtype, 3, 40), 13, 1, largest)
    check(values(dtype, 70, 2), 4, 0, largest)


@pytest.mark.parametrize("extent,count", [(64, 64), (65, 65), (127, 3), (128, 1), (300, 40)])
def test_rows_of_one_block_and_of_many(extent: int, count: int) -> None:
    check(values("f4", 2, extent), count, 1, 1)


def test_whole_rows_of_the_least_integer() -> None:
    check(np.full((1, 70), np.iinfo("i4").min, np.int32), 70, 1, 1)


def test_another_axis() -> None:
    check(values("f4", 2, 70, 3), 5, 1, 1)


def test_none() -> None:
    check(values("f4", 2, 5), 0, 1, 1)


@pytest.mark.parametrize("extent", [20, 100])
def test_on_an_accelerator(extent: int) -> None:
    """Many blocks have a result at a place that was read, which it has no command for: the reference evaluator's."""
    x = values("f4", 2, extent)
    model, arrays = node_model("TopK", [x, i64(4)], constant=[1], outputs=2)
    engine = poly.compile(poly.from_onnx(model), target="s16")
    x = np.nan_to_num(x, nan=7.0)  # the evaluator orders them in its own way
    assert_close(engine.run(arrays | {"x0": x}), sorted_by_numpy(x, 4, 1, True))
    assert bool(engine.fallbacks) == (extent > 64)


def test_each_step_looks_at_the_blocks_and_at_one_again_in_lanes() -> None:
    """No loop around the steps is parallel: what they sum up inside is."""
    model, _ = node_model("TopK", [values("f4", 1, 300), i64(40)], constant=[1], outputs=2)
    engine = poly.compile(poly.from_onnx(model))
    (steps,) = [s.compiled for s in engine.steps if any(t.name.endswith("_following") for t in s.program.statements)]
    assert steps is not None and isinstance(steps.kernel, Kernel)
    for name in ("s1", "s4"):
        assert re.search(rf"vector:\n +{name}\w*\[", str(steps.kernel.loops))
