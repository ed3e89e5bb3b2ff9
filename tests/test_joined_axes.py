"""Axes that every access walks together: joined, and only those; the same elements of the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.joined_axes import axes_apart, join_axes
from poly.text import parse_program

BOX = "where 0 <= m <= 4 and 0 <= y <= 5 and 0 <= x <= 6"
POINTWISE = f"""program maps
input X: f32[3, 6, 7]
input W: f32[5, 3]
input R: f32[5, 6, 7]
temporary T: f32[5, 6, 7]
output Y: f32[5, 6, 7]
s0[m, y, x]: T[m, y, x] = 0 {BOX}
s1[m, y, x, c]: T[m, y, x] += X[c, y, x]*W[m, c] {BOX} and 0 <= c <= 2
s2[m, y, x]: Y[m, y, x] = max(T[m, y, x] + R[m, y, x], 0) {BOX}
"""


def shapes(program: Program) -> dict[str, tuple[int, ...]]:
    return {t.name: t.extents(program.binding) for t in program.tensors}


def check_same(program: Program, joined: Program) -> None:
    """The same results, exactly, on small whole numbers; compiled too."""
    random = np.random.default_rng(1)
    arrays = {t.name: random.integers(-3, 4, t.extents({})).astype(np.float32) for t in program.inputs}
    moved = {t.name: arrays[t.name].reshape(t.extents({})) for t in joined.inputs}
    expected, found = run_program(program, arrays), run_program(joined, moved)
    (name,) = expected
    assert np.array_equal(found[name].ravel(), expected[name].ravel())
    assert np.array_equal(np.asarray(poly.compile(joined)(*moved.values())).ravel(), expected[name].ravel())


def test_a_map_becomes_one_axis_of_every_tensor_and_statement() -> None:
    program = parse_program(POINTWISE)
    joined = join_axes(program)
    assert shapes(joined) == {"X": (3, 42), "W": (5, 3), "R": (5, 42), "T": (5, 42), "Y": (5, 42)}
    assert [s.iterators for s in joined.statements] == [("m", "y"), ("m", "y", "c"), ("m", "y")]
    check_same(program, joined)


def test_several_axes_and_those_of_a_reduction() -> None:
    program = poly.parse("C[i,j,m] += A[i,j,a,b] * B[a,b,m]", A=(2, 3, 4, 5), B=(4, 5, 6))
    joined = join_axes(program)
    assert shapes(joined) == {"A": (6, 20), "B": (20, 6), "C": (6, 6)}
    check_same(program, joined)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X[c, y, x]", "X[c, x, y]"),  # in another order
        ("X[c, y, x]", "X[c, 2*y, x]"),  # in steps
        ("X[c, y, x]", "X[c, y, x + 1]"),  # a window
        ("X[c, y, x]", "(X[c, y, x] if y >= 1 else 0)"),  # with padding
        ("W[m, c]", "W[y, c]"),  # one without the other
        ("R[m, y, x], 0", "R[m, y, 3], 0"),
        ("R[m, y, x], 0", "R[m, y, x], f32(index(y))"),  # the index itself
    ],
)
def test_what_walks_them_in_another_way_keeps_them_apart(old: str, new: str) -> None:
    text = POINTWISE.replace(old, new)
    assert text != POINTWISE
    text = text.replace("X: f32[3, 6, 7]", "X: f32[3, 12, 12]").replace("W: f32[5, 3]", "W: f32[6, 6]")
    program = parse_program(text)
    assert join_axes(program) is program


def test_part_of_an_axis_is_not_joined() -> None:
    program = parse_program(POINTWISE.replace("X: f32[3, 6, 7]", "X: f32[3, 6, 8]"))
    assert join_axes(program) is program


def test_an_axis_of_three_loops_is_three_axes() -> None:
    """As of a map whose places and channels are flattened; loops that do not cover an axis stay in it."""
    flat = poly.parse("T[n,o,y,x] += X[n,c,y,x]*W[o,c]", X=(2, 3, 5, 7), W=(4, 3))
    text = str(flat).replace("output T: f32[2, 4, 5, 7]", "temporary T: f32[2, 4, 5, 7]\noutput Y: f32[2, 140]")
    place = "0 <= n < 2 and 0 <= o < 4 and 0 <= y < 5 and 0 <= x < 7"
    program = parse_program(f"{text}\nr[n, o, y, x]: Y[n, 35*o + 7*y + x] = T[n, o, y, x] where {place}\n")
    assert axes_apart(program).tensor["Y"].extents({}) == (2, 4, 5, 7)
    assert join_axes(program).tensor["Y"].extents({}) == (2, 4, 35)
    wider = parse_program(str(program).replace("2, 140", "2, 144").replace("35*o", "36*o"))
    assert axes_apart(wider).tensor["Y"].extents({}) == (2, 144)


def test_axes_that_another_shape_has_as_one_are_joined() -> None:
    """As of a norm over groups of channels: a change of shape, then sums over all of a group."""
    text = "r[n, g, 28*c + 7*h + w] = X[n, g, c, h, w]; S[n, g] += r[n, g, i]"
    program = poly.parse(text, X=(2, 3, 5, 4, 7))
    joined = join_axes(program)
    assert joined.tensor["X"].extents({}) == joined.tensor["r"].extents({}) == (6, 140)
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 5, 4, 7)).astype("f4")
    assert np.array_equal(np.asarray(poly.compile(program)(x)), x.sum((2, 3, 4)))
    wider = parse_program(str(program).replace("28*c", "30*c").replace("3, 140", "3, 148").replace("<= 139", "<= 147"))
    assert join_axes(wider).tensor["X"].extents({}) == (6, 5, 28)


def test_loops_that_start_elsewhere_are_axes_too() -> None:
    text = "program p\ninput X: f32[9, 7]\noutput Y: f32[28]\ns[y, x]: Y[7*y + x] = X[y + 1, x] where "
    program = parse_program(f"{text}1 <= y <= 3 and 0 <= x <= 6\n")
    apart = axes_apart(program)
    assert apart.tensor["Y"].extents({}) == (4, 7)
    x = np.random.default_rng(0).standard_normal((9, 7)).astype("f4")
    for form in (apart, program):
        assert np.array_equal(np.asarray(poly.compile(form)(x)).ravel()[7:], x[2:5].ravel())


def test_sums_of_one_operand_are_joined_too() -> None:
    """As of a norm over the places of a map: the program's loops over short rows are one long one."""
    program = poly.parse(
        "S[n, c] += X[n, c, y, x]; D[n, c, y, x] = X[n, c, y, x] - S[n, c]/30; V[n, c] += D[n, c, y, x]*D[n, c, y, x]; "
        "Y[n, c, y, x] = D[n, c, y, x]/sqrt(V[n, c] + 1)",
        X=(2, 4, 10, 3),
    )
    joined = join_axes(program)
    assert joined.tensor["X"].extents({}) == (8, 30) and joined.tensor["S"].extents({}) == (8,)
    x = np.random.default_rng(1).integers(-3, 4, (2, 4, 10, 3)).astype("f4")
    assert np.allclose(poly.compile(program)(x), run_program(program, {"X": x})["Y"], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "shape", "joined"),
    [
        ("Y[i, a] = 2*X[i, a]", (50, 3), (150,)),
        ("Y[n, c, h, w] = max(X[n, c, h, w] + b[c], 0)", (2, 5, 7, 6), (2, 5, 42)),
        ("T[i, j] = X[i, j]*X[i, j]; Y[j, i] = T[i, j] + 1", (9, 5), (9, 5)),
        ("Y[i, j] = 2*X[i, j]", (50, 32), (50, 32)),  # whole lines
        ("Y[i, j] = 2*X[i, j]", (5, 777), (3885,)),  # vectors stay at lines
    ],
)
def test_assignments_have_rows_of_whole_lines_or_longer_ones(
    text: str, shape: tuple[int, ...], joined: tuple[int, ...]
) -> None:
    program = poly.parse(text, X=shape, dtypes=None, **({"b": (5,)} if "b[" in text else {}))
    found = join_axes(program)
    assert shapes(found)["X"] == joined
    check_same(program, found)


