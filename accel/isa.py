"""The instruction set: what the queues of an accelerator's engines hold.

Each engine takes the commands of its own queue in order. A command starts when all its waits can be taken at once, and
its memory effects are complete when it posts. Semaphores are counters; exactly one engine waits on each, any may post.
Commands of one engine are never in conflict; commands of two engines are ordered by semaphores only.

A command runs over a box of loop counters, `trips`, outermost first, and each operand is a `Region`: a start and one
stride per loop. So one matrix command is a product, a batch of products or a direct convolution.

`Rep` repeats commands in hardware. Inside, an operand's start moves by `steps[d]` per iteration of the d-th `Rep`
around it (outermost is 0), so the length of a stream follows the schedule and not the iterations.

Units: an on-chip `offset` (and its steps) counts bytes, a DRAM `offset` counts elements of the symbol; `strides` always
count elements of the region's dtype.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np

from poly.dtypes import DTYPES, dtype_name, is_float, numpy_dtype, size_bytes
from poly.errors import PolyError
from poly.expr import BITS, COMBINERS, OPERATORS
from poly.locks import cached_property

MAX_DMA_RANK: Final = 6
MAX_OUTER: Final = 6
MAX_INNER: Final = 6
MAX_VEC_RANK: Final = 8
MAX_REP_DEPTH: Final = 4
MAX_TOKENS: Final = 255

Number = float | int | bool
Tokens = tuple[tuple[str, int], ...]
SymbolRole = Literal["input", "output", "inout", "constant", "temporary", "state"]


class StreamError(PolyError):
    """A command or a stream that is not well formed, or that cannot run."""


def _require(holds: bool, message: str, where: object) -> None:
    if not holds:
        raise StreamError(message, where=type(where).__name__)


def _number(value: Number) -> Number:
    # Plain Python numbers and one NaN object, so that equal commands compare and print equal.
    plain: Number = value.item() if isinstance(value, np.generic) else value
    return math.nan if plain != plain else plain


@dataclass(frozen=True)
class Region:
    """Where an operand lies. `memory` names a memory of the machine; `symbol` is set for DRAM. See the module text."""

    memory: str
    offset: int
    dtype: str
    strides: tuple[int, ...]
    steps: tuple[int, ...] = ()
    symbol: str | None = None

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"unknown dtype {self.dtype!r}", self)
        while self.steps and self.steps[-1] == 0:
            object.__setattr__(self, "steps", self.steps[:-1])

    @property
    def key(self) -> str:
        """The address space: the on-chip memory, or `@symbol`."""
        return self.memory if self.symbol is None else f"@{self.symbol}"

    @property
    def unit(self) -> int:
        """What one element adds to an offset."""
        return size_bytes(self.dtype) if self.symbol is None else 1

    def start(self, counters: tuple[int, ...]) -> int:
        """The offset under the counters of the surrounding `Rep`s."""
        return self.offset + sum(s * c for s, c in zip(self.steps, counters, strict=False))


def chip(memory: str, address: int, dtype: str, strides: tuple[int, ...], steps: tuple[int, ...] = ()) -> Region:
    """A region on chip: byte address, strides in elements, steps in bytes."""
    return Region(memory, address, dtype, strides, steps)


def dram(
    symbol: str, offset: int, dtype: str, strides: tuple[int, ...], steps: tuple[int, ...] = (), memory: str = "dram"
) -> Region:
    """A region of a DRAM symbol: everything in elements."""
    return Region(memory, offset, dtype, strides, steps, symbol)


@dataclass(frozen=True)
class Linear:
    """`base + sum(coefficients[l] * loop counter l) + sum(steps[d] * Rep counter d)`."""

    base: int
    coefficients: tuple[int, ...]
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        while self.steps and self.steps[-1] == 0:
            object.__setattr__(self, "steps", self.steps[:-1])

    def start(self, counters: tuple[int, ...]) -> int:
        return self.base + sum(s * c for s, c in zip(self.steps, counters, strict=False))


@dataclass(frozen=True)
class Gather:
    """One indirect subscript of a load: the start moves by `stride` elements times the value of `register`.

    Values outside `0 <= value < extent` are an error when the stream runs.
    """

    register: int
    stride: int
    extent: int


@dataclass(frozen=True)
class Load:
    """Read one element per point. Where a `guard` is negative the value is `fill` and memory is not touched."""

    region: Region
    guard: tuple[Linear, ...] = ()
    fill: Number | None = None
    gather: tuple[Gather, ...] = ()

    def __post_init__(self) -> None:
        _require(bool(self.guard) == (self.fill is not None), "a guard and a fill value go together", self)
        if self.fill is not None:
            object.__setattr__(self, "fill", _number(self.fill))


@dataclass(frozen=True)
class Imm:
    """A literal."""

    value: Number
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _number(self.value))


@dataclass(frozen=True)
class Index:
    """The value of a linear expression of the counters, as i64."""

    value: Linear


@dataclass(frozen=True)
class Op:
    """An operator of `poly.expr.OPERATORS` on earlier registers; operands of one dtype (conversions are `Convert`)."""

    name: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class Convert:
    """Conversion of a register; float to integer truncates toward zero."""

    dtype: str
    arg: int


Micro = Load | Imm | Index | Op | Convert


@dataclass(frozen=True)
class Dma:
    """Copy a box of elements: load, store and on-chip copy alike, the path decides. Converts where the dtypes differ.

    The destination holds the pads: its extent in dimension d is `pad[d][0] + counts[d] + pad[d][1]`, its offset is the
    first padded element, and elements outside the copied box become `fill`. A source stride of 0 replicates.
    """

    dst: Region
    src: Region
    counts: tuple[int, ...]
    pad: tuple[tuple[int, int], ...] = ()
    fill: Number = 0
    wait: Tokens = ()
    post: Tokens = ()
    tag: str = ""

    def __post_init__(self) -> None:
        if not any(lo or hi for lo, hi in self.pad):
            object.__setattr__(self, "pad", ())
            object.__setattr__(self, "fill", 0)
        object.__setattr__(self, "fill", _number(self.fill))
        _require(1 <= len(self.counts) <= MAX_DMA_RANK, f"1 to {MAX_DMA_RANK} dimensions, not {len(self.counts)}", self)
        _require(not self.pad or len(self.pad) == len(self.counts), "one pad pair per dimension", self)
        _require(all(lo >= 0 and hi >= 0 for lo, hi in self.pad), "negative pad", self)
        _common(self, self.counts, (self.dst, self.src))

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the destination, pads included."""
        pads = self.pad or ((0, 0),) * len(self.counts)
        return tuple(c + lo + hi for c, (lo, hi) in zip(self.counts, pads, strict=True))

    @property
    def operands(self) -> tuple[Region, ...]:
        return (self.dst, self.src)


