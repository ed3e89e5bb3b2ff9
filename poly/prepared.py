"""A program made ready for a core: schedule, loops and IR, from the disk cache where they are there.

From top to bottom: what can be asked for (`prepare` and its kin); where the cache has nothing, the schedules that are
tried (`_of_policy`, `_of_items`, `_of_each`); of a schedule its loops, checked, and their IR (`_of_schedule`).

Planning and proofs take most of the time of a compile. Their results depend on the program, the machine, the number of
threads, the schedule where one is given, and on this package alone, so they are kept under a hash of these: what was
compiled before is neither planned nor proven again. A given schedule is told by all that it holds, not by its script.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from poly.cache_content import content_text, package_hash, pickled, read_pickle
from poly.disk_cache import cache_entry, write_entry
from poly.dtypes import Array
from poly.emitted import EarlyCode, emit
from poly.errors import CapacityError, PolyError, UnsupportedError
from poly.locks import cached_property
from poly.machine import Machine
from poly.pauses import collection_paused
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.constants import Split
from poly.scheduling.edits import settled
from poly.scheduling.instances import check_instances
from poly.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from poly.codegen.function import Module
    from poly.codegen.jit import Compiling
    from poly.scheduling.cpu_plan import Plans


@dataclass(frozen=True)
class Prepared:
    """The loops of a checked schedule, those for compiling apart from those for calls, and the IR of both.

    `kept`: the schedule, pickled where it comes from the cache: nothing that runs needs it, it is read when asked for.
    `refused`: why it is a plainer one than the policy's first. `begun`: their object code, on its way.
    """

    kept: Schedule | bytes
    split: Split
    after: Module
    before: Module | None
    refused: str = ""
    begun: Compiling | None = field(default=None, compare=False)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule. (`facts` of its source are derived again.)"""
        return replace(pickle.loads(self.kept)) if isinstance(self.kept, bytes) else self.kept

    def code(self, module: Module | None) -> bytes | None:
        """The object code of one of the two, where it was begun."""
        return self.begun.of(module.ir) if self.begun is not None and module is not None else None

    def compile(self, machine: Machine) -> None:
        """Have the object code in the disk cache."""
        from poly.codegen.jit import compile_object

        for module in (self.after, self.before):
            if module is not None:
                compile_object(module.ir, machine)


@collection_paused()
def prepare(program: Program, machine: Machine, threads: int, *, plans: Plans = (), early: bool = False) -> Prepared:
    """A program as it is, under the policy's schedule. Raises `PolyError` kinds of `compile`.

    `plans`: of some of its contractions, instead of the policy's; what cannot be done so is refused. `early`: object
    code is made by another thread while this one proves that the schedule is legal.
    """
    path = _entry(program, machine, threads, _kind(plans))
    if plans:
        return _from_cache(path, lambda: _of_plans(program, machine, threads, plans))
    return _from_cache(
        path, lambda: _of_items(program, machine, threads) or _of_policy(program, machine, threads, early)
    )


@collection_paused()
def prepare_edited(
    program: Program, constants: Mapping[str, Array], machine: Machine, threads: int, *, early: bool = False
) -> tuple[Program, Prepared]:
    """As `prepare`, of a program after the edits of a whole one (`cpu_program`); and the program that the caller's
    arrays are for: after those that constants decide. Without constants edits are made where the cache has nothing.
    """

    def edited() -> Program:
        from poly.scheduling.cpu_program import known_for_cpu

        return known_for_cpu(program, constants, machine, threads)

    if constants:
        known = edited()
        return known, prepare(known, machine, threads, early=early)
    path = _entry(program, machine, threads, "edited")
    return program, _from_cache(
        path, lambda: _of_items(program, machine, threads) or _of_policy(edited(), machine, threads, early)
    )


@collection_paused()
def prepare_scheduled(schedule: Schedule, machine: Machine, threads: int, *, early: bool = False) -> Prepared:
    """The program of a schedule under it, checked where it was not. Raises as `prepare`, and `IllegalEdit`."""

    def made() -> Prepared:
        code = EarlyCode(machine, threads) if early else None
        if code is not None:
            code.begin(schedule)
        return _of_schedule(settled(schedule), machine, threads, code)

    key = ("given", str(schedule.checked), content_text(schedule), machine.hash, str(threads), package_hash())
    found = _from_cache(cache_entry("prepared", key, ".pickle"), made)
    return replace(found, kept=schedule if schedule.checked else replace(schedule, checked=True))


