"""Policy for reductions that use little twice: sums by row or column, of everything, matrix by vector or a few vectors.

The largest operand is touched by every loop but one with few iterations, so its memory is walked in order, once.
Contiguous along a reduction loop: lanes there, with partial results (`rfactor`) in as many registers as hide the
latency of an operation; several rows at once where these share an operand, but not from a core's own cache (0068); what
comes from the last cache, and where vectors are lines from memory, is asked for ahead (docs/decisions/0015, 0044,
0057); a few vectors are multiplied by each row while it is in registers (0019), unless lanes along them take less
(0132). Contiguous along a parallel loop: lanes there, several rows of the operand at once on a strip of the result that
stays in the nearest cache, so that rows are read along their length, which are asked for ahead where they come from
far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isqrt, log2, prod

from poly.dtypes import size_bytes
from poly.loops import MAX_LANES
from poly.machine import Machine
from poly.program import Access, Program, Statement
from poly.relations import bound_domain
from poly.scheduling.cpu_core import core_of, last_capacity, own_share
from poly.scheduling.cpu_facts import (
    BYTES_AHEAD,
    FEWEST_LANES,
    bytes_touched,
    most_vectors,
    moves,
    own_capacity,
    reduction_extents,
    step_along,
    widest_element,
)
from poly.scheduling.cpu_few_vectors import few_as_lanes
from poly.scheduling.cpu_reduce_plan import Folded, Spread, Summed, axis_along, size_of
from poly.scheduling.groups import Group

ROWS = 4  # walked side by side
DEEP_ROWS = 8  # of the operand, on one strip of the result
# Blocks of rows that share a copy of the operand (0068), which costs about what a row does.
BLOCKS = 4  # for each thread: what a slower one leaves, another can take
LEAST_BLOCK = 8  # rows: the copy is an eighth of the work, about what rows one by one gain
MOST_BLOCK = 32  # rows: more of them would hardly save any of it
LEAST_CHAIN = 512  # additions to a partial sum, in a long row's blocks: to add its lanes up takes as long as a few
FEWEST_LINES = 2  # of a result, for each thread: its tiles start their own sums
STEP = 2  # between lanes that are picked from two vectors
NEXT_ROWS = 4  # blocks of rows that the first cache holds: so the next of those from a core's own are asked for (0116)
BYTES_AHEAD_BY_ROW = 512  # where rows are read side by side: what fetches streams is late for them; twice from memory


def reduction_of(program: Program, group: Group, machine: Machine, threads: int = 1) -> Folded | Spread | None:
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
    found = Summed(program, s, axes, extents, others, lanes, vector, touched, machine, threads)
    turned = _turned(found, large, again)
    if not _has_lanes(found, turned, everything=not {*axes} & long.keys()):
        return None
    plan = (None if again else _plan_spread(found)) if lanes in axes else _folded(found, turned, again)
    if isinstance(plan, Folded) and few_as_lanes(found, plan, large):
        return None
    start = _start(found, group, plan) if plan is not None else ""
    if plan is None or not start:
        return plan
    if isinstance(plan, Spread) and _shares_lanes(found):
        plan = replace(plan, strip=_even_strip(found))
    return replace(plan, start=start)


def _folded(summed: Summed, turned: tuple[str, ...], again: str) -> Folded | None:
    """The plan where lanes are reduced, with blocks of what is long."""
    plan = _plan_again(summed, again) if again else _plan_in_order(summed) or _plan_folded(summed)
    if plan is None:
        return None
    block = _lane_block(summed, plan)
    return replace(plan, turned=turned, lane_block=block, block_of=None if block else _block_of(summed, plan))


def _start(summed: Summed, group: Group, plan: Folded | Spread) -> str:
    """The statement that starts the sums where tiles of whole rows, or strips, can do that for their own. Threads would
    meet behind it, and fetch what another one started. Not of results of few lines, which threads write side by side:
    they would travel twice as often.
    """
    write, threads, first = summed.statement.write, summed.threads, group.statements[0]
    around = [*plan.outer, *([plan.lanes] if isinstance(plan, Spread) else [plan.rows, plan.again])]
    if threads == 1 or first.write != write or first.reads or first.external is not None:
        return ""
    if {*first.iterators} != {*filter(None, around)} or (isinstance(plan, Folded) and _has_more(plan)):
        return ""
    others = [s for s in group.statements[1:] if s is not summed.statement and s.write.tensor == write.tensor]
    element = size_bytes(summed.program.tensor[write.tensor].dtype)
    few = size_of(write, summed.extents) * element < threads * FEWEST_LINES * summed.machine.line
    return "" if others or few else first.name


def _has_more(plan: Folded) -> bool:
    """Whether a tile is not all of its rows, or uses copies."""
    return bool(plan.turned or plan.placed or plan.lane_block or plan.block_of)


def _lane_block(summed: Summed, plan: Folded) -> int:
    """Lanes of a block of a long row: errors grow with the additions to one partial sum, and with the blocks."""
    extent, step = summed.extents[summed.lanes], plan.vector * plan.width
    size = max(LEAST_CHAIN, isqrt(extent // step)) * step
    return size if extent >= 2 * size else 0


def _block_of(summed: Summed, plan: Folded) -> tuple[str, int] | None:
    """The same for many short rows: so many iterations of a loop around them make a block."""
    inside = -(-summed.extents[summed.lanes] // (plan.vector * plan.width))
    size = max(LEAST_CHAIN, isqrt(inside * prod(summed.extents[i] for i in plan.inner)))
    for iterator in reversed(plan.inner):
        extent, iterations = summed.extents[iterator], -(-size // inside)
        if extent >= 2 * iterations:
            return iterator, iterations
        inside *= extent
    return None


def _has_lanes(summed: Summed, turned: Collection[str], everything: bool) -> bool:
    """Whether what is touched lies side by side along the lanes, or apart by `STEP` where these are reduced, but for
    copies that are turned. `everything`: the sum is of all elements, so no other loop has better lanes.
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
            largest = all(size_of(r, extents) > size_of(o, extents) for o in still if o is not r)
            if largest and program.tensor[r.tensor].role != "constant":
                return r, loops[0]
    return None, ""


