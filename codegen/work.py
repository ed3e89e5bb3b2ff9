"""How much a call does, roughly: enough to know whether it is over at once."""

from __future__ import annotations

from collections.abc import Sequence

from poly.affine import Affine
from poly.loops import Alloc, Compute, For, If, LoopTree, Node


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
