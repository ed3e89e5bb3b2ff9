"""Policy for an accelerator with software-managed memories: composes primitives, knows nothing of operators.

Each fusion group becomes one nest of tile loops. What its statements read is promoted into on-chip memories at the
deepest tile loop that moves it, what they write at the innermost parallel one; transfers rotate over two slots. A
statement that a matrix unit can compute (`poly.scheduling.contraction`) goes there, copies go to the DMA engines,
everything else to the vector engine. Tile sizes, loop order and the choice of memories are those that move the least
bytes (`poly.scheduling.tiles`). Groups that do not fit this form stay whole in the memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, product

from poly.errors import CapacityError, PolyError, ScheduleError, UnsupportedError
from poly.expr import Read
from poly.machine import Engine, Machine
from poly.program import Program, Statement
from poly.scheduling.contraction import Contraction, contractions
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.group_plan import Plan, Promotion, TiledGroup, problem_of, tiled_group
from poly.scheduling.group_tiles import build, copy_engine, overflow, whole
from poly.scheduling.groups import Group, groups_of
from poly.scheduling.schedule import Schedule
from poly.scheduling.tiles import best_tiles
from poly.scheduling.unreached import without_unreached

MAX_TRIES = 4  # to find tiles: each leaves less room, by as much as buffers of the last came out too large


def schedule_for_accelerator(program: Program, machine: Machine) -> Schedule:
    """A checked schedule of a program, sizes bound, for an accelerator.

    Raises `UnsupportedError` for a statement that no engine can run and `CapacityError` where nothing fits.
    """
    for s in program.statements:
        if s.external is not None:
            raise UnsupportedError("is computed outside of the program", where=f"statement {s.name}")
    free = [p for p in program.parameters if p not in program.binding]
    if free:
        hint = f"program.bind({', '.join(f'{size}=64' for size in free)})"
        raise UnsupportedError(f"sizes {', '.join(free)} are free", where=program.name, hint=hint)
    if not machine.engines_of("vector"):
        raise UnsupportedError(f"{machine.name} has no vector engine", where=program.name)
    program = without_unreached(program)
    schedule = Schedule(program)
    for group in groups_of(program):
        schedule = _scheduled(schedule, group, machine)
    return schedule


def _scheduled(schedule: Schedule, group: Group, machine: Machine) -> Schedule:
    """The first way of running a group that is legal and fits."""
    failures: list[PolyError] = []
    for attempt in _attempts(schedule, group, machine):
        try:
            return settle(attempt())
        except (ScheduleError, UnsupportedError) as error:
            failures.append(error)
    for s in group.statements:
        if any(r.indirect for r in s.reads) and isinstance(failures[-1], CapacityError):
            raise UnsupportedError(
                "what it reads indirectly has to be on chip whole, and does not fit", where=f"statement {s.name}",
                hint="a machine with larger memories",
            ) from failures[-1]  # fmt: skip
    raise next((f for f in failures if isinstance(f, CapacityError)), failures[0])


def _attempts(schedule: Schedule, group: Group, machine: Machine) -> Iterator[Callable[[], Schedule]]:
    program, tiled = schedule.program, tiled_group(schedule.program, group)
    if tiled is not None:
        ways = _on_array(program, tiled, machine)
        if ways:
            yield lambda: _tiled(schedule, tiled, machine, [_array_plans(program, tiled, w, machine) for w in ways])
        if _is_copy(group.statements):
            yield lambda: _tiled(schedule, tiled, machine, [_copy_plans(program, tiled, machine)])
        for pad in (True, False):
            yield lambda pad=pad: _tiled(schedule, tiled, machine, [_vector_plans(tiled, machine, pad)])
    yield lambda: whole(unchecked(schedule), group.names, machine)


def _on_array(program: Program, group: TiledGroup, machine: Machine) -> list[Contraction]:
    """The ways in which a matrix unit can run a statement of the group."""
    for engine in machine.engines_of("array"):
        for s in group.statements:
            found = contractions(program, s, engine)
            if found:
                return found
    return []


def _is_copy(statements: Sequence[Statement]) -> bool:
    """One statement that moves elements as they are, from one tensor to another: both ends of it may then be in
    memories with a path between them.
    """
    s = statements[0]
    plain = len(statements) == 1 and s.body == Read(0) and s.combiner is None and len(s.reads) == 1
    return plain and not s.write.indirect and s.reads[0].tensor != s.write.tensor


def _tiled(schedule: Schedule, group: TiledGroup, machine: Machine, options: Sequence[Sequence[Plan]]) -> Schedule:
    """The best plan with its best tiles, as edits; again with less room where buffers came out larger than foreseen."""
    plans = [replace(plan, rotate=r) for option in options for plan in option for r in (True, False)]
    room = {m.name: m.capacity or 0 for m in machine.memories}
    for _ in range(MAX_TRIES):
        best = best_tiles([problem_of(schedule.program, group, plan, machine, room) for plan in plans])
        if best is None:
            raise CapacityError(
                "no tile fits the memories", kind="capacity", where=", ".join(s.name for s in group.statements)
            )
        plan, choice = plans[best[0]], best[1]
        result = build(unchecked(schedule), group, plan, choice, machine)
        excess = overflow(schedule, result, machine)
        if not excess:
            return result
        room |= {n: room[n] * (machine.memory[n].capacity or 0) // used for n, used in excess.items()}
    raise CapacityError("buffers came out larger than foreseen", kind="capacity", where=schedule.source.name)


# ---- plans: which memory for which tensor, which engine for which statement


def _memories(machine: Machine) -> tuple[str, ...]:
    """Memories that the vector engine works in and that DMA engines load and store."""
    engine = _vector(machine)
    paths = {p for e in machine.engines_of("dma") for p in e.paths}
    dram = machine.dram.name
    both = [m for m in engine.reads if m in engine.writes and {(dram, m), (m, dram)} <= paths]
    if not both:
        raise UnsupportedError("no memory is reached by the DMA and the vector engine", where=f"machine {machine.name}")
    return tuple(both)


def _vector(machine: Machine) -> Engine:
    return machine.engines_of("vector")[0]


def _array_plans(program: Program, group: TiledGroup, way: Contraction, machine: Machine) -> list[Plan]:
    """The operands in the array's memories, its result in the accumulator; the rest in one memory or another."""
    s = program.statement[way.statement]
    operands = {s.reads[way.a].tensor: way.engine.reads[0], s.reads[way.b].tensor: way.engine.reads[-1]}
    engines = {t.name: _vector(machine).name for t in group.statements} | {way.statement: way.engine.name}
    result = way.engine.writes[0]
    if result not in _memories(machine):
        raise UnsupportedError(f"the vector engine of {machine.name} does not reach {result}", where=program.name)
    fixed: list[Promotion] = []
    free: list[Promotion] = []
    for p in group.promotions():
        if p.tensor == s.write.tensor:
            fixed.append(replace(p, memory=result))
        elif p.tensor in operands and p.users == (way.statement,):
            fixed.append(replace(p, memory=operands[p.tensor]))
        else:
            free.append(p)
    return [Plan((*fixed, *rest), engines, way) for rest in _assigned(free, machine)]


