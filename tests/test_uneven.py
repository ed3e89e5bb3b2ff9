"""Windows that leave out padding: which programs change, and that results stay what they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.host import machine_of_features
from poly.interp import run_program
from poly.program import Program
from poly.relations import intervals_of
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_padding import without_padding
from poly.scheduling.cpu_plan import Piece, balanced, ends_apart
from poly.scheduling.groups import groups_of
from poly.scheduling.uneven import Ends, finite_factors, inside_windows, shorter_ends, uneven_axes
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


PLANES = "X[c, {y}, {x}]"


def constants() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {n: random.integers(-3, 4, s).astype(np.float32) for n, s in {"W": (24, 16, 3, 3), "bias": (24,)}.items()}


@pytest.mark.parametrize(("extent", "step"), [(7, 1), (14, 1), (13, 2)])
@pytest.mark.parametrize("threads", [1, 2])
def test_padding_is_left_out(extent: int, step: int, threads: int) -> None:
    program, given = window(extent, step), constants()
    shorter = inside_windows(program, finite_factors(program, given))
    s = shorter.statement["s1"]
    assert uneven_axes(shorter, s, ("o", "y", "x")) == {"y": {"q"}, "x": {"r"}}
    assert not s.reads[0].guard and s.reads[0].fill is None
    assert [g.names for g in groups_of(shorter)] == [("s0", "s1", "s2")]
    x = np.random.default_rng(2).integers(-3, 4, (extent, extent, 16)).astype(np.float32)
    kernel = poly.compile(program, constants=given, threads=threads)
    assert kernel.schedule is not None and kernel.schedule.source.statement["s1"].domain.is_equal(s.domain)
    assert np.array_equal(kernel(x), run_program(program, {"X": x, **given})["Y"])
    again = poly.compile(program, constants=given, threads=threads, schedule=kernel.schedule)
    assert np.array_equal(again(x), kernel(x))


@pytest.mark.parametrize("machine", [AVX2, CPUS["avx512"]])
@pytest.mark.parametrize(("extent", "step"), [(7, 1), (14, 1), (28, 1), (13, 2)])
def test_a_window_is_laid_out_in_tiles_at_the_ends(machine: poly.Machine, extent: int, step: int) -> None:
    """Every row of a register tile that reaches an end has products of its own; lanes run along no such loop."""
    program = inside_windows(window(extent, step), {"W"})
    schedule = schedule_for_cpu(program, machine, 1)
    ends = shorter_ends(program, program.statement["s1"], ("o", "y", "x")) or {}
    pieces = set[bool]()
    for name in (n for n in schedule.nests if schedule.program.statement[n].source_name == "s1"):
        s, nest = schedule.program.statement[name], schedule.nests[name]
        laid, lanes = (
            {v for n in nest.names if schedule.kind(n) == kind for v in nest.loops[n].names}
            for kind in ("unroll", "vector")
        )
        (rows,) = laid & {"x", "y"}
        low, high = intervals_of(schedule.program, s)[rows] or (0, 0)
        whole = ends[rows].low <= low and high < ends[rows].high
        assert lanes == {"o"} and (whole or {"x": "r", "y": "q"}[rows] in laid)
        pieces.add(whole)
    assert False in pieces


def test_tiles_at_the_ends_are_apart() -> None:
    assert ends_apart(balanced(0, 28, 7), 1, 27) == (Piece(0, 7, 7), Piece(7, 21, 7), Piece(21, 28, 7))
    assert ends_apart(balanced(0, 23, 6), 1, 23) == (Piece(0, 6, 6), Piece(6, 18, 6), Piece(18, 23, 5))
    assert ends_apart(balanced(0, 9, 3), 4, 8) == (Piece(0, 3, 3), Piece(3, 6, 3), Piece(6, 9, 3))
    assert ends_apart(balanced(0, 7, 7), 1, 6) == (Piece(0, 7, 7),)


def test_the_share_of_a_window_that_is_inside() -> None:
    for extent, step, low, high, inside in ((7, 1, 1, 6, 19), (13, 2, 1, 6, 19), (14, 2, 1, 7, 20)):
        program = inside_windows(window(extent, step), {"W"})
        ends = Ends(frozenset({"r"}), low, high, inside / 21)
        assert (shorter_ends(program, program.statement["s1"], ("o", "y", "x")) or {})["x"] == ends


def test_what_is_left_as_it_is() -> None:
    """Weights that are not finite or not known, planes of an image, and a window of each channel."""
    program, given = window(14), constants()
    given["W"][3, 2, 1, 0] = np.inf
    assert finite_factors(program, given) == frozenset() == finite_factors(program, {})
    assert inside_windows(program, ()) is program
    planes = window(14, image=PLANES, shape="16, {n}, {n}")
    assert inside_windows(planes, {"W"}) is planes
    own = poly.parse("Y[y,x,c] += X[y + q,x + r,c] * W[c,q,r]", X=(9, 9, 16), W=(16, 3, 3))
    assert finite_factors(own, {"W": np.ones((16, 3, 3), np.float32)}) == frozenset()


def test_a_long_window_keeps_the_padding_of_the_last_axis() -> None:
    program = poly.parse(
        "Y[y,x,o] += (X[y + q - 4,x + r - 4,c] if 4 <= y + q < 36 and 4 <= x + r < 36 else 0) * W[q,r,c,o]",
        X=(32, 32, 16), W=(9, 9, 16, 32), Y=(32, 32, 32),
    )
    program = replace(
        program, tensors=tuple(replace(t, role="constant") if t.name == "W" else t for t in program.tensors)
    )
    program = inside_windows(program, {"W"})
    (s,) = (s for s in program.statements if s.combiner is not None)
    assert uneven_axes(program, s, ("y", "x", "o")) == {"y": {"q"}}


@pytest.mark.parametrize(("extent", "channels", "shorter"), [(14, 64, True), (56, 64, True), (224, 3, False)])
def test_planes_leave_out_padding_where_lanes_are_better_along_channels(
    extent: int, channels: int, shorter: bool
) -> None:
    """Not where lanes run along the places of a wide image; results are the same."""
    box = f"0 <= o <= 63 and 0 <= y <= {extent - 1} and 0 <= x <= {extent - 1}"
    guard = " and ".join(f"{e} >= 0 and {e} <= {extent - 1}" for e in ("y + q - 1", "x + r - 1"))
    program = parse_program(f"""program planes
