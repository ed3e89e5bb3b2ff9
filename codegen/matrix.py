"""Commands of a core's matrix unit: chains of `unit` loops around one statement on its tiles.

A tile is a block of at most 16 rows of 16 elements of 4 bytes; a buffer in tiles is cut into such blocks along its last
two axes, one tile after the other. What a chain does follows from its statement: clear a tile, fill it from memory,
store it, or add the products of two to a third. The tree says which; what is no such command is refused. (Intel,
Architecture Instruction Set Extensions, "Advanced Matrix Extensions".)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from poly.codegen.addresses import Address, Linear
from poly.codegen.loop_ends import ends_of
from poly.codegen.places import direct, pointer_to
from poly.codegen.state import State
from poly.dtypes import size_bytes
from poly.errors import UnsupportedError
from poly.expr import DOT_BF16, Apply, Const, Read
from poly.loops import Alloc, Compute, For, If, Node
from poly.machine import MATRIX_TILE, MATRIX_TILES
from poly.program import Access, Tensor

SIDE, ELEMENT = MATRIX_TILE[0], 4  # rows and elements of the largest tile, bytes of an element
_PALETTE = 1  # the numbers that a configuration starts with; 16 bytes; bytes of rows, 2 each; rows, 1 each
_HINT = "tensorise loops over one tile each: clear, load or store it, or add a product of two to it"
# By operator: the instruction where its first operand has the rows of the sums, and where its second one has.
PRODUCTS: Mapping[str, tuple[str, str]] = {
    "dot4": ("tdpbusd", "tdpbsud"), "dot4_i8": ("tdpbssd", "tdpbssd"), "dot4_u8": ("tdpbuud", "tdpbuud"),
    DOT_BF16: ("tdpbf16ps", "tdpbf16ps"),
}  # fmt: skip

Shapes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Block:
    """What a command touches: the first element, and elements between neighbours along each of its loops."""

    tensor: Tensor
    first: Address
    strides: tuple[int, ...]


# ---- the tiles of a part of a tree


def shapes_of(nodes: Sequence[Node], spaces: frozenset[str], sizes: Mapping[str, int]) -> Shapes | None:
    """Rows and columns of each tile that is used below; () where none is, None where one has several shapes."""
    found: dict[int, tuple[int, int]] = {}
    if not all(_found(n, spaces, sizes, 0, found) for n in nodes):
        return None
    return tuple(found.get(k, (0, 0)) for k in range(MATRIX_TILES)) if found else ()


def _found(
    node: Node, spaces: frozenset[str], sizes: Mapping[str, int], first: int, found: dict[int, tuple[int, int]]
) -> bool:
    """Whether all buffers below a node, the first of them in tile `first`, leave each tile one shape."""
    if isinstance(node, Alloc) and node.tensor.space in spaces:
        shape, count = _tiles(node.tensor, sizes)
        if any(found.setdefault(k, shape) != shape for k in range(first, first + count)):
            return False
        first += count
    inner = node.body if isinstance(node, For | If | Alloc) else ()
    return all(_found(n, spaces, sizes, first, found) for n in inner)


def _tiles(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[tuple[int, int], int]:
    """The shape of a buffer's tiles, and how many it has. Raises `UnsupportedError` where it has no such blocks."""
    extents = tensor.storage_extents(sizes)
    if len(extents) < 2 or size_bytes(tensor.dtype) != ELEMENT or any(e > SIDE and e % SIDE for e in extents[-2:]):
        what = f"buffer {tensor.name} is no tiles of {SIDE} x {SIDE} elements of {ELEMENT} bytes"
        raise UnsupportedError(what, hint=f"rows and columns of {SIDE}, a multiple, or less")
    rows, columns = (min(e, SIDE) for e in extents[-2:])
    return (rows, columns), prod(extents) // (rows * columns)


