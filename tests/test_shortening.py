"""Loops that end early at a place that is known: what they leave out is wanted by nobody, else they are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import poly
from poly.errors import IllegalEdit, ParseError, ScheduleError
from poly.interp import run_program
from poly.loops import For
from poly.program import Program
from poly.scheduling.schedule import Schedule
from poly.sets import SET
from poly.text import parse_loops

pytest.importorskip("onnx")

if TYPE_CHECKING:
    import onnx

# Sums of what lies up to the diagonal; of the rest it is left open whether it is added (here zeros).
SUMS = """
program sums
input x: f32[12, 16]
temporary e: f32[12, 16]
output y: f32[12]
E[i, j]: e[i, j] = select(index(j) <= index(i), x[i, j], 0.0) where 0 <= i < 12 and 0 <= j < 16
I[i]: y[i] = f32(0) where 0 <= i < 12
S[i, j]: y[i] += e[i, j] where 0 <= i < 12 and 0 <= j < 16 optional j >= i + 1
"""


def blocked() -> Schedule:
    schedule = Schedule(poly.parse(SUMS)).tile({"E.i": 4, "E.j": 4}).tile({"S.i": 4, "S.j": 4})
    return schedule.reorder("E.i.o", "E.j.o", "E.i.p", "E.j.p").reorder("S.i.o", "S.j.o", "S.i.p", "S.j.p")


def ends(schedule: Schedule) -> list[str]:
    return [str(n.ends[0]) for n in schedule.lower().nodes() if isinstance(n, For) and n.ends]


def shortened() -> Schedule:
    return blocked().shorten("S.j.o", "S.i.o + 1").shorten("E.j.o", "E.i.o + 1")


def test_what_may_be_left_out_and_what_only_that_reads() -> None:
    schedule = shortened()
    assert ends(schedule) == ["E.i.o + 1", "S.i.o + 1"]
    x = np.random.default_rng(0).standard_normal((12, 16), dtype=np.float32)
    x[0, 4:] = np.nan  # nobody looks at it: by the program the sum could be this, too
    expected = np.array([x[i, : i + 1].sum(dtype=np.float64) for i in range(12)])
    found = poly.compile(schedule.source, schedule=schedule, threads=1)(x)
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=1e-5)
    by_points = run_program(schedule.source, {"x": x})["y"]
    np.testing.assert_allclose(np.asarray(by_points, np.float32), expected, rtol=1e-5)


def test_what_is_wanted_is_not_left_out() -> None:
    with pytest.raises(IllegalEdit, match="what S writes"):
        blocked().shorten("S.j.o", "S.i.o")
    with pytest.raises(IllegalEdit, match="what E writes, which S reads"):
        blocked().shorten("E.j.o", "E.i.o + 1")
    with pytest.raises(IllegalEdit, match="what E writes, which S reads"):
        blocked().shorten("S.j.o", "S.i.o + 2").shorten("E.j.o", "E.i.o + 1")
    text = SUMS.replace(" optional j >= i + 1", "")
    plain = Schedule(poly.parse(text)).tile({"S.i": 4, "S.j": 4}).reorder("S.i.o", "S.j.o", "S.i.p", "S.j.p")
    with pytest.raises(IllegalEdit, match="what S writes"):
        plain.shorten("S.j.o", "S.i.o + 1")
    seen = Schedule(poly.parse(SUMS.replace("temporary e", "output e"))).tile({"E.i": 4, "E.j": 4})
    with pytest.raises(IllegalEdit, match="what E writes"):
        seen.reorder("E.i.o", "E.j.o", "E.i.p", "E.j.p").shorten("E.j.o", "E.i.o + 1")


def test_the_witness_is_a_term_that_is_wanted() -> None:
    schedule = Schedule(poly.parse("y[i] += x[i, j] optional j >= i + 1", x=(8, 8)))
    with pytest.raises(IllegalEdit, match=r"witness: (y_update\[i=(\d), j=\2\]) -> \1"):
        schedule.shorten("j", "y_update.i")


def test_what_is_no_end_is_refused() -> None:
    with pytest.raises(ScheduleError, match="names i"):
        blocked().shorten("S.j.o", "i + 1")
    with pytest.raises(ScheduleError, match="not affine"):
        blocked().shorten("S.j.o", "S.i.o*S.i.o")
    with pytest.raises(ScheduleError, match="not serial"):
        blocked().unroll("S.j.o").shorten("S.j.o", "S.i.o + 1")


def test_an_end_differs_between_copies() -> None:
    """The first of an unrolled loop's copies took its inner loop's end for that of all."""
    text = "y[i] += x[i, j] optional j >= i"
    program = poly.parse(text, x=(8, 8))
    x = np.tril(np.arange(64, dtype=np.float32).reshape(8, 8), -1)
    schedule = Schedule(program).shorten("j", "y_update.i").unroll("y_update.i")
    found = poly.compile(program, schedule=schedule, threads=1)(x)
    np.testing.assert_array_equal(np.asarray(found), x.sum(1))


def test_an_end_of_a_loop_with_one_iteration() -> None:
    """It lost its end with its loop: what only it read, others had left out."""
    program = poly.parse("y[i] += x[i, j] optional j >= i + 1", x=(24, 24))
    schedule = Schedule(program).tile({"y_update.i": 8}).split("j", 16).tile({"j.hi": 8})
    schedule = schedule.shorten("j.hi.o", "y_update.i.o + 1")
    x = np.arange(576, dtype=np.float32).reshape(24, 24)
    expected = x[:, :16].sum(1) + np.where(np.arange(24) >= 16, x[:, 16:].sum(1), 0)
    x[:16, 16:] = np.nan
    found = poly.compile(program, schedule=schedule, threads=1)(x)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert Schedule.parse(str(schedule)).lower() == schedule.lower()


def test_an_end_beyond_64_bits_is_refused() -> None:
    """Native code went round: rows from 8 on were left out."""
    schedule = Schedule(poly.parse("y[i] += x[i, j] optional j >= 8*i", x=(40, 8)))
    assert ends(schedule.shorten("j", f"{2**48}*y_update.i")) == ["281474976710656*y_update.i"]
    for at in (f"{2**60}*y_update.i", f"{2**60}*y_update.i // 3"):
        with pytest.raises(IllegalEdit, match="larger than native code counts"):
            schedule.shorten("j", at)
    with pytest.raises(IllegalEdit, match="larger than native code counts"):
        schedule.shorten("j", f"{2**48}*y_update.i").shift("y_update", "y_update.i", 2**20)


def test_an_end_is_written_in_one_way() -> None:
    schedule = Schedule(poly.parse("y[i] += x[i, j] optional j >= i", x=(8, 8)))
    odd = schedule.shorten("j", "(y_update.i) # its row\n")
    assert odd == schedule.shorten("j", "y_update.i") == Schedule.parse(str(odd))


def test_texts_and_later_edits() -> None:
    schedule = shortened()
    assert Schedule.parse(str(schedule)) == schedule
    assert poly.parse(str(schedule.source)) == schedule.source
    loops = schedule.lower()
    assert parse_loops(str(loops)) == loops
    with pytest.raises(ParseError, match="only a serial loop ends"):
        parse_loops(str(loops).replace("ends (", "parallel ends (", 1))
    with pytest.raises(ParseError, match="may be left out"):
        poly.parse(SUMS.replace("S[i, j]: y[i] +=", "S[i, j]: y[i] ="))
    assert ends(schedule.tile({"E.i.o": 2}).tile({"S.i.o": 2})) == []  # other loops around: all of them run


def test_another_domain_takes_it_back() -> None:
    program = poly.parse(SUMS)
    s = program.statement["S"]
    assert len(s.spare) == 1
    assert replace(s, domain=s.domain.lower_bound_val(SET, 0, 1)).spare == ()
    assert replace(s, iterators=("j", "i")).spare == ()


def causal(heads: int, steps: int, width: int) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    shape = [1, heads, steps, width]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkvy"]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    graph = helper.make_graph([node], "causal", values[:3], values[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    steps = q.shape[2]
    scores = np.einsum("nhsd,nhtd->nhst", q.astype(np.float64), k) / np.sqrt(q.shape[3])
    weights = np.exp(np.where(np.tri(steps, dtype=bool), scores - scores.max(-1, keepdims=True), -np.inf))
    return np.einsum("nhst,nhtd->nhsd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(("heads", "steps", "threads"), [(2, 512, 1), (3, 500, 2), (1, 197, 1), (2, 7, 1)])
def test_causal_attention(heads: int, steps: int, threads: int) -> None:
    rng = np.random.default_rng(steps)
    q, k, v = (rng.standard_normal((1, heads, steps, 32), dtype=np.float32) for _ in range(3))
    engine = poly.compile(causal(heads, steps, 32), threads=threads)
    (found,) = engine.run({"q": q, "k": k, "v": v}).values()
    np.testing.assert_allclose(np.asarray(found, np.float32), attended(q, k, v), atol=2e-6)


def test_blocks_of_rows_stop_at_the_diagonal() -> None:
    program: Program = poly.from_onnx(causal(12, 512, 64)).to_program()
    schedule = poly.compile(program, threads=1).schedule
    assert schedule is not None
    assert len(ends(schedule)) >= 5  # two pieces of each product, and the passes along rows
    assert all(" + " in e for e in ends(schedule))
