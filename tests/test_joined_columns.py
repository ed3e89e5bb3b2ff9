"""Columns of a contraction as one axis, with copies: the same results, and only where the model likes it."""

from __future__ import annotations

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.cpu_columns import with_columns
from poly.scheduling.cpu_contract import best_rated, least_cycles, least_of_plans
from poly.scheduling.cpu_facts import facts_of
from poly.scheduling.groups import groups_of
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.joined_columns import columns_of
from poly.scheduling.schedule import Schedule
from poly.text import parse_program
from tests.other_cpus import CPUS

Given = dict[str, tuple[int, ...]]
APART = "C[a,b,c,d] += A[a,e,c,f] * B[b,f,d,e]"


def arrays(program: Program) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {t.name: random.integers(-3, 4, t.extents(program.binding)).astype(t.dtype[0] + "4") for t in program.inputs}


def copies(program: Program) -> list[str]:
    moved = [s.write for s in program.statements if s.name.endswith("_copy")]
    return [f"{w.tensor}[{', '.join(map(str, w.index))}]" for w in moved]


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        (APART, {"A": (2, 3, 4, 5), "B": (6, 5, 7, 3)},
         [["A_columns[e, f, 4*a + c]", "C[a, b, c, d]"], ["B_columns[e, f, 7*b + d]", "C[a, b, c, d]"]]),
        ("C[a,b,c,d] += A[a,e,b,f] * B[d,f,c,e]", {"A": (2, 3, 4, 5), "B": (6, 5, 7, 3)},
         [["A_columns[e, f, 4*a + b]", "C[a, b, c, d]"], ["B_columns[e, f, 6*c + d]"],
          ]),
        ("C[a,c,b,d] += A[a,b,k] * B[k,c,d]", {"A": (3, 4, 5), "B": (5, 6, 7)},  # nothing of B moves
         [["A_columns[k, 4*a + b]", "C[a, c, b, d]"], ["C[a, c, b, d]"]]),
        ("C[x,a,d,c] += A[x,k,a] * B[k,x,c,d]", {"A": (2, 5, 3), "B": (5, 2, 6, 7)},  # of a batch
         [["B_columns[x, k, c + 6*d]"], ["C[x, a, d, c]"]]),
        ("C[a,c,b,e,d] += A[a,b,k] * B[d,k,c,e]", {"A": (3, 4, 5), "B": (2, 5, 6, 7)},  # three columns
         [["A_columns[k, 4*a + b]", "C[a, c, b, e, d]"], ["B_columns[k, 14*c + d + 2*e]", "C[a, c, b, e, d]"]]),
        ("C[a,c,d] max= A[a,k] + B[c,k,d]", {"A": (3, 5), "B": (6, 5, 7)}, [["B_columns[k, 7*c + d]"]]),
        ("C[i,j] += A[i,k] * B[k,j]", {"A": (3, 4), "B": (4, 5)}, []),  # one column each
        ("C[i,j,k] += A[i,l] * B[l,j,k]", {"A": (3, 4), "B": (4, 5, 6)}, [[]]),  # neighbours everywhere
        ("C[i,j,k] += A[i,l] * B[j,l+1,k]", {"A": (3, 4), "B": (5, 6, 7)}, []),  # a part of an axis
    ],
)  # fmt: skip
def test_every_operand_with_several_columns_can_have_them_as_one_axis(
    text: str, given: Given, found: list[list[str]]
) -> None:
    program = poly.parse(text, **given)  # pyright: ignore[reportArgumentType]
    inputs = arrays(program)
    (expected,) = run_program(program, inputs).values()
    joined = [way.joined() for way in columns_of(program)]
    assert [copies(p) for p in joined] == found
    for one in joined:
        moved = {t.name: inputs[t.name].reshape(t.extents({})) for t in one.inputs}
        (result,) = run_program(one, moved).values()
        assert np.array_equal(result.ravel(), expected.ravel())
        assert np.array_equal(np.asarray(poly.compile(one)(*moved.values())).ravel(), expected.ravel())
        assert str(parse_program(str(one))) == str(one)


