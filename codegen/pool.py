"""The worker threads of this process: one pool in native code for all kernels, made when it is first needed.

A job is one entry function, called by every part with its number. The caller is part 0; a worker waits at a word of its
own, spins there for a bounded time and then sleeps in a futex. A job takes no lock that a worker could wait for and no
Python thread: fork and join cost less than a microsecond while the workers spin, a few where they have to be woken.

* Two Python threads that call at once: one gets the workers, the other runs its kernel alone. Parts share out
  iterations and nothing else, so the results are the same bit for bit.
* A forked child starts with no workers and makes its own; at interpreter exit they are stopped and joined, and calls
  after that run alone. Workers block all signals but those of faults: handlers run in Python's threads.
* As many threads as cores: each worker stays on a core of its own, or the system would now and then put two on one.
* More threads than cores: nobody spins, since a spinning thread would hold the core that another one needs.
* The system may put a caller, once it slept, where a worker is bound, and leave both there for long: a call that finds
  itself on a worker's core gives this worker the core that is free.
* The cores are those that the caller may run on. They may change: a caller looks at them when it starts a worker, has
  to wake one, or was asleep itself, which costs more anyway, and binds the workers anew.

Settings: `Pool.configure`, or in the environment `POLYLOOM_SPIN` (microseconds) and `POLYLOOM_CORES` (`0,2,4-7`, or
`any`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
from collections.abc import Sequence
from functools import cache
from typing import Final

from poly.codegen.host import host_machine
from poly.codegen.jit import compile_object, link
from poly.codegen.pool_ir import BOX, BOX_AUTO, BOX_CORE, CORES, HOME, MAX_THREADS, SPIN, WORKERS, pool_ir
from poly.document import counted
from poly.errors import PolyError
from poly.settings import MOST_CORES, MOST_SPIN, last_core, spin_seconds, worker_cores

SPIN_SECONDS: Final = 100e-6  # several calls' distance in a loop over small kernels, little on a busy machine
_FUTEX: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_EXPORTS: Final = (
    "polyloom.block", "polyloom.boxes", "polyloom.run", "polyloom.sequence", "polyloom.placed", "polyloom.stop",
    "polyloom.forked",
)  # fmt: skip


class Pool:
    """The pool of this process, see `pool()`. `run` and `sequence` are addresses of native functions.

    `run` is `i64 (ptr entry, ptr args, i64 parts)`: call `entry(args, part, parts, team)` on `parts` threads and give 0
    or the smallest status as an unsigned number. `sequence` is an entry that runs a list of entries, see
    `team_ir.SEQUENCE`, `placed` one that first writes down what a call gives, see `team_ir.PLACES`.
    """

    def __init__(self) -> None:
        number = _FUTEX.get(platform.machine(), 0)  # of Linux, which all of this is for
        machine = host_machine()
        self._linked = link(compile_object(pool_ir(machine.triple, number), machine), _EXPORTS)
        at = self._linked.addresses
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._linked))  # code of running threads is never unloaded
        self.run, self.sequence, self.placed = (at[f"polyloom.{name}"] for name in ("run", "sequence", "placed"))
        self._block, self._boxes = at["polyloom.block"], at["polyloom.boxes"]
        self._stop = ctypes.CFUNCTYPE(None, ctypes.c_int32)(at["polyloom.stop"])
        self._forked = ctypes.CFUNCTYPE(None)(at["polyloom.forked"])
        self.spin = SPIN_SECONDS
        self.cores: tuple[int, ...] | None = None
        self._forked()
        self.configure(spin=spin_seconds(), cores=worker_cores())
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._stop, 1)

    @property
    def threads(self) -> int:
        """Threads that can work now: the caller and the workers started so far."""
        return 1 + ctypes.c_int32.from_address(self._block + WORKERS).value

    def configure(self, *, spin: float | None = None, cores: Sequence[int] | None = None) -> None:
        """Change settings; the workers are stopped and come back with the next job.

        `spin`: seconds that a thread looks for work before it sleeps. `cores`: worker k runs on the k-th of these cores
        only, counted round; () lets the system choose. Raises `PolyError` for a number that makes no sense.
        """
        if spin is not None and not (isinstance(spin, (int, float)) and 0 <= spin <= MOST_SPIN):  # pyright: ignore
            raise PolyError(f"spin is {spin!r}", hint=f"seconds from 0 to {MOST_SPIN:g}, as 50e-6")
        last = last_core()
        if cores is not None and not _are_cores(cores, last):
            raise PolyError(f"cores is {cores!r}", hint=f"numbers of cores from 0 to {last}, as (0, 1), or ()")
        self._stop(0)
        self.spin = self.spin if spin is None else float(spin)
        self.cores = self.cores if cores is None else tuple(cores)
        word, allowed = ctypes.c_int64.from_address, sorted(os.sched_getaffinity(0))
        word(self._block + SPIN).value = round(self.spin * 1e9)
        word(self._block + HOME).value = _pinned(allowed[-1])
        ctypes.c_int32.from_address(self._block + CORES).value = len(allowed)
        for worker in range(MAX_THREADS):
            box = self._boxes + worker * BOX
            chosen = -1 if self.cores is None else self.cores[worker % len(self.cores)] + 1 if self.cores else 0
            word(box + BOX_CORE).value = chosen
            word(box + BOX_AUTO).value = _pinned(allowed[worker % len(allowed)])

    def stop(self) -> None:
        """End the workers; the next job makes new ones. Waits for a job that is running."""
        self._stop(0)

    def __repr__(self) -> str:
        cores = f", cores {self.cores}" if self.cores else ""
        return f"<Pool of {counted(self.threads, 'thread')}, spin {self.spin * 1e6:g} us{cores}>"


def _are_cores(cores: object, last: int) -> bool:
    return isinstance(cores, Sequence) and all(isinstance(c, int) and 0 <= c <= last for c in cores)


@cache
def pool() -> Pool:
    """The worker pool of this process."""
    return Pool()


def _pinned(core: int) -> int:
    """How a core is written down for the native code, 0: any, as is one that a set has no bit for."""
    return core + 1 if core < MOST_CORES else 0
