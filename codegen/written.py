"""Which nodes of a loop tree write register tensors, and which variables decide what elements these are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poly.affine import Affine
from poly.loops import Alloc, Compute, For, If, Node


class RegisterWrites:
    """Facts about the nodes of one tree, each found once; `in_registers`: whether a tensor lies in registers."""

    def __init__(self, in_registers: Callable[[str], bool]) -> None:
        self.in_registers = in_registers
        self._found: dict[int, frozenset[str] | None] = {}

    def below(self, node: Node) -> bool:
        """Whether a node or one inside of it writes a register tensor."""
        return self.names(node) is not None

    def names(self, node: Node) -> frozenset[str] | None:
        """The variables from outside on which it depends what a node writes; None where it writes no registers."""
        if id(node) not in self._found:
            self._found[id(node)] = self._names(node)
        return self._found[id(node)]

    def _names(self, node: Node) -> frozenset[str] | None:
        match node:
            case Compute(write=write):
                indices = [i for i in write.index if isinstance(i, Affine)]
                return _names_of(indices) if self.in_registers(write.tensor) else None
            case For(variable, lower, _, body):
                inner = self._any(body)
                return None if inner is None else (inner - {variable}) | _names_of((*lower, *node.stops))
            case If(any_of, body):
                inner = self._any(body)
                return None if inner is None else inner | _names_of([c.expr for piece in any_of for c in piece])
            case Alloc(_, body):
                return self._any(body)
            case _:
                return None

    def _any(self, nodes: Sequence[Node]) -> frozenset[str] | None:
        found = [names for node in nodes if (names := self.names(node)) is not None]
        return frozenset().union(*found) if found else None


def _names_of(expressions: Sequence[Affine]) -> frozenset[str]:
    return frozenset().union(*(e.names for e in expressions))
