"""Compiling on the other cores: processes that fill the disk cache with what this one will need.

A model has dozens of different groups, and planning, proofs and emission keep one core busy for seconds. So processes
of their own prepare the programs from the other end of the list, each into the disk cache, where the process that
compiles the model finds them. Nothing depends on them: what is not there yet is made here, and one that ends early, or
cannot be started, only costs time. Without a disk cache there are none.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final, TypeAlias

from poly.disk_cache import cache_directory
from poly.errors import PolyError
from poly.machine import Machine
from poly.prepared import is_prepared, prepare
from poly.program import Program
from poly.scheduling.cpu_plan import Plans
from poly.settings import compiling_processes

FEWEST: Final = 6  # programs that are worth a process: it starts in about a second
MOST_PROCESSES: Final = 7  # processes beside this one
Job: TypeAlias = tuple[Program, Plans]
_ROOT: Final = Path(__file__).resolve().parent.parent


def prepared_ahead(programs: Sequence[Program], machine: Machine, threads: int) -> AbstractContextManager[None]:
    """While the body runs, others prepare what the cache does not hold yet, the last programs first."""
    return made_ahead([(p, ()) for p in programs], machine, threads)


@contextmanager
def made_ahead(jobs: Sequence[Job], machine: Machine, threads: int) -> Generator[None]:
    """`prepared_ahead` of programs with plans for some of their contractions.

    As many processes as there are other cores; `POLYLOOM_JOBS`, where it is set, is the number in all.
    """
    kept = cache_directory() is not None
    missing = [(p, plans) for p, plans in jobs if not is_prepared(p, machine, threads, plans)] if kept else []
    count = min(compiling_processes() - 1, MOST_PROCESSES, len(missing) // FEWEST)
    started = [_start(_share(missing, k, count), machine, threads) for k in range(count)]
    try:
        yield
    finally:
        for process in started:
            if process is not None:
                _end(process)


def _share(jobs: Sequence[Job], k: int, count: int) -> list[Job]:
    """All jobs, backwards, each process from a place of its own."""
    backwards = list(reversed(jobs))
    start = len(backwards) * k // (count + 1)
    return backwards[start:] + backwards[:start]


def _start(jobs: Sequence[Job], machine: Machine, threads: int) -> subprocess.Popen[bytes] | None:
    # -P: a script's folder is not searched for modules; a package that is not installed is found where it is
    code = f"import sys; sys.path.append({str(_ROOT)!r}); from poly.ahead import main; main()"
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    work = pickle.dumps((tuple(jobs), machine, threads))
    Thread(target=_feed, args=(process, work), daemon=True).start()
    return process


def _feed(process: subprocess.Popen[bytes], work: bytes) -> None:
    """The work goes in; the pipe stays open, its end is the sign to stop."""
    assert process.stdin is not None
    try:
        process.stdin.write(len(work).to_bytes(8, "little") + work)
        process.stdin.flush()
    except (OSError, ValueError):  # it has ended, or was ended
        return


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # entries are written whole or not at all
    process.wait()
    try:
        if process.stdin is not None:
            process.stdin.close()
    except OSError:
        return


def main() -> None:
    """Prepare what comes in, until it is done or the process that wants it is gone."""
    source = sys.stdin.buffer
    size = int.from_bytes(source.read(8), "little")
    jobs: tuple[Job, ...]
    jobs, machine, threads = pickle.loads(source.read(size))
    Thread(target=_stop_with_pipe, daemon=True).start()
    for program, plans in jobs:
        if is_prepared(program, machine, threads, plans):
            continue
        try:
            prepare(program, machine, threads, plans=plans).compile(machine)
        except PolyError:  # the process that needs it will say so
            continue


def _stop_with_pipe() -> None:
    sys.stdin.buffer.read(1)
    os._exit(0)
