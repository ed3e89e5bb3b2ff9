"""What an emitter of one function carries from node to node of the loop tree, and the lanes of a vector loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType

from poly.affine import Affine
from poly.codegen.addresses import Address, Flat, Indices
from poly.codegen.operators import Ops
from poly.codegen.registers import Registers
from poly.codegen.target import Target
from poly.codegen.text import Writer
from poly.codegen.values import Value, constant_mask
from poly.errors import UnsupportedError
from poly.program import Access, Tensor

PlaceKey = tuple[object, ...]  # what tells where an access is


@dataclass(frozen=True)
class Lanes:
    """Inside a vector loop: `width` lanes of which the first `count` at most are active.

    `mask`: None where all lanes are active, else the text of an i1 vector; `constant`: exactly the first `count` are.
    """

    width: int
    count: int
    mask: str | None
    constant: bool

    @property
    def runtime_mask(self) -> str | None:
        """The mask where it is only known when running."""
        return None if self.constant else self.mask


@lru_cache(maxsize=64)
def first_lanes(width: int, count: int) -> Lanes:
    """Exactly the first `count` lanes active."""
    return Lanes(width, count, constant_mask(width, count), True)


@dataclass(frozen=True)
class Plan:
    """What an access without indirection comes to wherever it is met: its subscripts, their sum, the names in them."""

    access: Access
    subscripts: tuple[Affine, ...]
    flat: Flat | None
    names: tuple[str, ...]


class AtStatement:
    """See `State.at_statement`; a class, as a generator takes as long as a store."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: type | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(error, UnsupportedError):
            where = error.where or f"statement {self._name}"
            raise UnsupportedError(error.message, where=where, hint=error.hint) from None


@dataclass
class Tiles:
    """The tiles of a matrix unit. `spaces`: memories of such; `first`: of buffers there, the first tile of each;
    `taken`: tiles of all; `shapes`: those that the unit has been told, () none; `told`: whether it ever was.
    """

    spaces: frozenset[str] = frozenset()
    first: dict[str, int] = field(default_factory=dict[str, int])
    taken: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    told: bool = False


@dataclass
class State:
    """What an emitter of one function carries along.

    `statements`: their numbers; `statement`: the current one, `kept`: it writes to registers.
    `past`: inside of a nontemporal loop, whose stores of whole vectors go past the caches where memory is aligned to
    them; `streamed`: the tensors stored to in that way; `unaligned`: what each such line is where memory is not.
    `ahead`: of such loops, along which loop and how far they ask for what they touch.
    `written`: tensors that the loop around writes, with all in it; None outside of loops. `plans`: by the identity
    of an access; `located`: where accesses are, by what the names in them are; `loaded`: what was loaded where nobody
    writes, by that and by the block. `factors`: by the identity of a statement, the reads whose product it adds to
    registers, None for others. `index_vectors`: indices loaded from memory, all lanes. `sizes`: of the tree,
    those that are known.
    """

    writer: Writer
    ops: Ops
    indices: Indices
    registers: Registers
    tensors: dict[str, Tensor]
    bases: dict[str, str]
    register_spaces: frozenset[str]
    statements: dict[str, int]
    target: Target
    lanes: Lanes | None = None
    statement: str = ""
    kept: bool = False
    past: bool = False
    ahead: tuple[str, int] | None = None
    streamed: set[str] = field(default_factory=set[str])
    unaligned: dict[str, str] = field(default_factory=dict[str, str])
    written: frozenset[str] | None = None
    plans: dict[int, Plan] = field(default_factory=dict[int, Plan])
    located: dict[PlaceKey, Address | None] = field(default_factory=dict[PlaceKey, "Address | None"])
    loaded: dict[PlaceKey, Value] = field(default_factory=dict[PlaceKey, Value])
    factors: dict[int, tuple[int, ...] | None] = field(default_factory=dict[int, "tuple[int, ...] | None"])
    index_vectors: dict[str, Value] = field(default_factory=dict[str, Value])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    tiles: Tiles = field(default_factory=Tiles)

    def in_registers(self, tensor: str) -> bool:
        return self.tensors[tensor].space in self.register_spaces

    def in_tiles(self, tensor: str) -> bool:
        return self.tensors[tensor].space in self.tiles.spaces

    def at_statement(self, name: str) -> AtStatement:
        """Inside of a statement: what has no compiled form there is said to be in it."""
        self.statement = name
        return AtStatement(name)

    @contextmanager
    def probing(self) -> Generator[None]:
        """What is walked inside leaves no text, and the place is the same afterwards."""
        indices, values, lanes = self.indices, dict(self.indices.values), self.lanes
        lane_range = indices.lane_range
        self.writer.probing = True
        try:
            yield
        finally:
            self.writer.probing = False
            indices.values, indices.lane_range, self.lanes = values, lane_range, lanes