@collection_paused()
def prepare_free(program: Program, machine: Machine, threads: int, small: bool = False) -> Prepared:
    """A program whose sizes are free, in its own order where the policy has no code for it. Raises `PolyError`.

    `small`: all that it will be used for is little work, so that nothing is packed.
    """

    def made() -> Prepared:
        of_items = None if small else _of_items(program, machine, threads)
        return of_items or _of_each(program, machine, threads, small)

    return _from_cache(_entry(program, machine, threads, "small" if small else "free"), made)


def is_prepared(program: Program, machine: Machine, threads: int, plans: Plans = ()) -> bool:
    """Whether the disk cache has what `prepare` gives."""
    path = _entry(program, machine, threads, _kind(plans))
    return path is not None and path.exists()


def _entry(program: Program, machine: Machine, threads: int, kind: str) -> Path | None:
    return cache_entry("prepared", (kind, str(program), machine.hash, str(threads), package_hash()), ".pickle")


def _kind(plans: Plans) -> str:
    return content_text(plans) if plans else ""


def _from_cache(path: Path | None, make: Callable[[], Prepared]) -> Prepared:
    """An entry of the cache; made and kept where there is none."""
    if isinstance(found := read_pickle(path), Prepared):
        return found
    made = make()
    if path is not None:
        write_entry(path, pickled(replace(made, kept=pickled(_bare(made.schedule)), begun=None)))
    return made


def _bare(schedule: Schedule) -> Schedule:
    """Without what is derived from the source program."""
    bare = replace(schedule)
    object.__setattr__(bare, "facts", None)
    return bare


def _of_policy(program: Program, machine: Machine, threads: int, early: bool) -> Prepared:
    """The first that fits the machine and has code: the policy's schedule, where sums may be in parts for threads, one
    of groups tried each for itself, one of statements each for itself, the program's own order.
    """
    from poly.scheduling.cpu import schedule_for_cpu, schedule_one_by_one
    from poly.scheduling.cpu_each import schedule_each
    from poly.scheduling.result_blocks import with_result_blocks
    from poly.scheduling.shared_sums import share_sums
    from poly.scheduling.thread_blocks import with_thread_blocks

    code = EarlyCode(machine, threads) if early else None

    def first(program: Program, machine: Machine, threads: int) -> Schedule:
        shared = with_thread_blocks(share_sums(program, machine, threads), machine, threads)
        shared = with_result_blocks(shared, machine, threads)
        return schedule_for_cpu(shared, machine, threads, code.begin if code is not None else None)

    refused = ""
    for scheduled in (first, schedule_one_by_one, schedule_each):
        try:
            return replace(_of_schedule(scheduled(program, machine, threads), machine, threads, code), refused=refused)
        except (CapacityError, UnsupportedError) as error:
            refused = refused or error.message
    return replace(_of_schedule(Schedule(program), machine, threads), refused=refused)


def _of_plans(program: Program, machine: Machine, threads: int, plans: Plans) -> Prepared:
    from poly.scheduling.cpu import schedule_for_cpu

    return _of_schedule(schedule_for_cpu(program, machine, threads, plans=plans), machine, threads)


def _of_items(program: Program, machine: Machine, threads: int) -> Prepared | None:
    """A program whose one free size counts items as the plan for one of them, where that pays and has code."""
    from poly.scheduling.cpu_items import schedule_items

    try:
        schedule = schedule_items(program, machine, threads)
        return None if schedule is None else _of_schedule(schedule, machine, threads)
    except (CapacityError, UnsupportedError):
        return None


def _of_each(program: Program, machine: Machine, threads: int, small: bool) -> Prepared:
    """Statements each for itself, packed unless `small`; else the program's own order."""
    from poly.scheduling.cpu_each import schedule_each

    try:
        return _of_schedule(settled(schedule_each(program, machine, threads, not small)), machine, threads)
    except PolyError:
        return _of_schedule(Schedule(program), machine, threads)


def _of_schedule(schedule: Schedule, machine: Machine, threads: int, code: EarlyCode | None = None) -> Prepared:
    """The loops of a checked schedule, checked, and their IR. Raises `PolyError` where they do not fit or have none."""
    done = code.of(schedule) if code is not None else None
    tree = schedule.lower() if done is None else done.tree
    check_capacity(tree, machine)
    check_instances(tree, schedule.program)
    done = done or emit(schedule, tree, machine, threads)
    return Prepared(schedule, done.split, done.after, done.before, begun=done.begun)
