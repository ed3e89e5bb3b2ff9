"""Descriptions of other CPUs, and their code run on this one.

What policies choose and emitters print follows from a machine's lanes, registers and features. Nearly all of it
is generic IR, for which LLVM makes code of any x86: vectors that are too wide come in parts. So plans for AVX-512
and for ARM are run here to see that they compute the right thing; only LLVM's own choice of instructions is another.
"""

from __future__ import annotations

import re

import pytest

from poly.codegen import jit
from poly.codegen.host import host_machine, is_x86, machine_of_features
from poly.machine import Machine

TRIPLE = "x86_64-unknown-linux-gnu"
CACHES = {1: 32 << 10, 2: 128 << 10, 3: 1 << 20}  # small, so that small programs are tiled for all of them
CPUS: dict[str, Machine] = {
    "avx512": machine_of_features(
        "skylake-avx512",
        ("avx", "avx2", "avx512f", "avx512vl", "avx512bw", "avx512dq", "fma", "f16c"), TRIPLE, CACHES, 2, 3000,
    ),
    "sse": machine_of_features("x86-64", ("sse4.2",), TRIPLE, CACHES, 2, 3000),
    "arm": machine_of_features("generic", ("neon",), "aarch64-unknown-linux-gnu", CACHES, 2, 3000),
}  # fmt: skip
LOOKUP = "llvm.x86.avx512.permvar.si.512"  # of 16 numbers in a register: the one instruction that is not generic


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels for any of these machines be compiled for the host. Skips where the host is no x86."""
    here = host_machine()
    if not is_x86(here.triple):
        pytest.skip("x86 only")
    target_of, parse = vars(jit)["_target"], vars(jit)["_parse"]
    monkeypatch.setenv("POLYLOOM_CACHE", "off")
    monkeypatch.setattr(jit, "_target", lambda machine: target_of(here if machine in CPUS.values() else machine))
    monkeypatch.setattr(jit, "_parse", lambda ir: parse(_without_lookup(ir)))


def _without_lookup(ir: str) -> str:
    if LOOKUP not in ir:
        return ir
    ir = re.sub(rf"declare [^\n]*@{re.escape(LOOKUP)}[^\n]*\n", "", ir)
    return ir.replace(f"@{LOOKUP}", "@lookup") + _lookup_text()


def _lookup_text() -> str:
    kind, made = "<16 x i32>", "poison"
    lines = [f"\ndefine internal {kind} @lookup({kind} %table, {kind} %index) {{"]
    for k in range(16):
        lines += [
            f"  %i{k} = extractelement {kind} %index, i64 {k}",
            f"  %at{k} = and i32 %i{k}, 15",
            f"  %v{k} = extractelement {kind} %table, i32 %at{k}",
            f"  %r{k} = insertelement {kind} {made}, i32 %v{k}, i64 {k}",
        ]
        made = f"%r{k}"
    return "\n".join([*lines, f"  ret {kind} {made}", "}", ""])
