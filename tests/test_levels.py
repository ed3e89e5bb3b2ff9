"""Random programs under random legal schedules: every level computes the same, exactly.

The program per instance is compared with the program on whole arrays, the loops, the compiled code, and the command
stream; and with the loops and the schedule read back from their text. Values are small whole numbers. How often each
level took part is counted: a level that always bows out fails the test.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poly.accel.compiled import compile_stream
from poly.accel.profile import profile
from poly.compiler import compile_program, machine_of
from poly.dtypes import Array
from poly.errors import CapacityError, UnsupportedError
from poly.interp import run_program
from poly.interp_loops import run_loops
from poly.program import Program
from poly.scheduling.accelerate import schedule_for_accelerator
from poly.scheduling.instances import check_instances
from poly.scheduling.lowering import lower
from poly.scheduling.schedule import Schedule
from poly.scheduling.schedule_text import parse_schedule, print_schedule
from poly.text import parse_loops, print_loops
from tests.mutation_programs import NAMES, program
from tests.mutations import PRIMITIVES, random_legal
from tests.strategies import inputs_for, is_poison, programs

EDITS = (*(name for name in PRIMITIVES if name != "tensorise"), "tile", "tile", "fuse", "promote")
Outputs = Mapping[str, Array]
CPU = machine_of("cpu")
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def scheduled(p: Program, seed: int) -> Schedule:
    rng = random.Random(seed)
    return random_legal(rng, Schedule(p), rng.randint(0, 7), EDITS)


def named(p: Program, results: Array | tuple[Array, ...]) -> Outputs:
    return dict(zip([t.name for t in p.outputs], results if isinstance(results, tuple) else (results,), strict=True))


def levels(schedule: Schedule, inputs: Outputs, seed: int) -> dict[str, Outputs]:
    """The outputs of every level that can run the schedule, but for the reference."""
    p = schedule.source
    found: dict[str, Outputs] = {"arrays": run_program(p, inputs, vectorised=True)}
    tree = lower(schedule)
    check_instances(tree, schedule.program)
    found["loops"] = run_loops(tree, inputs, shuffle=seed)
    found["loops read back"] = run_loops(parse_loops(print_loops(tree)), inputs)
    arrays = [inputs[t.name] for t in p.inputs]
    constants = {t.name: inputs[t.name] for t in p.with_role("constant")}
    try:
        found["code"] = named(p, compile_program(p, CPU, constants, 1 + seed % 2, schedule)(*arrays))
    except (UnsupportedError, CapacityError):
        pass
    return found


def agree(schedule: Schedule, seed: int, counts: Counter[str]) -> None:
    inputs = inputs_for(schedule.source, seed)
    reference = run_program(schedule.source, inputs, vectorised=False)
    for level, outputs in levels(schedule, inputs, seed).items():
        counts[level] += 1
        same(outputs, reference, f"{level}\n{print_schedule(schedule)}")


def same(outputs: Outputs, reference: Outputs, message: str) -> None:
    assert outputs.keys() == reference.keys()
    for name, array in reference.items():
        written = ~is_poison(array)
        np.testing.assert_array_equal(outputs[name][written], array[written], err_msg=f"{name} by {message}")


def test_random_programs_under_random_schedules() -> None:
    counts: Counter[str] = Counter()

    @settings(derandomize=True, max_examples=120, deadline=None, suppress_health_check=QUIET)
    @given(programs(), st.integers(0, 10**6))
    def check(p: Program, seed: int) -> None:
        schedule = scheduled(p, seed)
        counts["all"] += 1
        agree(schedule, seed, counts)
        if seed % 3 == 0:
            assert parse_schedule(print_schedule(schedule)) == schedule

    check()
    assert counts["loops"] == counts["all"]
    assert counts["code"] >= 0.8 * counts["all"], counts


@pytest.mark.parametrize("name", NAMES)
def test_programs_of_every_kind_under_random_schedules(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(3):
        agree(scheduled(program(name), seed), seed, counts)
    assert counts["code"]


@pytest.mark.parametrize("machine", ["s16", "m32"])
def test_random_programs_as_streams(machine: str) -> None:
    """The accelerator's own schedule against the interpreter; its stream is verified when it is made."""
    counts: Counter[str] = Counter()

    @settings(derandomize=True, max_examples=30, deadline=None, suppress_health_check=QUIET)
    @given(programs(("contraction", "elementwise", "convolution", "stencil", "triangle")), st.integers(0, 10**6))
    def check(p: Program, seed: int) -> None:
        inputs = inputs_for(p, seed)
        counts["all"] += 1
        try:
            kernel = compile_stream(p, profile(machine), {t.name: inputs[t.name] for t in p.with_role("constant")})
        except (UnsupportedError, CapacityError):
            return
        counts["stream"] += 1
        found = named(p, kernel(*(inputs[t.name] for t in p.inputs)))
        same(found, run_program(p, inputs, vectorised=False), f"{machine}\n{p}")

    check()
    assert counts["stream"] >= 0.4 * counts["all"], counts


def test_edited_accelerator_schedules() -> None:
    """Legal edits after the accelerator's policy: where there is still a stream, it is right."""
    counts: Counter[str] = Counter()
    machine = profile("s16")
    for seed in range(40):
        rng = random.Random(seed)
        p = program(NAMES[seed % len(NAMES)])
        inputs = inputs_for(p, seed)
        try:
            start = schedule_for_accelerator(p, machine)
            schedule = random_legal(rng, start, 3, ("interchange", "tile", "split", "double_buffer", "fuse", "shift"))
            kernel = compile_stream(
                p, machine, {t.name: inputs[t.name] for t in p.with_role("constant")}, schedule=schedule
            )
        except (UnsupportedError, CapacityError):
            continue
        counts["edited" if schedule.log != start.log else "as it was"] += 1
        found = named(p, kernel(*(inputs[t.name] for t in p.inputs)))
        same(found, run_program(p, inputs, vectorised=False), f"s16\n{print_schedule(schedule)}")
    assert counts["edited"] >= 20, counts
