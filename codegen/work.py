"""How much a call does, roughly: enough to know whether it is over at once, or worth other threads' time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from poly.affine import Affine
from poly.loops import Alloc, Compute, For, If, LoopTree, Node
from poly.program import Program
from poly.relations import extents_of, intervals_of

Boxes = Mapping[str, tuple[Affine, ...]]


def boxes_of(program: Program) -> Boxes:
    """The extents of the statements that are boxes whatever the sizes."""
    found = {s.name: extents_of(program, s) for s in program.statements}
    return {name: tuple(extents.values()) for name, extents in found.items() if extents is not None}


def instances(program: Program, boxes: Boxes, sizes: Mapping[str, int]) -> dict[str, int]:
    """Instances of each of a program's statements under values of its sizes, of the boxes around their domains.
    `boxes`: those that `boxes_of` found; isl is asked for others, which takes as long as a call.
    """
    counts = {name: prod(max(0, int(e.evaluate(sizes))) for e in extents) for name, extents in boxes.items()}
    left = [s for s in program.statements if s.name not in boxes]
    if left:
        bound = program.bind(**{p: sizes[p] for p in program.parameters if p in sizes})
        ends = {s.name: intervals_of(bound, bound.statement[s.name]).values() for s in left}
        counts |= {name: prod(0 if e is None else e[1] - e[0] + 1 for e in found) for name, found in ends.items()}
    return counts


def work_of(tree: LoopTree) -> int | None:
    """Statements that run, as many as there can be; None where free sizes or bounds leave it open."""
    sizes = dict(tree.sizes)
    try:
        return _work(tree.body, sizes)
    except _Open:
        return None


class _Open(Exception):
    """A loop without a constant extent."""


def _work(nodes: Sequence[Node], sizes: dict[str, int]) -> int:
    total = 0
    for node in nodes:
        match node:
            case Compute():
                total += 1
            case For(body=body):
                total += _trips(node, sizes) * _work(body, sizes)
            case If(body=body) | Alloc(body=body):
                total += _work(body, sizes)
            case _:
                pass
    return total


def _trips(loop: For, sizes: dict[str, int]) -> int:
    """Of the extents between two bounds, the smallest that is constant."""
    extents: list[Affine] = [(u - low).substitute(sizes) for u in loop.upper for low in loop.lower]
    known = [int(e.constant) for e in extents if e.is_constant]
    if not known:
        raise _Open
    return max(0, -(-min(known) // loop.step))
