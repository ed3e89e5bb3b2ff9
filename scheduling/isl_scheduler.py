"""isl's scheduler as a policy, for nests with carried dependences: stencils, factorisations, recurrences.

Our dependences go in as constraints, on symbolic sizes; a schedule tree comes out, becomes nests with loops t0, t1, ...
and is judged by our own checker like any other edit. The scheduler runs in a process of its own under a limit of
processor time (Verdoolaege and Janssens, "Scheduling for PPCG", 2017: coincidence first, or Pluto's cost function;
Feautrier 1992 needs the least time). Where one mode fails the next is tried, and the last is the original order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

import islpy as isl

from poly.affine import Affine, var
from poly.arguments import checks_kinds
from poly.errors import PolyError, ScheduleError, UnsupportedError
from poly.program import PathStep, Program, Statement
from poly.scheduling.arrange import arrange, places_of
from poly.scheduling.dependences import Dependence, dependences
from poly.scheduling.edits import settle, unchecked
from poly.scheduling.edits import tile as tile_band
from poly.scheduling.isl_client import shared_worker
from poly.scheduling.isl_worker import Request
from poly.scheduling.paths import Nest
from poly.scheduling.schedule import Schedule
from poly.sets import affine_of_pw, header, within_budget

if TYPE_CHECKING:
    from poly.frontend.nest import Nest as NestFunction

Mode = Literal["maximise-coincidence", "pluto", "feautrier"]
_BUDGET: Final = 20_000_000  # operations of isl in this process
_KINDS: Final = isl.schedule_node_type


@checks_kinds(ScheduleError)
def schedule_by_isl(
    program: Program | NestFunction[..., object], *, mode: Mode = "maximise-coincidence", tile: int | None = 32,
    timeout: float = 2.0,
) -> Schedule:  # fmt: skip
    """A checked schedule of a program, or of a nest, by isl's scheduler.

    `mode`: parallel loops first ("maximise-coincidence"), locality first ("pluto"), or Feautrier's. `tile`: the size of
    the tiles of every band of two or more loops that can be exchanged; None leaves them. `timeout`: seconds of
    processor time for each attempt. The attempts: the mode, Feautrier's, the program's own order (an empty script),
    which a program without dependences keeps too. Waiting for isl is bounded by a multiple of the timeout.
    Raises `ScheduleError` for arguments without sense.
    """
    start = Schedule(program)
    if mode not in get_args(Mode) or (tile is not None and tile < 1) or timeout <= 0:
        raise ScheduleError(
            f"mode {mode!r}, tile {tile}, timeout {timeout}", where=start.source.name,
            hint=f"one of {', '.join(get_args(Mode))}; a positive tile and timeout",
        )  # fmt: skip
    free = replace(start.source, sizes=())
    facts = within_budget(_BUDGET, lambda: dependences(free), lambda: ())
    for attempt in dict.fromkeys((mode, "feautrier")) if facts else ():
        text = shared_worker().ask(request(free, facts, attempt, timeout))
        if text is None:
            continue
        found = within_budget(_BUDGET, lambda tree=text: _judged(start, tree, tile), lambda: None)
        if found is not None:
            return found
    return start


def request(program: Program, facts: Sequence[Dependence], mode: str, seconds: float) -> Request:
    """The constraints of a program: order, what a parallel loop must not carry, what is to be close in time.

    A reduction's own updates may run in any order but not at once, and need not be close.
    """
    order = [d for d in facts if d.kind != "reduction"]
    everything = isl.UnionSet(f"{header(program.parameters)}{{ }}")
    for s in program.statements:
        everything = everything.union(s.domain.intersect_params(program.context).to_union_set())
    return Request(
        domain=everything.to_str(), context=program.context.to_str(), validity=_union(order).to_str(),
        coincidence=_union(facts).to_str(), proximity=_union([d for d in order if d.kind == "flow"]).to_str(),
        mode=mode, seconds=seconds,
    )  # fmt: skip


def _union(facts: Sequence[Dependence]) -> isl.UnionMap:
    union = isl.UnionMap("{ }")
    for dependence in facts:
        union = union.union(dependence.relation.to_union_map())
    return union


def _judged(start: Schedule, text: str, size: int | None) -> Schedule | None:
    """isl's tree as a schedule, tiled where that is legal; None where it has no form here, or is refused."""
    try:
        found = _Reader(start.program).read(isl.Schedule(text))
        placed = arrange(unchecked(start), places_of(start.with_nests(found.nests)))
        tiled = placed
        if size is not None:
            for band in found.bands:
                tiled = tile_band(tiled, dict.fromkeys(band, size))
    except PolyError:
        return None
    for candidate in (tiled, placed):
        try:
            return settle(candidate)
        except PolyError:
            continue
    return None


