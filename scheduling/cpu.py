"""Policy for a core with vector registers: composes primitives, knows nothing of operators.

Every fusion group goes to the first of `POLICIES` that recognises its kind, chooses, and composes primitives
(docs/decisions/0006). Most of them have the parallel loops outside, shared by all statements of the group, one of them
as lanes, and what a reduction adds up in registers; edges are index-set splits, so that every register tile is whole.
Groups of rows (`poly.scheduling.row_groups`) share only outer loops and run one pass over a cache-resident row after
another (`poly.scheduling.cpu_rows`), groups of row blocks one part after another (`poly.scheduling.cpu_stages`); where
they cannot, their parts are groups again. Then threads share loops (`poly.scheduling.cpu_threads`). Zhao et al. call
the first step a conservative start-up fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Generic, TypeVar

from poly.errors import PolyError, ScheduleError
from poly.machine import Machine
from poly.program import PathStep, Program
from poly.scheduling.capacity import check_capacity
from poly.scheduling.cpu_across import across_of, schedule_across
from poly.scheduling.cpu_beside import beside_of, schedule_beside
from poly.scheduling.cpu_block import schedule_contraction
from poly.scheduling.cpu_chain import keep_values
from poly.scheduling.cpu_column_blocks import column_blocks_of, schedule_column_blocks
from poly.scheduling.cpu_contract import contraction_of
from poly.scheduling.cpu_edits import pieces_of
from poly.scheduling.cpu_free import schedule_free
from poly.scheduling.cpu_free_walks import schedule_walks
from poly.scheduling.cpu_handed import handed_of, schedule_handed
from poly.scheduling.cpu_interleaved import interleaved_of, schedule_interleaved
from poly.scheduling.cpu_lanes import tiles_of
from poly.scheduling.cpu_nests import schedule_nest
from poly.scheduling.cpu_permute import permutation_of, schedule_permutation
from poly.scheduling.cpu_plan import Plans
from poly.scheduling.cpu_private import schedule_private
from poly.scheduling.cpu_reduce import reduction_of
from poly.scheduling.cpu_reduce_nest import schedule_reduction
from poly.scheduling.cpu_rows import row_plan
from poly.scheduling.cpu_rows_nest import schedule_rows
from poly.scheduling.cpu_runs import runs_of, schedule_runs
from poly.scheduling.cpu_scan import schedule_scans
from poly.scheduling.cpu_siblings import schedule_siblings, siblings_of
from poly.scheduling.cpu_stages import schedule_stages, stages_of
from poly.scheduling.cpu_threads import is_short, share, share_outermost
from poly.scheduling.cpu_tile import schedule_tiles
from poly.scheduling.cpu_turned import schedule_turned, turned_of
from poly.scheduling.cpu_window import window_of
from poly.scheduling.cpu_window_nest import schedule_window
from poly.scheduling.distribution import distributed
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.groups import Group
from poly.scheduling.leaving import left_early
from poly.scheduling.nowait import without_meetings
from poly.scheduling.private_nests import whole_nests
from poly.scheduling.row_groups import groups_for
from poly.scheduling.schedule import Schedule
from poly.scheduling.side_by_side import is_side_by_side, side_by_side, with_shared_loops


def schedule_for_cpu(
    program: Program, machine: Machine, threads: int = 1, begin: Callable[[Schedule], None] | None = None,
    plans: Plans = (),
) -> Schedule:  # fmt: skip
    """A checked schedule of a program for a core.

    `begin` is called with the schedule that is about to be checked, where nothing is done to it after that.
    A program that is over before other threads could help is planned for one. `plans`: of groups for which nothing is
    chosen; where one of them is refused, so is the schedule (`ScheduleError`).
    """
    if threads > 1 and not plans and is_short(unchecked(Schedule(program)), machine, lanes=True):

        def begin_short(schedule: Schedule) -> None:
            if begin is not None and is_short(schedule, machine):
                begin(schedule)

        on_one = _schedule(program, machine, 1, begin_short)
        if is_short(on_one, machine):
            return on_one
    return _schedule(program, machine, threads, begin, plans)


def _schedule(
    program: Program, machine: Machine, threads: int, begin: Callable[[Schedule], None] | None, plans: Plans = ()
) -> Schedule:
    """`schedule_for_cpu` for as many threads as it is worth.

    Loops around several statements are cut apart where that is legal (`poly.scheduling.distribution`), so that the
    pieces are groups. All groups are checked together; only where that refuses is each checked alone, and those that
    cannot be scheduled keep the program's own order. Then the statements of no group, each for itself.
    """
    start, apart = distributed(unchecked(Schedule(program)))
    every = side_by_side(apart, groups_for(apart, machine, threads), machine)
    whole = whole_nests(program, every)
    if whole and not plans:
        try:
            return _schedule_whole(program, whole, machine, threads)
        except PolyError:  # whatever refuses it, a nest that cannot stay whole is cut apart, as without private values
            pass
    try:
        schedule = _by_plans(start, every, machine, threads, plans)
        left = [g for g in every if not _can_be_planned(g)]
        if begin is not None and not left:
            begin(schedule)
        schedule = settle(schedule)
    except ScheduleError:
        if plans:
            raise
        return schedule_one_by_one(program, machine, threads)
    none = len(left) == len(every)  # where some have plans, most of what takes long is checked by now
    return _with_nests(schedule, left, machine, threads, begin if none else None)


def _schedule_whole(program: Program, whole: Collection[PathStep], machine: Machine, threads: int) -> Schedule:
    """Like `_schedule`, some nests not cut apart. Raises `ScheduleError` where one cannot be scheduled so."""
    start, apart = distributed(unchecked(Schedule(program)), whole)
    every = groups_for(apart, machine, threads)
    nests = [s.name for s in program.statements if s.path[0] in whole]
    try:
        schedule, left = settle(_by_plans(start, every, machine, threads)), [g for g in every if not _can_be_planned(g)]
        if len(left) < len(every):
            check_capacity(schedule.lower(), machine)
    except ScheduleError:
        schedule, left = _by_plans_alone(settle(start), every, machine, threads)
    schedule = schedule_private(schedule, nests, machine)
    schedule = share_outermost(schedule, nests, threads) if threads > 1 else schedule
    schedule = left_early(schedule)
    return _with_nests(schedule, [g for g in left if not {*g.names} <= {*nests}], machine, threads)


def _by_plans(
    schedule: Schedule, groups: Sequence[Group], machine: Machine, threads: int, plans: Plans = ()
) -> Schedule:
    given = dict(plans)
    for group in filter(_can_be_planned, groups):
        plan = given.get(group.names)
        if plan is None:
            schedule = schedule_group(schedule, group, machine, threads)
        else:
            schedule = _shared(schedule, schedule_contraction(schedule, group, plan, machine), group, machine, threads)
    return without_meetings(schedule) if threads > 1 else schedule


def schedule_one_by_one(program: Program, machine: Machine, threads: int = 1) -> Schedule:
    """Like `schedule_for_cpu`, each group checked alone, for legality and for fitting the machine's memories."""
    try:
        start, apart = distributed(unchecked(Schedule(program)))
        schedule = settle(start)
    except ScheduleError:
        schedule, apart = Schedule(program), program
    schedule, left = _by_plans_alone(schedule, groups_for(apart, machine, threads), machine, threads)
    return _with_nests(schedule, left, machine, threads)


