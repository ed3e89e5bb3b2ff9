"""What the machine can do at most, measured in the same run: multiply-adds a second and bytes copied a second."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter

import numpy as np

CHAINS, TRIPS = 12, 20_000


def fma_peak() -> tuple[Callable[[], float], int]:
    """A call that returns seconds for independent vector multiply-adds in registers, and their operations."""
    from poly.codegen.host import host_machine
    from poly.codegen.jit import compile_object, link

    machine = host_machine()
    lanes = machine.lanes(4)
    code = link(compile_object(_chains(lanes), machine), ["peak"])
    function = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(code.addresses["peak"])

    def run() -> float:
        start = perf_counter()
        function(0.5)
        del start  # the first call warms up
        start = perf_counter()
        function(0.5)
        return perf_counter() - start

    run.keep = code  # type: ignore[attr-defined] - the code lives as long as the call
    return run, 2 * lanes * CHAINS * TRIPS


def _chains(lanes: int) -> str:
    """IR of a loop with CHAINS independent vector multiply-adds."""
    kind = f"<{lanes} x float>"
    suffix = f"v{lanes}f32"
    names = range(CHAINS)
    lines = ["define float @peak(float %x) {", "entry:", f"  %s = insertelement {kind} poison, float %x, i64 0"]
    lines += [
        f"  %v = shufflevector {kind} %s, {kind} poison, <{lanes} x i32> zeroinitializer",
        "  br label %loop",
        "loop:",
    ]
    lines.append("  %i = phi i64 [0, %entry], [%n, %loop]")
    lines += [f"  %a{k} = phi {kind} [%v, %entry], [%b{k}, %loop]" for k in names]
    lines += [f"  %b{k} = call {kind} @llvm.fma.{suffix}({kind} %a{k}, {kind} %v, {kind} %v)" for k in names]
    lines += ["  %n = add i64 %i, 1", f"  %c = icmp slt i64 %n, {TRIPS}", "  br i1 %c, label %loop, label %end", "end:"]
    lines += ["  %t0 = fadd " + f"{kind} %b0, %b1"]
    lines += [f"  %t{k} = fadd {kind} %t{k - 1}, %b{k + 1}" for k in range(1, CHAINS - 1)]
    lines += [f"  %r = extractelement {kind} %t{CHAINS - 2}, i64 0", "  ret float %r", "}"]
    lines.append(f"declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})")
    return "\n".join(lines) + "\n"


def copy_bandwidth(size: int) -> tuple[Callable[[], float], int]:
    """A call that returns seconds for copying between two arrays that take `size` bytes together, and those bytes."""
    count = max(64, size // 8)
    source, target = np.ones(count, np.float32), np.empty(count, np.float32)
    repeat = max(1, (1 << 22) // size)

    def run() -> float:
        start = perf_counter()
        for _ in range(repeat):
            np.copyto(target, source)
        return (perf_counter() - start) / repeat

    return run, 8 * count
