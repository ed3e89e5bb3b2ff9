"""Python loop nests: what they mean, against Python itself, and what is refused, with its place in the file."""
# ruff: noqa: F722, F821, UP037 (texts in annotations are shapes, not types)

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings

import poly
from poly.errors import ParseError
from poly.expr import Const
from poly.frontend.nest import Array, Nest, f32, f64, i32, nest, read_nest
from poly.interp import run_program
from poly.text import parse_program
from tests.nest_texts import SIZES, arrays, define, nest_texts

Numbers = npt.NDArray[np.number]
Matrix = Annotated[Array, "f64[N, N]"]
EPSILON = 0.25
HALF = 2


def agrees(
    nested: Nest[..., None], sizes: dict[str, int], values: Mapping[str, Numbers], compiled: bool = True
) -> None:
    """The interpreter and compiled code do what the function does on the same arrays."""
    wanted = {name: a.copy() for name, a in values.items()}
    changed = {t.name for t in nested.program.outputs}
    nested.python(**sizes, **{name: a if a.ndim or name in changed else a.item() for name, a in wanted.items()})
    program = nested.program.bind(**{n: v for n, v in sizes.items() if n in nested.program.parameters})
    found = [run_program(program, values, vectorised=False)]
    if compiled:
        out = [values[t.name].copy() for t in program.outputs]
        kernel = poly.compile(program)
        kernel(*[values[t.name] for t in program.inputs], out=out if len(out) > 1 else out[0])
        found.append({t.name: a for t, a in zip(program.outputs, out, strict=True)})
    for result in found:
        for name, array in result.items():
            tolerance = 1e-6 if array.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(np.float64(array), np.float64(wanted[name]), rtol=tolerance)
    assert parse_program(str(program)) == program


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).uniform(1, 2, shape).astype(dtype)


# ---- what nests mean


def test_triangle_and_roles() -> None:
    @nest
    def f(N: int, alpha: float, L: Matrix, x: f64[Array, "N"]):
        for i in range(N):
            for j in range(i):
                x[i] -= alpha * L[i, j] * x[j]
            x[i] = x[i] / L[i, i]

    assert [(t.name, t.role, t.dtype) for t in f.program.tensors] == [
        ("alpha", "input", "f64"), ("L", "input", "f64"), ("x", "inout", "f64"),
    ]  # fmt: skip
    assert [s.path for s in f.program.statements] == [(0, "i", 0, "j"), (0, "i", 1)]
    assert [s.combiner.symbol if s.combiner else "" for s in f.program.statements] == ["+", ""]
    agrees(f, {"N": 6}, {"alpha": np.array(0.5), "L": numbers(6, 6), "x": numbers(6, seed=1)})


def test_loops_backwards_and_with_steps() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"]):
        for i in range(N - 2, -1, -1):
            a[i] = a[i + 1] * b[i]
        for i in range(N - 1, 0, -2):
            b[i] = b[i - 1] + a[i]
        for i in range(1, N, 3):
            for j in range(i, max(0, i - 2), -1):
                a[j] = a[j - 1] + b[i]

    agrees(f, {"N": 9}, {"a": numbers(9), "b": numbers(9, seed=1)})


def test_shapes_of_numbers() -> None:
    @nest
    def fixed(x: f32[Array, 4], y: f32[Array, 2, 3]):
        for i in range(len(x)):
            x[i] += y[1, 2]

    assert [t.extents({}) for t in fixed.program.inputs] == [(4,), (2, 3)]


def test_conditions() -> None:
    @nest
    def f(N: int, a: f64[Array, "N, N"]):
        for i in range(N):
            for j in range(N):
                if i < j and (i + j) % 3 != 0:
                    a[i, j] = 1.0
                elif i == j or not 0 < i < N - 1:
                    a[i, j] *= 2.0
                    a[i, j] -= 1.0
                else:
                    a[i, j] = a[j, i]

    agrees(f, {"N": 7}, {"a": numbers(7, 7)})


