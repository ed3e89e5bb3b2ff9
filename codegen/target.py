"""What the emitter asks of a core, from its machine's description: LLVM's names of features, vectors, lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from poly.codegen.host import is_arm, is_x86
from poly.expr import DOT_BF16
from poly.machine import USUAL_LINE, Machine

# Features that each instruction of `DOTS` needs.
_DOT_FEATURES: Final[Mapping[tuple[str, int], tuple[set[str], ...]]] = {
    ("dot2", 16): ({"avx512bw"},), ("dot2", 8): ({"avx2"},),
    (DOT_BF16, 16): ({"avx512bf16"},),
    ("dot4", 16): ({"avx512vnni"},), ("dot4", 8): ({"avxvnni"}, {"avx512vnni", "avx512vl"}),
}  # fmt: skip
_MATRIX_FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "amx-tile": ("tilezero", "tileloadd64", "tileloaddt164", "tilestored64"),
    "amx-int8": ("tdpbusd", "tdpbsud", "tdpbssd", "tdpbuud"), "amx-bf16": ("tdpbf16ps",),
}  # fmt: skip
MANY_REGISTERS = 32  # vector registers: what LLVM keeps of addresses and of squares costs no spills


@dataclass(frozen=True)
class Target:
    """`fma`, `half`: it has fused multiply-add, conversions of f16; `halves`: arithmetic on it. `table`: 32-bit numbers
    among which one instruction chooses for every lane (0: it has no such instruction). `scales`: it has instructions
    for `Ops.scaled` and `Ops.limited`, on vectors of 64 bytes. `dots`: lanes of its instructions for operators of
    `poly.expr.DOTS`.

    `vector`, `line`: bytes of one. `masked_stores`: they are cheap. `least_masked_load`: bytes of the smallest elements
    that it loads under a mask at once. `gathers`: one instruction that loads from many places is sooner than loads.
    `matrix`: instructions of its matrix unit. `byte_table`: one instruction chooses among 128 bytes for each of 64.
    """

    x86: bool = False
    fma: bool = False
    half: bool = False
    halves: bool = False
    table: int = 0
    scales: bool = False
    dots: Mapping[str, int] = field(default_factory=dict[str, int])
    vector: int = 16
    line: int = USUAL_LINE
    masked_stores: bool = False
    least_masked_load: int = 4
    many_registers: bool = False
    gathers: bool = False
    matrix: frozenset[str] = frozenset()
    byte_table: bool = False


def target_of(machine: Machine) -> Target:
    """A machine's target. Of its instructions for `DOTS` those that its features have: LLVM ends the process where it
    meets another.
    """
    has = machine.features
    dots = {d: n for d, n in machine.dots.items() if any(one <= has for one in _DOT_FEATURES.get((d, n), ()))}
    x86, arm = is_x86(machine.triple), is_arm(machine.triple)
    any_size = "avx512vl" in has  # masks of bits, for elements of any size
    return Target(
        x86=x86, fma="fma" in has or arm, half="f16c" in has or not x86, halves="avx512fp16" in has,
        table=16 if "avx512f" in has else 8 if "avx2" in has else 0, scales={"avx512f", "avx512dq"} <= has,
        dots=dots, vector=machine.lanes(1), line=machine.line, masked_stores=any_size,
        least_masked_load=1 if any_size else 4, many_registers=machine.vector_registers >= MANY_REGISTERS,
        matrix=frozenset(i for f, names in _MATRIX_FEATURES.items() if x86 and f in has for i in names),
        byte_table=machine.looks_up_bytes,
        gathers="avx2" in has and any(e.cost.get("gather") for e in machine.engines_of("core")[:1]),
    )  # fmt: skip
