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
_AVX2 = ("avx", "avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512vl", "avx512bw", "avx512dq")
DOT_CPUS: dict[str, Machine] = {
    name: machine_of_features(cpu, features, TRIPLE, CACHES, 2, 3000)
    for name, cpu, features in (
        ("avx2", "haswell", _AVX2), ("avx512bw", "skylake-avx512", _AVX512),
        ("vnni", "icelake-server", (*_AVX512, "avx512vnni")), ("avxvnni", "alderlake", (*_AVX2, "avxvnni")),
    )
}  # fmt: skip
LOOKUP = "llvm.x86.avx512.permvar.si.512"  # of 16 numbers in a register; this and the masked ones are not generic
PAIRS, FOURS = "llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx512.vpdpbusd."
MASKED = [(n, k) for n in ("scalef", "range") for k in ("ps", "pd")]


def run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels for any of these machines be compiled for the host. Skips where the host is no x86."""
    here = host_machine()
    if not is_x86(here.triple):
        pytest.skip("x86 only")
    parts_of, parse = jit.parts_of, vars(jit)["_parse"]
    monkeypatch.setenv("POLYLOOM_CACHE", "off")
    others = (*CPUS.values(), *DOT_CPUS.values())
    monkeypatch.setattr(jit, "parts_of", lambda machine: parts_of(here if machine in others else machine))
    monkeypatch.setattr(jit, "_parse", lambda ir: parse(_generic(ir)))


def _generic(ir: str) -> str:
    instead = [(LOOKUP, _lookup_text()), *((_masked(*m), _masked_text(*m)) for m in MASKED)]
    instead += [(PAIRS, _dot_text(16, 16)), *((f"{FOURS}{32 * n}", _dot_text(n, 8)) for n in (8, 16))]
    for name, text in instead:
        if name in ir:
            ir = re.sub(rf"declare [^\n]*@{re.escape(name)}[^\n]*\n", "", ir)
            ir = ir.replace(f"@{name}", f"@instead.{name}") + text
    return ir


def _masked(name: str, kind: str) -> str:
    return f"llvm.x86.avx512.mask.{name}.{kind}.512"


def _masked_text(name: str, kind: str) -> str:
    """Of a finite a, not far from 1, a * 2^floor(b); or a with a magnitude of b at most, where b is positive."""
    lanes, real, bits, mantissa, most = (16, "float", 32, 23, 250) if kind == "ps" else (8, "double", 64, 52, 2000)
    vector, whole, truth = f"<{lanes} x {real}>", f"<{lanes} x i{bits}>", f"<{lanes} x i1>"
    immediate = "" if name == "scalef" else ", i32 %kind"
    head = f"\ndefine internal {vector} @instead.{_masked(name, kind)}({vector} %a, {vector} %b{immediate}, "
    head += f"{vector} %rest, i{lanes} %mask, i32 %mode) {{\n"
    if name == "range":
        return f"""{head}  %minus = fneg {vector} %b
  %high = fcmp olt {vector} %a, %b
  %top = select {truth} %high, {vector} %a, {vector} %b
  %low = fcmp ogt {vector} %top, %minus
  %r = select {truth} %low, {vector} %top, {vector} %minus
  ret {vector} %r
}}
"""
    factors = "".join(
        f"""  %e{k} = add {whole} %{part}, splat (i{bits} {2 ** (bits - mantissa - 2) - 1})
  %s{k} = shl {whole} %e{k}, splat (i{bits} {mantissa})
  %f{k} = bitcast {whole} %s{k} to {vector}
"""
        for k, part in enumerate(("half", "other"))
    )
    return f"""{head}  %above = fcmp ogt {vector} %b, splat ({real} -{most}.0)
  %up = select {truth} %above, {vector} %b, {vector} splat ({real} -{most}.0)
  %below = fcmp olt {vector} %up, splat ({real} {most}.0)
  %n = select {truth} %below, {vector} %up, {vector} splat ({real} {most}.0)
  %cut = fptosi {vector} %n to {whole}
  %back = sitofp {whole} %cut to {vector}
  %over = fcmp ogt {vector} %back, %n
  %less = sext {truth} %over to {whole}
  %i = add {whole} %cut, %less
  %half = ashr {whole} %i, splat (i{bits} 1)
  %other = sub {whole} %i, %half
{factors}  %p = fmul {vector} %a, %f0
  %q = fmul {vector} %p, %f1
  %unknown = fcmp uno {vector} %b, %b
  %r = select {truth} %unknown, {vector} %b, {vector} %q
  ret {vector} %r
}}
"""


def _lookup_text() -> str:
    kind, made = "<16 x i32>", "poison"
    lines = [f"\ndefine internal {kind} @instead.{LOOKUP}({kind} %table, {kind} %index) {{"]
    for k in range(16):
        lines += [
            f"  %i{k} = extractelement {kind} %index, i64 {k}",
            f"  %at{k} = and i32 %i{k}, 15",
            f"  %v{k} = extractelement {kind} %table, i32 %at{k}",
            f"  %r{k} = insertelement {kind} {made}, i32 %v{k}, i64 {k}",
        ]
        made = f"%r{k}"
    return "\n".join([*lines, f"  ret {kind} {made}", "}", ""])


def _dot_text(lanes: int, bits: int) -> str:
    """Sums of products of pairs of i16, or of four u8 and four i8 added to what there is."""
    count, kind = 32 // bits, f"<{lanes} x i32>"
    parts, whole = f"<{count * lanes} x i{bits}>", f"<{count * lanes} x i32>"
    if bits == 16:
        lines = [
            f"\ndefine internal {kind} @instead.{PAIRS}({parts} %x, {parts} %y) {{",
            f"  %s0 = add {kind} zeroinitializer, zeroinitializer",
        ]
    else:
        lines = [
            f"\ndefine internal {kind} @instead.{FOURS}{32 * lanes}({kind} %z, {kind} %p, {kind} %q) {{",
            f"  %x = bitcast {kind} %p to {parts}",
            f"  %y = bitcast {kind} %q to {parts}",
            f"  %s0 = add {kind} %z, zeroinitializer",
        ]
    lines += [f"  %a = {'sext' if bits == 16 else 'zext'} {parts} %x to {whole}", f"  %b = sext {parts} %y to {whole}"]
    lines.append(f"  %m = mul {whole} %a, %b")
    for k in range(count):
        places = ", ".join(f"i32 {count * i + k}" for i in range(lanes))
        lines.append(f"  %m{k} = shufflevector {whole} %m, {whole} poison, <{lanes} x i32> <{places}>")
        lines.append(f"  %s{k + 1} = add {kind} %s{k}, %m{k}")
    return "\n".join([*lines, f"  ret {kind} %s{count}", "}", ""])
