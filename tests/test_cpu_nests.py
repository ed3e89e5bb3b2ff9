"""The policy for nests: loops cut apart, lanes and threads inside of loops that run in order; random nests."""

from __future__ import annotations

import os
import re
from textwrap import indent
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import poly
from poly.affine import Affine
from poly.compiler import machine_of
from poly.dtypes import numpy_dtype
from poly.errors import CapacityError, PolyError, ScheduleError
from poly.frontend.nest import read_nest
from poly.interp import run_program
from poly.program import Program
from poly.relations import ends_of
from poly.scheduling.cpu import schedule_for_cpu
from poly.scheduling.cpu_each import schedule_each
from poly.scheduling.distribution import components, distributed
from poly.scheduling.isl_scheduler import schedule_by_isl
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.machines import AVX2
from tests.nest_texts import define

SLOW = bool(os.environ.get("POLYLOOM_SLOW"))
HEAD = "import numpy as np\ndef f(N: int, A: 'i64[N + 3, N + 3]', B: 'i64[N + 3, N + 3]', C: 'i64[N + 3]'):\n"


def program_of(body: str, n: int = 45) -> Program:
    return read_nest(define(HEAD + "".join(f"    {line}\n" for line in body.strip("\n").splitlines()))).bind(N=n)


PRODUCT = """
for i in range(N):
    for j in range(N):
        A[i, j] = 0
        for k in range(N):
            A[i, j] += B[i, k] * B[k, j]
"""
STENCIL = """
for t in range(3):
    for i in range(1, N):
        for j in range(1, N):
            A[i, j] = B[i, j - 1] + B[i, j] + B[i - 1, j]
    for i in range(1, N):
        for j in range(1, N):
            B[i, j] = A[i, j]
"""
TRIANGLE = """
for i in range(N):
    for j in range(i):
        A[i, j] = A[i, j] + B[i, j]
    for j in range(i + 1, N):
        B[i, j] += A[i, j]
"""
RECURRENCE = """
for i in range(1, N):
    C[i] = 0
    for j in range(i):
        C[i] += A[i, j] * C[j]
"""
FACTORS = """
for i in range(N):
    for j in range(i):
        for k in range(j):
            A[i, j] -= A[i, k] * A[k, j]
        A[i, j] -= A[j, j]
"""
LOCAL_SUM = """
for i in range(N):
    s = 0
    for j in range(i, N):
        s += B[i, j] * A[N - 1, j]
    A[i, i] = s
"""
SCATTERED_SUM = """
for i in range(N):
    s = 0
    for j in range(N):
        s += A[N - 1 - j, i] * A[j, N - 1 - j]
    A[i, i] = s
"""


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (PRODUCT, {"S0": (0, "i", "j"), "S1": (1, "i", "j", "k")}),
        (STENCIL, {"S0": (0, "t", 0, "i", "j"), "S1": (0, "t", 1, "i", "j")}),
        (TRIANGLE, {"S0": (0, "i", "j"), "S1": (1, "i", "j")}),
        (RECURRENCE, {"S0": (0, "i"), "S1": (1, "i", "j")}),
    ],
)
def test_loops_are_cut_apart(body: str, paths: dict[str, tuple[int | str, ...]]) -> None:
    program = program_of(body)
    schedule, apart = distributed(Schedule(program))
    assert {s.name: s.path for s in apart.statements} == paths
    schedule.check()


def test_components_are_in_an_order_that_can_run() -> None:
    order = {n: k for k, n in enumerate("abcd")}
    assert components("abcd", [("c", "a"), ("a", "b"), ("b", "a"), ("d", "c")], order) == [("d",), ("c",), ("a", "b")]
    assert components("abc", [], order) == [("a",), ("b",), ("c",)]


def test_ends_of_a_triangle() -> None:
    program = read_nest(define(HEAD + "    for i in range(N):\n        for j in range(i + 1, N): A[i, j] = 0\n"))
    found = ends_of(program, program.statements[0], "j")
    assert found == (Affine.of("i + 1"), Affine.of("N - 1"))
    assert ends_of(program, program.statements[0], "i") == (Affine(), Affine.of("j - 1"))


