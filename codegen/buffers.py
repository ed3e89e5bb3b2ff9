"""The map of a phase's buffers: small ones on the stack, others one after the other in scratch memory.

It follows from the tree and the sizes alone: the emitter prints it, and callers ask it how much memory to bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from poly.codegen.addresses import Indices
from poly.codegen.text import memory_type
from poly.dtypes import size_bytes
from poly.loops import Alloc, For, If, Node, walk
from poly.pointers import ALIGN
from poly.program import Tensor
from poly.scheduling.cpu_core import PAGE

STACK_LIMIT = 16 * 1024  # bytes of one buffer that may lie on the stack
STACK_BUDGET = 64 * 1024  # bytes of all buffers of a function on the stack


def bytes_of(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    return -(-tensor.nbytes(sizes) // ALIGN) * ALIGN


def copy_bytes(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Bytes from one thread's copy of a constant to the next one's: no two are in one page."""
    return -(-tensor.nbytes(sizes) // PAGE) * PAGE


@dataclass(frozen=True)
class MemoryMap:
    """Where the buffers of a phase lie: on the stack (allocations by identity), or in its part's scratch memory."""

    on_stack: frozenset[int]
    private: tuple[Placed, ...]


@dataclass(frozen=True)
class Placed:
    """A buffer in scratch memory, and those alive around it, which lie in front of it one after the other."""

    alloc: Alloc
    around: tuple[Tensor, ...]


def memory_map(nodes: Sequence[Node], sizes: Mapping[str, int]) -> MemoryMap:
    """The map for the buffers below `nodes`."""
    on_stack = _on_stack(nodes, sizes)
    return MemoryMap(on_stack, tuple(_placed(nodes, on_stack)))


def _on_stack(nodes: Sequence[Node], sizes: Mapping[str, int]) -> frozenset[int]:
    """The allocations (by identity) that lie on the stack: small ones of known size, as far as the budget goes."""
    found: dict[int, int] = {}
    for node in walk(tuple(nodes)):
        if isinstance(node, Alloc) and all(e.names <= sizes.keys() for e in node.tensor.storage_shape):
            need = bytes_of(node.tensor, sizes)
            if need <= STACK_LIMIT and sum(found.values()) + need <= STACK_BUDGET:
                found[id(node)] = need
    return frozenset(found)


def _placed(nodes: Sequence[Node], on_stack: frozenset[int], around: tuple[Tensor, ...] = ()) -> Iterator[Placed]:
    for node in nodes:
        match node:
            case Alloc(tensor, body) if id(node) not in on_stack:
                yield Placed(node, around)
                yield from _placed(body, on_stack, (*around, tensor))
            case Alloc(body=body) | For(body=body) | If(body=body):
                yield from _placed(body, on_stack, around)
            case _:
                pass


class Buffers:
    """The pointers of a phase's buffers, as their map says. `prologue`: what makes room on the stack."""

    def __init__(self, indices: Indices, sizes: Mapping[str, int], placed: MemoryMap) -> None:
        self.indices, self.sizes, self.map = indices, sizes, placed
        self.prologue: list[str] = []
        self.offsets: dict[int, str] = {}  # by the allocation's identity
        self.base = ""
        self.shared_end = "0"
        self.stacked: dict[int, str] = {}

    def shared(self, alloc: Alloc) -> str:
        """The pointer of a buffer above the phases."""
        pointer = self._at("%shared", self.shared_end)
        self.shared_end = self._sum(self.shared_end, self._size(alloc.tensor))
        return pointer

    def allocate(self, alloc: Alloc) -> str:
        """The pointer of a buffer of this part; the walker enters and leaves buffers like a stack."""
        tensor = alloc.tensor
        if id(alloc) in self.map.on_stack:
            if id(alloc) not in self.stacked:
                name = self.stacked[id(alloc)] = f"%b{len(self.prologue)}"
                count = bytes_of(tensor, self.sizes) // size_bytes(tensor.dtype)
                self.prologue.append(f"  {name} = alloca [{count} x {memory_type(tensor.dtype)}], align {ALIGN}")
            return self.stacked[id(alloc)]
        if not self.base:
            writer = self.indices.writer
            part = writer.pure("mul i64 %part, %stride")
            self.base = writer.pure(f"getelementptr i8, ptr %private, i64 {part}", part)
        return self._at(self.base, self.offsets[id(alloc)])

    def _at(self, base: str, offset: str) -> str:
        return (
            base
            if offset == "0"
            else self.indices.writer.pure(f"getelementptr i8, ptr {base}, i64 {offset}", base, offset)
        )

    def _size(self, tensor: Tensor) -> str:
        """Bytes of a buffer, rounded up to the alignment."""
        total = str(size_bytes(tensor.dtype))
        for extent in tensor.storage_shape:
            total = self.indices.multiply(total, self._not_negative(self.indices.text(self.indices.linear(extent))))
        if total.isdigit():
            return str(-(-int(total) // ALIGN) * ALIGN)
        writer = self.indices.writer
        raised = writer.pure(f"add i64 {total}, {ALIGN - 1}", total)
        return writer.pure(f"and i64 {raised}, -{ALIGN}", raised)

    def _not_negative(self, extent: str) -> str:
        if extent.isdigit():
            return extent
        return self.indices.writer.intrinsic("i64", "llvm.smax.i64", (("i64", extent), ("i64", "0")), pure=True)

    def _sum(self, a: str, b: str) -> str:
        if a.isdigit() and b.isdigit():
            return str(int(a) + int(b))
        return b if a == "0" else self.indices.writer.pure(f"add i64 {a}, {b}", a, b)

    def place(self) -> None:
        """Give every private buffer its offset."""
        for buffer in self.map.private:
            self.offsets[id(buffer.alloc)] = reduce(self._sum, map(self._size, buffer.around), "0")
