"""`Machine`: memories, engines and their costs as data, one schema for a CPU and for an accelerator.

A description is a TOML file (`poly.machine_text`), a profile shipped by a package under the entry-point group
`polyloom.machines`, or the host's own (made by `poly.codegen.host`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Final, Literal

from poly.arguments import shown
from poly.errors import MachineError
from poly.expr import OPERATORS
from poly.features import known_features
from poly.locks import cached_property

EngineKind = Literal["core", "dma", "array", "vector"]
# Of a core's matrix unit: rows and elements of 4 bytes of a tile, and tiles.
MATRIX_TILE: Final = (16, 16)
MATRIX_TILES: Final = 8
BYTES: Final = 256  # elements of a table with one for each byte
# What a CPU has where its description does not say: vector registers, bytes of the nearest cache, of a line.
USUAL_REGISTERS, USUAL_CACHE, USUAL_LINE = 16, 32768, 64
# Sustained bytes a cycle out of each cache level, and out of memory (0).
USUAL_BYTES_PER_CYCLE: Final[Mapping[int, int]] = {0: 6, 1: 64, 2: 28, 3: 14}
# The numbers of a core, usual values, and in comments: meaning and unit (a decision), then who reads it, modules of
# `poly.scheduling` if nothing else is said. `poly.scheduling.cpu_core.Core` has them by the same names.
USUAL_CORE: Final[Mapping[str, int]] = {
    "fma": 2,  # multiply-adds of vectors a cycle: cpu_cost, and whoever bounds a time by operations alone
    "load": 2,  # vectors loaded a cycle: cpu_cost, shared_sums
    "store": 1,  # vectors stored a cycle: cpu_cost
    "issue": 3,  # operations on vectors of all kinds together a cycle: cpu_across
    "latency": 4,  # cycles until the next multiply-add can use one's result: cpu_cost, cpu_rating
    "reduce": 5,  # cycles to reduce the lanes of a vector and hand the value to all of another: cpu_across
    "page": 192,  # bytes that a piece costs besides its lines in a page of its own (0041): cpu_operand, cpu_reuse
    "near": 0,  # bytes that a piece costs besides its lines as it comes into the first cache (0041): cpu_operand
    "overlap": 4,  # norm of what hides behind what takes longest (0041), one less for what comes from a last cache that
    # is `afar` (0107): cpu_cost
    "remote": 2,  # bytes a cycle of what another core wrote (0021, 0056): cpu_threads, cpu_rating
    "pages": 64,  # whose addresses it knows without waiting, at least what a first level of a translation buffer holds
    # of the cores we know (of Zen 5: 96): cpu_operand, cpu_permute
    "turning": 3,  # cycles for every vector of a register tile that is turned before it is stored (0077): cpu_tile_work
    "lost": 16,  # cycles for every line that it stores a piece of, if the first cache has lost it: cpu_tile_work
    "gather": 0,  # cycles of an element where one instruction loads lanes from many places, 0 where loads one by one
    # are sooner done (0089): codegen/target
    "sums": 0,  # cycles for every vector of sums that comes and goes with a block of the reduction (0085): cpu_cost
    "afar": 0,  # 1 where the last cache is as slow as memory elsewhere: it is asked ahead, too, and holds what a kernel
    # starts with (0085): models of contractions, reductions and rows
    "crossing": 0,  # hundredths of a cycle that a vector of a register tile's operand costs besides its loads where it
    # lies in two lines (0087): cpu_cost
    "asked": 0,  # steps of a register tile's reduction before which lanes that lie apart are asked for where the first
    # cache does not hold those of all steps; 0: not at all (0099): cpu_block_ahead
    "anew": 0,  # cycles of a row of a register tile: of results that a core's own caches do not hold (0107), of partial
    # sums in a page of its own, of more than a core knows, where tiles go on below it (0102): cpu_tile_work
    "piece": 0,  # cycles of a copied piece that is as long as a register tile has rows, besides those for its elements;
    # 0: as many as vectors of such a length take (0107): cpu_tile_work
    "guarded": 14,  # tenths of an element that a copy with padding moves a cycle (0085): cpu_tile_work, cpu_rating
    "unpadded": 100,  # percent of the cycles that the model gives a window with its padding: one without is sooner done
    # up to there (0105): cpu_padding
    "streamed": 0,  # 1 for parts of a model whose constants together do not stay in a core's own caches (0094):
    # cpu_block_ahead
}
# The least of every number in a description, by its field; 0 where that has a meaning: not said, or none.
_LEAST: Final[Mapping[str, int]] = {
    "clock_mhz": 1, "cores": 1, "capacity": 1, "align": 1, "banks": 1, "bytes_per_cycle": 0, "latency": 0, "line": 0,
    "rows": 0, "cols": 0, "lanes": 0, "setup": 0, "fill": 0,
}  # fmt: skip
# Of rates, and what numbers are divided by; else 0
_LEAST_COST: Final[Mapping[str, int]] = {
    "fma": 1, "load": 1, "store": 1, "issue": 1, "latency": 1, "overlap": 1, "remote": 1, "guarded": 1,
}  # fmt: skip
_LONGEST_ELEMENT: Final = 8  # bytes


@dataclass(frozen=True)
class Memory:
    """A memory space. `capacity` in bytes, None for unbounded (DRAM); `align` in bytes.

    `kind` "register" means: addresses are constants after unrolling, and the capacity counts whole vectors. `shared`:
    whether all cores have a cache together; None: where it is the last of several.
    """

    name: str
    capacity: int | None = None
    kind: Literal["dram", "cache", "scratchpad", "accumulator", "register"] = "scratchpad"
    align: int = 1
    banks: int = 1
    bytes_per_cycle: int = 0
    latency: int = 0
    line: int = 0
    dtypes: tuple[str, ...] = ()
    shared: bool | None = None

    def __post_init__(self) -> None:
        _check_numbers(self, f"memory {self.name}")


@dataclass(frozen=True)
class Engine:
    """What executes commands. `paths`: (source, destination) memory pairs of a DMA.

    `reads` and `writes`: the memories that an array's operands (in the order a, b) and results, or a vector engine's
    operands, may lie in. `rows`, `cols`: of an array; `lanes`: elements a cycle of a vector engine or f32 lanes of a
    core; `cost`: of a core by the names of `USUAL_CORE`, else by operator; `features`: LLVM's names; `dots`:
    instructions of a core for `poly.expr.DOTS`, with their lanes; of a core's matrix unit, an array, with the steps
    of a sum that one command makes.
    """

    name: str
    kind: EngineKind
    paths: tuple[tuple[str, str], ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    rows: int = 0
    cols: int = 0
    lanes: int = 0
    setup: int = 0
    fill: int = 0
    bytes_per_cycle: int = 0
    dtypes: tuple[tuple[str, str], ...] = ()
    cost: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    dots: tuple[tuple[str, int], ...] = ()

    def products(self, operator: str = "") -> float:
        """Instances of an operator a cycle that an array does, or elements that it moves."""
        return self.rows * self.cols * dict(self.dots).get(operator, 1) / self.cost.get(operator, self.rows)

    def __post_init__(self) -> None:
        where = f"engine {self.name}"
        _check_numbers(self, where)
        known = USUAL_CORE if self.kind == "core" else OPERATORS
        for name, value in self.cost.items():
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"{near[0]}, it seems" if near else f"it has {', '.join(known)}"
                raise MachineError(f"{self.kind} has no cost {name!r}", where=where, hint=hint)
            _check_number(f"cost of {name}", value, _LEAST_COST.get(name, 0), where)
        for name, value in self.dots:
            _check_number(f"lanes of {name}", value, 1, where)
        if self.kind in ("core", "vector"):
            _check_number("lanes", self.lanes, 1, where)
        if self.kind == "core" and self.lanes & (self.lanes - 1):  # LLVM aligns vectors to what they hold, or ends
            raise MachineError(f"lanes is {self.lanes}", where=where, hint="a power of 2")


@dataclass(frozen=True)
class Machine:
    """A target. Raises `MachineError` when built from parts that do not fit together."""

    name: str
    kind: Literal["cpu", "accelerator"]
    memories: tuple[Memory, ...]
    engines: tuple[Engine, ...]
    clock_mhz: int = 1000
    cores: int = 1
    triple: str = ""
    cpu: str = ""

    def __post_init__(self) -> None:
        self._check_kind()
        known = {m.name for m in self.memories}
        if len(known) != len(self.memories):
            raise MachineError("two memories of one name", where=f"machine {self.name}")
        for engine in self.engines:
            used = {m for path in engine.paths for m in path} | set(engine.reads) | set(engine.writes)
            if not used <= known:
                raise MachineError(
                    f"engine {engine.name} uses unknown memories {sorted(used - known)}", where=f"machine {self.name}"
                )
            if engine.kind == "array" and (engine.rows < 1 or engine.cols < 1):
                raise MachineError(f"array {engine.name} has no rows or columns", where=f"machine {self.name}")
        if not any(m.kind == "dram" for m in self.memories):
            raise MachineError("no memory of kind dram", where=f"machine {self.name}")
        if self.caches[: len(self.own_caches)] != self.own_caches or bool(self.caches) != bool(self.own_caches):
            names = ", ".join(m.name for m in self.caches if m not in self.own_caches)
            raise MachineError(
                f"shared caches {names} are not those behind a core's own", where=f"machine {self.name}",
                hint="shared = true only for the largest caches, never for all",
            )  # fmt: skip

    def _check_kind(self) -> None:
        """Numbers that every machine needs, or this kind of machine."""
        _check_numbers(self, f"machine {self.name}")
        short = next((m for m in self.memories if 0 < m.line < _LONGEST_ELEMENT), None)
        if self.kind == "cpu" and short is not None:
            hint = f"{_LONGEST_ELEMENT} at least: a line holds an element"
            raise MachineError(f"line is {short.line}", where=f"memory {short.name}", hint=hint)
        if self.kind == "cpu" and self.registers is not None and self.registers.capacity == 1:
            hint = "two at least: a sum and what is added"
            raise MachineError("capacity is 1", where=f"memory {self.registers.name}", hint=hint)
        if self.kind == "accelerator" and self.cores != 1:
            hint = "cores = 1; what works at the same time are engines"
            raise MachineError("an accelerator has one core", where=f"machine {self.name}", hint=hint)
        if self.kind == "accelerator" and self.engines_of("dma"):
            for memory in (m for m in self.memories if m.kind == "dram"):
                _check_number("bytes_per_cycle", memory.bytes_per_cycle, 1, f"memory {memory.name}")

    @cached_property
    def memory(self) -> Mapping[str, Memory]:
        """Memories by name."""
        return {m.name: m for m in self.memories}

    @cached_property
    def engine(self) -> Mapping[str, Engine]:
        """Engines by name."""
        return {e.name: e for e in self.engines}

    def engines_of(self, kind: EngineKind) -> tuple[Engine, ...]:
        return tuple(e for e in self.engines if e.kind == kind)

    @cached_property
    def dram(self) -> Memory:
        """The main memory; the first one where there are several."""
        return next(m for m in self.memories if m.kind == "dram")

    @property
    def registers(self) -> Memory | None:
        """The register space, if the machine has one."""
        return next((m for m in self.memories if m.kind == "register"), None)

    @property
    def register_space(self) -> str:
        """The name of the register space; where there is none, of the nearest memory."""
        return self.registers.name if self.registers is not None else self.cache_space(0)

    @property
    def vector_registers(self) -> int:
        """Vector registers of a core, `USUAL_REGISTERS` where the description does not say."""
        return self.registers.capacity or USUAL_REGISTERS if self.registers is not None else USUAL_REGISTERS

    @cached_property
    def caches(self) -> tuple[Memory, ...]:
        """The caches, the smallest first: it is the nearest to a core."""
        return tuple(sorted((m for m in self.memories if m.kind == "cache"), key=lambda m: (m.capacity or 0, m.name)))

    @cached_property
    def own_caches(self) -> tuple[Memory, ...]:
        """The caches that every core has for itself, the smallest first."""
        last = self.caches[-1] if len(self.caches) > 1 else None
        return tuple([m for m in self.caches if not (m is last if m.shared is None else m.shared)])

    @property
    def nearest_cache(self) -> int:
        """Bytes of the nearest cache, `USUAL_CACHE` where the description does not say."""
        return next((m.capacity for m in self.caches if m.capacity), USUAL_CACHE)

    @property
    def line(self) -> int:
        """Bytes of the longest line of its memories, `USUAL_LINE` where the description does not say."""
        return max((m.line for m in self.memories), default=0) or USUAL_LINE

    def cache_space(self, level: int) -> str:
        """The name of a cache, 0 for the nearest; of the last one where there are fewer, of main memory without any."""
        return self.caches[min(level, len(self.caches) - 1)].name if self.caches else self.dram.name

    def lanes(self, dtype_bytes: int) -> int:
        """Elements of one vector of a core or of the vector engine."""
        core = next((e for e in self.engines if e.kind in ("core", "vector")), None)
        return max(1, core.lanes * 4 // dtype_bytes) if core and core.kind == "core" else (core.lanes if core else 1)

    @cached_property
    def features(self) -> frozenset[str]:
        """A core's features, with all that they need."""
        return known_features(f for e in self.engines_of("core")[:1] for f in e.features)

    @cached_property
    def matrix_unit(self) -> Engine | None:
        """What multiplies tiles of matrices in a core, for the operators that its `dots` name: an array of the size for
        which there are instructions, of which the core has the features.
        """
        known = self.features if self.kind == "cpu" else frozenset[str]()
        units = (e for e in self.engines_of("array") if e.features and known.issuperset(e.features) and e.writes)
        return next((e for e in units if (e.rows, e.cols) == MATRIX_TILE), None)

    @cached_property
    def dots(self) -> Mapping[str, int]:
        """Lanes of a core's instructions for `poly.expr.DOTS`, by name, as far as it has them."""
        return {name: lanes for e in self.engines_of("core") for name, lanes in e.dots}

    @cached_property
    def dot_operators(self) -> frozenset[str]:
        """The operators of `poly.expr.DOTS` that sums are made of: those of a core and of its matrix unit."""
        return frozenset((*self.dots, *(name for name, _ in (self.matrix_unit.dots if self.matrix_unit else ()))))

    @cached_property
    def looks_up_bytes(self) -> bool:
        """Whether a core has instructions that choose among many bytes for each byte of a vector."""
        return self.kind == "cpu" and "avx512vbmi" in self.features

    @cached_property
    def tile_spaces(self) -> frozenset[str]:
        """The memories of a matrix unit's tiles, which have no addresses, as registers have none."""
        return frozenset(self.matrix_unit.writes if self.matrix_unit else ())

    @cached_property
    def hash(self) -> str:
        """sha256 over the description, the part of every cache key that names the target."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def __repr__(self) -> str:
        parts = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"Machine({parts})"

    def __str__(self) -> str:
        """The description as a TOML file, which `read_machine` takes."""
        from poly.machine_text import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        from poly.pictures import machine_html

        return machine_html(self)


def _check_numbers(part: Machine | Memory | Engine, where: str) -> None:
    for name in (f.name for f in fields(part) if f.name in _LEAST):
        value = getattr(part, name)
        if name != "capacity" or value is not None:  # unbounded
            _check_number(name, value, _LEAST[name], where)


def _check_number(name: str, value: object, least: int, where: str) -> None:
    if type(value) is not int or value < least:
        hint = "a positive integer" if least else "an integer, not negative"
        raise MachineError(f"{name} is {shown(value)}", where=where, hint=hint)
