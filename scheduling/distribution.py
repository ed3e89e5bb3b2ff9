"""Loops around several statements, cut apart as far as their dependences allow.

Allen and Kennedy, "Automatic translation of FORTRAN programs to vector form" (1987): from the outside in, statements
that depend on each other in a cycle keep a loop in common, which then runs in order; what it carries does not count
inside of it. Everything else gets a nest of its own, in an order in which the nests can run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from poly.program import PathStep, Program, Statement
from poly.scheduling.arrange import arrange, places_of
from poly.scheduling.dependences import Dependence
from poly.scheduling.schedule import Schedule
from poly.sets import IN, OUT, within_budget

_BUDGET = 5_000_000


def distributed(schedule: Schedule, whole: Collection[PathStep] = ()) -> tuple[Schedule, Program]:
    """A program's own schedule with its loops cut apart, unchecked, and the program in that order.

    `schedule`: without edits. `whole`: the first steps of the paths of nests that stay as they are. Both are as given
    where nothing can be cut.
    """
    program = schedule.program
    facts = [d for d in schedule.facts.dependences if d.kind != "reduction"]
    cut = _Cut(program, schedule, {s.name: k for k, s in enumerate(program.statements)}, frozenset(whole))
    paths = within_budget(_BUDGET, lambda: dict(cut.pieces([*program.statements], 0, facts, ())), lambda: {})
    if not paths or all(cut.same(name, path) for name, path in paths.items()):
        return schedule, program
    order = {name: k for k, name in enumerate(sorted(paths, key=lambda n: _position(paths[n])))}
    statements = sorted((replace(s, path=paths[s.name]) for s in program.statements), key=lambda s: order[s.name])
    apart = replace(program, statements=tuple(statements))
    return arrange(schedule, places_of(Schedule(apart))), apart


def _position(path: tuple[PathStep, ...]) -> tuple[int, ...]:
    return tuple(step for step in path if isinstance(step, int))


@dataclass(frozen=True)
class _Cut:
    program: Program
    schedule: Schedule
    position: Mapping[str, int]
    whole: frozenset[PathStep] = frozenset()

    def same(self, name: str, path: tuple[PathStep, ...]) -> bool:
        """Whether a statement shares its loops with the same others as before: here, whether it shares none."""
        nest = self.schedule.nests[name]
        return all(len(self.schedule.under(loop)) == 1 for loop in nest.names) and len(_position(path)) == 1

    def pieces(
        self, members: Sequence[Statement], depth: int, facts: Sequence[Dependence], prefix: tuple[PathStep, ...]
    ) -> list[tuple[str, tuple[PathStep, ...]]]:
        """Paths over iterators for statements that share their outermost `depth` loops; `facts`: what is carried by
        none of these.
        """
        found: list[tuple[str, tuple[PathStep, ...]]] = []
        edges = [(d.source, d.sink) for d in facts] + self._joined(members if depth == 0 else ())
        groups = components([s.name for s in members], edges, self.position)
        for k, names in enumerate(groups):
            inside = [s for s in members if s.name in names]
            place = (*prefix, k)
            if len(inside) == 1:
                rest = [i for i in self._iterators(inside[0])[depth:]]
                found.append((inside[0].name, (*place, *rest)))
                continue
            loops = {self.schedule.nests[s.name].names[depth : depth + 1] for s in inside}
            own = {self._iterators(s)[depth : depth + 1] for s in inside}
            kept = depth == 0 and inside[0].path[0] in self.whole
            if kept or len(loops) > 1 or () in loops or len(own) > 1:
                found += [(s.name, (*place, *self._rest(s, depth))) for s in inside]
                continue
            (iterator,) = own.pop()
            inner = [replace(d, relation=self._alike(d, iterator)) for d in facts if {d.source, d.sink} <= set(names)]
            inner = [d for d in inner if not d.relation.is_empty()]
            found += self.pieces(inside, depth + 1, inner, (*place, iterator))
        return found

    def _joined(self, members: Sequence[Statement]) -> list[tuple[str, str]]:
        """Edges around the statements of each nest that stays whole."""
        nests = [[s.name for s in members if s.path[0] == head] for head in self.whole]
        return [edge for names in nests for edge in zip(names, names[1:] + names[:1], strict=True)]

    def _iterators(self, s: Statement) -> tuple[str, ...]:
        return tuple(step for step in s.path if isinstance(step, str))

    def _rest(self, s: Statement, depth: int) -> tuple[PathStep, ...]:
        """What is left of a path below some loops."""
        loops = [k for k, step in enumerate(s.path) if isinstance(step, str)]
        return s.path[loops[depth - 1] + 1 :] if depth else s.path

    def _alike(self, d: Dependence, iterator: str) -> isl.Map:
        """The pairs of a dependence that are in one iteration of a loop."""
        a, b = self.program.statement[d.source], self.program.statement[d.sink]
        return d.relation.equate(IN, a.iterators.index(iterator), OUT, b.iterators.index(iterator))


def components(
    names: Sequence[str], edges: Sequence[tuple[str, str]], position: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """The strongly connected components of a graph, each before those it has edges to, else in order of position."""
    after = {n: {b for a, b in edges if a == n and b != n} & set(names) for n in names}
    reach = {n: _reached(n, after) for n in names}
    parts: list[tuple[str, ...]] = []
    for n in sorted(names, key=position.__getitem__):
        if not any(n in part for part in parts):
            parts.append(tuple(m for m in names if m == n or (m in reach[n] and n in reach[m])))
    found: list[tuple[str, ...]] = []
    while parts:
        ready = next(p for p in parts if not any(set(p) & reach[q[0]] for q in parts if q is not p))
        parts.remove(ready)
        found.append(ready)
    return found


def _reached(start: str, after: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for n in after[waiting.pop()] - seen:
            seen.add(n)
            waiting.append(n)
    return seen