@pytest.mark.parametrize(
    ("dtype", "row", "joined"),
    [("i8", 16, True), ("i8", 64, False), ("i8", 300, True), ("i8", 515, True), ("f16", 16, True), ("f16", 32, False),
     ("f64", 8, False), ("f64", 12, True), ("f64", 65, True), ("f32", 8, True), ("f32", 16, False)],
)  # fmt: skip
def test_rows_are_lines_by_their_bytes(dtype: str, row: int, joined: bool) -> None:
    program = poly.parse("Y[i, j] = max(X[i, j], 1)", X=(40, row), dtypes={"X": dtype})
    assert shapes(join_axes(program))["X"] == ((40 * row,) if joined else (40, row))


@pytest.mark.parametrize(
    ("text", "shape", "joined"),
    [
        ("Y[c, a, b] = X[a, b, c]", (40, 200, 200), (8000, 200)),
        ("Y[b, c, a] = X[a, b, c]", (200, 40, 200), (200, 8000)),
        ("Y[c, a, b] = X[a, b, c]", (40, 200, 100), (40, 200, 100)),  # few elements
        ("Y[c, a, b] = X[a, b, c]", (40, 208, 200), (40, 208, 200)),  # whole lines
        ("Y[c, a, b] = X[a, b, c]", (41, 201, 200), (41, 201, 200)),  # none when joined
        ("Y[a, b, c] = 2*X[a, b, c]", (40, 200, 200), (40, 40000)),  # nothing is turned
    ],
)
def test_turned_rows_become_whole_lines(text: str, shape: tuple[int, ...], joined: tuple[int, ...]) -> None:
    assert shapes(join_axes(poly.parse(text, X=shape)))["X"] == joined


