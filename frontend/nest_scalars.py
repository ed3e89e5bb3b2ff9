"""Local scalars of nests as arrays: one element for each iteration of the loops around, which so share nothing.

    for i in range(N):                          for i in range(N):
        acc = 0.0                                   acc[i] = 0.0
        for k in range(K):              ->          for k in range(K):
            acc = acc*x[i] + c[k]                       acc[i] = acc[i]*x[i] + c[k]
        y[i] = acc                                  y[i] = acc[i]

A scalar is private to the loops around all its statements where one of these writes it first in every iteration (scalar
expansion: Padua and Wolfe 1986). It gets an axis for each such loop whose iterations touch no element of another array
twice with a write: these can then have lanes or threads, and the array is no larger than what they write anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, product

import islpy as isl

from poly.affine import Affine, var
from poly.frontend.nest_inlined import inline_scalars, without_unused
from poly.program import Access, PathStep, Program, Statement, Tensor
from poly.relations import access_map
from poly.sets import SET, affine_of_pw, header, within_budget

Loop = tuple[PathStep, ...]  # the path to a loop, its iterator last
_BUDGET = 500_000


def expand_scalars(program: Program) -> Program:
    """The program with an axis for each parallel loop that a local scalar is private to, where it is not put in its
    readers' place."""
    program = without_unused(_split(program))
    program = inline_scalars(program, lambda name, users: bool(_private(program, name, users)))
    around = {t.name: found for t in _scalars(program) if (found := _private(program, t.name, program.statements))}
    parallel = {loop: _is_parallel(program, loop, around) for loop in {p for loops in around.values() for p in loops}}
    axes: dict[str, dict[str, tuple[Affine, Affine]]] = {}
    for name, loops in around.items():
        users = [s for s in program.statements if _touches(s, name)]
        found = {str(p[-1]): _ends(program, users, str(p[-1])) for p in loops if parallel[p]}
        axes[name] = {i: ends for i, ends in found.items() if ends is not None}
    if not any(axes.values()):
        return program
    tensors = tuple(
        replace(t, shape=tuple(n for _, n in axes[t.name].values())) if t.name in axes else t for t in program.tensors
    )
    return replace(program, tensors=tensors, statements=tuple(_with_axes(s, axes) for s in program.statements))


def _scalars(program: Program) -> list[Tensor]:
    return [t for t in program.tensors if t.role == "temporary" and not t.shape]


def _split(program: Program) -> Program:
    """A scalar that several nests use, each for itself, as one for each of them."""
    for scalar in _scalars(program):
        nests: dict[PathStep, list[Statement]] = {}
        for s in program.statements:
            if _touches(s, scalar.name):
                nests.setdefault(s.path[0], []).append(s)
        if len(nests) > 1 and all(_private(program, scalar.name, users) for users in nests.values()):
            for users in list(nests.values())[1:]:
                program = _renamed(program, scalar, {s.name for s in users})
    return program


def _renamed(program: Program, scalar: Tensor, users: Collection[str]) -> Program:
    """The program with a scalar of another name in some statements."""
    names = {*program.tensor, *program.statement, *program.parameters}
    names |= {i for s in program.statements for i in s.iterators}
    other = next(n for n in (f"{scalar.name}_{k}" for k in count(2)) if n not in names)

    def moved(access: Access) -> Access:
        return replace(access, tensor=other) if access.tensor == scalar.name else access

    statements = tuple(
        replace(s, write=moved(s.write), reads=tuple(map(moved, s.reads))) if s.name in users else s
        for s in program.statements
    )
    return replace(program, tensors=(*program.tensors, replace(scalar, name=other)), statements=statements)


def _with_axes(s: Statement, axes: Mapping[str, Mapping[str, tuple[Affine, Affine]]]) -> Statement:
    def moved(access: Access) -> Access:
        found = axes.get(access.tensor, {})
        return replace(access, index=tuple(var(i) - first for i, (first, _) in found.items())) if found else access

    return replace(s, write=moved(s.write), reads=tuple(map(moved, s.reads)))


def _touches(s: Statement, name: str) -> bool:
    return name == s.write.tensor or any(r.tensor == name for r in s.reads)