@pytest.mark.parametrize("body", [PRODUCT, STENCIL, TRIANGLE])
def test_lanes_are_found(body: str) -> None:
    program = program_of(body)
    schedule = schedule_for_cpu(program, machine_of("cpu"))
    assert sum(mark.kind == "vector" for mark in schedule.marks.values()) >= 2
    again = Schedule.parse(str(schedule))
    assert str(again.lower()) == str(schedule.lower())


@pytest.mark.parametrize("body", [LOCAL_SUM, SCATTERED_SUM])
def test_local_sums_are_kept_in_registers(body: str) -> None:
    """A sum that each iteration of a loop starts anew has partial results there; one with an order, one register."""
    program = program_of(body)
    loops = str(schedule_for_cpu(program, machine_of("cpu")).lower())
    assert re.search(r"S1\w*\[.*\]: s_S1\w*_part_r\[j.*p\] \+=", loops), loops
    text = HEAD.replace("i64", "f64") + "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    exact = read_nest(define(text.replace("s = 0", "s = 0.0")), exact=True).bind(N=45)
    assert "s_reg[] +=" in str(schedule_for_cpu(exact, machine_of("cpu")).lower())
    agrees(exact)


@pytest.mark.parametrize(("value", "kept"), [("s[] + A[i]", True), ("A[i]", False)])
def test_scalars_that_statements_hand_on_are_in_registers(value: str, kept: bool) -> None:
    """Not one that nobody waits for."""
    program = parse_program(f"""program scalars
input A: i64[8]
temporary s: i64[]
output C: i64[8]
for i:
    S[i]: s[] = A[i] where 0 <= i < 8
    T[i]: C[i] = {value} where 0 <= i < 8
""")
    schedule = schedule_for_cpu(program, machine_of("cpu"))
    assert ("promote(tensor='s'" in schedule.script) == kept
    found: Any = poly.compile(program)(np.arange(8))
    np.testing.assert_array_equal(found, np.arange(8) * (2 if kept else 1))


def test_sums_of_as_many_steps_as_a_loop_around_says_have_lanes() -> None:
    """The lanes of the last block are counted by a number, though the loops around imply it."""
    loops = str(poly.compile(program_of(FACTORS)).loops)
    assert re.search(r"for \S+ in range\(0, min\(\d, .*\) vector:\n +S0_hi", loops), loops


def test_partial_sums_of_places_that_a_sum_walks_stay_in_memory() -> None:
    text = "S[k,j]: r[k//8] += D[j,j]*F[j,8-j]*(G[j] if j < 7 else -2) where 0 <= k < 16 and 0 <= j < 9"
    program = poly.parse(text, D=(9, 9), F=(9, 9), G=(7,))
    kernel = poly.compile(program)
    assert "vectorise(loop='j.p')" in str(kernel.schedule) and "in reg" not in str(kernel.schedule)
    arrays = [np.random.default_rng(0).integers(-3, 4, s).astype("f4") for s in ((9, 9), (9, 9), (7,))]
    wanted = run_program(program, dict(zip("DFG", arrays, strict=True)))["r"]
    np.testing.assert_array_equal(np.asarray(kernel(*arrays)), np.asarray(wanted, "f4"))


def test_threads_inside_of_a_loop_in_time() -> None:
    schedule = schedule_for_cpu(program_of(STENCIL, 400), machine_of("cpu"), 2)
    assert sum(mark.kind == "parallel" for mark in schedule.marks.values()) == 2
    assert schedule.kind("t") == "serial"


def test_split_at_an_expression() -> None:
    program = program_of("for i in range(N):\n    for j in range(i):\n        A[i, j] = A[i, j] + 1")
    schedule = Schedule(program).split("j", "8*(i//8)").tile({"j.lo": 8}).vectorise("j.lo.p")
    text = str(schedule.lower())
    assert "for j.lo.p in range(0, 8) vector" in text
    assert str(Schedule.parse(str(schedule)).lower()) == text
    agrees(program, schedule)
    refused: list[tuple[Any, str]] = [("k + 1", "names k"), ("j", "names j"), ("i*i", "neither affine"), (1.5, "split")]
    for at, message in refused:
        with pytest.raises((ScheduleError, PolyError), match=message):
            Schedule(program).split("j", at)