constant W: f32[64, {channels}, 3, 3]
input X: f32[{channels}, {extent}, {extent}]
output Y: f32[64, {extent}, {extent}]
s0[o, y, x]: Y[o, y, x] = 0 where {box}
s1[o, y, x, c, q, r]: Y[o, y, x] += (X[c, y + q - 1, x + r - 1] if {guard} else 0)*W[o, c, q, r] where {box} and """
        f"""0 <= q <= 2 and 0 <= r <= 2 and 0 <= c <= {channels - 1}
""")  # fmt: skip
    core = CPUS["avx512"]
    machine = machine_of_features(
        core.cpu, core.engine["core"].features, core.triple, {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}, 1, 3000
    )
    found = without_padding(program, {"W"}, machine, 1)
    assert (found is not program) == shorter == (not found.statement["s1"].reads[0].guard)
    if extent == 14:
        random = np.random.default_rng(3)
        x, w = (random.integers(-3, 4, s).astype(np.float32) for s in ((channels, 14, 14), (64, channels, 3, 3)))
        kernel = poly.compile(program, constants={"W": w})
        assert np.array_equal(kernel(x), run_program(program, {"X": x, "W": w})["Y"])


def planes(extent: int, channels: int, beside: str = "") -> Program:
    box = f"0 <= o <= {channels - 1} and 0 <= y <= {extent - 1} and 0 <= x <= {extent - 1}"
    guard = " and ".join(f"{e} >= 0 and {e} <= {extent - 1}" for e in ("y + q - 1", "x + r - 1"))
    return parse_program(f"""program planes
constant W: f32[{channels}, {channels}, 3, 3]
input X: f32[{channels}, {extent}, {extent}]
input V: f32[40, 50]
output Y: f32[{channels}, {extent}, {extent}]
output S: f32[40]
s0[o, y, x]: Y[o, y, x] = 0 where {box}
s1[o, y, x, c, q, r]: Y[o, y, x] += (X[c, y + q - 1, x + r - 1] if {guard} else 0)*W[o, c, q, r] where {box} and """
        f"""0 <= q <= 2 and 0 <= r <= 2 and 0 <= c <= {channels - 1}
