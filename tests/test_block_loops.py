"""What is read or written at `i//c` and `i%c` has a loop of blocks and one in a block."""

from typing import Any

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.scheduling.block_loops import blocks_apart
from poly.scheduling.joined_axes import join_axes

APART: dict[str, tuple[dict[str, Any], tuple[int, ...] | None]] = {  # the extents of the sum's loops after the edit
    "s[i//2] += A[i,j]": ({"A": (12, 40)}, (6, 2, 40)),
    "s[i,j//8] += A[i,j]": ({"A": (5, 40)}, (5, 5, 8)),
    "s[i//3,j//8] max= A[i,j]": ({"A": (12, 40)}, (4, 3, 5, 8)),
    "s[i//2] += A[i,j] * B[i//6,i%2,j]": ({"A": (12, 40), "B": (2, 2, 40)}, (6, 2, 40)),
    "s[i//10] += y[i+1] where 20 <= i < 60": ({"y": (70,)}, (4, 10)),
    "s[i//10] += x[2*i]": ({"x": (79,)}, (4, 10)),
    "s[i//7] += x[i]": ({"x": (40,)}, None),
    "s[i//10] += x[i//4]": ({"x": (10,)}, None),
    "s[i//10] += x[i] * f32(i)": ({"x": (40,)}, None),
    "s[i] += A[i//2,j]": ({"A": (12, 40)}, None),
    "s[i//2,i%2] = x[i]": ({"x": (40,)}, (20, 2)),
    "s[] += x[i%4] * y[i//4]": ({"x": (4,), "y": (9,)}, (9, 4)),
    "s[] += x[i%3] * y[i//3]": ({"x": (3,), "y": (9,)}, None),
    "s[i] = x[i%8] * y[i//8]": ({"x": (8,), "y": (9,)}, None),
    "s[i%10] += x[i]": ({"x": (40,)}, (4, 10)),
    "s[i%10,i//10] += x[i]": ({"x": (40,)}, (4, 10)),
    "s[] += x[i%20] * y[i//20]": ({"x": (20,), "y": (3,)}, (3, 20)),
    "s[i] = x[i%20] * y[i//20]": ({"x": (20,), "y": (3,)}, (3, 20)),
    "s[i//20,i%20] = x[i]": ({"x": (60,)}, (3, 20)),
    "s[i] = A[i//40,i%40//20,i%20] where 0 <= i < 120": ({"A": (3, 2, 20)}, (3, 2, 20)),
    "s[i] = A[i//40,i//20%2,i%20] where 0 <= i < 120": ({"A": (3, 2, 20)}, (3, 2, 20)),
    "s[i] = x[i%40] * y[i%20] where 0 <= i < 80": ({"x": (40,), "y": (20,)}, (2, 2, 20)),
    "s[i] = x[i//2] * y[i//2]": ({"x": (40,), "y": (40,)}, None),
    "s[i%10] += x[i] where 0 <= i < 45": ({"x": (50,)}, None),
}


@pytest.mark.parametrize("text", APART)
def test_blocks(text: str) -> None:
    shapes, extents = APART[text]
    program = poly.parse(text, **shapes)
    apart = blocks_apart(program)
    assert (apart is not program) == (extents is not None)
    if extents is not None:
        box = apart.statements[-1].domain
        ends = [(int(str(box.dim_min_val(k))), int(str(box.dim_max_val(k)))) for k in range(len(extents))]
        assert tuple(high - low + 1 for low, high in ends) == extents
    rng = np.random.default_rng(1)
    values = {n: rng.integers(-9, 9, shape).astype(np.float32) for n, shape in shapes.items()}
    expected = np.nan_to_num(run_program(program, values)["s"])  # NaN where nothing is written
    kernel = poly.compile(program)
    np.testing.assert_array_equal(np.nan_to_num(run_program(apart, values)["s"]), expected)
    np.testing.assert_array_equal(kernel(**values), expected)
    np.testing.assert_array_equal(poly.compile(program, schedule=kernel.schedule)(**values), expected)


def test_places_that_data_choose_have_no_blocks() -> None:
    program = poly.parse("s[p[i]] += x[i%20]", s=(5,), p=(40,), x=(20,), dtypes={"p": "i32"})
    assert blocks_apart(program) is program
    p, x = np.arange(40, dtype=np.int32) % 5, np.arange(20, dtype=np.float32)
    expected = np.bincount(p, np.tile(x, 2)).astype(np.float32)
    for threads in (1, 2):
        np.testing.assert_array_equal(poly.compile(program, threads=threads)(p=p, x=x), expected)


def test_names() -> None:
    """A loop that has the new one's name already, and a size that has."""
    program = poly.parse("s[i//2,i_b] += A[i,i_b]", A=(8, 5))
    assert blocks_apart(program).statements[-1].iterators == ("i", "i_b_", "i_b")
    A = np.ones((8, 5), np.float32)
    np.testing.assert_array_equal(poly.compile(program)(A), np.full((4, 5), 2, np.float32))


@pytest.mark.parametrize(
    "text", ["s[i%100] += x[i]", "s[i] = x[i] * x[i%100] + x[i//100]", "s[i//8,i%8] = x[i]", "s[] += x[i] * x[i%4]"]
)
def test_vectors_of_blocks_lie_side_by_side(text: str) -> None:
    """No floor or remainder is left for the emitter to make lane by lane."""
    kernel = poly.compile(poly.parse(text, x=(10000,)))
    computed = [line for line in str(kernel.loops).splitlines() if "x[" in line and "= " in line]
    assert computed and not [line for line in computed if "//" in line or "%" in line]


def test_rows_are_summed_in_lanes() -> None:
    program = join_axes(poly.parse("s[i//100] += x[i]", x=(10000,)))
    assert program.tensor["x"].extents({}) == (100, 100)
    assert "vector" in str(poly.compile(program).loops).split("s_init", 2)[-1]
