"""The names of CPUs that LLVM knows. It takes any other for a CPU without features, whose code may end the process."""

from __future__ import annotations

import subprocess
import sys
from difflib import get_close_matches
from functools import cache
from typing import Final

from poly.disk_cache import cache_entry, read_entry, write_entry
from poly.errors import MachineError

_SECONDS: Final = 60.0  # a process on a busy machine
# LLVM prints its list to where errors go, and gives it to nobody
_LIST: Final = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help")
"""


def require_known(cpu: str, triple: str) -> None:
    """Raises `MachineError` for a name that LLVM does not know. A triple without a list passes."""
    known = known_cpus(triple)
    if cpu and known and cpu not in known:
        near = get_close_matches(cpu, known, 3) or ["generic"]
        raise MachineError(f"no CPU {cpu!r}", where=triple, hint=f"LLVM has {', '.join(near)}")


@cache
def known_cpus(triple: str) -> tuple[str, ...]:
    """The names for a triple, from the disk cache where they are there; none where LLVM cannot be asked."""
    import llvmlite
    import llvmlite.binding as llvm

    path = cache_entry("cpus", (triple, str(llvm.llvm_version_info), llvmlite.__version__), ".txt")
    content = read_entry(path)
    if content is None:
        content = _asked(triple)
        if path is not None and content:
            write_entry(path, content)
    return tuple(content.decode().split())


def _asked(triple: str) -> bytes:
    try:
        command = [sys.executable, "-P", "-c", _LIST, triple]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, ValueError, subprocess.SubprocessError):
        return b""
    lines = done.stderr.decode(errors="replace").partition("Available features")[0].splitlines()
    return " ".join(line.split()[0] for line in lines if " - Select the " in line).encode()
