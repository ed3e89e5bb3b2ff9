"""How good are choices that nothing was measured for? `python -m benchmarks.choices [words ...]`

For every contraction among the cases: the time of the plan that the model likes best, against the best of many that
are measured. Candidates are the model's favourites of every way to do it (loop of rows, what is packed and where, order
of the tile loops), so that they differ in more than a block size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

import poly
from benchmarks.cases import Case, load_cases
from poly.codegen.host import host_machine
from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_block import block_group
from poly.scheduling.cpu_contract import best_plans, contraction_plan
from poly.scheduling.cpu_facts import Facts
from poly.scheduling.cpu_plan import Plan
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule

Array = npt.NDArray[np.float32]
ROUNDS = 7


@dataclass(frozen=True)
class Found:
    """Seconds of the model's choice and of the best candidate, and which place the choice takes among `count`."""

    case: str
    chosen: float
    best: float
    place: int
    count: int


def compiled(program: Program, plan: Plan, machine: Machine) -> Callable[..., object]:
    """A program of one group as a plan says. Raises `PolyError` where the plan does not fit."""
    (group,) = groups_of(program)
    schedule = settle(block_group(unchecked(Schedule(program)), group, plan, machine))
    return poly.compile(program, machine, schedule=schedule)


def plans_for(program: Program, machine: Machine, count: int) -> list[Plan]:
    """The model's choice first, then its favourites of every way."""
    (group,) = groups_of(program)
    assert group.box is not None
    facts = Facts(program, group, machine, [high - low + 1 for low, high in group.box], 1)
    lanes = facts.lanes()
    chosen = None if lanes is None else contraction_plan(facts, lanes)
    if lanes is None or chosen is None:
        return []
    return [chosen, *(r.plan for r in best_plans(facts, lanes, count) if r.plan != chosen)][:count]


def judge(case: Case, machine: Machine, count: int) -> Found | None:
    """Measure the plans of a case, a few rounds over all of them; None where there is nothing to choose."""
    from poly.frontend.einsum import einsum_program

    inputs = list(case.operands()[0].values())
    program = einsum_program(case.spec, [a.shape for a in inputs], ["f32"] * len(inputs))
    if len(groups_of(program)) != 1:
        return None
    calls: list[Callable[[], object]] = []
    want = np.einsum(case.spec, *inputs, optimize=True)
    for plan in plans_for(program, machine, count):
        try:
            kernel = compiled(program, plan, machine)
        except PolyError:
            continue
        out = np.empty(want.shape, np.float32)
        kernel(*inputs, out=out)
        if not np.allclose(out, want, rtol=1e-3, atol=1e-3):
            raise AssertionError(f"{case.name}: a wrong result of {plan}")
        calls.append(lambda kernel=kernel, out=out: kernel(*inputs, out=out))
    if len(calls) < 2:
        return None
    seconds = measured(calls)
    return Found(case.name, seconds[0], min(seconds), 1 + sum(s < seconds[0] for s in seconds), len(seconds))


def measured(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each call, in interleaved rounds."""
    least = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            start = perf_counter()
            call()
            least[k] = min(least[k], perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose names hold one of these")
    parser.add_argument("--candidates", type=int, default=200, help="that are measured at most (default: 200)")
    parser.add_argument("--cases", type=Path, default=None, help="more cases, a JSON list")
    arguments = parser.parse_args()
    machine = host_machine()
    near = all_ = 0
    print(f"{'case':28} {'chosen':>10} {'best':>10}  ratio  place")
    for case in load_cases(arguments.cases):
        if not case.spec or (arguments.words and not any(w in case.name for w in arguments.words)):
            continue
        found = judge(case, machine, arguments.candidates)
        if found is None:
            continue
        all_ += 1
        near += found.chosen <= 1.1 * found.best
        times = f"{found.chosen * 1e6:8.1f}us {found.best * 1e6:8.1f}us"
        print(f"{found.case:28} {times}  {found.chosen / found.best:5.2f}  {found.place} of {found.count}", flush=True)
    print(f"within 10 % of the best: {near} of {all_}")


if __name__ == "__main__":
    main()
