"""Results on disk by content: an entry's name is a hash of everything that it depends on.

The cache lies in `$POLYLOOM_CACHE` (`off` for none), else in the user's cache directory. Entries are written atomically
and carry a checksum of name and content: one that is damaged or has another's name is as good as none. A cache that
cannot be read or written is no error. Some entries are pickles, so the folder must be the user's own: the checksum
protects against damage, not against others.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"polyloom entry 2\n"


def cache_directory() -> Path | None:
    """Where entries are kept; None where they are not."""
    chosen = os.environ.get("POLYLOOM_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "polyloom"
    except RuntimeError:  # no home directory
        return None


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
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + _checksum(path, content) + content)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        return
