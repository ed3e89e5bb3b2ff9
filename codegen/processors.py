"""What LLVM can be asked for: triples, names of CPUs and features.

It ends the process on some, and takes any other name for a CPU or a feature that changes nothing, whose code may end
the process as well. So all three are checked before.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Final

from poly.disk_cache import cache_entry, read_entry, write_entry
from poly.errors import MachineError

_SECONDS: Final = 60.0  # a process on a busy machine
_ARCHITECTURES: Final = (
    "x86_64", "amd64", "x86_64h", "aarch64", "arm64", "arm64e", "riscv64", "loongarch64", "powerpc64le", "ppc64le",
)  # fmt: skip
# Ends of a triple's parts: object files that are not its system's, and pointers of 32 bits
_FOREIGN: Final = ("coff", "macho", "wasm", "goff", "spirv", "dxcontainer", "x32", "ilp32")
# Of x86 and ARM: LLVM ends the process, takes minutes or makes code that nobody can call
_NEVER: Final = (
    "soft-float", "16bit-mode", "32bit-mode", "x32", "-64bit", "-64bit-mode", "-sse", "-sse2", "-fp-armv8", "-neon",
)  # fmt: skip
# LLVM prints its list to where errors go, and gives it to nobody
_LIST: Final = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help")
"""


@dataclass(frozen=True)
class Known:
    """Names that LLVM has for a triple; none where it cannot be asked."""

    cpus: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def require_triple(triple: str, native: str) -> None:
    """Raises `MachineError` for one that no kernel is made for: other than 64 bits, or with files of another system."""
    first, *rest = triple.split("-")
    if first not in (*_ARCHITECTURES, native.partition("-")[0]):
        raise MachineError(f"no kernels for {first!r}", where=triple, hint=f"one of {', '.join(_ARCHITECTURES)}")
    wrong = next((part for part in rest if part.strip().endswith(_FOREIGN)), None)
    if wrong is not None:
        raise MachineError(f"no kernels of {wrong}", where=triple, hint=f"as this process: {native}")


def require_cpu(cpu: str, triple: str) -> None:
    """Raises `MachineError` for a name that LLVM does not know. A triple without a list passes."""
    known = known_names(triple).cpus
    if cpu and known and cpu not in known:
        near = get_close_matches(cpu, known, 3) or ["generic"]
        raise MachineError(f"no CPU {cpu!r}", where=triple, hint=f"LLVM has {', '.join(near)}")


def require_features(features: Sequence[str], triple: str) -> None:
    """Raises `MachineError` for features that LLVM does not know; a minus stands before one that is absent."""
    known = known_names(triple).features
    for name in (f.removeprefix("-") for f in features):
        if known and name not in known:
            near = get_close_matches(name, known, 3)
            hint = f"LLVM has {', '.join(near)}" if near else "those of the machine's triple"
            raise MachineError(f"no feature {name!r}", where=triple, hint=hint)


def require_usable(features: Sequence[str], triple: str) -> None:
    """Raises `MachineError` for features of which no code can be made."""
    wrong = next((f for f in features if f in _NEVER), None)
    if wrong is not None:
        raise MachineError(f"{wrong} among the features", where=triple, hint="code is of 64 bits, with their vectors")


@cache
def known_names(triple: str) -> Known:
    """The names for a triple, from the disk cache where they are there."""
    import llvmlite
    import llvmlite.binding as llvm

    path = cache_entry("names", (triple, str(llvm.llvm_version_info), llvmlite.__version__), ".txt")
    content = read_entry(path)
    if content is None:
        content = _asked(triple)
        if path is not None and content:
            write_entry(path, content)
    cpus, _, features = content.decode().partition("\n")
    return Known(tuple(cpus.split()), tuple(features.split()))


def _asked(triple: str) -> bytes:
    """A line of names of CPUs and one of features; nothing where LLVM cannot be asked."""
    try:
        command = [sys.executable, "-P", "-c", _LIST, triple]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError):
        return b""
    parts = done.stderr.decode(errors="replace").partition("Available features")
    cpus, features = ([line.split()[0] for line in p.splitlines() if " - " in line] for p in (parts[0], parts[2]))
    return "\n".join((" ".join(cpus), " ".join(features))).encode() if cpus else b""
