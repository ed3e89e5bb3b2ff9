"""Results in the memory of operands: where nobody needs these any more, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import poly
from poly.codegen.host import host_machine
from poly.graph import Graph, Node
from poly.program import Program
from poly.scheduling.grouping import group_program
from poly.scheduling.groups import groups_of

SUM = (
    "A[i,j] = X[i,j] * X[j,i]; B[i,j] = A[j,i] + 1; C[i,j] += B[i,k] * X[k,j]; D[i,j] = C[i,j] + A{read}; "
    "E[i,j] = max(D[i,j], 0); {more} Y[i,j] = E[i,j] + E[j,i]"
)


def program_of(read: str = "[i,j]", more: str = "") -> Program:
    return poly.parse(SUM.format(read=read, more=more), X=(24, 24))


def places(program: Program) -> dict[str, str]:
    found = group_program(program, host_machine())
    return {name: a.inside for name, a in found.aliases.items()}


def test_a_sum_takes_the_place_of_what_is_added() -> None:
    assert places(program_of()) == {"E": "A"}


def test_the_group_has_one_tensor_that_comes_in_and_goes_out() -> None:
    parts = group_program(program_of(), host_machine()).parts.values()
    (part,) = [p for p in parts if any(s.write.tensor == "C" for s in p.statements)]
    assert [t.role for t in part.tensors if t.name == "A"] == ["inout"] and "E" not in part.tensor
    assert len(groups_of(part)) == 1


@pytest.mark.parametrize(
    ("read", "more"),
    [("[j,i]", ""), ("[i,j] * A[0,j]", ""), ("[i,j]", "F[i,j] = A[i,23-j] * E[0,j];"),
     ("[i,j]", "A[i,j] = X[i,j];")],
    ids=["another element", "another element besides", "read later", "written later"],
)
def test_an_operand_that_is_needed_keeps_its_memory(read: str, more: str) -> None:
    assert "E" not in places(program_of(read, more))


def test_inputs_keep_what_the_caller_gave() -> None:
    assert places(poly.parse("A[i] = X[i] + 1; Y[i] += A[j] * X[i]; Z[i] = Y[i] + X[i]", X=(9,))) == {}


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_change(threads: int) -> None:
    program = program_of()
    nodes = (Node("n", "Op", (), (), program.statements),)
    engine = poly.compile(Graph("g", program.tensors, nodes), threads=threads)
    x = np.random.default_rng(0).integers(-3, 4, (24, 24)).astype("f4")
    a = x * x.T
    e = np.maximum((a.T + 1) @ x + a, 0)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(engine.run({"X": x})["Y"]), e + e.T)


def test_an_assignment_joins_the_group_that_reads_what_it_overwrites() -> None:
    text = "C[i,j] += B[i,k] * B[k,j]; D[i,j] = C[i,j] + A{read}; A[i,j] = max(D[i,j], 0)"
    for read, count in (("[i,j]", 1), ("[j,i]", 2)):
        program = poly.parse(text.format(read=read), B=(8, 8), A=(8, 8))
        tensors = tuple(replace(t, role="inout") if t.name == "A" else t for t in program.tensors)
        assert len(groups_of(replace(program, tensors=tensors))) == count
