"""Policy for groups of rows: several statements below shared loops, one pass over a cache-resident row after another.

Sums along a row get as many vectors of partial results as hide the latency of an operation; short rows go side by side.
`poly.scheduling.cpu_rows_nest` composes them.

Passes over the same loops with exponentials, and no other function, are one loop (`_staggered`): the next one goes over
the row before, so that none waits for what another one adds up at its end (docs/decisions/0062, 0069).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import prod

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.expr import OPERATORS
from poly.machine import Machine
from poly.program import Program, Statement
from poly.scheduling.cpu_core import core_of, last_capacity
from poly.scheduling.cpu_facts import (
    BYTES_AHEAD,
    FEWEST_LANES,
    NEAR,
    bytes_touched,
    functions_in,
    interleaved,
    own_capacity,
    reduction_extents,
    step_along,
    widest_element,
)
from poly.scheduling.cpu_nontemporal import whole_lines_past
from poly.scheduling.groups import Group, tensors_read, tensors_written


class Cost(IntEnum):
    """What an element of a pass takes: a few operations, those of an exponential (ten), or of other functions, too."""

    PLAIN = 0
    EXPONENTIAL = 1
    FUNCTION = 2


HEIGHTS = {  # up to so many vectors in a row: rows side by side
    Cost.PLAIN: ((2, 8), (128, 4)),
    Cost.EXPONENTIAL: ((16, 4), (128, 2)),
    Cost.FUNCTION: ((8, 4), (32, 2)),
}
SIDE_BY_SIDE = 4  # vectors of an assignment in one iteration
PER_VECTOR = 6  # registers for each vector of exponentials side by side
LEAST_STEPS, MOST_BLOCK = 16, 512  # staggered: iterations over the rows of a block at least; its rows at most
BESIDE_FAR = 3 << 10  # bytes of rows with exponentials side by side that come from the last cache (0069)
STREAM = 1024  # bytes of rows side by side that come from memory: a prefetcher follows them as one stream of lines


@dataclass(frozen=True)
class Pass:
    """Statements that share their loops inside a row. `extents`: of these, the lanes last; `lanes`: elements of one
    vector operation; `width`: such vectors side by side, `joined`: as one wide one, where all of them are whole.
    """

    extents: tuple[int, ...]
    statements: tuple[str, ...]
    lanes: int = 1
    width: int = 1
    joined: bool = False


@dataclass(frozen=True)
class RowPlan:
    """`inner`: for every statement its loops inside the row, the lanes last; `height`: rows side by side; `asked`: the
    statements that ask for the next rows of what comes from beyond a core's own caches, where the nearest one has room;
    `ahead`: how many times `height` rows before these are touched. `behind`: where passes are staggered, for every
    statement how many times `height` rows it is behind the first, in blocks of so many rows (`block`); `slots`: what a
    pass hands on in rows that take turns, as the result goes past the caches.
    """

    passes: tuple[Pass, ...]
    inner: Mapping[str, tuple[str, ...]]
    height: int = 1
    asked: frozenset[str] = frozenset()
    ahead: int = 1
    behind: Mapping[str, int] = field(default_factory=dict[str, int])
    block: int = 0
    slots: frozenset[str] = frozenset()

    def places(self) -> Mapping[str, tuple[int, int]]:
        """When every statement touches a row: how far it is behind, and its pass."""
        return {n: (self.behind.get(n, 0), k) for k, part in enumerate(self.passes) for n in part.statements}


@dataclass(frozen=True)
class _Limits:
    """What bounds a group's rows. `vector`, `bytes`: lanes of a vector, and its bytes; `registers`: free for rows;
    `in_flight`: operations that hide the latency of one; `fitting`: rows of which the nearest cache holds what all
    passes touch, with something left.

    Where rows come from: `in_cache`: from a block in a cache; else, by what the group touches, from `beyond` a core's
    own caches, so `far` that the last one gives them at its own pace, `from_memory`; `slow`: from beyond the own caches
    of all threads where the last one is a mesh away.
    """

    vector: int
    bytes: int
    registers: int
    in_flight: int
    fitting: int
    in_cache: bool
    beyond: bool
    far: bool
    from_memory: bool
    slow: bool


def row_plan(
    program: Program, group: Group, machine: Machine, threads: int = 1, in_cache: bool = False
) -> RowPlan | None:
    """The choices for a group of rows; None where some statement has no contiguous loop inside the row or a reduction
    keeps its order, or where the machine has no vectors. `in_cache`: the rows are a block in one.
    """
    if any(s.combiner is not None and not s.reorder for s in group.statements):
        return None
    inside = _inside_rows(program, group)
    if inside is None:
        return None
    inner = {name: tuple(loops) for name, loops in inside.items()}
    extents = {name: tuple(loops.values()) for name, loops in inside.items()}
    moving = [s for s in group.statements if inner[s.name]]
    widest = widest_element(program, moving or group.statements)
    passes = passes_of(group, inner, extents)
    if not any(p.extents for p in passes):
        return None
    if machine.lanes(widest) == 1 or machine.registers is None:
        return None
    single = sum(not extents[n] for n in extents)
    rows = _row_bytes(program, group, inner, extents)
    pass_bytes = sum(rows.values()) * sum(bool(p.extents) for p in passes)
    limits = _limits(program, group, machine, widest, pass_bytes, single, threads, in_cache)
    height = _height(program, group, passes, limits)
    asked = _asking(program, group, passes, inner) if limits.beyond else frozenset[str]()
    ahead, fits = _ahead(program, machine, asked, rows, height, limits.far)
    sized = tuple(_sized(program, p, limits, height) for p in passes)
    plan = RowPlan(sized, inner, height, asked if fits else frozenset(), ahead)
    block = _block(group, height, 1 if in_cache else threads)
    apart = height * pass_bytes > own_capacity(machine) // 2 or block < LEAST_STEPS * height
    return plan if apart else _in_turns(program, group, plan, block, limits, machine, threads, height * pass_bytes)


def _ahead(
    program: Program, machine: Machine, asked: Collection[str], rows: Mapping[str, int], height: int, far: bool
) -> tuple[int, bool]:
    """How many blocks of rows ahead what is asked for is, and whether the first cache holds all these. `rows`: bytes of
    one, by tensor.
    """
    again = {a.tensor for n in asked for a, _ in program.statement[n].accesses}
    step = height * max((n for t, n in rows.items() if t in again), default=BYTES_AHEAD)
    ahead = max(1, round(BYTES_AHEAD / step)) if far else 1
    return ahead, height * sum(n * (1 + ahead * (t in again)) for t, n in rows.items()) <= machine.nearest_cache


def _in_turns(
    program: Program, group: Group, plan: RowPlan, block: int, limits: _Limits, machine: Machine, threads: int,
    touched: int,
) -> RowPlan:  # fmt: skip
    """The plan with passes staggered where that pays, `touched`: bytes that all passes touch of the rows side by side.

    Where lines of the next rows are waited for, whatever else waits, passes over what the first cache holds stay one
    after the other: what one stores may look like what another one loads (addresses are compared by the place in a
    page, 0116).
    """
    found = _staggered(program, group, replace(plan, block=block), limits)
    # Half of what passes hold stays near: of three with a row in and one out, two slots and the row that is read.
    if not limits.in_cache and touched <= 2 * machine.nearest_cache and found.behind:
        found = _with_slots(program, group, found, machine, threads)
    return plan if limits.slow and touched <= machine.nearest_cache and not found.slots else found


def _limits(
    program: Program, group: Group, machine: Machine, widest: int, pass_bytes: int, single: int, threads: int,
    in_cache: bool,
) -> _Limits:  # fmt: skip
    """The limits where all passes touch so many bytes of a row, beside `single` values that each have a register."""
    vector, core = machine.lanes(widest), core_of(machine, widest)
    touched = 0 if in_cache else bytes_touched(program, group.statements)
    far, beyond = touched > last_capacity(machine) * NEAR, touched > own_capacity(machine)
    return _Limits(
        vector=vector, bytes=vector * widest, registers=machine.vector_registers - single, in_flight=core.in_flight,
        fitting=(machine.nearest_cache - 1) // max(1, pass_bytes), in_cache=in_cache, beyond=beyond, far=far,
        from_memory=touched > last_capacity(machine),
        slow=core.afar > 0 and touched > threads * own_capacity(machine),
    )  # fmt: skip


def _with_slots(program: Program, group: Group, plan: RowPlan, machine: Machine, threads: int) -> RowPlan:
    """With the temporaries that are slots of a row: those in results whose stores go past the caches."""
    past = whole_lines_past(program, group, machine, threads)
    return replace(plan, slots=frozenset(t for t, r in in_results(program, group, plan).items() if r in past))


def _inside_rows(program: Program, group: Group) -> dict[str, dict[str, int]] | None:
    """The loops of each statement inside a row with their extents, the one for lanes last; None where one has none."""
    found: dict[str, dict[str, int]] = {}
    for s in group.statements:
        known = reduction_extents(program, s, group.axes[s.name])
        if max(known.values(), default=1) == 1:  # one value a row
            known = {}
        lanes = _lanes(program, s, known)
        if known and lanes is None:
            return None
        found[s.name] = {i: known[i] for i in sorted(known, key=lambda i: i == lanes)}
    return found


def _block(group: Group, height: int, threads: int) -> int:
    """Rows in even blocks, of which threads have equal numbers where there are such blocks, or else one at least; 0
    where there are none."""
    assert group.box is not None
    *outer, (_, last) = group.box
    rows, around = last + 1, prod(high - low + 1 for low, high in outer)
    alone = 1 if around >= threads else threads
    fitting = [b for b in range(height, min(MOST_BLOCK, rows // alone) + 1, height) if rows % b == 0]
    shared = [b for b in fitting if b >= LEAST_STEPS * height and rows // b % alone == 0]
    return max(shared or fitting, default=0)


def _staggered(program: Program, group: Group, plan: RowPlan, limits: _Limits) -> RowPlan:
    """The plan with all passes as one, each of them behind the one before, where all have the same extents, and some of
    them exponentials, none another function.

    The end of a pass, lanes that are added up and a division, takes as long as many vectors, and the next pass waits
    for it: on another row there is enough to do meanwhile. What a pass hands on is a value for each row of the block,
    or lies where the results will. Vectors side by side are one wide one, operations of one between those of another.
    """
    moving = [p for p in plan.passes if p.extents]
    costs = [_cost(program, p) for p in moving]
    if len(moving) < 2 or len({p.extents for p in moving}) > 1 or max(costs) != Cost.EXPONENTIAL:
        return plan
    behind = _behind(group, moving)
    made = {s.write.tensor for s in group.statements}
    single = [n for p in plan.passes if not p.extents for n in p.statements]
    first = tuple(n for n in single if not made & {*tensors_read(program.statement[n])})
    rest = tuple(n for n in single if n not in first)
    width = max(1, min(limits.registers // PER_VECTOR // plan.height, moving[0].extents[-1] // limits.vector))
    width = 1 << width.bit_length() - 1  # LLVM makes other wide vectors longer
    names = tuple(n for p in moving for n in p.statements)
    uneven = limits.far and moving[0].extents[-1] % limits.vector > 0  # rows from afar, from within a line on
    whole = Pass(moving[0].extents, names, limits.vector, width, not uneven)
    passes = tuple(p for p in (Pass((), first), whole, Pass((), rest)) if p.statements)
    found = replace(plan, passes=passes, behind=behind)
    return found if limits.in_cache or _handed_rows(group, found) <= in_results(program, group, found).keys() else plan


def _behind(group: Group, moving: Sequence[Pass]) -> dict[str, int]:
    """For every statement its place among the passes; of single values that of what they start from or use."""
    behind = {n: k for k, part in enumerate(moving) for n in part.statements}
    for s in group.statements:
        if s.name not in behind:
            used = {*tensors_read(s), s.write.tensor}
            behind[s.name] = max(
                (behind[o.name] for o in group.statements if o.write.tensor in used and o.name in behind), default=0
            )
    return behind


def crossing(group: Group, plan: RowPlan) -> set[str]:
    """What statements hand on to others that are further behind."""
    makers = {s.write.tensor: s.name for s in group.statements} if plan.behind else {}
    read = [(t, s.name) for s in group.statements for t in tensors_read(s)]
    return {t for t, n in read if t in makers and plan.behind[makers[t]] != plan.behind[n]}


def _handed_rows(group: Group, plan: RowPlan) -> set[str]:
    """Of that what has more than one element a row."""
    return {t for t in crossing(group, plan) if any(moves_inside(plan.inner, s, t) for s in group.statements)}


def moves_inside(inner: Mapping[str, tuple[str, ...]], s: Statement, tensor: str) -> bool:
    """Whether a statement touches different elements of a tensor in its `inner` loops."""
    loops = {*inner[s.name]}
    return any(i.names & loops for a, _ in s.accesses if a.tensor == tensor for i in a.affine_index)


def in_results(program: Program, group: Group, plan: RowPlan) -> dict[str, str]:
    """Temporaries whose rows lie where their last user will write a row of a result, element by element: so memory
    fetches that row while there is something to compute.
    """
    found: dict[str, str] = {}
    for s in group.statements:
        free = [t for t in dict.fromkeys(tensors_read(s)) if _ends_in(program, plan, t, s)]
        found |= dict.fromkeys(free[:1], s.write.tensor)
    return found


def _ends_in(program: Program, plan: RowPlan, name: str, s: Statement) -> bool:
    """Whether a statement that alone touches a result is the last one to touch a temporary of the same form, and
    reads of it the element that it writes.
    """
    tensor, target = program.tensor[name], program.tensor[s.write.tensor]
    form = (tensor.role, target.role, tensor.shape, tensor.dtype)
    if form != ("temporary", "output", target.shape, target.dtype) or not moves_inside(plan.inner, s, name):
        return False
    touched = {o.name: (*tensors_read(o), *tensors_written(o)) for o in program.statements}
    if any(target.name in tensors for o, tensors in touched.items() if o != s.name):
        return False
    places = plan.places()
    users = [o for o, tensors in touched.items() if name in tensors and o != s.name]
    if not all(o in places and places[o] < places[s.name] for o in users):
        return False
    return all(r.index == s.write.index and not r.guard for r in s.reads if r.tensor == name)


def _asking(
    program: Program, group: Group, passes: Sequence[Pass], inner: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    """The statements that ask for the next rows: of those that read again what an earlier pass read, and nothing else
    that moves along a row, the one with most to compute.
    """
    made = {s.write.tensor for s in group.statements}
    first, found = dict[str, int](), dict[str, tuple[Cost, str]]()
    for k, part in enumerate(passes):
        for name in part.statements:
            s = program.statement[name]
            rows = {r.tensor for r in s.reads if moves_inside(inner, s, r.tensor)} - made
            for tensor in rows:
                again = first.setdefault(tensor, k) < k and len(rows) == 1
                cost = _cost(program, part)
                if again and (tensor not in found or found[tensor][0] < cost):
                    found[tensor] = cost, name
    return frozenset(name for _, name in found.values())


def _row_bytes(
    program: Program, group: Group, inner: Mapping[str, tuple[str, ...]], extents: Mapping[str, tuple[int, ...]]
) -> Mapping[str, int]:
    """Bytes of one row of what comes in or goes out, by tensor."""
    made, used = {s.write.tensor for s in group.statements}, {r.tensor for s in group.statements for r in s.reads}
    sizes = dict[str, int]()
    for s in group.statements:
        for a in (a for a, _ in s.accesses if (a.tensor in made) != (a.tensor in used) and not a.indirect):
            names = frozenset[str]().union(*(i.names for i in a.affine_index))
            if group.axes[s.name][-1] in names:
                row = prod(n for i, n in zip(inner[s.name], extents[s.name], strict=True) if i in names)
                sizes[a.tensor] = max(sizes.get(a.tensor, 0), row * size_bytes(program.tensor[a.tensor].dtype))
    return sizes


def _height(program: Program, group: Group, passes: Sequence[Pass], limits: _Limits) -> int:
    """Rows side by side, so that what each adds up and divides at its end overlaps with another one's."""
    assert group.box is not None
    rows = group.box[-1][1] + 1
    vectors = max(-(-prod(p.extents) // limits.vector) for p in passes)
    cost = max(_cost(program, p) for p in passes)
    most = next((h for limit, h in HEIGHTS[cost] if vectors <= limit), 1)
    if cost == Cost.EXPONENTIAL:  # their passes take turns
        most = min(most, max(1, limits.fitting))
    if limits.beyond:  # no more than a stream is asked for ahead, and what a prefetcher takes for one
        together = BESIDE_FAR if limits.far and cost > Cost.PLAIN else BYTES_AHEAD
        together = STREAM if limits.from_memory or (limits.slow and cost == Cost.PLAIN) else together
        most = min(most, max(1, together // (vectors * limits.bytes)))
    fitting = [h for h in range(1, most + 1) if rows % h == 0]
    held = {h: max(_registers_held(program, p, limits, h) for p in passes) for h in fitting}
    return max((h for h in fitting if held[h] <= limits.registers), default=1)


def _registers_held(program: Program, part: Pass, limits: _Limits, height: int) -> int:
    """Those for the partial results of a pass, and for those of one of them by whole vectors."""
    sized = _sized(program, part, limits, height)
    return height * sized.lanes // limits.vector * (_reductions(program, part) * sized.width + 1)


def _lanes(program: Program, s: Statement, extents: Mapping[str, int]) -> str | None:
    """The loop of a row along which every access is contiguous or constant, and the write not constant unless it
    reduces.
    """
    suited: list[tuple[int, str]] = []
    for i, extent in extents.items():
        steps = [step_along(program, a, i) for a, _ in s.accesses]
        target = steps[-1] == 1 or (steps[-1] == 0 and s.combiner is not None)
        if target and set(steps) <= {0, 1} and 1 in steps and extent >= FEWEST_LANES:
            suited.append((extent, i))
    return max(suited)[1] if suited else None


def passes_of(group: Group, inner: Mapping[str, tuple[str, ...]], extents: Mapping[str, tuple[int, ...]]) -> list[Pass]:
    """Every statement in the first pass over its loops that comes after what it reads, or makes it in place."""
    passes: list[Pass] = []
    home: dict[str, int] = {}
    statements = {s.name: s for s in group.statements}
    for s in group.statements:
        first = 0
        for name, place in home.items():
            if statements[name].write.tensor in (*tensors_read(s), *tensors_written(s)):
                together = not extents[s.name] or _in_place(group, statements[name], s, inner)
                first = max(first, place + (not (together and extents[s.name] == extents[name])))
        found = [k for k in range(first, len(passes)) if passes[k].extents == extents[s.name]]
        at = home[s.name] = found[0] if found else len(passes)
        before = passes[at].statements if found else ()
        passes[at : at + 1] = [Pass(extents[s.name], (*before, s.name))]
    return passes


def _in_place(group: Group, maker: Statement, user: Statement, inner: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a statement reads what another one makes at the element that the same iteration makes."""
    if maker.combiner is not None:
        return False

    def by_loops(s: Statement, index: Sequence[Affine]) -> list[Affine]:
        names = (*group.axes[s.name], *inner[s.name])
        return [i.substitute({n: var(f"loop{k}") for k, n in enumerate(names)}) for i in index]

    made = by_loops(maker, maker.write.affine_index)
    return all(by_loops(user, r.affine_index) == made for r in user.reads if r.tensor == maker.write.tensor)


def _reductions(program: Program, part: Pass) -> int:
    return sum(program.statement[n].combiner is not None for n in part.statements)


def _cost(program: Program, part: Pass) -> Cost:
    used = functions_in([program.statement[n] for n in part.statements])
    exponentials = {OPERATORS[o].cost for o in used} == {"exponential"}
    return Cost.PLAIN if not used else Cost.EXPONENTIAL if exponentials else Cost.FUNCTION


def _sized(program: Program, part: Pass, limits: _Limits, height: int) -> Pass:
    """A pass with its vectors: several side by side hide the latency of an operation, or two as one wide one."""
    if not part.extents:
        return part
    cost = _cost(program, part)
    joined = interleaved(part.extents[-1], limits.vector, height) if cost == Cost.FUNCTION else 1
    lanes = limits.vector * joined
    reductions = _reductions(program, part)
    most = limits.in_flight // (reductions * height) if reductions else SIDE_BY_SIDE // height
    most = 1 if cost > Cost.PLAIN else most
    return replace(part, lanes=lanes, width=max(1, min(most, part.extents[-1] // lanes)))
