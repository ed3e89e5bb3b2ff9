"""The paths of a schedule as an isl schedule tree: the trie of the paths, one-member bands under marks `kind loop`."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from poly.affine import Affine
from poly.program import Statement
from poly.scheduling.paths import Band, Leaf, Ordered, TreeNode, statements_of
from poly.scheduling.schedule import Mark, Schedule
from poly.sets import header


def isl_schedule(schedule: Schedule) -> isl.Schedule:
    """The tree of a schedule for isl's own tools; the sizes stay parameters.

    A loop is a band of one member below a mark that holds its kind and its name, `"parallel i.o"`.
    """
    program = schedule.program
    domain = isl.UnionSet(f"{header(program.parameters)}{{ }}")
    for s in program.statements:
        domain = domain.union(s.domain.intersect_params(program.context).to_union_set())
    child = _child(_node(schedule, schedule.tree)) if program.statements else ""
    return isl.Schedule(f'{{ domain: "{domain}"{child} }}')


def _child(text: str) -> str:
    return f", child: {{ {text} }}" if text else ""


def _node(schedule: Schedule, node: TreeNode) -> str:
    prefix = header(schedule.program.parameters)
    match node:
        case Leaf():
            return ""
        case Band(loop, child):
            members = [(schedule.program.statement[s], schedule.nests[s].loops[loop]) for s in statements_of(child)]
            inner = f'schedule: "{prefix}[{_function(members)}]"{_child(_node(schedule, child))}'
            past = "nontemporal " if schedule.marks.get(loop, Mark()).nontemporal else ""
            return f'mark: "{past}{schedule.kind(loop)} {loop}", child: {{ {inner} }}'
        case Ordered(children):
            filters: list[str] = []
            for child in children:
                names = "; ".join(schedule.program.statement[s].tuple_text for s in statements_of(child))
                filters.append(f'{{ filter: "{prefix}{{ {names} }}"{_child(_node(schedule, child))} }}')
            return f"sequence: [ {', '.join(filters)} ]"


def _function(members: Sequence[tuple[Statement, Affine]]) -> str:
    return f"{{ {'; '.join(f'{s.tuple_text} -> [({value.isl_text})]' for s, value in members)} }}"
