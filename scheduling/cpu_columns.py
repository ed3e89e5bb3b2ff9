"""Several short loops of columns as one long loop of lanes, a result as its operands lie, or elements of an operand as
rows need them, where that is sooner done, copies included; or few columns and few rows.

A loop of 20 fills 20 of 32 lanes; all columns of an operand together (`poly.scheduling.joined_columns`) fill vectors.
A result in another order than its operands' is stored element by element (`poly.scheduling.laid_results`). Of lines
that are read with steps much is not used (`poly.scheduling.dense_operands`). Copies and the product are groups with
policies of their own; what the model gives them is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, prod

from poly.dtypes import size_bytes
from poly.locks import cached_property
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_contract import best_rated, least_cycles, least_of_plans
from poly.scheduling.cpu_core import core_of
from poly.scheduling.cpu_facts import Facts, bytes_touched, facts_of, own_capacity
from poly.scheduling.cpu_shares import FITTED_REMOTE, shared_time
from poly.scheduling.cpu_tile_work import ONE_BY_ONE, SHORT_VECTOR, SQUARES
from poly.scheduling.dense_operands import dense_operands
from poly.scheduling.groups import domain_box, groups_of
from poly.scheduling.joined_axes import join_axes
from poly.scheduling.joined_columns import columns_of
from poly.scheduling.joined_rows import Rows, rows_of
from poly.scheduling.laid_results import laid_results

FILLED = 0.9  # of the lanes, by the loop along which the result is contiguous: good enough
FEWEST = 4  # columns of which several rows are one vector: of two, shuffles are most of the work
MOST_PICKED = 4  # elements from one to the next, where these are picked from whole vectors
COPIES = 2  # times that operations take as long as copies of elements which lie apart: what these gain is guessed
# Of the cycles without copies, at most: closer to them, the model cannot tell; of elements that lie apart, whose lines
# cost more than it says, any gain.
GAIN, GAIN_APART = 0.95, 1.0


def with_columns(program: Program, machine: Machine, threads: int) -> Program:
    """The program with its contraction's columns as one loop, or a result or an operand in another order, where that
    pays.
    """
    if machine.kind != "cpu" or sum(s.combiner is not None for s in program.statements) != 1:
        return program
    rows = rows_of(program)
    if rows is not None and _fill(rows, machine):
        return rows.joined()
    moved = _moved(program, machine, threads)
    # Where one takes less than every plan of the program as it is takes in any case, none of these is rated.
    for cycles in (_least, _cycles) if moved else ():
        if (best := _soonest(moved, cycles(moved[0].source))) is not None:
            return best.program
    return program


def column_choices(program: Program, machine: Machine, threads: int) -> Iterator[tuple[Program, float]]:
    """What `with_columns` chooses from, the program as it is among it, with the cycles of its copies."""
    yield program, 0.0
    if machine.kind == "cpu" and sum(s.combiner is not None for s in program.statements) == 1:
        rows = rows_of(program)
        if rows is not None and _fill(rows, machine):
            yield rows.joined(), 0.0
        yield from ((m.program, m.copies) for m in _moved(program, machine, threads))


@dataclass(frozen=True)
class _Moved:
    """Another program for a contraction, the cycles of its copies, facts about the one that it is made of, and of that
    one's cycles the share that it may take.
    """

    program: Program
    copies: float
    source: Facts
    gain: float

    @cached_property
    def facts(self) -> Facts | None:
        return _facts(self.program, self.source.machine, self.source.threads)

    @cached_property
    def least(self) -> float:
        """Cycles that it takes in any case."""
        return self.copies + (_least(self.facts) if self.facts is not None else inf)

    @cached_property
    def cycles(self) -> float:
        return self.copies + (_cycles(self.facts) if self.facts is not None else inf)


def _moved(program: Program, machine: Machine, threads: int) -> list[_Moved]:
    """The programs that can be better than this one."""
    laid, joined = [*laid_results(program)], [way.joined() for way in columns_of(program)]
    dense = [*_worth_it(program, machine, threads)]
    facts = _facts(program, machine, threads) if laid or joined or dense else None
    lanes = facts.lanes() if facts is not None else None
    if facts is None or lanes is None:
        return []
    found = [(p, GAIN) for p in (laid if _filled(facts, lanes) > FILLED else laid + joined)]
    joint = [(join_axes(p), gain) for p, gain in (*found, *((p, GAIN_APART) for p in dense))]
    return [_Moved(p, _copies(p, program, machine, threads), facts, gain) for p, gain in joint]


def _soonest(moved: Sequence[_Moved], cycles: float) -> _Moved | None:
    """The one that takes the fewest cycles, if these are fewer than its share of `cycles`; what takes more in any case
    is not rated.
    """
    best: _Moved | None = None
    likely = [m for m in moved if m.copies + least_cycles(m.source) < m.gain * cycles]
    for one in sorted(likely, key=lambda m: (m.least, m.copies)):
        limit = min(one.gain * cycles, best.cycles if best is not None else inf)
        if one.least < limit and one.cycles < limit:
            best = one
    return best


def columns_like(program: Program, other: Program) -> Program:
    """What `with_columns` gives where it chooses as for another program, on any machine."""
    if str(program) == str(other):
        return program
    rows = rows_of(program)
    moved = (join_axes(p) for p in _others(program))
    return next((p for p in chain((rows.joined(),) if rows else (), moved) if p == other), program)


def _others(program: Program) -> Iterator[Program]:
    """The programs that a contraction can be made, by copies."""
    return chain(laid_results(program), (way.joined() for way in columns_of(program)), dense_operands(program))


def _worth_it(program: Program, machine: Machine, threads: int) -> Iterator[Program]:
    """Those with copies of elements that lie apart which take a small part of the operations' time, where lines of
    which few elements are used come slowly: from a last cache that is far, as not all stays in a core's own ones.
    """
    for dense in dense_operands(program) if core_of(machine, 1).afar else ():
        facts = _facts(dense, machine, threads)
        stays = bytes_touched(program, program.statements) <= own_capacity(machine)
        if facts is None or stays:
            continue
        if COPIES * _copies(dense, program, machine, threads) <= least_cycles(facts):
            yield dense


def _fill(rows: Rows, machine: Machine) -> bool:
    """Whether vectors hold several whole rows of the result, and these make whole vectors; where no batch is left, or
    rows fill vectors themselves, operands serve enough of these to be packed, or turned.
    """
    update, extent, n = rows.update, rows.ranges[rows.row], rows.columns
    lanes = machine.lanes(max(size_bytes(rows.program.tensor[a.tensor].dtype) for a, _ in update.accesses))
    return FEWEST <= n < lanes and extent < lanes and lanes % n == 0 and extent * n % lanes == 0


def _facts(program: Program, machine: Machine, threads: int) -> Facts | None:
    """Of the group of the reduction."""
    group = next(g for g in groups_of(program) if any(s.combiner is not None for s in g.statements))
    return facts_of(program, group, machine, threads) if group.box is not None else None


def _cycles(facts: Facts) -> float:
    """What the model gives a contraction; infinite where it has no plan."""
    lanes = facts.lanes()
    best = best_rated(facts, lanes) if lanes is not None else None
    return inf if best is None else best.cycles


def _least(facts: Facts) -> float:
    """What the model gives it at least."""
    lanes = facts.lanes()
    return inf if lanes is None else least_of_plans(facts, lanes)


def _filled(facts: Facts, lanes: int) -> float:
    """The part of vectors along a loop that is used."""
    whole = facts.machine.lanes(facts.widest())
    return facts.extents[lanes] / (-(-facts.extents[lanes] // whole) * whole)


def _copies(program: Program, source: Program, machine: Machine, threads: int) -> float:
    """Cycles of all copies, which its source does not have; none of constants, which are moved when compiling."""
    moved = [s for s in program.statements if s.name not in source.statement]
    moved = [s for s in moved if program.tensor[s.reads[0].tensor].role != "constant"]
    return sum((_gathered if _apart(s) else _copied)(program, s, machine, threads) for s in moved)


def _copied(program: Program, s: Statement, machine: Machine, threads: int) -> float:
    """Cycles of a copy by squares or short runs, and of its traffic. A short axis next to the one that the other side
    is contiguous along makes long runs with it.
    """
    extents = _extents(program, s)
    fast = [min(i.names, key=i.coefficient) for i in (a.affine_index[-1] for a in (s.reads[0], s.write))]
    across, along = (extents[n] for n in fast)
    elements, element = prod(extents.values()), size_bytes(program.tensor[s.write.tensor].dtype)
    short = s.reads[0] if across < along else s.write
    if fast[0] == fast[1]:
        each = SHORT_VECTOR * -(-along // machine.lanes(element)) / along
    elif {n for i in short.affine_index[-2:] for n in i.names} == {*fast}:
        each = 1 / SQUARES
    else:
        each = max(1 / SQUARES, SHORT_VECTOR / min(across, along))
    size = 2 * elements * element
    rate = min((c.rate for c in core_of(machine, element).caches if c.capacity < size), default=inf)
    return _shared(elements * each + size / rate, elements, threads)


def _shared(cycles: float, elements: int, threads: int) -> float:
    meetings = float(threads > 1)  # the product waits for the last thread
    return float(shared_time(cycles, elements, meetings, 0.0, threads, FITTED_REMOTE))


def _apart(s: Statement) -> bool:
    """Whether a copy reads with steps."""
    return any(len(i.terms) == 1 and abs(i.terms[0][1]) > 1 for i in s.reads[0].affine_index)


def _gathered(program: Program, s: Statement, machine: Machine, threads: int) -> float:
    """Cycles of a copy of elements that lie apart, rows along the last loop: its operations, the lines that it reads,
    from where they are when a kernel starts, and what it writes.
    """
    ranges, tensor = _extents(program, s), program.tensor[s.reads[0].tensor]
    element, elements = size_bytes(tensor.dtype), prod(ranges.values())
    core, name = core_of(machine, element), s.iterators[-1]
    shape, along = tensor.extents({}), ranges[name]
    axis, step = next((d, i.coefficient(name)) for d, i in enumerate(s.reads[0].affine_index) if name in i.names)
    step *= prod(shape[axis + 1 :])
    picked = step <= MOST_PICKED
    each = SHORT_VECTOR * -(-along // core.lanes) / along if picked else 1 / ONE_BY_ONE
    lines = min((along - 1) * step * element / core.line + 1, along)  # of a row that starts anywhere
    size, written = prod(shape) * element, elements * element
    far = core.caches[-1 if size > core.counted_on(len(core.caches) - 1) else len(core.own) - 1].rate
    near = min((c.rate for c in core.caches if c.capacity < written), default=inf)
    read = min(size, elements / along * lines * core.line)
    return _shared(elements * each + read / far + written / near, elements, threads)


def _extents(program: Program, s: Statement) -> dict[str, int]:
    box = domain_box(program, s, s.iterators)
    assert box is not None
    return {i: high - low + 1 for i, (low, high) in zip(s.iterators, box, strict=True)}
