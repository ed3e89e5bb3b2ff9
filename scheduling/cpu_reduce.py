"""Policy for reductions that use little twice: sums by row or column, of everything, matrix by vector or a few vectors.

The largest operand is touched by every loop but one with few iterations, so its memory is walked in order, once.
Contiguous along a reduction loop: lanes there, with partial results (`rfactor`) in as many registers as hide the
latency of an operation; several rows at once where these share an operand, but not from a core's own cache (0068); what
comes from the last cache, and where vectors are lines from memory, is asked for ahead (docs/decisions/0015, 0044,
0057); a few vectors are multiplied by each row while it is in registers (0019). Contiguous along a parallel loop:
lanes there, several rows of the operand at once on a strip of the result that stays in the nearest cache, so that rows
are read along their length, which are asked for ahead where they come from far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, log2, prod

from poly.dtypes import size_bytes
from poly.loops import MAX_LANES
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import bound_domain, interval_of, intervals_of
from poly.scheduling.cpu_core import core_of, last_capacity, own_share
from poly.scheduling.cpu_edits import axis_last, in_vectors, loop_of, loops_of_copy, ordered, unrolled, whole_blocks
from poly.scheduling.cpu_facts import (
    BYTES_AHEAD,
    FEWEST_LANES,
    NEAR,
    bytes_touched,
    most_vectors,
    moves,
    own_capacity,
    reduction_extents,
    step_along,
    widest_element,
)
from poly.scheduling.cpu_sums import LONG_CHAIN, Sums
from poly.scheduling.edits import piece_name
from poly.scheduling.groups import Group
from poly.scheduling.schedule import Schedule

ROWS = 4  # walked side by side
DEEP_ROWS = 8  # of the operand, on one strip of the result
# Blocks of rows that share a copy of the operand (0068), which costs about what a row does.
BLOCKS = 4  # for each thread: what a slower one leaves, another can take
LEAST_BLOCK = 8  # rows: the copy is an eighth of the work, about what rows one by one gain
MOST_BLOCK = 32  # rows: more of them would hardly save any of it
LEAST_CHAIN = 512  # additions to a partial sum, in a long row's blocks: to add its lanes up takes as long as a few
STEP = 2  # between lanes that are picked from two vectors
BYTES_AHEAD_BY_ROW = 512  # where rows are read side by side: what fetches streams is late for them; twice from memory


@dataclass(frozen=True)
class Reduction:
    """`outer`, `rows`, `inner`, `lanes`: iterators of the reduction `statement`, from the outside in; `rows` "" where
    there are none. `folded`: the lanes are reduced. Of a tile: `height` rows and `width` vectors. `strip`: lanes of a
    strip. `kept`: operands that the lanes do not move. `ahead`: iterations of the loop over tiles that loads are asked
    for ahead, 0 for not at all. `again`: an iterator in all of whose iterations a tile uses what it has loaded, "" for
    none. `turned`: operands that are copied with the lanes' axis last first. `placed`: those that all rows share and
    that are copied to where vectors are lines first, by every thread for `block` rows (0: once for all). `chain`: lanes
    of the blocks that a long row is summed in, 0 for none; `turns`: that many of an iterator of `inner` make a block.
    """

    statement: str
    outer: tuple[str, ...]
    rows: str
    inner: tuple[str, ...]
    lanes: str
    folded: bool
    vector: int
    height: int
    width: int
    strip: int
    kept: tuple[str, ...]
    ahead: int = 0
    again: str = ""
    turned: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    block: int = 0
    chain: int = 0
    turns: tuple[str, int] | None = None


@dataclass(frozen=True)
class _Sum:
    """A reduction with what its plans are made of. `axes`: its loops along the group's box; `extents`: of all loops;
    `lanes`: the loop that becomes lanes, of which a vector has `vector`; `others`: the other long ones, those that the
    streamed operand walks in the longest steps first; `touched`: bytes of all operands.
    """

    program: Program
    statement: Statement
    axes: Sequence[str]
    extents: Mapping[str, int]
    others: Sequence[str]
    lanes: str
    vector: int
    touched: int
    machine: Machine
    threads: int

    @property
    def parallel(self) -> list[str]:
        return [i for i in self.others if i in self.axes]

    @property
    def reduced(self) -> list[str]:
        return [i for i in self.others if i not in self.axes]

    @property
    def widest(self) -> int:
        """Bytes of an element."""
        return widest_element(self.program, [self.statement])

    @property
    def has_lines(self) -> bool:
        """Whether vectors are lines: by shorter ones the near part of the last cache keeps up, and memory does not."""
        return self.vector * self.widest >= self.machine.line

    @property
    def is_far(self) -> bool:
        """Whether operands come from where they are asked for ahead."""
        near = last_capacity(self.machine) * NEAR
        return (own_capacity(self.machine) * self.threads if self.has_lines else near) < self.touched

    @property
    def is_asked_near(self) -> bool:
        """Whether a single operand is asked for ahead though it comes from a core's own caches, not the first one, on
        cores whose last cache is far: lines that are at hand give vectors that lie in two of them sooner (0088).
        """
        streams = [r for r in self.statement.reads if all(moves(r, i) for i in (*self.others, self.lanes))]
        own = self.machine.nearest_cache < self.touched <= self.threads * own_capacity(self.machine)
        return own and self.has_lines and len(streams) == 1 and core_of(self.machine, self.widest).afar > 0


def reduction_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Reduction | None:
    """The choices for a group around one reduction that uses its largest operand once, or in one tile; else None."""
    update = [s for s in group.statements if s.combiner is not None]
    if len(update) != 1 or group.box is None or machine.registers is None:
        return None
    (s,) = update
    axes = group.axes[s.name]
    if not s.reorder or s.external is not None or set(axes) - set(s.iterators) or not _plain(program, s):
        return None
    extents = {i: high - low + 1 for i, (low, high) in zip(axes, group.box, strict=True)}
    extents |= reduction_extents(program, s, axes)
    long = {i: extents[i] for i in s.iterators if extents[i] > 1}
    large, again = _streamed(program, s, long, axes, machine)
    if large is None or long.keys() <= {*axes} or any(len(c.names & long.keys()) > 1 for c in large.affine_index):
        return None
    steps = {i: step_along(program, large, i) or 0 for i in long}
    lanes = min((i for i in long if steps[i] in (1, STEP)), key=lambda i: steps[i], default=None)
    vector = machine.lanes(widest_element(program, [s]))
    if vector < 2 or lanes is None or extents[lanes] < FEWEST_LANES:
        return None
    others = sorted((i for i in long if i not in (lanes, again)), key=lambda i: -steps[i])
    touched = bytes_touched(program, [s])
    found = _Sum(program, s, axes, extents, others, lanes, vector, touched, machine, threads)
    turned = _turned(found, large, again)
    if not _has_lanes(found, turned, everything=not {*axes} & long.keys()):
        return None
    if again:
        plan = None if lanes in axes else _plan_again(found, again)
    elif lanes in axes:
        plan = _plan_spread(found)
    else:
        plan = _plan_in_order(found) or _plan_folded(found)
    if plan is None:
        return None
    chain = _chain(found, plan)
    return replace(plan, turned=turned, chain=chain, turns=None if chain else _turns(found, plan))


def _chain(summed: _Sum, plan: Reduction) -> int:
    """Lanes of a block of a long row: errors grow with the additions to one partial sum, and with the blocks."""
    extent, step = summed.extents[summed.lanes], plan.vector * plan.width
    size = max(LEAST_CHAIN, isqrt(extent // step)) * step
    return size if plan.folded and extent >= 2 * size else 0


def _turns(summed: _Sum, plan: Reduction) -> tuple[str, int] | None:
    """The same for many short rows: so many iterations of a loop around them make a block."""
    inside = -(-summed.extents[summed.lanes] // (plan.vector * plan.width))
    size = max(LEAST_CHAIN, isqrt(inside * prod(summed.extents[i] for i in plan.inner)))
    for iterator in reversed(plan.inner):
        extent, turns = summed.extents[iterator], -(-size // inside)
        if extent >= 2 * turns:
            return iterator, turns
        inside *= extent
    return None


def _has_lanes(summed: _Sum, turned: Collection[str], everything: bool) -> bool:
    """Whether what is touched lies side by side along the lanes, but for copies that are turned. `everything`: the sum
    is of all elements, so no other loop has better lanes.
    """
    accesses = [a for a, _ in summed.statement.accesses if a.tensor not in turned]
    steps = {step_along(summed.program, a, summed.lanes) for a in accesses}
    return (everything or steps <= {0, 1, STEP}) and (STEP not in steps or summed.lanes not in summed.axes)


def _streamed(
    program: Program, s: Statement, extents: Mapping[str, int], axes: Sequence[str], machine: Machine
) -> tuple[Access | None, str]:
    """The operand that all loops walk through, or all but one with so few iterations that registers hold the sums of
    some of its rows for each: then that one, too. A constant is packed for lanes along the target instead.
    """
    most = (machine.vector_registers - ROWS) // 2
    still = {r: [i for i in extents if not moves(r, i)] for r in s.reads}
    large = next((r for r in s.reads if not still[r]), None)
    if large is not None:
        return large, ""
    for r, loops in still.items():
        if len(loops) == 1 and loops[0] in axes and extents[loops[0]] <= most:
            largest = all(_size(r, extents) > _size(o, extents) for o in still if o is not r)
            if largest and program.tensor[r.tensor].role != "constant":
                return r, loops[0]
    return None, ""


def _turned(summed: _Sum, large: Access, again: str) -> tuple[str, ...]:
    """The other operand of a few vectors where it is not contiguous along the lanes, and a copy that is pays: lanes
    along the target need a multiplication for each step of a row; these need one for each vector of the row and
    each `again`, and add up a vector's lanes by halves.
    """
    program, s, lanes, extents = summed.program, summed.statement, summed.lanes, summed.extents
    others = [a for a, _ in s.accesses if moves(a, lanes) and step_along(program, a, lanes) not in (1, STEP)]
    if not again or len(others) != 1 or others[0] not in s.reads or _axis(others[0], lanes) is None:
        return ()
    (other,) = others
    uses = prod(n for i, n in extents.items() if moves(large, i) and not moves(other, i))
    copied = 0 if program.tensor[other.tensor].role == "constant" else _size(other, extents)
    steps = extents[again] * (2 * log2(summed.vector) + -(-extents[lanes] // summed.vector))
    own = sum(a.tensor == other.tensor for a, _ in s.accesses) == 1
    return (other.tensor,) if own and uses * steps + copied <= uses * extents[lanes] else ()


def _axis(access: Access, iterator: str) -> int | None:
    """The axis of a tensor that a loop alone walks along."""
    found = [n for n, c in enumerate(access.affine_index) if iterator in c.names]
    return found[0] if len(found) == 1 and access.affine_index[found[0]].names == frozenset((iterator,)) else None


def _size(access: Access, extents: Mapping[str, int]) -> int:
    return prod(n for i, n in extents.items() if moves(access, i))


def _plain(program: Program, s: Statement) -> bool:
    """Over a box, without places that are read; conditions on reads are masks of their vectors."""
    return bool(bound_domain(program, s).is_box()) and not any(a.indirect for a, _ in s.accesses)


def _plan_folded(summed: _Sum) -> Reduction:
    """Rows that share an operand go side by side, others where they are short; asked for ahead where they are far."""
    s, extents, lanes, vector, parallel = summed.statement, summed.extents, summed.lanes, summed.vector, summed.parallel
    most = core_of(summed.machine, summed.widest).in_flight
    shared = [i for i in parallel if any(moves(r, lanes) and not moves(r, i) for r in s.reads)]
    rows = shared[-1] if shared else parallel[-1] if parallel and extents[lanes] < most * vector * 4 else ""
    height = _height(extents[rows], (ROWS, ROWS + 1, ROWS - 1)) if rows else 1
    width = max(1, min(most // height, extents[lanes] // vector, MAX_LANES // vector))
    outer, inner = tuple(i for i in parallel if i != rows), tuple(summed.reduced)
    from_memory = summed.touched > last_capacity(summed.machine)
    wanted = BYTES_AHEAD_BY_ROW * (2 if from_memory else 1) if rows else BYTES_AHEAD
    asked = (summed.is_far and (not from_memory or summed.has_lines)) or summed.is_asked_near
    ahead = -(-wanted // (width * vector * summed.widest)) if asked else 0
    return Reduction(s.name, outer, rows, inner, lanes, True, vector, height, width, 0, (), ahead)


def _plan_in_order(summed: _Sum) -> Reduction | None:
    """Rows one by one, as a core's own caches give them soonest (0068) where they are not asked for (0088), if these
    are long and share an operand that the first cache keeps beside them. Of a caller's array, which starts anywhere,
    each vector would lie in two lines.
    """
    s, extents, parallel = summed.statement, summed.extents, summed.parallel
    machine, threads = summed.machine, summed.threads
    own = machine.nearest_cache < summed.touched <= threads * own_capacity(machine)
    if not own or not summed.has_lines or summed.is_asked_near:
        return None
    most = core_of(machine, summed.widest).in_flight
    shared = [r for r in s.reads if moves(r, summed.lanes) and any(not moves(r, i) for i in parallel)]
    if len(shared) != 1 or shared[0].guard or summed.reduced or extents[summed.lanes] < most * summed.vector:
        return None
    tensor = summed.program.tensor[shared[0].tensor]
    foreign, block = tensor.role in ("input", "inout"), 0
    if foreign and threads > 1:
        block = min(MOST_BLOCK, extents[parallel[-1]] // (BLOCKS * threads))
    alone = len(parallel) == 1 or not block  # what threads share
    if ROWS * _size(shared[0], extents) * size_bytes(tensor.dtype) > machine.nearest_cache:
        return None
    if foreign and (tensor.rank > 1 or not alone or (threads > 1 and block < LEAST_BLOCK)):
        return None
    width = min(most // 2, MAX_LANES // summed.vector)  # two loads for each: half of what a core could have in flight
    plan = Reduction(s.name, tuple(parallel), "", (), summed.lanes, True, summed.vector, 1, width, 0, ())
    return replace(plan, placed=(tensor.name,) if foreign else (), block=block)


def _plan_again(summed: _Sum, again: str) -> Reduction | None:
    """As many rows side by side as leave registers for what they are multiplied by."""
    if not summed.parallel:
        return None
    *outer, rows = summed.parallel
    most = min(ROWS, (summed.machine.vector_registers - ROWS) // summed.extents[again])
    height = _height(summed.extents[rows], range(most, 1, -1))
    name, inner = summed.statement.name, tuple(summed.reduced)
    return Reduction(name, tuple(outer), rows, inner, summed.lanes, True, summed.vector, height, 1, 0, (), again=again)


def _height(extent: int, wanted: Sequence[int]) -> int:
    """The first of the heights that leaves no rest, or the first."""
    return min(extent, next((n for n in wanted if extent % n == 0), wanted[0]))


def _plan_spread(summed: _Sum) -> Reduction | None:
    """Where one tile of registers holds a whole row of the result there is no strip to walk."""
    s, extents, lanes, vector, machine = summed.statement, summed.extents, summed.lanes, summed.vector, summed.machine
    rows = summed.reduced[-1]
    if extents[lanes] <= vector * most_vectors(machine) or extents[rows] < ROWS:
        return None
    kept = tuple(dict.fromkeys(r.tensor for r in s.reads if not moves(r, lanes) and moves(r, rows)))
    height = _height(extents[rows], range(DEEP_ROWS, DEEP_ROWS // 2, -1))
    strip = own_share(machine.nearest_cache) // size_bytes(summed.program.tensor[s.write.tensor].dtype)
    if all(extents[i] < summed.threads for i in summed.parallel if i != lanes):
        strip = min(strip, -(-extents[lanes] // summed.threads))
    width = 2
    strip = max(1, strip // (width * vector)) * width * vector
    outer = tuple(i for i in summed.others if i != rows)
    ahead = -(-BYTES_AHEAD_BY_ROW // (width * vector * summed.widest)) if summed.is_far else 0
    return Reduction(s.name, outer, rows, (), lanes, False, vector, height, width, strip, kept, ahead)


def schedule_reduction(schedule: Schedule, group: Group, plan: Reduction, machine: Machine) -> Schedule:
    """Split, tile, promote and mark the reduction; the group's other statements run before and after it in vectors."""
    return _Reduced(group, plan, machine).run(schedule)


