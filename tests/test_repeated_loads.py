"""Elements that lanes share come by whole loads and a shuffle: the same as lane by lane, and nothing beyond them."""

from __future__ import annotations

import numpy as np
import pytest

from poly.affine import Affine, var
from poly.expr import Read
from poly.loops import LoopTree
from poly.program import Access, Role
from tests.loop_trees import at, compute, loop, tensor
from tests.test_codegen import LANES, before_a_closed_page, check, integers, kernel_of

V = var("v")


def tree_of(read: Access, *shape: int, dtype: str = "f32", role: Role = "input", trips: int = 1) -> LoopTree:
    """y[o, v] = the read, for lanes v."""
    body = compute("s", at("y", "o", "v"), [read], Read(0))
    shapes = (tensor("x", *shape, dtype=dtype, role=role), tensor("y", trips, LANES, dtype=dtype, role="output"))
    return LoopTree("repeated", shapes, (loop("o", 0, trips, loop("v", 0, LANES, body, kind="vector")),))


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64", "u8", "bool"])
@pytest.mark.parametrize("index", [V // 2, V // (LANES // 2), V % 2, V % (LANES // 2), V % 3, V // 3, 5 - V // 2])
def test_neighbours(index: Affine, dtype: str) -> None:
    size = LANES
    tree = tree_of(at("x", index + 8 * var("o") + LANES), 3 * size, dtype=dtype, trips=2)
    check(tree, integers(3 * size, dtype=dtype, low=0, high=2 if dtype == "bool" else 9))


@pytest.mark.parametrize("size", [2, 3, 4, LANES // 2])
def test_no_neighbour_is_touched_that_is_not_asked_for(size: int) -> None:
    with before_a_closed_page(size) as x:
        kernel = kernel_of(tree_of(at("x", V % size), size))
        np.testing.assert_array_equal(np.ravel(kernel(x)), [i % size for i in range(LANES)])
        assert f"load <{size} x float>" in kernel.ir or "load float" in kernel.ir


def test_a_column_of_bools() -> None:
    tree = tree_of(at("x", V // 4, 4 * var("o") + 1), LANES // 4, 8, dtype="bool", trips=2)
    check(tree, integers(LANES // 4, 8, dtype="bool", low=0, high=2))


@pytest.mark.parametrize("rows", [2, LANES // 2])
@pytest.mark.parametrize("width", [2, 4, 6, LANES // 2, 2 * LANES])
@pytest.mark.parametrize("column", [0, 1, -1])
def test_a_column_of_several_rows(rows: int, width: int, column: int) -> None:
    """Pieces of rows end where the last row does."""
    with before_a_closed_page(rows * width) as x:
        tree = tree_of(at("x", V // (LANES // rows), column % width), rows, width)
        kernel = kernel_of(tree)
        expected = x.reshape(rows, width)[np.arange(LANES) // (LANES // rows), column]
        np.testing.assert_array_equal(np.ravel(kernel(x.reshape(rows, width))), expected)
        assert "load float" not in kernel.ir


@pytest.mark.parametrize(
    ("column", "whole"), [(4 * var("o") + 3, True), (2 * var("o"), True), (var("o"), False), (V % 2, False)]
)
def test_columns_that_move(column: Affine, whole: bool) -> None:
    """Where in its piece an element is must be known; else it goes lane by lane."""
    tree = tree_of(at("x", V // (LANES // 2), column), 2, 12, trips=3)
    check(tree, integers(2, 12))
    assert ("load float" not in kernel_of(tree).ir) == whole


@pytest.mark.parametrize("row", [V // 4 * 2, V // 4 % 2, (V + 2) // 4, 3 - V // (LANES // 4), V % 2])
def test_rows_in_any_order(row: Affine) -> None:
    check(tree_of(at("x", row, 4 * var("o") + 2), LANES, 8, trips=2), integers(LANES, 8))


def test_what_is_written_comes_element_by_element() -> None:
    """Others may write the rest of a row at the same time."""
    tree = tree_of(at("x", V // (LANES // 2), 1), 2, 4, role="inout")
    kernel = kernel_of(tree)
    assert "load float" in kernel.ir and "load <" not in kernel.ir