def test_a_compiled_program_takes_arrays_in_its_own_shapes() -> None:
    """Its loops are over the joined axes; its schedule can be used for it again."""
    program = parse_program(POINTWISE.replace("input W", "constant W"))
    random = np.random.default_rng(2)
    x, w, r = (random.integers(-3, 4, s).astype(np.float32) for s in ((3, 6, 7), (5, 3), (5, 6, 7)))
    kernel = poly.compile(program, constants={"W": w})
    assert kernel.schedule is not None and shapes(kernel.schedule.source)["X"] == (3, 42)
    expected = run_program(program, {"X": x, "W": w, "R": r})["Y"]
    assert np.array_equal(np.asarray(kernel(x, r)), expected)
    again = poly.compile(program, constants={"W": w}, schedule=kernel.schedule)
    assert np.array_equal(np.asarray(again(x, r)), expected)


def test_constants_are_joined_with_what_they_meet() -> None:
    program = poly.parse("C[i,j,m] += A[i,j,a,b] * B[a,b,m]", A=(2, 3, 4, 5), B=(4, 5, 6))
    loose = parse_program(str(program).replace("input B", "constant B"))
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, s).astype(np.float32) for s in ((2, 3, 4, 5), (4, 5, 6)))
    found = np.asarray(poly.compile(loose, constants={"B": b})(a))
    assert np.array_equal(found, np.einsum("ijab,abm->ijm", a, b))


def test_sizes_that_are_bound_are_put_in() -> None:
    from poly.frontend.einsum import einsum_program

    program = einsum_program("ijk,kl->ijl", [(3, 4, 5), (5, 6)], ["f32", "f32"])
    joined = join_axes(program)
    assert [t.extents({}) for t in joined.tensors] == [(12, 5), (5, 6), (12, 6)]
    assert joined.parameters == program.parameters and joined.sizes == program.sizes
    apart = einsum_program("ik,kj->ij", [(3, 5), (5, 6)], ["f32", "f32"])
    assert join_axes(apart) is apart
    a, b = np.ones((3, 4, 5), np.float32), np.ones((5, 6), np.float32)
    np.testing.assert_array_equal(poly.compile(program)(a, b), np.full((3, 4, 6), 5))


