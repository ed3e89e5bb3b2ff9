"""The inner loop of a register tile, in assembly: full-width multiply-adds, all of them, and nothing spilled."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from poly.codegen.function import lower
from poly.codegen.host import machine_of_features
from poly.codegen.jit import assembly
from poly.frontend.einsum import einsum_program
from poly.frontend.notation import parse
from poly.machine import Machine
from poly.program import Program
from poly.scheduling.cpu import schedule_for_cpu

X86 = "x86_64-unknown-linux-gnu"
CACHES = {1: 32768, 2: 1 << 20, 3: 1 << 25}
AVX2 = machine_of_features("haswell", ("avx", "avx2", "fma", "sse4.2"), X86, CACHES, 1, 3000)
AVX512 = machine_of_features(
    "skylake-avx512", ("avx", "avx2", "avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"), X86, CACHES, 1, 3000
)
FMA = re.compile(r"\tvfn?madd\w*ps\t(.*)")


def inner_loops(text: str) -> list[list[str]]:
    """The instructions between a label and the jump back to it, for loops with no label inside."""
    found: list[list[str]] = []
    label, body = "", list[str]()
    for line in text.splitlines():
        if match := re.match(r"(\.LBB\w+):", line):
            label, body = match[1], []
            continue
        body.append(line)
        if re.match(rf"\tj\w+\t{re.escape(label)}$", line) and label:
            found.append(list(body))
            label = ""
    return found


def tile_loops(machine: Machine, program: Program) -> list[list[str]]:
    """The inner loops with multiply-adds of the policy's kernel for a machine."""
    tree = schedule_for_cpu(program, machine).lower()
    text = assembly(lower(tree, machine, "tile").ir, machine)
    return [body for body in inner_loops(text) if any(FMA.match(line) for line in body)]


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("spec", ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "bik,bkj->bij"])
def test_multiply_adds_fill_the_registers_and_nothing_is_spilled(machine: Machine, spec: str) -> None:
    shapes = ((2, 384, 256), (2, 256, 384)) if "b" in spec else ((384, 384), (384, 384))
    assert full_tiles(machine, tile_loops(machine, einsum_program(spec, shapes, ["f32"] * len(shapes))))


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("kernel, channels, size, stride", [(3, 64, 32, 1), (1, 256, 16, 1), (3, 64, 32, 2)])
def test_convolutions_spill_nothing_either(
    machine: Machine, kernel: int, channels: int, size: int, stride: int
) -> None:
    """Valid convolutions of many channels: the policy's choice of lanes, windows and packing, whatever it is."""
    side = stride * (size - 1) + kernel
    program = parse(
        f"Y[o, h, v] += X[c, {stride}*h + r, {stride}*v + s] * W[o, c, r, s]",
        X=(channels, side, side), W=(channels, channels, kernel, kernel),
    )  # fmt: skip
    assert full_tiles(machine, tile_loops(machine, program))


def full_tiles(machine: Machine, loops: list[list[str]]) -> bool:
    """Whether loops are full-width multiply-adds to sums in registers, nothing else in memory than operands, and the
    largest has sums in half of the registers at least.
    """
    register = "%zmm" if machine.lanes(4) == 16 else "%ymm"
    assert machine.registers is not None and machine.registers.capacity is not None
    largest = 0
    assert loops
    for body in loops:
        operands = [match[1] for line in body if (match := FMA.match(line))]
        assert all(register in text for text in operands)
        assert not [line for line in body if re.search(r"\(%rsp[,)]", line)]  # nothing of the tile is in memory
        sums = Counter(text.rsplit(", ", 1)[-1] for text in operands)
        assert len(set(sums.values())) == 1  # each step of the reduction adds to every sum
        largest = max(largest, len(sums))
    return 2 * largest >= machine.registers.capacity
