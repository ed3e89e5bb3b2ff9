"""The machine this process runs on, described as data."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from poly.expr import ALIKE, DOT_BF16
from poly.machine import (
    MATRIX_TILE,
    MATRIX_TILES,
    USUAL_BYTES_PER_CYCLE,
    USUAL_CACHE,
    USUAL_CORE,
    Engine,
    Machine,
    Memory,
)

# What a model of time starts from, for a server core of today with wide vectors: paths grow with them (decision 0041).
_WIDE_BYTES_PER_CYCLE = {0: 10, 1: 128, 2: 56, 3: 28}
_WIDE_CORE = {**USUAL_CORE, "page": 64, "near": 64, "overlap": 3, "remote": 8}
# Of cores with wide vectors and tiles, whose last cache is large and a mesh away (decisions 0085, 0087, 0099, 0102,
# 0105, 0107); which gather an element in a cycle, where a Zen 5 takes two (0089).
_MESH = frozenset(("avx512fp16", "amx-tile"))
_MESH_BYTES_PER_CYCLE = {0: 4, 1: 128, 2: 48, 3: 9}
_MESH_CORE = {
    **_WIDE_CORE, "overlap": 4, "remote": 3, "near": 112, "sums": 4, "afar": 1, "crossing": 30, "asked": 8,
    "anew": 10, "piece": 3, "guarded": 10, "unpadded": 110, "gather": 1,
}  # fmt: skip
_TILED, _RAPIDS = "sapphirerapids", "rapids"  # the first core that has tiles; how the names of all of them end
_WIDE = 16  # f32 lanes
# The system call, its request and the state that is asked for.
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
_OWN = 2  # levels that a core has for itself
_CPU_DIRECTORY = Path("/sys/devices/system/cpu")


@cache
def host_machine() -> Machine:
    """The host: memories dram, l3, l2, l1 (caches, as far as they exist) and reg (whole vectors), one engine `core`.

    `core.lanes` are f32 lanes of a vector; `core.features` are LLVM's feature names, absent ones with a minus.
    """
    import llvmlite.binding as llvm

    flags = dict(llvm.get_host_cpu_features())
    features = tuple(name if on else f"-{name}" for name, on in sorted(flags.items()))
    found = machine_of_features(
        host_cpu(),
        features,
        str(llvm.get_process_triple()),
        cache_sizes(),
        os.cpu_count() or 1,  # not those that this process may use: plans must not differ with where it runs
        clock_mhz(),
    )
    return found if found.matrix_unit is None or tiles_granted() else without_matrix_unit(found)


@cache
def host_cpu() -> str:
    """LLVM's name for the host. Where a guest hides its model LLVM takes an older core that lacks features of this one,
    and orders instructions for that: sums of the largest register tiles go to the stack then (0102).
    """
    import llvmlite.binding as llvm

    return named_cpu(str(llvm.get_host_cpu_name()), {n for n, on in llvm.get_host_cpu_features().items() if on})


def named_cpu(found: str, features: Collection[str]) -> str:
    """The name to make code for, where LLVM has found one and these features."""
    return found if found.endswith(_RAPIDS) or not _MESH <= {*features} else _TILED


def is_x86(triple: str) -> bool:
    """Whether a target triple is one of x86; an empty one stands for this process, as it does for LLVM."""
    return _of(triple).startswith(("x86", "i"))


def is_arm(triple: str) -> bool:
    """Whether a target triple is one of 64-bit ARM; an empty one stands for this process."""
    return _of(triple).startswith(("aarch64", "arm64"))


def _of(triple: str) -> str:
    if triple:
        return triple
    import llvmlite.binding as llvm

    return str(llvm.get_process_triple())


def machine_of_features(
    cpu: str, features: tuple[str, ...], triple: str, caches: dict[int, int], cores: int, clock: int
) -> Machine:
    """A CPU from its feature names; `caches`: bytes by level. What it has of vectors follows from the features."""
    lanes, registers = _vectors(frozenset(features), triple)
    rates, core = _rates(lanes, frozenset(features))
    levels = tuple(
        Memory(f"l{k}", caches[k], "cache", align=64, line=64, bytes_per_cycle=rates.get(k, rates[0]), shared=k > _OWN)
        for k in sorted(caches, reverse=True)
    )
    dram = Memory("dram", None, "dram", align=64, line=64, bytes_per_cycle=rates[0])
    memories = (dram, *levels, Memory("reg", registers, "register"))
    engine = Engine("core", "core", lanes=lanes, features=features, cost=core, dots=_dots(frozenset(features)))
    unit, tiles = _matrix_unit(frozenset(features))
    return Machine(
        f"cpu-{cpu}", "cpu", (*memories, *tiles), (engine, *unit), clock_mhz=clock, cores=cores, triple=triple, cpu=cpu
    )


def _matrix_unit(features: frozenset[str]) -> tuple[tuple[Engine, ...], tuple[Memory, ...]]:
    """What multiplies tiles of matrices, and the memory of its tiles, where there are such."""
    if not features >= {"amx-tile", "amx-int8"}:
        return (), ()
    rows, cols = MATRIX_TILE
    operators = ("dot4", *ALIKE, *((DOT_BF16,) if features >= {"amx-bf16", "avx512bf16"} else ()))
    tile = rows * cols * 4
    tiles = Memory("tiles", MATRIX_TILES * tile, "accumulator", align=tile)
    unit = Engine(
        "matrix", "array", reads=("tiles", "tiles"), writes=("tiles",), rows=rows, cols=cols,
        cost=dict.fromkeys(operators, rows),
        dots=tuple((name, cols) for name in operators), features=("amx-tile", "amx-int8"),
    )  # fmt: skip
    return (unit,), (tiles,)


def without_matrix_unit(machine: Machine) -> Machine:
    """The same machine without what multiplies tiles of matrices."""
    unit = machine.matrix_unit
    if unit is None:
        return machine
    memories = tuple(m for m in machine.memories if m.name not in unit.writes)
    return replace(machine, memories=memories, engines=tuple(e for e in machine.engines if e is not unit))


@cache
def tiles_granted() -> bool:
    """Whether this process may use tiles of matrices: Linux is asked once, for all of its threads."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    import ctypes

    granted = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA)
    return granted == 0


