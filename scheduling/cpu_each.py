"""Policy for a core, each statement for itself: for programs with free sizes, and where no other policy has code.

The choices of `poly.scheduling.cpu` weigh numbers that free sizes do not have. Here loops around several statements are
cut apart, reads under a condition inside of sums go through padded copies, what `poly.scheduling.cpu_free` and
`cpu_free_walks` know goes to them where that was asked for, and each other statement gets lanes, and rows of a register
tile where lanes are used again (`poly.scheduling.cpu_nests`, whose bounds may be symbols): whole blocks are split from
the rest at multiples of a block's size. What a check refuses stays as it was.
"""

from __future__ import annotations

from poly.errors import PolyError
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu_free import schedule_free
from poly.scheduling.cpu_free_walks import schedule_walks
from poly.scheduling.cpu_nests import schedule_nest
from poly.scheduling.cpu_padded_copies import with_padded_reads
from poly.scheduling.cpu_threads import share_outermost
from poly.scheduling.distribution import distributed
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.schedule import Schedule


def schedule_each(program: Program, machine: Machine, threads: int = 1, blocked: bool = False) -> Schedule:
    """A checked schedule; threads share the outermost loops that they can. `blocked`: contractions with free sizes are
    packed and blocked (`poly.scheduling.cpu_free`), which takes longer to compile and pays from some thousand products.
    """
    start, _ = distributed(unchecked(Schedule(program)))
    try:
        schedule = settle(start)
    except PolyError:
        schedule = Schedule(program)
    names = [s.name for s in program.statements if s.external is None]
    schedule, _ = with_padded_reads(schedule, schedule.program.statements)
    left = plain = names
    if blocked:
        schedule, left = schedule_free(schedule, names, machine, threads)
        schedule, plain = schedule_walks(schedule, left, machine)
    schedule = schedule_nest(schedule, plain, machine, 1)
    every = {s.source_name for s in schedule.program.statements} - (set(names) - set(left))
    return share_outermost(schedule, every, threads) if threads > 1 else schedule