DIGITS = """program digits
input X: f32[7, 4]
input W: f32[4, 3, 5]
output Y: f32[21, 5]
s0[l, k, m]: Y[3*l + k, m] = 1 where 0 <= l <= 6 and 0 <= k <= 2 and 0 <= m <= 4
s1[l, k, m, c]: Y[3*l + k, m] += X[l, c]*W[c, k, m] where 0 <= l <= 6 and 0 <= k <= 2 and 0 <= m <= 4 and 0 <= c <= 3
"""


def test_an_axis_that_is_walked_by_two_loops_becomes_two() -> None:
    program = parse_program(DIGITS)
    apart = join_axes(program)
    assert shapes(apart) == {"X": (7, 4), "W": (4, 15), "Y": (7, 15)}  # and the taps and columns are one then
    check_same(program, apart)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Y[3*l + k, m] = 1", "Y[3*l + k + 0*m, m] = 1"),  # the same
        ("Y[3*l + k, m] += ", "Y[3*l + k + 1, m] += "),  # moved by one
        ("Y[3*l + k, m] += ", "Y[2*l + k, m] += "),  # overlapping
        ("Y[3*l + k, m] = 1 where 0 <= l <= 6 and 0 <= k <= 2", "Y[3*l + k, m] = 1 where 0 <= l <= 6 and 0 <= k <= 3"),
    ],
)
def test_an_axis_that_is_walked_in_another_way_stays_one(old: str, new: str) -> None:
    program = parse_program(DIGITS.replace(old, new).replace("Y: f32[21, 5]", "Y: f32[30, 5]"))
    assert (shapes(join_axes(program))["Y"] == (10, 15)) == ("0*m" in new)


PARTS = """program parts
input X: f32[7, 4]
input W: f32[4, 6, 5]
output Y: f32[42, 5]
s0[l, k, m]: Y[6*l + k, m] = 1 where 0 <= l <= 6 and 0 <= k <= 5 and 0 <= m <= 4
s1[l, k, m, c]: Y[6*l + k, m] += X[l, c]*W[c, k, m] where 0 <= l <= 6 and 0 <= k <= 1 and 0 <= m <= 4 and 0 <= c <= 3
s2[l, k, m, c]: Y[6*l + k + 8, m] += X[l, c]*W[c, k, m] where 0 <= l < 6 and 0 <= k <= 3 and 0 <= m < 5 and 0 <= c < 4
"""


def test_an_axis_becomes_two_where_loops_walk_parts_of_its_blocks() -> None:
    program = parse_program(PARTS)
    apart = axes_apart(program)
    assert shapes(apart)["Y"] == (7, 6, 5)
    assert [str(i) for i in apart.statement["s2"].write.index] == ["l + 1", "k + 2", "m"]
    check_same(program, apart)
    crossing = parse_program(PARTS.replace("k + 8", "k + 9"))  # from one block to the next
    assert axes_apart(crossing) is crossing


WINDOWS = """program windows
input X: f32[3, 12, 8]
input W: f32[3, 2, 2]
output Y: f32[3, 6, 4]
s0[c, h, w]: Y[c, h, w] = 0 where 0 <= c < 3 and 0 <= h < 6 and 0 <= w < 4
s1[c, h, w, a, b]: Y[c, h, w] += X[c, 2*h + a, 2*w + b]*W[c, a, b]
  where 0 <= c < 3 and 0 <= h < 6 and 0 <= w < 4 and 0 <= a < 2 and 0 <= b < 2
"""
SHARED = """program shared
input X: f32[3, 12, 8]
input W: f32[5, 3, 2, 2]
output Y: f32[5, 6, 4]
s0[m, h, w]: Y[m, h, w] = 0 where 0 <= m < 5 and 0 <= h < 6 and 0 <= w < 4
s1[m, h, w, c, a, b]: Y[m, h, w] += X[c, 2*h + a, 2*w + b]*W[m, c, a, b]
  where 0 <= m < 5 and 0 <= c < 3 and 0 <= h < 6 and 0 <= w < 4 and 0 <= a < 2 and 0 <= b < 2
"""


