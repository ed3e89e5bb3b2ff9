"""A program made ready for a core: schedule, loops and IR, from the disk cache where they are there.

Planning and proofs take most of the time of a compile. Their results depend on the program, the machine, the number of
threads, the schedule where one is given, and on this package alone, so they are kept under a hash of these: what was
compiled before is neither planned nor proven again. A given schedule is told by all that it holds, not by its script.
"""

from __future__ import annotations

import copyreg
import hashlib
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import islpy as isl

from poly.affine import Affine
from poly.disk_cache import cache_entry, read_entry, write_entry
from poly.dtypes import Array
from poly.errors import CapacityError, PolyError, UnsupportedError
from poly.locks import cached_property
from poly.machine import Machine
from poly.pauses import collection_paused
from poly.program import Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.constants import Split, split_constants
from poly.scheduling.edits import settle
from poly.scheduling.instances import check_instances
from poly.scheduling.schedule import Schedule
from poly.scheduling.thread_constants import with_thread_constants
from poly.sets import pickled_set

if TYPE_CHECKING:
    from poly.codegen.function import Module
    from poly.codegen.jit import Compiling
    from poly.loops import LoopTree
    from poly.scheduling.cpu_plan import Plans

_Edit = Callable[[Program], Program]
_FOLDERS = ("", "frontend", "scheduling", "codegen", "accel")


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


def prepare_program(
    program: Program, constants: Mapping[str, Array], machine: Machine, threads: int, *, early: bool = False
) -> tuple[Program, Prepared]:
    """A program under the policy's schedule after its edits (`cpu_program`), and what of them the constants decide: the
    program that the caller's arrays are for. Without constants the edits are made where the cache has nothing.
    """

    def edited(program: Program) -> Program:
        from poly.scheduling.cpu_program import known_for_cpu

        return known_for_cpu(program, constants, machine, threads)

    if not constants:
        return program, prepare(program, machine, threads, edit=edited, early=early)
    with collection_paused():
        program = edited(program)
    return program, prepare(program, machine, threads, early=early)


def prepare(
    program: Program, machine: Machine, threads: int, schedule: Schedule | None = None, *,
    edit: _Edit | None = None, early: bool = False, plans: Plans = (),
) -> Prepared:  # fmt: skip
    """A program under a schedule, the policy's where none is given. Raises `PolyError` kinds of `compile`.

    `edit`: `known_for_cpu` of a program that has not been edited, made where the cache has nothing. `early`: object
    code is made by another thread while this one proves that the schedule is legal. `plans`: of some of its
    contractions, instead of the policy's; what cannot be done so is refused.
    """
    with collection_paused():
        if plans:
            path = _path(program, machine, threads, content_text(plans))
            return _kept(path, lambda: _as_planned(program, machine, threads, plans))
        return _prepared(program, machine, threads, schedule, edit, _Beginning(machine, threads) if early else None)


def _prepared(
    program: Program, machine: Machine, threads: int, schedule: Schedule | None, edit: _Edit | None,
    begin: _Beginning | None,
) -> Prepared:  # fmt: skip
    if schedule is None:
        path = _path(program, machine, threads, "" if edit is None else "edited")
        return _kept(
            path, lambda: _repeated(program, machine, threads)
            or _planned(program if edit is None else edit(program), machine, threads, begin),
        )  # fmt: skip
    key = ("given", str(schedule.checked), content_text(schedule), machine.hash, str(threads), package_hash())
    found = _kept(cache_entry("prepared", key, ".pickle"), lambda: _given(schedule, machine, threads, begin))
    return replace(found, kept=schedule if schedule.checked else replace(schedule, checked=True))


def prepare_free(program: Program, machine: Machine, threads: int, small: bool = False) -> Prepared:
    """A program whose sizes are free, in its own order where the policy has no code for it. Raises `PolyError`.

    `small`: all that it will be used for is little work, so that nothing is packed.
    """
    from poly.scheduling.cpu_each import schedule_each

    def made() -> Prepared:
        if not small and (found := _repeated(program, machine, threads)) is not None:
            return found
        try:
            return _lowered(settled(schedule_each(program, machine, threads, not small)), machine, threads)
        except PolyError:
            return _lowered(Schedule(program), machine, threads)

    return _kept(_path(program, machine, threads, "small" if small else "free"), made)


def _kept(path: Path | None, make: Callable[[], Prepared]) -> Prepared:
    """An entry of the cache; made and kept where there is none."""
    if isinstance(found := read_pickle(path), Prepared):
        return found
    made = make()
    if path is not None:
        write_entry(path, pickled(replace(made, kept=pickled(_bare(made.schedule)), begun=None)))
    return made


def is_prepared(program: Program, machine: Machine, threads: int, plans: Plans = ()) -> bool:
    """Whether the disk cache has an entry for a program."""
    path = _path(program, machine, threads, content_text(plans) if plans else "")
    return path is not None and path.exists()


def _path(program: Program, machine: Machine, threads: int, policy: str = "") -> Path | None:
    return cache_entry("prepared", (policy, str(program), machine.hash, str(threads), package_hash()), ".pickle")


def content_text(value: object) -> str:
    """All that a schedule, or a part of it, holds, as text: what differs anywhere has another one."""
    match value:
        case Schedule():
            parts = (value.source, value.program, value.nests, value.marks, value.log)
            return "\n".join(map(content_text, parts))
        case Affine() | isl.Set() | isl.Map():
            return str(value)
        case Mapping():
            return f"{{{', '.join(f'{k!r}: {content_text(v)}' for k, v in value.items())}}}"
        case frozenset():
            return f"{{{', '.join(sorted(map(content_text, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(content_text, value))},)"
        case _ if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(content_text(getattr(value, f.name)) for f in fields(value))})"
        case _:
            return repr(value)


