"""IR text to object code to addresses, with object code kept on disk (`poly.disk_cache`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from poly.codegen.host import host_cpu
from poly.codegen.processors import require_cpu, require_features, require_triple, require_usable
from poly.disk_cache import cache_entry, read_entry, write_entry
from poly.errors import Bug, MachineError
from poly.machine import Machine

if TYPE_CHECKING:
    from llvmlite.binding import LLJIT, ModuleRef, ResourceTracker, TargetMachine

OPT_LEVEL = 2  # of instruction selection; no passes run over the IR


def compile_object(ir: str, machine: Machine) -> bytes:
    """Object code of a module, from the disk cache where it is there. Raises `Bug` for IR that is not valid."""
    path = _entry(ir, machine)
    if (found := read_entry(path)) is not None:
        return found
    code = target_machine(*parts_of(machine)).emit_object(_parse(ir))
    write_entry(path, code)
    return code


def _entry(ir: str, machine: Machine) -> Path | None:
    import llvmlite
    import llvmlite.binding as llvm

    parts = (ir, *parts_of(machine), str(OPT_LEVEL), str(llvm.llvm_version_info), llvmlite.__version__)
    return cache_entry("objects", parts, ".o")


class Compiling:
    """Object code of modules that a thread makes while this one goes on. Raises `Bug` for IR that is not valid.

    Inside LLVM a thread does not hold Python's lock; the little around it is done by who asks, since to get that lock
    from a busy thread takes milliseconds each time.
    """

    def __init__(self, irs: Sequence[str], machine: Machine) -> None:
        paths = {ir: _entry(ir, machine) for ir in irs}
        self._code = {ir: code for ir, path in paths.items() if (code := read_entry(path)) is not None}
        self._paths = {ir: path for ir, path in paths.items() if ir not in self._code}
        modules = {ir: _parse(ir) for ir in self._paths}
        self._thread = Thread(target=self._run, args=(modules, target_machine(*parts_of(machine))))
        self._thread.start()

    def _run(self, modules: Mapping[str, ModuleRef], compiler: TargetMachine) -> None:
        try:
            for ir, module in modules.items():
                self._code[ir] = compiler.emit_object(module)
        except RuntimeError:  # who needs the code tries again
            return

    def of(self, ir: str) -> bytes | None:
        """The object code of one of the modules, when it is there; None where it is of none of them."""
        self._thread.join()
        code, path = self._code.get(ir), self._paths.pop(ir, None)
        if code is not None and path is not None:
            write_entry(path, code)
        return code


def assembly(ir: str, machine: Machine) -> str:
    """The assembly text of a module."""
    return str(target_machine(*parts_of(machine)).emit_assembly(_parse(ir)))


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


def parts_of(machine: Machine) -> tuple[str, str, str]:
    """triple, cpu, features."""
    cores = machine.engines_of("core")
    if machine.kind != "cpu" or not cores:
        raise MachineError("not a CPU", where=f"machine {machine.name}", hint="compile for it with poly.accel")
    features = ",".join(f if f.startswith("-") else f"+{f}" for f in cores[0].features)
    if machine.triple.startswith(("x86_64", "amd64")) and "64bit" not in cores[0].features:
        features = f"{features},+64bit".lstrip(",")  # names of old CPUs do not imply it
    return machine.triple, machine.cpu, features


@cache
def target_machine(triple: str, cpu: str, features: str) -> TargetMachine:
    """LLVM's target machine; position-independent code of the small model. Raises `MachineError`."""
    import llvmlite.binding as llvm

    native = llvm.get_process_triple()
    require_triple(triple or native, native)
    _initialise(triple in ("", native))
    try:
        target = llvm.Target.from_triple(triple or native)
    except RuntimeError as error:
        raise MachineError(f"no target {triple!r}: {error}") from error
    _require_names(cpu, features, triple or native)
    return target.create_target_machine(cpu=cpu, features=features, opt=OPT_LEVEL, reloc="pic", codemodel="small")


def _require_names(cpu: str, features: str, triple: str) -> None:
    """Raises `MachineError` for names that LLVM ends the process on; for those it found here itself it is not asked."""
    import llvmlite.binding as llvm

    names = [f.removeprefix("+") for f in features.split(",")] if features else []
    here = triple == llvm.get_process_triple()
    if cpu not in ("", "generic") and not (here and cpu == host_cpu()):
        require_cpu(cpu, triple)
    if not (here and {n.removeprefix("-") for n in names} <= llvm.get_host_cpu_features().keys()):
        require_features(names, triple)
    require_usable(names, triple)


@cache
def _initialise(native: bool) -> None:
    import llvmlite.binding as llvm

    _guard_forks()
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


@cache
def _guard_forks() -> None:
    """Fork only while no thread is inside LLVM: a child would wait for ever for a lock that was held then."""
    from llvmlite.binding import ffi

    lock = getattr(ffi.lib, "_lock", None)  # the one lock around all calls of the library
    if lock is not None and hasattr(os, "register_at_fork"):

        def release() -> None:
            lock.__exit__(None, None, None)

        os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)


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
