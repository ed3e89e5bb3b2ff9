"""Addresses of on-chip buffers: lifetimes from the loop tree, offsets from the packer of `poly.scheduling.placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.errors import UnsupportedError
from poly.loops import Alloc, Compute, For, If, LoopTree, Node
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
    """Where every allocated buffer of a tree lies. A buffer lives while the body of its `Alloc` runs.

    Raises `CapacityError` where a memory is too small, `UnsupportedError` for a memory that the machine has not.
    """
    blocks: dict[str, list[Block]] = {}
    buffers: dict[str, Tensor] = {}
    sizes = dict(tree.sizes)

    def walk(nodes: Sequence[Node], now: int) -> int:
        for node in nodes:
            match node:
                case Alloc(tensor, body):
                    end = walk(body, now)
                    buffers[tensor.name] = tensor
                    lifetime = Block(tensor.name, tensor.nbytes(sizes), now, max(now, end - 1))
                    blocks.setdefault(tensor.space, []).append(lifetime)
                    now = end
                case For() | If():
                    now = walk(node.body, now)
                case Compute():
                    now += 1
                case _:
                    pass
        return now

    walk(tree.body, 0)
    placements: dict[str, Placement] = {}
    for name, needed in blocks.items():
        memory = machine.memory.get(name)
        if memory is None:
            users = ", ".join(b.name for b in needed)
            raise UnsupportedError(f"{machine.name} has no memory {name!r} for {users}", where=tree.name)
        if memory.kind == "dram":
            continue
        placements[name] = place(needed, memory.align, memory.capacity, f"{tree.name}: memory {name}")
    return MemoryPlan(buffers, placements)
