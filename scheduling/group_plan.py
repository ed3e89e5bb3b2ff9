"""A fusion group as the tile search sees it: its loops as variables, its tensors as buffers, its statements as work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.affine import Affine, var
from poly.dtypes import size_bytes
from poly.expr import Apply, walk
from poly.machine import Engine, Machine
from poly.program import Access, Program, Statement
from poly.relations import bound_domain, intervals_of
from poly.scheduling.contraction import Contraction, names_of
from poly.scheduling.groups import Group, tensors_read
from poly.scheduling.tiles import Buffer, Bus, Problem, Space, Variable, Work

WINDOW = 16  # steps of a reduction loop that stays whole where that fits, as a window's do


@dataclass(frozen=True)
class Promotion:
    """A tensor that some statements see in an on-chip `memory`. `written`: by one of them."""

    tensor: str
    users: tuple[str, ...]
    written: bool
    pad: bool
    memory: str = ""


@dataclass(frozen=True)
class Plan:
    """Where tensors live and which engine runs which statement. `array`: the statement on a matrix unit.

    `rotate`: results have two slots, so that engines work on different tiles.
    """

    promotions: tuple[Promotion, ...]
    engines: Mapping[str, str]
    array: Contraction | None
    rotate: bool = False


@dataclass(frozen=True)
class TiledGroup:
    """A fusion group by the loops that tiles are made of: its statements share the parallel `variables`, and each
    reduction has some of its own. `places`: for every statement the variable that each of its iterators is. `sizes`:
    the binding of the program.
    """

    statements: tuple[Statement, ...]
    variables: tuple[Variable, ...]
    places: Mapping[str, Mapping[str, str]]
    sizes: Mapping[str, int]

    @property
    def parallel(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.variables if not v.reduction)

    def subscripts(self, s: Statement, access: Access) -> tuple[Affine, ...]:
        """Subscripts by variables; indirect ones stand still."""
        values: dict[str, Affine | int] = {**self.sizes, **{i: var(v) for i, v in self.places[s.name].items()}}
        return tuple(e.substitute(values) if isinstance(e, Affine) else Affine() for e in access.index)

    def promotions(self, pad: bool = True) -> tuple[Promotion, ...]:
        """One for every tensor written, by all; one for every tensor read, by reductions apart from the others."""
        written = list(dict.fromkeys(s.write.tensor for s in self.statements))
        found = [Promotion(t, self.users(t), True, False) for t in written]
        for reduces in (True, False):
            group = [s for s in self.statements if (s.combiner is not None) == reduces]
            for t in dict.fromkeys(r.tensor for s in group for r in s.reads if r.tensor not in written):
                users = tuple(s.name for s in group if any(r.tensor == t for r in s.reads))
                guards = any(r.guard for s in group for r in s.reads if r.tensor == t)
                found.append(Promotion(t, users, False, pad and guards))
        return tuple(found)

    def users(self, tensor: str) -> tuple[str, ...]:
        return tuple(s.name for s in self.statements if tensor in (s.write.tensor, *tensors_read(s)))

    def moving(self, p: Promotion) -> frozenset[str]:
        """Variables that move the users' accesses to a tensor."""
        names: set[str] = set()
        for s in self.statements:
            if s.name in p.users:
                for access, _ in s.accesses:
                    if access.tensor == p.tensor:
                        names |= {n for e in self.subscripts(s, access) for n in e.names}
        return frozenset(names)


def tiled_group(program: Program, group: Group) -> TiledGroup | None:
    """The group by variables; None where its statements do not share one box of parallel loops."""
    if any(s.external is not None or is_empty(program, s) for s in group.statements):
        return None
    axes = dict(group.axes)
    if group.box is None or not all(s.name in axes for s in group.statements):
        if len(group.statements) != 1:
            return None
        (s,) = group.statements
        axes = {s.name: tuple(i for i in s.iterators if i in names_of(s.write))}
    variables: list[Variable] = []
    places: dict[str, dict[str, str]] = {}
    first = group.statements[0]
    ranges = {s.name: _extents(program, s) for s in group.statements}
    for k, i in enumerate(axes[first.name]):
        variables.append(Variable(f"a{k}", ranges[first.name][i]))
    for s in group.statements:
        places[s.name] = {i: f"a{k}" for k, i in enumerate(axes[s.name])}
        for i in s.iterators:
            if i not in places[s.name]:
                if s.combiner is None:
                    return None
                places[s.name][i] = f"r{len(variables)}"
                variables.append(Variable(f"r{len(variables)}", ranges[s.name][i], reduction=True))
    return TiledGroup(tuple(group.statements), tuple(variables), places, program.binding)


def is_empty(program: Program, s: Statement) -> bool:
    """Whether a statement has no instance."""
    return bound_domain(program, s).is_empty()