s2[i]: S[i] = 0 where 0 <= i <= 39
{beside}""")  # fmt: skip


def wide() -> poly.Machine:
    core = CPUS["avx512"]
    features = core.engine["core"].features
    return machine_of_features(core.cpu, features, core.triple, {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}, 2, 3000)


def test_the_choice_is_made_for_the_number_of_threads() -> None:
    program, machine = planes(32, 16), wide()
    assert without_padding(program, {"W"}, machine, 1) is program
    assert not without_padding(program, {"W"}, machine, 2).statement["s1"].reads[0].guard


def test_a_core_says_how_much_longer_windows_without_padding_may_seem_to_take() -> None:
    """As its description does; a vector that half the channels fill is worse than any padding."""
    machine = wide()
    core = machine.engines[0]
    sooner = replace(machine, engines=(replace(core, cost={**core.cost, "unpadded": 110}),))
    for program in (planes(32, 16), planes(32, 32)):
        assert without_padding(program, {"W"}, machine, 1) is program
        assert not without_padding(program, {"W"}, sooner, 1).statement["s1"].reads[0].guard
    program = planes(32, 8)
    assert without_padding(program, {"W"}, sooner, 1) is program


def test_what_is_beside_does_not_matter() -> None:
    program = planes(14, 64, "s3[i, k]: S[i] += V[i, k] where 0 <= i <= 39 and 0 <= k <= 49\n")
    assert not without_padding(program, {"W"}, wide(), 1).statement["s1"].reads[0].guard


@pytest.mark.parametrize("channels", [1, 3, 12])
def test_few_channels_into_planes_have_lanes(channels: int) -> None:
    """Lanes run along channels that do not fill a vector, or along places whose windows keep their padding."""
    guard = "y+q >= 1 and y+q <= 4 and x+r >= 1 and x+r <= 5"
    program = poly.parse(
        f"constant W: f32[{channels},16,3,3]; Y[o,y,x] += (X[y+q-1,x+r-1,c] if {guard} else 0)*W[o,c,q,r] "
        "where 0 <= y < 4 and 0 <= x < 5",
        X=(4, 5, 16),
    )
    x, w = np.random.default_rng(3).integers(-3, 4, (4, 5, 16)).astype("f4"), constants()["W"][:channels]
    kernel = poly.compile(program, constants={"W": w})
    assert "vectorise" in str(kernel.schedule)
    assert np.array_equal(kernel(x), run_program(program, {"X": x, "W": w})["Y"])


@pytest.mark.parametrize(("height", "width", "rows", "columns"), [(2, 28, (2, 5), (0, 7)), (1, 1, (3, 4), (3, 4))])
def test_rows_of_a_window_that_meet_padding_alone(
    height: int, width: int, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """Of 7x7 weights with 3 elements of padding, those which an image of few rows meets."""
    guard = f"y+q >= 3 and y+q < {height + 3} and x+r >= 3 and x+r < {width + 3}"
    program = poly.parse(
        f"constant W: f32[6,5,7,7]; Y[o,y,x] += (X[c,y+q-3,x+r-3] if {guard} else 0)*W[o,c,q,r] "
        f"where 0 <= y < {height} and 0 <= x < {width}",
        X=(5, height, width),
    )
    shorter = inside_windows(program, {"W"})
    ranges = intervals_of(shorter, shorter.statement["Y_update"])
    assert ranges["q"] == (rows[0], rows[1] - 1) and ranges["r"] == (columns[0], columns[1] - 1)
    assert inside_windows(program, ()) is program
    random = np.random.default_rng(4)
    x, w = (random.integers(-3, 4, s).astype("f4") for s in ((5, height, width), (6, 5, 7, 7)))
    kernel = poly.compile(program, constants={"W": w})
    assert np.array_equal(kernel(x), run_program(program, {"X": x, "W": w})["Y"])


def test_sums_that_meet_padding_alone() -> None:
    """Both columns of a window lie beside an image of one column: one iteration is left, of zeros."""
    program = poly.parse(
        "constant W: f32[4,20,2]; Y[o,y] += (X[c,y,2*q-1] if 2*q >= 1 and 2*q < 2 else 0)*W[o,c,q] where 0 <= y < 5",
        X=(20, 5, 1),
    )
    ranges = intervals_of(shorter := inside_windows(program, {"W"}), shorter.statement["Y_update"])
    assert ranges["q"] == ranges["c"] == (0, 0) and ranges["o"] == (0, 3) and ranges["y"] == (0, 4)
    kernel = poly.compile(program, constants={"W": np.ones((4, 20, 2), "f4")})
    assert np.array_equal(kernel(np.ones((20, 5, 1), "f4")), np.zeros((4, 5)))
    w = np.full((4, 20, 2), np.inf, "f4")
    assert np.isnan(np.asarray(poly.compile(program, constants={"W": w})(np.ones((20, 5, 1), "f4")))).all()


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


def test_most_windows_may_be_shorter_where_another_loop_is_there_for_lanes() -> None:
    """Triangles with columns, few places, and windows that no place has whole: results and what is left to do."""
    for text, sizes, low, high, share in (
        ("y[i,k] += a[i,j]*b[j,k] where 0 <= i < 40 and 0 <= j <= i and 0 <= k < 30", ((40, 40), (40, 30)), 39, 40,
         820 / 1600),
        ("y[i,k] += a[i,j]*b[i+7*j-7,k] where 0 <= i < 10 and 0 <= j < 3 and 0 <= i+7*j-7 < 10 and 0 <= k < 20",
         ((10, 3), (10, 20)), 10, 10, 16 / 30),
        ("y[i,k] += a[i,j]*b[i+j-1,k] where 0 <= i < 2 and 0 <= j < 3 and 0 <= i+j-1 < 2 and 0 <= k < 4",
         ((2, 3), (2, 4)), 2, 2, 4 / 6),
    ):  # fmt: skip
        program = poly.parse(text, a=sizes[0], b=sizes[1])
        s = program.statement["y_update"]
        assert shorter_ends(program, s, ("i", "k")) == {"i": Ends(frozenset("j"), low, high, share)}
        assert groups_of(program)[0].names == ("y_init", "y_update")
        random = np.random.default_rng(3)
        a, b = (random.integers(-3, 4, size).astype(np.float32) for size in sizes)
        expected = run_program(program, {"a": a, "b": b})["y"]
        assert all(np.array_equal(poly.compile(program, threads=n)(a, b), expected) for n in (1, 2))


@pytest.mark.parametrize("spread", [3, 6, 9])
def test_windows_with_holes_that_leave_the_image(spread: int) -> None:
    """Only what meets data is summed: at distances of 9 on 14 places none has a whole window."""
    n, far = 14, 14 + spread - 1
    guard = " and ".join(f"{i} + {spread}*{k} >= {spread} and {i} + {spread}*{k} <= {far}" for i, k in ("yq", "xr"))
    box = f"0 <= o <= 23 and 0 <= y <= {n - 1} and 0 <= x <= {n - 1}"
    program = parse_program(f"""program holes