def _by_plans_alone(
    schedule: Schedule, every: Sequence[Group], machine: Machine, threads: int
) -> tuple[Schedule, list[Group]]:
    """Groups in a checked schedule, each checked alone, and those that have no plan, or whose plan was refused."""
    groups, left = [g for g in every if _can_be_planned(g)], [g for g in every if not _can_be_planned(g)]
    while groups:
        group = groups.pop(0)
        try:
            candidate = settle(schedule_group(unchecked(schedule), group, machine, threads), schedule)
            check_capacity(candidate.lower(), machine)
            schedule = candidate
        except ScheduleError:
            groups[:0] = group.parts
            left += [] if group.parts else [group]
    return schedule, left


def _with_nests(
    schedule: Schedule, groups: Sequence[Group], machine: Machine, threads: int,
    begin: Callable[[Schedule], None] | None = None,
) -> Schedule:  # fmt: skip
    """The statements of groups that have no plan, or whose plan was refused."""
    names = [s.name for g in groups for s in g.statements if s.external is None]
    if not names:
        return schedule
    schedule, rest = schedule_free(schedule, names, machine, threads, begin)
    schedule, plain = schedule_walks(schedule_scans(schedule, rest, machine), rest, machine)
    schedule = schedule_nest(schedule, plain, machine, 1)
    schedule = share_outermost(schedule, rest, threads) if threads > 1 else schedule
    return left_early(schedule) if plain else schedule


def _can_be_planned(group: Group) -> bool:
    return group.box is not None and bool(group.axes) and all(s.external is None for s in group.statements)


P = TypeVar("P")