def test_bounds_that_are_extremes() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"]):
        for i in range(N):
            for j in range(max(0, i - 2), min(N, i + 3)):
                b[i] += a[j]

    agrees(f, {"N": 8}, {"a": numbers(8), "b": numbers(8, seed=1)})


def test_scalars_and_functions() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"]):
        for i in range(N):
            s = 0.0
            for j in range(i):
                s += a[j]
            largest = max(a[i], s, 1.0)
            b[i] = sqrt(abs(s - largest)) + np.exp(-a[i]) + largest**2 + a[i] ** 0.5 + EPSILON

    assert [(t.name, t.rank, t.role) for t in f.program.tensors][2:] == [("s", 1, "temporary")]
    agrees(f, {"N": 6}, {"a": numbers(6), "b": numbers(6)})


def test_conditional_values_read_only_what_they_take() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"]):
        for i in range(N):
            b[i] = (a[i - 1] if i >= 1 else 0.0) + (a[i + 1] if i + 1 < N else a[0]) + (1.0 if a[i] > 1.5 else 2.0)

    first, last = (r for r in f.program.statements[0].reads if r.guard and str(r.index[0]) != "0")
    assert first.fill == last.fill == Const(0.0)
    agrees(f, {"N": 6}, {"a": numbers(6), "b": numbers(6)})


def test_local_arrays() -> None:
    @nest
    def f(N: int, M: int, a: f32[Array, "N, M"], b: f32[Array, "N"]):
        sums = np.zeros(N + 1, dtype=np.float32)
        copy = np.empty_like(a)
        for i in range(N):
            for j in range(M):
                copy[i, j] = a[i, j] * 2
                sums[i + 1] += copy[i, j]
        for i in range(N):
            b[i] = sums[i + 1] - sums[0]

    temporaries = {t.name: (t.dtype, [str(e) for e in t.shape]) for t in f.program.with_role("temporary")}
    assert temporaries == {"sums": ("f32", ["N + 1"]), "copy": ("f32", ["N", "M"])}
    agrees(f, {"N": 4, "M": 5}, {"a": numbers(4, 5, dtype="float32"), "b": numbers(4, dtype="float32")})


def test_names_for_affine_expressions_and_shapes() -> None:
    @nest
    def f(a: f64[Array, "N, M"], b: f64[Array, "M"]):
        rows, columns = a.shape
        last: int = rows - 1
        for j in range(columns):
            k = columns - 1 - j
            for i in range(len(a)):
                b[k] += a[last - i, j] + k * HALF

    assert f.program.parameters == ("N", "M")
    agrees(f, {}, {"a": numbers(3, 4), "b": numbers(4)})


def test_assertions_are_the_context() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"]):
        assert N >= 3
        a[2] = a[0] + a[1]

    with pytest.raises(poly.PolyError):
        f.program.bind(N=2)
    agrees(f, {"N": 3}, {"a": numbers(3)})


def test_dtypes_meet_as_in_numpy() -> None:
    @nest
    def f(N: int, a: f32[Array, "N"], n: i32[Array, "N"], out: f64[Array, "N"]):
        for i in range(N):
            n[i] += 2.7
            out[i] = n[i] / 2 + i / N + a[i] * 0.5 + n[i] * a[i] + (n[i] if n[i] > i else i)
            out[i] += float(n[i]) * (i + 1)

    values = {"a": np.array([1, 2, 4, 8], "f4"), "n": np.array([1, -3, 5, 7], "i4"), "out": np.zeros(4)}
    agrees(f, {"N": 4}, values)


def test_integers_stay_exact() -> None:
    @nest
    def f(N: int, n: i32[Array, "N, N"]):
        for k in range(N):
            for i in range(N):
                for j in range(N):
                    n[i, j] = min(n[i, j], n[i, k] + n[k, j])

    assert f.program.statements[0].combiner is not None
    agrees(f, {"N": 5}, {"n": np.random.default_rng(0).integers(1, 50, (5, 5)).astype("i4")})