@dataclass(frozen=True)
class Mm:
    """`c[..] += a[..] * b[..]` at every point of the loops: matrix products and direct convolution.

    `roles` has one letter a loop: `o` outer (one pass of the array each), `m` streamed rows, `n` columns, `k`
    reduction, outer loops first. The trips of `n` together fit the array's columns, those of `k` its rows; b does not
    move with m, a not with n, c not with k. A loop over which c stands still is a reduction, outer ones too.
    Without `accumulate` the elements of c start from zero. Integer accumulators wrap.
    """

    c: Region
    a: Region
    b: Region
    trips: tuple[int, ...]
    roles: str
    accumulate: bool = False
    wait: Tokens = ()
    post: Tokens = ()
    tag: str = ""

    def __post_init__(self) -> None:
        _require(len(self.roles) == len(self.trips), "one role per loop", self)
        _require(set(self.roles) <= set("omnk"), f"roles {self.roles!r} are not of o, m, n, k", self)
        outer = len(self.roles) - len(self.roles.lstrip("o"))
        _require("o" not in self.roles[outer:], "outer loops come first", self)
        fits = outer <= MAX_OUTER and len(self.roles) - outer <= MAX_INNER
        _require(fits, f"at most {MAX_OUTER} outer and {MAX_INNER} inner loops", self)
        _common(self, self.trips, (self.c, self.a, self.b))
        for region, role, name in ((self.a, "n", "a"), (self.b, "m", "b"), (self.c, "k", "c")):
            loops = zip(region.strides, self.trips, self.roles, strict=True)
            moves = any(s and t > 1 for s, t, r in loops if r == role)
            _require(not moves, f"{name} moves with {role}", self)

    def extent(self, role: str) -> int:
        """The product of the trips of one role."""
        return math.prod(t for t, r in zip(self.trips, self.roles, strict=False) if r == role)

    @property
    def operands(self) -> tuple[Region, ...]:
        return (self.c, self.a, self.b)