def test_register_tiles_have_known_sizes() -> None:
    body = "    for i in range(N):\n        for j in range(N):\n            for k in range(N):\n"
    free = read_nest(define(HEAD + body + "                B[i, i] += A[i, j] * C[k]\n"))
    agrees(free.bind(N=19), schedule_each(free.bind(N=19), machine_of("cpu")))
    kernel, values = poly.compile(schedule_each(free, machine_of("cpu"))), arrays(free.bind(N=19))
    wanted = run_program(free.bind(N=19), values)["B"]
    np.testing.assert_array_equal(kernel(*[values[t.name] for t in free.inputs]), wanted)
    with pytest.raises(CapacityError, match="depends on size N, which is free"):
        poly.compile(Schedule(free).promote("A", "i", "reg"))


@pytest.mark.parametrize(("batch", "width"), [(24, 64), (37, 20), (5, 8), (3, 3)])
def test_steps_in_time_of_any_number_of_rows_have_lanes(batch: int, width: int) -> None:
    """Rows that are left after whole tiles are tiles of their own; a loop shorter than a vector has a shorter one."""
    place = f"0 <= s < 4 and 0 <= b < {batch} and 0 <= j < {width}"
    program = parse_program(f"""program steps
input X: f32[4, {batch}, {width}]
input W: f32[{width}, {width}]
temporary T: f32[4, {batch}, {width}]
inout H: f32[5, {batch}, {width}]
for s:
    a[s, b, j]: T[s, b, j] = X[s, b, j] where {place}
    c[s, b, j, k]: T[s, b, j] += H[s, b, k]*W[k, j] where {place} and 0 <= k < {width}
    d[s, b, j]: H[s + 1, b, j] = max(T[s, b, j], -1) where {place}
""")
    kernel = poly.compile(program)
    assert kernel.schedule is not None
    for name, nest in kernel.schedule.nests.items():
        assert any(kernel.schedule.kind(loop) == "vector" for loop in nest.names), name
    random = np.random.default_rng(5)
    given = {t.name: random.integers(-1, 2, t.extents({})).astype("f4") for t in kernel.inputs}
    assert np.array_equal(kernel(**given), run_program(program, given)["H"])


def test_rows_at_places_that_stand_still_become_lanes() -> None:
    """The next row is where the last one said: the row itself is in vectors, and its place is checked all the same."""
    text = (
        "program p; input a: i64[9, 37]; inout at: i64[6]; output c: i64[6]\n"
        "for t:\n"
        "    S[t]: c[t] = -1000 where 0 <= t < 5\n"
        "    R[t, j]: c[t] max= a[at[t], j] where 0 <= t < 5 and 0 <= j < 37\n"
        "    P[t]: at[t + 1] = bit_and(c[t], 7) where 0 <= t < 5\n"
    )
    kernel = poly.compile(poly.parse(text))
    a = np.random.default_rng(0).integers(-99, 99, (9, 37))
    rows, found = [3], []
    for _ in range(5):
        found.append(a[rows[-1]].max())
        rows.append(found[-1] & 7)
    at, c = kernel(a, np.array([3, 0, 0, 0, 0, 0]))
    assert list(at) == rows and list(c[:5]) == found
    assert re.search(r"vector:\n +R\w*\[", str(kernel.loops))
    with pytest.raises(poly.PolyError, match="9"):
        kernel(a, np.array([9, 0, 0, 0, 0, 0]))


# ---- results


def arrays(program: Program) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {t: t.extents(program.binding) for t in program.inputs}
    return {t.name: rng.integers(-9, 9, shape).astype(numpy_dtype(t.dtype)) for t, shape in shapes.items()}


