"""Policy: whether a call of a kernel with free sizes is worth other threads' time, once its sizes are known.

Loops of known sizes are judged when they are scheduled (`poly.scheduling.cpu_threads`); a schedule for all sizes cannot
know how long a call takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from poly.affine import Affine
from poly.locks import cached_property
from poly.program import Program
from poly.relations import extents_of, intervals_of

# Instances that run between two meetings: with fewer, one thread runs the call. Sums keep what they make in registers:
# `SUMS_FOR_A_WRITE` of their instances take as long as one that writes, or less.
LEAST_CALL_SHARED: Final = 1 << 16
SUMS_FOR_A_WRITE: Final = 2


@dataclass(frozen=True)
class CallWork:
    """How much calls of a program do under values of its sizes."""

    program: Program

    def is_shared(self, sizes: Mapping[str, int], meetings: int) -> bool:
        """Whether it pays that threads share a call and meet so often."""
        counts = self.instances(sizes)
        sums = sum(counts[s.name] for s in self.program.statements if s.combiner is not None)
        work = sum(counts.values()) - sums + sums // SUMS_FOR_A_WRITE
        return work >= LEAST_CALL_SHARED * meetings

    def instances(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Instances of each statement, of the boxes around their domains. For those that are no boxes isl is asked,
        which takes as long as a call.
        """
        counts = {name: prod(max(0, int(e.evaluate(sizes))) for e in extents) for name, extents in self.boxes.items()}
        left = [s for s in self.program.statements if s.name not in self.boxes]
        if left:
            bound = self.program.bind(**{p: sizes[p] for p in self.program.parameters if p in sizes})
            ends = {s.name: intervals_of(bound, bound.statement[s.name]).values() for s in left}
            counts |= {name: prod(0 if e is None else e[1] - e[0] + 1 for e in found) for name, found in ends.items()}
        return counts

    @cached_property
    def boxes(self) -> Mapping[str, tuple[Affine, ...]]:
        """The extents of the statements that are boxes whatever the sizes."""
        found = {s.name: extents_of(self.program, s) for s in self.program.statements}
        return {name: tuple(extents.values()) for name, extents in found.items() if extents is not None}