@pytest.mark.parametrize(("text", "rank"), [(WINDOWS, 3), (SHARED, 5)])  # of what is read: channels share blocks
def test_a_window_of_each_plane_that_moves_by_two_keeps_its_rows(text: str, rank: int) -> None:
    program = parse_program(text.replace("\n  where", " where"))
    assert len(shapes(join_axes(program))["X"]) == rank
    check_same(program, join_axes(program))


def test_a_transposed_convolution_without_overlaps_keeps_its_sums_in_registers() -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, shape).astype("f4") for shape in ((1, 6, 9, 8), (6, 16, 2, 3)))
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 3])
    b = random.integers(-3, 4, 16).astype("f4")
    values = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    constants = [numpy_helper.from_array(a, n) for n, a in (("w", w), ("b", b))]
    model = helper.make_model(
        helper.make_graph([node], "g", given, values, constants), opset_imports=[helper.make_opsetid("", 19)]
    )
    model.ir_version = 9
    engine = poly.compile(poly.from_onnx(model))
    assert len(engine.steps) == 1
    expected = np.einsum("nchw,cmrs->nmhrws", x, w).reshape(1, 16, 18, 24) + b.reshape(16, 1, 1)
    assert np.array_equal(engine.run({"x": x})["y"], expected)
    (group,) = engine.compiled_groups
    assert any(t.space == "reg" for t in group.schedule.program.tensors)


@pytest.mark.parametrize(
    ("text", "given", "iterators"),
    [
        ("Y[i,r,j,s] = X[i,j]", {"X": (3, 5), "Y": (3, 2, 5, 4)}, ("i", "r", "j")),
        ("Y[i,j,s] = X[i,j]*Z[i,j,s]", {"X": (3, 5), "Z": (3, 5, 2)}, ("i",)),
        ("Y[c,h,w] = X[c,h,w] + B[c]", {"X": (6, 2, 2), "B": (6,)}, ("c",)),
        ("Y[c,h,w] = X[c,h,w] + B[c]", {"X": (6, 8, 8), "B": (6,)}, ("c", "h")),
        ("Y[i,j,s] = X[i,j]", {"X": (3, 5), "Y": (3, 5, 3)}, ("i", "s")),
        ("Y[i,j,s] = X[j,i]", {"X": (5, 3), "Y": (3, 5, 2)}, ("i", "j", "s")),
        ("Y[j,i,s] = X[j,i]*W[j,s]", {"X": (5, 3), "W": (5, 2)}, ("j", "i", "s")),
    ],
)
def test_short_repeats_fill_vectors(text: str, given: dict[str, tuple[int, ...]], iterators: tuple[str, ...]) -> None:
    program = poly.parse(text, **given)  # pyright: ignore[reportArgumentType]
    joined = join_axes(program)
    assert joined.statements[0].iterators == iterators
    check_same(program, joined)


def test_an_assignment_to_a_scalar_in_two_loops() -> None:
    text = "S[i, j]: s = A[i, j]*x[i]; y[k] = s*z[k]"  # the last value is meant
    program = poly.parse(text, A=(19, 16), x=(19,), z=(3,))
    a, x, z = np.random.default_rng(0).random((19, 16), "f4"), np.arange(19, dtype="f4"), np.arange(3, dtype="f4")
    found: Any = poly.compile(program)(a, x, z)
    np.testing.assert_allclose(found, a[-1, -1] * 18 * z, rtol=1e-6)