@dataclass(frozen=True)
class Vec:
    """Run straight-line `code` at every point of the loops and write its last register to `dst`.

    Register i is the value of `code[i]`. With `combine` (a symbol of `poly.expr.COMBINERS`) values that meet in one
    element of `dst` are merged; they start from the identity, or from what is there with `accumulate`. Without
    `combine` every point has its own element. Points where a `where` is negative do nothing. All operands are read
    before any element is written.
    """

    dst: Region
    code: tuple[Micro, ...]
    trips: tuple[int, ...]
    combine: str | None = None
    accumulate: bool = False
    where: tuple[Linear, ...] = ()
    wait: Tokens = ()
    post: Tokens = ()
    tag: str = ""

    def __post_init__(self) -> None:
        _require(len(self.trips) <= MAX_VEC_RANK, f"at most {MAX_VEC_RANK} loops, not {len(self.trips)}", self)
        _require(self.combine is None or self.combine in COMBINERS, f"unknown combiner {self.combine!r}", self)
        _require(self.combine is not None or not self.accumulate, "accumulate needs a combiner", self)
        _common(self, self.trips, self.operands)
        for linear in self.linears:
            _require(len(linear.coefficients) == len(self.trips), "one coefficient per loop", self)
        dtypes = self.dtypes
        _require(
            bool(dtypes) and dtypes[-1] == self.dst.dtype,
            f"the code gives {dtypes[-1:]}, dst is {self.dst.dtype}",
            self,
        )

    @property
    def loads(self) -> tuple[tuple[int, Load], ...]:
        """Register and load, in order."""
        return tuple((i, micro) for i, micro in enumerate(self.code) if isinstance(micro, Load))

    @property
    def operands(self) -> tuple[Region, ...]:
        return (self.dst, *(load.region for _, load in self.loads))

    @property
    def linears(self) -> tuple[Linear, ...]:
        indices = tuple(m.value for m in self.code if isinstance(m, Index))
        return (*self.where, *indices, *(g for _, load in self.loads for g in load.guard))

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The dtype of every register. Raises `StreamError` where operands do not fit."""
        found: list[str] = []
        for micro in self.code:
            found.append(self._dtype(micro, found))
        return tuple(found)

    def _dtype(self, micro: Micro, found: list[str]) -> str:
        match micro:
            case Load(region, _, _, gather):
                for part in gather:
                    _require(
                        0 <= part.register < len(found) and part.extent >= 1,
                        f"gather by register {part.register}",
                        self,
                    )
                return region.dtype
            case Imm(_, dtype):
                return dtype
            case Index():
                return "i64"
            case Convert(dtype, arg):
                _require(0 <= arg < len(found) and dtype in DTYPES, f"convert of register {arg} to {dtype!r}", self)
                return dtype
            case Op(name, args):
                _require(name in OPERATORS, f"unknown operator {name!r}", self)
                row = OPERATORS[name]
                _require(
                    len(args) == row.arity and all(0 <= a < len(found) for a in args),
                    f"operands of {name}: {args}",
                    self,
                )
                kinds = {found[a] for a in (args[1:] if name == "select" else args)}
                _require(len(kinds) == 1, f"{name} of {sorted(kinds)}: convert first", self)
                kind = next(iter(kinds))
                _require(row.result != "bits" or kind in BITS, f"{name} of {kind}", self)
                _require(row.result != "float" or is_float(kind), f"{name} of {kind}", self)
                return "bool" if row.result == "bool" else BITS[kind] if row.result == "bits" else kind


Command = Dma | Mm | Vec


@dataclass(frozen=True)
class Rep:
    """Repeat the body `count` times; starts of operands inside move by their `steps`."""

    count: int
    body: tuple[Command | Rep, ...]

    def __post_init__(self) -> None:
        _require(self.count >= 1, f"a count of {self.count}", self)
        _require(len(self.body) >= 1, "an empty body", self)


Item = Command | Rep


def _common(command: Command, trips: tuple[int, ...], regions: tuple[Region, ...]) -> None:
    _require(all(t >= 1 for t in trips), f"a trip below 1 in {trips}", command)
    for region in regions:
        _require(
            len(region.strides) == len(trips),
            f"{region.key} has {len(region.strides)} strides for {len(trips)} loops",
            command,
        )
    for tokens in (command.wait, command.post):
        _require(all(count >= 1 for _, count in tokens), f"a token count below 1 in {tokens}", command)
        _require(len({name for name, _ in tokens}) == len(tokens), f"a semaphore twice in {tokens}", command)


@dataclass(frozen=True)
class Semaphore:
    """A counter that `consumer`, and no other engine, waits on. It never holds more than `limit` tokens."""

    name: str
    consumer: str
    initial: int = 0
    limit: int = MAX_TOKENS


@dataclass(frozen=True)
class Symbol:
    """A buffer in DRAM. `digest`: sha256 of a constant's bytes, which stands for its data in text and in equality."""

    name: str
    dtype: str
    elements: int
    role: SymbolRole = "temporary"
    memory: str = "dram"
    digest: str = ""

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"unknown dtype {self.dtype!r} of {self.name}", self)
        _require(self.role in get_args(SymbolRole), f"unknown role {self.role!r} of {self.name}", self)
        _require(self.elements >= 0, f"{self.name} has {self.elements} elements", self)


