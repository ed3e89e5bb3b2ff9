"""From a graph with free sizes to a `SizedEngine`.

Where the one free size counts items (`poly.scheduling.items`), groups, orders of axes and known results are those of
one item, whose sizes are known, and each group is compiled for all of them. Else groups are what holds for any sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poly.console import Progress
from poly.dtypes import Array
from poly.engine import CompileGroup, Engine
from poly.engine_build import Build, Cut, whole_outputs, with_known
from poly.errors import CapacityError, ScheduleError, UnsupportedError
from poly.graph import Graph, SizedGraph
from poly.machine import Machine
from poly.pointers import on_lines
from poly.program import Program, Tensor
from poly.scheduling.axis_orders import reordered
from poly.scheduling.cpu_program import model_for_cpu
from poly.scheduling.group_programs import canonical_names, extract, users_by_tensor
from poly.scheduling.groups import groups_of
from poly.scheduling.items import Items, all_items, items_of, one_item
from poly.scheduling.known import split_known
from poly.scheduling.row_groups import groups_for
from poly.scheduling.uneven import finite_factors
from poly.sized_engine import SizedEngine, SizedStep

if TYPE_CHECKING:
    from poly.codegen.kernel import Kernel

CompileKernel = Callable[[Program], "Kernel"]


def build_sized_engine(
    graph: SizedGraph, machine: Machine, compile_kernel: CompileKernel, literal: Callable[[Graph], Engine], *,
    compile_group: CompileGroup | None = None, threads: int = 1, progress: Progress | None = None,
) -> SizedEngine:  # fmt: skip
    """An engine for all sizes of a graph: `compile_kernel` is for one group, sizes free; `literal` for one size.

    `compile_group`: for a group of items, whose constants are arguments.
    """
    start = time.perf_counter()
    built, whole = _Built((), {}, {}), frozenset[str]()
    if machine.kind == "cpu":
        program = graph.to_program()
        whole = whole_outputs(program)
        try:
            found = _of_items(graph, program, machine, compile_group, threads, progress) if compile_group else None
            built = found or _of_any_sizes(graph, program, compile_kernel, progress)
        except (UnsupportedError, CapacityError):
            if graph.literal is None:
                raise
    seconds = time.perf_counter() - start
    constants = {n: on_lines(a) for n, a in built.constants.items()}
    return SizedEngine(graph, machine, built.steps, literal, built.tensors, constants, seconds, whole)


@dataclass(frozen=True)
class _Built:
    """The steps, all tensors that they take and fill by name, and what of these is constant."""

    steps: tuple[SizedStep, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]


def _of_items(
    graph: SizedGraph, program: Program, machine: Machine, compile_group: CompileGroup, threads: int,
    progress: Progress | None,
) -> _Built | None:  # fmt: skip
    """The steps of a model whose one free size counts items; None where it does not, or a group has no code."""
    items = items_of(program)
    if items is None:
        return None
    one = model_for_cpu(one_item(program, items), graph.constants, machine)
    known, one = split_known(one)
    one = reordered(one, machine)
    try:
        whole = all_items(one, items)
        again = items_of(whole)
        if again is None:
            return None
        cuts = _cuts(one, again, machine, threads, finite_factors(one, graph.constants))
    except ScheduleError:
        return None
    work = Build(whole, with_known(graph.constants, known), machine, compile_group)
    for k, cut in enumerate(cuts):
        work.step(cut)
        if progress is not None:
            progress(k + 1, len(cuts))
    steps = _steps(work)
    return None if steps is None else _Built(steps, whole.tensor, work.constants())


def _steps(work: Build) -> tuple[SizedStep, ...] | None:
    """The steps of a build; None where one has no kernel."""
    from poly.codegen.kernel import Kernel

    found: list[SizedStep] = []
    for step in work.steps:
        if step.compiled is None or not isinstance(step.compiled.kernel, Kernel):
            return None
        names = tuple(s.name for s in step.program.statements)
        found.append(SizedStep(step.name, step.compiled.kernel, step.inputs, step.outputs, names))
    return tuple(found)


def _cuts(
    one: Program, items: Items, machine: Machine, threads: int, finite: frozenset[str]
) -> list[Cut]:
    """The groups of one item, as programs for all of them."""
    users, cuts = users_by_tensor(one), list[Cut]()
    for k, group in enumerate(groups_for(one, machine, threads)):
        part = extract(one, group, f"group_{k}", users)
        cut = Cut.of(part, group, f"group {k}", machine, threads, finite)
        counted = frozenset(n for n in cut.old if cut.old[n] in items.tensors)
        if counted and cut.canonical is not None:
            canonical = all_items(cut.canonical, replace(items, tensors=counted))
            cut = replace(cut, canonical=canonical, key=str(canonical))
        cuts.append(cut)
    return cuts


def _of_any_sizes(
    graph: SizedGraph, program: Program, compile_kernel: CompileKernel, progress: Progress | None
) -> _Built:
    groups, users = groups_of(program), users_by_tensor(program)
    kernels: dict[str, Kernel] = {}
    steps: list[SizedStep] = []
    for k, group in enumerate(groups):
        part = extract(program, group, f"group_{k}", users)
        canonical, old = canonical_names(replace(part, tensors=tuple(_as_input(t) for t in part.tensors)))
        key = str(canonical)
        if key not in kernels:
            kernels[key] = compile_kernel(canonical)
        kernel = kernels[key]
        steps.append(SizedStep(
            f"group {k}", kernel, tuple(old[t.name] for t in kernel.inputs), tuple(old[t.name] for t in kernel.outputs),
            tuple(s.name for s in part.statements),
        ))  # fmt: skip
        if progress is not None:
            progress(k + 1, len(groups))
    return _Built(tuple(steps), program.tensor, graph.constants)


def _as_input(t: Tensor) -> Tensor:
    return replace(t, role="input") if t.role == "constant" else t
