"""Mutants of legal schedules: what the oracle calls illegal is refused with a real witness, everything else accepted.

The oracle (`tests/oracle.py`) asks isl nothing: it enumerates instances, orders them and follows every value. By
default 50 mutants of each primitive, and of each kind of fault until 50 illegal ones were seen;
`POLYLOOM_MUTATIONS=full` makes four times as many, `POLYLOOM_SEED` draws others.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from poly.errors import IllegalEdit
from poly.interp import instances_of, run_program
from poly.interp import points as isl_points
from poly.interp_loops import run_loops
from poly.scheduling.dependences import dependences
from poly.scheduling.instances import check_instances
from poly.scheduling.legality import check
from poly.scheduling.lowering import lower
from poly.scheduling.schedule import Schedule
from tests.mutation_programs import NAMES, program
from tests.mutations import ANY, FAULTS, KINDS, PRIMITIVES, SEED, Mutant, mutants, random_legal, same_place
from tests.oracle import Oracle, Violation, is_real, points
from tests.strategies import inputs_for

FULL = os.environ.get("POLYLOOM_MUTATIONS") == "full"
NUMBER = 200 if FULL else 50
RUN_EVERY = 1 if FULL else 5


@cache
def oracle(name: str) -> Oracle:
    return Oracle(program(name))


def refusal(mutant: Mutant) -> IllegalEdit | None:
    """What the checker says: of an edit, the edit itself; of a corruption, a check from the legal base."""
    try:
        if mutant.edit is not None:
            edited = mutant.edit()
            assert same_place(edited, mutant.schedule), f"checked and unchecked edits differ\n{mutant}"
        else:
            check(mutant.schedule, mutant.base)
    except IllegalEdit as error:
        return error
    return None


def judge(mutant: Mutant) -> bool:
    """Whether a mutant is legal; fails where checker and oracle do not say the same."""
    violations = oracle(mutant.program).verdict(mutant.schedule)
    error = refusal(mutant)
    if error is None and violations and all(v.kind == "bounds" for v in violations):
        with pytest.raises(IllegalEdit):
            check_instances(lower(mutant.schedule), mutant.schedule.program)
        return False
    assert (error is None) == (not violations), disagreement(mutant, error, violations)
    if error is not None:
        assert error.witness is not None, mutant
        assert is_real(violations, error.witness, error.kind), disagreement(mutant, error, violations)
    return error is None


def disagreement(mutant: Mutant, error: IllegalEdit | None, violations: list[Violation]) -> str:
    return f"{mutant}\nchecker: {error}\noracle: {violations[:3]}"


def runs_right(mutant: Mutant) -> None:
    """A legal mutant's loops give what its program gives."""
    source = mutant.schedule.source
    inputs = inputs_for(source, seed=3)
    tree = lower(mutant.schedule)
    check_instances(tree, mutant.schedule.program)
    expected, found = run_program(source, inputs, vectorised=False), run_loops(tree, inputs, shuffle=7)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=str(mutant))


@pytest.mark.parametrize("kind", KINDS)
def test_checker_and_oracle_agree(kind: str) -> None:
    legal = illegal = 0
    programs: set[str] = set()
    for mutant in mutants(kind):
        programs.add(mutant.program)
        if judge(mutant):
            legal += 1
            if legal % RUN_EVERY == 0:
                runs_right(mutant)
        else:
            illegal += 1
        if legal + illegal >= NUMBER and (kind in PRIMITIVES or illegal >= NUMBER):
            break
    print(f"{kind}: {legal} legal, {illegal} illegal, {len(programs)} programs")
    assert kind in PRIMITIVES or illegal >= NUMBER


@pytest.mark.parametrize("kind", [*FAULTS, "promote"])
def test_a_check_without_a_base_says_the_same(kind: str) -> None:
    """The check of everything agrees with the one of what changed."""
    for _, mutant in zip(range(10), mutants(kind), strict=False):
        legal = not [v for v in oracle(mutant.program).verdict(mutant.schedule) if v.kind != "bounds"]
        try:
            check(mutant.schedule)
        except IllegalEdit:
            assert not legal, mutant
        else:
            assert legal, mutant


def test_what_holds_for_free_sizes_holds_for_each() -> None:
    """Schedules accepted with all sizes free are legal for the sizes that the oracle knows."""
    for seed in range(400 if FULL else 100):
        rng = random.Random(f"{SEED} free {seed}")
        p = program(NAMES[seed % len(NAMES)])
        free = random_legal(rng, Schedule(replace(p, sizes=())), rng.randint(1, 6), (*ANY, "vectorise"))
        bound = replace(free, source=p, program=replace(free.program, sizes=p.sizes), facts=None)
        violations = oracle(p.name).verdict(bound)
        assert not violations, f"{p.name}\n{free.script}\n{violations[:2]}"


def test_there_are_enough_programs() -> None:
    assert len(NAMES) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_sees_the_same_instances_and_dependences_as_isl(name: str) -> None:
    p = program(name)
    for s in p.statements:
        assert list(points(s, p.binding)) == isl_points(instances_of(s, p.binding))
    judge_of = oracle(name)
    pairs = {(judge_of.events[a].instance, judge_of.events[b].instance) for a, b in zip(*judge_of.pairs, strict=True)}
    found: set[object] = set()
    for dependence in dependences(p):
        if dependence.kind != "reduction":
            count = len(p.statement[dependence.source].iterators)
            for pair in isl_points(dependence.relation.wrap().flatten()):
                found.add(((dependence.source, pair[:count]), (dependence.sink, pair[count:])))
    assert found == pairs


@pytest.mark.parametrize("name", NAMES)
def test_a_program_in_its_own_order_is_legal(name: str) -> None:
    schedule = Schedule(program(name))
    assert oracle(name).verdict(schedule) == []
    check(schedule)