def agrees(program: Program, *schedules: Schedule) -> None:
    """Code of the schedules (none: of the policy's, for one thread and two) gives what the interpreter does."""
    values = arrays(program)
    wanted = run_program(program, values)
    kernels = [poly.compile(program, schedule=s) for s in schedules]
    kernels = kernels or [poly.compile(program, threads=n) for n in (1, 2)]
    for kernel in kernels:
        found = kernel(*[values[t.name] for t in program.inputs])
        results = found if isinstance(found, tuple) else (found,)
        for tensor, array in zip(program.outputs, results, strict=True):
            np.testing.assert_array_equal(array, wanted[tensor.name], err_msg=f"{program}\n{kernel.schedule}")


@pytest.mark.parametrize("n", [1, 3, 45])
@pytest.mark.parametrize("body", [PRODUCT, STENCIL, TRIANGLE, RECURRENCE, FACTORS, LOCAL_SUM, SCATTERED_SUM])
def test_results(body: str, n: int) -> None:
    agrees(program_of(body, n))


def _range(draw: st.DrawFn, names: list[str]) -> str:
    choices = ["range(1, N)", "range(N)", "range(1, N - 1)", "range(N - 1, 0, -1)", "range(1, N, 2)"]
    choices += [f"range({n})" for n in names] + [f"range({n} + 1, N)" for n in names]
    return draw(st.sampled_from(choices))


def _element(draw: st.DrawFn, names: list[str]) -> str:
    def subscript() -> str:
        name = draw(st.sampled_from(names))
        return draw(st.sampled_from((name, name, name, f"{name} + 1", f"{name} + 2", f"N - {name}")))

    array = draw(st.sampled_from("AABBC"))
    return f"{array}[{subscript()}]" if array == "C" else f"{array}[{subscript()}, {subscript()}]"


def _statement(draw: st.DrawFn, names: list[str]) -> str:
    target = _element(draw, names)
    kind = draw(st.sampled_from(("=", "=", "+=", "+=", "-=", "max", "scalar")))
    value = draw(st.sampled_from(("{0} + {1}", "{0} * 3", "{0} - {1}", "{0}", f"({names[-1]} + {{0}})")))
    value = value.format(_element(draw, names), _element(draw, names))
    if kind == "max":
        return f"{target} = max({target}, {value})"
    return f"s = {value}; {target} = s - 7" if kind == "scalar" else f"{target} {kind} {value}"


def _block(draw: st.DrawFn, names: list[str], depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 2 if depth else 3))):
        if names and (depth >= 3 or draw(st.booleans())):
            lines.append(_statement(draw, names))
            continue
        name = "ijkl"[len(names)]
        lines.append(f"for {name} in {_range(draw, names)}:")
        lines += [f"    {line}" for line in _block(draw, [*names, name], depth + 1)]
    return lines


@st.composite
def nests(draw: st.DrawFn) -> str:
    """Regular nests on arrays of integers, some in a loop over time; subscripts stay inside."""
    lines = _block(draw, [], 0)
    if draw(st.integers(0, 2)) == 0:
        lines = ["for t in range(2):", *(f"    {line}" for line in lines)]
    return "\n".join(lines)