def test_exact_keeps_order_and_rounding() -> None:
    def f(N: int, a: f64[Array, "N"], s: f64[Array, ""]):
        for i in range(N):
            s[()] += a[i] * a[i]

    loose, exact = read_nest(f).statements[0], read_nest(f, exact=True).statements[0]
    assert (loose.reorder, loose.contract) == (True, True)
    assert (exact.reorder, exact.contract) == (False, False)
    assert nest(exact=True)(f).program.statements[0].reorder is False


def test_an_array_of_rank_0_is_changed_in_place_and_not_rebound() -> None:
    @nest
    def running(N: int, s: f64[Array, ""], A: f64[Array, "N"]):
        for i in range(N):
            s += A[i]
            s /= 2  # type: ignore[operator]
            A[i] = s

    assert [(t.name, t.role) for t in running.program.tensors] == [("s", "inout"), ("A", "inout")]
    agrees(running, {"N": 5}, {"s": np.array(3.0), "A": np.arange(5.0)})

    def rebound(N: int, s: f64[Array, ""], A: f64[Array, "N"]):
        for i in range(N):
            s = s + A[i]

    with pytest.raises(ParseError, match=r"'s' is an argument: assigning it does not reach the caller[^!]*s\[\(\)\]"):
        read_nest(rebound)


def test_it_stays_a_function() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"]):
        """Doubles."""
        for i in range(N):
            a[i] *= 2.0

    values = np.ones(3)
    f(3, values)
    f.python(3, values)
    assert values.tolist() == [4, 4, 4] and f.__doc__ == "Doubles." and f.__name__ == "f"
    with pytest.raises(AttributeError, match=r"a nest has no 'bind', its program has: f\.program\.bind$"):
        getattr(f, "bind")(N=3)  # noqa: B009 (type checkers know it, too)
    assert not hasattr(f, "bind") and not hasattr(f, "tile")


@given(nest_texts())
@settings(derandomize=True, max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_nests(text: str) -> None:
    function = define(text)
    wanted, values = arrays(), arrays()
    with np.errstate(all="ignore"):
        function(**SIZES, **wanted)
    program = read_nest(function)
    found = run_program(program.bind(**SIZES), {t.name: values[t.name] for t in program.inputs}, vectorised=False)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=f"{text}\n{program}")
    assert parse_program(str(program)) == program


# ---- what is refused

