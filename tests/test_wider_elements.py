"""Elements that are only moved, side by side, as one wider element: the same bytes, and only where nothing looks."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.dtypes import numpy_dtype
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.wider_elements import with_wider_elements
from poly.text import parse_program

PARTS = """program parts
input X: f32[9, 8, 2]
output Y: f32[5, 9, 2]
output Z: f32[3, 9, 2]
s0[i, j, k]: Y[i, j, k] = X[j, i + 3, k] where 0 <= i <= 4 and 0 <= j <= 8 and 0 <= k <= 1
s1[i, j, k]: Z[i, j, k] = X[j, i, k] where 0 <= i <= 2 and 0 <= j <= 8 and 0 <= k <= 1
"""


def units(program: Program) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {t.name: (t.dtype, t.extents({})) for t in with_wider_elements(program).tensors}


@pytest.mark.parametrize(
    "dtype,extent,wider", [("f32", 2, "u64"), ("f16", 2, "u32"), ("f16", 4, "u64"), ("i8", 2, "u16"), ("u8", 8, "u64")]
)
def test_short_rows_that_are_only_moved_are_elements(dtype: str, extent: int, wider: str) -> None:
    program = poly.parse("Y[j,i,k] = X[i,j,k]", dtypes={"X": dtype}, X=(37, 21, extent))
    assert units(program) == {"X": (wider, (37, 21)), "Y": (wider, (21, 37))}
    x = np.random.default_rng(1).integers(0, 256, 37 * 21 * extent * 8, np.uint8).view(numpy_dtype(dtype))
    x = x[: 37 * 21 * extent].reshape(37, 21, extent)
    found = np.asarray(poly.compile(program)(x))
    assert found.dtype == x.dtype and found.tobytes() == x.transpose(1, 0, 2).tobytes()  # of NaNs, too


def test_parts_of_a_tensor_begin_at_elements() -> None:
    program = parse_program(PARTS)
    assert units(program)["Z"] == ("u64", (3, 9))
    x = np.arange(144, dtype=np.float32).reshape(9, 8, 2)
    for one, other in zip(poly.compile(program)(x), run_program(program, {"X": x}).values(), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("start", range(8))
def test_bytes_at_any_address(start: int) -> None:
    """Elements of a byte lie anywhere, and so do the wider ones that are made of them."""
    program = poly.parse("Y[j,i,k] = X[i,j,k]", dtypes={"X": "u8"}, X=(300, 200, 4))
    memory = np.random.default_rng(1).integers(0, 256, 240_000 + start, np.uint8)
    x, out = memory[start:].reshape(300, 200, 4), np.zeros(240_000 + start, np.uint8)[start:].reshape(200, 300, 4)
    poly.compile(program)(x, out=out)
    assert np.array_equal(out, x.transpose(1, 0, 2))


@pytest.mark.parametrize(
    "text",
    [
        "Y[j,i,k] = X[i,j,k] + 1", "Y[j,i,k] += X[i,j,k]", "Y[k,j,i] = X[i,j,k]", "Y[j,i,k] = X[i,j,1 - k]",
        "Y[j,k,k] = X[k,j,k]", "Y[j,i,k] = f32(i8(X[i,j,k]))", "Y[k] = X[2,3,k]",
    ],
)  # fmt: skip
def test_what_is_looked_at_or_moved_apart_stays(text: str) -> None:
    program = poly.parse(text, X=(2, 5, 2) if "k,k" in text else (6, 5, 2))
    assert with_wider_elements(program) is program


def test_other_lengths_and_free_sizes_stay() -> None:
    for extent in (1, 3, 4):
        program = poly.parse("Y[j,i,k] = X[i,j,k]", X=(6, 5, extent))
        assert with_wider_elements(program) is program
    free = poly.parse("Y[j,i,k] = X[i,j,k]", X=("N", 5, 2))
    assert with_wider_elements(free) is free
