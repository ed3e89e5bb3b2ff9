"""Machines that tests of policies for a core share."""

from __future__ import annotations

from poly.codegen.host import machine_of_features
from poly.machine import Engine, Machine, Memory


def avx2_core(l2: int, l1: int) -> Machine:
    """A core of 8 lanes and 16 registers; capacities of its caches in bytes."""
    caches = (Memory("l2", l2, "cache", shared=False), Memory("l1", l1, "cache"))
    memories = (Memory("dram", None, "dram"), *caches, Memory("reg", 16, "register"))
    return Machine("avx2", "cpu", memories, (Engine("core", "core", lanes=8),))


AVX2 = avx2_core(512 * 1024, 32 * 1024)
AVX512 = machine_of_features(
    "x", ("avx512f", "avx512vl"), "x86_64-unknown-linux-gnu", {1: 48 << 10, 2: 1 << 20, 3: 32 << 20}, 1, 4000
)
MESH = machine_of_features(
    "x", ("avx512f", "avx512vl", "avx512fp16", "amx-tile"), "x86_64-unknown-linux-gnu",
    {1: 48 << 10, 2: 2 << 20, 3: 480 << 20}, 1, 3000,
)  # fmt: skip