def chosen(text: str, given: Given, cpu: str = "avx512") -> Program:
    return with_columns(poly.parse(text, **given), CPUS[cpu], 1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("size", [28, 20])
def test_windows_side_by_side_are_one_product_whose_result_is_interleaved(size: int) -> None:
    """As of a transposed convolution whose step is its size; what clears the result runs in another order."""
    text = "y[m, 2*h + i, 2*w + j] += x[c, h, w] * k[c, m, i, j]"
    apart = join_axes(poly.parse(text, x=(64, size, size), k=(64, 8, 2, 2)))
    product = with_columns(apart, CPUS["avx512"], 1)
    assert apart.statements[0].iterators != tuple(map(str, apart.statements[0].write.affine_index))
    assert copies(product) == ["y[m, h, i, w, j]"]  # with h and w as one loop where 20 fill vectors badly
    assert product.tensor["x"].extents({}) == ((64, 28, 28) if size == 28 else (64, 400))
    given = arrays(apart)
    (expected,) = run_program(apart, given).values()
    moved = {t.name: given[t.name].reshape(t.extents({})) for t in product.inputs}
    (result,) = run_program(product, moved).values()
    assert np.array_equal(result, expected)


def test_only_loops_that_waste_lanes_are_joined() -> None:
    sizes: Given = {"A": (20, 20, 20, 20), "B": (20, 20, 20, 20)}
    assert copies(chosen(APART, sizes)) == ["B_columns[e, f, 20*b + d]", "C[a, b, c, d]"]
    assert copies(chosen(APART, sizes, "sse")) == []  # 20 are five whole vectors
    assert copies(chosen(APART, {"A": (20, 20, 20, 20), "B": (20, 20, 32, 20)})) == []
    assert copies(chosen("C[a,b,c,d] += A[a,c] * B[b,d]", {"A": (20, 20), "B": (20, 20)})) == []  # copies take longer


@pytest.mark.parametrize(
    ("other", "columns", "joined"), [(8, 24, True), (8, 28, False), (14, 28, True), (6, 30, False)]
)
def test_joins_spare_cycles_and_lanes(other: int, columns: int, joined: bool) -> None:
    """Of 8: 6 % of the cycles, and 2 %. Of 14 and 6: 1/8 of the lanes, and 1/16, too few."""
    given: Given = {"A": (other,) * 4, "B": (other, other, columns, other)}
    assert bool(copies(chosen(APART, given))) == joined


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cpu", ["avx512", "sse"])
@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (APART, (24, 24, 24, 24, 24, 24)), (APART, (20, 30, 8, 12, 40, 16)), (APART, (64, 4, 64, 8, 48, 4)),
        ("C[a,b,c,d] += A[a,b,e] * B[f,e,c,d] * D[f]", (9, 17, 33, 20, 40, 3)),
        ("C[b,a,d,c] += A[a,e,c,f] * B[b,f,d,e]", (24, 12, 36, 20, 6, 6)),
    ],
)
def test_no_plan_takes_less_than_what_is_told_without_rating(
    text: str, sizes: tuple[int, ...], cpu: str, threads: int
) -> None:
    extent = dict(zip("abcdef", sizes, strict=True))
    axes = {"A": "aecf", "B": "bfde"} if "D" not in text else {"A": "abe", "B": "fecd", "D": "f"}
    program = poly.parse(text, **{t: tuple(extent[i] for i in own) for t, own in axes.items()})  # pyright: ignore[reportArgumentType]
    for one in (program, *(join_axes(way.joined()) for way in columns_of(program))):
        group = next(g for g in groups_of(one) if any(s.combiner is not None for s in g.statements))
        facts = facts_of(one, group, CPUS[cpu], threads)
        lanes = facts.lanes()
        rated = best_rated(facts, lanes) if lanes is not None else None
        if lanes is not None and rated is not None:
            assert least_cycles(facts) < least_of_plans(facts, lanes) <= rated.cycles


def test_a_schedule_with_joined_columns_can_be_used_again() -> None:
    program = poly.parse("C[a,b,c] += A[a,k] * B[b,k,c]", A=(40, 30), B=(20, 30, 20))
    inputs = arrays(program)
    (joined,) = (way.joined() for way in columns_of(program))
    expected = np.einsum("ak,bkc->abc", *inputs.values())
    for schedule in (Schedule(joined), Schedule.parse(str(Schedule(joined)))):
        kernel = poly.compile(program, schedule=schedule)
        assert np.array_equal(np.asarray(kernel(*inputs.values())), expected)


def test_a_constant_is_laid_out_when_compiling() -> None:
    program = poly.parse("C[a,b,c] += A[a,k] * B[b,k,c]", A=(40, 30), B=(20, 30, 20))
    inputs = arrays(program)
    loose = parse_program(str(program).replace("input B", "constant B"))
    (joined,) = (way.joined() for way in columns_of(loose))
    kernel = poly.compile(joined, constants={"B": inputs["B"]})
    found = np.asarray(kernel(inputs["A"])).reshape(40, 20, 20)
    assert np.array_equal(found, np.einsum("ak,bkc->abc", *inputs.values()))


def test_a_result_that_comes_in_is_not_moved() -> None:
    """It would have to be copied in, too."""
    inside = parse_program(str(poly.parse(APART, A=(2, 3, 4, 5), B=(6, 5, 7, 3))).replace("output C", "inout C"))
    updated = Program(inside.name, inside.tensors, inside.statements[1:])
    assert [*columns_of(updated)] == []