def constant(name: str, data: np.ndarray, memory: str = "dram") -> Symbol:
    """The symbol of a constant; pass the array itself in `CommandStream.constants`."""
    return Symbol(name, dtype_name(data.dtype), data.size, "constant", memory, digest_of(data))


def digest_of(data: np.ndarray) -> str:
    """sha256 of an array's bytes in row-major order."""
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()


@dataclass(frozen=True)
class Queue:
    """The commands of one engine, in order."""

    engine: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class CommandStream:
    """A program of an accelerator: DRAM symbols, semaphores and one queue per engine.

    `constants`: data of the symbols of role constant, of their dtype and element count, any shape.
    `str` is the text form, which `poly.accel.stream.parse_stream` reads back.
    """

    name: str
    machine: str
    symbols: tuple[Symbol, ...]
    semaphores: tuple[Semaphore, ...]
    queues: tuple[Queue, ...]
    machine_hash: str = ""
    constants: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for kind, names in (
            ("symbol", [s.name for s in self.symbols]),
            ("semaphore", [s.name for s in self.semaphores]),
            ("queue", [q.engine for q in self.queues]),
        ):
            _require(len(set(names)) == len(names), f"a {kind} twice", self)
        for name, data in self.constants.items():
            symbol = self.symbol.get(name)
            _require(symbol is not None and symbol.role == "constant", f"data for {name!r}, which is no constant", self)
            fits = symbol is not None and data.size == symbol.elements and data.dtype == numpy_dtype(symbol.dtype)
            _require(fits, f"data of {name!r} has another dtype or size than its symbol", self)

    @cached_property
    def symbol(self) -> Mapping[str, Symbol]:
        """Symbols by name."""
        return {s.name: s for s in self.symbols}

    @cached_property
    def semaphore(self) -> Mapping[str, Semaphore]:
        """Semaphores by name."""
        return {s.name: s for s in self.semaphores}

    @cached_property
    def queue(self) -> Mapping[str, Queue]:
        """Queues by engine."""
        return {q.engine: q for q in self.queues}

    def __str__(self) -> str:
        from poly.accel.stream import print_stream

        return print_stream(self)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{q.engine} {command_count(q.items)}" for q in self.queues)
        what = f"{sizes or 'no commands'}; {len(self.semaphores)} semaphores"
        return f"<CommandStream {self.name} for {self.machine}: {what}>"

    def _repr_html_(self) -> str:
        from poly.pictures import text_html

        return text_html(str(self))


def command_count(items: tuple[Item, ...]) -> int:
    """Commands that run, repetitions counted."""
    return sum(i.count * command_count(i.body) if isinstance(i, Rep) else 1 for i in items)
