"""What the emitter asks of a core, from its machine's description: LLVM's names of features, vectors, lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from poly.codegen.host import is_arm, is_x86
from poly.machine import USUAL_LINE, Machine

MANY_REGISTERS = 32  # vector registers: what LLVM keeps of addresses and of squares costs no spills


@dataclass(frozen=True)
class Target:
    """`fma`, `half`: it has fused multiply-add, conversions of f16. `table`: 32-bit numbers among which one instruction
    chooses for every lane (0: it has no such instruction). `scales`: it has instructions for `Ops.scaled` and
    `Ops.limited`, on vectors of 64 bytes. `dots`: lanes of its instructions for operators of `poly.expr.DOTS`.

    `vector`, `line`: bytes of one. `masked_stores`: they are cheap. `least_masked_load`: bytes of the smallest elements
    that it loads under a mask at once.
    """

    x86: bool = False
    fma: bool = False
    half: bool = False
    table: int = 0
    scales: bool = False
    dots: Mapping[str, int] = field(default_factory=dict[str, int])
    vector: int = 16
    line: int = USUAL_LINE
    masked_stores: bool = False
    least_masked_load: int = 4
    many_registers: bool = False


def target_of(machine: Machine) -> Target:
    """A machine's target."""
    has = frozenset(f for e in machine.engines_of("core")[:1] for f in e.features)
    x86, arm = is_x86(machine.triple), is_arm(machine.triple)
    any_size = "avx512vl" in has  # masks of bits, for elements of any size
    return Target(
        x86=x86, fma="fma" in has or arm, half="f16c" in has or not x86,
        table=16 if "avx512f" in has else 8 if "avx2" in has else 0, scales={"avx512f", "avx512dq"} <= has,
        dots=machine.dots, vector=machine.lanes(1), line=machine.line, masked_stores=any_size,
        least_masked_load=1 if any_size else 4, many_registers=machine.vector_registers >= MANY_REGISTERS,
    )  # fmt: skip
