"""Contractions of the cases, the plans that they could have, and kernels of these: what `benchmarks.choices` measures.

Kernels are made ahead by processes of their own, which leave them in a folder.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case
from benchmarks.graphs import model_of
from poly.codegen.kernel import Code, Kernel
from poly.compiler import constant_kernel
from poly.dtypes import numpy_dtype
from poly.errors import PolyError
from poly.machine import Machine
from poly.prepared import Prepared, prepare
from poly.program import Program, Tensor
from poly.scheduling.cpu import POLICIES
from poly.scheduling.cpu_block import schedule_contraction
from poly.scheduling.cpu_contract import contraction_plan, other_lanes
from poly.scheduling.cpu_facts import Facts, facts_of
from poly.scheduling.cpu_plan import BlockPlan
from poly.scheduling.cpu_program import for_cpu
from poly.scheduling.cpu_rating import Rated, RatedWays
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.grouping import group_program
from poly.scheduling.groups import groups_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.uneven import finite_factors

Array = npt.NDArray[np.generic]
THREADS = 1  # of plans and kernels: sharing comes after them


@dataclass(frozen=True)
class Nest:
    """One group of a case that the contraction model plans: a program of its own."""

    name: str
    program: Program
    facts: Facts
    lanes: int

    @property
    def chosen(self) -> BlockPlan:
        plan = contraction_plan(self.facts, self.lanes)
        assert plan is not None
        return plan

    def arrays(self) -> dict[str, Array]:
        """Operands of a seed, and room for the results."""
        random, sizes = np.random.default_rng(0), self.program.binding

        def made(t: Tensor) -> Array:
            shape = t.extents(sizes)
            return np.empty(shape, numpy_dtype(t.dtype)) if t.is_output else _values(random, shape, t.dtype)

        return {t.name: made(t) for t in self.program.tensors if t.is_output or t.role in ("input", "constant")}


def _values(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def nests_of(case: Case, machine: Machine) -> list[Nest]:
    """The groups of a case that have a choice."""
    found: list[Nest] = []
    for k, program in enumerate(_programs(case, machine)):
        groups = groups_of(program)
        group = groups[0]
        if len(groups) != 1 or group.box is None or not group.axes or group.parts:
            continue
        plans = (policy.recognise(program, group, machine, THREADS) for policy in POLICIES)
        if not isinstance(next((plan for plan in plans if plan is not None), None), BlockPlan):
            continue
        facts = facts_of(program, group, machine, THREADS)
        lanes = facts.lanes()
        if lanes is not None:
            found.append(Nest(f"{case.name}.{k}" if k else case.name, program, facts, lanes))
    return found


def _programs(case: Case, machine: Machine) -> list[Program]:
    """The groups of a case as they are planned: a program is joined before it is grouped, a model after that."""
    import poly
    from poly.frontend.einsum import einsum_program

    if case.kind == "einsum":
        program = einsum_program(case.spec, list(case.inputs.values()), ["f32"] * len(case.inputs))
        return list(group_program(for_cpu(program, (), machine, THREADS), machine, THREADS).parts.values())
    graph = poly.from_onnx(model_of(case))
    source = graph.to_program()
    finite = finite_factors(source, graph.constants)
    return [for_cpu(p, finite, machine, THREADS) for p in group_program(source, machine, THREADS).parts.values()]


def plans_of(nest: Nest, count: int, far: float) -> list[Rated]:
    """The model's favourites of every way to do it by turns, the best ways first, none predicted to take more than
    `far` times as long as the best: so they differ in more than a block size. The model's choice is among them.
    """
    update = nest.facts.update
    assert update is not None
    lanes = (nest.lanes, *other_lanes(nest.facts, update, nest.lanes))  # any loop as lanes that can be
    choices = [RatedWays(nest.facts, update, a) for a in lanes]
    rated = (list(c.best_of_each([way], count)) for c in choices for way in c.ways())
    ways = [found for found in rated if found]
    ways.sort(key=lambda found: found[0].cycles)
    limit = far * ways[0][0].cycles
    chosen = nest.chosen
    turns = (r for turn in zip_longest(*ways) for r in turn if r is not None and r.cycles <= limit)
    mixed = list(turns)
    first = [r for found in ways for r in found if r.plan == chosen][:1]
    return [*first, *(r for r in mixed if r.plan != chosen)][:count]


@dataclass(frozen=True)
class Shelf:
    """A folder of prepared kernels, by program, plan and machine.

    It does not know when the package has changed: an entry is as the package was when it was made.
    """

    folder: Path
    machine: Machine

    def path(self, program: Program, plan: BlockPlan) -> Path:
        parts = "\0".join((str(program), repr(plan), self.machine.hash))
        return self.folder / f"{hashlib.sha256(parts.encode()).hexdigest()[:32]}.pickle"

    def fill(self, nest: Nest, plans: Sequence[BlockPlan], workers: Executor | None, seconds: float) -> None:
        """Make what is not there, until the time is over."""
        missing = [p for p in plans if not self.path(nest.program, p).exists()]
        if workers is None or not missing:
            return
        tasks = [workers.submit(make, self, nest.program, plan) for plan in missing]
        wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    def kernel(self, nest: Nest, plan: BlockPlan, constants: Mapping[str, Array]) -> Kernel | None:
        """What was made of a plan; None where it is not there, or was refused."""
        path = self.path(nest.program, plan)
        content = path.read_bytes() if path.exists() else b""
        if not content:
            return None
        made = Prepared(Schedule(nest.program), *pickle.loads(content))
        compute = constant_kernel(made, self.machine, THREADS)
        program = nest.program
        return Kernel(
            made.split.after, self.machine, program.inputs, program.outputs, dict(constants), THREADS,
            stored=compute(constants) if compute is not None else {}, code=Code(made.after),
        )  # fmt: skip


def make(shelf: Shelf, program: Program, plan: BlockPlan) -> None:
    """Prepare one kernel; an empty entry where the plan is refused."""
    (group,) = groups_of(program)
    try:
        schedule = settle(schedule_contraction(unchecked(Schedule(program)), group, plan, shelf.machine))
        made = prepare(program, shelf.machine, THREADS, schedule)
        made.compile(shelf.machine)
        content = pickle.dumps((made.split, made.after, made.before))
    except PolyError:
        content = b""
    path = shelf.path(program, plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(content)
    temporary.replace(path)
