"""Nests whose iterations have values of their own: which of them stay whole, to keep these beside the loops.

A local scalar of a nest has an axis for each parallel loop (`poly.frontend.nest_scalars`), so that its statements can
be cut apart. Where they are not joined again, or carry a recurrence together, the array stays in memory: as large as
the loops, though an iteration needs one element of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from poly.affine import Affine, var
from poly.program import PathStep, Program, Statement
from poly.scheduling.free_products import free_product
from poly.scheduling.groups import Group
from poly.scheduling.paths import common_prefix


def private_tensors(program: Program, statements: Sequence[Statement]) -> dict[str, tuple[str, ...]]:
    """The temporaries of which each iteration of some of the loops around all these statements has one element, that
    nobody else touches: with the iterators of these loops.
    """
    shared = {step for step in common_prefix(*(s.path for s in statements)) if isinstance(step, str)}
    names = {s.name for s in statements}
    found: dict[str, tuple[str, ...]] = {}
    for tensor in (t for t in program.tensors if t.role == "temporary" and t.shape and not t.scope):
        users = [s for s in program.statements if tensor.name in s.tensors]
        places = {a.index for s in users for a, _ in s.accesses if a.tensor == tensor.name}
        guarded = any(a.guard for s in users for a, _ in s.accesses if a.tensor == tensor.name)
        if len(places) != 1 or guarded or not {s.name for s in users} <= names:
            continue
        own = [_iterator(x, program.parameters) for x in places.pop()]
        if shared.issuperset(own) and len({*own}) == len(own):
            found[tensor.name] = tuple(i for i in own if i is not None)
    return found


def _iterator(index: object, sizes: Collection[str]) -> str | None:
    """The iterator that a subscript is, up to a shift by a number or a size."""
    found = [n for n in index.names if n not in sizes] if isinstance(index, Affine) else []
    if not isinstance(index, Affine) or len(found) != 1 or index.coefficient(found[0]) != 1:
        return None
    return None if found[0] in (index - var(found[0])).names else found[0]


def whole_nests(program: Program, groups: Sequence[Group]) -> frozenset[PathStep]:
    """The nests, by the first step of their paths, whose values of their own stay arrays of two axes and more between
    groups, or pass through loops in order. `groups`: those of the program with its loops cut apart.
    """
    home = {name: k for k, g in enumerate(groups) for name in g.names}
    found: set[PathStep] = set()
    for head, statements in _nests(program).items():
        private = private_tensors(program, statements) if len(statements) > 1 else {}
        if any(_stays(program, name, axes, groups, home) for name, axes in private.items()) and not any(
            free_product(program, s.name, [x.name for x in statements]) for s in statements
        ):
            found.add(head)
    return frozenset(found)


def _nests(program: Program) -> Mapping[PathStep, Sequence[Statement]]:
    found: dict[PathStep, list[Statement]] = {}
    for s in program.statements:
        if s.path:
            found.setdefault(s.path[0], []).append(s)
    return found


def _stays(
    program: Program, name: str, axes: Collection[str], groups: Sequence[Group], home: Mapping[str, int]
) -> bool:
    users = [s for s in program.statements if name in s.tensors]
    homes = {home[s.name] for s in users}
    in_order = any(len(groups[k].names) > 1 and groups[k].box is None for k in homes)
    recurrent = any(
        s.combiner is None and s.write.tensor == name and len(s.iterators) > len(axes)
        and any(r.tensor == name for r in s.reads)
        for s in users
    )  # fmt: skip
    return in_order or recurrent or (len(axes) > 1 and len(homes) > 1)
