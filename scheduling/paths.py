"""Where statements run: nests, whose paths are a tree.

A nest gives a statement's place: `loops` maps loop names to quasi-affine expressions of its iterators, `path` mixes
loop names with positions in sequences, from the outside in. Statements share a loop where their paths agree down to
it, so the paths are a tree (`Schedule.tree`), and every loop name stands for one node of it. The schedule as a map is
the path read as a 2d+1 vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Literal

from poly.affine import Affine, var
from poly.errors import ScheduleError
from poly.locks import cached_property
from poly.program import PathStep, Program


@dataclass(frozen=True)
class Nest:
    """Where one statement runs. `loops` holds an expression of the iterators for every name in `path`."""

    loops: Mapping[str, Affine]
    path: tuple[PathStep, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Its loops, outermost first."""
        return tuple(step for step in self.path if isinstance(step, str))

    def expressions(self, names: Sequence[str]) -> tuple[Affine, ...]:
        return tuple(self.loops[n] for n in names)


@dataclass(frozen=True)
class Band:
    """A loop of the tree with what is inside."""

    loop: str
    child: TreeNode

    def __str__(self) -> str:
        return f"for {self.loop}:\n{indent(str(self.child), '    ')}"


@dataclass(frozen=True)
class Ordered:
    """Children that run one after another."""

    children: tuple[TreeNode, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.children))


@dataclass(frozen=True)
class Leaf:
    """A statement."""

    statement: str

    def __str__(self) -> str:
        return self.statement


TreeNode = Band | Ordered | Leaf


def original_nests(program: Program) -> dict[str, Nest]:
    """The program's own order. An iterator that names several loops of the tree is qualified by its statement."""
    nodes: dict[str, set[tuple[PathStep, ...]]] = {}
    for s in program.statements:
        for k, step in enumerate(s.path):
            if isinstance(step, str):
                nodes.setdefault(step, set()).add(s.path[: k + 1])
    first: dict[tuple[PathStep, ...], str] = {}
    nests: dict[str, Nest] = {}
    for s in program.statements:
        loops: dict[str, Affine] = {}
        path: list[PathStep] = []
        for k, step in enumerate(s.path):
            if isinstance(step, str):
                prefix = s.path[: k + 1]
                name = first.setdefault(prefix, step if len(nodes[step]) == 1 else f"{s.name}.{step}")
                loops[name] = var(step)
                path.append(name)
            else:
                path.append(step)
        nests[s.name] = Nest(loops, tuple(path))
    return nests


def build_tree(paths: Mapping[str, tuple[PathStep, ...]]) -> TreeNode:
    """The tree of a set of paths.

    Raises `ScheduleError` where a loop and a position, or two loops, stand at one place.
    """
    return _node([(name, path) for name, path in paths.items()])


def _node(members: list[tuple[str, tuple[PathStep, ...]]]) -> TreeNode:
    heads = {path[0] if path else None for _, path in members}
    if heads == {None} and len(members) == 1:
        return Leaf(members[0][0])
    if None in heads:
        raise ScheduleError(f"statements {[name for name, _ in members]} end at one place without an order")
    positions = sorted(h for h in heads if isinstance(h, int))
    if len(positions) == len(heads):
        groups = [[(n, p[1:]) for n, p in members if p[0] == h] for h in positions]
        return _node(groups[0]) if len(groups) == 1 else Ordered(tuple(_node(g) for g in groups))
    if len(heads) > 1:
        raise ScheduleError(f"loops and positions {sorted(map(str, heads))} stand at one place of the tree")
    (loop,) = heads
    return Band(str(loop), _node([(n, p[1:]) for n, p in members]))


def paths_of(node: TreeNode, prefix: tuple[PathStep, ...] = ()) -> dict[str, tuple[PathStep, ...]]:
    """The canonical paths of a tree: positions count from 0, and only where there is more than one child."""
    match node:
        case Leaf(statement):
            return {statement: prefix}
        case Band(loop, child):
            return paths_of(child, (*prefix, loop))
        case Ordered(children):
            return {k: v for i, c in enumerate(flatten(children)) for k, v in paths_of(c, (*prefix, i)).items()}