def _rates(lanes: int, features: frozenset[str]) -> tuple[Mapping[int, int], Mapping[str, int]]:
    """Bytes a cycle out of each level of the caches and of memory (0), and the numbers of a core, by its kind."""
    if lanes < _WIDE:
        return USUAL_BYTES_PER_CYCLE, USUAL_CORE
    return (_MESH_BYTES_PER_CYCLE, _MESH_CORE) if features >= _MESH else (_WIDE_BYTES_PER_CYCLE, _WIDE_CORE)


def _vectors(features: frozenset[str], triple: str) -> tuple[int, int]:
    """f32 lanes and number of vector registers."""
    if "avx512f" in features and "avx512vl" in features:
        return 16, 32
    if "avx" in features:
        return 8, 16
    if is_arm(triple):
        return 4, 32
    return 4, 16


def _dots(features: frozenset[str]) -> tuple[tuple[str, int], ...]:
    """Lanes of sums of two products of 16 bits, and of four of 8."""
    pairs = 16 if "avx512bw" in features else 8 if "avx2" in features else 0
    fours = 16 if "avx512vnni" in features else 8 if "avxvnni" in features else 0
    bf16 = pairs if features >= {"amx-bf16", "avx512bf16"} else 0  # beside a matrix unit; others widen operands
    found = (("dot2", pairs), ("dot4", fours), (DOT_BF16, bf16))
    return tuple((name, lanes) for name, lanes in found if lanes)


def cache_sizes() -> dict[int, int]:
    """Bytes of the data and unified caches of core 0 by level; usual sizes where the system does not tell."""
    found: dict[int, int] = {}
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    for index in sorted((_CPU_DIRECTORY / "cpu0/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            size = (index / "size").read_text().strip()
            found[int((index / "level").read_text())] = int(size[:-1]) * units[size[-1]]
        except (OSError, ValueError, KeyError):
            continue
    return found or {1: USUAL_CACHE, 2: 1024**2}


def clock_mhz() -> int:
    """The clock as the system tells it, mostly without boost; 3000 where it does not. Not measured: plans and what is
    kept of them must not differ from run to run."""
    try:
        return int((_CPU_DIRECTORY / "cpu0/cpufreq/cpuinfo_max_freq").read_text()) // 1000
    except (OSError, ValueError):
        pass
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
        return int(float(next(line for line in lines if line.startswith("cpu MHz")).split(":")[1]))
    except (OSError, ValueError, StopIteration):
        return 3000