def _turned(summed: Summed, large: Access, again: str) -> tuple[str, ...]:
    """The other operand of a few vectors where it is not contiguous along the lanes, and a copy that is pays: lanes
    along the target need a multiplication for each step of a row; these need one for each vector of the row and
    each `again`, and add up a vector's lanes by halves.
    """
    program, s, lanes, extents = summed.program, summed.statement, summed.lanes, summed.extents
    others = [a for a, _ in s.accesses if moves(a, lanes) and step_along(program, a, lanes) not in (1, STEP)]
    if not again or len(others) != 1 or others[0] not in s.reads or axis_along(others[0], lanes) is None:
        return ()
    (other,) = others
    uses = prod(n for i, n in extents.items() if moves(large, i) and not moves(other, i))
    copied = 0 if program.tensor[other.tensor].role == "constant" else size_of(other, extents)
    steps = extents[again] * (2 * log2(summed.vector) + -(-extents[lanes] // summed.vector))
    own = sum(a.tensor == other.tensor for a, _ in s.accesses) == 1
    return (other.tensor,) if own and uses * steps + copied <= uses * extents[lanes] else ()


def _plain(program: Program, s: Statement) -> bool:
    """Over a box, without places that are read; conditions on reads are masks of their vectors."""
    return bool(bound_domain(program, s).is_box()) and not any(a.indirect for a, _ in s.accesses)


def _plan_folded(summed: Summed) -> Folded:
    """Rows that share an operand go side by side, others where they are short; asked for ahead where they are far."""
    s, extents, lanes, vector, parallel = summed.statement, summed.extents, summed.lanes, summed.vector, summed.parallel
    most = core_of(summed.machine, summed.widest).in_flight
    shared = [i for i in parallel if any(moves(r, lanes) and not moves(r, i) for r in s.reads)]
    rows = shared[-1] if shared else parallel[-1] if parallel and extents[lanes] < most * vector * 4 else ""
    height = _height(extents[rows], (ROWS, ROWS + 1, ROWS - 1)) if rows else 1
    width = max(1, min(most // height, extents[lanes] // vector, MAX_LANES // vector))
    from_memory = summed.touched > last_capacity(summed.machine)
    wanted = BYTES_AHEAD_BY_ROW * (2 if from_memory else 1) if rows else BYTES_AHEAD
    asked = (summed.is_far and (not from_memory or summed.has_lines)) or summed.is_asked_near
    ahead = -(-wanted // (width * vector * summed.widest)) if asked else 0
    block = height * extents[lanes] * prod(extents[i] for i in summed.reduced) * summed.widest
    alone = summed.threads == 1  # the rows that come next may be another one's
    by_rows = alone and rows != "" and summed.is_asked_near and block <= summed.machine.nearest_cache // NEXT_ROWS
    ahead = max(1, round(BYTES_AHEAD / block)) if by_rows else ahead
    return Folded(
        statement=s.name, outer=tuple(i for i in parallel if i != rows), rows=rows, inner=tuple(summed.reduced),
        lanes=lanes, vector=vector, height=height, width=width, ahead=ahead, by_rows=by_rows,
    )  # fmt: skip


def _plan_in_order(summed: Summed) -> Folded | None:
    """Rows one by one, as a core's own caches give them soonest (0068) where they are not asked for (0088), if these
    are long and share an operand that the first cache keeps beside them. Of a caller's array, which starts anywhere,
    each vector would lie in two lines: it is copied first, by each thread for blocks of the rows that they share.
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
    if ROWS * size_of(shared[0], extents) * size_bytes(tensor.dtype) > machine.nearest_cache:
        return None
    foreign, block = tensor.role in ("input", "inout"), 0
    if foreign and tensor.rank > 1:
        return None
    if foreign and threads > 1:
        block = min(MOST_BLOCK, extents[parallel[-1]] // (BLOCKS * threads))
        if len(parallel) > 1 or block < LEAST_BLOCK:
            return None
    # Two loads for each: half of what a core could have in flight
    width = max(1, min(most // 2, MAX_LANES // summed.vector))
    return Folded(
        statement=s.name, outer=tuple(parallel), rows="", lanes=summed.lanes, vector=summed.vector, height=1,
        width=width, placed=(tensor.name,) if foreign else (), placed_for=block,
    )  # fmt: skip


def _plan_again(summed: Summed, again: str) -> Folded | None:
    """As many rows side by side as leave registers for what they are multiplied by."""
    if not summed.parallel:
        return None
    *outer, rows = summed.parallel
    most = min(ROWS, (summed.machine.vector_registers - ROWS) // summed.extents[again])
    height = _height(summed.extents[rows], range(most, 1, -1))
    return Folded(
        statement=summed.statement.name, outer=tuple(outer), rows=rows, inner=tuple(summed.reduced),
        lanes=summed.lanes, vector=summed.vector, height=height, width=1, again=again,
    )  # fmt: skip


def _height(extent: int, wanted: Sequence[int]) -> int:
    """The first of the heights that leaves no rest, or the first."""
    return min(extent, next((n for n in wanted if extent % n == 0), wanted[0]))


def _plan_spread(summed: Summed) -> Spread | None:
    """Where one tile of registers holds a whole row of the result there is no strip to walk."""
    s, extents, lanes, vector, machine = summed.statement, summed.extents, summed.lanes, summed.vector, summed.machine
    rows = summed.reduced[-1]
    if extents[lanes] <= vector * most_vectors(machine) or extents[rows] < ROWS:
        return None
    kept = tuple(dict.fromkeys(r.tensor for r in s.reads if not moves(r, lanes) and moves(r, rows)))
    height = _height(extents[rows], range(DEEP_ROWS, DEEP_ROWS // 2, -1))
    strip = _kept_columns(summed)
    if _shares_lanes(summed):
        strip = min(strip, -(-extents[lanes] // summed.threads))
    width = 2
    strip = max(1, strip // (width * vector)) * width * vector
    ahead = -(-BYTES_AHEAD_BY_ROW // (width * vector * summed.widest)) if summed.is_far else 0
    return Spread(
        statement=s.name, outer=tuple(i for i in summed.others if i != rows), rows=rows, lanes=lanes, vector=vector,
        height=height, width=width, ahead=ahead, strip=strip, kept=kept,
    )  # fmt: skip


def _shares_lanes(summed: Summed) -> bool:
    """Whether threads have nothing but the columns to share."""
    return all(summed.extents[i] < summed.threads for i in summed.parallel if i != summed.lanes)


def _kept_columns(summed: Summed) -> int:
    """Columns of the result that the first cache keeps."""
    element = size_bytes(summed.program.tensor[summed.statement.write.tensor].dtype)
    return max(1, own_share(summed.machine.nearest_cache) // element)


def _even_strip(summed: Summed) -> int:
    """The columns of a strip, whole vectors, with which threads that share them are done soonest. What is left over is
    a strip, too, for the first who is done.
    """
    extent, vector, threads = summed.extents[summed.lanes], summed.vector, summed.threads
    each = -(-extent // (threads * _kept_columns(summed)))  # strips of a thread
    share = extent // (threads * each * vector)

    def slowest(strip: int) -> int:
        whole, rest = divmod(extent, strip)
        return -(-whole // threads) * strip + (rest if whole % threads == 0 else 0) if whole > 1 else extent

    return min((max(1, share) * vector, (share + 1) * vector), key=slowest)
