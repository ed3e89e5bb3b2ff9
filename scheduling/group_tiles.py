"""The edits that carry out a plan: tile, reorder, fuse, promote, rotate, tensorise; primitives of `Schedule` all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from poly.affine import var
from poly.errors import CapacityError, IllegalEdit, UnsupportedError
from poly.machine import Engine, Machine
from poly.program import Program
from poly.relations import access_map
from poly.scheduling.contraction import Contraction
from poly.scheduling.edits import free_buffer_name, settle, unchecked
from poly.scheduling.group_plan import Plan, TiledGroup, by_role, is_empty
from poly.scheduling.paths import statements_of
from poly.scheduling.placement import Block, place
from poly.scheduling.schedule import Schedule
from poly.scheduling.tiles import Choice, blocks
from poly.sets import fix_sizes


def build(schedule: Schedule, group: TiledGroup, plan: Plan, choice: Choice, machine: Machine) -> Schedule:
    """A group by its plan and tile sizes; nothing is checked yet (pass an unchecked schedule and settle the result)."""
    before = set(schedule.program.statement)
    extent = {v.name: v.extent for v in group.variables}
    tiled = [v for v in choice.order if choice.sizes[v] < extent[v]]
    points: dict[str, dict[str, str]] = {}
    for s in group.statements:
        schedule, points[s.name] = _tile(schedule, s.name, group.places[s.name], tiled, choice.sizes)
    shared = [v for v in tiled if v in group.parallel]
    schedule = _fuse(schedule, [s.name for s in group.statements], len(shared))
    schedule = _promote(schedule, group, plan, tiled, len(shared))
    for s in group.statements:
        if plan.array is not None and plan.array.statement == s.name:
            schedule = _array_points(schedule, group, plan.array, points[s.name], choice.sizes)
        depth = sum(v in group.places[s.name].values() for v in tiled)
        chain = schedule.nests[s.name].names[depth:]
        schedule = _on_engine(schedule, s.name, chain, machine.engine[plan.engines[s.name]], machine)
    return _copies_on_engines(schedule, before, machine)


def _tile(
    schedule: Schedule, statement: str, places: Mapping[str, str], tiled: Sequence[str], sizes: Mapping[str, int]
) -> tuple[Schedule, dict[str, str]]:
    """One statement's loops: tile loops outside in the order given; and its point loops by variable."""
    nest = schedule.nests[statement]
    loop = {v: next(n for n in nest.names if nest.loops[n] == var(i)) for i, v in places.items()}
    own = [v for v in tiled if v in loop]
    points = dict(loop)
    for v in own:
        schedule = schedule.tile({loop[v]: sizes[v]})
        points[v] = f"{loop[v]}.p"
    outer = [f"{loop[v]}.o" for v in own]
    names = schedule.nests[statement].names
    wanted = (*outer, *(n for n in names if n not in outer))
    return (schedule.reorder(*wanted) if wanted != names else schedule), points


def _fuse(schedule: Schedule, statements: Sequence[str], levels: int) -> Schedule:
    """Share the outermost loops, from the outside in."""
    first, *others = statements
    for level in range(levels):
        for other in others:
            schedule = schedule.fuse(schedule.nests[first].names[level], schedule.nests[other].names[level])
    return schedule


def _promote(schedule: Schedule, group: TiledGroup, plan: Plan, tiled: Sequence[str], shared: int) -> Schedule:
    """Results at the innermost shared loop, what is read at the innermost loop that moves it, in rotation."""
    for p in plan.promotions:
        user = schedule.nests[p.users[0]].names
        own = [v for v in tiled if v in group.places[p.users[0]].values()]
        moving = [k for k, v in enumerate(own) if v in group.moving(p)]
        depth = shared if p.written else moving[-1] + 1 if moving else 0
        at = user[depth - 1] if depth else None
        buffer = f"{p.tensor}_{p.memory}" + ("" if p.written or len(p.users) == 1 else "_shared")
        name = free_buffer_name(schedule, buffer)
        schedule = schedule.promote(p.tensor, at, p.memory, name=name, users=p.users, pad=p.pad)
        if at is not None and (plan.rotate or not p.written):
            schedule = schedule.double_buffer(name, at)
    return schedule


def _array_points(
    schedule: Schedule, group: TiledGroup, way: Contraction, points: Mapping[str, str], sizes: Mapping[str, int]
) -> Schedule:
    """Point loops of the statement on the array: passes outside, then streamed rows, then columns and reduction."""
    outside = [points[v] for v in by_role(group, way, "batch")]
    inside: dict[str, list[str]] = {"n": [], "k": []}
    for role, limit in (("n", way.engine.cols), ("k", way.engine.rows)):
        names = by_role(group, way, role)
        found, _ = blocks(names, {v: np.array(sizes[v]) for v in names}, limit)
        for v in names:
            block = int(found[v])
            if block == sizes[v]:
                inside[role].append(points[v])
            elif block == 1:
                outside.append(points[v])
            else:
                schedule = schedule.tile({points[v]: block})
                outside.append(f"{points[v]}.o")
                inside[role].append(f"{points[v]}.p")
    streamed = [points[v] for v in reversed(by_role(group, way, "m"))]
    names = schedule.nests[way.statement].names
    wanted = [*outside, *streamed, *inside["n"], *reversed(inside["k"])]
    depth = len(names) - len(wanted)
    return schedule.reorder(*wanted) if len(wanted) > 1 and tuple(wanted) != names[depth:] else schedule


