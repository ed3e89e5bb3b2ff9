"""Choices for groups with rows: contractions and convolutions in a register tile, blocked and packed by a model.

Which loop is rows, what is packed and where, and the order of the tile loops are listed (`poly.scheduling.cpu_ways`),
and sizes of the tile and of the blocks are a grid that is rated at once (`poly.scheduling.cpu_rating`). Nothing is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, zip_longest
from math import gcd, inf

from poly.dtypes import size_bytes
from poly.expr import FOR_UNITS, Apply
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_core import core_of, last_share
from poly.scheduling.cpu_facts import Facts, axis_of, facts_of
from poly.scheduling.cpu_matrix_ways import RatedMatrixWays
from poly.scheduling.cpu_nontemporal import row_bytes, tensors_read_anywhere
from poly.scheduling.cpu_plan import BlockPlan
from poly.scheduling.cpu_rating import Rated, RatedWays
from poly.scheduling.cpu_ways import Way, operation_cycles
from poly.scheduling.groups import Group, tensors_written
from poly.text import print_statement

MOST_OTHERS = 2  # loops that are tried as lanes besides the contiguous one
FELT = 1 / 8  # of the time of operations: what results take at least that go past the caches from register tiles
SLOWER = 2.0  # times what is rated that vectors take for operators which only a matrix unit has as one command
GOOD = 1.05  # of the least cycles: where the contiguous loop as lanes takes more, others are tried


def contraction_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> BlockPlan | None:
    """The choices for a group around one contraction; None for any other."""
    if group.box is None:
        return None
    found = chosen_plan(facts_of(program, group, machine, threads))
    return None if found is None else found.plan


def chosen_plan(facts: Facts) -> Rated | None:
    """The plan of `contraction_of` and its cycles."""
    lanes = facts.lanes()
    best = None if lanes is None else best_rated(facts, lanes)
    return None if best is None or lanes is None else _as_used(facts, lanes, best)


def _as_used(facts: Facts, lanes: int, rated: Rated) -> Rated:
    """A plan with the results that go past the caches."""
    plan = rated.plan
    if plan.lanes != lanes:
        return rated
    return Rated(rated.cycles, lambda: replace(plan, past=results_past_tiles(facts, plan, operation_cycles(facts))))


def results_past_tiles(facts: Facts, plan: BlockPlan, cycles: float) -> frozenset[str]:
    """The results that register tiles of a contraction write past the caches, whole lines of a row one after the other:
    such as fill what its threads count on of the last cache, and take a good part of the time to be fetched and written
    back, for which a core waits in every tile. `cycles`: of the operations.
    """
    program, names, machine = facts.program, facts.group.names, facts.machine
    others = {s.write.tensor for s in program.statements if s.external is None and s.name not in names}
    read = tensors_read_anywhere(program)
    targets = {s.write.tensor for s in facts.group.statements if not s.write.indirect} - others - read
    found = [t for t in program.tensors if t.name in targets and t.role == "output"]
    written = sum(t.nbytes(program.binding) for t in found)
    felt = written / core_of(machine, facts.widest()).caches[-1].rate >= cycles * FELT
    filled = 0 < last_share(machine, facts.threads) <= written
    if not felt or not filled or plan.depth is not None or not plan.lanes_inside:
        return frozenset()
    pieces = {t.name: gcd(*(plan.vector * s.width * size_bytes(t.dtype) for s in plan.strips)) for t in found}
    whole = {t.name for t in found if gcd(row_bytes(t, program.binding), pieces[t.name]) % machine.line == 0}
    return frozenset(whole)


def contraction_plan(facts: Facts, lanes: int) -> BlockPlan | None:
    """Lanes along one loop and rows along another; None where no loop's neighbours use anything again.

    `lanes`: a loop along which all writes are contiguous; others are tried where one register tile is all that is
    written, so that it can be turned in registers.
    """
    best = best_rated(facts, lanes)
    return None if best is None else best.plan


def best_rated(facts: Facts, lanes: int) -> Rated | None:
    """The plan of `contraction_plan` and the cycles that the model gives it; remembered, since edits of the whole
    program ask for it before the policy does, when other groups have their schedules.
    """
    update, group = facts.update, facts.group
    if update is None:
        return None
    content = (*_asked_of(facts.program, group), *sorted(group.axes.items()), group.box, *facts.extents, facts.threads)
    return _remembered(_Key((*content, facts.machine.hash), lanes, facts, update))


def _asked_of(program: Program, group: Group) -> Iterator[object]:
    """What a group's rating asks of a program: its statements but for their order, the sizes, the tensors that they
    touch, and which of these others write.
    """
    own = {t for s in group.statements for t in s.tensors}
    written = {t for s in program.statements if s.name not in group.names for t in tensors_written(s)}
    yield from (str(program.context), program.sizes)
    yield from map(print_statement, group.statements)
    yield from (str(program.tensor[t]) for t in sorted(own))
    yield tuple(sorted(own & written))


@dataclass(frozen=True)
class _Key:
    """All that the best plan follows from, as values; the facts themselves hold sets of isl, equal to no others."""

    content: tuple[object, ...]
    lanes: int
    facts: Facts = field(compare=False)
    update: Statement = field(compare=False)


@lru_cache(maxsize=32)
def _remembered(key: _Key) -> Rated | None:
    facts, lanes, update = key.facts, key.lanes, key.update
    uneven = lanes in facts.uneven
    best = None if uneven else _best(facts, update, lanes, None)
    if best is None and not uneven:
        return None
    if best is None or best.cycles > GOOD * least_cycles(facts):
        for axis in other_lanes(facts, update, lanes):
            best = _best(facts, update, axis, best) or best
    on_unit = None if uneven else RatedMatrixWays(facts, update, lanes).best_on_unit()
    slower = SLOWER if isinstance(update.body, Apply) and update.body.operator in FOR_UNITS else 1.0
    return on_unit if on_unit is not None and (best is None or on_unit.cycles < slower * best.cycles) else best


def _best(facts: Facts, update: Statement, lanes: int, best: Rated | None) -> Rated | None:
    """The best plan with these lanes, if it is better than one that is known; ways whose operations alone take longer
    than a whole plan are not rated further.
    """
    found = _ways(facts, update, lanes).best(best.cycles if best is not None else inf)
    return best if found is None or (best is not None and best.cycles <= found.cycles) else found


def _ways(facts: Facts, update: Statement, lanes: int) -> RatedWays:
    """What can be chosen; its register tiles are found once for the least that plans take and for the best of them."""
    kept: dict[int, RatedWays] = facts.__dict__.setdefault("_ways", {})
    return kept.setdefault(lanes, RatedWays(facts, update, lanes))


def least_of_plans(facts: Facts, lanes: int) -> float:
    """Cycles that the plan of `best_rated` takes at least: told without rating what it brings into caches."""
    update = facts.update
    if update is None:
        return inf
    own = [] if lanes in facts.uneven else [lanes]
    least = [_ways(facts, update, a).least for a in (*own, *other_lanes(facts, update, lanes))]
    return min((*least, *(RatedMatrixWays(facts, update, a).least_on_unit for a in own)), default=inf)


def other_lanes(facts: Facts, update: Statement, lanes: int) -> list[int]:
    """The longest loops that can be lanes besides the contiguous one."""
    others = [a for a, extent in enumerate(facts.extents) if a != lanes and extent > 1 and _turned(facts, update, a)]
    others = [a for a in others if a not in facts.uneven]
    return sorted(others, key=lambda a: -facts.extents[a])[:MOST_OTHERS]


def other_plans(facts: Facts, count: int, far: float) -> list[tuple[int, Rated]]:
    """Plans besides the one that is chosen: of the best of every way to do it by turns so many, each with its turn,
    none predicted to take more than `far` times as long as the best. So they differ in more than a block size.
    """
    update, lanes = facts.update, facts.lanes()
    chosen = None if lanes is None else best_rated(facts, lanes)
    if update is None or lanes is None or chosen is None:
        return []
    own = () if lanes in facts.uneven else (lanes,)
    ways = [found for axis in own for found in RatedMatrixWays(facts, update, axis).best_of_each_on_unit(count)]
    for axis in (*own, *other_lanes(facts, update, lanes)):
        choices = RatedWays(facts, update, axis)
        ways += [found for way in choices.ways() if (found := list(choices.best_of_each([way], count)))]
    ways.sort(key=lambda found: found[0].cycles)
    limit = far * min(chosen.cycles, ways[0][0].cycles)
    turns = ((n, r) for n, turn in enumerate(zip_longest(*ways)) for r in turn if r is not None and r.cycles <= limit)
    found = islice(((n, r) for n, r in turns if r.plan != chosen.plan), count)
    return [(n, _as_used(facts, lanes, r)) for n, r in found]


def least_cycles(facts: Facts) -> float:
    """Cycles of a group's multiply-adds alone, shared by its threads."""
    return operation_cycles(facts) / facts.threads


def _turned(facts: Facts, s: Statement, axis: int) -> bool:
    """Whether a loop can be lanes though the reduction's target is not contiguous along it."""
    at = axis_of(s.write, facts.group.axes[s.name][axis])
    if at is None or at == len(s.write.index) - 1:
        return False
    before = [o for o in facts.group.statements if o is not s and o.write.tensor == s.write.tensor]
    return all(o.combiner is None and facts.regular(o, axis) for o in before)


def rated_plans(
    facts: Facts, update: Statement, lanes: int, suits: Callable[[Way], bool], *, whole: bool = False
) -> Iterator[Rated]:
    """The best plan of every way to do it that `suits`; `whole`: of those that do not cut the reduction."""
    ways = RatedWays(facts, update, lanes)
    return ways.best_of_each(filter(suits, ways.ways()), 1, whole=whole)