def begin_buffer(s: State, tensor: Tensor) -> int:
    """Give a buffer its tiles; the number of those that were taken before."""
    before = s.tiles.taken
    if not s.tiles.shapes and not s.writer.probing:
        hint = "buffers of other shapes in loops of their own"
        raise UnsupportedError("tiles have several shapes", where=f"buffer {tensor.name}", hint=hint)
    s.tiles.first[tensor.name] = before
    s.tiles.taken += _tiles(tensor, s.sizes)[1]
    if s.tiles.taken > MATRIX_TILES:
        text = f"{s.tiles.taken} tiles are in use, a core has {MATRIX_TILES}"
        raise UnsupportedError(text, where=f"buffer {tensor.name}")
    return before


@contextmanager
def told_shapes(s: State, nodes: Sequence[Node]) -> Generator[bool]:
    """The tiles of some nodes have their shapes inside, if these are the same in all; gives whether they are."""
    shapes = () if s.tiles.shapes or s.writer.probing else shapes_of(nodes, s.tiles.spaces, s.sizes)
    if shapes:
        configure(s, shapes)
    yield shapes is not None
    if shapes:
        s.tiles.shapes = ()


def configure(s: State, shapes: Shapes) -> None:
    """Tell the unit the tiles' shapes; it clears all of them."""
    data = [_PALETTE, *[0] * 15]
    for number in (columns * ELEMENT for _, columns in shapes):
        data += [number, 0]
    data += [0] * (48 - len(data))
    data += [rows for rows, _ in shapes]
    data += [0] * (64 - len(data))
    s.tiles.shapes, s.tiles.told = shapes, True
    s.writer.declare("void @llvm.x86.ldtilecfg(ptr)")
    s.writer.emit(f"call void @llvm.x86.ldtilecfg(ptr {s.writer.bytes_constant(data)})")


# ---- commands


def command(s: State, node: For) -> bool:
    """Print the command that a unit loop begins; False where it touches no tile. Raises `UnsupportedError`."""
    loops: list[For] = []
    inner: Node = node
    while isinstance(inner, For) and inner.kind == "unit" and len(inner.body) == 1:
        loops.append(inner)
        inner = inner.body[0]
    if not isinstance(inner, Compute):
        return False
    accesses = (inner.write, *inner.reads)
    if not any(s.in_tiles(a.tensor) for a in accesses):
        return False
    with s.at_statement(inner.statement):
        saved = dict(s.indices.values)
        trips = _begin(s, loops)
        if s.lanes is not None or any(a.indirect or a.guard for a in accesses):
            raise UnsupportedError("a command on tiles has lanes, indices from memory or padding", hint=_HINT)
        names = [loop.variable for loop in loops]
        s.past = loops[-1].nontemporal
        _emit(s, inner, trips, *(_block(s, a, names, trips) for a in accesses))
        s.past = False
        s.indices.values = saved
    return True


def require_no_tiles(s: State, node: Compute) -> None:
    """Raises `UnsupportedError` where a statement that is in no command touches a tile."""
    tiles = [a.tensor for a in (node.write, *node.reads) if s.tiles.spaces and s.in_tiles(a.tensor)]
    if tiles:
        raise UnsupportedError(f"{tiles[0]} is in tiles", where=f"statement {node.statement}", hint=_HINT)


def _begin(s: State, loops: Sequence[For]) -> tuple[int, ...]:
    """Set the loops of a command to their first iterations; their lengths."""
    trips: list[int] = []
    for loop in loops:
        ends = ends_of(s.indices, loop)
        if ends.trips is None or loop.step != 1:
            raise UnsupportedError(f"unit loop {loop.variable} has no known length", hint=_HINT)
        trips.append(ends.trips)
        s.indices.values[loop.variable] = ends.lower[0]
    return tuple(trips)


