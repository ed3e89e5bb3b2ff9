"""Where the time of an engine goes: `engine.profile(inputs)`, group by group, as data that prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from poly.document import Document, Explanation, bytes_text, seconds_text, some, table
from poly.errors import RunError
from poly.expr import Const, IndexValue, Read, walk
from poly.program import Program
from poly.relations import bound_domain
from poly.scheduling.traffic import compulsory_bytes, count_points
from poly.sets import within_budget

_BUDGET = 1_000_000  # isl operations to count the instances of one statement
Observe = Callable[[object, float], None]


@dataclass(frozen=True)
class GroupTime:
    """One group. `seconds` of one run, the median; `operations`: those its bodies name, None where not counted;
    `bytes`: what it reads of its inputs and constants and writes of its outputs, each element once. `plainer`: why it
    runs in a plainer schedule than the policy's first, "" where it does not."""

    name: str
    statements: tuple[str, ...]
    seconds: float
    operations: int | None
    bytes: int | None
    compiled: bool
    plainer: str = ""

    @property
    def rate(self) -> float | None:
        """Operations a second."""
        return None if self.operations is None else self.operations / self.seconds

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second."""
        return None if self.bytes is None else self.bytes / self.seconds


@dataclass(frozen=True, repr=False)
class Profile(Explanation):
    """`groups` in the order in which they run; `seconds` of a whole run, the median of `runs`.

    Groups are timed one by one, so their sum is more than a run by the time it takes to start each.
    """

    name: str
    groups: tuple[GroupTime, ...]
    seconds: float
    runs: int

    @property
    def slowest(self) -> tuple[GroupTime, ...]:
        """The groups that take longest first."""
        return tuple(sorted(self.groups, key=lambda g: -g.seconds))

    @property
    def document(self) -> Document:
        every = sum(g.seconds for g in self.groups)
        known = [g.operations for g in self.groups if g.operations is not None]
        rows = [
            (g.name, some(g.statements, " ") + _how(g), seconds_text(g.seconds),
             f"{g.seconds / every:.1%}", _billions(g.rate), bytes_text(g.bytes), _billions(g.bandwidth))
            for g in self.slowest
        ]  # fmt: skip
        facts = (
            ("one run", f"{seconds_text(self.seconds)}, median of {self.runs}"),
            ("groups one by one", f"{seconds_text(every)} together"),
            ("rate", f"{sum(known) / self.seconds / 1e9:.1f} billion operations a second"),
            *(("plainer", f"{g.name}: the policy's first schedule had no code: {g.plainer}")
              for g in self.slowest if g.plainer),
        )  # fmt: skip
        heads = ("group", "statements", "time", "share", "Gop/s", "bytes", "GB/s")
        return Document(f"profile of {self.name}", facts, (table("groups, slowest first", heads, rows),))


@dataclass(frozen=True)
class Part:
    """What is timed as one: a group's statements, and the program that stands for it and its like."""

    name: str
    statements: tuple[str, ...]
    program: Program
    compiled: bool
    plainer: str = ""


def profile(name: str, parts: Sequence[Part], run: Callable[[Observe | None], object], runs: int) -> Profile:
    """Time runs as a whole, and runs that call `observe(step, seconds)` after each of the parts.

    Raises `RunError` where `runs` is not positive.
    """
    if not isinstance(runs, int) or runs < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RunError(f"runs is {runs!r}", where=name, hint="a positive int")
    run(None)
    whole: list[float] = []
    times: list[Sequence[float]] = []
    for _ in range(runs):
        start = perf_counter()
        run(None)
        whole.append(perf_counter() - start)
        times.append(_split(run))
    known: dict[str, tuple[int | None, int | None]] = {}
    groups: list[GroupTime] = []
    for part, seconds in zip(parts, zip(*times, strict=True), strict=True):
        key = str(part.program)
        if key not in known:
            known[key] = (operations_of(part.program), compulsory_bytes(part.program))
        spent = max(1e-9, median(seconds))
        groups.append(GroupTime(part.name, part.statements, spent, *known[key], part.compiled, part.plainer))
    return Profile(name, tuple(groups), median(whole), runs)


def _split(run: Callable[[Observe | None], object]) -> list[float]:
    """Seconds of each part in one run."""
    found: list[float] = []
    run(lambda _, seconds: found.append(seconds))
    return found


def operations_of(program: Program) -> int | None:
    """Arithmetic operations of all instances, those of reductions included; None where a domain is not counted."""
    total = 0
    for s in program.statements:
        if s.external is not None:
            return None
        each = sum(not isinstance(node, Const | Read | IndexValue) for node in walk(s.body))
        domain = bound_domain(program, s)
        instances = within_budget(_BUDGET, lambda part=domain: count_points(part), lambda: None)
        if instances is None:
            return None
        total += instances * (each + (s.combiner is not None))
    return total


def _how(group: GroupTime) -> str:
    if not group.compiled:
        return " (not compiled)"
    return " (plainer)" if group.plainer else ""


def _billions(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e9:.1f}"