class _Reduced:
    def __init__(self, group: Group, plan: Reduction, machine: Machine) -> None:
        self.group, self.plan, self.space = group, plan, machine.register_space
        self.cache = machine.cache_space(1)
        self.vector, self.sums = plan.vector, Sums(plan.vector, machine)

    def run(self, schedule: Schedule) -> Schedule:
        plan = self.plan
        for s in self.group.statements:
            if s.name != plan.statement:
                schedule = self._beside(schedule, s)
        name = plan.statement
        s = schedule.program.statement[name]
        wanted = [*plan.outer, *filter(None, [plan.rows]), *plan.inner, *filter(None, [plan.again]), plan.lanes]
        order = [loop_of(schedule, name, i) for i in (*(i for i in s.iterators if i not in wanted), *wanted)]
        schedule = self._shifted_to_zero(schedule, name, order)
        schedule = ordered(schedule, name, order)
        return self._fold(schedule, name) if plan.folded else self._spread(schedule, name)

    def _shifted_to_zero(self, schedule: Schedule, name: str, loops: Sequence[str]) -> Schedule:
        """Every loop from 0, so that tiles are whole."""
        found = intervals_of(schedule.program, schedule.program.statement[name])
        for loop in loops:
            (iterator,) = schedule.nests[name].loops[loop].names
            low, _ = found[iterator] or (0, 0)
            if low:
                schedule = schedule.shift(name, loop, -low)
        return schedule

    def _beside(self, schedule: Schedule, s: Statement) -> Schedule:
        """Another statement of the group, in vectors along the last loop that its target is contiguous along."""
        program = schedule.program
        steps = {i: [step_along(program, a, i) for a, _ in s.accesses] for i in s.iterators}
        found = [i for i, each in steps.items() if each[-1] == 1 and set(each) <= {0, 1}]
        if not found or s.external is not None:
            return schedule
        loop = loop_of(schedule, s.name, found[-1])
        rest = [n for n in schedule.nests[s.name].names if n != loop]
        if rest:
            schedule = schedule.reorder(*rest, loop)
        return schedule.tile({loop: self.vector}).vectorise(f"{loop}.p")

    def _extent(self, schedule: Schedule, name: str, iterator: str) -> int:
        found = interval_of(schedule.program, schedule.program.statement[name], iterator)
        assert found is not None  # `_plain`
        return found[1] - found[0] + 1

    def _cut(self, schedule: Schedule, name: str, iterator: str, block: int) -> tuple[Schedule, list[tuple[str, int]]]:
        """The loop of an iterator in pieces of whole blocks: statements with their blocks' sizes, each from 0."""
        depth = schedule.nests[name].names.index(loop_of(schedule, name, iterator))
        return whole_blocks(schedule, name, depth, self._extent(schedule, name, iterator), block)

    # ---- lanes that are reduced

    def _fold(self, schedule: Schedule, name: str) -> Schedule:
        schedule, blocks = self._blocks(self._placed(self._turned(schedule, name), name), name)
        for block, extent in blocks:
            parts = [(block, 1)]
            if self.plan.rows:
                schedule, parts = self._cut(schedule, block, self.plan.rows, self.plan.height)
            for part, height in parts:
                schedule = self._folded(schedule, part, height, extent)
        return schedule

    def _blocks(self, schedule: Schedule, name: str) -> tuple[Schedule, list[tuple[str, int]]]:
        """A long row in blocks and what is left over, with their sizes."""
        if not self.plan.chain:
            return schedule, [(name, self._extent(schedule, name, self.plan.lanes))]
        *outer, lanes = schedule.nests[name].names
        schedule, blocks = self._cut(ordered(schedule, name, [lanes, *outer]), name, self.plan.lanes, self.plan.chain)
        for block, _ in blocks:
            lanes, *outer = schedule.nests[block].names
            schedule = ordered(schedule, block, [*outer, lanes])
        return schedule, blocks

    def _turned(self, schedule: Schedule, name: str) -> Schedule:
        for tensor in self.plan.turned:
            read = next(r for r in schedule.program.statement[name].reads if r.tensor == tensor)
            axis = _axis(read, self.plan.lanes)
            assert axis is not None
            order = axis_last(schedule, tensor, axis)
            schedule = schedule.promote(tensor, None, self.cache, name=f"{tensor}_{name}_t", users=[name], order=order)
        return schedule

    def _placed(self, schedule: Schedule, name: str) -> Schedule:
        site = None
        if self.plan.block:
            rows = loop_of(schedule, name, self.plan.outer[-1])
            schedule, site = schedule.tile({rows: self.plan.block}), f"{rows}.o"
        for tensor in self.plan.placed:
            buffer = f"{tensor}_{name}_p"
            schedule = schedule.promote(tensor, site, self.cache, name=buffer, users=[name])
            (loop,) = loops_of_copy(schedule, f"ld_{buffer}")
            schedule = in_vectors(schedule, loop, self._extent(schedule, name, self.plan.lanes), self.vector, most=ROWS)
        return schedule

    def _folded(self, schedule: Schedule, name: str, height: int, extent: int) -> Schedule:
        """Rows, or their blocks, each with partial sums of its own."""
        plan, step = self.plan, self.vector * self.plan.width
        lanes, block = loop_of(schedule, name, plan.lanes), None
        if extent == plan.chain:
            schedule, block, lanes = schedule.tile({lanes: extent}), f"{lanes}.o", f"{lanes}.p"
        schedule = schedule.tile({lanes: step})
        within = [loop_of(schedule, name, i) for i in plan.inner]
        if plan.turns is not None:
            around = loop_of(schedule, name, plan.turns[0])
            schedule, block = schedule.tile({around: plan.turns[1]}), f"{around}.o"
            within += [block, f"{around}.p"]
        if plan.rows:
            rows = loop_of(schedule, name, plan.rows)
            inside = [n for n in schedule.nests[name].names if n in within]
            again = [loop_of(schedule, name, plan.again)] if plan.again else []
            schedule = schedule.tile({rows: height})
            order = [*inside, *([block] if block and block not in inside else []), f"{lanes}.o", *again]
            schedule = schedule.reorder(f"{rows}.o", *order, f"{rows}.p", f"{lanes}.p")
        buffer = f"{schedule.program.statement[name].write.tensor}_{name}_part"
        schedule = schedule.rfactor(name, f"{lanes}.p", at=block, name=buffer)
        scope = schedule.program.tensor[buffer].scope
        pieces = [name]
        if extent % step and extent > step:
            pieces = [piece_name(schedule, name, "lo"), piece_name(schedule, name, "hi")]
            schedule = schedule.split(f"{lanes}.o", extent // step)
        for piece in pieces:
            *_, rows, lanes = ("", *schedule.nests[piece].names)
            schedule = schedule.unroll(rows) if plan.rows else schedule
            schedule = schedule.unroll(schedule.nests[piece].names[-3]) if plan.again else schedule
            tiles = [n for n in schedule.nests[piece].names if n != lanes and schedule.kind(n) == "serial"][-1]
            schedule = in_vectors(schedule, lanes, min(step, extent), self.vector)
            if plan.ahead:
                schedule = schedule.prefetch(schedule.nests[piece].names[-1], tiles, plan.ahead)
        schedule = self._cleared(schedule, buffer, min(step, extent))
        return schedule.promote(buffer, scope[-1] if scope else None, self.space, name=f"{buffer}_r")

    def _cleared(self, schedule: Schedule, buffer: str, extent: int) -> Schedule:
        """The neutral element by vectors; the merge of each row's lanes by halves."""
        for name in (f"clear_{buffer}", f"merge_{buffer}"):
            own = loops_of_copy(schedule, name)
            schedule = unrolled(schedule, own[:-1])
            if own and name.startswith("merge"):
                schedule = schedule.vectorise(own[-1])
            elif own:
                schedule = in_vectors(schedule, own[-1], extent, self.vector)
        return schedule

    # ---- lanes along the result

    def _spread(self, schedule: Schedule, name: str) -> Schedule:
        """Whole strips and what is left over, then whole blocks of rows and what is left over: nests of their own."""
        plan = self.plan
        rows, lanes = loop_of(schedule, name, plan.rows), loop_of(schedule, name, plan.lanes)
        schedule = schedule.reorder(lanes, rows)
        schedule, strips = self._cut(schedule, name, plan.lanes, plan.strip)
        for strip, columns in strips:
            schedule = schedule.reorder(*reversed(schedule.nests[strip].names[-2:]))
            schedule, parts = self._cut(schedule, strip, plan.rows, plan.height)
            for part, height in parts:
                schedule = self._strip(schedule, part, height, columns)
        return schedule

    def _strip(self, schedule: Schedule, name: str, height: int, columns: int) -> Schedule:
        """Strips, blocks of rows with what the lanes do not move in registers, tiles of vectors."""
        rows, lanes = schedule.nests[name].names[-2:]
        schedule = schedule.tile({rows: height, lanes: columns})
        schedule = schedule.reorder(f"{lanes}.o", f"{rows}.o", f"{lanes}.p", f"{rows}.p")
        step = self.vector * self.plan.width
        pieces = [(name, min(step, columns))]
        if columns % step and columns > step:
            pieces = [(piece_name(schedule, name, "lo"), step), (piece_name(schedule, name, "hi"), columns % step)]
            schedule = schedule.split(f"{lanes}.p", columns // step * step)
            upper = pieces[1][0]
            schedule = schedule.shift(upper, schedule.nests[upper].names[-2], -(columns // step * step))
        for tensor in self.plan.kept:
            buffer, users = f"{tensor}_{name}_k", [piece for piece, _ in pieces]
            schedule = schedule.promote(tensor, f"{rows}.o", self.space, name=buffer, users=users)
            schedule = unrolled(schedule, loops_of_copy(schedule, f"ld_{buffer}"))
        for piece, width in pieces:
            schedule = self._tile(schedule, piece, width)
        return schedule

    def _tile(self, schedule: Schedule, name: str, width: int) -> Schedule:
        """Some vectors of the target in registers while the rows of a block are added: of many rows, from zero."""
        lanes, rows = schedule.nests[name].names[-2:]
        schedule = schedule.tile({lanes: width}).reorder(f"{lanes}.o", rows, f"{lanes}.p").unroll(rows)
        schedule = in_vectors(schedule, f"{lanes}.p", width, self.vector)
        vectors = schedule.nests[name].names[-1]
        if self.plan.ahead and schedule.kind(vectors) == "vector":
            schedule = schedule.prefetch(vectors, f"{lanes}.o", self.plan.ahead)
        s = schedule.program.statement[name]
        steps = reduction_extents(schedule.program, s, self.group.axes[s.source_name])
        if s.reorder and prod(steps.values()) >= 2 * LONG_CHAIN:
            return self.sums.partial(schedule, s, f"{lanes}.o")
        target = s.write.tensor
        buffer = f"{target}_{name}_r"
        schedule = schedule.promote(target, f"{lanes}.o", self.space, name=buffer, users=[name])
        for copy in (f"ld_{buffer}", f"st_{buffer}"):
            own = loops_of_copy(schedule, copy)
            schedule = unrolled(schedule, own[:-1])
            schedule = in_vectors(schedule, own[-1], width, self.vector) if own else schedule
        return schedule
