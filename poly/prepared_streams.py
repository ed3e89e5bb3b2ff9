"""Programs for an accelerator from the disk cache: schedule, loops and command stream, verified when they were made.

As `poly.prepared` for a core: what is kept depends on the program, the machine, the schedule where one is given, the
digests of constants, and on this package alone. Data of constants is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from poly.accel.compiled import StreamKernel, compile_stream
from poly.accel.isa import CommandStream, digest_of
from poly.cache_content import content_text, package_hash, pickled, read_pickle
from poly.disk_cache import cache_entry, write_entry
from poly.dtypes import Array, numpy_dtype
from poly.loops import LoopTree
from poly.machine import Machine
from poly.pauses import collection_paused
from poly.program import Program
from poly.scheduling.edits import settled
from poly.scheduling.schedule import Schedule


@dataclass(frozen=True)
class _Kept:
    """An entry of the disk cache."""

    schedule: Schedule
    loops: LoopTree
    stream: CommandStream


def prepare_stream(
    program: Program, machine: Machine, constants: Mapping[str, Array], schedule: Schedule | None = None
) -> StreamKernel:
    """A program for an accelerator under a schedule, the policy's where none is given, from the cache where it has it.

    Raises `PolyError` kinds of `compile`.
    """
    start = perf_counter()
    known = [t for t in program.tensors if t.name in constants]
    typed = {t.name: np.asarray(constants[t.name], numpy_dtype(t.dtype)) for t in known}
    digests = repr(sorted((name, digest_of(data)) for name, data in typed.items()))
    given = "" if schedule is None else f"{schedule.checked} {content_text(schedule)}"
    path = cache_entry("streams", (str(program), given, digests, machine.hash, package_hash()), ".pickle")
    found = read_pickle(path)
    if isinstance(found, _Kept):
        data = {s.name: np.ascontiguousarray(typed[s.name]) for s in found.stream.symbols if s.name in typed}
        stream = replace(found.stream, constants=data)
        return StreamKernel(program, machine, found.loops, stream, found.schedule, perf_counter() - start)
    with collection_paused():
        kernel = compile_stream(program, machine, constants, schedule=settled(schedule) if schedule else None)
    if path is not None:
        bare = replace(kernel.stream, constants={})
        write_entry(path, pickled(_Kept(kernel.schedule, kernel.loops, bare)))
    return kernel
