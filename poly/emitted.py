"""The loops and the IR of a schedule for a core, where there is time for it before its proofs are done.

Making code and proving that a schedule is legal need nothing of each other, so with a core to spare LLVM compiles in
another thread what is being proven. Nothing of it runs before all checks have passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poly.loops import LoopTree
from poly.machine import Machine
from poly.scheduling.capacity import check_capacity
from poly.scheduling.constants import Split, split_constants
from poly.scheduling.schedule import Schedule
from poly.scheduling.thread_constants import with_thread_constants

if TYPE_CHECKING:
    from poly.codegen.function import Module
    from poly.codegen.jit import Compiling


@dataclass(frozen=True)
class Emitted:
    """The loops of a schedule that is legal or not, those for compiling (`before`) apart from those for calls, and the
    IR of both. `begun`: their object code, on its way.
    """

    schedule: Schedule
    tree: LoopTree
    split: Split
    after: Module
    before: Module | None
    begun: Compiling | None = None


def emit(schedule: Schedule, tree: LoopTree, machine: Machine, threads: int) -> Emitted:
    """IR of the loops of a schedule, constants taken out."""
    from poly.codegen.function import lower

    split = with_thread_constants(split_constants(tree, machine), machine, threads)
    before = lower(split.before, machine, f"poly.{split.before.name}") if split.before is not None else None
    return Emitted(schedule, tree, split, lower(split.after, machine, f"poly.{split.after.name}"), before)


class EarlyCode:
    """Code of a schedule that is about to be checked."""

    def __init__(self, machine: Machine, threads: int) -> None:
        self._machine, self._threads = machine, threads
        self._done: Emitted | None = None

    def begin(self, schedule: Schedule) -> None:
        """IR now, object code by another thread."""
        from poly.codegen.jit import Compiling

        try:
            tree = schedule.lower()
            check_capacity(tree, self._machine)
            done = emit(schedule, tree, self._machine, self._threads)
            irs = [module.ir for module in (done.before, done.after) if module is not None]
            self._done = replace(done, begun=Compiling(irs, self._machine))
        except Exception:  # of a schedule that may be illegal: the checks say why, else the same comes after them
            return

    def of(self, schedule: Schedule) -> Emitted | None:
        """What was made of a schedule, where it is this one but for having been checked."""
        done = self._done
        if done is None or done.schedule.program is not schedule.program:
            return None
        return done if done.schedule.nests is schedule.nests and done.schedule.marks is schedule.marks else None