@dataclass
class _Reader:
    """Walks a tree of isl's. `bands`: the loops of each band of two or more that may be exchanged."""

    program: Program
    nests: dict[str, Nest] = field(default_factory=dict)
    bands: list[tuple[str, ...]] = field(default_factory=list)
    count: int = 0

    def read(self, tree: isl.Schedule) -> _Reader:
        """All nests of a tree. Raises `UnsupportedError` for expressions that are not quasi-affine."""
        context = self.program.context
        never = [s for s in self.program.statements if s.domain.intersect_params(context).is_empty()]
        empty = {s.name for s in never}
        members = [s for s in self.program.statements if s.name not in empty]
        self._node(tree.get_root(), members, (), {s.name: {} for s in members})
        if never:  # isl leaves statements without instances out; they get nests of their own at the end
            self.nests = {name: Nest(n.loops, (0, *n.path)) for name, n in self.nests.items()}
        for position, s in enumerate(never, 1):
            loops = {f"{s.name}.{i}": var(i) for i in s.iterators}
            self.nests[s.name] = Nest(loops, (position, *loops))
        return self

    def _node(
        self, node: isl.ScheduleNode, members: Sequence[Statement], path: tuple[PathStep, ...],
        loops: dict[str, dict[str, Affine]],
    ) -> None:  # fmt: skip
        kind = node.get_type()
        if kind == _KINDS.leaf:
            for position, s in enumerate(members):  # several at one place never meet there; any order will do
                self.nests[s.name] = Nest(loops[s.name], (*path, position) if len(members) > 1 else path)
        elif kind == _KINDS.band:
            names = self._band(node, members, loops)
            self._node(node.child(0), members, (*path, *names), loops)
        elif kind == _KINDS.sequence or kind == _KINDS.set:
            for position, (child, inside) in enumerate(self._children(node, members, kind == _KINDS.set)):
                self._node(child, inside, (*path, position), loops)
        else:
            self._node(node.child(0), members, path, loops)

    def _children(
        self, node: isl.ScheduleNode, members: Sequence[Statement], free: bool
    ) -> list[tuple[isl.ScheduleNode, list[Statement]]]:
        """The children of a sequence with their statements; those of a set, which hash order put, in program order."""
        found: list[tuple[isl.ScheduleNode, list[Statement]]] = []
        for k in range(node.n_children()):
            child = node.child(k)
            names = set(_tuple_names(child.filter_get_filter()))
            found.append((child.child(0), [s for s in members if s.name in names]))
        return sorted(found, key=lambda part: members.index(part[1][0])) if free else found

    def _band(
        self, node: isl.ScheduleNode, members: Sequence[Statement], loops: dict[str, dict[str, Affine]]
    ) -> tuple[str, ...]:
        functions = node.band_get_partial_schedule()
        names: list[str] = []
        for k in range(functions.dim(isl.dim_type.out)):
            name = f"t{self.count}"
            self.count += 1
            names.append(name)
            values = _by_statement(functions.get_at(k))
            for s in members:
                value = affine_of_pw(values[s.name], s.iterators) if s.name in values else None
                if value is None:
                    raise UnsupportedError(f"loop {name} has no quasi-affine expression", where=f"statement {s.name}")
                loops[s.name][name] = value
        if len(names) > 1 and node.band_get_permutable():
            self.bands.append(tuple(names))
        return tuple(names)


def _tuple_names(union: isl.UnionSet) -> Iterator[str]:
    sets = union.get_set_list()
    for k in range(sets.n_set()):
        yield sets.get_at(k).get_tuple_name()


def _by_statement(function: isl.UnionPwAff) -> dict[str, isl.PwAff]:
    parts = function.get_pw_aff_list()
    found = [parts.get_at(k) for k in range(parts.n_pw_aff())]
    return {pw.domain().get_tuple_name(): pw for pw in found}
