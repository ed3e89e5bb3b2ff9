"""How a program becomes the steps of an engine: its groups, tensors that lie inside others, and the memory plan.

`build_engine` compiles what is found here and `check_model` reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poly.machine import Machine
from poly.program import Program
from poly.scheduling.aliases import Alias, aliases_of, place_of
from poly.scheduling.axis_orders import reordered
from poly.scheduling.group_programs import extract, users_by_tensor
from poly.scheduling.groups import Group
from poly.scheduling.in_place import in_place
from poly.scheduling.known import split_known
from poly.scheduling.placement import Placement, blocks_of, place
from poly.scheduling.row_groups import groups_for
from poly.scheduling.side_by_side import side_by_side


@dataclass(frozen=True)
class Grouping:
    """The groups that have something to do, by number, each with its `parts` entry: the group as a program.

    `program`: the one that was given, with axes of its temporaries in another order where that suits the machine, and
    the shapes of those that others lie in, where they are boxes there; `boxes`: the shapes that these had.
    `known`: what is computed when compiling, its outputs constants of `program`; None where nothing is.
    """

    program: Program
    groups: Mapping[int, Group]
    parts: Mapping[int, Program]
    aliases: Mapping[str, Alias]
    boxes: Mapping[str, tuple[int, ...]]
    known: Program | None = None

    def arena(self) -> Placement:
        """Offsets in bytes of the tensors that live between groups, from the step that writes them to the last that
        reads them. Aliases lie in the memory of others, which is alive as long as one of them is.
        """
        tensor, binding = self.program.tensor, self.program.binding
        given = self.in_arrays()
        between = [
            [
                t.name
                for t in part.tensors
                if t.role != "temporary" and tensor[t.name].role == "temporary" and t.name not in given
            ]
            for part in self.parts.values()
        ]
        inside = {name: place_of(name, self.aliases) for names in between for name in names}
        roots = [[inside[name][0] for name in names] for names in between]
        found = place(blocks_of(roots, lambda name: tensor[name].nbytes(binding)), align=64)
        return replace(found, offsets={name: found.offsets[root] + shift for name, (root, shift) in inside.items()})

    def in_arrays(self) -> Mapping[str, tuple[str, int]]:
        """The temporaries that lie in inputs or outputs: in which, and how many bytes from its start."""
        tensor = self.program.tensor
        places = {name: place_of(name, self.aliases) for name in self.aliases}
        return {name: (root, shift) for name, (root, shift) in places.items() if tensor[root].role != "temporary"}


def group_program(program: Program, machine: Machine, threads: int = 1) -> Grouping:
    """The groups of a program that suit a machine; copies that need no copying are none of them."""
    known, program = split_known(program) if machine.kind == "cpu" else (None, program)
    program = reordered(program, machine)
    groups = groups_for(program, machine, threads)
    aliases, idle = aliases_of(program, groups, boxes=machine.kind == "cpu")
    shapes = {name: a.shape for name, a in aliases.items() if a.shape}
    boxes = {name: program.tensor[name].extents(program.binding) for name in shapes}
    if shapes:
        tensors = tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in program.tensors)
        program = replace(program, tensors=tensors)
    number = {g.names[0]: k for k, g in enumerate(groups) if k not in idle}
    busy = {number[g.names[0]]: g for g in side_by_side(program, [groups[k] for k in number.values()], machine)}
    users = users_by_tensor(program)
    parts = {k: extract(program, g, f"group_{k}", users) for k, g in busy.items()}
    if machine.kind == "cpu":
        parts, aliases = in_place(program, busy, parts, aliases)
    return Grouping(program, busy, parts, aliases, boxes, known)
