"""Policy for what no group with a box describes: nests in loops that run in order, triangles, recurrences.

Each statement for itself, in the loops that it has alone: one that carries nothing becomes lanes. Where a step of it is
a step in memory for the target, it goes innermost, below the loops of a sum, whose lanes stay in registers; where it
only sums up, each lane has a partial result. The first iteration is moved to 0 and the whole vectors are split from the
rest, both by bounds affine in the loops around. What a check refuses stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.errors import PolyError, ScheduleError
from poly.loops import MAX_LANES
from poly.machine import Machine
from poly.program import Access, Program, ReadIndex, Statement, Tensor
from poly.relations import ends_of, interval_of
from poly.scheduling.contraction import names_of
from poly.scheduling.cpu_edits import cut_at, in_vectors, loops_of_copy, unrolled, whole_blocks
from poly.scheduling.cpu_facts import stride, widest_in_lanes
from poly.scheduling.cpu_threads import share_outermost
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.paths import common_prefix
from poly.scheduling.schedule import Schedule

MOST_VECTORS = 4  # of one loop at a time: enough to hide most of the latency of a multiply-add
ROW_VECTORS = 2  # of each of several rows


@dataclass(frozen=True)
class Lanes:
    """`iterator` as lanes; `summed`: it steps along no axis of the target, which gets partial results. `scattered`:
    what is read does not lie side by side, so that one vector of it takes as long as its sum."""

    iterator: str
    summed: bool
    scattered: bool = False


def schedule_nest(schedule: Schedule, names: Sequence[str], machine: Machine, threads: int) -> Schedule:
    """Lanes, and threads where they pay, for the statements `names` of a checked schedule."""
    for name in (n for n in names if n in schedule.nests):
        for lanes in lanes_of(schedule, name, machine):
            try:
                schedule = settle(with_lanes(unchecked(schedule), name, lanes, machine), schedule)
                break
            except PolyError:
                continue
        else:
            schedule = _sum_kept(schedule, name, machine)
    schedule = _scalars_kept(schedule, names, machine)
    return share_outermost(schedule, names, threads) if threads > 1 else schedule


def _sum_kept(schedule: Schedule, name: str, machine: Machine) -> Schedule:
    """A sum along innermost loops in a register meanwhile, in its order; as it was where that does not apply."""
    s, own = schedule.program.statement[name], own_loops(schedule, name)
    sums = _sums(schedule, s, own, None)
    along = next((n for k, n in enumerate(own) if set(own[k:]) <= set(sums)), None)
    if along is None or s.external is not None or s.write.indirect:
        return schedule
    names = schedule.nests[name].names
    outer = names[names.index(along) - 1] if names.index(along) else None
    try:
        return settle(in_registers(unchecked(schedule), s.write.tensor, outer, machine, users=[name]), schedule)
    except PolyError:
        return schedule


def _scalars_kept(schedule: Schedule, names: Sequence[str], machine: Machine) -> Schedule:
    """Scalars that some statements hand on to one another in a register, below the loops that all of these share, or
    where they share none around each outermost loop with several of them."""
    for tensor in (t for t in schedule.program.tensors if t.role == "temporary" and not t.shape and not t.scope):
        users = [s.name for s in schedule.program.statements if tensor.name in s.tensors]
        loop = _innermost(schedule, users)
        for nest in [users] if loop else _by_outermost(schedule, users):
            if not {*nest} <= {*names} or not _is_handed_on(schedule.program, tensor.name, nest):
                continue
            try:
                schedule = settle(in_registers(unchecked(schedule), tensor.name, loop, machine, nest), schedule)
            except PolyError:
                continue
    return schedule


def _is_handed_on(program: Program, tensor: str, names: Sequence[str]) -> bool:
    """Whether one of some statements reads what one of them writes."""
    those = [program.statement[n] for n in names]
    writers = [s for s in those if s.write.tensor == tensor]
    read = any(r.tensor == tensor for s in those for r in s.reads)
    return bool(writers) and (read or any(s.combiner is not None for s in writers))


def _innermost(schedule: Schedule, names: Sequence[str]) -> str | None:
    """The innermost of the loops that some statements share."""
    around = common_prefix(*(schedule.nests[n].path for n in names)) if names else ()
    return next((step for step in reversed(around) if isinstance(step, str)), None)


def _by_outermost(schedule: Schedule, names: Sequence[str]) -> list[list[str]]:
    """Statements by the outermost loop around them."""
    found: dict[str, list[str]] = {}
    for name in names:
        if loops := schedule.nests[name].names:
            found.setdefault(loops[0], []).append(name)
    return list(found.values())


def own_loops(schedule: Schedule, name: str) -> tuple[str, ...]:
    """The loops that a statement has alone, outermost first."""
    return tuple(n for n in schedule.nests[name].names if len(schedule.under(n)) == 1)


def lanes_of(schedule: Schedule, name: str, machine: Machine) -> list[Lanes]:
    """What may become lanes, best first: the target's last axis before sums, then what steps along most reads. Without
    sums, lines hold several of the elements that lanes touch."""
    s = schedule.program.statement[name]
    if s.external is not None:
        return []
    nest, tensors, sizes = schedule.nests[name], schedule.program.tensor, schedule.program.binding
    apart = [machine.line // size_bytes(tensors[a.tensor].dtype) for a, _ in s.accesses]

    def in_lines(steps: Sequence[int | None]) -> bool:
        return all(step is not None and abs(step) < most for step, most in zip(steps, apart, strict=True))

    found: list[tuple[bool, bool, int, int, Lanes]] = []
    for depth, loop in enumerate(own_loops(schedule, name)):
        iterator = next((i for i in s.iterators if nest.loops[loop] == var(i)), None)
        if iterator is None:
            continue
        steps = [step_of_access(s, a, tensors, iterator, sizes) for a, _ in s.accesses]
        summed = steps[-1] == 0  # of what is written
        scattered = any(step not in (0, 1) for step in steps)
        if any(step is None for step in steps) or (s.combiner is None if summed else scattered and not in_lines(steps)):
            continue
        lanes = Lanes(iterator, summed, scattered)
        found.append((not scattered, not summed, sum(step == 1 for step in steps), depth, lanes))
    return [lanes for *_, lanes in sorted(found, key=lambda r: r[:4], reverse=True)]


def step_of_access(
    s: Statement, access: Access, tensors: Mapping[str, Tensor], iterator: str, sizes: Mapping[str, int]
) -> int | None:
    """Elements from one iteration to the next; a place that was read stands still where its own read does."""
    places = [s.reads[x.position] for x in access.index if isinstance(x, ReadIndex)]
    if any(step_of_access(s, place, tensors, iterator, sizes) != 0 for place in places):
        return None
    still = tuple(Affine() if isinstance(x, ReadIndex) else x for x in access.index)
    return stride(replace(access, index=still), tensors[access.tensor], iterator, sizes)


def with_lanes(schedule: Schedule, name: str, lanes: Lanes, machine: Machine) -> Schedule:
    """One statement in vectors. Raises `ScheduleError` where the loop is too short, or an edit does not apply."""
    s = schedule.program.statement[name]
    loop = _loop(schedule, name, lanes.iterator)
    ends = ends_of(schedule.program, s, lanes.iterator)
    others = [n for n in own_loops(schedule, name) if n != loop]
    sums = [] if lanes.summed else _sums(schedule, s, others, ends)
    rows = [n for n in others if n not in sums]
    row = _row(schedule, s, rows, lanes.iterator, ends) if sums else ""
    most = ROW_VECTORS if row else MOST_VECTORS
    width, vectors = blocks_of(schedule.program, [s], lanes.iterator, machine, 1 if lanes.scattered else most)
    if width < 2:
        raise ScheduleError(f"loop {loop} has no two iterations")
    order = [*(n for n in rows if n != row), *filter(None, [row]), loop, *sums]
    if len(order) > 1 and tuple(order) != own_loops(schedule, name):
        schedule = schedule.reorder(*order)
    if ends is None:
        return _blocked(schedule, name, loop, width, False, machine)
    schedule = shifted_to_zero(schedule, name, loop, ends[0])
    pieces = [name]
    if row:
        height = max(1, (machine.vector_registers - vectors - 1) // vectors)
        schedule, pieces = _in_rows(schedule, name, row, height)
    for piece in pieces:
        depth = len(schedule.nests[piece].names) - 1 - len(sums) - bool(row)
        lane = schedule.nests[piece].names[depth]
        schedule, parts = cut_whole(schedule, piece, lane, ends, width * vectors, width)
        for part, step in parts:
            lane = schedule.nests[part].names[depth]
            schedule = _blocked(schedule, part, lane, step, lanes.summed and part == parts[0][0], machine)
    return schedule


def blocks_of(
    program: Program, statements: Sequence[Statement], iterator: str, machine: Machine, most: int
) -> tuple[int, int]:
    """Lanes of a vector along a loop that some statements share, and how many of them, up to `most`, side by side."""
    width = machine.lanes(widest_in_lanes(program, [(s, iterator) for s in statements]))
    longest = _longest(program, statements[0], iterator)
    if longest is None:
        return width, max(1, min(most, MAX_LANES // width))
    width = min(width, 1 << (longest - 1).bit_length())
    return width, max(1, min(most, MAX_LANES // width, longest // width))


def _sums(
    schedule: Schedule, s: Statement, loops: Sequence[str], ends: tuple[Affine, Affine] | None
) -> list[str]:
    """The loops of a sum that may run inside of a block of lanes: nothing else of the target is read meanwhile."""
    kept = {n for x in s.write.index if not isinstance(x, ReadIndex) for n in x.names}
    if s.combiner is None or s.write.indirect or any(r.tensor == s.write.tensor for r in s.reads):
        return []
    found = [n for n in loops if not schedule.nests[s.name].loops[n].names & kept]
    bounds = ends[0].names | ends[1].names if ends is not None else set[str]()
    return [] if _names(schedule, s.name, found) & bounds else found


def _row(
    schedule: Schedule, s: Statement, loops: Sequence[str], lane: str, ends: tuple[Affine, Affine] | None
) -> str:
    """The loop whose iterations use again what the lanes read, several of them at a time: "" where there is none."""
    nest, sizes = schedule.nests[s.name], schedule.program.parameters
    for loop in reversed(loops):
        iterator = next((i for i in s.iterators if nest.loops[loop] == var(i)), "")
        own = ends_of(schedule.program, s, iterator) if iterator else None
        again = any(not r.indirect and lane in names_of(r) and iterator not in names_of(r) for r in s.reads)
        if own is None or not again or not (own[0].names | own[1].names) <= set(sizes):
            continue
        if ends is not None and iterator not in ends[0].names | ends[1].names and own[0] == Affine():
            return loop
    return ""


def _in_rows(schedule: Schedule, name: str, row: str, height: int) -> tuple[Schedule, list[str]]:
    """A nest (..., row, lane, sums) as (..., blocks of rows, lane, sums, rows), whole blocks apart from the rest."""
    s = schedule.program.statement[name]
    ends = ends_of(schedule.program, s, next(iter(schedule.nests[name].loops[row].names)))
    assert ends is not None
    extent = ends[1] + 1
    depth = schedule.nests[name].names.index(row)
    if extent.is_constant:
        schedule, parts = whole_blocks(schedule, name, depth, extent.constant, min(height, extent.constant))
    else:
        schedule, parts = cut_whole(schedule, name, row, ends, height, 1)
    for part, rows in parts:
        outer, inner, *rest = schedule.nests[part].names[depth:]
        schedule = schedule.tile({outer: rows}).reorder(f"{outer}.o", inner, *rest, f"{outer}.p").unroll(f"{outer}.p")
    return schedule, [part for part, _ in parts]


def cut_whole(
    schedule: Schedule, name: str, loop: str, ends: tuple[Affine, Affine], step: int, rest: int
) -> tuple[Schedule, list[tuple[str, int]]]:
    """The iterations of a loop that starts at 0 which make whole blocks of `step`, and the others in blocks of `rest`:
    the statements with the sizes of their blocks."""
    extent = ends[1] - ends[0] + 1
    depth = schedule.nests[name].names.index(loop)
    place, extent = (by_loops(schedule, name, e) for e in (extent // step * step, extent))
    schedule, lower, upper = cut_at(schedule, name, depth, place, extent)
    return schedule, [(piece, size) for piece, size in ((lower, step), (upper, rest)) if piece]


def _blocked(
    schedule: Schedule, name: str, loop: str, step: int, partial: bool, machine: Machine
) -> Schedule:
    """One piece of a nest: blocks of `step` lanes along `loop`, around the loops below it."""
    below = schedule.nests[name].names[schedule.nests[name].names.index(loop) + 1 :]
    schedule = schedule.tile({loop: step})
    if below:
        schedule = schedule.reorder(f"{loop}.o", *below, f"{loop}.p")
    target = schedule.program.statement[name].write.tensor
    if partial:
        schedule = _partial_sums(schedule, name, f"{loop}.p", target, machine)
    elif below:
        before = set(schedule.nests)
        schedule = in_registers(schedule, target, f"{loop}.o", machine)
        for copy in sorted(set(schedule.nests) - before):
            own = loops_of_copy(schedule, copy)
            schedule = in_vectors(unrolled(schedule, own[:-1]), own[-1], step, step) if own else schedule
    return schedule.vectorise(f"{loop}.p")


def in_registers(
    schedule: Schedule, tensor: str, loop: str | None, machine: Machine, users: Sequence[str] | None = None,
    name: str | None = None,
) -> Schedule:  # fmt: skip
    """What is touched of a tensor below a loop in registers. Raises `ScheduleError` for a tile that they do not hold,
    or whose size is free.
    """
    known = {t.name for t in schedule.program.tensors}
    schedule = schedule.promote(tensor, loop, machine.register_space, users=users, name=name)
    for tile in (t for t in schedule.program.tensors if t.name not in known):
        extents = [e.substitute(schedule.program.binding) for e in tile.shape]
        most = machine.vector_registers * machine.lanes(size_bytes(tile.dtype))
        if not all(e.is_constant for e in extents) or prod(e.constant for e in extents) > most:
            raise ScheduleError(f"{tile.name} does not fit the registers", where=schedule.source.name)
    return schedule


def _partial_sums(schedule: Schedule, name: str, loop: str, target: str, machine: Machine) -> Schedule:
    buffer = f"{target}_{name}_part"
    shared = len(schedule.nests[name].names) - len(own_loops(schedule, name))
    before = schedule
    schedule = before.rfactor(name, loop, name=buffer)
    if len(schedule.program.tensor[buffer].scope) < shared:  # an element that is used again in each iteration of them
        schedule = before.rfactor(name, loop, at=before.nests[name].names[shared - 1], name=buffer)
    scope = schedule.program.tensor[buffer].scope
    for copy in (f"clear_{buffer}", f"merge_{buffer}"):
        own = loops_of_copy(schedule, copy)
        schedule = schedule.vectorise(own[-1]) if own else schedule
    inside = _names(schedule, name, [n for n in own_loops(schedule, name) if n not in scope])
    if any(p.names & inside for p in schedule.program.statement[name].write.affine_index[:-1]):
        extents = [e.substitute(schedule.program.binding) for e in schedule.program.tensor[buffer].shape]
        size = size_bytes(schedule.program.tensor[buffer].dtype)
        if not all(e.is_constant for e in extents) or prod(e.constant for e in extents) * size > machine.nearest_cache:
            raise ScheduleError(f"{buffer} does not fit the first cache", where=schedule.source.name)
        return schedule  # a loop says which of them is added to, and registers have no index
    return in_registers(schedule, buffer, scope[-1] if scope else None, machine, name=f"{buffer}_r")


def _loop(schedule: Schedule, name: str, iterator: str) -> str:
    return next(n for n, value in schedule.nests[name].loops.items() if value == var(iterator))


def _names(schedule: Schedule, name: str, loops: Sequence[str]) -> set[str]:
    return {i for n in loops for i in schedule.nests[name].loops[n].names}


def _longest(program: Program, s: Statement, iterator: str) -> int | None:
    found = interval_of(program, s, iterator)
    return None if found is None else found[1] - found[0] + 1


def shifted_to_zero(schedule: Schedule, name: str, loop: str, first: Affine) -> Schedule:
    """Move a loop so that its first iteration is 0. Raises `ScheduleError` for a bound with floors or sizes."""
    if not first.is_linear or first.names - set(schedule.program.statement[name].iterators):
        raise ScheduleError(f"loop {loop} starts at {first}")
    for iterator in sorted(first.names):
        around = _loop(schedule, name, iterator)
        schedule = schedule.skew(loop, around, -first.coefficient(iterator))
    return schedule.shift(name, loop, -first.constant) if first.constant else schedule


def by_loops(schedule: Schedule, name: str, value: Affine) -> Affine:
    """An expression of a statement's iterators by the names of the loops around."""
    inside = value.names & set(schedule.program.statement[name].iterators)
    return value.substitute({i: var(_loop(schedule, name, i)) for i in inside})