def settled(schedule: Schedule) -> Schedule:
    """The schedule, checked where its edits were not. Raises `IllegalEdit`."""
    return schedule if schedule.checked else settle(schedule)


def _given(schedule: Schedule, machine: Machine, threads: int, begin: _Beginning | None) -> Prepared:
    if begin is not None:
        begin(schedule)
    return _lowered(settled(schedule), machine, threads, begin)


def _as_planned(program: Program, machine: Machine, threads: int, plans: Plans) -> Prepared:
    from poly.scheduling.cpu import schedule_for_cpu

    return _lowered(schedule_for_cpu(program, machine, threads, plans=plans), machine, threads)


def _planned(program: Program, machine: Machine, threads: int, begin: _Beginning | None) -> Prepared:
    """The first that fits the machine and has code: the policy's schedule, where sums may be in parts for threads, one
    of groups tried each for itself, one of statements each for itself, the program's own order.
    """
    from poly.scheduling.cpu import schedule_for_cpu, schedule_one_by_one
    from poly.scheduling.cpu_each import schedule_each
    from poly.scheduling.shared_sums import share_sums
    from poly.scheduling.thread_blocks import with_thread_blocks

    def first(program: Program, machine: Machine, threads: int) -> Schedule:
        shared = with_thread_blocks(share_sums(program, machine, threads), machine, threads)
        return schedule_for_cpu(shared, machine, threads, begin)

    refused = ""
    for make in (first, schedule_one_by_one, schedule_each):
        try:
            return replace(_lowered(make(program, machine, threads), machine, threads, begin), refused=refused)
        except (CapacityError, UnsupportedError) as error:
            refused = refused or error.message
    return replace(_lowered(Schedule(program), machine, threads), refused=refused)


def _repeated(program: Program, machine: Machine, threads: int) -> Prepared | None:
    """A program whose one free size counts items as the plan for one of them, where that pays and has code."""
    from poly.scheduling.cpu_items import schedule_items

    try:
        schedule = schedule_items(program, machine, threads)
        return None if schedule is None else _lowered(schedule, machine, threads)
    except (CapacityError, UnsupportedError):
        return None


def _lowered(chosen: Schedule, machine: Machine, threads: int, begin: _Beginning | None = None) -> Prepared:
    done = begin.of(chosen) if begin is not None else None
    tree = chosen.lower() if done is None else done.tree
    check_capacity(tree, machine)
    check_instances(tree, chosen.program)
    done = done or _emitted(chosen, tree, machine, threads)
    return Prepared(chosen, done.split, done.after, done.before, begun=done.begun)


@dataclass(frozen=True)
class _Emitted:
    """The loops and the IR of a schedule that is legal or not; see `Prepared`."""

    schedule: Schedule
    tree: LoopTree
    split: Split
    after: Module
    before: Module | None
    begun: Compiling | None = None


def _emitted(schedule: Schedule, tree: LoopTree, machine: Machine, threads: int) -> _Emitted:
    from poly.codegen.function import lower

    split = with_thread_constants(split_constants(tree, machine), machine, threads)
    first = lower(split.before, machine, f"poly.{split.before.name}") if split.before is not None else None
    return _Emitted(schedule, tree, split, lower(split.after, machine, f"poly.{split.after.name}"), first)


class _Beginning:
    """IR of a schedule that is about to be checked, compiled by another thread meanwhile. Nothing of it is run before
    the checks have passed.
    """

    def __init__(self, machine: Machine, threads: int) -> None:
        self._machine, self._threads = machine, threads
        self._done: _Emitted | None = None

    def __call__(self, schedule: Schedule) -> None:
        from poly.codegen.jit import Compiling

        try:
            tree = schedule.lower()
            check_capacity(tree, self._machine)
            done = _emitted(schedule, tree, self._machine, self._threads)
            irs = [module.ir for module in (done.before, done.after) if module is not None]
            self._done = replace(done, begun=Compiling(irs, self._machine))
        except Exception:  # of a schedule that may be illegal: the checks say why, else the same comes after them
            return

    def of(self, chosen: Schedule) -> _Emitted | None:
        """What was made of a schedule, where it is this one but for having been checked."""
        done = self._done
        if done is None or done.schedule.program is not chosen.program:
            return None
        return done if done.schedule.nests is chosen.nests and done.schedule.marks is chosen.marks else None


def _bare(schedule: Schedule) -> Schedule:
    """Without what is derived from the source program."""
    bare = replace(schedule)
    object.__setattr__(bare, "facts", None)
    return bare


def pickled(value: object) -> bytes:
    """A value as an entry of the disk cache: a pickle from which equal sets are read once."""
    buffer = BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = copyreg.dispatch_table | {isl.Set: pickled_set}
    pickler.dump(value)
    return buffer.getvalue()


def read_pickle(path: Path | None) -> object:
    """What an entry of the disk cache holds; None where there is none that can be read."""
    content = read_entry(path)
    if content is None:
        return None
    try:
        return pickle.loads(content)
    except Exception:  # written under another Python, say: as good as none
        return None


@cache
def package_hash() -> str:
    """A hash of the package's source and of the versions of what it stands on."""
    from importlib import metadata

    found = hashlib.sha256(repr((sys.version, metadata.version("islpy"), metadata.version("llvmlite"))).encode())
    for folder in _FOLDERS:
        for path in sorted((Path(__file__).parent / folder).glob("*.py")):
            found.update(path.name.encode())
            found.update(path.read_bytes())
    return found.hexdigest()
