"""Constants of a model that come anew in every run: where they lie, and what its parts are told about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from poly.dtypes import Array
from poly.machine import Machine
from poly.pointers import aligned_bytes


def streaming(machine: Machine, constants: Mapping[str, Array]) -> Machine:
    """The machine as parts of a model have it whose constants the core's own caches do not hold from run to run."""
    own = sum(m.capacity or 0 for m in machine.own_caches)
    if machine.kind != "cpu" or sum(a.nbytes for a in constants.values()) <= own:
        return machine
    engines = (replace(e, cost={**e.cost, "streamed": 1}) if e.kind == "core" else e for e in machine.engines)
    return replace(machine, engines=tuple(engines))


def in_order_of_use(arrays: dict[str, Array], used: Sequence[str], machine: Machine) -> dict[str, Array]:
    """The arrays in one piece of memory, in the order in which they are used, each from a line on, those that the first
    cache holds before all others: who asks for what lies behind a large one asks for the next one.

    `arrays` is empty in the end, so that no array is there twice for long.
    """
    line, near = machine.line, machine.nearest_cache
    names = sorted(dict.fromkeys(n for n in used if n in arrays), key=lambda n: arrays[n].nbytes > near)
    size = sum(-(-arrays[n].nbytes // line) * line for n in names)
    memory, start, found = aligned_bytes(size), 0, dict[str, Array]()
    for n in names:
        array = np.ascontiguousarray(arrays.pop(n))
        found[n] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        found[n][...] = array
        start += -(-array.nbytes // line) * line
    return found
