"""`LoopTree`: a schedule as loops. What the emitters of `codegen` and `accel` print; they decide nothing.

Subscripts and bounds are quasi-affine in loop variables and free sizes. A loop's `kind` says how it runs:
`serial`; `unroll` (as literal copies, under guards where its ends differ from place to place); `vector` (as lanes: any
extent with a constant bound of at most `MAX_LANES`, which LLVM splits into machine vectors; run one by one where the
bounds of a loop inside depend on the lane or a buffer lives inside); `parallel` (iterations in any order and at once,
split over threads where only serial loops and buffers in memory stand around, else run in one piece); `unit` (absorbed
in one command of a machine's engine: the array's m, n, k and outer loops, the vector engine's or a DMA's nest; `engine`
names it, and `fill` the one that writes the pieces of a DMA's copy that are padding only).
A vector loop may be `nontemporal`: whole, aligned vectors that it stores go to memory past the caches; so may the
innermost `unit` loop of a copy into an engine's memory: what it loads need not stay in the first cache.
What it touches `ahead` (a loop, iterations of it later) it asks for into the first cache, as
`poly.scheduling.marks.prefetch` says: no effect but on the caches. A serial loop `asks` in every iteration for the
lines of some elements, into the second.
A parallel loop may name the parallel one behind it (`nowait`): threads need not meet between the two, nor between up to
`MOST_NOWAIT` in a row.
A serial loop may name a statement right inside of it (`leaves`) that writes a bool, or one for each lane of a vector
loop: after an iteration in which all are false no other one has an effect, and the loop may end
(`poly.scheduling.leaving`).
A serial loop may have `ends`: from the least of these on its iterations have no effect that counts, and are left out
(`poly.scheduling.shortening`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from poly.affine import Affine, Constraint
from poly.expr import Combiner, Expr
from poly.locks import cached_property
from poly.program import Access, Tensor

MAX_LANES: Final = 128  # iterations of a vector loop
MOST_NOWAIT: Final = 8  # parallel loops in a row without a meeting: a thread keeps its place in all of them
LoopKind = Literal["serial", "unroll", "vector", "parallel", "unit"]


@dataclass(frozen=True)
class Compute:
    """One statement instance for each iteration of the loops around: `write = [combine(write,)] body(reads)`.

    `instance`: the statement's iterators as functions of the loop variables. A copy has the body `Read(0)`.
    """

    statement: str
    instance: tuple[Affine, ...]
    write: Access
    reads: tuple[Access, ...]
    body: Expr
    combiner: Combiner | None = None
    contract: bool = True


@dataclass(frozen=True)
class External:
    """An external statement (see `poly.program.External`), run whole."""

    statement: str


@dataclass(frozen=True)
class For:
    """`for variable from max(lower) while < min(upper) by step`. Bounds are lists, combined by max and min."""

    variable: str
    lower: tuple[Affine, ...]
    upper: tuple[Affine, ...]
    body: tuple[Node, ...]
    step: int = 1
    kind: LoopKind = "serial"
    engine: str | None = None
    fill: str | None = None
    nontemporal: bool = False
    ahead: tuple[str, int] | None = None
    asks: tuple[Access, ...] = ()
    nowait: str | None = None
    leaves: str | None = None
    ends: tuple[Affine, ...] = ()

    @property
    def stops(self) -> tuple[Affine, ...]:
        """What the loop runs below: the least of its upper bounds and its ends."""
        return (*self.upper, *self.ends)

    @cached_property
    def one_by_one(self) -> str:
        """Why a vector loop runs one iteration after another; "" where it runs as lanes, or has one iteration."""
        if all(b.is_constant for b in (*self.lower, *self.upper)):
            if max(b.constant for b in self.lower) + self.step >= min(b.constant for b in self.upper):
                return ""
        for n in walk(self.body):
            if isinstance(n, Alloc):
                return f"buffer {n.tensor.name} is inside"
            if isinstance(n, For) and any(self.variable in b.names for b in (*n.lower, *n.stops)):
                return f"loop {n.variable} inside is as long as the lane says"
        return ""


@dataclass(frozen=True)
class If:
    """The body runs where one of the conjunctions holds."""

    any_of: tuple[tuple[Constraint, ...], ...]
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Alloc:
    """A buffer that lives while the body runs; its content is undefined at the start."""

    tensor: Tensor
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Sync:
    """All threads meet. A command stream has none: `poly.accel` refuses it."""

    reason: str = ""


Node = Compute | External | For | If | Alloc | Sync


@dataclass(frozen=True)
class LoopTree:
    """The loops of one program (or one fusion group). `parameters` stay free and become entry arguments.

    `per_thread`: constants that lie in memory once for each thread, which reads its own.
    """

    name: str
    tensors: tuple[Tensor, ...]
    body: tuple[Node, ...]
    parameters: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int], ...] = field(default=())
    per_thread: tuple[str, ...] = ()

    def nodes(self) -> Iterator[Node]:
        """Every node, parents first."""
        yield from walk(self.body)

    def __str__(self) -> str:
        from poly.text import print_loops

        return print_loops(self)

    def __repr__(self) -> str:
        kinds = [n for n in self.nodes()]
        loops = sum(isinstance(n, For) for n in kinds)
        return f"<LoopTree {self.name}: {loops} loops, {sum(isinstance(n, Compute) for n in kinds)} statements>"

    def _repr_html_(self) -> str:
        from poly.pictures import text_html

        return text_html(str(self))


def walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node below, parents first, in program order."""
    for node in nodes:
        yield node
        if isinstance(node, For | If | Alloc):
            yield from walk(node.body)
