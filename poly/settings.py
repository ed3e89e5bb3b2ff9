"""Settings of the environment, all read here: one that cannot be read is an error that names it and what is allowed.

A function raises `PolyError` for its own setting; `check_settings` for any, so that compiling says what a later call
would.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from operator import index
from pathlib import Path
from typing import Final, Literal, SupportsIndex, TypeVar

from poly.arguments import shown
from poly.errors import ArgumentError, ArgumentTypeError, PolyError, SettingWarning, warn_caller

T = TypeVar("T")
MEGABYTES: Final = 512  # of the disk cache, and of memory that is kept, unless set
MOST_CORES: Final = 1024  # cores in the set of bits by which a thread is bound to one
MOST_THREADS: Final = 1024  # of a kernel
MOST_SPIN: Final = 10.0  # seconds: longer would be a mistake of unit
_MOST_MEGABYTES: Final = 1 << 30  # a petabyte
_FOR_TESTS: Final = ("MODELS", "SLOW", "SEED", "PART", "MUTATIONS")
_PREFIX: Final = "POLYLOOM_"


def check_settings() -> None:
    """Raise `PolyError` for a setting that cannot be read; warn, once, of a name that is none."""
    for read in _READERS.values():
        read()
    _warn_of_others(tuple(sorted(name for name in os.environ if name.startswith(_PREFIX))))


def cache_folder() -> Path | None:
    """`POLYLOOM_CACHE`, else the user's cache folder; None where it is `off`, or there is no home."""
    chosen = os.environ.get("POLYLOOM_CACHE", "").strip()
    if chosen.lower() == "off":
        return None
    if chosen:
        _warn_of_folder(chosen)
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "polyloom"
    except RuntimeError:  # no home directory
        return None


def cache_megabytes() -> int:
    """`POLYLOOM_CACHE_SIZE`."""
    return _read("CACHE_SIZE", _whole(0, _MOST_MEGABYTES), "whole megabytes, from 0 on, as 512", MEGABYTES)


def kept_megabytes() -> int:
    """`POLYLOOM_KEPT`."""
    return _read("KEPT", _whole(0, _MOST_MEGABYTES), "whole megabytes, from 0 on, as 512", MEGABYTES)


def compiling_processes() -> int:
    """`POLYLOOM_JOBS`: processes that compile a model's groups, this one with them; above 1, a thread makes a kernel's
    code while another checks its schedule.
    """
    return _read("JOBS", _whole(1, MOST_CORES), f"a number of processes, from 1 to {MOST_CORES}", usable_cores())


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity else os.cpu_count() or 1)


def thread_number(threads: SupportsIndex) -> int:
    """A number of threads that a caller gives. Raises `ArgumentError` where it makes no sense, `ArgumentTypeError`
    where it is no whole number.
    """
    hint = f"a number from 1 to {MOST_THREADS}"
    try:
        number = index(threads)
    except TypeError:
        raise ArgumentTypeError(f"threads={shown(threads)}", hint=hint) from None
    if not 1 <= number <= MOST_THREADS:
        raise ArgumentError(f"threads={shown(threads)}", hint=hint)
    return number


def warn_of_cores(threads: int, cores: int) -> None:
    """Warn where there are more threads than cores, on which they take turns: results are the same, but who waits for
    another sleeps.
    """
    if threads > cores:
        text = f"threads={threads}, but {cores} core{'s' * (cores > 1)}"
        warn_caller(f"{text}: they take turns, which is slower than as many threads as cores", SettingWarning)


def spin_seconds() -> float | None:
    """`POLYLOOM_SPIN` in seconds; None unless set."""
    return _read("SPIN", _spin, f"microseconds from 0 to {MOST_SPIN * 1e6:,.0f}, as 50", None)


def worker_cores() -> tuple[int, ...] | None:
    """`POLYLOOM_CORES`; () for any, None unless set."""
    return _read("CORES", _cores, f"numbers of cores from 0 to {last_core()}, as 0 or 0,2,4-7, or any", None)


def progress() -> Literal["auto", "on", "off"]:
    """`POLYLOOM_PROGRESS`: whether work of more than a second shows how far it is; auto: where somebody types."""
    return _read("PROGRESS", _switch, "auto, on or off", "auto")


_READERS: Final[dict[str, Callable[[], object]]] = {
    "CACHE": cache_folder, "CACHE_SIZE": cache_megabytes, "KEPT": kept_megabytes, "JOBS": compiling_processes,
    "SPIN": spin_seconds, "CORES": worker_cores, "PROGRESS": progress,
}  # fmt: skip


def _read(name: str, convert: Callable[[str], T], allowed: str, unless_set: T) -> T:
    """The value of a setting; one that is empty is not set."""
    text = os.environ.get(_PREFIX + name, "").strip()
    try:
        return convert(text) if text else unless_set
    except ValueError as error:
        raise PolyError(f"{_PREFIX}{name} is {text[:80]!r} in the environment", hint=allowed) from error


def _whole(least: int, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return convert


def _switch(text: str) -> Literal["auto", "on", "off"]:
    match text.lower():
        case "auto" | "on" | "off" as found:
            return found
        case _:
            raise ValueError(text)


def _spin(text: str) -> float:
    seconds = float(text) * 1e-6
    if not 0 <= seconds <= MOST_SPIN:  # nor NaN
        raise ValueError(text)
    return seconds


def _cores(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(",") if text.lower() != "any" else ():
        first, dash, last = part.partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers or not 0 <= numbers[0] <= numbers[-1] <= last_core():
            raise ValueError(text)
        found += numbers
    return tuple(found)


def last_core() -> int:
    """The greatest number that a core of this machine may have, those that are switched off included."""
    return min(max(os.sysconf("SC_NPROCESSORS_CONF"), 1 + max(os.sched_getaffinity(0))), MOST_CORES) - 1


@cache
def _warn_of_others(names: tuple[str, ...]) -> None:
    known = [_PREFIX + name for name in (*_READERS, *_FOR_TESTS)]
    for name in set(names) - set(known):
        near = get_close_matches(name, known, 1)
        meant = f"; did you mean {near[0]}?" if near else f"; settings: {', '.join(_PREFIX + n for n in _READERS)}"
        warn_caller(f"{name} in the environment is no setting{meant}", SettingWarning)


@cache
def _warn_of_folder(chosen: str) -> None:
    """Warn where nothing can be kept: it is no folder, or none can be made. One that can only be read is a choice."""
    path = Path(chosen).absolute()
    there = next((p for p in (path, *path.parents) if os.path.lexists(p)), path)
    if not os.access(there, os.X_OK | (os.R_OK if there == path else os.W_OK)) or not there.is_dir():
        text = f"POLYLOOM_CACHE is {chosen!r} in the environment, which is no folder and cannot be made one"
        warn_caller(f"{text}: nothing is kept; allowed: a folder of yours, or off", SettingWarning)
    elif there == path and _is_open(path.stat()):
        text = f"POLYLOOM_CACHE is {chosen!r} in the environment, where somebody else may write"
        warn_caller(f"{text}: loading what they wrote runs their code; allowed: your own folder", SettingWarning)


def _is_open(found: os.stat_result) -> bool:
    """Whether any user may write to a folder, or it is that of another than this one and the administrator."""
    return bool(found.st_mode & stat.S_IWOTH) or found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0