def flatten(children: Sequence[TreeNode]) -> list[TreeNode]:
    """Sequences inside sequences become one."""
    return [inner for c in children for inner in (flatten(c.children) if isinstance(c, Ordered) else [c])]


def canonical(nests: Mapping[str, Nest], under: tuple[PathStep, ...] = ()) -> dict[str, Nest]:
    """The same places with canonical paths. Raises `ScheduleError` where they form no tree.

    `under`: where the paths of a sequence begin outside of which they are canonical; its statements alone are changed.
    """
    paths: dict[str, tuple[PathStep, ...]] = {}
    members = [(name, nest.path) for name, nest in nests.items() if nest.path[: len(under)] == under]
    if members:
        _canonical(members, len(under), under, paths)
    return {name: placed(nest, paths[name]) if name in paths else nest for name, nest in nests.items()}


def placed(nest: Nest, path: tuple[PathStep, ...] | None = None) -> Nest:
    """A nest at another path, or at its own, its loops in the order of that."""
    path = nest.path if path is None else path
    names = [step for step in path if isinstance(step, str)]
    if path == nest.path and names == [*nest.loops]:
        return nest
    return Nest({n: nest.loops[n] for n in names}, path)


def _canonical(
    members: list[tuple[str, tuple[PathStep, ...]]],
    depth: int,
    prefix: tuple[PathStep, ...],
    paths: dict[str, tuple[PathStep, ...]],
) -> None:
    """`paths_of` of `build_tree`, without the tree: paths agree in their first `depth` steps, which become `prefix`."""
    first = members[0][1]
    if len(members) == 1:
        paths[members[0][0]] = (*prefix, *(step for step in first[depth:] if isinstance(step, str)))
        return
    least = min([len(path) for _, path in members])
    start = depth
    while depth < least and isinstance(step := first[depth], str):  # loops with all members inside follow one another
        if any([path[depth] != step for _, path in members]):
            break
        depth += 1
    prefix = (*prefix, *first[start:depth])
    places: dict[tuple[PathStep, ...], list[tuple[str, tuple[PathStep, ...]]]] = {}
    for name, path in members:
        end = depth
        while end < len(path) and isinstance(path[end], int):
            end += 1
        places.setdefault(path[depth:end], []).append((name, path))
    order = sorted(places)  # positions only
    for k, place in enumerate(order):
        here, at = places[place], depth + len(place)
        inside = (*prefix, k) if len(order) > 1 else prefix
        loops = {path[at] if at < len(path) else None for _, path in here}
        clash = k + 1 < len(order) and order[k + 1][: len(place)] == place
        if clash or len(loops) > 1 or (None in loops and len(here) > 1):
            build_tree(dict(members))  # says what is wrong
        (loop,) = loops
        if loop is None:
            paths[here[0][0]] = inside
        else:
            _canonical(here, at + 1, (*inside, loop), paths)


def statements_of(node: TreeNode) -> tuple[str, ...]:
    """The statements below, in program order."""
    match node:
        case Leaf(statement):
            return (statement,)
        case Band(_, child):
            return statements_of(child)
        case Ordered(children):
            return tuple(s for c in children for s in statements_of(c))


def common_prefix(*paths: tuple[PathStep, ...]) -> tuple[PathStep, ...]:
    """The steps that all paths share from the outside in."""
    length = 0
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        length += 1
    return paths[0][:length]


def relation_in_time(
    first: tuple[PathStep, ...], second: tuple[PathStep, ...]
) -> tuple[tuple[str, ...], Literal["before", "after", "same"]]:
    """The loops two statements share, and which comes first in one iteration of them."""
    prefix = common_prefix(first, second)
    shared = tuple(step for step in prefix if isinstance(step, str))
    a, b = first[len(prefix) : len(prefix) + 1], second[len(prefix) : len(prefix) + 1]
    if not a or not b or not isinstance(a[0], int) or not isinstance(b[0], int):
        return shared, "same"
    return shared, "before" if a[0] < b[0] else "after"
