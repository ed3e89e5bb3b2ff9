"""Copies that need no copying: found by addresses, refused where somebody else writes, and results do not change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.engine import Engine
from poly.graph import Graph, Node
from poly.interp import run_program
from poly.program import Program
from poly.scheduling.aliases import Alias, aliases_of, place_of
from poly.scheduling.groups import groups_of


def engine_of(program: Program) -> Engine:
    return poly.compile(Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),)))


def found(text: str, **shapes: tuple[int, ...]) -> tuple[dict[str, tuple[str, int]], int]:
    program = poly.parse(text, dtypes=None, **shapes)
    aliases, idle = aliases_of(program, groups_of(program))
    return {n: (a.inside, a.shift) for n, a in aliases.items()}, len(idle)


JOIN = (
    "A[n,c,i] = X[n,c,i] * 2; B[n,c,i] = max(X[n,c,i], 0) + 1; "
    "C[n,c,i] = A[n,c,i] where 0 <= n < {n} and 0 <= c < 3 and 0 <= i < 4; "
    "C[n,c+3,i] = B[n,c,i] where 0 <= n < {n} and 0 <= c < 3 and 0 <= i < 4; "
    "D[n,c,i] = C[n,c,i] * C[n,5-c,i] where 0 <= n < {n} and 0 <= c < 6 and 0 <= i < 4"
)


def test_what_is_joined_lies_in_the_joint() -> None:
    assert found(JOIN.format(n=1), X=(1, 3, 4)) == ({"A": ("C", 0), "B": ("C", 48)}, 2)


def test_parts_that_do_not_lie_together_are_copied() -> None:
    assert found(JOIN.format(n=2), X=(2, 3, 4)) == ({}, 0)


def test_a_copy_of_a_copy_of_an_input_lies_in_it_too() -> None:
    text = "A[i,j] = X[i,j] where 0 <= i < 4 and 0 <= j < 6; B[6*i + j] = A[i,j]; C[k] = B[k]*2"
    assert found(text, X=(4, 6)) == ({"A": ("X", 0), "B": ("A", 0)}, 1)


@pytest.mark.parametrize("n", [1, 2])
def test_results_do_not_change(n: int) -> None:
    program = poly.parse(JOIN.format(n=n), X=(n, 3, 4))
    engine = engine_of(program)
    x = np.random.default_rng(0).standard_normal((n, 3, 4), "f4")
    c = np.concatenate([x * 2, np.maximum(x, 0) + 1], 1)
    np.testing.assert_allclose(np.asarray(engine.run({"X": x})["D"], "f4"), c * c[:, ::-1], rtol=1e-6)
    assert len(engine.steps) == 3


def boxes(text: str, **shapes: tuple[int, ...]) -> dict[str, tuple[str, int, tuple[int, ...]]]:
    """Tensors that lie in others as boxes, with the extents of these."""
    program = poly.parse(text, dtypes=None, **shapes)
    aliases, _ = aliases_of(program, groups_of(program), boxes=True)
    return {n: (a.inside, a.shift, tuple(e.constant for e in a.shape)) for n, a in aliases.items() if a.shape}


def test_what_is_joined_along_an_inner_axis_is_a_box_of_the_joint() -> None:
    assert boxes(JOIN.format(n=1), X=(1, 3, 4)) == {}
    assert boxes(JOIN.format(n=2), X=(2, 3, 4)) == {"A": ("C", 0, (2, 6, 4)), "B": ("C", 48, (2, 6, 4))}


NESTED = (
    "A[i,j] = X[i,j] * 2; B[i,j] = X[i,j] + 1; "
    "C[i,j] = A[i,j] where 0 <= i < 5 and 0 <= j < 3; C[i,j+3] = B[i,j] where 0 <= i < 5 and 0 <= j < 3; "
    "D[i,j] = C[i,j] where 0 <= i < 5 and 0 <= j < 6; D[i,j+6] = X[i,j] where 0 <= i < 5 and 0 <= j < 3; "
    "Y[i,j] = D[i,j] - D[4-i,8-j] where 0 <= i < 5 and 0 <= j < 9"
)


def test_a_joint_that_holds_boxes_is_no_box_itself() -> None:
    """The boxes would need the shape of the outermost tensor."""
    assert {n: a[0] for n, a in boxes(NESTED, X=(5, 3)).items()} == {"A": "C", "B": "C"}
    x = np.random.default_rng(0).standard_normal((5, 3), "f4")
    d = np.concatenate([x * 2, x + 1, x], 1)
    engine = engine_of(poly.parse(NESTED, X=(5, 3)))
    np.testing.assert_allclose(np.asarray(engine.run({"X": x})["Y"], "f4"), d - d[::-1, ::-1], rtol=1e-6)


TAIL = "; Y[i] = P[i] + Q[i]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a part, and a change of shape
        ("T[j] = X[j] * 2 where 0 <= j < 8; Z[j] = T[j] + T[7-j]; P[i] = T[i+2] where 0 <= i < 4; Q[i] = P[3-i]",
         {"P": ("T", 8)}),
        # every other element, and the reverse
        ("T[j] = X[j] * 2 where 0 <= j < 8; Z[j] = T[j] + T[7-j]; P[i] = T[2*i] where 0 <= i < 4; Q[i] = P[3-i]", {}),
        ("T[j] = X[j] * 2 where 0 <= j < 8; Z[j] = T[j] + T[7-j]; P[i] = T[7-i] where 0 <= i < 4; Q[i] = P[3-i]", {}),
    ],
)  # fmt: skip
def test_addresses_decide(text: str, expected: dict[str, tuple[str, int]]) -> None:
    assert found(text + TAIL, X=(8,))[0] == expected
    program = poly.parse(text + TAIL, X=(8,))
    x = np.arange(8, dtype=np.float32)
    got, want = engine_of(program).run({"X": x}), poly.compile(poly.Schedule(program))(x)
    assert isinstance(want, tuple)
    for t, array in zip(program.outputs, want, strict=True):
        np.testing.assert_array_equal(got[t.name], array)


@pytest.mark.parametrize(
    "text",
    [
        # the target is written again where the copy lies; the source is written after the copy
        "T[i] = X[i] * 2; Z[i] = T[3-i]; P[i] = T[i]; P[i] = X[i] where i < 2; Y[i] = P[i] + P[3-i] + T[i]",
        "T[i] = X[i] * 2; Z[i] = T[3-i]; P[i] = T[i]; T[i] = X[i] where i < 2; Y[i] = P[i] + P[3-i] + T[i]",
    ],
)
def test_tensors_that_others_write_are_copied(text: str) -> None:
    assert found(text, X=(4,))[0] == {}


SQUARE = "where 0 <= i < 2 and 0 <= j < 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a temporary in an input: of the same shape, a part; and one that is written later, too
        ("P[i] = X[i]; Y[i] = P[3-i] + P[i]", {"P": ("X", 0)}),
        ("P[i] = X[i+2] where 0 <= i < 2; Y[i] = P[1-i] + P[i]", {"P": ("X", 8)}),
        ("P[i] = X[i]; P[i] = 1 where i < 2; Y[i] = P[3-i] + P[i]", {}),
        # an output in place of what it is copied from, once; not in place of a part of it, nor of an input
        (f"T[i] = X[i] * 2; Z[i] = T[3-i]; Y[j,i] = T[2*j+i] {SQUARE}", {"T": ("Y", 0)}),
        (f"T[i] = X[i] * 2; Z[i] = T[3-i]; Y[j,i] = T[2*j+i] {SQUARE}; V[j,i] = T[2*j+i] {SQUARE}", {"T": ("Y", 0)}),
        ("T[i] = X[i] * 2; Z[i] = T[3-i]; Y[j,i] = T[j+i+1] where 0 <= i < 2 and j = 0", {}),
        (f"T[i] = X[i] * 2; Z[i] = T[3-i]; Y[j,i] = T[2*j+i] {SQUARE}; Y[j,i] = 1 where 0 <= i < 2 and j = 0", {}),
        (f"T[i] = X[i] * 2; Y[j,i] = T[2*j+i] {SQUARE}; T[i] = X[i] + 1 where i < 2; V[i] = T[3-i]", {}),
        (f"Y[j,i] = X[2*j+i] {SQUARE}", {}),
        (f"P[j,i] = X[2*j+i] {SQUARE}; Y[i] = P[i,0] where 0 <= i < 2; Z[i] = P[1-i,1] where 0 <= i < 2",
         {"P": ("X", 0)}),
        # what only reads an output again lies there
        (f"Y[i] = X[i] * 2; P[j,i] = Y[2*j+i] {SQUARE}; V[j,i] = P[1-j,i] + P[j,1-i] {SQUARE}", {"P": ("Y", 0)}),
    ],
)  # fmt: skip
def test_temporaries_lie_in_the_arrays_of_callers(text: str, expected: dict[str, tuple[str, int]]) -> None:
    program = poly.parse(text, X=(4,))
    outputs = [n for n in "YZV" if n + "[" in text]
    tensors = tuple(replace(t, role="output") if t.name in outputs else t for t in program.tensors)
    program = replace(program, tensors=tensors)
    assert {n: (a.inside, a.shift) for n, a in aliases_of(program, groups_of(program))[0].items()} == expected
    x = np.arange(8, dtype=np.float32)[::2]
    want = run_program(program, {"X": x}, vectorised=False)
    for machine in (None, "s16"):
        graph = Graph("g", program.tensors, (Node("n", "Op", (), (), program.statements),))
        engine = poly.compile(graph) if machine is None else poly.compile(graph, target=machine)
        kept = np.full(program.tensor["Y"].extents({}), 7, np.float32)
        for given in (x, x.copy()):
            got = engine.run({"X": given}, out={"Y": kept})
            assert got["Y"] is kept
            for name in outputs:
                np.testing.assert_array_equal(got[name], want[name])
            np.testing.assert_array_equal(given, np.arange(0, 8, 2))


def test_no_box_lies_in_the_array_of_a_caller() -> None:
    """It has the shape of what it lies in, so that it would reach behind it."""
    text = JOIN.format(n=2).replace("D[n,c,i]", "Y[n,c,i] = C[n,c,i]; D[n,c,i]")
    assert {n: a[0] for n, a in boxes(text, X=(2, 3, 4)).items()} == {"A": "C", "B": "C"}
    x = np.random.default_rng(0).standard_normal((2, 3, 4), "f4")
    c = np.concatenate([x * 2, np.maximum(x, 0) + 1], 1)
    got = engine_of(poly.parse(text, X=(2, 3, 4))).run({"X": x})
    np.testing.assert_allclose(np.asarray(got["Y"], "f4"), c, rtol=1e-6)


def test_aliases_of_aliases_add_up() -> None:
    aliases = {"A": Alias("A", "B", 8), "B": Alias("B", "C", 16)}
    assert [place_of(n, aliases) for n in "ABC"] == [("C", 24), ("C", 16), ("C", 0)]
