"""IR text to object code to addresses, with object code kept on disk.

The cache lies in `$POLYLOOM_CACHE` (`off` for none), else in the user's cache directory. An entry's name is a hash of
everything that its content depends on; entries are written atomically and carry a checksum, so that a damaged one is
found and compiled again.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from poly.errors import Bug, MachineError
from poly.machine import Machine

if TYPE_CHECKING:
    from llvmlite.binding import LLJIT, ModuleRef, ResourceTracker, TargetMachine

OPT_LEVEL = 2  # of instruction selection; no passes run over the IR
_MAGIC = b"polyloom object 1\n"


def compile_object(ir: str, machine: Machine) -> bytes:
    """Object code of a module, from the disk cache where it is there. Raises `Bug` for IR that is not valid."""
    path = _cache_path(ir, machine)
    if path is not None and (found := _read(path)) is not None:
        return found
    code = target_machine(*_target(machine)).emit_object(_parse(ir))
    if path is not None:
        _write(path, code)
    return code


def assembly(ir: str, machine: Machine) -> str:
    """The assembly text of a module."""
    return str(target_machine(*_target(machine)).emit_assembly(_parse(ir)))


@dataclass(frozen=True)
class Linked:
    """Code in memory: addresses by symbol, valid as long as this object lives."""

    addresses: Mapping[str, int]
    tracker: ResourceTracker


def link(code: bytes, symbols: Sequence[str]) -> Linked:
    """Load object code into this process. Raises `Bug` where a symbol is missing."""
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in symbols:
        builder.export_symbol(name)
    session = _session()
    try:
        tracker = builder.link(session.compiler, f"polyloom{next(session.numbers)}")
    except RuntimeError as error:
        raise Bug(f"linking failed: {error}") from error
    return Linked({name: tracker[name] for name in symbols}, tracker)


def _parse(ir: str) -> ModuleRef:
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(ir, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        found = re.search(r":(\d+):\d+: error", str(error))
        line = ir.splitlines()[int(found.group(1)) - 1] if found else ""
        raise Bug(f"emitted IR is not valid: {error}\n{line}") from error
    return module


def _target(machine: Machine) -> tuple[str, str, str]:
    """triple, cpu, features; checked against what LLVM knows, since it ends the process on nonsense."""
    cores = machine.engines_of("core")
    if machine.kind != "cpu" or not cores:
        raise MachineError("not a CPU", where=f"machine {machine.name}", hint="compile for it with poly.accel")
    features = ",".join(f if f.startswith("-") else f"+{f}" for f in cores[0].features)
    return machine.triple, machine.cpu, features


@cache
def target_machine(triple: str, cpu: str, features: str) -> TargetMachine:
    """LLVM's target machine; position-independent code of the small model. Raises `MachineError`."""
    import llvmlite.binding as llvm

    _initialise(triple in ("", llvm.get_process_triple()))
    try:
        target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    except RuntimeError as error:
        raise MachineError(f"no target {triple!r}: {error}") from error
    return target.create_target_machine(cpu=cpu, features=features, opt=OPT_LEVEL, reloc="pic", codemodel="small")


@cache
def _initialise(native: bool) -> None:
    import llvmlite.binding as llvm

    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


@dataclass(frozen=True)
class _Session:
    compiler: LLJIT
    numbers: count[int]


@cache
def _session() -> _Session:
    """The process's JIT; code lives in it until its `Linked` is dropped."""
    import llvmlite.binding as llvm

    _initialise(True)
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small", jit=True)
    return _Session(llvm.create_lljit_compiler(machine, use_jit_link=os.name == "posix"), count())


def cache_directory() -> Path | None:
    """Where object code is kept; None where it is not."""
    chosen = os.environ.get("POLYLOOM_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "polyloom"


def _cache_path(ir: str, machine: Machine) -> Path | None:
    import llvmlite
    import llvmlite.binding as llvm

    try:
        directory = cache_directory()
    except RuntimeError:  # no home directory
        return None
    if directory is None:
        return None
    parts = (ir, *_target(machine), str(OPT_LEVEL), str(llvm.llvm_version_info), llvmlite.__version__)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return directory / "objects" / key[:2] / f"{key}.o"


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC)
    if not content.startswith(_MAGIC) or len(content) < start + 32:
        return None
    code = content[start + 32 :]
    return code if hashlib.sha256(code).digest() == content[start : start + 32] else None


def _write(path: Path, code: bytes) -> None:
    """Atomic; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(code).digest() + code)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        return
