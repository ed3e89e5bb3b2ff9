"""Results on disk by content: an entry's name is a hash of everything that it depends on.

The cache lies in `$POLYLOOM_CACHE` (`off` for none), else in the user's cache directory. Entries are written atomically
and carry a checksum of name and content: one that is damaged or has another's name is as good as none. A cache that
cannot be read or written is no error. Some entries are pickles, so the folder must be the user's own: the checksum
protects against damage, not against others.

The folder stays below `$POLYLOOM_CACHE_SIZE` megabytes (512 unless set): where it has grown past that, the entries that
were not used for longest go. Any number of processes may read, write and drop entries at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from poly.settings import cache_folder, cache_megabytes

_MAGIC: Final = b"polyloom entry 2\n"
_UNFINISHED: Final = "unfinished-"
KEPT: Final = 0.75  # of the size, once entries have to go
FRESH: Final = 3600.0  # seconds for which a use is not noted again, and for which an unfinished entry is left alone


def cache_directory() -> Path | None:
    """Where entries are kept; None where they are not."""
    return cache_folder()


def cache_entry(kind: str, parts: Sequence[str], suffix: str) -> Path | None:
    """The file of an entry that depends on `parts`, in the folder `kind`; None where nothing is kept."""
    directory = cache_directory()
    if directory is None:
        return None
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return directory / kind / key[:2] / f"{key}{suffix}"


def read_entry(path: Path | None) -> bytes | None:
    """An entry's content; None where there is none, or a damaged one."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
        _note_use(path)
    except OSError:
        return None
    start = len(_MAGIC)
    if not content.startswith(_MAGIC) or len(content) < start + 32:
        return None
    found = content[start + 32 :]
    return found if _checksum(path, found) == content[start : start + 32] else None


def _checksum(path: Path, content: bytes) -> bytes:
    """Of the content under its kind and key."""
    return hashlib.sha256(f"{path.parts[-3:]}\0".encode() + content).digest()


def write_entry(path: Path | None, content: bytes) -> None:
    """Keep an entry."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _checksum(path, content) + content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        return
    if path.name.startswith("00"):  # one of 256, so that looking through the folder costs nothing on the whole
        trim(path.parents[2], cache_size())


def cache_size() -> int:
    """The most bytes that entries may take."""
    return cache_megabytes() << 20


def trim(directory: Path, limit: int) -> None:
    """Where the entries of a cache take more than `limit` bytes, drop those not used for longest, down to `KEPT` of it.

    An entry that somebody reads meanwhile is read whole; one that is gone is made again.
    """
    found = sorted(_files(directory))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in found:
        if total <= KEPT * limit:
            return
        total -= size
        try:
            os.unlink(path)
        except OSError:  # gone already, or in a folder that can only be read
            continue


def _files(directory: Path) -> Iterator[tuple[float, int, str]]:
    """When each entry was used last, its bytes and its name; unfinished entries only when they are old."""
    now = time.time()
    parts = (part for kind in _entries(directory) for part in _entries(kind.path) if len(part.name) == 2)
    for part in parts:
        own = re.compile(re.escape(part.name) + "[0-9a-f]{62}")
        for entry in _entries(part.path):
            unfinished = entry.name.startswith(_UNFINISHED)
            if not (unfinished or own.fullmatch(os.path.splitext(entry.name)[0])):
                continue  # not ours
            try:
                found = entry.stat()
            except OSError:
                continue
            if not unfinished or now - found.st_mtime > FRESH:
                yield found.st_mtime, found.st_size, entry.path


def _entries(directory: Path | str) -> list[os.DirEntry[str]]:
    """What a directory holds; nothing where it is none or cannot be read. (`Path.glob` takes twice as long.)"""
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


def _note_use(path: Path) -> None:
    """The time of a file's last use is its time of change, which every file system keeps."""
    now = time.time()
    if abs(now - path.stat().st_mtime) > FRESH:
        try:
            os.utime(path)
        except OSError:  # a cache that can only be read
            return