REFUSED = {
    "x[i / 2] = 0.0": ("i / 2 is not affine", "i / 2"),
    "x[1e400] = 0.0": ("1e309 is not affine", "1e400"),
    "x[y[i] + 1] = 0.0": ("a subscript is an integer, y[i] + 1 is f64", "y[i] + 1"),
    "x[y[i]] = 0.0": ("a subscript is an integer, y is f64", "y[i]"),
    "x[i + 1] = 0.0": ("x[i + 1] is outside its shape (N): S0[i=0] with N=1", "x[i + 1]"),
    "y[i - 1] = x[i - 1]": ("is outside its shape", "x[i - 1]"),
    "y[i] = x[(3 * i) % N]": ("x[(3 * i) % N] may go around more than once: ", "x[(3 * i) % N]"),
    "y[i] = A[(i + 1) % N, abs(i - 1)]": ("A[-N + i + 1, -i + 1] is outside its shape (N, N): ", "A["),
    "y[i] = x[(i + 2 * N) % N]": ("x[(i + 2 * N) % N] may go around more than once: ", "x["),
    "x[i, i] = 0.0": ("x has rank 1, it is subscripted with 2", "x[i, i]"),
    "x[1:] = 0.0": ("a slice", "x[1:]"),
    "z[i] = 0.0": ("'z' is not an array of this nest", "z[i]"),
    "x[i] = z": ("'z' has no value here", "z"),
    "x[i] = y": ("y has rank 1: subscript it", "y"),
    "x[i] = foo(y[i])": ("unknown function 'foo'", "foo"),
    "x[i] = sqrt(y[i], 2)": ("sqrt takes 1 argument, not 2", "sqrt"),
    "x[i] = [1.0]": ("has no meaning in a nest", "[1.0]"),
    "x[i] = y[i] @ y[i]": ("has no meaning in a nest", "y[i] @"),
    "x[i] = 'a'": ("has no meaning in a nest", "'a'"),
    "alpha = 2.0": ("'alpha' is an argument", "alpha"),
    "N = 2.0": ("'N' is a loop variable or a size", "N = "),
    "x = 2.0": ("x is an array", "x = "),
    "x[i], y[i] = y[i], x[i], 0.0": ("each target has a value of its own", "x[i], y[i] ="),
    "t += 1.0": ("'t' has no value here", "t +="),
    "while i: pass": ("a while loop", "while"),
    "return x": ("a nest returns nothing", "return"),
    "break": ("a break that data do not decide", "break"),
    "continue": ("a continue without a condition", "continue"),
    "print(x)": ("a nest calls nothing for its effect: print(x)", "print"),
    "x.fill(0)": ("x.fill(0) changes x as a whole", "x.fill"),
    "for j in x: x[i] = 0.0": ("loops run over range", "x: x"),
    "for j in range(y[i]): x[i] = 0.0": ("is data, a range ends at sizes", "y[i])"),
    "for i in range(3): x[i] = 0.0": ("the name 'i' is taken", "i in"),
    "for j in range(0, N, N): x[i] = 0.0": ("the step of a range is a number, as the places by N", "N): x"),
    "if y[i] > 0: t: float = 0.0": ("the condition y[i] > 0 depends on data", "y[i] > 0"),
    "assert N > 2": ("before the loops", "assert"),
    "t = np.empty(i)": ("changes with a loop", "i)"),
    "x[j] = 0.0": ("'j' is not a loop variable or a size here", "j]"),
    "if N in x: x[i] = 0.0": ("depends on data", "N in x"),
    "if i in range(2): x[i] = 0.0": ("conditions compare with", "i in"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_refused_with_its_place(line: str) -> None:
    message, at = REFUSED[line]
    head = "# a comment\ndef f(N: int, alpha: float, x: 'f64[N]', y: 'f64[N]', A: 'f64[N, N]'):\n"
    function = define(f"{head}    for i in range(N):\n        {line}\n")
    with pytest.raises(ParseError) as caught:
        nest(function)
    shown = str(caught.value)
    assert message in shown and "nests_" in shown and ".py:4:" in shown, shown
    lines = shown.splitlines()
    source = next(k for k, text in enumerate(lines) if text.startswith("  line 4: "))
    if at:
        caret = lines[source + 1].index("^")
        assert lines[source][caret:].startswith(at), shown


HINTS = {  # what is written, what the hint says, and the line that follows it
    "(s, t), u = (x[i], y[i]), 0.0": ("no tuples in tuples: a, b, c = x[i], y[i], 0.0", "s, t, u = x[i], y[i], 0.0"),
    "s, *t = x[i], y[i]": ("names and elements", "s, t = x[i], y[i]"),
    "x[i], y[i] = y[i]": ("as many values: x[i], y[i] = ..., ...", "x[i], y[i] = y[i], x[i]"),
    "x[i / 2] = 0.0": ("i // 2", "x[i // 2] = 0.0"),
    "for j in range(i % N): x[j] = 0.0": ("an integer in place of N", "for j in range(i % 1): x[j] = 0.0"),
    "x[-1] = 0.0": ("x[N - 1]", "x[N - 1] = 0.0"),
    "print(x[i])": ("remove the line", "x[i] = 0.0"),
    "if i < 2: break": ("end the range earlier", "for j in range(2): x[i] = 0.0"),
    "while x[i] < y[i]: x[i] += 1.0": (
        "for trip in range(100): with if not x[i] < y[i]: break as its first line",
        "for trip in range(100):\n            if not x[i] < y[i]: break\n            x[i] += 1.0",
    ),
    "x[i] @= y[i]": ("C[i, j] += A[i, k] * B[k, j]", "x[i] += x[i] * y[i]"),
    "x[i + 1] = y[i]": ("loops in which i + 1 < N", "if i + 1 < N: x[i + 1] = y[i]"),
    "x[i] = y[i - 1]": ("y[i - 1] if i - 1 >= 0 else 0.0", "x[i] = y[i - 1] if i - 1 >= 0 else 0.0"),
    "x[i] = y[N]": ("a subscript below N", "x[i] = y[N - 1]"),
    "x[i] = f64(y[i], 2)": ("f64(x)", "x[i] = f64(y[i])"), "x[i] = ~y[i]": ("integers or truths", "x[i] = ~i64(y[i])"),
    "x[i] = max(y[i])": ("max(x, y)", "x[i] = max(x[i], y[i])"),
    "x[i] = np.srqt(y[i])": ("sqrt(...)", "x[i] = np.sqrt(y[i])"),
    "x[i] = np.hypot(y[i])": ("hypot(x, y)", "x[i] = np.hypot(y[i], y[i])"),
    "x[i] = np.sinc(y[i])": ("tanh", "x[i] = np.tanh(y[i])"),
    "x[i] = np.sum(y)": ("s += B[k]", "s = 0.0; s += y[i]"),
    "for j in range(N / 2): x[j] = 0.0": ("N // 2", "for j in range(N // 2): x[j] = 0.0"),
    "for j in range(int(N / 2)): x[j] = 0.0": ("N // 2", "for j in range(N // 2): x[j] = 0.0"),
    "for j in range(0, 1, 0): x[j] = 0.0": ("-1 or 2", "for j in range(0, 1, 2): x[j] = 0.0"),
    "for k, v in enumerate(y): x[k] = v": ("for i in range(len(y))", "for k in range(len(y)): x[k] = y[k]"),
    "for j in prange(N): x[j] = 0.0": ("for i in range(N)", "for j in range(N): x[j] = 0.0"),
    "for j in reversed(range(N)): x[j] = 0.0": ("range(N - 1, -1, -1)", "for j in range(N - 1, -1, -1): x[j] = 0.0"),
    "x[0:i] = 0.0": ("for k in range(0, i)", "for k in range(0, i): x[k] = 0.0"),
    "import math": ("outside of the function", "x[i] = 0.0"),
    "if i is 2: x[i] = 0.0": ("== in place of is", "if i == 2: x[i] = 0.0"),
    "x[i, 0] = 0.0": ("x[i]", "x[i] = 0.0"),
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("line", HINTS)
def test_what_a_hint_says_works(line: str) -> None:
    hint, instead = HINTS[line]
    head = "import numpy as np\ndef f(N: int, x: 'f64[N]', y: 'f64[N]'):\n    for i in range(N):\n        "
    with pytest.raises(ParseError) as caught:
        nest(define(f"{head}{line}\n"))
    assert ".py:4:" in str(caught.value) and hint in (caught.value.hint or ""), str(caught.value)
    nest(define(f"{head}{instead}\n"))


def test_several_targets_get_values_that_were_found_before() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"], c: f64[Array, "N"]):
        old, new = 0.0, 1.0
        for i in range(N):
            a[i], held, b[i] = b[i], a[i] + b[i], old
            old, new = new, old + new
            if a[i] > 4:
                a[i], b[i] = [b[i], a[i]]
            [a[i], c[i]] = c[i], a[i]
            c[i] = last = held - c[i]
            c[i] *= last

    agrees(f, {"N": 7}, {"a": numbers(7), "b": numbers(7)[::-1].copy(), "c": numbers(7) + 3})


def test_a_local_that_names_a_place_stands_where_subscripts_and_ranges_have_it() -> None:
    @nest
    def f(N: int, x: f64[Array, "N"], y: f64[Array, "N"], z: f64[Array, "N"]):
        for i in range(N):
            left, right = max(i - 1, 0), (i + 1) % N
            first = max(0, i - 2)
            other = i - 1 if i > 0 else N - 1
            y[i] = x[right] - x[left] + right
            for j in range(first, i):
                y[i] += x[other] * x[j]
            z[i] += x[left]

    assert not f.program.with_role("temporary")
    agrees(f, {"N": 7}, {"x": numbers(7), "y": numbers(7), "z": numbers(7)})


def test_a_local_that_names_a_literal_takes_the_dtype_it_meets() -> None:
    """As numpy does with Python's numbers, which have no dtype of their own."""

    @nest(exact=True)
    def f(N: int, x: f32[Array, "N"], y: f32[Array, "N"], z: f64[Array, "N"], n: i32[Array, "N"]):
        third = 1 / 3
        two = 2
        for i in range(N):
            tenth = -0.1
            y[i] = tenth * x[i] + third
            z[i] = z[i] * tenth + n[i] * third
            n[i] = n[i] * two
            y[two - 2] += x[i]

    assert [t.name for t in f.program.tensors] == ["x", "y", "z", "n"]
    assert not any("f64" in str(s.body) for s in f.program.statements if s.write.tensor == "y")
    x = (np.arange(9) / 7).astype("f4")
    values = {"x": x, "y": x * 0, "z": x.astype("f8") + 1, "n": np.arange(9, dtype="i4")}
    agrees(f, {"N": 9}, values)
    wanted = np.float32(-0.1) * x + np.float32(1 / 3)
    assert poly.compile(f)(*values.values())[0][1:].tobytes() == wanted[1:].tobytes()


def test_a_local_that_is_read_elsewhere_has_a_dtype_of_its_own() -> None:
    @nest
    def f(N: int, x: f32[Array, "N"], y: f32[Array, "N"]):
        for i in range(N):
            tenth = 0.1
            y[i] = x[i] * tenth
        y[0] = tenth  # pyright: ignore[reportPossiblyUnboundVariable]

    assert [(t.name, t.dtype) for t in f.program.tensors if t.role == "temporary"] == [("tenth", "f64")]


def test_floors_and_remainders_by_negative_numbers() -> None:
    @nest
    def f(N: int, a: f64[Array, "N"], b: f64[Array, "N"]):
        assert N >= 3
        for i in range(N):
            a[-(i // -2)] += b[i]
            b[-(i % -3)] += a[i]

    agrees(f, {"N": 7}, {"a": numbers(7), "b": numbers(7)})


SIGNATURES = {
    "def f(x): x[0] = 1.0": "'x' has no annotation",
    "def f(*x: float): pass": "named arguments only",
    "def f(x: str): pass": "says neither a size nor dtype and shape",
    "def f(x: 'f64[N * M]'): x[0] = 1.0": "not affine in sizes",
    "def f(max: 'f64[N]'): max[0] = 1.0": "cannot name",
    "def f(N: int): pass": "assigns nothing",
    "def f(x: 'f64[N]', y: 'f64[x]'): x[0] = 1.0": "is not a size",
    "def f(N: int, x: 'f64[N]'):\n    assert N < 3 and N > 4\n    x[0] = 1.0": "no sizes satisfy",
    "def f(N: int, x: 'c64[N]'):\n    x[0] = x[0] if x[0] < 1.0 else 2.0": "",
}


@pytest.mark.parametrize("text", SIGNATURES)
def test_signatures(text: str) -> None:
    function = define(text)
    try:
        read_nest(function)
    except ParseError as error:
        assert SIGNATURES[text] in str(error)
    else:
        assert not SIGNATURES[text]


def test_text_that_is_not_there() -> None:
    module: dict[str, Callable[..., object]] = {}
    exec("def f(N: int): pass", module)
    with pytest.raises(ParseError, match="cannot be read"):
        nest(module["f"])
    with pytest.raises(ParseError, match="not a Python function"):
        nest(len)


def test_a_quotient_of_loop_variables_stays_one_beside_integers() -> None:
    text = "def f(N: int, x: 'i32[N]', z: 'f64[N]'):\n    for i in range(N):\n        z[i] = i / 2 + x[i] * (i / 4)\n"
    x = np.array([-7, 5, 3, -1], np.int32)
    expected = np.arange(4) / 2 + x * (np.arange(4) / 4)
    np.testing.assert_array_equal(poly.compile(read_nest(define(text)))(x, np.zeros(4)), expected)
