"""Whether code for a target can run in this process: architecture and system are the host's, and so are the features.

LLVM knows what the name of a CPU implies and tells nobody. But it puts a function into another only where the other's
target has all that the function's has; so for every feature that the host lacks, one that needs it is offered to the
target's code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from poly.codegen import jit
from poly.codegen.host import host_machine, is_arm, is_x86, tiles_granted
from poly.machine import Machine

# What programs ask for by name: LLVM picks none of these instructions by itself, and virtual machines hide many.
_UNPICKED: Final = frozenset((
    "aes", "cldemote", "clflushopt", "clwb", "clzero", "enqcmd", "fsgsbase", "hreset", "invpcid", "kl", "lwp",
    "movdir64b", "movdiri", "mwaitx", "pconfig", "pku", "prefetchi", "prfchw", "ptwrite", "rdpid", "rdpru",
    "rdrnd", "rdseed", "rtm",
    "serialize", "sgx", "sha", "sha512", "shstk", "sm3", "sm4", "tsxldtrk", "uintr", "usermsr", "waitpkg", "wbnoinvd",
    "widekl", "xsave", "xsavec", "xsaveopt", "xsaves", "avx512vp2intersect", "amx-tile", "amx-int8", "amx-bf16",
    "amx-fp16", "amx-fp8", "amx-complex", "amx-tf32", "amx-avx512", "amx-movrs", "amx-transpose",
))  # fmt: skip
_SYSTEMS: Final = ("windows", "darwin", "macos", "ios", "linux")


def absent_here(machine: Machine) -> tuple[str, ...]:
    """What code for a machine may use and this one does not have: its triple, or features. Where there is any, the code
    must not run."""
    if machine is host_machine():
        return ()
    if machine.matrix_unit is not None and not tiles_granted():
        return ("amx-tile",)
    target, host = jit.parts_of(machine), jit.parts_of(host_machine())
    return () if target == host else _absent(target, host)


@cache
def _absent(target: tuple[str, str, str], host: tuple[str, str, str]) -> tuple[str, ...]:
    (triple, cpu, features), (native, _, own) = target, host
    triple = triple or native
    if _architecture(triple) != _architecture(native) or _system(triple) != _system(native):
        return (triple,)
    lacking = [f.removeprefix("-") for f in own.split(",") if f.startswith("-")]
    return _implied(triple, cpu, features, tuple(f for f in lacking if f not in _UNPICKED))


def _architecture(triple: str) -> str:
    first = triple.partition("-")[0]
    return "aarch64" if is_arm(triple) else "x86_64" if is_x86(triple) and first in ("x86_64", "amd64") else first


def _system(triple: str) -> str:
    return next((s for s in _SYSTEMS if s in triple), "")


def _implied(triple: str, cpu: str, features: str, names: Sequence[str]) -> tuple[str, ...]:
    """Which of the features a target has."""
    import llvmlite.binding as llvm

    machine = jit.target_machine(triple, cpu, features)
    module = llvm.parse_assembly(_probe(cpu, features, names), llvm.create_context())
    module.triple = triple
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(module, builder)
    refused = {int(k) for k in re.findall(r"call [^\n]*@needs\.(\d+)", str(module))}
    return tuple(name for k, name in enumerate(names) if k not in refused)


def _probe(cpu: str, features: str, names: Sequence[str]) -> str:
    """A function of the target for each feature, which calls one that needs the feature, too."""
    own = f'"target-cpu"="{cpu}"'
    lines = [f'attributes #{len(names)} = {{ {own} "target-features"="{features}" }}']
    for k, name in enumerate(names):
        more = f"{features},+{name}".lstrip(",")
        lines += [
            f'attributes #{k} = {{ {own} "target-features"="{more}" }}',
            f"define internal i32 @needs.{k}(i32 %x) #{k} {{", "  %y = add i32 %x, 1", "  ret i32 %y", "}",
            f"define i32 @calls.{k}(i32 %x) #{len(names)} {{", f"  %y = call i32 @needs.{k}(i32 %x)", "  ret i32 %y",
            "}",
        ]  # fmt: skip
    return "\n".join(lines)