constant W: f32[24, 16, 3, 3]
input X: f32[16, {n}, {n}]
output Y: f32[24, {n}, {n}]
s0[o, y, x]: Y[o, y, x] = 0 where {box}
s1[o, y, x, q, r, c]: Y[o, y, x] += (X[c, y + {spread}*q - {spread}, x + {spread}*r - {spread}] if {guard} else 0)"""
        f"""*W[o, c, q, r] where {box} and 0 <= q <= 2 and 0 <= r <= 2 and 0 <= c <= 15
""")  # fmt: skip
    shorter = inside_windows(program, {"W"}, planes=True)
    ends = shorter_ends(shorter, shorter.statement["s1"], ("o", "y", "x"))
    assert ends is not None and ends.keys() == {"y", "x"} and ends["y"].share == (3 * n - 2 * spread) / (3 * n)
    given, x = constants()["W"], np.random.default_rng(2).integers(-3, 4, (16, n, n)).astype(np.float32)
    kernel = poly.compile(program, constants={"W": given}, threads=1)
    assert np.array_equal(kernel(x), run_program(program, {"X": x, "W": given})["Y"])


def test_ends_of_a_long_axis() -> None:
    """They follow from the conditions, not from a look at every iteration."""
    where = "where 0 <= k < 7 and 0 <= p - k < 1000000000"
    program = poly.parse(f"y[p] += x[p - k]*w[k] {where}", x=(10**9,), w=(7,))
    ends = shorter_ends(program, program.statement["y_update"], ("p",))
    assert ends is not None and ends["p"][:3] == ({"k"}, 6, 10**9)
    assert ends["p"].share == 10**9 / (10**9 + 6)
