"""What is wrong with a command stream, as `poly.accel.verify` lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """`commands`: labels of the instances that show it (engine#position tag)."""

    code: str
    message: str
    commands: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        place = " / ".join(self.commands)
        return f"{self.severity} [{self.code}] {self.message}" + (f"  ({place})" if place else "")
