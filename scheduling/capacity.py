"""Capacity: what is alive at once in each memory of a machine must fit it.

A buffer lives while its `Alloc` does, so buffers inside one another add up and buffers one after another share space.
Registers hold values, not addresses: they are in use from the first to the last statement or loop that touches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from poly.dtypes import size_bytes
from poly.errors import CapacityError, ScheduleError
from poly.loops import Alloc, Compute, For, If, LoopTree, Node, walk
from poly.machine import Machine, Memory
from poly.program import Tensor


def check_capacity(tree: LoopTree, machine: Machine) -> None:
    """Raise `CapacityError` where a memory overflows, `ScheduleError` where a buffer's memory is not the machine's."""
    sizes = dict(tree.sizes)
    for node in tree.nodes():
        if isinstance(node, Alloc) and node.tensor.space not in machine.memory:
            raise ScheduleError(
                f"{node.tensor.name} is in memory {node.tensor.space!r}, which {machine.name} does not have",
                where=tree.name,
                hint=f"memories: {', '.join(machine.memory)}",
            )
    for memory in machine.memories:
        if memory.capacity is None or memory.kind == "cache":
            continue
        used, tensors = peak(tree.body, memory, machine, sizes)
        if used > memory.capacity:
            unit = "vectors" if memory.kind == "register" else "B"
            parts = ", ".join(f"{t.name} {footprint(t, memory, machine, sizes)}" for t in tensors)
            raise CapacityError(
                f"memory {memory.name} holds {memory.capacity} {unit}, the schedule needs {used} ({parts})",
                kind="capacity",
                where=tree.name,
                hint="smaller tiles, fewer slots, or promote further in",
            )


def footprint(tensor: Tensor, memory: Memory, machine: Machine, sizes: Mapping[str, int]) -> int:
    """Bytes of a buffer, aligned; whole vectors in a register memory."""
    for extent in tensor.storage_shape:
        if free := sorted(extent.names - sizes.keys()):
            text = f"how much of memory {memory.name} {tensor.name} takes depends on size {free[0]}, which is free"
            raise CapacityError(text, kind="capacity", hint="bind it, or promote less")
    count = prod(tensor.storage_extents(sizes))
    if memory.kind == "register":
        return -(-count // machine.lanes(size_bytes(tensor.dtype)))
    return -(-count * size_bytes(tensor.dtype) // memory.align) * memory.align


def peak(
    nodes: Sequence[Node], memory: Memory, machine: Machine, sizes: Mapping[str, int]
) -> tuple[int, tuple[Tensor, ...]]:
    """The most that is alive at once below some nodes, and what it is."""
    if memory.kind == "register":
        return _peak_of_values(nodes, memory, machine, sizes)
    most: tuple[int, tuple[Tensor, ...]] = (0, ())
    for node in nodes:
        if isinstance(node, Alloc | For | If):
            used, tensors = peak(node.body, memory, machine, sizes)
            if isinstance(node, Alloc) and node.tensor.space == memory.name:
                used += footprint(node.tensor, memory, machine, sizes)
                tensors = (node.tensor, *tensors)
            most = max(most, (used, tensors), key=lambda m: m[0])
    return most


def _peak_of_values(
    nodes: Sequence[Node], memory: Memory, machine: Machine, sizes: Mapping[str, int]
) -> tuple[int, tuple[Tensor, ...]]:
    flat, tensors = _opened(nodes)
    touched = [_touched(node) for node in flat]
    spans: dict[str, tuple[Tensor, int, int]] = {}
    for tensor in tensors:
        users = [k for k, names in enumerate(touched) if tensor.name in names]
        if tensor.space == memory.name and users:
            spans[tensor.name] = (tensor, users[0], users[-1])
    most: tuple[int, tuple[Tensor, ...]] = (0, ())
    for k, node in enumerate(flat):
        alive = tuple(t for t, first, last in spans.values() if first <= k <= last)
        inside = peak(node.body, memory, machine, sizes) if isinstance(node, For | If) else (0, ())
        used = sum(footprint(t, memory, machine, sizes) for t in alive) + inside[0]
        most = max(most, (used, (*alive, *inside[1])), key=lambda m: m[0])
    return most


def _opened(nodes: Sequence[Node]) -> tuple[list[Node], list[Tensor]]:
    """The statements and loops of a sequence, and what is allocated around some of them."""
    flat: list[Node] = []
    tensors: list[Tensor] = []
    for node in nodes:
        if isinstance(node, Alloc):
            inner, more = _opened(node.body)
            flat += inner
            tensors += [node.tensor, *more]
        else:
            flat.append(node)
    return flat, tensors


def _touched(node: Node) -> frozenset[str]:
    inside = (n for n in walk((node,)) if isinstance(n, Compute))
    return frozenset(a.tensor for n in inside for a in (n.write, *n.reads))