@dataclass(frozen=True)
class Policy(Generic[P]):
    """`recognise`: the choices for a group, from program, group, machine and threads, None where it is of another
    kind; `compose`: the primitives that carry them out (raises `ScheduleError` where one does not apply).
    """

    recognise: Callable[[Program, Group, Machine, int], P | None]
    compose: Callable[[Schedule, Group, P, Machine], Schedule]

    def apply(self, schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule | None:
        """The group in a schedule; None where it is not of this kind, or has not the form for its primitives."""
        plan = self.recognise(schedule.program, group, machine, threads)
        if plan is None:
            return None
        try:
            return self.compose(schedule, group, plan, machine)
        except ScheduleError:
            return None


ACROSS: Final = Policy(across_of, schedule_across)  # of a reduction of short rows, and of groups of them
SIBLINGS: Final = Policy(siblings_of, schedule_siblings)  # of groups of sums of columns
COLUMNS: Final = Policy(column_blocks_of, schedule_column_blocks)  # of groups of rows with lanes across them
STAGES: Final = Policy(stages_of, schedule_stages)  # of groups of row blocks only
POLICIES: Final = (
    Policy(turned_of, schedule_turned),
    Policy(window_of, schedule_window),
    Policy(beside_of, schedule_beside),
    Policy(permutation_of, schedule_permutation),
    Policy(runs_of, schedule_runs),
    Policy(interleaved_of, schedule_interleaved),
    ACROSS,
    Policy(reduction_of, schedule_reduction),
    Policy(contraction_of, schedule_contraction),
    Policy(handed_of, schedule_handed),
    Policy(tiles_of, schedule_tiles),
)


def left_to_contractions(program: Program, group: Group, machine: Machine, threads: int) -> bool:
    """Whether none of `POLICIES` before the one for contractions recognises a group."""
    before = takewhile(lambda policy: policy.recognise is not contraction_of, POLICIES)
    return all(policy.recognise(program, group, machine, threads) is None for policy in before)


def schedule_group(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Fuse, split, tile, promote and mark one group inside a schedule, by the first of `POLICIES` that can.

    The particular kinds come before those that contain them. A window is a reduction whose operands are used again,
    but along loops that a register tile of a contraction would not see; it slides beside lanes that are turned to be
    contiguous, where rows are too narrow for vectors, along the lanes, or beside them.
    Permutations and runs are assignments: first where squares are turned in registers, then where another order of the
    loops is enough. Of the reductions, those that use nothing twice are bound by memory and walk it in order, unless
    their rows are too short for lanes; contractions use operands again and are blocked. Tiles of lanes or of
    independent sums suit every group with a box. What threads do not share after all is planned for one of them.
    Raises `ScheduleError` where none fits.
    """
    if group.parts:
        return _schedule_parts(schedule, group, machine, threads)
    for policy in POLICIES:
        found = policy.apply(schedule, group, machine, threads)
        if found is not None:
            shared = _shared(schedule, found, group, machine, threads)
            on_one = shared is found and threads > 1 and any(s.combiner is not None for s in group.statements)
            return (policy.apply(schedule, group, machine, 1) if on_one else None) or shared
    raise ScheduleError(f"no policy fits {', '.join(group.names)}", where=schedule.source.name)


def _schedule_parts(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """A group of rows or of row blocks as one nest, or where its statements have no common way to run, as its parts."""
    if is_side_by_side(group):
        return _schedule_beside(schedule, group, machine, threads)
    found = (STAGES if group.block else ACROSS).apply(schedule, group, machine, threads)
    rows = row_plan(schedule.program, group, machine, threads) if found is None and not group.block else None
    if rows is not None:
        found = keep_values(schedule_rows(schedule, group, rows, machine, threads), group, machine)
    if found is not None:
        return _shared(schedule, found, group, machine, threads, len(group.box or ()))
    for policy in () if group.block else (SIBLINGS, COLUMNS):
        together = policy.apply(schedule, group, machine, threads)
        if together is not None:
            return _shared(schedule, keep_values(together, group, machine), group, machine, threads)
    for part in group.parts:
        schedule = schedule_group(schedule, part, machine, threads)
    return schedule


def _schedule_beside(schedule: Schedule, group: Group, machine: Machine, threads: int) -> Schedule:
    """Parts of one tensor, each as it is by itself, but for the loops that they share."""
    found = schedule
    for part in group.parts:
        found = schedule_group(found, part, machine, 1)
    return _shared(schedule, with_shared_loops(found, group), group, machine, threads, len(group.box or ()))


def _shared(
    before: Schedule, schedule: Schedule, group: Group, machine: Machine, threads: int, depth: int | None = None
) -> Schedule:
    """A group that was put in a schedule, its nests and those of its copies shared by threads."""
    if threads == 1:
        return schedule
    new = schedule.program.statement.keys() - before.program.statement.keys()
    return share(schedule, {*pieces_of(schedule, group), *new}, machine, threads, depth)
