"""What is known when compiling is computed when compiling: loops at the top of a tree that read only constants.

Data flow decides, nothing else: a nest at the top of the tree is *constant* where all that it reads is a constant, an
index, or written by constant nests only, and all that it writes are temporaries in memory that nobody else writes and
that the rest reads later. So a weight that is promoted whole (`promote(weight, None, ...)`) with a packed layout is
packed once, and the loops that run at each call find the packed tensor as a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from poly.affine import Affine
from poly.expr import IndexValue
from poly.expr import walk as walk_body
from poly.loops import Alloc, Compute, External, For, If, LoopTree, Node, Sync, walk
from poly.machine import Machine
from poly.program import Access, Tensor


@dataclass(frozen=True)
class Split:
    """A tree in two. `before`: what is computed when compiling, its results outputs; None: nothing is.

    `after`: the rest, for every call; `computed`: the constants that it reads and `before` makes, in memory as their
    layouts say.
    """

    before: LoopTree | None
    after: LoopTree
    computed: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _Nest:
    """A node at the top of the tree, with what it touches of tensors that are not its own buffers."""

    node: Node
    reads: frozenset[str]
    writes: frozenset[str]
    fixed: bool


def split_constants(tree: LoopTree, machine: Machine) -> Split:
    """The constant nests of a tree, and the rest. A tree whose instances were checked needs no other check."""
    buffers = {t.name: t for t in _top_buffers(tree.body)}
    tensors = {t.name: t for t in tree.tensors} | buffers
    nests = [_nest(node, tensors, frozenset(tree.parameters)) for node in _top_nodes(tree.body)]
    chosen = _constant_nests(nests, tensors, machine)
    read = {name for k, n in enumerate(nests) if k not in chosen for name in n.reads}
    made = {name for k in chosen for name in nests[k].writes}
    needed = [name for name in tensors if name in made & read]
    if not needed:
        return Split(None, tree)
    outputs = {n: replace(tensors[n], role="output", scope=()) for n in needed}
    constants = {n: replace(tensors[n], role="constant", scope=()) for n in needed}
    first = _part(tree, [n.node for k, n in enumerate(nests) if k in chosen], buffers, outputs)
    rest = _part(
        tree, [n.node for k, n in enumerate(nests) if k not in chosen], buffers, constants,
        ("input", "output", "inout", "state"),
    )  # fmt: skip
    first = replace(first, name=f"{tree.name}_constants", parameters=())  # a constant nest touches no free size
    return Split(first, rest, tuple(constants.values()))


def _top_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        if isinstance(node, Alloc):
            yield from _top_nodes(node.body)
        else:
            yield node


def _top_buffers(nodes: Sequence[Node]) -> Iterator[Tensor]:
    for node in nodes:
        if isinstance(node, Alloc):
            yield node.tensor
            yield from _top_buffers(node.body)


def _nest(node: Node, tensors: Mapping[str, Tensor], free: frozenset[str]) -> _Nest:
    reads, writes, fixed = set[str](), set[str](), True
    for inner in walk((node,)):
        match inner:
            case Compute():
                reads |= {r.tensor for r in inner.reads} | ({inner.write.tensor} if inner.combiner else set())
                writes.add(inner.write.tensor)
                touched = (inner.write.tensor, *(r.tensor for r in inner.reads))
                shapes = [tensors[n].storage_shape for n in touched if n in tensors]
                fixed = fixed and not any(e.names & free for shape in shapes for e in shape)
            case External() | Sync():
                fixed = False
            case _:
                pass
        fixed = fixed and not _sizes_of(inner) & free
    return _Nest(node, frozenset(reads & tensors.keys()), frozenset(writes & tensors.keys()), fixed)


def _sizes_of(node: Node) -> frozenset[str]:
    """Names in the bounds, guards and subscripts of one node."""
    found: list[Affine] = []
    match node:
        case For():
            found = [*node.lower, *node.stops]
        case If():
            found = [c.expr for conditions in node.any_of for c in conditions]
        case Compute():
            found = [e for access in (node.write, *node.reads) for e in _expressions(access)]
            found += [inner.index for inner in walk_body(node.body) if isinstance(inner, IndexValue)]
        case Alloc():
            found = [*node.tensor.storage_shape]
        case _:
            pass
    return frozenset(name for e in found for name in e.names)


def _expressions(access: Access) -> list[Affine]:
    return [*(i for i in access.index if isinstance(i, Affine)), *(c.expr for c in access.guard)]


def _constant_nests(nests: Sequence[_Nest], tensors: Mapping[str, Tensor], machine: Machine) -> frozenset[int]:
    """Positions of the constant nests: all that may be, less those that the others spoil, until nothing changes."""
    chosen = {k for k, n in enumerate(nests) if n.fixed and all(_kept(tensors[t], machine) for t in n.writes)}
    while True:
        spoilt = _written_late(nests, chosen) | {t for k, n in enumerate(nests) if k not in chosen for t in n.writes}
        known = {t.name for t in tensors.values() if t.role == "constant"}
        known |= {t for k in chosen for t in nests[k].writes}
        left = {k for k in chosen if nests[k].reads <= known - spoilt and not nests[k].writes & spoilt}
        if left == chosen:
            return frozenset(chosen)
        chosen = left


def _kept(t: Tensor, machine: Machine) -> bool:
    """Whether a tensor can be kept from compiling to running: a temporary of known size in addressable memory."""
    memory = machine.memory.get(t.space)
    addressed = memory is not None and memory.kind != "register" and t.space not in machine.tile_spaces
    return t.role == "temporary" and addressed and all(e.is_constant for e in t.storage_shape)


def _written_late(nests: Sequence[_Nest], chosen: set[int]) -> set[str]:
    """Tensors that a constant nest writes after another nest has read them."""
    found: set[str] = set()
    for k, nest in enumerate(nests):
        if k not in chosen:
            found |= {t for t in nest.reads if any(t in nests[c].writes for c in chosen if c > k)}
    return found


def _part(
    tree: LoopTree,
    nodes: Sequence[Node],
    buffers: Mapping[str, Tensor],
    changed: Mapping[str, Tensor],
    roles: Sequence[str] = (),
) -> LoopTree:
    """A tree of some of the nests, with the tensors and buffers that they touch and the tensors of some roles."""
    used: set[str] = set()
    for node in walk(tuple(nodes)):
        if isinstance(node, Compute):
            used |= {a.tensor for a in (node.write, *node.reads)}
    body = tuple(nodes)
    for t in reversed([t for n, t in buffers.items() if n in used and n not in changed]):
        body = _around_users(t, body)
    outside = [changed.get(t.name, t) for t in tree.tensors if t.name in used or t.role in roles]
    outside += [t for n, t in changed.items() if n in buffers and n in used]
    return replace(tree, tensors=tuple(outside), body=body)


def _around_users(t: Tensor, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes with the buffer around the smallest span of them that holds its users."""
    hit = [k for k, node in enumerate(nodes) if _touches(node, t.name)]
    first, last = hit[0], hit[-1] + 1
    return (*nodes[:first], Alloc(t, nodes[first:last]), *nodes[last:])


def _touches(node: Node, name: str) -> bool:
    return any(
        isinstance(n, Compute) and name in (n.write.tensor, *(r.tensor for r in n.reads)) for n in walk((node,))
    )
