"""Machine profiles by name: those shipped here, and those of other packages (entry-point group `polyloom.machines`)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Final

from poly.errors import MachineError
from poly.machine import Machine
from poly.machine_text import read_machine

GROUP: Final = "polyloom.machines"


def shipped() -> Mapping[str, Path]:
    """Name to file of the profiles in this package."""
    folder = Path(str(files("poly.accel") / "profiles"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def profile_names() -> tuple[str, ...]:
    """All names that `profile` knows."""
    return tuple(sorted({*shipped(), *(entry.name for entry in entry_points(group=GROUP))}))


def profile(name: str) -> Machine:
    """The machine of a profile's name or of a path to a TOML file. Raises `MachineError` for neither."""
    if name.endswith(".toml"):
        return read_machine(name)
    if name.lower() in shipped():
        return read_machine(shipped()[name.lower()])
    for entry in entry_points(group=GROUP, name=name):
        machine = entry.load()()
        if not isinstance(machine, Machine):
            raise MachineError(f"{entry.value} gives no Machine", where=f"entry point {name}")
        return machine
    known = ", ".join(("cpu", *profile_names()))
    raise MachineError(f"no machine {name!r}", hint=f"one of {known}, or a path to a .toml file")