def _extents(program: Program, s: Statement) -> dict[str, int]:
    """Lengths of the box around a domain."""
    return {i: found[1] - found[0] + 1 for i, found in intervals_of(program, s).items() if found is not None}


# ---- the search problem


def problem_of(program: Program, group: TiledGroup, plan: Plan, machine: Machine, room: Mapping[str, int]) -> Problem:
    """What the tile search needs to know. `room`: bytes by memory."""
    spaces = {p.memory: Space(room[p.memory], machine.memory[p.memory].align) for p in plan.promotions}
    setup = max((e.setup for e in machine.engines_of("dma")), default=0)
    bus = Bus(max(1, machine.dram.bytes_per_cycle), max(1, machine.dram.line), setup)
    buffers = tuple(_buffer(program, group, p, plan.rotate) for p in plan.promotions)
    work = tuple(_work(group, s, plan, machine.engine[plan.engines[s.name]]) for s in group.statements)
    variables = _variables(group, plan.array)
    return Problem(variables, buffers, work, _orders(group, plan.array), spaces, bus)


def _buffer(program: Program, group: TiledGroup, p: Promotion, rotate: bool) -> Buffer:
    t = program.tensor[p.tensor]
    accesses: list[tuple[Affine, ...]] = []
    for s in group.statements:
        if s.name in p.users:
            accesses += [group.subscripts(s, a) for a, _ in s.accesses if a.tensor == p.tensor]
    names = {s.name for s in group.statements}
    outside = any(p.tensor in tensors_read(s) for s in program.statements if s.name not in names)
    stored = p.written and (t.is_output or outside)
    extents = t.extents(program.binding)
    unique = tuple(dict.fromkeys(accesses))
    order = [k for k, s in enumerate(group.statements) if s.name in p.users]
    alive = (order[0], order[-1]) if p.written and not rotate else None
    return Buffer(
        t.name, unique, extents, size_bytes(t.dtype), p.memory, not p.written, stored, p.written and rotate, alive
    )


def _variables(group: TiledGroup, way: Contraction | None) -> tuple[Variable, ...]:
    """With units from the array's sides for the longest loops along them; windows whole."""
    if way is None:
        return tuple(_windowed(v, ()) for v in group.variables)
    units: dict[str, int] = {}
    extent = {v.name: v.extent for v in group.variables}
    for side, limit in ((by_role(group, way, "n"), way.engine.cols), (by_role(group, way, "k"), way.engine.rows)):
        if side and extent[side[0]] >= limit:
            units[side[0]] = limit
    return tuple(
        Variable(v.name, v.extent, v.reduction, units[v.name]) if v.name in units else _windowed(v, units)
        for v in group.variables
    )


def _windowed(v: Variable, units: Sequence[str] | Mapping[str, int]) -> Variable:
    return Variable(v.name, v.extent, v.reduction, 1, v.reduction and v.extent <= WINDOW and v.name not in units)


def by_role(group: TiledGroup, way: Contraction, role: str) -> tuple[str, ...]:
    """Variables of a role, the longest first."""
    extent = {v.name: v.extent for v in group.variables}
    place = group.places[way.statement]
    iterators = {"n": way.n, "k": way.k, "m": way.m, "batch": way.batch}[role]
    return tuple(sorted((place[i] for i in iterators), key=lambda v: -extent[v]))


def _orders(group: TiledGroup, way: Contraction | None) -> tuple[tuple[str, ...], ...]:
    """Orders of the parallel tile loops worth looking at."""
    axes = group.parallel
    orders = [axes, *((*(a for a in axes if a != last), last) for last in axes)]
    if way is not None:
        place = group.places[way.statement]
        batch, m, n = (tuple(place[i] for i in which) for which in (way.batch, way.m, way.n))
        orders += [(*batch, *m, *n), (*batch, *n, *m)]
    return tuple(dict.fromkeys(orders))


def _work(group: TiledGroup, s: Statement, plan: Plan, engine: Engine) -> Work:
    """A statement's cycles, about those of `accel.timing`, for which what a body computes twice is one operation."""
    place = group.places[s.name]
    names = tuple(place[i] for i in s.iterators)
    if plan.array is not None and plan.array.statement == s.name:
        columns, rows = by_role(group, plan.array, "n"), by_role(group, plan.array, "k")
        lead = engine.rows + engine.fill
        return Work(engine.name, names, lead, columns=columns, rows=rows, shape=(engine.rows, engine.cols))
    operators = [node.operator for node in walk(s.body) if isinstance(node, Apply)]
    operators += [s.combiner.operator] if s.combiner is not None else []
    steps = max(1, sum(engine.cost.get(o, 1) for o in operators), len(s.reads))
    if engine.kind != "vector":
        return Work(engine.name, names, steps=0)
    return Work(engine.name, names, engine.setup + engine.fill, steps, max(1, engine.lanes))