def copy_engine(machine: Machine, source: str, target: str) -> Engine:
    """The first DMA engine with a path. Raises `UnsupportedError`."""
    for engine in machine.engines_of("dma"):
        if (source, target) in engine.paths:
            return engine
    raise UnsupportedError(f"no DMA engine copies {source} -> {target}", where=f"machine {machine.name}")


def _on_engine(schedule: Schedule, name: str, chain: Sequence[str], engine: Engine, machine: Machine) -> Schedule:
    """A statement's innermost loops, or each of its instances where there are none, as commands of an engine."""
    s = schedule.program.statement[name]
    target = schedule.program.tensor[s.write.tensor].space
    padded = engine.kind == "dma" and any(r.guard for r in s.reads)
    fill = next((e.name for e in machine.engines_of("vector") if target in e.writes), None) if padded else None
    return schedule.tensorise(chain, engine.name, statement=None if chain else name, fill=fill)


def _copies_on_engines(schedule: Schedule, before: set[str], machine: Machine) -> Schedule:
    """New copies go to the DMA engine with their path."""
    tensor = schedule.program.tensor
    for s in schedule.program.statements:
        if s.copies and s.name not in before:
            chain = [n for n in schedule.nests[s.name].names if n.startswith(f"{s.name}.")]
            source, target = tensor[s.reads[0].tensor].space, tensor[s.write.tensor].space
            schedule = _on_engine(schedule, s.name, chain, copy_engine(machine, source, target), machine)
    return schedule


# ---- capacity


def overflow(old: Schedule, new: Schedule, machine: Machine) -> dict[str, int]:
    """Memories in which the buffers that are new need more than there is, and how much."""
    program, order = new.program, statements_of(new.tree)
    blocks_of: dict[str, list[Block]] = {}
    for t in program.tensors:
        if not t.origin or t.name in old.program.tensor or machine.memory[t.space].capacity is None:
            continue
        users = [k for k, n in enumerate(order) if any(a.tensor == t.name for a, _ in program.statement[n].accesses)]
        written = any(s.write.tensor == t.name and not s.copies for s in program.statements)
        rotates = t.rank > old.program.tensor[t.origin].rank
        first, last = (users[0], users[-1]) if written and not rotates else (0, len(order))
        blocks_of.setdefault(t.space, []).append(Block(t.name, t.nbytes(program.binding), first, last))
    sizes = {n: place(found, machine.memory[n].align).size for n, found in blocks_of.items()}
    return {n: size for n, size in sizes.items() if size > (machine.memory[n].capacity or 0)}


# ---- the last resort


def whole(schedule: Schedule, statements: Sequence[str], machine: Machine) -> Schedule:
    """Every tensor whole in a memory, every statement on the vector engine with as many loops as may be at once."""
    engine = machine.engines_of("vector")[0]
    before = set(schedule.program.statement)
    statements = [n for n in statements if not is_empty(schedule.program, schedule.program.statement[n])]
    for t in dict.fromkeys(a.tensor for n in statements for a, _ in schedule.program.statement[n].accesses):
        users = tuple(n for n in statements if any(a.tensor == t for a, _ in schedule.program.statement[n].accesses))
        room = _room(schedule, engine, machine)
        memory = max(room, key=lambda m: room[m])
        if not _touched(schedule.program, t, users):
            continue
        schedule = schedule.promote(t, None, memory, name=free_buffer_name(schedule, f"{t}_{memory}"), users=users)
    schedule = settle(_copies_on_engines(schedule, before, machine))
    for name in statements:
        schedule = _at_once(schedule, name, engine)
    room = _room(schedule, engine, machine)
    if full := [m for m, left in room.items() if left < 0]:
        raise CapacityError(
            f"the tensors do not fit {', '.join(full)} whole", kind="capacity", where=", ".join(statements)
        )
    return unchecked(schedule)


def _at_once(schedule: Schedule, name: str, engine: Engine) -> Schedule:
    """A statement on an engine: as many of its own loops in one command as may be, from the inside out."""
    own = [n for n in schedule.nests[name].names if schedule.under(n) == (name,)]
    for count in range(len(own), 0, -1):
        try:
            return schedule.tensorise(own[-count:], engine.name)
        except IllegalEdit:
            continue
    return schedule.tensorise((), engine.name, statement=name)


def _touched(program: Program, tensor: str, users: Sequence[str]) -> bool:
    """Whether an element of a tensor is accessed at all (guards may never hold)."""
    return any(
        not fix_sizes(access_map(s, a, program.parameters, program.tensor[tensor].shape), program.binding).is_empty()
        for s in (program.statement[u] for u in users)
        for a, _ in s.accesses
        if a.tensor == tensor
    )


def _room(schedule: Schedule, engine: Engine, machine: Machine) -> dict[str, int]:
    """Bytes left in each memory of an engine when all buffers are alive at once."""
    left = {m: machine.memory[m].capacity or 0 for m in engine.reads if m in engine.writes}
    for t in schedule.program.tensors:
        if t.space in left:
            align = machine.memory[t.space].align
            left[t.space] -= -(-t.nbytes(schedule.program.binding) // align) * align
    return left