@given(nests(), st.sampled_from((4, 11, 19)))
@settings(
    derandomize=True, max_examples=400 if SLOW else 12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_random_nests(body: str, n: int) -> None:
    program = program_of(body, n)
    function = define(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    values = arrays(program)
    wanted = {name: array.copy() for name, array in values.items()}
    rest = {name: np.zeros((n + 3,) * (1 if name == "C" else 2), int) for name in "ABC" if name not in wanted}
    with np.errstate(all="ignore"):
        function(n, **wanted, **rest)
    found = run_program(program, values)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=body)
    agrees(program)
    agrees(program, Schedule(program), schedule_by_isl(program))


ODD = {
    "a bound of sizes": "for i in range(N):\n    for j in range(N - i, N):\n        C[i] += A[i, j]",
    "reversed": "for i in range(N - 1, -1, -1):\n    C[N - 1 - i] += 1",
    "one element of a copy": """
for i in range(N):
    for k in range(i):
        for p in range(N):
            C[p] += 1
""",
    "registers at no constant": """
for i in range(N):
    for k in range(N - i - 1, min(N, i + 3)):
        C[k] -= 1
for q in range(N - 1):
    B[q, q] += max(C[q], B[N - 1 - q, q])
""",
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("n", [9, 17])
def test_nests_of_odd_form(name: str, n: int) -> None:
    program = program_of(ODD[name], n)
    agrees(program)
    body = "".join(f"    {line}\n" for line in ODD[name].strip("\n").splitlines())
    free = read_nest(define(HEAD + body))
    values = arrays(program)
    found = poly.compile(free)(*[values[t.name] for t in free.inputs])
    wanted = run_program(program, values)
    for tensor, array in zip(free.outputs, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_array_equal(array, wanted[tensor.name])


def test_wraps_are_masked_not_padded() -> None:
    """No copy as large as all that the branches of a wrap could read, were it there."""
    body = """
for i in range(N):
    for j in range(N):
        s = 0
        for d in range(3):
            for e in range(3):
                s += B[(i + d - 1) % N, (j + e - 1) % N]
        A[i, j] = 2 * s
"""
    text = HEAD.replace("N + 3, N + 3", "N, N").replace(", C: 'i64[N + 3]'", "") + indent(body, "    ")
    kernel = poly.compile(read_nest(define(text)).bind(N=45), threads=1)
    assert "padded" not in str(kernel.loops)
    B = np.random.default_rng(0).integers(-9, 10, (45, 45))
    found: Any = kernel(A=0 * B, B=B)
    wrapped = np.pad(B, 1, mode="wrap")
    wanted = sum(wrapped[d : d + 45, e : e + 45] for d in range(3) for e in range(3))
    np.testing.assert_array_equal(found, 2 * wanted)


@pytest.mark.parametrize("line", ["A[i, j] = B[i, j + 2]", "A[i + 1, j] = A[i, j] + B[i, j]"])
def test_loops_from_the_end_have_lanes(line: str) -> None:
    body = f"\nfor i in range(N):\n    for j in range(N - 1, -1, -1):\n        {line}\n"
    text = HEAD.replace(", C: 'i64[N + 3]'", "") + indent(body, "    ")
    program = read_nest(define(text)).bind(N=45)
    kernel = poly.compile(program, threads=1)
    assert "vector" in str(kernel.loops)
    values = arrays(program)
    np.testing.assert_array_equal(kernel(**values), run_program(program, values)["A"])


@pytest.mark.parametrize("text", ["y[p[a],b] = u[a,b]", "y[p[a],b] += u[a,b]", "y[p[a],b] max= u[a,b]"])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_written_where_data_say_are_in_lanes(text: str, threads: int) -> None:
    """Four whole vectors of the elements: places of 8 bytes, the same in all lanes, count for nothing."""
    program = poly.parse(text, dtypes={"p": "i64"}, p=(50,), u=(50, 37), y=(40, 37))
    update = str(schedule_for_cpu(program, AVX2).lower()).split("for a in")[1]
    assert "range(0, 32) vector" in update
    random = np.random.default_rng(1)
    p, u = random.permutation(50)[:50] % 40, random.integers(-9, 9, (50, 37)).astype(np.float32)
    (expected,) = run_program(program, {"p": p, "u": u}).values()
    assert np.array_equal(poly.compile(program, threads=threads)(p=p, u=u), expected)


@pytest.mark.parametrize("text", ["y[b,p[a]] += u[b,a]", "y[p[a],p[b]] += u[a,b]", "y[p[a],b] += u[a,c]*v[c,b]"])
def test_what_data_scatter_is_right(text: str) -> None:
    shapes: dict[str, Any] = {"y": (40, 40), "p": (30,), "u": (30, 8) if "v" in text else (30, 30)}
    shapes |= {"v": (8, 40)} if "v" in text else {"y": (30, 40)} if "y[b," in text else {}
    program = poly.parse(text, dtypes={"p": "i64"}, **shapes)
    random = np.random.default_rng(1)
    arrays = {n: random.integers(-9, 9, e).astype(np.float32) for n, e in shapes.items() if n in "uv"}
    arrays["p"] = random.permutation(40)[:30]
    (expected,) = run_program(program, arrays).values()
    assert np.array_equal(poly.compile(program)(**arrays), expected)
