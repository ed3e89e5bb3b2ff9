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
AVX512 = machine_of_features(  # for older Intel cores LLVM loads further ahead: a sum of 9 x 3 lies in memory
    "sapphirerapids", ("avx", "avx2", "avx512f", "avx512vl", "avx512dq", "avx512bw", "fma"), X86, CACHES, 1, 3000
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
@pytest.mark.parametrize("spec", ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ki,jk->ij", "bik,bkj->bij"])
def test_multiply_adds_fill_the_registers_and_nothing_is_spilled(machine: Machine, spec: str) -> None:
    shapes = ((2, 384, 256), (2, 256, 384)) if "b" in spec else ((384, 384), (384, 384))
    assert full_tiles(machine, tile_loops(machine, einsum_program(spec, shapes, ["f32"] * len(shapes))))


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("rows, columns, depth", [(484, 802, 46), (326, 187, 530), (326, 187, 94)])
def test_steps_that_only_two_divides_spill_nothing(machine: Machine, rows: int, columns: int, depth: int) -> None:
    """A body of two steps with three vectors each has one more loaded than the largest tile leaves registers for. In
    columns that are left over, a mask takes one, too, where cores have no registers for masks."""
    program = einsum_program("ik,jk->ij", ((rows, depth), (columns, depth)), ["f32", "f32"])
    for body in tile_loops(machine, program):
        if any("vmaskmov" in line for line in body):
            continue
        assert sum(1 for line in body if FMA.match(line)) < 24 or not spills(body)


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize(
    "spec, shapes",
    [
        ("ijk,kl->ijl", ((96, 96, 96), (96, 64))),
        ("ijk,jl->ilk", ((96, 96, 96), (96, 64))),
        ("ijk,jl,kl->il", ((96, 96, 96), (96, 64), (96, 64))),
        ("aebf,dfce->abcd", ((16, 16, 16, 16), (16, 16, 16, 16))),
        ("ik,kj->ij", ((127, 255), (255, 513))),
        ("ik,jk->ij", ((129, 257), (65, 257))),
    ],
    ids=["ttm", "ttm_middle", "mttkrp", "tccg", "odd", "odd_nt"],
)  # fmt: skip
def test_other_contractions(machine: Machine, spec: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert full_tiles(machine, tile_loops(machine, einsum_program(spec, shapes, ["f32"] * len(shapes))), edges=True)


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_loops_of_a_softmax(machine: Machine) -> None:
    """Whole vectors in all of them, exp included, and nothing stored on the stack (what stays may be read from it), but
    for a vector or two where sums of both passes take much of sixteen registers.
    """
    text = "m[i] max= x[i, j]\ne[i, j] = exp(x[i, j] - m[i])\ns[i] += e[i, j]\ny[i, j] = e[i, j] / s[i]"
    program = parse("\n".join(["input x: f32[48, 512]", "temporary m: f32[48]", "temporary e: f32[48, 512]",
                               "temporary s: f32[48]", "output y: f32[48, 512]", text]))  # fmt: skip
    code = assembly(lower(schedule_for_cpu(program, machine).lower(), machine, "softmax").ir, machine)
    blocks = re.split(r"\n(?:\.LBB.*|\tj.*)", code)  # the passes are branches of one loop
    exponentials = [b.splitlines() for b in blocks if any(FMA.match(line) for line in b.splitlines())]
    maxima = [b.splitlines() for b in blocks if "\tvmax" in b and "%xmm" not in b]
    assert exponentials and maxima
    arithmetic = re.compile(r"\tv(fn?madd\w*|max|add|sub|mul|div)ps\t")
    for body in exponentials + maxima:
        assert len([line for line in spills(body) if line.endswith(")")]) <= (2 if machine == AVX2 else 0)
        assert all(wide(machine) in line for line in body if arithmetic.match(line))


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


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_what_is_packed_is_loaded_once_between_rows_that_are_asked_for(machine: Machine) -> None:
    """Rows come from memory and are asked for a tile ahead: LLVM loads memory again behind every prefetch."""
    loops = tile_loops(machine, einsum_program("ijk,kl->ijl", ((128, 128, 128), (128, 32)), ["f32", "f32"]))
    asking = [body for body in loops if any("\tprefetch" in line for line in body)]
    assert asking
    for body in asking:
        assert not any("(%" in match[1] for line in body if (match := FMA.match(line)))


def wide(machine: Machine) -> str:
    """How the machine's vector registers are called."""
    return "%zmm" if machine.lanes(4) == 16 else "%ymm"


def spills(body: list[str]) -> list[str]:
    """What an inner loop keeps on the stack. Panels lie there too where they are small: they are read with an index."""
    return [line for line in body if re.search(r"[^(]\(%rsp\)|%[xyz]mm\d+, .*\(%rsp,", line)]


def full_tiles(machine: Machine, loops: list[list[str]], edges: bool = False) -> bool:
    """Whether loops are full-width multiply-adds to sums in registers, nothing else in memory than operands, and the
    largest has sums in half of the registers at least, and at most three loads for four multiply-adds. Where broadcasts
    are operands of multiply-adds a tile may be one vector wide: about one load for each.

    `edges`: loops of sums in less than a third of the registers may be parts of a vector, or of a step.
    """
    register = wide(machine)
    assert machine.registers is not None and machine.registers.capacity is not None
    largest: tuple[int, float] = 0, 0.0
    assert loops
    for body in loops:
        operands = [match[1] for line in body if (match := FMA.match(line))]
        assert not spills(body)
        sums = Counter(text.rsplit(", ", 1)[-1] for text in operands)
        if edges and 3 * len(sums) < machine.registers.capacity:
            continue
        assert all(register in text for text in operands)
        assert len(set(sums.values())) == 1  # each step of the reduction adds to every sum
        loads = sum(line.startswith("\tv") and "(%" in line for line in body)
        largest = max(largest, (len(sums), -loads / len(operands)))
    return 2 * largest[0] >= machine.registers.capacity and -largest[1] <= (1.1 if machine.lanes(4) == 16 else 0.75)


@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_squares_of_a_permutation_stay_in_registers(machine: Machine, dtype: str) -> None:
    tree = schedule_for_cpu(einsum_program("ij->ji", [(2048, 2048)], [dtype]), machine).lower()
    text = assembly(lower(tree, machine, "turned").ir, machine)
    assert "unpckl" in text and not any("mm" in line for line in spills(text.splitlines()))


@pytest.mark.parametrize("dtype", ["f32", "i32"])
@pytest.mark.parametrize("machine", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_what_llvm_is_shown_of_addresses_and_squares(machine: Machine, dtype: str) -> None:
    """Frozen pointers are not looked through, fenced shuffles not taken apart; with few registers both would spill."""
    tree = schedule_for_cpu(einsum_program("ij->ji", [(2048, 2048)], [dtype]), machine).lower()
    ir = lower(tree, machine, "shown").ir
    many = machine is AVX512
    assert ("freeze ptr" in ir, "@llvm.arithmetic.fence" in ir) == (many, many and dtype == "f32")