def _block(s: State, access: Access, names: Sequence[str], trips: Sequence[int]) -> Block:
    """Raises `UnsupportedError` where neighbours are not equally far apart."""

    def at(name: str = "", step: int = 0) -> Address:
        before = s.indices.values.get(name)
        if before is not None:
            s.indices.values[name] = before.plus(Linear((), step))
        found = direct(s, access)
        if before is not None:
            s.indices.values[name] = before
        if found is None or found.lane:
            raise UnsupportedError(f"tile of {access.tensor} has no plain address", hint=_HINT)
        return found

    first = at()
    strides: list[int] = []
    for name, count in zip(names, trips, strict=True):
        last, second = at(name, count - 1), at(name, 1)
        step = second.constant - first.constant
        alike = dict(first.terms) == dict(second.terms) == dict(last.terms)
        if not alike or last.constant - first.constant != step * (count - 1):
            raise UnsupportedError(f"rows of a tile of {access.tensor} are not equally far apart", hint=_HINT)
        strides.append(step)
    return Block(s.tensors[access.tensor], first, tuple(strides))


def _emit(s: State, node: Compute, trips: tuple[int, ...], write: Block, *reads: Block) -> None:
    stored = s.in_tiles(write.tensor.name)
    match node.body:
        case Const(0) if stored and node.combiner is None and len(trips) == 2:
            return _call(s, "tilezero", f"i8 {_tile(s, write, trips, (0, 1))}")
        case Read(k) if node.combiner is None and len(trips) == 2 and stored != s.in_tiles(reads[k].tensor.name):
            inside, outside = (write, reads[k]) if stored else (reads[k], write)
            if outside.strides[1] == 1 and outside.tensor.dtype == inside.tensor.dtype:
                pointer, step = pointer_to(s, outside.tensor, outside.first), outside.strides[0] * ELEMENT
                given = f"i8 {_tile(s, inside, trips, (0, 1))}, ptr {pointer}, i64 {step}"
                load = "tileloaddt164" if s.past else "tileloadd64"
                return _call(s, load if stored else "tilestored64", given)
        case Apply(name, (Read(a), Read(b))) if name in PRODUCTS and stored and len(trips) == 3:
            summed = node.combiner is not None and node.combiner.symbol == "+"
            if summed and all(s.in_tiles(r.tensor.name) for r in reads):
                turned = reads[a].strides[0] == 0
                first, second = (reads[b], reads[a]) if turned else (reads[a], reads[b])
                tiles = (
                    _tile(s, write, trips, (0, 2)), _tile(s, first, trips, (0, 1)), _tile(s, second, trips, (1, 2)),
                )  # fmt: skip
                return _call(s, PRODUCTS[name][turned], ", ".join(f"i8 {t}" for t in tiles))
        case _:
            pass
    raise UnsupportedError("no command of the matrix unit does this", hint=_HINT)


def _tile(s: State, block: Block, trips: Sequence[int], along: tuple[int, int]) -> int:
    """The tile that a block is, rows and columns `along` two of the loops and the same for all others."""
    *_, rows, columns = block.tensor.storage_extents(s.sizes)
    high, wide = min(rows, SIDE), min(columns, SIDE)
    strides = [0] * len(trips)
    strides[along[0]], strides[along[1]] = columns, 1
    whole = (trips[along[0]], trips[along[1]]) == (high, wide) and block.first.is_constant
    plane, place = divmod(block.first.constant, rows * columns)
    row, column = divmod(place, columns)
    if not whole or tuple(strides) != block.strides or row % high or column % wide:
        raise UnsupportedError(f"what is touched of {block.tensor.name} is no tile of it", hint=_HINT)
    down, across = rows // high, columns // wide
    return s.tiles.first[block.tensor.name] + (plane * down + row // high) * across + column // wide


def _call(s: State, name: str, given: str) -> None:
    if name not in s.target.matrix:
        raise UnsupportedError(f"the target has no {name}", hint="features amx-tile, and amx-int8 or amx-bf16")
    kinds = ", ".join(g.split()[0] for g in given.split(", "))
    s.writer.declare(f"void @llvm.x86.{name}({kinds})")
    s.writer.emit(f"call void @llvm.x86.{name}({given})")
