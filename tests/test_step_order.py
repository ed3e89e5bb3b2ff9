"""The reduction loops of a contraction follow the memory of the operand that is broadcast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.interp import run_program
from poly.scheduling.step_order import with_steps_in_order


@pytest.mark.parametrize(
    ("text", "given", "order"),
    [
        ("C[e,c] += A[a,b,c,d] * B[d,b,e,a]", {"A": (4, 3, 5, 6), "B": (6, 3, 7, 4)}, "b d a"),
        ("C[e,c] += A[d,b,e,a] * B[a,b,c,d]", {"A": (6, 3, 5, 4), "B": (4, 3, 7, 6)}, "b d a"),
        ("C[e,c] += A[e,d,b,a] * B[a,b,d,c]", {"A": (5, 6, 3, 4), "B": (4, 3, 6, 7)}, ""),  # B need not be packed
        ("C[i,c] += A[k,j,c] * B[i,j,k]", {"A": (6, 5, 4), "B": (8, 5, 6)}, "j k"),
        ("C[x,i,c] += A[x,k,j,c] * B[x,i,j,k]", {"A": (2, 6, 5, 4), "B": (2, 8, 5, 6)}, "j k"),
        ("C[i,c] += A[j,k,c] * B[i,j,k]", {"A": (5, 6, 4), "B": (8, 5, 6)}, ""),  # as it is
        ("C[i,c] += A[k,j,c] * B[i,j,k]", {"A": (6, 5, 40), "B": (2, 5, 6)}, ""),  # little is broadcast: as A lies
        ("C[i,c] += A[j,k,c] * B[i,k,j]", {"A": (5, 6, 40), "B": (2, 6, 5)}, "j k"),
        ("C[e,d,c] += A[d,a,b] * B[e,b,c,a]", {"A": (2, 5, 6), "B": (8, 6, 7, 5)}, "b a"),
        ("C[i,c] += A[k,j,c] * B[i,j,k]", {"A": (3, 5, 4), "B": (8, 5, 3)}, ""),  # short along memory
        ("C[i,c] += A[k,j,c] * B[j,k,i]", {"A": (6, 5, 4), "B": (5, 6, 8)}, ""),  # contiguous along the rows
        ("C[i] += A[k,j,i] * B[j,k]", {"A": (6, 5, 4), "B": (5, 6)}, ""),  # no rows
        ("C[i,c] += A[k,j,c] * B[i+j,k]", {"A": (6, 5, 4), "B": (12, 6)}, ""),  # a window
        ("C[i,j] = A[j,i] * B[j,i]", {"A": (6, 5), "B": (6, 5)}, ""),
    ],
)
def test_the_loop_along_memory_is_innermost(text: str, given: dict[str, tuple[int, ...]], order: str) -> None:
    program = poly.parse(text, **given)  # pyright: ignore[reportArgumentType]
    found = with_steps_in_order(program)
    if not order:
        assert found is program
        return
    written = [str(i) for i in program.statements[-1].write.index]
    assert [i for i in found.statements[-1].iterators if i not in written] == order.split()
    random = np.random.default_rng(1)
    inputs = {t.name: random.integers(-3, 4, t.extents(program.binding)).astype("f4") for t in program.inputs}
    (expected,) = run_program(program, inputs).values()
    kernel = poly.compile(program)
    assert np.array_equal(run_program(found, inputs)["C"], expected)
    assert np.array_equal(np.asarray(kernel(*inputs.values())), expected)
    again = poly.compile(program, schedule=kernel.schedule)
    assert np.array_equal(np.asarray(again(*inputs.values())), expected)


def test_sums_of_a_given_order_keep_it() -> None:
    program = poly.parse("C[i,c] += A[k,j,c] * B[i,j,k]", A=(6, 5, 4), B=(8, 5, 6))
    fixed = replace(program, statements=tuple(replace(s, reorder=False) for s in program.statements))
    assert with_steps_in_order(fixed) is fixed