def test_axes_of_groups_come_apart_where_windows_meet_padding() -> None:
    """The maps of a convolution in groups are a group and a map of it, though the window is shorter at the ends."""
    program = parse_program(
        """program grouped
input X: f32[6, 10]
input W: f32[8, 3, 3]
output Y: f32[8, 10]
zero[g, o, x]: Y[4*g + o, x] = 0 where 0 <= g < 2 and 0 <= o < 4 and 0 <= x < 10
sum[g, o, x, c, r]: Y[4*g + o, x] += X[3*g + c, x + r - 1]*W[4*g + o, c, r] where 0 <= g < 2 and 0 <= o < 4 \
and 0 <= x < 10 and 0 <= c < 3 and 0 <= r < 3 and 0 <= x + r - 1 < 10
"""
    )
    apart = axes_apart(program)
    assert apart.tensor["Y"].extents({}) == (2, 4, 10) and apart.tensor["W"].extents({}) == (2, 4, 3, 3)
    assert apart.tensor["X"].extents({}) == (2, 3, 10)
    draw = np.random.default_rng(0)
    x, w = draw.integers(-4, 5, (6, 10)).astype(np.float32), draw.integers(-4, 5, (8, 3, 3)).astype(np.float32)
    wanted, found = run_program(program, {"X": x, "W": w}), run_program(
        apart, {"X": x.reshape(2, 3, 10), "W": w.reshape(2, 4, 3, 3)}
    )  # fmt: skip
    np.testing.assert_array_equal(found["Y"].reshape(8, 10), wanted["Y"])


SPLIT = """program split
input X: f32[4, 17, 9]
output Y: f32[4, 6, 9]
output Z: f32[4, 11, 9]
s0[i, j, k]: Y[i, j, k] = X[i, j, k] where 0 <= i <= 3 and 0 <= j <= 5 and 0 <= k <= 8
s1[i, j, k]: Z[i, j, k] = X[i, j + 6, k] where 0 <= i <= 3 and 0 <= j <= 10 and 0 <= k <= 8
"""


def test_rows_of_a_part_are_joined_where_it_begins() -> None:
    program = parse_program(SPLIT)
    joined = join_axes(program)
    assert shapes(joined) == {"X": (4, 153), "Y": (4, 54), "Z": (4, 99)}
    assert "X[i, j + 54]" in str(joined)
    arrays = {"X": np.arange(4 * 17 * 9, dtype=np.float32).reshape(4, 17, 9)}
    found, expected = poly.compile(joined)(arrays["X"].reshape(4, 153)), run_program(program, arrays)
    for one, other in zip(found, expected.values(), strict=True):
        assert np.array_equal(np.asarray(one).ravel(), other.ravel())


def test_rows_that_follow_from_the_row_before_stay_rows() -> None:
    """Joined, an iteration would need the one a row before, and no lanes along a row were left."""
    program = parse_program(
        "program rows\ninput X: f32[5, 9]\ninout Y: f32[6, 9]\n"
        "s0[i, j]: Y[i + 1, j] = Y[i, j] + X[i, j] where 0 <= i <= 4 and 0 <= j <= 8\n"
    )
    assert join_axes(program) is program


def test_planes_at_a_place_that_was_read_are_joined() -> None:
    program = parse_program(
        "program planes\ninput X: f32[6, 7, 5]\ninput P: i64[4]\noutput Y: f32[4, 7, 5]\n"
        "s0[c, y, x]: Y[c, y, x] = X[P[c], y, x] where 0 <= c <= 3 and 0 <= y <= 6 and 0 <= x <= 4 "
        "reads (X[P[c], y, x], P[c])\n"
    )
    joined = join_axes(program)
    assert shapes(joined) == {"X": (6, 35), "P": (4,), "Y": (4, 35)}
    x, places = np.arange(210, dtype=np.float32).reshape(6, 7, 5), np.array([5, 0, 2, 2])
    found = np.asarray(poly.compile(joined)(x.reshape(6, 35), places))
    assert np.array_equal(found.reshape(4, 7, 5), x[places])