def _private(program: Program, name: str, statements: Sequence[Statement]) -> tuple[Loop, ...]:
    """The loops around all of these that touch a scalar, outermost first; none where one may not write it first."""
    users = [s for s in statements if _touches(s, name)]
    shared = list(_common([s.path for s in users]))
    while shared and isinstance(shared[-1], int):
        shared.pop()
    first = min(users, key=lambda s: s.path[len(shared) : len(shared) + 1])
    depth = len(shared)
    writes = first.write.tensor == name and first.combiner is None and all(r.tensor != name for r in first.reads)
    alone = sum(s.path[: depth + 1] == first.path[: depth + 1] for s in users) == 1
    if not shared or len(first.path) != depth + 1 or not writes or not alone:
        return ()
    kept = [str(step) for step in shared if not isinstance(step, int)]
    set_at = _on(program, first, kept)
    if not all(_on(program, s, kept).is_subset(set_at) for s in users):
        return ()
    return tuple(tuple(shared[: k + 1]) for k, step in enumerate(shared) if not isinstance(step, int))


def _common(paths: Sequence[Loop]) -> Iterator[PathStep]:
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            return
        yield steps[0]


def _on(program: Program, s: Statement, kept: Sequence[str]) -> isl.Set:
    """Where a statement runs, in the iterators that are kept."""
    domain = s.domain.intersect_params(program.context).reset_tuple_id()
    for d in reversed([d for d, i in enumerate(s.iterators) if i not in kept]):
        domain = domain.project_out(SET, d, 1)
    return domain


def _ends(program: Program, users: Sequence[Statement], iterator: str) -> tuple[Affine, Affine] | None:
    """What is subtracted from an iterator, and the extent of its axis; None where they are not affine in the sizes."""
    reached = _on(program, users[0], [iterator])
    for s in users[1:]:
        reached = reached.union(_on(program, s, [iterator]))
    least, most = (affine_of_pw(end(0).coalesce(), ()) for end in (reached.dim_min, reached.dim_max))
    if least is None or most is None:
        return None
    first = Affine() if least.is_constant and least.constant >= 0 else least
    extent = most - first + 1
    enough = isl.Set(f"{header(program.parameters)}{{ : {extent.isl_text} >= 0 }}")
    return (first, extent) if program.context.is_subset(enough) else None


def _is_parallel(program: Program, loop: Loop, around: Mapping[str, Sequence[Loop]]) -> bool:
    """Whether no two iterations of a loop touch one element with a write, scalars that are private to it left out."""
    inside = [s for s in program.statements if s.path[: len(loop)] == loop]
    touched = [(s, a) for s in inside for a in (s.write, *s.reads) if loop not in around.get(a.tensor, ())]
    written = [(s, s.write) for s in inside if loop not in around.get(s.write.tensor, ())]
    outer = [str(step) for step in loop[:-1] if not isinstance(step, int)]
    pairs = ((w, t) for w, t in product(written, touched) if w[1].tensor == t[1].tensor)
    return all(
        within_budget(_BUDGET, lambda p=p: _apart(program, p[0], p[1], outer, str(loop[-1])), lambda: False)
        for p in pairs
    )


def _apart(
    program: Program, a: tuple[Statement, Access], b: tuple[Statement, Access], outer: Sequence[str], iterator: str
) -> bool:
    """Whether two accesses meet in no element at different values of an iterator, the outer ones being the same."""
    one, other = (_elements(program, s, access) for s, access in (a, b))
    names = [f"{i}_" for i in b[0].iterators]
    same = [f"{i} = {i}_" for i in outer]
    text = " and ".join([*same, f"{iterator} != {iterator}_"])
    left, right = (f"{s.name}[{', '.join(n)}]" for s, n in ((a[0], a[0].iterators), (b[0], names)))
    different = isl.Map(f"{header(program.parameters)}{{ {left} -> {right} : {text} }}")
    return one.apply_range(other.reverse()).intersect(different).is_empty()


def _elements(program: Program, s: Statement, access: Access) -> isl.Map:
    found = access_map(s, access, program.parameters, program.tensor[access.tensor].shape)
    return found.intersect_domain(s.domain.intersect_params(program.context))
