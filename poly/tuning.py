"""What a caller asks of measuring (`compile(..., tune=32)`), and what it said; `poly.tuner` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import index
from typing import Final

from poly.arguments import shown
from poly.document import counted
from poly.errors import ArgumentError, ArgumentTypeError

MOST: Final = 1000  # plans of one program


@dataclass(frozen=True)
class Tuning:
    """`tune=` of `compile`: plans of one program that are measured at most, and seconds in all for making and measuring
    them, those of all groups of a model together.
    """

    plans: int = 32
    seconds: float = 60.0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "plans", index(self.plans))
            object.__setattr__(self, "seconds", float(self.seconds))
        except (TypeError, ValueError):
            text = f"plans={shown(self.plans)}, seconds={shown(self.seconds)} to measure"
            raise ArgumentTypeError(text, hint="numbers, as in tune=32 or poly.Tuning(plans=32, seconds=60)") from None
        if not 2 <= self.plans <= MOST:
            raise ArgumentError(f"plans={self.plans} to measure", hint=f"from 2 to {MOST}")
        if not 0 < self.seconds < inf:
            raise ArgumentError(f"seconds={self.seconds} to measure in", hint="more than 0")


def tuning_of(tune: Tuning | int | bool | None) -> Tuning | None:
    """What a caller asks for; None where nothing is measured. Raises `ArgumentError`."""
    if isinstance(tune, Tuning):
        return tune
    return None if not tune else Tuning() if tune is True else Tuning(tune)


@dataclass(frozen=True)
class Measured:
    """What measuring said of a program: so many `plans` of `listed` ones that differ, in `took` seconds with making
    them; `seconds` of a call of the fastest, `unmeasured` of the model's choice; `chosen`: what the fastest is, ""
    where that is the model's choice.
    """

    plans: int
    listed: int
    took: float
    seconds: float
    unmeasured: float
    chosen: str

    def __str__(self) -> str:
        if self.plans < 2:
            return "nothing to choose from"
        best = f"{self.seconds * 1e6:,.1f} us" + (f", {self.chosen}" if self.chosen else ", the model's choice")
        beside = f"; the model's choice {self.unmeasured * 1e6:,.1f} us" if self.chosen else ""
        return f"{self.plans} of {self.listed} plans in {self.took:.1f} s: the fastest {best}{beside}"


ALONE: Final = Measured(1, 1, 0.0, 0.0, 0.0, "")  # of a program that has one plan, or whose time ended with the first


def measured_groups(found: Sequence[Measured]) -> str:
    """What measuring said of the groups of a model, "" where nothing was measured."""
    if not found:
        return ""
    changed = [m for m in found if m.chosen]
    plans = f"{sum(m.plans for m in found)} plans of {counted(len(found), 'different group')}"
    if not changed:
        return f"{plans}: the model's choices"
    share = sum(m.seconds for m in changed) / sum(m.unmeasured for m in changed)
    return f"{plans}: for {len(changed)} another than the model's choice, in {share:.2f} of its time"
