"""Addresses of on-chip buffers: lifetimes from the loop tree, offsets from `poly.scheduling.placement`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from poly.loops import Alloc, Compute, For, If, LoopTree, Node
from poly.loops import walk as walk_nodes
from poly.machine import Machine
from poly.program import Tensor
from poly.scheduling.placement import Block, Placement, place


@dataclass(frozen=True)
class MemoryPlan:
    """`buffers`: the allocated tensors by name; `placements`: by memory, byte offsets and what is needed at least.

    Buffers in DRAM are symbols and have no offset.
    """

    buffers: Mapping[str, Tensor]
    placements: Mapping[str, Placement]

    def offset(self, tensor: Tensor) -> int:
        """The first byte of a buffer in its memory."""
        return self.placements[tensor.space].offsets[tensor.name]

    def __str__(self) -> str:
        lines: list[str] = []
        for memory, placement in self.placements.items():
            lines.append(f"{memory}: {placement.size} B, at least {placement.bound} B")
            lines += [f"  {offset:#x} {name}" for name, offset in sorted(placement.offsets.items(), key=lambda p: p[1])]
        return "\n".join(lines)


def plan_memory(tree: LoopTree, machine: Machine) -> MemoryPlan:
    """Where every allocated buffer of a tree lies.

    A buffer lives from its first to its last use in the body of its `Alloc`; a loop inside with a use counts whole.

    Raises `CapacityError` where a memory is too small, `UnsupportedError` for a memory that the machine has not.
    """
    blocks: dict[str, list[Block]] = {}
    buffers: dict[str, Tensor] = {}
    sizes = dict(tree.sizes)

    def walk(nodes: Sequence[Node], now: int) -> int:
        for node in nodes:
            if isinstance(node, Alloc):
                tensor = node.tensor
                buffers[tensor.name] = tensor
                used = list(_uses(node.body, tensor.name, now))
                first, last = (min(u[0] for u in used), max(u[1] for u in used)) if used else (now, now)
                blocks.setdefault(tensor.space, []).append(Block(tensor.name, tensor.nbytes(sizes), first, last))
            now = walk(node.body, now) if isinstance(node, Alloc | For | If) else now + 1
        return now

    walk(tree.body, 0)
    placements: dict[str, Placement] = {}
    for name, needed in blocks.items():
        memory = machine.memory.get(name)
        if memory is None:
            users = ", ".join(b.name for b in needed)
            hint = f"memories: {', '.join(machine.memory)}"
            raise UnsupportedError(f"{machine.name} has no memory {name!r} for {users}", where=tree.name, hint=hint)
        if memory.kind == "dram":
            continue
        align = math.lcm(memory.align, *(size_bytes(buffers[b.name].dtype) for b in needed))
        placements[name] = place(needed, align, memory.capacity, f"{tree.name}: memory {name}")
    return MemoryPlan(buffers, placements)


def _uses(nodes: Sequence[Node], tensor: str, now: int) -> Iterator[tuple[int, int]]:
    """First and last leaf, both included, of everything that uses a tensor; leaves count from `now`."""
    for node in nodes:
        count = _leaves(node)
        match node:
            case Alloc() | If():
                yield from _uses(node.body, tensor, now)
            case For():
                if any(_touches(inner, tensor) for inner in walk_nodes(node.body)):
                    yield now, now + count - 1
            case _:
                if _touches(node, tensor):
                    yield now, now
        now += count


def _leaves(node: Node) -> int:
    return sum(map(_leaves, node.body)) if isinstance(node, Alloc | For | If) else 1


def _touches(node: Node, tensor: str) -> bool:
    return isinstance(node, Compute) and any(a.tensor == tensor for a in (node.write, *node.reads))
