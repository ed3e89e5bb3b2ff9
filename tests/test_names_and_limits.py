"""Cases found by trying to break it: names that meet generated ones, far-away iterations, odd literals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from poly.compiler import compile
from poly.errors import IllegalEdit, ParseError, PolyError, ScheduleError, UnsupportedError
from poly.expr import apply
from poly.frontend.notation import parse
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.program import Program
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_edit
from poly.text import parse_program

ONES = np.ones(9, np.float32)


def test_iterations_far_away_are_before_the_end_of_the_program() -> None:
    program = parse(
        """program p
input x: i64[4]
output Y: i64[8]
for i:
    A[i]: Y[2*i - 2000000000] = 1 where 1000000000 <= i < 1000000004
    B[i]: Y[2*i - 2000000000] = x[i - 1000000000] where 1000000000 <= i < 1000000004
    C[i]: Y[2*i - 1999999999] = 2 where 1000000000 <= i < 1000000004
"""
    )
    with pytest.raises(IllegalEdit):
        Schedule(program).promote("Y", "i", "l1", users=("A", "C"))
    Schedule(parse("C[i] = A[i] + 1", A=("N",))).tile(i=32).promote("C", "i.o", "l1")


@pytest.mark.parametrize("size", ["e0", "q_o"])
def test_sizes_named_like_generated_iterators(size: str) -> None:
    program = parse("C[q] = A[q]*2", A=(size,)).bind(**{size: 9})
    schedule = Schedule(program).tile(q=4).promote("A", "q.o", "dram")
    np.testing.assert_array_equal(compile(schedule)(ONES), 2 * ONES)


@pytest.mark.parametrize("target", ["cpu", "s16"])
def test_the_policies_meet_such_sizes_too(target: str) -> None:
    program = parse("C[i,k] += A[i,j]*B[j,k]", A=("e0", "e1"), B=("e1", "e2")).bind(e0=20, e1=18, e2=17)
    a, b = np.ones((20, 18), np.float32), np.ones((18, 17), np.float32)
    np.testing.assert_array_equal(compile(program, target)(a, b), a @ b)


def test_recomputation_meets_such_sizes_and_names() -> None:
    program = parse("T[q] = A[q] + 1; C[q] = T[q]*2", A=("C_set_q_o",)).bind(C_set_q_o=9)
    schedule = Schedule(program).tile({"C_set.q": 4}).recompute("T", "C_set.q.o")
    np.testing.assert_array_equal(compile(schedule)(ONES), 4 * ONES)
    Schedule(parse("T_R_i: Q[i] = A[i]; T: B[i] = A[i] + 1; R: C[i] = B[i]*Q[i]", A=(6,))).recompute("B", "R.i")
    Schedule(parse("C[i,i_o] = A[i,i_o]*2", A=(6, 6))).tile(i=2).promote("A", "i_o", "dram")


def test_a_tile_at_fused_loops_of_copies() -> None:
    """They are called by a number, as the dimension they walk."""
    copies = Schedule(parse("Z[i,k] += A[i,j]*B[j,k]", A=(4, 5), B=(5, 6))).promote("A", None, "l2")
    schedule = copies.promote("B", None, "l1").fuse("ld_B_l1.0", "ld_A_l2.0").promote("B_l1", "0", "l1")
    a, b = np.arange(20, dtype="f4").reshape(4, 5), np.arange(30, dtype="f4").reshape(5, 6)
    np.testing.assert_array_equal(compile(schedule)(a, b), a @ b)
    assert Schedule.parse(str(schedule)) == schedule


def test_a_choice_between_literals_takes_the_other_operands_dtype() -> None:
    kernel = compile(parse("C[i] = a[i] + (1 if i < 2 else 2)", a=(3,)))
    np.testing.assert_array_equal(kernel(np.ones(3, np.float32)), np.array([2, 2, 3], np.float32))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("f32(2**0.5)", 2**0.5), ("f32(7 % 2.5)", 2), ("f32(1/4)", 0.25), ("f32(2*1.5)", 3),
        ("f32(sqrt(2) + 3)", 2**0.5 + 3),
        ("f32(min(2, 1.5))", 1.5), ("f32(2 if x[i] > 0 else 1.5)", 2), ("f32(True + 2)", 3), ("f32(7//2)", 3),
        ("f32(1180591620717411303424*1)", 2.0**70), ("(3 if True < 2 else 4)", 3),
        ("f32(u64(18446744073709551615) // 4294967296)", 4294967295),
    ],
)  # fmt: skip
def test_literals_in_a_cast_or_comparison_have_one_dtype(body: str, value: float) -> None:
    program = parse(f"y[i] = x[i]*{body}", x=(9,))
    for found in (run_program(program, {"x": ONES})["y"], run_program(program, {"x": ONES}, vectorised=False)["y"],
                  run_loops(Schedule(program).lower(), {"x": ONES})["y"], compile(program)(ONES)):  # fmt: skip
        np.testing.assert_array_equal(found, np.full(9, value, np.float32))


def test_what_no_statement_writes_is_zero() -> None:
    result = compile(parse("y[i] = x[i] where i >= 3", x=(8,)))(np.ones(8, np.float32))
    np.testing.assert_array_equal(result, np.array([0, 0, 0, 1, 1, 1, 1, 1], np.float32))


def wrong_calls() -> list[object]:
    schedule = Schedule(parse("C[i,k] += A[i,j] * B[j,k]", A=(8, 6), B=(6, 4)))
    vector = schedule.reorder("C_update.i", "j", "C_update.k").tile({"C_update.k": 4}).vectorise("C_update.k.p")
    return [
        lambda: schedule.shift("C_update", "j", 1.5),  # type: ignore[arg-type]
        lambda: schedule.split("j", "a"),
        lambda: schedule.tile(j=10**30),
        lambda: schedule.skew("j", "C_update.i", 10**30),
        lambda: vector.prefetch("C_update.k.p", "C_update.i", 10**30),
    ]


@pytest.mark.parametrize("number", range(5))
def test_numbers_that_are_none(number: int) -> None:
    with pytest.raises(ScheduleError):
        wrong_calls()[number]()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["Min", "OR", "nan", "ceil", "infinity"])
def test_words_of_isl_in_any_case_are_refused(name: str) -> None:
    for text, shape in ((f"C[{name}] = A[{name}]", (5,)), ("C[i] = A[i]", (name,))):
        with pytest.raises(PolyError):
            parse(text, A=shape)


def test_a_size_is_an_int() -> None:
    program: Program = parse("C[i] = A[i]", A=("N",))
    with pytest.raises(PolyError):
        program.bind(N="3 or N = 4")  # type: ignore[arg-type]


def test_a_tile_that_needs_too_many_registers_is_not_used() -> None:
    program = parse("C[i] += A[i,j]*B[i,j]", A=(20, 17), B=(20, 17))
    a, b = np.ones((20, 17), np.float32), np.full((20, 17), 2, np.float32)
    np.testing.assert_array_equal(compile(program)(a, b), np.full(20, 34, np.float32))


@pytest.mark.parametrize("layout", [{"fold": {1: 2**62}}, {"block": {0: 2**31, 1: 2**31}}])
def test_buffers_beyond_all_addresses(layout: dict[str, dict[int, int]]) -> None:
    program = parse("C[i,j] += A[i,k]*A[j,k]", A=(6, 5))
    schedule = Schedule(program).promote("A", None, "l2", **layout)  # type: ignore[arg-type]
    with pytest.raises(PolyError, match="no memory for the buffers"):
        compile(schedule)(np.ones((6, 5), np.float32))


def test_temporaries_beyond_all_addresses() -> None:
    text = "program p(T) where T >= 8\ninput X: f32[8]\ntemporary Q: f32[T, T]\noutput Y: f32[8]\n"
    text += "S[i]: Q[i, i] = X[i] where 0 <= i < 8\nR[i]: Y[i] = Q[i, i] where 0 <= i < 8\n"
    program, ones = parse(text), np.ones(8, np.float32)
    kernel = compile(program)
    np.testing.assert_array_equal(kernel(ones, T=8), ones)
    for size in (2**31, 2**32, 2**62):
        with pytest.raises(PolyError, match="no memory for the buffers"):
            kernel(ones, T=size)
        with pytest.raises(PolyError):
            compile(program.bind(T=size))(ones)
    with pytest.raises(PolyError, match="sizes have 64 bits"):
        kernel(ones, T=2**64)


def test_numpy_integers_are_in_the_text_as_numbers() -> None:
    zero, one, two = (cast(int, np.int64(k)) for k in range(3))
    schedule = Schedule(parse("C[i,j] += A[i,k]*A[j,k]", A=(6, 5)))
    schedule = schedule.promote("A", "C_update.i", "l2", name="B", reads=(zero,), order=(one, zero))
    schedule = schedule.promote("A", "C_update.i", "l2", reads=(one,), fold={one: two})
    schedule = schedule.double_buffer("B", "C_update.i", two)
    assert str(Schedule.parse(str(schedule))) == str(schedule)


@pytest.mark.parametrize("body", ["1 if x[i] > 0 else " * 300 + "x[i]", "**".join(["x[i]"] * 300), "-" * 2000 + "x[i]"])
def test_expressions_beyond_pythons_recursion(body: str) -> None:
    with pytest.raises(PolyError, match="nested too deeply"):
        compile(parse(f"y[i] = {body}", x=(9,)))


SIGNS, BRACKETS = "-" * 600, "(" * 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        f"program p(N) where N >= {SIGNS}4\ninput x: f32[N]\noutput y: f32[N]\nS[i]: y[i] = x[i] where 0 <= i < N",
        f"input x: f32[{SIGNS * 4}4]\noutput y: f32[4]\nS[i]: y[i] = x[i] where 0 <= i <= 3",
        f"input x: f32[4]\noutput y: f32[4]\nS[i]: y[{SIGNS}i] = x[i] where 0 <= i <= 3",
        f"input x: f32[4]\noutput y: f32[4]\nS[i]: y[i] = x[i] where 0 <= i < {SIGNS}3",
        f"input x: f32[4]\noutput y: f32[4]\nS[i]: y[i] = x[i] where 0 <= i <= 3 and {BRACKETS}",
        f"input x: f32[4]\noutput y: f32[4]\nS[i]: y[i] = x[i] where 0 <= i <= 3 and {'not ' * 1_000_000}i >= 0",
    ],
    ids=["sizes", "shape", "target", "condition", "brackets", "negations"],
)
@pytest.mark.parametrize("read", [parse, parse_program])
def test_texts_beyond_pythons_recursion_and_isls(read: Callable[[str], Program], text: str) -> None:
    with pytest.raises(ParseError, match="nested too deeply"):
        read(text)


@pytest.mark.parametrize("edit", [f"tile(sizes={{'i': {BRACKETS[:300]}", "tile(sizes={[]: 16})"])
def test_edits_that_are_none(edit: str) -> None:
    with pytest.raises(ParseError):
        parse_edit(edit, 1, edit)


@pytest.mark.parametrize(("name", "other"), [("µ", "μ"), ("ﬁ", "fi"), ("x²", "x2"), ("aᬃ", r"`\u1b03`")])
def test_names_that_python_reads_as_others(name: str, other: str) -> None:
    with pytest.raises(ParseError) as found:
        parse(f"# {name}\ny[i] = 2*{name}[i]", x=(4,))
    assert (found.value.hint, found.value.line) == (other, 2)


def test_names_of_any_letters() -> None:
    program = parse("input λ: f32[4]\ninput `a\\u1b03`: f32[4]\ngröße[i] = λ[i] + `a\\u1b03`[i]")
    assert [t.name for t in program.inputs] == ["λ", "aᬃ"]


def test_a_deep_expression_is_named_and_what_else_recurses_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse("y[i] = x[i] + x[i]; z[i] = y[i]", x=(9,))
    first, second = program.statements
    body = first.body
    for _ in range(320):
        body = apply("neg", body)
    with pytest.raises(UnsupportedError, match=f"^statement {first.name}: an expression is nested too deeply") as found:
        compile(replace(program, statements=(replace(first, body=body), second)))
    assert isinstance(found.value.__cause__, RecursionError)

    def endless(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("poly.compiler.check_initialised", endless)
    with pytest.raises(RecursionError):
        compile(program)




@pytest.mark.parametrize("body", ["x[i]*{}", "i64(x[i]) + {}", "(x[i] if i < {} else 0)", "f32(-{})"])
def test_literals_beyond_all_dtypes(body: str) -> None:
    with pytest.raises(PolyError, match="beyond the range of f64"):
        parse("y[i] = " + body.format("9" * 400), x=(9,))