def _vector_plans(group: TiledGroup, machine: Machine, pad: bool) -> list[Plan]:
    """Everything on the vector engine: what is read in one memory, what is written in the same or another."""
    engines = {t.name: _vector(machine).name for t in group.statements}
    return [Plan(rest, engines, None) for rest in _assigned(group.promotions(pad), machine)]


def _assigned(promotions: Sequence[Promotion], machine: Machine) -> list[tuple[Promotion, ...]]:
    """What is read in one memory; what is written in the same one, in another, or in all of them in turn."""
    memories = _memories(machine)
    ways = [[m] for m in memories] + [[*memories[k:], *memories[:k]] for k in range(len(memories))]
    found: list[tuple[Promotion, ...]] = []
    for read, written in product(memories, ways):
        turn = cycle(written)
        chosen = tuple(replace(p, memory=next(turn) if p.written else read) for p in promotions)
        if chosen not in found:
            found.append(chosen)
    return found


def _copy_plans(program: Program, group: TiledGroup, machine: Machine) -> list[Plan]:
    """Straight from DRAM into a buffer of the result, and back; what is read needs no buffer of its own."""
    (s,) = group.statements
    dram = program.tensor[s.reads[0].tensor].space
    promotions = [p for p in group.promotions() if p.written]
    plans: list[Plan] = []
    for memory in _memories(machine):
        engine = copy_engine(machine, dram, memory)
        plans.append(Plan(tuple(replace(p, memory=memory) for p in promotions), {s.name: engine.name}, None))
    return plans
